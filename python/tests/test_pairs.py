"""Holds experiments/gpu, many small models as one program, to `couplet train` and to couplet.erc_loss."""

import gzip
import json
import os
import subprocess
import sys
import time

import counting
import couplet
import numpy
import pytest
import torch
from conftest import ROOT, close, needs_counts
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.append(str(ROOT / "experiments" / "gpu"))
import decide
import equal
import pairs
import replicas

PROGRAM = os.environ.get("COUPLET_PROGRAM") or couplet.find_program()
SMALL = [*pairs.SETTINGS, *pairs.REHEARSAL]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Returns a folder of invented token shards: documents of two sources."""
    folder, random = tmp_path_factory.mktemp("tokens"), numpy.random.default_rng(0)
    for name, count in (("train", 4000), ("validation", 700)):
        (folder / name).mkdir()
        stem = folder / name / "part-0-00000"
        random.zipf(1.3, count).clip(max=4095).astype("<u2").tofile(f"{stem}.npy")
        edges = [0, count // 3, count // 2, count]
        with gzip.open(f"{stem}.csv.gz", "wt") as table:
            table.writelines(f"{a},{b},id,file,1\n" for a, b in zip(edges, edges[1:]))
        (folder / name / "part-0-00000.sources.tsv").write_text("0\tweb\n1\tbooks\n")
        (folder / name / "part-0-00000.sources.u8").write_bytes(bytes([0, 1, 0]))
    return folder


def program_of(tokens, runs, of_tokens=False, steps=6):
    settings = replicas.settings_of([*SMALL, f"train.steps={steps}"])
    program = pairs.Program(settings, tokens, len(runs), torch.device("cpu"), torch.float32, of_tokens=of_tokens)
    program.start(runs)
    program.record()
    return program


def rehearsed(tokens, out, *words):
    pairs.main(time.monotonic(), ["--tokens", str(tokens), "--out", str(out), "--rehearse", *words])
    return json.loads((out / "results.json").read_text())


# ---- the same model ----


@pytest.mark.skipif(PROGRAM is None, reason="the program couplet is not on PATH")
def test_losses_are_those_of_the_program(tmp_path):
    """Every arm has the losses of `couplet train` for 20 steps, from one start, with its batches and its noise."""
    sets = [*SMALL, "train.steps=20", "train.warmup_steps=5"]
    found = equal.compare(PROGRAM, tmp_path, sets, [*pairs.ARMS, *pairs.BONUS])
    assert {name.split()[0] for name in found} == {"start", *pairs.ARMS, *pairs.BONUS}
    assert found["start"] <= 1e-9 and not equal.wrong(found), found
    assert max(value for name, value in found.items() if name.endswith("erc")) <= 1e-6, found


def test_a_setting_that_is_not_followed_is_refused():
    assert replicas.settings_of(["z.weight=0"])["z.weight"] == "0"
    for setting in ("orth.weight=1", "model.router=sigmoid", "erc.draws=2", "erc.no=1", "balance.scope=global"):
        with pytest.raises(ValueError, match=setting.split("=")[0]):
            replicas.settings_of([setting])


@pytest.mark.parametrize("proxy", ("row", "tokens"))
def test_coupling_is_erc_loss(proxy):
    N, n, D, d = 3, 6, 5, 8
    router, gates = torch.randn(N, n, d).requires_grad_(), torch.randn(N, n, D, d).requires_grad_()
    means = torch.cat((torch.randn(N, d), torch.full((N, 1), 20.0)), 1)
    uniform = torch.stack([replicas._noise.uniform(0, n * d, 5, 9, r, torch.device("cpu")) for r in range(N)])
    rows = replicas.proxies(router, means) if proxy == "tokens" else router
    got = replicas.coupling(rows, gates, 0.8, uniform.view(N, n, d))
    gradients = torch.autograd.grad(got.sum(), (router, gates))
    for r in range(N):
        leaves = [t[r].detach().clone().requires_grad_() for t in (router, gates)]
        scale = (means[r, -1] - means[r, :-1].square().sum()).sqrt()
        more = dict(proxy="tokens", mean=means[r, :-1], scale=scale) if proxy == "tokens" else {}
        want = couplet.erc_loss(*leaves, alpha=0.8, seed=5, step=9, layer=r, **more)
        close(got[r], want, 1e-6)
        for ours, theirs in zip(gradients, torch.autograd.grad(want, leaves)):
            close(ours[r], theirs, 1e-5)


# ---- replicas ----


@pytest.mark.parametrize("of_tokens", (False, True))
def test_replicas_are_independent(tokens, of_tokens):
    """A replica alone has the losses that it has in the stack, and the arms of a seed begin alike and part."""
    runs = [("T1", 200), ("T1", 201)] if of_tokens else [(arm, seed) for seed in (200, 201) for arm in pairs.ARMS]
    stack = program_of(tokens, runs, of_tokens)
    stack.train()
    figures = stack.evaluate()
    for r in (0, 1, len(runs) - 1):
        alone = program_of(tokens, [runs[r]], of_tokens)
        alone.train()
        close(alone.losses[:, :, 0], stack.losses[:, :, r], 1e-6)
        assert alone.evaluate()[0]["nats"] == pytest.approx(figures[r]["nats"], abs=2e-6)
    assert len({one["nats"] for one in figures}) == len(runs)
    if not of_tokens:
        first = stack.losses[0, 0]
        assert len(first[:4].unique()) == 1 and first[0] != first[4]


def test_a_replica_that_is_not_finite_is_skipped(tokens):
    stack = program_of(tokens, [("E1", 200), ("V1", 201)])
    with torch.no_grad():
        stack.flat[0, -1] = float("nan")  # a number of the head
    before = stack.flat.detach().clone()
    stack.train()
    same = (before == stack.flat.detach()) | before.isnan()
    assert same[0].all() and not same[1].all() and stack.count.flatten().tolist() == [0, 6]
    assert [one["nats"] is None for one in stack.evaluate()] == [True, False]


def test_sequences_have_the_source_of_most_tokens(tokens):
    shards = pairs.read_shards(tokens / "validation", 32)
    assert shards.names == ["books", "web"] and len(shards.tokens) == 700 // 32
    want = ["web"] * 7 + ["books"] * 4 + ["web"] * 10  # documents end at 233 and 350 of 700
    assert [shards.names[k] for k in shards.source] == want


@needs_counts
@pytest.mark.parametrize("of_tokens", (False, True))
def test_a_step_can_be_recorded(of_tokens, monkeypatch):
    """A step reads no number and copies nothing between host and device, which a CUDA graph could not record. The
    backward pass needs a driver, and is left out."""
    shards = pairs.Shards(torch.zeros(50, 32, dtype=torch.int32), None, [])
    monkeypatch.setattr(pairs, "read_shards", lambda folder, S: shards)
    monkeypatch.setattr(torch.autograd, "grad", lambda total, leaf: (torch.empty_like(leaf),))
    with FakeTensorMode(allow_non_fake_inputs=True):
        settings, device = replicas.settings_of(SMALL), torch.device("cuda")
        program = pairs.Program(settings, ROOT, 4, device, torch.bfloat16, of_tokens=of_tokens)
        counts = counting.counted(program.step)
    assert counts.kernels > 300 and counts.host_copies == 0


# ---- the command ----


def test_rehearsal(tokens, tmp_path):
    """The command with two replicas a program: all arms, the bonus, fewer seeds below the needed speed; and what
    decide.py says of a rehearsal."""
    words = ["--tokens", tokens, "--out", tmp_path, "--rehearse", "--seeds", "4", "--fewer", "2", "--needed", "1e12"]
    for script in (["pairs.py", *words], ["decide.py", tmp_path / "results.json"]):
        run = [sys.executable, ROOT / "experiments/gpu" / script[0], *script[1:]]
        done = subprocess.run(list(map(str, run)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("This is a rehearsal.") and "too few pairs" in done.stdout
    found = json.loads((tmp_path / "results.json").read_text())
    runs = {(run["arm"], run["seed"]) for run in found["runs"]}
    assert runs == {(arm, seed) for arm in (*pairs.ARMS, "T1") for seed in (200, 201)}
    assert found["end"] == "all runs were made" and found["seeds"] == 2 and found["rehearsal"]
    assert len(found["programs"]) == 5 and found["arms"]["E1"]["runs"] == 2
    for run in found["runs"]:
        assert run["skipped"] == 0 and len(run["dz"]) == 2 and list(run["by_source"]) == ["books", "web"]
        assert run["curve"]["loss"][0] == pytest.approx(numpy.log(4096), abs=0.05) and 0 < run["nats"] < 8.3


def test_time_is_kept_and_a_second_call_goes_on(tokens, tmp_path):
    """Without time there are no runs, and the results say so. A second call makes what is missing and no more."""
    cut = rehearsed(tokens, tmp_path / "a", "--minutes", "0")
    assert cut["runs"] == [] and cut["end"].startswith("the time was over")
    whole = rehearsed(tokens, tmp_path / "b")
    del whole["runs"][2:4], whole["programs"][1]
    (tmp_path / "part.json").write_text(json.dumps(whole))
    again = rehearsed(tokens, tmp_path / "c", "--from", str(tmp_path / "part.json"))
    assert len(again["programs"]) == 5 and again["end"] == "all runs were made"
    assert [(run["arm"], run["seed"]) for run in again["runs"][-2:]] == [("V1", 200), ("E1", 200)]
    with pytest.raises(SystemExit, match="replicas of .*part.json is 2, here it is 4"):
        rehearsed(tokens, tmp_path / "d", "--replicas", "4", "--seeds", "4", "--from", str(tmp_path / "part.json"))


def test_a_step_that_cannot_be_recorded_runs_as_it_is(monkeypatch, capsys):
    """Without a compiler the pieces are plain, and without a CUDA graph the steps are repeated one by one."""
    failing, found = [], []

    class Program:
        def __init__(self, *words, pieces):
            self.compiled = pieces != replicas.PLAIN

        def start(self, runs):
            assert runs == [("E1", 0)] * 4

        def record(self, graph):
            found.append((self.compiled, graph))
            if len(found) in failing:
                raise AssertionError

    monkeypatch.setattr(pairs, "Program", Program)
    for failing, word in (((), "compiled"), ((1,), "not compiled"), ((1, 2), "not compiled, without a CUDA graph")):
        found.clear()
        assert pairs.fused({}, ROOT, 4, torch.device("cuda"))[1] == word
        assert found == [(True, True), (False, True), (False, False)][: len(failing) + 1]
        assert capsys.readouterr().out.count("cannot be recorded, AssertionError") == len(failing)
    failing, _ = (1, 2, 3), found.clear()
    with pytest.raises(AssertionError):
        pairs.fused({}, ROOT, 4, torch.device("cuda"))


# ---- decisions ----


def results(effects, n=96, sd=0.030):
    """Returns invented runs with these exact mean differences."""
    noise = numpy.random.default_rng(3).normal(size=(2, n))
    noise = sd * (noise - noise.mean(1, keepdims=True)) / noise.std(1, ddof=1, keepdims=True)
    runs = []
    for (arm, other), effect, own in zip(decide.PAIRS.values(), effects, noise):
        for seed in range(n):
            runs.append(dict(arm=other, seed=seed, nats=4.0, dz=[1.0, None], skipped=0))
            runs.append(dict(arm=arm, seed=seed, nats=4.0 + effect + own[seed], dz=[1.5, None], skipped=0))
    return runs


@pytest.mark.parametrize(
    "effects, words",
    (
        ((0.029, 0.0), ("worse", "equivalent")),
        ((-0.02, 0.0065), ("better", "worse")),
        ((0.0065, 0.0065), ("undecided", "undecided")),  # Holm's first step is not passed
        ((0.0, 0.005), ("equivalent", "undecided")),
    ),
)
def test_decisions(effects, words):
    assert tuple(one[0] for one in decide.decide(results(effects)).values()) == words


def test_incomplete_seeds_are_left_out():
    runs = results((0.0, 0.0), n=40)
    runs[0]["nats"] = None
    runs[-1]["skipped"] = decide.MOST_SKIPPED  # a run that diverged
    kept, left_out = decide.complete([run for run in runs if (run["arm"], run["seed"]) != ("E0", 5)])
    assert left_out == [0, 5, 39] and len(kept) == 37 * 4
    assert decide.decide(kept)["with z-loss"][4] == 37
    few = decide.decide(decide.complete(results((0.1, 0.1), n=31))[0])
    assert all(one[0].startswith("undecided") for one in few.values())


def test_a_series_is_decided_once(capsys):
    """A series that was cut shows no figure before it is ended."""
    cut = dict(runs=results((0.1, 0.1), n=40), seeds=64, rehearsal=False, dtype="bf16", end="the time was over")
    cut["machine"] = dict(device="invented", torch="2.4")
    decide.show(cut, False)
    said = capsys.readouterr().out
    assert said.startswith("40 of 64 seeds were run") and "nats" not in said
    decide.show(cut, True)
    assert capsys.readouterr().out.count(": worse") == 2
    cut["runs"][0]["nats"] = None  # a run that failed was run
    decide.show({**cut, "seeds": 40}, False)
    assert "left out: 0" in capsys.readouterr().out
