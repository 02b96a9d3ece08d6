"""Counts of experts that tie, fitted to the outputs that were given.

An implementation may send a token to any of the experts that tie for its last places. Outputs are affine in the counts,
so that the counts are the solution of a least-squares problem (conjugate gradients; the products with the matrix and
its transpose are one evaluation each), cut to what the ties allow."""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Optional, Tuple

import torch
from torch import Tensor

from ._evaluate import UNIT, outputs
from ._kind import Case, Kind, Outputs
from .kinds._balance import pick

STEPS = 60
TURNS, NEARER = 60, 0.98
ROUNDED, FINER = (
    64.0,
    16.0,
)  # rounding errors of a norm that are left at first, and the part of them that is left at last
SMALL = 1e-16


def _chosen(x: Case, K: int) -> Tuple[Tensor, Tensor]:
    """Where the tokens of x.logits go, and which of these experts tie; [L,T,n]."""
    chosen = x.once(("chosen", K), lambda: pick(x.logits.double(), K, x.tolerance or 0.0))
    return chosen, (chosen > 0) & (chosen < 1)


def ties(x: Case) -> Tensor:
    """Experts that tie for the last of K places or for the first, [L,T,n]."""
    return _chosen(x, x.top_k)[1] | _chosen(x, 1)[1]


def room(x: Case, groups: int) -> Optional[Tuple[Tensor, Tensor]]:
    """How far the counts [L,A,n] of x.logits may move down and up, those of first choices too where a part of the tokens
    is held (_judge.py, untied); None: nothing ties."""
    if x.logits is None or x.logits.dim() != 3 or not x.top_k or x.indices is not None:
        return None
    L, T, n = x.logits.shape
    found: List[Tuple[Tensor, Tensor]] = []
    for K in {x.top_k, 1} if x.held is not None else {x.top_k}:
        chosen, tied = _chosen(x, K)
        if x.mask is not None:
            tied = tied & x.mask.bool().view(1, T, 1)
        if tied.any():
            many, share = tied.double().view(L, groups, -1, n), chosen.view(L, groups, -1, n)
            found.append((-(many * share).sum(2), (many * (1 - share)).sum(2)))
    if not found:
        return None
    return torch.stack([one for one, _ in found]).amin(0), torch.stack([one for _, one in found]).amax(0)


def within(shift: Tensor, least: Tensor, most: Tensor) -> Tensor:
    """The nearest within the bounds whose sum over experts is 0, found by halving the number that is added to all. A
    fit to outputs that do not depend on the counts is as large as it likes: it is cut first, so that halving ends."""
    reach = (most - least).sum(-1, keepdim=True)
    shift = shift.clamp(-reach, reach)
    high = reach + shift.abs().amax(-1, keepdim=True)
    low = -high
    for _ in range(80):
        middle = (low + high) / 2
        many = torch.minimum(torch.maximum(shift + middle, least), most).sum(-1, keepdim=True) > 0
        low, high = torch.where(many, low, middle), torch.where(many, middle, high)
    return torch.minimum(torch.maximum(shift + low, least), most)


class _Fit:
    """Outputs as a function of the shift of the counts, each divided by its size."""

    def __init__(self, kind: Kind, x: Case, faults: Mapping[str, Optional[float]], got: Outputs, free: Tensor):
        self.free = free
        self.shift = torch.zeros_like(free).requires_grad_()
        right = outputs(kind, x.but(shift=self.shift), faults, graph=True)
        self.size = {
            name: 1 / max(float(value.detach().norm()), float(got[name].double().norm()), 1e-300)
            for name, value in right.items()
            if name in got
        }
        if self.size:
            self.right = self.flat(right)
            self.goal = self.flat({name: got[name].double() for name in self.size}) - self.right.detach()
            self.weight = torch.zeros_like(self.goal).requires_grad_()
            self.slope = self.of(self.right, self.shift, self.weight, graph=True)

    def flat(self, out: Outputs) -> Tensor:
        return torch.cat([(out[name] * size).flatten() for name, size in self.size.items()])

    def of(self, value: Tensor, leaf: Tensor, weight: Tensor, graph: bool = False) -> Tensor:
        """The gradient of their product."""
        grad = (
            torch.autograd.grad(value, leaf, weight, retain_graph=True, create_graph=graph, allow_unused=True)[0]
            if (value.requires_grad)
            else None
        )
        return torch.zeros_like(leaf) if grad is None else grad

    def forward(self, v: Tensor) -> Tensor:
        return self.of(self.slope, self.weight, v)

    def backward(self, w: Tensor) -> Tensor:
        v = self.of(self.right, self.shift, w) * self.free  # the number of assignments of a group stays
        return v - self.free * v.sum(-1, keepdim=True) / self.free.sum(-1, keepdim=True).clamp(min=1)

    def solved(self, shift: Tensor, rest: Tensor, rounded: float) -> Tensor:
        """The nearest to `shift` that leaves nothing of `rest`, by conjugate gradients."""
        step = gradient = self.backward(rest)
        square = first = float((gradient**2).sum())
        for _ in range(STEPS):
            if float(rest.norm()) <= rounded or square <= max(SMALL, (rounded / 100) ** 2) * first:
                break  # what is left is rounding, and would be fitted by counts far away
            along = self.forward(step)
            length = square / max(float(along @ along), 1e-300)
            shift, rest = shift + length * step, rest - length * along
            gradient = self.backward(rest)
            before, square = square, float((gradient**2).sum())
            step = gradient + square / before * step
        return shift


def fitted(
    kind: Kind, x: Case, faults: Mapping[str, Optional[float]], got: Outputs, least: Tensor, most: Tensor, unit: float
) -> Tensor:
    """The shift [L,A,n] within these bounds that brings the outputs near to `got`, computed with rounding errors
    `unit`: what fits and what the ties allow, in turn, until one is both or the two come no nearer."""
    fit = _Fit(kind, x, faults, got, (most > least).double())
    shift = torch.zeros_like(least)
    if not fit.size:
        return shift
    rounded = max(min(ROUNDED * unit, 0.01), *(UNIT[got[name].dtype] for name in fit.size))
    shift, left = _turns(fit, shift, rounded, least, most)
    return _turns(fit, shift, rounded / FINER, least, most)[0] if left <= rounded else shift


def _turns(fit: _Fit, shift: Tensor, rounded: float, least: Tensor, most: Tensor) -> Tuple[Tensor, float]:
    """The nearest shift that was found, and what it leaves."""
    rest = fit.goal - fit.forward(shift)
    found, left = shift, float(rest.norm())
    for _ in range(TURNS):
        shift = within(fit.solved(shift, rest, rounded), least, most)
        rest = fit.goal - fit.forward(shift)
        before, now = left, float(rest.norm())
        if now < left:
            found, left = shift, now
        if now <= rounded or now > NEARER * before:
            break
    return found, left


def by_factor(
    kind: Kind, x: Case, faults: Mapping[str, Optional[float]], got: Outputs, free: Tensor, rounded: float
) -> Tuple[float, float]:
    """The factor with which counts of experts that are `free` explain `got`, whatever the ties allow, and the share that
    they leave: a least-squares fit, since c (y + A s) is affine in c and c s."""
    fit = _Fit(kind, x, faults, got, free)

    def left(v: Tensor) -> Tensor:
        return v - fit.forward(fit.solved(torch.zeros_like(fit.free), v, rounded)) if fit.size else v

    given, right = left(fit.goal + fit.right.detach()), left(fit.right.detach())
    factor = float(given @ right) / max(float(right @ right), 1e-300)
    return factor, float((given - factor * right).norm()) / max(float((fit.goal + fit.right.detach()).norm()), 1e-300)


def least_away(
    kind: Kind,
    x: Case,
    faults: Mapping[str, Optional[float]],
    got: Outputs,
    factors: Optional[Tuple[float, float]],
    limits: Optional[Tuple[Tensor, Tensor]],
) -> Dict[str, float]:
    """For each output a distance from `got` that no counts within `limits` can go below, times `factors` of loss and
    gradients or, without them, times any number. Along the direction in which an output lies off, the counts move it
    by no more than each allows by itself."""
    shift = torch.zeros_like(limits[0]).requires_grad_() if limits else None
    out = outputs(kind, x.but(shift=shift), faults, graph=limits is not None)

    def reach(value: Tensor) -> float:
        """How far the counts can raise it."""
        if limits is None or shift is None or not value.requires_grad:
            return 0.0
        grad = torch.autograd.grad(value, shift, retain_graph=True, allow_unused=True)[0]
        if grad is None:
            return 0.0
        grad = grad - grad.mean(-1, keepdim=True)  # the number of assignments of a group stays
        return float(torch.maximum(grad * limits[0], grad * limits[1]).sum())

    most = 1.0
    if not factors:
        loss = out.pop("loss")
        least = abs(float(loss.detach())) - max(reach(loss), reach(-loss))
        most = abs(float(got["loss"])) / least if least > 0 else math.inf
    found = {}
    for name in [one for one in out if one in got]:
        right, given = out[name].detach(), got[name].double()
        nearest = float((given * right).sum() / (right**2).sum().clamp(min=1e-300))
        factor = factors[name.startswith("d_")] if factors else nearest
        rest = given - factor * right
        found[name] = float(rest.norm())
        along = (out[name] * (rest / max(found[name], 1e-300))).sum()
        moved = reach(along * factor) if factors else max(reach(along), reach(-along))
        found[name] -= most * moved if moved else 0.0
    return found
