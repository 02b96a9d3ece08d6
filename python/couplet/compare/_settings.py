"""The settings of all runs side by side."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from typing import NamedTuple, Optional

from ._runs import Run

SEEDS = ("train.seed", "data.seed")
# Settings that change no compared number. A dot at the end names a whole section.
BOOKKEEPING = (
    "checkpoint.",
    "log.",
    "eval.every",
    "eval.tasks",
    "eval.tasks_every",
    "eval.tasks_limit",
    "eval.tasks_data",
    "eval.prompts",
    "eval.prompt_tokens",
    "compute.threads",
    "train.recompute",
    "compute.device",
    "data.cache",
    "data.max_line_bytes",
    "data.zstd_window_log",
)
PATHS = ("data.train", "data.validation", "data.tokenizer", "data.cache")
# The hash of the content of the files that a setting names, as a member of a run. The fingerprint of training data
# includes the length of sequences, so that it cannot compare data of different lengths.
CONTENTS = {"data.train": "data", "data.validation": "held_out", "data.tokenizer": "tokenizer"}
ROLES = ("matters", "seed", "bookkeeping")


class Setting(NamedTuple):
    name: str
    role: str  # one of ROLES
    texts: "list[str]"  # by run, as shown; "-" where it is missing
    meanings: "list[str]"  # by run; equal meanings have equal texts
    # Hash of the content, which is compared between two runs that have one. None: the run has none. Empty list: no
    # content.
    marks: "list[Optional[str]]"


@functools.lru_cache
def defaults() -> "dict[str, str]":
    """Returns the defaults of this version, for settings that a configuration does not name.
    tools/make_defaults_json.py writes them."""
    with open(os.path.join(os.path.dirname(__file__), "defaults.json"), encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]


def _role(name: str) -> str:
    if name in SEEDS:
        return "seed"
    return "bookkeeping" if name in BOOKKEEPING or name.split(".")[0] + "." in BOOKKEEPING else "matters"


def _short_path(match: "re.Match[str]") -> str:
    """Returns the last two parts of a path."""
    path = match[0].rstrip("/") or match[0][:1]
    return "/".join(path.split("/")[-2:])


def _meaning(name: str, text: str) -> str:
    """Returns the meaning of a value: equal numbers have one meaning in any spelling, as have the words for an absent value."""
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return f"{value:.17g}"
    if text in ("", "null", "~", "[]", "{}"):
        return "unset"
    # Older versions wrote `auto`: a run of one process counted loads by micro-batch, and all runs computed in f32.
    return {("balance.scope", "auto"): "micro", ("compute.activations", "auto"): "f32"}.get((name, text), text)


def text_of(run: Run, name: str) -> str:
    """Returns the text of a setting, for the precision the one that the run's lines record. "-": the setting is
    missing."""
    text = run.settings.get(name, defaults().get(name, "-"))
    return run.precision if name == "compute.dtype" and run.precision else text


def without_copies(runs: "list[Run]") -> "list[Run]":
    """Returns the runs without copies: equal settings and seeds, and equal losses at all steps that both runs have
    logged. The run with more lines stays."""
    names = {name for run in runs for name in run.settings if _role(name) != "bookkeeping" and name not in PATHS}
    meanings = [[_meaning(name, text_of(run, name)) for name in sorted(names)] for run in runs]
    kept: list[int] = []
    for i in sorted(range(len(runs)), key=lambda i: -len(runs[i].lines)):
        whole = next((k for k in kept if meanings[k] == meanings[i] and _equal_losses(runs[k], runs[i])), None)
        if whole is None:
            kept.append(i)
        else:
            runs[whole].copies.append(runs[i].folder)
    return [runs[i] for i in sorted(kept)]


def _equal_losses(a: Run, b: Run) -> bool:
    both = [(line.values["loss"], other.values["loss"]) for line in a.lines if (other := b.line_at(line.tokens))]
    return any(x == y for x, y in both) and all(x == y or x != x and y != y for x, y in both)


class Settings:
    """All settings of the runs: relevant settings, seeds, bookkeeping; each group in the order of first occurrence."""

    def __init__(self, runs: "list[Run]") -> None:
        names = [
            name
            for role in ROLES
            for name in dict.fromkeys(name for run in runs for name in run.settings)
            if _role(name) == role
        ]
        for name, attribute in CONTENTS.items():  # known content is compared even if no configuration names it
            if name not in names and any(getattr(run, attribute) for run in runs):
                names.insert(0, name)
        self.n_runs = len(runs)
        self.all = {name: self._setting(name, runs) for name in names}
        self.differing = [setting for setting in self.all.values() if self._differs(setting)]

    def _setting(self, name: str, runs: "list[Run]") -> Setting:
        texts, meanings = [], []
        marks = [getattr(run, CONTENTS[name]) for run in runs] if name in CONTENTS else []
        for i, run in enumerate(runs):
            text = text_of(run, name)
            if name in PATHS:
                text = re.sub(r'[^\[\], "][^\],"]*', _short_path, text)
            meanings.append(_meaning(name, text))
            texts.append(f"{text} ({marks[i]})" if marks and marks[i] else text)
        return Setting(name, _role(name), texts, meanings, marks)

    def same(self, setting: Setting, a: int, b: int) -> bool:
        """Returns whether two runs have an equal setting: by the hash of its content if both have one, else by its
        meaning."""
        if setting.marks and setting.marks[a] and setting.marks[b]:
            if setting.name != "data.train" or self.meaning("data.seq_len", a) == self.meaning("data.seq_len", b):
                return setting.marks[a] == setting.marks[b]
        return setting.meanings[a] == setting.meanings[b]

    def _differs(self, setting: Setting) -> bool:
        """Compares all pairs of content: two runs may both equal a third run and not equal each other."""
        firsts = range(self.n_runs if setting.marks else 1)
        return any(not self.same(setting, a, b) for a in firsts for b in range(a + 1, self.n_runs))

    def is_off(self, section: str, run: int) -> bool:
        """Returns whether a loss with this section of settings is off in the run: its weight is 0."""
        weight = self.meaning(f"{section}.weight", run)
        return weight == "0" or (weight == "unset" and section == "erc" and self.meaning("model.router", run) == "aoe")

    def meaning(self, name: str, run: int) -> str:
        return self.all[name].meanings[run] if name in self.all else "-"
