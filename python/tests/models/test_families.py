"""couplet.models._moe_map against the C library's reader of the same rules: the same answer or the same sentence for
every family of the table in every layout, for damaged requests, and for models of Transformers."""

import copy
import itertools
import random
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace

import c_reader
import pytest
import torch
from conftest import ROOT, model_of
from couplet import hf
from couplet.models._families import FAMILIES, Family
from couplet.models._moe_map import moe_map
from test_hf import MODELS, SHAPE
from test_hf_models import FAMILIES as MORE_MODELS

pytest.importorskip("transformers")

N, WIDTH, D = 6, 32, 20
DAMAGED, SEED = 4000, 5


def answer(reader, request):
    try:
        return reader("a model", *request)
    except ValueError as error:
        return str(error)


def same(request, what=""):
    """The answer of both."""
    want, got = answer(c_reader.moe_map, request), answer(moe_map, request)
    assert got == want, (what, request)
    return want


# ---- requests: every layout of tests/inspect/families --------------------------------------------------


def blocks_of(shape, rows, cols):
    return [*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // cols)]


FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 24]}}
FLOATS = {"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}
BLOCKS = {"quantization_config": {"config_groups": {"g": {"weights": {"block_structure": [16, 24]}}}}}
INT4 = {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 16}}},
    }
}
# How numbers are stored: the config, and endings, types and shapes of the tensors of a matrix or a stack.
STORED = {
    "bf16": ({}, lambda s: [(".weight", "BF16", s)]),
    "bare f32": ({}, lambda s: [("", "F32", s)]),
    "f8 blocks": (FP8, lambda s: [(".weight", "F8_E4M3", s), (".weight_scale_inv", "F32", blocks_of(s, 16, 24))]),
    "f8 groups": (BLOCKS, lambda s: [(".weight", "F8_E5M2", s), (".weight_scale", "BF16", blocks_of(s, 16, 24))]),
    "f8 exponents": (FP8, lambda s: [("", "F8_E4M3", s), (".scale", "U8", blocks_of(s, 16, 24))]),
    "f8 stacked": (FP8, lambda s: [("", "F8_E4M3", s), ("_scale_inv", "F8_E8M0", blocks_of(s, 16, 24))]),
    "f8 rows": (FLOATS, lambda s: [(".weight", "F8_E4M3", s), (".weight_scale", "BF16", [*s[:-1], 1])]),
    "f8 columns": (FLOATS, lambda s: [("", "F8_E4M3", s), ("_scale", "BF16", [*s[:-2], 1, s[-1]])]),
    "f8 whole": (FLOATS, lambda s: [(".weight", "F8_E4M3", s), (".weight_scale", "F32", [1])]),
    "f8 alone": (FP8, lambda s: [(".weight", "F8_E4M3", s)]),
    "mxfp4": ({}, lambda s: [("_blocks", "U8", [*s[:-1], s[-1] // 32, 16]), ("_scales", "U8", [*s[:-1], s[-1] // 32])]),
    "mxfp4 flat": ({}, lambda s: [("_blocks", "U8", [*s[:-1], s[-1] // 2]), ("_scales", "U8", blocks_of(s, 1, 32))]),
    "f4": (FP8, lambda s: [(".weight", "I8", [*s[:-1], s[-1] // 2]), (".scale", "F8_E8M0", blocks_of(s, 1, 32))]),
    "int4": (
        INT4,
        lambda s: [
            (".weight_packed", "I32", blocks_of(s, 1, 8)),
            (".weight_scale", "BF16", blocks_of(s, 1, 16)),
            (".weight_shape", "I64", [2]),
        ],
    ),
    "mlx": (
        {},
        lambda s: [
            (".weight", "U32", blocks_of(s, 1, 8)),
            (".scales", "F16", blocks_of(s, 1, 16)),
            (".biases", "F16", blocks_of(s, 1, 16)),
        ],
    ),
    "gptq": ({}, lambda s: [(".qweight", "I32", blocks_of(s, 1, 8)), (".scales", "F16", blocks_of(s, 16, 1))]),
}
KINDS = ("rows", "columns", "flat")


@dataclass(frozen=True)
class Case:
    """A model of two layers; `config` as more of its config."""

    model_type: str
    router: str
    gate: str
    kind: str = "rows"  # the gate's width is an axis of rows or of columns; flat: [n A, d]
    d: int = WIDTH
    D: int = D
    stored: str = "bf16"
    prefixes: tuple = ("model.layers.0.", "model.layers.1.")
    router_turned: bool = False
    extra: int = 0  # rows of the router for no expert
    more_experts: int = 0  # of another width
    dense: int = 0  # layers before
    bias: bool = False
    down: str = ""  # a down projection that goes with rows or columns, in the gates' module
    others: dict = field(default_factory=dict, hash=False)
    config: dict = field(default_factory=dict, hash=False)

    def _gates(self, prefix):
        each, n, name = "{e}" in self.gate, N + self.more_experts, self.gate.strip("*+-")
        for e in range(n if each else 1):
            A = (self.D if e < N else 12) * (2 if self.gate.endswith("+") else 1)
            shape = [self.d, A] if self.kind == "columns" else [A, self.d]
            if not each:
                shape = [n * A, self.d] if self.kind == "flat" else [n, *shape]
            for ending, type_name, stored in STORED[self.stored][1](shape):
                yield prefix + name.replace("{e}", str(e)) + ending, type_name, stored
            if self.bias:
                yield prefix + name.replace("{e}", str(e)) + ".bias", "F32", [A]
            if self.down:
                down = [self.D, self.d] if self.down == "columns" else [self.d, self.D]
                yield (
                    f"{prefix}{name.rpartition('.')[0]}.down".replace("{e}", str(e)),
                    "BF16",
                    down if each else [n, *down],
                )

    def request(self):
        rows = N + self.extra
        dense = [f"model.layers.{l}.mlp.gate_proj.weight" for l in range(self.dense)]
        tensors = [(name, "BF16", [56, self.d]) for name in dense]
        for prefix in self.prefixes:
            router = [self.d, rows] if self.router_turned else [rows, self.d]
            tensors.append((f"{prefix}{self.router.strip('*')}.weight", "BF16", router))
            tensors += [(f"{prefix}{self.router}.bias", "F32", [rows])] if self.bias else []
            tensors += self._gates(prefix)
            tensors += [
                (prefix + "self_attn.q_proj.weight", "BF16", [self.d, self.d]),
                (prefix + "mlp.shared_experts.gate_proj.weight", "BF16", [24, self.d]),
            ]
        tensors += [(name, "BF16", shape) for name, shape in self.others.items()]
        config = {"model_type": self.model_type, "num_hidden_layers": 2 + self.dense}
        return (
            {**config, **STORED[self.stored][0], **self.config},
            [(name, type_name, list(shape)) for name, type_name, shape in tensors],
        )


ENCODER_DECODER = ("encoder.block.1.layer.1.", "decoder.block.1.layer.2.", "decoder.block.3.layer.2.")
TEXT = "model.language_model.layers.0."
VARIANTS = [
    dict(),
    dict(D=WIDTH),
    dict(D=WIDTH // 2),
    dict(D=21),
    dict(d=N),
    dict(d=N, D=N),
    dict(d=N, D=N // 2),
    dict(config={"num_experts_per_tok": 2}),
    dict(config={"moe_topk": [2, 1], "num_experts": [N, N]}),
    dict(config={"ffn_config": {"moe_top_k": 2}, "moe": {"num_experts": N}}),
    dict(config={"text_config": {"top_k_experts": 2}, "thinker_config": {"text_config": {"moe_k": 3}}}),
    dict(config={"model_type": "odd", "text_config": {"model_type": "gpt_oss"}}),
    dict(config={"model_type": None, "moe": {"num_experts_per_tok": 2}}),
    *(
        dict(D=size, down=down, stored=stored)
        for size in (D, WIDTH // 2)
        for down in KINDS[:2]
        for stored in ("bf16", "f8 rows", "f8 columns", "f8 stacked", "mxfp4")
    ),
    dict(prefixes=("model.layers.0._orig_mod.", "layers.1._checkpoint_wrapped_module._fsdp_wrapped_module.")),
    dict(prefixes=ENCODER_DECODER),
    dict(prefixes=(TEXT, "visual.blocks.0.", "audio.layers.0.")),
    dict(prefixes=("mtp.layers.0.", "model.layers.0.", "h.1.")),
    dict(prefixes=("h.0.", "blk.0.")),
    dict(prefixes=("transformer.decoder_layer.0.", "transformer.blocks.1.")),
    dict(prefixes=("model.layers.0.", "model.layers.7."), dense=1),
    dict(router_turned=True),
    dict(router_turned=True, D=WIDTH),
    dict(router_turned=True, D=WIDTH // 2),
    dict(router_turned=True, more_experts=N),
    dict(more_experts=N),
    dict(dense=1, bias=True),
    dict(extra=3),
    dict(extra=1),
    dict(extra=3, config={"n_routed_experts": N, "moe_topk": 8}),
    dict(extra=3, more_experts=3, config={"n_routed_experts": N}),
    dict(others={"model.layers.0.mlp.gate.tid2eid": [64, 2], "model.layers.1.router_mlp.fc1.weight": [7, 8]}),
    dict(others={"model.layers.0.pre_expert_proj.weight": [16, WIDTH]}, config={"moe_latent_size": 16}),
    dict(others={"model.layers.0.fc1_latent_proj.weight": [WIDTH, D]}, kind="columns"),
    *(dict(stored=stored, D=d) for stored in STORED for d in (D, WIDTH // 2)),
]


def rules_of(family):
    return family.router, family.gate, family.flags


FIRST = {str(rules_of(family)): family for family in reversed(FAMILIES)}  # of those with the same rules


def cases_of(family):
    """Every layout for each gate of the row; a few for other names and for the rules of an earlier row."""
    few, all_or_few = VARIANTS[:4], VARIANTS if FIRST.get(str(rules_of(family))) is family else VARIANTS[:4]
    gates = family.gate or FAMILIES[-1].gate[:1]
    first, *others = family.model_types or ("brand_new", "")
    names = [(first, family.router[0], gate, all_or_few) for gate in gates]
    names += [(first, router, gates[0], few) for router in family.router[1:]]
    names += [(other, family.router[0], gate, few) for other in others for gate in gates]
    for model_type, router, gate, variants in names:
        for kind, variant in itertools.product(KINDS[:2] if "{e}" in gate else KINDS, variants):
            yield replace(Case(model_type, router, gate, kind), **variant)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title or "no family")
def test_every_layout(family):
    answers = [same(case.request(), case) for case in cases_of(family)]
    layers = [layer for found in answers if isinstance(found, dict) for layer in found["layers"]]
    measured = [layer for layer in layers if not layer["fault"] and not layer["skip"]]
    assert len(measured) > len(layers) // 4 or family.model_types == ["doge"]


# ---- the lists of words in the C source ----------------------------------------------------------------


def words_of(name):
    """Every word in the strings of a file of src, messages left out."""
    text = re.sub(r"/\*.*?\*/|#include[^\n]*", "", (ROOT / "src" / name).read_text(), flags=re.S)
    strings = [string for string in re.findall(r'"([^"\n]+)"', text) if "%" not in string]
    return list(dict.fromkeys(word for string in strings for word in string.split()))


def with_word(word):
    """Tensors whose names have the word in every place where one may mean something."""
    each, any_block = Case("olmoe", "mlp.gate", "mlp.experts.{e}.gate_proj"), "moe.experts.0.gate_proj.weight"
    config, tensors = each.request()
    yield replace(each, prefixes=(f"model.{word}0.", f"{word}.layers.1.")).request()
    yield replace(each, others={f"model.layers.0.{word}": [16, WIDTH]}).request()
    yield (
        config,
        [
            (name, t, [16 if size == WIDTH and "experts" in name else size for size in shape])
            for name, t, shape in [*tensors, (f"model.layers.1.{word}.weight", "F32", [16, WIDTH])]
        ],
    )
    yield {"model_type": "olmoe"}, [*tensors, (f"model.layers.2.{word}.{any_block}", "F32", [D, WIDTH])]
    yield config, [*tensors, (f"model.layers.1.mlp.experts.0.gate_proj{word}", "F32", [1])]
    yield config, [(name.replace("proj.weight", "proj" + word), t, shape) for name, t, shape in tensors]
    yield config, [*tensors, (f"model.layers.0.mlp.experts.{word}", "F32", [16, WIDTH])]


def test_every_word_of_names():
    for word in words_of("inspect/families/names.c"):
        for request in with_word(word):
            same(request, word)


def nested(key, value):
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def configs_with(word, later):
    """Configs that have the word as a key or a value; `later`: the words after it."""
    yield from (
        nested(word, value)
        for value in (
            1,
            4,
            16,
            [3, 4],
            "fp8",
            {"quant_method": "gptq"},
            {"num_experts_per_tok": 3, "moe_latent_size": 16},
        )
    )
    yield {word: 4, "text_config": {one: 5 for one in later}}
    yield {word: 4, **{one: 5 + i for i, one in enumerate(later)}}
    quants = (
        {"quant_method": word},
        {word: {}},
        {"quant_method": "compressed-tensors", "format": word},
        {"config_groups": {"a": {"format": word}}},
        {"config_groups": {"a": {}}, "format": word},
    )
    yield from ({"quantization_config": quant} for quant in quants)
    yield from ({word: {"quant_method": "vptq"}}, {"model_type": word})


def test_every_word_of_config():
    words = words_of("inspect/families/config.c")
    each = Case("olmoe", "mlp.gate", "mlp.experts.{e}.gate_proj")
    longcat = replace(each, model_type="longcat", router="mlp.router.classifier", extra=3)
    latent = {
        f"model.layers.2.{name}": shape
        for name, shape in {"mlp.gate.weight": [N, WIDTH], "mlp.experts.gate_up_proj": [N, 2 * D, 16]}.items()
    }
    for i, word in enumerate(words):
        for config in configs_with(word, words[i + 1 :]):
            for case in (each, longcat, replace(each, prefixes=("model.layers.3.",), others=latent)):
                config_of_case, tensors = case.request()
                del config_of_case["num_hidden_layers"]
                same(({**config_of_case, **config}, tensors), word)


FORMATS = re.findall(r"FORMAT\((\w+), ", (ROOT / "src/tensor/formats.h").read_text())
TYPES = (*FORMATS, "U8", "I8", "I32", "OTHER", "")


@pytest.mark.parametrize("role", ("gate.weight", "router.weight", "gate_up_proj", "_scale"))
def test_every_type(role):
    for case, type_name in itertools.product(
        cases_of(
            Family(["gpt_oss"], "", [], ["mlp.router"], ["mlp.experts.gate_up_proj+", "mlp.experts.{e}.gate_proj"], [])
        ),
        TYPES,
    ):
        config, tensors = case.request()
        same((config, [(n, type_name if role in n else t, s) for n, t, s in tensors]), (case, type_name))


# ---- damaged requests ----------------------------------------------------------------------------------

WORDS = """experts gate gate_up_proj router mlp w13_weight w1 up_proj layers h mtp visual encoder decoder
    shared_experts 0 1 3 6 00 1234567890 weight bias weight_scale qweight SCB weight_zero_point router_mlp
    latent_proj self_attn x""".split()
VALUES = (0, 1, 2, N, 9, -3, 2.0, 1 << 41, True, None, "6", "", [2, 2], [7], [], {}, [[6]], float("nan"))
KEYS = """num_hidden_layers n_layer num_experts n_routed_experts moe.num_experts num_experts_per_tok moe_k
    moe_latent_size text_config moe model_type quantization_config ffn_config
    thinker_config.text_config""".split()
MODEL_TYPES = (
    "",
    "odd",
    "odd one",
    "gpt_oss_finetune",
    "git",
    "mixtral",
    "gpt_oss",
    "longcat",
    "inkling",
    "llama4",
    "ernie4_5_moe",
    "ernie4_5_moe_vl",
    "qwen3_vl_moe",
    "gemma4",
    "doge",
    7,
    None,
    ["mixtral"],
)
QUANTS = (
    {},
    {"quant_method": "gptq"},
    {"quant_method": "fp8"},
    {"quant_algo": None},
    {"load_in_8bit": False},
    {"config_groups": {}},
    {"config_groups": {"a": {"format": "int-quantized"}, "b": 3}},
    {"quant_method": "compressed-tensors", "format": "nvfp4"},
    {"quant_method": "mxfp4"},
    {"config_groups": {"a": {"weights": {"num_bits": 4}}}},
    {"weight_block_size": [8, 0]},
    {"quant_method": "fp8", "weight_block_size": [7, 5]},
    {"quant_method": "fp8", "weight_block_size": [8]},
)
SIZES = (0, 1, N, 16, D, 31, WIDTH, 33, 40)


def drop(rng, config, tensors):
    del tensors[rng.randrange(len(tensors))]


def drop_kind(rng, config, tensors):
    """All with the same last words, or of one layer."""
    name = rng.choice(tensors)[0]
    part = rng.choice((".".join(name.split(".")[-2:]), name[: name.find(".", len("model.layers."))]))
    tensors[:] = [tensor for tensor in tensors if part not in tensor[0]] or tensors[:1]


def reshape(rng, config, tensors):
    shape = rng.choice(tensors)[2]
    i = rng.randrange(len(shape) + 1)
    how = rng.choice(("set", "set", "set", "insert", "reverse", "extend"))
    shape[i : i + (how == "set")] = [rng.choice(SIZES)] if how in ("set", "insert") else []
    shape[:] = shape[::-1] if how == "reverse" else shape + [1] * 5 if how == "extend" else shape


def reshape_kind(rng, config, tensors):
    """All of a name without numbers alike."""
    name, _, shape = rng.choice(tensors)
    like, new = re.sub("[0-9]+", "", name), [rng.choice((size, WIDTH, N, 16, 2 * size, 1)) for size in shape]
    tensors[:] = [(n, t, list(new) if re.sub("[0-9]+", "", n) == like else s) for n, t, s in tensors]


def swap(rng, config, tensors):
    """Names, types or shapes of two."""
    i, j, k = rng.randrange(len(tensors)), rng.randrange(len(tensors)), rng.randrange(3)
    a, b = list(tensors[i]), list(tensors[j])
    a[k], b[k] = b[k], a[k]
    tensors[j], tensors[i] = tuple(b), tuple(a) if i != j else tuple(b)


def retype(rng, config, tensors):
    i = rng.randrange(len(tensors))
    name, _, shape = tensors[i]
    tensors[i] = name, rng.choice(TYPES), shape


def rename(rng, config, tensors):
    i = rng.randrange(len(tensors))
    name, type_name, shape = tensors[i]
    words = name.split(".")
    at = rng.randrange(len(words) + 1)
    words[at : at + rng.randrange(3)] = rng.sample(WORDS, rng.randrange(3))
    tensors[i] = ".".join(words), type_name, shape


def rename_kind(rng, config, tensors):
    """A word in all names."""
    old, new = rng.choice(rng.choice(tensors)[0].split(".")), rng.choice(WORDS)
    tensors[:] = [(re.sub(rf"(?<![^.]){re.escape(old)}(?![^.])", new, n), t, s) for n, t, s in tensors]


def add(rng, config, tensors):
    """A tensor with a name like that of another."""
    name, type_name, shape = rng.choice(tensors)
    name = name.removesuffix(".weight") + "." + rng.choice(WORDS)
    tensors.append((name, rng.choice((type_name, "U8")), list(shape)))


def twice(rng, config, tensors):
    """A second model, or the moments of an optimizer."""
    before = rng.choice((("other.", ""), ("decoder.", "encoder."), ("m.", "v.")))
    tensors[:] = [(start + n, t, list(s)) for start in before for n, t, s in tensors]


def set_number(rng, config, tensors):
    config[rng.choice(KEYS)] = rng.choice(VALUES)


def set_model_type(rng, config, tensors):
    config["model_type"] = rng.choice(MODEL_TYPES)


def set_quantisation(rng, config, tensors):
    config[rng.choice(("quantization_config", "compression_config"))] = copy.deepcopy(rng.choice(QUANTS))


def nest(rng, config, tensors):
    """All or some of the config below its top."""
    some = {key: config.pop(key) for key in list(config) if rng.random() < 0.6}
    config[rng.choice(("text_config", "llm_config", "thinker_config.text_config", "unread"))] = some


DAMAGES = (
    drop,
    drop_kind,
    reshape,
    reshape_kind,
    swap,
    retype,
    rename,
    rename_kind,
    add,
    twice,
    set_number,
    set_model_type,
    set_quantisation,
    nest,
)


def damaged(rng, cases):
    config, tensors = copy.deepcopy(rng.choice(cases).request())
    for damage in rng.choices(DAMAGES, k=rng.choice((1, 1, 2, 3))):
        damage(rng, config, tensors)
        if not tensors:
            break
    unique = list({name: (name, type_name, shape) for name, type_name, shape in tensors}.values())
    rng.shuffle(unique)
    return rng.choice((config, config, config, config, config, {}, None, [config], 3)), unique


def kind_of(sentence):
    """Without names and numbers."""
    return re.sub(r"\S*[\d._]\S*", "#", sentence)


def test_no_tensors():
    for config in ({}, {"model_type": "olmoe"}, None):
        assert same((config, [])).endswith("there are no tensors")


def test_damaged():
    rng = random.Random(SEED)
    cases = [case for family in FAMILIES for case in cases_of(family)]
    answers = [same(damaged(rng, cases)) for _ in range(DAMAGED)]
    layers = [layer for found in answers if isinstance(found, dict) for layer in found["layers"]]
    sentences = [found for found in answers if isinstance(found, str)]
    faults = [layer["fault"] for layer in layers if layer["fault"]]
    assert len(sentences) < DAMAGED * 3 // 4
    assert len(set(map(kind_of, sentences))) > 20 and len(set(map(kind_of, faults))) > 20


# ---- models of Transformers ----------------------------------------------------------------------------

LIVE = {
    **{name: (model, config, {**SHAPE, **settings}) for name, (model, config, settings) in MODELS.items()},
    **{name: (model, config, settings) for name, (model, config, settings, *_) in MORE_MODELS.items()},
}


@pytest.mark.parametrize("name", LIVE)
def test_live(name):
    with torch.device("meta"):
        model = model_of(*LIVE[name])
    tensors = [(name, hf.TYPE_NAMES[str(p.dtype)], p.shape) for name, p in model.named_parameters()]
    found = same((hf.config_of(model), tensors))
    assert len(found["layers"]) == 2 and not found["guess"]
    assert not any(layer["fault"] for layer in found["layers"])


def test_needs_neither_torch_nor_the_library():
    check = (
        "import sys; sys.modules['torch'] = None; import couplet.models._moe_map; "
        "assert 'couplet.ops._library' not in sys.modules and 'ctypes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
