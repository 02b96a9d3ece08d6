"""Runs somebody's callable on the inputs of a kind, and holds it to what a loss must be: the same numbers for the same
inputs, which it leaves as they are, and a graph."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from ._dump import FLOATS, LIKE, NUMBERS, number
from ._fits import Dump
from ._import import CannotJudge, called_by_name, named, raised, signature_of
from ._judge import ROUNDINGS
from ._kind import Case, Kind, Outputs, generator

LAYERED = ("logits", "indices", "kept")  # [L,T,...]
MANY = ("tuple", "stack", "one")  # the logits of all layers; of all in one tensor; of one layer
MOST_K = 1024  # that a loss may have inside
AGAIN, AGAIN_ON_CPU = 1e-3, 1e-5  # relative: a second call may differ by this much; on a CPU in float32 or float64


def check_settings(
    dtype: Any = torch.float32, device: Any = "cpu", seed: Any = 0, logits: Any = None, rounding: Any = None, **_: Any
) -> None:
    """CannotJudge: with these, which certify describes, nothing can be run."""
    for name, value, can_be in (
        ("dtype", dtype, FLOATS),
        ("logits", logits, (None, *MANY)),
        ("rounding", rounding, ROUNDINGS),
    ):
        if value not in can_be:
            raise CannotJudge(f"{name} is {value!r:.40}, must be one of {', '.join(map(str, can_be))}")
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise CannotJudge(f"seed is {seed!r:.40}, must be a whole number from 0 to 2^63 - 1")
    try:
        float(torch.zeros(1, dtype=torch.float32, device=device))
    except Exception as error:  # each kind of device has its own
        raise CannotJudge(f"device {device}: {str(error).splitlines()[0]}") from None


class Callee:
    """A callable and its arguments: `names`, ours -> its own. `fixed`: inputs that it has inside, as its own top_k."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        fixed: Optional[Mapping[str, Any]] = None,
        logits: Optional[str] = None,
    ):
        self.function, self.kind, self.fixed, self.logits = function, kind, dict(fixed or {}), logits
        try:
            self.signature = signature_of(function)
        except (TypeError, ValueError):
            raise CannotJudge("its arguments cannot be read; wrap it in a function") from None
        self.parameters = named(self.signature)
        self.names = self._names()

    def _names(self) -> Dict[str, str]:
        ours = {theirs: name for name, all_ in self.kind.inputs.items() for theirs in all_}
        found: Dict[str, str] = {}
        for theirs in self.parameters:
            if theirs in ours:
                found.setdefault(ours[theirs], theirs)
        unknown = [name for name, p in self.parameters.items() if p.default is p.empty and name not in found.values()]
        if unknown and unknown[0] in ours:
            one = ours[unknown[0]]
            raise CannotJudge(
                f"its arguments are {self.signature}: {found[one]} and {unknown[0]} are two names of {one}; "
                "wrap it in a function that takes one of them"
            )
        if unknown:
            raise CannotJudge(
                f"its arguments are {self.signature}: {unknown[0]} is none of "
                f"{', '.join(self.kind.inputs)} or their other names; wrap it in a function"
            )
        for name in self.fixed:
            if name in found:
                raise CannotJudge(f"it takes {name} itself; --set {name} is for one that does not")
            if name not in self.kind.inputs:
                raise CannotJudge(f"{self.kind.name} has no input {name}: it has {', '.join(self.kind.inputs)}")
            if name not in NUMBERS:
                raise CannotJudge(f"{name} is a tensor, which cannot be set; wrap it in a function that takes it")
            self.fixed[name] = number(name, self.fixed[name])
        if self.kind.needs - set(found) - set(self.fixed) and len(self.parameters) < len(self.signature.parameters):
            raise CannotJudge(
                f"its arguments are {self.signature}, which do not say what it takes; wrap it in a function "
                f"with arguments of the names {', '.join(sorted(self.kind.needs))}"
            )
        for name in sorted(self.kind.needs):
            if name not in found and name not in self.fixed:
                raise CannotJudge(
                    f"it takes no {name}; "
                    + (
                        f"say which it has inside, as --set {name}=VALUE"
                        if name in NUMBERS
                        else "wrap it in a function that does"
                    )
                )
        return found

    def case(self, x: Case) -> Case:
        """The inputs without those that it does not take, and with the chosen experts if it takes them."""
        if "indices" in self.names and x.top_k:
            x = x.but(indices=x.logits.topk(x.top_k).indices)
        return Case(
            **{name: value for name, value in x.values.items() if name in self.names or name not in self.kind.inputs},
            **self.fixed,
        )

    def arguments(self, x: Case, form: str) -> Dict[str, Any]:
        values: Dict[str, Any] = {}
        for name, theirs in self.names.items():
            value = x.logits.shape[-1] if name == "num_experts" else getattr(x, name)
            if value is None and self.parameters[theirs].default is not inspect.Parameter.empty:
                continue
            if name == "kept" and value is None:  # all that are chosen
                chosen = x.logits.topk(x.top_k or x.logits.shape[-1]).indices
                value = torch.zeros_like(x.logits, dtype=torch.bool).scatter(-1, chosen, True)
            if name in LAYERED and isinstance(value, Tensor) and value.dim() == 3:
                value = tuple(value) if form == "tuple" else value[0] if form == "one" else value
            if name == "mask":
                value = torch.ones(x.logits.shape[1], dtype=torch.bool) if value is None else value
                value = value.view(x.sequences or 1, -1).long() if theirs == "attention_mask" else value
            values[theirs] = 1 if value is None and name in ("micro_batches", "sequences") else value
        return values

    def forms(self, x: Case) -> Tuple[str, ...]:
        if self.logits:
            return (self.logits,)
        layered = x.logits is not None and x.logits.dim() == 3
        one = self.names.get("logits") in ("logits", "x", "gate_logit")
        return ("one",) if not layered or one else ("tuple", "one")


def call(callee: Callee, x: Case, form: str) -> Any:
    return called_by_name(callee.function, callee.parameters, callee.arguments(x, form))


def form_of(callee: Callee, x: Case) -> str:
    """How it wants the logits: the first form with which it returns a loss. If there is none, why: that of the first form,
    unless it is that a tuple is no tensor."""
    forms = callee.forms(x)
    reasons = []
    for form in forms if len(forms) > 1 else ():
        try:
            loss_in(call(callee, x, form))
            return form
        except CannotJudge as error:
            reasons.append(error)
    if reasons and "tuple" not in str(reasons[0]).splitlines()[0]:
        raise reasons[0]
    return forms[-1]


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of numbers that can be read, one by one."""
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided and not value.is_meta
    )


def in_words(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else _a(type(value).__name__)
    layout = "" if value.layout is torch.strided else f", {str(value.layout)[6:]}"
    return f"a tensor {list(value.shape)} of {value.dtype}{layout}{', meta' if value.is_meta else ''}"


def loss_in(given: Any) -> Tensor:
    """That of what a callable returns."""
    if isinstance(given, dict) and "loss" not in given:
        raise CannotJudge(f"it returns a dict with {', '.join(map(str, given)) or 'nothing'}, must have loss")
    loss = given["loss"] if isinstance(given, dict) else given
    if not is_plain(loss) or loss.numel() != 1:
        raise CannotJudge(
            f"it returns {in_words(loss)}, must return the loss, a tensor of one number, or a dict with loss"
        )
    one: Tensor = loss.reshape(())
    return one


def _rule(kind: Kind, given: Any, x: Case) -> Outputs:
    """The outputs of a rule that is no loss."""
    name = kind.outputs[0]
    if name == "bias_after" and given is None:
        return {name: x.bias}  # it was changed in place
    if name == "weights" and isinstance(given, tuple) and len(given) == 2:
        given = _spread(x.logits, *sorted(given, key=is_plain))
    given = given.get(name) if isinstance(given, dict) else given
    wanted = getattr(x, LIKE[name]).shape
    if not is_plain(given) or given.shape != wanted:
        raise CannotJudge(f"it returns {in_words(given)}, must return {name}, a tensor {list(wanted)}")
    return {name: given}


def _spread(like: Tensor, indices: Any, weights: Any) -> Any:
    """Weights [T,K] of the experts of these indices as [T,n]."""
    try:
        return torch.zeros_like(like, dtype=weights.dtype).scatter(-1, indices.long(), weights)
    except (AttributeError, RuntimeError) as error:
        raise CannotJudge(
            f"it returns {in_words(indices)} and {in_words(weights)}, which are no indices and weights [T,K]: "
            f"{str(error).splitlines()[0]}"
        ) from None


def once(callee: Callee, x: Case, form: str) -> Outputs:
    """One call and its backward pass, on copies: the outputs, without a gradient that is None."""
    kind = callee.kind
    leaves = {
        name: getattr(x, name).detach().clone().requires_grad_()
        for name in kind.gradients
        if getattr(x, name) is not None
    }
    mine = x.but(**{name: value.clone() for name, value in x.tensors()}).but(**leaves)
    before = {name: value.detach().clone() for name, value in mine.tensors()}
    given = call(callee, mine, form)
    out = {"loss": loss_in(given)} if kind.outputs == ("loss",) else _rule(kind, given, mine)
    for name, value in mine.tensors():
        after = out.get(f"{name}_after", before[name])  # of a bias: it may be changed in place
        if not torch.equal(value.detach(), before[name]) and not torch.equal(value.detach(), after.to(value.dtype)):
            raise CannotJudge(f"it changes its input {name}")
    if leaves:
        scalar = (
            out["loss"]
            if "loss" in out
            else sum((value * getattr(x, f"d_{name}")).sum() for name, value in out.items())
        )
        if not scalar.requires_grad:
            raise CannotJudge(
                "it returns a tensor without graph: detached, or computed under torch.no_grad(), so that no "
                "gradient can reach the router"
            )
        try:
            scalar.backward()
        except Exception as error:
            raise raised("its backward pass raises", error) from error
    out = {
        **out,
        **{f"d_{name}": torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()},
    }
    for name, value in out.items():
        if not bool(torch.isfinite(value).all()):
            raise CannotJudge(f"its {name} has a NaN or an infinite number")
    return {name: value.detach().cpu() for name, value in out.items()}


def dump(callee: Callee, name: str, x: Case, dtype: torch.dtype, device: str) -> Dump:
    """What it makes of these inputs, twice: a second time because it must not depend on anything else."""
    x = callee.case(x)
    x = x.to(dtype)
    x = x.but(**{key: value.to(device) for key, value in x.tensors()})
    form = form_of(callee, x)
    if form == "one" and x.logits is not None and x.logits.dim() == 3:
        x = x.but(**{key: value[:1] for key, value in x.tensors() if key in LAYERED})
    got, again = once(callee, x, form), once(callee, x, form)
    most = AGAIN_ON_CPU if torch.device(device).type == "cpu" and dtype in (torch.float32, torch.float64) else AGAIN
    for key, value in got.items():
        if float((value.double() - again[key].double()).norm()) > most * float(value.double().norm()):
            raise CannotJudge(
                "it gives other numbers when it is called with the same inputs again: it depends on hidden "
                "state or on random numbers"
            )
    return Dump(name, x.but(**{key: value.cpu() for key, value in x.tensors()}), got)


def dumps(
    function: Callable[..., Any],
    kind: Kind,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    fixed: Optional[Mapping[str, Any]] = None,
    logits: Optional[str] = None,
) -> List[Dump]:
    """Of all inputs of the kind that the callable can take."""
    callee = Callee(function, kind, fixed, logits)
    K = int(callee.fixed.get("top_k", 0))
    if K > MOST_K:
        raise CannotJudge(f"top_k is {K}, which is more than {MOST_K}")
    given = {
        name: wide(x, K, seed)
        for name, x in kind.cases(seed).items()
        if all(getattr(x, need) is not None for need in kind.needs - set(callee.fixed))
    }
    return [dump(callee, name, x, dtype, device) for name, x in given.items()]


def wide(x: Case, K: int, seed: int) -> Case:
    """With 2 K experts at least, for a loss that has K inside: the logits repeated, and moved."""
    if x.logits is None or x.logits.shape[-1] >= 2 * K:
        return x
    many = -(-2 * K // x.logits.shape[-1])
    by_expert = {
        name: torch.cat([value] * many, -1)
        for name, value in x.tensors()
        if name == "bias" or value.shape == x.logits.shape
    }
    g = generator(seed)
    more = torch.randn(by_expert["logits"].shape, generator=g)
    if "bias" in by_expert:
        by_expert["bias"] = by_expert["bias"] + 0.1 * torch.randn(by_expert["bias"].shape, generator=g)
    ties = bool((x.logits == x.logits.round()).all())
    return x.but(**{**by_expert, "logits": by_expert["logits"] + (more.round() if ties else more), "kept": None})
