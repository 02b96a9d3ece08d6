#!/usr/bin/env python3
"""records.py unpack [BLOCK ...] [--to DIR] | pack: unpacks or packs the records of runs in experiments/runs/.

A record is a folder RUN/ of files. A block is a set of runs of one question: a to f are the blocks of
experiments/questions.md, g the runs of small-alpha, h that of experiments/mean-token.md, long and short the runs of
2,000 and of 1,000 steps of the first series. runs/BLOCK.tar.xz has the records of a block, and first of all
BLOCK.sha256: the SHA-256 of each file, as sha256sum -c reads it. The runs of LOOSE are folders beside the packs, as is
every run that was recorded after the last `pack`. A folder counts in place of a packed run of its name.

unpack: writes the folders of all runs of the blocks (default: all blocks) into DIR (default: build/records).
pack:   moves every folder except LOOSE's into the pack of its block."""

import argparse
import functools
import hashlib
import io
import json
import pathlib
import re
import shutil
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = ROOT / "experiments" / "runs"
LOOSE = {
    "a-erc-1-s100",
    "short-alpha-0.4-s0",
    "short-alpha-1-s0",
    "short-vanilla-s0",
}  # tests and pages read these folders


def block_of(run):
    found = re.match("(short|[a-z])-", run)
    return found[1] if found else "long"


def blocks():
    return sorted({*(path.name.removesuffix(".tar.xz") for path in RUNS.glob("*.tar.xz")), *map(block_of, folders())})


def folders():
    return sorted(path.name for path in RUNS.iterdir() if path.is_dir())


def sums_of(files):
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())


@functools.cache
def packed(block):
    """Returns {run: {file: bytes}} of a pack, or {} if it does not exist. A file with another SHA-256 than recorded is
    an error."""
    path, runs = RUNS / f"{block}.tar.xz", {}
    if not path.exists():
        return runs
    with tarfile.open(path) as tar:
        files = {one.name: tar.extractfile(one).read() for one in tar}
    sums = files.pop(f"{block}.sha256", b"").decode()
    if sums != sums_of(files):
        raise ValueError(f"{path}: its files are not those that its {block}.sha256 lists")
    for name, data in files.items():
        run, file = name.split("/")
        runs.setdefault(run, {})[file] = data
    return runs


def names(block=None):
    """Returns the names of the recorded runs, of one block or of all."""
    packs = [block] if block else blocks()
    return sorted(
        {*(run for one in packs for run in packed(one)), *(run for run in folders() if block in (None, block_of(run)))}
    )


def files_of(run):
    """Returns {file: bytes} of a recorded run."""
    folder = RUNS / run
    if folder.exists():
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return packed(block_of(run))[run]


def document(run, name):
    """Returns a JSON file of a record, or None if the record has no such file."""
    data = files_of(run).get(name)
    return None if data is None else json.loads(data)


def lines_of(run):
    """Returns the recorded lines of the metrics."""
    return [json.loads(line) for line in files_of(run)["metrics.jsonl"].splitlines()]


def unpack(runs, to):
    """Writes the folders of recorded runs."""
    for run in runs:
        files = files_of(run)  # before the folder exists, which may be the record's own
        (to / run).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (to / run / name).write_bytes(data)


def write_pack(block, runs):
    """Writes the pack of a block. runs: {run: {file: bytes}}. Files of one name stand together: they are alike, which
    makes the pack smaller."""
    files = {
        f"{run}/{file}": runs[run][file]
        for file in sorted({file for one in runs.values() for file in one})
        for run in sorted(runs)
        if file in runs[run]
    }
    part = RUNS / f"{block}.part"
    with tarfile.open(part, "w:xz", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in {f"{block}.sha256": sums_of(files).encode(), **files}.items():
            entry = tarfile.TarInfo(name)  # without owner and time, so that equal files give an equal pack
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    part.rename(RUNS / f"{block}.tar.xz")


def pack():
    for block in blocks():
        new = [run for run in folders() if run not in LOOSE and block_of(run) == block]
        if new:
            write_pack(block, {**packed(block), **{run: files_of(run) for run in new}})
            print(f"{block}: {len(new)} runs")
        for run in new:
            shutil.rmtree(RUNS / run)
    packed.cache_clear()


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = words.add_subparsers(dest="verb", required=True)
    of_unpack = verbs.add_parser("unpack")
    of_unpack.add_argument("blocks", nargs="*", metavar="BLOCK")
    of_unpack.add_argument("--to", type=pathlib.Path, default=ROOT / "build" / "records", metavar="DIR")
    verbs.add_parser("pack")
    words = words.parse_args()
    if words.verb == "pack":
        return pack()
    unknown = sorted({*words.blocks} - {*blocks()})
    if unknown:
        sys.exit(f"records: no block is called {unknown[0]}; there are {', '.join(blocks())}")
    for block in words.blocks or blocks():
        unpack(names(block), words.to)
        print(f"{block}: {len(names(block))} runs are in {words.to}")
    return None


if __name__ == "__main__":
    main()
