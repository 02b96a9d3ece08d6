#!/usr/bin/env python3
"""check_cuda.py ON_HOST COUPLET: the program with the CUDA backend, whose kernels are run by the emulation
(tests/tensor/cuda): runs compared with runs on the CPU, resumed runs, and the files made of them; missing devices and
modules. ON_HOST has the module couplet-cuda.so beside it, COUPLET lacks it."""

import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.append("tests/cli")
from check_cuda_refusals import near_everywhere
from inputs import metrics, read_json, tensors_of
from program import COUPLET, capture, check, finish, good, near, output, says, scratch_folder, sets, wait_until
from train_case import same_run, whole, write_corpus

STEPS, SAVED = {"softmax": 60}, 2  # steps of a run, 6 unless named; the step of a checkpoint
KILLED = 3  # number of lines after which a run is killed
LEAST_APART = 1e-6  # relative, of two losses that are rounded in different places
ALWAYS = (
    "train.warmup_steps=1",
    f"checkpoint.every={SAVED}",
    *(
        "checkpoint.keep=1 eval.every=50 log.every=1 data.seq_len=8 data.batch_tokens=16 "
        "model.hidden_size=8 model.intermediate_size=4"
    ).split(),
)
VARIANTS = {
    "softmax": ["train.micro_batch=1", "z.weight=0.001", "compute.dtype=f32"],
    "sigmoid": (
        "model.router=sigmoid model.router_bias=true model.norm_topk_prob=true "
        "model.n_shared_experts=1 balance.scope=global train.micro_batch=2 "
        "erc.activation=swiglu orth.weight=0.1 erc.proxy=tokens compute.dtype=f32"
    ).split(),
    "aoe": ["model.router=aoe", "compute.dtype=f32", "train.recompute=norms"],
    "mpi": ["model.router=mpi", "model.router_scale=3", "erc.alpha=0.2", "orth.weight=0.1", "compute.dtype=f32"],
    "bf16": ["compute.dtype=bf16", "erc.proxy=centred", "train.micro_batch=2"],
}


def check_losses(one, other, name):
    """Checks that the losses of a step differ by no more than sums in other orders do. bf16 rounds the summands."""
    lines = metrics(one), metrics(other)
    check(len(lines[0]) == len(lines[1]) == steps_of(name), f"{name}: {[len(each) for each in lines]} lines")
    for a, b in list(zip(*lines))[:20]:
        tolerance = (1e-5 if a["step"] <= 3 else 1e-4) * (100 if name == "bf16" else 1)
        for figure in ("loss", "loss_total"):
            near(b[figure], a[figure], tolerance, f"{name}, step {a['step']}: {figure}")


def apart(one, other):
    """Returns the largest difference of two runs in a loss."""
    return max(abs(a["loss"] - b["loss"]) for a, b in zip(metrics(one), metrics(other)))


def check_long(folder, words, cpu, gpu):
    """Runs 60 steps. The difference from the CPU is at most twice that between the CPU's own instruction sets."""
    low = folder / "softmax-v2"
    good(*words, "compute.device=cpu", "--out", low, env={**os.environ, "COUPLET_ISA": "v2"})
    most = 2 * max(apart(cpu, low), LEAST_APART)
    check(apart(cpu, gpu) <= most, f"60 steps: {apart(cpu, gpu)} apart, two instruction sets {apart(cpu, low)}")


def check_gradients(folder):
    """Checks the gradients of the second step, by tensor: within 1e-5 of the norm of the CPU's."""
    run = folder / "first"
    settings = sets(*ALWAYS, *VARIANTS["softmax"], "train.steps=1", "train.warmup_steps=0")
    good("train", folder / "c.yaml", *settings, *of("cpu"), "--out", run)
    (folder / "rows.json").write_text('{"input_ids": [[1, 7, 3, 40, 9, 2], [5, 5, 80, 11, 6, 30]]}')
    made = []
    for device in ("cpu", "cuda"):
        out = folder / f"{device}.safetensors"
        good("grad", run, "--tokens", folder / "rows.json", "--out", out, *sets("compute.dtype=f32"), *of(device))
        made.append(tensors_of(out))
    check(made[0].keys() == made[1].keys() and len(made[0]) > 20, "grad: other tensors")
    for name, (_, want) in made[0].items():
        if name.startswith("grad."):
            off = math.dist(made[1][name][1], want)
            check(off <= 1e-5 * math.hypot(*want) + 1e-9, f"{name} is off by {off} of {math.hypot(*want)}")


def check_killed(words, run, whole_run):
    """Kills a run with kill -9. The resumed run has equal bits."""
    with subprocess.Popen(
        [COUPLET, *map(str, words), "compute.device=cuda", "--out", run],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        lines = run / "metrics.jsonl"
        wait_until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= KILLED, process)
        process.send_signal(signal.SIGKILL)
    check(process.returncode == -signal.SIGKILL, f"killed too late: {process.returncode}")
    good("train", "--resume", run)
    whole(run, "killed")
    same_run(whole_run, run, "killed and resumed")


def steps_of(name):
    return STEPS.get(name, 6)


def check_training(folder, name, settings):
    words = ("train", folder / "c.yaml", *sets(f"train.steps={steps_of(name)}", *ALWAYS, *settings), "--set")
    one, other = (folder / f"{name}-{which}" for which in ("cpu", "cuda"))
    good(*words, "compute.device=cpu", "--out", one)
    said = good(*words, "compute.device=cuda", "--out", other)
    says(said, ["without a kernel, on the CPU on copies: "], f"{name}: no operation is said to be borrowed")
    check_losses(one, other, name)
    if name == "softmax":
        check_long(folder, words, one, other)
        check_gradients(folder)
    else:
        check_killed(words, folder / f"{name}-killed", other)


def of(device):
    return sets(f"compute.device={device}")


def check_reports(folder, run):
    """Compares losses of a text and choices of experts within rounding of the CPU's, and the generated text."""
    text = folder / "docs" / "two.jsonl"
    reports = {}
    for device in ("cpu", "cuda"):
        place = folder / f"reports-{device}"
        place.mkdir()
        good("eval", run, "--text", text, "--json", place / "text.json", *of(device))
        good("inspect", run, "--text", text, "--json", place / "inspect.json", *of(device))
        drawn = output("generate", run, "--prompt", "abc", "--tokens", 8, *of(device))
        reports[device] = read_json(place / "text.json"), read_json(place / "inspect.json"), drawn
    check(reports["cpu"][2] == reports["cuda"][2], "generate draws another text on a GPU")
    near_everywhere(reports["cuda"][0], reports["cpu"][0], "eval --text")
    layers = [report[1]["layers"] for report in reports.values()]
    near_everywhere(layers[1], layers[0], "inspect --text")


def check_refusals(folder, without):
    """Checks the refusals of a missing module and of another library in its place."""
    words = ["train", folder / "c.yaml", "--out", folder / "refused", "--set"]
    place = folder / "moved"
    place.mkdir()
    other = pathlib.Path(COUPLET).parent / "libfake_cublaslt.so"
    for module, part, code in (
        (None, "there is no couplet-cuda.so beside the program", 2),
        (without.parent / "libcouplet.so", "are of different versions: build both from one commit", 1),
        (other, "are of different versions: build both from one commit", 1),
    ):
        shutil.copy(without, place / "couplet")
        if module:
            shutil.copy(module, place / "couplet-cuda.so")
        done = capture([place / "couplet", *map(str, words), "compute.device=cuda"])
        check(done.returncode == code and part in done.stderr, f"{part}: {done.returncode}, {done.stderr[-400:]}")


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        for name, settings in VARIANTS.items():
            check_training(folder, name, settings)
        check_reports(folder, folder / "softmax-cpu")
        check_refusals(folder, pathlib.Path(sys.argv[2]))
    return finish()


assert pathlib.Path(COUPLET).parent.joinpath("couplet-cuda.so").exists()
sys.exit(main())
