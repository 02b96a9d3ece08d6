#!/usr/bin/env python3
"""kill_ranks.py COUPLET [--kills N] [--jobs N] [--seed N]: runs over 2 and 4 ranks of which a random one is killed at a
random moment: while it opens, or at a random time after a random step was saved (every step is saved). After each kill
the others must have ended, `last` must be the undisturbed run's checkpoint of that step, and equal ranks resume to its
bits. Without --seed the seed is a new one, and is printed."""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.append("tests/cli")
import program
from inputs import different, files_of
from program import Tried, count_wrong, markdown, scratch_folder, sets
from ranks_case import LIBRARIES, Ranks, sentences, untimed_lines
from train_case import without_settings, write_corpus

MESHES = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 4))  # ranks, dist.expert_parallel
LIMIT_SECONDS = 30  # seconds in which all must have ended after a kill
KEPT, ALL = 2, 1000


class Runs:
    """Runs with a number of steps and steps between checkpoints, over the corpus of a folder."""

    def __init__(self, folder, steps, every):
        self.folder, self.steps = folder, steps
        self.settings = (
            f"train.steps={steps}",
            "compute.threads=1",
            "eval.every=10",
            f"checkpoint.every={every}",
            "dist.timeout=5",
        )

    def words(self, run, mesh, keep=KEPT):
        settings = sets(*self.settings, f"dist.expert_parallel={mesh[1]}", f"checkpoint.keep={keep}")
        return ["train", self.folder / "c.yaml", "--out", run, *settings]

    def reference(self, mesh):
        return self.folder / f"undisturbed-{mesh[0]}-{mesh[1]}"

    def undisturbed(self, mesh):
        """Makes the undisturbed run, which keeps the checkpoint of every step. Returns seconds until the first
        checkpoint, and of a step."""
        run = self.reference(mesh)
        job = Ranks(LIBRARIES[0], mesh[0], *self.words(run, mesh, ALL), *sets("checkpoint.every=1"))
        times = {}
        while saved_step(run) < self.steps and job.process.poll() is None:
            times.setdefault(saved_step(run), time.monotonic())
            time.sleep(0.001)
        code, said = job.end(10 * LIMIT_SECONDS)
        if code != 0:
            sys.exit(f"{job.name}: exit {code}: {said}")
        opened, last = min(step for step in times if step > 0), max(times)
        return times[opened] - job.since, (times[last] - times[opened]) / max(1, last - opened)


def results_of(run):
    """Returns the data that must be equal in the end: the last checkpoint, and lines without times."""
    last = {f"last/{name}": what for name, what in without_settings(files_of(run / "last")).items()}
    return last | {
        "link": os.readlink(run / "last"),
        "metrics.jsonl": untimed_lines((run / "metrics.jsonl").read_bytes()),
    }


def saved_step(run):
    """Returns the step of the newest checkpoint, or 0 without a checkpoint."""
    try:
        return int(os.readlink(run / "last").removeprefix("step-"))
    except OSError:
        return 0


class Disturbed(Tried):
    """A run that is disturbed and resumed."""

    def __init__(self, runs, library, mesh, rank):
        self.runs, self.library, self.mesh, self.rank = runs, library, mesh, rank
        self.wrong = []

    def check_last(self, run, reference):
        name = os.readlink(run / "last")
        one, other = without_settings(files_of(run / name)), without_settings(files_of(reference / name))
        self.check(one == other, f"{name} is not whole: {different(one, other)}")

    def go_on(self, run):
        begun = (run / "config.yaml").exists()
        words = ["train", "--resume", run] if begun else self.runs.words(run, self.mesh)
        code, said = Ranks(self.library, self.mesh[0], *words).end(10 * LIMIT_SECONDS)
        self.check(code == 0, f"going on: exit {code}: {sentences(said) or said!r}")
        return code == 0

    def run(self):
        reference, place = self.runs.reference(self.mesh), pathlib.Path(tempfile.mkdtemp(dir=self.runs.folder))
        run = place / "R"
        self.disturb(run)
        if (run / "last").is_symlink():
            self.check_last(run, reference)
        if self.go_on(run):
            names = different(results_of(run), results_of(reference))
            self.check(not names, f"{', '.join(names)} differ")
            left = [path.name for path in run.glob(".tmp-*")]
            self.check(not left, f"left over: {left}")
        shutil.rmtree(place)
        return self


class Kill(Disturbed):
    """A kill of one rank of one run, a number of seconds after a step was saved, or for step 0 after the start."""

    def __init__(self, runs, library, mesh, rank, step, seconds):
        super().__init__(runs, library, mesh, rank)
        self.step, self.seconds, self.moment = step, seconds, "?"

    def disturb(self, run):
        job = Ranks(self.library, self.mesh[0], *self.runs.words(run, self.mesh))
        while saved_step(run) < self.step and job.process.poll() is None:
            time.sleep(0.001)
        end = (time.monotonic() if self.step else job.since) + self.seconds
        while time.monotonic() < end and job.process.poll() is None:
            time.sleep(0.001)
        while job.rank(self.rank) is None and job.process.poll() is None:
            time.sleep(0.001)
        job.send(signal.SIGKILL, self.rank)
        self.moment = moment_of(run)
        code, said = job.end(LIMIT_SECONDS)
        if code == 0:
            self.moment = "after its end"
        self.check(len(sentences(said)) < 2, f"it says {sentences(said)}")

    def sentence(self):
        return (
            f"{self.library}, {self.mesh[0]} ranks, expert_parallel {self.mesh[1]}, rank {self.rank} "
            f"{self.seconds:.3f} s after step {self.step} ({self.moment}): " + "; ".join(self.wrong)
        )


MOMENTS = ("before the first checkpoint", "while saving", "between saves", "after its end")


def moment_of(run):
    if (run / ".tmp-step").exists():
        return MOMENTS[1]
    return MOMENTS[2] if (run / "last").is_symlink() else MOMENTS[0]


def plan(runs, count, seed):
    numbers = random.Random(seed)
    length = {mesh: runs.undisturbed(mesh) for mesh in MESHES[:count]}
    for i in range(count):
        mesh = MESHES[i % len(MESHES)]
        opening, of_step = length[mesh]
        step = max(0, numbers.randrange(-4, runs.steps - 1))
        rank, seconds = numbers.randrange(mesh[0]), numbers.uniform(0, 1.2) * (of_step if step else opening)
        yield Kill(runs, LIBRARIES[i % len(LIBRARIES)], mesh, rank, step, seconds)


def table(kills):
    rows = []
    for mesh in MESHES:
        of = [kill for kill in kills if kill.mesh == mesh]
        counts = collections.Counter(kill.moment for kill in of)
        rows.append([*mesh, *(counts[moment] for moment in MOMENTS), len(of), count_wrong(of)])
    return markdown(["ranks", "expert_parallel", *MOMENTS, "all", "failed"], rows)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("--kills", type=int, default=10)
    words.add_argument("--jobs", type=int, default=1)
    words.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    words = words.parse_args()
    if not LIBRARIES:
        print(f"there is no MPI module beside {words.program}")
        return 77
    with scratch_folder() as folder:
        write_corpus(folder)
        kills = list(plan(Runs(folder, 20, 1), words.kills, words.seed))
        with concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
            for kill in pool.map(Kill.run, kills):
                if kill.wrong:
                    print(kill.sentence(), flush=True)
    print(table(kills))
    failed = count_wrong(kills)
    print(
        f"{len(kills)} kills (seed {words.seed}) on {' and '.join(LIBRARIES)}, {len(kills) - failed} equal ends, "
        f"{failed} failed"
    )
    return program.finish() or failed > 0


if __name__ == "__main__":
    sys.exit(main())
