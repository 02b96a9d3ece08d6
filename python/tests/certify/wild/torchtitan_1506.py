"""torchtitan #1506: the mean of the step is taken off, which the paper's algorithm does not do."""
import torch

SOURCE, KIND = "torchtitan: issue 1506", "bias-update-sign"


def loss(counts, bias, rate):
    load = counts.sum(0).float()
    step = rate * torch.sign(load.mean() - load)
    return bias + step - step.mean()
