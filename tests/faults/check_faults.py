#!/usr/bin/env python3
"""check_faults.py COUPLET FAULTS.so [--all | --sample N] [--share K] [--memory-share K] [--only VERB,...] [--fault
NAME,...] [--jobs N]: every verb with its n-th call failing, cut short or killed, and the results. After each fault the
verb is resumed, and the results must be those of an undisturbed run, bit for bit.

--sample takes N of all (verb, fault, n), equal in every run. --all takes all of them, or every K-th call and
allocation. --memory-share 0 takes allocations by their stacks of calls. COUPLET is built without sanitizers, which have
their own malloc."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile

from cases import all_cases
from inputs import different, litter
from program import Tried, count_wrong, markdown
from shim import FAULTS, KILLED, STOPPED, UNAVAILABLE, Program

SHOWN, SHOWN_BYTES = 100, 600  # number of sentences about faults, and bytes of each


def scratch():
    """Returns a folder in memory, or None if the system has no such folder. Trials do not depend on the disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclasses.dataclass
class Reference:
    """The results of a case without faults."""

    results: dict
    out: bytes
    warnings: list
    overwriting: list  # words that let a verb overwrite


def reference_of(program, case, folder):
    case.prepare(folder)
    outcome = program.run(case.words, folder, stdin=case.stdin)
    if outcome.code:
        sys.exit(f"couplet {' '.join(map(str, case.words))}: exit {outcome.code}: {outcome.err}")
    verb = case.words[:2] if case.words[0] == "tokenize" else case.words[:1]
    help_text = program.run([*verb, "--help"], folder).out.decode()
    overwriting = ["--overwrite"] if "--overwrite" in help_text else []
    return Reference(case.results_of(folder), outcome.out, outcome.warnings(), overwriting)


def references_of(program, cases, place):
    for case in cases:
        (place / case.name).mkdir()
    return [reference_of(program, case, place / case.name) for case in cases]


# ---- one trial ----


class Trial(Tried):
    def __init__(self, program, case, reference, fault, at):
        self.program, self.case, self.reference = program, case, reference
        self.fault, self.at, self.wrong, self.where = fault, at, [], ""

    def check_results(self, folder, out, when):
        names = different(self.case.results_of(folder), self.reference.results)
        self.check(not names, f"{when}, but {', '.join(names)} differ")
        if self.case.printed:
            self.check(out == self.reference.out, f"{when}, but the standard output differs")

    def check_outcome(self, outcome, folder, before):
        """Judges the end of the program that had the fault. `before`: the files that a kill had left there."""
        self.check(not outcome.hung, "it hangs")
        if self.fault.kills and outcome.fired:
            self.check(outcome.code == KILLED, f"exit {outcome.code} after a kill")
        elif outcome.code in STOPPED:
            self.check(self.fault.how == "TERM", f"exit {outcome.code} without a signal")
        elif outcome.code == 0:
            if not set(outcome.warnings()) - set(self.reference.warnings):
                self.check_results_present(folder, outcome.out)
        else:
            self.check(outcome.code in (1, 2), f"exit {outcome.code}: {outcome.err[-300:]!r}")
            self.check(
                len(outcome.sentences()) == 1 and outcome.err.rstrip().splitlines()[-1:] == outcome.sentences(),
                f"stderr must end with exactly one error sentence, but is {outcome.err[-300:]!r}",
            )
            left = sorted(set(litter(folder)) - set(before))
            self.check(not left, f"left over: {left}")
        half = self.case.half_written(folder, self.reference.results)
        said = set(outcome.warnings()) - set(self.reference.warnings)
        self.check(not half or said, f"half-written: {', '.join(half)}")

    def check_results_present(self, folder, out):
        """Compares results after exit code 0. Leftover files are allowed: the next try removes them."""
        there = self.case.results_of(folder)
        lacking = [
            name
            for name in different(there, self.reference.results)
            if name in self.reference.results and name != "number of checkpoints"
        ]
        self.check(not lacking, f"exit 0 without a warning, but {', '.join(lacking)} differ")
        if self.case.printed:
            self.check(out == self.reference.out, "exit 0 without a warning, but the standard output differs")

    def resume_and_check(self, folder):
        """Resumes without faults."""
        words = self.case.go_on(folder, self.reference.overwriting)
        outcome = self.program.run(words, folder, stdin=self.case.stdin)
        self.check(outcome.code == 0, f"resuming: exit {outcome.code}: {outcome.err[-300:]!r}")
        if outcome.code == 0:
            self.check_results(folder, outcome.out, "resumed")

    def run(self, place):
        folder = pathlib.Path(tempfile.mkdtemp(dir=place))
        try:
            self.case.prepare(folder)
            before = litter(folder)
            outcome = self.program.run(self.case.words, folder, self.fault, self.at, self.case.stdin)
            self.where = outcome.place
            self.check_outcome(outcome, folder, before)
            if self.fault.kills:
                self.wrong += self.case.after_kill(self.program, folder, self.reference.results)
            if outcome.code or self.case.name in ("train", "resume"):
                self.resume_and_check(folder)
        finally:
            shutil.rmtree(folder)
        return self

    def sentence(self):
        return f"{self.case.name}, {self.fault.name} at call {self.at} ({self.where}): " + "; ".join(self.wrong)


# ---- all trials ----


def by_stack(path, count):
    """Returns the first, the second and the last allocation of every stack of calls."""
    numbers, places = struct.unpack(f"<{count}Q", path.read_bytes()[: 8 * count]), {}
    for at, number in enumerate(numbers, 1):
        places.setdefault(number, []).append(at)
    return sorted({at for all_of in places.values() for at in (*all_of[:2], all_of[-1])})


def plan(program, cases, references, faults, shares, place):
    """Returns every trial, in a fixed order. `shares` is (step of calls, step of allocations). If the step of
    allocations is 0, allocations are chosen by their stacks of calls."""
    trials = []
    for case, reference in zip(cases, references):
        for fault in faults:
            if fault.only and case.name not in fault.only:
                continue
            folder = pathlib.Path(tempfile.mkdtemp(dir=place))
            case.prepare(folder)
            stacks = place / "stacks" if "memory" in fault.calls and not shares[1] else None
            outcome = program.run(case.words, folder, fault, 0, case.stdin, stacks)
            shutil.rmtree(folder)
            if outcome.code == UNAVAILABLE:
                print(f"not checked here: {outcome.err}")
                sys.exit(UNAVAILABLE)
            step = shares["memory" in fault.calls]
            chosen = range(1, outcome.seen + 1, step) if step else by_stack(stacks, outcome.seen)
            trials += [Trial(program, case, reference, fault, at) for at in chosen]
    return trials


def pick_trials(trials, count):
    """Returns `count` trials, spread evenly over verbs and faults, and equal every time."""
    numbers, groups = random.Random(1), {}
    for trial in trials:
        groups.setdefault((trial.case.name, trial.fault.name), []).append(trial)
    for group in groups.values():
        numbers.shuffle(group)
    chosen, row = [], 0
    while len(chosen) < min(count, len(trials)):
        chosen += [group[row] for group in groups.values() if row < len(group)]
        row += 1
    return chosen[:count]


def table(trials, cases, faults):
    """Returns a table of trials and failures of every verb under every fault."""
    rows = []
    for name in [case.name for case in cases] + ["all"]:
        of = [trial for trial in trials if name in ("all", trial.case.name)]
        counts = [sum(trial.fault is fault for trial in of) for fault in faults]
        rows.append([name, *(n or "" for n in counts), len(of), count_wrong(of)])
    return markdown(["verb", *(fault.name for fault in faults), "all", "failed"], rows)


def run_all(trials, jobs, place):
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for n, trial in enumerate(pool.map(lambda one: one.run(place), trials), 1):
            failed += bool(trial.wrong)
            if trial.wrong and failed <= SHOWN:
                print(trial.sentence()[:SHOWN_BYTES], flush=True)
            if n % 1000 == 0:
                print(f"{n} of {len(trials)} tried, {failed} failed", flush=True)
    return failed


def read_words():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("shim")
    words.add_argument("--all", action="store_true")
    words.add_argument("--sample", type=int, default=100)
    words.add_argument("--share", type=int, default=1)
    words.add_argument("--memory-share", type=int, default=1)
    words.add_argument("--only", default="")
    words.add_argument("--fault", default="")
    words.add_argument("--jobs", type=int, default=1)
    return words.parse_args()


def main():
    words = read_words()
    named = lambda one, names: not names or one.name in names.split(",")
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch())))
        program = Program(words.program, words.shim)
        faults = [fault for fault in FAULTS if named(fault, words.fault)]
        cases = [case for case in all_cases(program, place / "inputs") if named(case, words.only)]
        references = references_of(program, cases, place)
        trials = plan(program, cases, references, faults, (words.share, words.memory_share), place)
        if not words.all:
            trials = pick_trials(trials, words.sample)
        failed = run_all(trials, words.jobs, place)
    print(table(trials, cases, faults))
    print(f"{len(trials)} tried, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
