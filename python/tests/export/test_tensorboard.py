"""couplet.export tensorboard, read by TensorBoard itself. The values equal those of the event files that the program of
d6841828 wrote of the run in this folder. Resumed runs that are followed and refused input are tested too."""

import functools
import gzip
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

pytest.importorskip("tensorboard")
from couplet.export import __main__ as program  # noqa: E402
from couplet.export import _tensorboard  # noqa: E402
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.summary.writer import event_file_writer  # noqa: E402

RUN = pathlib.Path(__file__).parent / "run"


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch):
    """Resets the number in names of event files. Files of one second are read in its order as a word: 10 before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def events_of(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    found.Reload()
    return found


def texts_of(found):
    """Returns the texts by tag, without the suffix that SummaryWriter adds."""
    return {
        tag.removesuffix("/text_summary"): [(e.step, e.tensor_proto.string_val[0]) for e in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
    }


def export(*words):
    return program.main(["tensorboard", *map(str, words)])


@pytest.fixture
def run(tmp_path):
    """Returns the folder of a run. The test writes its lines."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(
        "# a run\ntrain:\n    # steps\n    steps: 6\n    seed: 0\nlog:\n    every: 1\n"
    )
    return tmp_path / "run"


def lines_of(*steps, **more):
    return [json.dumps({"schema": 2, "step": step, "loss": step + 0.5, **more}) + "\n" for step in steps]


def write(run, *lines):
    (run / "metrics.jsonl").write_text("".join(lines))


def losses(folder):
    return [(e.step, e.value) for e in events_of(folder).Scalars("train/loss")]


def test_the_values_of_before(tmp_path):
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "events.out.tfevents.1.golden").write_bytes(
        gzip.decompress((RUN / "events.gz").read_bytes())
    )
    want = events_of(tmp_path / "golden")
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "metrics.jsonl.gz"):
        (tmp_path / "run" / name).write_bytes((RUN / name).read_bytes())
    last = want.Scalars("train/loss")[-1].wall_time
    os.utime(tmp_path / "run" / "metrics.jsonl.gz", (last, last))
    assert export(tmp_path / "run", "--out", tmp_path / "made") == 0
    found = events_of(tmp_path / "made")
    assert set(found.Tags()["scalars"]) == set(want.Tags()["scalars"]) and len(found.Tags()["scalars"]) > 100
    for tag in want.Tags()["scalars"]:
        assert [(e.step, e.value) for e in found.Scalars(tag)] == [(e.step, e.value) for e in want.Scalars(tag)], tag
        times = [e.wall_time for e in want.Scalars(tag)]
        assert [e.wall_time for e in found.Scalars(tag)] == pytest.approx(times, abs=1e-3), tag
    assert found.Tags()["histograms"] == want.Tags()["histograms"] != []
    for tag in want.Tags()["histograms"]:
        assert [vars(e) | {"wall_time": 0} for e in found.Histograms(tag)] == [
            vars(e) | {"wall_time": 0} for e in want.Histograms(tag)
        ], tag
    assert texts_of(found).keys() == texts_of(want).keys() == {"config", "samples/1"}
    for tag, texts in texts_of(want).items():
        assert [(step, text.rstrip(b"\n")) for step, text in texts] == texts_of(found)[tag], tag


def test_counts_are_histograms(run, tmp_path):
    counts = {4: [[5, 3, 0, 8], [4, 4, 4, 4]], 8: [[16, 0, 0, 0], [1, 2, None, 6, 7]]}
    write(run, *(line for step, layers in counts.items() for line in lines_of(step, tokens_per_expert=layers)))
    assert export(run) == 0
    found = events_of(run / "tensorboard")
    for layer in (0, 1):
        for event in found.Histograms(f"tokens_per_expert/layer_{layer}"):
            numbers, one = [n for n in counts[event.step][layer] if n is not None], event.histogram_value
            assert (one.num, one.min, one.max, one.sum) == (4, min(numbers), max(numbers), sum(numbers))
            assert one.sum_squares == sum(number**2 for number in numbers)
            ends = [*one.bucket_limit[:-1], math.inf]
            assert sum(one.bucket) == 4 and (
                one.min == one.max
                or one.bucket
                == [sum(low <= number < high for number in numbers) for low, high in zip([-math.inf, *ends], ends)]
            )


def test_samples_are_text(run):
    write(run, *lines_of(4, samples=[{"prompt": "one\n*two*\r*three*\r\n*four*", "text": " upon\n*4*"}, {"text": 1}]))
    assert export(run) == 0
    words = "prompt\n\n    one\n    *two*\n    *three*\n    *four*\n\ncontinued\n\n     upon\n    *4*"
    assert texts_of(events_of(run / "tensorboard"))["samples/1"] == [(4, words.encode())]


def test_a_cut_line_and_a_second_export(run, capsys):
    write(run, *lines_of(1, 2), '{"step": 3, "lo')
    for _ in range(2):
        assert export(run) == 0
    assert "2 steps of" in capsys.readouterr().out.splitlines()[0] and losses(run / "tensorboard") == [
        (1, 1.5),
        (2, 2.5),
    ]
    assert len(list((run / "tensorboard").iterdir())) == 1
    write(run, *lines_of(1), "[1]\n", "{}\n", '{"step": 1e3}\n', *lines_of(2))
    assert export(run) == 0
    assert "3 damaged lines of metrics.jsonl are left out" in capsys.readouterr().out


def test_names_and_numbers_at_the_edge(run):
    name = "x" + "\u00e9" * 250
    more = {"tokens": 1e308, "tokens_per_s": 1e-308, "val_loss": None, "made_with": {"threads": 2, "device": "cpu"}}
    more |= {"val_loss_by_source": {name: 1.5}, "big": 10**400, "home_top1": 1, "eps_mean": [0.25, None], "x": True}
    write(run, *lines_of(1, **more), *lines_of(2))
    assert export(run) == 0
    found = events_of(run / "tensorboard")
    tags = {"train/loss", "train/tokens", "train/tokens_per_s", f"val_loss_by_source/{name}", "made_with/threads"}
    assert set(found.Tags()["scalars"]) == tags | {"eps_mean/layer_0"}
    assert all(math.isfinite(e.wall_time) for e in found.Scalars("train/loss"))


def refusals(run):
    yield "is no run", lambda: (run / "metrics.jsonl").unlink()
    yield "config.yaml: it cannot be read", lambda: (run / "config.yaml").unlink()
    yield "has no line of a step", lambda: write(run, "")
    yield "has no line of a step", lambda: write(run, "\x1b[2J\n", '{"step": -1}\n', '{"step": true}')
    yield "metrics.jsonl: it cannot be read: Is a directory", lambda: folder_in_place(run)
    yield "metrics.jsonl.gz: corrupt compressed data", lambda: pack(run, b"no gzip")
    yield "has event files of something else (events.out.tfevents.1.x)", lambda: others(run)


def folder_in_place(run):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()


def pack(run, blob):
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl.gz").write_bytes(blob)


def others(run):
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.out.tfevents.1.x").touch()


@pytest.mark.parametrize("which", range(7))
def test_what_is_refused(which, run, capsys):
    write(run, *lines_of(1))
    sentence, spoil = list(refusals(run))[which]
    spoil()
    assert export(run) == 1
    said = capsys.readouterr().err
    assert said.startswith("couplet.export: ") and sentence in said and said.count("\n") == 1 and "\x1b" not in said


def test_packed_runs_do_not_grow(run, capsys):
    write(run, *lines_of(1))
    pack(run, gzip.compress((run / "metrics.jsonl").read_bytes()))
    assert export(run, "--follow") == 1 and "leave --follow out" in capsys.readouterr().err


def test_without_a_writer(run, monkeypatch, capsys):
    monkeypatch.setattr(_tensorboard, "find_writer", lambda: None)
    assert export(run) == 2
    assert "pip install tensorboardX" in capsys.readouterr().err


# ---- following ----


class Watched:
    """Replaces the sleep of a follower: each call makes the next change of the run."""

    def __init__(self, changes, monkeypatch):
        self.changes, self.clock = list(changes), 1_000_000_000
        monkeypatch.setattr(_tensorboard.time, "sleep", self.next)

    def next(self, _seconds):
        self.changes.pop(0)()  # IndexError means that the follower did not end


def test_a_run_that_is_cut_and_goes_on(run, monkeypatch):
    """Steps after the checkpoint are written once, from the resumed run. Half a line is read when it is complete."""

    def half():
        with open(run / "metrics.jsonl", "a") as file:
            file.write(lines_of(5)[0][:20])

    def resumed():  # the program writes a new file and renames it
        (run / "new").write_text("".join([*lines_of(1, 2), *lines_of(3, loss=9)]))
        (run / "new").replace(run / "metrics.jsonl")

    def longer():
        (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("steps: 6", "steps: 7"))
        write(run, *lines_of(1, 2), *lines_of(3, loss=9), *lines_of(4, 5, 6))

    def end():
        assert losses(run / "tensorboard") == [(1, 1.5), (2, 2.5), (3, 9), (4, 4.5), (5, 5.5), (6, 6.5)]
        write(run, *lines_of(1, 2), *lines_of(3, loss=9), *lines_of(4, 5, 6, 7))

    write(run, *lines_of(1, 2, 3, 4))
    Watched([half, resumed, longer, end], monkeypatch)
    assert export(run, "--follow") == 0
    assert losses(run / "tensorboard")[-1] == (7, 7.5) and len(losses(run / "tensorboard")) == 7
    assert len(list((run / "tensorboard").iterdir())) == 2  # the second file purges steps from 3 on of the first


def test_a_file_that_is_cut_in_place(run, monkeypatch):
    def again():
        write(run, *lines_of(1), *lines_of(2, loss=7), *lines_of(3, 4, 5, 6))

    write(run, *lines_of(1, 2, 3))
    Watched([again], monkeypatch)
    assert export(run, "--follow") == 0
    assert losses(run / "tensorboard") == [(1, 1.5), (2, 7), (3, 3.5), (4, 4.5), (5, 5.5), (6, 6.5)]


def test_an_interrupt(run):
    """The lines so far are in the file, and the exit code is 130."""
    write(run, *lines_of(1, 2))
    words = [sys.executable, "-m", "couplet.export", "tensorboard", str(run), "--follow"]
    # A shell starts a command with & with SIGINT ignored, which programs inherit.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    follower = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    stop = threading.Timer(120, follower.kill)
    stop.start()
    while follower.poll() is None and not list(run.glob("tensorboard/*tfevents*")):
        pass
    while follower.poll() is None and len(losses_or_none(run)) < 2:
        pass
    follower.send_signal(2)
    _, err = follower.communicate()
    stop.cancel()
    assert follower.returncode == 130 and "Traceback" not in err, err
    assert losses(run / "tensorboard") == [(1, 1.5), (2, 2.5)]


def losses_or_none(run):
    try:
        return losses(run / "tensorboard")
    except KeyError:
        return []
