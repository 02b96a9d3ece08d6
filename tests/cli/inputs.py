"""inputs.py: makes inputs of the program and reads its results: invented documents, a configuration,
tensors, folders, lines of metrics, pages."""

import array
import json
import os
import pathlib
import random
import re
import struct
import sys

sys.path.append("python/couplet/report")
import _resolve  # noqa: E402, F401

GOLDEN = pathlib.Path("tests/golden").resolve()
TIMING = ("tokens_per_s", "peak_share", "step_s", "memory_bytes")

CONFIG = """\
model:
    hidden_size: 16
    intermediate_size: 8
    num_hidden_layers: 2
    num_attention_heads: 2
    num_experts: 4
    num_experts_per_tok: 2
    max_position_embeddings: 64
data:
    train: {place}docs
    validation: {place}docs/two.jsonl
    tokenizer: {place}T.json
    seq_len: 16
    batch_tokens: {batch}
train:
    steps: {steps}
    lr: 1e-2
    warmup_steps: 2
compute:
    threads: {threads}
    dtype: f32
checkpoint:
    every: {save}
eval:
    every: {evaluate}
    max_sequences: 3
log:
    every: 1
"""


SMALL = {"place": "", "batch": 64, "steps": 12, "threads": 2, "save": 4, "evaluate": 6}
TRAIN_TOKENIZER = ("tokenize", "train", "--vocab-size", 300, "--min-frequency", 1)


def config(**values):
    """Returns the configuration of a small run over the documents and the tokenizer in `place`."""
    return CONFIG.format(**SMALL | values)


def read_json(path):
    return json.loads(path.read_text())


def write_documents(folder, count=40, length=60):
    """Writes two sources of invented words, equal in every test."""
    numbers = random.Random(1)
    words = ["".join(numbers.choice("abcdefghij") for _ in range(numbers.randint(2, 6))) for _ in range(60)]
    folder.mkdir()
    for source, most in (("one", 30), ("two", 60)):
        texts = [" ".join(numbers.choice(words[:most]) for _ in range(length)) for _ in range(count)]
        rows = [{"id": f"{source}{i}", "source": source, "text": text} for i, text in enumerate(texts)]
        (folder / f"{source}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---- tensors ----


def read_tensors(path):
    """Returns name -> (type, shape, bytes) of a safetensors file."""
    raw = path.read_bytes()
    begin = 8 + struct.unpack("<Q", raw[:8])[0]
    table = json.loads(raw[8:begin])
    table.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], raw[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in table.items()
    }


def write_tensors(path, tensors):
    header, pieces, at = {}, [], 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        pieces.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(pieces))
    return path


def tensors_of(path):
    """Returns name -> (shape, numbers) of a file of F32."""
    return {name: (shape, array.array("f", raw)) for name, (_, shape, raw) in read_tensors(path).items()}


def write_floats(path, tensors, dtype="F32"):
    """Writes name -> (shape, numbers). BF16 cuts the low half off."""

    def pack(numbers):
        raw = array.array("f", numbers).tobytes()
        return raw if dtype == "F32" else b"".join(raw[i + 2 : i + 4] for i in range(0, len(raw), 4))

    return write_tensors(path, {name: (dtype, shape, pack(numbers)) for name, (shape, numbers) in tensors.items()})


# ---- folders ----


def files_of(folder):
    """Returns name -> bytes, or the target of a link, of all entries of a folder and of folders within."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def different(a, b):
    """Returns the names of the files that differ between two results of `files_of`."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def keep_record(out, kept):
    """Gives the record of an evaluation into `out` a second name, which outlives its first name."""
    kept.touch()
    pathlib.Path(f"{out}.partial").hardlink_to(kept)


def page_data(page):
    """Returns the data that a page holds for its scripts: the report, and the data of which it was made."""
    return json.loads(re.search(r'id="couplet-data">(.*?)</script>', page.read_text(), re.S)[1])


def litter(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".tmp-" in path.name)


# ---- lines of metrics ----


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def untimed(lines):
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]
