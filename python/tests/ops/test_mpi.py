"""Router rows by Manifold Power Iteration: couplet.mpi_rows."""

import couplet
import pytest
import torch
from conftest import GOLDEN, all_close
from safetensors.torch import load_file

GIVEN = load_file(GOLDEN.parent / "power" / "reference.safetensors")
CASES = sorted({key.partition(".")[0] for key in GIVEN})
n, d, D = 5, 7, 3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype, limit", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_golden_values(case, dtype, limit):
    x = {key.partition(".")[2]: t for key, t in GIVEN.items() if key.startswith(f"{case}.")}
    R, W = (x[name].to(dtype, copy=True).requires_grad_() for name in ("R", "Wg"))
    rows = couplet.mpi_rows(R, W, scale=x["scale"].item())
    rows.backward(x["drows"].to(dtype))
    all_close([rows.detach(), R.grad, W.grad], [x["rows"], x["dR"], x["dWg"]], limit)


def given(dtype=torch.float64):
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in ((n, d), (n, D, d))]


def test_gradcheck():
    R, W = given()
    assert torch.autograd.gradcheck(lambda R, W: couplet.mpi_rows(R, W, scale=2.0), (R, W))
    assert torch.autograd.gradgradcheck(couplet.mpi_rows, (R, W))


def test_the_gradient_is_that_of_the_method():
    R, W = given()
    drows = torch.randn(n, d, dtype=R.dtype)
    got = torch.autograd.grad(couplet.mpi_rows(R, W, 3.0), (R, W), drows)
    with torch.no_grad():
        h = torch.einsum("nd,nDd->nD", R, W)
        G = torch.einsum("nD,nDd->nd", h, W)
        length = G.norm(dim=1, keepdim=True)
        u = G / length
        dG = 3 / n**0.5 / length * (drows - u * (u * drows).sum(1, keepdim=True))
        dh = torch.einsum("nd,nDd->nD", dG, W)
        dR = torch.einsum("nD,nDd->nd", dh, W)
        dW = h[:, :, None] * dG[:, None] + dh[:, :, None] * R[:, None]
    all_close(got, [dR, dW], 1e-12)
    assert ((dR * R).sum(1) / R.norm(dim=1) / dR.norm(dim=1)).abs().max() < 1e-12


def test_many_iterations_reach_the_leading_direction():
    R, W = given()
    for _ in range(500):
        R = couplet.mpi_rows(R, W).detach()
    assert torch.allclose(R.norm(dim=1), torch.full((n,), n**-0.5, dtype=R.dtype))
    leading = torch.linalg.svd(W.detach()).Vh[:, 0]
    assert ((R * n**0.5 * leading).sum(1).abs() - 1).abs().max() < 1e-6


def test_forms_of_the_arguments():
    R, W = given(torch.float32)
    want = couplet.mpi_rows(R, W)
    assert torch.equal(couplet.mpi_rows(R, list(W)), want)
    assert couplet.mpi_rows(R.double(), W).dtype == torch.float64
    halves = couplet.mpi_rows(R.bfloat16(), W.bfloat16())
    assert halves.dtype == torch.float32 and (halves - want).norm() < 0.02 * want.norm()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(couplet.mpi_rows(R, W), want)


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(router=3), TypeError, "router is 3"),
        (dict(router=torch.ones(n)), TypeError, "router is a Tensor"),
        (dict(w_gate=torch.ones(n, D, d + 1)), ValueError, "w_gate is"),
        (dict(w_gate=torch.ones(n + 1, D, d)), ValueError, "w_gate is"),
        (dict(w_gate=torch.ones(n, D, d).int()), TypeError, "w_gate is torch.int32"),
        (dict(w_gate=None), TypeError, "w_gate is None"),
        (dict(scale=0), ValueError, "scale is 0"),
        (dict(scale=float("nan")), ValueError, "scale is nan"),
    ],
)
def test_arguments_that_are_refused(change, error, text):
    R, W = given(torch.float32)
    with pytest.raises(error, match=text):
        couplet.mpi_rows(**{**dict(router=R, w_gate=W), **change})
