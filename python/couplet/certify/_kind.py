"""What the judge knows of a kind of loss: its reference, its faults and inputs on which they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterator, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

Outputs = Dict[str, Tensor]  # "loss" [] and "d_NAME" of each input that has a gradient, or other names


class Case:
    """What an implementation was given: tensors and numbers by name, `x.top_k`. A name that was not given is None."""

    def __init__(self, **values: Any):
        self.values: Dict[str, Any] = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.values.get(name)

    def but(self, **values: Any) -> "Case":
        return Case(**{**self.values, **values})

    @property
    def times(self) -> float:
        """The coefficient; 1 if there is none."""
        return 1.0 if self.coefficient is None else float(self.coefficient)

    @property
    def steps(self) -> Any:
        """Of accumulation: all micro-batches, unless it is known that some are of other ranks; None: one."""
        steps = self.values.get("steps", self.micro_batches)
        return None if steps == 1 else steps

    def to(self, dtype: torch.dtype) -> "Case":
        other = {
            name: value.to(dtype)
            for name, value in self.tensors()
            if value.is_floating_point() and value.dtype != dtype
        }
        return (
            Case(**{name: value for name, value in {**self.values, **other}.items() if name != "memo"})
            if other
            else self
        )

    def once(self, key: Tuple[Any, ...], value: Callable[[], Any]) -> Any:
        """What depends on nothing but the inputs and `key`; kept if the case has a memo."""
        if self.memo is None:
            return value()
        if key not in self.memo:
            self.memo[key] = value()
        return self.memo[key]

    def tensors(self) -> Iterator[Tuple[str, Tensor]]:
        return ((name, value) for name, value in self.values.items() if isinstance(value, Tensor))


def one_group(x: Case) -> bool:
    return (x.micro_batches or 1) == 1 and (x.sequences or 1) == 1


@dataclass(frozen=True)
class Fault:
    """A known way to be wrong.
    `scale`: for a fault that multiplies loss and gradients, the two factors for a case; None: the reference itself
    has it, under its key. `values`: those of its parameter, tried in order. `seen`: a public example."""

    key: str
    sentence: str
    remedy: str
    seen: str = ""
    scale: Optional[Callable[[Case], Tuple[float, float]]] = None
    values: Tuple[float, ...] = ()
    needs: str = ""  # the input without which it does not exist
    same: Optional[Callable[[Case], bool]] = None  # where it changes nothing
    apart: bool = False  # loss and gradients differ in it: it is looked for where a loss was given
    picks: bool = False  # which of the experts that tie a token goes to matters beyond the counts

    def is_idle(self, x: Case) -> bool:
        return bool(self.needs) and getattr(x, self.needs) is None


class Has:
    """The faults of a hypothesis, as a reference asks for them: has("key") is False, True, or the value of a fault
    that has a parameter."""

    def __init__(self, faults: Mapping[str, Optional[float]]):
        self.faults = faults

    def __call__(self, key: str) -> Any:
        if key not in self.faults:
            return False
        value = self.faults[key]
        return True if value is None else value


NONE = Has({})


@dataclass(frozen=True)
class Kind:
    """A loss, or another rule of a router, with one stated convention.
    `reference(x, has)`: the loss [] or, of a rule that is no loss, its outputs by name; differentiable in `gradients`,
    in any dtype. `inputs`: names that an implementation may take, with other people's names for the same.
    `cases(seed)`: inputs by name on which the faults differ."""

    name: str
    formula: str
    source: str
    reference: Callable[[Case, Has], Any]
    faults: Sequence[Fault]
    inputs: Mapping[str, Tuple[str, ...]]
    cases: Callable[[int], Dict[str, Case]]
    needs: FrozenSet[str]  # inputs without which there is no such loss
    gradients: Tuple[str, ...] = ("logits",)
    balance: str = ""  # docs/losses.md: its value when all experts get the same
    collapse: str = ""  # and when all tokens go to the same K experts
    scale: str = ""  # what it depends on besides
    code: str = "not in Couplet"  # the code of Couplet that computes it
    outputs: Tuple[str, ...] = ("loss",)
    range: str = ""  # docs/losses.md: between which values it lies

    def fault(self, key: str) -> Fault:
        return next(one for one in self.faults if one.key == key)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
