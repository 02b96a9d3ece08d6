"""A verdict for people and for programs."""
from __future__ import annotations

from typing import Any, Dict, List, Union

from ._judge import Supposed, Verdict
from .erc import Certificates

VERSION = 1  # of the JSON
COARSE = ("TF32", "bf16")  # coarser than the formats of most dumps


def _clause(one: Supposed, verdict: Verdict) -> str:
    words = [fault.sentence + (f" ({value:g})" if value is not None else "")
             for fault, value in (*one.inside, *((fault, None) for fault in one.outside))]
    if verdict.factor is not None:
        words.append(f"loss and gradients are multiplied by {verdict.factor:.6g}")
    return "; ".join(words) or "right"


def _others(verdict: Verdict) -> str:
    return ", ".join(kind.name for kind in verdict.others)


def sentence(verdict: Union[Verdict, Certificates]) -> str:
    """The verdict in one line."""
    if isinstance(verdict, Certificates):
        return verdict.sentence()
    kind = verdict.kind.name
    rounding = f", within the rounding of {verdict.grade}" if verdict.grade in COARSE else ""
    if verdict.state == "right":
        also = f"; these inputs do not tell it from {_others(verdict)}" if verdict.others else ""
        return f"right as {kind}{rounding}{also}"
    if verdict.state == "other":
        told = " | ".join(_clause(one, verdict) for one in verdict.sets)
        told = f": as {kind}, {'one of: ' if len(verdict.sets) > 1 else ''}{told}" if told else ""
        return f"right as {_others(verdict)}{rounding}, not {kind}{told}"
    if verdict.state == "unclear":
        off = max((one for figures in verdict.figures.values() for one in figures),
                  key=lambda one: one.distance / max(abs(one.expected), 1e-300))
        return (f"cannot be told: {off.name} lies off by {off.distance / max(abs(off.expected), 1e-300):.0%} of its size; rounding in "
                f"{verdict.grade} may do that on these inputs; take fewer tokens, or logits that are less balanced")
    if verdict.state == "unknown":
        return f"not right as {kind}, in a way that is not listed; the first numbers that differ: {'; '.join(verdict.first)}"
    if len(verdict.sets) > 1:
        several = " | ".join(_clause(one, verdict) for one in verdict.sets)
        return f"wrong as {kind}; these inputs do not tell apart: {several}"
    return f"wrong as {kind}: {_clause(verdict.sets[0], verdict)}"


def details(verdict: Union[Verdict, Certificates]) -> List[str]:
    """How it is mended, what was measured, and what these inputs cannot show."""
    if isinstance(verdict, Certificates):
        return verdict.details()
    lines = []
    for fault in {fault.key: fault for one in verdict.sets for fault in one.faults}.values():
        if verdict.state != "unknown":
            lines.append(f"{fault.key}: {fault.remedy}" + (f" (seen in {fault.seen})" if fault.seen else ""))
    for name, figures in verdict.figures.items():
        for one in figures:
            lines.append(f"{name}: {one.name} {one.got:.6g}, right {one.expected:.6g}, distance {one.distance:.2g}, "
                         f"rounding {one.bound:.2g} ({verdict.grade})")
    if verdict.untold:
        lines.append("these inputs cannot show: " + ", ".join(fault.key for fault in verdict.untold))
    return lines


def as_json(verdict: Union[Verdict, Certificates]) -> Dict[str, Any]:
    if isinstance(verdict, Certificates):
        return verdict.as_json()
    return {"version": VERSION, "kind": verdict.kind.name, "verdict": verdict.state, "sentence": sentence(verdict),
            "faults": [[{"key": fault.key, "value": value, "sentence": fault.sentence, "remedy": fault.remedy}
                        for fault, value in (*one.inside, *((fault, None) for fault in one.outside))]
                       for one in verdict.sets if one.faults],
            "right_as": [kind.name for kind in verdict.others], "factor": verdict.factor, "rounding": verdict.grade,
            "cannot_show": [fault.key for fault in verdict.untold], "first": verdict.first,
            "figures": {name: [vars(one) for one in figures] for name, figures in verdict.figures.items()}}
