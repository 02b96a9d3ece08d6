#!/usr/bin/env python3
"""check_kernels.py NVCC WORD...: runs nvcc, and fails if a kernel breaks a rule:

- Registers and shared memory hold it: no spills, no stack in local memory, except the kernels in STACK.
- One of its blocks fits into a processor: registers times threads are at most 65,536.
- It multiplies by tensor cores (mma.sync in its PTX) exactly if its name is in CORES.

`make cuda` compiles with it under CONFIGURE=-DCOUPLET_CHECK_KERNELS=ON (cmake/cuda.cmake)."""

import pathlib
import re
import subprocess
import sys
import tempfile

CORES = re.compile(r"attention_(backward_)?cores|grouped_bf16")
STACK = re.compile(r"rope_table")  # kernel that computes the cosine of a large double
REGISTERS, UNIT = 65536, 8  # registers of a processor; a thread gets a multiple of UNIT
ENTRY = re.compile(r"^(?:\.visible )?\.entry (\w+)\(", re.M)


def kernels_of(ptx):
    """Returns name -> (most threads of a block, whether the kernel uses tensor cores)."""
    parts = ENTRY.split(ptx)[1:]
    found = {}
    for name, body in zip(parts[::2], parts[1::2]):
        most = re.search(r"^\.maxntid (\d+), (\d+), (\d+)", body, re.M)
        found[name] = (int(most[1]) * int(most[2]) * int(most[3]) if most else 1024, "mma.sync" in body)
    return found


def check_cores(kernels):
    return [
        f"{name}: "
        + (
            "tensor cores, which CORES of tools/check_kernels.py does not name"
            if cores
            else "no mma.sync, although CORES of tools/check_kernels.py names it"
        )
        for name, (_, cores) in kernels.items()
        if cores != bool(CORES.search(name))
    ]


def check_room(log, kernels):
    """Checks registers and spills. `log` is the output of ptxas -v."""
    wrong, name = [], None
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            name, where = entry[1], f"{entry[1]} for {entry[2]}"
        elif room := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, *spills = map(int, room.groups())
            if name and (any(spills) or stack and not STACK.search(name)):
                wrong.append(f"{where}: {room[0]}")
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            registers, threads = -(-int(used[1]) // UNIT) * UNIT, kernels[name][0]
            if registers * threads > REGISTERS:
                wrong.append(f"{where}: {registers} registers in {threads} threads: give it __launch_bounds__")
    return wrong


def main():
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*sys.argv[1:], "-Xptxas", "-v", "--keep", "--keep-dir", folder], capture_output=True, text=True
        )
        files = sorted(pathlib.Path(folder).glob("*.ptx"))
        if done.returncode or not files:
            print(done.stdout + done.stderr, file=sys.stderr)
            return done.returncode or 1
        all_kernels = [kernels_of(file.read_text()) for file in files]
    wrong = sorted({line for kernels in all_kernels for line in check_cores(kernels)})
    wrong += check_room(done.stdout + done.stderr, {name: k for kernels in all_kernels for name, k in kernels.items()})
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
