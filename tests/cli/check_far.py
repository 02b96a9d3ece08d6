#!/usr/bin/env python3
"""check_far.py COUPLET_FAR TRAIN_THREADS [all]: on memory that the host cannot reach (tests/tensor/far/far.h) the
program writes, prints and computes what it does on the CPU, bit for bit. The cases are training with every kind of
router, resumed, with held-out text and tasks, then grad, generate, eval, inspect --text, and ranks as threads. `all`:
every case, on far as well as on late."""

import json
import os
import sys

from inputs import different, files_of, litter, metrics, read_json, untimed
from program import capture, check, finish, good, output, said, scratch_folder, sets
from train_case import copy_of, go_back, same_run, write_corpus

SAVED = 2  # the step from which a resumed run continues
ALWAYS = ("train.steps=3", "train.warmup_steps=1", f"checkpoint.every={SAVED}", "eval.every=2")
SAMPLE = {
    "softmax": (
        "train.micro_batch=2 z.weight=0.001 eval.tasks=copa eval.tasks_limit=2 "
        "eval.tasks_every=2 eval.prompts=abc eval.prompt_tokens=3"
    ).split(),
    "sigmoid": (
        "model.router=sigmoid model.router_bias=true model.norm_topk_prob=true model.latent_dim=6 "
        "model.n_shared_experts=2 balance.scope=sequence train.micro_batch=2"
    ).split(),
    "global": (
        "balance.scope=global train.micro_batch=1 erc.proxy=tokens orth.weight=0.1 "
        "erc.activation=swiglu erc.draws=2 train.recompute=norms"
    ).split(),
    "aoe": ["model.router=aoe", "model.n_shared_experts=1", "compute.dtype=bf16"],
}
MORE = {
    "no-erc": ["erc.weight=0", "balance.weight=0", "log.every=2"],
    "output": "erc.activation=output erc.gradient=router erc.noise=none erc.proxy=centred train.router_lr=0.5".split(),
    "gate-up": ["erc.activation=gate_up", "compute.dtype=bf16"],
    "up": ["erc.activation=up", "erc.gradient=experts", "erc.layers=1", "compute.dtype=bf16"],
    "sigmoid-global": ["model.router=sigmoid", "balance.scope=global", "train.micro_batch=2"],
    "aoe-global": ["model.router=aoe", "balance.scope=global", "model.aoe_rank=3", "train.micro_batch=2"],
    "mpi": ["model.router=mpi", "erc.alpha=0.2", "orth.weight=0.1", "compute.dtype=bf16", "train.micro_batch=2"],
    "documents": [
        *("data.document_mask=true model.clip_qkv=3 model.tie_word_embeddings=true model.num_key_value_heads=1").split()
    ],
    "bf16": ["compute.dtype=bf16", "train.micro_batch=2", "balance.scope=sequence"],
}


def on(backend):
    return {"env": {**os.environ, "COUPLET_TEST_BACKEND": backend}}


def check_training(folder, name, settings, backend):
    words = ("train", folder / "c.yaml", *sets(*ALWAYS, *settings), "--out")
    one, other = folder / f"{name}-cpu", folder / f"{name}-{backend}"
    if not one.exists():
        good(*words, one, **on("cpu"))
    good(*words, other, **on(backend))
    same_run(one, other, f"{name} on {backend}")
    if backend == "late":
        again = go_back(copy_of(other, f"{name}-again"), SAVED)
        good("train", "--resume", again, **on(backend))
        same_run(one, again, f"{name} resumed on {backend}")


def found(path):
    """Returns a report without the members that may differ."""
    report = read_json(path) if path.exists() else {}
    for key in ("seconds", "made_with", "tokens_per_s"):
        report.pop(key, None)
    return report


def check_reports(folder, name, backend):
    """Compares the results of verbs that read the run, in files and words."""
    run, out = folder / f"{name}-cpu", {}
    (folder / "rows.json").write_text(json.dumps({"input_ids": [[1, 7, 3, 40, 9, 2], [5, 5, 80, 11, 6, 30]]}))
    for which in ("cpu", backend):
        place = folder / f"{name}-reports-{which}-{backend}"
        place.mkdir()
        text = folder / "docs" / "two.jsonl"
        good("grad", run, "--tokens", folder / "rows.json", "--out", place / "g.safetensors", **on(which))
        good("eval", run, "--text", text, "--json", place / "text.json", **on(which))
        good(
            f"eval {run} --tasks copa,gsm8k_cot --limit 2 --num-fewshot 0 --max-gen-toks 4 --json "
            f"{place}/tasks.json --samples",
            **on(which),
        )
        words = ["--prompt", "abc", "--tokens", 8, "--temperature", 1]
        out[which] = [
            output("generate", run, *words, **on(which)),
            (place / "g.safetensors").read_bytes(),
            found(place / "text.json"),
            found(place / "tasks.json"),
        ]
        if name != "aoe":
            good("inspect", run, "--text", text, "--json", place / "inspect.json", **on(which))
            out[which].append(found(place / "inspect.json"))
    for what, one, other in zip(
        ("generate", "grad", "eval --text", "eval --tasks", "inspect --text"), out["cpu"], out[backend]
    ):
        check(one == other, f"{said([what])} of {name} on {backend} differs")


def check_ranks(folder, experts, backend):
    """Trains four ranks as threads, each with its own backend and memory."""
    runs = {}
    config = folder / f"ranks-{experts}.yaml"
    config.write_text(
        good(
            f"train {folder}/c.yaml --print-config",
            *sets(
                *ALWAYS,
                "compute.threads=1",
                f"dist.expert_parallel={experts}",
                "balance.scope=global",
                f"data.train={folder / 'docs'}",
                f"data.validation={folder / 'docs' / 'two.jsonl'}",
                f"data.tokenizer={folder / 'T.json'}",
            ),
        )
    )
    for which in ("cpu", backend):
        runs[which] = folder / f"ranks-{experts}-{which}-{backend}"
        how = on(which)
        how["env"]["OMP_NUM_THREADS"] = "1"
        done = capture([sys.argv[2], config, runs[which], "4"], **how)
        check(done.returncode == 0, f"4 ranks, expert_parallel {experts} on {which}: {done.stderr[-3000:]}")
    one, other = runs.values()
    check(untimed(metrics(one)) == untimed(metrics(other)), f"ranks on {backend}: metrics differ")
    names = different(files_of(one / "last"), files_of(other / "last"))
    check(not names and not litter(other), f"4 ranks, expert_parallel {experts} on {backend}: {names} differ")


def main():
    every = sys.argv[3:] == ["all"]
    with scratch_folder() as folder:
        write_corpus(folder)
        for backend in ("late", "far") if every else ("late",):
            for name, settings in (SAMPLE | MORE if every else SAMPLE).items():
                check_training(folder, name, settings, backend)
            for name in SAMPLE if every else ("softmax",):
                check_reports(folder, name, backend)
            for experts in (1, 2, 4) if every else (2,):
                check_ranks(folder, experts, backend)
    return finish()


sys.exit(main())
