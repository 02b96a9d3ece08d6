#!/usr/bin/env python3
"""check_cuda_refusals.py ON_HOST COUPLET CUBLASLT: messages of the program when a GPU cannot be used, and after
failures of a GPU during a run; the record of a GPU in a run, and runs that are resumed on another device. ON_HOST has
the emulated module beside it, COUPLET has only the modules of MPI. CUBLASLT stands in for NVIDIA's library."""

import os
import pathlib
import shutil
import sys

sys.path += ["tests/cli", "tests/parallel"]
import mpi
from check_eval_goes_on import words_of, write_tasks
from inputs import litter, metrics, read_json, untimed
from program import COUPLET, bad, capture, check, equal, finish, good, near, output, run, scratch_folder, sets
from train_case import copy_of, go_back, same_run, whole, write_corpus

STEPS = 4
SETTINGS = sets(
    "compute.device=cuda",
    f"train.steps={STEPS}",
    *("checkpoint.every=1 checkpoint.keep=20 eval.every=1 log.every=1 data.batch_tokens=32 data.seq_len=8").split(),
)
FOUND = {  # property of the machine: message
    "driver=0": "no driver for NVIDIA GPUs here (libcuda.so.1 is missing)",
    "driver=12040": "too old: it knows CUDA 12.4, and 13.0 is needed",
    "count=0": "there is no NVIDIA GPU here",
    "major=7": "has compute capability 7.0; at least 8.0 is needed (bf16)",
    "kernels=0": "no kernels for cuda:0, host, of compute capability 9.0",
}


def on(machine, **more):
    """Returns the environment in which the emulation is another machine."""
    return {"env": os.environ | {"COUPLET_TEST_CUDA": machine} | more}


def train(folder, name):
    return ("train", folder / "c.yaml", "--out", folder / name, *SETTINGS)


# ---- a GPU that cannot be used ----


def check_found(folder):
    for machine, part in FOUND.items():
        bad(2, ["compute.device is cuda, but ", part], *train(folder, "R"), **on(machine))
    bad(2, "there is no cuda:1 here: there is one GPU", *train(folder, "R"), "--set", "compute.device=cuda:1")
    bad(2, "there are 2 GPUs, cuda:0 to cuda:1", *train(folder, "R"), "--set", "compute.device=cuda:2", **on("count=2"))
    check(not (folder / "R").exists(), "a run was begun on a GPU that is not there")
    good(*train(folder, "alone"), *sets("compute.device=auto", "train.steps=1"), **on("driver=0"))
    made = read_json(folder / "alone/start.json")["made_with"]
    check(made["device"] == "cpu" and "libraries" not in made, f"auto without a GPU: {made}")
    for machine, part in FOUND.items():  # a GPU that cannot be used is reported; a missing GPU is not
        command = (*train(folder, "auto"), *sets("compute.device=auto", "train.steps=1"))
        for said in good(*command, "--dry-run", **on(machine)), good(*command, **on(machine)):
            told = "no GPU is used: compute.device is auto, but " in said and part in said
            check(told == (machine not in ("driver=0", "count=0")), f"auto, {machine}: {said}")
        shutil.rmtree(folder / "auto")


def version_of(run):
    return read_json(run / "start.json")["made_with"]["libraries"]


def check_cublaslt(folder, library):
    """Checks where cuBLASLt is looked for, and the refusal of an old version. The program and its module, moved, have
    packages beside them."""
    place = folder / "site-packages/couplet"
    place.mkdir(parents=True)
    for name in ("couplet", "couplet-cuda.so"):
        shutil.copy(pathlib.Path(COUPLET).parent / name, place / name)
    words = [place / "couplet", *train(folder, "blas"), "--set", "train.steps=1"]

    def start(**more):
        done = capture([*map(str, words)], **on("cublaslt=1", **more))
        return done.returncode, done.stderr

    code, said = start(CUDA_HOME="/nowhere")
    parts = [
        "libcublasLt-test.so.13 is not in ",
        *"/../nvidia/cu13/lib /../nvidia/cublas/lib /nowhere/lib64 COUPLET_CUBLASLT".split(),
    ]
    check(code == 2 and all(part in said for part in parts), f"no cuBLASLt: {code}, {said}")
    code, said = start(COUPLET_CUBLASLT="/nowhere/libcublasLt.so")
    check(code == 2 and "COUPLET_CUBLASLT cannot be opened: /nowhere/libcublasLt.so" in said, f"{code}, {said}")
    code, said = start(COUPLET_CUBLASLT=str(library), COUPLET_TEST_CUBLASLT="110503")
    check(code == 2 and "is version 11.5, and at least 12.0 is needed" in said, f"an old cuBLASLt: {code}, {said}")
    packages = "site-packages/nvidia"
    for lib, file in ((f"{packages}/cu13/lib", "13"), (f"{packages}/cublas/lib", "12"), ("cuda/lib64", "13")):
        (folder / lib).mkdir(parents=True)
        shutil.copy(library, folder / lib / f"libcublasLt-test.so.{file}")
        code, said = start(CUDA_HOME=str(folder / "cuda"))
        equal((code, version_of(folder / "blas")), (0, "CUDA driver 13.0, cuBLASLt 13.1.0"), lib)
        shutil.rmtree(folder / "blas", ignore_errors=True)
        (folder / lib / f"libcublasLt-test.so.{file}").unlink()


def check_ranks(folder, without):
    """Several processes are refused on a GPU, and choose CPUs by themselves."""
    library = next((each for each in mpi.LIBRARIES if mpi.is_here(each, without.parent)), None)
    verbs = {
        "train": train(folder, "two"),
        "eval": [*words_of(folder, "ranked", folder / "two.json"), *SETTINGS[:2]],
        "eval --text": ["eval", folder / "plain", "--text", folder / "docs", *SETTINGS[:2]],
        "inspect": ["inspect", folder / "plain", "--text", folder / "docs", *SETTINGS[:2]],
    }
    if not library:
        return
    how = {"build": without.parent, "COUPLET_MPI": str(without.parent / f"couplet-mpi-{library}.so")}
    for name, words in verbs.items():
        code, _, err = mpi.run(library, 2, COUPLET, *words, **how)
        last = [line for line in err.splitlines() if line.startswith("couplet: ")]
        check(
            code == 2 and len(last) == 1 and "compute.device is cuda, but there are 2 ranks" in last[0],
            f"{name} over ranks: {code}, {err[-800:]}",
        )
    words = [*train(folder, "two"), *sets("compute.device=auto", "train.steps=1", "compute.dtype=bf16")]
    code, _, err = mpi.run(library, 2, COUPLET, *words, **how, COUPLET_ISA="v3")
    check(code == 0 and "this processor does not multiply bf16 itself" in err, f"auto over ranks: {code}, {err[-500:]}")
    check(read_json(folder / "two/start.json")["made_with"]["device"] == "cpu", "auto over ranks")


# ---- failures in mid-run ----


def check_memory(folder):
    """Fails each allocation of training in turn."""
    for take in range(1, 100):
        _, err, code = run(*train(folder, f"take-{take}"), "--set", "train.steps=1", **on(f"take={take}"))
        if code == 0:
            break
        check(
            code == 1 and "couplet: out of memory on cuda:0 host: " in err.splitlines()[-1],
            f"memory {take}: {code}, {err[-500:]}",
        )
        left = litter(folder / f"take-{take}"), (folder / f"take-{take}/last").exists()
        check(left == ([], False), f"memory {take}: left over: {left}")
    check(4 < take < 99, f"training takes memory {take - 1} times")


def check_failed(folder, unbroken, machine, part):
    """Ends a run in its n-th kernel: no result of that step is written, and the resumed run has equal bits. Returns
    whether it failed."""
    broken = folder / "broken"
    _, err, code = run(*train(folder, "broken"), **on(machine))
    last = err.splitlines()[-1]
    if code == 0:
        shutil.rmtree(broken)
        return False
    check(code == 1 and part in last, f"{machine}: {code}, {last}")
    if not (broken / "metrics.jsonl").exists():  # the run had not begun
        check(not (broken / "start.json").exists() and not litter(broken), f"{machine}: left over")
        shutil.rmtree(broken, ignore_errors=True)
        return True
    check(f"`couplet train --resume {broken}`" in last, f"{machine}: {last}")
    starts = [read_json(path) for path in (unbroken / "start.json", broken / "start.json") if path.exists()]
    check(all(one == untimed(starts)[0] for one in untimed(starts)), f"{machine}: start.json of no whole evaluation")
    there, lines = untimed(metrics(unbroken)), untimed(metrics(broken))
    check(lines == there[: len(lines)], f"{machine}: lines of metrics that no whole step gave")
    saved = (broken / "last").exists()
    kept = "no checkpoint was saved yet"
    if saved:
        kept = f"last good checkpoint is step {int(os.readlink(broken / 'last')[5:])}"
    check(kept in last and not litter(broken), f"{machine}: {last}; left over: {litter(broken)}")
    if saved:
        whole(broken, machine)
    good("train", "--resume", broken)
    same_run(unbroken, broken, f"{machine}, resumed")
    shutil.rmtree(broken)
    return True


def check_mid_run(folder):
    unbroken = folder / "unbroken"
    good(*train(folder, "unbroken"))
    n, ends = 1, 0
    while check_failed(folder, unbroken, f"launch={n}", "an illegal memory access was encountered"):
        n, ends = 2 * n + 7, ends + 1
    check(ends > 6, f"{ends} kernels")
    check(check_failed(folder, unbroken, f"ecc={n // 3}", "uncorrectable ECC error"), "no fault of memory")


def check_other_verbs(folder):
    """After a failure no result is written or printed. Each failure names the borrowed part once."""
    model, docs, device = folder / "unbroken", folder / "few.jsonl", SETTINGS[:2]
    docs.write_text("".join((folder / "docs/two.jsonl").read_text().splitlines(True)[:2]))
    verbs = {
        "eval": [*words_of(folder, "ranked", folder / "failed.json", "unbroken"), "--limit", 8, *device],
        "written": [*words_of(folder, "written", folder / "failed.json", "unbroken"), "--limit", 4, *device],
        "text": ["eval", model, "--text", docs, "--json", folder / "failed.json", *device],
        "inspect": ["inspect", model, "--text", docs, "--json", folder / "failed.json", *device],
        "generate": ["generate", model, "--prompt", "abc", "--tokens", 4, "--temperature", 0, *device],
    }
    for name, words in verbs.items():
        for launch in (1, 9, 30):
            bad(1, "an illegal memory access was encountered", *words, **on(f"launch={launch}"))
            check(not (folder / "failed.json").exists(), f"{name}: results of a GPU that failed")
        said = good(*words)
        check(said.count("without a kernel, on the CPU on copies: ") == 1, f"{name}: {said[:600]}")
        for each in folder.glob("failed.json*"):
            each.unlink()


# ---- the record of a run, and other devices ----


def check_tasks(folder):
    """Compares answers to one task, and the likeliest text, with the CPU's."""
    results, texts = [], []
    for device in ("cpu", "cuda"):
        out, where = folder / f"task-{device}.json", sets(f"compute.device={device}")
        good(*words_of(folder, "ranked", out, "unbroken"), "--limit", 8, *where)
        results.append([samples for task in read_json(out)["results"].values() for samples in task["samples"]])
        texts.append(
            output("generate", folder / "unbroken", "--prompt", "abc", "--tokens", 8, "--temperature", 0, *where)
        )
    check(len(results[0]) == 8, f"{len(results[0])} answers of 8")
    near_everywhere(results[1], results[0], "a task")
    check(texts[0] == texts[1], f"the likeliest text: {texts}")


def near_everywhere(got, want, what):
    """Compares numbers within 1e-4 of each other, except times and devices."""
    if isinstance(want, dict):
        for key, value in want.items():
            if key not in ("made_with", "seconds", "tokens_per_s", "device", "settings"):
                near_everywhere(got.get(key), value, f"{what}: {key}")
    elif isinstance(want, list):
        check(isinstance(got, list) and len(got) == len(want), f"{what}: {got}")
        for i, (a, b) in enumerate(zip(got or [], want)):
            near_everywhere(a, b, f"{what}[{i}]")
    elif isinstance(want, float):
        check(
            isinstance(got, (int, float)) and abs(got - want) <= 1e-4 * max(1, abs(want)), f"{what}: {got} and {want}"
        )
    else:
        check(got == want, f"{what}: {got} and {want}")


def check_made_with(folder):
    """Another driver gives a warning with both versions. The algorithms are recorded in the run."""
    made = folder / "made"
    good(*train(folder, "made"), "--set", "train.steps=1")
    check(version_of(made) == "CUDA driver 13.0, cuBLASLt 13.0.0", version_of(made))
    equal(
        read_json(made / "algorithms.json"),
        {"device": "cuda:0 host", "libraries": version_of(made), "products": ["all: plain loops"]},
        "algorithms.json",
    )
    said = good("train", "--resume", made, "--set", "train.steps=2", **on("driver=13010"))
    part = "libraries CUDA driver 13.0, cuBLASLt 13.0.0 (now CUDA driver 13.1, "
    check(part in said, f"a newer driver: {said[-800:]}")


def check_devices(folder):
    """A run of one device is resumed on the other, and back, with the losses of a run on one device."""
    there = copy_of(folder / "unbroken", "turns")
    for step, device, was, now in ((1, "cpu", "cuda:0 host", "cpu"), (2, "cuda", "cpu", "cuda:0 host")):
        go_back(there, step)
        said = good("train", "--resume", there, *sets(f"compute.device={device}"))
        check(f"device {was} (now {now})" in said, f"a run of {was} on {device}: {said[-800:]}")
        for one, other in zip(metrics(folder / "unbroken"), metrics(there), strict=True):
            near(other["loss"], one["loss"], 1e-4, f"the loss of step {one['step']}, going on on {device}")


def main():
    without, library = pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
    with scratch_folder() as folder:
        write_corpus(folder)
        write_tasks(folder)
        check_found(folder)
        check_cublaslt(folder, library)
        check_memory(folder)
        check_mid_run(folder)
        (folder / "plain").symlink_to("unbroken")
        check_ranks(folder, without)
        check_other_verbs(folder)
        check_tasks(folder)
        check_made_with(folder)
        check_devices(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
