#!/usr/bin/env python3
"""Pre-trains a tiny OLMoE of Transformers from scratch with the coupling loss, on the text in data/.

    pip install './python[hf]'
    python examples/pretrain_olmoe.py [--steps 300] [--weight 1.0] [--out runs/pretrained]

It takes a few minutes on two cores. It prints the LM loss, ERC and the agreement of router and experts, and ends with
`couplet inspect` if the program is installed. --weight 0 trains without the loss, to compare."""

import argparse
import gzip
import json
import pathlib
import subprocess

try:
    import couplet
    import torch
    from couplet import find_program
    from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast
except ImportError as error:
    raise SystemExit(f"{error}; from the checkout: pip install './python[hf]'")

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
FIGURES = ("kappa_diagonal", "kappa_off_diagonal", "kappa_row_top1")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="runs/pretrained")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight", type=float, default=1.0, help="of the coupling loss")
    parser.add_argument("--alpha", type=float, default=1.0)
    return parser.parse_args()


def tokens_of(count):
    """Returns `count` ids of the corpus: documents of all files in turn, each ended by the id 0."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizer.json"))
    files = [gzip.open(path, "rt", encoding="utf-8") for path in sorted((DATA / "train").glob("*.json.gz"))]
    ids = []
    for lines in zip(*files):
        for line in lines:
            ids += tokenizer(json.loads(line)["text"])["input_ids"] + [0]
        if len(ids) >= count:
            break
    return torch.tensor(ids)


def model_of(length):
    torch.manual_seed(1)
    model = OlmoeForCausalLM(
        OlmoeConfig(
            vocab_size=4096,
            hidden_size=128,
            intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_experts=16,
            num_experts_per_tok=4,
            max_position_embeddings=length,
            router_aux_loss_coef=0.01,
            output_router_logits=True,
            eos_token_id=0,
            bos_token_id=None,
            pad_token_id=1,
        )
    )
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products are slow on CPUs
    return model


def main():
    args = arguments()
    rows = tokens_of(args.steps * args.batch * args.length)
    rows = rows[: len(rows) // args.length * args.length].view(-1, args.length)
    model = model_of(args.length).train()
    erc = couplet.hf.attach(model, weight=args.weight, alpha=args.alpha)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, args.steps + 1, pct_start=0.1)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {rows.numel():,} tokens\n")
    print(f"{'step':>6} {'LM loss':>9} {'ERC':>10}", *(f"{name:>18}" for name in FIGURES))
    for step in range(args.steps):
        batch = rows[torch.arange(step * args.batch, (step + 1) * args.batch) % len(rows)]
        out = model(input_ids=batch, labels=batch)
        out.loss.backward()  # cross entropy and load balancing
        erc.backward()  # the coupling loss, once a step
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % max(args.steps // 10, 1) == 0 or step == args.steps - 1:
            figures = erc.figures(figures=("erc_clean", *FIGURES))
            lm = out.loss.item() - model.config.router_aux_loss_coef * out.aux_loss.item()
            print(
                f"{step:>6} {lm:>9.4f} {figures['erc_clean']:>10.3e}",
                *(f"{figures[name]:>18.3f}" for name in FIGURES),
                flush=True,
            )
    model.save_pretrained(args.out)
    (pathlib.Path(args.out) / "tokenizer.json").write_bytes((DATA / "tokenizer.json").read_bytes())
    if find_program():
        subprocess.run([find_program(), "inspect", args.out], check=True)


if __name__ == "__main__":
    main()
