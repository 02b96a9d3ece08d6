"""Code that the recipes *_saved.py share: check, which compares a checkpoint that a trainer has saved with the weights of
the model in memory."""

import atexit
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import safetensors.torch
import torch.distributed as dist
from couplet import find_program
from couplet.extract import extract

FOLDER = pathlib.Path(tempfile.gettempdir(), f"couplet-saved-{os.getppid()}")  # one for all processes of torchrun


def figures(path, name, *command):
    out = FOLDER / f"{name}.json"
    subprocess.run([*command, path, "--json", out], check=True, stdout=subprocess.DEVNULL)
    report = json.loads(out.read_text())
    return [{**layer, "prefix": ""} for layer in report.get("models", [report])[0]["layers"]]


def check(source, layers):
    """Checks that couplet.extract takes the numbers of `layers` out of the folder `source`: [(router [n,d], gates
    [n,D,d])], whole in the first process. With the program couplet, the figures of couplet.inspect must be those of the
    same weights as a Hugging Face folder."""
    atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)  # here, since processes that write shards import this
    dist.barrier()
    if dist.get_rank() == 0:
        found, _ = extract(source, FOLDER / "gates.safetensors")
        there = safetensors.torch.load_file(FOLDER / "gates.safetensors")
        made = {}
        for (router, gates), layer in zip(layers, found.layers, strict=True):
            made[f"{layer.prefix}mlp.gate.weight"] = router.detach().clone()
            for e, gate in enumerate(gates.detach()):
                made[f"{layer.prefix}mlp.experts.{e}.gate_proj.weight"] = gate.clone()
        assert there.keys() == made.keys()
        assert all(there[name].equal(made[name]) and there[name].dtype == made[name].dtype for name in made)
        (FOLDER / "hf").mkdir(exist_ok=True)
        safetensors.torch.save_file(made, FOLDER / "hf/model.safetensors")
        program, name = os.environ.get("COUPLET_PROGRAM") or find_program(), source.name
        if program:
            ours = figures(source, f"{name}-folder", sys.executable, "-m", "couplet.inspect")
            assert ours == figures(FOLDER / "hf", f"{name}-hf", program, "inspect")
        also = "; figures too" if program else "; figures not compared: the program couplet is not on PATH"
        print(f"{name}: {len(made)} tensors equal the model's to the last bit{also}", flush=True)
    dist.barrier()
