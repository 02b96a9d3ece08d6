#!/usr/bin/env python3
"""Writes reference.safetensors: the load-balancing loss of each balance.scope and the gradient of a tiny
OLMoE with it, by PyTorch's autograd in float64.

Needs torch and safetensors. Usage: make_reference.py OUT.safetensors

The batch is 4 sequences in micro-batches of 2. One vector holds all parameters in the order of
src/model/params.def: the embedding, the fields of layer 0, of layer 1, the last norm, the head; the
matrices of a layer's experts are one tensor [n, rows, columns].

    ids                      [4,6] I32
    weights                  [N] F32, drawn until no token's choice is near a tie with either router
    ROUTER.none              [N] F32, gradient of the cross-entropy, router softmax or sigmoid
    ROUTER.SCOPE             [N] F32, gradient of cross-entropy + 0.5 balance
    ROUTER.SCOPE.balance     [] F64
"""

import math
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

V, d, D, L, H, n, K = 10, 8, 2, 2, 2, 4, 2
B, S, MICRO = 4, 6, 2
WEIGHT, EPS, THETA = 0.5, 1e-5, 10000.0
SCOPES = {"micro": MICRO, "sequence": 1, "global": B}  # number of sequences over which f and P are counted
LEAST_GAP = 0.02  # between the K-th and the next logit
FIELDS = [
    ("input_norm", (d,)),
    ("w_q", (d, d)),
    ("w_k", (d, d)),
    ("w_v", (d, d)),
    ("w_o", (d, d)),
    ("q_norm", (d,)),
    ("k_norm", (d,)),
    ("post_norm", (d,)),
    ("router", (n, d)),
    ("w_gate", (n, D, d)),
    ("w_up", (n, D, d)),
    ("w_down", (n, d, D)),
]
SHAPES = (
    [("embed", (V, d))]
    + [(f"{l}.{name}", shape) for l in range(L) for name, shape in FIELDS]
    + [("norm", (d,)), ("head", (V, d))]
)


def draw(seed):
    random = torch.Generator().manual_seed(seed)
    parts = []
    for _, shape in SHAPES:
        x = torch.randn(shape, generator=random)
        scale = shape[-1] ** -0.5 * 1.5
        parts.append((1 + 0.15 * x if len(shape) == 1 else scale * x).reshape(-1))
    ids = torch.randint(0, V, (B, S), generator=random, dtype=torch.int32)
    return torch.cat(parts).float(), ids


def unpack(flat):
    tensors, at = {}, 0
    for name, shape in SHAPES:
        count = math.prod(shape)
        tensors[name] = flat[at : at + count].view(shape)
        at += count
    assert at == flat.numel()
    return tensors


def rms_norm(x, weight):
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)


def rotate(x):
    """Rotates x [B,H,S,h]: pairs (i, i + h/2)."""
    half = d // H // 2
    angle = torch.arange(S).double()[:, None] * THETA ** (-torch.arange(half).double() / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


def attention(w, x):
    def heads(y):
        return y.view(B, S, H, d // H).transpose(1, 2)

    a = rms_norm(x, w("input_norm"))
    q = rotate(heads(rms_norm(a @ w("w_q").T, w("q_norm"))))
    k = rotate(heads(rms_norm(a @ w("w_k").T, w("k_norm"))))
    causal = torch.full((S, S), -math.inf, dtype=x.dtype).triu(1)
    out = torch.softmax(q @ k.transpose(2, 3) * (d // H) ** -0.5 + causal, dim=-1) @ heads(a @ w("w_v").T)
    return x + out.transpose(1, 2).reshape(B, S, d) @ w("w_o").T


def experts(w, x, router):
    """Returns the output, the shares p [B,S,n] of each token, whose mean is P, the choice, 0 or 1, and the gap."""
    b = rms_norm(x, w("post_norm"))
    z = b @ w("router").T
    scores = torch.softmax(z, -1) if router == "softmax" else torch.sigmoid(z)
    order = z.detach().sort(-1, descending=True)
    chosen = torch.zeros_like(z).scatter(-1, order.indices[..., :K], 1.0)
    hidden = F.silu(torch.einsum("bsd,nDd->bsnD", b, w("w_gate"))) * torch.einsum("bsd,nDd->bsnD", b, w("w_up"))
    each = torch.einsum("bsnD,ndD->bsnd", hidden, w("w_down"))
    gap = (order.values[..., K - 1] - order.values[..., K]).min()
    return x + ((chosen * scores)[..., None] * each).sum(2), scores / scores.sum(-1, keepdim=True), chosen, gap


def balance(p, chosen, sequences):
    """Returns the mean of n sum_e f_e P_e over groups of `sequences` sequences. The gradient is that of P."""
    losses = []
    for first in range(0, B, sequences):
        group = slice(first, first + sequences)
        f = chosen[group].sum((0, 1)) / (sequences * S * K)
        losses.append(n * (f.detach() * p[group].mean((0, 1))).sum())
    return sum(losses) / len(losses)


def losses(flat, ids, router):
    """Returns the cross-entropy, the load-balancing loss of each scope, and the smallest gap."""
    tensors, gaps = unpack(flat), []
    of_scope = dict.fromkeys(SCOPES, 0.0)
    x = tensors["embed"][ids.long()]
    for l in range(L):

        def w(name, layer=l):
            return tensors[f"{layer}.{name}"]

        x, p, chosen, gap = experts(w, attention(w, x), router)
        gaps.append(gap)
        for scope, sequences in SCOPES.items():
            of_scope[scope] = of_scope[scope] + balance(p, chosen, sequences) / L
    logits = rms_norm(x, tensors["norm"]) @ tensors["head"].T
    ce = F.cross_entropy(logits[:, :-1].reshape(-1, V), ids[:, 1:].reshape(-1).long())
    return ce, of_scope, float(min(gaps))


def main():
    seed = 0
    while True:
        weights, ids = draw(seed)
        if min(losses(weights.double(), ids, router)[2] for router in ("softmax", "sigmoid")) > LEAST_GAP:
            break
        seed += 1
    out = {"ids": ids, "weights": weights}
    for router in ("softmax", "sigmoid"):
        flat = weights.double().requires_grad_()
        ce, of_scope, _ = losses(flat, ids, router)
        (own,) = torch.autograd.grad(ce, flat, retain_graph=True)
        out[f"{router}.none"] = own.float()
        for scope, loss in of_scope.items():
            (grad,) = torch.autograd.grad(ce + WEIGHT * loss, flat, retain_graph=True)
            out[f"{router}.{scope}"] = grad.float()
            out[f"{router}.{scope}.balance"] = loss.detach()
            print(router, scope, float(loss.detach()), float((grad - own).norm() / own.norm()))
    save_file(out, sys.argv[1])
    print("seed", seed, "numbers", weights.numel())


if __name__ == "__main__":
    main()
