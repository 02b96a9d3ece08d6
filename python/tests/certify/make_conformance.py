"""The folder conformance/: inputs with what each kind of loss gives for them, dumps of public implementations that are
wrong, and the verdicts on all of them.

    python tests/certify/make_conformance.py FOLDER"""

import json
import pathlib
import sys

import torch
import verdicts
from couplet import certify, reference
from couplet.certify._call import dumps
from couplet.certify._dump import save
from couplet.certify._evaluate import outputs
from couplet.certify.kinds import KINDS

MOST_BYTES = 10_000
SOURCE_OF_ERC = "Coupling Experts and Routers in Mixture-of-Experts via an Auxiliary Loss, equation 3"
OF_ERC = ("all-active", "some-active", "ties")


def right(kind):
    """Dumps of its inputs with what its reference gives, computed in f64 and rounded to f32."""
    for name, x in kind.cases(0).items():
        if all(getattr(x, need) is not None for need in kind.needs):
            x = x.to(torch.float32)
            yield certify.Dump(name, x, {key: value.float() for key, value in outputs(kind, x, {}).items()})


def files():
    """(name, dump, kind, where it comes from)"""
    for name, kind in KINDS.items():
        for dump in right(kind):
            yield f"{name}.{dump.name}", dump, kind, kind.source
    for module, source, name, verdict in verdicts.rebuilt():
        if isinstance(verdict, certify.CannotJudge):
            continue
        kind = KINDS[name]
        for dump in dumps(sys.modules[module].loss, kind):
            yield f"{module}.{dump.name}", dump, kind, source


def erc_files():
    """Name and tensors of dumps of the coupling loss, computed in f64 and rounded to f32."""
    for name in OF_ERC:
        made = certify.erc.dump(reference.erc_loss, certify.erc.make_inputs(name), torch.float64)
        yield f"erc.{name}", {key: value.float() for key, value in made.items()}


def make(folder):
    """Files that are small; of a public implementation one, the first that is not right."""
    folder.mkdir(parents=True, exist_ok=True)
    expected, done = [], set()
    for name, dump, kind, source in files():
        of, path = name.split(".")[0], folder / f"{name}.safetensors"
        verdict = certify.judge(kind, [dump])
        is_right = verdict.state == "right"
        if of not in KINDS and (is_right or of in done):
            continue
        certify.write(path, dump, kind.name)
        if path.stat().st_size > MOST_BYTES:
            path.unlink()
            continue
        done.add(of)
        expected.append(
            {
                "file": path.name,
                "loss": kind.name,
                "verdict": verdict.state,
                "source": source,
                "faults": [[fault["key"] for fault in one] for one in certify.as_json(verdict)["faults"]],
            }
        )
    for name, tensors in erc_files():
        save(folder / f"{name}.safetensors", tensors, "erc")
        expected.append(
            {"file": f"{name}.safetensors", "loss": "erc", "verdict": "right", "source": SOURCE_OF_ERC, "faults": []}
        )
    (folder / "expected.json").write_text("[\n" + ",\n".join(map(json.dumps, expected)) + "\n]\n")


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
