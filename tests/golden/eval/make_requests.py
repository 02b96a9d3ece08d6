#!/usr/bin/env python3
"""make_requests.py REQUESTS: writes olmes/, the published requests of REQUESTS (data/eval/olmes/requests of the larger
reference data). The questions of OpenBookQA, SciQ and Social IQa, and SciQ's exemplars, are replaced by the rows of
data/. The texts around them stay as published."""

import gzip
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE / "data"
FILES = [
    f"{task}.{form}"
    for task in ("arc_challenge", "boolq", "csqa", "openbookqa", "socialiqa", "winogrande")
    for form in ("rc_0shot", "rc_5shot", "mc_5shot")
] + ["hellaswag.rc_5shot", "hellaswag.mc_5shot", "sciq.rc_0shot", "sciq.rc_5shot", "gsm8k.gold_bpb_5shot"]


def openbookqa():
    """Yields question, options and the index of the right option."""
    for line in (DATA / "openbookqa/Main/dev.tsv").read_text().splitlines()[1:]:
        _, question, choices, _, key = line.split("\t")
        parts = choices.removeprefix("(A) ")
        for letter in "BCD":
            parts = parts.replace(f" ({letter}) ", "\n")
        yield question, parts.split("\n"), "ABCD".index(key), {}


def sciq():
    for row in json.loads((DATA / "sciq/valid.json").read_text()):
        choices = [row["distractor1"], row["distractor2"], row["distractor3"], row["correct_answer"]]
        yield row["question"], choices, 3, row


def socialiqa():
    lines = (DATA / "social_iqa/dev.jsonl").read_text().splitlines()
    labels = (DATA / "social_iqa/dev-labels.lst").read_text().split()
    for line, label in zip(lines, labels):
        row = json.loads(line)
        yield (
            f"{row['context']} {row['question']}",
            [row["answerA"], row["answerB"], row["answerC"]],
            int(label) - 1,
            {**row, "label": label},
        )


OWN = {"openbookqa": openbookqa, "sciq": sciq, "socialiqa": socialiqa}


def question_of(task, doc):
    if task == "openbookqa":
        return doc["query"].removeprefix("Question: ").split("\nAnswer:")[0].split("\n A. ")[0]
    return doc["question"] if task == "sciq" else f"{doc['context']} {doc['question']}"


def listed(choices):
    return "".join(f"\n {letter}. {text}" for letter, text in zip("ABCD", choices))


def options_of(doc, own):
    """Returns the published texts of the options. Requests by letter have them in their question alone."""
    if doc["choices"][0] != "A":
        return doc["choices"]
    lines = doc["query"].split("\n A. ")[1].removesuffix("\nAnswer:")
    for letter in "BCD":
        lines = lines.replace(f"\n {letter}. ", "\0")
    texts = lines.split("\0")
    assert len(texts) == len(own)
    return texts


def exemplars(context):
    """Replaces SciQ's exemplars by rows of our own training part."""
    rows = json.loads((DATA / "sciq/train.json").read_text())
    shown, asked = context.rsplit("\n\n", 1) if "\n\n" in context else ("", context)
    if not shown:
        return context
    assert shown.count("\n\n") == 4
    return "".join(f"Question: {row['question']}\nAnswer: {row['correct_answer']}\n\n" for row in rows) + asked


def own_request(task, form, request, rows):
    question, choices, gold, more = rows[request["doc_id"] % 1000000]
    doc, asked = request["doc"], request["request"]
    published = question_of(task, doc)
    options, index = options_of(doc, choices), request["idx"]
    context, continuation = asked["context"], asked["continuation"]
    if context != "Answer:":
        assert context.count(f"{published}{listed(options) if 'mc' in form else ''}\nAnswer:") == 1, context
        context = context.replace(published, question)
        if "mc" in form:
            context = context.replace(listed(options), listed(choices))
        if task == "sciq" and form == "rc_0shot":
            asked_from = f"Question: {question}"
            text, rest = context.split(asked_from)
            assert text == (f"{doc['support'].lstrip()}\n" if doc["support"] else ""), text
            context = f"{more['support']}\n{asked_from}{rest}".lstrip()
        elif task == "sciq":
            context = exemplars(context)
    if "mc" not in form:
        assert continuation == " " + options[index]
        continuation = " " + choices[index]
    return {
        **request,
        "label": gold,
        "request": {**asked, "context": context, "continuation": continuation},
        "doc": {**more, "choices": choices, "gold": gold},
    }


def main():
    source = pathlib.Path(sys.argv[1])
    (HERE / "olmes").mkdir(exist_ok=True)
    for name in FILES:
        task, form = name.split(".")
        lines = [json.loads(line) for line in (source / f"{name}.jsonl").read_text().splitlines()]
        if task in OWN:
            rows = list(OWN[task]())
            lines = [own_request(task, form, line, rows) for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (HERE / f"olmes/{name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
