#!/usr/bin/env python3
"""Blocks of GGUF formats and their numbers, as the Python package gguf reads them.

    make_formats.py DIR

writes DIR/NAME.safetensors for each format: `blocks` U8 [n, bytes of a block] and `numbers` F32 [n, numbers of a
block]. All of a block is random except its scales: all six-bit scales and minima of Q4_K and Q5_K, all signed scales of
Q6_K and all powers of MXFP4 occur, and the f16 that multiply them are finite. The last blocks repeat the first with
infinite and NaN scales. Made with gguf 0.19.0, numpy 2.4.6 and safetensors. Equal versions give equal bytes."""

import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

RNG = np.random.default_rng(20240923)
SPECIAL = [0x7C00, 0xFC00, 0x7E01, 0xFD55, 0x0000, 0x8000, 0x0001, 0x83FF]


def some_bytes(n, size):
    return RNG.integers(0, 256, (n, size), dtype=np.uint8)


def every_one(n, columns, values):
    """Returns [n, columns] in which each of 0 ... values - 1 occurs equally often."""
    assert n * columns % values == 0
    return RNG.permutation(np.arange(n * columns) % values).reshape(n, columns).astype(np.uint8)


def put_f16(blocks, at, bits):
    blocks[:, at : at + 2] = np.asarray(bits, dtype="<u2").reshape(-1, 1).view(np.uint8)


def finite_f16(n):
    bits = RNG.integers(0, 1 << 16, n).astype(np.uint16)
    return np.where(bits & 0x7C00 == 0x7C00, bits & 0xBFFF, bits)


def put_groups(blocks, scale, minimum):
    """Puts scales and minima [n,8] of six bits into the bytes 4 ... 15."""
    low = slice(0, 4), slice(4, 8)
    blocks[:, 4:8] = scale[:, low[0]] | scale[:, low[1]] >> 4 << 6
    blocks[:, 8:12] = minimum[:, low[0]] | minimum[:, low[1]] >> 4 << 6
    blocks[:, 12:16] = (scale[:, low[1]] & 15) | (minimum[:, low[1]] & 15) << 4


def with_special(blocks, places):
    """Returns the blocks and, after them, the first blocks with SPECIAL at each of the places."""
    more = []
    for at in places:
        some = blocks[: len(SPECIAL)].copy()
        put_f16(some, at, SPECIAL)
        more.append(some)
    return np.concatenate([blocks, *more])


def grouped(size, n=32):
    blocks = some_bytes(n, size)
    put_f16(blocks, 0, finite_f16(n))
    put_f16(blocks, 2, finite_f16(n))
    put_groups(blocks, every_one(n, 8, 64), every_one(n, 8, 64))
    return with_special(blocks, [0, 2])


def q8_0(n=48):
    blocks = some_bytes(n, 34)
    put_f16(blocks, 0, finite_f16(n))
    return with_special(blocks, [0])


def q6_k(n=32):
    blocks = some_bytes(n, 210)
    blocks[:, 192:208] = every_one(n, 16, 256)
    put_f16(blocks, 208, finite_f16(n))
    return with_special(blocks, [208])


def mxfp4(n=256):
    blocks = some_bytes(n, 17)
    blocks[:, :1] = every_one(n, 1, 256)
    return blocks


FORMATS = {"Q8_0": q8_0, "Q4_K": lambda: grouped(144), "Q5_K": lambda: grouped(176), "Q6_K": q6_k, "MXFP4": mxfp4}


def main(folder):
    for name, make in FORMATS.items():
        blocks = make()
        with np.errstate(all="ignore"):
            numbers = gguf.quants.dequantize(blocks, Type[name])
        assert numbers.dtype == np.float32 and len(numbers) == len(blocks)
        assert gguf.GGML_QUANT_SIZES[Type[name]] == (numbers.shape[1], blocks.shape[1])
        save_file(
            {"blocks": blocks, "numbers": np.ascontiguousarray(numbers)},
            folder / f"{name}.safetensors",
            {"made by": "gguf 0.19.0"},
        )


main(pathlib.Path(sys.argv[1]))
