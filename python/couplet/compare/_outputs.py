"""The files for results, and the record of a report's origin. A result file is never inside a run. It replaces an
existing result only with --overwrite."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys
import time
from typing import Any

from .._version import __version__
from ..report import _files
from ..report._files import BadFile
from ._runs import Run


class BadOutput(Exception):
    """The reason why a result cannot be written to its place, as a sentence."""


def is_stream(path: str) -> bool:
    """Returns whether the path is standard output, a device or a pipe, which hold no result that could be replaced."""
    try:
        if path == "-" or os.path.samestat(found := os.stat(path), os.fstat(1)):
            return True
        return not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    except OSError:
        return False


def check_outside(path: str, folders: "list[str]") -> None:
    """Raises BadOutput if the path lies in one of the folders."""
    place = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
    for folder in folders:
        own = os.path.realpath(folder)
        if os.path.isdir(own) and any(os.path.commonpath((own, at)) == own for at in (place, os.path.realpath(place))):
            raise BadOutput(f"{path}: lies in {folder}, where nothing is written; name a place outside it")


def check_new(flag: str, path: str, overwrite: bool) -> None:
    """Raises BadOutput if the path exists, unless it is a comparison that may be replaced, or if it could not be
    written."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise BadOutput(f"{path}: is a folder, not a file to write")
    if not os.path.isdir(folder):
        raise BadOutput(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise BadOutput(f"{path}: cannot be written: Permission denied")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise BadOutput(f"{path} is there already: --overwrite replaces it, or write to another file")
    if not (_is_page(path) if flag == "--html" else _is_result(path)):
        raise BadOutput(
            f"{flag} {path}: is there and holds no results of couplet compare, which is all that --overwrite replaces: name "
            "another file, or take it away"
        )


def _is_result(path: str) -> bool:
    try:
        blob = _files.read(path)
        found = _files.parse(blob) if blob else {"runs": []}
    except BadFile:
        return not os.path.exists(path)  # a link to a missing file
    return isinstance(found, dict) and "runs" in found


def _is_page(path: str) -> bool:
    """Returns whether the file begins as the program's pages do."""
    with open(path, "rb") as file:
        return file.read(15) == b"<!DOCTYPE html>"


def write(path: str, text: str) -> None:
    """Writes a result as a whole, or not at all. Raises OSError."""
    if not is_stream(path):
        _files.write(os.path.realpath(path), text)
        return
    standard = path in ("-", "/dev/stdout")  # written through the open file: another opening would truncate its file
    try:
        if standard and sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if standard:
            sys.stdout.flush()
        with open(1 if standard else path, "wb", closefd=not standard) as stream:
            stream.write(text.encode(errors="replace"))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output" if standard else path) from None


def _source(run: Run) -> "dict[str, Any]":
    """Returns a run's entry: the step of its checkpoint, and the hash of the weights that was recorded when they were
    saved."""
    step = run.checkpoint_step()
    return {
        "path": run.folder,
        "step": None if step < 0 else step,
        "xxh3": run.recorded("checksums.json", run.folder).get("model.safetensors"),
    }


def made_by(words: "list[str]", runs: "list[Run]") -> "dict[str, Any]":
    """Returns the member "made" of a report: program, command, date, and its runs. The date is SOURCE_DATE_EPOCH if the
    environment has it; equal reports are then equal bytes."""
    now = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()))
    return {
        "program": f"couplet {__version__}",
        "command": " ".join(["couplet compare", *(shlex.quote(word) for word in words if word != "--overwrite")]),
        "folder": os.getcwd(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", now),
        "sources": [_source(run) for run in runs],
    }
