"""The table of families, and the rules on names of tensors and on config.json that are data in it. docs/formats.md,
"Published MoE checkpoints", has the rules.

tools/make_families_json.py writes families.json from src/inspect/families/families.def, which explains the columns.
This file needs neither PyTorch nor the C library."""

from __future__ import annotations

import json
import pathlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

TABLE: dict[str, Any] = json.loads((pathlib.Path(__file__).parent / "families.json").read_text())
MOST = 1 << 40  # largest valid number of a config


def any_of(list_of_words: str) -> str:
    return f"(?:{'|'.join(map(re.escape, TABLE[list_of_words]))})"


LAYER = re.compile(rf"(?<![^.]){any_of('markers')}([0-9]{{1,9}})\.")
MTP = re.compile(r"(?:^|\.)mtp[._]")  # multi-token prediction
# Names between the layer's number and the names of the table: wrappers, and "layer.1." of Switch.
SUBLAYER = rf"{any_of('wrappers')}*(?:layer\.[0-9]{{1,9}}\.)?"
ENDING = r"(?P<ending>|\.weight|(?P<bias>[._]bias))"


def has_any(name: str, list_of_words: str) -> bool:
    """Returns whether the name has a word of this list of the table: "not_text" or "not_routed"."""
    return any(word in name for word in TABLE[list_of_words])


@dataclass(frozen=True)
class Pattern:
    """A name of the table, after the layer's prefix."""

    text: str  # a leading * matches any module in between
    half: str  # the gate's part of the tensor; "alone": used if no other gate matches; "" if it is no gate
    role: str = "gate"  # or "router", "projection" (before latent experts), "norm" (of the projected vector)

    @property
    def each(self) -> bool:
        """Returns whether there is one tensor for each expert."""
        return "{e}" in self.text

    @property
    def is_pair(self) -> bool:
        """Returns whether gate and up projection share a tensor."""
        return self.half in ("first", "second", "interleaved")

    @cached_property
    def name(self) -> re.Pattern[str]:
        before, hole, after = map(re.escape, self.text.removeprefix("*").partition("{e}"))
        number = "(?P<expert>[0-9]{1,9})" if hole else "(?P<expert>)"
        block = r"(?:.*?\.)?" if self.text.startswith("*") else ""
        return re.compile(f"{SUBLAYER}{block}{before}{number}{after}{ENDING}", re.DOTALL)


class Family:
    """A row of the table."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.model_types: list[str] = row["model_types"]
        self.title: str = row["title"]
        self.flags: list[str] = row["flags"]  # cpl_family_flag; explained in families.h
        self.routers = [Pattern(text, "", "router") for text in row["router"]]
        self.gates = [Pattern(text, half) for text, half in row["gate"]]


FAMILIES = [Family(row) for row in TABLE["families"]]
LATENT = [
    *(Pattern(text, "", "projection") for text in TABLE["projections"]),
    *(Pattern(text, "", "norm") for text in TABLE["projection_norms"]),
]


class Role(NamedTuple):
    """The use of a tensor, from its name after the layer's prefix."""

    pattern: Pattern
    expert: int  # 0 if the pattern has no {e}
    digits: tuple[int, int]  # span of the expert's number in the name
    is_bias: bool


class Patterns:
    """The names to search for: the names of the family first, then the names of all families, each once."""

    def __init__(self, family: Family | None) -> None:
        rows = [family, *FAMILIES] if family else FAMILIES
        self.own = {*family.routers, *family.gates} if family else set()
        self.all = dict.fromkeys(pattern for row in rows for pattern in (*row.routers, *row.gates)) | dict.fromkeys(
            LATENT
        )
        self._roles: dict[str, Role | None] = {}  # by name; most layers have the same names

    def find(self, suffix: str) -> Role | None:
        """Returns the role of the tensor with this name after the layer's prefix, or None."""
        if suffix not in self._roles:
            self._roles[suffix] = None if has_any(suffix, "not_routed") else self._find(suffix)
        return self._roles[suffix]

    def _find(self, suffix: str) -> Role | None:
        for pattern in self.all:
            found = pattern.name.fullmatch(suffix)
            if found:
                return Role(pattern, int(found["expert"] or 0), found.span("expert"), found["bias"] is not None)
        return None


def family_with_alternating_rows(router: Pattern, gate: Pattern) -> Family | None:
    """Returns the first family with the names of this router and this gate whose gate and up rows alternate."""
    alternating = Pattern(gate.text, "interleaved")
    return next((row for row in FAMILIES if router in row.routers and alternating in row.gates), None)


# ---- the config --------------------------------------------------------------------------------------


def value_of(level: Any, path: str) -> Any:
    """Returns the value of key "a.b", else of key "b" of the object under "a"; None if both are missing."""
    if not isinstance(level, dict) or path in level:
        return level[path] if isinstance(level, dict) else None
    first, _, rest = path.partition(".")
    return value_of(level.get(first), rest) if rest else None


def number_in(value: Any, index: int = 0) -> int:
    """Returns a positive number, or the number at `index` of a list; 0 if there is no positive number."""
    if isinstance(value, (list, tuple)):
        value = value[index] if index < len(value) else 0
    return value if type(value) is int and 0 < value <= MOST else 0


@dataclass
class Config:
    """Facts of config.json."""

    levels: list[dict[str, Any]]  # the objects in which keys are looked up, the top one first
    model_type: str | None = None  # None: unknown
    family: Family | None = None  # None: the model is in no row

    @staticmethod
    def read(config: Any) -> Config:
        levels = [config, *(value_of(config, name) for name in TABLE["levels"])]
        out = Config([level for level in levels if isinstance(level, dict)])
        types = [found for level in out.levels if isinstance(found := level.get("model_type"), str) and found]
        known = [(found, row) for found in types for row in FAMILIES if found in row.model_types]
        out.model_type, out.family = known[0] if known else (types[0] if types else None, None)
        if out.levels and not types and isinstance(out.levels[0].get("moe"), dict):
            out.family = next(row for row in FAMILIES if "no_config" in row.flags)
        return out

    def number(self, what: str, index: int = 0) -> int:
        """Returns the positive number under a key of `what` (CPL_CONFIG_KEY), or the number at `index` of a list; 0 if
        unknown."""
        values = (value_of(level, key) for level in self.levels for key in TABLE["keys"][what])
        return next((number for value in values if (number := number_in(value, index))), 0)

    def real(self, what: str) -> float | None:
        """Returns the number of 0 or more under a key of `what`, or None."""
        values = (value_of(level, key) for level in self.levels for key in TABLE["keys"][what])
        return next((float(value) for value in values if type(value) in (int, float) and value >= 0), None)

    def flag(self, name: str) -> bool:
        return self.family is not None and name in self.family.flags

    @property
    def family_name(self) -> str:
        name = self.model_type or (self.family.model_types[0] if self.family else "")
        return name.partition(" ")[0]
