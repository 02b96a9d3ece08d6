"""Load balancing: the losses that multiply the share of assignments of an expert by its mean score.

Names: L layers, A groups (micro-batches or sequences) of t tokens each, n experts, K chosen of a token.
       p [L,A,t,n] scores; chosen [L,A,t,n], 1 where a token goes; m [L,A,t,1], 0 where padding lies.
       f, P [L,A,n]: the share of assignments of an expert, and its mean score."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Tuple

import torch
from torch import Tensor

from .._kind import Case, Has, Kind, generator, right

Routed = Tuple[Tensor, Tensor, Tensor]  # p, chosen, m


# ---- routing ----


def pick(x: Case, scores: Tensor, K: int) -> Tensor:
    """Returns 1 at the K largest of `scores` [...,n], and 0 elsewhere. Of tied experts the first are chosen, with
    x.preferred [...,n] those where it is largest. Scores then tie if they are equal when rounded to x.tolerance, a share
    of the largest score."""
    step = (x.tolerance or 0.0) * (float(scores.abs().max()) or 1.0)
    if x.preferred is not None and step > 0:
        order = x.preferred.expand_as(scores).argsort(dim=-1, descending=True, stable=True)
        ranks = (scores / step).round().gather(-1, order).argsort(dim=-1, descending=True, stable=True)
        chosen = order.gather(-1, ranks[..., :K])
    else:
        chosen = scores.argsort(dim=-1, descending=True, stable=True)[..., :K]
    return torch.zeros_like(scores).scatter(-1, chosen, 1.0)


def places(x: Case, has: Has) -> int:
    """Returns K, the number of experts of a token."""
    return int(x.logits.shape[-1] if has("k_is_n") else 1 if has("first_choice") else x.top_k)


def chosen_of(x: Case, has: Has) -> Tensor:
    """Returns 1 where a token goes, [L,T,n]: to the given experts, or without them to the largest scores. x.moved, zeros,
    is added, so that the derivative by it is that by the choice."""
    K = places(x, has)
    if x.indices is not None and not has("k_is_n"):
        chosen = torch.zeros_like(x.logits).scatter(-1, x.indices[..., :K], 1.0)
    else:
        chosen = x.once(("chosen", K), lambda: pick(x, x.logits.detach(), K))
    chosen = chosen if x.moved is None else chosen + x.moved
    return chosen * x.kept if has("dropped_left_out") and x.kept is not None else chosen


def softmax(x: Case, has: Has, logits: Tensor) -> Tensor:
    if has("logits_for_scores"):
        return logits
    if has("sigmoid_for_softmax"):
        return logits.sigmoid()
    if has("softmax_in_bf16"):
        return logits.to(torch.bfloat16).softmax(-1).to(logits.dtype)
    p = logits.softmax(1 if has("softmax_over_tokens") else -1)
    return p.softmax(-1) if has("softmax_twice") else p


def sigmoids(x: Case, has: Has, logits: Tensor) -> Tensor:
    """Returns sigmoids, divided so that they sum to 1 for each token."""
    if has("softmax_for_sigmoid"):
        return logits.softmax(-1)
    z = logits.to(torch.bfloat16) if has("softmax_in_bf16") else logits
    s = (z.sigmoid().sigmoid() if has("sigmoid_twice") else z.sigmoid()).to(logits.dtype)
    if has("not_normalised"):
        return s
    total = s.sum(1 if has("normalised_over_tokens") else -1, keepdim=True) + (has("epsilon") or 0.0)
    return s / (total.detach() if has("divisor_detached") else total)


def route(x: Case, has: Has, score: Callable[[Case, Has, Tensor], Tensor], groups: str) -> Routed:
    """Returns p, chosen and m. `groups` names the number of groups, "micro_batches" or "sequences"."""
    L, T, n = x.logits.shape
    A = getattr(x, groups) or 1
    chosen = chosen_of(x, has)
    over_chosen = has("softmax_over_chosen") or has("normalised_over_chosen")
    p = score(x, has, x.logits.masked_fill(chosen == 0, -math.inf) if over_chosen else x.logits)
    mask = torch.ones(T) if x.mask is None else x.mask
    m = mask.to(p.dtype).view(1, A, T // A, 1).expand(L, -1, -1, -1)
    return p.view(L, A, T // A, n), chosen.view(L, A, T // A, n), m


# ---- the two means ----


def sum_in_bf16(values: Tensor) -> Tensor:
    """Returns the sum over tokens, axis 2, in a bf16 number, one after the other, with the gradient of an exact sum."""
    total, rounded = values.sum(2), torch.zeros_like(values[:, :, 0], dtype=torch.bfloat16)
    for one in values.detach().unbind(2):
        torch.add(rounded, one, out=rounded)
    return total + (rounded.to(values.dtype) - total.detach())


def fraction(x: Case, has: Has, routed: Routed) -> Tensor:
    """Returns f [L,A,n], the share of the t K assignments that goes to each expert."""
    p, chosen, m = routed
    m = torch.ones_like(m) if has("padding_counted") or has("padding_in_f") else m
    if has("f_of_scores") or has("f_of_scores_alone"):
        chosen = chosen * p
    if has("f_straight_through") or has("gradient_of_f"):
        chosen = chosen + (p - p.detach())
    counts = (chosen * m).sum(2)
    counts = counts.clamp(max=256) if has("counts_in_bf16") else counts
    return counts / ((m.shape[2] if has("padding_divides") else m.sum(2)) * places(x, has))


def mean_score(has: Has, routed: Routed) -> Tensor:
    """Returns P [L,A,n]."""
    p, chosen, m = routed
    m = torch.ones_like(m) if has("padding_counted") or has("padding_in_P") else m
    p = p * chosen if has("P_over_chosen") else p
    total = sum_in_bf16(p * m) if has("sum_in_bf16") else (p * m).sum(2)
    P = total / (m.shape[2] if has("padding_divides") else m.sum(2))
    P = P.detach() if has("gradient_of_f") or has("f_of_scores_alone") else P
    return P.mean(-1, keepdim=True).expand_as(P) if has("mean_over_all") else P


def product(x: Case, has: Has, routed: Routed) -> Tensor:
    """Returns n times the sum over experts of f P, [L,A]. The result is 1 if all experts get equal shares."""
    p, chosen, m = routed
    n = x.top_k if has("k_is_n") else p.shape[-1]
    if has("means_over_experts"):
        return n * ((chosen * m).mean(-1) / places(x, has) * (p * m).mean(-1)).sum(-1)
    f, P = fraction(x, has, routed), mean_score(has, routed)
    if has("broadcast_of_one"):
        return n * P.sum(-1) / places(x, has)
    f = P if has("P_for_f") else f
    return n * (f.sum(-1) * P.sum(-1) if has("broadcast") else (f * P).sum(-1))


def joined(value: Tensor, layers: bool, groups: bool, ranks: int = 1) -> Tensor:
    """Returns value [L,A,t,k] with all layers, or all groups, joined into one. Each step has one group a rank."""
    L, A, t, k = value.shape
    if ranks > 1:
        value = value.view(L, ranks, -1, t, k).transpose(1, 2).reshape(L, A // ranks, -1, k)
    if layers:
        value = value.transpose(0, 1).reshape(1, value.shape[1], -1, k)
    return value.reshape(len(value), 1, -1, k) if groups else value


def loss_of(layers: str, score: Any = softmax, groups: str = "micro_batches", is_global: bool = False) -> Any:
    """Returns a reference. `layers` is "mean", "sum", or "joined": all tokens together, and f is not divided by K."""

    def reference(x: Case, has: Has) -> Tensor:
        how = next((one for one in ("joined", "summed", "averaged") if has(f"layers_{one}")), layers)
        at = slice(-1, None) if has("last_layer") else slice(1) if has("first_layer") else slice(None)
        of = slice(-1, None) if has("last_group") else slice(None)
        routed = [one[at, of] for one in route(x, has, score, groups)]
        ranks = x.ranks if has("steps_apart") and x.ranks else 1
        all_groups = has("groups_joined") or is_global and ranks == 1 and not has("groups_apart")
        p, chosen, m = (joined(one, how == "joined", all_groups, ranks) for one in routed)
        each = product(x, has, (p, chosen, m)).mean(1)
        times = x.times * (places(x, has) if layers == "joined" else 1)
        return times * (each.sum() if how in ("sum", "summed") else each.mean())

    return reference


# ---- inputs ----


def logits(g: torch.Generator, *shape: int, spread: float = 1.5) -> Tensor:
    """Returns logits [...,T,n] whose experts do not tie. They are different multiples of 1/16, which bf16 can hold."""
    n, step = shape[-1], min(1 / 16, 4 / shape[-1])
    z = torch.randn(shape, generator=g) * spread + torch.randn(*shape[:-2], 1, n, generator=g)
    z = (z / step).round()
    return (z + z.argsort(-1).argsort(-1) - n // 2) * step


def twins(z: Tensor) -> Tensor:
    """Returns logits whose experts 1 and 2, 3 and 4, ... are copies, as after upcycling. Either of two tied experts may
    be chosen: the loss and the sum of their gradients do not change."""
    return torch.cat((z[..., :1], z[..., 1::2].repeat_interleave(2, -1)), -1)


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns inputs with several layers, micro-batches, padding, many tokens, dropped tokens, and ties."""
    g = generator(seed)
    some = torch.ones(60, dtype=torch.bool)
    some[torch.tensor([17, 18, 19, 29, 52, 53, 54, 55, 56, 57, 58, 59])] = False
    found = {
        "layers": Case(logits=logits(g, 3, 40, max(n, 8)), top_k=3, coefficient=0.3),
        "micro-batches": Case(
            logits=logits(g, 2, 60, max(n, 7)), top_k=2, coefficient=0.02, micro_batches=5, sequences=5
        ),
        "padding": Case(logits=logits(g, 2, 60, max(n, 7)), top_k=3, coefficient=1.7, mask=some, sequences=3),
        "many-tokens": Case(logits=logits(g, 1, 1600, max(n, 4)), top_k=2, coefficient=0.01),
        "dropped": Case(logits=logits(g, 2, 30, max(n, 5)), top_k=2, coefficient=0.5),
        "ties": Case(logits=twins(logits(g, 2, 24, max(n, 8))), top_k=2, coefficient=0.6, twins=True),
    }
    chosen = pick(Case(), found["dropped"].logits, 2)  # Each expert keeps the first eight tokens that choose it.
    found["dropped"] = found["dropped"].but(kept=(chosen.cumsum(1) <= 8) & (chosen > 0))
    return found


def of_steps(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns the inputs of `cases`, each in several micro-batches."""
    return {name: x.but(micro_batches=x.micro_batches or 2) for name, x in cases(seed, n).items()}


def low(seed: int, n: int = 0) -> Dict[str, Case]:
    """Returns inputs whose sigmoids do not saturate, and some so low that an epsilon shows."""
    found = {name: x.but(logits=x.logits - 3.0) for name, x in cases(seed, n).items()}
    x = found["layers"]
    z = x.logits.argsort(-1).argsort(-1) * min(1 / 4, 4 / x.logits.shape[-1])
    return {**found, "low-scores": x.but(logits=z - 18.0), "lowest-scores": x.but(logits=z - 50.0)}


# ---- kinds ----

INPUTS = (
    *("logits", "top_k", "num_experts", "mask", "coefficient", "micro_batches", "sequences", "indices", "kept"),
    *("probs", "tokens_per_expert", "total_num_tokens", "routing_map"),
)
_NEEDS = ("logits", "top_k")
KINDS = (
    Kind("load-balancing-switch", loss_of("sum"), INPUTS, cases, _NEEDS),
    Kind("load-balancing-mixtral", loss_of("joined"), INPUTS, cases, _NEEDS),
    Kind("load-balancing-olmoe", loss_of("mean"), INPUTS, cases, _NEEDS),
    Kind(
        *("load-balancing-deepseek", loss_of("sum", sigmoids, "sequences"), INPUTS, low, _NEEDS),
        scores=lambda z: sigmoids(Case(), right, z),
    ),
    Kind("load-balancing-global", loss_of("mean", is_global=True), INPUTS, of_steps, (*_NEEDS, "micro_batches")),
)
