"""aprender #2162: P sums the scores of chosen experts alone."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "aprender: pull request 2162", "load-balancing-olmoe"


def loss(logits, top_k):
    p = logits.softmax(-1)
    n = p.shape[-1]
    values, chosen = p.topk(top_k)
    P = torch.zeros(n, dtype=p.dtype).index_add(0, chosen.flatten(), values.flatten()) / len(p)
    return n * (F.one_hot(chosen, n).sum(1).float().mean(0) / top_k * P).sum()
