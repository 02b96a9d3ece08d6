#!/usr/bin/env python3
"""check_absent.py PROGRAM: the program as -DCPL_REMOTE=OFF links it reads local files and refuses URLs by a
sentence."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from checkpoints import sharded  # noqa: E402
from program import COUPLET, apart, bad, check, finish, scratch_folder  # noqa: E402


def main():
    with scratch_folder() as work:
        made = sharded(work / "model")
        out, _ = apart("inspect", made.folder, "--json", "-")
        check('"kappa' in out, f"a local folder: {out[:200]}")
        for word in ("hf://org/model", "https://127.0.0.1:9/model"):
            bad(
                1, [word, "was built without libcurl (-DCPL_REMOTE=OFF)", "fetch the checkpoint first"], "inspect", word
            )
    check(b"libcurl.so" not in pathlib.Path(COUPLET).read_bytes(), "it names libcurl")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
