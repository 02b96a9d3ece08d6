#!/usr/bin/env python3
"""check_cuda_memory.py ON_HOST: the memory of a GPU in the emulation (tests/tensor/cuda/vendor_host.cpp): the figures
of `plan`, the memory of a run, and the sentences when memory is too small."""

import os
import sys

sys.path.append("tests/cli")
from inputs import metrics
from program import bad, check, finish, good, in_json, near, output, scratch_folder, sets
from train_case import write_corpus

SHAPE = (
    "model.hidden_size=64 model.intermediate_size=32 data.seq_len=32 data.batch_tokens=256 train.steps=2 "
    "train.warmup_steps=1 checkpoint.every=2 eval.every=2 compute.device=cuda"
).split()
EVALUATED = ("eval.prompts=[abc def, xyz]", "eval.prompt_tokens=4", "eval.tasks_every=1")
VARIANTS = {
    "f32": ("compute.dtype=f32", "train.micro_batch=4"),
    "bf16": ("compute.dtype=bf16", "train.micro_batch=8", "train.recompute=norms"),
    "evaluated": ("compute.dtype=bf16", "train.micro_batch=8", *EVALUATED),
}


def of(folder, size, less=0):
    """Returns the environment in which the device has `size` bytes, of which another program uses `less`."""
    return {
        "env": os.environ
        | {"COUPLET_TEST_CUDA": f"bytes={size},less={less}", "COUPLET_TEST_CUDA_PEAK": str(folder / "peak")}
    }


def needs_of(plan):
    """Returns the needs beyond the bytes that the device takes before the first tensor."""
    return plan["bytes"]["total"] - plan["bytes"]["device"]


def check_run(folder, name, settings):
    """A device with the planned memory is enough, and nearly all of it is used."""
    words = [folder / "c.yaml", *sets(*SHAPE, *settings, "model.vocab_size=384")]
    plan = in_json("plan", *words)
    needs = needs_of(plan)
    check(
        plan["gpu"]["name"] == "cuda:0 host" and plan["gpu"]["fits"] and plan["gpu"]["largest_micro_batch"] == 8,
        f"{name}: {plan['gpu']}",
    )
    check(plan["bytes"]["device"] == 544 << 20 and plan["bytes"]["host"] > 8 << 20, f"{name}: {plan['bytes']}")
    good("train", *words, "--out", folder / name, **of(folder, needs + 65536))
    check(len(metrics(folder / name)) == 2, f"{name}: the run did not end")
    near(int((folder / "peak").read_text()), needs, 0.05, f"{name}: memory that a run takes, and its plan")


def check_refusals(folder):
    """Checks refusals before the first step: name, numbers and the setting that helps. No file is written."""
    words = [folder / "c.yaml", *sets(*SHAPE, "compute.dtype=f32", "model.vocab_size=384", "train.micro_batch=8")]
    eight, two = (needs_of(in_json("plan", *words, *sets(f"train.micro_batch={n}"))) for n in (8, 2))
    run = folder / "refused"
    parts = ["not enough memory: training with these settings needs", "on cuda:0 host, and", "are free"]
    bad(1, [*parts, "; train.micro_batch=2 fits"], "train", *words, "--out", run, **of(folder, two + 1024))
    less = "; less take: a smaller train.micro_batch, train.recompute=norms, compute.dtype=bf16"
    bad(1, [*parts, less], "train", *words, "--out", run, **of(folder, two // 2))
    bad(1, parts, "train", *words, "--out", run, "--dry-run", **of(folder, eight - 1))
    least = sets("train.micro_batch=1", "train.recompute=norms", "compute.dtype=bf16")
    bad(1, [*parts, "; less take: a smaller model"], "train", *words, *least, "--out", run, **of(folder, two // 2))
    check(not run.exists(), "a run that was refused has written something")
    late = of(folder, eight + 65536, less=eight // 2)
    parts = ["out of memory on cuda:0 host: ", " MiB are needed for ", "; less take: a smaller train.micro_batch"]
    bad(1, parts, "train", *words, "--out", run, **late)
    said = output("plan", *words, **of(folder, two + 1024)).decode()
    check("free memory of cuda:0 host: " in said and "too little for this run" in said, said[-300:])
    check("largest micro-batch that fits: train.micro_batch=2" in said, said[-300:])


def check_reading(folder):
    """Checks the refusals of verbs that only read a model."""
    run, text = folder / "f32" / "last", folder / "docs" / "two.jsonl"
    for words, what in (
        (("generate", run, "--prompt", "a"), "this model"),
        (("eval", run, "--text", text), "reading text"),
    ):
        parts = ["not enough memory: " + what, "on cuda:0 host, and"]
        bad(1, parts, *words, *sets("compute.device=cuda"), **of(folder, 65536))


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        for name, settings in VARIANTS.items():
            check_run(folder, name, settings)
        check_refusals(folder)
        check_reading(folder)
    return finish()


sys.exit(main())
