"""The table of families, and the rules on names of tensors and on config.json: names.c and config.c of
src/inspect/families, for models in memory. The rules: docs/formats.md, "Published MoE checkpoints".

tools/make_families_json.py writes families.json from src/inspect/families/families.def, which explains the
columns."""

from __future__ import annotations

import enum
import json
import pathlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Iterator


@dataclass(frozen=True)
class Family:
    """A row of the table."""

    model_types: list[str]
    title: str
    gguf: list[str]
    router: list[str]
    gate: list[str]
    flags: list[str]  # cpl_family_flag; explained in families.h

    @cached_property
    def patterns(self) -> list[Pattern]:
        return [*(Pattern.of(word, True) for word in self.router), *(Pattern.of(word, False) for word in self.gate)]


# ---- names -------------------------------------------------------------------------------------------

LAYER = re.compile(r"(?<![^.])(?:layers|blocks|decoder_layer|h|block|blk)\.([0-9]{1,9})\.")
MTP = re.compile(r"(?:^|\.)mtp[._]")  # multi-token prediction
# What is between the layer's number and the names: wrappers, and "layer.1." of Switch.
SUBLAYER = r"(?:_checkpoint_wrapped_module\.|_fsdp_wrapped_module\.|_orig_mod\.)*(?:layer\.[0-9]{1,9}\.)?"

# Parts of names of tensors outside the text model.
NOT_TEXT = ("vision", "visual", "audio", "talker", "code2wav", "code_predictor")
# Parts of names after the layer's prefix of tensors that are no routed expert's.
NOT_ROUTED = (
    "shared_expert",
    "share_expert",
    "shared_mlp",
    "residual_mlp",
    "chunk_experts",
    "vision_moe",
    "self_att",
    "attention.",
    "attn.",
)
# Parts of names of latent MoE layers, whose gates have another width than the router.
PROJECTED = ("pre_expert_proj", "latent_proj", "ffn_latent_down")
# Parts of names of layers that have no figures, and why.
UNMEASURED = {
    "experts.0.gate_a_proj": "Autonomy-of-Experts: it has no router",
    "tid2eid": "hash-routed: a fixed table chooses the experts",
    "router_mlp": "its router is a small network, no single matrix",
    "mlp.router_gate.": "its router is no single matrix: it chooses keys whose pairs are experts, and "
    "experts are single rows",
}


def has_any(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


def is_text(name: str) -> bool:
    """Whether the tensor is of the text model: not vision, audio, ..."""
    return not has_any(name, NOT_TEXT)


class Ending(enum.IntEnum):
    """The role of a tensor in its matrix, from the end of its name."""

    WEIGHT = 0
    BLOCKS = 1  # pairs of f4 in groups of 16 bytes
    PACKED = 2  # eight 4-bit integers a word
    GRID = 3  # scales, one for each block of the config
    SCALE = 4  # scales whose blocks follow from the shape
    BIAS = 5
    METHOD = 6  # of a quantisation that is not read


ENDINGS = {
    "": Ending.WEIGHT,
    ".weight": Ending.WEIGHT,
    "_blocks": Ending.BLOCKS,
    ".weight_packed": Ending.PACKED,
    ".weight_scale_inv": Ending.GRID,
    "_scale_inv": Ending.GRID,
    ".scale": Ending.GRID,
    "_scales": Ending.SCALE,
    ".weight_scale": Ending.SCALE,
    "_weight_scale": Ending.SCALE,
    "_scale": Ending.SCALE,
    ".qscale_weight": Ending.SCALE,
    ".bias": Ending.BIAS,
    "_bias": Ending.BIAS,
}
METHODS = {
    ".qweight": "gptq or awq",
    ".qzeros": "gptq or awq",
    ".weight.absmax": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".weight_format": "bitsandbytes",
    ".biases": "MLX",
    ".scales": "MLX",
    ".weight_scale_2": "modelopt (NVFP4)",
    ".weight_global_scale": "compressed-tensors nvfp4-pack-quantized",
    ".weight_zero_point": "compressed-tensors with zero points",
    ".weight_g_idx": "compressed-tensors with activation ordering",
}
ENDING = "|".join(map(re.escape, (*ENDINGS, *METHODS)))


@dataclass(frozen=True)
class Pattern:
    """A name of the table, without mark and star."""

    text: str
    any_block: bool  # a star stood before it: any module in between
    mark: str  # "+", "-" or ""
    is_router: bool

    @staticmethod
    def of(word: str, is_router: bool) -> Pattern:
        text = word.removeprefix("*")
        bare = text.rstrip("+-")
        return Pattern(bare, text != word, text[len(bare) :], is_router)

    @property
    def each(self) -> bool:
        """Whether there is one tensor for each expert (cpl_gate_each)."""
        return "{e}" in self.text

    @cached_property
    def name(self) -> re.Pattern[str]:
        """Matches names, without the layer's prefix, of this pattern and a known ending."""
        before, hole, after = map(re.escape, self.text.partition("{e}"))
        number = "(?P<expert>[0-9]{1,9})" if hole else ""
        block = r"(?:.*?\.)?" if self.any_block else ""
        return re.compile(f"{SUBLAYER}{block}{before}{number}{after}(?P<ending>{ENDING})", re.DOTALL)


@dataclass(frozen=True)
class Role:
    """What a tensor is, from its name without the layer's prefix. Sorted by `order`."""

    order: tuple[int, int, int]  # of the pattern, then the expert, then the ending
    pattern: Pattern
    expert: int  # 0 if the pattern has no {e}
    number: tuple[int, int]  # span of the expert's number in that name
    end: int  # of the pattern in that name
    ending: Ending
    method: str | None  # of Ending.METHOD

    @property
    def holds_numbers(self) -> bool:
        """The matrix itself, not its scales or biases."""
        return self.ending in (Ending.WEIGHT, Ending.BLOCKS, Ending.PACKED, Ending.METHOD)


class Patterns:
    """The patterns to search for: those of the family first, then those of all families, each once."""

    def __init__(self, family: Family | None) -> None:
        self.own = family.patterns if family else []
        self.all = dict.fromkeys([*self.own, *(p for one in FAMILIES for p in one.patterns)])
        self._roles: dict[str, Role | None] = {}  # a cache: most layers have the same names

    def find(self, suffix: str) -> Role | None:
        """The role of the tensor with this name, without the layer's prefix; None: neither router nor gate."""
        if suffix not in self._roles:
            self._roles[suffix] = None if has_any(suffix, NOT_ROUTED) else self._find(suffix)
        return self._roles[suffix]

    def _find(self, suffix: str) -> Role | None:
        for i, pattern in enumerate(self.all):
            found = pattern.name.fullmatch(suffix)
            if not found:
                continue
            expert, number = (int(found["expert"]), found.span("expert")) if pattern.each else (0, (0, 0))
            ending = ENDINGS.get(found["ending"], Ending.METHOD)
            return Role(
                (i, expert, ending),
                pattern,
                expert,
                number,
                found.start("ending"),
                ending,
                METHODS.get(found["ending"]),
            )
        return None


def family_with_alternating_rows(router: Pattern, gate: Pattern) -> Family | None:
    """The first family with the names of this router and this gate whose gate and up rows alternate
    (cpl_name_patterns_in_turns)."""
    return next(
        (one for one in FAMILIES if "interleaved" in one.flags and router in one.patterns and gate in one.patterns),
        None,
    )


# ---- the config --------------------------------------------------------------------------------------

DEFAULT_BLOCK = (128, 128)
MOST = 1 << 40  # a larger number of a config is not valid
LEVELS = ("text_config", "language_config", "llm_config", "thinker_config.text_config")
KEYS = {
    "n": "num_experts num_local_experts n_routed_experts moe_num_experts ffn_config.moe_num_experts moe.num_experts",
    "K": "num_experts_per_tok num_experts_per_token experts_per_token moe_topk moe_k top_k_experts "
    "ffn_config.moe_top_k moe.num_experts_per_tok moe_top_k n_activated_experts "
    "moe_num_active_primary_experts",
    "layers": "num_hidden_layers n_layers n_layer num_layers",
    "latent": "routed_expert_hidden_size moe_hidden_size moe_latent_size",  # width of the experts' input
}
METHODS_READ = ("fp8", "mxfp4", "compressed-tensors")
FORMATS_READ = ("pack-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")


def as_json(config: Any) -> Any:
    """The config as config.json would have it. Infinity and NaN, which JSON does not have, become None."""
    return json.loads(json.dumps(config, default=str), parse_constant=lambda _: None)


def value_of(level: Any, path: str) -> Any:
    """The value of key "a.b", else of key "b" of the object under "a"; None if there is none."""
    if not isinstance(level, dict) or path in level:
        return level[path] if isinstance(level, dict) else None
    first, _, rest = path.partition(".")
    return value_of(level.get(first), rest) if rest else None


def string_at(level: Any, path: str) -> str | None:
    value = value_of(level, path)
    return value if isinstance(value, str) and value else None


def number_in(value: Any, index: int = 0) -> int:
    """A positive number, or the one at `index` of a list; 0: none."""
    if isinstance(value, list):
        value = value[index] if index < len(value) else 0
    return value if type(value) is int and 0 < value <= MOST else 0


@dataclass
class Config:
    """Facts of config.json."""

    levels: list[dict[str, Any]]  # the objects to look up keys in, the top one first
    model_type: str | None = None  # None: unknown
    family: Family | None = None  # None: in no row
    quant: dict[str, Any] = field(default_factory=dict)
    quant_method: str | None = None
    block: tuple[int, int] = DEFAULT_BLOCK  # rows and columns of f8 scales

    @staticmethod
    def read(config: Any, path: str) -> Config:
        """Raises ValueError for a quantisation that is not read."""
        config = as_json(config)
        levels = [config, *(value_of(config, name) for name in LEVELS)]
        out = Config([level for level in levels if isinstance(level, dict)])
        out._find_family()
        out._find_quantisation()
        out._check_method(path)
        return out

    def number(self, what: str, index: int = 0) -> int:
        """The positive number under the keys KEYS[what]; of a list, the one at `index`; 0: unknown."""
        values = (value_of(level, key) for level in self.levels for key in KEYS[what].split())
        return next((number for value in values if (number := number_in(value, index))), 0)

    def flag(self, name: str) -> bool:
        return self.family is not None and name in self.family.flags

    @property
    def family_name(self) -> str:
        name = self.model_type or (self.family.model_types[0] if self.family else "")
        return name.partition(" ")[0]

    def group(self, cols: int, scales: int) -> int:
        """How many columns share a scale in a 4-bit matrix with `cols` columns and `scales` scales a row; 0: no
        group of the config has such a size."""
        for group in self._groups():
            size = number_in(value_of(group, "weights.group_size")) or cols  # one scale a row
            if number_in(value_of(group, "weights.num_bits")) == 4 and -(-cols // size) == scales:
                return size
        return 0

    def _find_family(self) -> None:
        """Sets family and model_type: the first type from the top level down that is in the table; if none is,
        the first one."""
        types = [found for level in self.levels if (found := string_at(level, "model_type"))]
        known = [(found, one) for found in types for one in FAMILIES if found in one.model_types]
        self.model_type, self.family = known[0] if known else (types[0] if types else None, None)
        if self.levels and not types and isinstance(self.levels[0].get("moe"), dict):
            self.family = next(one for one in FAMILIES if "no_config" in one.flags)

    def _groups(self) -> Iterator[Any]:
        groups = self.quant.get("config_groups")
        return iter(groups.values() if isinstance(groups, dict) else ())

    def _find_quantisation(self) -> None:
        found = [value_of(level, key) for level in self.levels for key in ("quantization_config", "compression_config")]
        self.quant = next((quant for quant in found if isinstance(quant, dict)), {})
        self.quant_method = self._method()
        pairs = [value_of(group, "weights.block_structure") for group in self._groups()]
        for pair in (*pairs, self.quant.get("weight_block_size")):
            if isinstance(pair, list) and len(pair) == 2 and number_in(pair, 0) and number_in(pair, 1):
                self.block = (pair[0], pair[1])

    def _method(self) -> str | None:
        signs = {
            "quant_algo": "modelopt",
            "load_in_4bit": "bitsandbytes",
            "load_in_8bit": "bitsandbytes",
            "config_groups": "compressed-tensors",
        }
        given = string_at(self.quant, "quant_method")
        return given or next((method for key, method in signs.items() if key in self.quant), None)

    def _check_method(self, path: str) -> None:
        if self.quant_method and self.quant_method not in METHODS_READ:
            raise ValueError(
                f"{path}: config.json: weights quantised by {self.quant_method} are not read; "
                "fp8, mxfp4 and compressed-tensors are"
            )
        if self.quant_method != "compressed-tensors":
            return
        for level in (self.quant, *self._groups()):
            form = string_at(level, "format")
            if form and form not in FORMATS_READ:
                raise ValueError(
                    f"{path}: config.json: compressed-tensors in the format {form} is not read; "
                    "pack-quantized (4 bits, symmetric) and float-quantized are"
                )


TABLE = pathlib.Path(__file__).parent / "families.json"
FAMILIES = [Family(**row) for row in json.loads(TABLE.read_text())]
