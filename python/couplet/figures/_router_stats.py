"""Statistics of routers over the tokens of training: counted by forward hooks on the device, without synchronisation,
and read once per log."""

from __future__ import annotations

import math
import re
import warnings
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ops._functional import refuse_mesh, whole_number

NAMES = ("router_maxvio", "router_load_min", "router_dead", "router_load_entropy", "router_entropy", "router_margin")
OF_DISTRIBUTION = {"router_entropy", "router_margin"}
PERCENTILES = (10, 50, 90)  # percentiles over layers
BIAS = "e_score_correction_bias"  # DeepSeek-V3's bias: added to sigmoid scores to choose experts


class RouterStats:
    """Load, entropy, MaxVio and dead experts of routers since the last `figures()`.

        stats = couplet.RouterStats([layer.router for layer in moe_layers], n=64)
        ...                                     # training
        log(stats.figures())                    # a new interval begins

    The tokens of this process count, padding included, only in `train()`, as long as this object exists. Under
    activation checkpointing a recomputed router counts twice, which changes no share.

    Args:
        routers: a module for each layer whose output has one of
            - whole numbers [tokens, k]: the experts of each token (first such tensor of a tuple);
              numbers outside 0 ... n - 1 are ignored;
            - a mask [tokens, n], bool or 0 and 1 in whole numbers;
            - only logits [tokens, n] (first such tensor): then their largest top_k count.
            Routers of Transformers 5 return (logits, weights, indices), of torchtitan (scores, indices,
            counts), of Megatron-Core (probabilities, mask).
        n: the number of experts, or one number for each layer.
        top_k: experts of a token, for routers that return only logits.
        scores: how logits become the routing distribution: "softmax" or "sigmoid"
            (divided by their sum). Default: "sigmoid" for routers with a parameter or buffer
            e_score_correction_bias, "softmax" for others.
        numbers: the layers' numbers, for `figures(per_layer=True)`.
        names: the names that `figures` returns; without router_entropy and router_margin no distribution is computed.
    """

    def __init__(
        self,
        routers: Sequence[nn.Module],
        n: Union[int, Sequence[int]],
        *,
        top_k: Optional[int] = None,
        scores: Optional[str] = None,
        numbers: Optional[Sequence[int]] = None,
        names: Sequence[str] = NAMES,
    ):
        if scores not in (None, "softmax", "sigmoid"):
            raise ValueError(f"couplet: scores is {scores!r}, must be softmax, sigmoid or None")
        routers = list(routers) if hasattr(routers, "__iter__") else []
        if not routers or not all(isinstance(router, nn.Module) for router in routers):
            raise TypeError(
                "couplet: routers must be a list of modules, one for each layer; it is empty or has something else"
            )
        many = [whole_number(one, "n") for one in (n if isinstance(n, (list, tuple)) else [n] * len(routers))]
        top_k = None if top_k is None else whole_number(top_k, "top_k")
        each = list(range(len(routers))) if numbers is None else list(numbers)
        if not len(many) == len(each) == len(routers):
            raise ValueError(
                f"couplet: {len(routers)} routers, but {len(many)} n and {len(each)} numbers; n must be one number or "
                "one for each router, numbers one for each"
            )
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise ValueError(f"couplet: names has {unknown[0]!r}, must be of {', '.join(NAMES)}")
        self.names = tuple(names)
        self.counters = [
            _Counter(number, count, top_k, _scores_of(router, scores, names))
            for router, number, count in zip(routers, each, many)
        ]
        self._hooks = [router.register_forward_hook(counter) for router, counter in zip(routers, self.counters)]
        for hook in self._hooks:
            weakref.finalize(self, hook.remove)

    def remove(self) -> None:
        """Takes the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def loads(self) -> Dict[int, Tensor]:
        """Returns layer's number -> each expert's tokens since the last `figures()`, int64 [n] on the device."""
        return {c.number: c.load.clone() for c in self.counters if c.load is not None}

    def figures(self, per_layer: bool = False, group: Any = None, reset: bool = True) -> Dict[str, float]:
        """Returns figures since the last call, as means over layers, and as `name_p10`, `name_p50`, `name_p90`, the
        percentiles over layers. per_layer adds `name/3` of layer 3 and so on. Empty where nothing was counted.

        router_maxvio: the largest load / the mean load - 1 (0: balanced).
        router_load_min: the smallest load / the mean load (0: an expert got no token).
        router_dead: number of experts that got no token, a mean over layers.
        router_load_entropy: entropy of the loads / log n (1: balanced).
        router_entropy: entropy of the mean over tokens of the routing distribution / log n; left out where
            the routers do not return logits.
        router_margin: mean over tokens of the distribution's K-th largest share less the next one: how clearly the
            last expert is chosen. Left out as router_entropy is, and where K is unknown or a bias chooses.

        It synchronises once. group: the figures are summed over its processes first, by a collective; None: this
        process alone. reset=False: the interval stays open."""
        refuse_mesh(group, "group")
        counted = [c for c in self.counters if c.load is not None]
        if not counted:
            return {}
        place = counted[0].sums().device
        sums = torch.cat([c.sums().to(place) for c in counted])
        if group is not None:
            dist.all_reduce(sums, group=group)
        parts = torch.split(sums, [2 * c.n + 2 for c in counted])  # type: ignore[no-untyped-call, unused-ignore]
        table = torch.stack([_figures_of(part) for part in parts])  # [layers, names]
        spread = torch.nanquantile(
            table, torch.tensor([p / 100 for p in PERCENTILES], dtype=table.dtype, device=place), dim=0
        )
        rows = torch.cat((table.nanmean(0)[None], spread, table)).tolist()  # NaN: in no layer
        if reset:
            for c in counted:
                c.reset()
        endings = ["", *(f"_p{p}" for p in PERCENTILES)]
        if per_layer:
            endings += [f"/{c.number}" for c in counted]
        return {
            name + ending: row[i]
            for ending, row in zip(endings, rows)
            for i, name in enumerate(NAMES)
            if name in self.names and not math.isnan(row[i])
        }


def _figures_of(sums: Tensor) -> Tensor:
    """Returns NAMES [6], computed from `_Counter.sums`; NaN where nothing was counted."""
    load, probabilities = sums[:-2].view(2, -1)
    mean, most = load.mean(), math.log(max(len(load), 2))
    dead = torch.where(mean > 0, (load == 0).sum(), mean / mean)
    return torch.stack(
        (
            load.max() / mean - 1,
            load.min() / mean,
            dead,
            _entropy(load) / most,
            _entropy(probabilities) / most,
            sums[-2] / sums[-1],
        )
    )


def _entropy(amounts: Tensor) -> Tensor:
    """Returns the entropy of amounts / their sum, in nats."""
    p = amounts / amounts.sum()
    terms: Tensor = torch.special.xlogy(p, p)
    return -terms.sum()


class _Counter:
    """A forward hook on one router."""

    def __init__(self, number: int, n: int, top_k: Optional[int], scores: Optional[str]):
        self.number, self.n, self.top_k = number, n, top_k
        self.scores = scores  # None: no distribution is wanted
        self.load: Optional[Tensor] = None  # int64 [n]
        self.probabilities: Optional[Tensor] = None  # f32 [n], summed over tokens
        self.margin: Optional[Tensor] = None  # f32 [2]: sum over tokens, number of tokens
        self.is_optional = False  # a figure that cannot be counted is left out, with a warning

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not module.training or self.n == 0:
            return
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._count(module, list(_tensors(output)))
        except ValueError as error:
            if not self.is_optional:
                raise
            self.n = 0
            warnings.warn(f"{error}; its statistics are left out", stacklevel=2)

    def sums(self) -> Tensor:
        """Returns f64 [2 n + 2]: loads, probabilities, margin and its tokens (0 where they are unknown)."""
        assert self.load is not None
        wide = torch.float32 if self.load.device.type == "mps" else torch.float64
        load = self.load.to(wide)
        known, margin = self.probabilities, self.margin
        return torch.cat(
            (
                load,
                torch.zeros_like(load) if known is None else known.to(wide),
                load.new_zeros(2) if margin is None else margin.to(wide),
            )
        )

    def reset(self) -> None:
        for counts in (self.load, self.probabilities, self.margin):
            if counts is not None:
                counts.zero_()

    def _count(self, module: nn.Module, tensors: List[Tensor]) -> None:
        chosen, logits = self._read(module, tensors)
        if self.load is None:
            self.load = torch.zeros(self.n, dtype=torch.int64, device=chosen.device)
        if chosen.shape[-1:] == (self.n,) and chosen.dtype == torch.bool:
            self.load += chosen.reshape(-1, self.n).sum(0)
        else:
            flat = chosen.reshape(-1).long()
            is_expert = (flat >= 0) & (flat < self.n)
            self.load.scatter_add_(0, flat.clamp(0, self.n - 1), is_expert.long())
        if logits is not None and self.scores is not None:
            if self.probabilities is None:
                self.probabilities = torch.zeros(self.n, dtype=torch.float32, device=logits.device)
            shares = self._distribution(logits.reshape(-1, self.n).float())
            self.probabilities += shares.sum(0)
            self._count_margin(shares, chosen.shape[-1] if chosen.dtype != torch.bool else 0, hasattr(module, BIAS))

    def _count_margin(self, shares: Tensor, K: int, is_biased: bool) -> None:
        """Adds the tokens' margins between the K-th and the next share. K is 0 where it is unknown."""
        if not 0 < K < self.n or is_biased:
            return
        largest = shares.topk(K + 1, dim=-1).values
        gap = (largest[:, K - 1] - largest[:, K]).sum()
        added = torch.stack((gap, gap.new_full((), len(shares))))
        self.margin = added if self.margin is None else self.margin + added

    def _distribution(self, logits: Tensor) -> Tensor:
        if self.scores == "softmax":
            return logits.softmax(-1)
        scores = logits.sigmoid()
        return scores / scores.sum(-1, keepdim=True)

    def _read(self, module: nn.Module, tensors: List[Tensor]) -> Tuple[Tensor, Optional[Tensor]]:
        """Returns the experts of each token (indices, or a mask in bool), and the logits if they are known to be
        logits."""
        of_all = [t for t in tensors if t.dim() > 1 and t.shape[-1] == self.n]
        floats = [t for t in of_all if t.is_floating_point()]  # PyTorch 2.6 cannot compile next(..., None)
        logits = floats[0] if floats else None
        for t in tensors:
            if t.is_floating_point():
                continue
            if t.dim() > 1 and t.shape[-1] == self.n and (t.dtype == torch.bool or self.n != self.top_k):
                return t.bool(), None
            is_one_each = logits is not None and t.numel() * self.n == logits.numel()  # top-1
            if t.dtype != torch.bool and (t.dim() > 1 or is_one_each):
                # The first of three tensors has logits; the other of two may have probabilities.
                return t, logits if len(tensors) > 2 and logits is tensors[0] else None
        if logits is None or self.top_k is None or hasattr(module, BIAS):
            raise ValueError(
                f"couplet: RouterStats: a {type(module).__name__} returns {[list(t.shape) for t in tensors]}; "
                f"must be indices [tokens, k] or a mask [tokens, {self.n}] of the chosen experts, or with top_k "
                f"logits [tokens, {self.n}]"
            )
        return logits.topk(self.top_k, dim=-1).indices, logits if len(tensors) == 1 else None


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list)):
        for one in output:
            yield from _tensors(one)
    elif isinstance(output, dict):
        for one in output.values():
            yield from _tensors(one)


def _scores_of(router: Any, scores: Optional[str], names: Sequence[str]) -> Optional[str]:
    if OF_DISTRIBUTION.isdisjoint(names):
        return None
    while hasattr(router, "base_layer"):  # inside an adapter
        router = router.base_layer
    return scores or ("sigmoid" if hasattr(router, BIAS) else "softmax")


def modules_of(model: nn.Module, name: str) -> List[nn.Module]:
    """Returns the model, and the modules that contain the parameter of this name, the innermost last."""
    modules: List[nn.Module] = [model]
    for part in name.split(".")[:-1]:
        inner = getattr(modules[-1], part, None)
        if not isinstance(inner, nn.Module):
            break
        modules.append(inner)
    return modules


def module_of_router(model: nn.Module, name: str) -> nn.Module:
    """Returns the module that routes with the weight of this name: the module that has it or the next outer module,
    whichever is of a class called a router or gate. Raises ValueError where experts are chosen outside of it."""
    modules = modules_of(model, name)
    named = [m for m in modules[-2:] if re.search(r"(?:Router|Gate|Gating)$", type(m).__name__)]
    if not named and hasattr(modules[-2:][0], BIAS):
        raise ValueError(
            f"couplet: {name}: its module returns logits, and experts are chosen outside of it "
            "with a correction bias: no router statistics; give router_stats(routers=...) modules "
            "that return the chosen experts"
        )
    return named[-1] if named else modules[-1]
