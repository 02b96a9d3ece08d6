"""Functions in the style of Megatron-Core's `moe_utils.py`, and of trainers that hand their settings to it.

Probabilities and counts come in, and one factor divides products of sums. The `padding_mask` of the balance loss is True
where a token is kept. The `padding_mask` of the z-loss is True where a token is padding."""

import torch


def switch_load_balancing_loss_func(
    probs, tokens_per_expert, total_num_tokens, topk, num_experts, moe_aux_loss_coeff, fused=False, padding_mask=None
):
    if padding_mask is not None:
        probs = probs * padding_mask[:, None]
    scale = num_experts * moe_aux_loss_coeff / (topk * total_num_tokens * total_num_tokens)
    return scale * (probs.sum(dim=0) * tokens_per_expert).sum()


def z_loss_func(logits, z_loss_coeff, padding_mask=None):
    squares = torch.logsumexp(logits, dim=-1).square()
    if padding_mask is None:
        return z_loss_coeff * squares.mean()
    valid = ~padding_mask
    return z_loss_coeff * (squares * valid).sum() / valid.sum().clamp(min=1)


def z_loss_of_mean(logits, moe_z_loss_coeff):
    """The mean over tokens is taken before the square."""
    return moe_z_loss_coeff * torch.square(torch.mean(torch.logsumexp(logits, dim=-1)))


def get_updated_expert_bias(tokens_per_expert, expert_bias, expert_bias_update_rate):
    with torch.no_grad():
        average = tokens_per_expert.sum(dim=-1, keepdim=True) / tokens_per_expert.shape[-1]
        return expert_bias + expert_bias_update_rate * torch.sign(average - tokens_per_expert)
