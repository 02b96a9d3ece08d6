#!/usr/bin/env python3
"""check_deps.py: what tools/deps.sh does and says where packages are missing, on machines that are made of
stubs: root, an ordinary user with and without sudo, a system without apt; and that a build prints one line,
all with V=1, and all where it fails."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

DEPS, BUILD = (pathlib.Path("tools", name).resolve() for name in ("deps.sh", "build.sh"))
wrong = []


def check(truth, what):
    if not truth:
        wrong.append(what)


def machine(folder, **commands):
    """A folder of commands, each a line of shell; those of the system that the scripts need are there."""
    folder.mkdir()
    for name in ("sh", "sed", "grep", "cat", "mkdir", "nproc"):
        folder.joinpath(name).symlink_to(pathlib.Path("/bin", name))
    commands = {name.replace("_", "-"): line for name, line in commands.items()}
    for name, line in commands.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    return {"PATH": str(folder)}


def run(script, *words, cwd=None, **environment):
    done = subprocess.run(["/bin/sh", script, *words], env=environment, cwd=cwd, text=True,
                          capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout + done.stderr


def check_packages(work):
    nothing, user = "exit 1", "echo 1000"
    code, said = run(DEPS, "build", **machine(work / "user", dpkg_query=nothing, apt_get="exit 9", id=user))
    check(code == 1 and len(said.splitlines()) == 1, f"a user without sudo: {code} {said}")
    check(said.startswith("Become root and run: apt-get update && apt-get install ")
          and " libdnnl-dev" in said and " gcc" in said, f"a user without sudo: {said}")
    code, said = run(DEPS, "build", "test", **machine(work / "locked", dpkg_query=nothing, sudo="exit 1",
                                                     apt_get="exit 9", id=user))
    check(code == 1 and len(said.splitlines()) == 1 and "libcmocka-dev" in said, f"no sudo: {said}")
    code, said = run(DEPS, **machine(work / "root", dpkg_query=nothing, id="echo 0", env='shift; "$@"',
                                     apt_get='echo "apt-get $*"'))
    lines = said.splitlines()
    check(code == 0 and lines[0].startswith("Installing with apt: "), f"root: {code} {said}")
    check(lines[1:2] == ["apt-get -q update"] and "install -y" in lines[2], f"root: {said}")
    code, said = run(DEPS, **machine(work / "offline", dpkg_query=nothing, id="echo 0",
                                     env='shift; "$@"', apt_get="exit 100"))
    check(code == 1 and "apt could not install them. Try: apt-get update && apt-get install" in said,
          f"apt fails: {code} {said}")
    code, said = run(DEPS, **machine(work / "other"))
    check(code == 1 and said.startswith("This system has no apt. Install what these"), f"no apt: {said}")
    code, said = run(DEPS, **machine(work / "whole", dpkg_query="echo installed", id=user,
                                     apt_get="exit 9", **dict.fromkeys(
                                         ("gcc", "make", "cmake", "pkg_config"), "exit 0")))
    check((code, said) == (0, ""), f"nothing is missing: {code} {said}")


def check_quiet(work):
    noisy = 'echo "-- noise $*"; [ ! -e fail ]'
    environment = machine(work / "cmake", cmake=noisy)
    code, said = run(BUILD, "release", cwd=work, **environment)
    check(code == 0 and said == "Building build/release (some minutes; V=1 prints all)\n", said)
    code, said = run(BUILD, "release", cwd=work, V="1", **environment)
    check(code == 0 and said.count("-- noise") == 2 and "VERBOSE=1" in said, f"V=1: {said}")
    (work / "fail").touch()
    code, said = run(BUILD, "release", cwd=work, **environment)
    check(code == 1 and "-- noise" in said, f"a build that fails: {code} {said}")


def check_targets():
    """Every target that builds asks for its packages first."""
    target, first = None, {}
    for line in pathlib.Path("Makefile").read_text().splitlines():
        if line.startswith("\t") and target:
            first.setdefault(target, line.strip().lstrip("@"))
        elif ":" in line and not line.startswith((" ", ".")):
            target = line.split(":")[0] if "##" in line else None
            if target and line.split("##")[0].split(":")[1].strip() == "release":
                first[target] = "tools/deps.sh"  # that of release
    for name, line in first.items():
        check(line.startswith("tools/deps.sh") or name in ("clean", "help"), f"make {name}: {line}")
    check(len(first) > 10, f"targets: {first}")


def check_container():
    """The last image does not run as root."""
    last = pathlib.Path("Containerfile").read_text().rsplit("\nFROM ", 1)[1]
    check(re.search(r"^USER [1-9]\d*:[1-9]\d*$.*^ENTRYPOINT", last, re.M | re.S), f"the container's user: {last}")


with tempfile.TemporaryDirectory() as name:
    check_packages(pathlib.Path(name))
    check_quiet(pathlib.Path(name))
check_targets()
check_container()
print("\n".join(wrong))
sys.exit(bool(wrong))
