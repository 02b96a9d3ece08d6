#!/usr/bin/env python3
"""check_eval_results.py COUPLET: results of couplet eval for several tasks: the better of two forms, the averages of
the paper's sets, a user's tasks beside built-in ones, and a damaged record."""

import pathlib
import re
import shutil
import sys

sys.path.append("tests/cli")
from eval_case import GOLDEN, close, evaluate, refused, run
from inputs import keep_record, read_json
from program import check, equal, finish, scratch_folder

MODEL, DATA = GOLDEN / "model", GOLDEN / "data"


def rows_of(table):
    """Returns the first words of a table's lines."""
    return [line.split()[0] for line in table.splitlines() if line.strip()]


def headline(result):
    return result["metrics"][result["headline"]]


# ---- forms ----


def check_forms(folder):
    """Both forms of a profile of two forms are asked, and the better form counts, whichever it is."""
    results = evaluate(
        folder / "forms.json", f"{MODEL} --tasks arc_challenge,winogrande,boolq --profile olmes --data {DATA} --limit 6"
    )["results"]
    for task in ("arc_challenge", "winogrande", "boolq"):
        cf, mcf, best = (results[f"{task}{form}"] for form in ("/olmes/cf", "/olmes/mcf", ""))
        better = "mcf" if headline(mcf) > headline(cf) else "cf"
        check(best["best_of"] == f"{task}/olmes/{better}", f"{task}: best of {best['best_of']}")
        equal(
            (best["metrics"], best["n"], best["split"]),
            ({"cf": cf, "mcf": mcf}[better]["metrics"], 6, cf["split"]),
            f"{task}",
        )
    out, _, code = run(
        MODEL, "--tasks", "winogrande", "--profile", "olmes", "--variant", "mcf", "--data", DATA, "--limit", 2
    )
    check(code == 0 and "winogrande" in rows_of(out) and "best:" not in out, f"one form: {out}")


# ---- averages ----


def copy_first(to, path, lines):
    target = to / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join((DATA / path).read_text().splitlines(True)[:lines]))


def small_data(folder):
    """Writes one question of every task, and of one subject for tasks with subjects."""
    data = folder / "small"
    data.mkdir()
    for name in (
        "arc_challenge boolq commonsense_qa copa gsm8k hellaswag openbookqa sciq social_iqa triviaqa winogrande"
    ).split():
        (data / name).symlink_to(DATA / name)
    for part in ("dev", "val", "test"):
        copy_first(data, f"mmlu/{part}/anatomy_{part}.csv", 99)
    for part in ("dev", "val"):
        copy_first(data, f"ceval/{part}/accountant_{part}.csv", 99)
    copy_first(data, "mmlu_pro/test.jsonl", 1)
    shutil.copy(DATA / "mmlu_pro/fewshot_validation.jsonl", data / "mmlu_pro")
    copy_first(data, "agieval/v1/sat-math.jsonl", 9)
    copy_first(data, "math/test.jsonl", 1)
    shutil.copy(DATA / "math/fewshot_minerva4.jsonl", data / "math")
    for path in ("bbh/navigate.json", "bbh/cot-prompts/navigate.txt"):
        copy_first(data, path, 10**9)
    return data


def ask(data, tasks, *more):
    words = f"{MODEL} --tasks {tasks} --data {data} --limit 1 --max-gen-toks 2 --json {data}/out.json --overwrite"
    out, told, code = run(words, *more)
    check(code == 0, f"{words}: exit {code}: {told[-500:]}")
    return read_json(data / "out.json"), out


def mean_of(results, keys):
    return sum(headline(results[key]) for key in keys) / len(keys)


def check_averages(folder):
    """The table and the JSON have the mean over a set's tasks only if all ran in their default form."""
    data = small_data(folder)
    whole, out = ask(data, "all")
    results, averages = whole["results"], whole["averages"]
    sets = {
        "paper-3b": (
            "arc_challenge commonsense_qa copa boolq hellaswag openbookqa sciq social_iqa winogrande mmlu"
        ).split(),
        "paper-15b": ["mmlu/harness", "ceval", "mmlu_pro", "agieval", "bbh", "math", "gsm8k", "triviaqa"],
    }
    check(sorted(results) == sorted(sum(sets.values(), [])), f"all: {sorted(results)}")
    check(sorted(averages) == sorted(sets), f"averages {averages}")
    for name, keys in sets.items():
        check(close(averages[name], mean_of(results, keys), 1e-6, 1e-6), f"{name}: {averages}")
        line = next(line for line in out.splitlines() if line.startswith(name))
        check(f"{100 * averages[name]:.2f}" in line, f"{name}: {averages[name]}, {line}")
    ten = sets["paper-3b"]
    for tasks, more, wanted in (
        ("paper-3b", [], ["paper-3b"]),
        (",".join(ten), [], ["paper-3b"]),
        (",".join(ten[:-1]), [], []),
        (",".join(ten), ["--profile", "harness"], []),
    ):
        whole, out = ask(data, tasks, *more)
        got = [row for row in rows_of(out) if row.startswith("paper-")]
        check(sorted(whole["averages"]) == wanted == got, f"{tasks} {more}: {whole['averages']}")


# ---- a user's task ----

OWN = """
task: sums
title: Sums
chance: 50
splits: {test: sums.csv}
fields: {question: question, right: right, wrong: wrong}
choices: ["{right}", "{wrong}"]
gold: 0
profiles:
    mine: {split: test, context: "{question} =", metrics: [acc, acc_norm]}
    mine/plain: {context: "{question}"}
"""


def check_documented(folder):
    """The examples of docs/tasks.md are tasks: the first with its rows, the second beside its built-in namesake."""
    page = pathlib.Path("docs/tasks.md").read_text()
    task, rows = folder / "documented.yaml", folder / "documented"
    rows.mkdir()
    (rows / "test.jsonl").write_text("".join(re.findall(r"^    (\{.*\n)", page, re.M)))
    task.write_text(page.split("```yaml\n")[1].split("```")[0])
    first = evaluate(folder / "first_documented.json", MODEL, "--task-file", task, "--data", rows)["results"]["mine"]
    check(first["n"] == 2 and "acc" in first["metrics"], f"docs/tasks.md: {first}")
    task.write_text(page.split("```yaml\n")[2].split("```")[0])
    whole = evaluate(
        folder / "documented.json", MODEL, "--task-file", task, "--tasks", "arc_challenge", "--data", DATA, "--limit", 3
    )["results"]
    built_in, own = whole["arc_challenge"], whole["arc_challenge/inloop"]
    check(
        own["metrics"].items() <= built_in["metrics"].items() and len(own["metrics"]) > 8,
        f"docs/tasks.md: {own}, built in {built_in}",
    )


def check_own(folder):
    task, data = folder / "sums.yaml", folder / "own"
    task.write_text(OWN)
    (data / "sums").mkdir(parents=True)
    (data / "sums/sums.csv").write_text("question,right,wrong\n1 + 1,2,3\n2 + 2,4,5\n")
    (data / "copa").symlink_to(DATA / "copa")
    words = [MODEL, "--task-file", task, "--data", data, "--limit", 2]
    whole = evaluate(folder / "own.json", *words, "--tasks", "copa", "--samples")["results"]
    check(list(whole) == ["copa", "sums"], f"own task: {list(whole)}")
    equal((whole["sums"]["profile"], whole["sums"]["n"], whole["sums"]["chance"]), ("mine", 2, 0.5), "own task")
    check(whole["sums"]["samples"][1]["contexts"] == ["2 + 2 ="], "own task: the context")
    whole = evaluate(folder / "plain.json", *words, "--variant", "plain")["results"]
    check(whole["sums"]["variant"] == "plain", f"own task's variant: {whole['sums']}")
    out, _, code = run("--list", "--task-file", task, "--data", data)
    listed = next((line for line in out.splitlines() if line.startswith("sums")), "")
    check(code == 0 and listed.split()[-1] == "2", f"own task in --list: {listed}")
    task.write_text(OWN.replace("{question} =", "{query} ="))
    refused(1, [str(task), "query"], *words)


# ---- a record that is damaged ----


def check_damaged(folder):
    """A line in the middle without an answered question is reported. Only the end may be cut. --overwrite starts
    anew."""
    words = [MODEL, "--tasks", "copa", "--data", DATA, "--limit", 4, "--samples"]
    kept = folder / "kept"
    keep_record(folder / "first.json", kept)
    first = evaluate(folder / "first.json", *words)
    lines = kept.read_text().splitlines()[:4]
    out, partial = folder / "damaged.json", folder / "damaged.json.partial"
    for at, damage in (
        (0, lines[0][:20]),
        (0, lines[1]),
        (2, lines[2][:40]),
        (2, "\0" * 9),
        (2, '{"task": "copa"}'),
        (2, "[1]"),
    ):
        bad = lines[:at] + [damage] + lines[at + 1 :]
        partial.write_text("\n".join(bad) + "\n")
        _, told, code = run(*words, "--json", out)
        check(
            code == 1 and partial.name in told and not out.exists(), f"line {at + 1} is {damage[:40]!r}: {code} {told}"
        )
        check(
            at == 0 or f"{partial.name}:3:" in told or f"{partial.name}: line 3" in told,
            f"line 3 is {damage[:40]!r}: {told}",
        )
        check(partial.exists() and partial.read_text() == "\n".join(bad) + "\n", f"{damage[:40]!r} was changed")
        out.unlink(missing_ok=True)
    _, told, code = run(*words, "--json", out, "--overwrite")
    check(
        code == 0 and "answered before" not in told and not partial.exists(),
        f"a damaged record, --overwrite: {code} {told}",
    )
    check(read_json(out)["results"] == first["results"], "begun anew")


def main():
    with scratch_folder() as folder:
        check_forms(folder)
        check_averages(folder)
        check_documented(folder)
        check_own(folder)
        check_damaged(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
