"""Router rows by Manifold Power Iteration (docs/method.md 2.6): R'_i = C G_i / |G_i| with G_i = R_i W_g^i (W_g^i)^T."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import described, refuse
from ._functional import Matrices, _as_list, _check_shapes, _check_tensors
from ._response import without_autocast


def mpi_rows(router: Tensor, w_gate: Matrices, scale: float = 1.0) -> Tensor:
    """Returns the rows R' [n, d] that score tokens in a router by Manifold Power Iteration (Wu, Lv, Xie, Lin, arXiv
    2606.12397, equations 4 and 5): logits = x @ R'.mT. f32 or wider, with gradients to `router` and `w_gate`. Nothing is
    detached.

    router  [n, d]: the trained rows R
    w_gate  [n, D, d], or n matrices [D, d]: the experts' gates as torch.nn.Linear has them
    scale   the paper's C' > 0: |R'_i| = scale / sqrt(n). R'_i is 0, without a gradient, where G_i is 0

    Raises TypeError or ValueError for arguments that do not fit. R' depends on weights alone: compute it once per
    forward pass, or once per optimizer step. It is the router of `couplet.erc_loss` for such a model."""
    if not isinstance(router, Tensor) or router.dim() != 2 or w_gate is None:
        given = f"router is {described(router)} and w_gate is {described(w_gate)}"
        raise TypeError(f"couplet: {given}; they must be tensors [n, d] and [n, D, d]")
    gates = _as_list(w_gate, "w_gate")
    _check_tensors(router, (("router", [router]), ("w_gate", gates)))
    _check_shapes(router, gates, [], [], "", None, None)
    if not 0 < scale < math.inf:
        refuse(f"scale is {scale}, must be a number > 0")
    dtype = torch.promote_types(torch.promote_types(router.dtype, gates[0].dtype), torch.float32)
    W = (gates[0] if gates[0].dim() == 3 else torch.stack(gates)).to(dtype)
    with without_autocast(router.device):
        G = (router.to(dtype).unsqueeze(1) @ W.mT @ W).squeeze(1)
    length = torch.linalg.vector_norm(G, dim=1, keepdim=True)
    is_zero = length == 0
    return torch.where(is_zero, 0.0, scale / math.sqrt(len(G)) / torch.where(is_zero, 1.0, length)) * G
