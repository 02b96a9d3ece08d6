"""couplet.attach over processes gives one process's results: FSDP2, expert parallelism, and both on a mesh of two
dimensions as in torchtitan: distribute_tensor spreads experts over `ep`, then fully_shard shards over `dp`."""

import gc
import weakref

import couplet
import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor
from conftest import HAS_FULLY_SHARD, IS_211, close, in_processes, needs_fully_shard
from couplet.figures import _figures
from torch import nn

fsdp = pytest.importorskip("torch.distributed.fsdp")
try:
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor
except ImportError:  # torch 2.4
    from torch.distributed._tensor import DTensor, Shard, distribute_tensor

n, d, D = 8, 10, 6
SETTINGS = dict(weight=3.0, seed=2, gate_half="first")


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(n, 2 * D, d))

    def forward(self, x):
        return x


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False)
        self.experts = Experts()

    def forward(self, x):
        return self.experts(x) + 0 * self.router(x).sum()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList([Moe() for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def layers_of(model):
    return [(layer.router.weight, layer.experts.w1) for layer in model.layers]


def spread(model, mesh):
    """Makes the experts' parameters DTensors over `ep`, as torchtitan's ExpertParallel does."""
    for layer in model.layers:
        layer.experts.w1 = nn.Parameter(distribute_tensor(layer.experts.w1.detach(), mesh["ep"], [Shard(0)]))


def shard(model, mesh, experts_mesh=None):
    for layer in model.layers:
        if experts_mesh is not None:
            fsdp.fully_shard(layer.experts, mesh=experts_mesh)
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)


def whole_gradients(model):
    return {name: p.grad.full_tensor().clone() for name, p in model.named_parameters()}


def result(model, erc, of_model=0):
    """Returns loss, gradients, and the losses after an optimizer step. `of_model` is another loss, with value 0."""
    loss = erc.loss() + of_model
    loss.backward()
    for p in model.parameters():
        assert isinstance(p, DTensor) and p.grad.placements == p.placements
    grads = whole_gradients(model)
    first = loss.detach()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    second = erc.loss()
    second.backward()
    return first, grads, second.detach(), erc.loss().item()


def fsdp2(size):
    """Shards the model by FSDP2. Without group= the parameters are gathered from all processes."""
    model = Model()
    shard(model, dist.device_mesh.init_device_mesh("cpu", (size,)))
    return result(model, couplet.attach(model, layers_of(model), **SETTINGS))


def another_dtype(size):
    """Returns gradients of bf16 parameters, first in f32 (p.grad_dtype), then in bf16."""
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        model = Model().bfloat16()
        shard(model, dist.device_mesh.init_device_mesh("cpu", (size,)))
        for p in model.parameters():
            p.grad_dtype = dtype
        couplet.attach(model, layers_of(model), **SETTINGS).backward()
        results.append(whole_gradients(model))
    return results


def hybrid(size):
    """Shards the model over half of the processes, and replicates it over the rest."""
    model = Model()
    shard(model, dist.device_mesh.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")))
    return result(model, couplet.attach(model, layers_of(model), **SETTINGS))


def adapted_model():
    peft = pytest.importorskip("peft")
    model = Model()
    torch.manual_seed(5)
    config = peft.LoraConfig(r=2, target_modules=["router"], target_parameters=["experts.w1"])
    model = peft.inject_adapter_in_model(config, model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.3)
    return model


NAMES = [(f"layers.{i}.router.weight", f"layers.{i}.experts.w1") for i in range(2)]


def adapted(size):
    """Adds LoRA to routers and experts. Its matrices are sharded with the model."""
    model = adapted_model()
    shard(model, dist.device_mesh.init_device_mesh("cpu", (size,)))
    loss = couplet.attach(model, NAMES, **SETTINGS).loss()
    loss.backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(isinstance(g, DTensor) for g in trained.values())
    return loss.detach(), {name: g.full_tensor() for name, g in trained.items()}


def mesh_of(size):
    """Returns the mesh dp x ep."""
    return dist.device_mesh.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "ep"))


def ep_alone(size):
    """Uses plain parameters [n / p, 2D, d]. The router's gradient is complete in every process."""
    rank = dist.get_rank()
    model = Model()
    for layer in model.layers:
        layer.experts.w1 = nn.Parameter(layer.experts.w1.detach()[rank * n // size : (rank + 1) * n // size].clone())
    erc = couplet.attach(model, layers_of(model), group=dist.group.WORLD, **SETTINGS)
    loss = erc.loss()
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    for name in [name for name in grads if "w1" in name]:
        parts = [torch.empty_like(grads[name]) for _ in range(size)]
        dist.all_gather(parts, grads[name])
        grads[name] = torch.cat(parts)
    figures = erc.figures(figures=_figures.ALL_NAMES)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    second = erc.loss()
    second.backward()
    return loss.detach(), grads, second.detach(), erc.loss().item(), figures


def ep_and_fsdp2(size):
    """Attaches to a model that is sharded already, whose experts are 2-D DTensors."""
    mesh, model = mesh_of(size), Model()
    spread(model, mesh)
    shard(model, mesh._flatten("all") if hasattr(mesh, "_flatten") else mesh["dp"], mesh["dp"])
    w1 = model.layers[0].experts.w1
    assert w1.device_mesh.ndim == 2 and w1.to_local().shape[0] == n // size
    got = result(model, couplet.attach(model, layers_of(model), group=mesh["ep"].get_group(), **SETTINGS))
    return (*got, couplet.attach(model, layers_of(model), **SETTINGS).loss().detach())  # gathered over both dimensions


def attached_before_both(size):
    """Attaches to the plain model by names, before it is spread and sharded. The loss is also evaluated between forward
    and backward pass, where the root's own group has whole parameters."""
    mesh, model = mesh_of(size), Model()
    erc = couplet.attach(model, NAMES, group=mesh["ep"].get_group(), **SETTINGS)
    spread(model, mesh)
    fsdp.fully_shard(model, mesh=mesh["dp"])
    out = model(torch.zeros(1, d))
    assert model.layers[0].experts.w1.device_mesh.ndim == 1  # otherwise this case is not tested
    return result(model, erc, out.sum())


def gathered_for_its_own_layer(size):
    """Counts the layers whose gathered gates exist at once, in loss() and until the backward pass has ended."""
    model = Model()
    shard(model, dist.device_mesh.init_device_mesh("cpu", (size,)))
    erc = couplet.attach(model, layers_of(model), **SETTINGS)
    gathered, most, inner = [], 0, DTensor.full_tensor

    def full_tensor(self, **more):
        nonlocal most
        found = inner(self, **more)
        if found.dim() == 3:
            gathered.append(weakref.ref(found.untyped_storage()))
            gc.collect()
            most = max(most, sum(ref() is not None for ref in gathered))
        return found

    DTensor.full_tensor = full_tensor
    try:
        loss = erc.loss()
        gc.collect()
        after = sum(ref() is not None for ref in gathered)
        loss.backward()
    finally:
        DTensor.full_tensor = inner
    return len(gathered), most, after


def experts_that_are_not_spread(size):
    model = Model()
    erc = couplet.attach(model, layers_of(model), group=dist.group.WORLD, **SETTINGS)
    try:
        erc.loss()
    except ValueError as error:
        return str(error)


def uneven(size):
    model = Model()
    model.layers[0].router = nn.Linear(d, size + 1, bias=False)
    try:
        couplet.attach(model, layers_of(model), group=dist.group.WORLD, **SETTINGS)
    except ValueError as error:
        return str(error)


SHARDED = (fsdp2, ep_and_fsdp2, attached_before_both, hybrid)
# In PyTorch 2.11 PEFT's adapters of sharded matrices have no backward pass: "Attempted to flatten multiple dimensions".
CASES = (
    ep_alone,
    experts_that_are_not_spread,
    uneven,
    *((gathered_for_its_own_layer, *SHARDED) if HAS_FULLY_SHARD else ()),
    *((another_dtype,) if HAS_FULLY_SHARD and hasattr(torch.Tensor, "grad_dtype") else ()),
    *((adapted,) if HAS_FULLY_SHARD and not IS_211 else ()),
)


def results(rank, size):
    found = {case.__name__: case(size) for case in CASES if case is not hybrid or size == 4}
    return found if rank == size - 1 else None


@pytest.fixture(scope="module", params=(2, 4))
def many(request):
    return request.param, in_processes(results, request.param, request.param)[-1]


@pytest.fixture(scope="module")
def one():
    model = Model()
    erc = couplet.attach(model, layers_of(model), **SETTINGS)
    loss = erc.loss()
    loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    figures = erc.figures(figures=_figures.ALL_NAMES)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss.detach(), grads, erc.loss().detach(), figures


@pytest.mark.parametrize(
    "case", ["ep_alone", *(pytest.param(case.__name__, marks=needs_fully_shard) for case in SHARDED)]
)
def test_processes_are_one(many, one, case):
    size, results = many
    if case not in results:
        pytest.skip("of four processes")
    loss, grads, after, again, *_ = results[case]
    close(loss, one[0], 1e-6)
    for name, want in one[1].items():
        assert want.any()
        close(grads[name], want, 1e-6, name)
    close(after, one[2], 1e-6)  # after an optimizer step
    assert again == 0


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="Tensor.grad_dtype came with PyTorch 2.10")
@needs_fully_shard
def test_shards_with_gradients_of_another_dtype(many):
    wide, narrow = many[1]["another_dtype"]
    for name, g in wide.items():
        assert g.any() and g.dtype == torch.float32 and narrow[name].dtype == torch.bfloat16
        close(g, narrow[name].float(), 1e-2, name)


@needs_fully_shard
@pytest.mark.skipif(IS_211, reason="PyTorch 2.11 cannot differentiate it")
def test_adapters_that_are_sharded(many):
    model = adapted_model()
    want = couplet.attach(model, NAMES, **SETTINGS).loss()
    want.backward()
    loss, grads = many[1]["adapted"]
    close(loss, want.detach(), 1e-6)
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert set(grads) == set(trained) and len(grads) == 8 and all("lora_" in name for name in grads)
    for name, g in trained.items():
        close(grads[name], g, 1e-6, name)


def test_figures_of_spread_experts(many, one):
    assert many[1]["ep_alone"][4] == pytest.approx(one[3], rel=1e-5)


@needs_fully_shard
def test_without_group_all_is_gathered(many, one):
    close(many[1]["ep_and_fsdp2"][4], couplet_of_moved(), 1e-5)


def couplet_of_moved():
    """Returns the loss of step 0 after the optimizer step of `result`."""
    model = Model()
    couplet.attach(model, layers_of(model), **SETTINGS).loss().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return couplet.attach(model, layers_of(model), **SETTINGS).loss().detach()


@needs_fully_shard
def test_gathered_gates_live_for_their_own_layer(many):
    assert many[1]["gathered_for_its_own_layer"] == (2, 1, 0)


def test_sentences(many):
    size, results = many
    assert (
        f"layers.0.experts.w1 has 8 experts in this process, must have {8 // size}"
        in results["experts_that_are_not_spread"]
    )
    assert f"layers[0]: the router has {size + 1} rows, which {size} processes cannot share" in results["uneven"]
