"""shim.py: runs a program with one fault of faults.c, and reads its outcome."""

import dataclasses
import os
import pathlib
import signal
import struct
import subprocess

KINDS = tuple("read write open create close sync rename mkdir unlink list cut link stat lock memory".split())
ALL = tuple(kind for kind in KINDS if kind != "memory")
CHANGES = ("write", "create", "close", "sync", "rename", "mkdir", "unlink", "cut", "link", "lock")
UNAVAILABLE = 77
LIMIT_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault at the n-th call of these kinds."""

    name: str
    how: str
    calls: tuple
    lasts: bool = False  # all later calls fail too
    only: tuple = ()  # verbs with this fault; all verbs if it is empty

    @property
    def kills(self):
        return self.how in ("KILL", "TEAR")


FAULTS = (
    Fault("EIO", "EIO", ALL),
    Fault("disk full", "ENOSPC", ("write", "create", "sync", "rename", "mkdir", "cut", "link"), True),
    Fault("EINTR", "EINTR", ("read", "write", "open", "create", "close", "sync", "lock")),
    Fault("short", "SHORT", ("read", "write")),
    Fault("kill", "KILL", CHANGES),
    Fault("torn write", "TEAR", ("write",)),
    Fault("SIGTERM", "TERM", ALL, False, ("train", "resume")),
    Fault("memory", "ENOMEM", ("memory",)),
    Fault("no memory", "ENOMEM", ("memory",), True),
)


@dataclasses.dataclass
class Outcome:
    code: int  # as in a shell: 128 + n after signal n
    out: bytes
    err: str
    seen: int  # number of calls that counted
    fired: int  # number of faults that happened
    place: str  # the place of the first fault
    hung: bool = False

    def sentences(self):
        return [line for line in self.err.splitlines() if line.startswith("couplet: ")]

    def warnings(self):
        return [line for line in self.err.splitlines() if line.startswith("warning: ")]


class Program:
    """A program that is run with the shim, if there is a shim. On one thread the n-th call is always one call."""

    def __init__(self, path, shim=None, threads=1):
        self.path, self.shim = os.path.abspath(path), shim and os.path.abspath(shim)
        self.environment = {
            **os.environ,
            "OMP_WAIT_POLICY": "passive",
            "FAULT_CLOCK": "50",
            "OMP_NUM_THREADS": str(threads),
            "LC_ALL": "C.UTF-8",
            "SOURCE_DATE_EPOCH": "0",
        }

    def start(self, words, cwd, fault=None, at=0, report=None, stacks=None):
        environment = {
            **self.environment,
            **({"LD_PRELOAD": self.shim} if self.shim else {}),
            **({"FAULT_STACKS": str(stacks)} if stacks else {}),
        }
        if fault:
            environment |= {
                "FAULT_CALLS": ",".join(fault.calls),
                "FAULT_HOW": fault.how,
                "FAULT_AT": str(at),
                "FAULT_REPORT": str(report),
            }
        if fault and fault.lasts:
            environment["FAULT_LASTS"] = "1"
        return subprocess.Popen(
            [self.path, *map(str, words)],
            cwd=cwd,
            env=environment,
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        )

    def run(self, words, cwd, fault=None, at=0, stdin=b"", stacks=None):
        report = pathlib.Path(f"{cwd}.report")
        process = self.start(words, cwd, fault, at, report, stacks)
        hung = False
        try:
            out, err = process.communicate(stdin, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            hung = True
        record = read_record(report)
        code, said = shell_code(process.returncode), err.decode(errors="replace")
        return Outcome(code, out, said, record.seen, record.fired, record.place, hung)


def shell_code(code):
    return code if code >= 0 else 128 - code


@dataclasses.dataclass
class Record:
    """The numbers of `record` of faults.c."""

    seen: int = 0
    fired: int = 0
    counts: dict = dataclasses.field(default_factory=dict)  # kind -> calls, whether they counted or not
    place: str = ""


def read_record(path):
    if not path.exists():
        return Record()
    raw = path.read_bytes()
    path.unlink()
    seen, fired, *counts = struct.unpack_from(f"<{2 + len(KINDS)}Q", raw)
    place = raw[8 * (2 + len(KINDS)) :].split(b"\0")[0].decode(errors="replace")
    return Record(seen, fired, dict(zip(KINDS, counts)), place)


KILLED = 128 + signal.SIGKILL
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
