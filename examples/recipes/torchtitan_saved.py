"""torchtitan: inspects the checkpoint of a run with expert parallelism and FSDP2, two processes.

    pip install ./python torchtitan safetensors
    torchrun --nproc-per-node 2 examples/recipes/torchtitan_saved.py

The folder is that of the last step. Gates are [n,D,d]."""

import saved
import titan_on_cpu  # not on GPUs
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.trainer import Trainer

config = titan_on_cpu.small(Trainer.Config)
config.dump_folder = str(saved.FOLDER)
config.checkpoint = CheckpointManager.Config(enable=True, interval=4, last_save_model_only=True)
trainer = config.build()
titan_on_cpu.train(trainer)
layers = [
    (router.full_tensor(), gates.full_tensor()) for router, gates in titan_on_cpu.layers_of(trainer.model_parts[0])
]
saved.check(saved.FOLDER / "checkpoint/step-4", layers)
