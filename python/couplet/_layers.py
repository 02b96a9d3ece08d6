"""Where a model in memory keeps routers and gates, as parameters of its modules; _moe_map.py has the rules."""
from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor, nn

from ._door import _level_of_caller
from ._moe_map import moe_map

TYPE_NAMES = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16",
              "torch.float64": "F64"}


# What other code puts between a module and its parameters: of the first the parameter is there as before,
# of the second (PEFT's LoRA, torch's parametrizations) what the model computes with is something else.
WRAPPED = re.compile(r"\b(?:_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|modules_to_save\.[^.]+)\.")
ADAPTED = re.compile(r"\b(?:base_layer|parametrizations)\.|\.original\d?$")
ADAPTERS = ("base_layer", "parametrizations")


@dataclass
class Layer:
    """One Mixture-of-Experts layer: the names of its parameters, and how router and gates lie in them. A
    parameter is looked up whenever it is needed: other code may replace it at any time."""
    number: int
    prefix: str                 # "model.layers.3."
    n: int
    d: int
    D: int
    K: int                      # 0: the config does not say
    names: List[str]            # of the router, then of the gates
    shapes: List[torch.Size]    # theirs
    router_transposed: bool
    columns: bool               # one tensor [n, d, A] (or [d, A] an expert) instead of [n, A, d]
    width: int                  # A
    gate_half: Optional[str]

    def router(self, parameters: List[Tensor]) -> Tensor:
        """R [n, d]: a view of the parameter. parameters: those of `names`."""
        router = whole(parameters[0])
        return (router.mT if self.router_transposed else router)[:self.n]

    def gates(self, parameters: List[Tensor]) -> Union[Tensor, List[Tensor]]:
        """[n, A, d], or n of [A, d]: views of the parameters."""
        many = [self._one(whole(t)) for t in parameters[1:]]
        return many[0] if len(many) == 1 and many[0].dim() == 3 else many

    def _one(self, gate: Tensor) -> Tensor:
        if len(self.names) == 2 and self.n > 1 and gate.dim() == 2:
            gate = gate.view(self.n, -1, gate.shape[-1])
        if gate.dim() == 3 and len(gate) > self.n:
            gate = gate[:self.n]  # the rest is of experts that compute nothing (LongCat-Flash)
        return gate.mT if self.columns else gate


def follow(model: nn.Module, name: str) -> Optional[Tensor]:
    """The parameter that has this name now, through modules that hand on what they wrap; None: there is
    none, or an adapter stands before it."""
    *path, last = name.split(".")
    module: Any = model
    for part in path:
        inner = module._modules.get(part)
        module = inner if inner is not None else getattr(module, part, None)
        if not isinstance(module, nn.Module):
            return None
    if any(adapter in module._modules for adapter in ADAPTERS):
        return None
    found = module._parameters.get(last)
    found = found if found is not None else getattr(module, last, None)
    return found if isinstance(found, nn.Parameter) else None


def _shards(model: nn.Module) -> Dict[int, Tensor]:
    """Between forward and backward pass modules under FSDP2 may show whole parameters, which no optimizer
    changes: id of such a one -> the sharded one."""
    states = [m._get_fsdp_state() for m in model.modules() if hasattr(m, "_get_fsdp_state")]
    groups = [g for s in states for g in getattr(s, "_fsdp_param_groups", [getattr(s, "_fsdp_param_group", None)])]
    return {id(p._unsharded_param): p.sharded_param for g in groups if g is not None
            for p in g.fsdp_params if hasattr(p, "_unsharded_param")}


@torch.compiler.disable
def parameters(model: nn.Module, layers: List[Layer]) -> Optional[List[List[Tensor]]]:
    """Router and gates of each layer as the model has them now; None: not under these names and shapes.
    ValueError where they have no numbers yet."""
    found = [[follow(model, name) for name in layer.names] for layer in layers]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        shards = _shards(model)
        found = [[shards.get(id(p), p) for p in many] for many in found]
    for layer, many in zip(layers, found):
        for name, shape, p in zip(layer.names, layer.shapes, many):
            if p is None or p.shape != shape:
                return None
            if p.device.type == "meta":
                raise ValueError(f"couplet: {name} is on the device meta and has no numbers yet; to_empty() or "
                                 "weights that are loaded come before the loss")
    return found


def whole(parameter: Tensor) -> Tensor:
    """All of it, of a sharded one (DTensor); gradients go back to the shards."""
    return parameter.full_tensor() if is_sharded(parameter) else parameter


def is_sharded(parameter: Tensor) -> bool:
    """A DTensor: every process has a part."""
    return hasattr(parameter, "full_tensor")


def some_bytes(parameter: Tensor) -> Tensor:
    """A copy of the first numbers that this process has, to see by whether they change."""
    here = parameter.to_local() if is_sharded(parameter) else parameter
    return here.detach().flatten()[:1 << 16].clone().view(torch.uint8)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model that has the config, inside what torch.compile and DistributedDataParallel make of it."""
    while not hasattr(model, "config") or hasattr(model, "_orig_mod"):
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def _config_of(model: nn.Module) -> Dict[str, Any]:
    config = getattr(model, "config", None)
    config = config.to_dict() if hasattr(config, "to_dict") else dict(config or {})
    if "transformers_version" in config:  # that of the file; the layout in memory is this one's
        import transformers
        config["transformers_version"] = transformers.__version__
    return config


def _name_of(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__


def _layer(entry: Dict[str, Any], shapes: Dict[str, torch.Size]) -> Layer:
    half = None
    if entry["width"] != entry["D"]:
        half = "interleaved" if entry["interleaved"] else "first"
    names = [entry["router"], *entry["matrices"]]
    return Layer(entry["layer"], entry["prefix"], entry["n"], entry["d"], entry["D"], entry["K"],
                 names, [shapes[name] for name in names], entry["router_transposed"],
                 entry["layout"] == "columns", entry["width"], half)


def find(model: nn.Module) -> List[Layer]:
    """The layers of a model that can be measured, by number. ValueError with the program's sentence
    for a model without experts, or one of which the table and its rules do not tell what is what."""
    plain = {WRAPPED.sub("", name): p for name, p in model.named_parameters() if ".original_module." not in name}
    adapted = {ADAPTED.sub("", name) for name in plain if ADAPTED.search(name)}
    named = {ADAPTED.sub("", name): p for name, p in plain.items()}
    tensors = [(name, TYPE_NAMES.get(str(p.dtype), "OTHER"), list(p.shape)) for name, p in named.items()]
    shapes = {name: p.shape for name, p in named.items()}
    path = _name_of(model)
    found = moe_map(path, _config_of(model), tensors)
    if found["guess"]:
        warnings.warn(f"couplet: {path}: {found['guess']}", stacklevel=_level_of_caller())
    layers = []
    for entry in found["layers"]:
        if entry["fault"]:
            raise ValueError(entry["fault"])
        reason = entry["skip"]
        if not entry["comparable"]:
            reason = "router and experts read differently normalised vectors: no M, no ERC"
        if reason:
            warnings.warn(f"couplet: {path}: {entry['prefix']}: left out: {reason}",
                          stacklevel=_level_of_caller())
        else:
            layers.append(_layer(entry, shapes))
    if not layers:
        raise ValueError(f"{path}: no layer can be measured: {reason}")
    for name in (name for layer in layers for name in layer.names if name in adapted):
        raise ValueError(f"couplet: {path}: {name} is adapted (LoRA or another parametrization): the weight "
                         "that the model computes with is no parameter; train it whole, as with PEFT's "
                         "modules_to_save, or merge the adapter")
    return layers
