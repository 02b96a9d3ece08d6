"""Losses of a gate in the style of DeepSeek's `MoEGate`, as minimind wrote it, and of its later form."""

import torch
import torch.nn.functional as F


def _scores(logits):
    scores = logits.sigmoid()
    return scores / scores.sum(dim=-1, keepdim=True)


def _balance(scores, topk_idx, bsz, n_routed_experts):
    scores_for_seq_aux = scores.view(bsz, -1, n_routed_experts)
    topk_idx = topk_idx.view(bsz, -1)
    ce = torch.zeros(bsz, n_routed_experts, dtype=scores.dtype)
    ce.scatter_add_(1, topk_idx, torch.ones_like(topk_idx, dtype=scores.dtype)).div_(
        topk_idx.shape[1] / n_routed_experts
    )
    return (ce * scores_for_seq_aux.mean(dim=1)).sum(dim=1).mean()


def seq_aux_loss(logits, num_experts_per_tok, n_routed_experts, batch_size, aux_loss_alpha):
    scores = _scores(logits)
    topk_idx = torch.topk(scores, k=num_experts_per_tok, dim=-1, sorted=False)[1]
    return aux_loss_alpha * _balance(scores, topk_idx, batch_size, n_routed_experts)


def seq_aux_loss_without_view(logits, num_experts_per_tok, n_routed_experts, batch_size, aux_loss_alpha):
    """Takes the two means over the tokens of all sequences."""
    scores = _scores(logits)
    topk_idx = torch.topk(scores, k=num_experts_per_tok, dim=-1, sorted=False)[1]
    return aux_loss_alpha * _balance(scores, topk_idx, 1, n_routed_experts)


def aux_loss_times_k(logits, num_experts, num_experts_per_tok, router_aux_loss_coef):
    """The load is a mean over tokens alone, whose sum over experts is K."""
    scores = F.softmax(logits, dim=-1)
    topk_idx = torch.topk(scores, k=num_experts_per_tok, dim=-1, sorted=False)[1]
    load = F.one_hot(topk_idx, num_experts).to(scores.dtype).mean(0)
    return (load * scores.mean(0)).sum() * num_experts * router_aux_loss_coef


def group_limited_loss(logits, top_k, aux_loss_alpha, n_group=2, topk_group=1):
    """Chooses the K experts of a token from the best group of experts alone."""
    scores = logits.softmax(dim=-1)
    group_of = torch.arange(scores.shape[-1]) * n_group // scores.shape[-1]
    best = torch.stack([scores[:, group_of == group].amax(dim=-1) for group in range(n_group)], dim=-1)
    allowed = torch.zeros_like(best).scatter_(1, torch.topk(best, k=topk_group, dim=-1)[1], 1.0)[:, group_of]
    topk_idx = torch.topk(scores.masked_fill(allowed == 0, 0.0), k=top_k, dim=-1)[1]
    ce = F.one_hot(topk_idx.view(-1), scores.shape[-1]).to(scores.dtype).mean(0)
    return aux_loss_alpha * (scores.mean(0) * ce * scores.shape[-1]).sum()
