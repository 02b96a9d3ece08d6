#!/usr/bin/env python3
"""check_curve.py COUPLET [record]: the first steps of configs/tiny.yaml in f32 have the recorded
losses (tests/golden/tiny-curve.json), whatever instruction set and threads compute them.

The learning rate is one at which rounding does not grow from step to step; the tolerance, 1e-3 of the
loss, is for sums in another order."""
import json
import os
import subprocess
import sys
import tempfile

RECORD = "tests/golden/tiny-curve.json"
SETTINGS = ["compute.dtype=f32", "train.steps=12", "train.warmup_steps=4", "train.lr=5e-4",
            "log.every=1", "eval.every=0", "eval.max_sequences=1"]
KEYS = ["loss", "balance", "z", "grad_norm"]
TOLERANCE = 1e-3

with tempfile.TemporaryDirectory() as folder:
    run = os.path.join(folder, "run")
    command = [sys.argv[1], "train", "configs/tiny.yaml", "--out", run]
    for setting in SETTINGS:
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(run, "metrics.jsonl")) as lines:
        curve = [{key: line[key] for key in KEYS} for line in map(json.loads, lines)]
if sys.argv[2:] == ["record"]:
    with open(RECORD, "w") as out:
        json.dump(curve, out, indent=1)
        out.write("\n")
    sys.exit(0)
with open(RECORD) as file:
    recorded = json.load(file)
assert len(curve) == len(recorded), (len(curve), len(recorded))
for step, (got, want) in enumerate(zip(curve, recorded), 1):
    for key in KEYS:
        limit = TOLERANCE if key != "grad_norm" else 20 * TOLERANCE
        if abs(got[key] - want[key]) > limit * abs(want[key]):
            sys.exit(f"step {step}: {key} is {got[key]}, recorded {want[key]}")
