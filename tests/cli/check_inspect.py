#!/usr/bin/env python3
"""check_inspect.py COUPLET: inspection from end to end. It reads small checkpoints written here, with figures computed
here in double, and the reference families where they are available. It compares trained checkpoints with the run's own
figures, and reads damaged checkpoints. No file of a checkpoint is changed."""

import json
import math
import random
import re
import shutil
import struct
import sys

from inputs import GOLDEN, _resolve, files_of, metrics, page_data, read_json, read_tensors, write_floats, write_tensors
from losses import erc
from program import bad, check, equal, finish, good, in_json, run, same, says, scratch_folder
from train_case import train, write_corpus

FAMILIES = GOLDEN / "families"
ALPHAS = ("1", "2", "3", "4", "5")


# ---- checkpoints ----


def floats(rng, count, scale=1.0):
    """Returns numbers that bf16 holds exactly: 7 bits of mantissa."""
    return [rng.randint(-127, 127) * scale / 64 for _ in range(count)]


class Case:
    """An OLMoE-like checkpoint of several layers with all its numbers."""

    def __init__(self, seed, layers=3, n=6, d=20, D=9, k=2):
        rng = random.Random(seed)
        self.n, self.d, self.D, self.k = n, d, D, k
        self.R = [[floats(rng, d, 0.25 * 2 ** (i % 3)) for i in range(n)] for _ in range(layers)]
        self.W = [[[floats(rng, d) for _ in range(D)] for _ in range(n)] for _ in range(layers)]

    def tensors(self):
        out = {"model.embed_tokens.weight": ([8, self.d], [0.0] * 8 * self.d)}
        for l, (R, W) in enumerate(zip(self.R, self.W)):
            out[f"model.layers.{l}.mlp.gate.weight"] = ([self.n, self.d], sum(R, []))
            for e, rows in enumerate(W):
                name = f"model.layers.{l}.mlp.experts.{e}."
                out[name + "gate_proj.weight"] = ([self.D, self.d], sum(rows, []))
                out[name + "up_proj.weight"] = ([self.D, self.d], [0.5] * self.D * self.d)
                out[name + "down_proj.weight"] = ([self.d, self.D], [0.5] * self.D * self.d)
        return out

    def config(self):
        return {
            "model_type": "olmoe",
            "hidden_size": self.d,
            "intermediate_size": self.D,
            "num_experts": self.n,
            "num_experts_per_tok": self.k,
            "num_hidden_layers": len(self.R),
        }

    def write(self, folder, dtype="BF16"):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config()))
        write_floats(folder / "model.safetensors", self.tensors(), dtype)
        return folder

    def write_sharded(self, folder):
        """Writes a file for every layer, and one for the rest."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config()))
        names, files = {}, {}
        for name, tensor in self.tensors().items():
            part = int(name.split(".")[2]) + 2 if ".layers." in name else 1
            file = f"model-{part:05d}-of-{len(self.R) + 1:05d}.safetensors"
            files.setdefault(file, {})[name] = tensor
            names[name] = file
        for file, tensors in files.items():
            write_floats(folder / file, tensors)
        index = {"metadata": {}, "weight_map": names}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder


# ---- the figures, in double ----


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def norm(a):
    return math.sqrt(dot(a, a))


def mean_and_std(x):
    mean = math.fsum(x) / len(x)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in x) / len(x))


def silhouettes(W):
    """Returns the silhouette of each expert: mean over its rows, all pairs, 1 - cosine; a zero row is 1 from all."""

    def distance(a, b):
        sizes = norm(a) * norm(b)
        return 1 - dot(a, b) / sizes if sizes else 1

    def mean(values):
        return math.fsum(values) / len(values)

    def of_row(own, r):
        a = mean([distance(W[own][r], row) for k, row in enumerate(W[own]) if k != r])
        b = min(mean([distance(W[own][r], row) for row in rows]) for c, rows in enumerate(W) if c != own)
        return (b - a) / max(a, b)

    return [mean([of_row(c, r) for r in range(len(rows))]) for c, rows in enumerate(W)]


def figures(R, W, k):
    n = len(R)
    M = [[norm([dot(r, row) for row in rows]) for rows in W] for r in R]
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    sizes, gates = [norm(r) for r in R], [norm(sum(rows, [])) for rows in W]
    eps = [
        min(norm([a - b for a, b in zip(R[i], R[j])]) for j in range(n) if j != i) / (2 * sizes[i]) for i in range(n)
    ]
    kappa = [[M[i][j] / (sizes[i] * gates[j]) for j in range(n)] for i in range(n)]
    own = math.fsum(kappa[i][i] for i in range(n)) / n
    rows = [math.fsum(row) / n for row in kappa]
    columns = [math.fsum(kappa[i][j] for i in range(n)) / n for j in range(n)]
    every = math.fsum(rows) / n
    spread = (
        math.sqrt(
            math.fsum((kappa[i][j] - rows[i] - columns[j] + every) ** 2 for i in range(n) for j in range(n)) / (n - 1)
        )
        / n
    )
    router, expert = mean_and_std(sizes), mean_and_std(gates)
    return {
        "K": k,
        "n": n,
        "d": len(R[0]),
        "D": len(W[0]),
        "erc": {a: erc(M, float(a)) for a in ALPHAS},
        "alpha_min": max(max(M[i][j] / M[i][i], M[i][j] / M[j][j]) for i, j in pairs),
        "eps": {"mean": math.fsum(eps) / n, "min": min(eps), "max": max(eps)},
        "M": {
            "diag_mean": math.fsum(M[i][i] for i in range(n)) / n,
            "offdiag_mean": math.fsum(M[i][j] for i, j in pairs) / len(pairs),
        },
        "router_norm": {"mean": router[0], "std": router[1]},
        "expert_norm": {"mean": expert[0], "std": expert[1]},
        "router_cos": {
            "mean_abs": math.fsum(abs(dot(R[i], R[j])) / (sizes[i] * sizes[j]) for i, j in pairs) / len(pairs)
        },
        "kappa": {
            "diag_mean": own,
            "offdiag_mean": math.fsum(kappa[i][j] for i, j in pairs) / len(pairs),
            "rows_own": sum(max(row) == row[i] for i, row in enumerate(kappa)) / n,
            "columns_own": sum(max(row[j] for row in kappa) == kappa[j][j] for j in range(n)) / n,
        },
        "chance": {"kappa_diag_expected": every, "kappa_diag_std": spread, "z": (own - every) / spread, "own": 1 / n},
    }


def centred_figures(R, W, k):
    """Returns the figures of the rows less their mean, under their names in the report."""
    rows = [[x - math.fsum(row[i] for row in R) / len(R) for i, x in enumerate(r)] for r in R]
    f = figures(rows, W, k)
    return {
        "figures": {
            "centred_m_diagonal": f["M"]["diag_mean"],
            "centred_m_off_diagonal": f["M"]["offdiag_mean"],
            "centred_alpha_min": f["alpha_min"],
            "centred_eps_mean": f["eps"]["mean"],
            "centred_eps_min": f["eps"]["min"],
            "centred_eps_max": f["eps"]["max"],
            "centred_router_norm_mean": f["router_norm"]["mean"],
            "centred_router_norm_std": f["router_norm"]["std"],
            "centred_router_cos": f["router_cos"]["mean_abs"],
            "centred_kappa_diagonal": f["kappa"]["diag_mean"],
            "centred_kappa_off_diagonal": f["kappa"]["offdiag_mean"],
            "centred_kappa_row_top1": f["kappa"]["rows_own"],
            "centred_kappa_column_top1": f["kappa"]["columns_own"],
        },
        "centred": {
            "erc": f["erc"],
            "alpha_min": f["alpha_min"],
            "z": f["chance"]["z"],
            "erc_relative": {a: x / f["M"]["diag_mean"] for a, x in f["erc"].items()},
        },
    }


def fits(got, want):
    return abs(got - want) <= max(1e-4 * abs(want), 1e-7)


def inspect(*words):
    return in_json("inspect", *words)


# ---- checks ----


def check_shift(work):
    """One vector added to all router rows changes no softmax routing: the centred figures and the verdict stay."""
    case, shift = Case(5, layers=1, n=12, d=24), floats(random.Random(6), 24, 0.5)
    before = case.write(work / "unmoved", "F32")
    case.R = [[[x + y for x, y in zip(row, shift)] for row in rows] for rows in case.R]
    after = case.write(work / "moved", "F32")
    old, new = (inspect(folder)["layers"][0] for folder in (before, after))
    same(old["centred"], new["centred"], "centred figures after a shift", fits)
    same(
        {name: x for name, x in old["figures"].items() if name.startswith("centred")},
        new["figures"],
        "centred figures after a shift",
        fits,
    )
    check(abs(new["erc"]["1"] / old["erc"]["1"] - 1) > 0.1, f"ERC {old['erc']['1']}, shifted {new['erc']['1']}")
    said = [inspect(folder)["verdict"] for folder in (before, after)]
    heads, centred = zip(*(re.match(r"(?s)(.*?\)\.).*(Centred rows.*?1\))\.", words).groups() for words in said))
    check(heads[0] == heads[1] and centred[0] == centred[1] and "not coupled" in heads[0], f"verdicts: {said}")


def check_own(work):
    for seed, shape in (
        (1, {}),
        (2, {"n": 5, "d": 33, "D": 17, "layers": 1, "k": 1}),
        (3, {"n": 19, "d": 16, "D": 40, "layers": 2}),
    ):
        case = Case(seed, **shape)
        for name, folder in (
            (f"whole-{seed}", case.write(work / f"whole-{seed}")),
            (f"f32-{seed}", case.write(work / f"f32-{seed}", "F32")),
            (f"shards-{seed}", case.write_sharded(work / f"shards-{seed}")),
        ):
            got = inspect(folder)
            check(got["family"] == "olmoe", f"{name}: family {got['family']}")
            check([l["layer"] for l in got["layers"]] == list(range(len(case.R))), f"{name}: layers")
            for l, layer in enumerate(got["layers"]):
                same(figures(case.R[l], case.W[l], case.k), layer, f"{name} layer {l}", fits)
                same(centred_figures(case.R[l], case.W[l], case.k), layer, f"{name} layer {l}, centred", fits)
        got = inspect(work / f"whole-{seed}" / "model.safetensors")
        same(figures(case.R[0], case.W[0], case.k), got["layers"][0], f"file {seed}", fits)


def check_reference():
    found = sorted(FAMILIES.glob("*/expected.json"))
    check(len(found) == 9, f"{FAMILIES} has {len(found)} checkpoints")
    for expected in found:
        want, got = read_json(expected), inspect(expected.parent)
        name = expected.parent.name
        check(got["family"] == want["family"], f"{name}: family {got['family']}")
        check([l["layer"] for l in got["layers"]] == [l["layer"] for l in want["layers"]], f"{name}: layers")
        for mine, theirs in zip(got["layers"], want["layers"]):
            same(theirs, mine, name, fits)


def check_options(work):
    folder = work / "whole-1"
    case = Case(1)
    every = inspect(folder)["layers"]
    check([l["layer"] for l in inspect(folder, "--layers", "0,2")["layers"]] == [0, 2], "--layers")
    check([l["layer"] for l in inspect(folder, "--layers", "1-2")["layers"]] == [1, 2], "--layers")
    some = inspect(folder, "--alpha", "0.5,1.25")["layers"][0]
    M = [[norm([dot(r, row) for row in rows]) for rows in case.W[0]] for r in case.R[0]]
    same({"0.5": erc(M, 0.5), "1.25": erc(M, 1.25)}, some["erc"], "--alpha", fits)
    equal(
        inspect(folder, "--threads", "1")["layers"],
        inspect(folder, "--threads", "5")["layers"],
        "threads change figures",
    )
    noisy, again = (inspect(folder, "--noise", "7")["layers"] for _ in range(2))
    other = inspect(folder, "--noise", "8")["layers"]
    check(
        noisy == again and noisy[0]["erc"] != every[0]["erc"] != other[0]["erc"] and noisy[0]["erc"] != other[0]["erc"],
        "--noise",
    )
    check(noisy[0]["eps"] == every[0]["eps"], "noise has changed eps")
    check(
        "centred" not in noisy[0] and not any(name.startswith("centred") for name in noisy[0]["figures"]),
        "centred figures of noisy rows",
    )
    check(abs(noisy[0]["M"]["diag_mean"] / every[0]["M"]["diag_mean"] - 1) < 0.3, "noisy M is far")
    first, second = (inspect(folder, "--seed", s)["layers"][0]["chance"] for s in (1, 2))
    check(first["erc_mean"] != second["erc_mean"] and first["z"] == second["z"], "--seed")
    both = inspect(folder, work / "whole-3")
    check(len(both["checkpoints"]) == 2 and both["checkpoints"][0]["layers"] == every, "two")
    table = good("inspect", folder, work / "whole-3")
    verdict = "\nRouter and experts are not coupled (coupled layers: 0 of 3)."
    says(table, ["Side by side", "layer", "FLOPs", verdict, "--text measures"], "table")
    said = [line for line in table.split("\nRouter and experts")[1].split("\n\n")[0].splitlines()]
    check(len(said) > 4 and max(map(len, said)) <= 80, f"lines of the verdict: {said}")
    check(re.search(r"\(1\) .*whole-1: not coupled\n", table), f"the list of checkpoints: {table}")
    bad(1, ["where nothing is written"], "inspect", ".", "--html", "-", cwd=folder)
    hub = work / "hub"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshot").mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(folder / name, hub / "blobs" / ("x" + name[0]))
        (hub / "snapshot" / name).symlink_to("../blobs/x" + name[0])
    same(inspect(folder)["layers"][0], inspect(hub / "snapshot")["layers"][0], "links", fits)
    bad(1, ["where nothing is written"], f"inspect {hub}/snapshot/model.safetensors --json {hub}/snapshot/out.json")
    out, err, code = run("inspect", work / "nowhere", folder, "--keep-going", "--json", "-")
    got = json.loads(out)
    check(code == 1 and got["layers"] == every and "nowhere" in err, f"one of two: {code} {err}")


def check_sample(work):
    """Checks --sample: means near those of all rows, no verdict, refused flags, and the printed lines."""
    case = Case(21, layers=2, n=6, d=20, D=150)
    folder, other = case.write(work / "many-rows", "F32"), Case(22, layers=1, n=6, d=20, D=150).write(work / "others")
    whole = inspect(folder)["layers"]
    far = 0
    for seed in range(1, 21):
        report = inspect(folder, "--sample", "20%", "--seed", seed)
        check(
            report["state"] is None and "summary" not in report and "coupled_layers" not in report,
            f"a verdict of a sample: {report['verdict']}",
        )
        for layer, all_of in zip(report["layers"], whole):
            sample = layer["sample"]
            check(sample["rows"] == 32 and sample["blocks"] == 4 and "bounds" not in sample, f"rows: {sample}")
            check(
                "kappa" not in layer
                and "erc" not in layer
                and "expert_norm" not in layer
                and layer["figures"]["gate_norm_mean"] is None
                and layer["quantiles"]["gate_norm"] is None
                and layer["eps"] == all_of["eps"],
                f"layer: {layer.keys()}",
            )
            for found, true in (
                (sample["estimates"]["kappa_diagonal"], all_of["kappa"]["diag_mean"]),
                (sample["estimates"]["m_off_diagonal"], all_of["M"]["offdiag_mean"]),
                (sample["gate_norm_mean"], all_of["expert_norm"]["mean"]),
            ):
                far += abs(found["estimate"] - true) > 3 * found["standard_error"]
    check(far <= 6, f"{far} of 120 estimates are more than three standard errors off")
    first = inspect(folder, "--sample", "0.2", "--threads", 1)
    equal(
        (first, first["sample_share"]),
        (inspect(folder, "--sample", "20%", "--threads", 3), 0.2),
        "the form of the share, or threads, change figures",
    )
    all_rows = inspect(folder, "--sample", "99%")
    for layer, want in zip(all_rows["layers"], whole):
        own = layer.pop("sample")["estimates"]["kappa_diagonal"]
        check(layer == want, "all rows give other figures")
        check(own == {"estimate": want["kappa"]["diag_mean"], "standard_error": 0}, f"all rows have an error: {own}")
    said_of_all = "All rows were read; --sample gives no verdict. Run without --sample for a verdict."
    equal(all_rows["verdict"], said_of_all, "the verdict of a sample of all rows")
    table = good("inspect", folder, "--sample", "99%", "--html", work / "all.html")
    says(
        " ".join(table.split()), [said_of_all, "all 150 rows of every gate are read", " +- 0 "], "a sample of all rows"
    )
    says((work / "all.html").read_text(), [said_of_all], "the page of all rows")
    table = good("inspect", folder, other, "--sample", "20%", "--html", work / "sample.html")
    for words in (
        "32 of the 150 rows of every gate, in 4 blocks, seed 1",
        "Means from the rows that were read, +- their standard errors",
        " KiB of ",
        "Side by side",
        "A sample has no verdict: ",
        "without --sample",
    ):
        check(words in table, f"{words} is not in: {table}")
    check("Agreement" not in table and "0.2" in table, f"table: {table}")
    says((work / "sample.html").read_text(), ["A sample has no verdict"], "the page")
    for flag, words in (
        ("--silhouette", "silhouettes are of all rows"),
        ("--lambda", "singular value"),
        ("--text", "the whole model"),
    ):
        value = [work / "x.txt"] if flag == "--text" else []
        bad(2, ["--sample goes without " + flag, words], "inspect", folder, "--sample", "2%", flag, *value)


def all_close(got, want):
    return len(got) == len(want) and all(abs(a - b) < 2e-6 for a, b in zip(got, want))


def check_silhouettes(work):
    """Checks experts whose rows lie around a middle, one of them with a zero row, with and without the flag."""
    case = Case(6, layers=2, n=5, d=24, D=7)
    for e, rows in enumerate(case.W[1]):
        middle = case.R[1][e]
        case.W[1][e] = [[float(round(4 * m + w)) for m, w in zip(middle, row)] for row in rows]
    case.W[0][2][4] = [0.0] * case.d
    folder = case.write(work / "specialised", "F32")
    got = inspect(folder, "--silhouette")
    for W, layer in zip(case.W, got["layers"]):
        want = silhouettes(W)
        check(all_close(layer["silhouette_experts"], want), f"silhouettes {layer['silhouette_experts']}")
        check(all_close([layer["silhouette"]], [sum(want) / len(want)]), f"mean {layer['silhouette']}")
    check(
        got["layers"][1]["silhouette"] > 0.1 > 0 > got["layers"][0]["silhouette"] > -0.2,
        "silhouettes of experts with a middle, and without",
    )
    plain = inspect(folder)
    for layer in got["layers"]:
        del layer["silhouette"], layer["silhouette_experts"]
    check(plain == got, "--silhouette changes other figures")
    page = work / "special.html"
    table = good("inspect", folder, folder, "--silhouette", "--html", page)
    check("Specialisation" in table and "silhouette of the rows" in table, f"table: {table}")
    check("silhouette" in charts_of(page), "no chart on the page")
    table = good("inspect", folder, folder, "--html", page, "--overwrite")
    check("ilhouette" not in table and "silhouette" not in charts_of(page), "silhouettes that nobody asked for")


def check_lambda(work):
    """Checks router rows that are the top right singular vectors of gates of rank 1. Other figures stay."""
    case = Case(8, layers=2, n=5, d=24, D=7)
    for e, row in enumerate(case.R[1]):
        case.W[1][e] = [[float(k + 1) * x for x in row] for k in range(7)]
    folder, page = case.write(work / "planted", "F32"), work / "planted.html"
    got = inspect(folder, "--lambda")
    random, planted = (layer["figures"] for layer in got["layers"])
    check(all_close([planted["router_lambda"]], [1]), f"planted {planted['router_lambda']}")
    check(all_close([planted["router_lambda_random"]], [1 / 24**0.5]), "random direction, rank 1")
    check(0.1 < random["centred_router_lambda"] < 0.9 and 0.1 < random["router_lambda"] < 0.9, f"random {random}")
    for figures in (random, planted):
        for name in ("router_lambda", "router_lambda_random", "centred_router_lambda"):
            del figures[name]
    check(inspect(folder) == got, "--lambda changes other figures, or they are there without it")
    table = good("inspect", folder, folder, "--lambda", "--html", page)
    check("lambda" in table and "lambda, own pairs" in table, f"table: {table}")
    check("lambda" in charts_of(page), "no chart on the page")
    table = good("inspect", folder, folder, "--html", page, "--overwrite")
    check("lambda" not in table and "lambda" not in charts_of(page), "lambda that nobody asked for")


def charts_of(page):
    """Returns the ids of the charts that a page draws."""
    return {chart["id"].split("-router-rows")[0] for chart in _resolve.charts_of(page_data(page)["report"])}


def check_rows(work):
    """Checks the NumPy file of rows. tests/inspect/test_rows.c checks its bytes."""
    rows = work / "rows.npy"
    out = good("inspect", work / "whole-1", "--rows", rows)
    check(f"rows: {rows}" in out and rows.read_bytes().startswith(b"\x93NUMPY"), f"--rows: {out[-200:]}")
    bad(1, ["--overwrite"], "inspect", work / "whole-1", "--rows", rows)
    good("inspect", work / "whole-1", "--rows", rows, "--overwrite")


def check_pages(work):
    page, figures = work / "page.html", work / "figures.json"
    good("inspect", work / "whole-1", work / "whole-3", "--html", page, "--json", figures)
    text = page.read_text()
    check("<html" in text and text.rstrip().endswith("</html>"), "page")
    check("whole-1" in text and "whole-3" in text, "names on the page")
    found = json.loads(figures.read_text())
    data = page_data(page)
    report, made = data["report"], data["made"]
    ids = [chart["id"] for chart in _resolve.charts_of(report)]
    for checkpoint in report["checkpoints"]:
        for layer in checkpoint["layers"]:
            check(len(_resolve.matrix_of(layer.pop("map"))) == layer["n"], "a map is of another size")
    check(report == found, "the page holds other data than the JSON")
    check(len(ids) >= 12 and len(set(ids)) == len(ids), f"charts {ids}")
    check([s["path"] for s in made["sources"]] == [str(work / "whole-1"), str(work / "whole-3")], f"made {made}")
    check(all(s["xxh3"] for s in made["sources"]), "hashes")
    for row, one in zip(found["checkpoints"], ("stored", "centred")):
        rows = row["summary"][one]
        check(0 <= rows["own"] <= 1 and rows["alpha_min_least"] <= rows["alpha_min_most"], f"summary {row['summary']}")


def check_training(work):
    folder = work / "training"
    folder.mkdir()
    write_corpus(folder)
    run_folder = train(folder, "a", "erc.weight=0")  # so that there is a loss to compare
    line = [l for l in metrics(run_folder) if "erc_clean" in l][-1]
    for l, layer in enumerate(inspect(run_folder)["layers"]):
        mine, theirs = layer["erc"]["1"], line["erc_clean"][l]
        check(theirs > 1e-6 and abs(mine - theirs) <= 1e-5 * theirs, f"training says {theirs}, inspection {mine}")
    start = read_json(run_folder / "start.json")  # before the first step, without noise
    check(start["centred_kappa_diagonal"][0] > 0 and start["erc_centred"][0] > 0, "centred figures of start.json")
    for name in (
        "centred_alpha_min centred_kappa_diagonal centred_router_cos "
        "router_effective_rank router_lambda centred_router_lambda "
        "router_lambda_random"
    ).split():
        check(len(line[name]) == len(inspect(run_folder)["layers"]), f"{name} of a line")


# ---- damaged checkpoints ----


def copy(work, name, of):
    target = work / name
    shutil.copytree(work / of, target)
    return target


def patch_number(folder, name, value):
    """Writes `value` over the fourth number of a bf16 tensor."""
    tensors = read_tensors(folder / "model.safetensors")
    dtype, shape, raw = tensors[name]
    tensors[name] = dtype, shape, raw[:6] + struct.pack("<f", value)[2:] + raw[8:]
    write_tensors(folder / "model.safetensors", tensors)


def check_damaged(work):
    second = "model-00003-of-00004.safetensors"
    gone = copy(work, "gone", "shards-1")
    (gone / second).unlink()
    bad(1, [second], "inspect", gone)
    out, err, code = run("inspect", gone, "--keep-going", "--json", "-")
    got = json.loads(out)
    check(
        code == 1
        and [l["layer"] for l in got["layers"]] == [0, 2]
        and second in err
        and got["faulty"][0]["layer"] == 1,
        f"--keep-going: {code} {err}",
    )

    cut = copy(work, "cut", "shards-1")
    (cut / second).write_bytes((cut / second).read_bytes()[:-10])
    bad(1, [second], "inspect", cut)

    pointer = copy(work, "pointer-shard", "shards-1")
    (pointer / second).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    bad(1, ["LFS", second], "inspect", pointer)

    outside = copy(work, "outside", "shards-1")
    index = outside / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(second, "../" + second))
    bad(1, ["../" + second], "inspect", outside)

    for value, word in ((math.nan, "NaN"), (math.inf, "infin")):
        sick = copy(work, f"sick-{word}", "whole-1")
        name = "model.layers.1.mlp.experts.2.gate_proj.weight"
        patch_number(sick, name, value)
        bad(1, [name, "1 "], "inspect", sick)
        sick = copy(work, f"sick-router-{word}", "whole-1")
        patch_number(sick, "model.layers.1.mlp.gate.weight", value)
        bad(1, ["model.layers.1.mlp.gate.weight"], "inspect", sick)
        out, _, code = run("inspect", sick, "--keep-going", "--json", "-")
        check(code == 1 and len(json.loads(out)["layers"]) == 2, f"{word}: keep going")

    dense = work / "dense"
    dense.mkdir()
    (dense / "config.json").write_text('{"model_type": "llama"}')
    write_floats(dense / "model.safetensors", {"model.layers.0.mlp.gate_proj.weight": ([4, 2], [1.0] * 8)})
    bad(1, ["dense", "MoE"], "inspect", dense)

    quantised = copy(work, "quantised", "whole-1")
    config = read_json(quantised / "config.json")
    config["quantization_config"] = {"quant_method": "gptq"}
    (quantised / "config.json").write_text(json.dumps(config))
    tensors = {k.replace("gate_proj.weight", "gate_proj.qweight"): v for k, v in Case(1).tensors().items()}
    write_floats(quantised / "model.safetensors", tensors)
    bad(1, ["gptq"], "inspect", quantised)

    wrong = copy(work, "wrong-shape", "whole-1")
    tensors = Case(1).tensors()
    tensors["model.layers.1.mlp.experts.3.gate_proj.weight"] = ([9, 19], [1.0] * 9 * 19)
    write_floats(wrong / "model.safetensors", tensors)
    bad(1, ["model.layers.1.mlp.experts.3.gate_proj.weight"], "inspect", wrong)
    del tensors["model.layers.1.mlp.experts.3.gate_proj.weight"]
    write_floats(wrong / "model.safetensors", tensors)
    bad(1, ["experts.3"], "inspect", wrong)


def check_permutation(work):
    """Puts experts in another order: the best assignment finds it."""
    case, order = Case(5, layers=1, n=7, d=24, D=30), [3, 0, 4, 6, 1, 2, 5]
    for e, expert in enumerate(order):  # expert e responds most to row order[e]
        row = case.R[0][expert]
        case.W[0][e] = [[2 * x for x in row] if c % 3 == 0 else w for c, w in enumerate(case.W[0][e])]
    layer = inspect(case.write(work / "permuted"))["layers"][0]
    equal([layer["assignment"][r] for r in order], list(range(7)), f"assignment of {order}")
    check(layer["chance"]["assignment_own"] == 0, "the assignment keeps some")


def check_zero_diagonal(work):
    case = Case(1)
    case.R[1][2] = [1.0] + [0.0] * (case.d - 1)
    case.W[1][2] = [[0.0] + row[1:] for row in case.W[1][2]]
    folder = case.write(work / "zero")
    layer = inspect(folder)["layers"][1]
    check(layer["alpha_min"] is None and layer["alpha_min_infinite"] is True, "infinite alpha_min")
    check("alpha_min_infinite" not in inspect(folder)["layers"][0], "finite alpha_min")
    check("infinite" in good("inspect", folder), "an infinite alpha_min is said")


def check_sums(last):
    """A flipped bit of a router gives a warning and no failure. A sound router gives no warning."""
    said = good("inspect", last)
    check("check sum" not in said, f"a sound checkpoint: {said[:600]}")
    path = last / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    _, err, code = run("inspect", last)
    check(
        code == 0 and "warning: " in err and "model.safetensors: the check sum is" in err,
        f"a flipped bit: {code} {err}",
    )
    for flag in (("--sample", "50%"), ("--dry-run",)):
        _, err, code = run("inspect", last, *flag)
        check(code == 0 and "check sum" not in err, f"{flag[0]} reads whole files: {code} {err}")


def check_no_model(work):
    """The optimizer's moments are no model. Of two layers with one number neither is read."""
    work = work / "no-model"
    work.mkdir()
    write_corpus(work)
    last = train(work, "run") / "last"
    good("inspect", last / "model.safetensors")
    check_sums(last)
    case = Case(41, layers=2)
    twice = {other + name: value for name, value in case.tensors().items() for other in ("", "teacher.")}
    write_floats(work / "twice.safetensors", twice)
    told = "twice.safetensors: layer 0 is there twice, as model.layers.0.* and as teacher.model.layers.0.*"
    bad(1, told, "inspect", work / "twice.safetensors")


def main():
    with scratch_folder() as work:
        check_own(work)
        check_shift(work)
        folders = sorted(work.iterdir())
        before = [files_of(folder) for folder in folders]
        check_reference()
        check_options(work)
        check_rows(work)
        check_pages(work)
        check([files_of(folder) for folder in folders] == before, "something was written into a checkpoint")
        check_damaged(work)
        check_permutation(work)
        check_zero_diagonal(work)
        check_sample(work)
        check_silhouettes(work)
        check_lambda(work)
        check_training(work)
        check_no_model(work)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
