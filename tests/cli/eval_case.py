"""eval_case.py: what the tests of couplet eval share: the tiny checkpoint and rows of the references,
the program with its checks, and results that are read back. With the argument `further` the references
are those of the larger data, and nothing is tested where these are not there."""
import json
import os
import pathlib
import subprocess
import sys

COUPLET, ALL = os.path.abspath(sys.argv[1]), "--all" in sys.argv
FURTHER = "further" in sys.argv
LARGER = pathlib.Path(os.environ.get("COUPLET_SHARED", "../shared"))
GOLDEN = (LARGER if FURTHER else pathlib.Path("tests")).resolve() / "golden" / "eval"
if FURTHER and not LARGER.is_dir():
    sys.exit(77)
wrong = []


def check(truth, what):
    if not truth:
        wrong.append(what)


def run(*words, cwd=None):
    done = subprocess.run([COUPLET, "eval", *map(str, words)], capture_output=True, text=True,
                          check=False, timeout=1500, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def evaluate(out, *words):
    code, _, told = run(*words, "--json", out)
    check(code == 0, f"{words}: exit {code}: {told[-500:]}")
    return json.loads(pathlib.Path(out).read_text()) if code == 0 else None


def refused(code, parts, *words):
    got, _, told = run(*words)
    last = told.strip().splitlines()[-1] if told.strip() else ""
    check(got == code and last.startswith("couplet: ") and all(part in last for part in parts),
          f"{words}: exit {got}, {told!r}; wanted {code} and {parts}")


def close(a, b, absolute, relative):
    return abs(a - b) <= max(absolute, relative * abs(b))


def tell():
    """The exit code, after what is wrong."""
    for one in wrong[:40]:
        print(one)
    print(f"{len(wrong)} things are wrong")
    return 1 if wrong else 0
