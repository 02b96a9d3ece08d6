"""hypothesis_tests.py - the tests of experiments/questions.md: their p-values from the figures of runs, and which of them
are significant together."""
import math
import statistics

LEVEL = 0.045  # of one false rejection or more; a little below 5 %, since residuals are not normal
A, B, D, E = range(100, 110), range(120, 123), range(140, 150), range(150, 156)
WEIGHT = {"1a": 1, "1b": 1, "1c": 1, "1d": 1, "1e": 1, "1f": 1, "1g": 1,
          "2a": 1, "2b": 1, "2c": 1, "2d": 1, "2e": 1, "2f": 1,
          "3a": 8, "3b": 1, "3c": 1, "4a": 1, "4b": 1,
          "5a": 1, "5b": 1, "5c": 1, "5d": 1, "5e": 1, "5f": 1, "5g": 1, "5h": 1, "5i": 1}


# ---- Student's t ----

def t_tail(t, df):
    """P(|T| >= |t|) for whole df, by the finite series of Abramowitz, Stegun, 26.7.3 and 26.7.4. Not below 1e-16."""
    angle = math.atan(abs(t) / math.sqrt(df))
    square, odd = math.cos(angle) ** 2, df % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for j in range(2 if not odd else 3, df + 1, 2):
        total += term
        term *= square * (j - 1) / j
    inside = math.sin(angle) * total
    return max(1 - (2 / math.pi * (angle + inside) if odd else inside), 1e-16)


def t_quantile(p, df):
    """The t with P(T <= t) = p > 0.5."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_tail(middle, df) / 2 < p else (low, middle)
    return low


def one_sample(values):
    """(mean, half of the 95 % interval, p) of values whose mean is 0 under the null."""
    n, mean = len(values), statistics.fmean(values)
    sd = statistics.stdev(values)
    if sd == 0:
        return mean, 0.0, float(mean == 0)
    error = sd / math.sqrt(n)
    return mean, t_quantile(0.975, n - 1) * error, t_tail(mean / error, n - 1)


# ---- the designs ----

def level(figure_of, arm, seeds, figure):
    return [figure_of(arm, seed, figure) for seed in seeds]


def difference(figure_of, arm, other, seeds, figure):
    return [figure_of(arm, seed, figure) - figure_of(other, seed, figure) for seed in seeds]


def factorial(figure_of, figure):
    """{"z": (effect, half, p), "balance": ...}: z.weight 0.001 less 0, and balance.weight 0.01 less 0.001, over
    both arms; a linear model with the eight cells and the seeds as blocks: 24 - 8 - 2 degrees of freedom."""
    cells = [(z, b, arm) for z in ("z", "noz") for b in ("balance", "little") for arm in ("vanilla", "erc")]
    value = {(cell, seed): figure_of("b-" + "-".join(cell), seed, figure) for cell in cells for seed in B}
    grand = statistics.fmean(value.values())
    of_cell = {cell: statistics.fmean(value[cell, seed] for seed in B) for cell in cells}
    of_seed = {seed: statistics.fmean(value[cell, seed] for cell in cells) for seed in B}
    df = len(value) - len(cells) - (len(B) - 1)
    squares = sum((x - of_cell[cell] - of_seed[seed] + grand) ** 2 for (cell, seed), x in value.items())
    error = math.sqrt(squares / df * 4 / len(value))
    result = {}
    for at, (name, high) in enumerate((("z", "z"), ("balance", "balance"))):
        effect = (statistics.fmean(x for (cell, _), x in value.items() if cell[at] == high) -
                  statistics.fmean(x for (cell, _), x in value.items() if cell[at] != high))
        p = t_tail(effect / error, df) if error else float(effect == 0)
        result[name] = (effect, t_quantile(0.975, df) * error, p)
    return result


def tests(figure_of):
    """{test: (mean, half of the 95 % interval, p)} of experiments/questions.md; figure_of(arm, seed, figure)."""
    f, t = figure_of, {}
    for name, figure in (("1a", "above"), ("1b", "below"), ("1c", "ids_above"), ("1d", "ids_below")):
        t[name] = one_sample(level(f, "a-erc-1", A, figure))
    for name, figure in (("1e", "above"), ("1f", "below"), ("1g", "size")):
        t[name] = one_sample(difference(f, "a-erc-1", "a-vanilla", A, figure))
    for (first, second), figure in (("2a", "2b"), "router_cos"), (("2c", "2d"), "vocabulary"), (("2e", "2f"), "agreement"):
        effects = factorial(f, figure)
        t[first], t[second] = effects["z"], effects["balance"]
    t["3a"] = one_sample(difference(f, "a-erc-0.5", "a-erc-1", A, "bpb"))
    t["3b"] = one_sample(difference(f, "a-erc-0.5", "a-vanilla", A, "bpb"))
    t["3c"] = one_sample(difference(f, "a-erc-1", "a-vanilla", A, "bpb"))
    t["4a"] = one_sample(difference(f, "d-erc", "d-vanilla", D, "val_loss"))
    t["4b"] = one_sample(difference(f, "d-aoe", "d-vanilla", D, "val_loss"))
    for names, figure in ("abc", "agreement"), ("def", "centred_rows_own"), ("ghi", "max_vio"):
        for letter, arm in zip(names, ("e-centred", "e-router", "e-experts")):
            t["5" + letter] = one_sample(difference(f, arm, "e-erc", E, figure))
    assert t.keys() == WEIGHT.keys()
    return t


def p_values(figure_of):
    return {name: p for name, (_, _, p) in tests(figure_of).items()}


def rejected(p):
    """The significant tests: weighted Holm (Holm 1979)."""
    left, found = sum(WEIGHT[name] for name in p), []
    for name in sorted(p, key=lambda one: p[one] / WEIGHT[one]):
        if p[name] / WEIGHT[name] > LEVEL / left:
            break
        found.append(name)
        left -= WEIGHT[name]
    return found
