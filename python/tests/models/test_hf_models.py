"""Models of Transformers, family by family: the loss and its gradients equal those of the paper's pseudo-code on the
parameters that the model's own code uses."""

import couplet
import pytest
import torch
from conftest import InMemory, close, model_of, same_gradients

pytest.importorskip("transformers")
from test_hf import FUSED, needs_fused, tiny  # noqa: E402

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    pad_token_id=None,
)
LONGCAT = dict(
    vocab_size=96,
    hidden_size=32,
    ffn_hidden_size=24,
    expert_ffn_hidden_size=24,
    num_layers=2,
    num_attention_heads=4,
    n_routed_experts=8,
    zero_expert_num=2,
    moe_topk=2,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
)
# Model and config, its settings, names of router and gates after "model.layers.0.", and the function that takes the
# gates [n, D, d] from the parameter as the model's code does.
FAMILIES = {
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        dict(SHAPE, head_dim=8, num_local_experts=8, num_experts_per_tok=2),
        "mlp.router.weight",
        "mlp.experts.gate_up_proj",
        lambda t: t[..., ::2].transpose(1, 2),
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        dict(
            SHAPE,
            head_dim=8,
            num_local_experts=8,
            num_experts_per_tok=1,
            intermediate_size_mlp=24,
            interleave_moe_layer_step=1,
        ),
        "feed_forward.router.weight",
        "feed_forward.experts.gate_up_proj",
        lambda t: t.chunk(2, -1)[0].transpose(1, 2),
    ),
    "longcat-flash": (
        "LongcatFlashForCausalLM",
        "LongcatFlashConfig",
        LONGCAT,  # two experts compute nothing
        "mlp.router.classifier.weight",
        "mlp.experts.gate_up_proj",
        lambda t: t[:8, :24],
    ),
    "granite-hybrid": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",  # the config contains infinity
        dict(
            SHAPE,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=24,
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_d_state=8,
            mamba_n_groups=1,
            layer_types=["attention", "mamba"],
        ),
        "block_sparse_moe.router.weight",
        "block_sparse_moe.experts.gate_up_proj",
        lambda t: t[:, :24],
    ),
}
# The names in Transformers 4; {e} is an expert.
BEFORE_5 = {
    "longcat-flash": ("mlp.router.classifier.weight", "mlp.experts.{e}.gate_proj.weight", lambda t: t),
    "granite-hybrid": (
        "block_sparse_moe.router.layer.weight",
        "block_sparse_moe.input_linear.weight",
        lambda t: t[:, :24],
    ),
}


def of_the_paper(model, router, gates, taken, **settings):
    p = {name.removeprefix("model.layers."): t for name, t in model.named_parameters()}
    each = []
    for l in range(2):
        R, names = p[f"{l}.{router}"][:8], [f"{l}.{gates.format(e=e)}" for e in range(8)]
        W = torch.stack([p[name] for name in names]) if "{e}" in gates else p[names[0]]
        each.append(couplet.reference.erc_loss(R, taken(W), delta=torch.ones_like(R), **settings))
    return sum(each) / 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore:couplet. the rows of w_gate")
def test_family(family):
    kind, config, settings, *names = FAMILIES[family]
    model = model_of(kind, config, settings)
    names = names if FUSED else BEFORE_5.get(family, names)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3)
    loss = couplet.hf.attach(model, weight=0.5, alpha=0.8, noise="none").loss()
    loss.backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    want = of_the_paper(model, *names, alpha=0.8, weight=0.5)
    want.backward()
    close(loss, want, 1e-5)
    same_gradients(model, got, 1e-4)


def test_router_stored_transposed():
    """ERNIE 4.5 VL stores its router as [d, n]."""
    gates = [f"model.layers.0.mlp.experts.{e}.gate_proj.weight" for e in range(4)]
    model = InMemory("ernie4_5_moe_vl", {"model.layers.0.mlp.gate.weight": (6, 4), **dict.fromkeys(gates, (5, 6))})
    loss = couplet.hf.attach(model, noise="none").loss()
    p = {name: t.detach() for name, t in model.named_parameters()}
    router = p["model.layers.0.mlp.gate.weight"].T
    close(loss, couplet.reference.erc_loss(router, torch.stack([p[g] for g in gates]), delta=torch.ones(4, 6)), 1e-5)


@pytest.mark.parametrize("number", (float("inf"), float("-inf"), float("nan")))
def test_numbers_that_json_has_not(number):
    gates = {f"model.layers.0.mlp.experts.{e}.gate_proj.weight": (5, 6) for e in range(4)}
    model = InMemory(
        "olmoe", {"model.layers.0.mlp.gate.weight": (4, 6), **gates}, a=number, b=(0.0, number), c={"d": [number]}
    )
    assert couplet.hf.attach(model).layers[0].n == 4


@needs_fused
def test_whole_gates_are_not_sliced():
    """A slice's backward pass would allocate a second gradient of the full size."""
    from couplet.models._weights import as_weight

    model = tiny()
    layer = couplet.hf.attach(model).layers[0]
    gates = model.model.layers[0].mlp.experts.gate_up_proj
    assert layer.gates([as_weight(model.model.layers[0].mlp.gate.weight), as_weight(gates)]) is gates
