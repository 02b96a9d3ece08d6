"""A tiny MoE model of OLMo-core, two processes on a CPU under FSDP, and rows of ids. Gathering and scattering
of tokens are plain torch in place of OLMo-core's Triton kernels."""

import tempfile

import tiny
import torch
import torch.distributed as dist
from olmo_core.data.data_loader import DataLoaderBase
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.ops import moe as ops
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

LENGTH, STEPS, ROWS = 16, 5, 8  # rows of a step: two micro-batches of two in each process


def gather_rows(x, indices, bin_ids, bins, top_k):
    return x[indices // top_k]


def scatter(x, indices, bin_ids, weights, bins, top_k):
    placed = torch.zeros_like(x).index_copy(0, indices.long(), x * weights[indices, None])
    return placed.view(-1, top_k, x.shape[-1]).sum(1)


ops.gather, ops.scatter = gather_rows, scatter


class Rows(DataLoaderBase):
    total_batches = STEPS

    def _iter_batches(self):
        rows = torch.stack([row["input_ids"] for row in tiny.rows(STEPS * ROWS, LENGTH)])
        for step in rows.view(STEPS, ROWS, LENGTH):
            yield {"input_ids": step[self.dp_rank :: self.dp_world_size]}

    def get_mock_batch(self):
        return next(iter(self._iter_batches()))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def reshuffle(self, epoch=None, **others):
        self._epoch = epoch


def trainer_of(**callbacks):
    prepare_training_environment(backend="gloo", shared_filesystem=True)
    model = TransformerConfig.llama_like_moe(
        d_model=32,
        vocab_size=4096,
        n_layers=2,
        n_heads=4,
        num_experts=8,
        top_k=2,
        expert_hidden_size=24,
        dropless=True,
        hidden_size_multiple_of=8,
    ).build(init_device="cpu")
    torch.manual_seed(0)
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=2 * LENGTH,
        max_sequence_length=LENGTH,
        optim=AdamWConfig(lr=3e-3),
        max_grad_norm=1.0,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.fsdp),
    ).build(model)
    tiny.grown(module.model)
    folder = tempfile.mkdtemp()
    rows = Rows(
        work_dir=folder, global_batch_size=ROWS * LENGTH, dp_world_size=dist.get_world_size(), dp_rank=dist.get_rank()
    )
    return TrainerConfig(
        save_folder=folder,
        no_checkpoints=True,
        max_duration=Duration.steps(STEPS),
        callbacks=callbacks,
        metrics_collect_interval=1,
    ).build(module, rows)


def whole(flat):
    """Returns the router [n, d] or the gates [n, D, d] of the flat parameter."""
    flat = tiny.whole(flat)
    return flat.view(8, -1) if flat.dim() == 1 else flat.view(8, -1, flat.shape[-1])
