"""Megatron-Core with the loss as one file of your tree. It needs no package, hook or state of ours.

    cp python/vendor/erc.py examples/recipes/; pip install megatron-core
    torchrun --nproc-per-node 2 examples/recipes/megatron_vendored.py sequential
    torchrun --nproc-per-node 2 examples/recipes/megatron_vendored.py te

add_gradients is called at the end of finalize_model_grads: gradients are summed and divided, and clipping follows. It
adds to main_grad. The number of the step is the iteration that the checkpoint stores. The argument is as in
megatron_core.py. tiny.py, which checks the gradients, needs the package couplet."""

import itertools
import sys

import erc
import megatron_on_cpu  # not on GPUs
import tiny
import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron_on_cpu import layers_of  # put a function here that returns [(router, gates)] of your model


def finalize(*args, **kwargs):
    finalize_model_grads(*args, **kwargs)
    scale = config.grad_scale_func(torch.ones(())) if config.grad_scale_func else 1
    erc.add_gradients(
        layers_of(model),
        step=next(iterations),
        weight=tiny.WEIGHT,
        scale=scale,
        attribute="main_grad",
        gate_half="first",
        group=parallel_state.get_expert_model_parallel_group(),
    )


iterations = itertools.count()  # in your trainer, its own iteration number
config, model = megatron_on_cpu.gpt(sys.argv[1])
config.finalize_model_grads_func = finalize
tiny.grown(model)

check = tiny.CheckAdded(
    lambda: layers_of(model),
    calls=1,
    whole=megatron_on_cpu.whole,
    grad=lambda p: p.main_grad,
    gate_half="first",
    loss=erc.erc_loss,
)
erc.add_gradients = check.around(erc.add_gradients)
megatron_on_cpu.train(config, model, steps=5)
check.report(", TEGroupedMLP against a stub" if sys.argv[1] == "te" else "")
