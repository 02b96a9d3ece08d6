"""Runs ruff on every Python file of the project, by ruff.toml."""

import subprocess

import pytest
from conftest import ROOT

pytest.importorskip("ruff", reason="ruff is not installed: pip install the version that ruff.toml names")


@pytest.mark.parametrize("command", [["check", "-q"], ["format", "--check", "-q"]], ids=["check", "format"])
def test_ruff(command):
    from ruff.__main__ import find_ruff_bin

    done = subprocess.run([find_ruff_bin(), *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
