#!/usr/bin/env python3
"""forest_plot.py [--check]: writes experiments/forest.svg: the contrasts of the recorded runs, one a row, with 95 %
intervals of Student's t, grouped by the questions of experiments/questions.md and experiments/mean-token.md and by unit.

A contrast whose runs are not all in experiments/runs.csv is left out. The verdict of a test comes from
experiments/tools/answers.py. The contrasts of the first series have a verdict in brackets, by their own interval alone.
--check: exits with 1 if the file differs."""

import argparse
import math
import pathlib
import sys
from xml.sax.saxutils import escape

import hypothesis_tests as tests
import mean_token
import records
from answers import EQUAL, WORDS, Answers
from table_figures import Interval, Table, interval, number, printed

PICTURE = pathlib.Path(__file__).resolve().parents[1] / "forest.svg"

ARMS = (
    ("erc-1-mean", "alpha 1, mean"),
    ("erc-1-sum", "alpha 1, sum"),
    ("erc-0.5-mean", "alpha 0.5, mean"),
    ("erc-0.5-sum", "alpha 0.5, sum"),
    ("aoe", "AoE"),
)
# (title, figure and arms of the first series, tests, digits, the words for below and above 0, a band of equivalence).
# 1a to 1d are left out: they are levels, and a model without the loss passes them too.
# AoE's agreement is of another kind: its scores are the responses.
PANELS = (
    (
        "Question 1: agreement over tokens, rank correlation",
        "agreement",
        ARMS[:4],
        ("1e", "1f", "1g"),
        3,
        ("lower", "higher"),
        None,
    ),
    (
        "Question 2: mean |cos| of router rows; share of the favourite expert of a token id; agreement",
        None,
        (),
        ("2a", "2b", "2c", "2d", "2e", "2f"),
        3,
        ("lower", "higher"),
        None,
    ),
    ("Question 3: bits per byte (below 0: better)", "bpb", ARMS, ("3a", "3b", "3c"), 4, ("better", "worse"), None),
    (
        "Question 4: validation loss, nats a token (below 0: better)",
        "val_loss",
        ARMS,
        ("4a", "4b"),
        3,
        ("better", "worse"),
        EQUAL,
    ),
    (
        "Question 5: agreement; share of centred rows that excite their own expert most; MaxVio",
        None,
        (),
        ("5a", "5b", "5c", "5d", "5e", "5f", "5g", "5h", "5i"),
        3,
        ("lower", "higher"),
        None,
    ),
    ("Third series: dz, own tokens against others'", "dz", (), ("h1", "h2", "h3", "h4", "h7"), 2, ("", ""), None),
    ("Third series: agreement", None, (), ("h5a", "h8a", "h8b"), 3, ("", ""), mean_token.CORRELATION),
    ("Third series: validation loss, nats a token", None, (), ("h6",), 3, ("", ""), mean_token.NATS),
)

WIDTH, LEFT, RIGHT, ROW, TOP = 1030, 350, 650, 20, 66  # pixels; the axis is between LEFT and RIGHT
PAIRS, FIGURES, VERDICT = (
    330,
    670,
    880,
)  # the number of pairs or runs ends there, the numbers and the verdict begin there
INK, GREY, PALE, BAND, STRONG = "#1a1a1a", "#6b6b6b", "#d9d9d9", "#e8f0e4", "#0b5394"


# ---- rows of the plot ----


def pairs_of(name):
    """Returns the number of pairs of a test. A test of question 2 compares twelve runs with the twelve runs that differ
    in one weight only."""
    seeds = {"1": tests.A, "2": [*tests.B] * 4, "3": tests.A, "4": tests.D, "5": tests.E, "h": mean_token.SEEDS}
    return len(seeds[name[0]])


def third_series():
    """Returns {test: (interval, verdict)} of experiments/mean-token.md; empty before all its runs are recorded."""
    if mean_token.missing(records.names("h")):
        return {}
    found = mean_token.tests(mean_token.recorded)
    sure = mean_token.significant(found)
    return {
        name: (
            Interval(mean, mean - half, mean + half, p, len(mean_token.SEEDS)),
            "significant" if name in sure else "not significant",
        )
        for name, (mean, half, p) in found.items()
    }


def rows_of(answers, third, panel):
    """Returns [(label, number of pairs, interval, verdict, whether it is one of the tests)]."""
    _, figure, arms, names, _, (below, above), _ = panel
    rows = []
    for arm, label in arms:
        try:
            one = interval(answers.table.differences(figure, arm, "vanilla"))
        except KeyError:
            continue
        word = "undecided" if one.low <= 0 <= one.high else above if one.mean > 0 else below
        rows.append((f"first series: {label} − vanilla", one.n, one, f"({word})", False))
    for name in names:
        if name in answers.found:
            verdict = answers.verdict(name) if name in ("4a", "4b") else answers.significant(name)
            label = f"{name}\u2002{WORDS[name].replace(' - ', ' − ')}"
            rows.append((label, pairs_of(name), answers.found[name], verdict, True))
        elif name in third:
            rows.append(
                (f"{name}\u2002{mean_token.WORDS[name].replace(' - ', ' − ')}", pairs_of(name), *third[name], True)
            )
    return rows


def ticks(low, high):
    """Returns a few round numbers between low and high, and the digits that they need."""
    raw = (high - low) / 7
    size = 10 ** math.floor(math.log10(raw))
    step = next(times * size for times in (1, 2, 5, 10) if times * size >= raw)
    marks = [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return marks, max(0, -math.floor(math.log10(step) + 1e-9))


# ---- drawing ----


def text(x, y, words, anchor="start", colour=INK, size=12, weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def line(x1, y1, x2, y2, colour, width=1.0):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def drawn(panel, rows, y):
    """Returns (elements, the y below) of a panel that begins at y."""
    title, _, _, _, digits, _, equal = panel
    ends = [0.0, *(end for _, _, one, _, _ in rows for end in one.interval), *((-equal, equal) if equal else ())]
    margin = 0.04 * (max(ends) - min(ends))
    low, high = min(ends) - margin, max(ends) + margin

    def at(value):
        return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)

    bottom = y + 14 + ROW * len(rows)
    parts = [text(12, y, title, size=13, weight="bold")]
    if equal:
        parts.append(
            f'<rect x="{at(-equal):.1f}" y="{y + 8:.1f}" width="{at(equal) - at(-equal):.1f}" '
            f'height="{bottom - y - 8:.1f}" fill="{BAND}"/>'
        )
    marks, places = ticks(low, high)
    for mark in marks:
        parts.append(line(at(mark), y + 8, at(mark), bottom, PALE))
        parts.append(text(at(mark), bottom + 14, number(mark, f"+{places}") if mark else "0", "middle", GREY, 11))
    parts.append(line(at(0), y + 8, at(0), bottom, INK))
    for place, (label, pairs, one, verdict, test) in enumerate(rows):
        middle = y + 22 + ROW * place
        strong = test and verdict not in ("undecided", "not significant", "open")
        colour = STRONG if strong else GREY
        parts += [
            text(12, middle + 4, label),
            text(PAIRS, middle + 4, str(pairs), "end", GREY),
            line(at(one.low), middle, at(one.high), middle, colour, 2.0),
            *(line(at(end), middle - 4, at(end), middle + 4, colour, 2.0) for end in one.interval),
            f'<rect x="{at(one.mean) - 4:.1f}" y="{middle - 4:.1f}" width="8" height="8" stroke="{colour}" '
            f'stroke-width="1.5" fill="{colour if test else "#ffffff"}"/>',
            text(FIGURES, middle + 4, printed(one, f"+{digits}")),
            text(VERDICT, middle + 4, verdict, colour=colour, weight="bold" if strong else "normal"),
        ]
    return parts, bottom + 46


def picture(answers):
    third = third_series()
    parts, y = [], TOP + 14
    for panel in PANELS:
        rows = rows_of(answers, third, panel)
        if rows:
            more, y = drawn(panel, rows, y)
            parts += more
    notes = [
        "Filled: a test that was decided before its runs, significant among all tests of its series or not. Open square and "
        "verdict in brackets: first series, by its own interval, not corrected.",
        f"Band: differences within ±{EQUAL:.2f} nats or ±{mean_token.CORRELATION:.2f} of agreement, called equivalent. Left out: contrasts whose "
        "runs are not all recorded.",
    ]
    parts += [text(12, y + 16 * at - 8, note, colour=GREY, size=11) for at, note in enumerate(notes)]
    columns = (
        (12, "contrast", "start"),
        (PAIRS, "n", "end"),
        ((LEFT + RIGHT) / 2, "difference", "middle"),
        (FIGURES, "mean (95 % interval)", "start"),
        (VERDICT, "verdict", "start"),
    )
    head = [
        text(12, 24, "Contrasts of the recorded runs", size=16, weight="bold"),
        *(text(x, TOP - 14, words, anchor, GREY, 11) for x, words, anchor in columns),
    ]
    height = y + 16 * len(notes)
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                f'viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans, Verdana, sans-serif" role="img">',
                "<title>Contrasts of the recorded runs with 95 % intervals</title>",
                f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
                *head,
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    drawing = picture(Answers(Table()))
    if words.check:
        same = PICTURE.exists() and PICTURE.read_text() == drawing
        print("" if same else f"{PICTURE} is not that of the table; experiments/tools/forest_plot.py writes it")
        return not same
    PICTURE.write_text(drawing)
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
