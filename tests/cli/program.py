"""program.py: shared by all end-to-end tests: runs the tested program (the first argument), checks rules that hold for
every answer, and collects sentences about faults."""

import contextlib
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

COUPLET = os.path.abspath(sys.argv[1]) if sys.argv[1:] else None
SHOWN, SHOWN_CHARACTERS = 100, 2000  # number of sentences about faults, and characters of a value in a sentence
wrong = []


def check(truth, what):
    if not truth:
        wrong.append(what)


def equal(got, want, what):
    check(got == want, f"{what}: {str(got)[:SHOWN_CHARACTERS]}, wanted {str(want)[:SHOWN_CHARACTERS]}")


def says(text, parts, what):
    """Checks that the text, a list or a mapping, has all the parts."""
    lacking = [part for part in parts if part not in text]
    check(not lacking, f"{what}: no {lacking} in {str(text)[-SHOWN_CHARACTERS:]}")


def near(got, want, relative, what):
    fits = got is not None and want is not None and math.isclose(got, want, rel_tol=relative, abs_tol=1e-6 * relative)
    check(fits, f"{what}: {got} and {want}")


def same(want, got, where, fits, skipped=()):
    """Checks that `got` has all members of `want`: numbers with a point by `fits`, others exactly."""
    for key, value in want.items():
        if isinstance(value, dict):
            same(value, got.get(key, {}), f"{where}.{key}", fits, skipped)
        elif not isinstance(value, skipped):
            number, exact = got.get(key), not isinstance(value, float)
            right = number == value if exact else isinstance(number, (int, float)) and fits(number, value)
            check(right, f"{where}.{key}: {number}, wanted {value}")


class Tried:
    """A tested object. `wrong`: sentences about its faults."""

    def check(self, truth, what):
        if not truth:
            self.wrong.append(what)


def markdown(head, rows):
    """Returns a table. `head` and `rows` are lists of cells."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows])


def count_wrong(tried):
    return sum(bool(one.wrong) for one in tried)


def finish():
    """Prints the faults. Returns whether there are any."""
    for sentence in wrong[:SHOWN]:
        print(sentence)
    if wrong:
        print(f"{len(wrong)} things are wrong")
    return len(wrong) > 0


@contextlib.contextmanager
def scratch_folder():
    with tempfile.TemporaryDirectory(prefix="couplet-test-") as name:
        yield pathlib.Path(name)


def wait_until(there, process=None, seconds=60):
    """Waits until `there()` is true, while the process lives. Returns whether it is."""
    end = time.monotonic() + seconds
    while not there() and (process is None or process.poll() is None) and time.monotonic() < end:
        time.sleep(0.005)
    return there()


def capture(command, **how):
    """Runs any program. Returns what subprocess.run does, with both outputs as text."""
    return subprocess.run(command, **{"capture_output": True, "text": True, "check": False} | how)


# ---- the program ----


def split(words):
    """Returns the words of a command. The first may be several, separated as in a shell: "train c.yaml --out R"."""
    return [*shlex.split(str(words[0])), *map(str, words[1:])] if words else []


def said(words):
    return "couplet " + " ".join(map(str, words))


def sets(*settings):
    return [word for one in settings for word in ("--set", one)]


def run_bytes(*words, data=None, limit_blocks=None, seconds=300, **how):
    """Returns output, error and exit code. The code is 0, or 1 or 2 after a sentence, and the error has no word of a
    sanitizer. `limit_blocks`: the largest size of a file in KiB."""
    command = [COUPLET, *split(words)]
    if limit_blocks is not None:
        command = ["bash", "-c", f'ulimit -f {limit_blocks}; exec "$@"', "-", *command]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    done = subprocess.run(command, input=data, check=False, timeout=seconds, **streams)
    err, code = done.stderr, done.returncode
    check(
        code in (0, 1, 2) and b"Sanitizer" not in err and b"runtime error" not in err,
        f"{said(words)}: exit {code}: {err[-2000:]}",
    )
    check(
        code == 0 or err.rstrip(b"\n").split(b"\n")[-1].startswith(b"couplet: "), f"{said(words)}: no sentence: {err!r}"
    )
    return done.stdout or b"", err, code


def run(*words, **how):
    """Returns the result of run_bytes, as text."""
    out, err, code = run_bytes(*words, **how)
    return out.decode(errors="replace"), err.decode(errors="replace"), code


def apart(*words, **how):
    """Returns output and error of a success."""
    out, err, code = run(*words, **how)
    check(code == 0, f"{said(words)}: exit {code}: {err[-2000:]}")
    return out, err


def good(*words, **how):
    return "".join(apart(*words, **how))


def output(*words, **how):
    """Returns the output of a success as bytes."""
    out, err, code = run_bytes(*words, **how)
    check(code == 0, f"{said(words)}: exit {code}: {err[-2000:]}")
    return out


def in_json(*words, **how):
    """Returns the output of a verb with --json -."""
    out, _ = apart(*words, "--json", "-", **how)
    return json.loads(out) if out else {}


def bad(code, parts, *words, **how):
    """Checks that the command fails with this exit code and one last sentence that has all the parts."""
    out, err, got = run(*words, **how)
    last = err.strip().splitlines()[-1] if err.strip() else ""
    parts = [parts] if isinstance(parts, str) else parts
    fits = got == code and last.startswith("couplet: ") and all(part in last for part in parts)
    check(fits, f"{said(words)}: exit {got}, {err!r}; wanted {code} and {parts!r}")
    return out + err
