"""The update of an expert's bias in the style of torchtitan, whose names end in the letters of their axes."""

import torch


def update_expert_bias(tokens_per_expert_E, expert_bias_E, load_balance_coeff):
    """The mean number of tokens is rounded down to a whole number."""
    with torch.no_grad():
        mean = tokens_per_expert_E.sum() // tokens_per_expert_E.numel()
        expert_bias_delta_E = load_balance_coeff * torch.sign((mean - tokens_per_expert_E).to(expert_bias_E.dtype))
        return expert_bias_E + expert_bias_delta_E - expert_bias_delta_E.mean()
