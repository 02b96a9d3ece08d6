"""vendor/erc.py, the file to copy, compared with the golden values and the package. It has its own test beside it."""

import ast
import importlib.util
import json

import couplet
import pytest
import torch
from conftest import GOLDEN, ROOT, all_close, close
from safetensors.torch import load_file

FILE = ROOT / "python" / "vendor" / "erc.py"
SPEC = importlib.util.spec_from_file_location("vendored_erc", FILE)
erc = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(erc)
CASES = [case for case in json.loads((GOLDEN / "cases.json").read_text()) if case["activation"] == "gate"]


def test_it_can_be_copied():
    """The file fits another project's licence check, review and environment: few lines, and only torch is imported."""
    text = FILE.read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    }
    assert imported == {"torch", "torch.distributed"} and text.count("\n") <= 250
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize("dtype, limit", ((torch.float64, 1e-6), (torch.float32, 1e-4)), ids=str)
def test_golden(case, dtype, limit):
    tensors = load_file(GOLDEN / f"{case['name']}.safetensors")
    R, W = (tensors[name].to(dtype).requires_grad_() for name in ("R", "Wg"))
    delta = tensors.get("delta", torch.ones_like(tensors["R"]))
    loss = erc.erc_loss(R, W, step=0, layer=0, alpha=case["alpha"], weight=case["weight"], delta=delta)
    loss.backward()
    for got, name in ((loss, "loss"), (R.grad, "dR"), (W.grad, "dWg")):
        close(got, tensors[name], limit, name)


@pytest.mark.parametrize("seed, step, layer", ((0, 0, 0), (5, 2**33 + 7, 3), (2**64 - 1, 17, 65535)))
def test_the_noise_is_the_package_s(seed, step, layer):
    R = torch.randn(7, 9)
    assert torch.equal(
        erc.noise(R, seed=seed, step=step, layer=layer), couplet.noise(R, seed=seed, step=step, layer=layer)
    )


@pytest.mark.parametrize(
    "dtype, limit",
    ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-3), (torch.float16, 1e-3)),
    ids=str,
)
def test_the_loss_is_the_package_s(dtype, limit):
    torch.manual_seed(1)
    R, W = torch.randn(12, 20).to(dtype), torch.randn(12, 2 * 14, 20).to(dtype)
    both = []
    for function in (erc.erc_loss, couplet.erc_loss):
        leaves = [t.clone().requires_grad_() for t in (R, W)]
        loss = function(*leaves, alpha=0.8, weight=2.0, seed=4, step=9, layer=2, gate_half="interleaved")
        both.append([loss, *torch.autograd.grad(loss, leaves)])
    all_close(*both, limit)
