#!/usr/bin/env python3
"""equal.py COUPLET [--steps N] [--work FOLDER] [--set NAME=VALUE ...]: compares the replicas of replicas.py with
`couplet train`, on the CPU in f32.

Both train the arms of pairs.py from one start, a checkpoint that the program wrote, with the same batches and the same
noise. Printed are the largest differences: of the start from replicas.py's own numbers, of the losses of each step, and of
the last loss of held-out text. It exits with 1 above LIMIT.
--set: settings of both; without it they do the first steps of experiments/base.yaml, whose warm-up is 100 steps."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Dict, List, Sequence

import torch
from pairs import ARMS, BONUS, Program
from replicas import ROOT, Shape, initial, settings_of, views
from safetensors.torch import load_file
from torch import Tensor

LIMIT = 1e-4  # of losses in nats
SEED = 7
START = ("train.steps=1", "train.warmup_steps=0", "train.lr=0")  # a run whose last checkpoint is its start
NAMES = {  # of a Hugging Face checkpoint of OLMoE
    "embed": "model.embed_tokens.weight",
    "input_norm": "input_layernorm.weight",
    "w_q": "self_attn.q_proj.weight",
    "w_k": "self_attn.k_proj.weight",
    "w_v": "self_attn.v_proj.weight",
    "w_o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "post_norm": "post_attention_layernorm.weight",
    "router": "mlp.gate.weight",
    "w_gate": "gate_proj.weight",
    "w_up": "up_proj.weight",
    "w_down": "down_proj.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}


def trained(program: str, out: pathlib.Path, sets: Sequence[str], tokens: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run of `couplet train experiments/base.yaml`."""
    data = [f"data.train={tokens / 'train'}", f"data.validation={tokens / 'validation'}", "compute.dtype=f32"]
    always = ["log.every=1", "eval.every=0", "checkpoint.every=0", "compute.device=cpu", "compute.threads=1"]
    words = [word for one in (*data, *always, *sets) for word in ("--set", one)]
    command = [program, "train", ROOT / "experiments/base.yaml", "--out", out, *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"equal: {' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return out


def encode(program: str, folder: pathlib.Path) -> pathlib.Path:
    """Makes the token shards that both read."""
    for name in ("train", "validation"):
        out, data = folder / name, ROOT / "data"
        words = ["--tokenizer", data / "tokenizer.json", "--out", out, data / name]
        subprocess.run([program, "tokenize", "encode", *map(str, words)], check=True, capture_output=True)
    return folder


def checkpoint(folder: pathlib.Path, shape: Shape) -> Tensor:
    """Returns the numbers of a checkpoint in the order of replicas.py, f32 [P]."""
    stored: Dict[str, Tensor] = {}
    for file in (folder / "last").glob("*.safetensors"):
        stored |= load_file(file)
    parts = []
    for name, (_, size, of_layer) in shape.parameters().items():
        for l in range(shape.L) if of_layer else (None,):
            begin = "" if l is None else f"model.layers.{l}."
            if name in ("w_gate", "w_up", "w_down"):
                each = [stored[f"{begin}mlp.experts.{e}.{NAMES[name]}"] for e in range(shape.n)]
                tensor = torch.stack(each)
            else:
                tensor = stored[begin + NAMES[name]]
            assert tensor.shape == size, (name, tensor.shape, size)
            parts.append(tensor.float().flatten())
    return torch.cat(parts)


def metrics(run: pathlib.Path) -> List[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def compare(program: str, work: pathlib.Path, sets: Sequence[str], arms: Sequence[str]) -> Dict[str, float]:
    """Returns the largest differences, by name: `start`, and of each arm its losses and the last held-out loss."""
    tokens, sets = encode(program, work / "tokens"), [*sets, f"train.seed={SEED}"]
    settings = settings_of(sets)
    shape, found = Shape.of(settings), {}
    start = checkpoint(trained(program, work / "start", [*sets, *START], tokens), shape)
    found["start"] = float((start - initial(shape, SEED, start.device)).abs().max())
    for group in ([arm for arm in arms if arm in ARMS], [arm for arm in arms if arm in BONUS]):
        if not group:
            continue
        stack = Program(settings, tokens, len(group), start.device, torch.float32, of_tokens=group[0] in BONUS)
        stack.start([(arm, SEED) for arm in group], start.expand(len(group), -1))
        stack.record()
        stack.train()
        last = stack.evaluate()
        for r, arm in enumerate(group):
            z, erc = (ARMS | BONUS)[arm]
            own = [f"z.weight={z}", f"erc.weight={erc}", f"erc.proxy={'tokens' if arm in BONUS else 'row'}"]
            lines = metrics(trained(program, work / arm, [*sets, *own], tokens))
            names = ["loss", "balance", "z", *(["erc"] if erc else [])]
            for k, name in enumerate(names):
                theirs = torch.tensor([line[name] or 0 for line in lines], dtype=torch.float64)  # null: no loss yet
                assert len(theirs) == stack.steps, (arm, name, len(theirs))
                found[f"{arm} {name}"] = float((stack.losses[:, k, r] - theirs).abs().max())
            norms = torch.tensor([line["grad_norm"] for line in lines], dtype=torch.float64)
            found[f"{arm} grad_norm, relative"] = float((stack.losses[:, 4, r] / norms - 1).abs().max())
            found[f"{arm} held-out loss"] = abs(last[r]["nats"] - lines[-1]["val_loss"])
            ends = (views(one[None], shape) for one in (stack.flat[r].detach(), checkpoint(work / arm, shape)))
            a, b = (torch.cat((p["router"].flatten(), p["w_gate"].flatten())) for p in ends)
            found[f"{arm} router and gates, relative"] = float((a - b).norm() / b.norm())
    return found


def wrong(found: Dict[str, float]) -> List[str]:
    """Returns what is above LIMIT: losses in nats, and the start."""
    return [name for name, value in found.items() if "relative" not in name and not value <= LIMIT]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("--steps", type=int, default=20)
    words.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    words.add_argument("--work", type=pathlib.Path)
    words = words.parse_args()
    recipe = settings_of()
    peak = float(recipe["train.lr"]) * (words.steps - 1) / float(recipe["train.warmup_steps"])
    sets = [f"train.steps={words.steps}", f"train.warmup_steps={words.steps - 1}", f"train.lr={peak!r}", *words.set]
    with tempfile.TemporaryDirectory() as scratch:
        found = compare(words.program, words.work or pathlib.Path(scratch), sets, [*ARMS, *BONUS])
    for name, value in found.items():
        print(f"{name:32} {value:.2e}")
    print(f"above {LIMIT:g}: {', '.join(wrong(found)) or 'nothing'}")
    sys.exit(bool(wrong(found)))


if __name__ == "__main__":
    main()
