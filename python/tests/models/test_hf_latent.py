"""Models of Transformers with latent experts: M of `couplet inspect`, and of the loss of `couplet.hf.attach`, is what
the model's own expert code makes of the router rows."""

import json
import subprocess

import couplet
import pytest
import torch
from conftest import InMemory, close, model_of, same_gradients
from couplet.figures import _figures

pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

needs_program = pytest.mark.skipif(couplet.find_program() is None, reason="the program couplet is not on PATH")

NEMOTRON = dict(
    vocab_size=96,
    hidden_size=32,
    layers_block_type=["moe", "moe"],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    mamba_num_heads=4,
    mamba_head_dim=16,
    ssm_state_size=8,
    n_groups=1,
    intermediate_size=24,
    moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=24,
    moe_latent_size=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
)
MUSE = dict(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    moe_hidden_size=16,
    moe_intermediate_size=24,
    num_local_experts=8,
    num_experts_per_tok=2,
    rms_norm_eps=1e-3,
)
MODELS = {
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig", NEMOTRON),
    "muse_spark": ("MuseSparkTextModel", "MuseSparkTextConfig", MUSE),
}


def made(name, **settings):
    """Returns a model with random numbers, which Transformers before 5.24 may not have."""
    transformers = pytest.importorskip("transformers")
    kind, config, more = MODELS[name]
    if not hasattr(transformers, kind):
        pytest.skip(f"this Transformers has no {kind}")
    torch.manual_seed(0)
    model = model_of(kind, config, {**more, **settings})
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0.1, 0.3)
    return model


def blocks(model):
    """Returns the layers' modules of router and experts."""
    return [module for module in model.modules() if hasattr(module, "experts") and hasattr(module, "gate")]


def latent(block, rows):
    """Returns what the block's own code gives to its experts for these rows."""
    if hasattr(block, "fc1_latent_proj"):
        return block.fc1_latent_proj(rows)
    return block.pre_expert_norm(block.pre_expert_proj(rows))


def responses(block, rows):
    """Returns M [n, n] from the expert module itself: the norms of what enters its activation function. Expert e gets
    all rows."""
    entered = []
    hook = block.experts.act_fn.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    inputs = latent(block, rows)
    for e in range(len(block.gate.weight)):
        block.experts(inputs, torch.full((len(rows), 1), e), torch.ones(len(rows), 1))
    hook.remove()
    return torch.stack([x.double().norm(dim=1) for x in entered], 1)


def gates(block):
    """Returns W_g [n, D, l]."""
    return block.experts.gate_up_proj.chunk(2, 1)[0] if hasattr(block, "pre_expert_proj") else block.experts.up_proj


def in_front(block):
    """Returns the rows of W_g W_l [n, D, d], with the factors of a norm."""
    if hasattr(block, "fc1_latent_proj"):
        return gates(block).double() @ block.fc1_latent_proj.weight.double()
    factors = 1 + block.pre_expert_norm.weight.double()
    return gates(block).double() * factors @ block.pre_expert_proj.weight.double()


def silhouette_of(rows):
    """Returns the mean silhouette of rows [n, D, d] by cosine distance, the experts being the clusters."""
    n, D, _ = rows.shape
    u = torch.nn.functional.normalize(rows, dim=-1)
    cosines = torch.einsum("eck,fk->ecf", u, u.mean(1))
    own = torch.eye(n, dtype=torch.bool)[:, None]
    a = 1 - (cosines.masked_select(own).view(n, D) * D - 1) / (D - 1)
    b = 1 - cosines.masked_fill(own, -2).amax(-1)
    return ((b - a) / torch.maximum(a, b)).mean().item()


def erc_of(M):
    """Equation 3 at alpha 1."""
    hinges = torch.relu(M - M.diagonal()[:, None]) + torch.relu(M - M.diagonal()[None, :])
    return hinges.sum().item() / len(M) ** 2


def inspected(folder, *flags):
    report = folder.with_suffix(".json")
    command = [couplet.find_program(), "inspect", folder, "--alpha", "1", "--json", report, "--overwrite", *flags]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(report.read_text())


@needs_program
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_own_expert_code(name, tmp_path):
    model = made(name)
    model.save_pretrained(tmp_path / "model")
    layers = inspected(tmp_path / "model", "--silhouette", "--lambda")["layers"]
    assert len(layers) == 2
    for layer, block in zip(layers, blocks(model)):
        R = block.gate.weight
        M, centred = responses(block, R), responses(block, R - R.mean(0))
        V = latent(block, R).double()
        W = gates(block).double()
        kappa = M / V.norm(dim=1)[:, None] / W.flatten(1).norm(dim=1)
        answered = M.diagonal() / V.norm(dim=1) / torch.linalg.matrix_norm(W, 2)
        f = layer["figures"]
        assert [layer["n"], layer["d"], layer["l"], layer["D"]] == [8, 32, 16, 24]
        assert layer["projection"].endswith(
            "fc1_latent_proj.weight" if "fc1" in str(block) else "pre_expert_proj.weight"
        )
        assert layer["erc"]["1"] == pytest.approx(erc_of(M), rel=1e-5)
        assert layer["centred"]["erc"]["1"] == pytest.approx(erc_of(centred), rel=1e-5)
        assert f["m_diagonal"] == pytest.approx(M.diagonal().mean().item(), rel=1e-5)
        assert f["centred_m_diagonal"] == pytest.approx(centred.diagonal().mean().item(), rel=1e-5)
        assert f["kappa_diagonal"] == pytest.approx(kappa.diagonal().mean().item(), rel=1e-5)
        assert layer["kappa"]["diag_mean"] == pytest.approx(kappa.diagonal().mean().item(), rel=1e-5)
        assert f["router_lambda"] == pytest.approx(answered.mean().item(), rel=1e-5)
        assert f["router_norm_mean"] == pytest.approx(R.double().norm(dim=1).mean().item(), rel=1e-5)
        assert layer["silhouette"] == pytest.approx(silhouette_of(in_front(block)), abs=1e-5)


@needs_program
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_noise_of_the_router_rows(name, tmp_path):
    """The noise and its bound are those of R in d, in front of the projection."""
    model = made(name)
    model.save_pretrained(tmp_path / "model")
    for number, (layer, block) in enumerate(
        zip(inspected(tmp_path / "model", "--noise", "3")["layers"], blocks(model), strict=True)
    ):
        R = block.gate.weight
        M = responses(block, R * couplet.ops._noise.bounded(R, 3, 0, number, 0))
        assert abs(erc_of(M) - erc_of(responses(block, R))) > 1e-4
        assert layer["erc"]["1"] == pytest.approx(erc_of(M), rel=1e-5)


@needs_program
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
@torch.no_grad()
def test_sample(name, tmp_path):
    """A sample's estimates are near the exact means, and exact if all rows are read."""
    model = made(name, moe_intermediate_size=256)
    model.save_pretrained(tmp_path / "model")
    exact = inspected(tmp_path / "model")["layers"][0]
    some, every = (inspected(tmp_path / "model", "--sample", share)["layers"][0]["sample"] for share in ("25%", "95%"))
    assert some["rows"] == 64
    for rows, kappa in (("estimates", exact["kappa"]), ("centred", None)):
        found, whole = (one[rows] if kappa else one[rows]["estimates"] for one in (some, every))
        for key, name in (("kappa_diagonal", "diag_mean"), ("kappa_off_diagonal", "offdiag_mean")):
            want = kappa[name] if kappa else exact["figures"][f"centred_{key}"]
            assert whole[key]["estimate"] == pytest.approx(want, rel=1e-6)
            assert 0 < abs(found[key]["estimate"] - want) < 5 * found[key]["standard_error"]


# ---- couplet.hf.attach ----


def hinges(M, alpha):
    """Returns equation 3 at alpha, with gradients."""
    off, own = 1 - torch.eye(len(M), dtype=M.dtype), alpha * M.diagonal()
    return ((torch.relu(M - own[:, None]) + torch.relu(M - own[None, :])) * off).sum() / len(M) ** 2


@pytest.mark.parametrize("noise", ("bounded", "none"))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_of_the_own_modules(name, noise):
    model = made(name)
    erc = couplet.hf.attach(model, weight=0.5, alpha=0.6, seed=4, noise=noise)
    assert [layer.down is None for layer in erc.layers] == [False, False]
    erc.next_step(3)
    erc.backward()
    got = {parameter: p.grad for parameter, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    losses = []
    for number, block in enumerate(blocks(model)):
        R = block.gate.weight
        delta = couplet.ops._noise.bounded(R.detach(), 4, 3, number, 0) if noise == "bounded" else 1
        answers = torch.einsum("il,jDl->ijD", latent(block, R * delta), gates(block))
        losses.append(hinges(torch.linalg.vector_norm(answers, dim=-1), 0.6))
    want = 0.5 * sum(losses) / 2
    want.backward()
    close(erc.value * 0.5, want, 1e-5)
    same_gradients(model, got, 1e-4)


@needs_program
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_figures_are_those_of_the_program(name, tmp_path):
    model = made(name)
    listed = set(_figures.ALL_NAMES) - {"proxy_route_top1", "proxy_route_topk"}  # figures that exist without noise
    erc = couplet.hf.attach(model)
    figures = {**erc.figures(per_layer=True), **erc.figures(per_layer=True, figures=_figures.EXPENSIVE)}
    model.save_pretrained(tmp_path / "model")
    for layer in inspected(tmp_path / "model", "--lambda")["layers"]:
        pairs = {key: value for key, value in layer["figures"].items() if key in listed}
        pairs.update(erc_clean=layer["erc"]["1"], erc_centred=layer["centred"]["erc"]["1"])
        assert len(pairs) >= 40
        for key, value in pairs.items():
            assert figures[f"{key}/{layer['layer']}"] == pytest.approx(value, rel=1e-4), key


# ---- names from public code ----

NAMED = {
    "kimi_k3": dict(
        router="model.layers.0.block_sparse_moe.gate.weight",
        down="model.layers.0.block_sparse_moe.routed_expert_down_proj.weight",
        norm="model.layers.0.block_sparse_moe.routed_expert_norm.weight",
        gates=[f"model.layers.0.block_sparse_moe.experts.{e}.w1.weight" for e in range(6)],
    ),
    "shensi": dict(
        router="model.layers.0.mlp.gate.weight",
        down="model.layers.0.mlp.routed_expert_down_proj.weight",
        norm="model.layers.0.mlp.routed_expert_norm.weight",
        gates=["model.layers.0.mlp.experts.gate_up_proj"],
    ),
    "an_unknown_one": dict(  # found by its shape
        router="model.layers.0.mlp.gate.weight",
        down="model.layers.0.mlp.squeeze.weight",
        norm="model.layers.0.mlp.output_norm.weight",
        gates=[f"model.layers.0.mlp.experts.{e}.gate_proj.weight" for e in range(6)],
    ),
}


def named(model_type):
    """Returns a model of random numbers with these names, its router rows, W_l and gates [6, 5, 4]. The norm is that of
    the experts' combined output."""
    names = NAMED[model_type]
    gate = (6, 10, 4) if len(names["gates"]) == 1 else (5, 4)
    shapes = {
        names["router"]: (6, 8),
        names["down"]: (4, 8),
        names["norm"]: (4,),
        **dict.fromkeys(names["gates"], gate),
    }
    model = InMemory(model_type, shapes, num_experts_per_tok=2)
    p = dict(model.named_parameters())
    each = [p[gate] for gate in names["gates"]]
    W = each[0][:, :5] if len(each) == 1 else torch.stack(each)
    return model, p[names["router"]], p[names["down"]], W


@pytest.mark.parametrize("model_type", NAMED)
@pytest.mark.filterwarnings("ignore:.*is not known")
def test_loss_of_names(model_type):
    model, R, P, W = named(model_type)
    if model_type == "an_unknown_one":
        with pytest.warns(UserWarning, match=r"mlp\.squeeze\.weight is taken for a projection .* by its shape"):
            erc = couplet.hf.attach(model, noise="none")
    else:
        erc = couplet.hf.attach(model, noise="none")
    erc.backward()
    got = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    want = hinges(torch.linalg.vector_norm(torch.einsum("il,jDl->ijD", R @ P.mT, W), dim=-1), 1)
    want.backward()
    close(erc.value, want, 1e-5)
    same_gradients(model, got, 1e-4)


@needs_program
@pytest.mark.parametrize("model_type", NAMED)
@torch.no_grad()
def test_report_of_names(model_type, tmp_path):
    model, R, P, W = named(model_type)
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({name: p.data for name, p in model.named_parameters()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config))
    layer = inspected(folder)["layers"][0]
    M = torch.linalg.vector_norm(torch.einsum("il,jDl->ijD", (R @ P.mT).double(), W.double()), dim=-1)
    assert layer["erc"]["1"] == pytest.approx(erc_of(M), rel=1e-5)
    assert layer["projection"] == NAMED[model_type]["down"] and "latent_norm" not in layer
    assert layer.get("projection_by_shape", False) == (model_type == "an_unknown_one")
    assert ("found by its shape" in layer["note"]) == (model_type == "an_unknown_one")
