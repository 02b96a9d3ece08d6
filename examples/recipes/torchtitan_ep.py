"""torchtitan: expert parallelism and FSDP2, two processes.

    pip install ./python torchtitan
    torchrun --nproc-per-node 2 examples/recipes/torchtitan_ep.py

Call attach after Trainer.__init__, which builds the model on the device meta, parallelizes it, and then gives
it memory and numbers (to_empty, init_weights). torchtitan sums gradients over processes and divides by tokens
in its loss. erc.backward adds to the existing gradients, so that neither changes the coefficient. `group`
is the group of expert parallelism. Without it each process gathers all experts of a layer. titan_on_cpu replaces
the parts that need a GPU."""

from dataclasses import dataclass

import couplet
import tiny
import titan_on_cpu  # not on GPUs
from titan_on_cpu import layers_of  # yours: [(router, gates)] of the model
from torchtitan.trainer import Trainer


class ErcTrainer(Trainer):
    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        erc_weight: float = tiny.WEIGHT

    def __init__(self, config):
        super().__init__(config)
        self.erc = couplet.attach(
            self.model_parts[0],
            layers_of(self.model_parts[0]),
            weight=config.erc_weight,
            group=self.parallel_dims.get_mesh("ep").get_group(),
        )

    def train_step(self, data):
        self.erc.next_step(self.step - 1)  # continues the noise after a resume
        super().train_step(data)

    def forward_backward_step(self, **batch):
        loss = super().forward_backward_step(**batch)
        self.erc.backward()  # only the call of a step's first micro-batch adds gradients
        return loss


trainer = titan_on_cpu.small(ErcTrainer.Config).build()
check = tiny.CheckAdded(lambda: layers_of(trainer.model_parts[0]))
trainer.erc.backward = check.around(trainer.erc.backward)
titan_on_cpu.train(trainer)
check.report()
