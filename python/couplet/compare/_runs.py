"""A run, read from its folder: settings, metrics, and the files next to them.

Files: RUN/config.yaml, RUN/metrics.jsonl (plain, .gz or .zst), and, if present, RUN/start.json, and state.json and
checksums.json of a checkpoint. Settings and members of other versions are kept or passed over. They are no errors.
Damage: three kinds of lines are counted and passed over. They lack a step, its tokens or a loss (a number, or null if
the loss was not finite), they have a figure of another type, or their tokens are not those of their step. If a step has
several lines, the last sound line counts. Lines are in the order of steps, and tokens rise with them.
NaN is a figure that a line lacks, or has as null."""

from __future__ import annotations

import array
import bisect
import fcntl
import math
import os
import re
from collections.abc import Iterator
from typing import Any, Optional, TypeGuard

from ..report import _files
from ..report._files import BadFile
from . import _yaml
from ._run_figures import FIGURES, LAYERS, OLD_KEYS
from ._statistics import NAN, spread

LINE_BYTES = 1 << 24  # limit of a line of metrics
METRICS_BYTES = 1 << 36  # limit of all lines, decompressed
ENDINGS = ("", ".gz", ".zst")


class BadRun(Exception):
    """A fault of a run, as a sentence that names its folder or file."""


# ---- files ----


def find_stored(folder: str, name: str) -> Optional[str]:
    """Returns the path of a file of the folder, plain or compressed, or None."""
    return next((path for e in ENDINGS if os.path.lexists(path := os.path.join(folder, name + e))), None)


def _lines(path: str) -> "Iterator[Optional[bytes]]":
    """Yields the lines of a file, or None in place of a line that is too long. Raises BadFile if the file cannot be
    read to its end."""
    buffer, skipping = b"", False
    for chunk in _files.pieces(path, METRICS_BYTES):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            yield None if skipping or len(line) > LINE_BYTES else line
            skipping = False
        if len(buffer) > LINE_BYTES:
            buffer, skipping = b"", True
    if skipping or buffer:
        yield None if skipping else buffer


def read_json(folder: str, name: str) -> Any:
    """Returns the value of a JSON file of the folder, plain or compressed, or None if the file does not exist. Raises
    BadRun."""
    path = find_stored(folder, name)
    if path is None:
        return None
    try:
        return _files.parse(b"".join(_files.pieces(path, _files.largest_json())))
    except BadFile as error:
        raise BadRun(f"{path}: {error}") from None


# ---- a line ----


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether the value is a number that a double holds, and for a whole number, that 64 bits hold."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def number(value: Any) -> float:
    return float(value) if is_number(value) else NAN


class Line:
    """A logged step."""

    __slots__ = ("step", "tokens", "values", "layers", "n_layers", "sources", "precision")

    def __init__(self, step: int, tokens: float, found: "dict[str, Any]") -> None:
        self.step, self.tokens = step, tokens
        self.values: dict[str, float] = {}  # by key; for layers the mean over those that have a number
        self.layers: dict[str, array.array[float]] = {}  # (n_layers) by key
        lists = {f.key: v for f in LAYERS if isinstance(v := member(found, f.key), list)}
        self.n_layers = max(map(len, lists.values()), default=0)
        for figure in FIGURES:
            if figure.of != "layers":
                self.values[figure.key] = number(member(found, figure.key))
            elif figure.key in lists:
                own = self.layers[figure.key] = array.array("d", map(number, lists[figure.key]))
                own.extend([NAN] * (self.n_layers - len(own)))
                self.values[figure.key] = spread(own).mean
            else:
                self.values[figure.key] = NAN
        made_with = found.get("made_with")
        self.precision = _text(made_with.get("dtype")) if isinstance(made_with, dict) else None
        losses = found.get("val_loss_by_source")
        self.sources = {label: number(x) for label, x in losses.items()} if isinstance(losses, dict) else {}

    def val_loss(self, source: Optional[str] = None) -> float:
        """Returns the validation loss, for the source with this label or (None) for all text; NaN if the line has
        none."""
        return self.values["val_loss"] if source is None else self.sources.get(source, NAN)

    def is_evaluated(self) -> bool:
        return not math.isnan(self.values["val_loss"])


def member(found: "dict[str, Any]", key: str) -> Any:
    """Returns the member of a figure, which older files have under its old key."""
    return found.get(key if key in found else OLD_KEYS.get(key, key))


def _is_figure(value: Any) -> bool:
    return value is None or is_number(value)


def _has_figures(found: "dict[str, Any]") -> bool:
    """Returns whether a step can have the figures: a loss, null if it was not finite, at least one number, and no
    value of another type."""
    some = False
    for figure in FIGURES:
        value = member(found, figure.key)
        if figure.of == "run" or value is None:
            continue
        if figure.of == "layers":
            if not isinstance(value, list) or not all(map(_is_figure, value)):
                return False
        elif not is_number(value):
            return False
        else:
            some = True
    losses = found.get("val_loss_by_source")
    if losses is not None and not (isinstance(losses, dict) and all(map(_is_figure, losses.values()))):
        return False
    return some and "loss" in found


# ---- a run ----


class Run:
    """The record of a run; see the head of this file."""

    def __init__(self, folder: str) -> None:
        """Reads the run of the folder. Raises BadRun if it is no run, or none of its lines can be used."""
        _check_folder(folder)
        self.folder = folder  # path as named by the user
        self.name = os.path.basename(os.path.realpath(folder)) or folder
        self.lines: list[Line] = []
        self.start: Optional[Line] = None  # the figures of start.json, at 0 tokens
        self.sources: list[str] = []  # labels of held-out text in the order of their first lines
        self.n_damaged = self.n_repeated = 0
        self.cut: Optional[str] = None  # the reason why the metrics could not be read to their end
        # Hashes from start.json. Data and tokenizer may also come from a checkpoint. None: neither file has the hash.
        self.data: Optional[str] = None
        self.held_out: Optional[str] = None
        self.tokenizer: Optional[str] = None
        self.precision: Optional[str] = None  # bf16 or f32, from the last line that has it
        self.duplicate: Optional[str] = None  # the second path under which the folder was named
        self.copies: list[str] = []  # folders of runs that are copies of this run
        path = os.path.join(folder, "config.yaml")
        try:
            self.settings = _yaml.read_settings(_files.read(path, _yaml.MOST_BYTES))
        except BadFile as error:
            raise BadRun(f"{path}: {error}") from None
        self._read_metrics()
        self._read_start()
        self._read_checkpoint()
        self.tokens = [line.tokens for line in self.lines]
        self._at = {line.tokens: line for line in self.lines}
        self.precision = next((line.precision for line in reversed(self.lines) if line.precision), None)
        if self.precision is None and self.start:
            self.precision = self.start.precision
        steps = self._number("train.steps")
        self.steps = int(steps) if 0 <= steps < 1e15 else -1  # -1: unknown
        self.in_progress = not self.lines or self.lines[-1].step < self.steps or _is_locked(folder)

    def _number(self, name: str) -> float:
        try:
            return float(self.settings.get(name, ""))
        except ValueError:
            return NAN

    def _read_metrics(self) -> None:
        path = find_stored(self.folder, "metrics.jsonl")
        if path is None:
            return
        batch, by_step = self._number("data.batch_tokens"), dict[int, Line]()
        try:
            for piece in _lines(path):
                if piece is None or piece.strip(b" \t\r"):
                    self._take_line(piece, batch, by_step)
        except BadFile as error:
            self.cut = f"{path}: {error}"
        lines = [by_step[step] for step in sorted(by_step)]
        kept = _rising([line.tokens for line in lines])
        self.n_damaged += len(lines) - len(kept)
        self.lines = [lines[i] for i in kept]
        if not self.lines and self.cut:
            raise BadRun(f"{self.folder}: no line of its metrics could be read: {self.cut}")
        if not self.lines and self.n_damaged:
            what = f"none of the {self.n_damaged} lines of its metrics has a step, its tokens and a loss"
            raise BadRun(f"{self.folder}: {what}")

    def _take_line(self, piece: Optional[bytes], batch: float, by_step: "dict[int, Line]") -> None:
        found: dict[str, Any] = {}
        try:
            value = _files.parse(piece or b"null")
            found = value if isinstance(value, dict) else {}
        except BadFile:
            pass
        step = number(found.get("step"))
        if not 0 <= step < 2**53 or step != int(step) or not _has_figures(found):
            self.n_damaged += 1
            return
        want = step * batch  # NaN: unknown
        tokens = number(found["tokens"]) if "tokens" in found else want
        if not 0 <= tokens < 1e18 or abs(tokens - want) >= 0.5:
            self.n_damaged += 1
            return
        self.n_repeated += int(step) in by_step
        line = by_step[int(step)] = Line(int(step), tokens, found)
        self._know(line)

    def _know(self, line: Line) -> None:
        self.sources += [label for label in line.sources if label not in self.sources]

    def _read_start(self) -> None:
        path = os.path.join(self.folder, "start.json")
        if not os.path.lexists(path):
            return
        try:
            found = _files.parse(_files.read(path))
        except BadFile as error:
            raise BadRun(f"{path}: {error}") from None
        if not isinstance(found, dict):
            raise BadRun(f"{path}: it is no JSON object")
        self.data, self.held_out, self.tokenizer = (_text(found.get(k)) for k in ("data", "held_out", "tokenizer"))
        self.start = Line(0, 0.0, found)
        self._know(self.start)
        for figure in FIGURES:
            if not figure.at_start:
                self.start.values[figure.key] = NAN

    def _read_checkpoint(self) -> None:
        """Fills in hashes that the run's checkpoint recorded."""
        if not self.data:
            self.data = _text(self.recorded("state.json").get("data"))
        if not self.tokenizer:
            self.tokenizer = _text(self.recorded("checksums.json").get("tokenizer.json"))

    def checkpoint(self) -> str:
        """Returns the folder of the last checkpoint: the target of `last`, else the newest; "" if there is no
        checkpoint."""
        last = os.path.join(self.folder, "last")
        if os.path.isdir(last):
            return os.path.realpath(last)
        steps = [name for name in os.listdir(self.folder) if re.fullmatch(r"step-\d+", name)]
        return os.path.join(self.folder, max(steps, key=lambda name: int(name[5:]))) if steps else ""

    def checkpoint_step(self) -> int:
        """Returns the step of the last checkpoint, or -1."""
        match = re.fullmatch(r"step-(\d+)", os.path.basename(self.checkpoint()))
        return int(match[1]) if match else -1

    def recorded(self, name: str, instead: str = "") -> "dict[str, Any]":
        """Returns the members of a JSON file of the checkpoint, or of the folder `instead` if there is no checkpoint;
        an empty object if the file cannot be read."""
        folder = self.checkpoint() or instead
        try:
            found = _files.parse(_files.read(os.path.join(folder, name))) if folder else {}
        except BadFile:
            return {}
        return found if isinstance(found, dict) else {}

    def line_before(self, tokens: float) -> Optional[Line]:
        """Returns the last line at or before this number of tokens."""
        at = bisect.bisect_right(self.tokens, tokens)
        return self.lines[at - 1] if at else None

    def line_at(self, tokens: float) -> Optional[Line]:
        return self._at.get(tokens)


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None


def _rising(tokens: "list[float]") -> "list[int]":
    """Returns the longest sequence of indices whose tokens rise."""
    ends: list[int] = []  # the last index of the sequence of 1, 2, ... indices that ends with the fewest tokens
    least: list[float] = []
    before = []
    for i, value in enumerate(tokens):
        at = bisect.bisect_left(least, value)
        before.append(ends[at - 1] if at else -1)
        ends[at : at + 1], least[at : at + 1] = [i], [value]
    row, i = [], ends[-1] if ends else -1
    while i >= 0:
        row.append(i)
        i = before[i]
    return row[::-1]


def _is_locked(folder: str) -> bool:
    """Returns whether a process trains the run. It holds the lock for a moment, so that it is called only if all steps
    are made."""
    try:
        lock = os.open(os.path.join(folder, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False


def _check_folder(folder: str) -> None:
    """Raises BadRun unless the folder has a config.yaml, and either metrics or a checkpoint, or no weights."""
    if not os.path.exists(folder):
        raise BadRun(f"{folder}: there is no run here (no such folder)")
    if not os.path.isdir(folder):
        raise BadRun(f"{folder}: is no folder of a run; name the folder that `couplet train --out` made")
    names = set(os.listdir(folder))
    steps = [name for name in names if re.fullmatch(r"step-\d+", name)]
    begun = sorted((name for name in steps if int(name[5:])), key=lambda name: int(name[5:]), reverse=True)
    traces = (*begun[:1], *("metrics.jsonl" + ending for ending in ENDINGS), "start.json")
    trace = next((name for name in traces if name in names), "")
    weights = any(n.endswith((".safetensors", ".gguf", ".GGUF", ".safetensors.index.json")) for n in names)
    if "config.yaml" in names and (trace or "last" in names or steps or not weights):
        return
    if "state.json" in names:
        what = "is a checkpoint, not a run; name the folder of the run, in which it lies"
    elif weights or "config.json" in names:
        what = "is a model directory, not a run; name the folder that `couplet train --out` made, with metrics.jsonl"
    else:
        what = f"is no run: it has {trace and trace + ' but '}no config.yaml"
    raise BadRun(f"{folder}: {what}")


def read_runs(folders: "list[str]") -> "list[Run]":
    """Returns the runs of the folders. A folder that is named twice, by any path, is read once and has `duplicate`.
    Raises BadRun."""
    runs: list[Run] = []
    for folder in folders:
        there = next((r for r in runs if os.path.exists(folder) and os.path.samefile(r.folder, folder)), None)
        if there:
            there.duplicate = folder
        else:
            runs.append(Run(folder))
    return runs
