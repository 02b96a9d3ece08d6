#!/usr/bin/env python3
"""check_ranks.py COUPLET TRAIN_THREADS: training over ranks with each MPI library that is installed. It gives the
losses of one process, and equal bits when repeated. A run that is stopped, killed or out of disk is resumed to the bits
of an undisturbed run. Each refusal is one sentence."""

import concurrent.futures
import ctypes
import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import threading
import time

sys.path.append("tests/cli")
from inputs import different, files_of, metrics, read_json
from program import COUPLET, capture, check, finish, near, scratch_folder, sets
from program import good as alone
from ranks_case import LIBRARIES, Ranks, bad, check_parts, files_of_run, good, sentences
from train_case import copy_of, go_back, write_corpus

STEPS = 16
SAVED = 2  # steps between checkpoints
SETTINGS = (
    f"train.steps={STEPS} compute.threads=1 balance.scope=global eval.every=0 checkpoint.every={SAVED} "
    "checkpoint.keep=100 dist.timeout=3"
).split()
MESHES = (1, 2)  # dist.expert_parallel of two ranks
CLOSE = 1e-5
AFTER_LOSS = 15  # seconds until all must have ended: dist.timeout, 5 s in which each ends by itself, and a margin
OTHER = {"openmpi": "mpich", "mpich": "openmpi"}


def words_of(folder, run, experts, *more):
    return ["train", folder / "c.yaml", "--out", run, *sets(*SETTINGS, f"dist.expert_parallel={experts}", *more)]


def start(folder, library, run, experts, *more, **how):
    return Ranks(library, 2, *words_of(folder, run, experts, *more), **how)


def undisturbed(folder, library, experts):
    return folder / f"{library}-{experts}"


# ---- equal models ----


def check_tasks(folder, library):
    """eval.tasks are shared over the ranks, also if the experts are divided. Rank 0 continues eval.prompts."""
    tasks = sets(
        *(
            "train.steps=4 eval.tasks=copa eval.tasks_every=2 eval.tasks_limit=20 "
            "eval.prompts=abc eval.prompt_tokens=4 model.max_position_embeddings=256"
        ).split()
    )
    found, texts = {}, {}
    for experts in MESHES:
        run = folder / f"tasks-{library}-{experts}"
        good(library, 2, *words_of(folder, run, experts), *tasks)
        found[experts] = [line["tasks"]["copa"] for line in metrics(run) if "tasks" in line]
        texts[experts] = [line["samples"] for line in metrics(run) if "samples" in line]
    one = folder / f"tasks-{library}"
    alone("train", folder / "c.yaml", "--out", one, *sets(*SETTINGS), *tasks)
    want = [line["tasks"]["copa"] for line in metrics(one) if "tasks" in line]
    samples = [line["samples"] for line in metrics(one) if "samples" in line]
    for experts, got in texts.items():
        check(got == samples and len(got) == 2, f"{library}, expert_parallel {experts}: samples {got}, alone {samples}")
    for experts, got in found.items():
        check(len(got) == len(want) == 2, f"{library}: tasks evaluated {len(got)} times, not {len(want)}")
        for a, b in zip(got, want):
            check(a.keys() == b.keys(), f"{library}: metrics {a.keys()}")
            for name in ("bpb", "ce_loss"):
                near(a[name], b[name], CLOSE, f"{library}, expert_parallel {experts}: {name} of copa")


def check_losses(run, one, what):
    pairs = list(zip(metrics(run), metrics(one)))[:3]
    check(len(pairs) == 3, f"{what}: {len(pairs)} lines of metrics")
    for got, want in pairs:
        for name in ("loss", "loss_total", "erc", "balance", "z"):
            near(got[name], want[name], CLOSE, f"{what}: {name} of step {got['step']}")


def check_run(folder, library, experts):
    """Checks a run, its output, and the programs that can read its checkpoints."""
    what, run = f"{library}, expert_parallel {experts}", undisturbed(folder, library, experts)
    said = good(library, 2, *words_of(folder, run, experts))
    check(
        said.count("the run is") == 1 and said.count(f"step {STEPS} saved") == 1 and "of 2 ranks" in said,
        f"{what}: rank 0 alone speaks: {said}",
    )
    check_losses(run, folder / "one", what)
    for step in sorted(run.glob("step-*")):
        check_parts(step, 2, f"{what}: {step.name}")
    alone("generate", run, "--prompt", "abc", "--tokens", 2, *sets("compute.threads=1"))


def check_threads(folder, library, experts):
    """Ranks as threads of one process give the bits of MPI processes."""
    run, mpi_run = folder / f"threads-{library}-{experts}", undisturbed(folder, library, experts)
    done = capture([sys.argv[2], mpi_run / "config.yaml", run, "2"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    check(done.returncode == 0, f"{run.name}: {done.stderr}")
    names = different(files_of_run(run), files_of_run(mpi_run))
    check(not names, f"{run.name}: differs from MPI processes in {names}")


def check_one_goes_on(folder, library, experts):
    """One process resumes a run of two ranks: with their weights and moments, and then with its own."""
    run = go_back(copy_of(undisturbed(folder, library, experts), f"alone-{library}-{experts}"), STEPS - SAVED)
    what = f"one process after {run.name}"
    alone("train", "--resume", run, *sets("dist.expert_parallel=1"))
    got, want = metrics(run), metrics(undisturbed(folder, library, experts))
    check(len(got) == len(want), f"{what}: {len(got)} steps")
    near(got[-SAVED]["loss"], want[-SAVED]["loss"], CLOSE, f"{what}: its first loss")
    check((run / "last" / "model.safetensors").exists(), f"{what}: it saves one file")


def check_same(folder, library, experts, run, but=()):
    """Checks that a run equals the undisturbed one, bit for bit."""
    want = files_of_run(undisturbed(folder, library, experts))
    names = different(files_of_run(run, but), want)
    check(not names, f"{run.name}: differs from the undisturbed run in {names}")


def check_libraries(folder):
    for experts in MESHES:
        for library in LIBRARIES[1:]:
            check_same(folder, LIBRARIES[0], experts, undisturbed(folder, library, experts))


# ---- disturbed ----


def begin(folder, library, experts, name):
    """Starts a run that has made some steps and saved some of them."""
    run = folder / f"{name}-{library}"
    job = start(folder, library, run, experts)
    job.wait_for(lambda: (run / "last").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") > SAVED)
    return run, job


def check_last(folder, library, experts, run):
    """Checks that `last` is the checkpoint that the undisturbed run has saved at that step."""
    name = os.readlink(run / "last")
    names = different(files_of(run / name), files_of(undisturbed(folder, library, experts) / name))
    check(not names, f"{run.name}: {name} is not whole: {names}")


def go_on(folder, library, experts, run, but=()):
    check(len(metrics(run)) < STEPS, f"{run.name}: it was disturbed too late")
    good(library, 2, "train", "--resume", run)
    check_same(folder, library, experts, run, but)


def check_signal(folder, library, experts, number, rank):
    """After a signal all ranks save one step."""
    run, job = begin(folder, library, experts, f"signal-{number}")
    job.send(number, rank)
    code, said = job.end()
    steps = {line["step"] for line in metrics(run)}
    said_so = f"stopped after step {max(steps)}; everything is saved; go on with: couplet train --resume {run}"
    # mpirun of MPICH 4.0 now and then loses the code of its ranks when it gets a signal itself.
    codes = (128 + signal.SIGTERM, 0) if library == "mpich" and rank is None else (128 + signal.SIGTERM,)
    check(code in codes, f"{job.name}: signal {number}: exit {code}: {said}")
    check(sentences(said) == [f"couplet: {said_so}"], f"{job.name}: signal {number}: {said}")
    name = os.readlink(run / "last")
    check(name == f"step-{max(steps):06d}", f"{job.name}: `last` is {name}, stopped after {max(steps)}")
    check_parts(run / "last", 2, run.name)
    go_on(folder, library, experts, run, [name] if max(steps) % SAVED else [])


def check_lost(folder, library, experts, number, rank):
    run, job = begin(folder, library, experts, f"lost-{number}-{rank}")
    job.send(number, rank)
    code, said = job.end(AFTER_LOSS)
    found = sentences(said)
    check(code != 0, f"{job.name}: signal {number}: exit {code}")
    check(len(found) < 2 and (found or number != signal.SIGSTOP), f"{job.name}: signal {number}: {said}")
    check(all(f"rank {rank} " in line and "was lost" in line for line in found), f"{job.name}: {found}")
    check_last(folder, library, experts, run)
    go_on(folder, library, experts, run)


class Held:
    """A process whose first thread is stopped while its other threads run. It is stopped in the code of the program: a
    thread stopped in the MPI library may hold a lock that other ranks need to find out whether a message came."""

    SEIZE, INTERRUPT, CONTINUE, ALL_CHILDREN = 0x4206, 0x4207, 7, 0x40000000  # constants of ptrace and waitpid

    def __init__(self, process):
        self.process, self.system = process, ctypes.CDLL(None, use_errno=True)
        self.works = self.ask(self.SEIZE) and any(self.stop() for _ in range(5000))
        threading.Thread(target=self.reap, daemon=True).start()

    def ask(self, request):
        return self.system.ptrace(request, self.process, None, None) == 0

    def stop(self):
        """Stops the thread. Returns whether it is in the program. Elsewhere it continues."""
        self.ask(self.INTERRUPT)
        os.waitpid(self.process, self.ALL_CHILDREN)
        if self.is_in_program():
            return True
        self.ask(self.CONTINUE)
        time.sleep(0.001)
        return False

    def is_in_program(self):
        proc = pathlib.Path("/proc", str(self.process))
        place = int((proc / "syscall").read_text().split()[-1], 16)
        for line in (proc / "maps").read_text().splitlines():
            ends, *_, file = line.split()
            low, high = (int(end, 16) for end in ends.split("-"))
            if low <= place < high:
                return file == os.path.realpath(COUPLET)
        return False

    def reap(self):
        """Reaps the process. Its parent sees its end after us."""
        try:
            while not any(f(os.waitpid(self.process, self.ALL_CHILDREN)[1]) for f in (os.WIFEXITED, os.WIFSIGNALED)):
                pass
        except ChildProcessError:
            pass


def check_hang(folder, library):
    """The computing thread of rank 1 hangs in a step, while its heartbeats go on. On a busy machine a step may have
    taken seconds, and the others wait five times the longest step."""
    run = folder / f"hangs-{library}"
    job = start(folder, library, run, 1, "train.steps=1000000", "checkpoint.every=0", "log.every=50")
    job.wait_for(lambda: count_lines(run) > 1)
    held = Held(job.rank(1))
    job.since = time.monotonic()
    code, said = job.end(4 * AFTER_LOSS)
    found = sentences(said)
    check(held.works, f"{library}: the thread cannot be held")
    check(
        code != 0
        and len(found) == 1
        and "rank 1 (" in found[0]
        and re.search(r"hangs: the other ranks waited \d+(\.\d+)? seconds for it in a step", found[0]),
        f"{library}: exit {code}: {found}",
    )


def count_lines(run):
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def check_full_disk(folder, library, experts):
    """A limit on the size of files replaces a full disk."""
    run, job = begin(folder, library, experts, "full")
    resource.prlimit(job.rank(1), resource.RLIMIT_FSIZE, (1000, 1000))
    bad(1, ["rank 1: ", "File too large"], job)
    check_last(folder, library, experts, run)
    check(not list(run.glob(".tmp-*")), f"{run.name}: left behind: {list(run.glob('.tmp-*'))}")
    go_on(folder, library, experts, run)


def check_early_stop(folder, library):
    """A signal to one rank before the first step ends all ranks."""
    run = folder / f"early-{library}"
    job = start(folder, library, run, 2, "eval.max_sequences=1000")
    job.wait_for((run / "config.yaml").exists)
    job.send(signal.SIGTERM, 1)
    code, said = job.end()
    check(code == 143 and len(sentences(said)) <= 1, f"{job.name}: stopped early: exit {code}: {said}")


# ---- refused ----


def check_parts_differ(folder, library, new):
    """Ranks that were started with different words."""
    words, there = words_of(folder, new, 1), undisturbed(folder, library, 1)
    from_step = [[*words, "--from", there / name] for name in ("step-000002", "step-000004")]
    for one, other, sentence in (
        (
            ["train", "--resume", there],
            ["train", "--resume", folder / "elsewhere"],
            f"rank 1: {folder / 'elsewhere'} on {os.uname().nodename} is not the folder that rank 0 has made",
        ),
        (*from_step, "rank 1: the fingerprint of the initial weights (--from) is "),
        (from_step[0], words, "rank 1: the fingerprint of the initial weights (--from) is none, but "),
        (
            ["train", "--resume", there],
            words,
            "rank 1: whether a run is resumed (--resume) is false, but true on rank 0",
        ),
        ([*words, *sets("eval.tasks=[arc_challenge]")], words, 'rank 1: eval.tasks is [], but ["arc_challenge"]'),
    ):
        bad(1, [sentence], Ranks(library, 2, parts=[(1, [COUPLET, *one]), (1, [COUPLET, *other])]))
    if read_json(there / "start.json")["made_with"]["kernels"] != "v2":
        bad(
            1,
            ["rank 1: onednn is ", " on rank 0"],
            Ranks(library, 2, parts=[(1, [COUPLET, *words]), (1, ["env", "COUPLET_ISA=v2", COUPLET, *words])]),
        )


def check_settings(folder, library):
    new = folder / f"refused-{library}"
    bad(1, ["dist.expert_parallel", "3", "number of ranks, 2", "num_experts, 4"], start(folder, library, new, 3))
    bad(1, ["dist.expert_parallel", "4", "number of ranks, 2", "num_experts, 4"], start(folder, library, new, 4))
    bad(1, ["data.batch_tokens", "4 sequences", "3 ranks"], Ranks(library, 3, *words_of(folder, new, 1)))
    bad(
        1,
        ["not enough memory: training with these settings needs"],
        start(folder, library, new, 2, "model.hidden_size=524288", "model.intermediate_size=524288"),
    )
    bad(1, ["dist.expert_parallel", "aoe"], start(folder, library, new, 2, "model.router=aoe"))
    two = [(1, [COUPLET, *words_of(folder, new, 1, f"train.lr={lr}")]) for lr in ("1e-2", "2e-2")]
    bad(1, ["rank 1: train.lr is 0.02, but 0.01 on rank 0"], Ranks(library, 2, parts=two))
    bad(1, ["two.jsonl"], start(folder, library, new, 1, f"data.train={folder / 'none' / 'two.jsonl'}"))
    check_parts_differ(folder, library, new)
    bad(
        1,
        ["couplet: 2 steps in a row"],
        start(folder, library, folder / f"skipped-{library}", 1, "z.weight=1e300", "train.max_skipped=2"),
    )
    check(not new.exists(), f"refused: left behind: {list(new.glob('*')) if new.exists() else []}")
    there = undisturbed(folder, library, 1)
    bad(1, ["holds a run already", f"--resume {there}"], start(folder, library, there, 1))


def check_programs(folder, library):
    new, own = folder / f"program-{library}", folder / f"bare-{library}"
    own.mkdir()
    shutil.copy(COUPLET, own / "couplet")
    bad(
        1,
        ["has started 2 processes", f"couplet-mpi-{library}.so"],
        start(folder, library, new, 1, program=own / "couplet"),
    )
    one = [(1, [program, *words_of(folder, new, 1)]) for program in (COUPLET, own / "couplet")]
    bad(1, ["rank 1: ", "has started 2 processes", f"couplet-mpi-{library}.so"], Ranks(library, 2, parts=one))
    if OTHER[library] in LIBRARIES:
        bad(1, ["another MPI library", "COUPLET_MPI"], start(folder, library, new, 1, COUPLET_MPI=OTHER[library]))
    bad(
        2,
        ["couplet generate runs in one process", "has started 2"],
        Ranks(library, 2, "generate", undisturbed(folder, library, 1), "--prompt", "abc"),
    )
    check(not new.exists(), f"{library}: a program that cannot begin has made a folder")


def check_damage(folder, library):
    run = go_back(copy_of(undisturbed(folder, library, 2), f"damaged-{library}"), SAVED)
    part = run / "last" / "model-00002-of-00002.safetensors"
    raw = part.read_bytes()
    part.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    bad(1, [part.name, "check sum"], Ranks(library, 2, "train", "--resume", run))
    part.unlink()
    bad(1, [part.name], Ranks(library, 2, "train", "--resume", run))
    part.write_bytes(raw)
    other = run / "last" / "state-00003-of-00004.safetensors"
    shutil.copy(undisturbed(folder, library, 2) / "last" / other.name, other)
    bad(1, [other.name, "check sum"], Ranks(library, 2, "train", "--resume", run))


def check_library(folder, library):
    for experts in MESHES:
        check_run(folder, library, experts)
        check_threads(folder, library, experts)
    check_one_goes_on(folder, library, 2)
    check_signal(folder, library, 1, signal.SIGUSR1, None)
    check_signal(folder, library, 2, signal.SIGTERM, 1)
    check_early_stop(folder, library)
    check_lost(folder, library, 2, signal.SIGKILL, 0)
    check_lost(folder, library, 1, signal.SIGKILL, 1)
    check_lost(folder, library, 2, signal.SIGSTOP, 1)
    check_lost(folder, library, 1, signal.SIGSTOP, 0)
    check_hang(folder, library)
    check_full_disk(folder, library, 2)
    check_settings(folder, library)
    check_programs(folder, library)
    check_damage(folder, library)


def main():
    if not LIBRARIES:
        return 77
    with scratch_folder() as folder:
        write_corpus(folder)
        alone("train", folder / "c.yaml", "--out", folder / "one", *sets(*SETTINGS))
        with concurrent.futures.ThreadPoolExecutor(len(LIBRARIES)) as pool:
            list(pool.map(lambda library: check_library(folder, library), LIBRARIES))
        check_tasks(folder, LIBRARIES[0])
        check_libraries(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
