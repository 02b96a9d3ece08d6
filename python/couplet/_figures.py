"""How well router and experts of a layer agree, under the names that `couplet train` logs
(docs/formats.md, metrics.jsonl). One product of R [n, d] by the gates; no gradient."""
from __future__ import annotations

from typing import Callable, Collection, Dict, Optional, Tuple

import torch
from torch import Tensor

from . import _noise
from ._door import Matrices
from ._job import part
from ._response import without_autocast

Gather = Callable[[Tensor], Tensor]
NUMBERS_AT_ONCE = 1 << 24

# The figures, in groups that are computed together.
HINGES = ("erc_clean", "active_rows", "active_columns", "alpha_min")
KAPPA = ("kappa_diagonal", "kappa_off_diagonal", "kappa_row_top1", "kappa_column_top1")
EPS = ("eps_mean", "eps_min", "eps_max")
PROXY_ROUTE = ("proxy_route_top1", "proxy_route_topk")
ROW_ROUTE = ("row_route_top1", "row_route_topk")

# The names before schema 2 (src/tensor/coupling_figures.def), given beside the new ones.
OLD_NAMES = {"proxy_route_top1": "home_top1", "proxy_route_topk": "home_topk",
             "row_route_top1": "home_clean_top1", "row_route_topk": "home_clean_topk",
             "kappa_row_top1": "kappa_rows_own", "kappa_column_top1": "kappa_columns_own"}
NEW_NAMES = {old: new for new, old in OLD_NAMES.items()}
NAMES = (*HINGES, *EPS, *KAPPA, *PROXY_ROUTE, *ROW_ROUTE)
NEED_GATES = {*HINGES, *KAPPA}


def with_old_names(figures: Dict[str, Tensor]) -> Dict[str, Tensor]:
    return {**figures, **{old: figures[new] for new, old in OLD_NAMES.items() if new in figures}}


def _own_is_largest(kappa: Tensor, dim: int) -> Tensor:
    """Share of rows (dim 1) or columns (dim 0) whose entry on the diagonal is the largest; a tie counts."""
    return (kappa.diagonal() >= kappa.amax(dim)).double().mean()


def _route(proxies: Tensor, router: Tensor, K: int) -> Dict[str, Tensor]:
    logits = proxies @ router.T
    own, lower = logits.diagonal()[:, None], torch.ones_like(logits).tril(-1) > 0
    above = ((logits > own) | ((logits == own) & lower)).sum(1)  # experts that come before the own one
    shares = {"top1": (above < 1).double().mean()}
    if K:
        shares["topk"] = (above < K).double().mean()
    return shares


def hinges(M: Tensor, alpha: float) -> Dict[str, Tensor]:
    n, own = len(M), M.diagonal()
    others = ~torch.eye(n, dtype=torch.bool, device=M.device)
    rows, columns = M - alpha * own[:, None], M - alpha * own
    pairs = max(n * (n - 1), 1)
    ratio = torch.maximum(M / own[:, None], M / own).nan_to_num(0, posinf=float("inf"))
    return {
        "erc_clean": ((rows.clamp(min=0) + columns.clamp(min=0)) * others).sum() / n**2,
        "active_rows": ((rows >= 0) & others).sum().double() / pairs,
        "active_columns": ((columns >= 0) & others).sum().double() / pairs,
        "alpha_min": torch.where(others, ratio, torch.zeros_like(ratio)).max(),
    }


def _kappa(M: Tensor, row_norms: Tensor, gate_norms: Tensor) -> Dict[str, Tensor]:
    n = len(M)
    scale = row_norms[:, None] * gate_norms
    kappa = torch.where(scale > 0, M / scale, torch.zeros_like(M))
    own = kappa.diagonal().sum()
    return {"kappa_diagonal": own / n, "kappa_off_diagonal": (kappa.sum() - own) / max(n * (n - 1), 1),
            "kappa_row_top1": _own_is_largest(kappa, 1), "kappa_column_top1": _own_is_largest(kappa, 0)}


def _of_router(R: Tensor, K: int, noise: Dict[str, int], wanted: Collection[str]) -> Dict[str, Tensor]:
    figures: Dict[str, Tensor] = {}
    if not set(EPS).isdisjoint(wanted):
        eps = _noise.nearest(R)
        figures.update(eps_mean=eps.mean(), eps_min=eps.min(), eps_max=eps.max())
    if not set(PROXY_ROUTE).isdisjoint(wanted):
        noisy = R * _noise.bounded(R, noise["seed"], noise["step"], noise["layer"], 0)
        figures.update({f"proxy_route_{k}": v for k, v in _route(noisy, R, K).items()})
    if not set(ROW_ROUTE).isdisjoint(wanted):
        figures.update({f"row_route_{k}": v for k, v in _route(R, R, K).items()})
    return figures


def _responses(R: Tensor, gates: Matrices, half: str) -> Tuple[Tensor, Tensor]:
    """M^T [c, n] and the norms of the gates [c] of c experts, f32 or wider; NUMBERS_AT_ONCE numbers at once."""
    n, d = R.shape
    many = gates if isinstance(gates, Tensor) else list(gates)
    size = max(1, NUMBERS_AT_ONCE // (many[0].shape[-2] * (n + d)))
    responses, norms = [], []
    for a in range(0, len(many), size):
        chunk = many[a:a + size] if isinstance(many, Tensor) else torch.stack(many[a:a + size])
        W = part(chunk, half, True).to(R.dtype)
        responses.append(torch.linalg.vector_norm(R @ W.mT, dim=-1))
        norms.append(torch.linalg.vector_norm(W, dim=(1, 2)))
    return torch.cat(responses), torch.cat(norms)


def _of_gates(R: Tensor, gates: Matrices, half: str, alpha: float, gather: Gather,
              wanted: Collection[str]) -> Dict[str, Tensor]:
    columns, norms = _responses(R, gates, half)
    M = gather(columns).mT.double()
    figures: Dict[str, Tensor] = {}
    if not set(HINGES).isdisjoint(wanted):
        figures.update(hinges(M, alpha))
    if not set(KAPPA).isdisjoint(wanted):
        figures.update(_kappa(M, torch.linalg.vector_norm(R, dim=1), gather(norms)))
    return figures


@torch.no_grad()
def of_layer(router: Tensor, gates: Callable[[], Matrices], gate_half: Optional[str], alpha: float, K: int,
             noise: Dict[str, int], wanted: Collection[str] = NAMES,
             gather: Gather = lambda here: here) -> Dict[str, Tensor]:
    """Name -> [], of the clean rows R; `proxy_route_top1` and `proxy_route_topk` of proxies with noise of this
    seed, step and layer. wanted: of NAMES. gates is called only if a figure needs them: those of all n experts,
    or of c of them, and gather makes [n, ...] of [c, ...]."""
    with without_autocast(router.device):
        R = router.to(torch.promote_types(router.dtype, torch.float32))
        figures: Dict[str, Tensor] = {}
        if not NEED_GATES.isdisjoint(wanted):
            figures = _of_gates(R, gates(), gate_half or "", alpha, gather, wanted)
        figures.update(_of_router(R, K, noise, wanted))
        return with_old_names({name: figures[name] for name in NAMES if name in figures})
