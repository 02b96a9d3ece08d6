"""erc.backward: the gradients of erc.loss().backward(), added to `.grad` directly."""

import copy
import subprocess
import sys

import couplet
import pytest
import torch
from conftest import ROOT, accelerator_paths, all_close, close
from couplet.ops import _native
from torch import nn

n, d, D, LAYERS = 6, 16, 10, 3


class Model(nn.Module):
    """Has layers that look like a model's, and an output that reaches every parameter."""

    def __init__(self, rows=D, dtype=torch.float32):
        super().__init__()
        self.routers = nn.ParameterList([nn.Parameter(torch.randn(n, d, dtype=dtype)) for _ in range(LAYERS)])
        self.gates = nn.ParameterList([nn.Parameter(torch.randn(n, rows, d, dtype=dtype)) for _ in range(LAYERS)])

    def forward(self, x):
        for router, gates in zip(self.routers, self.gates):
            share = torch.softmax(x @ router.mT, -1)
            x = x + torch.einsum("bn,nrd,bd->bd", share, gates, x).tanh()
        return x.square().mean()


def attach_loss(model, **more):
    return couplet.attach(model, list(zip(model.routers, model.gates)), weight=2.0, alpha=0.7, seed=5, **more)


def gradients(model):
    return [p.grad for p in model.parameters()]


@pytest.fixture(params=("library", "plain", "accelerator"))
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)
    if request.param == "accelerator":
        accelerator_paths(monkeypatch, 2)
    return request.param


@pytest.mark.parametrize("half", (None, "first", "second", "interleaved"))
@pytest.mark.parametrize("order", ("alone", "before", "after"))
def test_same_as_the_loss(half, order, path):
    ours = Model(2 * D if half else D)
    theirs, x = copy.deepcopy(ours), torch.randn(4, d)
    erc, other = attach_loss(ours, gate_half=half), attach_loss(theirs, gate_half=half)
    for _ in range(2):
        for model in (ours, theirs):
            model.zero_grad()
        loss = other.loss() if order == "alone" else other.loss() + theirs(x)
        loss.backward()
        if order == "after":
            ours(x).backward()
        value = erc.backward()
        assert not value.requires_grad and erc.backward() == 0  # The second call of a step adds nothing.
        if order == "before":
            ours(x).backward()
        close(value, 2.0 * other.value, 1e-6)
        all_close(gradients(ours), gradients(theirs), 1e-6)
        for model in (ours, theirs):
            torch.optim.SGD(model.parameters(), lr=0.01).step()
    assert erc.step == other.step == 1


@pytest.mark.parametrize("dtype, limit", ((torch.float64, 1e-12), (torch.bfloat16, 1e-2)), ids=str)
def test_other_dtypes(dtype, limit, path):
    ours = Model(dtype=dtype)
    theirs = copy.deepcopy(ours)
    attach_loss(ours).backward()
    attach_loss(theirs).loss().backward()
    for got, want in zip(gradients(ours), gradients(theirs)):
        assert got.dtype == dtype
        close(got, want, limit)


class Lists(nn.Module):
    """Has the weights of a Model, with one parameter for each expert."""

    def __init__(self, whole):
        super().__init__()
        self.routers = copy.deepcopy(whole.routers)
        self.experts = nn.ModuleList(
            [nn.ParameterList([nn.Parameter(g.detach().clone()) for g in gates]) for gates in whole.gates]
        )

    def attach_loss(self):
        return couplet.attach(
            self, [(r, list(e)) for r, e in zip(self.routers, self.experts)], weight=2.0, alpha=0.7, seed=5
        )


def test_lists_of_experts(path):
    whole = Model()
    apart = Lists(whole)
    apart.experts[0][2].grad = torch.ones(D, d)  # One expert has a gradient before the step.
    apart.attach_loss().backward()
    attach_loss(whole).backward()
    for gates, experts in zip(whole.gates, apart.experts):
        for j, expert in enumerate(experts):
            before = 1 if experts is apart.experts[0] and j == 2 else 0
            close(expert.grad - before, gates.grad[j], 2e-6)
    for a, b in zip(whole.routers, apart.routers):
        close(b.grad, a.grad, 1e-6)


@pytest.mark.parametrize("half", (None, "first"))
def test_transposed(half, path):
    """Gates [n, d, D] or [n, d, 2D], as in gpt-oss and Llama 4, are not copied. Gradients have the gates' layout."""
    rows = Model(2 * D if half else D)
    columns = copy.deepcopy(rows)
    for k in range(LAYERS):
        columns.gates[k] = nn.Parameter(rows.gates[k].detach().mT.contiguous())
    erc = couplet.attach(
        columns,
        list(zip(columns.routers, columns.gates)),
        weight=2.0,
        alpha=0.7,
        seed=5,
        gate_half=half,
        transposed=True,
    )
    erc.backward()
    attach_loss(rows, gate_half=half).backward()
    for a, b in zip(rows.gates, columns.gates):
        assert b.grad.is_contiguous()
        close(b.grad.mT, a.grad, 1e-6)


@pytest.mark.parametrize("scale", (65536.0, torch.tensor(65536.0)), ids=("number", "tensor"))
def test_scale_in_f16(scale, path):
    """A gradient that is finite in float16 does not overflow where it is computed."""
    ours = Model(dtype=torch.float16)
    theirs = copy.deepcopy(ours).float()
    attach_loss(ours).backward(scale)
    attach_loss(theirs).backward(scale)
    for got, want in zip(gradients(ours), gradients(theirs)):
        close(got, want.clamp(-65504, 65504), 2e-2)


@pytest.mark.parametrize("scale", (65536.0, torch.tensor(65536.0)), ids=("number", "tensor"))
def test_scale(scale, path):
    ours = Model()
    theirs = copy.deepcopy(ours)
    erc, other = attach_loss(ours), attach_loss(theirs)
    close(erc.backward(scale), other.loss().detach(), 1e-6)  # The scale does not apply to the returned loss.
    theirs.zero_grad()
    other.next_step(0)
    (other.loss() * scale).backward()
    all_close(gradients(ours), gradients(theirs), 1e-6)


def test_grad_scaler_accumulation_clipping():
    """A step is made as a trainer makes it, with three micro-batches, a gradient scaler and clipping."""
    ours, batches = Model(), [torch.randn(4, d) for _ in range(3)]
    theirs = copy.deepcopy(ours)
    results = []
    for model, is_ours in ((ours, True), (theirs, False)):
        erc = attach_loss(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if is_ours:
            erc.backward(scaler.get_scale() if scaler._scale is not None else scaler.scale(torch.ones(())))
        for batch in batches:
            loss = model(batch) / len(batches)
            scaler.scale(loss if is_ours else loss + erc.loss()).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        results.append((norm, [p.detach().clone() for p in model.parameters()]))
    close(results[0][0], results[1][0], 1e-6)
    all_close(results[0][1], results[1][1], 1e-6)


def test_what_needs_no_gradient_gets_none(path):
    model = Model()
    for p in model.gates:
        p.requires_grad_(False)
    attach_loss(model).backward()
    assert all(p.grad is None for p in model.gates) and all(p.grad.any() for p in model.routers)


def test_zero_without_weight(path):
    model = Model()
    erc = attach_loss(model)
    erc.weight = 0
    assert erc.backward() == 0 and all(g is None for g in gradients(model))


def test_another_attribute(path):
    model = Model()
    other = copy.deepcopy(model)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)
    attach_loss(model).backward(attribute="main_grad")
    attach_loss(other).backward()
    for p, q in zip(model.parameters(), other.parameters()):
        assert p.grad is None
        close(p.main_grad, q.grad, 1e-6)


def test_missing_attribute():
    with pytest.raises(ValueError, match="couplet: routers.0 has no attribute main_gard, to which"):
        attach_loss(Model()).backward(attribute="main_gard")


HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")
needs_grad_dtype = pytest.mark.skipif(not HAS_GRAD_DTYPE, reason="Tensor.grad_dtype came with PyTorch 2.10")


@needs_grad_dtype
@pytest.mark.parametrize("form", ("as it lies", "list in part", "parametrized"))
@pytest.mark.parametrize("order", ("before", "after", "loss"))
def test_gradients_of_another_dtype(form, order, path):
    """Parameters are bf16 and their gradients are f32 (p.grad_dtype). No bf16 gradient of the loss blocks the model's
    own gradients, and no gradient is rounded to bf16 where it is added in place."""
    torch.manual_seed(2)
    model = Model(dtype=torch.bfloat16)
    theirs = copy.deepcopy(model).float()
    if form == "list in part":
        model, theirs = Lists(model), Lists(theirs)
        for one in (model, theirs):
            one.experts[1][3].requires_grad_(False)
    erc, other = (one.attach_loss() if form == "list in part" else attach_loss(one) for one in (model, theirs))
    if form == "parametrized":
        for i in range(LAYERS):
            nn.utils.parametrize.register_parametrization(model.gates, str(i), nn.Identity())
    for p in model.parameters():
        p.grad_dtype = torch.float32
    if order == "after":
        sum(p.sum() for p in model.parameters() if p.requires_grad).backward()
    erc.loss().backward() if order == "loss" else erc.backward()
    if order == "before":
        sum(p.sum() for p in model.parameters() if p.requires_grad).backward()
    other.backward()
    rounded = form != "as it lies" or order == "loss" or path == "accelerator"
    for p, q in zip(model.parameters(), theirs.parameters()):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            assert p.grad.dtype == torch.float32
            close(p.grad - float(order != "loss"), q.grad, 1e-2 if rounded else 2e-5)


@needs_grad_dtype
def test_another_dtype_is_of_grad_alone(path):
    model = Model(dtype=torch.bfloat16)
    for p in model.parameters():
        p.grad_dtype = torch.float32
        p.main_grad = torch.zeros_like(p, dtype=torch.float32)
    attach_loss(model).backward(attribute="main_grad")
    assert all(p.grad is None and p.main_grad.any() for p in model.parameters())
    other = Model(dtype=torch.bfloat16)
    for p in other.parameters():
        p.grad_dtype = None  # The gradient may have any dtype.
    attach_loss(other).backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in other.parameters())


def test_inference_mode(path):
    """backward() adds gradients in every mode. loss() in inference mode is not counted and changes no later step."""
    model, other, x = Model(), None, torch.randn(4, d)
    other = copy.deepcopy(model)
    erc = attach_loss(model)
    with torch.inference_mode():
        seen = erc.loss()
        value = erc.backward()
    close(seen, value, 1e-6)
    attach_loss(other).backward()
    for got, want in zip(gradients(model), gradients(other)):
        assert not got.is_inference()
        close(got, want, 1e-6)
    model(x).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    erc.backward()
    assert erc.step == 1 and erc.metrics()["erc_last"] > 0


def test_a_model_of_inference_mode():
    with torch.inference_mode():
        model = Model()
    erc = attach_loss(model)
    with torch.no_grad():
        assert erc.loss() > 0 and erc.figures()["erc"] > 0
    for call in (erc.loss, erc.backward):
        with pytest.raises(ValueError, match="couplet: a router or gate was made under torch.inference_mode"):
            call()


def test_warnings_point_to_the_caller():
    model = Model()
    for p in model.parameters():
        p.requires_grad_(False)
    for call in ("loss", "backward"):
        with pytest.warns(UserWarning, match="nothing learns") as warned:
            getattr(attach_loss(model), call)()
        assert [w.filename for w in warned] == [__file__]


def test_metrics_follow():
    model = Model()
    erc = attach_loss(model)
    erc.backward()
    first = erc.metrics()
    assert first["erc"] == first["erc_last"] > 0 and len(erc.values) == LAYERS
    assert [M.shape for M in erc.matrices] == [(n, n)] * LAYERS
    close(torch.stack(erc.values).mean(), torch.tensor(first["erc"]), 1e-6)


@pytest.mark.parametrize("stride", ("wide rows", "every second", "transposed"))
def test_gradients_with_other_strides(stride, path):
    """The tensors in .grad have other strides than their parameters. Memory between their elements is not written."""
    whole, ours = Model(), None
    ours = copy.deepcopy(whole)
    room = torch.zeros(n, D, 2 * d) if stride != "transposed" else torch.zeros(n, d, D)
    view = {"wide rows": room[..., :d], "every second": room[..., ::2]}.get(stride, room.mT)
    ours.gates[0].grad = view
    apart = Lists(whole)
    one = torch.zeros(D, 2 * d)
    apart.experts[0][1].grad = one[:, :d]
    attach_loss(whole).backward(), attach_loss(ours).backward(), apart.attach_loss().backward()
    assert ours.gates[0].grad is view
    all_close(gradients(ours), gradients(whole), 1e-6)
    for experts, gates in zip(apart.experts, whole.gates):
        for expert, want in zip(experts, gates.grad):
            close(expert.grad, want, 2e-6)
    assert not one[:, d:].any() and (stride != "wide rows" or not room[..., d:].any())


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_a_list_that_is_trained_in_part(dtype, path):
    whole = Model(dtype=dtype)
    apart = Lists(whole)
    apart.experts[1][3].requires_grad_(False)
    apart.attach_loss().backward(), attach_loss(whole).backward()
    for experts, gates in zip(apart.experts, whole.gates):
        for j, expert in enumerate(experts):
            assert (expert.grad is None) == (not expert.requires_grad)
            if expert.grad is not None:
                close(expert.grad, gates.grad[j], 1e-2 if dtype == torch.bfloat16 else 2e-6)


def test_no_hook_is_called(path):
    """Hooks are not called either where autograd brings gradients to their parameters (bf16 by the library)."""
    for dtype in (torch.float32, torch.bfloat16):
        model, calls = Model(dtype=dtype), []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(calls.append)
        attach_loss(model).backward()
        assert not calls and all(p.grad is not None for p in model.parameters())


def test_steps_are_counted_on_from_next_step():
    """A resumed run gives the number of its step once, and the noise continues from this number."""
    model = Model()
    erc, optimizer = attach_loss(model), torch.optim.SGD(model.parameters(), lr=0.01)
    erc.next_step(100)
    steps = []
    for _ in range(4):
        erc.backward()
        steps.append(erc.step)
        optimizer.step()
    assert steps == [100, 101, 102, 103]


def test_tied_parameters_by_name_are_refused():
    model = nn.Module()
    model.router = nn.Parameter(torch.randn(2, d))
    model.a = model.b = nn.Parameter(torch.randn(D, d))
    with pytest.raises(ValueError, match="gate 1 is b, which layers.0.: gate 0 is too"):
        couplet.attach(model, [("router", ["a", "b"])])


@pytest.mark.parametrize(
    "scale, sentence",
    (
        (torch.ones(2), "scale is a tensor .2."),
        (float("nan"), "scale is nan"),
        ("x", "scale is 'x'"),
        (None, "scale is None"),
    ),
)
def test_scales_that_are_refused(scale, sentence):
    model = Model()
    with pytest.raises((ValueError, TypeError), match=sentence):
        attach_loss(model).backward(scale)
    assert all(g is None for g in gradients(model))


def test_memory_of_other_systems(monkeypatch):
    """Windows has no private anonymous pages."""
    from couplet.ops import _plain

    monkeypatch.delattr(_plain.mmap, "MAP_PRIVATE")
    assert _plain.zeros((1 << 11, 1 << 10)).sum() == 0


def test_fake_tensors_leave_nothing_behind(monkeypatch):
    """Estimators of memory run a step with fake tensors. A step with real tensors follows."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    accelerator_paths(monkeypatch)
    from couplet.ops import _noise

    for _ in range(2):
        with FakeTensorMode():
            list(_noise.of_layers([torch.ones(n, d)] * 2, [7, 9], 1, 2))
        first, second = _noise.of_layers([torch.randn(n, d)] * 2, [7, 9], 1, 2)
        assert not torch.equal(first, second)


MEMORY = """
import sys, torch, couplet
sys.path.insert(0, {peers!r})
import peers
torch.set_num_threads(1)
if {plain}:
    from couplet.ops import _native
    _native.fits = lambda job: False

def made(layers, n, D, d):
    model = torch.nn.Module()
    model.routers = torch.nn.ParameterList([torch.randn(n, d) for _ in range(layers)])
    model.gates = torch.nn.ParameterList([torch.randn(n, D, d) / d**0.5 for _ in range(layers)])
    erc = couplet.attach(model, list(zip(model.routers, model.gates)), alpha=0.5)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    return erc

made(2, 4, 8, 8).backward()  # loads the library before memory is measured
erc = made(8, 16, 128, 1024)
print(peers.extra_bytes(erc.backward))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("plain", (False, True), ids=("library", "plain"))
def test_nothing_of_a_layer_is_kept(plain):
    """Adding to existing gradients takes less memory than one of 8 layers' gradients (64 MiB in all)."""
    code = MEMORY.format(peers=str(ROOT / "bench" / "peers"), plain=plain)
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(out) < 8 * 16 * 128 * 1024 * 4 / 8
