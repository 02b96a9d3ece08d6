"""couplet.token_figures and erc.record_tokens(), compared with the definitions of src/inspect/routing/signs.h in plain
loops, and with the program on an equal model and text. Invariances are tested too."""

import json
import math
import subprocess

import couplet
import pytest
import torch
from conftest import model_of
from couplet.figures import _figures
from test_attach import Model, pairs_of
from torch import nn

nan = math.nan


# ---- the definitions ----


def ranks(x):
    return [sum(b < a for b in x) + (sum(b == a for b in x) + 1) / 2 for a in x]


def pearson(x, y):
    mx, my = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mx) * (b - my) for a, b in zip(x, y))
    return over / math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))


def mean_rho(lists, least=3):
    """Returns the mean rank correlation. `lists` has pairs (x, y)."""
    found = [pearson(ranks(x), ranks(y)) for x, y in lists if len(x) >= least and len({*x}) > 1 and len({*y}) > 1]
    return sum(found) / len(found) if found else nan


def sides(name, lists):
    """Returns correlations of all numbers and of those above and below 0. `lists` has triples (x, y, sign)."""
    keep = lambda l, test: [(a, b) for a, b, s in zip(*l) if test(s)]
    turned = lambda pairs: tuple(map(list, zip(*pairs))) if pairs else ([], [])
    return {
        f"{name}.{side}": mean_rho([turned(keep(l, test)) for l in lists])
        for side, test in (("all", lambda s: True), ("above", lambda s: s > 0), ("below", lambda s: s < 0))
    }


def by_definition(scores, responses, ids, centred, K):
    given, T, n = scores.tolist(), len(scores), scores.shape[1]
    s = [[v - sum(row) / n * centred for v in row] for row in given]
    a = responses.tolist()
    column = lambda x, e: [row[e] for row in x]
    size = lambda x: list(map(abs, x))
    groups = [[t for t in range(T) if ids[t] == i] for i in {*ids}]
    within = []
    for group in groups:
        less = lambda x, t: [x[t][e] - sum(x[u][e] for u in group) / len(group) for e in range(n)]
        within += [(less(s, t), less(a, t), s[t]) for t in group if len(group) > 1]
    largest = lambda row: sorted(range(n), key=lambda e: (-row[e], e))[:K]
    return {
        "negative": sum(v < 0 for row in s for v in row) / (T * n) if T else nan,
        **sides("tokens", [(s[t], a[t], s[t]) for t in range(T)]),
        "tokens.size": mean_rho([(size(s[t]), a[t]) for t in range(T)]),
        **sides("ids", within),
        **sides("experts", [(column(s, e), column(a, e), column(s, e)) for e in range(n)]),
        "experts.size": mean_rho([(size(column(s, e)), column(a, e)) for e in range(n)]),
        "agreement.spearman_mean": mean_rho([(given[t], a[t]) for t in range(T)], 2),
        "agreement.top1": sum(largest(given[t])[0] == largest(a[t])[0] for t in range(T)) / T if T else nan,
        "agreement.overlap": sum(len({*largest(given[t])} & {*largest(a[t])}) for t in range(T)) / (T * K)
        if T
        else nan,
    }


def drawn(T, n, values=None):
    """Returns scores and responses. With `values` they have few different values, so that there are ties."""
    scores, noise = torch.randn(T, n) + 0.3 * torch.randn(n), torch.randn(T, n)
    responses = (scores.abs() + 0.4 * scores + 0.5 * noise).abs()
    if values:
        scores, responses = ((x * values / 4).round() for x in (scores, responses))
    return scores, responses


@pytest.mark.parametrize("centred", (False, True))
@pytest.mark.parametrize(
    "T, n, K, values",
    (
        (40, 8, 2, None),
        (40, 8, 3, 4),
        (30, 5, 5, 1),
        (5, 3, 1, 3),
        (7, 2, 1, None),
        (9, 1, 1, None),
        (2, 4, 2, None),
        (1, 4, 2, None),
        (0, 4, 2, None),
    ),
)
def test_definitions(T, n, K, values, centred):
    for seed in range(3):
        torch.manual_seed(seed)
        scores, responses = drawn(T, n, values)
        ids = torch.randint(0, 6, (T,))
        got = couplet.token_figures(scores, responses, ids, centred, K)
        want = by_definition(scores.double(), responses.double(), ids.tolist(), centred, K)
        if values:  # the two implementations round differences from a mean that are 0 in exact arithmetic differently
            for name in [name for name in want if name.startswith("ids.")]:
                del want[name], got[name]
        assert got == pytest.approx(want, rel=1e-9, abs=1e-12, nan_ok=True)


def test_ids():
    scores, responses = drawn(12, 6)
    assert not [name for name in couplet.token_figures(scores, responses) if name.startswith(("ids", "agreement.t"))]
    one = couplet.token_figures(scores, responses, [7] * 12)
    assert one == pytest.approx(
        {
            **one,
            **{
                name: value
                for name, value in by_definition(scores.double(), responses.double(), [7] * 12, False, 1).items()
                if name.startswith("ids")
            },
        }
    )
    each = couplet.token_figures(scores, responses, range(12))
    assert all(math.isnan(each[f"ids.{side}"]) for side in ("all", "above", "below"))
    # A part that depends on the id alone is subtracted.
    ids, part = torch.arange(12) % 3, 100 * torch.rand(3, 6)
    moved = couplet.token_figures(scores + part[ids], responses - part[ids], ids)
    assert moved["ids.all"] == pytest.approx(couplet.token_figures(scores, responses, ids)["ids.all"])
    assert moved["tokens.all"] < -0.9


def test_numbers_that_are_none():
    scores, responses = drawn(12, 6)
    clean = couplet.token_figures(scores, responses, K=2)
    for which in (scores, responses):
        kept = which[3, 2].clone()
        which[3, 2] = nan
        got = couplet.token_figures(scores, responses, K=2)
        for name in ("tokens.all", "experts.all", "tokens.size", "agreement.spearman_mean", "agreement.top1"):
            assert math.isnan(got[name]), name
        which[3, 2] = kept
    scores[3, 2] = scores.max() + 1
    large = couplet.token_figures(scores, responses, K=2)
    scores[3, 2] = math.inf
    assert couplet.token_figures(scores, responses, K=2) == large != clean
    scores[:] = 1.0  # all scores are equal
    got = couplet.token_figures(scores, responses)
    assert got["negative"] == 0 and all(math.isnan(value) for name, value in got.items() if name != "negative")


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float64))
def test_dtypes(dtype):
    scores, responses = (x.to(dtype) for x in drawn(30, 6))
    assert couplet.token_figures(scores, responses) == couplet.token_figures(scores.double(), responses.double())


def test_a_shift_of_all_scores_of_a_token_is_not_seen_by_centred_ones():
    scores, responses = drawn(40, 8)
    moved = scores + 2 * torch.randn(40, 1)
    before, after = (couplet.token_figures(s, responses, torch.arange(40) % 5, True, 2) for s in (scores, moved))
    assert before == pytest.approx(after, rel=1e-6)
    raw = [couplet.token_figures(s, responses, K=2) for s in (scores, moved)]
    for name in ("tokens.all", "agreement.spearman_mean", "agreement.top1", "agreement.overlap"):
        assert raw[0][name] == pytest.approx(raw[1][name])
    for name in ("negative", "tokens.above", "tokens.size", "experts.all"):
        assert abs(raw[0][name] - raw[1][name]) > 1e-3, name


@pytest.mark.parametrize(
    "change, sentence",
    (
        (dict(scores=torch.zeros(3)), "scores must be a tensor"),
        (dict(responses=torch.zeros(3, 4).int()), "responses"),
        (dict(scores=torch.zeros(3, 5)), r"scores are \[3, 5\] and responses \[3, 4\], must both be"),
        (dict(scores=torch.zeros(3, 0), responses=torch.zeros(3, 0)), "at least one expert"),
        (dict(ids=[1, 2]), "there are 2 ids, but 3 tokens"),
        (dict(ids=[0.5, 1, 2]), "must be whole numbers"),
        (dict(K=5), "K is 5, must be from 1 to 4"),
        (dict(K=0), "K is 0"),
    ),
)
def test_bad_input(change, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        couplet.token_figures(**{"scores": torch.zeros(3, 4), "responses": torch.zeros(3, 4), **change})


# ---- the tokens of a model ----


def recorded(model, batches, limit=2048, **more):
    erc = couplet.attach(model, pairs_of(model))
    with erc.record_tokens(limit, **more) as record, torch.no_grad():
        for x in batches:
            for layer in model.layers:
                layer.router(x)
    return record


def test_samples():
    """Samples are evenly spaced in each pass, up to the limit. Scores and responses equal their definitions."""
    model = Model()
    batches = [torch.randn(2, 5, 10), torch.randn(7, 10), torch.randn(4, 10)]
    x = torch.cat([b.reshape(-1, 10) for b in batches])
    for limit, places in ((2048, range(21)), (13, [*range(10), 10, 12, 14]), (4, [0, 2, 5, 7])):
        samples = recorded(model, batches, limit).samples()
        assert list(samples) == [0, 1]
        for sample, layer in zip(samples.values(), model.layers):
            R, W = layer.router.weight.detach(), layer.w1.detach()
            assert sample.places.tolist() == [*places]
            torch.testing.assert_close(sample.scores, x[sample.places] @ R.T)
            torch.testing.assert_close(
                sample.responses, torch.linalg.vector_norm(torch.einsum("td,eDd->teD", x[sample.places], W), dim=-1)
            )
    assert not [m for m in model.modules() if m._forward_pre_hooks]


def test_figures_of_a_record():
    model, x = Model(), torch.randn(3, 9, 10)
    ids = torch.randint(0, 4, (3, 9))
    got = recorded(model, [x], 20, top_k=2).figures(per_layer=True, ids=ids)
    for number, sample in recorded(model, [x], 20).samples().items():
        own = ids.flatten()[sample.places]
        raw = couplet.token_figures(sample.scores, sample.responses, own, False, 2)
        centred = couplet.token_figures(sample.scores, sample.responses, own, True)
        assert raw["tokens.above"] != centred["tokens.above"]
        for name, value in raw.items():
            assert got[f"{name if 'agreement' in name else f'signs.{name}'}/{number}"] == value
        for name, value in centred.items():
            assert "agreement" in name or got[f"centred_signs.{name}/{number}"] == value
    for name in ("signs.ids.all", "centred_signs.tokens.above", "agreement.overlap"):
        assert got[name] == pytest.approx((got[f"{name}/0"] + got[f"{name}/1"]) / 2)
    without = recorded(model, [x]).figures()
    assert not [name for name in without if "ids" in name or "top1" in name or "/" in name]


def test_common_vectors_and_signs_of_rows():
    """One vector added to all rows changes L, but neither routing nor figures of centred scores. Rows -R in place of R
    do not change M and L, and the router prefers the opposite tokens."""
    model, x = Model(), torch.randn(50, 10)

    def now(change):
        with torch.no_grad():
            for layer in model.layers:
                change(layer.router.weight)
        figures = couplet.attach(model, pairs_of(model)).figures(figures=_figures.ALL_NAMES)
        return figures, recorded(model, [x], top_k=2).figures()

    before, tokens = now(lambda R: None)
    c = torch.randn(10)
    after, moved = now(lambda R: R.add_(c))
    same = [name for name in tokens if name.startswith(("centred", "agreement")) or name.endswith("tokens.all")]
    assert len(same) > 9
    assert {name: moved[name] for name in same} == pytest.approx({name: tokens[name] for name in same}, rel=1e-4)
    assert abs(after["erc_clean"] - before["erc_clean"]) > 1e-2
    assert after["erc_centred"] == pytest.approx(before["erc_centred"], rel=1e-4)
    assert moved["signs.tokens.above"] != pytest.approx(tokens["signs.tokens.above"], rel=1e-2)
    flipped, turned = now(lambda R: R.neg_())
    assert flipped == pytest.approx(after, rel=1e-6)
    for name in ("signs.tokens.all", "signs.experts.all", "centred_signs.tokens.all", "agreement.spearman_mean"):
        assert turned[name] == pytest.approx(-moved[name])
    assert turned["signs.negative"] == pytest.approx(1 - moved["signs.negative"])
    assert turned["signs.tokens.above"] == pytest.approx(-moved["signs.tokens.below"])


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_half_precision(dtype):
    model, x = Model().to(dtype), torch.randn(40, 10).to(dtype)
    got = recorded(model, [x])
    want = recorded(model.float(), [x.float()]).figures()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert got.figures() == pytest.approx(want, rel=1e-6)
    assert got.samples()[0].scores.dtype == torch.float32


def test_refusals():
    model = Model()
    erc = couplet.attach(model, pairs_of(model))
    for group in ("group", "tensor_group"):
        spread = couplet.attach(model, pairs_of(model))
        setattr(spread, group, object())
        with pytest.raises(ValueError, match="no process has the whole gates of all experts"):
            spread.record_tokens()
    for bad, sentence in (
        (dict(limit=0), "limit is 0"),
        (dict(top_k=0), "top_k is 0"),
        (dict(routers=[model]), "routers must be a list of 2 modules"),
    ):
        with pytest.raises(ValueError, match=sentence):
            erc.record_tokens(**bad)
    with erc.record_tokens() as record:
        model.layers[0].router(torch.randn(3, 10))
    with pytest.raises(ValueError, match="layers.1.router.weight: its module was not called within record_tokens"):
        record.figures()
    with pytest.raises(ValueError, match=r"there are 2 ids, but 3 tokens"):
        record.figures(ids=[1, 2])
    with erc.record_tokens(routers=[model.layers[1].router, nn.Identity()]) as record:
        with pytest.raises(ValueError, match=r"called with \[\[3, 7\]\], none of which are tokens \[..., 10\]"):
            record._modules[1](torch.randn(3, 7))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.w1 = nn.Parameter(torch.randn(6, 10)), nn.Parameter(torch.randn(6, 8, 10))

        def forward(self, x):
            return x @ self.router.T

    block = Block()
    erc = couplet.attach(block, [("router", "w1")])
    with pytest.raises(ValueError, match="router is in a Block, which is no linear layer and no router"):
        erc.record_tokens()
    with erc.record_tokens(routers=[block]) as record:
        block(torch.randn(4, 10))
    assert record.samples()[0].scores.shape == (4, 6)


# ---- models of Transformers ----


def families():
    from test_router_stats import FAMILIES, SHAPE

    return {name: {**SHAPE, **more} for name, more in FAMILIES.items()}


@pytest.mark.parametrize("family", ("Olmoe", "Mixtral", "Qwen3Moe", "DeepseekV3", "GptOss", "LongcatFlash"))
@pytest.mark.filterwarnings("ignore:couplet. the rows of w_gate")
def test_families(family):
    """The recorded scores are the logits that the model's router computes."""
    pytest.importorskip("transformers")
    model = model_of(f"{family}ForCausalLM", f"{family}Config", families()[family])
    erc = couplet.hf.attach(model)
    from test_hf import FUSED

    if not FUSED and family in ("DeepseekV3", "GptOss", "LongcatFlash"):
        pytest.skip("the modules of Transformers 4 return no logits")
    outputs, record = [], erc.record_tokens()
    for module in record._modules:
        module.register_forward_hook(lambda m, i, o: outputs.append(o[0] if isinstance(o, tuple) else o))
    ids = torch.randint(2, 96, (3, 7))
    with record, torch.no_grad():
        model(input_ids=ids)
    for layer, sample, logits in zip(erc.layers, record.samples().values(), outputs, strict=True):
        bias = model.get_submodule(layer.names[0].rpartition(".")[0]) if family == "GptOss" else None
        want = logits.reshape(21, -1)[:, :8] - (0 if bias is None else bias.bias)
        torch.testing.assert_close(sample.scores, want, rtol=1e-4, atol=1e-6)
    figures = record.figures(ids=ids)
    assert ("agreement.top1" in figures) == (family in ("Olmoe", "Mixtral", "Qwen3Moe"))
    assert -1 <= figures["signs.ids.all"] <= 1


TEXT = " ".join(
    f"{a} {b} of the {c}."
    for a in ("one", "two", "old")
    for b in ("house", "horse", "river")
    for c in ("king", "road", "sea", "night")
)


def test_figures_are_those_of_the_program(tmp_path):
    pytest.importorskip("transformers")
    from test_hf import tiny

    program = couplet.find_program()
    if not program:
        pytest.skip("there is no program couplet: pip install ./python/native")
    model = tiny(vocab_size=300, max_position_embeddings=512).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight += 0.5 * layer.mlp.gate.weight[0].clone()
    folder, text = tmp_path / "model", tmp_path / "text.txt"
    model.save_pretrained(folder)
    text.write_text(TEXT)
    run = lambda *words, **more: subprocess.run([program, *words], check=True, capture_output=True, **more).stdout
    run("tokenize", "train", "--vocab-size", "280", "--out", folder / "tokenizer.json", text)
    tokens = [
        int(word)
        for word in run(
            "tokenize", "encode", "--tokenizer", folder / "tokenizer.json", "--ids", input=TEXT.encode()
        ).split()
    ]
    report = json.loads(
        run("inspect", folder, "--text", text, "--json", "-", "--window", "512", "--response-tokens", "100000")
    )["routing"]
    assert 100 < len(tokens) < 400 and report["tokens"] in (len(tokens), len(tokens) + 1)
    ids = torch.tensor([[model.config.eos_token_id, *tokens]])[:, : report["tokens"]]
    with couplet.hf.attach(model).record_tokens() as record, torch.no_grad():
        model(input_ids=ids)
    got = record.figures(per_layer=True, ids=ids)
    compared = 0
    for layer in report["layers"]:
        for name, want in flat({part: layer[part] for part in ("signs", "centred_signs", "agreement", "tokens_M")}):
            if not name.endswith(("_chance", "spearman_std")) and name not in NOT_IN_PYTHON and ".erc" not in name:
                assert got[f"{name}/{layer['layer']}"] == pytest.approx(want, abs=1e-4), name
                compared += 1
    assert compared == 2 * (12 + 12 + 3 + 8)


NOT_IN_PYTHON = ("tokens_M.M", "tokens_M.routed", "tokens_M.experts", "tokens_M.alpha_min")


def flat(tree, begin=""):
    for name, value in tree.items():
        yield from flat(value, f"{begin}{name}.") if isinstance(value, dict) else [(begin + name, value)]
