#!/usr/bin/env python3
"""make_rows.py [DATA]: writes data/, the rows of the small reference evaluation, which are not in git: CMake runs this
program when it configures the tests. Rows in data/eval of the checkout are linked. Benchmarks whose rows may not be
passed on get invented rows here, in their own layouts. The third row of each test file of MMLU stands for its
validation split. Then it prints, for tests/eval/prompts/test_rows.c, Python's reading of the files below DATA (data/):
files, rows and the hash of the rows."""

import csv
import hashlib
import io
import json
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA, SAMPLES = HERE / "data", HERE.parents[2] / "data" / "eval"

# Rows of science: question, right answer, three wrong answers, a text. Rows of social: context, question, three
# answers, label. Rows of quiz: question, value, other names.
INVENTED = json.loads((HERE / "invented.json").read_text())
SCIENCE, SOCIAL, QUIZ, LOGIC = (INVENTED[name] for name in ("science", "social", "quiz", "logic"))


def write(name, text):
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != text.encode():
        path.write_bytes(text.encode())


def link(name):
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(SAMPLES / name, path.parent))


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def document(value):
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def openbookqa(rows, first):
    out = "ID\tQuestion Stem\tChoices\tComplete Question\tAnswer Key\n"
    for i, (question, *options, _) in enumerate(rows, first):
        turned = options[-(i % 4) :] + options[: -(i % 4)] if i % 4 else options
        choices = " ".join(f"({letter}) {text}" for letter, text in zip("ABCD", turned))
        out += f"{i}-1\t{question}\t{choices}\t{question} {choices}\t{'ABCD'[i % 4]}\n"
    return out


def sciq(rows):
    names = ("question", "distractor3", "distractor1", "distractor2", "correct_answer", "support")
    return document([dict(zip(names, (q, c, a, b, right, text))) for q, right, a, b, c, text in rows])


def triviaqa(rows, split, first):
    data = [
        {
            "Answer": {"Aliases": [*names, value], "Type": "FreeForm", "Value": value},
            "EntityPages": [],
            "Question": question,
            "QuestionId": f"own_{first + i}",
            "SearchResults": [],
        }
        for i, (question, value, names) in enumerate(rows)
    ]
    return document({"Data": data, "Domain": "Web", "Split": split, "VerifiedEval": False, "Version": 1.0})


def ceval(subject, name, count, explained):
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["id", "question", *"ABCD", "answer", *(["explanation"] if explained else [])])
    for i in range(count):
        a, b = 7 + 3 * i + len(subject), 11 + 2 * len(subject) + (5 if explained else 0)
        at = (i + len(subject)) % 4
        options = [str(a + b + k - at) for k in range(4)]
        row = [i, f"{name}：一组有{a}件样品，另一组有{b}件样品，两组一共有____件样品。", *options, "ABCD"[at]]
        table.writerow(row + ([f"1. 两组相加，{a}加{b}。\n2. 所以得“{a + b}”，选{'ABCD'[at]}。"] if explained else []))
    return out.getvalue()


def records(path):
    """Returns the records of a CSV file with their bytes unchanged."""
    with open(path, encoding="utf-8", newline="") as file:
        return re.findall(r'(?:[^"\n]|"[^"]*")+\n?', file.read())


# ---- other layouts of the benchmarks, for the reader of rows ----

LAYOUTS = "other-layouts"


def write_layouts():
    problem = {
        "problem": "What is $\\frac{6}{3}$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "It is $\\boxed{2}$.\n\nNo more.",
    }
    write(f"{LAYOUTS}/MATH/1.json", json.dumps(problem, indent=4) + "\n")
    write(f"{LAYOUTS}/prompts.csv", 'subset,"a ""prompt""",n\r\nsat,"one, two\r\nthree",3\r\n')
    wide = json.dumps(json.loads(sciq(SCIENCE[:3])), indent=16)
    write(f"{LAYOUTS}/sciq.json", wide)


KINDS = [  # folder, files, format, the member that holds the rows
    ("arc_challenge", "*.jsonl", "jsonl", None),
    ("copa", "*.jsonl", "jsonl", None),
    ("winogrande", "winogrande_1.1/*.jsonl", "jsonl", None),
    ("agieval", "v1/*.jsonl", "jsonl", None),
    ("math", "*.jsonl", "jsonl", None),
    ("mmlu", "dev/*_dev.csv", "headless csv", None),
    ("mmlu", "test/*_test.csv", "headless csv", None),
    ("ceval", "dev/*_dev.csv", "csv", None),
    ("ceval", "val/*_val.csv", "csv", None),
    ("openbookqa", "Main/*.tsv", "tsv", None),
    ("sciq", "*.json", "json", None),
    ("social_iqa", "*.jsonl", "jsonl", None),
    ("social_iqa", "*-labels.lst", "lines", None),
    ("bbh", "*.json", "json", "examples"),
    ("triviaqa", "qa/*.json", "json", "Data"),
    ("olmes", "std_fewshot.json", "json", "winogrande"),
    (LAYOUTS, "MATH/*.json", "json", None),
    (LAYOUTS, "prompts.csv", "csv", None),
    (LAYOUTS, "sciq.json", "json", None),
]


def rows_of(path, form, member):
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    if form == "jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    if form == "json":
        whole = json.loads(text)[member] if member else json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    if form == "lines":
        return [{"line": line} for line in text.splitlines()]
    if form == "tsv":
        head, *rest = [line.split("\t") for line in text.splitlines()]
        return [dict(zip(head, row)) for row in rest]
    rows = list(csv.reader(io.StringIO(text, newline="")))
    if form == "headless csv":
        return [{str(i): value for i, value in enumerate(row)} for row in rows]
    return [dict(zip(rows[0], row)) for row in rows[1:]]


def print_sums(data):
    for folder, files, form, member in KINDS:
        total, sums, paths = 0, hashlib.sha256(), sorted((data / folder).glob(files))
        for path in paths:
            rows = rows_of(path, form, member)
            total += len(rows)
            for row in rows:
                line = json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
                sums.update(line.encode() + b"\n")
        print(f"{folder}, {files}, {form}: {len(paths)}, {total}, {sums.hexdigest()[:16]}")


def main():
    if len(sys.argv) > 1:
        return print_sums(pathlib.Path(sys.argv[1]))
    for name in (
        "arc_challenge bbh boolq commonsense_qa copa gsm8k hellaswag math mmlu_pro winogrande mmlu/dev mmlu/test olmes"
    ).split():
        link(name)
    for path in sorted((SAMPLES / "agieval/v1").iterdir()):
        link(f"agieval/v1/{path.name}")
    for subset, rows in LOGIC.items():
        write(f"agieval/v1/{subset}.jsonl", lines({**row, "answer": None, "other": None} for row in rows))
    for path in sorted((SAMPLES / "mmlu/test").iterdir()):
        write(f"mmlu/val/{path.name.replace('_test', '_val')}", records(path)[2])
    for split, rows in (("train", SCIENCE[5:10]), ("dev", SCIENCE), ("test", SCIENCE[::-1])):
        write(f"openbookqa/Main/{split}.tsv", openbookqa(rows, 3))
    for split, rows in (("train", SCIENCE[5:10]), ("valid", SCIENCE), ("test", SCIENCE[::-1])):
        write(f"sciq/{split}.json", sciq(rows))
    write(
        "social_iqa/dev.jsonl",
        lines({"context": c, "question": q, "answerA": x, "answerB": y, "answerC": z} for c, q, x, y, z, _ in SOCIAL),
    )
    write("social_iqa/dev-labels.lst", "".join(f"{row[-1]}\n" for row in SOCIAL))
    for name, at, end in (
        ("web-dev", 0, 4),
        ("wikipedia-dev", 4, 12),
        ("web-train", 12, 15),
        ("wikipedia-train", 15, 18),
    ):
        write(f"triviaqa/qa/{name}.json", triviaqa(QUIZ[at:end], name.split("-")[1], at))
    subjects = re.findall(r"^    (\w+): \{title: (.*)\}", (SAMPLES / "tasks/ceval.yaml").read_text(), re.M)
    for subject, title in subjects:
        for split, count in (("dev", 5), ("val", 2)):
            write(f"ceval/{split}/{subject}_{split}.csv", ceval(subject, title, count, split == "dev"))
    write_layouts()
    return print_sums(DATA)


if __name__ == "__main__":
    main()
