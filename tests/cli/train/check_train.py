#!/usr/bin/env python3
"""check_train.py COUPLET: the files of a run and the meaning of their numbers, every option of the losses and the
model, --from, non-finite steps, and the sentences of errors."""

import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys

sys.path.append("tests/cli")
from inputs import files_of, metrics, read_json, read_tensors, tensors_of, untimed, write_tensors
from losses import (
    STEP,
    check_step,
    check_total,
    erc,
    first_rows,
    first_step,
    grad,
    losses_of_line,
    losses_of_tensors,
    weights_of_run,
)
from program import COUPLET, bad, check, equal, finish, good, near, run, said, scratch_folder, sets
from train_case import checkpoints, link_last, train, whole, without_settings, write_corpus

EPSILON = 1.2e-7  # unit roundoff of F32; metrics are written with nine digits
LAYERS, EXPERTS, TOP_K, BATCH = 2, 4, 2, 64


# ---- metrics ----


def check_line(line, weights):
    step = line["step"]
    check_total(losses_of_line(line, weights), weights, f"step {step}")
    check(line["tokens"] == step * BATCH, f"step {step}: tokens {line['tokens']}")
    check(line["erc_weight"] == weights["erc"], f"step {step}: erc_weight {line['erc_weight']}")
    for key, value in line.items():
        if isinstance(value, list):
            check(len(value) == LAYERS, f"step {step}: {key} has {len(value)} layers")
    for layer in line["tokens_per_expert"]:
        check(len(layer) == EXPERTS and sum(layer) == BATCH * TOP_K, f"step {step}: {layer}")
    near(line["load_max"][0], max(line["tokens_per_expert"][0]) * EXPERTS / (BATCH * TOP_K), 1e-6, "load_max")
    for key in ("balance", "z"):
        near(line[key], sum(line[key + "_layers"]) / LAYERS, 1e-6, f"step {step}: {key}")
    check(line["tokens_per_s"] > 0 and line["peak_share"] > 0 and line["step_s"] > 0, "speed")
    near(line["tokens_per_s"] * line["step_s"], BATCH, 1e-6, "tokens a second")
    check(0 < line["routing_entropy"][0] <= math.log(EXPERTS) + 1e-6, "entropy")


def check_metrics(folder, a):
    lines = metrics(a)
    check([line["step"] for line in lines] == list(range(1, 13)), "steps of metrics.jsonl")
    for text in (a / "metrics.jsonl").read_text().splitlines():
        for name in ("memory_bytes", "dead_experts", "eps_above_1", "zero_rows"):
            check(re.search(rf'"{name}":(\d+|\[\d+(,\d+)*\])[,}}]', text), f"{name} is no integer: {text}")
    for line in lines:
        check_line(line, weights_of_run(a))
        near(line["erc"], sum(line["erc_layers"]) / LAYERS, 1e-6, "erc is the mean over layers")
        for key in (
            "eps_mean m_diagonal active_rows erc_grad_ratio_router home_top1 "
            "erc_grad_cos_gate router_norm_sd gate_norm_mean router_cos"
        ).split():
            check(key in line, f"{key} is missing")
    seen = [line["step"] for line in lines if "erc_clean" in line]
    check(seen == [6, 12], f"evaluations at {seen}")
    for key in ("agreement_centred", "agreement_mu_off", "dz", "router_mu_negative"):
        check([line["step"] for line in lines if key in line] == seen, f"{key} at evaluations alone")
        check(len(lines[-1][key]) == LAYERS and None not in lines[-1][key], f"{key}: {lines[-1][key]}")
    check(set(lines[5]["val_loss_by_source"]) == {"two"}, "sources of the evaluation")
    check(lines[-1]["loss"] < lines[0]["loss"] - 0.3, "the loss does not fall")
    rates = [line["lr"] for line in lines]
    for step, rate in enumerate(rates, 1):
        cosine = 1e-3 + 9e-3 * 0.5 * (1 + math.cos(math.pi * (step - 2) / 10))
        near(rate, 1e-2 * step / 2 if step <= 2 else cosine, 1e-8, f"lr of step {step}")
    check(checkpoints(a) == ["step-000008", "step-000012"], f"keep=2: {checkpoints(a)}")
    check(os.readlink(a / "last") == "step-000012", "last")
    whole(a, "a run")
    again = train(folder, "again")
    check(files_of(a / "last") == files_of(again / "last"), "the same run again differs")
    config = good("train", "--print-config", a / "config.yaml")
    check(config == (a / "config.yaml").read_text(), "config.yaml is not complete")
    check_print_config(folder)
    third = folder / "third"
    good("train", a / "config.yaml", "--out", third)
    check(files_of(a / "last") == files_of(third / "last"), "config.yaml does not repeat the run")


def check_print_config(folder):
    """Checks that a configuration of --print-config has one meaning wherever it is saved."""
    elsewhere = folder / "else" / "where"
    elsewhere.mkdir(parents=True)
    text = run("train", "--print-config", "c.yaml", cwd=folder)[0]
    (elsewhere / "saved.yaml").write_text(text)
    want = run("train", "--dry-run", folder / "c.yaml", "--out", "/no-run")
    got = run("train", "--dry-run", "saved.yaml", "--out", "/no-run", cwd=elsewhere)
    check(got[2] == 0 and got[0] == want[0], f"--print-config saved elsewhere: {got}, not {want}")


def check_dry_run(folder):
    """--dry-run reports the faults of a run, and a vocabulary that token shards state."""
    for settings in (
        ["data.tokenizer=unset"],
        ["data.tokenizer=unset", "model.vocab_size=300"],
        ["data.train=[]"],
        ["data.batch_tokens=65"],
        ["data.eos=500"],
        ["data.tokenizer=absent.json"],
        ["model.num_attention_heads=3"],
        ["data.train=no-such"],
        ["eval.tasks=copa", "data.tokenizer=unset"],
        ["eval.tasks=copa,gsm8k_cot", "eval.tasks_limit=2"],
    ):
        words = ("train", folder / "c.yaml", "--out", folder / "dry", *sets(*settings))
        want, got = run(*words), run(*words, "--dry-run")
        check(
            want[2] == got[2] == 1 and want[1].splitlines()[-1] == got[1].splitlines()[-1],
            f"{settings}: --dry-run says {got[1]!r}, the run {want[1]!r}",
        )
        shutil.rmtree(folder / "dry", ignore_errors=True)
    good(f"tokenize encode --tokenizer {folder}/T.json --out {folder}/shards {folder}/docs/one.jsonl")
    shards = sets(f"data.train={folder / 'shards'}", "data.validation=[]", "data.tokenizer=unset")
    good("train", folder / "c.yaml", "--out", folder / "dry", "--dry-run", *shards)
    check(not (folder / "dry").exists(), "--dry-run makes a folder")
    out = good("train", folder / "c.yaml", "--dry-run", *sets(f"data.train={folder / 'docs' / 'one.jsonl'}"))
    check("1 document file of" in out, f"--dry-run: {out}")


def check_shown_before(folder):
    """--dry-run gives the warnings of the run. A short run shortens the warm-up of its configuration."""

    def warnings(*words):
        said = good("train", folder / "c.yaml", "--out", folder / "warned", *words).splitlines()
        return [line for line in said if line.startswith("warning: ") and "steps took" not in line]

    for name, value, *others in (
        ("erc.alpha", "0"),
        ("erc.alpha", "0.09", "erc.alpha_start=0"),
        ("erc.alpha_start", "0.05", "erc.warmup_steps=2"),
    ):
        (line,) = warnings("--dry-run", *sets(f"{name}={value}", *others))
        check(f" {name} {value} is below 0.1: at alpha 0 the loss is a sum of" in line, f"a small alpha: {line}")
    for quiet in (("erc.alpha=0.1",), ("erc.alpha=0", "erc.weight=0"), ("erc.alpha_start=0",)):
        check(not warnings("--dry-run", *sets(*quiet)), f"a warning of {quiet}")
    settings = sets("erc.alpha=2", "model.n_shared_experts=1")
    before = warnings("--dry-run", *settings)
    check(len(before) == 2 and before == warnings(*settings), f"--dry-run warns of {before}")
    out = good("train", folder / "c.yaml", "--out", folder / "short", *sets("train.steps=2"))
    check("train.warmup_steps is 0, a tenth of train.steps 2" in out, f"a short run: {out}")
    check("    warmup_steps: 0\n" in (folder / "short" / "config.yaml").read_text(), "a short run: config.yaml")
    printed = good("train", folder / "c.yaml", "--print-config", *sets("train.steps=2"))
    check("    warmup_steps: 0\n" in printed, "a short run: --print-config")
    kept = good(
        f"train {folder}/c.yaml --out {folder}/kept --set train.steps=3 --set checkpoint.every=1 "
        "--set checkpoint.keep=3"
    )
    check("warmup_steps" not in kept, f"a warm-up that leaves room: {kept}")
    link_last(folder / "kept", 1)
    bad(
        1, ["train.warmup_steps 2 leaves nothing of train.steps 2"], f"train --resume {folder}/kept --set train.steps=2"
    )


def check_clean(folder, a):
    """Anyone can compute erc_clean again from the checkpoint, and the loss of a batch."""
    rows = {"input_ids": [[(7 * i + r) % 300 for i in range(12)] for r in range(3)]}
    (folder / "rows.json").write_text(json.dumps(rows))
    before = files_of(a / "last")
    good("grad", a, "--tokens", folder / "rows.json", "--out", folder / "g.safetensors", *sets("erc.noise=none"))
    check(files_of(a / "last") == before, "grad changed the checkpoint")
    results = tensors_of(folder / "g.safetensors")
    clean = metrics(a)[-1]["erc_clean"]
    for layer in range(LAYERS):
        m = results[f"erc.{layer}.M"][1]
        loss = erc([m[i * EXPERTS : (i + 1) * EXPERTS] for i in range(EXPERTS)], 1)
        check(abs(loss - clean[layer]) <= 64 * EPSILON * max(m), f"erc_clean {clean} {loss}")
    check(abs(results["loss.erc"][1][0] - sum(clean) / LAYERS) < 1e-6, "erc_clean and grad")
    check(results["logits"][0] == [3, 12, 384], f"logits are {results['logits'][0]}")
    names = {"grad." + name for name in tensors_of(a / "last" / "model.safetensors")}
    check({name for name in results if name.startswith("grad.")} == names, "names of gradients")


def check_log_line(folder):
    """The line of a step lists every auxiliary loss that has a weight, and no other."""
    for option in ([], ["orth.weight=0.5"], ["erc.weight=0", "z.weight=0"]):
        out = good(
            f"train {folder}/c.yaml --out {folder}/log",
            *sets("train.steps=2", "train.warmup_steps=0", "log.every=1", *option),
        )
        words = re.search(r"^step 2/2  loss \S+  \d+ tok/s  \S+ left  (.*)grad ", out, re.M)
        check(words, f"{option}: no line of step 2: {out}")
        words = words[1].split() if words else []
        line, printed = metrics(folder / "log")[-1], dict(zip(words[::2], map(float, words[1::2])))
        counted = {name for name, weight in weights_of_run(folder / "log").items() if weight}
        check(printed.keys() == counted, f"{option}: the line lists {sorted(printed)}, not {sorted(counted)}")
        for name in printed.keys() & counted:
            near(printed[name], line[name], 0.006, f"{option}: {name} of the line")
        shutil.rmtree(folder / "log")


# ---- options ----

OPTIONS = [
    ("erc.weight=0",),
    ("erc.activation=up",),
    ("erc.activation=silu",),
    ("erc.noise=none",),
    ("erc.activation=swiglu", "erc.reduce=sum"),
    ("erc.activation=output", "erc.draws=3"),
    ("z.form=over_k", "z.weight=0.01"),
    ("z.form=centred", "z.weight=0.01"),
    ("model.norm_topk_prob=true", "balance.weight=0"),
    ("model.tie_word_embeddings=true",),
    ("model.clip_qkv=0.5", "model.num_key_value_heads=1"),
    ("data.seed=5",),
    ("compute.dtype=bf16",),
    ("train.clip=0",),
    ("orth.weight=0.5", "erc.layers=1"),
    ("model.num_experts=1", "model.num_experts_per_tok=1"),
    ("model.num_experts_per_tok=4",),
    ("model.num_attention_heads=8",),
    ("erc.alpha=2", "compute.threads=1"),
    ("balance.scope=sequence", "balance.weight=1"),
]
# couplet grad reads its rows as they are: it knows neither documents in them nor left-out targets, and selects no rows.
WITHOUT_GRAD = [
    ("data.document_mask=true", "data.filter_repeats=true"),
    ("data.weights={two: 2.5}",),
    ("balance.scope=global", "data.document_mask=true"),
]  # grad has one micro-batch
OF_GRAD = ("erc.", "balance.", "z.", "orth.", "compute.dtype", "compute.activations")


def check_first_step(folder, a, option, settings):
    """The first step is that of couplet grad with its option, and not without it."""
    start = train(folder, "start", *settings, "train.steps=1", "train.warmup_steps=0", "train.lr=0")
    rows, out = first_rows(start, 4, 16), folder / "first.safetensors"
    words = [one for one in option if one.startswith(OF_GRAD) and one != "erc.draws=3"]
    line, noise = metrics(a)[0], "erc.noise=none" not in option
    got = first_step(start, rows, 2, out, words, 3 if "erc.draws=3" in option else 1, noise)
    check_step(got, line, weights_of_run(a), option)
    if words:
        own, other = (losses_of_tensors(grad(start, rows[:2], out, *some)) for some in (words, ()))
        apart = max(abs(own[name] / other[name] - 1) for name in own.keys() & other.keys())
        check(apart > 10 * STEP, f"{option}: makes no difference to couplet grad, but {apart}")
    shutil.rmtree(start)


def check_options(folder):
    for option in OPTIONS + WITHOUT_GRAD:
        settings = (*option, "data.shuffle=false", "train.micro_batch=2")
        a = train(folder, "option", *settings, "train.steps=3", "eval.every=3")
        lines = metrics(a)
        finite = all(math.isfinite(line["loss_total"]) for line in lines)
        check(finite and len(lines) == 3 and lines[-1]["skipped"] == 0, f"{option}: {lines[-1]}")
        weight = next((float(one[15:]) for one in option if one.startswith("balance.weight=")), 0.01)
        told = read_json(a / "last" / "config.json")["router_aux_loss_coef"]
        check(told == weight, f"{option}: router_aux_loss_coef {told}")
        if option in OPTIONS:
            check_first_step(folder, a, option, settings)
        shutil.rmtree(a)
    check_erc_options(folder)


def check_erc_options(folder):
    vanilla = metrics(train(folder, "vanilla", "erc.weight=0"))
    check(all(line["erc"] is None for line in vanilla), "erc of a vanilla run is not null")
    check("erc_clean" in vanilla[-1] and min(vanilla[-1]["eps_mean"]) > 0, "vanilla figures")
    check(vanilla[-1]["erc_grad_ratio_router"][0] == 0, "a vanilla run has a coupling gradient")
    late = metrics(train(folder, "late", "erc.start_step=3", "erc.warmup_steps=4", "erc.alpha_start=0.5"))
    weights = [line["erc_weight"] for line in late]
    check(weights[0] == 0 and weights[-1] == 1, f"the schedule of erc.weight: {weights}")
    check(weights == sorted(weights) and len(set(weights)) > 3, f"erc.weight: {weights}")
    check(late[-1]["erc_alpha"] == 1, "erc_alpha")
    sums = metrics(train(folder, "sum", "erc.reduce=sum", "train.steps=3"))[0]
    near(sums["erc"], sum(sums["erc_layers"]), 1e-6, "erc.reduce=sum")
    halves = metrics(train(folder, "halves", "train.micro_batch=1", "balance.weight=0"))
    wholes = metrics(train(folder, "wholes", "balance.weight=0"))
    for a, b in zip(halves, wholes):
        near(a["loss"], b["loss"], 1e-3, f"gradient accumulation, step {a['step']}")
    near(halves[0]["grad_norm"], wholes[0]["grad_norm"], 1e-4, "gradient of micro-batches")


# ---- --from ----


def check_from(folder, base):
    small = folder / "small.yaml"
    text = (folder / "c.yaml").read_text()
    text = text[text.index("data:") :].replace("    tokenizer: T.json\n", "")
    small.write_text(text)
    os.chdir(folder)
    good("train", "small.yaml", "--from", base.name, "--out", "from1", *sets("train.steps=4"))
    start = read_json(folder / "from1" / "start.json")
    end = metrics(base)[-1]
    near(start["val_loss"], end["val_loss"], 1e-7, "--from does not start where the other ended")
    check(start["erc_clean"] == end["erc_clean"], "erc_clean of the weights begun with")
    good("train", "small.yaml", "--from", base / "last", "--out", "from2", *sets("train.steps=4"))
    one, other = (without_settings(files_of(folder / name / "last")) for name in ("from1", "from2"))
    check(one == other, "--from RUN and --from RUN/last differ")  # except the tokenizer's path
    good("train", "--resume", "from1", *sets("train.steps=6"))
    os.chdir("/")
    good("train", "--resume", folder / "from1", *sets("train.steps=7"))
    good(
        f"train {folder}/c.yaml --from {base} --out {folder}/from3 --set model.num_key_value_heads=unset "
        "--set train.steps=3"
    )
    check(not (folder / "no").exists(), "a refused run leaves a folder")


# ---- steps that are not finite ----


def poisoned(folder, base):
    """Returns the base model with an infinite weight."""
    model = folder / "poisoned"
    shutil.copytree(base / "last", model)
    (model / "checksums.json").unlink()
    tensors, name = read_tensors(model / "model.safetensors"), "model.layers.0.self_attn.o_proj.weight"
    dtype, shape, raw = tensors[name]
    tensors[name] = dtype, shape, struct.pack("<f", math.inf) + raw[4:]
    write_tensors(model / "model.safetensors", tensors)
    return model


def check_not_finite(folder, base):
    model = poisoned(folder, base)
    out = bad(
        1,
        ["3 steps in a row", "step 0"],
        f"train {folder}/c.yaml --from {model} --out {folder}/inf --set train.max_skipped=3 --set checkpoint.every=1",
    )
    check(out.count("was skipped") == 3, f"skipped steps are not told: {out}")
    lines = metrics(folder / "inf")
    check([line["skipped"] for line in lines] == [1, 2, 3], "skipped steps are not counted")
    whole(folder / "inf", "not finite")
    check(checkpoints(folder / "inf") == ["step-000000"], f"a skipped step was saved: {checkpoints(folder / 'inf')}")
    out = bad(
        1,
        "5 steps in a row",
        f"train {folder}/c.yaml --out {folder}/wild --set z.weight=1e300 --set checkpoint.every=1",
    )
    check("no checkpoint was saved yet" in out, out)
    bad(1, "5 steps in a row", "train", "--resume", folder / "wild")
    out = good("train", folder / "c.yaml", "--out", folder / "large", *sets("erc.weight=1e300"))
    check("nan" not in out, f"erc.weight=1e300: {out}")
    out, err, code = run(
        f"train {folder}/c.yaml --out {folder}/huge --set train.lr=100 --set train.warmup_steps=0 --set train.clip=0"
    )
    check(code in (0, 1), f"train.lr=100: {code}")


# ---- refusals ----


def check_tasks(folder, base):
    """eval.tasks are evaluated during the run, and do not change it."""
    settings = ["eval.tasks=copa,gsm8k_cot", "eval.tasks_every=8", "eval.tasks_limit=2"]
    a = train(folder, "tasks", "eval.tasks=copa", *settings[1:])
    lines = metrics(a)
    equal([line["step"] for line in lines if "tasks" in line], [8, 12], "steps with tasks")
    figures = lines[-1]["tasks"]["copa"]
    check(0 <= figures["acc"] <= 1 and figures["bpb"] > 0, f"tasks: {figures}")
    for one, other in zip(untimed(lines), untimed(metrics(base))):
        one.pop("tasks", None)
        check(one == other, f"step {one['step']} differs beside evaluated tasks")


def check_samples(folder, base):
    """eval.prompts are continued during the run, as `couplet generate` does it, and do not change it."""
    prompts = ["one two", ""]
    a = train(folder, "samples", f"eval.prompts={json.dumps(prompts)}", "eval.prompt_tokens=5", "eval.tasks_every=8")
    lines = metrics(a)
    check([line["step"] for line in lines if "samples" in line] == [8, 12], "samples at other steps than 8 and 12")
    samples = lines[-1]["samples"]
    check([one["prompt"] for one in samples] == prompts, f"samples: {samples}")
    for one in samples:
        text = good("generate", a, "--prompt", one["prompt"], "--tokens", 5, "--temperature", 0, "--only-new")
        check(one["text"] == text[:-1], f"a sample is {one['text']!r}, generate gives {text!r}")
    for one, other in zip(untimed(lines), untimed(metrics(base))):
        one.pop("samples", None)
        check(one == other, f"step {one['step']} differs beside samples")
    words = good("train", "--resume", a, *sets("train.steps=12", "eval.prompts=[]"))
    check("sample 1:" not in words, "a run that is over made samples")


def check_shared_cache(folder):
    """Several runs start together with one cache: one encodes, the others wait."""
    words = [
        (
            f"{COUPLET} train {folder}/c.yaml --out {folder}/together{i} --set data.cache={folder / 'together'} "
            f"--set train.steps=3 --set train.seed={i}"
        ).split()
        for i in range(4)
    ]
    runs = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for one in words]
    for run_, words_ in zip(runs, words):
        told = run_.communicate(timeout=300)[1]
        check(run_.returncode == 0, f"{said(words_[1:])} beside others: {told[-500:]}")
    made = sorted(path.name for path in (folder / "together").glob("[!.]*"))
    check(len(made) == 2, f"a cache shared by runs holds {made}")


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        base = train(folder, "base")
        check_shared_cache(folder)
        check_tasks(folder, base)
        check_samples(folder, base)
        check_metrics(folder, base)
        check_clean(folder, base)
        check_from(folder, base)
        check_log_line(folder)
        check_options(folder)
        check_not_finite(folder, base)
        check_dry_run(folder)
        check_shown_before(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
