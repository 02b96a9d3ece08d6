#!/usr/bin/env python3
"""Writes z-centred.safetensors: the centred z-loss (docs/method.md 2.4) and its gradient, by PyTorch's autograd in
float64.

    make_z_centred.py OUT.safetensors       needs torch and safetensors

    logits        [T,n] F32: random ones, large ones far from 0, and a row of equal ones
    loss          [1] F64: mean over tokens of (logsumexp(z) - mean(z) - ln n)^2
    dlogits       [T,n] F64"""

import math
import sys

import torch
from safetensors.torch import save_file

T, n = 12, 8
logits = 2 * torch.randn(T, n, generator=torch.Generator().manual_seed(0))
logits[4:8] = 30 * logits[4:8] + 500
logits[8] = 3
z = logits.double().requires_grad_()
loss = (z.logsumexp(-1) - z.mean(-1) - math.log(n)).square().mean()
loss.backward()
save_file({"logits": logits, "loss": loss.detach().reshape(1), "dlogits": z.grad}, sys.argv[1])
