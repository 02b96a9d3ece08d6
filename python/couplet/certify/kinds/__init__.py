"""Every kind of loss that can be judged, once."""

from __future__ import annotations

from typing import Dict

from .._kind import Kind
from . import balance, bias, erc, experts, logits, rows

KINDS: Dict[str, Kind] = {
    kind.name: kind
    for kind in (
        erc.KIND,
        *balance.KINDS,
        *logits.Z,
        *bias.KINDS,
        *rows.KINDS,
        *experts.KINDS,
        *logits.VARIANCE,
        experts.AOE,
    )
}
