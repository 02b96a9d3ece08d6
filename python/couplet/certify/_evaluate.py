"""The outputs of a hypothesis in float64, and how far rounding may take an implementation from them.

Rounding:   reference and gradient are computed PROBES times with rounding errors made at random (_rounding.py). The
            errors are up to four times as large as the format's; the bound is the largest distance, and a floor of four
            rounding errors. So it holds for other orders of operations too, and knows where numbers cancel.
Ties:       see kinds/_balance.py; the counts of experts that tie are fitted to the outputs that were given."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from ._kind import Case, Has, Kind, Outputs
from ._rounding import MANY, Moved

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}
TF32 = 2.0**-12
PROBES = 6
SPARE = 4.0
SURE = 32.0


def outputs(
    kind: Kind, x: Case, faults: Mapping[str, Optional[float]], graph: bool = False, as_: torch.dtype = torch.float64
) -> Outputs:
    """ "loss", or the outputs of a rule, and "d_NAME" of every input that has a gradient, computed in `as_`. `graph`:
    they can be differentiated. Of tokens that x.held [L,T,1] leaves out gradients are 0. With `router_input` x [L,T,d] the
    gradient is that of the routers, d_logits^T x, of layer l of router `router_of`[l]; 0 where `trained` [R] is False."""
    inputs = dict(x.to(as_).values)
    with_gradient = [name for name in kind.gradients if name in inputs]
    for name in with_gradient:
        inputs[name] = inputs[name].detach().requires_grad_()
    found = kind.reference(Case(**inputs), Has(faults))
    out: Outputs = found if isinstance(found, dict) else {"loss": found}
    if with_gradient:
        out = {**out, **_gradients(out, inputs, with_gradient, graph)}
    if x.held is not None:
        out["d_logits"] = out["d_logits"] * x.held
    if x.router_input is not None and "d_logits" in out:
        each = torch.einsum("ltn,ltd->lnd", out.pop("d_logits"), inputs["router_input"])
        out["d_router"] = torch.zeros_like(inputs["router"]).index_add(0, x.router_of, each)
    if x.trained is not None and "d_router" in out:
        out["d_router"] = out["d_router"] * x.trained.view(-1, 1, 1)
    return out if graph else {name: value.detach() for name, value in out.items()}


def _gradients(out: Outputs, inputs: Dict[str, Any], names: List[str], graph: bool) -> Outputs:
    """Of the loss; of a rule's output y, of sum(y * d_y), d_y among the inputs."""
    scalar = sum(
        ((value if value.dim() == 0 else (value * inputs[f"d_{name}"]).sum()) for name, value in out.items()),
        start=torch.zeros(()),
    )
    leaves = [inputs[name] for name in names]
    if not scalar.requires_grad:
        return {f"d_{name}": torch.zeros_like(leaf) for name, leaf in zip(names, leaves)}
    grads = torch.autograd.grad(scalar, leaves, allow_unused=True, create_graph=graph)
    return {f"d_{name}": torch.zeros_like(leaf) if g is None else g for name, leaf, g in zip(names, leaves, grads)}


def scaled(out: Outputs, loss: float, gradient: float) -> Outputs:
    return {name: value * (gradient if name.startswith("d_") else loss) for name, value in out.items()}


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())


class Bounds:
    """How far from `right`, the outputs under `faults`, an implementation may lie: computed with rounding error `unit`,
    each output stored in its own format. Probes are made when they are needed: a bound only grows with their number."""

    def __init__(
        self,
        kind: Kind,
        x: Case,
        faults: Mapping[str, Optional[float]],
        right: Outputs,
        unit: float,
        stored: Mapping[str, torch.dtype],
    ):
        self.kind, self.x, self.faults, self.right, self.unit = kind, x, faults, right, unit
        self.size = {name: float(value.norm()) for name, value in right.items()}
        store = {name: UNIT[stored[name]] if name in stored else 0.0 for name in right}
        self.least = {name: SPARE * unit * size + 2 * store[name] * size for name, size in self.size.items()}
        self.sure = {name: SURE / 10 if value.numel() >= MANY else SURE for name, value in right.items()}
        self.found = {name: 0.0 for name in right}
        self.probes = 0

    def limits(self) -> Dict[str, float]:
        """After all probes."""
        while self.probes < PROBES:
            self.probe()
        return self.so_far()

    def so_far(self) -> Dict[str, float]:
        return {name: self.found[name] + self.least[name] for name in self.found}

    def probe(self) -> None:
        with Moved(SPARE * self.unit, self.probes):
            moved = outputs(self.kind, self.x, self.faults)
        for name in self.found:
            self.found[name] = max(self.found[name], distance(moved[name], self.right[name]))
        self.probes += 1

    def allow(self, away: Mapping[str, float], most: Callable[[str, float], float]) -> bool:
        """Whether each output lies no further away than `most` of its name and its bound, which grows with the bound.
        A distance SURE times as large as two probes allow is not looked at again; of many numbers, whose distances
        differ less, a tenth of it."""
        while True:
            limits = self.so_far()
            if all(value <= most(name, limits[name]) for name, value in away.items()):
                return True
            beyond = any(value > self.sure[name] * most(name, limits[name]) for name, value in away.items())
            if self.probes == PROBES or self.probes >= 2 and beyond:
                return False
            self.probe()


def bounds(
    kind: Kind,
    x: Case,
    faults: Mapping[str, Optional[float]],
    right: Outputs,
    unit: float,
    stored: Mapping[str, torch.dtype],
) -> Dict[str, float]:
    return Bounds(kind, x, faults, right, unit, stored).limits()
