"""Where the program `couplet` is."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Optional


def find_program() -> Optional[str]:
    """The program `couplet` of the wheel couplet_native, or on PATH."""
    if importlib.util.find_spec("couplet_native"):
        import couplet_native

        return str(couplet_native.program())
    return shutil.which("couplet")
