"""The coupling loss where the experts of a layer are spread over processes (expert parallelism).

The processes exchange the arguments, to compare them (all-gather of a kilobyte each), the n diagonals of M
(all-gather), 2n counts and the loss (all-reduce), and the router's gradient [n, d] (all-reduce).
Weights and activations are not exchanged."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .ops import _latent, _operator, _proxy
from .ops._checks import check_finite, refuse
from .ops._functional import (
    Matrices,
    arrange,
    as_gates,
    check_noise,
    compute_name,
    number,
    refuse_mesh,
    refuse_sharded,
    signed,
    warn_of_alpha,
    whole_number,
)
from .ops._job import Job, Phases, Result
from .ops._latent import Latent


@dataclass(frozen=True)
class Processes:
    """The processes over which the experts of a layer are spread."""

    expert: Optional[dist.ProcessGroup]  # n / p experts each
    tensor: Optional[dist.ProcessGroup]  # D / p rows of each expert; both None: no group (not the world)

    @property
    def all(self) -> List[dist.ProcessGroup]:
        return [group for group in (self.tensor, self.expert) if group is not None]


def processes_of(group: Optional[dist.ProcessGroup], tensor_group: Optional[dist.ProcessGroup]) -> Processes:
    """Returns the processes that the arguments name: the world, if neither is given."""
    return Processes(dist.group.WORLD if group is None and tensor_group is None else group, tensor_group)


def run_together(jobs: List[Job], spread: Processes) -> List[Result]:
    """Runs the layers `jobs`, phase by phase: each exchange is one collective for all of them."""
    layers = [_operator.start(job) for job in jobs]
    parts: List[Any] = [next(layer) for layer in layers]
    if spread.tensor is not None:
        parts = [layer.send(squares) for layer, squares in zip(layers, _sum(parts, spread.tensor))]
    diagonals = _gather_parts(parts, spread.expert)
    sums = _sum([part for layer, diagonal in zip(layers, diagonals) for part in layer.send(diagonal)], spread.expert)
    parts = [_send(layer, (sums[2 * k], sums[2 * k + 1])) for k, layer in enumerate(layers)]
    wanted = [k for k, part in enumerate(parts) if isinstance(part, Tensor)]
    whole = [parts[k] for k in wanted]
    for group in spread.all:
        whole = _sum(whole, group)
    for k, d_router in zip(wanted, whole):
        parts[k] = _send(layers[k], d_router)
    return parts


def _send(layer: Phases, whole: Any) -> Any:
    """Returns the next value that the layer yields, or its result."""
    try:
        return layer.send(whole)
    except StopIteration as end:
        return end.value


def _gather_parts(parts: List[Tensor], group: Optional[dist.ProcessGroup]) -> List[Tensor]:
    """Returns [n] for each layer, joined from the [c] of every process by one all-gather."""
    if group is None:
        return parts
    own = torch.cat([part.float() if part.dtype != torch.float64 else part for part in parts])
    world, lengths = dist.get_world_size(group), [part.numel() for part in parts]
    everyone = own.new_empty(world * own.numel())
    dist.all_gather_into_tensor(everyone, own, group=group)
    return [whole.flatten() for whole in torch.split(everyone.view(world, -1), lengths, dim=1)]


def _sum(parts: List[Tensor], group: Optional[dist.ProcessGroup]) -> List[Tensor]:
    """Returns each tensor's sum over the processes, by one all-reduce in the widest dtype: integers stay exact."""
    if not parts or group is None:
        return parts
    widest = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    sums = torch.cat([part.reshape(-1).to(widest) for part in parts])
    dist.all_reduce(sums, group=group)
    return [
        whole.view_as(part).to(part.dtype) for whole, part in zip(torch.split(sums, [p.numel() for p in parts]), parts)
    ]


def _used_already(ctx: Any) -> List[Tensor]:
    raise RuntimeError("couplet: erc_loss_ep's gradient was used already; evaluate it again for another backward pass")


# ---- all processes have the same arguments ----

ROOM = 1024  # bytes of the arguments of a process, as text


def _listed(matrices: Any) -> List[Any]:
    return [matrices] if matrices is None or isinstance(matrices, Tensor) else list(matrices)


def _count(matrices: Any) -> int:
    """Returns the number of experts here, or 0 if it is unknown; `arrange` refuses such an argument."""
    if isinstance(matrices, Tensor):
        return matrices.shape[0] if matrices.dim() else 0
    return len(matrices) if hasattr(matrices, "__len__") else 0


def _words_of(arranged: Tuple[Any, ...], options: Dict[str, Any], latent: Optional[Latent]) -> Dict[str, str]:
    """Returns texts that must be equal in all processes, by the name of the argument."""
    router, gate, up, down, delta, want, half = arranged

    def shape(many: List[Tensor]) -> Optional[List[int]]:
        return list(_operator.shape_of(many)) if many else None

    words = {
        **options,
        "router": [list(router.shape), str(router.dtype), router.device.type],
        "local_w_gate": shape(gate),
        "local_w_up": shape(up),
        "local_w_down": shape(down),
        "down": latent and [[list(t.shape), str(t.dtype)] for t in latent.tensors] + [latent.eps],
        "the matrices' dtype": (gate or up)[0].dtype,
        "gate_half": half,
        "whether delta is given": delta is not None,
        "whether the router needs a gradient": want[0],
    }
    return {name: str(value) or "None" for name, value in words.items()}


def _check_experts(n: int, count: int, size: int) -> None:
    if count * size != n:
        raise ValueError(
            f"couplet: {count} experts here and {size} processes, but the router has {n} "
            "rows: every process must have the same number of experts"
        )


def _meeting_place(group: Optional[dist.ProcessGroup], router: Any) -> torch.device:
    """Returns the device on which the processes exchange words: the CPU if the group can use it."""
    devices = getattr(group or dist.group.WORLD, "_device_types", None)
    if devices is not None and not any(d.type == "cpu" for d in devices):
        return torch.device(devices[0].type, torch.get_device_module(devices[0].type).current_device())
    return torch.device("cpu") if devices is not None else router.device


def _words_of_all(
    words: Dict[str, str], group: Optional[dist.ProcessGroup], place: torch.device
) -> List[Dict[str, str]]:
    """Returns the words of every process, or only this process's words if all are equal."""
    own, world = json.dumps(words).encode(), dist.get_world_size(group)
    said = torch.frombuffer(bytearray(own.ljust(ROOM)), dtype=torch.uint8).to(place)
    everyone = torch.empty(world * ROOM, dtype=torch.uint8, device=place)
    dist.all_gather_into_tensor(everyone, said, group=group)
    rows = everyone.view(world, ROOM).cpu()
    return [words] if (rows == rows[0]).all() else [json.loads(bytes(row.tolist())) for row in rows]


def _agree(words: Dict[str, str], group: Optional[dist.ProcessGroup], router: Any) -> None:
    """Compares the words of all processes. Every process takes part in every call, also a process that refuses its
    arguments, so that no process waits for ever. Raises ValueError in all processes if the words differ."""
    everyone = _words_of_all(words, group, _meeting_place(group, router))
    for rank, other in enumerate(everyone):
        if "refused" in other and "refused" not in words:
            raise ValueError(f"couplet: process {rank} of the group refused its arguments: {other['refused']}")
    if "refused" in words:
        return  # the caller raises its own exception, which has the details
    for rank, other in enumerate(everyone):
        for name, first in everyone[0].items():
            if other[name] != first:
                raise ValueError(
                    f"couplet: {name} is {first} in process 0 of the group and {other[name]} in "
                    f"process {rank}, must be the same in all"
                )


def _refusal(error: Exception) -> Dict[str, str]:
    return {"refused": ascii(str(error))[1:-1][: ROOM // 2 - 16]}


def _agree_in_all(words: Dict[str, str], spread: Processes, router: Any) -> None:
    """Compares the arguments in each group. An error of one group is passed to the next, so that all processes
    raise."""
    problem: Optional[ValueError] = None
    for group in spread.all:
        try:
            _agree(words if problem is None else _refusal(problem), group, router)
        except ValueError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def refuse_in_all(error: Exception, spread: Processes, router: Tensor) -> None:
    """Passes the error of this process to the others, in their comparison of arguments."""
    with contextlib.suppress(ValueError):  # another process refuses too
        _agree_in_all(_refusal(error), spread, router)


def run_agreed(jobs: List[Job], spread: Processes) -> List[Result]:
    """Calls `run_together` after all processes have agreed on the layers and options."""
    first = jobs[0]
    each = [
        (
            list(j.router.shape),
            str(j.router.dtype),
            [(W.shape, str(W.dtype)) for W in j.matrices],
            j.layer,
            j.wants_router,
        )
        for j in jobs
    ]
    words = {
        name: str(getattr(first, name)) or "None" for name in ("alpha", "weight", "noise", "seed", "step", "compute")
    }
    words["the number of layers"] = str(len(jobs))
    words["the fingerprint of shapes, dtypes and layers"] = hashlib.sha256(repr(each).encode()).hexdigest()[:12]
    _agree_in_all(words, spread, first.router)
    return run_together(jobs, spread)


def erc_loss_ep(
    router: Tensor,
    local_w_gate: Optional[Matrices],
    *,
    group: Optional[dist.ProcessGroup] = None,
    local_w_up: Optional[Matrices] = None,
    local_w_down: Optional[Matrices] = None,
    down: Optional[Tensor] = None,
    latent_norm: Optional[Tensor] = None,
    latent_eps: Optional[float] = None,
    proxy: str = "row",
    mean: Optional[Tensor] = None,
    scale: Optional[float] = None,
    alpha: float = 1.0,
    weight: float = 1.0,
    activation: str = "gate",
    noise: str = "bounded",
    delta: Optional[Tensor] = None,
    seed: int = 0,
    step: int = 0,
    layer: int = 0,
    draw: int = 0,
    gate_half: Optional[str] = None,
    compute: Any = None,
    tensor_group: Optional[dist.ProcessGroup] = None,
) -> Tensor:
    """Returns couplet.erc_loss with the experts spread over the processes of `group` (default: all processes).

    Every process calls it with the whole router [n, d], whole down, latent_norm and mean (equal numbers everywhere) and its
    own n / p experts, [n / p, D, d] or a list: process r has experts r n / p ... (r + 1) n / p - 1. All other
    arguments are those of `erc_loss` and must be the same everywhere. If they differ, or one process
    refuses its own, all processes raise ValueError. It does not support torch.compile.

    tensor_group: processes that share the width of each expert (expert tensor parallelism): every process has D / p of
    the D rows of its experts' gates (and ups), in any choice; M^2 is a sum over these processes. Without `group`
    each process has all n experts. The activation "output" is not supported.

    Returns weight * L [], equal in every process. The gradients of router, down and latent_norm are complete in every
    process (a later *mean* over the group leaves them unchanged; do not sum them again). An expert's gradient is
    in the process that has the expert.
    """
    loss, _ = loss_and_columns(
        router,
        local_w_gate,
        group,
        local_w_up,
        local_w_down,
        alpha,
        weight,
        activation,
        noise,
        delta,
        seed,
        step,
        layer,
        draw,
        gate_half,
        compute,
        tensor_group,
        (down, latent_norm, latent_eps),
        (proxy, mean, scale),
    )
    warn_of_alpha(alpha)
    return loss


def loss_and_columns(
    router: Tensor,
    local_w_gate: Optional[Matrices],
    group: Optional[dist.ProcessGroup],
    local_w_up: Optional[Matrices] = None,
    local_w_down: Optional[Matrices] = None,
    alpha: float = 1.0,
    weight: float = 1.0,
    activation: str = "gate",
    noise: str = "bounded",
    delta: Optional[Tensor] = None,
    seed: int = 0,
    step: int = 0,
    layer: int = 0,
    draw: int = 0,
    gate_half: Optional[str] = None,
    compute: Any = None,
    tensor_group: Optional[dist.ProcessGroup] = None,
    latent: _latent.Arguments = (None, None, None),
    proxy: _proxy.Arguments = _proxy.ROWS,
) -> Tuple[Tensor, Tensor]:
    """Returns erc_loss_ep, and the columns of M [n, n / p] of this process's experts, without a gradient. latent: down,
    latent_norm and latent_eps. proxy: proxy, mean and scale."""
    refuse_mesh(group, "group")
    refuse_mesh(tensor_group, "tensor_group")
    spread = processes_of(group, tensor_group)
    size = 1 if spread.expert is None else dist.get_world_size(spread.expert)
    rank = 0 if spread.expert is None else dist.get_rank(spread.expert)

    def prepare() -> Tuple[Any, Optional[Latent], Dict[str, Any], int]:
        here = local_w_gate if local_w_gate is not None else local_w_up
        refuse_sharded([router], "router")
        refuse_sharded(_listed(here), "local_w_gate")
        count = _count(here)
        if count and isinstance(router, Tensor) and router.dim() == 2:
            _check_experts(router.shape[0], count, size)
        check_noise(noise)
        _proxy.check(router, *proxy)
        if tensor_group is not None and activation == "output":
            refuse('tensor_group splits D, over which the activation "output" sums; choose another')
        projection = _latent.latent_of(*latent)
        kind, half = as_gates(activation, local_w_up, gate_half)
        arranged = arrange(router, local_w_gate, local_w_up, local_w_down, kind, delta, half, count, projection)
        if delta is not None:
            check_finite(delta)
        options = dict(
            alpha=float(number(alpha, "alpha")),
            weight=float(number(weight, "weight")),
            activation=kind,
            noise=noise,
            seed=signed(whole_number(seed, "seed")),
            step=whole_number(step, "step"),
            layer=whole_number(layer, "layer"),
            draw=whole_number(draw, "draw"),
            compute=compute_name(compute),
        )
        return arranged, projection, options, rank * count

    try:
        arranged, projection, options, first = prepare()
        words = {**_words_of(arranged, options, projection), "proxy": proxy[0], "scale": str(proxy[2])}
    except Exception as error:
        _agree_in_all(_refusal(error), spread, router)
        raise
    _agree_in_all(words, spread, router)
    router, gate, up, down, delta, want, half = arranged
    router = _proxy.of(router, *proxy)
    if projection is not None:
        at = (options[name] for name in ("seed", "step", "layer", "draw"))
        router = _latent.rows(router, projection, (gate or up)[0].dtype, noise, delta, *at)
        options["noise"], delta = "none", None

    numbers = (*options.values(), first)

    def evaluation(
        router: Tensor, gate: List[Tensor], up: List[Tensor], down: List[Tensor], delta: Optional[Tensor]
    ) -> Sequence[Tensor]:
        job = _operator.make_job(router, gate, up, down, delta, half, *numbers)
        job.split = tensor_group is not None
        return _operator.evaluate(job, gate, up, down, half, want, lambda job: run_together([job], spread)[0])

    found: Tuple[Tensor, Tensor] = _operator.Evaluated.apply(
        evaluation,
        _used_already,
        want,
        half,
        options["weight"],
        (len(gate), len(up), len(down)),
        router,
        delta,
        *gate,
        *up,
        *down,
    )
    return found
