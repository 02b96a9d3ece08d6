#!/usr/bin/env python3
"""check_bare_packages.py PACKAGES FOLDER: runs the packages of tools/package.sh in a bare Debian 12, and lintian on the
Debian packages. Prints each command with its seconds.

The root is FOLDER/root, made by debootstrap (minbase) from MIRROR. First the tarball runs there, without a network.
Then apt installs the packages with their dependencies, and a C program is built with them. Commands that need libcurl
or a network report its absence. Needs root."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_hardening
from check_bare_wheels import OF_LIBC, PROJECT, TRAIN, inside, show

MIRROR = os.environ.get("MIRROR", "http://deb.debian.org/debian")
APT = ("apt-get", "-q", "-y", "--no-install-recommends", "-o", "APT::Sandbox::User=root")
QUIET = {"DEBIAN_FRONTEND": "noninteractive"}


def here(what, *command):
    start = time.monotonic()
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - start:7.1f} s  {what}", flush=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_root(root):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    here("debootstrap", "debootstrap", "--variant=minbase", "bookworm", root, MIRROR)
    for name in ("configs", "data", "examples"):
        shutil.copytree(PROJECT / name, root / "project" / name)


def check_program(root, program, run):
    show(root, "couplet version", program, "version")
    show(root, "couplet --version", program, "--version", lines=1)
    show(root, "couplet train, 20 steps of configs/tiny.yaml", TRAIN.format(program=program, run=run))
    show(root, "couplet inspect", program, "inspect", run)
    show(root, "couplet eval, 20 rows of COPA that come with it", f"{program} eval {run} --tasks copa --limit 20")


def refused(root, what, sentence, *command, code=1):
    """Checks that the command ends with this exit code and this text in its last sentence. It has no network."""
    start = time.monotonic()
    done = inside(root, *command)
    print(f"{time.monotonic() - start:7.1f} s  {what}", flush=True)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode != code or sentence not in last:
        sys.exit(f'{" ".join(command)}: exit code {done.returncode}, wanted "{sentence}"\n{done.stdout}{done.stderr}')
    print(f"           {last}", flush=True)


def check_servers(root, sentence, *programs):
    for program in programs:
        refused(root, f"{program} inspect hf://x/y --dry-run", sentence, program, "inspect", "hf://x/y", "--dry-run")


def check_gpu(root, program):
    """The CUDA backend is found beside the program, where it was packed. There is no driver."""
    refused(
        root,
        f"{program} train, on a GPU",
        "there is no driver for NVIDIA GPUs here (libcuda.so.1 is missing)",
        f"{program} train /project/configs/tiny.yaml --out /tmp/gpu --set compute.device=cuda",
        code=2,
    )


def check_ranks(root, program, run):
    show(
        root,
        f"{program} train, two steps by two ranks",
        f"mpirun --allow-run-as-root --oversubscribe -n 2 {program} train /project/configs/tiny.yaml --out {run} "
        "--set train.steps=2 --set train.warmup_steps=1 --set checkpoint.every=2",
        network=True,
        OMP_NUM_THREADS="1",
    )


def check_built(folder):
    """The program, the library and the modules below the folder are hardened."""
    files = [
        file
        for name in ("bin/couplet", "lib/**/libcouplet.so.*", "lib/**/couplet-*.so")
        for file in folder.glob(name)
        if not file.is_symlink()
    ]
    wrong = [f"{file} has not {what}" for file in files for what in check_hardening.missing(file)]
    if wrong or len(files) < 2:
        sys.exit("\n".join(wrong) or f"few files: {files}")


def check_tarball(root, tarball):
    folder = f"/opt/{tarball.name.removesuffix('.tar.gz')}"
    here("the tarball is unpacked", "tar", "-xzf", tarball, "-C", root / "opt")
    check_built(root / folder.lstrip("/"))
    named = [
        str(file)
        for file in (root / "opt").rglob("*")
        if file.is_file() and f"{PROJECT}/".encode() in file.read_bytes()
    ]
    if named:
        sys.exit(f"the folder of the build is named in {named}")
    loader = show(
        root, "the libraries that its program is loaded with", f"{folder}/bin/couplet", LD_TRACE_LOADED_OBJECTS="1"
    )
    paths = re.findall(r"=> (\S+) \(", loader)
    foreign = [
        path
        for path in paths
        if not os.path.realpath(path).startswith(folder) and not OF_LIBC.match(pathlib.Path(path).name)
    ]
    if foreign or "not found" in loader:
        sys.exit(f"the program has libraries from elsewhere, or none:\n{loader}")
    check_program(root, f"{folder}/bin/couplet", "/tmp/of-tarball")
    if list((root / folder.lstrip("/")).glob("lib/couplet/couplet-cuda.so")):
        check_gpu(root, f"{folder}/bin/couplet")
    return f"{folder}/bin/couplet"


def check_packages(root, packages, other):
    shutil.copytree(packages, root / "packages", ignore=shutil.ignore_patterns("*.tar.gz"))
    files = {file.name.split("_")[0]: f"/packages/{file.name}" for file in packages.glob("*.deb")}
    show(root, "apt-get update", *APT, "update", network=True, **QUIET)
    show(root, "apt-get install couplet", *APT, "install", files.pop("couplet"), network=True, **QUIET)
    check_program(root, "couplet", "/tmp/of-package")
    if "couplet-cuda" in files:
        show(root, "apt-get install couplet-cuda", *APT, "install", files.pop("couplet-cuda"), network=True, **QUIET)
        check_gpu(root, "couplet")
    check_servers(root, "couplet: hf://x/y: checkpoints on servers need libcurl", "couplet", other)
    show(root, "apt-get install libcurl4, which it recommends", *APT, "install", "libcurl4", network=True, **QUIET)
    check_servers(root, "Could not resolve host", "couplet", other)
    show(
        root, "apt-get install openmpi-bin, which it recommends", *APT, "install", "openmpi-bin", network=True, **QUIET
    )
    check_ranks(root, "couplet", "/tmp/ranks-of-package")
    check_ranks(root, other, "/tmp/ranks-of-tarball")
    show(
        root,
        "apt-get install libcouplet-dev, gcc, pkg-config",
        *APT,
        *("install", *files.values(), "gcc", "libc6-dev", "pkg-config"),
        network=True,
        **QUIET,
    )
    check_built(root / "usr")
    show(
        root,
        "a C program with the library",
        "sh",
        "-c",
        "cc -o /tmp/erc /project/examples/erc_in_your_trainer.c $(pkg-config --cflags --libs couplet) -lm && /tmp/erc",
        lines=1,
    )
    show(root, "apt-get purge", *APT, "purge", "couplet", "libcouplet*", **QUIET)
    left = [str(path) for path in (root / "usr").rglob("*couplet*")]
    if left:
        sys.exit(f"left after purge: {left}")


def main():
    packages, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    if os.geteuid():
        print("debootstrap needs root: nothing is checked")
        return
    said = here("lintian", "lintian", "--allow-root", "--fail-on", "error", *packages.glob("*.deb"))
    print(said, end="")
    (tarball,) = packages.glob("*.tar.gz")
    root = folder / "root"
    make_root(root)
    program = check_tarball(root, tarball)
    check_packages(root, packages, program)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
