"""A certificate for people and for programs (docs/certify.md, docs/formats.md)."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List

from .faults import FAULTS, Faults
from .judge import Certificate

TIES = {
    "strict": "they give no gradient here (PyTorch's clamp since 2.15), the reference lets it pass",
    "half": "they give half of the gradient here, the reference all of it",
    "other": "some give their gradient here and some do not, the reference lets all pass",
}
NEARLY = "right only within what rounding to bf16 does, and the dump is in float32: --rounding bf16 lets that pass"


def ordered(faults: Faults) -> List[str]:
    return [key for key in FAULTS if key in faults]


def clause(c: Certificate, faults: Faults) -> str:
    return "; ".join(FAULTS[key][0] + (f", {c.factor:.6g}" if key == "factor" else "") for key in ordered(faults))


def sentence(c: Certificate) -> str:
    """The verdict in one line."""
    if c.verdict == "right":
        return (
            f"right: loss{', M' if c.dump.M is not None else ''} and gradients are those of the coupling loss"
            f"{', within what rounding to bf16 does' if c.rounded else ''}"
        )
    if c.verdict == "fault":
        return f"not right: {clause(c, c.faults)}"
    return "not right: " + (NEARLY if c.nearly else "no known fault and no pair of them explains it")


def _table(c: Certificate) -> Iterator[str]:
    right = c.verdict == "right"
    yield f"{'':6}{'right':>13}{'dump':>13}{'distance':>11}" + ("" if right else f"{'from the faults':>18}")
    for name, one in c.figures.items():
        got = f"{one.got:.6g}" if one.given else "absent: 0"
        yield f"{name:6}{one.expected:>13.6g}{got:>13}{one.distance:>11.1e}" + (
            "" if right else f"{one.fault_distance:>18.1e}"
        )
    yield "loss: value; others: norm. Distance: norm(dump - right) / norm(right)."


def _fault(c: Certificate) -> Iterator[str]:
    for key in ordered(c.faults):
        yield f"fault {key}: {clause(c, frozenset({key}))}."
        yield f"  To fix it: {FAULTS[key][1]}."
    name, worst = max(c.figures.items(), key=lambda one: one[1].distance)
    yield (
        f"Measured: the distance of {name} is {worst.distance:.1e} from the right one and {worst.fault_distance:.1e} from "
        f"what {'these faults give' if len(c.faults) > 1 else 'this fault gives'}."
    )
    for one in c.alternatives:
        yield f"The same numbers come from: {clause(c, one)}."


def _untold(c: Certificate) -> Iterator[str]:
    if c.untold:
        yield "This dump would not show:"
    for reason in dict.fromkeys(c.untold.values()):
        yield f"  {', '.join(key for key, why in c.untold.items() if why == reason)}: {reason}"
    if c.untold and c.active == 0:
        yield "  Use inputs with active hinges, such as new random weights."


def details(c: Certificate) -> List[str]:
    """Inputs, a table of what was measured, how it is mended, and what the dump cannot show."""
    x = c.dump
    lines = [
        f"n {x.n}, d {x.d}, D {x.D}, alpha {x.alpha:g}, weight {x.weight:g}, layers {x.layers:g}, "
        f"{'without' if x.delta is None else 'with'} noise; {c.active} of {2 * x.n * (x.n - 1)} hinges active",
        *_table(c),
    ]
    if c.verdict == "fault":
        lines += _fault(c)
    if c.verdict == "unknown":
        lines.append(f"Nearest: {clause(c, c.faults) or 'the right loss itself'}; the last column is its distance.")
    if c.ties in TIES:
        lines.append(
            f"Ties: {c.n_ties} hinges are exactly at their bound; {TIES[c.ties]}. That is a convention, no fault."
        )
    return [*lines, *_untold(c)]


def _number(value: float) -> Any:
    return float(f"{value:.9g}") if math.isfinite(value) else None


def as_json(c: Certificate, path: str) -> Dict[str, Any]:
    x, words = c.dump, [(key, *FAULTS[key]) for key in ordered(c.faults)]
    return {
        "dump": path,
        "n": x.n,
        "d": x.d,
        "D": x.D,
        "alpha": _number(x.alpha),
        "weight": _number(x.weight),
        "layers": _number(x.layers),
        "noise": x.delta is not None,
        "active": c.active,
        "verdict": c.verdict,
        "faults": [{"key": key, "sentence": sentence_, "remedy": remedy} for key, sentence_, remedy in words],
        "alternatives": [ordered(one) for one in c.alternatives],
        "factor": _number(c.factor),
        "rounding": "bf16" if c.rounded else "f32",
        "ties": c.ties,
        "n_ties": c.n_ties,
        "figures": {
            name: {
                "given": one.given,
                "expected": _number(one.expected),
                "got": _number(one.got),
                "distance": _number(one.distance),
                "fault_distance": _number(one.fault_distance),
            }
            for name, one in c.figures.items()
        },
        "untold": [{"key": key, "reason": reason} for key, reason in c.untold.items()],
    }
