#!/usr/bin/env python3
"""check_check_kernels.py: tools/check_kernels.py finds each fault that is planted in the output of nvcc and ptxas about
a kernel, and accepts right output. A program that prints this output replaces nvcc."""

import pathlib
import subprocess
import sys
import tempfile

PLAIN, CORES = "_Z3addPf", "_Z15attention_coresILi64EEv3job"
NVCC = """#!/bin/sh
while [ $# -gt 1 ]; do shift; done
cp {folder}/kernels "$1/kernels.ptx"
cat {folder}/said >&2
exit {code}
"""


def kernel(name, threads, line):
    bound = f".maxntid {threads}, 1, 1\n" if threads else ""
    return f".visible .entry {name}(\n\t.param .u64 x\n)\n{bound}{{\n\t{line}\n}}\n"


def said(name, registers, stack=0, spills=0):
    return (
        f"ptxas info    : Compiling entry function '{name}' for 'sm_80'\n"
        f"    {stack} bytes stack frame, {spills} bytes spill stores, {spills} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers\n"
    )


def check(what, ptx, words, part, code=0):
    """Checks the output about a fault, which contains `part`. None: there is no fault."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "kernels").write_text(ptx)
        (folder / "said").write_text(words)
        (folder / "nvcc").write_text(NVCC.format(folder=folder, code=code))
        (folder / "nvcc").chmod(0o755)
        done = subprocess.run(
            [sys.executable, "tools/check_kernels.py", folder / "nvcc"], capture_output=True, text=True, check=False
        )
    fits = done.returncode == 0 and not done.stderr if part is None else done.returncode != 0 and part in done.stderr
    if not fits:
        print(f"{what}: exit {done.returncode}, {done.stderr!r}")
    return fits


def main():
    mma, load = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1};", "ld.global.f32 %f1, [%rd1];"
    right = kernel(CORES, 128, mma) + kernel(PLAIN, None, load)
    words = said(CORES, 243) + said(PLAIN, 64)
    results = [
        check("right", right, words, None),
        check("a kernel without tensor cores", kernel(CORES, 128, load), said(CORES, 20), "no mma.sync"),
        check("a kernel that is not named", kernel(PLAIN, 128, mma), said(PLAIN, 20), "does not name"),
        check("spills", right, said(CORES, 255, 8, 12) + said(PLAIN, 64), "12 bytes spill stores"),
        check("an array in local memory", right, said(CORES, 40, 128) + said(PLAIN, 64), "128 bytes stack frame"),
        check("too many registers", right, said(CORES, 243) + said(PLAIN, 65), "72 registers in 1024 threads"),
        check("too many in a block with bounds", kernel(CORES, 512, mma), said(CORES, 243), "in 512 threads"),
        check("nvcc fails", right, "error: expected a ;\n", "expected a ;", 1),
    ]
    return not all(results)


sys.exit(main())
