"""The tables of a comparison on a terminal."""

from __future__ import annotations

import math

from ._comparison import Comparison, Figure
from ._grid import Grid, interval, number, signed, text_of
from ._run_figures import WHOLE
from ._runs import Run
from ._settings import Setting
from ._statistics import Spread


def _steps(run: Run) -> str:
    if not run.lines:
        return "no step logged yet"
    last = run.lines[-1].step
    return str(last) if run.steps < 0 else f"{last} of {run.steps}{', in progress' if run.in_progress else ''}"


def _runs(c: Comparison) -> Grid:
    damage = any(run.cut or run.n_damaged for run in c.runs)
    columns = ["steps", "tokens"] + damage * ["damaged lines"] + c.grouped * ["group"]
    rows = []
    for r, run in enumerate(c.runs):
        cells = [_steps(run), f"{int(run.tokens[-1]):,}" if run.lines else "-"]
        cells += damage * ["cut" if run.cut else f"{run.n_damaged:,}" if run.n_damaged else "-"]
        rows.append((c.names[r], cells + c.grouped * [c.groups[c.group_of[r]].name]))
    return Grid("Runs", "run", columns, rows)


def _titles(c: Comparison) -> "list[str]":
    if not c.grouped:
        return [group.name for group in c.groups]
    return [f"{g.name} ({len(g.members)} run{'' if len(g.members) == 1 else 's'})" for g in c.groups]


def _values(c: Comparison, setting: Setting, members: "list[int]") -> str:
    """Returns the values of the members, each value once."""
    firsts: list[int] = []
    for run in members:
        if not any(c.settings.same(setting, run, first) for first in firsts):
            firsts.append(run)
    return ", ".join(setting.texts[run] for run in firsts)


def _settings(c: Comparison) -> Grid:
    rows = [(s.name, [_values(c, s, group.members) for group in c.groups]) for s in c.settings.differing]
    return Grid("Settings that differ", "setting", _titles(c), rows)


def _with_spread(figure: Figure, of: Spread, n: int) -> str:
    """Returns mean and deviation of a group of `n` runs, with the number of runs that have the figure if it is not
    n."""
    words = number(of.mean * figure.of.times, figure.of.digits)
    if not math.isnan(of.sd) and figure.of.digits != WHOLE:
        words += f" +- {number(of.sd * figure.of.times, 2)}"
    return words if of.n in (0, n) else f"{words} (n = {of.n})"


def _figures(c: Comparison) -> Grid:
    sizes = [len(group.members) for group in c.groups]
    rows = [
        (f.name, [_with_spread(f, of, n) for of, n in zip(f.spreads, sizes)])
        for f in c.figures
        if not all(map(math.isnan, f.values))
    ]
    some = any(0 < of.n < n for f in c.figures for of, n in zip(f.spreads, sizes))
    note = "n: so many runs of the group have the figure." if some else ""
    return Grid(f"Figures {c.point_words()}", "figure", _titles(c), rows, note)


def _pairs(c: Comparison) -> Grid:
    columns = ["pairs", "mean difference", "sd", "95 % interval", "smallest that could be seen"]
    rows = []
    for p in c.pairings:
        mean = p.spread.mean
        cells = [f"{len(p.pairs):,}", signed(mean, 3), number(p.spread.sd, 2)]
        rows.append((c.groups[p.group].name, [*cells, interval(mean - p.half, mean + p.half), number(p.detectable, 3)]))
    title = f"Validation loss, difference to {c.groups[c.baseline].name} in pairs of the same data"
    return Grid(title, "group", columns, rows, fixed=True)


def _document_note(c: Comparison) -> str:
    note = "95 % interval, bootstrap over documents: 2,000 resamples, the same documents for all pairs: "
    note += "what other documents would change, not what other seeds would."
    if any(p.documents.sets and len(p.pairs) == 1 for p in c.pairings):  # no spread over seeds
        note += " With one pair of runs it is of these two runs, not of the settings."
    base = sum(p.documents.only_base for p in c.pairings)
    other = sum(p.documents.only_other for p in c.pairings)
    if base or other:
        plural = "" if base == 1 else "s"
        note += f" {base} document{plural} of the baseline and {other} of the others are on one side only and left out."
    return note


def _documents(c: Comparison) -> Grid:
    columns = ["documents", "baseline", "group", "difference", "95 % interval"]
    rows = []
    for p in c.pairings:
        for s in p.documents.sets:
            name = c.groups[p.group].name + ("" if s.source is None else f", {s.source or 'no source'}")
            cells = [f"{s.n:,}", number(s.base, 4), number(s.other, 4), signed(s.difference, 3)]
            rows.append((name, [*cells, interval(s.low, s.high)]))
    return Grid("Bits per byte of held-out documents", "group", columns, rows, _document_note(c))


def _questions(c: Comparison) -> Grid:
    columns = ["against", "task", "both right", "baseline alone", "run alone", "neither", "left out", "p (McNemar)"]
    rows = []
    for pair in (pair for p in c.pairings for pair in p.pairs):
        for t in pair.tasks:
            counts = [f"{n:,}" for n in (t.both, t.only_base, t.only_other, t.neither, t.left_out)]
            task = t.task + (f", {t.metric}" if t.metric else "")
            rows.append((c.names[pair.other], [c.names[pair.base], task, *counts, number(t.p, 3)]))
    return Grid("Questions answered right", "run", columns, rows)


def title(c: Comparison) -> str:
    """Returns the title of the page: the point of the figures, and the first groups."""
    names = [group.name for group in c.groups]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    where = "" if c.point_kind == "none" else f" at {int(c.point):,} tokens"
    return f"Comparison{where}: {', '.join(names[:6])}{more}"


def first(c: Comparison) -> Grid:
    """Returns the table that sums up: the pairs, or the figures without pairs."""
    pairs = _pairs(c)
    return pairs if pairs.rows else _figures(c)


def text(c: Comparison) -> "list[str]":
    """Returns the lines of warnings, the conclusion and all tables."""
    lines = [f"warning: {sentence}" for sentence in c.warnings]
    lines += [""] * bool(c.warnings and c.conclusion) + c.conclusion
    for table in (_pairs, _runs, _settings, _figures, _documents, _questions):
        lines += text_of(table(c))
    return lines
