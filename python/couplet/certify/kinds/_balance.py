"""What the load-balancing losses share: who is routed where, the two means, and the faults of both.

Names:  L layers, A groups (micro-batches or sequences) of t tokens each, n experts, K chosen of a token.
        p [L,A,t,n] scores; chosen [L,A,t,n], 1 where a token goes; m [L,A,t,1], 0 where padding lies.
        f, P [L,A,n]: the share of assignments of an expert, and its mean score.
Ties:   of scores that tie for the last places, each is chosen in part. `x.shift` [L,A,n] moves counts between them:
        the judge fits it, since an implementation may break ties as it likes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, generator, one_group
from .._rounding import exactly
from ._layers import AVERAGED, ONE, SUMMED, one_layer

NAMES = {
    "logits": ("logits", "router_logits", "gate_logits", "gate_logit", "x"),
    "top_k": ("top_k", "k", "topk", "num_experts_per_tok", "moe_top_k"),
    "num_experts": ("num_experts", "n_experts", "n_routed_experts", "n", "E"),
    "mask": ("mask", "attention_mask", "padding_mask"),
    "coefficient": (
        "coefficient",
        "coef",
        "aux_loss_coef",
        "router_aux_loss_coef",
        "aux_loss_coeff",
        "aux_loss_alpha",
        "weight",
        "alpha",
    ),
    "micro_batches": ("micro_batches", "accumulation_steps", "gradient_accumulation_steps"),
    "sequences": ("sequences", "batch_size", "num_sequences"),
    "indices": ("indices", "topk_indices", "selected_experts", "expert_indices", "topk_idx"),
    "kept": ("kept",),
}


# ---- where tokens go ----


class Sums:
    """Sums over tokens, in the order in which a reference takes them: those of all tokens are kept, and put in place of
    those of a part. So each token of the part has its own gradient, as among all."""

    def __init__(self, known: Sequence[Tensor] = ()):
        self.known, self.next = list(known), iter(known) if known else None
        self.whole = False  # a token depends on others in another way too

    def __call__(self, total: Tensor) -> Tensor:
        if self.next is None:
            self.known.append(total.detach())
            return total
        return next(self.next) + (total - total.detach())


def part(x: Case, groups: int, every: int) -> Case:
    """Some tokens of each group."""
    T = x.logits.shape[1]
    tokens = torch.arange(T).view(groups, -1)[:, ::every].flatten()

    def some(value: Optional[Tensor]) -> Optional[Tensor]:
        return None if value is None else value.index_select(1 if value.dim() == 3 else 0, tokens)

    of_tokens = {name: some(getattr(x, name)) for name in ("logits", "mask", "indices", "kept", "held")}
    return x.but(**of_tokens, all_tokens=T, memo={})


@dataclass(frozen=True)
class Routed:
    p: Tensor
    chosen: Tensor
    m: Tensor
    n: int  # what the sum is multiplied by
    K: int  # what f is divided by
    shift: Optional[Tensor]
    t: int  # tokens of a group
    sums: Optional["Sums"] = None

    def total(self, values: Tensor, m: Tensor) -> Tensor:
        """Over tokens."""
        return (values * m).sum(2) if self.sums is None else self.sums((values.transpose(2, 3) @ m).squeeze(-1))

    def number(self, m: Tensor) -> Tensor:
        return m.sum(2) if self.sums is None else self.sums(m.sum(2))

    def only(self, layers: slice, groups: slice = slice(None)) -> "Routed":
        return replace(
            self,
            p=self.p[layers, groups],
            chosen=self.chosen[layers, groups],
            m=self.m[layers, groups],
            shift=None if self.shift is None else self.shift[layers, groups],
        )

    def over(self, axes: Sequence[int]) -> "Routed":
        """With these axes, 0 for layers and 1 for groups, joined to the tokens."""
        L, A, t = self.p.shape[:3]

        def joined(value: Tensor) -> Tensor:
            if list(axes) == [0]:
                return value.transpose(0, 1).reshape(1, A, L * t, value.shape[-1])
            return value.reshape(1 if 0 in axes else L, 1, -1, value.shape[-1])

        if not axes:
            return self
        shift = None if self.shift is None else self.shift.sum(tuple(axes), keepdim=True)
        return replace(
            self,
            p=joined(self.p),
            chosen=joined(self.chosen),
            m=joined(self.m),
            shift=shift,
            t=self.t * (L if 0 in axes else 1) * (A if 1 in axes else 1),
        )


def pick(scores: Tensor, K: int, tolerance: float) -> Tensor:
    """1 where one of the K largest lies; those within `tolerance` of the K-th share the places that are left."""
    with exactly():
        last = scores.topk(K, dim=-1).values[..., -1:]
        above = scores > last + tolerance
        tied = (scores - last).abs() <= tolerance
        places = K - above.sum(-1, keepdim=True)
        return above.to(scores.dtype) + tied * places / tied.sum(-1, keepdim=True)


def route(x: Case, has: Has, score: Callable[[Case, Has, Tensor], Tensor], groups: str) -> Routed:
    """`groups`: the name of the number of groups, "micro_batches" or "sequences"."""
    logits = x.logits
    L, T, n = logits.shape
    A = getattr(x, groups) or 1
    K = n if has("k_is_n") else 1 if has("first_choice") else x.top_k
    with torch.no_grad(), exactly():
        if x.indices is not None and not has("k_is_n"):
            chosen = torch.zeros_like(logits).scatter(-1, x.indices[..., :K], 1.0)
        else:
            chosen = x.once(("chosen", K), lambda: pick(logits.detach(), K, x.tolerance or 0.0))
        if x.kept is not None and has("dropped_left_out"):
            chosen = chosen * x.kept
        mask = torch.ones(T, dtype=logits.dtype) if x.mask is None else x.mask.to(logits.dtype)
    over_chosen = has("softmax_over_chosen") or has("normalised_over_chosen")
    p = score(x, has, logits.masked_fill(chosen == 0, -math.inf) if over_chosen else logits)
    m = mask.view(1, A, T // A, 1).expand(L, -1, -1, -1)
    return Routed(
        p.view(L, A, T // A, n),
        chosen.view(L, A, T // A, n),
        m,
        x.top_k if has("k_is_n") else n,
        K,
        x.shift,
        (x.all_tokens or T) // A,
        x.sums,
    )


def softmax(x: Case, has: Has, logits: Tensor) -> Tensor:
    if has("logits_for_scores"):
        return logits
    if has("sigmoid_for_softmax"):
        return logits.sigmoid()
    if has("softmax_over_tokens") and x.sums is not None:
        x.sums.whole = True
    p = logits.softmax(1 if has("softmax_over_tokens") else -1)
    return p.softmax(-1) if has("softmax_twice") else p


# ---- the two means ----


def _in_bf16(r: Routed, values: Tensor) -> Tensor:
    """The sum over tokens, axis 2, in a bf16 number, one after the other; its gradient is that of a sum."""
    total = values.sum(2)
    if r.sums is None or r.sums.next is None:
        rounded = torch.zeros(total.shape, dtype=torch.bfloat16)
        for one in values.detach().unbind(2):
            torch.add(rounded, one, out=rounded)
        total = total + (rounded.to(values.dtype) - total.detach())
    return total if r.sums is None else r.sums(total)


def fraction(r: Routed, has: Has) -> Tensor:
    """f [L,A,n]: the share of the T K assignments that goes to each expert."""
    m = torch.ones_like(r.m) if has("padding_counted") or has("padding_in_f") else r.m
    chosen = r.chosen * r.p if has("f_of_scores") or has("f_of_scores_alone") else r.chosen
    if has("f_straight_through") or has("gradient_of_f"):
        chosen = chosen + (r.p - r.p.detach())
    counts = r.total(chosen, m)
    if has("counts_in_bf16"):
        counts = counts.clamp(max=256)
    if r.shift is not None:
        counts = counts + r.shift
    tokens = r.t if has("padding_divides") else r.number(m)
    return counts / (tokens * r.K)


def mean_score(r: Routed, has: Has) -> Tensor:
    """P [L,A,n]."""
    m = torch.ones_like(r.m) if has("padding_counted") or has("padding_in_P") else r.m
    p = r.p * r.chosen if has("P_over_chosen") else r.p
    total = _in_bf16(r, p * m) if has("sum_in_bf16") else r.total(p, m)
    P = total / (r.t if has("padding_divides") else r.number(m))
    if has("gradient_of_f") or has("f_of_scores_alone"):
        P = P.detach()
    if has("mean_over_all"):
        P = P.mean(-1, keepdim=True).expand_as(P)
    return P


def product(r: Routed, has: Has) -> Tensor:
    """n times the sum over experts of f P, [L,A]: 1 if all experts get the same."""
    if has("means_over_experts"):
        return r.n * ((r.chosen * r.m).mean(-1) / r.K * (r.p * r.m).mean(-1)).sum(-1)
    f, P = fraction(r, has), mean_score(r, has)
    if has("P_for_f"):
        f = P
    return r.n * (f.sum(-1) * P.sum(-1) if has("broadcast") else (f * P).sum(-1))


def balance(r: Routed, has: Has, layers: str, groups: str = "mean") -> Tensor:
    """`product` over layers ("sum", "mean", or "joined": all tokens of all layers together) and groups ("mean"
    or "joined"), unless a fault says otherwise."""
    for word, key in (("sum", "layers_summed"), ("mean", "layers_averaged"), ("joined", "layers_joined")):
        layers = word if has(key) else layers
    groups = "joined" if has("groups_joined") else groups
    if has("last_layer") or has("first_layer"):
        r = r.only(slice(-1, None) if has("last_layer") else slice(1))
    if has("last_group"):
        r = r.only(slice(None), slice(-1, None))
    axes = [axis for axis, how in ((0, layers), (1, groups)) if how == "joined"]
    each = product(r.over(axes), has).mean(1)
    return each.sum() if layers == "sum" else each.mean()


# ---- faults ----


def faults_but(*convention: str) -> List[Fault]:
    """Those of all losses of this family, without the ones that are a kind's own convention."""
    return [one for one in FAULTS if one.key not in convention]


FAULTS = (
    Fault(
        "softmax_twice",
        "the softmax is taken twice: what comes in as logits are already probabilities",
        "hand over the router's logits, or leave one softmax out",
        "Transformers #45120",
    ),
    Fault(
        "softmax_over_chosen",
        "the softmax is taken over the K chosen experts alone",
        "take the softmax over all experts first, then the K largest",
        "Transformers #28021",
        picks=True,
    ),
    Fault("logits_for_scores", "P is the mean of the logits: the softmax is missing", "P = logits.softmax(-1).mean(0)"),
    Fault("sigmoid_for_softmax", "scores are sigmoids in place of the softmax", "logits.softmax(-1)"),
    Fault("softmax_over_tokens", "the softmax runs over tokens in place of experts", "softmax(dim=-1)"),
    Fault(
        "P_over_chosen",
        "P counts the scores of chosen experts alone",
        "P is the mean over all tokens of all scores",
        "aprender #2162",
        picks=True,
    ),
    Fault("P_for_f", "f is the mean score too: the counts are not used", "f from a one-hot of the chosen experts"),
    Fault(
        "f_of_scores",
        "f sums scores of the chosen experts, with their gradient, in place of counting them",
        "count: one_hot(indices).float().mean(0), which has no gradient",
        picks=True,
    ),
    Fault(
        "f_of_scores_alone",
        "f sums scores of the chosen experts, with their gradient, and P has none",
        "count the chosen, without a gradient, and detach nothing of P",
        picks=True,
    ),
    Fault(
        "f_straight_through",
        "counts have the gradient of scores, as of a straight-through estimator",
        "the one-hot alone: f has no gradient",
    ),
    Fault("gradient_of_f", "counts have the gradient of scores, and P has none", "detach f, not P"),
    Fault(
        "first_choice",
        "f counts the first choice of each token alone",
        "count all K of a token; GShard (arXiv 2006.16668) counts the first",
        "DeepSpeed's top2gating",
        picks=True,
    ),
    Fault(
        "mean_over_all",
        "P is a mean over experts as well as tokens: the loss is constant",
        "take the mean over the tokens' axis alone",
    ),
    Fault(
        "means_over_experts",
        "f and P are means over experts, one number a token: the loss is constant",
        "take both means over the tokens' axis",
    ),
    Fault(
        "broadcast",
        "the sums of f and P are multiplied, not f and P expert by expert: the loss is constant",
        "f and P need the same shape [n] before they are multiplied",
    ),
    Fault("k_is_n", "n and K are exchanged in the call", "look at the order of num_experts and top_k"),
    Fault(
        "padding_counted",
        "padded tokens are counted",
        "leave them out of both means and of the number of tokens",
        needs="mask",
    ),
    Fault("padding_in_f", "padded tokens are counted in f alone", "multiply the one-hot by the mask", needs="mask"),
    Fault("padding_in_P", "padded tokens are counted in P alone", "multiply the scores by the mask", needs="mask"),
    Fault(
        "padding_divides",
        "padded tokens are left out of the sums, but not of the number of tokens",
        "divide by mask.sum()",
        needs="mask",
    ),
    Fault(
        "dropped_left_out",
        "tokens that an expert dropped are not counted",
        "count before the capacity is applied",
        needs="kept",
        picks=True,
    ),
    Fault(
        "layers_joined",
        "the tokens of all layers are joined before the means",
        "compute each layer's loss by itself",
        "Transformers #31464",
        same=one_layer,
    ),
    AVERAGED,
    SUMMED,
    *ONE,
    Fault("last_group", "only the last micro-batch or sequence has a loss", "add the loss of each", same=one_group),
    Fault(
        "groups_joined",
        "f and P are taken over all micro-batches or sequences together",
        "compute the loss of each by itself, then the mean",
        same=one_group,
    ),
    Fault("counts_in_bf16", "assignments are counted in bf16, which stops at 256", "count in integers or float32"),
    Fault("sum_in_bf16", "the scores are summed in a bf16 number", "sum in float32: probs.float().sum(0)"),
)


# ---- inputs ----


def _dropped(logits: Tensor) -> Case:
    """Each expert keeps the first eight tokens that choose it."""
    chosen = pick(logits, 2, 0.0)
    return Case(logits=logits, top_k=2, coefficient=0.5, kept=(chosen.cumsum(1) <= 8) & (chosen > 0))


def cases(seed: int) -> Dict[str, Case]:
    """Those of this family: several layers; micro-batches; padding; many tokens; dropped tokens; ties."""
    g = generator(seed)

    def logits(L: int, T: int, n: int, spread: float = 1.5) -> Tensor:
        return torch.randn(L, T, n, generator=g) * spread + torch.randn(L, 1, n, generator=g)

    some = torch.ones(60, dtype=torch.bool)
    some[torch.tensor([17, 18, 19, 29, 52, 53, 54, 55, 56, 57, 58, 59])] = False
    ties = (torch.randn(2, 24, 6, generator=g) * 2).round()
    return {
        "layers": Case(logits=logits(3, 40, 8), top_k=3, coefficient=0.3),
        "micro-batches": Case(logits=logits(2, 60, 7), top_k=2, coefficient=0.02, micro_batches=5, sequences=5),
        "padding": Case(logits=logits(2, 60, 7), top_k=3, coefficient=1.7, mask=some, sequences=3),
        "many-tokens": Case(logits=logits(1, 1600, 4), top_k=2, coefficient=0.01),
        "dropped": _dropped(logits(2, 30, 5)),
        "ties": Case(logits=ties, top_k=2, coefficient=0.6),
    }
