"""hypothesis_tests.py - the tests of experiments/questions.md: their p-values from the figures of runs, and the tests
that are significant together."""

import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from couplet.compare._statistics import half, spread, student_cdf, student_quantile  # noqa: E402

LEVEL = 0.045  # probability of a false rejection, a little below 5 % since residuals are not normal
A, B, C, D, E = (range(*ends) for ends in ((100, 110), (120, 123), (130, 132), (140, 150), (150, 156)))
WEIGHT = {
    "1a": 1,
    "1b": 1,
    "1c": 1,
    "1d": 1,
    "1e": 1,
    "1f": 1,
    "1g": 1,
    "2a": 1,
    "2b": 1,
    "2c": 1,
    "2d": 1,
    "2e": 1,
    "2f": 1,
    "3a": 8,
    "3b": 1,
    "3c": 1,
    "4a": 1,
    "4b": 1,
    "5a": 1,
    "5b": 1,
    "5c": 1,
    "5d": 1,
    "5e": 1,
    "5f": 1,
    "5g": 1,
    "5h": 1,
    "5i": 1,
}


# ---- Student's t ----


def t_tail(t, df):
    """Returns P(|T| >= |t|), at least 1e-16."""
    return max(2 * student_cdf(-abs(t), df), 1e-16)


def one_sample(values):
    """Returns (mean, half of the 95 % interval, p) of values whose mean is 0 under the null."""
    of = spread(values)
    if of.sd == 0:
        return of.mean, 0.0, float(of.mean == 0)
    return of.mean, half(of), t_tail(of.mean / of.sd * math.sqrt(of.n), of.n - 1)


# ---- the designs ----


def level(figure_of, arm, seeds, figure):
    return [figure_of(arm, seed, figure) for seed in seeds]


def difference(figure_of, arm, other, seeds, figure):
    return [figure_of(arm, seed, figure) - figure_of(other, seed, figure) for seed in seeds]


def factorial(figure_of, figure, interactions=False):
    """Returns {"z": (effect, half, p), "balance": ...}: z.weight 0.001 less 0, and balance.weight 0.01 less 0.001, over
    both arms, by a linear model with the eight cells and the seeds as blocks: 24 - 8 - 2 degrees of freedom.
    With interactions, which are not tests, also "z x balance", "z x arm" and "balance x arm": the effect of the first
    with the high weight (with the loss, for arm) less the effect without."""
    cells = [(z, b, arm) for z in ("z", "noz") for b in ("balance", "little") for arm in ("vanilla", "erc")]
    value = {(cell, seed): figure_of("b-" + "-".join(cell), seed, figure) for cell in cells for seed in B}
    grand = statistics.fmean(value.values())
    of_cell = {cell: statistics.fmean(value[cell, seed] for seed in B) for cell in cells}
    of_seed = {seed: statistics.fmean(value[cell, seed] for cell in cells) for seed in B}
    df = len(value) - len(cells) - (len(B) - 1)
    squares = sum((x - of_cell[cell] - of_seed[seed] + grand) ** 2 for (cell, seed), x in value.items())
    error = math.sqrt(squares / df * 4 / len(value))

    def effect(sign, scale=1):
        """Returns twice the mean of the cells' means with the given signs, times scale."""
        found, own = scale * 2 * statistics.fmean(sign(cell) * of_cell[cell] for cell in cells), scale * error
        p = t_tail(found / own, df) if own else float(found == 0)
        return found, student_quantile(0.975, df) * own, p

    signs = {
        "z": lambda cell: 1 if cell[0] == "z" else -1,
        "balance": lambda cell: 1 if cell[1] == "balance" else -1,
        "arm": lambda cell: 1 if cell[2] == "erc" else -1,
    }
    result = {name: effect(signs[name]) for name in ("z", "balance")}
    for one, other in (("z", "balance"), ("z", "arm"), ("balance", "arm")) if interactions else ():
        result[f"{one} x {other}"] = effect(lambda cell: signs[one](cell) * signs[other](cell), 2)
    return result


def tests(figure_of, partly=False):
    """Returns {test: (mean, half of the 95 % interval, p)} of experiments/questions.md. figure_of(arm, seed, figure)
    raises an error (KeyError for a run, ValueError for a figure) if the value is missing. partly: only tests whose runs
    all exist."""
    f, found = figure_of, {}

    def add(names, make):
        try:
            found.update(zip(names, make()))
        except (KeyError, ValueError):
            if not partly:
                raise

    for name, figure in (("1a", "above"), ("1b", "below"), ("1c", "ids_above"), ("1d", "ids_below")):
        add([name], lambda: [one_sample(level(f, "a-erc-1", A, figure))])
    for name, figure in (("1e", "above"), ("1f", "below"), ("1g", "size")):
        add([name], lambda: [one_sample(difference(f, "a-erc-1", "a-vanilla", A, figure))])
    for names, figure in (("2a", "2b"), "router_cos"), (("2c", "2d"), "vocabulary"), (("2e", "2f"), "agreement"):
        add(names, lambda: factorial(f, figure).values())
    for name, arm, other in (
        ("3a", "a-erc-0.5", "a-erc-1"),
        ("3b", "a-erc-0.5", "a-vanilla"),
        ("3c", "a-erc-1", "a-vanilla"),
    ):
        add([name], lambda: [one_sample(difference(f, arm, other, A, "bpb"))])
    for name, arm in (("4a", "d-erc"), ("4b", "d-aoe")):
        add([name], lambda: [one_sample(difference(f, arm, "d-vanilla", D, "val_loss"))])
    for names, figure in ("abc", "agreement"), ("def", "centred_rows_own"), ("ghi", "max_vio"):
        for letter, arm in zip(names, ("e-centred", "e-router", "e-experts")):
            add(["5" + letter], lambda: [one_sample(difference(f, arm, "e-erc", E, figure))])
    assert partly or found.keys() == WEIGHT.keys()
    return found


def p_values(figure_of):
    return {name: p for name, (_, _, p) in tests(figure_of).items()}


def rejected(p, weight=WEIGHT):
    """Returns the significant tests of a family by weighted Holm (Holm 1979)."""
    left, found = sum(weight[name] for name in p), []
    for name in sorted(p, key=lambda one: p[one] / weight[one]):
        if p[name] / weight[name] > LEVEL / left:
            break
        found.append(name)
        left -= weight[name]
    return found


def standing(p):
    """Returns {test: True (significant), False (not), None (open)} for all tests; p has the known p-values.

    Holm's procedure is monotone. It is the closed test (Marcus, Peritz, Gabriel 1976) of the weighted Bonferroni tests:
    a hypothesis is rejected if every set I of hypotheses that contains it has a member j with p_j / w_j at most LEVEL
    over the sum of the weights of I. A smaller p-value can only make more of these conditions true. A test that is
    rejected with p = 1 for the unknown tests is therefore rejected for all their values. A test that is not rejected
    with p = 0 for them never is. Otherwise it is open. A test that is itself unknown is open."""
    surely = rejected({**dict.fromkeys(WEIGHT, 1.0), **p})
    perhaps = rejected({**dict.fromkeys(WEIGHT, 0.0), **p})
    return {name: True if name in surely else False if name in p and name not in perhaps else None for name in WEIGHT}
