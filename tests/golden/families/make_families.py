#!/usr/bin/env python3
"""Tiny Mixture-of-Experts checkpoints with known expert-router coupling.

Writes one directory per model family beside this file: a checkpoint saved by Hugging Face transformers, as it would
be published, with random weights, and expected.json, the figures a reader of that checkpoint must find.

The figures are computed in float64 from the parameters of the model in memory, after rounding to the type they are
stored in. No tensor name of the saved file is used, so a mistake in naming, orientation or order cannot hide.

    python make_families.py [FAMILY ...]        all families when none is named

Needs numpy, torch (CPU) and transformers 5.23. The same versions give the same bytes.
"""

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

torch.set_num_threads(1)

HERE = os.path.dirname(os.path.abspath(__file__))
ALPHAS = (1, 2, 3, 4, 5)


# ---------------------------------------------------------------------------------------------------------------
# the figures
# ---------------------------------------------------------------------------------------------------------------


def coupling(R, W):
    """M[i, j] = |R_i . W_g^j|, shape [n, n], from R [n, d] and n matrices W [D, d]."""
    return np.stack([np.linalg.norm(R @ w.T, axis=1) for w in W], axis=1)


def erc(M, alpha):
    """(1/n^2) sum_i sum_{j != i} max(M_ij - alpha M_ii, 0) + max(M_ji - alpha M_ii, 0)"""
    n = len(M)
    own = alpha * np.diag(M)
    hinge = np.maximum(M - own[:, None], 0) + np.maximum(M - own[None, :], 0)
    np.fill_diagonal(hinge, 0)
    return hinge.sum() / n**2


def figures(R, W):
    """Every figure of one MoE layer, in float64."""
    R = np.asarray(R, np.float64)
    W = [np.asarray(w, np.float64) for w in W]
    n, d = R.shape
    D = W[0].shape[0]
    assert len(W) == n and all(w.shape == (D, d) for w in W), (R.shape, [w.shape for w in W])
    assert np.isfinite(R).all() and all(np.isfinite(w).all() for w in W)

    M = coupling(R, W)
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
    """9 significant digits, in whatever x contains."""
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
    """A config of this class: the TINY values it knows, then the given keys."""
    import dataclasses

    known = {f.name for f in dataclasses.fields(cls)} | set(cls.attribute_map)
    given = {cls.attribute_map.get(k, k) for k in keys}
    base = {k: v for k, v in TINY.items() if k in known and cls.attribute_map.get(k, k) not in given}
    base.update(keys)
    return cls(**base)


def noise(tag, shape):
    """Standard normal numbers that depend on the tag alone."""
    return np.random.Generator(np.random.PCG64(zlib.crc32(tag.encode()))).standard_normal(shape)


def fill(model, tag):
    """Random weights. Each tensor has a scale of its own, and so has each slice along its first axis: the rows of a
    router and the experts of a stacked tensor differ clearly in norm."""
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
    """A model of this class with random weights, stored as dtype; parameters whose name contains one of `keep`, and
    those transformers itself keeps in float32, stay float32."""
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
    """A parameter as float64 numpy: exactly the values that will be stored."""
    return p.detach().to(torch.float64).numpy()


def gate_rows(p, D):
    """p [n, 2D, d], applied as x @ p[e].T, first half gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[1] == 2 * D
    return [w[:D] for w in a]


def gate_columns(p, D):
    """p [n, d, 2D], applied as x @ p[e], first half gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[2] == 2 * D
    return [w[:, :D].T for w in a]


def gate_even_columns(p, D):
    """p [n, d, 2D], applied as x @ p[e], even columns gate -> n matrices [D, d]."""
    a = array(p)
    assert a.ndim == 3 and a.shape[2] == 2 * D
    return [w[:, 0::2].T for w in a]


# ---------------------------------------------------------------------------------------------------------------
# writing
# ---------------------------------------------------------------------------------------------------------------


def expectation(family, layers, skipped=(), K=None, **more):
    """layers: (index, R, W) or (index, R, W, extra keys)."""
    out = {"family": family, "layers": [], "skipped_layers": list(skipped)}
    for index, R, W, *extra in layers:
        entry = {"layer": index}
        if K is not None:
            entry["K"] = K
        entry.update(figures(R, W))
        for e in extra:
            entry.update(e)
        out["layers"].append(rounded(entry))
    out.update(more)
    return out


def write_expected(path, expected):
    with open(os.path.join(path, "expected.json"), "w") as f:
        json.dump(expected, f, indent=1)
        f.write("\n")


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def save(path, model, expected, **options):
    """The checkpoint as transformers saves it, and expected.json beside it."""
    fresh(path)
    model.save_pretrained(path, **options)
    for name in os.listdir(path):
        os.chmod(os.path.join(path, name), 0o644)
    write_expected(path, expected)


# ---------------------------------------------------------------------------------------------------------------
# families
# ---------------------------------------------------------------------------------------------------------------


def olmoe(path):
    from transformers import OlmoeConfig, OlmoeForCausalLM

    D = 20
    cfg = config(OlmoeConfig, hidden_size=32, intermediate_size=D, num_experts=8, num_key_value_heads=4)
    model = build(OlmoeForCausalLM, cfg, "olmoe")
    layers = [
        (l, array(b.mlp.gate.weight), gate_rows(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
    ]
    save(path, model, expectation("olmoe", layers, K=2))


def mixtral(path):
    from transformers import MixtralConfig, MixtralForCausalLM

    D = 28
    cfg = config(MixtralConfig, hidden_size=40, intermediate_size=D, num_local_experts=6)
    model = build(MixtralForCausalLM, cfg, "mixtral")
    layers = [
        (l, array(b.mlp.gate.weight), gate_rows(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
    ]
    save(path, model, expectation("mixtral", layers, K=2))


def qwen3_moe(path):
    """Layers 0 and 2 are dense (decoder_sparse_step 2), layer 3 too (mlp_only_layers); float32."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    D = 24
    cfg = config(
        Qwen3MoeConfig,
        hidden_size=32,
        moe_intermediate_size=D,
        num_experts=7,
        num_experts_per_tok=3,
        num_hidden_layers=6,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        norm_topk_prob=True,
    )
    model = build(Qwen3MoeForCausalLM, cfg, "qwen3_moe", dtype=torch.float32)
    sparse = [1, 5]
    layers = [
        (l, array(b.mlp.gate.weight), gate_rows(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
        if l in sparse
    ]
    assert [l for l, b in enumerate(model.model.layers) if hasattr(b.mlp, "experts")] == sparse
    save(path, model, expectation("qwen3_moe", layers, skipped=[0, 2, 3, 4], K=3))


def deepseek_v3(path):
    """Layer 0 is dense; shared experts; a correction bias beside the router."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    D = 18
    cfg = config(
        DeepseekV3Config,
        hidden_size=48,
        moe_intermediate_size=D,
        n_routed_experts=8,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        num_hidden_layers=3,
        first_k_dense_replace=1,
        num_key_value_heads=4,
        num_nextn_predict_layers=0,
    )
    model = build(DeepseekV3ForCausalLM, cfg, "deepseek_v3", keep=("e_score_correction_bias",))
    layers = [
        (l, array(b.mlp.gate.weight), gate_rows(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
        if l >= 1
    ]
    assert not hasattr(model.model.layers[0].mlp, "experts")
    save(path, model, expectation("deepseek_v3", layers, skipped=[0], K=2))


def granitemoe(path):
    """All experts of a layer in one tensor, rows layout."""
    from transformers import GraniteMoeConfig, GraniteMoeForCausalLM

    D = 22
    cfg = config(GraniteMoeConfig, hidden_size=32, intermediate_size=D, num_local_experts=6)
    model = build(GraniteMoeForCausalLM, cfg, "granitemoe")
    layers = [
        (l, array(b.block_sparse_moe.router.weight), gate_rows(b.block_sparse_moe.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
    ]
    save(path, model, expectation("granitemoe", layers, K=2))


def gpt_oss(path):
    """All experts of a layer in one tensor, columns layout, gate and up interleaved; bfloat16, not quantised."""
    from transformers import GptOssConfig, GptOssForCausalLM

    D = 28
    cfg = config(GptOssConfig, hidden_size=32, intermediate_size=D, num_local_experts=6)
    model = build(GptOssForCausalLM, cfg, "gpt_oss")
    layers = [
        (l, array(b.mlp.router.weight), gate_even_columns(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
    ]
    save(path, model, expectation("gpt_oss", layers, K=2))


def sharded_olmoe(path):
    """OLMoE over several files with model.safetensors.index.json; a layer's experts lie in different files."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    D = 24
    cfg = config(
        OlmoeConfig, hidden_size=40, intermediate_size=D, num_experts=6, num_key_value_heads=4, num_hidden_layers=3
    )
    model = build(OlmoeForCausalLM, cfg, "sharded_olmoe")
    layers = [
        (l, array(b.mlp.gate.weight), gate_rows(b.mlp.experts.gate_up_proj, D))
        for l, b in enumerate(model.model.layers)
    ]
    save(path, model, expectation("olmoe", layers, K=2), max_shard_size="40KB")
    assert os.path.exists(os.path.join(path, "model.safetensors.index.json"))


FAMILIES = [olmoe, mixtral, qwen3_moe, deepseek_v3, granitemoe, gpt_oss, sharded_olmoe]


def main(argv, families, root):
    wanted = set(argv)
    unknown = wanted - {f.__name__ for f in families}
    if unknown:
        sys.exit(f"unknown family: {' '.join(sorted(unknown))}")
    for f in families:
        if not wanted or f.__name__ in wanted:
            f(os.path.join(root, f.__name__))
            print(f.__name__)


if __name__ == "__main__":
    main(sys.argv[1:], FAMILIES, HERE)
