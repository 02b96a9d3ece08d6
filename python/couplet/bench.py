"""Correctness, speed and memory of the coupling loss on this machine's accelerator, as a block to paste into an issue.

    python -m couplet.bench [--device cuda] [--shape olmoe] [--dtype bf16] [--rounds 20] [--json]

Without an accelerator it runs a small shape on the CPU and lists what was left out. Exit code 0: everything is within
its tolerance. 1: something is not. 2: it cannot run with these options. Every figure is measured."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import platform
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from . import attach, backend, erc_loss, hf, reference
from ._version import __version__

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PART_OF_MEMORY = 0.4  # largest share of free memory for parameters and gradients
MOST_LAYERS, MOST_KERNELS = 4, 6  # layers measured at once; kernels listed by name
TRAINED_LAYERS, TRAINED_TOKENS = 4, (8, 2048)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a model's MoE layers: n experts, each with a gate [D, d]."""

    name: str
    layers: int
    n: int
    d: int
    D: int


OLMOE = Shape("OLMoE-1B-7B", 16, 64, 2048, 1024)
QWEN3 = Shape("Qwen3-30B-A3B", 48, 128, 2048, 768)
DEEPSEEK_V3 = Shape("DeepSeek-V3", 58, 256, 7168, 2048)
SMALL = Shape("small", 2, 16, 256, 128)
SHAPES = {"olmoe": OLMOE, "qwen3": QWEN3, "deepseek-v3": DEEPSEEK_V3, "small": SMALL}


# ---- the device ----


class Device:
    """A device of torch. Its methods measure time and memory."""

    def __init__(self, name: str):
        self.device = torch.device(name)
        self.type = self.device.type
        self.module: Any = getattr(torch, self.type)

    @property
    def is_cuda(self) -> bool:
        """Returns whether the device is CUDA or ROCm."""
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
            "device": platform.processor() or platform.machine() or self.type,
        }
        if self.is_cuda:
            p = torch.cuda.get_device_properties(self.device)
            about["device"] = f"{p.name}, {p.total_memory / 2**30:.0f} GiB, capability {p.major}.{p.minor}"
            about["runtime"] = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        elif self.type == "xpu":
            about["device"] = str(self.module.get_device_name(self.device))
        return about

    def free_bytes(self) -> int:
        if hasattr(self.module, "mem_get_info"):
            return int(self.module.mem_get_info(self.device)[0])
        return 2**30 if self.type == "cpu" else 8 * 2**30

    def seconds(self, run: Callable[[], Any], waits: bool = True) -> float:
        """Returns the seconds of one call on an idle device. With `waits=False` the time ends when the last operation
        is queued."""
        self.synchronize()
        begun = time.perf_counter()
        run()
        if waits:
            self.synchronize()
        return time.perf_counter() - begun

    def peak_bytes(self, run: Callable[[], Any]) -> Optional[int]:
        """Returns the most bytes that `run` holds beside the bytes held before, or None where torch does not measure
        them."""
        if not hasattr(self.module, "reset_peak_memory_stats"):
            return None
        self.synchronize()
        before = self.module.memory_allocated(self.device)
        self.module.reset_peak_memory_stats(self.device)
        run()
        self.synchronize()
        return int(self.module.max_memory_allocated(self.device) - before)

    def kernels(self, run: Callable[[], Any]) -> Dict[str, Tuple[int, float]]:
        """Returns the calls and microseconds of each kernel that torch's profiler sees, by the first 90 characters of
        its name. The result is empty if the device is not CUDA or ROCm."""
        if not self.is_cuda:
            return {}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
            self.synchronize()
        found: Dict[str, Tuple[int, float]] = {}
        for event in profile.events() or ():
            if event.device_type.name == "CUDA":
                name = event.name.replace("void ", "").replace("at::native::", "")[:90]
                calls, us = found.get(name, (0, 0.0))
                found[name] = calls + 1, us + event.device_time_total
        return found


def default_device() -> str:
    """Returns the accelerator that torch finds, else the CPU."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # before PyTorch 2.6
        return "cuda" if torch.cuda.is_available() else "cpu"
    return str(accelerator.current_accelerator().type) if accelerator.is_available() else "cpu"


# ---- correctness ----

# Relative error of a norm, for loss and gradients. An operand of a product is rounded by half a unit in the last place
# u: f32 2^-24, TF32 2^-11, bf16 2^-9, f16 2^-12. Proxies, scaled responses and results are each rounded once. Sums of
# errors grow like a square root: about 2 u. The limit is 8 u, and 2^-17 for f32, whose sums have thousands of terms.
TOLERANCE = {"f32": 2.0**-17, "tf32": 2.0**-8, "bf16": 2.0**-6, "f16": 2.0**-9}
LAYOUTS = ("stacked", "list", "fused", "interleaved, [n, d, 2D]")
ALPHA = 0.950793  # far from every ratio of responses of `make_inputs`: rounding switches no hinge


@functools.lru_cache(maxsize=None)
def make_inputs() -> Tuple[Tensor, Tensor, Tensor]:
    """Returns router, gates and delta in f64. All dtypes can hold the values of router and gates."""
    g, n, D, d = torch.Generator().manual_seed(1), 16, 64, 128
    router, gates = (torch.randn(s, generator=g, dtype=torch.float64, device="cpu") for s in ((n, d), (n, D, d)))
    delta = 1 + 0.4 * (torch.rand(n, d, generator=g, dtype=torch.float32, device="cpu").double() - 0.5)
    return router.bfloat16().double(), (gates / d**0.5).bfloat16().double(), delta


@functools.lru_cache(maxsize=None)
def _wanted() -> Tuple[Tensor, ...]:
    """Returns loss and gradients of router and gates by the pseudo-code in f64."""
    router, gates, delta = make_inputs()
    leaves = router.clone().requires_grad_(), gates.clone().requires_grad_()
    loss = reference.erc_loss(*leaves, alpha=ALPHA, delta=delta)
    return (loss.detach(), *torch.autograd.grad(loss, leaves))


def _check(device: Device, dtype: torch.dtype, layout: str, name: str) -> Dict[str, Any]:
    router, gates, delta = make_inputs()
    up, half, rows = torch.ones_like(gates), None, slice(None)
    if layout == "fused":
        gates, half, rows = torch.cat((gates, up), 1), "first", slice(gates.shape[1])
    elif layout.startswith("interleaved"):
        gates = torch.stack((gates, up), 2).flatten(1, 2).mT.contiguous().mT
        half, rows = "interleaved", slice(0, None, 2)
    leaves = [t.to(device.device, dtype, copy=True).requires_grad_() for t in (router, gates)]
    matrices = list(leaves[1]) if layout == "list" else leaves[1]
    loss = erc_loss(leaves[0], matrices, alpha=ALPHA, delta=delta.float().to(device.device), gate_half=half)
    got = (loss.detach(), *torch.autograd.grad(loss, leaves))
    norm = torch.linalg.vector_norm
    pairs = zip((got[0], got[1], got[2][:, rows]), _wanted())
    errors = [float(norm(a.cpu().double() - want) / norm(want)) for a, want in pairs]
    is_right = all(error <= TOLERANCE[name] for error in errors)
    return {"name": f"{name}, {layout}", "errors": errors, "tolerance": TOLERANCE[name], "right": is_right}


def check(device: Device) -> List[Dict[str, Any]]:
    """Returns relative errors of loss and gradients against the pseudo-code in f64 on the CPU."""
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = False
        done = [_check(device, dtype, layout, name) for name, dtype in DTYPES.items() for layout in LAYOUTS]
        torch.backends.cuda.matmul.allow_tf32 = True
        return done + ([_check(device, torch.float32, "stacked", "tf32")] if device.is_cuda else [])
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# ---- time and memory ----


@dataclasses.dataclass(frozen=True)
class Bench:
    """The measurements: each method is a section of the report. ValueError says why a section is left out."""

    device: Device
    shape: Shape
    dtype: torch.dtype
    rounds: int

    @property
    def gate_bytes(self) -> int:
        """Returns the bytes of a layer's gates."""
        return self.shape.n * self.shape.D * self.shape.d * self.dtype.itemsize

    def median_us(self, run: Callable[[], Any], waits: bool = True) -> float:
        for _ in range(2):
            run()
        return statistics.median(self.device.seconds(run, waits) for _ in range(self.rounds)) * 1e6

    def parts_of(self, name: str, run: Callable[[], Any], layers: int) -> Dict[str, Any]:
        """Returns the time of a layer and the host's part of it. On CUDA and ROCm the result also lists the kernels,
        the longest ones by name."""
        found: Dict[str, Any] = {f"{name}, us a layer": self.median_us(run) / layers}
        found[f"{name}, host, us a layer"] = self.median_us(run, waits=False) / layers
        kernels = self.device.kernels(run)
        if kernels:
            found[f"{name}, kernels a layer"] = sum(calls for calls, _ in kernels.values()) / layers
            found[f"{name}, kernels, us a layer"] = sum(us for _, us in kernels.values()) / layers
        for kernel, (calls, us) in sorted(kernels.items(), key=lambda one: -one[1][1])[:MOST_KERNELS]:
            found[f"{name}: {kernel}"] = f"{us / layers:.4g} us a layer in {calls / layers:.3g} kernels"
        return found

    def model(self, most: int = MOST_LAYERS, fused: bool = False) -> nn.Module:
        """Returns a model of routers and gates with random numbers, with as many layers as fit. If fused, the gates
        share tensors with the up projections."""
        s, rows = self.shape, self.shape.D * (2 if fused else 1)
        each = (4 if fused else 2) * self.gate_bytes + 32 * s.n * s.d
        layers = min(s.layers, most, int(PART_OF_MEMORY * self.device.free_bytes() / each))
        if layers < 1:
            raise ValueError(f"a layer needs {each / 2**30:.1f} GiB, which do not fit")

        def make(*size: int) -> nn.ParameterList:
            each = (torch.randn(size, device=self.device.device, dtype=self.dtype) for _ in range(layers))
            return nn.ParameterList([nn.Parameter(t.mul_(s.d**-0.5)) for t in each])

        model = nn.Module()
        model.routers, model.gates = make(s.n, s.d), make(s.n, rows, s.d)
        return model

    def backward(self, fused: bool) -> Dict[str, Any]:
        """Measures `erc.backward` with its noise: into existing gradients if fused, else into fresh ones."""
        model = self.model(fused=fused)
        pairs = list(zip(model.routers, model.gates))  # type: ignore[arg-type]
        erc = attach(model, pairs, gate_half="first" if fused else None)
        for p in model.parameters() if fused else ():
            p.grad = torch.zeros_like(p)

        def run() -> None:
            if not fused:
                model.zero_grad(set_to_none=True)
            erc.next_step()
            erc.backward()

        found = {"layers": len(pairs), **self.parts_of("erc.backward", run, len(pairs))}
        extra = self.device.peak_bytes(run) if fused else None
        return found if extra is None else {**found, "memory beside gates and gradients, MB": extra / 1e6}

    def rates(self) -> Tuple[float, float]:
        """Returns, per microsecond, the bytes that a copy moves and the operations of a large product (f32 on the
        CPU)."""
        on_cpu, where = self.device.type == "cpu", self.device.device
        count, size = (1 << 24, 512) if on_cpu else (min(1 << 30, self.device.free_bytes() // 8), 8192)
        a = torch.ones(count, dtype=torch.uint8, device=where)
        b = torch.empty_like(a)
        copy = 2 * count / self.median_us(lambda: b.copy_(a))
        dtype = torch.float32 if on_cpu else self.dtype
        a, b = (torch.randn(size, size, dtype=dtype, device=where) for _ in range(2))
        return copy, 2 * size**3 / self.median_us(lambda: a @ b)

    def existing(self) -> Dict[str, Any]:
        """Measures gates fused with the up projections, whose gradients exist already. This is the layout of
        Transformers' models after their own backward pass. The roofline assumes that gates are read twice, and that
        their gradient is read and written."""
        found, (copy, product) = self.backward(fused=True), self.rates()
        roofline = max(4 * self.gate_bytes / copy, 6 * self.shape.n**2 * self.shape.D * self.shape.d / product)
        us = found.get("erc.backward, kernels, us a layer", found["erc.backward, us a layer"])
        about = {"copy, GB/s": copy / 1e3, "product, TFLOP/s": product / 1e6, "roofline, us a layer": roofline}
        return {**about, "times the roofline": us / roofline, **found}

    def training(self, **settings: Any) -> Dict[str, Any]:
        """Measures training steps of an OLMoE of TRAINED_LAYERS layers, with the loss and without, in turn. `settings`
        change the model."""
        if not settings and (self.shape != OLMOE or not self.device.is_cuda):
            raise ValueError("a model is trained with --shape olmoe on CUDA and ROCm alone")
        try:
            from transformers import OlmoeConfig, OlmoeForCausalLM
        except ImportError:
            raise ValueError("Transformers with OLMoE is not installed")
        config = OlmoeConfig(num_hidden_layers=TRAINED_LAYERS, **settings)
        tokens = TRAINED_TOKENS if self.device.is_cuda else (2, 16)
        with self.device.device:
            model = OlmoeForCausalLM(config).to(torch.bfloat16).train()
            ids = torch.randint(config.vocab_size, tokens, dtype=torch.int64, device=self.device.device)
        optimizer, erc = torch.optim.AdamW(model.parameters(), lr=1e-4), hf.attach(model)

        def step(with_loss: bool) -> None:
            model(input_ids=ids, labels=ids).loss.backward()
            if with_loss:
                erc.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        def backward() -> None:
            erc.next_step()
            erc.backward()

        for with_loss in (True, False, True, False):
            step(with_loss)
        pairs = [[self.device.seconds(lambda: step(k)) for k in (False, True)] for _ in range(self.rounds)]
        without, more = statistics.median(a for a, _ in pairs), statistics.median(b - a for a, b in pairs)
        model(input_ids=ids, labels=ids).loss.backward()
        return {
            "layers": TRAINED_LAYERS,
            "tokens": ids.numel(),
            "without, ms": without * 1e3,
            "with, more, ms": more * 1e3,
            "share of a step": more / without,
            **self.parts_of("erc.backward", backward, TRAINED_LAYERS),
        }

    def pseudo_code(self) -> Dict[str, Any]:
        """Measures one layer with its noise, loss and gradients, by the operator and by the pseudo-code."""
        needed = 24 * self.shape.n**2 * self.shape.D + 4 * self.gate_bytes
        if needed > self.device.free_bytes():
            raise ValueError(f"the pseudo-code needs about {needed / 2**30:.0f} GiB")
        router, gate = self.model(1).parameters()

        def run(loss: Callable[..., Tensor]) -> None:
            router.grad = gate.grad = None
            torch.autograd.backward(loss(router, gate))

        found = self.parts_of("erc_loss", lambda: run(erc_loss), 1)
        theirs = self.median_us(lambda: run(reference.erc_loss))
        return {"pseudo-code, us": theirs, "times as fast": theirs / found["erc_loss, us a layer"], **found}


# ---- the report ----


def run(bench: Bench) -> Dict[str, Any]:
    """Returns the report: its sections by name."""
    about = {**dataclasses.asdict(bench.shape), "dtype": str(bench.dtype)[6:], "rounds": bench.rounds}
    report = {"machine": bench.device.describe(), "shape": about, "correctness": check(bench.device)}
    for title, measure in {
        "fused gates, existing gradients": bench.existing,
        "stacked gates, fresh gradients": lambda: bench.backward(fused=False),
        "training": bench.training,
        "pseudo-code": bench.pseudo_code,
    }.items():
        try:
            report[title] = measure()
        except ValueError as error:
            report[title] = {"left out": str(error)}
    return report


def markdown(report: Dict[str, Any]) -> str:
    lines = ["### python -m couplet.bench"]
    for title, found in report.items():
        lines += ["", f"#### {title}", ""]
        if title == "correctness":
            lines += ["| against f64 on the CPU | loss | router | gates | tolerance | |", "| --- " * 6 + "|"]
            for c in found:
                figures = [f"{value:.1e}" for value in (*c["errors"], c["tolerance"])]
                lines.append(" | ".join([f"| {c['name']}", *figures, "right |" if c["right"] else "**wrong** |"]))
        else:
            lines += [f"* {k}: {v:.4g}" if isinstance(v, float) else f"* {k}: {v}" for k, v in found.items()]
    return "\n".join(lines)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser("python -m couplet.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", help="cuda, xpu, mps, cpu; default: what torch finds")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="default: olmoe; small on the CPU")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        device = Device(options.device or default_device())
        torch.empty(1, dtype=torch.float32, device=device.device)
        shape = SHAPES[options.shape or ("small" if device.type == "cpu" else "olmoe")]
        report = run(Bench(device, shape, DTYPES[options.dtype], options.rounds))
    except (ValueError, RuntimeError, AssertionError, AttributeError) as error:
        print(f"couplet.bench: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(report, indent=1) if options.json else markdown(report))
    return 0 if all(c["right"] for c in report["correctness"]) else 1


if __name__ == "__main__":
    sys.exit(main())
