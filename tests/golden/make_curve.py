#!/usr/bin/env python3
"""make_curve.py COUPLET: prints tiny-curve.json, the first steps of configs/tiny.yaml as PyTorch trains them in
float64.

Needs numpy and torch. Runs in the root of the project. COUPLET gives the initial weights and the token shards alone, by
a run of one step at a learning rate of 0. All other parts are written here, from the paper's pseudo-code, the model of
OLMoE and docs/decisions.md: order of the data, model, losses, noise, clipping, AdamW, schedule. The bound of the
coupling loss is one at which hinges stay active.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, "tests/cli")
from inputs import read_json, read_tensors

STEPS, WARMUP, PEAK, LOWEST = 12, 4, 5e-4, 5e-5
T, BATCH, HEADS, TOP_K, NORM_EPS, THETA = 256, 8, 4, 4, 1e-5, 10000.0
BALANCE, Z, ERC, ALPHA, CLIP = 0.01, 0.001, 1, 0.25, 1
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SETTINGS = [
    "compute.dtype=f32",
    f"train.steps={STEPS}",
    f"train.warmup_steps={WARMUP}",
    f"train.lr={PEAK}",
    f"erc.alpha={ALPHA}",
    "log.every=1",
    "eval.every=0",
    "eval.max_sequences=1",
]
CONFIG = {
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "num_experts_per_tok": TOP_K,
    "rms_norm_eps": NORM_EPS,
    "rope_theta": THETA,
    "norm_topk_prob": False,
    "clip_qkv": None,
    "tie_word_embeddings": False,
}


# ---- results of the program ----


def begin(couplet, folder):
    """Returns name -> parameter of the initial weights, and the sequences of the training data."""
    words = [couplet, "train", "configs/tiny.yaml", "--out", folder]
    for one in (*SETTINGS, "train.steps=1", "train.warmup_steps=0", "train.lr=0"):
        words += ["--set", one]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    config = read_json(folder / "last" / "config.json")
    assert all(config[key] == value for key, value in CONFIG.items()), config
    weights = {
        name: np.frombuffer(raw, np.float32).reshape(shape).astype(np.float64)
        for name, (_, shape, raw) in read_tensors(folder / "last/model.safetensors").items()
    }
    files = sorted((folder / "tokens").glob("train-*/**/*.npy"))
    rows = [np.fromfile(path, np.uint16) for path in files]
    rows = [ids[: len(ids) // T * T].reshape(-1, T) for ids in rows]
    return (
        {name: torch.nn.Parameter(torch.tensor(value)) for name, value in weights.items()},
        torch.tensor(np.concatenate(rows).astype(np.int64)),
    )


def order(count):
    """Returns the order of the sequences in the first epoch with seed 0, as OLMo shuffles them."""
    places = np.arange(count, dtype=np.uint32)
    np.random.Generator(np.random.PCG64(0)).shuffle(places)
    return torch.tensor(places.astype(np.int64))


# ---- the model ----


def rms_norm(x, weight):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS))


def rotate(x):
    """Rotates x [B, heads, T, h]: the partner of number i is i + h/2."""
    half = x.shape[-1] // 2
    angle = torch.arange(T)[:, None] * THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def attention(x, w):
    def heads(name):
        return x @ w[f"{name}_proj.weight"].T

    def split(y):
        return y.view(*y.shape[:2], HEADS, -1).transpose(1, 2)

    q, k = (rotate(split(rms_norm(heads(name), w[f"{name}_norm.weight"]))) for name in "qk")
    score = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    score = score.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    y = torch.softmax(score, dim=-1) @ split(heads("v"))
    return y.transpose(1, 2).reshape(x.shape) @ w["o_proj.weight"].T


def experts(x, w, share, chosen):
    """Returns the sum over the chosen experts of share * W_o(SiLU(W_g x) * (W_p x))."""
    out = torch.zeros_like(x)
    for e in range(w["gate.weight"].shape[0]):
        token, place = torch.where(chosen == e)
        gate, up, down = (w[f"experts.{e}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        y = (F.silu(x[token] @ gate.T) * (x[token] @ up.T)) @ down.T
        out = out.index_add(0, token, share[token, place, None] * y)
    return out


def router_losses(logits, prob, chosen):
    """Returns the load balancing n sum f P over the shares of slots f, and the mean of logsumexp^2."""
    n = prob.shape[1]
    slots = torch.bincount(chosen.flatten(), minlength=n) / chosen.numel()
    return n * (slots * prob.mean(0)).sum(), torch.logsumexp(logits, dim=-1).pow(2).mean()


def below(weights, prefix):
    return {name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)}


def forward(weights, ids, layers):
    """Returns the cross-entropy, and balance and z as means over layers."""
    x, balance, z = weights["model.embed_tokens.weight"][ids], 0, 0
    for layer in range(layers):
        w = below(weights, f"model.layers.{layer}.")
        x = x + attention(rms_norm(x, w["input_layernorm.weight"]), below(w, "self_attn."))
        y = rms_norm(x, w["post_attention_layernorm.weight"]).flatten(0, 1)
        logits = y @ w["mlp.gate.weight"].T
        prob = torch.softmax(logits, dim=-1)
        share, chosen = prob.topk(TOP_K)
        one = router_losses(logits, prob, chosen)
        balance, z = balance + one[0] / layers, z + one[1] / layers
        x = x + experts(y, below(w, "mlp."), share, chosen).view(x.shape)
    logits = rms_norm(x, weights["model.norm.weight"]) @ weights["lm_head.weight"].T
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), balance, z


# ---- the coupling loss ----


def philox(block, step, layer):
    """Computes Philox4x32-10 with seed 0: block [m] -> four numbers each, below 2^32."""
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [block & low, block >> high, np.full_like(block, step), np.full_like(block, 2 | layer << 8)]
    k = [np.uint64(0), np.uint64(0)]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [b >> high ^ c[1] ^ k[0], b & low, a >> high ^ c[3] ^ k[1], a & low]
        k = [k[0] + np.uint64(0x9E3779B9) & low, k[1] + np.uint64(0xBB67AE85) & low]
    return np.stack(c, axis=-1)


def noise(router, step, layer):
    """Draws delta [n, d] ~ U(1 - eps, 1 + eps), eps_i half the distance to the next row in units of |R_i|."""
    n, d = router.shape
    apart = (router[:, None] - router[None]).norm(dim=-1) + torch.diag(torch.full((n,), math.inf))
    eps = apart.min(dim=1).values / (2 * router.norm(dim=1))
    numbers = philox(np.arange((n * d + 3) // 4, dtype=np.uint64), step, layer).flatten()[: n * d]
    uniform = torch.tensor((numbers >> np.uint64(8)).astype(np.float64) / 2**24).view(n, d)
    return 1 + eps[:, None] * (2 * uniform - 1)


def coupling(router, gates, delta):
    """Returns the coupling loss of router [n, d], gates [n, D, d]."""
    M = torch.einsum("jDd,id->ijD", gates, delta * router).norm(dim=-1)
    own = ALPHA * M.diagonal()
    return (F.relu(M - own[:, None]) + F.relu(M - own[None])).fill_diagonal_(0).mean()


def coupling_of_all(weights, layers, step):
    total = 0
    for layer in range(layers):
        w = below(weights, f"model.layers.{layer}.mlp.")
        router = w["gate.weight"]
        gates = torch.stack([w[f"experts.{e}.gate_proj.weight"] for e in range(len(router))])
        total = total + coupling(router, gates, noise(router.detach(), step, layer)) / layers
    return total


# ---- training ----


def rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    return LOWEST + (PEAK - LOWEST) * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2


def train(weights, batches):
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".layers." in name)
    optimizer = torch.optim.AdamW(weights.values(), **ADAMW)
    for step, ids in enumerate(batches, 1):
        ce, balance, z = forward(weights, ids, layers)
        erc = coupling_of_all(weights, layers, step)
        optimizer.zero_grad()
        (ce + BALANCE * balance + Z * z + ERC * erc).backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), CLIP)
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.step()
        yield {"loss": ce.item(), "balance": balance.item(), "z": z.item(), "erc": erc.item(), "grad_norm": norm.item()}


def main():
    with tempfile.TemporaryDirectory() as name:
        weights, rows = begin(sys.argv[1], pathlib.Path(name) / "run")
    places = order(len(rows))
    curve = list(train(weights, [rows[places[i * BATCH : (i + 1) * BATCH]] for i in range(STEPS)]))
    curve = [{key: float(f"{value:.9g}") for key, value in line.items()} for line in curve]
    json.dump({"settings": SETTINGS, "torch": torch.__version__, "steps": curve}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
