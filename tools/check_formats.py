#!/usr/bin/env python3
"""Checks that docs/formats.md names every member of the JSON the program writes, and no other member.

From the source it takes the string literals that look like a member's name in the functions that write it. From
the page it takes the names in the first column of the tables below one heading."""

import json
import pathlib
import re
import sys

WORD = r'"([A-Za-z][A-Za-z0-9_]*)"'
PAGE = pathlib.Path("docs/formats.md").read_text()

# Rows of members: heading of the page, sources, beginning of the writing functions, patterns of a name, and literals
# that are values.
WRITTEN = [
    ("Metrics: metrics.jsonl", "src/train/metrics.c", "", [WORD], set()),
    (
        "Plans: couplet plan --json",
        "src/plan/show.c",
        "---- for programs ----",
        [WORD],
        {"bf16", "f32", "nothing", "backward", "update"},
    ),
    ("Document losses: documents.json", "src/infer/document_loss.c", "---- files ----", [WORD], set()),
    ("Routing over text: couplet inspect --text", "src/inspect/show/text_json.c", "", [WORD], set()),
    ("Inspections: couplet inspect --json", "src/inspect/show/json.c", "", [WORD], set()),
    ("Pages: --html of inspect, eval, compare", "src/report/view.c", "---- the template ----", [WORD], {"noscript"}),
    (
        "Comparisons: couplet compare --json",
        "python/couplet/compare/_json.py python/couplet/compare/_questions.py",
        "",
        [r'"(\w+)":', r"^    (\w+): (?:int|str|float)"],
        {"id", "correct", "metrics", "results", "samples"},
    ),
    ("Verdicts: python -m couplet.certify --json", "python/couplet/certify/_report.py", "def as_json", [WORD], set()),
    (
        "Dumps of the coupling loss",
        "python/couplet/certify/_dump.py",
        "",
        [r'"(W_[gp]|R|M|dR|dW_[gp]|delta|alpha|weight|layers|loss|eps)"'],
        set(),
    ),
    ("Perplexity of text", "src/eval/perplexity.c src/cli/verbs/eval_text.c", "---- JSON ----", [WORD], set()),
    (
        "Results of an evaluation",
        "src/eval/run/multiple_choice.c src/eval/run/generate_until.c "
        "src/eval/totals.c src/eval/evaluation.c src/eval/evaluation_summary.c src/eval/evaluation_run.c "
        "src/eval/journal.c src/eval/run/eval_model.c",
        "",
        [WORD],
        {
            "file",
            "opened",
            "read",
            "written",
            "are",
            "is",
            "eval",
            "bos_token_id",
            "eos_token_id",
            "rank",
            "generate",
            "multiple_choice",
            "generate_until",
            "exact_match",
            "has",
            "have",
        },
    ),
]
TABLES = [  # rows for a table after a line that begins with `name`
    (
        "state.json",
        ["src/train/trainer.c", "src/store/checkpoint.c"],
        [r"return json_pack\((.*?)\);", r'c->state, "(\w+)", json_'],
    ),
    ("made_with", ["src/train/resume.c"], [r"return json_pack\((.*?)\);"]),
    ("start.json", ["src/train/data.c", "src/train/loop.c"], [r'json_object_set_new\(object, "(\w+)"']),
    (
        "shards.json",
        ["src/data/shard_writer.c"],
        [r'put_(?:member|number)\(&out, "(\w+)"', r'  \\"(\w+)\\": (?:\\"|\[)'],
    ),
]


def first_column(text):
    cells = re.findall(r"^\| (?:- )?(`[^|]*?) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def section(heading):
    return re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]


def table(name):
    return re.search(rf"^`{re.escape(name)}`:\n\n((?:\|.*\n)+)", PAGE, re.M)[1]


def compare(where, source, written, told):
    wrong = [f"docs/formats.md, {where}: `{name}` of {source} is not there" for name in sorted(written - told)]
    wrong += [f"docs/formats.md, {where}: `{name}` is not in {source}" for name in sorted(told - written)]
    return wrong if written else [f"{source}: no member found; this check looks for the wrong thing"]


# Names that come from lists: every auxiliary loss, in total and by layer.
LOSSES = re.findall(r"^CPL_LOSS\(\w+, (\w+),", pathlib.Path("src/model/aux_losses.def").read_text(), re.M)
ROWS = re.findall(
    r"^CPL_FIGURE\((\w+), (\w+), \w+, \d, (\d)\)", pathlib.Path("src/tensor/coupling_figures.def").read_text(), re.M
)
FIGURES = [(name, old) for name, old, _ in ROWS]
TOKENS = re.findall(
    r'"(\w+)"', pathlib.Path("src/model/tokens/mean_token.c").read_text().split("names[] = {")[1].split("}")[0]
)
CENTRED = {f"centred_{name}" for name, _, centred in ROWS if centred == "1"}


# The members of rows that stand for several members.
MEMBERS = {
    "ESTIMATE": "estimate standard_error",
    "SIGNS": "negative tokens ids experts all above below size",
    "NULLED": "mean_token null mean std p",
}


def columns(list_file, of):
    """Returns the names in the paths of members of the rows whose names match `of`. A bound also has a member for an
    infinite value."""
    row = rf'^CPL_(COLUMN|ESTIMATE|SIGNS|NULLED|NULL)\({of}, "([\w.]+)",\s+[\w>-]+(?:,\s+(\w+),)?'
    rows = re.findall(row, pathlib.Path(list_file).read_text(), re.M)
    names = {name for _, path, _ in rows for name in path.split(".") if name}
    names |= {name for form, _, _ in rows for name in MEMBERS.get(form, "").split()}
    return names | {path.split(".")[-1] + "_infinite" for _, path, kind in rows if kind == "BOUND"}


LISTED = {
    "Routing over text: couplet inspect --text": columns("src/inspect/show/columns.def", r"TEXT_\w+"),
    "Plans: couplet plan --json": {
        name
        for file in ("terms", "bytes")
        for name in re.findall(r"^CPL_PLAN_\w+\((\w+)[,)]", pathlib.Path(f"src/plan/{file}.def").read_text(), re.M)
    },
    "Metrics: metrics.jsonl": {*LOSSES, *(f"{name}_layers" for name in LOSSES), *sum(FIGURES, ()), *CENTRED, *TOKENS},
    "Inspections: couplet inspect --json": {name for name, _ in FIGURES}
    | CENTRED
    | columns("src/inspect/show/columns.def", r"(?!TEXT_)\w+"),
}

wrong = []
for heading, source, begin, patterns, values in WRITTEN:
    texts = [pathlib.Path(one).read_text() for one in source.split()]
    text = "".join(one[one.index(begin) :] for one in texts)
    written = {name for p in patterns for name in re.findall(p, text, re.M)} - values
    written |= LISTED.get(heading, set())
    wrong += compare(heading, source, written, first_column(section(heading)))
for name, sources, patterns in TABLES:
    text = "".join(pathlib.Path(source).read_text() for source in sources)
    found = [part for p in patterns for part in re.findall(p, text, re.S)]
    written = {word for part in found for word in re.findall(r"^(\w+)$", part)}
    written |= {word for part in found for word in re.findall(WORD, part)}
    wrong += compare(name, " and ".join(sources), written, first_column(table(name)))


def keys_of(value):
    """Returns the names of all members inside the value."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return set(value if isinstance(value, dict) else ()).union(*map(keys_of, inside))


heading = "The list of charts: assets/charts.json"
rows = json.loads(pathlib.Path("assets/charts.json").read_text())["charts"]
wrong += compare(heading, "assets/charts.json", keys_of(rows), first_column(section(heading)))
uses = dict(re.findall(r"^\| ([A-Z]+): .*?\| (.*) \|$", section("OLMoE directories"), re.M))
keys = re.findall(r"CPL_HF_([A-Z]+)\((\w+)", pathlib.Path("src/store/hf_keys.def").read_text().split(" */", 1)[1])
for use in sorted({use for use, _ in keys}):
    wrong += compare(
        f"keys of config.json, {use}",
        "src/store/hf_keys.def",
        {key for one, key in keys if one == use},
        set(re.findall(r"`(\w+)`", uses.get(use, ""))),
    )
print("\n".join(wrong))
sys.exit(bool(wrong))
