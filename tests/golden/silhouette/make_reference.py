#!/usr/bin/env python3
"""Writes reference.json: scikit-learn's silhouettes, metric="cosine", of points that the test makes again.

Needs numpy and scikit-learn. Usage: make_reference.py > reference.json

Points: n clusters of D rows in d dimensions. A number is the sum of twelve of (the upper 12 bits of
splitmix64) / 4096 minus 6 (nearly normal), exact in F32. Row r of cluster c is row D c + r of a matrix, plus `apart`
times row c of a second matrix of this kind. `zero` is a row of zeros, or -1. Row r is multiplied by 2^(r mod 5).

mean: silhouette_score; clusters: means of silhouette_samples over each cluster.
"""

import json
import sys

import numpy as np
import sklearn
from sklearn.metrics import silhouette_samples, silhouette_score

CASES = (  # n, D, d, apart, zero, seed
    (2, 2, 3, 0, -1, 1),
    (5, 17, 40, 0, -1, 2),
    (5, 17, 40, 1, -1, 3),
    (5, 17, 40, 4, 20, 4),
    (8, 100, 16, 0.5, -1, 5),
    (20, 30, 130, 0.25, 599, 6),
    (3, 9, 1, 0, 4, 7),
    (70, 6, 65, 1, -1, 8),
)


def normal(seed, rows, cols):
    """Returns sums of twelve uniform numbers, minus 6. Number i of stream `seed` is that of i + 1 steps."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, 12 * rows * cols + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    uniform = (z >> np.uint64(52)).astype(np.float64) / 4096
    return uniform.reshape(rows, cols, 12).sum(axis=2) - 6


def points(n, D, d, apart, zero, seed):
    x = normal(seed, n * D, d) + apart * np.repeat(normal(seed + 100, n, d), D, axis=0)
    x *= 2.0 ** (np.arange(n * D) % 5)[:, None]
    if zero >= 0:
        x[zero] = 0
    return x.astype(np.float32).astype(np.float64)


def main():
    cases = []
    for case in CASES:
        n, D = case[:2]
        x, labels = points(*case), np.repeat(np.arange(n), D)
        each = silhouette_samples(x, labels, metric="cosine")
        figures = {
            "squares": float((x**2).sum()),
            "mean": float(silhouette_score(x, labels, metric="cosine")),
            "clusters": [float(each[labels == c].mean()) for c in range(n)],
        }
        cases.append(dict(zip(("n", "D", "d", "apart", "zero", "seed"), case)) | figures)
    json.dump({"scikit-learn": sklearn.__version__, "numpy": np.__version__, "cases": cases}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
