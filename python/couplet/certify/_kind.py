"""A kind of loss: its reference, its known faults, and inputs on which the faults differ."""

from __future__ import annotations

import contextlib
import csv
import functools
import pathlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import Tensor

Outputs = Dict[str, Tensor]  # "loss" [] or the outputs of a rule, and "d_NAME", the gradient of input NAME
Has = Callable[[str], Any]  # has(key): True or its value for the one fault that is assumed, False for all others


class Case:
    """Inputs by name, as x.top_k. An input that was not given is None."""

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
        """Returns the coefficient, or 1 if no coefficient is given."""
        return 1.0 if self.coefficient is None else float(self.coefficient)

    @property
    def steps(self) -> int:
        """Returns the steps of gradient accumulation: all micro-batches, unless some are known to be of other ranks."""
        return int(self.values.get("steps") or self.micro_batches or 1)

    def tensors(self) -> Iterator[Tuple[str, Tensor]]:
        return ((name, value) for name, value in self.values.items() if isinstance(value, Tensor))

    def to(self, dtype: torch.dtype) -> "Case":
        return self.but(**{name: value.to(dtype) for name, value in self.tensors() if value.is_floating_point()})

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns a value that depends on the inputs and `key` alone. It is kept in x.memo, a dict, if there is one."""
        if self.memo is None:
            return make()
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


@dataclass(frozen=True)
class Fault:
    """A known way to be wrong. `values` are the tried values of the fault's parameter. `seen` is a public example."""

    key: str
    sentence: str
    remedy: str
    seen: str = ""
    values: Tuple[Any, ...] = (None,)


@dataclass(frozen=True)
class Kind:
    """A loss, or another rule of a router, with one stated convention.
    reference(x, has): the loss [] or outputs by name, in any dtype, differentiable in `gradients`, with `has`'s fault
    inputs: names that an implementation may take
    cases(seed, n): inputs by name on which the faults differ, with n experts or more
    needs: inputs without which the loss does not exist
    scores: the function from logits to the scores that a callable may take in place of logits
    asks: inputs that a function must have inside, and name, if it does not take them
    order: inputs of a function whose arguments have unknown names"""

    name: str
    reference: Callable[[Case, Has], Any]
    inputs: Tuple[str, ...]
    cases: Callable[[int, int], Dict[str, Case]]
    needs: Tuple[str, ...]
    gradients: Tuple[str, ...] = ("logits",)
    outputs: Tuple[str, ...] = ("loss",)
    scores: Callable[[Tensor], Tensor] = lambda logits: logits.softmax(-1)
    asks: Tuple[str, ...] = ()
    order: Tuple[str, ...] = ()

    @property
    def faults(self) -> Tuple[Fault, ...]:
        return faults(ABOUT[self.name]["faults"])

    @property
    def is_layered(self) -> bool:
        """Returns whether logits are [L,T,n] or routers [L,n,d]."""
        return self.outputs == ("loss",) and not self.is_coupling

    @property
    def is_coupling(self) -> bool:
        """Returns whether the loss is one of router and gates, with one layer and the outputs M and delta."""
        return "w_gate" in self.needs

    def fault(self, key: str) -> Fault:
        return next(one for one in self.faults if one.key == key)


def right(key: str) -> Any:
    """Assumes no fault: returns False for every key."""
    return False


def only(key: str, value: Any = None) -> Has:
    """Returns the function `has` of one fault."""
    return lambda name: name == key and (True if value is None else value)


# ---- tables ----


def table(name: str) -> List[Dict[str, str]]:
    with open(pathlib.Path(__file__).parent / "kinds" / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


FAULTS = table("faults.tsv")
ABOUT = {row["kind"]: row for row in table("kinds.tsv")}
VALUES = {
    ("deepseek", "epsilon"): (1e-20, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0),
    ("gate", "epsilon"): (1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0),
    ("latent", "down_gradient_summed"): (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256),
    ("pairs", "epsilon"): (1e-4, 1e-3, 1e-2, 0.1, 1.0),
}


@functools.cache
def faults(words: str) -> Tuple[Fault, ...]:
    """Returns the faults of faults.tsv that the words name. A word is a group, `group:key`, or `-key` for removal."""
    found: Dict[str, Fault] = {}
    for word in words.split():
        group, _, key = word.partition(":")
        rows = [row for row in FAULTS if row["group"] == group and key in ("", row["key"])]
        for row in rows:
            values = VALUES.get((group, row["key"]), (None,))
            found[row["key"]] = Fault(row["key"], row["fault"], row["remedy"], row["seen in"] or "", values)
        if word.startswith("-"):
            del found[word[1:]]
        elif not rows:
            raise KeyError(word)
    return tuple(found.values())


@contextlib.contextmanager
def usual_defaults() -> Iterator[None]:
    """Makes new tensors float32 and on the CPU, whatever torch.set_default_dtype and torch.device set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
