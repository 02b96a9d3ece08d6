"""Shows cases that an expert-router coupling loss of 0 does not tell apart (docs/coupling.md). It needs numpy.

    python examples/loss_and_sign.py

There is one router R whose rows are coupled to their gates by construction. Then come these gates with R moved by one
vector, which changes no softmax routing, and with -R, which turns the routing round. Last come gates that are coupled
to the moved rows.

Each line has the loss at alpha 1, the share of scores x . R_i below 0, and three mean rank correlations, over tokens x,
of a token's scores with its experts' responses |x W_g^j|: over all experts, experts whose score is above 0, and below
0. Then it has the share of tokens whose first choice responds most, and the share with the first choice of R."""

import numpy as np

n, d, D, T = 32, 128, 64, 2000


def erc(R, W):
    """Returns equation 3 of the paper at alpha 1, without noise: R [n, d], W [n, D, d]."""
    M = np.linalg.norm(np.einsum("id,jDd->ijD", R, W), axis=-1)
    own = np.diag(M)
    hinges = np.maximum(M - own[:, None], 0) + np.maximum(M - own, 0)
    np.fill_diagonal(hinges, 0)
    return hinges.mean()


def coupled_gates(R, random):
    """Returns gates [n, D, d] whose rows have a common part along their router row."""
    along = (R / np.linalg.norm(R, axis=1, keepdims=True))[:, None]
    return (random.normal(size=(n, D, d)) + 3 * random.normal(size=(n, D, 1)) * along) / d**0.5


def rank_correlation(scores, responses, which):
    """Returns Spearman's rank correlation of the entries of `which` of each row, as a mean over rows that have three or
    more."""

    def ranks(x):
        return x.argsort().argsort()

    return np.mean(
        [np.corrcoef(ranks(s[w]), ranks(a[w]))[0, 1] for s, a, w in zip(scores, responses, which) if w.sum() > 2]
    )


def main():
    random = np.random.default_rng(0)
    R = random.normal(size=(n, d)) / d**0.5
    mean = random.normal(size=d)
    mean /= np.linalg.norm(mean)
    x = random.normal(size=(T, d)) + 3 * mean
    gates = coupled_gates(R, random)
    moved = R - 0.3 * mean
    print("rows, gates of           ERC   below 0     all   above   below   first  as R")
    for name, rows, W in (
        ("R,          R", R, gates),
        ("R - 0.3 u,  R", moved, gates),
        ("R - 3 u,    R", R - 3 * mean, gates),
        ("-R,         R", -R, gates),
        ("R - 0.3 u,  R - 0.3 u", moved, coupled_gates(moved, random)),
    ):
        s, a = x @ rows.T, np.linalg.norm(np.einsum("td,jDd->tjD", x, W), axis=-1)
        rho = [rank_correlation(s, a, which) if which.any() else np.nan for which in (s == s, s > 0, s < 0)]
        first = s.argmax(1)
        print(
            f"{name:22} {erc(rows, W):6.3f}      {(s < 0).mean():.2f}  "
            + "".join(f"{r:+6.2f}  " for r in rho)
            + f"  {(first == a.argmax(1)).mean():.2f}  {(first == (x @ R.T).argmax(1)).mean():.2f}"
        )


if __name__ == "__main__":
    main()
