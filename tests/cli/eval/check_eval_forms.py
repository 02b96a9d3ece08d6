#!/usr/bin/env python3
"""check_eval_forms.py COUPLET: the forms of couplet eval and the flags that each accepts. Compares --text with the
results of a user's task (--task-file) on equal tokens."""

import json
import math
import re
import shutil
import sys

sys.path.append("tests/cli")
from eval_case import GOLDEN, close, evaluate, refused, run
from inputs import read_json
from program import COUPLET, capture, check, finish, scratch_folder

MODEL, DATA = GOLDEN / "model", GOLDEN / "data"
COPA = ["--tasks", "copa", "--data", DATA, "--limit", 2]


def check_progress():
    """In a pipe each task has a line: the number of answers, the speed, and the remaining time."""
    told = run(MODEL, "--tasks", "copa,hellaswag", *COPA[2:])[1]
    lines = [line for line in told.splitlines() if " questions  " in line]
    check(
        len(lines) == 2
        and re.fullmatch(r"2/4 questions  [\d.]+/s  \d+:\d\d left  copa", lines[0])
        and re.fullmatch(r"4/4 questions  [\d.]+/s  hellaswag", lines[1]),
        f"{lines}",
    )


def check_read(folder):
    """Checks that no input file is overwritten, even if it looks like results."""
    kept = folder / "kept"
    kept.mkdir()
    text, link = kept / "a.txt", folder / "link.json"
    text.write_text('{"results": "A text."}')
    link.symlink_to(text)
    for words in (["--text", text, "--json", text], ["--text", kept, "--json", link]):
        refused(1, ["--json", "is read, and not written over"], MODEL, *words, "--overwrite")
    task = folder / "ends.yaml"
    task.write_text(ENDS)
    for flag in ("--json", "--html"):
        refused(
            1,
            [flag, "is read, and not written over"],
            f"{MODEL} --task-file {task} --data {folder} {flag} {task} --overwrite",
        )
    check(text.read_text() == '{"results": "A text."}' and task.read_text() == ENDS, "what is read was changed")


def check_moved(folder):
    """Runs the program without the folders that come with it."""
    program = folder / "bin/couplet"
    program.parent.mkdir()
    shutil.copy(COUPLET, program)

    def moved(*words):
        return capture([program, "eval", *map(str, words)], timeout=600, cwd=folder)

    done = moved(MODEL, "--tasks", "copa")
    check(
        done.returncode == 1
        and "come with the program are not there" in done.stderr
        and str(program.parent) in done.stderr
        and "--data DIR" in done.stderr,
        f"{done}",
    )
    check(moved(MODEL, *COPA).returncode == 0, "a moved program with --data")
    done = moved("--list")
    check(done.returncode == 0 and "program are not installed (--data DIR); * is" in done.stdout, f"{done}")


# ---- contexts ----


def check_contexts(folder):
    """Checks a model made for 64 tokens. The window of olmes is its context, and longer texts are cut and counted. The
    window of inloop stays 2048, and texts longer than the context are counted."""
    short = folder / "short"
    short.mkdir()
    for path in MODEL.iterdir():
        (short / path.name).symlink_to(path)
    (short / "config.json").unlink()
    config = read_json(MODEL / "config.json")
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 64}))
    words = ["--tasks", "boolq", "--data", DATA, "--limit", 3, "--samples", "--overwrite"]
    whole = evaluate(folder / "2048.json", MODEL, *words)["results"]["boolq"]
    longer = sum(max(a + b for a, b in zip(sample["ctx_tokens"], sample["tokens"])) > 65 for sample in whole["samples"])
    check(longer > 0 and whole["cut"] == 0 and "beyond" not in whole, f"2048: {longer} {whole}")
    inloop = evaluate(folder / "64.json", short, *words)["results"]["boolq"]
    check(inloop["beyond"] == longer and inloop["cut"] == 0, f"inloop, 64: {inloop}")
    check(inloop["metrics"] == whole["metrics"], "inloop, 64: asked otherwise")
    olmes = evaluate(folder / "64.json", short, *words, "--profile", "olmes", "--variant", "mcf")["results"]
    (olmes,) = olmes.values()
    check(olmes["cut"] == 3 and "beyond" not in olmes, f"olmes, 64: {olmes}")
    out, told, _ = run(short, *words[:-2])
    check(f"boolq: {longer} question" in out and "beyond it" in out, f"inloop, 64: {out} {told}")


def check_ids(folder):
    """An end-of-text id that the model lacks is reported, with tasks and with --text."""
    other = folder / "other-eos"
    other.mkdir()
    for path in MODEL.iterdir():
        (other / path.name).symlink_to(path)
    (other / "config.json").unlink()
    config = read_json(MODEL / "config.json")
    (other / "config.json").write_text(json.dumps({**config, "eos_token_id": 60000}))
    (folder / "short.txt").write_text("A text.")
    for words in (COPA, ["--text", folder / "short.txt"]):
        refused(1, ["config.json", "eos_token_id is 60000", "correct it there"], other, *words)


# ---- --text ----

ENDS = """
task: ends
splits: {test: ends.jsonl}
fields: {before: before, end: end}
choices: ["{end}"]
gold: 0
profiles:
    harness: {split: test, context: "{before}", delimiter: "", metrics: [ce_loss]}
"""


def ends(folder, *rows):
    """Returns ln p of an end after the text before it, by a task of one option. "" is end-of-text."""
    (folder / "ends.yaml").write_text(ENDS)
    (folder / "ends.jsonl").write_text(
        "".join(json.dumps({"before": before, "end": end}) + "\n" for before, end in rows)
    )
    result = evaluate(
        folder / "ends.json", MODEL, "--task-file", folder / "ends.yaml", "--data", folder, "--samples", "--overwrite"
    )
    check(result["results"]["ends"]["headline"] == "ce_loss", "the task of one's own")
    return [sample["loglik"][0] for sample in result["results"]["ends"]["samples"]]


def nll_of(folder, text, *words):
    """Returns the figures of the text, which is the only source."""
    path = folder / "nll.txt"
    path.write_text(text)
    sources = evaluate(folder / "nll.json", MODEL, "--text", path, *words, "--overwrite")["sources"]
    check(len(sources) == 2 and sources[0]["source"] == str(path), f"sources {sources}")
    check(sources[1] == {**sources[0], "source": None}, "all is another than its only source")
    return sources[0]


def check_windows(folder):
    """Six words, a token each, in windows of five. The first is predicted from end-of-text, the last from the one
    before it, or with a stride from all tokens in the window."""
    words = "one two three four five six"
    whole, first, apart, behind = ends(folder, ("", words), ("", words[:-4]), (" five", " six"), (words[:-4], " six"))
    one = nll_of(folder, words, "--window", 6)
    check(one["tokens"] == 6 and one["bytes"] == len(words) and one["documents"] == 1, f"{one}")
    check(close(one["nll"], -whole, 1e-4, 1e-5), f"one window: {one['nll']} and {whole}")
    check(close(one["perplexity"], math.exp(one["nll"] / 6), 0, 1e-6), "perplexity")
    check(close(one["bits_per_byte"], one["nll"] / math.log(2) / len(words), 0, 1e-6), "bits")
    for more, end in (([], apart), (["--stride", 5], apart), (["--stride", 1], behind), (["--stride", 4], behind)):
        got = nll_of(folder, words, "--window", 5, *more)
        check(
            got["tokens"] == 6 and close(got["nll"], -first - end, 1e-4, 1e-5),
            f"windows of five, {more}: {got['nll']}, and {-first - end} from the task",
        )


def check_sources(folder):
    """A file that is named itself is a source of its given name. The source of files in a folder is the folder."""
    (folder / "web").mkdir()
    for name in ("web/a.txt", "web/b.txt", "c.md"):
        (folder / name).write_text(f"The text of {name}, which is short.")
    (folder / "d.jsonl").write_text(
        '{"text": "Says where it is from.", "source": "books"}\n{"text": "Says nothing."}\n'
    )
    for inputs, names in (
        (["c.md"], ["c.md"]),
        (["web"], ["web"]),
        (["web/b.txt", "web/a.txt"], ["web/a.txt", "web/b.txt", "all"]),
        (["web", "c.md", "d.jsonl"], ["web", "c.md", "books", "d.jsonl", "all"]),
    ):
        out, told, code = run(MODEL, "--text", *inputs, cwd=folder)
        got = [line.split()[0] for line in out.splitlines()[1:-1]]
        check(code == 0 and sorted(got) == sorted(names), f"{inputs}: {code} {got} {told}")
    check(out.splitlines()[-1] == "windows of 1024 tokens", f"windows: {out}")
    out, _, code = run(MODEL, "--text", folder / "c.md", "--window", 8, "--stride", 2)
    check(out.splitlines()[-1] == "windows of 8 tokens, 2 new ones each", f"windows: {out}")


def check_ill_formed(folder):
    """Invalid UTF-8 is reported with its file."""
    path = folder / "ill.txt"
    path.write_bytes(b"A \xff text, and \xe2\x82 half of a sign.")
    out, told, code = run(MODEL, "--text", path)
    check(code == 0 and "ill.txt: 2 places are not UTF-8" in told, f"{code} {told}")
    check(" 35 " in out, f"bytes with U+FFFD in their places: {out}")


def main():
    with scratch_folder() as folder:
        check_progress()
        check_read(folder)
        check_moved(folder)
        check_contexts(folder)
        check_ids(folder)
        check_windows(folder)
        check_sources(folder)
        check_ill_formed(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
