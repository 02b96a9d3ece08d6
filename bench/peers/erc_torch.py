#!/usr/bin/env python3
"""Compares couplet.erc_loss with the paper's pseudo-code in eager PyTorch: time and memory.

Names:    n experts, d model width, D expert width, router [n,d], gates [n,D,d]; f32, CPU.
Subjects: forward and backward of couplet.erc_loss by the C library, by plain torch operations, and of
          couplet.reference.erc_loss (the paper's einsum to [n,n,D]), in turn.
Hinges:   "all": alpha 0.5 and random weights; "none": experts that answer ten times as strongly to
          their own row. The noise is given, so that all subjects compute equal losses, which are compared.
Memory:   peak of a process of its own, beyond inputs and their gradients.
Bars:     the project's limits; a line shows the distance from its bar.
--small:  plain torch and the pseudo-code at 24 shapes, except shapes with more than 256 MiB of gates: PAIRS pairs of
          runs in turn by one thread, the median of their ratios and its 95 % interval. A run is repeated for at least
          RUN seconds. Times are processor times, so that other programs of the machine hardly count.
          The last column is the time of couplet.noise, which the other columns do not include."""

import argparse
import itertools
import json
import math
import subprocess
import sys
import time

import couplet
import peers
import torch
from couplet.ops import _library, _native

BARS = {"library": {"all": 3.0, "none": 8.0, "memory": 0.1}, "plain": {"all": 1.5, "none": 3.0, "memory": 0.05}}
SUBJECTS = ("library", "plain", "reference")

SMALL = [(n, d, d // part) for n, d, part in itertools.product((8, 16, 64, 256), (64, 512, 2048), (2, 4))]
MOST_BYTES, PAIRS, RUN = 1 << 28, 15, 0.02
LEAST, LARGE, LARGE_MEDIAN = 0.95, 1 << 22, 1.5  # bars: the interval's lower end; the median where n D d is above LARGE


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experts", type=int, nargs="+", default=[64, 256], help="n, one or more")
    parser.add_argument("--d-model", type=int, default=1536)
    parser.add_argument("--d-expert", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as torch chooses")
    parser.add_argument("--small", action="store_true", help="small shapes, without the library")
    parser.add_argument("--memory-of", choices=SUBJECTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def inputs(n, d, D, hinges):
    torch.manual_seed(1)
    router, gates = torch.randn(n, d), torch.randn(n, D, d) / d**0.5
    if hinges == "none":
        u = torch.nn.functional.normalize(torch.randn(n, D), dim=1) * 10 * (D / d) ** 0.5
        gates += u[:, :, None] * torch.nn.functional.normalize(router, dim=1)[:, None, :]
    delta = 1 + 0.3 * (2 * torch.rand(n, d) - 1)
    return router.requires_grad_(), gates.requires_grad_(), delta


def evaluation(subject, router, gates, delta):
    """Returns a function that computes the loss and its gradients in newly allocated memory."""
    in_c = _native.fits

    def run():
        router.grad = gates.grad = None
        _native.fits = in_c if subject == "library" else lambda job: False
        if subject == "reference":
            loss = couplet.reference.erc_loss(router, gates, alpha=0.5, delta=delta)
        else:
            loss = couplet.erc_loss(router, gates, alpha=0.5, delta=delta)
        loss.backward()
        _native.fits = in_c
        return loss.item()

    return run


def extra_megabytes(subject, n, d, D, threads):
    words = [
        sys.executable,
        __file__,
        "--memory-of",
        subject,
        "--experts",
        str(n),
        "--d-model",
        str(d),
        "--d-expert",
        str(D),
        "--threads",
        str(threads),
    ]
    out = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return json.loads(out) / 1e6


def memory_of(args):
    """Prints the peak of memory beyond inputs and gradients. A small case runs first, so that libraries are loaded."""
    evaluation(args.memory_of, *inputs(8, 16, 8, "all"))()
    n, d, D = args.experts[0], args.d_model, args.d_expert
    run = evaluation(args.memory_of, *inputs(n, d, D, "all"))
    print(peers.extra_bytes(run) - 4 * (n * d + n * D * d))


def measure(args, n, hinges):
    runs = [evaluation(subject, *inputs(n, args.d_model, args.d_expert, hinges)) for subject in SUBJECTS]
    losses = [run() for run in runs]
    assert max(losses) - min(losses) <= 1e-4 * abs(losses[-1]) + 1e-12, losses
    times = dict(zip(SUBJECTS, peers.in_turn(args.rounds, *runs)))
    for subject in SUBJECTS:
        mine = times[subject]
        line = (
            f"  n {n:<4} hinges {hinges:<5} {subject:<10} {1e3 * peers.median(mine):9.1f} ms "
            f"+-{100 * peers.spread(mine):4.1f} %"
        )
        if subject in BARS:
            ratio = peers.median([a / b for a, b in zip(times["reference"], mine)])
            bar = BARS[subject][hinges]
            line += f"  {ratio:6.2f} times as fast; bar {bar:g}: {'met' if ratio >= bar else 'MISSED'}"
        print(line, flush=True)


def compare_memory(args, n):
    extra = {subject: extra_megabytes(subject, n, args.d_model, args.d_expert, args.threads) for subject in SUBJECTS}
    print(f"  n {n:<4} extra memory, hinges all: reference {extra['reference']:.1f} MB")
    for subject, bars in BARS.items():
        share = extra[subject] / extra["reference"] if extra["reference"] > 0 else float("nan")
        print(
            f"  n {n:<4} {'':<12} {subject:<10} {extra[subject]:9.1f} MB  {share:6.3f} of it; bar "
            f"{bars['memory']:g}: {'met' if share <= bars['memory'] else 'MISSED'}",
            flush=True,
        )


def repeated(run):
    """Returns the number of repetitions of `run` in about RUN seconds, and a function that repeats it so often."""
    run()
    count = math.ceil(RUN / peers.seconds(run))
    return count, lambda: [run() for _ in range(count)]


def pair_up(n, d, D, hinges):
    """Returns times of plain torch and of the pseudo-code, pair by pair."""
    runs = [evaluation(subject, *inputs(n, d, D, hinges)) for subject in SUBJECTS[1:]]
    losses = [run() for run in runs]
    assert abs(losses[0] - losses[1]) <= 1e-4 * abs(losses[1]) + 1e-12, losses
    counts, runs = zip(*map(repeated, runs))
    return [
        [t / count for t in times] for count, times in zip(counts, peers.in_turn(PAIRS, *runs, clock=time.process_time))
    ]


def compare_small():
    """Prints a line for each shape and kind of hinges. Returns whether all bars are met."""
    print(
        f"  {'n':>3} {'d':>4} {'D':>4} hinges {'plain':>9} {'reference':>9} ms  ratio   95 % interval "
        f"{'bar':>15}   extra MB (reference)   noise ms"
    )
    missed = []
    for n, d, D in SMALL:
        if 4 * n * D * d > MOST_BYTES:
            continue
        router = inputs(n, d, D, "all")[0]
        noise = min(peers.seconds(lambda: couplet.noise(router)) for _ in range(9))
        extra = [extra_megabytes(subject, n, d, D, 1) for subject in SUBJECTS[1:]]
        for hinges in ("all", "none"):
            plain, reference = pair_up(n, d, D, hinges)
            ratios = [b / a for a, b in zip(plain, reference)]
            ratio, (low, high) = peers.median(ratios), peers.interval(ratios)
            is_large = n * D * d > LARGE
            met = low >= LEAST and (not is_large or ratio >= LARGE_MEDIAN)
            missed += [] if met else [(n, d, D, hinges)]
            print(
                f"  {n:>3} {d:>4} {D:>4} {hinges:<6} {1e3 * peers.median(plain):9.3f} {1e3 * peers.median(reference):9.3f}"
                f"    {ratio:6.2f}   {low:5.2f} to {high:5.2f}   {LEAST}{f' and {LARGE_MEDIAN}' if is_large else '':8} "
                f"{'met' if met else 'MISSED':6}"
                + (f" {extra[0]:7.1f} ({extra[1]:.1f}) {1e3 * noise:12.3f}" if hinges == "all" else ""),
                flush=True,
            )
    print(f"  missed: {len(missed)}")


def main():
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.memory_of:
        memory_of(args)
        return
    if args.small:
        torch.set_num_threads(1)
        print(f"machine   {peers.processor()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
        compare_small()
        return
    if _library.found() is None:
        sys.exit(
            f'erc_torch.py: the row "library" needs couplet-native, and there is {couplet.backend()}; '
            "pip install ./python/native"
        )
    print(
        f"machine   {peers.processor()}; torch {torch.__version__}, couplet {couplet.__version__}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"coupling  f32, d {args.d_model}, D {args.d_expert}, forward and backward; medians of {args.rounds} rounds")
    for n in args.experts:
        for hinges in ("all", "none"):
            measure(args, n, hinges)
        compare_memory(args, n)


if __name__ == "__main__":
    main()
