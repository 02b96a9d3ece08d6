"""python -m couplet.bench on the CPU. For accelerators a stub of torch.cuda or the code for them on the CPU is used."""

import json
import types

import pytest
import torch
from conftest import accelerator_paths
from couplet import bench
from couplet.bench import SMALL, Bench, Device


def on_cpu(rounds=1):
    return Bench(Device("cpu"), SMALL, torch.bfloat16, rounds)


def test_a_block_to_paste(capsys):
    assert bench.main(["--device", "cpu", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    titles = [line[5:] for line in said.splitlines() if line.startswith("#### ")]
    assert titles == [
        "machine",
        "shape",
        "correctness",
        "fused gates, existing gradients",
        "stacked gates, fresh gradients",
        "training",
        "pseudo-code",
    ]
    assert said.count("| right |") == len(bench.DTYPES) * len(bench.LAYOUTS)
    assert "* name: small" in said and said.count("left out: ") == 1


def test_json(capsys):
    assert bench.main(["--device", "cpu", "--rounds", "1", "--dtype", "f32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shape"]["dtype"] == "float32" and report["shape"]["n"] == SMALL.n
    fresh = report["stacked gates, fresh gradients"]
    assert fresh["erc.backward, us a layer"] > 0 and fresh["layers"] == 2


@pytest.mark.parametrize("device", ("nonsense", "cuda:77"))
def test_what_cannot_be_run(device, capsys):
    assert bench.main(["--device", device, "--shape", "small"]) == 2
    assert capsys.readouterr().err.startswith("couplet.bench: ")


def test_rounds():
    with pytest.raises(SystemExit):
        bench.main(["--rounds", "0"])


def test_the_code_for_accelerators_is_within_the_tolerances(monkeypatch):
    accelerator_paths(monkeypatch)
    checks = bench.check(Device("cpu"))
    assert [c["name"] for c in checks if not c["right"]] == []
    worst = {name: max(max(c["errors"]) for c in checks if c["name"].startswith(name)) for name in bench.DTYPES}
    assert worst["f32"] < worst["f16"] < worst["bf16"]
    assert worst["bf16"] > bench.TOLERANCE["bf16"] / 20  # the tolerance is no wider than necessary


@pytest.mark.parametrize("fault", (lambda loss: loss * 1.02, lambda loss: loss * float("nan")))
def test_a_wrong_loss_is_seen(fault, monkeypatch, capsys):
    right = bench.erc_loss
    monkeypatch.setattr(bench, "erc_loss", lambda *a, **k: fault(right(*a, **k)))
    assert bench.main(["--device", "cpu", "--rounds", "1"]) == 1
    assert "| **wrong** |" in capsys.readouterr().out


def test_no_hinge_is_near_its_threshold():
    router, gates, delta = bench.make_inputs()
    M = torch.linalg.vector_norm(torch.einsum("jDd,id->ijD", gates, router * delta), dim=-1)
    bound = bench.ALPHA * M.diagonal()
    near = torch.cat(((M / bound - 1).abs(), (M / bound[:, None] - 1).abs())).flatten()
    assert near.min() > 2e-3 and (M > bound).sum() > 60 and (M < bound).sum() > 60 and bench.ALPHA < 1


def test_a_shape_that_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 1 << 10)
    report = bench.run(on_cpu())
    assert all("GiB" in report[title]["left out"] for title in list(report)[3:5] + ["pseudo-code"])


def test_the_roofline_by_hand(monkeypatch):
    """Gates of n 16, D 128, d 256 in bf16 are moved four times for three products. Kernels of 2 layers take 140 us."""
    monkeypatch.setattr(Device, "kernels", lambda *_: {"one": (8, 40.0), "two": (4, 100.0)})
    monkeypatch.setattr(Device, "peak_bytes", lambda *_: 7_000_000)
    for rates, roofline in (((1e6, 1e9), 4 * 16 * 128 * 256 * 2 / 1e6), ((1e9, 1e6), 6 * 16 * 16 * 128 * 256 / 1e6)):
        monkeypatch.setattr(Bench, "rates", lambda *_: rates)
        found = on_cpu().existing()
        assert found["roofline, us a layer"] == pytest.approx(roofline)
        assert found["times the roofline"] == pytest.approx(70 / roofline)
    assert found["erc.backward, kernels a layer"] == 6 and found["memory beside gates and gradients, MB"] == 7
    assert [(name, said) for name, said in found.items() if name.startswith("erc.backward: ")] == [
        ("erc.backward: two", "50 us a layer in 2 kernels"),
        ("erc.backward: one", "20 us a layer in 4 kernels"),
    ]


def test_the_device_is_described_and_its_memory_measured(monkeypatch):
    device = Device("cpu")
    device.type = "cuda"
    device.module = types.SimpleNamespace(
        get_device_properties=lambda _: types.SimpleNamespace(name="Stub", total_memory=80 << 30, major=9, minor=0),
        mem_get_info=lambda _: (1 << 30, 1 << 31),
        synchronize=lambda: None,
        reset_peak_memory_stats=lambda _: None,
        memory_allocated=lambda _: 1000,
        max_memory_allocated=lambda _: 1077,
    )
    monkeypatch.setattr(torch, "cuda", device.module)
    assert device.describe()["device"] == "Stub, 80 GiB, capability 9.0" and device.free_bytes() == 1 << 30
    assert device.peak_bytes(lambda: None) == 77


def test_training_steps_with_and_without():
    pytest.importorskip("transformers")
    found = on_cpu().training(
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
    assert found["layers"] == 4 and found["tokens"] == 32 and found["without, ms"] > 0
    assert found["erc.backward, us a layer"] > 0
