"""The coupling loss in plain torch operations on the CPU, in any dtype: the C library's algorithm (three
products, phase by phase), a chunk of experts at a time whose responses stay in the cache.

Shapes: c experts of a chunk, m rows with an active hinge, x [m, d] proxies, responses [c, m, D], which lie as
[m, c, D] where a chunk's matrices are one after the other. Those of all experts are kept where they are few numbers;
else a chunk's are gone before the next, and the diagonal of M is computed first. Rows whose hinges are not active are
left out of the backward products. Products are f32 or wider, whatever the dtype of the matrices, as are noise, norms,
hinges and sums."""
from __future__ import annotations

import contextlib
import math
import mmap
from typing import Optional, Sequence

import torch
from torch import Tensor

from ._job import Experts, Job, Phases, Result
from ._response import Response, as_rows, drawn_or_given, is_wide, respond, respond_backward, tie_of

LARGE = 1 << 22           # bytes
ROOM = 1 << 17            # numbers of a chunk's responses; a megabyte of cache has them with what is made of them
KEPT, SHARE = 1 << 20, 32  # responses are kept up to so many numbers, or the gates by SHARE
CALLS = 1 << 20           # multiplications of a row that cost what the calls for one expert alone cost


def zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros on the CPU, for sums. Large ones are pages that the system hands out, zero already, when they are
    first touched: by the code that adds to them, or never where no hinge is active. torch.zeros writes every page,
    which takes longer than the loss itself where none is."""
    count = math.prod(shape)
    if dtype.itemsize * count < LARGE or not hasattr(mmap, "MAP_PRIVATE"):  # Unix has it
        return torch.zeros(shape, dtype=dtype, device="cpu")
    memory = mmap.mmap(-1, dtype.itemsize * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)  # keeps `memory`


def is_for(device: torch.device) -> bool:
    """Other devices: _accelerator.py."""
    return device.type == "cpu"


class Work:
    """What the phases share: the proxies and how the matrices of a chunk are multiplied (Products)."""

    def __init__(self, job: Job):
        self.job = job
        self.dtype = torch.float64 if is_wide(job) else torch.float32
        router = job.router.to(self.dtype)
        self.delta = drawn_or_given(job, router)
        self.proxy = router if self.delta is None else router * self.delta  # [n, d]
        self.x = self.operand(self.proxy)
        self.d_proxy = torch.zeros_like(self.proxy) if job.wants_router else None
        self.u = job.weight / job.n**2 * (1.0 if job.scale is None else job.scale.item())
        self.tie = tie_of(torch.bfloat16 if job.compute == "bf16" else self.dtype, job.D)
        self.beta = 0 if job.fresh else 1  # of gradients: what is there already counts, or not
        each = job.n * (job.D if job.activation in ("gate", "up") else 4 * max(job.D, job.d))
        count, numbers = job.end - job.first, job.D * job.d
        self.is_kept = count * each <= max(KEPT, count * numbers // SHARE)
        copies = any(W.stacked is None or W.dtype != self.dtype for W in job.matrices) or job.compute == "bf16"
        size = max(1, ROOM // (max(each, numbers) if copies else each))
        self.chunks = [slice(k, min(k + size, count)) for k in range(0, count, size)]

    def operand(self, x: Tensor) -> Tensor:
        if self.job.compute == "bf16":
            x = x.to(torch.bfloat16)
        return x.to(self.dtype)

    def take(self, experts: Experts, at: slice) -> Tensor:
        return self.operand(experts.one(at.start)[None] if at.stop - at.start == 1 else experts.some(at))

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
        whole = to.stacked if to.dtype == d.dtype else None
        if whole is None:
            for target, product in zip(map(to.one, range(at.start, at.stop)), d.mT.bmm(x.expand(len(d), -1, -1))):
                target.add_(product)
            return
        d_rows, rows = (as_rows(d.mT), as_rows(whole[at])) if x.dim() == 2 else (None, None)
        if d_rows is None or rows is None:
            whole[at].baddbmm_(d.mT, x.expand(len(d), -1, -1), beta=self.beta)
        else:
            rows.addmm_(d_rows, x, beta=self.beta)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        return x.mul_(scale[..., None])

    def response(self, at: slice, M: Tensor) -> Response:
        """To all proxies, and M[:, at]."""
        r = respond(self, at, self.x)
        torch.linalg.vector_norm(r.out.transpose(0, 1), dim=-1, out=M[:, at])
        return r

    def own(self, at: slice) -> Tensor:
        """The proxies of these experts, each for itself: [c, 1, d]."""
        return self.x[self.job.first + at.start:self.job.first + at.stop, None]

    def add_gradients(self, at: slice, r: Response, scale: Tensor) -> None:
        """Adds those for d out = scale * out of the responses r [c, n, D]; scale [n, c]. An expert alone has only the
        rows where it is not 0, unless these are too few to be worth it."""
        n, active = self.job.n, scale.count_nonzero(0).tolist()
        spared = len(active) * n - sum(active)
        if spared <= len(active) * max(n // 8, CALLS // (self.job.D * self.job.d)):
            self._add_to_proxies(None, respond_backward(self, at, self.x, r, scale.mT))
            return
        for k, count in enumerate(active):
            one = slice(at.start + k, at.start + k + 1)
            if count >= 7 * n // 8:
                self._add_to_proxies(None, respond_backward(self, one, self.x, r.some(k), scale.mT[k:k + 1]))
            elif count:
                which = scale[:, k].nonzero().flatten()
                self._add_to_proxies(which, respond_backward(self, one, self.x.index_select(0, which), r.some(k, which),
                                                             scale[which, k][None]))

    def _add_to_proxies(self, rows: Optional[Tensor], dx: Optional[Tensor]) -> None:
        if dx is None or self.d_proxy is None:
            return
        if rows is None:
            self.d_proxy += dx
        else:  # no row is there twice; index_add_, which allows it, is slower
            self.d_proxy.index_copy_(0, rows, self.d_proxy.index_select(0, rows).add_(dx))


class Hinges:
    """Violations [2, n] of rows and columns, and this part of the sum, chunk by chunk; all in f64."""

    def __init__(self, w: Work, diagonal: Tensor):
        self.w, self.bound = w, diagonal.double() * w.job.alpha
        self.violations = torch.zeros(2, w.job.n, dtype=torch.float64, device="cpu")
        self.total = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, at: slice, M: Tensor) -> Tensor:
        """Of M [n, c]; how many are active at each pair i != j: 0, 1 or 2."""
        first = self.w.job.first + at.start
        here = slice(first, first + M.shape[1])
        above = torch.stack((M - self.bound[:, None], M - self.bound[here]))  # over the bounds of rows, of columns
        above.diagonal(-first, 1, 2).fill_(-math.inf)
        over = torch.ge(above, M * -self.w.tie, out=torch.empty_like(above))
        self.total += above.clamp_(min=0).sum()
        self.violations[0] += over[0].sum(1)
        self.violations[1, here] = over[1].sum(0)
        return over.sum(0)

    def scale(self, active: Tensor, M: Tensor) -> Tensor:
        """dL/dM / M times the weight, in the dtype of products; 0 where M is 0, which has no gradient. One that is NaN
        has NaN."""
        return active.mul_(self.w.u).div_(M).masked_fill_(M == 0, 0).to(self.w.dtype)

    def of_diagonal(self, violations: Tensor) -> Tensor:
        """What stands in place of `active` at own rows, [c]."""
        return violations.sum(0, dtype=torch.float64)[self.w.job.first:self.w.job.end].mul_(-self.w.job.alpha)


def _all_kept(w: Work) -> Phases:
    M = torch.empty(w.job.n, w.job.end - w.job.first, dtype=w.dtype, device="cpu")
    responses = [w.response(at, M) for at in w.chunks]
    hinges, wide = Hinges(w, (yield M.diagonal(-w.job.first))), M.double()
    active = hinges.add(slice(0, M.shape[1]), wide)
    violations, total = yield hinges.violations, hinges.total
    if w.job.backward:
        active.diagonal(-w.job.first).copy_(hinges.of_diagonal(violations))
        scale = hinges.scale(active, wide)
        for at, r in zip(w.chunks, responses):
            w.add_gradients(at, r, scale[:, at])
    return Result(total, M, None)


def _chunk_by_chunk(w: Work) -> Phases:
    M = torch.empty(w.job.n, w.job.end - w.job.first, dtype=w.dtype, device="cpu")
    own = [respond(w, at, w.own(at)) for at in w.chunks]
    diagonal = yield torch.cat([torch.linalg.vector_norm(r.out, dim=(-2, -1)) for r in own])
    hinges = Hinges(w, diagonal)
    for at in w.chunks:
        r, wide = w.response(at, M), M[:, at].double()
        active = hinges.add(at, wide)
        if w.job.backward:
            w.add_gradients(at, r, hinges.scale(active, wide))
    violations, total = yield hinges.violations, hinges.total
    if w.job.backward:
        w.beta = 1
        scale = hinges.scale(hinges.of_diagonal(violations), diagonal[w.job.first:w.job.end].double())
        for at, r in zip(w.chunks, own):
            if scale[at].any():
                dx = respond_backward(w, at, w.own(at), r, scale[at, None])
                if dx is not None and w.d_proxy is not None:
                    w.d_proxy[w.job.first + at.start:w.job.first + at.stop] += dx[:, 0]
    return Result(total, M, None)


def phases(job: Job) -> Phases:
    w = Work(job)
    result = yield from (_all_kept if w.is_kept else _chunk_by_chunk)(w)
    if w.d_proxy is not None:
        result.d_router = yield w.d_proxy if w.delta is None else w.d_proxy * w.delta
    return result
