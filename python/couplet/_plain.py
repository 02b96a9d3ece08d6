"""The coupling loss in plain torch operations, on any device and in any dtype: the C library's
algorithm (three products, phase by phase), a chunk of experts at a time.

Names: c experts of a chunk, m rows that pull, x [m,d] or [c,1,d] proxies. With one expert a chunk
(on the CPU) the leading dimension c is not there. Never anything of size n x n x D; rows whose
hinges are not active are left out of the backward products. Noise, norms, hinges and sums are f32
or wider, whatever the dtype of the matrices."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import ContextManager, Iterator, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _noise
from ._job import Alone, Experts, Job

CHUNK_NUMBERS = 1 << 24  # of an activation or a matrix, on devices that want large products


def without_autocast(device: torch.device) -> ContextManager:
    """torch.autocast would round the operands of products, whatever `compute` says."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def experts_at_once(job: Job) -> int:
    """One on the CPU, where a product of one expert is large enough; more elsewhere."""
    if is_cpu(job.router.device):
        return 1
    return max(1, min(CHUNK_NUMBERS // (job.n * job.D), CHUNK_NUMBERS // (job.d * job.D)))


class Work:
    """What the phases share: the proxies, the dtype of the arithmetic, how experts are cut."""

    def __init__(self, job: Job):
        self.job = job
        used = [x.dtype for x in (job.gate, job.up, job.down) if x is not None]
        is_wide = torch.float64 in (job.router.dtype, *used)
        self.dtype = torch.float64 if is_wide else torch.float32
        self.widest = _widest(job.router.device)
        router = job.router.to(self.dtype)
        self.delta = self._delta(router)
        self.proxy = router if self.delta is None else router * self.delta  # [n, d]
        self.d_proxy = torch.zeros_like(self.proxy) if job.backward else None
        self.u = job.weight / job.n**2

    def _delta(self, router: Tensor) -> Optional[Tensor]:
        job = self.job
        if job.delta is not None:
            return job.delta.to(self.dtype)
        if job.noise == "none":
            return None
        return _noise.bounded(router, job.seed, job.step, job.layer, job.draw)

    def operand(self, x: Tensor) -> Tensor:
        """As it enters a product."""
        if self.job.compute == "bf16":
            x = x.to(torch.bfloat16)
        return x.to(self.dtype)

    def chunks(self) -> Iterator[slice]:
        """The experts that are here, counted from the first of them."""
        job, count = self.job, self.job.end - self.job.first
        size = experts_at_once(job)
        return (slice(a, min(a + size, count)) for a in range(0, count, size))

    def take(self, experts: Optional[Experts], at: slice) -> Optional[Tensor]:
        """[c, r, k], or [r, k] of a single one."""
        if experts is None:
            return None
        alone = at.stop - at.start == 1
        return self.operand(experts.one(at.start) if alone else experts.some(at.start, at.stop))


@dataclass
class Acts:
    """What experts make of proxies, each [..., m, D], and `out`, whose norm M is."""
    z: Optional[Tensor] = None
    u: Optional[Tensor] = None
    h: Optional[Tensor] = None
    out: Optional[Tensor] = None

    def rows(self, which: Tensor) -> "Acts":
        pick = lambda t: None if t is None else t.index_select(-2, which)
        return Acts(pick(self.z), pick(self.u), pick(self.h), pick(self.out))


def respond(w: Work, at: slice, x: Tensor) -> Acts:
    job, acts = w.job, Acts()
    x = w.operand(x)
    if job.gate is not None:
        acts.z = acts.out = x @ w.take(job.gate, at).mT
    if job.up is not None:
        acts.u = acts.out = x @ w.take(job.up, at).mT
    if job.activation == "silu":
        acts.out = F.silu(acts.z)
    elif job.activation in ("swiglu", "output"):
        acts.h = acts.out = F.silu(acts.z) * acts.u
    if job.activation == "output":
        acts.out = w.operand(acts.h) @ w.take(job.down, at).mT
    return acts


def _silu_slope(z: Tensor) -> Tensor:
    s = torch.sigmoid(z)
    return s * (1 + z * (1 - s))


def _add_product(to: Optional[Experts], at: slice, a: Tensor, b: Tensor) -> None:
    """to[at] += a^T b; a [..., m, r], b [..., m, k]."""
    if to is None:
        return
    target = to.one(at.start) if a.dim() == 2 else to.some(at.start, at.stop)
    if target.dtype != a.dtype:
        target.add_((a.mT @ b).to(target.dtype))
    elif a.dim() == 2:
        target.addmm_(a.mT, b)
    else:
        target.baddbmm_(a.mT, b.expand(a.shape[0], -1, -1))


def pull(w: Work, at: slice, x: Tensor, acts: Acts, scale: Tensor) -> Tensor:
    """Adds the gradients of the matrices for d out = scale * out, scale [..., m]; returns dx [..., m, d]."""
    job, x = w.job, w.operand(x)
    dout = acts.out * scale[..., None]
    if job.activation == "output":
        _add_product(job.d_down, at, w.operand(dout), w.operand(acts.h))
        dout = w.operand(dout) @ w.take(job.down, at)
    dz = dout if job.activation == "gate" else None
    du = dout if job.activation == "up" else None
    if job.activation == "silu":
        dz = dout * _silu_slope(acts.z)
    elif job.activation in ("swiglu", "output"):
        dz, du = dout * acts.u * _silu_slope(acts.z), dout * F.silu(acts.z)
    dx = 0
    for d, weights, gradient in ((dz, job.gate, job.d_gate), (du, job.up, job.d_up)):
        if d is not None:
            d = w.operand(d)
            _add_product(gradient, at, d, x)
            dx = dx + d @ w.take(weights, at) if w.job.d_router is not None else dx
    return dx


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0: a norm of 0 has no gradient. One that is NaN has NaN."""
    return torch.where(b == 0, torch.zeros_like(a), a / b)


# ---- the phases of couplet.h ----

def diagonals(w: Work) -> tuple[Tensor, list[tuple[slice, Acts]]]:
    """M[j,j] of the experts here [c], and what they made of their own proxies."""
    first, norms, own = w.job.first, [], []
    for at in w.chunks():
        x = w.proxy[first + at.start:first + at.stop]
        x = x if at.stop - at.start == 1 else x[:, None]
        acts = respond(w, at, x)
        norms.append(torch.linalg.vector_norm(acts.out, dim=-1).flatten())
        own.append((at, acts if w.job.backward else Acts()))
    return torch.cat(norms), own


def sweep(w: Work, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """Violations int32 [2, n] of rows and columns, and this part of L; adds what pairs i != j pull."""
    job, n = w.job, w.job.n
    device = diagonal.device
    bound = job.alpha * diagonal.to(w.widest)
    violations = torch.zeros(2, n, dtype=torch.int32, device=device)
    loss = torch.zeros((), dtype=w.widest, device=device)
    for at in w.chunks():
        acts = respond(w, at, w.proxy)
        M = torch.linalg.vector_norm(acts.out, dim=-1).view(-1, n).to(w.widest)  # [c, n] = M[i,j]^T
        here = torch.arange(job.first + at.start, job.first + at.stop, dtype=torch.int64, device=device)
        above_row, above_column = M - bound, M - bound[here, None]
        others = torch.arange(n, dtype=torch.int64, device=device) != here[:, None]
        over_row, over_column = (above_row >= 0) & others, (above_column >= 0) & others
        loss += torch.where(others, above_row.clamp(min=0) + above_column.clamp(min=0),
                            torch.zeros_like(M)).sum()
        violations[0] += over_row.sum(0, dtype=torch.int32)
        violations[1, here] = over_column.sum(1, dtype=torch.int32)
        if job.backward:
            pulls = over_row.to(M.dtype) + over_column.to(M.dtype)
            _pull_rows(w, at, acts, _ratio(w.u * pulls, M))
    return violations, loss / n**2


def _pull_rows(w: Work, at: slice, acts: Acts, scale: Tensor) -> None:
    """scale [c, n]; rows that no expert of the chunk pulls at are left out."""
    which = (scale != 0).any(0).nonzero().flatten()
    if which.numel() == 0:
        return
    x = w.proxy
    if which.numel() < w.job.n:
        x, acts, scale = x.index_select(0, which), acts.rows(which), scale.index_select(1, which)
    dx = pull(w, at, x, acts, scale.to(w.dtype).view(acts.out.shape[:-1]))
    if w.job.d_router is not None:
        w.d_proxy.index_add_(0, which, dx.view(-1, *x.shape).sum(0))


def finish(w: Work, diagonal: Tensor, violations: Tensor, own: list[tuple[slice, Acts]]) -> None:
    """Adds what the diagonal pulls, and the router's gradient."""
    job = w.job
    counts = violations.sum(0)[job.first:job.end]
    here = diagonal[job.first:job.end].to(w.widest)
    scale = _ratio(-job.alpha * w.u * counts.to(w.widest), here).to(w.dtype)
    pulled = (scale != 0).tolist()
    for at, acts in own:
        if not any(pulled[at]):
            continue
        rows = slice(job.first + at.start, job.first + at.stop)
        x = w.proxy[rows] if acts.out.dim() == 2 else w.proxy[rows, None]
        dx = pull(w, at, x, acts, scale[at].view(acts.out.shape[:-1]))
        if job.d_router is not None:
            w.d_proxy[rows] += dx.view(-1, job.d)
    if job.d_router is not None:
        job.d_router += w.d_proxy if w.delta is None else w.d_proxy * w.delta


def run_phases(job: Job, exchange: Alone) -> Tensor:
    """Loss L [] before the weight; fills the gradients."""
    with without_autocast(job.router.device):
        return _run_phases(job, exchange)


def _run_phases(job: Job, exchange: Alone) -> Tensor:
    w = Work(job)
    part, own = diagonals(w)
    diagonal = exchange.diagonals(part)
    violations, loss = sweep(w, diagonal)
    violations, loss = exchange.counts(violations, loss)
    if job.backward:
        finish(w, diagonal, violations, own)
    if job.d_router is not None:
        exchange.router_grad(job.d_router)
    return loss


def coupling_matrix(job: Job) -> Tensor:
    """M [n, n] alone: one product, no gradient."""
    w = Work(job)
    columns = [torch.linalg.vector_norm(respond(w, at, w.proxy).out, dim=-1).view(-1, job.n)
               for at in w.chunks()]
    return torch.cat(columns).mT
