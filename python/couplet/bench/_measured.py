"""Tables of what `python -m couplet.bench --json` measured, as docs/pytorch/gpu.md has them."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

from ..report import _files
from . import _counts, _estimate
from ._estimate import short as _us

Report = Dict[str, Any]


def _model(report: Report) -> str:
    return f"{report['shape']['model']}, EP {report['shape']['ep']}"


def _gpu(report: Report) -> _estimate.Gpu:
    """The estimate's, by the name that the driver has for it: 'NVIDIA H100 80GB HBM3, ...'."""
    return next(gpu for gpu in _estimate.GPUS if gpu.name.split()[0] in report["machine"]["device"])


def _shape(report: Report) -> _counts.Shape:
    found = report["shape"]
    shape = next(shape for shape in _counts.SHAPES.values() if shape.name == found["model"])
    return dataclasses.replace(shape, ep=found["ep"])


def existing(reports: List[Report]) -> str:
    """Fused gates, existing gradients: of the models that were trained."""
    rows = []
    for report in reports:
        found, step = report["training"], report["step"]
        if "left out" in found:
            continue
        shape = _shape(report)
        training = next(t for t in _estimate.TRAININGS if t.shape.name == shape.name)
        us, seconds = found["erc.backward, kernels, us a layer"], training.seconds(_gpu(report))
        roofline = max(
            shape.ideal_bytes(True) / step["copy, GB/s"] * 1e-3,
            shape.ideal_operations / step["product, TFLOP/s"] * 1e-6,
        )
        rows.append(
            [
                _model(report),
                _us(roofline),
                _us(us),
                f"{us / roofline:.1f}",
                f"{found['erc.backward, kernels a layer']:.0f}",
                _us(found["erc.backward, host, us a layer"]),
                f"{shape.layers * us * 1e-4 / seconds:.1f} %",
            ]
        )
    return _estimate.table(
        [
            "a layer of",
            "roofline, us",
            "its kernels, us",
            "times the roofline",
            "kernels",
            "its launches, us",
            "share of a step, estimated",
        ],
        rows,
    )


def times(reports: List[Report]) -> str:
    rows = []
    for report in reports:
        shape, parts, step = _shape(report), report["parts"], report["step"]
        rows.append(
            [
                _model(report),
                _us(step["roofline, us a layer"]),
                _us(_estimate.evaluation_us(shape, _gpu(report), False)),
                _us(parts["evaluation, kernels, us a layer"]),
                f"{parts['evaluation, kernels a layer']:.0f}",
                _us(parts["evaluation, host, us a layer"]),
                _us(_estimate.noise_us(shape, _gpu(report))),
                _us(parts["noise, kernels, us a layer"]),
                _us(parts["noise, host, us a layer"]),
                _us(step["us a layer"]),
                f"{report['memory']['by the gates']:.3f}",
            ]
        )
    return _estimate.table(
        [
            "a layer of",
            "roofline, us",
            "evaluation, estimated, us",
            "its kernels, us",
            "kernels",
            "its launches, us",
            "noise, estimated, us",
            "its kernels, us",
            "its launches, us",
            "`erc.backward`, us",
            "extra memory by the gates",
        ],
        rows,
    )


def pseudo_code(reports: List[Report]) -> str:
    rows = [
        [
            _model(r),
            _us(r["pseudo-code"]["erc_loss, us"]),
            _us(r["pseudo-code"]["pseudo-code, us"]),
            f"{r['pseudo-code']['times as fast']:.2f}",
            _us(r["graph"]["replay, us"]),
            f"{r['graph']['replay against eager, largest difference']:.1e}",
        ]
        for r in reports
        if "times as fast" in r["pseudo-code"]
    ]
    return _estimate.table(
        [
            "one layer of",
            "`erc_loss` and backward, us",
            "the pseudo-code, us",
            "times as fast",
            "evaluation in a CUDA graph, us",
            "against eager",
        ],
        rows,
    )


def page(path: str) -> str:
    """Of a file of reports, one a line. BadFile: it has none, or a line is no report."""
    reports = [_files.parse(line) for line in _files.read(path).splitlines()]
    if not reports:
        raise _files.BadFile("it is empty")
    try:
        return "\n\n".join((existing(reports), times(reports), pseudo_code(reports)))
    except Exception as error:
        raise _files.BadFile(
            f"a line of it is no report of couplet.bench --json: {type(error).__name__} {error}"
        ) from None
