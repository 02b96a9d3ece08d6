"""`make finding` (experiments/tools/finding.py): what it prints of two models, and the picture of recorded curves."""

import pathlib
import sys

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("numpy")
TOOLS = pathlib.Path(__file__).resolve().parents[3] / "experiments" / "tools"


@pytest.fixture
def finding(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import finding

    return finding


def place(value, path, number):
    """Sets the member at a path such as a/b of every layer: `layers` is a list of two."""
    *inner, last = path.split("/")
    for key in inner:
        value = value.setdefault(key, [{}, {}] if key == "layers" else {})
        if isinstance(value, list):
            for layer, of in enumerate(value):
                place(of, path.split("layers/", 1)[1], number + layer)
            return
    value[last] = number


def test_the_figures_of_two_runs_stand_beside_the_recorded_ones(finding, monkeypatch, capsys):
    report = {}
    for at, name in enumerate(finding.FIGURES):
        place(report, finding.runs_table.FIGURES[name], at + 1.0)
    seen = []
    monkeypatch.setattr(finding.make, "train", lambda program, run: seen.append((program, run)) or run)
    monkeypatch.setattr(finding.make, "measured", lambda program, run: report)
    monkeypatch.setattr(sys, "argv", ["finding.py", "/couplet"])
    assert finding.main() == 0
    assert sorted(seen) == [("/couplet", "h-z-erc-s170"), ("/couplet", "h-z-vanilla-s170")]
    lines = capsys.readouterr().out.splitlines()
    for at, (label, _) in enumerate(finding.FIGURES.values()):
        rows = [line for line in lines if line.startswith(label)]
        assert len(rows) == 2 and all(f"{at + 1.5:.2f}" in row for row in rows), (label, rows)  # the layers' mean


def test_a_recorded_figure_has_its_mean_interval_and_range(finding):
    values = [0.1, 0.2, 0.3]
    table = type("Table", (), {"values": lambda self, name, arm: values})()
    assert finding.recorded(table, "arm", "dz", "2") == ["0.20", "−0.05 to 0.45", "0.10 to 0.30"]


def test_the_picture_has_the_four_curves(finding, monkeypatch, tmp_path):
    def report(run, file):
        assert file == "report.json"
        shift = list(finding.CURVES).index(run.rsplit("-s", 1)[0])
        layers = [{"mean_token": {"curve": [shift + layer, shift - layer, shift]}} for layer in (0, 1)]
        return {"routing": {"layers": layers}}

    monkeypatch.setattr(finding.records, "document", report)
    chart = finding.chart()
    assert [one["y"] for one in chart["series"]] == [[k + 0.5, k - 0.5, k] for k in range(4)]
    assert [one["name"] for one in chart["series"]] == list(finding.CURVES.values())
    monkeypatch.setattr(finding, "PICTURE", tmp_path / "curves.svg")
    monkeypatch.setattr(sys, "argv", ["finding.py", "--picture"])
    assert finding.main() == 0
    text = (tmp_path / "curves.svg").read_text()
    assert all(name in text for name in finding.CURVES.values())
