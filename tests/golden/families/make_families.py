#!/usr/bin/env python3
"""Tiny Mixture-of-Experts checkpoints with known expert-router coupling.

Writes one directory per model family beside this file: a checkpoint saved by Hugging Face transformers, as it would
be published, with random weights, and expected.json, the figures a reader of that checkpoint must find.

The figures are computed in float64 from the parameters of the model in memory, after rounding to the type they are
stored in. No tensor name of the saved file is used, so a mistake in naming, orientation or order cannot hide.

    python make_families.py [FAMILY ...]        all families when none is named

Needs numpy, torch (CPU) and transformers 5.23, for latent experts 5.24. Equal versions give equal bytes.
"""

import copy
import json
import math
import os
import shutil
import sys
import warnings
import zlib

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch
import transformers

torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
ALPHAS = (1, 2, 3, 4, 5)


# ---------------------------------------------------------------------------------------------------------------
# the figures
# ---------------------------------------------------------------------------------------------------------------


def coupling(R, W):
    """Returns M[i, j] = |R_i . W_g^j|, shape [n, n], from R [n, d] and n matrices W [D, d]."""
    return np.stack([np.linalg.norm(R @ w.T, axis=1) for w in W], axis=1)


def erc(M, alpha):
    """Returns (1/n^2) sum_i sum_{j != i} max(M_ij - alpha M_ii, 0) + max(M_ji - alpha M_ii, 0)."""
    n = len(M)
    own = alpha * np.diag(M)
    hinge = np.maximum(M - own[:, None], 0) + np.maximum(M - own[None, :], 0)
    np.fill_diagonal(hinge, 0)
    return hinge.sum() / n**2


def figures(R, V, W):
    """Returns every figure of one MoE layer, in float64. The experts read V, which is R unless they are latent."""
    R, V = np.asarray(R, np.float64), np.asarray(V, np.float64)
    W = [np.asarray(w, np.float64) for w in W]
    n, d = R.shape
    D = W[0].shape[0]
    assert len(W) == n and all(w.shape == (D, V.shape[1]) for w in W), (V.shape, [w.shape for w in W])
    assert np.isfinite(R).all() and all(np.isfinite(w).all() for w in W)

    M = coupling(V, W)
    other = ~np.eye(n, dtype=bool)
    own = np.diag(M)
    r = np.linalg.norm(R, axis=1)
    g = np.array([np.linalg.norm(w) for w in W])
    distance = np.linalg.norm(R[:, None, :] - R[None, :, :], axis=2)
    distance[~other] = np.inf
    eps = distance.min(axis=1) / (2 * r)
    cosine = (R @ R.T) / np.outer(r, r)
    return {
        "n": n,
        "d": d,
        "D": D,
        "erc": {str(a): erc(M, a) for a in ALPHAS},
        "alpha_min": np.maximum(M / own[:, None], M / own[None, :])[other].max(),
        "eps": {"mean": eps.mean(), "min": eps.min(), "max": eps.max()},
        "M": {"diag_mean": own.mean(), "offdiag_mean": M[other].mean()},
        "router_norm": {"mean": r.mean(), "std": r.std()},
        "expert_norm": {"mean": g.mean(), "std": g.std()},
        "router_cos": {"mean_abs": np.abs(cosine[other]).mean()},
    }


def rounded(x):
    """Rounds every number in x to 9 significant digits."""
    if isinstance(x, dict):
        return {k: rounded(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [rounded(v) for v in x]
    if isinstance(x, (float, np.floating)):
        assert math.isfinite(x)
        return float(f"{float(x):.9g}")
    if isinstance(x, np.integer):
        return int(x)
    return x


# ---------------------------------------------------------------------------------------------------------------
# models
# ---------------------------------------------------------------------------------------------------------------

TINY = dict(
    vocab_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    intermediate_size=56,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    sliding_window=16,
    num_experts_per_tok=2,
    # latent attention
    kv_lora_rank=12,
    q_lora_rank=20,
    qk_rope_head_dim=8,
    qk_nope_head_dim=6,
    v_head_dim=10,
)


def config(cls, **keys):
    """Returns a config of this class: the TINY values that it accepts, then the given keys."""
    import dataclasses

    known = {f.name for f in dataclasses.fields(cls)} | set(cls.attribute_map)
    given = {cls.attribute_map.get(k, k) for k in keys}
    base = {k: v for k, v in TINY.items() if k in known and cls.attribute_map.get(k, k) not in given}
    base.update(keys)
    return cls(**base)


def noise(tag, shape):
    """Returns standard normal numbers that depend on the tag alone."""
    return np.random.Generator(np.random.PCG64(zlib.crc32(tag.encode()))).standard_normal(shape)


def fill(model, tag):
    """Fills a model with random weights. Each tensor has its own scale, and so has each slice along its first axis: the
    rows of a router and the experts of a stacked tensor differ clearly in norm."""
    with torch.no_grad():
        named = list(model.named_parameters()) + [
            (k, b) for k, b in model.named_buffers() if torch.is_floating_point(b) and k in model.state_dict()
        ]
        for name, p in named:
            if not torch.is_floating_point(p):
                continue
            t = f"{tag}/{name}"
            if p.ndim < 2:
                value = p.float().numpy() + 0.1 * noise(t, tuple(p.shape))
            else:
                scale = 0.15 * math.exp(0.3 * noise(t + "#tensor", ()))
                rows = np.exp(0.5 * noise(t + "#rows", p.shape[0])).reshape([-1] + [1] * (p.ndim - 1))
                value = scale * rows * noise(t, tuple(p.shape))
            p.copy_(torch.from_numpy(np.ascontiguousarray(value)).to(p.dtype))


def build(cls, cfg, tag, dtype=torch.bfloat16, keep=()):
    """Returns a model of this class with random weights, stored as dtype. Parameters whose name contains one of `keep`,
    and those that transformers itself keeps in float32, stay float32."""
    torch.manual_seed(0)
    model = cls(cfg).float().eval()
    fill(model, tag)
    keep = set(keep) | set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if torch.is_floating_point(p) and not any(k in name.split(".") or k in name for k in keep):
                p.data = p.data.to(dtype)
    model.config.dtype = dtype
    return model


def array(p):
    """Returns a parameter as float64 numpy: exactly the values that will be stored."""
    return p.detach().to(torch.float64).numpy()


def gate_rows(p, D):
    """Converts p [n, 2D, d], applied as x @ p[e].T, first half gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[1] == 2 * D
    return [w[:D] for w in a]


def all_rows(p, D):
    """Converts p [n, D, d], applied as x @ p[e].T, experts without a gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[1] == D
    return list(a)


def gate_even_columns(p, D):
    """Converts p [n, d, 2D], applied as x @ p[e], even columns gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[2] == 2 * D
    return [w[:, 0::2].T for w in a]


# ---------------------------------------------------------------------------------------------------------------
# writing
# ---------------------------------------------------------------------------------------------------------------


def expectation(family, layers, skipped, K):
    """Returns the expected figures. layers: (index, R, V, W)."""
    out = {"family": family, "layers": [], "skipped_layers": list(skipped)}
    for index, R, V, W in layers:
        width = {"l": V.shape[1]} if V is not R else {}
        out["layers"].append(rounded({"layer": index, "K": K} | width | figures(R, V, W)))
    return out


def save(path, model, expected, **options):
    """Saves the checkpoint by transformers, and expected.json beside it."""
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    model.save_pretrained(path, **options)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), 0o644)
    with open(os.path.join(path, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")


# ---------------------------------------------------------------------------------------------------------------
# families
# ---------------------------------------------------------------------------------------------------------------

# Name -> prefix of the classes in transformers, values of their config, and further arguments of `make`. D is the
# width of an expert. The layers that `skipped` names are dense.
FAMILIES = {
    "olmoe": ("Olmoe", dict(hidden_size=32, intermediate_size=20, num_experts=8, num_key_value_heads=4), dict(D=20)),
    "mixtral": ("Mixtral", dict(hidden_size=40, intermediate_size=28, num_local_experts=6), dict(D=28)),
    # Layers 0 and 2 are dense (decoder_sparse_step 2), layer 3 too (mlp_only_layers).
    "qwen3_moe": (
        "Qwen3Moe",
        dict(hidden_size=32, moe_intermediate_size=24, num_experts=7, num_experts_per_tok=3, num_hidden_layers=6)
        | dict(decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True),
        dict(D=24, K=3, skipped=[0, 2, 3, 4], dtype=torch.float32),
    ),
    # Has shared experts, and a correction bias beside the router.
    "deepseek_v3": (
        "DeepseekV3",
        dict(hidden_size=48, moe_intermediate_size=18, n_routed_experts=8, n_shared_experts=1, n_group=2, topk_group=1)
        | dict(num_hidden_layers=3, first_k_dense_replace=1, num_key_value_heads=4, num_nextn_predict_layers=0),
        dict(D=18, skipped=[0], keep=("e_score_correction_bias",)),
    ),
    # Has all experts of a layer in one tensor, in the rows layout.
    "granitemoe": (
        "GraniteMoe",
        dict(hidden_size=32, intermediate_size=22, num_local_experts=6),
        dict(D=22, router="block_sparse_moe.router", experts="block_sparse_moe.experts"),
    ),
    # Has all experts of a layer in one tensor, in the columns layout, gate and up interleaved. It is not quantised.
    "gpt_oss": (
        "GptOss",
        dict(hidden_size=32, intermediate_size=28, num_local_experts=6),
        dict(D=28, router="mlp.router", gates=gate_even_columns),
    ),
    # Has several files with model.safetensors.index.json. A layer's experts lie in different files.
    "sharded_olmoe": (
        "Olmoe",
        dict(hidden_size=40, intermediate_size=24, num_experts=6, num_key_value_heads=4, num_hidden_layers=3),
        dict(D=24, family="olmoe", max_shard_size="40KB"),
    ),
    # Latent experts without a gate: they read what `between` makes of a router row.
    "nemotron_h": (
        "NemotronH",
        dict(hidden_size=32, layers_block_type=["moe", "moe"], moe_latent_size=14, moe_intermediate_size=24)
        | dict(n_routed_experts=8, moe_shared_expert_intermediate_size=20, n_group=1, topk_group=1)
        | dict(mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8, n_groups=1),
        dict(D=24, router="mixer.gate", experts="mixer.experts", tensor="up_proj", gates=all_rows)
        | dict(between=["mixer.fc1_latent_proj"], keep=("e_score_correction_bias",)),
    ),
    # Latent experts with a norm behind the projection.
    "muse_spark_text": (
        "MuseSparkText",
        dict(hidden_size=32, moe_hidden_size=14, moe_intermediate_size=24, num_local_experts=8, rms_norm_eps=0.01),
        dict(D=24, suffix="Model", between=["mlp.pre_expert_proj", "mlp.pre_expert_norm"]),
    ),
}


def read_by_experts(block, between, R):
    """Returns what the modules `between` of a layer make of the router rows, by their own code."""
    for name in between:
        R = copy.deepcopy(block.get_submodule(name)).double()(torch.as_tensor(R)).detach().numpy()
    return R


def make(path, prefix, keys, D, family=None, K=2, skipped=(), router="mlp.gate", experts="mlp.experts", **more):
    """Saves a model of a family, with the figures that it must give. `more`: `gates`, `tensor`, `suffix`, `between`,
    arguments of build and save."""
    name, gates, between = os.path.basename(path), more.pop("gates", gate_rows), more.pop("between", ())
    suffix, tensor = more.pop("suffix", "ForCausalLM"), more.pop("tensor", "gate_up_proj")
    of_build = {key: more.pop(key) for key in ("dtype", "keep") if key in more}
    settings = config(getattr(transformers, prefix + "Config"), **keys)
    model = build(getattr(transformers, prefix + suffix), settings, name, **of_build)
    inner = getattr(model, "model", model)
    assert not any(hasattr(inner.layers[l].mlp, "experts") for l in skipped)
    layers = []
    for l, b in enumerate(inner.layers):
        if l not in skipped:
            R = array(b.get_submodule(router).weight)
            W = gates(getattr(b.get_submodule(experts), tensor), D)
            layers.append((l, R, read_by_experts(b, between, R), W))
    save(path, model, expectation(family or name, layers, skipped=skipped, K=K), **more)
    assert "max_shard_size" not in more or os.path.exists(os.path.join(path, "model.safetensors.index.json"))


def main(wanted, root):
    if unknown := set(wanted) - set(FAMILIES):
        sys.exit(f"unknown family: {' '.join(sorted(unknown))}")
    for name in wanted or FAMILIES:
        prefix, keys, more = FAMILIES[name]
        make(os.path.join(root, name), prefix, keys, **more)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:], HERE)
