"""Charts as matplotlib figures: lines, maps, points and boxes. _resolve.py finds them with their numbers in a report."""

from __future__ import annotations

import textwrap
import unicodedata
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar, Union

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

Json = Dict[str, Any]  # an object of the file
Kind = TypeVar("Kind")
Floats = NDArray[np.float64]
# Okabe and Ito (Color Universal Design, 2008), with grey in place of yellow: the colours of the pages.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a8a")
INK, MUTED, AXIS, GRID, NONE, NO_VALUE = "#1c1e21", "#5a6068", "#80868f", "#e6e8eb", "#9aa0a8", "#d9dce0"
WIDTH, HEIGHT = 5.4, 3.5  # inches
LONGEST_NAME, MOST_NAMES, MARKED_POINTS = 44, 12, 80
STYLE: Json = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.edgecolor": AXIS,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "couplet",
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
}


class CannotDraw(Exception):
    """A fault of the input, as a sentence that names it."""


# ---- values ----


def text(value: Any, longest: Optional[int] = None) -> str:
    """Returns one line without control characters; a longer one is cut in its middle."""
    line = "" if value is None else str(value).encode("utf-8", "replace").decode()
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Cs", "Co", "Cn") else c for c in line).strip()
    if longest and len(line) > longest:
        line = f"{line[: longest // 2 - 1]}…{line[-(longest // 2) :]}"
    return line


def numbers(value: Any, where: str) -> Floats:
    """Returns a list of numbers, null as NaN."""
    if not isinstance(value, list) or any(
        isinstance(one, bool) or not isinstance(one, (int, float, type(None))) for one in value
    ):
        raise CannotDraw(f"{where} must be a list of numbers and null")
    array = np.array([np.nan if one is None else float(one) for one in value], dtype=float)
    return np.where(np.isfinite(array), np.clip(array, -1e300, 1e300), np.nan)


def member(value: Any, name: str, kind: Union[Type[Kind], Tuple[Type[Kind], ...]], where: str) -> Kind:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise CannotDraw(f"{where} has no {name}" if found is None else f"{where} has a {name} of the wrong type")
    return found


def same_length(arrays: Dict[str, Any], where: str) -> None:
    lengths = {name: len(array) for name, array in arrays.items() if array is not None}
    if len(set(lengths.values())) > 1:
        raise CannotDraw(f"{where}: " + ", ".join(f"{name} has {n} entries" for name, n in lengths.items()))


# ---- colours ----


def ramp(share: Any) -> Any:
    """Returns the colour at `share` of Viridis, without its end that is near white."""
    share = share if isinstance(share, (int, float)) else 0
    return matplotlib.colormaps["viridis"](0.85 * min(max(share, 0), 1))


def palette(groups: List[int]) -> Dict[int, Any]:
    """Returns the colour of each group: one of COLOURS, or one of the ramp if there are more groups. Groups below 0 are
    grey."""
    classes = sorted({group for group in groups if group >= 0})
    if all(group < len(COLOURS) for group in classes):
        chosen = {group: COLOURS[group] for group in classes}
    else:
        chosen = {group: ramp(i / (len(classes) - 1)) for i, group in enumerate(classes)}
    return {**chosen, **{group: NONE for group in groups if group < 0}}


def group_name(chart: Json, group: int) -> str:
    names = chart.get("groups")
    if isinstance(names, list) and 0 <= group < len(names):
        return text(names[group], LONGEST_NAME)
    return text(group, LONGEST_NAME)


# ---- axes ----


def axis_label(axis: Json) -> str:
    return text(axis.get("label"), 90)


def short(value: float, _place: Any = None) -> str:
    """Returns thousands as k, millions as M, (American) billions as B."""
    unit, name = next((one for one in ((1e9, "B"), (1e6, "M"), (1e3, "k")) if abs(value) >= one[0]), (1.0, ""))
    return f"{value / unit:.3g}{name}".replace("-", "−")


def plain(value: float, _place: Any = None) -> str:
    """Returns the label of a mark on a logarithmic axis."""
    power = np.log10(value) if value > 0 else 0
    if abs(power) > 3.5 and abs(power - round(power)) < 1e-9:
        return "10" + str(round(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:g}".replace("-", "−")


def set_log_scale(axes: Axes, name: str, axis: Json, values: Floats) -> None:
    """Makes the axis logarithmic. If 0 occurs or must be shown, 0 lies one step below the smallest power of ten."""
    set_scale, at = getattr(axes, f"set_{name}scale"), getattr(axes, f"{name}axis")
    positive = values[values > 0]
    if not positive.size:
        return
    if axis.get("zero") or (values == 0).any():
        low, high = 10.0 ** np.floor(np.log10(positive.min())), float(positive.max())
        set_scale("symlog", linthresh=low, linscale=0.5)
        step = max(1, int(np.ceil(np.log10(high / low) / 6)))
        powers = np.arange(np.log10(low), np.log10(high) + 1, step)
        at.set_major_locator(ticker.FixedLocator([0.0, *(10.0**powers)]))
        at.set_minor_locator(ticker.NullLocator())
        getattr(axes, f"set_{name}lim")(-0.08 * low, high * 1.4)
    else:
        set_scale("log")
        if positive.max() < 30 * positive.min():  # few powers of ten would be labelled
            at.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        at.set_minor_formatter(ticker.NullFormatter())
    at.set_major_formatter(ticker.FuncFormatter(plain))


def set_places(axes: Axes, name: str, names: List[Any], most: int) -> None:
    """Sets an axis of the places 0, 1, ... with as many of their names as fit."""
    names = [text(one, 24) for one in names]
    every = max(1, -(-len(names) // most))
    turned = name == "x" and sum(map(len, names[::every])) > 80
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if turned else {}
    getattr(axes, f"set_{name}ticks")(range(0, len(names), every), names[::every], **slanted)


def set_axis(axes: Axes, name: str, axis: Any, values: Floats) -> None:
    """Sets label, scale, range and ticks of axis `name` ("x" or "y"), which shows `values`."""
    axis = axis if isinstance(axis, dict) else {}
    getattr(axes, f"set_{name}label")("\n".join(textwrap.wrap(axis_label(axis), 40 if name == "y" else 70)))
    if isinstance(axis.get("names"), list):
        return set_places(axes, name, axis["names"], 24)
    log = axis.get("scale") == "log"
    values = values[np.isfinite(values)]
    if log:
        set_log_scale(axes, name, axis, values)
    elif axis.get("zero") and values.size:
        least, most = float(min(values.min(), 0)), float(max(values.max(), 0))
        room = 0.05 * (most - least) or 1.0
        bottom = least - room if least < 0 else -0.1 * room
        top = min(most + room, 1.0) if axis.get("percent") and most <= 1 else most + room
        getattr(axes, f"set_{name}lim")(bottom, top if most > 0 else 0)
    at = getattr(axes, f"{name}axis")
    if axis.get("short"):
        at.set_major_formatter(ticker.FuncFormatter(short))
    elif not log and axis.get("whole"):
        at.set_major_locator(ticker.MaxNLocator(integer=True))
    elif not log and axis.get("percent"):
        at.set_major_formatter(ticker.PercentFormatter(xmax=1, symbol=" %"))


# ---- figures ----


def new_figure(chart: Json, width: float = WIDTH, height: float = HEIGHT) -> Tuple[Figure, Axes]:
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.04)
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    return figure, figure.subplots()


def set_head(figure: Figure, chart: Json, entries: List[Tuple[Any, str]]) -> None:
    """Sets the title, and below it the legend in as many columns as fit; both are above the axes."""
    title = "\n".join(textwrap.wrap(text(chart.get("title")), int(figure.get_figwidth() * 10)))
    bold: Json = {"weight": "bold", "size": 10}
    entries = [(handle, name if not name.startswith("_") else f" {name}") for handle, name in entries if name]
    if not entries:
        figure.suptitle(title, x=0.015, ha="left", **bold)
        return
    for columns in range(min(len(entries), 8), 0, -1):
        legend = figure.legend(
            *zip(*entries),
            loc="outside upper left",
            ncols=columns,
            title=title,
            title_fontproperties=bold,
            alignment="left",
            frameon=False,
            borderaxespad=0.1,
            columnspacing=1.4,
            handlelength=1.8,
            handletextpad=0.5,
            labelcolor=INK,
        )
        if columns == 1 or legend.get_window_extent().width < 0.98 * figure.bbox.width:
            return
        legend.remove()


def line_style(one: Json, repeats: int) -> Any:
    """Returns the line style. repeats: number of series of equal points drawn below, which show in the gaps of this
    series."""
    if one.get("style") == "dots":
        return "none"
    if one.get("style") == "dashed":
        return (0, (5, 3))
    return (3 * (repeats - 1), (3, 6)) if repeats else "-"


def read_series(chart: Json) -> List[Json]:
    """Returns the entries of `series` with arrays in place of lists."""
    found: List[Json] = []
    for i, one in enumerate(member(chart, "series", list, "it")):
        where = f"series {i}"
        if not isinstance(one, dict):
            raise CannotDraw(f"{where} must be an object")
        names = ("x", "y", "low", "high", "infinite")
        x, y, low, high, infinite = (
            None if one.get(name) is None else numbers(one[name], f"{where}, {name}") for name in names
        )
        shown = low if y is None and high is not None else y
        if shown is None:
            raise CannotDraw(f"{where} has no y")
        length = len(shown)
        x = np.arange(length, dtype=float) if x is None else x
        is_rule = one.get("style") == "rule"
        same_length({"y": y} if is_rule else {"x": x, "y": y, "low": low, "high": high}, where)
        found.append(
            {
                **one,
                "x": x,
                "y": np.full(length, np.nan) if y is None else y,
                "low": low,
                "high": high,
                "infinite": infinite if infinite is not None else np.empty(0),
                "is_rule": is_rule,
            }
        )
    return found


def draw_line(axes: Axes, one: Json, colour: Any, repeats: int) -> Optional[Union[Line2D, Patch]]:
    """Draws one series with its band; returns its handle for the legend."""
    x, y, handle = one["x"], one["y"], None
    dots = one.get("style") == "dots"
    if one["low"] is not None and one["high"] is not None and dots:
        axes.vlines(x, one["low"], one["high"], color=colour, linewidth=1.2)
    elif one["low"] is not None and one["high"] is not None:
        axes.fill_between(x, one["low"], one["high"], color=colour, alpha=0.2, linewidth=0)
        handle = Patch(color=colour, alpha=0.3, linewidth=0) if np.isfinite(one["low"]).any() else None
    if one["is_rule"]:
        rule: Json = {"color": AXIS, "linewidth": 1.0, "linestyle": (0, (2, 2))}
        if not y.size or np.isnan(y[0]):
            return None
        axes.axhline(y[0], **rule)
        return Line2D([], [], **rule)
    for place in one["infinite"]:
        axes.annotate("∞", (place, 0.98), xycoords=("data", "axes fraction"), color=colour, ha="center", va="top")
    points = int(np.isfinite(y).sum())
    if not points:
        return handle
    marked = dots or points == 1 or (one.get("marks") and len(y) <= MARKED_POINTS)
    style: Json = {
        "color": colour,
        "linestyle": line_style(one, repeats),
        "marker": "o" if marked else "none",
        "markeredgewidth": 0,
        "alpha": 0.75 if dots else 1.0,
        "markersize": 4.5 if dots else 3.5,
    }
    axes.plot(x, y, **style, zorder=3, clip_on=not marked)
    return Line2D([], [], **style)


def legend_of_lines(drawn: List[Tuple[Json, Any]]) -> List[Tuple[Any, str]]:
    """Returns the legend of the series that have a name; with many on the ramp, only of the first and the last."""
    named = [(one, handle) for one, handle in drawn if handle and one.get("name")]
    on_ramp = [one for one, _ in named if one.get("group") is None and "share" in one]
    if len(on_ramp) > MOST_NAMES:
        ends, inner = {id(on_ramp[0]): "", id(on_ramp[-1]): "… "}, {id(one) for one in on_ramp[1:-1]}
        named = [(one, handle) for one, handle in named if id(one) not in inner]
        return [(handle, ends.get(id(one), "") + text(one["name"], LONGEST_NAME)) for one, handle in named]
    return [(handle, text(one["name"], LONGEST_NAME)) for one, handle in named]


def draw_lines(chart: Json) -> Figure:
    series, drawn = read_series(chart), []
    seen: Counter[Tuple[bytes, bytes]] = Counter()
    figure, axes = new_figure(chart, WIDTH, HEIGHT if series else 1.2)
    groups = [one["group"] if isinstance(one.get("group"), int) else i for i, one in enumerate(series)]
    colours = palette([group for group, one in zip(groups, series) if "share" not in one])
    for one, group in zip(series, groups):
        points = (one["x"].tobytes(), one["y"].tobytes())
        colour = ramp(one["share"]) if "share" in one else colours[group]
        drawn.append((one, draw_line(axes, one, colour, seen[points])))
        seen[points] += 1
    if series:
        values = [one[name] for one in series for name in ("y", "low", "high") if one[name] is not None]
        places = [one["x"] for one in series if not one["is_rule"]]
        set_axis(axes, "x", chart.get("x"), np.concatenate(places or [[]]))
        set_axis(axes, "y", chart.get("y"), np.concatenate(values))
    else:
        axes.set_axis_off()
        reason = "\n".join(textwrap.wrap(text(chart.get("caption")), int(WIDTH * 17)))
        figure.supxlabel(reason, x=0.015, ha="left", fontsize=7.5, color=MUTED)
    set_head(figure, chart, legend_of_lines(drawn))
    return figure


# ---- maps ----


def draw_map(chart: Json) -> Figure:
    """Draws a matrix, `cells`. `colours` are the numbers of the first and the last colour."""
    values = np.array(chart["cells"], dtype=float)
    rows, columns = values.shape
    is_square = 0.5 <= rows / columns <= 2
    figure, axes = new_figure(chart, *((4.6, 4.4) if is_square else (WIDTH, HEIGHT)))
    colours = matplotlib.colormaps["RdBu_r" if chart.get("diverging") else "viridis"].with_extremes(bad=NO_VALUE)
    low, high = chart["colours"]
    scale = matplotlib.colors.LogNorm(low, high) if chart["log"] else matplotlib.colors.Normalize(low, high)
    repeat = max(1, 1200 // max(rows, columns))  # viewers blur a small image
    cells = np.kron(np.clip(values, low, high), np.ones((repeat, repeat)))
    image = axes.imshow(
        cells,
        norm=scale,
        cmap=colours,
        interpolation="none",
        aspect="equal" if is_square else "auto",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )
    axes.grid(False)
    for name, label in (("x", chart["columns"]), ("y", chart["rows"])):
        getattr(axes, f"set_{name}label")(text(label))
        if chart["order"]:
            set_places(axes, name, [str(i) for i in chart["order"]], 16)
        else:
            getattr(axes, f"{name}axis").set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 4, 5, 8, 10]))
    bar = figure.colorbar(image, ax=axes, shrink=0.85 if is_square else 1.0, label=text(chart["value"], 60))
    bar.outline.set_visible(False)
    if chart["log"]:
        bar.ax.yaxis.set_major_formatter(ticker.FuncFormatter(plain))
        if high < 300 * low:  # powers of ten alone would be few labels
            bar.ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    set_head(figure, chart, [])
    return figure


# ---- points ----


def draw_points(chart: Json) -> Figure:
    """Draws points in two dimensions without axes, with a colour for each group: t-SNE."""
    x, y, keys = (np.array(chart["points"][name]) for name in ("x", "y", "group"))
    figure, axes = new_figure(chart, 4.4, 4.8)
    colours, entries = palette(keys.tolist()), []
    size = float(np.clip(4000 / max(1, len(x)), 5, 36)) ** 0.5
    for key in sorted(colours):
        at, style = keys == key, {"color": colours[key], "marker": "o", "linestyle": "none", "markeredgewidth": 0}
        axes.plot(x[at], y[at], markersize=size, alpha=0.75, **style)
        entries.append((Line2D([], [], markersize=5, **style), group_name(chart, key)))
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(GRID)
    set_head(figure, chart, entries if len(entries) > 1 else [])
    return figure


# ---- boxes ----


def draw_box(axes: Axes, box: Json, at: float, width: float, colour: Any) -> None:
    where = f"box {text(box.get('name'), 40)}"
    names = ("q05", "q25", "q50", "q75", "q95", "low", "high", "mean")
    q05, q25, q50, q75, q95, low, high, mean = numbers([box.get(name) for name in names], where)
    if not np.isfinite([q05, q25, q50, q75, q95]).all():
        return
    axes.vlines([at, at], [q05, q75], [q25, q95], color=colour, linewidth=1.0)
    axes.add_patch(
        Rectangle(
            (at - width / 2, q25),
            width,
            q75 - q25,
            edgecolor=colour,
            linewidth=1.0,
            facecolor=matplotlib.colors.to_rgba(colour, 0.28),
        )
    )
    axes.hlines(q50, at - width / 2, at + width / 2, color=colour, linewidth=2.0)
    axes.plot(
        [at, at],
        [low, high],
        linestyle="none",
        marker="o",
        markersize=3,
        markerfacecolor="white",
        markeredgecolor=colour,
        markeredgewidth=0.9,
    )
    axes.plot([at], [mean], linestyle="none", marker="o", markersize=3, color=colour, markeredgewidth=0)


def draw_boxes(chart: Json) -> Figure:
    """Draws boxes between quartiles, with whiskers from 5 % to 95 %. The groups of a place stand side by side."""
    boxes = member(chart, "boxes", list, "it")
    if not all(isinstance(box, dict) for box in boxes):
        raise CannotDraw("boxes must be objects")
    axis = chart["x"] if isinstance(chart.get("x"), dict) else {}
    names = [text(name) for name in axis.get("names") or []]
    names += dict.fromkeys(name for name in (text(box.get("name")) for box in boxes) if name not in names)
    keys = [box["group"] if isinstance(box.get("group"), int) else 0 for box in boxes]
    groups, colours = sorted(set(keys)), palette(keys)
    figure, axes = new_figure(chart, max(WIDTH, min(14.0, 1.2 + 0.14 * len(boxes))))
    width = 0.62 / max(1, len(groups))
    for box, key in zip(boxes, keys):
        shift = (groups.index(key) - (len(groups) - 1) / 2) * width * 1.15
        draw_box(axes, box, names.index(text(box.get("name"))) + shift, width, colours[key])
    values = numbers([box.get(name) for box in boxes for name in ("q05", "q95", "low", "high")], "boxes")
    set_axis(axes, "y", chart.get("y"), values)
    set_axis(axes, "x", {**axis, "names": names}, values)
    axes.set_xlim(-0.6, max(1, len(names)) - 0.4)
    axes.grid(False, axis="x")
    entries = [
        (Patch(facecolor=matplotlib.colors.to_rgba(colours[key], 0.28), edgecolor=colours[key]), group_name(chart, key))
        for key in groups
    ]
    set_head(figure, chart, entries if len(groups) > 1 else [])
    return figure


KINDS: Dict[str, Callable[[Json], Figure]] = {
    "lines": draw_lines,
    "map": draw_map,
    "points": draw_points,
    "boxes": draw_boxes,
}
