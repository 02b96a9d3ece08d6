#!/usr/bin/env python3
"""compare_page.py FOLDER: the page of three recorded runs, grouped by a setting, for check_view.py."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "python"))

if not importlib.util.find_spec("numpy"):
    sys.exit(77)
from couplet.compare.__main__ import main  # noqa: E402

runs = [str(ROOT / "experiments/runs" / f"short-{name}-s0") for name in ("vanilla", "alpha-1", "alpha-0.4")]
sys.exit(main([*runs, "--group-by", "erc.alpha", "--no-documents", "--html", f"{sys.argv[1]}/compare.html"]))
