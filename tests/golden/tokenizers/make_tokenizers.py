#!/usr/bin/env python3
"""make_tokenizers.py LARGER: writes small forms of the published tokenizers, and the ids that Hugging Face's tokenizers
make of texts with them. LARGER is the folder `data` of the larger reference data.

Each form keeps the first merges, the bytes and the added tokens of its tokenizer. Ids are given anew, in the order of
the old ids. All other parts of the file stay. Needs tokenizers and zstandard."""

import gzip
import hashlib
import json
import pathlib
import struct
import sys

import zstandard
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN, ROOT = HERE.parent, HERE.parents[2]
NAMES = ("allenai_gpt-neox-olmo-dolma-v1_5", "allenai_eleuther-ai-gpt-neox-20b-pii-special", "gpt2", "allenai_dolma2")
STREAMS = {"gpt-neox-olmo-dolma-v1_5": NAMES[0], "gpt2": "gpt2"}
MERGES = 1500
CORPORA = ("tests/golden/data/corpus-mini/validation", "data/validation")


def smaller(whole):
    model = whole["model"]
    merges = model["merges"][:MERGES]
    kept = {token for token in model["vocab"] if len(token) == 1}
    kept |= {merge.replace(" ", "") for merge in merges}
    added = {token["content"]: token["id"] for token in whole["added_tokens"]}
    old = {**{token: id for token, id in model["vocab"].items() if token in kept}, **added}
    new = {token: i for i, (token, _) in enumerate(sorted(old.items(), key=lambda item: item[1]))}
    vocab = {token: new[token] for token in sorted(new, key=new.get) if token in model["vocab"]}
    tokens = [{**token, "id": new[token["content"]]} for token in whole["added_tokens"]]
    return {**whole, "added_tokens": tokens, "model": {**model, "vocab": vocab, "merges": merges}}


def dump(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def vectors(name, texts):
    tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
    lines = (
        json.dumps(
            {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids},
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for text in texts
    )
    (HERE / f"vectors-{name}.jsonl").write_text("\n".join(lines) + "\n")


def documents(path):
    raw = path.read_bytes()
    text = (
        gzip.decompress(raw)
        if path.suffix == ".gz"
        else zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True).read()
    )
    return [json.loads(line) for line in text.decode().split("\n") if line]


def stream(tokenizer, path):
    """Returns the token ids of each document, with the end-of-text that closes it."""
    end = tokenizer.token_to_id("<|endoftext|>")
    return [
        tokenizer.encode(row["text"].strip(" \t\n\r\v\f"), add_special_tokens=False).ids + [end]
        for row in documents(path)
    ]


def packed(documents):
    ids = [id for document in documents for id in document]
    return struct.pack(f"<{len(ids)}H", *ids)


def write_shards(name, tokenizer):
    """Writes the validation documents of corpus-mini as one shard and its table."""
    reference = GOLDEN / "data/tokenized-mini/gpt-neox-olmo-dolma-v1_5/validation"
    table = gzip.decompress((reference / "part-0-00000.csv.gz").read_bytes()).decode().splitlines()
    whole = [document for path in sorted((ROOT / CORPORA[0]).iterdir()) for document in stream(tokenizer, path)]
    out, at, rows = GOLDEN / f"data/tokenized-small/{name}/validation", 0, []
    out.mkdir(parents=True, exist_ok=True)
    for document, row in zip(whole, table, strict=True):
        rows.append(f"{at},{at + len(document)},{row.split(',', 2)[2]}\r\n")
        at += len(document)
    (out / "part-0-00000.npy").write_bytes(packed(whole))
    (out / "part-0-00000.csv.gz").write_bytes(gzip.compress("".join(rows).encode(), mtime=0))


def check(larger):
    """Checks that the files written for the whole tokenizer equal those of the reference."""
    tokenizer = Tokenizer.from_file(str(larger / f"tokenizers/{NAMES[0]}.json"))
    whole = [document for path in sorted((ROOT / CORPORA[0]).iterdir()) for document in stream(tokenizer, path)]
    reference = GOLDEN / "data/tokenized-mini/gpt-neox-olmo-dolma-v1_5/validation/part-0-00000.npy"
    assert packed(whole) == reference.read_bytes()


def main():
    larger = pathlib.Path(sys.argv[1])
    check(larger)
    for name in NAMES:
        dump(HERE / f"{name}.json", smaller(json.loads((larger / f"tokenizers/{name}.json").read_text())))
        lines = (larger / f"tokenizers/vectors-{name}.jsonl").read_text().split("\n")
        vectors(name, [json.loads(line)["text"] for line in lines if line])
    gpt2 = json.loads((HERE / "gpt2.json").read_text())
    dump(HERE / "gpt2-openai/encoder.json", gpt2["model"]["vocab"])
    (HERE / "gpt2-openai/vocab.bpe").write_text(
        "#version: 0.2\n" + "".join(merge + "\n" for merge in gpt2["model"]["merges"])
    )
    counts = ["tokenizer\tshard\tdocuments\ttext_bytes\ttokens_with_eos\tsha256_of_uint16le_stream"]
    for name, full in STREAMS.items():
        tokenizer = Tokenizer.from_file(str(HERE / f"{full}.json"))
        write_shards(name, tokenizer)
        for path in (path for corpus in CORPORA for path in sorted((ROOT / corpus).iterdir())):
            ids = stream(tokenizer, path)
            size = sum(len(row["text"].encode()) for row in documents(path))
            sha256 = hashlib.sha256(packed(ids)).hexdigest()
            row = (name, path.relative_to(ROOT), len(ids), size, sum(map(len, ids)), sha256)
            counts.append("\t".join(map(str, row)))
    (HERE / "reference-counts.tsv").write_text("\n".join(counts) + "\n")


if __name__ == "__main__":
    main()
