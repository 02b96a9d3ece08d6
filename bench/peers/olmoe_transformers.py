#!/usr/bin/env python3
"""Measures the time and memory of a training step of Transformers' OLMoE on the CPU.

Subject: forward, backward, clipping of the norm, AdamW; f32; random tokens, labels shifted by one.
Counted: 3 T (L (2 (2 d^2 + 2 d KV) + 4 d (S+1)/2 + 2 n d + 6 K D d) + 2 V d), three times forward
         over T tokens in sequences of S, as src/model/cost.h counts; repeated computation does not count.
Limit:   torch's product of [T,d] by [d,d]^T, in turn with the step.
Beside:  bench/train_step.c. Each case has its own process, so that the peak of memory belongs to it."""

import argparse

import peers
import torch
import transformers
from transformers import OlmoeConfig, OlmoeForCausalLM

PLAIN_REPEATS = 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experts", default="grouped_mm", help="grouped_mm or eager")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--d-model", type=int, default=1536)
    parser.add_argument("--d-expert", type=int, default=768)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--n-experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192, help="of a step")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--balance", action="store_true", help="with the load-balancing loss")
    parser.add_argument(
        "--optimizer", choices=["fused", "foreach", "plain"], default="fused", help="which of torch's AdamW"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    return parser.parse_args()


def make_model(args):
    config = OlmoeConfig(
        vocab_size=args.vocab,
        hidden_size=args.d_model,
        intermediate_size=args.d_expert,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_experts=args.n_experts,
        num_experts_per_tok=args.top_k,
        max_position_embeddings=max(4096, args.seq_len),
        output_router_logits=args.balance,
        use_cache=False,
        pad_token_id=None,
        eos_token_id=None,
    )
    model = OlmoeForCausalLM(config).train()
    model.set_experts_implementation(args.experts)
    return model


def step_flops(args):
    d = args.d_model
    layer = 8 * d * d + 4 * d * (args.seq_len + 1) / 2 + 2 * args.n_experts * d + 6 * args.top_k * args.d_expert * d
    return 3 * args.tokens * (args.layers * layer + 2 * args.vocab * d)


def main():
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = make_model(args)
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "plain": {"foreach": False}}
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **how[args.optimizer]
    )
    ids = torch.randint(args.vocab, (args.tokens // args.seq_len, args.seq_len))
    a, b = torch.randn(args.tokens, args.d_model), torch.randn(args.d_model, args.d_model)
    c = torch.empty(args.tokens, args.d_model)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def plain():
        for _ in range(PLAIN_REPEATS):
            torch.matmul(a, b.T, out=c)

    print(
        f"machine   {peers.processor()}; torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {torch.get_num_threads()} threads"
    )
    print(
        f"step      f32, L {args.layers}, V {args.vocab}, d {args.d_model}, D {args.d_expert}, "
        f"n {args.n_experts}, K {args.top_k}, {ids.numel()} tokens in sequences of "
        f"{args.seq_len}; {model.num_parameters():,} parameters"
    )
    print(f"          experts {args.experts}, AdamW {args.optimizer}; medians of {args.rounds} rounds", flush=True)
    took, limit = peers.in_turn(args.rounds, step, plain)
    speed = step_flops(args) / peers.median(took)
    peak = PLAIN_REPEATS * 2.0 * args.tokens * args.d_model**2 / peers.median(limit)
    print(
        f"  {1e3 * peers.median(took):.0f} ms +-{100 * peers.spread(took):.1f} %  "
        f"{ids.numel() / peers.median(took):.0f} tokens/s  {speed / 1e9:.1f} GFLOP/s  plain "
        f"{peak / 1e9:.1f} GFLOP/s  share {100 * speed / peak:.1f} %  peak resident "
        f"{peers.peak_resident() / 1e9:.2f} GB"
    )


if __name__ == "__main__":
    main()
