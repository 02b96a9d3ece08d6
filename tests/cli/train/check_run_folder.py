#!/usr/bin/env python3
"""check_run_folder.py COUPLET: changes in a run's folder are noticed when the run is resumed. metrics.jsonl loses no
line without a warning, config.yaml is compared with the settings of the run, no file is written through a link, and no
checkpoint is left over."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.append("tests/cli")
from inputs import different, files_of, metrics, read_json
from program import bad, check, finish, good, scratch_folder, sets
from train_case import checkpoints, copy_of, link_last, same_run, train, write_corpus

BASE = ("train.steps=6", "checkpoint.every=1", "checkpoint.keep=2", "eval.every=3")


def go_on(folder, *settings):
    told = good("train", "--resume", folder, *sets(*settings))
    return [line for line in told.splitlines() if "warning" in line]


def check_damaged_line(base):
    one = copy_of(base, "damaged")
    path = one / "metrics.jsonl"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"step"') + 3] = ord("X")
    path.write_bytes(raw)
    said = go_on(one, "train.steps=8")
    now = path.read_bytes()
    check(now.startswith(bytes(raw)), "a damaged line: the file is not as it was")
    check(now.count(b"\n") == 8, f"a damaged line: {now.count(bytes([10]))} lines, wanted 8")
    check(any("has 1 damaged line, first at line 1" in line for line in said), f"a damaged line: {said}")


def check_missing_lines(base):
    one = copy_of(base, "missing")
    path = one / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    said = go_on(one, "train.steps=7")
    check(any("2 of the 6 lines up to step 6" in line for line in said), f"lost lines: {said}")
    check([line["step"] for line in metrics(one)] == [1, 2, 7], "lost lines: others are gone")
    said = go_on(one, "train.steps=8")
    check(not any("lines" in line for line in said), f"lost lines are reported again: {said}")


def check_links(base):
    for name, target in (("metrics.jsonl", "victim"), ("lock", "made")):
        one = copy_of(base, f"link-{name}")
        victim = base.parent / target
        (base.parent / "victim").write_text("")
        (one / name).unlink()
        os.symlink(victim, one / name)
        bad(1, [name, "symbolic link"], "train", "--resume", one, *sets("train.steps=8"))
        check((base.parent / "victim").read_text() == "", f"{name}: written through a link")
        check(not (base.parent / "made").exists(), f"{name}: a file was made through a link")
    os.symlink(base.parent / "damaged", base.parent / "by-link")  # a folder that the user names
    go_on(base.parent / "by-link")
    endless = copy_of(base, "endless")
    (endless / "metrics.jsonl").unlink()
    os.symlink("/dev/zero", endless / "metrics.jsonl")
    bad(1, "metrics.jsonl", "train", "--resume", endless)


def edited(base, name, old, new):
    one = copy_of(base, name)
    config = (one / "config.yaml").read_text()
    check(old in config, f"config.yaml lacks {old!r}")
    (one / "config.yaml").write_text(config.replace(old, new, 1))
    return one


def refused(one, *parts):
    kept = (one / "config.yaml").read_bytes()
    before = files_of(one / "last")
    bad(1, list(parts), "train", "--resume", one)
    check((one / "config.yaml").read_bytes() == kept, f"{one.name}: config.yaml was overwritten")
    check(files_of(one / "last") == before, f"{one.name}: the checkpoint was changed")


def check_edited_config(base):
    refused(edited(base, "lr", "    lr: 0.01\n", "    lr: 0.0001\n"), "train.lr", "0.01", "0.0001")
    refused(edited(base, "alpha", "    alpha: 1\n", "    alpha: 0.5\n"), "erc.alpha", "1", "0.5")
    refused(edited(base, "seed", "    seed: 0\n", "    seed: 1\n"), "train.seed", "0", "1")
    cut = copy_of(base, "cut")
    config = (cut / "config.yaml").read_text()
    (cut / "config.yaml").write_text(config[: config.index("\ntrain:")])
    refused(cut, "train.", "state.json")
    gone = copy_of(base, "gone")  # a setting that has its default may be absent
    lines = (gone / "config.yaml").read_text().splitlines(keepends=True)
    check("    beta1: 0.9\n" in lines, "config.yaml lacks beta1")
    (gone / "config.yaml").write_text("".join(line for line in lines if "beta1: 0.9" not in line))
    check(go_on(gone) == [], "an absent setting with its default")
    same_run(base, gone, "an absent setting with its default")
    free = edited(base, "free", "    threads: 2\n", "    threads: 1\n")
    said = go_on(free)
    check(len(said) == 1 and "threads 2 (now 1)" in said[0], f"config.yaml with other threads: {said}")
    longer = edited(base, "longer", "    steps: 6\n", "    steps: 7\n")
    said = go_on(longer)
    check(len(said) == 1 and "train.steps was 6 and is now 7" in said[0], f"steps edited: {said}")
    said = go_on(copy_of(base, "longer-set"), "train.steps=7")
    check(len(said) == 1 and "train.steps was 6 and is now 7" in said[0], f"steps set: {said}")


def check_moved_data(base):
    """Paths may change in config.yaml: folders may be moved."""
    tokenizer = base.parent / "T.json"
    shutil.copy(tokenizer, base.parent / "U.json")
    moved = edited(base, "moved", f"    tokenizer: {tokenizer}\n", f"    tokenizer: {base.parent / 'U.json'}\n")
    said = go_on(moved)
    check(len(said) == 1 and "data.tokenizer" in said[0], f"a tokenizer that moved: {said}")


def unsaved(base, name):
    """Makes the state of a run that was killed before its first checkpoint."""
    one = copy_of(base, name)
    (one / "last").unlink()
    for step in checkpoints(one):
        shutil.rmtree(one / step)
    (one / "lock").write_text("no checkpoint yet\n")
    return one


def check_before_first_checkpoint(base):
    early = unsaved(base, "early")
    config = (early / "config.yaml").read_text()
    (early / "config.yaml").write_text(config.replace("    lr: 0.01\n", "    lr: 0.02\n"))
    bad(1, ["train.lr", "0.01", "0.02", "start.json"], "train", "--resume", early)
    (early / "config.yaml").write_text(config)
    go_on(early)
    same_run(base, early, "killed before the first checkpoint")
    check((early / "lock").read_text() == "", "the lock does not know of a checkpoint")


def check_old_state(base):
    """Resumes a run of an older version, which saved no settings: its start.json has no check sum."""
    old = unsaved(base, "old")
    start = read_json(old / "start.json")
    start.pop("settings", None)
    (old / "start.json").write_text(json.dumps(start))
    said = go_on(old)
    check(len(said) == 1 and "does not say the settings" in said[0], f"an old run: {said}")


def check_left_over(base):
    """The run was killed after `last` moved: it has more checkpoints than checkpoint.keep."""
    one = copy_of(base, "left-over")
    for step in (2, 3, 4):
        shutil.copytree(one / "step-000006", one / f"step-{step:06d}")
    go_on(one)
    check(checkpoints(one) == ["step-000005", "step-000006"], f"left over: {checkpoints(one)}")


def check_gone(base):
    """Metrics without a checkpoint: starting again would replace them. No file is changed."""
    gone = unsaved(base, "gone-checkpoints")
    (gone / "lock").write_text("")
    recorded = unsaved(base, "recorded")
    (recorded / "lock").unlink()
    (recorded / "metrics.jsonl.gz").write_bytes(gzip.compress((recorded / "metrics.jsonl").read_bytes()))
    (recorded / "metrics.jsonl").unlink()
    for one, name in ((gone, "metrics.jsonl"), (recorded, "metrics.jsonl.gz")):
        before = files_of(one)
        bad(
            1,
            [f"{one}: has {name} and no checkpoint", f"couplet train {one}/config.yaml --out NEW"],
            f"train --resume {one}",
        )
        check(files_of(one) == before, f"{one.name}: a refusal changed {different(files_of(one), before)}")
    packed = copy_of(base, "packed")
    (packed / "metrics.jsonl").rename(packed / "metrics.jsonl.zst")
    bad(1, "unpack them to metrics.jsonl", "train", "--resume", packed)


def readers(folder):
    """Returns the words of all verbs that read a model, which is the last word."""
    return (
        ["inspect"],
        ["generate", "--prompt", "a", "--tokens", 1],
        ["eval", "--text", folder / "text.txt"],
        ["train", folder / "c.yaml", "--out", folder / "never", "--dry-run", "--from"],
    )


def check_kinds(base):
    """Checks that the kind of a folder follows from all of its contents."""
    folder = base.parent
    (folder / "text.txt").write_text("a text\n")
    unlinked, astray, dangling = copy_of(base, "unlinked"), copy_of(base, "astray"), copy_of(base, "dangling")
    (unlinked / "last").unlink()  # copied without links
    shutil.copy(base / "last" / "config.json", astray)  # a file of a model in a run
    link_last(dangling, 99)
    damaged = dangling / "step-000006" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    elsewhere = copy_of(base, "else where")  # the link's own text names a step of the folder
    for target in (elsewhere / "step-000006", "./step-000006/"):
        link_last(elsewhere, target)
        wrong, mends = f"`last` leads to {target}, which is not the name", f"`ln -sfn step-000006 '{elsewhere}/last'`"
        bad(1, [wrong, "newest whole checkpoint is step-000006", mends], "inspect", elsewhere)
    nothing = copy_of(base, "nothing")
    (nothing / "last").unlink()
    for step in checkpoints(nothing):
        shutil.rmtree(nothing / step)
    stray = copy_of(base, "stray")  # weights that were put beside the checkpoints
    for name in ("g.safetensors", "m.gguf", "model.safetensors.index.json"):
        (stray / name).write_bytes(b"")
    (folder / "rows.json").write_text('{"input_ids": [[1, 2, 3]]}')
    said = good(
        "inspect", copy_of(base, "erc.alpha=1").relative_to(folder), cwd=folder
    )  # a folder named like a setting
    check("about 0.1 s on" in said, f"inspect says no time: {said[:300]}")
    bare = copy_of(base, "bare")
    (bare / "config.yaml").unlink()
    shards = next((base / "tokens").glob("train-*"))
    for first, *more in readers(folder):
        for run in (base, unlinked, astray, stray, bare):
            good(first, *more, run)
        for run, parts in (
            (nothing, ["without a checkpoint", "metrics.jsonl"]),
            (shards, ["token shards, not a model"]),
            (
                dangling,
                [
                    "`last` leads to step-000099",
                    "newest whole checkpoint is step-000005",
                    f"ln -sfn step-000005 {dangling}/last",
                ],
            ),
        ):
            bad(1, parts, first, *more, run)
    for first, *more in (["compare", "--no-documents"], ["train", "--resume"]):
        for run in (astray, stray):
            good(first, *more, run)
        bad(1, "but no config.yaml", first, *more, bare)
        bad(1, "is a checkpoint, not a run", first, *more, base / "last")
        bad(1, "is no run", first, *more, shards)
    bad(1, ["holds a run already", "step-000006"], "train", folder / "c.yaml", "--out", bare)
    for more in ([], ["--dry-run"]):
        bad(1, ["holds a run already", "--resume"], "train", folder / "c.yaml", "--out", base, *more)
    bad(1, ["is a folder", "config.yaml"], "plan", base)
    bad(1, ["is a folder", "config.yaml"], "train", base)


def check_last_as_folder(base):
    """Makes the state that a copy leaves which follows links. No verb reads another checkpoint or removes it, and the
    named command repairs it."""
    verbs = [*readers(base.parent), ["train", "--resume"]]
    for name, left in (("older copy", ["step-000005", "step-000006"]), ("newest-moved", ["step-000005"]), ("only", [])):
        one = copy_of(base, name)
        step = "step-000005" if len(left) == 2 else "step-000006"
        (one / "last").unlink()
        shutil.copytree(one / step, one / "last")
        for gone in set(checkpoints(one)) - set(left):
            shutil.rmtree(one / gone)
        weights = (one / "last" / "model.safetensors").read_bytes()
        for verb in verbs:
            wrong = bad(1, ["`last` is a folder, not a link: `mv ", f"ln -s {step}"], *verb, one)
        subprocess.run(["sh", "-ec", re.search("`(mv .*)` makes", wrong)[1]], check=True)
        check(os.readlink(one / "last") == step, f"{name}: last leads to {os.readlink(one / 'last')}")
        check((one / "last" / "model.safetensors").read_bytes() == weights, f"{name}: another checkpoint")
        for verb in verbs:
            good(*verb, one)
    for name, make in (("text", lambda last: last.write_text("step-000005")), ("empty", lambda last: last.mkdir())):
        one = copy_of(base, f"last-{name}")
        (one / "last").unlink()
        make(one / "last")
        for verb in verbs:
            bad(1, "`last` is neither a link nor a checkpoint of a run: move it away", *verb, one)


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        base = train(folder, "base", *BASE)
        state = read_json(base / "last" / "state.json")
        check(state.get("settings", {}).get("train.lr") == "0.01", f"state.json: {state}")
        check(state.get("metrics_lines") == 6, f"state.json: {state}")
        check_damaged_line(base)
        check_missing_lines(base)
        check_links(base)
        check_edited_config(base)
        check_moved_data(base)
        check_before_first_checkpoint(base)
        check_old_state(base)
        check_left_over(base)
        check_gone(base)
        check_kinds(base)
        check_last_as_folder(base)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
