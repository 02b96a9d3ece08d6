"""Where a model in memory keeps the routers and gates of its Mixture-of-Experts layers: parameters by name, looked
up whenever they are needed, since other code may replace them at any time (sharding, loading, adapters)."""
from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

# What other code puts between a module and its parameters: of the first the parameter is there as before,
# of the second (PEFT's LoRA, torch's parametrizations) what the model computes with is something else.
WRAPPED = re.compile(r"\b(?:_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|modules_to_save\.[^.]+)\.")
ADAPTED = re.compile(r"\b(?:base_layer|parametrizations)\.|\.original\d?$")
ADAPTERS = ("base_layer", "parametrizations")

Matrices = Union[Tensor, List[Tensor]]


@dataclass
class Layer:
    """One Mixture-of-Experts layer: the names of its parameters, and how router and gates lie in them."""
    number: int
    prefix: str                 # "model.layers.3."
    n: int                      # rows of the router that are experts
    here: int                   # experts whose gates this process has: n, or n / p under expert parallelism
    d: int
    D: int
    K: int                      # 0: unknown
    names: List[str]            # of the router, then of the gates
    shapes: List[torch.Size]    # theirs
    router_transposed: bool
    columns: bool               # one tensor [n, d, A] (or [d, A] an expert) instead of [n, A, d]
    gate_half: Optional[str]

    def router(self, parameters: List[Tensor]) -> Tensor:
        """R [n, d]: a view of the parameter. parameters: those of `names`."""
        router = whole(parameters[0])
        return (router.mT if self.router_transposed else router)[:self.n]

    def gates(self, parameters: List[Tensor]) -> Matrices:
        """[here, A, d], or a list of [A, d]: views of the parameters."""
        many = [self._one(whole(t)) for t in parameters[1:]]
        return many[0] if len(many) == 1 and many[0].dim() == 3 else many

    def _one(self, gate: Tensor) -> Tensor:
        if len(self.names) == 2 and self.here > 1 and gate.dim() == 2:
            gate = gate.view(self.here, -1, gate.shape[-1])
        if gate.dim() == 3 and len(gate) > self.here:
            gate = gate[:self.here]  # the rest is of experts that compute nothing (LongCat-Flash)
        return gate.mT if self.columns else gate


# ---- the parameters as they are now ----

def follow(model: nn.Module, name: str) -> Optional[Tensor]:
    """The parameter that has this name now, also through wrappers that forward attributes; None: there is
    none, or it is adapted."""
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
    """What torch.compile and DistributedDataParallel have wrapped."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            return model


# ---- layers that the caller names ----

Named = Union[str, nn.Parameter]
Pair = Tuple[Named, Union[Named, Sequence[Named]]]
Pairs = Union[Sequence[Pair], Callable[[nn.Module], Sequence[Pair]]]


def plain_name(name: str) -> str:
    """A name as it would be without wrappers and adapters."""
    return ADAPTED.sub("", WRAPPED.sub("", name))


class Given:
    """Finds the layers of `couplet.attach`: pairs (router, gates) of parameters or names, or a callable that
    returns such pairs of the model. Parameters are kept as names."""

    def __init__(self, layers: Pairs, gate_half: Optional[str], transposed: bool, processes: Optional[int]):
        if gate_half not in (None, "first", "second", "interleaved"):
            raise ValueError(f"couplet: gate_half is {gate_half!r}, must be first, second, interleaved or None")
        self.layers, self.gate_half, self.transposed = layers, gate_half, transposed
        self.processes = processes  # of the group among which the experts are spread; None: all are here

    def __call__(self, model: nn.Module) -> List[Layer]:
        pairs = self.layers(model) if callable(self.layers) else self.layers
        names = _Names(model)
        named = [names.of_layer(f"layers[{i}]", pair) for i, pair in enumerate(_checked(pairs))]
        if not callable(self.layers):
            self.layers = named
        return [self._layer(model, i, router, gates) for i, (router, gates) in enumerate(named)]

    def _layer(self, model: nn.Module, number: int, router: str, gates: List[str]) -> Layer:
        where, names = f"layers[{number}]", [router, *gates]
        shapes = [_parameter(model, name, where).shape for name in names]
        n, d = _router_shape(shapes[0], where, router)
        here = n if self.processes is None else self._here(where, n, shapes[1:])
        rows = _rows(where, gates, shapes[1:], here, d, self.transposed)
        return Layer(number, _common_prefix(names), n, here, d, rows // (2 if self.gate_half else 1), 0,
                     names, shapes, False, self.transposed, self.gate_half)

    def _here(self, where: str, n: int, shapes: List[torch.Size]) -> int:
        """n / p experts; also of a tensor [n, A, d] that is spread later, or a DTensor."""
        assert self.processes is not None
        if n % self.processes:
            raise ValueError(f"couplet: {where}: the router has {n} rows, which {self.processes} processes cannot "
                             "share: every process must have the same number of experts")
        return n // self.processes


class _Names:
    """Names of a model's parameters, without what wraps them; each checked to be of one layer alone."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.by_id = {id(p): plain_name(name) for name, p in reversed(
            list(model.named_parameters(remove_duplicate=False)))}
        self.used: Dict[str, str] = {}

    def of_layer(self, where: str, pair: Any) -> Tuple[str, List[str]]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"couplet: {where} is {_described(pair)}, must be a pair (router, gates)")
        router, gates = pair
        if isinstance(gates, (str, Tensor)):
            return self.one(f"{where}: the router", router), [self.one(f"{where}: the gates", gates)]
        if isinstance(gates, nn.Module) and not isinstance(gates, nn.ParameterList) or not hasattr(gates, "__iter__"):
            raise TypeError(f"couplet: {where}: the gates are {_described(gates)}, must be a parameter, its name, "
                            "or a list of one for each expert")
        return (self.one(f"{where}: the router", router),
                [self.one(f"{where}: gate {i}", gate) for i, gate in enumerate(gates)])

    def one(self, what: str, given: Any) -> str:
        if isinstance(given, str):
            name = self._by_name(what, given)
        elif isinstance(given, Tensor):
            name = self.by_id.get(id(given), "")
            if not name:
                raise ValueError(f"couplet: {what}: a tensor {list(given.shape)} that is no parameter of the "
                                 "model; give the Parameter itself, no view of it, or its name in "
                                 "model.named_parameters()")
        else:
            raise TypeError(f"couplet: {what} is {_described(given)}, must be a Parameter of the model or its name")
        if name in self.used:
            raise ValueError(f"couplet: {what} is {name}, which {self.used[name]} is too")
        self.used[name] = what
        return name

    def _by_name(self, what: str, given: str) -> str:
        plain = plain_name(given)
        for name in (plain, plain.removeprefix("module.")):  # of DistributedDataParallel
            if follow(self.model, name) is not None:
                return name
        near = difflib.get_close_matches(plain, self.by_id.values(), 1)
        raise ValueError(f"couplet: {what}: the model has no parameter named {given!r}"
                         + (f"; one is named {near[0]!r}" if near else ""))


def _checked(pairs: Any) -> List[Any]:
    if isinstance(pairs, (str, Tensor, nn.Module)) or not hasattr(pairs, "__iter__"):
        raise TypeError(f"couplet: layers is {_described(pairs)}, must be a list of pairs (router, gates), or a "
                        "callable that returns one of the model")
    listed = list(pairs)
    if not listed:
        raise ValueError("couplet: layers is empty; give (router, gates) of every Mixture-of-Experts layer")
    return listed


def _described(value: Any) -> str:
    return f"{value!r}" if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


def _parameter(model: nn.Module, name: str, where: str) -> Tensor:
    found = follow(model, name)
    if found is None:
        raise ValueError(f"couplet: {where}: the model has no parameter named {name!r} any more")
    return found


def _router_shape(shape: torch.Size, where: str, name: str) -> Tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"couplet: {where}: the router {name} is {list(shape)}, must be [n, d]: a row for each "
                         "expert")
    return shape[0], shape[1]


def _rows(where: str, names: List[str], shapes: List[torch.Size], here: int, d: int, transposed: bool) -> int:
    """A of the gates [here, A, d]. ValueError for other shapes; a tensor of all n experts that is spread
    over processes later is measured then."""
    if len(names) == 1 and len(shapes[0]) == 2 and shapes[0][0] % here == 0 and here > 1:
        shapes = [torch.Size((here, shapes[0][0] // here, shapes[0][1]))]  # all experts' rows in one matrix
    alone = len(names) == 1 and len(shapes[0]) == 3
    ends = shapes[0][-2:]
    rows, width = (ends[1], ends[0]) if transposed else (ends[0], ends[1])
    want = "[d, D]" if transposed else "[D, d]"
    for name, shape in zip(names, shapes):
        if shape != shapes[0] or len(shape) != (3 if alone else 2):
            raise ValueError(f"couplet: {where}: {name} is {list(shape)} beside {list(shapes[0])}; must be one tensor "
                             f"of all experts' gates or a list of equal {want}")
    if width != d:
        turned = "; transposed=True is for gates [n, d, D]" if rows == d and not transposed else ""
        raise ValueError(f"couplet: {where}: {names[0]} is {list(shapes[0])}, whose experts must be {want} with d = {d} "
                         f"as the router has it{turned}")
    if not alone and len(names) != here:
        raise ValueError(f"couplet: {where}: {len(names)} gates, but {here} experts here")
    if alone and shapes[0][0] != here:
        raise ValueError(f"couplet: {where}: {names[0]} is {list(shapes[0])}, but there are {here} experts here")
    return rows


def _common_prefix(names: List[str]) -> str:
    """The path that all names begin with: "layers.3.moe."."""
    parts = [name.split(".")[:-1] for name in (names[0], names[-1])]
    shared = []
    for a, b in zip(*parts):
        if a != b:
            break
        shared.append(a)
    return "".join(f"{part}." for part in shared)
