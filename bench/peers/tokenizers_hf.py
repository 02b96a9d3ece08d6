#!/usr/bin/env python3
"""Compares the speed at which one core encodes text into ids: Hugging Face tokenizers, tiktoken if it is installed, and
`couplet tokenize encode --threads 1`, on the same files with the same tokenizer.

Text:    .txt (a file is a document), .jsonl or .json lines with a member "text", also compressed
         as .gz. White space at the ends of a document is removed, as couplet does.
Timed:   for the libraries, documents in memory to ids. For couplet the whole command: it also
         starts, reads the tokenizer and the files and writes shards. Its time for one short text is
         subtracted ("less start-up"). bench/tokenizer.c times the encoder alone.
Checked: the libraries give couplet's ids. tiktoken has no added tokens and uses the order of ids as the order
         of merges, so with some tokenizers it differs a little."""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unicodedata

import numpy
import peers
import tokenizers

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tokenizer", help="tokenizer.json")
    parser.add_argument("files", nargs="+", help="documents")
    parser.add_argument("--couplet", default="build/release/couplet", help="our program")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def documents(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8")
    with opened as file:
        if path.removesuffix(".gz").endswith(".txt"):
            yield file.read().strip()
            return
        for line in file:
            yield json.loads(line)["text"].strip()


# ---- Hugging Face ----


def hf_encoder(path):
    tokenizer = tokenizers.Tokenizer.from_file(path)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


# ---- tiktoken ----


def byte_of_character():
    """Returns the byte that each character of the byte-level alphabet stands for."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + i): byte for i, byte in enumerate(others)}


def pattern_of(description):
    pre = description["pre_tokenizer"]
    parts = pre["pretokenizers"] if pre["type"] == "Sequence" else [pre]
    return next((part["pattern"]["Regex"] for part in parts if part["type"] == "Split"), GPT2)


def tiktoken_encoder(path):
    """Returns tiktoken's encoder. tiktoken first joins the pair with the lowest id, which equals the order of merges
    only if that is the order of ids."""
    import tiktoken

    description = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    bytes_of = byte_of_character()
    special = {token["content"]: token["id"] for token in description["added_tokens"]}
    ranks = {
        bytes(bytes_of[c] for c in token): i
        for token, i in description["model"]["vocab"].items()
        if token not in special and all(c in bytes_of for c in token)
    }
    largest = max([*ranks.values(), *special.values()])
    for byte in range(256):  # bytes that never occur in UTF-8 may be missing; tiktoken requires all bytes
        if bytes([byte]) not in ranks:
            largest += 1
            ranks[bytes([byte])] = largest
    encoding = tiktoken.Encoding("given", pat_str=pattern_of(description), mergeable_ranks=ranks, special_tokens={})
    if (description.get("normalizer") or {}).get("type") == "NFC":
        return lambda text: encoding.encode_ordinary(unicodedata.normalize("NFC", text))
    return encoding.encode_ordinary


# ---- couplet ----


def couplet_ids(folder):
    told = json.loads((folder / "shards.json").read_text())
    flat = numpy.concatenate([numpy.fromfile(folder / file["name"], told["dtype"]) for file in told["files"]])
    return flat[flat != told["eos_token_id"]]


def couplet_command(args, files, folder):
    return [
        args.couplet,
        "tokenize",
        "encode",
        "--tokenizer",
        args.tokenizer,
        "--threads",
        "1",
        "--out",
        str(folder),
        *files,
    ]


def time_couplet(args, files, rounds, folder):
    """Returns times of the whole command, each into a folder of its own below `folder`."""
    times = []
    for i in range(rounds):
        command = couplet_command(args, files, folder / str(i))
        times.append(
            peers.seconds(
                lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
        )
    return times


def measure_couplet(args, size):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        short = folder / "short.txt"
        short.write_text("a short text")
        start = peers.median(time_couplet(args, [str(short)], args.rounds, folder / "start"))
        whole = time_couplet(args, args.files, args.rounds, folder / "whole")
        report("couplet, whole command", size, whole)
        report("couplet, less start-up", size, [max(t - start, 1e-9) for t in whole])
        return couplet_ids(folder / "whole" / "0")


# ---- the comparison ----


def report(what, size, times):
    print(f"  {what:<24} {size / 1e6 / peers.median(times):8.2f} MB/s +-{100 * peers.spread(times):.1f} %", flush=True)


def main():
    args = arguments()
    args.files.sort()
    texts = [text for path in args.files for text in documents(path)]
    texts = [text for text in texts if text]
    size = sum(len(text.encode()) for text in texts)
    encoders = {f"tokenizers {tokenizers.__version__}": hf_encoder(args.tokenizer)}
    try:
        import tiktoken

        encoders[f"tiktoken {tiktoken.__version__}"] = tiktoken_encoder(args.tokenizer)
    except ImportError:
        print("tiktoken is not installed")
    print(f"machine   {peers.processor()}")
    print(f"text      {len(texts)} documents, {size / 1e6:.1f} MB; one thread; medians of {args.rounds} rounds")
    subjects = [lambda e=e: [e(text) for text in texts] for e in encoders.values()]
    for what, times in zip(encoders, peers.in_turn(args.rounds, *subjects)):
        report(what, size, times)
    if not pathlib.Path(args.couplet).exists():
        sys.exit(f"{args.couplet} is not there: run make, or say --couplet")
    ours = measure_couplet(args, size)
    for what, encode in encoders.items():
        theirs = numpy.array([i for text in texts for i in encode(text)], dtype=ours.dtype)
        same = "the same ids" if numpy.array_equal(ours, theirs) else "OTHER ids"
        print(f"  {what:<24} gives {same} as couplet ({len(theirs)}, {len(ours)})")


if __name__ == "__main__":
    main()
