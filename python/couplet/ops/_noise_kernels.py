"""The noise of the coupling loss in two Triton kernels, on GPUs of NVIDIA and AMD. Plain torch (_noise.py) needs a
hundred operations. The host takes longer to launch them than the device for the whole loss (docs/pytorch/gpu.md).

    _nearest   eps_i: the Gram matrix in f64 gives the nearest row. Its distance is then computed as in plain torch,
               from differences, so that equal rows are exactly 0 apart.
    _draw      delta: Philox4x32-10 and the bound, for successive groups of four numbers of a row.

`couplet::noise` is an operator, so that fake tensors and torch.compile see one operation."""

import contextlib
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton is not available on every platform
    triton = None

from ._tags import tags

HAS_TRITON = triton is not None
BLOCK = 256  # Philox blocks of four numbers; numbers of a row that are read together
LARGEST = torch.finfo(torch.float32).max
CHANGING = ("first", "key_low", "key_high", "step", "last")  # no special kernels for 1 and multiples of 16

if HAS_TRITON:

    @triton.jit  # type: ignore[untyped-decorator, misc, unused-ignore]
    def _nearest(  # type: ignore[no-untyped-def]
        router, gram, eps, n, d, largest, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr
    ):
        """Computes eps_i, with one program for each row i of each layer. router is [l, n, d], gram [l, n, n] f64, eps
        [l, n]."""
        i, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
        gram = gram + layer * n * n
        j = tl.arange(0, BLOCK_N)
        squares = tl.load(gram + j * (n + 1), mask=j < n, other=0)
        apart = squares - 2 * tl.load(gram + i * n + j, mask=j < n, other=0)  # |R_i - R_j|^2 - |R_i|^2
        nearest = tl.argmin(tl.where((j < n) & (j != i), apart, float("inf")), 0)
        not_numbers = tl.sum((apart != apart).to(tl.int32), 0)
        own, other = router + (layer * n + i) * d, router + (layer * n + nearest) * d
        square, distance = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
        for start in range(0, d, BLOCK):
            k = start + tl.arange(0, BLOCK)
            a = tl.load(own + k, mask=k < d, other=0).to(tl.float64)
            b = tl.load(other + k, mask=k < d, other=0).to(tl.float64)
            square += a * a
            distance += (a - b) * (a - b)
        norm = tl.sqrt(tl.sum(square, 0))
        bound = tl.minimum(tl.sqrt(tl.sum(distance, 0)) / (2 * norm), largest)
        bound = tl.where(not_numbers > 0, float("nan"), bound)
        bound = tl.where((norm == 0) | (n == 1), 0.0, bound)
        tl.store(eps + layer * n + i, bound.to(eps.dtype.element_ty))

    @triton.jit(do_not_specialize=CHANGING)  # type: ignore[untyped-decorator, misc, unused-ignore]
    def _draw(  # type: ignore[no-untyped-def]
        delta, eps, n, d, first, key_low, key_high, step, last, BLOCK: tl.constexpr
    ):
        """Computes delta [l, n, d] from eps [l, n], with the numbers from `first` on of each layer's stream."""
        layer = tl.program_id(1).to(tl.int64)
        block = first // 4 + tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        word = tl.zeros((BLOCK,), tl.uint32)
        c0, c1, c2, c3 = tl.philox_impl(
            block.to(tl.uint32),
            (block >> 32).to(tl.uint32),
            word + step.to(tl.uint32),
            word + (last + (layer << 8)).to(tl.uint32),
            word + key_low.to(tl.uint32),
            word + key_high.to(tl.uint32),
        )
        for which in tl.static_range(4):
            bits = c0 if which == 0 else c1 if which == 1 else c2 if which == 2 else c3
            at = block * 4 + which - first
            is_here = (at >= 0) & (at < n * d)
            bound = tl.load(eps + layer * n + at // d, mask=is_here, other=0)
            u = (bits >> 8).to(bound.dtype) * 5.9604644775390625e-8  # 2^-24
            tl.store(delta + layer * n * d + at, (2 * u - 1) * bound + 1, mask=is_here)


@torch.library.custom_op("couplet::noise", mutates_args=(), **tags("cudagraph_unsafe"))  # noise depends on the step
def noise(router: Tensor, key: int, step: int, last: int, first: int) -> Tensor:
    """Returns delta [l, n, d], f32 or wider, for the routers [l, n, d] of successive layers. key, step and last belong
    to Philox: the key, the counter's third word, and its fourth word for the first layer. `first` is the first number
    of each layer's stream."""
    l, n, d = router.shape
    router, wide = router.contiguous(), router.double()
    gram = torch.bmm(wide, wide.mT)
    dtype = torch.promote_types(router.dtype, torch.float32)
    eps, delta = (torch.empty(size, dtype=dtype, device=router.device) for size in ((l, n), (l, n, d)))
    blocks = (first + n * d - 1) // 4 + 1 - first // 4
    with (
        torch.cuda.device(router.device) if router.is_cuda else contextlib.nullcontext()
    ):  # Triton uses the current device
        _nearest[(n, l)](router, gram, eps, n, d, LARGEST, triton.next_power_of_2(n), BLOCK)
        _draw[(triton.cdiv(blocks, BLOCK), l)](
            delta, eps, n, d, first, key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF, step, last, BLOCK, enable_fp_fusion=False
        )
    return delta


@noise.register_fake
def _(router: Tensor, *_: Any) -> Tensor:
    return router.new_empty(router.shape, dtype=torch.promote_types(router.dtype, torch.float32))
