"""Couplet for PyTorch: the expert-router coupling loss (ERC) of Mixture-of-Experts models.

    loss = couplet.erc_loss(router, w_gate, alpha=1.0, seed=seed, step=step, layer=layer)
    erc = couplet.hf.attach(model)            # Transformers: loss = out.loss + erc.loss()
    loss = couplet.erc_loss_ep(router, local_w_gate, group=group)
    python -m couplet.certify my_module:my_loss

See docs/pytorch.md of the project."""
try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("couplet needs PyTorch 2.4 or newer: pip install torch") from error

from . import reference
from ._door import erc_loss
from ._library import version as _version
from .parallel import erc_loss_ep

__version__ = _version()
__all__ = ["erc_loss", "erc_loss_ep", "reference", "hf", "__version__"]


def __getattr__(name: str):
    if name == "hf":  # not before it is asked for
        import importlib
        return importlib.import_module(".hf", __name__)
    raise AttributeError(f"module 'couplet' has no attribute {name!r}")
