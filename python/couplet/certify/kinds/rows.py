"""Losses that make the rows of a router orthogonal: squared or absolute entries of R R^T - I."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import Tensor

from .._kind import Case, Has, Kind, generator
from .logits import over_layers


def gram(x: Case, has: Has, unit_rows: bool) -> Tensor:
    """Returns R R^T - I, [L,n,n], of rows that are divided by their lengths if `unit_rows`."""
    R: Tensor = x.router
    if has("rows_normalised") or unit_rows and not has("rows_not_normalised"):
        length = R.norm(dim=-2 if has("columns_normalised") else -1, keepdim=True)
        R = R / (length.detach() if has("length_detached") else length)
    if has("of_columns"):
        R = R.transpose(-1, -2)
    G = R @ R.transpose(-1, -2)
    one = torch.eye(G.shape[-1], dtype=G.dtype)
    E = G if has("identity_left_out") else G * (1 - one) if has("diagonal_left_out") else G - one
    return E.triu() if has("pairs_once") else E


def loss_of(unit_rows: bool, squares: bool, mean: bool) -> Any:
    """Returns a reference: the mean or sum of squared or absolute entries of R R^T - I, averaged over layers."""

    def reference(x: Case, has: Has) -> Tensor:
        E = gram(x, has, unit_rows)
        n, is_square = x.router.shape[-2], has("squared") or has("frobenius") or squares and not has("not_squared")
        total = (E**2 if is_square else E.abs()).sum((-1, -2))
        total = total.sqrt() if has("root") or has("frobenius") else total
        by_mean = has("averaged") or mean and not has("summed")
        return over_layers(x, has, total / (n * (n - 1) if has("over_pairs") else n**2 if by_mean else 1))

    return reference


def cases(seed: int, n: int = 0) -> Dict[str, Case]:
    g = generator(seed)
    return {
        "wide": Case(router=torch.randn(2, 6, 20, generator=g) * 0.3, coefficient=0.4),
        "narrow": Case(router=torch.randn(1, 9, 5, generator=g), coefficient=0.01),
    }


_PLACE = (("router", "coefficient"), cases, ("router",), ("router",))
KINDS = (
    Kind("router-orthogonality", loss_of(unit_rows=True, squares=True, mean=True), *_PLACE),
    Kind("router-orthogonality-plain", loss_of(unit_rows=False, squares=True, mean=False), *_PLACE),
    Kind("simbal", loss_of(unit_rows=False, squares=False, mean=False), *_PLACE),
)
