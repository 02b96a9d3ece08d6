#!/usr/bin/env python3
"""make_olmoe.py FOLDER [LAYERS]: writes random weights in the shape of OLMoE-1B-7B, as far as an inspection reads them:
16 layers, 64 experts, d 2048, D 1024, only routers and gates, bf16: 4.3 GB in 16 files. bench/inspect reads the result,
which is not a whole model."""

import json
import os
import pathlib
import struct
import sys

N, WIDTH, EXPERT = 64, 2048, 1024
# The upper byte of a bf16: both signs of exponents that give numbers of about 0.01 to 0.06.
UPPER = bytes(0x3C + (0x80 if i & 1 else 0) + (i >> 1 & 1) for i in range(256))


def numbers(count):
    raw = bytearray(os.urandom(2 * count))
    raw[1::2] = raw[1::2].translate(UPPER)
    return raw


def write_layer(folder, layer):
    name = f"model.layers.{layer}.mlp."
    shapes = {name + "gate.weight": [N, WIDTH]}
    shapes |= {f"{name}experts.{e}.gate_proj.weight": [EXPERT, WIDTH] for e in range(N)}
    header, at = {}, 0
    for tensor, (rows, columns) in shapes.items():
        end = at + 2 * rows * columns
        header[tensor] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file = folder / f"layer-{layer:02d}.safetensors"
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for rows, columns in shapes.values():
            out.write(numbers(rows * columns))
    return {tensor: file.name for tensor in shapes}


def main():
    folder = pathlib.Path(sys.argv[1])
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 16
    folder.mkdir(parents=True)
    names = {}
    for layer in range(layers):
        names |= write_layer(folder, layer)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    config = {
        "model_type": "olmoe",
        "hidden_size": WIDTH,
        "intermediate_size": EXPERT,
        "num_experts": N,
        "num_experts_per_tok": 8,
        "num_hidden_layers": layers,
    }
    (folder / "config.json").write_text(json.dumps(config))


main()
