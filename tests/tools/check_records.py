#!/usr/bin/env python3
"""check_records.py: tests experiments/tools/records.py. Packed files come back byte for byte. Equal records give equal
packs. A folder counts in place of a packed run. A pack whose files differ from its list is refused."""

import io
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "experiments/tools"), str(ROOT / "tests/cli")]
import records
from program import check, finish


def folders_of(folder):
    return {
        path.name: {file.name: file.read_bytes() for file in path.iterdir()}
        for path in folder.iterdir()
        if path.is_dir()
    }


def write(folder, runs):
    for run, files in runs.items():
        (folder / run).mkdir()
        for name, data in files.items():
            (folder / run / name).write_bytes(data)


def refused(path, entries):
    """Returns whether a pack of these files is refused."""
    with tarfile.open(path, "w:xz") as tar:
        for name, data in entries.items():
            one = tarfile.TarInfo(name)
            one.size = len(data)
            tar.addfile(one, io.BytesIO(data))
    records.packed.cache_clear()
    try:
        records.packed("a")
    except ValueError as error:
        return "a.sha256" in str(error)
    return False


def main():
    loose = min(records.LOOSE)
    first = {
        "a-erc-1-s1": {"report.json": b"{}\n", "empty": b""},
        "a-erc-1-s2": {"report.json": bytes(range(256)) * 99},
        "vanilla-s0": {"metrics.jsonl": b'{"step": 1}\n{"step": 2}\n'},
        loose: {"report.json": b"[]"},
    }
    later = {"a-vanilla-s1": {"report.json": b"{}\n"}}
    check([records.block_of(run) for run in first][:3] == ["a", "a", "long"], "blocks of runs")
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        records.RUNS = here / "runs"
        records.RUNS.mkdir()
        write(records.RUNS, first)
        records.pack()
        kept = sorted(path.name for path in records.RUNS.iterdir())
        check(kept == sorted(["a.tar.xz", "long.tar.xz", loose]), f"after pack: {kept}")
        check(records.names() == sorted(first), "names")
        check(records.names("long") == ["vanilla-s0"], "names of a block")
        check(records.lines_of("vanilla-s0")[-1] == {"step": 2}, "lines")
        check(records.document("a-erc-1-s1", "tasks.json") is None, "a file that a record does not have")
        records.unpack(records.names(), here / "out")
        check(folders_of(here / "out") == first, "unpack gives the folders back")
        records.unpack(["vanilla-s0"], records.RUNS)
        check(folders_of(records.RUNS)["vanilla-s0"] == first["vanilla-s0"], "a run is unpacked beside its pack")
        records.pack()

        with tarfile.open(records.RUNS / "a.tar.xz") as tar:
            tar.extractall(here / "tar")
        sums = subprocess.run(["sha256sum", "--quiet", "-c", "a.sha256"], cwd=here / "tar", check=False)
        check(sums.returncode == 0, "sha256sum -c a.sha256")
        check((here / "tar/a-erc-1-s2/report.json").read_bytes() == bytes(range(256)) * 99, "tar gives a file back")

        write(records.RUNS, later)
        records.pack()
        both = (records.RUNS / "a.tar.xz").read_bytes()
        check(records.names() == sorted([*first, *later]), "a later run joins its block")
        check(records.document("a-vanilla-s1", "report.json") == {}, "the later run")
        records.pack()
        check((records.RUNS / "a.tar.xz").read_bytes() == both, "pack without new runs changes nothing")
        write(records.RUNS, later)
        records.pack()
        check((records.RUNS / "a.tar.xz").read_bytes() == both, "the same records give the same pack")
        write(records.RUNS, {"a-erc-1-s1": {"report.json": b"[1]"}})
        check(records.document("a-erc-1-s1", "report.json") == [1], "a folder counts in place of a packed run")

        files = {f"{run}/{name}": data for run in ("a-erc-1-s1", "a-erc-1-s2") for name, data in first[run].items()}
        right, path = {"a.sha256": records.sums_of(files).encode()}, records.RUNS / "a.tar.xz"
        check(not refused(path, {**right, **files}), "a right pack")
        check(refused(path, files), "a pack without its list")
        check(refused(path, {**right, **files, "a-erc-1-s1/report.json": b"{ }"}), "a file that was changed")
        check(refused(path, {**right, **dict(list(files.items())[1:])}), "a file that is missing")
        check(refused(path, {**right, **files, "a-erc-1-s3/report.json": b""}), "a file more")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
