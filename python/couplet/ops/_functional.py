"""couplet.erc_loss. Its arguments are checked and brought into one form for the operator."""

from __future__ import annotations

import operator
import sys
import warnings
from types import FrameType
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _latent, _operator, _proxy
from ._checks import check_dtype, described
from ._checks import refuse as _refuse
from ._job import ACTIVATIONS, HALVES, USES_GATE, USES_UP
from ._latent import Latent
from ._response import widest

Matrices = Union[Tensor, Sequence[Tensor]]


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__package__")).partition(".")[0]


def _level_of_caller() -> int:
    """Returns the `stacklevel` of the code that called into this package, also through torch's decorators, so that each
    place is warned only once."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and _package_of(frame) in ("couplet", "torch"):
        frame, level = frame.f_back, level + 1
    return level


def _as_list(matrices: Optional[Matrices], name: str) -> List[Tensor]:
    """Returns the tensors of an argument: one [n, r, k], or n of [r, k]; an empty list for None."""
    if matrices is None:
        return []
    is_list = not isinstance(matrices, Tensor) and hasattr(matrices, "__iter__")
    many: List[Any] = list(matrices) if is_list else [matrices]
    wrong = [t for t in many if not isinstance(t, Tensor)]
    if wrong or not many:
        inside = "" if not is_list else f" with {described(wrong[0])}" if wrong else " without any"
        raise TypeError(
            f"couplet: {name} is {described(matrices)}{inside}, must be a tensor [n, D, d] or a list of n tensors [D, d]"
        )
    refuse_sharded(many, name)
    rank = 3 if isinstance(matrices, Tensor) else 2
    if any(t.dim() != rank or t.shape != many[0].shape for t in many):
        _refuse(
            f"{name} has the shape {[tuple(t.shape) for t in many[:3]]}, must be one tensor "
            "[n, D, d] or n equal ones [D, d]"
        )
    if any(t.layout != torch.strided for t in many):
        raise TypeError(f"couplet: {name} is {many[0].layout}, must be dense")
    return many


def _count(many: List[Tensor]) -> int:
    return many[0].shape[0] if many[0].dim() == 3 else len(many)


def _check_tensors(router: Tensor, named: Sequence[Tuple[str, List[Tensor]]]) -> None:
    for name, many in named:
        for t in many:
            if t.device != router.device:
                _refuse(f"{name} is on {t.device}, the router on {router.device}")
            check_dtype(t.dtype, name)
            if t.dtype != named[1][1][0].dtype and name != "router":
                raise TypeError(
                    f"couplet: {name} is {t.dtype}, {named[1][0]} is {named[1][1][0].dtype}; they must be alike"
                )


def _check_shapes(
    router: Tensor,
    gate: List[Tensor],
    up: List[Tensor],
    down: List[Tensor],
    half: str,
    n_here: Optional[int],
    latent: Optional[Latent],
) -> None:
    """Checks the experts' matrices. d below is the width that they read: l of latent experts."""
    n, d = router.shape
    beside = f"a router {[n, d]}"
    if latent is not None:
        d = _latent.check(latent, router)
        beside = f"down {list(latent.down.shape)}, whose output the experts read"
    count = n if n_here is None else n_here
    first = gate or up
    D = first[0].shape[-2] // (2 if half and gate else 1)
    if half and gate and gate[0].shape[-2] % 2:
        _refuse(
            f"w_gate has {gate[0].shape[-2]} rows an expert, which gate and up cannot share: with gate_half it holds "
            "both, each in half of the rows; leave gate_half out if it holds the gate alone"
        )
    for name, many, r, k in (("w_gate", gate, 2 * D if half else D, d), ("w_up", up, D, d), ("w_down", down, d, D)):
        if many and (_count(many) != count or tuple(many[0].shape[-2:]) != (r, k)):
            rows, columns = many[0].shape[-2:]
            is_turned = rows == k != columns and (many is first or columns == r)
            pass_ = f"{name}.mT" if many[0].dim() == 3 else "the .mT of each"
            other = ""
            if many is first and latent is None and (_count(many), columns) == (d, n):
                other = "; if the router is transposed, pass router.mT"
            elif many is first and latent is None and (_count(many), rows) == (count, r):
                other = f"; latent experts read a projection of x, which they need as down [{columns}, {d}]"
            _refuse(
                f"{name} is {[_count(many), rows, columns]}, must be {[count, columns if is_turned else r, k]} "
                f"beside {beside}" + (f"; if its matrices are transposed, pass {pass_}" if is_turned else other)
            )


def check_noise(noise: Any) -> None:
    if noise not in ("bounded", "none"):
        _refuse(f"noise is {noise!r}, must be bounded or none")


def _doubt(alpha: Any) -> str:
    """Returns the reason to warn of an alpha outside of 0.1 to 1, or an empty text."""
    if alpha > 1:
        return "above 1: the loss degenerates towards none"
    why = "below 0.1: at alpha 0 the loss is a sum of off-diagonal norms, which R = 0 minimises; give 0.1 to 1"
    return why if 0 <= alpha < 0.1 else ""


def warn_of_alpha(alpha: Any, before: Any = 1.0) -> None:
    """Warns the caller of this package of an alpha outside of 0.1 to 1, unless `before` has the same reason."""
    if not torch.compiler.is_compiling() and _doubt(alpha) not in ("", _doubt(before)):
        warnings.warn(f"couplet: alpha {float(alpha):g} is {_doubt(alpha)}", stacklevel=_level_of_caller())


def compute_name(compute: Any) -> str:
    """Returns the name of `compute` in jobs; "" is the device's best."""
    if compute is None:
        return ""
    if compute in ("f32", torch.float32):
        return "f32"
    if compute in ("bf16", torch.bfloat16):
        return "bf16"
    raise ValueError(f'couplet: compute is {compute!r}, must be None, "f32" or "bf16"')


def number(value: Any, name: str) -> Any:
    """Returns a constant of the loss. A tensor that needs a gradient is refused: the gradient would be lost."""
    if isinstance(value, Tensor) and value.requires_grad:
        raise TypeError(f"couplet: {name} needs a gradient, which it would not get; give a number, or {name}.detach()")
    if isinstance(value, (int, float)) or (torch.compiler.is_compiling() and not isinstance(value, (str, type(None)))):
        return value
    try:
        return value if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value + 0)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"couplet: {name} is {value!r}, must be a number") from None


def whole_number(value: Any, name: str) -> Any:
    """Returns seed, step, layer or draw as an int."""
    if isinstance(value, (int, torch.SymInt)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"couplet: {name} is {value!r}, must be a whole number") from None


def _refuse_transforms(tensors: Sequence[Tensor]) -> None:
    """Refuses forward derivatives, which would silently be zeros, and transforms of torch.func."""
    if torch.compiler.is_compiling():
        return
    forward: Any = torch.autograd.forward_ad
    dual = forward._current_level >= 0 and any(forward.unpack_dual(t).tangent is not None for t in tensors)
    if dual or torch._C._are_functorch_transforms_active():
        raise NotImplementedError(
            "couplet: the coupling loss has backward passes only: no vmap, jvp or "
            "other transform of torch.func; couplet.reference.erc_loss is plain torch"
        )


def refuse_sharded(tensors: Sequence[Any], name: str) -> None:
    plain = (torch.Tensor, torch.nn.Parameter)  # PyTorch 2.4 cannot compile hasattr for these classes
    if any(type(t) not in plain and hasattr(t, "full_tensor") for t in tensors):
        raise TypeError(
            f"couplet: {name} is a DTensor, of which every process has a part; pass "
            f"{name}.full_tensor(), or what is here, {name}.to_local(), to erc_loss_ep"
        )


def refuse_mesh(group: Any, name: str) -> None:
    if group is not None and (hasattr(group, "get_group") or not hasattr(group, "size")):
        raise TypeError(
            f"couplet: {name} is {described(group)}, must be a process group; pass that of one dimension, "
            "mesh.get_group(...), of a DeviceMesh, or one of torch.distributed.new_group(...)"
        )


def _refuse_unused(activation: str, w_up: Optional[Matrices], w_down: Optional[Matrices]) -> None:
    for name, matrices, users in (("w_up", w_up, USES_UP), ("w_down", w_down, ("output",))):
        if matrices is not None and activation not in users:
            _refuse(
                f"{name} is given, but the activation {activation!r} does not use it; leave it out, or "
                f"choose {' or '.join(users)}"
            )


def arrange(
    router: Tensor,
    w_gate: Optional[Matrices],
    w_up: Optional[Matrices],
    w_down: Optional[Matrices],
    activation: str,
    delta: Optional[Tensor],
    gate_half: Optional[str],
    n_here: Optional[int] = None,
    latent: Optional[Latent] = None,
) -> Tuple[Any, ...]:
    """Checks the arguments; returns router, gate, up, down, delta, want, half for the operator.
    n_here: the number of experts that the matrices must have; None: the number of the router's rows.
    latent: the projection of latent experts. _latent.rows then makes the rows of the router, delta and itself."""
    refuse_sharded([router], "router")
    refuse_sharded([delta], "delta")
    projection = [] if latent is None else latent.tensors
    refuse_sharded(projection, "down or latent_norm")
    if not isinstance(router, Tensor) or router.dim() != 2:
        there = f"a tensor {list(router.shape)}" if isinstance(router, Tensor) else described(router)
        raise TypeError(f"couplet: router is {there}, must be a tensor [n, d], a row for each expert")
    if router.layout != torch.strided:
        raise TypeError(f"couplet: router is {router.layout}, must be dense")
    if activation not in ACTIVATIONS:
        _refuse(f"activation is {activation!r}, must be one of {', '.join(ACTIVATIONS)}")
    _refuse_unused(activation, w_up, w_down)
    half = "" if gate_half == "none" else gate_half or ""
    if half not in HALVES:
        _refuse(f"gate_half is {gate_half!r}, must be first, second, interleaved or none")
    fused_up = half != "" and w_up is None
    uses_gate = activation in USES_GATE or (activation in USES_UP and fused_up)
    gate = _as_list(w_gate, "w_gate") if uses_gate else []
    up = _as_list(w_up, "w_up") if activation in USES_UP else []
    down = _as_list(w_down, "w_down") if activation == "output" else []
    for name, many, needed in (
        ("w_gate", gate, uses_gate),
        ("w_down", down, activation == "output"),
        ("w_up", up, activation in USES_UP and not fused_up),
    ):
        if needed and not many:
            _refuse(
                f"{name} is None, which the activation {activation!r} needs"
                + ("; give it, or gate_half where w_gate holds the up projection too" if name == "w_up" else "")
            )
    named = [
        (name, many) for name, many in (("router", [router]), ("w_gate", gate), ("w_up", up), ("w_down", down)) if many
    ]
    _check_tensors(router, named)
    _check_shapes(router, gate, up, down, half, n_here, latent)
    if delta is not None and not (isinstance(delta, Tensor) and delta.is_floating_point()):
        found = delta.dtype if isinstance(delta, Tensor) else described(delta)
        raise TypeError(f"couplet: delta is {found}, must be a tensor [n, d] of floating-point numbers")
    if delta is not None and (delta.shape != router.shape or delta.device != router.device):
        _refuse(f"delta is {list(delta.shape)} on {delta.device}, must be {list(router.shape)} on {router.device}")
    router = router.contiguous()
    _refuse_transforms([router, *projection, *gate, *up, *down])

    def need(many: List[Tensor]) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in many)

    want = [need([router, *projection]), need(gate), need(up), need(down)]
    return router, gate, up, down, None if delta is None else delta.detach(), want, half


def as_gates(activation: str, w_up: Optional[Matrices], gate_half: Optional[str]) -> Tuple[str, Optional[str]]:
    """Returns activation and gate_half. If gate and up projection share a tensor, gate_up is gate on all its rows."""
    if activation == "gate_up" and w_up is None and gate_half in HALVES[1:]:
        return "gate", None
    return activation, gate_half


def erc_loss(
    router: Tensor,
    w_gate: Optional[Matrices],
    *,
    w_up: Optional[Matrices] = None,
    w_down: Optional[Matrices] = None,
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
) -> Tensor:
    """Returns the expert-router coupling loss of one Mixture-of-Experts layer, times `weight`.

    Call it once per layer and optimizer step, in training only; routing keeps using the clean router.

        R~_i   = R_i * delta_i,   delta_i ~ U(1 - eps_i, 1 + eps_i)^d
        M[i,j] = |R~_i W_g^j|
        L      = 1/n^2 sum_{i, j != i} max(M[i,j] - alpha M[i,i], 0) + max(M[j,i] - alpha M[i,i], 0)

    Args:
        router: R [n, d], f32, bf16, f16 or f64. All but f64 are taken as f32.
        w_gate: the experts' gates, rows as Hugging Face stores them: [n, D, d], a list of n [D, d], or
            with `gate_half` a fused [n, 2D, d] (or a list of [2D, d]) that holds gate and up. Pass W.mT of gates that
            lie as [d, D], y = x W; where D = d the shape does not show this, and the loss is wrong without an error.
        w_up, w_down: [n, D, d] and [n, d, D] (or lists), for the activations that use them; refused for
            others. The other half of a fused w_gate is the up projection.
        down: W_l [l, d] of latent experts, which read W_l x: M[i,j] = |(W_l R~_i) W_g^j|. In w_gate, w_up and w_down
            d is then l. Noise and its bound are of R, and the gradient reaches router, down and experts.
        latent_norm, latent_eps: the weight g [l] of a norm on v = W_l x, and its eps: the experts read
            g v / sqrt(mean(v^2) + eps). A norm on the experts' output is none of M.
        proxy: "row": R~ is made of the rows R_i. "tokens" (docs/method.md 3.15): of P_i = mean + scale Q_i / |Q_i|, Q
            the rows less their mean. Noise and its bound are then of P. With Q_i = 0, P_i = mean, without a gradient.
        mean, scale: m [d] and sigma of the tokens that router and experts read, sigma^2 = mean of |x - m|^2. Both are
            constants for the gradient. scale is a number or a tensor [].
        alpha: >= 0; the paper's range is [0, 1]. Below 0.1 (the loss shrinks the router) and above 1 there is a warning.
        weight: the coefficient. With L layers and their mean as the loss: the coefficient / L.
        activation: the tensor whose norm is M: "gate" (the paper's), "up", "silu", "swiglu", "output", or "gate_up",
            the outputs of gate and up projection together.
        noise: "bounded" (the paper's), drawn from (seed, step, layer, draw) alone, with equal numbers on
            every device and rank; or "none".
        delta: [n, d] noise of your own; then no noise is drawn.
        seed, step, layer, draw: whole numbers; step below 2^40, layer and draw below 2^16.
        gate_half: "first", "second" or "interleaved" (gate at the even rows): w_gate is fused. None or "none": it
            is the gate alone. A shape does not show whether a tensor is fused: without `gate_half` the up projection's
            rows would count as the gate's.
        compute: dtype to which operands of products are rounded, "f32" or "bf16". Sums, norms, noise, hinges stay f32.
            Default: f32 on the CPU, the dtype of the matrices elsewhere.

    Returns:
        weight * L [], f32 (f64 where router or experts are). On the CPU its backward pass returns gradients that
        were computed with the loss, on an accelerator it makes the last product; tensors that need none get none.

    f32 and bf16 on the CPU are computed by the C library, where couplet_native is installed. Other dtypes on the CPU
    are computed in plain torch, some experts at a time. An accelerator uses few large products without synchronisation.

    Raises:
        ValueError, TypeError: an argument that is not acceptable. Numbers that are NaN or infinite in
        the weights are no error: the loss is NaN or infinite then.
    """
    check_noise(noise)
    warn_of_alpha(number(alpha, "alpha"))
    activation, gate_half = as_gates(activation, w_up, gate_half)
    return loss_and_matrix(
        _proxy.of(router, proxy, mean, scale),
        w_gate,
        w_up,
        w_down,
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
        _latent.latent_of(down, latent_norm, latent_eps),
    )[0]


def loss_and_matrix(
    router: Tensor,
    w_gate: Optional[Matrices],
    w_up: Optional[Matrices],
    w_down: Optional[Matrices],
    alpha: float,
    weight: float,
    activation: str,
    noise: str,
    delta: Optional[Tensor],
    seed: int,
    step: int,
    layer: int,
    draw: int,
    gate_half: Optional[str],
    compute: Any,
    latent: Optional[Latent] = None,
) -> Tuple[Tensor, Tensor]:
    """Returns weight * L [], and M [n, n] without a gradient. noise may also be "drawn": then `delta` is the result of
    _noise.of_layers."""
    router, *many, delta, want, half = arrange(
        router, w_gate, w_up, w_down, activation, delta, gate_half, latent=latent
    )
    alpha, weight = number(alpha, "alpha"), number(weight, "weight")
    compiling = torch.compiler.is_compiling()
    step_tensor = step if compiling and isinstance(step, Tensor) else None
    seed, step, layer, draw = (
        whole_number(value, name)
        for value, name in (
            (seed, "seed"),
            (step if step_tensor is None else 0, "step"),
            (layer, "layer"),
            (draw, "draw"),
        )
    )
    if latent is not None:
        at = (signed(seed), step if step_tensor is None else step_tensor, layer, draw)
        router = _latent.rows(router, latent, (many[0] or many[1])[0].dtype, noise, delta, *at)
        noise, delta, step_tensor = "none", None, None
    tensors = (router, *many, delta)
    rest = (activation, noise, signed(seed), step, layer, draw, compute_name(compute))
    if not compiling:
        return _operator.call(*tensors, want, half, float(alpha), float(weight), *rest)
    # A float argument of an operator is a constant of the graph. An alpha that follows a schedule is a tensor. A weight
    # that follows a schedule is kept out of the operator, where the gradient is scaled anyway.
    alpha_tensor = torch.ones((), dtype=widest(router.device), device=router.device) * alpha
    loss, M, *_ = _operator.erc(*tensors, alpha_tensor, step_tensor, want, half, 1.0, 1.0, *rest)
    return loss * weight, M


def signed(seed: int) -> int:
    """Returns 0 ... 2^64 - 1 as the int64 that operators take, with the same bits."""
    if not -(1 << 63) <= seed < 1 << 64:
        _refuse(f"seed is {seed}, must be below 2^64")
    return seed - (1 << 64) if seed >= 1 << 63 else seed
