"""Responses of experts to proxies, and their gradients: each activation of the loss, forward and backward.

Shapes: m proxies x [m, d] of c experts, or x [c, m, d], each expert's own; responses [c, m, D] or [c, m, d]. `Products`
defines how matrices are taken and multiplied on the CPU and on an accelerator."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ContextManager, Optional, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _noise
from ._job import LINEAR, Experts, Job


def without_autocast(device: torch.device) -> ContextManager[None]:
    """Switches torch.autocast off: it would round the operands of products, whatever `compute` is."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):  # type: ignore[no-untyped-call, unused-ignore]
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def as_rows(W: Tensor) -> Optional[Tensor]:
    """Returns [c, r, k] as a view [c r, k], or None if the stride between matrices differs from r rows."""
    c, r, k = W.shape
    if c == 1 or r == 1 or W.stride(0) == r * W.stride(1):
        return W.as_strided((c * r, k), (W.stride(1) if r > 1 else W.stride(0), W.stride(2)))
    return None


def widest(device: torch.device) -> torch.dtype:
    """Returns the dtype of hinges and their sums."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_wide(job: Job) -> bool:
    return torch.float64 in (job.router.dtype, *(x.dtype for x in job.matrices))


def tie_of(operands: torch.dtype, job: Job) -> float:
    """Returns the share of its bound by which M may be below the bound and still count as equal. At an exact tie, of
    equal experts or of equal rows, the gradient passes (docs/method.md 3.5). A product adds in an order that depends on
    the place of a row, so that the last bits differ. Errors of sums of d numbers grow with sqrt(d), and a norm of D
    such sums spreads them. Operands that are rounded to 16 bits make the errors larger. SiLU does too: it makes
    negative numbers small and leaves their errors (measured: 5 times)."""
    share = (3 + (24 + job.d**0.5) / job.D**0.5) * torch.finfo(operands).eps
    return 2.0**-14 if operands.itemsize == 2 else share * (1 if job.activation in LINEAR else 8)


def drawn_or_given(job: Job, router: Tensor) -> Optional[Tensor]:
    """Returns delta [n, d] in the router's dtype, or None for no noise."""
    if job.delta is not None:
        return job.delta.to(router.dtype)
    if job.noise == "none":
        return None
    return _noise.bounded(router, job.seed, job.step, job.layer, job.draw)


class Products(Protocol):
    """How one path takes matrices and multiplies. W: matrices of the experts at `at`, from `take_matrices`."""

    job: Job

    def take_matrices(self, experts: Experts, at: slice) -> Tensor:
        """Returns W [c, r, k] in the form in which it enters products."""

    def operand(self, x: Tensor) -> Tensor:
        """Returns x in the dtype of products."""

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        """Returns x W^T [c, m, r] for x [m, k] or [c, m, k], f32 or wider."""

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        """Returns the gradient of `forward` by x: d W [c, m, k], d [c, m, r], f32 or wider."""

    def backward_to_proxies(self, d: Tensor, W: Tensor) -> Tensor:
        """Returns `backward`, summed over the experts: [m, k]."""

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        """Adds the gradient of `forward` by W: to[at] += d^T x; d [c, m, r], x [m, k] or [c, m, k]."""

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        """Returns x * scale[..., None]; x may be overwritten."""


@dataclass
class Response:
    """Responses to m proxies: `out`, whose norm is M, and the tensors from which it is computed, each [c, m, D]."""

    out: Tensor
    z: Optional[Tensor] = None  # output of the gate
    u: Optional[Tensor] = None  # output of the up projection
    h: Optional[Tensor] = None  # silu(z) * u

    def one(self, k: int, rows: Optional[Tensor] = None) -> Response:
        """Returns the responses of expert k alone, to the given proxies or to all."""

        def pick(t: Tensor) -> Tensor:
            return t[k : k + 1] if rows is None else t[k].index_select(0, rows)[None]

        return Response(pick(self.out), *(None if t is None else pick(t) for t in (self.z, self.u, self.h)))


def respond(p: Products, at: slice, x: Tensor) -> Response:
    """Returns the responses to x, proxies in the dtype of products."""
    job = p.job
    z = None if job.gate is None else p.forward(x, p.take_matrices(job.gate, at))
    u = None if job.up is None else p.forward(x, p.take_matrices(job.up, at))
    if u is None:
        assert z is not None, "an activation uses gate or up"
        return Response(F.silu(z) if job.activation == "silu" else z, z)
    if z is None:
        return Response(u, u=u)
    if job.activation == "gate_up":
        return Response(torch.cat((z, u), dim=-1))
    h = F.silu(z) * u
    out = h if job.down is None else p.forward(p.operand(h), p.take_matrices(job.down, at))
    return Response(out, z, u, h)


def _silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def respond_backward(p: Products, at: slice, x: Tensor, r: Response, scale: Tensor) -> Optional[Tensor]:
    """Adds the gradients of the matrices for d out = scale * out, scale [c, m]. Returns the gradient of x, or None if
    the router needs no gradient. The tensors of r are overwritten."""
    job = p.job
    dout = p.scaled(r.out, scale)
    if job.down is not None and r.h is not None:
        dout = p.operand(dout)
        p.add_gradient(job.d_down, at, dout, p.operand(r.h))
        dout = p.backward(dout, p.take_matrices(job.down, at))
    dz = dout if job.activation == "gate" else None
    du = dout if job.activation == "up" else None
    if job.activation == "gate_up":
        dz, du = dout[..., : job.D], dout[..., job.D :]
    if r.z is not None and job.activation not in ("gate", "up"):
        dz = dout * _silu_slope(r.z) if r.u is None else dout * r.u * _silu_slope(r.z)
        du = None if r.u is None else dout * F.silu(r.z)
    dx = None
    for d, weights, gradient in ((dz, job.gate, job.d_gate), (du, job.up, job.d_up)):
        if d is not None and weights is not None:
            d = p.operand(d)
            if job.wants_router:
                part = (p.backward if x.dim() == 3 else p.backward_to_proxies)(d, p.take_matrices(weights, at))
                dx = part if dx is None else dx + part
            p.add_gradient(gradient, at, d, x)
    return dx
