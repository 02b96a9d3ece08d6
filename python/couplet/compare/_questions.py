"""Pairs of runs question by question.

File: RUN/questions.json, plain or compressed: {"results": {TASK: {"metrics": {...}, "samples": [{"id": ..., "correct":
0 or 1, or an object of them by metric}]}}}. With several metrics the first in the order of "metrics" counts. McNemar's
exact test is over questions: a question with several samples (ids that are equal up to a #) counts once, for the run
that was right more often."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, Optional

from ._runs import BadRun, Run, is_number, read_json
from ._statistics import fair_coin


class QuestionTable(NamedTuple):
    """The questions of a task that both runs of a pair have answered."""

    task: str
    metric: str  # "" if `correct` is a plain number
    both: int
    only_base: int
    only_other: int
    neither: int
    left_out: int  # questions that only one side has
    p: float  # two-sided, exact


def _fault(found: Any) -> Optional[str]:
    """Returns the fault of a file as a clause, or None."""
    if not isinstance(found, dict):
        return "it is no object"
    results = found.get("results")
    if not isinstance(results, dict):
        return "its member results is no object of tasks"
    for name, task in results.items():
        samples = task.get("samples") if isinstance(task, dict) else None
        if not isinstance(samples, list):
            return f"its task {name[:80]} has no array samples"
        useless = sum(not _is_sample(sample) for sample in samples)
        if useless:
            has = "has" if useless == 1 else "have"
            return f"{useless} of the samples of its task {name[:80]} {has} no id or no correct"
    return None


def _is_sample(sample: Any) -> bool:
    if not isinstance(sample, dict) or "id" not in sample:
        return False
    return isinstance(sample.get("correct"), (dict, bool)) or is_number(sample.get("correct"))


def _read(run: Run) -> "Optional[dict[str, Any]]":
    found = read_json(run.folder, "questions.json")
    fault = _fault(found) if found is not None else None
    if fault:
        raise BadRun(f"{run.folder}/questions.json: {fault}")
    return found["results"] if found is not None else None


def _metric(task: "dict[str, Any]") -> str:
    """Returns the member of "correct" that counts: the first in the order of "metrics", else the first member. A name
    of "metrics" is the name of the member, or "exact_match,MEMBER"."""
    samples, metrics = task["samples"], task.get("metrics")
    correct = samples[0]["correct"] if samples else None
    if not isinstance(correct, dict):
        return ""
    for metric in metrics if isinstance(metrics, dict) else ():
        for name in correct:
            if name in (metric, metric.partition(",")[2]):
                return str(name)
    return next(iter(correct), "")


def _answers(task: "dict[str, Any]", metric: str) -> "dict[str, bool]":
    """Returns whether each sample is right, by id. An id may be a text or a number."""
    answers = {}
    for sample in task["samples"]:
        correct = sample.get("correct")
        correct = correct.get(metric) if isinstance(correct, dict) else correct
        if isinstance(correct, bool) or is_number(correct):
            answers[json.dumps(sample["id"])] = bool(correct > 0.5)
    return answers


def _compare(name: str, base: "dict[str, Any]", other: "dict[str, Any]") -> Optional[QuestionTable]:
    metric = _metric(base)
    a, b = _answers(base, metric), _answers(other, metric)
    shared = [key for key in a if key in b]
    if not shared:
        return None
    lead: dict[str, int] = {}  # by question: samples right only in the other run, less samples right only in the base
    for key in shared:
        if a[key] != b[key]:
            folder, slash, rest = key.rpartition("/")
            question = folder + slash + rest.partition("#")[0]
            lead[question] = lead.get(question, 0) + b[key] - a[key]
    base_led, led = sum(by < 0 for by in lead.values()), sum(by != 0 for by in lead.values())
    counts = [sum((a[key], b[key]) == of for key in shared) for of in ((1, 1), (1, 0), (0, 1), (0, 0))]
    left_out = len(a) + len(b) - 2 * len(shared)
    return QuestionTable(name, metric, counts[0], counts[1], counts[2], counts[3], left_out, fair_coin(base_led, led))


def compare_questions(pairs: "list[tuple[Run, Run]]") -> "tuple[list[list[QuestionTable]], Optional[str]]":
    """Returns the tasks of each pair of runs (base, other), and the reason why a file was not used. Pairs without both
    files have no tasks."""
    tables, reason = [], None
    for pair in pairs:
        files: list[Optional[dict[str, Any]]] = []
        for run in pair:
            try:
                files.append(_read(run))
            except BadRun as error:
                reason = str(error)
                files.append(None)
        base, other = files
        found = [_compare(name, base[name], other[name]) for name in base if name in other] if base and other else []
        tables.append([table for table in found if table])
    return tables, reason
