"""A report as one self-contained HTML page: the template of assets/ with the report's JSON inside. The program writes
its pages in this way too (src/report/view.c)."""

from __future__ import annotations

import html
import json
import re
from typing import Any, Dict, List, Optional, Sequence

from ._resolve import asset

_NO_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def embedded(text: str) -> str:
    """Returns the JSON without characters that could end its element."""
    return text.replace("<", "\\u003c")


def cell(tag: str, value: str) -> str:
    """Returns a table cell as cpl_markup_text of src/report writes it: invalid and control characters become U+FFFD."""
    return f"<{tag}>{html.escape(_NO_TEXT.sub(chr(0xFFFD), value))}</{tag}>\n"


def without_scripts(
    title: str, sentences: Sequence[str], headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Returns the text for readers without scripts: the sentences, and a table of the main figures."""
    note = "Charts and further tables are drawn by the page's own script, which is switched off."
    head = "".join(cell("th", name) for name in headings)
    body = "".join(f"<tr>{cell('th', row[0])}{''.join(cell('td', one) for one in row[1:])}</tr>\n" for row in rows)
    table = f'<div class="table"><table>\n<thead><tr>\n{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n'
    return f'{cell("h1", title)}<p class="note">{note}</p>\n{"".join(cell("p", one) for one in sentences)}{table}'


def page(
    kind: str,
    title: str,
    report: Dict[str, Any],
    made: Optional[Dict[str, Any]] = None,
    sentences: Sequence[str] = (),
    headings: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> str:
    """Returns the page of a report. kind: "compare", ... (`of` in assets/charts.json). report: the object that --json
    writes, without NaN or infinite numbers (ValueError). made: program, command, date, sources (docs/formats.md,
    "Pages"). Sentences, headings and rows of text are shown without scripts."""
    data = {"kind": kind, "title": title, **({"made": made} if made else {}), "report": report}
    parts: Dict[str, str] = {
        "title": html.escape(title),
        "noscript": without_scripts(title, sentences, headings, rows),
        "data": embedded(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        "charts.json": embedded(asset("charts.json")),
    }
    pieces: List[str] = re.split(r"\{\{(.*?)\}\}", asset("view.html"))
    pieces[1::2] = [parts[name] if name in parts else asset(name) for name in pieces[1::2]]
    return re.sub("[\ud800-\udfff]", "\ufffd", "".join(pieces))  # bytes of names that are not UTF-8
