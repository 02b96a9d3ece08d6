"""The coupling loss by the C library: tensors on the CPU, f32 or bf16, handed over by pointer."""
from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
from typing import Optional, Sequence

import torch
from torch import Tensor

from . import _library as lib
from ._job import ACTIVATIONS, Alone, Experts, Job


_LARGE = 1 << 22  # bytes


def zeros(shape: Sequence[int]) -> Tensor:
    """f32 zeros on the CPU, for sums. Large ones are pages that the system hands out, zero already, when
    they are first touched: by the threads that add to them, or never where no hinge pulls. torch.zeros
    touches every page and writes it, which takes longer than the loss itself where nothing pulls."""
    count = math.prod(shape)
    if 4 * count < _LARGE:
        return torch.zeros(shape, dtype=torch.float32, device="cpu")
    memory = mmap.mmap(-1, 4 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(*shape)  # keeps `memory`


def fits(job: Job) -> bool:
    """Whether the library is there and can: f32 or bf16 on the CPU."""
    if lib.found() is None:
        return False
    used = [x for x in (job.gate, job.up, job.down) if x is not None]
    dtypes = {job.router.dtype, *(x.dtype for x in used)}
    return job.router.device.type == "cpu" and dtypes <= {torch.float32, torch.bfloat16}


def _matrices(pointers: Optional[list[int]], stride: int, kept: list) -> lib.Matrices:
    if pointers is None:
        return lib.Matrices()
    array = (ctypes.c_void_p * len(pointers))(*pointers)
    kept.append(array)
    return lib.Matrices(ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p)), stride)


def _options(erc: lib.Erc, job: Job) -> None:
    erc.n_experts, erc.d_model, erc.d_expert = job.n, job.d, job.D
    erc.first_expert, erc.end_expert = job.first, job.end
    erc.activation = ACTIVATIONS.index(job.activation)
    erc.alpha, erc.weight = job.alpha, job.weight
    erc.noise = lib.NONE if job.noise == "none" else lib.DRAWN
    erc.seed = job.seed & (1 << 64) - 1
    erc.step, erc.layer, erc.draw = job.step, job.layer, job.draw
    erc.compute = lib.BF16 if job.compute == "bf16" else lib.F32
    erc.n_threads = torch.get_num_threads()


def _weights(experts: Optional[Experts], kept: list) -> lib.Matrices:
    if experts is None:
        return lib.Matrices()
    return _matrices(experts.pointers(), experts.stride(), kept)


def _erc_of(job: Job, kept: list) -> lib.Erc:
    erc = lib.new_erc()
    _options(erc, job)
    router = job.router.float()
    kept.append(router)
    erc.router = router.data_ptr()
    used = [x for x in (job.gate, job.up, job.down) if x is not None]
    erc.dtype = lib.BF16 if used and used[0].dtype == torch.bfloat16 else lib.F32
    for name in ("gate", "up", "down"):
        setattr(erc, name, _weights(getattr(job, name), kept))
        setattr(erc, f"{name}_grad", _weights(getattr(job, f"d_{name}"), kept))
    if job.d_router is not None:
        erc.router_grad = job.d_router.data_ptr()
    if job.delta is not None:
        delta = job.delta.float().contiguous()
        kept.append(delta)
        erc.noise, erc.delta = lib.GIVEN, delta.data_ptr()
    return erc


def _loss_of(erc: lib.Erc) -> Tensor:
    return torch.tensor(erc.loss, dtype=torch.float64, device="cpu")


def run(job: Job) -> Tensor:
    """Every expert is here: one call. Returns L, f64 [], before the weight."""
    kept: list = []
    erc = _erc_of(job, kept)
    lib.call("run", erc)
    return _loss_of(erc)


def run_phases(job: Job, exchange: Alone) -> Tensor:
    """The three phases of couplet.h with the exchange between them."""
    kept: list = []
    erc = _erc_of(job, kept)
    diagonal = zeros((job.n,))
    violations = torch.zeros(2, job.n, dtype=torch.int32, device="cpu")
    erc.diagonal, erc.violations = diagonal.data_ptr(), violations.data_ptr()
    erc.scratch_bytes = lib.scratch_bytes(erc)
    scratch = torch.empty(erc.scratch_bytes, dtype=torch.uint8, device="cpu")
    erc.scratch = scratch.data_ptr()
    lib.call("diagonals", erc)
    diagonal.copy_(exchange.diagonals(diagonal[job.first:job.end].clone()))
    lib.call("sweep", erc)
    counts, loss = exchange.counts(violations, _loss_of(erc))
    violations.copy_(counts)
    lib.call("finish", erc)
    if job.d_router is not None:
        exchange.router_grad(job.d_router)
    return loss
