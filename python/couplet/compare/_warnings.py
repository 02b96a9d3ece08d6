"""Warnings for the reader of a comparison, the most serious first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._comparison import Comparison

# Settings that make losses incomparable: the setting, its meaning, the reason.
_TEXT = "their validation losses are of different text"
MUST_AGREE = (
    ("data.train", "training data", "their losses are of different text"),
    ("data.validation", "validation data", _TEXT),
    ("eval.max_sequences", "validation data", _TEXT),
    ("data.tokenizer", "tokenizer", "a token is not the same to both, and losses are a token's"),
    ("model.vocab_size", "vocabulary", "losses of different vocabularies cannot be compared"),
    ("data.seq_len", "length of sequences", "tokens of theirs have different context"),
)
POINTS = {
    "logged": "there is no number of tokens at which every run was evaluated: figures are at the largest that all have "
    "logged, and validation loss is linear between the two evaluations around it",
    "last": "there is no number of tokens at which every run has a line: of each the last one before the shortest run's end "
    "is taken, and validation loss is linear between the two evaluations around that end",
}


def _of_text(c: "Comparison") -> "list[str]":
    sentences = []
    for name, what, why in MUST_AGREE:
        s = c.settings.all.get(name)
        if s not in c.settings.differing or s is None:
            continue
        for run in range(len(c.runs)):
            others = [other for other in range(len(c.runs)) if not c.settings.same(s, run, other)]
            if others:
                break
        more = f" (and {len(others) - 1} more runs)" if len(others) > 1 else ""
        sentences.append(
            f"{c.names[run]} and {c.names[others[0]]}{more} differ in their {what} "
            f"({name}: {s.texts[run]} and {s.texts[others[0]]}): {why}"
        )
    return sentences


def _of_groups(c: "Comparison") -> "list[str]":
    """Warns of groups by a setting that differ in more than seeds."""
    sentences = []
    for group in c.groups if c.by is not None else ():
        first, *others = group.members
        found = [
            s.name
            for s in c.settings.differing
            if s.role == "matters"
            and not (group.is_off and s.name.split(".")[0] == str(c.by).split(".")[0])  # its loss is off
            and any(not c.settings.same(s, run, first) for run in others)
        ]
        if found:
            sentences.append(f"the runs of the group {group.name} differ in more than their seeds: {', '.join(found)}")
    return sentences


def _of_precision(c: "Comparison") -> "list[str]":
    """Warns of runs of older versions, which recorded the setting `auto` and not its result."""
    dtype = c.settings.all.get("compute.dtype")
    unknown = [run for run, text in enumerate(dtype.texts) if text == "auto"] if dtype else []
    if len(unknown) < 2:
        return []
    return [
        f"{len(unknown)} runs, {c.names[unknown[0]]} the first of them, do not say whether they were computed in f32 or bf16 "
        "(compute.dtype auto): one group may hold both"
    ]


def _of_files(c: "Comparison") -> "list[str]":
    sentences = [f"{r.folder} and {r.duplicate} are the same folder: it counts once" for r in c.runs if r.duplicate]
    sentences += [
        f"{r.folder} and {copy} are the same run, with equal settings, seed and losses: it counts once"
        for r in c.runs
        for copy in r.copies
    ]
    for name, run in zip(c.names, c.runs):
        if run.n_damaged:
            lines = "line of its metrics was" if run.n_damaged == 1 else "lines of its metrics were"
            sentences.append(f"{name}: {run.n_damaged} damaged {lines} passed over")
        if run.n_repeated:
            steps = "step has" if run.n_repeated == 1 else "steps have"
            sentences.append(
                f"{name}: {run.n_repeated} {steps} several lines, as after a run that went on from a checkpoint; the last one "
                "counts"
            )
        if run.cut:
            sentences.append(f"{name}: its metrics end early: {run.cut}")
    return sentences


def warnings_of(c: "Comparison") -> "list[str]":
    point = [POINTS[c.point_kind]] if c.point_kind in POINTS else []
    return _of_text(c) + _of_groups(c) + _of_precision(c) + point + _of_files(c)
