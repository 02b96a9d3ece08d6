"""Models of Transformers with latent experts, and the program on their checkpoints: M of `couplet inspect` is what the
model's own expert code makes of the router rows."""

import json
import subprocess

import couplet
import pytest
import torch
from conftest import model_of

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
