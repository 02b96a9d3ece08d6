"""couplet.attach with layers that the caller names, on any model."""

import copy
import pickle

import couplet
import pytest
import torch
from conftest import close, group_of_one, same_gradients
from torch import nn

n, d, D = 6, 10, 8


class Moe(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        shapes = {"stacked": (n, D, d), "fused": (n, 2 * D, d), "transposed": (n, d, 2 * D), "flat": (n * D, d)}
        if kind == "list":
            self.w1 = nn.ParameterList([nn.Parameter(torch.randn(D, d)) for _ in range(n)])
        else:
            self.w1 = nn.Parameter(torch.randn(shapes[kind]))


class Model(nn.Module):
    def __init__(self, kind="stacked"):
        super().__init__()
        self.layers = nn.ModuleList([Moe(kind) for _ in range(2)])


def pairs_of(model):
    return [(layer.router.weight, layer.w1) for layer in model.layers]


KINDS = {
    "stacked": {},
    "fused": dict(gate_half="second"),
    "list": {},
    "flat": {},
    "transposed": dict(gate_half="interleaved", transposed=True),
}


def by_hand(model, kind="stacked", step=0, **more):
    take = {"transposed": lambda w: w.mT, "flat": lambda w: w.view(n, D, d), "list": list}.get(kind, lambda w: w)
    half = KINDS[kind].get("gate_half")
    return (
        sum(
            couplet.erc_loss(layer.router.weight, take(layer.w1), gate_half=half, seed=2, step=step, layer=i, **more)
            for i, layer in enumerate(model.layers)
        )
        / 2
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", (False, True))
@pytest.mark.filterwarnings("ignore:couplet. the rows of w_gate")
def test_kinds_of_gates(kind, named):
    model = Model(kind)
    layers = pairs_of(model)
    if named:
        gates = [f".{e}" for e in range(n)] if kind == "list" else ""
        layers = [
            (f"layers.{i}.router.weight", [f"layers.{i}.w1{g}" for g in gates] if gates else f"layers.{i}.w1")
            for i in range(2)
        ]
    loss = couplet.attach(model, layers, weight=0.5, alpha=0.9, seed=2, **KINDS[kind]).loss()
    loss.backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    want = 0.5 * by_hand(model, kind, alpha=0.9)
    want.backward()
    assert all(g is not None and g.any() for g in got.values())
    close(loss, want, 1e-6)
    same_gradients(model, got, 1e-6)


def test_it_is_once_a_step():
    model = Model()
    erc = couplet.attach(model, layers=pairs_of, seed=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = erc.loss()
        close(loss, by_hand(model, step=step), 1e-6)
        loss.backward()
        again = erc.loss()
        assert again.grad_fn is None and again.item() == 0
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("by", ("parameters", "callable"))
def test_parameters_are_found_again(by):
    """Parameters are found after loading by assignment, and after modules are replaced."""
    model = Model()
    erc = couplet.attach(model, pairs_of(model) if by == "parameters" else pairs_of, seed=2)
    erc.loss().backward()
    model.load_state_dict({name: 2 * t for name, t in model.state_dict().items()}, assign=True)
    loss = erc.loss()
    close(loss, by_hand(model, step=1), 1e-6)
    loss.backward()
    model.layers[1] = Moe("stacked")
    loss = erc.loss()
    close(loss, by_hand(model, step=2), 1e-6)
    loss.backward()
    assert model.layers[1].w1.grad is not None


def test_other_shapes_are_found_again():
    model = Model()
    erc = couplet.attach(model, pairs_of(model), seed=2)
    model.layers[0].w1 = nn.Parameter(torch.randn(n, 3, d))
    close(erc.loss(), by_hand(model), 1e-6)
    assert erc.layers[0].D == 3


def test_copies():
    model = Model()
    erc = couplet.attach(model, pairs_of(model), seed=2)
    for copied in (copy.deepcopy(erc), pickle.loads(pickle.dumps(erc))):
        close(copied.loss(), by_hand(model), 1e-6)


def test_copies_of_a_callable_are_by_names():
    """A lambda cannot be pickled. In a copy, a function with the model inside would find the original's routers."""
    model = Model()
    erc = couplet.attach(model, lambda _: pairs_of(model), seed=2)
    for copied in (copy.deepcopy(erc), pickle.loads(pickle.dumps(erc))):
        copied.model.layers[0].w1 = nn.Parameter(torch.randn(n, 3, d))  # the new parameter is found
        close(copied.loss(), by_hand(copied.model), 1e-6)
        assert copied.layers[0].D == 3 and erc.layers[0].D == D


def test_a_wrapped_model():
    model = Model()
    layers = [(f"module.layers.{i}.router.weight", f"module.layers.{i}.w1") for i in range(2)]
    erc = couplet.attach(nn.DataParallel(model), layers, seed=2)
    assert erc.model is model
    close(erc.loss(), by_hand(model), 1e-6)


@pytest.mark.parametrize(
    "name, value, sentence",
    (
        ("reduction", "max", "reduction is 'max', must be mean or sum"),
        ("weight", "0.1", "weight is '0.1', must be a number"),
        ("weight", -1, "weight is -1, must be a number >= 0"),
        ("weight", float("nan"), "weight is nan, must be a number >= 0"),
        ("alpha", -1, "alpha is -1, must be a number >= 0"),
        ("alpha", float("nan"), "alpha is nan, must be a number >= 0"),
        ("alpha", None, "alpha is None, must be a number"),
        ("accumulation", 0, "accumulation is 0, must be at least 1"),
        ("accumulation", "2", "accumulation is '2', must be a"),
        ("seed", 1.5, "seed is 1.5, must be a whole number"),
        ("step", "3", "step is '3', must be a whole number"),
        ("noise", "much", "noise is 'much', must be"),
        ("compute", "f8", "compute is 'f8', must be"),
    ),
)
def test_settings_are_checked_when_they_are_given_and_set(name, value, sentence):
    model = Model()
    erc = couplet.attach(model, pairs_of(model))
    before = getattr(erc, name)
    with pytest.raises((ValueError, TypeError), match=f"couplet: {sentence}"):
        setattr(erc, name, value)
    assert getattr(erc, name) == before
    if name != "step":
        with pytest.raises((ValueError, TypeError), match=sentence):
            couplet.attach(model, pairs_of(model), **{name: value})


def test_settings_that_change():
    model = Model()
    erc = couplet.attach(model, pairs_of(model), seed=2)
    erc.reduction, erc.weight, erc.alpha = "sum", torch.tensor(0.5), torch.tensor(0.75)
    close(erc.loss(), by_hand(model, alpha=0.75), 1e-6)


def test_an_alpha_of_a_schedule_is_warned_of_once():
    model = Model()
    with pytest.warns(UserWarning) as warned:
        erc = couplet.attach(model, pairs_of(model))
        for alpha in (0, 0.05, 0.09, 0.1, 1, 1.5, 2):
            erc.alpha = alpha
    said = ["alpha 0 is below 0.1", "alpha 1.5 is above 1"]
    assert [str(w.message)[9:].partition(":")[0] for w in warned] == said
    assert {w.filename for w in warned} == {__file__}


class Whole(nn.Module):
    """A module that has the loss of its own layers as a member."""

    def __init__(self):
        super().__init__()
        self.model = Model()
        self.erc = couplet.attach(self.model, pairs_of(self.model))

    def forward(self):
        return self.erc.loss()


def test_within_functional_call():
    whole = Whole()
    tensors = {name: p.detach().clone() for name, p in whole.named_parameters()}
    with pytest.raises(
        ValueError, match="couplet: weight of a Linear is a plain tensor now, as inside of torch.func.functional"
    ):
        torch.func.functional_call(whole, tensors)
    assert whole() > 0


@pytest.mark.parametrize("dtype", (torch.uint8, torch.int8))
def test_quantised_experts_are_refused(dtype):
    """bitsandbytes stores experts as bytes [N, 1]. int8 experts keep their shape."""
    model = Model()
    shape = (n * D * d // 2, 1) if dtype == torch.uint8 else (n, D, d)
    model.layers[1].w1 = nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
    with pytest.raises(
        TypeError, match=rf"layers\[1\]: layers.1.w1 is {dtype}, .* Quantised routers and experts are not supp"
    ):
        couplet.attach(model, pairs_of(model))


def test_a_mesh_is_no_group():
    with group_of_one():
        mesh, model = torch.distributed.device_mesh.init_device_mesh("cpu", (1,)), Model()
        router, gates = pairs_of(model)[0]
        stats = couplet.RouterStats([nn.Identity()], n)
        for name, wrong, what in (
            ("group", mesh, "a DeviceMesh"),
            ("tensor_group", mesh, "a DeviceMesh"),
            ("group", "ep", "'ep'"),
            ("group", [0], "a list"),
        ):
            sentence = rf"{name} is {what}, must be a process group; pass that of one dimension, mesh.get_group\("
            with pytest.raises(TypeError, match=sentence):
                couplet.attach(model, pairs_of(model), **{name: wrong})
            with pytest.raises(TypeError, match=sentence):
                couplet.erc_loss_ep(router, gates, **{name: wrong})
        with pytest.raises(TypeError, match="group is a DeviceMesh"):
            stats.figures(group=mesh)
        close(couplet.attach(model, pairs_of(model), seed=2, group=mesh.get_group()).loss(), by_hand(model), 1e-6)


def test_a_compiled_model():
    model = Model()
    compiled = torch.compile(model, backend="eager")
    layers = [(f"_orig_mod.layers.{i}.router.weight", model.layers[i].w1) for i in range(2)]
    close(couplet.attach(compiled, layers, seed=2).loss(), by_hand(model), 1e-6)


@pytest.mark.parametrize(
    "given, kind, sentence",
    (
        (lambda m: [], ValueError, "layers is empty; give"),
        (lambda m: m, TypeError, "layers is a Model, must be a list of pairs"),
        (lambda m: [m.layers[0].router], TypeError, r"layers\[0\] is a Linear, must be a pair"),
        (lambda m: [(m.layers[0].router, m.layers[0].w1)], TypeError, "the router is a Linear, must be a Parameter"),
        (
            lambda m: [(m.layers[0].router.weight, nn.Linear(2, 2))],
            TypeError,
            "the gates are a Linear, must be a parameter",
        ),
        (
            lambda m: [(m.layers[0].router.weight, nn.Parameter(torch.zeros(n, D, d)))],
            ValueError,
            r"layers\[0\]: the gates: a tensor \[6, 8, 10\] that is no parameter of the model",
        ),
        (lambda m: [(m.layers[0].router.weight[:], m.layers[0].w1)], ValueError, "give the Parameter itself, no view"),
        (
            lambda m: [("layers.0.ruoter.weight", m.layers[0].w1)],
            ValueError,
            "no parameter named 'layers.0.ruoter.weight'; one is named 'layers.0.router.weight'",
        ),
        (
            lambda m: [*pairs_of(m), (m.layers[1].router.weight, m.layers[0].w1)],
            ValueError,
            r"layers\[2\]: the gates is layers.0.w1, which layers\[0\]: the gates is too",
        ),
        (
            lambda m: [(m.layers[0].w1, m.layers[0].router.weight)],
            ValueError,
            r"the router layers.0.w1 is \[6, 8, 10\], must be \[n, d\]",
        ),
        (lambda m: [(m.layers[0].router.weight, [m.layers[0].w1, m.layers[1].w1])], ValueError, "list of equal .D, d."),
    ),
)
def test_bad_layers(given, kind, sentence):
    model = Model()
    for layers in (given(model), given):
        if callable(layers) and isinstance(layers, nn.Module):
            continue
        with pytest.raises(kind, match=sentence):
            couplet.attach(model, layers)


@pytest.mark.parametrize(
    "shape, more, sentence",
    (
        (
            (n, d, D),
            {},
            r"layers.0.w1 is \[6, 10, 8\], whose experts must be \[D, d\] with d = 10 as the router has it; "
            "transposed=True is for gates",
        ),
        ((n, D, d), dict(transposed=True), r"must be \[d, D\] with d = 10"),
        ((n + 1, D, d), {}, "but there are 6 experts here"),
        ((n, D, d), dict(gate_half="upper"), "gate_half is 'upper', must be first, second, interleaved or none"),
    ),
)
def test_bad_shapes_and_settings(shape, more, sentence):
    model = Model()
    model.layers[0].w1 = nn.Parameter(torch.zeros(shape))
    with pytest.raises(ValueError, match=sentence):
        couplet.attach(model, pairs_of(model), **more)


def test_too_few_gates():
    model = Model("list")
    layers = [(model.layers[0].router.weight, list(model.layers[0].w1)[:4])]
    with pytest.raises(ValueError, match="4 gates, but 6 experts here"):
        couplet.attach(model, layers)


def test_model_is_checked():
    with pytest.raises(TypeError, match="model is a str, must be a torch.nn.Module"):
        couplet.attach("gpt2", [])
