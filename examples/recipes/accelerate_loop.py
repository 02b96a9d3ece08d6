"""Accelerate: a loop of your own, here two processes in DistributedDataParallel.

    pip install ./python accelerate transformers
    accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \
        examples/recipes/accelerate_loop.py"""

import couplet
import tiny
import torch
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=2)
model = tiny.model()
erc = couplet.hf.attach(model, weight=tiny.WEIGHT)
check = tiny.Check(model, max_grad_norm=1.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(tiny.rows(40), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with check:
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)  # divides by the micro-batches
            if accelerator.sync_gradients:
                erc.backward(accelerator.scaler.get_scale() if accelerator.scaler else 1.0)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
