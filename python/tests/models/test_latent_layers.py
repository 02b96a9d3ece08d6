"""couplet.attach with latent experts, (router, gates, P) and (router, gates, P, g), and with a router of several layers."""

import copy
import pickle

import couplet
import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor
from conftest import HAS_FULLY_SHARD, all_close, close, in_processes, needs_fully_shard, same_gradients
from couplet.ops import _native
from test_attach import KINDS
from torch import nn

n, d, l, D = 6, 10, 4, 8
EPS = 0.1


class Moe(nn.Module):
    """As in Kimi K3: a linear map to width l, experts, and a norm on their combined output."""

    def __init__(self, kind):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        self.latent = nn.Linear(d, l)
        self.latent_norm = nn.Parameter(torch.rand(l) + 0.5)
        self.routed_expert_norm = nn.RMSNorm(l)
        shapes = {"stacked": (n, D, l), "fused": (n, 2 * D, l), "transposed": (n, l, 2 * D), "flat": (n * D, l)}
        if kind == "list":
            self.w1 = nn.ParameterList([nn.Parameter(torch.randn(D, l)) for _ in range(n)])
        else:
            self.w1 = nn.Parameter(torch.randn(shapes[kind]))

    def forward(self, x):
        gate = self.w1 if isinstance(self.w1, nn.Parameter) else torch.stack(list(self.w1))
        return self.router(x).sum(-1, keepdim=True) + self.routed_expert_norm(self.latent(x)) @ gate[0, :1].mT


class Model(nn.Module):
    def __init__(self, kind="stacked", shared=False):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([Moe(kind) for _ in range(2)])
        if shared:
            self.layers[1].router = self.layers[0].router

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


def entries_of(model, norm=True):
    each = [(layer.router.weight, layer.w1, layer.latent.weight, layer.latent_norm) for layer in model.layers]
    return each if norm else [entry[:3] for entry in each]


NAMES = ("router.weight", "w1", "latent.weight", "latent_norm")


def attached(model, norm=True, **more):
    return couplet.attach(model, entries_of(model, norm), seed=2, latent_eps=EPS if norm else None, **more)


def by_hand(model, kind="stacked", norm=True, step=0, **more):
    take = {"transposed": lambda w: w.mT, "flat": lambda w: w.view(n, D, l), "list": list}.get(kind, lambda w: w)
    half = KINDS[kind].get("gate_half")
    losses = [
        couplet.erc_loss(
            layer.router.weight,
            take(layer.w1),
            down=layer.latent.weight,
            latent_norm=layer.latent_norm if norm else None,
            latent_eps=EPS if norm else None,
            gate_half=half,
            seed=2,
            step=step,
            layer=i,
            **more,
        )
        for i, layer in enumerate(model.layers)
    ]
    return sum(losses) / 2


def taken(model, attribute="grad"):
    found = {name: getattr(p, attribute) for name, p in model.named_parameters()}
    for p in model.parameters():
        setattr(p, attribute, None)
    return found


@pytest.fixture(params=("library", "plain"))
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)


# ---- losses and gradients ----


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", (False, True))
@pytest.mark.parametrize("shared", (False, True))
def test_kinds_of_gates(kind, norm, shared, path):
    """Norms on the combined output, and biases, get no gradient. A shared router has the sum of its layers'."""
    model = Model(kind, shared)
    erc = attached(model, norm, weight=0.5, alpha=0.9, **KINDS[kind])
    loss = erc.loss()
    loss.backward()
    got = taken(model)
    erc.next_step(0)
    added, of_backward = erc.backward(), taken(model)
    want = 0.5 * by_hand(model, kind, norm, alpha=0.9)
    want.backward()
    all_close([loss, added], [want, want], 1e-6)
    same_gradients(model, got, 1e-5)
    same_gradients(model, of_backward, 1e-5)
    without = {name for name, g in got.items() if g is None}
    last = () if norm else ("latent_norm",)
    assert without == {f"layers.{i}.{p}" for i in range(2) for p in ("latent.bias", "routed_expert_norm.weight", *last)}


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16))
def test_other_dtypes(dtype, path):
    model, limit = Model().to(dtype), 1e-12 if dtype == torch.float64 else 1e-2
    attached(model).backward()
    got = taken(model)
    wide = Model().to(dtype).double()
    by_hand(wide).backward()
    for name, p in wide.named_parameters():
        if p.grad is not None:
            assert got[name].dtype == dtype
            close(got[name], p.grad, limit, name)


def test_main_grad_in_f32(path):
    """Gradients of bf16 parameters are not rounded to bf16 on the way to main_grad, which exists already."""
    model = Model(shared=True).bfloat16()
    for p in model.parameters():
        p.main_grad = torch.ones(p.shape)
    attached(model).backward(torch.tensor(2.0), attribute="main_grad")
    wide = Model(shared=True).bfloat16().double()
    by_hand(wide).backward()
    for (name, p), q in zip(model.named_parameters(), wide.parameters()):
        assert p.grad is None
        if q.grad is not None:
            close(p.main_grad - 1, 2 * q.grad, 1e-5, name)


@pytest.mark.parametrize("frozen", ("router.weight", "w1", "latent.weight", "latent_norm"))
def test_frozen_parameters(frozen, path):
    model = Model()
    model.layers[1].get_parameter(frozen).requires_grad_(False)
    attached(model).backward()
    got = taken(model)
    by_hand(model).backward()
    same_gradients(model, got, 1e-5)


def test_a_projection_that_is_computed():
    """The weight of a parametrized module is not a parameter itself."""
    model = Model()
    for layer in model.layers:
        nn.utils.parametrizations.weight_norm(layer.latent)
    names = [(f"layers.{i}.router.weight", f"layers.{i}.w1", f"layers.{i}.latent.weight") for i in range(2)]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    couplet.attach(model, names, seed=2).backward()
    got = {name: g - 1 for name, g in taken(model).items()}
    by_hand(model, norm=False).backward()
    seen = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(seen) == 8
    for name, gradient in seen.items():
        close(got[name], gradient, 1e-4, name)


@pytest.mark.parametrize("trained", ("latent.weight", "latent_norm", "w1"))
def test_a_step_of_any_of_its_parameters_ends_the_step(trained):
    model = Model()
    erc = attached(model)
    optimizer = torch.optim.SGD([layer.get_parameter(trained) for layer in model.layers], lr=0.1)
    for step in range(3):
        want = by_hand(model, step=step)
        close(erc.backward(), want, 1e-6)
        assert erc.backward() == 0 and erc.state_dict() == {"step": step}
        optimizer.step()
        taken(model)


def test_parameters_are_found_again():
    model = Model()
    erc = attached(model)
    for copied in (copy.deepcopy(erc), pickle.loads(pickle.dumps(erc))):
        close(copied.loss(), by_hand(model), 1e-6)
    for layer in model.layers:
        layer.latent = nn.Linear(d, 3)
        layer.w1, layer.latent_norm = nn.Parameter(torch.randn(n, 5, 3)), nn.Parameter(torch.ones(3))
    close(erc.loss(), by_hand(model), 1e-6)
    assert [(layer.D, layer.d) for layer in erc.layers] == [(5, d)] * 2


def test_noise_of_each_layer_of_a_shared_router():
    model = Model(shared=True)
    with torch.no_grad():
        for name in ("w1", "latent.weight", "latent_norm"):
            model.layers[1].get_parameter(name).copy_(model.layers[0].get_parameter(name))
    erc = attached(model)
    erc.backward()
    assert erc.values[0] != erc.values[1]
    assert erc.metrics(per_layer=True)["erc/1"] == erc.values[1].item()


# ---- tokens ----


def test_recorded_tokens():
    model, x = Model(shared=True), torch.randn(40, d)
    erc = attached(model)
    with erc.record_tokens(top_k=2) as record, torch.no_grad():
        model(x)
    samples = record.samples()
    for number, layer in enumerate(model.layers):
        v = x @ layer.latent.weight.mT
        v = layer.latent_norm * v / (v.square().mean(1, keepdim=True) + EPS).sqrt()
        want = torch.einsum("tl,jDl->tjD", v, layer.w1).norm(dim=-1)
        scores, responses = samples[number].scores, samples[number].responses
        close(scores[:40], x @ layer.router.weight.mT, 1e-6)  # the shared router was called twice
        close(responses[:40], want, 1e-6)
        assert samples[number].M.shape == (n, n)
    assert record.figures()["signs.tokens.all"] == pytest.approx(
        record.figures(ids=[*range(40)] * 2)["signs.tokens.all"]
    )


def test_statistics_of_a_shared_router():
    model = Model(shared=True)
    stats = attached(model).router_stats(top_k=2)
    model(torch.randn(12, d))
    assert [load.sum().item() for load in stats.loads().values()] == [48, 48]


# ---- several processes ----


def of_processes(rank, size):
    from torch.distributed.tensor import DTensor

    here, found = slice(rank * n // size, (rank + 1) * n // size), {}
    for call in ("loss", "backward"):
        model = Model(shared=True)
        for layer in model.layers:
            layer.w1 = nn.Parameter(layer.w1.detach()[here].clone())
        found[f"experts {call}"] = value_of(attached(model, group=dist.group.WORLD), call), gradients_of(model)
        model, width = Model(shared=True), slice(rank * D // size, (rank + 1) * D // size)
        for layer in model.layers:
            layer.w1 = nn.Parameter(layer.w1.detach()[:, width].clone())
        found[f"width {call}"] = value_of(attached(model, tensor_group=dist.group.WORLD), call), gradients_of(model)
        if not HAS_FULLY_SHARD:
            continue
        model = Model(shared=True)
        mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
        for layer in model.layers:
            dist.fsdp.fully_shard(layer.latent, mesh=mesh)
        dist.fsdp.fully_shard(model, mesh=mesh)
        gathered, whole = [], DTensor.full_tensor
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DTensor, "full_tensor", lambda t, **more: gathered.append(tuple(t.shape)) or whole(t, **more))
            names = [[f"layers.{i}.{name}" for name in NAMES] for i in range(2)]
            value = value_of(couplet.attach(model, names, seed=2, latent_eps=EPS), call)
        found[f"sharded {call}"] = value, gradients_of(model)
        found[f"gathered {call}"] = gathered
    return found


def value_of(erc, call):
    value = getattr(erc, call)()
    if call == "loss":
        value.backward()
    return value.detach()


def gradients_of(model):
    full = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
    return {name: full(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def two():
    return in_processes(of_processes, 2, 2)


@pytest.mark.parametrize("call", ("loss", "backward"))
@pytest.mark.parametrize("how", ("experts", "width", pytest.param("sharded", marks=needs_fully_shard)))
def test_two_processes_are_one(two, how, call):
    model = Model(shared=True)
    want = by_hand(model)
    want.backward()
    wanted = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for rank in range(2):
        value, found = two[rank][f"{how} {call}"]
        close(value, want, 1e-6)
        assert set(found) == set(wanted)
        for name, gradient in wanted.items():
            parts = {
                "experts": slice(rank * n // 2, (rank + 1) * n // 2),
                "width": (slice(None), rank * 4 + torch.arange(4)),
            }
            part = parts.get(how, slice(None)) if "w1" in name else slice(None)
            close(found[name], gradient[part], 1e-5, name)


@needs_fully_shard
@pytest.mark.parametrize("call", ("loss", "backward"))
def test_a_shared_router_is_gathered_once(two, call):
    for found in two:
        assert sorted(found[f"gathered {call}"]) == sorted([(n, d), *[(n, D, l), (l, d), (l,)] * 2])


# ---- bad input ----


def named(model, **other):
    names = dict(zip(("router", "gates", "down", "norm"), NAMES))
    return [tuple(f"layers.0.{name}" for name in {**names, **other}.values() if name)]


@pytest.mark.parametrize(
    "other, more, sentence",
    (
        ({}, {}, "the norm layers.0.latent_norm needs latent_eps=, the number that it adds below its root"),
        ({}, dict(latent_eps=-1.0), "latent_eps is -1.0, must be a number >= 0"),
        ({}, dict(latent_eps="1"), "latent_eps is '1', must be a number >= 0"),
        (dict(norm=""), dict(latent_eps=EPS), "latent_eps is given, and no layer has a norm: "),
        (
            dict(norm="", down="latent.bias"),
            {},
            r"the projection layers.0.latent.bias is \[4\], must be \[l, 10\]: from the router's width",
        ),
        (dict(norm="", down="turned"), {}, r"the projection layers.0.turned is \[10, 4\], must be \[l, 10\]"),
        (dict(norm="wide"), dict(latent_eps=EPS), r"the norm layers.0.wide is \[10\], must be \[4\] as P's output"),
        (
            dict(norm="", gates="in_d"),
            {},
            r"layers.0.in_d is \[6, 8, 10\], whose experts must be \[D, l\] with l = 4 as the projection "
            r"layers.0.latent.weight has it",
        ),
        (
            dict(norm="", gates="columns"),
            {},
            r"layers.0.columns is \[6, 4, 8\], .* transposed=True is for gates \[n, l, D\]",
        ),
        (
            dict(norm="", down=""),
            {},
            r"layers.0.w1 is \[6, 8, 4\], whose experts must be \[D, d\] with d = 10 as the router has it",
        ),
        (
            dict(norm="", down="router.weight"),
            {},
            r"the projection P is layers.0.router.weight, which layers\[0\]: the r",
        ),
    ),
    ids=str,
)
def test_wrong(other, more, sentence):
    model = Model()
    for name, shape in dict(turned=(d, l), wide=(d,), in_d=(n, D, d), columns=(n, l, D)).items():
        setattr(model.layers[0], name, nn.Parameter(torch.ones(shape)))
    with pytest.raises(ValueError, match=sentence):
        couplet.attach(model, named(model, **other), **more)


def test_entries_that_are_no_layers():
    model = Model()
    for entry in (entries_of(model)[0] + (model.layers[0].w1,), entries_of(model)[0][:1]):
        with pytest.raises(
            TypeError, match=r"layers\[0\] is a tuple, must be a pair \(router, gates\), or \(router, ga"
        ):
            couplet.attach(model, [entry])
