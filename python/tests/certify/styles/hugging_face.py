"""Functions in the style of Transformers' `load_balancing_loss_func`, as verl and LLaMA-Factory weigh it."""

import torch
import torch.nn.functional as F


def _probabilities(gate_logits):
    return torch.cat([layer.float() for layer in gate_logits], dim=0).softmax(dim=-1)


def load_balancing_loss_func(gate_logits, num_experts=None, top_k=2, attention_mask=None, router_aux_loss_coef=0.001):
    routing_weights = _probabilities(gate_logits)
    expert_mask = F.one_hot(torch.topk(routing_weights, top_k, dim=-1)[1], num_experts).float()
    if attention_mask is None:
        tokens_per_expert, router_prob_per_expert = expert_mask.mean(dim=0), routing_weights.mean(dim=0)
    else:
        kept = attention_mask.reshape(-1).repeat(len(gate_logits)).float()
        tokens_per_expert = (expert_mask * kept[:, None, None]).sum(dim=0) / kept.sum()
        router_prob_per_expert = (routing_weights * kept[:, None]).sum(dim=0) / kept.sum()
    return router_aux_loss_coef * num_experts * torch.sum(tokens_per_expert * router_prob_per_expert[None])


def loss_with_half_a_mask(gate_logits, num_experts, top_k, attention_mask, moe_aux_loss_coef):
    """The mask leaves padding out of the counts, and not of the probabilities."""
    routing_weights = _probabilities(gate_logits)
    expert_mask = F.one_hot(torch.topk(routing_weights, top_k, dim=-1)[1], num_experts).float()
    kept = attention_mask.reshape(-1).repeat(len(gate_logits)).float()
    tokens_per_expert = (expert_mask * kept[:, None, None]).sum(dim=0) / kept.sum()
    return moe_aux_loss_coef * num_experts * torch.sum(tokens_per_expert * routing_weights.mean(dim=0)[None])


def loss_from_threshold(gate_logits, top_k, router_aux_loss_coef):
    """Chooses all experts whose probability is at least the K-th: a tie chooses more than K."""
    routing_weights = _probabilities(gate_logits)
    threshold = torch.topk(routing_weights, top_k, dim=-1)[0][:, -1:]
    chosen = (routing_weights >= threshold).float()
    return router_aux_loss_coef * chosen.shape[-1] * torch.sum(chosen.mean(dim=0) * routing_weights.mean(dim=0))
