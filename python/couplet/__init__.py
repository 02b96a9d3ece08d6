"""Couplet for PyTorch: the expert-router coupling loss (ERC) of Mixture-of-Experts models.

    loss = couplet.erc_loss(router, w_gate, alpha=1.0, seed=seed, step=step, layer=layer)
    erc = couplet.hf.attach(model)            # Transformers: loss = out.loss + erc.loss()
    loss = couplet.erc_loss_ep(router, local_w_gate, group=group)
    python -m couplet.certify my_module:my_loss
    python -m couplet.plot FIGURES.json --out DIR

Importing the package registers its operator with PyTorch. couplet.plot needs neither PyTorch nor the C
library; where they are missing, the first use of a name says so.
See docs/pytorch.md of the project."""
import importlib

__all__ = ["erc_loss", "erc_loss_ep", "reference", "hf", "__version__"]

_FROM = {"erc_loss": "._door", "erc_loss_ep": ".parallel", "__version__": "._library"}
_MODULES = ("reference", "hf", "parallel")


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError("couplet needs PyTorch 2.4 or newer: pip install torch") from error


def __getattr__(name: str):
    if name not in _FROM and name not in _MODULES:
        raise AttributeError(f"module 'couplet' has no attribute {name!r}")
    if name != "__version__":
        _need_torch()
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    module = importlib.import_module(_FROM[name], __name__)
    value = globals()[name] = module.version() if name == "__version__" else getattr(module, name)
    return value


def __dir__():
    return sorted({*globals(), *__all__, "parallel"})


try:  # registers torch.ops.couplet, as a program that loads an exported graph expects
    from ._door import erc_loss  # noqa: E402,F401
except ImportError:
    pass
