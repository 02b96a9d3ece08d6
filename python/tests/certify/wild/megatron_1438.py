"""Megatron-LM #1438: the sequence-wise loss of DeepSeek-V3 with softmax scores where the paper has normalised sigmoids."""
import torch.nn.functional as F

SOURCE, KIND = "Megatron-LM, seq_aux_loss: issue 1438", "load-balancing-deepseek"


def loss(router_logits, top_k, sequences, coefficient):
    total = 0.0
    for logits in router_logits:
        n = logits.shape[-1]
        p = logits.softmax(-1).view(sequences, -1, n)
        f = F.one_hot(p.topk(top_k).indices, n).sum(2).float().mean(1) * n / top_k
        total = total + (f * p.mean(1)).sum(-1).mean()
    return coefficient * total
