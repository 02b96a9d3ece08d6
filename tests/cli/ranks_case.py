"""ranks_case.py: shared by tests of training over ranks: starts runs under mpirun, finds their processes, and reads
their files."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "parallel"))
import mpi
from inputs import files_of, read_json, read_tensors, untimed
from program import COUPLET, check, equal, wait_until

LIBRARIES = [library for library in mpi.LIBRARIES if mpi.is_here(library, os.path.dirname(COUPLET))]
RANK = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}
MARK = "COUPLET_TEST_RANKS"  # set in the environment of every process that a test starts
LIMIT_SECONDS = 60


# ---- processes ----


def read(path):
    try:
        return pathlib.Path(path).read_bytes().decode(errors="replace")
    except OSError:  # the process has ended, or is not ours
        return ""


def environment_of(process):
    return dict(word.split("=", 1) for word in read(f"/proc/{process}/environ").split("\0") if "=" in word)


def is_running(process):
    return read(f"/proc/{process}/stat").rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])


class Ranks:
    """Some ranks under mpirun: of `couplet WORDS`, or of `parts` (mpi.command_of). `command`: another
    mpi.command_of."""

    count = 0

    def __init__(self, library, ranks, *words, program=COUPLET, parts=None, cwd=None, command=mpi.command_of, **more):
        Ranks.count += 1
        self.library, self.mark = library, f"{os.getpid()}-{Ranks.count}"
        parts = parts or [(ranks, [program, *words])]
        self.name = f"{library}: " + " : ".join(f"-n {n} couplet {' '.join(map(str, part[1:]))}" for n, part in parts)
        self.since = time.monotonic()
        self.process = subprocess.Popen(
            command(library, parts),
            cwd=cwd,
            env=mpi.environment(**{MARK: self.mark}, **more),
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def all(self):
        """Returns process -> environment of the processes that live."""
        found = {int(name): environment_of(name) for name in os.listdir("/proc") if name.isdigit()}
        return {
            process: words for process, words in found.items() if words.get(MARK) == self.mark and is_running(process)
        }

    def rank(self, number):
        """Returns the process of a rank, or None."""
        return next(
            (
                process
                for process, words in self.all().items()
                if words.get(RANK[self.library]) == str(number)
                and os.path.realpath(f"/proc/{process}/exe") == os.path.realpath(COUPLET)
            ),
            None,
        )

    def wait_for(self, there):
        """Waits until `there()` is true, while the ranks live."""
        check(wait_until(there, self.process, LIMIT_SECONDS), f"{self.name}: has not come so far")

    def send(self, number, rank=None):
        """Sends a signal to a rank, or to mpirun."""
        process = self.process.pid if rank is None else self.rank(rank)
        self.since = time.monotonic()
        if process is not None:
            os.kill(process, number)

    def end(self, limit=LIMIT_SECONDS):
        """Waits for all processes. Returns (exit code, all output). They must have ended within `limit` seconds of the
        start or the last signal."""
        try:
            out, err = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            out = err = ""
        self.out = out
        while self.all() and time.monotonic() - self.since < limit:
            time.sleep(0.02)
        left = self.all()
        check(not left, f"{self.name}: {len(left)} processes are left after {limit} s: {out + err}")
        for process in left:
            os.kill(process, signal.SIGKILL)
        code = self.process.wait()
        said = out + err
        check("Sanitizer" not in said and "runtime error" not in said, f"{self.name}: {said[-3000:]}")
        return code if code >= 0 else 128 - code, said


def sentences(said):
    return re.findall(r"^couplet: .*$", said, re.M)


def good(library, ranks, *words, **how):
    """Returns the output of a success."""
    job = Ranks(library, ranks, *words, **how)
    code, said = job.end()
    check(code == 0 and not sentences(said), f"{job.name}: exit {code}: {said[-2000:]}")
    return said


def bad(code, parts, job):
    """Checks a failure: this exit code, and one sentence that has all the parts. MPICH's launcher has its own code,
    255, if a rank ends while the launcher still answers the rank's first question."""
    got, said = job.end()
    found = sentences(said)
    was_early = got == 255 and "HYDU_sock_write" in said and "Broken pipe" in said
    check(
        (got == code or was_early) and len(found) == 1 and all(part in found[0] for part in parts),
        f"{job.name}: exit {got}, {said[-2000:]!r}; wanted {code} and one sentence with {parts}",
    )


# ---- the files of a run ----


def untimed_lines(raw):
    return untimed([json.loads(line) for line in raw.splitlines()])


def files_of_run(run, but=()):
    """Returns name -> content of all files, without times and without the checkpoints `but`."""
    files = {name: content for name, content in files_of(run).items() if name.split("/")[0] not in but}
    return files | {name: untimed_lines(files[name]) for name in ("metrics.jsonl", "start.json")}


def check_parts(folder, ranks, what):
    """Checks the parts of a checkpoint: each tensor is there once, in the file that the index names."""
    names = {}
    for kind, count in (("model", ranks), ("state", 2 * ranks)):
        index = read_json(folder / f"{kind}.safetensors.index.json")["weight_map"]
        files = sorted(path.name for path in folder.glob(f"{kind}*.safetensors"))
        found = sorted((name, file) for file in files for name in read_tensors(folder / file))
        equal(
            files, [f"{kind}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)], f"{what}: parts of {kind}"
        )
        check(found == sorted(index.items()), f"{what}: the index of {kind} is not what its files hold")
        names[kind] = set(index)
    equal(names["state"], {f"{moment}.{name}" for name in names["model"] for moment in "mv"}, f"{what}: moments")


def tensors_of(folder):
    """Returns name -> (type, shape, bytes) of weights and moments, in parts or in one file."""
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= read_tensors(path)
    return found
