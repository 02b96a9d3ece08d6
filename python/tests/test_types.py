"""Runs `mypy --strict` on the package, and on calls of it as a user writes them.

mypy runs once. Without its cache in build/mypy it takes 32 s of one core, mostly for PyTorch's files, with it 5 s."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")

RIGHT = """
import couplet
import torch
from torch import Tensor, nn

router, gates = torch.randn(4, 8), nn.Parameter(torch.randn(4, 6, 8))
model = nn.Linear(2, 2)
loss: Tensor = couplet.erc_loss(router, gates, alpha=0.5)
erc = couplet.attach(model, layers=[("router", "gates")], weight=0.1)
couplet.attach(model, [("router", "gates", "down"), (gates, [gates], gates, "norm")], latent_eps=1e-6)
theirs = couplet.hf.attach(model, alpha=0.5, accumulation=4)
reveal_type(couplet.erc_loss(router, gates))
reveal_type(erc)
reveal_type(theirs)
reveal_type(erc.loss())
reveal_type(erc.backward(scale=0.5))
reveal_type(theirs.metrics())
"""
TENSOR = "torch._tensor.Tensor"
REVEALED = [TENSOR, "couplet._attach.Erc", "couplet.hf.Erc", TENSOR, TENSOR, "dict[str, float]"]

WRONG = """
import couplet
import torch
from torch import nn

x = torch.randn(4, 8)
couplet.erc_loss(x, x, alpha="1")
couplet.erc_loss(x)
couplet.erc_loss(x, x, alfa=1.0)
couplet.attach(nn.Linear(2, 2), layers=3)
couplet.hf.attach("olmoe")
couplet.hf.attach(nn.Linear(2, 2)).backward("1")
couplet.erc_los(x, x)
"""
REPORTED = ["arg-type", "call-arg", "call-arg", "arg-type", "arg-type", "arg-type", "attr-defined"]


@pytest.fixture(scope="module")
def findings(tmp_path_factory):
    """Returns (file, line, "error" or "note", text) of each line of mypy's output."""
    folder = tmp_path_factory.mktemp("users")
    for name, code in (("right.py", RIGHT), ("wrong.py", WRONG)):
        (folder / name).write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "couplet", folder / "right.py", folder / "wrong.py"]
    done = subprocess.run(command, cwd=ROOT / "python", capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    found = re.findall(r"^(.+?):(\d+): (error|note): (.*)$", done.stdout, re.MULTILINE)
    return [(file, int(line), kind, text) for file, line, kind, text in found]


def test_the_package(findings):
    wrong = [
        f"{file}:{line}: {text}"
        for file, line, kind, text in findings
        if file.startswith("couplet/") and kind == "error"
    ]
    assert not wrong, "\n".join(wrong)


def test_calls_have_types(findings):
    texts = [text for file, _, _, text in findings if file.endswith("right.py")]
    assert texts == [f'Revealed type is "{name}"' for name in REVEALED]


def test_wrong_calls_are_reported(findings):
    first = WRONG.splitlines().index("x = torch.randn(4, 8)") + 2
    wrong = {line: text for file, line, kind, text in findings if file.endswith("wrong.py") and kind == "error"}
    assert {line: text.rpartition("[")[2] for line, text in wrong.items()} == {
        first + i: f"{code}]" for i, code in enumerate(REPORTED)
    }
