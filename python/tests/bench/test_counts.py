"""Limits of the kernels, bytes and memory that the code for accelerators takes. The code must not synchronise. Kernels,
bytes and memory are counted in fake tensors of device cuda. The counter itself is tested too."""

import dataclasses

import counting
import couplet
import pytest
import torch
from conftest import accelerator_paths, needs_counts
from counting import DEEPSEEK_V3, OLMOE, QWEN3, counted, under_fake
from couplet.ops import _accelerator, _functional, _noise, _operator
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

pytestmark = needs_counts
MODELS = {"OLMoE": OLMOE, "DeepSeek-V3": DEEPSEEK_V3}
MOST_KERNELS = {
    "OLMoE": dict(fused=30, stacked=28, list=150, interleaved=88),
    "DeepSeek-V3": dict(fused=46, stacked=29, list=433, interleaved=178),
}


def laid_out(name, layout):
    return dataclasses.replace(MODELS[name], layout=layout)


def most_memory(shape):
    """Returns the most bytes that a layer may take besides gates and gradients: z in f32, dz in bf16, a chunk of
    experts, and ten tensors [n, d] in f32."""
    z = shape.here * shape.n * shape.D
    return 6 * z + max(_accelerator.LEAST_BYTES, shape.gate_bytes // _accelerator.SHARE) + 40 * shape.n * shape.d


# ---- the counter itself ----


def one(run):
    """Returns the counts of `run(a, b)`, with a, b [32, 64] in f32 on the device."""

    def counts():
        a, b = (torch.empty(32, 64, device="cuda") for _ in range(2))
        return counted(lambda: run(a, b))

    return under_fake(counts)


NUMBERS = 32 * 64 * 4  # bytes of a or b

KERNELS = {
    "out of place": (lambda a, b: a + b, 3 * NUMBERS),
    "in place": (lambda a, b: a.add_(b), 3 * NUMBERS),
    "a number": (lambda a, b: a * 2.0, 2 * NUMBERS),
    "out=": (lambda a, b: torch.mul(a, b, out=torch.empty_like(a)), 3 * NUMBERS),
    "out= of another dtype": (
        lambda a, b: torch.mul(a, b, out=torch.empty_like(a, dtype=torch.bfloat16)),
        5 * NUMBERS // 2,
    ),
    "another dtype": (lambda a, b: a.double(), 3 * NUMBERS),
    "fill": (lambda a, b: a.fill_(1.0), NUMBERS),
    "copy": (lambda a, b: a.copy_(b), 2 * NUMBERS),
    "sum": (lambda a, b: a.sum(), NUMBERS + 4),
    "expanded": (lambda a, b: a[:1].expand(32, -1) + b, NUMBERS // 32 + 2 * NUMBERS),
    "a part": (lambda a, b: a[:8].mul_(2.0), NUMBERS // 2),
    "mm": (lambda a, b: a @ b.mT, 2 * NUMBERS + 32 * 32 * 4),
    "mm with out_dtype": (lambda a, b: torch.mm(a.bfloat16(), b.bfloat16().mT, out_dtype=torch.float32), None),
    "addmm_": (lambda a, b: torch.empty(32, 32, device="cuda").addmm_(a, b.mT), 2 * NUMBERS + 2 * 32 * 32 * 4),
    "addmm_, beta 0": (
        lambda a, b: torch.empty(32, 32, device="cuda").addmm_(a, b.mT, beta=0),
        2 * NUMBERS + 32 * 32 * 4,
    ),
    "addmm, beta 0": (
        lambda a, b: torch.addmm(torch.empty(32, device="cuda"), a, b.mT, beta=0),
        2 * NUMBERS + 32 * 32 * 4,
    ),
    "foreach": (lambda a, b: torch._foreach_add_([a, b], 1.0), 4 * NUMBERS),
    "foreach of two lists": (lambda a, b: torch._foreach_mul([a], [b]), 3 * NUMBERS),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name):
    run, moved = KERNELS[name]
    counts = one(run)
    assert counts.kernels == (3 if moved is None else 1) and counts.host_copies == 0
    if moved is not None:
        assert counts.bytes == moved
    assert counts.operations == (2 * 32 * 32 * 64 if "mm" in name else 0)


NO_KERNELS = {
    "views": lambda a, b: (
        a.mT,
        a[3:, ::2],
        a.view(-1),
        a.flatten(),
        a.expand(5, -1, -1),
        a.unbind(0),
        a.detach(),
        a.diagonal(),
        a.as_strided((3,), (1,)),
        a.reshape(64, 32),
        a.contiguous(),
        a.to(a.dtype),
    ),
    "allocations": lambda a, b: (
        torch.empty(9, device="cuda"),
        torch.empty_like(a),
        a.new_empty(3),
        torch.empty_strided((2, 3), (3, 1), device="cuda"),
    ),
    "on the CPU": lambda a, b: torch.zeros(8).add_(1.0),
}


@pytest.mark.parametrize("name", NO_KERNELS)
def test_no_kernels(name):
    counts = one(NO_KERNELS[name])
    assert (counts.kernels, counts.bytes, counts.host_copies) == (0, 0, 0)


def test_a_number_of_the_host_travels_with_the_launch():
    counts = one(lambda a, b: a * torch.tensor(2.0))
    assert [k.name for k in counts.each] == ["mul"] and counts.host_copies == 0
    counts = one(lambda a, b: torch.where(a > b, 0.0, a))  # the number is filled into memory of the device
    assert [k.name for k in counts.each] == ["gt", "scalar_tensor", "where"] and counts.host_copies == 0


@pytest.mark.parametrize(
    "run",
    (
        lambda a, b: a.copy_(torch.zeros(32, 64)),
        lambda a, b: torch.zeros(3).to("cuda"),
        lambda a, b: torch.tensor(3.0).to("cuda"),
        lambda a, b: a.cpu(),
    ),
)
def test_copies_between_host_and_device(run):
    assert one(run).host_copies == 1


@pytest.mark.parametrize(
    "run",
    (
        lambda a, b: a.sum().item(),
        lambda a, b: a.nonzero(),
        lambda a, b: a[a > 0],
        lambda a, b: torch.equal(a, b),
        lambda a, b: bool((a > 0).all()),
    ),
)
def test_what_waits_raises(run):
    with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        one(run)


def test_peak():
    def run(a, b):
        c = a + b  # 1
        d = [c.mT, c[:3]]  # views
        c = None
        e = a * 2.0  # 2
        d.clear()  # 1
        e.mul_(3.0)
        torch.add(a, b, out=e)
        f = torch.empty(2, 32, 64, device="cuda")  # 3
        f = f[0]
        return e, f

    assert one(run).peak == 3 * NUMBERS


def test_noise_is_four_kernels():
    """The kernels compute routers in f64, their products, the nearest rows, and the noise, for 3 bf16 layers [5, 7]."""

    def run():
        routers = torch.empty(3, 5, 7, dtype=torch.bfloat16, device="cuda")
        counts = counted(lambda: _noise.bounded(routers, 0, 0, 0, 0))
        return [(k.name, k.bytes, k.in_f64) for k in counts.each], counts.peak

    numbers, gram = 3 * 5 * 7, 3 * 5 * 5 * 8
    assert under_fake(run) == (
        [
            ("_to_copy", 10 * numbers, 0),
            ("bmm", 16 * numbers + gram, 2 * 3 * 5 * 5 * 7),
            ("_nearest", 4 * numbers + gram, 0),
            ("_draw", 4 * numbers, 0),
        ],
        12 * numbers + gram,
    )


def test_noise_in_plain_torch(monkeypatch):
    monkeypatch.setenv("COUPLET_BACKEND", "torch")
    assert 100 < counting.of_noise(dataclasses.replace(OLMOE, layers=2)).kernels < 120


def test_noise_is_counted_by_its_draws():
    """16 layers of OLMoE take one draw. A draw has room for 4 layers of DeepSeek-V3, so 3 layers take one
    draw and 5 layers take two."""
    few = lambda layers: counting.of_noise(dataclasses.replace(DEEPSEEK_V3, layers=layers))
    three, five = few(3), few(5)
    assert five.kernels == 2 * three.kernels and five.host_copies == 0

    def drawn():
        routers = [DEEPSEEK_V3.router("cuda") for _ in range(5)]
        draw = lambda: [None for _ in _noise.of_layers(routers, range(5), 0, 0)]
        draw()
        return counted(draw)

    assert under_fake(drawn).each == five.each


def job_of(router, gates, delta=None, noise="none", compute=""):
    return _operator.make_job(router, gates, [], [], delta, "", 1.0, 1.0, "gate", noise, 0, 0, 0, 0, compute)


def gradients_of(dtype, to, compute="", has_scale=False):
    """Returns the counts of loss and gradients of one layer, with gradients of the dtype `to`."""

    def run():
        router, gates = (torch.empty(s, dtype=dtype, device="cuda") for s in ((64, 256), (64, 128, 256)))
        job = job_of(router, [gates], compute=compute)
        job.wants_router = True
        if has_scale:
            job.scale = torch.empty((), device="cuda")
        _operator.into(job, [torch.empty(gates.shape, dtype=to, device="cuda")], [], [], "")
        return counted(lambda: _operator.run(job))

    return under_fake(run)


# ---- limits of one layer ----


@pytest.fixture(scope="module")
def noise():
    """Returns the counts of the noise of all layers, by model."""
    return {name: counting.of_noise(shape) for name, shape in MODELS.items()}


@pytest.mark.parametrize("accumulates", (True, False), ids=("existing", "fresh"))
@pytest.mark.parametrize("layout", counting.LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_limits(name, layout, accumulates, noise):
    """Each layout takes three products. A list is stacked chunk by chunk, so its gates are moved three times each."""
    shape, drawn = laid_out(name, layout), noise[name]
    layer = counting.of_layer(shape, accumulates)
    assert layer.kernels + drawn.kernels / shape.layers <= MOST_KERNELS[name][layout]
    assert layer.host_copies == drawn.host_copies == 0
    assert layer.bytes + drawn.bytes / shape.layers <= (2.6 if layout == "list" else 1.25) * shape.ideal_bytes(
        accumulates
    )
    assert layer.operations == shape.ideal_operations
    assert layer.peak - (0 if accumulates else shape.gradient_bytes) <= most_memory(shape)
    assert drawn.peak <= shape.layers * shape.gate_bytes / 20


@pytest.mark.parametrize("layout", counting.LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_erc_loss_costs_what_erc_backward_costs(name, layout):
    """Multiplying by the incoming gradient of the loss takes no extra pass over the gradients of the gates. The kept dz
    is a few percent of a gradient."""
    shape = laid_out(name, layout)
    fresh, (forward, backward, kept) = counting.of_layer(shape), counting.of_loss(shape)
    assert forward.kernels + backward.kernels <= fresh.kernels + 6
    assert forward.bytes + backward.bytes <= 1.04 * fresh.bytes
    assert forward.operations + backward.operations == shape.ideal_operations
    assert forward.operations == 2 * backward.operations
    assert forward.host_copies == backward.host_copies == 0
    numbers, factors = 4 * shape.n * shape.d, 2 * shape.here * shape.n * shape.D
    assert kept <= factors + 2 * numbers
    assert forward.peak <= most_memory(shape) + factors and backward.peak - shape.gradient_bytes <= 2 * numbers


@pytest.mark.parametrize(
    "shape",
    (dataclasses.replace(OLMOE, ep=8), dataclasses.replace(QWEN3, ep=8), dataclasses.replace(DEEPSEEK_V3, ep=64)),
    ids=lambda s: s.name,
)
def test_a_share_of_the_experts(shape):
    layer = counting.of_layer(shape)
    assert layer.kernels <= 30 and layer.host_copies == 0
    assert layer.operations == shape.ideal_operations
    assert layer.bytes <= 1.5 * shape.ideal_bytes()
    assert layer.peak - shape.gradient_bytes <= most_memory(shape)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32))
@pytest.mark.parametrize("to", (torch.float16, torch.float32))
def test_a_scale_on_the_device_is_not_read(dtype, to):
    """A gradient scaler gives its scale to erc.backward. Gradients have the gates' dtype or another."""

    assert gradients_of(dtype, to, has_scale=True).host_copies == 0


def test_a_list_has_a_product_for_every_gradient():
    """Separate .grad tensors need one product each. erc_loss returns parts of one tensor."""
    shape = laid_out("OLMoE", "list")
    products = lambda counts: sum(k.name in ("addmm_", "baddbmm_") for k in counts.each)
    assert products(counting.of_layer(shape)) == shape.n and products(counting.of_loss(shape)[1]) == 1


# ---- a whole step ----


class Model(nn.Module):
    """A model with routers and gates of all layers on the device."""

    def __init__(self, shape):
        super().__init__()
        self.routers = nn.ParameterList([nn.Parameter(shape.router("cuda")) for _ in range(shape.layers)])
        self.gates = nn.ParameterList([nn.Parameter(shape.gates("cuda")[0]) for _ in range(shape.layers)])

    def attach(self, **options):
        return couplet.attach(self, list(zip(self.routers, self.gates)), **options)

    def optimize(self):
        torch.optim.SGD(self.parameters(), lr=1.0).step()


FEW = 2  # layers of the models in these tests, because fake tensors are slow


def steps_of(shape, keeps_gradients, call=lambda erc: erc.backward()):
    """Returns the counts of the second and third step of FEW layers."""

    def run():
        model = Model(dataclasses.replace(shape, layers=FEW))
        erc = model.attach(gate_half=shape.half or None)
        counts = []
        for step in range(3):
            if not keeps_gradients or step == 0:
                model.zero_grad(set_to_none=True)
            counts.append(counted(lambda: call(erc)))
            model.optimize()
        return counts[1:]

    return under_fake(run)


@pytest.fixture(scope="module")
def kernels_a_layer(noise):
    """Returns a function that gives the kernels per layer of a step of the whole model. `counts` are those of FEW
    layers. The kernels of their noise are replaced, because a draw of noise serves many layers of the whole model."""
    few = {name: counting.of_noise(dataclasses.replace(shape, layers=FEW)).kernels for name, shape in MODELS.items()}

    def of(name, counts):
        return (counts.kernels - few[name]) / FEW + noise[name].kernels / MODELS[name].layers

    return of


@pytest.mark.parametrize("keeps_gradients", (True, False), ids=("existing", "fresh"))
@pytest.mark.parametrize("layout", ("fused", "stacked"))
@pytest.mark.parametrize("name", MODELS)
def test_a_step_of_erc_backward(name, layout, keeps_gradients, kernels_a_layer):
    shape = laid_out(name, layout)
    second, third = steps_of(shape, keeps_gradients)
    assert second == third
    assert second.host_copies == 0
    assert kernels_a_layer(name, second) <= MOST_KERNELS[name][layout] + 6
    assert second.bytes <= 1.35 * FEW * shape.ideal_bytes(keeps_gradients)
    gradients = FEW * (shape.gradient_bytes + shape.n * shape.d * shape.dtype.itemsize)
    assert second.peak - (0 if keeps_gradients else gradients) <= most_memory(shape)


@pytest.fixture
def without_graph(monkeypatch):
    """Replaces the operator by its implementation. Autograd's engine refuses fake tensors of a device that is absent,
    and for fake tensors the operator only computes the shapes of its results."""

    def erc(router, gate, up, down, delta, alpha_tensor, step_tensor, want, half, *options):
        job = _operator.make_job(router.detach(), [g.detach() for g in gate], [], [], delta, half, *options)
        return _operator.evaluate(job, gate, up, down, half, want)

    monkeypatch.setattr(_functional._operator, "erc", erc)


def test_a_step_of_erc_loss(without_graph, kernels_a_layer):
    second, third = steps_of(OLMOE, False, lambda erc: erc.loss())
    assert second == third
    assert second.host_copies == 0
    assert kernels_a_layer("OLMoE", second) <= MOST_KERNELS["OLMoE"]["stacked"] + 6


def test_later_micro_batches_cost_next_to_nothing():
    """From the second step on, a later micro-batch takes at most one kernel. In the first step it is unknown whether
    the optimizer is one of PyTorch's."""

    def run():
        model = Model(dataclasses.replace(OLMOE, layers=2))
        erc = model.attach()
        erc.backward()
        model.optimize()
        erc.backward()
        return counted(erc.backward)

    assert under_fake(run).kernels <= 1


def test_the_first_step_looks_at_numbers_unless_it_is_counted():
    def run(is_counted):
        erc = Model(dataclasses.replace(OLMOE, layers=2)).attach()
        if is_counted:
            erc.next_step(0)
        erc.backward()
        return counted(erc.backward)

    assert under_fake(lambda: run(True)).kernels <= 1
    with pytest.raises(DataDependentOutputException):
        under_fake(lambda: run(False))


# ---- a CUDA graph ----


def test_delta_of_ones_own_is_looked_at():
    def run(noise):
        router, gates, delta = (torch.empty(shape, device="cuda") for shape in ((4, 6), (4, 5, 6), (4, 6)))
        job = job_of(router, [gates], delta if noise == "bounded" else None, noise)
        return counted(lambda: _operator.evaluate(job, [gates], [], [], "", [True, True, False, False]))

    with pytest.raises(DataDependentOutputException):
        under_fake(lambda: run("bounded"))
    assert under_fake(lambda: run("none")).host_copies == 0


def test_what_a_captured_graph_would_hold(without_graph):
    """The captured call gets the router multiplied by delta and noise="none". The call does not wait, and copies
    nothing from the host."""

    def run():
        router, gates = OLMOE.router("cuda"), OLMOE.gates("cuda")[0]
        delta = torch.empty(router.shape, device="cuda")
        return counted(lambda: couplet.erc_loss(router.float() * delta, gates, noise="none"))

    counts = under_fake(run)
    assert counts.host_copies == 0 and 0 < counts.kernels < 30


def test_a_router_times_delta_is_the_same_loss():
    router, gates = torch.randn(6, 8, requires_grad=True), torch.randn(6, 5, 8, requires_grad=True)
    delta = couplet.noise(router, seed=3, step=7)
    ours, want = (
        torch.autograd.grad(loss, (router, gates))
        for loss in (
            couplet.erc_loss(router.float() * delta, gates, noise="none"),
            couplet.erc_loss(router, gates, seed=3, step=7),
        )
    )
    for a, b in zip(ours, want):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="a torch without the tag")
def test_inductor_leaves_the_operator_out_of_its_graphs():
    assert torch.Tag.cudagraph_unsafe in torch.ops.couplet.erc.default.tags


# ---- results of an evaluation and of the operator ----


def stacked(D, d, dtype):
    return [torch.empty(8, D, d, dtype=dtype, device="cuda")]


LAYOUTS = {  # gates of n 8, d 16, D 12, and the place of the gate in them
    "stacked": (lambda t: stacked(12, 16, t), ""),
    "list": (lambda t: [torch.empty(12, 16, dtype=t, device="cuda") for _ in range(8)], ""),
    "fused": (lambda t: stacked(24, 16, t), "first"),
    "up first": (lambda t: stacked(24, 16, t), "second"),
    "interleaved": (lambda t: stacked(24, 16, t), "interleaved"),
    "list, fused": (lambda t: [torch.empty(24, 16, dtype=t, device="cuda") for _ in range(8)], "first"),
    "[n, d, D]": (lambda t: [torch.empty(8, 16, 12, dtype=t, device="cuda").mT], ""),
    "Llama 4": (lambda t: [torch.empty(8, 16, 24, dtype=t, device="cuda").mT], "first"),
    "gpt-oss": (lambda t: [torch.empty(8, 16, 24, dtype=t, device="cuda").mT], "interleaved"),
    "every second expert": (lambda t: [torch.empty(16, 12, 16, dtype=t, device="cuda")[::2]], ""),
    "wide rows": (lambda t: [torch.empty(8, 12, 20, dtype=t, device="cuda")[..., :16]], ""),
}
ALL, GATES, ROUTER, NOTHING = [True] * 4, [False, True, True, True], [True, False, False, False], [False] * 4


def described(results):
    return [(t.device.type, t.shape, t.dtype, t.stride() if t.numel() else ()) for t in results]


def compare(layout, dtype, router_dtype=None, activation="gate", want=ALL):
    """Checks that an evaluation returns tensors with the device, shape, dtype and strides that the operator's fake
    implementation returns."""
    make, half = LAYOUTS[layout]
    gate, router = make(dtype), torch.empty(8, 16, dtype=router_dtype or dtype, device="cuda")
    up = [] if half or activation not in ("up", "swiglu", "output") else stacked(12, 16, dtype)
    down = stacked(16, 12, dtype) if activation == "output" else []
    options = (half, 0.5, 2.0, activation, "bounded" if want is ALL else "none", 3, 4, 5, 0, "")
    says = _operator.erc(router, gate, up, down, None, None, None, want, *options)
    job = _operator.make_job(router, gate, up, down, None, *options)
    makes = _operator.evaluate(job, gate, up, down, half, want)
    assert described(makes) == described(says), (layout, dtype, activation, want)
    arguments = (
        torch.empty((), device="cuda", dtype=makes[0].dtype),
        makes[2],
        makes[3:],
        *_operator.layout(router, (gate, up, down), want, half, 2.0),
    )
    assert described(_operator.multiply(*arguments)) == described(_operator.erc_gradients(*arguments))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_are_as_the_operator_says(layout):
    def run():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            compare(layout, dtype)

    under_fake(run)


@pytest.mark.parametrize("want", (GATES, ROUTER, NOTHING), ids=("gates", "router", "nothing"))
def test_results_where_less_is_wanted(want):
    under_fake(lambda: [compare(layout, torch.bfloat16, torch.float32, want=want) for layout in LAYOUTS])


@pytest.mark.parametrize("activation", ("up", "silu", "swiglu", "output"))
def test_results_of_activations(activation):
    layouts = ("fused", "gpt-oss") if activation == "up" else ("stacked", "list", "fused", "gpt-oss")
    under_fake(
        lambda: [
            compare(layout, dtype, activation=activation)
            for layout in layouts
            for dtype in (torch.float32, torch.bfloat16)
        ]
    )


@pytest.mark.parametrize(
    "dtype, compute",
    ((torch.float32, "f32"), (torch.bfloat16, "bf16"), (torch.bfloat16, "f32"), (torch.float32, "bf16")),
)
def test_products_of_another_dtype(dtype, compute):
    """Matrices are copied to another dtype in chunks. The number of products is three."""

    counts = gradients_of(dtype, dtype, compute)
    assert counts.operations == 3 * 2 * 64 * 64 * 128 * 256 and counts.host_copies == 0


def test_chunks_are_those_of_a_gpu(monkeypatch):
    """Settings that other tests make for the CPU have no effect here."""
    accelerator_paths(monkeypatch, 1)
    chunked = counting.of_layer(OLMOE, accumulates=True).kernels
    monkeypatch.undo()
    assert counting.of_layer(OLMOE, accumulates=True).kernels < chunked / 3
