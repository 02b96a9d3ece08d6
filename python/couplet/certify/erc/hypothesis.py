"""Loss and gradients under a set of faults, as numbers c. Source of the right ones: docs/method.md 3.

Every implementation whose loss is a function of the norms M[i,j] = |A_ij|, where A_ij = R~_i W_g^j, has the gradients

    dW_g^j = sum_i c_ij A_ij (outer) R~_i      dR~_i = sum_j c_ij A_ij W_g^j

and differs from the right one in the numbers c alone, and in what is done outside of M: which matrices, which rows, a
factor, a gradient that is cut off.

Names:  F is what hinges compare, M or its square; u the coefficient of one hinge, weight / (n^2 layers) unless a fault
        changes it; all matrices by expert j first, [j,i]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Tuple

import torch
from torch import Tensor

from .dump import ErcDump
from .faults import Faults
from .tables import Tables

TIE = 1e-9  # relative; sums of doubles in another order differ by less
SHORT = 2.0**-8  # one step of bf16, relative


@dataclass(frozen=True)
class Grade:
    """How exact an implementation is taken to be."""

    unit: float  # relative error of the numbers of a product
    M_unit: float  # of M itself, once more
    values: float  # what passes of loss and M, relative
    gradients: float  # and of gradients
    M_step: float  # relative error of the dump's M beside the one its hinges saw
    rounded: bool


F32 = Grade(2e-6, 2e-6, 1e-4, 1e-4, 4e-7, False)
AUTOCAST = Grade(2.5e-3, 1e-4, 5e-3, 1e-2, 4e-7, True)  # products in bf16
BF16 = Grade(2.5e-3, 1.5e-3, 1e-2, 1e-2, SHORT, True)  # everything in bf16


def M_error(t: Tables, grade: Grade) -> Tensor:
    """Of the norm of A_ij, along which lies a share of its error."""
    return torch.hypot(grade.unit * t.error / math.sqrt(t.dump.D), grade.M_unit * t.M)


def coefficient(dump: ErcDump, faults: Faults) -> float:
    """u under these faults."""
    n, u = dump.n, dump.weight / (dump.n**2 * dump.layers)
    factors = {
        "zero": 0.0,
        "loss_sign": -1.0,
        "pairs_mean": n / max(n - 1, 1),
        "rows_mean": n,
        "no_mean": n * n,
        "weight_left_out": 1 / dump.weight,
        "weight_twice": dump.weight,
        "layers_sum": dump.layers,
        "layers_twice": 1 / dump.layers,
    }
    return u * math.prod(value for key, value in factors.items() if key in faults)


@dataclass
class Hinges:
    """Those that may go either way, [h]: M[i,j] against the diagonal k, which is i or j. Their share of the gradient,
    in [0,1], is fitted."""

    i: Tensor
    j: Tensor
    k: Tensor
    size: Tensor  # what one adds to dL/dF at [i,j]
    diagonal: Tensor  # and at [k,k]
    share: Tensor
    exact: Tensor  # F[i,j] is the bound, not only near it


class Terms:
    """Of a set of inner faults, for u = 1: the loss and its noise, c, the hinges that may go either way."""

    def __init__(self, t: Tables, faults: Faults, grade: Grade):
        self.t, self.faults, self.grade = t, faults, grade
        squared = "squared" in faults
        self.alpha = 1.0 if "alpha_ignored" in faults else t.dump.alpha
        self.sign = -1.0 if "hinge_sign" in faults else 1.0
        self.F = t.M.square() if squared else t.M
        error = M_error(t, grade)
        self.F_error = 2 * t.M * error if squared else error
        self.slope = torch.full_like(t.M, 2.0) if squared else 1 / t.M  # dF/dM over M
        self.slope = torch.where(t.M == 0, 0.0, self.slope)
        self.step = SHORT if t.dump.short_M else grade.M_step
        self.M_off, self.M_away = self._M_distance()
        self._sum()

    def given_M(self) -> Tensor:
        assert self.t.dump.M is not None
        return self.t.dump.M if "transposed" in self.faults else self.t.dump.M.T

    def _M_distance(self) -> Tuple[float, float]:
        """Of the dump's M: over what may pass, and relative."""
        if self.t.dump.M is None:
            return 0.0, 0.0
        away, size = float((self.given_M() - self.F).norm()), float(self.F.norm())
        if away == 0:
            return 0.0, 0.0
        passes = self.grade.values * size + 4 * float(self.F_error.norm())
        return away / passes if passes else math.inf, away / size if size else math.inf

    def seen(self) -> Tensor:
        """F as the implementation saw it, where it says so. What lies further from the F at hand than rounding comes
        from another one, and says nothing of the hinges of this."""
        if self.t.dump.M is None:
            return self.F
        given = self.given_M()
        rounding = 8 * self.F_error + 4 * self.step * self.F
        return torch.where((given - self.F).abs() <= rounding, given, self.F)

    def _sum(self) -> None:
        n, own = self.t.dump.n, self.F.diagonal()
        off = ~torch.eye(n, dtype=torch.bool)
        seen, self.loss, self.active = self.seen(), 0.0, 0
        by_F, noise, found = torch.zeros_like(self.F), 0.0, []
        for axis, missing in ((0, "row_missing"), (1, "column_missing")):  # [j,i]: a row's bound is [i,i]
            if missing in self.faults:
                continue
            bound = self.alpha * self._own(self.F, axis)
            over, view = self.sign * (self.F - bound), self.sign * (seen - self.alpha * self._own(seen, axis))
            exact = over.abs() <= TIE * (self.F + bound)
            share = (off & (exact | (view >= 0))).double()
            self.loss += float(over[off].clamp(min=0).sum())
            self.active += int(share.sum())
            by_F += self.sign * share
            if "diagonal_detached" not in self.faults:
                by_F.diagonal().sub_(self.sign * self.alpha * share.sum(axis))
            unsure = off & (exact | (view.abs() <= self._band(seen, axis)))
            noise += float(
                (self.F_error.square() + (self.alpha * self._own(self.F_error, axis)).square())[unsure].sum()
            )
            found.append((axis, unsure, share, exact))
        self._keep_diagonal(own, by_F)
        self.noise = math.sqrt(noise + float((by_F * self.F_error).square().sum()))
        self.c = by_F * self.slope
        self.hinges = self._collected(found)

    def _own(self, value: Tensor, axis: int) -> Tensor:
        """Of [j,i] the diagonal's value at i (axis 0) or at j."""
        own = value.diagonal()
        return (own[None, :] if axis == 0 else own[:, None]).expand_as(value)

    def _band(self, seen: Tensor, axis: int) -> Tensor:
        """How far from its bound a hinge can be and still have been seen on the other side."""
        if self.t.dump.M is not None:
            return self.step * (seen.abs() + self.alpha * self._own(seen, axis).abs())
        return 4 * (self.F_error + self.alpha * self._own(self.F_error, axis))

    def _keep_diagonal(self, own: Tensor, by_F: Tensor) -> None:
        if "diagonal_kept" not in self.faults:
            return
        over = self.sign * (1 - self.alpha) * own
        times = 1 if self.faults & {"row_missing", "column_missing"} else 2
        bound = 0.0 if "diagonal_detached" in self.faults else self.alpha
        self.loss += times * float(over.clamp(min=0).sum())
        by_F.diagonal().add_(times * self.sign * (1 - bound) * (over > 0).double())

    def _collected(self, found: list[Tuple[int, Tensor, Tensor, Tensor]]) -> Hinges:
        parts = []
        for axis, unsure, share, exact in found:
            j, i = unsure.nonzero(as_tuple=True)
            parts.append((i, j, i if axis == 0 else j, share[j, i], exact[j, i]))
        i, j, k, share, exact = (torch.cat(column) for column in zip(*parts))
        size = torch.full((len(i),), self.sign, dtype=torch.float64)
        diagonal = torch.zeros_like(size) if "diagonal_detached" in self.faults else -self.alpha * size
        return Hinges(i, j, k, size, diagonal, share, exact)


class Hypothesis:
    """Terms with a set's own u; c changes as shares are fitted."""

    def __init__(self, terms: Terms, faults: Faults):
        dump = terms.t.dump
        self.terms, self.t, self.dump, self.faults = terms, terms.t, dump, faults
        self.u = coefficient(dump, faults)
        self.loss, self.noise, self.active = terms.loss * self.u, terms.noise * abs(self.u), terms.active
        self.delta = None if terms.t.quiet or "delta_left_out" in faults else dump.delta  # by which dR is multiplied

    def begin(self) -> None:
        """Takes c and hinges of its own, for the gradients."""
        h, u = self.terms.hinges, self.u
        self.c = self.terms.c * u
        self.hinges = Hinges(h.i, h.j, h.k, h.size * u, h.diagonal * u, h.share.clone(), h.exact)

    def multiply(self, factor: float) -> None:
        self.c = self.c * factor
        self.hinges.size, self.hinges.diagonal = self.hinges.size * factor, self.hinges.diagonal * factor
        self.u, self.loss, self.noise = self.u * factor, self.loss * factor, self.noise * abs(factor)

    def dR(self) -> Tensor:
        """[n,d] of c."""
        dX = torch.einsum("ji,jid->id", self.c, self.t.V)
        out = dX.clone() if self.delta is None else dX * self.delta
        if "router_detached" in self.faults:
            out.zero_()
        return out + by_eps(self.dump, dX) if "eps_gradient" in self.faults else out


def by_eps(dump: ErcDump, dX: Tensor) -> Tensor:
    """delta_i = 1 + eps_i z with z free of eps, so that dL/deps_i = dX_i . (R_i (delta_i - 1)) / eps_i, and
    eps_i = |R_i - R_m| / (2 |R_i|) pulls at R_i and at its nearest row m."""
    assert dump.delta is not None
    (near, eps), R, square = dump.nearest, dump.R, dump.R.square().sum(1)
    pull = torch.where(eps > 0, (dX * R * (dump.delta - 1)).sum(1) / eps, 0.0)[:, None]
    along = torch.where(eps > 0, 1 / (4 * eps * square), 0.0)[:, None] * (R - R[near])  # over 2 |R_i| |R_i - R_m|
    own = torch.where(eps > 0, eps / square, 0.0)[:, None] * R
    return (pull * (along - own)).index_add(0, near, -pull * along)
