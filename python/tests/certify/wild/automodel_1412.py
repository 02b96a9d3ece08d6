"""NeMo Automodel #1412: gradients are averaged over the ranks, which the language-model loss is scaled up against and the
auxiliary loss is not: the more ranks, the smaller it acts. A micro-batch stands for a rank here."""
import torch.nn.functional as F

SOURCE, KIND = "NeMo Automodel before pull request 1412", "load-balancing-olmoe"


def of_rank(logits, top_k):
    p = logits.softmax(-1)
    n = p.shape[-1]
    return n * (F.one_hot(p.topk(top_k).indices, n).sum(1).float().mean(0) / top_k * p.mean(0)).sum()


def loss(logits, top_k, coefficient, micro_batches=1):
    ranks = logits.chunk(micro_batches)
    mean = sum(of_rank(one, top_k) for one in ranks) / len(ranks)
    return coefficient * mean / len(ranks)
