#!/usr/bin/env python3
"""run_recipes.py VENV FOLDER [NAME ...]: runs examples/recipes with the trainers' own packages.

VENV has PyTorch and Transformers (`run_python_tests.py prepare VENV`). Each trainer gets an environment
FOLDER/NAME that sees VENV's packages and adds its own from PyPI. Installed packages are kept. The
commands are those of each recipe's docstring. It prints a table, and exits with 1 if a recipe failed. A trainer
that cannot be installed is reported and is no failure."""

import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
RECIPES = ROOT / "examples" / "recipes"
SECONDS = 900  # limit of one installation, and of one command

# trainer: files, the package whose version is shown, the installations, each the words of one `pip install`. --no-deps
# is for packages that require another PyTorch than VENV's.
TRAINERS = {
    "hf": ("hf_trainer.py", "transformers", []),
    "accelerate": ("accelerate_loop.py", "accelerate", []),
    "trl": ("trl_sft.py", "trl", ["trl"]),
    "lightning": ("lightning_module.py", "lightning", ["lightning"]),
    "deepspeed": ("deepspeed_zero.py", "deepspeed", ["deepspeed"]),
    "fsdp2": ("fsdp2.py", "torch", []),
    "axolotl": (
        "axolotl_plugin.py",
        "axolotl",
        [
            "--no-deps axolotl==0.19.0 transformers==5.16.1 accelerate==1.13.0 peft==0.20.0 trl==1.9.0 "
            "optimum==1.16.2 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 liger-kernel==0.8.1 "
            "torchao==0.17.0 bitsandbytes==0.50.2 nvidia-ml-py==12.560.30 trackio==0.19.0",
            "datasets addict fire colorama art python-dotenv posthog huggingface_hub==1.17.0 kernels "
            "tokenizers==0.23.1 numba scipy evaluate==0.4.1 schedulefree einops pydantic==2.12.5 typer==0.25.1 "
            "mistral-common sentencepiece requests zstandard fastcore langdetect wandb setuptools",
        ],
    ),
    "torchtitan": ("torchtitan_ep.py torchtitan_vendored.py torchtitan_saved.py", "torchtitan", ["torchtitan"]),
    "megatron": ("megatron_core.py megatron_vendored.py megatron_saved.py", "megatron-core", ["megatron-core"]),
    "olmo-core": (
        "olmo_core_callback.py olmo_core_saved.py",
        "ai2-olmo-core",
        ["--no-deps ai2-olmo-core", "cached_path dataclass-extensions bettermap importlib_resources requests pandas"],
    ),
}
PROGRAMS = {
    "python": [],
    "torchrun": ["-m", "torch.distributed.run"],
    "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
}


def site_packages(venv):
    return next((pathlib.Path(venv) / "lib").glob("python*/site-packages"))


def prepare(venv, name, installations):
    """Returns the environment's interpreter. Raises subprocess.CalledProcessError if pip fails."""
    python = venv / name / "bin" / "python"
    done = venv / name / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", venv / name], check=True)
        (site_packages(venv / name) / "common.pth").write_text(f"{COMMON}\n")
        for words in installations:
            subprocess.run(
                [python, "-m", "pip", "install", "-q", "--no-cache-dir", *words.split()],
                check=True,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        done.touch()
    return python


def commands_of(path, python):
    """Yields (words, variables) of each command of a recipe's docstring, except pip commands."""
    text = ast.get_docstring(ast.parse(path.read_text()), clean=False).replace("\\\n", " ")
    for line in re.findall(r"(?m)^    (\S.*)$", text):
        words = shlex.split(line)
        if words[0] in ("pip", "cp"):
            continue
        variables = {}
        while "=" in words[0]:
            name, value = words.pop(0).split("=", 1)
            variables[name] = value
        yield [str(python), *PROGRAMS[words[0]], *words[1:]], variables


def run(path, python):
    """Returns the lines that the checks printed, one for each command. Raises subprocess.SubprocessError if a command
    fails."""
    said = []
    for words, variables in commands_of(path, python):
        paths = [str(ROOT / "python"), str(ROOT / "python/vendor"), str(RECIPES), os.environ.get("PYTHONPATH", "")]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **variables,
        }
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS)
        (python.parents[1] / "last.log").write_text(done.stdout + done.stderr)
        done.check_returncode()
        said += re.findall(r"(?m)^.*(?:gradients within|to the last bit).*$", done.stdout)[:1] or [
            "tiny.Check has said nothing"
        ]
    if not said:
        raise subprocess.SubprocessError(f"the docstring of {path.name} has no command (a line with four spaces)")
    if "tiny.Check has said nothing" in said:
        raise subprocess.SubprocessError(f"no check in what {path.name} printed")
    return said


def version_of(package, python):
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def tried(folder, name):
    """Returns (version, result, lines) of one trainer."""
    files, package, installations = TRAINERS[name]
    try:
        python = prepare(folder, name, installations)
    except (subprocess.SubprocessError, OSError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        return "-", f"not installable: {reason[:90]}", []
    version = version_of(package, python)
    try:
        lines = [line for file in files.split() for line in run(RECIPES / file, python)]
    except (subprocess.SubprocessError, OSError) as error:
        return version, f"failed: {error}; {folder / name / 'last.log'}", []
    stub = any("against a stub" in line for line in lines)
    return version, "passed against a stub" if stub else "passed", lines


def main():
    global COMMON
    COMMON = site_packages(sys.argv[1]).resolve()
    folder, names = pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:] or list(TRAINERS)
    failed = 0
    print(f"{'trainer':<12} {'version':<10} result")
    for name in names:
        version, result, lines = tried(folder, name)
        failed += result.startswith("failed")
        print(f"{name:<12} {version:<10} {result}", *(f"    {line}" for line in lines), sep="\n", flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
