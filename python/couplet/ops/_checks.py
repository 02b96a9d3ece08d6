"""The checks of an evaluation's arguments."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._job import Job

MOST_EXPERTS, MOST_WIDTH = 65535, 1 << 24
STEP_BITS, LAYER_BITS = 40, 16  # widths in the noise's counter; draw has LAYER_BITS too


def refuse(sentence: str) -> None:
    raise ValueError(f"couplet: {sentence}")


def described(value: Any) -> str:
    """Returns a text that describes a given value, for errors."""
    return f"{value!r}" if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"


NOT_QUANTISED = (
    "Quantised routers and experts are not supported: load the model without quantization, or leave these "
    "modules out of it (llm_int8_skip_modules of bitsandbytes, modules_to_not_convert of others)"
)


def check_dtype(dtype: torch.dtype, name: str) -> None:
    """Raises TypeError for a router or experts whose bytes are no numbers, such as a quantised weight."""
    if not dtype.is_floating_point or dtype.itemsize < 2:
        raise TypeError(f"couplet: {name} is {dtype}, must be float32, bfloat16, float16 or float64. {NOT_QUANTISED}")


def _check_size(name: str, size: int, most: int) -> None:
    if not 1 <= size <= most:
        refuse(f"{name} is {size}, must be 1 ... {most}")


def check_counters(step: int, layer: int, draw: int) -> None:
    """Raises ValueError for a step, layer or draw that the noise's counter cannot hold."""
    if not 0 <= step < 1 << STEP_BITS or not all(0 <= x < 1 << LAYER_BITS for x in (layer, draw)):
        refuse(
            f"step is {step}, layer {layer} and draw {draw}; must be whole numbers from 0, step below 2^{STEP_BITS}, "
            f"layer and draw below 2^{LAYER_BITS}"
        )


def check(job: Job) -> None:
    """Raises ValueError for a job that cannot be evaluated. `arrange` checks shapes, dtypes and devices."""
    _check_size("the number of experts (rows of the router)", job.n, MOST_EXPERTS)
    _check_size("the width d of the router's rows", job.d, MOST_WIDTH)
    _check_size("the width D of an expert (rows of its gate)", job.D, MOST_WIDTH)
    if not 0 <= job.first < job.end <= job.n:
        refuse(f"experts [{job.first}, {job.end}) are not a part of 0 ... {job.n}")
    if not isinstance(job.alpha, Tensor) and not 0 <= job.alpha < math.inf:  # a tensor's check synchronises a GPU
        refuse(f"alpha is {job.alpha:g}, must be a number >= 0")
    if not math.isfinite(job.weight):
        refuse(f"weight is {job.weight:g}, must be a number")
    check_counters(job.step, job.layer, job.draw)
    if job.delta is not None and job.noise != "drawn":  # drawn noise is finite; the check synchronises a GPU
        check_finite(job.delta)


def check_finite(delta: Tensor) -> None:
    if not math.isfinite(delta.sum()) and not torch.isfinite(delta).all():
        i, k = (~torch.isfinite(delta)).nonzero()[0].tolist()
        refuse(f"delta[{i},{k}] is {float(delta[i, k])}, must be finite")
