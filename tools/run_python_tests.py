#!/usr/bin/env python3
"""run_python_tests.py prepare|run VENV: runs the tests of the Python package in a virtual environment.

prepare  makes VENV with PyTorch, Transformers and pytest from PyPI (minutes, some gigabytes). Installed packages are
         kept. It does not fail: `run` reports a failed installation.
run      installs couplet and couplet_native into VENV and runs the tests. It ends with the skipped tests, reasons,
         and `N passed, N failed, N skipped`. A VENV without PyTorch, because it could not be installed, is one skipped
         test. With COUPLET_TEST_ALL in the environment (.ci/run) a test that lacks a package fails."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

import tomllib

NEEDS = [
    "torch>=2.4",
    "transformers>=5",
    "accelerate",
    "safetensors",
    "numpy",
    "peft",
    "matplotlib",
    "scikit-learn",
    "mypy",
    "pytest",
    "hatchling>=1.27",
    "gguf",
    "tensorboard",
    "zstandard",
]
ALONE = ["lm-eval"]  # a separate step: it brings many packages, and without it one file of tests is skipped
ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDS.append("ruff" + tomllib.loads((ROOT / "ruff.toml").read_text())["required-version"])
ALL = "COUPLET_TEST_ALL" in os.environ
ABSENT = re.compile(
    "could not import|not installed|not on PATH|no program|not built|no C compiler|native is not used", re.I
)
INSTALL_SECONDS, TEST_SECONDS = 900, 1500
CHECK = "import torch, transformers, accelerate, safetensors, numpy, pytest"
WISHED = (
    CHECK + ", peft, matplotlib, sklearn, mypy, gguf, tensorboard, zstandard, hatchling, lm_eval, ruff"
)  # without these a few tests are skipped


def python_of(venv):
    return str(pathlib.Path(venv) / "bin" / "python")


def distribution(folder):
    """Returns pip's name of the package in a folder of the project."""
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["name"]


def is_ready(venv, check=CHECK):
    try:
        return subprocess.run([python_of(venv), "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def prepare(venv):
    if is_ready(venv, WISHED):
        return
    try:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        for names in (NEEDS, ALONE):
            subprocess.run(
                [python_of(venv), "-m", "pip", "install", "-q", "--no-cache-dir", *names],
                check=True,
                timeout=INSTALL_SECONDS,
            )
    except (subprocess.SubprocessError, OSError) as error:
        print(f"PyTorch, or what tests need besides, cannot be installed: {error}")


def counts_of(report):
    """Returns the numbers of passed, failed and skipped tests; prints each reason for skipping with its number of
    tests."""
    suite = next(xml.parse(report).getroot().iter("testsuite"))
    total, failed, errors, skipped = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
    reasons = collections.Counter(one.get("message", "") for one in suite.iter("skipped"))
    for reason, number in sorted(reasons.items()):
        print(f"{number} skipped: {reason}")
    absent = sum(number for reason, number in reasons.items() if ABSENT.search(reason)) if ALL else 0
    return total - failed - errors - skipped, failed + errors + absent, skipped - absent


def run(venv, native=True, seconds=TEST_SECONDS):
    if not is_ready(venv):
        print(f"{venv} has no PyTorch, which could not be installed: the Python tests are skipped")
        return (0, 1, 0) if ALL else (0, 0, 1)
    install = [python_of(venv), "-m", "pip", "install", "-q", "--no-deps"]
    targets = "build.targets=couplet_python;couplet"
    build = f"build-dir={ROOT / 'build' / 'python'}"  # kept for later runs
    bundle = f"cmake.define.COUPLET_BUNDLE={'ON' if shutil.which('dpkg-query') else 'OFF'}"  # as `make wheels`
    nvcc = "cmake.define.COUPLET_NVCC=OFF"  # no test of Python needs the CUDA backend, which takes two minutes
    earlier = ["couplet", "couplet-native"]  # former names, whose files are in the way
    subprocess.run([python_of(venv), "-m", "pip", "uninstall", "-q", "-y", *earlier], check=False)
    for what in (["./python"], ["./python/native", "-C", targets, "-C", bundle, "-C", nvcc, "-C", build])[: 1 + native]:
        if subprocess.run(install + what, check=False).returncode:
            return 0, 1, 0
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/report.xml"
        try:
            subprocess.run(
                [
                    python_of(venv),
                    "-m",
                    "pytest",
                    "--junitxml",
                    report,
                    "--tb=short",
                    "-p",
                    "no:cacheprovider",
                    "python/tests",
                    "python/vendor",
                ],
                check=False,
                timeout=seconds,
            )
            return counts_of(report)
        except (subprocess.TimeoutExpired, OSError, StopIteration) as error:
            print(f"the Python tests did not end: {error}")
            return 0, 1, 0


def main():
    what, venv = sys.argv[1:]
    if what == "prepare":
        prepare(venv)
        return 0
    passed, failed, skipped = run(venv)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
