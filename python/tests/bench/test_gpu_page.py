"""The tables of docs/pytorch/gpu.md: measured ones from the page's reports, counted ones from fake tensors."""

import dataclasses
import json

import counting
import pytest
from conftest import ROOT, needs_counts
from counting import DEEPSEEK_V3, OLMOE, QWEN3

PAGE = (ROOT / "docs" / "pytorch" / "gpu.md").read_text()
REPORTS = [json.loads(line) for line in (ROOT / "docs" / "pytorch" / "gpu-h100.jsonl").read_text().splitlines()]
SHARES = [
    dataclasses.replace(shape, ep=ep, layout="fused")
    for shape, sizes in ((OLMOE, (1, 8)), (QWEN3, (1, 8)), (DEEPSEEK_V3, (1, 8, 64)))
    for ep in sizes
]


def short(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def row(*cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def check(rows):
    """Checks that the page has all rows, one after the other."""
    assert "\n".join(rows) in PAGE, "docs/pytorch/gpu.md should have these rows:\n" + "\n".join(rows)


def named(report):
    return f"{report['shape']['model']}, EP {report['shape']['ep']}"


def test_fused_gates_with_existing_gradients():
    """OLMoE on an H100: gates of 268 MB are read twice, their gradient is read and written once, at a copy's rate."""
    report = REPORTS[0]
    found, gates = report["training"], 64 * 1024 * 2048 * 2
    roofline, us = 4e-3 * gates / report["step"]["copy, GB/s"], found["erc.backward, kernels, us a layer"]
    kernels, host = found["erc.backward, kernels a layer"], found["erc.backward, host, us a layer"]
    check([row(named(report), short(roofline), short(us), f"{us / roofline:.1f}", round(kernels), short(host))])
    step = 6 * 1.3e9 * 4.2e6 / (64 * 989e12 * 0.4)
    assert f"{16e-4 * us / step:.1f} % of {step:.2f} s" in PAGE


def test_times():
    check(
        row(
            named(r),
            short(r["step"]["roofline, us a layer"]),
            short(r["parts"]["evaluation, kernels, us a layer"]),
            f"{r['parts']['evaluation, kernels a layer']:.0f}",
            short(r["parts"]["evaluation, host, us a layer"]),
            short(r["parts"]["noise, kernels, us a layer"]),
            short(r["parts"]["noise, host, us a layer"]),
            short(r["step"]["us a layer"]),
            f"{r['memory']['by the gates']:.3f}",
        )
        for r in REPORTS
    )


def test_the_pseudo_code():
    check(
        row(
            named(r),
            short(r["pseudo-code"]["erc_loss, us"]),
            short(r["pseudo-code"]["pseudo-code, us"]),
            f"{r['pseudo-code']['times as fast']:.2f}",
            short(r["graph"]["replay, us"]),
            f"{r['graph']['replay against eager, largest difference']:.1e}",
        )
        for r in REPORTS
        if "times as fast" in r["pseudo-code"]
    )


@pytest.mark.parametrize("report", REPORTS, ids=named)
def test_reports_are_good(report):
    assert all(c["right"] for c in report["correctness"]) and report["synchronisation"] == {"waits": "no"}


@needs_counts
def test_counts():
    """Every process draws the noise of all layers, so its kernels and bytes are divided by the number of layers."""
    rows, noise = [], {}
    for shape in SHARES:
        if shape.name not in noise:
            noise[shape.name] = counting.of_noise(dataclasses.replace(shape, ep=1, layout="stacked"))
        layer, drawn = counting.of_layer(shape, True), noise[shape.name]
        moved = drawn.bytes / shape.layers
        rows.append(
            row(
                f"{shape.name}, EP {shape.ep}",
                f"{layer.kernels + drawn.kernels / shape.layers:.1f}",
                layer.host_copies + drawn.host_copies,
                f"{layer.bytes / 1e6:,.0f}",
                f"{moved / 1e6:,.0f}",
                f"{(layer.bytes + moved) / shape.ideal_bytes(True):.2f}",
                f"{layer.operations / 1e12:.3g}",
                short(layer.peak / 1e6),
                f"{layer.peak / shape.gradient_bytes:.3f}",
            )
        )
    check(rows)


@needs_counts
def test_layouts():
    rows = []
    for shape in [dataclasses.replace(m, layout=k) for m in (OLMOE, QWEN3, DEEPSEEK_V3) for k in counting.LAYOUTS]:
        existing, fresh = counting.of_layer(shape, True), counting.of_layer(shape)
        forward, backward, kept = counting.of_loss(shape)
        megabytes = [f"{n / 1e6:,.0f}" for n in (existing.bytes, fresh.bytes, forward.bytes + backward.bytes)]
        kernels = [existing.kernels, fresh.kernels, f"{forward.kernels} + {backward.kernels}"]
        pairs = [cell for pair in zip(kernels, megabytes) for cell in pair]
        rows.append(row(shape.name, shape.layout, *pairs, short(kept / 1e6)))
    check(rows)
