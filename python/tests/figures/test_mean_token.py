"""couplet.mean_token_figures and `mean_token` of erc.record_tokens(), compared with golden values of numpy and scipy
(tests/golden/mean_token), with plain loops, and with figures that must not change."""

import json
import math
import pathlib

import couplet
import pytest
import torch
from couplet.figures import _mean_token
from test_attach import Model
from test_token_figures import pearson, ranks, recorded

GOLDEN = json.loads((pathlib.Path(__file__).parents[3] / "tests/golden/mean_token/reference.json").read_text())
NAMES = [
    "agreement",
    "agreement_centred",
    "agreement_mu_off",
    "pearson_centred",
    "agreement_chosen",
    "dz",
    "main_effect",
    "router_mu_negative",
    "router_mu_cos",
]


def arrays(case):
    n, d, D, T = (case[k] for k in ("n", "d", "D", "T"))
    shapes = {"R": (n, d), "W": (n, D, d), "x": (T, d), "s": (T, n), "a": (T, n)}
    return [torch.tensor(case[name], dtype=torch.float64).reshape(shape) for name, shape in shapes.items()]


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_golden_values(case):
    R, W, x, s, a = arrays(case)
    got = _mean_token.of_layer(
        s, a, _mean_token.mean_token(x, R, W, ""), case["K"], True, GOLDEN["seed"], GOLDEN["layer"]
    )
    want = {}
    for name, value in case["figures"].items():
        if isinstance(value, dict):
            want[name] = value["value"]
            want.update({f"null.{name}.{key}": value.get(key) for key in ("mean", "std", "p")})
        elif not isinstance(value, list):
            want[name] = value
    want = {name: math.nan if value is None else value for name, value in want.items()}
    assert got == pytest.approx(want, rel=0, abs=1e-6, nan_ok=True)
    if "ties" not in case["name"]:  # golden scores and responses are rounded to f32
        assert couplet.mean_token_figures(x, R, W, case["K"]) == pytest.approx(
            {name: want[name] for name in NAMES}, abs=1e-5, nan_ok=True
        )


def rho(lists):
    found = [pearson(ranks(x), ranks(y)) for x, y in lists if len({*x}) > 1 and len({*y}) > 1]
    return sum(found) / len(found) if found else math.nan


def by_definition(x, R, W, K):
    """Returns the figures of x [T, d], in lists of Python."""
    x, R, W = x.double(), R.double(), W.double()
    T, n = len(x), len(R)
    mu = x.mean(0)
    respond = lambda v: torch.stack([(W[i] @ v.T).norm(dim=0) for i in range(n)], 1)
    s, a = (x @ R.T).tolist(), respond(x).tolist()
    off, off_a = ((x - mu) @ R.T).tolist(), respond(x - mu).tolist()
    mean = lambda z: [sum(row[i] for row in z) / T for i in range(n)]
    less = lambda z: [[v - m for v, m in zip(row, mean(z))] for row in z]
    both = lambda z: [v - sum(row) / n for row in less(z) for v in row]
    chosen = [sorted(range(n), key=lambda i: (-row[i], i))[:K] for row in s]
    of = [[t for t in range(T) if i in chosen[t]] for i in range(n)]
    kept = [i for i in range(n) if len(of[i]) >= 8]
    M = torch.tensor([[sum(a[t][j] for t in of[i]) / len(of[i]) for j in kept] for i in kept], dtype=torch.float64)
    rest = M - M.mean(0) - M.mean(1, keepdim=True) + M.mean() if kept else M
    off_diagonal = rest[~torch.eye(len(kept), dtype=torch.bool)] if kept else rest
    variance = lambda z: sum((v - sum(z) / len(z)) ** 2 for v in z) / len(z)
    rows, gates = R - R.mean(0), torch.stack([w.T @ (w @ mu) for w in W])
    return {
        "agreement": rho(zip(s, a)),
        "agreement_centred": rho(zip(less(s), less(a))),
        "agreement_mu_off": rho(zip(off, off_a)),
        "pearson_centred": pearson(both(s), both(a)),
        "agreement_chosen": rho([([s[t][i] for i in c], [a[t][i] for i in c]) for t, c in enumerate(chosen)]),
        "dz": (rest.diagonal().mean() / off_diagonal.std(correction=0)).item() if len(kept) >= 3 else math.nan,
        "main_effect": variance(mean(a)) / variance([v for row in a for v in row]),
        "router_mu_negative": sum(float(r @ mu) < 0 for r in R) / n,
        "router_mu_cos": torch.cosine_similarity(rows, gates).mean().item(),
    }


def drawn(T, n, d, D, dtype=torch.float64):
    return (
        torch.randn(T, d).to(dtype) + torch.randn(d).to(dtype),
        torch.randn(n, d).to(dtype),
        torch.randn(n, D, d).to(dtype),
    )


@pytest.mark.parametrize("T, n, K", ((40, 8, 2), (60, 5, 3), (12, 2, 1), (30, 4, 4), (9, 16, 2), (200, 6, 1)))
def test_definitions(T, n, K):
    for seed in range(3):
        torch.manual_seed(seed)
        x, R, W = drawn(T, n, 7, 3)
        got, want = couplet.mean_token_figures(x, R, W, K), by_definition(x, R, W, K)
        if K == n:  # every expert gets every token: M_tok has equal rows
            want["dz"] = math.nan
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12, nan_ok=True)
        assert set(couplet.mean_token_figures(x, R, W)) == {*NAMES} - {"agreement_chosen", "dz"}


def test_figures_that_do_not_exist():
    x, R, W = drawn(30, 3, 4, 2)
    equal = couplet.mean_token_figures(x, R, W[:1].expand(3, 2, 4).contiguous(), 1, nulls=True)
    assert all(math.isnan(equal[name]) for name in ("agreement", "agreement_centred", "pearson_centred", "dz"))
    assert math.isnan(equal["null.dz.p"]) and equal["main_effect"] == 0
    one = couplet.mean_token_figures(x[:1], R, W, 1)
    assert math.isnan(one["agreement_mu_off"]) and math.isnan(one["dz"]) and one["main_effect"] == 1
    for at, value in ((x, math.nan), (R, math.inf), (W, math.nan)):
        kept = at.flatten()[1].clone()
        at.view(-1)[1] = value
        assert all(math.isnan(v) for v in couplet.mean_token_figures(x, R, W, 1).values())
        at.view(-1)[1] = kept


def test_wrong_arguments():
    x, R, W = drawn(5, 3, 4, 2)
    for args, error, words in (
        ((x[0], R, W), TypeError, r"tokens must be a tensor \[T, d\]"),
        ((x, R, W[0]), TypeError, r"w_gate must be a tensor \[n, D, d\]"),
        ((x, R[:2], W), ValueError, r"router \[2, 4\] and w_gate \[3, 2, 4\], must be"),
        ((x[:0], R, W), ValueError, "at least one token"),
        ((x, R, W, 4), ValueError, "K is 4, must be from 1 to 3"),
    ):
        with pytest.raises(error, match=words):
            couplet.mean_token_figures(*args)


# ---- tokens of a model ----


def test_a_model():
    torch.manual_seed(3)
    model = Model()
    record = recorded(model, [torch.randn(64, 10) + 1], top_k=2)
    samples = record.samples()
    figures = record.figures(per_layer=True, nulls=True, seed=4)
    for number, sample in samples.items():
        own = _mean_token.of_layer(sample.scores, sample.responses, sample.mean_token, 2, True, 4, number)
        for name, value in own.items():
            if name != "agreement":
                assert figures[f"mean_token.{name}/{number}"] == pytest.approx(value, nan_ok=True)
        assert own["agreement"] == pytest.approx(figures[f"agreement.spearman_mean/{number}"])
    assert figures["mean_token.dz"] == pytest.approx(
        sum(figures[f"mean_token.dz/{number}"] for number in samples) / len(samples)
    )
    assert "mean_token.null.dz.p" not in figures


def test_latent_experts():
    """W_l that drops nothing changes no figure, and a norm on W_l x leaves router_mu_cos out."""
    from couplet.ops._latent import Latent

    x, R, W = drawn(40, 4, 6, 3)
    eye = torch.eye(6, dtype=torch.float64)
    plain = _mean_token.mean_token(x, R, W, "")
    for a, b in zip(plain, _mean_token.mean_token(x, R, W, "", Latent(eye, None, 0.0))):
        torch.testing.assert_close(a, b)
    down = torch.randn(5, 6, dtype=torch.float64)
    small = torch.randn(4, 3, 5, dtype=torch.float64)
    whole = small @ down
    for a, b in zip(
        _mean_token.mean_token(x, R, whole, ""), _mean_token.mean_token(x, R, small, "", Latent(down, None, 0.0))
    ):
        torch.testing.assert_close(a, b)
    assert (
        _mean_token.mean_token(x, R, small, "", Latent(down, torch.ones(5, dtype=torch.float64), 1e-6))
        .cosines.isnan()
        .all()
    )
