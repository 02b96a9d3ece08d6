"""Writes a verdict as text and as JSON, and writes the tables of kinds and faults."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

from ._judge import SCALES, Verdict
from ._kind import ABOUT, FAULTS

VERSION = 2  # the version of the JSON
# The faults of code that calls a loss, independent of the loss.
PLUMBING = {row["key"] for row in FAULTS if row["group"] in ("any", "steps")}


def fault_sentences(verdict: Verdict) -> List[str]:
    """Returns the sentence of each fault, with the value of its parameter."""
    return [one.sentence + ("" if value is None else f" ({value:.6g})") for one, value in verdict.faults]


def names(verdict: Verdict) -> str:
    return ", ".join(kind.name for kind in verdict.others)


def sentence(verdict: Verdict) -> str:
    """Returns the verdict in one line, and for a step that is wrong a line for each note."""
    kind, mask = verdict.kind.name, f"; {verdict.mask}" if verdict.mask else ""
    if verdict.state == "right":
        within = f" {verdict.rounding}" if verdict.rounding else ""
        also = f"; these inputs do not tell it from {names(verdict)}" if verdict.others else ""
        return f"right as {kind}{within}{mask}{also}"
    found, notes = fault_sentences(verdict), [f"  {note}" for note in verdict.notes]
    if verdict.state == "other":
        if any(fault.key in PLUMBING and fault.key in SCALES for fault, _ in verdict.faults):
            found = [f"it is {names(verdict)}", *found]
            return f"wrong as {kind}; these inputs do not tell apart: {' | '.join(found)}{mask}"
        return f"right as {names(verdict)}, not {kind}" + (f": as {kind}, {' | '.join(found)}" if found else "") + mask
    if verdict.state == "fault":
        apart = "; these inputs do not tell apart" if len(found) > 1 else ""
        return "\n".join([f"wrong as {kind}{apart}: {' | '.join(found)}{mask}", *notes])
    good = [name for name in verdict.figures if name not in verdict.first]
    where = f"right on {', '.join(good)}; " if good else ""
    first = "; ".join(f"on {name} {what}" for name, what in list(verdict.first.items())[:3])
    unlisted = f"not right as {kind}, in a way that is not listed: {where}{first}{mask}"
    return "\n".join([unlisted, *notes])


def remedies(verdict: Verdict) -> List[str]:
    """Returns a line with the remedy of each fault."""
    return [f"{one.key}: {one.remedy}" + (f" (seen in {one.seen})" if one.seen else "") for one, _ in verdict.faults]


def details(verdict: Verdict) -> List[str]:
    """Returns lines with the remedies, the numbers, and the faults that these inputs cannot show."""
    lines = remedies(verdict)
    for name, figures in verdict.figures.items():
        for f in figures:
            values = f"{f.got:.6g}, right {f.expected:.6g}, distance {f.distance:.2g}, rounding {f.bound:.2g}"
            lines.append(f"{name}: {f.name} {values}")
    untold = ", ".join(fault.key for fault in verdict.untold)
    return [*lines, f"these inputs cannot show: {untold}"] if untold else lines


def as_json(verdict: Verdict) -> Dict[str, Any]:
    return {
        "version": VERSION,
        "kind": verdict.kind.name,
        "verdict": verdict.state,
        "sentence": sentence(verdict).partition("\n")[0],
        "faults": [
            {"key": one.key, "value": value, "sentence": one.sentence, "remedy": one.remedy}
            for one, value in verdict.faults
        ],
        "right_as": [kind.name for kind in verdict.others],
        "cannot_show": [fault.key for fault in verdict.untold],
        "first": verdict.first,
        "rounding": verdict.rounding,
        "mask": verdict.mask,
        "notes": verdict.notes,
        "figures": {name: [vars(one) for one in figures] for name, figures in verdict.figures.items()},
    }


# ---- tables ----


def rows(table: List[Dict[str, str]], code: str) -> Iterator[str]:
    """Yields the lines of a table of Markdown. The column `code` is set in a monospaced font."""
    yield f"| {' | '.join(table[0])} |"
    yield f"| {' | '.join(['---'] * len(table[0]))} |"
    for row in table:
        cells = [f"`{cell}`" if name == code else cell.replace("|", "\\|") for name, cell in row.items()]
        yield f"| {' | '.join(cells)} |"


def page() -> str:
    """Returns the tables of kinds and faults, in Markdown."""
    return "\n".join([*rows(list(ABOUT.values()), "kind"), "", "## Faults", "", *rows(FAULTS, "key")]) + "\n"
