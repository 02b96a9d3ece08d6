"""A model sharded by FSDP (fully_shard) over two processes: the same loss and gradients as whole."""
import os
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import couplet
from conftest import close

pytest.importorskip("transformers")
fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(fsdp, "fully_shard"):
    pytest.skip("this torch has no fully_shard", allow_module_level=True)

IDS = torch.arange(8).view(1, 8)


def trained(model):
    erc = couplet.hf.attach(model, weight=3.0)
    loss = model(input_ids=IDS, labels=IDS).loss + erc.loss()
    loss.backward()
    return loss.detach(), erc


def process(rank, size, folder):
    from test_hf import tiny
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    model = tiny()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    for layer in model.model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    loss, erc = trained(model)
    grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    again = [erc.loss().item(), erc.loss().item()]
    if rank == 0:
        torch.save((loss, grads, again), os.path.join(folder, "result.pt"))
    dist.destroy_process_group()


def test_sharded_is_whole():
    from test_hf import tiny
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(2, folder), nprocs=2)
        loss, grads, again = torch.load(os.path.join(folder, "result.pt"))
    model = tiny()
    want, _ = trained(model)
    close(loss, want, 1e-6)
    for name, p in model.named_parameters():
        close(grads[name], p.grad, 1e-5, name)
    assert again[0] > 0 and again[1] == 0  # the step was seen by the shards' version counters
