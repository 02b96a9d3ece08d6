"""Checks a coupling loss written in PyTorch, and names its fault.

    python -m couplet.certify my_module:my_loss [--keep FOLDER] [--dtype float32] [--device cpu]

runs the callable on small inputs, writes a dump of arguments and results for each (docs/pytorch.md), and
runs `couplet certify` on the dumps. The callable is called with keywords, those of the following that it
has. One that needs any other is called with the first five by position, in this order:

    router, w_gate, delta, alpha, weight         also R; W_g, Wg, gate
    w_up                                         also W_p, Wp, up: the up projections [n, D, d]
    w_gate_up                                    also gate_up, gate_up_proj: [n, 2D, d], gate first

router [n, d], w_gate [n, D, d], delta [n, d] noise, alpha and weight numbers. It returns the loss, or a
dict with `loss` and, where it has them, `M` [n, n] and `delta` [n, d], its own noise. A callable that
neither takes nor returns delta must not use noise. --alpha: that of a callable that takes no alpha;
--weight: that of one that takes no weight, 1 by default.

Exit code 0: all right; 1: a fault; 2: it could not be run."""
from __future__ import annotations

import argparse
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import _need_torch

_need_torch()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from . import _noise  # noqa: E402
from ._erc_callable import Loss  # noqa: E402
from ._import import CannotJudge, load  # noqa: E402

# name: n, d, D, alpha, weight, coupling: size of the component of W_g[j] along R[j] that is added to noise
INPUTS = {"some-active": (8, 24, 20, 1.0, 1.0, 0.0), "all-active": (6, 17, 9, 0.3, 0.25, 0.0),
          "few-active": (12, 20, 16, 0.8, 2.5, 1.6), "ties": (8, 24, 7, 1.0, 1.5, 0.0)}


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
        W_g += coupling * (u / u.norm(dim=1, keepdim=True))[:, :, None] * \
            (R / R.norm(dim=1, keepdim=True))[:, None, :]
    if name == "ties":  # sums of small integers are exact, so equal rows and experts tie exactly
        R, W_g, W_p = R.mul(2).round(), W_g.mul(6).round(), W_p.mul(6).round()
        R[1], W_g[3] = R[0], W_g[2]
    R = R.float()
    delta = torch.ones_like(R) if name == "ties" else _noise.bounded(R, 7, place, 0, 0)
    return {"R": R, "W_g": W_g.float(), "W_p": W_p.float(), "delta": delta, "alpha": alpha,
            "weight": weight}


# ---- the dump ----

def _fixed(loss: Loss, alpha: Optional[float], weight: Optional[float]) -> Dict[str, float]:
    """alpha and weight of a callable that does not take them."""
    for name, value in (("alpha", alpha), ("weight", weight)):
        if name in loss.takes and value is not None:
            raise CannotJudge(f"it takes {name} itself; --{name} is for one that does not")
    fixed = {}
    if "alpha" not in loss.takes:
        if alpha is None:
            raise CannotJudge("it takes no alpha; say which one it has, as --alpha 1, the paper's")
        fixed["alpha"] = alpha
    if "weight" not in loss.takes:
        fixed["weight"] = 1.0 if weight is None else weight
    return fixed


def _leaf(tensor: Tensor) -> Tensor:
    """A copy that has gradients."""
    return tensor.detach().clone().requires_grad_()


def dump(function: Callable[..., Any], inputs: Dict[str, Any], dtype: torch.dtype = torch.float32,
         device: str = "cpu", alpha: Optional[float] = None,
         weight: Optional[float] = None) -> Dict[str, Tensor]:
    """Runs the callable and returns the dump's tensors. alpha, weight: of one that does not take them."""
    run = Loss(function)
    numbers = {"alpha": inputs["alpha"], "weight": inputs["weight"], **_fixed(run, alpha, weight)}
    before = {name: inputs[name].to(device=device, dtype=dtype) for name in ("R", "W_g", "W_p", "delta")}
    R, W_g, W_p = (_leaf(before[name]) for name in ("R", "W_g", "W_p"))
    fused = _leaf(torch.cat((before["W_g"], before["W_p"]), 1))
    given = run({"router": R, "w_gate": W_g, "w_up": W_p, "w_gate_up": fused, "delta": before["delta"].clone(),
                 "alpha": inputs["alpha"], "weight": inputs["weight"]})
    if given["loss"].requires_grad:
        run.backward(given["loss"])
    if "w_gate_up" in run.takes and fused.grad is not None:
        W_g.grad, W_p.grad = fused.grad.chunk(2, dim=1)
    tensors = {"R": before["R"], "W_g": before["W_g"], "loss": given["loss"].reshape(()), "dR": R.grad,
               "dW_g": W_g.grad, "M": given.get("M"),
               "delta": given.get("delta", before["delta"] if "delta" in run.takes else None)}
    if {"w_up", "w_gate_up"} & run.takes:
        tensors.update(W_p=before["W_p"], dW_p=W_p.grad)
    tensors.update({name: torch.tensor(value, dtype=torch.float64, device="cpu")
                    for name, value in numbers.items()})
    return {name: t.detach().to("cpu").contiguous().clone()
            for name, t in tensors.items() if t is not None}


# ---- couplet certify ----

def find_program() -> Optional[str]:
    """The program `couplet` of the wheel couplet-native, or on PATH."""
    if importlib.util.find_spec("couplet_native"):
        import couplet_native

        return str(couplet_native.program())
    return shutil.which("couplet")


def has_verb(program: str) -> bool:
    """Whether this program has `couplet certify`."""
    return subprocess.run([program, "certify", "--help"], capture_output=True, check=False).returncode == 0


def certify(function: Callable[..., Any], folder: pathlib.Path, program: str, **settings: Any) -> List[str]:
    """Writes FOLDER/<input>.safetensors for every input and runs the program on it; settings: of `dump`.
    Returns the names of the inputs on which the callable is wrong."""
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise CannotJudge("dumps need safetensors: pip install safetensors") from None

    wrong = []
    for name in INPUTS:
        path = folder / f"{name}.safetensors"
        save_file(dump(function, make_inputs(name), **settings), path)
        code = subprocess.run([program, "certify", str(path)], check=False).returncode
        if code not in (0, 1):
            raise CannotJudge(f"{program} certify {path} ended with {code}")
        if code:
            wrong.append(name)
    return wrong


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m couplet.certify", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("callable", help="my_module:my_loss or file.py:my_loss")
    parser.add_argument("--keep", metavar="FOLDER", help="the dumps are kept here")
    parser.add_argument("--dtype", default="float32",
                        choices=("float32", "float64", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alpha", type=float, help="that of a callable that does not take it")
    parser.add_argument("--weight", type=float, help="that of a callable that does not take it; default 1")
    return parser


def _run(args: argparse.Namespace) -> List[str]:
    program = find_program()
    if not program:
        raise CannotJudge("there is no program couplet: pip install couplet-native, or ./python/native of a "
                        "checkout")
    if not has_verb(program):
        raise CannotJudge(f"{program} has no verb certify")
    try:
        torch.zeros(1, dtype=torch.float32, device=args.device)
    except Exception as error:  # each kind of device has its own
        raise CannotJudge(f"device {args.device}: {str(error).splitlines()[0]}") from None
    function = load(args.callable)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return certify(function, folder, program, dtype=getattr(torch, args.dtype), device=args.device,
                           alpha=args.alpha, weight=args.weight)
        except OSError as error:
            raise CannotJudge(str(error)) from None


def main(words: Optional[List[str]] = None) -> int:
    args = _parser().parse_args(words)
    try:
        wrong = _run(args)
    except CannotJudge as error:
        print(f"couplet.certify: {args.callable}: {error}", file=sys.stderr)
        return 2
    print(f"{args.callable}: " + (f"not right on {', '.join(wrong)}" if wrong else
                                  f"right on all of {', '.join(INPUTS)}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
