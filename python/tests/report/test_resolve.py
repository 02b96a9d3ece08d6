"""The list of charts, and the charts of a report: numbers taken from its JSON, matrices, damaged reports. `page.json`
is the data of a page of two small checkpoints."""

import copy
import json
import math
import pathlib
import re

import pytest
from couplet.report import _resolve

DATA = json.loads(pathlib.Path(__file__).with_name("page.json").read_text(encoding="utf-8"))
LIST = json.loads(_resolve.asset("charts.json"))
KEYS = ("id", "of", "section", "form", "title")


@pytest.fixture
def report():
    return copy.deepcopy(DATA["report"])


def chart_of(report, name):
    return next(one for one in _resolve.charts_of(report) if one["id"] == name)


# ---- the list ----


def test_rows_of_the_list():
    sections = {(one["of"], one["id"]) for one in LIST["sections"]}
    ids = [(one["of"].replace("routing", "inspect"), one["id"]) for one in LIST["charts"]]  # one page for both
    assert len(ids) == len(set(ids)) and all(re.fullmatch("[a-z0-9-]+", name) for _, name in ids)
    for one in LIST["charts"]:
        assert all(one.get(key) for key in KEYS) and (one["of"], one["section"]) in sections, one["id"]
        assert one["form"] in {*_resolve.FORMS, "table"}, one["id"]
    captions = [one["caption"] for one in LIST["charts"] if "caption" in one]
    assert len(captions) == len(set(captions)), "a caption stands twice"


def test_words_of_the_list():
    """Titles are words. Captions, sections and the glossary are sentences."""
    for one in LIST["charts"]:
        assert re.match("[A-Z]", one["title"]) and "_" not in re.sub("M_tok|α_min", "", one["title"]), one["title"]
        assert one.get("caption", ".")[-1] == ".", one["caption"]
    figures = next(one["columns"] for one in LIST["charts"] if one["id"] == "groups")
    names = {one["key"].removesuffix(".mean"): one["name"] for one in figures}
    for one in LIST["charts"]:  # a figure of runs has one name
        if one["form"] == "points" and "panels" not in one:
            assert one["title"][1:] == names[one["key"]][1:], one["title"]
    page = (pathlib.Path(__file__).parents[3] / "docs" / "notation.md").read_text(encoding="utf-8")
    for key in ("kappa_row_top1", "kappa_column_top1", "alpha_min", "erc_clean", "eps_mean"):
        assert f"| {names['figures.' + key]} |" in page, key
    for one in (*LIST["terms"], *(one for one in LIST["sections"] if "words" in one)):
        assert re.match(r"\S", one["words"]) and one["words"][-1] == "." and len(one["words"]) > 40, one["words"]


# ---- numbers ----


def test_lines_are_the_figures_of_the_layers(report):
    chart = chart_of(report, "z-score")
    for v, checkpoint in enumerate(report["checkpoints"]):
        curves = [one for one in chart["series"] if one["group"] == v]
        assert curves[0]["y"] == [layer["chance"]["z"] for layer in checkpoint["layers"]]
        assert curves[1]["y"] == [layer["centred"]["z"] for layer in checkpoint["layers"]]
    assert chart["x"]["names"] == ["0", "1", "2"] and chart["series"][-1]["style"] == "rule"


def test_a_panel_a_line_of_many(report):
    ids = [one["id"] for one in _resolve.charts_of(report)]
    assert [name for name in ids if name.startswith("own-share")] == [
        "own-share-router-rows",
        "own-share-experts",
        "own-share-assignment",
    ]
    assert "own-share" in [one["id"] for one in _resolve.charts_of(report["checkpoints"][0])]


def test_gaps_and_infinity(report):
    """Gaps are a layer that a checkpoint lacks, a quotient by 0, and a missing figure. A bound may be infinite."""
    first, second = report["checkpoints"]
    del second["layers"][1]
    first["layers"][0].update(alpha_min=None, alpha_min_infinite=True)
    first["layers"][2]["chance"].pop("z")
    chart = chart_of(report, "z-score")
    assert chart["series"][0]["y"][2] is None and chart["series"][2]["y"][1] is None
    alpha = chart_of(report, "ratios-min")["series"][0]
    assert alpha["y"][0] is None and alpha["infinite"] == [0]
    first["layers"][0]["figures"]["m_diagonal"] = 0
    band = chart_of(first, "erc")["series"][-1]
    assert band["low"][0] is None and band["low"][1] is not None


def test_band(report):
    first = report["checkpoints"][0]
    band = next(one for one in chart_of(first, "kappa")["series"] if "low" in one)
    chance = first["layers"][1]["chance"]
    for end, sign in (("low", -1), ("high", 1)):
        assert band[end][1] == chance["kappa_diag_expected"] + sign * 2 * chance["kappa_diag_std"]


def test_curves_over_alpha(report):
    first = report["checkpoints"][0]
    first["layers"][0]["erc_relative"] = {"10": 0.5, "0.5": 2.0, "2": 1.0}
    curve = chart_of(first, "erc-over-alpha")["series"][0]
    assert (curve["x"], curve["y"]) == ([0.5, 2, 10], [2, 1, 0.5]) and curve["share"] == 0
    for layer in first["layers"]:
        layer["erc_relative"] = {"1": 0, "2": 0}
    nothing = chart_of(first, "erc-over-alpha")
    assert nothing["series"] == [] and "is 0 at every" in nothing["caption"]


def test_quantiles_are_those_of_numpy():
    numpy = pytest.importorskip("numpy")
    values = [3.0, -1.0, 7.5, 2.0, 2.0, math.nan, 11.0]
    box = _resolve.quantiles(values)
    shares = (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)
    names = ("low", "q05", "q25", "q50", "q75", "q95", "high")
    assert [box[name] for name in names] == pytest.approx(list(numpy.nanquantile(values, shares)))
    assert box["mean"] == pytest.approx(float(numpy.nanmean(values)))


def test_headlines_of_an_evaluation():
    """Each task whose headline is a share has a dot, with two standard errors within 0 and 1. A loss has no dot."""
    results = {
        "a": {"chance": 0.25, "summary": {"share": 0.5, "stderr": 0.1}},
        "b": {"summary": {"share": 0.9, "stderr": 0.2}},
        "c": {"summary": {"value": 3.0}},
    }
    (chart,) = _resolve.charts_of({"results": results})
    headline, chance = chart["series"]
    assert chart["x"]["names"] == ["a", "b"] and headline["y"] == [0.5, 0.9] and chance["y"] == [0.25, None]
    assert headline["low"] == [0.3, 0.5] and headline["high"] == [0.7, 1]


# ---- matrices ----


def test_packed_and_plain_matrices():
    packed = {"rows": 1, "columns": 3, "low": 0.5, "high": 8.0, "data": "AAABAP//"}
    assert _resolve.matrix_of(packed) == [[0, 0.5, pytest.approx(8)]]
    assert _resolve.matrix_of([[1, 2], None]) == [[1, 2], [None, None]]


def test_matrices_by_falling_diagonal(report):
    first = report["checkpoints"][0]
    chart = chart_of(first, "coupling-0")
    M = _resolve.matrix_of(first["layers"][0]["map"])
    order = chart["order"]
    assert sorted(order) == list(range(8)) and [M[i][i] for i in order] == sorted(
        (M[i][i] for i in order), reverse=True
    )
    mean = sum(M[i][i] for i in range(8)) / 8
    assert chart["cells"][2][5] == pytest.approx(M[order[2]][order[5]] / mean)


def test_scaled_matrices():
    cells, _ = _resolve.by_rows([[1.0, 3.0], [None, 2.0]])
    assert cells == [[0.5, 1.5], [None, 1]]
    cells, _ = _resolve.by_independence([[4.0, 2.0], [2.0, 8.0]])
    assert cells == [[None, pytest.approx(1)], [pytest.approx(1), None]]
    layers = [[[0.25, 0.75], [0.75, 0.25], [0.0, 0.0]]]
    assert _resolve.by_domain(layers, 0) == [[0.5, 1.5]]


# ---- damage ----


def places(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


@pytest.mark.parametrize("put", (None, "x", -1, True, 1e308, [], {}, [None], {"1": "x"}), ids=repr)
def test_damaged_reports(put, report, tmp_path, capsys):
    """Every third member is replaced. The result is charts, or one sentence."""
    pytest.importorskip("matplotlib")
    from couplet import plot

    small = {**report["checkpoints"][0], "layers": report["checkpoints"][0]["layers"][:2]}
    for path in list(places(small))[1::3]:
        damaged = copy.deepcopy(small)
        at = damaged
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = put
        (tmp_path / "r.json").write_text(json.dumps(damaged))
        try:
            plot.charts_of(tmp_path / "r.json")
        except plot.CannotDraw as error:
            assert str(error) and "\n" not in str(error), path


def test_pictures_of_a_page(tmp_path):
    """The maps of M come from the page."""
    pytest.importorskip("matplotlib")
    from couplet import plot

    data = json.dumps(DATA).replace("<", "\\u003c")
    (tmp_path / "p.html").write_text(f'<script type="application/json" id="couplet-data">{data}</script>')
    drawn = plot.draw_files([tmp_path / "p.html"], tmp_path / "out")
    names = {path.name for path in drawn}
    assert {"p-z-score.svg", "p-coupling-l8n8-0.svg", "p-eps.svg", "p-erc-over-alpha.svg"} <= names
