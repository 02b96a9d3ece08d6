#!/usr/bin/env python3
"""check_grad.py COUPLET: `couplet grad` on directories of every form and on equal experts and router rows, and its
sentences for wrong rows, noise and directories."""

import array
import json
import math
import shutil
import sys

from inputs import GOLDEN, files_of, read_json, read_tensors, tensors_of, write_floats
from losses import check_total, losses_of_tensors, weights_of
from program import bad, check, finish, good, scratch_folder, sets


def cut_to_bf16(numbers):
    raw = numbers.tobytes()
    return array.array("f", b"".join(b"\0\0" + raw[i + 2 : i + 4] for i in range(0, len(raw), 4)))


def fuse(tensors, layers, experts):
    fused = {name: value for name, value in tensors.items() if ".experts." not in name}
    for layer in range(layers):
        both, down = array.array("f"), array.array("f")
        for expert in range(experts):
            name = f"model.layers.{layer}.mlp.experts.{expert}."
            (rows, cols), gate = tensors[name + "gate_proj.weight"]
            both += gate + tensors[name + "up_proj.weight"][1]
            down += tensors[name + "down_proj.weight"][1]
        name = f"model.layers.{layer}.mlp.experts."
        fused[name + "gate_up_proj"] = ([experts, 2 * rows, cols], both)
        fused[name + "down_proj"] = ([experts, cols, rows], down)
    return fused


def shard(folder, tensors):
    names, files = sorted(tensors), ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for i, file in enumerate(files):
        write_floats(folder / file, {name: tensors[name] for name in names[i::2]})
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def check_forms(folder):
    """Single, fused, sharded and BF16 directories of equal numbers give equal bytes."""
    base = GOLDEN / "model" / "base"
    config = read_json(base / "config.json")
    tensors = {
        name: (shape, cut_to_bf16(numbers)) for name, (shape, numbers) in tensors_of(base / "model.safetensors").items()
    }
    layers, experts = config["num_hidden_layers"], config["num_experts"]
    fused = fuse(tensors, layers, experts)
    results = []
    for name in ("single", "fused", "sharded", "sharded-fused", "bf16"):
        model = folder / name
        model.mkdir()
        shutil.copy(base / "config.json", model)
        what = fused if "fused" in name else tensors
        if "sharded" in name:
            shard(model, what)
        else:
            write_floats(model / "model.safetensors", what, "BF16" if name == "bf16" else "F32")
        before = files_of(model)
        good(
            f"grad {model} --tokens {base}/tokens.json --out {folder}/{name}.out --delta {base}/delta.safetensors "
            "--set compute.threads=2"
        )
        check(files_of(model) == before, f"grad changed {name}")
        results.append((folder / f"{name}.out").read_bytes())
        check(results[-1] == results[0], f"{name} gives other gradients than single")


def write_layer(model, case, given):
    """Writes a model of one layer with the matrices `given` of a case of tests/golden/erc. The other matrices are zero,
    so that no other loss has a gradient. Returns the names, each with the case's matrix and its range."""
    n, d, D = (case[key] for key in ("n", "d", "D"))
    parts = {"model.layers.0.mlp.gate.weight": ("R", 0, n * d)} | {
        f"model.layers.0.mlp.experts.{e}.{name}_proj.weight": (key, e * d * D, (e + 1) * d * D)
        for e in range(n)
        for key, name in (("Wg", "gate"), ("Wp", "up"), ("Wo", "down"))
    }
    shapes = {"R": [n, d], "Wg": [D, d], "Wp": [D, d], "Wo": [d, D]}
    tensors = {
        name: (shapes[key], given[key][begin:end] if key in given else [0.0] * (end - begin))
        for name, (key, begin, end) in parts.items()
    }
    for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
        tensors[f"model.layers.0.{name}.weight"] = ([d], [0.0] * d)
    for name in "qkvo":
        tensors[f"model.layers.0.self_attn.{name}_proj.weight"] = ([d, d], [0.0] * d * d)
    for name, rows in (("model.norm", []), ("model.embed_tokens", [8]), ("lm_head", [8])):
        tensors[f"{name}.weight"] = ([*rows, d], [0.0] * math.prod(rows) * d)
    write_floats(model / "model.safetensors", tensors)
    ones = ("num_experts_per_tok", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {"hidden_size": d, "intermediate_size": D, "num_experts": n, "vocab_size": 8, "eos_token_id": 0}
    config = read_json(GOLDEN / "model" / "base" / "config.json") | dict.fromkeys(ones, 1) | sizes
    (model / "config.json").write_text(json.dumps(config))
    return parts


def check_ties(folder):
    """Equal experts and equal router rows give the gradients of tests/golden/erc."""
    model, rows, delta, out = (folder / name for name in ("tied", "tied.json", "tied.delta", "tied.out"))
    model.mkdir()
    rows.write_text('{"input_ids": [[2, 3]]}')
    for case in read_json(GOLDEN / "erc" / "cases.json"):
        if not case["name"].startswith("tied-"):
            continue
        given = {
            key: array.array("d" if kind == "F64" else "f", raw)
            for key, (kind, _, raw) in read_tensors(GOLDEN / "erc" / f"{case['name']}.safetensors").items()
        }
        parts = write_layer(model, case, given)
        if "delta" in given:
            write_floats(delta, {"delta.0": ([case["n"], case["d"]], given["delta"])})
        for threads in (1, 4):
            good(
                f"grad {model} --tokens {rows} --out {out} --overwrite --set erc.activation={case['activation']} "
                f"--set erc.noise={case['noise']} --set erc.weight={case['weight']} --set balance.weight=0 "
                f"--set z.weight=0 --set compute.threads={threads}",
                *(["--delta", delta] if "delta" in given else []),
            )
            made = tensors_of(out)
            for name, (key, begin, end) in parts.items():
                want = given["d" + key][begin:end] if "d" + key in given else [0.0] * (end - begin)
                off = math.dist(made[f"grad.{name}"][1], want)
                check(
                    off <= 1e-5 * math.hypot(*want) + 1e-7, f"{case['name']}, {threads} threads: {name} is off by {off}"
                )


def check_rows(folder):
    model = GOLDEN / "model" / "base"
    rows = folder / "rows.json"
    vocab = read_json(model / "config.json")["vocab_size"]
    words = ("grad", model, "--tokens", rows, "--out", folder / "rows.out", "--overwrite")
    for text, parts in (
        ('{"input_ids": [[1, 2, 3], [4, 5]]}', ["row 1", "2 ids", "3"]),
        ('{"input_ids": [[1, 2], [3]]}', ["row 1"]),
        (f'{{"input_ids": [[1, 2], [3, {vocab}]]}}', ["input_ids[1][1]"]),
        ('{"input_ids": [[1, -1]]}', ["input_ids[0][1]"]),
        ('{"input_ids": [[1, 2.5]]}', ["input_ids[0][1]"]),
        ('{"input_ids": [[1, 99999999999999999999]]}', ["input_ids[0]"]),
        ('{"input_ids": [[1, "2"]]}', ["input_ids[0][1]"]),
        ('{"input_ids": [[1], [2]]}', ["at least two"]),
        ('{"input_ids": []}', ["input_ids"]),
        ('{"input_ids": 3}', ["input_ids"]),
        ('{"input_ids": [3, 4]}', ["input_ids"]),
        ("[[1, 2]]", ["input_ids"]),
        ('{"input_ids": [[1, 2]', ["rows.json"]),
        ("", ["rows.json"]),
    ):
        rows.write_text(text)
        bad(1, parts, *words)
    check(not (folder / "rows.out").exists(), "a refused grad leaves a file")
    rows.write_text('{"input_ids": [[1, 2, 3, 4]]}')
    good(*words)
    first = (folder / "rows.out").read_bytes()
    good(*words)
    check((folder / "rows.out").read_bytes() == first, "grad twice differs")
    good(*words, *sets("train.seed=1"))
    check((folder / "rows.out").read_bytes() != first, "train.seed does not draw other noise")
    good(*words, *sets("erc.weight=0"))
    results = tensors_of(folder / "rows.out")
    weights = weights_of(good("train", "--print-config")) | {"erc": 0}
    check_total(losses_of_tensors(results), weights, "weight 0")
    check(results["loss.erc"][1][0] > 0, "weight 0 is not shown")
    good(*words, *sets("compute.dtype=bf16"))
    bad(1, "File too large", *words, limit_blocks=1)
    check_delta(folder, words)


def check_delta(folder, words):
    delta = folder / "d.safetensors"
    given = tensors_of(GOLDEN / "model" / "base" / "delta.safetensors")
    write_floats(delta, {"delta.0": given["delta.0"]})
    bad(1, "delta.1", *words, "--delta", delta)
    shape, numbers = given["delta.1"]
    write_floats(delta, {"delta.0": given["delta.0"], "delta.1": (shape[::-1], numbers)})
    bad(1, ["delta.1", f"[{shape[1]},{shape[0]}]", f"[{shape[0]},{shape[1]}]"], *words, "--delta", delta)


def check_not_finite(folder):
    """Weights with NaN or infinity give one sentence with the tensor's name, and no file."""
    base = GOLDEN / "model" / "base"
    model, out = folder / "not-finite", folder / "not-finite.out"
    model.mkdir()
    shutil.copy(base / "config.json", model)
    tensors = tensors_of(base / "model.safetensors")
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.experts.2.up_proj.weight", "lm_head.weight"):
        shape, numbers = tensors[name]
        for value in (float("nan"), float("inf"), float("-inf")):
            changed = array.array("f", numbers)
            changed[len(changed) - 1] = value
            write_floats(model / "model.safetensors", {**tensors, name: (shape, changed)})
            bad(1, [name, "NaN or infinite"], "grad", model, "--tokens", base / "tokens.json", "--out", out)
            check(not out.exists(), f"grad on {name} {value} leaves a file")


def main():
    with scratch_folder() as folder:
        check_forms(folder)
        check_ties(folder)
        check_rows(folder)
        check_not_finite(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
