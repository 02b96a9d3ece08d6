"""The C library through ctypes: the structure of couplet.h, and its failures as exceptions.

ctypes gives the interpreter's lock back while a function of the library runs."""
from __future__ import annotations

import ctypes
import json
import math
import pathlib
from ctypes import (POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32,
                    c_uint64, c_void_p)
from typing import Any

ACTIVATIONS = ("gate", "up", "silu", "swiglu", "output")  # cpl_erc_activation
F32, BF16 = 0, 1                                          # cpl_erc_dtype
DRAWN, GIVEN, NONE = 0, 1, 2                              # cpl_erc_noise_kind
OK, ERR_INPUT, ERR_IO, ERR_MEMORY = 0, 1, 2, 3            # cpl_status


class Matrices(Structure):
    """cpl_erc_matrices, and cpl_erc_gradients, which has the same layout."""
    _fields_ = [("at", POINTER(c_void_p)), ("stride", c_int64)]


class Erc(Structure):
    """cpl_erc, field by field as couplet.h has it."""
    _fields_ = [
        ("n_experts", c_int64), ("d_model", c_int64), ("d_expert", c_int64),
        ("first_expert", c_int64), ("end_expert", c_int64),
        ("first_row", c_int64), ("end_row", c_int64),
        ("router", c_void_p), ("dtype", c_int),
        ("gate", Matrices), ("up", Matrices), ("down", Matrices),
        ("activation", c_int), ("alpha", c_double), ("weight", c_double),
        ("noise", c_int), ("seed", c_uint64), ("step", c_uint64),
        ("layer", c_uint32), ("draw", c_uint32), ("delta", c_void_p),
        ("compute", c_int), ("n_threads", c_int),
        ("router_grad", c_void_p),
        ("gate_grad", Matrices), ("up_grad", Matrices), ("down_grad", Matrices),
        ("M", c_void_p), ("eps", c_void_p), ("diagonal", c_void_p), ("violations", c_void_p),
        ("scratch", c_void_p), ("scratch_bytes", c_size_t),
        ("loss", c_double), ("row_violations", c_int64), ("column_violations", c_int64),
        ("eps_above_1", c_int64), ("zero_rows", c_int64), ("phase", c_int),
    ]


def _load() -> ctypes.CDLL:
    folder = pathlib.Path(__file__).parent
    for name in ("libcouplet_python.so", "libcouplet_python.dylib"):
        if (folder / name).exists():
            return ctypes.CDLL(str(folder / name))
    raise ImportError(f"couplet: {folder} has no libcouplet_python; "
                      "install the package with `pip install ./python` from a checkout")


_lib = _load()
_lib.cpl_version.restype = c_char_p
_lib.cpl_last_error.restype = c_char_p
_lib.cpl_erc_init.argtypes = [POINTER(Erc)]
_lib.cpl_erc_scratch.argtypes = [POINTER(Erc), POINTER(c_size_t)]
for _name in ("run", "diagonals", "sweep", "finish"):
    getattr(_lib, f"cpl_erc_{_name}").argtypes = [POINTER(Erc)]
_lib.couplet_moe_map.argtypes = [c_char_p, POINTER(c_void_p)]
_lib.couplet_moe_map_free.argtypes = [c_void_p]


def _raise_if(status: int) -> None:
    """MemoryError where memory ran out, else ValueError; the sentence is the library's."""
    if status != OK:
        sentence = _lib.cpl_last_error().decode("utf-8", "replace")
        raise MemoryError(sentence) if status == ERR_MEMORY else ValueError(sentence)


def version() -> str:
    """The library's version, as in "0.1.0"."""
    return _lib.cpl_version().decode()


def new_erc() -> Erc:
    """A cpl_erc with every field at its default."""
    erc = Erc()
    _lib.cpl_erc_init(ctypes.byref(erc))
    return erc


def scratch_bytes(erc: Erc) -> int:
    """Checks all of `erc` but its scratch and tells what that must have."""
    bytes_ = c_size_t()
    _raise_if(_lib.cpl_erc_scratch(ctypes.byref(erc), ctypes.byref(bytes_)))
    return bytes_.value


def call(name: str, erc: Erc) -> None:
    """cpl_erc_<name>: run, diagonals, sweep or finish."""
    _raise_if(getattr(_lib, f"cpl_erc_{name}")(ctypes.byref(erc)))


def _for_json(value: Any) -> Any:
    """Infinity and NaN, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {key: _for_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def moe_map(path: str, config: dict[str, Any], tensors: list[tuple[str, str, list[int]]]) -> dict:
    """Where a model keeps routers and gates, by the inspector's table: python/native/moe_map.h."""
    request = json.dumps({"path": path, "config": _for_json(config), "tensors": tensors}, default=str)
    answer = c_void_p()
    _raise_if(_lib.couplet_moe_map(request.encode(), ctypes.byref(answer)))
    try:
        return json.loads(ctypes.string_at(answer))
    finally:
        _lib.couplet_moe_map_free(answer)
