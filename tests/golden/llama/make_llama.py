#!/usr/bin/env python3
"""make_llama.py TEST_PROGRAM [TOKENIZERS]: writes the results of llama.cpp, by the Python package llama-cpp-python
(0.3.36; also needs numpy and safetensors). TEST_PROGRAM is the program of tests/store/test_gguf_export.c, which writes
the models.

logits.safetensors  for each of its models: NAME.logits [8,384], after every token of the prompt, and
                    NAME.greedy (16), the ids that follow it greedily; F32, cache of keys and values in
                    F32, no flash attention
ids.json            for each tokenizer of ../tokenizers: the number of its texts (vectors-NAME.jsonl) that
                    llama.cpp encodes to their ids, as they are and as NFC

For the ids the program `couplet` beside TEST_PROGRAM's folder exports a model with each tokenizer. With TOKENIZERS, a
folder of the whole published tokenizers and their vectors, only the ids of these are compared, and printed."""

import json
import pathlib
import subprocess
import sys
import tempfile
from unicodedata import normalize

import llama_cpp
import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "tokenizers"
MODELS = ("plain", "tied-grouped", "renormalised", "sigmoid-bias")
PUBLISHED = (
    *("allenai_dolma2 allenai_eleuther-ai-gpt-neox-20b-pii-special allenai_gpt-neox-olmo-dolma-v1_5 gpt2").split(),
)
PROMPT, NEW, ROWS, F32 = 8, 16, 384, 0


def prompt():
    return [2 + i * 37 % (ROWS - 2) for i in range(PROMPT)]


def logits_of(path):
    llm = llama_cpp.Llama(
        str(path),
        n_ctx=PROMPT + NEW,
        n_batch=PROMPT,
        logits_all=True,
        type_k=F32,
        type_v=F32,
        flash_attn=False,
        verbose=False,
        n_threads=1,
    )
    llm.eval(prompt())
    logits, greedy = np.array(llm.scores[:PROMPT], np.float32), []
    while len(greedy) < NEW:
        greedy.append(int(np.argmax(llm.scores[llm.n_tokens - 1])))
        llm.eval(greedy[-1:])
    return logits, np.array(greedy, np.float32)


def model_with(folder, tokenizer, couplet):
    """Writes a GGUF file of a model of one layer with this tokenizer. Its weights are zeros."""
    folder.mkdir()
    spec = json.loads(tokenizer.read_text())
    rows = 1 + max([*spec["model"]["vocab"].values(), *(token["id"] for token in spec["added_tokens"])])
    end = next(token["id"] for token in spec["added_tokens"] if token["content"] == "<|endoftext|>")
    config = {
        "model_type": "olmoe",
        "vocab_size": rows,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "eos_token_id": end,
        "pad_token_id": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    shapes = {"embed_tokens": (rows, 32), "norm": (32,)}
    layer = {
        "input_layernorm": (32,),
        "post_attention_layernorm": (32,),
        "self_attn.q_norm": (32,),
        "self_attn.k_norm": (32,),
        "mlp.gate": (2, 32),
    }
    layer |= {f"self_attn.{name}_proj": (32, 32) for name in "qkvo"}
    layer |= {f"mlp.experts.{e}.{name}_proj": (32, 32) for e in range(2) for name in ("gate", "up", "down")}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    tensors = {f"model.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors | {"lm_head.weight": np.zeros((rows, 32), np.float32)}, folder / "model.safetensors")
    out = folder.with_suffix(".gguf")
    subprocess.run([couplet, "export", folder, "--gguf", out], check=True)
    return out


def ids_of(path, tokenizer, vectors):
    """Counts the texts of a file of vectors that llama.cpp encodes to their ids: as they are, and as NFC if the
    tokenizer converts to it."""
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    nfc = json.loads(tokenizer.read_text())["normalizer"] is not None
    lines = [json.loads(line) for line in vectors.read_text().rstrip("\n").split("\n")]

    def equal(convert):
        return sum(
            llm.tokenize(convert(line["text"]).encode(), add_bos=False, special=True) == line["ids"] for line in lines
        )

    return {
        "texts": len(lines),
        "same": equal(str),
        "same_as_nfc": equal(lambda text: normalize("NFC", text) if nfc else text),
    }


def write_ids(out, tokenizers, couplet, folder):
    found = {"llama-cpp-python": llama_cpp.__version__}
    for name in PUBLISHED:
        path = model_with(folder / name, tokenizers / f"{name}.json", couplet)
        found[name] = ids_of(path, tokenizers / f"{name}.json", tokenizers / f"vectors-{name}.jsonl")
        print(f"{name}: {found[name]}")
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


def main(program, tokenizers=None):
    couplet = pathlib.Path(program).resolve().parent.parent / "couplet"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if tokenizers:  # a folder with the whole published tokenizers: only prints
            write_ids(None, pathlib.Path(tokenizers), couplet, folder)
            return
        subprocess.run([program, folder], check=True, cwd=HERE.parent.parent.parent)
        tensors = {}
        for model in MODELS:
            tensors[f"{model}.logits"], tensors[f"{model}.greedy"] = logits_of(folder / f"{model}.gguf")
        save_file(tensors, HERE / "logits.safetensors")
        write_ids(HERE / "ids.json", TOKENIZERS, couplet, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
