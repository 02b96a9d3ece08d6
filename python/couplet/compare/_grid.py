"""A table of names and texts on a terminal, and its form of numbers.

A table with more than COLUMNS columns is turned: its rows become columns."""

from __future__ import annotations

import math
from typing import NamedTuple

from ._run_figures import WHOLE

COLUMNS, WIDEST_NAME, WIDEST_CELL = 8, 48, 34


class Grid(NamedTuple):
    title: str
    corner: str  # heading of the column of row names
    columns: "list[str]"
    rows: "list[tuple[str, list[str]]]"  # name and cells
    note: str = ""
    fixed: bool = False  # never turned


def _plain(text: str, most: int) -> str:
    """Returns at most `most` characters, with ~ in place of a removed middle, and without line ends and tabs."""
    if len(text) > most:
        tail = (most - 1) // 2
        text = f"{text[: most - 1 - tail]}~{text[len(text) - tail :]}"
    return text.replace("\n", "\\x0a").replace("\t", "\\x09")


def text_of(grid: Grid) -> "list[str]":
    """Returns the lines of the table, or an empty list if it has no rows."""
    if not grid.rows:
        return []
    names, cells = [name for name, _ in grid.rows], [row for _, row in grid.rows]
    corner, columns = grid.corner, grid.columns
    if not grid.fixed and len(columns) > COLUMNS:
        corner, columns, names, cells = "", names, columns, [list(column) for column in zip(*cells)]
    firsts = [_plain(name, WIDEST_NAME) for name in (corner, *names)]
    table = [[_plain(cell, WIDEST_CELL) for cell in row] for row in (columns, *cells)]
    widths = [max(map(len, column)) for column in zip(*table)]
    wide = max(map(len, firsts))
    lines = ["", grid.title] + [
        first.ljust(wide) + "".join("  " + cell.rjust(width) for cell, width in zip(row, widths))
        for first, row in zip(firsts, table)
    ]
    return lines + ([grid.note] if grid.note else [])


def number(value: float, digits: int) -> str:
    """Returns a readable figure with this number of significant digits. WHOLE: a count, with commas. "-": NaN."""
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if digits == WHOLE and abs(value) < 2**53:
        return f"{int(value):,}"
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if -4 <= power <= 6:
        return f"{value:.{max(0, digits - 1 - power)}f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def signed(value: float, digits: int) -> str:
    return ("+" if value > 0 else "") + number(value, digits)


def interval(low: float, high: float) -> str:
    return "-" if math.isnan(low) or math.isnan(high) else f"{signed(low, 3)} to {signed(high, 3)}"
