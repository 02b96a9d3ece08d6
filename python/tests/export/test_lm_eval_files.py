"""couplet.export lm-eval writes the files that the program of d6841828 wrote of the evaluation in this folder. The test
needs neither PyTorch nor the program. Damaged results are tested too."""

import copy
import gzip
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT
from couplet.export import __main__ as program

HOME = pathlib.Path(__file__).parent / "evaluation"
TIMES = ("date", "start_time", "end_time", "total_evaluation_time_seconds")


def golden(name):
    return json.loads(gzip.decompress((HOME / name).read_bytes()))


def same(got, want, where=""):
    """Compares figures to the nine digits of the program's JSON, and all other values exactly."""
    if isinstance(want, dict):
        assert got.keys() == want.keys(), (where, got.keys() ^ want.keys())
        for key, value in want.items():
            same(got[key], value, f"{where}.{key}")
    elif isinstance(want, list):
        assert len(got) == len(want), where
        for i, value in enumerate(want):
            same(got[i], value, f"{where}[{i}]")
    elif isinstance(want, float):
        assert math.isclose(got, want, rel_tol=1e-8, abs_tol=1e-9), (where, got, want)
    else:
        assert got == want and type(got) is type(want), (where, got, want)


def export(ours, folder, *words):
    path = folder / "own.json"
    path.write_text(ours if isinstance(ours, str) else json.dumps(ours))
    return program.main(["lm-eval", str(path), *words])


def test_the_files_of_before(tmp_path):
    assert export(golden("own.json.gz"), tmp_path) == 0
    want = golden("theirs.json.gz")
    (path,) = tmp_path.glob("lm-eval/results_*.json")
    stamp = path.stem.removeprefix("results_")
    results = json.loads(path.read_text())
    assert results["date"] == (tmp_path / "own.json").stat().st_mtime
    same(results | dict.fromkeys(TIMES), want["results"])
    names = {f"samples_{task}_{stamp}.jsonl" for task in want["samples"]} | {path.name}
    assert {one.name for one in path.parent.iterdir()} == names and len(names) > 20
    for task, lines in want["samples"].items():
        text = (path.parent / f"samples_{task}_{stamp}.jsonl").read_text()
        same([json.loads(line) for line in text.splitlines()], lines, task)


def test_without_packages(tmp_path):
    """The export needs only the standard library."""
    (tmp_path / "own.json").write_bytes(gzip.decompress((HOME / "own.json.gz").read_bytes()))
    for name in ("torch", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('none')\n")
    words = [sys.executable, "-m", "couplet.export", "lm-eval", "own.json", "--out", "made"]
    path = f"{tmp_path}{os.pathsep}{ROOT / 'python'}"
    run = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "" and run.stdout.startswith("results: made/results_"), run


def test_results_without_samples(tmp_path, capsys):
    ours = golden("own.json.gz")
    for result in ours["results"].values():
        del result["samples"]
    assert export(ours, tmp_path, "--out", str(tmp_path / "made")) == 0
    (path,) = (tmp_path / "made").iterdir()
    assert json.loads(path.read_text())["task_hashes"] == {} and "samples:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, sentence",
    (
        ("[]", "it has no results of couplet eval --tasks"),
        ('{"settings": {}, "sources": []}', "it has no results of couplet eval --tasks"),
        ('{"settings": {}, "results": {}}', "an older version of couplet wrote the file: write it again"),
        ('{"settings": {}', "it is not JSON"),
    ),
)
def test_what_is_refused(text, sentence, tmp_path, capsys):
    assert export(text, tmp_path) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"couplet.export: {tmp_path}/own.json: ") and sentence in said and said.count("\n") == 1
    assert not (tmp_path / "lm-eval").exists()


def test_names_that_two_tasks_share(tmp_path, capsys):
    ours = golden("own.json.gz")
    ours["results"]["again"] = copy.deepcopy(ours["results"]["arc_challenge"])
    assert export(ours, tmp_path) == 1 and "would be called arc_challenge:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ([], ["lm-eval"], ["helm", "x"], ["lm-eval", "x", "y"], ["tensorboard", "x", "--fast"])
)
def test_wrong_words(words, capsys):
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == 2 and "usage: " in capsys.readouterr().err


def test_a_file_that_is_no_file(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "absent"):
        assert program.main(["lm-eval", str(path)]) == 1
        assert "it cannot be read" in capsys.readouterr().err
