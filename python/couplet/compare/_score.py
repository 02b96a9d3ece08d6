"""The losses of held-out documents, which `couplet eval RUN --documents`, started here, writes into runs without them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any, Optional

from .._program import find_program
from ..report import _files
from ._runs import BadRun, Run, is_number, read_json

DOCUMENTS = 64  # largest number of documents of a source by default


def _are_shards(run: Run) -> bool:
    """Returns whether the held-out text of a run is token shards, whose documents are not known."""
    paths = run.settings.get("data.validation", "").strip("[]").split(",")
    for path in (os.path.join(run.folder, part.strip(' "')) for part in paths):
        names = [path]
        if os.path.isdir(path):
            deep = (entry for entry in os.walk(path) if entry[0][len(path) :].count(os.sep) <= 2)
            names = [name for _, _, files in deep for name in files]
        if any(name.endswith((".npy", ".bin")) or os.path.basename(name) == "shards.json" for name in names):
            return True
    return False


def _is_scored(run: Run, step: int) -> bool:
    try:
        found = read_json(run.folder, "documents.json")
    except BadRun:
        return False
    window = run.settings.get("data.seq_len", "")
    if not isinstance(found, dict) or not is_number(found.get("step")) or not is_number(found.get("window")):
        return False
    return found["step"] == step and str(found["window"]) == window


def _run(words: "list[str]") -> "tuple[int, list[str]]":
    """Runs a program; returns (exit code, lines of standard error). A signal that ends this process ends the program
    too."""

    def end(number: int, _: object) -> None:
        child.terminate()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    options: dict[str, Any] = {"text": True, "errors": "surrogateescape"}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options) as child:
        ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]
        try:
            for one in ours:
                signal.signal(one, end)
            said = child.communicate()[1]
        except BaseException:
            child.kill()
            raise
        finally:
            for one in ours:
                signal.signal(one, signal.SIG_DFL)
    return child.returncode, said.splitlines()


def score(runs: "list[Run]", most: Optional[int], threads: Optional[int], warn: "Callable[[str], None]") -> None:
    """Scores the first `most` held-out documents of each source (0: all) under the last checkpoint of every finished
    run, also of runs that are scored already. None: DOCUMENTS documents, only of runs without scores. A failure is a
    warning. Raises KeyboardInterrupt if the program was stopped."""
    program = os.environ.get("COUPLET_PROGRAM") or find_program()
    for run in runs:
        step = run.checkpoint_step()
        if step < 0 or step != run.steps or _are_shards(run) or (most is None and _is_scored(run, step)):
            continue
        if program is None:
            warn(f"{run.folder}: held-out documents were not scored: the program couplet is not on PATH")
            continue
        words = [program, "eval", run.folder, "--documents", "--overwrite"]
        words += ["--limit", str(DOCUMENTS if most is None else most)] if most != 0 else []
        words += ["--threads", str(threads)] if threads is not None else []
        code, said = _run(words)
        _files.complain(*(said[:-1] if code else said))
        if code < 0 or code > 128:
            raise KeyboardInterrupt
        if code:
            why = said[-1].removeprefix("couplet: ") if said else f"exit code {code}"
            warn(f"{run.folder}: held-out documents were not scored: {why}")
