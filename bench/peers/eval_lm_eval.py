#!/usr/bin/env python3
"""Compares the questions a second of EleutherAI's lm-evaluation-harness with Transformers and of `couplet eval`, on one
model, with equal rows, tasks and threads: ARC-Challenge (0 shots), MMLU (5 shots) and GSM8K (5 shots, generated), f32.

Model:   an OLMoE directory with tokenizer.json; --make FOLDER --tokenizer T.json writes one with
         random weights first (d 512, 8 layers of 16 experts of 512, 4 a token: 113 M parameters).
Rows:    data/eval, read by both; lm-eval gets them in place of its downloads.
Timed:   for lm-eval only the evaluation, after its model is loaded and its prompts are built; for couplet
         the whole command. So the ratio is not in couplet's favour. The pairs run in turn, and the median counts.
Checked: both give equal answers: log-likelihoods of the first option within 0.02, and equal
         accuracies. Generated texts of a random model may differ after two equal logits."""

import argparse
import csv
import io
import json
import os
import pathlib
import subprocess
import tempfile

import peers

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TASKS = {"arc_challenge": 0, "mmlu": 5, "gsm8k": 5}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="OLMoE directory")
    parser.add_argument("--make", action="store_true", help="write the model, random weights")
    parser.add_argument("--tokenizer", default=str(ROOT / "data/tokenizer.json"), help="for --make")
    parser.add_argument("--couplet", default=str(ROOT / "build/release/couplet"), help="our program")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data/eval")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--limit", type=int, default=40, help="questions of ARC and GSM8K")
    parser.add_argument("--per-subject", type=int, default=1, help="questions of a subject of MMLU")
    parser.add_argument("--max-gen-toks", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="lm-eval's batch size")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


# ---- the model ----


def make_model(folder, tokenizer):
    import torch
    import transformers

    vocab = json.loads(pathlib.Path(tokenizer).read_text())
    size = max([*vocab["model"]["vocab"].values(), *(t["id"] for t in vocab["added_tokens"])]) + 1
    end = next(t["id"] for t in vocab["added_tokens"] if t["content"] == "<|endoftext|>")
    torch.manual_seed(0)
    config = transformers.OlmoeConfig(
        vocab_size=size,
        hidden_size=512,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_experts=16,
        num_experts_per_tok=4,
        max_position_embeddings=4096,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=None,
    )
    transformers.OlmoeForCausalLM(config).save_pretrained(folder)
    folder = pathlib.Path(folder)
    (folder / "tokenizer.json").write_text(pathlib.Path(tokenizer).read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|endoftext|>",
                "pad_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False,
            }
        )
    )


# ---- rows, in the form of the hub ----


def lines(path):
    return [json.loads(line) for line in path.read_text().split("\n") if line.strip()]


def arc_rows(path):
    rows = []
    for row in lines(path):
        choices = row["question"]["choices"]
        rows.append(
            {
                "id": row["id"],
                "question": row["question"]["stem"],
                "choices": {key: [one[key] for one in choices] for key in ("text", "label")},
                "answerKey": row["answerKey"],
            }
        )
    return rows


def mmlu_rows(path, subject):
    read = csv.reader(io.StringIO(path.read_text(), newline=""))
    return [
        {"question": row[0], "subject": subject, "choices": row[1:5], "answer": "ABCD".index(row[5])} for row in read
    ]


def hub_rows(name, subject, options):
    data = options.data
    if name.endswith("ai2_arc"):
        rows = arc_rows(data / "arc_challenge/ARC-Challenge-Test.jsonl")[: options.limit]
        return {"train": rows, "validation": rows, "test": rows}
    if name.endswith("gsm8k"):
        return {
            "train": lines(data / "gsm8k/train.jsonl")[:5],
            "test": lines(data / "gsm8k/test.jsonl")[: options.limit],
        }
    rows = {split: mmlu_rows(data / f"mmlu/{split}/{subject}_{split}.csv", subject) for split in ("dev", "test")}
    rows["test"] = rows["test"][: options.per_subject]
    return rows | {"validation": rows["dev"]}


# ---- lm-eval ----


class Harness:
    def __init__(self, options):
        import datasets
        import torch
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

        torch.set_num_threads(options.threads)
        self.options = options
        self.model = HFLM(pretrained=options.model, dtype="float32", device="cpu", batch_size=options.batch)
        self.manager = TaskManager()
        datasets.load_dataset = lambda path, name=None, **_: datasets.DatasetDict(
            {split: datasets.Dataset.from_list(rows) for split, rows in hub_rows(path, name, options).items()}
        )

    def prepare(self, task):
        from lm_eval.api.samplers import FirstNSampler

        loaded = self.manager.load([task])
        for one in loaded["tasks"].values():
            one.set_config("num_fewshot", TASKS[task])
            one.set_fewshot_seed(1234)
            if task == "gsm8k":
                one.sampler = FirstNSampler(list(one.fewshot_docs()))
                one.set_config("generation_kwargs", {"max_gen_toks": self.options.max_gen_toks}, update=True)
        return loaded

    def ask(self, loaded):
        from lm_eval import evaluator

        return evaluator.evaluate(self.model, task_dict=loaded, bootstrap_iters=0, log_samples=True)


# ---- couplet ----


def couplet(options, task, out):
    limit = options.per_subject if task == "mmlu" else options.limit
    command = [
        options.couplet,
        "eval",
        options.model,
        "--tasks",
        task,
        "--profile",
        "harness",
        "--data",
        str(options.data),
        "--limit",
        str(limit),
        "--json",
        str(out),
        "--samples",
        "--overwrite",
        "--num-fewshot",
        str(TASKS[task]),
        "--set",
        f"compute.threads={options.threads}",
    ]
    if task == "gsm8k":
        command += ["--max-gen-toks", str(options.max_gen_toks)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def results_of(out):
    return next(iter(json.loads(out.read_text())["results"].values()))


# ---- both programs ----


def first_options(result):
    """Returns the log-likelihoods of the first options that lm-eval found, subject after subject."""
    samples = result["samples"]
    return [
        float(sample["filtered_resps"][0][0])
        for name in sorted(samples)
        for sample in sorted(samples[name], key=lambda one: one["doc_id"])
    ]


def check(task, theirs, ours):
    if task == "gsm8k":
        texts = [sample["resps"][0][0] for sample in sorted(theirs["samples"][task], key=lambda one: one["doc_id"])][
            ::2
        ]
        same = sum(a == b["text"] for a, b in zip(texts, ours["samples"]))
        return f"{same} of {len(ours['samples'])} texts the same"
    a, b = first_options(theirs), [sample["loglik"][0] for sample in ours["samples"]]
    worst = max(abs(x - y) for x, y in zip(a, b, strict=True))
    assert worst < 0.02 + 1e-3 * max(map(abs, a)), worst
    return f"log-likelihoods within {worst:.1e}"


def main():
    options = arguments()
    if options.make:
        make_model(options.model, options.tokenizer)
    harness = Harness(options)
    print(f"{peers.processor()}, {options.threads} threads, f32, {options.model}")
    with tempfile.TemporaryDirectory() as folder:
        for task in options.tasks.split(","):
            out = pathlib.Path(folder) / f"{task}.json"
            loaded, kept = harness.prepare(task), {}
            theirs, ours = peers.in_turn(
                options.rounds, lambda: kept.update(harness.ask(loaded)), lambda: couplet(options, task, out)
            )
            result = results_of(out)
            ratio = peers.median([a / b for a, b in zip(theirs, ours)])
            print(
                f"{task}: {result['n']} questions; lm-eval {result['n'] / peers.median(theirs):.2f}/s,"
                f" couplet {result['n'] / peers.median(ours):.2f}/s: {ratio:.2f} times;"
                f" {check(task, kept, result)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
