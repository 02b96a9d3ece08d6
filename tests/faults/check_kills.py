#!/usr/bin/env python3
"""check_kills.py COUPLET FAULTS.so [--kills N] [--jobs N] [--seed N]: runs, encodings and evaluations that get a signal
at a random moment. After each signal the command is resumed, and the results must be those of an undisturbed run, bit
for bit. FAULTS.so makes no call fail here: it makes the clock run faster."""

import argparse
import collections
import concurrent.futures
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from cases import long_cases
from check_faults import references_of, scratch
from inputs import different, litter
from program import Tried, count_wrong, markdown
from shim import LIMIT_SECONDS, Program, shell_code

SENT = {  # name -> signals, in order
    "KILL": (signal.SIGKILL,),
    "TERM": (signal.SIGTERM,),
    "INT": (signal.SIGINT,),
    "TERM twice": (signal.SIGTERM, signal.SIGTERM),
    "STOP, CONT": (signal.SIGSTOP, signal.SIGCONT),
    "STOP, KILL": (signal.SIGSTOP, signal.SIGKILL),
}
ENDS = {"KILL": (137,), "TERM": (143,), "INT": (130,), "TERM twice": (143,), "STOP, CONT": (), "STOP, KILL": (137,)}


class Kill(Tried):
    """A process, and a kind of signal after a number of seconds."""

    def __init__(self, program, case, reference, sort, seconds):
        self.program, self.case, self.reference = program, case, reference
        self.sort, self.seconds = sort, seconds
        self.wrong, self.came_late = [], False

    def disturb(self, folder):
        """Returns the exit code and the output."""
        process = self.program.start(self.case.words, folder)
        try:
            process.communicate(self.case.stdin, timeout=self.seconds)
        except subprocess.TimeoutExpired:
            for number in SENT[self.sort]:
                process.send_signal(number)
                time.sleep(0.002)
        self.came_late = process.poll() == 0
        try:
            _, err = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate()
            self.wrong.append("it hangs after the signal")
        return shell_code(process.returncode), err.decode(errors="replace")

    def run(self, place):
        folder = pathlib.Path(tempfile.mkdtemp(dir=place))
        try:
            self.case.prepare(folder)
            code, err = self.disturb(folder)
            self.check(code in (0, *ENDS[self.sort]), f"exit {code}: {err[-300:]!r}")
            half = self.case.half_written(folder, self.reference.results)
            self.check(not half, f"half-written: {', '.join(half)}")
            if self.sort in ("TERM", "INT"):  # a second signal does not wait for the removal of files either
                self.check(
                    code not in (130, 143) or self.case.name != "train" or not litter(folder / "R"),
                    f"left over: {litter(folder)}",
                )
            if code == 137:
                self.wrong += self.case.after_kill(self.program, folder, self.reference.results)
            self.finish(folder, code)
        finally:
            shutil.rmtree(folder)
        return self

    def finish(self, folder, code):
        if code or self.case.name == "train":
            words = self.case.go_on(folder, self.reference.overwriting)
            outcome = self.program.run(words, folder, stdin=self.case.stdin)
            self.check(outcome.code == 0, f"going on: exit {outcome.code}: {outcome.err[-300:]!r}")
        names = different(self.case.results_of(folder), self.reference.results)
        self.check(not names, f"{', '.join(names)} differ")

    def sentence(self):
        return f"{self.case.name}, {self.sort} after {self.seconds:.4f} s: " + "; ".join(self.wrong)


def seconds_of(program, case, place):
    """Returns the seconds that the case takes without a signal."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=place))
    case.prepare(folder)
    start = time.monotonic()
    program.run(case.words, folder, stdin=case.stdin)
    seconds = time.monotonic() - start
    shutil.rmtree(folder)
    return seconds


def plan(program, cases, references, count, seed, place):
    numbers = random.Random(seed)
    length = [min(seconds_of(program, case, place) for _ in range(3)) for case in cases]
    chosen = []
    for i in range(count):
        which = i % len(cases)
        sort = numbers.choice(sorted(SENT))
        chosen.append(Kill(program, cases[which], references[which], sort, numbers.uniform(0, 1.1 * length[which])))
    return chosen


def table(kills, cases):
    rows = []
    for name in [case.name for case in cases] + ["all"]:
        of = [kill for kill in kills if name in ("all", kill.case.name)]
        counts = collections.Counter(kill.sort for kill in of)
        late = sum(kill.came_late for kill in of)
        rows.append([name, *(counts[sort] for sort in SENT), len(of), late, count_wrong(of)])
    return markdown(["verb", *SENT, "all", "of these after its end", "failed"], rows)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("shim")
    words.add_argument("--kills", type=int, default=12)
    words.add_argument("--jobs", type=int, default=1)
    words.add_argument("--seed", type=int, default=1)
    words = words.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # otherwise programs may inherit an ignored signal
    with tempfile.TemporaryDirectory(dir=scratch()) as place:
        place = pathlib.Path(place)
        program = Program(words.program, words.shim, threads=2)
        cases = long_cases(program, place / "inputs")
        references = references_of(program, cases, place)
        kills = plan(program, cases, references, words.kills, words.seed, place)
        with concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
            for kill in pool.map(lambda one: one.run(place), kills):
                if kill.wrong:
                    print(kill.sentence(), flush=True)
    print(table(kills, cases))
    failed = count_wrong(kills)
    print(f"{len(kills)} kills, {len(kills) - failed} equal ends, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
