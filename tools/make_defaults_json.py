#!/usr/bin/env python3
"""make_defaults_json.py [--check]: writes python/couplet/compare/defaults.json, the default of every setting of a run, from the
lists of settings in src; --check fails if the file is not what this writes."""

import json
import pathlib
import re
import sys

COPY = pathlib.Path("python/couplet/compare/defaults.json")
# Files, and what a row begins with: the section, if the file has several, and the name of a setting.
LISTS = (
    ("src/model/model.def", r"CPL_SETTING\(\w+, (?P<name>\w+)", "model"),
    ("src/data/data.def", r"CPL_SETTING\(\w+, (?P<name>\w+)", "data"),
    ("src/model/aux_losses.def", r"CPL_LOSS_SETTING\((?P<section>\w+), \w+, (?P<name>\w+)", None),
    ("src/train/config/run.def", r"CPL_RUN_SETTING\((?P<section>\w+), (?P<name>\w+)", None),
)


def main():
    defaults = {}
    for path, row, section in LISTS:
        text = re.sub(r"/\*.*?\*/", "", pathlib.Path(path).read_text(), flags=re.S)
        found = list(re.finditer(row + r",\s*[A-Z]\w*,\s*\"(?P<default>[^\"]*)\"", text))
        if not found or len(found) != len(re.findall(r"^" + row.split("\\(")[0] + r"\(\w", text, re.M)):
            sys.exit(f"{path} is not understood")
        for match in found:
            defaults[f"{section or match['section']}.{match['name']}"] = match["default"]
    written = json.dumps(defaults, indent=1) + "\n"
    if sys.argv[1:] != ["--check"]:
        COPY.write_text(written)
    elif not COPY.exists() or COPY.read_text() != written:
        sys.exit(f"{COPY} differs from the lists of settings: run tools/make_defaults_json.py")


main()
