#!/usr/bin/env python3
"""Writes reference.json: the figures of `mean_token` (docs/method.md 5.3) of small layers, by numpy and scipy in float64.

Needs numpy and scipy. Usage: make_reference.py > reference.json

A case has router rows R [n,d], gates W [n,D,d] and tokens x [T,d] in F32, and scores s and responses a [T,n] rounded to
F32. Permutations are drawn with Philox4x32-10 as src/base/rng.h and src/inspect/null_model.h say.
"""

import json
import sys

import numpy as np
from scipy.stats import pearsonr, rankdata

DRAWS, FEW, STREAM, LAYER, SEED = 1000, 8, 17, 1, 5


def u32(step, index):
    """Returns number `index` of a step."""
    c, k = [index // 4, 0, step, STREAM | LAYER << 8], [SEED, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c[index % 4]


def permutation(n, step):
    p = list(range(n))
    for i in range(n - 1, 0, -1):
        j = u32(step, i) * (i + 1) >> 32
        p[i], p[j] = p[j], p[i]
    return p


def agreement(s, a):
    """Returns the mean of Spearman's correlations of the rows, without rows that do not vary, or None."""
    x, y = (rankdata(z, axis=1) - (z.shape[1] + 1) / 2 for z in (s, a))
    sizes = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    return float(((x * y).sum(1)[sizes > 0] / sizes[sizes > 0]).mean()) if sizes.any() else None


def doubly_centred(x):
    return x - x.mean(0) - x.mean(1, keepdims=True) + x.mean()


def pearson(s, a):
    s, a = doubly_centred(s).ravel(), doubly_centred(a).ravel()
    return float(pearsonr(s, a).statistic) if np.ptp(s) > 1e-12 and np.ptp(a) > 1e-12 else None


def dz(M):
    r = doubly_centred(M)
    return float(np.diag(r).mean() / r[~np.eye(len(r), dtype=bool)].std())


def with_null(of, n):
    """Returns the figure of(labels) and its distribution over permuted labels."""
    value = of(list(range(n)))
    if value is None:
        return {"value": None}
    drawn = np.array([x for x in (of(permutation(n, t)) for t in range(DRAWS)) if x is not None])
    far = int((np.abs(drawn - drawn.mean()) >= abs(value - drawn.mean()) - 1e-12).sum())
    return {"value": value, "mean": float(drawn.mean()), "std": float(drawn.std()), "p": (1 + far) / (1 + len(drawn))}


def figures(R, W, x, s, a, K):
    n, mu = len(R), x.mean(0)
    off_s, off_a = s - R @ mu, np.linalg.norm(np.einsum("td,iDd->tiD", x - mu, W), axis=-1)
    chosen = np.argsort(-s, axis=1, kind="stable")[:, :K]
    routed = (chosen[:, :, None] == np.arange(n)).any(1)
    kept = np.flatnonzero(routed.sum(0) >= FEW)
    M = np.array([a[routed[:, i]].mean(0)[kept] for i in kept])
    s_centred, a_centred = s - s.mean(0), a - a.mean(0)
    sd = a.std(0)
    units = np.where(sd > 0, a_centred / np.where(sd > 0, sd, 1), 0)
    rows, gates = R - R.mean(0), np.einsum("iDd,iDe,e->id", W, W, mu)
    cosines = (rows * gates).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(gates, axis=1)
    return {
        "agreement": with_null(lambda p: agreement(s, a[:, p]), n),
        "agreement_centred": with_null(lambda p: agreement(s_centred, a_centred[:, p]), n),
        "agreement_mu_off": with_null(lambda p: agreement(off_s, off_a[:, p]), n),
        "pearson_centred": with_null(lambda p: pearson(s, a[:, p]), n),
        "agreement_chosen": with_null(
            lambda p: agreement(np.take_along_axis(s, chosen, 1), np.take_along_axis(a[:, p], chosen, 1)), n
        ),
        "dz": with_null(lambda p: dz(M[:, p]), len(kept)) if len(kept) > 2 else {"value": None},
        "main_effect": float(a.mean(0).var() / a.var()),
        "router_mu_negative": float((R @ mu < 0).mean()),
        "router_mu_cos": float(cosines[np.isfinite(cosines)].mean()),
        "curve": np.take_along_axis(units, np.argsort(s, axis=1, kind="stable"), 1).mean(0).tolist(),
        "chosen": chosen.tolist(),
    }


def case(name, n, d, D, T, K, seed, ties=False):
    """With `ties` numbers are whole, two experts have equal scores, and one responds 0 to every token."""
    random = np.random.default_rng(seed)
    R, W = random.normal(size=(n, d)), random.normal(size=(n, D, d)) / d**0.5
    W += 1.5 * R[:, None] * random.normal(size=(n, D, 1)) / d**0.5
    x = random.normal(size=(T, d)) + random.normal(size=d)
    if ties:
        R, x = np.round(R), np.round(x)
        R[1], W[2] = R[0], 0
    R, W, x = (y.astype(np.float32).astype(np.float64) for y in (R, W, x))
    s = (x @ R.T).astype(np.float32).astype(np.float64)
    a = np.linalg.norm(np.einsum("td,iDd->tiD", x, W), axis=-1).astype(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = figures(R, W, x, s, a, K)
    arrays = {key: y.ravel().tolist() for key, y in (("R", R), ("W", W), ("x", x), ("s", s), ("a", a))}
    return {"name": name, "n": n, "d": d, "D": D, "T": T, "K": K, **arrays, "figures": found}


def main():
    cases = [
        case("experts", 5, 6, 4, 40, 2, 1),
        case("three chosen", 6, 5, 3, 30, 3, 2),
        case("ties and an expert without variance", 5, 4, 3, 24, 2, 3, ties=True),
        case("two experts", 2, 3, 2, 20, 1, 4),
        case("two experts with tokens enough", 4, 4, 3, 10, 1, 5),
    ]
    json.dump({"seed": SEED, "layer": LAYER, "cases": cases}, sys.stdout, separators=(",", ":"))
    for one in cases:
        print(one["name"], {k: v for k, v in one["figures"].items() if k != "chosen"}, file=sys.stderr)


if __name__ == "__main__":
    main()
