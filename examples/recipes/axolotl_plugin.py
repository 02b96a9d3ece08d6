"""axolotl: a plugin. In your configuration, with the folder of this file in PYTHONPATH:

plugins: [axolotl_plugin.ErcPlugin]
erc_weight: 1.0

    pip install ./python axolotl
    python examples/recipes/axolotl_plugin.py

This runs `axolotl train` on a tiny model, axolotl_small.CONFIG."""

import couplet
from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel


class ErcArguments(BaseModel):
    erc_weight: float = 1.0


class ErcPlugin(BasePlugin):
    def get_input_args(self):
        return "axolotl_plugin.ErcArguments"

    def post_trainer_create(self, cfg, trainer):
        couplet.hf.attach(trainer.model, weight=cfg.erc_weight).join(trainer)


if __name__ == "__main__":
    import axolotl_small

    axolotl_small.train()
