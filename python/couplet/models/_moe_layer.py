"""One MoE layer from the tensors whose names match: layer.c and fit.c of src/inspect/families, for models in
memory. n experts, d model width, D expert width, A the width of a gate, or of gate and up projection in one.
The rules: docs/formats.md, "Orientation of fused tensors".

Raises ValueError where two readings are possible or the quantisation cannot be read. Every other fault is
recorded in `Layer.fault`."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from ._families import NOT_ROUTED, Config, Ending, Pattern, Patterns, Role, family_with_alternating_rows, has_any
from ._moe_matrix import FORMATS, Fault, Matrix, Stored


@dataclass
class Layer:
    """A layer as python/tests/models/native/moe_map.h describes it."""

    prefix: str
    layer: int
    part: str = ""
    skip: str | None = None
    fault: str | None = None
    note: str | None = None
    comparable: bool = True
    n: int = 0
    d: int = 0
    D: int = 0
    K: int = 0
    extra_rows: int = 0
    router: str | None = None
    router_transposed: bool = False
    layout: str = "per_expert"
    width: int = 0
    interleaved: bool = False
    matrices: list[str] = field(default_factory=list)


class Match(NamedTuple):
    role: Role
    tensor: Stored


@dataclass
class Reading:
    """What all layers share."""

    path: str  # of the model, for errors
    config: Config
    patterns: Patterns


@dataclass
class Names:
    """The tensors of one layer whose names match."""

    matches: list[Match]  # by pattern, then expert, then ending
    unmeasured: str | None  # why the layer has no figures
    projection: Stored | None  # in front of its experts
    tensors: list[Stored]  # all of the layer

    def of(self, pattern: Pattern | None) -> list[Match]:
        return [m for m in self.matches if m.role.pattern == pattern]


def _refuse_method(path: str, matches: list[Match]) -> None:
    for role, tensor in matches:
        if role.ending == Ending.METHOD:
            raise ValueError(f"{path}: tensor {tensor.name}: weights quantised by {role.method} are not read")


class Builder:
    """Fills one layer; chooses the patterns of its router and gates."""

    def __init__(self, reading: Reading, names: Names, layer: Layer) -> None:
        self.reading, self.path, self.config = reading, reading.path, reading.config
        self.names, self.layer = names, layer
        self.router = self._choose_pattern(True)
        self.gate = self._choose_pattern(False) or self._choose_pattern(False, alone=True)

    def fill(self) -> bool:
        """Fills the layer except `part`. False, and nothing filled, if it has no experts."""
        if not (self.router or self.gate or self.names.unmeasured):
            return False
        self.layer.K = self.config.number("K", self.layer.layer)
        self.layer.comparable = not self.config.flag("not_comparable")
        self.layer.skip = self.names.unmeasured
        if self.layer.skip:
            return True
        if not (self.router and self.gate):
            return self._fill_half()
        Fit(self.reading, self.names, self.layer, self.router, self.gate).fill()
        return True

    def _choose_pattern(self, is_router: bool, alone: bool = False) -> Pattern | None:
        """The first pattern that matches; alone: of those that stand for a gate where there is none."""
        found = [
            m
            for m in self.names.matches
            if m.role.holds_numbers and m.role.pattern.is_router == is_router and (m.role.pattern.mark == "-") == alone
        ]
        if not found:
            return None
        first = found[0]
        other = next((m for m in found if m.role.pattern != first.role.pattern), None)
        if other and not self.config.family:
            raise ValueError(
                f"{self.path}: {first.tensor.name} and {other.tensor.name}: nothing says "
                f"which of the two is the {'router' if is_router else 'gate'}"
            )
        return first.role.pattern

    def _fill_half(self) -> bool:
        """A layer with a router or with experts, but not both."""
        matches = self.names.of(self.router or self.gate)
        name, there = matches[0].tensor.name, self._names_there()
        _refuse_method(self.path, matches)
        if self.router:
            self.layer.fault = (
                f"{self.path}: layer {self.layer.prefix} has the router {name}, but no "
                f"experts under a known name; it has {there}"
            )
            return self.router in self.reading.patterns.own
        self.layer.fault = (
            f"{self.path}: layer {self.layer.prefix} has experts ({name}), but no router "
            f"under a known name; it has {there}"
        )
        if not self.config.family:
            raise ValueError(self.layer.fault)
        return True

    def _names_there(self) -> str:
        """Up to three matrices of the layer that may be its router or its experts, by another name."""
        suffixes = [tensor.name.removeprefix(self.layer.prefix) for tensor in self.names.tensors if tensor.rank > 1]
        names = [
            suffix
            for suffix in suffixes
            if not has_any(suffix, NOT_ROUTED)
            and not self.reading.patterns.find(suffix)
            and (self.router or "expert" not in suffix)
        ]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return ", ".join(names[:3]) + more if names else "no other matrix that could be one"


class Fit:
    """The matrices of a layer that has router and gates: their orientation, n, d and D."""

    def __init__(self, reading: Reading, names: Names, layer: Layer, router: Pattern, gate: Pattern) -> None:
        self.path, self.config, self.patterns = reading.path, reading.config, reading.patterns
        self.names, self.layer, self.router, self.gate = names, layer, router, gate
        self.rows = Matrix(self.config, self.path)  # the router as stored
        self.gates = Matrix(self.config, self.path)  # the first gate, or the stack
        self.experts: dict[int, list[Match]] = {}  # the gates' tensors by expert; without {e} all under 0

    def fill(self) -> None:
        try:
            self._fill_figures()
        except Fault as fault:
            self.layer.fault = str(fault)
        if self.rows.stored:
            self.layer.router = self.rows.stored.name

    # ---- matrices ----

    def _make_matrix(self, matrix: Matrix, matches: list[Match]) -> None:
        """Makes the matrix of the matches of one pattern and expert."""
        _refuse_method(self.path, matches)
        for role, tensor in matches:
            if role.ending == Ending.WEIGHT:
                matrix.weight = tensor
            elif role.ending == Ending.BLOCKS:
                matrix.blocks = tensor
            elif role.ending == Ending.PACKED:
                matrix.packed = tensor
            elif role.ending in (Ending.GRID, Ending.SCALE):
                matrix.scale, matrix.grid = tensor, role.ending == Ending.GRID
        if not (matrix.weight or matrix.blocks or matrix.packed):
            raise Fault(f"{self.path}: there is {matches[0].tensor.name}, but not the weights that belong to it")
        matrix.make()

    def _read_router(self) -> None:
        matches = self.names.of(self.router)
        self._make_matrix(self.rows, matches)
        if self.rows.stacked:
            raise Fault(
                f"{self.path}: tensor {matches[0].tensor.name} is {self.rows.tensor.sizes}, no matrix of router rows"
            )

    def _read_first_gate(self) -> None:
        self.experts = {e: list(some) for e, some in groupby(self.names.of(self.gate), lambda m: m.role.expert)}
        self.gates.d = self.rows.cols  # of a router [n, d]; packed gates do not have their width in their shape
        self._make_matrix(self.gates, next(iter(self.experts.values())))
        if self.gates.stacked and self.gate.each:
            raise Fault(f"{self._tensor} is {self.gates.tensor.sizes}, no matrix")

    def _read_gates(self) -> list[str]:
        """Names of the gates; all must have the sizes of the first."""
        first = self.gates.tensor
        names = [first.name]
        for matches in list(self.experts.values())[1 : self.layer.n if self.gate.each else 1]:
            other = Matrix(self.config, self.path, self.layer.d)
            self._make_matrix(other, matches)
            if (other.rows, other.cols, other.stacked) != (self.gates.rows, self.gates.cols, False):
                raise Fault(
                    f"{self.path}: tensor {other.tensor.name} is {other.tensor.sizes}, but "
                    f"{first.name} is {first.sizes}"
                )
            names.append(other.tensor.name)
        return names

    @property
    def _tensor(self) -> str:
        """How errors about the gates begin."""
        return f"{self.path}: tensor {self.gates.tensor.name}"

    # ---- the whole layer ----

    def _fill_figures(self) -> None:
        self._read_router()
        self._read_first_gate()
        self._fit_router()
        if self._is_latent():
            self.layer.skip = (
                f"latent: its experts read a vector of {self.gates.cols} numbers that a "
                f"projection makes of the {self.layer.d} which the router reads"
            )
            return
        self._fit_gates()
        names = self._read_gates()
        self._refuse_unknown_halves()
        self.layer.matrices = names
        self._set_note()

    def _refuse_unknown_halves(self) -> None:
        """ValueError for a model type in no row whose names are those of a family in which gate and up rows
        alternate (gpt-oss and others): here they may be two halves. Without a model type similar names are
        refused too."""
        if self.config.family or self.gate.mark != "+":
            return
        known = family_with_alternating_rows(self.router, self.gate)
        biased = any(m.role.ending == Ending.BIAS for m in self.names.of(self.router))
        if self.config.model_type and known:
            raise ValueError(
                f"{self._tensor}: the model_type {self.config.model_type} is not known, and in "
                f"{known.title} gate and up alternate under these names: it is not known whether "
                "they do so here or are two halves"
            )
        if not self.config.model_type and (known or biased or "w13_weight" in self.gates.tensor.name):
            raise ValueError(
                f"{self._tensor}: without model_type in a config.json it is not known whether "
                "gate and up are two halves or alternate"
            )

    def _set_note(self) -> None:
        notes, rows = [], self.layer.extra_rows
        if self.gate.mark == "-":
            notes.append("its experts have no gate: their one input matrix is measured")
        if rows:
            whose = "shared experts"
            if self.config.flag("zero_experts"):
                whose = "identity experts, which have no weights,"
            notes.append(
                f"{rows} row{'' if rows == 1 else 's'} of the router for {whose} "
                f"{'is' if rows == 1 else 'are'} left out"
            )
        self.layer.note = "; ".join(notes) or None

    # ---- the router's orientation, n and d ----

    @property
    def _n_known(self) -> int:
        """The number of experts by the gates; 0: unknown."""
        if self.gate.each:
            return len(self.experts)
        return self.gates.n if self.gates.stacked else 0

    def _gates_have(self, d: int) -> bool:
        """Whether an axis of the gates has this length and may be d."""
        return d in (self.gates.cols, self.gates.rows)

    def _counts_experts(self, axis: int) -> bool:
        return axis == self._n_known or (self.config.flag("vision_half") and 2 * axis == self._n_known)

    def _is_transposed(self) -> bool:
        """Whether the router is [d, n]. Where both orientations fit, the family's flags decide."""
        if not self.config.flag("transposed"):
            return False
        a, b = self.rows.rows, self.rows.cols
        as_is = self._gates_have(b) and self._counts_experts(a)
        transposed = self._gates_have(a) and self._counts_experts(b)
        if as_is != transposed:
            return transposed
        if as_is:
            return self.config.flag("vision_half") or self.gate.mark == "+"
        return self._gates_have(a) and not self._gates_have(b)

    def _n_of(self, router_rows: int) -> int:
        """The number of experts: the router's rows, or fewer for a family with such a flag."""
        given = self.config.number("n", self.layer.layer)
        if self.config.flag("zero_experts") and 0 < given <= router_rows:
            return given
        extra = self.config.flag("zero_experts") or self.config.flag("shared_rows")
        return self._n_known if extra and 0 < self._n_known < router_rows else router_rows

    def _fit_router(self) -> None:
        layer = self.layer
        layer.router_transposed = self._is_transposed()
        rows, layer.d = self.rows.rows, self.rows.cols
        if layer.router_transposed:
            rows, layer.d = layer.d, rows
        layer.n = self._n_of(rows)
        layer.extra_rows = rows - layer.n

    def _check_experts(self) -> None:
        """Fault unless experts 0 ... n-1 are all there."""
        numbers = list(self.experts)
        for e in range(self.layer.n):
            if e < len(numbers) and numbers[e] == e:
                continue
            matches = self.experts[numbers[min(e, len(numbers) - 1)]]
            like = next((m for m in matches if m.role.holds_numbers), matches[0])
            suffix, (start, end) = like.tensor.name.removeprefix(self.layer.prefix), like.role.number
            name = f"{self.layer.prefix}{suffix[:start]}{e}{suffix[end:]}"
            raise Fault(f"{self.path}: tensor {name} is missing (the router has rows for {self.layer.n} experts)")

    def _check_n(self) -> None:
        if self.gate.each:
            self._check_experts()
        elif not self.gates.stacked:
            return  # flat: the width decides
        n, known = self.layer.n, self._n_known
        more = self.config.flag("vision_half") or self.config.flag("zero_experts")
        if known != n and not (known > n and more):
            router, first = self.rows.tensor, self.names.of(self.gate)[0].tensor
            raise Fault(f"{self.path}: router {router.name} is {router.sizes}, but {first.name} has {known} experts")

    # ---- the gates' orientation and D ----

    def _is_latent(self) -> bool:
        """Whether the experts' input is a projection of the hidden state."""
        before, d = self.names.projection, self.layer.d
        width = self.config.number("latent", self.layer.layer)
        if not width and before and before.rank == 2:
            width = before.shape[1] if before.shape[0] == d else before.shape[0]
        if not (width or before) or self.gates.cols == d:
            return False
        return width in (self.gates.cols, self.gates.rows) or not self._gates_have(d)

    def _is_down(self, beside: Stored, sizes: tuple[int, int]) -> bool:
        stack = (self.gates.n,) if self.gates.stacked else ()
        return beside.shape == (*stack, *sizes)

    def _square_is_columns(self) -> bool:
        """Whether the rows of a gate are columns of a tensor with two axes of length d: the scales say so, if there
        is one for each row or column, and the down projection in the module of gate and up, which is stored the same
        way round."""
        gates, d = self.gates, self.layer.d
        says: dict[bool, Stored] = {}
        if gates.scale and (gates.block_rows == 1) != (gates.block_cols == 1):
            says[gates.block_cols == 1] = gates.scale
        first = next(iter(self.experts.values()))[0]
        module = first.tensor.name[: len(self.layer.prefix) + first.role.end].rpartition(".")[0] + "."
        for beside in self.names.tensors:
            if self.gate.mark == "+" and d % 2 == 0 and beside.name.startswith(module):
                says.update(
                    {
                        columns: beside
                        for columns, sizes in ((False, (d, d // 2)), (True, (d // 2, d)))
                        if self._is_down(beside, sizes)
                    }
                )
        if len(says) == 2:
            raise ValueError(
                f"{self._tensor} is square: by {says[False].name} the rows of a gate are among its rows, "
                f"by {says[True].name} among its columns"
            )
        if not says and (self.gate.mark == "+" or not self.config.family):
            lacks = (
                "no down projection beside it"
                if self.gate.mark == "+"
                else "neither a known family nor scales for each row"
            )
            raise ValueError(
                f"{self._tensor} is square, and {lacks} says whether the rows of a gate are among its "
                "rows or its columns"
            )
        return True in says

    def _set_orientation(self) -> None:
        A, B, d = self.gates.rows, self.gates.cols, self.layer.d
        columns = A == d and (self.gates.stacked or self.config.flag("transposed"))
        if columns and B == d:
            columns = (
                self._square_is_columns()
                if self.gates.stacked or self.gate.mark == "+"
                else self.layer.router_transposed and not self.config.flag("vision_half")
            )
        if not columns and B != d:
            raise Fault(
                f"{self._tensor} is {self.gates.tensor.sizes}, but the rows of router "
                f"{self.rows.tensor.name} have {d} numbers"
            )
        if columns and FORMATS[self.gates.format] != 1:
            raise Fault(f"{self._tensor}: blocks of {self.gates.format} across the rows of a gate are not read")
        self.layer.layout, self.layer.width = ("columns", B) if columns else ("rows", A)

    def _set_flat_width(self) -> None:
        """A flat tensor [n A, d] is n matrices."""
        if self.gates.stacked or self.gate.each:
            return
        if self.layer.width % self.layer.n:
            raise Fault(f"{self._tensor} has {self.layer.width} rows, which {self.layer.n} experts cannot share evenly")
        self.layer.width //= self.layer.n

    def _set_D(self) -> None:
        layer, pair = self.layer, self.gate.mark == "+"
        if pair and layer.width % 2:
            raise Fault(f"{self._tensor} holds gate and up and yet has an odd width of {layer.width}")
        layer.D = layer.width // 2 if pair else layer.width
        layer.interleaved = pair and self.gate in self.patterns.own and self.config.flag("interleaved")
        if not pair and self.gate.each and layer.layout == "rows":
            layer.layout = "per_expert"

    def _fit_gates(self) -> None:
        self._check_n()
        self._set_orientation()
        self._set_flat_width()
        self._set_D()
