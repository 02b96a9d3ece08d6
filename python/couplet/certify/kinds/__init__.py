"""The list of all kinds of loss that can be judged."""

from __future__ import annotations

from typing import Dict

from .._import import CannotJudge
from .._kind import Kind
from . import balance, bias, erc, experts, logits, rows

_COUPLING = (erc.KIND, erc.LATENT_KIND)
_ALL = (*_COUPLING, *balance.KINDS, *logits.Z, *bias.KINDS, *rows.KINDS, *experts.KINDS, *logits.VARIANCE, experts.AOE)
KINDS: Dict[str, Kind] = {kind.name: kind for kind in _ALL}


def kind_of(name: str) -> Kind:
    """Returns the kind of this name. Raises CannotJudge if the name is unknown."""
    if name not in KINDS:
        raise CannotJudge(f"there is no kind of loss {name}: {', '.join(KINDS)}")
    return KINDS[name]
