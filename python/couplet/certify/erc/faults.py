"""What is known to go wrong in implementations of the coupling loss, which faults can stand together, and which can show.

The order is the one in which equally likely faults are named. Names: r = router * delta are the proxies, w the gates
[n,D,d], M [n,n] the norms."""

from __future__ import annotations

from typing import Dict, FrozenSet, Optional, Tuple

from .dump import ErcDump

Faults = FrozenSet[str]

# key: what is wrong, as a clause; how it is mended
FAULTS: Dict[str, Tuple[str, str]] = {
    "zero": (
        "the loss is zero",
        "nothing was computed or added: look for a detach(), eval mode, and what the loss is computed from",
    ),
    "merged": (
        "M is the norm over gate and up together",
        "take the gate alone: of a fused gate_up_proj [n,2D,d] that is gate_up_proj[:, :D, :]",
    ),
    "up_for_gate": (
        "M is that of the up matrices instead of the gates'",
        "take the other half: of a fused gate_up_proj [n,2D,d] the gates are [:, :D, :]",
    ),
    "noise_left_out": ("M is that of the router rows without noise", "multiply first: r = router * delta, and M of r"),
    "squared": (
        "M holds squared norms: the square root is missing",
        "use M = torch.linalg.vector_norm(a, dim=-1), not a.pow(2).sum(-1)",
    ),
    "row_missing": (
        "the row's hinge is missing: M[i,j] is not compared with M[i,i]",
        "add (M - alpha * M.diagonal()[:, None]).clamp(min=0) off the diagonal",
    ),
    "column_missing": (
        "the column's hinge is missing: M[i,j] is not compared with M[j,j]",
        "add (M - alpha * M.diagonal()[None, :]).clamp(min=0) off the diagonal",
    ),
    "hinge_sign": (
        "the hinge has the wrong sign: alpha M[i,i] - M[i,j]",
        "turn it round: (M - alpha * diagonal).clamp(min=0)",
    ),
    "alpha_ignored": ("alpha is ignored: 1 is used", "multiply the diagonal by alpha before it is subtracted"),
    "diagonal_kept": (
        "the diagonal is not masked: i = j is among the pairs",
        "set the hinges' diagonal to 0 before the sum, as with masked_fill(eye, 0)",
    ),
    "diagonal_detached": ("the diagonal M[i,i] is detached: it is not pulled up", "use M.diagonal() without detach()"),
    "loss_sign": ("the loss has the wrong sign", "add it, do not subtract it"),
    "pairs_mean": ("the mean is over n (n - 1) pairs instead of n^2", "divide the sum by n * n: hinges.sum() / n**2"),
    "rows_mean": ("the sum is divided by n instead of n^2", "divide the sum by n * n: hinges.sum() / n**2"),
    "no_mean": ("the sum over pairs is not divided by n^2", "divide the sum by n * n: hinges.sum() / n**2"),
    "weight_left_out": ("the weight is left out", "multiply the loss by its weight, once"),
    "weight_twice": (
        "the weight is applied twice",
        "multiply the loss by its weight in one place only: in the module or in the trainer",
    ),
    "layers_sum": (
        "layers are summed instead of averaged",
        "divide by the number of layers: torch.stack(losses).mean()",
    ),
    "layers_twice": (
        "the loss is divided by the number of layers twice",
        "divide by the number of layers in one place only",
    ),
    "router_detached": (
        "the router gets no gradient",
        "use router.weight itself, not router.weight.detach() or .data, and outside torch.no_grad()",
    ),
    "experts_detached": (
        "the gates get no gradient",
        "use the gates themselves, not detached copies, and outside torch.no_grad()",
    ),
    "delta_left_out": (
        "the factor delta is missing in the router's gradient",
        "let autograd go through r = router * delta; by hand: dR = dr * delta",
    ),
    "eps_gradient": (
        "the gradient also flows through eps into the router",
        "compute eps and delta under torch.no_grad(), from router.detach()",
    ),
    "transposed": (
        "M is transposed: its rows are experts, its columns router rows",
        "index M as [router row, expert]: torch.einsum('id,jkd->ijk', r, w).norm(dim=-1)",
    ),
    "factor": (
        "loss and gradients are the right ones times a number",
        "look for a factor: micro-batches, replicas, layers or a coefficient counted twice or not at all; evaluate "
        "once per optimizer step",
    ),
}
SCALES = {
    "loss_sign",
    "pairs_mean",
    "rows_mean",
    "no_mean",
    "weight_left_out",
    "weight_twice",
    "layers_sum",
    "layers_twice",
}
# M and the loss depend on these alone, but for a factor.
INNER = frozenset(
    {
        "merged",
        "up_for_gate",
        "noise_left_out",
        "squared",
        "row_missing",
        "column_missing",
        "hinge_sign",
        "alpha_ignored",
        "diagonal_kept",
        "diagonal_detached",
        "transposed",
    }
)
EITHER = [
    set(one.split())
    for one in (
        "merged up_for_gate",
        "row_missing column_missing",
        "pairs_mean rows_mean no_mean",
        "weight_left_out weight_twice",
        "layers_sum layers_twice",
        "noise_left_out delta_left_out",
        "noise_left_out eps_gradient",
        "router_detached delta_left_out",
        "router_detached eps_gradient",
        "up_for_gate experts_detached",
    )
]


def can_stand_together(faults: Faults) -> bool:
    if len(faults) > 1 and "zero" in faults or "factor" in faults and faults & SCALES:
        return False
    return all(len(faults & either) < 2 for either in EITHER)


def why_idle(dump: ErcDump, fault: str, others: Faults) -> Optional[str]:
    """Why the fault cannot change a number of this dump beside `others`; None: it can."""
    alpha, turned = (1.0 if "alpha_ignored" in others else dump.alpha), "hinge_sign" in others
    if fault in ("merged", "up_for_gate"):
        return None if dump.weights[1] is not None else "the dump has no W_p"
    if fault in ("noise_left_out", "delta_left_out", "eps_gradient"):
        if dump.delta is None or bool((dump.delta == 1).all()):
            return "the dump has no noise (delta)"
        hidden = fault != "noise_left_out" and others & {"noise_left_out", "router_detached"}
        return "another fault hides it" if hidden else None
    if fault == "alpha_ignored":
        return "alpha is 1" if dump.alpha == 1 else None
    if fault == "diagonal_detached":
        return "alpha is 0" if alpha == 0 else None
    if fault == "diagonal_kept" and turned:
        return "alpha is at most 1: hinges on the diagonal are 0" if alpha <= 1 else None
    if fault == "diagonal_kept":
        return "alpha is 1 or more: hinges on the diagonal are 0" if alpha >= 1 else None
    if fault in ("weight_left_out", "weight_twice"):
        return "weight is 1" if dump.weight == 1 else None
    if fault in ("layers_sum", "layers_twice"):
        return "layers is 1 or absent" if dump.layers == 1 else None
    if fault in ("pairs_mean", "rows_mean", "no_mean"):
        return "n is 1" if dump.n == 1 else None
    if fault == "transposed":
        return None if dump.M is not None else "the dump has no M"
    return None


def is_worth_trying(dump: ErcDump, faults: Faults) -> bool:
    """Whether every fault of the set can show beside the others."""
    return can_stand_together(faults) and not any(why_idle(dump, one, faults - {one}) for one in faults)
