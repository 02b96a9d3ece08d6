"""Correctness, speed and memory of the coupling loss on this machine's accelerator, as a block to paste into an issue.

    python -m couplet.bench [--device cuda] [--shape olmoe] [--ep 8] [--dtype bf16] [--rounds 20] [--json]
    python -m couplet.bench --estimate      # tables of docs/pytorch/gpu.md: counted, no accelerator needed
    python -m couplet.bench --table FILE    # its tables of what was measured, from reports of --json, one a line

Without an accelerator it runs a small shape on the CPU and lists what was left out. Exit code 0: everything within
its tolerance, 1: something was not, 2: it could not be run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import platform
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from .. import attach, backend, erc_loss, hf, reference
from .._version import __version__
from ..ops import _noise
from ..report import _files
from . import _counts
from ._counts import Shape

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PART_OF_MEMORY = 0.4  # of what is free: parameters and gradients of the layers that are measured
MOST_LAYERS = 4
MOST_KERNELS, MOST_LETTERS = 6, 90  # of those listed by name
TRAINED_LAYERS, TRAINED_TOKENS = 4, (8, 2048)


# ---- the device ----


class Device:
    """An accelerator, or the CPU: what the parts of torch have under one name each."""

    def __init__(self, name: str):
        self.device = torch.device(name)
        self.type = self.device.type
        self.module: Any = getattr(torch, self.type)

    @property
    def is_cuda(self) -> bool:
        """CUDA or ROCm."""
        return self.type == "cuda"

    def synchronize(self) -> None:
        if self.type != "cpu":
            self.module.synchronize()

    def describe(self) -> Dict[str, str]:
        about = {
            "couplet": f"{__version__}, {backend()}",
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        }
        if self.is_cuda:
            p = torch.cuda.get_device_properties(self.device)
            about["device"] = f"{p.name}, {p.total_memory / 2**30:.0f} GiB, capability {p.major}.{p.minor}"
            about["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
            about["driver"] = _driver()
        elif self.type == "xpu":
            about["device"] = str(self.module.get_device_name(self.device))
        else:
            about["device"] = platform.processor() or platform.machine() or self.type
        return about

    def free_bytes(self) -> int:
        if hasattr(self.module, "mem_get_info"):
            return int(self.module.mem_get_info(self.device)[0])
        return 2**30 if self.type == "cpu" else 8 * 2**30

    def seconds(self, run: Callable[[], Any]) -> float:
        """Of one call."""
        if self.is_cuda or self.type == "xpu":
            begin, end = (self.module.Event(enable_timing=True) for _ in range(2))
            self.synchronize()
            begin.record()
            run()
            end.record()
            self.synchronize()
            return float(begin.elapsed_time(end)) / 1000
        self.synchronize()
        begun = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - begun

    def peak_bytes(self, run: Callable[[], Any]) -> Optional[int]:
        """Most that `run` holds beside what was there before, its results with it; None: not known here."""
        if not hasattr(self.module, "reset_peak_memory_stats"):
            return None
        self.synchronize()
        before = self.module.memory_allocated(self.device)
        self.module.reset_peak_memory_stats(self.device)
        kept = run()
        self.synchronize()
        peak = int(self.module.max_memory_allocated(self.device) - before)
        del kept
        return peak


def _driver() -> str:
    """Of NVIDIA, as its library says; ROCm's is the kernel's."""
    try:
        import ctypes

        library, text = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(96)
        library.nvmlInit_v2()
        library.nvmlSystemGetDriverVersion(text, 96)
        return text.value.decode() or "unknown"
    except OSError:
        return "unknown"


def default_device() -> str:
    """The accelerator that torch finds, else the CPU."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        return str(accelerator.current_accelerator().type) if accelerator.is_available() else "cpu"
    for name in ("cuda", "xpu", "mps"):
        module: Any = getattr(torch.backends, "mps", None) if name == "mps" else getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return "cpu"


# ---- is it right? ----


@dataclasses.dataclass
class Check:
    name: str
    errors: Tuple[float, ...]  # of loss, router's and gates' gradient, relative
    tolerance: float

    @property
    def is_right(self) -> bool:
        return all(error <= self.tolerance for error in self.errors)


# Relative error of a norm: of loss and gradients. An operand of a product is rounded by half a unit in the last place
# u: f32 2^-24, TF32 2^-11, bf16 2^-9, f16 2^-12. Proxies, scaled responses and results are each rounded once, errors
# of sums add like their square root: about 2 u. Allowed is 8 u, and 2^-17 for f32, whose sums have thousands of terms.
SIZE = (16, 64, 128)  # n, D, d
TOLERANCE = {"f32": 2.0**-17, "tf32": 2.0**-8, "bf16": 2.0**-6, "f16": 2.0**-9}


@functools.lru_cache(maxsize=None)
def _inputs(n: int, D: int, d: int) -> Tuple[Tensor, Tensor, Tensor, float]:
    """Router, gates, delta in f64, and an alpha that no ratio of responses comes near: rounding switches no hinge."""
    g = torch.Generator().manual_seed(1)
    router, gates = (torch.randn(s, generator=g, dtype=torch.float64, device="cpu") for s in ((n, d), (n, D, d)))
    router, gates = router.bfloat16().double(), (gates / d**0.5).bfloat16().double()  # numbers that all dtypes have
    delta = 1 + 0.4 * (torch.rand(n, d, generator=g, dtype=torch.float32, device="cpu").double() - 0.5)
    M = torch.linalg.vector_norm(torch.einsum("jDd,id->ijD", gates, router * delta), dim=-1)
    others = ~torch.eye(n, dtype=torch.bool, device="cpu")
    ratios = torch.cat(((M / M.diagonal()[:, None])[others], (M / M.diagonal())[others])).sort().values
    middle = ratios[len(ratios) // 8 :]
    middle = middle[middle < 1]
    k = int((middle[1:] / middle[:-1]).argmax())
    return router, gates, delta, float((middle[k] * middle[k + 1]).sqrt())


def _parts(gates: Tensor, layout: str) -> Tuple[Any, Optional[str]]:
    """Gates [n, D, d] as leaves of a layout, and where in them they are."""
    up = torch.ones_like(gates)
    if layout == "list":
        return [g.clone().requires_grad_() for g in gates], None
    if layout == "fused":
        return torch.cat((gates, up), 1).requires_grad_(), "first"
    if layout == "interleaved, [n, d, 2D]":
        both = torch.stack((gates, up), 2).flatten(1, 2).mT.contiguous()
        return both.requires_grad_(), "interleaved"
    return gates.clone().requires_grad_(), None


LAYOUTS = ("stacked", "list", "fused", "interleaved, [n, d, 2D]")


def _gate_gradient(leaves: Any, layout: str) -> Tensor:
    if layout == "list":
        return torch.stack([leaf.grad for leaf in leaves])
    gradient: Tensor = leaves.grad
    if layout == "fused":
        return gradient[:, : gradient.shape[1] // 2]
    return gradient.mT[:, ::2] if layout.startswith("interleaved") else gradient


def _error(got: Tensor, want: Tensor) -> float:
    return float(torch.linalg.vector_norm(got.detach().cpu().double() - want) / torch.linalg.vector_norm(want))


@functools.lru_cache(maxsize=None)
def _wanted() -> Tuple[Tensor, ...]:
    """Loss and gradients of router and gates by the pseudo-code in f64."""
    router, gates, delta, alpha = _inputs(*SIZE)
    leaves = router.clone().requires_grad_(), gates.clone().requires_grad_()
    loss = reference.erc_loss(*leaves, alpha=alpha, delta=delta)
    return (loss.detach(), *torch.autograd.grad(loss, leaves))


def _check(device: Device, dtype: torch.dtype, layout: str, name: str) -> Check:
    router, gates, delta, alpha = _inputs(*SIZE)
    leaf = router.to(device.device, dtype).requires_grad_()
    leaves, half = _parts(gates.to(device.device, dtype), layout)
    matrices = leaves.mT if half == "interleaved" else leaves
    loss = erc_loss(leaf, matrices, alpha=alpha, delta=delta.float().to(device.device), gate_half=half)
    torch.autograd.backward(loss)
    assert leaf.grad is not None
    got = loss, leaf.grad, _gate_gradient(leaves, layout)
    errors = tuple(_error(a, b) for a, b in zip(got, _wanted()))
    return Check(f"{name}, {layout}", errors, TOLERANCE[name])


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def check(device: Device) -> List[Check]:
    """Loss and gradients against the pseudo-code in f64 on the CPU."""
    done = []
    for name, dtype in DTYPES.items():
        for layout in LAYOUTS:
            with _tf32(False):
                done.append(_check(device, dtype, layout, name))
    if device.is_cuda:
        with _tf32(True):
            done.append(_check(device, torch.float32, "stacked", "tf32"))
    return done


# ---- what it costs ----


def median_seconds(device: Device, run: Callable[[], Any], rounds: int) -> Tuple[float, float]:
    """Median of the rounds, and their spread: the range by the median."""
    for _ in range(2):
        run()
    each = [device.seconds(run) for _ in range(rounds)]
    median = statistics.median(each)
    return median, (max(each) - min(each)) / median


def bandwidth(device: Device, rounds: int) -> float:
    """Bytes a second, read and written by a copy."""
    count = 1 << 24 if device.type == "cpu" else min(1 << 30, device.free_bytes() // 8)
    a = torch.ones(count, dtype=torch.uint8, device=device.device)
    b = torch.empty_like(a)
    return 2 * count / median_seconds(device, lambda: b.copy_(a), rounds)[0]


def product_rate(device: Device, dtype: torch.dtype, rounds: int) -> float:
    """Operations a second of a large square product; on the CPU of f32, as the loss has it there."""
    size = 512 if device.type == "cpu" else 8192
    dtype = torch.float32 if device.type == "cpu" else dtype
    a, b = (torch.randn(size, size, dtype=torch.float32, device=device.device).to(dtype) for _ in range(2))
    return 2.0 * size**3 / median_seconds(device, lambda: a @ b, rounds)[0]


class _Model(nn.Module):
    """Routers and gates of some layers with random numbers."""

    def __init__(self, shape: Shape, layers: int, device: Device):
        super().__init__()

        def make(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(size, device=device.device, dtype=shape.dtype).mul_(shape.d**-0.5))

        rows = shape.D * (2 if shape.half else 1)
        self.routers = nn.ParameterList([make(shape.n, shape.d) for _ in range(layers)])
        self.gates = nn.ParameterList([make(shape.here, rows, shape.d) for _ in range(layers)])


def _ones(shape: Shape, layers: int, device: Device) -> List[Tensor]:
    """In place of noise, of each layer."""
    return [torch.ones(shape.n, shape.d, dtype=torch.float32, device=device.device) for _ in range(layers)]


def _layers_that_fit(shape: Shape, device: Device) -> int:
    each = 2 * shape.gradient_bytes + 8 * shape.n * shape.d * 4
    return max(0, min(shape.layers, MOST_LAYERS, int(PART_OF_MEMORY * device.free_bytes() / each)))


def _step_of(shape: Shape, layers: int, device: Device) -> Tuple[nn.Module, Callable[[], None]]:
    """One call: the gradients of all layers, which were None before, with their noise."""
    model = _Model(shape, layers, device)
    if shape.ep == 1:
        erc = attach(model, list(zip(model.routers, model.gates)))

        def step() -> None:
            model.zero_grad(set_to_none=True)
            erc.next_step()
            erc.backward()
    else:
        routers, gates, count = [p.data for p in model.routers], [p.data for p in model.gates], [0]

        def step() -> None:
            count[0] += 1
            for router, gate, delta in zip(routers, gates, _noise.of_layers(routers, range(layers), 0, count[0])):
                _counts.evaluate(shape, router, [gate], delta)

    return model, step


@dataclasses.dataclass(frozen=True)
class Rates:
    """Measured here: bytes and operations a second."""

    copy: float
    product: float

    def roofline(self, shape: Shape, accumulates: bool) -> float:
        """Seconds of a layer."""
        return max(shape.ideal_bytes(accumulates) / self.copy, shape.ideal_operations / self.product)


def time_existing(device: Device, shape: Shape, rounds: int, rates: Rates) -> Dict[str, Any]:
    """A layer whose gates are fused with the up projections and whose gradients exist already: the layout of
    Transformers' models after their own backward pass."""
    shape = dataclasses.replace(shape, layout="fused")
    layers = _layers_that_fit(shape, device)
    if not layers:
        return {"left out": "a layer does not fit"}
    model, deltas = _Model(shape, layers, device), _ones(shape, layers, device)
    gradients = [torch.zeros_like(gate.data) for gate in model.gates]

    def add() -> None:
        for router, gate, delta, gradient in zip(model.routers, model.gates, deltas, gradients):
            _counts.evaluate(shape, router.data, [gate.data], delta, [gradient])

    found = _parts_of("evaluation", device, add, layers, rounds)
    roofline = rates.roofline(shape, True) * 1e6
    us = found.get("evaluation, kernels, us a layer", found["evaluation, us a layer"])
    return {"layers": layers, "roofline, us a layer": roofline, "times the roofline": us / roofline, **found}


def time_step(device: Device, shape: Shape, rounds: int, rates: Rates) -> Dict[str, Any]:
    """Time of a step by its layers, beside the roofline."""
    layers = _layers_that_fit(shape, device)
    if not layers:
        return {"left out": f"a layer's gates and gradient ({2 * shape.gate_bytes / 2**30:.1f} GiB) do not fit"}
    model, step = _step_of(shape, layers, device)
    seconds, spread = median_seconds(device, step, rounds)
    roofline = rates.roofline(shape, False)
    del model, step
    return {
        "layers": layers,
        "us a layer": seconds / layers * 1e6,
        "spread": spread,
        "copy, GB/s": rates.copy / 1e9,
        "product, TFLOP/s": rates.product / 1e12,
        "roofline, us a layer": roofline * 1e6,
        "share of the roofline": roofline / (seconds / layers),
    }


# ---- of what a step consists ----


def time_parts(device: Device, shape: Shape, rounds: int) -> Dict[str, Any]:
    """A layer's evaluation and its share of the noise of all layers, the host's time for both, and their kernels: the
    columns that docs/pytorch/gpu.md estimates."""
    layers = _layers_that_fit(shape, device)
    if not layers:
        return {"left out": "a layer does not fit"}
    model, deltas = _Model(shape, layers, device), _ones(shape, layers, device)
    routers = [model.routers[k % layers].data for k in range(shape.layers)]

    def evaluate() -> None:
        for router, gate, delta in zip(model.routers, model.gates, deltas):
            _counts.evaluate(shape, router.data, [gate.data], delta)

    def draw() -> None:
        for _ in _noise.of_layers(routers, range(shape.layers), 0, 1):
            pass

    return {
        **_parts_of("evaluation", device, evaluate, layers, rounds),
        **_parts_of("noise", device, draw, shape.layers, rounds),
    }


def _parts_of(name: str, device: Device, run: Callable[[], Any], layers: int, rounds: int) -> Dict[str, Any]:
    """Of a layer: time, the host's part of it, and on CUDA and ROCm the kernels, with those that take longest."""
    found: Dict[str, Any] = {
        f"{name}, us a layer": median_seconds(device, run, rounds)[0] / layers * 1e6,
        f"{name}, host, us a layer": host_seconds(device, run, rounds) / layers * 1e6,
    }
    kernels = _kernels(device, run)
    if kernels:
        found[f"{name}, kernels a layer"] = sum(calls for calls, _ in kernels.values()) / layers
        found[f"{name}, kernels, us a layer"] = sum(us for _, us in kernels.values()) / layers
        for kernel, (calls, us) in sorted(kernels.items(), key=lambda one: -one[1][1])[:MOST_KERNELS]:
            found[f"{name}: {kernel}"] = f"{us / layers:.4g} us a layer in {calls / layers:.3g} kernels"
    return found


def host_seconds(device: Device, run: Callable[[], Any], rounds: int) -> float:
    """Median of the time until the last operation is queued, on a device that has nothing else to do."""
    each = []
    for _ in range(rounds):
        device.synchronize()
        begun = time.perf_counter()
        run()
        each.append(time.perf_counter() - begun)
    device.synchronize()
    return statistics.median(each)


def _kernels(device: Device, run: Callable[[], Any]) -> Dict[str, Tuple[int, float]]:
    """Name: calls and microseconds, of what torch's profiler saw on a CUDA or ROCm device."""
    if not device.is_cuda:
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        device.synchronize()
    found: Dict[str, Tuple[int, float]] = {}
    for event in profile.events() or ():
        if event.device_type.name == "CUDA":
            name = event.name.replace("void ", "").replace("at::native::", "")[:MOST_LETTERS]
            calls, us = found.get(name, (0, 0.0))
            found[name] = calls + 1, us + event.device_time_total
    return found


# ---- in a training step ----


def time_training(device: Device, rounds: int, **settings: Any) -> Dict[str, Any]:
    """Training steps of an OLMoE of TRAINED_LAYERS layers, with the loss and without, in turn: `settings` change the
    model."""
    try:
        from transformers import OlmoeConfig, OlmoeForCausalLM
    except ImportError:
        return {"left out": "Transformers with OLMoE is not installed"}
    if not device.is_cuda and not settings:
        return {"left out": "OLMoE's shape is trained on CUDA and ROCm alone"}
    config = OlmoeConfig(num_hidden_layers=TRAINED_LAYERS, **settings)
    with device.device:
        model = OlmoeForCausalLM(config).to(torch.bfloat16).train()
        ids = torch.randint(
            config.vocab_size, TRAINED_TOKENS if device.is_cuda else (2, 16), dtype=torch.int64, device=device.device
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    erc = hf.attach(model)

    def step(with_loss: bool) -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        if with_loss:
            erc.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for with_loss in (True, False, True, False):
        step(with_loss)
    pairs = [[device.seconds(lambda: step(with_loss)) for with_loss in (False, True)] for _ in range(rounds)]
    without = statistics.median(a for a, _ in pairs)
    more = statistics.median(b - a for a, b in pairs)
    found = {
        "layers": config.num_hidden_layers,
        "tokens": ids.numel(),
        "without, ms": without * 1e3,
        "with, more, ms": more * 1e3,
        "more, us a layer": more / config.num_hidden_layers * 1e6,
        "share of a step": more / without,
    }
    model(input_ids=ids, labels=ids).loss.backward()

    def backward() -> None:
        erc.next_step()
        erc.backward()

    return {**found, **_parts_of("erc.backward", device, backward, config.num_hidden_layers, rounds)}


def _one_layer(shape: Shape, device: Device) -> Tuple[Tensor, Tensor]:
    model = _Model(shape, 1, device)
    return model.routers[0], model.gates[0]


def time_pseudo_code(device: Device, shape: Shape, rounds: int) -> Dict[str, Any]:
    """One layer with its noise, loss and gradients: the operator and the pseudo-code."""
    needed = 6 * shape.n**2 * shape.D * 4 + 4 * shape.gate_bytes
    if shape.ep > 1 or needed > device.free_bytes():
        return {
            "left out": "the pseudo-code has no expert parallelism"
            if shape.ep > 1
            else f"the pseudo-code needs about {needed / 2**30:.0f} GiB"
        }
    router, gate = _one_layer(shape, device)

    def run(loss: Callable[..., Tensor]) -> Callable[[], None]:
        def once() -> None:
            router.grad = gate.grad = None
            torch.autograd.backward(loss(router, gate))

        return once

    ours = median_seconds(device, run(erc_loss), rounds)[0]
    theirs = median_seconds(device, run(reference.erc_loss), rounds)[0]
    return {
        "erc_loss, us": ours * 1e6,
        "pseudo-code, us": theirs * 1e6,
        "times as fast": theirs / ours,
        **_parts_of("erc_loss", device, run(erc_loss), 1, rounds),
    }


def _evaluation(shape: Shape, device: Device) -> Tuple[Tensor, Callable[[], Any]]:
    """Noise of ones, and a function that makes loss and gradients of one layer with it."""
    router, gate = (p.data for p in _one_layer(shape, device))
    (delta,) = _ones(shape, 1, device)
    return delta, lambda: _counts.evaluate(shape, router, [gate], delta)


def memory(device: Device, shape: Shape) -> Dict[str, Any]:
    """Of one layer, beside its gates and gradients."""
    if not _layers_that_fit(shape, device):
        return {"left out": "a layer does not fit"}
    run = _evaluation(shape, device)[1]
    run()
    peak = device.peak_bytes(run)
    if peak is None:
        return {"left out": f"torch does not measure peak memory on {device.type}"}
    extra = peak - shape.gradient_bytes
    return {"extra, MB": extra / 1e6, "by the gates": extra / shape.gate_bytes}


# ---- what must not wait ----


def synchronisation(device: Device, shape: Shape) -> Dict[str, Any]:
    """A step under torch's own check that nothing waits for the device."""
    if not device.is_cuda:
        return {"left out": "torch checks for synchronisation on CUDA and ROCm alone"}
    layers = min(2, _layers_that_fit(shape, device))
    if not layers:
        return {"left out": "a layer does not fit"}
    _, step = _step_of(shape, layers, device)
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return {"waits": str(error).split("\n")[0]}
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"waits": "no"}


def graph(device: Device, shape: Shape) -> Dict[str, Any]:
    """One layer captured with noise that is given: replayed with other noise it must be what eager mode gives."""
    if not device.is_cuda:
        return {"left out": "CUDA graphs are of CUDA and ROCm"}
    if not _layers_that_fit(shape, device):
        return {"left out": "a layer does not fit"}
    if shape.ep > 1:
        return {"left out": "a share of the experts has memory that holds anything in place of the others' diagonal"}
    name = next(name for name, dtype in DTYPES.items() if dtype == shape.dtype)
    delta, run = _evaluation(shape, device)
    cuda: Any = torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(3):
            run()
    cuda.current_stream().wait_stream(side)
    captured = cuda.CUDAGraph()
    try:
        with cuda.graph(captured):
            result, gradients = run()
    except RuntimeError as error:
        return {"captured": "no: " + str(error).split("\n")[0]}
    delta.uniform_(0.8, 1.2)
    captured.replay()
    replayed, eager, again = (
        [t.clone() for t in (one.total, one.d_router, *many)] for one, many in ((result, gradients), run(), run())
    )
    largest = max(
        float(torch.linalg.vector_norm((a - b).float()) / torch.linalg.vector_norm(b.float()))
        for a, b in zip(replayed, eager)
    )
    seconds = median_seconds(device, captured.replay, 10)[0]
    return {
        "captured": "yes",
        "replay against eager, largest difference": largest,
        "eager twice, same bits": "yes" if all(map(torch.equal, eager, again)) else "no",
        "replay, us": seconds * 1e6,
        "same as eager": "yes" if largest <= TOLERANCE[name] else "no",
    }


# ---- the block ----

EXISTING = "fused gates, existing gradients"
SECTIONS = (
    "machine",
    "shape",
    EXISTING,
    "step",
    "parts",
    "training",
    "pseudo-code",
    "memory",
    "synchronisation",
    "graph",
)


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _section(title: str, figures: Dict[str, Any]) -> str:
    return "\n".join([f"#### {title}", "", *(f"* {name}: {_value(value)}" for name, value in figures.items())])


def markdown(report: Dict[str, Any]) -> str:
    rows = ["| against f64 on the CPU | loss | router | gates | tolerance | |", "| --- | --- | --- | --- | --- | --- |"]
    for c in report["correctness"]:
        rows.append(
            f"| {c['name']} | "
            + " | ".join(f"{e:.1e}" for e in c["errors"])
            + f" | {c['tolerance']:.1e} | {'right' if c['right'] else '**wrong**'} |"
        )
    sections = [_section(title, report[title]) for title in SECTIONS]
    return "\n\n".join(["### python -m couplet.bench", *sections[:2], "\n".join(rows), *sections[2:]])


def run(device: Device, shape: Shape, rounds: int) -> Dict[str, Any]:
    """The report: everything by the names of its sections."""
    checks = check(device)
    rates = Rates(bandwidth(device, rounds), product_rate(device, shape.dtype, rounds))
    about = {
        "model": shape.name,
        "n": shape.n,
        "d": shape.d,
        "D": shape.D,
        "ep": shape.ep,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "rounds": rounds,
    }
    if shape.ep > 1:
        about["left out"] = "the exchanges between processes: one process's share is measured"
    return {
        "machine": device.describe(),
        "shape": about,
        "correctness": [{**dataclasses.asdict(c), "right": c.is_right} for c in checks],
        EXISTING: time_existing(device, shape, rounds, rates),
        "step": time_step(device, shape, rounds, rates),
        "parts": time_parts(device, shape, rounds),
        "training": time_training(device, rounds)
        if shape.name == _counts.OLMOE.name and shape.ep == 1
        else {"left out": "a model of OLMoE's shape is trained with --shape olmoe alone"},
        "pseudo-code": time_pseudo_code(device, shape, rounds),
        "memory": memory(device, shape),
        "synchronisation": synchronisation(device, shape),
        "graph": graph(device, shape),
    }


def is_good(report: Dict[str, Any]) -> bool:
    """Right, without synchronisation, and a graph replays what eager mode gives."""
    return (
        all(c["right"] for c in report["correctness"])
        and report["synchronisation"].get("waits", "no") == "no"
        and report["graph"].get("captured", "yes") == "yes"
        and report["graph"].get("same as eager", "yes") == "yes"
    )


def _shape(options: argparse.Namespace, device: Device) -> Shape:
    name = options.shape or ("small" if device.type == "cpu" else "olmoe")
    shape = dataclasses.replace(_counts.SHAPES[name], ep=options.ep, dtype=DTYPES[options.dtype])
    if options.ep < 1 or shape.n % options.ep:
        raise ValueError(
            f"--ep {options.ep}: {shape.n} experts cannot be shared by so many processes; it must divide them"
        )
    return shape


def parse(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m couplet.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", help="cuda, xpu, mps, cpu; default: what torch finds")
    parser.add_argument("--shape", choices=sorted(_counts.SHAPES), help="default: olmoe; small on the CPU")
    parser.add_argument("--ep", type=int, default=1, help="processes that share the experts; one's share is measured")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    parser.add_argument("--estimate", action="store_true", help="print the estimates of docs/pytorch/gpu.md and stop")
    parser.add_argument("--table", metavar="FILE", help="print the tables of reports, one a line, and stop")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


def main(arguments: Optional[Sequence[str]] = None) -> int:
    try:
        return _main(parse(arguments))
    except KeyboardInterrupt:
        return 130


def _main(options: argparse.Namespace) -> int:
    if options.estimate:
        from . import _estimate

        print(_estimate.page())
        return 0
    if options.table:
        from . import _measured

        try:
            _files.say(*_measured.page(options.table).splitlines())
        except (_files.BadFile, OSError) as error:
            said = _files.reason(error) if isinstance(error, OSError) else f"{options.table}: {error}"
            _files.complain(f"couplet.bench: {said}")
            return 1
        return 0
    try:
        device = Device(options.device or default_device())
        shape = _shape(options, device)
        torch.empty(1, dtype=torch.float32, device=device.device)
    except (ValueError, RuntimeError, AssertionError, AttributeError) as error:
        print(f"couplet.bench: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    report = run(device, shape, options.rounds)
    print(json.dumps(report, indent=1) if options.json else markdown(report))
    return 0 if is_good(report) else 1
