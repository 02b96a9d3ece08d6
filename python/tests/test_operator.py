"""The operator: gradients of every form of input, dtypes, what is copied and what not."""
import gc
import subprocess
import sys
import warnings

import pytest
import torch
import torch.utils._python_dispatch
import torch.utils.checkpoint

import couplet
from conftest import close
from couplet import _native, _operator
from couplet._job import USES_GATE, USES_UP

n, d, D = 6, 12, 10
ACTIVATIONS = ("gate", "up", "silu", "swiglu", "output")


def model(dtype=torch.float32, grad=True, n=n, d=d, D=D):
    shapes = {"router": (n, d), "w_gate": (n, D, d), "w_up": (n, D, d), "w_down": (n, d, D)}
    return {name: torch.randn(shape, dtype=dtype).requires_grad_(grad)
            for name, shape in shapes.items()}


def used(activation):
    return ["router"] + ["w_gate"] * (activation in USES_GATE) + \
        ["w_up"] * (activation in USES_UP) + ["w_down"] * (activation == "output")


def gradients(loss, tensors):
    loss.backward()
    result = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    return result


# ---- right ----

@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", (0.0, 0.6, 1.0))
def test_gradcheck(activation, alpha):
    m = model(torch.float64, n=4, d=5, D=3)
    delta = 1 + 0.2 * torch.rand(4, 5, dtype=torch.float64)
    names = used(activation)

    def loss(*tensors):
        m2 = {**{k: v.detach() for k, v in m.items()}, **dict(zip(names, tensors))}
        return couplet.erc_loss(**m2, alpha=alpha, weight=3.0, activation=activation, delta=delta)

    assert torch.autograd.gradcheck(loss, [m[name] for name in names])

def large(hinges):
    """Gradients of more than _native._LARGE bytes."""
    m = model(n=8, d=512, D=384)
    with torch.no_grad():
        if not hinges:  # every expert answers its own row by far the most
            own = torch.nn.functional.normalize(m["router"], dim=1)
            m["w_gate"] += 1000 * own[:, None, :]
    return m["router"], m["w_gate"]


@pytest.mark.parametrize("hinges", (True, False))
def test_large_gradients(hinges):
    router, gate = large(hinges)
    assert gate.numel() * 4 >= _native._LARGE
    loss = couplet.erc_loss(router, gate, alpha=0.5, noise="none")
    assert (loss.item() > 0) == hinges
    loss.backward()
    first = [router.grad, gate.grad]
    router.grad = gate.grad = loss = None
    gc.collect()
    second = gradients(couplet.reference.erc_loss(router, gate, 0.5, 1.0, torch.ones_like(router)),
                       [router, gate])
    for a, b in zip(first, second):
        close(a, b, 1e-5)
    close(first[1].add_(1), second[1] + 1, 1e-6)  # nobody wrote there; it can be written


def test_large_gradients_that_outlive_everything():
    program = ("import torch, couplet\n"
               "r, g = torch.randn(8, 512).requires_grad_(), torch.randn(8, 384, 512).requires_grad_()\n"
               "couplet.erc_loss(r, g).backward()\n"
               "torch.kept = g.grad\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_both_paths_agree_with_drawn_noise(activation):
    m = model()
    kw = dict(activation=activation, seed=2**63 + 5, step=2**33 + 1, layer=7, draw=2, weight=0.5)
    native = couplet.erc_loss(**m, **kw)
    leaves = [m[name] for name in used(activation)]
    first = gradients(native, leaves)
    wide = {k: v.detach().double().requires_grad_() for k, v in m.items()}
    plain = couplet.erc_loss(**wide, **kw)
    second = gradients(plain, [wide[name] for name in used(activation)])
    close(native, plain, 1e-5)
    for a, b in zip(first, second):
        close(a, b, 1e-5)


def test_the_reference_is_the_same_function():
    m = model(torch.float64)
    delta = 1 + 0.2 * torch.rand(n, d, dtype=torch.float64)
    ours = couplet.erc_loss(m["router"], m["w_gate"], delta=delta, alpha=0.7, weight=2)
    first = gradients(ours, [m["router"], m["w_gate"]])
    theirs = couplet.reference.erc_loss(m["router"], m["w_gate"], 0.7, 2, delta)
    close(ours, theirs, 1e-12)
    for a, b in zip(first, gradients(theirs, [m["router"], m["w_gate"]])):
        close(a, b, 1e-12)


@pytest.mark.parametrize("half", ("first", "second", "interleaved"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("activation", ("gate", "up", "swiglu"))
def test_fused(half, dtype, activation):
    m = model(dtype)
    gate, up = m["w_gate"].detach(), m["w_up"].detach()
    fused = torch.stack((gate, up), 2).flatten(1, 2) if half == "interleaved" else \
        torch.cat((gate, up) if half == "first" else (up, gate), 1)
    fused.requires_grad_()
    want = couplet.erc_loss(**m, activation=activation)
    m["router"].grad = None
    want.backward()
    loss = couplet.erc_loss(m["router"].detach(), fused, gate_half=half, activation=activation)
    loss.backward()
    close(loss, want, 1e-6)
    from couplet._job import part
    for t, is_gate in ((m["w_gate"], True), (m["w_up"], False)):
        want_grad = torch.zeros_like(t) if t.grad is None else t.grad
        close(part(fused.grad, half, is_gate), want_grad, 1e-5)


@pytest.mark.parametrize("count", (1, n))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_lists(count, dtype):
    m = model(dtype)
    router, whole = m["router"].detach()[:count], m["w_gate"].detach()[:count].requires_grad_()
    couplet.erc_loss(router, whole).backward()
    each = [t.clone().requires_grad_() for t in whole.detach()]
    couplet.erc_loss(router, each).backward()
    for t, want in zip(each, whole.grad):
        close(t.grad, want, 1e-6)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_low_precision_weights(dtype):
    """bf16 by the library, f16 in plain torch: the loss of the rounded weights, in f32."""
    m = {k: v.detach().to(dtype).requires_grad_() for k, v in model().items()}
    wide = {k: v.detach().double().requires_grad_() for k, v in m.items()}
    kw = dict(activation="output", seed=3)
    loss, want = couplet.erc_loss(**m, **kw), couplet.erc_loss(**wide, **kw)
    assert loss.dtype == torch.float32
    close(loss, want, 1e-5)
    loss.backward(), want.backward()
    for name in m:
        assert m[name].grad.dtype == dtype
        close(m[name].grad, wide[name].grad, 1e-2, name)


def test_router_f32_beside_bf16_experts():
    m = model(torch.bfloat16)
    router = m["router"].detach().float().requires_grad_()
    couplet.erc_loss(router, m["w_gate"]).backward()
    assert router.grad.dtype == torch.float32 and m["w_gate"].grad.dtype == torch.bfloat16


# ---- an operator ----

@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("as_list", (False, True))
def test_opcheck(dtype, as_list):
    m = model(dtype)
    lists = [list(m[k].detach().unbind(0)) if as_list else [m[k]] for k in ("w_gate", "w_up", "w_down")]
    for many in lists:
        for t in many:
            t.requires_grad_()
    arguments = (m["router"], *lists, None, [True] * 4, "", 1.0, 2.0, "output", "bounded", 1, 2, 3, 0,
                 "f32")
    torch.library.opcheck(_operator.erc, arguments)


def test_opcheck_of_what_is_not_wanted():
    m = model()
    arguments = (m["router"].detach(), [m["w_gate"]], [], [], torch.ones(n, d),
                 [False, True, False, False], "", 1.0, 1.0, "gate", "bounded", 1, 2, 3, 0, "f32")
    torch.library.opcheck(_operator.erc, arguments)


# ---- what a backward pass does ----

def test_gradients_are_handed_over_not_copied(monkeypatch):
    made = []
    whole = _operator.evaluate

    def evaluate(*arguments):
        result = whole(*arguments)
        made.append([t.data_ptr() for t in result])  # the tensors themselves would be shared, so copied
        return result

    monkeypatch.setattr(_operator, "evaluate", evaluate)
    m = model()
    couplet.erc_loss(m["router"], m["w_gate"]).backward()
    assert len(made) == 1
    assert [m["router"].grad.data_ptr(), m["w_gate"].grad.data_ptr()] == made[0][1:3]
    assert m["w_gate"].grad._version == 0  # nor multiplied by 1


class Large(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operations that make something as large as the gates."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= n * D * d:
            self.names.append(function.__name__)
        return result


def test_nothing_as_large_outside_the_operator():
    """No copy of a gradient, and no zeros for gradients of outputs that have none."""
    m = model()
    with Large() as large:
        loss = couplet.erc_loss(m["router"], m["w_gate"])
        loss.backward()
    assert [name for name in large.names if "detach" not in name] == []


def test_gradients_among_the_outputs_have_none():
    m = model()
    out = _operator.erc(m["router"], [m["w_gate"]], [], [], None, [True, True, False, False], "", 1.0, 1.0,
                        "gate", "bounded", 1, 2, 3, 0, "f32")
    assert [t.requires_grad for t in out] == [True] + [False] * 4


def test_scaling_and_second_backward():
    m = model()
    loss = couplet.erc_loss(m["router"], m["w_gate"])
    (3 * loss).backward(retain_graph=True)
    three = m["w_gate"].grad.clone()
    m["w_gate"].grad = None
    loss.backward()  # the first one scaled the gradients in place: they are made again
    close(three, 3 * m["w_gate"].grad, 1e-6)


def test_only_what_is_wanted(monkeypatch):
    wants = []
    whole = _operator.evaluate
    monkeypatch.setattr(_operator, "evaluate", lambda *a: wants.append(list(a[5])) or whole(*a))
    m = model()
    couplet.erc_loss(m["router"].detach(), m["w_gate"]).backward()
    with torch.no_grad():
        assert not couplet.erc_loss(m["router"], m["w_gate"]).requires_grad
    couplet.erc_loss(m["router"].detach(), m["w_gate"].detach())
    assert wants == [[False, True, False, False], [False] * 4, [False] * 4]


def test_no_second_derivative():
    m = model()
    loss = couplet.erc_loss(m["router"], m["w_gate"])
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(loss, m["router"], create_graph=True)


def test_no_gradient_is_kept_alive():
    def large():
        gc.collect()
        return sum(type(t) in (torch.Tensor, torch.nn.Parameter) and t.shape == (n, D, d)
                   for t in gc.get_objects())

    m = model()
    before = large()
    loss = couplet.erc_loss(m["router"], m["w_gate"])
    loss.backward()
    m["w_gate"].grad = None
    assert large() == before


# ---- memory as it lies ----

def test_strided_rows_are_no_copy():
    wide = torch.randn(n, D, 2 * d)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = couplet.erc_loss(torch.ones(n, d), wide[..., :d])
    close(got, couplet.erc_loss(torch.ones(n, d), wide[..., :d].contiguous()), 1e-7)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_columns_are_copied_with_a_warning(dtype):
    m = model(dtype)
    columns = m["w_gate"].detach().transpose(1, 2).contiguous().requires_grad_()
    want = couplet.erc_loss(m["router"], m["w_gate"])
    with pytest.warns(UserWarning, match="w_gate are not contiguous") as warned:
        got = couplet.erc_loss(m["router"], columns.transpose(1, 2))
    assert [w.filename for w in warned] == [__file__]  # the caller's line: Python says it once there
    close(got, want, 1e-6)
    want.backward(), got.backward()
    close(columns.grad.transpose(1, 2), m["w_gate"].grad, 1e-6)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_rows_that_share_their_memory_are_copied(dtype):
    one = torch.randn(n, 1, d, dtype=dtype)
    with pytest.warns(UserWarning, match="w_gate are not contiguous"):
        got = couplet.erc_loss(torch.ones(n, d), one.expand(n, D, d))
    close(got, couplet.erc_loss(torch.ones(n, d), one.repeat(1, D, 1)), 1e-6)


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
        for a, b in zip(gradients(got, [m["router"], m["w_gate"]]), want):
            close(a, b, 1e-6)


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


WRONG = {
    "n_experts is 0": dict(router=torch.ones(0, d), w_gate=torch.ones(0, D, d)),
    "alpha is -1, must be a number >= 0": dict(alpha=-1),
    "alpha is nan": dict(alpha=float("nan")),
    "weight is inf": dict(weight=float("inf")),
    "step must be below 2^40": dict(step=-1),
    "layer and draw below": dict(layer=1 << 16),
    "layer and draw below ": dict(draw=1 << 40),
    "is not finite": dict(delta=torch.full((n, d), float("nan"))),
    "w_gate is [6, 10, 11], must be [6, 10, 12]": dict(w_gate=torch.ones(n, D, d - 1)),
    "w_gate is [5, 10, 12]": dict(w_gate=torch.ones(n - 1, D, d)),
    "delta is [6, 11]": dict(delta=torch.ones(n, d - 1)),
    "activation is 'relu', must be one of": dict(activation="relu"),
    "noise is 'much'": dict(noise="much"),
    "gate_half is 'third'": dict(gate_half="third"),
    "needs the matrices gate, which are NULL": dict(w_gate=None),
    "needs the matrices up, which are NULL": dict(activation="up", w_up=None),
    "compute is 'f8'": dict(compute="f8"),
    "rows an expert, which gate and up cannot share": dict(w_gate=torch.ones(n, 5, d),
                                                          gate_half="first"),
    "router must be a tensor": dict(router=torch.ones(d)),
    "w_gate is torch.int32": dict(w_gate=torch.ones(n, D, d, dtype=torch.int32)),
    "w_gate is on meta": dict(w_gate=torch.ones(n, D, d, device="meta")),
    "they must be alike": dict(activation="swiglu", w_up=torch.ones(n, D, d, dtype=torch.float16)),
    "must be a tensor": dict(w_gate=[]),
    "w_gate is torch.float64, w_gate is torch.float32; they must be alike": dict(
        w_gate=[torch.ones(D, d, dtype=torch.float64 if e else torch.float32) for e in range(n)]),
    "w_gate is torch.sparse_coo, must be dense": dict(w_gate=torch.ones(n, D, d).to_sparse()),
    "router is torch.sparse_coo, must be dense": dict(router=torch.ones(n, d).to_sparse()),
    "delta is list, must be a tensor": dict(delta=[1.0]),
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
        couplet.erc_loss(**{**model(grad=False), **WRONG[sentence]})
    assert sentence.strip() in str(error.value) and str(error.value).startswith("cpl_erc: ")
