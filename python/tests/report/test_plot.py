"""couplet.plot: every kind of chart in every format, equal bytes in each run, and refused input. `page.json` is the
data of a page of two small checkpoints."""

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

pytest.importorskip("matplotlib")
import charts  # noqa: E402
from conftest import ROOT  # noqa: E402
from couplet import plot  # noqa: E402
from couplet.report import _charts  # noqa: E402

REPORT = json.loads(pathlib.Path(__file__).with_name("page.json").read_text(encoding="utf-8"))["report"]
KINDS = {one["id"]: one for one in charts.every_kind()}
BEGINNINGS = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG"}


@pytest.fixture
def report(tmp_path):
    """Returns the path of a file with a report."""
    (tmp_path / "r.json").write_text(json.dumps(REPORT))
    return tmp_path / "r.json"


def drawn(folder, *ids, form="svg"):
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{name}.{form}" for name in ids]
    for name, path in zip(ids, paths):
        plot.draw(KINDS[name], path)
    return paths


def texts_of(path):
    return [node.text for node in xml.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def refused(folder, capsys, report, *sentences, words=()):
    (folder / "r.json").write_text(json.dumps(report))
    assert plot.main([str(folder / "r.json"), "--out", str(folder / "out"), *words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("couplet.plot: ") and said.count("\n") == 1, said
    for sentence in sentences:
        assert sentence in said, said


# ---- drawings ----


@pytest.mark.parametrize("form", BEGINNINGS)
def test_all_charts_twice_the_same(form, tmp_path):
    ids = KINDS if form == "svg" else ("bands", "matrix", "t-sne", "boxes")
    first, second = (drawn(tmp_path / folder, *ids, form=form) for folder in ("first", "second"))
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes() and one.read_bytes().startswith(BEGINNINGS[form])


def test_texts_of_a_picture(tmp_path):
    bands, nothing = drawn(tmp_path, "bands", "nothing")
    for text in ("Title of bands", "vanilla", "ERC, alpha 1", "layer", "mean κ"):
        assert text in texts_of(bands), text
    assert "What is shown." in bands.read_text() and "date" not in bands.read_text()
    assert KINDS["nothing"]["caption"] in texts_of(nothing)


def test_hostile_names(tmp_path):
    names = ["<script>&", "$\\frac{1}{0}$ \u0000\ud800", "_hidden", "a" * 500]
    series = [{**one, "name": name} for one, name in zip(KINDS["bands"]["series"], names)]
    plot.draw({**KINDS["bands"], "series": series}, tmp_path / "p.svg")
    texts = texts_of(tmp_path / "p.svg")
    assert "<script>&" in texts and any("$\\frac{1}{0}$" in text for text in texts)
    assert any("_hidden" in text for text in texts) and max(map(len, texts)) < 100


def test_axes(monkeypatch, tmp_path):
    """The axes have shares up to 1, zero on a linear axis, and zero on a logarithmic one."""
    found = {}
    savefig = _charts.Figure.savefig

    def keep(figure, path, **more):
        found[path.stem] = figure.axes[0]
        savefig(figure, path, **more)

    monkeypatch.setattr(_charts.Figure, "savefig", keep)
    drawn(tmp_path, "bands", "logarithm", "no-zero", "equal")
    assert found["equal"].get_ylim()[1] == 1
    low, high = found["bands"].get_ylim()
    assert low <= 0 and high >= 1
    low, high = found["logarithm"].get_ylim()
    assert -0.01 < low < 0 and high > 0.5 and 0 in found["logarithm"].get_yticks()
    assert found["no-zero"].get_yscale() == found["no-zero"].get_xscale() == "log"
    assert [_charts.short(x) for x in (0, 900, 25e3, 4.1e6, 2e9)] == ["0", "900", "25k", "4.1M", "2B"]


def test_colours_follow_groups():
    assert _charts.palette([0, 2, -1]) == {0: _charts.COLOURS[0], 2: _charts.COLOURS[2], -1: _charts.NONE}
    assert len(set(_charts.palette(list(range(12))).values())) == 12


def test_names_in_the_legend(tmp_path):
    """Groups have the chart's names. Of many lines on the ramp the first and the last are named."""
    texts = {path.stem: texts_of(path) for path in drawn(tmp_path, "boxes", "ramp", "infinite")}
    assert {"vanilla", "ERC"} <= set(texts["boxes"])
    assert "layer 0" in texts["ramp"] and "… layer 15" in texts["ramp"] and "layer 1" not in texts["ramp"]
    assert "∞" in texts["infinite"] and "encoder 0" in texts["infinite"]


def test_recorded_runs(tmp_path):
    """compare writes a JSON of recorded runs, and its curves are drawn."""
    from couplet.compare.__main__ import main

    runs = [str(ROOT / "experiments" / "runs" / name) for name in ("short-alpha-1-s0", "short-alpha-0.4-s0")]
    assert main([*runs, "--group-by", "erc.alpha", "--no-documents", "--json", str(tmp_path / "c.json")]) == 0
    ids = ["eps", "erc", "at-the-end-eps"]
    plot.draw_files([tmp_path / "c.json"], tmp_path / "out", "svg", ids)
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {f"c-{name}" for name in ids}
    assert "erc.alpha 0.4" in texts_of(tmp_path / "out" / "c-eps.svg")


# ---- files ----


def test_only_and_several_files(report, tmp_path):
    other = report.with_name("b.json")
    other.write_text(report.read_text())
    words = [str(report), str(other), "--out", str(tmp_path / "new" / "out"), "--only", "kappa-own-expert,z-score"]
    assert plot.main(words) == 0
    found = {one.name for one in (tmp_path / "new" / "out").iterdir()}
    assert found == {f"{stem}-{name}.svg" for stem in "rb" for name in ("kappa-own-expert", "z-score")}


def test_same_names_of_files(report, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "r.json").write_text(report.read_text())
    assert plot.main([str(report), str(tmp_path / "other" / "r.json"), "--out", str(tmp_path)]) == 1
    assert "same name" in capsys.readouterr().err


def test_no_report(tmp_path, capsys):
    refused(tmp_path, capsys, {"lines": []}, "is not what couplet inspect, eval or compare write", "--json")
    refused(tmp_path, capsys, [1], "no object")


def test_no_such_chart(tmp_path, capsys):
    refused(tmp_path, capsys, REPORT, "no chart nothing", "z-score", words=("--only", "nothing"))


def test_files_that_are_no_json(tmp_path, capsys):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe{")
    for name in ("bad.json", "none.json"):
        assert plot.main([str(tmp_path / name), "--out", str(tmp_path)]) == 1
        assert name in capsys.readouterr().err


def curves(**more):
    over = {"tokens": [1, 2, 3], "mean": [0.5, 0.25, 0.125], "low": [0, 0, 0], "high": [1, 1, 1], **more}
    return {"comparisons": [{"group": "a", "over_tokens": over}], "groups": [{"name": "a"}], "baseline": "b"}


DAMAGES = {
    "lengths": (curves(low=[0, 0]), "IndexError"),
    "no numbers": (curves(tokens=["a", "b", "c"]), "TypeError"),
    "no ends": (curves(low=[None, "a", 3]), "low must be a list of numbers and null"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_reports(name, tmp_path, capsys):
    report, sentence = DAMAGES[name]
    refused(tmp_path, capsys, report, "r.json", sentence)


# ---- alone ----


def alone(missing, *words):
    """Runs the source tree's couplet.plot in a Python where `missing` cannot be imported."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing!r})); sys.argv = ['plot', *{list(words)!r}]; "
        "runpy.run_module('couplet.plot', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )


def test_without_torch_and_library(report, tmp_path):
    done = alone(["torch", "couplet.ops._library"], str(report), "--only", "z-score", "--out", str(tmp_path))
    assert done.returncode == 0 and (tmp_path / "r-z-score.svg").exists(), done


def test_without_matplotlib(report, tmp_path):
    done = alone(["matplotlib"], str(report), "--out", str(tmp_path))
    assert done.returncode == 2 and "pip install matplotlib" in done.stderr, done


def test_wrong_arguments():
    done = alone([], "figures.json")
    assert done.returncode == 2 and "--out" in done.stderr, done


def test_loss_without_torch():
    code = "import sys; sys.modules['torch'] = None; import couplet; couplet.erc_loss"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 1 and "couplet needs PyTorch 2.4 or newer: pip install torch" in done.stderr, done


@pytest.mark.parametrize(
    "module, sentence",
    (
        ("bench", "couplet needs PyTorch 2.4 or newer: pip install torch\n"),
        ("certify", "couplet needs PyTorch 2.4 or newer: pip install torch\n"),
        ("plot", "needs matplotlib"),
    ),
)
def test_programs_without_torch(module, sentence):
    """The option -S hides installed packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", f"couplet.{module}", "x.json", "--out", "x"],
        capture_output=True,
        text=True,
        cwd=ROOT / "python",
        env={"PYTHONPATH": ""},
    )
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, done
