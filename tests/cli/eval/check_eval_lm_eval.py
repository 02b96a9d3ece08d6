#!/usr/bin/env python3
"""check_eval_lm_eval.py COUPLET: compares the files that couplet.export lm-eval writes with the program's JSON and with
the formulas of lm-evaluation-harness: every member of the results file and every line of the samples files. Checks the
names that lm-evaluation-harness uses, and refusals."""

import datetime
import hashlib
import json
import math
import os
import pathlib
import statistics
import sys

sys.path.append("tests/cli")
from eval_case import GOLDEN, close, run
from inputs import read_json
from program import capture, check, equal, finish, scratch_folder

MODEL, DATA = GOLDEN / "model", GOLDEN / "data"
DATE = 1767323045.5  # seconds since 1970
STAMP = datetime.datetime.fromtimestamp(DATE).strftime("%Y-%m-%dT%H-%M-%S.%f")
ROOT = pathlib.Path(__file__).resolve().parents[3]
SUBJECTS = ("anatomy", "astronomy", "world_religions")


def make_data(folder):
    """Links the rows of the references, and three subjects of MMLU."""
    data = folder / "data"
    data.mkdir()
    for name in ("arc_challenge", "gsm8k", "math", "triviaqa", "agieval", "mmlu_pro", "bbh", "winogrande", "olmes"):
        (data / name).symlink_to(DATA / name)
    for part in ("dev", "val", "test"):
        (data / "mmlu" / part).mkdir(parents=True)
        for subject in SUBJECTS:
            name = f"mmlu/{part}/{subject}_{part}.csv"
            (data / name).symlink_to(DATA / name)
    return data


def export(*words):
    """Returns (output, exit code) of couplet.export lm-eval, which needs the standard library alone."""
    python = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-m", "couplet.export", "lm-eval", *map(str, words)]
    done = capture(command, env=python)
    return done.stdout + done.stderr, done.returncode


def both(folder, *words):
    """Returns our JSON, and lm-eval's results made of it."""
    folder.mkdir()
    own = folder / "own.json"
    _, err, code = run(MODEL, *words, "--samples", "--json", own)
    check(code == 0, f"{words}: exit {code}: {err[-500:]}")
    os.utime(own, (DATE, DATE))
    said, code = export(own, "--out", folder)
    check(code == 0, f"{words}: export: exit {code}: {said[-500:]}")
    return read_json(own), read_json(folder / f"results_{STAMP}.json")


def lines_of(folder, task):
    path = folder / f"samples_{task}_{STAMP}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def is_near(got, want):
    return isinstance(got, (int, float)) and close(got, want, 1e-8, 1e-8)


# ---- figures ----


def mean_error(values):
    """Returns the standard error of lm-eval's mean_stderr."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else "N/A"


def check_task(folder, theirs, task):
    """Values and standard errors equal those computed from the lines by the formulas of lm-evaluation-harness."""
    result, lines = theirs["results"][task], lines_of(folder, task)
    figures = {key for key in result if "," in key and "_stderr," not in key}
    check(figures == {f"{m},{line['filter']}" for line in lines for m in line["metrics"]}, f"{task}: {figures}")
    for key in figures:
        name, _, which = key.partition(",")
        values = [line[name] for line in lines if line["filter"] == which]
        check(is_near(result[key], statistics.mean(values)), f"{task}: {key} is {result[key]}")
        got, want = result[f"{name}_stderr,{which}"], mean_error(values)
        check(got == want or is_near(got, want), f"{task}: {key}: the error is {got}, not {want}")
    n = len(lines) // len({line["filter"] for line in lines})
    check(result["sample_len"] == theirs["n-samples"][task]["effective"] == n, f"{task}: {n} samples")
    hashes = "".join(line[part] for line in lines for part in ("doc_hash", "prompt_hash", "target_hash"))
    check(theirs["task_hashes"][task] == sha256(hashes), f"{task}: task_hashes")
    check(set(theirs["higher_is_better"][task]) == {key.partition(",")[0] for key in figures}, f"{task}: directions")


def leaves(theirs, group):
    below = theirs["group_subtasks"].get(group)
    return {group} if below is None else set().union(*(leaves(theirs, one) for one in below))


def pooled(errors, sizes):
    """Returns lm-eval's pooled_sample_stderr."""
    variance = sum((n - 1) * e * e * n for n, e in zip(sizes, errors)) / (sum(sizes) - len(sizes))
    return math.sqrt(variance / sum(sizes))


def check_group(theirs, group):
    """A group has the means over its tasks, weighted by their questions."""
    result = theirs["results"][group]
    check(theirs["groups"][group] == result, f"{group}: groups and results differ")
    for key in result:
        name, _, which = key.partition(",")
        if not which or name.endswith(("_stderr", "_group_mean")):
            continue
        have = [theirs["results"][task] for task in sorted(leaves(theirs, group)) if key in theirs["results"][task]]
        sizes, values = [one["sample_len"] for one in have], [one[key] for one in have]
        check(is_near(result[key], sum(n * v for n, v in zip(sizes, values)) / sum(sizes)), f"{group}: {key}")
        errors, got = [one[f"{name}_stderr,{which}"] for one in have], result[f"{name}_stderr,{which}"]
        check(got == "N/A" if "N/A" in errors else is_near(got, pooled(errors, sizes)), f"{group}: {key}: {got}")
        check(result["sample_count"][key] == sum(sizes), f"{group}: {key}: {result['sample_count']}")


# ---- lines ----


def check_ranked(line, sample):
    requests = [line["arguments"][f"gen_args_{i}"] for i in range(len(line["arguments"]))]
    contexts = sample["contexts"]
    check([one["arg_1"] for one in requests] == sample["continuations"], f"{sample['id']}: continuations")
    for i, one in enumerate(requests):
        check(one["arg_0"] == contexts[i if len(contexts) > 1 else 0], f"{sample['id']}: context {i}")
        check(
            close(float(line["resps"][i][0][0]), sample["loglik"][i], 1e-6, 1e-6)
            and line["filtered_resps"][i] == line["resps"][i][0]
            and line["resps"][i][0][1] is None,
            f"{sample['id']}: response {i}",
        )
    check(line["target"] == json.dumps(sample["gold"]), f"{sample['id']}: {line['target']}")
    check(all(line[m] == sample["correct"][m] for m in line["metrics"] if m in sample["correct"]), f"{sample['id']}")


def check_written(line, sample):
    request = line["arguments"]["gen_args_0"]
    check(
        request["arg_0"] == sample["prompt"]
        and request["arg_1"]["do_sample"] is False
        and isinstance(request["arg_1"]["until"], list)
        and request["arg_1"]["max_gen_toks"] == 4,
        f"{sample['id']}: {request}",
    )
    check(line["resps"] == [[sample["text"]]], f"{sample['id']}: {line['resps']}")
    if isinstance(sample["correct"], dict):
        equal(
            (line["filtered_resps"], line["exact_match"]),
            ([sample["answer"][line["filter"]]], sample["correct"][line["filter"]]),
            f"{sample['id']}",
        )


def check_lines(folder, task, samples):
    lines = lines_of(folder, task)
    check(len(lines) % len(samples) == 0, f"{task}: {len(lines)} lines")
    for line, sample in zip(lines, samples * (len(lines) // len(samples))):
        doc, first = line["doc"], line["arguments"]["gen_args_0"]["arg_0"]
        check(doc == {"id": sample["id"]}, f"{task}: {doc}")
        check(line["doc_id"] == int(str(sample["id"]).split("/")[-1].split("#")[0]), f"{task}: {line['doc_id']}")
        equal(
            (line["doc_hash"], line["prompt_hash"], line["target_hash"]),
            (sha256(json.dumps(doc, indent=2, ensure_ascii=False)), sha256(first), sha256(line["target"])),
            f"{task}: hashes",
        )
        (check_written if "text" in sample else check_ranked)(line, sample)


# ---- whole files ----


def check_subjects(folder, own, theirs, group, prefix):
    """Checks a task with subjects: its group has our figures, and every subject has its questions."""
    result = own["results"][group]
    for key, value in result["metrics"].items():
        if not key.endswith(("_stderr", "_macro", "_micro")):
            check(is_near(theirs["results"][group][f"{key},none"], value), f"{group}: {key}")
            error = theirs["results"][group][f"{key}_stderr,none"]
            check(is_near(error, result["metrics"][f"{key}_stderr"]), f"{group}: {key}: error")
    for subject, totals in result["subjects"].items():
        task = f"{prefix}_{subject.replace('-', '_')}"
        check(theirs["results"][task]["alias"] == subject and theirs["configs"][task]["task_alias"] == subject, task)
        check(totals["n"] == theirs["results"][task]["sample_len"], f"{task}: {totals['n']}")
        check_lines(folder, task, [s for s in result["samples"] if s["id"].rpartition("/")[0] == subject])


def check_run(theirs, data):
    config = theirs["config"]
    check(
        config["model"] == "couplet"
        and config["limit"] == 2
        and config["model_args"].startswith(f"pretrained={MODEL},"),
        f"{config}",
    )
    equal(
        (theirs["model_name"], theirs["model_source"], theirs["model_name_sanitized"]),
        (str(MODEL), "couplet", str(MODEL).replace("/", "__")),
        "names",
    )
    check(
        theirs["lm_eval_version"] is theirs["transformers_version"] is theirs["git_hash"] is None
        and theirs["couplet"]["program"].startswith("couplet "),
        "who wrote the file",
    )
    times = ("start_time", "end_time", "total_evaluation_time_seconds")
    check(theirs["date"] == DATE and all(theirs[name] is None for name in times), "times")
    check(all(c["dataset_path"] == str(data) for c in theirs["configs"].values()), "dataset_path")


def check_harness(folder, data):
    """Checks profile harness: tasks, groups, metrics and filters have lm-eval's names if the figures are lm-eval's."""
    words = (
        "--tasks arc_challenge,gsm8k,math,triviaqa,winogrande,agieval,mmlu,bbh,mmlu_pro --profile harness "
        f"--data {data} --limit 2 --max-gen-toks 4"
    ).split()
    own, theirs = both(folder / "harness", *words)
    results = theirs["results"]
    for task in theirs["configs"]:
        check_task(folder / "harness", theirs, task)
    for group in theirs["groups"]:
        check_group(theirs, group)
    for task in ("arc_challenge", "gsm8k", "triviaqa", "winogrande"):
        check_lines(folder / "harness", task, own["results"][task]["samples"])
        check(
            theirs["n-shot"][task] == own["results"][task]["num_fewshot"] == theirs["configs"][task]["num_fewshot"],
            f"{task}: shots",
        )
    check_subjects(folder / "harness", own, theirs, "mmlu", "mmlu")
    check_subjects(folder / "harness", own, theirs, "agieval", "agieval")
    equal(
        (theirs["group_subtasks"]["mmlu"], theirs["group_subtasks"]["mmlu_stem"]),
        (["mmlu_humanities", "mmlu_stem"], ["mmlu_anatomy", "mmlu_astronomy"]),
        "groups of mmlu",
    )
    equal(
        (theirs["configs"]["agieval_math"]["output_type"], theirs["configs"]["agieval_sat_math"]["output_type"]),
        ("generate_until", "multiple_choice"),
        "kinds of agieval",
    )
    check({"exact_match,strict-match", "exact_match,flexible-extract"} < set(results["gsm8k"]), "filters of gsm8k")
    check(
        "exact_match,get-answer" in results["bbh_cot_fewshot"]
        and "exact_match,custom-extract" in results["mmlu_pro"]
        and "exact_match,remove_whitespace" in results["triviaqa"],
        "names of filters",
    )
    check(
        "exact_match_number,none" in results["math"] and "exact_match,none" not in results["math"],
        "numbers are compared under another name",
    )
    check(
        "f1_shared_words,none" in results["triviaqa"] and "f1,none" not in results["triviaqa"],
        "shared words are compared under another name",
    )
    check(theirs["n-samples"]["mmlu_anatomy"] == {"original": 5, "effective": 2}, "n-samples")
    check_run(theirs, data)


def check_inloop(folder, data):
    """Checks profile inloop: names contain it. Errors are absent if a question has several prompts."""
    own, theirs = both(
        folder / "inloop", "--tasks", "mmlu", "--profile", "inloop", "--variant", "test", "--data", data, "--limit", 2
    )
    metrics, group = own["results"]["mmlu"]["metrics"], theirs["results"]["mmlu_inloop_test"]
    for name in ("len_norm", "acc", "bpb"):
        check(
            is_near(group[f"{name},none"], metrics[f"{name}_micro"])
            and is_near(group[f"{name}_group_mean,none"], metrics[name]),
            f"{name}: {group}",
        )
        check(
            f"{name}_stderr" in metrics
            and group[f"{name}_stderr,none"] == "N/A"
            and group[f"{name}_group_mean_stderr,none"] == "N/A",
            f"{name}: errors",
        )
    check(theirs["n-shot"]["mmlu_inloop_test_anatomy"] == own["results"]["mmlu"]["shots"], f"{theirs['n-shot']}")
    check("mmlu_stem_inloop_test" in theirs["group_subtasks"]["mmlu_inloop_test"], f"{theirs['group_subtasks']}")
    own, theirs = both(folder / "one", "--tasks", "arc_challenge", "--data", data, "--limit", 1)
    check(
        theirs["higher_is_better"]["arc_challenge_inloop"]["bpb"] is False
        and theirs["higher_is_better"]["arc_challenge_inloop"]["acc"] is True,
        "directions",
    )
    check(theirs["results"]["arc_challenge_inloop"]["acc_stderr,none"] == "N/A", "one question has no error")
    check_lines(folder / "one", "arc_challenge_inloop", own["results"]["arc_challenge"]["samples"])


def check_olmes(folder, data):
    """Both forms are exported. The better of the two is not exported as a third task. The mean over subjects is plain."""
    own, theirs = both(
        folder / "olmes", "--tasks", "winogrande,mmlu", "--profile", "olmes", "--data", data, "--limit", 2
    )
    names = {"winogrande_olmes_cf", "winogrande_olmes_mcf"}
    check(names < set(theirs["results"]) and "winogrande_olmes" not in theirs["results"], f"{list(theirs['results'])}")
    form = own["results"]["mmlu/olmes/mcf"]["metrics"]
    check(
        is_near(theirs["results"]["mmlu_olmes_mcf"]["acc,none"], form["acc"])
        and is_near(theirs["results"]["mmlu_olmes_mcf"]["acc_stderr,none"], form["acc_stderr"]),
        f"{form}",
    )


# ---- files and flags ----


def check_files(folder, data):
    """Without samples only the results file is written. The files of an earlier export are replaced."""
    words = [MODEL, "--tasks", "arc_challenge", "--data", data, "--limit", 1]
    own = folder / "own.json"
    _, err, code = run(*words, "--json", own)
    check(code == 0, f"no samples: {err}")
    for _ in range(2):
        said, code = export(own)
        (made,) = (folder / "lm-eval").iterdir()
        check(code == 0 and f"results: {made}" in said and read_json(made)["task_hashes"] == {}, f"no samples: {said}")


def check_refused(folder, data):
    words = [MODEL, "--tasks", "arc_challenge", "--data", data, "--limit", 1]
    out = folder / "refused.json"
    task = folder / "documented.yaml"
    task.write_text(pathlib.Path("docs/tasks.md").read_text().split("```yaml\n")[2].split("```")[0])
    _, err, code = run(*words, "--task-file", task, "--json", out)
    said, refusal = export(out)
    check(
        code == 0 and refusal == 1 and "would be called arc_challenge_inloop" in said, f"one name twice: {err} {said}"
    )
    check(not (folder / "lm-eval").exists(), "refused, and yet written")


def main():
    with scratch_folder() as folder:
        data = make_data(folder)
        check_refused(folder, data)
        check_files(folder, data)
        check_harness(folder, data)
        check_inloop(folder, data)
        check_olmes(folder, data)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
