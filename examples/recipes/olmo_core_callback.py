"""OLMo-core: a callback of its Trainer, here two processes under FSDP.

    pip install ./python ai2-olmo-core
    torchrun --nproc-per-node 2 examples/recipes/olmo_core_callback.py

Its routers are flat parameters [n d], its gates [n D, d] (DroplessMoEMLP) or [n d, D] (MoEMLP). They are viewed
and passed to couplet.erc_loss, one layer after the other. full_tensor gathers a layer. pre_optim_step runs
after the micro-batches and before gradients are clipped, so that the coefficient is not divided. Under expert
parallelism use couplet.erc_loss_ep and w1.to_local()."""

import couplet
import olmo_core_small
import tiny
from olmo_core.nn.moe.mlp import DroplessMoEMLP
from olmo_core.train.callbacks import Callback


def layers_of(model):
    return [block.feed_forward_moe for block in model.blocks.values() if hasattr(block, "feed_forward_moe")]


def matrices_of(moe):
    n, d, mlp = moe.router.num_experts, moe.router.d_model, moe.experts.mlp
    gates = mlp.w1.full_tensor()
    gates = gates.view(n, -1, d) if isinstance(mlp, DroplessMoEMLP) else gates.view(n, d, -1).mT
    return moe.router.weight.full_tensor().view(n, d), gates


class ErcCallback(Callback):
    def pre_optim_step(self):
        layers = layers_of(self.trainer.train_module.model)
        for number, moe in enumerate(layers):
            couplet.erc_loss(
                *matrices_of(moe), weight=tiny.WEIGHT / len(layers), seed=tiny.SEED, step=self.step - 1, layer=number
            ).backward()


trainer = olmo_core_small.trainer_of(erc=ErcCallback())
check = tiny.CheckAdded(
    lambda: [(moe.router.weight, moe.experts.mlp.w1) for moe in layers_of(trainer.train_module.model)],
    calls=1,
    whole=olmo_core_small.whole,
)
callback = trainer.callbacks["erc"]
callback.pre_optim_step = check.around(callback.pre_optim_step)
trainer.fit()
check.report()
