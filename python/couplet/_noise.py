"""The noise of the coupling loss in plain torch: the numbers of src/base/rng.c, on any device.

Philox4x32-10 (Salmon et al., 2011) keyed by (seed, stream, step, layer), counted by index; all in
int64, whose products wrap as unsigned ones do."""
from __future__ import annotations

import torch
from torch import Tensor

NOISE_STREAM = 2  # CPL_STREAM_NOISE
LOW = 0xFFFFFFFF


def _high_low(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    product = b * a  # modulo 2^64; the shift's sign bits are masked away
    return (product >> 32) & LOW, product & LOW


def philox(block: Tensor, seed: int, step: int, layer: int, stream: int = NOISE_STREAM) -> Tensor:
    """block: int64 [m] -> int64 [m, 4], each in 0 ... 2^32 - 1 (cpl_rng_block)."""
    seed &= (1 << 64) - 1
    c0, c1 = block & LOW, (block >> 32) & LOW
    c2 = torch.full_like(block, step & LOW)
    c3 = torch.full_like(block, (stream | layer << 8 | (step >> 32) << 24) & LOW)
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(10):
        high0, low0 = _high_low(0xD2511F53, c0)
        high1, low1 = _high_low(0xCD9E8D57, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return torch.stack((c0, c1, c2, c3), dim=-1)


def uniform(first: int, count: int, seed: int, step: int, layer: int,
            device: torch.device) -> Tensor:
    """Numbers `first` ... of the stream, f32 [count] in [0, 1): the upper 24 bits (cpl_rng_uniform)."""
    blocks = torch.arange(first // 4, (first + count - 1) // 4 + 1, dtype=torch.int64, device=device)
    numbers = philox(blocks, seed, step, layer).flatten()[first % 4:first % 4 + count]
    return (numbers >> 8).to(torch.float32) * 2.0**-24


def nearest(router: Tensor) -> Tensor:
    """eps_i = min over j != i of |R_i - R_j| / (2 |R_i|), [n], of router [n, d]; 0 of a zero row and
    for n = 1. Differences are formed before squaring, so that equal rows are exactly 0 apart."""
    wide = router if router.device.type == "mps" else router.double()
    apart = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist")
    apart.fill_diagonal_(float("inf"))
    norm = torch.linalg.vector_norm(wide, dim=1)
    eps = apart.min(dim=1).values / (2 * norm)
    keep = norm != 0 if router.shape[0] > 1 else torch.zeros_like(norm, dtype=torch.bool)
    most = torch.finfo(torch.float32).max
    return torch.where(keep, eps, torch.zeros_like(eps)).clamp(max=most).to(router.dtype)


def bounded(router: Tensor, seed: int, step: int, layer: int, draw: int) -> Tensor:
    """delta [n, d] ~ U(1 - eps_i, 1 + eps_i), the same numbers as the C library draws."""
    n, d = router.shape
    u = uniform(draw * n * d, n * d, seed, step, layer, router.device).view(n, d)
    return 1 + nearest(router)[:, None] * (2 * u.to(router.dtype) - 1)
