"""Runs compared: the point at which they are compared, their figures there, and pairs of runs.

Point: the largest number of tokens at which every run has an evaluated line; else the largest at which every run has a
line; else each run's last line before the shortest run's end. Runs that have logged no step are left out. Without a
point at which all runs were evaluated, validation loss is linear between two evaluations of a run.
Pairs: a run of the first group, the baseline, with a run of another group that has its train.seed, its seed of the
order and all its settings of the data. NaN is a figure that a run does not have."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from . import _statistics as statistics
from ._documents import DocumentDifference, compare_documents
from ._grid import number, signed
from ._groups import groups_of, names_of
from ._questions import QuestionTable, compare_questions
from ._run_figures import FIGURES, VALIDATION, RunFigure
from ._runs import Line, Run
from ._settings import Settings, without_copies
from ._statistics import NAN, Spread, spread
from ._warnings import warnings_of

POINT_WORDS = {
    "evaluated": "the most at which every run was evaluated",
    "logged": "the most that every run has logged; none was evaluated by all, so validation loss is linear between two "
    "evaluations",
    "last": "where the shortest ends: of every run its last line before, as none is common to all, and validation loss "
    "linear between two evaluations",
    "none": "as no step is logged yet",
}


class Figure(NamedTuple):
    """A row of figures: one of FIGURES, or the validation loss of a source."""

    of: RunFigure
    source: Optional[str]  # label of held-out text
    values: "list[float]"  # one for each run
    spreads: "list[Spread]"  # one for each group

    @property
    def name(self) -> str:
        return self.of.name if self.source is None else f"{self.of.name}, {self.source}"

    def at(self, line: Line) -> float:
        return line.values[self.of.key] if self.source is None else line.val_loss(self.source)


class Pair(NamedTuple):
    base: int
    other: int
    difference: float  # validation loss of other less the validation loss of base, at the point
    tasks: "list[QuestionTable]"


class Pairing(NamedTuple):
    """The baseline against another group."""

    group: int
    pairs: "list[Pair]"
    spread: Spread  # spread of the differences
    half: float
    detectable: float
    documents: DocumentDifference


class Comparison:
    def __init__(self, runs: "list[Run]", by: Optional[str] = None) -> None:
        """Compares `runs`. `by`: the dotted name of the setting by whose values runs are grouped. Raises NoSetting."""
        self.runs, self.by = runs, by = without_copies(runs), by
        self.names = names_of(runs)
        self.settings = Settings(runs)
        self.groups = groups_of(self.settings, self.names, by)
        self.group_of = {run: g for g, group in enumerate(self.groups) for run in group.members}
        self.baseline = self.group_of[0]
        self.grouped = by is not None or any(len(group.members) > 1 for group in self.groups)
        self._set_point()
        self.speeds = [
            statistics.quantile([x for x in self._column(run, "tokens_per_s") if x > 0], 0.5) for run in runs
        ]
        ends = [(self._last_evaluated(run), speed) for run, speed in zip(runs, self.speeds)]
        times = [line.tokens / speed for line, speed in ends if line and not math.isnan(speed)]
        self.seconds = min(times, default=NAN)  # equal time: the earliest of the runs' last evaluations
        self.sources = list(dict.fromkeys(label for run in runs for label in run.sources))
        self.figures: list[Figure] = []
        for figure in FIGURES:
            self._add(figure, None)
            if figure is VALIDATION:
                for label in self.sources:
                    self._add(figure, label)
        self.warnings = warnings_of(self)
        self.pairings = [self._pairing(g) for g in range(len(self.groups)) if g != self.baseline]
        base = self.groups[self.baseline].name
        self.conclusion = [_conclusion(self.groups[p.group].name, base, p) for p in self.pairings]

    # ---- the point ----

    def _set_point(self) -> None:
        logged = [run for run in self.runs if run.lines]
        self.point, self.point_kind = 0.0, "none"
        if not logged:
            return
        for kind in ("evaluated", "logged"):
            for tokens in reversed(logged[0].tokens):
                lines = [run.line_at(tokens) for run in logged]
                if all(line and (kind == "logged" or line.is_evaluated()) for line in lines):
                    self.point, self.point_kind = tokens, kind
                    return
        self.point, self.point_kind = min(run.tokens[-1] for run in logged), "last"

    def line(self, run: int) -> Optional[Line]:
        """Returns the line of a run from which its figures are taken."""
        return self.runs[run].line_before(self.point)

    def point_words(self) -> str:
        return f"at {int(self.point):,} tokens, {POINT_WORDS[self.point_kind]}"

    # ---- figures ----

    @staticmethod
    def _column(run: Run, key: str) -> "list[float]":
        return [line.values[key] for line in run.lines]

    @staticmethod
    def _last_evaluated(run: Run) -> Optional[Line]:
        return next((line for line in reversed(run.lines) if line.is_evaluated()), None)

    def _loss(self, run: int, source: Optional[str] = None) -> float:
        """Returns the validation loss at the point."""
        line = self.line(run)
        if self.point_kind != "evaluated":
            return loss_between(self.runs[run], source, self.point)
        return line.val_loss(source) if line else NAN

    def _value(self, run: int, figure: RunFigure, source: Optional[str]) -> float:
        record, line = self.runs[run], self.line(run)
        if figure.how == "loss":
            return self._loss(run, source)
        if figure.how == "tenth":  # before the run's last line at the point, which may be far before the point
            end = line.tokens if line else 0.0
            return spread([x.values[figure.key] for x in record.lines if 0.9 * end < x.tokens <= end]).mean
        if figure.how == "median":
            return self.speeds[run]
        if figure.how == "most":
            return max((x for x in self._column(record, figure.key) if not math.isnan(x)), default=NAN)
        if figure.how == "equal_time":
            return loss_between(record, None, self.seconds * self.speeds[run])
        if figure.how == "tokens":
            return record.tokens[-1] if record.lines else NAN
        return line.values[figure.key] if line else NAN

    def _add(self, figure: RunFigure, source: Optional[str]) -> None:
        values = [self._value(run, figure, source) for run in range(len(self.runs))]
        spreads = [spread([values[run] for run in group.members]) for group in self.groups]
        self.figures.append(Figure(figure, source, values, spreads))

    def over_tokens(self, pairing: Pairing) -> "list[tuple[float, float, float, float]]":
        """Returns rows of tokens at which both runs of all pairs were evaluated, mean difference of validation loss,
        and the ends of its 95 % interval (NaN for one pair)."""
        points = []
        pairs = [(self.runs[pair.base], self.runs[pair.other]) for pair in pairing.pairs]
        for tokens in pairs[0][0].tokens if pairs else []:
            lines = [(a.line_at(tokens), b.line_at(tokens)) for a, b in pairs]
            of = spread([b.val_loss() - a.val_loss() if a and b else NAN for a, b in lines])
            if of.n == len(pairs):
                half = statistics.half(of)
                points.append((tokens, of.mean, of.mean - half, of.mean + half))
        return points

    # ---- pairs ----

    def _order_seed(self, run: int) -> str:
        """Returns the seed of the order, or the run's seed if the order has no seed of its own."""
        own = self.settings.meaning("data.seed", run)
        return self.settings.meaning("train.seed", run) if own in ("unset", "-") else own

    def _are_a_pair(self, a: int, b: int) -> bool:
        if not self.runs[a].lines or not self.runs[b].lines or self._order_seed(a) != self._order_seed(b):
            return False
        if self.settings.meaning("train.seed", a) != self.settings.meaning("train.seed", b):
            return False
        data = (s for s in self.settings.all.values() if s.role == "matters" and s.name.startswith("data."))
        return all(self.settings.same(setting, a, b) for setting in data)

    def _pairing(self, g: int) -> Pairing:
        """Pairs each run of the baseline with the first run of the group that is free and fits."""
        found: list[tuple[int, int]] = []
        for a in self.groups[self.baseline].members:
            free = (b for b in self.groups[g].members if all(b != other for _, other in found))
            other = next((b for b in free if self._are_a_pair(a, b)), None)
            if other is not None:
                found.append((a, other))
        records = [(self.runs[a], self.runs[b]) for a, b in found]
        documents, reason = compare_documents(records)
        if reason:
            self.warnings.append(f"{self.groups[g].name}: not every pair was compared by documents: {reason}")
        tasks, reason = compare_questions(records)
        if reason:
            self.warnings.append(f"{self.groups[g].name}: not every pair was compared by all questions: {reason}")
        pairs = [Pair(a, b, self._loss(b) - self._loss(a), of) for (a, b), of in zip(found, tasks)]
        differences = spread([pair.difference for pair in pairs])
        return Pairing(
            g, pairs, differences, statistics.half(differences), statistics.detectable(differences), documents
        )


def _conclusion(name: str, base: str, p: Pairing) -> str:
    """Returns the result of the pairs as a sentence."""
    pairs = f"{name} against {base}, {len(p.pairs)} pair{'' if len(p.pairs) == 1 else 's'}"
    mean, low, high = p.spread.mean, p.spread.mean - p.half, p.spread.mean + p.half
    if math.isnan(mean):
        return f"{pairs} of the same seed and data: no difference can be told."
    found = f"{pairs}: validation loss {signed(mean, 3)} nats"
    if math.isnan(p.half):
        return f"{found}: no interval of one pair, so no difference is shown."
    found += f" [{signed(low, 3)}, {signed(high, 3)}]"
    if low <= 0 <= high:
        return f"{found}: no difference is shown; the smallest that could be seen: {number(p.detectable, 3)}."
    return f"{found}: {'better' if high < 0 else 'worse'}."


def loss_between(run: Run, source: Optional[str], tokens: float) -> float:
    """Returns the validation loss at this number of tokens, linear between evaluations; NaN beyond them."""
    low = run.start if run.start and not math.isnan(run.start.val_loss(source)) else None
    for high in run.lines:
        b = high.val_loss(source)
        if math.isnan(b):
            continue
        if (
            abs(high.tokens - tokens) <= 1e-9 * tokens
        ):  # the end of the shortest run may differ by the rounding of a quotient
            return b
        if high.tokens > tokens:
            if not low:
                return NAN
            a = low.val_loss(source)
            return a + (b - a) * (tokens - low.tokens) / (high.tokens - low.tokens)
        low = high
    return NAN
