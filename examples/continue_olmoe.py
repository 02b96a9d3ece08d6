#!/usr/bin/env python3
"""Transformers' Trainer continues an OLMoE model, once without and once with the coupling loss.

    make demo                                         # writes runs/demo/vanilla, the default model
    pip install './python[hf]'
    python examples/continue_olmoe.py [MODEL_DIR] [--steps 50] [--out runs/continued]

MODEL_DIR is a Hugging Face OLMoE directory with tokenizer.json, a checkpoint of couplet or a run. The program prints LM
loss, ERC and the agreement of router and experts, without and with the loss. Then it runs `couplet inspect` on the
two results if the program is installed."""

import argparse
import gzip
import json
import pathlib
import subprocess

try:
    import couplet
    import torch
    from couplet import find_program
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
except ImportError as error:
    raise SystemExit(f"{error}; from the checkout: pip install './python[hf]'")

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIGURES = ("erc_clean", "kappa_diagonal", "kappa_off_diagonal", "kappa_row_top1")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(ROOT / "runs" / "demo" / "vanilla"))
    parser.add_argument(
        "--text",
        nargs="+",
        help="JSON lines with `text` (.json, .jsonl, .gz), or plain text; default: the .json.gz of data/train",
    )
    parser.add_argument("--out", default=str(ROOT / "runs" / "continued"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--alpha", type=float, default=1.0)
    return parser.parse_args()


def weights_of(model):
    """Returns a run's last checkpoint, or the path of any other folder."""
    last = pathlib.Path(model) / "last"
    return (last if last.exists() else pathlib.Path(model)).resolve()


def texts_of(path):
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as lines:
        try:
            if ".json" in path.name:
                yield from (json.loads(line)["text"] for line in lines)
            else:
                yield lines.read()
        except (ValueError, KeyError) as error:
            raise SystemExit(f"{path} is not what its name says, JSON lines with `text`, or text: {error!r}")


def files_of(named):
    """Returns the texts of --text, else of the .gz corpus, which Python reads without a further package."""
    files = [pathlib.Path(f) for f in named or sorted((ROOT / "data" / "train").rglob("*.json.gz"))]
    for path in files:
        if path.suffix == ".zst":
            raise SystemExit(f"{path}: Python has no zstd before 3.14; unpack it first: zstd -d {path}")
        if not path.is_file():
            raise SystemExit(f"{path}: there is no such file")
    if not files:
        raise SystemExit(f"{ROOT / 'data' / 'train'} has no .json.gz; name some text with --text")
    return files


def sequences(folder, files, length, count):
    """Returns `count` sequences of `length` ids: documents joined by the end-of-text id, cut into pieces."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    end = json.loads((folder / "config.json").read_text()).get("eos_token_id")
    rows, ids = [], []
    for path in files:
        share, first = -(-count // len(files)), len(rows)  # equal shares of the files
        for text in texts_of(path):
            ids += tokenizer(text, add_special_tokens=False)["input_ids"] + ([end] if end is not None else [])
            while len(ids) >= length and len(rows) - first < share:
                row = torch.tensor(ids[:length])
                rows.append({"input_ids": row, "labels": row.clone()})
                ids = ids[length:]
            if len(rows) - first >= share:
                break
    if not rows:
        raise SystemExit(f"the text has fewer than {length} tokens, which is --length; name more with --text")
    return rows


def go_on(args, folder, rows, weight, out):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if not torch.cuda.is_available() and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products are slow on CPUs
    settings = TrainingArguments(
        output_dir=str(out),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        learning_rate=args.lr,
        seed=1,
        logging_steps=max(args.steps // 5, 1),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=model, args=settings, train_dataset=rows)
    erc = couplet.hf.attach(model, weight=weight, alpha=args.alpha)
    erc.join(trainer, figures=FIGURES)  # nothing else is needed
    before = {"step": 0, **erc.figures(figures=FIGURES)}
    trainer.train()
    model.save_pretrained(out)
    (out / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    return [before, *(entry for entry in trainer.state.log_history if "loss" in entry)]


def show(without, with_erc, alpha):
    names = ("loss", *FIGURES)
    print("\neach figure: without ERC, with ERC\n" + f"{'step':>6}", *(f"{name:>23}" for name in names))
    for pair in zip(without, with_erc):
        cells = (
            " ".join(f"{entry[name]:11.4g}" if name in entry else f"{'-':>11}" for entry in pair) for name in names
        )
        print(f"{pair[0]['step']:>6}", *cells)
    if all(entry["erc_clean"] == 0 for entry in (*without, *with_erc)):
        print(
            f"\nNo hinge is active at alpha {alpha:g}: this model has learned the coupling already, as "
            "those do that were\ntrained with the loss, and it changes nothing more. A smaller --alpha asks "
            "for more."
        )


def main():
    args = arguments()
    folder = weights_of(args.model)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).exists():
            raise SystemExit(f"{folder} has no {name}; make demo writes the default model")
    rows = sequences(folder, files_of(args.text), args.length, args.steps * args.batch * args.accumulation)
    out = pathlib.Path(args.out)
    logs = [
        go_on(args, folder, rows, weight, out / name) for name, weight in (("without", 0.0), ("with-erc", args.weight))
    ]
    show(*logs, args.alpha)
    program = find_program()
    if program:
        subprocess.run([program, "inspect", str(out / "without"), str(out / "with-erc")], check=True)


if __name__ == "__main__":
    main()
