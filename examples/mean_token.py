"""Shows by simulation how agreement of scores and responses depends on the tokens' mean (docs/coupling.md). It needs
numpy, and a few seconds.

    python examples/mean_token.py

There are n router rows, and tokens x = mu + noise. The rows are moved along mu, so that R_i . mu is below 0, about 0 or
above 0 for all experts. Softmax routing is the same in all three cases. The gates of the experts are coupled by
construction to one of three proxies:

    rows       P_i = R_i
    centred    P_i = Q_i, the row less the mean row
    tokens     P_i = mu + sigma Q_i / |Q_i|, on the side of the tokens (erc.proxy: tokens)

A line has the loss of the proxies at alpha 1, the share of R_i . mu below 0, the mean over tokens of Spearman's
correlation of x . R_i and |x W_g^i| over the experts ("agreement"), this correlation for the tokens mu + noise and their
opposites, which are symmetric about 0, and the share of tokens whose first choice responds most."""

import numpy as np

n, d, D, T = 32, 128, 64, 4000
SIGMA, MU = 0.91, 0.42  # deviation and |mean| of a token over its root mean square, as in trained models


def erc(P, W):
    """Returns equation 3 of the paper at alpha 1, without noise: P [n, d], W [n, D, d]."""
    M = np.linalg.norm(np.einsum("id,jDd->ijD", P, W), axis=-1)
    own = np.diag(M)
    hinges = np.maximum(M - own[:, None], 0) + np.maximum(M - own, 0)
    np.fill_diagonal(hinges, 0)
    return hinges.mean()


def coupled_gates(P, random):
    """Returns gates [n, D, d] whose rows have a common part along the proxy of their expert."""
    along = (P / np.linalg.norm(P, axis=1, keepdims=True))[:, None]
    return (random.normal(size=(n, D, d)) + 3 * random.normal(size=(n, D, 1)) * along) / d**0.5


def responses(x, W):
    """Returns |x_t W_g^j|, shape [T, n]."""
    return np.stack([np.linalg.norm(x @ gate.T, axis=1) for gate in W], axis=1)


def agreement(scores, answers):
    """Returns the mean over tokens of Spearman's correlation over the experts."""
    ranks = [one.argsort(axis=1).argsort(axis=1) - (n - 1) / 2 for one in (scores, answers)]
    return (ranks[0] * ranks[1]).sum(axis=1).mean() / (ranks[0][0] ** 2).sum()


def main():
    random = np.random.default_rng(0)
    R = random.normal(size=(n, d)) / d**0.5
    mu = random.normal(size=d)
    u = mu / np.linalg.norm(mu)
    mu = MU * d**0.5 * u
    x = mu + SIGMA * random.normal(size=(T, d))
    both = np.concatenate([x, -x])
    Q = R - R.mean(axis=0)
    q = Q / np.linalg.norm(Q, axis=1, keepdims=True)
    print("R_i . mu   proxies    ERC   below 0   agreement   symmetric   first")
    for side, shift in (("below 0", -0.3), ("about 0", 0), ("above 0", 0.3)):
        rows = Q + shift * u
        for name, P in (("rows", rows), ("centred", Q), ("tokens", mu + SIGMA * d**0.5 * q)):
            W = coupled_gates(P, random)
            scores, answers = x @ rows.T, responses(x, W)
            print(
                f"{side:9}  {name:8} {erc(P, W):5.3f}      {(rows @ mu < 0).mean():.2f}       "
                f"{agreement(scores, answers):+.2f}       {agreement(both @ rows.T, responses(both, W)):+.2f}"
                f"    {(scores.argmax(1) == answers.argmax(1)).mean():.2f}"
            )


if __name__ == "__main__":
    main()
