#!/usr/bin/env python3
"""Checks that every header compiles alone, twice in a row, as C11 with the first compiler found; headers of include/
as C++17 too."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys

FLAGS = [
    "-fsyntax-only",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-D_GNU_SOURCE",
    "-DCPL_ISA=any",
    "-Iinclude",
    "-Isrc",
    "-",
]
LANGUAGES = [("c", "c11", ("gcc", "clang")), ("c++", "c++17", ("g++", "clang++"))]


def compile_alone(header, compiler, language, standard):
    root = "include" if header.parts[0] == "include" else "src"
    line = f'#include "{header.relative_to(root)}"\n'
    done = subprocess.run(
        [compiler, "-x", language, f"-std={standard}", *FLAGS],
        text=True,
        input=line * 2,
        capture_output=True,
        check=False,
    )
    return None if done.returncode == 0 else f"{header} with {compiler}:\n{done.stderr}"


CUDA = ("attention.h", "device.h", "four.h", "grouped.h")  # CUDA C of src/tensor/cuda, compiled with the .cu files
headers = sorted(
    [
        *pathlib.Path("include").rglob("*.h"),
        *(f for f in pathlib.Path("src").rglob("*.h") if f.parent.name != "cuda" or f.name not in CUDA),
    ]
)
jobs = [
    (header, compiler, language, standard)
    for header in headers
    for language, standard, compilers in LANGUAGES
    if language == "c" or header.parts[0] == "include"
    for compiler in [name for name in compilers if shutil.which(name)][:1]
]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    wrong = [text for text in pool.map(lambda job: compile_alone(*job), jobs) if text]
print("\n".join(wrong))
if not headers or not jobs:
    print("there is no header, or no compiler to try it with")
sys.exit(bool(wrong) or not headers or not jobs)
