"""Reads dump files: the inputs and outputs of an implementation that is not in Python (docs/certify.md).

A dump is a safetensors file. Its tensors are the inputs of one kind of loss (_kind.py) under their names (`logits`
[L,T,n] or, for one layer, [T,n]; numbers as scalars), the outputs (`loss`, or the outputs of a rule), and `d_NAME` for
the gradient of an input. An absent gradient counts as zero. The metadata may have `couplet_dump`, the version of this
format, and `kind`."""

from __future__ import annotations

import math
import pathlib
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from ..report._files import BadFile, available_bytes, parse
from ..report._files import read as read_file
from ._import import CannotJudge
from ._judge import Dump
from ._kind import Case, Kind
from .kinds import KINDS

VERSION = 1
COUPLING = tuple(name for name, kind in KINDS.items() if kind.is_coupling)
WHOLE = ("top_k", "micro_batches", "sequences", "num_experts")
NUMBERS = (*WHOLE, "coefficient", "scale", "rate", "alpha", "layers", "latent_eps")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NOT_FLOATS = ("mask", "kept", "indices", "counts")
LIKE = {"bias_after": "bias", "weights": "logits", "scores": "d_scores"}  # outputs of rules: shaped as these inputs
GIVEN = ("d_weights", "d_scores")  # inputs: the incoming gradients of the outputs of a rule
# In a dump file, the tensors of the coupling loss have the paper's names.
PAPER = {"R": "router", "W_g": "w_gate", "W_p": "w_up", "W_l": "down", "weight": "coefficient"}
PAPER.update({"dR": "d_router", "dW_g": "d_w_gate", "dW_p": "d_w_up", "dW_l": "d_down"})
AXES = {
    **{"logits": "LTn", "mask": "T", "indices": "LTK", "kept": "LTn", "counts": "An", "bias": "n", "router": "Lnd"},
    **{"outputs": "TKh", "tokens": "Td", "W_down": "nrd", "d_scores": "Tn"},
}
GATE_AXES = {"logits": "Tn", "bias": "n", "d_weights": "Tn"}
ERC_AXES = {"router": "nd", "w_gate": "nDd", "w_up": "nDd", "delta": "nd", "M": "nn"}
LATENT_AXES = {"down": "ld", "latent_norm": "l", **ERC_AXES, "w_gate": "nDl", "w_up": "nDl"}


def number(name: str, value: Any) -> Union[int, float]:
    """Returns the value of an input that is a number. Raises CannotJudge if it is not an allowed number."""
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
    if name in ("alpha", "latent_eps") and number < 0 or name == "layers" and number <= 0:
        raise CannotJudge(f"{name} is {number:g}, must be {'more than 0' if name == 'layers' else '0 or more'}")
    return int(number) if name in WHOLE else number


def tensors_in(path: pathlib.Path) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
    """Returns the tensors and the metadata of a file. The file is read once. A file larger than a quarter of the
    available memory is refused, because judging takes up to four times the size of the file."""
    try:
        import safetensors.torch
    except ImportError:
        raise CannotJudge("dump files need safetensors: pip install safetensors") from None
    try:
        blob = read_file(path, available_bytes() // 4)
    except BadFile as error:
        raise CannotJudge(str(error)) from None
    try:
        tensors: Dict[str, Tensor] = safetensors.torch.load(blob)
        metadata = parse(blob[8 : 8 + int.from_bytes(blob[:8], "little")]).get("__metadata__") or {}
    except MemoryError:
        raise
    except Exception as error:  # safetensors has its own exception, and passes on others.
        raise CannotJudge(f"it is not a complete safetensors file: {(str(error).splitlines() or [''])[0]}") from None
    for word in (*tensors, *metadata, *metadata.values()):
        if not word.isprintable():
            raise CannotJudge(f"it has a name with a control character: {word[:40]!a}")
    version = metadata.get("couplet_dump", "1")
    if not version.isdecimal() or len(version) > 9 or int(version) > VERSION:
        raise CannotJudge(f"its version is {version[:20]}, this program reads {VERSION}: install a newer couplet")
    return tensors, metadata


def check(name: str, value: Tensor) -> None:
    """Raises CannotJudge for a tensor that cannot be in a dump."""
    if not value.numel():
        raise CannotJudge(f"{name} is empty")
    if name not in (*NUMBERS, *NOT_FLOATS) and value.dtype not in FLOATS:
        raise CannotJudge(f"{name} is of {str(value.dtype)[6:]}; a dump holds float32, float64, bfloat16 or float16")
    bad = (~torch.isfinite(value)).nonzero()
    if len(bad):
        raise CannotJudge(f"{name} has a NaN or an infinite number, the first at {bad[0].tolist()}")
    if name == "loss" and value.numel() != 1:
        raise CannotJudge(f"loss is a tensor {list(value.shape)}, must be one number")
    if name in ("mask", "kept") and not bool(((value == 0) | (value == 1)).all()):
        raise CannotJudge(f"{name} holds other numbers than 0 and 1")
    if name == "counts" and not bool(((value >= 0) & (value == value.round())).all()):
        raise CannotJudge("counts must hold only whole numbers of 0 or more")
    if name == "mask" and not bool(value.any()):
        raise CannotJudge("mask leaves no token")


def check_sizes(values: Dict[str, Any], got: Dict[str, Tensor]) -> None:
    """Raises CannotJudge if shapes do not agree."""
    sizes: Dict[str, Tuple[int, str]] = {}
    of_coupling = LATENT_AXES if "down" in values else ERC_AXES
    all_axes = of_coupling if "w_gate" in values else GATE_AXES if "d_weights" in values else AXES
    for name, axes in all_axes.items():
        value = values.get(name, got.get(name))
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
    for name in ("top_k", "num_experts"):
        if n and (values.get(name, n) > n or name == "num_experts" and values.get(name, n) != n):
            raise CannotJudge(f"{name} is {values[name]}, there are {n} experts")
    for name in ("micro_batches", "sequences"):
        if T % values.get(name, 1):
            raise CannotJudge(f"{name} is {values[name]}, which does not divide the {T} tokens")
    if "indices" in values and n:
        check_indices(values["indices"], n, values.get("top_k", values["indices"].shape[-1]))
    if "w_gate" in values and 32 * n * n * values["w_gate"].shape[1] > available_bytes():
        needed = 32 * n * n * values["w_gate"].shape[1] >> 30
        raise CannotJudge(f"judging {n} experts of width {values['w_gate'].shape[1]} needs {needed} GiB of memory")


def check_indices(indices: Tensor, n: int, K: int) -> None:
    if int(indices.min()) < 0 or int(indices.max()) >= n:
        raise CannotJudge(f"indices are from {int(indices.min())} to {int(indices.max())}, there are {n} experts")
    if indices.shape[-1] != K:
        raise CannotJudge(f"indices has {indices.shape[-1]} experts a token, top_k is {K}")
    if bool((indices.sort(-1).values.diff(dim=-1) == 0).any()):
        raise CannotJudge("indices has an expert twice in a token")


def read(path: Union[str, pathlib.Path]) -> Tuple[Dump, Optional[str]]:
    """Returns the dump and the kind that it names. Raises CannotJudge if it is damaged, too new, or not a dump."""
    path = pathlib.Path(path)
    tensors, metadata = tensors_in(path)
    of_coupling = "erc-latent" if "W_l" in tensors else "erc"
    kind = metadata.get("kind") or (of_coupling if {"R", "W_g"} & set(tensors) else None)
    if kind in COUPLING:
        tensors = {PAPER.get(name, name): value for name, value in tensors.items() if name != "eps"}
    known = {name for one in KINDS.values() for name in one.inputs} | set(GIVEN)
    results = {name for one in KINDS.values() for name in one.outputs} | ({"M"} if kind in COUPLING else set())
    values: Dict[str, Any] = {}
    got: Dict[str, Tensor] = {}
    for name, value in tensors.items():
        is_output = name in results or name.startswith("d_") and name[2:] in known and name not in GIVEN
        if not is_output and name not in known:
            all_ = ", ".join(sorted(known | results))
            raise CannotJudge(f"{name[:40]} is neither an input nor an output of a loss; the names are {all_}")
        check(name, value)
        if is_output:
            got[name] = value.reshape(()) if name == "loss" else value
        else:
            values[name] = number(name, value) if name in NUMBERS else value
    return arranged(path.stem, values, got), kind


def arranged(name: str, values: Dict[str, Any], got: Dict[str, Tensor]) -> Dump:
    """Returns a dump in which `logits`, `indices`, `kept` and `router` have an axis of layers, also if the dump has one
    layer. A dump with `w_gate`, `d_weights` or `d_scores` has no axis of layers."""
    for key, value in values.items():
        if key in ("mask", "kept"):
            values[key] = value.bool()
        if key == "indices":
            values[key] = value.long()
        if key in ("logits", "indices", "kept", "router") and value.dim() == 2 and not {*GIVEN, "w_gate"} & set(values):
            values[key] = values[key].unsqueeze(0)
            if f"d_{key}" in got:
                got[f"d_{key}"] = got[f"d_{key}"].unsqueeze(0)
    for key in (name[2:] for name in got if name.startswith("d_")):
        if key not in values:
            raise CannotJudge(f"the dump has d_{key}, but no {key}: add {key}")
        if key in NUMBERS:
            raise CannotJudge(f"leave d_{key} out of the dump: {key} is a number, whose gradient is not checked")
    if "latent_norm" in values and "latent_eps" not in values:
        raise CannotJudge("it has latent_norm, but no latent_eps: add the number that the norm adds to the mean square")
    check_sizes(values, got)
    return Dump(name, Case(**values), got)


def of_kind(dump: Dump, kind: Kind) -> Dump:
    """Returns the dump with a zero for each absent gradient. Raises CannotJudge if it cannot be of this kind."""
    missing = [name for name in sorted(kind.needs) if getattr(dump.x, name) is None]
    missing += [name for name in kind.outputs if name not in dump.got]
    if missing:
        raise CannotJudge(f"it has no {missing[0]}, which {kind.name} needs")
    inputs = {name: getattr(dump.x, name) for name in kind.gradients}
    zeros = {f"d_{name}": torch.zeros_like(value) for name, value in inputs.items() if value is not None}
    return Dump(dump.name, dump.x, {**zeros, **dump.got})
