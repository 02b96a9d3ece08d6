"""The compared figures of a run, in the order of tables. The list of charts (assets/charts.json) has their names."""

from __future__ import annotations

import json
from typing import NamedTuple

from ..report._resolve import asset

WHOLE = 9  # digits of a figure that is a count
_CHARTS = [row for row in json.loads(asset("charts.json"))["charts"] if row["of"] == "compare"]
# Columns of the page's table of figures, by key.
_COLUMNS = {c["key"].split(".")[1]: c for row in _CHARTS if row["id"] == "groups" for c in row["columns"]}
_LETTERS = {ord("α"): "alpha", ord("κ"): "kappa", ord("ε"): "eps"}  # spelled in ASCII, for any terminal
# Figures whose curve a chart shows.
CURVES = {line["key"].split(".")[1] for row in _CHARTS for line in row.get("lines", ()) if line["key"][:7] == "curves."}


class RunFigure(NamedTuple):
    key: str  # member of a line of metrics.jsonl
    of: str  # step: one number a line; layers: one a layer, averaged; run: not in the lines
    # The value of a run. at: at the point of comparison; loss: at that point, linear between two evaluations; tenth:
    # the mean over the last tenth before it; median, most: over all lines; equal_time: validation loss at equal time;
    # tokens: the tokens of the last line.
    how: str
    at_start: bool  # start.json has it too
    digits: int  # digits shown

    @property
    def name(self) -> str:
        column = _COLUMNS[self.key]
        return str(column["name"]).translate(_LETTERS) + (", %" if column.get("percent") else "")

    @property
    def times(self) -> float:
        """Returns the factor by which a shown value is multiplied."""
        column = _COLUMNS[self.key]
        return 100.0 if column.get("percent") else float(column.get("times", 1))


FIGURES = (
    RunFigure("kappa_row_top1", "layers", "at", True, 4),
    RunFigure("kappa_column_top1", "layers", "at", True, 4),
    RunFigure("kappa_diagonal", "layers", "at", True, 4),
    RunFigure("kappa_off_diagonal", "layers", "at", True, 4),
    RunFigure("alpha_min", "layers", "at", True, 3),
    RunFigure("erc_clean", "layers", "at", True, 4),
    RunFigure("erc", "step", "at", False, 4),
    RunFigure("val_loss", "step", "loss", True, 4),
    RunFigure("val_loss_equal_time", "run", "equal_time", False, 4),
    RunFigure("loss", "step", "tenth", False, 4),
    RunFigure("balance", "step", "at", False, 4),
    RunFigure("load_max", "layers", "at", False, 3),
    RunFigure("dead_experts", "layers", "at", False, 3),
    RunFigure("routing_entropy", "layers", "at", False, 4),
    RunFigure("agreement_centred", "layers", "at", True, 4),
    RunFigure("agreement_mu_off", "layers", "at", True, 4),
    RunFigure("dz", "layers", "at", True, 3),
    RunFigure("router_mu_negative", "layers", "at", True, 3),
    RunFigure("eps_mean", "layers", "at", True, 4),
    RunFigure("router_norm_mean", "layers", "at", True, 4),
    RunFigure("router_norm_std", "layers", "at", True, 4),
    RunFigure("gate_norm_mean", "layers", "at", True, 4),
    RunFigure("gate_norm_std", "layers", "at", True, 4),
    RunFigure("router_cos", "layers", "at", True, 4),
    RunFigure("grad_norm", "step", "at", False, 4),
    RunFigure("skipped", "step", "at", False, 3),
    RunFigure("tokens_per_s", "step", "median", False, 4),
    RunFigure("memory_bytes", "step", "most", False, 4),
    RunFigure("tokens", "run", "tokens", False, WHOLE),
)
KEYS = [figure.key for figure in FIGURES]
LAYERS = [figure for figure in FIGURES if figure.of == "layers"]
VALIDATION = FIGURES[KEYS.index("val_loss")]
# Keys of older versions, which files of runs may have. --json repeats them until the next minor version.
OLD_KEYS = {
    "router_norm_std": "router_norm_sd",
    "gate_norm_std": "gate_norm_sd",
    "kappa_row_top1": "kappa_rows_own",
    "kappa_column_top1": "kappa_columns_own",
}
