"""The matrices that stored tensors make up: matrix.c of src/inspect/families, for models in memory. How a
matrix is read follows from the tensors that it has; from the config come only the sizes of blocks. The rules:
docs/formats.md, "Quantised numbers"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ._families import Config

# Formats of numbers (src/tensor/formats.h), and how many numbers are a block.
FORMATS = {
    "F64": 1,
    "F32": 1,
    "F16": 1,
    "BF16": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "F4_PAIR": 2,
    "INT4_WORD": 8,
    "Q8_0": 32,
    "Q4_K": 256,
    "Q5_K": 256,
    "Q6_K": 256,
    "MXFP4": 32,
}
F4_GROUP, F4_GROUP_BYTES, WORD = 32, 16, 8


class Fault(Exception):
    """Why a layer cannot be measured: a sentence."""


@dataclass(frozen=True)
class Stored:
    """A tensor: cpl_stored."""

    name: str
    type_name: str
    shape: tuple[int, ...]

    @property
    def format(self) -> str | None:
        """The format of the numbers; None if type_name does not determine it."""
        return self.type_name if self.type_name in FORMATS else None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def last(self) -> int:
        """Length of the last axis."""
        return self.shape[-1] if self.shape else 1

    @property
    def sizes(self) -> str:
        return "[" + ",".join(map(str, self.shape)) + "]"


def parts_of(whole: int, part: int) -> int:
    return -(-whole // part)


@dataclass
class Matrix:
    """One matrix [rows, cols], or one stack [n, rows, cols], and the tensors that it is stored in."""

    config: Config
    path: str  # of the model, for errors
    d: int = 0  # the expected number of columns; 0: unknown
    weight: Stored | None = None  # one of these three is used
    packed: Stored | None = None
    blocks: Stored | None = None
    scale: Stored | None = None
    grid: bool = False  # `scale` has one for each block of the config, whatever its shape suggests

    stored: Stored | None = None  # the one that `make` used
    format: str = ""
    block_rows: int = 0  # of the scale, in numbers; 0: not yet known
    block_cols: int = 0
    stacked: bool = False
    n: int = 0
    rows: int = 0
    cols: int = 0

    @property
    def tensor(self) -> Stored:
        """`stored`, after `make`."""
        assert self.stored is not None
        return self.stored

    def make(self) -> None:
        """Sets format and sizes; one of weight, packed and blocks must be set. Raises Fault if that cannot be
        read."""
        for tensor in (self.weight or self.packed or self.blocks, self.scale):
            if tensor and tensor.n_elements < 1:
                raise self._misshapen(tensor, "of any size")
        if self.weight:
            self._make_plain(self.weight)
        elif self.packed:
            self._make_packed(self.packed)
        elif self.blocks:
            self._make_blocks(self.blocks)
        if self.scale:
            self._make_scale(self.scale)

    # ---- the weight ----

    def _set_rows(self, tensor: Stored, inner: int) -> bool:
        """Sets n and rows from a tensor whose last `inner` axes are one row. False: it has another rank."""
        outer = tensor.rank - inner
        if outer not in (1, 2):
            return False
        self.stacked = outer == 2
        self.n = tensor.shape[0] if self.stacked else 1
        self.rows = tensor.shape[outer - 1]
        return True

    def _make_plain(self, weight: Stored) -> None:
        f4, eights = self._is_f4(weight), weight.format in ("F8_E4M3", "F8_E5M2")
        if not f4 and weight.format in (None, "F8_E8M0"):
            raise self._unread(weight)
        if not self._set_rows(weight, 1):
            raise self._misshapen(weight, "a matrix or a stack of them")
        if not self.scale and eights and self.config.quant_method:
            raise self._lacks_scale(weight, "'s scale")
        if self.scale and not f4 and not eights:
            raise Fault(f"{self._stored_as(weight)} and yet has scales in {self.scale.name}")
        self.stored = weight
        self.format = "F4_PAIR" if f4 else weight.format or ""
        self.cols = weight.last * (2 if f4 else 1)
        if f4:
            self.block_rows, self.block_cols = 1, F4_GROUP

    def _is_f4(self, weight: Stored) -> bool:
        """Whether the tensor is I8 that holds pairs of f4, with an exponent for every 32 numbers."""
        scale = self.scale
        if weight.type_name != "I8" or not scale or weight.rank < 2 or scale.rank != weight.rank:
            return False
        return scale.type_name in ("F8_E8M0", "U8") and parts_of(2 * weight.last, F4_GROUP) == scale.last

    def _make_packed(self, packed: Stored) -> None:
        if packed.type_name != "I32":
            raise self._unread(packed)
        if not self.scale:
            raise self._lacks_scale(packed, "'s weight_scale")
        if not self._set_rows(packed, 1):
            raise self._misshapen(packed, "a matrix")
        self.stored, self.format = packed, "INT4_WORD"
        self.cols = self.d if parts_of(self.d, WORD) == packed.last else WORD * packed.last
        self.block_rows, self.block_cols = 1, self.config.group(self.cols, self.scale.last)
        if not self.block_cols:
            raise Fault(
                f"{self.path}: tensor {self.scale.name} has {self.scale.last} scales for a row of "
                f"{self.cols} numbers, and config.json names no group of 4-bit weights like that"
            )

    def _make_blocks(self, blocks: Stored) -> None:
        if blocks.type_name != "U8":
            raise self._unread(blocks)
        if not self.scale:
            raise self._lacks_scale(blocks, " with its scales")
        flat = blocks.rank == self.scale.rank  # [..., G 16] instead of [..., G, 16]
        grouped = blocks.rank == self.scale.rank + 1 and blocks.last == F4_GROUP_BYTES
        if not (flat or grouped) or not self._set_rows(blocks, 1 if flat else 2):
            raise self._misshapen(blocks, "rows of groups of 16 bytes with a scale each")
        self.stored, self.format = blocks, "F4_PAIR"
        self.cols = 2 * blocks.last if flat else F4_GROUP * blocks.shape[-2]
        self.block_rows, self.block_cols = 1, F4_GROUP

    # ---- the scale ----

    def _make_scale(self, scale: Stored) -> None:
        form = "F8_E8M0" if scale.type_name == "U8" else scale.format
        if FORMATS.get(form or "") != 1:
            raise self._unread(scale)
        open_ = not self.block_rows
        if open_:
            self._find_scale_blocks(scale)
        rows, cols = parts_of(self.rows, self.block_rows), parts_of(self.cols, self.block_cols)
        if scale.n_elements != 1 and not self._is_grid(scale, rows, cols):
            others = f", [{self.rows},1] for rows, [1,{self.cols}] for columns" if open_ and not self.grid else ""
            raise Fault(
                f"{self.path}: tensor {scale.name} is {scale.sizes}, but the scales of {self.rows} rows of "
                f"{self.cols} numbers are [{rows},{cols}] for blocks of "
                f"[{self.block_rows},{self.block_cols}]{others}"
            )

    def _find_scale_blocks(self, scale: Stored) -> None:
        """How many numbers share a scale, where the weight's format leaves it open: all, a row, a column, or a
        block."""
        one_a_row = scale.rank < 2 or scale.last == 1
        if scale.n_elements == 1 or (self.stacked and scale.n_elements == self.n):
            self.block_rows, self.block_cols = self.rows, self.cols
        elif not self.grid and one_a_row and scale.n_elements == self.n * self.rows:
            self.block_rows, self.block_cols = 1, self.cols
        elif not self.grid and scale.rank > 1 and scale.shape[-2:] == (1, self.cols):
            self.block_rows, self.block_cols = self.rows, 1
        else:
            self.block_rows, self.block_cols = self.config.block

    def _is_grid(self, scale: Stored, rows: int, cols: int) -> bool:
        """Whether the axes are [n, rows, cols] without those that are 1."""
        have, want = ([size for size in axes if size != 1] for axes in (scale.shape, (self.n, rows, cols)))
        return have == want

    # ---- errors ----

    def _unread(self, tensor: Stored) -> Fault:
        return Fault(f"{self._stored_as(tensor)}, which is not read here")

    def _misshapen(self, tensor: Stored, want: str) -> Fault:
        return Fault(f"{self.path}: tensor {tensor.name} is {tensor.sizes}, which is not {want}")

    def _lacks_scale(self, tensor: Stored, ending: str) -> Fault:
        return Fault(f"{self._stored_as(tensor)} and {tensor.name}{ending} is missing")

    def _stored_as(self, tensor: Stored) -> str:
        return f"{self.path}: tensor {tensor.name} is stored as {tensor.type_name}"
