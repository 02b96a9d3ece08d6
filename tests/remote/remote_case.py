"""remote_case.py: shared by checks of remote checkpoints: runs the program (the first argument) with the environment of
the tests' own hub, and checks rules that hold for every answer and every failure."""

import contextlib
import os
import pathlib
import re
import shutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "cli")]

import program  # noqa: E402
from checkpoints import length, overlap, union  # noqa: E402
from fake_hub import ACCESS, OUTSIDER, FakeHub  # noqa: E402
from program import check, in_json, said  # noqa: E402

OURS = re.compile("HF_|HUGGING|.*_proxy$|SSL_CERT|CURL_CA|XDG_CACHE|COUPLET_", re.I)
LONGEST = 4000  # bytes of a sentence
SECRETS = (ACCESS, OUTSIDER, "Signature=", "Key-Pair-Id")
SLACK = 1 << 20  # bytes of a file beyond its header that may be read with it


def missing():
    """Returns the reason why no test can run here, or ""."""
    if not shutil.which("openssl"):
        return "the program openssl is not here"
    if "--dry-run" not in program.good("help", "inspect"):
        return "this program reads no checkpoints from afar"
    _, err, _ = program.run("inspect", "hf://org/model", env=clean(os.environ) | {"HF_ENDPOINT": "https://127.0.0.1:9"})
    return "this program is built without libcurl" if re.search("CPL_REMOTE|built without", err) else ""


def clean(environment):
    return {name: value for name, value in environment.items() if not OURS.match(name)}


class Case:
    """A hub, and the program with its environment. A token of the user's own is not found."""

    def __init__(self, work):
        self.work, self.servers = work, FakeHub(work)
        self.home = work / "home"
        self.home.mkdir()

    def __enter__(self):
        self.servers.__enter__()
        return self

    def __exit__(self, *what):
        self.servers.__exit__(*what)
        odd = [
            one for one in self.servers.broken if not re.match("SSL|Connection|TimeoutError|BrokenPipe|OSError", one)
        ]
        check(not odd, f"faults of the servers itself: {odd[:3]}")

    def environment(self, **more):
        return clean(os.environ) | {"HOME": str(self.home)} | self.servers.environment() | more

    def json(self, *words, env=None, **how):
        """Returns the figures, without the members that name the place."""
        figures = in_json("inspect", *words, env=self.environment(**(env or {})), **how)
        for one in figures.get("checkpoints", [figures]):
            one.pop("checkpoint", None)
        return figures

    def run(self, *words, env=None, **how):
        """Returns output, error and exit code."""
        out, err, code = program.run("inspect", *words, env=self.environment(**(env or {})), **how)
        self.judge(words, out, err)
        return out, err, code

    def judge(self, words, out, err):
        """Checks that no secret, no byte that moves a terminal and no word of a library's own is printed."""
        both = out + err
        check(not any(secret in both for secret in SECRETS), f"{said(words)}: a secret: {both[-2000:]!r}")
        check(
            not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", both),
            f"{said(words)}: control characters: {both[-2000:]!r}",
        )

    def fails(self, pattern, *words, env=None, what="", **how):
        """Checks exit code 1, and a last sentence that begins with `couplet: `, is not long and fits the pattern."""
        out, err, code = self.run(*words, env=env, **how)
        last = err.strip().splitlines()[-1] if err.strip() else ""
        fits = code == 1 and last.startswith("couplet: ") and re.search(pattern, last, re.I) and len(last) < LONGEST
        check(fits, f"{what or said(words)}: exit {code}, {err[-1000:]!r}; wanted {pattern!r}")
        return out + err

    # requests that the hosts got

    def spans(self, pattern=r"\.(safetensors|gguf)$"):
        """Returns file -> the requested ranges of bytes, one for each request."""
        found = {}
        for one in self.servers.bodies(pattern):
            if one.range:
                found.setdefault(one.file, []).append(one.range)
        return found

    def check_asked(self, checkpoint, what, headers_only=False):
        """Checks that all needed bytes were requested once, and few others."""
        asked = self.spans()
        for file, needed in checkpoint.needed.items():
            spans = asked.pop(file, [])
            header = needed[0][0], min(needed[0][1], SLACK)
            wanted = [header] if headers_only else needed
            once = union(spans)
            check(overlap(once, wanted) == length(wanted), f"{what}: {file}: not all was asked for: {once}")
            check(
                length(once) - length(wanted) <= SLACK // 4 + length(wanted) // 20,
                f"{what}: {file}: {length(once)} bytes for {length(wanted)}",
            )
            check(
                length(spans) - length(once) <= SLACK // 16,
                f"{what}: {file}: {length(spans) - length(once)} bytes asked for twice",
            )
        check(not any(asked.values()), f"{what}: other files were read: {asked}")


@contextlib.contextmanager
def case():
    with program.scratch_folder() as work, Case(work) as made:
        yield made


def groups(named):
    """Calls the functions, or only those whose names follow the program on the command line."""
    for name, check_it in named.items():
        if len(sys.argv) < 3 or name in sys.argv[2:]:
            check_it()


def main(body):
    """Returns the exit code of a check: `body` is given a Case. 77: no test can run here."""
    why = missing()
    if why:
        print(f"not checked: {why}")
        return program.finish() or 77
    with case() as one:
        body(one)
    return program.finish()
