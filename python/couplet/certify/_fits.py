"""Dumps, held against hypotheses: the right outputs, and those under sets of known faults."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from ._evaluate import TF32, UNIT, Bounds, distance, outputs, scaled
from ._kind import Case, Fault, Has, Kind, Outputs
from ._scale import scale_faults
from ._ties import by_factor, fitted, least_away, room, ties
from .kinds._balance import Sums, part

# Hypotheses that are further away are not looked at closely: shares of the norm, of the loss where experts tie, and
# multiples of the bound of the right one.
NEAR, NEAR_TIED, FAR = 0.05, 0.3, 10000.0
UNEXPLAINED = 0.02  # of the gradients: what a fit that is not finished leaves, beside any factor
TINY = 1000.0  # bounds of the right one: what is smaller may be rounding
CLEAR = 0.25  # of an output's norm: what lies further away is not explained by the rounding of the dump's own formats
CLEAR_TF32, CLEAR_BF16 = 0.02, 0.05  # nor by coarser ones
MULTIPLE = 1e-3  # of a loss: to this a factor is known where experts tie
ZERO = 1e-5  # of the right output: what is left of one that is zero but for rounding
FEW = 8  # tokens: fewer say nothing of a fault that depends on which expert is picked
MANY, EVERY = 1 << 16, 16  # of so many logits, every so-manyth token is looked at first


@dataclass(frozen=True)
class Dump:
    """What an implementation was given and gave. `got`: an output that is absent was not given: nothing is known of a
    loss, a gradient is None and counts as zero. `noise`: how far an output may lie off for reasons of its own, as where
    it is a difference of larger numbers. `units`: the smallest and the largest rounding error that are tried."""

    name: str
    x: Case
    got: Outputs
    noise: Dict[str, float] = field(default_factory=dict)
    units: Tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Supposed:
    """Faults of a hypothesis: those inside the reference with the values of their parameters, and those that scale; a
    number that has no name."""

    inside: Tuple[Tuple[Fault, Optional[float]], ...] = ()
    outside: Tuple[Fault, ...] = ()
    times: float = 1.0

    @property
    def faults(self) -> Tuple[Fault, ...]:
        return (*(fault for fault, _ in self.inside), *self.outside)

    def given(self) -> Dict[str, Optional[float]]:
        return {fault.key: value for fault, value in self.inside}

    def factors(self, x: Case) -> Tuple[float, float]:
        pairs = [fault.scale(x) for fault in self.outside if fault.scale and not fault.is_idle(x)]
        return self.times * math.prod(a for a, _ in pairs), self.times * math.prod(b for _, b in pairs)


@dataclass
class Figure:
    """One output: norms of the right one and of the one given (a loss: values), their distance, and the bound."""

    name: str
    expected: float
    got: float
    distance: float
    bound: float


class Judge:
    """The dumps of one implementation, held against hypotheses; what was computed is kept."""

    def __init__(
        self,
        kind: Kind,
        dumps: Sequence[Dump],
        cases: Optional[Dict[Tuple[int, float], Case]] = None,
        rounding: Optional[str] = None,
    ):
        self.kind, self.dumps, self.rounding = kind, dumps, rounding
        self.sizes = [{name: float(value.double().norm()) for name, value in dump.got.items()} for dump in dumps]
        self.cases = {} if cases is None else cases  # inputs in float64, of a dump and a unit; kinds share them
        self.is_lenient = False  # the right one may lie off by as much as rounding allows, however much that is
        self.is_other = cases is not None  # a kind that is looked at beside the one that is asked for
        self.known: Dict[Tuple[Any, ...], Tuple[Case, Outputs]] = {}
        self.known_bounds: Dict[Tuple[Any, ...], Bounds] = {}
        self.known_loss: Dict[Tuple[Any, ...], float] = {}
        self.known_sums: Dict[Tuple[Any, ...], Sums] = {}
        self.known_part: Dict[Tuple[int, float], Tuple[Case, Outputs]] = {}
        self.known_untied: Dict[Tuple[int, float], Optional[Judge]] = {}
        self.known_room: Dict[Tuple[int, float], Tuple[Case, Optional[Tuple[Tensor, Tensor]]]] = {}

    # ---- one hypothesis ----

    def room(self, k: int, unit: float) -> Tuple[Case, Optional[Tuple[Tensor, Tensor]]]:
        """Dump k's inputs with scores within a few rounding errors taken for ties, and how far counts may move."""
        if (k, unit) not in self.known_room:
            if (k, unit) not in self.cases:
                x = self.dumps[k].x.to(torch.float64).but(memo={})
                if x.logits is not None and x.top_k:
                    x = x.but(tolerance=8 * unit * float(x.logits.abs().max()))
                self.cases[k, unit] = x
            x = self.cases[k, unit]
            groups = self.groups(x)
            found = x.once(("room", groups), lambda: room(x, groups)) if "loss" in self.kind.outputs else None
            self.known_room[k, unit] = x, found
        return self.known_room[k, unit]

    def groups(self, x: Case) -> int:
        return (x.sequences if "deepseek" in self.kind.name else x.micro_batches) or 1

    def key(self, k: int, supposed: Supposed, unit: float) -> Tuple[Any, ...]:
        """With the scales and the rounding if something ties, since the fit depends on them then."""
        tied = self.room(k, unit)[1] is not None
        return (k, self.there(k, supposed), (unit, *supposed.factors(self.dumps[k].x)) if tied else None)

    def there(self, k: int, supposed: Supposed) -> Tuple[Tuple[str, Optional[float]], ...]:
        """The faults inside that change anything on dump k."""
        x = self.dumps[k].x
        return tuple(
            (fault.key, value)
            for fault, value in supposed.inside
            if not fault.is_idle(x) and not (fault.same and fault.same(x))
        )

    def expected(self, k: int, supposed: Supposed, unit: float) -> Tuple[Case, Outputs]:
        """Of dump k, before the scales; ties are broken as the dump broke them."""
        key = self.key(k, supposed, unit)
        if key not in self.known:
            x, limits = self.room(k, unit)
            if limits:
                x = x.but(shift=fitted(self.kind, x, supposed.given(), self.before_scales(k, supposed), *limits, unit))
            self.known[key] = x, outputs(self.kind, x, supposed.given())
        return self.known[key]

    def before_scales(self, k: int, supposed: Supposed) -> Outputs:
        """What was given, as it would be without the scales; without what a scale sets to 0."""
        factors = supposed.factors(self.dumps[k].x)
        return {
            name: value / factors[name.startswith("d_")]
            for name, value in self.dumps[k].got.items()
            if factors[name.startswith("d_")]
        }

    def bounds(self, k: int, supposed: Supposed, unit: float) -> Bounds:
        """Of each output, before the scales."""
        key = unit, self.key(k, supposed, unit)
        if key not in self.known_bounds:
            x, right = self.expected(k, supposed, unit)
            self.known_bounds[key] = self.new_bounds(k, x, supposed, right, unit)
        return self.known_bounds[key]

    def new_bounds(self, k: int, x: Case, supposed: Supposed, right: Outputs, unit: float) -> Bounds:
        stored = {name: value.dtype for name, value in self.dumps[k].got.items()}
        return Bounds(self.kind, x, supposed.given(), right, unit, stored)

    def fits(self, supposed: Supposed, unit: float) -> bool:
        """Held against all dumps; where the fault picks and experts tie, against the tokens where none do."""
        held: List[Tuple[int, Judge, int]] = []
        for k in range(len(self.dumps)):
            if any(fault.picks for fault in supposed.faults) and self.room(k, unit)[1]:
                untied = self.untied(k, unit)
                held += [(k, untied, 0)] if untied else []
            else:
                held.append((k, self, k))
        return bool(held) and all(
            (own is self or self.loss_is_near(k, supposed, unit, supposed.factors(self.dumps[k].x)[0]))
            and own.fits_one(of, supposed, unit)
            for k, own, of in held
        )

    def is_partial(self, supposed: Supposed) -> bool:
        """Whether it is held against a part of the tokens alone."""
        return any(fault.picks for fault in supposed.faults) and any(
            one is not None for one in self.known_untied.values()
        )

    def fits_at_all(self, unit: float) -> bool:
        """Whether the right one lies within rounding, however much that is of it."""
        self.is_lenient = True
        found = self.fits(RIGHT, unit)
        self.is_lenient = False
        return found

    def untied(self, k: int, unit: float) -> Optional[Judge]:
        """Of dump k, the gradients of tokens none of whose experts tie; None: there are few, or rounding is coarse, so
        that most of them may tie."""
        if (k, unit) not in self.known_untied:
            dump, x = self.dumps[k], self.room(k, unit)[0]
            held = ~ties(x).any(-1, keepdim=True)
            enough = "d_logits" in dump.got and int(held.sum()) >= FEW and unit <= UNIT[torch.float32]
            self.known_untied[k, unit] = (
                Judge(
                    self.kind, [replace(dump, x=dump.x.but(held=held), got={"d_logits": dump.got["d_logits"] * held})]
                )
                if enough
                else None
            )
        return self.known_untied[k, unit]

    def fits_one(self, k: int, supposed: Supposed, unit: float) -> bool:
        got, factors = self.dumps[k].got, supposed.factors(self.dumps[k].x)
        looked_at = supposed != RIGHT  # quick looks end most hypotheses, and are for these alone
        if looked_at and not (
            self.loss_is_near(k, supposed, unit, factors[0]) and self.may_be_near(k, supposed, unit, factors)
        ):
            return False
        if self.is_other and self.is_hopeless(k, unit):
            return False
        expected = scaled(self.expected(k, supposed, unit)[1], *factors)
        away = {name: distance(got[name], expected[name]) for name in expected if name in got}
        if not all(math.isfinite(one) for one in away.values()):
            return False  # as of a mean of logits that are masked: it would explain anything
        if looked_at and not self.all_are_near(k, unit, expected, away):
            return False
        noise, right = self.dumps[k].noise, self.bounds(k, RIGHT, unit).size

        def most(name: str, limit: float) -> float:
            factor = abs(factors[name.startswith("d_")])
            return noise.get(name, 0.0) + (limit * factor if factor else ZERO * right[name])

        return self.bounds(k, supposed, unit).allow(away, most) and (
            not looked_at
            and (unit == min(self.formats()) or self.is_lenient)
            or self.is_clear(k, supposed, unit, expected, away)
        )

    def is_clear(self, k: int, supposed: Supposed, unit: float, expected: Outputs, away: Dict[str, float]) -> bool:
        """Whether outputs lie no further away than a share of their size, unless that is rounding itself: a bound as large
        as the output, as of a gradient that nearly cancels, explains anything."""
        size, share = {name: float(expected[name].norm()) for name in away}, self.share(unit)
        far = [name for name, value in away.items() if value > share * max(size[name], self.sizes[k][name])]
        own = self.bounds(k, supposed, min(self.formats()))
        if far and not own.probes:
            own.probe()
        return not any(size[name] > TINY * own.so_far()[name] for name in far) and (
            not far or all(size[name] <= own.limits()[name] for name in far)
        )

    def share(self, unit: float) -> float:
        return CLEAR if unit in self.formats() else CLEAR_TF32 if unit == TF32 else CLEAR_BF16

    def all_are_near(self, k: int, unit: float, expected: Outputs, away: Dict[str, float]) -> bool:
        """Whether the outputs, `away` from the expected ones, are so near that the bounds of the hypothesis matter."""
        right = self.bounds(k, RIGHT, unit)
        size = {name: float(expected[name].norm()) for name in away}

        def most(name: str, limit: float) -> float:
            return min(
                max(NEAR * max(size[name], right.size[name]), limit),
                FAR * max(limit, unit) * max(1.0, size[name] / (right.size[name] or 1.0)),
            )

        return right.allow(away, most)

    def loss_is_near(self, k: int, supposed: Supposed, unit: float, factor: float) -> bool:
        """A look at the loss alone, which costs a third: most hypotheses end here."""
        if "loss" not in self.dumps[k].got or not factor:
            return True
        loss, got = factor * self.loss(k, supposed, unit), float(self.dumps[k].got["loss"])
        near = NEAR_TIED if self.room(k, unit)[1] else NEAR
        return abs(got - loss) <= near * max(abs(loss), abs(got))

    def loss(self, k: int, supposed: Supposed, unit: float) -> float:
        """Before the scales; ties share their places."""
        key = k, self.there(k, supposed), unit if self.room(k, unit)[1] else None
        if key not in self.known_loss:
            sums = self.known_sums[key] = Sums()
            with torch.no_grad():
                x = self.room(k, unit)[0].but(sums=sums)
                self.known_loss[key] = float(self.kind.reference(x, Has(supposed.given())))
        return self.known_loss[key]

    def may_be_near(self, k: int, supposed: Supposed, unit: float, factors: Optional[Tuple[float, float]]) -> bool:
        """A look at some tokens' gradients, times the factors or any number, and of all where counts are not known yet."""
        (x, limits), got, given = self.room(k, unit), self.dumps[k].got, supposed.given()
        if not (factors or "loss" in got) or "d_logits" not in got or x.logits.dim() != 3 or x.logits.numel() < MANY:
            return True
        self.loss(k, supposed, unit)
        sums = self.known_sums[k, self.there(k, supposed), unit if limits else None]
        most = self.most_near(k, unit)
        if sums.known and not sums.whole:
            few, some = self.part(k, unit)
            away = least_away(self.kind, few.but(sums=Sums(sums.known)), given, some, factors, limits)
            if not self.bounds(k, RIGHT, unit).allow(away, most):
                return False
        if not limits:
            return True
        away = least_away(self.kind, x, given, got, factors, limits)
        if not (self.bounds(k, RIGHT, unit).allow(away, most) and self.may_be_clear(k, supposed, unit, away)):
            return False
        if factors or not sums.known or sums.whole:
            return True
        few, some = self.part(k, unit)
        few = few.but(sums=Sums(sums.known), shift=torch.zeros_like(limits[0]))
        near = most("d_logits", self.bounds(k, RIGHT, unit).so_far()["d_logits"]) / self.sizes[k]["d_logits"]
        some = {"d_logits": some["d_logits"]}
        return by_factor(self.kind, few, given, some, torch.ones_like(few.shift), 1e-6)[1] <= near + UNEXPLAINED

    def may_be_clear(self, k: int, supposed: Supposed, unit: float, away: Dict[str, float]) -> bool:
        """Whether is_clear can hold of outputs that lie at least so far off: a |e| bounds |e - g| only if |e - g| is at most
        a / (1 - a) |g|. Not looked at where the expected ones may be rounding themselves."""
        share = self.share(unit)
        far = [name for name, value in away.items() if value > share / (1 - share) * self.sizes[k][name] * (1 + 1e-6)]
        if not far:
            return True
        expected = outputs(self.kind, self.room(k, unit)[0], supposed.given())
        own = self.bounds(k, RIGHT, min(self.formats())).so_far()
        return all(float(expected[name].norm()) <= TINY * own[name] for name in far)

    def is_hopeless(self, k: int, unit: float) -> bool:
        """Whether no counts bring many numbers within twice the bound of the right ones."""
        x, limits = self.room(k, unit)
        if limits is None or x.logits.numel() < MANY:
            return False
        noise = self.dumps[k].noise
        away = least_away(self.kind, x, {}, self.dumps[k].got, (1.0, 1.0), limits)
        bounds = self.new_bounds(k, x, RIGHT, outputs(self.kind, x, {}), unit)
        return not bounds.allow(away, lambda name, limit: 2 * limit + noise.get(name, 0.0))

    def part(self, k: int, unit: float) -> Tuple[Case, Outputs]:
        """Dump k with some of its tokens, and the gradients that they were given."""
        if (k, unit) not in self.known_part:
            x, got = self.room(k, unit)[0], self.dumps[k].got
            few = part(x, self.groups(x), EVERY)
            some = part(x.but(logits=got["d_logits"].double()), self.groups(x), EVERY).logits
            self.known_part[k, unit] = few, {**got, "d_logits": some}
        return self.known_part[k, unit]

    def most_near(self, k: int, unit: float) -> Callable[[str, float], float]:
        """At least what all_are_near allows, whatever the size of the expected output."""
        right, got = self.bounds(k, RIGHT, unit), self.sizes[k]

        def most(name: str, limit: float) -> float:
            near = max(NEAR * right.size[name], NEAR / (1 - NEAR) * got[name], limit)
            return min(near, FAR * max(limit, unit) * max(1.0, (got[name] + near) / (right.size[name] or 1.0))) * (
                1 + 1e-6
            )

        return most

    # ---- sets of faults ----

    def inside(self) -> List[Tuple[Fault, Optional[float]]]:
        there = [one for one in self.kind.faults if not all(one.is_idle(dump.x) for dump in self.dumps)]
        return [(fault, value) for fault in there for value in fault.values or (None,)]

    def outside(self) -> List[Fault]:
        has_loss = any("loss" in dump.got for dump in self.dumps)
        return [
            one
            for one in scale_faults(self.kind)
            if not all(one.is_idle(dump.x) for dump in self.dumps) and (has_loss or not one.apart)
        ]

    def sets(self, size: int) -> Iterator[Supposed]:
        inside, outside = self.inside(), self.outside()
        for many in range(size, -1, -1):
            for a in itertools.combinations(inside, many):
                if len({fault.key for fault, _ in a}) == many:
                    yield from (Supposed(a, b) for b in itertools.combinations(outside, size - many))

    def fitting(self, size: int, unit: float) -> List[Supposed]:
        return [one for one in self.sets(size) if self.fits(one, unit)]

    def is_no_factor(self, supposed: Supposed) -> bool:
        """Whether a factor beside it says anything: not beside a scale that multiplies everything by one number."""
        scales = {supposed.factors(dump.x) for dump in self.dumps}
        return not supposed.outside or len(scales) > 1 and all(a == b for a, b in scales)

    def factor(self, supposed: Supposed, unit: float) -> Optional[float]:
        """The number times which a hypothesis explains all dumps."""
        untied = (k for k in range(len(self.dumps)) if self.room(k, unit)[1] is None)
        k = next(untied, 0)  # where experts tie the loss may be of other counts
        if not self.may_be_near(k, supposed, unit, None):
            return None
        c = self.nearest_factor(k, supposed, unit)
        return c if c and self.fits(replace(supposed, times=c), unit) else None

    def nearest_factor(self, k: int, supposed: Supposed, unit: float) -> float:
        """Of dump k: that of the loss; where experts tie, that of loss and gradients with the counts that fit best."""
        got, (x, limits) = self.dumps[k].got, self.room(k, unit)
        times = supposed.factors(self.dumps[k].x)[0]
        if "loss" not in got or not times:
            return 0.0
        if limits and "d_logits" in got:
            free = (limits[1] > limits[0]).double()
            c, _ = by_factor(self.kind, x.but(shift=torch.zeros_like(free)), supposed.given(), got, free, 1e-8)
            if not c:
                return 0.0
            supposed = replace(
                supposed, times=c / times
            )  # the loss may be stored in a finer format: it says more precisely
        right = float(self.expected(k, supposed, unit)[1]["loss"]) * times
        return float(got["loss"]) / right if right else 0.0

    def is_multiple(self, supposed: Supposed, c: float, unit: float) -> bool:
        """Whether its loss is c times the right one, as exactly as a factor is known where experts tie."""

        def away(k: int) -> float:
            right = c * self.loss(k, RIGHT, unit)
            return abs(supposed.factors(self.dumps[k].x)[0] * self.loss(k, supposed, unit) - right) / (
                abs(right) or 1.0
            )

        return all(away(k) < MULTIPLE for k, dump in enumerate(self.dumps) if "loss" in dump.got)

    # ---- the verdict ----

    def formats(self) -> Set[float]:
        """Rounding errors of the dumps' own formats, and of float32, in which narrower ones are computed."""
        kinds = {value.dtype for dump in self.dumps for _, value in dump.x.tensors() if value.is_floating_point()}
        return {UNIT[kind] for kind in kinds - {torch.float16}} | {UNIT[torch.float32]}

    def units(self, of_any: bool = False) -> List[Tuple[float, str]]:
        """Rounding errors to be tried, with their names: that of the dump's own format first. Of a rule without gradients,
        which has no products, no coarser ones; of others bf16 where a number has 16 bits or it is asked for."""
        kinds = {value.dtype for dump in self.dumps for _, value in dump.x.tensors() if value.is_floating_point()}
        units = [(UNIT[torch.float64], "float64")] if kinds <= {torch.float64} else []
        units += [(UNIT[torch.float32], "float32"), (TF32, "TF32"), (UNIT[torch.bfloat16], "bf16")]
        least, most = max(dump.units[0] for dump in self.dumps), min(dump.units[1] for dump in self.dumps)
        if most == 1.0 and not of_any:
            most = self.coarsest(kinds | {value.dtype for dump in self.dumps for value in dump.got.values()})
        return [one for one in units if least <= one[0] <= most]

    def coarsest(self, given: Set[torch.dtype]) -> float:
        if not self.kind.gradients:
            return UNIT[torch.float32]
        if self.rounding == "exact":
            return UNIT[torch.float32]
        is_narrow = self.rounding is None and bool(given & {torch.bfloat16, torch.float16})
        return UNIT[torch.bfloat16] if is_narrow or self.rounding == "bf16" else TF32

    def figures(self, unit: float) -> Dict[str, List[Figure]]:
        found = {}
        for k, dump in enumerate(self.dumps):
            expected, limits = self.expected(k, RIGHT, unit)[1], self.bounds(k, RIGHT, unit).limits()
            found[dump.name] = [
                Figure(
                    name,
                    size(expected[name]),
                    size(dump.got[name]),
                    distance(dump.got[name], expected[name]),
                    limits[name],
                )
                for name in expected
                if name in dump.got
            ]
        return found


RIGHT = Supposed()


def size(value: Tensor) -> float:
    """A number itself, of more the norm."""
    return float(value) if value.dim() == 0 else float(value.double().norm())
