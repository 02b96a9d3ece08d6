"""Pairs of runs document by document.

File: RUN/documents.json, plain or compressed: {"step": N, "window": S, "documents": [{"source": "web", "id": "...",
"bytes": B, "tokens": N, "nll": X}, ...]}. Documents are matched by source, id and length. Bits per byte of a set are
the sum of nll / ln 2 / the sum of bytes. An interval comes from 2,000 resamples of the documents with replacement, from
their 2.5 % to their 97.5 % quantile. With several pairs the mean is taken. A resample draws equal documents for all
pairs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import numpy as np

from ._runs import BadRun, Run, is_number, read_json
from ._statistics import NAN, quantile

RESAMPLES = 2000
_STREAM = 8  # the stream of random numbers: CPL_STREAM_BOOTSTRAP of src/base/rng.h
_Key = "tuple[str, str]"


class DocumentSet(NamedTuple):
    """All documents, or those of a source."""

    source: Optional[str]  # label of held-out text; None: all documents
    n: int
    bytes: float
    base: float  # bits per byte, means over the pairs
    other: float
    difference: float  # other less base
    low: float  # lower end of the interval; NaN for fewer than two documents
    high: float


class DocumentDifference(NamedTuple):
    n_pairs: int  # pairs in which both runs have documents; 0: nothing to compare
    step: int = -1
    only_base: int = 0  # largest number of documents of one side alone in any pair
    only_other: int = 0
    sets: "tuple[DocumentSet, ...]" = ()  # all documents, then each source


def _read(run: Run) -> "Optional[dict[str, Any]]":
    found = read_json(run.folder, "documents.json")
    return found if isinstance(found, dict) or found is None else {}


def _whole(found: "dict[str, Any]", key: str) -> int:
    value = found.get(key)
    return int(value) if is_number(value) else -1


def _table(found: "dict[str, Any]") -> "dict[tuple[str, str], tuple[float, float]]":
    """Returns bytes and nll of each document by source and id, in the order of the file. An id may be a number."""
    table: dict[tuple[str, str], tuple[float, float]] = {}
    entries = found.get("documents")
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        name, size, nll, source = (entry.get(key) for key in ("id", "bytes", "nll", "source"))
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if isinstance(name, str) and is_number(size) and is_number(nll) and size > 0:
            table.setdefault((source if isinstance(source, str) else "", name), (float(size), float(nll)))
    return dict(sorted(table.items()))


def compare_documents(pairs: "list[tuple[Run, Run]]") -> "tuple[DocumentDifference, Optional[str]]":
    """Compares the documents of all pairs of runs (base, other); also returns the reason why a pair is left out. Pairs
    without both files are passed over. A file that cannot be used is a reason."""
    reason = reading = None
    sums: dict[tuple[str, str], list[float]] = {}  # documents of the first base: bytes, nll and files of both sides
    n_pairs = only_other = 0
    for pair in pairs:
        try:
            files = [_read(run) for run in pair]
        except BadRun as error:
            reason = str(error)
            continue
        if files[0] is None or files[1] is None:
            continue
        readings = {(_whole(found, "step"), _whole(found, "window")) for found in files if found is not None}
        if len(readings | ({reading} if reading else set())) > 1:
            reason = "documents.json of the runs are of different steps or windows"
            continue
        tables = [_table(found) for found in files if found is not None]
        if reading is None:
            reading = readings.pop()
            sums = {key: [size, 0, 0, 0, 0] for key, (size, _) in tables[0].items()}
        for side, table in enumerate(tables):
            strange = len(table)
            for key, (size, nll) in table.items():
                if key in sums and sums[key][0] == size:
                    strange -= 1
                    sums[key][1 + side] += nll
                    sums[key][3 + side] += 1
            only_other = max(only_other, strange) if side else only_other
        n_pairs += 1
    if not n_pairs or reading is None:
        return DocumentDifference(0), reason
    kept = {key: row for key, row in sums.items() if row[3] == row[4] == n_pairs}
    if not kept:
        return DocumentDifference(0), "documents.json of the runs have no document in common"
    rows = np.array([[row[0], row[1] / n_pairs, row[2] / n_pairs] for row in kept.values()])
    sources = [source for source, _ in kept]
    sets = [_measure(None, rows, 0)]
    for source in dict.fromkeys(sources):
        sets.append(_measure(source, rows[[one == source for one in sources]], len(sets)))
    return DocumentDifference(n_pairs, reading[0], len(sums) - len(kept), only_other, tuple(sets)), reason


def _measure(source: Optional[str], rows: "np.ndarray[Any, Any]", layer: int) -> DocumentSet:
    """Returns the difference over documents. `rows` has [bytes, nll of base, nll of other] of each document."""
    size, base, other = rows.sum(0) / (1, math.log(2), math.log(2))
    low, high = interval((rows[:, 2] - rows[:, 1]) / math.log(2), rows[:, 0], layer) if len(rows) > 1 else (NAN, NAN)
    base, other = base / size, other / size
    return DocumentSet(source, len(rows), float(size), float(base), float(other), float(other - base), low, high)


def interval(delta: "np.ndarray[Any, Any]", size: "np.ndarray[Any, Any]", layer: int) -> "tuple[float, float]":
    """Returns the interval of sum(delta) / sum(size) under resampling. `layer` separates the random numbers of the sets
    of a comparison."""
    n, drawn = len(delta), []
    for first in range(0, RESAMPLES, block := max(1, (1 << 21) // n)):
        steps = np.arange(first, min(first + block, RESAMPLES), dtype=np.uint64)
        at = (_random(steps, -(-n // 4), layer)[:, :n] * np.uint64(n)) >> np.uint64(32)
        drawn += (delta[at].sum(1) / size[at].sum(1)).tolist()
    return quantile(drawn, 0.025), quantile(drawn, 0.975)


def _random(steps: "np.ndarray[Any, Any]", blocks: int, layer: int) -> "np.ndarray[Any, Any]":
    """Returns (steps, 4 blocks) numbers of 32 bits, as src/base/rng.h with seed 0: Philox4x32-10 (Salmon et al.,
    2011)."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    shape = (len(steps), blocks)
    c = [np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape), np.zeros(shape, np.uint64)]
    c += [np.broadcast_to(steps[:, None], shape), np.full(shape, _STREAM | layer << 8, np.uint64)]
    for turn in range(10):
        keys = [np.uint64(turn * weyl & 0xFFFFFFFF) for weyl in (0x9E3779B9, 0xBB67AE85)]
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(q >> shift) ^ c[1] ^ keys[0], q & low, (p >> shift) ^ c[3] ^ keys[1], p & low]
    return np.stack(c, -1).reshape(len(steps), 4 * blocks)
