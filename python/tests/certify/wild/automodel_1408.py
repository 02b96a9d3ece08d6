"""NeMo Automodel #1408: the node that would carry the loss into the backward pass is made and dropped."""
import torch
import torch.nn.functional as F

SOURCE, KIND = "NeMo Automodel: issue 1408", "load-balancing-olmoe"


class Carrier(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights, aux):
        ctx.save_for_backward(aux)
        return weights

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones_like(ctx.saved_tensors[0])


def loss(logits, top_k, coefficient):
    p = logits.softmax(-1)
    n = p.shape[-1]
    aux = coefficient * n * (F.one_hot(p.topk(top_k).indices, n).sum(1).float().mean(0) / top_k * p.mean(0)).sum()
    weights = p.topk(top_k).values
    Carrier.apply(weights, aux)  # what it returns is not used
    return aux.detach() + 0 * weights.sum()
