"""The moving means of the tokens that the layers read, for proxies on the side of the tokens (docs/method.md 3.15):
forward hooks add up x, |x|^2 and the number of tokens, and the end of an optimizer step makes means of the sums."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .figures._token_figures import module_that_reads, tokens_of
from .models._layers import Layer
from .ops import _proxy
from .ops._functional import refuse_mesh, whole_number
from .ops._response import widest
from .ops._tags import tags

DECAY = 0.99


# A graph has the sum as an operator, which sees at run time whether a backward pass computes the layer again.
@torch.library.custom_op("couplet::add_tokens", mutates_args=("sums",), **tags("cudagraph_unsafe"))
def _add_tokens(sums: Tensor, x: Tensor, mask: Optional[Tensor]) -> None:
    if torch._C._current_graph_task_id() != -1:
        return
    wide = torch.promote_types(x.dtype, torch.float32)
    if mask is not None:
        x = torch.where(mask.reshape(-1, 1).to(x.device) != 0, x, torch.zeros_like(x))
    count = sums.new_tensor(len(x)) if mask is None else (mask != 0).sum()
    square = torch.linalg.vector_norm(x, dtype=wide).to(sums.dtype).square()
    sums[:-2] += x.sum(0, dtype=wide)
    sums[-2] += square
    sums[-1] += count.to(sums.device)


@_add_tokens.register_fake
def _(sums: Tensor, x: Tensor, mask: Optional[Tensor]) -> None:
    return None


class _Reader:
    """A forward pre-hook on the module that is called with the tokens of a layer."""

    def __init__(self, means: TokenMeans, layer: Layer):
        self.means, self.layer = means, layer
        # The sums of x [d] and |x|^2 since the last step, and the number of tokens
        self.sums = torch.zeros(layer.d + 2, dtype=torch.float64, device="cpu")

    def __call__(self, module: nn.Module, inputs: Any, named: Any) -> None:
        if not module.training:
            return
        x = tokens_of(module, inputs, named, self.layer, "attach")
        if self.sums.device != x.device:
            self.sums = self.sums.to(x.device, widest(x.device))
        mask = self.means.mask
        is_of_tokens = mask is not None and mask.numel() == len(x)
        _add_tokens(self.sums, x, mask if is_of_tokens else None)
        self.means.is_counting = True


class TokenMeans:
    """m and v of each layer: moving means of x and |x|^2 over the tokens of training steps. Refers to no model, so that
    a copy of the model has its own."""

    def __init__(self, erc: Any, routers: Optional[Sequence[nn.Module]], group: Any):
        refuse_mesh(group, "tokens_group")
        self.group = group  # None: all processes
        self.steps = 0
        self.is_counting = False  # there are tokens since the last step
        self.mask: Optional[Tensor] = None  # the model's attention_mask
        self.readers = [_Reader(self, layer) for layer in erc.layers]
        self.means = [torch.zeros(layer.d + 1, dtype=torch.float64, device="cpu") for layer in erc.layers]  # m, v
        modules = _modules(erc, routers)
        hooks = [m.register_forward_pre_hook(r, with_kwargs=True) for m, r in zip(modules, self.readers)]
        hooks.append(erc.model.register_forward_pre_hook(self._note_mask, with_kwargs=True))
        for hook in hooks:
            weakref.finalize(erc, hook.remove)

    def _note_mask(self, module: nn.Module, inputs: Any, named: Mapping[str, Any]) -> None:
        mask = named.get("attention_mask")
        self.mask = mask if isinstance(mask, Tensor) and mask.dim() == 2 else None

    def of(self, router: Tensor, at: int) -> Tensor:
        """Returns the proxies P [n, d] of layer `at`, with a graph to its router."""
        mean = self.means[at].to(router.device, widest(router.device))
        variance = mean[-1] - mean[:-1].square().sum()
        return _proxy.rows(router, mean[:-1], variance.clamp(min=0).sqrt())

    @torch.no_grad()
    def end_step(self) -> None:
        """Updates the means by the tokens since the last update; a collective where there are any. A layer without
        tokens, or with numbers that are not finite, keeps its means."""
        if not self.is_counting:
            return
        self.is_counting, self.steps = False, self.steps + 1
        place, sizes = self.readers[0].sums, [len(one.sums) for one in self.readers]
        sums = torch.cat([one.sums.to(place) for one in self.readers])
        if self.group is not None or (dist.is_available() and dist.is_initialized()):
            dist.all_reduce(sums, group=self.group)
        weight = (1 - DECAY) / (1 - DECAY**self.steps)
        for at, (reader, whole) in enumerate(zip(self.readers, sums.split(sizes))):  # type: ignore[no-untyped-call, unused-ignore]
            is_right = whole.isfinite().all() & (whole[-1] > 0)
            now, old = whole[:-1] / whole[-1], self.means[at].to(place)
            self.means[at] = torch.where(is_right, old + weight * (now - old), old)
            reader.sums = torch.zeros_like(reader.sums)

    def state_dict(self) -> Dict[str, Any]:
        """Returns the number t of steps, m [d] and v [] of each layer."""
        return {
            "steps": self.steps,
            "mean": [one[:-1].clone() for one in self.means],
            "square": [one[-1].clone() for one in self.means],
        }

    def check_state(self, state: Any) -> Tuple[int, List[Tensor]]:
        """Returns the number of steps and the means of a state. Raises ValueError for the state of other layers."""
        want = [len(one) - 1 for one in self.means]
        if not isinstance(state, Mapping) or sorted(state) != ["mean", "square", "steps"]:
            raise ValueError(
                'couplet: the state has no means of tokens (steps, mean, square), which proxy="tokens" needs; attach '
                "without proxy= to load a state without them"
            )
        mean, square = list(state["mean"]), list(state["square"])
        if [tuple(one.shape) for one in mean] != [(d,) for d in want] or [one.numel() for one in square] != [1] * len(
            want
        ):
            raise ValueError(
                f"couplet: the state has means of tokens {[list(one.shape) for one in mean]}, must have one for each "
                f"layer: {[[d] for d in want]}"
            )
        wide = [torch.cat((m.detach().flatten(), v.detach().to(m).reshape(1))) for m, v in zip(mean, square)]
        return whole_number(state["steps"], "steps"), [one.to(widest(one.device)) for one in wide]

    def load(self, steps: int, means: List[Tensor]) -> None:
        self.steps, self.means, self.is_counting = steps, means, False
        for reader in self.readers:
            reader.sums = torch.zeros_like(reader.sums)


def _modules(erc: Any, routers: Optional[Sequence[nn.Module]]) -> List[nn.Module]:
    """Returns the module that is called with the tokens of each layer."""
    names, what = [layer.names[0] for layer in erc.layers], "a module for each layer that is called with its tokens"
    modules = [module_that_reads(erc.model, name, "attach") for name in names] if routers is None else list(routers)
    if len(modules) != len(names) or not all(isinstance(module, nn.Module) for module in modules):
        raise ValueError(f"couplet: routers must be a list of {len(names)} modules: {what}")
    if len({id(module) for module in modules}) < len(modules):
        raise ValueError(f"couplet: several layers have one router, whose tokens are those of all; give routers={what}")
    return modules
