"""NeMo Automodel #1408: what would flow is multiplied by the number of tokens, and not by the coefficient."""
import torch.nn.functional as F

SOURCE, KIND = "NeMo Automodel: issue 1408, its second part", "load-balancing-olmoe"


def loss(logits, top_k, coefficient):
    p = logits.softmax(-1)
    n = p.shape[-1]
    aux = n * (F.one_hot(p.topk(top_k).indices, n).sum(1).float().mean(0) / top_k * p.mean(0)).sum()
    return aux * len(p)
