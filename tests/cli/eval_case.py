"""eval_case.py: shared by tests of couplet eval: names the tiny checkpoint and the rows of the references, and reads
results back. With the argument `further` the references are those of the larger data, and no test runs where they are
missing."""

import os
import pathlib
import sys

import program
from inputs import read_json
from program import bad, check

ALL = "--all" in sys.argv
FURTHER = "further" in sys.argv
LARGER = pathlib.Path(os.environ.get("COUPLET_SHARED", "../shared"))
GOLDEN = (LARGER if FURTHER else pathlib.Path("tests")).resolve() / "golden" / "eval"
SECONDS = 1500
if FURTHER and not LARGER.is_dir():
    sys.exit(77)


def run(*words, **how):
    return program.run(f"eval {words[0]}", *words[1:], seconds=SECONDS, **how)


def evaluate(out, *words):
    _, told, code = run(*words, "--json", out)
    check(code == 0, f"{words}: exit {code}: {told[-500:]}")
    return read_json(pathlib.Path(out)) if code == 0 else None


def refused(code, parts, *words, **how):
    bad(code, parts, f"eval {words[0]}", *words[1:], seconds=SECONDS, **how)


def close(a, b, absolute, relative):
    return abs(a - b) <= max(absolute, relative * abs(b))
