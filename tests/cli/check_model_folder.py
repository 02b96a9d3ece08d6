#!/usr/bin/env python3
"""check_model_folder.py COUPLET: a folder of a model with contents that do not fit its config: another file in the
index, a head that is not tied, one tensor and one key too many. Every verb warns once of each and computes what it
computes for the clean folder."""

import json
import shutil
import sys

from inputs import read_json, read_tensors, write_tensors
from program import apart, check, equal, finish, good, scratch_folder, sets
from train_case import train, write_corpus

TOLD = (
    "model.safetensors.index.json beside it",
    "lm_head.weight and model.embed_tokens.weight differ",
    "no use for 1 of the tensors",
    "passed over: num_nextn_predict_layers",
)


def make_models(folder):
    """Makes equal models in clean/m and odd/m."""
    clean, odd = folder / "clean" / "m", folder / "odd" / "m"
    shutil.copytree(train(folder, "run", "train.steps=2", "train.warmup_steps=0") / "last", clean)
    for name in ("checksums.json", "state.json", "state.safetensors"):
        (clean / name).unlink()
    shutil.copytree(clean, odd)
    tensors = read_tensors(odd / "model.safetensors")
    bias = {
        "model.layers.1.self_attn.q_proj.bias": tensors["model.norm.weight"],
        "model.layers.1.self_attn.rotary_emb.inv_freq": tensors["model.norm.weight"],
    }
    write_tensors(odd / "model.safetensors", tensors | bias)
    stale = {"weight_map": {name: "model-00001-of-00002.safetensors" for name in tensors}}
    (odd / "model.safetensors.index.json").write_text(json.dumps(stale))
    config = read_json(odd / "config.json") | {"tie_word_embeddings": True, "num_nextn_predict_layers": 1}
    (odd / "config.json").write_text(json.dumps(config))
    return clean, odd


def check_verb(clean, odd, verb, result, *words):
    """Checks that both folders give equal results, and each warning once."""
    results = []
    for model in (clean, odd):
        out = model.parent / result
        _, told = apart(verb, model, *[out if word is ... else word for word in words])
        results.append(out.read_bytes())
        for sentence in TOLD:
            check(told.count(sentence) == (model == odd), f"{verb} {model.parent.name}: {sentence!r} in {told}")
    check(results[0] == results[1], f"{verb}: the results differ")


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        clean, odd = make_models(folder)
        rows, text = folder / "rows.json", folder / "docs" / "two.jsonl"
        rows.write_text(json.dumps({"input_ids": [list(range(16))] * 2}))
        check_verb(clean, odd, "grad", "g.safetensors", "--tokens", rows, "--out", ...)
        check_verb(clean, odd, "export", "m.gguf", "--gguf", ...)
        for model in (clean, odd):
            run = model.parent / "run"
            words = ("--out", run, *sets("train.steps=1", "train.warmup_steps=0"))
            told = good("train", folder / "c.yaml", "--from", model, *words)
            check(all(told.count(one) == (model == odd) for one in TOLD), f"train --from: {told}")
        equal(
            (clean.parent / "run/last/model.safetensors").read_bytes(),
            (odd.parent / "run/last/model.safetensors").read_bytes(),
            "train --from: the weights differ",
        )
        for words in (
            ("generate", odd, "--prompt", "abc", "--tokens", 4),
            ("eval", odd, "--text", text),
            ("inspect", odd, "--text", text),
        ):
            told = good(*words)
            check(all(told.count(one) == 1 for one in TOLD), f"{words[0]}: {told}")
        told = good("inspect", odd)  # inspect reads neither head nor config keys
        check([told.count(one) for one in TOLD] == [1, 0, 0, 0], f"inspect: {told}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
