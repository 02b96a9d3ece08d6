"""Models of Transformers: routers and gates are found, the loss counts once a step, its weight is right under gradient
accumulation, and figures equal the program's. Models are random and tiny. Nothing is downloaded."""

import copy
import json
import re
import subprocess
import warnings

import couplet
import pytest
import torch
import torch.nn.utils.parametrize
from conftest import InMemory, close, model_of, same_gradients
from couplet.figures import _figures

transformers = pytest.importorskip("transformers")
from transformers import LlamaConfig, LlamaForCausalLM, OlmoeForCausalLM, Trainer, TrainingArguments  # noqa: E402

SHAPE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    eos_token_id=1,
    bos_token_id=None,
    pad_token_id=None,
)
# name: the model and config of Transformers, and settings
MODELS = {
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", dict(num_experts=8, num_experts_per_tok=2)),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(num_local_experts=8, num_experts_per_tok=2)),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24),
    ),
}
FUSED = int(transformers.__version__.split(".")[0]) >= 5  # gates and ups of all experts are one parameter
needs_fused = pytest.mark.skipif(not FUSED, reason="Transformers before 5 has a module for each expert")


def tiny(kind="olmoe", **more):
    model, config, settings = MODELS[kind]
    return model_of(model, config, {**SHAPE, **settings, **more})


def names_of(model):
    """Returns for each layer the name of the router, and of the fused gates or of each expert's gate."""
    names = [name for name, _ in model.named_parameters()]
    for l in range(2):
        moe = rf"model\.layers\.{l}\.(mlp|block_sparse_moe)\."
        (router,) = (name for name in names if re.fullmatch(moe + r"gate\.weight", name))
        gates = [
            name for name in names if re.fullmatch(moe + r"experts\.(gate_up_proj|\d+\.(gate_proj|w1)\.weight)", name)
        ]
        yield router, gates


def gates_of(moe):
    """Returns a view of each expert's gate [D, d]."""
    D = SHAPE["intermediate_size"]
    return list(moe.experts.gate_up_proj[:, :D]) if FUSED else [expert.gate_proj.weight for expert in moe.experts]


def by_hand(model, reduction="mean", **settings):
    """Returns the loss computed from parameters by name."""
    p = dict(model.named_parameters())
    each = [
        couplet.erc_loss(p[router], p[gates[0]], gate_half="first", layer=l, **settings)
        if FUSED
        else couplet.erc_loss(p[router], [p[gate] for gate in gates], layer=l, **settings)
        for l, (router, gates) in enumerate(names_of(model))
    ]
    return sum(each) / (2 if reduction == "mean" else 1)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_models(kind, reduction):
    model = tiny(kind)
    erc = couplet.hf.attach(model, weight=0.5, alpha=0.8, reduction=reduction, seed=4)
    loss = erc.loss()
    loss.backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    want = 0.5 * by_hand(model, reduction, alpha=0.8, seed=4)
    want.backward()
    close(loss, want, 1e-6)
    same_gradients(model, got, 1e-5)
    assert {name for name in got if got[name] is not None} == {
        name for router, gates in names_of(model) for name in (router, *gates)
    }


def test_saved_weights_load_unchanged(tmp_path):
    model = tiny()
    couplet.hf.attach(model).loss().backward()
    model.save_pretrained(tmp_path)
    again = OlmoeForCausalLM.from_pretrained(tmp_path)
    for a, b in zip(model.parameters(), again.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("columns", (False, True))
@pytest.mark.parametrize("version", ("4.57.0", "5.23.0", None))
def test_square_gates_lie_as_the_down_projection_does(columns, version):
    experts, n, d, D = "model.layers.0.mlp.experts.", 4, 6, 3
    model = InMemory(
        "qwen3_vl_moe",
        {
            "model.layers.0.mlp.gate.weight": (n, d),
            experts + "gate_up_proj": (n, d, d),
            experts + "down_proj": (n, D, d) if columns else (n, d, D),
        },
        transformers_version=version,
    )
    p = dict(model.named_parameters())
    gates = p[experts + "gate_up_proj"]
    gates = gates.mT[:, :D].contiguous() if columns else gates[:, :D].contiguous()
    close(couplet.hf.attach(model).loss(), couplet.erc_loss(p["model.layers.0.mlp.gate.weight"], gates), 1e-6)
    del model.model.layers._modules["0"].mlp.experts.down_proj
    with pytest.raises(ValueError, match="gate_up_proj is square, and no down projection beside it says"):
        couplet.hf.attach(model)


# ---- once per optimizer step ----


def is_evaluated(loss):
    """Returns whether the loss was evaluated. The zero of a step that has had its loss has no grad_fn."""
    return loss.grad_fn is not None


def test_without_a_graph_it_is_only_looked_at():
    model = tiny()
    erc = couplet.hf.attach(model)
    with torch.no_grad():
        looked = erc.loss()
    loss = erc.loss()
    assert is_evaluated(loss) and loss.item() == looked.item() and erc.step == 0


def go_around_the_counters(model):
    for p in model.parameters():
        if p.grad is not None:
            p.data.add_(p.grad, alpha=-1.0)
            p.grad.zero_()


@pytest.mark.parametrize("frozen", (False, True))
def test_an_optimizer_that_moves_no_version_counter(frozen):
    model = tiny()
    model.model.layers[0].requires_grad_(not frozen)
    erc = couplet.hf.attach(model)
    with pytest.warns(UserWarning, match=r"call erc.next_step\(\) whenever one begins") as warned:
        for step in range(3):
            loss = erc.loss()
            close(loss, by_hand(model, step=step), 1e-6)
            loss.backward()
            go_around_the_counters(model)
    assert [w.filename for w in warned] == [__file__]


def test_who_counts_the_steps_is_believed():
    model = tiny()
    erc = couplet.hf.attach(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            erc.next_step()
            loss = erc.loss()
            close(loss, by_hand(model, step=step), 1e-6)
            loss.backward()
            go_around_the_counters(model)
            assert not is_evaluated(erc.loss())


@pytest.mark.parametrize("accumulation", (1, 4))
@pytest.mark.parametrize("frozen", (False, True))
def test_accumulation_is_not_taken_for_such_an_optimizer(accumulation, frozen):
    model = tiny()
    for name, p in model.named_parameters():
        p.requires_grad_(not frozen or "layers.0" not in name)
    erc = couplet.hf.attach(model, accumulation=accumulation)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            seen = []
            for _ in range(4):
                extra = erc.loss()
                seen.append(is_evaluated(extra))
                ((model.lm_head.weight.sum() + extra) / accumulation).backward()
            assert seen == [True, False, False, False]
            optimizer.step()
            optimizer.zero_grad()


def test_gradient_accumulation_by_hand():
    """(a + b) / 2 over two micro-batches has the whole coefficient of the loss."""
    model = tiny()
    erc = couplet.hf.attach(model, accumulation=2)
    for _ in range(2):
        micro_batch = model.lm_head.weight.sum()
        ((micro_batch + erc.loss()) / 2).backward()
    got = model.model.layers[0].mlp.gate.weight.grad.clone()
    model.zero_grad()
    by_hand(model).backward()
    close(got, model.model.layers[0].mlp.gate.weight.grad, 1e-6)


def rows(count):
    made = torch.Generator().manual_seed(5)
    return [{"input_ids": ids, "labels": ids.clone()} for ids in torch.randint(2, 96, (count, 12), generator=made)]


def settings_of(folder, accumulation, **more):
    """Returns the settings of a Trainer that makes steps of SGD on the CPU and saves nothing."""
    usual = dict(optim="sgd", max_grad_norm=0.0, per_device_train_batch_size=2, logging_steps=1, save_strategy="no")
    usual.update(report_to=[], use_cpu=True, disable_tqdm=True, seed=1)
    return TrainingArguments(output_dir=str(folder), gradient_accumulation_steps=accumulation, **usual, **more)


def trainer_of(model, folder, accumulation, steps=1):
    settings = settings_of(folder, accumulation, max_steps=steps, learning_rate=1.0, lr_scheduler_type="constant")
    return Trainer(model=model, args=settings, train_dataset=rows(8))


@pytest.mark.parametrize("accumulation", (1, 3))
@pytest.mark.parametrize("scaled", (None, False) if hasattr(Trainer, "loss_is_scaled_for_ga") else (None,))
def test_trainer_gives_the_whole_coefficient(tmp_path, accumulation, scaled):
    """After one step of SGD the weights differ from weights trained without the loss by -lr times the gradient."""
    start, moved = tiny(), []
    by_hand(start, weight=100.0, seed=3).backward()
    for weight in (0.0, 100.0):
        trainer = trainer_of(tiny(), tmp_path, accumulation)
        trainer.loss_is_scaled_for_ga = scaled
        erc = couplet.hf.attach(trainer.model, weight=weight, seed=3)
        erc.join(trainer)
        trainer.train()
        moved.append(dict(trainer.model.named_parameters()))
    for name, p in start.named_parameters():
        if p.grad is not None and p.grad.abs().max() > 0:
            close(moved[0][name] - moved[1][name], p.grad, 2e-3, name)


def test_trainer_logs(tmp_path):
    model = tiny()
    trainer = trainer_of(model, tmp_path, 2, steps=2)
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    trainer.add_callback(Reporter())
    erc = couplet.hf.attach(model)
    erc.join(trainer, per_layer=True)
    trainer.train()
    names = {"erc", "erc_centred", "kappa_own", "kappa_other", "alpha_min", "maxvio", "dead", "margin"}
    for entry in (*seen[:2], *trainer.state.log_history[:2]):
        new = {name.split("/")[0] for name in entry} - {"loss", "grad_norm", "learning_rate", "epoch", "step"}
        assert {name for name in new if "_p" not in name} == names and "kappa_own/1" in entry, set(entry)
    assert erc.step == 1


# ---- parameters that other code replaces ----


def learns(model, erc, **settings):
    """Checks that the gradients of router and gates equal those of the loss computed by hand."""
    model.zero_grad(set_to_none=True)
    loss = erc.loss()
    loss.backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    assert sum(g is not None for g in got.values()) == sum(1 + len(gates) for _, gates in names_of(model))
    model.zero_grad(set_to_none=True)
    want = by_hand(model, **settings)
    want.backward()
    close(loss, want, 1e-6)
    same_gradients(model, got, 1e-5)


def test_attached_on_meta_and_filled_later():
    with torch.device("meta"):
        model = tiny()
    erc = couplet.hf.attach(model)
    for evaluate in (erc.loss, erc.figures):
        with pytest.raises(ValueError, match="mlp.gate.weight is on the device meta and has no numbers yet"):
            evaluate()
    model.to_empty(device="cpu")
    model.load_state_dict(tiny().state_dict())
    learns(model, erc)


def test_modules_replaced_and_tied():
    model = tiny()
    erc = couplet.hf.attach(model)
    learns(model, erc)
    model.model.layers[1].mlp = copy.deepcopy(model.model.layers[0].mlp)
    learns(model, erc, step=1)
    model.model.layers[1].mlp.gate.weight = model.model.layers[0].mlp.gate.weight
    loss = erc.loss()
    loss.backward()
    assert is_evaluated(loss) and erc.step == 2


def test_nothing_that_learns_is_warned_of_once():
    model = tiny().requires_grad_(False)
    model.lm_head.weight.requires_grad_()
    erc = couplet.hf.attach(model)
    with pytest.warns(UserWarning, match="nothing learns from the coupling loss: no router and no gate") as warned:
        for step in range(2):
            erc.next_step(step)
            assert not erc.loss().requires_grad
    assert [w.filename for w in warned] == [__file__]


def adapted(model, **settings):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, lora_dropout=0.0, **settings))


@pytest.mark.parametrize("before", (True, False))
def test_modules_that_an_adapter_trains_whole(before):
    model = tiny()
    erc = couplet.hf.attach(model) if before else None
    outer = adapted(model, target_modules=["q_proj"], modules_to_save=["mlp.gate"])
    erc = erc or couplet.hf.attach(outer)
    erc.loss().backward()
    trained = {name for name, p in outer.named_parameters() if p.grad is not None}
    assert trained == {f"base_model.model.model.layers.{l}.mlp.gate.modules_to_save.default.weight" for l in range(2)}


def test_adapters_elsewhere():
    outer = adapted(tiny(), target_modules=["q_proj"])
    with pytest.warns(UserWarning, match="nothing learns from the coupling loss"):
        assert couplet.hf.attach(outer).loss().item() > 0


# ---- figures ----


def test_figures_are_those_of_the_program(tmp_path):
    program = couplet.find_program()
    if not program:
        pytest.skip("there is no program couplet: pip install ./python/native")
    model = tiny()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight += layer.mlp.gate.weight[0].clone()  # raw and centred rows differ
    listed = set(_figures.ALL_NAMES) - {"proxy_route_top1", "proxy_route_topk"}  # figures that exist without noise
    erc = couplet.hf.attach(model)
    figures = {**erc.figures(per_layer=True), **erc.figures(per_layer=True, figures=_figures.EXPENSIVE)}
    model.save_pretrained(tmp_path / "model")
    subprocess.run(
        [program, "inspect", tmp_path / "model", "--alpha", "1", "--json", tmp_path / "figures.json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    report = json.loads((tmp_path / "figures.json").read_text())
    for layer in report["layers"]:
        of = lambda name: figures[f"{name}/{layer['layer']}"]
        pairs = {
            "erc_clean": layer["erc"]["1"],
            "alpha_min": layer["alpha_min"],
            "eps_mean": layer["eps"]["mean"],
            "eps_max": layer["eps"]["max"],
            "kappa_diagonal": layer["kappa"]["diag_mean"],
            "kappa_off_diagonal": layer["kappa"]["offdiag_mean"],
            "kappa_row_top1": layer["kappa"]["rows_own"],
            "kappa_column_top1": layer["kappa"]["columns_own"],
            "row_route_top1": layer["home"]["top1"],
            "row_route_topk": layer["home"]["topk"],
        }
        if "centred_m_diagonal" in layer.get("figures", {}):  # newer programs have the figures of centred rows
            pairs["erc_centred"] = layer["centred"]["erc"]["1"]
            pairs.update({name: value for name, value in layer["figures"].items() if name in listed})
            assert len(pairs) >= 40
        for name, want in pairs.items():
            assert of(name) == pytest.approx(want, rel=1e-4), name


def test_route_of_equal_rows_is_the_lower_expert():
    from couplet.figures._figures import _route

    R = torch.eye(4)[[0, 0, 2, 3]]
    assert _route(R, R, 2) == {"top1": 0.75, "topk": 1.0}


# ---- bad input ----


def test_no_experts():
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with pytest.raises(
        ValueError,
        match="no MoE layers: no tensor is a router's or an expert's. Layers that "
        "are not found by themselves can be given: couplet.attach",
    ):
        couplet.hf.attach(model)


def test_unknown_family():
    with pytest.raises(
        ValueError,
        match=r"InMemory: no MoE layers: no router and experts under a known name "
        r"\(layers.0.expert_bank looks like one; model_type odd\)",
    ):
        couplet.hf.attach(InMemory("odd", {"layers.0.expert_bank": (4, 3, 2)}))


def test_guessed_family_warns():
    model = InMemory(
        "odd",
        {
            "model.layers.0.mlp.gate.weight": (4, 6),
            **{f"model.layers.0.mlp.experts.{e}.gate_proj.weight": (5, 6) for e in range(4)},
        },
    )
    with pytest.warns(UserWarning, match="is taken for the router") as warned:
        erc = couplet.hf.attach(model)
    assert erc.layers[0].n == 4 and len(erc.layers[0].names) == 1 + 4
    assert [w.filename for w in warned] == [__file__]


def test_wrong_settings():
    """Settings are checked as couplet.attach checks them."""
    with pytest.raises(ValueError, match="reduction is 'max', must be mean or sum"):
        couplet.hf.attach(tiny(), reduction="max")
    with pytest.raises(TypeError, match="model is a str, must be a torch.nn.Module"):
        couplet.hf.attach("gpt2")


def test_what_it_says_of_itself():
    assert repr(couplet.hf.attach(tiny(), weight=0.5)) == (
        "Erc(2 layers of 8 experts, weight=0.5, alpha=1, reduction='mean', noise='bounded', step=0, "
        f"backend={couplet.backend().split(':')[0]})"
    )


@pytest.mark.parametrize("alpha, why", ((1.5, "alpha 1.5 is above 1"), (0.05, "alpha 0.05 is below 0.1")))
def test_alpha_is_warned_of_once(alpha, why):
    model = tiny()
    with pytest.warns(UserWarning, match=why) as warned:
        couplet.hf.attach(model, alpha=alpha).loss()
    assert [w.filename for w in warned] == [__file__]


def test_the_old_name_of_reduction():
    model = tiny()
    with pytest.warns(DeprecationWarning, match="reduce is now called reduction") as warned:
        erc = couplet.hf.attach(model, reduce="sum", seed=4)
    assert [w.filename for w in warned] == [__file__]
    close(erc.loss(), by_hand(model, "sum", seed=4), 1e-6)
    with pytest.raises(TypeError, match="reduction 'mean' and its old name reduce 'sum' are both given"):
        couplet.hf.attach(model, reduction="mean", reduce="sum")


class Quantised:
    """The part of a config that names the quantisation."""

    def to_dict(self):
        return {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.mark.parametrize("where", ("experts", "attention", "nowhere"))
def test_quantised_models(where):
    """A parameter in memory has its own dtype. Experts of a quantised model may be used if they are not quantised."""
    model = tiny()
    model.config.quantization_config = Quantised()
    for name, module in model.named_modules():
        names = [key for key, p in module.named_parameters(recurse=False) if p.dim() > 1]
        if where == "experts" and "experts" in name or where == "attention" and "self_attn" in name:
            for key in names:
                setattr(module, key, torch.nn.Parameter(torch.zeros(64, 1, dtype=torch.uint8), requires_grad=False))
    if where == "experts":
        with pytest.raises(ValueError, match="is torch.uint8. Quantised routers and experts are not supported: load"):
            couplet.hf.attach(model)
    else:
        assert couplet.hf.attach(model).loss() > 0
