"""A model sharded by FSDP (fully_shard, and FSDP1) or copied (DDP) over two processes gives one process's results."""

import contextlib

import couplet
import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor
from conftest import HAS_FULLY_SHARD, close, group_of_one, in_processes, needs_fully_shard

pytest.importorskip("transformers")
fsdp = pytest.importorskip("torch.distributed.fsdp")
from test_hf import tiny  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: E402
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402

IDS = torch.arange(8).view(1, 8)


def trained(model):
    erc = couplet.hf.attach(model, weight=3.0)
    loss = model(input_ids=IDS, labels=IDS).loss + erc.loss()
    loss.backward()
    return loss.detach(), erc


def again(model, erc):
    """Returns two losses after an optimizer step. The first shows that the step was noticed, and the second is zero."""
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    whole = FSDP.summon_full_params(model, with_grads=True) if isinstance(model, FSDP) else contextlib.nullcontext()
    with whole:
        loss = erc.loss()
        loss.backward()
        return [loss.item(), erc.loss().item()]


def sharded(mesh):
    model = tiny()
    for layer in model.model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def grads_of(model):
    return {name: p.grad.full_tensor() for name, p in model.named_parameters()}


def fully_shard(mesh):
    model = sharded(mesh)
    loss, erc = trained(model)
    return loss, grads_of(model), again(model, erc)


def attached_before(mesh):
    """Attaches to an empty model, then shards and fills it, as torchtitan does. The root's own group has whole
    parameters when the loss is evaluated."""
    with torch.device("meta"):
        model = tiny()
    erc = couplet.hf.attach(model, weight=3.0)
    fsdp.fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    whole = dict(tiny().named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(dist.tensor.distribute_tensor(whole[name].detach(), p.device_mesh, p.placements))
        for name, b in model.named_buffers():
            b.copy_(tiny().get_buffer(name))
    loss = model(input_ids=IDS, labels=IDS).loss + erc.loss()
    assert not hasattr(model.model.layers[0].mlp.gate.weight, "full_tensor")  # otherwise this case is not tested
    loss.backward()
    return loss.detach(), grads_of(model), again(model, erc)


def in_a_loop_of_ones_own(mesh):
    """Calls `couplet.erc_loss` on full_tensor(), as in docs/pytorch/sharding.md."""
    model = sharded(mesh)
    loss = model(input_ids=IDS, labels=IDS).loss
    for number, layer in enumerate(model.model.layers):
        loss = loss + couplet.erc_loss(
            layer.mlp.gate.weight.full_tensor(),
            layer.mlp.experts.gate_up_proj.full_tensor(),
            gate_half="first",
            weight=3.0 / 2,
            layer=number,
        )
    loss.backward()
    return loss.detach(), grads_of(model), [1, 0]


def fsdp1(mesh):
    """Makes a separate backward pass, inside summon_full_params, after that of the model."""
    whole = tiny()
    erc = couplet.hf.attach(whole, weight=3.0)
    model = FSDP(
        whole,
        auto_wrap_policy=ModuleWrapPolicy({type(whole.model.layers[0])}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    loss = model(input_ids=IDS, labels=IDS).loss
    loss.backward()
    with FSDP.summon_full_params(model, with_grads=True):
        extra = erc.loss()
        extra.backward()
        erc.loss().backward()  # the next micro-batch adds zero
    with FSDP.summon_full_params(model, with_grads=True):
        grads = {name.replace("_fsdp_wrapped_module.", ""): p.grad.clone() for name, p in model.named_parameters()}
    return loss.detach() + extra.detach(), grads, again(model, erc)


def replicas(mesh):
    """Attaches to a model wrapped by DistributedDataParallel, whose gradients are a mean."""
    model = torch.nn.parallel.DistributedDataParallel(tiny())
    loss, erc = trained(model)
    grads = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    return loss, grads, again(model, erc)


CASES = (fsdp1, replicas, *((fully_shard, attached_before, in_a_loop_of_ones_own) if HAS_FULLY_SHARD else ()))


def results(rank):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    return {case.__name__: case(mesh) for case in CASES}


@pytest.fixture(scope="module")
def two():
    return in_processes(results, 2)[0]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_two_processes_are_one(two, case):
    loss, grads, after = two[case]
    model = tiny()
    want, _ = trained(model)
    close(loss, want, 1e-6)
    for name, p in model.named_parameters():
        close(grads[name], p.grad, 1e-5, name)
    assert after[0] > 0 and after[1] == 0  # the shards' version counters showed the step


@needs_fully_shard
def test_shards_that_move_no_version_counter():
    """A warning is given, and no loss: a process with an empty shard would not take part."""
    with group_of_one():
        model = sharded(torch.distributed.device_mesh.init_device_mesh("cpu", (1,)))
        _, erc = trained(model)
        for p in model.parameters():
            p.data.to_local().add_(1)
        with pytest.warns(UserWarning, match="call erc.next_step") as warned:
            assert erc.loss().item() == 0
        assert [w.filename for w in warned] == [__file__]
        erc.next_step()
        assert erc.loss().grad_fn is not None
