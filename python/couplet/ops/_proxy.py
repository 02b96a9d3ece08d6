"""Proxies on the side of the tokens (docs/method.md 3.15): P_i = m + sigma q_i, with q_i = Q_i / |Q_i| and Q the router's
rows less their mean. m and sigma are constants of the loss, |Q_i| is not. The loss is the loss of the rows P."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ._checks import described, refuse
from ._response import widest

Arguments = Tuple[str, Optional[Tensor], Any]  # proxy, mean, scale of a caller
ROWS: Arguments = ("row", None, None)


def _check_constants(router: Tensor, mean: Any, scale: Any) -> None:
    if not isinstance(mean, Tensor) or not mean.is_floating_point():
        found = mean.dtype if isinstance(mean, Tensor) else described(mean)
        raise TypeError(f"couplet: mean is {found}, must be a tensor [d] of floating-point numbers")
    for name, value in (("mean", mean), ("scale", scale)):
        if isinstance(value, Tensor) and value.requires_grad:
            raise TypeError(f"couplet: {name} needs a gradient, which it would not get; give {name}.detach()")
    if mean.shape != router.shape[1:] or mean.device != router.device:
        refuse(f"mean is {list(mean.shape)} on {mean.device}, must be {list(router.shape[1:])} on {router.device}")
    if isinstance(scale, Tensor) and (torch.compiler.is_compiling() or scale.device.type != "cpu"):
        if scale.numel() != 1:  # its number is not read, which would synchronise a GPU
            refuse(f"scale is a tensor {list(scale.shape)}, must be a number or a tensor []")
        return
    try:
        is_right = 0 <= scale < math.inf
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"couplet: scale is {described(scale)}, must be a number or a tensor []") from None
    if not is_right:
        refuse(f"scale is {float(scale)}, must be a number >= 0")


def check(router: Any, proxy: Any, mean: Any, scale: Any) -> None:
    """Raises ValueError or TypeError for arguments of which no proxies can be made. `arrange` checks the router."""
    if proxy not in ("row", "tokens"):
        refuse(f"proxy is {proxy!r}, must be row or tokens")
    for name, value in (("mean", mean), ("scale", scale)):
        if proxy == "row" and value is not None:
            refuse(f'{name} is given, which proxy="tokens" alone uses; give proxy="tokens", or leave {name} out')
        if proxy == "tokens" and value is None:
            refuse(f'{name} is None, which proxy="tokens" needs: the tokens\' mean [d], and their distance from it')
    if proxy == "tokens" and isinstance(router, Tensor) and router.dim() == 2:
        _check_constants(router, mean, scale)


def rows(router: Tensor, mean: Tensor, scale: Any) -> Tensor:
    """Returns P [n, d], f32 or wider, with a graph to the router [n, d]. A row Q_i = 0 has P_i = m and no gradient.
    Sums are f64, so that the mean of equal rows is exact."""
    R = router.to(widest(router.device))
    Q = R - R.mean(0)
    length = torch.linalg.vector_norm(Q, dim=1, keepdim=True)
    is_zero = length == 0
    by = torch.where(is_zero, 0.0, scale / torch.where(is_zero, 1.0, length))
    return (mean.to(R.dtype) + by * Q).to(torch.promote_types(router.dtype, torch.float32))


def of(router: Tensor, proxy: str, mean: Any, scale: Any) -> Tensor:
    """Returns the proxies before the noise, from arguments that `check` accepts."""
    check(router, proxy, mean, scale)
    is_router = isinstance(router, Tensor) and router.dim() == 2 and router.is_floating_point()
    return rows(router, mean, scale) if proxy == "tokens" and is_router else router
