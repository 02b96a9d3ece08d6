"""A verdict for people and for programs."""

from __future__ import annotations

from typing import Any, Dict, List, Union

from ._fits import CLEAR_BF16, CLEAR_TF32, Figure, Supposed
from ._judge import Verdict
from ._scale import ACCUMULATED, ANY
from .erc import Certificates

VERSION = 1  # of the JSON
COARSE = ("TF32", "bf16")  # coarser than the formats of most dumps
PLUMBING = {fault.key for fault in (*ANY, *ACCUMULATED)}  # faults of what calls a loss, of whatever kind it is


def _words(one: Supposed) -> List[str]:
    return [
        fault.sentence + (f" ({value:g})" if value is not None else "")
        for fault, value in (*one.inside, *((fault, None) for fault in one.outside))
    ]


def _others(verdict: Verdict) -> str:
    return ", ".join(kind.name for kind in verdict.others)


def _furthest(verdict: Verdict) -> Figure:
    return max((one for figures in verdict.figures.values() for one in figures), key=_off)


def _off(one: Figure) -> float:
    """Relative to its size."""
    return one.distance / max(abs(one.expected), 1e-300)


def _percent(one: Figure) -> str:
    return f"{100 * _off(one):.2g} %"


def _explained(verdict: Verdict) -> str:
    """What all sets of faults have in common, and of the rest, that it is one of several."""
    sets = [_words(one) for one in verdict.sets]
    if verdict.factor is not None:
        sets[0].append(f"loss and gradients are multiplied by {verdict.factor:.6g}")
    common = [word for word in sets[0] if all(word in one for one in sets)]
    rest = ["; ".join(word for word in one if word not in common) for one in sets if len(one) > len(common)]
    return "; ".join([*common, *([f"one of: {' | '.join(rest)}"] if len(rest) > 1 else rest)])


def _as_other(verdict: Verdict, rounding: str) -> str:
    kind = verdict.kind.name
    if any(fault.key in PLUMBING for one in verdict.sets for fault in one.faults):
        several = [f"it is {_others(verdict)}", *("; ".join(_words(one)) for one in verdict.sets)]
        return f"wrong as {kind}; these inputs do not tell apart: {' | '.join(several)}"
    words = f": as {kind}, {_explained(verdict)}" if verdict.sets else ""
    return f"right as {_others(verdict)}{rounding}, not {kind}{words}"


def _unclear(verdict: Verdict) -> str:
    off = _furthest(verdict)
    others = (
        "take fewer tokens, or logits that are less balanced"
        if "logits" in verdict.kind.needs
        else "take inputs whose loss is larger"
    )
    is_fine = verdict.grade == "TF32" and _off(off) <= CLEAR_TF32
    remedy = (
        f"give --rounding {'f32' if is_fine else 'bf16'} if it is computed so" if _off(off) <= CLEAR_BF16 else others
    )
    return (
        f"cannot be told: {off.name} lies off by {_percent(off)} of its size; rounding in {verdict.grade} may do that on "
        f"these inputs; {remedy}"
    )


def sentence(verdict: Union[Verdict, Certificates]) -> str:
    """The verdict in one line."""
    if isinstance(verdict, Certificates):
        return verdict.sentence()
    kind = verdict.kind.name
    rounding = f", within the rounding of {verdict.grade}" if verdict.grade in COARSE else ""
    if verdict.state == "right":
        off = _furthest(verdict) if rounding else None
        rounding += f" ({off.name} lies off by {_percent(off)} of its size)" if off else ""
        also = f"; these inputs do not tell it from {_others(verdict)}" if verdict.others else ""
        return f"right as {kind}{rounding}{also}"
    if verdict.state == "other":
        return _as_other(verdict, rounding)
    if verdict.state == "unclear":
        return _unclear(verdict)
    if verdict.state == "unknown":
        first = f"the first numbers that differ: {'; '.join(verdict.first)}"
        return f"not right as {kind}, in a way that is not listed; {first}{verdict.note}"
    sets = [_words(one) for one in verdict.sets]
    if len(sets) > 1 and not set.intersection(*map(set, sets)):
        return f"wrong as {kind}; these inputs do not tell apart: {' | '.join(map('; '.join, sets))}"
    return f"wrong as {kind}: {_explained(verdict)}"


def details(verdict: Union[Verdict, Certificates]) -> List[str]:
    """How it is mended, what was measured, and what these inputs cannot show."""
    if isinstance(verdict, Certificates):
        return verdict.details()
    lines = []
    for fault in {fault.key: fault for one in verdict.sets for fault in one.faults}.values():
        lines.append(f"{fault.key}: {fault.remedy}" + (f" (seen in {fault.seen})" if fault.seen else ""))
    for name, figures in verdict.figures.items():
        for one in figures:
            lines.append(
                f"{name}: {one.name} {one.got:.6g}, right {one.expected:.6g}, distance {one.distance:.2g}, "
                f"rounding {one.bound:.2g} ({verdict.grade})"
            )
    if verdict.untold:
        lines.append("these inputs cannot show: " + ", ".join(fault.key for fault in verdict.untold))
    return lines


def as_json(verdict: Union[Verdict, Certificates]) -> Dict[str, Any]:
    if isinstance(verdict, Certificates):
        return verdict.as_json()
    return {
        "version": VERSION,
        "kind": verdict.kind.name,
        "verdict": verdict.state,
        "sentence": sentence(verdict),
        "faults": [
            [
                {"key": fault.key, "value": value, "sentence": fault.sentence, "remedy": fault.remedy}
                for fault, value in (*one.inside, *((fault, None) for fault in one.outside))
            ]
            for one in verdict.sets
            if one.faults
        ],
        "right_as": [kind.name for kind in verdict.others],
        "factor": verdict.factor,
        "rounding": verdict.grade,
        "cannot_show": [fault.key for fault in verdict.untold],
        "first": verdict.first,
        "figures": {name: [vars(one) for one in figures] for name, figures in verdict.figures.items()},
    }
