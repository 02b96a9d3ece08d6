"""Balance losses in the style of MegaBlocks' `batched_load_balancing_loss` and of OLMo-core, which began with it."""

import torch


def batched_load_balancing_loss(router_logits, moe_top_k, moe_loss_weight):
    tokens, moe_num_experts = router_logits[0].shape
    scores = [layer.float().softmax(dim=-1) for layer in router_logits]
    top_experts = [torch.topk(one, moe_top_k, dim=-1)[1].flatten() for one in scores]
    tokens_per_expert = torch.cat([torch.bincount(one, minlength=moe_num_experts) for one in top_experts]).float()
    expert_scores = torch.cat(scores, dim=1).mean(dim=0)
    scale = moe_num_experts * moe_loss_weight / (len(router_logits) * tokens * moe_top_k)
    return scale * torch.dot(tokens_per_expert, expert_scores)


def load_balancing_loss_of_bf16(expert_logits, top_k, loss_weight):
    """The softmax runs in bf16. Experts are chosen by the logits as they come."""
    num_tokens, num_experts = expert_logits.shape
    expert_scores = expert_logits.to(torch.bfloat16).softmax(dim=-1).float()
    expert_indices = torch.topk(expert_logits, top_k, dim=-1)[1]
    batch_size_per_expert = torch.bincount(expert_indices.flatten(), minlength=num_experts).type_as(expert_scores)
    scale = num_experts * loss_weight / (num_tokens * top_k)
    return scale * torch.dot(batch_size_per_expert, expert_scores.mean(dim=0))
