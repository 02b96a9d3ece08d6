"""Figures of the agreement of router scores and expert responses on tokens, under the names of `couplet inspect --text`
(src/inspect/routing/signs.h, docs/method.md 5.3), and the recorded tokens of a model's forward passes.

Names: T tokens, n experts; score s_ti = x_t . R_i, the router's logit; response a_ti = |x_t W_i|. The figures are
computed on the CPU, in f64."""

from __future__ import annotations

import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..models._layers import Layer
from ..models._weights import Weight
from ..ops._functional import whole_number
from ..ops._response import without_autocast
from . import _figures, _mean_token
from ._router_stats import BIAS, modules_of

LEAST = 3  # entries that a list needs for a rank correlation (CPL_SIGNS_LEAST)


# ---- rank correlation of many lists ----


def _ranks(x: Tensor, inside: Tensor) -> Tensor:
    """Returns the ranks of the entries of each list x [r, l] that are inside, from 1 for the smallest. Equal entries
    have the mean of their ranks. Ranks of other entries are undefined."""
    filled = x.masked_fill(~inside, math.inf)
    ordered = filled.sort(-1).values
    first = torch.searchsorted(ordered, filled)
    end = torch.searchsorted(ordered, filled, right=True).minimum(inside.sum(-1, keepdim=True))
    return (first + end + 1).double() / 2


def _rho(x: Tensor, y: Tensor, inside: Tensor, least: int = LEAST) -> Tuple[Tensor, Tensor]:
    """Returns Spearman's rho [r] of the entries of x and y [r, l] that are inside, and whether a list has a rho. A list
    that does not vary or has fewer than `least` entries has none. rho is NaN for a list that has NaN."""
    count = inside.sum(-1)
    mean = (count[:, None] + 1).double() / 2
    dx, dy = ((_ranks(v, inside) - mean).masked_fill(~inside, 0.0) for v in (x, y))
    xx, yy = (dx * dx).sum(-1), (dy * dy).sum(-1)
    has_nan = ((x.isnan() | y.isnan()) & inside).any(-1)
    rho = torch.where(has_nan, math.nan, (dx * dy).sum(-1) / (xx * yy).sqrt())
    return rho, (count >= least) & (has_nan | (xx > 0) & (yy > 0))


def _mean_rho(x: Tensor, y: Tensor, inside: Tensor, least: int = LEAST) -> float:
    rho, is_there = _rho(x, y, inside, least)
    return rho[is_there].mean().item()  # NaN: no list has a rho


def _of_lists(name: str, x: Tensor, y: Tensor, sign: Tensor) -> Dict[str, float]:
    """Returns the mean rho over all entries of lists x, y [r, l], and over the entries whose sign [r, l] is above 0 and
    below 0."""
    sides = {"all": torch.ones_like(sign, dtype=torch.bool), "above": sign > 0, "below": sign < 0}
    return {f"{name}.{side}": _mean_rho(x, y, inside) for side, inside in sides.items()}


def _size(x: Tensor, y: Tensor) -> float:
    return _mean_rho(x.abs(), y, torch.ones_like(x, dtype=torch.bool))


# ---- the figures ----


def _less_means(x: Tensor, place: Tensor, counts: Tensor) -> Tensor:
    """Returns x [T, n] less the mean over the tokens with the same place."""
    means = x.new_zeros(len(counts), x.shape[1]).index_add_(0, place, x / counts[place, None])
    return x - means[place]


def _within_ids(scores: Tensor, responses: Tensor, ids: Tensor) -> Dict[str, float]:
    _, place, counts = torch.unique(ids, return_inverse=True, return_counts=True)
    often = counts[place] > 1
    x, y = (_less_means(v, place, counts)[often] for v in (scores, responses))
    return _of_lists("ids", x, y, scores[often])


def _agreement(scores: Tensor, responses: Tensor, K: int) -> Dict[str, float]:
    """Compares the K largest scores with the K largest responses. Of equal ones the lower expert comes first."""
    chosen, answering = (v.argsort(dim=1, descending=True, stable=True)[:, :K] for v in (scores, responses))
    first = (chosen[:, 0] == answering[:, 0]).double().mean().item()
    overlap = (chosen[:, :, None] == answering[:, None]).sum((1, 2)).double().mean().item() / K
    if scores.isnan().any() or responses.isnan().any():
        first = overlap = math.nan
    return {"agreement.top1": first, "agreement.overlap": overlap}


def _checked_ids(ids: Any, T: int) -> Tensor:
    found = torch.as_tensor(ids, dtype=None, device="cpu").detach().flatten()
    if found.numel() and (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool):
        raise TypeError(f"couplet: ids are {found.dtype}, must be whole numbers")
    if len(found) != T:
        raise ValueError(f"couplet: there are {len(found)} ids, but {T} tokens")
    return found


@torch.no_grad()
def token_figures(
    scores: Tensor, responses: Tensor, ids: Any = None, centred: bool = False, K: Optional[int] = None
) -> Dict[str, float]:
    """Returns figures of the agreement of router scores and expert responses on the same tokens, with the definitions
    and names of `couplet inspect --text --json` (docs/method.md 5.3). All but `negative` and two of `agreement` are
    means of Spearman's rank correlation over lists. The coupling loss is even in a router row, so that it cannot
    distinguish tokens with a high score from tokens with a score far below 0. These figures can.

    negative: share of the T n scores that are below 0.
    tokens.all, tokens.above, tokens.below: correlation of a token's scores and responses, over its n experts, over
        experts with a score above 0, and below 0. tokens.size: with |score|. Means over tokens.
    experts.all, .above, .below, .size: correlation of an expert's scores and responses over tokens; means over experts.
    ids.all, .above, .below: as tokens, after the mean over the tokens with the same id was subtracted from the scores
        and responses of each expert, for ids that occur more than once. The sign is the sign of the original score.
    agreement.spearman_mean: as tokens.all, also for n = 2. agreement.top1: share of tokens whose largest score belongs
        to the expert with the largest response; agreement.overlap: share of the K largest scores that are among the K
        largest responses. They always use the scores as given.

    Equal numbers have the mean of their ranks. A list that does not vary, or has fewer than 3 entries, is left out.
    A mean over no list is NaN, as is a mean with a list that has NaN. A NaN score is neither above nor below 0.

    Args:
        scores: [T, n], the router's logits x_t . R_i. They may be on any device, which is read once.
        responses: [T, n], |x_t W_i|, W_i [D, d] the gate of expert i.
        ids: T whole numbers, for `ids`; None: left out.
        centred: subtract each token's mean score from its scores. They are then the scores of the centred router rows,
            and a change of all scores of a token by one amount, which softmax routing does not see, changes no figure.
        K: experts of a token, for top1 and overlap; None: these are left out.
    """
    for name, value in (("scores", scores), ("responses", responses)):
        if not isinstance(value, Tensor) or value.dim() != 2 or not value.is_floating_point():
            raise TypeError(f"couplet: {name} must be a tensor [T, n] of floating-point numbers")
    if scores.shape != responses.shape or scores.shape[1] < 1:
        raise ValueError(
            f"couplet: scores are {list(scores.shape)} and responses {list(responses.shape)}, must both "
            "be [T, n] with at least one expert"
        )
    T, n = scores.shape
    if K is not None and not 1 <= whole_number(K, "K") <= n:
        raise ValueError(f"couplet: K is {K}, must be from 1 to {n}, the number of experts")
    given, a = scores.cpu().double(), responses.cpu().double()
    s = given - given.sum(1, keepdim=True) / n if centred else given
    figures = {"negative": (s < 0).double().mean().item(), **_of_lists("tokens", s, a, s), "tokens.size": _size(s, a)}
    if ids is not None:
        figures.update(_within_ids(s, a, _checked_ids(ids, T)))
    figures.update(_of_lists("experts", s.T, a.T, s.T), **{"experts.size": _size(s.T, a.T)})
    figures["agreement.spearman_mean"] = _mean_rho(given, a, torch.ones_like(s, dtype=torch.bool), 2)
    if K is not None:
        figures.update(_agreement(given, a, K))
    return figures


# ---- tokens by expert ----


def _likeness(x: Tensor, y: Tensor) -> Dict[str, float]:
    """Returns correlations of the off-diagonal entries of two matrices [m, m], with every row divided by its mean."""
    off = ~torch.eye(len(x), dtype=torch.bool, device="cpu")
    lists = [(v / v.mean(1, keepdim=True)).nan_to_num(0.0)[off][None] for v in (x, y)]
    dx, dy = (v - v.mean() for v in lists)
    pearson = ((dx * dy).sum() / (dx.square().sum() * dy.square().sum()).sqrt()).item()
    return {"pearson": pearson, "spearman": _mean_rho(lists[0], lists[1], torch.ones_like(dx, dtype=torch.bool), 2)}


def _tokens_M(sample: Sample, K: int) -> Dict[str, float]:
    """Returns `tokens_M` of `couplet inspect --text`. M_tok[i,j] is the mean response of expert j to the tokens for
    which expert i is among the K with the largest score. Experts with fewer than _mean_token.FEW such tokens are left out."""
    scores, a = sample.scores.cpu().double(), sample.responses.cpu().double()
    chosen = scores.argsort(dim=1, descending=True, stable=True)[:, :K]
    sent = torch.zeros_like(a).scatter_(1, chosen, 1.0)
    kept = sent.sum(0) >= _mean_token.FEW
    M_tok, M, centred = (
        (sent.T @ a / sent.sum(0)[:, None])[kept][:, kept],
        *(v.cpu().double()[kept][:, kept] for v in (sample.M, sample.centred_M)),
    )
    found = {"left_out": float((~kept).sum())}
    own = M_tok.diagonal()
    found.update(
        diag_mean=own.mean().item(),
        rows_own=(M_tok <= own[:, None]).all(1).double().mean().item(),
        columns_own=(M_tok <= own).all(0).double().mean().item(),
    )
    for name, other in (("offdiag_scaled", M), ("centred_offdiag_scaled", centred)):
        found.update({f"{name}.{kind}": value for kind, value in _likeness(M_tok, other).items()})
    return {f"tokens_M.{name}": value for name, value in found.items()}


# ---- the tokens of a model ----


class Sample(NamedTuple):
    """The recorded tokens of a layer, S of them."""

    scores: Tensor  # [S, n], f32 or wider
    responses: Tensor  # [S, n]
    places: Tensor  # int64 [S]: index among the tokens that the router has read, from 0
    M: Tensor  # [n, n], |R_i W_j|; of latent experts, as the responses, of projected rows
    centred_M: Tensor  # [n, n], M for R_i less the mean row
    mean_token: _mean_token.MeanToken


class TokenRecord:
    """Tokens that the routers of a model read within `with`; made by `Erc.record_tokens`."""

    def __init__(self, erc: Any, modules: Sequence[nn.Module], limit: int, top_k: Optional[int]):
        self._erc, self._modules, self._top_k = erc, list(modules), top_k
        self._readers = [_Reader(layer, limit) for layer in erc.layers]
        self._hooks: List[Any] = []

    def __enter__(self) -> TokenRecord:
        self._hooks = [
            module.register_forward_pre_hook(reader, with_kwargs=True)
            for module, reader in zip(self._modules, self._readers)
        ]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    @torch.no_grad()
    def samples(self) -> Dict[int, Sample]:
        """Returns layer's number -> scores and responses of its tokens, by the present weights: call it before the
        optimizer's step. Under FSDP2 it is a collective, as gates are gathered. Only this process's tokens are
        included."""
        return {
            layer.number: self._sample(layer, reader, weights)
            for layer, reader, weights in zip(self._erc.layers, self._readers, self._erc._weights())
        }

    def _sample(self, layer: Layer, reader: _Reader, weights: List[Weight]) -> Sample:
        if not reader.seen:
            raise ValueError(
                f"couplet: {layer.names[0]}: its module was not called within record_tokens(); run the "
                "model itself there, not a compiled one, or give record_tokens(routers=...) the modules "
                "that are called with the tokens"
            )
        with without_autocast(reader.tokens[0].device):
            R = layer.router(weights)
            R = R.to(torch.promote_types(R.dtype, torch.float32))
            x = torch.cat(reader.tokens).to(R)
            rows, latent = torch.cat((x, R, R - R.mean(0))), layer.latent(weights)
            rows = rows if latent is None else latent.read(rows)
            found = _figures.responses(rows, layer.gates(weights), layer.gate_half or "").columns.mT
            S, n = len(x), len(R)
            mean_token = _mean_token.mean_token(x, R, layer.gates(weights), layer.gate_half or "", latent)
            return Sample(x @ R.T, found[:S], torch.cat(reader.places), found[S : S + n], found[S + n :], mean_token)

    def figures(self, per_layer: bool = False, ids: Any = None, nulls: bool = False, seed: int = 0) -> Dict[str, float]:
        """Returns `couplet.token_figures` of each layer's tokens, means over the layers that have them: `signs.NAME`,
        for centred scores `centred_signs.NAME`, and `agreement.NAME`. `tokens_M.NAME` describes M_tok, the mean
        responses to the tokens of each expert: shares of rows and columns with the largest entry on the diagonal, and
        correlations with M and with M of centred rows (docs/method.md 5.3). `mean_token.NAME` are those of
        `couplet.mean_token_figures`. `agreement.top1`, `agreement.overlap`, `mean_token.agreement_chosen`,
        `mean_token.dz` and `tokens_M` are left out where K is unknown, and where experts are not chosen by the largest x . R_i alone
        (correction bias, bias, groups, experts that compute nothing).

        per_layer: adds `name/3` of layer 3 and so on.
        ids: whole numbers, one for each token that a router has read within `with`, in its order (`input_ids` of one
            forward pass), for `signs.ids` and `centred_signs.ids`; None: left out.
        nulls: adds `mean_token.null.NAME.mean`, `.std` and `.p`, each layer's figure over 1,000 permutations of the
            experts, drawn with `seed`. They have no means over layers: give per_layer too."""
        for reader in self._readers:
            if ids is not None and reader.seen:
                ids = _checked_ids(ids, reader.seen)
        each = {
            layer.number: self._of_layer(layer, module, sample, ids, nulls, seed)
            for layer, module, sample in zip(self._erc.layers, self._modules, self.samples().values())
        }
        names = list(dict.fromkeys(name for f in each.values() for name in f))
        names = [name for name in names if not name.startswith("mean_token.null.")]
        result = {name: _mean([f[name] for f in each.values() if name in f]) for name in names}
        if per_layer:
            result.update({f"{name}/{number}": value for number, f in each.items() for name, value in f.items()})
        return result

    def _of_layer(
        self, layer: Layer, module: nn.Module, sample: Sample, ids: Optional[Tensor], nulls: bool, seed: int
    ) -> Dict[str, float]:
        K = self._top_k or layer.K or None
        K = K if _chooses_largest(self._erc.model, layer, module) else None
        own = None if ids is None else ids[sample.places.cpu()]
        found: Dict[str, float] = {}
        for centred, begin in ((False, "signs."), (True, "centred_signs.")):
            K_of = None if centred else K
            for name, value in token_figures(sample.scores, sample.responses, own, centred, K_of).items():
                found[name if name.startswith("agreement.") else begin + name] = value
        own_mean = _mean_token.of_layer(
            sample.scores, sample.responses, sample.mean_token, K, nulls, seed, layer.number
        )
        own_mean.pop("agreement")  # agreement.spearman_mean
        found.update({f"mean_token.{name}": value for name, value in own_mean.items()})
        return {**found, **(_tokens_M(sample, K) if K else {})}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def tokens_of(module: nn.Module, inputs: Any, named: Any, layer: Layer, caller: str) -> Tensor:
    """Returns the tokens [T, d] with which the module of a layer is called: the first tensor that may be tokens."""
    given = [t for t in (*inputs, *named.values()) if isinstance(t, Tensor)]
    found = [t for t in given if t.is_floating_point() and t.dim() > 0 and t.shape[-1] == layer.d]
    if not found:
        raise ValueError(
            f"couplet: {layer.names[0]}: its module, a {type(module).__name__}, was called with "
            f"{[list(t.shape) for t in given]}, none of which are tokens [..., {layer.d}]; give "
            f"{caller}(routers=...) the modules that are"
        )
    return found[0].detach().reshape(-1, layer.d)


class _Reader:
    """A forward pre-hook on one router. It keeps up to `limit` of the router's tokens, evenly spaced in each call,
    until the limit is reached."""

    def __init__(self, layer: Layer, limit: int):
        self.layer, self.limit, self.seen = layer, limit, 0
        self.tokens: List[Tensor] = []  # [s, d] of each call
        self.places: List[Tensor] = []  # int64 [s]

    def __call__(self, module: nn.Module, inputs: Any, named: Any) -> None:
        x = tokens_of(module, inputs, named, self.layer, "record_tokens")
        count = min(len(x), self.limit - sum(map(len, self.tokens)))
        at = torch.arange(count, dtype=torch.int64, device=x.device) * len(x) // max(count, 1)
        self.tokens.append(x[at])
        self.places.append(at + self.seen)
        self.seen += len(x)


# ---- the modules ----


def _bare(module: Any) -> Any:
    """Returns the module inside of adapters (PEFT)."""
    while True:
        inner = getattr(module, "base_layer", getattr(module, "original_module", None))
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def module_that_reads(model: nn.Module, name: str, caller: str = "record_tokens") -> nn.Module:
    """Returns the module that is called with the tokens to which the router's weight of this name is applied: the
    module that has the weight or the next outer module, whichever is of a class called a router or gate; else the
    linear layer that has it. Raises ValueError if neither exists. caller: the function in the error."""
    modules = modules_of(model, name)
    named = [m for m in modules[-2:] if re.search(r"(?:Router|Gate|Gating)$", type(_bare(m)).__name__)]
    module = named[-1] if named else modules[-1]
    kind = type(_bare(module)).__name__
    if not named and not kind.endswith("Linear"):
        raise ValueError(
            f"couplet: {name} is in a {kind}, which is no linear layer and no router: it is unknown which "
            f"tokens are multiplied by it; give {caller}(routers=...) the modules that are called "
            "with them, one for each layer"
        )
    return module


def _chooses_largest(model: nn.Module, layer: Layer, module: nn.Module) -> bool:
    """Returns whether a token goes to the experts with the largest x . R_i, without further terms or restrictions."""
    around = [_bare(m) for m in (*modules_of(model, layer.names[0])[-2:], module)]
    has_bias = any(getattr(m, BIAS, None) is not None for m in around) or any(
        getattr(m, "bias", None) is not None for m in around
    )
    has_groups = any((getattr(m, name, None) or 1) > 1 for m in around for name in ("num_group", "n_group"))
    rows = layer.shapes[0][-1 if layer.router_transposed else 0]
    return not has_bias and not has_groups and rows == layer.n
