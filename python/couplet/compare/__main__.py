"""python -m couplet.compare RUN [RUN ...]: compares runs, on a terminal, as JSON and as a page.

Exit codes: 0: done; 1: a file or folder cannot be used; 2: wrong use; 130: stopped."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from typing import NoReturn, Optional

from ..report import _files
from ..report.page import page
from ._outputs import BadOutput, check_new, check_outside, is_stream, made_by, write
from ._runs import BadRun, read_runs

# `couplet compare` starts this file and has identified itself.
NAME = "couplet" if os.environ.get("COUPLET_PROGRAM") else "couplet.compare"
SYSTEM_PYTHON = "/usr/bin/python3"


class WrongUse(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise WrongUse(message)


def whole(most: int) -> "type[int]":
    def read(word: str) -> int:
        if not 0 <= int(word) <= most:
            raise ValueError
        return int(word)

    read.__name__ = f"whole number from 0 to {most}"
    return read  # type: ignore[return-value]


def arguments(words: "list[str]") -> argparse.Namespace:
    parser = Parser(
        prog="python -m couplet.compare",
        description="Compares runs of couplet train (docs/compare.md).",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, which may still be in progress")
    parser.add_argument("--group-by", metavar="SETTING", help="group runs by the value of this setting, in its order")
    parser.add_argument(
        "--documents",
        type=whole(10**9),
        metavar="N",
        help="score the first N held-out documents of each source (0: all) under the last checkpoint of every finished run, "
        "even if they have been scored; if not given: 64, only for runs without scores, and only for two or more runs",
    )
    parser.add_argument("--no-documents", action="store_true", help="score no documents; use existing scores")
    parser.add_argument("--threads", type=whole(4096), metavar="N", help="threads of scoring; if not given: as the run")
    parser.add_argument(
        "--json", metavar="FILE", help="also write everything as JSON; - prints it instead of the tables"
    )
    parser.add_argument("--html", metavar="FILE", help="also write a self-contained page with tables and curves")
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")
    if "--" in words:  # every word after it is a run
        at = words.index("--")
        words = words[:at] + [f"./{word}" if word.startswith("-") else word for word in words[at + 1 :]]
    return parser.parse_intermixed_args(words)


def check(given: argparse.Namespace) -> None:
    """Checks the arguments before any work. Raises WrongUse and BadOutput."""
    if given.documents is not None and given.no_documents:
        raise WrongUse("--documents and --no-documents cannot be given together: give one of them")
    if given.json and given.json == given.html:
        raise WrongUse(f"--json and --html both name {given.json}: give each a file of its own")
    for flag, path in (("--json", given.json), ("--html", given.html)):
        if path and not is_stream(path):
            check_outside(path, given.runs)
            check_new(flag, path, given.overwrite)


def show(lines: "list[str]") -> None:
    _files.print_lines(*(line.replace("\t", "\\x09") for line in lines))


def warn(sentence: str) -> None:
    _files.complain(f"warning: {sentence}".replace("\t", "\\x09"))


def compare(given: argparse.Namespace, words: "list[str]") -> None:
    from . import _json, _tables  # after the check of wrong use: both load numpy
    from ._comparison import Comparison
    from ._score import score

    runs = read_runs(given.runs)
    if not given.no_documents and (len(given.runs) > 1 or given.documents is not None):
        score(runs, given.documents, given.threads, warn)
    comparison = Comparison(runs, given.group_by)
    if given.json != "-":
        show(_tables.text(comparison))
    if not given.json and not given.html:
        return
    found = _json.rounded(_json.as_json(comparison))
    if given.html:
        grid = _tables.first(comparison)
        rows = [[name, *cells] for name, cells in grid.rows]
        sentences = [*comparison.conclusion, *comparison.warnings, grid.title]
        write(
            given.html,
            page(
                "compare",
                _tables.title(comparison),
                found,
                made_by(words, runs),
                sentences,
                [grid.corner, *grid.columns],
                rows,
            ),
        )
    if given.json:
        write(given.json, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    told = [
        f"{what}: {path}" for what, path in (("page", given.html), ("json", given.json)) if path and not is_stream(path)
    ]
    for line in told:
        (_files.complain if given.json == "-" else _files.print_lines)(line)


def start_system_python(words: "list[str]") -> None:
    """Restarts under Debian's interpreter, which has python3-numpy, if the program started an interpreter without numpy
    that the user did not name. Returns if it cannot."""
    if NAME == "couplet" and not os.environ.get("COUPLET_PYTHON"):
        os.environ["COUPLET_PYTHON"] = SYSTEM_PYTHON
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until main() of the new interpreter
        with contextlib.suppress(OSError):
            os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, "-m", "couplet.compare", *words])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def main(words: "Optional[list[str]]" = None) -> int:
    words = sys.argv[1:] if words is None else words
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the program blocks it while Python starts
        given = arguments(words)
        check(given)
        try:
            import numpy
        except ImportError:
            start_system_python(words)
            raise BadOutput(
                f"compare needs the Python package numpy, which {sys.executable} lacks: apt-get install python3-numpy, "
                "or pip install numpy, or name another interpreter with the variable COUPLET_PYTHON"
            ) from None
        from ._groups import NoSetting

        try:
            with numpy.errstate(all="ignore"):  # sums of huge figures are infinite
                compare(given, words)
        except NoSetting as error:
            raise WrongUse(str(error)) from None
    except WrongUse as error:
        _files.complain(f"{NAME}: {error}")
        return 2
    except (BadRun, BadOutput) as error:
        _files.complain(f"{NAME}: {error}".replace("\t", "\\x09"))
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _files.complain(f"{NAME}: {_files.reason(error)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
