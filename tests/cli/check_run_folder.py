#!/usr/bin/env python3
"""check_run_folder.py COUPLET: what was changed in a run's folder is seen when the run goes on:
metrics.jsonl loses no line without a word, config.yaml is held against what the run was made with,
nothing is written through a link, and no checkpoint is left over."""
import json
import os
import shutil
import sys

from inputs import files_of, metrics, read_json
from program import bad, check, finish, good, scratch_folder, sets
from train_case import checkpoints, same_run, train, write_corpus

BASE = ("train.steps=6", "checkpoint.every=1", "checkpoint.keep=2", "eval.every=3")


def copy(base, name):
    folder = base.parent / name
    shutil.copytree(base, folder, symlinks=True)
    return folder


def go_on(folder, *settings):
    told = good("train", "--resume", folder, *sets(*settings))
    return [line for line in told.splitlines() if "warning" in line]


def check_damaged_line(base):
    one = copy(base, "damaged")
    path = one / "metrics.jsonl"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"step"') + 3] = ord("X")
    path.write_bytes(raw)
    said = go_on(one, "train.steps=8")
    now = path.read_bytes()
    check(now.startswith(bytes(raw)), "a damaged line: the file is not as it was")
    check(now.count(b"\n") == 8, f"a damaged line: {now.count(bytes([10]))} lines, wanted 8")
    check(any("line 1 is damaged" in line for line in said), f"a damaged line: {said}")


def check_missing_lines(base):
    one = copy(base, "missing")
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
        one = copy(base, f"link-{name}")
        victim = base.parent / target
        (base.parent / "victim").write_text("")
        (one / name).unlink()
        os.symlink(victim, one / name)
        bad(1, [name, "symbolic link"], "train", "--resume", one, *sets("train.steps=8"))
        check((base.parent / "victim").read_text() == "", f"{name}: written through a link")
        check(not (base.parent / "made").exists(), f"{name}: a file was made through a link")
    os.symlink(base.parent / "damaged", base.parent / "by-link")  # a folder that the user names
    go_on(base.parent / "by-link")
    endless = copy(base, "endless")
    (endless / "metrics.jsonl").unlink()
    os.symlink("/dev/zero", endless / "metrics.jsonl")
    bad(1, "metrics.jsonl", "train", "--resume", endless)


def edited(base, name, old, new):
    one = copy(base, name)
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
    cut = copy(base, "cut")
    config = (cut / "config.yaml").read_text()
    (cut / "config.yaml").write_text(config[:config.index("\ntrain:")])
    refused(cut, "train.", "state.json")
    gone = copy(base, "gone")  # a setting that has its default may be absent
    lines = (gone / "config.yaml").read_text().splitlines(keepends=True)
    check("    beta1: 0.9\n" in lines, "config.yaml lacks beta1")
    (gone / "config.yaml").write_text("".join(line for line in lines if "beta1: 0.9" not in line))
    check(go_on(gone) == [], "an absent setting with its default")
    same_run(base, gone, "an absent setting with its default")
    free = edited(base, "free", "    threads: 2\n", "    threads: 1\n")
    check(go_on(free) == [], "config.yaml with other threads")
    longer = edited(base, "longer", "    steps: 6\n", "    steps: 7\n")
    said = go_on(longer)
    check(len(said) == 1 and "train.steps was 6 and is now 7" in said[0], f"steps edited: {said}")
    said = go_on(copy(base, "longer-set"), "train.steps=7")
    check(len(said) == 1 and "train.steps was 6 and is now 7" in said[0], f"steps set: {said}")


def check_moved_data(base):
    """Paths may change in config.yaml: folders move."""
    tokenizer = base.parent / "T.json"
    shutil.copy(tokenizer, base.parent / "U.json")
    moved = edited(base, "moved", f"    tokenizer: {tokenizer}\n",
                   f"    tokenizer: {base.parent / 'U.json'}\n")
    said = go_on(moved)
    check(len(said) == 1 and "data.tokenizer" in said[0], f"a tokenizer that moved: {said}")


def check_before_first_checkpoint(base):
    early = copy(base, "early")
    (early / "last").unlink()
    for name in checkpoints(early):
        shutil.rmtree(early / name)
    config = (early / "config.yaml").read_text()
    (early / "config.yaml").write_text(config.replace("    lr: 0.01\n", "    lr: 0.02\n"))
    bad(1, ["train.lr", "0.01", "0.02", "start.json"], "train", "--resume", early)
    (early / "config.yaml").write_text(config)
    go_on(early)
    same_run(base, early, "killed before the first checkpoint")


def check_old_state(base):
    """What an older version saved holds no settings: here start.json, which has no check sum."""
    old = copy(base, "old")
    (old / "last").unlink()
    for name in checkpoints(old):
        shutil.rmtree(old / name)
    start = read_json(old / "start.json")
    start.pop("settings", None)
    (old / "start.json").write_text(json.dumps(start))
    said = go_on(old)
    check(len(said) == 1 and "does not say the settings" in said[0], f"an old run: {said}")


def check_left_over(base):
    """Killed after `last` moved: more checkpoints than checkpoint.keep."""
    one = copy(base, "left-over")
    for step in (2, 3, 4):
        shutil.copytree(one / "step-000006", one / f"step-{step:06d}")
    go_on(one)
    check(checkpoints(one) == ["step-000005", "step-000006"], f"left over: {checkpoints(one)}")


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
    return finish()


if __name__ == "__main__":
    sys.exit(main())
