#!/usr/bin/env python3
"""make_families_json.py [--check]: writes python/couplet/models/families.json, the rules on published MoE checkpoints
for the Python package, from the tables in src/inspect/families. --check fails if the file differs."""

import json
import pathlib
import re
import sys

ROOM = pathlib.Path("src/inspect/families")
COPY = pathlib.Path("python/couplet/models/families.json")
HALVES = {"": "none", "GD": "first", "UD": "second", "DG": "interleaved", "D": "alone"}  # layout -> the gate's part
STRINGS = re.compile(r'(?:"[^"]*"\s*)+')  # one C string, in pieces


def text_of(name):
    return re.sub(r"/\*.*?\*/", "", (ROOM / name).read_text(), flags=re.S)


def strings_in(text):
    return ["".join(re.findall(r'"([^"]*)"', pieces)) for pieces in STRINGS.findall(text)]


def list_of(file, name):
    """Returns the strings of the C array `name`."""
    found = re.search(rf"\b{name}\[\w*\] = \{{(.*?)\}};", text_of(file), re.S)
    if not found or not strings_in(found[1]):
        sys.exit(f"{ROOM / file}: no list {name}[] of strings was found")
    return strings_in(found[1])


def keys():
    """Returns the keys of config.json by their names in cpl_config_key."""
    rows = re.findall(r'\[CPL_CONFIG_(\w+)\]\s*=\s*\{((?:"[^"]*"\s*)+)', text_of("config.c"))
    return {name: strings_in(pieces)[0].split() for name, pieces in rows}


def family_of(row):
    *strings, flags = re.findall(r'(?:"[^"]*"|[^",])+', row)
    model_types, title, _, router, gate = (strings_in(string)[0] for string in strings)
    words = [word.partition(":") for word in gate.split()]
    for name, _, layout in words:
        if layout not in HALVES:
            known = ", ".join(filter(None, HALVES))
            sys.exit(
                f'{ROOM}/families.def: row "{model_types}": gate {name} has the layout {layout}; write one of {known}'
            )
    return {
        "model_types": model_types.split(),
        "title": title,
        "router": router.split(),
        "gate": [[name, HALVES[layout]] for name, _, layout in words],
        "flags": [flag.lower() for flag in re.findall(r"CPL_FLAG_(\w+)", flags)],
    }


def families():
    text = text_of("families.def")
    rows = [family_of(row) for row in re.findall(r'CPL_FAMILY\(((?:"[^"]*"|[^")])*)\)', text)]
    count = text.count("CPL_FAMILY(")
    if len(rows) != count:
        sys.exit(
            f"{ROOM}/families.def: {len(rows)} of {count} rows match the pattern; "
            'each row must be CPL_FAMILY("...", ...)'
        )
    known = {flag.lower() for flag in re.findall(r"CPL_FLAG_(\w+) = 1", text_of("families.h"))}
    unknown = {flag for row in rows for flag in row["flags"]} - known
    if unknown:
        sys.exit(f"{ROOM}/families.def: flags that families.h does not define: {', '.join(sorted(unknown))}")
    return rows


def main():
    lists = ("markers", "wrappers", "not_text", "not_routed", "projections", "projection_norms")
    words = {name: list_of("names.c", name) for name in lists}
    unmeasured = list_of("names.c", "unmeasured")
    table = {
        **words,
        "unmeasured": dict(zip(unmeasured[::2], unmeasured[1::2])),
        "levels": list_of("config.c", "paths"),
        "keys": keys(),
    }
    lines = [f' "{name}": {json.dumps(value)},' for name, value in table.items()]
    rows = ",\n".join(map(json.dumps, families()))
    written = "\n".join(["{", *lines, ' "families": [', rows, "]}", ""])
    if sys.argv[1:] != ["--check"]:
        COPY.write_text(written)
    elif not COPY.exists() or COPY.read_text() != written:
        sys.exit(f"{COPY} differs from the tables in {ROOM}: run tools/make_families_json.py")


main()
