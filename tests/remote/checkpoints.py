"""checkpoints.py: OLMoE-like checkpoints of random numbers, as sharded safetensors and GGUF, with the list of bytes
that an inspection needs, and a checkpoint of many small gates, whose other bytes take no space on disk."""

import json
import pathlib
import random
import struct

# The upper byte of a bf16: both signs of exponents that give numbers of about 0.01 to 0.06.
UPPER = bytes(0x3C + (0x80 if i & 1 else 0) + (i >> 1 & 1) for i in range(256))


def numbers(rng, count):
    """Returns random numbers in bf16."""
    raw = bytearray(rng.randbytes(2 * count))
    raw[1::2] = raw[1::2].translate(UPPER)
    return bytes(raw)


def is_read(name):
    return name.endswith(("mlp.gate.weight", "gate_proj.weight")) or "ffn_gate_" in name


class Checkpoint:
    """A checkpoint. `needed`: file -> [(first, last)] of header, routers and gates."""

    def __init__(self, folder, layers=2, n=4, d=256, D=1024):
        self.folder, self.shape, self.needed = pathlib.Path(folder), (layers, n, d, D), {}
        self.folder.mkdir(parents=True)

    def need(self, file, first, last):
        spans = self.needed.setdefault(file, [])
        if spans and spans[-1][1] == first - 1:
            first = spans.pop()[0]
        spans.append((first, last))

    def bytes(self):
        return sum(last - first + 1 for spans in self.needed.values() for first, last in spans)

    def config(self):
        layers, n, d, D = self.shape
        return {
            "model_type": "olmoe",
            "hidden_size": d,
            "intermediate_size": D,
            "num_experts": n,
            "num_experts_per_tok": min(2, n),
            "num_hidden_layers": layers,
        }

    def layer(self, l):
        """Yields names and shapes, in the order of the file."""
        _, n, d, D = self.shape
        yield f"model.layers.{l}.mlp.gate.weight", (n, d)
        for e in range(n):
            for part, shape in (("down_proj", (d, D)), ("gate_proj", (D, d)), ("up_proj", (D, d))):
                yield f"model.layers.{l}.mlp.experts.{e}.{part}.weight", shape


def write_file(checkpoint, file, shapes, write):
    """Writes one safetensors file in bf16. `write` puts its numbers into the open file."""
    header, at = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + 2 * rows * columns]}
        at += 2 * rows * columns
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    checkpoint.need(file, 0, begin - 1)
    for name, entry in header.items():
        if is_read(name):
            checkpoint.need(file, begin + entry["data_offsets"][0], begin + entry["data_offsets"][1] - 1)
    with open(checkpoint.folder / file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        write(out)
        out.truncate(begin + at)


def sharded(folder, seed=1, **shape):
    """Writes a file for each layer, and one for the embedding, which is never needed."""
    made, rng, names = Checkpoint(folder, **shape), random.Random(seed), {}
    layers = made.shape[0]
    files = [{"model.embed_tokens.weight": (512, made.shape[2])}, *(dict(made.layer(l)) for l in range(layers))]
    for i, shapes in enumerate(files, 1):
        file = f"model-{i:05d}-of-{len(files):05d}.safetensors"
        write_file(
            made,
            file,
            shapes,
            lambda out, shapes=shapes: out.writelines(
                numbers(rng, rows * columns) for rows, columns in shapes.values()
            ),
        )
        names |= dict.fromkeys(shapes, file)
    (made.folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (made.folder / "config.json").write_text(json.dumps(made.config()))
    for file in ("README.md", "tokenizer.json"):
        (made.folder / file).write_text("{}")
    return made


def many_gates(folder, layers, n, d=8, D=1 << 17):
    """Writes layers * n gates of 2 MB with as many bytes between them, all zero."""
    made = Checkpoint(folder, layers=layers, n=n, d=d, D=D)
    names = {}
    for l in range(layers):
        file, shapes = f"model-{l + 1:05d}-of-{layers:05d}.safetensors", dict(made.layer(l))
        write_file(made, file, shapes, lambda out: None)
        names |= dict.fromkeys(shapes, file)
    (made.folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (made.folder / "config.json").write_text(json.dumps(made.config()))
    return made


# ---- GGUF ----

STRING, UINT32, F32, BF16 = 8, 4, 0, 30


def text_of(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(folder, file="model.gguf", seed=1, **shape):
    """Writes version 3, alignment 32: routers in F32, experts in BF16, one tensor for all experts of a layer."""
    made, rng = Checkpoint(folder, **shape), random.Random(seed)
    layers, n, d, D = made.shape
    values = {
        "block_count": layers,
        "embedding_length": d,
        "expert_count": n,
        "expert_used_count": min(2, n),
        "expert_feed_forward_length": D,
    }
    pairs = [text_of("general.architecture") + struct.pack("<I", STRING) + text_of("olmoe")]
    pairs += [text_of("olmoe." + key) + struct.pack("<II", UINT32, value) for key, value in values.items()]
    tensors = [("token_embd.weight", (512, d), BF16)]
    for l in range(layers):
        tensors.append((f"blk.{l}.ffn_gate_inp.weight", (n, d), F32))
        tensors += [
            (f"blk.{l}.ffn_{part}_exps.weight", (n, *two), BF16)
            for part, two in (("down", (d, D)), ("gate", (D, d)), ("up", (D, d)))
        ]
    rows, spans, at = b"", [], 0
    for name, shape_, kind in tensors:
        rows += text_of(name) + struct.pack("<I", len(shape_)) + struct.pack(f"<{len(shape_)}Q", *reversed(shape_))
        rows += struct.pack("<IQ", kind, at)
        count = 1
        for side in shape_:
            count *= side
        spans.append((name, at, count * (4 if kind == F32 else 2), kind))
        at += -(-spans[-1][2] // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + rows
    begin = -(-len(head) // 32) * 32
    made.need(file, 0, len(head) - 1)
    with open(made.folder / file, "wb") as out:
        out.write(head)
        for name, offset, size, kind in spans:
            out.seek(begin + offset)
            raw = numbers(rng, size // (4 if kind == F32 else 2))
            out.write(raw if kind == BF16 else b"".join(b"\0\0" + raw[i : i + 2] for i in range(0, len(raw), 2)))
            if is_read(name):
                made.need(file, begin + offset, begin + offset + size - 1)
        out.truncate(begin + at)
    return made


# ---- spans of bytes ----


def union(spans):
    """Returns the spans sorted, without overlaps."""
    out = []
    for first, last in sorted(spans):
        if out and first <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(out[-1][1], last)
        else:
            out.append((first, last))
    return out


def length(spans):
    return sum(last - first + 1 for first, last in spans)


def overlap(a, b):
    """Returns the number of bytes that are in both."""
    return length(union(a)) + length(union(b)) - length(union([*a, *b]))
