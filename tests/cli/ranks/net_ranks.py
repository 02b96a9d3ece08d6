#!/usr/bin/env python3
"""net_ranks.py COUPLET [--pairs N] [--steps N]: two ranks on two hosts joined by a link of 1 Gbit/s and 1 ms
(slow_link.py), over TCP, with each MPI library that is installed. The link changes no bit. When it is cut, all ranks
end in time and the run is resumed to equal bits. Heartbeats find rank 0 over IPv6 alone, and beside addresses that
cannot be reached. Then N pairs of runs with and without overlap are timed on links of each rate of RATES: the medians
of their step times are printed, and no time is a failure.
Without root or namespaces it prints the reason and exits with 77."""

import argparse
import os
import shutil
import signal
import statistics
import sys

sys.path.append("tests/cli")
import slow_link
from inputs import different, files_of, metrics
from program import check, finish, scratch_folder, sets, wait_until
from ranks_case import LIBRARIES, Ranks, files_of_run, is_running, sentences
from train_case import write_corpus

STEPS, SAVED, TIMEOUT = 40, 4, 5
SETTINGS = (
    f"train.steps={STEPS}",
    "compute.threads=1",
    "eval.every=0",
    f"checkpoint.every={SAVED}",
    "checkpoint.keep=100",
)
MESHES = (1, 2)  # dist.expert_parallel
IN_TIME = TIMEOUT + 1 + 5 + 2  # seconds: the timeout, a beat, the grace of a rank, a loaded machine

# 29 M parameters: gradients and parameters take 0.5 s each on a link of 1 Gbit/s, the backward pass about as long.
RATES = (1000, 250)  # Mbit/s
LARGE = (
    "model.hidden_size=512 model.intermediate_size=512 model.num_hidden_layers=4 model.num_attention_heads=8 "
    "model.num_experts=8 data.seq_len=64 data.batch_tokens=2048 compute.threads=1 eval.every=0 checkpoint.every=1000"
).split()


def words_of(folder, run, experts, *more):
    settings = sets(*SETTINGS, f"dist.timeout={TIMEOUT}", f"dist.expert_parallel={experts}", *more)
    return ["train", folder / "c.yaml", "--out", run, *settings]


def over(link, library, *words):
    return Ranks(library, 2, *words, command=link.command_of, **slow_link.ENVIRONMENT)


def ended(job, limit=120):
    code, said = job.end(limit)
    check(code == 0 and not sentences(said), f"{job.name}: exit {code}: {said[-2000:]}")


def undisturbed(folder, library, experts):
    """Returns the run of two ranks on one host."""
    return folder / f"near-{library}-{experts}"


def check_same(folder, library, experts, run):
    if not (run / "metrics.jsonl").exists():
        return check(False, f"{run.name}: there is no run")
    names = different(files_of_run(run), files_of_run(undisturbed(folder, library, experts)))
    names = [name for name in names if name != "config.yaml"]  # dist.overlap
    return check(not names, f"{run.name}: differs from ranks on one host in {names}")


# ---- the link changes no bit ----


def check_bits(folder, link, library, experts, overlap="true"):
    run = folder / f"far{link.family}-{library}-{experts}-{overlap}"
    ended(over(link, library, *words_of(folder, run, experts, f"dist.overlap={overlap}")))
    check_same(folder, library, experts, run)


def check_far_addresses(folder, link, library):
    """Rank 0 has two more addresses, which come first and which no frame of the other host reaches."""
    slow_link.ip("link", "add", "far0", "type", "veth", "peer", "name", "far1", host=slow_link.HOSTS[0])
    for i in (0, 1):
        slow_link.ip("address", "add", f"10.78.{i}.1/24", "dev", f"far{i}", host=slow_link.HOSTS[0])
        slow_link.ip("link", "set", f"far{i}", "up", host=slow_link.HOSTS[0])
        slow_link.ip("route", "add", f"10.78.{i}.0/24", "via", f"10.77.0.{9 + i}", host=slow_link.HOSTS[1])
    run = folder / f"addresses-{library}"
    ended(over(link, library, *words_of(folder, run, 1)))
    check_same(folder, library, 1, run)
    slow_link.ip("link", "delete", "far0", host=slow_link.HOSTS[0])


# ---- the link is cut ----


def end_of_cut(job):
    """Returns the output of a cut run. All ranks must end in time. A launcher may wait for its helper on the other host
    for as long as TCP tries to reach it: the launcher is killed."""
    ranks = [rank for rank in (job.rank(0), job.rank(1)) if rank is not None]
    check(len(ranks) == 2, f"{job.name}: {len(ranks)} ranks at the cut")
    check(
        wait_until(lambda: not any(map(is_running, ranks)), seconds=IN_TIME), f"{job.name}: not ended after {IN_TIME} s"
    )
    for process in job.all():
        os.kill(process, signal.SIGKILL)
    return "".join(job.process.communicate())


def check_cut(folder, link, library, experts, how):
    run = folder / f"{how}-{library}-{experts}"
    job = over(link, library, *words_of(folder, run, experts))
    job.wait_for(lambda: (run / "last").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") > SAVED)
    made = len(metrics(run))
    slow_link.CUTS[how](link, True)
    said = end_of_cut(job)
    found = sentences(said)
    check(
        any(
            "rank 1 (host couplet-net-2, " in line and f"was lost: nothing was heard of it for {TIMEOUT} s" in line
            for line in found
        ),
        f"{job.name}: {how}: {said[-2000:]}",
    )
    check(len(metrics(run)) <= made + 2 and made + 2 < STEPS, f"{job.name}: {how}: the cut stops no step")
    name = os.readlink(run / "last")
    names = different(files_of(run / name), files_of(undisturbed(folder, library, experts) / name))
    check(not names, f"{job.name}: {how}: {name} is not whole: {names}")
    slow_link.CUTS[how](link, False)
    ended(over(link, library, "train", "--resume", run))
    check_same(folder, library, experts, run)


# ---- overlap ----


def measured(folder, link, experts, steps, overlap):
    """Returns (median seconds of a step without the first, the run's losses). link None: on one host, by shared
    memory."""
    run = folder / "measured"
    settings = sets(*LARGE, f"train.steps={steps}", f"dist.expert_parallel={experts}", f"dist.overlap={overlap}")
    words = ["train", folder / "c.yaml", "--out", run, *settings]
    ended(over(link, LIBRARIES[0], *words) if link else Ranks(LIBRARIES[0], 2, *words), 600)
    seconds = statistics.median(line["step_s"] for line in metrics(run)[1:])
    files = files_of(run / "last")
    shutil.rmtree(run)
    return seconds, {name: files[name] for name in files if name.endswith(".safetensors")}


def measure(folder, link, experts, pairs, steps):
    """Measures a row of the table: medians over the pairs."""
    near_s, bits = measured(folder, None, experts, steps, "true")
    seconds, ratios = {"true": [], "false": []}, []
    for pair in range(pairs):
        for overlap in ("true", "false") if pair % 2 else ("false", "true"):
            took, got = measured(folder, link, experts, steps, overlap)
            seconds[overlap].append(took)
            check(got == bits, f"expert_parallel {experts}, overlap {overlap}: other weights than on one host")
        ratios.append(seconds["false"][-1] / seconds["true"][-1])
    return (
        f"{experts} | {near_s:.2f} s | {statistics.median(seconds['false']):.2f} s | "
        f"{statistics.median(seconds['true']):.2f} s | {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {sum(ratio > 1 for ratio in ratios)} of {pairs} |"
    )


def check_library(folder, library):
    for experts in MESHES:
        ended(Ranks(library, 2, *words_of(folder, undisturbed(folder, library, experts), experts)))
    with slow_link.Link(folder) as link:
        for experts in MESHES:
            for overlap in ("true", "false"):
                check_bits(folder, link, library, experts, overlap)
            check_cut(folder, link, library, experts, "lost")
        check_cut(folder, link, library, 2, "down")
        check_far_addresses(folder, link, library)
    if library == "openmpi":  # mpirun of MPICH 4.0 needs IPv4
        with slow_link.Link(folder, family=6) as link:
            check_bits(folder, link, library, 1)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("--pairs", type=int, default=0)
    words.add_argument("--steps", type=int, default=5)
    words = words.parse_args()
    if not LIBRARIES:
        sys.exit(f"there is no MPI module beside {words.program}")
    why = slow_link.missing()
    if why:
        print(f"not run: {why}")
        return 77
    with scratch_folder() as folder:
        write_corpus(folder)
        for library in LIBRARIES:
            check_library(folder, library)
        if words.pairs:
            print("| Mbit/s | expert_parallel | one host | overlap off | overlap on | off / on (all), how often > 1 |")
            print("|---|---|---|---|---|---|")
            for rate in RATES:
                with slow_link.Link(folder, rate=rate * 125e3) as link:
                    for experts in MESHES:
                        print(f"| {rate} | {measure(folder, link, experts, words.pairs, words.steps)}", flush=True)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
