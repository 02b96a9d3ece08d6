"""train_case.py: shared by end-to-end tests of training: writes a small corpus with its tokenizer and
configuration, trains, sets runs back, and compares them."""

import json
import os
import shutil

from inputs import TRAIN_TOKENIZER, config, different, files_of, litter, metrics, read_json, untimed, write_documents
from program import check, good, sets


def write_corpus(folder):
    write_documents(folder / "docs")
    (folder / "c.yaml").write_text(config())
    good(*TRAIN_TOKENIZER, "--out", folder / "T.json", folder / "docs")


def train(folder, name, *settings, **how):
    """Trains c.yaml in folder/name with these settings. Returns the run's folder."""
    good("train", folder / "c.yaml", "--out", folder / name, *sets(*settings), **how)
    return folder / name


def copy_of(run, name):
    """Copies the run, with its links, beside itself. Returns the copy."""
    return shutil.copytree(run, run.parent / name, symlinks=True)


def link_last(run, target):
    """Makes `last` lead to `target`: a step, or a name."""
    (run / "last").unlink(missing_ok=True)
    (run / "last").symlink_to(f"step-{target:06d}" if isinstance(target, int) else target)


def go_back(run, step):
    """Sets the run back to the step when it had saved `step`, except for its lines. Returns it."""
    for path in run.glob("step-*"):
        if path.name > f"step-{step:06d}":
            shutil.rmtree(path)
    link_last(run, step)
    return run


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("step-*"))


def without_settings(files):
    """Returns the files of a checkpoint without its settings and the check sum that covers them."""
    state = json.loads(files["state.json"])
    del state["settings"]
    return {name: content for name, content in files.items() if name not in ("state.json", "checksums.json")} | {
        "state.json": state
    }


def same_run(a, b, what, same_settings=True):
    """Checks that the losses of every line and everything in the last checkpoint are equal, bit for bit."""
    x, y = untimed(metrics(a)), untimed(metrics(b))
    check(len(x) == len(y), f"{what}: {len(x)} and {len(y)} lines of metrics")
    for one, other in zip(x, y):
        check(one == other, f"{what}: step {one['step']} differs in {different(one, other)}")
    check(os.readlink(a / "last") == os.readlink(b / "last"), f"{what}: `last` differs")
    one, other = files_of(a / "last"), files_of(b / "last")
    starts = untimed([read_json(run / "start.json") for run in (a, b)])
    if not same_settings:
        one, other = without_settings(one), without_settings(other)
        for start in starts:
            del start["settings"]
    check(one == other, f"{what}: the last checkpoints differ in {different(one, other)}")
    check(starts[0] == starts[1], f"{what}: start.json differs")


def whole(folder, what):
    """Checks that no half-written file is left, and that `last` leads to a checkpoint that verifies."""
    check(not litter(folder), f"{what}: left over: {litter(folder)}")
    check((folder / "last" / "checksums.json").exists(), f"{what}: `last` leads nowhere")
