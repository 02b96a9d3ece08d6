#!/usr/bin/env python3
"""check_resume.py COUPLET: a run that is killed, stopped, or out of disk at any moment is resumed and gives bit for bit
the results of an uninterrupted run. Checks which settings may change meanwhile."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys

sys.path.append("tests/cli")
from inputs import files_of, metrics, read_json
from program import COUPLET, bad, check, equal, finish, good, run, scratch_folder, sets, wait_until
from train_case import checkpoints, copy_of, go_back, link_last, same_run, train, whole, write_corpus

LONG = ("train.steps=30", "checkpoint.every=1", "eval.every=5", "checkpoint.keep=2")


def start(folder, *words):
    return subprocess.Popen(
        [COUPLET, "train", *map(str, words)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def begin_or_resume(folder, name):
    if (folder / name / "config.yaml").exists():
        return ["--resume", name]
    return ["c.yaml", "--out", name, *sets(*LONG)]


def killed_until_done(folder, name, seed, most):
    """Kills after random times, mostly those in which steps and saves alternate."""
    numbers = random.Random(seed)
    for _ in range(most):
        process = start(folder, *begin_or_resume(folder, name))
        try:
            process.wait(numbers.uniform(0.3, 1.1))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        out = process.communicate()[0].decode()
        check(process.returncode in (0, -signal.SIGKILL), f"after a kill: {out}")
        if process.returncode == 0:
            break
    good("train", *begin_or_resume(folder, name), cwd=folder)
    whole(folder / name, "killed")


def check_killed(folder, uninterrupted):
    for seed in range(2):
        killed_until_done(folder, f"killed{seed}", seed, 8)
        same_run(uninterrupted, folder / f"killed{seed}", f"killed (seed {seed})")


def check_half_states(folder, uninterrupted):
    """Resumes from states that a kill can leave between two system calls, made by hand."""
    half = train(folder, "half", *LONG, "train.steps=30")
    kept = checkpoints(half)
    check(kept == ["step-000029", "step-000030"], f"keep=2 kept {kept}")
    back = copy_of(half, "back")
    link_last(back, 29)  # the rename was made, and the link was not
    (back / ".tmp-step").mkdir()  # a half-written checkpoint
    (back / ".tmp-step" / "config.json").write_text("{")
    (back / ".tmp-old").mkdir()  # a half-removed old checkpoint
    (back / ".tmp-old" / "model.safetensors").write_text("x")
    os.symlink("step-000030", back / ".tmp-last")
    (back / "config.yaml.tmp-1-1").write_text("half")
    with open(back / "metrics.jsonl", "a", encoding="utf-8") as lines:
        lines.write('{"step": 31, "loss"')  # a half-written line
    good("train", "--resume", back)
    whole(back, "half states")
    same_run(uninterrupted, back, "half states")
    shutil.rmtree(back / "step-000029")
    (back / "last").unlink()  # killed before the first link
    good("train", "--resume", back)
    early = copy_of(half, "early")  # killed before the first checkpoint
    for name in ("last", "start.json", "metrics.jsonl"):
        (early / name).unlink()
    for name in kept:
        shutil.rmtree(early / name)
    good("train", "--resume", early)
    same_run(uninterrupted, early, "killed before the first checkpoint")


def check_going_back(folder):
    """If the run went back to an earlier step, keep-N must not remove its new checkpoints."""
    back = copy_of(folder / "half", "older")
    link_last(back, 29)
    shutil.copytree(back / "step-000030", back / "step-000099")
    good("train", "--resume", back, *sets("checkpoint.keep=1"))
    whole(back, "going back")
    check(os.readlink(back / "last") == "step-000030", "`last` after going back")


def check_signals(folder, uninterrupted):
    for number, name in ((signal.SIGINT, "int"), (signal.SIGTERM, "term")):
        process = start(folder, *begin_or_resume(folder, name))
        wait_until((folder / name / "last").exists, process)
        process.send_signal(number)
        out = process.communicate()[0].decode()
        check(process.returncode == -number, f"signal {number}: exit {process.returncode}: {out}")
        check(f"go on with: couplet train --resume {name}" in out, f"signal {number}: {out}")
        step = metrics(folder / name)[-1]["step"]
        check(step < 30, f"signal {number} came too late to test anything")
        check(os.readlink(folder / name / "last") == f"step-{step:06d}", f"signal {number}: step {step} was not saved")
        good("train", "--resume", name, cwd=folder)
        same_run(uninterrupted, folder / name, f"signal {number}")


def check_disk_full(folder, uninterrupted):
    """A limit on the size of files replaces the full disk."""
    out = bad(1, "", "train", "c.yaml", "--out", "full", *sets(*LONG), cwd=folder, limit_blocks=100)
    check("File too large" in out, f"disk full at the first save: {out}")
    good("train", "--resume", "full", *sets("train.steps=30"), cwd=folder)
    whole(folder / "full", "disk full at the first save")
    same_run(uninterrupted, folder / "full", "disk full at the first save")
    part = folder / "part"
    process = start(folder, "c.yaml", "--out", "part", *sets(*LONG))
    wait_until((part / "last").exists, process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    before, last = files_of(part / "last"), os.readlink(part / "last")
    for blocks in (4, 40, 100, 1):
        bad(1, "File too large", "train", "--resume", "part", cwd=folder, limit_blocks=blocks)
        equal(
            (os.readlink(part / "last"), files_of(part / "last")),
            (last, before),
            f"disk full ({blocks} KiB): the previous checkpoint is not as it was",
        )
    good("train", "--resume", "part", cwd=folder)
    same_run(uninterrupted, part, "disk full while training")


def check_what_may_change(folder):
    """Changes settings that are named with --resume."""
    base = folder / "half"
    free = copy_of(base, "free")
    good(
        f"train --resume {free} --set compute.threads=1 --set checkpoint.every=2 --set checkpoint.keep=3 "
        "--set eval.every=3 --set eval.max_sequences=2 --set log.every=2"
    )
    out = good("train", "--resume", free, *sets("train.steps=34"))
    check("train.steps was 30 and is now 34" in out, f"no warning of train.steps: {out}")
    check(metrics(free)[-1]["step"] == 34, "train.steps=34 did not go on")
    before = files_of(free)
    bad(1, ["34 steps are done", "train.steps, which is 33"], "train", "--resume", free, *sets("train.steps=33"))
    check(files_of(free) == before, "fewer steps than are done: the run was changed")
    steps = [line["step"] for line in metrics(free)]
    check(steps == [*range(1, 31), 32, 33, 34], f"log.every=2, eval.every=3: {steps}")
    text = (free / "config.yaml").read_text()
    check("steps: 34\n" in text and "keep: 3\n" in text, "config.yaml is not as used")
    for setting, was in (
        ("train.lr=0.5", "0.01"),
        ("model.hidden_size=32", "16"),
        ("erc.alpha=0.5", "1"),
        ("data.seq_len=32", "16"),
        ("train.seed=9", "0"),
        ("data.batch_tokens=128", "64"),
        ("compute.dtype=bf16", "f32"),
        ("balance.weight=0.5", "0.01"),
        ("data.tokenizer=other.json", "T.json"),
        ("z.form=over_k", "mean"),
    ):
        name, value = setting.split("=")
        bad(1, [name, was, value], "train", "--resume", base, "--set", setting)
    same_run(base, base, "refusals")


def check_made_with(folder):
    """Checks that a resumed run keeps the values of its automatic settings, and reports other differences once."""
    base = train(folder, "automatic", *LONG, "train.steps=30", "compute.dtype=auto")
    dtype = read_json(base / "last" / "state.json")["settings"]["compute.dtype"]
    check(dtype in ("bf16", "f32"), f"compute.dtype in state.json: {dtype}")
    check(f"    dtype: {dtype}\n" in (base / "config.yaml").read_text(), "compute.dtype in config.yaml")
    records = [read_json(base / "last" / "state.json"), read_json(base / "start.json"), *metrics(base)]
    made = records[0]["made_with"]
    check(all(one["made_with"] == made for one in records), f"not all have {made}")
    check(
        (made["dtype"], made["threads"], made["ranks"]) == (dtype, 2, 1)
        and {"couplet", "onednn", "kernels"} < made.keys(),
        f"made_with: {made}",
    )

    def halfway(name):
        return go_back(copy_of(base, name), 29)

    def warnings(one, *settings, **how):
        said = good("train", "--resume", one, *sets(*settings), **how).splitlines()
        return [line for line in said if line.startswith("warning: ") and "steps took" not in line]

    for number, setting in enumerate(
        (
            f"compute.dtype={dtype}",
            *(
                "train.lr_min=0.001 data.seed=0 data.eos=0 data.token_type=uint16 "
                "train.micro_batch=4 balance.scope=micro"
            ).split(),
        )
    ):
        one = halfway(f"became{number}")
        said = warnings(one, setting)
        check(said == [], f"{setting} is what it was: {said}")
        same_run(base, one, setting)
    for setting, part in (("data.eos=5", "data.eos is 0"), ("data.token_type=uint32", "data.token_type")):
        bad(1, part, "train", "--resume", base, "--set", setting)
    auto = halfway("threads")  # automatic threads are those of the machine, each time
    config = (auto / "config.yaml").read_text()
    (auto / "config.yaml").write_text(config.replace("    threads: 2\n", "    threads: 0\n"))
    said = warnings(auto, env=os.environ | {"OMP_NUM_THREADS": "1"})
    check(len([line for line in said if "threads 2 (now 1)" in line]) == 1, f"automatic threads: {said}")
    check("    threads: 0\n" in (auto / "config.yaml").read_text(), "automatic threads became a number in config.yaml")
    check(read_json(auto / "last" / "state.json")["made_with"]["threads"] == 1, "the threads of a run that went on")
    slow = halfway("elsewhere")
    said = warnings(slow, env=os.environ | {"COUPLET_ISA": "v2"})
    differ = [line for line in said if f"kernels {made['kernels']} (now v2)" in line]
    equal((len(differ), len(said)), (made["kernels"] != "v2", len(differ) + (dtype == "bf16")), "another processor")
    check(read_json(slow / "last" / "state.json")["made_with"]["dtype"] == dtype, "another precision")
    for name, settings, want in (("unresolved", (), dtype), ("told", ("compute.dtype=f32",), "f32")):
        old = copy_of(base, name)  # as versions wrote it that did not record the precision
        (old / "last").unlink()
        (old / "metrics.jsonl").unlink()
        for step in checkpoints(old):
            shutil.rmtree(old / step)
        begin = read_json(old / "start.json")
        del begin["made_with"]
        begin["settings"]["compute.dtype"] = "auto"
        begin["settings"].pop("compute.activations", None)
        (old / "start.json").write_text(json.dumps(begin))
        config = (old / "config.yaml").read_text()
        (old / "config.yaml").write_text(
            config.replace(f"    dtype: {dtype}\n", "    dtype: auto\n").replace(f"    activations: {dtype}\n", "")
        )
        said = warnings(old, *settings)
        check(
            len(said) == 1
            and f"compute.dtype auto was, as older versions wrote it: from here on it is {want}" in said[0],
            f"an old run {settings}: {said}",
        )
        check(f"    dtype: {want}\n" in (old / "config.yaml").read_text(), f"an old run {settings}: its type")
        check(warnings(old) == [], f"an old run {settings} warns again")


NEWER = ("proxy", "gradient", "router_lr", "scope", "activations")  # settings that runs of older versions do not have


def check_older(folder, uninterrupted):
    """A run whose config.yaml lacks newer settings is resumed with their defaults."""
    older = go_back(copy_of(folder / "half", "older-version"), 29)
    lines = (older / "config.yaml").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.split(":")[0].strip() not in NEWER]
    check(len(lines) - len(kept) == len(NEWER), f"{len(lines) - len(kept)} lines of config.yaml are of newer settings")
    (older / "config.yaml").write_text("".join(kept))
    good("train", "--resume", older)
    same_run(uninterrupted, older, "a run without newer settings")


def check_edited(folder):
    """Resumes runs that someone has edited."""
    base = folder / "half"
    one = copy_of(base, "edited1")
    raw = bytearray((one / "last" / "model.safetensors").read_bytes())
    raw[-5] ^= 1
    (one / "last" / "model.safetensors").write_bytes(raw)
    bad(1, ["model.safetensors", "check sum"], "train", "--resume", one)
    out, err, code = run("generate", one, "--prompt", "a", "--tokens", 2)
    check(code == 0 and "check sum" in err, f"generate from an edited checkpoint: {code} {err}")
    two = copy_of(base, "edited2")
    (two / "last" / "state.safetensors").unlink()
    bad(1, "state.safetensors", "train", "--resume", two)
    (two / "last" / "checksums.json").write_text("{}")
    bad(1, "the check sum of", "train", "--resume", two)
    (two / "last" / "checksums.json").unlink()
    bad(1, "checksums.json", "train", "--resume", two)
    three = copy_of(base, "edited3")
    config = (three / "config.yaml").read_text()
    for old, new, parts in (
        ("hidden_size: 16", "hidden_size: 32", ["hidden_size", "16", "32"]),
        ("rope_theta: 10000", "rope_theta: 20000", ["rope_theta", "20000"]),
        ("num_experts_per_tok: 2", "num_experts_per_tok: 1", ["num_experts_per_tok", "1", "2"]),
        ("steps: 30", "stepz: 30", ["stepz", "steps"]),
    ):
        check(old in config, f"config.yaml lacks {old}")
        (three / "config.yaml").write_text(config.replace(old, new, 1))
        bad(1, parts, "train", "--resume", three)
    four = copy_of(base, "edited4")
    link_last(four, 777)
    bad(1, "step-000777", "train", "--resume", four)
    bad(1, "", "generate", four, "--prompt", "a")
    five = copy_of(base, "edited5")
    documents = folder / "docs" / "two.jsonl"
    kept = documents.read_bytes()
    documents.write_bytes(kept + kept)
    bad(1, "the training data has changed", "train", "--resume", five)
    documents.write_bytes(kept)


def check_two_runs(folder):
    first = start(folder, "c.yaml", "--out", "busy", *sets("train.steps=100000"))
    wait_until((folder / "busy" / "metrics.jsonl").exists, first)
    bad(1, "another process is training", "train", folder / "c.yaml", "--out", folder / "busy")
    bad(1, "another process is training", "train", "--resume", folder / "busy")
    first.kill()
    first.communicate()


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        uninterrupted = train(folder, "whole", *LONG)
        check_half_states(folder, uninterrupted)
        check_going_back(folder)
        check_killed(folder, uninterrupted)
        check_signals(folder, uninterrupted)
        check_disk_full(folder, uninterrupted)
        check_what_may_change(folder)
        check_older(folder, uninterrupted)
        check_made_with(folder)
        check_edited(folder)
        check_two_runs(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
