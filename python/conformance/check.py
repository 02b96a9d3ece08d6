"""Your loss against the dumps of this folder. It needs PyTorch and safetensors, and nothing of Couplet.

    python check.py my_module:my_loss load-balancing-mixtral

my_loss(**inputs) is called with the inputs of each right file of the kind, under the names that README.md lists, and
returns the loss, or the outputs of a rule by name. Values and gradients must be those of the file within 1e-5 of their
norm. Exit code 0: all are; 1: one is not; 2: there is no such kind."""
import importlib
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

FOLDER = pathlib.Path(__file__).resolve().parent
OUTPUTS = {"loss", "weights", "bias_after", "scores"}
GIVEN = {"d_weights", "d_scores"}  # gradients that the outputs of a rule get
WHOLE = {"top_k", "micro_batches", "sequences", "num_experts"}
NUMBERS = {*WHOLE, "coefficient", "scale", "rate"}
LIMIT = 1e-5


def split(tensors):
    """Inputs by name, as leaves or numbers; outputs; gradients of inputs; gradients that are given."""
    gradients = {k[2:]: t for k, t in tensors.items() if k.startswith("d_") and k not in GIVEN}
    inputs = {}
    for name, t in tensors.items():
        if name in NUMBERS:
            inputs[name] = int(t) if name in WHOLE else float(t)
        elif name not in OUTPUTS and not name.startswith("d_"):
            inputs[name] = t.clone().requires_grad_(name in gradients)
    return inputs, {k: t for k, t in tensors.items() if k in OUTPUTS}, gradients, \
        {k[2:]: t for k, t in tensors.items() if k in GIVEN}


def differences(function, path):
    """Name: |got - want| / |want| of the file's outputs and gradients."""
    inputs, outputs, gradients, given = split(load_file(path))
    got = function(**inputs)
    got = got if isinstance(got, dict) else {next(iter(outputs)): got}
    total = sum((got[name] * given[name]).sum() for name in given) if given else got.get("loss")
    found = dict(zip(gradients, torch.autograd.grad(total, [inputs[name] for name in gradients], allow_unused=True)))\
        if gradients else {}
    pairs = [(name, got[name].detach(), want) for name, want in outputs.items()]
    pairs += [(f"d_{name}", torch.zeros(()) if found[name] is None else found[name], want)
              for name, want in gradients.items()]
    return {name: float(torch.linalg.vector_norm((a.double() - b.double()).flatten()) /
                        torch.linalg.vector_norm(b.double()).clamp(min=1e-12)) for name, a, b in pairs}


def main(words):
    module, _, name = words[0].partition(":")
    sys.path.insert(0, "")
    function = getattr(importlib.import_module(module), name)
    files = [one["file"] for one in json.loads((FOLDER / "expected.json").read_text())
             if one["loss"] == words[1] and one["verdict"] == "right"]
    if not files:
        print(f"check: there is no kind {words[1]}", file=sys.stderr)
        return 2
    wrong = 0
    for file in files:
        found = differences(function, FOLDER / file)
        bad = {name: value for name, value in found.items() if not value <= LIMIT}
        wrong += bool(bad)
        print(f"{file}: " + ("right" if not bad else "; ".join(f"{name} differs by {v:.2g}" for name, v in bad.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
