#!/usr/bin/env python3
"""runs_table.py [--check]: writes experiments/runs.csv, one line a recorded run, from experiments/runs/.

Columns: run, arm, seed, settings (what it changes in base.yaml), processor (of runs since it is recorded), steps;
then its outcomes: bpb, bits per byte of all held-out documents; val_loss, the last; and the figures of FIGURES, means
over the layers of report.json. Empty: the run has none (no router; recorded by an older version). --check: exits with
1 if the file is not what would be written."""
import argparse
import csv
import gzip
import io
import json
import math
import pathlib
import statistics
import sys

HOME = pathlib.Path(__file__).resolve().parent.parent / "experiments"
TABLE = HOME / "runs.csv"

# Of a layer of report.json: of the weights, or (routing/) over the held-out text.
FIGURES = {
    "erc": "erc/1", "alpha_min": "alpha_min", "rows_own": "kappa/rows_own", "columns_own": "kappa/columns_own",
    "kappa_own": "kappa/diag_mean", "kappa_others": "kappa/offdiag_mean", "silhouette": "silhouette",
    "router_cos": "router_cos/mean_abs", "router_norm": "router_norm/mean", "gate_norm": "expert_norm/mean",
    "eps": "eps/mean", "row_route_top1": "home/top1",
    "centred_erc": "centred/erc/1", "centred_rows_own": "figures/centred_kappa_row_top1",
    "centred_columns_own": "figures/centred_kappa_column_top1", "centred_kappa_own": "figures/centred_kappa_diagonal",
    "centred_kappa_others": "figures/centred_kappa_off_diagonal", "centred_router_cos": "figures/centred_router_cos",
    "effective_rank": "figures/router_effective_rank", "noise_bound_share": "figures/noise_bound_share",
    "agreement": "routing/agreement/spearman_mean", "top1": "routing/agreement/top1",
    "overlap": "routing/agreement/overlap", "vocabulary": "routing/input_ids/mean",
    "max_vio": "routing/max_vio", "domains": "routing/domains/distance",
    "tokens_rows_own": "routing/tokens_M/rows_own", "tokens_columns_own": "routing/tokens_M/columns_own",
    "negative": "routing/signs/negative", "above": "routing/signs/tokens/above",
    "below": "routing/signs/tokens/below", "size": "routing/signs/tokens/size",
    "ids_above": "routing/signs/ids/above", "ids_below": "routing/signs/ids/below",
    "experts_all": "routing/signs/experts/all", "experts_above": "routing/signs/experts/above",
    "experts_below": "routing/signs/experts/below", "centred_negative": "routing/centred_signs/negative",
    "centred_above": "routing/centred_signs/tokens/above", "centred_below": "routing/centred_signs/tokens/below",
}
COLUMNS = ("run", "arm", "seed", "settings", "processor", "steps", "bpb", "val_loss", "grad_norm_max", *FIGURES)


def dig(value, path):
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def mean_over_layers(report, path):
    """None if a layer has none."""
    layers = report.get("layers", [])  # Autonomy-of-Experts has none
    if path.startswith("routing/"):
        layers, path = report["routing"]["layers"], path.removeprefix("routing/")
        if path == "max_vio":  # older records have the load alone
            return statistics.fmean(layer["load_max_over_mean"] - 1 for layer in layers)
    values = [dig(layer, path) for layer in layers]
    whole = values and all(isinstance(value, (int, float)) for value in values)
    return statistics.fmean(values) if whole else None


def lines_of(run):
    with gzip.open(run / "metrics.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def bits_per_byte(run):
    with gzip.open(run / "documents.json.gz", "rt") as file:
        documents = json.load(file)["documents"]
    return sum(one["nll"] for one in documents) / math.log(2) / sum(one["bytes"] for one in documents)


def row_of(run, arms):
    """A line as {column: value}."""
    arm, seed = run.name.rsplit("-s", 1)
    report, lines = json.loads((run / "report.json").read_text()), lines_of(run)
    machine = run / "machine.json"
    return {"run": run.name, "arm": arm, "seed": int(seed), "settings": " ".join(arms[arm]["settings"]),
            "processor": json.loads(machine.read_text())["processor"] if machine.exists() else None,
            "steps": lines[-1]["step"], "bpb": bits_per_byte(run),
            "val_loss": [line["val_loss"] for line in lines if "val_loss" in line][-1],
            "grad_norm_max": max((line["grad_norm_max"] for line in lines if "grad_norm_max" in line), default=None),
            **{name: mean_over_layers(report, path) for name, path in FIGURES.items()}}


def cell(value):
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def table():
    arms = json.loads((HOME / "list.json").read_text())["runs"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in sorted((HOME / "runs").iterdir()):
        row = row_of(run, arms)
        writer.writerow([cell(row[column]) for column in COLUMNS])
    return out.getvalue()


def read():
    """figure_of(arm, seed, figure) of the table, for hypothesis_tests; a figure that is not there is an error."""
    with open(TABLE, newline="") as file:
        rows = {(row["arm"], int(row["seed"])): row for row in csv.DictReader(file)}
    return lambda arm, seed, figure: float(rows[arm, seed][figure])


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    text = table()
    if words.check:
        same = TABLE.exists() and TABLE.read_text() == text
        print("" if same else f"{TABLE} is not that of the records; tools/runs_table.py writes it")
        return not same
    TABLE.write_text(text)
    print(f"{TABLE}: {text.count(chr(10)) - 1} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
