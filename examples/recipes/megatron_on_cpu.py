"""Replacements with which Megatron-Core runs on a CPU, a stub of Transformer Engine's GroupedLinear, and a tiny GPT
model whose experts are spread over two processes."""

import contextlib
from unittest import mock

import tiny
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


OnCpu().__enter__()
torch.cuda.current_device = lambda: torch.device("cpu")
stream = mock.MagicMock()
torch.cuda.Stream = torch.cuda.current_stream = lambda *args: stream
torch.cuda.stream = lambda stream: contextlib.nullcontext()
torch.Tensor.cuda = lambda self, *args, **kwargs: self

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.mlp import MLPSubmodules  # noqa: E402
from megatron.core.transformer.moe import moe_utils, token_dispatcher  # noqa: E402
from megatron.core.transformer.moe.experts import TEGroupedMLP  # noqa: E402
from megatron.core.transformer.spec_utils import ModuleSpec  # noqa: E402

tensor_parallel.random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, **others: (
    tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
)
moe_utils.te_general_gemm = None  # not defined where Transformer Engine is missing


class GroupedLinear(torch.nn.Module):
    """The interface that TEGroupedMLP uses: parameters weight0, weight1, ... [out, in]; forward(x, rows of each
    expert) -> (y, bias)."""

    def __init__(self, num_gemms, input_size, output_size, *, init_method, **others):
        super().__init__()
        self.num_gemms = num_gemms
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(output_size, input_size))
            init_method(weight)
            weight.allreduce = False  # an expert's weight differs between processes
            self.register_parameter(f"weight{i}", weight)

    def forward(self, x, m_splits):
        parts = torch.split(x, list(m_splits))
        return torch.cat([part @ getattr(self, f"weight{i}").T for i, part in enumerate(parts)]), None


def gpt(experts):
    """Returns (config, GPTModel) with SequentialMLP ("sequential") or TEGroupedMLP ("te") as experts."""
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(expert_model_parallel_size=2)
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=24,
        num_moe_experts=8,
        moe_router_topk=2,
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=2,
        gated_linear_unit=True,
        add_bias_linear=False,
        activation_func=torch.nn.functional.silu,
        use_cpu_initialization=True,
        bias_dropout_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        gradient_accumulation_fusion=False,
    )
    spec = get_gpt_layer_local_spec(num_experts=8, moe_grouped_gemm=False)
    if experts == "te":
        spec.submodules.mlp.submodules.experts = ModuleSpec(
            module=TEGroupedMLP, submodules=MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
        )
    return config, GPTModel(config, spec, vocab_size=4096, max_sequence_length=16)


def forward_step(batches, model):
    """Returns, as forward_backward_func requires, the output and the function that computes the loss from it."""
    ids = next(batches)
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    mask = torch.ones(1, 1, ids.shape[1], ids.shape[1]).triu(1).bool()
    loss = model(ids, positions, mask, labels=ids)
    return loss, lambda output: (output.mean(), {})


def train(config, model, steps):
    """Trains with two micro-batches a step. Clipping is off, since its check asserts CUDA tensors."""
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=3e-3, clip_grad=0.0), [ddp])
    rows = [row["input_ids"] for row in tiny.rows(4 * steps)]
    batches = iter(torch.utils.data.DataLoader(rows, batch_size=2))
    for _ in range(steps):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=batches,
            model=[ddp],
            num_microbatches=2,
            seq_length=16,
            micro_batch_size=2,
        )
        optimizer.step()


def whole(gates):
    """Returns a router unchanged, or the gates of every process's local experts as [n, 2D, d]."""
    if torch.is_tensor(gates):
        return gates
    here = torch.stack(gates)
    parts = [torch.empty_like(here) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, here, group=parallel_state.get_expert_model_parallel_group())
    return torch.cat(parts)


def gates_of(experts):
    if hasattr(experts, "local_experts"):  # SequentialMLP
        return [expert.linear_fc1.weight for expert in experts.local_experts]
    return [getattr(experts.linear_fc1, f"weight{i}") for i in range(experts.num_local_experts)]  # TEGroupedMLP


def layers_of(model):
    return [
        (layer.mlp.router.weight, gates_of(layer.mlp.experts))
        for layer in model.decoder.layers
        if hasattr(layer.mlp, "router")
    ]
