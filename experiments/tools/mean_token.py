#!/usr/bin/env python3
"""mean_token.py [--null N [--seed S]]: prints the decisions of experiments/mean-token.md from the records of block h.

While a run or a figure is missing, it prints one sentence that names what is missing, and no result. It then exits
with 1.

--null N: reads no run of block h. It simulates N series of runs, whose figures are residuals of the recorded blocks A,
B and E, and prints: how often the family rejects a true hypothesis (null hypotheses of equivalences are simulated at
their bounds, where false rejections are most frequent); the difference that each test finds with a power of 80 %; and
the power with the effects EXPECTED. It exits with 1 if the first share is above 5 % by more than two standard errors."""

import argparse
import functools
import math
import random
import statistics
import sys

import hypothesis_tests
import records
import runs_table
from hypothesis_tests import LEVEL, difference, one_sample, rejected, spread, student_cdf

ARMS = {
    "V0": "h-noz-vanilla",
    "E0": "h-noz-erc",
    "V1": "h-z-vanilla",
    "E1": "h-z-erc",
    "C1": "h-z-centred",
    "T1": "h-z-tokens",
}
SEEDS = range(170, 180)
WEIGHT = {"h1": 4, "h2": 1, "h3": 1, "h4": 4, "h5a": 1, "h5b": 1, "h6": 1, "h7": 1, "h8a": 1, "h8b": 1}
WORDS = {
    "h1": "dz, (E0 - V0) - (E1 - V1)",
    "h2": "dz, E0 - V0",
    "h3": "dz, E1 - V1",
    "h4": "dz, T1 - C1",
    "h5a": "agreement_mu_off, E1 - V1, within 0.05",
    "h5b": "agreement_mu_off, E1 - V1, beyond 0.05",
    "h6": "validation nats, E0 - V0",
    "h7": "dz, T1 - V1",
    "h8a": "agreement_centred, E1 - V1",
    "h8b": "agreement_centred, E1, within 0.05",
}
FIGURES = ("dz", "agreement_centred", "agreement_mu_off", "val_loss")
CORRELATION, NATS = 0.05, 0.01  # bounds of equivalence


# ---- tests ----


def within(values, bound):
    """Returns (mean, half of the 95 % interval, p). The null hypothesis is a mean outside of -bound to bound. p is the
    larger one of two one-sided tests (Schuirmann 1987)."""
    return _against(values, lambda below, above: max(1 - below, 1 - above), bound)


def beyond(values, bound):
    """Returns (mean, half of the 95 % interval, p). The null hypothesis is a mean from -bound to bound."""
    return _against(values, lambda below, above: min(1.0, 2 * min(below, above)), bound)


def _against(values, p_of, bound):
    """below and above are the p-values of a mean below -bound and above bound."""
    mean, half, _ = one_sample(values)
    error, df = spread(values).sd / math.sqrt(len(values)), len(values) - 1
    if error == 0:
        return mean, half, p_of(float(mean >= -bound), float(mean <= bound))
    return mean, half, p_of(student_cdf((mean + bound) / error, df), student_cdf((bound - mean) / error, df))


def tests(figure_of):
    """Returns {test: (mean, half of the 95 % interval, p)}. figure_of(arm, seed, figure) gives a run's figure."""

    def less(arm, other, figure="dz"):
        return difference(figure_of, ARMS[arm], ARMS[other], SEEDS, figure)

    centred = hypothesis_tests.level(figure_of, ARMS["E1"], SEEDS, "agreement_centred")
    return {
        "h1": one_sample([a - b for a, b in zip(less("E0", "V0"), less("E1", "V1"))]),
        "h2": one_sample(less("E0", "V0")),
        "h3": one_sample(less("E1", "V1")),
        "h4": one_sample(less("T1", "C1")),
        "h5a": within(less("E1", "V1", "agreement_mu_off"), CORRELATION),
        "h5b": beyond(less("E1", "V1", "agreement_mu_off"), CORRELATION),
        "h6": one_sample(less("E0", "V0", "val_loss")),
        "h7": one_sample(less("T1", "V1")),
        "h8a": one_sample(less("E1", "V1", "agreement_centred")),
        "h8b": within(centred, CORRELATION),
    }


def significant(found):
    return rejected({name: p for name, (_, _, p) in found.items()}, WEIGHT)


# ---- decisions ----


def mean_token(found):
    """Returns the decision on the mean token."""
    sure, mean = significant(found), {name: one[0] for name, one in found.items()}
    holds = {
        "h1": "h1" in sure and mean["h1"] > 0,
        "h3": "h3" in sure and mean["h3"] < 0,
        "h4": "h4" in sure and mean["h4"] > 0,
        "h5": "h5a" in sure,
    }
    against = ["h4"] * ("h4" in sure and mean["h4"] < 0) + ["h5"] * ("h5b" in sure)
    if against:
        return f"refuted by {' and '.join(against)}"
    failed = [name for name, one in holds.items() if not one]
    return f"undecided: {', '.join(failed)}" if failed else "the mean token explains"


def quality(found):
    """Returns the decision on h6 by the rule of question 4 of experiments/questions.md."""
    mean, half, _ = found["h6"]
    words = ["worse" if mean > 0 else "better"] if "h6" in significant(found) else []
    if max(abs(mean - half), abs(mean + half)) <= NATS:
        words.append("equivalent")
    return " and ".join(words) or "undecided"


def centred(found):
    """Returns the decision on h8."""
    sure, mean = significant(found), found["h8a"][0]
    if "h8a" not in sure:
        return "undecided"
    if mean > 0:
        return "raises"
    vanilla = found["h8b"][0] - mean
    return "erases" if "h8b" in sure and vanilla > CORRELATION else "lowers"


def one_figure(found, name):
    """Returns the decision on a test of one difference of dz."""
    return "undecided" if name not in significant(found) else "raises" if found[name][0] > 0 else "lowers"


def decisions(found):
    return {
        "mean token (h1, h3, h4, h5)": mean_token(found),
        "h2, ERC without z-loss, dz": one_figure(found, "h2"),
        "h6, ERC without z-loss, quality": quality(found),
        "h7, token-side proxies against vanilla, dz": one_figure(found, "h7"),
        "h8, ERC with z-loss, agreement_centred": centred(found),
    }


# ---- records ----


def member(value, name):
    """Returns the member of that name at any depth of a JSON document, or None."""
    if not isinstance(value, dict):
        return None
    found = [value[name]] if name in value else [member(one, name) for one in value.values()]
    return next((one for one in found if one is not None), None)


@functools.cache
def figures_of(run):
    """Returns {figure: mean over the layers that have it} of a recorded run."""
    layers = records.document(run, "report.json")["routing"]["layers"]
    found = {"val_loss": [line["val_loss"] for line in records.lines_of(run) if "val_loss" in line][-1]}
    for name in FIGURES[:-1]:
        values = [one for one in (member(layer, name) for layer in layers) if one is not None]
        if values:
            found[name] = statistics.fmean(values)
    return found


def recorded(arm, seed, figure):
    return figures_of(f"{arm}-s{seed}")[figure]


def missing(here):
    """Returns the sentence that names the runs that are not here or lack figures, or None."""
    runs = [f"{arm}-s{seed}" for seed in SEEDS for arm in ARMS.values()]
    absent = [run for run in runs if run not in here]
    lacking = [(run, name) for run in runs if run in here for name in FIGURES if name not in figures_of(run)]
    parts = [f"{len(absent)} of {len(runs)} runs (the first is {absent[0]})"] if absent else []
    for name in dict.fromkeys(name for _, name in lacking):
        without = [run for run, one in lacking if one == name]
        parts.append(f"{name} in {len(without)} recorded runs (the first is {without[0]})")
    return f"mean_token: missing are {', '.join(parts)}." if parts else None


def mixed():
    """Returns the seeds whose runs were made on more than one kind of processor."""
    kinds = {
        seed: {records.document(f"{arm}-s{seed}", "machine.json")["processor"] for arm in ARMS.values()}
        for seed in SEEDS
    }
    return [seed for seed, found in kinds.items() if len(found) > 1]


# ---- simulated series ----

# Recorded blocks, each with its seeds: arms like those with z-loss, and like those without.
LIKE = {
    "z": (
        (("a-vanilla", "a-erc-0.5", "a-erc-1"), hypothesis_tests.A),
        (("b-z-balance-vanilla", "b-z-balance-erc"), hypothesis_tests.B),
        (("e-vanilla", "e-erc", "e-centred", "e-router", "e-experts"), hypothesis_tests.E),
    ),
    "noz": (
        (tuple(f"b-noz-{b}-{arm}" for b in ("balance", "little") for arm in ("vanilla", "erc")), hypothesis_tests.B),
    ),
}
# Recorded figures whose residuals stand for those that the recorded runs lack.
STAND_IN = {"agreement_mu_off": "agreement", "agreement_centred": "centred_experts_all"}
# Means of the arms, for the power: dz of the recorded blocks, T1 as far above C1 as C1 is above V1 there; quality of
# block B; agreement of one pair of runs.
EXPECTED = {
    "dz": {"V0": 1.5, "E0": 2.16, "V1": 0.95, "E1": 0.72, "C1": 1.28, "T1": 1.61},
    "agreement_mu_off": {"V1": 0.09, "E1": 0.08},
    "agreement_centred": {"V1": 0.12, "E1": -0.035},
    "val_loss": {"E0": 0.029},
}
# Null hypotheses: no difference; equivalences at their bounds.
NULL = {"agreement_mu_off": {"E1": -CORRELATION}, "agreement_centred": {"V1": CORRELATION, "E1": CORRELATION}}


def dz_of(run):
    """Returns dz of a recorded run from its matrices, of the experts that have tokens."""
    tensors, layers = runs_table.halves(records.files_of(run)["matrices.safetensors"]), []
    for name, (shape, M) in tensors.items():
        if name.endswith("M_tok"):
            n = shape[0]
            layers.append(dz_of_layer([M[i * n : (i + 1) * n] for i in range(n)]))
    return statistics.fmean(layers)


def dz_of_layer(M):
    """Returns the mean of the diagonal over the deviation off it, after rows and columns lose their means."""
    used = [i for i, row in enumerate(M) if not math.isnan(row[0])]
    M = [[M[i][j] for j in used] for i in used]
    rows, columns = [statistics.fmean(row) for row in M], [statistics.fmean(column) for column in zip(*M)]
    grand = statistics.fmean(rows)
    rest = [[x - r - c + grand for x, c in zip(row, columns)] for row, r in zip(M, rows)]
    others = [x for i, row in enumerate(rest) for j, x in enumerate(row) if i != j]
    return statistics.fmean(row[i] for i, row in enumerate(rest)) / statistics.pstdev(others)


def residuals():
    """Returns ({"z": [{figure: value} of a run], "noz": ...}, [{figure: value} of a seed]), scaled for the degrees of
    freedom of the means that were taken off."""
    value_of, own, of_seed = runs_table.read(), {}, []
    for z, groups in LIKE.items():
        own[z] = []
        for arms, seeds in groups:
            runs = {(arm, seed): {} for arm in arms for seed in seeds}
            levels = {seed: {} for seed in seeds}
            for figure in FIGURES:
                table = {
                    (arm, seed): dz_of(f"{arm}-s{seed}")
                    if figure == "dz"
                    else value_of(arm, seed, STAND_IN.get(figure, figure))
                    for arm, seed in runs
                }
                grand = statistics.fmean(table.values())
                of_arm = {arm: statistics.fmean(table[arm, seed] for seed in seeds) for arm in arms}
                mean = {seed: statistics.fmean(table[arm, seed] for arm in arms) for seed in seeds}
                scale = math.sqrt(len(table) / (len(arms) - 1) / (len(seeds) - 1))
                for (arm, seed), x in table.items():
                    runs[arm, seed][figure] = scale * (x - of_arm[arm] - mean[seed] + grand)
                for seed in seeds:
                    levels[seed][figure] = math.sqrt(len(seeds) / (len(seeds) - 1)) * (mean[seed] - grand)
            own[z] += runs.values()
            of_seed += levels.values()
    return own, of_seed


class Series:
    """Figures of simulated runs: the mean of the arm, a seed's level and a residual. The figures of a run are drawn
    together. means: {figure: {arm: mean}}, elsewhere 0."""

    def __init__(self, own, of_seed, means):
        levels = {seed: random.choice(of_seed) for seed in SEEDS}
        self.runs = {
            (arm, seed): (name, random.choice(own["noz" if "-noz-" in arm else "z"]), levels[seed])
            for name, arm in ARMS.items()
            for seed in SEEDS
        }
        self.means = means

    def __call__(self, arm, seed, figure):
        name, own, level = self.runs[arm, seed]
        return self.means.get(figure, {}).get(name, 0) + own[figure] + level[figure]


def found_with_80(series, name):
    """Returns the difference that four of five of these null series find at the level of the first step of Holm."""
    rows, bound = [], LEVEL * WEIGHT[name] / sum(WEIGHT.values())
    t = -hypothesis_tests.student_quantile(bound / 2, len(SEEDS) - 1)
    half = hypothesis_tests.student_quantile(0.975, len(SEEDS) - 1)
    for found in series:
        mean, width, _ = found[name]
        rows.append(t * width / half - mean)
    return sorted(rows)[math.ceil(0.8 * len(rows)) - 1]


def simulate(count):
    own, of_seed = residuals()
    null = [tests(Series(own, of_seed, NULL)) for _ in range(count)]
    false = [bool(significant(one)) for one in null]
    alone = {name: statistics.fmean(one[name][2] <= 0.05 for one in null) for name in WEIGHT}
    share = statistics.fmean(false)
    error = math.sqrt(share * (1 - share) / count)
    print("each test alone at 5 %: " + ", ".join(f"{name} {100 * one:.1f} %" for name, one in alone.items()))
    print(f"at least one false rejection: {100 * share:.2f} % of {count} series (standard error {100 * error:.2f} %)")
    half = hypothesis_tests.student_quantile(0.975, len(SEEDS) - 1)
    for name, words in WORDS.items():
        sd = statistics.fmean(one[name][1] for one in null) / half * math.sqrt(len(SEEDS))
        finds = "" if "0.05" in words else f", finds {found_with_80(null, name):.3f} with a power of 80 %"
        print(f"{name} {words}: deviation {sd:.3f}{finds}")
    power = [tests(Series(own, of_seed, EXPECTED)) for _ in range(count)]
    hits = [significant(one) for one in power]
    print(
        "with the expected effects: "
        + ", ".join(f"{name} {statistics.fmean(name in one for one in hits):.2f}" for name in WEIGHT)
    )
    explains = statistics.fmean(mean_token(one) == "the mean token explains" for one in power)
    print(f"the mean token explains: {explains:.2f}")
    return share - 2 * error > 0.05


# ---- the command ----


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--null", type=int, metavar="N")
    words.add_argument("--seed", type=int, default=1)
    words = words.parse_args()
    if words.null:
        random.seed(words.seed)
        return simulate(words.null)
    sentence = missing(records.names("h"))
    if sentence:
        sys.exit(sentence)
    found = tests(recorded)
    sure = significant(found)
    for name, (mean, half, p) in found.items():
        print(
            f"{name:4} {WORDS[name]:40} {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f})  p {p:.2g}  "
            f"{'significant' if name in sure else 'not significant'}"
        )
    for name, words in decisions(found).items():
        print(f"{name}: {words}")
    if mixed():
        print(f"seeds with more than one kind of processor: {', '.join(map(str, mixed()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
