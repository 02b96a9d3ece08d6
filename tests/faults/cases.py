"""cases.py: the tested verbs, each on inputs so small that it ends within a tenth of a second: its words, its results,
the way to resume it, and the rule by which two results are equal."""

import json
import os
import pathlib
import shutil
import sys

from shim import FAULTS

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
from inputs import TRAIN_TOKENIZER, config, different, files_of, untimed, write_documents

SMALL = {"batch": 32, "steps": 6, "threads": 1, "save": 2, "evaluate": 3}
KILL = next(fault for fault in FAULTS if fault.name == "kill")

ROWS = [
    {"premise": f"It was {word}.", "choice1": f"a {word}", "choice2": "b c", "question": "cause", "label": i % 2}
    for i, word in enumerate(("abc", "bad", "fig", "jade", "hid"))
]


class Wrong(Exception):
    """Reports that the inputs cannot be made."""


# ---- files ----


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ---- parts that all cases share ----


class Case:
    """A verb. Its results are files of the folder in which it runs, and the standard output if `printed` is true."""

    printed = False

    def __init__(self, name, words, results, stdin=b"", printed=False):
        self.name, self.words, self.results = name, words, results
        self.stdin, self.printed = stdin, printed

    def prepare(self, folder):
        """Makes the files that the folder must have before."""

    def go_on(self, folder, words_of_overwriting):
        """Returns the words with which a user resumes after a failure."""
        there = any((folder / name).exists() for name in self.results)
        if there and not words_of_overwriting:  # the verb overwrites by itself
            return self.words
        return [*self.words, *(words_of_overwriting if there else ())]

    def results_of(self, folder):
        """Returns the results without the remains of a kill beside them. A page names its own folder."""
        here = str(folder.resolve()).encode()
        return {
            name: what.replace(here, b"") if name.endswith(".html") else what
            for name, what in files_of(folder).items()
            if ".tmp-" not in name and any(name == one or name.startswith(one + "/") for one in self.results)
        }

    def half_written(self, folder, reference):
        """Returns the results that are neither absent nor correct. Folders may lack files."""
        there = self.results_of(folder)
        return [name for name, what in there.items() if what != reference.get(name)]

    def after_kill(self, program, folder, reference):
        """Returns the faults that other programs find in the remains of a kill."""
        return []


class Encode(Case):
    """Encodes shards. Incomplete shards must not be trained on without a warning."""

    def __init__(self, inputs):
        words = f"tokenize encode --tokenizer {inputs}/T.json --out S --by-source {inputs}/docs"
        super().__init__("encode", words.split(), ["S"])
        self.train = (
            f"train {inputs}/c.yaml --out R --set data.train=S --set train.steps=1 --set train.warmup_steps=0"
        ).split()

    def go_on(self, folder, words_of_overwriting):
        if not words_of_overwriting and (folder / "S").exists():
            shutil.rmtree(folder / "S")
        return super().go_on(folder, words_of_overwriting)

    def after_kill(self, program, folder, reference):
        if not different(self.results_of(folder), reference) or not (folder / "S").exists():
            return []
        outcome = program.run(self.train, folder)
        remove(folder / "R")
        if outcome.code in (1, 2) or outcome.warnings():
            return []
        return [f"train reads half of the shards without a word: exit {outcome.code}"]


class Documents(Case):
    """Scores documents. Its run is a copy, since it writes documents.json into the run."""

    def __init__(self, inputs):
        super().__init__("eval --documents", ["eval", "a", "--documents", "--limit", 8], ["a/documents.json"])
        self.run = inputs / "R"

    def prepare(self, folder):
        shutil.copytree(self.run, folder / "a", symlinks=True)


class Train(Case):
    """Trains a run, from its beginning or resumed if a copy of `begun` exists."""

    def __init__(self, name, config, saved, begun=None):
        self.fresh, self.resume = ["train", config, "--out", "R"], ["train", "--resume", "R"]
        self.begun, self.saved = begun, saved
        super().__init__(name, self.resume if begun else self.fresh, ["R"])

    def prepare(self, folder):
        if self.begun:
            shutil.copytree(self.begun, folder / "R", symlinks=True)

    def go_on(self, folder, words_of_overwriting):
        return self.resume if (folder / "R" / "config.yaml").exists() else self.fresh

    def results_of(self, folder):
        """Returns the last checkpoint, lines without times, settings, and the number of checkpoints."""
        files, run = super().results_of(folder), folder / "R"
        last = os.readlink(run / "last") if (run / "last").is_symlink() else "none"
        found = {name: what for name, what in files.items() if name.startswith(f"R/{last}/")}
        for name in ("metrics.jsonl", "start.json"):
            found[name] = untimed_lines(files.get(f"R/{name}", b""))
        return found | {
            "last": last,
            "config.yaml": files.get("R/config.yaml"),
            "number of checkpoints": len(list(run.glob("step-*"))),
        }

    def half_written(self, folder, reference):
        """Checks that `last` leads to a checkpoint that equals the undisturbed run's at that step."""
        run = folder / "R"
        if not (run / "last").is_symlink():
            return []
        name = os.readlink(run / "last")
        names = different(files_of(run / name), files_of(self.saved / name))
        return [f"R/{name}/{file}" for file in names]


def untimed_lines(raw):
    lines = []
    for line in raw.splitlines():
        try:
            lines += untimed([json.loads(line)])
        except ValueError:
            lines.append(line)
    return lines


# ---- inputs ----


def write_rows(folder, times=1):
    (folder / "copa").mkdir(parents=True)
    lines = "".join(json.dumps(row | {"id": i}) + "\n" for i, row in enumerate(ROWS * times))
    (folder / "copa" / "val.jsonl").write_text(lines)


def must(program, words, folder):
    outcome = program.run(words, folder)
    if outcome.code != 0:
        raise Wrong(f"couplet {' '.join(map(str, words))}: exit {outcome.code}: {outcome.err}")
    return outcome


def begin_run(program, inputs):
    """Makes a run that was killed in the middle: where its second checkpoint is renamed into place."""
    words, run = ["train", inputs / "c.yaml", "--out", inputs / "begun"], inputs / "begun"
    renames = KILL.__class__("", "KILL", ("rename",))
    total = program.run(words, inputs, renames).seen
    for at in range(total, 0, -1):
        remove(run)
        program.run(words, inputs, renames, at)
        if (run / "step-000002").exists() and not (run / "step-000004").exists():
            return run
    raise Wrong("no kill leaves a run with one checkpoint")


def write_inputs(program, inputs):
    """Writes all files that the cases read. They are not changed afterwards."""
    inputs.mkdir()
    write_documents(inputs / "docs", 12, 30)
    write_rows(inputs / "rows")
    (inputs / "c.yaml").write_text(config(place=f"{inputs}/", **SMALL))
    (inputs / "tokens.json").write_text('{"input_ids": [[1, 2, 3, 4, 5, 6, 7, 8]]}')
    must(program, [*TRAIN_TOKENIZER, "--out", inputs / "T.json", inputs / "docs"], inputs)
    must(program, ["train", inputs / "c.yaml", "--out", inputs / "R"], inputs)
    save_all(program, inputs / "c.yaml", inputs / "saved")


def save_all(program, config, folder):
    """Makes a run that keeps its checkpoint of every step."""
    words = f"train {config} --out {folder} --set checkpoint.keep=1000 --set checkpoint.every=1"
    must(program, words.split(), folder.parent)


def long_cases(program, inputs):
    """Returns verbs that can be resumed, on inputs that take long enough to be killed in the middle."""
    write_inputs(program, inputs)
    write_documents(inputs / "many", 1000, 30)
    write_rows(inputs / "many-rows", 60)
    (inputs / "long.yaml").write_text(config(place=f"{inputs}/", **SMALL | {"threads": 2, "steps": 40, "evaluate": 10}))
    save_all(program, inputs / "long.yaml", inputs / "saved-long")
    encode = Encode(inputs)
    encode.words = [*encode.words[:-1], inputs / "many"]
    return [
        Train("train", inputs / "long.yaml", inputs / "saved-long"),
        encode,
        Case(
            "eval",
            (
                f"eval {inputs}/R --tasks copa --data {inputs}/many-rows --samples --json q.json "
                "--set compute.threads=2"
            ).split(),
            ["q.json"],
        ),
        Case(
            "compare",
            ["compare", inputs / "R", inputs / "saved-long", "--no-documents", "--json", "c.json", "--html", "c.html"],
            ["c.json", "c.html"],
        ),
    ]


def ids_of(program, inputs):
    words = ["tokenize", "encode", "--tokenizer", inputs / "T.json", "--ids"]
    return program.run(words, inputs, stdin=b"abc bad fig jade abc").out


def all_cases(program, inputs):
    """Returns every verb, on inputs that are made here."""
    write_inputs(program, inputs)
    model, tokenizer = inputs / "R", inputs / "T.json"
    one = ["--set", "compute.threads=1"]
    return [
        Train("train", inputs / "c.yaml", inputs / "saved"),
        Train("resume", inputs / "c.yaml", inputs / "saved", begin_run(program, inputs)),
        Case("tokenizer", [*TRAIN_TOKENIZER, "--out", "T.json", inputs / "docs"], ["T.json"]),
        Encode(inputs),
        Case("decode", ["tokenize", "decode", "--tokenizer", tokenizer], [], ids_of(program, inputs), True),
        Case(
            "eval",
            [*f"eval {model} --tasks copa --data {inputs}/rows --samples --json q.json --html q.html".split(), *one],
            ["q.json", "q.html"],
        ),
        Case(
            "inspect",
            f"inspect {model} --html i.html --json i.json --rows i.npy".split(),
            ["i.html", "i.json", "i.npy"],
        ),
        Documents(inputs),
        Case("export_gguf", ["export", model, "--gguf", "m.gguf", "--type", "q8_0"], ["m.gguf"]),
        Case("generate", ["generate", model, "--prompt", "abc", "--tokens", 4, *one], [], printed=True),
        Case("grad", [*f"grad {model} --tokens {inputs}/tokens.json --out G".split(), *one], ["G"]),
    ]
