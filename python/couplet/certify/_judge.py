"""Judges whether loss and gradients are right, or which single known fault explains them.

Every output is compared in float64 with the output of the reference. The distance may be at most

    TOLERANCE[format] |right| + SPARE[format] |reference computed in the format - right|

The second part is the rounding that these inputs allow, for example where a gradient nearly cancels. Where experts tie
(in the coupling loss: hinges), the change by other choices is added."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ._import import CannotJudge
from ._kind import Case, Fault, Has, Kind, Outputs, only, right, usual_defaults
from .kinds import KINDS
from .kinds.balance import pick

UNIT = {torch.float64: 2.0**-24, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}
TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}
SPARE = {torch.float64: 8.0, torch.float32: 8.0, torch.float16: 8.0, torch.bfloat16: 2.0}
TINY = 1e-3  # share of an output: a smaller distance is not mentioned
NEAR = 0.25  # share of an output: a hypothesis further away is rejected at once
SHARP = 0.1  # share of an output: no greater distance is called right, whatever rounding may do
CLEARLY = 4.0  # times the distance to a fault; if the right numbers are further away, rounding is no explanation
ALIKE = 0.25  # lowest cosine between an error and the error of bf16 that is explained by bf16
TIED = (
    "cannot be told: experts tie, and another choice among them changes much of {}; give inputs whose logits differ, "
    "for example a step after some training, or one with routers of small random numbers"
)

# Faults that multiply loss and gradients by one number, or by two.
SCALES: Dict[str, Callable[[Case], Any]] = {
    "coefficient_unused": lambda x: 1 / x.times,
    "coefficient_twice": lambda x: x.times,
    "weight_left_out": lambda x: 1 / x.times,
    "weight_twice": lambda x: x.times,
    "detached": lambda x: (1, 0),
    "gradient_twice": lambda x: (1, 2),
    "added_twice": lambda x: 2,
    "wrong_sign": lambda x: -1,
    "loss_sign": lambda x: -1,
    "zero": lambda x: 0,
    "not_divided_by_steps": lambda x: x.steps,
    "divided_by_steps_twice": lambda x: 1 / x.steps,
    "gradient_not_divided_by_steps": lambda x: (1, x.steps),
    "gradient_divided_by_steps_twice": lambda x: (1, 1 / x.steps),
    "times_ranks": lambda x: x.ranks or 1,
    "divided_by_ranks": lambda x: 1 / (x.ranks or 1),
    "not_divided_by_sequences": lambda x: x.sequences or 1,
    "times_k": lambda x: x.top_k or 1,
    "divided_by_k": lambda x: 1 / (x.top_k or 1),
    "times_tokens": lambda x: int(x.logits.shape[1] if x.mask is None else x.mask.sum()),
    "times_n": lambda x: x.logits.shape[-1],
    "n_left_out": lambda x: 1 / x.logits.shape[-1],
    "n_and_k_exchanged": lambda x: (x.top_k / x.logits.shape[-1]) ** 2,
    "pairs_mean": lambda x: len(x.router) / max(len(x.router) - 1, 1),
    "rows_mean": lambda x: len(x.router),
    "no_mean": lambda x: len(x.router) ** 2,
    "layers_sum": lambda x: x.layers or 1,
    "layers_twice": lambda x: 1 / (x.layers or 1),
}


# ---- the outputs of a hypothesis ----


def outputs(kind: Kind, x: Case, has: Has = right, gradients: bool = True) -> Outputs:
    """Returns the loss, or the outputs of a rule, and "d_NAME" of every input that has a gradient. With
    x.tokens_of_layers [L,T,d] the gradients are those of router weights, d_logits^T tokens. Layer l belongs to router
    x.router_of[l]. The gradient of a router that is not trained is 0. With x.moved the outputs keep their graph."""
    names = [name for name in kind.gradients if getattr(x, name) is not None] if gradients else []
    leaves = {name: getattr(x, name).detach().requires_grad_() for name in names}
    with torch.set_grad_enabled(gradients):
        found = kind.reference(x.but(**leaves), has)
    out: Outputs = found if isinstance(found, dict) else {"loss": found}
    scalar: Any = out.get("loss")
    if names and scalar is None:
        scalar = sum((out[name] * getattr(x, f"d_{name}")).sum() for name in kind.outputs)
    grads: Sequence[Optional[Tensor]] = [None] * len(names)
    keeps_graph = x.moved is not None
    if names and scalar.requires_grad:
        grads = torch.autograd.grad(scalar, list(leaves.values()), allow_unused=True, create_graph=keeps_graph)
    given = {f"d_{name}": torch.zeros_like(leaves[name]) if g is None else g for name, g in zip(names, grads)}
    out = {name: value if keeps_graph else value.detach() for name, value in {**out, **given}.items()}
    return of_routers(x, out) if x.tokens_of_layers is not None and gradients else out


def of_routers(x: Case, out: Outputs) -> Outputs:
    if "d_logits" in out:
        each = torch.einsum("ltn,ltd->lnd", out.pop("d_logits"), x.tokens_of_layers)
        out["d_router"] = torch.zeros_like(x.router).index_add(0, x.router_of, each)
    d_router = out.pop("d_router") * x.trained.view(-1, 1, 1)
    return {**out, **{f"d_{name}": one for name, one in zip(x.routers, d_router)}}


def folded(x: Case, value: Tensor) -> Tensor:
    """Returns a gradient [...,n] with one sum for two experts that are equal. A tie does not change the sum."""
    if not x.twins or value.dim() < 2:
        return value
    return torch.cat((value[..., :1], value[..., 1::2] + value[..., 2::2]), -1)


def distance_of(x: Case, a: Tensor, b: Tensor) -> float:
    return float(folded(x, a.double() - b.double()).norm())


@dataclass(frozen=True)
class Dump:
    """The inputs and outputs of an implementation. An output that is absent is not compared. `noise` is the distance by
    output that other errors than rounding may cause. `dtype` is the coarsest format in the computation, without it that
    of the inputs. An output that is coarser may also have the rounding of one last step."""

    name: str
    x: Case
    got: Outputs
    noise: Dict[str, float] = field(default_factory=dict)
    dtype: Optional[torch.dtype] = None

    @property
    def format(self) -> torch.dtype:
        kinds = [value.dtype for _, value in self.x.tensors() if value.dtype in UNIT]
        return self.dtype or max(kinds, key=lambda one: UNIT[one], default=torch.float32)

    @property
    def last_steps(self) -> Dict[str, float]:
        """Returns the relative error of the last step of each output that is coarser than the inputs."""
        coarser = {name: one.dtype for name, one in self.got.items() if UNIT.get(one.dtype, 0.0) > UNIT[self.format]}
        return {name: torch.finfo(dtype).eps / 2 for name, dtype in coarser.items()}


@dataclass
class Figure:
    """One output: norm of the expected one, norm of the given one (for a loss the values), distance and bound."""

    name: str
    expected: float
    got: float
    distance: float
    bound: float
    tied: float = 0.0  # the part of the bound that is due to ties

    @property
    def is_by_ties(self) -> bool:
        """Returns whether the output is within its bound by ties alone, and ties may change much of the output."""
        return self.bound - self.tied < self.distance <= self.bound and self.tied > SHARP * abs(self.expected)


class Held:
    """A dump that is compared with hypotheses."""

    def __init__(self, kind: Kind, dump: Dump):
        self.kind, self.dump, self.format = kind, dump, dump.format
        self.x = dump.x.to(torch.float64).but(memo={}, tolerance=4 * UNIT[self.format])
        self.is_coarse = UNIT[self.format] > UNIT[torch.float32]
        self.right = outputs(kind, self.x)
        self.sizes = {name: float(value.norm()) for name, value in self.right.items()}
        self.floors = {name: self.floor(name) for name in self.right}

    def floor(self, name: str) -> float:
        """Returns the distance that noise can cause. For a gradient it includes the rounding errors of the loss."""
        found, right = self.dump.noise.get(name, 0.0) + UNIT[self.format] * self.sizes[name], self.right
        if name[:2] != "d_":
            return found
        scalar = sum(float((right[one] * self.x.values.get(f"d_{one}", 1.0)).sum()) for one in self.kind.outputs)
        noise = 4 * UNIT[self.format] * abs(scalar) / math.sqrt(max(1, right[name].numel()))
        return float(found + noise)

    def outputs(self, x: Case, fault: Optional[Fault], value: Any, gradients: bool = True) -> Outputs:
        """Returns the outputs under the fault, with this value of the fault's parameter."""
        if fault is None:
            return outputs(self.kind, x, gradients=gradients)
        if fault.key not in SCALES and fault.key != "factor" or "loss" not in self.kind.outputs:
            return outputs(self.kind, x, only(fault.key, value), gradients)
        factor = value if fault.key == "factor" else SCALES[fault.key](x)
        loss, gradient = factor if isinstance(factor, tuple) else (factor, factor)
        if not gradients:
            return {"loss": self.right["loss"] * loss}
        of = self.right if x is self.x else outputs(self.kind, x)
        return {name: one * (gradient if name[:2] == "d_" else 1 if name == "M" else loss) for name, one in of.items()}

    def may_fit(self, fault: Optional[Fault], value: Any) -> bool:
        """Returns False if the loss alone excludes the fault. This test costs a third of computing all outputs."""
        if "loss" not in self.dump.got or fault is None:
            return True
        want = float(self.outputs(self.x, fault, value, gradients=False)["loss"])
        got = float(self.dump.got["loss"])
        return abs(got - want) <= max(NEAR * abs(want), 1e-3 * self.sizes["loss"], self.dump.noise.get("loss", 0.0))

    def figures(self, fault: Optional[Fault] = None, value: Any = None, is_tight: bool = False) -> List[Figure]:
        """Compares the outputs. With `is_tight` the bounds have no allowance for rounding and ties."""
        expected = self.right if fault is None else self.outputs(self.x, fault, value)
        found = []
        for name, want in expected.items():
            if name in self.dump.got:
                got, tolerance = self.dump.got[name], TOLERANCE[self.format]
                share = tolerance if self.kind.gradients else 4 * UNIT[self.format]  # a bias has no products
                share += self.dump.last_steps.get(name, 0.0)
                floor = self.dump.noise.get(name, 0.0) if is_tight else self.floors[name]
                bound = share * float(want.norm()) + floor
                found.append(Figure(name, size(want), size(got), distance_of(self.x, got, want), bound))
        off = [one for one in found if not one.distance <= one.bound]
        is_near = all(one.distance <= NEAR * max(abs(one.expected), self.sizes[one.name]) for one in off)
        if not is_tight and (fault is None or off and (is_near or self.has_ties)):
            self._allow_rounding(found, expected, fault, value)
        return found

    def _allow_rounding(self, found: List[Figure], want: Outputs, fault: Optional[Fault], value: Any) -> None:
        """Adds the allowance for rounding and ties to the bounds."""
        dtype = torch.bfloat16 if self.is_coarse else torch.float32
        narrow = self.outputs(self.dump.x.to(dtype).but(memo={}, tolerance=self.x.tolerance), fault, value)
        for one in found:
            rounding = SPARE[self.format] * distance_of(self.x, narrow[one.name], want[one.name])
            one.bound += rounding if math.isfinite(rounding) else 0.0  # a narrow format may overflow
            if not one.distance <= one.bound and math.isfinite(one.distance):
                turned = [self.outputs(x, fault, value) for x in self.turned(one.name, want, fault, value)]
                one.tied = sum(distance_of(self.x, other[one.name], want[one.name]) for other in turned)
                one.bound += one.tied

    def turned(self, name: str, want: Outputs, fault: Optional[Fault], value: Any) -> List[Case]:
        """Returns the inputs with the choice among tied experts that moves this output furthest towards the given one,
        or with the two treatments of hinges that tie. Outputs are linear in the choice: no other choice moves this
        output further in this direction."""
        if self.kind.is_coupling:
            return [self.x.but(turned=one) for one in (1, -1)]
        if not self.has_ties:
            return []
        moved = torch.zeros_like(self.x.logits, requires_grad=True)
        made = self.outputs(self.x.but(moved=moved), fault, value)[name]
        towards = (made * (self.dump.got[name].double() - want[name])).sum()
        if not towards.requires_grad:
            return []
        (by_choice,) = torch.autograd.grad(towards, moved, allow_unused=True)
        return [] if by_choice is None else [self.x.but(preferred=by_choice, memo={})]

    @functools.cached_property
    def has_ties(self) -> bool:
        """Returns whether tied experts can be chosen in more than one way."""
        if self.x.logits is None or not self.x.top_k or self.x.indices is not None:
            return False
        order = torch.arange(self.x.logits.shape[-1])
        first, last = (pick(self.x.but(preferred=one), self.x.logits, int(self.x.top_k)) for one in (-order, order))
        return not torch.equal(first, last)

    def fits(self, fault: Optional[Fault] = None, value: Any = None) -> bool:
        """Returns whether all outputs are within their bounds. Ties are no evidence of a fault: any order is right."""
        if fault is not None and self.x.twins:
            return True
        return self.may_fit(fault, value) and are_within(self.figures(fault, value))

    def by_ties(self) -> str:
        """Returns why an output cannot be told because experts tie, or "". For hinges that tie any gradient is right."""
        figures = [] if self.kind.is_coupling else self.figures()
        one = next((one for one in figures if one.is_by_ties), None)
        if one is None or any(self.is_chosen_by(x, figures) for x in self.choices()):
            return ""
        return TIED.format(one.name)

    def choices(self) -> Iterator[Case]:
        """Yields the inputs with the usual choices among tied experts: the last ones, and those of torch.topk."""
        if self.has_ties:
            yield self.x.but(preferred=torch.arange(self.x.logits.shape[-1]), memo={})
            for z in (self.dump.x.logits, self.dump.x.logits.to(self.format)):
                for scores in (z, self.kind.scores(z)):
                    yield self.x.but(indices=scores.topk(int(self.x.top_k)).indices, memo={})

    def is_chosen_by(self, x: Case, figures: Sequence[Figure]) -> bool:
        """Returns whether all outputs are those of this choice, without an allowance for ties."""
        want = outputs(self.kind, x)
        return all(distance_of(x, self.dump.got[f.name], want[f.name]) <= f.bound - f.tied for f in figures)

    def first_number(self) -> str:
        """Returns the first number that differs, in words."""
        wrong = next(one for one in self.figures() if not one.distance <= one.bound)
        got, want = self.dump.got[wrong.name].double(), self.right[wrong.name]
        off = (got - want).abs()
        index = (off >= off.max() / 2).nonzero()[0].tolist() if bool(off.isfinite().all()) else [0] * got.dim()
        return f"{wrong.name}{index or ''} is {float(got[tuple(index)]):.6g}, must be {float(want[tuple(index)]):.6g}"


def size(value: Tensor) -> float:
    """Returns the value of a scalar, or the norm of a larger tensor."""
    return float(value) if value.dim() == 0 else float(value.double().norm())


# ---- the verdict ----


@dataclass
class Verdict:
    kind: Kind
    state: str  # "right", "other": right as another kind, "fault", or "unknown"
    faults: List[Tuple[Fault, Any]] = field(default_factory=list)  # each explains all dumps by itself
    others: List[Kind] = field(default_factory=list)  # the kinds as which the callable is right, too or instead
    figures: Dict[str, List[Figure]] = field(default_factory=dict)  # by dump, compared with the right outputs
    first: Dict[str, str] = field(default_factory=dict)  # by dump that is not right, the first number that differs
    rounding: str = ""  # the rounding within which the dumps are right, if a format has 16 bits
    mask: str = ""  # the places where the callable's mask is True
    notes: List[str] = field(default_factory=list)
    held: Sequence[Held] = ()  # the dumps, if they are right

    @property
    def exit_code(self) -> int:
        return 0 if self.state == "right" else 1

    @functools.cached_property
    def untold(self) -> List[Fault]:
        """Returns the faults that these dumps cannot show, because every value of the fault gives the right numbers."""
        found = [fault for fault, _ in single_faults(self.kind, self.held)] if self.held else []
        return [one for one in found if all(held.fits(one, value) for value in one.values for held in self.held)]


def relatives(kind: Kind, dumps: Sequence[Dump]) -> Iterator[Kind]:
    """Yields the other kinds whose needs these dumps meet."""
    for other in KINDS.values():
        has_all = all(getattr(dump.x, name) is not None for dump in dumps for name in other.needs)
        if other.name != kind.name and has_all and (other.outputs, other.gradients) == (kind.outputs, kind.gradients):
            yield other


def is_right(kind: Kind, dumps: Sequence[Dump]) -> bool:
    held = [Held(kind, dump) for dump in dumps]
    return all(one.fits() and not one.by_ties() for one in held)


def factor_of(held: Sequence[Held]) -> float:
    """Returns the factor that may multiply loss and gradients, or 0. Of a loss that is rounded it is that of gradients."""
    one = next((one for one in held if not one.x.twins and one.sizes.get("loss")), None)
    if one is None or "loss" not in one.dump.got:
        return 0.0
    name = next((name for name in one.dump.got if name not in one.dump.last_steps and one.sizes[name]), "loss")
    got, want = one.dump.got[name].double(), one.right[name]
    return float((got * want).sum() / want.square().sum())


def is_bf16(held: Sequence[Held], fault: Fault) -> bool:
    """Returns whether the errors of gradients are those of scores in bf16, or of bf16 in all steps after the scores."""
    if any(one.is_coarse for one in held):
        return False
    in_part = [one.outputs(one.x, fault, None) for one in held]
    in_all = [outputs(one.kind, one.dump.x.to(torch.bfloat16).but(memo={})) for one in held]
    return any(is_alike(held, made) for made in (in_part, in_all))


def is_alike(held: Sequence[Held], made: Sequence[Outputs]) -> bool:
    """Returns whether the dumps and `made` differ from the right outputs in the same numbers, by similar amounts."""
    off: List[Tensor] = []
    by: List[Tensor] = []
    for one, moved in zip(held, made):
        for figure in one.figures():
            name, want = figure.name, one.right[figure.name]
            most = 2 * max(TOLERANCE[torch.bfloat16] * one.sizes[name], distance_of(one.x, moved[name], want))
            if not figure.distance <= most + figure.tied + one.floors[name]:
                return False
            if name[:2] == "d_" and one.sizes[name] > one.floors[name] and not one.x.twins:
                off.append((one.dump.got[name].double() - want).flatten() / one.sizes[name])
                by.append((moved[name].double() - want).flatten() / one.sizes[name])
    return bool(off) and float(torch.cosine_similarity(torch.cat(off), torch.cat(by), dim=0)) > ALIKE


def single_faults(kind: Kind, held: Sequence[Held]) -> List[Tuple[Fault, Any]]:
    """Returns the faults that each explain all dumps."""
    found: List[Tuple[Fault, Any]] = []
    for fault in kind.faults:
        if fault.key == "factor" or fault.key == "softmax_in_bf16":
            continue
        found += [(fault, value) for value in fault.values if all(one.fits(fault, value) for one in held)][:1]
    return found


def clear_faults(kind: Kind, held: Sequence[Held]) -> List[Tuple[Fault, Any]]:
    """Returns the one fault that explains dumps in 16 bits that are right within rounding, if their numbers are CLEARLY
    nearer to the fault's numbers. Outputs that differ by their own size are only rounding errors."""
    held = [one for one in held if not one.x.twins]
    right = [one.figures(is_tight=True) for one in held]
    is_noise = any(f.distance and f.distance >= abs(f.expected) for figures in right for f in figures)
    if is_noise or not any(one.is_coarse for one in held) or all(map(are_within, right)):
        return []
    found: List[Tuple[Fault, Any]] = []
    for fault in kind.faults:
        for value in () if fault.key == "factor" or fault.key.endswith("_in_bf16") else fault.values:
            off = [one.figures(fault, value, is_tight=True) for one in held if one.may_fit(fault, value)]
            if len(off) == len(held) and all(map(are_within, off)) and CLEARLY * share_off(off) <= share_off(right):
                found.append((fault, value))
    return found if len(found) == 1 else []


def share_off(figures: Sequence[Sequence[Figure]]) -> float:
    """Returns the distance of all outputs as a share of their sizes."""
    return math.hypot(*(f.distance / abs(f.expected) for one in figures for f in one if f.expected))


def are_within(figures: Sequence[Figure]) -> bool:
    return all(one.distance <= one.bound for one in figures)


def last_faults(kind: Kind, held: Sequence[Held]) -> List[Tuple[Fault, Any]]:
    """Returns the explanation of numbers that no other fault explains: scores in bf16, or one factor."""
    for fault in kind.faults:
        if fault.key == "softmax_in_bf16" and is_bf16(held, fault):
            return [(fault, None)]
        if fault.key == "factor" and (c := factor_of(held)) and all(one.fits(fault, c) for one in held):
            return [(fault, c)]
    return []


@usual_defaults()
def judge(kind: Kind, dumps: Sequence[Dump]) -> Verdict:
    """Returns the verdict: right, right as another kind, one fault, or unknown with the first numbers that differ."""
    if not dumps:
        raise CannotJudge("there is no dump to judge: give at least one")
    held = [Held(kind, dump) for dump in dumps]
    figures = {one.dump.name: one.figures() for one in held}
    wrong = [one for one in held if not are_within(figures[one.dump.name])]
    others = [other for other in relatives(kind, dumps) if is_right(other, dumps)]
    if not wrong and (clear := clear_faults(kind, held)):
        return Verdict(kind, "fault", clear, figures=figures)
    if not wrong and (tied := next(filter(None, (one.by_ties() for one in held)), "")):
        raise CannotJudge(tied)
    if not wrong:
        return Verdict(kind, "right", [], others, figures, rounding=within(held, figures), held=held)
    only_ties = all(one.x.twins for one in wrong)
    found = [] if only_ties else clear_faults(kind, held) or single_faults(kind, held)
    found = found or ([] if others or only_ties else last_faults(kind, held))
    if others or found:
        return Verdict(kind, "other" if others else "fault", found, others, figures=figures)
    return Verdict(kind, "unknown", figures=figures, first={one.dump.name: one.first_number() for one in wrong})


def right_kinds(judge_as: Callable[[str], Verdict]) -> List[Verdict]:
    """Returns the verdicts of the kinds as which something is right. Raises CannotJudge if no kind can be judged, or if
    none is right and some cannot be told."""
    verdicts: List[Verdict] = []
    reasons: List[str] = []
    for name in KINDS:
        try:
            verdicts.append(judge_as(name))
        except CannotJudge as error:
            reasons.append(str(error))
    found = [one for one in verdicts if one.state == "right"]
    open_ = [reason for reason in reasons if reason.startswith("cannot be told")]
    if not verdicts or open_ and not found:
        raise CannotJudge(max(open_ or reasons, key=reasons.count))
    return found


def within(held: Sequence[Held], figures: Dict[str, List[Figure]]) -> str:
    """Returns in words the rounding within which dumps are right, if a format or an output has 16 bits. Raises CannotJudge if
    rounding may explain the errors, but they are a large part of an output."""
    if not any(one.is_coarse for one in held):
        rounded = {f"{name} to {str(d.dump.got[name].dtype)[6:]}": 0 for d in held for name in d.dump.last_steps}
        return f"within the rounding of {', '.join(rounded)}" if rounded else ""
    coarsest = max((one.format for one in held), key=lambda one: UNIT[one])
    off = {"nothing lies off": 0.0}
    for one in held:
        for f in figures[one.dump.name]:
            if abs(f.expected) > 10 * one.floors[f.name]:
                share = max(0.0, f.distance - one.floors[f.name] - f.tied) / abs(f.expected)
                off[f"{f.name} lies off by {100 * share:.2g} % of its size"] = share
    words, share = max(off.items(), key=lambda one: one[1])
    if share > SHARP:
        raise CannotJudge(
            f"cannot be told: {words}, and rounding in {str(coarsest)[6:]} may do that on these inputs; give inputs whose "
            "gradient is larger, or float32"
        )
    return f"in {str(coarsest)[6:]}" + (f", where {words}" if share > TINY else "")
