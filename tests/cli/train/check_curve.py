#!/usr/bin/env python3
"""check_curve.py COUPLET: the first steps of configs/tiny.yaml in f32 are those that PyTorch makes in float64
(tests/golden/tiny-curve.json, by make_curve.py), with every instruction set and number of threads.

The learning rate is one at which rounding does not grow from step to step: measured differences are 1e-7, and 7e-7 for
grad_norm. The tolerance allows for a token whose K-th expert is hardly ahead of the next, and which goes to the next
expert."""

import sys

sys.path.append("tests/cli")
from inputs import GOLDEN, metrics, read_json
from program import check, finish, good, scratch_folder, sets

TOLERANCE = {"loss": 2e-6, "balance": 1e-5, "z": 2e-6, "erc": 1e-5, "grad_norm": 1e-4}  # relative differences


def main():
    recorded = read_json(GOLDEN / "tiny-curve.json")
    with scratch_folder() as folder:
        good("train", "configs/tiny.yaml", "--out", folder / "run", *sets(*recorded["settings"]))
        curve = metrics(folder / "run")
    check(len(curve) == len(recorded["steps"]), f"{len(curve)} steps")
    for step, (got, want) in enumerate(zip(curve, recorded["steps"]), 1):
        for key, tolerance in TOLERANCE.items():
            fits = got[key] is not None and abs(got[key] - want[key]) <= tolerance * abs(want[key])
            check(fits, f"step {step}: {key} is {got[key]}, PyTorch's {want[key]}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
