"""Random coupling losses in eager PyTorch with every fault of couplet.certify as a switch, in the formats that people
compute in, and their dumps."""

import math

import torch
from couplet.certify.erc.faults import FAULTS, can_stand_together
from losses_in_eager import DeltaLeftOut

KINDS = {"f64": torch.float64, "f32": torch.float32, "autocast": torch.float32, "bf16": torch.bfloat16}
KEYS = [key for key in FAULTS if key not in ("zero", "factor")]
FACTORS = {
    "loss_sign": lambda x: -1,
    "pairs_mean": lambda x: x["n"] / (x["n"] - 1),
    "rows_mean": lambda x: x["n"],
    "no_mean": lambda x: x["n"] ** 2,
    "weight_left_out": lambda x: 1 / x["weight"],
    "weight_twice": lambda x: x["weight"],
    "layers_sum": lambda x: x["layers"],
    "layers_twice": lambda x: 1 / x["layers"],
    "zero": lambda x: 0,
    "factor": lambda x: 3.7,
}


def eps_of(R):
    apart = torch.cdist(R, R, compute_mode="donot_use_mm_for_euclid_dist") + torch.diag(torch.full((len(R),), math.inf))
    return apart.min(1).values / (2 * R.norm(dim=1))


def random_case(seed, **fixed):
    """Small odd shapes; alpha 0 to 1.5, weight and layers other than 1. Gates with a part along their own router row, so
    that some hinges are active and some are not."""
    random = torch.Generator().manual_seed(seed)
    unit = lambda: float(torch.rand((), generator=random))
    whole = lambda low, high: low + int(unit() * (high - low + 1))
    normal = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)
    x = {
        "n": whole(2, 24),
        "d": 2 * whole(1, 6) + 1,
        "D": 2 * whole(0, 5) + 1,
        "alpha": 1.5 * unit(),
        "weight": 0.2 + 0.5 * unit() if unit() < 0.5 else 1.6 + unit(),
        "layers": whole(3, 40),
        "noisy": unit() < 0.7,
        "has_up": unit() < 0.7,
        "gives_M": unit() < 0.5,
        "tie": 1.0,
        **fixed,
    }
    n, d, D = x["n"], x["d"], x["D"]
    own, scale = 1.5 * unit(), math.exp(2 * unit() - 1)
    x["R"] = (scale * normal(n, d)).float()
    along = own * normal(2, n, D, 1) / scale * x["R"].double()[:, None] / d**0.5
    x["W"] = (normal(2, n, D, d) + along).float()
    eps = eps_of(x["R"].double())[:, None]
    x["delta"] = (1 + eps * (2 * torch.rand(n, d, generator=random, dtype=torch.float64) - 1) * x["noisy"]).float()
    return x


def can_show(x, key):
    """Whether the fault is there to be seen in such a case."""
    return {
        "merged": x["has_up"],
        "up_for_gate": x["has_up"],
        "noise_left_out": x["noisy"],
        "delta_left_out": x["noisy"],
        "eps_gradient": x["noisy"],
        "transposed": x["gives_M"],
        "diagonal_kept": x["alpha"] < 1,
    }.get(key, True)


def is_pair(a, b):
    """Not those that exclude each other, or of which one hides the other."""
    return a != b and can_stand_together(frozenset((a, b))) and {a, b} != {"alpha_ignored", "diagonal_kept"}


def proxies(R, x, faults, dtype):
    delta = x["delta"].to(dtype)
    if "noise_left_out" in faults:
        return R * 1
    if "eps_gradient" in faults:
        eps = eps_of(R.double())[:, None]
        z = torch.where(eps > 0, (delta.double() - 1) / eps, 0.0).detach()
        return R * (1 + eps * z).to(dtype)
    return DeltaLeftOut.apply(R, delta) if "delta_left_out" in faults else R * delta


def norms(r, halves, faults, products):
    """[n, n] of proxies [n, d] and matrices [n, D, d]."""
    A = [torch.einsum("id,jkd->ijk", r.to(products), W.to(products)).to(r.dtype) for W in halves]
    A = torch.cat(A, -1)
    return A.square().sum(-1) if "squared" in faults else torch.linalg.vector_norm(A, dim=-1)


def hinge(x, tie):
    """max(x, 0), with the gradient `tie` at 0."""
    return x * (x > 0) + tie * x * (x == 0)


def sum_of_hinges(M, x, faults):
    own = (1.0 if "alpha_ignored" in faults else x["alpha"]) * (
        M.diagonal().detach() if "diagonal_detached" in faults else M.diagonal()
    )
    sign, total = (-1 if "hinge_sign" in faults else 1), torch.zeros_like(M)
    for missing, bound in (("row_missing", own[:, None]), ("column_missing", own[None, :])):
        if missing not in faults:
            total = total + hinge(sign * (M - bound), x["tie"])
    return (total if "diagonal_kept" in faults else total.masked_fill(torch.eye(len(M), dtype=torch.bool), 0)).sum()


def dump(x, faults=(), kind="f32"):
    """The tensors of a dump of an implementation with these faults that computes in this format."""
    dtype = KINDS[kind]
    R = x["R"].to(dtype).clone().requires_grad_()
    W = [half.to(dtype).clone().requires_grad_() for half in x["W"]]
    halves = [half.detach() if "experts_detached" in faults else half for half in W]
    used = halves if "merged" in faults else halves[1:] if "up_for_gate" in faults else halves[:1]
    r = proxies(R.detach() if "router_detached" in faults else R, x, faults, dtype)
    M = norms(r, used, faults, torch.bfloat16 if kind == "autocast" else dtype)
    loss = sum_of_hinges(M, x, faults) * (x["weight"] / (x["n"] ** 2 * x["layers"]))
    for key in faults:
        loss = loss * FACTORS[key](x) if key in FACTORS else loss
    if loss.requires_grad:
        loss.backward()
    wide = torch.float32 if dtype is torch.bfloat16 else dtype  # inputs are the f32 numbers that bf16 can hold
    made = {
        "R": R.to(wide),
        "W_g": W[0].to(wide),
        "loss": loss,
        "dR": R.grad,
        "dW_g": W[0].grad,
        "alpha": torch.tensor(x["alpha"], dtype=torch.float64),
        "layers": torch.tensor(x["layers"]),
        "weight": torch.tensor([x["weight"]], dtype=torch.float64),
    }
    if x["has_up"]:
        made.update(W_p=W[1].to(wide), dW_p=torch.zeros_like(W[1]) if W[1].grad is None else W[1].grad)
    if x["noisy"]:
        made["delta"] = x["delta"].to(dtype).to(wide)
    if x["gives_M"]:
        made["M"] = M.T if "transposed" in faults else M
    return {name: value.detach().clone() for name, value in made.items() if value is not None}
