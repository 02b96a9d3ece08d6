"""Tags of this package's operators."""

import inspect
from typing import Any, Dict

import torch


def tags(*names: str) -> Dict[str, Any]:
    """Returns arguments of torch.library.custom_op, as far as this PyTorch has them (2.6 and newer)."""
    if "tags" not in inspect.signature(torch.library.custom_op).parameters:
        return {}
    return {"tags": tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))}
