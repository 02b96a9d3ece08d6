#!/usr/bin/env python3
"""Writes the GGUF vectors beside this script with the Python package `gguf` (0.19; also needs
numpy and safetensors): python make_gguf.py.

small.gguf          a tensor of every type that is decoded, and of some other types, metadata of every type
aligned.gguf        the first two of these tensors, with general.alignment 128
split-*.gguf        five tensors in three parts
small.safetensors   for each tensor of small.gguf: its bytes as NAME.raw, and if it is decoded its
                    numbers by gguf.quants.dequantize as NAME, F32
small.json          for each tensor its type, shape (outermost first) and bytes; the kept metadata

Blocks of the K types are random bytes under scales of a sensible size: the package quantises to
Q8_0 and MXFP4 only."""

import json
import pathlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFValueType as V
from gguf import GGUFWriter, quants
from gguf.constants import GGML_QUANT_SIZES
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
rng = np.random.default_rng(4)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def blocks(kind, *shape):
    """Returns random blocks [.., bytes of a row]. Their f16 numbers get values near 1e-2."""
    numbers, size = GGML_QUANT_SIZES[kind]
    out = rng.integers(0, 256, (*shape[:-1], shape[-1] // numbers, size), dtype=np.uint8)
    places = {T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}.get(kind, ())
    for at in places:
        half = rng.uniform(-2e-2, 2e-2, out.shape[:-1]).astype(np.float16)
        out[..., at : at + 2] = half[..., None].view(np.uint8)
    return out.reshape(*shape[:-1], -1)


TENSORS = {  # name: (type, data as it is stored)
    "blk.0.ffn_gate_inp.weight": (T.F32, normal(4, 64)),
    "half": (T.F16, normal(3, 5).astype(np.float16)),
    "brain": (T.BF16, quants.quantize(normal(2, 3, 7), T.BF16)),
    "double": (T.F64, rng.standard_normal((2, 2, 3, 5))),
    "blk.0.ffn_gate_exps.weight": (T.Q8_0, quants.quantize(normal(2, 3, 64), T.Q8_0)),
    "k4": (T.Q4_K, blocks(T.Q4_K, 3, 512)),
    "k5": (T.Q5_K, blocks(T.Q5_K, 3, 256)),
    "k6": (T.Q6_K, blocks(T.Q6_K, 2, 512)),
    "mx": (T.MXFP4, quants.quantize(normal(3, 64), T.MXFP4)),
    "whole": (T.I32, np.arange(-3, 4, dtype=np.int32)),
    "coarse": (T.IQ2_XS, blocks(T.IQ2_XS, 2, 256)),
}
DECODED = (T.F32, T.F16, T.BF16, T.F64, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K, T.MXFP4)


def shape_of(kind, data):
    if data.dtype != np.uint8:
        return list(data.shape)
    numbers, size = GGML_QUANT_SIZES[kind]
    return [*data.shape[:-1], data.shape[-1] // size * numbers]


def add(writer, names):
    for name in names:
        kind, data = TENSORS[name]
        writer.add_tensor(name, data, raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decoded(kind, data):
    plain = data.dtype != np.uint8
    return data.astype(np.float32) if plain else quants.dequantize(data, kind).astype(np.float32)


def small():
    writer = GGUFWriter(HERE / "small.gguf", "olmoe")
    kept = {"general.architecture": "olmoe"}
    values = {
        "a.u8": (V.UINT8, 200),
        "a.i8": (V.INT8, -100),
        "a.u16": (V.UINT16, 60000),
        "a.i16": (V.INT16, -30000),
        "a.u32": (V.UINT32, 4000000000),
        "a.i32": (V.INT32, -2000000000),
        "a.f32": (V.FLOAT32, 0.15625),
        "a.bool": (V.BOOL, True),
        "a.no": (V.BOOL, False),
        "a.string": (V.STRING, "caf\u00e9 \U0001f600"),
        "a.empty": (V.STRING, ""),
        "a.u64": (V.UINT64, 1 << 62),
        "a.huge": (V.UINT64, 1 << 63),
        "a.i64": (V.INT64, -(1 << 62)),
        "a.f64": (V.FLOAT64, 1e-300),
        "a.nan": (V.FLOAT32, float("nan")),
        "a.infinite": (V.FLOAT64, float("inf")),
    }
    for key, (kind, value) in values.items():
        writer.add_key_value(key, value, kind)
        finite = not isinstance(value, float) or np.isfinite(value)
        kept[key] = float(value) if key == "a.huge" else value if finite else None
    arrays = {
        "a.counts": (V.INT32, [8, 0, -8]),
        "a.rates": (V.FLOAT32, [0.5, 1e4]),
        "a.flags": (V.BOOL, [True, False]),
        "a.exactly": (V.UINT16, list(range(4096))),
    }
    for key, (kind, value) in arrays.items():
        writer.add_key_value(key, value, V.ARRAY, sub_type=kind)
        kept[key] = value
    for key, (kind, value) in {
        "a.words": (V.STRING, ["a", "", "b" * 300]),
        "a.long": (V.UINT16, list(range(4097))),
    }.items():
        writer.add_key_value(key, value, V.ARRAY, sub_type=kind)
    add(writer, TENSORS)
    finish(writer)
    return kept


def main():
    kept = small()
    aligned = GGUFWriter(HERE / "aligned.gguf", "olmoe")
    aligned.add_custom_alignment(128)
    add(aligned, list(TENSORS)[:2])
    finish(aligned)
    split = GGUFWriter(HERE / "split.gguf", "olmoe", split_max_tensors=2)
    split.add_uint32("olmoe.expert_count", 4)
    add(split, list(TENSORS)[:5])
    finish(split)
    arrays, table = {}, {}
    for name, (kind, data) in TENSORS.items():
        arrays[name + ".raw"] = np.frombuffer(data.tobytes(), np.uint8)
        table[name] = {"type": kind.name, "shape": shape_of(kind, data), "bytes": data.nbytes}
        if kind in DECODED:
            arrays[name] = decoded(kind, data).reshape(shape_of(kind, data))
    save_file(arrays, HERE / "small.safetensors")
    (HERE / "small.json").write_text(json.dumps({"tensors": table, "metadata": kept}) + "\n")


if __name__ == "__main__":
    main()
