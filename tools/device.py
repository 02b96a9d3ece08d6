#!/usr/bin/env python3
"""device.py, which tools/device.sh starts: stages of known length on a machine with a GPU, and their report.

A stage fails if its check fails or its seconds are over. The next stage then still runs. The result of a stage is in
the report before the next stage begins. A piece is a list of stages with a report of its own. --next runs the first piece
that has no report of the present code in bench/device or OUT. Without an option all pieces of the trainer run. Exit
code 0: no stage failed, 1: one failed, 2: no stage could run.

--on-host FOLDER, for tests: the programs in FOLDER, whose module is the emulation, with sizes for it.
--code prints the mark of the present sources, which the programs carry too."""

import argparse
import concurrent.futures
import ctypes
import datetime
import glob
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cli"))
from inputs import different, files_of, metrics, read_json, tensors_of, untimed

ARCHIVE = ROOT / "build" / "couplet-device.tar.xz"
PROGRAMS = ROOT / "build" / "couplet-device"
REPORTS = ROOT / "bench" / "device"
BUILT = (
    "src",
    "include",
    "bench/cuda",
    "bench/step.h",
    "bench/bench.h",
    "bench/CMakeLists.txt",
    "tests/tensor",
    "cmake",
    "CMakeLists.txt",
    "CMakePresets.json",
    "tools/make_operations.py",
)
SCRIPT = ("tools/device.py", "tools/device.sh")
TRAINER = (
    *BUILT,
    *SCRIPT,
    "tests/cli/inputs.py",
    "tests/golden/model",
    "configs/tiny.yaml",
    "configs/paper-3b.yaml",
    "configs/olmoe-1b-7b.yaml",
    "data/train",
    "data/validation",
    "data/tokenizer.json",
)
PYTHON = (*SCRIPT, "python/couplet", "python/tests", "python/pyproject.toml", "tests/golden/erc", "tests/golden/latent")
PAIRS = (
    *SCRIPT,
    *(f"experiments/gpu/{name}.py" for name in ("replicas", "pairs", "decide")),
    *(f"experiments/tools/{name}.py" for name in ("mean_token", "hypothesis_tests", "records", "runs_table")),
    *(
        f"python/couplet/{name}"
        for name in ("reference.py", "ops/_noise.py", "compare/_yaml.py", "compare/defaults.json")
    ),
    "experiments/base.yaml",
    "experiments/list.json",
    "data/train",
    "data/validation",
    "data/tokenizer.json",
)
SHOWN = 4000  # letters shown of a program's output, its last ones

DATA = ("data.train=data/train", "data.validation=data/validation", "data.tokenizer=data/tokenizer.json")
STEPS = ("train.warmup_steps=2", "eval.every=0", "eval.max_sequences=1", "log.every=1")
LARGE = (
    *DATA,
    "data.eos=unset",
    "data.batch_tokens=65536",
    "eval.every=0",
    "eval.max_sequences=1",
    "log.every=8",
    "checkpoint.every=0",
    "train.warmup_steps=2",
    "compute.device=cuda",
    "compute.dtype=bf16",
    "train.steps=1000",
)


class Sizes:
    """Sizes of the stages on a GPU."""

    twins = "*"
    sanitized = ("bf16, odd sizes", "bf16, heads of 64")  # the second has the tensor-core kernels of attention
    cases = None  # cases of tests/golden/model; None: all
    tiny = ("checkpoint.every=10",)  # settings of configs/tiny.yaml
    steps, killed_after = 60, 35
    slower = 1  # factor of a stage's time limit, 1 on a GPU
    layer = ("model.num_hidden_layers=1", "train.micro_batch=4")
    large, large_lines = (), 4  # settings, and lines of metrics
    micro = (8, 4)  # micro-batches to try; the first that fits is used; 8 needs 78 GiB
    torch, pairs = "cuda", ()  # the device of PyTorch's stages; words of experiments/gpu/pairs.py


class OnHost(Sizes):
    """Sizes of the stages on the emulation, which is thousands of times slower."""

    twins, sanitized = "*, one of everything", ("bf16, one of everything",)
    cases = ("no-erc",)
    model = (
        "model.num_hidden_layers=1",
        "model.hidden_size=32",
        "model.intermediate_size=16",
        "model.num_experts=4",
        "model.num_experts_per_tok=2",
        "model.num_attention_heads=2",
    )
    tiny = (*model, "checkpoint.every=3", "data.train=data/validation", "data.seq_len=16", "data.batch_tokens=16")
    steps, killed_after, slower = 8, 5, 20
    small = (*model, "model.num_key_value_heads=2", "model.vocab_size=4096", "data.seq_len=8", "train.micro_batch=1")
    layer = (*small, "rates=32", "rounds=1")
    large = (*small, "data.batch_tokens=16", "data.train=data/validation", "log.every=2")
    large_lines, micro = 2, (1,)
    torch, pairs = "cpu", ("--rehearse",)


class Failed(Exception):
    pass


def sets(settings):
    return [word for one in settings for word in ("--set", one)]


# ---- a machine ----


class Kit:
    """The programs, and the time that is left to a stage."""

    def __init__(self, programs, sizes, out, scratch):
        self.programs, self.sizes, self.out, self.scratch = programs, sizes, out, scratch
        self.until, self.python, self.seconds, self.report = math.inf, sys.executable, {}, None
        library = cublaslt() if sizes is Sizes else None
        self.environment = dict(os.environ, **({"COUPLET_CUBLASLT": library} if library else {}))

    def left(self):
        return max(1, self.until - time.monotonic())

    def run(self, *words, cwd=ROOT):
        """Runs a command and returns its output. Fails if the command fails, or if the time of the stage is over. The
        output goes into a file: a pipe would stay open as long as a process that the command left behind."""
        words = [str(word) for word in words]
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            process = subprocess.Popen(
                words, cwd=cwd, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                process.wait(self.left())
                why = process.returncode and f"{' '.join(words)}: exit code {process.returncode}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                why = f"{words[0]}: the time of this stage is over"
            log.seek(0)
            said = log.read()
        if why:
            raise Failed(f"{why}\n{said[-SHOWN:]}")
        return said

    def couplet(self, *words):
        return self.run(self.programs / "couplet", *words)

    def train(self, name, *settings):
        """Runs configs/tiny.yaml and returns the run's folder. The folder of a failed run is removed."""
        try:
            self.couplet(*self.train_words(name, settings))
        except Failed:
            shutil.rmtree(self.scratch / name, ignore_errors=True)
            raise
        return self.scratch / name

    def train_words(self, name, settings):
        return [
            "train",
            ROOT / "configs" / "tiny.yaml",
            "--out",
            self.scratch / name,
            *sets(
                (
                    f"data.cache={self.scratch / 'tokens'}",
                    f"train.steps={self.sizes.steps}",
                    *STEPS,
                    *self.sizes.tiny,
                    *settings,
                )
            ),
        ]

    def once(self, name, *settings):
        """Returns the folder of a run, made by the first stage that needs it."""
        place = self.scratch / name
        return place if (place / "last").exists() else self.train(name, *settings)


def cublaslt():
    """Returns the path of cuBLASLt, from pip's packages or from CUDA; None if the loader finds it."""
    places = [f"{path}/nvidia/*/lib" for path in sys.path] + [
        "/usr/local/cuda*/lib64",
        "/usr/local/cuda*/targets/*/lib",
    ]
    places += [f"{os.environ[name]}/lib64" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places += ["/opt/*/lib/python3*/site-packages/nvidia/*/lib", "/usr/local/lib/python3*/dist-packages/nvidia/*/lib"]
    found = [file for place in places for file in glob.glob(place + "/libcublasLt.so.1[23]")]
    return os.environ.get("COUPLET_CUBLASLT") or next(iter(found), None)


def cublaslt_version(file):
    try:
        number = ctypes.CDLL(file or "libcublasLt.so.13").cublasLtGetVersion
    except OSError as error:
        return f"not found ({error})"
    number.restype = ctypes.c_size_t
    return f"{number()} ({file or 'of the loader'})"


def smi(*fields):
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[0].split(", ")


# ---- stages: each returns its lines of the report, or raises Failed ----


def opens(kit):
    """Opens the device and cuBLASLt, and runs one twin of each operation"""
    return code(kit.run(kit.programs / "test_cuda", "f32, one of everything"), 6)


def twins(kit):
    """Compares every operation with the CPU's, f32 and bf16, and checks that repeated runs give equal bits"""
    return code(kit.run(kit.programs / "test_cuda", kit.sizes.twins), 6)


def off(got, want):
    size = math.hypot(*want)
    return math.dist(got, want) / size if size else math.hypot(*got)


def gradient(kit, case, dtype, device):
    """Returns name -> numbers of the gradients of a golden model."""
    out = kit.scratch / f"{case.name}-{dtype}-{device}.safetensors"
    settings = {**read_json(case / "case.json")["settings"], "compute.dtype": dtype, "compute.device": device}
    kit.couplet(
        "grad",
        case,
        "--tokens",
        case / "tokens.json",
        "--out",
        out,
        "--delta",
        case / "delta.safetensors",
        *sets(f"{name}={value}" for name, value in settings.items()),
    )
    return gradients_of(out)


def gradients_of(file):
    return {name: numbers for name, (_, numbers) in tensors_of(file).items() if name.startswith("grad.")}


def joined(tensors):
    return [number for _, numbers in sorted(tensors.items()) for number in numbers]


def gradients(kit):
    """Compares gradients of the golden models with the CPU's: f32 within 1e-5 for every tensor, bf16 within 1e-2 for
    all together"""

    def figures(case):
        want, got = gradients_of(case / "expected.safetensors"), gradient(kit, case, "f32", "cuda")
        low = [joined(gradient(kit, case, "bf16", device)) for device in ("cuda", "cpu")]
        return max(off(got[name], numbers) for name, numbers in want.items()), off(*low)

    cases = [
        case
        for case in sorted((ROOT / "tests/golden/model").iterdir())
        if not kit.sizes.cases or case.name in kit.sizes.cases
    ]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(figures, cases))
    lines = [f"| {case.name} | {f32:.1e} | {bf16:.1e} |" for case, (f32, bf16) in zip(cases, found)]
    return judged(
        all(f32 <= 1e-5 and bf16 <= 1e-2 for f32, bf16 in found),
        ["| case | f32, worst tensor | bf16, all |", "|---|---|---|", *lines],
    )


def judged(right, lines):
    if not right:
        raise Failed("\n".join(lines))
    return "\n".join(lines)


def apart(one, other):
    """Returns the largest relative difference of losses up to each step."""
    largest, found = 0, []
    for a, b in zip(metrics(one), metrics(other)):
        largest = max([largest] + [abs(a[key] - b[key]) / abs(a[key]) for key in ("loss", "loss_total")])
        found.append(largest)
    return found


def steps(kit):
    """Compares losses of configs/tiny.yaml with the CPU's, f32: 3 steps within 1e-5, 20 within 1e-4"""
    far = apart(kit.once("cpu", "compute.device=cpu", "compute.dtype=f32"), on_gpu(kit))
    if len(far) != kit.sizes.steps:
        raise Failed(f"{len(far)} steps of {kit.sizes.steps}")
    lines = [f"* up to step {min(n, len(far))}: {far[:n][-1]:.1e}" for n in (3, 20, kit.sizes.steps)]
    return judged(far[2] <= 1e-5 and far[:20][-1] <= 1e-4, lines)


def on_gpu(kit):
    return kit.once("gpu", "compute.device=cuda", "compute.dtype=f32")


def check_same(one, other):
    """Checks that two runs are equal bit for bit, in metrics and the last checkpoint."""
    a, b = (untimed(metrics(run)) for run in (one, other))
    wrong = [f"step {x['step']}: {', '.join(different(x, y))}" for x, y in zip(a, b) if x != y]
    wrong += [f"{len(a)} and {len(b)} lines of metrics"] * (len(a) != len(b))
    wrong += different(files_of(one / "last"), files_of(other / "last"))
    if wrong:
        raise Failed("different: " + "; ".join(wrong[:20]))
    return f"{len(a)} lines of metrics and every file of the last checkpoint are equal"


def bits(kit):
    """Checks that two runs give equal bits"""
    return check_same(on_gpu(kit), kit.train("twice", "compute.device=cuda", "compute.dtype=f32"))


def killed(kit, name, words, lines, watch=lambda: None):
    """Starts a run, and ends it by SIGKILL when its metrics have `lines` lines, or when the time is nearly over."""
    file = kit.scratch / name / "metrics.jsonl"
    with open(kit.scratch / f"{name}.log", "w+") as log:
        process = subprocess.Popen(
            [str(word) for word in (kit.programs / "couplet", *words)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=kit.environment,
        )
        while process.poll() is None and kit.left() > 3:
            if file.exists() and file.read_bytes().count(b"\n") >= lines:
                break
            watch()
            time.sleep(0.002)
        process.kill()
        code_of = process.wait()
        log.seek(0)
        said = log.read()[-SHOWN:]
    if code_of != -signal.SIGKILL:
        raise Failed(f"it ended by itself, exit code {code_of}\n{said}")
    whole = file.read_text().split("\n")[:-1] if file.exists() else []  # the last line may be half written
    return [line for line in map(json.loads, whole) if "loss" in line]


def resume(kit):
    """Checks that a run ended by kill -9 and resumed gives the bits of an unbroken run"""
    words = kit.train_words("killed", ("compute.device=cuda", "compute.dtype=f32"))
    done = killed(kit, "killed", words, kit.sizes.killed_after)
    kit.couplet("train", "--resume", kit.scratch / "killed")
    return f"killed after step {done[-1]['step']}; " + check_same(on_gpu(kit), kit.scratch / "killed")


def planned(kit, words):
    kit.couplet("plan", ROOT / "configs/paper-3b.yaml", "--json", kit.scratch / "plan.json", "--overwrite", *words)
    return read_json(kit.scratch / "plan.json")


def memory_used(kit):
    return float(smi("memory.used")[0]) / 1024 if kit.sizes is Sizes else 0


def unlogged(lines, tokens):
    """Returns the seconds of a step, the mean of the steps between two lines. Logged steps compute figures of the loss
    even where it has no weight, and the first steps warm up: neither counts."""
    every = lines[0]["step"]
    return [(every * tokens / line["tokens_per_s"] - line["step_s"]) / (every - 1) for line in lines[1:]]


def large(kit, name, *settings):
    """Runs configs/paper-3b.yaml. Returns whether its memory is as planned and its loss falls, and the lines of the
    report."""
    for micro in kit.sizes.micro:
        words = sets(
            (f"data.cache={kit.scratch / 'tokens-large'}", *LARGE, *kit.sizes.large, f"train.micro_batch={micro}")
        )
        if planned(kit, words)["gpu"]["fits"]:
            break
    words += sets(settings)
    plan, before, peak = planned(kit, words), memory_used(kit), [0]

    def watch():
        if kit.sizes is Sizes:
            peak[0] = max(peak[0], memory_used(kit) - before)
            time.sleep(0.5)

    lines = killed(
        kit,
        name,
        ["train", ROOT / "configs/paper-3b.yaml", "--out", kit.scratch / name, *words],
        kit.sizes.large_lines,
        watch,
    )
    shutil.rmtree(kit.scratch / name)
    if len(lines) < 2:
        raise Failed(f"{len(lines)} lines of metrics in the time of this stage; 2 are needed")
    took = kit.seconds[name] = unlogged(lines, plan["T"])
    step, room = statistics.median(took), plan["bytes"]["total"] / 2**30
    right = kit.sizes is not Sizes or abs(peak[0] / room - 1) <= 0.05 and lines[-1]["loss"] < lines[0]["loss"]
    return right, [
        f"* {plan['T'] / step:,.0f} tokens/s in steps of {plan['T']:,} tokens, micro-batches of {micro}: "
        f"{plan['step_flops'] / step / 1e12:,.1f} TFLOP/s",
        f"* A step without figures: {step:.4f} s, the median of {len(took)} means, {min(took):.4f} to {max(took):.4f}",
        f"* Peak memory {peak[0]:.1f} GiB, planned {room:.1f} GiB",
        f"* Hinges active at step {lines[-1]['step']}, means of the layers: "
        + ", ".join(f"{statistics.mean(lines[-1]['active_' + of]):.0%} of {of}" for of in ("rows", "columns")),
        f"* Losses {', '.join(format(line['loss'], '.4f') for line in lines)}",
    ]


def share(kit):
    """Returns the line with the share of the coupling loss in the time of a step."""
    if "with" not in kit.seconds:
        return "* Share of the coupling loss: unknown, because large_erc did not end in the same call"
    long, short = (statistics.median(kit.seconds[name]) for name in ("with", "without"))
    return (
        f"* Share of the coupling loss, (with - without) / without: {long / short - 1:.2%}; bar: 1 % with every hinge "
        "active"
    )


def large_erc(kit):
    """Runs the paper's 3B with every hinge of the coupling loss active: tokens/s, a falling loss, peak memory within 5
    % of the plan"""
    return judged(*large(kit, "with", "erc.alpha=1e-3"))


def large_vanilla(kit):
    """Runs the paper's 3B without the coupling loss, with these checks, and computes the loss's share of a step's
    time"""
    right, lines = large(kit, "without", "erc.weight=0")
    return judged(right, [*lines, share(kit)])


def table(kit, config):
    return kit.run(
        kit.programs / "operations",
        ROOT / "configs" / config,
        "compute.device=cuda",
        "compute.dtype=bf16",
        *kit.sizes.layer,
    )


def operations(kit):
    """Times the 3B's layer, embedding, head and optimizer, operation by operation"""
    return table(kit, "paper-3b.yaml")


def operations_olmoe(kit):
    """Times OLMoE's layer, embedding, head and optimizer, operation by operation"""
    return table(kit, "olmoe-1b-7b.yaml")


def sanitized(kit, tool):
    program = shutil.which("compute-sanitizer") or next(iter(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), None)
    if not program:
        return "not run: there is no compute-sanitizer here"
    said = [
        kit.run(program, "--tool", tool, "--error-exitcode", "3", kit.programs / "test_cuda", twins)
        for twins in kit.sizes.sanitized
    ]
    return code("\n".join(said), 24)


def memcheck(kit):
    """Runs compute-sanitizer memcheck on twins in bf16"""
    return sanitized(kit, "memcheck")


def racecheck(kit):
    """Runs compute-sanitizer racecheck on twins in bf16"""
    return sanitized(kit, "racecheck")


def initcheck(kit):
    """Runs compute-sanitizer initcheck on twins in bf16"""
    return sanitized(kit, "initcheck")


def ncu(kit):
    """Profiles the kernels of the 3B's layer with Nsight Compute, into a file beside the report"""
    program = shutil.which("ncu") or next(iter(glob.glob("/usr/local/cuda*/bin/ncu")), None)
    if not program:
        return "not run: there is no ncu here"
    file = kit.report.with_suffix(".ncu.txt")
    kit.run(
        program,
        "--set",
        "basic",
        "--clock-control",
        "none",
        "--launch-skip",
        "200",
        "--launch-count",
        "220",
        "--log-file",
        file,
        kit.programs / "operations",
        ROOT / "configs/paper-3b.yaml",
        "compute.device=cuda",
        "compute.dtype=bf16",
        *kit.sizes.layer,
        "rounds=1",
    )
    return file.name


def of_python(kit, modules, *words):
    """Returns the output of a Python program, `words`, or a text that a module of `modules` or torch's GPU is missing."""
    try:
        kit.run(kit.python, "-c", f"import {modules}; torch.zeros(1, device='{kit.sizes.torch}')")
    except Failed as failure:
        why = str(failure).splitlines()[-1]
        return f"not run: {kit.python} cannot use {modules} on a GPU ({why}). PYTHON=PROGRAM names another Python"
    return kit.run(kit.python, *words, cwd=ROOT / "python")


def python_tests(kit):
    """Runs python/tests/test_gpu.py"""
    said = of_python(kit, "torch, pytest", "-m", "pytest", "-q", "tests/test_gpu.py")
    return said if said.startswith("not run") else code(said, 15)


def python_bench(kit):
    """Runs python -m couplet.bench --shape olmoe"""
    return of_python(kit, "torch", "-m", "couplet.bench", "--shape", "olmoe" if kit.sizes is Sizes else "small")


def python_pairs(kit):
    """Trains 96 pairs of small models with and without the coupling loss, and decides by experiments/gpu/README.md. It
    goes on from the newest results of an earlier call"""
    tokens, results, home = kit.scratch / "pairs-tokens", kit.report.with_suffix(".pairs"), ROOT / "experiments" / "gpu"
    for name in ("train", "validation"):
        words = ("--tokenizer", ROOT / "data/tokenizer.json", "--out", tokens / name, ROOT / "data" / name)
        kit.couplet("tokenize", "encode", *words)
    words = ["--tokens", tokens, "--out", results, "--minutes", PAIRS_MINUTES, *kit.sizes.pairs]
    earlier = [file for folder in (REPORTS, kit.out) for file in folder.glob("*.pairs/results.json")]
    if earlier and kit.sizes is Sizes:
        words += ["--from", max(earlier, key=lambda file: file.stat().st_mtime)]
    said = of_python(kit, "torch, numpy", home / "pairs.py", *words)
    if said.startswith("not run"):
        return said
    decided = kit.run(kit.python, home / "decide.py", results / "results.json")
    return "\n\n".join((code(said, 30), f"{results.name}/results.json:", code(decided, 30)))


def code(said, lines):
    return "```\n" + "\n".join(said.strip().splitlines()[-lines:]) + "\n```"


# ---- the stages in their order, the most valuable first ----

SECONDS = {  # limits of the stages, seconds
    opens: 25,
    twins: 30,
    gradients: 25,
    steps: 20,
    bits: 10,
    resume: 15,
    operations: 35,
    memcheck: 40,
    large_erc: 190,
    large_vanilla: 160,
    racecheck: 130,
    initcheck: 90,
    operations_olmoe: 60,
    ncu: 90,
    python_pairs: 555,
    python_tests: 180,
    python_bench: 180,
}
PAIRS_MINUTES = 8.7  # This many minutes of python_pairs are for the runs.
SHORT = (opens, twins, gradients, steps, bits, resume, operations, memcheck)
PIECES = {  # name: stages, sources on which they depend
    "short": (SHORT, TRAINER),
    "large": ((large_erc, large_vanilla), TRAINER),
    "python-pairs": ((python_pairs,), PAIRS),
    "rest": ((racecheck, initcheck, operations_olmoe, ncu), TRAINER),
    "python-tests": ((python_tests,), PYTHON),
    "python-bench": ((python_bench,), PYTHON),
}
PARTS = (["short", "large"], ["rest"])  # stages of each call
NAMES = {stage.__name__: stage for stage in SECONDS}


def mark(folders):
    """Returns a hash of the sources: equal for equal files."""
    total = hashlib.sha256()
    for folder in folders:
        path = ROOT / folder
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".so":
                total.update(f"{file.relative_to(ROOT)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def head(piece, kit):
    if kit.sizes is not Sizes:
        lines = ["# The emulation on the host: no GPU", ""]
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    else:
        commit = (PROGRAMS / "commit").read_text()
        name, driver, memory = smi("name", "driver_version", "memory.total")
        library = kit.environment.get("COUPLET_CUBLASLT")
        lines = [
            f"# {name}",
            "",
            f"* Driver: {driver}; memory: {memory} MiB",
            f"* cuBLASLt: {cublaslt_version(library)}",
        ]
    of = mark(PIECES[piece][1] if piece in PIECES else TRAINER) if kit.sizes is Sizes else "emulation"
    return lines + [
        f"* Commit: {commit.strip()}",
        f"* Date: {now():%Y-%m-%d %H:%M} UTC",
        f"* Piece: {piece}; code: {of}",
        "",
    ]


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def append(report, lines):
    with open(report, "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_stage(stage, kit, report):
    """Runs a stage and returns in a word whether it passed. Its lines are in the report when this returns."""
    begin = time.monotonic()
    kit.until = begin + SECONDS[stage] * kit.sizes.slower
    try:
        word, said = "passed", stage(kit)
    except Failed as failure:
        word, said = "FAILED", code(str(failure), 60)
    except Exception as error:  # a fault of this script, or a missing file: the next stage still runs
        word, said = "FAILED", f"{type(error).__name__}: {error}"
    if said.startswith("not run"):
        word = "not run"
    seconds = time.monotonic() - begin
    append(report, [f"## {stage.__name__}: {word}, {seconds:.1f} s", "", stage.__doc__ + ".", "", said.strip(), ""])
    print(f"{seconds:7.1f} s  {stage.__name__}: {word}", flush=True)
    return word


def run_piece(piece, stages, kit):
    """Runs the stages of a piece and returns the exit code. A report never replaces another report."""
    kit.out.mkdir(parents=True, exist_ok=True)
    gpu = re.sub(r"[^a-z0-9]+", "-", smi("name")[0].lower()) if kit.sizes is Sizes else "emulation"
    report = kit.report = kit.out / f"{gpu}-{now():%Y-%m-%d-%H%M%S}-{piece}.md"
    report.touch(exist_ok=False)
    append(report, head(piece, kit))
    words = [run_stage(stage, kit, report) for stage in stages]
    print(f"{report}: " + ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)))
    return 1 if "FAILED" in words else 0 if "passed" in words else 2


def results(report):
    """Returns stage -> passed, FAILED or not run."""
    return dict(re.findall(r"^## (\w+): (passed|FAILED|not run), ", report, re.M))


def out():
    """Returns the folder of the reports of this call."""
    return pathlib.Path(os.environ.get("OUT") or REPORTS)


def reported(piece):
    """Returns whether a report of the present code has every stage of the piece, of which at least one could run."""
    stages, sources = PIECES[piece]
    line = f"* Piece: {piece}; code: {mark(sources)}"
    texts = [file.read_text(encoding="utf-8") for folder in (REPORTS, out()) for file in folder.glob("*.md")]
    found = [results(text) for text in texts if line in text.splitlines()]
    return any(
        set(each.values()) != {"not run"} and each.keys() >= {stage.__name__ for stage in stages} for each in found
    )


def next_piece():
    return next((piece for piece in PIECES if not reported(piece)), None)


def show_list():
    for piece, (stages, _) in PIECES.items():
        said = "a report" if reported(piece) else "no report"
        print(f"{piece}: at most {sum(SECONDS[stage] for stage in stages)} s; {said} of the present code")
        for stage in stages:
            print(f"    {SECONDS[stage]:4} s  {stage.__name__}: {stage.__doc__}")


def refuse(sentence):
    print(sentence, file=sys.stderr)
    sys.exit(2)


def chosen(arguments):
    """Returns the names of pieces, each with its stages."""
    names = [name for name in (arguments.only or "").split(",") if name]
    wrong = [name for name in (*names, arguments.begin) if name and name not in NAMES]
    if wrong or arguments.only is not None and not names:
        refuse(f"there is no stage {', '.join(wrong) or repr('')}; stages: {', '.join(NAMES)}")
    if names:
        return {"stages": [NAMES[name] for name in names]}
    if arguments.begin:
        every = [stage for piece in sum(PARTS, []) for stage in PIECES[piece][0]]
        if NAMES[arguments.begin] not in every:
            every = [NAMES[arguments.begin]]
        return {"stages": every[every.index(NAMES[arguments.begin]) :]}
    pieces = ["short"] if arguments.short else PARTS[arguments.part - 1] if arguments.part else sum(PARTS, [])
    if arguments.next:
        pieces = [piece for piece in [next_piece()] if piece]
    return {piece: PIECES[piece][0] for piece in pieces}


def programs_of(arguments):
    """Returns the folder of the programs, which must be built from the present code."""
    if arguments.on_host:
        return arguments.on_host.resolve()
    made = PROGRAMS / "code"
    if not ARCHIVE.exists():
        refuse("build/couplet-device.tar.xz is missing: make it with `make device-bundle`, where nvcc is")
    if not made.exists() or made.stat().st_mtime < ARCHIVE.stat().st_mtime:
        shutil.rmtree(PROGRAMS, ignore_errors=True)
        shutil.unpack_archive(ARCHIVE, PROGRAMS.parent)
        made.touch()
    if made.read_text().strip() != mark(BUILT):
        refuse(
            "build/couplet-device.tar.xz was made of other sources, or with the emulation: make it again with `make "
            "device-bundle`"
        )
    return PROGRAMS / "bin"


def has_gpu():
    if not shutil.which("nvidia-smi"):
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.startswith("GPU ")


def main():
    parser = argparse.ArgumentParser(
        prog="tools/device.sh",
        description=__doc__.split(": ", maxsplit=1)[1],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="the most valuable stages, 200 s at most")
    which.add_argument("--part", type=int, choices=(1, 2), help="a part of the stages of the trainer, 560 s at most")
    which.add_argument("--only", metavar="STAGE,..", help="these stages")
    which.add_argument("--from", dest="begin", metavar="STAGE", help="this stage and those behind it, 920 s at most")
    which.add_argument("--next", action="store_true", help="the first piece without a report of the present code")
    which.add_argument("--list", action="store_true", help="prints pieces and stages with their lengths")
    which.add_argument("--code", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--on-host", type=pathlib.Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list or arguments.code:
        print(mark(BUILT)) if arguments.code else show_list()
        return 0
    pieces = chosen(arguments)
    if not pieces:
        print(f"every piece has a report of the present code in bench/device{' or OUT' * ('OUT' in os.environ)}")
        return 0
    if not arguments.on_host and not has_gpu():
        refuse(
            "There is no NVIDIA GPU here: nvidia-smi is missing or lists none. tools/device.sh tests the CUDA backend on a "
            "machine with one."
        )
    with tempfile.TemporaryDirectory(prefix="couplet-device-") as scratch:
        kit = Kit(
            programs_of(arguments), OnHost if arguments.on_host else Sizes, out().resolve(), pathlib.Path(scratch)
        )
        codes = [run_piece(piece, stages, kit) for piece, stages in pieces.items()]
    return 1 if 1 in codes else 0 if 0 in codes else 2


if __name__ == "__main__":
    sys.exit(main())
