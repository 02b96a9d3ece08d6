#!/usr/bin/env python3
"""check_gguf.py COUPLET: couplet export --gguf of runs and of models: the contents of the file, the report of `couplet
inspect` on it, messages and refusals."""

import json
import math
import shutil
import sys
import unicodedata

from gguf_file import Gguf
from inputs import GOLDEN, read_json, tensors_of
from program import bad, check, equal, finish, good, in_json, scratch_folder, sets
from train_case import write_corpus

TYPES = ("f32", "bf16", "f16", "q8_0")
# By how much rounding to the type may change a number of a matrix, in units of its largest, or a mean norm.
SLACK = {"f32": 0, "bf16": 2**-8, "f16": 2**-10, "q8_0": 2**-7}


def train(folder, name, *settings):
    run_folder = folder / name
    good(
        f"train {folder}/c.yaml --out {run_folder}",
        *sets("train.steps=4", "checkpoint.every=4", "eval.every=0", *settings),
    )
    return run_folder


# Names of llama.cpp, and of Hugging Face. The last three have all experts of a layer.
OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
}
OF_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}


def expected_names(layers):
    return {
        *(f"{name}.weight" for name in OF_MODEL),
        *(f"blk.{l}.{name}.weight" for l in range(layers) for name in OF_LAYER | OF_EXPERTS),
    }


def check_numbers(file, model, kind):
    """Compares every tensor. After some steps of training no two norms are equal."""
    weights = {
        name.removesuffix(".weight"): numbers for name, (_, numbers) in tensors_of(model / "model.safetensors").items()
    }
    for name, ours in OF_MODEL.items():
        near(file.numbers(name + ".weight"), weights[ours], kind, name)
    for l in range(2):
        for name, ours in OF_LAYER.items():
            want = weights[f"model.layers.{l}.{ours}"]
            near(file.numbers(f"blk.{l}.{name}.weight"), want, kind, f"{name} of layer {l}")
        for name, ours in OF_EXPERTS.items():
            experts = [weights[f"model.layers.{l}.mlp.experts.{e}.{ours}"] for e in range(4)]
            want = [x for one in experts for x in one]
            near(file.numbers(f"blk.{l}.{name}.weight"), want, kind, f"{name} of layer {l}")


def near(got, want, kind, what):
    largest = max(map(abs, want))
    slack = SLACK[kind] * largest
    check(
        len(got) == len(want) and all(abs(a - b) <= slack for a, b in zip(got, want)),
        f"{kind}: numbers of {what} differ",
    )


def check_types(file, kind):
    for name, (got, shape, _) in file.tensors.items():
        fits = kind != "q8_0" or shape[-1] % 32 == 0
        want = "F32" if len(shape) == 1 or "ffn_gate_inp" in name else kind.upper() if fits else "F16"
        check(got == want, f"{kind}: {name} is {got}, wanted {want}")


def check_vocabulary(file, path):
    spec, meta = read_json(path), file.metadata
    rows = meta[meta["general.architecture"] + ".vocab_size"]
    tokens, kinds = [f"[PAD{i}]" for i in range(rows)], [5] * rows
    for text, i in spec["model"]["vocab"].items():
        tokens[i], kinds[i] = text, 1
    for token in spec["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], 3 if token["special"] else 4
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in spec["model"]["merges"]]
    check(meta["tokenizer.ggml.tokens"] == tokens, f"{path}: tokens")
    check(meta["tokenizer.ggml.token_type"] == kinds, f"{path}: types of tokens")
    check(meta["tokenizer.ggml.merges"] == merges, f"{path}: merges")


def check_inspect(model, path, kind):
    """Compares the report on the file with that on the model. Figures of gates agree within the type's precision."""
    want, got = in_json("inspect", model), in_json("inspect", path)
    want.pop("checkpoint"), got.pop("checkpoint")
    families = want.pop("family"), got.pop("family")
    check(
        families in (("olmoe", "olmoe"), ("olmoe", "minimax_m2"), ("couplet", "minimax_m2"), ("couplet", "olmoe")),
        f"inspect: {families}",
    )
    if kind == "f32":
        check(got == want, f"inspect of {kind}: {got}, wanted {want}")
    for a, b in zip(want["layers"], got["layers"], strict=True):
        check(
            all(a[key] == b[key] for key in ("n", "K", "d", "D", "router_norm", "eps", "router_cos", "zero_rows")),
            f"inspect of {kind}: what the router alone gives",
        )
        for group, name in (("M", "diag_mean"), ("M", "offdiag_mean"), ("kappa", "diag_mean"), ("expert_norm", "mean")):
            check(
                math.isclose(a[group][name], b[group][name], rel_tol=SLACK[kind]),
                f"inspect of {kind}: {group}.{name} is {b[group][name]}, wanted {a[group][name]}",
            )


def check_a_run(folder):
    one = train(folder, "one")
    for kind in TYPES:
        path = folder / f"{kind}.gguf"
        out = good("export", one, "--gguf", path, "--type", kind)
        check(f"27 tensors in {kind}" in out and "architecture olmoe" in out, f"export says {out}")
        check(("no multiple of 32" in out) == (kind == "q8_0"), f"export of {kind} says {out}")
        file = Gguf(path)
        check(set(file.tensors) == expected_names(2), f"{kind}: {set(file.tensors) ^ expected_names(2)}")
        check_types(file, kind)
        check_numbers(file, one / "last", kind)
        check_vocabulary(file, one / "last" / "tokenizer.json")
        check_inspect(one / "last", path, kind)
    check(file.metadata["general.name"] == "one" and file.metadata["general.file_type"] == 7, "name or type")
    return one


def check_other_routing(folder):
    """Renormalised weights are another architecture. A model without an architecture is refused without a file."""
    path = folder / "other.gguf"
    renormalised = ["model.norm_topk_prob=true"]
    for settings in (renormalised, renormalised + ["model.router=sigmoid", "model.router_bias=true"]):
        model = train(folder, f"routing-{len(settings)}", *settings)
        out = good("export", model, "--gguf", path, "--overwrite")
        check("architecture minimax-m2" in out, f"export of {settings} says {out}")
        file = Gguf(path)
        bias = {f"blk.{l}.exp_probs_b.bias" for l in range(2)}
        check(set(file.tensors) == expected_names(2) | bias, f"{settings}: {set(file.tensors)}")
        check(file.metadata["minimax-m2.expert_gating_func"] == len(settings) // 2 + 1, f"{settings}: gating")
        check_inspect(model / "last", path, "f32")
    for n, (setting, word) in enumerate(
        (
            ("model.router=sigmoid", "norm_topk_prob"),
            ("model.n_shared_experts=1", "shared"),
            ("model.router=aoe", "Autonomy"),
            ("model.clip_qkv=3", "clip_qkv"),
        )
    ):
        model = train(folder, f"refused-{n}", setting, *(["erc.weight=0"] if "aoe" in setting else []))
        bad(1, ["llama.cpp has no graph", word], "export", model, "--gguf", folder / "never.gguf")
    check(not (folder / "never.gguf").exists(), "a refused model left a file")


def check_derived_rows(folder):
    """A router by power iteration is written as the fixed rows that score tokens."""
    path = folder / "derived.gguf"
    model = train(folder, "derived", "model.router=mpi")
    check("architecture olmoe" in good("export", model, "--gguf", path), "export of model.router mpi")
    file = Gguf(path)
    check(set(file.tensors) == expected_names(2), f"model.router mpi: {set(file.tensors)}")
    check_numbers(file, model / "last", "f32")
    check_inspect(model / "last", path, "f32")


def check_refusals(folder, one):
    new, old = folder / "new.gguf", folder / "f32.gguf"
    before = old.read_bytes()
    bad(1, "File too large", "export", one, "--gguf", old, "--overwrite", limit_blocks=8)
    check(old.read_bytes() == before, "a file that should stay was changed")
    good("export", one, "--gguf", old, "--overwrite", "--type", "bf16")
    check(old.read_bytes() == (folder / "bf16.gguf").read_bytes(), "--overwrite wrote something else")
    check(not new.exists() and not [p for p in folder.iterdir() if ".tmp-" in p.name], "a failure left a file")


def check_tokenizers(folder, one):
    """Exports other tokenizers of this size, and one that needs features that llama.cpp lacks."""
    bare = folder / "bare"
    shutil.copytree(one / "last", bare)
    (bare / "tokenizer.json").unlink()
    (bare / "checksums.json").unlink()
    spec = read_json(folder / "T.json")
    for normalizer, name in ((None, "gpt-2"), ({"type": "NFC"}, "olmo")):
        spec["normalizer"] = normalizer
        (folder / "other.json").write_text(json.dumps(spec))
        out = good("export", bare, "--gguf", folder / "t.gguf", "--overwrite", "--tokenizer", folder / "other.json")
        file = Gguf(folder / "t.gguf")
        check(file.metadata["tokenizer.ggml.pre"] == name and ("to NFC" in out) == (name == "olmo"), f"{name}: {out}")
        check_vocabulary(file, folder / "other.json")
    spec["model"]["merges"] = []
    (folder / "other.json").write_text(json.dumps(spec))
    good("export", bare, "--gguf", folder / "t.gguf", "--overwrite", "--tokenizer", folder / "other.json")
    check(Gguf(folder / "t.gguf").metadata["tokenizer.ggml.merges"] == [], "a tokenizer without merges")
    spec["pre_tokenizer"]["add_prefix_space"] = True
    (folder / "other.json").write_text(json.dumps(spec))
    bad(1, "add_prefix_space", "export", bare, "--gguf", folder / "t2.gguf", "--tokenizer", folder / "other.json")


def check_ids_of_llama():
    """golden/llama/ids.json: llama.cpp gives the ids of the vectors, which other tests compare with our encoder. If a
    tokenizer converts to NFC, this holds for texts that are NFC, and for the NFC of the others."""
    found = read_json(GOLDEN / "llama" / "ids.json")
    found.pop("llama-cpp-python")
    check(len(found) == 4, "golden/llama/ids.json: tokenizers")
    for name, one in found.items():
        path = GOLDEN / "tokenizers" / f"vectors-{name}.jsonl"
        texts = [json.loads(line)["text"] for line in path.read_text().rstrip("\n").split("\n")]
        nfc = read_json(GOLDEN / "tokenizers" / f"{name}.json")["normalizer"] is not None
        same = sum(not nfc or unicodedata.is_normalized("NFC", text) for text in texts)
        equal(one, {"texts": len(texts), "same": same, "same_as_nfc": len(texts)}, f"{name}: texts that are NFC")


def main():
    check_ids_of_llama()
    with scratch_folder() as folder:
        write_corpus(folder)
        one = check_a_run(folder)
        check_other_routing(folder)
        check_derived_rows(folder)
        check_refusals(folder, one)
        check_tokenizers(folder, one)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
