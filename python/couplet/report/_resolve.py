"""The charts of a report with their numbers, from the JSON that the program writes and the list of charts
`assets/charts.json`. The page's script (assets/view.js) has the same rules; docs/formats.md, "Pages", has the rows."""

from __future__ import annotations

import base64
import binascii
import json
import math
import pathlib
import re
import struct
from typing import Any, Callable, Dict, List, NamedTuple, Optional

Json = Dict[str, Any]
Values = List[Optional[float]]
LINES, MARKED, WIDE = 8, 80, 30  # colours; points of a curve with marks; ratio of ends of a logarithmic axis
CELLS = 100_000  # largest number of map cells from which the ends of the colours are computed


class BadReport(Exception):
    """A fault of a report, as a sentence that names it."""


class Item(NamedTuple):
    """One part of a chart that is shown beside others: a checkpoint, or a whole report."""

    at: Json
    name: str


class Element(NamedTuple):
    """One element of a chart: a layer, a group of runs, a task."""

    item: Item
    at: Any
    place: int
    name: str
    panel: str = ""


def asset(name: str) -> str:
    """Returns the text of a file of assets/, which the package holds as data."""
    return (pathlib.Path(__file__).with_name("assets") / name).read_text(encoding="utf-8")


# ---- figures ----


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def member(value: Any, names: List[str], place: int = 0, panel: str = "") -> Any:
    """Returns the member at a path: "@" is the alpha that is shown, "*" every element, "#" the element's place, "$" its
    panel."""
    for k, name in enumerate(names):
        if name == "*":
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
            return [member(one, names[k + 1 :], place, panel) for one in inner]
        if isinstance(value, dict):
            name = panel if name == "$" else name
            key = name if name != "@" else "1" if "1" in value else next(iter(value), "")
            value = value.get(key)
        elif isinstance(value, list) and (name == "#" or name.isdigit()):
            at = place if name == "#" else int(name)
            value = value[at] if at < len(value) else None
        elif isinstance(value, list) and name == "length":
            value = len(value)
        else:
            return None
    return value


def read(e: Element, key: str) -> Any:
    """Returns the member of a key. A key begins at the element, or after "/" at its item."""
    return member(e.item.at if key[:1] == "/" else e.at, key.lstrip("/").split("."), e.place, e.panel)


def text_of(text: Any, item: Item) -> Any:
    """Returns the text, or for a text "/PATH" the member of the report at PATH."""
    return member(item.at, text[1:].split(".")) if str(text)[:1] == "/" else text


def value_of(e: Element, of: Json) -> Optional[float]:
    """Returns a number, infinity, or None."""
    if read(e, of["key"] + "_infinite") is True:
        return math.inf
    x, divisor = read(e, of["key"]), read(e, of["over"]) if "over" in of else 1
    if not is_number(x) or not is_number(divisor) or divisor == 0:
        return None
    return float(x) / float(divisor) if math.isfinite(x / divisor) else None


def run_name(path: str) -> str:
    """Returns the last part of a path. For a checkpoint that is named by its step, the part before it is included."""
    parts = path.rstrip("/").split("/")
    return "/".join(parts[-2:] if re.fullmatch(r"step-\d+", parts[-1]) else parts[-1:])


def items_of(kind: str, report: Json, of: str) -> List[Item]:
    if of == "routing":
        routing = report.get("routing")
        return [Item(routing, run_name(str(routing.get("model"))))] if isinstance(routing, dict) else []
    if of != kind:
        return []
    both = report.get("checkpoints")
    found = both if isinstance(both, list) else [report] if of != "inspect" or "layers" in report else []
    if not all(isinstance(one, dict) for one in found):
        raise BadReport("has checkpoints that are no objects")
    return [Item(one, run_name(str(one["checkpoint"])) if "checkpoint" in one else "") for one in found]


def name_of(one: Any, key: str) -> str:
    if not isinstance(one, dict):
        return key
    layer = None if one.get("layer") is None else f"{one['part']} {one['layer']}" if one.get("part") else one["layer"]
    source = "all" if one.get("source", "") is None else one.get("source")
    names = (one.get("name"), layer, source, one.get("setting"), one.get("group"), one.get("other"))
    return str(next((name for name in names if name is not None), key))


def elements_of(item: Item, each: str = "layers", panel: str = "") -> List[Element]:
    if each == "":
        return [Element(item, item.at, 0, item.name)]
    found = member(item.at, each.split("."))
    pairs = list(
        found.items() if isinstance(found, dict) else enumerate(found or []) if isinstance(found, list) else []
    )
    return [Element(item, one, place, name_of(one, str(key)), panel) for place, (key, one) in enumerate(pairs)]


def quantiles(values: List[Any]) -> Optional[Json]:
    """Returns quantiles as NumPy's, linear between neighbours."""
    x = sorted(float(v) for v in values if is_number(v) and math.isfinite(v))
    if not x:
        return None

    def at(share: float) -> float:
        i = min(int(share * (len(x) - 1)), len(x) - 1)
        return x[i] + (x[min(i + 1, len(x) - 1)] - x[i]) * (share * (len(x) - 1) - i)

    ends = {"low": x[0], "high": x[-1], "mean": sum(x) / len(x)}
    return {**ends, **{f"q{round(100 * share):02}": at(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)}}


def box_of(e: Element, chart: Json) -> Optional[Json]:
    box = read(e, chart["key"])
    if isinstance(box, dict):
        return box
    numbers = [float(v) for v in box or [] if is_number(v)]
    mean = sum(numbers) / len(numbers) if chart.get("over_mean") and numbers else 1.0
    return quantiles([v / mean for v in numbers]) if mean else None


# ---- forms ----


def curve_of(rows: List[Element], of: Json, places: List[str]) -> Json:
    by = {e.name: value_of(e, of) for e in rows}
    y = [by.get(name) for name in places]
    return {
        "x": list(range(len(places))),
        "y": [None if v == math.inf else v for v in y],
        "infinite": [k for k, v in enumerate(y) if v == math.inf],
    }


def has_value(curve: Json) -> bool:
    return bool(curve["infinite"]) or any(v is not None for v in curve["y"])


def band_of(rows: List[Element], of: Json, places: List[str]) -> Json:
    mean, sd = curve_of(rows, of, places), curve_of(rows, {**of, "key": of["sd"]}, places)

    def end(sign: int) -> Values:
        both = zip(mean["y"], sd["y"])
        return [None if v is None or s is None else v + sign * of["by"] * s for v, s in both]

    return {"name": of["name"], "group": -1, "x": mean["x"], "low": end(-1), "high": end(1)}


def places_of(rows: List[List[Element]]) -> List[str]:
    return list(dict.fromkeys(e.name for own in rows for e in own))


def line_charts(chart: Json, items: List[Item]) -> List[Json]:
    rows = [elements_of(item, chart.get("each", "layers")) for item in items]
    places = places_of(rows)
    lines = [of for of in chart["lines"] if any(has_value(curve_of(own, of, places)) for own in rows)]
    solid = [of for of in lines if not of.get("dashed")]
    if len(places) < 2 or not solid:
        return []
    coloured = sum(of["colour"] >= 0 for of in lines)
    split = len(items) > 1 and len(solid) > 1 and len(items) * coloured > 6
    return [line_chart(chart, items, rows, lines, only) for only in (solid if split else [None])]


def line_chart(chart: Json, items: List[Item], rows: List[List[Element]], lines: List[Json], only: Any) -> Json:
    """Returns a chart of lines. With one item each line has a colour, with several each item. `only`: a line and its
    dashed lines."""
    places, several, series = places_of(rows), len(items) > 1, []
    head = only or next(of for of in lines if not of.get("dashed"))
    shown = sorted(lines, key=lambda of: bool(of["colour"] < 0))
    for v, item in enumerate(items):
        for of in shown:
            dashed, grey = bool(of.get("dashed")), of["colour"] < 0
            if (only and of is not only and not (dashed and (grey or of["colour"] == only["colour"]))) or (
                grey and item is not items[-1]
            ):
                continue
            own = of["name"].replace(f"{only['name']}, ", "", 1) if only else of["name"]
            name = of["name"] if not several or grey else item.name if of is head else f"{item.name}, {own}"
            style = "dashed" if dashed or (several and of is not head) else "line"
            group = -1 if grey else v if several else of["colour"]
            series.append(
                {**curve_of(rows[v], of, places), "group": group, "name": name, "style": style, "marks": not dashed}
            )
        if "band" in chart and not several:
            series.append(band_of(rows[v], chart["band"], places))
    axis = {"label": "layer", **chart.get("x", {}), "names": places}
    series += rules_of(chart, items)
    return {**chart, "kind": "lines", "panel": only and only["name"], "series": series, "x": axis}


def rules_of(chart: Json, items: List[Item]) -> List[Json]:
    if "rule" not in chart:
        return []
    name, at = text_of(chart["rule"]["name"], items[0]), chart["rule"]["at"]
    return [{"name": name, "group": -1, "x": [0], "y": [at], "style": "rule"}]


def curve_charts(chart: Json, items: List[Item], panel: str = "") -> List[Json]:
    """Returns a curve for each element: over the array `at`, the names of an object of numbers, or the places of a
    list. The colours of "groups" are the colours of the report's groups."""
    series = []
    for v, item in enumerate(items):
        rows = elements_of(item, chart.get("each", "layers"), panel)
        names = [e.name for e in elements_of(item, "groups")] if chart.get("colours") == "groups" else None
        for k, e in enumerate(rows):
            n, at = (len(names), names.index(e.name) if e.name in names else -1) if names else (len(rows), k)
            one: Json = {"name": e.name if names else f"layer {e.name}", "group": at if names else v, "style": "line"}
            if len(items) > 1:
                one["name"] = None if k else item.name
            elif not names or n > LINES:
                one |= {"group": None, "share": at / (n - 1) if n > 1 else 0}
            series += [{**one, **curve} for of in chart.get("lines", [chart]) if (curve := curve_at(chart, of, e))]
    last = max((x for one in series for x in one["x"]), default=0)
    if "at" in chart:
        series = [points_of(one, last * chart["x"].get("from", 0)) for one in series]
    drawn = [one for one in series if any(y is not None for y in one["y"])]
    if not drawn:
        return []
    if "at" not in chart and all(y == 0 for one in drawn for y in one["y"]):
        sentence = f"{chart['y']['label']} is 0 at every {chart['x']['label']}, in every layer."
        return [{**chart, "kind": "lines", "series": [], "caption": sentence}]
    return [{**chart, "kind": "lines", "panel": panel, "series": drawn + rules_of(chart, items)}]


def curve_at(chart: Json, of: Json, e: Element) -> Optional[Json]:
    """Returns x, y, the ends of a band, and whether every point is marked."""
    values = read(e, of["key"])
    if isinstance(values, dict) and "at" not in chart:
        keys: List[Any] = sorted(values, key=float)
        values, x = [values[key] for key in keys], [float(key) for key in keys]
    elif isinstance(values, list):
        x = read(e, chart["at"]) if "at" in chart else list(range(len(values)))
    else:
        return None
    y = [y if is_number(y) and math.isfinite(y) else None for y in values]
    low, high = (read(e, of[end]) if end in of else None for end in ("low", "high"))
    return {"x": x, "y": y, "low": low, "high": high, "marks": len(x) <= MARKED}


def points_of(one: Json, first: float) -> Json:
    """Returns the points that have a number, from `first` on."""
    kept = [k for k, x in enumerate(one["x"]) if one["y"][k] is not None and x >= first]
    rows = {key: one[key] and [one[key][k] for k in kept] for key in ("x", "y", "low", "high")}
    return {**one, **rows, "marks": len(kept) <= MARKED}


def box_charts(chart: Json, items: List[Item]) -> List[Json]:
    rows = [elements_of(item, chart.get("each", "layers")) for item in items]
    places, boxes = places_of(rows), []
    for group, own in enumerate(rows):
        for e in own:
            box = box_of(e, chart)
            if box and is_number(box.get("q50")):
                boxes.append({**box, "group": group, "place": places.index(e.name), "name": e.name})
    if not boxes or len(places) < 2:
        return []
    axis = {"label": "layer", **chart.get("x", {}), "names": places}
    groups = [item.name for item in items] if len(items) > 1 else None
    return [{**chart, "kind": "boxes", "boxes": boxes, "groups": groups, "x": axis}]


def dot_charts(chart: Json, items: List[Item]) -> List[Json]:
    """Returns charts of points with error bars of two standard errors."""
    rows = [e for item in items for e in elements_of(item, chart.get("each", "layers"))]
    rows = [e for e in rows if value_of(e, chart["lines"][0]) is not None]
    places = [e.name for e in rows]
    series = []
    for of in chart["lines"]:
        one = {**curve_of(rows, of, places), "name": of["name"], "group": of["colour"], "style": "dots"}
        if "error" in of:
            errors = curve_of(rows, {"key": of["error"]}, places)["y"]
            for end, sign in (("low", -1), ("high", 1)):
                both = zip(one["y"], errors)
                one[end] = [None if y is None else min(max(y + sign * 2 * (s or 0), 0), 1) for y, s in both]
        series.append(one)
    return [{**chart, "kind": "lines", "series": series, "x": {"label": "", "names": places}}] if rows else []


def point_charts(chart: Json, items: List[Item], panel: str = "") -> List[Json]:
    """Returns a point for each element at the number `at`, a line through the means of elements that share a number,
    and a level for elements without one."""
    rows = [e for item in items for e in elements_of(item, chart.get("each", "layers"), panel)]
    known = [(value_of(e, {"key": chart["at"]}), y) for e in rows if (y := value_of(e, chart)) is not None]
    points = [(x, y) for x, y in known if x is not None]
    places = sorted({x for x, _ in points})
    if len(places) < 2:
        return []

    def mean(place: Optional[float]) -> float:
        return mean_of([y for x, y in known if x == place])

    line = {"name": "mean", "group": 0, "x": places, "y": [mean(x) for x in places], "marks": True}
    dots = {"name": "a run", "group": 1, "x": [x for x, _ in points], "y": [y for _, y in points], "style": "dots"}
    off = {"name": "off", "group": -1, "x": [0], "y": [mean(None)], "style": "rule"}
    wide = chart["x"].get("scale") == "wide" and 0 < places[0] * WIDE < places[-1]
    axis = {**chart["x"], "label": text_of(chart["x"]["label"], items[0]), "scale": "log" if wide else "linear"}
    series = [line, dots, *[off] * (len(points) < len(known))]
    return [{**chart, "kind": "lines", "panel": panel, "x": axis, "series": series}]


# ---- matrices: rows of numbers or None ----


def matrix_of(value: Any) -> List[Values]:
    """Returns the rows of a matrix, which is packed (docs/formats.md, "Pages"), or a list of rows of numbers, each of
    which may be null."""
    if isinstance(value, list):
        if not all(row is None or isinstance(row, list) for row in value):
            raise BadReport("has a matrix whose rows are no lists")
        columns = max((len(row) for row in value if row), default=0)
        rows = [row or [None] * columns for row in value]
        if any(len(row) != columns for row in rows):
            raise BadReport("has a matrix with rows of different lengths")
        return [[float(v) if is_number(v) else None for v in row] for row in rows]
    rows_, columns, low, high = (value.get(name) for name in ("rows", "columns", "low", "high"))
    if not all(isinstance(n, int) and 0 < n < 1 << 16 for n in (rows_, columns)) or not 0 < low <= high:
        raise BadReport("has a packed matrix whose rows, columns or range are not possible")
    try:
        data = base64.b64decode(value.get("data"), validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise BadReport("has a packed matrix whose data is not base64") from None
    if len(data) != 2 * rows_ * columns:
        raise BadReport(f"has a packed matrix of {len(data)} bytes; {rows_} x {columns} have {2 * rows_ * columns}")
    levels = struct.unpack(f"<{rows_ * columns}H", data)
    cells = [low * (high / low) ** ((q - 1) / 65534) if q else 0.0 for q in levels]
    return [list(cells[i * columns : (i + 1) * columns]) for i in range(rows_)]


def mean_of(values: List[Any]) -> float:
    finite = [v for v in values if v is not None]
    return sum(finite) / len(finite) if finite else math.nan


def over(v: Optional[float], divisor: float) -> Optional[float]:
    return None if v is None or not divisor > 0 else v / divisor


def by_diagonal(cells: List[Values]) -> Any:
    """Returns M over its mean diagonal (over its mean if that is 0), with rows and columns by falling diagonal."""
    diagonal = [row[i] or 0.0 for i, row in enumerate(cells)]
    scale = mean_of(diagonal) or mean_of([v for row in cells for v in row]) or 1.0
    order = sorted(range(len(cells)), key=lambda i: (-diagonal[i], i))
    return [[over(cells[i][j], scale) for j in order] for i in order], order


def by_rows(cells: List[Values]) -> Any:
    return [[over(v, mean_of(row)) for v in row] for row in cells], None


def by_independence(cells: List[Values]) -> Any:
    """Returns the tokens of both experts over their number under independence with the same number of pairs."""
    t = [[v or 0.0 for v in row] for row in cells]
    below = [(i, j) for i in range(len(t)) for j in range(i)]
    products = sum(t[i][i] * t[j][j] for i, j in below)
    factor = sum(t[i][j] for i, j in below) / products if products else 0.0
    n = range(len(t))
    return [[over(t[i][j], factor * t[i][i] * t[j][j]) if i != j else None for j in n] for i in n], None


def by_domain(layers: List[List[Values]], place: int) -> List[Values]:
    """Returns, for every layer, the shares of a domain over their mean over the domains that have tokens."""
    used = [s for s, shares in enumerate(layers[0]) if any(shares)]
    return [
        [over(v, mean_of([domains[s][j] for s in used])) for j, v in enumerate(domains[place])] for domains in layers
    ]


SCALED: Dict[str, Callable[[List[Values]], Any]] = {
    "diagonal": by_diagonal,
    "rows": by_rows,
    "independent": by_independence,
}


def plain(name: str) -> str:
    """Returns the name with - in place of all but letters and digits."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def map_charts(chart: Json, items: List[Item]) -> List[Json]:
    """Returns a chart for each matrix. All charts share one scale of colours."""
    made = []
    for item in items:
        for e in elements_of(item, chart.get("each", "layers")):
            value = read(e, chart["key"])
            if not value:
                continue
            domains = chart.get("scaled") == "domains"
            cells, order = (by_domain(value, e.place) if domains else matrix_of(value)), None
            if len(cells[0]) > 1 and chart.get("scaled") in SCALED:
                cells, order = SCALED[chart["scaled"]](cells)
            name = f"{item.name}: " if len(items) > 1 else ""
            ident = plain(f"{chart['id']} {name}{e.name}")
            if len(cells[0]) > 1:
                made.append(
                    {
                        **chart,
                        "kind": "map",
                        "id": ident,
                        "title": f"{name}{chart['title']} {e.name}",
                        "cells": cells,
                        "order": order,
                    }
                )
    colours = chart.get("colours") or colours_of([one["cells"] for one in made])
    log = chart.get("log") and colours[0] > 0 and (chart.get("diverging") or colours[1] > 8 * colours[0])
    return [{**one, "colours": colours, "log": bool(log)} for one in made]


def colours_of(maps: List[List[Values]]) -> List[float]:
    """Returns the ends of the colours: the 1 % and the 99.9 % quantile of all maps."""
    if not maps:
        return [0.0, 1.0]
    stride = -(-len(maps) * len(maps[0]) * len(maps[0][0]) // CELLS)
    flat = [[v for row in cells for v in row][::stride] for cells in maps]
    found = sorted(v for cells in flat for v in cells if v is not None and v > 0)
    if not found:
        return [0.0, 1.0]
    low, high = (found[int(share * (len(found) - 1))] for share in (0.01, 0.999))
    return [low, high] if high - low > 1e-6 * high else [low / 2, high * 1.5]


def panelled(form: Callable[[Json, List[Item], str], List[Json]]) -> Callable[[Json, List[Item]], List[Json]]:
    """Returns a function that makes the chart once for each name of the array `panels`."""

    def charts(chart: Json, items: List[Item]) -> List[Json]:
        panels = member(items[0].at, chart["panels"].split(".")) if "panels" in chart else [""]
        return [one for panel in panels or [] for one in form(chart, items, str(panel))]

    return charts


FORMS: Dict[str, Callable[[Json, List[Item]], List[Json]]] = {
    "lines": line_charts,
    "curves": panelled(curve_charts),
    "boxes": box_charts,
    "dots": dot_charts,
    "points": panelled(point_charts),
    "map": map_charts,
}


def kind_of(report: Json) -> str:
    """Returns the verb that wrote a JSON: inspect, routing, eval or compare."""
    if "comparisons" in report:
        return "compare"
    if "results" in report:
        return "eval"
    if "layers" in report or "checkpoints" in report:
        return "inspect"
    if "routing" in report:
        return "routing"
    raise BadReport("is not what couplet inspect, eval or compare write with --json or --html")


def alone(chart: Json) -> Json:
    """Returns a panel as a chart of its own."""
    if not chart.get("panel"):
        return chart
    return {**chart, "id": plain(f"{chart['id']} {chart['panel']}"), "title": f"{chart['title']}: {chart['panel']}"}


def charts_of(report: Json) -> List[Json]:
    """Returns all charts of a report that have a number, in the order of the list."""
    kind, charts = kind_of(report), []
    for chart in json.loads(asset("charts.json"))["charts"]:
        items = items_of(kind, report, chart["of"])
        if items and chart["form"] in FORMS:
            charts += [alone(one) for one in FORMS[chart["form"]](chart, items)]
    return charts
