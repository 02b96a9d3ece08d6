"""Finds the routers and gates of the MoE layers of a model in memory, from names, types and shapes of its parameters
and its config. src/inspect/families does this for checkpoints; this file has no quantised tensors. It needs neither
PyTorch nor the C library.

n experts, d model width, D expert width, A the width of a gate, or of gate and up projection in one tensor, l the width
of the vector that gates read: d, or the rows of the projection W_l [l, d] before latent experts. The rules:
docs/formats.md, "Orientation of fused tensors" and "Latent experts"."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Sequence

from ._families import LAYER, MTP, TABLE, Config, Pattern, Patterns, Role, family_with_alternating_rows, has_any

NUMBERS = ("F64", "F32", "F16", "BF16")
MOST_FAULTS = 3  # most faults that an error lists


class Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def sizes(self) -> str:
        return "[" + ",".join(map(str, self.shape)) + "]"


@dataclass
class MoeLayer:
    """One MoE layer, or one that cannot be measured."""

    prefix: str  # "model.layers.3."
    layer: int  # the number in its name
    part: str = ""  # "encoder", "decoder", or ""
    skip: str | None = None  # the reason why the layer is not measured, or None
    comparable: bool = True  # router and experts read the same vector
    n: int = 0
    d: int = 0
    l: int = 0
    D: int = 0
    K: int = 0  # 0: unknown
    extra_rows: int = 0  # rows of the router that belong to no expert
    router: str = ""
    router_transposed: bool = False  # [d, n]
    projection: str = ""  # W_l; "": none
    projection_by_shape: bool = False  # it has no known name
    latent_norm: str = ""  # w [l] of the norm (1 + w) v / sqrt(mean(v^2) + latent_eps) of v = W_l x; "": none
    latent_eps: float = 0.0
    matrices: list[str] = field(default_factory=list)  # names of the gates: n, or one of a tensor with all
    columns: bool = False  # the rows of a gate are columns of the tensor
    width: int = 0  # A
    half: str | None = None  # the gate's part of A: "first", "second", "interleaved", or None: all of A
    is_alone: bool = False  # the experts have no gate: their one input matrix is in its place
    biases: dict[str, list[str]] = field(default_factory=dict)  # names of biases of "router", "gate", "projection"


@dataclass
class MoeMap:
    family: str
    title: str  # name of the model, for sentences
    guess: str | None  # the tensors used as router and gates, for a model in no row of the table
    layers: list[MoeLayer]


class Fault(Exception):
    """The reason why a layer cannot be measured, as a sentence."""


class Group:
    """The tensors of one layer, by the patterns that their names match."""

    def __init__(self, prefix: str, tensors: list[Tensor], patterns: Patterns) -> None:
        self.prefix, self.tensors, self.patterns = prefix, tensors, patterns
        self.number = int(prefix.rstrip(".").rpartition(".")[2])
        self.by_pattern: dict[Pattern, dict[int, tuple[Tensor, Role]]] = {}  # by pattern and expert; without biases
        self.biases: dict[Pattern, dict[int, str]] = {}  # names, by pattern and expert
        found = [(tensor, role) for tensor in tensors if (role := patterns.find(self.suffix(tensor)))]
        for tensor, role in found:
            if role.is_bias:
                self.biases.setdefault(role.pattern, {})[role.expert] = tensor.name
            else:
                self.by_pattern.setdefault(role.pattern, {})[role.expert] = tensor, role

    def suffix(self, tensor: Tensor) -> str:
        return tensor.name.removeprefix(self.prefix)

    def first(self, pattern: Pattern) -> Tensor:
        """Returns the tensor of the pattern, or of the pattern's first expert."""
        return min(self.by_pattern[pattern].items())[1][0]

    @property
    def unmeasured(self) -> str | None:
        suffixes = [self.suffix(tensor) for tensor in self.tensors]
        return next((why for name in suffixes for part, why in TABLE["unmeasured"].items() if part in name), None)

    def choose(self, path: str, is_listed: bool, what: str) -> Pattern | None:
        """Returns the first name of the table that matches for `what`, the role of a pattern."""
        matches = [p for p in self.patterns.all if p in self.by_pattern and p.role == what]
        found = [p for p in matches if p.half != "alone"] or matches
        if len(found) > 1 and not is_listed:
            a, b = (self.first(pattern).name for pattern in found[:2])
            raise Fault(f"{path}: {a} and {b}: nothing says which of the two is the {what}")
        return found[0] if found else None


class Fit:
    """Router and gates of one layer: their orientation, n, d and D."""

    def __init__(self, path: str, config: Config, group: Group) -> None:
        self.path, self.config, self.group = path, config, group
        self.layer = MoeLayer(group.prefix, group.number)

    def fill(self) -> bool:
        """Fills the layer except `part`. Returns False if the layer has no experts. Raises Fault."""
        self.router, self.gate = self._choose("router"), self._choose("gate")
        self.layer.skip = self.group.unmeasured
        if not (self.router or self.gate or self.layer.skip):
            return False
        self.layer.K = self.config.number("K", self.layer.layer)
        self.layer.comparable = not self.config.flag("not_comparable")
        if self.router and self.gate and not self.layer.skip:
            self._fill_figures(self.router, self.gate)
        elif not self.layer.skip:
            return self._refuse_half()
        return True

    def _choose(self, what: str) -> Pattern | None:
        return self.group.choose(self.path, self.config.family is not None, what)

    def _refuse_half(self) -> bool:
        """Raises Fault for a layer with a router or with experts, but not both. Returns False if the router may serve
        another purpose."""
        pattern = self.router or self.gate
        assert pattern
        if self.router and self.router not in self.group.patterns.own:
            return False
        name = self.group.first(pattern).name
        has, lacks = (f"the router {name}", "experts") if self.router else (f"experts ({name})", "router")
        raise Fault(
            f"{self.path}: layer {self.layer.prefix} has {has}, but no {lacks} under a known name; "
            f"it has {self._names_there()}"
        )

    def _names_there(self) -> str:
        """Returns up to three matrices of the layer that may be its router or its experts under another name."""
        suffixes = [self.group.suffix(tensor) for tensor in self.group.tensors if len(tensor.shape) > 1]
        names = [
            suffix
            for suffix in suffixes
            if not has_any(suffix, "not_routed")
            and not self.group.patterns.find(suffix)
            and (self.router or "expert" not in suffix)
        ]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more if names else "no other matrix that could be one"

    # ---- matrices ----

    def _check_matrix(self, tensor: Tensor, ranks: tuple[int, ...], want: str) -> None:
        name, has = f"{self.path}: tensor {tensor.name}", f"is {tensor.sizes}"
        if not math.prod(tensor.shape):
            raise Fault(f"{name} {has}, which is not of any size")
        if tensor.dtype not in NUMBERS:
            raise Fault(f"{name} is stored as {tensor.dtype}, which is not read here")
        if len(tensor.shape) not in (2, 3):
            raise Fault(f"{name} {has}, which is not a matrix or a stack of them")
        if len(tensor.shape) not in ranks:
            raise Fault(f"{name} {has}, {want}")

    def _fill_figures(self, router: Pattern, gate: Pattern) -> None:
        layer, self.pattern = self.layer, gate
        self.rows = self.group.first(router)
        self.gates = self.group.first(gate)  # the first gate, or the tensor of all gates
        self.experts = self.group.by_pattern[gate]  # by number; without {e} one entry
        self._read_down()
        self._check_matrix(self.rows, (2,), "no matrix of router rows")
        self._check_matrix(self.gates, (2,) if gate.each else (2, 3), "no matrix")
        self.is_stacked = len(self.gates.shape) == 3
        self.A, self.B = self.gates.shape[-2:]
        self._fit_router()
        layer.router = self.rows.name
        self._fit_projection()
        self._fit_norm()
        self._check_n()
        self._set_orientation()
        self._set_D()
        layer.matrices = [self.experts[e][0].name for e in (range(layer.n) if gate.each else [0])]
        projection = self._choose("projection") if layer.projection and not layer.projection_by_shape else None
        for what, pattern in (("router", router), ("gate", gate), ("projection", projection)):
            if pattern in self.group.biases:
                layer.biases[what] = [name for _, name in sorted(self.group.biases[pattern].items())]
        self._check_other_gates()
        if not self.config.family and gate.is_pair:
            self._refuse_unknown_halves(router)

    def _read_down(self) -> None:
        """Changes pattern and shapes to those that the down projection beside the first gate shows (w2, linear_fc2,
        w_down). A pair [2D,d] stands beside [d,D] or [D,d]; [D,d] beside one of the two has no gate. OLMo-core stores
        a router as [n d], gates as [n D,d] or [n d,D], and w2 as [n D,d]."""
        router, gates = self.rows, self.gates
        downs = {tensor.name: tensor.shape for tensor in self.group.tensors if len(tensor.shape) > 1}
        places = [at for at, letter in enumerate(gates.name) if letter == "1"]
        named = [f"{gates.name[:at]}2{gates.name[at + 1 :]}" for at in places]
        named.append("down".join(gates.name.rsplit("up_gate", 1)))
        down = next((downs[name] for name in named if name in downs and name != gates.name), None)
        if self.pattern.is_pair and down in (gates.shape, (*gates.shape[:-2], *reversed(gates.shape[-2:]))):
            self.pattern = Pattern(self.pattern.text, "alone")
        if len(router.shape) != 1 or len(gates.shape) < 2 or not all(router.shape + gates.shape):
            return
        count, rows = router.shape[0], gates.shape[-2]
        if len(gates.shape) == 2 and not down and rows == count:
            return  # [n D,d] or [n d,D]
        n = gates.shape[0] if len(gates.shape) == 3 else count // (down or gates.shape)[-1]
        if n and count % n == 0 and (len(gates.shape) == 3 or rows % n == 0):
            self.rows = router._replace(shape=(n, count // n))
            if len(gates.shape) == 2:
                self.gates = gates._replace(shape=(n, rows // n, gates.shape[-1]))

    def _check_other_gates(self) -> None:
        """Checks that every other gate is like the first."""
        for name in self.layer.matrices[1:]:
            other = next(tensor for tensor, _ in self.experts.values() if tensor.name == name)
            self._check_matrix(other, (2, 3), "")
            if other.shape != self.gates.shape:
                raise Fault(f"{self.path}: tensor {name} is {other.sizes}, but {self.gates.name} is {self.gates.sizes}")

    def _refuse_unknown_halves(self, router: Pattern) -> None:
        """Raises Fault for a model in no row with the names of a family in which gate and up rows alternate
        (gpt-oss and others): in this model they may be two halves. Without a model type similar names are refused
        too."""
        known, name = family_with_alternating_rows(router, self.pattern), self.gates.name
        if self.config.model_type and known:
            raise Fault(
                f"{self.path}: tensor {name}: the model_type {self.config.model_type} is not known, and in "
                f"{known.title} gate and up alternate under these names: it is not known whether they do so here or "
                "are two halves"
            )
        if not self.config.model_type and (known or router in self.group.biases or "w13_weight" in name):
            raise Fault(
                f"{self.path}: tensor {name}: without model_type in a config.json it is not known whether gate and up "
                "are two halves or alternate"
            )

    # ---- the router's orientation, n and d ----

    @property
    def _n_known(self) -> int:
        """Returns the number of experts that the gates show; 0 if unknown."""
        if self.pattern.each:
            return len(self.experts)
        return self.gates.shape[0] if self.is_stacked else 0

    def _is_transposed(self) -> bool:
        """Returns whether the router is [d, n]. Where both orientations fit, the family's flags decide."""
        if not self.config.flag("transposed"):
            return False
        a, b = self.rows.shape
        axes, counts = (self.A, self.B), [float(self._n_known)]
        if self.config.flag("vision_half"):
            counts.append(self._n_known / 2)
        as_is, transposed = b in axes and a in counts, a in axes and b in counts
        if as_is != transposed:
            return transposed
        if as_is:
            return self.config.flag("vision_half") or self.pattern.is_pair
        return a in axes and b not in axes

    def _fit_router(self) -> None:
        layer = self.layer
        layer.router_transposed = self._is_transposed()
        rows, layer.d = reversed(self.rows.shape) if layer.router_transposed else self.rows.shape
        layer.n = self._n_of(rows)
        layer.extra_rows = rows - layer.n

    def _n_of(self, rows: int) -> int:
        """Returns the number of experts: the router's rows, or fewer for a family with such a flag."""
        given = self.config.number("N", self.layer.layer)
        if self.config.flag("zero_experts") and 0 < given <= rows:
            return given
        extra = self.config.flag("zero_experts") or self.config.flag("shared_rows")
        return self._n_known if extra and 0 < self._n_known < rows else rows

    def _check_n(self) -> None:
        n, known = self.layer.n, self._n_known
        numbers = sorted(self.experts)
        for e in range(n if self.pattern.each else 0):
            if e < len(numbers) and numbers[e] == e:
                continue
            like, role = self.experts[numbers[min(e, len(numbers) - 1)]]
            suffix, (start, end) = self.group.suffix(like), role.digits
            name = f"{self.layer.prefix}{suffix[:start]}{e}{suffix[end:]}"
            raise Fault(f"{self.path}: tensor {name} is missing (the router has rows for {n} experts)")
        if not known:
            return  # a flat tensor: the width decides
        more = self.config.flag("vision_half") or self.config.flag("zero_experts")
        if known != n and not (known > n and more):
            first = self.gates.name
            raise Fault(f"{self.path}: router {self.rows.name} is {self.rows.sizes}, but {first} has {known} experts")

    # ---- the gates' orientation and D ----

    @property
    def _may_turn(self) -> bool:
        """Returns whether the rows of a gate may be columns of its tensor."""
        return self.is_stacked or self.config.flag("transposed")

    def _gates_read(self, width: int) -> bool:
        """Returns whether the gates may read a vector of this width."""
        return self.B == width or (self._may_turn and self.A == width)

    def _misfit(self, beside: str = "") -> Fault:
        return Fault(
            f"{self.path}: tensor {self.gates.name} is {self.gates.sizes}, but the rows of router "
            f"{self.rows.name} have {self.layer.d} numbers{beside}"
        )

    def _fit_projection(self) -> None:
        """Sets l and the projection: the one with a known name, or the only tensor [l, d] of the layer."""
        layer, pattern = self.layer, self._choose("projection")
        d, width = layer.d, self.config.number("LATENT", layer.layer)
        layer.l = d
        if pattern:
            self._fit_named_projection(self.group.first(pattern))
            return
        width = width if self._gates_read(width) else 0  # shapes are the authority
        if self.B == d or (not width and self._gates_read(d)):
            return
        found = [tensor for tensor in self.group.tensors if self._may_project(tensor, width)]
        if len(found) > 1:
            raise self._misfit(f", and {found[0].name} and {found[1].name} may both be the projection between them")
        if not found:
            raise self._misfit(f", and the layer has no projection [{width or self.B},{d}]")
        self._check_matrix(found[0], (2,), "")
        layer.l, layer.projection, layer.projection_by_shape = found[0].shape[0], found[0].name, True

    def _fit_named_projection(self, named: Tensor) -> None:
        """Sets l from the projection with a known name. If the router reads its output too, as in OLMo-core, the
        projection does not lie between router and gates."""
        layer = self.layer
        self._check_matrix(named, (2, 3), "")
        is_read = len(named.shape) == 2 and self._gates_read(named.shape[0])
        if is_read and named.shape[1] == layer.d:
            layer.l, layer.projection = named.shape[0], named.name
        elif not (is_read and named.shape[0] == layer.d):
            raise Fault(
                f"{self.path}: the projection {named.name} is {named.sizes}: it does not lead from the {layer.d} numbers "
                f"of the rows of router {layer.router} to tensor {self.gates.name}, which is {self.gates.sizes}"
            )

    def _may_project(self, tensor: Tensor, width: int) -> bool:
        """Returns whether the tensor, which has no known name, may be the projection."""
        suffix = self.group.suffix(tensor)
        return (
            len(tensor.shape) == 2
            and tensor.shape[1] == self.layer.d
            and (tensor.shape[0] == width if width else self._gates_read(tensor.shape[0]))
            and not has_any(suffix, "not_routed")
            and "experts." not in suffix
            and not self.group.patterns.find(suffix)
        )

    def _fit_norm(self) -> None:
        layer, pattern = self.layer, self._choose("norm")
        if not (pattern and layer.projection):
            return
        norm, eps = self.group.first(pattern), self.config.real("EPS")
        if norm.shape != (layer.l,) or norm.dtype not in NUMBERS:
            raise Fault(
                f"{self.path}: tensor {norm.name} is {norm.dtype} {norm.sizes}, no norm of the {layer.l} numbers of "
                f"{layer.projection}"
            )
        if eps is None:
            raise Fault(f"{self.path}: the norm {norm.name} needs rms_norm_eps, which config.json lacks")
        layer.latent_norm, layer.latent_eps = norm.name, eps

    def _square_is_columns(self) -> bool:
        """Returns whether the rows of a gate are columns of a tensor with two axes of length l. The down projection in
        the module of gate and up decides: it is stored in the same orientation."""
        l = self.layer.l
        module = self.gates.name.removesuffix(".weight").rpartition(".")[0] + "."
        beside = {tensor.shape: tensor for tensor in self.group.tensors if tensor.name.startswith(module)}
        stack = self.gates.shape[:-2]
        rows, columns = beside.get((*stack, l, l // 2)), beside.get((*stack, l // 2, l))
        name = f"{self.path}: tensor {self.gates.name}"
        if not self.pattern.is_pair or l % 2:
            rows = columns = None
        if rows and columns:
            raise Fault(
                f"{name} is square: by {rows.name} the rows of a gate are among its rows, by {columns.name} among "
                "its columns"
            )
        if not (rows or columns) and (self.pattern.is_pair or not self.config.family):
            lacks = "neither a known family nor scales for each row"
            lacks = "no down projection beside it" if self.pattern.is_pair else lacks
            raise Fault(
                f"{name} is square, and {lacks} says whether the rows of a gate are among its rows or its columns"
            )
        return columns is not None

    def _set_orientation(self) -> None:
        layer, l = self.layer, self.layer.l
        columns = self.A == l and self._may_turn
        if columns and self.B == l:
            if self.pattern.half == "second":
                columns = False  # OLMo-core: [n,2D,d] beside [n,D,d]
            elif self.is_stacked or self.pattern.is_pair:
                columns = self._square_is_columns()
            else:
                columns = layer.router_transposed and not self.config.flag("vision_half")
        if not columns and self.B != l:
            raise self._misfit()
        layer.columns, layer.width = columns, self.B if columns else self.A

    def _set_D(self) -> None:
        layer, name = self.layer, f"{self.path}: tensor {self.gates.name}"
        if not self._n_known:  # flat tensor [n A, d]
            if layer.width % layer.n:
                raise Fault(f"{name} has {layer.width} rows, which {layer.n} experts cannot share evenly")
            layer.width //= layer.n
        if self.pattern.is_pair and layer.width % 2:
            raise Fault(f"{name} holds gate and up and yet has an odd width of {layer.width}")
        layer.D = layer.width // 2 if self.pattern.is_pair else layer.width
        layer.is_alone = self.pattern.half == "alone"
        if self.pattern.is_pair:
            is_told = self.pattern in self.group.patterns.own or self.pattern.half == "second"
            layer.half = self.pattern.half if is_told else "first"


# ---- the whole model ---------------------------------------------------------------------------------


def _find_groups(tensors: list[Tensor], patterns: Patterns) -> list[Group]:
    by_prefix: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        found = LAYER.search(tensor.name)
        if found and not has_any(tensor.name, "not_text") and not MTP.search(tensor.name):
            by_prefix.setdefault(tensor.name[: found.end()], []).append(tensor)
    return [Group(prefix, some, patterns) for prefix, some in by_prefix.items()]


def _part_of(prefix: str) -> str:
    return next((part for part in ("encoder", "decoder") if f".{part}." in f".{prefix}"), "")


def _has_two_parts(prefixes: list[str]) -> bool:
    """Returns whether the model has an encoder and a decoder."""
    return {"encoder", "decoder"} <= set(map(_part_of, prefixes))


def _sort(layers: list[MoeLayer]) -> None:
    """Sorts the layers by part (encoder first), then by number."""
    if _has_two_parts([layer.prefix for layer in layers]):
        for layer in layers:
            layer.part = _part_of(layer.prefix)
    layers.sort(key=lambda layer: (layer.part != "encoder", layer.layer, layer.prefix))


def _twice(path: str, layers: list[MoeLayer]) -> list[str]:
    """Returns the faults of a model in whose parts a layer occurs twice."""
    return [
        f"{path}: layer {a.layer} is there twice, as {a.prefix[:200]}* and as {b.prefix[:200]}*: the file holds two "
        "models, or more than a model: name one that holds one"
        for a, b in zip(layers, layers[1:])
        if (a.layer, a.part == "encoder") == (b.layer, b.part == "encoder")
    ]


def _why_none(path: str, config: Config, tensors: list[Tensor], are_beyond: bool) -> str:
    start = f"{path}: no MoE layers: "
    if not tensors:
        return f"{start}there are no tensors"
    if are_beyond:
        layers = config.number("LAYERS")
        return f"{start}none below the {layers} layers of the config has experts under a known name"
    names = [tensor.name for tensor in tensors if not has_any(tensor.name, "not_text")]
    likely = next((name for name in names if "expert" in name), None)
    if likely:
        known = f"({likely} looks like one; model_type {config.model_type or 'not given'})"
        return f"{start}no router and experts under a known name {known}"
    return f"{start}no tensor is a router's or an expert's"


def _guess(config: Config, used: tuple[Pattern, Pattern] | None) -> str:
    why = "no model_type in config.json" if config.levels else "no config.json"
    if config.model_type:
        why = f"the model_type {config.model_type} is not known"
    if not used:
        return f"{why}: read by names and shapes"
    router, gate = (pattern.text.removeprefix("*") for pattern in used)
    place = "second" if used[1].half == "second" else "first"
    half = f", the {place} half of it," if used[1].is_pair else ""
    return f"{why}: by names and shapes {router} is taken for the router and {gate}{half} for the experts' gates"


def _raise(faults: list[str]) -> None:
    more = len(faults) - MOST_FAULTS
    if faults:
        others = [f"faults that are not shown: {more}"] if more > 0 else []
        raise ValueError("; ".join(faults[:MOST_FAULTS] + others))


def moe_map(path: str, config: Any, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> MoeMap:
    """Returns the layers of a model whose tensors have these names, types ("F32", "BF16", ...) and shapes. `path` names
    the model in sentences, `config` is the document of config.json or None. Raises ValueError with the sentences of
    `couplet inspect`, the faults of all layers together."""
    stored = sorted(Tensor(name, dtype, tuple(shape)) for name, dtype, shape in tensors)
    facts = Config.read(config)
    groups = _find_groups(stored, Patterns(facts.family))
    most = 0 if _has_two_parts([group.tensors[0].name for group in groups]) else facts.number("LAYERS")
    layers: list[MoeLayer] = []
    faults: list[str] = []
    used: tuple[Pattern, Pattern] | None = None  # router and gate of the first layer with figures
    for group in groups:
        if 0 < most <= group.number:
            continue  # multi-token prediction
        fit = Fit(path, facts, group)
        try:
            if fit.fill():
                layers.append(fit.layer)
            if fit.layer.matrices and fit.router and fit.gate:
                used = used or (fit.router, fit.gate)
        except Fault as fault:
            layers.append(fit.layer)
            faults.append(str(fault))
    _sort(layers)
    _raise(_twice(path, layers) + faults)
    if not layers:
        _raise([_why_none(path, facts, stored, any(0 < most <= group.number for group in groups))])
    title = facts.family.title if facts.family else facts.family_name or "family not given"
    return MoeMap(facts.family_name, title, None if facts.family else _guess(facts, used), layers)
