#!/usr/bin/env python3
"""check_demo.py COUPLET: the README's quotes of the demonstration stand in docs/demo.txt, which records a
demonstration, and a fresh demonstration of a few steps has the form of the recorded one. The numbers of a fresh run are
not compared: they differ between processors."""

import os
import pathlib
import re
import sys
import tempfile

from program import COUPLET, capture, check, finish

RECORDED = pathlib.Path("docs/demo.txt").read_text()
BEGIN = "Side by side"


def quoted():
    """Returns the README's indented blocks that quote the demonstration: those that contain its words."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", pathlib.Path("README.md").read_text(), re.M)
    return [block for block in blocks if "run runs/demo" in block or BEGIN in block]


def check_quotes():
    blocks = quoted()
    check(any(BEGIN in block for block in blocks), f"the README quotes no table that begins with {BEGIN!r}")
    recorded = [line.rstrip() for line in RECORDED.splitlines()]
    for block in blocks:
        at = 0
        for line in block.splitlines():
            line = line[4:].rstrip()
            if not line or line == "...":
                continue
            there = line in recorded[at:]
            check(there, f"README quotes what docs/demo.txt does not have there: {line}")
            if there:
                at = recorded.index(line, at) + 1
    check(re.search(r"^Processor: .*\S", RECORDED, re.M), "docs/demo.txt names no processor")


def form(text, runs):
    """Returns the text from the table on, with # for every number and for the blanks before it."""
    text = text[text.index(BEGIN) :].replace(runs, "RUNS").replace(COUPLET, "COUPLET")
    text = text.replace("build/release/couplet", "COUPLET")
    text = re.sub(r": (partly |weakly |not )?coupled\n", ": STATE\n", text)  # after two steps the state differs
    return re.sub(r" *-?\d[\d.e+-]*", " #", text).split("\n")


def check_form():
    with tempfile.TemporaryDirectory() as folder:
        few = (
            "train.steps=2 train.warmup_steps=1 data.train=data/train/qa-0000.jsonl.zst "
            "data.validation=data/validation/qa-0000.jsonl.zst eval.max_sequences=1"
        ).split()
        done = capture(["tools/demo.sh", COUPLET, *few], env={**os.environ, "RUNS": f"{folder}/runs"}, timeout=500)
        check(not done.returncode and not done.stderr, f"the demonstration ends with {done.returncode}: {done.stderr}")
        if done.returncode or done.stderr:
            return
        fresh, recorded = form(done.stdout, f"{folder}/runs"), form(RECORDED, "runs/demo")
        check(
            fresh == recorded,
            "a fresh demonstration:\n" + "\n".join(fresh) + "\nand the recorded one:\n" + "\n".join(recorded),
        )
        command = done.stdout.rstrip().splitlines()[-1].split()
        command[-1] = "train.steps=3"  # the printed command works as printed, except for the number of steps
        on = capture(command, timeout=300)
        check(
            on.returncode == 0 and os.path.exists(f"{folder}/runs/coupled/step-000003"),
            f"{' '.join(command)} ends with {on.returncode}: {on.stderr}",
        )


check_quotes()
check_form()
sys.exit(finish())
