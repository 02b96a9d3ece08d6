"""torchtitan #1593: with full recomputation tokens are counted twice. A sign does not see it."""
import torch

SOURCE, KIND = "torchtitan: pull request 1593, before it", "bias-update-sign"


def loss(counts, bias, rate):
    load = 2 * counts.sum(0).float()
    return bias + rate * torch.sign(load.mean() - load)
