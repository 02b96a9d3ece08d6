"""OLMo-core: inspects the checkpoint of a run with a dropless MoE, two processes under FSDP.

    pip install ./python ai2-olmo-core safetensors
    torchrun --nproc-per-node 2 examples/recipes/olmo_core_saved.py

The folder is that of one step. Routers are flat, gates [n D,d]."""

import olmo_core_small
import saved
from olmo_core.distributed.checkpoint import save_model_and_optim_state

trainer = olmo_core_small.trainer_of()
trainer.fit()
module = trainer.train_module
save_model_and_optim_state(saved.FOLDER / "model_and_optim", module.model, module.optim)
moes = [block.feed_forward_moe for block in module.model.blocks.values()]
layers = [[olmo_core_small.whole(flat.detach()) for flat in (moe.router.weight, moe.experts.mlp.w1)] for moe in moes]
saved.check(saved.FOLDER / "model_and_optim", layers)
