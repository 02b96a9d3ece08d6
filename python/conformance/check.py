"""Compares your loss with the dumps of this folder. It needs PyTorch and safetensors, and no part of Couplet.

    python check.py my_module:my_loss load-balancing-mixtral

my_loss(**inputs) is called with the inputs of each right file of the kind, under the names that README.md lists, as far
as it has parameters for them, and returns the loss, or the outputs of a rule by name. Values and gradients must equal
the file's within 1e-5 of their norm. Differences in two kinds of files are reported but not counted: files with an input
(mask, micro_batches, kept or, for DeepSeek's loss, sequences) that the function has no parameter for, and files in which
experts tie. Exit code 0: all other files are right; 1: a file is not; 2: the kind or the function does not exist, or no
file counts."""

import importlib
import inspect
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

FOLDER = pathlib.Path(__file__).resolve().parent
OUTPUTS = {"loss", "weights", "bias_after", "scores"}
GIVEN = {"d_weights", "d_scores"}  # gradients for the outputs of a rule
WHOLE = {"top_k", "micro_batches", "sequences", "num_experts"}
NUMBERS = {*WHOLE, "coefficient", "scale", "rate", "alpha", "weight", "latent_eps"}
# A function without a parameter for such an input leaves it to its caller.
OPTIONAL = ("mask", "micro_batches", "sequences", "kept")
# Names in files of the coupling loss.
NAMES = {"R": "router", "W_g": "w_gate", "W_l": "down", "dR": "d_router", "dW_g": "d_w_gate", "dW_l": "d_down"}
LIMIT = 1e-5


def split_tensors(tensors):
    """Splits tensors into inputs by name, as leaves or numbers; outputs; gradients of inputs; gradients of outputs."""
    gradients = {k[2:]: t for k, t in tensors.items() if k.startswith("d_") and k not in GIVEN}
    inputs = {}
    for name, t in tensors.items():
        if name in NUMBERS:
            inputs[name] = int(t) if name in WHOLE else float(t)
        elif name not in OUTPUTS and not name.startswith("d_"):
            inputs[name] = t.clone().requires_grad_(name in gradients)
    return (
        inputs,
        {k: t for k, t in tensors.items() if k in OUTPUTS},
        gradients,
        {k[2:]: t for k, t in tensors.items() if k in GIVEN},
    )


def outputs_of(function, inputs, outputs):
    """Returns the function's outputs by name, as tensors of the shapes of the file."""
    parameters = parameters_of(function)
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    got = function(**{name: value for name, value in inputs.items() if takes_all or name in parameters})
    got = dict(got) if isinstance(got, dict) else {next(iter(outputs)): got}
    for name, want in outputs.items():
        if name not in got:
            raise ValueError(f"the function returned no {name}: return a dict with the keys {', '.join(outputs)}")
        got[name] = torch.as_tensor(got[name])
        if got[name].shape != want.shape and got[name].numel() * want.numel() != 1:
            raise ValueError(f"{name} is {list(got[name].shape)}, must be {list(want.shape)}")
        got[name] = got[name].reshape(want.shape)
    return got


def gradients_of(got, inputs, names, given):
    """Returns the gradients of the inputs, or None if the outputs have no graph."""
    total = sum((got[name] * given[name]).sum() for name in given) if given else got["loss"]
    if not total.requires_grad:
        return [None] * len(names)
    return torch.autograd.grad(total, [inputs[name] for name in names], allow_unused=True)


def parameters_of(function):
    return inspect.signature(getattr(function, "forward", function)).parameters


def tensors_of(function, path):
    """Returns the tensors of the file. Only DeepSeek's loss depends on sequences. Another loss gets them if it names
    them."""
    tensors = {NAMES.get(name, name): t for name, t in load_file(path).items()}
    if not path.name.startswith("load-balancing-deepseek.") and "sequences" not in parameters_of(function):
        tensors.pop("sequences", None)
    return tensors


def differences(function, path):
    """Returns name -> |got - want| / |want| for the file's outputs and gradients."""
    inputs, outputs, gradients, given = split_tensors(tensors_of(function, path))
    got = outputs_of(function, inputs, outputs)
    found = gradients_of(got, inputs, list(gradients), given) if gradients else []
    pairs = [(name, got[name].detach(), want) for name, want in outputs.items()]
    pairs += [
        (f"d_{name}", torch.zeros_like(want) if gradient is None else gradient, want)
        for (name, want), gradient in zip(gradients.items(), found)
    ]
    return {
        name: float(
            torch.linalg.vector_norm((a.double() - b.double()).flatten())
            / torch.linalg.vector_norm(b.double()).clamp(min=1e-12)
        )
        for name, a, b in pairs
    }


def excuse(function, path):
    """Returns the reason why a difference on this file is not counted, or None if it is counted."""
    tensors, parameters = tensors_of(function, path), parameters_of(function)
    missing = [name for name in OPTIONAL if name in tensors and name not in parameters]
    if missing:
        return f"the function has no parameter {' or '.join(missing)}"
    return (
        "experts tie, and either may be chosen" if ".ties." in path.name and not path.name.startswith("erc") else None
    )


def verdict(function, path):
    """Returns "right", or the fault."""
    try:
        found = differences(function, path)
    except (Exception, SystemExit) as error:  # the function is the user's code
        return f"raised {type(error).__name__}: {error}"
    bad = {name: value for name, value in found.items() if not value <= LIMIT}
    said = "; ".join(f"{name} differs by {value:.2g}" for name, value in bad.items())
    reason = said and excuse(function, path)
    return f"does not count: {reason} ({said})" if reason else said or "right"


def function_of(word):
    """Returns the function that "my_module:my_loss" names."""
    module, _, name = word.partition(":")
    sys.path.insert(0, "")
    return getattr(importlib.import_module(module), name)


def main(words):
    if len(words) != 2 or ":" not in words[0]:
        print(__doc__, file=sys.stderr)
        return 2
    right = [one for one in json.loads((FOLDER / "expected.json").read_text()) if one["verdict"] == "right"]
    files = [one["file"] for one in right if one["loss"] == words[1]]
    if not files:
        kinds = ", ".join(sorted({one["loss"] for one in right}))
        print(f"check: unknown kind {words[1]}; the kinds are: {kinds}", file=sys.stderr)
        return 2
    try:
        function = function_of(words[0])
    except (Exception, SystemExit) as error:  # the module is the user's code too
        print(f"check: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    said = [verdict(function, FOLDER / file) for file in files]
    for file, words in zip(files, said):
        print(f"{file}: {words}")
    counted = {one for one in said if not one.startswith("does not count")}
    return 2 if not counted else 0 if counted == {"right"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
