"""Takes routers, projections and the gates of experts out of a checkpoint as a trainer writes it, for `couplet inspect`.

    python -m couplet.extract CHECKPOINT OUT.safetensors [--layers LIST]

CHECKPOINT is a folder of torch.distributed.checkpoint (.metadata and .distcp: torchtitan, OLMo-core, torch_dist of
Megatron-Core), or a file of torch.save (.pt, .pth, .bin, .ckpt), or a folder with one. Nothing in it is run. OUT has
the layout of OLMoE: a tensor for each expert, mlp.experts.N.gate_proj. A config.json of CHECKPOINT is copied beside
OUT. `python -m couplet.inspect CHECKPOINT` extracts and inspects. docs/inspection.md, "Checkpoints of trainers".

Exit code 0: written; 1: the checkpoint cannot be used, or OUT cannot be written; 2: wrong arguments; 130:
interrupted."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import torch

from ._checkpoint import Piece, Sizes, Stored, read
from .models._moe_map import MoeLayer, MoeMap, moe_map
from .report import _files

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
BLOCK = 1 << 24  # bytes that are copied at a time


class Part(NamedTuple):
    """Numbers [h, w] of the tensor `name`: row r of the box begins at number start + r stride of the tensor."""

    name: str
    start: int
    stride: int
    box: torch.Tensor


class Job(NamedTuple):
    """Tensors of the file that is written, from one stored tensor."""

    shapes: Dict[str, Sizes]  # by name
    dtype: torch.dtype
    parts: Callable[[], Iterator[Part]]


# ---- what is taken -----------------------------------------------------------------------------------


def layers_in(words: str) -> Set[int]:
    """Returns the numbers of a list such as "0,5-7"."""
    numbers: Set[int] = set()
    for word in words.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word.strip())
        if not found:
            raise ValueError(f"--layers {words}: must be a list of numbers and ranges such as 0,5-7")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers


def _whole(name: str, tensor: Stored, shape: Sizes, turned: bool = False) -> Job:
    """Returns the job of a whole tensor [rows, columns], or with `turned` of its transpose, or of a flat one."""

    def parts() -> Iterator[Part]:
        for piece in tensor.pieces:
            box, at = piece.read(), piece.offsets
            if box.dim() == 1:
                yield Part(name, at[0], shape[-1], box[None])
            elif turned:
                yield Part(name, at[1] * shape[-1] + at[0], shape[-1], box.mT)
            else:
                yield Part(name, at[0] * shape[-1] + at[1], shape[-1], box)

    return Job({name: shape}, tensor.dtype, parts)


def _slabs(piece: Piece, rows: int) -> Iterator[Tuple[int, int, int, torch.Tensor]]:
    """Yields (expert, row, column, box) of the experts in a piece of a tensor [n, rows, columns] or [n rows, columns].
    Row and column are the box's place in the matrix of the expert."""
    there = piece.read()
    if there.dim() == 3:
        yield from ((piece.offsets[0] + e, piece.offsets[1], piece.offsets[2], box) for e, box in enumerate(there))
        return
    begin, end = piece.offsets[0], piece.offsets[0] + piece.sizes[0]
    cuts = [begin, *range((begin // rows + 1) * rows, end, rows), end]
    for a, b in zip(cuts, cuts[1:]):
        yield a // rows, a % rows, piece.offsets[1], there[a - begin : b - begin]


def _gates(layer: MoeLayer, tensor: Stored, names: List[str]) -> Job:
    """Returns the job of the gates [D, l] in a stored tensor, one for each name. l is the width of the experts'
    input."""
    rows = tensor.shape[1] if len(tensor.shape) == 3 else tensor.shape[0] // len(names)
    width = rows if layer.columns else tensor.shape[-1]
    first, step = layer.D if layer.half == "second" else 0, 2 if layer.half == "interleaved" else 1

    def parts() -> Iterator[Part]:
        for piece in tensor.pieces:
            for e, row, column, box in _slabs(piece, rows):
                if layer.columns:
                    row, column, box = column, row, box.mT
                at = max(0, -(-(row - first) // step))  # the first row of the gate in the box
                box = box[first + at * step - row :: step][: max(0, layer.D - at)]
                if e < len(names) and box.numel():
                    yield Part(names[e], at * width + column, width, box)

    return Job({name: (layer.D, width) for name in names}, tensor.dtype, parts)


def _biases(layer: MoeLayer, tensors: Dict[str, Stored], names: List[str]) -> List[Job]:
    """Returns the jobs of the biases of router, gates [D] and projection. No figure has them, and the report says so."""

    def bias_of(name: str, shape: Sizes) -> Stored:
        bias = tensors[name]
        if bias.shape != shape or bias.dtype not in TYPES:
            raise ValueError(f"tensor {name} is {bias.dtype} {list(bias.shape)}, no bias {list(shape)}")
        return bias

    def vector(written: str, name: str, matrix: str, axis: int) -> Job:
        shape = tensors[matrix].shape
        height = math.prod(shape) // layer.d if len(shape) == 1 else shape[axis]
        return _whole(written, bias_of(name, (height,)), (height,))

    def gates(matrix: str, name: str, of: List[str]) -> Job:
        shape = tensors[matrix].shape
        bias = bias_of(name, (*shape[:-2], shape[-1 if layer.columns else -2]))
        pieces = [
            Piece((*at, 0), (*sizes, 1), lambda read=read: read()[..., None])  # type: ignore[misc]
            for at, sizes, read in bias.pieces
        ]
        upright = dataclasses.replace(layer, columns=False)
        job = _gates(upright, Stored(name, bias.dtype, (*bias.shape, 1), pieces), of)
        return job._replace(shapes={one: (layer.D,) for one in of})

    router, several = layer.biases.get("router", []), len(layer.matrices) > 1
    rows = -1 if layer.router_transposed else -2
    jobs = [vector(f"{layer.prefix}mlp.gate.bias", name, layer.router, rows) for name in router]
    jobs += [vector(name, name, layer.projection, -2) for name in layer.biases.get("projection", [])]
    named = [name.replace(".weight", ".bias") for name in names]
    of_gates = zip(layer.matrices, layer.biases.get("gate", []), [[one] for one in named] if several else [named])
    return jobs + [gates(*words) for words in of_gates]


def _jobs_of(layer: MoeLayer, tensors: Dict[str, Stored]) -> List[Job]:
    prefix, router = layer.prefix, tensors[layer.router]
    kind = "up" if layer.is_alone else "gate"
    names = [f"{prefix}mlp.experts.{e}.{kind}_proj.weight" for e in range(layer.n)]
    shape = (math.prod(router.shape) // layer.d, layer.d)
    jobs = [_whole(f"{prefix}mlp.gate.weight", router, shape, layer.router_transposed)]
    if len(layer.matrices) == 1:
        jobs.append(_gates(layer, tensors[layer.matrices[0]], names))
    else:
        jobs += [_gates(layer, tensors[gate], [name]) for gate, name in zip(layer.matrices, names)]
    between = (getattr(layer, field, "") for field in ("projection", "latent_norm"))
    jobs += [_whole(name, tensors[name], tensors[name].shape) for name in between if name]
    return jobs + _biases(layer, tensors, names)


# ---- the file ----------------------------------------------------------------------------------------


def _bytes_of(numbers: torch.Tensor) -> Iterator[bytearray]:
    """Yields the bytes of contiguous numbers, without NumPy."""
    flat = numbers.reshape(-1).view(torch.uint8)
    for start in range(0, flat.numel(), BLOCK):
        part = flat[start : start + BLOCK]
        block = bytearray(part.numel())
        torch.frombuffer(block, dtype=torch.uint8).copy_(part)
        yield block


def _write_part(file: IO[bytes], at: int, part: Part) -> None:
    """Writes the numbers of a part into the tensor that begins at byte `at` of the file."""
    box = part.box.contiguous()
    height, width = box.shape
    runs = [box] if width == part.stride or height == 1 else list(box)
    for row, run in enumerate(runs):
        file.seek(at + (part.start + row * part.stride) * box.element_size())
        for block in _bytes_of(run):
            file.write(block)


def _write(file: IO[bytes], jobs: List[Job]) -> int:
    """Writes the tensors of the jobs as safetensors, wide types first, as safetensors does. Returns the bytes."""
    shapes = {name: (job.dtype, shape) for job in jobs for name, shape in job.shapes.items()}
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places, end = {}, 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda one: -one[1][0].itemsize):
        places[name], end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": [places[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for job in jobs:
        for part in job.parts():
            _write_part(file, 8 + len(text) + places[part.name], part)
    return 8 + len(text) + end


def _save(path: pathlib.Path, jobs: List[Job]) -> int:
    """Writes the file as a whole, or not at all."""
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with open(handle, "w+b") as file:
            count = _write(file, jobs)
            os.umask(mask := os.umask(0))
            os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return count


# ---- the whole ---------------------------------------------------------------------------------------


def _blob(path: pathlib.Path) -> Optional[bytes]:
    try:
        return _files.read(path) if path.exists() else None
    except _files.BadFile as error:
        raise ValueError(f"{path}: {error}") from None


def _config_of(source: pathlib.Path, out: pathlib.Path) -> Tuple[Any, Optional[bytes]]:
    """Returns the config.json of the checkpoint, or None, and its bytes if they are to be copied beside `out`."""
    folder = source if source.is_dir() else source.parent
    given, beside = _blob(folder / "config.json"), _blob(out.parent / "config.json")
    if beside is not None and beside != given:
        raise ValueError(
            f"{out.parent / 'config.json'}: of another model, and would be read with {out}: name another folder"
        )
    try:
        return (None if given is None else _files.parse(given)), (given if beside is None else None)
    except _files.BadFile as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None


def extract(source: pathlib.Path, out: pathlib.Path, layers: Optional[Set[int]] = None) -> Tuple[MoeMap, int]:
    """Writes the routers, projections and gates of the MoE layers of a checkpoint, or of those with these numbers, to a
    safetensors file. Returns the map of the layers, and the bytes of the file. Raises ValueError or OSError."""
    config, copied = _config_of(source, out)
    tensors = read(source)
    listed = [(one.name, TYPES.get(one.dtype, str(one.dtype)), one.shape) for one in tensors.values()]
    found = moe_map(str(source), config, listed)
    numbers = {layer.layer for layer in found.layers}
    if layers and not layers <= numbers:
        raise ValueError(
            f"{source}: no MoE layer {min(layers - numbers)}; there are {', '.join(map(str, sorted(numbers)))}"
        )
    chosen = [layer for layer in found.layers if layer.matrices and (not layers or layer.layer in layers)]
    if not chosen:
        why = next((layer.skip for layer in found.layers if layer.skip), "none is chosen")
        raise ValueError(f"{source}: none of its {len(found.layers)} MoE layers can be measured: {why}")
    count = _save(out, [job for layer in chosen for job in _jobs_of(layer, tensors)])
    if copied is not None:
        (out.parent / "config.json").write_bytes(copied)
    found.layers = chosen
    return found, count


def sentence_of(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else _files.reason(error)


def describe(found: MoeMap, count: int) -> str:
    """Returns a sentence on the file that extract() wrote."""
    first, guess = found.layers[0], f"; {found.guess}" if found.guess else ""
    return f"{len(found.layers)} layers of {first.n} experts, {count:,} bytes{guess}"


def main(words: Optional[List[str]] = None) -> int:
    made = argparse.ArgumentParser(
        prog="python -m couplet.extract", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("checkpoint", type=pathlib.Path, metavar="CHECKPOINT", help="a folder, or a file of torch.save")
    made.add_argument("out", type=pathlib.Path, metavar="OUT.safetensors", help="the file to write; replaced")
    made.add_argument("--layers", metavar="LIST", help="only these layers, such as 0,5-7")
    given = made.parse_args(words)
    try:
        layers = layers_in(given.layers) if given.layers else None
        found, count = extract(given.checkpoint, given.out, layers)
        _files.say(f"{given.out}: {describe(found, count)}")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        _files.complain(f"couplet.extract: {sentence_of(error)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
