"""How far a set of faults is from a dump and how far it may be, and the smallest set that explains it.

What rounding does to a sum of vectors does not shrink where they cancel. So beside a share of the gradient's norm four
times the rounding of its terms passes, taken as independent.

All sets are held against the dump as if it had been computed in f32. Where none explains it, again with what products in
bf16 would do to it, and then with everything in bf16. That lets small faults pass too, so there a larger set takes the
place of a smaller one that fits, where it fits so much better that rounding cannot be the reason: see beats()."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from .._import import CannotJudge
from .dump import ErcDump
from .faults import FAULTS, INNER, Faults, can_stand_together, is_worth_trying, why_idle
from .fit import fit
from .hypothesis import AUTOCAST, BF16, F32, Grade, Hypothesis, Terms
from .tables import AllTables

NOTHING = 1e-3  # where no hinge shows there may be a few numbers in the dump that are small beside one
SHOWN, BETTER = 8e-3, 3.0  # a difference that rounding to bf16 does not make, and by how much the better must be better
MOST_ALTERNATIVES = 8
KNOWN = [key for key in FAULTS if key != "factor"]
RIGHT: Faults = frozenset()


@dataclass
class Figure:
    """One of the things an implementation gives. Distances are norm(got - expected) / norm(expected): 0 where both are
    zero, infinite where only the expected one is. `expected`, `got`: of the loss the values, of others the norms."""

    given: bool  # it is in the dump; a gradient that is not counts as zero
    expected: float
    got: float
    distance: float
    fault_distance: float  # from that of the faults


@dataclass
class Certificate:
    dump: ErcDump
    verdict: str = "unknown"  # right, fault, unknown: then `faults` are the nearest
    faults: Faults = RIGHT
    alternatives: List[Faults] = field(default_factory=list)  # sets as small that explain it too
    factor: float = 1.0  # where "factor" is among the faults
    rounded: bool = False  # only within what rounding to bf16 does
    nearly: bool = False  # unknown, but right within that
    ties: str = (
        "none"  # how M[i,j] that is exactly its bound is treated: none, pass (the reference's), strict, half, other
    )
    n_ties: int = 0
    active: int = 0  # hinges that are, of the 2 n (n - 1)
    figures: Dict[str, Figure] = field(default_factory=dict)  # loss, M, dR, dW_g, dW_p
    untold: Dict[str, str] = field(default_factory=dict)  # faults that this dump would not show, and why not

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == "right" else 1


@dataclass
class Measured:
    """Squares of one gradient: its distance, what is expected, what the dump has, the product of both; the distance that
    may be."""

    away: float
    size: float
    got: float
    product: float
    passes: float = 0.0

    def relative(self) -> float:
        return self.away / max(self.size, self.got) if max(self.size, self.got) > 0 else 0.0

    def off(self) -> float:
        return over(math.sqrt(self.away), self.passes)


@dataclass
class Judged:
    """What a set of faults comes to: `off` the worst distance over what would pass, `rho` the distance of both gradients
    over their norms, `scale` the number that fits the gradients best, `shown` the largest relative distance."""

    faults: Faults
    off: float = 0.0
    measured: bool = False  # the gradients too, not only loss and M
    rho: float = 0.0
    scale: float = 1.0
    shown: float = 0.0
    factor: float = 1.0
    ties: Tuple[str, int] = ("none", 0)
    hypothesis: Optional[Hypothesis] = None

    @property
    def fits(self) -> bool:
        return self.measured and self.off <= 1


def over(away: float, passes: float) -> float:
    return 0.0 if away == 0 else away / passes if passes else math.inf


def beats(b: Judged, a: Judged) -> bool:
    """Whether `b` explains what `a` leaves over. A wrong number before everything shows in the number that fits best, in
    which rounding averages out."""
    gap = math.sqrt(max(0.0, a.rho**2 - b.rho**2))
    if gap >= SHOWN and a.rho >= BETTER * b.rho:
        return True
    if not (a.scale > 0 and b.scale > 0 and b.rho < a.rho):
        return False
    left, was = abs(math.log(b.scale)), abs(math.log(a.scale))
    return was >= SHOWN and left < was / BETTER and gap >= SHOWN


class Judge:
    def __init__(self, dump: ErcDump):
        need = 8 * dump.n**2 * (dump.d + dump.n + 8)
        if need > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise CannotJudge(f"judging {dump.n} experts of width {dump.d} needs {need / 2**30:.0f} GB of memory")
        self.dump, self.tables = dump, AllTables(dump)
        self.known: Dict[Tuple[Faults, Grade], Terms] = {}
        self.grade = F32

    # ---- one set ----

    def terms(self, faults: Faults) -> Terms:
        key = faults & INNER, self.grade
        if key not in self.known:
            self.known[key] = Terms(self.tables.of(faults), *key)
        return self.known[key]

    def loss_off(self, h: Hypothesis) -> float:
        size = abs(h.u) * float(h.terms.F.max())  # that hinges have at most
        return over(abs(self.dump.loss - h.loss), self.grade.values * (abs(h.loss) + NOTHING * size) + 4 * h.noise)

    def judge(self, faults: Faults, all_: bool = False) -> Judged:
        """Holds a set against the dump. Where loss or M already show that it is not, gradients are left out unless
        `all_`."""
        out = Judged(faults)
        h = out.hypothesis = Hypothesis(self.terms(faults), faults)
        by_factor = "factor" in faults
        out.off = max(h.terms.M_off, 0.0 if by_factor else self.loss_off(h))
        if out.off <= 1 or all_:
            h.t.fill()
            h.begin()
            self.judge_gradients(h, out)
            if by_factor:
                out.off = max(out.off, self.loss_off(h))
        most = max(abs(h.loss), abs(self.dump.loss))
        out.shown = max(out.shown, h.terms.M_away, abs(self.dump.loss - h.loss) / most if most > 0 else 0.0)
        return out

    def fits_at(self, grade: Grade) -> bool:
        """Whether the right one fits."""
        self.grade = grade
        return self.judge(RIGHT).fits

    def judge_gradients(self, h: Hypothesis, out: Judged) -> None:
        if "factor" in h.faults:
            out.factor = self.take_factor(h)
        curve = fit(h)
        experts, router = self.of_experts(h), self.of_router(h)
        self.let_pass(h, experts, router)
        out.off = max(out.off, experts.off(), router.off())
        out.rho = math.sqrt((experts.relative() + router.relative()) / 2)
        out.scale = fitted_scale(experts, router)
        out.shown = math.sqrt(max(experts.relative(), router.relative()))
        out.measured, out.ties = True, ties_of(h, curve)

    def of_experts(self, h: Hypothesis) -> Measured:
        if "experts_detached" in h.faults:
            return Measured(h.t.got_square, 0.0, h.t.got_square, 0.0)
        size = float(((h.t.gram @ h.c[:, :, None])[:, :, 0] * h.c).sum())
        product = float((h.c * h.t.got).sum())
        return Measured(max(0.0, size - 2 * product + h.t.got_square), size, h.t.got_square, product)

    def of_router(self, h: Hypothesis) -> Measured:
        dR, got = h.dR(), self.dump.given_dR
        return Measured(
            *(
                float(one)
                for one in ((dR - got).square().sum(), dR.square().sum(), got.square().sum(), (dR * got).sum())
            )
        )

    def let_pass(self, h: Hypothesis, experts: Measured, router: Measured) -> None:
        """The distances that the rounding of terms makes."""
        grade, least, t = self.grade, min(self.dump.D, self.dump.d), h.t
        error = h.c * grade.unit * t.error
        nothing = grade.gradients * NOTHING * abs(h.u)
        for one, noise, width in (
            (experts, error * t.x_norm, t.x_norm),
            (router, error * t.w_norm[:, None] / least**0.5, t.w_norm / least**0.5),
        ):
            one.passes = (
                grade.gradients * math.sqrt(max(0.0, one.size))
                + 4 * math.sqrt(2) * float(noise.norm())
                + nothing * float(width.norm()) / self.dump.n**0.5
            )

    def take_factor(self, h: Hypothesis) -> float:
        """The number of "factor". Hinges at their bound add nothing to the loss, so where there are some it is the loss
        that the fit of their shares begins with."""
        by_loss, factor = self.dump.loss / h.loss if h.loss else 0.0, 1.0
        if len(h.hinges.i) and by_loss:
            h.multiply(by_loss)
            factor = by_loss
            fit(h)
        fitted = fitted_scale(self.of_experts(h), self.of_router(h))
        h.multiply(fitted)
        return factor * fitted

    # ---- sets ----

    def sets(self, size: int) -> Iterator[Faults]:
        return (
            frozenset(one) for one in itertools.combinations(KNOWN, size) if is_worth_trying(self.dump, frozenset(one))
        )

    def fitting(self, sets: Iterator[Faults]) -> List[Judged]:
        judged = (self.judge(one) for one in sets)
        return [one for one in judged if one.fits and not ("factor" in one.faults and one.factor == 0)]

    def with_factor(self) -> List[Judged]:
        """A number that nothing explains, alone or beside one fault."""
        for size in (0, 1):
            sets = (one | {"factor"} for one in self.sets(size))
            found = self.fitting(one for one in sets if is_worth_trying(self.dump, one))
            if found:
                return found
        return []

    def at_grade(self) -> List[Judged]:
        found: List[Judged] = []
        for size in (0, 1, 2):
            if self.grade.rounded or not found:
                found += self.fitting(self.sets(size))
        return found

    def search(self, rounded: bool) -> List[Judged]:
        """Grade by grade until something fits. A number that nothing explains could be rounding, so that comes after all
        that is known."""
        coarse = (AUTOCAST, BF16) if rounded else ()
        steps = [
            (F32, self.at_grade),
            (F32, self.with_factor),
            *((grade, self.at_grade) for grade in coarse),
            *((grade, self.with_factor) for grade in coarse),
        ]
        for self.grade, step in steps:
            found = step()
            if found:
                return found
        return []


def fitted_scale(*both: Measured) -> float:
    """The number that c must be multiplied with to come nearest."""
    product = sum(one.product / one.got for one in both if one.got > 0)
    size = sum(one.size / one.got for one in both if one.got > 0)
    return product / size if size > 0 else 0.0


def ties_of(h: Hypothesis, curve: Tensor) -> Tuple[str, int]:
    """How hinges exactly at their bound are treated, from their shares."""
    share = h.hinges.share[h.hinges.exact & (curve > 0)] if len(curve) else curve
    if not len(share):
        return "none", 0
    for name, at in (("pass", 1.0), ("strict", 0.0), ("half", 0.5)):
        if bool(((share - at).abs() < 0.02).all()):
            return name, len(share)
    return "other", len(share)


def chosen(found: List[Judged], larger_too: bool) -> Judged:
    """The best of those of the smallest size; then larger ones that beat it."""
    best = found[0]
    for one in found[1:]:
        more = len(one.faults) - len(best.faults)
        if more == 0 and one.off < best.off or more > 0 and larger_too and beats(one, best):
            best = one
    return best


def is_as_good(one: Judged, best: Judged, rounded: bool) -> bool:
    """As small and as near; near to the tolerance is not."""
    if one.faults == best.faults or len(one.faults) != len(best.faults):
        return False
    return not beats(best, one) if rounded else one.off <= max(0.1, 10 * best.off)


def find_untold(judge: Judge, best: Judged, rounded: bool) -> Dict[str, str]:
    found = {}
    for fault in KNOWN:
        if fault in best.faults:
            continue
        reason, more = why_idle(judge.dump, fault, best.faults), best.faults | {fault}
        if not reason and can_stand_together(more):
            judged = judge.judge(more)
            if judged.fits and not (rounded and beats(best, judged)):
                assert judged.hypothesis
                reason = (
                    "no hinge is active: there is no gradient to look at"
                    if judged.hypothesis.active == 0
                    else "it gives the same numbers here, but for rounding"
                )
        if reason:
            found[fault] = reason
    return found


def fill_figures(judge: Judge, out: Certificate, faults: Faults) -> None:
    """The distances of everything from what `faults` give, each number computed by itself; with none they are those of
    the right ones."""
    dump, h = judge.dump, judge.judge(faults, all_=True).hypothesis
    assert h
    dR = h.dR()
    measured = {"loss": (abs(h.loss), abs(dump.loss - h.loss))}
    if dump.M is not None:
        measured["M"] = float(h.terms.F.norm()), float((h.terms.given_M() - h.terms.F).norm())
    measured["dR"] = float(dR.norm()), float((dR - dump.given_dR).norm())
    c = torch.zeros_like(h.c) if "experts_detached" in faults else h.c
    measured.update(
        {name: pair for name, pair, W in zip(("dW_g", "dW_p"), h.t.confirm(c), dump.weights) if W is not None}
    )
    for name, (size, away) in measured.items():
        distance = over(away, size)
        if not faults:
            out.figures[name] = Figure(*given(dump, name), distance, distance)
            out.figures[name].expected = h.loss if name == "loss" else size
        out.figures[name].fault_distance = distance
    if not faults:
        out.active = h.active


def given(dump: ErcDump, name: str) -> Tuple[bool, float, float]:
    """Whether it is in the dump; a place for the expected one; the loss, or the norm."""
    if name == "loss":
        return True, 0.0, dump.loss
    value = {"M": dump.M, "dR": dump.dR, "dW_g": dump.grads[0], "dW_p": dump.grads[1]}[name]
    return value is not None, 0.0, 0.0 if value is None else float(torch.linalg.vector_norm(value, dtype=torch.float64))


def certify(dump: ErcDump, rounded: Optional[bool] = None) -> Certificate:
    """The certificate of a dump. `rounded`: whether what rounding to bf16 does is let pass; None: where a tensor of the
    dump is of 16 bits."""
    judge, out = Judge(dump), Certificate(dump)
    found = judge.search(dump.short if rounded is None else rounded)
    grade = judge.grade
    if found:
        best = chosen(found, grade.rounded)
        out.verdict, out.faults = "fault" if best.faults else "right", best.faults
        out.factor, out.rounded, (out.ties, out.n_ties) = best.factor, grade.rounded, best.ties
        out.alternatives = [one.faults for one in found if is_as_good(one, best, grade.rounded)][:MOST_ALTERNATIVES]
        out.untold = find_untold(judge, best, grade.rounded)
    else:
        out.rounded = grade.rounded
        out.nearly = not grade.rounded and any(judge.fits_at(one) for one in (AUTOCAST, BF16))
        judge.grade = grade
        nearby = (one for one in (*judge.sets(0), *judge.sets(1)) if "zero" not in one)
        out.faults = min(nearby, key=lambda one: judge.judge(one, all_=True).shown)
    fill_figures(judge, out, RIGHT)
    if out.faults:
        fill_figures(judge, out, out.faults)
    return out
