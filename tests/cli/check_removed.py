#!/usr/bin/env python3
"""check_removed.py COUPLET: flags and settings of the version before: each names what does its work now, and the
configuration of a run that has a removed setting is read without it, bit for bit."""

import os
import shutil
import sys

from program import bad, check, finish, good, scratch_folder
from train_case import same_run, train, write_corpus

BASE = ("train.steps=6", "checkpoint.every=2", "eval.every=3")


def check_run(folder):
    """A run that an older version began, with log.tensorboard in its config.yaml, goes on as one that never stopped."""
    whole, old = train(folder, "whole", *BASE), folder / "old"
    shutil.copytree(whole, old, symlinks=True)
    (old / "last").unlink()
    (old / "last").symlink_to("step-000004")
    shutil.rmtree(old / "step-000006")
    config = old / "config.yaml"
    text = config.read_text()
    check("\nlog:\n" in text, "config.yaml has no section log")
    config.write_text(text.replace("\nlog:\n", "\nlog:\n    # Write event files too.\n    tensorboard: true\n", 1))
    told = good("train", "--resume", old)
    lines = [line for line in told.splitlines() if "log.tensorboard is passed over: python -m couplet.export" in line]
    check(len(lines) == 1, f"told of the removed setting: {told}")
    same_run(whole, old, "a run with a removed setting")
    check(os.readlink(old / "last") == "step-000006", "the run did not go on")
    again = folder / "again.yaml"
    again.write_text((folder / "c.yaml").read_text().replace("log:\n", "log:\n    tensorboard: true\n"))
    told = good("train", again, "--out", folder / "fresh", "--set", "train.steps=1")
    check("log.tensorboard is passed over" in told, f"a new run of an old configuration: {told}")
    check("tensorboard" not in (folder / "fresh" / "config.yaml").read_text(), "the removed setting is written again")


def check_words(folder):
    said = ["log.tensorboard is no longer there", "python -m couplet.export tensorboard RUN --follow"]
    bad(2, said, "train", folder / "c.yaml", "--out", folder / "x", "--set", "log.tensorboard=true")
    bad(
        2,
        ["--tensorboard is no longer there", "couplet.export tensorboard RUN --out DIR"],
        "export",
        "x",
        "--tensorboard",
        "y",
    )


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        check_run(folder)
        check_words(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
