"""A chart of every kind with its numbers, in the form that couplet.report gets from a report."""

import math


def axis(label="", **more):
    return {"label": label, **more}


def chart(name, kind, x=None, y=None, **more):
    return {
        "id": name,
        "section": "coupling",
        "title": f"Title of {name}",
        "kind": kind,
        "caption": "What is shown.",
        "x": x or axis("layer"),
        "y": y or axis("value"),
        **more,
    }


def line(name, y, group=0, style="line", marks=True, **more):
    return {"name": name, "group": group, "x": list(range(len(y))), "y": y, "style": style, "marks": marks, **more}


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


def matrix(name, cells, **more):
    labels = {"rows": "router row", "columns": "expert", "value": "M"}
    return chart(name, "map", cells=cells, **{"order": None, "log": False, **labels, **more})


def every_kind():
    diagonal = [[60000 if i == j else (i * 37 + j * 11) % 20000 for j in range(16)] for i in range(16)]
    diagonal[0][5] = None
    falling = [math.exp(-i / 6) for i in range(40)]
    return [
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
            y=axis("share of experts", percent=True, zero=True),
            series=[line("rows", [1.0, 1.0, 0.9]), line("columns", [1.0, 1.0, 0.9], 1), line("single", [0.5], 2)],
        ),
        chart(
            "ramp",
            "lines",
            series=[{**line(f"layer {g}", [g * v for v in (3, 2, 1)], None), "share": g / 15} for g in range(16)],
            ramp=["layer 0", "layer 15"],
        ),
        chart(
            "infinite",
            "lines",
            axis("layer", names=["encoder 0", "1", "2"]),
            axis("ratio", scale="log"),
            series=[line("largest", [2.0, None, 30.0], infinite=[1])],
        ),
        chart("nothing", "lines", series=[], caption="ERC is 0 at every alpha, in every layer."),
        chart(
            "dots",
            "lines",
            axis("erc.alpha"),
            axis("eps"),
            series=[line("runs", [0.5, 0.45, 0.4], style="dots"), line("mean", [0.48, 0.46, 0.41], 1, marks=False)],
        ),
        chart(
            "error-bars",
            "lines",
            axis("task", names=["arc", "piqa"]),
            axis("accuracy"),
            series=[line("model", [0.5, 0.6], style="dots", low=[0.4, 0.55], high=[0.6, 0.65])],
        ),
        matrix("matrix", diagonal, colours=[0, 60000]),
        matrix(
            "log-matrix", [[i * 4000.0 for i in range(8)]] * 2, log=True, colours=[0.1, 10.0], order=list("76543210")
        ),
        matrix("diverging", [[i - j for j in range(8)] for i in range(8)], diverging=True, colours=[-8, 8]),
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
    ]
