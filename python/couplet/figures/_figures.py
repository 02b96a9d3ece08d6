"""Figures of the agreement of a layer's router and experts, under the names that `couplet train` logs
(docs/formats.md, metrics.jsonl; src/tensor/figures.h defines each). They need one product of R [n, d] by the gates, and
no gradient."""

from __future__ import annotations

from typing import Callable, Collection, Dict, NamedTuple, Optional

import torch
from torch import Tensor

from ..ops import _noise
from ..ops._functional import Matrices
from ..ops._job import part
from ..ops._latent import Latent
from ..ops._response import without_autocast
from . import _spectrum

Gather = Callable[[Tensor], Tensor]
NUMBERS_AT_ONCE = 1 << 24

# The figures, in groups that are computed together.
HINGES = ("erc_clean", "active_rows", "active_columns", "alpha_min")
KAPPA = ("kappa_diagonal", "kappa_off_diagonal", "kappa_row_top1", "kappa_column_top1")
EPS = ("eps_mean", "eps_min", "eps_max", "eps_above_1")
PROXY_ROUTE = ("proxy_route_top1", "proxy_route_topk")
ROW_ROUTE = ("row_route_top1", "row_route_topk")
ENTRIES = ("m_diagonal", "m_off_diagonal")
NORMS = ("router_norm_mean", "router_norm_std", "zero_rows")
GATE_NORMS = ("gate_norm_mean", "gate_norm_std")
SPECTRUM = ("router_condition", "router_effective_rank")
LAMBDA = ("router_lambda", "router_lambda_random")

# Figures that are also computed for the centred rows R_i - mean R (docs/method.md 3.13): name -> name for centred rows.
CENTRED = {
    "erc_clean": "erc_centred",
    **{
        name: f"centred_{name}"
        for name in (
            *ENTRIES,
            "alpha_min",
            "eps_mean",
            "eps_min",
            "eps_max",
            "router_norm_mean",
            "router_norm_std",
            "router_cos",
            *KAPPA,
            "router_effective_rank",
            "router_lambda",
        )
    },
}

EXPENSIVE = (*LAMBDA, CENTRED["router_lambda"])  # computed only if asked for by name
NAMES = (
    *HINGES,
    *EPS,
    *KAPPA,
    *PROXY_ROUTE,
    *ROW_ROUTE,
    *ENTRIES,
    *NORMS,
    *GATE_NORMS,
    "router_cos",
    *SPECTRUM,
    "noise_bound_share",
    *(theirs for theirs in CENTRED.values() if theirs not in EXPENSIVE),
)
ALL_NAMES = (*NAMES, *EXPENSIVE)
_OF_GATES = {*HINGES, *KAPPA, *ENTRIES, *GATE_NORMS, *LAMBDA}
NEED_GATES = {*_OF_GATES, *(CENTRED[name] for name in _OF_GATES if name in CENTRED)}
# Singular values are computed on the host: `of_layer` returns products of rows under these names, and `read` computes
# the figures.
GRAMS = {"gram": ("router_condition", "router_effective_rank"), "centred_gram": ("", "centred_router_effective_rank")}


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths


def _mean_and_std(norms: Tensor, name: str) -> Dict[str, Tensor]:
    norms = norms.double()
    return {f"{name}_mean": norms.mean(), f"{name}_std": norms.std(correction=0)}


# ---- figures of the rows alone ----


def _route(proxies: Tensor, router: Tensor, K: int) -> Dict[str, Tensor]:
    logits = proxies @ router.T
    own, lower = logits.diagonal()[:, None], torch.ones_like(logits).tril(-1) > 0
    above = ((logits > own) | ((logits == own) & lower)).sum(1)  # experts that precede the own expert
    shares = {"top1": (above < 1).double().mean()}
    if K:
        shares["topk"] = (above < K).double().mean()
    return shares


def _cosines(R: Tensor) -> Tensor:
    """Returns the mean |cos| [] of two different rows of R [n, d]; 0 where a row is zero, and for n = 1."""
    n, norm = len(R), _lengths(R)
    scale = norm[:, None] * norm
    cosines = torch.where(scale > 0, (R @ R.T).abs() / scale, 0.0)
    return cosines.tril(-1).sum() / max(n * (n - 1) / 2, 1)


def _bound_share(R: Tensor, eps: Tensor) -> Tensor:
    """Returns the mean [] over the rows of R [n, d] of eps_i [n] over the largest right bound of the noise
    (docs/method.md 5.1); NaN where no row has such a bound."""
    n, bounds = len(R), []
    here, size = torch.arange(n, dtype=torch.int64, device=R.device), max(1, NUMBERS_AT_ONCE // R.numel())
    for a in range(0, n, size):
        own = R[a : a + size, None]
        by = R - own
        squares, moved = (by * by).sum(-1), by.abs_().mul_(own.abs()).sum(-1)
        bound = torch.where(squares > 0, squares / (2 * moved), 0.0)
        bounds.append(bound.masked_fill(here[a : a + size, None] == here, float("inf")).amin(1))
    bound = torch.cat(bounds)
    return torch.where((bound > 0) & bound.isfinite(), eps / bound, float("nan")).nanmean()


def _of_rows(R: Tensor, wanted: Collection[str]) -> Dict[str, Tensor]:
    """Returns figures of rows R [n, d], clean or centred, in f32 or wider."""
    figures: Dict[str, Tensor] = {}
    wide = R.double()
    if not {*EPS, "noise_bound_share"}.isdisjoint(wanted):
        eps = _noise.nearest(R)
        figures.update(eps_mean=eps.mean(), eps_min=eps.min(), eps_max=eps.max(), eps_above_1=(eps > 1).sum())
        if "noise_bound_share" in wanted:
            figures["noise_bound_share"] = _bound_share(wide, eps.double())
    if not set(NORMS).isdisjoint(wanted):
        norms = _lengths(wide)
        figures.update(_mean_and_std(norms, "router_norm"), zero_rows=(~(norms > 0)).sum())
    if "router_cos" in wanted:
        figures["router_cos"] = _cosines(wide)
    if not set(SPECTRUM).isdisjoint(wanted):
        figures["gram"] = wide @ wide.T if len(R) <= R.shape[1] else wide.T @ wide
    return figures


def _of_routing(R: Tensor, K: int, noise: Dict[str, int], wanted: Collection[str]) -> Dict[str, Tensor]:
    figures: Dict[str, Tensor] = {}
    if not set(PROXY_ROUTE).isdisjoint(wanted):
        noisy = R * _noise.bounded(R, noise["seed"], noise["step"], noise["layer"], 0)
        figures.update({f"proxy_route_{k}": v for k, v in _route(noisy, R, K).items()})
    if not set(ROW_ROUTE).isdisjoint(wanted):
        figures.update({f"row_route_{k}": v for k, v in _route(R, R, K).items()})
    return figures


# ---- figures of rows and gates ----


class Responses(NamedTuple):
    """Responses of the gates of c experts, f32 or wider."""

    columns: Tensor  # [c, n]: |R_i W^j|, M^T
    centred: Optional[Tensor]  # [c, n]: |(R_i - mean R) W^j|; None: not wanted
    norms: Tensor  # [c]: |W^j|_F
    spectral: Optional[Tensor]  # [c]: |W^j|_2; None: not wanted


def responses(R: Tensor, gates: Matrices, half: str, centred: bool = False, spectral: bool = False) -> Responses:
    """Returns the responses to rows R [n, d] of the gates [D, d] of c experts, computed NUMBERS_AT_ONCE numbers at
    once. Centred rows need no product of their own: it is the product of the rows less its mean over the rows."""
    n, d = R.shape
    many = gates if isinstance(gates, Tensor) else list(gates)
    size = max(1, NUMBERS_AT_ONCE // (many[0].shape[-2] * (n + d)))
    each = []
    for a in range(0, len(many), size):
        chunk = many[a : a + size] if isinstance(many, Tensor) else torch.stack(many[a : a + size])
        W = part(chunk, half, True).to(R.dtype)
        product = R @ W.mT
        found = [torch.linalg.vector_norm(product, dim=-1), torch.linalg.vector_norm(W, dim=(1, 2))]
        if centred:
            found.append(torch.linalg.vector_norm(product.sub_(product.mean(1, keepdim=True)), dim=-1))
        if spectral:
            found.append(_spectrum.norms(W))
        each.append(found)
    columns, norms, *more = (torch.cat(parts) for parts in zip(*each))
    return Responses(columns, more[0] if centred else None, norms, more[-1] if spectral else None)


def _own_is_largest(kappa: Tensor, dim: int) -> Tensor:
    """Returns the share of rows (dim 1) or columns (dim 0) whose diagonal entry is the largest; a tie counts."""
    return (kappa.diagonal() >= kappa.amax(dim)).double().mean()


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
    return {
        "kappa_diagonal": own / n,
        "kappa_off_diagonal": (kappa.sum() - own) / max(n * (n - 1), 1),
        "kappa_row_top1": _own_is_largest(kappa, 1),
        "kappa_column_top1": _own_is_largest(kappa, 0),
    }


def _entries(M: Tensor) -> Dict[str, Tensor]:
    n, own = len(M), M.diagonal()
    others = ~torch.eye(n, dtype=torch.bool, device=M.device)
    return {"m_diagonal": own.mean(), "m_off_diagonal": (M * others).sum() / max(n * (n - 1), 1)}


def _share(here: Tensor, of: Tensor) -> Tensor:
    """Returns the mean [] of here / of [n], 0 where `of` is 0."""
    return torch.where(of == 0, 0.0, here / of).mean()


def _of_matrix(
    M: Tensor, row_norms: Tensor, gate_norms: Tensor, spectral: Optional[Tensor], alpha: float, wanted: Collection[str]
) -> Dict[str, Tensor]:
    """Returns figures of the matrix M [n, n] of clean or centred rows."""
    figures: Dict[str, Tensor] = {}
    if not set(HINGES).isdisjoint(wanted):
        figures.update(hinges(M, alpha))
    if not set(KAPPA).isdisjoint(wanted):
        figures.update(_kappa(M, row_norms, gate_norms))
    if not set(ENTRIES).isdisjoint(wanted):
        figures.update(_entries(M))
    if "router_lambda" in wanted and spectral is not None:
        figures["router_lambda"] = _share(M.diagonal(), row_norms * spectral)
    return figures


def _of_gates(
    R: Tensor,
    centred_R: Tensor,
    gates: Matrices,
    half: str,
    alpha: float,
    gather: Gather,
    wanted: Collection[str],
    of_centred: Collection[str],
    latent: Optional[Latent],
) -> Dict[str, Tensor]:
    """Returns figures that need the gates. wanted: figures of R; of_centred: figures of the centred rows, which have
    the names of CENTRED here. Latent experts read projected rows."""
    n, need_centred = len(R), not _OF_GATES.isdisjoint(of_centred)
    has_norm = latent is not None and latent.norm is not None  # centred rows then need a product of their own
    if latent is not None:
        R, centred_R = latent.read(R), latent.read(centred_R)
    found = responses(
        torch.cat((R, centred_R)) if has_norm else R,
        gates,
        half,
        need_centred and not has_norm,
        not set(LAMBDA).isdisjoint({*wanted, *of_centred}),
    )
    columns, centred = (found.columns[:, :n], found.columns[:, n:]) if has_norm else (found.columns, found.centred)
    norms = gather(found.norms)
    spectral = None if found.spectral is None else gather(found.spectral)
    figures: Dict[str, Tensor] = {}
    if not set(GATE_NORMS).isdisjoint(wanted):
        figures.update(_mean_and_std(norms, "gate_norm"))
    if "router_lambda_random" in wanted and spectral is not None:
        figures["router_lambda_random"] = _share(norms, spectral) / R.shape[1] ** 0.5
    figures.update(_of_matrix(gather(columns).mT.double(), _lengths(R), norms, spectral, alpha, wanted))
    if need_centred and centred is not None:
        M = gather(centred).mT.double()
        figures.update(_renamed(_of_matrix(M, _lengths(centred_R), norms, spectral, alpha, of_centred)))
    return figures


# ---- a layer ----


def _renamed(figures: Dict[str, Tensor]) -> Dict[str, Tensor]:
    return {CENTRED[name]: value for name, value in figures.items() if name in CENTRED}


@torch.no_grad()
def of_layer(
    router: Tensor,
    gates: Callable[[], Matrices],
    gate_half: Optional[str],
    alpha: float,
    K: int,
    noise: Dict[str, int],
    wanted: Collection[str] = NAMES,
    gather: Gather = lambda here: here,
    latent: Optional[Latent] = None,
) -> Dict[str, Tensor]:
    """Returns the input of `read`, on the device: name -> [], and for names of GRAMS [m, m], m the smaller of n and d.
    The figures describe clean rows R, and R less the mean row (`erc_centred`, `centred_...`); `proxy_route_top1` and
    `proxy_route_topk` of proxies with noise of this seed, step and layer.

    wanted: names of ALL_NAMES. gates is called only if a figure needs it. It returns all n experts' gates, or c, and
    gather makes [n, ...] of [c, ...]. Nothing is read from the device."""
    with without_autocast(router.device):
        R = router.to(torch.promote_types(router.dtype, torch.float32))
        of_centred = {name for name, theirs in CENTRED.items() if theirs in wanted}
        P = R
        if of_centred:
            wide = R.double()
            P = (wide - wide.mean(0)).to(R.dtype)
        figures: Dict[str, Tensor] = {}
        if not NEED_GATES.isdisjoint(wanted):
            figures = _of_gates(R, P, gates(), gate_half or "", alpha, gather, wanted, of_centred, latent)
        figures.update(_of_rows(R, wanted))
        figures.update(_of_routing(R, K, noise, wanted))
        if of_centred:
            rows = _of_rows(P, of_centred)
            figures.update(_renamed(rows))
            if "gram" in rows:
                figures["centred_gram"] = rows["gram"]
        return {name: value for name, value in figures.items() if name in wanted or name in GRAMS}


def read(found: Dict[str, Tensor], wanted: Collection[str] = NAMES) -> Dict[str, float]:
    """Returns name -> number, including old names, from the result of `of_layer`, with one synchronisation."""
    if not found:
        return {}
    numbers = torch.cat([value.to(torch.float64).flatten() for value in found.values()]).cpu()
    figures: Dict[str, float] = {}
    for name, value in found.items():
        here, numbers = numbers[: value.numel()], numbers[value.numel() :]
        if name in GRAMS:
            figures.update(zip(GRAMS[name], _spectrum.condition_and_rank(here.view(value.shape))))
        else:
            figures[name] = here.item()
    return {name: figures[name] for name in ALL_NAMES if name in figures and name in wanted}
