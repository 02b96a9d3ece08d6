#!/usr/bin/env python3
"""python_matrix.py FOLDER [NAME...]: runs the tests of the Python package with older and the newest PyTorch and
Transformers, and prints a table. NAME: only these rows of ROWS. FOLDER: holds a virtual environment for each pair of
versions, some gigabytes each."""

import pathlib
import subprocess
import sys

from run_python_tests import NEEDS, distribution, python_of, run

# mypy is left out: older torch lacks annotations.
OTHERS = [need for need in NEEDS if not need.startswith(("torch", "transformers", "mypy"))]
OLDEST = ["torch==2.4.*", "transformers==4.56.*"]  # the oldest versions that pyproject.toml allows
# name: environment, its packages, whether it has couplet_native
ROWS = {
    "oldest-native": ("oldest", OLDEST, True),
    "oldest": ("oldest", OLDEST, False),
    "middle": ("middle", ["torch==2.6.*", "transformers<5"], False),
    "newest": ("newest", ["torch", "transformers>=5"], False),
}
SECONDS = 3600
VERSIONS = """import importlib.metadata as m, importlib.util as u
print(m.version("torch"), m.version("transformers"), "yes" if u.find_spec("couplet_native") else "no")"""


def prepare(venv, needs):
    if not pathlib.Path(python_of(venv)).exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([python_of(venv), "-m", "pip", "install", "-q", *needs, *OTHERS], check=True)
    subprocess.run([python_of(venv), "-m", "pip", "uninstall", "-q", "-y", distribution("python/native")], check=True)


def main():
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(ROWS)
    lines, failures = [], 0
    for name in names:
        environment, needs, native = ROWS[name]
        venv = folder / environment
        prepare(venv, needs)
        passed, failed, skipped = run(venv, native, SECONDS)
        versions = subprocess.run([python_of(venv), "-c", VERSIONS], check=True, capture_output=True, text=True)
        lines.append((*versions.stdout.split(), passed, failed, skipped))
        failures += failed
    for line in [("torch", "transformers", "native", "passed", "failed", "skipped"), *lines]:
        print("{:14} {:12} {:>6} {:>6} {:>6} {:>7}".format(*map(str, line)))
    return failures > 0


sys.exit(main())
