"""Compares erc.figures() with the definitions written out. test_hf.py compares it with the program."""

import re

import couplet
import pytest
import torch
from conftest import ROOT
from couplet.figures import _figures

pytest.importorskip("transformers")
from test_hf import gates_of, tiny  # noqa: E402


def different_layers():
    """Returns a model whose second layer is coupled and whose first is not, so that figures differ."""
    model = tiny()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_()
            for gate, made in zip(gates_of(layer.mlp), torch.randn(8, 48, 32)):
                gate.copy_(made[:24])
        own = torch.nn.functional.normalize(model.model.layers[1].mlp.gate.weight, dim=1)
        for gate, row in zip(gates_of(model.model.layers[1].mlp), own):
            gate += row
        model.model.layers[1].mlp.gate.weight[3] *= 0.3
    return model


def matrices(model, number):
    layer = model.model.layers[number].mlp
    R, W = layer.gate.weight.detach().double(), torch.stack(gates_of(layer)).detach().double()
    return R, torch.linalg.vector_norm(torch.einsum("id,jDd->ijD", R, W), dim=-1)


def shares(M, alpha):
    """Returns the shares of pairs i != j with an active hinge, against the row's diagonal and against the column's."""
    off, own = ~torch.eye(len(M), dtype=torch.bool), alpha * M.diagonal()
    return [(M >= own[:, None])[off].double().mean().item(), (M >= own[None, :])[off].double().mean().item()]


def test_hinges():
    model = different_layers()
    f = couplet.hf.attach(model, alpha=0.9).figures(per_layer=True)
    for number in range(2):
        rows, columns = shares(matrices(model, number)[1], 0.9)
        assert 0 < rows < 1 and 0 < columns < 1 and abs(rows - columns) > 0.01
        assert [f[f"active_rows/{number}"], f[f"active_columns/{number}"]] == pytest.approx([rows, columns])


def test_over_layers():
    """Figures over all layers are extremes for some names, and means for the others."""
    f = couplet.hf.attach(different_layers()).figures(per_layer=True)
    for name, over in {
        "alpha_min": max,
        "eps_max": max,
        "eps_min": min,
        "eps_mean": lambda x: sum(x) / 2,
        "kappa_diagonal": lambda x: sum(x) / 2,
    }.items():
        each = [f[f"{name}/0"], f[f"{name}/1"]]
        assert abs(each[0] - each[1]) > 1e-3
        assert f[name] == pytest.approx(over(each)), name


def test_home_is_of_proxies_with_this_steps_noise():
    model = different_layers()
    erc = couplet.hf.attach(model, seed=6)
    erc.next_step(11)
    f = erc.figures(per_layer=True)
    homes = []
    for number in range(2):
        R, _ = matrices(model, number)
        delta = couplet.ops._noise.bounded(R, 6, 11, number, 0)
        home = ((R * delta) @ R.T).argmax(1) == torch.arange(8)
        homes.append(home.double().mean().item())
        assert f[f"proxy_route_top1/{number}"] == pytest.approx(homes[-1])
    assert min(homes) < min(f["row_route_top1/0"], f["row_route_top1/1"])  # otherwise the test shows nothing


@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_erc_is_reduced_and_not_weighted(reduction):
    model = different_layers()
    erc = couplet.hf.attach(model, weight=0.25, reduction=reduction, noise="none", accumulation=3)
    loss = erc.loss()
    f = erc.figures(per_layer=True)
    over = sum(f[f"erc_clean/{number}"] for number in range(2)) / (2 if reduction == "mean" else 1)
    assert f["erc"] == pytest.approx(over, rel=1e-5) and f["erc_clean"] == pytest.approx(over, rel=1e-5)
    assert loss.item() == pytest.approx(0.25 * 3 * over, rel=1e-5)


def test_autocast_changes_nothing():
    erc = couplet.hf.attach(different_layers())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = erc.figures(per_layer=True)
    assert inside == erc.figures(per_layer=True)


def names_of_the_program():
    """Returns new name -> old name of src/tensor/coupling_figures.def, and the names that centred rows have too."""
    rows = re.findall(
        r"^CPL_FIGURE\((\w+), (\w+), \w+, \d, (\d)\)", (ROOT / "src/tensor/coupling_figures.def").read_text(), re.M
    )
    assert len(rows) > 20
    return {name: old for name, old, _ in rows}, {name for name, _, centred in rows if centred == "1"}


def test_names_are_those_of_the_program():
    listed, centred = names_of_the_program()
    given = {name.split("/")[0] for name in couplet.hf.attach(different_layers()).figures(per_layer=True)}
    theirs = {*listed, *(f"centred_{name}" for name in centred)}
    assert given - theirs == {"erc_clean", "erc_centred"}  # losses, which have their own members
    assert theirs - given <= set(_figures.EXPENSIVE)
