"""Damaged files of a run: each ends with an exit code and a sentence, never with an exception or with bytes that steer a
terminal."""

import gzip
import json
import os
import random
import re

import pytest
from couplet.compare import __main__ as compare
from invented import SIX
from test_comparison import documents, put, questions

COPIES = int(os.environ.get("COUPLET_COPIES", 40))
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b]0;OWNED\x07\x1b[2J\x85\u202e\nx: right"


def damaged(blob, draw):
    """A copy with one to three damages: bits, bytes that steer, cuts, pieces twice, numbers of many digits."""
    copy = bytearray(blob)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(copy) + 1)
        end = min(len(copy), at + draw.choice((1, 8, 64)))
        bits = bytes(b ^ 1 << draw.randrange(8) for b in copy[at:end])
        pieces = (
            bits,
            b"",
            HOSTILE.encode(),
            copy[at:end] * 2,
            b"9" * 30,
            b"null",
            b"-1e999",
            b"[[{",
            b"1e-400",
            b": ",
        )
        copy[at:end] = draw.choice((*pieces, draw.randbytes(end - at)))
    return bytes(copy[: draw.randrange(len(copy) + 1)] if draw.random() < 0.1 else copy)


@pytest.mark.parametrize(
    "name", ["config.yaml", "metrics.jsonl", "metrics.jsonl.gz", "start.json", "documents.json", "questions.json"]
)
def test_damaged_runs(name, tmp_path, capsys):
    draw = random.Random(11)
    whole, hurt = (one._replace(start={"data": "a", "val_loss": 8.5}).write(tmp_path) for one in (SIX[0], SIX[4]))
    for folder in (whole, hurt):
        put(folder, "documents.json", {"step": 20, "window": 8, "documents": documents(20, lambda i: 50 + i)})
        put(folder, "questions.json", questions([(i, i % 2) for i in range(20)]))
    (hurt / "metrics.jsonl.gz").write_bytes(gzip.compress((hurt / "metrics.jsonl").read_bytes(), mtime=0))
    if name.endswith(".gz"):  # the plain one comes first
        (hurt / "metrics.jsonl").unlink()
    blob, codes = (hurt / name).read_bytes(), set()
    for copy in range(COPIES):
        (hurt / name).write_bytes(damaged(blob, draw) if copy else blob)
        words = [str(whole), str(hurt), "--no-documents", "--json", str(tmp_path / "c.json"), "--overwrite"]
        code = compare.main(words)
        out, err = capsys.readouterr()
        codes.add(code)
        assert not STEERS.search(out + err), (copy, out, err)
        assert (code, err) == (0, "") or code == 1 and err.startswith("couplet.compare: ") and err.count("\n") == 1, err
        assert code or json.loads((tmp_path / "c.json").read_text())["runs"]
    assert 0 in codes and (1 in codes or name not in ("config.yaml", "start.json"))


def test_names_of_runs_do_not_steer(tmp_path, capsys):
    folder = SIX[0]._replace(name="a\x1b[2J\tb\nx: right").write(tmp_path)
    assert compare.main([str(folder), str(folder), "--json", str(tmp_path / "j")]) == 0
    out, err = capsys.readouterr()
    assert not STEERS.search(out + err) and "\nx: right" not in out and "a\\x1b[2J\\x09b\\x0ax: right" in out
