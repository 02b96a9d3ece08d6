"""Dump files of couplet.certify are written, read and judged. Damaged files are refused with a sentence."""

import json
import pathlib
import shutil
import struct
import subprocess

import pytest
import torch
from couplet import certify
from couplet.certify import __main__ as command
from couplet.certify._dump import PAPER
from couplet.certify._judge import Dump, outputs
from couplet.certify._kind import Case, generator
from couplet.certify.kinds import KINDS
from make_conformance import write
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).parents[2] / "conformance"


def one_of(name, case=None):
    kind = KINDS[name]
    found = kind.cases(4, 0)
    key = case or next(iter(found))
    x = found[key].to(torch.float32)
    return Dump(key, x, outputs(kind, x))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def verdict_on(capsys, path, code, *words):
    """Returns the command's output for a dump. Checks that it ends with this code, and without a traceback."""
    assert command.main([str(path), *words]) == code
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return said.err if code == 2 else said.out


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_read(name, path, capsys):
    dump = one_of(name)
    write(path, dump, name)
    again, kind = certify.read(path)
    assert kind == name and set(again.got) == set(dump.got)
    for key, value in dump.x.values.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(again.x.values[key], value), key
        elif value is not None:
            assert again.x.values[key] == pytest.approx(value), key
    assert f"right as {name}" in verdict_on(capsys, path, 0)


def test_without_version_kind_and_check_sum(path, capsys):
    """Another program may write such a file: one layer, float32 alone, and no metadata."""
    dump = one_of("load-balancing-olmoe", "many-tokens")
    tensors = {
        "logits": dump.x.logits[0],
        "top_k": torch.tensor(2.0),
        "coefficient": torch.tensor([0.01]),
        "loss": dump.got["loss"].reshape(1),
        "d_logits": dump.got["d_logits"][0].contiguous(),
    }
    save_file(tensors, path)
    verdict_on(capsys, path, 0, "--loss", "load-balancing-olmoe")
    said = verdict_on(capsys, path, 0)
    assert "right as load-balancing-olmoe" in said and "right as load-balancing-switch" in said


def test_an_absent_gradient_is_zero(path, capsys):
    dump = one_of("z-loss")
    write(path, Dump("a", dump.x, {"loss": dump.got["loss"]}), "z-loss")
    assert "has no gradient" in verdict_on(capsys, path, 1)


def header_of(blob):
    length = struct.unpack("<Q", blob[:8])[0]
    return json.loads(blob[8 : 8 + length]), blob[8 + length :]


def with_header(header, body):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def damaged(blob, how):
    header, body = header_of(blob)
    if how in ("newer", "superscript", "long"):
        header["__metadata__"]["couplet_dump"] = {"newer": "2", "superscript": "²", "long": "1" * 5000}[how]
        return with_header(header, body)
    return {"cut": blob[:-7], "short": blob[:5], "empty": b"", "text": b"no tensors here, only words"}[how]


@pytest.mark.parametrize(
    "how, sentence",
    (
        ("cut", "not a complete safetensors file"),
        ("short", "not a complete safetensors file"),
        ("empty", "not a complete safetensors file"),
        ("text", "not a complete safetensors file"),
        ("newer", "its version is 2, this program reads 1"),
        ("superscript", "its version is ², this program reads 1"),
        ("long", "its version is 11111111111111111111, this program reads 1"),
    ),
)
def test_damaged_files(how, sentence, path, capsys):
    write(path, one_of("z-loss"), "z-loss")
    path.write_bytes(damaged(path.read_bytes(), how))
    assert sentence in verdict_on(capsys, path, 2)


@pytest.mark.parametrize(
    "change, sentence",
    (
        ({"logit": torch.zeros(2)}, "logit is neither an input nor an output of a loss"),
        ({"loss": torch.tensor(float("nan"))}, "loss has a NaN"),
        ({"top_k": torch.tensor(9.0)}, "top_k is 9, there are 8 experts"),
        ({"top_k": torch.tensor(1.5)}, "must be a whole number"),
        ({"mask": torch.ones(7)}, "mask has 7 for T, logits has 40"),
        ({"d_logits": torch.zeros(3, 40, 7)}, "d_logits is [3, 40, 7], logits is [3, 40, 8]"),
        ({"num_experts": torch.tensor(3.0)}, "num_experts is 3, there are 8 experts"),
        ({"mask": torch.full((40,), -1e9)}, "mask holds other numbers than 0 and 1"),
        ({"d_top_k": torch.zeros(())}, "leave d_top_k out of the dump: top_k is a number"),
        ({"micro_batches": torch.tensor(3.0)}, "which does not divide the 40 tokens"),
        ({"logits": torch.zeros(8)}, "logits has 1 axes, must have 3"),
        ({"loss": None}, "it has no loss, which"),
        ({"coefficient": torch.zeros(2)}, "coefficient is a tensor [2], must be one number"),
        ({"coefficient": torch.zeros(())}, "coefficient is 0, with which every loss is 0"),
        ({"logits": torch.zeros(3, 40, 8).long()}, "logits is of int64; a dump holds float32"),
        ({"loss": torch.zeros(2)}, "loss is a tensor [2], must be one number"),
        ({"loss": torch.tensor(1)}, "loss is of int64"),
        ({"d_logits": torch.zeros(3, 40, 8).bool()}, "d_logits is of bool"),
        ({"logits": torch.zeros(3, 0, 8)}, "logits is empty"),
        ({"mask": torch.zeros(40)}, "mask leaves no token"),
        ({"indices": torch.full((3, 40, 2), 77)}, "indices are from 77 to 77, there are 8 experts"),
        ({"indices": torch.zeros(3, 40, 3).long()}, "indices has an expert twice in a token"),
        ({"indices": torch.tensor([0, 1]).expand(3, 40, 2).clone()}, "indices has 2 experts a token, top_k is 3"),
    ),
)
def test_what_does_not_fit_together(change, sentence, path, capsys):
    write(path, one_of("load-balancing-olmoe"), "load-balancing-olmoe")
    save_file(changed(load_file(path), change), path)
    assert sentence in verdict_on(capsys, path, 2, "--loss", "load-balancing-olmoe")


def changed(tensors, change):
    """Returns the tensors of a dump with changes. A change to None removes a tensor."""
    return {name: value for name, value in {**tensors, **change}.items() if value is not None}


@pytest.mark.parametrize(
    "kind, change, sentence",
    (
        ("bias-update-sign", {"bias_after": torch.ones(())}, "bias_after is [], "),
        ("bias-update-sign", {"bias_after": torch.ones(8, 1)}, "bias_after is [8, 1], "),
        ("bias-update-sign", {"bias_after": torch.ones(1, 8)}, "bias_after is [1, 8], "),
        ("bias-update-sign", {"counts": -torch.ones(3, 8)}, "counts must hold only whole numbers of 0 or more"),
        ("bias-update-sign", {"counts": torch.ones(3, 8) / 2}, "counts must hold only whole numbers of 0 or more"),
        ("aoe-scores", {"scores": torch.ones(1)}, "scores is [1], "),
        ("aoe-scores", {"scores": torch.ones(3, 4)}, "scores is [3, 4], "),
        ("gate-weights", {"weights": torch.ones(1, 8)}, "weights is [1, 8], "),
        ("gate-weights", {"weights": torch.ones(30, 1)}, "weights is [30, 1], "),
    ),
)
def test_what_does_not_fit_a_rule(kind, change, sentence, path, capsys):
    write(path, one_of(kind), kind)
    save_file(changed(load_file(path), change), path, {"couplet_dump": "1", "kind": kind})
    assert sentence in verdict_on(capsys, path, 2)


def test_numbers_beyond_float32(path, capsys):
    """A loss of 1e200 is finite."""
    kind, x = KINDS["z-loss"], KINDS["z-loss"].cases(0, 0)["layers"]
    x = x.but(logits=x.logits.double() * 1e100)
    write(path, Dump("a", x, outputs(kind, x)), "z-loss")
    verdict_on(capsys, path, 0)


@pytest.mark.parametrize("name, why", (("none", "No such file"), ("a\0b", "embedded null byte")))
def test_a_file_that_is_not_there(name, why, tmp_path, capsys):
    assert f"it cannot be read: {why}" in verdict_on(capsys, tmp_path / f"{name}.safetensors", 2)


def test_several_dumps(tmp_path, capsys):
    """Each dump has one line. The exit code is 1 if one is wrong, and otherwise 2 if one is not judged."""
    dump, erc = one_of("z-loss"), load_file(FOLDER / "erc.few-active.safetensors")
    right, wrong, coupling, none = (
        str(tmp_path / f"{name}.safetensors") for name in ("right", "wrong", "coupling", "none")
    )
    write(right, dump, "z-loss")
    write(wrong, Dump("a", dump.x, {"loss": dump.got["loss"]}), "z-loss")
    save_file(erc, coupling)
    assert command.main([right, coupling]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{right}: right as z-loss", f"{coupling}: right as erc"]
    assert command.main([right, none, coupling]) == 2
    assert command.main([none, wrong, right, "--json", str(tmp_path / "all.json")]) == 1
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 4 and said.err.count("it cannot be read") == 2
    found = json.loads((tmp_path / "all.json").read_text())
    assert [(one["dump"], one["verdict"]) for one in found] == [
        (none, "not judged"),
        (wrong, "fault"),
        (right, "right"),
    ]
    assert command.main([none, "--json", str(tmp_path / "one.json")]) == 2 and not (tmp_path / "one.json").exists()


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")
def test_a_dump_in_c(tmp_path, capsys):
    source = pathlib.Path(__file__).parents[3] / "examples" / "router_loss_dump.c"
    built = subprocess.run(
        ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-lm", "-o", "a.out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not built.returncode, built.stderr
    subprocess.run(["./a.out", "b.safetensors"], cwd=tmp_path, check=True)
    assert "right as load-balancing-olmoe" in verdict_on(capsys, tmp_path / "b.safetensors", 0)


# ---- the coupling loss, by the names of the paper ----

WHOLE = {
    "R": torch.randn(5, 7, generator=generator(1)),
    "W_g": torch.randn(5, 3, 7, generator=generator(2)),
    "W_p": torch.randn(5, 3, 7, generator=generator(3)),
    "delta": 1 + 0.1 * torch.rand(5, 7, generator=generator(4)),
    "alpha": torch.tensor(0.8),
    "weight": torch.tensor(0.5),
    "layers": torch.tensor(4),
}


def coupling(**faults):
    """Returns the tensors of a dump."""
    x = Case(router=WHOLE["R"], w_gate=WHOLE["W_g"], w_up=WHOLE["W_p"], delta=WHOLE["delta"])
    x = x.but(alpha=0.8, coefficient=0.5, layers=4)
    out = outputs(KINDS["erc"], x, lambda key: faults.get(key, False))
    named = {"d_router": "dR", "d_w_gate": "dW_g", "d_w_up": "dW_p"}
    return {**WHOLE, **{named.get(name, name): value.contiguous() for name, value in out.items()}}


@pytest.mark.parametrize("faults", ("", "merged", "transposed", "row_missing", "eps_gradient"))
def test_a_dump_of_the_coupling_loss(faults, path, capsys):
    save_file(coupling(**dict.fromkeys(filter(None, [faults]), True)), path)
    said = json.loads(verdict_on(capsys, path, bool(faults), "--json", "-"))
    assert said["kind"] == "erc" and [one["key"] for one in said["faults"]] == [faults] * bool(faults)


def latent(**faults):
    """Returns the tensors of a dump of latent experts with a norm."""
    x = Case(router=WHOLE["R"], w_gate=WHOLE["W_g"][:, :, :4], down=torch.randn(4, 7, generator=generator(5)))
    x = x.but(latent_norm=torch.rand(4, generator=generator(6)), latent_eps=0.1, delta=WHOLE["delta"], alpha=0.8)
    out = outputs(KINDS["erc-latent"], x, lambda key: faults.get(key, False))
    named = {name: theirs for theirs, name in PAPER.items()}
    tensors = {named.get(name, name): value.contiguous() for name, value in {**dict(x.tensors()), **out}.items()}
    return {**tensors, "alpha": torch.tensor(0.8), "latent_eps": torch.tensor(0.1, dtype=torch.float64)}


@pytest.mark.parametrize("faults", ("", "down_detached", "down_gradient_summed", "latent_norm_left_out"))
def test_a_dump_of_the_coupling_loss_of_latent_experts(faults, path, capsys):
    save_file(latent(**({faults: 2} if faults else {})), path)
    said = json.loads(verdict_on(capsys, path, bool(faults), "--json", "-"))
    assert said["kind"] == "erc-latent" and [one["key"] for one in said["faults"]] == [faults] * bool(faults)


@pytest.mark.parametrize(
    "change, words",
    (
        ({"W_l": None, "dW_l": None}, "w_gate has 4 for d, router has 7"),
        ({"W_l": torch.ones(4, 6)}, "router has 7 for d, down has 6"),
        ({"W_g": torch.ones(5, 3, 7)}, "w_gate has 7 for l, down has 4"),
        ({"latent_norm": torch.ones(5)}, "latent_norm has 5 for l, down has 4"),
        ({"latent_eps": None}, "it has latent_norm, but no latent_eps: add the number"),
        ({"latent_eps": torch.tensor(-1.0)}, "latent_eps is -1, must be 0 or more"),
        ({"delta": torch.ones(5, 4)}, "delta has 4 for d, down has 7"),
    ),
)
def test_no_dumps_of_the_coupling_loss_of_latent_experts(change, words, path, capsys):
    save_file(changed(latent(), change), path)
    said = verdict_on(capsys, path, 2, "--loss", "erc-latent")
    assert words in said and len(said.splitlines()) == 1, said


SPOILT = WHOLE["W_g"].double()
SPOILT[1, 0, 2] = float("nan")


@pytest.mark.parametrize(
    "change, words",
    (
        ({"R": None, "dR": None}, "it has no router, which erc needs"),
        ({"W_g": None}, "the dump has d_w_gate, but no w_gate"),
        ({"loss": None}, "it has no loss, which erc needs"),
        ({"W_p": None}, "the dump has d_w_up, but no w_up"),
        ({"R": torch.ones(5)}, "router has 1 axes, must have 2: [n,d]"),
        ({"W_g": torch.ones(5, 7, 3)}, "w_gate has 3 for d, router has 7"),
        ({"W_p": torch.ones(5, 7)}, "w_up has 2 axes, must have 3: [n,D,d]"),
        ({"dR": torch.ones(7, 5)}, "d_router is [7, 5], router is [5, 7]"),
        ({"M": torch.ones(5)}, "M has 1 axes, must have 2: [n,n]"),
        ({"dR": torch.ones(5, 7).long()}, "d_router is of int64"),
        ({"dW_g": SPOILT}, "d_w_gate has a NaN or an infinite number, the first at [1, 0, 2]"),
        ({"alpha": torch.tensor(-1.0)}, "alpha is -1, must be 0 or more"),
        ({"weight": torch.tensor(0.0)}, "coefficient is 0, with which every loss is 0"),
        ({"layers": torch.tensor(0)}, "layers is 0, must be more than 0"),
        ({"loss": torch.ones(2)}, "loss is a tensor [2], must be one number"),
        ({"dWg": torch.ones(5, 3, 7)}, "dWg is neither an input nor an output of a loss"),
    ),
)
def test_no_dumps_of_the_coupling_loss(change, words, path, capsys):
    save_file(changed(coupling(), change), path)
    said = verdict_on(capsys, path, 2, "--loss", "erc")
    assert words in said and len(said.splitlines()) == 1, said


def test_cut_files(path, capsys):
    save_file(coupling(), path)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 20)):
        path.write_bytes(whole[:at])
        assert "a.safetensors: it " in verdict_on(capsys, path, 2), at


def test_too_many_experts(path, capsys):
    """20,000 experts of width 1 make a small file, and judging it would take 12 GB."""
    save_file({"R": torch.ones(20000, 1), "W_g": torch.ones(20000, 300, 1), "loss": torch.zeros(())}, path)
    assert "judging 20000 experts of width 300 needs " in verdict_on(capsys, path, 2)
