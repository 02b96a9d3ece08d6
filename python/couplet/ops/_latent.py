"""Latent experts (docs/pytorch.md). They read V = W_l R~ [n, l] in place of the proxies R~ = R * delta [n, d], so that
their loss is the operator's loss of the rows V without noise. V is f32 or wider, whatever `compute` is."""

from __future__ import annotations

import math
import operator
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _noise, _operator
from ._checks import check_counters, check_dtype, check_finite, described, refuse
from ._response import without_autocast
from ._tags import tags

Arguments = Tuple[Optional[Tensor], Optional[Tensor], Optional[float]]  # down, latent_norm, latent_eps of a caller


class Latent(NamedTuple):
    """The projection of a layer."""

    down: Tensor  # W_l [l, d]
    norm: Optional[Tensor]  # g [l], where a norm acts on W_l x
    eps: float  # the norm's

    @property
    def tensors(self) -> List[Tensor]:
        return [self.down] if self.norm is None else [self.down, self.norm]

    def read(self, x: Tensor) -> Tensor:
        """Returns what the experts read of x [m, d]: [m, l], in the dtype of x."""
        return project(x, self.down.to(x.dtype), None if self.norm is None else self.norm.to(x.dtype), self.eps)


def latent_of(down: Optional[Tensor], norm: Optional[Tensor], eps: Optional[float]) -> Optional[Latent]:
    """Returns the projection that the arguments describe, or None."""
    if down is None and (norm is not None or eps):
        refuse("latent_norm and latent_eps are of a norm on the output of down, which is None; give down [l, d]")
    if norm is not None and eps is None:
        refuse("latent_norm is given without latent_eps, the number that the norm adds below its root; give both")
    if norm is None and eps:
        refuse("latent_eps is given without latent_norm; give the norm's weight [l], ones for a norm without a weight")
    return None if down is None else Latent(down, norm, check_eps(eps or 0.0))


def check_eps(eps: Any) -> float:
    if not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
        refuse(f"latent_eps is {eps!r}, must be a number >= 0")
    return float(eps)


def check(latent: Latent, router: Tensor) -> int:
    """Returns l. Raises ValueError or TypeError for a projection that does not fit the router [n, d]."""
    (n, d), down = router.shape, latent.down
    for name, t in zip(("down", "latent_norm"), latent.tensors):
        if not isinstance(t, Tensor):
            raise TypeError(f"couplet: {name} is {described(t)}, must be a tensor")
        if t.device != router.device or t.layout != torch.strided:
            refuse(f"{name} is {t.layout} on {t.device}, must be dense on the router's {router.device}")
        check_dtype(t.dtype, name)
    if down.dim() != 2 or down.shape[1] != d:
        turned = "; if it is transposed, pass down.mT" if down.dim() == 2 and down.shape[0] == d else ""
        refuse(f"down is {list(down.shape)}, must be [l, {d}] beside a router {[n, d]}{turned}")
    if latent.norm is not None and latent.norm.shape != down.shape[:1]:
        refuse(f"latent_norm is {list(latent.norm.shape)}, must be {[down.shape[0]]} beside down {list(down.shape)}")
    return int(down.shape[0])


# ---- noise of the router, in d ----


def _delta(router: Tensor, given: Optional[Tensor], seed: int, step: int, layer: int, draw: int) -> Tensor:
    check_counters(step, layer, draw)
    if given is None:
        return _noise.bounded(router, seed, step, layer, draw)
    check_finite(given)
    return given.to(router.dtype)


# A graph has the noise as an operator, so that the step may change.
@torch.library.custom_op("couplet::latent_noise", mutates_args=(), **tags("cudagraph_unsafe"))
def _delta_in_a_graph(
    router: Tensor, given: Optional[Tensor], step_tensor: Optional[Tensor], seed: int, step: int, layer: int, draw: int
) -> Tensor:
    step = step if step_tensor is None else operator.index(step_tensor)
    return _delta(router, given, seed, step, layer, draw).clone()


@_delta_in_a_graph.register_fake
def _(router: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(router, memory_format=torch.contiguous_format)


# ---- the rows V ----


def project(x: Tensor, down: Tensor, norm: Optional[Tensor], eps: float) -> Tensor:
    """Returns v = W_l x of x [m, d], or g v / sqrt(mean(v^2) + eps), [m, l]."""
    v = x @ down.mT
    return v if norm is None else norm * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps))


class _Rows(torch.autograd.Function):
    """project(R * delta). Autocast changes neither pass, and the backward pass has no derivative."""

    @staticmethod
    def forward(
        ctx: Any, R: Tensor, down: Tensor, norm: Optional[Tensor], delta: Optional[Tensor], eps: float
    ) -> Tensor:
        ctx.save_for_backward(R, down, norm, delta)
        ctx.eps = eps
        with without_autocast(R.device):
            return project(R if delta is None else R * delta, down, norm, eps)

    @staticmethod
    def backward(ctx: Any, d_rows: Tensor) -> Any:
        R, down, norm, delta = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        found: List[Optional[Tensor]] = [None, None, None]
        with torch.no_grad(), without_autocast(R.device):
            dv, x = d_rows, R if delta is None else R * delta
            if norm is not None:
                v = x @ down.mT
                r = torch.rsqrt(v.square().mean(-1, keepdim=True) + ctx.eps)
                u, du = v * r, d_rows * norm
                found[2] = (d_rows * u).sum(0) if wanted[2] else None
                dv = r * (du - u * (du * u).mean(-1, keepdim=True))
            found[1] = dv.mT @ x if wanted[1] else None
            if wanted[0]:
                dx = dv @ down
                found[0] = dx if delta is None else dx * delta
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            there = [t for t in found if t is not None]
            last = iter(_operator._Last.apply(len(there), *there, d_rows, R, down))
            found = [None if t is None else next(last) for t in found]
        return (*found, None, None)


def rows(
    router: Tensor,
    latent: Latent,
    dtype: torch.dtype,
    noise: str,
    delta: Optional[Tensor],
    seed: int,
    step: Union[int, Tensor],
    layer: int,
    draw: int,
) -> Tensor:
    """Returns V [n, l], with a graph to router, down and norm. dtype: the dtype of the experts' matrices.

    noise: "bounded", "none", or "drawn": then `delta` is the result of _noise.of_layers. Given delta is in d."""
    tensors = [router, *latent.tensors]
    wide = torch.float64 if torch.float64 in {dtype, *(t.dtype for t in tensors)} else torch.float32
    R, down = router.to(wide), latent.down.to(wide)
    norm = None if latent.norm is None else latent.norm.to(wide)
    if torch.compiler.is_compiling():
        numbers = (None, seed, step) if not isinstance(step, Tensor) else (step, seed, 0)
        if noise != "none" or delta is not None:
            delta = _delta_in_a_graph(R.detach(), delta, *numbers, layer, draw)
    elif noise != "drawn" and (noise != "none" or delta is not None):
        with torch.no_grad(), without_autocast(R.device):
            delta = _delta(R.detach(), delta, seed, operator.index(step), layer, draw)
    found: Tensor = _Rows.apply(R, down, norm, delta, latent.eps)
    return found
