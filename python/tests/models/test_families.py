"""couplet.models._moe_map on three sets: the cases of the C reader that a model in memory may have, the checkpoints of
tests/golden, and the models of Transformers."""

import itertools
import json
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, model_of
from couplet import hf
from couplet.models._moe_map import NUMBERS, moe_map
from test_hf import MODELS, SHAPE
from test_hf_models import FAMILIES as MORE_MODELS

# ---- the cases of tests/inspect/families/cases.txt ---------------------------------------------------


def numbered(name):
    """Returns the names for all numbers of {0-5} in a name."""
    parts = re.split(r"\{(\d+)-(\d+)\}", name)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3])]
    return [
        "".join(map(str, itertools.chain(*itertools.zip_longest(parts[::3], chosen, fillvalue=""))))
        for chosen in itertools.product(*ranges)
    ]


def cases():
    """Yields (name, config, tensors, map, parts of the error) of each case that a model in memory may be. Cases with
    metadata of GGUF, quantised tensors or adapters alone are left out."""
    text = (ROOT / "tests/inspect/families/cases.txt").read_text()
    for block in re.sub(r"^#.*\n", "", text, flags=re.M).strip().split("\n\n"):
        lines = block.strip().splitlines()
        words, config, wanted, parts, tensors = [], "null", [], [], []
        for line in lines:
            key, _, rest = line.partition(" ")
            if key == "case":
                words += rest.split()
            elif key in ("config", "gguf"):
                config = rest
            elif key in ("=", "!"):
                (wanted if key == "=" else parts).append(rest)
            else:
                tensors += [tensor.split() for tensor in re.split("; *", line) if tensor]
        if any(line.startswith("gguf") for line in lines) or '"quant' in config:
            continue
        if any(dtype not in NUMBERS or ".lora_" in name for name, dtype, _ in tensors):
            continue
        listed = [
            (name, dtype, list(map(int, shape.split(","))))
            for names, dtype, shape in tensors
            for name in numbered(names)
        ]
        for word in words:
            named = [line.replace("$", word) for line in wanted]
            yield word, json.loads(config.replace("$", word)), listed, named, parts


def as_text(found):
    """Returns the map in the form of cases.txt, without counts of layers and biases, which Python does not look for."""
    lines = [f"{found.family}{' guess' if found.guess else ''}"]
    for layer in found.layers:
        start = f"{layer.part} {layer.prefix}".strip()
        if layer.skip:
            lines.append(f"{start} skip {layer.skip}")
            continue
        is_each = len(layer.matrices) > 1
        layout = "columns" if layer.columns else "each" if is_each and not layer.half else "rows"
        line = f"{start} {layer.n} {layer.d} {layer.D} {layer.K} {layout}"
        line += f" of {layer.width}" if layer.width != layer.D else ""
        line += f" {layer.half}" if layer.half in ("interleaved", "second") else ""
        line += f" in {len(layer.matrices)}" if is_each and layout != "each" else ""
        line += " turned" if layer.router_transposed else ""
        line += f" extra {layer.extra_rows}" if layer.extra_rows else ""
        if layer.projection:
            line += f" latent {layer.l}{' by shape' if layer.projection_by_shape else ''} "
            line += layer.projection.removeprefix(layer.prefix)
        if layer.latent_norm:
            line += f" then {layer.latent_norm.removeprefix(layer.prefix)} {layer.latent_eps:g}"
        lines.append(line + ("" if layer.comparable else " incomparable"))
    return lines


CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=[f"{i} {case[0]}" for i, case in enumerate(CASES)])
def test_case(case):
    _, config, tensors, wanted, parts = case
    parts = parts + [line.partition(" fault ")[2] for line in wanted if " fault " in line]
    if parts:
        with pytest.raises(ValueError) as error:
            moe_map("case", config, tensors)
        assert str(error.value).count("case: ") == len(parts) and all(part in str(error.value) for part in parts)
        return
    wanted = [re.sub(r"^(\S*) \d+ \d+", r"\1", wanted[0]), *(line.replace(" biased", "") for line in wanted[1:])]
    assert as_text(moe_map("case", config, tensors)) == wanted


def test_most_cases_are_plain():
    assert len(CASES) > 120


def test_many_faults():
    tensors = [(f"model.layers.{l}.mlp.experts.{e}.w1.weight", "F32", [20, 32]) for l in range(5) for e in range(6)]
    with pytest.raises(ValueError, match=r"model\.layers\.2\. has experts .*; faults that are not shown: 2$"):
        moe_map("a model", {"model_type": "odd"}, tensors)


# ---- checkpoints ---------------------------------------------------------------------------------------

GOLDEN = sorted(path.parent for path in (ROOT / "tests/golden/families").glob("*/expected.json"))


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_golden(folder):
    entries = {name: entry for path in folder.glob("*.safetensors") for name, entry in header_of(path).items()}
    entries.pop("__metadata__", None)
    if any(entry["dtype"] not in (*NUMBERS, "I64") for entry in entries.values()):
        pytest.skip("quantised")
    tensors = [(name, entry["dtype"], entry["shape"]) for name, entry in entries.items()]
    want = json.loads((folder / "expected.json").read_text())
    found = moe_map("golden", json.loads((folder / "config.json").read_text()), tensors)
    assert found.family == want["family"] and not found.guess
    assert [layer.layer for layer in found.layers] == [layer["layer"] for layer in want["layers"]]
    for layer, wanted in zip(found.layers, want["layers"]):
        for size in {"n", "d", "l", "D", "K"} & set(wanted):
            assert getattr(layer, size) == wanted[size]


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
    found = moe_map("a model", hf.config_of(model), tensors)
    assert len(found.layers) == 2 and not found.guess


def test_needs_neither_torch_nor_the_library():
    check = (
        "import sys; sys.modules['torch'] = None; import couplet.models._moe_map; "
        "assert 'couplet.ops._library' not in sys.modules and 'ctypes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
