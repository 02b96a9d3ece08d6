#!/usr/bin/env python3
"""Writes the GGUF files beside this script, and the tensors that reading them must give: the router "R.<layer>" and the
gates "G.<layer>" [n,D,d] of each measured layer, by the package's own dequantiser. Made with gguf 0.19 and safetensors
0.8. Equal versions give equal bytes.

deepseek2.gguf  experts stacked; layer 0 dense, 1 in Q8_0, 2 in Q4_K, 3 in Q6_K, 4 the prediction of
                further tokens
llama.gguf      a matrix for each expert, F16, as in files before experts were stacked"""

import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from safetensors.numpy import save_file

N, D, WIDTH, K = 3, 5, 256, 2
here = pathlib.Path(__file__).parent
rng = np.random.default_rng(20)


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def gates(kind):
    """Returns stored bytes and the numbers they stand for. K-quants are random bytes with small f16 scales."""
    if kind in (T.F16, T.Q8_0):
        stored = quants.quantize(normal(N, D, WIDTH), kind)
        return stored, quants.dequantize(stored, kind)
    numbers, length = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, size=(N * D * WIDTH // numbers, length), dtype=np.uint8)
    if kind == T.Q4_K:
        blocks[:, :4] = np.frombuffer(np.array([0.01, 0.02], np.float16).tobytes(), np.uint8)
    else:
        blocks[:, -2:] = np.frombuffer(np.array([0.01], np.float16).tobytes(), np.uint8)
    stored = blocks.reshape(N, D, -1)
    return stored, quants.dequantize(stored, kind)


def begin(name, layers, further):
    writer = gguf.GGUFWriter(here / f"{name}.gguf", name)
    writer.add_uint32(f"{name}.block_count", layers + further)
    writer.add_uint32(f"{name}.expert_count", N)
    writer.add_uint32(f"{name}.expert_used_count", K)
    writer.add_uint32(f"{name}.embedding_length", WIDTH)
    if further:
        writer.add_uint32(f"{name}.nextn_predict_layers", further)
    return writer


def finish(writer, name, want):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(want, here / f"{name}.safetensors")


def deepseek2():
    writer, want = begin("deepseek2", 4, 1), {}
    writer.add_tensor("blk.0.ffn_gate.weight", normal(2, WIDTH))
    for layer, kind in enumerate((T.Q8_0, T.Q4_K, T.Q6_K, T.Q8_0), 1):
        router = normal(N, WIDTH)
        stored, numbers = gates(kind)
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        writer.add_tensor(f"blk.{layer}.ffn_gate_exps.weight", stored, raw_dtype=kind)
        writer.add_tensor(f"blk.{layer}.ffn_gate_shexp.weight", normal(2, WIDTH))
        writer.add_tensor(f"blk.{layer}.exp_probs_b.bias", normal(N))
        if layer < 4:
            want[f"R.{layer}"], want[f"G.{layer}"] = router, numbers.reshape(N, D, WIDTH)
    finish(writer, "deepseek2", want)


def llama():
    writer = begin("llama", 1, 0)
    router = normal(N, WIDTH)
    stored, numbers = gates(T.F16)
    writer.add_tensor("blk.0.ffn_gate_inp.weight", router)
    for expert in range(N):
        writer.add_tensor(f"blk.0.ffn_gate.{expert}.weight", stored[expert])
        writer.add_tensor(f"blk.0.ffn_up.{expert}.weight", stored[N - 1 - expert])
    finish(writer, "llama", {"R.0": router, "G.0": numbers.reshape(N, D, WIDTH)})


deepseek2()
llama()
