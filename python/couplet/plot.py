"""Draws the charts of the files that `couplet inspect|eval|compare` write with --json or --html.

    python -m couplet.plot REPORT [REPORT ...] --out DIR [--format svg|pdf|png] [--only ID,...]
    python -m couplet.plot --tsne ROWS.npy --out PICTURE.svg [--perplexity P] [--seed N]

A page (--html) has the coupling matrices, which the JSON of --json leaves out. Pages have the same charts.

Each chart becomes DIR/STEM-ID.svg. Existing pictures are replaced. It needs matplotlib, but neither PyTorch nor the C
library; --tsne needs scikit-learn too. Equal files give equal bytes with equal versions of these packages.

Exit code 0: all drawn; 1: an input cannot be drawn, or standard output cannot be written; 2: wrong arguments, or no
matplotlib or scikit-learn; 130: interrupted."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import warnings
from importlib.util import find_spec
from typing import Dict, List, Optional, Set, Tuple

from .report import _files, _resolve

try:
    import matplotlib
    import matplotlib.style

    from .report._charts import KINDS, STYLE, CannotDraw, Json, text
except ImportError:
    matplotlib = None  # type: ignore[assignment, unused-ignore]  # `main` reports it

FORMATS = ("svg", "pdf", "png")
NEEDS = "matplotlib 3.7 or newer: pip install matplotlib"


def can_draw() -> bool:
    return matplotlib is not None and matplotlib.__version_info__ >= (3, 7)


def report_of(path: pathlib.Path) -> Json:
    """Returns the object in a file of JSON, or the report inside a page."""
    try:
        text = _files.read(path)
        page = re.search(rb'<script type="application/json" id="couplet-data">(.*?)</script>', text, re.S)
        block = _files.parse(page[1] if page else text)
    except _files.BadFile as error:
        raise CannotDraw(str(error)) from None
    block = block.get("report") if page and isinstance(block, dict) else block
    if not isinstance(block, dict):
        raise CannotDraw("holds no object")
    return block


def charts_of(path: pathlib.Path) -> List[Json]:
    """Returns the charts of a file."""
    report = report_of(path)
    try:
        return _resolve.charts_of(report)
    except _resolve.BadReport as error:
        raise CannotDraw(str(error)) from None
    except Exception as error:  # a member has not the type that the program writes
        raise CannotDraw(_files.reason(error)) from None


def metadata(chart: Json, form: str) -> Dict[str, Optional[str]]:
    """Returns title and caption, without dates and versions, so that equal pictures are equal files."""
    title, caption = text(chart.get("title")), text(chart.get("caption"))
    if form == "svg":
        return {"Title": title, "Description": caption, "Creator": "couplet.plot", "Date": None}
    if form == "pdf":
        return {"Title": title, "Subject": caption, "Creator": "couplet.plot", "Producer": None, "CreationDate": None}
    return {"Title": title.encode("latin-1", "replace").decode("latin-1"), "Software": "couplet.plot"}


def draw(chart: Json, path: pathlib.Path) -> None:
    """Writes the picture of one chart; the suffix of `path` is the format."""
    form = path.suffix[1:]
    with warnings.catch_warnings(), matplotlib.style.context(STYLE, after_reset=True):
        warnings.simplefilter("ignore")  # characters that the font lacks
        KINDS[chart["kind"]](chart).savefig(path, format=form, metadata=metadata(chart, form))


def draw_files(
    paths: List[pathlib.Path], out: pathlib.Path, form: str = "svg", only: Optional[List[str]] = None
) -> List[pathlib.Path]:
    """Draws the charts of the files, or only the charts whose ids are in `only`; returns the pictures' paths."""
    plans: List[Tuple[pathlib.Path, Json, pathlib.Path]] = []
    known: Set[str] = set()
    for path in paths:
        try:
            charts = charts_of(path)
        except CannotDraw as error:
            raise CannotDraw(f"{path}: {error}") from None
        known |= {chart["id"] for chart in charts}
        plans += [
            (path, chart, out / f"{path.stem}-{chart['id']}.{form}")
            for chart in charts
            if only is None or chart["id"] in only
        ]
    missing = [name for name in only or [] if name not in known]
    if missing:
        raise CannotDraw(f"there is no chart {missing[0]}; there are {', '.join(sorted(known)) or 'none'}")
    if len({target for _, _, target in plans}) < len(plans):
        raise CannotDraw("two input files have the same name, as would their pictures: draw each to another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, chart, target in plans:
            try:
                draw(chart, target)
            except CannotDraw as error:
                raise CannotDraw(f"{path}: chart {chart['id']}: {error}") from None
            except OSError:
                raise
            except Exception as error:  # matplotlib refuses numbers that no axis can have
                raise CannotDraw(f"{path}: chart {chart['id']}: {_files.reason(error)}") from None
    except OSError as error:
        raise CannotDraw(_files.reason(error)) from None
    return [target for _, _, target in plans]


def draw_tsne(path: pathlib.Path, out: pathlib.Path, perplexity: float, seed: int) -> None:
    """Draws the rows that `couplet inspect --rows` wrote; the suffix of `out` is the format."""
    from .report import _tsne

    try:
        chart = _tsne.chart_of(path, perplexity, seed)
    except _files.BadFile as error:
        raise CannotDraw(f"{path}: {error}") from None
    except Exception as error:  # scikit-learn refuses numbers that it cannot place
        raise CannotDraw(f"{path}: {_files.reason(error)}") from None
    out.parent.mkdir(parents=True, exist_ok=True)
    draw(chart, out)


def check_words(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the program with exit code 2 if the arguments have neither form, or both."""
    if bool(args.tsne) == bool(args.figures):
        parser.error("give FIGURES.json, or --tsne ROWS.npy")
    if args.tsne and (args.format or args.only):
        parser.error(
            "--tsne goes without --format and --only: it draws one picture, whose format is the suffix of --out"
        )
    if args.tsne and args.out.suffix[1:] not in FORMATS:
        parser.error(f"--tsne draws one picture: --out must end in .{', .'.join(FORMATS)}")
    if not 1 <= args.perplexity <= 1000 or not 0 <= args.seed < 2**32:
        parser.error("--perplexity takes a number from 1 to 1000, --seed one from 0 below 2^32")
    if not args.tsne and (args.perplexity, args.seed) != (30, 1):
        parser.error("--perplexity and --seed belong to --tsne")


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m couplet.plot",
        description=str(__doc__).partition("\n")[0],
        epilog="docs/inspection.md of the project says more.",
    )
    parser.add_argument(
        "figures",
        nargs="*",
        type=pathlib.Path,
        metavar="REPORT",
        help="what couplet wrote with --json FILE or --html FILE",
    )
    parser.add_argument(
        "--out",
        required=True,
        type=pathlib.Path,
        metavar="DIR",
        help="the folder of the pictures; of --tsne the picture",
    )
    parser.add_argument("--format", choices=FORMATS, help="default svg")
    parser.add_argument("--only", metavar="ID,...", help="the charts to draw; default all")
    parser.add_argument("--tsne", type=pathlib.Path, metavar="ROWS.npy", help="what couplet inspect --rows wrote")
    parser.add_argument("--perplexity", type=float, default=30, metavar="P", help="of --tsne; default 30")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of --tsne; default 1")
    args = parser.parse_args(words)
    check_words(parser, args)
    if not can_draw():
        print(f"couplet.plot: needs {NEEDS}", file=sys.stderr)
        return 2
    if args.tsne and not find_spec("sklearn"):
        print("couplet.plot: --tsne needs scikit-learn: pip install scikit-learn", file=sys.stderr)
        return 2
    try:
        if args.tsne:
            draw_tsne(args.tsne, args.out, args.perplexity, args.seed)
            drawn = [args.out]
        else:
            only = [name for name in args.only.split(",") if name] if args.only else None
            drawn = draw_files(args.figures, args.out, args.format or "svg", only)
        _files.print_lines(*map(str, drawn))
    except KeyboardInterrupt:
        return 130
    except (CannotDraw, OSError) as error:
        _files.complain(f"couplet.plot: {error if isinstance(error, CannotDraw) else _files.reason(error)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
