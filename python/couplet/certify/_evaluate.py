"""The outputs of a hypothesis in float64, and how far rounding may take an implementation from them.

Rounding:   reference and gradient are computed PROBES times with rounding errors made at random (_rounding.py). The
            errors are up to four times as large as the format's; the bound is the largest distance, and a floor of four
            rounding errors. So it holds for other orders of operations too, and knows where numbers cancel.
Ties:       see kinds/_balance.py; the counts of experts that tie are fitted to the outputs that were given."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from ._kind import Case, Has, Kind, Outputs
from ._rounding import Moved

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-9}
TF32 = 2.0**-12
PROBES = 6
SPARE = 4.0


def outputs(kind: Kind, x: Case, faults: Mapping[str, Optional[float]], graph: bool = False,
            as_: torch.dtype = torch.float64) -> Outputs:
    """"loss", or the outputs of a rule, and "d_NAME" of every input that has a gradient, computed in `as_`. `graph`:
    they can be differentiated. With `router_input` x [L,T,d] the gradient is that of the router, d_logits^T x."""
    inputs = x.to(as_).values
    with_gradient = [name for name in kind.gradients if name in inputs]
    for name in with_gradient:
        inputs[name] = inputs[name].detach().clone().requires_grad_()
    found = kind.reference(Case(**inputs), Has(faults))
    out: Outputs = found if isinstance(found, dict) else {"loss": found}
    if with_gradient:
        out = {**out, **_gradients(out, inputs, with_gradient, graph)}
    if x.router_input is not None and "d_logits" in out:
        out["d_router"] = torch.einsum("ltn,ltd->lnd", out.pop("d_logits"), inputs["router_input"])
    return out if graph else {name: value.detach() for name, value in out.items()}


def _gradients(out: Outputs, inputs: Dict[str, Any], names: List[str], graph: bool) -> Outputs:
    """Of the loss; of a rule's output y, of sum(y * d_y), d_y among the inputs."""
    scalar = sum(((value if value.dim() == 0 else (value * inputs[f"d_{name}"]).sum()) for name, value in out.items()),
                 start=torch.zeros(()))
    leaves = [inputs[name] for name in names]
    if not scalar.requires_grad:
        return {f"d_{name}": torch.zeros_like(leaf) for name, leaf in zip(names, leaves)}
    grads = torch.autograd.grad(scalar, leaves, allow_unused=True, create_graph=graph)
    return {f"d_{name}": torch.zeros_like(leaf) if g is None else g for name, leaf, g in zip(names, leaves, grads)}


def scaled(out: Outputs, loss: float, gradient: float) -> Outputs:
    return {name: value * (gradient if name.startswith("d_") else loss) for name, value in out.items()}


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())


def bounds(kind: Kind, x: Case, faults: Mapping[str, Optional[float]], right: Outputs, unit: float,
           stored: Mapping[str, torch.dtype]) -> Dict[str, float]:
    """How far from `right`, the outputs under `faults`, an implementation may lie: computed with rounding error `unit`,
    each output stored in its own format."""
    found = {name: 0.0 for name in right}
    for seed in range(PROBES):
        with Moved(SPARE * unit, seed):
            probe = outputs(kind, x, faults)
        for name in found:
            found[name] = max(found[name], distance(probe[name], right[name]))
    result = {}
    for name, value in right.items():
        size = float(value.norm())
        store = UNIT[stored[name]] if name in stored else 0.0
        result[name] = found[name] + SPARE * unit * size + 2 * store * size
    return result
