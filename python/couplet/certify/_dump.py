"""Dump files: what an implementation was given and gave, for one that is not in Python, or to be kept.

A safetensors file. Tensors: the inputs of the kind by their names (`logits` [L,T,n] or, of one layer, [T,n]; numbers as
scalars), the outputs (`loss`, or those of a rule), and `d_NAME` for the gradient of an input; an absent gradient counts as
zero. Metadata, each of which may be absent: `couplet_dump`, the version of this format; `kind`; `xxh3`, XXH3-64 of all
bytes after the header, as 16 hexadecimal digits."""

from __future__ import annotations

import math
import pathlib
from typing import Any, Dict, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor

from ..report._files import BadFile, available_bytes, parse
from ..report._files import read as read_file
from ._fits import Dump
from ._import import CannotJudge
from ._kind import Case, Kind
from .kinds import KINDS

VERSION = 1
WHOLE = ("top_k", "micro_batches", "sequences", "num_experts")
NUMBERS = (*WHOLE, "coefficient", "scale", "rate")
AXES = {
    "logits": "LTn",
    "mask": "T",
    "indices": "LTK",
    "kept": "LTn",
    "counts": "An",
    "bias": "n",
    "router": "Lnd",
    "outputs": "TKh",
    "tokens": "Td",
    "W_down": "nrd",
    "d_scores": "Tn",
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NOT_FLOATS = ("mask", "kept", "indices", "counts")
LIKE = {"bias_after": "bias", "weights": "logits", "scores": "d_scores"}  # outputs of rules: shaped as these inputs
GIVEN_GRADIENTS = {"d_weights", "d_scores"}  # those that the outputs of a rule get
GATE_AXES = {"logits": "Tn", "bias": "n", "d_weights": "Tn"}  # of gate-weights, which has no layers


def _safetensors() -> Any:
    """The package, with what it has for torch."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError:
        raise CannotJudge("dump files need safetensors: pip install safetensors") from None
    return safetensors


def _xxh3(data: bytes) -> Optional[str]:
    """None: xxhash is not installed, and nothing is checked."""
    try:
        import xxhash
    except ImportError:
        return None
    return str(xxhash.xxh3_64_hexdigest(data))


def _body(blob: bytes) -> bytes:
    return blob[8 + int.from_bytes(blob[:8], "little") :]


def save(path: Union[str, pathlib.Path], tensors: Mapping[str, Tensor], kind: Optional[str] = None) -> None:
    """With version, and check sum where xxhash is installed."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    metadata = {"couplet_dump": str(VERSION), **({"kind": kind} if kind else {})}
    made = _safetensors().torch.save
    found = _xxh3(_body(made(tensors, metadata)))
    pathlib.Path(path).write_bytes(made(tensors, {**metadata, **({"xxh3": found} if found else {})}))


def write(path: Union[str, pathlib.Path], dump: Dump, kind: Optional[str] = None) -> None:
    save(
        path,
        {
            name: value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
            for name, value in {**dump.x.values, **dump.got}.items()
            if value is not None
        },
        kind,
    )


def _parsed(blob: bytes) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """Tensors and metadata. The package checks the header, which is read a second time for the metadata alone."""
    library = _safetensors()
    try:
        tensors: Dict[str, Tensor] = library.torch.load(blob)
        metadata = parse(blob[8 : 8 + int.from_bytes(blob[:8], "little")]).get("__metadata__")
    except MemoryError:
        raise
    except Exception as error:  # safetensors has an exception of its own, and passes on others
        raise CannotJudge(f"it is no whole safetensors file: {(str(error).splitlines() or [''])[0]}") from None
    return tensors, metadata or {}


def tensors_in(path: pathlib.Path) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """Of a file that is read once and has at most a quarter of the available memory: judging takes up to four times it."""
    try:
        blob = read_file(path, available_bytes() // 4)
    except BadFile as error:
        raise CannotJudge(str(error)) from None
    tensors, metadata = _parsed(blob)
    for word in (*tensors, *metadata, *metadata.values()):
        if not word.isprintable():
            raise CannotJudge(f"it has a name with a control character: {word[:40]!a}")
    version = metadata.get("couplet_dump", "1")
    if not version.isdecimal() or len(version) > 9 or int(version) > VERSION:
        raise CannotJudge(f"its version is {version[:20]}, this program reads {VERSION}: install a newer couplet")
    found = _xxh3(_body(blob))
    if metadata.get("xxh3") and found and metadata["xxh3"].lower() != found:
        raise CannotJudge("it is damaged: its check sum is not the one in its header")
    return tensors, metadata


def number(name: str, value: Any) -> Union[int, float]:
    try:
        value = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise CannotJudge(f"{name} is {value!r:.40}, must be a number") from None
    if value.numel() != 1:
        raise CannotJudge(f"{name} is a tensor {list(value.shape)}, must be one number")
    number = float(value)
    if not math.isfinite(number) or name in WHOLE and (number != int(number) or number < 1):
        raise CannotJudge(f"{name} is {number:g}" + (", must be a whole number from 1" if name in WHOLE else ""))
    if name == "coefficient" and number == 0:
        raise CannotJudge("coefficient is 0, with which every loss is 0")
    return int(number) if name in WHOLE else number


def _sizes(values: Dict[str, Any], got: Dict[str, Tensor]) -> None:
    """CannotJudge where shapes do not agree."""
    sizes: Dict[str, Tuple[int, str]] = {}
    for name, axes in (GATE_AXES if "d_weights" in values else AXES).items():
        value = values.get(name)
        if value is None:
            continue
        if value.dim() != len(axes):
            raise CannotJudge(f"{name} has {value.dim()} axes, must have {len(axes)}: [{','.join(axes)}]")
        for axis, size in zip(axes, value.shape):
            before = sizes.setdefault(axis, (size, name))
            if before[0] != size:
                raise CannotJudge(f"{name} has {size} for {axis}, {before[1]} has {before[0]}")
    for name, value in got.items():
        like = name[2:] if name.startswith("d_") else LIKE.get(name)
        if like in values and value.shape != values[like].shape:
            raise CannotJudge(f"{name} is {list(value.shape)}, {like} is {list(values[like].shape)}")
    n, T = sizes.get("n", (0, ""))[0], sizes.get("T", (0, ""))[0]
    if values.get("top_k", 1) > n > 0:
        raise CannotJudge(f"top_k is {values['top_k']}, there are {n} experts")
    if values.get("num_experts", n) != n and n:
        raise CannotJudge(f"num_experts is {values['num_experts']}, there are {n} experts")
    if "indices" in values and "top_k" in values and n:
        _check_indices(values["indices"], n, values["top_k"])
    for name in ("micro_batches", "sequences"):
        if T % values.get(name, 1):
            raise CannotJudge(f"{name} is {values[name]}, which does not divide the {T} tokens")


def _check(name: str, value: Tensor) -> None:
    if not value.numel():
        raise CannotJudge(f"{name} is empty")
    if name not in (*NUMBERS, *NOT_FLOATS) and value.dtype not in FLOATS:
        raise CannotJudge(f"{name} is of {str(value.dtype)[6:]}; a dump holds float32, float64, bfloat16 or float16")
    if value.is_floating_point() and not bool(torch.isfinite(value.double()).all()):
        raise CannotJudge(f"{name} has a NaN or an infinite number")
    if name == "loss" and value.numel() != 1:
        raise CannotJudge(f"loss is a tensor {list(value.shape)}, must be one number")
    if name in ("mask", "kept") and not bool(((value == 0) | (value == 1)).all()):
        raise CannotJudge(f"{name} holds other numbers than 0 and 1")
    if name == "counts" and not bool(((value >= 0) & (value == value.round())).all()):
        raise CannotJudge("counts holds other numbers than whole ones from 0")
    if name == "mask" and not bool(value.any()):
        raise CannotJudge("mask leaves no token")


def _check_indices(indices: Tensor, n: int, K: int) -> None:
    if int(indices.min()) < 0 or int(indices.max()) >= n:
        raise CannotJudge(f"indices are from {int(indices.min())} to {int(indices.max())}, there are {n} experts")
    if indices.shape[-1] != K:
        raise CannotJudge(f"indices has {indices.shape[-1]} experts a token, top_k is {K}")
    if bool((indices.sort(-1).values.diff(dim=-1) == 0).any()):
        raise CannotJudge("indices has an expert twice in a token")


def read(path: Union[str, pathlib.Path]) -> Tuple[Dump, Optional[str]]:
    """The dump, and its kind if the file says it. CannotJudge: damaged, of a newer version, or no dump of a loss."""
    path = pathlib.Path(path)
    tensors, metadata = tensors_in(path)
    known = {name for kind in KINDS.values() for name in kind.inputs} | GIVEN_GRADIENTS
    results = {name for kind in KINDS.values() for name in kind.outputs}
    values: Dict[str, Any] = {}
    got: Dict[str, Tensor] = {}
    for name, value in tensors.items():
        _check(name, value)
        if name in NUMBERS:
            values[name] = number(name, value)
        elif name in results or name.startswith("d_") and name not in GIVEN_GRADIENTS:
            got[name] = value.reshape(()) if name == "loss" and value.numel() == 1 else value
        elif name in known:
            values[name] = value.bool() if name in ("mask", "kept") else value.long() if name == "indices" else value
        else:
            raise CannotJudge(
                f"{name[:40]} is neither an input nor an output of a loss: {', '.join(sorted(known | results))}"
            )
    return _dump(path.stem, values, got), metadata.get("kind")


def _dump(name: str, values: Dict[str, Any], got: Dict[str, Tensor]) -> Dump:
    """Layers are added where there is one, and gradients that are absent as zero."""
    for key in ("logits", "indices", "kept", "router"):
        if key in values and values[key].dim() == 2 and not GIVEN_GRADIENTS & set(values):
            values[key] = values[key].unsqueeze(0)
            if f"d_{key}" in got:
                got[f"d_{key}"] = got[f"d_{key}"].unsqueeze(0)
    for key in (name[2:] for name in got if name.startswith("d_")):
        if key not in values:
            raise CannotJudge(f"d_{key} is there, {key} is not")
        if key in NUMBERS:
            raise CannotJudge(f"d_{key} is there: {key} is a number, which has no gradient here")
    _sizes(values, got)
    return Dump(name, Case(**values), got)


def of_kind(dump: Dump, kind: Kind) -> Dump:
    """CannotJudge unless it can be of this kind; with a zero for each gradient that is absent."""
    missing = [
        name
        for name in (*sorted(kind.needs), *kind.outputs)
        if (dump.got.get(name) if name in kind.outputs else getattr(dump.x, name)) is None
    ]
    if missing:
        raise CannotJudge(f"it has no {missing[0]}, which {kind.name} needs")
    zeros = {
        f"d_{name}": torch.zeros_like(getattr(dump.x, name))
        for name in kind.gradients
        if getattr(dump.x, name) is not None
    }
    return Dump(dump.name, dump.x, {**zeros, **dump.got})
