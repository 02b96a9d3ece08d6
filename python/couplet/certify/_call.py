"""Runs a user's callable on the inputs of a kind. Checks that equal inputs give equal numbers and are not changed."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from . import _names
from ._dump import FLOATS, LIKE, NUMBERS, number
from ._import import CannotJudge, called, named, raised, signature_of
from ._judge import Dump
from ._kind import Case, Kind, Outputs, usual_defaults
from .kinds.balance import pick

LAYERED = ("logits", "indices", "kept", "router")  # [L,...]
ONE_LAYER = ("probs", "tokens_per_expert", "routing_map")  # inputs that belong to one layer
FORMS = ("tuple", "stack", "one")  # forms of logits: one tensor a layer; one of all layers; one layer's
IMPLIED = {"logits": {"probs"}, "w_gate": {"w_gate_up"}, "top_k": {"indices", "routing_map", "tokens_per_expert"}}
MOST_K = 1024  # the largest top_k that a loss may have inside
AGAIN = 1e-5  # share by which a second call may differ
FOUND = ("M", "delta")  # outputs that a coupling loss may return beside its loss


def routed_to(x: Case) -> Tensor:
    """Returns 1 where an expert gets a token that counts, [...,T,n]."""
    chosen = torch.zeros_like(x.logits).scatter(-1, x.indices, 1.0).detach()
    return chosen if x.mask is None else chosen * x.mask.view(-1, 1)


# Inputs that are computed from other inputs.
DERIVED: Dict[str, Callable[[Kind, Case], Any]] = {
    "probs": lambda kind, x: kind.scores(x.logits),
    "tokens_per_expert": lambda kind, x: routed_to(x).sum(-2),
    "routing_map": lambda kind, x: routed_to(x).bool(),
    "total_num_tokens": lambda kind, x: x.logits.shape[1] if x.mask is None else int(x.mask.sum()),
    "num_experts": lambda kind, x: x.logits.shape[-1],
    "w_gate_up": lambda kind, x: torch.cat((x.w_gate, x.w_up), 1),
}
# Values of inputs that a case lacks: nothing is dropped, nothing is padded, and there is one part.
ABSENT: Dict[str, Callable[[Case], Any]] = {
    "kept": lambda x: pick(Case(), x.logits.detach(), x.top_k or x.logits.shape[-1]) > 0,
    "mask": lambda x: torch.ones(x.logits.shape[1], dtype=torch.bool),
    "micro_batches": lambda x: 1,
    "sequences": lambda x: 1,
}


def check_settings(dtype: Any = None, device: Any = "cpu", seed: Any = 0, logits: Any = None, **_: Any) -> None:
    """Raises CannotJudge if nothing can be run with these settings of certify."""
    for name, value, can_be in (("dtype", dtype, (None, *FLOATS)), ("logits", logits, (None, *FORMS))):
        if value not in can_be:
            raise CannotJudge(f"{name} is {value!r:.40}, must be one of {', '.join(map(str, can_be))}")
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise CannotJudge(f"seed is {seed!r:.40}, must be a whole number from 0 to 2^63 - 1")
    try:
        float(torch.zeros(1, dtype=torch.float32, device=device))
    except Exception as error:  # Each kind of device has its own exception.
        raise CannotJudge(f"device {device}: {str(error).splitlines()[0]}") from None


class Callee:
    """A callable and its arguments. `names` maps our names of inputs to its arguments. `fixed` has its inner inputs."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: Kind,
        fixed: Optional[Mapping[str, Any]] = None,
        logits: Optional[str] = None,
    ):
        self.function, self.kind, self.logits, self.mask_type = function, kind, logits, torch.bool
        try:
            self.signature = signature_of(function)
        except (TypeError, ValueError):
            raise CannotJudge("its arguments cannot be read; wrap it in a function") from None
        self.parameters = named(self.signature)
        self.names = _names.read(self.parameters, kind.inputs)
        read = self.names.values()
        unknown = [p.name for p in self.parameters.values() if p.default is p.empty and p.name not in read]
        if kind.order and (unknown or not self.names) and self._takes(kind.order):
            self.names, self.parameters = {name: name for name in kind.order}, {}
            self.function = lambda **given: function(*given.values())
        elif unknown:
            self._refuse(self._why_unread(unknown[0]))
        self.fixed = {name: self._checked(name, value) for name, value in (fixed or {}).items()}
        has_norm = {"latent_norm"} & set(self.names)
        for name in sorted({*kind.needs, *kind.asks, *(["latent_eps"] if has_norm else [])}):
            if not {name, *IMPLIED.get(name, ())} & {*self.names, *self.fixed}:
                how = f"say which it has inside, as --set {name}=VALUE" if name in NUMBERS else ""
                self._refuse(f"it takes no {name}", how)
        if self.fixed.get("top_k", 0) > MOST_K:
            raise CannotJudge(f"top_k is {self.fixed['top_k']}, which is more than {MOST_K}")

    def _takes(self, places: Tuple[str, ...]) -> bool:
        try:
            self.signature.bind(*places)
        except TypeError:
            return False
        return True

    def _why_unread(self, name: str) -> str:
        second = [self.names[one] for one in _names.readings(name, self.kind.inputs) if one in self.names]
        if second:
            return f"{second[0]} and {name} are two names of one input"
        return f"{name} is none of {', '.join(self.kind.inputs)} or their other names"

    def _refuse(self, why: str, how: str = "") -> None:
        """Raises CannotJudge. Without `how` the reason ends in a function that can be judged, ready to paste."""
        if len(self.parameters) < len(self.signature.parameters):
            why = f"its arguments are {self.signature}, which do not say what it takes"
        if how:
            raise CannotJudge(f"{why}; {how}")
        has = {*self.names, *(name for name, by in IMPLIED.items() if by & set(self.names))}
        needed = [name for name, p in self.parameters.items() if p.default is p.empty]
        unread = [name for name in needed if name not in self.names.values()]
        name = getattr(self.function, "__name__", "my_loss")
        lines = _names.wrapper(name, self.names, sorted({*self.kind.needs} - has), unread)
        raise CannotJudge(f"{why}; wrap it in a function of these names, as\n\n{lines}")

    def _checked(self, name: str, value: Any) -> Any:
        if name in self.names:
            raise CannotJudge(f"it takes {name} itself; --set {name} is for one that does not")
        if name not in self.kind.inputs:
            raise CannotJudge(f"{self.kind.name} has no input {name}: it has {', '.join(self.kind.inputs)}")
        if name not in NUMBERS:
            raise CannotJudge(f"{name} is a tensor, which cannot be set; wrap it in a function that takes it")
        return number(name, value)

    @property
    def mask(self) -> str:
        """Returns the name of the argument that is a mask of either polarity, or ""."""
        theirs = self.names.get("mask", "")
        return "" if theirs == "attention_mask" else theirs

    # ---- inputs ----

    def case(self, x: Case) -> Case:
        """Returns the inputs that the callable takes or has inside, and the chosen experts if they are needed."""
        implied = {name for name, by in IMPLIED.items() if by & set(self.names)}
        implied |= {"w_up"} if "w_gate_up" in self.names else set()
        taken = {n: v for n, v in x.values.items() if n in {*self.names, *implied} or n not in self.kind.inputs}
        x = Case(**{**taken, **self.fixed})
        if IMPLIED["top_k"] & set(self.names) and x.logits is not None:
            x = x.but(indices=x.logits.topk(x.top_k).indices)
        return x

    def value(self, name: str, x: Case) -> Any:
        """Returns an input, or a value computed from other inputs."""
        if name in DERIVED:
            return DERIVED[name](self.kind, x)
        value = getattr(x, name)
        return ABSENT[name](x) if value is None and name in ABSENT else value

    def arguments(self, x: Case, form: str, padding: bool) -> Dict[str, Any]:
        values: Dict[str, Any] = {}
        for name, theirs in self.names.items():
            is_needed = theirs not in self.parameters or self.parameters[theirs].default is inspect.Parameter.empty
            if getattr(x, name) is None and name not in DERIVED and not is_needed:
                continue
            value = self.value(name, x)
            if name in (*LAYERED, *ONE_LAYER) and isinstance(value, Tensor) and self.kind.is_layered:
                value = tuple(value) if form == "tuple" else value[0] if form == "one" else value
            if name == "counts" and form == "one":
                value = value.sum(0)
            if name == "mask":
                value = ~value if padding else value
                value = value.to(self.mask_type)
                value = value.view(x.sequences or 1, -1).long() if theirs == "attention_mask" else value
            values[theirs] = value
        return values

    def forms(self) -> Tuple[str, ...]:
        if self.logits:
            return (self.logits,)
        if set(ONE_LAYER) & set(self.names) or self.names.get("logits") in ("logits", "x", "gate_logit"):
            return ("one",)
        if {"router", "counts"} & set(self.names):
            return ("stack", "one")
        return ("tuple", "one")

    # ---- calls ----

    def call(self, x: Case, form: str, padding: bool) -> Outputs:
        """Calls the callable once. Returns its outputs, and `delta` if it returns the noise that it drew."""
        given = called(self.function, self.parameters, self.arguments(x, form, padding))
        if self.kind.outputs != ("loss",):
            return rule(self.kind, given, x)
        out = {"loss": loss_in(given)}
        for name in FOUND if isinstance(given, dict) and self.kind.is_coupling else ():
            if given.get(name) is not None:
                shape = x.router.shape if name == "delta" else (len(x.router), len(x.router))
                shapes = (shape, (len(x.router), len(x.down))) if name == "delta" and x.down is not None else (shape,)
                if not is_plain(given[name]) or given[name].shape not in shapes:
                    raise CannotJudge(f"it returns as {name} {in_words(given[name])}, must be a tensor {list(shape)}")
                out[name] = given[name]
        return out

    def form(self, x: Case, padding: bool) -> str:
        """Returns the first form with valid outputs. A mask is bools, or 0 and 1 where the callable refuses bools. The
        form "stack" may give a loss a meaning that its author did not intend. It is named if it helps, and not used."""
        reasons = []
        mask_types = (torch.bool, torch.long) if self.mask else (torch.bool,)
        for mask_type, form in [(one, form) for one in mask_types for form in self.forms()]:
            self.mask_type = mask_type
            try:
                self.call(self.copied(x)[0], form, padding)
                return form
            except CannotJudge as error:
                reasons.append(error)
        reason = reasons[-1] if "tuple" in str(reasons[0]).splitlines()[0] else reasons[0]
        if self.logits or "stack" in self.forms() or "logits" not in self.names:
            raise reason
        with contextlib.suppress(CannotJudge):
            self.call(self.copied(x)[0], "stack", padding)
            why, _, trace = str(reason).partition("\n")
            how = "it takes one tensor [L,T,n]: give --logits stack, in Python logits='stack'"
            reason = CannotJudge(f"{why}; {how}" + (f"\n{trace}" if trace else ""))
        raise reason

    def copied(self, x: Case) -> Tuple[Case, Dict[str, Tensor]]:
        """Returns a copy of the inputs, and the inputs of the copy that have a gradient."""
        x = x.but(**{name: value.detach().clone() for name, value in x.tensors()})
        leaves = {n: getattr(x, n).requires_grad_() for n in self.kind.gradients if getattr(x, n) is not None}
        return x, leaves

    def once(self, x: Case, form: str, padding: bool) -> Outputs:
        """Runs one call and its backward pass. Returns the outputs and the gradients; an absent gradient is 0."""
        mine, leaves = self.copied(x)
        out = self.call(mine, form, padding)
        for name, value in mine.tensors():
            before, after = getattr(x, name), out.get(f"{name}_after")  # a bias may be changed in place
            if not torch.equal(value, before) and (after is None or not torch.equal(value, after.to(value.dtype))):
                raise CannotJudge(f"it changes its input {name}")
        scalar: Any = out.get("loss")
        if scalar is None and leaves:
            scalar = sum((out[name] * getattr(x, f"d_{name}")).sum() for name in self.kind.outputs)
        if leaves and scalar.requires_grad:
            try:
                scalar.backward()
            except Exception as error:
                raise raised("its backward pass raises", error) from error
        out.update({f"d_{n}": torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for n, leaf in leaves.items()})
        for name, value in out.items():
            if not bool(torch.isfinite(value).all()):
                raise CannotJudge(f"its {name} has a NaN or an infinite number")
        return {name: value.detach().cpu() for name, value in out.items()}

    def dump(self, name: str, x: Case, dtype: torch.dtype, device: str, padding: bool) -> Dump:
        """Returns the callable's outputs for these inputs. The callable is called twice, to check that its outputs
        depend on nothing but the inputs."""
        x = self.case(x).to(dtype if self.kind.gradients else max(torch.float32, dtype, key=lambda one: one.itemsize))
        x = x.but(**{key: value.to(device) for key, value in x.tensors()})
        form = self.form(x, padding)
        if form == "one":
            x = x.but(**{k: v[:1] for k, v in x.tensors() if k in LAYERED and self.kind.is_layered})
            x = x if x.counts is None else x.but(counts=x.counts.sum(0, keepdim=True))
        got = self.once(x, form, padding)
        if "delta" in got:
            x = x.but(delta=got.pop("delta"), is_drawn=True)
        else:
            again = self.once(x, form, padding)
            for key, value in got.items():
                if float((value.double() - again[key].double()).norm()) > AGAIN * float(value.double().norm()):
                    raise CannotJudge(
                        "it gives other numbers when it is called with the same inputs again: it depends on hidden state "
                        "or on random numbers" + (", which it must return as delta" if self.kind.is_coupling else "")
                    )
        return Dump(name, x.but(**{key: value.cpu() for key, value in x.tensors()}), got)

    def dumps(self, dtype: Optional[torch.dtype], device: str, seed: int, padding: bool = False) -> List[Dump]:
        """Returns dumps for all inputs of the kind, in `dtype`. Without it they are float64, or else float32."""
        with usual_defaults():
            cases = self.kind.cases(seed, 2 * int(self.fixed.get("top_k", 0)))
        for one in (dtype,) if dtype else (torch.float64, torch.float32):
            try:
                return [self.dump(name, x, one, device, padding) for name, x in cases.items()]
            except CannotJudge as error:
                reason = error
        raise reason


# ---- values of a callable ----


def is_plain(value: Any) -> bool:
    """Returns whether the value is a tensor of numbers that can be read one by one."""
    has_numbers = isinstance(value, Tensor) and value.is_floating_point()
    return has_numbers and value.layout is torch.strided and not value.is_meta


def in_words(value: Any) -> str:
    if not isinstance(value, Tensor):
        name = type(value).__name__
        return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    layout = "" if value.layout is torch.strided else f", {str(value.layout)[6:]}"
    return f"a tensor {list(value.shape)} of {value.dtype}{layout}{', meta' if value.is_meta else ''}"


def loss_in(given: Any) -> Tensor:
    """Returns the loss in the value of a callable. Raises CannotJudge if the value has no loss."""
    if isinstance(given, dict) and "loss" not in given:
        raise CannotJudge(f"it returns a dict with {', '.join(map(str, given)) or 'nothing'}, must have loss")
    loss = given["loss"] if isinstance(given, dict) else given
    if not is_plain(loss) or loss.numel() != 1:
        what = "must return the loss, a tensor of one number, or a dict with loss"
        raise CannotJudge(f"it returns {in_words(loss)}, {what}")
    one: Tensor = loss.reshape(())
    return one


def rule(kind: Kind, given: Any, x: Case) -> Outputs:
    """Returns the outputs of a rule that is not a loss. Raises CannotJudge if they are missing."""
    name = kind.outputs[0]
    if name == "bias_after" and given is None:
        return {name: x.bias}  # The bias was changed in place.
    if name == "weights" and isinstance(given, tuple) and len(given) == 2:
        given = spread(x.logits, *sorted(given, key=is_plain))
    given = given.get(name) if isinstance(given, dict) else given
    wanted = getattr(x, LIKE[name]).shape
    if not is_plain(given) or given.shape != wanted:
        raise CannotJudge(f"it returns {in_words(given)}, must return {name}, a tensor {list(wanted)}")
    return {name: given}


def spread(like: Tensor, indices: Any, weights: Any) -> Any:
    """Returns weights [T,K] of the experts of these indices as [T,n]."""
    try:
        return torch.zeros_like(like, dtype=weights.dtype).scatter(-1, indices.long(), weights)
    except (AttributeError, RuntimeError) as error:
        what = f"it returns {in_words(indices)} and {in_words(weights)}, which are no indices and weights [T,K]"
        raise CannotJudge(f"{what}: {str(error).splitlines()[0]}") from None
