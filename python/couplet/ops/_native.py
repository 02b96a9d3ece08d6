"""The coupling loss by the C library: tensors on the CPU, f32 or bf16, passed by pointer."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, List, Optional

import torch
from torch import Tensor

from . import _library as lib
from ._job import ACTIVATIONS, Experts, Job, Phases, Result
from ._plain import zeros


def fits(job: Job) -> bool:
    """Returns whether the library is found and supports the job: f32 or bf16 on the CPU, contiguous rows, f32
    gradients."""
    if lib.found() is None or job.router.device.type != "cpu" or job.split:
        return False
    dtypes = {job.router.dtype, *(x.dtype for x in job.matrices)}
    gradients = [x for x in (job.d_gate, job.d_up, job.d_down) if x is not None]
    return (
        dtypes <= {torch.float32, torch.bfloat16}
        and all(x.dtype == torch.float32 for x in gradients)
        and all(x.has_even_rows() for x in (*job.matrices, *gradients))
    )


@functools.lru_cache(maxsize=64)
def _array_of(length: int) -> Any:
    """Returns the type of an array of `length` addresses. Each new type is a cycle of objects."""
    return ctypes.c_void_p * length


def _matrices(pointers: Optional[list[int]], stride: int, kept: List[Any]) -> lib.Matrices:
    if pointers is None:
        return lib.Matrices()
    array = _array_of(len(pointers))(*pointers)
    kept.append(array)
    return lib.Matrices(ctypes.cast(array, ctypes.POINTER(ctypes.c_void_p)), stride)


def _options(erc: lib.Erc, job: Job) -> None:
    erc.n_experts, erc.d_model, erc.d_expert = job.n, job.d, job.D
    erc.first_expert, erc.end_expert = job.first, job.end
    erc.activation = ACTIVATIONS.index(job.activation)
    erc.alpha, erc.weight = job.alpha, job.weight * (1.0 if job.scale is None else job.scale.item())
    erc.noise = lib.NONE if job.noise == "none" else lib.DRAWN
    erc.seed = job.seed & (1 << 64) - 1
    erc.step, erc.layer, erc.draw = job.step, job.layer, job.draw
    erc.compute = lib.BF16 if job.compute == "bf16" else lib.F32
    erc.n_threads = torch.get_num_threads()


def _weights(experts: Optional[Experts], kept: List[Any]) -> lib.Matrices:
    if experts is None:
        return lib.Matrices()
    return _matrices(experts.pointers(), experts.stride(), kept)


def _erc_of(job: Job, kept: List[Any]) -> lib.Erc:
    erc = lib.new_erc()
    _options(erc, job)
    router = job.router.float()
    kept.append(router)
    erc.router = router.data_ptr()
    erc.dtype = lib.BF16 if job.matrices[0].dtype == torch.bfloat16 else lib.F32
    for name in ("gate", "up", "down"):
        setattr(erc, name, _weights(getattr(job, name), kept))
        setattr(erc, f"{name}_grad", _weights(getattr(job, f"d_{name}"), kept))
    if job.delta is not None:
        delta = job.delta.float().contiguous()
        kept.append(delta)
        erc.noise, erc.delta = lib.GIVEN, delta.data_ptr()
    return erc


def _outputs(erc: lib.Erc, job: Job) -> Result:
    """Returns M and the router's gradient, for the library to fill. The library writes its columns into an M [n, n]."""
    M = torch.empty(job.n, job.n, dtype=torch.float32, device="cpu")
    d_router = zeros((job.n, job.d)) if job.wants_router else None
    erc.M = M.data_ptr()
    if d_router is not None:
        erc.router_grad = d_router.data_ptr()
    return Result(torch.empty((), dtype=torch.float64, device="cpu"), M[:, job.first : job.end], d_router)


def _total_of(erc: lib.Erc) -> Tensor:
    return torch.tensor(erc.loss * erc.n_experts**2, dtype=torch.float64, device="cpu")


def run(job: Job) -> Result:
    """Evaluates by one call, with all experts in this process."""
    kept: List[Any] = []
    erc = _erc_of(job, kept)
    result = _outputs(erc, job)
    lib.call("run", erc)
    result.total = _total_of(erc)
    return result


def phases(job: Job) -> Phases:
    """Runs the three phases of couplet.h with the exchange between them."""
    kept: List[Any] = []
    erc = _erc_of(job, kept)
    result = _outputs(erc, job)
    diagonal = zeros((job.n,))
    violations = torch.zeros(2, job.n, dtype=torch.int32, device="cpu")
    erc.diagonal, erc.violations = diagonal.data_ptr(), violations.data_ptr()
    erc.scratch_bytes = lib.scratch_bytes(erc)
    scratch = torch.empty(erc.scratch_bytes, dtype=torch.uint8, device="cpu")
    erc.scratch = scratch.data_ptr()
    lib.call("diagonals", erc)
    diagonal.copy_((yield diagonal[job.first : job.end].clone()))
    lib.call("sweep", erc)
    counts, result.total = yield violations, _total_of(erc)
    violations.copy_(counts)
    lib.call("finish", erc)
    if result.d_router is not None:
        result.d_router = yield result.d_router
    return result
