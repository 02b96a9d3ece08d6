"""Compares every case of the golden values on every path. The tests of the C library use the same list of cases, and
the same maker of cases with exact ties."""

import importlib.util
import json

import couplet
import pytest
import torch
from conftest import GOLDEN, accelerator_paths, close, in_chunks
from couplet.ops import _native
from couplet.ops._job import ACTIVATIONS
from safetensors.torch import load_file

CASES = json.loads((GOLDEN / "cases.json").read_text())
pytestmark = pytest.mark.filterwarnings("ignore:couplet. alpha")
LEAVES = {"R": "dR", "Wg": "dWg", "Wp": "dWp", "Wo": "dWo"}


def evaluate(case, tensors, dtype, function=couplet.erc_loss, **more):
    leaves = {name: tensors[name].detach().to(dtype).requires_grad_() for name in LEAVES if name in tensors}
    loss = function(
        leaves["R"],
        leaves.get("Wg"),
        w_up=leaves.get("Wp"),
        w_down=leaves.get("Wo"),
        delta=tensors.get("delta"),
        **{key: case[key] for key in ("alpha", "weight", "activation", "noise")},
        **more,
    )
    loss.backward()
    return loss, {LEAVES[name]: t.grad for name, t in leaves.items()}


def compare(case, dtype, limit, device="cpu", tensors=None, **more):
    tensors = tensors or load_file(GOLDEN / f"{case['name']}.safetensors", device=device)
    loss, gradients = evaluate(case, tensors, dtype, **more)
    close(loss, tensors["loss"], limit, "loss")
    for name, gradient in gradients.items():
        want = tensors.get(name)
        if want is None:
            assert gradient is None or not gradient.any(), name
        else:
            close(gradient, want, limit, name)


def name_of(case):
    return case["name"]


PATHS = ("library", "plain, an expert at a time", "plain, in chunks", "plain, at once")
LIMITS = {torch.float64: 1e-6, torch.float32: 1e-4}
IN_16_BITS = {torch.bfloat16: 2e-2, torch.float16: 4e-3}  # Limits where the inputs are numbers of these dtypes.


def take(path, monkeypatch):
    """Selects the code that computes the loss on the CPU: the C library, plain torch, or the code for accelerators."""
    if path == "accelerator":
        accelerator_paths(monkeypatch)
    elif path != "library":
        monkeypatch.setattr(_native, "fits", lambda job: False)
        if path != "plain, at once":
            in_chunks(monkeypatch, 1 if path == "plain, an expert at a time" else 1000)


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("path", PATHS)
def test_on_the_cpu(path, case, monkeypatch):
    take(path, monkeypatch)
    is_tied, before = case["name"].startswith("tied-"), torch.get_num_threads()
    for threads in (1, 4) if is_tied else (before,):
        torch.set_num_threads(threads)
        for dtype, limit in (LIMITS | (IN_16_BITS if is_tied else {})).items():
            compare(case, dtype, limit)
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("dtype, limit", ((torch.float64, 1e-6), (torch.float32, 1e-4)), ids=str)
def test_accelerator(case, dtype, limit, accelerator):
    compare(case, dtype, limit)


@pytest.mark.parametrize("case", [c for c in CASES if c["activation"] == "gate"], ids=name_of)
def test_reference_f64(case):
    tensors = load_file(GOLDEN / f"{case['name']}.safetensors")
    R, W = (tensors[name].double().requires_grad_() for name in ("R", "Wg"))
    delta = tensors.get("delta", torch.ones_like(tensors["R"])).double()
    loss = couplet.reference.erc_loss(R, W, alpha=case["alpha"], weight=case["weight"], delta=delta)
    loss.backward()
    close(loss, tensors["loss"], 1e-6, "loss")
    close(R.grad, tensors["dR"], 1e-6, "dR")
    close(W.grad, tensors["dWg"], 1e-6, "dWg")


def decides_alike_in_bf16(case):
    facts = case["facts"]
    return not facts["exact_ties"] and facts["loss"] > 0 and (facts["nearest_kink"] or 0) > 3e-3


@pytest.mark.parametrize("case", [c for c in CASES if decides_alike_in_bf16(c)], ids=name_of)
@pytest.mark.parametrize("plain", (False, True), ids=("library", "plain"))
def test_bf16_products(case, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(_native, "fits", lambda job: False)
    compare(case, torch.float32, 6e-2, compute="bf16")


@pytest.mark.parametrize("case", [c for c in CASES if decides_alike_in_bf16(c)], ids=name_of)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_accelerator_in_the_tensors_dtype(case, dtype, accelerator):
    compare(case, dtype, 6e-2)


SPEC = importlib.util.spec_from_file_location("make_ties", GOLDEN / "make_ties.py")
make_ties = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_ties)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", ("experts", "rows"))
@pytest.mark.parametrize("path", PATHS + ("accelerator",))
def test_ties_of_other_shapes(path, kind, activation, monkeypatch):
    take(path, monkeypatch)
    for shape in ((2, 9, 16), (8, 65, 33), (5, 300, 130), (33, 40, 17)):
        case, tensors = make_ties.make(kind, shape, activation, True, 1.0, 0)
        for dtype in LIMITS | (IN_16_BITS if path != "accelerator" else {}):  # Accelerators round operands to 16 bits.
            compare(case, dtype, {torch.float64: 1e-10, torch.float32: 2e-5, **IN_16_BITS}[dtype], tensors=tensors)


@pytest.mark.parametrize("path", ("plain, in chunks", "plain, at once", "accelerator"))
def test_ties_of_long_rows(path, monkeypatch):
    """Many numbers are summed, in a layout where products of one row and of several rows add in different orders."""
    take(path, monkeypatch)
    for seed in range(4):
        torch.manual_seed(seed)
        router = torch.randn(8, 16384)
        gates = (torch.randn(32, 16384) * 0.02).expand(8, -1, -1).mT.contiguous().mT.requires_grad_()
        exact = gates.detach().double().contiguous().requires_grad_()
        couplet.erc_loss(router, gates, noise="none").backward()
        couplet.reference.erc_loss(router.double(), exact, delta=torch.ones(8, 16384)).backward()
        close(gates.grad.double(), exact.grad, 1e-4)


def test_a_sum_that_threads_do_not_change(monkeypatch):
    take("plain, at once", monkeypatch)
    before = torch.get_num_threads()
    router, gates = torch.randn(256, 64), torch.randn(256, 16, 64)
    found = set()
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        found.add(couplet.erc_loss(router, gates, alpha=0.9, noise="none").item())
    torch.set_num_threads(before)
    assert len(found) == 1


def test_an_accelerator_without_bf16(accelerator, monkeypatch):
    """Products are f32, so the result differs from the golden values only by the rounding of the inputs."""
    from couplet.ops import _accelerator

    case = next(c for c in CASES if decides_alike_in_bf16(c) and c["activation"] == "gate")
    tensors = load_file(GOLDEN / f"{case['name']}.safetensors")
    tensors = {name: t.bfloat16().float() if name in LEAVES else t for name, t in tensors.items()}
    want, wanted = evaluate(case, tensors, torch.float32)
    monkeypatch.setattr(_accelerator, "_multiplies_bf16", lambda device: False)
    got, gradients = evaluate(case, tensors, torch.bfloat16)
    close(got, want, 1e-5)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.bfloat16
        close(gradient, wanted[name], 4e-3, name)  # The gradient is rounded once.
