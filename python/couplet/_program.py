"""The search for the program `couplet`."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Optional


def find_program() -> Optional[str]:
    """Returns the path of the program `couplet`, of the wheel couplet_native or on PATH; None if it is not found."""
    if importlib.util.find_spec("couplet_native"):
        import couplet_native

        return str(couplet_native.program())
    return shutil.which("couplet")
