#!/usr/bin/env python3
"""finding.py COUPLET | --picture: repeats the finding of docs/findings.md on two runs.

COUPLET: trains the runs V1 (without the coupling loss) and E1 (with it) of experiments/mean-token.md for seed 170, both
with a router z-loss, two at a time with one thread each, or resumes them. It measures both models over text and prints
their figures beside the recorded ones of ten seeds.
--picture: writes docs/images/response-by-rank.svg from the records of that series, and trains nothing. It needs
matplotlib."""

import argparse
import concurrent.futures
import functools
import os
import statistics
import sys

import make
import records
import runs_table
from couplet import plot
from table_figures import Table, interval, printed, span

SEED = 170
ARMS = {"h-z-vanilla": "without the coupling loss (V1)", "h-z-erc": "with the coupling loss (E1)"}
FIGURES = {  # column of runs.csv: (label, form of table_figures)
    "rows_own": ("router rows that excite their own expert most", "2"),
    "agreement": ("agreement of scores and responses", "+3"),
    "agreement_centred": ("... without the experts' main effects", "+3"),
    "agreement_mu_off": ("... without the tokens' mean", "+3"),
    "router_mu_negative": ("share of R_i . mu below 0", "2"),
    "dz": ("dz, own tokens against others' tokens", "+2"),
}
CURVES = {
    "h-noz-vanilla": "without loss, no z-loss",
    "h-noz-erc": "ERC, no z-loss",
    "h-z-vanilla": "without loss, z-loss",
    "h-z-erc": "ERC, z-loss",
}
PICTURE = make.ROOT / "docs" / "images" / "response-by-rank.svg"


# ---- two runs ----


def figures_of(program, arm):
    """Returns {figure: mean over the layers} of the trained and measured run."""
    report = make.measured(program, make.train(program, f"{arm}-s{SEED}"))
    return {name: statistics.fmean(runs_table.layers_of(report, runs_table.FIGURES[name])) for name in FIGURES}


def recorded(table, arm, name, form):
    """Returns the cells of the recorded runs: mean, 95 % interval of the mean, and lowest to highest."""
    try:
        values = table.values(name, arm)
    except KeyError:
        return ["-", "", "not yet recorded"]
    of = interval(values)
    return [printed(one, form) for one in (of.mean, of.interval, span(values))]


def show(found):
    table = Table()
    print(
        f"Two models of 1,000 steps with a router z-loss of 0.001, seed {SEED}, measured over 100,000 held-out tokens."
    )
    print("Recorded: mean of ten seeds, its 95 % interval, lowest to highest. docs/findings.md says what they mean.")
    for arm, title in ARMS.items():
        print(f"\n{title:48}{'here':>8}{'recorded':>10}  {'95 %':18}lowest to highest")
        for name, (label, form) in FIGURES.items():
            mean, sure, all_seeds = recorded(table, arm, name, form)
            print(f"{label:48}{printed(found[arm][name], form):>8}{mean:>10}  {sure:18}{all_seeds}")


# ---- the picture ----


def curve_of(arm):
    """Returns the curve of an arm (docs/method.md 5.3, mean_token.curve): its mean over layers and seeds."""
    seeds = runs_table.LIST["runs"][arm]["seeds"]
    reports = [records.document(f"{arm}-s{seed}", "report.json") for seed in seeds]
    curves = [layer["mean_token"]["curve"] for report in reports for layer in report["routing"]["layers"]]
    return [statistics.fmean(column) for column in zip(*curves, strict=True)]


def chart():
    series = []
    for k, (arm, name) in enumerate(CURVES.items()):
        y = curve_of(arm)
        one = {"x": list(range(1, len(y) + 1)), "y": y, "low": None, "high": None, "marks": False}
        series.append({**one, "name": name, "group": k, "style": "line"})
    return {
        "id": PICTURE.stem,
        "kind": "lines",
        "title": "Response of an expert by the rank of its score in the token",
        "caption": "Mean over tokens, layers and ten seeds. 1 is the lowest of the 32 scores of a token.",
        "series": series,
        "x": {"label": "rank of the score", "whole": True},
        "y": {"label": "response, standard deviations", "zero": True},
    }


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("couplet", type=os.path.abspath, nargs="?")
    words.add_argument("--picture", action="store_true")
    words = words.parse_args()
    if words.picture:
        plot.draw(chart(), PICTURE)
        return 0
    if not words.couplet:
        sys.exit("finding: give the program, as build/release/couplet, or --picture")
    make.WORK.mkdir(parents=True, exist_ok=True)
    print("Trains two models with one thread each: six minutes on two idle cores.", flush=True)
    with concurrent.futures.ThreadPoolExecutor(len(ARMS)) as pool:
        show(dict(zip(ARMS, pool.map(functools.partial(figures_of, words.couplet), ARMS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
