"""Replacements with which torchtitan runs on a CPU: a device without memory figures, torch's attention in place of
FlexAttention, which has no backward pass there, and rows of random ids. Import it before torchtitan.trainer."""

import collections
import types
from dataclasses import dataclass, fields

import tiny
import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.tools import utils


class Device:
    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def get_device_name(self, device=None):
        return "CPU"

    def get_device_properties(self, device=None):
        return types.SimpleNamespace(total_memory=1 << 34)

    def memory_stats(self, device=None):
        return collections.defaultdict(int)

    def reset_peak_memory_stats(self, device=None):
        pass

    def current_device(self):
        return 0

    def empty_cache(self):
        pass


utils.device_type, utils.device_module = "cpu", Device()
utils.get_local_device = lambda: torch.device("cpu")
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402  all these take the device above
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug  # noqa: E402


def attention(q, k, v, *, scale, enable_gqa, **others):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa
    ), None


FlexAttention._compiled_flex_attn = attention


class Rows(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size, **others):
        self.shape, self.rank = (local_batch_size, seq_len), dp_rank

    def __iter__(self):
        numbers = torch.Generator().manual_seed(self.rank)
        while True:
            ids = torch.randint(0, 2048, (self.shape[0], self.shape[1] + 1), generator=numbers)
            positions = torch.arange(self.shape[1]).expand(self.shape)
            yield {"input": ids[:, :-1], "positions": positions}, ids[:, 1:]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def small(Config):
    """Returns torchtitan's qwen3_moe_debug as a Config of one's own: two layers, two micro-batches a step, expert
    parallelism over two processes."""
    debug = qwen3_moe_debug()
    config = Config(**{field.name: getattr(debug, field.name) for field in fields(debug)})
    config.model_spec.model.layers = config.model_spec.model.layers[:2]
    config.parallelism.expert_parallel_degree, config.debug.seed = 2, 1
    config.training = TrainingConfig(
        local_batch_size=2,
        global_batch_size=8,
        seq_len=16,
        steps=4,
        disable_cuda_graphs=True,
        mixed_precision_param="float32",
    )
    config.loss = CrossEntropyLoss.Config(global_vocab_size=2048)
    config.checkpoint = CheckpointManager.Config(enable=False)
    config.dataloader, config.hf_assets_path = Rows.Config(), "data"
    return config


def train(trainer):
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    tiny.grown(trainer.model_parts[0])
    trainer.train()
    trainer.close()


def layers_of(model):
    return [
        (block.moe.router.gate.weight, block.moe.routed_experts.inner_experts.w1_EFD)
        for block in model.layers.values()
        if block.moe_enabled
    ]
