#!/usr/bin/env python3
"""make_families_json.py [--check]: writes python/couplet/models/families.json, the table of families for the Python
package, from src/inspect/families/families.def; --check fails if the file is not what this writes."""

import json
import pathlib
import re
import sys

TABLE = pathlib.Path("src/inspect/families/families.def")
FLAGS = pathlib.Path("src/inspect/families/families.h")
COPY = pathlib.Path("python/couplet/models/families.json")


def fields_of(row):
    """The texts of a row's arguments, and the names of its flags."""
    *texts, flags = re.findall(r'(?:"[^"]*"|[^",])+', row)
    return ["".join(re.findall(r'"([^"]*)"', text)) for text in texts], re.findall(r"CPL_FLAG_(\w+)", flags)


def family_of(row):
    (model_types, title, gguf, router, gate), flags = fields_of(row)
    return {
        "model_types": model_types.split(),
        "title": title,
        "gguf": gguf.split(),
        "router": router.split(),
        "gate": gate.split(),
        "flags": [flag.lower() for flag in flags],
    }


def main():
    text = re.sub(r"/\*.*?\*/", "", TABLE.read_text(), flags=re.S)
    rows = [family_of(row) for row in re.findall(r'CPL_FAMILY\(((?:"[^"]*"|[^")])*)\)', text)]
    known = set(re.findall(r"CPL_FLAG_(\w+) = 1", FLAGS.read_text()))
    unknown = {flag for row in rows for flag in row["flags"]} - {flag.lower() for flag in known}
    if unknown or len(rows) != text.count("CPL_FAMILY("):
        sys.exit(f"{TABLE} is not understood: {len(rows)} rows; unknown flags: {sorted(unknown)}")
    written = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    if sys.argv[1:] != ["--check"]:
        COPY.write_text(written)
    elif not COPY.exists() or COPY.read_text() != written:
        sys.exit(f"{COPY} differs from {TABLE}: run tools/make_families_json.py")


main()
