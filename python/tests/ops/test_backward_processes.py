"""erc.backward in four gloo processes, and experts split by their width. The results equal those of one process."""

import copy
import warnings

import couplet
import pytest
import torch
import torch.distributed as dist
from conftest import HAS_FULLY_SHARD, all_close, close, in_processes, needs_fully_shard
from couplet.ops import _native, _plain
from test_backward import LAYERS, D, Model, attach_loss, gradients, n
from torch.nn.parallel import DistributedDataParallel

fsdp = pytest.importorskip("torch.distributed.fsdp")
SIZE = 4
WRAPPERS = ("ddp", "bucket views", *(("fully_shard",) if HAS_FULLY_SHARD else ()))
X = torch.linspace(-1, 1, 16 * SIZE).view(SIZE, 16)


def model(rows=D, dtype=torch.float32):
    torch.manual_seed(3)
    return Model(rows, dtype)


def wrapped_by(name):
    ours = model()
    if name == "fully_shard":
        return fsdp.fully_shard(ours)
    return DistributedDataParallel(ours, gradient_as_bucket_view=name == "bucket views")


def step(name, order, rank):
    """Runs two steps with accumulation over two micro-batches, and returns the full gradients of the second step."""
    ours = wrapped_by(name)
    erc = attach_loss(ours.module if isinstance(ours, DistributedDataParallel) else ours)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        if order == "before":
            erc.backward()
        counts = []
        for half in X[rank].view(2, 8).repeat(1, 2):
            ours(half[None]).backward()
            counts = [erc.backward() != 0, *counts]
        assert sum(counts) == (order == "after")  # DistributedDataParallel may move gradients between the calls.
        last = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad.clone() for p in ours.parameters()]
        optimizer.step()
    return last


def gradients_in_between(rank):
    """Calls erc.backward between forward and backward pass, in bf16, where autograd brings gradients to parameters."""
    ours = DistributedDataParallel(model(dtype=torch.bfloat16))
    erc = attach_loss(ours.module)
    loss = ours(X[rank].view(1, 16).bfloat16())
    erc.backward()
    loss.backward()
    return gradients(ours)


def refusal_of(rank, group):
    """Lets one process refuse its arguments. The other processes then refuse too and do not wait for it."""
    ours = model()
    er = dist.get_rank(group)
    for k in range(LAYERS):
        ours.gates[k] = torch.nn.Parameter(experts_here(ours.gates[k].detach(), None, (er, 2), (0, 1)))
    erc = attach_loss(ours, group=group)
    erc.__dict__["alpha"] = -1.0 if er else erc.alpha  # Writing to __dict__ bypasses the check of alpha.
    try:
        erc.backward()
    except ValueError as error:
        return str(error)
    return "nothing"


def seen_steps(**more):
    """Returns how many of three steps of AdamW on shards were noticed. Fused and foreach raise no version counters."""
    ours = wrapped_by("fully_shard")
    erc, optimizer = attach_loss(ours), torch.optim.AdamW(ours.parameters(), lr=0.01, **more)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="couplet")
        values = []
        for _ in range(3):
            optimizer.zero_grad()
            values.append(erc.backward().item())
            assert erc.backward() == 0
            optimizer.step()
    return erc.step + 1, len(set(values) - {0.0})


def train_alone():
    """Trains in one process: the loss is the mean over the replicas' losses plus the coupling loss."""
    ours = model()
    erc = attach_loss(ours)
    for _ in range(2):
        ours.zero_grad()
        total = erc.loss()
        for rank in range(SIZE):
            for half in X[rank].view(2, 8).repeat(1, 2):
                total = total + ours(half[None]) / SIZE
        total.backward()
        torch.optim.SGD(ours.parameters(), lr=0.01).step()
    return gradients(ours)


class Collectives:
    """Counts collectives inside a `with` block."""

    def __enter__(self):
        self.count, self.kept = 0, {name: getattr(dist, name) for name in ("all_gather_into_tensor", "all_reduce")}
        for name, function in self.kept.items():
            setattr(dist, name, self._counted(function))
        return self

    def _counted(self, function):
        def call(*arguments, **more):
            self.count += 1
            return function(*arguments, **more)

        return call

    def __exit__(self, *_):
        for name, function in self.kept.items():
            setattr(dist, name, function)


def experts_here(whole, half, expert, tensor):
    """Returns this process's part of the weights [n, D or 2D, d]. `expert` is (rank, size) by experts, `tensor` by
    width. Each of two fused halves is split."""
    (er, es), (tr, ts) = expert, tensor
    part = whole[er * n // es : (er + 1) * n // es]
    halves = part.chunk(2, 1) if half else [part]
    return torch.cat([h.chunk(ts, 1)[tr] for h in halves], 1)


def results_on_mesh(half, expert, tensor, groups):
    """Runs erc.backward with the experts spread over a mesh. Returns the loss by both calls, the gradients of routers
    and local gates, and the number of collectives."""
    whole = model(2 * D if half else D)
    here = copy.deepcopy(whole)
    for k in range(LAYERS):
        here.gates[k] = torch.nn.Parameter(experts_here(whole.gates[k].detach(), half, expert, tensor))
    erc = attach_loss(here, gate_half=half, **groups)
    with Collectives() as collectives:
        value = erc.backward()
    assert all(M.shape == (n, n // expert[1]) for M in erc.matrices)
    loss = attach_loss(here, gate_half=half, **groups).loss()
    return [value, loss.detach(), gradients(here), collectives.count]


def results_of_all(rank):
    warnings.filterwarnings("error", message="couplet: the gradients that")  # No gradient may disappear.
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("expert", "tensor"))
    er, tr = mesh.get_coordinate()
    pairs = {name: mesh.get_group(name) for name in ("expert", "tensor")}
    results = {(name, order): step(name, order, rank) for name in WRAPPERS for order in ("before", "after")}
    results["between"] = gradients_in_between(rank)
    results["refused"] = refusal_of(rank, pairs["expert"])
    if HAS_FULLY_SHARD:
        for name in ("fused", "foreach"):
            results[name] = seen_steps(**{name: True})
    for is_accelerator in (False, True):
        if is_accelerator:
            _native.fits = lambda job: False
            _plain.is_for = lambda device: False
        for half in (None, "first"):
            key = (is_accelerator, half)
            results[("experts", *key)] = results_on_mesh(half, (er, 2), (0, 1), {"group": pairs["expert"]})
            results[("width", *key)] = results_on_mesh(half, (0, 1), (tr, 2), {"tensor_group": pairs["tensor"]})
            results[("both", *key)] = results_on_mesh(
                half, (er, 2), (tr, 2), {"group": pairs["expert"], "tensor_group": pairs["tensor"]}
            )
    results["loss"] = results_by_width(tr, pairs["tensor"])
    return results


def results_by_width(tr, group):
    """Runs erc_loss_ep alone with another activation. The activation whose norm is taken over a sum is refused."""
    router, gate, up = torch.linspace(-1, 1, n * 16).view(n, 16).cos(), *model().gates[:2]
    leaves = [router.requires_grad_()] + [w.detach().chunk(2, 1)[tr].clone().requires_grad_() for w in (gate, up)]
    loss = couplet.erc_loss_ep(
        leaves[0], leaves[1], local_w_up=leaves[2], tensor_group=group, activation="swiglu", seed=4
    )
    loss.backward()
    with pytest.raises(ValueError, match='tensor_group splits D, over which the activation "output" sums'):
        couplet.erc_loss_ep(
            leaves[0],
            leaves[1],
            local_w_up=leaves[2],
            local_w_down=leaves[2].mT,
            tensor_group=group,
            activation="output",
        )
    return [loss.detach(), *(t.grad for t in leaves)]


@pytest.fixture(scope="module")
def results_of_four():
    return in_processes(results_of_all, SIZE)


@pytest.mark.parametrize("order", ("before", "after"))
@pytest.mark.parametrize("name", ("ddp", "bucket views", pytest.param("fully_shard", marks=needs_fully_shard)))
def test_replicas_and_shards(results_of_four, name, order):
    want = train_alone()
    for results in results_of_four:
        all_close(results[name, order], want, 1e-6)


def test_between_forward_and_backward_pass(results_of_four):
    ours = model(dtype=torch.bfloat16)
    total = attach_loss(ours).loss()
    for rank in range(SIZE):
        total = total + ours(X[rank].view(1, 16).bfloat16()) / SIZE
    total.backward()
    for results in results_of_four:
        for got, want, same in zip(results["between"], gradients(ours), results_of_four[0]["between"], strict=True):
            close(got, want, 2e-2)
            assert torch.equal(got, same)


def test_what_one_process_refuses_all_refuse(results_of_four):
    for rank, results in enumerate(results_of_four):
        sentence = "alpha is -1" if rank // 2 else "process 1 of the group refused its arguments: couplet: alpha is -1"
        assert sentence in results["refused"], (rank, results["refused"])


@needs_fully_shard
@pytest.mark.parametrize("name", ("fused", "foreach"))
def test_steps_on_shards_are_seen(results_of_four, name):
    assert [results[name] for results in results_of_four] == [(3, 3)] * SIZE


@pytest.mark.parametrize("half", (None, "first"))
@pytest.mark.parametrize("is_accelerator", (False, True), ids=("cpu", "accelerator"))
@pytest.mark.parametrize("spread", ("experts", "width", "both"))
def test_spread_experts(results_of_four, spread, is_accelerator, half):
    whole = model(2 * D if half else D)
    value = attach_loss(whole, gate_half=half).backward()
    for rank, results in enumerate(results_of_four):
        backward, loss, gradient, collectives = results[spread, is_accelerator, half]
        close(backward, value, 1e-6), close(loss, value, 1e-6)
        expert = (rank // 2, 2) if spread != "width" else (0, 1)
        tensor = (rank % 2, 2) if spread != "experts" else (0, 1)
        for got, p in zip(gradient[:LAYERS], whole.routers):
            close(got, p.grad, 1e-6)
        for got, p in zip(gradient[LAYERS:], whole.gates):
            close(got, experts_here(p.grad, half, expert, tensor), 1e-6)
        # Experts: agreement, diagonals, counts, routers. Width: agreement, squares, routers. All layers share them.
        assert collectives == {"experts": 4, "width": 3, "both": 7}[spread]


def test_the_loss_of_split_experts(results_of_four):
    router, gate, up = torch.linspace(-1, 1, n * 16).view(n, 16).cos(), *model().gates[:2]
    leaves = [router.requires_grad_(), gate.detach().requires_grad_(), up.detach().requires_grad_()]
    want = couplet.erc_loss(leaves[0], leaves[1], w_up=leaves[2], activation="swiglu", seed=4)
    want.backward()
    for rank, results in enumerate(results_of_four):
        loss, d_router, *others = results["loss"]
        close(loss, want, 1e-6), close(d_router, leaves[0].grad, 1e-6)
        for got, leaf in zip(others, leaves[1:]):
            close(got, leaf.grad.chunk(2, 1)[rank % 2], 1e-6)
