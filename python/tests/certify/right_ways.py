"""Right implementations of the kinds of couplet.certify, each written in several ways (orders of summation, one-hot or
scatter, chunks, one product for all), and random inputs for them."""

import functools
import random

import torch
import torch.nn.functional as F
from couplet.certify._kind import Case

# ---- softmax, counts, sums over tokens ----


SOFTMAX = (
    lambda z: z.softmax(-1),
    lambda z: F.normalize((z - z.amax(-1, keepdim=True)).exp(), p=1, dim=-1),
    lambda z: z.log_softmax(-1).exp(),
    lambda z: (z - z.logsumexp(-1, keepdim=True)).exp(),
)


def scatter(chosen, n):
    return torch.zeros(*chosen.shape[:-1], n).scatter(-1, chosen, 1.0)


COUNTS = (
    lambda chosen, n: F.one_hot(chosen, n).sum(-2).float(),
    scatter,
    lambda chosen, n: (chosen[..., None] == torch.arange(n)).any(-2).float(),
)
SUMS = (
    lambda v: v.sum(-2),
    lambda v: v.flip(-2).sum(-2),
    lambda v: torch.ones(v.shape[-2], dtype=v.dtype) @ v,
    lambda v: sum(part.sum(-2) for part in v.split(7, -2)),
    lambda v: v.cumsum(-2)[..., -1, :],
)
LAYERS = {"switch": "sum", "deepseek": "sum", "mixtral": "joined", "olmoe": "mean", "global": "mean"}


def balance(kind, x, way):
    """Returns the loss of a kind of load balancing."""
    softmax, count, total = way
    word = kind.name.rpartition("-")[2]
    z = x.logits
    L, T, n = z.shape
    s = z.sigmoid()
    p = s / total(s.transpose(-1, -2))[..., None] if word == "deepseek" else softmax(z)
    S = count(z.topk(x.top_k).indices, n).to(p.dtype)
    m = torch.ones(T, dtype=p.dtype) if x.mask is None else x.mask.to(p.dtype)
    A = 1 if word == "global" else (x.sequences if word == "deepseek" else x.micro_batches) or 1
    m = m.view(1, A, T // A, 1).expand(L, -1, -1, 1)
    p, S = (value.reshape(L, A, T // A, n) for value in (p, S))
    if LAYERS[word] == "joined":
        m, p, S = (value.transpose(0, 1).reshape(1, A, L * T // A, -1) for value in (m, p, S))
    tokens = m.sum((-1, -2))[..., None]
    each = n * (total(S * m) / (tokens * (1 if word == "mixtral" else x.top_k)) * (total(p * m) / tokens)).sum(-1)
    each = each.mean(1)
    return x.times * (each.sum() if LAYERS[word] == "sum" else each.mean())


# ---- z-loss, bias updates, gate weights, orthogonality ----

LSE = (
    lambda z: z.logsumexp(-1),
    lambda z: (z - z.amax(-1, keepdim=True)).exp().sum(-1).log() + z.amax(-1),
    lambda z: z[..., 0] - z.log_softmax(-1)[..., 0],
    lambda z: z.flip(-1).logsumexp(-1),
)


def z_loss(kind, x, way):
    value = way(x.logits) ** 2
    m = torch.ones_like(value) if x.mask is None else x.mask.to(value.dtype).expand_as(value)
    each = (value * m).sum(1) / m.sum(1)
    return x.times * (each.sum() if "summed" in kind.name else each.mean())


SIGNS = (
    lambda c: torch.sign(c.double().mean() - c.double()),
    lambda c: torch.sign(c.sum() - c * len(c)),
    lambda c: (c * len(c) < c.sum()).double() - (c * len(c) > c.sum()).double(),
    lambda c: torch.where(c.double() == c.double().mean(), 0.0, torch.where(c.double() < c.double().mean(), 1.0, -1.0)),
    lambda c: (c.sum() - c * len(c)).clamp(-1, 1),
)


def bias_update(kind, x, way):
    c = x.counts.sum(0)
    if "proportional" in kind.name:
        step = (c.double().mean() - c) / c.sum()
    else:
        step = way(c).double()
        step = step - step.mean() if "centred" in kind.name else step
    return {"bias_after": (x.bias.double() + x.rate * step).to(x.bias.dtype)}


def gathered(s, chosen):
    w = s.gather(-1, chosen)
    return torch.zeros_like(s).scatter(-1, chosen, w / w.sum(-1, keepdim=True))


def masked(s, chosen):
    w = s * scatter(chosen, s.shape[-1])
    return w / w.sum(-1, keepdim=True)


def in_logs(s, chosen):
    w = s.log().masked_fill(scatter(chosen, s.shape[-1]) == 0, -torch.inf)
    return w.softmax(-1)


GATES = (gathered, masked, in_logs, lambda s, chosen: gathered(s, chosen.flip(-1)))


def gate(kind, x, way):
    s = x.logits.sigmoid()
    return {"weights": x.scale * way(s, (s + x.bias.detach()).topk(x.top_k).indices)}


PRODUCTS = (
    lambda R: R @ R.mT,
    lambda R: torch.einsum("lid,ljd->lij", R, R),
    lambda R: (R[:, :, None] * R[:, None]).sum(-1),
    lambda R: R.flip(-1) @ R.flip(-1).mT,
)


def orthogonality(kind, x, way):
    R = F.normalize(x.router, dim=-1) if kind.name == "router-orthogonality" else x.router
    E = way(R) - torch.eye(R.shape[1], dtype=R.dtype)
    each = E.abs().sum((1, 2)) if kind.name == "simbal" else E.square().sum((1, 2))
    return x.times * (each / (E.shape[-1] ** 2 if kind.name == "router-orthogonality" else 1)).mean()


def in_loops(y):
    total = 0
    for j in range(y.shape[1]):
        for k in range(y.shape[1]):
            if j != k:
                u = y[:, k]
                total = (
                    total
                    + (((y[:, j] * u).sum(-1, keepdim=True) / ((u * u).sum(-1, keepdim=True) + 1e-6) * u) ** 2).sum()
                )
    return total / len(y)


def by_gram(y, product=torch.matmul):
    G = product(y, y.mT)
    d = (y * y).sum(-1)
    P = G**2 * (d / (d + 1e-6) ** 2)[:, None]
    return (P.sum() - P.diagonal(dim1=1, dim2=2).sum()) / len(y)


APART = (
    in_loops,
    by_gram,
    lambda y: by_gram(y.flip(1)),
    lambda y: by_gram(y, lambda a, b: torch.einsum("tjh,thk->tjk", a, b)),
)


def spanned(y, norm=lambda v: v.norm(dim=-1, keepdim=True), dot=lambda a, b: (a * b).sum(-1, keepdim=True)):
    total = 0
    for j in range(y.shape[1]):
        basis = []
        for k in range(y.shape[1]):
            if k != j:
                v = y[:, k]
                for u in basis:
                    v = v - dot(u, v) * u
                basis.append(v / (norm(v) + 1e-6))
                total = total + (dot(basis[-1], y[:, j]) ** 2).sum()
    return total / (y.shape[0] * y.shape[1])


SPANS = (
    spanned,
    lambda y: spanned(y.flip(0)),
    lambda y: spanned(y, norm=lambda v: (v * v).sum(-1, keepdim=True).sqrt()),
    lambda y: spanned(y, dot=lambda a, b: torch.einsum("th,th->t", a, b)[:, None]),
)


def expert_orthogonality(kind, x, way):
    return x.times * way(x.outputs)


def score_variance(kind, x, way):
    s = way(x.logits)
    tokens = kind.name.endswith("tokens")
    return -x.times * torch.var(s, dim=1 if tokens else 2, correction=0 if tokens else 1).mean()


RESPONSES = (
    lambda x, W: torch.einsum("td,nrd->tnr", x, W).norm(dim=-1),
    lambda x, W: (x @ W.mT).norm(dim=-1).T,
    lambda x, W: torch.stack([F.linear(x, w).square().sum(-1).sqrt() for w in W], -1),
    lambda x, W: (x.flip(-1) @ W.flip(-1).mT).square().sum(-1).sqrt().T,
)


def aoe(kind, x, way):
    return {"scores": way(x.tokens, x.W_down).softmax(-1)}


# ---- all ways of a kind ----


def outputs_of(way, kind, x):
    """Returns the loss or the outputs of a rule, with gradients. bf16 is stored in bf16 and computed in float32."""
    dtype = next(value.dtype for _, value in x.tensors() if value.is_floating_point())
    wide = x.to(torch.float32 if dtype is torch.bfloat16 else dtype)
    leaves = {name: getattr(wide, name).detach().clone().requires_grad_() for name in kind.gradients}
    out = way(kind, wide.but(**leaves))
    out = out if isinstance(out, dict) else {"loss": out}
    if leaves:
        sum(v if v.dim() == 0 else (v * getattr(wide, f"d_{name}")).sum() for name, v in out.items()).backward()
    grads = {f"d_{name}": torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
    return {**{name: value.detach() for name, value in out.items()}, **{name: g.to(dtype) for name, g in grads.items()}}


# ---- random inputs: a Random, a Generator, n experts, K of them ----


def random_counts(r, g, n, K):
    counts = torch.randint(0, r.choice((9, 90, 900)), (r.randint(1, 4), n), generator=g) + 1
    return Case(counts=counts, bias=torch.randn(n, generator=g) * 0.1, rate=r.choice((0.001, 0.05)))


def random_gate(r, g, n, K):
    T = r.randint(1, 40)
    logits, bias = torch.randn(T, n, generator=g), torch.randn(n, generator=g) * 0.2
    return Case(logits=logits, bias=bias, top_k=K, scale=r.uniform(0.5, 3), d_weights=torch.randn(T, n, generator=g))


def random_outputs(r, g, n, K):
    outputs = torch.randn(r.randint(1, 20), r.randint(2, 5), r.randint(4, 30), generator=g) + r.random()
    return Case(outputs=outputs, coefficient=r.uniform(0.01, 2))


def random_tokens(r, g, n, K):
    T, d = r.randint(1, 20), r.randint(2, 30)
    tokens, W_down = torch.randn(T, d, generator=g), torch.randn(n, r.randint(1, 9), d, generator=g) / d**0.5
    return Case(tokens=tokens, W_down=W_down, d_scores=torch.randn(T, n, generator=g))


def random_scores(r, g, n, K):
    logits = torch.randn(r.randint(1, 3), r.randint(2, 50), max(n, 2), generator=g)
    return Case(logits=logits, coefficient=r.uniform(0.05, 0.9))


def random_router(r, g, n, K):
    router = torch.randn(r.randint(1, 3), n, r.randint(2, 40), generator=g) * r.uniform(0.2, 1.5)
    return Case(router=router, coefficient=r.uniform(0.01, 2))


def random_logits(r, g, n, K):
    L, A = r.randint(1, 3), r.randint(2, 4)
    T = r.choice((1, A, 12 * A, 30 * A))
    A = A if T % A == 0 else 1
    logits = torch.randn(L, T, n, generator=g) * r.uniform(0.3, 2.5) + torch.randn(L, 1, n, generator=g)
    if r.random() < 0.3:
        logits = logits.round()
    x = Case(logits=logits, top_k=K, coefficient=r.uniform(0.05, 0.9), micro_batches=1)
    if A > 1 and r.random() < 0.5:
        x = x.but(micro_batches=A, sequences=A)
    if T >= 24 and r.random() < 0.5:
        mask = torch.rand(T, generator=g) < 0.7
        mask[:: max(1, T // A)] = True  # every part has a token
        x = x.but(mask=mask)
    return x


# the start of a kind's name, a function of (kind, case, way), its ways, and the function that draws random inputs
WAYS = (
    ("load-balancing", balance, [(a, COUNTS[k % len(COUNTS)], SUMS[k]) for k, a in enumerate(SOFTMAX)], random_logits),
    ("z-loss", z_loss, LSE, random_logits),
    ("expert-orthogonality-span", expert_orthogonality, SPANS, random_outputs),
    ("expert-orthogonality", expert_orthogonality, APART, random_outputs),
    ("aoe-scores", aoe, RESPONSES, random_tokens),
    ("score-variance", score_variance, SOFTMAX, random_scores),
    ("bias-update", bias_update, SIGNS, random_counts),
    ("gate-weights", gate, GATES, random_gate),
    ("", orthogonality, PRODUCTS, random_router),
)


def of(kind):
    """Returns functions of (kind, case) that give the loss or the outputs of a rule, and a function from a seed to
    random inputs of any shape (ties, one expert, K = n, one token, padding)."""
    _, function, ways, inputs = next(row for row in WAYS if kind.name.startswith(row[0]))

    def random_case(seed):
        r, g = random.Random(seed), torch.Generator().manual_seed(seed)
        n = r.choice((1, 2, 3, 5, 8, 16))
        return inputs(r, g, n, r.choice((1, (n + 1) // 2, n)))

    return [functools.partial(function, way=way) for way in ways], random_case
