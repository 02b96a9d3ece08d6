#!/usr/bin/env python3
"""check_deps.py: checks tools/deps.sh if packages are missing, on machines that are made of stubs: root, an ordinary
user with and without sudo, a system without apt, clang alone. Checks the messages of tools/after_install.sh, the output
of a build (one line, all with V=1, all if it fails, its share on a terminal), and the folders in which a build
works."""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

sys.path.append("tests/cli")
from program import capture, check, finish

ROOT = pathlib.Path.cwd()
DEPS, BUILD, AFTER = (ROOT / "tools" / name for name in ("deps.sh", "build.sh", "after_install.sh"))


def machine(folder, **commands):
    """Makes a folder of commands, each a line of shell, with the system's commands that the scripts need."""
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
    done = capture(["/bin/sh", script, *words], env=environment, cwd=cwd, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout + done.stderr


def check_packages(work):
    nothing, user = "exit 1", "echo 1000"
    code, said = run(DEPS, "build", **machine(work / "user", dpkg_query=nothing, apt_get="exit 9", id=user))
    check(code == 1 and len(said.splitlines()) == 1, f"a user without sudo: {code} {said}")
    check(
        said.startswith("Become root and run: apt-get update && apt-get install ")
        and " libdnnl-dev" in said
        and " gcc" in said,
        f"a user without sudo: {said}",
    )
    code, said = run(
        DEPS, "build", "test", **machine(work / "locked", dpkg_query=nothing, sudo="exit 1", apt_get="exit 9", id=user)
    )
    check(code == 1 and len(said.splitlines()) == 1 and "libcmocka-dev" in said, f"no sudo: {said}")
    code, said = run(
        DEPS, **machine(work / "root", dpkg_query=nothing, id="echo 0", env='shift; "$@"', apt_get='echo "apt-get $*"')
    )
    lines = said.splitlines()
    check(code == 0 and lines[0].startswith("Installing with apt: "), f"root: {code} {said}")
    check(lines[1:2] == ["apt-get -q update"] and "install -y" in lines[2], f"root: {said}")
    code, said = run(
        DEPS, **machine(work / "offline", dpkg_query=nothing, id="echo 0", env='shift; "$@"', apt_get="exit 100")
    )
    check(
        code == 1 and "apt could not install them. Try: apt-get update && apt-get install" in said,
        f"apt fails: {code} {said}",
    )
    code, said = run(DEPS, **machine(work / "other"))
    check(code == 1 and said.startswith("This system has no apt. Install what these"), f"no apt: {said}")
    code, said = run(
        DEPS,
        **machine(
            work / "whole",
            dpkg_query="echo installed",
            id=user,
            apt_get="exit 9",
            **dict.fromkeys(("gcc", "make", "cmake", "pkg_config"), "exit 0"),
        ),
    )
    check((code, said) == (0, ""), f"nothing is missing: {code} {said}")


def check_compilers(work):
    """gcc is requested if there is no compiler, and OpenMP with clang, which lacks it."""
    clang = {"clang": 'case $1 in --version) echo "clang version 14";; *) exit 1;; esac'}
    there = {"clang": clang["clang"].replace("exit 1", "exit 0")}
    for number, (what, commands, words, wanted, unwanted) in enumerate(
        (
            ("no compiler", {}, {}, {"gcc"}, {"libomp-dev"}),
            ("cc", {"cc": "exit 0"}, {}, set(), {"gcc", "libomp-dev"}),
            ("clang", clang, {}, {"libomp-dev"}, {"gcc"}),
            ("clang with OpenMP", there, {}, set(), {"gcc", "libomp-dev"}),
            ("CC=clang", clang | {"cc": "exit 0"}, {"CC": "clang"}, {"libomp-dev"}, {"gcc"}),
        )
    ):
        _, said = run(
            DEPS,
            "build",
            **machine(work / f"compiler-{number}", dpkg_query="exit 1", apt_get="exit 9", id="echo 1000", **commands),
            **words,
        )
        names = set(said.split())
        check(wanted <= names and not unwanted & names and "make" in names, f"{what}: {said}")


def check_installed(work):
    """The loader's cache is updated as root. A line to type is printed if that is not enough or allowed, or PATH lacks
    it."""
    manifest = work / "manifest.txt"
    manifest.write_text("/p q/bin/couplet\n/p q/lib/libcouplet.so.0\n/p q/lib/libcouplet.so\n/p q/share/doc/couplet\n")
    cache, folders = "/p q/lib/libcouplet.so (libc6,x86-64) => /p q/lib/libcouplet.so", "/p q/lib: (from x)"
    known, unknown = f"[ $1 = -p ] && echo '{cache}' || echo '{folders}'", f"[ $1 = -p ] || echo '{folders}'"
    path = 'The shell finds couplet with: export PATH="/p q/bin:$PATH"\n'
    for number, (what, ldconfig, user, more, wanted) in enumerate(
        (
            ("root", f'[ $# = 0 ] && : > "{work}/noted"; [ $# = 0 ] || {{ {known}; }}', 0, ":/p q/bin", ""),
            ("PATH", known, 1000, "", path),
            ("a user", unknown, 1000, ":/p q/bin", "Programs find the library once root has run: ldconfig\n"),
            (
                "a folder of one's own",
                "exit 0",
                0,
                ":/p q/bin",
                'Programs find the library with: export LD_LIBRARY_PATH="/p q/lib"\n',
            ),
        )
    ):
        stubs = machine(work / f"installed-{number}", ldconfig=ldconfig, id=f"echo {user}")
        code, said = run(AFTER, manifest, PATH=stubs["PATH"] + more)
        check((code, said) == (0, wanted), f"installed, {what}: {code} {said!r}")
    check((work / "noted").exists(), "root has not run ldconfig")


def check_share(work):
    """On a terminal the share that is built is drawn on one line, which is removed at the end. The exit code stays."""
    for code, end in ((0, "true"), (1, "false")):
        stubs = machine(work / f"terminal-{code}", cmake=f'echo "-- noise"; echo "[  7%] a"; echo "[ 50%] b"; {end}')
        terminal, inside = pty.openpty()
        with subprocess.Popen(
            ["/bin/sh", BUILD, "release"], cwd=work, env=stubs, stdout=inside, stderr=subprocess.PIPE
        ) as process:
            os.close(inside)
            sent = b""
            try:
                while piece := os.read(terminal, 4096):
                    sent += piece
            except OSError:  # the other end is closed
                pass
            error = process.stderr.read()
        os.close(terminal)
        check(
            process.returncode == code and b"noise" not in sent and (b"noise" in error) == bool(code),
            f"a build on a terminal: {process.returncode} {sent!r} {error!r}",
        )
        check(
            b"\r\x1b[K[  7%] build/release\r\x1b[K[ 50%] build/release" in sent and sent.endswith(b"\r\x1b[K"),
            f"the share: {sent!r}",
        )


def check_folders(work):
    """Builds in a folder with odd characters, or gives a sentence if CMake itself cannot. Shells read a command
    once."""
    for name in ('a"b', "a;b", "a#b", "a[b", "a:b", "a,b", "a$(b", "a\\b"):
        (work / name).mkdir()
        code, said = run(BUILD, "release", cwd=work / name, PATH=os.environ["PATH"])
        check(code == 1 and said.count("\n") == 1 and str(work / name) in said, f"{name}: {code} {said}")
    for path in (ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake"), ROOT / "tests/CMakeLists.txt"):
        for command in re.findall(r"add_custom_(?:command|target)\([^#]*?\)\n", path.read_text()):
            check("VERBATIM" in command or "COMMAND" not in command, f"{path.name}: without VERBATIM: {command}")
    odd = work / "Ä & b $HOME it's (x)!`id`"
    odd.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("build", ".git"):
            (odd / path.name).symlink_to(path)
    done = capture(["cmake", "--preset", "release"], cwd=odd)
    rule = ["make", "-C", odd / "build/release", "-f"]
    for file, target in (
        ("CMakeFiles/make_unicode_classes.dir/build.make", "CMakeFiles/make_unicode_classes.dir/build"),
        ("CMakeFiles/couplet_objects.dir/build.make", "unicode_classes.c"),
    ):
        done = done if done.returncode else capture([*rule, file, target])
    made = odd / "build/release/unicode_classes.c"
    check(
        done.returncode == 0 and made.exists() and made.stat().st_size > 1000,
        f"a build in {odd.name}: {done.stdout[-500:]}{done.stderr[-1000:]}",
    )


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
    """Every target that builds checks its packages first."""
    target, first = None, {}
    for line in pathlib.Path("Makefile").read_text().splitlines():
        if line.startswith("\t") and target:
            first.setdefault(target, line.strip().lstrip("@"))
        elif ":" in line and not line.startswith((" ", ".")):
            target = line.split(":")[0] if "##" in line else None
            if target and line.split("##")[0].split(":")[1].split()[:1] == ["release"]:
                first[target] = "tools/deps.sh"  # the line of release
    for name, line in first.items():
        check(line.startswith("tools/deps.sh") or name in ("clean", "help"), f"make {name}: {line}")
    check(len(first) > 10, f"targets: {first}")


def check_container():
    """The last image does not run as root."""
    last = pathlib.Path("Containerfile").read_text().rsplit("\nFROM ", 1)[1]
    check(re.search(r"^USER [1-9]\d*:[1-9]\d*$.*^ENTRYPOINT", last, re.M | re.S), f"the container's user: {last}")


with tempfile.TemporaryDirectory() as name:
    check_packages(pathlib.Path(name))
    check_compilers(pathlib.Path(name))
    check_installed(pathlib.Path(name))
    check_quiet(pathlib.Path(name))
    check_folders(pathlib.Path(name))
    try:
        check_share(pathlib.Path(name))
    except OSError as error:
        print(f"not checked here: no pseudo-terminal: {error}")
check_targets()
check_container()
sys.exit(finish())
