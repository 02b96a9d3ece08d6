"""The routers and gates of the Mixture-of-Experts layers of a model in memory: parameters by name, looked up whenever
they are needed, since other code may replace them at any time (sharding, loading, adapters)."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union, cast

import torch
from torch import Tensor, nn

from ..ops._checks import check_dtype, described
from ..ops._latent import Latent, check_eps
from ._weights import Weight, follow, is_sharded, of_group, outside_graphs, plain_name, shards_of, whole

Matrices = Union[Tensor, List[Tensor]]


@dataclass
class Layer:
    """One Mixture-of-Experts layer: the names of its parameters, and the layout of router and gates in them."""

    number: int
    prefix: str  # "model.layers.3."
    n: int  # rows of the router that are experts
    here: int  # experts whose gates this process has: n, or n / p under expert parallelism
    d: int
    D: int
    K: int  # 0: unknown
    names: List[str]  # the router's name, then the gates' names
    shapes: List[torch.Size]  # shapes of the tensors in `all_names`
    router_transposed: bool
    columns: bool  # the tensor is [n, d, A] (or [d, A] an expert) instead of [n, A, d]
    gate_half: Optional[str]
    group: Any = None  # process group of expert parallelism
    down: Optional[str] = None  # latent experts: the name of the projection W_l [l, d]; the gates are [D, l]
    norm: Optional[str] = None  # the name of the weight [l] of a norm on W_l x
    latent_eps: float = 0.0  # the norm's
    zero_centred: bool = False  # the norm multiplies by 1 + its weight

    @property
    def all_names(self) -> List[str]:
        return [*self.names, *(name for name in (self.down, self.norm) if name is not None)]

    def latent(self, weights: List[Weight]) -> Optional[Latent]:
        """Returns the projection of latent experts."""
        found = [whole(weight.value()) for weight in weights[len(self.names) :]]
        if self.zero_centred:
            found[1] = 1 + found[1]
        return Latent(found[0], found[1] if self.norm else None, self.latent_eps) if found else None

    def router(self, weights: List[Weight]) -> Tensor:
        """Returns R [n, d], a view of the weight. weights: the weights of `all_names`."""
        router = whole(weights[0].value())
        return (router.mT if self.router_transposed else router)[: self.n]

    def gates(self, weights: List[Weight]) -> Matrices:
        """Returns the gates as [here, A, d] or a list of [A, d], views of the weights."""
        many = [self._one(self._here(weight.value())) for weight in weights[1 : len(self.names)]]
        return many[0] if len(many) == 1 and many[0].dim() == 3 else many

    def _here(self, gate: Tensor) -> Tensor:
        if self.group is None:
            return whole(gate)
        found = of_group(gate, self.group)
        if found.dim() == 3 and len(found) != self.here:
            raise ValueError(
                f"couplet: {self.names[1]} has {len(found)} experts in this process, must have "
                f"{self.here}: the router's {self.n} rows, shared by the processes of the group"
            )
        return found

    def _one(self, gate: Tensor) -> Tensor:
        if len(self.names) == 2 and self.here > 1 and gate.dim() == 2:
            gate = gate.view(self.here, -1, gate.shape[-1])
        if self.group is None and gate.dim() == 3 and len(gate) > self.here:
            gate = gate[: self.here]  # the other rows belong to experts that compute nothing (LongCat-Flash)
        return gate.mT if self.columns else gate


# ---- the present weights ----


@outside_graphs
def weights(model: nn.Module, layers: List[Layer]) -> Optional[List[List[Weight]]]:
    """Returns the present weights of each layer of the model, or None if a name or shape has changed. Raises ValueError
    for weights that have no numbers yet."""
    shards = shards_of(model)
    result = []
    for layer in layers:
        found = [follow(model, name, shards) for name in layer.all_names]
        for name, shape, weight in zip_longest(layer.all_names, layer.shapes, found):
            if weight is None or shape and not weight.is_computed and weight.shape != shape:
                return None
            if weight.parameter.device.type == "meta":
                raise ValueError(
                    f"couplet: {name} is on the device meta and has no numbers yet; to_empty() or "
                    "weights that are loaded come before the loss"
                )
        result.append([weight for weight in found if weight is not None])
    _share_routers(result)
    return result


def _share_routers(many: List[List[Weight]]) -> None:
    """Lets a sharded router of several layers be gathered once, with one graph for all of them. The backward pass of
    the gathering needs no saved tensor, so that each layer may have its own."""
    uses = Counter(id(weights[0].parameter) for weights in many)
    shared: Dict[int, Weight] = {}
    for weights in many:
        key, router = id(weights[0].parameter), weights[0]
        if uses[key] > 1 and is_sharded(router.parameter) and not router.is_computed:
            weights[0] = shared.setdefault(key, Weight(router.parts, _gathered_once(router)))


def _gathered_once(weight: Weight) -> Callable[[], Tensor]:
    @functools.cache
    def value() -> Tensor:
        with torch.enable_grad():
            return whole(weight.value())

    return value


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the module inside the wrappers of torch.compile, DistributedDataParallel and DataParallel."""
    inner: Any = model
    while True:
        if hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif isinstance(inner, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            inner = inner.module
        else:
            return cast(nn.Module, inner)


# ---- layers that the caller names ----

Named = Union[str, nn.Parameter]
Gates = Union[Named, Sequence[Named]]
Entry = Union[Tuple[Named, Gates], Tuple[Named, Gates, Named], Tuple[Named, Gates, Named, Named]]
Entries = Union[Sequence[Entry], Callable[[nn.Module], Sequence[Entry]]]


class Given:
    """Finds the layers of `couplet.attach`: (router, gates), (router, gates, P) or (router, gates, P, g), each of
    parameters or names, or a callable that returns such a list of the model. Parameters are kept as names."""

    def __init__(
        self,
        layers: Entries,
        gate_half: Optional[str],
        transposed: bool,
        latent_eps: Optional[float],
        group: Any,
        tensor_group: Any,
    ):
        if gate_half not in (None, "none", "first", "second", "interleaved"):
            raise ValueError(f"couplet: gate_half is {gate_half!r}, must be first, second, interleaved or none")
        self.layers, self.transposed = layers, transposed
        self.gate_half = None if gate_half == "none" else gate_half
        self.is_told = gate_half is not None
        self.group = group
        self.latent_eps = latent_eps
        self.named: List[Any] = []  # the layers, as names
        # The number of processes among which the experts are spread. 1: all experts are in this process.
        self.processes: int = 1 if group is None else torch.distributed.get_world_size(group)
        self.parts: int = 1 if tensor_group is None else torch.distributed.get_world_size(tensor_group)

    def __call__(self, model: nn.Module) -> List[Layer]:
        entries = self.layers(model) if callable(self.layers) else self.layers
        names = _Names(model)
        self.named = [names.of_layer(f"layers[{i}]", entry) for i, entry in enumerate(_checked(entries))]
        if not callable(self.layers):
            self.layers = self.named
        if self.latent_eps is not None and all(len(entry) < 4 for entry in self.named):
            raise ValueError("couplet: latent_eps is given, and no layer has a norm: (router, gates, P, g)")
        return [self._layer(model, i, *entry) for i, entry in enumerate(self.named)]

    def __getstate__(self) -> Dict[str, Any]:
        """Returns the state of a copy. A copy has names in place of a callable: the callable may belong to the copied
        model, or may not be known to pickle."""
        return {**self.__dict__, "layers": self.named}

    def _layer(
        self,
        model: nn.Module,
        number: int,
        router: str,
        gates: List[str],
        down: Optional[str] = None,
        norm: Optional[str] = None,
    ) -> Layer:
        where, names = f"layers[{number}]", [router, *gates]
        more = [name for name in (down, norm) if name is not None]
        shapes = [_shape(model, name, where) for name in (*names, *more)]
        n, d = _router_shape(shapes[0], where, router)
        reads = _Reads(d, "d", "the router has it")
        if down is not None:
            reads = _latent_width(where, more, shapes[len(names) :], d)
        if norm is not None and self.latent_eps is None:
            raise ValueError(
                f"couplet: {where}: the norm {norm} needs latent_eps=, the number that it adds below its root"
            )
        if n % self.processes:
            raise ValueError(
                f"couplet: {where}: the router has {n} rows, which {self.processes} processes "
                "cannot share: every process must have the same number of experts"
            )
        here = n // self.processes
        rows = _rows(where, gates, shapes[1 : len(names)], here, n, reads, self.transposed)
        if not self.is_told:
            _refuse_fused(model, where, gates[0], rows * self.parts)
        return Layer(
            number,
            _common_prefix(names),
            n,
            here,
            d,
            rows // (2 if self.gate_half else 1),
            0,
            names,
            shapes,
            False,
            self.transposed,
            self.gate_half,
            self.group,
            down,
            norm,
            check_eps(self.latent_eps or 0.0),
        )


class _Names:
    """Names of a model's parameters, without wrappers. Each but a router is checked to belong to one layer only."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.by_id = {
            id(p): plain_name(name) for name, p in reversed(list(model.named_parameters(remove_duplicate=False)))
        }
        self.used: Dict[Union[int, str], str] = {}

    def of_layer(self, where: str, entry: Any) -> Tuple[Any, ...]:
        if not isinstance(entry, (tuple, list)) or not 2 <= len(entry) <= 4:
            raise TypeError(
                f"couplet: {where} is {described(entry)}, must be a pair (router, gates), or (router, gates, P) or "
                "(router, gates, P, g) of latent experts"
            )
        router, gates, *more = entry
        is_module = isinstance(gates, nn.Module) and not isinstance(gates, nn.ParameterList)
        if is_module or not hasattr(gates, "__iter__"):
            raise TypeError(
                f"couplet: {where}: the gates are {described(gates)}, must be a parameter, its "
                "name, or a list of one for each expert"
            )
        many = (
            {"the gates": gates} if isinstance(gates, (str, Tensor)) else {f"gate {i}": g for i, g in enumerate(gates)}
        )
        return (
            self.one(f"{where}: the router", router),
            [self.one(f"{where}: {what}", gate) for what, gate in many.items()],
            *(self.one(f"{where}: the {what}", given) for what, given in zip(("projection P", "norm g"), more)),
        )

    def one(self, what: str, given: Any) -> str:
        if isinstance(given, str):
            name = self._by_name(what, given)
        elif isinstance(given, Tensor):
            name = self.by_id.get(id(given), "")
            if not name:
                raise ValueError(
                    f"couplet: {what}: a tensor {list(given.shape)} that is no parameter of the "
                    "model; give the Parameter itself, no view of it, or its name in "
                    "model.named_parameters()"
                )
        else:
            raise TypeError(f"couplet: {what} is {described(given)}, must be a Parameter of the model or its name")
        found = follow(self.model, name)
        used = id(found.parameter) if found is not None else name  # tied parameters have several names
        if used in self.used and not all(which.endswith("the router") for which in (what, self.used[used])):
            raise ValueError(f"couplet: {what} is {name}, which {self.used[used]} is too")
        self.used[used] = what
        return name

    def _by_name(self, what: str, given: str) -> str:
        plain = plain_name(given)
        for name in (plain, plain.removeprefix("module.")):  # DistributedDataParallel adds the prefix
            if follow(self.model, name) is not None:
                return name
        near = difflib.get_close_matches(plain, self.by_id.values(), 1)
        raise ValueError(
            f"couplet: {what}: the model has no parameter named {given!r}"
            + (f"; one is named {near[0]!r}" if near else "")
        )


def _checked(pairs: Any) -> List[Any]:
    if isinstance(pairs, (str, Tensor, nn.Module)) or not hasattr(pairs, "__iter__"):
        raise TypeError(
            f"couplet: layers is {described(pairs)}, must be a list of pairs (router, gates), or "
            "a callable that returns one of the model"
        )
    listed = list(pairs)
    if not listed:
        raise ValueError("couplet: layers is empty; give (router, gates) of every Mixture-of-Experts layer")
    return listed


def _shape(model: nn.Module, name: str, where: str) -> torch.Size:
    found = follow(model, name)
    if found is None:
        raise ValueError(f"couplet: {where}: the model has no parameter named {name!r} any more")
    check_dtype(found.parameter.dtype, f"{where}: {name}")
    return found.shape


def _router_shape(shape: torch.Size, where: str, name: str) -> Tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"couplet: {where}: the router {name} is {list(shape)}, must be [n, d]: a row for each expert")
    return shape[0], shape[1]


@dataclass
class _Reads:
    """The width of the vectors that the experts read, its symbol, and the reason."""

    width: int
    symbol: str
    because: str


def _latent_width(where: str, names: List[str], shapes: List[torch.Size], d: int) -> _Reads:
    """Returns what latent experts read, from the shapes of P and g."""
    down = shapes[0]
    if len(down) != 2 or down[1] != d:
        raise ValueError(
            f"couplet: {where}: the projection {names[0]} is {list(down)}, must be [l, {d}]: from the router's width "
            "to that of the experts"
        )
    if shapes[1:] not in ([], [down[:1]]):
        raise ValueError(
            f"couplet: {where}: the norm {names[1]} is {list(shapes[1])}, must be [{down[0]}] as P's output"
        )
    return _Reads(down[0], "l", f"the projection {names[0]} has it")


def _rows(
    where: str, names: List[str], shapes: List[torch.Size], here: int, n: int, reads: _Reads, transposed: bool
) -> int:
    """Returns A of the gates [here, A, d], or of a tensor [n, A, d] that is or will be spread over processes. Raises
    ValueError for other shapes. Gates of latent experts have l in place of d."""
    if len(names) == 1 and len(shapes[0]) == 2 and shapes[0][0] % here == 0 and here > 1:
        shapes = [torch.Size((here, shapes[0][0] // here, shapes[0][1]))]  # all experts' rows in one matrix
    alone = len(names) == 1 and len(shapes[0]) == 3
    ends = shapes[0][-2:]
    rows, width = (ends[1], ends[0]) if transposed else (ends[0], ends[1])
    d, symbol = reads.width, reads.symbol
    want = f"[{symbol}, D]" if transposed else f"[D, {symbol}]"
    for name, shape in zip(names, shapes):
        if shape != shapes[0] or len(shape) != (3 if alone else 2):
            raise ValueError(
                f"couplet: {where}: {name} is {list(shape)} beside {list(shapes[0])}; must be one "
                f"tensor of all experts' gates or a list of equal {want}"
            )
    if width != d:
        turned = f"; transposed=True is for gates [n, {symbol}, D]" if rows == d and not transposed else ""
        raise ValueError(
            f"couplet: {where}: {names[0]} is {list(shapes[0])}, whose experts must be {want} "
            f"with {symbol} = {d} as {reads.because}{turned}"
        )
    if not alone and len(names) != here:
        raise ValueError(f"couplet: {where}: {len(names)} gates, but {here} experts here")
    if alone and shapes[0][0] not in (here, n):
        raise ValueError(f"couplet: {where}: {names[0]} is {list(shapes[0])}, but there are {here} experts here")
    return rows


# Names of parameters that hold gate and up projection, and the keys of a configuration that give an expert's width.
FUSED = re.compile(
    r"gate_?(and_?|proj_?)?up|up_?(and_?|proj_?)?gate|w_?(1_?(and_?)?w?_?3|3_?(and_?)?w?_?1)|fc_?1", re.I
)
WIDTHS = ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "intermediate_size")


def _refuse_fused(model: nn.Module, where: str, name: str, rows: int) -> None:
    """Raises ValueError where the gates seem to share their parameter with the up projections: the loss would include
    both."""
    config: Any = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    get = config.get if isinstance(config, dict) else lambda key: getattr(config, key, None)
    width = next((value for value in map(get, WIDTHS) if isinstance(value, int)), 0)
    if FUSED.search(name):
        reason = "whose name says gate and up projection"
    elif width and rows == 2 * width:
        reason = f"with {rows} rows an expert, twice the width {width} of the model's config"
    else:
        return
    raise ValueError(
        f"couplet: {where}: the gates are {name}, {reason}; say which rows are the gate's: gate_half="
        '"first", "second" or "interleaved", or gate_half="none" if it is the gate alone'
    )


def _common_prefix(names: List[str]) -> str:
    """Returns the path with which all names begin: "layers.3.moe."."""
    parts = [name.split(".")[:-1] for name in (names[0], names[-1])]
    shared = []
    for a, b in zip(*parts):
        if a != b:
            break
        shared.append(a)
    return "".join(f"{part}." for part in shared)
