"""torchtitan with the loss as one file of your tree. It needs no package, hook or state of ours.

    cp python/vendor/erc.py examples/recipes/; pip install torchtitan
    torchrun --nproc-per-node 2 examples/recipes/torchtitan_vendored.py

The loss is added in the first micro-batch of a step. full_tensor gathers a router, and to_local gives the experts of
this process. Autograd brings both gradients back to the shards. If FSDP divides an expert too, gather that dimension
first (redistribute). The argument `group` is the group of expert parallelism. tiny.py, which checks the gradients,
needs the package couplet. titan_on_cpu replaces the parts that need a GPU."""

from dataclasses import dataclass

import tiny
import titan_on_cpu  # not on GPUs
from erc import erc_loss
from titan_on_cpu import layers_of  # yours: [(router, gates)] of the model
from torchtitan.trainer import Trainer


class ErcTrainer(Trainer):
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        erc_weight: float = tiny.WEIGHT

    done = 0  # number of the last step that has its loss; self.step begins at 1

    def forward_backward_step(self, **batch):
        loss = super().forward_backward_step(**batch)
        self.add_erc()
        return loss

    def add_erc(self):
        if self.done == self.step:
            return
        self.done, layers = self.step, layers_of(self.model_parts[0])
        group = self.parallel_dims.get_mesh("ep").get_group()
        for l, (router, gates) in enumerate(layers):
            erc_loss(
                router.full_tensor(),
                gates.to_local(),
                weight=self.config.erc_weight / len(layers),
                step=self.step - 1,
                layer=l,
                group=group,
            ).backward()


trainer = titan_on_cpu.small(ErcTrainer.Config).build()
check = tiny.CheckAdded(lambda: layers_of(trainer.model_parts[0]), loss=erc_loss)
trainer.add_erc = check.around(trainer.add_erc)
titan_on_cpu.train(trainer)
check.report()
