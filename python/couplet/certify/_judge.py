"""Whether outputs are right, or the smallest set of known faults that explains them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Optional, Sequence

from ._evaluate import distance, outputs
from ._fits import RIGHT, Dump, Figure, Judge, Supposed
from ._import import CannotJudge
from ._kind import Case, Fault, Kind
from .kinds import KINDS

SAME = 1e-9  # of an output: so near are two references that are one on some inputs
ROUNDINGS = (None, "f32", "bf16", "exact")  # of judge


@dataclass
class Verdict:
    kind: Kind
    state: str  # "right", "other", "fault", "unknown", or "unclear": rounding moves the right one as far
    sets: List[Supposed] = field(default_factory=list)  # those that explain the dumps
    others: List[Kind] = field(default_factory=list)  # as which it is right, or right too
    factor: Optional[float] = None  # of everything, where no named fault is one
    grade: str = ""  # the rounding within which it holds
    untold: List[Fault] = field(default_factory=list)  # faults that these dumps would not show
    figures: Dict[str, List[Figure]] = field(default_factory=dict)  # of each dump, against the right one
    first: List[str] = field(default_factory=list)  # the first numbers that differ
    note: str = ""  # of what is not known

    @property
    def exit_code(self) -> int:
        return {"right": 0, "unclear": 2}.get(self.state, 1)


def relatives(kind: Kind, dumps: Sequence[Dump]) -> List[Kind]:
    """Other kinds that the same dumps can be of."""
    return [
        other
        for other in KINDS.values()
        if other.name != kind.name
        and other.outputs == kind.outputs
        and other.gradients == kind.gradients
        and all(getattr(dump.x, name) is not None for dump in dumps for name in other.needs)
    ]


def is_right(kind: Kind, dumps: Sequence[Dump], rounding: Optional[str] = None) -> bool:
    own = Judge(kind, dumps, rounding=rounding)
    return any(
        own.fits(RIGHT, unit) or any(is_same(own, other) for other in as_others(own, unit)) for unit, _ in own.units()
    )


def as_others(own: Judge, unit: float) -> List[Kind]:
    """The other kinds as which the dumps are right."""
    return [other for other in relatives(own.kind, own.dumps) if Judge(other, own.dumps, own.cases).fits(RIGHT, unit)]


def is_same(own: Judge, other: Kind) -> bool:
    """Whether the two references give the same numbers for all dumps, as those of one layer do that differ in layers."""

    def away(x: Case) -> float:
        one, two = outputs(own.kind, x, {}), outputs(other, x, {})
        return max(distance(one[name], two[name]) / max(float(one[name].norm()), 1e-300) for name in one)

    return all(away(own.room(k, min(own.formats()))[0]) < SAME for k in range(len(own.dumps)))


def judge(kind: Kind, dumps: Sequence[Dump], rounding: Optional[str] = None) -> Verdict:
    """The first that explains all dumps. In the dumps' own formats: the kind, another kind, or one fault; two faults, a
    factor, or a factor and a fault. In coarser ones: the kind, another, one fault, or a factor. `rounding`: that of
    float32 alone, "exact", with TF32, "f32", or "bf16"; None: bf16 where a number of a dump has 16 bits, else "f32"."""
    if not dumps or rounding not in ROUNDINGS:
        raise CannotJudge(
            f"rounding is {rounding!r:.40}, must be one of {', '.join(map(str, ROUNDINGS))}"
            if dumps
            else "there is no dump to judge"
        )
    own = Judge(kind, dumps, rounding=rounding)
    finer = [one for one in own.units() if one[0] <= max(own.formats())]
    coarser = [one for one in own.units() if one[0] > max(own.formats())]
    steps = [
        *((_one_fault, one) for one in finer[:1]),
        *((_two_scales, one) for one in finer[:1]),
        *((_one_fault, one) for one in finer[1:]),
        *((_two_faults, one) for one in finer if one[0] in own.formats()),
        *((step, one) for one in coarser for step in (_one_fault, _factor)),
    ]
    for step, (unit, grade) in steps:
        most = finer[-1][0] if step is _two_scales else unit
        if step is not _one_fault and most > min(own.formats()) and own.fits_at_all(most):
            continue  # rounding may do as much
        verdict = step(own, unit)
        if verdict:
            verdict.grade, verdict.figures = grade, own.figures(unit)
            return verdict
    for unit, grade in own.units(of_any=True):
        if own.fits_at_all(unit):
            return Verdict(kind, "unclear", [RIGHT], grade=grade, figures=own.figures(unit))
    unit, grade = own.units()[0]
    return Verdict(kind, "unknown", grade=grade, figures=own.figures(unit), first=first_numbers(own, unit))


def _one_fault(own: Judge, unit: float) -> Optional[Verdict]:
    """Or none."""
    others = as_others(own, unit)
    is_the_kind = own.fits(RIGHT, unit) or any(is_same(own, other) for other in others)
    one = own.fitting(1, unit)
    if any(map(own.is_partial, one)) and own.factor(RIGHT, unit):  # which explains all tokens
        one = [each for each in one if not own.is_partial(each)]
    if is_the_kind:
        return Verdict(own.kind, "right", [RIGHT], others, untold=[fault for each in one for fault in each.faults])
    return Verdict(own.kind, "other" if others else "fault", one, others) if others or one else None


def _two_faults(own: Judge, unit: float) -> Optional[Verdict]:
    """One of which may be a factor. If one factor of everything explains the dumps, it may be of two scales."""
    c = own.factor(RIGHT, unit)
    if c:
        two = [
            one
            for one in own.sets(2)
            if one.outside and own.is_multiple(one, c, unit) and own.fits(one, unit) and not own.is_partial(one)
        ]
        return Verdict(own.kind, "fault", two) if two else Verdict(own.kind, "fault", [RIGHT], factor=c)
    two = own.fitting(2, unit)
    return Verdict(own.kind, "fault", two) if two else _factor(own, unit, (RIGHT, *own.sets(1)))


def _two_scales(own: Judge, unit: float) -> Optional[Verdict]:
    """Each multiplies loss or gradients by a number: in the finest format they come before one fault in a coarser one."""
    two = [one for one in own.sets(2) if not one.inside and own.fits(one, unit)]
    return Verdict(own.kind, "fault", two) if two else None


def _factor(own: Judge, unit: float, sets: Iterable[Supposed] = (RIGHT,)) -> Optional[Verdict]:
    for supposed in sets:
        c = own.factor(supposed, unit) if own.is_no_factor(supposed) else None
        if c:
            return Verdict(own.kind, "fault", [supposed], factor=c)
    return None


def first_numbers(own: Judge, unit: float, most: int = 3) -> List[str]:
    """The first that differ from the right ones by more than rounding, as text."""
    found = []
    for k, dump in enumerate(own.dumps):
        limits = own.bounds(k, RIGHT, unit).limits()
        for name, right in own.expected(k, RIGHT, unit)[1].items():
            if name not in dump.got:
                continue
            wrong = ((dump.got[name].double() - right).abs() > limits[name]).nonzero().tolist()
            found += [
                f"{dump.name}: {name}{index or ''} is {float(dump.got[name][tuple(index)]):.6g}, must be "
                f"{float(right[tuple(index)]):.6g}"
                for index in wrong[:1]
            ]
    return found[:most]
