#!/usr/bin/env python3
"""check_tensorboard.py COUPLET: event files have what metrics.jsonl has, while a run trains, after it was resumed or
killed, and of old runs; what is no run is refused."""

import gzip
import json
import math
import re
import shutil
import sys

from events import Events
from inputs import metrics
from program import bad, check, finish, good, scratch_folder, sets
from train_case import same_run, train, write_corpus

PROMPT = "one\n*two*\r*three*\r\n*four*"
BASE = (
    "train.steps=6",
    "checkpoint.every=2",
    "eval.every=3",
    f"eval.prompts={json.dumps([PROMPT])}",
    "eval.prompt_tokens=3",
    "eval.tasks_every=3",
    "log.tensorboard=true",
)
NOT_SHOWN = {
    "schema",
    "step",
    "router_norm_sd",
    "gate_norm_sd",
    "home_top1",
    "home_topk",
    "home_clean_top1",
    "home_clean_topk",
    "kappa_rows_own",
    "kappa_columns_own",
}


def events_of(folder):
    return Events(folder.glob("events.out.tfevents.*"))


def near(a, b):
    """Lists of (step, value): metrics.jsonl has nine digits, an event 24 bits."""
    return len(a) == len(b) and all(
        x[0] == y[0] and math.isclose(x[1], y[1], rel_tol=3e-7, abs_tol=1e-30) for x, y in zip(a, b)
    )


def wanted(lines):
    """Scalars and sums of histograms, by tag."""
    scalars, sums = {}, {}

    def add(tag, step, value):
        if isinstance(value, (int, float)):
            scalars.setdefault(tag, []).append((step, value))
        elif isinstance(value, list):
            for l, one in enumerate(value):
                if isinstance(one, list):
                    sums.setdefault(f"{tag}/layer_{l}", []).append((step, len(one), sum(one)))
                else:
                    add(f"{tag}/layer_{l}", step, one)
        elif isinstance(value, dict):
            for name, one in value.items():
                add(f"{tag}/{name}", step, one)

    for line in lines:
        for name, value in line.items():
            if name not in NOT_SHOWN and name != "samples":
                group = "validation/" if name == "val_loss" else "train/"
                add((group if isinstance(value, (int, float)) else "") + name, line["step"], value)
    return scalars, sums


def same(folder, run, what):
    """The events of a folder are the lines of a run."""
    events = events_of(folder)
    scalars, sums = wanted(metrics(run))
    check(set(events.scalars) == set(scalars), f"{what}: tags {set(events.scalars) ^ set(scalars)}")
    for tag, points in scalars.items():
        check(near(events.scalars[tag], points), f"{what}: {tag} is {events.scalars[tag]}, wanted {points}")
    for tag, points in sums.items():
        found = [(step, h["count"], h["sum"]) for step, h in events.histograms[tag]]
        check(found == points, f"{what}: {tag} is {found}, wanted {points}")
        for _, h in events.histograms[tag]:
            check(sum(h["counts"]) == h["count"] and h["limits"][-1] == h["high"], f"{what}: {tag}: {h}")
    check("    erc:\n" in events.texts["config"], f"{what}: the configuration is {events.texts['config'][:80]}")
    last = [line["samples"][0]["text"] for line in metrics(run) if "samples" in line][-1]
    last = re.sub("\r\n?|\n", "\n    ", last)
    check(
        events.texts["samples/1"]
        == f"prompt\n\n    one\n    *two*\n    *three*\n    *four*\n\ncontinued\n\n    {last}",
        f"{what}: the sample is {events.texts['samples/1']!r}",
    )
    check(events.times == sorted(events.times), f"{what}: times are not in order")
    return events


def check_a_run(folder):
    one = train(folder, "one", *BASE)
    events = same(one, one, "a run")
    check(events.starts == [] and len(events.scalars["validation/val_loss"]) == 2, "a run: starts or evaluations")
    check("train/loss" in events.scalars and "eps_mean/layer_0" in events.scalars, "a run: tags")
    without = train(folder, "without", *BASE[:-1])
    check(not list(without.glob("events*")), "events although log.tensorboard is unset")
    same_run(one, without, "a run with events and one without", same_settings=False)
    return one


def check_resumed(folder, one):
    two = folder / "two"
    shutil.copytree(one, two, symlinks=True)
    good("train", "--resume", two, *sets("train.steps=8"))
    events = same(two, two, "resumed at its end")
    check(events.starts == [7], f"resumed at its end: starts {events.starts}")
    back = folder / "back"  # to step 4, with a half event at the end
    shutil.copytree(one, back, symlinks=True)
    (back / "last").unlink()
    (back / "last").symlink_to("step-000004")
    shutil.rmtree(back / "step-000006")
    (file,) = back.glob("events.out.tfevents.*")
    file.write_bytes(file.read_bytes()[:-5])
    good("train", "--resume", back)
    events = same(back, back, "resumed at step 4")
    check(events.starts == [5] and len(list(back.glob("events.*"))) == 2, f"resumed at step 4: {events.starts}")
    early = folder / "early"  # interrupted before the first checkpoint
    shutil.copytree(one, early, symlinks=True)
    (early / "last").unlink()
    for path in early.glob("step-*"):
        shutil.rmtree(path)
    (early / "lock").write_text("no checkpoint yet\n")
    good("train", "--resume", early)
    events = same(early, early, "resumed without a checkpoint")
    check(
        events.starts == [1] and len(list(early.glob("events.*"))) == 2,
        f"resumed without a checkpoint: {events.starts}",
    )


def check_what_is_not_ours(folder, one):
    """Links, others' files and folders stay as they are when a run is resumed; without log.tensorboard ours are cut."""
    three = folder / "three"
    shutil.copytree(one, three, symlinks=True)
    victim, note = folder / "victim", three / "events.out.tfevents.note.txt"
    for path in (victim, note):
        path.write_text("mine\n" * 40)
    (three / "events.out.tfevents.1.couplet.1").symlink_to(victim)
    (three / "events.out.tfevents.2.couplet.2").mkdir()
    other = three / "events.out.tfevents.1.other.1"
    (live,) = (
        path for path in three.glob("events.out.tfevents.*.couplet.*") if path.is_file() and not path.is_symlink()
    )
    other.write_bytes(live.read_bytes())
    (three / "last").unlink()
    (three / "last").symlink_to("step-000004")
    shutil.rmtree(three / "step-000006")
    good("train", "--resume", three, *sets("log.tensorboard=false"))
    check(victim.read_text() == note.read_text() == "mine\n" * 40, "a file that is not ours was cut")
    check(other.stat().st_size > live.stat().st_size, "events of another program were cut, or ours were not")
    check(
        max(step for step, _ in Events([live]).scalars["train/loss"]) == 4, "events of steps that are made again stay"
    )


def check_export(folder, one):
    out = good("export", one, "--tensorboard", folder / "made" / "here")
    check("6 steps" in out and "tensorboard --logdir" in out, f"export says {out}")
    live, old = events_of(one), same(folder / "made" / "here", one, "export")
    check(
        live.scalars.keys() == old.scalars.keys()
        and live.histograms == old.histograms
        and all(near(live.scalars[tag], old.scalars[tag]) for tag in old.scalars),
        "export: not what the run wrote",
    )
    packed = folder / "packed"
    packed.mkdir()
    lines = (one / "metrics.jsonl").read_bytes()
    (packed / "metrics.jsonl.gz").write_bytes(gzip.compress(lines + b"{half a line"))
    shutil.copy(one / "config.yaml", packed)
    out = good("export", packed, "--tensorboard", folder / "unpacked")
    check("1 damaged line" in out, f"export of a damaged file says {out}")
    check(events_of(folder / "unpacked").scalars == old.scalars, "export of a compressed file")
    good("export", packed, "--tensorboard", folder / "unpacked")
    check(len(list((folder / "unpacked").iterdir())) == 1, "a second export of a run does not replace the first")
    bad(1, "has event files of something else", "export", one, "--tensorboard", folder / "unpacked")
    bad(1, "has event files of something else", "export", one, "--tensorboard", one)
    other = folder / "elsewhere" / "packed"  # another run of the same name
    shutil.copytree(packed, other)
    bad(1, "has event files of something else", "export", other, "--tensorboard", folder / "unpacked")
    (folder / "link").symlink_to(packed)
    good("export", folder / "link", "--tensorboard", folder / "unpacked")
    check(len(list((folder / "unpacked").iterdir())) == 1, "the same run by another path")
    for content in (b"", b"\xff\xfe\n[1]\n", b'{"step": 1'):
        (other / "metrics.jsonl.gz").write_bytes(gzip.compress(content))
        bad(1, "has no line of a step", "export", other, "--tensorboard", folder / "x")
    long = folder / "long"
    long.mkdir()
    name, shared = "x" + "\u00e9" * 250, "n" * 500
    (long / "metrics.jsonl").write_text(
        json.dumps(
            {
                "step": 1,
                "tokens": 1e308,
                "tokens_per_s": 1e-308,
                "val_loss_by_source": {name: 1.5, shared + "a": 1.0, shared + "b": 2.0},
                "tokens_per_expert": [[-1e308, 1e308]],
            }
        )
        + "\n"
    )
    shutil.copy(one / "config.yaml", long)
    good("export", long, "--tensorboard", folder / "odd")
    scalars = events_of(folder / "odd").scalars
    check(
        [scalars[f"val_loss_by_source/{tag}"][0][1] for tag in (name, shared + "a", shared + "b")] == [1.5, 1, 2],
        "long names",
    )
    bad(1, "is no run", "export", folder / "docs", "--tensorboard", folder / "x")
    bad(1, "config.yaml", "export", copy_without_config(folder, one), "--tensorboard", folder / "x")
    bad(2, "--tensorboard", "export", one)
    check(not (folder / "x").exists(), "export made a folder for nothing")


def copy_without_config(folder, one):
    (folder / "bare").mkdir()
    shutil.copy(one / "metrics.jsonl", folder / "bare")
    return folder / "bare"


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        one = check_a_run(folder)
        check_resumed(folder, one)
        check_what_is_not_ours(folder, one)
        check_export(folder, one)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
