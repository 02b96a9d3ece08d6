"""erc.figures() compared with the definitions of src/tensor/figures.h in plain loops in double. The effects of centred
rows and of signs are tested too."""

import math

import couplet
import pytest
import torch
from conftest import needs_counts
from counting import counted, under_fake
from couplet.figures import _figures, _spectrum
from torch import nn

n, D, d = 6, 5, 9
ALPHA = 0.9


class Layer(nn.Module):
    def __init__(self, n=n, D=D, d=d, dtype=torch.float32):
        super().__init__()
        self.router = nn.Parameter(torch.randn(n, d).to(dtype))
        self.gates = nn.Parameter(torch.randn(n, D, d).to(dtype))


def figures_of(layer, names=_figures.ALL_NAMES, **more):
    return couplet.attach(layer, [("router", "gates")], alpha=ALPHA, **more).figures(figures=names)


# ---- the definitions ----


def norm(x):
    return math.sqrt(sum(v * v for v in x))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def std(values):
    return math.sqrt(mean((v - mean(values)) ** 2 for v in values))


def singular(matrix):
    return torch.linalg.svdvals(torch.tensor(matrix, dtype=torch.float64)).tolist()


def share(M, i, j):
    return M[i][j] / M[i][i], M[i][j] / M[j][j]


def bound(R, i):
    least = math.inf
    for j in range(len(R)):
        by = [b - a for a, b in zip(R[i], R[j])]
        if j != i:
            least = min(least, dot(by, by) / (2 * sum(abs(a * b) for a, b in zip(R[i], by))))
    return least


def by_definition(R, W, alpha):
    """Returns the figures of rows R and gates W, lists of numbers, without noise."""
    n = len(R)
    every, pairs = range(n), [(i, j) for i in range(n) for j in range(n) if i != j]
    M = [[norm(dot(R[i], row) for row in W[j]) for j in every] for i in every]
    gate = [norm(v for row in W[j] for v in row) for j in every]
    kappa = [[M[i][j] / (norm(R[i]) * gate[j]) for j in every] for i in every]
    eps = [min(norm(a - b for a, b in zip(R[i], R[j])) / (2 * norm(R[i])) for j in every if j != i) for i in every]
    s = singular(R)
    spectral = [singular(W[j])[0] for j in every]
    order = lambda i: sorted(every, key=lambda j: (-dot(R[i], R[j]), j))
    return {
        "erc_clean": sum(max(M[i][j] - alpha * M[i][i], 0) + max(M[i][j] - alpha * M[j][j], 0) for i, j in pairs)
        / n**2,
        "active_rows": mean(M[i][j] >= alpha * M[i][i] for i, j in pairs),
        "active_columns": mean(M[i][j] >= alpha * M[j][j] for i, j in pairs),
        "alpha_min": max(max(share(M, i, j)) for i, j in pairs),
        "m_diagonal": mean(M[i][i] for i in every),
        "m_off_diagonal": mean(M[i][j] for i, j in pairs),
        "kappa_diagonal": mean(kappa[i][i] for i in every),
        "kappa_off_diagonal": mean(kappa[i][j] for i, j in pairs),
        "kappa_row_top1": mean(max(kappa[i]) == kappa[i][i] for i in every),
        "kappa_column_top1": mean(max(kappa[j][i] for j in every) == kappa[i][i] for i in every),
        "eps_mean": mean(eps),
        "eps_min": min(eps),
        "eps_max": max(eps),
        "eps_above_1": sum(e > 1 for e in eps),
        "zero_rows": 0,
        "noise_bound_share": mean(eps[i] / bound(R, i) for i in every),
        "router_norm_mean": mean(map(norm, R)),
        "router_norm_std": std([norm(r) for r in R]),
        "gate_norm_mean": mean(gate),
        "gate_norm_std": std(gate),
        "router_cos": mean(abs(dot(R[i], R[j])) / (norm(R[i]) * norm(R[j])) for i, j in pairs),
        "router_condition": s[0] / s[-1],
        "router_effective_rank": math.exp(-sum(v / sum(s) * math.log(v / sum(s)) for v in s if v > 0)),
        "row_route_top1": mean(order(i)[0] == i for i in every),
        "router_lambda": mean(M[i][i] / (norm(R[i]) * spectral[i]) for i in every),
        "router_lambda_random": mean(gate[i] / (math.sqrt(len(R[0])) * spectral[i]) for i in every),
    }


def expected(layer, alpha=ALPHA):
    R, W = layer.router.detach().double(), layer.gates.detach().double().tolist()
    plain = by_definition(R.tolist(), W, alpha)
    centred = by_definition((R - R.mean(0)).tolist(), W, alpha)
    return {**plain, **{theirs: centred[name] for name, theirs in _figures.CENTRED.items()}}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("shape", ((6, 5, 9), (7, 8, 3), (3, 3, 4)), ids=str)
def test_definitions(shape, dtype):
    layer = Layer(*shape, dtype=dtype)
    with torch.no_grad():
        layer.router[0] *= 0.125  # a short row, which has eps above 1
    got, want = figures_of(layer), expected(layer)
    assert want["eps_above_1"] > 0
    proxies = {"proxy_route_top1", "home_top1"}  # test_hf_figures.py
    assert set(_figures.ALL_NAMES) - set(want) - proxies == {"proxy_route_topk", "row_route_topk"}
    assert {name: got[name] for name in want} == pytest.approx(want, rel=2e-5)


@pytest.mark.parametrize("norm", (False, True))
def test_latent_experts(norm):
    """Figures that need the gates are those of the projected rows, other figures those of the rows."""
    layer, l = Layer(), 4
    layer.gates, layer.norm = nn.Parameter(torch.randn(n, D, l)), nn.Parameter(torch.rand(l) + 0.5)
    layer.down = nn.Parameter(torch.randn(l, d))
    entry, more = ("router", "gates", "down", *(["norm"] * norm)), dict(latent_eps=0.1) if norm else {}
    got = couplet.attach(layer, [entry], alpha=ALPHA, **more).figures(figures=_figures.ALL_NAMES)

    def read(rows):
        v = rows @ layer.down.mT.double()
        return layer.norm * v / (v.square().mean(1, keepdim=True) + 0.1).sqrt() if norm else v

    R, want = layer.router.detach().double(), {}
    for rows, name_of in ((R, lambda name: name), (R - R.mean(0), _figures.CENTRED.get)):
        of_rows = by_definition(rows.tolist(), torch.ones(n, 1, d).tolist(), ALPHA)
        of_gates = by_definition(read(rows).tolist(), layer.gates.double().tolist(), ALPHA)
        for name in of_rows:
            if name_of(name):
                want[name_of(name)] = (of_gates if name in _figures.NEED_GATES else of_rows)[name]
    assert {name: got[name] for name in want} == pytest.approx(want, rel=2e-5)


def test_gates_in_chunks_and_halves(monkeypatch):
    fused, layer = Layer(n, 2 * D, d), Layer()
    with torch.no_grad():
        layer.router.copy_(fused.router)
        layer.gates.copy_(fused.gates[:, ::2])
    want = figures_of(layer)
    monkeypatch.setattr(_figures, "NUMBERS_AT_ONCE", 2 * D * (n + d))
    assert figures_of(fused, gate_half="interleaved") == pytest.approx(want, rel=1e-5)


# ---- centred rows and signs ----


def test_a_vector_added_to_all_rows_changes_no_centred_figure():
    layer = Layer()
    before = figures_of(layer)
    with torch.no_grad():
        layer.router += 3 * torch.randn(d)
    after = figures_of(layer)
    centred = list(_figures.CENTRED.values())
    assert len(centred) == 16
    assert {name: after[name] for name in centred} == pytest.approx({name: before[name] for name in centred}, rel=1e-4)
    for name in ("erc_clean", "kappa_diagonal", "router_norm_mean", "router_lambda"):
        assert abs(after[name] - before[name]) > 0.01 * before[name], name


def test_the_sign_of_rows_changes_no_figure():
    """Without noise all these figures are even in R."""
    layer = Layer()
    before = figures_of(layer)
    with torch.no_grad():
        layer.router.neg_()
    assert figures_of(layer) == pytest.approx(before, rel=1e-6)


# ---- edges ----


def test_one_expert():
    got = figures_of(Layer(1, D, d))
    for name in (
        "erc_clean",
        "alpha_min",
        "eps_max",
        "m_off_diagonal",
        "router_cos",
        "erc_centred",
        "centred_m_diagonal",
        "centred_router_norm_mean",
        "centred_router_effective_rank",
        "centred_router_lambda",
    ):
        assert got[name] == 0, name
    assert math.isnan(got["noise_bound_share"]) and got["router_condition"] == pytest.approx(1)
    assert 0 < got["router_lambda"] <= 1.0001


def test_two_experts():
    """After centring, the two experts have opposite rows."""
    got = figures_of(Layer(2, D, d))
    assert got["centred_router_cos"] == pytest.approx(1) and got["centred_router_effective_rank"] == pytest.approx(1)
    assert got["centred_m_diagonal"] == pytest.approx(got["centred_m_off_diagonal"])
    assert got["centred_eps_mean"] == pytest.approx(1)


def test_zero_and_equal_rows():
    layer = Layer()
    with torch.no_grad():
        layer.router[1] = 0
        layer.router[3] = layer.router[2]
        layer.gates[4] = 0
    got = figures_of(layer)
    assert got["zero_rows"] == 1 and got["eps_min"] == 0 and got["router_condition"] == math.inf
    assert all(
        math.isfinite(value)
        for name, value in got.items()
        if name not in ("router_condition", "alpha_min", "centred_alpha_min")
    )
    with torch.no_grad():
        layer.router.zero_()
    got = figures_of(layer)
    assert (got["zero_rows"], got["router_effective_rank"], got["router_lambda"]) == (n, 0, 0)
    assert got["router_condition"] == math.inf and math.isnan(got["noise_bound_share"])


@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_numbers_that_are_none(value):
    layer = Layer()
    with torch.no_grad():
        layer.router[2, 1] = value
    got = figures_of(layer)
    for name in (
        "router_condition",
        "router_effective_rank",
        "centred_m_diagonal",
        "erc_centred",
        "centred_router_lambda",
    ):
        assert math.isnan(got[name]), name
    with torch.no_grad():
        layer.router.normal_()
        layer.gates[2, 1, 1] = value
    got = figures_of(layer)
    assert math.isnan(got["router_lambda"]) and math.isnan(got["router_lambda_random"])
    assert math.isfinite(got["router_condition"])


# ---- layers ----


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])


NAMES = [(f"layers.{i}.router", f"layers.{i}.gates") for i in range(2)]


@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_over_layers(reduction):
    erc = couplet.attach(Two(), NAMES, reduction=reduction)
    f = erc.figures(per_layer=True, figures=_figures.ALL_NAMES)
    for name, over in {
        "centred_alpha_min": max,
        "centred_eps_max": max,
        "centred_eps_min": min,
        "erc_centred": sum if reduction == "sum" else mean,
        "router_lambda": mean,
        "centred_kappa_diagonal": mean,
        "router_condition": mean,
    }.items():
        each = [f[f"{name}/0"], f[f"{name}/1"]]
        assert abs(each[0] - each[1]) > 1e-4 and f[name] == pytest.approx(over(each)), name


def test_lambda_is_computed_where_it_is_asked_for(monkeypatch):
    erc, calls = couplet.attach(Two(), NAMES), []
    inner = _spectrum.norms
    monkeypatch.setattr(_spectrum, "norms", lambda W: calls.append(len(W)) or inner(W))
    assert not [name for name in erc.figures() if "lambda" in name] and not calls
    for name in ("router_lambda", "router_lambda_random", "centred_router_lambda"):
        assert set(erc.figures(figures=(name,))) == {name} and sum(calls) == 2 * n
        calls.clear()


def test_tensor_group_has_those_of_the_router():
    erc = couplet.attach(Two(), NAMES)
    erc.tensor_group = object()
    got = erc.figures()
    assert {"centred_eps_mean", "router_condition", "noise_bound_share", "router_cos"} <= set(got)
    assert not set(got) & _figures.NEED_GATES
    for name in ("centred_kappa_diagonal", "gate_norm_mean", "m_diagonal", "router_lambda_random", "erc_centred"):
        with pytest.raises(ValueError, match="with tensor_group no process has a whole gate"):
            erc.figures(figures=(name,))


@needs_counts
@pytest.mark.parametrize("wanted", (_figures.NAMES, _figures.ALL_NAMES), ids=("default", "all"))
def test_nothing_is_read_before_the_end(wanted):
    """The tensors are fake ones of a GPU, where an operation that waits raises an error."""

    def run():
        R, W = torch.empty(8, 16, device="cuda", dtype=torch.bfloat16), torch.empty(8, 12, 16, device="cuda")
        return counted(lambda: _figures.of_layer(R, lambda: W, None, 1.0, 2, dict(seed=0, step=0, layer=0), wanted))

    counts = under_fake(run)
    assert counts.host_copies == 0 and counts.kernels > 20


# ---- singular values ----


def spectrum(s, d, dtype):
    s = torch.as_tensor(s, dtype=torch.float64)
    left, right = (torch.linalg.qr(torch.randn(k, len(s), dtype=torch.float64))[0] for k in (len(s), d))
    return ((left * s) @ right.mT).to(dtype)


SPECTRA = {
    "decaying": [1 / (k + 1) for k in range(200)],
    "dense to its end": [k / 199 for k in range(200)],
    "close": [0.9 + k / 1990 for k in range(200)],
    "two equal": [1, 1, *[0.5] * 198],
    "next to equal": [1, 1 - 1e-5, *[0.5] * 9],
    "one": [1, *[0] * 199],
    "all equal": [1] * 200,
    "two": [3, 2],
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_spectral_norms(dtype):
    for name, s in SPECTRA.items():
        W = torch.stack([spectrum(s, 260, dtype), 10 * spectrum(s, 260, dtype)])
        for matrices in (W, W.mT):
            got = _spectrum.norms(matrices)
            want = torch.linalg.matrix_norm(W.double(), ord=2)
            assert got.dtype == dtype and ((got - want).abs() <= 1e-4 * want).all(), (name, got, want)
    W = torch.randn(5, 300, 310, dtype=dtype)
    W[3] = 0
    got, want = _spectrum.norms(W), torch.linalg.matrix_norm(W, ord=2)
    assert ((got - want).abs() <= 1e-4 * want).all() and got[3] == 0
