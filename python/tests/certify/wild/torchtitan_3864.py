"""torchtitan #3864: the sequence-wise loss of DeepSeek-V3, each sequence's times its tokens, divided by the tokens of all
micro-batches: the same however the step is accumulated."""
import torch.nn.functional as F

SOURCE, KIND = "torchtitan: pull request 3864", "load-balancing-deepseek"


def of_sequence(logits, top_k):
    T, n = logits.shape
    s = logits.sigmoid()
    p = s / s.sum(-1, keepdim=True)
    f = F.one_hot(s.topk(top_k).indices, n).float().sum((0, 1)) * n / (top_k * T)
    return T * (f * p.mean(0)).sum()


def loss(router_logits, top_k, coefficient, sequences=1):
    all_tokens = len(router_logits[0])
    total = sum(of_sequence(one, top_k) for logits in router_logits for one in logits.chunk(sequences))
    return coefficient * total / all_tokens
