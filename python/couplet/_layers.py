"""Where a model in memory keeps routers and gates: asked of the inspector's table of families
(src/study/families.def) through the C library, which has the rules and the sentences."""
from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor, nn

from . import _library

TYPE_NAMES = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16",
              "torch.float64": "F64"}


@dataclass
class Layer:
    """One Mixture-of-Experts layer: its parameters, and how router and gates lie in them."""
    number: int
    prefix: str                 # "model.layers.3."
    n: int
    d: int
    D: int
    K: int                      # 0: the config does not say
    router_parameter: Tensor
    gate_parameters: List[Tensor]
    router_transposed: bool
    columns: bool               # one tensor [n, d, A] (or [d, A] an expert) instead of [n, A, d]
    width: int                  # A
    gate_half: Optional[str]

    def router(self) -> Tensor:
        """R [n, d]: a view of the parameter."""
        router = whole(self.router_parameter)
        return (router.mT if self.router_transposed else router)[:self.n]

    def gates(self) -> Union[Tensor, List[Tensor]]:
        """[n, A, d], or n of [A, d]: views of the parameters."""
        many = [self._one(whole(t)) for t in self.gate_parameters]
        return many[0] if len(many) == 1 and many[0].dim() == 3 else many

    def _one(self, gate: Tensor) -> Tensor:
        if len(self.gate_parameters) == 1 and self.n > 1 and gate.dim() == 2:
            gate = gate.view(self.n, -1, gate.shape[-1])
        if gate.dim() == 3 and len(gate) > self.n:
            gate = gate[:self.n]  # the rest is of experts that compute nothing (LongCat-Flash)
        return gate.mT if self.columns else gate

    def parameters(self) -> List[Tensor]:
        return [self.router_parameter, *self.gate_parameters]


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


def _layer(entry: Dict[str, Any], parameters: Dict[str, Tensor]) -> Layer:
    half = None
    if entry["width"] != entry["D"]:
        half = "interleaved" if entry["interleaved"] else "first"
    return Layer(entry["layer"], entry["prefix"], entry["n"], entry["d"], entry["D"], entry["K"],
                 parameters[entry["router"]], [parameters[name] for name in entry["matrices"]],
                 entry["router_transposed"], entry["layout"] == "columns", entry["width"], half)


def find(model: nn.Module) -> List[Layer]:
    """The layers of a model that can be measured, by number. ValueError with the program's sentence
    for a model without experts, or one of which the table and its rules do not tell what is what."""
    parameters = dict(model.named_parameters())
    tensors = [(name, TYPE_NAMES.get(str(p.dtype), "OTHER"), list(p.shape))
               for name, p in parameters.items()]
    path = _name_of(model)
    found = _library.moe_map(path, _config_of(model), tensors)
    if found["guess"]:
        warnings.warn(f"couplet: {path}: {found['guess']}", stacklevel=3)
    layers = []
    for entry in found["layers"]:
        if entry["fault"]:
            raise ValueError(entry["fault"])
        reason = entry["skip"]
        if not entry["comparable"]:
            reason = "router and experts read differently normalised vectors: no M, no ERC"
        if reason:
            warnings.warn(f"couplet: {path}: {entry['prefix']}: left out: {reason}", stacklevel=3)
        else:
            layers.append(_layer(entry, parameters))
    if not layers:
        raise ValueError(f"{path}: no layer can be measured: {reason}")
    return layers
