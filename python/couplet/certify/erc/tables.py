"""Everything about a dump that hypotheses share, so that each of them costs few operations: the norms M, and for the
numbers c of hypothesis.py the products that tell how far their gradients lie from the dump's.

Names:  X_i the proxies of the variant, R~ or, without noise, R; A_ij = X_i W^j [D] of its matrices. Tables are by expert
        j first, then row i: M[j,i].
Use:    with dW_g^j = sum_i c_ij A_ij (outer) X_i,
            |dW_g^j - got^j|^2 = c_j^T gram_j c_j - 2 c_j . got_j + |got^j|^2.
Exact:  to about 1e-8 of the norms, from the cancellation in that."""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from .dump import ErcDump


class Tables:
    """Of one kind of M that an implementation may have computed: of these matrices, with noise or `quiet`."""

    def __init__(self, dump: ErcDump, uses: Tuple[bool, bool], quiet: bool):
        n, d = dump.n, dump.d
        self.dump, self.quiet, self.full = dump, quiet, False
        self.uses = uses
        self.X = dump.R if quiet or dump.delta is None else dump.R * dump.delta
        self.x_norm = self.X.norm(dim=1)
        self.w_norm = torch.zeros(n, dtype=torch.float64)  # |W^j|
        square = torch.zeros(n, n, dtype=torch.float64)
        for j in range(n):
            for W in self.matrices(dump.weights, j):
                self.w_norm[j] += vector_norm(W) ** 2
                square[j] += vector_norm(self.X @ W.T, dim=1) ** 2
        self.w_norm = self.w_norm.sqrt()
        self.M = square.sqrt()
        # Of A_ij, for numbers with a relative error of 1: the rounding of X and W touches each product, and its part
        # does not shrink where they cancel.
        self.error = (square + (self.w_norm[:, None] * self.x_norm).square() / d).sqrt()

    def matrices(self, halves: Sequence[object], j: int) -> List[Tensor]:
        """Those of expert j that play a part in M."""
        return [half[j].double() for half, used in zip(halves, self.uses) if used and isinstance(half, Tensor)]

    def fill(self) -> None:
        """V [j,i,d] = A_ij W^j; gram [j,i,k] = (A_ij . A_kj) (X_i . X_k); got [j,i] = A_ij^T got^j X_i."""
        if self.full:
            return
        n, d, dump = self.dump.n, self.dump.d, self.dump
        XX = self.X @ self.X.T
        self.V, self.gram, self.got = (
            torch.zeros(*shape, dtype=torch.float64) for shape in ((n, n, d), (n, n, n), (n, n))
        )
        for j in range(n):
            for half, used in enumerate(self.uses):
                if not used:
                    continue
                W, G = dump.weights[half], dump.grads[half]
                assert W is not None
                A = self.X @ W[j].double().T
                self.V[j] += A @ W[j].double()
                self.gram[j] += A @ A.T * XX
                if G is not None:
                    self.got[j] += (A * (self.X @ G[j].double().T)).sum(1)
        self.got_square = sum(
            float(vector_norm(one, dtype=torch.float64)) ** 2 for G in dump.grads if G is not None for one in G
        )
        self.full = True

    def confirm(self, c: Tensor) -> List[Tuple[float, float]]:
        """Of each half the norm of the gradients of c [j,i], and their distance from the dump's, number by number."""
        found = []
        for W, G, used in zip(self.dump.weights, self.dump.grads, self.uses):
            size = away = 0.0
            for j in range(self.dump.n):
                made = torch.zeros((), dtype=torch.float64)
                if used and W is not None:
                    made = (c[j][:, None] * (self.X @ W[j].double().T)).T @ self.X
                size += float(vector_norm(made)) ** 2
                away += float(vector_norm(made if G is None else made - G[j])) ** 2
            found.append((size**0.5, away**0.5))
        return found


class AllTables:
    """Of a dump, by the faults that change which M it is."""

    def __init__(self, dump: ErcDump):
        self.dump = dump
        self.known: dict[Tuple[Tuple[bool, bool], bool], Tables] = {}

    def of(self, faults: frozenset[str]) -> Tables:
        uses = ("up_for_gate" not in faults, bool(faults & {"merged", "up_for_gate"}))
        quiet = "noise_left_out" in faults
        if (uses, quiet) not in self.known:
            self.known[uses, quiet] = Tables(self.dump, uses, quiet)
        return self.known[uses, quiet]
