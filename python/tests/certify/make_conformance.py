"""Makes the folder conformance/: inputs with the outputs of each kind of loss, dumps of public implementations that are
wrong, and the verdicts on all dumps.

    python tests/certify/make_conformance.py FOLDER"""

import json
import pathlib
import sys

import torch
import verdicts
from couplet import certify
from couplet.certify._call import Callee
from couplet.certify._dump import PAPER
from couplet.certify._judge import outputs
from couplet.certify._kind import ABOUT
from couplet.certify.kinds import KINDS
from safetensors.torch import save_file

MOST_BYTES = 10_000
NAMES_IN_FILE = {ours: theirs for theirs, ours in PAPER.items()}  # names of the coupling loss in a file


def write(path, dump, kind):
    """Writes a dump file."""
    tensors = {}
    for name, value in {**dump.x.values, **dump.got}.items():
        if value is not None and name != "twins":
            value = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
            tensors[NAMES_IN_FILE.get(name, name) if KINDS[kind].is_coupling else name] = value.contiguous().clone()
    save_file(tensors, path, {"couplet_dump": "1", "kind": kind})


def reference_dumps(kind):
    """Yields dumps of the kind's inputs with the outputs of the reference, computed in f64 and rounded to f32."""
    for name, x in kind.cases(0, 0).items():
        x = x.to(torch.float32)
        x = x.but(w_up=None) if kind.is_coupling else x
        got = {key: value.float() for key, value in outputs(kind, x.to(torch.float64)).items() if key != "M"}
        yield certify.Dump(name, x, got)


def files():
    """Yields (name, dump, kind, source)."""
    for name, kind in KINDS.items():
        for dump in reference_dumps(kind):
            yield f"{name}.{dump.name}", dump, kind, ABOUT[name]["source"].partition(": [certify.md]")[0]
    for module, source, name, verdict in verdicts.rebuilt():
        if isinstance(verdict, certify.CannotJudge):
            continue
        kind = KINDS[name]
        for dump in Callee(sys.modules[module].loss, kind).dumps(torch.float32, "cpu", 0):
            yield f"{module}.{dump.name}", dump, kind, source


def make(folder):
    """Writes small files. Of each public implementation only the first dump that is not right is written."""
    folder.mkdir(parents=True, exist_ok=True)
    expected, done = [], set()
    for name, dump, kind, source in files():
        of, path = name.split(".")[0], folder / f"{name}.safetensors"
        verdict = certify.judge(kind, [dump])
        if of not in KINDS and (verdict.state == "right" or of in done):
            continue
        write(path, dump, kind.name)
        if path.stat().st_size > MOST_BYTES and not kind.is_coupling:
            path.unlink()
            continue
        done.add(of)
        keys = [fault.key for fault, _ in verdict.faults]
        members = {"file": path.name, "loss": kind.name, "verdict": verdict.state, "source": source, "faults": keys}
        expected.append(members)
    (folder / "expected.json").write_text("[\n" + ",\n".join(map(json.dumps, expected)) + "\n]\n")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
