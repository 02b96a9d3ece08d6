"""Losses that turn the rows of a router apart: the squared entries of R R^T - I, rows normalised or not."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has, Kind
from ._layers import over_layers
from ._rows import COMMON, GIVEN, faults, gram, squares


def normalised(x: Case, has: Has) -> Tensor:
    E = gram(x, has, unit_rows=True)
    n = E.shape[-1]
    return over_layers(x, has, squares(E, has) / (1 if has("summed") else n * (n - 1) if has("over_pairs") else n**2))


def plain(x: Case, has: Has) -> Tensor:
    E = gram(x, has, unit_rows=False)
    return over_layers(x, has, squares(E, has) / (E.shape[-1] ** 2 if has("averaged") else 1))


KINDS = (
    Kind(
        "router-orthogonality",
        "mean over layers of the mean of the n^2 entries of (Q Q^T - I)^2, Q the rows of R divided by their lengths",
        "docs/method.md, the router orthogonality of the paper's ablation",
        normalised,
        faults(
            "identity_left_out",
            "pairs_once",
            "of_columns",
            "rows_not_normalised",
            "columns_normalised",
            "length_detached",
            "not_squared",
            "root",
            "summed",
            "over_pairs",
        ),
        *GIVEN,
        balance="0 of orthogonal rows",
        collapse="(n - 1) / n of equal rows",
        range="0 to (n - 1) / n",
        scale="lengths of rows and n are divided out",
        code="src/model/aux_losses.c",
    ),
    Kind(
        "router-orthogonality-plain",
        "mean over layers of |R R^T - I|_F^2",
        "orthogonal regularisation in general; no one paper",
        plain,
        faults(*COMMON, "rows_normalised", "not_squared", "root", "averaged"),
        *GIVEN,
        balance="0 of orthonormal rows",
        collapse="n (n - 1) of equal rows of length 1",
        range="0 and more",
        scale="grows with n^2 and |R|^4",
    ),
)
