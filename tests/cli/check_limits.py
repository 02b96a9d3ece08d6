#!/usr/bin/env python3
"""check_limits.py COUPLET: with every limit of the address space (`ulimit -v`), train and inspect end with exit
code 0, or with 1 and a sentence; a stack of 1 MiB is enough. COUPLET is built without sanitizers, which need more than
any limit."""

import shutil
import subprocess
import sys

from program import COUPLET, check, finish, scratch_folder
from train_case import train, write_corpus


def limited(limit, *words):
    done = subprocess.run(
        ["bash", "-c", f'ulimit -c 0 {limit}; exec "$@"', "-", COUPLET, *map(str, words)],
        capture_output=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stderr.decode().strip().splitlines()[-1:]


def main():
    ends = set()
    with scratch_folder() as folder:
        write_corpus(folder)
        base, out = train(folder, "base"), folder / "limited"
        verbs = ("train", folder / "c.yaml", "--out", out), ("inspect", base)
        for words in verbs:
            code, last = limited("-s 1024", *words)
            check(code == 0, f"ulimit -s 1024, {words[0]}: exit {code}: {last}")
        for kib in (*range(56000, 104000, 4000), 1000000):
            for words in verbs:
                shutil.rmtree(out, ignore_errors=True)
                code, last = limited(f"-v {kib}", *words)
                ends.add(code)
                check(
                    code == 0 or code == 1 and last and last[0].startswith("couplet: "),
                    f"ulimit -v {kib}, {words[0]}: exit {code}: {last}",
                )
        check(ends == {0, 1}, f"no limit is too small, or none large enough: {ends}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
