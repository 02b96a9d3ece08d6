"""The coupling loss where the experts of a layer are spread over processes (expert parallelism).

Exchanged: the n diagonals of M (all-gather), 2n counts and the loss (all-reduce), and the router's
gradient [n, d] (all-reduce). Weights and activations stay where they are."""
from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import _operator
from ._door import Matrices, arrange, compute_name, number, warn_of_alpha
from ._job import Alone


class Group(Alone):
    """The exchanges of couplet.h's phases over a process group."""

    def __init__(self, group: Optional[dist.ProcessGroup], router_grad: bool):
        self.group, self.wanted = group, router_grad

    def diagonals(self, own: Tensor) -> Tensor:
        everyone = own.new_empty(own.numel() * dist.get_world_size(self.group))
        dist.all_gather_into_tensor(everyone, own.contiguous(), group=self.group)
        return everyone

    def counts(self, violations: Tensor, loss: Tensor) -> Tuple[Tensor, Tensor]:
        violations = violations.clone()
        dist.all_reduce(violations, group=self.group)
        dist.all_reduce(loss, group=self.group)
        return violations, loss

    def router_grad(self, d_router: Tensor) -> None:
        dist.all_reduce(d_router, group=self.group)


class _ErcEp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, arguments, half, want, lengths, *tensors):
        router, *rest = tensors
        g, u, d = lengths
        gate, up, down = rest[:g], rest[g:g + u], rest[g + u:g + u + d]
        delta = rest[g + u + d]
        job = _operator.make_job(router, gate, up, down, delta, half, *arguments)
        loss, *gradients = _operator.evaluate(job, gate, up, down, half, want,
                                              Group(group, want[0]))
        ctx.set_materialize_grads(False)
        ctx.gradients, ctx.want, ctx.lengths = gradients, want, lengths
        ctx.whole = [bool(t) and t[0].dim() == 3 for t in (gate, up, down)]
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_loss):
        nothing = (None,) * (5 + 1 + sum(ctx.lengths) + 1)
        if d_loss is None:
            return nothing
        if ctx.gradients is None:
            raise RuntimeError("couplet: erc_loss_ep's gradient was handed over already; evaluate it "
                               "again for another backward pass")
        gradients, ctx.gradients = _operator.scaled(ctx.gradients, d_loss), None
        lists = [_operator.as_list(gradients[k + 1], ctx.lengths[k], ctx.whole[k], ctx.want[k + 1])
                 for k in range(3)]
        d_router = gradients[0] if ctx.want[0] else None
        return (*nothing[:5], d_router, *lists[0], *lists[1], *lists[2], None)


def _first_expert(n: int, count: int, group: Optional[dist.ProcessGroup]) -> int:
    size = dist.get_world_size(group)
    if count * size != n:
        raise ValueError(f"cpl_erc: {count} experts here and {size} processes, but the router has {n} "
                         "rows: every process must have the same number of experts")
    return count * dist.get_rank(group)


def erc_loss_ep(router: Tensor, local_w_gate: Matrices, group: Optional[dist.ProcessGroup] = None,
                local_w_up: Optional[Matrices] = None, local_w_down: Optional[Matrices] = None, *,
                alpha: float = 1.0, weight: float = 1.0, activation: str = "gate",
                noise: str = "bounded", delta: Optional[Tensor] = None, seed: int = 0,
                step: int = 0, layer: int = 0, draw: int = 0, gate_half: Optional[str] = None,
                compute: Any = None) -> Tensor:
    """couplet.erc_loss with the experts spread over the processes of `group`.

    Every process calls it with the whole router [n, d] (the same numbers everywhere) and its own n / p
    experts, [n / p, D, d] or a list: process r has experts r n / p ... (r + 1) n / p - 1. All other
    arguments are those of erc_loss and must be the same everywhere. Not for torch.compile.

    Returns weight * L [], the same in every process. The router's gradient is complete in every
    process (a later *mean* over the group leaves it as it is; do not sum it again); an expert's is
    where the expert is.
    """
    here = local_w_gate if local_w_gate is not None else local_w_up
    count = here.shape[0] if isinstance(here, Tensor) else len(here)
    first = _first_expert(router.shape[0], count, group)
    router, gate, up, down, delta, want, half = arrange(
        router, local_w_gate, local_w_up, local_w_down, activation, noise, delta, gate_half, count)
    alpha, weight = number(alpha, "alpha"), number(weight, "weight")
    warn_of_alpha(alpha)
    arguments = (float(alpha), float(weight), activation, noise, seed, step, layer, draw,
                 compute_name(compute), first)
    lengths = (len(gate), len(up), len(down))
    return _ErcEp.apply(group, arguments, half, want, lengths, router, *gate, *up, *down, delta)
