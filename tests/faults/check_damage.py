#!/usr/bin/env python3
"""check_damage.py COUPLET DAMAGE [--files N] [--first N] [--jobs N] [--only WORD]: damaged files of every format that
is read. COUPLET, built with sanitizers, must end within 20 seconds and 1.5 GB with exit code 0, 1 or 2, and with one
sentence if the code is not 0. Where check sums or counts guard a file, 0 is right only with the results of the whole
file, or with a warning. DAMAGE is damage.c, built."""

import argparse
import collections
import concurrent.futures
import csv
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from cases import ROWS, Wrong, must, untimed_lines, write_inputs, write_rows
from check_faults import scratch
from inputs import GOLDEN, different, files_of, read_tensors
from program import count_wrong, markdown
from shim import Program

MOST_SECONDS, MOST_KILOBYTES = 20, 1500 * 1000
TASK = """\
task: mine
splits:
    validation: {rows}
fields: {{premise: premise, choice1: choice1, choice2: choice2, right: label}}
choices: ["{{choice1}}", "{{choice2}}"]
gold: {{value: right, among: numbers}}
profiles:
    plain:
        split: validation
        context: "{{premise|strip}}"
        metrics: [acc]
"""


# ---- damaged files ----


class Format:
    """A file of `base`, which is copied as a separate folder, and the words that read it."""

    def __init__(self, name, base, file, words, guarded=None, stdin=None):
        self.name, self.base, self.file, self.words = name, base, file, words
        self.guarded = guarded  # folder -> data that must be unchanged if the exit code is 0
        self.stdin = stdin  # the file for the standard input
        self.whole = None


def tree(*parts):
    """Returns a function that reads these files and folders."""

    def read(folder):
        return {
            name: what
            for name, what in files_of(folder).items()
            if any(name == one or name.startswith(one + "/") for one in parts)
        }

    return read


def weights(folder):
    """Returns the last checkpoint's tensors, and the steps that have a line."""
    lines = untimed_lines((folder / "R" / "metrics.jsonl").read_bytes())
    return {
        "steps": [line.get("step") if isinstance(line, dict) else None for line in lines],
        **tree("R/last/model.safetensors", "R/last/state.safetensors")(folder),
    }


def settings_kept(folder):
    """Returns `weights`, unless the damage made the run longer or shorter, which is allowed."""
    there = weights(folder)
    return there if there["steps"] and there["steps"][-1] == 6 else None


def shards_of(program, folder, base):
    words = f"tokenize encode --tokenizer {base}/T.json --out {folder}/S --by-source {base}/docs"
    must(program, words.split(), folder)


def answers(inputs, base):
    return f"eval {inputs}/R --tasks copa --data {base}/many --samples --json q.json --set compute.threads=1".split()


def write_bases(program, base):
    """Makes folders with whole files of every format."""
    write_inputs(program, base / "inputs")
    inputs = base / "inputs"

    def made(name):
        (base / name).mkdir()
        return base / name

    hf = made("hf") / "M"
    shutil.copytree(inputs / "R" / "last", hf)
    for name in ("checksums.json", "state.json", "state.safetensors"):
        (hf / name).unlink()
    shutil.copy(inputs / "T.json", made("tokenizer"))
    (base / "tokenizer" / "ids").write_text("1 2 3 65 66\n")
    shutil.copytree(GOLDEN / "gguf" / "moe", made("gguf") / "G")
    run = made("run") / "R"
    must(program, ["train", inputs / "c.yaml", "--out", run, "--set", "train.steps=4"], base)
    text = (run / "config.yaml").read_text().replace("steps: 4\n", "steps: 6\n")
    (run / "config.yaml").write_text(text)
    shutil.copytree(inputs / "R", made("two") / "a", symlinks=True)
    must(program, ["eval", "a", "--documents", "--limit", 4], base / "two")
    shutil.copytree(base / "two" / "a", base / "two" / "b", symlinks=True)
    text = (base / "two" / "b" / "config.yaml").read_text()  # a different setting, so that it is no duplicate
    (base / "two" / "b" / "config.yaml").write_text(re.sub(r"\n    alpha: \S+\n", "\n    alpha: 0.75\n", text))
    for name in ("a", "b"):
        must(
            program,
            f"eval {name} --tasks copa --data {inputs}/rows --samples --json {name}/questions.json".split(),
            base / "two",
        )
    shutil.copytree(hf, made("index") / "M")
    index_of(base / "index" / "M")
    write_rows(base / "many", 20)
    interrupted(program, answers(inputs, base), made("partial"))
    shards_of(program, made("shards"), inputs)
    documents = made("documents")
    raw = (inputs / "docs" / "one.jsonl").read_bytes()
    (documents / "d.txt").write_bytes(raw)
    (documents / "d.jsonl").write_bytes(raw)
    (documents / "d.jsonl.gz").write_bytes(gzip.compress(raw, mtime=0))
    shutil.copy(GOLDEN / "data" / "corpus-mini" / "validation" / "qa-0000.jsonl.zst", documents)
    rows_of(made("rows"))
    shutil.copy(inputs / "c.yaml", made("config"))
    grad = made("grad")
    shutil.copy(inputs / "tokens.json", grad)
    return inputs


def index_of(folder):
    """Writes the weights under another name, and an index that leads to it."""
    names = read_tensors(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(sorted(names), "model-00001-of-00001.safetensors")})
    )


def interrupted(program, words, folder):
    """Makes an evaluation that is killed after some answers."""
    partial = folder / "q.json.partial"
    process = program.start(words, folder)
    while process.poll() is None:
        if partial.exists() and partial.read_bytes().count(b"\n") > 20:
            process.kill()
        time.sleep(0.002)
    process.communicate()
    if not partial.exists():
        raise Wrong("the evaluation ended before it was killed")


def rows_of(folder):
    rows = [row | {"label": str(row["label"])} for row in ROWS]
    (folder / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "r.json").write_text(json.dumps(ROWS, indent=1))
    for name, dialect in (("r.csv", "excel"), ("r.tsv", "excel-tab")):
        with open(folder / name, "w", encoding="utf-8", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]), dialect=dialect)
            writer.writeheader()
            writer.writerows(rows)
    for ending in ("jsonl", "json", "csv", "tsv"):
        (folder / f"{ending}.yaml").write_text(TASK.format(rows=f"r.{ending}"))


def all_formats(program, base):
    inputs = write_bases(program, base)
    model, one = inputs / "R", ["--set", "compute.threads=1"]
    formats = []

    def add(*words, **how):
        formats.append(Format(*words, **how))

    generate = ["generate", "M", "--prompt", "abc", "--tokens", 2, *one]
    for file in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json"):
        add(f"model: {file}", base / "hf", f"M/{file}", generate)
    add("safetensors, inspected", base / "hf", "M/model.safetensors", ["inspect", "M", "--json", "-"])
    add("index of weights", base / "index", "M/model.safetensors.index.json", ["inspect", "M", "--json", "-"])
    for name in ("deepseek2", "llama"):
        add("gguf", base / "gguf", f"G/{name}.gguf", ["inspect", f"G/{name}.gguf", "--json", "-"])
    add("tokenizer.json", base / "tokenizer", "T.json", ["tokenize", "decode", "--tokenizer", "T.json"], stdin="ids")
    add("ids", base / "tokenizer", "ids", ["tokenize", "decode", "--tokenizer", "T.json"], stdin="ids")
    resume = ["train", "--resume", "R"]
    for file in (
        "config.json model.safetensors state.json state.safetensors tokenizer.json "
        "generation_config.json checksums.json"
    ).split():
        add(f"checkpoint: {file}", base / "run", f"R/step-000004/{file}", resume, guarded=weights)
    add("metrics.jsonl, resumed", base / "run", "R/metrics.jsonl", resume, guarded=weights)
    add("start.json, resumed", base / "run", "R/start.json", resume, guarded=weights)
    add("config.yaml of a run", base / "run", "R/config.yaml", resume, guarded=settings_kept)
    compare = ["compare", "a", "b", "--no-documents", "--json", "-"]
    for file in ("metrics.jsonl", "config.yaml", "start.json"):
        add(f"compare: {file}", base / "two", f"a/{file}", compare)
    add("documents.json", base / "two", "a/documents.json", ["compare", "a", "b", "--json", "-"])
    add("questions.json", base / "two", "a/questions.json", ["compare", "a", "b", "--no-documents", "--json", "-"])
    add("answers so far (.partial)", base / "partial", "q.json.partial", answers(inputs, base), guarded=tree("q.json"))
    train = f"train {inputs}/c.yaml --out R --set data.train=S --set train.steps=1 --set train.warmup_steps=0".split()
    for file in sorted(path.relative_to(base / "shards") for path in (base / "shards").rglob("*") if path.is_file()):
        if file.parts[1] != "two":
            guarded = weights if file.name == "shards.json" else None
            add(f"shards: {file.name}", base / "shards", str(file), train, guarded=guarded)
    for file, guarded in (("d.jsonl", None), ("d.txt", None), ("d.jsonl.gz", tree("S")), ("qa-0000.jsonl.zst", None)):
        words = f"tokenize encode --tokenizer {inputs}/T.json --out S {file}".split()
        add(f"documents: {file}", base / "documents", file, words, guarded=guarded)
    for ending in ("jsonl", "json", "csv", "tsv"):
        words = ["eval", model, "--task-file", f"{ending}.yaml", "--data", ".", "--json", "-", *one]
        add(f"rows: {ending}", base / "rows", f"r.{ending}", words)
    add("task file", base / "rows", "csv.yaml", ["eval", "--list", "--task-file", "csv.yaml", "--data", "."])
    add("configuration", base / "config", "c.yaml", ["plan", "c.yaml"])
    words = ["grad", model, "--tokens", "tokens.json", "--out", "G", *one]
    add("tokens.json", base / "grad", "tokens.json", words)
    return formats


# ---- one file ----


class Trial:
    def __init__(self, program, damage, form, number):
        self.program, self.damage, self.form, self.number = program, damage, form, number
        self.wrong, self.code = [], None

    def run_program(self, folder):
        """Returns the exit code and the two outputs. Records faults of time and memory."""
        stdin = (folder / self.form.stdin).read_bytes() if self.form.stdin else b""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            command = [self.program, *map(str, self.form.words)]
            process = subprocess.Popen(command, cwd=folder, stdin=given, stdout=out, stderr=err, env=ENVIRONMENT)
            timer = threading.Timer(3 * MOST_SECONDS, process.kill)
            timer.start()
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = usage.ru_utime + usage.ru_stime
            if seconds > MOST_SECONDS or process.returncode == -9:
                self.wrong.append(f"takes {seconds:.0f} s")
            if usage.ru_maxrss > MOST_KILOBYTES:
                self.wrong.append(f"takes {usage.ru_maxrss // 1000} MB")
            out.seek(0)
            err.seek(0)
            return process.returncode, out.read(), err.read().decode(errors="replace")

    def judge(self, folder, err):
        if self.code not in (0, 1, 2) or "Sanitizer" in err or "runtime error" in err:
            self.wrong.append(f"exit {self.code}: {err[-1500:]}")
        sentences = [line for line in err.splitlines() if line.startswith("couplet: ")]
        if self.code in (1, 2) and len(sentences) != 1:
            self.wrong.append(f"no sentence, or several: {err[-300:]!r}")
        if self.code == 0 and self.form.guarded and "warning: " not in err:
            there = self.form.guarded(folder)
            names = different(there, self.form.whole) if there else []
            if names:
                self.wrong.append(f"exit 0 without a warning, but {', '.join(names)} differ")

    def run(self, place):
        folder = pathlib.Path(tempfile.mkdtemp(dir=place))
        try:
            shutil.copytree(self.form.base, folder, symlinks=True, dirs_exist_ok=True)
            if self.number >= 0:
                copies = pathlib.Path(tempfile.mkdtemp(dir=place))
                subprocess.run([self.damage, folder / self.form.file, copies, str(self.number), "1"], check=True)
                shutil.move(copies / str(self.number), folder / self.form.file)
                copies.rmdir()
            self.code, _, err = self.run_program(folder)
            if self.number >= 0:
                self.judge(folder, err)
            elif self.code:
                self.wrong.append(f"the whole file: exit {self.code}: {err[-500:]}")
            elif self.form.guarded:
                self.form.whole = self.form.guarded(folder)
        finally:
            shutil.rmtree(folder)
        return self

    def sentence(self):
        return f"{self.form.name} ({self.form.file}), copy {self.number}: " + "; ".join(self.wrong)


ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}


# ---- all files ----


def table(trials):
    rows = []
    names = list(dict.fromkeys(trial.form.name for trial in trials))
    for name in [*names, "all"]:
        of = [trial for trial in trials if name in ("all", trial.form.name)]
        codes = collections.Counter(trial.code for trial in of)
        rows.append([name, len(of), codes[0], codes[1], codes[2], count_wrong(of)])
    return markdown(["format", "files", "exit 0", "1", "2", "failed"], rows)


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("damage")
    words.add_argument("--files", type=int, default=80)
    words.add_argument("--first", type=int, default=0)
    words.add_argument("--jobs", type=int, default=1)
    words.add_argument("--only", default="")
    words = words.parse_args()
    program, damage = os.path.abspath(words.program), os.path.abspath(words.damage)
    with tempfile.TemporaryDirectory(dir=scratch()) as place, concurrent.futures.ThreadPoolExecutor(words.jobs) as pool:
        place = pathlib.Path(place)
        formats = [form for form in all_formats(Program(program), place) if words.only in form.name]
        wrong = [
            whole
            for whole in pool.map(lambda form: Trial(program, damage, form, -1).run(place), formats)
            if whole.wrong
        ]
        trials = [
            Trial(program, damage, formats[n % len(formats)], words.first + n // len(formats))
            for n in range(words.files)
        ]
        for trial in [*wrong, *pool.map(lambda one: one.run(place), trials)]:
            if trial.wrong:
                print(trial.sentence(), flush=True)
    print(table(trials))
    failed = count_wrong(trials) + len(wrong)
    print(f"{len(trials)} damaged files, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
