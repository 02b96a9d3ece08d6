"""Lightning: a callback, with Lightning's own (automatic) optimisation.

pip install ./python lightning transformers
python examples/recipes/lightning_module.py"""

import couplet
import lightning as L
import tiny
import torch


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)

    def on_before_optimizer_step(self, optimizer):  # runs after the callbacks' own
        check.step()


class ErcCallback(L.Callback):
    def __init__(self, erc):
        self.erc = erc

    def on_before_optimizer_step(self, trainer, module, optimizer):  # gradients are unscaled, not yet clipped
        self.erc.next_step(trainer.global_step)
        self.erc.backward()
        module.log("erc", self.erc.value)


module = Module()
erc = couplet.hf.attach(module.model, weight=tiny.WEIGHT)
trainer = L.Trainer(
    max_steps=5,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    callbacks=[ErcCallback(erc)],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
with tiny.Check(module.model, hooked=False) as check:
    trainer.fit(module, torch.utils.data.DataLoader(tiny.rows(20), batch_size=2))
