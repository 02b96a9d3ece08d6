#!/usr/bin/env python3
"""check_removed.py COUPLET: settings of the version before: a run that d6841828 wrote with a removed setting is resumed
without it, bit for bit.

tests/golden/resume/d6841828.tar.gz: the folder that d6841828 left of a run of six steps with log.tensorboard, killed
after the last step and before its checkpoint: f32, one layer, hidden size 8; with the documents and the tokenizer,
which it names below /proc/self/cwd."""

import sys
import tarfile

sys.path.append("tests/cli")
from inputs import GOLDEN, metrics
from program import check, finish, good, near, scratch_folder
from train_case import go_back, same_run

NEAR = 1e-3  # relative, of losses on another processor, two steps after equal weights


def old_run(folder, name):
    """Returns the folder that contains `run`."""
    with tarfile.open(GOLDEN / "resume" / "d6841828.tar.gz") as packed:
        packed.extractall(folder / name)
    return folder / name


def check_run(folder):
    """A run without a stop, a run with a stop, and a run without the setting give equal bits."""
    whole, stopped, without = (old_run(folder, name) for name in ("whole", "stopped", "without"))
    config = without / "run" / "config.yaml"
    text = config.read_text()
    check("\n    tensorboard: true\n" in text, "config.yaml does not have the removed setting")
    config.write_text(text.replace("\n    tensorboard: true\n", "\n"))
    wrote = metrics(whole / "run")
    often = ("--set", "checkpoint.every=1")
    for place, lines in ((whole, 1), (stopped, 1), (without, 0)):
        told = good("train", "--resume", "run", *often, cwd=place)
        found = told.count("log.tensorboard is passed over: python -m couplet.export tensorboard RUN --follow")
        check(found == lines, f"{place.name}: told of the removed setting: {told}")
        if not (place / "run" / "step-000006").exists():
            return
    check("tensorboard" not in (whole / "run" / "config.yaml").read_text(), "the removed setting is written again")
    go_back(stopped / "run", 5)
    good("train", "--resume", "run", cwd=stopped)
    same_run(whole / "run", stopped / "run", "a run that was stopped once more")
    same_run(whole / "run", without / "run", "a run without the removed setting")
    for old, new in zip(wrote, metrics(whole / "run"), strict=True):
        near(new["loss"], old["loss"], 0 if new["step"] <= 4 else NEAR, f"loss of step {new['step']} and of d6841828")


def check_new_run(folder):
    """Starts a new run with that run's configuration."""
    place = old_run(folder, "fresh")
    words = ("train", "run/config.yaml", "--out", "again", "--set", "train.steps=1", "--set", "train.warmup_steps=0")
    told = good(*words, cwd=place)
    check("log.tensorboard is passed over" in told, f"a new run of an old configuration: {told}")
    check("tensorboard" not in (place / "again" / "config.yaml").read_text(), "the removed setting is written anew")


def main():
    with scratch_folder() as folder:
        check_run(folder)
        check_new_run(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
