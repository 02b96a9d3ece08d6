"""The folder conformance/: its verdicts, its own check, and a comparison with the output of make_conformance.py."""

import importlib.util
import json
import subprocess
import sys

import make_conformance
import pytest
import torch
from conftest import ROOT
from couplet import certify, reference
from safetensors.torch import load_file

FOLDER = ROOT / "python" / "conformance"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
pytestmark = pytest.mark.usefixtures("one_thread")
spec = importlib.util.spec_from_file_location("check", FOLDER / "check.py")
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

OF_REFERENCES = [one for one in EXPECTED if one["verdict"] == "right" and not certify.KINDS[one["loss"]].is_coupling]


@pytest.mark.parametrize(
    "one", [one for one in EXPECTED if certify.KINDS[one["loss"]].is_coupling], ids=lambda one: one["file"]
)
def test_coupling(one):
    """check.py accepts the paper's pseudo-code."""

    def pseudo_code(router, w_gate, **rest):
        rest = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in rest.items()}
        return reference.erc_loss(router.double(), w_gate.double(), **rest)

    assert check.verdict(pseudo_code, FOLDER / one["file"]) == "right"
    detached = check.verdict(lambda router, **rest: pseudo_code(router.detach(), **rest), FOLDER / one["file"])
    assert "d_router differs" in detached


@pytest.mark.parametrize("one", EXPECTED, ids=lambda one: one["file"])
def test_verdicts(one):
    dump, kind = certify.read(FOLDER / one["file"])
    assert kind == one["loss"]
    verdict = certify.judge(certify.KINDS[kind], [certify.of_kind(dump, certify.KINDS[kind])])
    assert (verdict.state, [fault.key for fault, _ in verdict.faults]) == (one["verdict"], one["faults"])


def test_every_kind_is_there_and_many_faults():
    assert {one["loss"] for one in EXPECTED if one["verdict"] == "right"} == set(certify.KINDS)
    assert sum(one["verdict"] != "right" for one in EXPECTED) > 10
    assert sorted(path.name for path in FOLDER.glob("*.safetensors")) == sorted(one["file"] for one in EXPECTED)


def test_it_is_what_is_made(tmp_path):
    make_conformance.make(tmp_path)
    assert json.loads((tmp_path / "expected.json").read_text()) == EXPECTED
    for one in EXPECTED:
        ours, made = (load_file(folder / one["file"]) for folder in (FOLDER, tmp_path))
        assert set(ours) == set(made)
        for name, want in ours.items():
            torch.testing.assert_close(made[name], want, rtol=1e-4, atol=1e-6, msg=f"{one['file']}: {name}")


@pytest.mark.parametrize("one", OF_REFERENCES, ids=lambda one: one["file"])
def test_check_of_the_references(one):
    kind = certify.KINDS[one["loss"]]
    right = lambda **inputs: kind.reference(certify.Case(**inputs).to(torch.float64), lambda _: False)
    found = check.differences(right, FOLDER / one["file"])
    assert found and max(found.values()) <= check.LIMIT, found


def test_check_as_a_command(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n\n"
        "def z(logits, coefficient=1.0, mask=None, **_):\n"
        "    z = logits.logsumexp(-1) ** 2\n"
        "    m = torch.ones_like(z) if mask is None else mask.to(z).expand_as(z)\n"
        "    return coefficient * (z * m).sum() / m.sum()\n\n"
        "def twice(coefficient=1.0, **inputs):\n"
        "    return z(coefficient=coefficient ** 2, **inputs)\n"
    )
    said = [
        subprocess.run([sys.executable, str(FOLDER / "check.py"), *words], cwd=tmp_path, capture_output=True, text=True)
        for words in (("mine:z", "z-loss"), ("mine:twice", "z-loss"), ("mine:z", "nonsense"))
    ]
    assert [one.returncode for one in said] == [0, 1, 2]
    assert all(line.endswith(": right") for line in said[0].stdout.splitlines())
    assert "loss differs by" in said[1].stdout and "d_logits differs by" in said[1].stdout
    assert "unknown kind nonsense; the kinds are: aoe-scores, " in said[2].stderr


@pytest.mark.parametrize(
    "function, words",
    (
        (lambda **_: 1.0, "loss differs by"),
        (lambda **_: {}, "raised ValueError: the function returned no loss: return a dict with the keys loss"),
        (lambda **_: (1, 2), "raised"),
        (lambda logits, other: 0, "raised TypeError"),
        (lambda **_: 1 / 0, "raised ZeroDivisionError"),
        (lambda logits, **_: logits.detach().sum(), "d_logits differs by 1"),
        (lambda logits, **_: logits.mean(-1), "raised ValueError: loss is"),
    ),
)
def test_functions_that_give_no_loss(function, words):
    assert words in check.verdict(function, FOLDER / "z-loss.layers.safetensors")


def test_what_a_function_does_not_take_is_no_fault(capsys, tmp_path, monkeypatch):
    (tmp_path / "whole.py").write_text(
        "def z(logits, coefficient=1.0, **_):\n"
        "    return coefficient * (logits.logsumexp(-1) ** 2).mean()\n\n"
        "def plain(logits, coefficient):\n"
        "    return z(logits, coefficient)\n\n"
        "def wrong(logits, **_):\n"
        "    return 2 * z(logits, **_)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert check.main(["whole:plain", "z-loss"]) == check.main(["whole:z", "z-loss"]) == 0
    said = capsys.readouterr().out
    assert "z-loss.padding.safetensors: does not count: the function has no parameter mask (loss differs by" in said
    assert check.main(["whole:wrong", "z-loss"]) == 1
    sequences = FOLDER / "load-balancing-deepseek.micro-batches.safetensors"
    assert check.excuse(lambda micro_batches, **_: 0, sequences) == "the function has no parameter sequences"
    assert check.excuse(lambda **_: 0, FOLDER / "z-loss.ties.safetensors").startswith("experts tie")


@pytest.mark.parametrize("kind", ("z-loss", "load-balancing-olmoe", "load-balancing-mixtral"))
def test_a_mask_that_is_named_and_ignored(kind, capsys, tmp_path, monkeypatch):
    """A function without the argument sequences does not get it. This does not excuse a mask that is ignored."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ignores.py").write_text(
        "import couplet.certify\n\n"
        "def loss(logits, mask=None, coefficient=1.0, top_k=None, kept=None, micro_batches=None):\n"
        "    x = couplet.certify.Case(logits=logits, coefficient=coefficient, top_k=top_k, kept=kept,\n"
        "                             micro_batches=micro_batches)\n"
        f"    return couplet.certify.REFERENCES[{kind!r}](x)\n"
    )
    assert check.main(["ignores:loss", kind]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if not line.endswith("right") and "tie" not in line]
    assert len(wrong) == 1 and wrong[0].startswith(f"{kind}.padding.safetensors: loss differs by")
    sys.modules.pop("ignores")


@pytest.mark.parametrize(
    "body, code", (("def loss(**_):\n    raise SystemExit(0)\n", 1), ("raise SystemExit(0)\n", 2), ("1 / 0\n", 2))
)
def test_a_module_that_leaves(body, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaves.py").write_text(body)
    assert check.main(["leaves:loss", "z-loss"]) == code
    said = capsys.readouterr()
    assert "SystemExit" in said.out + said.err or "ZeroDivisionError" in said.err
    sys.modules.pop("leaves", None)


def test_usage(capsys):
    assert check.main([]) == check.main(["module", "z-loss"]) == 2
    assert check.main(["no_such_module:f", "z-loss"]) == check.main(["json:no_such", "z-loss"]) == 2
    assert "no_such_module" in (said := capsys.readouterr().err) and "no_such" in said and "Traceback" not in said
