"""Arguments of a caller: layouts of tensors in memory, warnings, and the error messages for refused arguments."""

import warnings

import couplet
import pytest
import torch
import torch.utils.checkpoint
from conftest import accelerator_paths, all_close, close
from couplet.ops import _native
from test_operator import D, d, given, gradients, model, n

# ---- memory as it lies ----


def test_strided_rows_are_no_copy():
    wide = torch.randn(n, D, 2 * d)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = couplet.erc_loss(torch.ones(n, d), wide[..., :d])
    close(got, couplet.erc_loss(torch.ones(n, d), wide[..., :d].contiguous()), 1e-7)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("path", ("as chosen", "accelerator"))
def test_columns(dtype, path, monkeypatch):
    """Gates [n, d, D] are passed transposed. The gradient has the layout of the parameter."""
    if path == "accelerator":
        accelerator_paths(monkeypatch, 2)
    m = model(dtype)
    columns = m["w_gate"].detach().transpose(1, 2).contiguous().requires_grad_()
    want, got = couplet.erc_loss(m["router"], m["w_gate"]), couplet.erc_loss(m["router"], columns.transpose(1, 2))
    close(got, want, 1e-6)
    want.backward(), got.backward()
    close(columns.grad.transpose(1, 2), m["w_gate"].grad, 1e-6)
    assert columns.grad.is_contiguous()


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_rows_that_share_their_memory(dtype):
    one = torch.randn(n, 1, d, dtype=dtype)
    got = couplet.erc_loss(torch.ones(n, d), one.expand(n, D, d))
    close(got, couplet.erc_loss(torch.ones(n, d), one.repeat(1, D, 1)), 1e-6)


@pytest.mark.parametrize("strides", ((30, 0, 1), (30, 1, 1), (30, 30, 1)))
@pytest.mark.parametrize("as_list", (False, True))
def test_the_stride_of_a_single_row_is_nothing(strides, as_list):
    numbers = torch.randn(n * 30)
    gates = numbers.as_strided((n, 1, d), strides)
    want = couplet.erc_loss(torch.ones(n, d), gates.clone(memory_format=torch.contiguous_format).double())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(couplet.erc_loss(torch.ones(n, d), list(gates) if as_list else gates), want, 1e-6)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_rows_that_overlap(dtype):
    numbers = torch.randn(n, D + d - 1, dtype=dtype, requires_grad=True)
    want = couplet.erc_loss(torch.ones(n, d), numbers.unfold(1, d, 1).contiguous())
    wanted = torch.autograd.grad(want, numbers)[0]
    got = couplet.erc_loss(torch.ones(n, d), numbers.unfold(1, d, 1))
    close(got, want, 1e-6)
    close(torch.autograd.grad(got, numbers)[0], wanted, 1e-6)


# ---- alpha outside of 0.1 to 1 ----


@pytest.mark.parametrize(
    "alpha, why", ((1.5, "alpha 1.5 is above 1"), (0.09, "alpha 0.09 is below 0.1: at"), (0, "0.1"))
)
def test_alpha_is_warned_of(alpha, why):
    m = model(grad=False)
    with pytest.warns(UserWarning, match=why) as warned:
        couplet.erc_loss(m["router"], m["w_gate"], alpha=alpha)
    assert [w.filename for w in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for alpha in (0.1, 1.0):
            couplet.erc_loss(m["router"], m["w_gate"], alpha=alpha)


def test_alpha_of_a_module_is_warned_of():
    m, module = model(grad=False), couplet.ErcLoss(alpha=0.05)
    with pytest.warns(UserWarning, match="alpha 0.05 is below 0.1") as warned:
        module(m["router"], m["w_gate"], step=0)
    assert [w.filename for w in warned] == [__file__]


# ---- bad input: sentences, never a crash ----

TRANSFORMS = {
    "vmap": lambda f, r: torch.func.vmap(f)(torch.stack((r, r))),
    "grad": lambda f, r: torch.func.grad(f)(r),
    "jvp": lambda f, r: torch.func.jvp(f, (r,), (r,)),
    "hessian": lambda f, r: torch.func.hessian(f)(r),
    "autograd.functional.jvp": lambda f, r: torch.autograd.functional.jvp(f, r, r, strict=True),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_refused(name):
    m = model(grad=False)
    with pytest.raises((NotImplementedError, RuntimeError), match="couplet: the coupling loss"):
        TRANSFORMS[name](lambda r: couplet.erc_loss(r, m["w_gate"]), m["router"])


def test_forward_derivative_is_refused():
    m = model(grad=False)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError):
        dual = torch.autograd.forward_ad.make_dual(m["router"], m["router"])
        couplet.erc_loss(dual, m["w_gate"])


def test_checkpointed():
    m = model()
    loss = lambda r, w: couplet.erc_loss(r, 2 * w)
    want = gradients(loss(m["router"], m["w_gate"]), [m["router"], m["w_gate"]])
    for reentrant in (False, True):
        got = torch.utils.checkpoint.checkpoint(loss, m["router"], m["w_gate"], use_reentrant=reentrant)
        all_close(gradients(got, [m["router"], m["w_gate"]]), want, 1e-6)


def test_one_expert():
    m = model()
    loss = couplet.erc_loss(m["router"][:1], m["w_gate"][:1])
    loss.backward()
    assert loss.item() == 0 and not m["w_gate"].grad.any()


@pytest.mark.parametrize("plain", (False, True), ids=("library", "plain"))
def test_not_a_number(plain, monkeypatch):
    if plain:
        monkeypatch.setattr(_native, "fits", lambda job: False)
    m = model()
    for name in ("router", "w_gate"):
        sick = {k: v.detach().clone() for k, v in m.items()}
        sick[name][1, 2] = float("nan")
        assert couplet.erc_loss(sick["router"].requires_grad_(), sick["w_gate"]).isnan()


@pytest.mark.parametrize("plain", (False, True), ids=("library", "plain"))
@pytest.mark.parametrize("noise", ("bounded", "none"))
@pytest.mark.parametrize("alpha", (0.0, 1.0))
@pytest.mark.parametrize("activation", ("gate", "output"))
def test_not_a_number_in_the_router_reaches_every_gradient(plain, noise, alpha, activation, monkeypatch):
    if plain:
        monkeypatch.setattr(_native, "fits", lambda job: False)
    m = given(model(), activation)
    with torch.no_grad():
        m["router"][1, 2] = float("nan")
    couplet.erc_loss(**m, noise=noise, alpha=alpha, activation=activation).backward()
    assert m["router"].grad[1].isnan().all()
    for name in m:
        assert name == "router" or m[name].grad.isnan().all(), name


@pytest.mark.parametrize("function", (couplet.erc_loss, couplet.erc_loss_ep, couplet.reference.erc_loss))
def test_only_router_and_gates_by_position(function):
    """The third argument differs between these functions, so it cannot be given by position."""
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        function(torch.ones(n, d), torch.ones(n, D, d), 0.1)


WRONG = {
    "w_up is given, but the activation 'gate' does not use it": dict(w_up=torch.ones(n, D, d)),
    "w_up is given, but the activation 'silu' does not": dict(activation="silu", w_up=torch.ones(n, D, d)),
    "w_down is given, but the activation 'swiglu' does not use it; leave it out, or choose output": dict(
        activation="swiglu", w_down=torch.ones(n, d, D)
    ),
    "the number of experts (rows of the router) is 0, must be 1 ... 65535": dict(
        router=torch.ones(0, d), w_gate=torch.ones(0, D, d)
    ),
    "alpha is -1, must be a number >= 0": dict(alpha=-1),
    "alpha is nan": dict(alpha=float("nan")),
    "weight is inf": dict(weight=float("inf")),
    "step is -1, layer 0 and draw 0; must be whole numbers from 0, step below 2^40": dict(step=-1),
    "layer and draw below": dict(layer=1 << 16),
    "layer and draw below ": dict(draw=1 << 40),
    "delta[0,0] is nan, must be finite": dict(delta=torch.full((n, d), float("nan"))),
    "w_gate is [6, 10, 11], must be [6, 10, 12]": dict(w_gate=torch.ones(n, D, d - 1)),
    "w_gate is [6, 12, 10], must be [6, 10, 12] beside a router [6, 12]; if its matrices are transposed, pass "
    "w_gate.mT": dict(w_gate=torch.ones(n, d, D)),
    "if its matrices are transposed, pass the .mT of each": dict(w_gate=[torch.ones(d, D)] * n),
    "w_gate is [6, 12, 20], must be [6, 20, 12] beside a router [6, 12]; if its matrices are transposed": dict(
        w_gate=torch.ones(n, d, 2 * D), gate_half="first"
    ),
    "w_up is [6, 12, 10], must be [6, 10, 12] beside a router [6, 12]; if its matrices are transposed, pass "
    "w_up.mT": dict(activation="swiglu", w_up=torch.ones(n, d, D)),
    "w_down is [6, 10, 12], must be [6, 12, 10] beside a router [6, 12]; if its matrices are transposed": dict(
        activation="output", w_down=torch.ones(n, D, d)
    ),
    "w_gate is [5, 10, 12]": dict(w_gate=torch.ones(n - 1, D, d)),
    "delta is [6, 11]": dict(delta=torch.ones(n, d - 1)),
    "activation is 'relu', must be one of": dict(activation="relu"),
    "noise is 'much'": dict(noise="much"),
    "gate_half is 'third'": dict(gate_half="third"),
    "w_gate is None, which the activation 'gate' needs": dict(w_gate=None),
    "w_up is None, which the activation 'up' needs; give it, or gate_half": dict(activation="up", w_up=None),
    "compute is 'f8'": dict(compute="f8"),
    "rows an expert, which gate and up cannot share": dict(w_gate=torch.ones(n, 5, d), gate_half="first"),
    "router is a tensor [12], must be a tensor [n, d], a row for each expert": dict(router=torch.ones(d)),
    "w_gate is [6, 10, 12], must be [12, 10, 6] beside a router [12, 6]; if the router is transposed, pass router.mT": dict(
        router=torch.ones(d, n)
    ),
    "router is a Linear, must be a tensor": dict(router=torch.nn.Linear(d, n)),
    "w_gate is a Linear, must be a tensor [n, D, d] or a list of n": dict(w_gate=torch.nn.Linear(d, D)),
    "w_gate is a ModuleList with a Linear, must be": dict(w_gate=torch.nn.ModuleList([torch.nn.Linear(d, D)])),
    "w_gate is 5, must be a tensor": dict(w_gate=5),
    "w_gate is torch.uint8, must be float32, bfloat16, float16 or float64. Quantised routers and experts are not": dict(
        w_gate=torch.ones(n * D * d // 2, 1, dtype=torch.uint8)[None]
    ),
    "w_gate is torch.int32": dict(w_gate=torch.ones(n, D, d, dtype=torch.int32)),
    "w_gate is on meta": dict(w_gate=torch.ones(n, D, d, device="meta")),
    "they must be alike": dict(activation="swiglu", w_up=torch.ones(n, D, d, dtype=torch.float16)),
    "w_gate is a list without any, must be a tensor": dict(w_gate=[]),
    "w_gate is torch.float64, w_gate is torch.float32; they must be alike": dict(
        w_gate=[torch.ones(D, d, dtype=torch.float64 if e else torch.float32) for e in range(n)]
    ),
    "w_gate is torch.sparse_coo, must be dense": dict(w_gate=torch.ones(n, D, d).to_sparse()),
    "router is torch.sparse_coo, must be dense": dict(router=torch.ones(n, d).to_sparse()),
    "delta is a list, must be a tensor": dict(delta=[1.0]),
    "delta is torch.complex64": dict(delta=torch.ones(n, d, dtype=torch.complex64)),
    "alpha is '1', must be a number": dict(alpha="1"),
    "alpha is None, must be a number": dict(alpha=None),
    "weight needs a gradient": dict(weight=torch.ones((), requires_grad=True)),
    "step is 1.5, must be a whole number": dict(step=1.5),
    "seed is 18446744073709551616, must be below 2^64": dict(seed=1 << 64),
}


@pytest.mark.parametrize("sentence", WRONG)
@pytest.mark.parametrize("plain", (False, True), ids=("library", "plain"))
def test_wrong(sentence, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(_native, "fits", lambda job: False)
    with pytest.raises((ValueError, TypeError)) as error:
        couplet.erc_loss(**{**given(model(grad=False), WRONG[sentence].get("activation", "gate")), **WRONG[sentence]})
    assert sentence.strip() in str(error.value) and str(error.value).startswith("couplet: ")
