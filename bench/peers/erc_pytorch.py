#!/usr/bin/env python3
"""Measures the coupling loss by the paper's pseudo-code, in eager PyTorch on the CPU.

Names:   n experts, d model width, D expert width, R [n,d] router rows, W [n,D,d] expert gates.
Subject: noise, one einsum to [n,n,D], its norms M, the two hinges, the mean; then backward into R
         and W, whose gradients exist already, as they do beside the rest of a model.
Limit:   torch's product of [n,d] by [n D,d]^T, in turn with the subject. A backward pass counts as two such products.
Beside:  bench/erc.c, "all active". PyTorch's time does not depend on the active hinges."""

import argparse

import peers
import torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experts", type=int, nargs="+", default=[64, 256], help="n, one or more")
    parser.add_argument("--d-model", type=int, default=1536)
    parser.add_argument("--d-expert", type=int, default=768)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    return parser.parse_args()


def noisy(R):
    """Returns each row times uniform noise that leaves the row nearest to itself. The noise is a constant."""
    with torch.no_grad():
        between = torch.cdist(R, R, p=2)
        between.fill_diagonal_(float("inf"))
        eps = (between.min(dim=1).values / 2 / torch.norm(R, dim=1)).unsqueeze(1)
        delta = (1 - eps) + torch.rand_like(R) * (2 * eps)
    return delta * R


def erc(R, W, alpha):
    M = torch.norm(torch.einsum("jDd,id->ijD", W, noisy(R)), dim=-1)
    own = torch.diag(M)
    rows = torch.clamp(M - alpha * own.unsqueeze(1), min=0.0)
    columns = torch.clamp(M - alpha * own.unsqueeze(0), min=0.0)
    others = torch.ones_like(M) - torch.eye(M.size(0))
    return ((rows + columns) * others).mean()


def measure(n, d, D, alpha, rounds):
    R = (0.02 * torch.randn(n, d)).requires_grad_()
    W = (0.02 * torch.randn(n, D, d)).requires_grad_()
    plain_R, plain_W = R.detach(), W.detach().view(n * D, d)
    product = torch.empty(n, n * D)
    kept = {}

    def forward():
        kept["loss"] = erc(R, W, alpha)

    def backward():
        kept.pop("loss").backward()

    def plain():
        torch.matmul(plain_R, plain_W.T, out=product)

    def both():
        forward()
        backward()

    both()  # creates the gradients
    ahead, back, limit = peers.in_turn(rounds, forward, backward, plain)
    one = 2.0 * n * n * D * d
    peak = one / peers.median(limit)
    print(f"n {n}: plain product {peak / 1e9:.1f} GFLOP/s +-{100 * peers.spread(limit):.1f} %")
    whole = [a + b for a, b in zip(ahead, back)]
    for what, times, flops in (
        ("forward", ahead, one),
        ("backward", back, 2 * one),
        ("forward and backward", whole, 3 * one),
    ):
        speed = flops / peers.median(times)
        print(
            f"  {what:<22} {1e3 * peers.median(times):9.1f} ms +-{100 * peers.spread(times):4.1f} %"
            f"  {speed / 1e9:8.1f} GFLOP/s  share {100 * speed / peak:5.1f} %"
        )
    print(f"  peak extra memory, forward and backward: {peers.extra_bytes(both) / 1e6:.0f} MB", flush=True)


def main():
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    print(f"machine   {peers.processor()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"coupling  f32, d {args.d_model}, D {args.d_expert}, alpha {args.alpha}; medians of {args.rounds} rounds")
    for n in args.experts:
        measure(n, args.d_model, args.d_expert, args.alpha, args.rounds)


if __name__ == "__main__":
    main()
