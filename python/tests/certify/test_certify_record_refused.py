"""Steps that couplet.certify.record does not judge, or finds wrong without naming a fault, and the restored state."""

import pytest
import torch
from couplet import certify
from test_certify_record import K, Model, N, batches, expect_right, recorded, refused, routers_of, step_of, switch
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "words, step",
    (
        ("must call backward", lambda model, ids: model(input_ids=ids)),
        ("the step raises KeyError: 'x'", lambda model, ids: {}["x"]),
        (
            "called under torch.no_grad.. alone",
            lambda model, ids: torch.no_grad()(model)(ids) and model.layers[0].gate.weight.sum().backward(),
        ),
        (
            "its module was not called",
            lambda model, ids: (model.head.weight.sum() + model.layers[0].gate.weight.sum()).backward(),
        ),
    ),
)
def test_bad_steps(words, step):
    model = Model()
    refused(words, model, lambda: step(model, batches()[0]))


def test_hidden_state():
    model, counted = Model(), iter(range(100))
    words = "hidden state or on random numbers of its own"
    refused(words, model, lambda: (model(input_ids=batches()[0]) * (1 + next(counted))).backward())


def test_nothing_was_run():
    model = Model()
    with certify.record(model, routers=routers_of(model), top_k=K) as one:
        with pytest.raises(certify.CannotJudge, match="call run"):
            one.verdict("z-loss")


def test_no_optimizer_changes_anything():
    model = Model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step():
        model(input_ids=batches()[0]).backward()
        optimizer.step()

    refused("leave the optimizer's step out", model, step)
    assert all(map(torch.equal, before, model.parameters())) and not optimizer.state
    step()
    assert optimizer.state  # the optimizer works again


def test_writes_past_autograd():
    model = Model()

    def step():
        model(input_ids=batches()[0]).backward()
        model.head.weight.data.add_(1e-3)

    refused("the step has changed parameters", model, step)


def test_buffers_that_are_new_or_others():
    class Counting(Model):
        def forward(self, input_ids):
            self.calls = self.calls + 1
            self.register_buffer("last", input_ids.float())
            return super().forward(input_ids) * float(self.calls) / 2  # counted in two places

    model = Counting()
    kept = model.calls
    expect_right(model, step_of(model, batches()))  # each run is the first call
    assert model.calls is kept and float(kept) == 0 and "last" not in model._buffers


@pytest.mark.parametrize(
    "words, end",
    (
        ("the gradients are clipped", lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.3)),
        ("all zero, whatever the coefficient", lambda model: model.zero_grad(set_to_none=False)),
    ),
)
def test_gradients_that_are_clipped_or_zeroed(words, end):
    model = Model()

    def step():
        model(input_ids=batches()[0]).backward()
        end(model)

    refused(words, model, step)


def test_a_bias_that_chooses():
    model = Model()
    model.layers[0].gate.register_buffer("e_score_correction_bias", torch.zeros(N))
    expect_right(model, step_of(model, batches()))
    model.layers[0].gate.e_score_correction_bias[1] = 0.1
    refused("a bias chooses the experts", model, step_of(model, batches()))


def unknown(model, step, **settings):
    """Returns the sentence on a step that no fault explains."""
    verdict = recorded(model, step, **settings)
    assert verdict.state == "unknown"
    return certify.sentence(verdict)


def test_a_loss_that_is_not_the_one_minimised():
    model, many = Model(), batches(2)

    def step():
        for ids in many:
            loss = model(input_ids=ids)
            (loss / len(many)).backward()
        return loss.detach()

    assert "the gradients are right, but" in unknown(model, step)


def test_twice_at_once():
    model = Model()
    one = certify.record(model, routers=routers_of(model), top_k=K)
    with one:
        with pytest.raises(certify.CannotJudge, match="recorded already"):
            one.__enter__()
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_everything_is_as_before_when_the_step_raises():
    model = Model()
    torch.manual_seed(1)
    before = torch.get_rng_state()

    def step():
        model(input_ids=batches()[0]).backward()
        raise OSError("no disk")

    refused("the step raises OSError: no disk", model, step)
    assert torch.equal(before, torch.get_rng_state()) and float(model.calls) == 0
    assert model.aux_loss_coef == 0.02 and model.head.weight.grad is None


@pytest.mark.parametrize(
    "words, settings",
    (
        ("the model has no number nothing", {"coefficient": "nothing"}),
        ("the coefficient is nan; give value=", {"coefficient": print}),
        ("the coefficient is 0; give value=", {"value": 0.0}),
        ("there is no kind of loss nonsense", {"kind": "nonsense"}),
        ("does not show what gate-weights needs", {"kind": "gate-weights"}),
        ("the coupling loss depends on weights alone", {"kind": "erc"}),
        ("load-balancing-switch needs: top_k", {"top_k": None}),
        ("no parameter .n, d. of the model", {"routers": ["layers.0.nothing"]}),
        ("no module of the model", {"routers": [nn.Linear(2, 2)]}),
        ("routers= names none", {"routers": []}),
        ("top_k is 2.5, must be a whole number from 1", {"top_k": 2.5}),
        (f"top_k is 99, but layers.0.gate.weight has {N} experts", {"top_k": 99}),
        ("top_k is True", {"top_k": True}),
        ("sequences is -1, must be a whole number from 1", {"sequences": -1}),
        ("value is '1', must be a number", {"value": "1"}),
        ("coefficient is 3, must be a name or a function", {"coefficient": 3}),
        (
            "cannot be set; give coefficient= a function that sets it: ZeroDivisionError",
            {"coefficient": lambda value: value / 0, "value": 1.0},
        ),
    ),
)
def test_bad_arguments(words, settings):
    model = Model()
    refused(words, model, step_of(model, batches()), **settings)


@pytest.mark.parametrize("model, words", ((print, "must be a torch.nn.Module"), (Model(), "give routers=")))
def test_bad_models(model, words):
    with pytest.raises(certify.CannotJudge, match=words):
        certify.record(model)


def test_batches_of_two_shapes():
    model = Model()
    many = [batches()[0], batches()[0][:2]]
    refused("different numbers of tokens", model, step_of(model, many))


def test_a_loss_that_is_not_affine():
    class Squared(Model):
        def auxiliary(self, logits):
            return (1 + 40 * self.aux_loss_coef) ** 2 * sum(switch(one, K) for one in logits)

    model = Squared()
    refused("neither affine", model, step_of(model, batches()))


def test_logits_that_are_more_than_a_product():
    model = Model()
    for layer in model.layers:
        layer.gate.register_forward_hook(lambda gate, given, out: out.tanh() * 3)
    assert "logits are more than W x" in unknown(model, step_of(model, batches()))


def test_gradients_of_a_scaler():
    """The loss of the step is not scaled, but its backward pass is."""
    model = Model()
    said = unknown(model, step_of(model, batches(), backward=65536), value=1.0)
    assert "gradients are 65536 times the right ones" in said


def test_no_scaler_where_the_loss_is_wrong():
    """Gradients are right, and a number that grows with the coefficient is added to the loss."""
    model = Model()
    step = step_of(model, batches())
    assert "times the right ones" not in unknown(model, lambda: step() + 3 * model.aux_loss_coef, value=1.0)


def test_frozen_routers():
    model = Model()
    for layer in model.layers:
        layer.gate.weight.requires_grad_(False)
    refused("the routers are frozen", model, step_of(model, batches()))


@pytest.mark.parametrize(
    "where, sentence", (("loss", "the step's loss has a NaN"), ("gate", "layers.1.gate.weight: its gradient"))
)
def test_what_is_not_a_number(where, sentence):
    model = Model()

    def step():
        loss = model(input_ids=batches()[0])
        loss.backward()
        if where == "gate":
            model.layers[1].gate.weight.grad[0, 0] = float("nan")
        return loss * float("nan") if where == "loss" else loss

    refused(sentence, model, step)
