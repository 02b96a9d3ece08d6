"""Whether a coupling loss written in PyTorch is right, or which fault it has.

    python -m couplet.certify my_module:my_loss [--keep FOLDER] [--dtype float32] [--device cpu]

runs the callable on small inputs, writes what it was given and what it gave as a dump for each
(docs/pytorch.md), and has `couplet certify` judge them. The callable is called with keywords, those
of the following that it has; one that needs any other gets the first five in this order instead:

    router, w_gate, delta, alpha, weight         also R; W_g, Wg, gate
    w_up                                         also W_p, Wp, up: the up projections [n, D, d]
    w_gate_up                                    also gate_up, gate_up_proj: [n, 2D, d], gate first

router [n, d], w_gate [n, D, d], delta [n, d] noise, alpha and weight numbers. It returns the loss, or a
dict with `loss` and, where it has them, `M` [n, n] and `delta` [n, d], its own noise. A callable that
neither takes nor returns delta must not use noise.

Exit code 0: all right; 1: a fault; 2: it could not be run."""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from . import _noise

NAMES = {"router": ("router", "R", "r"), "w_gate": ("w_gate", "W_g", "Wg", "gate"),
         "delta": ("delta",), "alpha": ("alpha",), "weight": ("weight",),
         "w_up": ("w_up", "W_p", "Wp", "up"),
         "w_gate_up": ("w_gate_up", "gate_up", "gate_up_proj")}
POSITIONAL = ("router", "w_gate", "delta", "alpha", "weight")
# name: n, d, D, alpha, weight, by how much expert j answers to row j beyond chance
INPUTS = {"some-active": (8, 24, 20, 1.0, 1.0, 0.0), "all-active": (6, 17, 9, 0.3, 0.25, 0.0),
          "few-active": (12, 20, 16, 0.8, 2.5, 1.6), "ties": (8, 24, 7, 1.0, 1.5, 0.0)}


# ---- inputs ----

def _normal(count: int, shape: Tuple[int, ...], place: int) -> Tensor:
    """About normal, from counter-based numbers: the same in every release of torch."""
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


# ---- the callable ----

def load(what: str) -> Callable[..., Any]:
    """"my_module:my_loss" or "path/to/file.py:my_loss"."""
    module, _, name = what.partition(":")
    if not name:
        raise ValueError(f"{what} names no callable; write my_module:my_loss")
    sys.path.insert(0, "")
    if module.endswith(".py"):
        spec = importlib.util.spec_from_file_location(pathlib.Path(module).stem, module)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _arguments(function: Callable[..., Any]) -> Tuple[Dict[str, str], bool]:
    """Our name -> its keyword; and whether they go by position instead."""
    has = inspect.signature(function).parameters
    found = {ours: theirs for ours, names in NAMES.items() for theirs in names if theirs in has}
    needed = {name for name, p in has.items()
              if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    by_name = bool(found) and needed <= set(found.values())
    return (found, False) if by_name else ({name: name for name in POSITIONAL}, True)


def _called(function: Callable[..., Any], values: Dict[str, Any]) -> Dict[str, Any]:
    arguments, by_position = _arguments(function)
    if by_position:
        given = function(*(values[name] for name in POSITIONAL))
    else:
        given = function(**{theirs: values[ours] for ours, theirs in arguments.items()})
    return dict(given) if isinstance(given, dict) else {"loss": given}


def dump(function: Callable[..., Any], inputs: Dict[str, Any], dtype: torch.dtype = torch.float32,
         device: str = "cpu") -> Dict[str, Tensor]:
    """Runs the callable and returns the dump's tensors."""
    arguments, _ = _arguments(function)
    leaf = lambda t: t.detach().to(device=device, dtype=dtype, copy=True).requires_grad_()
    R, W_g, W_p = leaf(inputs["R"]), leaf(inputs["W_g"]), leaf(inputs["W_p"])
    fused = leaf(torch.cat((inputs["W_g"], inputs["W_p"]), 1))
    delta = inputs["delta"].to(device=device, dtype=dtype)
    given = _called(function, {"router": R, "w_gate": W_g, "w_up": W_p, "w_gate_up": fused,
                               "delta": delta, "alpha": inputs["alpha"], "weight": inputs["weight"]})
    loss = given["loss"]
    if loss.requires_grad:
        loss.backward()
    if "w_gate_up" in arguments and fused.grad is not None:
        W_g.grad, W_p.grad = fused.grad.chunk(2, dim=1)
    tensors = {"R": R, "W_g": W_g, "loss": loss.reshape(()), "dR": R.grad, "dW_g": W_g.grad,
               "M": given.get("M"), "delta": given.get("delta", delta if "delta" in arguments else None)}
    if {"w_up", "w_gate_up"} & set(arguments):
        tensors.update(W_p=W_p, dW_p=W_p.grad)
    tensors.update({name: torch.tensor(inputs[name], dtype=torch.float64)
                    for name in ("alpha", "weight")})
    return {name: t.detach().to("cpu").contiguous().clone()
            for name, t in tensors.items() if t is not None}


# ---- the judgement ----

def find_program() -> Optional[str]:
    """The program `couplet`: beside the package, or in PATH."""
    beside = pathlib.Path(__file__).parent / "bin" / "couplet"
    return str(beside) if beside.exists() else shutil.which("couplet")


def has_verb(program: str) -> bool:
    """Whether this program knows `couplet certify`."""
    return subprocess.run([program, "certify", "--help"], capture_output=True, check=False).returncode == 0


def certify(function: Callable[..., Any], folder: pathlib.Path, program: str,
            dtype: torch.dtype = torch.float32, device: str = "cpu") -> List[Tuple[str, int]]:
    """Writes FOLDER/<input>.safetensors for every input and runs the program on it; returns the exit
    code of each."""
    from safetensors.torch import save_file

    codes = []
    for name in INPUTS:
        path = folder / f"{name}.safetensors"
        save_file(dump(function, make_inputs(name), dtype, device), path)
        codes.append((name, subprocess.run([program, "certify", str(path)], check=False).returncode))
    return codes


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m couplet.certify", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("callable", help="my_module:my_loss or file.py:my_loss")
    parser.add_argument("--keep", metavar="FOLDER", help="the dumps are kept here")
    parser.add_argument("--dtype", default="float32",
                        choices=("float32", "float64", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    program = find_program()
    if not program or not has_verb(program):
        print(f"couplet.certify: {program or 'couplet'} "
              + ("has no verb certify" if program else "is neither beside the package nor in PATH"),
              file=sys.stderr)
        return 2
    try:
        function = load(args.callable)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        print(f"couplet.certify: {args.callable}: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        codes = certify(function, folder, program, getattr(torch, args.dtype), args.device)
    wrong = [name for name, code in codes if code]
    print(f"{args.callable}: " + (f"not right on {', '.join(wrong)}" if wrong else
                                  f"right on all of {', '.join(INPUTS)}"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
