"""table_figures.py - figures of experiments/runs.csv (experiments/tools/runs_table.py), over seeds, layers and pairs of
runs, and their printed forms. A requested figure that is not in the table is an error."""

import math
import re
import statistics
import typing

import hypothesis_tests
import runs_table
from couplet.compare._statistics import Spread, spread


class Range(typing.NamedTuple):
    low: float
    high: float


class Interval(typing.NamedTuple):
    """The 95 % interval of Student's t of a mean, and the p-value of a mean of 0."""

    mean: float
    low: float
    high: float
    p: float
    n: int

    @property
    def interval(self):
        return Range(self.low, self.high)


def interval(values):
    mean, half, p = hypothesis_tests.one_sample(values)
    return Interval(mean, mean - half, mean + half, p, len(values))


def span(values):
    values = list(values)
    return Range(min(values), max(values))


# ---- the table ----


class Table:
    def __init__(self):
        self.rows = runs_table.rows()

    def seeds(self, arm):
        found = sorted(seed for name, seed in self.rows if name == arm)
        if not found:
            raise KeyError(f"no run of {arm} is recorded")
        return found

    def listed(self, figure, arm, seed):
        """Returns the numbers of a cell: by layer, by evaluation, by source."""
        return [float(number) for number in self.rows[arm, seed][figure].split()]

    def value(self, figure, arm, seed, layer=None):
        if layer is not None:
            return self.listed(f"{figure}_by_layer", arm, seed)[layer]
        return float(self.rows[arm, seed][figure])

    def values(self, figure, arm, layer=None):
        """Returns one value for each seed."""
        return [self.value(figure, arm, seed, layer) for seed in self.seeds(arm)]

    def mean(self, figure, arm, layer=None):
        return statistics.fmean(self.values(figure, arm, layer))

    def spread(self, figure, arm, layer=None):
        return spread(self.values(figure, arm, layer))

    def layers(self, figure, arm):
        """Returns means over the seeds, one for each layer."""
        rows = [self.listed(f"{figure}_by_layer", arm, seed) for seed in self.seeds(arm)]
        return [statistics.fmean(column) for column in zip(*rows, strict=True)]

    def paired(self, arm, base):
        """Returns the seeds that both arms have."""
        both = [seed for seed in self.seeds(arm) if (base, seed) in self.rows]
        if not both:
            raise KeyError(f"{arm} and {base} have no seed in common")
        return both

    def differences(self, figure, arm, base="vanilla", layer=None):
        return [
            self.value(figure, arm, seed, layer) - self.value(figure, base, seed, layer)
            for seed in self.paired(arm, base)
        ]

    def difference(self, figure, arm, base="vanilla", layer=None):
        return interval(self.differences(figure, arm, base, layer))

    def changes(self, figure, arm, base="vanilla", layer=None):
        """Returns the relative change of the figure from base to the arm, in each pair."""
        return [
            self.value(figure, arm, seed, layer) / self.value(figure, base, seed, layer) - 1
            for seed in self.paired(arm, base)
        ]

    def loss_at(self, tokens, arm, seed):
        """Returns the validation loss, linear between two evaluations."""
        cell = self.listed("val_loss_by_time", arm, seed)
        points = list(zip(cell[::2], cell[1::2]))
        for (a, low), (b, high) in zip(points, points[1:]):
            if a <= tokens <= b:
                return low + (high - low) * (tokens - a) / (b - a)
        raise KeyError(f"{arm}-s{seed} was not evaluated around {tokens} tokens")


# ---- printed forms ----

FORM = re.compile(r"(\+?)(\d+)(%|e-\d+)?")


def number(value, form):
    """Returns a number as text. form: digits after the point; + for a sign; % for a hundred times the value; e-5 for
    1e5 times the value, followed by the exponent."""
    sign, digits, unit = FORM.fullmatch(form).groups()
    scale = 1 if not unit else 100 if unit == "%" else 10.0 ** int(unit[2:])
    text = f"{value * scale:{sign}.{digits}f}"
    if not text.strip("+-0."):
        text = text.lstrip("-")
    return text.replace("-", "−") + (unit if unit and unit != "%" and text.strip("0.") else "")


def printed(value, form):
    """Returns a number, 'mean ± deviation', 'low to high', 'mean (low to high)', or a list of these with commas. A
    figure that is 0 or 1 in all runs has no deviation."""
    if isinstance(value, Spread):
        mean = number(value.mean, form)
        if value.n < 2 or re.fullmatch(r"[01](\.0*)?", mean) and not number(value.sd, form).strip("0."):
            return mean
        return f"{mean} ± {number(value.sd, form)}"
    if isinstance(value, Range):
        return f"{number(value.low, form)} to {number(value.high, form)}"
    if isinstance(value, Interval):
        return f"{number(value.mean, form)} ({printed(value.interval, form)})"
    if isinstance(value, (list, tuple)):
        return ", ".join(printed(one, form) for one in value)
    if math.isnan(value):
        raise ValueError("a figure that is no number")
    return number(value, form)
