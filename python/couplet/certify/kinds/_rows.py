"""What the losses share that turn the rows of a router apart."""
from __future__ import annotations

from typing import Dict

import torch
from torch import Tensor

from .._kind import Case, Fault, Has, Kind, generator


def gram(x: Case, has: Has, unit_rows: bool) -> Tensor:
    """R R^T - I [L,n,n], of rows of length 1 or as they are."""
    R: Tensor = x.router
    if has("rows_normalised") or unit_rows and not has("rows_not_normalised"):
        R = R / R.norm(dim=-1, keepdim=True)
    if has("of_columns"):
        return R.transpose(-1, -2) @ R - torch.eye(R.shape[-1], dtype=R.dtype)
    G = R @ R.transpose(-1, -2)
    one = torch.eye(G.shape[-1], dtype=G.dtype)
    return G if has("identity_left_out") else G * (1 - one) if has("diagonal_left_out") else G - one


def over_layers(x: Case, has: Has, each: Tensor) -> Tensor:
    each = each[-1:] if has("last_layer") else each
    return x.times * (each.sum() if has("layers_summed") else each.mean())


def squares(E: Tensor, has: Has) -> Tensor:
    size = E.abs() if has("not_squared") else E**2
    return size.sum((-1, -2)).sqrt() if has("root") else size.sum((-1, -2))


def cases(seed: int) -> Dict[str, Case]:
    g = generator(seed)
    return {"wide": Case(router=torch.randn(2, 6, 20, generator=g) * 0.3, coefficient=0.4),
            "narrow": Case(router=torch.randn(1, 9, 5, generator=g), coefficient=0.01)}


def fault(key: str) -> Fault:
    return Fault(key, *{
        "rows_normalised": ("the rows are divided by their lengths", "use the rows as they are"),
        "rows_not_normalised": ("the rows are not divided by their lengths", "F.normalize(router, dim=-1)"),
        "identity_left_out": ("the identity is not taken off", "(R @ R.T - torch.eye(n))"),
        "diagonal_left_out": ("the diagonal is left out", "(R @ R.T - torch.eye(n)), with its diagonal"),
        "of_columns": ("the product is R^T R, of columns", "R @ R.T, of the rows of R [n, d]"),
        "not_squared": ("absolute values in place of squares", "square the entries"),
        "squared": ("squares in place of absolute values", "take the absolute value of the entries"),
        "root": ("the Frobenius norm is not squared", "sum the squares, without a root"),
        "summed": ("entries are summed, not averaged", "divide by n^2"),
        "averaged": ("entries are averaged, not summed", "sum them"),
        "layers_summed": ("the layers' losses are summed", "take their mean"),
        "last_layer": ("only the last layer has a loss", "collect the rows of every layer's router"),
        "over_pairs": ("the sum is divided by n (n - 1)", "divide by n^2")}[key],
                 same=(lambda x: len(x.router) == 1) if "layer" in key else None)


LAYERS = ("layers_summed", "last_layer")
COMMON = ("identity_left_out", "diagonal_left_out", "of_columns", *LAYERS)
_NAMES = {"router": ("router", "R", "router_weight", "gate", "W"),
          "coefficient": ("coefficient", "coef", "weight", "lambda_", "orth_weight")}
GIVEN = (_NAMES, cases, frozenset({"router"}), ("router",))
