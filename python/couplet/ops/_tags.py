"""Tags of this package's operators."""

import inspect
from typing import Any, Dict

import torch


def tags(*names: str) -> Dict[str, Any]:
    """Returns the argument `tags` of torch.library.custom_op with the named tags that this PyTorch has. Returns no
    argument before PyTorch 2.6, whose custom_op has no `tags`."""
    if "tags" not in inspect.signature(torch.library.custom_op).parameters:
        return {}
    return {"tags": tuple(getattr(torch.Tag, name) for name in names if hasattr(torch.Tag, name))}
