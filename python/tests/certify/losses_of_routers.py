"""Losses of routers as users write them, right and wrong. styles/ has more right ones."""

import torch
import torch.nn.functional as F

# ---- load balancing ----


def mixtral(gate_logits, num_experts, top_k=2, attention_mask=None):
    """Returns one loss of all layers' tokens, by one-hot masks [tokens, K, n]."""
    p = torch.cat(list(gate_logits)).softmax(-1)
    chosen = F.one_hot(p.topk(top_k).indices, num_experts).to(p.dtype)
    if attention_mask is None:
        return num_experts * (chosen.mean(0) * p.mean(0)).sum()
    m = attention_mask.reshape(-1).repeat(len(gate_logits)).to(p.dtype)
    f = (chosen * m[:, None, None]).sum(0) / m.sum()
    return num_experts * (f * ((p * m[:, None]).sum(0) / m.sum())).sum()


def one_layer(logits, top_k):
    """Returns the loss of one layer, by counts from scatter_add."""
    p = logits.softmax(-1)
    counts = torch.zeros(p.shape[-1], dtype=p.dtype).scatter_add(
        0, p.topk(top_k).indices.flatten(), torch.ones(p.shape[0] * top_k, dtype=p.dtype)
    )
    return p.shape[-1] * (counts / (p.shape[0] * top_k) * p.mean(0)).sum()


def olmoe(router_logits, top_k, coefficient):
    """Returns the mean over layers, in float32, by counts from bincount."""
    total = 0
    for logits in router_logits:
        p = logits.float().softmax(-1)
        f = torch.bincount(p.topk(top_k).indices.flatten(), minlength=p.shape[-1]).float() / (len(p) * top_k)
        total = total + p.shape[-1] * torch.dot(f, p.mean(0))
    return coefficient * total / len(router_logits)


def softmax_twice(router_logits, top_k, coefficient):
    return olmoe(tuple(logits.softmax(-1) for logits in router_logits), top_k, coefficient)


def chosen_first(logits, top_k):
    """Returns a wrong loss, whose scores are the softmax of the K largest logits."""
    values, indices = logits.topk(top_k)
    p = torch.zeros_like(logits).scatter(1, indices, values.softmax(-1))
    return logits.shape[-1] * (F.one_hot(indices, logits.shape[-1]).sum(1).float().mean(0) / top_k * p.mean(0)).sum()


def with_epsilon(router_logits, top_k, coefficient):
    total = 0
    for logits in router_logits:
        s = logits.sigmoid()
        s = s / (s.sum(-1, keepdim=True) + 1e-6)
        f = F.one_hot(logits.topk(top_k).indices, s.shape[-1]).sum(1).float().mean(0) * s.shape[-1] / top_k
        total = total + (f * s.mean(0)).sum()
    return coefficient * total


# ---- other rules ----


def z(logits):
    return torch.logsumexp(logits.float(), -1).square().mean()


def z_not_squared(logits):
    return torch.logsumexp(logits, -1).mean()


def update_bias(counts, bias, rate):
    """Updates the bias in place."""
    load = counts.sum(0).float()
    bias.add_(rate * torch.sign(load.mean() - load))


def update_bias_centred(counts, bias, rate):
    load = counts.sum(0).float()
    step = torch.sign(load.mean() - load)
    return bias + rate * (step - step.mean())


def update_one_micro_batch(counts, bias, rate):
    return bias + rate * torch.sign(counts[-1].float().mean() - counts[-1])


def gate(logits, bias, top_k, scale):
    """Returns weights [T,K] and indices."""
    scores = logits.sigmoid()
    indices = (scores + bias).topk(top_k).indices
    weights = scores.gather(1, indices)
    return weights / weights.sum(-1, keepdim=True) * scale, indices


def gate_with_bias(logits, bias, top_k, scale):
    weights, indices = (logits.sigmoid() + bias.detach()).topk(top_k)
    return weights / weights.sum(-1, keepdim=True) * scale, indices


RIGHT = (
    (mixtral, "load-balancing-mixtral"),
    (one_layer, "load-balancing-olmoe"),
    (olmoe, "load-balancing-olmoe"),
    (z, "z-loss"),
    (update_bias, "bias-update-sign"),
    (update_bias_centred, "bias-update-centred"),
    (gate, "gate-weights"),
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
