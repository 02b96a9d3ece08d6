"""A series block with a chart of every kind, as `couplet ... --json FILE --series` writes it."""

import base64
import math
import struct


def axis(label="", **more):
    return {
        "label": label,
        "unit": "",
        "scale": "linear",
        "from": None,
        "to": None,
        "zero": False,
        "percent": False,
        "whole": False,
        **more,
    }


def chart(name, kind, x=None, y=None, **more):
    return {
        "id": name,
        "section": "coupling",
        "title": f"Title of {name}",
        "caption": "What is shown.",
        "kind": kind,
        "x": x or axis("layer"),
        "y": y or axis("value"),
        **more,
    }


def line(name, y, group=0, style="line", marks=True, **more):
    return {"name": name, "group": group, "x": list(range(len(y))), "y": y, "style": style, "marks": marks, **more}


def levels(values):
    return base64.b64encode(struct.pack(f"<{len(values)}H", *values)).decode()


def heat(rows, columns, values, **more):
    return {
        "rows": rows,
        "columns": columns,
        "low": 0.0,
        "high": 2.0,
        "scale": "linear",
        "diverging": False,
        "data": levels(values),
        "row_label": "router row",
        "column_label": "expert",
        **more,
    }


def box(name, group, at):
    return {
        "name": name,
        "group": group,
        "n": 64,
        "q05": at,
        "q25": at + 1,
        "q50": at + 1.5,
        "q75": at + 2,
        "q95": at + 3,
        "low": at - 1,
        "high": at + 5,
        "mean": at + 1.6,
    }


def every_kind():
    diagonal = [60000 if i == j else (i * 37 + j * 11) % 20000 for i in range(16) for j in range(16)]
    diagonal[5] = 65535
    falling = [math.exp(-i / 6) for i in range(40)]
    return {
        "series": {
            "version": 1,
            "charts": [
                chart(
                    "bands",
                    "lines",
                    y=axis("mean κ", zero=True),
                    series=[
                        line("vanilla", [0.1, 0.12, None, 0.13, 0.11], 0),
                        line("ERC, alpha 1", [0.6, 0.66, 0.7, 0.71, 0.69], 1, low=[0.5] * 5, high=[0.8] * 5),
                        line("chance", [0.2] * 5, 2, "dashed", False),
                        line("bound", [1.0], -1, "rule", False),
                        {"name": None, "group": -1, "x": [0, 1, 2, 3, 4], "low": [0.05] * 5, "high": [0.3] * 5},
                    ],
                    x=axis("layer", whole=True),
                    notes=["A curve is missing where a layer has no number."],
                ),
                chart(
                    "logarithm",
                    "lines",
                    axis("step", whole=True),
                    axis("ERC", scale="log", zero=True),
                    series=[line("with ERC", [0.5, 0.01, 0, 0, 0]), line("vanilla", [0.5, 0.4, 0.45, 0.5, 0.3], 1)],
                ),
                chart(
                    "no-zero",
                    "lines",
                    axis("tokens", scale="log"),
                    axis("loss", scale="log"),
                    series=[
                        {
                            "name": "run",
                            "group": 0,
                            "x": [2.0**i for i in range(40)],
                            "y": falling,
                            "style": "line",
                            "marks": True,
                        }
                    ],
                ),
                chart(
                    "equal",
                    "lines",
                    y=axis("share of experts", percent=True, **{"from": 0, "to": 1}),
                    series=[
                        line("rows", [1.0, 1.0, 0.9]),
                        line("columns", [1.0, 1.0, 0.9], 1),
                        line("single", [0.5], 2),
                    ],
                ),
                chart(
                    "ramp",
                    "lines",
                    series=[
                        {**line(f"layer {g}", [g * v for v in (3, 2, 1)], None), "share": g / 15} for g in range(16)
                    ],
                    ramp=["layer 0", "layer 15"],
                ),
                chart(
                    "infinite",
                    "lines",
                    axis("layer", names=["encoder 0", "1", "2"]),
                    axis("ratio", scale="log"),
                    series=[line("largest", [2.0, None, 30.0], infinite=[1])],
                ),
                chart("nothing", "lines", series=[], notes=["ERC is 0 at every alpha, in every layer."]),
                chart(
                    "dots",
                    "lines",
                    axis("erc.alpha"),
                    axis("eps"),
                    series=[
                        line("runs", [0.5, 0.45, 0.4], style="dots"),
                        line("mean", [0.48, 0.46, 0.41], 1, marks=False),
                    ],
                ),
                chart(
                    "error-bars",
                    "lines",
                    axis("task", names=["arc", "piqa"]),
                    axis("accuracy"),
                    series=[line("model", [0.5, 0.6], style="dots", low=[0.4, 0.55], high=[0.6, 0.65])],
                ),
                chart("matrix", "heat", heat=heat(16, 16, diagonal, boxes=[[0, 0], [3, 4]])),
                chart(
                    "log-matrix",
                    "heat",
                    heat=heat(
                        2,
                        8,
                        [i * 4000 for i in range(16)],
                        low=0.01,
                        high=100.0,
                        scale="log",
                        zeros=True,
                        colours=[0.1, 10.0],
                        value_label="M",
                        column_names=[7, 6, 5, 4, 3, 2, 1, 0],
                    ),
                ),
                chart(
                    "diverging",
                    "heat",
                    heat=heat(8, 8, [i * 1000 for i in range(64)], low=-1, high=0.5, diverging=True),
                ),
                chart(
                    "t-sne",
                    "points",
                    axis(),
                    axis(),
                    points={
                        "x": [math.cos(i) * (i % 3 + 1) for i in range(60)],
                        "y": [math.sin(i) for i in range(60)],
                        "group": [i % 3 for i in range(60)],
                    },
                    groups=["0", "4", "8"],
                ),
                chart(
                    "load",
                    "points",
                    axis("share of tokens", percent=True),
                    axis("response"),
                    points={
                        "x": [0.1, 0.2, 0.3],
                        "y": [1, 2, None],
                        "group": None,
                        "size": [1, 4, 9],
                        "names": ["a", "b", "c"],
                    },
                ),
                chart(
                    "boxes",
                    "boxes",
                    axis("layer", names=list("012345")),
                    axis("norm"),
                    boxes=[box(str(n), g, n / 2 + g) for n in range(6) for g in (0, 1)],
                    groups=["vanilla", "ERC"],
                ),
                chart(
                    "one-box",
                    "boxes",
                    axis(),
                    axis("norm", zero=True),
                    boxes=[{**box("encoder", 0, 1), "mean": None}, {"name": "none", "group": 0, "n": 0}],
                ),
            ],
        }
    }
