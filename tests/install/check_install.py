#!/usr/bin/env python3
"""check_install.py BUILD COMPILER SANITIZERS: installs into an empty folder and uses the installed files as another
program would: through pkg-config and CMake, shared and static."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

BUILD, COMPILER, SANITIZERS = sys.argv[1:4]
FLAGS = [f"-fsanitize={SANITIZERS}"] if SANITIZERS else []
EXPECTED = (
    "bin/couplet include/couplet.h include/couplet/activation.h "
    "include/couplet/status.h share/man/man1/couplet.1 "
    "share/bash-completion/completions/couplet share/zsh/site-functions/_couplet"
).split()
PROGRAM = """#include <couplet.h>
#include <stdio.h>
int main(void) { return cpl_last_error()[0] != 0 || printf("linked\\n") < 0; }
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(couplet REQUIRED)
add_executable(shared user.c)
target_link_libraries(shared couplet::couplet)
add_executable(static user.c)
target_link_libraries(static couplet::couplet_static)
"""


def run(*words, **options):
    first, *more = words  # the first may be several, as a shell reads them
    done = subprocess.run(
        [*shlex.split(str(first)), *map(str, more)], capture_output=True, text=True, check=False, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_files(prefix):
    missing = [name for name in EXPECTED if not (prefix / name).exists()]
    if missing:
        sys.exit(f"not installed: {missing}")
    version = pathlib.Path("VERSION").read_text().strip()
    if run(prefix / "bin/couplet", "--version") != f"couplet {version}\n":
        sys.exit("the installed program does not run")


def check_module(prefix):
    """The installed program finds the CUDA backend that was installed with it: the emulated one with one GPU."""
    built = re.search(r"^COUPLET_CUDA_MODULE:STRING=(.+)$", pathlib.Path(BUILD, "CMakeCache.txt").read_text(), re.M)[1]
    done = subprocess.run(
        f"{prefix}/bin/couplet train configs/tiny.yaml --out {prefix}/run --set compute.device=cuda:9".split(),
        capture_output=True,
        text=True,
        check=False,
    )
    missing = "couplet-cuda.so" in done.stderr
    if (
        done.returncode != 2
        or "compute.device is cuda:9, but " not in done.stderr
        or missing == pathlib.Path(BUILD, built).exists()
    ):
        sys.exit(f"the module of a GPU: {done.returncode}\n{done.stdout}{done.stderr}")


def check_exports(prefix, library):
    """The shared library exports only the functions that the installed headers mark CPL_API."""
    headers = "".join(file.read_text() for file in sorted((prefix / "include").rglob("*.h")))
    declared = set(re.findall(r"CPL_API\b[^;{]*?\b(cpl_\w+)\s*\(", headers))
    symbols = run("nm", "-D", "--defined-only", library / "libcouplet.so").splitlines()
    exported = {line.split()[-1] for line in symbols if line.split()[-2] in "TDBRVW"}
    exported -= {name for name in exported if name.startswith(("__asan", "__odr_asan"))}
    if exported != declared:
        sys.exit(
            f"exported and not declared: {sorted(exported - declared)}\n"
            f"declared and not exported: {sorted(declared - exported)}"
        )


def check_pkg_config(folder, prefix, library):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig")}
    shared = run("pkg-config", "--cflags", "--libs", "couplet", env=environment).split()
    own = [f"-I{prefix}/include", f"-L{library}", "-lcouplet"]
    if shared != own:
        sys.exit(f"pkg-config hands on {shared}, wanted {own}")
    run(COMPILER, "user.c", *FLAGS, *shared, "-o", "shared", cwd=folder)
    run("./shared", cwd=folder, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    static = run("pkg-config", "--static", "--cflags", "--libs", "couplet", env=environment).split()
    static = ["-l:libcouplet.a" if word == "-lcouplet" else word for word in static]
    run(COMPILER, "user.c", *FLAGS, *static, "-o", "static", cwd=folder)
    run("./static", cwd=folder)


def check_cmake(folder, prefix):
    (folder / "CMakeLists.txt").write_text(CMAKE)
    run(
        f"cmake -S {folder} -B {folder}/build -DCMAKE_PREFIX_PATH={prefix} -DCMAKE_C_COMPILER={COMPILER} "
        f"-DCMAKE_C_FLAGS={' '.join(FLAGS)}"
    )
    run("cmake", "--build", folder / "build")
    run(folder / "build/shared")
    run(folder / "build/static")


def check_build_in_path(folder, prefix):
    """A build folder in PATH, as for trying the program, does not hide the installed program."""
    path = os.pathsep.join([BUILD, str(prefix / "bin"), os.environ["PATH"]])
    run(
        f"cmake -S {folder} -B {folder}/in-path -DCMAKE_C_COMPILER={COMPILER} -DCMAKE_C_FLAGS={' '.join(FLAGS)}",
        env={**os.environ, "PATH": path},
    )


def main():
    if not shutil.which("pkg-config"):
        print("not checked: there is no pkg-config")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder, prefix = pathlib.Path(name) / "user", pathlib.Path(name) / "prefix"
        folder.mkdir()
        (folder / "user.c").write_text(PROGRAM)
        run("cmake", "--install", BUILD, "--prefix", prefix)
        check_files(prefix)
        check_module(prefix)
        library = next(prefix.rglob("libcouplet.so")).parent
        check_exports(prefix, library)
        check_pkg_config(folder, prefix, library)
        check_cmake(folder, prefix)
        check_build_in_path(folder, prefix)
    return 0


sys.exit(main())
