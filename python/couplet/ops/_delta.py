"""couplet.noise: the noise that erc_loss draws, to compare other implementations with."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _noise
from ._checks import check_counters, described
from ._functional import refuse_sharded, signed, whole_number
from ._response import without_autocast


@torch.no_grad()
def noise(router: Tensor, *, seed: int = 0, step: int = 0, layer: int = 0, draw: int = 0) -> Tensor:
    """Returns the delta [n, d] by which `erc_loss(router, ..., noise="bounded", seed=, step=, layer=, draw=)` scales
    the router [n, d]: delta_ik ~ U(1 - eps_i, 1 + eps_i), eps_i = min over j != i of |R_i - R_j| / (2 |R_i|).

    The numbers are equal on every device. They are f32, or f64 for a router in f64. (With gates in f64 and a router in
    f32 erc_loss draws for router.double().)"""
    refuse_sharded([router], "router")
    if not isinstance(router, Tensor) or router.dim() != 2 or not router.is_floating_point():
        there = f"{router.dtype} {list(router.shape)}" if isinstance(router, Tensor) else described(router)
        raise TypeError(f"couplet: router is {there}, must be a tensor [n, d] of floating-point numbers")
    seed, step, layer, draw = (
        whole_number(value, name) for value, name in ((seed, "seed"), (step, "step"), (layer, "layer"), (draw, "draw"))
    )
    check_counters(step, layer, draw)
    wide = router if router.dtype == torch.float64 else router.float()
    with without_autocast(router.device):
        return _noise.bounded(wide, signed(seed), step, layer, draw)
