"""The present value of a router or gate: the parameter of a name, or the tensor that an adapter (PEFT's LoRA, torch's
parametrizations) makes of it, whole or sharded (DTensor)."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, TypeVar, cast

import torch
from torch import Tensor, nn

# Names that other code puts between a module and its parameters. Behind a name of the first kind the parameter is
# unchanged. With the second kind (PEFT's LoRA, torch's parametrizations) the model computes with another tensor.
WRAPPED = re.compile(
    r"\b(?:_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|"
    r"modules_to_save\.[^.]+)\."
)
ADAPTED = re.compile(r"\b(?:base_layer|parametrizations)\.|\.original\d?$")

Function = TypeVar("Function", bound=Callable[..., Any])


def outside_graphs(function: Function) -> Function:
    """Returns torch.compiler.disable, typed, with advice for the user if this PyTorch shows it."""
    disable: Any = torch.compiler.disable
    has_reason = "reason" in inspect.signature(disable).parameters
    reason = {"reason": f"couplet: call {function.__qualname__} outside of what is compiled"} if has_reason else {}
    return cast(Function, disable(function, **reason))


def plain_name(name: str) -> str:
    """Returns a name without the parts that wrappers and adapters add."""
    return ADAPTED.sub("", WRAPPED.sub("", name))


@dataclass
class Weight:
    parts: List[Tensor]  # the parameters from which the weight is computed, the named one first
    value: Callable[[], Tensor]  # returns the tensor that the model computes with
    is_computed: bool = False  # computed from `parts`, not a parameter itself

    @property
    def parameter(self) -> Tensor:
        return self.parts[0]

    @property
    def shape(self) -> torch.Size:
        if self.is_computed:
            with torch.no_grad():
                return self.value().shape
        return self.parameter.shape


def as_weight(tensor: Tensor) -> Weight:
    return Weight([tensor], lambda: tensor)


def follow(model: nn.Module, name: str, shards: Optional[Dict[int, Tensor]] = None) -> Optional[Weight]:
    """Returns the weight that has this name now, also through wrappers that forward attributes; None if there is no
    such weight. shards: see `shards_of`."""
    *path, last = name.split(".")
    module: Any = model
    for part in path:
        while part not in module._modules and "base_layer" in module._modules:
            module = module._modules["base_layer"]
        inner = module._modules.get(part)
        module = inner if inner is not None else getattr(module, part, None)
        if not isinstance(module, nn.Module):
            return None
    return _weight_of(module, last, shards or {})


def _weight_of(module: Any, name: str, shards: Dict[int, Tensor]) -> Optional[Weight]:
    if "base_layer" in module._modules:
        base = _weight_of(module.base_layer, name, shards)
        return None if base is None else _adapted(module, name, base, shards)
    if "parametrizations" in module._modules and name in module.parametrizations:
        parts = [shards.get(id(p), p) for p in module.parametrizations[name].parameters()]
        return Weight(parts, lambda: cast(Tensor, getattr(module, name)), True)
    found = module._parameters.get(name)
    if isinstance(found, Tensor) and not isinstance(found, nn.Parameter):
        raise ValueError(
            f"couplet: {name} of a {type(module).__name__} is a plain tensor now, as inside of "
            "torch.func.functional_call, and no Parameter, whose optimizer steps are followed; call erc outside "
            "of it, or couplet.erc_loss with the tensors"
        )
    found = found if found is not None else getattr(module, name, None)
    return as_weight(shards.get(id(found), found)) if isinstance(found, nn.Parameter) else None


# ---- PEFT ----


def _adapted(module: Any, name: str, base: Weight, shards: Dict[int, Tensor]) -> Weight:
    """Returns the weight with the changes of the adapter `module`, which wraps the layer with weight `base`. Names of
    PEFT's LoraLayer: its ParamWrapper adapts one parameter of a module, its other layers the `weight`."""
    if getattr(module, "parameter_name", "weight") != name:
        return base
    if not hasattr(module, "get_delta_weight") or not hasattr(module, "lora_A"):
        raise ValueError(
            f"couplet: {name} of a {type(module.get_base_layer()).__name__} is adapted by a "
            f"{type(module).__module__}.{type(module).__name__}; of adapters LoRA and DoRA are "
            "supported"
        )
    merged = list(module.merged_adapters)  # the base weight includes their changes
    if module.disable_adapters:
        adapters, sign = merged, -1  # the next forward pass removes them from the base weight
    else:
        adapters, sign = [] if merged else [a for a in module.active_adapters if a in module.lora_A], 1
    if not adapters:
        return base
    parts = [
        shards.get(id(p), p)
        for part, p in module.named_parameters()
        if not part.startswith("base_layer.") and not set(adapters).isdisjoint(part.split("."))
    ]

    def value() -> Tensor:
        W = base.value()
        changes = [_change(module, adapter, W) for adapter in adapters]
        return W + sum(changes[1:], changes[0]).to(W.dtype) * sign

    return Weight([*base.parts, *parts], value, True)


def _change(module: Any, adapter: str, W: Tensor) -> Tensor:
    """Returns the change that an adapter adds to the weight W of the base layer."""
    delta: Tensor = module.get_delta_weight(adapter)
    variant = getattr(module, "lora_variant", {})
    if adapter not in variant:
        return delta
    kind = type(variant[adapter]).__name__
    if kind != "DoraLinearVariant" or module.merged or module.fan_in_fan_out:
        raise ValueError(
            f"couplet: the adapter {adapter!r} on a router or gate is a {kind}; LoRA is supported, "
            "and DoRA that is not merged"
        )
    moved = W + delta
    norm = torch.linalg.vector_norm(moved.detach(), dim=1, keepdim=True)  # a constant (DoRA, section 4.3)
    factor: Tensor = module.lora_magnitude_vector[adapter].weight.view(-1, 1) / norm
    return factor * moved - W


# ---- shards ----


def is_sharded(parameter: Tensor) -> bool:
    """Returns whether the parameter is a DTensor: every process has a part."""
    return hasattr(parameter, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """Returns the whole of a tensor that may be sharded (DTensor). Gradients reach the shards."""
    return cast(Tensor, tensor.full_tensor()) if is_sharded(tensor) else cast(Tensor, tensor)


def of_group(tensor: Any, group: Any) -> Tensor:
    """Returns the experts of this process from a DTensor that is spread over the processes of `group` (expert
    parallelism) and perhaps over others (FSDP2). It is gathered over the others only."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return cast(Tensor, tensor)
    from torch.distributed import get_process_group_ranks

    try:
        from torch.distributed.tensor import Replicate, Shard
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import Replicate, Shard  # type: ignore[attr-defined, no-redef, unused-ignore]
    ranks = get_process_group_ranks(group)
    spread = [i for i in range(mesh.ndim) if get_process_group_ranks(mesh.get_group(i)) == ranks]
    if not spread or not tensor.placements[spread[-1]].is_shard(0):
        return whole(tensor)
    placements = [Shard(0) if i == spread[-1] else Replicate() for i in range(mesh.ndim)]
    return cast(Tensor, tensor.redistribute(placements=placements).to_local())


def _groups_of(state: Any) -> List[Any]:
    """Returns FSDP2's groups of parameters: several for a module in newer releases of PyTorch, or one."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [getattr(state, "_fsdp_param_group", None)]


def shards_of(model: nn.Module) -> Dict[int, Tensor]:
    """Returns id of a whole parameter -> its sharded parameter. Between forward and backward pass modules under FSDP2
    may show whole parameters, which no optimizer changes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    states = [cast(Any, m)._get_fsdp_state() for m in model.modules() if hasattr(m, "_get_fsdp_state")]
    groups = [g for state in states for g in _groups_of(state)]
    return {
        id(p._unsharded_param): p.sharded_param
        for g in groups
        if g is not None
        for p in g.fsdp_params
        if hasattr(p, "_unsharded_param")
    }


def some_bytes(parameter: Any) -> Tensor:
    """Returns a copy of the first numbers of this process, which shows later whether they have changed."""
    here: Tensor = parameter.to_local() if is_sharded(parameter) else parameter
    return here.detach().flatten()[: 1 << 16].clone().view(torch.uint8)
