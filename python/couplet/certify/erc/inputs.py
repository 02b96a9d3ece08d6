"""Inputs of a coupling loss on which its faults differ, and the dump of a callable that was run on them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Tuple

import torch
from torch import Tensor

from ...ops import _noise
from .._dump import number
from .._import import CannotJudge
from .call import Loss

# name: n, d, D, alpha, weight, coupling: size of the component of W_g[j] along R[j] that is added to noise
INPUTS = {
    "some-active": (8, 24, 20, 1.0, 1.0, 0.0),
    "all-active": (6, 17, 9, 0.3, 0.25, 0.0),
    "few-active": (12, 20, 16, 0.8, 2.5, 1.6),
    "ties": (8, 24, 7, 1.0, 1.5, 0.0),
}


# ---- inputs ----


def _normal(count: int, shape: Tuple[int, ...], place: int) -> Tensor:
    """About normal, from a counter-based generator: the same in every release of torch."""
    total = 1
    for size in shape:
        total *= size
    u = _noise.uniform(0, 12 * total, 20, place, count, torch.device("cpu"))
    return (u.view(12, total).double().sum(0) - 6).view(shape)


def make_inputs(name: str) -> Dict[str, Any]:
    """R [n, d], W_g and W_p [n, D, d], delta [n, d] (f32, within 1 +- eps), alpha, weight."""
    n, d, D, alpha, weight, coupling = INPUTS[name]
    place = list(INPUTS).index(name)
    R, W_g, W_p = (_normal(k, s, place) for k, s in enumerate(((n, d), (n, D, d), (n, D, d))))
    W_g, W_p = W_g / d**0.5, W_p / d**0.5
    if coupling:
        u = _normal(3, (n, D), place)
        W_g += coupling * (u / u.norm(dim=1, keepdim=True))[:, :, None] * (R / R.norm(dim=1, keepdim=True))[:, None, :]
    if name == "ties":  # sums of small integers are exact, so equal rows and experts tie exactly
        R, W_g, W_p = R.mul(2).round(), W_g.mul(6).round(), W_p.mul(6).round()
        R[1], W_g[3] = R[0], W_g[2]
    R = R.float()
    delta = torch.ones_like(R) if name == "ties" else _noise.bounded(R, 7, place, 0, 0)
    return {"R": R, "W_g": W_g.float(), "W_p": W_p.float(), "delta": delta, "alpha": alpha, "weight": weight}


# ---- the dump ----


def _numbers(loss: Loss, inputs: Mapping[str, Any], fixed: Mapping[str, Any]) -> Dict[str, float]:
    """alpha and weight; `fixed`: those that the callable has inside and does not take."""
    for name in fixed:
        if name not in ("alpha", "weight"):
            raise CannotJudge(f"erc has no input {name} that a callable can have inside: it has alpha, weight")
        if name in loss.takes:
            raise CannotJudge(f"it takes {name} itself; --{name} is for one that does not")
    if "alpha" not in loss.takes and "alpha" not in fixed:
        raise CannotJudge("it takes no alpha; say which one it has, as --alpha 1, the paper's")
    taken = {str(name): float(inputs[name]) for name in ("alpha", "weight") if name in loss.takes}
    return {"weight": 1.0, **taken, **{name: number(name, value) for name, value in fixed.items()}}


def _leaf(tensor: Tensor) -> Tensor:
    """A copy that has gradients."""
    return tensor.detach().clone().requires_grad_()


def _is_near(a: Tensor, b: Tensor) -> bool:
    return bool((a.double() - b.double()).abs() <= 1e-3 * a.double().abs())


def dump(
    function: Callable[..., Any],
    inputs: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    fixed: Mapping[str, Any] = {},
) -> Dict[str, Tensor]:
    """Runs the callable and returns the dump's tensors. `fixed`: alpha and weight of one that does not take them."""
    run = Loss(function)
    numbers = _numbers(run, inputs, fixed)
    before = {name: inputs[name].to(device=device, dtype=dtype) for name in ("R", "W_g", "W_p", "delta")}
    leaves = {
        "router": _leaf(before["R"]),
        "w_gate": _leaf(before["W_g"]),
        "w_up": _leaf(before["W_p"]),
        "w_gate_up": _leaf(torch.cat((before["W_g"], before["W_p"]), 1)),
    }
    values = {**leaves, "delta": before["delta"].clone(), "alpha": inputs["alpha"], "weight": inputs["weight"]}
    kept = {name: value.detach().clone() for name, value in values.items() if isinstance(value, Tensor)}
    given = run(values)
    if not bool(torch.isfinite(given["loss"].detach()).all()):
        raise CannotJudge("its loss is a NaN or infinite")
    if given["loss"].requires_grad:
        run.backward(given["loss"])
    for name, value in kept.items():
        if not torch.equal(values[name].detach(), value):
            raise CannotJudge(f"it changes its input {name}")
    if "delta" not in given and not _is_near(given["loss"].detach(), run(values)["loss"].detach()):
        raise CannotJudge(
            "it gives other numbers when it is called with the same inputs again: it depends on hidden state, or "
            "on noise of its own, which it must return as delta"
        )
    return _dumped(run, before, leaves, given, numbers)


def _dumped(
    run: Loss, before: Dict[str, Tensor], leaves: Dict[str, Tensor], given: Dict[str, Any], numbers: Dict[str, float]
) -> Dict[str, Tensor]:
    grads = {name: leaf.grad for name, leaf in leaves.items()}
    fused = grads["w_gate_up"]
    if "w_gate_up" in run.takes and fused is not None:
        grads["w_gate"], grads["w_up"] = fused.chunk(2, dim=1)
    tensors = {
        "R": before["R"],
        "W_g": before["W_g"],
        "loss": given["loss"].reshape(()),
        "dR": grads["router"],
        "dW_g": grads["w_gate"],
        "M": given.get("M"),
        "delta": given.get("delta", before["delta"] if "delta" in run.takes else None),
    }
    if {"w_up", "w_gate_up"} & run.takes:
        tensors.update(W_p=before["W_p"], dW_p=grads["w_up"])
    tensors.update({name: torch.tensor(value, dtype=torch.float64, device="cpu") for name, value in numbers.items()})
    return {name: t.detach().to("cpu").contiguous().clone() for name, t in tensors.items() if t is not None}
