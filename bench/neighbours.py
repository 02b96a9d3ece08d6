#!/usr/bin/env python3
"""neighbours.py COUPLET [--pairs N] [--neighbours 0,2,4,8] [--steps N] [--spin N]: measures the cost of other work on a
training run's processors, and the cost of the way in which its threads wait.

It trains configs/tiny.yaml in pairs, in turn:

  passive    waiting threads sleep at once (OMP_WAIT_POLICY=passive)
  program    the program's setting (src/cli/main.c), or N turns
  libgomp    libgomp's own default, 300,000 turns

With 0 neighbours the program is compared with libgomp's default, with more neighbours with the passive policy. A
neighbour is a process that never sleeps. For each number of neighbours it prints the medians and the median ratio of
the pairs with its interval of 95 per cent (exact, from order statistics)."""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

POLICIES = {"passive": {"OMP_WAIT_POLICY": "passive"}, "program": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}}


def seconds_of(couplet, policy, steps):
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    } | POLICIES[policy]
    with tempfile.TemporaryDirectory() as folder:
        command = [couplet, "train", "configs/tiny.yaml", "--out", f"{folder}/run"]
        for setting in (f"train.steps={steps}", "train.warmup_steps=1", f"log.every={steps}", "eval.max_sequences=1"):
            command += ["--set", setting]
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.monotonic() - began


def interval(values):
    """Returns the 95 % interval of the median: order statistics of a binomial with chance one half."""
    values, n, below = sorted(values), len(values), 0
    chance = 0.5**n
    while below < n // 2 and chance <= 0.025:
        below += 1
        chance += math.comb(n, below) * 0.5**n
    below = max(below - 1, 0)
    return values[below], values[n - 1 - below]


def compare(couplet, n_neighbours, pairs, steps):
    other = "passive" if n_neighbours else "libgomp"
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_neighbours)]
    times = {"program": [], other: []}
    try:
        for pair in range(pairs):
            order = ("program", other) if pair % 2 else (other, "program")
            for policy in order:
                times[policy].append(seconds_of(couplet, policy, steps))
    finally:
        for process in busy:
            process.kill()
    ratios = [a / b for a, b in zip(times["program"], times[other])]
    low, high = interval(ratios)
    print(
        f"{n_neighbours:2d} neighbours  program {statistics.median(times['program']):7.2f} s  "
        f"{other} {statistics.median(times[other]):7.2f} s  ratio {statistics.median(ratios):.3f} "
        f"({low:.3f} to {high:.3f}, {pairs} pairs)",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("couplet")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--neighbours", default="0,2,4,8")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--spin", help="turns of libgomp's waiting loop in place of the program's")
    options = parser.parse_args()
    if options.spin:
        POLICIES["program"] = {"GOMP_SPINCOUNT": options.spin}
    for n in options.neighbours.split(","):
        compare(options.couplet, int(n), options.pairs, options.steps)


main()
