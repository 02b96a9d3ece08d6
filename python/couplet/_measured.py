"""Tables of what `python -m couplet.bench --json` measured, as docs/gpu.md has them."""
from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

from . import _counts, _estimate, _files

Report = Dict[str, Any]


def _us(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _model(report: Report) -> str:
    return f"{report['shape']['model']}, EP {report['shape']['ep']}"


def _gpu(report: Report) -> _estimate.Gpu:
    """The estimate's, by the name that the driver has for it: 'NVIDIA H100 80GB HBM3, ...'."""
    return next(gpu for gpu in _estimate.GPUS if gpu.name.split()[0] in report["machine"]["device"])


def times(reports: List[Report]) -> str:
    rows = []
    for report in reports:
        name = report["shape"]["model"]
        shape = dataclasses.replace(next(s for s in _counts.SHAPES.values() if s.name == name), ep=report["shape"]["ep"])
        parts, step = report["parts"], report["step"]
        rows.append([_model(report), _us(step["roofline, us a layer"]),
                     _us(_estimate.evaluation_us(shape, _gpu(report))), _us(parts["evaluation, kernels, us a layer"]),
                     f"{parts['evaluation, kernels a layer']:.0f}", _us(parts["evaluation, host, us a layer"]),
                     _us(_estimate.noise_us(shape, _gpu(report))), _us(parts["noise, kernels, us a layer"]),
                     _us(parts["noise, host, us a layer"]), _us(step["us a layer"]),
                     f"{report['memory']['by the gates']:.3f}"])
    return _estimate.table(["a layer of", "roofline, us", "evaluation, estimated, us", "its kernels, us", "kernels",
                            "its launches, us", "noise, estimated, us", "its kernels, us", "its launches, us",
                            "`erc.backward`, us", "extra memory by the gates"], rows)


def pseudo_code(reports: List[Report]) -> str:
    rows = [[_model(r), _us(r["pseudo-code"]["erc_loss, us"]), _us(r["pseudo-code"]["pseudo-code, us"]),
             f"{r['pseudo-code']['times as fast']:.2f}", _us(r["graph"]["replay, us"]),
             f"{r['graph']['replay against eager, largest difference']:.1e}"]
            for r in reports if "times as fast" in r["pseudo-code"]]
    return _estimate.table(["one layer of", "`erc_loss` and backward, us", "the pseudo-code, us", "times as fast",
                            "evaluation in a CUDA graph, us", "against eager"], rows)


def page(path: str) -> str:
    """Of a file of reports, one a line. BadFile: it has none, or a line is no report."""
    reports = [_files.parse(line) for line in _files.read(path).splitlines()]
    if not reports:
        raise _files.BadFile("it is empty")
    try:
        return times(reports) + "\n\n" + pseudo_code(reports)
    except Exception as error:
        raise _files.BadFile(f"a line of it is no report of couplet.bench --json: {type(error).__name__} {error}") from None
