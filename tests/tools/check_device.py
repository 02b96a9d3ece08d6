#!/usr/bin/env python3
"""check_device.py ON_HOST: runs tools/device.sh to its end with the emulation, whose programs are in ON_HOST. Checks
its output if a stage fails or takes too long, if there is no GPU, and the choice of the next piece."""

import os
import pathlib
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests/cli")]
import device
from program import capture, check, finish

ON_HOST = pathlib.Path(sys.argv[1]).parent


def run(out, *words):
    done = capture([ROOT / "tools/device.sh", *words], env=dict(os.environ, OUT=str(out)))
    return done, "".join(report.read_text() for report in sorted(out.glob("*.md")))


def check_whole(out):
    """Every stage runs, in its order. Missing parts of a machine are named."""
    done, report = run(out, "--on-host", ON_HOST)
    found = device.results(report)
    check(
        done.returncode == 0,
        f"the rehearsal: exit code {done.returncode}\n{done.stdout}{done.stderr}\n{report[-3000:]}",
    )
    stages = [stage for stage in device.NAMES if not stage.startswith("python")]
    check(sorted(found) == sorted(stages), f"stages of the report: {found}")
    for name, word in found.items():
        check(
            word == "passed" or f"not run: there is no {'ncu' if name == 'ncu' else 'compute-sanitizer'}" in report,
            f"{name}: {word}",
        )
    check(
        "| experts_backward |" in report and "| erc.run_local |" in report, "operations of a layer are not in the table"
    )
    check(report.startswith("# The emulation on the host: no GPU\n"), f"the report begins with {report[:60]!r}")
    check(
        "* Hinges active at step 4, means of the layers: 100% of rows, 100% of columns" in report
        and "* Share of the coupling loss, (with - without) / without: " in report,
        "the share of the coupling loss is not given",
    )


def check_failures(out):
    """One stage fails and one hangs: the next stage runs."""
    programs = out / "programs"
    programs.mkdir(parents=True)
    for name, text in (("test_cuda", "echo broken; exit 3"), ("operations", "sleep 600")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    shutil.copy(ON_HOST / "couplet", programs)  # there is no module beside it
    kit = device.Kit(programs, device.OnHost, out, out)
    kept, device.SECONDS[device.operations] = device.SECONDS[device.operations], 0.05
    failed = device.run_piece("stages", [device.opens, device.operations, device.gradients], kit)
    device.SECONDS[device.operations] = kept
    report = next(out.glob("*.md")).read_text()
    check(
        failed == 1 and device.results(report) == dict.fromkeys(("opens", "operations", "gradients"), "FAILED"), report
    )
    for sentence in ("exit code 3\nbroken", "the time of this stage is over", "there is no couplet-cuda.so"):
        check(sentence in report, f"{sentence!r} is not in the report: {report}")
    kit.python = shutil.which("false")
    check(device.run_piece("python-tests", [device.python_tests], kit) == 2, "a Python without torch: the exit code")
    check("## python_tests: not run, " in kit.report.read_text(), kit.report.read_text())
    check(len(list(out.glob("*.md"))) == 2, "a report takes the place of another")
    (programs / "couplet").unlink()
    (programs / "couplet").write_text(f"#!/bin/sh\nmkdir -p {out}/gpu/last; setsid sleep 8 & exit 1\n")
    (programs / "couplet").chmod(0o755)
    begin = time.monotonic()
    try:
        device.on_gpu(kit)
        check(False, "a run that fails is a run")
    except device.Failed:
        check(
            not (out / "gpu").exists() and time.monotonic() - begin < 5,
            "a run that failed is kept, or what it left is waited for",
        )


def check_differences(out):
    """Compares runs that are not equal, and losses too far apart."""
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


def check_share(out):
    """Checks the times of steps that are not logged, and the figures made of them."""
    lines = [{"step": step, "tokens_per_s": 8 * 100 / (7 * 2 + 9), "step_s": 9} for step in (8, 16, 24)]
    check(device.unlogged(lines, 100) == [2, 2], f"steps of 2 s: {device.unlogged(lines, 100)}")
    kit = device.Kit(out, device.OnHost, out, out)
    check("unknown" in device.share(kit), "a share without two runs")
    kit.seconds = {"with": [2.02, 2.03, 9], "without": [2, 1, 3]}
    check("/ without: 1.50%; " in device.share(kit), device.share(kit))


def check_memory(out):
    """On a GPU a peak that is 6 % from the plan fails, and so does a loss that does not fall."""
    line = {"step": 8, "tokens_per_s": 1, "step_s": 1, "active_rows": [1], "active_columns": [0]}
    plan = {"T": 16, "step_flops": 1, "bytes": {"total": 100 * 2**30}, "gpu": {"fits": False}}
    kept = device.planned, device.memory_used, device.killed
    for peak, loss, right in ((94, 2, False), (96, 2, True), (105, 2, True), (106, 2, False), (100, 3, False)):
        used, kit = iter((0.5, peak)), device.Kit(out, device.OnHost, out, out)
        kit.sizes = device.Sizes
        (out / "with").mkdir()

        def killed(*arguments):
            arguments[-1]()
            return [{**line, "loss": 3}, {**line, "loss": loss}]

        device.planned, device.memory_used, device.killed = lambda *_: plan, lambda _: next(used), killed
        found, said = device.large(kit, "with")
        check(found == right, f"a peak of {peak - 0.5} of 100 GiB, a loss of 3 and {loss}: {found}")
        check("micro-batches of 4: " in said[0], said[0])
    device.planned, device.memory_used, device.killed = kept


def check_pieces(out):
    """Checks the lengths of the pieces, and the choice of the next one."""
    lengths = {piece: sum(device.SECONDS[stage] for stage in stages) for piece, (stages, _) in device.PIECES.items()}
    check(lengths["short"] <= 200 and all(seconds <= 560 for seconds in lengths.values()), f"lengths: {lengths}")
    device.REPORTS = out
    for piece, (stages, sources) in device.PIECES.items():
        line = f"* Piece: {piece}; code: {device.mark(sources)}"
        for name, first, word, n in (
            ("of stages", line.replace(piece, "stages", 1), "passed", len(stages)),
            ("of other sources", line[:-1] + "_", "passed", len(stages)),
            ("that ended early", line, "passed", len(stages) - 1),
            ("of which nothing was run", line, "not run", len(stages)),
            ("that counts", line, "FAILED", len(stages)),
        ):
            check(
                device.next_piece() == piece, f"next is {device.next_piece()}, not {piece}; the last report: one {name}"
            )
            (out / f"{piece} {name}.md").write_text(
                "\n".join([first, *(f"## {stage.__name__}: {word}, 1.0 s" for stage in stages[:n])])
            )
    check(device.next_piece() is None, "there is a next piece behind the last one")
    device.REPORTS, os.environ["OUT"] = out / "none", str(out)
    check(device.next_piece() is None, "reports in OUT do not count")
    del os.environ["OUT"]
    for piece, file in (
        ("short", "configs/paper-3b.yaml"),
        ("short", "tools/device.py"),
        ("short", "data/train"),
        ("short", "tests/golden/model"),
        ("python-tests", "tests/golden/erc"),
        ("python-pairs", "experiments/gpu/pairs.py"),
    ):
        check(file in device.PIECES[piece][1], f"{piece} does not depend on {file}")
    for _, sources in device.PIECES.values():
        check(all((ROOT / name).exists() for name in sources), f"not there, one of {sources}")


def check_refusals(out):
    done, _ = run(out, "--only", "twins,nothing")
    check(done.returncode == 2 and "there is no stage nothing; stages: opens, " in done.stderr, done.stderr)
    done, _ = run(out, "--help")
    check(done.returncode == 0 and "--next" in done.stdout, f"--help: {done.returncode}, {done.stderr}")
    if not shutil.which("nvidia-smi"):
        done, _ = run(out, "--short")
        check(
            done.returncode == 2 and "There is no NVIDIA GPU here" in done.stderr, f"{done.returncode}: {done.stderr}"
        )
    device.PROGRAMS = out
    for made in ("of no archive", "of other sources", "emulation"):
        (out / "code").write_text(f"{made}\n")
        device.ARCHIVE = out / "nothing" if made == "of no archive" else ROOT / "VERSION"
        try:
            device.programs_of(type("Arguments", (), {"on_host": None}))
            check(False, f"programs are run that were made {made}")
        except SystemExit as refused:
            check(refused.code == 2, f"{made}: {refused.code}")


with tempfile.TemporaryDirectory() as folder:
    for one in (
        check_whole,
        check_failures,
        check_differences,
        check_share,
        check_memory,
        check_pieces,
        check_refusals,
    ):
        place = pathlib.Path(folder) / one.__name__
        place.mkdir()
        one(place)
sys.exit(finish())
