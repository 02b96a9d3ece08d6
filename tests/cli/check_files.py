#!/usr/bin/env python3
"""check_files.py COUPLET: entries of a folder that are no regular files are refused at once, and files that the user
names may be pipes. Token shards that are not whole, or become shorter while a run reads them, end the run with a
sentence. The size of a document is bounded."""

import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from program import COUPLET, bad, check, finish, good, run, said, scratch_folder, sets, wait_until
from train_case import train, write_corpus

SECONDS = 60  # an answer that takes longer is a hang: here two cores serve many jobs


def put(kind, path):
    """Puts another kind of file in the place of `path`."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


def refuse(path, *words, code=1, cwd=None):
    """Checks the command with each kind of file in the place of `path`: it exits at once and names the path."""
    kept = path.read_bytes()
    for kind in ("pipe", "zero", "folder"):
        put(kind, path)
        try:
            _, err, got = run(*words, seconds=SECONDS, cwd=cwd)
            check(
                got == code and (code == 0 or path.name in err),
                f"{said(words)}: {path.name} a {kind}: exit {got}: {err[-500:]}",
            )
        except subprocess.TimeoutExpired:
            check(False, f"{said(words)}: {path.name} a {kind}: hangs")
        path.rmdir() if kind == "folder" else path.unlink()
    path.write_bytes(kept)


def check_folders(folder):
    a, b = train(folder, "a"), train(folder, "b", "train.lr=2e-2")
    model = folder / "model"
    shutil.copytree((a / "last").resolve(), model)
    for name in ("config.json", "tokenizer.json", "generation_config.json"):
        refuse(model / name, "generate", model, "--prompt", "a", "--tokens", 1)
    refuse(model / "checksums.json", "generate", model, "--prompt", "a", "--tokens", 1, code=0)
    for name in ("config.json", "model.safetensors"):
        refuse(model / name, "inspect", model)
    for name in ("config.yaml", "metrics.jsonl", "start.json"):
        refuse(a / name, "compare", a, b)
    step = (a / "last").resolve()
    for path in (a / "config.yaml", step / "state.json", step / "checksums.json"):
        refuse(path, "train", "--resume", a, *sets("train.steps=13"))
    (a / "start.json").write_text("{")  # a damaged start.json stops no run
    out = good("train", "--resume", a, *sets("train.steps=13"))
    check("warning: " in out and "start.json" in out, f"start.json: {out}")


def check_shards(folder):
    shards = folder / "shards"
    good("tokenize", "encode", "--tokenizer", "T.json", "--by-source", "--out", "shards", "docs", cwd=folder)
    words = ("train", "c.yaml", *sets("data.train=shards", "data.validation="), "--out")
    good(*words, "whole", cwd=folder)
    number = 0
    for name in ("shards.json", "one/part-0-00000.npy", "one/part-0-00000.csv.gz", "one/part-0-00000.sources.tsv"):
        number += 1
        refuse(shards / name, *words, f"kind{number}", cwd=folder)
    part = shards / "two/part-0-00000.npy"
    kept = part.read_bytes()
    part.unlink()
    bad(1, ("two/part-0-00000.npy: is missing", "shards.json"), *words, "missing", cwd=folder)
    part.symlink_to("nowhere")
    bad(1, "two/part-0-00000.npy: is a symbolic link to a file", *words, "dead", cwd=folder)
    part.unlink()
    part.write_bytes(kept[:-64])
    (shards / "two/part-0-00000.csv.gz").unlink()
    bad(1, ("two/part-0-00000.npy: has", "tokens"), *words, "shorter", cwd=folder)
    part.write_bytes(kept)
    (shards / "shards.json").unlink()
    (shards / "two/part-0-00001.npy.tmp-1-1").touch()
    bad(1, "did not finish", *words, "ended", cwd=folder)
    (shards / "two/part-0-00001.npy.tmp-1-1").unlink()
    check("may not be whole" in good(*words, "unlisted", cwd=folder), "shards without an index")


def check_shorter(folder):
    """Removes the shards of a long run while it reads them."""
    shutil.rmtree(folder / "shards")
    good("tokenize", "encode", "--tokenizer", "T.json", "--out", "shards", "docs", cwd=folder)
    words = "train c.yaml --out cut --set data.train=shards --set data.validation= --set train.steps=1000000".split()
    process = subprocess.Popen([COUPLET, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    lines = folder / "cut/metrics.jsonl"
    wait_until(lambda: lines.exists() and lines.stat().st_size, process, SECONDS)
    os.truncate(folder / "shards/part-0-00000.npy", 0)
    try:
        err = process.communicate(timeout=SECONDS)[1].decode()
        check(
            process.returncode == 1 and "became shorter while in use" in err,
            f"a shard cut while training: exit {process.returncode}: {err}",
        )
    except subprocess.TimeoutExpired:
        process.kill()
        check(False, "a shard cut while training: the run goes on")


def feed(path, content):
    """Writes into a pipe, after a delay."""

    def write():
        time.sleep(0.3)
        path.write_bytes(content)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()


def check_named(folder):
    """Reads documents, a tokenizer and a configuration from pipes that the user named."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    feed(pipe, gzip.compress(b'{"text": "abc def"}\n' * 9))
    good("tokenize", "encode", "--tokenizer", "T.json", "--out", "piped", "pipe", cwd=folder)
    check((folder / "piped/shards.json").exists(), "documents out of a pipe")
    feed(pipe, (folder / "T.json").read_bytes())
    good("tokenize", "encode", "--tokenizer", "pipe", "--out", "piped2", "docs", cwd=folder)
    feed(pipe, (folder / "c.yaml").read_bytes())
    check("batch_tokens: 64" in good("train", "--print-config", "pipe", cwd=folder), "a configuration out of a pipe")


def check_long_document(folder):
    """Reads one line of 64 MiB, which compresses to nearly no bytes, under a small bound: memory stays small."""
    (folder / "bomb").mkdir()
    with gzip.open(folder / "bomb/long.jsonl.gz", "wb", 1) as out:
        out.write(b'{"text": "short enough"}\n{"text": "')
        for _ in range(64):
            out.write(b"a" * (1 << 20))
        out.write(b'"}\n')
    words = ("tokenize", "encode", "--tokenizer", "T.json", *sets("data.max_line_bytes=1000000"))
    err = good(*words, "--out", "bounded", "bomb", cwd=folder)
    check("line 2: longer than data.max_line_bytes, 1000000" in err, f"a long line: {err}")
    stopped = (*sets("data.bad=stop"), "--out", "stopped", "bomb")
    bad(1, ("long.jsonl.gz: line 2: ", "data.max_line_bytes"), *words, *stopped, cwd=folder)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with scratch_folder() as folder:
        write_corpus(folder)
        for one in (check_folders, check_shards, check_shorter, check_named, check_long_document):
            one(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
