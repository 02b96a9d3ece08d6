"""couplet::erc, the coupling loss as an operator of torch.

The gradient is computed in the forward call, together with the loss, and returned by the backward one: the loss is
a scalar, so that all that is left then is to multiply by its gradient."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _accelerator, _checks, _native, _plain
from ._job import USES_GATE, USES_UP, Experts, Job, Phases, Result, part, run_alone
from ._response import without_autocast
from ._tags import tags

def _experts(tensors: Sequence[Tensor], half: str, is_gate: bool) -> Optional[Experts]:
    return Experts([part(t, half, is_gate) for t in tensors]) if tensors else None


def shape_of(tensors: Sequence[Tensor]) -> Sequence[int]:
    """[n, r, k] of one tensor or of n [r, k]."""
    shape = tensors[0].shape
    return shape if len(shape) == 3 else (len(tensors), *shape)


def make_job(router: Tensor, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor],
             delta: Optional[Tensor], half: str, alpha: float, weight: float, activation: str,
             noise: str, seed: int, step: int, layer: int, draw: int, compute: str,
             first: int = 0) -> Job:
    """The tensors as they came in, cut into the matrices that the activation needs."""
    gates = _experts(gate, half, True) if activation in USES_GATE else None
    ups = None
    if activation in USES_UP:
        ups = _experts(up, "", False) if up else _experts(gate, half, False)
    downs = _experts(down, "", False) if activation == "output" else None
    first_used = gates or ups
    assert first_used is not None, "an activation uses gate or up"
    count, D, _ = first_used.shape
    return Job(router, gates, ups, downs, router.shape[0], router.shape[1], D, first,
               first + count, delta, noise, alpha, weight, activation, seed, step, layer, draw,
               compute)


# ---- one evaluation ----

def _strides_of_gradient(tensors: Sequence[Tensor]) -> Sequence[int]:
    """Those of a dense tensor itself, so that the gradient becomes `.grad` without a copy; else contiguous."""
    like = tensors[0] if tensors[0].dim() == 3 else tensors[0].new_empty(shape_of(tensors), device="meta")
    return torch.empty_like(like, device="meta").stride()


def _empty_gradient(tensors: Sequence[Tensor], wanted: bool, job: Job) -> Tensor:
    """For the gradient [n, r, k]; empty where it is not wanted. The library adds in f32, plain torch in the
    tensors' dtype."""
    if not wanted or not tensors:
        return job.router.new_empty(0, dtype=torch.float32)
    shape, strides = shape_of(tensors), _strides_of_gradient(tensors)
    dtype = torch.float32 if _native.fits(job) else tensors[0].dtype
    if _plain.is_for(job.router.device):
        return _plain.zeros(shape, dtype).as_strided(shape, strides)
    return torch.empty_strided(shape, strides, dtype=dtype, device=job.router.device)


def into(job: Job, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor], half: str) -> None:
    """Lets the job add its gradients to these tensors, arranged as those of `make_job`; none where one is empty."""
    def given(many: Sequence[Tensor]) -> bool:
        return bool(many) and many[0].numel() > 0

    if given(gate) and job.gate is not None:
        job.d_gate = _experts(gate, half, True)
    if job.up is not None and given(up):
        job.d_up = Experts(up)
    elif job.up is not None and not up and given(gate):
        job.d_up = _experts(gate, half, False)
    if given(down) and job.down is not None:
        job.d_down = Experts(down)


def zero_what_stays(job: Job, d_gate: Tensor, half: str) -> None:
    """On an accelerator a fresh gradient held anything; of a fused tensor the half without a gradient is zero."""
    if not half or d_gate.numel() == 0 or _plain.is_for(job.router.device):
        return
    for is_gate, used in ((True, job.d_gate), (False, job.d_up)):
        if used is None:
            part(d_gate, half, is_gate).zero_()


def start(job: Job) -> Phases:
    """The phases by the code that fits."""
    if _native.fits(job):
        return _native.phases(job)
    if _plain.is_for(job.router.device) and not job.split:
        return _plain.phases(job)
    return _accelerator.phases(job)


def run(job: Job) -> Result:
    """Every expert is here."""
    return _native.run(job) if _native.fits(job) else run_alone(start(job))


def flat(t: Tensor) -> Optional[Tensor]:
    """The memory of a dense tensor, one after the other."""
    dense = t if t.is_contiguous() else t.mT
    return dense.view(-1) if dense.is_contiguous() else None


def prepare(job: Job, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor], half: str,
            want: Sequence[bool]) -> List[Tensor]:
    """Makes the gradients of gate, up and down, for the job to fill; empty where `want` is False."""
    job.wants_router, job.fresh = want[0], True
    grads = [_empty_gradient(t, wanted, job) for t, wanted in zip((gate, up, down), want[1:])]
    into(job, grads[:1], grads[1:2] if up else [], grads[2:], half)
    if not _plain.is_for(job.router.device):
        job.scratch = next((flat(g) for g in grads if g.numel()), None)
    return grads


def evaluate(job: Job, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor],
             half: str, want: Sequence[bool],
             run: Callable[[Job], Result] = run) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """weight * L [], M [n, c], and the gradients of router, gate, up, down, each of its tensor's dtype; empty
    where `want` is False."""
    _checks.check(job)
    grads = prepare(job, gate, up, down, half, want)
    with without_autocast(job.router.device):
        result = run(job)
        zero_what_stays(job, grads[0], half)
    loss = torch.empty((), dtype=_wide(job.router, gate or up), device=job.router.device)
    torch.mul(result.total, job.weight / job.n**2, out=loss)
    d_router = job.router.new_empty(0, dtype=torch.float32)
    if result.d_router is not None:
        d_router = result.d_router.to(job.router.dtype)
    grads = [g.to(like[0].dtype) if wanted and like else g
             for g, like, wanted in zip(grads, (gate, up, down), want[1:])]
    d_gate, d_up, d_down = grads
    return loss, result.M, d_router, d_gate, d_up, d_down


def _wide(router: Tensor, matrices: Sequence[Tensor]) -> torch.dtype:
    """Of loss and M."""
    is_wide = any(t.dtype == torch.float64 for t in (router, *matrices[:1]))
    return torch.float64 if is_wide else torch.float32


# Gradients have the strides that the tensors had when the graph was traced. A CUDA graph would replay one step's noise
# for ever: inductor is to leave the operator out of its graphs.
@torch.library.custom_op("couplet::erc", mutates_args=(), **tags("needs_fixed_stride_order", "cudagraph_unsafe"))
def erc(router: Tensor, gate: List[Tensor], up: List[Tensor], down: List[Tensor],
        delta: Optional[Tensor], want: List[bool], half: str, alpha: float, weight: float,
        activation: str, noise: str, seed: int, step: int, layer: int, draw: int,
        compute: str) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, M and gradients in one sweep; see couplet.erc_loss."""
    job = make_job(router.contiguous(), gate, up, down, delta, half, alpha, weight, activation, noise, seed,
                   step, layer, draw, compute)
    return evaluate(job, gate, up, down, half, want)


@erc.register_fake
def _(router: Tensor, gate: List[Tensor], up: List[Tensor], down: List[Tensor], delta: Optional[Tensor],
      want: List[bool], *_: Any) -> Tuple[Tensor, ...]:
    nothing = router.new_empty(0, dtype=torch.float32)
    grads = [t[0].new_empty_strided(shape_of(t), _strides_of_gradient(t)) if wanted and t else nothing.clone()
             for t, wanted in zip((gate, up, down), want[1:])]
    n, n_here = router.shape[0], shape_of(gate or up)[0]
    return (router.new_empty((), dtype=_wide(router, gate or up)),
            router.new_empty((n, n_here), dtype=_wide(router, gate or up)),
            torch.empty_like(router, memory_format=torch.contiguous_format) if want[0] else nothing,
            *grads)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    router, gate, up, down, delta, want, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(router, *gate, *up, *down, *([] if delta is None else [delta]))
    ctx.lengths, ctx.has_delta = (len(gate), len(up), len(down)), delta is not None
    ctx.whole = [bool(t) and t[0].dim() == 3 for t in (gate, up, down)]
    ctx.want, ctx.options = want, options
    ctx.gradients = list(output[2:])


def _again(ctx: Any) -> List[Tensor]:
    """The gradients once more, for a second backward pass through a graph that was kept."""
    router, *rest = ctx.saved_tensors
    g, u, d = ctx.lengths
    delta = rest[-1] if ctx.has_delta else None
    with torch.no_grad():
        return list(erc(router, rest[:g], rest[g:g + u], rest[g + u:g + u + d], delta, ctx.want,
                        *ctx.options))[2:]


def scaled(gradients: List[Tensor], by: Tensor) -> List[Tensor]:
    """gradients * by, each product rounded once. In eager mode in place, and nothing at all where `by` is
    1 on the CPU: nobody else has them. Under compilation out of place."""
    if type(by) is not torch.Tensor or torch.compiler.is_compiling():
        return [(g.to(torch.promote_types(g.dtype, by.dtype)) * by).to(g.dtype) for g in gradients]
    if by.device.type != "cpu":  # there a factor without dimensions is rounded to the gradient's dtype
        return [g.mul_(by.view([1] * g.dim())) for g in gradients]
    return gradients if by.item() == 1 else [g.mul_(by) for g in gradients]


class _Last(torch.autograd.Function):
    """The identity; its backward pass, a second derivative, raises."""
    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError("couplet: the coupling loss has no second derivative here; "
                           "couplet.reference.erc_loss has one")


def scaled_once(gradients: List[Tensor], by: Tensor, ctx: Any) -> List[Tensor]:
    """gradients * by of the loss; with create_graph, where they may be differentiated again, with a graph
    from the tensors that ctx has saved."""
    if type(by) is not torch.Tensor or not torch.is_grad_enabled():
        return scaled(gradients, by)
    with torch.no_grad():
        gradients = scaled(gradients, by)
    return list(_Last.apply(len(gradients), *gradients, by, *ctx.saved_tensors))


def _backward(ctx: Any, d_loss: Optional[Tensor], *_: Any) -> Tuple[Any, ...]:
    g, u, d = ctx.lengths
    none = (None, [None] * g, [None] * u, [None] * d) + (None,) * (2 + len(ctx.options))
    if d_loss is None:
        return none
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        gradients = _again(ctx)
    gradients = scaled_once(gradients, d_loss, ctx)
    lists = [as_list(gradients[k + 1], ctx.lengths[k], ctx.whole[k], ctx.want[k + 1])
             for k in range(3)]
    return (gradients[0] if ctx.want[0] else None, *lists, *none[4:])


def as_list(gradient: Tensor, length: int, whole: bool, wanted: bool) -> List[Any]:
    if not wanted:
        return [None] * length
    return [gradient] if whole else list(gradient.unbind(0))


erc.register_autograd(_backward, setup_context=_setup)
