"""What the losses share that turn the rows of a router apart."""

from __future__ import annotations

from typing import Dict, List

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, generator
from ._layers import ONE, SUMMED


def gram(x: Case, has: Has, unit_rows: bool) -> Tensor:
    """R R^T - I [L,n,n], of rows of length 1 or as they are."""
    R: Tensor = x.router
    if has("rows_normalised") or unit_rows and not has("rows_not_normalised"):
        length = R.norm(dim=-2 if has("columns_normalised") else -1, keepdim=True)
        R = R / (length.detach() if has("length_detached") else length)
    if has("of_columns"):
        return R.transpose(-1, -2) @ R - torch.eye(R.shape[-1], dtype=R.dtype)
    G = R @ R.transpose(-1, -2)
    one = torch.eye(G.shape[-1], dtype=G.dtype)
    E = G if has("identity_left_out") else G * (1 - one) if has("diagonal_left_out") else G - one
    return E.triu() if has("pairs_once") else E


def squares(E: Tensor, has: Has) -> Tensor:
    size = E.abs() if has("not_squared") else E**2
    return size.sum((-1, -2)).sqrt() if has("root") else size.sum((-1, -2))


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)
    return {
        "wide": Case(router=torch.randn(2, 6, 20, generator=g) * 0.3, coefficient=0.4),
        "narrow": Case(router=torch.randn(1, 9, 5, generator=g), coefficient=0.01),
    }


FAULTS = {
    fault.key: fault
    for fault in (
        Fault("rows_normalised", "the rows are divided by their lengths", "use the rows as they are"),
        Fault("rows_not_normalised", "the rows are not divided by their lengths", "F.normalize(router, dim=-1)"),
        Fault("columns_normalised", "columns are divided by their lengths, not rows", "F.normalize(router, dim=-1)"),
        Fault("length_detached", "the lengths of rows have no gradient", "no detach() on the norms"),
        Fault("identity_left_out", "the identity is not taken off", "(R @ R.T - torch.eye(n))"),
        Fault("diagonal_left_out", "the diagonal is left out", "(R @ R.T - torch.eye(n)), with its diagonal"),
        Fault("pairs_once", "each pair of rows is counted once, not twice", "sum over all n^2 entries, no triu()"),
        Fault("of_columns", "the product is R^T R, of columns", "R @ R.T, of the rows of R [n, d]"),
        Fault("not_squared", "absolute values in place of squares", "square the entries"),
        Fault("squared", "squares in place of absolute values", "take the absolute value of the entries"),
        Fault("root", "the Frobenius norm is not squared", "sum the squares, without a root"),
        Fault(
            "frobenius",
            "the Frobenius norm in place of the sum of absolute values",
            "take the absolute value of the entries",
        ),
        Fault("summed", "entries are summed, not averaged", "divide by n^2"),
        Fault("averaged", "entries are averaged, not summed", "sum them"),
        Fault("over_pairs", "the sum is divided by n (n - 1)", "divide by n^2"),
    )
}


def faults(*keys: str) -> List[Fault]:
    """Those of these names, and those of layers."""
    return [*(FAULTS[key] for key in keys), SUMMED, *ONE]


COMMON = ("identity_left_out", "diagonal_left_out", "pairs_once", "of_columns")
_NAMES = {
    "router": ("router", "R", "router_weight", "gate", "W"),
    "coefficient": ("coefficient", "coef", "weight", "lambda_", "orth_weight"),
}
GIVEN = (_NAMES, cases, frozenset({"router"}), ("router",))
