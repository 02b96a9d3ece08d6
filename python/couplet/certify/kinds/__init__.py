"""Every kind of loss that can be judged, once."""

from __future__ import annotations

from typing import Dict

from .._kind import Kind
from . import (
    aoe_scores,
    bias_update,
    bias_update_centred,
    bias_update_proportional,
    expert_orthogonality,
    expert_orthogonality_span,
    gate_weights,
    load_balancing_deepseek,
    load_balancing_global,
    load_balancing_mixtral,
    load_balancing_olmoe,
    load_balancing_switch,
    orthogonality,
    score_variance,
    simbal,
    z_loss,
)

KINDS: Dict[str, Kind] = {
    kind.name: kind
    for kind in (
        load_balancing_switch.KIND,
        load_balancing_mixtral.KIND,
        load_balancing_olmoe.KIND,
        load_balancing_deepseek.KIND,
        load_balancing_global.KIND,
        *z_loss.KINDS,
        bias_update.KIND,
        bias_update_centred.KIND,
        bias_update_proportional.KIND,
        gate_weights.KIND,
        *orthogonality.KINDS,
        simbal.KIND,
        expert_orthogonality.KIND,
        expert_orthogonality_span.KIND,
        *score_variance.KINDS,
        aoe_scores.KIND,
    )
}
