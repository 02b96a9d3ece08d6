"""A configuration of axolotl for a CPU, a tiny model, text, and a plugin that checks the gradients."""

import json
import os
import pathlib
import tempfile

import tiny
from axolotl.integrations.base import BasePlugin
from transformers import PreTrainedTokenizerFast

CONFIG = """
base_model: {folder}/model
datasets: [{{path: {folder}/rows.jsonl, ds_type: json, type: completion}}]
plugins: [axolotl_plugin.ErcPlugin, axolotl_small.CheckPlugin]
erc_weight: {weight}
sequence_len: 16
micro_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 5
learning_rate: 0.003
lr_scheduler: constant
optimizer: adamw_torch
output_dir: {folder}/out
dataset_prepared_path: {folder}/prepared
save_strategy: "no"
val_set_size: 0
use_cpu: true
bf16: false
fp16: false
tf32: false
"""


class CheckPlugin(BasePlugin):
    def post_trainer_create(self, cfg, trainer):
        self.check = tiny.Check(trainer.model, max_grad_norm=trainer.args.max_grad_norm).__enter__()

    def post_train(self, cfg, model):
        self.check.__exit__(None, None, None)


def train():
    folder = pathlib.Path(tempfile.mkdtemp())
    tiny.model().save_pretrained(folder / "model")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file="data/tokenizer.json",
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|padding|>",
    )
    tokenizer.save_pretrained(folder / "model")
    with open(folder / "rows.jsonl", "w") as lines:
        for k in range(40):
            text = f"The square of {k} is {k * k}, and its cube is {k**3}. " * 3
            lines.write(json.dumps({"text": text}) + "\n")
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, weight=tiny.WEIGHT))
    os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"
    from axolotl.cli.train import do_cli

    do_cli(str(folder / "config.yml"))
