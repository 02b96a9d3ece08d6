"""The C reader of families (src/inspect/families) for a model in memory: python/tests/models/native/moe_map.h, in a
library that tools/run_python_tests.py builds and no wheel has."""

import ctypes
import json
import math

import pytest
from conftest import ROOT

PATH = ROOT / "build" / "python" / "libcouplet_families.so"
library = None
if PATH.exists():
    library = ctypes.CDLL(str(PATH))
    library.cpl_last_error.restype = ctypes.c_char_p
    library.couplet_moe_map.argtypes = [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)]
    library.couplet_moe_map_free.argtypes = [ctypes.c_void_p]


def for_json(value):
    """Infinity and NaN, which JSON does not have, as null."""
    if isinstance(value, dict):
        return {key: for_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [for_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def moe_map(path, config, tensors):
    """The same as couplet.models._moe_map.moe_map."""
    if library is None:
        pytest.skip(f"{PATH} is not built: tools/run_python_tests.py builds it")
    request = json.dumps({"path": path, "config": for_json(config), "tensors": tensors}, default=str)
    answer = ctypes.c_void_p()
    if library.couplet_moe_map(request.encode(), ctypes.byref(answer)):
        raise ValueError(library.cpl_last_error().decode("utf-8", "replace"))
    try:
        return json.loads(ctypes.string_at(answer))
    finally:
        library.couplet_moe_map_free(answer)
