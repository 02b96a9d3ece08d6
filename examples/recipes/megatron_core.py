"""Megatron-Core: experts over two processes, its DistributedDataParallel, schedule and optimizer.

    pip install ./python megatron-core
    torchrun --nproc-per-node 2 examples/recipes/megatron_core.py sequential
    torchrun --nproc-per-node 2 examples/recipes/megatron_core.py te

The schedule divides each loss by the micro-batches, DistributedDataParallel divides gradients by the processes,
and finalize_model_grads by the tokens (calculate_per_token_loss). The coupling loss depends on no token. It is
added after these divisions, to main_grad, with the loss scale of fp16. MoEAuxLossAutoScaler would add it for each
micro-batch. The optimizer holds copies of the parameters, so next_step is called. The argument is the experts' class:
SequentialMLP, or TEGroupedMLP, here with a stub of Transformer Engine's GroupedLinear. Expert tensor parallelism:
tensor_group=, with gates as in docs/pytorch/sharding.md."""

import sys

import couplet
import megatron_on_cpu  # not on GPUs
import tiny
import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron_on_cpu import layers_of  # yours: [(router, gates)] of the model


def finalize(*args, **kwargs):
    finalize_model_grads(*args, **kwargs)
    erc.next_step()  # after a resume pass the number of the iteration
    erc.backward(config.grad_scale_func(torch.ones(())) if config.grad_scale_func else 1, attribute="main_grad")


config, model = megatron_on_cpu.gpt(sys.argv[1])
config.finalize_model_grads_func = finalize
erc = couplet.attach(
    tiny.grown(model),
    layers_of(model),
    weight=tiny.WEIGHT,
    gate_half="first",
    group=parallel_state.get_expert_model_parallel_group(),
)

check = tiny.CheckAdded(
    lambda: layers_of(model), calls=1, whole=megatron_on_cpu.whole, grad=lambda p: p.main_grad, gate_half="first"
)
erc.backward = check.around(erc.backward)
megatron_on_cpu.train(config, model, steps=5)
check.report(", TEGroupedMLP against a stub" if sys.argv[1] == "te" else "")
