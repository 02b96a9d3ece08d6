#!/usr/bin/env python3
"""Checks the collectives of parallel/group.h on each installed MPI library: right results, and the bits of threads.

usage: check_mpi.py GROUP_RANKS BUILD"""

import os
import shutil
import subprocess
import sys
import tempfile

import mpi

program, build = map(os.path.abspath, sys.argv[1:])
here = [library for library in mpi.LIBRARIES if mpi.is_here(library, build)]
if not here:
    sys.exit(77)
wrong = []


def expect(truth, what):
    if not truth:
        wrong.append(what)


folder = tempfile.mkdtemp()
inner = os.path.join(folder, "inner")
os.mkdir(inner)
for ranks in (2, 3, 4, 7):
    threads = subprocess.run([program, "threads", str(ranks)], capture_output=True, text=True, env=mpi.environment())
    expect(threads.returncode == 0 and len(threads.stdout) == 17, f"{ranks} threads: {threads.stderr}")
    for library in here:
        code, out, error = mpi.run(library, ranks, program, build=build)
        expect(code == 0, f"{library}, {ranks} ranks: {code} {error}")
        expect(out == threads.stdout, f"{library}, {ranks} ranks: {out.strip()}, on threads {threads.stdout.strip()}")

# Another MPI library than the launcher's, a file that is no library, or a missing library: a sentence, exit code 3.
for library in here:
    for other, sentence in [(o, "belongs to another MPI library") for o in here if o != library] + [
        ("/nowhere/x.so", "there is no file /nowhere/x.so"),
        (program, "cannot be loaded"),
    ]:
        code, out, error = mpi.run(library, 2, program, build=build, COUPLET_MPI=other)
        expect(code == 3 and sentence in error, f"{library} with {other}: {code} {error}")
    bare = shutil.copy(program, inner)  # modules are looked for in the folder above, too
    code, out, error = mpi.run(library, 2, bare, build=build)
    expect(
        code == 3 and f"couplet-mpi-{library}.so" in error and "started 2 processes" in error,
        f"{library} without its module: {code} {error}",
    )

shutil.rmtree(folder)
print("\n".join(wrong))
sys.exit(bool(wrong))
