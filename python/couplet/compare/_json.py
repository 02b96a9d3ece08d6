"""A comparison as JSON (docs/formats.md, "Comparisons: couplet compare --json")."""

from __future__ import annotations

import math
import re
from typing import Any, Optional

from ._comparison import Comparison, Figure, Pairing
from ._documents import DocumentDifference
from ._run_figures import CURVES, LAYERS, OLD_KEYS
from ._runs import Line
from ._statistics import NAN, Spread, spread

SCHEMA = 2  # version of the figures' names


def finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def _count(value: float) -> Any:
    return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else finite(value)


def _spread(of: Spread) -> "dict[str, Any]":
    return {"mean": finite(of.mean), "sd": finite(of.sd), "n": of.n}


def _figures(rows: "list[tuple[Figure, Any]]") -> "dict[str, Any]":
    """Returns values by key, also under old keys, with the values of sources in an object."""
    found: dict[str, Any] = {}
    for figure, value in rows:
        if figure.source is None:
            found |= {OLD_KEYS[figure.of.key]: value} if figure.of.key in OLD_KEYS else {}
            found[figure.of.key] = value
    return found | {"val_loss_by_source": {figure.source: x for figure, x in rows if figure.source is not None}}


def _layers(line: Optional[Line]) -> "dict[str, Any]":
    found: dict[str, Any] = {}
    for figure in LAYERS if line else ():
        values = [finite(x) for x in line.layers.get(figure.key, [math.nan] * line.n_layers)] if line else []
        found |= {key: values for key in (figure.key, OLD_KEYS.get(figure.key)) if key}
    return found


def _run(c: Comparison, r: int) -> "dict[str, Any]":
    run = c.runs[r]
    return {
        "name": c.names[r],
        "folder": run.folder,
        "group": c.groups[c.group_of[r]].name,
        "place": finite(c.groups[c.group_of[r]].place),
        "step": run.lines[-1].step if run.lines else None,
        "steps": run.steps if run.steps >= 0 else None,
        "in_progress": run.in_progress,
        "damaged_lines": run.n_damaged,
        "repeated_steps": run.n_repeated,
        "data": run.data,
        "held_out": run.held_out,
        "tokenizer": run.tokenizer,
        "figures": _figures([(f, _count(f.values[r])) for f in c.figures]),
        "layers": _layers(c.line(r)),
        "settings": run.settings,
    }


def _group(c: Comparison, g: int) -> "dict[str, Any]":
    group = c.groups[g]
    return {
        "name": group.name,
        "place": finite(group.place),
        "members": [c.names[run] for run in group.members],
        "figures": _figures([(f, _spread(f.spreads[g])) for f in c.figures]),
        "curves": _curves(c, g),
    }


def _curves(c: Comparison, g: int) -> "dict[str, Any]":
    """Returns the curves of a group: means over the runs that have begun, at those tokens of the first run where all
    runs have a number. With several runs a standard deviation to both sides is added."""
    members = [c.runs[run] for run in c.groups[g].members]
    begun = [run for run in members if run.lines]
    tokens = [0.0] * bool(begun and begun[0].start) + (begun[0].tokens if begun else [])
    lines = [[run.start if at == 0 and run.start else run.line_at(at) for run in begun] for at in tokens]

    def curve(figure: Figure) -> "dict[str, Any]":
        found = [spread([figure.at(line) if line else NAN for line in those]) for those in lines]
        found = [of if of.n == len(begun) else Spread(NAN, NAN, 0) for of in found]
        ends = {"low": [of.mean - of.sd for of in found], "high": [of.mean + of.sd for of in found]}
        rows = {"mean": [of.mean for of in found], **(ends if len(members) > 1 else {})}
        return {key: [finite(float(f"{x:.6g}")) for x in row] for key, row in rows.items()}

    by_key = _figures([(f, curve(f)) for f in c.figures if f.of.key in CURVES])
    return {"tokens": [_count(at) for at in tokens], **by_key}


def _documents(of: DocumentDifference) -> "Optional[dict[str, Any]]":
    if not of.n_pairs:
        return None
    sets = [
        {
            "source": s.source,
            "documents": s.n,
            "bytes": _count(s.bytes),
            "base": finite(s.base),
            "other": finite(s.other),
            "difference": finite(s.difference),
            "low": finite(s.low),
            "high": finite(s.high),
        }
        for s in of.sets
    ]
    counts = {"pairs": of.n_pairs, "step": of.step, "only_base": of.only_base, "only_other": of.only_other}
    return {**counts, "sets": sets}


def _pairing(c: Comparison, p: Pairing) -> "dict[str, Any]":
    columns = list(zip(*c.over_tokens(p))) or [()] * 4
    names = [{"base": c.names[pair.base], "other": c.names[pair.other]} for pair in p.pairs]
    return {
        "group": c.groups[p.group].name,
        **_spread(p.spread),
        "low": finite(p.spread.mean - p.half),
        "high": finite(p.spread.mean + p.half),
        "detectable": finite(p.detectable),
        "pairs": [{**name, "difference": finite(pair.difference)} for name, pair in zip(names, p.pairs)],
        "over_tokens": {
            key: [_count(x) for x in column] for key, column in zip(("tokens", "mean", "low", "high"), columns)
        },
        "bits_per_byte": _documents(p.documents),
        "questions": [
            {**name, **table._asdict(), "p": finite(table.p)}
            for name, pair in zip(names, p.pairs)
            for table in pair.tasks
        ],
    }


def as_json(c: Comparison) -> "dict[str, Any]":
    return {
        "schema": SCHEMA,
        "warnings": c.warnings,
        "conclusion": c.conclusion,
        "point_tokens": _count(c.point),
        "point_kind": c.point_kind,
        "equal_time_s": finite(c.seconds),
        "group_by": c.by,
        "baseline": c.groups[c.baseline].name,
        "sources": c.sources,
        "differing": [{"setting": s.name, "role": s.role, "values": s.texts} for s in c.settings.differing],
        "runs": [_run(c, r) for r in range(len(c.runs))],
        "groups": [_group(c, g) for g in range(len(c.groups))],
        "comparisons": [_pairing(c, p) for p in c.pairings],
    }


_HALVES = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # halves of UTF-16 pairs; the other surrogates stand for bytes


def rounded(value: Any) -> Any:
    """Returns the value with nine digits, as in files, and with U+FFFD for bytes that are not UTF-8."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, str):
        value = _HALVES.sub("\ufffd", value)
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {rounded(key): rounded(member) for key, member in value.items()}
    return [rounded(member) for member in value] if isinstance(value, list) else value
