"""The coupling loss on an accelerator (CUDA, ROCm, XPU, MPS): a few large products, masks in place of row lists,
no synchronisation with the host.

    forward    z = W x, all experts against all proxies; M = |z|
    hinges     on [n, c], all at once
    backward   dx = W^T dz and dW = dz x^T, with dz = scale * z

Operands of products have the dtype of the matrices (bf16: tensor cores). Results are f32: by `out_dtype` of torch.mm
where torch has it, else rounded to the operands' dtype first. z of a layer is kept until dz is made. Other activations
than gate and up compute z twice, in chunks of experts (docs/pytorch/gpu.md counts the memory).

dW is the last product and needs neither W nor another process. A job with `factors` leaves dW out: erc_loss multiplies
in its backward call, where the loss's own gradient is a factor of x.

Shapes: c experts of a chunk; z [c, n, D], with D before n in memory, so that z = W x is one product of the
matrices [c D, d] where these are contiguous in memory."""

from __future__ import annotations

import functools
import math
from typing import Iterator, Optional, Union

import torch
from torch import Tensor

from . import _plain
from ._job import Experts, Job, Phases, Result
from ._response import Response, as_rows, drawn_or_given, is_wide, respond, respond_backward, tie_of, widest

SHARE = 20  # a chunk of experts has at most the gates' bytes / SHARE
LEAST_BYTES = 1 << 25  # or at least this many bytes, as much as the workspace of cuBLAS on an H100
MOST_Z = 1.0  # largest share of the gates' bytes up to which z is kept

Factor = Union[float, Tensor]  # a number, or a tensor of one number on the device


# ---- products ----


@functools.lru_cache(maxsize=None)
def _has_out_dtype(device_type: str) -> bool:
    """Returns whether torch.mm of bf16 has an f32 result on this type of device."""
    return device_type == "cuda" and torch.version.hip is None and hasattr(torch.ops.aten.mm, "dtype")


@functools.lru_cache(maxsize=None)
def _multiplies_bf16(device: torch.device) -> bool:
    """Returns False for NVIDIA GPUs before Ampere, which only emulate bf16: products are f32 there."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= (8, 0)


def products_dtype(job: Job) -> torch.dtype:
    """Returns the dtype of the operands of products."""
    if is_wide(job):
        return torch.float64
    if job.compute == "f32" or (job.compute == "" and _plain.is_for(job.router.device)):
        return torch.float32
    dtype = torch.bfloat16 if job.compute == "bf16" else job.matrices[0].dtype
    if dtype == torch.bfloat16 and not _multiplies_bf16(job.router.device):
        return torch.float32
    return dtype


def _multiply(a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """Returns a b with an f32 or wider result; both are [r, k] or both [c, r, k]."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype.itemsize > 2:
        return product(a, b, out=out)
    if _has_out_dtype(a.device.type):
        more = {} if out is None else {"out": out}
        return product(a, b, out_dtype=torch.float32, **more)
    if a.device.type == "cpu":  # only tests use the CPU
        return product(a.float(), b.float(), out=out)
    return product(a, b).float() if out is None else out.copy_(product(a, b))


def lift_of(u: float, dtype: torch.dtype) -> float:
    """Returns a power of two that makes u near 1 in f16, whose range is small. Products that become gradients are
    divided by it."""
    is_lifted = dtype == torch.float16 and 0 < abs(u) < math.inf
    return 2.0 ** -round(math.log2(abs(u))) if is_lifted else 1.0


# ---- gradients of matrices ----


def add_gradient(to: Experts, at: slice, d: Tensor, x: Tensor, beta: int, factor: Factor, room: int) -> None:
    """Computes to[at] = beta * to[at] + factor * d x, for d [c, r, n] and x [n, k] or [c, n, k]. With beta 0, `to` may
    have undefined contents. room: bytes for temporary results where `to` has another dtype than products."""
    if isinstance(factor, Tensor) and to.dtype == x.dtype:  # a product in place has no factor on the device
        x, factor = torch.mul(x, factor.reshape([1] * x.dim()), out=torch.empty_like(x)), 1.0
    each = x.expand(len(d), -1, -1)
    if to.stacked is None:
        for target, a, b in zip(to.single[at], d, each):
            _add_product(target, a, b, beta, factor)
        return
    targets = to.stacked[at]
    size = len(d) if to.dtype == x.dtype else max(1, room // (4 * d.shape[1] * x.shape[-1]))
    for k in range(0, len(d), size):
        target, a = targets[k : k + size], d[k : k + size]
        rows, one = as_rows(a), as_rows(target)
        if x.dim() == 2 and rows is not None and one is not None:
            _add_product(one, rows, x, beta, factor)
        else:
            _add_product(target, a, each[k : k + size], beta, factor)


def _add_product(target: Tensor, a: Tensor, b: Tensor, beta: int, factor: Factor) -> None:
    if target.dtype == a.dtype and not isinstance(factor, Tensor):
        (target.addmm_ if target.dim() == 2 else target.baddbmm_)(a, b, beta=beta, alpha=factor)
        return
    product = _multiply(a, b).mul_(factor)
    target.copy_(product) if beta == 0 else target.add_(product)


# ---- the experts of a chunk ----


class Work:
    """State that the phases share: the proxies and how matrices are multiplied (Products)."""

    def __init__(self, job: Job):
        self.job = job
        self.c = job.end - job.first
        self.dtype = products_dtype(job)
        self.f32 = torch.float64 if is_wide(job) else torch.float32
        self.widest = widest(job.router.device)
        router = job.router if job.delta is not None else job.router.to(self.f32)
        self.delta = drawn_or_given(job, router) if job.delta is None else job.delta.to(self.f32)
        if self.delta is None:
            self.x = self.operand(router)  # [n, d], the proxies
        else:
            self.x = torch.mul(router, self.delta, out=torch.empty_like(router, dtype=self.dtype))
        self.d_proxy: Optional[Tensor] = None
        self.u = job.weight / job.n**2
        self.lift = lift_of(self.u, self.dtype)
        self.factor: Factor = 1 / self.lift if job.scale is None else job.scale.to(self.f32) / self.lift
        self.gates = sum(self.c * math.prod(W.shape[1:]) * W.dtype.itemsize for W in job.matrices)  # bytes
        self.room = max(LEAST_BYTES, self.gates // SHARE)  # bytes for a chunk
        self.z: Optional[Tensor] = None  # f32 [c, D, n], memory of a chunk's response

    def operand(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    @property
    def copies(self) -> bool:
        """Returns whether products copy matrices: from lists, from another dtype, or from interleaved columns."""
        return any(
            W.stacked is None or W.dtype != self.dtype or 1 not in W.stacked.stride()[1:] for W in self.job.matrices
        )

    def take_matrices(self, experts: Experts, at: slice) -> Tensor:
        return self.operand(experts.chunk(at))

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        if x.dim() == 3:
            return _multiply(x, W.mT)
        (c, r, _), one, n = W.shape, as_rows(W), len(x)
        if one is not None:
            return _multiply(one, x.mT, None if self.z is None else self.z.view(c * r, n)).view(c, r, n).mT
        return _multiply(W, x.mT.expand(c, -1, -1), self.z).mT

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        return _multiply(d, W)

    def backward_to_proxies(self, d: Tensor, W: Tensor) -> Tensor:
        """Computes the sum a few experts at once, without memory for all experts' part [c, n, d]."""
        rows, weights = as_rows(d.mT), as_rows(W)
        if rows is not None and weights is not None:
            return _multiply(rows.mT, weights)
        parts = [
            _multiply(d[at], W[at]).sum(0) for at in self.chunks(len(W), self.f32.itemsize * self.job.n * self.job.d)
        ]
        return functools.reduce(torch.Tensor.add_, parts)

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        if to is not None and self.job.factors is not None:
            self.job.factors.append((to, d.mT, x))
        elif to is not None:
            add_gradient(to, at, d.mT, x, 0 if self.job.fresh else 1, self.factor, self.room)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        if self.job.activation not in ("gate", "up"):
            return x * scale[..., None]
        return torch.mul(x, scale[..., None], out=x if x.dtype == self.dtype else torch.empty_like(x, dtype=self.dtype))

    def chunks(self, count: int, bytes_each: int) -> Iterator[slice]:
        """Returns slices of `count` experts, each with as many experts as there is room for."""
        size = max(1, min(count, self.room // max(1, bytes_each)))
        return (slice(a, min(a + size, count)) for a in range(0, count, size))


# ---- the phases ----


def _bytes_of_expert(w: Work, has_z: bool, is_backward: bool) -> int:
    """Returns the bytes of an expert in a chunk: copies of its matrices, and the tensors of `respond`."""
    job, wide = w.job, w.f32.itemsize
    copied = sum(math.prod(W.shape[1:]) for W in job.matrices) * w.dtype.itemsize if w.copies else 0
    z, dz = job.n * job.D * wide, job.n * job.D * w.dtype.itemsize
    if job.activation in ("gate", "up"):
        return copied + (0 if has_z else z) + (dz if is_backward else 0)
    made = {"silu": 2 * z, "gate_up": 4 * z, "swiglu": 4 * z, "output": 4 * z + job.n * job.d * wide}[job.activation]
    return copied + made * (2 if is_backward else 1)


def _memory_of_z(w: Work) -> Optional[Tensor]:
    """Returns memory [c, D, n] for z of all experts, or None if z is computed again or not needed any more."""
    job = w.job
    is_kept = (
        job.backward
        and job.activation in ("gate", "up")
        and w.c * job.D * job.n * w.f32.itemsize <= max(LEAST_BYTES, MOST_Z * w.gates)
    )
    return torch.empty(w.c, job.D, job.n, dtype=w.f32, device=w.x.device) if is_kept else None


def _forward(w: Work) -> tuple[Tensor, Optional[Tensor]]:
    """Returns M [n, c], and z [c, n, D] of all experts where it is kept."""
    M = torch.empty(w.job.n, w.c, dtype=w.f32, device=w.x.device)
    z = _memory_of_z(w)
    for at in w.chunks(w.c, _bytes_of_expert(w, z is not None, False)):
        w.z = None if z is None else z[at]
        torch.linalg.vector_norm(respond(w, at, w.x).out, dim=-1, out=M.mT[at])
    w.z = None
    return M, None if z is None else z.mT


def _hinges(w: Work, M: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns violations [2, n] of rows and columns, this part of the sum, and the number of active hinges at each pair
    [n, c]: 0, 1 or 2. M is [n, c]."""
    job, n = w.job, w.job.n
    here = slice(job.first, job.end)
    bound = diagonal.to(w.widest) * job.alpha
    least = bound * (1 - tie_of(w.dtype, job))
    above = torch.empty(2, w.c, n, dtype=w.widest, device=M.device)  # [j, i], as M.mT lies
    over = torch.empty_like(above)
    for k, of in enumerate((slice(None), (here, None))):  # bounds of rows, of columns
        torch.sub(M.mT, bound[of], out=above[k])
        torch.ge(M.mT, least[of], out=over[k])
    for each in (above, over):
        each.diagonal(job.first, 1, 2).zero_()
    total = above.clamp_(min=0).sum()
    violations = torch.empty(2, n, dtype=w.widest, device=M.device)
    if w.c < n:
        violations.zero_()
    torch.sum(over[0], 0, out=violations[0])
    torch.sum(over[1], 1, out=violations[1, here])
    return violations, total, (over[0] + over[1]).mT


def _scale(w: Work, M: Tensor, active: Tensor, violations: Tensor) -> Tensor:
    """Returns dL/dM / M [n, c], times the weight; 0 where M is 0, which has no gradient, and NaN where M is NaN."""
    job = w.job
    counts = (violations[0] + violations[1])[job.first : job.end]
    torch.mul(counts, -job.alpha, out=active.diagonal(-job.first))
    ratio = (active / M).masked_fill_(M == 0, 0)
    return torch.mul(ratio, w.u * w.lift, out=torch.empty_like(ratio, dtype=w.f32))


def _backward(w: Work, z: Optional[Tensor], scale: Tensor) -> None:
    """Adds the gradients. z is None where it is computed again. scale is [n, c]."""
    for at in w.chunks(w.c, _bytes_of_expert(w, z is not None, True)):
        r = respond(w, at, w.x) if z is None else Response(out=z[at])
        dx = respond_backward(w, at, w.x, r, scale.mT[at])
        if dx is not None:
            w.d_proxy = dx if w.d_proxy is None else w.d_proxy.add_(dx)


def _router_gradient(w: Work) -> Optional[Tensor]:
    if w.d_proxy is None:
        return None
    d = w.d_proxy if w.delta is None else w.d_proxy * w.delta
    return d * w.factor if isinstance(w.factor, Tensor) or w.factor != 1 else d


def phases(job: Job) -> Phases:
    w = Work(job)
    M, z = _forward(w)
    if job.split:
        M = (yield M.square()).sqrt()
    diagonal = yield M.diagonal(-job.first)
    violations, total, active = _hinges(w, M, diagonal)
    violations, total = yield violations, total
    d_router = None
    if job.backward:
        _backward(w, z, _scale(w, M, active, violations))
        d_router = _router_gradient(w)
    if d_router is not None:
        d_router = yield d_router
    return Result(total, M, d_router)
