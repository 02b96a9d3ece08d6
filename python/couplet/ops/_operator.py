"""couplet::erc, the coupling loss as an operator of torch.

On the CPU the gradients are computed in the forward call, together with the loss, and returned by the backward call.
The loss is a scalar, so the backward call only multiplies by its gradient. On an accelerator the forward call leaves
out the last product, d x, which couplet::erc_gradients computes in the backward call. In place of gradients it returns
their factors d and x (_accelerator.py), a few percent of the gradients' bytes, and no weight is needed any more."""

import operator
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _accelerator, _checks, _native, _plain
from ._job import USES_GATE, USES_UP, Experts, Job, Phases, Result, part, run_alone
from ._response import without_autocast
from ._tags import tags


def _experts(tensors: Sequence[Tensor], half: str, is_gate: bool) -> Optional[Experts]:
    return Experts([part(t, half, is_gate) for t in tensors]) if tensors else None


def shape_of(tensors: Sequence[Tensor]) -> Sequence[int]:
    """Returns [n, r, k] of one tensor or of n tensors [r, k]."""
    shape = tensors[0].shape
    return shape if len(shape) == 3 else (len(tensors), *shape)


def make_job(
    router: Tensor,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
    delta: Optional[Tensor],
    half: str,
    alpha: float,
    weight: float,
    activation: str,
    noise: str,
    seed: int,
    step: int,
    layer: int,
    draw: int,
    compute: str,
    first: int = 0,
) -> Job:
    """Returns the job, with the tensors cut into the matrices that the activation needs."""
    gates = _experts(gate, half, True) if activation in USES_GATE else None
    ups = None
    if activation in USES_UP:
        ups = _experts(up, "", False) if up else _experts(gate, half, False)
    downs = _experts(down, "", False) if activation == "output" else None
    first_used = gates or ups
    assert first_used is not None, "an activation uses gate or up"
    count, D, _ = first_used.shape
    return Job(
        router,
        gates,
        ups,
        downs,
        router.shape[0],
        router.shape[1],
        D,
        first,
        first + count,
        delta,
        noise,
        alpha,
        weight,
        activation,
        seed,
        step,
        layer,
        draw,
        compute,
    )


# ---- before an evaluation ----


def _strides_of_gradient(tensors: Sequence[Tensor]) -> Sequence[int]:
    """Returns the strides of a dense tensor, so that the gradient becomes `.grad` without a copy; else contiguous
    strides."""
    if tensors[0].dim() == 3 and tensors[0].is_contiguous():
        return tensors[0].stride()
    _, r, k = shape_of(tensors)
    return torch.empty_like(tensors[0], device="meta").stride() if tensors[0].dim() == 3 else (r * k, k, 1)


def _empty_gradient(tensors: Sequence[Tensor], wanted: bool, job: Job) -> Tensor:
    """Returns memory for the gradient [n, r, k], or an empty tensor where it is not wanted. The library adds in f32,
    plain torch in the tensors' dtype."""
    if not wanted or not tensors:
        return job.router.new_empty(0, dtype=torch.float32)
    shape, strides = shape_of(tensors), _strides_of_gradient(tensors)
    dtype = torch.float32 if _native.fits(job) else tensors[0].dtype
    if _plain.is_for(job.router.device):
        return _plain.zeros(shape, dtype).as_strided(shape, strides)
    device = "meta" if job.factors is not None else job.router.device
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def into(job: Job, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor], half: str) -> None:
    """Lets the job add its gradients to these tensors, arranged as in `make_job`. Where one tensor is empty, no
    gradient is added."""

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
    """Zeroes the half of a fused gradient that gets no gradient. On an accelerator a fresh gradient has undefined
    contents."""
    if not half or d_gate.numel() == 0 or _plain.is_for(job.router.device):
        return
    for is_gate, used in ((True, job.d_gate), (False, job.d_up)):
        if used is None:
            part(d_gate, half, is_gate).zero_()


def start(job: Job) -> Phases:
    """Starts the phases of the code that fits the job."""
    if _native.fits(job):
        return _native.phases(job)
    if _plain.is_for(job.router.device) and not job.split:
        return _plain.phases(job)
    return _accelerator.phases(job)


def run(job: Job) -> Result:
    """Runs the phases with all experts in this process."""
    return _native.run(job) if _native.fits(job) else run_alone(start(job))


def prepare(
    job: Job, gate: Sequence[Tensor], up: Sequence[Tensor], down: Sequence[Tensor], half: str, want: Sequence[bool]
) -> List[Tensor]:
    """Returns the gradients of gate, up and down, for the job to fill; empty where `want` is False."""
    job.wants_router, job.fresh = want[0], True
    grads = [_empty_gradient(t, wanted, job) for t, wanted in zip((gate, up, down), want[1:])]
    into(job, grads[:1], grads[1:2] if up else [], grads[2:], half)
    return grads


# ---- gradients without their last product ----


def _factors(job: Job) -> List[Tensor]:
    """Returns d [c, r, n] of gate, up and down, x [n, d], and down's own x [c, D, n]; empty where no gradient needs
    them."""
    found = job.factors or []

    def all_of(to: Optional[Experts], which: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        parts = [which(d, x) for one, d, x in found if one is to]
        if not parts:
            return job.router.new_empty(0, dtype=torch.float32)
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous()

    x = next((x for to, _, x in found if to is not job.d_down), job.router.new_empty(0, dtype=torch.float32))
    if x.numel() and x.untyped_storage()._cdata == job.router.untyped_storage()._cdata:
        x = x.clone()  # an operator must not return its own argument
    return [
        *(all_of(to, lambda d, x: d) for to in (job.d_gate, job.d_up, job.d_down)),
        x,
        all_of(job.d_down, lambda d, x: x.mT),
    ]


def _shapes_of_factors(job: Job) -> List[Optional[Sequence[int]]]:
    """Returns the shapes of the results of `_factors`."""
    c, n, d, D = job.end - job.first, job.n, job.d, job.D
    return [
        None if job.d_gate is None else (c, D, n),
        None if job.d_up is None else (c, D, n),
        None if job.d_down is None else (c, d, n),
        None if job.d_gate is job.d_up is None else (n, d),
        None if job.d_down is None else (c, D, n),
    ]


def _made(by: Tensor, shapes: List[int], strides: List[int], dtype: torch.dtype) -> List[Tensor]:
    """Returns memory for the gradients of gate, up and down: three numbers describe each; empty where they are 0."""
    return [
        by.new_empty_strided(shapes[k : k + 3], strides[k : k + 3], dtype=dtype)
        if shapes[k]
        else by.new_empty(0, dtype=torch.float32)
        for k in (0, 3, 6)
    ]


def multiply(
    by: Tensor,
    d_router: Tensor,
    factors: List[Tensor],
    shapes: List[int],
    strides: List[int],
    router_dtype: torch.dtype,
    dtype: torch.dtype,
    half: str,
    n: int,
    weight: float,
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the gradients of router, gate, up and down from their factors, times `by`, the gradient of the loss."""
    d_gate, d_up, d_down, x, own = factors
    gate, up, down = made = _made(by, shapes, strides, dtype)
    halves = [part(gate, half, is_gate) if half and gate.numel() else gate for is_gate in (True, False)]
    products = [(d_gate, halves[0], x), (d_up, up if up.numel() else halves[1], x), (d_down, down, own)]
    lift = _accelerator.lift_of(weight / n**2, x.dtype)
    factor = by if lift == 1 else by / lift
    room = max(_accelerator.LEAST_BYTES, sum(t.nbytes for t in made) // _accelerator.SHARE)
    with without_autocast(by.device):
        for d, to, other in products:
            if d.numel():
                _accelerator.add_gradient(
                    Experts([to]), slice(None), d, other if other is x else other.mT, 0, factor, room
                )
        for one, (d, to, _) in zip(halves, products):
            if half and one.numel() and not (d.numel() and to is one):
                one.zero_()
        return (d_router * by).to(router_dtype), gate, up, down


erc_gradients = torch.library.custom_op("couplet::erc_gradients", multiply, mutates_args=())


@erc_gradients.register_fake
def _(
    by: Tensor,
    d_router: Tensor,
    factors: List[Tensor],
    shapes: List[int],
    strides: List[int],
    router_dtype: torch.dtype,
    dtype: torch.dtype,
    *_: Any,
) -> Tuple[Tensor, ...]:
    return (torch.empty_like(d_router, dtype=router_dtype), *_made(by, shapes, strides, dtype))


# ---- one evaluation ----


def evaluate(
    job: Job,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
    half: str,
    want: Sequence[bool],
    run: Callable[[Job], Result] = run,
) -> Tuple[Tensor, ...]:
    """Returns weight * L [], M [n, c], and the input of the backward pass, empty where `want` is False. On the CPU this
    input is the gradients of router, gate, up and down, each in its tensor's dtype, and two empty tensors. On an
    accelerator it is the router's gradient and the factors of the other gradients."""
    _checks.check(job)
    job.factors = None if _plain.is_for(job.router.device) else []
    grads = prepare(job, gate, up, down, half, want)
    with without_autocast(job.router.device):
        result = run(job)
        factors = None if job.factors is None else _factors(job)
    loss = torch.empty((), dtype=_result_dtype(job.router, gate or up), device=job.router.device)
    torch.mul(result.total, job.weight / job.n**2, out=loss)
    d_router = job.router.new_empty(0, dtype=torch.float32) if result.d_router is None else result.d_router
    if factors is not None:
        return loss, result.M, d_router, *factors
    grads = [
        g.to(like[0].dtype) if wanted and like else g for g, like, wanted in zip(grads, (gate, up, down), want[1:])
    ]
    nothing = (job.router.new_empty(0, dtype=torch.float32) for _ in range(2))
    return loss, result.M, d_router.to(job.router.dtype) if want[0] else d_router, *grads, *nothing


def _result_dtype(router: Tensor, matrices: Sequence[Tensor]) -> torch.dtype:
    """Returns the dtype of loss and M."""
    is_wide = any(t.dtype == torch.float64 for t in (router, *matrices[:1]))
    return torch.float64 if is_wide else torch.float32


# Gradients have the strides that the tensors had when the graph was traced. A CUDA graph would replay the noise of one
# step for ever, so inductor must leave the operator out of its graphs.
@torch.library.custom_op("couplet::erc", mutates_args=(), **tags("needs_fixed_stride_order", "cudagraph_unsafe"))
def erc(
    router: Tensor,
    gate: List[Tensor],
    up: List[Tensor],
    down: List[Tensor],
    delta: Optional[Tensor],
    alpha_tensor: Optional[Tensor],
    step_tensor: Optional[Tensor],
    want: List[bool],
    half: str,
    alpha: float,
    weight: float,
    activation: str,
    noise: str,
    seed: int,
    step: int,
    layer: int,
    draw: int,
    compute: str,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns loss, M and the input of the backward pass, in one sweep; see `evaluate` and couplet.erc_loss.
    alpha_tensor and step_tensor replace the numbers in a graph whose constants these would be. They stand beside
    other tensors: inductor leaves out a last argument that is None."""
    job = make_job(
        router.contiguous(),
        gate,
        up,
        down,
        delta,
        half,
        alpha,
        weight,
        activation,
        noise,
        seed,
        step if step_tensor is None else operator.index(step_tensor),
        layer,
        draw,
        compute,
    )
    if alpha_tensor is not None:
        job.alpha = alpha_tensor.item() if _plain.is_for(router.device) else alpha_tensor.reshape(())
    loss, M, d_router, d_gate, d_up, d_down, x, own = evaluate(job, gate, up, down, half, want)
    return loss, M, d_router, d_gate, d_up, d_down, x, own


@erc.register_fake
def _(
    router: Tensor,
    gate: List[Tensor],
    up: List[Tensor],
    down: List[Tensor],
    delta: Optional[Tensor],
    alpha_tensor: Optional[Tensor],
    step_tensor: Optional[Tensor],
    want: List[bool],
    half: str,
    *options: Any,
) -> Tuple[Tensor, ...]:
    nothing = router.new_empty(0, dtype=torch.float32)
    wide, n, n_here = _result_dtype(router, gate or up), router.shape[0], shape_of(gate or up)[0]
    results = (
        router.new_empty((), dtype=wide),
        router.new_empty((n, n_here), dtype=wide),
        torch.empty_like(router, memory_format=torch.contiguous_format) if want[0] else nothing,
    )
    if _plain.is_for(router.device):
        grads = [
            t[0].new_empty_strided(shape_of(t), _strides_of_gradient(t)) if wanted and t else nothing.clone()
            for t, wanted in zip((gate, up, down), want[1:])
        ]
        return (*results, *grads, nothing.clone(), nothing.clone())
    job = make_job(router, gate, up, down, delta, half, *options)
    job.factors = []
    prepare(job, gate, up, down, half, want)
    dtype = _accelerator.products_dtype(job)
    return (
        *results[:2],
        results[2].to(wide),
        *(
            nothing.clone() if shape is None else router.new_empty(shape, dtype=dtype)
            for shape in _shapes_of_factors(job)
        ),
    )


def layout(
    router: Tensor, many: Sequence[Sequence[Tensor]], want: Sequence[bool], half: str, weight: float
) -> Tuple[Any, ...]:
    """Returns the arguments of `multiply` that describe gate, up and down."""
    shapes, strides = (
        [number for t, wanted in zip(many, want[1:]) for number in (of(t) if t and wanted else (0, 0, 0))]
        for of in (shape_of, _strides_of_gradient)
    )
    return shapes, strides, router.dtype, (many[0] or many[1])[0].dtype, half, router.shape[0], weight


def save_evaluation(
    ctx: Any,
    router: Tensor,
    gate: Sequence[Tensor],
    up: Sequence[Tensor],
    down: Sequence[Tensor],
    want: Sequence[bool],
    half: str,
    weight: float,
    output: Sequence[Tensor],
) -> bool:
    """Saves in ctx the input of `gradients`. Returns whether tensors are saved, which happens on an accelerator."""
    many = (gate, up, down)
    ctx.set_materialize_grads(False)
    ctx.want, ctx.lengths = want, [len(tensors) for tensors in many]
    ctx.whole = [bool(t) and t[0].dim() == 3 for t in many]
    ctx.leaf = [t for t in (router, *gate, *up, *down) if t.requires_grad][:1]  # has a graph, if a gradient needs one
    ctx.made, ctx.layout = list(output[2:6]), None
    if not _plain.is_for(router.device):
        ctx.save_for_backward(*output[2:])
        ctx.made, ctx.layout = None, layout(router, many, want, half, weight)
    return ctx.layout is not None


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    router, gate, up, down, delta, *numbers, want = inputs[:8]
    half, _, weight, *_ = options = inputs[8:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.rest = (None,) * (len(inputs) - 4)  # delta and all later arguments have no gradient
    if not save_evaluation(ctx, router, gate, up, down, want, half, weight, output):
        ctx.save_for_backward(router, delta, *gate, *up, *down)
        ctx.evaluation = lambda *tensors: erc(*tensors, *numbers, want, *options)


def _parted(tensors: Sequence[Tensor], lengths: Sequence[int]) -> Tuple[List[Tensor], List[Tensor], List[Tensor]]:
    """Splits the tensors into gate, up and down."""
    g, u, _ = lengths
    return list(tensors[:g]), list(tensors[g : g + u]), list(tensors[g + u :])


def _again(ctx: Any) -> List[Tensor]:
    """Computes the gradients once more, for a second backward pass through a kept graph."""
    router, delta, *rest = ctx.saved_tensors
    with torch.no_grad():
        return list(ctx.evaluation(router, *_parted(rest, ctx.lengths), delta))[2:6]


def scaled(gradients: List[Tensor], by: Tensor) -> List[Tensor]:
    """Returns gradients * by, each product rounded once. In eager mode it multiplies in place, since no other code has
    the gradients, and skips the product if `by` is 1. Under compilation it multiplies out of place."""
    if type(by) is not torch.Tensor or torch.compiler.is_compiling():
        return [(g.to(torch.promote_types(g.dtype, by.dtype)) * by).to(g.dtype) for g in gradients]
    return gradients if by.item() == 1 else [g.mul_(by) for g in gradients]


class _Last(torch.autograd.Function):
    """The identity. Its backward pass, a second derivative, raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "couplet: the coupling loss has no second derivative here; couplet.reference.erc_loss has one"
        )


def gradients(
    ctx: Any, by: Tensor, again: Callable[[Any], List[Tensor]]
) -> Tuple[Any, List[Any], List[Any], List[Any]]:
    """Returns the gradients of router, gate, up and down, times `by`, as autograd takes them. `again` computes the
    gradients on the CPU once more. With create_graph they have a graph that cannot be differentiated."""

    def make() -> List[Tensor]:
        if ctx.layout is not None:
            d_router, *factors = ctx.saved_tensors
            return list(erc_gradients(by, d_router, factors, *ctx.layout))
        made, ctx.made = ctx.made, None
        return scaled(again(ctx) if made is None else made, by)

    if type(by) is not torch.Tensor or not torch.is_grad_enabled():
        found = make()
    else:
        with torch.no_grad():
            found = make()
        found = list(_Last.apply(len(found), *found, by, *ctx.leaf, *ctx.saved_tensors))
    gate, up, down = (as_list(found[k + 1], ctx.lengths[k], ctx.whole[k], ctx.want[k + 1]) for k in range(3))
    return found[0] if ctx.want[0] else None, gate, up, down


def _backward(ctx: Any, d_loss: Optional[Tensor], *_: Any) -> Tuple[Any, ...]:
    if d_loss is None:
        return (None, *([None] * length for length in ctx.lengths), *ctx.rest)
    return (*gradients(ctx, d_loss, _again), *ctx.rest)


def as_list(gradient: Tensor, length: int, whole: bool, wanted: bool) -> List[Any]:
    if not wanted:
        return [None] * length
    return [gradient] if whole else list(gradient.unbind(0))


erc.register_autograd(_backward, setup_context=_setup)


_len_pre_dispatch_stack: Callable[[], int] = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", lambda: 0)


class Evaluated(torch.autograd.Function):
    """An `evaluate` in eager mode, as a function of router, gate, up, down and delta. Calls of an operator take 300
    microseconds more, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        evaluation: Callable[..., Sequence[Tensor]],
        again: Callable[[Any], List[Tensor]],
        want: List[bool],
        half: str,
        weight: float,
        lengths: Sequence[int],
        router: Tensor,
        delta: Optional[Tensor],
        *rest: Tensor,
    ) -> Tuple[Tensor, Tensor]:
        gate, up, down = _parted(rest, lengths)
        output = evaluation(router, gate, up, down, delta)
        ctx.evaluation, ctx.again = evaluation, again
        if not save_evaluation(ctx, router, gate, up, down, want, half, weight, output):
            ctx.save_for_backward(router, delta, *rest)
        ctx.mark_non_differentiable(output[1])
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, d_loss: Optional[Tensor], _: Any) -> Tuple[Any, ...]:
        nothing: Tuple[Any, ...] = (None,) * (8 + sum(ctx.lengths))
        if d_loss is None:
            return nothing
        d_router, gate, up, down = gradients(ctx, d_loss, ctx.again)
        return (*nothing[:6], d_router, None, *gate, *up, *down)


def call(
    router: Tensor,
    gate: List[Tensor],
    up: List[Tensor],
    down: List[Tensor],
    delta: Optional[Tensor],
    want: List[bool],
    half: str,
    *options: Any,
) -> Tuple[Tensor, Tensor]:
    """Returns loss and M in eager mode, by `erc` where a mode, a tracer or a subclass of Tensor needs an operator."""
    tensors = [router, *gate, *up, *down]
    if (
        torch._C._len_torch_dispatch_stack()
        or _len_pre_dispatch_stack()
        or torch._C._get_tracing_state()
        or not all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    ):
        loss, M, *_ = erc(router, gate, up, down, delta, None, None, want, half, *options)
        return loss, M

    def evaluation(
        router: Tensor, gate: List[Tensor], up: List[Tensor], down: List[Tensor], delta: Optional[Tensor]
    ) -> Sequence[Tensor]:
        return evaluate(make_job(router, gate, up, down, delta, half, *options), gate, up, down, half, want)

    found: Tuple[Tensor, Tensor] = Evaluated.apply(
        evaluation, _again, want, half, options[1], (len(gate), len(up), len(down)), router, delta, *tensors[1:]
    )
    return found
