"""The coupling loss in plain torch operations on the CPU, in any dtype: the C library's algorithm (three
products, phase by phase), one expert at a time.

Shapes: m rows with an active hinge, x [m, d] proxies. Never anything of size n x n x D; rows whose hinges are not
active are left out of the backward products. Products are f32 or wider, whatever the dtype of the matrices, as
are noise, norms, hinges and sums."""
from __future__ import annotations

import contextlib
import math
import mmap
from typing import Optional, Sequence

import torch
from torch import Tensor

from ._job import Experts, Job, Phases, Result
from ._response import Response, drawn_or_given, is_wide, respond, respond_backward, tie_of

LARGE = 1 << 22  # bytes
SMALL = 1 << 22  # numbers


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


def is_small(job: Job) -> bool:
    """Whether the gates here, and what they make of the proxies, are few numbers each: then _accelerator.py computes all
    experts at once, in at most twice so much memory. The calls of one expert take a hundred microseconds."""
    return (job.end - job.first) * job.D * max(job.n, job.d) <= SMALL


class Work:
    """What the phases share: the proxies and how one expert's matrices are multiplied (Products)."""

    def __init__(self, job: Job):
        self.job = job
        self.dtype = torch.float64 if is_wide(job) else torch.float32
        router = job.router.to(self.dtype)
        self.delta = drawn_or_given(job, router)
        self.proxy = router if self.delta is None else router * self.delta  # [n, d]
        self.x = self.operand(self.proxy)
        self.d_proxy = torch.zeros_like(self.proxy) if job.wants_router else None
        self.u = job.weight / job.n**2 * (1.0 if job.scale is None else job.scale.item())
        self.written: set[int] = set()  # experts whose fresh gradients hold something

    def experts(self) -> range:
        """Those that are here, counted from the first of them."""
        return range(self.job.end - self.job.first)

    def operand(self, x: Tensor) -> Tensor:
        if self.job.compute == "bf16":
            x = x.to(torch.bfloat16)
        return x.to(self.dtype)

    def take(self, experts: Experts, at: slice) -> Tensor:
        return self.operand(experts.one(at.start))

    def forward(self, x: Tensor, W: Tensor) -> Tensor:
        return x @ W.mT

    def backward(self, d: Tensor, W: Tensor) -> Tensor:
        return d @ W

    backward_to_proxies = backward

    def add_gradient(self, to: Optional[Experts], at: slice, d: Tensor, x: Tensor) -> None:
        if to is None:
            return
        target = to.one(at.start)
        if target.dtype != d.dtype:
            target.add_((d.mT @ x).to(target.dtype))
        else:
            is_first = self.job.fresh and at.start not in self.written
            target.addmm_(d.mT, x, beta=0 if is_first else 1)

    def scaled(self, x: Tensor, scale: Tensor) -> Tensor:
        return x * scale[..., None]

    def add_gradients(self, j: int, rows: Optional[Tensor], r: Response, x: Tensor, scale: Tensor) -> None:
        """Adds the gradients for d out = scale * out of the proxies x at `rows` (None: all of them)."""
        dx = respond_backward(self, slice(j, j + 1), x, r, scale)
        self.written.add(j)
        if dx is None or self.d_proxy is None:
            return
        if rows is None:
            self.d_proxy += dx
        else:  # no row is there twice; index_add_, which allows it, is slower
            self.d_proxy.index_copy_(0, rows, self.d_proxy.index_select(0, rows).add_(dx))


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0: a norm of 0 has no gradient. One that is NaN has NaN."""
    return torch.where(b == 0, torch.zeros_like(a), a / b)


def _diagonals(w: Work) -> tuple[Tensor, list[Response]]:
    """M[j,j] of the experts here [c], and their responses to their own proxies."""
    first, own = w.job.first, []
    norms = torch.empty(len(w.experts()), dtype=w.dtype, device="cpu")
    for j in w.experts():
        r = respond(w, slice(j, j + 1), w.x[first + j:first + j + 1])
        torch.linalg.vector_norm(r.out, dim=(-2, -1), out=norms[j])
        own.append(r)
    return norms, own


def _sweep(w: Work, diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Violations int32 [2, n] of rows and columns, this part of the sum and of M [n, c]; adds the gradients of pairs i != j."""
    job, n = w.job, w.job.n
    bound = job.alpha * diagonal.double()
    least = bound * (1 - tie_of(torch.bfloat16 if job.compute == "bf16" else w.dtype, job))
    violations = torch.zeros(2, n, dtype=torch.int32, device="cpu")
    total = torch.zeros((), dtype=torch.float64, device="cpu")
    M = torch.empty(n, len(w.experts()), dtype=w.dtype, device="cpu")
    for j in w.experts():
        here = job.first + j
        r = respond(w, slice(j, j + 1), w.x)
        torch.linalg.vector_norm(r.out, dim=-1, out=M[:, j])
        column = M[:, j].double()
        above = torch.stack((column - bound, column - bound[here]))  # over the bounds of rows, of the column
        over = torch.stack((column >= least, column >= least[here]))
        above[:, here] = over[:, here] = 0
        total += above.clamp_(min=0).sum()
        violations[0] += over[0]
        violations[1, here] = over[1].sum()
        if job.backward:
            _add_gradients_of_rows(w, j, r, _ratio(w.u * over.sum(0, dtype=torch.float64), column).to(w.dtype))
    return violations, total, M


def _add_gradients_of_rows(w: Work, j: int, r: Response, scale: Tensor) -> None:
    """scale [n]; rows where it is 0 are left out, unless they are too few to be worth a copy of the others."""
    which = scale.nonzero().flatten()
    if which.numel() >= 7 * w.job.n // 8:
        w.add_gradients(j, None, r, w.x, scale)
    elif which.numel():
        w.add_gradients(j, which, r.rows(which), w.x.index_select(0, which), scale[which])


def _finish(w: Work, diagonal: Tensor, violations: Tensor, own: list[Response]) -> Optional[Tensor]:
    """Adds the gradients of the diagonal; returns the router's."""
    job = w.job
    counts = violations.sum(0)[job.first:job.end].double()
    scale = _ratio(-job.alpha * w.u * counts, diagonal[job.first:job.end].double()).to(w.dtype)
    for j in scale.nonzero().flatten().tolist():
        row = torch.tensor([job.first + j], dtype=torch.int64, device="cpu")
        w.add_gradients(j, row, own[j], w.x[job.first + j:job.first + j + 1], scale[j:j + 1])
    if w.d_proxy is None:
        return None
    return w.d_proxy if w.delta is None else w.d_proxy * w.delta


def phases(job: Job) -> Phases:
    w = Work(job)
    part, own = _diagonals(w)
    diagonal = yield part
    violations, total, M = _sweep(w, diagonal)
    violations, total = yield violations, total
    d_router = _finish(w, diagonal, violations, own) if job.backward else None
    if d_router is not None:
        d_router = yield d_router
    return Result(total, M, d_router)
