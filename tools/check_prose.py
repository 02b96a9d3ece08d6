#!/usr/bin/env python3
"""check_prose.py [FILE...]: finds three patterns of prose that a newcomer cannot read.

A comment that begins with "Of", "What", "Whether", "Why" or "How many" lacks a subject and a verb. An error that ends
in a question does not say what is missing or how to give it. A function whose name is a verb without an object, or an
adjective, does not tell a caller what it does. The rules hold for C in src/ and include/, and for Python in
python/couplet/ and tools/."""

import pathlib
import re
import sys

BEGINNING = "of|what|whether|why|how many|how much"
C_COMMENT = re.compile(rf"(?:/\*\*?|//)<?\s*(?:{BEGINNING})\s", re.I)
PY_COMMENT = re.compile(rf"(?:^\s*|\s\s)#:?\s*(?:{BEGINNING})\s|^\s*[rf]?\"\"\"(?:{BEGINNING})\s", re.I)
QUESTION = re.compile(r"""[a-z)`']\?(?:\\n)?\"""", re.I)
NO_QUESTION = re.compile(r"""did you mean|\br?[fr]"|\(\?|\)\?\"""")  # exceptions: a suggestion, regular expressions
BARE = (
    "away blame deep few gather give got hear judge keep less look lose most note put recall say see some take tell "
    "there together what wide words"
)
C_FUNCTION = re.compile(rf"^(?!return\b)[a-z_][\w *]*?[ *]({BARE.replace(' ', '|')})\([^;]*$")
PY_FUNCTION = re.compile(rf"^\s*def (?!judge\b)_?({BARE.replace(' ', '|')})\(")  # couplet.certify.judge is public
FOLDERS = ("src", "include", "python/couplet", "tools")
KINDS = {".py": "py", ".c": "c", ".h": "c", ".def": "c", ".inc": "c", ".cu": "c", ".cuh": "c"}
RULES = {
    "c": [(C_COMMENT, "the comment has no subject"), (C_FUNCTION, "the function's name has no object")],
    "py": [(PY_COMMENT, "the comment has no subject"), (PY_FUNCTION, "the function's name has no object")],
}


def files_to_check():
    """Returns the files of C and Python in the folders that are checked."""
    return sorted(str(path) for folder in FOLDERS for path in pathlib.Path(folder).rglob("*") if path.suffix in KINDS)


def main():
    found = 0
    for name in sys.argv[1:] or files_to_check():
        path = pathlib.Path(name)
        kind = KINDS.get(path.suffix)
        if kind is None or path.is_symlink():
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            wrong = [reason for rule, reason in RULES[kind] if rule.search(line)]
            if QUESTION.search(line) and not NO_QUESTION.search(line):
                wrong.append("the message is a question")
            for reason in wrong:
                found += 1
                print(f"{name}:{number}: {reason}: {line.strip()[:90]}")
    print(
        f"{found} found" if found else "no comment begins as a question, no message asks, each function has an object"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
