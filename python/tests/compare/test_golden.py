"""Eight recorded runs, cut short and partly damaged, against what the C program of version 0.1.0 made of them (its verb compare,
src/compare until 2026): words and numbers, all nine digits."""

import gzip
import json
import pathlib

import pytest
from couplet.compare import _charts, _json, _tables
from couplet.compare._comparison import Comparison
from couplet.compare._runs import read_runs

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
    assert "\n".join(_tables.text(comparison)) + "\n" == CASES[case]["text"]
    series = want.pop("series")
    assert _json.rounded(_json.as_json(comparison)) == want
    assert _json.rounded(_charts.charts_of(comparison)) == series["charts"]
