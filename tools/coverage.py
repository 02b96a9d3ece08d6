#!/usr/bin/env python3
"""coverage.py BUILD: after the tests of BUILD (preset coverage), prints by gcov the share of the lines of each room of
src/ that ran, and the functions that no test called. A source that is compiled several times counts once."""

import collections
import json
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path("src").resolve()


def counts_of(build):
    """Returns how often each (file, line) ran, and each function, {(file, first line): [name, times]}."""
    lines, functions = collections.Counter(), {}
    notes = sorted(map(str, build.resolve().rglob("*.gcno")))
    for first in range(0, len(notes), 40):
        command = ["gcov", "--json-format", "--stdout", *notes[first : first + 40]]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        for report in map(json.loads, said.splitlines()):
            for file in report["files"]:
                path = (pathlib.Path(report["current_working_directory"]) / file["file"]).resolve()
                if SOURCE not in path.parents:
                    continue
                for line in file["lines"]:
                    lines[path, line["line_number"]] += line["count"]
                for one in file["functions"]:
                    functions.setdefault((path, one["start_line"]), [one["name"], 0])[1] += one["execution_count"]
    return lines, functions


def rooms_of(path):
    parts = path.relative_to(SOURCE).parts
    return ("src", "src/tensor/cuda" if parts[:2] == ("tensor", "cuda") else f"src/{parts[0]}")


def main():
    lines, functions = counts_of(pathlib.Path(sys.argv[1]))
    there, run = collections.Counter(), collections.Counter()
    for (path, _), times in lines.items():
        there.update(rooms_of(path))
        run.update(rooms_of(path) if times else ())
    print("never called:")
    for (path, line), (name, times) in sorted(functions.items()):
        if not times:
            print(f"    {path.relative_to(SOURCE.parent)}:{line} {name}")
    print(f"\n{'room':16}{'lines':>8}{'run':>8}{'share':>8}")
    for room in sorted(there, key=lambda name: (name == "src", name)):
        print(f"{room:16}{there[room]:8,}{run[room]:8,}{run[room] / there[room]:8.1%}")


main()
