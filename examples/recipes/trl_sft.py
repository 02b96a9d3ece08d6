"""TRL's SFTTrainer. Its other trainers are also Transformers' Trainer.

pip install ./python trl
python examples/recipes/trl_sft.py"""

import tempfile

import couplet
import tiny
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

model = tiny.model()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file="data/tokenizer.json", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
)
texts = [f"The square of {k} is {k * k}, its cube is {k**3}, and so on." for k in range(20)]
rows = Dataset.from_list([{"text": text} for text in texts])
arguments = SFTConfig(
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
    bf16=False,
    max_length=16,
)
trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
couplet.hf.attach(model, weight=tiny.WEIGHT).join(trainer)  # the loss, and its figures in the log
balanced = lambda twin, batch: twin(**batch, output_router_logits=True).loss  # TRL adds the load balancing loss
with tiny.Check(model, lm=balanced, max_grad_norm=arguments.max_grad_norm):
    trainer.train()
assert trainer.state.log_history[0]["erc"] > 0
