"""Transformers' Trainer.

pip install './python[hf]'
python examples/recipes/hf_trainer.py"""

import tempfile

import couplet
import tiny
from transformers import Trainer, TrainingArguments

model = tiny.model()
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    max_steps=5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    lr_scheduler_type="constant",
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=tiny.rows(20))
couplet.hf.attach(model, weight=tiny.WEIGHT).join(trainer)  # the loss, and its figures in the log
with tiny.Check(model, max_grad_norm=arguments.max_grad_norm):
    trainer.train()
assert trainer.state.log_history[0]["erc"] > 0
