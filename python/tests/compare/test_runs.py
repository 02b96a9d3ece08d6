"""Runs as read from their folders: complete, compressed, damaged, resumed, of older versions, or no runs at all."""

import fcntl
import gzip
import json
import math

import pytest
from couplet.compare._runs import BadRun, Run, read_runs
from couplet.compare._yaml import read_settings
from couplet.report._files import BadFile
from invented import Invented

PLAIN = Invented("plain", seed=3, last=6, steps=6)


def test_figures_are_those_of_the_lines(tmp_path):
    run = Run(str(PLAIN.write(tmp_path)))
    assert (run.name, len(run.lines), run.steps, run.in_progress) == ("plain", 6, 6, False)
    assert run.n_damaged + run.n_repeated == 0 and run.data is None and run.start is None
    for step, line in enumerate(run.lines, 1):
        assert (line.step, line.tokens) == (step, 100 * step)
        assert line.values["loss"] == PLAIN.loss(step)
        assert line.values["eps_mean"] == pytest.approx((PLAIN.eps(step, 0) + PLAIN.eps(step, 1)) / 2, 1e-12)
        assert line.layers["eps_mean"][1] == PLAIN.eps(step, 1)
        assert line.values["alpha_min"] == 2  # the value of the layer that has one
        assert math.isnan(line.values["erc"]) and math.isnan(line.values["grad_norm"])
        assert line.is_evaluated() == (step % 2 == 0)
    assert run.lines[5].val_loss("b") == PLAIN.val(6) + 0.5
    assert math.isnan(run.lines[4].val_loss("b")) and math.isnan(run.lines[5].val_loss("c"))


def test_lines_are_found_by_tokens(tmp_path):
    run = Run(str(PLAIN.write(tmp_path)))
    assert run.line_before(99) is None and run.line_at(399) is None and run.line_at(400).step == 4
    assert [run.line_before(tokens).step for tokens in (100, 399, 1e9)] == [1, 3, 6]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_compressed_metrics(tmp_path, ending):
    folder = PLAIN.write(tmp_path)
    blob = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").unlink()
    pack = gzip.compress if ending == ".gz" else pytest.importorskip("zstandard").compress
    packed = folder / f"metrics.jsonl{ending}"
    packed.write_bytes(pack(blob))
    assert Run(str(folder)).lines[5].values["loss"] == PLAIN.loss(6)
    packed.write_bytes(b"")
    with pytest.raises(BadRun, match="ends too early"):
        Run(str(folder))
    packed.write_bytes(b"no compressed file")
    with pytest.raises(BadRun, match="corrupt compressed data"):
        Run(str(folder))


def test_a_cut_compressed_file_has_its_beginning(tmp_path):
    folder = PLAIN._replace(last=4000, steps=4000).write(tmp_path)
    packed = gzip.compress((folder / "metrics.jsonl").read_bytes())
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    run = Run(str(folder))
    assert "metrics.jsonl.gz" in run.cut and 1000 < len(run.lines) < 3000
    (folder / "metrics.jsonl.gz").write_bytes(packed[:40])
    with pytest.raises(BadRun, match="no line of its metrics could be read"):
        Run(str(folder))


def test_damaged_lines_are_counted(tmp_path):
    folder = PLAIN.write(tmp_path)
    (folder / "metrics.jsonl").write_bytes(
        b'{"step":1,"loss":5}\nnot JSON\n\n[1, 2]\n{"loss":4}\n'
        b'{"step":2,"loss":4,"eps_mean":[3,null],"val_loss":null}\n{"step":3,"loss":3}\r\n'
        b'{"step":4,"loss":null,"skipped":1}\n\0\0\0\n \t\r\n{"step":5,"lo'
    )
    run = Run(str(folder))
    assert (len(run.lines), run.n_damaged, run.in_progress) == (4, 5, True)
    assert run.lines[2].tokens == 300 and run.lines[1].values["eps_mean"] == 3  # tokens by data.batch_tokens
    assert math.isnan(run.lines[1].val_loss()) and math.isnan(run.lines[3].values["loss"])


@pytest.mark.parametrize(
    "bad",
    [
        '{"step":2}',
        '{"step":2,"tokens":200}',
        '{"step":2,"tokens":200,"val_loss":3}',
        '{"step":2,"tokens":200,"loss":null}',
        '{"step":2,"tokens":200,"loss":"abc"}',
        '{"step":2,"tokens":200,"loss":true}',
        '{"step":2,"tokens":200,"loss":1e999}',
        '{"step":2,"tokens":200,"loss":NaN}',
        '{"step":2,"tokens":200,"loss":3,"eps_mean":["a"]}',
        '{"step":2,"tokens":200,"loss":3,"eps_mean":3}',
        '{"step":2,"tokens":200,"loss":3,"balance":[1]}',
        '{"step":2,"tokens":200,"loss":3,"val_loss_by_source":[1]}',
        '{"step":2,"tokens":200,"loss":3,"val_loss_by_source":{"a":"b"}}',
        '{"step":2,"tokens":null,"loss":3}',
        '{"step":2,"tokens":"200","loss":3}',
        '{"step":2,"tokens":201,"loss":3}',
        '{"step":2,"tokens":20000,"loss":3}',
        '{"step":2.5,"tokens":250,"loss":3}',
        '{"step":null,"tokens":200,"loss":3}',
        '{"step":' + "9" * 400 + ',"loss":3}',
        "[" * 100_000,
    ],
)
def test_a_line_without_its_figures_is_damage(bad, tmp_path):
    """A bad line does not replace the good line of its step."""
    folder = PLAIN.write(tmp_path)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(bad + "\n")
    run = Run(str(folder))
    assert (len(run.lines), run.n_damaged, run.n_repeated) == (6, 1, 0)
    assert run.lines[1].values["loss"] == PLAIN.loss(2)


def test_tokens_that_fall_are_damage(tmp_path):
    """Without data.batch_tokens the lines are compared with each other."""
    folder = PLAIN.write(tmp_path)
    (folder / "config.yaml").write_text("train:\n    steps: 8\n")
    tokens = (100, 200, 30000, 400, 500, 40, 700, 700)
    lines = (json.dumps({"step": i, "tokens": t, "loss": i}) + "\n" for i, t in enumerate(tokens, 1))
    (folder / "metrics.jsonl").write_text("".join(lines))
    run = Run(str(folder))
    assert run.n_damaged == 3 and [line.step for line in run.lines[:4]] == [1, 2, 4, 5] and run.tokens[4] == 700


def test_the_last_line_of_a_step_counts(tmp_path):
    folder = PLAIN.write(tmp_path)
    steps = (1, 2, 3, 4, 3, 4, 4, 7, 5)
    (folder / "metrics.jsonl").write_text("".join(f'{{"step":{s},"loss":{i}}}\n' for i, s in enumerate(steps)))
    run = Run(str(folder))
    assert run.n_repeated == 3
    assert [(line.step, line.values["loss"]) for line in run.lines] == [(1, 0), (2, 1), (3, 4), (4, 6), (5, 8), (7, 7)]


def test_a_run_in_progress(tmp_path):
    assert Run(str(PLAIN._replace(name="begun", steps=7).write(tmp_path))).in_progress
    folder = PLAIN.write(tmp_path)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Run(str(folder)).in_progress
    assert not Run(str(folder)).in_progress
    for gone in (False, True):
        (folder / "metrics.jsonl").unlink() if gone else (folder / "metrics.jsonl").write_text("")
        run = Run(str(folder))
        assert run.lines == [] and run.line_before(1e9) is None and run.in_progress


def test_what_stands_beside(tmp_path):
    start = {"loss": 0, "val_loss": 8.5, "eps_mean": [0.25, 0.75], "val_loss_by_source": {"c": 9}, "balance": 0}
    folder = PLAIN._replace(start=start).write(tmp_path)
    for step, data in ((4, "old"), (6, "abcd")):
        (folder / f"step-{step:06}").mkdir()
        (folder / f"step-{step:06}" / "state.json").write_text(json.dumps({"data": data}))
    (folder / "step-000006" / "checksums.json").write_text('{"tokenizer.json": "0123456789abcdef"}')
    run = Run(str(folder))
    assert run.start.val_loss() == 8.5 and run.start.values["eps_mean"] == 0.5 and run.start.val_loss("c") == 9
    assert math.isnan(run.start.values["loss"]) and math.isnan(run.start.values["balance"])  # figures of a step
    assert (run.data, run.tokenizer, run.checkpoint_step()) == ("abcd", "0123456789abcdef", 6)
    (folder / "last").symlink_to("step-000004")
    assert (Run(str(folder)).data, Run(str(folder)).checkpoint_step()) == ("old", 4)
    (folder / "start.json").write_text('{"data":"a1","held_out":"b2","tokenizer":"c3"}')
    run = Run(str(folder))
    assert (run.data, run.held_out, run.tokenizer) == ("a1", "b2", "c3")  # start.json is preferred to the checkpoint
    (folder / "start.json").write_text('{"data":1,"held_out":null}')
    assert (Run(str(folder)).data, Run(str(folder)).held_out) == ("old", None)
    for text in ("[1]", '{"step":'):
        (folder / "start.json").write_text(text)
        with pytest.raises(BadRun, match="start.json"):
            Run(str(folder))


def test_a_folder_named_twice_is_read_once(tmp_path):
    one, two = PLAIN.write(tmp_path), PLAIN._replace(name="other").write(tmp_path)
    (tmp_path / "link").symlink_to(two)
    names = [str(one), str(two), f"{two}/../plain/", str(tmp_path / "link")]
    runs = read_runs(names)
    assert [run.duplicate for run in runs] == names[2:]
    with pytest.raises(BadRun, match="no such folder"):
        read_runs([str(one), "/no/such", str(two)])


def test_what_is_no_run(tmp_path):
    for files, sentence in (
        ([], "has no config.yaml"),
        (["metrics.jsonl"], "has metrics.jsonl but no config.yaml"),
        (["state.json", "config.json"], "is a checkpoint, not a run"),
        (["config.json"], "is a model directory, not a run"),
        (["model.safetensors", "config.yaml"], "is a model directory, not a run"),
    ):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name in files:
            (folder / name).write_text("{}")
        with pytest.raises(BadRun, match=sentence):
            Run(str(folder))
    with pytest.raises(BadRun, match="is no folder of a run"):
        Run(str(folder / "config.yaml"))


@pytest.mark.parametrize(
    "value, want",
    [
        ("10", "10"),
        ("", ""),
        ('"a: \\"b\\" \\x1b\\u00e9\\\\ # c"  # comment', 'a: "b" \x1b\u00e9\\ # c'),
        ("'it''s'", "it's"),
        ("../a/b.jsonl # comment", "../a/b.jsonl"),
        ('[a, "b, c]", d]', '[a, "b, c]", d]'),
        ("{web: 2, 'x y': 0.5}  # weights", "{web: 2, 'x y': 0.5}"),
    ],
)
def test_values_of_a_configuration(value, want):
    assert read_settings(f"# head\ndata:\n    # a comment\n    x: {value}\n\ntop: 1\n".encode()) == {
        "data.x": want,
        "top": "1",
    }


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a:\n  b\n",
        "  b: 1\n",
        "a:\n    b: [1\n",
        'a:\n    b: "1\n',
        "a:\n    b: &x 1\n",
        "a:\n    b: 1\n  c: 2\n",
        "a:\n\tb: 1\n",
    ],
)
def test_what_is_no_configuration(text):
    with pytest.raises(BadFile, match=r"line \d is not in the form"):
        read_settings(text.encode())
