#!/usr/bin/env python3
"""scale.py COUPLET: writes the tables and charts of docs/scale.md, from `couplet plan --json`.

It writes the tables between the marks of the page, and docs/images/scale-3b.svg and docs/images/scale-15b.svg with
matplotlib (python/couplet/plot.py). It measures no time: the speed of a rank is given."""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from couplet import plot  # noqa: E402

PAGE = ROOT / "docs" / "scale.md"
RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]  # points of the charts
ROWS = [1, 2, 8, 64, 256, 1024]  # rows of the tables
# Name, configuration, most ranks along the experts, as in the paper.
MODELS = [("3b", "paper-3b.yaml", 1), ("15b", "paper-15b.yaml", 8)]
# The paper's 736 sequences do not divide among more than 32 of these ranks.
SETTINGS = ["data.batch_tokens=4194304", "compute.dtype=bf16", "compute.threads=16"]
MACHINES = [
    ("1 TFLOP/s, 100 Gbit/s", {"flops-per-second": 1e12}),
    ("1 TFLOP/s, 10 Gbit/s", {"flops-per-second": 1e12, "bandwidth": 10}),
    ("100 TFLOP/s, 100 Gbit/s", {"flops-per-second": 1e14, "memory-bandwidth": 2000}),
]
GIB = 2**30


def plan(program, config, ranks, experts, machine, *settings):
    words = [
        program,
        "plan",
        ROOT / "configs" / config,
        "--ranks",
        ranks,
        "--expert-parallel",
        min(ranks, experts),
        "--json",
        "-",
    ]
    for flag, value in machine.items():
        words += [f"--{flag}", value]
    for setting in [*SETTINGS, *settings]:
        words += ["--set", setting]
    return json.loads(subprocess.run([str(word) for word in words], check=True, capture_output=True).stdout)


def sent(one, *names):
    return sum(one["sent"][name]["bytes"] for name in names) / GIB


def waiting(one):
    return sum(term["exposed_s"] for term in one["sent"].values()) / one["time"]["step_s"]


def row(one, micro):
    memory, time = one["bytes"], one["time"]
    worst = f"{memory['worst'] / GIB:.0f}" if memory["exchange"] else "-"
    return (
        f"| {one['ranks']:,} | {one['expert_parallel']} | {memory['total'] / GIB:.0f} | {worst} | "
        f"{sent(one, 'gradients', 'parameters'):.1f} | {sent(one, 'exchange'):.1f} | "
        f"{time['step_s']:,.0f} | {100 * waiting(one):.1f} % | {100 * time['efficiency']:.1f} % | "
        f"{100 * micro['time']['efficiency']:.1f} % |"
    )


def table(program, config, experts):
    lines = [
        "| ranks | of them along the experts | memory, GiB | all tokens to one rank, GiB | gradients and "
        "parameters, GiB sent | tokens, GiB sent | step, s | waiting | efficiency | with scope micro |",
        "|---" * 10 + "|",
    ]
    _, machine = MACHINES[0]
    for ranks in ROWS:
        one = plan(program, config, ranks, experts, machine)
        lines.append(row(one, plan(program, config, ranks, experts, machine, "balance.scope=micro")))
    return "\n".join(lines)


def chart(program, name, config, experts):
    series = []
    for group, (label, machine) in enumerate(MACHINES):
        plans = [plan(program, config, ranks, experts, machine, "balance.scope=micro") for ranks in RANKS]
        series.append(
            {
                "name": label,
                "group": group,
                "x": RANKS,
                "style": "line",
                "marks": True,
                "y": [one["time"]["efficiency"] for one in plans],
            }
        )
    return {
        "id": f"scale-{name}",
        "kind": "lines",
        "title": f"{name.upper()}: efficiency, predicted",
        "caption": "Time of one rank / (ranks x time) at 4,194,304 tokens a step, balance.scope micro.",
        "x": {"label": "ranks", "scale": "log"},
        "y": {"label": "efficiency", "percent": True, "zero": True},
        "series": series,
    }


def main():
    program = sys.argv[1]
    if not plot.can_draw():
        sys.exit(f"scale: the charts need {plot.NEEDS}")
    text, charts = PAGE.read_text(), []
    for name, config, experts in MODELS:
        mark = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        rows = table(program, config, experts)
        text, found = re.subn(mark, lambda m, rows=rows: f"{m[1]}{rows}\n{m[2]}", text, flags=re.S)
        if found != 1:
            sys.exit(f"scale: {PAGE} has no place for the table {name}")
        charts.append(chart(program, name, config, experts))
    PAGE.write_text(text)
    for one in charts:
        picture = PAGE.parent / "images" / f"{one['id']}.svg"
        plot.draw(one, picture)
        print(picture)


main()
