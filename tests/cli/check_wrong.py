#!/usr/bin/env python3
"""check_wrong.py COUPLET: wrong uses of the verbs: the rows of wrong.txt, which describes their form."""

import itertools
import pathlib
import re
import subprocess
import sys

from inputs import different, files_of
from program import bad, check, finish, scratch_folder
from train_case import train, write_corpus

TABLE = pathlib.Path("tests/cli/wrong.txt")
ROOT = str(pathlib.Path().resolve())


def rows(row, named):
    """Returns (words, sentence) of a row, once for every choice among its names."""
    _, words, parts = (row + " ").split(" | ", 2)
    names = [name for name in re.findall(r"\$([A-Z_]+)", words) if name in named]
    for chosen in itertools.product(*(named[name] for name in names)):
        told, said = words, parts
        for name, value in zip(names, chosen):
            told, said = told.replace("$" + name, value, 1), said.replace("$" + name, value.split()[0])
        yield told, said


def everything(folder):
    """Returns files and folders: a folder that a refused run leaves empty counts too."""
    return {**files_of(folder), **{f"{path.relative_to(folder)}/": b"" for path in folder.rglob("*") if path.is_dir()}}


def try_row(folder, row, named):
    for words, parts in rows(row, named):
        words, _, text = words.partition(" <<< ")
        before, code = everything(folder), int(row[0])
        told = bad(code, parts.strip().split(" & "), words, cwd=folder, data=text.encode() or None)
        check(code == 1 or told.count("\n") == 1, f"couplet {words}: more than a sentence: {told}")
        changed = different(before, everything(folder))
        check(not changed, f"couplet {words}: changed {changed}")


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        train(folder, "run")
        named = {}
        for line in TABLE.read_text().replace("{root}", ROOT).splitlines():
            if line.startswith("$ "):
                subprocess.run(["bash", "-ec", line[2:]], cwd=folder, check=True)
            elif line.startswith("= "):
                name, words = line[2:].split(" ", 1)
                named[name] = words.split(" ;; ")
            elif line and not line.startswith("#"):
                try_row(folder, line, named)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
