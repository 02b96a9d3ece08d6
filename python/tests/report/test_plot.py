"""couplet.plot: every kind of chart in every format, the same bytes each time, and what is refused."""

import copy
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

pytest.importorskip("matplotlib")
import charts  # noqa: E402
import numpy as np  # noqa: E402
from conftest import ROOT  # noqa: E402
from couplet import plot  # noqa: E402
from couplet.report import _charts  # noqa: E402

BEGINNINGS = {"svg": b"<?xml", "pdf": b"%PDF-", "png": b"\x89PNG"}


@pytest.fixture
def figures(tmp_path):
    """Writes a block into a file and returns its path."""

    def write(block, name="figures.json"):
        (tmp_path / name).write_text(json.dumps(block))
        return tmp_path / name

    return write


def block_of(*ids):
    block = charts.every_kind()
    block["series"]["charts"] = [one for one in block["series"]["charts"] if one["id"] in ids]
    return block


def texts_of(path):
    return [node.text for node in xml.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def refused(figures, capsys, block, *sentences, words=()):
    path = figures(block)
    assert plot.main([str(path), "--out", str(path.parent / "out"), *words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("couplet.plot: ") and said.count("\n") == 1, said
    for sentence in sentences:
        assert sentence in said, said


# ---- what is drawn ----


def test_all_charts_twice_the_same(figures, tmp_path):
    path = figures(charts.every_kind())
    drawn = plot.draw_files([path], tmp_path / "first")
    again = plot.draw_files([path], tmp_path / "second")
    assert [one.name for one in drawn] == [
        f"figures-{one['id']}.svg" for one in charts.every_kind()["series"]["charts"]
    ]
    assert [one.read_bytes() for one in drawn] == [one.read_bytes() for one in again]


@pytest.mark.parametrize("form", ("pdf", "png"))
def test_other_formats_twice_the_same(form, figures, tmp_path):
    path = figures(block_of("bands", "matrix", "t-sne", "boxes"))
    drawn = [plot.draw_files([path], tmp_path / folder, form) for folder in ("first", "second")]
    assert len(drawn[0]) == 4
    for one, other in zip(*drawn):
        assert one.read_bytes() == other.read_bytes() and one.read_bytes().startswith(BEGINNINGS[form])


def test_texts_of_a_picture(figures, tmp_path):
    (drawn,) = plot.draw_files([figures(block_of("bands"))], tmp_path)
    for text in (
        "Title of bands",
        "vanilla",
        "ERC, alpha 1",
        "layer",
        "mean κ",
        "A curve is missing where a layer has no number.",
    ):
        assert text in texts_of(drawn), text
    assert "What is shown." in drawn.read_text() and "date" not in drawn.read_text()


def test_hostile_names(figures, tmp_path):
    block = block_of("bands")
    names = ["<script>&", "$\\frac{1}{0}$ \u0000\ud800", "_hidden", "a" * 500]
    for one, name in zip(block["series"]["charts"][0]["series"], names):
        one["name"] = name
    (drawn,) = plot.draw_files([figures(block)], tmp_path)
    texts = texts_of(drawn)
    assert "<script>&" in texts and any("$\\frac{1}{0}$" in text for text in texts)
    assert any("_hidden" in text for text in texts) and max(map(len, texts)) < 100


def test_axes(monkeypatch, figures, tmp_path):
    """Ranges that the file sets, zero on an axis, and zero on a logarithmic one."""
    found = {}
    savefig = _charts.Figure.savefig

    def keep(figure, path, **more):
        found[path.stem.removeprefix("figures-")] = figure.axes[0]
        savefig(figure, path, **more)

    monkeypatch.setattr(_charts.Figure, "savefig", keep)
    plot.draw_files([figures(block_of("bands", "logarithm", "no-zero", "equal"))], tmp_path)
    assert found["equal"].get_ylim() == (0, 1)
    low, high = found["bands"].get_ylim()
    assert low <= 0 and high >= 1
    low, high = found["logarithm"].get_ylim()
    assert -0.01 < low < 0 and high > 0.5 and 0 in found["logarithm"].get_yticks()
    assert found["no-zero"].get_yscale() == found["no-zero"].get_xscale() == "log"


def test_values_of_a_matrix():
    heat = charts.heat(1, 3, [0, 65534, 65535], low=-1, high=3)
    assert np.array_equal(_charts.decode_heat(heat), [[-1, 3, np.nan]], equal_nan=True)
    heat = charts.heat(1, 3, [0, 32767, 65534], low=0.01, high=100, scale="log")
    assert np.allclose(_charts.decode_heat(heat), [[0.01, 1, 100]], rtol=1e-12)


def test_zero_of_a_logarithmic_matrix():
    heat = charts.heat(1, 2, [0, 65534], low=0.01, high=100, scale="log", zeros=True)
    assert np.allclose(_charts.decode_heat(heat), [[0, 100]], rtol=1e-12)


def test_colours_follow_groups():
    assert _charts.palette([0, 2, -1]) == {0: _charts.COLOURS[0], 2: _charts.COLOURS[2], -1: _charts.NONE}
    assert len(set(_charts.palette(list(range(12))).values())) == 12


def test_names_in_the_legend(figures, tmp_path):
    """Groups have the chart's names; of many lines on the ramp the first and the last are named."""
    drawn = plot.draw_files([figures(block_of("boxes", "ramp", "infinite"))], tmp_path)
    texts = {path.stem.removeprefix("figures-"): texts_of(path) for path in drawn}
    assert {"vanilla", "ERC"} <= set(texts["boxes"])
    assert "layer 0" in texts["ramp"] and "… layer 15" in texts["ramp"] and "layer 1" not in texts["ramp"]
    assert "∞" in texts["infinite"] and "encoder 0" in texts["infinite"]


def test_what_couplet_writes(tmp_path):
    """Recorded runs, compared by the program."""
    from couplet import find_program

    program = find_program()
    if (
        not program
        or "--series" not in subprocess.run([program, "compare", "--help"], capture_output=True, text=True).stdout
    ):
        pytest.skip("there is no program with --series")
    runs = [ROOT / "experiments" / "runs" / name for name in ("short-alpha-1-s0", "short-alpha-0.4-s0")]
    subprocess.run(
        [
            program,
            "compare",
            *runs,
            "--group-by",
            "erc.alpha",
            "--no-documents",
            "--json",
            tmp_path / "c.json",
            "--series",
        ],
        check=True,
        capture_output=True,
    )
    ids = ["eps", "erc", "at-the-end-eps"]
    drawn = plot.draw_files([tmp_path / "c.json"], tmp_path / "out", "svg", ids)
    assert {path.stem for path in drawn} == {f"c-{name}" for name in ids}
    assert "erc.alpha 0.4" in texts_of(tmp_path / "out" / "c-eps.svg")


# ---- files ----


def test_only_and_several_files(figures, tmp_path):
    paths = [str(figures(block_of("bands", "dots"), name)) for name in ("a.json", "b.json")]
    assert plot.main([*paths, "--out", str(tmp_path / "new" / "out"), "--only", "dots"]) == 0
    assert sorted(one.name for one in (tmp_path / "new" / "out").iterdir()) == ["a-dots.svg", "b-dots.svg"]


def test_renamed_charts(figures, tmp_path):
    block = block_of("dots", "bands")
    block["series"]["charts"][0]["id"] = "kappa-rows-own"
    block["series"]["charts"][1]["id"] = "at-the-end-router-norm-sd"
    paths = [figures(block)]
    for only in ("kappa-rows-own", "kappa-row-top1"):
        assert [one.name for one in plot.draw_files(paths, tmp_path / only, only=[only])] == [
            "figures-kappa-row-top1.svg"
        ]
    drawn = plot.draw_files(paths, tmp_path / "all")
    assert {one.stem for one in drawn} == {"figures-kappa-row-top1", "figures-at-the-end-router-norm-std"}


def test_same_names_of_files(figures, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    paths = [str(figures(block_of("dots"), name)) for name in ("a.json", "other/a.json")]
    assert plot.main([*paths, "--out", str(tmp_path)]) == 1
    assert "same name" in capsys.readouterr().err


def test_no_report(figures, capsys):
    refused(figures, capsys, {"lines": []}, "is not what couplet inspect, eval or compare write", "--json")
    refused(figures, capsys, {"series": {}}, "without charts")
    refused(figures, capsys, [1], "no object")


def test_other_version(figures, capsys):
    refused(figures, capsys, {"series": {"version": 2, "charts": []}}, "version 2")


def test_no_such_chart(figures, capsys):
    refused(figures, capsys, block_of("dots"), "no chart nothing", "dots", words=("--only", "nothing"))


@pytest.mark.parametrize("name", ("../up", "", "a/b", None, 3))
def test_ids_that_are_no_file_names(name, figures, capsys):
    block = block_of("dots")
    block["series"]["charts"][0]["id"] = name
    refused(figures, capsys, block, "id")


def test_files_that_are_no_json(tmp_path, capsys):
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe{")
    for name in ("bad.json", "none.json"):
        assert plot.main([str(tmp_path / name), "--out", str(tmp_path)]) == 1
        assert name in capsys.readouterr().err


DAMAGES = {
    "unknown kind": ("dots", lambda c: c.update(kind="pie"), "'pie' is no kind of chart; there are lines, heat"),
    "lengths": ("dots", lambda c: c["series"][0]["x"].pop(), "series 0: x has 2 entries, y has 3"),
    "no numbers": ("dots", lambda c: c["series"][1].update(y=["a"]), "series 1, y must be a list of numbers"),
    "no y": ("dots", lambda c: c["series"][1].pop("y"), "series 1 has no y"),
    "no object": ("dots", lambda c: c["series"].append(3), "series 2 must be an object"),
    "no series": ("dots", lambda c: c.pop("series"), "it has no series"),
    "series of another type": ("dots", lambda c: c.update(series=3), "it has a series of the wrong type"),
    "no base64": ("matrix", lambda c: c["heat"].update(data="~~~~"), "data is not base64"),
    "short data": (
        "matrix",
        lambda c: c["heat"].update(data=c["heat"]["data"][4:]),
        "509 bytes; 16 x 16 values have 512",
    ),
    "no rows": ("matrix", lambda c: c["heat"].update(rows=0), "not possible"),
    "log of 0": ("log-matrix", lambda c: c["heat"].update(low=0), "not possible"),
    "cell outside": ("matrix", lambda c: c["heat"].update(boxes=[[16, 0]]), "[row, column]"),
    "names": ("load", lambda c: c["points"].update(names=["a"]), "names has 1 entries"),
    "no boxes": ("boxes", lambda c: c.update(boxes=[3]), "boxes must be objects"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_charts(name, figures, capsys):
    chart, damage, sentence = DAMAGES[name]
    block = copy.deepcopy(block_of(chart))
    damage(block["series"]["charts"][0])
    refused(figures, capsys, block, f"chart {chart}: ", sentence)


# ---- alone ----


def alone(missing, *words):
    """The source tree's couplet.plot, in a Python where `missing` cannot be imported."""
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


def test_without_torch_and_library(figures, tmp_path):
    done = alone(["torch", "couplet.ops._library"], str(figures(block_of("dots"))), "--out", str(tmp_path))
    assert done.returncode == 0 and (tmp_path / "figures-dots.svg").exists(), done


def test_without_matplotlib(figures, tmp_path):
    done = alone(["matplotlib"], str(figures(block_of("dots"))), "--out", str(tmp_path))
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
    """-S: without installed packages."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", f"couplet.{module}", "x.json", "--out", "x"],
        capture_output=True,
        text=True,
        cwd=ROOT / "python",
        env={"PYTHONPATH": ""},
    )
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr, done
