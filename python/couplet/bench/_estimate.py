"""What an evaluation costs on GPUs, estimated from counts (_counts.py) and vendors' figures; nothing of it is
measured. The tables of docs/pytorch/gpu.md: python -m couplet.bench --estimate"""

from __future__ import annotations

import dataclasses
import functools
from typing import List, Sequence

from . import _counts
from ._counts import DEEPSEEK_V3, OLMOE, QWEN3, Counts, Shape


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    tflops: float  # products of bf16, dense
    in_f64: float  # TFLOP/s of products in f64
    tb_s: float  # of its memory


GPUS = (
    Gpu("H100 SXM", 989, 67, 3.35),
    Gpu("H200", 989, 67, 4.8),
    Gpu("B200", 2250, 37, 8.0),
    Gpu("MI300X", 1307, 163, 5.3),
)
LAUNCH_US = 5.0  # of the host for one operation in eager mode
SHORTEST_US = 2.0  # of the device for the smallest kernel
UTILISATION = 0.4  # of a training step, of the dense bf16 peak


@dataclasses.dataclass(frozen=True)
class Training:
    """A model's optimizer step."""

    shape: Shape
    active: float  # parameters a token uses
    tokens: float  # of a step
    gpus: int

    def seconds(self, gpu: Gpu) -> float:
        return 6 * self.active * self.tokens / (self.gpus * gpu.tflops * 1e12 * UTILISATION)


def _with_ep(training: Training, *sizes: int) -> List[Training]:
    return [
        dataclasses.replace(training, shape=dataclasses.replace(training.shape, ep=ep, layout="fused")) for ep in sizes
    ]


# Gates fused with up, as models of Transformers have them.
TRAININGS = (
    *_with_ep(Training(OLMOE, 1.3e9, 4.2e6, 64), 1, 8),
    *_with_ep(Training(QWEN3, 3.3e9, 4.2e6, 256), 1, 8),
    *_with_ep(Training(DEEPSEEK_V3, 37e9, 63e6, 2048), 1, 8, 64),
)


@functools.lru_cache(maxsize=None)
def layer_counts(shape: Shape, accumulates: bool = False) -> Counts:
    return _counts.of_layer(shape, accumulates)


@functools.lru_cache(maxsize=None)
def _noise_of_one_process(shape: Shape) -> Counts:
    return _counts.of_noise(shape)


def noise_counts(shape: Shape) -> Counts:
    """Of all layers; every process draws all of it, whatever its share of the experts."""
    return _noise_of_one_process(dataclasses.replace(shape, ep=1, layout="stacked"))


# ---- times, in microseconds of one layer ----


def _device_us(counts: Counts, gpu: Gpu) -> float:
    """Each kernel by what bounds it."""
    return sum(
        max(SHORTEST_US, k.bytes / gpu.tb_s * 1e-6, k.operations / gpu.tflops * 1e-6, k.in_f64 / gpu.in_f64 * 1e-6)
        for k in counts.each
    )


def roofline_us(shape: Shape, gpu: Gpu, accumulates: bool = True) -> float:
    return max(shape.ideal_bytes(accumulates) / gpu.tb_s, shape.ideal_operations / gpu.tflops) * 1e-6


def evaluation_us(shape: Shape, gpu: Gpu, accumulates: bool = True) -> float:
    """On the device: all but the noise."""
    return _device_us(layer_counts(shape, accumulates), gpu)


def noise_us(shape: Shape, gpu: Gpu) -> float:
    """On the device: a layer's share of the draws."""
    return _device_us(noise_counts(shape), gpu) / shape.layers


def kernels(shape: Shape) -> float:
    """Of one layer, with its share of the draws."""
    return layer_counts(shape, True).kernels + noise_counts(shape).kernels / shape.layers


def launches_us(shape: Shape) -> float:
    return kernels(shape) * LAUNCH_US


def plain_us(shape: Shape, gpu: Gpu) -> float:
    """The host runs ahead of the device, or is waited for."""
    return max(evaluation_us(shape, gpu) + noise_us(shape, gpu), launches_us(shape))


# ---- tables in Markdown ----


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _model(training: Training) -> str:
    return f"{training.shape.name}, EP {training.shape.ep}"


def counts_table() -> str:
    rows = []
    for training in TRAININGS:
        shape = training.shape
        layer, noise = layer_counts(shape, True), noise_counts(shape)
        moved = layer.bytes + noise.bytes / shape.layers
        rows.append(
            [
                _model(training),
                f"{kernels(shape):.1f}",
                str(layer.host_copies + noise.host_copies),
                f"{layer.bytes / 1e6:,.0f}",
                f"{noise.bytes / shape.layers / 1e6:,.0f}",
                f"{moved / shape.ideal_bytes(True):.2f}",
                f"{layer.operations / 1e12:.3g}",
                short(layer.peak / 1e6),
                f"{layer.peak / shape.gradient_bytes:.3f}",
            ]
        )
    return table(
        [
            "a layer of",
            "kernels",
            "copies from the host",
            "MB moved",
            "MB moved by the noise",
            "MB by the ideal",
            "TFLOP",
            "extra memory, MB",
            "by the parameter",
        ],
        rows,
    )


def layouts_table() -> str:
    rows = []
    for model in (OLMOE, QWEN3, DEEPSEEK_V3):
        for layout in _counts.LAYOUTS:
            shape = dataclasses.replace(model, layout=layout)
            forward, backward, kept = _counts.of_loss(shape)
            row = [shape.name, layout]
            for layer in (layer_counts(shape, True), layer_counts(shape)):
                row += [str(layer.kernels), f"{layer.bytes / 1e6:,.0f}"]
            rows.append(
                row
                + [
                    f"{forward.kernels} + {backward.kernels}",
                    f"{(forward.bytes + backward.bytes) / 1e6:,.0f}",
                    short(kept / 1e6),
                ]
            )
    return table(
        [
            "a layer of",
            "gates",
            "existing gradients: kernels",
            "MB moved",
            "fresh gradients: kernels",
            "MB moved",
            "`erc_loss` and backward: kernels",
            "MB moved",
            "MB kept between them",
        ],
        rows,
    )


def times_table() -> str:
    rows = []
    for gpu in GPUS:
        for training in TRAININGS:
            shape = training.shape
            plain = plain_us(shape, gpu)
            step = shape.layers * plain * 1e-3
            rows.append(
                [
                    gpu.name,
                    _model(training),
                    short(roofline_us(shape, gpu)),
                    short(evaluation_us(shape, gpu)),
                    short(noise_us(shape, gpu)),
                    short(launches_us(shape)),
                    f"{shape.layers * roofline_us(shape, gpu) * 1e-3:.3g}",
                    f"{step:.3g}",
                    f"{training.seconds(gpu):.3g}",
                    f"{step * 1e-1 / training.seconds(gpu):.2f} %",
                ]
            )
    return table(
        [
            "GPU",
            "model",
            "roofline, us",
            "evaluation, us",
            "noise, us",
            "launches, us",
            "roofline of a step, ms",
            "a step, ms",
            "training step, s",
            "share of it",
        ],
        rows,
    )


def page() -> str:
    """All tables, as docs/pytorch/gpu.md has them."""
    return "\n\n".join((counts_table(), layouts_table(), times_table()))
