#!/usr/bin/env python3
"""runs_table.py [--check]: writes experiments/runs.csv, one line a recorded run, from experiments/runs/.

Columns: run, arm, seed, settings (what it changes in base.yaml), processor (of runs since it is recorded), steps;
then its outcomes:

bpb                 bits per byte of all held-out documents
val_loss            the last; by_time: tokens and loss of every evaluation in turn; by_source: in alphabetical order
grad_norm_max       the largest gradient norm of the steps that recorded lines cover, each those since the logged line before
                    it; late_grad_norm_max: of lines after step 200; recorded_grad_norm: of the recorded steps from 200 on
recorded_erc        the largest coupling loss of the recorded steps
balance_loss        the load-balancing loss times its weight, mean of the last ten recorded steps
skipped             steps that were skipped
FIGURES             means over the layers of report.json; max_vio is the largest load over the mean, less 1
STARTED, TRAINED    means over the layers of the metrics before the first and of the last step
tasks_bpb           bits per byte of the right answers, mean over TASKS (tasks.json); tasks_bpb_by_task: in their order
NAME_by_layer       numbers separated by spaces

Empty: the run has none (no router; recorded by an older version). --check: exits with 1 if the file is not what
would be written, if a record has a path that begins at the root of a machine, or if the matrices of a run do not have the
figures of its report."""

import argparse
import csv
import gzip
import io
import json
import math
import pathlib
import re
import statistics
import struct
import sys

HOME = pathlib.Path(__file__).resolve().parents[1]
TABLE = HOME / "runs.csv"

# Of a layer of report.json: of the weights, or (routing/) over the held-out text.
FIGURES = {
    "erc": "erc/1",
    "alpha_min": "alpha_min",
    "rows_own": "kappa/rows_own",
    "columns_own": "kappa/columns_own",
    "kappa_own": "kappa/diag_mean",
    "kappa_others": "kappa/offdiag_mean",
    "silhouette": "silhouette",
    "router_cos": "router_cos/mean_abs",
    "router_norm": "router_norm/mean",
    "gate_norm": "expert_norm/mean",
    "eps": "eps/mean",
    "row_route_top1": "home/top1",
    "erc_relative": "erc_relative/1",
    "centred_erc": "centred/erc/1",
    "centred_erc_relative": "centred/erc_relative/1",
    "centred_rows_own": "figures/centred_kappa_row_top1",
    "centred_columns_own": "figures/centred_kappa_column_top1",
    "centred_kappa_own": "figures/centred_kappa_diagonal",
    "centred_kappa_others": "figures/centred_kappa_off_diagonal",
    "centred_router_cos": "figures/centred_router_cos",
    "effective_rank": "figures/router_effective_rank",
    "noise_bound_share": "figures/noise_bound_share",
    "agreement": "routing/agreement/spearman_mean",
    "top1": "routing/agreement/top1",
    "overlap": "routing/agreement/overlap",
    "vocabulary": "routing/input_ids/mean",
    "max_vio": "routing/max_vio",
    "domains": "routing/domains/distance",
    "tokens_rows_own": "routing/tokens_M/rows_own",
    "tokens_columns_own": "routing/tokens_M/columns_own",
    "negative": "routing/signs/negative",
    "above": "routing/signs/tokens/above",
    "below": "routing/signs/tokens/below",
    "size": "routing/signs/tokens/size",
    "ids_above": "routing/signs/ids/above",
    "ids_below": "routing/signs/ids/below",
    "experts_all": "routing/signs/experts/all",
    "experts_above": "routing/signs/experts/above",
    "experts_below": "routing/signs/experts/below",
    "centred_negative": "routing/centred_signs/negative",
    "centred_above": "routing/centred_signs/tokens/above",
    "centred_below": "routing/centred_signs/tokens/below",
    "centred_size": "routing/centred_signs/tokens/size",
    "centred_ids_above": "routing/centred_signs/ids/above",
    "centred_ids_below": "routing/centred_signs/ids/below",
    "centred_experts_all": "routing/centred_signs/experts/all",
    "centred_alpha_min": "figures/centred_alpha_min",
    "centred_z": "centred/z",
    "erc_0.5": "erc/0.5",
    "erc_2": "erc/2",
    "erc_3": "erc/3",
    "erc_4": "erc/4",
    "erc_5": "erc/5",
    "z": "chance/z",
    "router_norm_sd": "router_norm/std",
    "gate_norm_sd": "expert_norm/std",
    "load_max": "routing/load_max_over_mean",
    "load_entropy": "routing/load_entropy",
    "dead": "routing/dead",
    "vocabulary_shuffled": "routing/input_ids/shuffled",
    "tokens_erc": "routing/tokens_M/erc_relative/1",
    "tokens_with_M": "routing/tokens_M/offdiag_scaled/pearson",
}
# Of the metrics: of the first line, before the first step, or of the last; the names of now and of older records.
STARTED = {"started_router_cos": ("router_cos",)}
TRAINED = {
    "trained_rows_own": ("kappa_row_top1", "kappa_rows_own"),
    "routing_entropy": ("routing_entropy",),
    "trained_balance": ("balance_layers",),
    "trained_load_max": ("load_max",),
    "trained_dead": ("dead_experts",),
    "router_lambda": ("router_lambda",),
    "centred_router_lambda": ("centred_router_lambda",),
    "router_lambda_random": ("router_lambda_random",),
}
# Figures whose layers have a column NAME_by_layer of their own: numbers separated by spaces.
BY_LAYER = (
    "erc",
    "erc_2",
    "erc_3",
    "erc_4",
    "erc_5",
    "alpha_min",
    "z",
    "router_norm",
    "gate_norm",
    "agreement",
    "negative",
    "vocabulary",
    "dead",
    "balance_loss",
    "centred_z",
)
# Tasks with rows in data/eval whose score is bits per byte of the right answer, as in OLMoE's own evaluations.
TASKS = ("arc_challenge", "boolq", "commonsense_qa", "copa", "hellaswag", "mmlu", "winogrande")
STEADY = 200  # steps after which a gradient norm is one of training, not of its beginning
LAST = 10  # recorded lines over which balance_loss is averaged
COLUMNS = (
    "run",
    "arm",
    "seed",
    "settings",
    "processor",
    "steps",
    "bpb",
    "val_loss",
    "grad_norm_max",
    *FIGURES,
    *STARTED,
    *TRAINED,
    "balance_loss",
    "late_grad_norm_max",
    "recorded_grad_norm",
    "recorded_erc",
    "skipped",
    "val_loss_by_time",
    "val_loss_by_source",
    "tasks_bpb",
    "tasks_bpb_by_task",
    *(f"{name}_by_layer" for name in BY_LAYER),
)


def dig(value, path):
    for key in path.split("/"):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def layers_of(report, path):
    """The figure of every layer; empty if a layer has none."""
    layers = report.get("layers", [])  # Autonomy-of-Experts has none
    if path.startswith("routing/"):
        layers, path = report["routing"]["layers"], path.removeprefix("routing/")
        if path == "max_vio":  # older records have the load alone
            return [layer["load_max_over_mean"] - 1 for layer in layers]
    values = [dig(layer, path) for layer in layers]
    return values if all(isinstance(value, (int, float)) for value in values) else []


def line_layers(line, names):
    return next((line[name] for name in names if name in line), [])


def balance_weight(run):
    """Of config.yaml."""
    section = (run / "config.yaml").read_text().split("\nbalance:\n", 1)[1].split("\n\n", 1)[0]
    return float(re.search(r"^ +weight: *(\S+)", section, re.M)[1])


def balance_layers(run, lines):
    """The load-balancing loss times its weight, mean of the last recorded lines, of every layer."""
    weight = balance_weight(run)
    return [weight * statistics.fmean(values) for values in zip(*(line["balance_layers"] for line in lines[-LAST:]))]


def lines_of(run):
    with gzip.open(run / "metrics.jsonl.gz", "rt") as file:
        return [json.loads(line) for line in file]


def bits_per_byte(run):
    with gzip.open(run / "documents.json.gz", "rt") as file:
        documents = json.load(file)["documents"]
    return sum(one["nll"] for one in documents) / math.log(2) / sum(one["bytes"] for one in documents)


def task_bits(run):
    """Bits per byte of the right answers, one a task; empty if the run was not evaluated."""
    path = run / "tasks.json"
    return [json.loads(path.read_text())[task]["bpb"] for task in TASKS] if path.exists() else []


def row_of(run, arms):
    """A line as {column: value}."""
    arm, seed = run.name.rsplit("-s", 1)
    report, lines = json.loads((run / "report.json").read_text()), lines_of(run)
    start, last = json.loads((run / "start.json").read_text()), lines[-1]
    evaluated = [line for line in lines if "val_loss" in line]
    by_source, bits = evaluated[-1]["val_loss_by_source"], task_bits(run)
    machine = run / "machine.json"
    layers = {
        **{name: layers_of(report, path) for name, path in FIGURES.items()},
        **{name: line_layers(start, names) for name, names in STARTED.items()},
        **{name: line_layers(last, names) for name, names in TRAINED.items()},
        "balance_loss": balance_layers(run, lines),
    }
    return {
        "run": run.name,
        "arm": arm,
        "seed": int(seed),
        "settings": " ".join(arms[arm]["settings"]),
        "processor": json.loads(machine.read_text())["processor"] if machine.exists() else None,
        "steps": last["step"],
        "bpb": bits_per_byte(run),
        "val_loss": evaluated[-1]["val_loss"],
        "grad_norm_max": max((line["grad_norm_max"] for line in lines if "grad_norm_max" in line), default=None),
        "late_grad_norm_max": max(
            (line["grad_norm_max"] for line in lines if line["step"] > STEADY and "grad_norm_max" in line), default=None
        ),
        "recorded_grad_norm": max((line["grad_norm"] for line in lines if line["step"] >= STEADY), default=None),
        "recorded_erc": max((line["erc"] for line in lines if line.get("erc") is not None), default=None),
        "skipped": last["skipped"],
        "val_loss_by_time": [number for line in evaluated for number in (line["tokens"], line["val_loss"])],
        "val_loss_by_source": [by_source[name] for name in sorted(by_source)],
        "tasks_bpb": statistics.fmean(bits) if bits else None,
        "tasks_bpb_by_task": bits,
        **{name: statistics.fmean(values) if values else None for name, values in layers.items()},
        **{f"{name}_by_layer": layers[name] for name in BY_LAYER},
    }


def cell(value, digits=6):
    if isinstance(value, list):
        return " ".join(cell(one) for one in value)
    return "" if value is None else f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def table():
    arms = json.loads((HOME / "list.json").read_text())["runs"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in sorted((HOME / "runs").iterdir()):
        row = row_of(run, arms)
        writer.writerow([cell(row[column], 8 if column == "bpb" else 6) for column in COLUMNS])
    return out.getvalue()


def rows():
    """{(arm, seed): {column: text}} of the table."""
    with open(TABLE, newline="") as file:
        return {(row["arm"], int(row["seed"])): row for row in csv.DictReader(file)}


def read():
    """figure_of(arm, seed, figure) of the table, for hypothesis_tests. A run that is not there is a KeyError, a
    figure that it does not have a ValueError."""
    table_rows = rows()
    return lambda arm, seed, figure: float(table_rows[arm, seed][figure])


ABSOLUTE = re.compile(r'(?:^|[\s"\[,:])/[\w.-]+/')  # a path, not the / of a/b


def machine_paths():
    """Records with a path of the machine that made them."""
    for path in sorted((HOME / "runs").glob("*/*")):
        if path.suffix == ".safetensors":
            continue
        text = gzip.open(path, "rt").read() if path.suffix == ".gz" else path.read_text()
        found = ABSOLUTE.search(text)
        if found:
            yield f"{path} has a path of a machine: {text[found.start() : found.start() + 60].strip()}"


def halves(path):
    """{name: (shape, numbers)} of a safetensors file of F16."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    return {
        name: (one["shape"], struct.unpack(f"<{(b - a) // 2}e", data[end + a : end + b]))
        for name, one in header.items()
        for a, b in [one["data_offsets"]]
    }


def matrices_that_differ():
    """Records whose M or R R^T, which are rounded to F16, do not give the loss or the |cos| of the report."""
    for path in sorted((HOME / "runs").glob("*/matrices.safetensors")):
        tensors, report = halves(path), json.loads((path.parent / "report.json").read_text())
        for layer in report.get("layers", []):
            name = f"model.layers.{layer['layer']}."
            (n, _), M = tensors[f"{name}M"]
            gram, pairs = tensors[f"{name}gram"][1], [(i, j) for i in range(n) for j in range(n) if i != j]
            own = [M[i * n + i] for i in range(n)]
            erc = sum(max(M[i * n + j] - own[i], 0) + max(M[i * n + j] - own[j], 0) for i, j in pairs) / n**2
            cos = statistics.fmean(
                abs(gram[i * n + j]) / math.sqrt(gram[i * n + i] * gram[j * n + j]) for i, j in pairs
            )
            if abs(erc - layer["erc"]["1"]) > 1e-3 * max(M) or abs(cos - layer["router_cos"]["mean_abs"]) > 1e-3:
                yield f"{path}: layer {layer['layer']}: ERC {erc:.5f}, |cos| {cos:.5f} are not those of report.json"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    text = table()
    if words.check:
        wrong = [*machine_paths(), *matrices_that_differ()]
        if not TABLE.exists() or TABLE.read_text() != text:
            wrong.append(f"{TABLE} is not that of the records; experiments/tools/runs_table.py writes it")
        print("\n".join(wrong))
        return bool(wrong)
    TABLE.write_text(text)
    print(f"{TABLE}: {text.count(chr(10)) - 1} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
