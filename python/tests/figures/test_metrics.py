"""Tests erc.metrics(), the choice of figures, a Trainer's log, couplet.noise, and a weight that follows a schedule."""

import couplet
import pytest
import torch
import torch.utils._python_dispatch
from conftest import close
from couplet.figures import _figures
from couplet.ops import _noise
from test_attach import Model, by_hand, d, n, pairs_of


class Names(torch.utils._python_dispatch.TorchDispatchMode):
    """Collects the names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.__name__.split(".")[0])
        return function(*args, **(kwargs or {}))


def attached(**more):
    model = Model()
    return model, couplet.attach(model, pairs_of(model), seed=2, **more)


def steps(model, erc, count):
    """Runs `count` optimizer steps with three micro-batches each, and returns their losses before the weight."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(count):
        losses.append(erc.loss())
        for micro_batch in (losses[-1], erc.loss(), erc.loss()):
            micro_batch.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [loss.item() / erc.weight for loss in losses]


# ---- metrics ----


@pytest.mark.parametrize("reduction", ("mean", "sum"))
def test_metrics_are_means_since_the_last_call(reduction):
    model, erc = attached(weight=0.25, reduction=reduction)
    assert erc.metrics() == {}
    for count in (3, 2):
        losses = steps(model, erc, count)
        assert len(set(losses)) == count
        found = erc.metrics(reset=False)
        assert found == erc.metrics() and {"erc", "erc_last"} == {name for name in found if "proxy" not in name}
        assert (found["erc"], found["erc_last"]) == pytest.approx((sum(losses) / count, losses[-1]), rel=1e-5)
    m = erc.metrics(per_layer=True)  # without a step since, the last values are returned
    assert m["erc"] == m["erc_last"] == pytest.approx(losses[-1])
    over = m["erc/0"] + m["erc/1"]
    assert m["erc"] == pytest.approx(over / 2 if reduction == "mean" else over)


@pytest.mark.parametrize("how", ("loss", "backward"))
def test_metrics_of_matrices(how):
    """Values equal those computed by hand from the last M. No product is computed."""
    model, erc = attached(alpha=0.9)
    getattr(erc, how)()
    with Names() as made:
        found = erc.metrics(per_layer=True)
    assert not {"mm", "bmm", "addmm"} & made.names
    each = []
    for i, layer in enumerate(model.layers):
        R, W = layer.router.weight.detach(), layer.w1.detach()
        M = torch.linalg.vector_norm(torch.einsum("id,jDd->ijD", R * couplet.noise(R, seed=2, layer=i), W), dim=-1)
        own, others = M.diagonal(), ~torch.eye(n, dtype=torch.bool)
        rows, columns = M >= 0.9 * own[:, None], M >= 0.9 * own
        least = torch.maximum(M / own[:, None], M / own)[others].max()
        each.append([rows[others].double().mean(), columns[others].double().mean(), least])
        close(torch.tensor(found[f"proxy_alpha_min/{i}"]), least, 1e-5)
    rows, columns, least = torch.tensor(each).T
    assert found["proxy_active_rows"] == pytest.approx(rows.mean().item())
    assert found["proxy_active_columns"] == pytest.approx(columns.mean().item())
    assert found["proxy_alpha_min"] == pytest.approx(least.max().item(), rel=1e-5)


def test_values_are_those_of_layers():
    model, erc = attached()
    erc.loss()
    for i, layer in enumerate(model.layers):
        close(erc.values[i], couplet.erc_loss(layer.router.weight, layer.w1, seed=2, layer=i).detach(), 1e-6)
        assert erc.values[i].shape == () and not erc.values[i].requires_grad


def test_what_is_only_looked_at_is_no_step():
    model, erc = attached()
    losses = steps(model, erc, 1)
    with torch.no_grad():
        erc.loss()
        assert erc.metrics()["erc"] == pytest.approx(losses[0])


# ---- the choice of figures ----


def test_chosen_figures_are_those_of_all():
    _, erc = attached()
    erc.loss()
    everything = erc.figures(per_layer=True)
    everything.update(erc.figures(per_layer=True, figures=_figures.EXPENSIVE))
    for name in (*_figures.ALL_NAMES, "erc"):
        if name.endswith("topk") and name not in everything:  # K is unknown here
            continue
        one = erc.figures(per_layer=True, figures=(name,))
        assert one == {key: value for key, value in everything.items() if key.split("/")[0] == name} and one


@pytest.mark.parametrize(
    "chosen, gates, noise, nearest",
    (
        (("erc",), 0, 0, 0),
        (("eps_mean", "eps_min"), 0, 0, 1),
        (("row_route_top1",), 0, 0, 0),
        (("proxy_route_top1",), 0, 1, 1),
        (("alpha_min",), 1, 0, 0),
        (("kappa_diagonal", "erc_clean"), 1, 0, 0),
        (("centred_eps_max",), 0, 0, 1),
        (("router_cos", "router_condition", "centred_router_norm_std"), 0, 0, 0),
        (("noise_bound_share", "eps_mean"), 0, 0, 1),
        (("gate_norm_mean", "centred_alpha_min"), 1, 0, 0),
    ),
)
def test_only_what_is_needed_is_computed(chosen, gates, noise, nearest, monkeypatch):
    _, erc = attached()
    erc.loss()
    calls = {"gates": 0, "bounded": 0, "nearest": 0}

    def counted(module, name, key):
        inner = getattr(module, name)

        def call(*arguments, **more):
            calls[key] += 1
            return inner(*arguments, **more)

        monkeypatch.setattr(module, name, call)

    counted(type(erc.layers[0]), "gates", "gates")
    counted(_noise, "bounded", "bounded")
    counted(_noise, "nearest", "nearest")
    erc.figures(figures=chosen)
    assert calls == {"gates": 2 * gates, "bounded": 2 * noise, "nearest": 2 * nearest}


def test_names_are_checked():
    _, erc = attached()
    with pytest.raises(ValueError, match="figures has 'kapa', must be of erc, erc_clean, .*, centred_router_lambda$"):
        erc.figures(figures=("erc", "kapa"))
    for name, other in (
        ("erc_last", "metrics()"),
        ("proxy_alpha_min", "metrics()"),
        ("router_maxvio", "router_stats().figures()"),
    ):
        with pytest.raises(ValueError) as error:
            erc.figures(figures=("erc", name))
        said = str(error.value)
        assert said.startswith(f"couplet: figures has {name!r}, must be of erc, erc_clean, ")
        assert said.endswith(f"; erc.{other} has it")
    with pytest.raises(TypeError, match="figures is 'erc', must be a list of names"):
        erc.figures(figures="erc")


# ---- a Trainer's log ----


def logs_of(tmp_path, figures, steps=4, every=2, **more):
    """Returns the entries of the Trainer's log that have a loss, and the coupling loss in each optimizer step."""
    transformers = pytest.importorskip("transformers")
    from test_hf import tiny, trainer_of

    trainer = trainer_of(tiny(), tmp_path, 2, steps)
    trainer.args.logging_steps = trainer.state.logging_steps = every
    erc = couplet.hf.attach(trainer.model, weight=0.5)
    erc.join(trainer, figures=figures, **more)
    values = []

    class Record(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            values.append(erc.value.item())

    trainer.add_callback(Record())
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry], values


def test_trainer_logs_means_of_the_interval(tmp_path):
    logs, values = logs_of(tmp_path, ("erc", "erc_last", "alpha_min"))
    assert len(logs) == 2 and len(values) == 4 and len(set(values)) == 4
    for i, entry in enumerate(logs):
        assert {name for name in entry if "erc" in name} == {"erc", "erc_last"} and "alpha_min" in entry
        assert entry["erc"] == pytest.approx(sum(values[2 * i : 2 * i + 2]) / 2)
        assert entry["erc_last"] == pytest.approx(values[2 * i + 1])


def test_trainer_logs_each_layer(tmp_path):
    (first, _), _ = logs_of(tmp_path, ("erc", "eps_min"), per_layer=True)
    assert {name for name in first if "erc" in name or "eps" in name} == {
        "erc",
        "erc/0",
        "erc/1",
        "eps_min",
        "eps_min/0",
        "eps_min/1",
    }


def test_trainer_logs_routers(tmp_path):
    logs, _ = logs_of(tmp_path, ("erc", "router_maxvio", "margin"))
    for entry in logs:
        assert {name for name in entry if "erc" in name or "router" in name} == {"erc", "router_maxvio"}
        assert entry["router_maxvio"] > 0 and 0 < entry["margin"] < 1
    logs, _ = logs_of(tmp_path, ("maxvio",), per_layer=True)
    assert {f"maxvio{end}" for end in ("", "_p10", "_p50", "_p90", "/0", "/1")} <= set(logs[0])


def test_a_name_is_checked_when_joined(tmp_path):
    with pytest.raises(ValueError, match="figures has 'max_vio', must be of .*router_maxvio"):
        logs_of(tmp_path, ("max_vio",))


# ---- a weight that follows a schedule ----


def test_weight_may_be_changed_while_training():
    model, erc = attached(weight=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, weight in enumerate((0.0, 0.5, 2.0)):
        erc.next_step(step)
        erc.weight = weight
        loss = erc.loss()
        close(loss, weight * by_hand(model, step=step), 1e-6)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- noise ----


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
def test_noise_is_what_the_loss_draws(dtype):
    router, gates = torch.randn(n, d, dtype=dtype), torch.randn(n, 4, d, dtype=dtype)
    where = dict(seed=5, step=7, layer=3, draw=2)
    delta = couplet.noise(router, **where)
    assert delta.shape == (n, d) and delta.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    want = couplet.erc_loss(router, gates, **where)
    close(couplet.erc_loss(router, gates, delta=delta), want, 1e-7)
    assert couplet.erc_loss(router, gates, delta=torch.ones_like(delta)) != want
    for other in where:
        assert not torch.equal(couplet.noise(router, **{**where, other: 1}), delta)


def test_noise_of_a_trained_router_has_no_graph():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = couplet.noise(torch.ones(2, 3, requires_grad=True) * torch.tensor([[1.0], [2.0]]))
    assert not inside.requires_grad and inside.dtype == torch.float32


@pytest.mark.parametrize(
    "settings, sentence",
    (
        (dict(router=torch.ones(3)), r"router is torch.float32 \[3\], must be"),
        (dict(router=torch.ones(3, 3).int()), "router is torch.int32"),
        (dict(step=-1), "step below 2.40"),
        (dict(layer=1 << 16), "layer and draw below 2.16"),
        (dict(seed="a"), "seed is 'a', must be a whole number"),
        (dict(seed=1 << 64), "seed is .*, must be below 2.64"),
    ),
)
def test_noise_of_bad_input(settings, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        couplet.noise(**{"router": torch.ones(3, 3), **settings})
