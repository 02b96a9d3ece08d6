"""Eight recorded runs, cut short and partly damaged, compared with the output of the C program of version 0.1.0 (its
verb compare, src/compare until 2026). Numbers agree to all nine digits, and curves and points of charts to six. New
members, names of figures, and the order of tables are not compared."""

import gzip
import json
import pathlib
import re

import pytest
from couplet.compare import _json, _tables
from couplet.compare._comparison import Comparison
from couplet.compare._runs import read_runs
from couplet.report import _resolve

GOLDEN = pathlib.Path(__file__).parents[3] / "tests" / "golden" / "compare"


def golden(name):
    return json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))


CASES = golden("outputs")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, files in golden("runs").items():
        (folder / name).mkdir()
        for file, text in files.items():
            (folder / name / file).write_text(text)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_words_and_numbers(case, runs, monkeypatch):
    monkeypatch.chdir(runs)
    words, want = CASES[case]["words"], CASES[case]["json"]
    by = words[words.index("--group-by") + 1] if "--group-by" in words else None
    comparison = Comparison(read_runs(words[: words.index("--group-by")] if by else words), by)
    said = "\n".join(_tables.text(comparison)) + "\n"
    for sentence in comparison.conclusion:
        said = said.replace(sentence + "\n", "", 1)
    said = said.replace(" pairs: what other documents would change, not what other seeds would.", " pairs.")
    tables, golden_tables = (sorted(re.split("\n\n+", text.strip("\n"))) for text in (said, CASES[case]["text"]))
    assert tables == golden_tables
    series = want.pop("series")
    found = _json.rounded(_json.as_json(comparison))
    charts = {chart["id"]: chart for chart in _resolve.charts_of(found)}
    for chart in series["charts"]:
        name = re.sub("(validation-loss)-", r"\1-of-", chart["id"])
        assert curves_of(chart) == curves_of(charts.get(name, {"series": [], "x": {"label": ""}})), name
    assert len(found.pop("conclusion")) == len(want["comparisons"])
    for comparison_of_groups in found["comparisons"]:
        points = comparison_of_groups.pop("over_tokens")
        assert points["tokens"][-1:] == [want["point_tokens"]] * bool(points["tokens"])
        assert points["mean"][-1:] == [comparison_of_groups["mean"]] * bool(points["tokens"])
    for one in (*found["runs"], *found["groups"]):
        for key in ("agreement_centred", "agreement_mu_off", "dz", "router_mu_negative"):
            of_tokens = one["figures"].pop(key)  # the recorded runs are older
            assert (of_tokens["mean"] if isinstance(of_tokens, dict) else of_tokens) is None
            assert not any(one.get("layers", {}).pop(key, []))
    for one in (found, *found["runs"], *found["groups"]):
        for key in {"sources", "curves"} | ({"place"} if "folder" in one else set()):
            one.pop(key, None)
    assert found == want


def curves_of(chart):
    """Returns for each series with a point its name, and x, y and the ends of its band to six digits."""
    unit = {"million tokens": 1e6, "thousand tokens": 1e3}.get(chart["x"]["label"], 1)
    rows = (("x", unit), ("y", 1), ("low", 1), ("high", 1))
    return [
        (one["name"], *([f"{v * times:.6g}" for v in one.get(key) or []] for key, times in rows))
        for one in chart["series"]
        if one["x"]
    ]
