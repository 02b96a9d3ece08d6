"""ctypes bindings of the C library in the package couplet_native: the structures of couplet.h, and its errors
as exceptions. Without the library the loss is computed in plain torch.

ctypes releases the GIL while a function of the library runs."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import pathlib
import sys
import warnings
from ctypes import POINTER, Structure, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Optional, Tuple

from .._version import __version__

F32, BF16 = 0, 1  # cpl_erc_dtype
DRAWN, GIVEN, NONE = 0, 1, 2  # cpl_erc_noise_kind
OK, ERR_MEMORY = 0, 3  # cpl_status

PACKAGE = "couplet_native"


class Matrices(Structure):
    """cpl_erc_matrices, and cpl_erc_gradients, which has an equal layout."""

    _fields_ = [("at", POINTER(c_void_p)), ("stride", c_int64)]


class Erc(Structure):
    """cpl_erc, field by field as couplet.h has it."""

    _fields_ = [
        ("n_experts", c_int64),
        ("d_model", c_int64),
        ("d_expert", c_int64),
        ("first_expert", c_int64),
        ("end_expert", c_int64),
        ("first_row", c_int64),
        ("end_row", c_int64),
        ("router", c_void_p),
        ("dtype", c_int),
        ("gate", Matrices),
        ("up", Matrices),
        ("down", Matrices),
        ("activation", c_int),
        ("alpha", c_double),
        ("weight", c_double),
        ("noise", c_int),
        ("seed", c_uint64),
        ("step", c_uint64),
        ("layer", c_uint32),
        ("draw", c_uint32),
        ("delta", c_void_p),
        ("compute", c_int),
        ("n_threads", c_int),
        ("router_grad", c_void_p),
        ("gate_grad", Matrices),
        ("up_grad", Matrices),
        ("down_grad", Matrices),
        ("M", c_void_p),
        ("eps", c_void_p),
        ("diagonal", c_void_p),
        ("violations", c_void_p),
        ("scratch", c_void_p),
        ("scratch_bytes", c_size_t),
        ("loss", c_double),
        ("row_violations", c_int64),
        ("column_violations", c_int64),
        ("eps_above_1", c_int64),
        ("zero_rows", c_int64),
        ("phase", c_int),
    ]


# ---- loading ----


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    library.cpl_version.restype = c_char_p
    library.cpl_last_error.restype = c_char_p
    library.cpl_erc_init.argtypes = [POINTER(Erc)]
    library.cpl_erc_scratch.argtypes = [POINTER(Erc), POINTER(c_size_t)]
    for name in ("run", "diagonals", "sweep", "finish"):
        getattr(library, f"cpl_erc_{name}").argtypes = [POINTER(Erc)]
    return library


def _copies() -> list[str]:
    """Returns the folders of sys.path that have a copy of the package, the first one first."""
    return [folder for folder in dict.fromkeys(sys.path) if (pathlib.Path(folder) / PACKAGE / "__init__.py").is_file()]


def _load() -> Tuple[Optional[ctypes.CDLL], str]:
    """Returns the library or None, and its name or the reason."""
    if os.environ.get("COUPLET_BACKEND") == "torch":
        return None, "COUPLET_BACKEND=torch"
    if importlib.util.find_spec(PACKAGE) is None:
        return None, f"{PACKAGE} is not installed (pip install ./python/native)"
    import couplet_native

    path = couplet_native.library()
    try:
        library = _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        warnings.warn(f"couplet: {PACKAGE} cannot be loaded, plain torch is used: {error}", stacklevel=2)
        return None, f"{PACKAGE} cannot be loaded: {error}"
    version = library.cpl_version().decode()
    if version != __version__:
        sentence = f"{PACKAGE} has version {version}, couplet {__version__}; install the same"
        warnings.warn(f"couplet: plain torch is used: {sentence}", stacklevel=2)
        return None, sentence
    copies = _copies()
    if len(copies) > 1:
        warnings.warn(
            f"couplet: {PACKAGE} is installed {len(copies)} times, in {', '.join(copies)}; used is {path}", stacklevel=2
        )
    return library, f"{PACKAGE} {version}, {path}"


@functools.lru_cache(maxsize=None)
def chosen() -> Tuple[Optional[ctypes.CDLL], str]:
    """Calls `_load` once in a process."""
    return _load()


def found() -> Optional[ctypes.CDLL]:
    return chosen()[0]


def _library() -> ctypes.CDLL:
    library = found()
    assert library is not None, "no library: check `found` first"
    return library


def backend() -> str:
    """Returns the code that computes the loss here, and the reason: "native: ..." or "torch: ...".

    "native": the C library of the wheel couplet_native for f32 and bf16 on the CPU, plain torch operations for
    everything else. "torch": plain torch operations for everything; COUPLET_BACKEND=torch in the environment,
    before the first use, selects this."""
    library, why = chosen()
    if library is None:
        return f"torch: {why}"
    return f"native: {why}, for float32 and bfloat16 on the CPU; torch for everything else"


# ---- functions ----


def _raise_if(status: int) -> None:
    """Raises MemoryError for ERR_MEMORY, and ValueError for another error, with the library's message. The message
    begins with "cpl_erc: ", which is replaced."""
    if status != OK:
        sentence = "couplet: " + _library().cpl_last_error().decode("utf-8", "replace").removeprefix("cpl_erc: ")
        raise MemoryError(sentence) if status == ERR_MEMORY else ValueError(sentence)


def new_erc() -> Erc:
    """Returns a cpl_erc with every field at its default."""
    erc = Erc()
    _library().cpl_erc_init(ctypes.byref(erc))
    return erc


def scratch_bytes(erc: Erc) -> int:
    """Checks all members of `erc` except its scratch; returns the bytes that the scratch needs."""
    bytes_ = c_size_t()
    _raise_if(_library().cpl_erc_scratch(ctypes.byref(erc), ctypes.byref(bytes_)))
    return bytes_.value


def call(name: str, erc: Erc) -> None:
    """Calls cpl_erc_<name>: run, diagonals, sweep or finish."""
    _raise_if(getattr(_library(), f"cpl_erc_{name}")(ctypes.byref(erc)))
