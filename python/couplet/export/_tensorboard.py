"""The lines of metrics.jsonl as event files for TensorBoard: docs/formats.md, "Events for TensorBoard"."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import pathlib
import re
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..report import _files

Json = Dict[str, Any]
NAMES = ("metrics.jsonl", "metrics.jsonl.gz", "metrics.jsonl.zst")
MOST_BYTES, MOST_LINE, MOST_CONFIG = 1 << 36, 1 << 28, 1 << 20
BUCKETS = 30  # buckets of a histogram
SECONDS = 1.0  # interval at which a run that trains is checked
SILENT = ("schema", "step")
OLD = (  # keys of schema 1, whose values have other names too
    "router_norm_sd",
    "gate_norm_sd",
    "home_top1",
    "home_topk",
    "home_clean_top1",
    "home_clean_topk",
    "kappa_rows_own",
    "kappa_columns_own",
)


def find_writer() -> Any:
    """Returns the class SummaryWriter of PyTorch or of tensorboardX, or None."""
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(name).SummaryWriter
        except ImportError:  # also PyTorch without TensorBoard
            continue
    return None


# ---- values of a line ----


def is_number(value: Any) -> bool:
    """Returns whether the value is a finite number that a float can hold."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def indented(text: str) -> str:
    """Returns the text as a block of code in Markdown."""
    return "".join("    " + line + "\n" for line in re.split("\r\n|\r|\n", text)).removesuffix("\n")


class Events:
    """One event file. Numbers must be finite; tags may have any length."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def histogram(self, tag: str, numbers: List[Any], **when: Any) -> None:
        numbers = [float(one) for one in numbers if is_number(one)]
        if not numbers:
            return
        low, high = min(numbers), max(numbers)
        width = high / BUCKETS - low / BUCKETS
        counts = [0] * BUCKETS if width > 0 else [len(numbers)]
        for one in numbers if width > 0 else ():
            counts[min(BUCKETS - 1, int(one / width - low / width))] += 1
        limits = [low + (i + 1) * width for i in range(len(counts) - 1)] + [high]
        squares = sum(one * one for one in numbers)
        self.writer.add_histogram_raw(tag, low, high, len(numbers), sum(numbers), squares, limits, counts, **when)

    def value(self, tag: str, value: Any, **when: Any) -> None:
        if is_number(value):
            self.writer.add_scalar(tag, value, **when)
        elif isinstance(value, dict):
            for name, one in value.items():
                self.value(f"{tag}/{name}", one, **when)
        elif isinstance(value, list):
            for layer, one in enumerate(value):
                if isinstance(one, list):
                    self.histogram(f"{tag}/layer_{layer}", one, **when)
                elif is_number(one):
                    self.value(f"{tag}/layer_{layer}", one, **when)

    def text(self, tag: str, text: str, **when: Any) -> None:
        self.writer.add_text(tag, text, **when)

    def samples(self, samples: Any, **when: Any) -> None:
        for i, one in enumerate(samples if isinstance(samples, list) else ()):
            parts = (one.get("prompt"), one.get("text")) if isinstance(one, dict) else (None, None)
            if isinstance(parts[0], str) and isinstance(parts[1], str):
                words = f"prompt\n\n{indented(parts[0])}\n\ncontinued\n\n{indented(parts[1])}"
                self.text(f"samples/{i + 1}", words, **when)

    def line(self, line: Json, seconds: float) -> None:
        when = {"global_step": line["step"], "walltime": seconds}
        for key, value in line.items():
            if key in SILENT or key in OLD:
                continue
            if key == "samples":
                self.samples(value, **when)
            elif is_number(value):
                self.value(f"{'validation' if key == 'val_loss' else 'train'}/{key}", value, **when)
            else:
                self.value(key, value, **when)


def line_of(text: bytes) -> Optional[Json]:
    """Returns the object of a line, or None for a damaged one."""
    try:
        line = _files.parse(text) if len(text) <= MOST_LINE else None
    except _files.BadFile:
        return None
    step = line.get("step") if isinstance(line, dict) else None
    return line if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 63 else None


def span(line: Json, before: Any) -> float:
    """Returns the seconds of the steps since the line before, whose tokens are `before`."""
    counts: List[Any] = [line.get("tokens"), before]
    done = [float(one) if is_number(one) else 0.0 for one in counts]
    speed: Any = line.get("tokens_per_s")
    if not is_number(speed) or speed <= 0 or done[0] <= done[1]:
        return 0.0
    seconds = (done[0] - done[1]) / float(speed)
    return seconds if math.isfinite(seconds) else 0.0


# ---- the files of a run ----


def read(path: pathlib.Path, largest: int, start: int = 0) -> bytes:
    try:
        return _files.read(path, largest, start)
    except _files.BadFile as error:
        raise _files.BadFile(f"{path}: {error}") from None


def metrics_of(run: pathlib.Path) -> pathlib.Path:
    for name in NAMES:
        if (run / name).exists():
            return run / name
    raise _files.BadFile(f"{run}: is no run: there is no metrics.jsonl")


def last_step(config: bytes) -> Optional[int]:
    """Returns train.steps of a config.yaml of the program."""
    found = re.search(rb"^train:\n(?:[ #].*\n|\n)*? +steps: (\d{1,15})\b", config, re.M)
    return int(found[1]) if found else None


def mark_of(run: pathlib.Path) -> str:
    """Returns the ending of the names of event files that belong to this run only."""
    path = run.resolve()
    name = path.name.encode()[:120].decode(errors="ignore")
    return f".couplet-export.{name}.{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def make_room(out: pathlib.Path, mark: str) -> None:
    """Removes the event files of an earlier export of this run. Raises BadFile if others exist, which TensorBoard would
    show as one run."""
    own = []
    for path in sorted(out.glob("*tfevents*")) if out.is_dir() else ():
        if not path.name.endswith(mark):
            raise _files.BadFile(
                f"{out}: has event files of something else ({path.name}), and TensorBoard would show both as one run; "
                "name another folder"
            )
        own.append(path)
    for path in own:
        path.unlink()


# ---- reading a growing file ----


class Follower:
    """The whole lines of a growing file, which is cut back where a run is resumed."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.seen: List[Tuple[int, bytes]] = []  # for every whole line: its step (-1: damaged), its hash
        self.end, self.last = 0, b""  # the end of the last whole line, and its bytes

    def whole_lines(self) -> Tuple[int, List[bytes]]:
        """Returns (number of seen lines that are surely unchanged, the whole lines after them)."""
        most = min(MOST_BYTES, _files.available_bytes() // 4)
        blob = read(self.path, most, max(0, self.end - len(self.last)))
        same = len(self.seen)
        if self.last and not blob.startswith(self.last):
            blob, self.end, self.last, same = read(self.path, most), 0, b"", 0
        lines = blob[len(self.last) :].split(b"\n")[:-1]  # text after the last line end is not yet a whole line
        if lines:
            self.end += sum(len(line) + 1 for line in lines)
            self.last = lines[-1] + b"\n"
        return same, lines

    def read_new_lines(self) -> Tuple[Optional[int], List[Json], int]:
        """Returns (the step from which on earlier lines are void, or None; new lines; number of damaged lines)."""
        same, pieces = self.whole_lines()
        sums = [hashlib.blake2b(piece, digest_size=16).digest() for piece in pieces]
        known = 0
        while same < len(self.seen) and known < len(sums) and sums[known] == self.seen[same][1]:
            same, known = same + 1, known + 1
        void = [step for step, _ in self.seen[same:] if step >= 0]
        lines = [line_of(piece) for piece in pieces[known:]]
        self.seen[same:] = [(line["step"] if line else -1, one) for line, one in zip(lines, sums[known:])]
        return min(void) if void else None, [line for line in lines if line], lines.count(None)


def growing(path: pathlib.Path, follow: bool) -> Iterator[Tuple[Optional[int], List[Json], int]]:
    """Yields Follower.read_new_lines, now and whenever the file changes. Without `follow` it yields once, with a cut
    last line."""
    if not follow:
        try:
            whole = b"".join(_files.pieces(path, min(MOST_BYTES, _files.available_bytes() // 4)))
        except _files.BadFile as error:
            raise _files.BadFile(f"{path}: {error}") from None
        pieces = whole.split(b"\n")
        lines = [line_of(piece) for piece in (pieces if pieces[-1] else pieces[:-1])]
        yield None, [line for line in lines if line], lines.count(None)
        return
    if path.suffix != ".jsonl":
        raise _files.BadFile(f"{path}: is packed, and does not grow: leave --follow out")
    follower, state = Follower(path), None
    while True:
        try:
            found = os.stat(path)
        except FileNotFoundError:  # a moment in which the file is being replaced
            found = None
        if found and (found.st_ino, found.st_size, found.st_mtime_ns) != state:
            state = (found.st_ino, found.st_size, found.st_mtime_ns)
            yield follower.read_new_lines()
        else:
            yield None, [], 0
            time.sleep(SECONDS)


# ---- the export ----


class Export:
    def __init__(self, run: pathlib.Path, out: pathlib.Path, writer: Any) -> None:
        self.run, self.out, self.make, self.mark = run, out, writer, mark_of(run)
        self.config = read(run / "config.yaml", MOST_CONFIG)
        self.events: Optional[Events] = None
        self.told: List[Tuple[int, Any]] = []  # for every line: its step and its tokens
        self.damaged = 0

    def begin(self, seconds: float, purge: Optional[int]) -> None:
        """Begins a new event file. With `purge`, events of other files from this step on become void."""
        if self.events is None:
            make_room(self.out, self.mark)
            self.out.mkdir(parents=True, exist_ok=True)
        else:
            self.events.writer.close()
        self.events = Events(self.make(str(self.out), purge_step=purge, filename_suffix=self.mark))
        text = indented(self.config.decode(errors="replace").removesuffix("\n"))
        self.events.text("config", text, global_step=max(0, purge or 0), walltime=seconds)

    def add_lines(self, void: Optional[int], lines: List[Json], now: float) -> None:
        """Writes the events of `lines`. `now` is the time of the last line; tokens_per_s dates the others."""
        if void is not None:
            self.told = [one for one in self.told if one[0] < void]
        tokens = [self.told[-1][1] if self.told else 0, *(line.get("tokens") for line in lines)]
        spans = [span(line, before) for line, before in zip(lines, tokens)]
        seconds = now - sum(spans)
        if void is not None or self.events is None:
            self.begin(seconds, void)
        assert self.events
        for line, one in zip(lines, spans):
            seconds += one
            self.events.line(line, seconds)
            self.told.append((line["step"], line.get("tokens")))
        self.events.writer.flush()

    def is_over(self) -> bool:
        """Returns whether the last step is reached. A resumed run may have received more steps."""
        self.config = read(self.run / "config.yaml", MOST_CONFIG)
        last = last_step(self.config)
        return last is not None and bool(self.told) and self.told[-1][0] >= last

    def close(self) -> None:
        if self.events:
            self.events.writer.close()


def export(run: pathlib.Path, out: pathlib.Path, writer: Any, follow: bool) -> List[str]:
    """Writes the event files; returns the sentences to print. Raises BadFile."""
    path = metrics_of(run)
    made = Export(run, out, writer)
    try:
        for void, lines, damaged in growing(path, follow):
            made.damaged += damaged
            if lines or void is not None:
                made.add_lines(void, lines, os.stat(path).st_mtime)
            if follow and lines and made.is_over():
                break
    finally:
        made.close()
    if not made.told:
        raise _files.BadFile(f"{path}: has no line of a step that can be read")
    said = [f"{len(made.told)} steps of {run} for tensorboard --logdir {out}"]
    if made.damaged:
        plural = made.damaged > 1
        said.append(f"{made.damaged} damaged line{'s' * plural} of metrics.jsonl {'are' if plural else 'is'} left out")
    return said
