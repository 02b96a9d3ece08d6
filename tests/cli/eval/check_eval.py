#!/usr/bin/env python3
"""check_eval.py COUPLET [further] [--all]: compares couplet eval with the results of the reference programs, question
by question: ids, hashes of prompts, log-likelihoods, token counts, predictions, texts, answers, totals. Also checks a
stop in the middle, and refusals.

Without --all it takes only the first rows of most references, and few tokens of generated tasks, since the program may
be built with sanitizers. A few references are taken whole, with their totals. Of BBH, MMLU-Pro and MATH it takes a few
rows."""

import gzip
import json
import math
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.append("tests/cli")
from eval_case import ALL, FURTHER, GOLDEN, close, evaluate, refused, run
from inputs import _resolve, page_data, read_json
from program import COUPLET, check, equal, finish, says, scratch_folder, wait_until

NEAR = 5e-3  # scores closer than this may be ordered either way
WHOLE = set(
    (
        "harness/copa harness/agieval harness/arc_challenge harness/triviaqa.0shot "
        "inloop/arc_challenge inloop/boolq inloop/hellaswag inloop/openbookqa inloop/sciq"
    ).split()
)  # these are compared with their totals, also without --all


# ---- against the references ----


def options_of(settings, limit):
    words = (
        f"--tasks {settings['task']} --profile {settings['profile']} --data {GOLDEN}/data --offset "
        f"{settings['offset']} --limit {limit} --samples"
    ).split()
    names = {"max_gen_toks": "--max-gen-toks", "num_fewshot": "--num-fewshot", "variant": "--variant"}
    for key, value in settings["options"].items():
        words += [names[key], value]
    return words


def check_scores(where, ours, theirs):
    for i, (a, b) in enumerate(zip(ours["loglik"], theirs["loglik"], strict=True)):
        check(close(a, b, 2e-2, 1e-3), f"{where}: option {i}: log-likelihood {a}, theirs {b}")
    for key in ("tokens", "ctx_tokens", "gold", "cut", "sha256", "chars"):
        equal(ours.get(key), theirs.get(key), f"{where}: {key}")
    for metric, pred in theirs["pred"].items():
        says([pred, *tied(theirs, metric)], [ours["pred"].get(metric)], f"{where}: {metric} predicts")


def tied(theirs, metric):
    """Returns the options whose score is so close to the best that rounding decides between them."""
    lengths = theirs.get("chars", [1] * len(theirs["loglik"]))
    scores = [
        value / {"acc": 1, "len_norm": length - 1}.get(metric, length)
        for value, length in zip(theirs["loglik"], lengths)
    ]
    return [i for i, score in enumerate(scores) if score > max(scores) - NEAR]


PROMPT = ("prompt_sha256", "prompt_chars", "prompt_bytes", "prompt_tokens", "cut", "target")


def check_text(where, ours, theirs):
    for key in PROMPT:
        equal(ours.get(key), theirs.get(key), f"{where}: {key}")
    sure = theirs["sure_chars"]
    equal(ours["text"][:sure], theirs["text"][:sure], f"{where}: the sure text")
    if ours["text"] != theirs["text"]:
        return
    for key in ("answer", "correct", "gen_tokens", "robust", "extracted", "correct_norm"):
        if key in theirs:
            check(ours.get(key) == theirs[key], f"{where}: {key} is {ours.get(key)}, theirs {theirs[key]}")


def check_numbers(name, ours, theirs, near):
    """Compares losses always. Figures of predictions are compared only where no near tie (`near`: metric to number of
    questions) may change them. A single plain share may differ by the number of near ties."""
    for key, value in theirs.items():
        if key.startswith("math_verify"):
            continue
        loss = key.startswith(("bpb", "ce_loss", "soft"))
        ties = 0 if loss else near.get(key.split("_stderr")[0].removesuffix("_macro").removesuffix("_micro"), 0)
        absolute = 1e-6 if not ties else ties / theirs["n"] + 1e-6 if key in near and "n" in theirs else math.inf
        check(
            key in ours and close(ours[key], value, absolute, 2e-3 if loss else 1e-6),
            f"{name}: {key} is {ours.get(key)}, theirs {value}",
        )


def check_totals(name, ours, theirs):
    near = near_ties(theirs)
    whole = {} if "subjects" in theirs else {"n": len(theirs["samples"])}
    check_numbers(name, {**ours["metrics"], **whole}, {**theirs["metrics"], **whole}, near)
    for kind in ("subjects", "groups"):
        for part, metrics in theirs.get(kind, {}).items():
            check_numbers(f"{name}: {kind}: {part}", ours.get(kind, {}).get(part, {}), metrics, near)


def near_ties(theirs):
    """Returns metric -> number of questions whose other options are so close to the best that either may win."""
    ranked = [sample for sample in theirs["samples"] if "pred" in sample]
    near = {
        metric: sum(len(tied(sample, metric)) > 1 for sample in ranked)
        for metric in {metric for sample in ranked for metric in sample["pred"]}
    }
    return {metric: count for metric, count in near.items() if count}


def check_reference(path, folder):
    with gzip.open(path) as file:
        reference = json.load(file)
    settings, theirs = reference["settings"], next(iter(reference["results"].values()))
    generated = any("text" in sample for sample in theirs["samples"])
    name = f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
    whole = ALL or name in WHOLE
    limit = settings["limit"] if whole else 1 if generated else min(4, settings["limit"])
    if not whole and generated and settings["limit"] < 4:
        return  # a question of every subject takes minutes
    result = evaluate(folder / f"{name.replace('/', '-')}.json", GOLDEN / "model", *options_of(settings, limit))
    if result is None:
        return
    ours = next(iter(result["results"].values()))
    by_id = {sample["id"]: sample for sample in theirs["samples"]}
    split = {"val": "validation"}.get(settings["split"], settings["split"])
    check(ours["split"] == split, f"{name}: rows of {ours['split']}, theirs of {split}")
    check(
        len(ours["samples"]) > 0 and (not whole or len(ours["samples"]) == len(by_id)),
        f"{name}: {len(ours['samples'])} questions, theirs {len(by_id)}",
    )
    for sample in ours["samples"]:
        where = f"{name}: question {sample['id']}"
        if sample["id"] not in by_id:
            check(False, f"{where} is none of theirs")
        elif "text" in sample:
            check_text(where, sample, by_id[sample["id"]])
        else:
            check_scores(where, sample, by_id[sample["id"]])
    if whole:
        check_totals(name, ours, theirs)


# ---- a few rows of tasks whose references are long ----

PARTS = {
    "bbh": (("boolean_expressions", "movie_recommendation"), 1024),
    "mmlu_pro": (("engineering", "philosophy"), 512),
    "math": (("algebra",), 12),
}


def slug(words):
    return words.lower().replace("&", "and").replace(" ", "_")


def part_of(folder, task, subjects):
    """Returns a folder with the golden rows of some subjects alone, and the rows that precede their questions."""
    data = folder / "parts" / task
    data.mkdir(parents=True)
    for path in (GOLDEN / "data" / task).iterdir():
        if path.name == "test.jsonl":
            lines = path.read_text().splitlines(True)
            keep = [
                line
                for line in lines
                if slug(json.loads(line).get("category", json.loads(line).get("type"))) in subjects
            ]
            (data / path.name).write_text("".join(keep))
        elif path.suffix != ".json" or path.stem in subjects:
            (data / path.name).symlink_to(path)
    return data.parent


def check_part(folder, task):
    """Compares everything from prompt to mark. If fewer tokens are generated, the reference's text contains ours."""
    subjects, tokens = PARTS[task]
    with gzip.open(GOLDEN / f"harness/{task}.json.gz") as file:
        theirs = next(iter(json.load(file)["results"].values()))
    by_id = {sample["id"]: sample for sample in theirs["samples"]}
    words = f"{GOLDEN}/model --tasks {task} --profile harness --limit 1 --max-gen-toks {tokens} --samples --data"
    result = evaluate(folder / f"part-{task}.json", words, part_of(folder, task, subjects))
    if result is None:
        return
    ours = result["results"][task]
    equal(
        ([sample["id"] for sample in ours["samples"]], set(ours["subjects"])),
        ([f"{name}/0" for name in subjects], set(subjects)),
        f"{task}",
    )
    for sample in ours["samples"]:
        other = by_id[sample["id"]]
        if sample["gen_tokens"] < other["gen_tokens"]:
            check(
                sample["gen_tokens"] == tokens and 0 < len(sample["text"]) <= other["sure_chars"], f"{task}: {sample}"
            )
            other = {key: other[key] for key in other if key in PROMPT} | {
                "text": other["text"][: len(sample["text"])],
                "sure_chars": len(sample["text"]),
            }
        check_text(f"part of {task}: question {sample['id']}", sample, other)


# ---- interruption ----


def check_same(again, first):
    """Compares two results: questions that are put together with others differ by rounding."""
    for task, one in first.items():
        for sample, other in zip(one["samples"], again[task]["samples"], strict=True):
            equal((sample["id"], sample["sha256"]), (other["id"], other["sha256"]), "going on")
            check(
                all(close(a, b, 1e-4, 1e-5) for a, b in zip(sample["loglik"], other["loglik"])),
                f"going on: question {sample['id']} has another log-likelihood",
            )
        check(one["metrics"] == again[task]["metrics"], f"going on: {task} has other totals")


def stop(words, there):
    """Begins an evaluation, and sends SIGINT when `there(its pid)` is true. Returns exit code and standard error."""
    begun = subprocess.Popen([COUPLET, "eval", *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_until(lambda: there(begun.pid), begun, 300)
    begun.send_signal(signal.SIGINT)
    told = begun.communicate()[1].decode()
    return begun.returncode, told


def check_stopped_text(folder):
    text = folder / "long.txt"
    text.write_text("abc def " * 1_000_000)

    def listens(pid):  # SIGINT is blocked: a thread waits for it
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("SigBlk:")[1].split()[0], 16) & 2

    code, told = stop([GOLDEN / "model", "--text", text], listens)
    check(
        code == -signal.SIGINT and told.endswith("couplet: stopped; no figures are kept\n"),
        f"--text, stopped: {code} {told}",
    )


def check_stopped(folder):
    """An evaluation that SIGINT stops in its second task reports the kept answers, and is resumed there. Other rows are
    refused."""
    data = folder / "rows"
    (data / "arc_challenge").mkdir(parents=True)
    rows = (GOLDEN / "data/arc_challenge/ARC-Challenge-Test.jsonl").read_text().splitlines()[:3]
    arc = data / "arc_challenge/ARC-Challenge-Test.jsonl"
    arc.write_text("\n".join(rows) + "\n")
    (data / "gsm8k").symlink_to(GOLDEN / "data/gsm8k")
    out, partial = folder / "killed.json", folder / "killed.json.partial"
    words = (
        f"{GOLDEN}/model --tasks arc_challenge,gsm8k --profile harness --data {data} --limit 3 --max-gen-toks "
        f"128 --samples --json {out}"
    ).split()
    code, told = stop(words, lambda _: partial.exists() and partial.read_bytes().count(b"\n") >= 4)
    check(
        code == -signal.SIGINT and f"kept in {partial}, and the same command goes on" in told, f"stopped: {code} {told}"
    )
    check(partial.exists() and not out.exists(), "stopped, it leaves results or no partial file")
    arc.write_text("\n".join(reversed(rows)) + "\n")
    refused(1, ["arc_challenge, question 0", "--overwrite"], *words)
    arc.write_text("\n".join(rows) + "\n")
    _, told, code = run(*words)
    check(code == 0 and "arc_challenge: 3 of 3 answered before" in told, f"going on after a stop: {code} {told}")
    again = read_json(out)["results"]
    whole = evaluate(folder / "unkilled.json", *words[:-2])["results"]
    check_same(again, {"arc_challenge": whole["arc_challenge"]})
    equal(
        [one["text"][:20] for one in again["gsm8k"]["samples"]],
        [one["text"][:20] for one in whole["gsm8k"]["samples"]],
        "texts after a stop differ",
    )


def check_missing(folder):
    """A task without rows is named, and the others are evaluated."""
    out = folder / "some.json"
    shown, told, code = run(GOLDEN / "model", "--tasks", "sciq,copa", "--limit", 2, "--json", out)
    check(
        code == 1
        and re.search("warning: sciq: there are no rows .* put into DIR/sciq/ the file", told)
        and "there are no rows of sciq, and the other tasks were evaluated" in told,
        f"a task without rows: {code} {told}",
    )
    check(list(read_json(out)["results"]) == ["copa"] and "figures of a sample" in shown, f"the other task: {shown}")


# ---- refusals ----


def check_refusals(folder):
    model, data = GOLDEN / "model", ["--data", GOLDEN / "data"]
    bad = folder / "bad" / "copa"
    bad.mkdir(parents=True)
    rows = (GOLDEN / "data/copa/val.jsonl").read_text().splitlines()[:4]
    (bad / "val.jsonl").write_text("\n".join([*rows[:2], rows[2][:40], rows[3]]) + "\n")
    refused(1, ["val.jsonl", "line 3"], model, "--tasks", "copa", "--data", folder / "bad")
    out, told, code = run(model, "--tasks", "copa", "--data", folder / "bad", "--skip-bad")
    check(code == 0 and "line 3" in told and "1 bad row was left out" in out, f"--skip-bad: {code} {out} {told}")
    words = (f"{model} --tasks copa", *data, "--tokenizer", large_tokenizer(folder))
    refused(1, ["large.json has ids up to 4096", "another model"], *words)


def large_tokenizer(folder):
    """Writes a tokenizer that has an id beyond the model's vocabulary."""
    tokenizer = read_json(GOLDEN / "model/tokenizer.json")
    switches = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({"id": 4096, "content": "<|far|>", "special": True} | switches)
    path = folder / "large.json"
    path.write_text(json.dumps(tokenizer))
    return path


def check_shown(folder):
    out, _, code = run("--list", "--data", GOLDEN / "data")
    check(
        code == 0 and "arc_challenge" in out and "inloop *" in out and "allenai.org" in out,
        f"--list: {code} {out[:300]}",
    )
    mmlu = "".join(re.findall(r"^mmlu .*\n(?: .*\n)*", out, re.M))
    check("inloop *" in mmlu and "harness *" in mmlu and " 0-5 " in mmlu, f"--list: {mmlu}")
    page = folder / "page.html"
    out, told, code = run(
        f"{GOLDEN}/model --tasks mmlu --profile harness --data {GOLDEN}/data --limit 1 --num-fewshot 0 --html "
        f"{page} --samples --json {folder}/results.json"
    )
    check(code == 0 and "mmlu" in out and "acc_macro" in out, f"{code} {out} {told}")
    held = page_data(page)["report"]
    drawn = [one["id"] for one in _resolve.charts_of(held)]
    check("abstract_algebra" in held["results"]["mmlu"]["subjects"] and drawn == ["headlines"], f"the page {drawn}")
    check("samples" not in held["results"]["mmlu"] and held["conclusion"], "samples, or no conclusion on the page")
    check('"samples":[' not in page.read_text(), "the page holds the samples")
    check(json.loads((folder / "results.json").read_text())["results"]["mmlu"]["samples"], "no samples in the results")


def main():
    with scratch_folder() as folder:
        references = sorted(GOLDEN.glob("*/*.json.gz"))
        check(len(references) == 30, f"{GOLDEN} has {len(references)} references")
        for path in references:
            check_reference(path, folder)
        for task in PARTS:
            check_part(folder, task)
        if not FURTHER:
            check_stopped(folder)
            check_stopped_text(folder)
            check_missing(folder)
            check_refusals(folder)
            check_shown(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
