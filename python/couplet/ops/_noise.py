"""The noise of the coupling loss in plain torch: the numbers of src/base/rng.c, on any device.

Philox4x32-10 (Salmon et al., 2011) keyed by (seed, stream, step, layer), counted by index. All of it is in
int64, whose products wrap as unsigned products do."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Dict, Iterator, Sequence, Union

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from . import _noise_kernels

NOISE_STREAM = 2  # CPL_STREAM_NOISE
LOW = 0xFFFFFFFF


def last_word(step: int, layer: Union[int, Tensor], stream: int = NOISE_STREAM) -> Union[int, Tensor]:
    """Returns the counter's last word, which names the stream, the layer and the upper bits of the step."""
    return (stream | layer << 8 | (step >> 32) << 24) & LOW


def philox(block: Tensor, seed: int, step: int, layer: Union[int, Tensor], stream: int = NOISE_STREAM) -> Tensor:
    """Returns four words of 32 bits for each block, as int64 [m, 4] or [l, m, 4], each in 0 ... 2^32 - 1
    (cpl_rng_block). block is int64 [m], layer a number or int64 [l, 1]. Bits above the lower 32 are dropped only where
    a product follows."""
    seed &= (1 << 64) - 1
    last = last_word(step, layer, stream)
    shape = (*(last.shape[:-1] if isinstance(last, Tensor) else ()), *block.shape)
    even = torch.empty(2, *shape, dtype=torch.int64, device=block.device)  # words 0 and 2
    odd = torch.empty_like(even)  # words 1 and 3
    for words, k, value in ((even, 0, block & LOW), (even, 1, step & LOW), (odd, 0, block >> 32), (odd, 1, last)):
        words[k] = value
    k0, k1 = seed & LOW, seed >> 32
    for _ in range(10):
        products = torch.empty_like(even)
        torch.mul(even[1], 0xCD9E8D57, out=products[0])
        torch.mul(even[0], 0xD2511F53, out=products[1])
        even = (products >> 32).bitwise_xor_(odd)
        even[0].bitwise_xor_(k0)
        even[1].bitwise_xor_(k1)
        even.bitwise_and_(LOW)
        odd = products
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    odd.bitwise_and_(LOW)
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=-1)


def uniform(first: int, count: int, seed: int, step: int, layer: Union[int, Tensor], device: torch.device) -> Tensor:
    """Returns numbers of the stream from number `first` on, f32 [..., count] in [0, 1): the upper 24 bits
    (cpl_rng_uniform)."""
    blocks = torch.arange(first // 4, (first + count - 1) // 4 + 1, dtype=torch.int64, device=device)
    numbers = philox(blocks, seed, step, layer).flatten(-2)[..., first % 4 : first % 4 + count]
    return (numbers >> 8).to(torch.float32).mul_(2.0**-24)


def nearest(router: Tensor) -> Tensor:
    """Returns eps_i = min over j != i of |R_i - R_j| / (2 |R_i|), [..., n], for router [..., n, d]; 0 for a zero row
    and for n = 1. Differences are formed before squaring, so that equal rows are exactly 0 apart."""
    wide = router if router.device.type == "mps" else router.double()
    apart = torch.cdist(wide, wide, compute_mode="donot_use_mm_for_euclid_dist")
    apart.diagonal(dim1=-2, dim2=-1).fill_(float("inf"))
    norm = torch.linalg.vector_norm(wide, dim=-1)
    if router.shape[-2] == 1:
        return torch.zeros_like(norm, dtype=router.dtype)
    eps = torch.where(norm == 0, 0.0, apart.amin(dim=-1) / (2 * norm))
    return eps.clamp_(max=torch.finfo(torch.float32).max).to(router.dtype)


# ---- noise of routers ----


def _in_plain_torch(router: Tensor, seed: int, step: int, layer: int, draw: int) -> Tensor:
    """Computes `bounded` on any device."""
    n, d = router.shape[-2:]
    of_each = (
        layer
        if router.dim() == 2
        else torch.arange(layer, layer + len(router), dtype=torch.int64, device=router.device)[:, None]
    )
    u = uniform(draw * n * d, n * d, seed, step, of_each, router.device).view(router.shape)
    return u.to(router.dtype).mul_(2).sub_(1).mul_(nearest(router)[..., None]).add_(1)


def bounded(router: Tensor, seed: int, step: int, layer: int, draw: int) -> Tensor:
    """Returns delta ~ U(1 - eps_i, 1 + eps_i) for the router [n, d] of a layer, or for the routers [l, n, d] of
    successive layers from `layer` on. The numbers equal the C library's, in f32 or wider."""
    if _has_kernels(router):
        return _by_kernels(router, seed, step, layer, draw)
    wide = torch.promote_types(router.dtype, torch.float32)
    return _in_plain_torch(router.to(wide), seed, step, layer, draw)


def _by_kernels(router: Tensor, seed: int, step: int, layer: int, draw: int) -> Tensor:
    many = router if router.dim() == 3 else router[None]
    key = seed - (1 << 64) if seed >= 1 << 63 else seed  # the operator has signed numbers
    delta: Tensor = _noise_kernels.noise(many, key, step & LOW, last_word(step, layer), draw * many[0].numel())
    return delta.view(router.shape)


_works: Dict[torch.device, bool] = {}  # by device: True where the kernels work


def _has_kernels(router: Tensor) -> bool:
    """Returns whether the kernels can be used. Fake tensors of a GPU are treated as on a GPU with working kernels."""
    if router.device.type != "cuda" or os.environ.get("COUPLET_BACKEND") == "torch":
        return False
    if torch.compiler.is_compiling():  # eager mode finds out whether the kernels work
        return False
    if isinstance(router, FakeTensor):
        return True
    if router.device not in _works:
        if torch.cuda.is_current_stream_capturing():
            return False
        _works[router.device] = _kernels_work(router.device)
    return _works[router.device]


@contextlib.contextmanager
def _waiting(device: torch.device) -> Iterator[None]:
    """Allows the synchronisation of the comparison if the user has made synchronisations an error."""
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


@torch.no_grad()
def _kernels_work(device: torch.device) -> bool:
    """Returns whether Triton works here (it needs, for example, a C compiler), and its numbers equal those of torch."""
    router = torch.linspace(-1, 2, 2 * 5 * 77, dtype=torch.float32, device=device).square().view(2, 5, 77)
    key = -5, 2**33 + 7, 3, 1
    try:
        with _waiting(device):
            if torch.allclose(_by_kernels(router, *key), _in_plain_torch(router, *key), rtol=2.0**-23, atol=0):
                return True
        reason = "its numbers are wrong"
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # Triton's exceptions have no common class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    warnings.warn(
        f"couplet: Triton cannot be used on {device}: {reason}. The noise is drawn by plain torch, with a "
        "hundred launches in place of five",
        stacklevel=2,
    )
    return False


# ---- noise of all layers of a step ----

NUMBERS_AT_ONCE = 1 << 23  # numbers drawn together; each needs 24 bytes


def of_layers(routers: Sequence[Tensor], layers: Sequence[int], seed: int, step: int) -> Iterator[Tensor]:
    """Yields delta [n, d] of each layer in turn, f32 or wider, as `bounded` draws it. Successive layers of one shape
    are drawn together, as many as NUMBERS_AT_ONCE allows: on an accelerator the launches of a draw cost more than its
    numbers."""
    begin = 0
    while begin < len(routers):
        end = begin + 1
        most = max(1, NUMBERS_AT_ONCE // max(1, routers[begin].numel()))
        while (
            end < min(len(routers), begin + most)
            and _alike(routers[begin], routers[end])
            and layers[end] == layers[end - 1] + 1
        ):
            end += 1
        yield from bounded(torch.stack(list(routers[begin:end])), seed, step, layers[begin], 0)
        begin = end


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
