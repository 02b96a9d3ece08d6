"""The charts of a comparison as data (docs/formats.md, "Charts: --series").

Sections: end (figures at the end against the setting of --group-by) and curves (against tokens). A curve is a line a run; of
groups the mean over the runs where all have a number, with a band of one standard deviation to both sides. Up to COLOURS lines
have colours of their own, more take the ramp. Losses begin at a twentieth of the tokens, so that the fall from the first steps
does not hide what differs."""

from __future__ import annotations

import math
import os
import re
import time
from typing import Any, Optional

from .._version import __version__
from ._comparison import Comparison, Figure
from ._groups import Group
from ._runs import Line, Run
from ._statistics import NAN, spread

COLOURS, EARLY, WIDE = 8, 0.05, 30
_PLAIN_WORD = re.compile(r"[A-Za-z0-9._\-/=,:+@%]+")


def _number(value: float) -> Any:
    """With six digits, more than a chart shows."""
    if not math.isfinite(value):
        return None
    return int(value) if value == math.floor(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def _axis(label: str, log: bool = False, zero: bool = False, share: bool = False) -> "dict[str, Any]":
    ends = {"from": 0 if share else None, "to": 1 if share else None}
    return {
        "label": label,
        "unit": "",
        "scale": "log" if log else "linear",
        **ends,
        "zero": zero,
        "percent": False,
        "whole": False,
    }


def _series(name: str, points: "list[tuple[float, ...]]", group: Optional[int], **more: Any) -> "dict[str, Any]":
    """A series of points (x, y) or (x, y, low, high); `more`: share, style, marks."""
    found: dict[str, Any] = {"name": name, "group": group}
    found |= {"share": _number(more["share"])} if group is None else {}
    columns = list(zip(*points)) or [(), ()] + [(), ()] * bool(more.get("band"))
    found |= {key: [_number(x) for x in column] for key, column in zip(("x", "y"), columns)}
    infinite = [_number(point[0]) for point in points if point[1] == math.inf]
    found |= {"infinite": infinite} if infinite else {}
    found |= {key: [_number(x) for x in column] for key, column in zip(("low", "high"), columns[2:])}
    return {**found, "style": more.get("style", "line"), "marks": more.get("marks", False)}


def _value(line: Line, figure: Figure) -> float:
    return line.values[figure.of.key] if figure.source is None else line.val_loss(figure.source)


def _line_at(run: Run, tokens: float) -> Optional[Line]:
    return run.start if run.start and tokens == 0 else run.line_at(tokens)


def _curve(c: Comparison, group: Group, figure: Figure, first: float, unit: float) -> "list[tuple[float, ...]]":
    """Mean and deviation over the members that have begun at so many tokens, where all have a number."""
    begun = [c.runs[run] for run in group.members if c.runs[run].lines]
    record = begun[0] if begun else c.runs[group.members[0]]
    points: list[tuple[float, ...]] = []
    for at in [0.0] * bool(record.start) + record.tokens:
        lines = [_line_at(run, at) for run in begun]
        of = spread([_value(line, figure) if line else NAN for line in lines])
        if at >= first and of.n == len(lines) and of.n:
            band = (of.mean - of.sd, of.mean + of.sd) if len(group.members) > 1 else ()
            points.append((at / unit, of.mean, *band))
    return points


def _curves(c: Comparison, figure: Figure, last: float, unit: float) -> "list[dict[str, Any]]":
    first, n = EARLY * last if figure.of.curve == "loss" else 0.0, len(c.groups)
    found = []
    for g, group in enumerate(c.groups):
        points = _curve(c, group, figure, first, unit)
        share = g / (n - 1) if n > 1 else 0.0
        many = len(group.members) > 1
        found.append(
            _series(group.name, points, None if n > COLOURS else g, share=share, marks=len(points) <= 80, band=many)
        )
    return found


def _end(c: Comparison, figure: Figure) -> "list[dict[str, Any]]":
    """The means of the groups, and a point of every run."""
    means = [(g.place, of.mean) for g, of in zip(c.groups, figure.spreads) if not math.isnan(of.mean)]
    runs = [(c.groups[c.group_of[r]].place, figure.values[r]) for r in range(len(c.runs))]
    dots, line = ([point for point in points if not math.isnan(point[0])] for points in (runs, means))
    off = [_series("off", [(0.0, mean)], -1, style="rule") for place, mean in means if math.isnan(place)]
    return [_series("mean", list(line), 0), _series("a run", list(dots), 1, style="dots"), *off]


def _chart(c: Comparison, figure: Figure, at_the_end: bool, taken: "set[str]") -> "dict[str, Any]":
    last, unit, x_label = _unit(c)
    log, share = figure.of.curve == "log", figure.of.curve == "share"
    plain = stem = (
        re.sub(r"[^A-Za-z0-9]+", "-", ("at-the-end-" if at_the_end else "") + figure.of.file).lstrip("-") or "chart"
    )
    k = 2
    while plain in taken:
        plain, k = f"{stem}-{k}", k + 1
    taken.add(plain)
    places = [group.place for group in c.groups if not group.is_off]
    wide = at_the_end and 0 < places[0] and places[-1] > places[0] * WIDE
    found: dict[str, Any] = {
        "id": plain,
        "section": "end" if at_the_end else "curves",
        "title": figure.of.label,
        "caption": figure.of.help,
        "kind": "lines",
        "x": _axis(str(c.by), wide) if at_the_end else _axis(x_label),
        "y": _axis("", log, zero=log, share=share),  # a loss that has reached 0 is at the foot of the axis
    }
    if not at_the_end and len(c.groups) > COLOURS:
        found["ramp"] = [c.groups[0].name, c.groups[-1].name]
    series = _end(c, figure) if at_the_end else _curves(c, figure, last, unit)
    return {**found, "notes": [], "series": series}


def charts_of(c: Comparison) -> "list[dict[str, Any]]":
    with_places = c.by is not None and sum(not math.isnan(group.place) for group in c.groups) > 1
    taken: set[str] = set()
    drawn = [
        figure
        for figure in c.figures
        if figure.of.curve != "none"
        and any(math.isfinite(_value(line, figure)) for run in c.runs for line in run.lines)
    ]
    charts = [_chart(c, figure, end, taken) for end in [True] * with_places + [False] for figure in drawn]
    return _difference(c) + charts


def _difference(c: Comparison) -> "list[dict[str, Any]]":
    """The paired difference of validation loss over tokens, with its interval; none without a pair."""
    last, unit, label = _unit(c)
    series = []
    for p in c.pairings:
        points = [(t / unit, *rest) for t, *rest in c.over_tokens(p) if t >= EARLY * last]
        if points:
            points = points if len(p.pairs) > 1 else [point[:2] for point in points]
            series.append(_series(c.groups[p.group].name, list(points), p.group, marks=len(points) <= 80))
    if not series:
        return []
    base = c.groups[c.baseline].name
    return [
        {
            "id": "validation-loss-difference",
            "section": "curves",
            "title": f"validation loss, difference to {base}",
            "caption": "Mean over pairs of runs of the same seed and data, nats per token, with its 95 % interval over the pairs; "
            "below 0: better than the baseline.",
            "kind": "lines",
            "x": _axis(label),
            "y": _axis("", zero=True),
            "notes": [],
            "series": [*series, _series(base, [(0.0, 0.0)], -1, style="rule")],
        }
    ]


def _unit(c: Comparison) -> "tuple[float, float, str]":
    """The largest number of tokens, the tokens of one on the axis, and the name of the axis."""
    last = max((run.tokens[-1] for run in c.runs if run.lines), default=0.0)
    units = ((1e6, "million tokens"), (1e3, "thousand tokens"))
    return (last, *next((unit for unit in units if last >= unit[0]), (1.0, "tokens")))


# ---- where a report is from ----


def _quoted(word: str) -> str:
    """A word as a shell takes it."""
    return word if _PLAIN_WORD.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'"


def _source(run: Run) -> "dict[str, Any]":
    """A run, the step of its checkpoint, and the hash of the weights that was recorded when they were saved."""
    step = run.checkpoint_step()
    return {
        "path": run.folder,
        "step": None if step < 0 else step,
        "xxh3": run.recorded("checksums.json", run.folder).get("model.safetensors"),
    }


def made_by(words: "list[str]", runs: "list[Run]") -> "dict[str, Any]":
    """The member "made" of a report: program, command, date, and the runs it is about. The date is SOURCE_DATE_EPOCH if the
    environment has it; equal reports are then equal bytes."""
    now = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    return {
        "program": f"couplet {__version__}",
        "command": " ".join(["couplet compare", *(_quoted(word) for word in words if word != "--overwrite")]),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", now),
        "sources": [_source(run) for run in runs],
    }
