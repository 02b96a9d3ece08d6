#!/usr/bin/env python3
"""check_hardening.py FILE...: checks that each program or library was built with the options of cmake/hardening.cmake.
Exit code 1, with a line for each missing option."""

import pathlib
import re
import subprocess
import sys

ENDBR64 = bytes.fromhex("f30f1efa")


def read(*words):
    return subprocess.run(["readelf", "-W", *words], capture_output=True, text=True, check=True).stdout


def missing(file):
    head, segments, dynamic = read("-h", file), read("-l", file), read("-d", file)
    symbols = read("--dyn-syms", file)
    has = {
        "a position-independent form": re.search(r"Type: +DYN ", head),
        "a stack that is not executed (-z noexecstack)": re.search(r"GNU_STACK .* RW +0x", segments),
        "tables that are read-only (-z relro)": "GNU_RELRO" in segments,
        "all symbols at the start (-z now)": re.search(r"BIND_NOW|FLAGS.* NOW", dynamic),
        "canaries (-fstack-protector-strong)": "__stack_chk_fail" in symbols,
        "checked copies (_FORTIFY_SOURCE)": re.search(r"__\w+_chk\b", symbols),
    }
    if "X86-64" in head:
        has["marked targets of jumps (-fcf-protection)"] = (
            pathlib.Path(file).read_bytes().count(ENDBR64) > 5
        )  # otherwise the linker's own
    return [what for what, there in has.items() if not there]


def main():
    wrong = [f"{file} has not {what}" for file in sys.argv[1:] for what in missing(file)]
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
