"""The verdicts on DeepSpeed, Megatron-Core and torchtitan in docs/verdicts.md. The libraries are imported unchanged.

    pip install --no-deps deepspeed megatron-core torchtitan spmd_types
    pip install hjson py-cpuinfo msgpack ninja einops tyro
    python tests/certify/verdicts_libraries.py

A library that is not installed has a row without a verdict."""

import importlib
import importlib.metadata
import types
import warnings

import torch
from couplet import certify

# ---- DeepSpeed: the first result of its gates ----


def gate(name, k):
    def loss(logits, top_k=k, coefficient=1.0):
        gates = importlib.import_module("deepspeed.moe.sharded_moe")
        more = {"k": top_k} if name == "topkgating" else {}
        if name == "top2gating":
            more["top2_2nd_expert_sampling"] = False
        return coefficient * getattr(gates, name)(logits=logits, capacity_factor=1.0, min_capacity=1, **more)[0]

    return loss


# ---- Megatron-Core ----


def utilities():
    return importlib.import_module("megatron.core.transformer.moe.moe_utils")


def megatron(logits, top_k, coefficient):
    routed, scores = utilities().compute_routing_scores_for_aux_loss(logits, top_k, "softmax")
    return utilities().switch_load_balancing_loss_func(
        scores, routed.sum(0), len(logits), top_k, logits.shape[-1], coefficient
    )


def megatron_masked(logits, top_k, coefficient, mask):
    routed, scores = utilities().compute_routing_scores_for_aux_loss(logits, top_k, "softmax", padding_mask=~mask)
    return utilities().switch_load_balancing_loss_func(
        scores, routed.sum(0), int(mask.sum()), top_k, logits.shape[-1], coefficient
    )


def megatron_sequences(logits, top_k, coefficient, sequences):
    """Computes the loss as TopKRouter._apply_seq_aux_loss does, for tokens of one sequence after the other."""
    B, (T, n) = sequences, logits.shape
    routed, scores = utilities().compute_routing_scores_for_aux_loss(logits, top_k, "sigmoid")
    scores, routed = (one.view(B, T // B, n).transpose(0, 1).reshape(T // B, B * n) for one in (scores, routed))
    return utilities().switch_load_balancing_loss_func(scores, routed.sum(0), T // B, top_k, n, coefficient) / B


def megatron_z(logits, coefficient, mask):
    return utilities().z_loss_func(logits, coefficient, ~mask)


# ---- torchtitan ----


def titan(counts, bias, rate):
    """Runs torchtitan's hook before an optimizer's step, on one layer in one process, with sums of counts."""
    optimizer = importlib.import_module("torchtitan.components.optimizer.optimizer")
    moe = torch.nn.Module()
    moe.load_balance_coeff, moe.tokens_per_expert_E, moe.expert_bias_E = rate, counts.sum(0), bias.clone()
    layer = torch.nn.Module()
    layer.moe_enabled, layer.moe = True, moe
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict({"0": layer})
    hooks = []
    spread = types.SimpleNamespace(get_optional_mesh=lambda name: None, ep_enabled=False, tp=1)
    optimizer.register_moe_load_balancing_hook(
        types.SimpleNamespace(register_step_pre_hook=hooks.append), [model], spread
    )
    hooks[0]()
    return moe.expert_bias_E


# name, distribution, callable, kind
WHAT = (
    ("deepspeed.moe.sharded_moe.top1gating", "deepspeed", gate("top1gating", 1), "load-balancing-olmoe"),
    ("deepspeed.moe.sharded_moe.top2gating", "deepspeed", gate("top2gating", 2), "load-balancing-olmoe"),
    ("deepspeed.moe.sharded_moe.topkgating", "deepspeed", gate("topkgating", None), "load-balancing-olmoe"),
    ("Megatron-Core's aux_loss, softmax scores", "megatron-core", megatron, "load-balancing-olmoe"),
    ("the same with a padding mask", "megatron-core", megatron_masked, "load-balancing-olmoe"),
    ("Megatron-Core's seq_aux_loss, sigmoid scores", "megatron-core", megatron_sequences, "load-balancing-deepseek"),
    ("Megatron-Core's z_loss_func, with a padding mask", "megatron-core", megatron_z, "z-loss"),
    ("torchtitan's expert bias", "torchtitan", titan, "bias-update-sign"),
)


def judged(function, kind, name):
    fixed = {} if "bias" in kind else {"logits": "one"}
    if "top1" in name or "top2" in name:
        function, k = of_k(function, 1 if "top1" in name else 2)
        fixed["fixed"] = {"top_k": k}
    try:
        return certify.sentence(certify.certify(function, kind, **fixed))
    except certify.CannotJudge as error:
        return f"not judged: {error}".partition("\n")[0]


def of_k(function, k):
    """Returns the function without the argument top_k, which these gates lack."""
    return (lambda logits, coefficient: function(logits, coefficient=coefficient)), k


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| loss | version | verdict |", "|---|---|---|", sep="\n")
    for name, distribution, function, kind in WHAT:
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            print(f"| `{name}` | not installed | |")
            continue
        print(f"| {name} | {distribution} {version} | {judged(function, kind, name).replace('|', 'or')} |", flush=True)


if __name__ == "__main__":
    main()
