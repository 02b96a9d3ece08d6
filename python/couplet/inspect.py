"""Runs `couplet inspect` on checkpoints as trainers write them.

    python -m couplet.inspect CHECKPOINT [CHECKPOINT ...] [OPTION ...]

Routers and gates of a CHECKPOINT for which `python -m couplet.extract` is are extracted to a temporary folder (TMPDIR
names another). Every other CHECKPOINT, and the options, are those of `couplet inspect`. The exit code is the
program's."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from typing import List, Optional

from ._checkpoint import is_of_trainer
from ._program import find_program
from .extract import describe, extract, layers_in, sentence_of
from .report._files import complain


def _extracted(path: pathlib.Path, folder: pathlib.Path, layers: Optional[str]) -> str:
    folder.mkdir()
    out = folder / f"{path.resolve().name}.safetensors"
    complain(f"{path}: {describe(*extract(path, out, layers_in(layers) if layers else None))}")
    return str(out)


def main(words: List[str]) -> int:
    program = os.environ.get("COUPLET_PROGRAM") or find_program()
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    checkpoints, rest = words[:options], words[options:]
    if not checkpoints:
        print(__doc__, file=sys.stdout if "--help" in rest or "-h" in rest else sys.stderr)
        return 0 if "--help" in rest or "-h" in rest else 2
    if program is None:
        complain("couplet.inspect: needs the program couplet: put it on PATH, or pip install couplet-moe-native")
        return 2
    layers = next((value for name, value in zip(rest, rest[1:]) if name == "--layers"), None)
    try:
        with tempfile.TemporaryDirectory(prefix="couplet-") as folder:
            paths = [
                _extracted(path, pathlib.Path(folder, str(at)), layers) if is_of_trainer(path) else str(path)
                for at, path in enumerate(map(pathlib.Path, checkpoints))
            ]
            return subprocess.run([program, "inspect", *paths, *rest]).returncode
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        complain(f"couplet.inspect: {sentence_of(error)}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
