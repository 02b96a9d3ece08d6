#!/usr/bin/env python3
"""check_published.py COUPLET: runs tools/published.py on the tests' own hub, whose repositories have the names of the
page and small checkpoints in them. It fills the rows that are named, with the figures of the local files."""

import math
import pathlib
import shutil
import statistics
import subprocess
import sys

import remote_case
from checkpoints import sharded
from program import COUPLET, check, good

sys.path.insert(0, "tools")
import published  # noqa: E402

LAYERS = {"OLMoE": 3, "Mixtral": 2, "Qwen": 48, "DeepSeek": 61, "gpt-oss": 24}


def publish(one, page, *words, seconds=300):
    done = subprocess.run(
        [sys.executable, "tools/published.py", COUPLET, "--page", page, *words],
        env=one.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    one.judge(["published.py", *words], done.stdout, done.stderr)
    return done.stdout + done.stderr, done.returncode


def row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def wanted(figures):
    layers = figures["layers"]
    z = [layer["centred"]["z"] for layer in layers]
    own = statistics.fmean(layer["figures"]["centred_kappa_diagonal"] for layer in layers)
    return (
        f"{own:.4f}",
        f"{sum(z) / math.sqrt(len(z)):.1f}",
        f"{statistics.median(l['centred']['alpha_min'] for l in layers):.3f}",
    )


def check_row(one, text, name, figures):
    commit = one.servers.repositories[published.MODELS[name][0]].commit("main")
    cells = row(text, name)
    own, z, alpha = wanted(figures)
    check(
        (cells[2], cells[6], cells[8], cells[-1]) == (commit[:12], own, z, alpha),
        f"{name}: {cells}, wanted {own} {z} {alpha}",
    )


def check_filling(one, page, folders):
    before = page.read_text()
    out, code = publish(one, page, "--dry-run", "--only", "OLMoE")
    check(code == 0 and page.read_text() == before and "OLMoE-1B-7B-0924@" in out, f"--dry-run: {code} {out}")
    out, code = publish(one, page, "--only", "OLMoE")
    first = page.read_text()
    check(code == 0, f"--only OLMoE: {code} {out[-500:]}")
    check_row(one, first, "OLMoE", one.json(folders["OLMoE"]))
    same = [name for name in published.MODELS if name != "OLMoE" and row(first, name) == row(before, name)]
    check(len(same) == 4 and len(first.splitlines()) == len(before.splitlines()), "other rows have changed")
    publish(one, page, "--only", "OLMoE")
    check(page.read_text() == first, "a second run gives another page")
    out, code = publish(one, page, "--only", "Qwen", "--only", "gpt-oss")
    check(code == 0, f"two models: {code} {out[-500:]}")
    for name, layers in (("Qwen", "0,12,24,36,47"), ("gpt-oss", "0,12,23")):
        check_row(one, page.read_text(), name, one.json(folders[name], "--layers", layers))
    check(row(page.read_text(), "gpt-oss")[3] == "0, 12, 23", "layers")


def check_failing(one, page):
    """A missing model, or an invalid answer of the hub, leaves its row. The next row is still read."""
    before, servers = page.read_text(), one.servers
    kept = servers.repositories.pop(published.MODELS["OLMoE"][0])
    out, code = publish(one, page, "--only", "OLMoE", "--only", "gpt-oss")
    check(
        code == 1 and "no commit" in out and "gpt-oss-20b@" in out and page.read_text() == before,
        f"a model that is not there: {code} {out}",
    )
    servers.repositories[kept.name] = kept
    page.write_text(before.replace("| OLMoE |", "| OtherMoE |"))
    out, code = publish(one, page, "--only", "OLMoE")
    check(code == 1 and "0 rows of OLMoE" in out, f"a page without the row: {code} {out}")
    done = subprocess.run(
        [sys.executable, "tools/published.py", "--check", "--page", page], capture_output=True, text=True, check=False
    )
    check(done.returncode == 1 and "OLMoE" in done.stdout, f"--check of a page without the row: {done}")
    page.write_text(before)


def body(one):
    folders = {
        name: sharded(one.work / name, seed=i, layers=LAYERS[name], d=16, D=64).folder
        for i, name in enumerate(published.MODELS)
    }
    for name, folder in folders.items():
        one.servers.add(published.MODELS[name][0], folder)
    page = pathlib.Path(shutil.copy("docs/published.md", one.work))
    check_filling(one, page, folders)
    check_failing(one, page)
    if "--sample" in good("help", "inspect"):
        out, code = publish(one, page)
        check(code == 0, f"all models: {code} {out[-500:]}")
        check(all(row(page.read_text(), name)[2] for name in published.MODELS), "a row without a revision")


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
