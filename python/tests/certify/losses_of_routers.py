"""Losses of routers as people write them: right ones in several ways, wrong ones, and what cannot be judged."""

import torch
import torch.nn.functional as F

# ---- load balancing ----


def mixtral(gate_logits, num_experts, top_k=2, attention_mask=None):
    """All layers' tokens in one, one-hot masks [tokens, K, n]."""
    p = torch.cat(list(gate_logits)).softmax(-1)
    chosen = F.one_hot(p.topk(top_k).indices, num_experts).to(p.dtype)
    if attention_mask is None:
        return num_experts * (chosen.mean(0) * p.mean(0)).sum()
    m = attention_mask.reshape(-1).repeat(len(gate_logits)).to(p.dtype)
    f = (chosen * m[:, None, None]).sum(0) / m.sum()
    return num_experts * (f * ((p * m[:, None]).sum(0) / m.sum())).sum()


def one_layer(logits, top_k):
    """Counts by scatter."""
    p = logits.softmax(-1)
    counts = torch.zeros(p.shape[-1], dtype=p.dtype).scatter_add(
        0, p.topk(top_k).indices.flatten(), torch.ones(p.shape[0] * top_k, dtype=p.dtype)
    )
    return p.shape[-1] * (counts / (p.shape[0] * top_k) * p.mean(0)).sum()


def olmoe(router_logits, top_k, coefficient):
    """In float32, by bincount, layers averaged."""
    total = 0
    for logits in router_logits:
        p = logits.float().softmax(-1)
        f = torch.bincount(p.topk(top_k).indices.flatten(), minlength=p.shape[-1]).float() / (len(p) * top_k)
        total = total + p.shape[-1] * torch.dot(f, p.mean(0))
    return coefficient * total / len(router_logits)


def in_chunks(router_logits, top_k, coefficient):
    """Tokens in chunks of seven, the softmax by hand."""
    losses = []
    for logits in router_logits:
        n, counts, sums = logits.shape[-1], 0, 0
        for part in logits.float().split(7):
            e = (part - part.amax(-1, keepdim=True)).exp()
            p = e / e.sum(-1, keepdim=True)
            counts = counts + F.one_hot(part.topk(top_k).indices, n).sum((0, 1))
            sums = sums + p.sum(0)
        losses.append(n * (counts / (len(logits) * top_k) * sums / len(logits)).sum())
    return coefficient * torch.stack(losses).mean()


def softmax_twice(router_logits, top_k, coefficient):
    return olmoe(tuple(logits.softmax(-1) for logits in router_logits), top_k, coefficient)


def chosen_first(logits, top_k):
    """The softmax of the K largest."""
    values, indices = logits.topk(top_k)
    p = torch.zeros_like(logits).scatter(1, indices, values.softmax(-1))
    return logits.shape[-1] * (F.one_hot(indices, logits.shape[-1]).sum(1).float().mean(0) / top_k * p.mean(0)).sum()


def deepseek(router_logits, top_k, sequences, coefficient):
    total = 0
    for logits in router_logits:
        s = logits.float().sigmoid()
        s = (s / s.sum(-1, keepdim=True)).view(sequences, -1, s.shape[-1])
        f = F.one_hot(s.topk(top_k).indices, s.shape[-1]).sum(2).float().mean(1) * s.shape[-1] / top_k
        total = total + (f * s.mean(1)).sum(-1).mean()
    return coefficient * total


def with_epsilon(router_logits, top_k, coefficient):
    total = 0
    for logits in router_logits:
        s = logits.sigmoid()
        s = s / (s.sum(-1, keepdim=True) + 1e-6)
        f = F.one_hot(logits.topk(top_k).indices, s.shape[-1]).sum(1).float().mean(0) * s.shape[-1] / top_k
        total = total + (f * s.mean(0)).sum()
    return coefficient * total


# ---- others ----


def z(logits):
    return torch.logsumexp(logits.float(), -1).square().mean()


def z_by_hand(router_logits, coefficient):
    each = [
        ((r.float() - r.float().amax(-1, keepdim=True)).exp().sum(-1).log() + r.float().amax(-1)) ** 2
        for r in router_logits
    ]
    return coefficient * torch.stack([one.mean() for one in each]).mean()


def z_not_squared(logits):
    return torch.logsumexp(logits, -1).mean()


def update_bias(counts, bias, rate):
    """In place."""
    load = counts.sum(0).float()
    bias.add_(rate * torch.sign(load.mean() - load))


def update_bias_centred(counts, bias, rate):
    load = counts.sum(0).float()
    step = torch.sign(load.mean() - load)
    return bias + rate * (step - step.mean())


def update_one_micro_batch(counts, bias, rate):
    return bias + rate * torch.sign(counts[-1].float().mean() - counts[-1])


def gate(logits, bias, top_k, scale):
    """Weights [T,K] and indices."""
    scores = logits.sigmoid()
    indices = (scores + bias).topk(top_k).indices
    weights = scores.gather(1, indices)
    return weights / weights.sum(-1, keepdim=True) * scale, indices


def gate_with_bias(logits, bias, top_k, scale):
    weights, indices = (logits.sigmoid() + bias.detach()).topk(top_k)
    return weights / weights.sum(-1, keepdim=True) * scale, indices


def orthogonal(router, coefficient):
    R = F.normalize(router, dim=-1)
    return coefficient * (R @ R.mT - torch.eye(R.shape[-2], dtype=R.dtype)).square().mean()


RIGHT = (
    (mixtral, "load-balancing-mixtral"),
    (one_layer, "load-balancing-olmoe"),
    (olmoe, "load-balancing-olmoe"),
    (in_chunks, "load-balancing-olmoe"),
    (deepseek, "load-balancing-deepseek"),
    (z, "z-loss"),
    (z_by_hand, "z-loss"),
    (update_bias, "bias-update-sign"),
    (update_bias_centred, "bias-update-centred"),
    (gate, "gate-weights"),
    (orthogonal, "router-orthogonality"),
)
WRONG = (
    (softmax_twice, "load-balancing-olmoe", "softmax is taken twice"),
    (chosen_first, "load-balancing-olmoe", r"(?s)over the K chosen experts alone.*Transformers #28021"),
    (with_epsilon, "load-balancing-deepseek", r"epsilon.*1e-06"),
    (z_not_squared, "z-loss", "not squared"),
    (update_one_micro_batch, "bias-update-sign", "last micro-batch or rank"),
    (gate_with_bias, "gate-weights", "bias is inside the weights"),
    (mixtral, "load-balancing-olmoe", "right as load-balancing-mixtral, not load-balancing-olmoe"),
)


# ---- for the command, which finds a function by its name ----


def raising(error):
    """Returns a loss that raises the error."""

    def loss(logits, top_k=2):
        raise error.with_traceback(None)

    return loss


raises, interrupted = raising(KeyError("boom")), raising(KeyboardInterrupt())
number = 3


def backward_raises(logits):
    loss = z(logits)
    loss.register_hook(lambda grad: {}["backward"])
    return loss


def z_prints(logits):
    print("a word of mine")
    return z(logits)


def two_inside(logits):
    return one_layer(logits, 2)
