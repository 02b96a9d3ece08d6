#!/usr/bin/env python3
"""check_ranks.py COUPLET FAULTS.so [--all | --sample N] [--share K] [--fault NAME,...] [--jobs N] [--seed N]: two
ranks, of which one has its n-th call on a file fail, or is killed or stopped there. All end within the limit, and one
sentence names the rank and the file.

Runs have faults at calls on their own files while they open, in a step, and while a checkpoint is saved: `last` is
whole, and the ranks resume to the bits of an undisturbed run. Eval, inspect --text and tokenize encode have faults at
calls on their inputs: there are no results, and the results of the next try are the bytes of one process.

The sample has a failing fsync, a full disk and a failing rename in the middle checkpoint and a kill and a SIGTERM in
the opening, each on both ranks, a failing rename of the whole checkpoint, a stop of one rank of each verb, a failing
allocation, and N more trials of runs. --all takes every call of a run, and the allocations of each stack of calls, or
every K-th. COUPLET is built without sanitizers: see check_faults.py. Without --seed the seed is a new one, and is
printed."""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import pathlib
import random
import shutil
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "cli" / room) for room in ("", "ranks")]
import program
from check_eval_goes_on import words_of, write_tasks
from check_faults import by_stack
from inputs import different, files_of, litter, write_documents
from kill_ranks import LIMIT_SECONDS, Disturbed, Runs, results_of
from program import COUPLET, Tried, count_wrong, good, markdown, scratch_folder, sets
from ranks_case import LIBRARIES, Ranks, sentences
from shim import CHANGES, FAULTS, KINDS, STOPPED, UNAVAILABLE, Fault, read_record
from train_case import write_corpus

MESH = (2, 2)
STEPS, EVERY = 6, 2
# Files of a run: all files, files of the checkpoint that is being saved, and these with their folder.
ALL_FILES, SAVED_FILES, SAVED_FOLDER = "/", "/.tmp-step/", "/.tmp-step"
MOST_OPENING = 25  # files that a rank opens or reads before the first step; there are more
FAULTS = [fault for fault in FAULTS if fault.name in ("EIO", "disk full", "kill", "torn write", "SIGTERM")] + [
    Fault("stop", "STOP", CHANGES),
    Fault("memory", "ENOMEM", ("memory",)),
]
HANG = Fault("hang", "HANG", ("sync",))  # in the computing thread alone
BY_NAME = {fault.name: fault for fault in FAULTS}
MESSAGE = {"EIO": "Input/output error", "disk full": "No space left on device"}
UNDISTURBED = Fault("", "EIO", tuple(kind for kind in KINDS if kind != "memory"))


@dataclasses.dataclass
class Outcome:
    code: int
    said: str
    fired: int
    kind: str
    file: str


def start_words(words, fault, at, path, report):
    more = {
        "LD_PRELOAD": SHIM,
        "OMP_WAIT_POLICY": "passive",
        "FAULT_CALLS": ",".join(fault.calls),
        "FAULT_AT": at,
        "FAULT_HOW": fault.how,
        "FAULT_PATH": path,
        "FAULT_REPORT": report,
    }
    more |= {"FAULT_LASTS": 1} if fault.lasts else {}
    return ["env", *(f"{name}={value}" for name, value in more.items()), COUPLET, *words]


def start(library, words, rank, fault, at, path, report):
    """Starts two ranks. `rank` has the fault at the n-th call on a file with `path` in its name."""
    with_fault = start_words(words, fault, at, path, report)
    return Ranks(library, MESH[0], parts=[(1, with_fault if r == rank else [COUPLET, *words]) for r in range(MESH[0])])


def end(job, report):
    code, said = job.end(LIMIT_SECONDS)
    record = read_record(pathlib.Path(report))
    kind, _, file = record.place.partition(" ")
    return Outcome(code, said, record.fired, kind, file)


class Faulty(Tried):
    """A trial, and the rules that hold after its fault."""

    def judge(self, out):
        """Judges `out`, an Outcome. Returns whether it was a failure."""
        self.outcome = out
        found = sentences(out.said)
        self.check(out.fired, "the fault did not happen")
        if self.fault.how in ("KILL", "TEAR", "STOP"):
            self.judge_loss(found)
        elif self.fault.how == "HANG":
            parts = [f"rank {self.rank} (", "hangs: the other ranks waited 5 seconds for it before a checkpoint"]
            self.check(
                out.code != 0 and len(found) == 1 and all(part in found[0] for part in parts),
                f"exit {out.code}: {found}",
            )
        elif self.fault.how == "TERM":
            self.check(out.code in (0, *STOPPED) and len(found) <= 1, f"exit {out.code}: {found}")
        elif out.code or not self.is_cleaning():
            self.judge_failure(found)
        return out.code != 0

    def is_cleaning(self):
        """Returns whether the call only asks for or removes a file: its failure need not fail the run."""
        return (
            self.outcome.kind not in CHANGES
            or self.outcome.kind in ("close", "unlink")
            or self.outcome.kind == "rename"
            and pathlib.Path(self.outcome.file).name.startswith("step-")
        )

    def judge_loss(self, found):
        self.check(self.outcome.code != 0, "exit 0 after a loss")
        if self.fault.how == "STOP":  # the launcher may wake the lost rank, to end it by SIGTERM
            found = [one for one in found if "was lost" in one or not one.startswith("couplet: stopped")]
        self.check(
            len(found) <= 1 and all(f"rank {self.rank} " in one and "was lost" in one for one in found),
            f"it says {found}",
        )
        self.check(found or self.fault.how != "STOP", f"no sentence: {self.outcome.said[-300:]!r}")

    def judge_failure(self, found):
        parts = [
            *(["couplet: rank 1"] if self.rank else []),
            *([MESSAGE[self.fault.name], self.path] if self.outcome.kind in CHANGES else []),
        ]
        # mpirun of MPICH may end with 255 if a rank fails before MPI has begun
        codes = (1, 255) if self.library == "mpich" and self.outcome.kind == "memory" else (1,)
        self.check(
            self.outcome.code in codes and len(found) == 1 and all(part in found[0] for part in parts),
            f"exit {self.outcome.code}, it says {found}, wanted {parts}",
        )

    def sentence(self):
        out = self.outcome
        where = f"{out.kind} {pathlib.Path(out.file).name}" if out else "?"
        return (
            f"{self.library}, {self.name}, rank {self.rank}, {self.fault.name} at call {self.at} ({where}): "
            + "; ".join(self.wrong)
        )


class Trial(Faulty, Disturbed):
    """A trial of a run: the n-th call of one rank on some of its files."""

    def __init__(self, runs, library, rank, fault, at, files=ALL_FILES):
        super().__init__(runs, library, MESH, rank)
        self.fault, self.at, self.files, self.outcome = fault, at, files, None
        self.name = "train" if files == ALL_FILES else "saving"

    def disturb(self, run):
        self.path = str(run)
        words, files = self.runs.words(run, MESH), f"{run}{self.files}"
        job = start(self.library, words, self.rank, self.fault, self.at, files, f"{run}.report")
        if not self.judge(end(job, f"{run}.report")):
            names = different(results_of(run), results_of(self.runs.reference(MESH)))
            self.check(not names, f"exit 0, but {', '.join(names)} differ")
        elif self.fault.name == "EIO":
            self.check(not litter(run), f"left over: {litter(run)}")


class VerbTrial(Faulty):
    """A trial of a verb that shares its work: the n-th call of one rank on its inputs."""

    def __init__(self, verbs, name, library, rank, fault, at):
        self.verbs, self.name, self.library, self.rank, self.fault, self.at = verbs, name, library, rank, fault, at
        self.path, self.wrong, self.outcome = verbs.inputs, [], None

    def run(self):
        place = pathlib.Path(tempfile.mkdtemp(dir=self.verbs.folder))
        words, report = self.verbs.words(self.name, place / "out"), f"{place}.report"
        failed = self.judge(end(start(self.library, words, self.rank, self.fault, self.at, self.path, report), report))
        self.check(not failed or not self.verbs.results(place), f"half-written: {sorted(self.verbs.results(place))}")
        if failed:
            shutil.rmtree(place)
            place.mkdir()
            code, said = Ranks(self.library, MESH[0], *words).end()
            self.check(code == 0, f"the next try: exit {code}: {sentences(said)}")
        names = different(self.verbs.results(place), self.verbs.reference[self.name])
        self.check(not names, f"not the bytes of one process: {names}")
        shutil.rmtree(place)
        return self


class Verbs:
    """The verbs that share their work over ranks, the results of one process for their inputs, and the number of calls
    that each rank makes on these inputs."""

    def __init__(self, folder, model):
        self.folder, self.inputs, self.model = folder, f"{folder}/inputs", f"{folder}/inputs/model"
        (folder / "inputs").mkdir()
        write_documents(folder / "inputs" / "docs")
        write_tasks(folder / "inputs")
        shutil.copytree(model, self.model)
        shutil.copy(folder / "T.json", self.inputs)
        self.reference, self.calls = {}, {}
        for name in ("eval", "inspect", "encode"):
            place = folder / name
            place.mkdir()
            good(*self.words(name, place / "out"))
            self.reference[name] = self.results(place)

    def words(self, name, out):
        soon = sets("dist.timeout=2")
        return {
            "eval": [*words_of(pathlib.Path(self.inputs), "ranked", out, "model"), *soon],
            "inspect": ["inspect", self.model, "--text", f"{self.inputs}/docs", "--json", out, *soon],
            "encode": [
                *f"tokenize encode --tokenizer {self.inputs}/T.json --out {out} {self.inputs}/docs".split(),
                *soon,
            ],
        }[name]

    def results(self, place):
        """Returns the results without folders and without the answers so far, which are kept for the next try."""
        return {name: content for name, content in files_of(place).items() if not name.endswith(".partial")}

    def count(self, name, rank):
        report = f"{self.folder}/counted-{name}-{rank}"
        words = self.words(name, pathlib.Path(report + ".out"))
        start(LIBRARIES[0], words, rank, UNDISTURBED, 0, self.inputs, report).end()
        return read_record(pathlib.Path(report)).counts


# ---- all trials ----


def count_calls(runs, rank, files):
    """Counts the calls of each kind that an undisturbed rank makes on these files. None: they cannot be caught."""
    run = runs.folder / f"counted-{rank}-{len(files)}"
    job = start(LIBRARIES[0], runs.words(run, MESH), rank, UNDISTURBED, 0, f"{run}{files}", f"{run}.report")
    if job.end()[0] == UNAVAILABLE:
        return None
    return read_record(pathlib.Path(f"{run}.report")).counts


def of_fault(counts, fault):
    return sum(counts[kind] for kind in fault.calls)


def some(numbers, count, begin=0.0, end=1.0):
    """Returns one of `count` calls, between these shares of them."""
    return numbers.randrange(int(count * begin), int(count * end)) + 1


def sample(runs, verbs, counts, count, numbers):
    """Yields the trials of every sample, and `count` more. A checkpoint is saved three times, and the middle one has
    the fault. A stop of a verb comes in the last quarter of its calls, where the ranks watch each other."""
    sync, rename = (dataclasses.replace(BY_NAME["EIO"], calls=(kind,)) for kind in ("sync", "rename"))
    kill, term, stop = (
        dataclasses.replace(BY_NAME[name], calls=("open", "create", "read")) for name in ("kill", "SIGTERM", "stop")
    )
    for rank in range(MESH[0]):
        saving = count_calls(runs, rank, SAVED_FILES)
        for fault in (sync, BY_NAME["disk full"], rename):
            at = some(numbers, of_fault(saving, fault), 1 / 3, 2 / 3)
            yield Trial(runs, numbers.choice(LIBRARIES), rank, fault, at, SAVED_FILES)
        for fault in (kill, term):
            yield Trial(runs, numbers.choice(LIBRARIES), rank, fault, some(numbers, MOST_OPENING))
    whole = of_fault(count_calls(runs, 0, SAVED_FOLDER), rename)  # the last one renames its folder
    yield Trial(runs, numbers.choice(LIBRARIES), 0, rename, 2 * whole // 3, SAVED_FOLDER)
    # Rank 0 writes metrics.jsonl to the disk before each checkpoint.
    yield Trial(runs, numbers.choice(LIBRARIES), 0, HANG, 2, "/metrics.jsonl")
    for name in verbs.reference:
        rank = numbers.randrange(MESH[0])
        calls = of_fault(verbs.count(name, rank), stop)
        yield VerbTrial(verbs, name, numbers.choice(LIBRARIES), rank, stop, some(numbers, calls, 3 / 4))
    yield from numbers.sample(list(all_trials(runs, counts, [BY_NAME["memory"]], 1)), 1)
    yield from numbers.sample(list(all_trials(runs, counts, FAULTS[:-1], 1)), count)


def allocations(runs, rank):
    """Returns some allocations of each stack of calls."""
    run = runs.folder / f"stacks-{rank}"
    words = [
        "env",
        f"FAULT_STACKS={run}.stacks",
        *start_words(runs.words(run, MESH), BY_NAME["memory"], 0, "", f"{run}.report"),
    ]
    Ranks(
        LIBRARIES[0],
        MESH[0],
        parts=[(1, words if r == rank else [COUPLET, *runs.words(run, MESH)]) for r in range(MESH[0])],
    ).end()
    return by_stack(pathlib.Path(f"{run}.stacks"), read_record(pathlib.Path(f"{run}.report")).counts["memory"])


def all_trials(runs, counts, faults, share):
    number = 0
    for fault in faults:
        for rank in range(MESH[0]):
            calls = range(1, of_fault(counts[rank], fault) + 1)
            for at in allocations(runs, rank) if fault.name == "memory" else calls:
                number += 1
                if number % share == 0:
                    yield Trial(runs, LIBRARIES[number // share % len(LIBRARIES)], rank, fault, at)


def table(trials):
    rows = []
    for rank in range(MESH[0]):
        of = [trial for trial in trials if trial.rank == rank]
        counts = collections.Counter(trial.fault.name for trial in of)
        rows.append([rank, *(counts[name] for name in BY_NAME), len(of), count_wrong(of)])
    return markdown(["rank", *BY_NAME, "all", "failed"], rows)


def main(words):
    os.environ["OMP_NUM_THREADS"] = "1"
    with scratch_folder() as folder:
        write_corpus(folder)
        runs = Runs(folder, STEPS, EVERY)
        runs.undisturbed(MESH)
        counts = [count_calls(runs, rank, "/") for rank in range(MESH[0])]
        if None in counts:
            print("not checked here: calls cannot be caught")
            return UNAVAILABLE
        verbs = Verbs(folder, runs.reference(MESH) / "last")
        faults = [BY_NAME[name] for name in words.fault.split(",")] if words.fault else FAULTS
        trials = list(
            all_trials(runs, counts, faults, words.share)
            if words.all
            else sample(runs, verbs, counts, words.sample, random.Random(words.seed))
        )
        with concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
            for trial in pool.map(lambda trial: trial.run(), trials):
                if trial.wrong:
                    print(trial.sentence(), flush=True)
    print(table(trials))
    failed = count_wrong(trials)
    print(f"{len(trials)} faults of a rank (seed {words.seed}) on {' and '.join(LIBRARIES)}, {failed} failed")
    return program.finish() or failed > 0


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("program")
    options.add_argument("shim")
    options.add_argument("--all", action="store_true")
    options.add_argument("--sample", type=int, default=1)
    options.add_argument("--share", type=int, default=1)
    options.add_argument("--fault", default="")
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = options.parse_args()
    SHIM = str(pathlib.Path(options.shim).resolve())
    sys.exit(main(options) if LIBRARIES else 77)
