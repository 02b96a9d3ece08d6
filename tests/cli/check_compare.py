#!/usr/bin/env python3
"""check_compare.py COUPLET: compares runs from end to end. Tiny runs made with the program: groups over seeds, pairs,
groups by a setting, warnings, damage, a run in progress, folders that are no run, and that no file of a run is changed.
Figures are computed again from metrics.jsonl."""

import gzip
import json
import math
import os
import re
import shutil
import signal
import statistics
import sys

from inputs import files_of, metrics, page_data, read_json
from program import COUPLET, bad, capture, check, equal, finish, good, in_json, near, says, scratch_folder
from train_case import copy_of, go_back, train, write_corpus


def compared(*words, extra=("--no-documents",)):
    return in_json("compare", *words, *extra)


def close(got, want, what, tolerance=1e-8):
    near(got, want, tolerance, what)


def last_evaluated(folder):
    return [line for line in metrics(folder) if "val_loss" in line][-1]


def mean(numbers):
    return math.fsum(numbers) / len(numbers)


def check_figures(found, folder):
    line, figures = last_evaluated(folder), found["figures"]
    name = folder.name
    close(figures["val_loss"], line["val_loss"], f"{name}, val_loss")
    for key in ("eps_mean router_norm_mean gate_norm_mean kappa_diagonal load_max erc_clean routing_entropy").split():
        close(figures[key], mean(line[key]), f"{name}, {key}")
        check(found["layers"][key] == line[key], f"{name}: layers of {key}")
    check(
        figures["erc"] == line["erc"] or math.isclose(figures["erc"], line["erc"], rel_tol=1e-8),
        f"{name}, erc: {figures['erc']} and {line['erc']}",
    )
    close(figures["tokens_per_s"], statistics.median(l["tokens_per_s"] for l in metrics(folder)), f"{name}, tokens/s")
    tail = [l["loss"] for l in metrics(folder) if l["tokens"] > 0.9 * line["tokens"]]
    close(figures["loss"], mean(tail), f"{name}, loss of the last tenth")
    equal(figures["val_loss_by_source"].keys(), line["val_loss_by_source"].keys(), f"{name}: sources")


def check_groups(vanilla, coupled):
    found = compared(*vanilla, *coupled)
    check([g["name"] for g in found["groups"]] == ["vanilla", "erc"], f"groups {found['groups']}")
    check(found["baseline"] == "vanilla" and not found["warnings"], f"{found['warnings']}")
    for entry, folder in zip(found["runs"], vanilla + coupled):
        check_figures(entry, folder)
    losses = [last_evaluated(folder)["val_loss"] for folder in coupled]
    spread = found["groups"][1]["figures"]["val_loss"]
    close(spread["mean"], mean(losses), "mean of a group")
    close(spread["sd"], statistics.stdev(losses), "deviation of a group", 1e-6)
    differences = [last_evaluated(b)["val_loss"] - last_evaluated(a)["val_loss"] for a, b in zip(vanilla, coupled)]
    pairs = found["comparisons"][0]
    check(pairs["n"] == 2 and [p["other"] for p in pairs["pairs"]] == ["erc-s0", "erc-s1"], f"pairs {pairs}")
    close(pairs["mean"], mean(differences), "mean of pairs", 1e-6)
    close(
        pairs["high"] - pairs["mean"],
        12.7062047361747 * statistics.stdev(differences) / math.sqrt(2),
        "interval of pairs",
        1e-6,
    )
    check([s["setting"] for s in found["differing"]] == ["erc.weight", "train.seed"], f"differing {found['differing']}")


def check_text(vanilla, coupled, work):
    before = [files_of(folder) for folder in vanilla + coupled]
    said = good("compare", "--no-documents", *vanilla, *coupled, "--json", work / "c.json", "--html", work / "c.html")
    for part in (
        "Settings that differ",
        "Figures at 768 tokens",
        "vanilla (2 runs)",
        "cosine of two router rows (mean)",
        "peak memory" if "memory_bytes" in metrics(vanilla[0])[0] else "tokens/s",
        "difference to vanilla in pairs",
    ):
        check(part in said, f"the text has no {part!r}: {said}")
    check(re.search(r"^erc-s1 +12 of 12 +768 +erc$", said, re.M), f"runs: {said}")
    written = json.loads((work / "c.json").read_text())
    made = page_data(work / "c.html")["made"]
    check(len(made["sources"]) == 4 and all(s["xxh3"] for s in made["sources"]), f"made {made}")
    curves = written["groups"][0]["curves"]
    for key in (
        "val_loss",
        "loss",
        "eps_mean",
        "router_norm_mean",
        "gate_norm_mean",
        "router_cos",
        "balance",
        "erc_clean",
    ):
        check(len(curves[key]["mean"]) == len(curves["tokens"]) == len(curves[key]["low"]) > 1, f"curve {key}")
    check("two" in curves["val_loss_by_source"], "no curve of a source")
    check(before == [files_of(folder) for folder in vanilla + coupled], "a run was written into")
    check(written == compared(*vanilla, *coupled), "JSON in a file and on the terminal differ")
    good("compare", "--no-documents", vanilla[0])
    twice = compared(vanilla[0], str(vanilla[0]) + "/", coupled[0])
    check(len(twice["runs"]) == 2 and "are the same folder" in twice["warnings"][0], f"twice: {twice}")


def check_group_by(vanilla, coupled, work):
    found = compared(*coupled, *vanilla, "--group-by", "erc.weight")
    check([g["place"] for g in found["groups"]] == [0, 1], f"places {found['groups']}")
    check(found["baseline"] == "erc.weight 1", found["baseline"])
    check([run["place"] for run in found["runs"]] == [1, 1, 0, 0], "places of runs")
    bad(2, ["no run has a setting erc.wieght", "erc.weight"], "compare", vanilla[0], "--group-by", "erc.wieght")


def check_warnings(work, vanilla):
    long_run = train(work, "long", "data.seq_len=32")
    said = good("compare", "--no-documents", vanilla[0], long_run)
    check(
        said.startswith("warning: vanilla-s0 and long differ in their length of sequences (data.seq_len: 16 and 32)"),
        said[:300],
    )
    other = train(work, "other", f"data.validation={work}/docs/one.jsonl")
    said = good("compare", "--no-documents", vanilla[0], other)
    check(said.startswith("warning: vanilla-s0 and other differ in their validation data"), said[:300])
    check(compared(vanilla[0], other)["comparisons"][0]["n"] == 0, "a pair of other data")


def other_run(run, folder, dtype):
    """Returns a copy of the run with other losses. Its lines record no precision except bf16, so it is no duplicate."""
    shutil.copytree(run, folder, symlinks=True)
    made_with = {"made_with": {"dtype": dtype}} if dtype == "bf16" else {}
    for name in ("start.json", "metrics.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for line in lines:
            line.pop("made_with", None)
            line["loss"] += 1e-6 * (1 + len(folder.name))
        (folder / name).write_text("".join(json.dumps(line | made_with) + "\n" for line in lines))


def check_precision(work, vanilla):
    """Runs of other precision are no seeds of one group. Runs of older versions, which recorded no precision, are a
    third group. A missing scope of an older run was micro."""
    runs = [vanilla[0]]
    for name, old, new in (
        ("in-bf16", "dtype: f32", "dtype: bf16"),
        ("unknown", "dtype: f32", "dtype: auto"),
        ("older", "scope: micro", "scope: auto"),
    ):
        runs.append(work / name)
        other_run(vanilla[0], runs[-1], new.split()[-1])
        config = (runs[-1] / "config.yaml").read_text()
        check(f"    {old}\n" in config, f"config.yaml lacks {old}")
        (runs[-1] / "config.yaml").write_text(config.replace(f"    {old}\n", f"    {new}\n"))
    by_weight = compared(*runs, "--group-by", "erc.weight")["groups"]
    check(sorted(len(group["members"]) for group in by_weight) == [1, 1, 2], f"groups by a setting: {by_weight}")
    found = compared(*runs)
    check([len(group["members"]) for group in found["groups"]] == [2, 1, 1], f"groups {found['groups']}")
    check([s["setting"] for s in found["differing"]] == ["compute.dtype"], f"differing {found['differing']}")
    check(not found["warnings"], f"one run of unknown precision has its own group: {found['warnings']}")
    other_run(runs[2], work / "unknown-too", "auto")
    warnings = compared(*runs, work / "unknown-too")["warnings"]
    check(len(warnings) == 1 and "2 runs, unknown the first of them, do not say" in warnings[0], f"{warnings}")


def check_damage(work, vanilla):
    """Checks damage in copies of runs: a torn last line, a line of rubbish, a run in progress, compressed metrics."""
    torn = copy_of(vanilla[0], "torn")
    text = (torn / "metrics.jsonl").read_text().splitlines(keepends=True)
    (torn / "metrics.jsonl").write_text("".join(text[:3]) + "rubbish\n" + "".join(text[3:8]) + text[8][:40])
    said = good("compare", "--no-documents", torn, vanilla[1])
    check("torn: 2 damaged lines" in said and "8 of 12, in progress" in said, said)
    check("Figures at 384 tokens" in said, said)
    with gzip.open(torn / "metrics.jsonl.gz", "wt") as file:
        file.write("".join(text))
    (torn / "metrics.jsonl").unlink()
    found, whole = compared(torn, vanilla[0]), compared(vanilla[0])
    equal(
        (found["runs"][0]["figures"]["val_loss"], len(found["runs"])),
        (whole["runs"][0]["figures"]["val_loss"], 1),
        "compressed metrics differ",
    )
    check("are the same run" in found["warnings"][0] and len(found["warnings"]) == 1, f"a copy: {found['warnings']}")
    (torn / "metrics.jsonl.gz").write_text("")
    bad(1, [str(torn), "ends too early"], "compare", torn)


def check_bad(work, vanilla):
    bad(1, ["is a checkpoint, not a run"], "compare", vanilla[0] / "last")
    bad(1, [str(work / "docs"), "is no run"], "compare", work / "docs")
    bad(1, ["no such folder"], "compare", work / "none")
    bad(2, [], "compare")
    bad(1, ["where nothing is written"], "compare", vanilla[1], vanilla[0], "--json", vanilla[0] / "x")
    bad(1, ["where nothing is written"], "compare", vanilla[0], "--json", vanilla[0] / "metrics.jsonl")
    bad(2, ["python -m couplet.plot"], "compare", vanilla[0], "--svg", work / "x")
    bad(2, ["--series", "python -m couplet.plot"], "compare", vanilla[0], "--series")
    bad(2, ["both name"], "compare", vanilla[0], "--json", work / "x", "--html", work / "x")
    bad(1, ["where nothing is written"], "compare", vanilla[0], "--html", vanilla[0] / "x")
    (work / "mine.html").write_text("mine")
    bad(1, ["holds no results"], "compare", vanilla[0], "--html", work / "mine.html", "--overwrite")
    said = good("compare", *vanilla, "--no-documents", "--html", work / "page.html")
    page = (work / "page.html").read_text()
    check(f"page: {work / 'page.html'}" in said and page.startswith("<!DOCTYPE html>"), f"the page: {said[-200:]}")
    check('"kind":"compare"' in page and '"curves":{"tokens"' in page, "the page has no report or no charts")
    check(not (vanilla[0] / "x").exists(), "something was written into a run")


def check_interrupted(work, vanilla):
    """Sends the signal of Ctrl-C while Python starts, from the module that Python imports before any other."""
    (work / "site").mkdir()
    signalled = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (work / "site" / "sitecustomize.py").write_text(signalled)
    done = capture([COUPLET, "compare", vanilla[0]], env=os.environ | {"PYTHONPATH": str(work / "site")})
    equal((done.returncode, done.stdout), (128 + signal.SIGINT, ""), f"Ctrl-C while Python starts: {done.stderr}")
    check("Traceback" not in done.stderr, f"Ctrl-C while Python starts: {done.stderr}")


def check_documents(work, vanilla, coupled):
    """Scores held-out documents once for each run, and compares pairs by the scores."""
    files = [folder / "documents.json" for folder in vanilla + coupled]
    check(not any(file.exists() for file in files), "--no-documents has scored")
    good("compare", vanilla[0])
    check(not files[0].exists(), "a single run was scored")
    found = compared(*vanilla, *coupled, extra=())["comparisons"][0]
    check(all(file.exists() for file in files), "documents were not scored")
    sets, losses = found["bits_per_byte"]["sets"], [read_json(file) for file in files]
    check(sets[0]["documents"] == len(losses[0]["documents"]) == 40, f"documents {sets[0]}")
    check(all(one["step"] == 12 and one["window"] == 16 for one in losses), "step or window")

    def bits(of):
        return [
            sum(one["nll"] for one in loss["documents"]) / math.log(2) / sum(one["bytes"] for one in loss["documents"])
            for loss in of
        ]

    close(sets[0]["difference"], mean(bits(losses[2:])) - mean(bits(losses[:2])), "bits per byte", 1e-6)
    held_out = metrics(vanilla[0])[-1]["val_loss"]
    own = sum(one["nll"] for one in losses[0]["documents"]) / sum(one["tokens"] for one in losses[0]["documents"])
    check(abs(own - held_out) < 0.5, f"documents have {own} nats a token, evaluation {held_out}")
    before = [file.stat().st_mtime_ns for file in files]
    compared(*vanilla, *coupled, extra=())
    check(before == [file.stat().st_mtime_ns for file in files], "scored again for nothing")
    compared(vanilla[0], extra=("--documents", 3))
    check(len(json.loads(files[0].read_text())["documents"]) == 3, "--documents 3")
    blocked = train(work, "blocked", "train.seed=7")
    (blocked / "documents.json").mkdir()  # a folder in the place of the file, which cannot be written
    said = good("compare", vanilla[0], blocked)
    check("held-out documents were not scored" in said and "Figures at 768 tokens" in said, f"no table: {said[-900:]}")
    short = train(work, "short", "train.steps=12", "train.seed=5")
    compared(vanilla[0], go_back(short, 8), extra=())
    check(not (short / "documents.json").exists(), "a run without its last step was scored")
    lost = train(work, "lost")
    config = lost / "config.yaml"
    config.write_text(config.read_text().replace("docs/two.jsonl", "docs/gone.jsonl"))
    said = good("compare", "--documents", 3, vanilla[0], lost)
    says(said, ["warning: ", "gone.jsonl", "held-out documents were not scored"], "documents that are gone")


def check_closer(vanilla, coupled):
    """Checks documents and questions that are compared beside the runs."""
    for k, folder in enumerate(vanilla + coupled):
        (folder / "documents.json").unlink()
        documents = [
            {"source": "s", "id": f"d{i}", "bytes": 100 + i, "tokens": 30, "nll": 60 + 5 * math.sin(i) + k}
            for i in range(20)
        ]
        with gzip.open(folder / "documents.json.gz", "wt") as file:
            json.dump({"step": 12, "window": 16, "documents": documents}, file)
        samples = [{"id": i, "correct": {"acc": int(i % 5 < 1 + k)}} for i in range(40)]
        (folder / "questions.json").write_text(
            json.dumps({"settings": {}, "results": {"quiz": {"metrics": {"acc": 0}, "samples": samples}}})
        )
    found = compared(*vanilla, *coupled)["comparisons"][0]
    total = sum(100 + i for i in range(20))
    whole = found["bits_per_byte"]["sets"][0]
    close(whole["difference"], 20 * 2 / math.log(2) / total, "difference of bits per byte")
    check(whole["low"] < whole["difference"] < whole["high"], f"interval {whole}")
    quiz = found["questions"][0]
    check((quiz["both"], quiz["only_base"], quiz["only_other"], quiz["neither"]) == (8, 0, 16, 16), f"questions {quiz}")
    close(quiz["p"], 2 * 0.5**16, "McNemar")
    said = good("compare", *vanilla, *coupled)
    check("Bits per byte of held-out documents" in said and "quiz, acc" in said, said[-2000:])
    check(
        "95 % interval, bootstrap over documents" in said and "of these two runs" not in said,
        f"two pairs: {said[-2000:]}",
    )
    said = good("compare", vanilla[0], coupled[0])
    says(said, ["95 % interval, bootstrap over documents", "of these two runs, not of the settings"], "one pair")


def main():
    with scratch_folder() as work:
        write_corpus(work)
        vanilla = [train(work, f"vanilla-s{s}", "erc.weight=0", f"train.seed={s}") for s in (0, 1)]
        coupled = [train(work, f"erc-s{s}", f"train.seed={s}") for s in (0, 1)]
        before = [files_of(folder) for folder in vanilla + coupled]
        check_groups(vanilla, coupled)
        check_text(vanilla, coupled, work)
        check_group_by(vanilla, coupled, work)
        check_warnings(work, vanilla)
        check_precision(work, vanilla)
        check_damage(work, vanilla)
        check_bad(work, vanilla)
        check_interrupted(work, vanilla)
        check(before == [files_of(folder) for folder in vanilla + coupled], "a run has changed")
        check_documents(work, vanilla, coupled)
        check_closer(vanilla, coupled)
    return finish()


sys.exit(main())
