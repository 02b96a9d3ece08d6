"""Megatron-LM #1513: the sequence-wise loss counts what is left after the capacity was applied. An expert that drops tokens
looks less busy than it is."""
import torch.nn.functional as F

SOURCE, KIND = "Megatron-LM, seq_aux_loss with a capacity: issue 1513", "load-balancing-deepseek"


def loss(router_logits, top_k, coefficient, sequences=1, kept=None):
    total = 0.0
    for layer, logits in enumerate(router_logits):
        n = logits.shape[-1]
        s = logits.sigmoid()
        p = s / s.sum(-1, keepdim=True)
        chosen = F.one_hot(p.topk(top_k).indices, n).sum(1).float()
        if kept is not None:
            chosen = chosen * kept[layer]
        f = chosen.view(sequences, -1, n).mean(1) * n / top_k
        total = total + (f * p.view(sequences, -1, n).mean(1)).sum(-1).mean()
    return coefficient * total
