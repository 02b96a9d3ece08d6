"""A dump of the coupling loss: what an implementation was given and gave (docs/certify.md, docs/formats.md)."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Dict, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._dump import tensors_in
from .._import import CannotJudge

NAMES = ("R", "W_g", "W_p", "delta", "alpha", "weight", "layers", "loss", "M", "dR", "dW_g", "dW_p", "eps")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHORT = (torch.bfloat16, torch.float16)
Half = Optional[Tensor]


@dataclass(frozen=True)
class ErcDump:
    """R, delta, dR [n,d] and M [n,n] in float64; W_g and W_p, dW_g and dW_p [n,D,d] as they were given."""

    R: Tensor
    weights: Sequence[Half]  # W_g, W_p
    loss: float
    alpha: float = 1.0
    weight: float = 1.0
    layers: float = 1.0
    delta: Half = None
    M: Half = None
    dR: Half = None
    grads: Sequence[Half] = (None, None)
    short_M: bool = False  # M is of 16 bits
    short: bool = False  # some tensor is

    @property
    def gates(self) -> Tensor:
        assert self.weights[0] is not None
        return self.weights[0]

    @property
    def n(self) -> int:
        return self.R.shape[0]

    @property
    def d(self) -> int:
        return self.R.shape[1]

    @property
    def D(self) -> int:
        return self.gates.shape[1]

    @cached_property
    def nearest(self) -> Tuple[Tensor, Tensor]:
        """The row nearest to each, and eps = |R_i - R_m| / (2 |R_i|) (paper, 3.2); 0 of a zero row and for n = 1."""
        apart = torch.cdist(self.R, self.R, compute_mode="donot_use_mm_for_euclid_dist")
        least, near = apart.fill_diagonal_(torch.inf).min(1)
        size = self.R.norm(dim=1)
        return near, torch.where((size > 0) & least.isfinite(), least / (2 * size), 0.0)

    @property
    def given_dR(self) -> Tensor:
        """Zero where it is absent."""
        return torch.zeros_like(self.R) if self.dR is None else self.dR


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(".", "")


def _check_names(tensors: Dict[str, Tensor]) -> None:
    """A gradient under a name that is not read would count as none."""
    for name in tensors:
        if name in NAMES:
            continue
        near = [one for one in NAMES if _plain(one) == _plain(name)] or get_close_matches(name, NAMES, 1)
        raise CannotJudge(
            f"tensor {name[:100]} is none of a dump's"
            + (f": did you mean {near[0]}?" if near else ";")
            + " a dump has "
            + ", ".join(NAMES[:-1])
        )


def _shape(value: Tensor) -> str:
    return str(list(value.shape)).replace(" ", "")


def _check_sizes(tensors: Dict[str, Tensor]) -> None:
    for name in ("R", "W_g", "loss"):
        if name not in tensors:
            raise CannotJudge(f"there is no tensor {name}; a dump needs R [n,d], W_g [n,D,d] and loss []")
    R, W = tensors["R"], tensors["W_g"]
    if R.dim() != 2 or not R.numel():
        raise CannotJudge(f"tensor R is {_shape(R)}, wanted [n,d]: a row an expert")
    if W.dim() != 3 or not W.numel() or (W.shape[0], W.shape[2]) != R.shape:
        raise CannotJudge(
            f"tensor W_g is {_shape(W)} and R is {_shape(R)}; wanted W_g [n,D,d] to R [n,d], rows as nn.Linear "
            "stores them"
        )
    wanted = {"delta": R.shape, "dR": R.shape, "M": (len(R), len(R)), "W_p": W.shape, "dW_g": W.shape, "dW_p": W.shape}
    for name, shape in wanted.items():
        if name in tensors and tensors[name].shape != shape:
            raise CannotJudge(
                f"tensor {name} is {_shape(tensors[name])}, but R and W_g make it {list(shape)}".replace(
                    ", ", ","
                ).replace(",but", ", but")
            )
    if "dW_p" in tensors and "W_p" not in tensors:
        raise CannotJudge("there is a tensor dW_p but no W_p")


def _check_numbers(tensors: Dict[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.dtype not in FLOATS and not (
            name in ("alpha", "weight", "layers", "loss") and value.dtype in (torch.int32, torch.int64)
        ):
            kind = str(value.dtype).replace("torch.int", "I").replace("torch.uint", "U").replace("torch.", "").upper()
            raise CannotJudge(f"tensor {name} is {kind}; a dump holds F32, F64, BF16 or F16")
        if value.is_floating_point() and not bool(torch.isfinite(value.sum())):
            bad = (~torch.isfinite(value)).nonzero()
            if len(bad):
                place = str(bad[0].tolist()).replace(" ", "")
                what = "NaN" if bool(value[tuple(bad[0])].isnan()) else "infinite"
                raise CannotJudge(
                    f"tensor {name} is {what} at {place}: a dump's numbers must be finite; of a gradient, look for "
                    "the norm of a zero vector or for a division by zero"
                )


def _number(tensors: Dict[str, Tensor], name: str) -> float:
    value = tensors.get(name, torch.ones(()))
    if value.numel() != 1 or value.dim() > 1:
        raise CannotJudge(f"tensor {name} is {_shape(value)}, wanted a single number, [] or [1]")
    number = float(value)
    for wrong, wanted in (
        (name == "alpha" and number < 0, "0 or more"),
        (name == "layers" and number < 1, "1 or more"),
        (name == "weight" and number <= 0, "more than 0: with weight 0 all gradients are 0"),
    ):
        if wrong:
            raise CannotJudge(f"tensor {name} is {number:g}, wanted {wanted}")
    return number


def of_tensors(tensors: Dict[str, Tensor]) -> ErcDump:
    """CannotJudge: a tensor is missing, unknown, of the wrong shape or type, or has a NaN."""
    _check_names(tensors)
    _check_sizes(tensors)
    _check_numbers(tensors)
    loss, alpha, weight, layers = (_number(tensors, name) for name in ("loss", "alpha", "weight", "layers"))
    delta, M, dR = (tensors[name].double() if name in tensors else None for name in ("delta", "M", "dR"))
    halves = [tensors.get(name) for name in ("W_g", "W_p", "dW_g", "dW_p")]
    return ErcDump(
        tensors["R"].double(),
        halves[:2],
        loss,
        alpha,
        weight,
        layers,
        delta,
        M,
        dR,
        halves[2:],
        short_M="M" in tensors and tensors["M"].dtype in SHORT,
        short=any(value.dtype in SHORT for value in tensors.values()),
    )


def read(path: Union[str, pathlib.Path]) -> ErcDump:
    return of_tensors(tensors_in(pathlib.Path(path))[0])
