#!/usr/bin/env python3
"""check_variants.py COUPLET: every kind of router and loss from training to its checkpoint and back: resumed,
continued, used to generate, differentiated, planned, inspected; and refusals."""

import json
import shutil
import sys

sys.path.append("tests/cli")
from inputs import metrics, read_json, tensors_of
from losses import check_total, grad, losses_of_line, weights_of_run
from program import bad, check, equal, finish, good, output, scratch_folder, sets
from train_case import go_back, same_run, train, whole, write_corpus

VARIANTS = {
    "aoe": ["model.router=aoe"],
    "aoe-rank": ["model.router=aoe", "model.aoe_rank=3", "model.n_shared_experts=1", "model.aoe_initializer_range=0.1"],
    "sigmoid": ["model.router=sigmoid"],
    "biased": (
        "model.router=sigmoid model.router_bias=true model.norm_topk_prob=true balance.weight=0 balance.bias_rate=0.01"
    ).split(),
    "shared": ["model.n_shared_experts=2", "erc.alpha=0.5"],
    "latent": ["model.latent_dim=6", "model.n_shared_experts=1", "erc.proxy=centred"],
    "some-layers": ["erc.layers=0", "erc.alpha=0.25", "orth.weight=0.1"],
    "centred": ["erc.proxy=centred", "erc.gradient=router", "train.router_lr=0.5"],
    "tokens": ["erc.proxy=tokens", "train.micro_batch=2", "balance.scope=global"],
    "mpi": ["model.router=mpi", "model.router_scale=3", "erc.alpha=0.5", "orth.weight=0.1"],
    "bf16": ["model.router=aoe", "model.n_shared_experts=1", "compute.dtype=bf16"],
}
PLAIN = ("some-layers", "centred", "tokens")  # their checkpoints look like OLMoE's
ROWS = [[1, 7, 3, 40, 9, 2], [5, 5, 80, 11, 6, 30]]
NO_ROUTER = ("aoe", "aoe-rank", "bf16")


def check_answers(name, run):
    """couplet eval reads the model that couplet train has trained."""
    out = run / "answers.json"
    good(f"eval {run} --tasks copa,gsm8k_cot --limit 2 --num-fewshot 0 --max-gen-toks 4 --json {out} --samples")
    results = read_json(out)["results"]
    logs = [value for one in results["copa"]["samples"] for value in one["loglik"]]
    check(len(logs) == 4 and all(-1000 < value < 0 for value in logs), f"{name}: eval: {logs}")
    check(len(results["gsm8k_cot"]["samples"]) == 2, f"{name}: eval: {results['gsm8k_cot']}")


def config_of(folder):
    return read_json(folder / "last" / "config.json")


def check_names(name, folder):
    """Checks names and shapes of the tensors of the checkpoint (d 16, D 8, n 4, 2 layers)."""
    config, tensors = config_of(folder), tensors_of(folder / "last" / "model.safetensors")
    kind = "olmoe" if name in PLAIN else "couplet"
    check(config["model_type"] == kind, f"{name}: model_type {config['model_type']}")
    shape = {
        key.replace("model.layers.1.mlp.", ""): value[0]
        for key, value in tensors.items()
        if key.startswith("model.layers.1.mlp.")
    }
    aoe = name in NO_ROUTER
    rank = 3 if name == "aoe-rank" else 5  # 16 * 8 / 24 = 5.33
    check(("gate.weight" in shape) != aoe, f"{name}: router {sorted(shape)}")
    check(("experts.3.gate_proj.weight" in shape) != aoe, f"{name}: gates {sorted(shape)}")
    if aoe:
        check(shape.get("experts.3.gate_a_proj.weight") == [rank, 16], f"{name}: {shape}")
        check(shape.get("experts.3.gate_b_proj.weight") == [8, rank], f"{name}: {shape}")
        check(config["router"] == "aoe" and config["aoe_rank"] == rank, f"{name}: {config}")
        check(config.get("aoe_initializer_range") == (0.1 if name == "aoe-rank" else 0), f"{name}: {config}")
    if name == "mpi":
        check(shape["gate.parametrizations.weight.original"] == [4, 16] == shape["gate.weight"], f"{name}: {shape}")
        check(config["router"] == "mpi" and config["router_scale"] == 3, f"{name}: {config}")
    bias = shape.get("gate.e_score_correction_bias")
    check(bias == ([4] if name == "biased" else None), f"{name}: bias {bias}")
    wide = shape.get("shared_experts.down_proj.weight")
    want = {"shared": [16, 16], "aoe-rank": [16, 8], "bf16": [16, 8], "latent": [16, 8]}.get(name)
    check(wide == want, f"{name}: shared {wide}, wanted {want}")
    latent = [shape.get(key) for key in ("fc1_latent_proj.weight", "fc2_latent_proj.weight")]
    check(latent == ([[6, 16], [16, 6]] if name == "latent" else [None, None]), f"{name}: projections {latent}")
    if name == "latent":
        check(config["latent_dim"] == 6, f"{name}: {config}")
        check(shape["experts.3.gate_proj.weight"] == [8, 6], f"{name}: {shape}")
        check(shape["experts.3.down_proj.weight"] == [6, 8], f"{name}: {shape}")


def check_lines(name, folder):
    start = read_json(folder / "start.json")
    line = metrics(folder)[-1]
    aoe = name in NO_ROUTER
    state = read_json(folder / "last" / "state.json")
    check(start["data"] == state["data"], f"{name}: data {start['data']}, {state['data']}")
    check(len(start["held_out"]) == len(start["tokenizer"]) == 16, f"{name}: {start}")
    for key in ("erc_clean", "eps_mean", "router_cos", "router_lambda", "centred_router_lambda"):
        check((key in line) != aoe, f"{name}: {key} in metrics")
        check((key in start) != aoe, f"{name}: {key} in start.json")
    check_total(losses_of_line(line, weights_of_run(folder)), weights_of_run(folder), name)
    check(line["val_loss"] < start["val_loss"], f"{name}: does not learn")
    check(line["memory_bytes"] > 1e6, f"{name}: memory {line['memory_bytes']}")
    check((line["orth"] is None) == aoe, f"{name}: orth {line['orth']}")
    check((line["erc"] is None) == aoe, f"{name}: erc {line['erc']}")
    if name == "some-layers":
        check(line["erc"] == line["erc_layers"][0] > 0, f"{name}: erc is that of layer 0: {line['erc']}")
        check(line["erc_grad_ratio_gate"][0] > 0, f"{name}: layer 0 has a coupling gradient")
        check(line["erc_grad_ratio_gate"][1] == 0, f"{name}: layer 1 has no coupling gradient")
    if name == "biased":
        bias = tensors_of(folder / "last" / "model.safetensors")
        moved = bias["model.layers.0.mlp.gate.e_score_correction_bias"][1]
        steps = [round(value / 0.01, 3) for value in moved]
        check(any(steps) and all(step == round(step) for step in steps), f"biases moved by {steps}")


def check_as_olmoe(folder):
    """An OLMoE with the rows that score tokens of model.router mpi generates the same text."""
    ask = ("--prompt", "abc", "--tokens", 9, "--temperature", 0)
    copy = shutil.copytree((folder / "mpi" / "last").resolve(), folder / "as-olmoe")
    config = read_json(copy / "config.json") | {"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"]}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "checksums.json").unlink()
    equal(output("generate", copy, *ask), output("generate", folder / "mpi", *ask), "mpi as OLMoE")


def weight_settings(weights):
    return [f"{name}.weight={weight}" for name, weight in weights.items()]


def check_uses(name, folder):
    run = folder / name
    out = good("generate", run, "--prompt", "abc", "--tokens", 5, "--temperature", 0)
    equal(
        out,
        good("generate", run / "last", "--prompt", "abc", "--tokens", 5, "--temperature", 0),
        f"{name}: generates something else",
    )
    check_answers(name, run)
    weights = weights_of_run(run)
    grads = grad(run, ROWS, folder / "g.safetensors", *weight_settings(weights), weights=weights)
    params = tensors_of(run / "last" / "model.safetensors")
    check({"grad." + key for key in params} <= set(grads), f"{name}: gradients are missing")
    check(("loss.erc" in grads) != (name in NO_ROUTER), f"{name}: loss.erc")
    good("train", folder / "from.yaml", "--out", folder / (name + "-on"), "--from", run)
    own, on = config_of(run), config_of(folder / (name + "-on"))
    check(on == own | {"router_aux_loss_coef": 0.01}, f"{name}: --from changes the model")  # its own balance.weight
    if name in NO_ROUTER:
        bad(1, ["Autonomy-of-Experts"], "inspect", run)
    else:
        good("inspect", run, "--json", folder / "i.json", "--alpha", metrics_alpha(name), "--overwrite")
        report = read_json(folder / "i.json")
        check(
            report["family"] == "couplet" and not report["guessed"] or name in PLAIN,
            f"{name}: family {report['family']}",
        )
        for layer, want in zip(report["layers"], metrics(run)[-1]["erc_clean"]):
            got = layer["erc"][str(metrics_alpha(name))]
            check(abs(got - want) <= 1e-5 * max(1e-6, want), f"{name}: inspect {got}, run {want}")
    if name not in PLAIN:
        bad(
            1,
            ["model.", "configuration"],
            f"train {folder}/c.yaml --out {folder}/no --from {run} --set model.router=softmax "
            "--set model.n_shared_experts=0",
        )


def metrics_alpha(name):
    return {"shared": 0.5, "some-layers": 0.25, "mpi": 0.5}.get(name, 1)


def orthogonality(tensors, moved):
    """Returns the mean over layers, from the routers with one number changed: (name, index, change)."""
    total = 0
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.gate.weight"
        (n, d), numbers = tensors[name][0], list(tensors[name][1])
        if moved[0] == name:
            numbers[moved[1]] += moved[2]
        rows = [numbers[i * d : (i + 1) * d] for i in range(n)]
        norms = [sum(x * x for x in row) ** 0.5 for row in rows]
        entries = [
            sum(x * y for x, y in zip(rows[i], rows[j])) / norms[i] / norms[j] - (i == j)
            for i in range(n)
            for j in range(n)
        ]
        total += sum(entry * entry for entry in entries) / n / n / 2
    return total


def check_orthogonal(folder):
    """The gradient that orth.weight adds is that of its mean over layers."""
    run, out = folder / "plain", folder / "g.safetensors"
    params, grads = tensors_of(run / "last" / "model.safetensors"), []
    for weight in (0, 2):
        grads.append(grad(run, ROWS, out, f"orth.weight={weight}", weights=weights_of_run(run) | {"orth": weight}))
    check(abs(grads[1]["loss.orth"][1][0] - orthogonality(params, ("", 0, 0))) < 1e-6, "loss.orth")
    check("loss.orth" not in grads[0], "loss.orth without a weight")
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.gate.weight"
        for at in (0, 7, 33, 63):
            want = (
                orthogonality(params, (name, at, 1e-4)) - orthogonality(params, (name, at, -1e-4))
            ) / 1e-4  # the weight is 2
            got = grads[1]["grad." + name][1][at] - grads[0]["grad." + name][1][at]
            check(abs(got - want) < 1e-3 * max(1, abs(want)), f"orth gradient {got}, wanted {want}")


def check_variant(name, folder):
    settings = VARIANTS[name]
    run = train(folder, name, *settings)
    whole(run, name)
    train_in_two(folder, name, settings)
    same_run(run, folder / (name + "-two"), f"{name} resumed")
    check_names(name, run)
    check_lines(name, run)
    check_uses(name, folder)
    good("plan", folder / "c.yaml", *sets(*settings, "model.vocab_size=384"))


def train_in_two(folder, name, settings):
    """Stops after step 4 by a copy of the run at that step, then resumes."""
    two = train(folder, name + "-two", *settings, "checkpoint.keep=9")
    good("train", "--resume", go_back(two, 4), *sets("checkpoint.keep=2"))


def check_identity(folder):
    """start.json identifies the held-out text by its content, not by its path."""

    def start_of(name, path):
        run = train(folder, name, f"data.validation={path}", "train.steps=1", "train.warmup_steps=0")
        return read_json(run / "start.json")

    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "docs" / "two.jsonl", folder / "elsewhere" / "copy.jsonl")
    here, there, other = (
        start_of("here", folder / "docs" / "two.jsonl"),
        start_of("there", folder / "elsewhere" / "copy.jsonl"),
        start_of("other", folder / "docs" / "one.jsonl"),
    )
    check(here["held_out"] == there["held_out"], "the same held-out text is told apart")
    check(here["held_out"] != other["held_out"], "other held-out text is not told apart")
    check(here["tokenizer"] == other["tokenizer"] and here["data"] == other["data"], "data")


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        plain = train(folder, "plain")
        text = (folder / "c.yaml").read_text().replace("steps: 12", "steps: 2")
        head = text.index("model:"), text.index("data:")
        (folder / "from.yaml").write_text(
            text[: head[0]] + text[head[1] :].replace("warmup_steps: 2", "warmup_steps: 0")
        )
        for variant in VARIANTS:
            check_variant(variant, folder)
        same = train(folder, "listed", 'erc.layers="0-1"', "orth.weight=0")
        same_run(plain, same, "all layers by number", same_settings=False)
        check_orthogonal(folder)
        check_as_olmoe(folder)
        check_identity(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
