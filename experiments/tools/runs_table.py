#!/usr/bin/env python3
"""runs_table.py [--check]: writes experiments/runs.csv, one line a recorded run, from the records (records.py).

experiments/columns.csv is the dictionary of its columns: unit, source and meaning of each. A source is a file of the
record and optionally the figure's place in it: members of report.json by a path, or a name of a figure of every layer
in start.json or in the last line of metrics.jsonl, in older records under the next name. Such a cell is the mean over
the layers. NAME_by_layer has the numbers of the layers, separated by spaces. A cell is empty if the run has no such
figure (no router; recorded by an older version).

--check: exits with 1 if the file differs, if a record has a path that begins at the root of a machine, if the matrices
of a run do not have the figures of its report, or if base.yaml with the settings of a run is not the configuration that
it recorded."""

import argparse
import csv
import io
import json
import math
import pathlib
import re
import statistics
import struct
import sys

import records

HOME = pathlib.Path(__file__).resolve().parents[1]
TABLE = HOME / "runs.csv"
LIST = json.loads((HOME / "list.json").read_text())
COLUMNS = list(csv.DictReader(io.StringIO((HOME / "columns.csv").read_text())))
BY_LAYER = [one["column"].removesuffix("_by_layer") for one in COLUMNS if one["column"].endswith("_by_layer")]


def figures_of(file):
    """Returns {column: its place in the file, ...} of the columns that are means over the layers."""
    sources = {one["column"]: one["source"].split() for one in COLUMNS if not one["column"].endswith("_by_layer")}
    return {name: source[1:] for name, source in sources.items() if source[:1] == [file] and source[1:]}


FIGURES = {name: path for name, (path,) in figures_of("report.json").items()}
STARTED, TRAINED = figures_of("start.json"), figures_of("metrics.jsonl")
# Tasks with rows in data/eval whose score is bits per byte of the right answer, as in OLMoE's own evaluations.
TASKS = ("arc_challenge", "boolq", "commonsense_qa", "copa", "hellaswag", "mmlu", "winogrande")
# Settings that model.router=aoe changes, if not set.
OF_AOE = {"model.aoe_rank": "43", "erc.weight": "0", "z.weight": "0"}
STEADY = 200  # first step whose gradient norm counts as one of training, not of its beginning
LAST = 10  # recorded lines over which balance_loss is averaged


def dig(value, path):
    """Returns the member at a path such as a/b. A list gives the list of its entries' members."""
    for key in path.split("/"):
        if isinstance(value, list):
            value = [one.get(key) if isinstance(one, dict) else None for one in value]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def layers_of(report, path):
    """Returns the figure of every layer; empty if a layer lacks it. Autonomy-of-Experts has no layers of weights."""
    if path == "routing/layers/max_vio":  # older records have only the load
        return [load - 1 for load in dig(report, "routing/layers/load_max_over_mean")]
    values = dig(report, path) or []
    return values if all(isinstance(value, (int, float)) for value in values) else []


def line_layers(line, names):
    return next((line[name] for name in names if name in line), [])


def settings_of(arm):
    """Returns the settings of the arm on top of base.yaml, without the seed."""
    entry = LIST["runs"][arm]
    return [*(LIST["short"] if entry.get("short") else []), *entry["settings"]]


def flat(text):
    """Returns {"section.name": value} of a configuration."""
    section, found = None, {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(": ")
        if line.startswith(" "):
            found[f"{section}.{name}"] = value
        elif line and not line.startswith("#"):
            section = line.rstrip(":")
    return found


def configuration(run):
    return flat(records.files_of(run)["config.yaml"].decode())


def balance_layers(run, lines):
    """Returns the load-balancing loss times its weight, as a mean of the last recorded lines, for every layer."""
    weight = float(configuration(run)["balance.weight"])
    return [weight * statistics.fmean(values) for values in zip(*(line["balance_layers"] for line in lines[-LAST:]))]


def bits_per_byte(run):
    documents = records.document(run, "documents.json")["documents"]
    return sum(one["nll"] for one in documents) / math.log(2) / sum(one["bytes"] for one in documents)


def task_bits(run):
    """Returns bits per byte of the right answers, one number a task; empty if the run was not evaluated."""
    found = records.document(run, "tasks.json")
    return [found[task]["bpb"] for task in TASKS] if found else []


def row_of(run):
    """Returns a line as {column: value}."""
    arm, seed = run.rsplit("-s", 1)
    report, lines = records.document(run, "report.json"), records.lines_of(run)
    start, last = records.document(run, "start.json"), lines[-1]
    evaluated = [line for line in lines if "val_loss" in line]
    by_source, bits = evaluated[-1]["val_loss_by_source"], task_bits(run)
    machine = records.document(run, "machine.json")
    layers = {
        **{name: layers_of(report, path) for name, path in FIGURES.items()},
        **{name: line_layers(start, names) for name, names in STARTED.items()},
        **{name: line_layers(last, names) for name, names in TRAINED.items()},
        "balance_loss": balance_layers(run, lines),
    }
    return {
        "run": run,
        "arm": arm,
        "seed": int(seed),
        "settings": " ".join(settings_of(arm)),
        "processor": machine and machine["processor"],
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
    out, names = io.StringIO(), [one["column"] for one in COLUMNS]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for run in records.names():
        row = row_of(run)
        writer.writerow([cell(row[name], 8 if name == "bpb" else 6) for name in names])
    return out.getvalue()


def rows():
    """Returns {(arm, seed): {column: text}} of the table."""
    with open(TABLE, newline="") as file:
        return {(row["arm"], int(row["seed"])): row for row in csv.DictReader(file)}


def read():
    """Returns figure_of(arm, seed, figure) of the table, for hypothesis_tests. A missing run is a KeyError, a missing
    figure a ValueError."""
    table_rows = rows()
    return lambda arm, seed, figure: float(table_rows[arm, seed][figure])


ABSOLUTE = re.compile(r'(?:^|[\s"\[,:])/[\w.-]+/')  # a path, not the / of a/b


def machine_paths(run):
    """Yields files of a record with a path of the machine that made it."""
    for name, data in records.files_of(run).items():
        text = "" if name.endswith(".safetensors") else data.decode()
        found = ABSOLUTE.search(text)
        if found:
            yield f"{run}/{name} has a path of a machine: {text[found.start() : found.start() + 60].strip()}"


def halves(data):
    """Returns {name: (shape, numbers)} of a safetensors file of F16."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    return {
        name: (one["shape"], struct.unpack(f"<{(b - a) // 2}e", data[end + a : end + b]))
        for name, one in header.items()
        for a, b in [one["data_offsets"]]
    }


def matrices_that_differ(run):
    """Yields layers whose M or R R^T, which are rounded to F16, do not give the loss or the |cos| of the report."""
    data = records.files_of(run).get("matrices.safetensors")
    tensors = halves(data) if data else {}
    for layer in records.document(run, "report.json").get("layers", []) if data else []:
        name = f"model.layers.{layer['layer']}."
        (n, _), M = tensors[f"{name}M"]
        gram, pairs = tensors[f"{name}gram"][1], [(i, j) for i in range(n) for j in range(n) if i != j]
        own = [M[i * n + i] for i in range(n)]
        erc = sum(max(M[i * n + j] - own[i], 0) + max(M[i * n + j] - own[j], 0) for i, j in pairs) / n**2
        cos = statistics.fmean(abs(gram[i * n + j]) / math.sqrt(gram[i * n + i] * gram[j * n + j]) for i, j in pairs)
        if abs(erc - layer["erc"]["1"]) > 1e-3 * max(M) or abs(cos - layer["router_cos"]["mean_abs"]) > 1e-3:
            yield f"{run}: layer {layer['layer']}: ERC {erc:.5f}, |cos| {cos:.5f} are not those of report.json"


def number_or_word(value):
    try:
        return float(value)
    except ValueError:
        return value


OLDER_WORDS = {("balance.scope", "auto"): "micro"}  # words that older runs recorded; in one process auto was micro


def settings_that_differ(run, defaults):
    """Yields settings of a recorded configuration that come neither from base.yaml, nor from list.json, nor from the
    default, as the first run with that setting recorded it. Paths of data belong to the machine."""
    arm, seed = run.rsplit("-s", 1)
    asked = flat((HOME / "base.yaml").read_text())
    if "model.router=aoe" in settings_of(arm):
        asked |= OF_AOE
    asked |= dict(one.split("=", 1) for one in [*settings_of(arm), f"train.seed={seed}"])
    for name, value in configuration(run).items():
        value = OLDER_WORDS.get((name, value), value)
        wanted = asked[name] if name in asked else defaults.setdefault(name, value)
        if not name.startswith("data.") and number_or_word(value) != number_or_word(wanted):
            yield f"{run}: {name} is {value}, by base.yaml and list.json {wanted}"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    text = table()
    if words.check:
        wrong, defaults = [], {}
        for run in records.names():
            wrong += [*machine_paths(run), *matrices_that_differ(run), *settings_that_differ(run, defaults)]
        if not TABLE.exists() or TABLE.read_text() != text:
            wrong.append(f"{TABLE} is not that of the records; experiments/tools/runs_table.py writes it")
        print("\n".join(wrong))
        return bool(wrong)
    TABLE.write_text(text)
    print(f"{TABLE}: {text.count(chr(10)) - 1} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
