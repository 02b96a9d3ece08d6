"""MegaBlocks #85: the loss grows with the number of pipeline stages, which the report puts down to precision. Here the
running sum is kept in bf16."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "MegaBlocks: issue 85, as the report explains it", "load-balancing-olmoe"


def loss(logits, top_k):
    p = logits.softmax(-1)
    n = p.shape[-1]
    f = F.one_hot(p.topk(top_k).indices, n).sum(1).float().mean(0) / top_k
    P = torch.zeros(n, dtype=torch.bfloat16)
    for row in p:
        P = P + row.to(torch.float32)
        P = P + (P.detach().to(torch.bfloat16).float() - P.detach())  # what is kept is bf16, the gradient passes
    return n * (f * P / len(p)).sum()
