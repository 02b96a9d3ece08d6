"""How well router and experts of a layer agree, under the names that `couplet train` logs
(docs/formats.md, metrics.jsonl). One product of R [n, d] by the gates; no gradient."""
from __future__ import annotations

from typing import Dict, Optional

import torch
from torch import Tensor

from . import _noise, _operator, _plain
from ._door import Matrices, arrange
from ._job import Job


# The names before schema 2 (src/tensor/coupling_figures.def), given beside the new ones.
OLD_NAMES = {"proxy_route_top1": "home_top1", "proxy_route_topk": "home_topk", "row_route_top1": "home_clean_top1",
             "row_route_topk": "home_clean_topk", "kappa_row_top1": "kappa_rows_own",
             "kappa_column_top1": "kappa_columns_own"}


def with_old_names(figures: Dict[str, float]) -> Dict[str, float]:
    return {**figures, **{old: figures[new] for new, old in OLD_NAMES.items() if new in figures}}


def _gate_norms(job: Job, w: "_plain.Work") -> Tensor:
    """|W_g^j|_F, [n]."""
    return torch.cat([torch.linalg.vector_norm(w.take(job.gate, at).view(-1, job.D * job.d), dim=1)
                      for at in w.chunks()])


def _own_is_largest(kappa: Tensor, dim: int) -> float:
    """Share of rows (dim 1) or columns (dim 0) whose largest entry is the own one; shared counts."""
    return (kappa.diagonal() >= kappa.amax(dim)).double().mean().item()


def _route(proxies: Tensor, router: Tensor, K: int) -> Dict[str, float]:
    logits = proxies @ router.T
    own, lower = logits.diagonal()[:, None], torch.ones_like(logits).tril(-1) > 0
    above = ((logits > own) | ((logits == own) & lower)).sum(1)  # experts that come before the own one
    shares = {"top1": (above < 1).double().mean().item()}
    if K:
        shares["topk"] = (above < K).double().mean().item()
    return shares


def _hinges(M: Tensor, alpha: float) -> Dict[str, float]:
    n, own = len(M), M.diagonal()
    others = ~torch.eye(n, dtype=torch.bool, device=M.device)
    rows, columns = M - alpha * own[:, None], M - alpha * own
    pairs = max(n * (n - 1), 1)
    ratio = torch.maximum(M / own[:, None], M / own)[others]
    return {
        "erc_clean": ((rows.clamp(min=0) + columns.clamp(min=0)) * others).sum().item() / n**2,
        "active_rows": ((rows >= 0) & others).sum().item() / pairs,
        "active_columns": ((columns >= 0) & others).sum().item() / pairs,
        "alpha_min": ratio.nan_to_num(0, posinf=float("inf")).max().item() if n > 1 else 0.0,
    }


@torch.no_grad()
def of_layer(router: Tensor, w_gate: Matrices, gate_half: Optional[str], alpha: float, K: int,
             seed: int, step: int, layer: int) -> Dict[str, float]:
    """Of the clean rows R; `proxy_route_top1` and `proxy_route_topk` of proxies with the noise of `step`."""
    with _plain.without_autocast(router.device):
        return _of_layer(router, w_gate, gate_half, alpha, K, seed, step, layer)


def _of_layer(router: Tensor, w_gate: Matrices, gate_half: Optional[str], alpha: float, K: int,
              seed: int, step: int, layer: int) -> Dict[str, float]:
    router, gate, *_, half = arrange(router, w_gate, None, None, "gate", "none", None, gate_half)
    job = _operator.make_job(router, gate, [], [], None, half, alpha, 1.0, "gate", "none", seed, step,
                             layer, 0, "f32")
    w = _plain.Work(job)
    R = w.proxy
    M = _plain.coupling_matrix(job).double()
    scale = torch.linalg.vector_norm(R, dim=1)[:, None] * _gate_norms(job, w)
    kappa = torch.where(scale > 0, M / scale, torch.zeros_like(M))
    eps = _noise.nearest(R)
    n, own = job.n, kappa.diagonal().sum().item()
    noisy = R * _noise.bounded(R, seed, step, layer, 0)
    return with_old_names({
        **_hinges(M, alpha),
        "eps_mean": eps.mean().item(), "eps_min": eps.min().item(), "eps_max": eps.max().item(),
        "kappa_diagonal": own / n,
        "kappa_off_diagonal": (kappa.sum().item() - own) / max(n * (n - 1), 1),
        "kappa_row_top1": _own_is_largest(kappa, 1),
        "kappa_column_top1": _own_is_largest(kappa, 0),
        **{f"proxy_route_{k}": v for k, v in _route(noisy, R, K).items()},
        **{f"row_route_{k}": v for k, v in _route(R, R, K).items()},
    })
