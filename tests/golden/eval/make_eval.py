#!/usr/bin/env python3
"""make_eval.py REFERENCE model|harness|inloop|scoring [TASK ...]: makes the small reference evaluation.

REFERENCE is make_eval.py of the larger reference data, which holds the model's training and runs the reference programs
(lm-eval 0.4.13, ai2-olmo 0.6.0; it lists its requirements). This program only has a smaller vocabulary, that of
data/tokenizer.json, fewer rows (make_rows.py) and fewer questions."""

import importlib.util
import pathlib
import shutil
import sys
import tempfile

import transformers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VOCABULARY, END = 4096, 0
TRAINED = ("books-0000.json.gz", "web-0000.json.gz")
HARNESS = {  # tasks that are not listed have limit 6
    "copa": {"limit": 8},
    "mmlu": {"limit": 1},
    "ceval": {"limit": 1},
    "agieval": {"limit": 2},
    "mmlu_pro": {"limit": 1, "options": {"max_gen_toks": 512}},
    "bbh": {"limit": 1},
    "math": {"limit": 1, "options": {"max_gen_toks": 512}},
    "gsm8k": {"limit": 3},
    "gsm8k_cot": {"limit": 3},
    "triviaqa": {"limit": 4},
    "triviaqa.0shot": {"limit": 4, "offset": 2},
}
INLOOP = {
    "mmlu": {},
    "mmlu.mc_5shot": {},
    "openbookqa": {"limit": 5, "offset": 5},
    "social_iqa": {"limit": 5, "offset": 2},
}


def load(path):
    spec = importlib.util.spec_from_file_location("reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def smaller(table, changes):
    return {
        task: {**spec, "limit": 6, **changes[task]} if task in changes else {**spec, "limit": 6}
        for task, spec in table.items()
    }


def fewer(table, changes):
    """Keeps one row of each subject in the in-loop tasks of MMLU."""
    return {
        task: {**spec, "limit": 1 if task.startswith("mmlu") else 6, **changes.get(task, {})}
        for task, spec in table.items()
    }


def texts_beside(folder):
    """Returns a folder with the layout in which the reference script reads its training texts."""
    data = folder / "data"
    for name in (
        "tokenizers corpus-mini/plain corpus-mini/train eval/triviaqa/qa eval/triviaqa/triviaqa-unfiltered eval/boolq"
    ).split():
        (data / name).mkdir(parents=True)
    shutil.copy(ROOT / "data/tokenizer.json", data / "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json")
    (data / "corpus-mini/plain/the-time-machine.txt").write_text("\n")
    for name in TRAINED:
        shutil.copy(ROOT / "data/train" / name, data / "corpus-mini/train")
    for name in ("gsm8k", "mmlu_pro", "bbh", "math"):
        (data / "eval" / name).symlink_to(HERE / "data" / name)
    shutil.copy(ROOT / "data/eval/boolq/train.jsonl", data / "eval/boolq")
    web = HERE / "data/triviaqa/qa/web-train.json"
    shutil.copy(web, data / "eval/triviaqa/qa")
    shutil.copy(web, data / "eval/triviaqa/triviaqa-unfiltered/unfiltered-web-train.json")
    return folder


def make_model(reference):
    config = transformers.OlmoeConfig
    transformers.OlmoeConfig = lambda **more: config(**{**more, "vocab_size": VOCABULARY, "eos_token_id": END})
    reference.EOT = END
    with tempfile.TemporaryDirectory() as folder:
        reference.SHARED = texts_beside(pathlib.Path(folder))
        reference.make_model(HERE / "model", **{**reference.MODEL, "steps": 300})


def main():
    path, what, *only = sys.argv[1:]
    reference = load(path)
    if what == "model":
        make_model(reference)
    elif what == "harness":
        reference.make_harness(
            HERE / "model", HERE / "data", HERE / "harness", smaller(reference.HARNESS, HARNESS), only
        )
    elif what == "inloop":
        reference.make_inloop(HERE / "model", HERE / "data", HERE / "inloop", fewer(reference.INLOOP, INLOOP), only)
    elif what == "scoring":
        reference.make_scoring(HERE / "data", HERE)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
