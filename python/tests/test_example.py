"""examples/continue_olmoe.py as a new user runs it, on a tiny random model and the corpus in data/."""
import runpy
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT
from couplet import certify

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
    done = subprocess.run([sys.executable, EXAMPLE, folder, "--steps", "2", "--length", "32", "--batch", "2",
                           "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "with ERC" in done.stdout and "erc_kappa_diagonal" in done.stdout
    assert "No hinge is active" not in done.stdout
    assert (tmp_path / "without" / "model.safetensors").exists()
    assert "Side by side" in done.stdout or not certify.find_program()


@pytest.mark.parametrize("text, sentence", (
    (lambda p: ROOT / "data" / "train" / "qa-0000.jsonl.zst", "unpack it first: zstd -d"),
    (lambda p: p / "absent.txt", "there is no such file"),
    (lambda p: p / "odd.json", "JSON lines with `text`"),
    (lambda p: p / "short.txt", "fewer than 128 tokens"),
), ids=("zst", "absent", "odd", "short"))
def test_text_that_it_cannot_use(folder, tmp_path, text, sentence, monkeypatch):
    (tmp_path / "odd.json").write_text('{"a": 1}\n')
    (tmp_path / "short.txt").write_text("short")
    monkeypatch.setattr(sys, "argv", ["continue_olmoe.py", str(folder), "--text", str(text(tmp_path))])
    with pytest.raises(SystemExit, match=sentence):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
