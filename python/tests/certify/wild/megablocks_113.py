"""MegaBlocks #113: layers put their counts into one list, and the loss is made of it at the end. Recomputation in the
backward pass puts them there again, and the next step finds twice as many as there are layers."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "MegaBlocks with activation recomputation: issue 113", "load-balancing-olmoe"
SAVED = []


def forward(router_logits, top_k):
    for logits in router_logits:
        p = logits.softmax(-1)
        SAVED.append((F.one_hot(p.topk(top_k).indices, p.shape[-1]).sum(1).float().mean(0) / top_k, p.mean(0)))


def loss(router_logits, top_k, coefficient):
    router_logits = [router_logits] if torch.is_tensor(router_logits) else router_logits
    for _ in ("forward", "again, for the backward pass"):
        forward(router_logits, top_k)
    saved, SAVED[:] = list(SAVED), []
    if len(saved) != len(router_logits):
        raise ValueError(f"Expected {len(router_logits)} entries but found {len(saved)}")
    return coefficient * sum(len(f) * (f * P).sum() for f, P in saved) / len(saved)
