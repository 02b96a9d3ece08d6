"""torchtitan #1304: the bias moves after each micro-batch, not after the optimizer step."""
import torch

SOURCE, KIND = "torchtitan, Llama 4: pull request 1304", "bias-update-sign"


def loss(counts, bias, rate):
    for load in counts.float():
        bias = bias + rate * torch.sign(load.mean() - load)
    return bias
