"""torch.compile makes one graph with the results of eager mode. Inductor is used where there is a C++ compiler."""

import os
import shutil
import subprocess
import sys

import couplet
import pytest
import torch
import torch._dynamo.testing
from conftest import accelerator_paths, all_close, close
from couplet.ops import _native

n, d, D = 6, 12, 10
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++")), reason="inductor finds no C++ compiler"
)
BACKENDS = ("aot_eager", pytest.param("inductor", marks=needs_compiler))


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def gradients(loss, leaves):
    loss.backward()
    result = [t.grad for t in leaves]
    for t in leaves:
        t.grad = None
    return result


def same(function, leaves, *numbers, compiled=None, limit=1e-6):
    """Compares value and gradients of `function`, compiled and in eager mode."""
    compiled = compiled or torch.compile(function, fullgraph=True)
    want, got = function(*leaves, *numbers), compiled(*leaves, *numbers)
    close(got, want, limit)
    all_close(gradients(got, leaves), gradients(want, leaves), limit)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_one_graph_for_all_steps(dtype, backend):
    """The library computes f32 and bf16, and plain torch f64. Step, weight and alpha may change between calls."""

    def step(router, fused, weight, alpha, number):
        loss = couplet.erc_loss(router, fused, gate_half="first", step=number, weight=weight, alpha=alpha)
        return 2 * loss + router.square().sum()

    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    leaves = [leaf(n, d, dtype=dtype), leaf(n, 2 * D, d, dtype=dtype)]
    for number in range(6):
        same(
            step,
            leaves,
            0.1 * number,
            1 - 0.1 * number,
            number,
            compiled=compiled,
            limit=2e-2 if dtype == torch.bfloat16 else 1e-6,
        )
    # 0 is a constant. Later step, weight and alpha are symbols. PyTorch 2.4 compiles for every non-integer number.
    assert counter.frame_count <= (3 if RELEASE >= (2, 6) else 6)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_one_graph_on_an_accelerator(dtype, monkeypatch):
    """The code for accelerators runs on CPU tensors. The backward graph contains the operator that multiplies."""
    accelerator_paths(monkeypatch)

    def step(router, fused, weight, number):
        return 2 * couplet.erc_loss(router, fused, gate_half="first", step=number, weight=weight)

    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    leaves = [leaf(n, d, dtype=dtype), leaf(n, 2 * D, d, dtype=dtype)]
    for number in range(4):
        same(step, leaves, 0.3 * number, number, compiled=compiled, limit=1e-6 if dtype == torch.float32 else 2e-2)
    assert counter.frame_count <= (3 if RELEASE >= (2, 6) else 4)


@pytest.mark.parametrize("path", ("library", "plain", "accelerator"))
def test_alpha_and_step_as_tensors(path, monkeypatch):
    if path == "accelerator":
        accelerator_paths(monkeypatch)
    elif path == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda r, w, alpha, step: couplet.erc_loss(r, w, alpha=alpha, step=step), fullgraph=True, backend=counter
    )
    leaves, counts = [leaf(n, d), leaf(n, D, d)], set()
    for number in range(4):
        alpha = 0.3 * number
        want, got = (
            couplet.erc_loss(*leaves, alpha=alpha, step=number),
            compiled(*leaves, torch.tensor(alpha, dtype=torch.float64), torch.tensor(number)),
        )
        close(got, want, 1e-6)
        all_close(gradients(got, leaves), gradients(want, leaves), 1e-6)
        counts.add(counter.frame_count)
    assert len(counts) == 1


@pytest.mark.parametrize(
    "sentence, numbers",
    (
        ("alpha needs a gradient", dict(alpha=torch.ones((), requires_grad=True))),
        ("alpha is 'x'", dict(alpha="x")),
        ("alpha is -1", dict(alpha=-1.0)),
        ("weight is None", dict(weight=None)),
    ),
    ids=str,
)
def test_numbers_that_are_refused(sentence, numbers):
    leaves, shows = (
        [leaf(n, d), leaf(n, D, d)],
        RELEASE >= (2, 10) or "-1" in sentence,
    )  # Older tracing hides the sentence.
    with pytest.raises(Exception, match=f"couplet: {sentence}" if shows else None):
        torch.compile(lambda *t: couplet.erc_loss(*t, **numbers), backend="aot_eager", fullgraph=True)(*leaves)


@pytest.mark.parametrize("call", ("loss", "backward"))
def test_erc_inside_a_compiled_step_breaks_the_graph_once(call):
    model = torch.nn.Linear(d, d)
    model.router, model.gate = torch.nn.Parameter(torch.randn(n, d)), torch.nn.Parameter(torch.randn(n, D, d))
    erc = couplet.attach(model, [("router", "gate")])

    def step(x):
        loss = model(x).square().mean()
        return loss.sin() + getattr(erc, call)()

    torch._dynamo.utils.counters.clear()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(step, backend=counter)
    for number in range(3):
        erc.next_step(number)
        close(compiled(torch.ones(2, d)), step(torch.ones(2, d)) + (erc.value if call == "backward" else 0), 1e-6)
    assert counter.frame_count == 2 and sum(torch._dynamo.utils.counters["graph_break"].values()) == 1
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"Erc.{call}"):
        torch.compile(step, backend="aot_eager", fullgraph=True)(torch.ones(2, d))


FORMS = {
    "list": (lambda r, *gates: couplet.erc_loss(r, gates), (n, d), *[(D, d)] * n),
    "columns": (lambda r, w: couplet.erc_loss(r.mT, 2 * w.mT), (d, n), (n, d, D)),
    "slices": (lambda r, w: couplet.erc_loss(r[:, 2:9], w[:, ::2, 2:9]), (n, d), (n, D, d)),
    "cast": (lambda r, w: couplet.erc_loss(r.bfloat16(), w.mT.bfloat16()), (n, d), (n, d, D)),
    "output": (
        lambda r, g, u, o: couplet.erc_loss(r, g, w_up=u, w_down=o, activation="output"),
        (n, d),
        (n, D, d),
        (n, D, d),
        (n, d, D),
    ),
    "autocast": (torch.autocast("cpu", torch.bfloat16)(couplet.erc_loss), (n, d), (n, D, d)),
}


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_input(form):
    function, *shapes = FORMS[form]
    same(function, [leaf(*shape) for shape in shapes])


class Experts(torch.nn.Module):
    """A layer that returns its coupling loss beside its output for tokens x [T, d]."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.router = torch.nn.Linear(d, n, bias=False)
        self.gate_up = torch.nn.Parameter(torch.randn(n, 2 * D, d))
        self.down = torch.nn.Parameter(torch.randn(n, d, D))

    def forward(self, x, step):
        gate, up = torch.einsum("td,nkd->tnk", x, self.gate_up).chunk(2, -1)
        each = torch.einsum("tnk,ndk->tnd", torch.nn.functional.silu(gate) * up, self.down)
        y = (self.router(x).softmax(-1)[..., None] * each).sum(1)
        return y, couplet.erc_loss(self.router.weight, self.gate_up, gate_half="first", step=step)


def trained(module, run):
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    x = torch.randn(8, d, generator=torch.Generator().manual_seed(3))
    for step in range(3):
        y, erc = run(x, step)
        (y.square().mean() + erc).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(module.parameters())


@needs_compiler
def test_module_in_training():
    eager, module = Experts(), Experts()
    got = trained(module, torch.compile(module, fullgraph=True))
    all_close(got, trained(eager, eager), 1e-5)


@needs_compiler
def test_no_second_derivative():
    leaves = [leaf(n, d), leaf(n, D, d)]
    loss = torch.compile(lambda *t: couplet.erc_loss(*t), fullgraph=True)(*leaves)
    (first,) = torch.autograd.grad(loss, leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward|does not require grad"):
        first.square().sum().backward()


@needs_compiler
def test_attached_to_a_compiled_model():
    """The loss is evaluated inside the compiled function too. The graph breaks there, and the results stay equal."""
    pytest.importorskip("transformers")
    from test_hf import tiny

    values = []
    for attach_to, wrap in ((lambda m: m, lambda f: f), (torch.compile, torch.compile)):
        model = tiny()
        erc = couplet.hf.attach(attach_to(model))
        step = wrap(lambda: model.lm_head.weight.square().sum() + erc.loss())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = step()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            values.append((loss.item(), erc.step))
    assert values[:3] == [(pytest.approx(loss, rel=1e-6), step) for loss, step in values[3:]]


def test_importing_the_package_registers_the_operator():
    code = "import couplet, torch; assert torch.ops.couplet.erc.default is not None"
    subprocess.run([sys.executable, "-c", code], check=True)
