"""The program's event files, read by TensorBoard itself."""

import json
import math
import shutil
import subprocess

import couplet
import pytest
from conftest import ROOT

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

RUN = ROOT / "experiments" / "runs" / "a-erc-1-s100"


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
def test_a_recorded_run(tmp_path):
    program = couplet.find_program()
    subprocess.run([program, "export", RUN, "--tensorboard", tmp_path], check=True, capture_output=True)
    found = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    found.Reload()
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    for tag, name in (("train/loss", "loss"), ("train/erc", "erc"), ("validation/val_loss", "val_loss")):
        assert [(e.step, e.value) for e in found.Scalars(tag)] == [
            (line["step"], pytest.approx(line[name], rel=1e-6)) for line in lines if line.get(name) is not None
        ]
    for layer in range(len(lines[0]["eps_mean"])):
        assert [e.value for e in found.Scalars(f"eps_mean/layer_{layer}")] == pytest.approx(
            [line["eps_mean"][layer] for line in lines], rel=1e-6
        )
    walls = [e.wall_time for e in found.Scalars("train/loss")]
    assert walls == sorted(walls) and walls[-1] - walls[0] > 60
    assert b"erc:" in found.Tensors("config")[0].tensor_proto.string_val[0]


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
def test_samples_are_text(tmp_path):
    (tmp_path / "config.yaml").write_text("train:\n    steps: 8\n")
    lines = [
        {
            "schema": 2,
            "step": step,
            "loss": 1.0,
            "tokens_per_s": 1.0,
            "samples": [{"prompt": "once", "text": f" upon\n*{step}*"}],
        }
        for step in (4, 8)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run(
        [couplet.find_program(), "export", tmp_path, "--tensorboard", tmp_path / "made"],
        check=True,
        capture_output=True,
    )
    found = EventAccumulator(str(tmp_path / "made"), size_guidance={"tensors": 0})
    found.Reload()
    assert [(e.step, e.tensor_proto.string_val[0].decode()) for e in found.Tensors("samples/1")] == [
        (step, f"prompt\n\n    once\n\ncontinued\n\n     upon\n    *{step}*") for step in (4, 8)
    ]


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
def test_counts_are_histograms(tmp_path):
    (tmp_path / "config.yaml").write_text("train:\n    steps: 8\n")
    counts = {4: [[5, 3, 0, 8], [4, 4, 4, 4]], 8: [[16, 0, 0, 0], [1, 2, 6, 7]]}
    lines = [
        {"schema": 2, "step": step, "loss": 1.0, "tokens_per_s": 1.0, "tokens_per_expert": layers}
        for step, layers in counts.items()
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    subprocess.run(
        [couplet.find_program(), "export", tmp_path, "--tensorboard", tmp_path / "made"],
        check=True,
        capture_output=True,
    )
    found = EventAccumulator(str(tmp_path / "made"), size_guidance={"histograms": 0})
    found.Reload()
    for layer in (0, 1):
        events = found.Histograms(f"tokens_per_expert/layer_{layer}")
        assert [event.step for event in events] == list(counts)
        for event in events:
            numbers, one = counts[event.step][layer], event.histogram_value
            assert (one.num, one.min, one.max, one.sum) == (4, min(numbers), max(numbers), sum(numbers))
            assert one.sum_squares == sum(number**2 for number in numbers)
            ends = [*one.bucket_limit[:-1], math.inf]
            assert sum(one.bucket) == 4 and (
                one.min == one.max
                or one.bucket
                == [sum(low <= number < high for number in numbers) for low, high in zip([-math.inf, *ends], ends)]
            )


def steps_in(found):
    found.Reload()
    return [(e.step, e.value) for e in found.Scalars("train/loss")]


@pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")
def test_an_open_tensorboard(tmp_path):
    """It shows each step of a run once when the run is resumed from a checkpoint, an earlier one too."""
    run = tmp_path / "run"
    settings = (
        "train.steps=6",
        "train.warmup_steps=1",
        "checkpoint.every=3",
        "eval.every=0",
        "log.every=1",
        "data.batch_tokens=256",
        "log.tensorboard=true",
    )

    def train(*words):
        subprocess.run([couplet.find_program(), "train", *words], check=True, capture_output=True)
        return [
            (line["step"], pytest.approx(line["loss"], rel=1e-6))
            for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        ]

    wanted = train(ROOT / "configs" / "tiny.yaml", "--out", run, *(word for one in settings for word in ("--set", one)))
    found = EventAccumulator(str(run), size_guidance={"scalars": 0})
    assert steps_in(found) == wanted and len(wanted) == 6
    (run / "last").unlink()
    (run / "last").symlink_to("step-000003")
    shutil.rmtree(run / "step-000006")
    assert train("--resume", run) == wanted == steps_in(found)
    wanted = train("--resume", run, "--set", "train.steps=7")
    assert steps_in(found) == wanted and len(wanted) == 7
    assert len(list(run.glob("events.out.tfevents.*"))) == 3
