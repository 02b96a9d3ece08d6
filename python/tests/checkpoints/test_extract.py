"""couplet.extract and couplet.inspect: checkpoints as torchtitan, Megatron-Core, OLMo-core and torch.save write them,
and damaged and hostile ones.

The names and boxes of TRAINERS are those of folders that torchtitan 0.3, Megatron-Core 0.16 and OLMo-core 3.0 wrote with
two processes (examples/recipes/saved.py compares with the trainers themselves)."""

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile

import couplet
import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import ROOT, in_processes
from couplet import _checkpoint, extract, inspect
from couplet.models._moe_map import MoeLayer

safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install safetensors")
PROGRAM = os.environ.get("COUPLET_PROGRAM") or couplet.find_program()
needs_program = pytest.mark.skipif(PROGRAM is None, reason="the program couplet is not on PATH")
L, N, D_MODEL, D = 3, 3, 12, 5  # layers, experts, d, D


def weights(dtype=torch.float32):
    """Returns routers [L, n, d], gates, up [L, n, D, d], down [L, n, d, D]."""
    torch.manual_seed(0)
    shapes = ((L, N, D_MODEL), (L, N, D, D_MODEL), (L, N, D, D_MODEL), (L, N, D_MODEL, D))
    return [torch.randn(shape).to(dtype) for shape in shapes]


def titan(router, gates, up, down):
    for l in range(L):
        experts = f"layers.{l}.moe.routed_experts.inner_experts."
        yield f"layers.{l}.moe.router.gate.weight", router[l]
        yield from ((experts + name, t[l]) for name, t in (("w1_EFD", gates), ("w3_EFD", up), ("w2_EDF", down)))
        yield f"optimizer.state.{experts}w1_EFD.exp_avg", gates[l]
        yield f"layers.{l}.moe.expert_bias_E", torch.zeros(N)


def megatron(router, gates, up, down):
    yield "decoder.layers.mlp.router.weight", router
    yield "decoder.layers.mlp.experts.experts.linear_fc1.weight", torch.cat((gates, up), 2)
    yield "decoder.layers.mlp.experts.experts.linear_fc2.weight", down
    yield "optimizer.state.exp_avg.decoder.layers.mlp.router.weight", router
    yield "chained_0.optimizer.state.fp32_param.decoder.layers.mlp.router.weight", router


def megatron_by_layer(router, gates, up, down):
    for l in range(L):
        yield f"decoder.layers.{l}.mlp.router.weight", router[l]
        yield f"decoder.layers.{l}.mlp.experts.experts.linear_fc1.weight", torch.cat((gates[l], up[l]), 1)
        yield f"decoder.layers.{l}.mlp.experts.experts.linear_fc2.weight", down[l]


def megatron_single(router, gates, up, down):
    for l in range(L):
        yield f"decoder.layers.{l}.mlp.router.weight", router[l]
        for e in range(N):
            start = f"decoder.layers.{l}.mlp.experts.experts.{e}.linear_"
            yield from ((start + name, t[l, e]) for name, t in (("fc1.weight_w", gates), ("fc1.weight_v", up)))
            yield f"{start}fc2.weight", down[l, e]


def megatron_without_gates(router, gates, up, down):
    yield "decoder.layers.mlp.router.weight", router
    yield "decoder.layers.mlp.experts.experts.linear_fc1.weight", gates
    yield "decoder.layers.mlp.experts.experts.linear_fc2.weight", down


def olmo_dropless(router, gates, up, down):
    for l in range(L):
        start = f"model.blocks.{l}.feed_forward_moe."
        yield f"{start}router.weight", router[l].flatten()
        yield f"{start}experts.mlp.w1", gates[l].flatten(0, 1)
        yield f"{start}experts.mlp.w2", down[l].mT.flatten(0, 1)
        yield f"optim.state.blocks.{l}.feed_forward_moe.router.weight.exp_avg", router[l].flatten()


def olmo(router, gates, up, down):
    for name, tensor in olmo_dropless(router, gates, up, down):
        yield name, tensor.view(N, D, D_MODEL).mT.flatten(0, 1) if name.endswith("w1") else tensor


def olmo_v2(router, gates, up, down):
    for l in range(L):
        yield f"model.blocks.{l}.routed_experts_router.weight", router[l].flatten()
        yield f"model.blocks.{l}.routed_experts.w_up_gate", torch.cat((up[l], gates[l]), 1)
        yield f"model.blocks.{l}.routed_experts.w_down", down[l].mT
        yield f"model.blocks.{l}.routed_experts_router.score_bias", torch.ones(N)


def nanochat(router, gates, up, down):
    for l in range(L):
        start = f"_orig_mod.transformer.h.{l}.mlp."
        yield f"{start}router.gate.weight", router[l]
        yield from ((f"{start}experts.{name}", t[l]) for name, t in (("w_up", gates), ("w_down", down)))
        yield f"{start}shared_expert.w_up.weight", up[l, 0]


FORMS = (titan, megatron, megatron_by_layer, megatron_single, megatron_without_gates)
FORMS += (olmo_dropless, olmo, olmo_v2, nanochat)
ALONE = (megatron_without_gates, nanochat)


def as_hf(folder, dtype=torch.float32, kind="gate"):
    """Writes the weights under the names of OLMoE."""
    router, gates, *_ = weights(dtype)
    folder.mkdir()
    named = {f"layers.{l}.mlp.gate.weight": router[l].clone() for l in range(L)}
    for l in range(L):
        named.update({f"layers.{l}.mlp.experts.{e}.{kind}_proj.weight": gates[l, e].clone() for e in range(N)})
    safetensors.save_file(named, folder / "model.safetensors")
    return folder


def save(folder, form, dtype=torch.float32):
    dcp.save({**dict(form(*weights(dtype))), "step": 3}, checkpoint_id=folder)
    return folder


def run(module, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", f"couplet.{module}", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment},
    )


def refused(source, *parts):
    """Checks that the checkpoint gives one sentence with these parts, and no file."""
    out = source.parent / "out.safetensors"
    with pytest.raises(ValueError) as error:
        extract.extract(source, out)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value), error.value
    assert not out.exists() and not list(source.parent.glob(".tmp-*"))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert extract.main([str(source), str(out)]) == 1
    assert said.getvalue().startswith("couplet.extract: ") and said.getvalue().count("\n") == 1, said.getvalue()


# ---- what is read --------------------------------------------------------------------------------------


def check_weights(folder, form, dtype=torch.float32):
    """Checks that the weights are extracted to the last bit."""
    out = folder.parent / "out.safetensors"
    found, count = extract.extract(folder, out)
    there = safetensors.load_file(out)
    assert count == out.stat().st_size
    router, gates, *_ = weights(dtype)
    kind = "up" if form in ALONE else "gate"
    assert [layer.layer for layer in found.layers] == list(range(L)) and len(there) == L * (N + 1)
    for l, layer in enumerate(found.layers):
        assert torch.equal(there[f"{layer.prefix}mlp.gate.weight"], router[l])
        for e in range(N):
            assert torch.equal(there[f"{layer.prefix}mlp.experts.{e}.{kind}_proj.weight"], gates[l, e])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_folder(form, dtype, tmp_path):
    check_weights(save(tmp_path / "step", form, dtype), form, dtype)


@needs_program
@pytest.mark.parametrize("form", FORMS)
def test_figures_are_those_of_a_hugging_face_folder(form, tmp_path, monkeypatch):
    monkeypatch.setenv("COUPLET_PROGRAM", PROGRAM)

    def figures(path):
        out = tmp_path / "figures.json"
        assert inspect.main([str(path), "--json", str(out), "--silhouette", "--overwrite"]) == 0
        report = json.loads(out.read_text())
        model = report["models"][0] if "models" in report else report
        return [{**layer, "prefix": ""} for layer in model["layers"]]

    want = figures(as_hf(tmp_path / "hf", kind="up" if form in ALONE else "gate"))
    assert len(want) == L and figures(save(tmp_path / "step", form)) == want
    if form in (megatron, megatron_without_gates):
        return  # an axis of layers is known to DCP alone
    (tmp_path / "names").mkdir()
    named = {name: tensor.clone().contiguous() for name, tensor in form(*weights())}
    safetensors.save_file(named, tmp_path / "names/model.safetensors")
    assert figures(tmp_path / "names") == want


def write_sharded(rank, folder):
    """Saves in two processes, with every tensor cut along each of its axes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    for form in FORMS:
        for axis in range(4):
            state = {
                name: distribute_tensor(tensor.contiguous(), mesh, [Shard(axis % tensor.dim())])
                for name, tensor in form(*weights())
            }
            dcp.save(state, checkpoint_id=folder / f"{form.__name__}-{axis}")


@pytest.mark.skipif(not hasattr(torch.distributed, "tensor"), reason="this torch has no torch.distributed.tensor")
def test_folders_of_two_processes(tmp_path):
    in_processes(write_sharded, 2, tmp_path)
    for form in FORMS:
        for axis in range(4):
            folder = tmp_path / f"{form.__name__}-{axis}"
            assert len(list(folder.glob("*.distcp"))) == 2
            check_weights(folder, form)


def test_prefixes_and_wrappers(tmp_path):
    named = {f"module._orig_mod.model.{name}": tensor for name, tensor in titan(*weights())}
    named = {name.replace("moe.", "_checkpoint_wrapped_module.moe._orig_mod."): t for name, t in named.items()}
    torch.save({"model": named, "step": 3}, tmp_path / "model.pt")
    found, _ = extract.extract(tmp_path / "model.pt", tmp_path / "out.safetensors")
    assert [layer.prefix for layer in found.layers] == [f"model.module.model.layers.{l}." for l in range(L)]


@pytest.mark.parametrize("form", (titan, megatron_single, olmo))
def test_files_of_torch_save(form, tmp_path, monkeypatch):
    """The mapping of a file is given back after every tensor."""
    monkeypatch.setattr(_checkpoint, "MAPPED", 0)
    (tmp_path / "hf").mkdir()
    named, halves = dict(form(*weights(torch.bfloat16))), ({}, {})
    for at, (name, tensor) in enumerate(named.items()):
        halves[at % 2][name] = torch.nn.Parameter(tensor)
    for at, half in enumerate(halves):
        torch.save(half, tmp_path / "hf" / f"pytorch_model-{at:05}.bin")
    torch.save({"lr": 0.1}, tmp_path / "hf" / "training_args.bin")
    torch.save(named, tmp_path / "whole.pt")
    written = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    extract.extract(tmp_path / "hf", written[0])
    extract.extract(tmp_path / "whole.pt", written[1])
    assert written[0].read_bytes() == written[1].read_bytes()
    router, gates, *_ = weights(torch.bfloat16)
    there = safetensors.load_file(written[0])
    start = extract.extract(tmp_path / "hf", written[0])[0].layers[1].prefix
    assert torch.equal(there[f"{start}mlp.gate.weight"], router[1])
    assert torch.equal(there[f"{start}mlp.experts.2.gate_proj.weight"], gates[1, 2])


def test_layouts_of_the_config(tmp_path):
    """gpt-oss has gate and up columns in turns; its config.json is copied beside the file."""
    router, gates, up, _ = weights()
    fused = torch.stack((gates, up), 3).flatten(2, 3).mT  # [L, n, d, 2D]
    (tmp_path / "hf").mkdir(), (tmp_path / "out").mkdir()
    named = {f"model.layers.{l}.mlp.experts.gate_up_proj": fused[l].contiguous() for l in range(L)}
    named |= {f"model.layers.{l}.mlp.router.weight": router[l] for l in range(L)}
    torch.save(named, tmp_path / "hf/pytorch_model.bin")
    (tmp_path / "hf/config.json").write_text('{"model_type": "gpt_oss", "num_experts_per_tok": 2}')
    found, _ = extract.extract(tmp_path / "hf", tmp_path / "out/out.safetensors")
    assert not found.guess and found.layers[0].K == 2
    there = safetensors.load_file(tmp_path / "out/out.safetensors")
    assert torch.equal(there["model.layers.2.mlp.experts.1.gate_proj.weight"], gates[2, 1])
    assert (tmp_path / "out/config.json").read_bytes() == (tmp_path / "hf/config.json").read_bytes()
    (tmp_path / "out/config.json").write_text("{}")
    with pytest.raises(ValueError, match="of another model, and would be read"):
        extract.extract(tmp_path / "hf", tmp_path / "out/out.safetensors")


def gpt_oss(router, gates, up, down):
    """Gates, up and their biases in turns, in columns."""
    for l in range(L):
        start = f"model.layers.{l}.mlp."
        yield f"{start}router.weight", router[l]
        yield f"{start}router.bias", torch.arange(float(N)) + l
        yield f"{start}experts.gate_up_proj", torch.stack((gates[l], up[l]), 2).flatten(1, 2).mT
        yield f"{start}experts.gate_up_proj_bias", torch.stack((gates[l, ..., 0], up[l, ..., 0]), 2).flatten(1)


def mixtral(router, gates, up, down):
    for l in range(L):
        start = f"model.layers.{l}.block_sparse_moe."
        yield f"{start}gate.weight", router[l]
        for e in range(N):
            yield f"{start}experts.{e}.w1.weight", gates[l, e]
            yield f"{start}experts.{e}.w1.bias", gates[l, e, :, 0]


@needs_program
@pytest.mark.parametrize("form", (gpt_oss, mixtral))
def test_biases(form, tmp_path):
    """Biases are taken along, so that the report of the file says that they are left out."""
    reports, (_, gates, *_) = [], weights()
    named = {name: tensor.clone().contiguous() for name, tensor in form(*weights())}
    for name in ("hf", "bin", "dcp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"model_type": "{form.__name__}", "num_experts_per_tok": 2}}')
    safetensors.save_file(named, tmp_path / "hf/model.safetensors")
    torch.save(named, tmp_path / "bin/pytorch_model.bin")
    dcp.save(named, checkpoint_id=tmp_path / "dcp")
    for name in ("hf", "bin", "dcp"):
        out = tmp_path / f"{name}.json"
        done = run("inspect", tmp_path / name, "--json", out, COUPLET_PROGRAM=PROGRAM)
        assert done.returncode == 0, done.stderr
        report = json.loads(out.read_text())
        report = report.get("models", [report])[0]
        reports.append((report.get("biases_left_out"), [{**layer, "prefix": ""} for layer in report["layers"]]))
    assert reports[0] == reports[1] == reports[2] and "biases_left_out" in json.dumps(report)
    found, _ = extract.extract(tmp_path / "dcp", tmp_path / "dcp/out.safetensors")
    there = safetensors.load_file(tmp_path / "dcp/out.safetensors")
    start = found.layers[1].prefix + "mlp."
    assert torch.equal(there[f"{start}experts.2.gate_proj.bias"], gates[1, 2, :, 0])
    if form is gpt_oss:
        assert torch.equal(there[f"{start}gate.bias"], torch.arange(float(N)) + 1)


def test_a_bias_of_another_shape(tmp_path):
    named = dict(titan(*weights())) | {"layers.1.moe.router.gate.bias": torch.ones(N, 2)}
    dcp.save(named, checkpoint_id=tmp_path / "step")
    refused(tmp_path / "step", "tensor layers.1.moe.router.gate.bias is torch.float32 [3, 2], no bias [3]")


@pytest.mark.skipif(not hasattr(MoeLayer, "projection"), reason="couplet inspect does not measure latent experts")
def test_latent_experts(tmp_path):
    """The projection W_l [l, d] of Megatron-Core is taken under its name; gates are [D, l]."""
    router, gates, up, down = weights()
    width = 7
    latent = torch.randn(L, width, D_MODEL)
    named = {
        **dict(megatron(router, gates[..., :width], up[..., :width], down[:, :, :width])),
        "decoder.layers.mlp.fc1_latent_proj.weight": latent,
    }
    dcp.save(named, checkpoint_id=tmp_path / "step")
    found, _ = extract.extract(tmp_path / "step", tmp_path / "out.safetensors")
    there = safetensors.load_file(tmp_path / "out.safetensors")
    assert len(there) == L * (N + 2) and len(found.layers) == L
    for l, layer in enumerate(found.layers):
        assert layer.projection and torch.equal(there[layer.projection], latent[l])
        assert torch.equal(there[f"{layer.prefix}mlp.experts.2.gate_proj.weight"], gates[l, 2, :, :width])


def test_layers(tmp_path):
    folder, out = save(tmp_path / "step", titan), tmp_path / "out.safetensors"
    done = run("extract", folder, out, "--layers", "0,2")
    assert done.returncode == 0 and "2 layers of 3 experts" in done.stdout, done
    assert {name.split(".")[1] for name in safetensors.load_file(out)} == {"0", "2"}
    done = run("extract", folder, out, "--layers", "1,7-8")
    assert done.returncode == 1 and "no MoE layer 7; there are 0, 1, 2" in done.stderr, done
    done = run("extract", folder, out, "--layers", "x")
    assert done.returncode == 1 and "--layers x: must be a list" in done.stderr, done


@needs_program
def test_other_checkpoints_and_options_are_the_program_s(tmp_path):
    torch.save({"lr": 0.1}, as_hf(tmp_path / "hf") / "training_args.bin")
    paths = tmp_path / "hf", save(tmp_path / "step", titan)
    done = run("inspect", *paths, "--layers", "1", COUPLET_PROGRAM=PROGRAM)
    assert done.returncode == 0 and "step.safetensors" in done.stdout and "mlp.router" not in done.stdout, done
    assert done.stdout.count("layer 1") >= 2 or done.stdout.count("\n1 ") >= 2, done.stdout
    done = run("inspect", paths[1], "--no-such", COUPLET_PROGRAM=PROGRAM)
    assert done.returncode == 2 and "--no-such" in done.stderr, done


def test_memory_is_below_one_layer(tmp_path):
    """Peaks of resident memory beyond the memory before, of a layer of 96 MiB (gate, up, down) in four pieces."""
    big = torch.zeros(16, 512, 1024)  # 32 MiB
    folder = tmp_path / "step"
    named = {f"layers.{l}.moe.router.gate.weight": torch.zeros(16, 1024) for l in range(3)}
    for l in range(3):
        named |= {f"layers.{l}.moe.experts.{w}": big for w in ("w1", "w2", "w3")}
    dcp.save(named, checkpoint_id=folder)
    torch.save(named | {name: t.clone() for name, t in named.items()}, tmp_path / "all.pt")
    code = (
        "import pathlib, resource, sys; from couplet import extract, _checkpoint; source, out = map(pathlib.Path, "
        "sys.argv[1:]); import torch; extract.extract(source, out, {0}); peak = lambda: "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; first = peak(); extract.extract(source, out); "
        "print(first, peak())"
    )
    for source in (folder, tmp_path / "all.pt"):
        done = subprocess.run(
            [sys.executable, "-c", code, source, tmp_path / "out.safetensors"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        )
        first, last = map(int, done.stdout.split())
        assert last - first < 32 << 10, (source, first, last)  # three layers take no more than one


# ---- hostile files -------------------------------------------------------------------------------------


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def damaged(folder, change):
    """Rewrites .metadata after `change` of its object."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def test_call_in_metadata(tmp_path):
    planted = Planted(tmp_path / "called")
    folder = damaged(save(tmp_path / "step", titan), lambda m: m.state_dict_metadata.update(x=planted))
    refused(folder, "/.metadata: it names ", "mkdir, which is no part of the metadata of a checkpoint: it is not run")
    for blob in (b"cos\nmkdir\n(V%b\ntR.", b"(V%b\nios\nmkdir\n."):  # the opcodes REDUCE and INST
        (folder / ".metadata").write_bytes(blob % os.fsencode(tmp_path / "called"))
        refused(folder, "it names os.mkdir")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("module, name", (("builtins", "eval"), ("torch", "load"), ("torch.serialization", "load")))
def test_names_that_metadata_may_not_have(module, name, tmp_path):
    (tmp_path / "step").mkdir()
    (tmp_path / "step/.metadata").write_bytes(f"c{module}\n{name}\n.".encode())
    refused(tmp_path / "step", f"it names {module}.{name}")


def test_call_in_shard(tmp_path):
    folder, at = save(tmp_path / "step", titan), {}
    torch.save(Planted(tmp_path / "called"), folder / "planted.distcp")

    def change(metadata):
        for index, place in metadata.storage_data.items():
            if index.fqn == "layers.1.moe.router.gate.weight":
                place.relative_path, place.offset = "planted.distcp", 0
                place.length = (folder / "planted.distcp").stat().st_size
                at[index.fqn] = place

    refused(damaged(folder, change), "planted.distcp: tensor layers.1.moe.router.gate.weight: it names ", "mkdir")
    assert at and not (tmp_path / "called").exists()


def test_call_in_file_of_torch_save(tmp_path):
    torch.save({**dict(titan(*weights())), "args": Planted(tmp_path / "called")}, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "model.pt: it names ", "mkdir, which is no tensor and no plain container")
    assert not (tmp_path / "called").exists()


def test_shard_outside_the_folder(tmp_path):
    def change(metadata):
        for place in metadata.storage_data.values():
            place.relative_path = "../step/" + place.relative_path

    refused(damaged(save(tmp_path / "step", titan), change), "is outside the folder")


# ---- damaged folders -----------------------------------------------------------------------------------

GATE = "layers.1.moe.routed_experts.inner_experts.w1_EFD"


def test_missing_files(tmp_path):
    folder = save(tmp_path / "step", titan)
    shard = next(folder.glob("*.distcp"))
    shard.rename(tmp_path / "kept")
    done = run("extract", folder, tmp_path / "out.safetensors")
    assert done.returncode == 1 and f"{shard}: No such file" in done.stderr and done.stderr.count("\n") == 1, done
    (tmp_path / "kept").rename(shard)
    (folder / ".metadata").rename(tmp_path / "kept")
    refused(folder, "has shards (.distcp), but no .metadata")
    shard.unlink()
    refused(folder, "has neither .metadata, nor a file ending in .pt")


@pytest.mark.parametrize("share", (0.05, 0.5, 0.99))
def test_cut_files(share, tmp_path):
    folder = save(tmp_path / "step", titan)
    places = pickle.loads((folder / ".metadata").read_bytes()).storage_data
    place = next(place for index, place in places.items() if index.fqn == GATE)
    torch.save(dict(titan(*weights())), tmp_path / "model.pt")
    shard, metadata, saved = folder / place.relative_path, folder / ".metadata", tmp_path / "model.pt"
    for path, start, length in (
        (shard, place.offset, place.length),
        (metadata, 0, metadata.stat().st_size),
        (saved, 0, saved.stat().st_size),
    ):
        whole = path.read_bytes()
        path.write_bytes(whole[: start + int(share * length)])
        refused(saved if path == saved else folder, f"{path}: ", "cut or damaged")
        path.write_bytes(whole)


def chunk(metadata, **fields):
    for name, value in fields.items():
        setattr(metadata.state_dict_metadata[GATE].chunks[0], name, torch.Size(value))


WRONG = {
    "dtype": (lambda m: setattr(m.state_dict_metadata[GATE].properties, "dtype", torch.float16), "but .metadata says"),
    "shape": (
        lambda m: (
            setattr(m.state_dict_metadata[GATE], "size", torch.Size((N, D + 1, 12))),
            chunk(m, sizes=(N, D + 1, 12)),
        ),
        "torch.float32 [3,5,12] is in its place, but .metadata says torch.float32 [3,6,12]",
    ),
    "part": (lambda m: chunk(m, sizes=(N, D, 6)), "its 1 chunks do not cover [3,5,12], each number once"),
    "beyond": (lambda m: chunk(m, offsets=(1, 0, 0)), "do not cover"),
    "negative": (lambda m: chunk(m, offsets=(-1, 0, 0)), "the offsets or sizes of a chunk are missing"),
    "axes": (lambda m: chunk(m, offsets=(0, 0)), "the offsets or sizes of a chunk are missing"),
    "huge": (
        lambda m: (
            setattr(m.state_dict_metadata[GATE], "size", torch.Size((N, 1 << 40, 12))),
            chunk(m, sizes=(N, 1 << 40, 12)),
        ),
        "cut or damaged: .metadata says",
    ),
    "no place": (lambda m: m.storage_data.clear(), "no shard is named for its chunk at [0"),
    "no chunks": (
        lambda m: setattr(m.state_dict_metadata[GATE], "chunks", None),
        "its type, size or chunks are missing",
    ),
    "no tensors": (lambda m: setattr(m, "state_dict_metadata", None), "no metadata of torch.distributed.checkpoint"),
    "zstd": (
        lambda m: [setattr(place, "transform_descriptors", ["zstandard"]) for place in m.storage_data.values()],
        "stored with transforms",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_metadata(what, tmp_path):
    change, sentence = WRONG[what]
    refused(damaged(save(tmp_path / "step", titan), change), sentence)


def test_no_routers(tmp_path):
    dcp.save({"layers.0.mlp.w1.weight": torch.ones(3, 4)}, checkpoint_id=tmp_path / "step")
    refused(tmp_path / "step", "no MoE layers")
    refused(tmp_path, "name the folder of one: step")


def test_several_files(tmp_path):
    (tmp_path / "both").mkdir()
    for name in ("model.pt", "optimizer.pt"):
        torch.save(dict(titan(*weights())), tmp_path / "both" / name)
    refused(tmp_path / "both", "several files of torch.save (model.pt, optimizer.pt): name the model's")


def test_old_file_of_torch_save(tmp_path):
    torch.save(dict(titan(*weights())), tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    refused(tmp_path / "old.bin", "no file of torch.save of PyTorch 1.6 or newer")


# ---- files that say too much ---------------------------------------------------------------------------


def test_wrong_numbers_in_a_shard_and_in_a_file(tmp_path):
    """torch.load does not look at checksums."""
    folder, saved = save(tmp_path / "step", titan), tmp_path / "model.pt"
    torch.save(dict(titan(*weights())), saved)
    for path, source in ((next(folder.glob("*.distcp")), folder), (saved, saved)):
        blob = bytearray(path.read_bytes())
        blob[blob.index(bytes(weights()[1][1].numpy().tobytes()[:16])) + 2] ^= 1
        path.write_bytes(blob)
        refused(source, f"{path}: ", "cut or damaged", "Bad CRC-32")


def test_files_without_checksums(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        check_weights(save(tmp_path / "step", titan), titan)
    finally:
        torch.serialization.set_crc32_options(True)


@pytest.mark.parametrize("size", (1 << 20, 1 << 40, 1 << 60))
def test_sizes_beyond_the_shards(size, tmp_path):
    def change(metadata):
        for name in ("mlp.router.weight", "mlp.experts.experts.linear_fc1.weight"):
            tensor = metadata.state_dict_metadata[f"decoder.layers.{name}"]
            tensor.size = torch.Size((size, *tensor.size[1:]))
            tensor.chunks[0].sizes = tensor.size

    refused(damaged(save(tmp_path / "step", megatron), change), "cut or damaged: .metadata says ", " bytes in the ")


def test_offsets_beyond_the_shard(tmp_path):
    def change(metadata):
        for place in metadata.storage_data.values():
            place.offset += 1 << 40

    refused(damaged(save(tmp_path / "step", titan), change), ".distcp: tensor ", " of a file of ")


def test_numbers_that_are_not_in_the_file(tmp_path):
    """A tensor with a stride of 0 has more numbers than its file."""
    named = dict(titan(*weights())) | {GATE: torch.zeros(1).expand(N, 1 << 40, 12)}
    torch.save(named, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", GATE, "are not in the file")


def test_large_index_of_a_memo(tmp_path):
    """pickle.Unpickler makes 32 GiB for this index."""
    (tmp_path / "step").mkdir()
    (tmp_path / "step/.metadata").write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    refused(tmp_path / "step", "no metadata of torch.distributed.checkpoint")


def test_compressed_records(tmp_path):
    torch.save(dict(titan(*weights())), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "model.pt", "w", 8) as made:
        for name in whole.namelist():
            made.writestr(name, whole.read(name))
    refused(tmp_path / "model.pt", "is compressed")


def test_cycles(tmp_path):
    named = dict(titan(*weights()))
    named["again"] = named
    torch.save(named, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "holds itself")

    def change(metadata):
        chunks = metadata.state_dict_metadata[GATE].chunks
        chunks.append(chunks)

    refused(damaged(save(tmp_path / "step", titan), change), "the offsets or sizes of a chunk are missing")


def test_no_regular_files(tmp_path):
    """A pipe would be read for ever."""
    folder = save(tmp_path / "step", titan)
    shard = next(folder.glob("*.distcp"))
    for path, source in (
        (shard, folder),
        (folder / ".metadata", folder),
        (tmp_path / "model.pt", tmp_path / "model.pt"),
    ):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        refused(source, f"{path}: no regular file")
        path.unlink()
        shard.touch()
