"""python -m couplet.bench on the CPU; what it does on an accelerator, with the code for one or with stubs of torch."""

import contextlib
import json
import types

import pytest
import torch
from conftest import ROOT, accelerator_paths, needs_counts
from couplet import bench
from couplet.bench import Device, _counts, _estimate, _measured


def test_a_block_to_paste(capsys):
    assert bench.main(["--device", "cpu", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    for title in bench.SECTIONS:
        assert f"\n#### {title}\n\n* " in said
    assert said.count("| right |") == len(bench.DTYPES) * len(bench.LAYOUTS)
    assert said.index(bench.EXISTING) < said.index("#### step")
    assert "* model: small" in said and said.count("left out: ") == 4


def test_json_of_a_share_of_the_experts(capsys):
    assert bench.main(["--device", "cpu", "--rounds", "1", "--ep", "4", "--dtype", "f32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"]["ep"] == 4 and "exchanges" in report["shape"]["left out"]
    assert report["step"]["us a layer"] > 0 and report["step"]["layers"] == 2
    assert "expert parallelism" in report["pseudo-code"]["left out"]


@pytest.mark.parametrize(
    "arguments, words",
    ((["--ep", "3"], "cannot be shared"), (["--device", "nonsense"], "nonsense"), (["--device", "cuda:77"], "")),
)
def test_what_cannot_be_run(arguments, words, capsys):
    assert bench.main([*arguments, "--shape", "small"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("couplet.bench: ") and words in said


def test_rounds(capsys):
    with pytest.raises(SystemExit):
        bench.parse(["--rounds", "0"])


def test_the_code_for_accelerators_is_within_the_tolerances(monkeypatch):
    accelerator_paths(monkeypatch)
    checks = bench.check(Device("cpu"))
    assert [c.name for c in checks if not c.is_right] == []
    worst = {name: max(max(c.errors) for c in checks if c.name.startswith(name)) for name in bench.DTYPES}
    assert worst["f32"] < worst["f16"] < worst["bf16"]
    assert worst["bf16"] > bench.TOLERANCE["bf16"] / 20  # they are not wider than they need be


@pytest.mark.parametrize("fault", (lambda loss: loss * 1.02, lambda loss: loss * float("nan")))
def test_a_wrong_loss_is_seen(fault, monkeypatch, capsys):
    right = bench.erc_loss
    monkeypatch.setattr(bench, "erc_loss", lambda *a, **k: fault(right(*a, **k)))
    assert bench.main(["--device", "cpu", "--rounds", "1"]) == 1
    assert "| **wrong** |" in capsys.readouterr().out


def test_no_hinge_is_near_its_threshold():
    router, gates, delta, alpha = bench._inputs(*bench.SIZE)
    M = torch.linalg.vector_norm(torch.einsum("jDd,id->ijD", gates, router * delta), dim=-1)
    bound = alpha * M.diagonal()
    near = torch.cat(((M / bound - 1).abs(), (M / bound[:, None] - 1).abs())).flatten()
    assert near.min() > 2e-3 and (M > bound).sum() > 60 and (M < bound).sum() > 60 and alpha < 1


def test_a_shape_that_does_not_fit_is_left_out(monkeypatch):
    device = Device("cpu")
    monkeypatch.setattr(device, "free_bytes", lambda: 1 << 10)
    rates = bench.Rates(1e12, 1e12)
    assert "GiB" in bench.time_step(device, _counts.SMALL, 1, rates)["left out"]
    assert "does not fit" in bench.time_existing(device, _counts.SMALL, 1, rates)["left out"]
    assert "GiB" in bench.time_pseudo_code(device, _counts.SMALL, 1)["left out"]
    assert "does not fit" in bench.memory(device, _counts.SMALL)["left out"]


# ---- with stubs of an accelerator ----


class Stubs:
    """What of torch.cuda is called; a graph runs again what was captured."""

    def __init__(self):
        self.modes, self.captured = [], None

    class Stream:
        def wait_stream(self, other):
            pass

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def elapsed_time(self, end):
            return 3.0

    class CUDAGraph:
        def replay(self):
            pass

    @contextlib.contextmanager
    def stream(self, stream):
        yield

    graph = stream

    def current_stream(self):
        return self.Stream()

    def synchronize(self):
        pass

    def set_sync_debug_mode(self, mode):
        self.modes.append(mode)

    def reset_peak_memory_stats(self, device):
        pass

    def memory_allocated(self, device):
        return 1000

    def max_memory_allocated(self, device):
        return 1000 + _counts.SMALL.gradient_bytes + 77

    def mem_get_info(self, device):
        return 1 << 30, 1 << 31

    def get_device_properties(self, device):
        return types.SimpleNamespace(name="Stub", total_memory=80 << 30, major=9, minor=0)


@pytest.fixture
def stubbed(monkeypatch):
    """A device that says it is CUDA and computes on the CPU."""
    stubs = Stubs()
    monkeypatch.setattr(torch, "cuda", stubs)
    device = Device("cpu")
    device.module, device.type = stubs, "cuda"
    monkeypatch.setattr(bench, "product_rate", lambda *_: 1e12)
    monkeypatch.setattr(bench, "bandwidth", lambda *_: 1e12)
    monkeypatch.setattr(bench, "_kernels", lambda *_: {"one": (8, 40.0), "two": (4, 100.0)})
    monkeypatch.setattr(Device, "describe", lambda self: {"device": "stub"})
    return device, stubs


def test_every_section_with_stubs(stubbed):
    device, stubs = stubbed
    report = bench.run(device, _counts.SMALL, 2)
    assert report["step"]["us a layer"] == pytest.approx(1500) and stubs.modes == ["error", "default"]
    existing = report[
        bench.EXISTING
    ]  # three products of n 16, D 128, d 256 at 1 TFLOP/s, kernels of 140 us by two layers
    assert existing["roofline, us a layer"] == pytest.approx(3 * 2 * 16 * 16 * 128 * 256 * 1e-6)
    assert existing["times the roofline"] == pytest.approx(70 / existing["roofline, us a layer"])
    assert report["synchronisation"] == {"waits": "no"} and report["memory"]["extra, MB"] == pytest.approx(77e-6)
    assert report["graph"]["captured"] == "yes" and report["graph"]["same as eager"] == "no"  # nothing was replayed
    assert report["graph"]["eager twice, same bits"] == "yes"
    parts = report["parts"]
    assert parts["evaluation, kernels a layer"] == 6 and parts["noise, kernels, us a layer"] == 70
    assert [(name, said) for name, said in parts.items() if name.startswith("noise: ")] == [
        ("noise: two", "50 us a layer in 2 kernels"),
        ("noise: one", "20 us a layer in 4 kernels"),
    ]
    assert [c["name"] for c in report["correctness"]][-1] == "tf32, stacked"
    assert not bench.is_good(report)
    report["graph"]["same as eager"] = "yes"
    assert bench.is_good(report) and "tf32, stacked" in bench.markdown(report)


def test_a_step_that_waits_is_reported(stubbed, monkeypatch):
    device, stubs = stubbed

    def evaluate(*_):
        if stubs.modes == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation\nmore")

    monkeypatch.setattr(bench, "_step_of", lambda *_: (None, evaluate))
    assert bench.synchronisation(device, _counts.SMALL) == {"waits": "called a synchronizing CUDA operation"}
    assert stubs.modes == ["error", "default"]


def test_the_device_is_described(monkeypatch):
    stubs = Stubs()
    monkeypatch.setattr(torch, "cuda", stubs)
    device = Device("cpu")
    device.module, device.type = stubs, "cuda"
    about = device.describe()
    assert about["device"] == "Stub, 80 GiB, capability 9.0" and about["driver"]


def test_training_steps_with_and_without():
    pytest.importorskip("transformers")
    found = bench.time_training(
        Device("cpu"),
        1,
        vocab_size=96,
        hidden_size=32,
        intermediate_size=24,
        num_experts=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_experts_per_tok=2,
        pad_token_id=None,
        eos_token_id=1,
    )
    if "left out" not in found:
        assert found["layers"] == 4 and found["tokens"] == 32 and found["without, ms"] > 0
        assert found["erc.backward, us a layer"] > 0


# ---- docs/pytorch/gpu.md ----


@needs_counts
def test_the_page_has_the_tables_of_the_estimate(capsys):
    assert bench.main(["--estimate"]) == 0
    page = (ROOT / "docs" / "pytorch" / "gpu.md").read_text()
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == 3
    assert [t.split("\n")[0] for t in tables if t not in page] == []


@needs_counts
def test_the_page_has_the_tables_of_what_was_measured(capsys):
    assert bench.main(["--table", str(ROOT / "docs" / "pytorch" / "gpu-h100.jsonl")]) == 0
    existing, times, pseudo_code = capsys.readouterr().out.strip().split("\n\n")
    page = (ROOT / "docs" / "pytorch" / "gpu.md").read_text()
    assert existing in page and times in page and pseudo_code in page and times.count("\n") == 8
    assert page.index(existing) < page.index(times)  # what people have, before the best case


def test_fused_gates_with_existing_gradients_by_hand():
    """OLMoE on an H100: gates of 268 MB read twice, their gradient read and written once, at the copy's rate."""
    report = json.loads((ROOT / "docs" / "pytorch" / "gpu-h100.jsonl").read_text().splitlines()[0])
    roofline, us = 4 * 268.4e6 / 2.899e12 * 1e6, report["training"]["erc.backward, kernels, us a layer"]
    row = _measured.existing([report]).splitlines()[-1]
    assert row == f"| OLMoE-1B-7B, EP 1 | {roofline:.0f} | 1,365 | {us / roofline:.1f} | 43 | 2,571 | 1.7 % |"


def test_reports_are_good():
    for line in (ROOT / "docs" / "pytorch" / "gpu-h100.jsonl").read_text().splitlines():
        assert bench.is_good(json.loads(line))


def test_a_formula_by_hand():
    """OLMoE on an H100: gates of 268 MB, read twice, gradient written once, at 3.35 TB/s."""
    assert _estimate.roofline_us(_counts.OLMOE, _estimate.GPUS[0], False) == pytest.approx(
        3 * 268.4e6 / 3.35e12 * 1e6, rel=1e-3
    )
    olmoe = _estimate.TRAININGS[0]
    assert olmoe.seconds(_estimate.GPUS[0]) == pytest.approx(6 * 1.3e9 * 4.2e6 / 64 / 989e12 / 0.4)


def test_kernels_are_as_long_as_what_bounds_them():
    gpu = _estimate.Gpu("one", 1.0, 0.5, 1.0)  # a million operations or bytes: one microsecond; in f64 two
    each = [
        _counts.Kernel("short", 1),
        _counts.Kernel("bytes", 5 * 10**6),
        _counts.Kernel("product", 1, 7 * 10**6),
        _counts.Kernel("in f64", 1, 0, 2 * 10**6),
    ]
    assert _estimate._device_us(_counts.Counts(each), gpu) == pytest.approx(_estimate.SHORTEST_US + 5 + 7 + 4)
