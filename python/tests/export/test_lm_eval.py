"""The files of `couplet.export lm-eval` are read by lm-evaluation-harness itself: by its tables, its readers of file
names, and its datasets. Its means and errors of the values in the lines are compared too."""

import collections
import datetime
import json
import os
import subprocess
import sys

import couplet
import pytest
from conftest import ROOT
from couplet.export import __main__ as export

utils = pytest.importorskip("lm_eval.utils")
group = pytest.importorskip("lm_eval.api.group")
metrics = pytest.importorskip("lm_eval.api.metrics")
tracker = pytest.importorskip("lm_eval.loggers.evaluation_tracker")
schema = pytest.importorskip("lm_eval.result_schema")

pytestmark = pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
EVAL = ROOT / "tests" / "golden" / "eval"
SECONDS = 1767323045.5
DATE = datetime.datetime.fromtimestamp(SECONDS).strftime("%Y-%m-%dT%H-%M-%S.%f")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder like the one that --output_path of lm_eval leaves."""
    made = tmp_path_factory.mktemp("results") / "model"
    made.mkdir()
    words = [
        "--tasks",
        "arc_challenge,gsm8k,agieval,triviaqa",
        "--profile",
        "harness",
        "--limit",
        "2",
        "--max-gen-toks",
        "4",
        "--samples",
        "--json",
        made.parent / "own.json",
    ]
    subprocess.run([sys.executable, EVAL / "make_rows.py"], check=True, capture_output=True)
    subprocess.run(
        [couplet.find_program(), "eval", EVAL / "model", "--data", EVAL / "data", *words],
        check=True,
        capture_output=True,
    )
    os.utime(made.parent / "own.json", (SECONDS, SECONDS))
    assert export.main(["lm-eval", str(made.parent / "own.json"), "--out", str(made)]) == 0
    return made


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / f"results_{DATE}.json").read_text())


def lines_of(folder, task):
    return [json.loads(line) for line in (folder / f"samples_{task}_{DATE}.jsonl").read_text().splitlines()]


def test_members(results):
    known = set(schema.EvalResults.__annotations__)
    assert set(results) - known == {"couplet", "start_time", "end_time"}
    assert {
        "results",
        "groups",
        "group_subtasks",
        "configs",
        "versions",
        "n-shot",
        "higher_is_better",
        "n-samples",
        "config",
    } <= set(results)
    assert set(results["config"]) <= set(schema._EvalConfig.__annotations__)


def test_table(results):
    table = utils.make_table(results)
    for task, result in results["results"].items():
        assert result["alias"] in table, task
        for key, value in result.items():
            if "," in key and "_stderr," not in key:
                assert f"{value:.4f}" in table, (task, key)
    assert "strict-match" in table and "↑" in table and "±" in table
    groups = utils.make_table(results, "groups")
    assert all(name in groups for name in results["groups"]) and "arc_challenge" not in groups


def test_names_of_files(folder, results):
    names = [f"model/{path.name}" for path in folder.iterdir()]
    assert utils.get_results_filenames(names) == [f"model/results_{DATE}.json"]
    samples = [name.removeprefix("model/") for name in utils.get_sample_results_filenames(names)]
    assert {utils.get_file_task_name(name) for name in samples} == set(results["configs"])
    assert {utils.get_file_datetime(name) for name in samples} == {DATE}


def test_names_of_tasks(results):
    tasks = pytest.importorskip("lm_eval.tasks")
    assert set(results["results"]) <= set(tasks.TaskManager().all_tasks)


def test_model(results):
    name = tracker.GeneralConfigTracker._get_model_name(results["config"]["model_args"])
    assert name == results["model_name"] == str(EVAL / "model")
    assert utils.sanitize_model_name(name) == results["model_name_sanitized"]


def test_saved_again(folder, results, tmp_path):
    """The tracker of lm_eval saves our results and lines. Its hash of a task's lines equals the exported one."""
    saver = tracker.EvaluationTracker(output_path=str(tmp_path))
    saver.general_config_tracker.model_name_sanitized = "model"
    samples = {task: lines_of(folder, task) for task in results["configs"]}
    saver.save_results_aggregated(dict(results), samples)
    (path,) = (tmp_path / "model").glob("results_*.json")
    again = json.loads(path.read_text())
    assert again["results"] == results["results"] and again["task_hashes"] == results["task_hashes"]


@pytest.mark.parametrize("task", ["arc_challenge", "gsm8k", "triviaqa", "agieval_math", "agieval_sat_math"])
def test_values(folder, results, task):
    """The figures equal lm_eval's mean and mean_stderr of the values in the lines."""
    values = collections.defaultdict(list)
    for line in lines_of(folder, task):
        for name in line["metrics"]:
            values[name, line["filter"]].append(line[name])
    assert values
    for (name, which), numbers in values.items():
        got = results["results"][task]
        assert got[f"{name},{which}"] == pytest.approx(metrics.mean(numbers), rel=1e-9)
        assert got[f"{name}_stderr,{which}"] == pytest.approx(metrics.mean_stderr(numbers), rel=1e-9)


class Leaf:
    """The members of a task that groups of lm_eval use."""

    def __init__(self, name):
        self.task_name = self.name = name


def test_groups(results):
    """The figures of groups equal lm_eval's Group.aggregate of our tasks."""
    for name, below in results["group_subtasks"].items():
        got = results["groups"][name]
        figures = [key for key in got if "," in key]
        names = {key.partition(",")[0] for key in figures if "_stderr," not in key}
        made = group.Group(name=name, aggregate_metric_list=[group.AggMetricConfig(metric=metric) for metric in names])
        all_tasks = [task for task in results["configs"] if task.startswith("agieval_")]
        leaves = [Leaf(task) for task in (all_tasks if name == "agieval" else below)]
        made.get_all_tasks = lambda leaves=leaves: leaves
        want = made.aggregate(results["results"])
        assert set(got) == set(want) and got["sample_count"] == want["sample_count"]
        for key in figures:
            assert got[key] == pytest.approx(want[key], rel=1e-9), (name, key)


def test_datasets(folder, tmp_path):
    """datasets, the library of the card of a results folder, reads both kinds of files."""
    datasets = pytest.importorskip("datasets")
    for name in (f"results_{DATE}.json", f"samples_gsm8k_{DATE}.jsonl", f"samples_arc_challenge_{DATE}.jsonl"):
        read = datasets.load_dataset("json", data_files=str(folder / name), split="train", cache_dir=str(tmp_path))
        assert len(read) == {"results": 1, "samples_gsm8k": 4, "samples_arc_challenge": 2}[name.rpartition("_")[0]]
