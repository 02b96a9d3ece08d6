"""losses.py: checks the total that a configuration makes of the losses, in a line of metrics.jsonl, in the tensors of
couplet grad and in the line that it prints. Computes the first step of a run with couplet grad."""

import json
import math
import re

from inputs import tensors_of, write_floats
from program import check, good, near, sets

ROUNDING = 1e-6  # relative, of the total: losses are written as F32, or with nine digits, or six decimals
STEP = 1e-5  # relative, of each loss of a step: sums in another order


# ---- the total ----


def weights_of(config):
    """Returns loss -> weight of every section of a config.yaml that has one."""
    sections = dict(re.findall(r"^(\w+):\n((?:[ #].*\n|\n)*)", config, re.M))
    found = {name: re.search(r"^    weight: (\S+)", text, re.M) for name, text in sections.items()}
    router = re.search(r"^    router: (\S+)", config, re.M)[1]
    unset = {"erc": float(router != "aoe"), "z": 0.001 if router == "softmax" else 0}
    return {name: unset[name] if value[1] == "unset" else float(value[1]) for name, value in found.items() if value}


def weights_of_run(run):
    return weights_of((run / "config.yaml").read_text())


def losses_of_line(line, weights):
    """Returns loss -> number of the losses that the line lists. The cross-entropy is `ce`."""
    return {name: line[name] for name in weights if line.get(name) is not None} | {
        "ce": line["loss"],
        "total": line["loss_total"],
    }


def losses_of_tensors(tensors):
    return {name[len("loss.") :]: numbers[0] for name, (_, numbers) in tensors.items() if name.startswith("loss.")}


PRINTED = {"cross-entropy": "ce", "coupling": "erc", "orthogonality": "orth"}


def losses_of_words(text):
    """Returns loss -> number of the line that couplet grad prints."""
    return {PRINTED.get(name, name): float(number) for name, number in re.findall(r"([a-z][a-z-]*) (-?[\d.]+)", text)}


def check_total(losses, weights, what):
    counted = {name: weight for name, weight in weights.items() if weight}
    lacking = sorted(counted.keys() - losses.keys())
    check(not lacking, f"{what}: not told of {lacking}, which count: {losses}")
    total = losses["ce"] + sum(weight * losses.get(name, 0) for name, weight in counted.items())
    near(losses["total"], total, ROUNDING, f"{what}: the total")


# ---- the coupling loss ----


def erc(M, alpha):
    """Returns the coupling loss of a matrix, a list of rows."""
    n = len(M)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    return math.fsum(max(M[i][j] - alpha * M[i][i], 0) + max(M[j][i] - alpha * M[i][i], 0) for i, j in pairs) / n**2


# ---- couplet grad ----


def grad(model, rows, out, *settings, weights=None, delta=None):
    """Returns the tensors of couplet grad. With `weights` the totals must be made with them."""
    tokens = out.with_suffix(".json")
    tokens.write_text(json.dumps({"input_ids": rows}))
    told = good(
        f"grad {model} --tokens {tokens} --out {out} --overwrite",
        *sets(*settings),
        *(["--delta", delta] if delta else []),
    )
    tensors = tensors_of(out)
    if weights is not None:
        check_total(losses_of_tensors(tensors), weights, f"grad {settings}, tensors")
        check_total(losses_of_words(told), weights, f"grad {settings}, printed")
    return tensors


NOISE_STREAM, LOW = 2, 0xFFFFFFFF


def philox(block, step, layer):
    """Returns four numbers below 2^32 of Philox4x32-10 with seed 0."""
    c, k = [block & LOW, block >> 32, step & LOW, NOISE_STREAM | layer << 8], [0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & LOW, a >> 32 ^ c[3] ^ k[1], a & LOW]
        k = [k[0] + 0x9E3779B9 & LOW, k[1] + 0xBB67AE85 & LOW]
    return c


def write_noise(path, eps, width, step, draw):
    """Writes delta.{l} [n, width] of that step and draw, within 1 +- eps. `eps` has a number for every layer."""
    deltas = {}
    for layer, bounds in enumerate(eps):
        first = draw * len(bounds) * width
        at = [(i, first + i) for i in range(len(bounds) * width)]
        uniform = [(philox(place // 4, step, layer)[place % 4] >> 8) * 2.0**-24 for _, place in at]
        deltas[f"delta.{layer}"] = (
            [len(bounds), width],
            [1 + bounds[i // width] * (2 * u - 1) for (i, _), u in zip(at, uniform)],
        )
    return write_floats(path, deltas)


def first_rows(run, count, length):
    """Returns the first sequences of the training data as they are stored."""
    raw = sorted((run / "tokens").glob("train-*/**/*.npy"))[0].read_bytes()
    ids = [int.from_bytes(raw[i : i + 2], "little") for i in range(0, 2 * count * length, 2)]
    return [ids[i : i + length] for i in range(0, count * length, length)]


def mean_of(parts):
    """Returns the mean losses of several results of couplet grad, and the norm of the mean of the gradients."""
    losses = [losses_of_tensors(tensors) for tensors in parts]
    mean = {name: math.fsum(one[name] for one in losses) / len(parts) for name in losses[0]}
    square = math.fsum(
        (math.fsum(numbers) / len(parts)) ** 2
        for name in parts[0]
        if name.startswith("grad.")
        for numbers in zip(*(tensors[name][1] for tensors in parts))
    )
    return mean | {"grad_norm": math.sqrt(square)}


def first_step(start, rows, micro, out, settings, draws=1, noise=True):
    """Returns losses and gradient norm of the first step over these rows, `micro` at once, from a run of initial
    weights."""
    weights = weights_of_run(start)
    parts = [rows[i : i + micro] for i in range(0, len(rows), micro)]
    clean = grad(start, parts[0], out, *settings)
    eps = [clean[name][1] for name in sorted(clean) if name.endswith(".eps")]
    width = clean["grad.model.norm.weight"][0][0]
    deltas = (
        [write_noise(out.with_suffix(f".delta{draw}"), eps, width, 1, draw) for draw in range(draws)]
        if noise
        else [None]
    )
    return mean_of(
        [grad(start, part, out, *settings, weights=weights, delta=delta) for part in parts for delta in deltas]
    )


def check_step(got, line, weights, what):
    """Compares a line of metrics.jsonl with `first_step`, which lists no loss that is only measured."""
    losses = losses_of_line(line, weights)
    check_total(losses, weights, f"{what}, metrics")
    for name in losses.keys() & got.keys():
        near(losses[name], got[name], STEP, f"{what}: {name}")
    near(line["grad_norm"], got["grad_norm"], 10 * STEP, f"{what}: grad_norm")
