#!/usr/bin/env python3
"""published.py COUPLET [--only NAME ...] [--dry-run] [--page FILE]: runs the commands of docs/published.md against the
hub and writes their figures into its table.

It needs a network: allow some gigabytes and an hour, or name models with --only. HF_ENDPOINT, HF_TOKEN and the like
work as in `couplet inspect`. Each row describes the present commit of `main`. Another run of that commit writes an
equal row, and rows of other models stay. A model that cannot be read leaves its row unchanged; the exit code is then 1.
--dry-run only prints what would be read. --check: exits with 1 if the page lacks a row of a model or has another
command."""

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "published.md"
MODELS = {  # name: repository, options
    "OLMoE": ("allenai/OLMoE-1B-7B-0924", ""),
    "Mixtral": ("mistralai/Mixtral-8x7B-v0.1", "--sample 2%"),
    "Qwen": ("Qwen/Qwen3-30B-A3B", "--layers 0,12,24,36,47"),
    "DeepSeek": ("deepseek-ai/DeepSeek-V3", "--sample 2% --layers 3,30,60"),
    "gpt-oss": ("openai/gpt-oss-20b", "--layers 0,12,23"),
}
COLUMNS = ("revision", "layers", "n", "K", "kappa own", "kappa others", "z", "rows own", "ERC / diagonal", "alpha_min")


def command(name, revision=""):
    repository, options = MODELS[name]
    return f"couplet inspect hf://{repository}{revision and '@' + revision} {options}".strip()


# ---- the hub ----


class SameHost(urllib.request.HTTPRedirectHandler):
    """Redirects without the token if the host differs."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if urllib.parse.urlsplit(newurl)[:2] != urllib.parse.urlsplit(req.full_url)[:2]:
            return None
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def token():
    """Returns the token, found as huggingface_hub finds it."""
    home = os.environ.get("HF_HOME") or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    path = pathlib.Path(os.environ.get("HF_TOKEN_PATH") or pathlib.Path(home, "token")).expanduser()
    return os.environ.get("HF_TOKEN", "").strip() or (path.read_text().strip() if path.is_file() else "")


def commit_of(repository):
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = urllib.request.Request(f"{endpoint}/api/models/{repository}/revision/main")
    if token():
        request.add_header("Authorization", f"Bearer {token()}")
    try:
        with urllib.request.build_opener(SameHost).open(request, timeout=60) as answer:
            commit = json.loads(answer.read(1 << 24))["sha"]
    except (OSError, ValueError, KeyError, TypeError) as what:
        raise RuntimeError(f"{repository}: {endpoint} gives no commit: {what}") from what
    if not re.fullmatch("[0-9a-f]{40}", commit):
        raise RuntimeError(f"{repository}: {endpoint} gives a commit that is none")
    return commit


# ---- a row ----


def inspect(couplet, name, commit, dry):
    """Runs the inspection of a model; returns its output with `dry`, else its figures."""
    words = shlex.split(command(name, commit))[1:]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "figures.json")
        words += ["--dry-run"] if dry else ["--json", file]
        if subprocess.run([couplet, *words], check=False).returncode:
            raise RuntimeError(f"{name}: {command(name, commit)} has failed")
        return None if dry else json.loads(file.read_text())


def mean(values):
    known = [value for value in values if isinstance(value, (int, float))]
    return statistics.fmean(known) if known else None


def number(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def kappa(layer, key):
    """Returns a mean of kappa of the centred rows, or its estimate from a sample."""
    estimates = layer.get("sample", {}).get("centred", {}).get("estimates", {})
    return layer.get("figures", {}).get(f"centred_{key}", estimates.get(key, {}).get("estimate"))


def cells(figures, commit):
    """Returns the figures of the centred rows: means over the layers, z as the verdict combines it, the median
    alpha_min. A cell stays empty if a sample lacks its figure."""
    layers = figures["layers"]
    centred, one = [layer.get("centred", {}) for layer in layers], [layer.get("figures", {}) for layer in layers]
    z = [c["z"] for c in centred if isinstance(c.get("z"), (int, float))]
    alphas = [c["alpha_min"] for c in centred if isinstance(c.get("alpha_min"), (int, float))]
    rows = mean(f.get("centred_kappa_row_top1") for f in one)
    return [
        commit[:12],
        ", ".join(str(layer["layer"]) for layer in layers) if len(layers) < 8 else f"all {len(layers)}",
        *("/".join(sorted({str(layer[key]) for layer in layers if key in layer})) for key in ("n", "K")),
        *(number(mean(kappa(layer, f"kappa_{key}diagonal") for layer in layers), 4) for key in ("", "off_")),
        number(sum(z) / math.sqrt(len(z)) if z else None, 1),
        f"{100 * rows:.1f} %" if rows is not None else "",
        number(mean(c.get("erc_relative", {}).get("1") for c in centred), 4),
        number(statistics.median(alphas) if alphas else None, 3),
    ]


def line(name, found=None):
    return f"| {name} | `{command(name)}` | " + " | ".join(found or [""] * len(COLUMNS)) + " |"


# ---- the page ----


def with_row(text, name, found):
    """Returns the page with the row of one model."""
    new, count = re.subn(rf"^\| {re.escape(name)} \| .*$", lambda _: line(name, found), text, flags=re.M)
    if count != 1:
        raise RuntimeError(f"the page has {count} rows of {name}")
    return new


def check(page):
    text = page.read_text()
    wrong = [
        f"{page}: no row `{line(name)[:-1].split(' |  |')[0]} | ...`"
        for name in MODELS
        if not re.search(rf"^{re.escape(f'| {name} | `{command(name)}` | ')}.*\|$", text, re.M)
    ]
    if "| model | command | " + " | ".join(COLUMNS) + " |" not in text:
        wrong.append(f"{page}: no heading of the columns {COLUMNS}")
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


def fill(options):
    failed = False
    for name in options.only or MODELS:
        try:
            commit = commit_of(MODELS[name][0])
            print(f"# {command(name, commit)}", flush=True)
            figures = inspect(options.couplet, name, commit, options.dry_run)
            if figures:
                options.page.write_text(with_row(options.page.read_text(), name, cells(figures, commit)))
        except RuntimeError as what:
            print(f"published.py: {what}", file=sys.stderr)
            failed = True
    return failed


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("couplet", nargs="?")
    parser.add_argument("--only", action="append", choices=MODELS)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=pathlib.Path, default=PAGE)
    options = parser.parse_args()
    if not options.check and not options.couplet:
        parser.error("name the program, such as build/release/couplet")
    return check(options.page) if options.check else fill(options)


if __name__ == "__main__":
    sys.exit(main())
