"""The verdicts on trainers in docs/verdicts.md. Each trainer makes a step of three micro-batches of a tiny Qwen3-MoE.

pip install trl datasets
PYTHONPATH=tests python tests/certify/verdicts_trainers.py"""

import os
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from couplet import certify
from test_certify_record_spread import of_transformers

KIND, STEPS = "load-balancing-mixtral", 3
IDS = torch.randint(3, 48, (4 * STEPS, 10), generator=torch.Generator().manual_seed(1))


def settings(folder):
    return dict(
        output_dir=folder, per_device_train_batch_size=4, gradient_accumulation_steps=STEPS, report_to=[], use_cpu=True
    )


def trainer_of_transformers(model, folder):
    rows = [{"input_ids": row, "labels": row} for row in IDS]
    return transformers.Trainer(model, args=transformers.TrainingArguments(**settings(folder)), train_dataset=rows)


def words():
    """Returns a tokenizer of 48 words."""
    import tokenizers

    model = tokenizers.models.WordLevel({f"w{k}": k for k in range(48)}, unk_token="w3")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="w0", bos_token="w1", eos_token="w2")


def trainer_of_trl(model, folder):
    import datasets
    import trl

    rows = datasets.Dataset.from_list([{"text": " ".join(f"w{int(one)}" for one in row)} for row in IDS])
    args = trl.SFTConfig(**settings(folder), bf16=False, pad_to_multiple_of=16)
    return trl.SFTTrainer(model, args=args, train_dataset=rows, processing_class=words())


def judged(make):
    model = of_transformers("qwen3_moe")
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(model, folder)
        trainer.current_gradient_accumulation_steps = STEPS
        batches, count = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), STEPS, torch.device("cpu"))

        def set_it(value):
            for one in (model, model.config, trainer):
                one.router_aux_loss_coef = value

        model.train()
        with certify.record(model, coefficient=set_it, value=0.5) as recorded:
            recorded.run(lambda: sum(trainer.training_step(model, dict(batch), count) for batch in batches))
    return certify.sentence(recorded.verdict(KIND))


def main():
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print("| trainer | verdict |", "|---|---|", sep="\n")
    print(f"| `Trainer`, Transformers {transformers.__version__} | {judged(trainer_of_transformers)} |", flush=True)
    try:
        import trl
    except ImportError:
        print("| `SFTTrainer` | not installed: trl |")
        return
    print(f"| `SFTTrainer`, TRL {trl.__version__} | {judged(trainer_of_trl)} |")


if __name__ == "__main__":
    main()
