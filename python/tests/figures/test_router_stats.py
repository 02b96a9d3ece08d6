"""couplet.RouterStats: loads and entropies of routers, counted from the outputs of their forward passes."""

import copy
import gc
import math

import couplet
import pytest
import torch
import torch.distributed as dist
from conftest import in_processes
from torch import nn

n, k, tokens = 6, 2, 40


class Router(nn.Module):
    """A router that returns its argument."""

    def forward(self, output):
        return output


def routed(seed=0, unused=()):
    """Returns logits [tokens, n], and values and indices of the k largest. Experts `unused` are never chosen."""
    logits = torch.randn(tokens, n, generator=torch.Generator().manual_seed(seed))
    logits[:, list(unused)] -= 100
    return logits, *logits.topk(k, dim=-1)


def expected(batches, scores=torch.softmax):
    """Returns the figures computed from their definitions."""
    load = torch.bincount(torch.cat([indices.flatten() for _, _, indices in batches]), minlength=n).double()
    p = torch.cat([scores(logits.double(), -1) for logits, *_ in batches]).mean(0)
    entropy = lambda p: -sum(x * math.log(x) for x in (p / p.sum()).tolist() if x) / math.log(n)
    return {
        "router_maxvio": (load.max() / load.mean() - 1).item(),
        "router_load_min": (load.min() / load.mean()).item(),
        "router_dead": (load == 0).sum().item(),
        "router_load_entropy": entropy(load),
        "router_entropy": entropy(p),
    }


FORMS = {
    "transformers 5": lambda logits, w, i: (logits, w, i),
    "logits": lambda logits, w, i: logits.view(4, tokens // 4, n),
    "indices": lambda logits, w, i: i,
    "torchtitan": lambda logits, w, i: (w, i, torch.bincount(i.flatten(), minlength=n).float()),
    "deepseek in transformers 4": lambda logits, w, i: (i, w),
    "gpt-oss in transformers 4": lambda logits, w, i: (torch.zeros(tokens, n).scatter(1, i, w.softmax(-1)), i),
    "megatron": lambda logits, w, i: (logits.softmax(-1), torch.zeros(tokens, n, dtype=torch.bool).scatter(1, i, True)),
    "llama 4": lambda logits, w, i: (torch.zeros(tokens, n).scatter(1, i, w.sigmoid()), logits),
    "one-hot": lambda logits, w, i: (torch.zeros(tokens, n, dtype=torch.int64).scatter(1, i, 1), logits),
    "a dict": lambda logits, w, i: {"weights": w, "indices": i},
}
WITH_LOGITS = ("transformers 5", "logits")


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_output(form):
    router = Router()
    stats = couplet.RouterStats([router], n, top_k=k)
    batches = [routed(seed, unused=(4,)) for seed in range(3)]
    for batch, inference in zip(batches, (True, False, True)):  # counts continue in either mode
        with torch.inference_mode(inference):
            router(FORMS[form](*batch))
    want = expected(batches)
    assert want["router_dead"] == 1 and 0 < want["router_entropy"] < 1
    if form not in WITH_LOGITS:
        del want["router_entropy"]
    got = stats.figures()
    assert {name: got[name] for name in want} == pytest.approx(want, rel=1e-5)
    assert ("router_entropy" in got) == (form in WITH_LOGITS)


def test_layers_and_percentiles():
    routers = [Router() for _ in range(5)]
    stats = couplet.RouterStats(routers, n, top_k=k, numbers=[3, 4, 5, 6, 7])
    batches = [routed(seed, unused=range(seed)) for seed in range(5)]
    for router, batch in zip(routers, batches):
        router(batch)
    each = [expected([batch]) for batch in batches]
    loads = stats.loads()
    got = stats.figures(per_layer=True)
    for name in each[0]:
        values = torch.tensor([f[name] for f in each], dtype=torch.float64)
        assert got[name] == pytest.approx(values.mean().item(), rel=1e-5)
        assert [got[f"{name}/{number}"] for number in range(3, 8)] == pytest.approx(values.tolist(), rel=1e-5)
        assert [got[f"{name}_p{p}"] for p in (10, 50, 90)] == pytest.approx(
            [values.quantile(q).item() for q in (0.1, 0.5, 0.9)], rel=1e-5
        )
    assert [load.sum().item() for load in loads.values()] == [tokens * k] * 5 and list(loads) == [3, 4, 5, 6, 7]


def test_an_interval_begins_with_every_call():
    router = Router()
    stats = couplet.RouterStats([router], n)
    assert stats.figures() == {}
    for seed in range(2):
        router(routed(seed))
        assert stats.figures(reset=False) == stats.figures()
    assert stats.figures() == {}  # no pass since the last call
    router.eval()(routed(3))
    assert stats.figures() == {}
    router.train()(routed(1))
    assert stats.figures()["router_maxvio"] == pytest.approx(expected([routed(1)])["router_maxvio"])
    stats.remove()
    router(routed(1))
    assert stats.figures() == {}


def test_sigmoid_scores():
    class Biased(Router):
        e_score_correction_bias = None

    share = lambda logits, dim: logits.sigmoid() / logits.sigmoid().sum(dim, keepdim=True)
    want = expected([routed()], share)["router_entropy"]
    for router, scores in ((Biased(), None), (Router(), "sigmoid")):
        stats = couplet.RouterStats([router], n, scores=scores)
        router(routed())
        assert stats.figures()["router_entropy"] == pytest.approx(want)
    assert abs(want - expected([routed()])["router_entropy"]) > 1e-4


def test_numbers_that_are_no_experts():
    """The numbers are dropped tokens (-1), and LongCat-Flash's experts that compute nothing (n and above)."""
    router = Router()
    stats = couplet.RouterStats([router], n)
    router(torch.tensor([[0, -1], [n, 5], [n + 7, 5]]))
    assert stats.loads()[0].tolist() == [1, 0, 0, 0, 0, 2]


def test_nothing_is_read_before_the_log():
    """Fake tensors have no numbers, so every operation that would synchronise raises an error."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    router = Router()
    stats = couplet.RouterStats([router], n, top_k=k)
    with FakeTensorMode():
        logits = torch.empty(tokens, n, device="cuda")
        for form in ("transformers 5", "logits", "indices"):
            router(FORMS[form](logits, *logits.topk(k, dim=-1)))
    assert stats.counters[0].load is not None


def test_in_a_compiled_model():
    router = Router()
    stats = couplet.RouterStats([router], n, top_k=k)
    compiled = torch.compile(nn.Sequential(router), backend="eager", fullgraph=True)
    for seed in range(2):
        compiled(routed(seed))
    want = expected([routed(0), routed(1)])
    assert {name: stats.figures(reset=False)[name] for name in want} == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    "output, sentence",
    (
        (torch.zeros(tokens, 9), r"a Router returns \[\[40, 9\]\]; must be indices \[tokens, k\] or a mask"),
        (torch.zeros(tokens, n), r"or with top_k logits \[tokens, 6\]"),
        (None, r"a Router returns \[\]"),
    ),
)
def test_outputs_that_say_nothing(output, sentence):
    router = Router()
    _ = couplet.RouterStats([router], n)  # the hooks exist as long as this object
    with pytest.raises(ValueError, match=sentence):
        router(output)


@pytest.mark.parametrize(
    "settings, sentence",
    (
        (dict(routers=[]), "routers must be a list of modules"),
        (dict(routers=Router()), "routers must be a list of modules"),
        (dict(n="8"), "n is '8', must be a whole number"),
        (dict(top_k="2"), "top_k is '2', must be a whole number"),
        (dict(n=[1, 2]), "1 routers, but 2 n and 1 numbers"),
        (dict(scores="tanh"), "scores is 'tanh', must be softmax, sigmoid or None"),
        (dict(names=["maxvio"]), "names has 'maxvio', must be of router_maxvio"),
    ),
)
def test_bad_settings(settings, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        couplet.RouterStats(**{"routers": [Router()], "n": n, **settings})


# ---- models of Transformers ----

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=None,
    num_experts_per_tok=2,
)
FAMILIES = {
    "Olmoe": dict(num_experts=8),
    "Mixtral": dict(num_local_experts=8),
    "Qwen3Moe": dict(num_experts=8, moe_intermediate_size=24),
    "DeepseekV3": dict(
        n_routed_experts=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        num_hidden_layers=3,
        moe_intermediate_size=24,
        n_shared_experts=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=4,
    ),
    "GptOss": dict(num_local_experts=8, head_dim=8),
    "LongcatFlash": dict(
        num_hidden_layers=4,
        ffn_hidden_size=24,
        expert_ffn_hidden_size=24,
        num_layers=2,
        n_routed_experts=8,
        zero_expert_num=2,
        moe_topk=2,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=4,
    ),
}


def loads_of_experts(model, batch):
    """Returns layer -> loads [8], from the arguments of the model's experts: indices, or the tokens of each expert."""
    loads = [torch.zeros(8, dtype=torch.int64) for _ in range(2)]

    def counts_indices(load):
        def hook(module, inputs, kwargs):
            tensors = [t for t in (*inputs, *kwargs.values()) if torch.is_tensor(t)]
            (chosen,) = (t for t in tensors if not t.is_floating_point())
            load.add_(torch.bincount(chosen[chosen < 8], minlength=8))

        return hook

    def counts_tokens(load, expert):
        def hook(module, inputs, kwargs):
            load[expert] += inputs[0].numel() // inputs[0].shape[-1]

        return hook

    of_layers = [m for name, m in model.named_modules() if name.endswith(".experts")]
    hooks = []
    for experts, load in zip(of_layers, loads, strict=True):
        each = (
            [(one, counts_tokens(load, expert)) for expert, one in enumerate(experts[:8])]
            if isinstance(experts, nn.ModuleList)
            else [(experts, counts_indices(load))]
        )
        hooks += [module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in each]
    model(input_ids=batch)
    for hook in hooks:
        hook.remove()
    return loads


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:couplet. the rows of w_gate")
def test_families(family):
    """The counts equal those with which the model's own code calls its experts."""
    transformers = pytest.importorskip("transformers")
    from test_hf import FUSED

    if not hasattr(transformers, f"{family}ForCausalLM"):
        pytest.skip(f"this transformers has no {family}")
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(
        getattr(transformers, f"{family}Config")(**{**SHAPE, **FAMILIES[family]})
    ).train()
    erc = couplet.hf.attach(model)
    assert len(erc.layers) == 2
    stats = erc.router_stats()
    assert erc.router_stats() is stats
    want = loads_of_experts(model, torch.randint(2, 96, (3, 7)))
    loads = stats.loads()
    assert list(loads) == [layer.number for layer in erc.layers]
    for load, of_experts in zip(loads.values(), want):
        assert load.tolist() == of_experts.tolist() and load.sum() > 0
    # LongCat-Flash's logits include other experts. DeepSeek-V3 and gpt-oss return none before Transformers 5.
    without = ("LongcatFlash",) if FUSED else ("LongcatFlash", "DeepseekV3", "GptOss")
    assert ("router_entropy" in stats.figures()) == (family not in without)


def test_given_layers_and_modules():
    from test_attach import Model, d, pairs_of

    model = Model()
    erc = couplet.attach(model, pairs_of(model))
    erc.router_stats(top_k=2)
    for layer in model.layers:
        layer.router(torch.randn(5, d))
    assert [load.sum().item() for load in erc.router_stats().loads().values()] == [10, 10]
    copied = copy.deepcopy(erc)
    copied.model.layers[0].router(torch.randn(5, d))
    assert copied.router_stats().loads()[0].sum() == 20 and erc.router_stats().loads()[0].sum() == 10
    routers = [layer.router for layer in model.layers]
    del erc, copied
    gc.collect()
    assert not any(router._forward_hooks for router in routers)


def test_later_calls_have_the_arguments_of_the_first():
    from test_attach import Model, pairs_of

    model = Model()
    erc = couplet.attach(model, pairs_of(model))
    modules, names = [layer.router for layer in model.layers], ("router_maxvio", "router_dead")
    stats = erc.router_stats(modules, top_k=2, names=names)
    for same in ({}, dict(routers=tuple(modules)), dict(top_k=2), dict(names=names), dict(names=names[1:])):
        assert erc.router_stats(**same) is stats
    for other, more in (
        ("routers", dict(routers=modules[::-1])),
        ("top_k", dict(top_k=3)),
        ("scores", dict(scores="sigmoid")),
        ("names", dict(names=("router_entropy",))),
        ("top_k and names", dict(top_k=1, names=couplet.RouterStats(modules, n).names)),
    ):
        with pytest.raises(ValueError, match=f"router_stats counts already with other {other} than now"):
            erc.router_stats(**more)


def test_a_choice_that_is_made_outside_of_the_router():
    from test_attach import Model, pairs_of

    model = Model()
    model.layers[0].e_score_correction_bias = torch.zeros(6)
    with pytest.raises(ValueError, match="layers.0.router.weight: its module returns logits, and experts are chosen"):
        couplet.attach(model, pairs_of(model)).router_stats(top_k=2)


# ---- processes ----


def alone_and_together(rank):
    router = Router()
    stats = couplet.RouterStats([router], n)
    router(routed(rank, unused=(rank,)))
    alone = stats.figures(reset=False)
    return alone, stats.figures(group=dist.group.WORLD)


def test_sums_over_processes():
    results = in_processes(alone_and_together, 2)
    batches = [routed(rank, unused=(rank,)) for rank in range(2)]
    want = expected(batches)
    for alone, together in results:
        assert {name: together[name] for name in want} == pytest.approx(want, rel=1e-5)
        assert alone["router_dead"] == 1 and together["router_dead"] == 0
