"""couplet.plot --tsne on rows that `couplet inspect --rows` wrote, and on other files."""

import os
import random
import subprocess
import sys

import couplet
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
np = pytest.importorskip("numpy")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
from conftest import ROOT  # noqa: E402
from couplet import plot  # noqa: E402
from couplet.report import _files, _tsne  # noqa: E402

COPIES = int(os.environ.get("COUPLET_COPIES", 40))


def records(rows, experts, layer=3):
    made = np.zeros(len(rows), [("layer", "<i4"), ("expert", "<i4"), ("row", "<f4", (rows.shape[1],))])
    made["layer"], made["expert"], made["row"] = layer, experts, rows
    return made


@pytest.fixture
def clusters(tmp_path):
    """Writes rows of three experts that lie far apart in six dimensions."""
    experts = np.repeat([0, 4, 8], 20)
    centres = 100 * np.eye(6)[experts // 4]
    np.save(tmp_path / "r.npy", records(centres + np.random.default_rng(1).normal(size=(60, 6)), experts))
    return tmp_path / "r.npy"


def test_experts_that_lie_apart_stay_apart(clusters):
    chart = _tsne.chart_of(clusters, perplexity=5)
    assert chart["groups"] == ["expert 0", "expert 4", "expert 8"] and chart["caption"].startswith("Layer 3; 3 experts")
    places = np.array([chart["points"]["x"], chart["points"]["y"]]).T
    group = np.array(chart["points"]["group"])
    nearest = [group[np.argsort(((places - one) ** 2).sum(1))[1]] for one in places]
    assert (np.array(nearest) == group).all()
    assert chart == _tsne.chart_of(clusters, perplexity=5) != _tsne.chart_of(clusters, perplexity=10)


def test_the_picture(clusters, tmp_path, capsys):
    for form in ("svg", "png"):
        out = tmp_path / "new" / f"p.{form}"
        assert plot.main(["--tsne", str(clusters), "--out", str(out), "--perplexity", "5"]) == 0
        assert capsys.readouterr().out == f"{out}\n" and out.stat().st_size > 1000
    assert "expert 8" in (tmp_path / "new" / "p.svg").read_text()


@pytest.mark.parametrize(
    "words",
    (
        ["--out", "x.svg"],
        ["--tsne", "r.npy", "f.json", "--out", "x.svg"],
        ["--tsne", "r.npy", "--out", "folder"],
        ["--tsne", "r.npy", "--out", "x.svg", "--only", "eps"],
        ["--tsne", "r.npy", "--out", "x.svg", "--perplexity", "nan"],
        ["--tsne", "r.npy", "--out", "x.svg", "--seed", "-1"],
        ["f.json", "--out", "folder", "--seed", "2"],
    ),
)
def test_wrong_words(words, capsys):
    with pytest.raises(SystemExit) as ended:
        plot.main(words)
    assert ended.value.code == 2 and "--" in capsys.readouterr().err.splitlines()[-1]


def test_without_scikit_learn(clusters, monkeypatch, capsys):
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert plot.main(["--tsne", str(clusters), "--out", str(clusters.with_suffix(".svg"))]) == 2
    assert capsys.readouterr().err == "couplet.plot: --tsne needs scikit-learn: pip install scikit-learn\n"


def refusals():
    some = np.random.default_rng(2).normal(size=(8, 3))
    yield "no rows of gates", some
    yield "no rows of gates", records(some, 0).reshape(2, 4)
    yield "4 to 4096 rows", records(some[:3], 0)
    yield "4 to 4096 rows", records(np.zeros((5000, 1)), 0)
    yield "no finite numbers", records(np.where(some > 1, np.inf, some), 0)
    yield "more than 64 experts", records(np.zeros((65, 2)), np.arange(65))
    yield "no file of numpy", np.array([{}], dtype=object)


@pytest.mark.parametrize("which", range(7))
def test_what_is_refused(which, tmp_path, capsys):
    sentence, array = list(refusals())[which]
    np.save(tmp_path / "r.npy", array, allow_pickle=True)
    assert plot.main(["--tsne", str(tmp_path / "r.npy"), "--out", str(tmp_path / "x.svg")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"couplet.plot: {tmp_path}/r.npy: ") and sentence in said and said.count("\n") == 1


def test_damaged_files(clusters):
    """Each file is read, or refused with a sentence without control sequences."""
    draw, whole, refused = random.Random(7), clusters.read_bytes(), 0
    for _ in range(COPIES):
        copy = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            copy[draw.randrange(200)] = draw.choice((0, 0x1B, 0xFF, ord("9"), ord("("), ord("O"), draw.randrange(256)))
        clusters.write_bytes(copy[: draw.randrange(len(copy))] if draw.random() < 0.2 else copy)
        try:
            assert len(_tsne.rows_of(clusters)) >= 4
        except _files.BadFile as error:
            refused += len(str(error)) < 1000
    assert refused > COPIES / 2


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
def test_rows_of_the_program(tmp_path):
    """The rows equal the gates of every first expert of the middle layer, number for number."""
    load = pytest.importorskip("safetensors.torch").load_file
    model, out = ROOT / "tests" / "golden" / "eval" / "model", tmp_path / "r.npy"
    subprocess.run([couplet.find_program(), "inspect", model, "--rows", out], check=True, capture_output=True)
    found, names = _tsne.rows_of(out), load(next(model.glob("*.safetensors")))
    for expert in np.unique(found["expert"]):
        gate = names[f"model.layers.{found['layer'][0]}.mlp.experts.{expert}.gate_proj.weight"]
        assert (found["row"][found["expert"] == expert] == gate.float().numpy()).all()
    assert set(found["expert"]) == set(range(8)) and (found["layer"] == 1).all()


def test_a_file_that_is_no_file(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "couplet.plot", "--tsne", str(tmp_path), "--out", "x.svg"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1 and "cannot be read: Is a directory" in run.stderr and run.stderr.count("\n") == 1
