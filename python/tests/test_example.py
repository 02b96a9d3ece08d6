"""The programs of examples/ as a new user runs them, with few steps, on the corpus in data/."""

import re
import runpy
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from couplet import find_program

EXAMPLE = ROOT / "examples" / "continue_olmoe.py"

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from test_hf import tiny

    made = tmp_path_factory.mktemp("model")
    tiny(vocab_size=4096).save_pretrained(made)
    shutil.copy(ROOT / "data" / "tokenizer.json", made)
    return made


def test_it_goes_on(folder, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLE, folder, "--steps", "2", "--length", "32", "--batch", "2", "--out", tmp_path],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "No hinge is active" not in done.stdout
    table = [line.split() for line in done.stdout.split("with ERC\n")[1].splitlines()[:4]]
    names, before, last = table[0][1:], table[1][1:], table[-1][1:]
    erc = 2 * names.index("erc_clean")
    assert before[erc] == before[erc + 1] and float(last[erc + 1]) < float(last[erc])  # without, with the loss
    assert (tmp_path / "without" / "model.safetensors").exists()
    assert find_program() is None or "Side by side" in done.stdout


def test_pretraining(tmp_path):
    words = f"pretrain_olmoe.py --steps 6 --length 32 --batch 4 --lr 0.01 --out {tmp_path}".split()
    done = subprocess.run([sys.executable, *words], cwd=ROOT / "examples", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [
        [float(cell) for cell in line.split()]
        for line in done.stdout.splitlines()
        if re.match(r" +\d+ +\d+\.\d{4} ", line)
    ]
    assert [row[0] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert rows[-1][1] < rows[0][1] and rows[-1][2] < rows[0][2]  # LM loss, ERC
    assert (tmp_path / "model.safetensors").exists()
    assert find_program() is None or "Agreement, free of the scale of the weights" in done.stdout


@pytest.mark.parametrize(
    "text, sentence",
    (
        (lambda p: ROOT / "data" / "train" / "qa-0000.jsonl.zst", "unpack it first: zstd -d"),
        (lambda p: p / "absent.txt", "there is no such file"),
        (lambda p: p / "odd.json", "JSON lines with `text`"),
        (lambda p: p / "short.txt", "fewer than 128 tokens"),
    ),
    ids=("zst", "absent", "odd", "short"),
)
def test_text_that_it_cannot_use(folder, tmp_path, text, sentence, monkeypatch):
    (tmp_path / "odd.json").write_text('{"a": 1}\n')
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.setattr(sys, "argv", ["continue_olmoe.py", str(folder), "--text", str(text(tmp_path))])
    with pytest.raises(SystemExit, match=sentence):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
