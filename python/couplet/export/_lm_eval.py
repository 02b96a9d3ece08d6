"""Results of `couplet eval --json` in the form of lm-evaluation-harness 0.4: docs/formats.md, "Results in the form of
lm-evaluation-harness". A task of the harness is a benchmark without subjects, or one subject of a benchmark. A
benchmark with subjects is a group of tasks. Groups are computed from their tasks, as api/group.py and api/metrics.py of
0.4.13 do."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import os
import pathlib
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ..report import _files

Json = Dict[str, Any]
THEIRS = "harness"  # the profile whose prompts and names are those of lm-evaluation-harness
LOSSES = ("bpb", "bpb_v2", "ce_loss")
METADATA = ("task", "profile", "variant", "split", "files", "shots", "skipped", "cut", "beyond", "chance")
NONE = (
    "git_hash",
    "upper_git_hash",
    "pretty_env_info",
    "transformers_version",
    "lm_eval_version",
    "system_instruction",
    "system_instruction_sha",
    "fewshot_as_multiturn",
    "chat_template",
    "chat_template_sha",
    "start_time",
    "end_time",
    "total_evaluation_time_seconds",
)
NONE_OF_CONFIG = (
    "batch_size",
    "use_cache",
    "bootstrap_iters",
    "gen_kwargs",
    "random_seed",
    "numpy_seed",
    "torch_seed",
    "fewshot_seed",
)


def sha256(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()


def as_text(value: Any) -> Optional[str]:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def sample_key(answer: str) -> str:
    """Returns the key of a further answer in a sample: for exact_match_NAME only NAME."""
    return answer.removeprefix("exact_match_") or answer


@dataclasses.dataclass
class Metric:
    key: str  # our key
    answer: Optional[str]  # the filter that gives its value
    value: str  # member of our totals
    error: str
    name: str  # name in the harness
    filter: str


@dataclasses.dataclass
class Task:
    result: Json
    name: str
    subject: Optional[str]
    totals: Json
    n: int
    original: int
    form: Json
    max_gen_toks: Optional[int]
    metrics: List[Metric] = dataclasses.field(default_factory=list)
    lines: Optional[List[Json]] = None

    @property
    def headline(self) -> str:
        return str(self.result["reported"][0])

    def error(self, totals: Json, name: str) -> Any:
        """Returns the standard error of a metric. The error is "N/A" if the totals lack it, or if each question was
        evaluated with several prompts, because the totals count such a question once."""
        return "N/A" if "shots" in self.result else totals.get(name, "N/A")


# ---- names ----


def profile_of(result: Json) -> str:
    return str(result["profile"]) + (f"/{result['variant']}" if "variant" in result else "")


def name_of(result: Json, group: Optional[str] = None) -> str:
    """Returns the name of a benchmark, or of a group of its subjects. Under every profile or variant except `harness`,
    the name ends with the profile."""
    theirs = profile_of(result) == THEIRS
    whole = [one["name"] for one in result["group_list"] if not one["subjects"]]
    name = group or (whole[0] if theirs and whole else result["task"])
    return str(name if theirs else f"{name}_{profile_of(result)}").replace("/", "_")


def form_of(result: Json, subject: Optional[str]) -> Json:
    """Returns the form of a subject's questions: the form that names the subject, or the form that names none."""
    forms = result["forms"]
    named = [form for form in forms if subject in form.get("subjects", ())]
    return dict((named or [form for form in forms if "subjects" not in form])[0])


def metrics_of(task: Task) -> Iterator[Metric]:
    """Yields the metrics that have a value, in the order of the profile."""
    answers = task.form.get("answers", [])
    for key in task.result["reported"]:
        own = [one for one in answers if one["name"] == key]
        for answer in answers if task.form.get("filters") else own or [None]:
            part = answer["name"] if task.form.get("filters") else None
            end = f",{part}" if part else ""
            name = f"{key}_{answer['comparison']}" if answer and "comparison" in answer else key
            chosen = part or (answer["filter_name"] if answer else "none")
            if f"{key}{end}" in task.totals:
                yield Metric(key, part, f"{key}{end}", f"{key}_stderr{end}", name, chosen)


def tasks_of(results: Json, settings: Json) -> List[Task]:
    """Returns the tasks. Raises BadFile if two tasks have one name."""
    tasks: List[Task] = []
    for result in results.values():
        if "best_of" in result:
            continue
        subjects = result.get("subjects")
        for subject, totals in subjects.items() if subjects else [(None, result["metrics"])]:
            name = name_of(result)
            if subject is not None:
                name += "_" + re.sub("[^0-9A-Za-z\x80-\U0010ffff]", "_", subject)
            n = totals["n"] if subjects else result["n"]
            form = form_of(result, subject)
            most = settings.get("max_gen_toks", form["max_gen_toks"]) if "answers" in form else None
            original = result["rows"].get(subject or "", n) if "rows" in result else n
            task = Task(result, name, subject, totals, n, original, form, most)
            task.metrics = list(metrics_of(task))
            tasks.append(task)
    names = [task.name for task in tasks]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise _files.BadFile(f"two tasks or subjects would be called {twice[0]}: evaluate them in runs of their own")
    return tasks


# ---- lines of samples ----


def generation(task: Task) -> Json:
    return {"until": task.form["until"], "max_gen_toks": task.max_gen_toks, "do_sample": False, "temperature": 0.0}


def context_of(sample: Json, i: int) -> Optional[str]:
    """Returns the context of option i. Equal contexts are stored once. If neither all are equal nor all differ, the
    hash of context and continuation identifies the context."""
    contexts, continuations = sample.get("contexts", []), sample.get("continuations", [])
    if len(contexts) == 1:
        return str(contexts[0])
    if len(contexts) == len(continuations):
        return str(contexts[i])
    found = [one for one in contexts if sha256(one, continuations[i]) == sample["sha256"][i]]
    return found[0] if found else None


def value_of(task: Task, metric: Metric, sample: Json) -> float:
    correct: Any = sample["correct"]
    value: Any
    if "answers" in task.form:
        value = correct[metric.answer] if metric.answer else sample.get(f"correct_{sample_key(metric.key)}", correct)
    elif metric.key in correct:
        value = correct[metric.key]
    else:
        value = sample["soft"][task.headline] if metric.key == "soft" else sample["loss"][metric.key]
    return float(value)


def extracted(task: Task, sample: Json, metrics: List[Metric]) -> Any:
    """Returns the part of the text that a filter extracts. With `metrics: filters`, the sample's `answer` has a member
    for each filter. Otherwise the first answer's text is `extracted`, or `answer` if the sample has no `extracted`. A
    further answer's text is under the name of that answer."""
    if task.form["filters"]:
        return sample["answer"].get(metrics[0].filter)
    if metrics[0].key != task.form["answers"][0]["name"]:
        return sample.get(sample_key(metrics[0].key))
    return sample.get("extracted", sample["answer"])


def line_of(task: Task, sample: Json, which: str) -> Json:
    metrics = [one for one in task.metrics if one.filter == which]
    document = {"id": sample["id"]}
    row = re.match(r"-?\d*", str(sample["id"]).rpartition("/")[2])
    line: Json = {"doc_id": int(row[0] or 0) if row else 0, "doc": document}
    if "answers" in task.form:
        line["target"] = as_text(sample["target"])
        line["arguments"] = {"gen_args_0": {"arg_0": sample["prompt"], "arg_1": generation(task)}}
        line["resps"] = [[sample["text"]]]
        line["filtered_resps"] = [as_text(extracted(task, sample, metrics))]
    else:
        line["target"] = as_text(sample["gold"])
        responses = [[f"{one:.9g}", None] for one in sample["loglik"]]  # None: not known whether the option is greedy
        line["arguments"] = {
            f"gen_args_{i}": {"arg_0": context_of(sample, i), "arg_1": as_text(sample["continuations"][i])}
            for i in range(len(responses))
        }
        line["resps"] = [[one] for one in responses]
        line["filtered_resps"] = responses
    line["filter"] = which
    line["metrics"] = [one.name for one in metrics]
    line["doc_hash"] = sha256(json.dumps(document, indent=2, ensure_ascii=False))
    line["prompt_hash"] = sha256(line["arguments"].get("gen_args_0", {}).get("arg_0") or "")
    line["target_hash"] = sha256(line["target"] or "")
    line.update({one.name: value_of(task, one, sample) for one in metrics})
    return line


def lines_of(task: Task) -> Optional[List[Json]]:
    """Returns the lines of samples, filter after filter, or None for results without samples."""
    if "samples" not in task.result:
        return None
    samples = [
        one
        for one in task.result["samples"]
        if task.subject is None or str(one["id"]).rpartition("/")[0] == task.subject
    ]
    filters = list(dict.fromkeys(one.filter for one in task.metrics))
    return [line_of(task, sample, which) for which in filters for sample in samples]


# ---- the results file ----


def put_figure(result: Json, name: str, which: str, value: float, error: Any) -> None:
    result[f"{name},{which}"] = value
    result[f"{name}_stderr,{which}"] = error


def put_common(root: Json, name: str, result: Json, tasks: List[Task], program: str) -> None:
    root["versions"][name] = program
    root["n-shot"][name] = result.get("shots", result["num_fewshot"])
    root["higher_is_better"][name] = {one.name: one.key not in LOSSES for task in tasks for one in task.metrics}


def put_task(root: Json, task: Task, data: str, program: str) -> None:
    alias = task.name if task.subject is None else task.subject
    made: Json = {"name": task.name, "alias": alias, "sample_len": task.n}
    for one in task.metrics:
        put_figure(made, one.name, one.filter, task.totals[one.value], task.error(task.totals, one.error))
    root["results"][task.name] = made
    put_common(root, task.name, task.result, [task], program)
    metrics = {one.name: one.key not in LOSSES for one in task.metrics}
    config: Json = {
        "task": task.name,
        "dataset_path": data,
        "dataset_name": task.subject,
        "test_split": task.result["split"],
        "output_type": task.form["output_type"],
        "num_fewshot": task.result["num_fewshot"],
        "repeats": 1,
        "metric_list": [
            {"metric": name, "aggregation": "mean", "higher_is_better": higher} for name, higher in metrics.items()
        ],
    }
    if task.subject is not None:
        config["task_alias"] = task.subject
    if task.max_gen_toks:
        config["generation_kwargs"] = generation(task)
    config["metadata"] = {"version": program, **{key: task.result[key] for key in METADATA if key in task.result}}
    root["configs"][task.name] = config
    root["n-samples"][task.name] = {"original": task.original, "effective": task.n}
    if task.lines is not None:
        hashes = "".join(line[f"{part}_hash"] for line in task.lines for part in ("doc", "prompt", "target"))
        root["task_hashes"][task.name] = sha256(hashes)


def mean_of(have: List[Tuple[int, float, Any]], by_size: bool) -> Tuple[float, Any]:
    """Returns the mean over tasks, and its standard error, from each task's number of questions, value and error. With
    `by_size` each question has weight 1, otherwise each task."""
    n, tasks = sum(one[0] for one in have), len(have)
    missing = any(error == "N/A" for _, _, error in have)
    if not by_size:
        spread = "N/A" if missing else math.sqrt(sum(error**2 for _, _, error in have)) / tasks
        return sum(value for _, value, _ in have) / tasks, spread
    mean = sum(count * value for count, value, _ in have) / n
    if missing or n == tasks:
        return mean, "N/A"
    pooled = sum((count - 1) * error**2 * count for count, _, error in have)
    return mean, math.sqrt(pooled / (n - tasks) / n)


def put_group(root: Json, result: Json, group: Optional[Json], tasks: List[Task], program: str) -> str:
    """Adds the figures of a group (None: of all subjects), as a result and as a group; returns its name."""
    name = name_of(result, group["name"] if group else None)
    made: Json = {"name": name, "alias": name, "sample_len": sum(task.n for task in tasks), "sample_count": {}}
    for metric in [one for task in tasks for one in task.metrics]:
        key = f"{metric.name},{metric.filter}"
        if key in made or (group and group["metrics"] and metric.key not in group["metrics"]):
            continue
        have = [
            (task.n, task.totals[one.value], task.error(task.totals, one.error))
            for task in tasks
            for one in task.metrics
            if (one.name, one.filter) == (metric.name, metric.filter)
        ]
        mean, error = mean_of(have, bool(group) or result["headline_of"] != "subjects")
        put_figure(made, metric.name, metric.filter, mean, error)
        made["sample_count"][key] = sum(one[0] for one in have)
        if not group and result["headline_of"] == "groups":  # the harness has no name for the mean over groups
            totals = result["metrics"]
            error = tasks[0].error(totals, metric.error)
            put_figure(made, f"{metric.name}_group_mean", metric.filter, totals[metric.value], error)
    root["results"][name] = made
    root.setdefault("groups", {})[name] = made
    put_common(root, name, result, tasks, program)
    return name


def put_groups(root: Json, result: Json, tasks: List[Task], program: str) -> None:
    """Adds the benchmark as a group, its own groups that have questions, and the subjects that are in no group."""
    names: List[str] = []
    root["group_subtasks"][put_group(root, result, None, tasks, program)] = names
    parts = [one for one in result["group_list"] if one["subjects"]]
    for part in parts:
        below = [task for task in tasks if task.subject in part["subjects"]]
        if below:
            names.append(put_group(root, result, part, below, program))
            root["group_subtasks"][names[-1]] = [task.name for task in below]
    names += [task.name for task in tasks if not any(task.subject in part["subjects"] for part in parts)]


def results_of(ours: Json, tasks: List[Task], date: float) -> Json:
    settings, program = ours["settings"], ours["program"]
    members = (
        "results",
        "group_subtasks",
        "configs",
        "versions",
        "n-shot",
        "higher_is_better",
        "n-samples",
        "task_hashes",
    )
    root: Json = {name: {} for name in members}
    for result in ours["results"].values():
        if result.get("subjects") and "best_of" not in result:
            put_groups(root, result, [task for task in tasks if task.result is result], program)
    for task in tasks:
        put_task(root, task, settings["data"], program)
    model, length = settings["model"], settings["max_length"]
    root["config"] = {
        "model": "couplet",
        "model_args": f"pretrained={model},dtype={settings['dtype']},max_length={length}",
        "batch_sizes": [],
        "device": "cpu",
        "limit": settings.get("limit"),
        **dict.fromkeys(NONE_OF_CONFIG),
    }
    root.update(dict.fromkeys(NONE))
    root.update({"eot_token_id": ours["eot_token_id"], "max_length": length, "date": date})
    root["couplet"] = {"program": program, "settings": settings}
    sanitized = re.sub(r'["<>:/|\\?*\[\]]+', "__", model)
    root.update({"model_source": "couplet", "model_name": model, "model_name_sanitized": sanitized})
    return root


# ---- files ----


def export(results: pathlib.Path, out: pathlib.Path) -> List[str]:
    """Writes results_DATE.json and, for results with samples, samples_TASK_DATE.jsonl into `out`. DATE and `date` are
    the time when `results` was written. Returns the sentences to print. Raises BadFile."""
    ours = _files.parse(_files.read(results))
    date = os.stat(results).st_mtime
    if not isinstance(ours, dict) or not isinstance(ours.get("results"), dict) or "settings" not in ours:
        raise _files.BadFile("it has no results of couplet eval --tasks")
    if "program" not in ours:
        raise _files.BadFile("an older version of couplet wrote the file: write it again with this couplet eval")
    tasks = tasks_of(ours["results"], ours["settings"])
    for task in tasks:
        task.lines = lines_of(task)
    root = results_of(ours, tasks, date)
    stamp = datetime.datetime.fromtimestamp(date).strftime("%Y-%m-%dT%H-%M-%S.%f")
    out.mkdir(parents=True, exist_ok=True)
    sampled = [task for task in tasks if task.lines is not None]
    for task in sampled:
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in task.lines or ())
        _files.write(out / f"samples_{task.name}_{stamp}.jsonl", lines)
    _files.write(out / f"results_{stamp}.json", json.dumps(root, indent=1, ensure_ascii=False) + "\n")
    said = [f"results: {out}/results_{stamp}.json"]
    if sampled:
        said.append(f"samples: {out}/samples_*_{stamp}.jsonl, {len(sampled)} file{'s' * (len(sampled) > 1)}")
    return said
