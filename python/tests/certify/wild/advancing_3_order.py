"""HongcanGuo/Auxloss-For-Advancing-Expert-Specialization (the code of issue 3): outputs are joined expert by expert, and then
viewed as [tokens, K, h]. Here every token goes to the same K experts."""
import torch

from advancing_3 import loss as of_tokens

SOURCE, KIND = "Advancing Expert Specialization, its code: order of outputs", "expert-orthogonality-span"


def loss(outputs, coefficient):
    by_expert = [outputs[:, k] for k in range(outputs.shape[1])]
    return of_tokens(torch.cat(by_expert).view(outputs.shape), coefficient)
