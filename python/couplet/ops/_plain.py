"""The coupling loss in plain torch operations on the CPU, in any dtype. The algorithm is the C library's (three
products, phase by phase), for a chunk of experts at a time, whose responses stay in the cache.

Shapes: c experts of a chunk, m rows with an active hinge, x [m, d] proxies, responses [c, m, D], which lie as
[m, c, D] where a chunk's matrices are contiguous. The diagonal of M comes first, and a chunk's responses are freed
before the next. If the responses of all experts are few numbers, one chunk has all experts, and M gives its diagonal.
Rows without active hinges are left out of the backward products. Products, noise, norms, hinges and sums are f32 or
wider, whatever the dtype of the matrices."""

from __future__ import annotations

import contextlib
import math
import mmap
from typing import Optional, Sequence

import torch
from torch import Tensor

from ._job import Experts, Job, Phases, Result
from ._response import Response, as_rows, drawn_or_given, is_wide, respond, respond_backward, tie_of

LARGE = 1 << 22  # bytes of a tensor of zeros that is mapped
ROOM = 1 << 18  # numbers of a chunk's responses; a megabyte of cache holds them and the tensors computed from them
FEW = 1 << 21  # most responses of all experts that are kept together
CALLS = 1 << 20  # multiplications that cost as much as the calls for one expert


def zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns zeros on the CPU, for sums. The system provides the pages of large tensors, already zero, when code first
    adds to them. Pages without an active hinge are never touched. torch.zeros writes every page, which takes longer
    than the loss itself if no hinge is active."""
    count = math.prod(shape)
    if dtype.itemsize * count < LARGE or not hasattr(mmap, "MAP_PRIVATE"):  # only Unix has MAP_PRIVATE
        return torch.zeros(shape, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, dtype.itemsize * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)  # keeps `memory`


def is_for(device: torch.device) -> bool:
    """Returns whether this path serves the device. _accelerator.py serves other devices."""
    return device.type == "cpu"


class Work:
    """State that the phases share: the proxies and how the matrices of a chunk are multiplied (Products)."""

    def __init__(self, job: Job):
        self.job = job
        self.dtype = torch.float64 if is_wide(job) else torch.float32
        router = job.router.to(self.dtype)
        self.delta = drawn_or_given(job, router)
        self.x = self.operand(router if self.delta is None else router * self.delta)  # [n, d], the proxies
        self.d_proxy: Optional[Tensor] = None
        self.u = job.weight / job.n**2 * (1.0 if job.scale is None else job.scale.item())
        self.tie = tie_of(torch.bfloat16 if job.compute == "bf16" else self.dtype, job)
        self.beta = 0 if job.fresh else 1  # factor of the existing gradients

    def chunks(self) -> list[slice]:
        job = self.job
        each = job.n * (job.D if job.activation in ("gate", "up") else 4 * max(job.D, job.d))
        copies = any(W.stacked is None or W.dtype != self.dtype for W in job.matrices) or job.compute == "bf16"
        count, size = job.end - job.first, max(1, ROOM // max(each, job.D * job.d if copies else 1))
        return [slice(k, min(k + size, count)) for k in range(0, count, size)]

    def operand(self, x: Tensor) -> Tensor:
        if self.job.compute == "bf16":
            x = x.to(torch.bfloat16)
        return x if x.dtype == self.dtype else x.to(self.dtype)

    def take_matrices(self, experts: Experts, at: slice) -> Tensor:
        return self.operand(experts.one(at.start)[None] if at.stop - at.start == 1 else experts.chunk(at))

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        rows = as_rows(W) if x.dim() == 2 else None
        if rows is None:
            return x.expand(len(W), -1, -1).bmm(W.mT)
        return x.mm(rows.mT).view(len(x), *W.shape[:2]).transpose(0, 1)

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        return d.bmm(W)

    def backward_to_proxies(self, d: Tensor, W: Tensor) -> Tensor:
        d_rows, rows = as_rows(d.mT), as_rows(W)
        return d.bmm(W).sum(0) if d_rows is None or rows is None else d_rows.mT.mm(rows)

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        if to is None:
            return
        target = to.one(at.start)[None] if len(d) == 1 else None if to.stacked is None else to.stacked[at]
        if target is None or target.dtype != d.dtype:
            for one, product in zip(map(to.one, range(at.start, at.stop)), d.mT.bmm(x.expand(len(d), -1, -1))):
                one.add_(product)
            return
        d_rows, rows = (as_rows(d.mT), as_rows(target)) if x.dim() == 2 else (None, None)
        if d_rows is None or rows is None:
            target.baddbmm_(d.mT, x.expand(len(d), -1, -1), beta=self.beta)
        else:
            rows.addmm_(d_rows, x, beta=self.beta)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        return x.mul_(scale[..., None])

    def own(self, at: slice) -> Tensor:
        """Returns the proxies of these experts, each for itself: [c, 1, d]."""
        return self.x[self.job.first + at.start : self.job.first + at.stop, None]

    def add_gradients(self, at: slice, r: Response, scale: Tensor) -> None:
        """Adds the gradients for d out = scale * out of the responses r [c, n, D]; scale is [n, c]. A single expert
        multiplies only the rows where scale is not 0, unless this saves too little."""
        n, active = self.job.n, scale.count_nonzero(0).tolist()
        if self.is_dense(active):
            self._add_to_proxies(None, respond_backward(self, at, self.x, r, scale.mT))
            return
        for k, count in enumerate(active):
            one = slice(at.start + k, at.start + k + 1)
            if count >= 7 * n // 8:
                self._add_to_proxies(None, respond_backward(self, one, self.x, r.one(k), scale.mT[k : k + 1]))
            elif count:
                which = scale[:, k].nonzero().flatten()
                self._add_to_proxies(
                    which,
                    respond_backward(self, one, self.x.index_select(0, which), r.one(k, which), scale[which, k][None]),
                )

    def is_dense(self, active: list[int]) -> bool:
        """Returns whether separate calls for each expert, with `active` rows each, cost more than they save."""
        n, spared = self.job.n, len(active) * self.job.n - sum(active)
        calls = sum(map(bool, active)) * CALLS
        return calls > 0 and spared <= max(len(active) * n // 8, calls // (self.job.D * self.job.d))

    def add_own_gradients(self, at: slice, r: Response, scale: Tensor) -> None:
        """Adds the gradients of the diagonal; scale is [c]."""
        self.beta = 1
        if scale.any():
            dx = respond_backward(self, at, self.own(at), r, scale[:, None])
            if dx is not None:
                self.router_gradient()[self.job.first + at.start : self.job.first + at.stop] += dx[:, 0]

    def _add_to_proxies(self, rows: Optional[Tensor], dx: Optional[Tensor]) -> None:
        if dx is not None and rows is None:
            self.router_gradient().add_(dx)
        elif dx is not None and rows is not None:  # no row occurs twice; index_add_ is slower
            to = self.router_gradient()
            to.index_copy_(0, rows, to.index_select(0, rows).add_(dx))

    def router_gradient(self) -> Tensor:
        """Returns the gradient of the proxies, to be added to."""
        if self.d_proxy is None:
            self.d_proxy = torch.zeros_like(self.x)
        return self.d_proxy


def _scale(w: Work, active: Tensor, M: Tensor) -> Tensor:
    """Returns dL/dM / M times the weight, in the dtype of products, from the number of active hinges. It is 0 where M
    is 0, which has no gradient, and NaN where M is NaN. `active` is overwritten."""
    return active.div_(M).masked_fill_(M == 0, 0).mul_(w.u).to(w.dtype)


def _all_at_once(w: Work, rows: Tensor) -> Phases:
    """Runs the phases for all experts together, in a few cheap operations. rows [n D, d] are the matrices of all n
    experts."""
    job, n = w.job, w.job.n
    z = w.x.mm(rows.mT)
    out = z.view(n, n, job.D)
    M = torch.linalg.vector_norm(out, dim=-1)
    both = torch.stack((M, M.mT))  # against the bounds of rows, of columns
    above = torch.sub(both, (yield M.diagonal())[:, None], alpha=job.alpha)
    above.diagonal(0, 1, 2).fill_(-math.inf)
    over = torch.ge(above, both.mul_(-w.tie), out=torch.empty_like(above))
    violations, total = yield (
        over.sum(2),
        above.clamp_(min=0).sum(2).sum(dtype=torch.float64),
    )  # for any number of threads
    if not job.backward:
        return Result(total, M, None)
    active = over[0] + over[1].mT
    torch.mul(violations.sum(0), -job.alpha, out=active.diagonal())
    scale, to = _scale(w, active, M), job.d_gate or job.d_up
    target = None if to is None or to.stacked is None or to.dtype != w.dtype else as_rows(to.stacked)
    if (to is not None and target is None) or not w.is_dense(scale.count_nonzero(0).tolist()):
        w.add_gradients(slice(0, n), Response(out.transpose(0, 1)), scale)
        return Result(total, M, None)
    out.mul_(scale[..., None])
    if job.wants_router:
        w.d_proxy = z.mm(rows)
    if target is not None:
        target.addmm_(z.mT, w.x, beta=w.beta)
    return Result(total, M, None)


def _chunk_by_chunk(w: Work) -> Phases:
    first, end, alpha = w.job.first, w.job.end, w.job.alpha
    M = torch.empty(w.job.n, end - first, dtype=w.dtype, device="cpu")
    chunks = w.chunks()
    own = [respond(w, at, w.own(at)) for at in chunks]
    diagonal = yield torch.cat([torch.linalg.vector_norm(r.out, dim=(-2, -1)) for r in own])
    bound = diagonal.double() * alpha
    violations = torch.zeros(2, w.job.n, dtype=torch.float64, device="cpu")
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    for at in chunks:
        here = slice(first + at.start, first + at.stop)
        r = respond(w, at, w.x)
        wide = torch.linalg.vector_norm(r.out.transpose(0, 1), dim=-1, out=M[:, at]).double()
        above = torch.stack((wide - bound[:, None], wide - bound[here]))  # over the bounds of rows, of columns
        above.diagonal(-here.start, 1, 2).fill_(-math.inf)
        over = torch.ge(above, wide * -w.tie, out=torch.empty_like(above))
        total += above.clamp_(min=0).sum()
        violations[0] += over[0].sum(1)
        violations[1, here] = over[1].sum(0)
        if w.job.backward:
            w.add_gradients(at, r, _scale(w, over.sum(0), wide))
    violations, total = yield violations, total
    if w.job.backward:
        counts = violations.sum(0, dtype=torch.float64)[first:end]
        scale = _scale(w, counts.mul_(-alpha), diagonal[first:end].double())
        for at, r in zip(chunks, own):
            w.add_own_gradients(at, r, scale[at])
    return Result(total, M, None)


def phases(job: Job) -> Phases:
    w = Work(job)
    W = job.matrices[0]
    is_simple = (
        job.activation in ("gate", "up")
        and W.stacked is not None
        and W.dtype == w.dtype
        and job.compute != "bf16"
        and job.end - job.first == job.n
        and job.n**2 * job.D <= FEW
    )
    rows = as_rows(W.stacked) if is_simple and W.stacked is not None else None
    result = yield from _chunk_by_chunk(w) if rows is None else _all_at_once(w, rows)
    if job.wants_router:
        d_proxy = w.router_gradient()
        result.d_router = yield d_proxy if w.delta is None else d_proxy * w.delta
    return result
