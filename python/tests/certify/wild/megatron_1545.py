"""Megatron-LM #1545: sigmoids are divided by their sum and 1e-20; scores below that make the loss as small as one likes."""
import torch.nn.functional as F

SOURCE, KIND = "Megatron-LM, sigmoid router: issue 1545", "load-balancing-deepseek"


def loss(router_logits, top_k, sequences, coefficient):
    total = 0.0
    for logits in router_logits:
        n = logits.shape[-1]
        s = logits.sigmoid()
        s = (s / (s.sum(-1, keepdim=True) + 1e-20)).view(sequences, -1, n)
        f = F.one_hot(logits.topk(top_k).indices, n).view(sequences, -1, top_k, n).sum(2).float().mean(1) * n / top_k
        total = total + (f * s.mean(1)).sum(-1).mean()
    return coefficient * total
