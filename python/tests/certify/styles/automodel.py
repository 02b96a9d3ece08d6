"""The balance loss of a gate in the style of NeMo Automodel: `padding_mask` is True where a token is padding."""

import torch


def _loads(scores, topk, token_mask):
    chosen = torch.topk(scores, k=topk, dim=-1)[1]
    counted = scores.new_zeros(scores.shape)
    return counted.scatter_(1, chosen, token_mask.to(scores.dtype)[:, None].expand(-1, topk)).sum(dim=0)


def gate_aux_loss(logits, topk, aux_loss_coeff, padding_mask):
    token_mask = ~padding_mask
    scores = logits.softmax(dim=-1, dtype=torch.float32)
    context_length = token_mask.sum()
    f_i = _loads(scores, topk, token_mask) * scores.shape[-1] / (topk * context_length)
    P_i = (scores * token_mask[:, None]).sum(dim=0) / context_length
    return aux_loss_coeff * torch.sum(f_i * P_i)


def gate_aux_loss_of_context(logits, topk, aux_loss_coeff, padding_mask):
    """Divides by all tokens of the context, with the padding among them."""
    token_mask = ~padding_mask
    scores = logits.softmax(dim=-1, dtype=torch.float32)
    context_length = token_mask.numel()
    f_i = _loads(scores, topk, token_mask) * scores.shape[-1] / (topk * context_length)
    P_i = (scores * token_mask[:, None]).sum(dim=0) / context_length
    return aux_loss_coeff * torch.sum(f_i * P_i)
