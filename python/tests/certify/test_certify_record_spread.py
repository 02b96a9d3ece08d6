"""couplet.certify.record over processes (DDP, FSDP2), and on models of Transformers."""

import pytest
import torch
from conftest import HAS_FULLY_SHARD, in_processes
from couplet import certify
from test_certify_record import K, Model, batches, keys, recorded, step_of, step_on

fsdp = pytest.importorskip("torch.distributed.fsdp")

SIZE = 2
KINDS = ("ddp", *(("fully_shard",) if HAS_FULLY_SHARD else ()))


# ---- processes ----


def spread(name, fault="", policy=None):
    model, more = Model(fault), {"mp_policy": policy} if policy else {}
    if name == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    for layer in model.layers:
        fsdp.fully_shard(layer, **more)
    return fsdp.fully_shard(model, **more)


def verdicts(rank):
    mine = batches(3 * SIZE)[3 * rank : 3 * rank + 3]
    found = {}
    for name in KINDS:
        model = spread(name)
        found[name, "right"] = recorded(model, step_of(model, mine))
        found[name, "not_divided_by_steps"] = recorded(model, step_of(model, mine, divided=False))
        found[name, "times_ranks"] = recorded(
            model, step_of(lambda input_ids: SIZE * model(input_ids), mine)
        )  # the mean, computed as a sum
        found[name, "sequences"] = recorded(model, step_of(model, mine), sequences=9)
        model = spread(name, "coefficient_twice")
        found[name, "coefficient_twice"] = recorded(model, step_of(model, mine))
    if HAS_FULLY_SHARD:
        model = spread("fully_shard", policy=fsdp.MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        found["fully_shard", "bf16"] = recorded(model, step_of(model, mine), value=1.0)
    return {key: (one.state, sorted(keys(one))) for key, one in found.items()}


@pytest.fixture(scope="module")
def two():
    return in_processes(verdicts, SIZE)


@pytest.mark.parametrize("name", KINDS)
def test_over_processes(two, name):
    assert two[0] == two[1]
    for case in ("right", "sequences"):
        assert two[0][name, case] == ("right", [])
    assert name == "ddp" or two[0][name, "bf16"] == ("right", [])
    for fault in ("not_divided_by_steps", "times_ranks", "coefficient_twice"):
        assert two[0][name, fault][0] == "fault" and fault in two[0][name, fault][1], two[0][name, fault]


# ---- Transformers ----

SHAPE = dict(
    vocab_size=48,
    hidden_size=24,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    router_aux_loss_coef=0.02,
    output_router_logits=True,
    initializer_range=0.3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
FAMILIES = {
    "mixtral": ("Mixtral", dict(num_local_experts=6, num_experts_per_tok=K)),
    "olmoe": ("Olmoe", dict(num_experts=6, num_experts_per_tok=K)),
    "qwen3_moe": ("Qwen3Moe", dict(num_experts=6, num_experts_per_tok=K, moe_intermediate_size=16, head_dim=12)),
}


def of_transformers(family, **changes):
    transformers = pytest.importorskip("transformers")
    name, more = FAMILIES[family]
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **more, **changes})
    return getattr(transformers, f"{name}ForCausalLM")(config).train()


IDS = torch.randint(3, 48, (4, 10), generator=torch.Generator().manual_seed(1))


def step_with(model, mask=None):
    return step_on(lambda: model(input_ids=IDS, attention_mask=mask, labels=IDS).loss)


def verdict_of(model, step, kind="load-balancing-mixtral", **settings):
    with certify.record(model, **settings) as one:
        one.run(step)
    return one.verdict(kind)


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_as_installed(family, one_thread):
    model = of_transformers(family)
    verdict = verdict_of(model, step_with(model))
    assert verdict.state == "right", certify.sentence(verdict)
    assert verdict_of(model, step_with(model), "load-balancing-olmoe").state == "other"


@pytest.mark.parametrize("family", ("mixtral", "qwen3_moe"))
def test_transformers_with_padding_and_checkpointing(family, one_thread):
    model = of_transformers(family)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    mask = torch.ones(4, 10, dtype=torch.long)
    mask[1, 6:], mask[3, 2:] = 0, 0
    verdict = verdict_of(model, step_with(model, mask))
    assert verdict.state == "right", certify.sentence(verdict)
    assert "padding_counted" not in [fault.key for fault in verdict.untold]


def test_transformers_without_router_logits(one_thread):
    model = of_transformers("olmoe", output_router_logits=False)
    assert "zero" in keys(verdict_of(model, step_with(model)))


def test_a_trainer_that_adds_it_once_more(one_thread):
    """The model's loss already includes it, as in TRL #4070."""
    model = of_transformers("qwen3_moe", num_experts_per_tok=3)

    def loss():
        out = model(input_ids=IDS, labels=IDS)
        return out.loss + model.config.router_aux_loss_coef * out.aux_loss

    assert keys(verdict_of(model, step_on(loss))) == {"added_twice"}
