"""Agreement of router scores and expert responses without the experts' main effects and without the tokens' mean, under
the names of `mean_token` of `couplet inspect --text` (src/model/tokens/mean_token.h, docs/method.md 5.3).

Names: T tokens x_t, n experts, K of them a token; score s_ti = x_t . R_i, response a_ti = |x_t W_i|, mu the mean of the
x_t. The figures are computed on the CPU, in f64."""

from __future__ import annotations

import functools
import math
from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor

from ..ops import _noise
from ..ops._functional import Matrices, whole_number
from ..ops._job import part
from ..ops._latent import Latent
from . import _figures

FEW = 8  # tokens that an expert needs for a row in M_tok (CPL_TOKENS_FEW)
DRAWS, STREAM = 1000, 17  # permutations of the experts, and their stream of numbers (CPL_STREAM_LABELS)


class MeanToken(NamedTuple):
    """Holds the scores and responses of a layer for its tokens less their mean, and numbers of the mean."""

    scores: Tensor  # [T, n], (x_t - mu) . R_i
    responses: Tensor  # [T, n], |(x_t - mu) W_i|
    of_mu: Tensor  # [n], R_i . mu
    cosines: Tensor  # [n], of R_i - mean R and W_i^T W_i mu; NaN where one has no length


def less_mean(x: Tensor, dim: int = 0) -> Tensor:
    """Returns x less its mean over a dimension. Equal numbers become exactly 0."""
    moved = x - x.narrow(dim, 0, 1)
    return moved - moved.mean(dim, keepdim=True)


def mean_token(x: Tensor, R: Tensor, gates: Matrices, half: str, latent: Optional[Latent] = None) -> MeanToken:
    """Returns the numbers of tokens x [T, d] in R's dtype. gates, half: as in `_figures.responses`."""
    off, mu, rows = less_mean(x), x[0] + (x - x[0]).mean(0), less_mean(R)
    read_off, read_mu = (off, mu) if latent is None else (latent.read(off), latent.read(mu[None])[0])
    back = torch.stack([W.mT @ (W @ read_mu) for W in (part(g[None], half, True)[0].to(R.dtype) for g in gates)])
    if latent is not None:  # a norm on W_l x is no product, so that W_i^T W_i mu does not exist
        back = back @ latent.down.to(R.dtype) if latent.norm is None else torch.full_like(R, math.nan)
    lengths = torch.linalg.vector_norm(rows, dim=1) * torch.linalg.vector_norm(back, dim=1)
    return MeanToken(
        off @ R.T, _figures.responses(read_off, gates, half).columns.mT, R @ mu, (rows * back).sum(1) / lengths
    )


# ---- permuted experts ----


@functools.lru_cache(maxsize=64)
def _labels(n: int, seed: int, layer: int, draws: int) -> Tensor:
    """Returns int64 [1 + draws, n]: the experts as they are, then permutations (cpl_rng_shuffle of the key of each
    draw)."""
    blocks = torch.arange(-(-n // 4), dtype=torch.int64, device="cpu")
    found = [list(range(n))]
    for step in range(draws):
        words, order = _noise.philox(blocks, seed, step, layer, STREAM).flatten().tolist(), list(range(n))
        for i in range(n - 1, 0, -1):
            j = words[i] * (i + 1) >> 32
            order[i], order[j] = order[j], order[i]
        found.append(order)
    return torch.tensor(found, dtype=torch.int64, device="cpu").reshape(1 + draws, n)


def _permuted(Z: Tensor, labels: Tensor) -> Tensor:
    """Returns the entries Z[i, p(i)] of each permutation p: [draws, n]."""
    return Z[torch.arange(len(Z), device="cpu"), labels]


def _null(drawn: Tensor) -> Dict[str, float]:
    """Returns mean, standard deviation and p of the permutations, of which drawn[0] is none."""
    own, others = drawn[0], drawn[1:][drawn[1:].isfinite()]
    far = (others - others.mean()).abs() >= (own - others.mean()).abs() - 1e-12
    p = (1 + far.sum().item()) / (1 + len(others))
    return {"mean": others.mean().item(), "std": others.std(correction=0).item(), "p": p}


# ---- the figures ----


def _standard_ranks(x: Tensor) -> Tensor:
    """Returns the ranks of the entries of each list x [r, l], less their mean and over the root of their sum of
    squares: 0 / 0 for a list that does not vary. Equal entries have the mean of their ranks."""
    ordered = x.sort(-1).values.contiguous()
    x = x.contiguous()
    ranks = (torch.searchsorted(ordered, x) + torch.searchsorted(ordered, x, right=True)).double() - x.shape[-1]
    found: Tensor = ranks / torch.linalg.vector_norm(ranks, dim=-1, keepdim=True)
    return found


def _agreement(x: Tensor, y: Tensor) -> Tensor:
    """Returns Z [n, n], whose trace is the mean rank correlation of the lists x and y [T, n]."""
    u, v = _standard_ranks(x), _standard_ranks(y)
    varies = ~(u.isnan() | v.isnan()).any(1)
    return u[varies].T @ v[varies] / varies.sum()


def _pearson(s: Tensor, a: Tensor) -> Tensor:
    s, a = less_mean(less_mean(s), 1), less_mean(less_mean(a), 1)
    return s.T @ a / (s.square().sum() * a.square().sum()).sqrt()


def _chosen(s: Tensor, a: Tensor, chosen: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean rank correlation over the experts of each token, chosen [T, K], of each permutation."""
    u = _standard_ranks(s.gather(1, chosen))
    each = [(u * _standard_ranks(a.gather(1, p[chosen]))).sum(1) for p in labels]
    return torch.stack([rho.nanmean() for rho in each])


def _dz(a: Tensor, chosen: Tensor, seed: int, layer: int, draws: int) -> Tensor:
    sent = torch.zeros_like(a).scatter_(1, chosen, 1.0)
    kept = sent.sum(0) >= FEW
    m = int(kept.sum())
    if m < 3:
        return a.new_full((1,), math.nan)
    rest = less_mean(less_mean((sent.T @ a / sent.sum(0)[:, None])[kept][:, kept], 1))
    own, off = _permuted(rest, _labels(m, seed, layer, draws)), m * (m - 1)
    variance = (rest.square().sum() - own.square().sum(1)) / off - (own.sum(1) / off).square()
    return own.mean(1) / variance.sqrt()


def of_layer(
    scores: Tensor, responses: Tensor, found: MeanToken, K: Optional[int], nulls: bool, seed: int, layer: int
) -> Dict[str, float]:
    """Returns the figures of a layer, and with nulls `null.NAME.mean`, `.std` and `.p`. A figure that does not exist is
    NaN, as is every figure if a number is not finite. K None: the figures of chosen experts are left out."""
    s, a = scores.cpu().double(), responses.cpu().double()
    off, off_a, of_mu, cosines = (x.cpu().double() for x in found)
    draws = DRAWS if nulls else 0
    labels = _labels(s.shape[1], seed, layer, draws)
    each = {
        "agreement": _permuted(_agreement(s, a), labels).sum(1),
        "agreement_centred": _permuted(_agreement(less_mean(s), less_mean(a)), labels).sum(1),
        "agreement_mu_off": _permuted(_agreement(off, off_a), labels).sum(1),
        "pearson_centred": _permuted(_pearson(s, a), labels).sum(1),
    }
    if K is not None:
        chosen = s.argsort(dim=1, descending=True, stable=True)[:, :K]
        each.update(agreement_chosen=_chosen(s, a, chosen, labels), dz=_dz(a, chosen, seed, layer, draws))
    means = a[0] + (a - a[0]).mean(0)
    between, within = (x.square().sum() for x in (less_mean(means), less_mean(a) / len(a) ** 0.5))
    figures = {
        **{name: drawn[0].item() for name, drawn in each.items()},
        "main_effect": (between / (between + within)).item(),
        "router_mu_negative": (of_mu < 0).double().mean().item(),
        "router_mu_cos": cosines.nanmean().item(),
    }
    for name, drawn in each.items() if nulls else ():
        null = _null(drawn) if drawn[0].isfinite() else dict.fromkeys(("mean", "std", "p"), math.nan)
        figures.update({f"null.{name}.{key}": value for key, value in null.items()})
    if not all(x.isfinite().all() for x in (s, a, off, off_a, of_mu)):
        return dict.fromkeys(figures, math.nan)
    return {name: value if math.isfinite(value) else math.nan for name, value in figures.items()}


@torch.no_grad()
def mean_token_figures(
    tokens: Tensor,
    router: Tensor,
    w_gate: Tensor,
    K: Optional[int] = None,
    nulls: bool = False,
    seed: int = 0,
    layer: int = 0,
) -> Dict[str, float]:
    """Returns figures of the agreement of a router's scores x . R_i and the experts' responses |x W_i| without the
    experts' main effects and without the mean mu of the tokens, with the definitions and names of `mean_token` of
    `couplet inspect --text --json` (docs/method.md 5.3). |x W| is even in x and a score is odd, so that an agreement
    may be an effect of mu alone.

    agreement: mean over tokens of the rank correlation of a token's n scores and n responses, main effects included.
    agreement_centred: the same after the mean over the tokens was subtracted from the scores and responses of each
        expert. pearson_centred: Pearson's correlation over all tokens and experts, less both means.
    agreement_mu_off: as agreement, for x - mu in place of x.
    agreement_chosen: as agreement, over the K experts with the largest scores. dz: the excess of the diagonal of the
        mean responses to each expert's tokens over row and column means, in standard deviations of the other entries.
    main_effect: share of the experts' means in the variance of the responses.
    router_mu_negative: share of the R_i . mu below 0. router_mu_cos: mean cosine of R_i - mean R and W_i^T W_i mu.

    A figure that does not exist is NaN, as is every figure if a number is not finite.

    Args:
        tokens: [T, d], what the router and the experts read, T at least 1, on any device.
        router: [n, d], R.
        w_gate: [n, D, d], W.
        K: experts of a token, those with the largest scores, for agreement_chosen and dz; None: these are left out.
        nulls: add `null.NAME.mean`, `.std` and `.p` of each figure that changes with the experts' labels, over 1,000
            permutations of the experts. p is the share of permutations at least as far from the mean.
        seed, layer: they determine the permutations, as `--seed` and the layer's number of `couplet inspect` do.
    """
    for name, value, dims in (("tokens", tokens, "T d"), ("router", router, "n d"), ("w_gate", w_gate, "n D d")):
        shape = dims.split()
        if not isinstance(value, Tensor) or value.dim() != len(shape) or not value.is_floating_point():
            raise TypeError(f"couplet: {name} must be a tensor [{', '.join(shape)}] of floating-point numbers")
    if len({x.shape[-1] for x in (tokens, router, w_gate)}) > 1 or len(router) != len(w_gate) or not router.numel():
        raise ValueError(
            f"couplet: tokens are {list(tokens.shape)}, router {list(router.shape)} and w_gate {list(w_gate.shape)}, "
            "must be [T, d], [n, d] and [n, D, d]"
        )
    if not len(tokens):
        raise ValueError("couplet: tokens are [0, d], must be at least one token")
    if K is not None and not 1 <= whole_number(K, "K") <= len(router):
        raise ValueError(f"couplet: K is {K}, must be from 1 to {len(router)}, the number of experts")
    R = router.to(torch.promote_types(router.dtype, torch.float32))
    x = tokens.to(R)
    responses = _figures.responses(x, w_gate, "").columns.mT
    return of_layer(x @ R.T, responses, mean_token(x, R, w_gate, ""), K, nulls, seed, layer)
