#!/usr/bin/env python3
"""make_defaults_json.py [--check]: writes python/couplet/compare/defaults.json, the default of every setting of a run,
from the lists of settings in src. --check fails if the file differs, or if the C library or a function of the Python
package has another default of the coupling loss than the program: alpha, weight, activation, noise, reduction, seed and
the counters."""

import ast
import json
import pathlib
import re
import sys

COPY = pathlib.Path("python/couplet/compare/defaults.json")
# Files, and the beginning of a row: the section, if the file has several, and the name of a setting.
LISTS = (
    ("src/model/model.def", r"CPL_SETTING\(\w+, (?P<name>\w+)", "model"),
    ("src/data/data.def", r"CPL_SETTING\(\w+, (?P<name>\w+)", "data"),
    ("src/model/aux_losses.def", r"CPL_LOSS_SETTING\((?P<section>\w+), \w+, (?P<name>\w+)", None),
    ("src/train/config/run.def", r"CPL_RUN_SETTING\((?P<section>\w+), (?P<name>\w+)", None),
)


PACKAGE = pathlib.Path("python/couplet")
PUBLIC = {  # files that must have a function with a default
    "ops/_functional.py",
    "ops/_module.py",
    "_attach.py",
    "hf.py",
    "parallel.py",
    "reference.py",
}


def constants(defaults):
    """Returns the defaults of the loss, by their names in C and Python. In the program an unset weight is 1, and the
    counters are the counters of training."""
    row = re.search(r'CPL_LOSS\(ERC, erc, "\w+", \w+, (\S+),', pathlib.Path(LISTS[2][0]).read_text())
    of_erc = {name: defaults[f"erc.{name}"] for name in ("alpha", "activation", "noise")}
    return {
        "alpha": float(of_erc.pop("alpha")),
        "weight": float(row[1]),
        **of_erc,
        "reduction": defaults["erc.reduce"],
        **dict.fromkeys(("seed", "step", "layer", "draw"), 0),
    }


def faults_in_python(want):
    """Yields parameters and members with another default. Functions of the loss are the functions with an alpha. In
    certify, whose losses of routers have weights of their own, only alpha is compared."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.Lambda)):
                a = node.args
                named = [*a.posonlyargs, *a.args][-len(a.defaults) or len(a.args) :] + a.kwonlyargs
                given = {arg.arg: value for arg, value in zip(named, a.defaults + a.kw_defaults)}
            elif isinstance(node, ast.ClassDef):
                given = {item.target.id: item.value for item in node.body if isinstance(item, ast.AnnAssign)}
            else:
                continue
            given = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
            if given.get("alpha") is None:
                continue
            found.add(place.as_posix())
            for name in ["alpha"] if place.parts[0] == "certify" else want:
                if given.get(name) is not None and given[name] != want[name]:
                    yield f"{path}:{node.lineno}: the default of {name} is {given[name]!r}, the program's is {want[name]!r}"
    if f'return "{want["reduction"]}" if reduction is None' not in (PACKAGE / "hf.py").read_text(encoding="utf-8"):
        yield f"{PACKAGE}/hf.py: a reduction of None is not {want['reduction']!r}, the program's default"
    for name in sorted(PUBLIC - found):
        yield f"{PACKAGE / name}: no function with a default of alpha was found"


def faults_in_c(want):
    """Compares cpl_erc_init and couplet.h. All members but alpha and weight are 0, and the 0 of an enumeration is its
    first value."""
    body = re.search(r"void cpl_erc_init\(.*?\n}", pathlib.Path("src/model/couplet.c").read_text(), re.S)[0]
    made = {name: float(value) for name, value in re.findall(r"erc->(\w+)\s*= (\S+);", body)}
    if made != {"alpha": want["alpha"], "weight": want["weight"]}:
        yield f"src/model/couplet.c: cpl_erc_init sets {made}, the program's defaults are {want}"
    header = pathlib.Path("include/couplet.h").read_text()
    for name in ("alpha", "weight"):
        if not re.search(rf"double {name}; .*default {want[name]:g}\b", header):
            yield f"include/couplet.h: the comment of {name} does not say: default {want[name]:g}"
    enums = header + pathlib.Path("include/couplet/activation.h").read_text()
    for name, kind, values in (
        ("activation", "cpl_erc_activation", {"CPL_ERC_GATE": "gate"}),
        ("noise", "cpl_erc_noise_kind", {"CPL_ERC_NOISE_DRAWN": "bounded"}),
    ):
        first = re.search(rf"typedef enum {kind} {{\s*(\w+)", enums)[1]
        if values.get(first) != want[name]:
            yield f"include: the first value of {kind} is {first}, the program's default of {name} is {want[name]}"


def main():
    defaults = {}
    for path, row, section in LISTS:
        text = re.sub(r"/\*.*?\*/", "", pathlib.Path(path).read_text(), flags=re.S)
        found = list(re.finditer(row + r",\s*[A-Z]\w*,\s*\"(?P<default>[^\"]*)\"", text))
        rows = re.findall(r"^" + row.split("\\(")[0] + r"\(\w", text, re.M)
        if not found or len(found) != len(rows):
            sys.exit(
                f'{path}: {len(found)} of {len(rows)} rows match the pattern {row}, TYPE, "DEFAULT"; '
                "correct the row, or LISTS in tools/make_defaults_json.py"
            )
        for match in found:
            defaults[f"{section or match['section']}.{match['name']}"] = match["default"]
    written = json.dumps(defaults, indent=1) + "\n"
    if sys.argv[1:] != ["--check"]:
        COPY.write_text(written)
    elif not COPY.exists() or COPY.read_text() != written:
        sys.exit(f"{COPY} differs from the lists of settings: run tools/make_defaults_json.py")
    else:
        want = constants(defaults)
        sys.exit("\n".join([*faults_in_python(want), *faults_in_c(want)]) or 0)


main()
