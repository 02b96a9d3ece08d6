#!/usr/bin/env python3
"""check_curve.py COUPLET: the first steps of configs/tiny.yaml in f32 are those that PyTorch makes in
float64 (tests/golden/tiny-curve.json, by make_curve.py), whatever instruction set and threads compute
them.

The learning rate is one at which rounding does not grow from step to step: what was seen differs by 1e-7,
grad_norm by 7e-7. There is room for a token whose K-th expert is hardly ahead of the next one, and which
goes to that one."""

import sys

sys.path.append("tests/cli")
from inputs import GOLDEN, metrics, read_json
from program import check, finish, good, scratch_folder, sets

TOLERANCE = {"loss": 2e-6, "balance": 1e-5, "z": 2e-6, "erc": 1e-5, "grad_norm": 1e-4}  # relative


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
