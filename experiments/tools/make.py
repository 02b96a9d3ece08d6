#!/usr/bin/env python3
"""make.py COUPLET [--only WORD] [--runs WORD] [--jobs N] [--measure] [--again] [--list]: makes the runs that
experiments/list.json names, one thread each and N at a time, measures their checkpoints, records both as folders of
experiments/runs/, which records.py packs, and writes results.json and the pictures of every experiment. Pictures need
matplotlib (python/couplet/plot.py).

A recorded run is not made again. An interrupted run goes on from its last checkpoint.
--only WORD: the experiment of that folder, or all whose folder or runs have the word in their names.
--runs WORD: the runs whose names begin with WORD, and no experiment: a block of experiments/questions.md
             or experiments/mean-token.md.
--again:     with --runs: the recorded figures of their checkpoints are measured once more.
--weights:   with --runs: the matrices of recorded runs with R and W_g, in build/experiments/weights. A run without
             checkpoint is trained again.
--measure:   the cost of coupling loss and Autonomy-of-Experts, which needs an idle machine.
--list:      prints the existing and the missing parts, and makes no run."""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import records  # noqa: E402
import runs_table  # noqa: E402
from couplet import plot  # noqa: E402
from couplet.compare import _statistics  # noqa: E402

HOME = ROOT / "experiments"
WORK = ROOT / "build" / "experiments"  # runs with their checkpoints
LIST = runs_table.LIST
KEEP_EVERY = 100  # steps between recorded lines of metrics
TEXT_TOKENS = 100000
MOST_EXPERTS = 64  # git has the matrices of runs with no more experts
# Tasks, with the words of `couplet eval`.
TASKS = {
    ",".join(task for task in runs_table.TASKS if task != "mmlu"): [],
    "mmlu": ["--profile", "inloop", "--variant", "test"],
}  # the rows here are of that split


def print_now(*words):
    print(*words, flush=True)


# ---- runs ----


def run_names(arm):
    return [f"{arm}-s{seed}" for seed in LIST["runs"][arm]["seeds"]]


def settings_of(name):
    arm, seed = name.rsplit("-s", 1)
    return [*runs_table.settings_of(arm), f"train.seed={seed}"]


def couplet(program, *words, log=None):
    """Runs the program with one thread, which does not spin while another process needs the processor."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [program, *map(str, words)],
        env=environment,
        check=False,
        text=True,
        stdout=log or subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        what = f"see {log.name}" if log else done.stdout[-2000:]
        raise RuntimeError(f"couplet {' '.join(map(str, words))}: exit {done.returncode}: {what}")
    return done.stdout


def sets(settings):
    return [word for one in settings for word in ("--set", one)]


def train(program, name):
    """Returns the run's folder, trained to its end."""
    run, settings = WORK / name, settings_of(name)
    note = WORK / f"{name}.settings.json"
    if run.exists() and (not note.exists() or json.loads(note.read_text()) != settings):
        shutil.rmtree(run)  # made with other settings
    if (run / "done").exists():
        return run
    with open(WORK / f"{name}.log", "a", encoding="utf-8") as log:
        if (run / "last").exists():
            couplet(program, "train", "--resume", run, log=log)
        else:
            shutil.rmtree(run, ignore_errors=True)
            note.write_text(json.dumps(settings))
            couplet(
                program,
                "train",
                HOME / "base.yaml",
                "--out",
                run,
                *sets([f"data.cache={WORK / 'tokens'}", *settings]),
                log=log,
            )
    (run / "done").write_text("")
    return run


def rounded(value):
    """Rounds to six digits, which are more than runs of two seeds share."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return value


def record_metrics(run, to):
    """Records every KEEP_EVERY-th line and the evaluated lines, without the counts of single experts. grad_norm_max
    includes the omitted lines before it (in records up to 2026-11-26: only its own steps)."""
    lines, largest = [], 0
    for text in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        line.pop("tokens_per_expert")
        line["grad_norm_max"] = largest = max(largest, line["grad_norm_max"])
        if line["step"] % KEEP_EVERY == 0 or "val_loss" in line:
            lines.append(json.dumps(rounded(line)))
            largest = 0
    (to / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def without_machine(text):
    """Returns the text with the data's paths in the record in place of paths of this machine."""
    for there, here in (
        (str(HOME / ".." / "data"), "../../../data"),
        (str(ROOT / "data"), "../../../data"),
        (str(WORK / "tokens"), "tokens"),
    ):
        text = text.replace(there, here)
    return text


def record_config(run, to):
    """Records the configuration as used, without comments."""
    lines = [line for line in (run / "config.yaml").read_text().splitlines() if not line.lstrip().startswith("#")]
    (to / "config.yaml").write_text(without_machine("\n".join(lines) + "\n"))


def record_start(run, to):
    """Records start.json without the counts of single experts."""
    start = json.loads((run / "start.json").read_text())
    start.pop("tokens_per_expert", None)
    (to / "start.json").write_text(without_machine(json.dumps(rounded(start))) + "\n")


def measured(program, run):
    """Returns the report of `couplet inspect` on the checkpoint."""
    report = WORK / f"{run.name}.report.json"
    couplet(
        program,
        "inspect",
        run,
        "--json",
        report,
        "--overwrite",
        "--silhouette",
        "--alpha",
        "0.5,1,2,3,4,5",
        "--text",
        ROOT / "data" / "validation",
        "--window",
        256,
        "--text-tokens",
        TEXT_TOKENS,
        "--response-tokens",
        TEXT_TOKENS,
    )
    return json.loads(report.read_text())


def read_safetensors(path):
    """Returns {name: array} of a file of F32 tensors."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header, data = json.loads(file.read(length)), file.read()
    return {
        name: numpy.frombuffer(data[slice(*one["data_offsets"])], "<f4").reshape(one["shape"])
        for name, one in header.items()
        if name != "__metadata__"
    }


def write_safetensors(path, tensors):
    """Writes F16 or BF16 (uint16) arrays."""
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {
            "dtype": "F16" if x.dtype == numpy.float16 else "BF16",
            "shape": list(x.shape),
            "data_offsets": [at, at + x.nbytes],
        }
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            file.write(numpy.ascontiguousarray(x).tobytes())


def bf16(x):
    """Returns the bits of x rounded to BF16, to the nearest even."""
    bits = x.view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)


def write_weights(run, report):
    """Writes build/experiments/weights/RUN.safetensors, outside git. F16, for every layer [n,n]: M, the clean M[i,j] =
    |R_i W_g^j|; M_tok; R R^T; and token_mean [d], the mean of the sampled tokens. BF16: R [n,d] and W_g [n,D,d].
    Returns the F16 tensors."""
    weights = read_safetensors(run / "last" / "model.safetensors")
    tensors, kept = {}, {}
    for layer in report["routing"]["layers"]:
        prefix = f"model.layers.{layer['layer']}."
        n = len(layer["tokens_M"]["routed"])
        tensors[f"{prefix}M_tok"] = numpy.array([row or [math.nan] * n for row in layer["tokens_M"]["M"]])
        tensors[f"{prefix}token_mean"] = numpy.array(layer["token_mean"])
        R = weights.get(f"{prefix}mlp.gate.weight")
        if R is None:
            continue
        gates = numpy.stack([weights[f"{prefix}mlp.experts.{j}.gate_proj.weight"] for j in range(n)])
        tensors[f"{prefix}M"] = numpy.linalg.norm(numpy.einsum("ik,jck->ijc", R, gates, optimize=True), axis=-1)
        tensors[f"{prefix}gram"] = R @ R.T
        kept |= {f"{prefix}R": bf16(R), f"{prefix}W_g": bf16(gates)}
    tensors = {name: x.astype(numpy.float16) for name, x in tensors.items()}
    (WORK / "weights").mkdir(exist_ok=True)
    write_safetensors(WORK / "weights" / f"{run.name}.safetensors", {**kept, **tensors})
    return tensors


def record_matrices(run, report, to):
    """Writes matrices.safetensors with the F16 tensors of write_weights. With more than MOST_EXPERTS experts it writes
    only the file of write_weights."""
    tensors = write_weights(run, report)
    if len(report["routing"]["layers"][0]["tokens_M"]["routed"]) <= MOST_EXPERTS:
        write_safetensors(to / "matrices.safetensors", tensors)


def processor():
    """Returns the kind of processor. A run repeats bit for bit on its own kind."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return next(
        (
            name
            for name, flag in (("AVX512-BF16", "avx512_bf16"), ("AVX512", "avx512f"), ("AVX2", "avx2"))
            if flag in flags
        ),
        "other",
    )


def record_points(program, run, to):
    """Records the chart of the t-SNE of the experts of the middle layer, for the first seed only."""
    from couplet.report import _tsne

    rows = WORK / f"{run.name}.npy"
    couplet(program, "inspect", run, "--rows", rows, "--overwrite")
    charts = {"series": {"charts": [_tsne.chart_of(rows)]}}
    (to / "tsne.json").write_text(json.dumps(charts, ensure_ascii=False) + "\n")
    rows.unlink()


def slim(value, most=12):
    """Returns the value without matrices, lists with a number for every expert, and names of folders. The curve of
    mean_token has a number for every rank, which docs/images/response-by-rank.svg shows."""
    if isinstance(value, dict):
        return {
            key: slim(one, most)
            for key, one in value.items()
            if key not in ("checkpoint", "model", "pairs", "token_mean")
            and not (isinstance(one, list) and (len(one) > most or any(isinstance(part, list) for part in one)))
            or key == "curve"
        }
    if isinstance(value, list):
        return [slim(one, most) for one in value]
    return value


def record_checkpoint(program, run, to):
    report = measured(program, run)
    (to / "report.json").write_text(json.dumps(rounded(slim(report))) + "\n")
    record_matrices(run, report, to)


def record_tasks(program, run, to):
    """Writes tasks.json: {task: {"profile", "n", metric: value}} of TASKS, for arms that list.json selects."""
    found, out = {}, WORK / f"{run.name}.tasks.json"
    for tasks, words in TASKS.items():
        couplet(
            program, "eval", run, "--tasks", tasks, *words, "--json", out, "--overwrite", *sets(["compute.threads=1"])
        )
        for task, result in json.loads(out.read_text())["results"].items():
            found[task] = {
                "profile": result["profile"],
                "split": result["split"],
                "n": result["n"],
                **result["metrics"],
            }
    (to / "tasks.json").write_text(json.dumps(rounded(found)) + "\n")


def weights_again(program, name):
    if not (WORK / "weights" / f"{name}.safetensors").exists():
        run = train(program, name)
        write_weights(run, measured(program, run))


def record_again(program, name):
    run = WORK / name
    if not (run / "done").exists():
        raise RuntimeError("its checkpoint is not there")
    records.unpack([name], records.RUNS)
    record_checkpoint(program, run, records.RUNS / name)


def record(program, name):
    """Makes the run if it is missing and records it, whole or not at all."""
    to, part = records.RUNS / name, WORK / f"{name}.part"
    run = train(program, name)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    record_config(run, part)
    record_metrics(run, part)
    record_start(run, part)
    (part / "machine.json").write_text(json.dumps({"processor": processor()}) + "\n")
    record_checkpoint(program, run, part)
    if LIST["runs"][name.rsplit("-s", 1)[0]].get("tasks"):
        record_tasks(program, run, part)
    if name.endswith("-s0") and "model.router=aoe" not in settings_of(name):
        record_points(program, run, part)
    couplet(program, "eval", run, "--documents", "--overwrite")
    (part / "documents.json").write_text(json.dumps(rounded(json.loads((run / "documents.json").read_text()))))
    to.parent.mkdir(exist_ok=True)
    part.rename(to)
    for step in sorted(run.glob("step-*"))[:-1]:
        shutil.rmtree(step)


# ---- experiments ----


def spread(rows):
    """Summarises figures of runs by layer: the layers' mean, its mean and deviation over runs, and each layer's
    mean over runs."""
    rows = [row for row in rows if row]
    if not rows:
        return None
    of = _statistics.spread([statistics.fmean(row) for row in rows])
    whole = len({len(row) for row in rows}) == 1
    layers = [statistics.fmean(column) for column in zip(*rows)] if whole else None
    return {"mean": of.mean, "sd": of.sd if of.n > 1 else None, "n": of.n, "layers": layers}


def post_hoc(experiment):
    """Returns figures of checkpoints: mean and spread over seeds, for every arm."""
    return {
        arm: {
            label: spread(
                [runs_table.layers_of(records.document(name, "report.json"), path) for name in run_names(arm)]
            )
            for label, path in experiment.get("report", {}).items()
        }
        for arm in experiment["arms"]
    }


def compared(program, experiment):
    """Returns the document that `couplet compare` writes for the recorded runs: figures, pairs, charts."""
    names = [name for arm in experiment["arms"] for name in run_names(arm)]
    records.unpack(names, WORK / "records")
    runs = [WORK / "records" / name for name in names]
    out = WORK / "compare.json"
    words = ["--group-by", experiment["group_by"]] if "group_by" in experiment else []
    couplet(program, "compare", *runs, *words, "--no-documents", "--json", out, "--overwrite")
    return out


def draw(experiment, comparison, folder):
    """Draws the experiment's pictures: charts of the comparison, and t-SNE of recorded runs."""
    charts = plot.charts_of(comparison) if comparison else []
    charts = [chart for chart in charts if chart["id"] in experiment["charts"]]
    for arm in experiment.get("tsne", []):
        for chart in records.document(f"{arm}-s0", "tsne.json")["series"]["charts"]:
            charts.append({**chart, "id": f"tsne-{arm}".replace(".", "-"), "title": f"{chart['title']}: {arm}"})
    for old in folder.glob("*.svg"):
        old.unlink()
    pictures = [folder / f"{chart['id']}.svg" for chart in charts]
    for chart, picture in zip(charts, pictures):
        plot.draw(chart, picture)
    return pictures


def summary(report, experiment):
    """Returns the parts of compare's report that the experiment needs: its figures, and all pairs."""
    keep = experiment["figures"]
    return {
        "point_tokens": report["point_tokens"],
        "warnings": report["warnings"],
        "groups": [
            {
                "name": group["name"],
                "members": group["members"],
                "figures": {key: value for key, value in group["figures"].items() if key in keep},
            }
            for group in report["groups"]
        ],
        "comparisons": report["comparisons"],
    }


def loss_at(name, tokens):
    """Returns the validation loss of a recorded run, linear between its evaluations."""
    points = [(line["tokens"], line["val_loss"]) for line in records.lines_of(name) if "val_loss" in line]
    for (a, low), (b, high) in zip(points, points[1:]):
        if a <= tokens <= b:
            return low + (high - low) * (tokens - a) / (b - a)
    return points[-1][1] if tokens >= points[-1][0] else None


def bits_per_byte_pairs(experiment):
    """Returns each arm less the first, in pairs of equal seeds, with a 95 % interval by Student's t."""
    result, base = {}, experiment["arms"][0]
    for arm in experiment["arms"][1:]:
        pairs = [
            runs_table.bits_per_byte(name) - runs_table.bits_per_byte(other)
            for name, other in zip(run_names(arm), run_names(base))
        ]
        mean, half = _statistics.spread(pairs).mean, _statistics.half(_statistics.spread(pairs))
        result[arm] = {"pairs": pairs, "mean": mean, "low": mean - half, "high": mean + half}
    return result


def at_equal_time(experiment):
    """Returns the results of every arm stopped when vanilla is done, by the cost measured on an idle machine. The
    schedules of slower arms are then not at their ends, which is a disadvantage for them."""
    cost = HOME / "overhead" / "results.json"
    if not cost.exists():
        return None
    known, result, base = json.loads(cost.read_text())["arms"], {}, experiment["arms"][0]
    for arm in experiment["arms"]:
        ratio = known[arm if arm in known else "erc-1-mean"]["time_over_vanilla"]
        tokens = 2000 * 2048 / max(1, ratio)
        differences = [
            loss_at(name, tokens) - loss_at(other, 2000 * 2048) for name, other in zip(run_names(arm), run_names(base))
        ]
        result[arm] = {"tokens": tokens, "difference": spread([[one] for one in differences])}
    return result


def conclude(program, experiment):
    folder = HOME / experiment["folder"]
    folder.mkdir(exist_ok=True)
    results = {
        "command": f"make experiments ONLY={experiment['folder']}",
        "runs": [name for arm in experiment["arms"] for name in run_names(arm)],
    }
    comparison = compared(program, experiment) if experiment.get("figures") else None
    if comparison:
        results.update(summary(json.loads(comparison.read_text()), experiment))
    results["checkpoints"] = post_hoc(experiment)
    if experiment.get("equal_time"):
        results["bits_per_byte_pairs"] = bits_per_byte_pairs(experiment)
        results["equal_time"] = at_equal_time(experiment)
    pictures = draw(experiment, comparison, folder)
    (folder / "results.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
    print_now(f"{experiment['folder']}: results.json and {len(pictures)} pictures written")


# ---- the cost, measured ----


def run_seconds(program, arm, steps):
    """Measures a whole run in which only the last step is logged: a logged step also computes the coupling figures."""
    run = WORK / "cost"
    shutil.rmtree(run, ignore_errors=True)
    settings = LIST["runs"][arm]["settings"]
    begin = time.monotonic()
    couplet(
        program,
        "train",
        HOME / "base.yaml",
        "--out",
        run,
        *sets(
            [
                f"data.cache={WORK / 'tokens'}",
                *settings,
                f"train.steps={steps}",
                "train.warmup_steps=1",
                f"log.every={steps + 1}",
                "eval.every=0",
                "checkpoint.every=0",
                "eval.max_sequences=1",
            ]
        ),
    )
    seconds = time.monotonic() - begin
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 1, "a step before the last was logged"
    return seconds, json.loads(lines[0])["memory_bytes"]


def step_seconds(program, arm, few=10, many=70):
    """Returns the seconds of a step from the difference of a long and a short run: start, logged last step and end
    cancel."""
    short, _ = run_seconds(program, arm, few)
    long, memory = run_seconds(program, arm, many)
    return (long - short) / (many - few), memory


def plan_of(program, config, settings):
    out = WORK / "plan.json"
    couplet(program, "plan", config, *sets(settings), "--json", out, "--overwrite")
    return json.loads(out.read_text())


def planned(program, arm):
    plan = plan_of(program, HOME / "base.yaml", LIST["runs"][arm]["settings"])
    return {"step_flops": plan["step_flops"], "bytes": plan["bytes"]["total"]}


def planned_at_size(program):
    """Returns the plans of the paper's models: {name: shares of the vanilla model's work and memory}."""
    found = {}
    for name in ("paper-3b", "paper-15b"):
        config = ROOT / "configs" / f"{name}.yaml"
        erc = plan_of(program, config, [])
        aoe = plan_of(program, config, ["model.router=aoe", "erc.weight=0"])["aoe_beside_softmax"]
        found[name] = {
            "erc_share_all_active": erc["erc_share_all_active"],
            "erc_share_none_active": erc["erc_share_none_active"],
            "aoe_extra_share_of_step": aoe["extra_share_of_step"],
            "aoe_extra_share_of_bytes": aoe["extra_share_of_bytes"],
            "aoe_extra_bytes": aoe["extra_total_bytes"],
        }
    return found


def measure_cost(program, experiment, rounds=5):
    """Measures alternating short runs, and writes ratios to vanilla beside the ratios of `couplet plan`."""
    arms = experiment["arms"]
    times = {arm: [] for arm in arms}
    memory = {}
    for _ in range(rounds):
        for arm in arms:
            seconds, memory[arm] = step_seconds(program, arm)
            times[arm].append(seconds)
    base = arms[0]
    plans = {arm: planned(program, arm) for arm in arms}
    results = {
        "command": "make experiments ONLY=overhead MEASURE=1",
        "processor": processor(),
        "rounds": rounds,
        "planned": planned_at_size(program),
        "arms": {},
    }
    for arm in arms:
        ratios = [own / reference for own, reference in zip(times[arm], times[base])]
        results["arms"][arm] = {
            "step_seconds": statistics.median(times[arm]),
            "time_over_vanilla": statistics.median(ratios),
            "time_over_vanilla_spread": [min(ratios), max(ratios)],
            "planned_work_over_vanilla": plans[arm]["step_flops"] / plans[base]["step_flops"],
            "memory_bytes": memory[arm],
            "memory_over_vanilla": memory[arm] / memory[base],
            "planned_memory_bytes": plans[arm]["bytes"],
            "planned_memory_over_vanilla": plans[arm]["bytes"] / plans[base]["bytes"],
        }
    folder = HOME / experiment["folder"]
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(rounded(results), indent=1) + "\n")
    print_now(f"{experiment['folder']}: measured")


# ---- the command ----


def chosen(only):
    exact = [one for one in LIST["experiments"] if one["folder"] == only]
    found = exact or [one for one in LIST["experiments"] if any(only in name for name in [one["folder"], *one["arms"]])]
    if not found:
        sys.exit(
            f"experiments: no experiment is called {only}; there are "
            + ", ".join(one["folder"] for one in LIST["experiments"])
        )
    return found


def names_of(experiments):
    """Returns the runs of the experiments, each once, the first seed of all arms before the second."""
    return names_of_arms(
        dict.fromkeys(arm for one in experiments if not one.get("cost") for arm in [*one["arms"], *one.get("tsne", [])])
    )


def names_of_arms(arms):
    arms = list(arms)
    seeds = sorted({seed for arm in arms for seed in LIST["runs"][arm]["seeds"]})
    return [f"{arm}-s{seed}" for seed in seeds for arm in arms if seed in LIST["runs"][arm]["seeds"]]


def show(names):
    recorded = records.names()
    for name in names:
        begun = (WORK / name).exists()
        print_now(f"{name:28} {'recorded' if name in recorded else 'begun' if begun else '-'}")


def make_all(program, names, jobs, make=record):
    recorded = records.names()
    missing = [name for name in names if (name in recorded) == (make is not record)]
    print_now(f"{len(names)} runs, {len(missing)} of them to be made, {jobs} at a time")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(make, program, name): name for name in missing}
        for done in concurrent.futures.as_completed(waiting):
            error = done.exception()
            failed += error is not None
            print_now(f"{waiting[done]}: {error or ('written' if make is weights_again else 'recorded')}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("couplet", type=os.path.abspath)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--list", action="store_true")
    how = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    if how.runs:
        names = names_of_arms([arm for arm in LIST["runs"] if arm.startswith(how.runs)])
        if how.list:
            return show(names)
        make = weights_again if how.weights else record_again if how.again else record
        return make_all(how.couplet, names, max(1, how.jobs), make) > 0
    experiments = chosen(how.only)
    names = names_of(experiments)
    if how.list:
        return show(names)
    if not plot.can_draw():
        sys.exit(f"experiments: the pictures need {plot.NEEDS}")
    failed = make_all(how.couplet, names, max(1, how.jobs))
    for experiment in sorted(experiments, key=lambda one: not one.get("cost")):
        if experiment.get("cost"):
            if how.measure:
                measure_cost(how.couplet, experiment)
            else:
                print_now(f"{experiment['folder']}: is measured with --measure (make: MEASURE=1) alone")
        elif {*names_of([experiment])} <= {*records.names()}:
            conclude(how.couplet, experiment)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
