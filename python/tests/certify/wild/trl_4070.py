"""TRL #4070: the model adds its auxiliary loss to the loss that it returns, and the trainer adds it again."""
import torch.nn.functional as F

SOURCE, KIND = "TRL with Transformers' Qwen3-MoE: issue 4070", "load-balancing-olmoe"


def model(logits, top_k, coefficient):
    p = logits.softmax(-1)
    n = p.shape[-1]
    aux = n * (F.one_hot(p.topk(top_k).indices, n).sum(1).float().mean(0) / top_k * p.mean(0)).sum()
    return coefficient * aux, aux


def loss(logits, top_k, coefficient):
    total, aux = model(logits, top_k, coefficient)
    return total + coefficient * aux
