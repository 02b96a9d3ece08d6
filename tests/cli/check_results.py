#!/usr/bin/env python3
"""check_results.py COUPLET: the places of results. An existing result is refused before any work, --overwrite replaces
only the result, streams are never results, and the program prints where it wrote."""

import json
import os
import pathlib
import sys

from inputs import TRAIN_TOKENIZER
from program import apart, bad, check, finish, good, in_json, said, scratch_folder
from train_case import train, write_corpus


def cases(folder):
    """Yields each verb with good inputs, with missing inputs, and the flag of its result."""
    none, run, c = folder / "none", folder / "run", folder / "c.yaml"
    rows = folder / "rows.json"
    eval_ = ["--tasks", "copa", "--limit", 2]
    yield ["plan", c], ["plan", none], "--json"
    yield ["grad", run, "--tokens", rows], ["grad", none, "--tokens", none], "--out"
    yield [*TRAIN_TOKENIZER, folder / "docs"], [*TRAIN_TOKENIZER, none], "--out"
    yield ["inspect", run], ["inspect", none], "--json"
    yield ["inspect", run], ["inspect", none], "--html"
    for flag in ("--json", "--html"):
        yield ["compare", "--no-documents", run, run], ["compare", none], flag
    for flag in ("--json", "--html"):
        yield ["eval", run, *eval_], ["eval", none, *eval_], flag
    yield ["eval", run, "--text", folder / "docs" / "one.jsonl"], ["eval", none, "--text", none], "--json"
    yield ["tokenize", "encode", "--tokenizer", folder / "T.json", folder / "docs"], None, "--out"


def bytes_at(place):
    return {path.name: path.read_bytes() for path in place.iterdir()} if place.is_dir() else place.read_bytes()


def check_replaced(folder):
    for i, (words, missing, flag) in enumerate(cases(folder)):
        place = folder / f"result{i}"
        where = [*words, flag, place]
        good(*where)
        first = bytes_at(place)
        for refused in (where, [*missing, flag, place] if missing else where):
            bad(1, [str(place), "--overwrite"], *refused)
        check(bytes_at(place) == first, f"{said(where)}: a refused result was changed")
        good(*where, "--overwrite")
        check(set(os.listdir(folder)) & {f"{place.name}.partial"} == set(), f"{said(where)}: .partial")
        if place.is_dir():
            continue
        for text in ("mine", '{"other": 1}', "{", "<html>"):
            place.write_text(text)
            if missing:
                bad(1, [str(place), "holds no results"], *missing, flag, place, "--overwrite")
            check(place.read_text() == text, f"{said(where)}: --overwrite replaced what is no result")
        place.write_text("")
        if words[0] != "compare":  # compare refuses an empty page
            good(*where, "--overwrite")
            check(bytes_at(place), f"{said(where)}: an empty file is not replaced")
        place.unlink()
        place.symlink_to("nowhere")
        bad(1, [str(place), "--overwrite"], *where)


def check_streams(folder):
    """Devices and the standard output are written, never refused, and stay what they are."""
    for words, _, flag in cases(folder):
        if flag not in ("--json", "--html"):
            continue
        good(*words, flag, "/dev/null")
        out, _ = apart(*words, flag, "/dev/stdout")
        check(('"' if flag == "--json" else "<!DOCTYPE html>") in out, f"{said(words)}: {flag} /dev/stdout")
        check(": /dev/" not in out, f"{said(words)}: a stream is said to be a file")
        with open(folder / "out", "w", encoding="utf-8") as out:
            good(*words, flag, "/dev/stdout", stdout=out)
    check(
        pathlib.Path("/dev/null").is_char_device() and not list(pathlib.Path("/dev").glob("null.*")),
        "/dev/null is no device any more",
    )
    for words, _, flag in cases(folder):
        if flag == "--json":
            in_json(*words)


def check_told(folder):
    """Each result has a line on standard output, or on standard error beside --json -."""
    run = folder / "run"
    for verb in (["inspect", run], ["compare", "--no-documents", run, run]):
        where = ["--html", folder / "a.html", "--overwrite"]
        out, _ = apart(*verb, *where, "--json", folder / "a.json")
        for line in (f"page: {folder}/a.html", f"json: {folder}/a.json"):
            check(line in out.splitlines(), f"{said(verb)}: no line {line!r}")
        out, err = apart(*verb, *where, "--json", "-")
        json.loads(out)
        for line in (f"page: {folder}/a.html",):
            check(line in err.splitlines(), f"{said(verb)} --json -: no line {line!r}")
        for name in ("a.html", "a.json"):
            (folder / name).unlink()


def check_numpy(folder):
    """If an interpreter lacks numpy, Debian's interpreter replaces it, unless the user named it."""
    run, bare = folder / "run", folder / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    path = {"PATH": f"{bare.parent}:{os.environ['PATH']}", "COUPLET_PYTHON": ""}
    out = good("compare", "--no-documents", run, run, env=os.environ | path)
    check("validation loss" in out, f"compare without numpy in the first python3: {out}")
    named = os.environ | {"COUPLET_PYTHON": str(bare)}
    bad(1, ["numpy, which ", " lacks", "COUPLET_PYTHON"], "compare", "--no-documents", run, run, env=named)


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        train(folder, "run", "model.max_position_embeddings=256")
        (folder / "rows.json").write_text('{"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8]]}')
        check_told(folder)
        check_replaced(folder)
        check_streams(folder)
        check_numpy(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
