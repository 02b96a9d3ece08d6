#!/usr/bin/env python3
"""Writes the cases tied-*: equal experts, as after upcycling, equal rows of the router, or groups of both, in every
activation, with and without noise. They are computed by PyTorch's autograd in float64, by docs/method.md 3.1 to 3.6.
The gradient passes where M is at its bound or within the rounding of float64 (3.5).

    make_ties.py    into this folder, beside its other cases; the list is cases.json

Needs torch and safetensors. All inputs but delta are numbers that bf16 and f16 hold too."""

import itertools
import json
import pathlib

import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
TIE, LEAST_GAP = 1e-12, 4e-3  # relative: of equal numbers; of any other M from its bound, so that bf16 can tell
READS = {"gate": "Wg", "up": "Wp", "silu": "Wg", "swiglu": "Wg Wp", "output": "Wg Wp Wo", "gate_up": "Wg Wp"}
WRITTEN = tuple(READS)[:5]  # activations that have cases in this folder
SHAPES = {"experts": (6, 34, 7), "rows": (18, 10, 5), "both": (12, 8, 5)}  # n, d, D; a model's width d is even
WHAT = {
    "experts": "all experts equal",
    "rows": "all router rows equal",
    "both": "groups of equal experts and of equal rows",
}


def same(kind, n):
    """Returns for each expert the expert whose matrices it has, and for each row the row that it equals."""
    each = range(n)
    return {
        "experts": ([0] * n, list(each)),
        "rows": (list(each), [0] * n),
        "both": ([j % 4 for j in each], [i if i % 3 else 0 for i in each]),
    }[kind]


def responses(activation, x, w):
    """Returns [n, n, ...]: the response of expert j to row i."""
    gate, up = (torch.einsum("ik,jck->ijc", x, w[key]) for key in ("Wg", "Wp"))
    hidden = torch.nn.functional.silu(gate)
    return {
        "gate": gate,
        "up": up,
        "silu": hidden,
        "swiglu": hidden * up,
        "output": torch.einsum("ijc,jkc->ijk", hidden * up, w["Wo"]),
        "gate_up": torch.cat((gate, up), dim=-1),
    }[activation]


def bound_of_noise(R):
    apart = (R[:, None] - R[None]).norm(dim=-1).fill_diagonal_(torch.inf)
    return apart.min(dim=1).values / (2 * R.norm(dim=-1))


def make(kind, shape, activation, noisy, weight, seed):
    """Returns the entry of a case in the list, and its tensors."""
    (n, d, D), (experts, rows) = shape, same(kind, shape[0])
    random = torch.Generator().manual_seed(seed)
    of = {"R": (n, d), "Wg": (n, D, d), "Wp": (n, D, d), "Wo": (n, d, D)}
    inputs = {
        key: torch.randn(size, generator=random)[rows if key == "R" else experts].bfloat16().float()
        for key, size in of.items()
    }
    leaves = {key: x.double().requires_grad_() for key, x in inputs.items()}
    eps = bound_of_noise(leaves["R"].detach())
    delta = (1 + 0.999 * eps[:, None] * (2 * torch.rand(n, d, generator=random) - 1)).float()
    M = responses(activation, leaves["R"] * delta if noisy else leaves["R"], leaves).norm(dim=-1)
    other = ~torch.eye(n, dtype=torch.bool)
    bound = torch.stack((M.diagonal()[:, None].expand(n, n), M.diagonal().expand(n, n)))
    above = M - bound
    apart = (above.abs() / torch.maximum(M, bound)).detach()
    is_tie = other & (apart < TIE)
    over = is_tie | other & (above > 0)
    loss = weight * (above * over).sum() / n**2
    loss.backward()
    gap = apart[other & ~is_tie].min().item()
    shares = [float(share) for share in over.double().sum((1, 2)) / (n * (n - 1))]
    used = ["R", *READS[activation].split()]
    made = {key: inputs[key] for key in ["Wg", *used]} | {"d" + key: leaves[key].grad for key in used}
    made |= {"eps": eps, "M": M.detach(), "loss": loss.detach()} | ({"delta": delta} if noisy else {})
    case = {
        "name": f"tied-{kind}-{activation}",
        "what": WHAT[kind],
        "n": n,
        "d": d,
        "D": D,
        "alpha": 1.0,
        "weight": weight,
        "activation": activation,
        "noise": "bounded" if noisy else "none",
        "facts": {
            "loss": loss.item(),
            "active_row": shares[0],
            "active_column": shares[1],
            "exact_ties": int(is_tie.sum()),
            "nearest_kink": gap,
            "eps_above_1": int((eps > 1).sum()),
            "zero_rows": 0,
        },
    }
    return case, made


def main():
    path = HERE / "cases.json"
    cases = [case for case in json.loads(path.read_text()) if not case["name"].startswith("tied-")]
    for k, (kind, activation) in enumerate(itertools.product(SHAPES, WRITTEN)):
        seed = 100 * k
        while True:
            case, made = make(kind, SHAPES[kind], activation, k % 2 == 0, 0.5 + k % 3, seed)
            if case["facts"]["nearest_kink"] > LEAST_GAP:
                break
            seed += 1
        save_file({key: value.contiguous() for key, value in made.items()}, HERE / f"{case['name']}.safetensors")
        cases.append(case)
    path.write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
