"""The operator: gradients of every form of input, dtypes, and copies."""

import gc
import subprocess
import sys

import couplet
import pytest
import torch
import torch.utils._python_dispatch
import torch.utils.checkpoint
from conftest import accelerator_paths, all_close, close
from couplet.ops import _native, _operator, _plain
from couplet.ops._job import ACTIVATIONS, USES_GATE, USES_UP

n, d, D = 6, 12, 10


@pytest.fixture(params=("cpu", "accelerator"))
def device_path(request, monkeypatch):
    """Selects the code for the CPU, or the code for accelerators on CPU tensors."""
    if request.param == "accelerator":
        accelerator_paths(monkeypatch)
    return request.param


def model(dtype=torch.float32, grad=True, n=n, d=d, D=D):
    shapes = {"router": (n, d), "w_gate": (n, D, d), "w_up": (n, D, d), "w_down": (n, d, D)}
    return {name: torch.randn(shape, dtype=dtype).requires_grad_(grad) for name, shape in shapes.items()}


def used(activation):
    return (
        ["router"]
        + ["w_gate"] * (activation in USES_GATE)
        + ["w_up"] * (activation in USES_UP)
        + ["w_down"] * (activation == "output")
    )


def given(m, activation):
    """Returns the model's tensors that the activation takes."""
    return {name: m[name] for name in m if name in {"w_gate", *used(activation)}}


def operands(router, gate, up=(), down=(), **other):
    """Returns all arguments of the operator. `other` has the arguments without the usual values, by name."""
    usual = dict(delta=None, alpha_tensor=None, step_tensor=None, want=[True, True, False, False], half="", alpha=1.0)
    usual.update(weight=1.0, activation="gate", noise="bounded", seed=1, step=2, layer=3, draw=0, compute="f32")
    assert other.keys() <= usual.keys()
    return router, list(gate), list(up), list(down), *{**usual, **other}.values()


def gradients(loss, tensors):
    loss.backward()
    result = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    return result


# ---- right results ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", (0.0, 0.6, 1.0))
def test_gradcheck(activation, alpha):
    m = model(torch.float64, n=4, d=5, D=3)
    delta = 1 + 0.2 * torch.rand(4, 5, dtype=torch.float64)
    names = used(activation)

    def loss(*tensors):
        m2 = {**{k: v.detach() for k, v in m.items()}, **dict(zip(names, tensors))}
        return couplet.erc_loss(**given(m2, activation), alpha=alpha, weight=3.0, activation=activation, delta=delta)

    assert torch.autograd.gradcheck(loss, [m[name] for name in names])


def large(hinges):
    """Returns a router and gates whose gradients take more than _plain.LARGE bytes."""
    m = model(n=8, d=512, D=384)
    with torch.no_grad():
        if not hinges:  # Every expert answers its own row by far the most.
            own = torch.nn.functional.normalize(m["router"], dim=1)
            m["w_gate"] += 1000 * own[:, None, :]
    return m["router"], m["w_gate"]


@pytest.mark.parametrize("hinges", (True, False))
def test_large_gradients(hinges):
    router, gate = large(hinges)
    assert gate.numel() * 4 >= _plain.LARGE
    loss = couplet.erc_loss(router, gate, alpha=0.5, noise="none")
    assert (loss.item() > 0) == hinges
    loss.backward()
    first = [router.grad, gate.grad]
    router.grad = gate.grad = loss = None
    gc.collect()
    second = gradients(
        couplet.reference.erc_loss(router, gate, alpha=0.5, delta=torch.ones_like(router)), [router, gate]
    )
    all_close(first, second, 1e-5)
    close(first[1].add_(1), second[1] + 1, 1e-6)  # The memory was not written meanwhile, and it is writable.


def test_large_gradients_that_outlive_everything():
    program = (
        "import torch, couplet\n"
        "r, g = torch.randn(8, 512).requires_grad_(), torch.randn(8, 384, 512).requires_grad_()\n"
        "couplet.erc_loss(r, g).backward()\n"
        "torch.kept = g.grad\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_both_paths_agree_with_drawn_noise(activation):
    m = model()
    kw = dict(activation=activation, seed=2**63 + 5, step=2**33 + 1, layer=7, draw=2, weight=0.5)
    native = couplet.erc_loss(**given(m, activation), **kw)
    leaves = [m[name] for name in used(activation)]
    first = gradients(native, leaves)
    wide = {k: v.detach().double().requires_grad_() for k, v in m.items()}
    plain = couplet.erc_loss(**given(wide, activation), **kw)
    second = gradients(plain, [wide[name] for name in used(activation)])
    close(native, plain, 1e-5)
    all_close(first, second, 1e-5)


def test_the_reference_is_the_same_function():
    m = model(torch.float64)
    delta = 1 + 0.2 * torch.rand(n, d, dtype=torch.float64)
    ours = couplet.erc_loss(m["router"], m["w_gate"], delta=delta, alpha=0.7, weight=2)
    first = gradients(ours, [m["router"], m["w_gate"]])
    theirs = couplet.reference.erc_loss(m["router"], m["w_gate"], alpha=0.7, weight=2, delta=delta)
    close(ours, theirs, 1e-12)
    all_close(first, gradients(theirs, [m["router"], m["w_gate"]]), 1e-12)


@pytest.mark.parametrize("half", ("first", "second", "interleaved"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("activation", ("gate", "up", "swiglu", "gate_up"))
def test_fused(half, dtype, activation):
    m = model(dtype)
    gate, up = m["w_gate"].detach(), m["w_up"].detach()
    fused = (
        torch.stack((gate, up), 2).flatten(1, 2)
        if half == "interleaved"
        else torch.cat((gate, up) if half == "first" else (up, gate), 1)
    )
    fused.requires_grad_()
    want = couplet.erc_loss(**given(m, activation), activation=activation)
    m["router"].grad = None
    want.backward()
    loss = couplet.erc_loss(m["router"].detach(), fused, gate_half=half, activation=activation)
    loss.backward()
    close(loss, want, 1e-6)
    from couplet.ops._job import part

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
    """The library computes bf16 and plain torch f16. The result is the loss of the rounded weights, in f32."""
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


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.float16, torch.bfloat16))
@pytest.mark.parametrize("path", ("library", "plain", "accelerator"))
def test_autocast_changes_nothing(dtype, path, request, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)
    if path == "accelerator":
        accelerator_paths(monkeypatch, 3)
    m = model(dtype)
    leaves, results = list(m.values()), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = couplet.erc_loss(**m, activation="output", seed=3, alpha=0.7)
        results.append([loss.detach(), *gradients(loss, leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_router_f32_beside_bf16_experts():
    m = model(torch.bfloat16)
    router = m["router"].detach().float().requires_grad_()
    couplet.erc_loss(router, m["w_gate"]).backward()
    assert router.grad.dtype == torch.float32 and m["w_gate"].grad.dtype == torch.bfloat16


# ---- an operator ----


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("as_list", (False, True))
def test_opcheck(dtype, as_list, device_path):
    m = model(dtype)
    lists = [list(m[k].detach().unbind(0)) if as_list else [m[k]] for k in ("w_gate", "w_up", "w_down")]
    for many in lists:
        for t in many:
            t.requires_grad_()
    tensors = dict(alpha_tensor=torch.tensor(0.7), step_tensor=torch.tensor(2)) if as_list else {}
    other = dict(want=[True] * 4, weight=2.0, activation="output")
    torch.library.opcheck(_operator.erc, operands(m["router"], *lists, **other, **tensors))


def test_opcheck_of_what_is_not_wanted():
    m = model()
    other = dict(delta=torch.ones(n, d), want=[False, True, False, False])
    torch.library.opcheck(_operator.erc, operands(m["router"].detach(), [m["w_gate"]], **other))


@pytest.mark.parametrize("as_list", (False, True))
def test_what_a_compiler_lays_out_otherwise(as_list):
    """Inductor of torch 2.6 gives tensors that it makes itself other strides than were traced."""
    m = model(grad=False)
    by_columns = lambda t: t.mT.contiguous().mT
    evaluate = lambda router, gate: _operator.erc(*operands(router, gate if as_list else [gate]))
    for got, want in zip(
        evaluate(by_columns(m["router"]), by_columns(m["w_gate"])), evaluate(m["router"], m["w_gate"])
    ):
        close(got, want, 1e-6)


# ---- backward passes ----


def test_gradients_are_handed_over_not_copied(monkeypatch):
    made, versions = [], []
    whole = _operator.evaluate

    def evaluate(*arguments):
        result = whole(*arguments)
        made.append([t.data_ptr() for t in result])  # Shared tensors would be copied.
        versions.append(result[3]._version)
        return result

    monkeypatch.setattr(_operator, "evaluate", evaluate)
    m = model()
    couplet.erc_loss(m["router"], m["w_gate"]).backward()
    assert len(made) == 1
    assert [m["router"].grad.data_ptr(), m["w_gate"].grad.data_ptr()] == made[0][2:4]
    assert m["w_gate"].grad._version == versions[0]  # The gradient was not multiplied by 1.


class Large(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the operations whose result is at least as large as the gates."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= n * D * d:
            self.names.append(function.__name__)
        return result


def test_nothing_as_large_outside_the_operator():
    """Gradients are not copied, and outputs without a gradient get no zeros."""
    m = model()
    with Large() as large:
        loss = couplet.erc_loss(m["router"], m["w_gate"])
        loss.backward()
    assert [name for name in large.names if "detach" not in name] == []


def test_eager_mode_needs_no_operator(monkeypatch):
    """A call of an operator costs more than a small loss. Dispatch modes, as of fake tensors, still get the call."""
    m, called, whole = model(), [], _operator.erc
    monkeypatch.setattr(_operator, "erc", lambda *a: called.append(1) or whole(*a))
    first = gradients(couplet.erc_loss(m["router"], m["w_gate"]), [m["router"], m["w_gate"]])
    assert not called
    with Large():
        second = gradients(couplet.erc_loss(m["router"], m["w_gate"]), [m["router"], m["w_gate"]])
    assert called and all(torch.equal(a, b) for a, b in zip(first, second))


def test_gradients_among_the_outputs_have_none():
    m = model()
    out = _operator.erc(*operands(m["router"], [m["w_gate"]]))
    assert [t.requires_grad for t in out] == [True] + [False] * 7


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
@pytest.mark.parametrize("scale", (1 / 3, 65536.0))
@pytest.mark.parametrize("compiled", (False, True))
def test_a_scale_is_not_rounded(dtype, scale, compiled):
    """The scales are of gradient accumulation, and of a gradient scaler, which is beyond float16."""
    gradient = (1 + torch.rand(1000) / 2).div(8).to(dtype)
    by = torch.tensor(scale)
    want = (gradient.double() * by.double()).to(dtype)
    with torch.no_grad():
        scaled = _operator.scaled([gradient.clone()], torch.nn.Parameter(by) if compiled else by)[0]
    assert scaled.isfinite().all() and scaled.dtype == dtype and torch.equal(scaled, want)


@pytest.mark.parametrize(
    "path, weight, limit",
    (
        ("cpu", 1e-2, 1e-3),
        ("accelerator", 1e-2, 1e-3),
        # On an accelerator a factor enters the products. The weight / n^2 is below the smallest number of float16.
        ("accelerator", 1e-6, 4e-3),
    ),
)
def test_a_gradient_scaler_with_float16(path, weight, limit, monkeypatch):
    if path == "accelerator":
        accelerator_paths(monkeypatch)
    m = {k: v.detach().half().requires_grad_() for k, v in given(model(), "gate").items()}
    wide = {k: v.detach().double().requires_grad_() for k, v in m.items()}
    scaled, want = (
        gradients(65536 * couplet.erc_loss(**tensors, weight=weight), list(tensors.values())) for tensors in (m, wide)
    )
    for a, b in zip(scaled, want):
        assert a.isfinite().all()
        close(a, b, limit)


def test_scaling_and_second_backward(device_path):
    m = model()
    loss = couplet.erc_loss(m["router"], m["w_gate"])
    (3 * loss).backward(retain_graph=True)
    three = m["w_gate"].grad.clone()
    m["w_gate"].grad = None
    loss.backward()  # On the CPU the first pass scaled the gradients in place, so they are computed again.
    close(three, 3 * m["w_gate"].grad, 1e-6)


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes that a forward pass saves."""

    def __init__(self):
        self.bytes = 0
        super().__init__(self.pack, lambda t: t)

    def pack(self, t):
        self.bytes += t.nbytes
        return t


def test_what_an_accelerator_keeps_between_the_passes(monkeypatch):
    """Factors of the gradient are saved, n / d of its size. A weight is not saved, and may change or be freed."""
    accelerator_paths(monkeypatch)
    m = model(n=4, d=64, D=48)
    want = gradients(couplet.erc_loss(m["router"], m["w_gate"]), [m["router"], m["w_gate"]])
    gate = m["w_gate"].detach().clone()
    saved = Saved()
    with saved:
        loss = couplet.erc_loss(m["router"], m["w_gate"])
    assert saved.bytes <= m["w_gate"].nbytes * 4 / 64 + 2 * m["router"].nbytes
    with torch.no_grad():
        m["w_gate"].zero_()
    for a, b in zip(gradients(loss, [m["router"], m["w_gate"]]), want):
        assert torch.equal(a, b)
    m["w_gate"].data = gate


@pytest.mark.parametrize("use_reentrant", (False, True))
def test_checkpointing(use_reentrant, device_path):
    m = model()
    leaves = [m["router"], m["w_gate"]]
    want = gradients(couplet.erc_loss(*leaves, step=3), leaves)
    run = lambda *t: couplet.erc_loss(*t, step=3)
    loss = torch.utils.checkpoint.checkpoint(run, *leaves, use_reentrant=use_reentrant)
    for a, b in zip(gradients(loss, leaves), want):
        assert torch.equal(a, b)


def test_a_half_of_which_nothing_is_used_has_zeros(device_path):
    """Fused gates are given beside separate up projections."""
    m = model()
    fused = torch.cat((m["w_gate"], m["w_up"]), 1).detach().requires_grad_()
    couplet.erc_loss(m["router"], fused, w_up=m["w_up"], gate_half="first", activation="swiglu").backward()
    assert not fused.grad[:, D:].any() and fused.grad[:, :D].any() and m["w_up"].grad.any()


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


def test_create_graph_and_no_second_derivative(device_path):
    """create_graph is allowed. A derivative of the gradients raises an error instead of giving zeros."""
    m = model()
    leaves = [m["router"], m["w_gate"]]
    loss = couplet.erc_loss(*leaves)
    first = torch.autograd.grad(3 * loss, leaves, create_graph=True)
    for a, b in zip(first, torch.autograd.grad(3 * couplet.erc_loss(*leaves), leaves)):
        assert torch.equal(a, b) and a.requires_grad
    with pytest.raises(RuntimeError, match="couplet: the coupling loss has no second derivative"):
        (first[0].square().sum() + m["router"].sum()).backward()


def test_no_gradient_is_kept_alive(device_path):
    def large():
        gc.collect()
        return sum(type(t) in (torch.Tensor, torch.nn.Parameter) and t.shape == (n, D, d) for t in gc.get_objects())

    m = model()
    before = large()
    loss = couplet.erc_loss(m["router"], m["w_gate"])
    loss.backward()
    m["w_gate"].grad = None
    assert large() == before


def test_a_tracer_before_dispatch_sees_the_operator():
    if not hasattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch"):
        pytest.skip("PyTorch has no such tracer yet")
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda R, W: couplet.erc_loss(R, W, noise="none"), pre_dispatch=True)(
        torch.randn(4, 6), torch.randn(4, 3, 6)
    )
    assert any("couplet" in str(node.target) for node in traced.graph.nodes)
