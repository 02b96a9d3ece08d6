#!/usr/bin/env python3
"""check_eval_goes_on.py COUPLET: an interrupted evaluation gives the bytes of an uninterrupted one, wherever it was
interrupted. It resumes only with equal weights, which are compared by content."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

from inputs import keep_record, read_json
from program import COUPLET, bad, check, finish, good, run, scratch_folder, wait_until
from train_case import train, write_corpus

RANKED, WRITTEN = 150, 140  # more than one block of each kind

TASKS = {
    "ranked": """\
task: ranked
splits: {a: a.jsonl}
fields: {q: q, o: "o[]", g: g}
choices: o
gold: {value: g, among: numbers}
profiles: {p: {split: a, context: "{q}", scores: [acc, acc_norm]}}
""",
    "written": """\
task: written
splits: {a: a.jsonl}
fields: {q: q, t: t}
profiles: {p: {split: a, ask: generate, context: "{q}", target: "{t}", max_gen_toks: 6}}
""",
}


def write_tasks(folder):
    """Writes tasks with questions of the corpus' words."""
    texts = [
        json.loads(line)["text"].split() for name in ("one", "two") for line in (folder / f"docs/{name}.jsonl").open()
    ]
    for name, count in (("ranked", RANKED), ("written", WRITTEN)):
        rows = []
        for i in range(count):
            words = texts[i % len(texts)][i // len(texts) :]
            question, options = " ".join(words[: 3 + i % 9]), [" ".join(words[20:22]), words[30]]
            rows.append({"q": question, "o": options, "g": str(i % 2), "t": words[40]})
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / f"{name}.yaml").write_text(TASKS[name])


def words_of(folder, name, out, model="plain"):
    return f"eval {folder}/{model} --task-file {folder}/{name}.yaml --data {folder}/data --samples --json {out}".split()


def in_one_go(folder, name):
    """Returns the bytes of the results, and the lines of their record, which is kept under a second name."""
    out, kept = folder / f"{name}.json", folder / f"{name}.kept"
    keep_record(out, kept)
    good(*words_of(folder, name, out))
    return out.read_bytes(), kept.read_text().splitlines(True)


def check_interrupted(folder, name, count):
    """Checks a record that ends after k answers, for values of k at the end of a block and within blocks."""
    whole, lines = in_one_go(folder, name)
    check(len(lines) == count + 1, f"{name}: {len(lines)} lines")
    out = folder / f"{name}-again.json"
    partial = pathlib.Path(f"{out}.partial")
    for k in (0, 1, 2, 63, 127, 128, 129, count - 1, count):
        partial.write_text("".join(lines[: k + 1]) + ('{"task": "ra' if k % 2 else ""))
        said = good(*words_of(folder, name, out))
        blocks = 128 * (k // 128) if k < count else count
        check(
            k == 0 or f"{name}: {blocks} of {count} answered before" in said or blocks == 0 and "of" in said,
            f"{name}, {k}: {said}",
        )
        check(out.read_bytes() == whole, f"{name}: other bytes after {k} answers")
        check(not partial.exists(), f"{name}, {k}: the record stays behind")
        out.unlink()


def check_killed(folder, name):
    """Interrupts the evaluation by SIGKILL."""
    whole = (folder / f"{name}.json").read_bytes()
    out = folder / f"{name}-killed.json"
    partial = pathlib.Path(f"{out}.partial")
    for lines in (2, 40, 135):
        begun = subprocess.Popen(
            [COUPLET, *map(str, words_of(folder, name, out))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: partial.exists() and partial.read_bytes().count(b"\n") >= lines, begun)
        begun.kill()
        begun.wait()
        if not out.exists():
            good(*words_of(folder, name, out))
        check(out.read_bytes() == whole, f"{name}: other bytes after a kill at {lines} lines")
        out.unlink()


# ---- equal weights ----


def begin(folder, out):
    """Begins a record of two answers of the model `plain`."""
    lines = (folder / "ranked.kept").read_text().splitlines(True)
    pathlib.Path(f"{out}.partial").write_text("".join(lines[: RANKED + 1]))


def goes_on(folder, model, what):
    out = folder / "known.json"
    begin(folder, out)
    said = good(*words_of(folder, "ranked", out, model))
    check(f"{RANKED} answered before" in said, f"{what}: {said}")
    out.unlink(missing_ok=True)


def refused(folder, model, parts, what, *more):
    out = folder / "known.json"
    begin(folder, out)
    _, err, code = run(*words_of(folder, "ranked", out, model), *more)
    check(code == 1 and not out.exists() and all(part in err for part in parts), f"{what}: {code} {err}")
    out.unlink(missing_ok=True)


def same_times(source, target):
    """Gives every file of `target` the times of the file of `source`."""
    for path in source.rglob("*"):
        at = path.stat()
        os.utime(target / path.relative_to(source), ns=(at.st_atime_ns, at.st_mtime_ns))


def check_weights(folder):
    plain = folder / "plain"
    shutil.copytree(folder / "plain" / "last", folder / "copy")
    for path in (folder / "copy").iterdir():
        os.utime(path, (10**9, 10**9))
    goes_on(folder, "copy", "a copy with other times")
    other = train(folder, "other", "train.seed=5") / "last"
    sizes = [(at / "model.safetensors").stat().st_size for at in (plain / "last", other)]
    check(sizes[0] == sizes[1], f"the sizes are {sizes}")
    same_times(plain / "last", other)
    refused(folder, "other", ["weights was", "--overwrite"], "weights of the same size and time")
    shutil.copytree(plain / "last", folder / "edited")
    (folder / "edited/checksums.json").unlink()
    config = folder / "edited/config.json"
    values = read_json(config)
    config.write_text(json.dumps(values | {"rope_theta": 2 * values["rope_theta"]}))
    refused(folder, "edited", ["config was", "--overwrite"], "another rope_theta")
    shutil.copytree(plain / "last", folder / "words")
    (folder / "words/checksums.json").unlink()
    tokenizer = folder / "words/tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    refused(folder, "words", ["tokenizer was", "--overwrite"], "another tokenizer.json")


def check_settings(folder):
    """Answers under other settings are not resumed, and existing results are not replaced."""
    refused(folder, "plain", ["limit was not given and is 4 now", "--overwrite"], "another limit", "--limit", 4)
    begin(folder, folder / "known.json")
    good(*words_of(folder, "ranked", folder / "known.json"), "--limit", 4, "--overwrite")
    bad(1, "--overwrite", *words_of(folder, "ranked", folder / "known.json"))


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        write_tasks(folder)
        train(folder, "plain")
        for task, count in (("ranked", RANKED), ("written", WRITTEN)):
            check_interrupted(folder, task, count)
            check_killed(folder, task)
        check_weights(folder)
        check_settings(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
