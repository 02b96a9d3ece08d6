"""What an expert-router coupling loss of 0 leaves open (docs/coupling.md): four routers that route alike, since one
vector taken from all rows changes no softmax routing, each with gates that are coupled to its rows. Needs numpy.

    python examples/loss_and_sign.py

Each line: how much of the vector was taken; the loss at alpha 1; the share of scores x . R_i below 0; the mean rank
correlation, over tokens x, of a token's scores with its experts' responses |x W_g^j|: of all experts, of those whose
score is above 0, of those below 0; and the share of tokens whose first choice responds most."""
import numpy as np

n, d, D, T = 32, 128, 64, 2000


def erc(R, W):
    """Equation 3 of the paper at alpha 1, without noise: R [n, d], W [n, D, d]."""
    M = np.linalg.norm(np.einsum("id,jDd->ijD", R, W), axis=-1)
    own = np.diag(M)
    hinges = np.maximum(M - own[:, None], 0) + np.maximum(M - own, 0)
    np.fill_diagonal(hinges, 0)
    return hinges.mean()


def rank_correlation(scores, responses, which):
    """Spearman's, of the entries of `which` of each row; mean over rows that have three or more."""
    def ranks(x):
        return x.argsort().argsort()
    return np.mean([np.corrcoef(ranks(s[w]), ranks(a[w]))[0, 1]
                    for s, a, w in zip(scores, responses, which) if w.sum() > 2])


def main():
    random = np.random.default_rng(0)
    R = random.normal(size=(n, d)) / d**.5
    mean = random.normal(size=d)
    mean /= np.linalg.norm(mean)
    x = random.normal(size=(T, d)) + 3 * mean
    print("shift    ERC   below 0     all   above   below   first")
    for shift in (0, .1, .2, .3):
        rows = R - shift * mean
        along = (rows / np.linalg.norm(rows, axis=1, keepdims=True))[:, None]
        W = (random.normal(size=(n, D, d)) + 3 * random.normal(size=(n, D, 1)) * along) / d**.5
        s, a = x @ rows.T, np.linalg.norm(np.einsum("td,jDd->tjD", x, W), axis=-1)
        rho = [rank_correlation(s, a, which) for which in (s == s, s > 0, s < 0)]
        first = (s.argmax(1) == a.argmax(1)).mean()
        print(f"{shift:5.1f}  {erc(rows, W):.3f}      {(s < 0).mean():.2f}  " +
              "".join(f"{r:+6.2f}  " for r in rho) + f"  {first:.2f}")


if __name__ == "__main__":
    main()
