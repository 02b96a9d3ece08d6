#!/usr/bin/env python3
"""null_runs.py [--series N] [--seed S]: measures how often the tests of experiments/questions.md, all together, reject
a hypothesis without any effect, in N (10,000) simulated series of runs.

A simulated run has, for each figure, the mean of its seed and a residual. Both are drawn with replacement from
the recorded runs of the first series (arms of 1,000 steps with 32 experts, seeds 0 and 1): a seed's mean less the
mean of all runs, and a run less the means of its arm and its seed, scaled for the degrees of freedom of these means.
Figures of one run are drawn together, so that they keep their correlation. The first series recorded no
figures of centred rows: centred_rows_own has the residuals of rows_own. Other figures that it did not record have the
residuals of agreement/spearman_mean, drawn anew. It prints the share of series with at least one rejection, and the
share of each test. It exits with 1 if the first share is above 5 % by more than two standard errors."""

import argparse
import math
import random
import statistics
import sys

import hypothesis_tests
import records
import runs_table

# ---- residuals of the first series ----


def read(name):
    report = records.document(name, "report.json")
    layers, routed = report["layers"], report["routing"]["layers"]
    return {
        "bpb": runs_table.bits_per_byte(name),
        "val_loss": [line["val_loss"] for line in records.lines_of(name) if "val_loss" in line][-1],
        "router_cos": statistics.fmean(layer["router_cos"]["mean_abs"] for layer in layers),
        "vocabulary": statistics.fmean(layer["input_ids"]["mean"] for layer in routed),
        "agreement": statistics.fmean(layer["agreement"]["spearman_mean"] for layer in routed),
        "centred_rows_own": statistics.fmean(layer["kappa"]["rows_own"] for layer in layers),
        "max_vio": statistics.fmean(layer["load_max_over_mean"] - 1 for layer in routed),
    }


def residuals():
    """Returns ([{figure: value} of a run], [{figure: value} of a seed])."""
    arms = sorted(
        name[:-3]
        for name in records.names("short")
        if name.endswith("-s0") and "-n16-" not in name and "-n64-" not in name
    )
    runs = {arm: [read(f"{arm}-s{seed}") for seed in (0, 1)] for arm in arms}
    figures = list(runs[arms[0]][0])
    own, of_seed = [{} for _ in range(2 * len(arms))], [{}, {}]
    for figure in figures:
        table = [[one[figure] for one in runs[arm]] for arm in arms]
        grand = statistics.fmean(x for row in table for x in row)
        seeds = [statistics.fmean(row[s] for row in table) - grand for s in (0, 1)]
        scale = math.sqrt(2 * len(arms) / (len(arms) - 1))  # 2 A residuals have A - 1 degrees of freedom
        for i, row in enumerate(table):
            for s in (0, 1):
                own[2 * i + s][figure] = scale * (row[s] - statistics.fmean(row) - seeds[s])
        for s in (0, 1):
            of_seed[s][figure] = math.sqrt(2) * seeds[s]
    return own, of_seed


# ---- a series ----


class Series:
    """Figures of runs, made on first use. A run keeps its figures."""

    def __init__(self, own, of_seed):
        self.own, self.of_seed, self.runs, self.seeds = own, of_seed, {}, {}

    def __call__(self, arm, seed, figure):
        known = self.runs.setdefault((arm, seed), {**random.choice(self.own), "of": {}})
        mean = self.seeds.setdefault(seed, {**random.choice(self.of_seed), "of": {}})
        if figure in known:
            return known[figure] + mean[figure]
        if figure not in known["of"]:
            known["of"][figure] = random.choice(self.own)["agreement"]
            mean["of"].setdefault(figure, random.choice(self.of_seed)["agreement"])
        return known["of"][figure] + mean["of"][figure]


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--series", type=int, default=10000)
    words.add_argument("--seed", type=int, default=1)
    words = words.parse_args()
    random.seed(words.seed)
    own, of_seed = residuals()
    alone, together = dict.fromkeys(hypothesis_tests.WEIGHT, 0), 0
    for _ in range(words.series):
        p = hypothesis_tests.p_values(Series(own, of_seed))
        for name, value in p.items():
            alone[name] += value <= 0.05
        together += bool(hypothesis_tests.rejected(p))
    share = together / words.series
    error = math.sqrt(share * (1 - share) / words.series)
    print("  ".join(f"{name} {100 * count / words.series:.1f} %" for name, count in alone.items()))
    print(
        f"at least one false rejection: {100 * share:.2f} % of {words.series} series (standard error "
        f"{100 * error:.2f} %)"
    )
    return share - 2 * error > 0.05


if __name__ == "__main__":
    sys.exit(main())
