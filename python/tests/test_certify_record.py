"""couplet.certify.record: training steps with faults that lie in the plumbing, not in the loss."""
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from couplet import certify

pytestmark = pytest.mark.usefixtures("one_thread")

N, K, D, LAYERS, VOCABULARY = 6, 2, 10, 3, 20


# ---- a model with a load-balancing loss ----

def switch(logits, top_k):
    p = logits.float().softmax(-1)
    f = F.one_hot(p.topk(top_k).indices, N).float().sum(1).mean(0) / top_k
    return N * (f * p.mean(0)).sum()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, N, bias=False)
        self.experts = nn.Parameter(0.3 * torch.randn(N, D, D))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        """x [t, d]; what the experts add, and the logits."""
        logits = self.gate(x)
        weights, chosen = logits.softmax(-1).topk(K)
        out = torch.einsum("td,tkde->tke", x, self.experts[chosen])
        return x + self.dropout((weights[..., None] * out).sum(1)), logits


class Model(nn.Module):
    """`fault`: see `losses` and `step`."""

    def __init__(self, fault="", reentrant=None, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.head = nn.Embedding(VOCABULARY, D), nn.Linear(D, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.register_buffer("calls", torch.zeros(1))
        self.fault, self.reentrant, self.aux_loss_coef = fault, reentrant, 0.02
        self.to(dtype)

    def forward(self, input_ids):
        x, logits = self.embed(input_ids).flatten(0, 1), []
        self.calls += 1
        for layer in self.layers:
            x, one = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
            logits.append(one)
        main = F.cross_entropy(self.head(x), input_ids.flatten().roll(-1))
        return main + self.auxiliary(logits)

    def auxiliary(self, logits):
        if self.fault == "softmax_twice":
            logits = [one.softmax(-1) for one in logits]
        if self.fault == "last_layer":
            return self.aux_loss_coef * switch(logits[-1], K)
        aux = sum(switch(one, K) for one in logits)
        if self.fault == "detached":
            aux = aux.detach()
        return {"coefficient_unused": 1.0, "coefficient_twice": self.aux_loss_coef**2, "zero": 0.0,
                "added_twice": 2 * self.aux_loss_coef}.get(self.fault, self.aux_loss_coef) * aux


def batches(count=1):
    made = torch.Generator().manual_seed(2)
    return [torch.randint(VOCABULARY, (3, 8), generator=made) for _ in range(count)]


def step_of(model, many, divided=True):
    def step():
        total = 0.0
        for ids in many:
            loss = model(input_ids=ids) / (len(many) if divided else 1)
            loss.backward()
            total += loss.detach()
        return total
    return step


def recorded(model, step, kind="load-balancing-switch", **settings):
    settings = {"routers": [layer.gate for layer in getattr(model, "module", model).layers], "top_k": K, **settings}
    with certify.record(model, **settings) as one:
        one.run(step)
    return one.verdict(kind)


def keys(verdict):
    return {fault.key for one in verdict.sets for fault in one.faults}


# ---- right ones ----

@pytest.mark.parametrize("reentrant", (None, False, True))
@pytest.mark.parametrize("count", (1, 3))
def test_right(count, reentrant):
    model = Model(reentrant=reentrant)
    verdict = recorded(model, step_of(model, batches(count)))
    assert verdict.state == "right", certify.sentence(verdict)
    assert {one.name for one in verdict.figures["2c"]} == {"loss", "d_router"}


def test_right_in_bf16():
    model = Model(dtype=torch.bfloat16)
    assert recorded(model, step_of(model, batches()), value=1.0).state == "right"
    with pytest.raises(certify.CannotJudge, match="within the rounding of the whole step; give value="):
        recorded(model, step_of(model, batches()), value=0.02)


def test_everything_is_as_before():
    model = Model()
    model.layers[0].gate.weight.grad = kept = torch.ones(N, D)
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate(), model.calls.clone()
    recorded(model, step_of(model, batches()), value=0.5)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert torch.equal(before[2], model.calls) and model.layers[0].gate.weight.grad is kept
    assert model.aux_loss_coef == 0.02 and model.head.weight.grad is None
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_routers_and_coefficient_in_other_ways():
    model = Model()
    step = step_of(model, batches())
    names = [f"layers.{k}.gate.weight" for k in range(LAYERS)]
    assert recorded(model, step, routers=names, coefficient="aux_loss_coef").state == "right"

    def set_it(value):
        model.aux_loss_coef = value
    assert recorded(model, step, coefficient=set_it, value=0.3).state == "right"


def test_without_the_loss():
    """A step that returns nothing: gradients alone."""
    model = Model()
    verdict = recorded(model, lambda: model(input_ids=batches()[0]).backward())
    assert verdict.state == "right" and [one.name for one in verdict.figures["c"]] == ["d_router"]


def test_the_kinds_that_fit():
    model = Model()
    with certify.record(model, routers=[layer.gate for layer in model.layers], top_k=K) as one:
        one.run(step_of(model, batches(2)))
    assert one.fitting() == ["load-balancing-switch"]


# ---- faults ----

@pytest.mark.parametrize("fault", ("softmax_twice", "last_layer", "coefficient_twice", "detached", "added_twice"))
def test_a_fault_of_the_model_is_named(fault):
    model = Model(fault)
    verdict = recorded(model, step_of(model, batches()))
    assert fault in keys(verdict) and verdict.exit_code == 1, certify.sentence(verdict)


@pytest.mark.parametrize("fault", ("coefficient_unused", "zero"))
def test_what_no_coefficient_changes(fault):
    model = Model(fault)
    verdict = recorded(model, step_of(model, batches()))
    assert keys(verdict) == {"coefficient_unused", "zero"} and "do not tell apart" in certify.sentence(verdict)


def test_micro_batches_that_are_summed():
    model = Model()
    assert "not_divided_by_steps" in keys(recorded(model, step_of(model, batches(3), divided=False)))


def test_logits_kept_by_reentrant_checkpointing_have_no_graph():
    """The first pass is made without a graph; the second one's logits come too late for the loss."""
    class Kept(Model):
        def forward(self, input_ids):
            x, self.kept = self.embed(input_ids).flatten(0, 1), []
            for layer in self.layers:
                x = checkpoint(self.through, layer, x, use_reentrant=True)
            main = F.cross_entropy(self.head(x), input_ids.flatten().roll(-1))
            return main + self.aux_loss_coef * sum(switch(one, K) for one in self.kept)

        def through(self, layer, x):
            x, logits = layer(x)
            self.kept.append(logits)
            return x
    model = Kept()
    assert "detached" in keys(recorded(model, step_of(model, batches())))


def test_added_to_gradients_alone():
    """The loss comes into the gradient by a function of autograd; what the step returns does not have it."""
    class Added(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, aux):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad, torch.ones(())

    class Hidden(Model):
        def forward(self, input_ids):
            x, logits = self.embed(input_ids).flatten(0, 1), []
            for layer in self.layers:
                x, one = layer(x)
                x = Added.apply(x, self.aux_loss_coef * switch(one, K))
            return F.cross_entropy(self.head(x), input_ids.flatten().roll(-1))
    model = Hidden()
    assert recorded(model, step_of(model, batches())).state == "right"
    # Its gradient does not pass by the division by the number of steps.
    assert "not_divided_by_steps" in keys(recorded(model, step_of(model, batches(2))))


@pytest.mark.parametrize("kind", ("load-balancing-switch", "z-loss"))
def test_a_loss_of_other_routers_is_not_right(kind):
    """The loss has a layer that is not named."""
    model = Model()
    verdict = recorded(model, step_of(model, batches()), routers=[layer.gate for layer in model.layers[1:]], kind=kind)
    assert verdict.state != "right"


def test_under_autocast():
    model = Model()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batches()[0])
        loss.backward()
        return loss
    try:
        verdict = recorded(model, step, value=1.0)
        assert verdict.state == "right" and "within the rounding of bf16" in certify.sentence(verdict)
    except certify.CannotJudge as error:
        assert "cannot be told: rounding in bf16" in str(error)


# ---- what cannot be judged ----

def refused(words, model, step, **settings):
    with pytest.raises(certify.CannotJudge, match=words):
        recorded(model, step, **settings)


def test_bad_steps():
    model = Model()
    ids = batches()[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def with_optimizer():
        model(input_ids=ids).backward()
        optimizer.step()
    refused("leave the optimizer's step out", model, with_optimizer)
    model = Model()
    refused("must call backward", model, lambda: model(input_ids=ids))
    refused("the step raises KeyError: 'x'", model, lambda: {}["x"])
    counted = iter(range(100))
    refused("hidden state or on random numbers of its own", model,
            lambda: (model(input_ids=ids) * (1 + next(counted))).backward())
    with pytest.raises(certify.CannotJudge, match="call run"), \
            certify.record(model, routers=[layer.gate for layer in model.layers], top_k=K) as one:
        one.verdict("z-loss")


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


def test_bad_arguments():
    model = Model()
    step = step_of(model, batches())
    refused("the model has no number nothing", model, step, coefficient="nothing")
    refused("the coefficient is nan; give value=", model, step, coefficient=print)
    refused("the coefficient is 0; give value=", model, step, value=0.0)
    refused("there is no kind of loss nonsense", model, step, kind="nonsense")
    mine = recorded(model, step_of(model, batches()))
    assert mine.grade == "float32"
    refused("does not show what gate-weights needs", model, step, kind="gate-weights")
    refused("load-balancing-switch needs: top_k", model, step, top_k=None)
    refused("no parameter .n, d. of the model", model, step, routers=["layers.0.nothing"])
    refused("routers= names none", model, step, routers=[])
    refused("top_k is 2.5, must be a whole number from 1", model, step, top_k=2.5)
    refused(f"top_k is 99, but layers.0.gate.weight has {N} experts", model, step, top_k=99)
    refused("no module of the model", model, step, routers=[nn.Linear(2, 2)])
    refused("its module was not called", model, lambda: model.head.weight.sum().backward() or
            model.layers[0].gate.weight.sum().backward())
    with pytest.raises(certify.CannotJudge, match="give routers="):
        certify.record(model)


def test_batches_of_two_shapes():
    model = Model()
    many = [batches()[0], batches()[0][:2]]
    refused("different numbers of tokens", model, step_of(model, many))


def test_a_loss_that_is_not_affine():
    class Squared(Model):
        def auxiliary(self, logits):
            return (1 + 40 * self.aux_loss_coef)**2 * sum(switch(one, K) for one in logits)
    model = Squared()
    refused("neither affine", model, step_of(model, batches()))


def test_a_router_that_layers_share():
    """It is named once, or once a layer."""
    model = Model()
    for layer in model.layers:
        layer.gate = model.layers[0].gate
    step, kinds = step_of(model, batches()), []
    for times in (1, LAYERS):
        with certify.record(model, "aux_loss_coef", routers=[model.layers[0].gate] * times, top_k=K) as one:
            one.run(step)
        assert len(one.routers) == 1
        kinds.append(certify.sentence(one.verdict("load-balancing-switch")))
    assert kinds[0] == kinds[1]


def test_logits_that_are_more_than_a_product():
    model = Model()
    for layer in model.layers:
        layer.gate.register_forward_hook(lambda gate, given, out: out.tanh() * 3)
    verdict = recorded(model, step_of(model, batches()))
    assert verdict.state == "unknown" and "logits are more than W x" in certify.sentence(verdict)


def test_gradients_of_a_scaler():
    """The step's loss is not scaled, its backward pass is."""
    model = Model()

    def step():
        loss = model(input_ids=batches()[0])
        (65536 * loss).backward()
        return loss.detach()

    verdict = recorded(model, step, value=1.0)
    assert verdict.state == "unknown" and "gradients are 65536 times the right ones" in certify.sentence(verdict)


def test_no_scaler_where_the_loss_is_wrong():
    """Right gradients, and a number added to the loss that grows with the coefficient."""
    model = Model()

    def step():
        loss = model(input_ids=batches()[0])
        loss.backward()
        return loss.detach() + 3 * model.aux_loss_coef

    verdict = recorded(model, step, value=1.0)
    assert verdict.state == "unknown" and "times the right ones" not in certify.sentence(verdict)


def test_frozen_routers():
    model = Model()
    for layer in model.layers:
        layer.gate.weight.requires_grad_(False)
    with pytest.raises(certify.CannotJudge, match="the routers are frozen"):
        recorded(model, step_of(model, batches()))


def test_the_coupling_loss_needs_no_step():
    model = Model()
    with pytest.raises(certify.CannotJudge, match="depends on weights alone"):
        recorded(model, step_of(model, batches()), "erc")


@pytest.mark.parametrize("where, sentence", (("loss", "the step's loss has a NaN"), ("gate", "layers.1.gate.weight: its gradient")))
def test_what_is_not_a_number(where, sentence):
    model = Model()

    def step():
        loss = model(input_ids=batches()[0])
        loss.backward()
        if where == "gate":
            model.layers[1].gate.weight.grad[0, 0] = float("nan")
        return loss * float("nan") if where == "loss" else loss

    with pytest.raises(certify.CannotJudge, match=sentence):
        recorded(model, step)
