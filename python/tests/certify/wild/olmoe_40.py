"""OLMoE #40: the loss that OLMoE was trained with, which is that of MegaBlocks: counts and mean scores of all layers side by
side, one dot product. Its least value seemed to be 0.1 and not 1 because the weight was in the figure."""
import torch

SOURCE, KIND = "OLMoE: issue 40, MegaBlocks' batched loss", "load-balancing-olmoe"


def loss(router_logits, top_k, coefficient):
    logits = torch.stack(list(router_logits))  # [L,T,n]
    L, T, n = logits.shape
    p = logits.softmax(-1)
    experts = p.topk(top_k).indices.flatten(1)
    counts = torch.stack([torch.bincount(one, minlength=n) for one in experts]).float()
    return coefficient * n / (L * T * top_k) * torch.dot(counts.flatten(), p.mean(1).flatten())
