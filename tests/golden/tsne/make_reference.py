#!/usr/bin/env python3
"""Writes reference.json: what scikit-learn's exact t-SNE reaches on points that the test makes again.

Needs numpy and scikit-learn. Usage: make_reference.py > reference.json

Points: every number is (the upper 12 bits of splitmix64) / 4096, or twelve of them added minus 6 (nearly
normal), so that all sums and products below are exact in double, in Python and in C.

kl_pca: init='pca'. kl_of_y: the divergence of that embedding, computed again in double.
kl_near: five starts that differ from kl_pca's by a millionth of every coordinate: how far rounding alone
moves the end, for the descent is chaotic. kl_random: init='random', five seeds.
"""

import json
import sys

import numpy as np
import sklearn
from scipy.spatial.distance import pdist, squareform
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.manifold._t_sne import _joint_probabilities

PERPLEXITIES = (5, 30, 50)


def uniform(seed, first, count):
    """Numbers first ... first + count - 1 of stream `seed`, in [0,1)."""
    with np.errstate(over="ignore"):
        at = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        z = np.uint64(seed) + at * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(52)).astype(np.float64) / 4096


def normal(seed, rows, cols):
    """Twelve uniform numbers each, minus 6."""
    return uniform(seed, 0, 12 * rows * cols).reshape(rows, cols, 12).sum(axis=2) - 6


def clusters():
    """Three normal clouds around corners: 300 points in 20 dimensions."""
    x = normal(1, 300, 20)
    for i in range(300):
        x[i, i % 3] += 6
    return x


def even():
    """200 points, even in a cube of 50 dimensions: no structure at all."""
    return uniform(2, 0, 200 * 50).reshape(200, 50)


def experts():
    """512 rows of eight experts in 64 dimensions: a middle, a subspace of 6 around it, and noise."""
    a, b, noise, middle = normal(3, 512, 6), normal(4, 48, 64), normal(5, 512, 64), normal(6, 8, 64)
    x = np.zeros((512, 64))
    for i in range(512):
        e = i % 8
        x[i] = 3 * middle[e] + 0.5 * noise[i]
        for k in range(6):
            x[i] += a[i, k] * b[6 * e + k]
    return x


def divergence(x, y, perplexity):
    """Kullback-Leibler divergence of embedding y from points x, in double."""
    p = squareform(_joint_probabilities(squareform(pdist(x.astype(np.float64), "sqeuclidean")), perplexity, 0))
    q = 1 / (1 + squareform(pdist(y.astype(np.float64), "sqeuclidean")))
    np.fill_diagonal(q, 0)
    q /= q.sum()
    off = ~np.eye(len(x), dtype=bool)
    return float((p[off] * np.log(p[off] / q[off])).sum())


def near_start(x, seed):
    """The start of init='pca', every coordinate changed by about a millionth of itself."""
    y = PCA(n_components=2, random_state=0).fit_transform(x).astype(np.float32)
    y = y / np.std(y[:, 0]) * 1e-4
    return (y * (1 + 1e-6 * np.random.default_rng(seed).standard_normal(y.shape))).astype(np.float32)


def run(x, perplexity, init, seed):
    return TSNE(method="exact", init=init, learning_rate="auto", perplexity=perplexity, random_state=seed).fit(x)


def main():
    cases = []
    for make in (clusters, even, experts):
        x = make().astype(np.float32)
        for perplexity in PERPLEXITIES:
            pca = run(x, perplexity, "pca", 0)
            cases.append(
                {
                    "points": make.__name__,
                    "n": x.shape[0],
                    "d": x.shape[1],
                    "sum": float(x.astype(np.float64).sum()),
                    "squares": float((x.astype(np.float64) ** 2).sum()),
                    "perplexity": perplexity,
                    "kl_pca": float(pca.kl_divergence_),
                    "kl_of_y": divergence(x, pca.embedding_, perplexity),
                    "kl_near": [
                        float(run(x, perplexity, near_start(x, seed), seed).kl_divergence_) for seed in range(1, 6)
                    ],
                    "kl_random": [float(run(x, perplexity, "random", seed).kl_divergence_) for seed in range(1, 6)],
                }
            )
            print(cases[-1], file=sys.stderr)
    json.dump({"scikit-learn": sklearn.__version__, "numpy": np.__version__, "cases": cases}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
