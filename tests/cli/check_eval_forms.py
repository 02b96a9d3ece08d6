#!/usr/bin/env python3
"""check_eval_forms.py COUPLET: what can be asked of couplet eval: which flags go with which of its
forms, and what is there already."""
import pathlib
import sys
import tempfile

from eval_case import GOLDEN, check, refused, run, tell

MODEL, DATA = GOLDEN / "model", GOLDEN / "data"
COPA = ["--tasks", "copa", "--data", DATA, "--limit", 2]

TASKS_ONLY = [["--profile", "inloop"], ["--variant", "cf"], ["--limit", 1], ["--offset", 1],
              ["--num-fewshot", 1], ["--max-gen-toks", 1], ["--skip-bad"], ["--html", "x.html"],
              ["--samples", "--json", "x.json"]]
TEXT_ONLY = [["--window", 8], ["--stride", 4]]


# ---- flags and forms ----

def check_flags(folder):
    """Whatever a form has no use for is refused, and by name."""
    text = folder / "text.txt"
    text.write_text("A text.")
    for words in TASKS_ONLY:
        refused(2, ["eval --text", words[0], "goes with --tasks"], MODEL, "--text", text, *words)
        refused(2, ["eval --list", words[0], "goes with --tasks"], "--list", *words)
    for words in TEXT_ONLY:
        refused(2, ["eval --tasks", words[0], "goes with --text"], MODEL, *COPA, *words)
        refused(2, ["eval --list", words[0], "goes with --text"], "--list", *words)
    for words in (["--data", DATA], ["--task-file", text]):
        refused(2, ["eval --text", words[0]], MODEL, "--text", text, *words)
    for words in (["--json", "x.json"], ["--tokenizer", text], ["--overwrite"]):
        refused(2, ["eval --list", words[0]], "--list", *words)
    refused(2, ["--text and --tasks"], MODEL, *COPA, "--text", text)
    refused(2, ["--list and --tasks"], "--list", "--tasks", "copa")
    refused(2, ["--list and --text"], "--list", "--text", text)
    refused(2, ["asks no model"], "--list", MODEL)
    refused(2, ["one too many"], MODEL, text, *COPA)
    refused(2, ["--samples needs --json"], MODEL, *COPA, "--samples")


def check_there(folder):
    """A file that is there is refused before the model is opened, and stays as it is."""
    there = folder / "there"
    there.write_text("mine")
    for flag in ("--json", "--html"):
        refused(1, [str(there), "--overwrite"], folder / "no-model", *COPA, flag, there)
        check(there.read_text() == "mine", f"{flag} was written over")
        code, _, told = run(MODEL, *COPA, flag, there, "--overwrite")
        check(code == 0 and "copa" in there.read_text(), f"{flag} --overwrite: {code} {told}")
        there.write_text("mine")
    refused(1, [str(there), "--overwrite"], folder / "no-model", "--text", there, "--json", there)


def main():
    with tempfile.TemporaryDirectory(prefix="couplet-test-") as name:
        folder = pathlib.Path(name)
        check_flags(folder)
        check_there(folder)
    return tell()


if __name__ == "__main__":
    sys.exit(main())
