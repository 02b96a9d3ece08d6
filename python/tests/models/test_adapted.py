"""Routers and gates with adapters (PEFT's LoRA and DoRA) or parametrizations. The loss uses the weight that the model
computes with, and gradients reach the parameters from which this weight is computed."""

import copy

import couplet
import pytest
import torch
from conftest import close, same_gradients
from test_attach import Model, d, n
from torch import nn

peft = pytest.importorskip("peft")


def filled(model):
    """Fills every adapter's matrices with random numbers, so that no gradient is zero."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                p.normal_(0, 0.3)
    return model


# ---- models of Transformers: target_parameters ----


def olmoe(**settings):
    pytest.importorskip("transformers")
    from test_hf import adapted, tiny

    return filled(adapted(tiny(), lora_alpha=3, **settings))


EXPERTS = dict(
    target_modules=["q_proj"],
    target_parameters=["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
)


def wrappers(model):
    """Returns (ParamWrapper, name of its parameter in the merged model) of routers and gates."""
    found = []
    for name, module in model.named_modules():
        if getattr(module, "parameter_name", None) in ("weight", "gate_up_proj"):
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
            found.append((module, f"{plain}.{module.parameter_name}"))
    from test_hf import FUSED

    assert len(found) == (4 if FUSED else 2)  # with a module for each expert, gates have other names
    return found


def merged_loss(model, **settings):
    """Returns the loss of a merged copy, and the gradients of its weights by name."""
    merged = copy.deepcopy(model).merge_and_unload().train()
    for p in merged.parameters():
        p.requires_grad_()
    loss = couplet.hf.attach(merged, seed=3, **settings).loss()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in merged.named_parameters()}


@pytest.mark.parametrize("before", (True, False))
@pytest.mark.parametrize("train_base", (True, False))
def test_target_parameters(before, train_base):
    if before:  # attach, then add adapters
        from test_hf import adapted, tiny

        base = tiny()
        erc = couplet.hf.attach(base, seed=3)
        model = filled(adapted(base, lora_alpha=3, **EXPERTS))
    else:
        model = olmoe(**EXPERTS)
        erc = couplet.hf.attach(model, seed=3)
    for module, _ in wrappers(model):
        module.get_param().requires_grad_(train_base)
    want, of_merged = merged_loss(model)
    loss = erc.loss()
    loss.backward()
    close(loss, want, 1e-6)
    for module, name in wrappers(model):
        A, B = module.lora_A["default"].weight, module.lora_B["default"].weight
        wanted = torch.autograd.grad(module.get_delta_weight("default"), (A, B), of_merged[name])
        assert all(w.abs().max() > 0 for w in wanted)
        close(A.grad, wanted[0], 1e-5)
        close(B.grad, wanted[1], 1e-5)
        if train_base:
            close(module.get_param().grad, of_merged[name], 1e-5)
        else:
            assert module.get_param().grad is None
    trained = [name for name, p in model.named_parameters() if p.grad is not None]
    assert not any("q_proj" in name or "down_proj" in name for name in trained)


def test_once_per_step_with_adapters():
    model = olmoe(**EXPERTS)
    erc = couplet.hf.attach(model, seed=3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(2):
        seen, loss = erc.loss(), erc.loss()
        assert seen.item() == loss.item() and erc.step == step
        loss.backward()
        assert erc.loss().grad_fn is None and erc.backward() == 0
        optimizer.step()
        optimizer.zero_grad()


def test_merged_and_disabled():
    model = olmoe(**EXPERTS)
    erc = couplet.hf.attach(model, seed=3)

    def value():
        erc.next_step(0)
        with torch.no_grad():
            return erc.loss().item()

    with_adapters, without = merged_loss(model)[0].item(), None
    assert value() == pytest.approx(with_adapters)
    with model.disable_adapter():
        from test_hf import tiny

        without = couplet.hf.attach(tiny(), seed=3).loss().item()
        assert value() == pytest.approx(without)
    assert abs(without - with_adapters) > 1e-3
    model.merge_adapter()
    assert value() == pytest.approx(with_adapters, rel=1e-5)
    with model.disable_adapter():  # the next forward pass unmerges the weights
        assert value() == pytest.approx(without, rel=1e-4)
    model.unmerge_adapter()
    assert value() == pytest.approx(with_adapters, rel=1e-4)


def test_several_active_adapters():
    model = olmoe(**EXPERTS)
    model.add_adapter("other", peft.LoraConfig(r=3, lora_alpha=2, **EXPERTS))
    filled(model)
    erc = couplet.hf.attach(model, seed=3)
    seen = set()
    for active in (["default"], ["other"], ["default", "other"]):
        model.base_model.set_adapter(active)
        erc.next_step(0)
        model.zero_grad()
        loss = erc.loss()
        loss.backward()
        merged = copy.deepcopy(model)
        merged = merged.base_model.merge_and_unload(adapter_names=active).train()
        close(loss, couplet.hf.attach(merged.requires_grad_(), seed=3).loss().detach(), 1e-5)
        trained = {name.split(".")[-2] for name, p in model.named_parameters() if p.grad is not None}
        assert trained == set(active)
        seen.add(loss.item())
    assert len(seen) == 3


def test_figures_are_those_of_the_merged_model():
    model = olmoe(**EXPERTS)
    figures = couplet.hf.attach(model).figures()
    merged = couplet.hf.attach(copy.deepcopy(model).merge_and_unload()).figures()
    assert figures == pytest.approx(merged, rel=1e-4)
    assert abs(figures["kappa_diagonal"] - couplet.hf.attach(model.unload()).figures()["kappa_diagonal"]) > 1e-4


def test_router_statistics_of_an_adapted_router():
    model = olmoe(**EXPERTS)
    stats = couplet.hf.attach(model).router_stats()
    model(input_ids=torch.randint(2, 96, (3, 7)))
    assert [load.sum().item() for load in stats.loads().values()] == [42, 42]


def test_adapted_weights_in_bf16():
    """The merged weight has the dtype of the base weight, as after PEFT's own merge."""
    model = olmoe(**EXPERTS).bfloat16()
    want, _ = merged_loss(model)
    loss = couplet.hf.attach(model, seed=3).loss()
    loss.backward()
    close(loss, want, 1e-5)
    module, _ = wrappers(model)[0]
    assert module.lora_A["default"].weight.grad.dtype == torch.bfloat16


# ---- any model: target_modules ----


class Linears(nn.Module):
    """A model with routers and experts as nn.Linear."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict(
                    dict(
                        router=nn.Linear(d, n, bias=False),
                        experts=nn.ModuleList([nn.Linear(d, 8, bias=False) for _ in range(n)]),
                    )
                )
                for _ in range(2)
            ]
        )


NAMES = [(f"layers.{i}.router.weight", [f"layers.{i}.experts.{e}.weight" for e in range(n)]) for i in range(2)]


def linears(kind=None, **settings):
    model = Linears()
    config = (kind or peft.LoraConfig)(r=2, target_modules=r".*(router|experts\.\d)", **settings)
    return filled(peft.inject_adapter_in_model(config, model)).train()


def merged_linears(model):
    """Returns a plain model with the merged weights."""
    plain = Linears()
    with torch.no_grad():
        for name, module in copy.deepcopy(model).named_modules():
            if hasattr(module, "merge"):
                module.merge(safe_merge=True)
                plain.get_submodule(name).weight.copy_(module.get_base_layer().weight)
    return plain


@pytest.mark.parametrize("given", ("names", "parameters"))
def test_target_modules(given):
    model = linears(lora_alpha=3, use_rslora=True)
    plain = merged_linears(model)
    layers = NAMES
    if given == "parameters":  # `weight` of an adapted layer is the weight of its base layer
        layers = [(layer.router.weight, [e.weight for e in layer.experts]) for layer in model.layers]
    loss = couplet.attach(model, layers, seed=3).loss()
    loss.backward()
    want = couplet.attach(plain, NAMES, seed=3).loss()
    want.backward()
    close(loss, want.detach(), 1e-6)
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            A, B, s = module.lora_A["default"].weight, module.lora_B["default"].weight, module.scaling["default"]
            dW = plain.get_submodule(name).weight.grad
            close(B.grad, s * dW @ A.detach().T, 1e-5)
            close(A.grad, s * B.detach().T @ dW, 1e-5)
            assert module.base_layer.weight.grad is None


def test_dora():
    """Value and gradients equal those of PEFT's own forward pass, whose output is linear in its input."""
    model = linears(use_dora=True)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "magnitude" in name:
                p.mul_(torch.rand_like(p) + 0.5)
    plain = merged_linears(model)
    loss = couplet.attach(model, NAMES, seed=3).loss()
    loss.backward()
    got = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    want = couplet.attach(plain, NAMES, seed=3).loss()
    want.backward()
    close(loss, want.detach(), 1e-5)
    model.zero_grad(set_to_none=True)
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            module(torch.eye(d)).backward(plain.get_submodule(name).weight.grad.T)
    assert sum("magnitude" in name and g is not None for name, g in got.items()) == 2 * (n + 1)
    same_gradients(model, got, 1e-4)


def test_adapters_that_are_not_supported():
    model = Linears()
    model = peft.inject_adapter_in_model(peft.IA3Config(target_modules=["router"], feedforward_modules=[]), model)
    with pytest.raises(ValueError, match="weight of a Linear is adapted by a peft.*; of adapters LoRA and DoRA are"):
        couplet.attach(model, NAMES).loss()


# ---- parametrizations of torch ----


class Doubled(nn.Module):
    def forward(self, W):
        return 2 * W


@pytest.mark.parametrize("before", (True, False))
def test_a_parametrization(before):
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    names = [(f"layers.{i}.router.weight", f"layers.{i}.w1") for i in range(2)]
    erc = couplet.attach(model, names, seed=3) if before else None
    for layer in model.layers:
        nn.utils.parametrize.register_parametrization(layer.router, "weight", Doubled())
        nn.utils.parametrize.register_parametrization(layer, "w1", Doubled())
    with torch.no_grad():
        for p in plain.parameters():
            p.mul_(2)
    loss = (erc or couplet.attach(model, names, seed=3)).loss()
    loss.backward()
    want = couplet.attach(plain, names, seed=3).loss()
    want.backward()
    close(loss, want.detach(), 1e-6)
    for layer, other in zip(model.layers, plain.layers):
        close(layer.router.parametrizations.weight.original.grad, 2 * other.router.weight.grad, 1e-6)
        close(layer.parametrizations.w1.original.grad, 2 * other.w1.grad, 1e-6)


def test_a_parametrization_of_transformers():
    """weight_norm keeps two tensors of other shapes in place of the weight."""
    pytest.importorskip("transformers")
    from test_hf import tiny

    model = tiny()
    want = couplet.hf.attach(tiny(), seed=3).loss()
    for layer in model.model.layers:
        nn.utils.parametrizations.weight_norm(layer.mlp.gate)
    loss = couplet.hf.attach(model, seed=3).loss()
    loss.backward()
    close(loss, want.detach(), 1e-5)
    originals = model.model.layers[0].mlp.gate.parametrizations.weight
    assert originals.original0.grad.any() and originals.original1.grad.any()
