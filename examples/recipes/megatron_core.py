"""Megatron-Core: experts over two processes, its DistributedDataParallel, schedule and optimizer.

    pip install ./python megatron-core
    torchrun --nproc-per-node 2 examples/recipes/megatron_core.py sequential
    torchrun --nproc-per-node 2 examples/recipes/megatron_core.py te

The schedule divides each loss by the micro-batches, DistributedDataParallel divides gradients by the processes,
and finalize_model_grads by the tokens (calculate_per_token_loss). The coupling loss depends on no token: it is
added after all that, to main_grad, with the loss scale of fp16; not through MoEAuxLossAutoScaler, which would add it
for each micro-batch. The optimizer writes through p.data, past the version counters: next_step. The argument is
the experts' class: SequentialMLP, or TEGroupedMLP, here with a stub of Transformer Engine's GroupedLinear.
Expert tensor parallelism 1."""
import sys

import megatron_on_cpu  # not on GPUs
import torch
from megatron.core import parallel_state
from megatron.core.distributed import (DistributedDataParallel, DistributedDataParallelConfig,
                                       finalize_model_grads)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

import couplet
import tiny


def layers_of(model):
    for layer in (layer for layer in model.decoder.layers if hasattr(layer.mlp, "router")):
        experts = layer.mlp.experts
        grouped = getattr(experts, "linear_fc1", None)  # TEGroupedMLP
        yield layer.mlp.router.weight, [e.linear_fc1.weight for e in experts.local_experts] if grouped is None else [
            getattr(grouped, f"weight{i}") for i in range(grouped.num_gemms)]


def add_erc(scale):
    erc.backward(scale)
    for p in (p for router, gates in layers_of(model) for p in (router, *gates)):
        p.main_grad.add_(p.grad)
        p.grad = None


def finalize(*args, **kwargs):
    finalize_model_grads(*args, **kwargs)
    erc.next_step(step)
    add_erc(config.grad_scale_func(torch.ones(())) if config.grad_scale_func else 1)


config, model = megatron_on_cpu.gpt(sys.argv[1])
config.finalize_model_grads_func = finalize
erc = couplet.attach(tiny.grown(model), list(layers_of(model)), weight=tiny.WEIGHT, gate_half="first",
                     group=parallel_state.get_expert_model_parallel_group())
ddp = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3e-3, clip_grad=0.0), [ddp])

check = tiny.CheckAdded(lambda: layers_of(model), calls=1, whole=megatron_on_cpu.whole, grad=lambda p: p.main_grad,
                        gate_half="first")
add_erc = check.around(add_erc)
batches = iter(torch.utils.data.DataLoader([row["input_ids"] for row in tiny.rows(20)], batch_size=2))
for step in range(5):
    ddp.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(forward_step_func=megatron_on_cpu.forward_step, data_iterator=batches, model=[ddp],
                                num_microbatches=2, seq_length=16, micro_batch_size=2)
    optimizer.step()
check.report(", TEGroupedMLP against a stub" if sys.argv[1] == "te" else "")
