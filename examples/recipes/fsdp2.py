"""FSDP2 by hand: fully_shard over two processes.

pip install ./python transformers
torchrun --nproc-per-node 2 examples/recipes/fsdp2.py"""

import couplet
import tiny
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")  # on GPUs nccl, and "cuda" below
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = tiny.model()
erc = couplet.hf.attach(model, weight=tiny.WEIGHT)  # before or after sharding
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
batches = torch.utils.data.DataLoader(tiny.rows(40)[dist.get_rank() :: 2], batch_size=2)

with tiny.Check(model, hooked=False) as check:
    for number, batch in enumerate(batches):
        (model(**batch).loss / 2).backward()
        if number % 2 == 1:
            erc.next_step(number // 2)  # the number of the optimizer step
            erc.backward()
            check.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
