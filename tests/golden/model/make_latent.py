#!/usr/bin/env python3
"""make_latent.py [--check]: writes the case `latent` of tests/golden/model: an OLMoE with latent experts in plain PyTorch,
float64. --check computes the case `base`, without latent experts, and compares it with the stored values of
Transformers' OlmoeForCausalLM: the code here is that model.

Latent experts read W_l x, and W_u returns their sum (docs/method.md 3.14):

    y = W_u (sum over the chosen e of p_e E_e(W_l x))"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent
LATENT = {
    "model_type": "couplet",
    "architectures": ["CoupletForCausalLM"],
    "router": "softmax",
    "latent_dim": 24,
    "num_experts": 8,
}


def norm(x, weight, eps):
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def rotated(x, theta):
    """Rotates x [B, H, S, w]: the pair (i, i + w/2) of a head by position * theta^(-2i/w). Angles are F32 as in
    Transformers."""
    S, w = x.shape[-2:]
    frequency = 1.0 / theta ** (torch.arange(0, w, 2, dtype=torch.float32) / w)
    angle = torch.arange(S, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos().double(), angle.sin().double()
    a, b = x[..., : w // 2], x[..., w // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(h, at, config):
    eps, heads = config["rms_norm_eps"], config["num_attention_heads"]
    B, S, d = h.shape
    a = norm(h, at["input_layernorm.weight"], eps)
    q, k = (norm(a @ at[f"self_attn.{x}_proj.weight"].T, at[f"self_attn.{x}_norm.weight"], eps) for x in "qk")
    v = a @ at["self_attn.v_proj.weight"].T
    q, k, v = (x.view(B, S, heads, d // heads).transpose(1, 2) for x in (q, k, v))
    theta = config["rope_parameters"]["rope_theta"]
    scores = rotated(q, theta) @ rotated(k, theta).mT / (d // heads) ** 0.5
    mask = torch.ones(S, S, dtype=torch.bool).triu(1)
    out = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
    return h + out.transpose(1, 2).reshape(B, S, d) @ at["self_attn.o_proj.weight"].T


def experts(x, at, config, losses):
    n, K = config["num_experts"], config["num_experts_per_tok"]
    logits = x @ at["mlp.gate.weight"].T
    p = logits.softmax(-1)
    chosen = p.topk(K, -1).indices
    hit = F.one_hot(chosen, n).sum(-2).double()
    losses["balance"] += n * (hit.sum((0, 1)) / hit.sum() * p.mean((0, 1))).sum()
    losses["z"] += logits.logsumexp(-1).pow(2).mean()
    latent = "mlp.fc1_latent_proj.weight" in at
    read = x @ at["mlp.fc1_latent_proj.weight"].T if latent else x
    y = 0
    for e in range(n):
        gate, up, down = (at[f"mlp.experts.{e}.{w}_proj.weight"] for w in ("gate", "up", "down"))
        y = y + (hit * p)[..., e, None] * ((F.silu(read @ gate.T) * (read @ up.T)) @ down.T)
    return y @ at["mlp.fc2_latent_proj.weight"].T if latent else y


def coupling(at, delta, n, alpha):
    """Returns the loss of a layer, M and eps."""
    R = at["mlp.gate.weight"]
    distance = torch.cdist(R.detach(), R.detach(), compute_mode="donot_use_mm_for_euclid_dist")
    eps = distance.fill_diagonal_(float("inf")).min(1).values / (2 * R.detach().norm(dim=1))
    rows = R * delta
    if "mlp.fc1_latent_proj.weight" in at:
        rows = rows @ at["mlp.fc1_latent_proj.weight"].T
    gates = torch.stack([at[f"mlp.experts.{e}.gate_proj.weight"] for e in range(n)])
    M = torch.einsum("ik,jck->ijc", rows, gates).norm(dim=-1)
    own, off = M.diagonal(), 1 - torch.eye(n, dtype=torch.float64)
    hinges = (M - alpha * own[:, None]).clamp(min=0) + (M - alpha * own[None, :]).clamp(min=0)
    return (hinges * off).sum() / n**2, M.detach(), eps


def results(weights, config, ids, deltas):
    """Returns the tensors of expected.safetensors."""
    w = {name: value.double().requires_grad_() for name, value in weights.items()}
    layers = config["num_hidden_layers"]
    losses, out = {"balance": 0, "z": 0, "erc": 0}, {}
    h = w["model.embed_tokens.weight"][ids]
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        at = {name.removeprefix(prefix): value for name, value in w.items() if name.startswith(prefix)}
        h = attention(h, at, config)
        h = h + experts(norm(h, at["post_attention_layernorm.weight"], config["rms_norm_eps"]), at, config, losses)
        erc, out[f"erc.{layer}.M"], out[f"erc.{layer}.eps"] = coupling(
            at, deltas[f"delta.{layer}"].double(), config["num_experts"], 1.0
        )
        losses["erc"] += erc
    logits = norm(h, w["model.norm.weight"], config["rms_norm_eps"]) @ w["lm_head.weight"].T
    losses = {name: value / layers for name, value in losses.items()}
    losses["ce"] = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    losses["total"] = losses["ce"] + losses["erc"] + 0.01 * losses["balance"] + 0.001 * losses["z"]
    losses["total"].backward()
    out |= {f"loss.{name}": value.detach() for name, value in losses.items()}
    out |= {f"grad.{name}": value.grad.float() for name, value in w.items()}
    return {name: value.contiguous() for name, value in {**out, "logits": logits.detach()}.items()}


def latent_weights(weights, l, n):
    """Returns the weights of `base` with n new experts [D, l], [D, l], [l, D], n router rows, and projections."""
    generator = torch.Generator().manual_seed(49)
    out = {}
    d = weights["model.norm.weight"].shape[0]
    for name, value in weights.items():
        if ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) >= n:
            continue
        shape = [l if size == d else size for size in value.shape] if ".experts." in name else value.shape
        out[name] = torch.randn(shape, generator=generator) * 0.1 if ".experts." in name else value
        if name.endswith("mlp.gate.weight"):
            out[name] = value[:n]
            for part, size in (("fc1", (l, d)), ("fc2", (d, l))):
                out[name.replace("gate", f"{part}_latent_proj")] = torch.randn(size, generator=generator) * 0.1
    return {name: value.contiguous() for name, value in out.items()}


def main():
    base = HERE / "base"
    config = json.loads((base / "config.json").read_text())
    case = json.loads((base / "case.json").read_text())
    tokens = json.loads((base / "tokens.json").read_text())
    ids = torch.tensor(tokens["input_ids"])
    weights, deltas = load_file(base / "model.safetensors"), load_file(base / "delta.safetensors")
    if "--check" in sys.argv:
        got, want = results(weights, config, ids, deltas), load_file(base / "expected.safetensors")
        worst = max(float((got[name].double() - x.double()).norm() / x.double().norm()) for name, x in want.items())
        print(f"{len(want)} tensors of base, the farthest {worst:.1e} of its norm away")
        sys.exit(not (worst < 1e-6 and set(got) == set(want)))
    config |= LATENT
    weights = latent_weights(weights, LATENT["latent_dim"], LATENT["num_experts"])
    deltas = {name: value[: LATENT["num_experts"]].contiguous() for name, value in deltas.items()}
    expected = results(weights, config, ids, deltas)
    case |= {"name": "latent", "what": "latent experts of width 24, plain PyTorch (make_latent.py)"}
    case["model"] |= {key: LATENT[key] for key in ("latent_dim", "num_experts")}
    case["facts"] = {name: float(value) for name, value in expected.items() if name.startswith("loss.")}
    folder = HERE / "latent"
    folder.mkdir(exist_ok=True)
    for name, value in (("config", config), ("case", case), ("tokens", tokens)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
    for name, tensors in (("model", weights), ("delta", deltas), ("expected", expected)):
        save_file(tensors, folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
