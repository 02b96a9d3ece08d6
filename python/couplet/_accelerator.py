"""The coupling loss on an accelerator (CUDA, ROCm, XPU, MPS): a few large products, masks in place of row lists,
no synchronisation with the host (f16 with a scale that is a tensor: one).

    forward    z = W x, all experts against all proxies; M = |z|
    hinges     on [n, c], all at once
    backward   dW = dz x^T and dx = W^T dz, with dz = scale * z

Operands of products have the dtype of the matrices (bf16: tensor cores), results are f32: `out_dtype` of torch.mm
where torch has it, else rounded to the operands' dtype first. A gradient that holds nothing yet has room for z until
dW is written; without one, z is computed twice, in chunks of experts. What exists beside gates and gradients is
about a twentieth of the gates (docs/gpu.md has it counted).

Shapes: c experts of a chunk; z [c, n, D], with D before n in memory, so that z = W x is one product of the
matrices [c D, d] where these are one after the other in memory."""
from __future__ import annotations

import functools
import math
from typing import Iterator, Optional, Union

import torch
from torch import Tensor

from ._job import Experts, Job, Phases, Result
from ._response import Response, drawn_or_given, is_wide, respond, respond_backward, widest

SHARE = 20            # what exists beside gates and gradients: bytes of the gates by this,
LEAST_BYTES = 1 << 20  # but at least this


# ---- products ----

@functools.lru_cache(maxsize=None)
def _has_out_dtype(device_type: str) -> bool:
    """Whether torch.mm of bf16 gives f32 there."""
    return device_type == "cuda" and torch.version.hip is None and hasattr(torch.ops.aten.mm, "dtype")


@functools.lru_cache(maxsize=None)
def _multiplies_bf16(device: torch.device) -> bool:
    """False for NVIDIA GPUs before Ampere, which only emulate it: products are f32 there."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= (8, 0)


def products_dtype(job: Job) -> torch.dtype:
    """Of the operands."""
    if is_wide(job):
        return torch.float64
    if job.compute == "f32":
        return torch.float32
    dtype = torch.bfloat16 if job.compute == "bf16" else job.matrices[0].dtype
    if dtype == torch.bfloat16 and not _multiplies_bf16(job.router.device):
        return torch.float32
    return dtype


def _multiply(a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """a b with an f32 or wider result; both [r, k] or both [c, r, k]."""
    product = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype.itemsize > 2:
        return product(a, b, out=out)
    if _has_out_dtype(a.device.type):
        more = {} if out is None else {"out": out}
        return product(a, b, out_dtype=torch.float32, **more)
    if a.device.type == "cpu":  # only to be tested there
        return product(a.float(), b.float(), out=out)
    return product(a, b).float() if out is None else out.copy_(product(a, b))


def _as_one(W: Tensor) -> Optional[Tensor]:
    """[c, r, k] as [c r, k], a view; None where the rows of two experts are not equally far apart."""
    c, r, k = W.shape
    if c == 1 or r == 1 or W.stride(0) == r * W.stride(1):
        return W.as_strided((c * r, k), (W.stride(1) if r > 1 else W.stride(0), W.stride(2)))
    return None


def _weight_and_lift(job: Job, dtype: torch.dtype) -> tuple[Union[float, Tensor], float]:
    """What dL/dM is multiplied by, and a power of two that makes it near 1 in f16, whose range is small; products
    that become gradients are divided by it. In f16 the scale is read on the host, which waits."""
    u = job.weight / job.n**2
    if dtype == torch.float16:
        u *= 1.0 if job.scale is None else job.scale.item()
        return u, 2.0 ** -round(math.log2(abs(u))) if 0 < abs(u) < math.inf else 1.0
    return u if job.scale is None else u * job.scale, 1.0


# ---- the experts of a chunk ----

class Work:
    """What the phases share: the proxies and how matrices are multiplied (Products)."""

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
        self.u, self.lift = _weight_and_lift(job, self.dtype)
        self.budget = max(LEAST_BYTES, sum(self.c * math.prod(W.shape[1:]) * W.dtype.itemsize
                                           for W in job.matrices) // SHARE)
        self.room = self.budget  # of a chunk
        self.free: Optional[Tensor] = None  # f32, flat: a gradient that holds nothing yet

    def operand(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    @property
    def copies(self) -> bool:
        """Whether products make copies: of lists, of matrices of another dtype, of interleaved columns."""
        return any(W.stacked is None or W.dtype != self.dtype or 1 not in W.stacked.stride()[1:]
                   for W in self.job.matrices)

    def take(self, experts: Experts, at: slice) -> Tensor:
        return self.operand(experts.some(at))

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        if x.dim() == 3:
            return _multiply(x, W.mT)
        (c, r, _), one, n = W.shape, _as_one(W), len(x)
        if one is not None:
            return _multiply(one, x.mT, self.memory(c * r, n)).view(c, r, n).mT
        return _multiply(W, x.mT.expand(c, -1, -1), self.memory(c, r, n)).mT

    def memory(self, *shape: int) -> Optional[Tensor]:
        """f32, of the gradient that holds nothing yet; None: there is none, or not enough."""
        numbers = math.prod(shape)
        return None if self.free is None or self.free.numel() < numbers else self.free[:numbers].view(shape)

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        return _multiply(d, W)

    def backward_to_proxies(self, d: Tensor, W: Tensor) -> Tensor:
        """Without memory for all experts' part [c, n, d]: a few experts at once."""
        rows, weights = _as_one(d.mT), _as_one(W)
        if rows is not None and weights is not None:
            return _multiply(rows.mT, weights)
        memory = self.memory(len(W), d.shape[1], W.shape[2])
        if memory is not None:  # z is not needed any more
            return _multiply(d, W, memory).sum(0)
        parts = [_multiply(d[at], W[at]).sum(0)
                 for at in self.chunks(len(W), self.f32.itemsize * self.job.n * self.job.d)]
        return functools.reduce(torch.Tensor.add_, parts)

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        if to is None:
            return
        beta, alpha = 0 if self.job.fresh else 1, 1 / self.lift
        if to.stacked is None:
            for target, one, own in zip(to.single[at], d, x.expand(len(d), -1, -1)):
                _add_product(target, one.mT, own, beta, alpha)
            return
        target = to.stacked[at]
        rows, one = _as_one(d.mT), _as_one(target)
        if x.dim() == 2 and rows is not None and one is not None:
            _add_product(one, rows, x, beta, alpha)
        else:
            _add_product(target, d.mT, x.expand(len(d), -1, -1), beta, alpha)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        if self.job.activation not in ("gate", "up"):
            return x * scale[..., None]
        return torch.mul(x, scale[..., None], out=torch.empty_like(x, dtype=self.dtype))

    def chunks(self, count: int, bytes_each: int) -> Iterator[slice]:
        """`count` experts, as many at once as the budget has room for."""
        size = max(1, min(count, self.room // bytes_each))
        return (slice(a, min(a + size, count)) for a in range(0, count, size))


def _add_product(target: Tensor, a: Tensor, b: Tensor, beta: int, alpha: float) -> None:
    """target = beta * target + alpha * a b; with beta 0 it may hold anything."""
    if target.dtype == a.dtype:
        (target.addmm_ if target.dim() == 2 else target.baddbmm_)(a, b, beta=beta, alpha=alpha)
        return
    product = _multiply(a, b) * alpha
    target.copy_(product) if beta == 0 else target.add_(product)


# ---- the phases ----

def _take_free_memory(w: Work) -> None:
    """Sets w.free where the activation is one product and the gradient, written last, has room for its result."""
    job = w.job
    if job.scratch is None or job.activation not in ("gate", "up") or w.copies:
        return
    flat = job.scratch
    numbers = flat.numel() * flat.dtype.itemsize // w.f32.itemsize
    if numbers >= w.c * job.D * job.n:
        w.free = flat[:numbers * w.f32.itemsize // flat.dtype.itemsize].view(w.f32)


def _bytes_of_response(w: Work, is_backward: bool) -> int:
    """Of one expert: what `respond` makes, forward or forward and backward, and copies of its matrices."""
    job, wide = w.job, w.f32.itemsize
    z = job.n * job.D * wide
    made = {"gate": z, "up": z, "silu": 2 * z, "swiglu": 4 * z, "output": 4 * z + job.n * job.d * wide}
    more = job.n * job.D * w.dtype.itemsize if job.activation in ("gate", "up") else made[job.activation]
    copied = sum(math.prod(W.shape[1:]) for W in job.matrices) * w.dtype.itemsize if w.copies else 0
    return made[job.activation] + (more if is_backward else 0) + copied


def _norms(w: Work, at: slice, M: Tensor) -> Optional[Tensor]:
    """Sets M[:, at]; returns z where there is memory to keep it."""
    out = respond(w, at, w.x).out
    torch.linalg.vector_norm(out, dim=-1, out=M.mT[at])
    return None if w.free is None else out


def _forward(w: Work) -> tuple[Tensor, Optional[Tensor]]:
    """M [n, c]; z [c, n, D] of all experts where there is memory to keep it."""
    M = torch.empty(w.job.n, w.c, dtype=w.f32, device=w.x.device)
    if w.free is not None:
        return M, _norms(w, slice(0, w.c), M)
    for at in w.chunks(w.c, _bytes_of_response(w, False)):
        _norms(w, at, M)
    return M, None


def _hinges(w: Work, M: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Violations [2, n] of rows and columns, this part of the sum, and how many hinges are active at each pair
    [n, c]: 0, 1 or 2. M [n, c]."""
    job, n = w.job, w.job.n
    here = slice(job.first, job.end)
    bound = diagonal.to(w.widest) * job.alpha
    above = torch.empty(2, w.c, n, dtype=w.widest, device=M.device)  # [j, i], as M.mT lies
    torch.sub(M.mT, bound, out=above[0])
    torch.sub(M.mT, bound[here, None], out=above[1])
    above.diagonal(job.first, 1, 2).fill_(-1)
    over = torch.ge(above, 0, out=torch.empty_like(above))
    total = above.clamp_(min=0).sum()
    violations = torch.empty(2, n, dtype=w.widest, device=M.device)
    if w.c < n:
        violations.zero_()
    torch.sum(over[0], 0, out=violations[0])
    torch.sum(over[1], 1, out=violations[1, here])
    return violations, total, (over[0] + over[1]).mT


def _scale(w: Work, M: Tensor, active: Tensor, violations: Tensor) -> Tensor:
    """dL/dM / M [n, c], times the weight; 0 where M is 0, which has no gradient. One that is NaN has NaN."""
    job = w.job
    counts = (violations[0] + violations[1])[job.first:job.end]
    torch.mul(counts, -job.alpha, out=active.diagonal(-job.first))
    ratio = (active / M).masked_fill_(M == 0, 0)
    return torch.mul(ratio, w.u * w.lift, out=torch.empty_like(ratio, dtype=w.f32))


def _add_gradients(w: Work, at: slice, z: Optional[Tensor], scale: Tensor) -> None:
    """scale [n, c]. z: of these experts; None: to be computed again."""
    r = respond(w, at, w.x) if z is None else Response(out=z)
    dx = respond_backward(w, at, w.x, r, scale.mT[at])
    if dx is not None:
        w.d_proxy = dx if w.d_proxy is None else w.d_proxy.add_(dx)


def _backward(w: Work, z: Optional[Tensor], scale: Tensor) -> None:
    if z is not None:
        w.room = max(1, w.budget - w.c * w.job.n * w.job.D * w.dtype.itemsize)
        return _add_gradients(w, slice(0, w.c), z, scale)
    for at in w.chunks(w.c, _bytes_of_response(w, True)):
        _add_gradients(w, at, None, scale)


def _router_gradient(w: Work) -> Optional[Tensor]:
    if w.d_proxy is None:
        return None
    d = w.d_proxy if w.delta is None else w.d_proxy * w.delta
    return d if w.lift == 1 else d / w.lift


def phases(job: Job) -> Phases:
    w = Work(job)
    _take_free_memory(w)
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
