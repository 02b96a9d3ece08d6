#!/usr/bin/env python3
"""check_statistics.py: the statistics of experiments/: Student's t, Holm, analysis of variance, and the words of
decisions, against published values and examples by hand."""

import math
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments/tools"), str(ROOT / "tests/cli")]
import answers  # noqa: E402
import hypothesis_tests as tests  # noqa: E402
import mean_token  # noqa: E402
from program import check, finish  # noqa: E402
from table_figures import Interval, interval  # noqa: E402

# Two-sided: (t, degrees of freedom, probability), from printed tables.
T = (
    (12.7062, 1, 0.05),
    (63.6567, 1, 0.01),
    (4.30265, 2, 0.05),
    (3.18245, 3, 0.05),
    (2.77645, 4, 0.05),
    (2.22814, 10, 0.05),
    (3.16927, 10, 0.01),
    (2.14479, 14, 0.05),
    (1.34503, 14, 0.2),
    (2.04523, 29, 0.05),
    (0.0, 7, 1.0),
)


def near(a, b, size=1e-5):
    return math.isclose(a, b, rel_tol=size, abs_tol=1e-12)


def check_student():
    for t, df, p in T:
        check(
            near(tests.t_tail(t, df), p, 2e-5) and near(tests.t_tail(-t, df), p, 2e-5),
            f"t {t}, {df}: {tests.t_tail(t, df)}",
        )
        if 0 < p < 1:
            check(
                near(tests.student_quantile(1 - p / 2, df), t),
                f"quantile {p}, {df}: {tests.student_quantile(1 - p / 2, df)}",
            )
    # Student's own example: additional sleep with the second drug less the first, ten patients.
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    mean, half, p = tests.one_sample(sleep)
    check(near(mean, 1.58) and near(p, 0.00283289, 1e-4), f"sleep: {mean}, {p}")
    found = interval(sleep)
    check(
        near(found.low, 0.7001142, 1e-5) and near(found.high, 2.4598858, 1e-5) and near(found.high - found.mean, half),
        f"sleep: {found}",
    )


def check_holm():
    """Weights 8 and 26 times 1: 34, then 33, then 25 tests share 0.045."""
    p = {**dict.fromkeys(tests.WEIGHT, 1.0), "1a": 0.001, "3a": 0.009, "1b": 0.0019}
    check(sum(tests.WEIGHT.values()) == 34 and len(tests.WEIGHT) == 27, "the weights")
    check(tests.rejected(p) == ["1a", "3a"], f"Holm: {tests.rejected(p)}")
    check(tests.rejected({**p, "1b": 0.0017}) == ["1a", "3a", "1b"], "Holm: the third")
    check(tests.rejected({**p, "1a": 0.0014}) == ["3a", "1a"], "Holm: the order is of p over weight")
    check(tests.rejected({**p, "3a": 0.011, "1a": 0.0014}) == [], "Holm stops at the first that is not")
    known = {name: one for name, one in p.items() if name not in ("5a", "5b")}
    standing = tests.standing(known)
    check(standing["1a"] is True and standing["2a"] is False and standing["5a"] is None, "tests that are not known")
    check(standing["1b"] is None, "one that depends on those that are not known")


def figure(effects, noise):
    """Returns a figure of block B with these effects of z, balance, arm and z x balance, different seeds, and noise by
    run."""

    def of(arm, seed, _):
        z, b, kind = arm.split("-")[1:]
        s = 1 if z == "z" else -1, 1 if b == "balance" else -1, 1 if kind == "erc" else -1
        return (
            10 + seed / 3 + sum(e * x / 2 for e, x in zip(effects, s)) + effects[3] / 4 * s[0] * s[1] + noise(arm, seed)
        )

    return of


def check_factorial():
    found = tests.factorial(figure((0.3, -0.2, 0.1, 0.5), lambda arm, seed: 0.0), "any", True)
    for name, effect in (("z", 0.3), ("balance", -0.2), ("z x balance", 0.5), ("z x arm", 0), ("balance x arm", 0)):
        check(near(found[name][0], effect, 1e-9), f"{name}: {found[name]}")
    # Noise orthogonal to cells and seeds: +c in one seed and -c in another of two cells, with opposite signs in two.
    pattern = {
        ("b-z-balance-erc", 120): 1,
        ("b-z-balance-erc", 121): -1,
        ("b-noz-little-erc", 120): -1,
        ("b-noz-little-erc", 121): 1,
    }
    mean, half, p = tests.factorial(figure((0.3, 0, 0, 0), lambda arm, seed: 0.1 * pattern.get((arm, seed), 0)), "any")[
        "z"
    ]
    error = math.sqrt(4 * 0.01 / 14 * 4 / 24)  # residual sum of squares 0.04, 14 degrees of freedom, 24 runs
    check(
        near(mean, 0.3, 1e-9)
        and near(half, tests.student_quantile(0.975, 14) * error)
        and near(p, tests.t_tail(0.3 / error, 14)),
        f"analysis of variance: {mean}, {half}, {p}",
    )


def decided(found, standing):
    """Returns the answers with these tests alone: {name: (low, high)}."""
    one = answers.Answers.__new__(answers.Answers)
    one.found = {name: Interval(statistics.fmean(ends), *ends, 0.5, None) for name, ends in found.items()}
    one.standing = standing
    return one


def check_words():
    signs = {name: (0.1, 0.3) if sign > 0 else (-0.3, -0.1) for name, sign in answers.SIGNS.items()}
    every = dict.fromkeys(answers.SIGNS, True)
    check(decided(signs, every).verdict(1) == "supported", "supported")
    check(decided({**signs, "1c": (-0.2, -0.1)}, every).verdict(1).startswith("refuted: 1c"), "refuted")
    check(decided(signs, {**every, "1g": False}).verdict(1).startswith("undecided: 1g"), "undecided")
    check(decided(signs, {**every, "1g": None}).verdict(1).startswith("open: 1g"), "open")
    for ends, standing, words in (
        ((0.02, 0.04), True, "worse"),
        ((-0.04, -0.02), True, "better"),
        ((-0.005, 0.004), False, "equivalent"),
        ((-0.02, 0.03), False, "undecided"),
        ((0.001, 0.009), True, "worse and equivalent"),
        ((-0.02, 0.03), None, "open"),
    ):
        check(decided({"4a": ends}, {"4a": standing}).verdict("4a") == words, f"4a: {words}")
    check(decided({"3a": (0.01, 0.03)}, {"3a": True}).verdict(3) == "confirmed", "3a confirmed")
    check(decided({"3a": (-0.03, -0.01)}, {"3a": True}).verdict(3) == "dropped", "3a dropped")
    check(near(answers.rank_correlation([1, 2, 3, 4], [10, 20, 20, 40]), 0.9486833, 1e-6), "ranks with a tie")


def check_equivalence():
    """Ten values 0.01 +- 0.03 have the standard error 0.01 and nine degrees of freedom."""
    values = [0.01 + 0.03 * sign for sign in (1, -1) * 5]
    low, high = (1 - tests.t_tail(t, 9) / 2 for t in (6, 4))  # (0.05 + 0.01) / 0.01 and (0.05 - 0.01) / 0.01
    check(near(mean_token.within(values, 0.05)[2], max(1 - low, 1 - high), 1e-6), "two one-sided tests")
    check(mean_token.beyond(values, 0.05)[2] == 1, "a mean inside of the bounds")
    beyond = [value - 0.1 for value in values]  # 0.04 below -0.05
    check(near(mean_token.beyond(beyond, 0.05)[2], tests.t_tail(4, 9), 1e-6), "a mean below the lower bound")
    check(mean_token.within(beyond, 0.05)[2] > 0.99, "no equivalence outside")
    check(mean_token.within([0.0] * 10, 0.05)[2] == 0 and mean_token.beyond([0.125] * 10, 0.05)[2] == 0, "no spread")


def runs_with(means, noise=0.01):
    """Returns tests of runs with these means {figure: {arm: mean}}, a level of the seed and noise of the run, which is
    orthogonal to the means."""
    names = {arm: name for name, arm in mean_token.ARMS.items()}

    def of(arm, seed, name):
        place = (list(names).index(arm) + seed) % 2
        level = 0 if name == "agreement_centred" else seed / 7
        return means.get(name, {}).get(names[arm], 0.0) + level + noise * (1 if place == seed // 2 % 2 else -1)

    return mean_token.tests(of)


def check_mean_token():
    """Synthetic series with known answers: the effects that are claimed, no effect, an equivalence, and each way out."""
    every = {"V0": 1.5, "E0": 2.1, "V1": 1.0, "E1": 0.7, "C1": 1.3, "T1": 1.6}
    known = {
        "dz": every,
        "agreement_mu_off": {"V1": 0.09, "E1": 0.08},
        "agreement_centred": {"V1": 0.12, "E1": -0.01},
        "val_loss": {"E0": 0.05},
    }
    found = runs_with(known)
    check(sum(mean_token.WEIGHT.values()) == 16 and found.keys() == mean_token.WEIGHT.keys(), "the weights")
    for name, mean in (("h1", 0.9), ("h2", 0.6), ("h3", -0.3), ("h4", 0.3), ("h7", 0.6), ("h8a", -0.13), ("h6", 0.05)):
        check(near(found[name][0], mean, 1e-9), f"{name}: {found[name]}")
    check({*mean_token.significant(found)} == {*mean_token.WEIGHT} - {"h5b"}, f"{mean_token.significant(found)}")
    got = [*mean_token.decisions(found).values()]
    check(got == ["the mean token explains", "raises", "worse", "raises", "erases"], f"an effect: {got}")
    got = [*mean_token.decisions(runs_with({})).values()]
    wanted = ["undecided: h1, h3, h4", "undecided", "undecided", "undecided", "undecided"]
    check(got == wanted, f"no effect, and equal with mu taken off: {got}")
    check(mean_token.quality(runs_with({}, 0.004)) == "equivalent", "equal quality")
    for changed, words in (
        ({"dz": {**every, "T1": 1.0}}, "refuted by h4"),
        ({"agreement_mu_off": {"V1": 0.2}}, "refuted by h5"),
        ({"dz": {**every, "T1": 1.0}, "agreement_mu_off": {"V1": 0.2}}, "refuted by h4 and h5"),
        ({"agreement_mu_off": {"V1": 0.05}}, "undecided: h5"),
        ({"dz": {**every, "T1": 1.3}}, "undecided: h4"),
        ({"dz": {**every, "E1": 1.3}}, "undecided: h3"),
        ({"dz": {**every, "E0": 1.2}}, "undecided: h1"),
    ):
        got = mean_token.mean_token(runs_with({**known, **changed}))
        check(got == words, f"{changed}: {got}")
    for means, words in (
        ({"V1": 0.12, "E1": 0.06}, "lowers"),
        ({"V1": 0.04, "E1": -0.02}, "lowers"),
        ({"V1": 0.0, "E1": 0.1}, "raises"),
    ):
        got = mean_token.centred(runs_with({**known, "agreement_centred": means}))
        check(got == words, f"agreement_centred {means}: {got}")
    # diag(3, 0, 0) with row effects: off the diagonal four entries are -2/3 and two 1/3, on it the mean is 2/3.
    M = [[3, 0, 0, 9], [5, 5, 5, 9], [1, 1, 1, 9], [math.nan] * 4]  # no token is sent to the last expert
    check(near(mean_token.dz_of_layer(M), math.sqrt(2)), f"dz: {mean_token.dz_of_layer(M)}")
    report = {"tokens_M": {"dz": 0.0, "M": [[1]]}, "agreement_centred": None}
    check(mean_token.member(report, "dz") == 0 and mean_token.member(report, "agreement_centred") is None, "members")
    check(f"60 of 60 runs (the first is {mean_token.ARMS['V0']}-s170)" in mean_token.missing(()), "missing runs")


for part in (check_student, check_holm, check_factorial, check_words, check_equivalence, check_mean_token):
    part()
sys.exit(finish())
