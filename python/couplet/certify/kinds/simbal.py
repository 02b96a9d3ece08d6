"""SimBal: the absolute entries of R R^T - I."""

from __future__ import annotations

from torch import Tensor

from .._kind import Case, Has, Kind
from ._layers import over_layers
from ._rows import COMMON, GIVEN, faults, gram


def reference(x: Case, has: Has) -> Tensor:
    E = gram(x, has, unit_rows=False)
    n = E.shape[-1]
    size = E**2 if has("squared") or has("frobenius") else E.abs()
    total = size.sum((-1, -2)).sqrt() if has("frobenius") else size.sum((-1, -2))
    return over_layers(x, has, total / (n**2 if has("averaged") else 1))


KIND = Kind(
    "simbal",
    "mean over layers of the sum of the n^2 absolute entries of R R^T - I",
    "SimBal (arXiv 2506.14038)",
    reference,
    faults(*COMMON, "rows_normalised", "squared", "frobenius", "averaged"),
    *GIVEN,
    balance="0 of orthonormal rows",
    collapse="n (n - 1) of equal rows of length 1",
    range="0 and more",
    scale="grows with n^2 and |R|^2",
)
