#!/usr/bin/env python3
"""check_device.py ON_HOST: tools/device.sh to its end with the emulation, whose programs are in ON_HOST; what it says where
a stage fails or takes too long, where there is no GPU, and which piece is next."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import device

ON_HOST, wrong = pathlib.Path(sys.argv[1]).parent, []


def check(truth, what):
    if not truth:
        wrong.append(what)


def run(out, *words):
    done = subprocess.run([ROOT / "tools/device.sh", *words], capture_output=True, text=True, check=False,
                          env=dict(os.environ, OUT=str(out)))
    reports = list(out.glob("*.md"))
    return done, reports[0].read_text() if reports else ""


def results(report):
    return dict(re.findall(r"^## (\w+): (passed|FAILED|not run), ", report, re.M))


def check_whole(out):
    """Every stage, in its order; what a machine lacks is said."""
    done, report = run(out, "--on-host", ON_HOST)
    found = results(report)
    check(done.returncode == 0, f"the rehearsal: exit code {done.returncode}\n{done.stdout}{done.stderr}\n{report[-3000:]}")
    stages = [stage for stage in device.NAMES if not stage.startswith("python")]
    check(sorted(found) == sorted(stages), f"stages of the report: {found}")
    for name, word in found.items():
        check(word == "passed" or f"not run: there is no {'ncu' if name == 'ncu' else 'compute-sanitizer'}" in report,
              f"{name}: {word}")
    check("| experts_backward |" in report and "| erc.run_local |" in report, "operations of a layer are not in the table")
    check(report.startswith("# The emulation on the host: no GPU\n"), f"the report begins with {report[:60]!r}")


def check_failures(out):
    """A stage that fails and one that hangs; the next one runs."""
    programs = out / "programs"
    programs.mkdir(parents=True)
    for name, text in (("test_cuda", "echo broken; exit 3"), ("operations", "sleep 600")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    shutil.copy(ON_HOST / "couplet", programs)  # no module beside it
    kit = device.Kit(programs, device.OnHost, out, out)
    kept, device.SECONDS[device.operations] = device.SECONDS[device.operations], 0.05
    failed = device.run_piece("stages", [device.opens, device.operations, device.gradients], kit)
    device.SECONDS[device.operations] = kept
    report = next(out.glob("*.md")).read_text()
    check(failed and results(report) == dict.fromkeys(("opens", "operations", "gradients"), "FAILED"), report)
    for sentence in ("exit code 3\nbroken", "the time of this stage is over", "there is no couplet-cuda.so"):
        check(sentence in report, f"{sentence!r} is not in the report: {report}")


def check_differences(out):
    """Runs that are not the same, and losses too far apart."""
    for name, loss, weights in (("a", 2.5, b"1"), ("b", 2.6, b"1"), ("c", 2.5, b"2")):
        (out / name / "last").mkdir(parents=True)
        (out / name / "last" / "weights").write_bytes(weights)
        (out / name / "metrics.jsonl").write_text(f'{{"step": 1, "loss": {loss}, "loss_total": {loss}}}\n' * 3)
    kit = device.Kit(out, device.OnHost, out, out)
    for other, sentence in (("b", "step 1: loss"), ("c", "weights")):
        try:
            device.check_same(out / "a", out / other)
            check(False, f"the difference of {other} is not found")
        except device.Failed as failure:
            check(sentence in str(failure), str(failure))
    kit.once, kit.sizes = lambda name, *_: out / {"cpu": "a", "gpu": "b"}[name], type("Three", (), {"steps": 3})
    try:
        device.steps(kit)
        check(False, "losses that are 4 % apart pass")
    except device.Failed:
        pass


def check_pieces(out):
    """Their lengths, and which is next."""
    lengths = {piece: sum(device.SECONDS[stage] for stage in stages) for piece, (stages, _) in device.PIECES.items()}
    check(lengths["short"] <= 200 and all(seconds <= 560 for seconds in lengths.values()), f"lengths: {lengths}")
    device.REPORTS = out
    for piece, (_, sources) in device.PIECES.items():
        check(device.next_piece() == piece, f"next is {device.next_piece()}, not {piece}")
        (out / f"{piece}.md").write_text(f"* Piece: {piece}; code: {device.mark(sources)}\n")
    check(device.next_piece() is None, "there is a next piece behind the last one")
    (out / "short.md").write_text("* Piece: short; code: 0123456789abcdef\n")
    check(device.next_piece() == "short", "a report of other sources counts")


def check_refusals(out):
    done, _ = run(out, "--only", "twins,nothing", "--on-host", ON_HOST)
    check(done.returncode == 2 and "there is no stage nothing; stages: opens, " in done.stderr, done.stderr)
    if not shutil.which("nvidia-smi"):
        done, _ = run(out, "--short")
        check(done.returncode == 2 and "There is no NVIDIA GPU here" in done.stderr, f"{done.returncode}: {done.stderr}")
    device.PROGRAMS = out
    for made in ("of other sources", "emulation"):
        (out / "code").write_text(f"{made}\n")
        try:
            device.programs_of(type("Arguments", (), {"on_host": None}))
            check(False, f"programs are run that were made {made}")
        except SystemExit as refused:
            check(refused.code == 2, f"{made}: {refused.code}")


with tempfile.TemporaryDirectory() as folder:
    for one in (check_whole, check_failures, check_differences, check_pieces, check_refusals):
        place = pathlib.Path(folder) / one.__name__
        place.mkdir()
        one(place)
print("\n".join(wrong))
sys.exit(bool(wrong))
