"""Couplet for PyTorch: the expert-router coupling loss (ERC) of Mixture-of-Experts models.

    loss = couplet.erc_loss(router, w_gate, alpha=1.0, seed=seed, step=step, layer=layer)
    erc = couplet.hf.attach(model)            # Transformers: out.loss.backward(); erc.backward()
    erc = couplet.attach(model, layers=[(router, gates), ...])            # any model
    loss = couplet.erc_loss_ep(router, local_w_gate, group=group)
    rows = couplet.mpi_rows(router, w_gate)   # a router by Manifold Power Iteration
    couplet.backend()                         # which code computes the loss here
    python -m couplet.certify my_module:my_loss
    python -m couplet.inspect FOLDER          # a checkpoint of a trainer
    python -m couplet.plot FIGURES.json --out DIR
    python -m couplet.compare RUN [RUN ...]
    python -m couplet.export lm-eval RESULTS.json

Importing the package registers its operator with PyTorch. couplet.plot, couplet.compare and couplet.export do not need
PyTorch. Without PyTorch, the first use of any other public name except `__version__` raises ImportError.
See docs/pytorch.md of the project."""

import os
import sys

if sys.version_info < (3, 10):  # must precede the first line that an older Python cannot read
    _sentence = "couplet needs Python 3.10 or newer, and %s is Python %d.%d" % (
        (sys.executable,) + sys.version_info[:2]
    )
    if sys.argv[:1] == ["-m"]:
        sys.exit(_sentence + "; for couplet compare, set the environment variable COUPLET_PYTHON to a newer Python")
    raise ImportError(_sentence)
if sys.version_info < (3, 11) and sys.argv[:1] == ["-m"] and os.environ.get("PYTHONSAFEPATH"):
    del sys.path[0]  # the current folder, as Python 3.11 does

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import hf, parallel, reference
    from ._attach import Erc, attach
    from ._program import find_program
    from .figures._mean_token import mean_token_figures
    from .figures._router_stats import RouterStats
    from .figures._token_figures import token_figures
    from .ops._delta import noise
    from .ops._functional import erc_loss
    from .ops._library import backend
    from .ops._module import ErcLoss
    from .ops._mpi import mpi_rows
    from .parallel import erc_loss_ep

__all__ = [
    "erc_loss",
    "ErcLoss",
    "erc_loss_ep",
    "attach",
    "Erc",
    "RouterStats",
    "token_figures",
    "mpi_rows",
    "mean_token_figures",
    "noise",
    "backend",
    "find_program",
    "reference",
    "hf",
    "parallel",
    "__version__",
]

_FROM = {
    "erc_loss": ".ops._functional",
    "ErcLoss": ".ops._module",
    "erc_loss_ep": ".parallel",
    "attach": "._attach",
    "Erc": "._attach",
    "RouterStats": ".figures._router_stats",
    "mean_token_figures": ".figures._mean_token",
    "token_figures": ".figures._token_figures",
    "mpi_rows": ".ops._mpi",
    "noise": ".ops._delta",
    "backend": ".ops._library",
    "find_program": "._program",
}
_MODULES = ("reference", "hf", "parallel")


def _need_torch() -> None:
    try:
        import torch
    except ImportError as error:
        raise ImportError("couplet needs PyTorch 2.4 or newer: pip install torch") from error
    numbers = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    if numbers < (2, 4):
        raise ImportError(f"couplet needs PyTorch 2.4 or newer, this is {torch.__version__}: pip install -U torch")


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would take a misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name not in _FROM and name not in _MODULES:
            raise AttributeError(f"module 'couplet' has no attribute {name!r}")
        _need_torch()
        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        value = globals()[name] = getattr(importlib.import_module(_FROM[name], __name__), name)
        return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


# The name of the module that `python -m` starts, or "". While Python looks for the module, sys.argv[0] is "-m". The
# modules listed below do not need PyTorch.
_started = sys.orig_argv[sys.orig_argv.index("-m") + 1] if sys.argv[:1] == ["-m"] else ""
if _started not in ("couplet.compare", "couplet.export", "couplet.plot"):
    try:  # registers torch.ops.couplet, as a program that loads an exported graph expects
        _need_torch()
        from .ops._functional import erc_loss  # noqa: F401
    except ImportError as _error:
        if _started.startswith("couplet."):  # prints a sentence instead of a traceback
            print(_error, file=sys.stderr)
            sys.exit(2)
