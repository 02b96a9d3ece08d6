"""What experts make of proxies, and the gradient of it: each activation of the loss, forward and backward.

Shapes: m proxies x; one expert's [m, D] or [m, d] (plain torch on the CPU), or those of c experts [c, m, D] (an
accelerator). `Products` says how matrices are taken and multiplied in each case."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ContextManager, Optional, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _noise
from ._job import Experts, Job


def without_autocast(device: torch.device) -> ContextManager[None]:
    """torch.autocast would round the operands of products, whatever `compute` says."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def widest(device: torch.device) -> torch.dtype:
    """Of hinges and their sums."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_wide(job: Job) -> bool:
    return torch.float64 in (job.router.dtype, *(x.dtype for x in job.matrices))


def drawn_or_given(job: Job, router: Tensor) -> Optional[Tensor]:
    """delta [n, d] of the router's dtype; None: no noise."""
    if job.delta is not None:
        return job.delta.to(router.dtype)
    if job.noise == "none":
        return None
    return _noise.bounded(router, job.seed, job.step, job.layer, job.draw)


class Products(Protocol):
    """How one path takes matrices and multiplies. W: of one expert or of those at `at`, as `take` gives it."""
    job: Job

    def take(self, experts: Experts, at: slice) -> Tensor:
        """W [..., r, k] as it enters products."""

    def operand(self, x: Tensor) -> Tensor:
        """x in the dtype of products."""

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        """x W^T [..., m, r] of x [..., m, k], f32 or wider."""

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        """The gradient of `forward` by x: d W [..., m, k], d [..., m, r]; f32 or wider."""

    def backward_to_proxies(self, d: Tensor, W: Tensor) -> Tensor:
        """`backward`, summed over the experts: [m, k]."""

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        """The gradient of `forward` by W: to[at] += d^T x; d [..., m, r], x [..., m, k]."""

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        """x * scale[..., None]; x may be overwritten."""


@dataclass
class Response:
    """Of m proxies, each [..., m, D], and `out`, whose norm is M."""
    z: Optional[Tensor] = None
    u: Optional[Tensor] = None
    h: Optional[Tensor] = None
    out: Optional[Tensor] = None

    def rows(self, which: Tensor) -> "Response":
        pick = lambda t: None if t is None else t.index_select(-2, which)
        return Response(pick(self.z), pick(self.u), pick(self.h), pick(self.out))


def respond(p: Products, at: slice, x: Tensor) -> Response:
    """x: proxies in the dtype of products."""
    job, r = p.job, Response()
    if job.gate is not None:
        r.z = r.out = p.forward(x, p.take(job.gate, at))
    if job.up is not None:
        r.u = r.out = p.forward(x, p.take(job.up, at))
    if job.activation == "silu":
        r.out = F.silu(r.z)
    elif job.activation in ("swiglu", "output"):
        r.h = r.out = F.silu(r.z) * r.u
    if job.activation == "output":
        r.out = p.forward(p.operand(r.h), p.take(job.down, at))
    return r


def _silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def respond_backward(p: Products, at: slice, x: Tensor, r: Response, scale: Tensor) -> Optional[Tensor]:
    """Adds the gradients of the matrices for d out = scale * out, scale [..., m]; returns that of x, None where
    the router wants none."""
    job = p.job
    dout = p.scaled(r.out, scale)
    if job.activation == "output":
        dout = p.operand(dout)
        p.add_gradient(job.d_down, at, dout, p.operand(r.h))
        dout = p.backward(dout, p.take(job.down, at))
    dz = dout if job.activation == "gate" else None
    du = dout if job.activation == "up" else None
    if job.activation == "silu":
        dz = dout * _silu_slope(r.z)
    elif job.activation in ("swiglu", "output"):
        dz, du = dout * r.u * _silu_slope(r.z), dout * F.silu(r.z)
    dx = None
    for d, weights, gradient in ((dz, job.gate, job.d_gate), (du, job.up, job.d_up)):
        if d is not None:
            d = p.operand(d)
            if job.wants_router:
                part = p.backward_to_proxies(d, p.take(weights, at))
                dx = part if dx is None else dx + part
            p.add_gradient(gradient, at, d, x)
    return dx
