"""DeepSpeed: ZeRO stages 1 and 2, two processes.

    pip install ./python deepspeed transformers
    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/recipes/deepspeed_zero.py 1
    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 examples/recipes/deepspeed_zero.py 2

The argument is the stage. From stage 1 on, hooks of the backward pass move the gradients to the process
that owns the partition. Therefore the loss goes through engine.backward, which divides by the micro-batches. The
optimizer holds flat copies of the parameters, so next_step marks the beginning of a step."""

import sys

import couplet
import deepspeed
import tiny
import torch
from deepspeed.utils import safe_get_full_grad

ACCUMULATION = 2
model = tiny.model()
erc = couplet.hf.attach(model, weight=tiny.WEIGHT, accumulation=ACCUMULATION)
engine, optimizer, loader, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
    training_data=tiny.rows(40),
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "zero_optimization": {"stage": int(sys.argv[1])},
        "zero_allow_untested_optimizer": True,
    },
)

with tiny.Check(model, grad=safe_get_full_grad, hooked=False) as check:
    for number, batch in enumerate(loader):
        if number % ACCUMULATION == 0:
            erc.next_step(engine.global_steps)
        engine.backward(engine(**batch).loss + erc.loss())
        if engine.is_gradient_accumulation_boundary():
            check.step()
        engine.step()
