#!/usr/bin/env python3
"""check_package.py BUILD: makes Debian's packages of the build and reads them with dpkg-deb: each file that `make
install` installs is in exactly one of them, in Debian's form if that is another. Checks the fields of each package, and
the list of libraries that tarball and wheel contain."""

import hashlib
import json
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import urllib.parse

sys.path.append("tests/cli")
from program import capture, check, finish

BUILD = pathlib.Path(sys.argv[1])
VERSION = pathlib.Path("VERSION").read_text().strip()
LIBRARY = f"libcouplet{VERSION.split('.')[0]}"
PROBES = {
    "couplet": (
        "bin/couplet share/man/man1/couplet.1.gz "
        "share/zsh/vendor-completions/_couplet "
        "share/bash-completion/completions/couplet share/doc/couplet/docs/method.md "
        "share/couplet/eval/SOURCES.md"
    ).split(),
    LIBRARY: [f"lib/libcouplet.so.{VERSION}"],
    "libcouplet-dev": (
        "include/couplet.h lib/libcouplet.so lib/libcouplet.a "
        "lib/pkgconfig/couplet.pc lib/cmake/couplet/coupletConfig.cmake"
    ).split(),
}
MODULE = BUILD / re.search(r"^COUPLET_CUDA_MODULE:STRING=(.+)$", (BUILD / "CMakeCache.txt").read_text(), re.M)[1]
if MODULE.exists():
    PROBES["couplet-cuda"] = ["lib/couplet/couplet-cuda.so"]
DEBIANS = {
    "share/man/man1/couplet.1": "share/man/man1/couplet.1.gz",
    "share/zsh/site-functions/_couplet": "share/zsh/vendor-completions/_couplet",
    "share/doc/couplet/LICENSE": "share/doc/couplet/copyright",
}


def run(*words):
    first, *more = words  # the first may be several, as a shell reads them
    done = capture([*shlex.split(str(first)), *map(str, more)])
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def plain(path):
    """Returns the path without Debian's folder of the architecture, which other prefixes lack."""
    return re.sub(r"^lib/[a-z0-9_]+-linux-gnu[a-z0-9]*/", "lib/", path)


def files_of(package):
    """Returns the paths below usr/, which must all belong to root."""
    lines = [line.split(maxsplit=5) for line in run("dpkg-deb", "-c", package).splitlines()]
    check(all(line[1] == "root/root" for line in lines), f"{package.name}: files of others than root")
    names = [line[5].split(" -> ")[0] for line in lines if not line[0].startswith("d")]
    check(all(name.startswith("./usr/") for name in names), f"{package.name}: files outside /usr")
    return {plain(name.removeprefix("./usr/")) for name in names}


def check_fields(name, package):
    names = ("Package", "Version", "Depends", "Recommends", "Description", "Maintainer", "Section", "Architecture")
    field = {key: run("dpkg-deb", "-f", package, key).strip() for key in names}
    check((field["Package"], field["Version"]) == (name, VERSION), f"{name}: {field}")
    check(re.search(r".+ <\S+@\S+>", field["Maintainer"]) and field["Section"], f"{name}: {field}")
    summary, *text = field["Description"].splitlines()
    check(len(summary) < 80 and text and all(len(line) < 81 for line in text), f"{name}: {field['Description']}")
    if name == "libcouplet-dev":
        check(
            f"{LIBRARY} (= {VERSION})" in field["Depends"]
            and "libdnnl-dev" in field["Depends"]
            and "libyaml-dev" in field["Depends"],
            f"{name} depends on {field['Depends']}",
        )
    elif name == "couplet-cuda":
        check(
            field["Depends"].startswith(f"couplet (= {VERSION}), ")
            and "libc6 (>= " in field["Depends"]
            and "cublas" not in field["Depends"],
            f"{name} depends on {field['Depends']}",
        )
    else:
        check(
            "libc6 (>= " in field["Depends"] and "libdnnl2" in field["Depends"] and "mpi" not in field["Depends"],
            f"{name} depends on {field['Depends']}",
        )
    modules = {file.stem.split("-")[-1] for file in BUILD.glob("couplet-mpi-*.so")}
    launchers = [launcher for key, launcher in (("openmpi", "openmpi-bin"), ("mpich", "mpich")) if key in modules]
    remote = re.search(r"^CPL_REMOTE:BOOL=(ON|1)$", (BUILD / "CMakeCache.txt").read_text(), re.M)
    wanted = [" | ".join(launchers)] * bool(launchers) + ["libcurl4"] * bool(remote)
    wanted += ["python3", "python3-numpy"]
    check(
        field["Recommends"] == (", ".join(wanted) if name == "couplet" else ""),
        f"{name} recommends {field['Recommends']}",
    )


def check_list_of_libraries(folder):
    """Checks the libraries in the tarball and the wheel: each is in the list for scanners, with sum and package.
    Libraries that are linked into the CUDA backend are named if the backend is included."""
    run(
        f"cmake -Dversion={VERSION} -Dprogram={BUILD / 'couplet'} -Dlibraries_to={folder / 'lib'} "
        f"-Dlicenses_to={folder / 'licenses'} -Dmodule={MODULE} -P cmake/bundle.cmake"
    )
    said = (folder / "licenses/SOURCES").read_text()
    check(("libcudart_static" in said) == MODULE.exists(), f"the sources: {said}")
    made = json.loads((folder / "licenses/couplet.spdx.json").read_text())
    check(made["spdxVersion"] == "SPDX-2.3" and made["packages"][0]["versionInfo"] == VERSION, f"the list: {made}")
    listed = {package["name"]: package for package in made["packages"][1:]}
    check(
        "libyaml-0.so.2" in listed and set(listed) == {file.name for file in (folder / "lib").iterdir()},
        f"listed: {sorted(listed)}",
    )
    contained = {relation["relatedSpdxElement"] for relation in made["relationships"]}
    check(contained == {package["SPDXID"] for package in made["packages"]}, f"contained: {contained}")
    for name, package in listed.items():
        sum_ = hashlib.sha256((folder / "lib" / name).read_bytes()).hexdigest()
        check(package["checksums"][0]["checksumValue"] == sum_, f"{name}: the sum")
        url = urllib.parse.unquote(package["externalRefs"][0]["referenceLocator"])
        debian = re.fullmatch(r"pkg:deb/\w+/(.+)@(.+)\?arch=\w+&distro=.+", url)
        check(
            debian and run("dpkg-query", "-W", "-f", "${Version}", debian[1]) == debian[2] == package["versionInfo"],
            f"{name}: {url}",
        )


def main():
    if not all(map(shutil.which, ("dpkg-deb", "dpkg-shlibdeps", "cpack", "gzip"))):
        print("not checked: there is no dpkg-deb, dpkg-shlibdeps, cpack or gzip")
        return 77
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # With these names, CPack does not build first, beside other tests.
        run(
            f"cpack --config {BUILD}/CPackConfig.cmake -G DEB -B {folder}/packages -D CPACK_CMAKE_GENERATOR=Ninja "
            "-D CPACK_DEBIAN_COMPRESSION_TYPE=none"
        )
        packages = {file.name.split("_")[0]: file for file in (folder / "packages").glob("*.deb")}
        check(set(packages) == set(PROBES), f"packages: {sorted(packages)}")
        files = {package: files_of(file) for package, file in packages.items()}
        for package, file in packages.items():
            check(re.fullmatch(rf"{package}_{re.escape(VERSION)}_[a-z0-9]+\.deb", file.name), file.name)
            check_fields(package, file)
            own = {f"share/doc/{package}/copyright", f"share/doc/{package}/changelog.gz"}
            missing = (own | set(PROBES[package])) - files[package]
            check(not missing, f"{package} lacks {sorted(missing)}")
        check_list_of_libraries(folder / "bundle")
        run("cmake", "--install", BUILD, "--prefix", folder / "prefix")
        installed = {
            str(file.relative_to(folder / "prefix"))
            for file in (folder / "prefix").rglob("*")
            if not file.is_dir() or file.is_symlink()
        }
        installed = {DEBIANS.get(plain(path), plain(path)) for path in installed}
        for path in sorted(installed):
            owners = [package for package in files if path in files[package]]
            check(len(owners) == 1, f"{path} is in {owners or 'no package'}")
        run("dpkg-deb", "-x", packages["libcouplet-dev"], folder / "development")
        (file,) = (folder / "development").rglob("couplet.pc")
        check(file.read_text().startswith("prefix=/usr\n"), f"pkg-config: {file.read_text()}")
        run("dpkg-deb", "-x", packages["couplet"], folder / "out")
        check(
            (folder / "out/usr/share/doc/couplet/copyright")
            .read_text()
            .startswith("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"),
            "the copyright file",
        )
        check(run(folder / "out/usr/bin/couplet", "--version") == f"couplet {VERSION}\n", "the program does not run")
    return finish()


sys.exit(main())
