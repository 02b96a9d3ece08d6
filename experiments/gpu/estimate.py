#!/usr/bin/env python3
"""estimate.py [--replicas N]: counts the work of a step of pairs.py in tensors without numbers, and estimates its speed.
It needs no GPU. Counted are kernels, operations of products, bytes read and written, and the peak of memory, in two
forms: with the pieces of replicas.py as they are, and with each piece as one kernel for its forward and one for its
backward pass. The estimate takes the larger one of two times for each kernel. RATES are assumptions."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Callable, Dict, List, Tuple

import pairs
import torch
from replicas import ROOT, Pieces, Shape, settings_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(ROOT / "python" / "tests"))
import counting  # noqa: E402

# Operations/s of products of bf16 and of f32, bytes/s, seconds of a kernel: shares of the makers' rates that dense
# products with inner sizes of 128 and streams of this length may reach.
RATES = {
    "H100": (0.30 * 989e12, 0.50 * 67e12, 0.70 * 3.35e12, 3e-6),
    "H200": (0.30 * 989e12, 0.50 * 67e12, 0.70 * 4.8e12, 3e-6),
}


def size(tensors: Any) -> int:
    return sum(t.numel() * t.dtype.itemsize for t in tensors if isinstance(t, Tensor))


def once(piece: Callable, counts: List[int]) -> Callable:
    """Returns the piece as one kernel that reads its tensors and writes its results, and one that reads these and the
    gradient of the results and writes the gradients of the tensors. counts gets their bytes."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, shape: Tuple[int, ...], dtype: torch.dtype, *tensors: Any) -> Tensor:
            ctx.save_for_backward(*(t for t in tensors if isinstance(t, Tensor)))
            ctx.places = [isinstance(t, Tensor) and t.is_floating_point() for t in tensors]
            out = tensors[0].new_empty(shape, dtype=dtype)
            counts.append(size(tensors) + size([out]))
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            grads = iter([torch.empty_like(t) for t in ctx.saved_tensors])
            counts.append(2 * size(ctx.saved_tensors) + size([gradient]))
            return (None, None, *(next(grads) if place else None for place in ctx.places))

    def call(*tensors: Any) -> Any:
        if piece.__name__ == "adamw":  # p, m, v are read and written, g is read
            counts.append(7 * size(tensors[:1]))
            return None
        x = tensors[0]
        shape = {"rms_norm": x.shape, "gated": x.shape, "cross_entropy": x.shape[:1]}[piece.__name__]
        return Once.apply(tuple(shape), torch.float32 if piece.__name__ != "gated" else x.dtype, *tensors)

    return call


class Counter(counting.Counter):
    """Counts operations on fake tensors of the CPU, for which autograd needs no driver, as those of a device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {counting._storage(t) for t in counting._tensors((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        made = [t for t in counting._tensors(result) if counting._storage(t) not in known]
        for t in made:
            self._made(t)
        read, written = counting._operands(function, args, kwargs or {})
        name, written = function.__name__.split(".")[0], written + made
        if written and name not in counting.ALLOCATIONS:
            a, b = (read * 2 + written * 2)[:2]
            products = 2 * a.numel() * b.shape[-1] if name in counting.PRODUCTS else 0
            moved = sum(map(counting._bytes_touched, read + written))
            self.counts.each.append(counting.Kernel(f"{name} {a.dtype}", moved, products))
        return result


def count(settings: Dict[str, str], N: int, joined: bool) -> Tuple[counting.Counts, List[int]]:
    """Returns the counts of a step, without the pieces that are one kernel, and the bytes of each of these."""
    S, sequences = int(settings["data.seq_len"]), 40_326
    shards = lambda folder, length: pairs.Shards(torch.zeros(sequences, S, dtype=torch.int32), None, [])
    kept, pairs.read_shards = pairs.read_shards, shards
    own: List[int] = []
    pieces = Pieces(*(once(piece, own) for piece in Pieces())) if joined else Pieces()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            program = pairs.Program(settings, ROOT, N, torch.device("cpu"), torch.bfloat16, pieces)
            with Counter() as counter:
                program.step()
            counter.counts.peak += size([*vars(program).values(), *vars(program.model).values()])
    finally:
        pairs.read_shards = kept
    return counter.counts, own


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--replicas", type=int, default=pairs.REPLICAS)
    N, settings = words.parse_args().replicas, settings_of(pairs.SETTINGS)
    tokens, shape = N * int(settings["data.batch_tokens"]), Shape.of(settings)
    print(f"{N} replicas of {sum(shape.sizes().values()):,} parameters, {tokens:,} tokens a step")
    for joined in (False, True):
        counts, own = count(settings, N, joined)
        memory = "" if joined else f", peak {counts.peak / 2**30:.1f} GiB"
        print(
            f"{'each piece one kernel' if joined else 'pieces as they are'}, counted: "
            f"{counts.kernels + len(own):,} kernels, {counts.operations / tokens / 1e6:.1f} MFLOP a token, "
            f"{(counts.bytes + sum(own)) / 1e9:.1f} GB{memory}"
        )
        for name, (low, full, stream, launch) in RATES.items():
            took = sum(max(moved / stream, launch) for moved in own)
            for kernel in counts.each:
                rate = low if "bfloat16" in kernel.name else full
                took += max(kernel.operations / rate, kernel.bytes / stream, launch)
            every = pairs.SEEDS * len(pairs.ARMS) / N * int(settings["train.steps"]) * took
            print(
                f"    estimated, {name}: {1e3 * took:.1f} ms a step, {tokens / took / 1e6:.2f}M tokens/s, "
                f"{every:.0f} s for all pairs"
            )


if __name__ == "__main__":
    main()
