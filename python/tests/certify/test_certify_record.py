"""couplet.certify.record on training steps with faults in the code around the loss."""

import random

import pytest
import torch
import torch.nn.functional as F
from couplet import certify
from torch import nn
from torch.utils.checkpoint import checkpoint

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
        """Returns the output of the layer for x [t, d], and the logits."""
        logits = self.gate(x)
        weights, chosen = logits.softmax(-1).topk(K)
        out = torch.einsum("td,tkde->tke", x, self.experts[chosen])
        return x + self.dropout((weights[..., None] * out).sum(1)), logits


class Model(nn.Module):
    """A small MoE model with a load-balancing loss. `losses` and `step` explain `fault`."""

    def __init__(self, fault="", reentrant=None, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.head = nn.Embedding(VOCABULARY, D), nn.Linear(D, VOCABULARY)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.register_buffer("calls", torch.zeros(1))
        self.fault, self.reentrant, self.aux_loss_coef = fault, reentrant, 0.02
        self.to(dtype)

    def forward(self, input_ids):
        self.calls += 1
        x, logits = self.through(self.layers, self.embed(input_ids).flatten(0, 1))
        return self.main(x, input_ids) + self.auxiliary(logits)

    def through(self, layers, x):
        """Returns the output of the layers for tokens x [t, d], and the logits of each layer."""
        logits = []
        for layer in layers:
            x, one = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
            logits.append(one)
        return x, logits

    def main(self, x, input_ids):
        return F.cross_entropy(self.head(x), input_ids.flatten().roll(-1))

    def auxiliary(self, logits):
        if self.fault == "softmax_twice":
            logits = [one.softmax(-1) for one in logits]
        if self.fault == "last_layer":
            return self.aux_loss_coef * switch(logits[-1], K)
        aux = sum(switch(one, K) for one in logits)
        if self.fault == "detached":
            aux = aux.detach()
        return {
            "coefficient_unused": 1.0,
            "coefficient_twice": self.aux_loss_coef**2,
            "zero": 0.0,
            "added_twice": 2 * self.aux_loss_coef,
        }.get(self.fault, self.aux_loss_coef) * aux


def batches(count=1):
    made = torch.Generator().manual_seed(2)
    return [torch.randint(VOCABULARY, (3, 8), generator=made) for _ in range(count)]


def step_of(model, many, divided=True, backward=1.0):
    """Returns a step over micro-batches. It minimises `backward` times the loss that it returns."""

    def step():
        total = 0.0
        for ids in many:
            loss = model(input_ids=ids) / (len(many) if divided else 1)
            (backward * loss).backward()
            total += loss.detach()
        return total

    return step


def step_on(loss_of):
    """Returns a step that minimises the loss of a function without arguments."""

    def step():
        loss = loss_of()
        loss.backward()
        return loss

    return step


def routers_of(model):
    return [layer.gate for layer in getattr(model, "module", model).layers]


def recorded(model, step, kind="load-balancing-switch", **settings):
    settings = {"routers": routers_of(model), "top_k": K, **settings}
    with certify.record(model, **settings) as one:
        one.run(step)
    return one.verdict(kind)


def expect_right(model, step, kind="load-balancing-switch", **settings):
    verdict = recorded(model, step, kind, **settings)
    assert verdict.state == "right", certify.sentence(verdict)
    return verdict


def expect_faults(model, step, want, **settings):
    """Checks that exactly the faults of these keys explain the step."""
    verdict = recorded(model, step, **settings)
    assert keys(verdict) == want and verdict.exit_code == 1, certify.sentence(verdict)
    return verdict


def refused(words, model, step, **settings):
    with pytest.raises(certify.CannotJudge, match=words):
        recorded(model, step, **settings)


def keys(verdict):
    return {fault.key for fault, _ in verdict.faults}


# ---- right steps ----


@pytest.mark.parametrize("reentrant", (None, False, True))
@pytest.mark.parametrize("count", (1, 3))
def test_right(count, reentrant):
    model = Model(reentrant=reentrant)
    verdict = expect_right(model, step_of(model, batches(count)))
    gates = {f"d_layers.{k}.gate.weight" for k in range(LAYERS)}
    assert {one.name for one in verdict.figures["2c"]} == {"loss", *gates}


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_right_in_16_bits(dtype):
    model = Model(dtype=dtype)
    expect_right(model, step_of(model, batches()), value=1.0)
    if dtype is torch.bfloat16:
        words = "within the rounding of the whole step; give value="
        refused(words, model, step_of(model, batches()), value=0.02)


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
    expect_right(model, step, routers=names, coefficient="aux_loss_coef")

    def set_it(value):
        model.aux_loss_coef = value

    expect_right(model, step, coefficient=set_it, value=0.3)


def test_without_the_loss():
    """The step returns nothing, so gradients alone are compared."""
    model = Model()
    verdict = expect_right(model, lambda: model(input_ids=batches()[0]).backward())
    assert len(verdict.figures["c"]) == LAYERS


def test_the_kinds_that_fit():
    model = Model()
    with certify.record(model, routers=routers_of(model), top_k=K) as one:
        one.run(step_of(model, batches(2)))
    assert one.fitting() == ["load-balancing-switch"]


# ---- faults ----


ZERO = {"coefficient_unused", "zero"}  # a step with one of these does not change with the coefficient


@pytest.mark.parametrize(
    "fault, want",
    (
        ("softmax_twice", {"softmax_twice"}),
        ("last_layer", {"last_layer"}),
        ("coefficient_twice", {"coefficient_twice"}),
        ("detached", {"detached"}),
        ("added_twice", {"added_twice", "times_k"}),
        ("coefficient_unused", ZERO),
        ("zero", ZERO),
    ),
)
def test_a_fault_of_the_model_is_named(fault, want):
    model = Model(fault)
    verdict = expect_faults(model, step_of(model, batches()), want)
    assert ("do not tell apart" in certify.sentence(verdict)) == (len(want) > 1)


def test_micro_batches_that_are_summed():
    model = Model()
    expect_faults(model, step_of(model, batches(3), divided=False), {"not_divided_by_steps"})


def test_logits_kept_by_reentrant_checkpointing_have_no_graph():
    """The first pass runs without a graph. The logits of the second pass come too late for the loss."""

    class Kept(Model):
        def forward(self, input_ids):
            x, self.kept = self.embed(input_ids).flatten(0, 1), []
            for layer in self.layers:
                x = checkpoint(self.keeping, layer, x, use_reentrant=True)
            return self.main(x, input_ids) + self.auxiliary(self.kept)

        def keeping(self, layer, x):
            x, logits = layer(x)
            self.kept.append(logits)
            return x

    model = Kept()
    expect_faults(model, step_of(model, batches()), {"detached"})


def test_added_to_gradients_alone():
    """A function of autograd adds the loss to the gradient. The loss that the step returns does not contain it."""

    class Added(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, aux):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad, torch.ones(())

    class Hidden(Model):
        def forward(self, input_ids):
            x = self.embed(input_ids).flatten(0, 1)
            for layer in self.layers:
                x, one = layer(x)
                x = Added.apply(x, self.aux_loss_coef * switch(one, K))
            return self.main(x, input_ids)

    model = Hidden()
    expect_right(model, step_of(model, batches()))
    # The gradient is not divided by the number of steps.
    assert "not_divided_by_steps" in keys(recorded(model, step_of(model, batches(2))))


@pytest.mark.parametrize("kind", ("load-balancing-switch", "z-loss"))
def test_a_loss_of_other_routers_is_not_right(kind):
    """The loss includes a layer that is not named."""
    model = Model()
    verdict = recorded(model, step_of(model, batches()), routers=routers_of(model)[1:], kind=kind)
    assert verdict.state != "right"


def test_under_autocast():
    model = Model()

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return model(input_ids=batches()[0])

    expect_right(model, step_on(loss), value=1.0)


@pytest.mark.parametrize(
    "backward, want",
    ((1.0, set()), (3.0, {"gradient_not_divided_by_steps"}), (1 / 3, {"gradient_divided_by_steps_twice"})),
)
def test_the_mean_loss_is_returned_and_another_one_minimised(backward, want):
    model = Model()
    verdict = recorded(model, step_of(model, batches(3), backward=backward))
    assert verdict.state == ("fault" if want else "right") and keys(verdict) == want


def test_a_gradient_that_is_counted_twice():
    model = Model()

    def step():
        loss = model(input_ids=batches()[0])
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    expect_faults(model, step, {"gradient_twice"})


class OfTokens(Model):
    """A model whose loss is over the tokens of all sequences, and whose routers get one sequence at a time."""

    def forward(self, input_ids):
        pieces = [self.through(self.layers, one) for one in self.embed(input_ids)]
        x, logits = torch.cat([x for x, _ in pieces]), zip(*(logits for _, logits in pieces))
        return self.main(x, input_ids) + self.auxiliary([torch.cat(one) for one in logits])


class Looped(Model):
    """A model that runs its layers twice."""

    def forward(self, input_ids):
        x, logits = self.through([*self.layers, *self.layers], self.embed(input_ids).flatten(0, 1))
        return self.main(x, input_ids) + self.auxiliary(logits)


@pytest.mark.parametrize("count", (1, 2))
@pytest.mark.parametrize("kind", (OfTokens, Looped))
def test_routers_that_are_called_more_than_once_in_a_pass(kind, count):
    model = kind()
    expect_right(model, step_of(model, batches(count)))
    model.fault = "softmax_twice"
    expect_faults(model, step_of(model, batches(count)), {"softmax_twice"})


def test_pieces_of_unknown_batches():
    """The number of tokens of a batch that is not a tensor is unknown."""

    class OfList(OfTokens):
        def forward(self, words):
            return super().forward(torch.tensor(words))

    model, ids = OfList(), batches()[0].tolist()
    refused("is called 3 times in a forward pass", model, lambda: model(ids).backward())


@pytest.mark.parametrize("training", (True, False))
def test_a_pass_without_gradients_is_no_micro_batch(training):
    model = Model()

    def loss():
        model.train(training)
        with torch.no_grad():
            model(input_ids=batches(2)[1])
        return model.train()(input_ids=batches()[0])

    expect_right(model, step_on(loss))


def test_a_router_that_layers_share():
    """The router is named once, or once for each layer."""
    model = Model()
    for layer in model.layers:
        layer.gate = model.layers[0].gate
    step = step_of(model, batches())
    for times in (1, LAYERS):
        with certify.record(model, "aux_loss_coef", routers=[model.layers[0].gate] * times, top_k=K) as one:
            one.run(step)
        assert len(one.routers) == 1 and one.x.logits.shape[0] == LAYERS
        assert one.verdict("load-balancing-switch").state == "right"


def test_one_frozen_router():
    model = Model()
    model.layers[1].gate.weight.requires_grad_(False)
    assert not expect_right(model, step_of(model, batches())).others


def with_zero_routers(fault=""):
    """Ernie 4.5 in Transformers 5.0 starts with routers of zeros: all experts of all tokens tie."""
    model = Model(fault)
    for layer in model.layers:
        nn.init.zeros_(layer.gate.weight)
    return model


def test_routers_that_are_zero():
    """The choice among tied experts decides the gradient. A step is right if it chooses like torch.topk."""
    model = with_zero_routers()
    expect_right(model, step_of(model, batches()))
    for fault in ("softmax_twice", "detached"):
        model = with_zero_routers(fault)
        refused("cannot be told: experts tie", model, step_of(model, batches()))


def test_gradients_of_zero_routers_alone():
    for fault in ("", "softmax_twice"):
        model = with_zero_routers(fault)
        step = step_of(model, batches())

        def alone(step=step):
            step()

        if fault:
            refused("cannot be told: experts tie", model, alone)
        else:
            expect_right(model, alone)


@pytest.mark.parametrize(
    "part, line",
    (
        (lambda one: one.detach(), "the loss has no gradient"),
        (lambda one: one.softmax(-1), "the softmax is taken twice: what comes in as logits are already probabilities"),
    ),
)
def test_each_router_has_a_line(part, line):
    """The first layer alone has a fault. The fault has one name, and is not blamed on the router's form."""

    class Partly(Model):
        def auxiliary(self, logits):
            return super().auxiliary([part(logits[0]), *logits[1:]])

    model = Partly()
    said = certify.sentence(recorded(model, step_of(model, batches()))).split("\n")
    assert said[0].startswith("not right as load-balancing-switch, in a way that is not listed: on c ")
    right = [f"  layers.{k}.gate.weight: right" for k in range(1, LAYERS)]
    assert said[1:] == [f"  layers.0.gate.weight: {line}", *right]


def test_each_router_has_a_line_beside_a_fault():
    """The loss of the last layer alone is the fault of the step. That layer's router is right."""
    model = Model("last_layer")
    said = certify.sentence(recorded(model, step_of(model, batches()))).split("\n")
    wrong = [f"  layers.{k}.gate.weight: only the last layer has a loss" for k in range(LAYERS - 1)]
    assert said[0] == "wrong as load-balancing-switch: only the last layer has a loss"
    assert said[1:] == [*wrong, f"  layers.{LAYERS - 1}.gate.weight: right"]


def test_a_loss_of_zero_routers_is_wrong():
    """The gradients are twice those of another choice among tied experts."""
    model = with_zero_routers("added_twice")
    verdict = recorded(model, step_of(model, batches()))
    assert verdict.state == "fault" and "added_twice" in [fault.key for fault, _ in verdict.faults]


def test_a_router_of_any_class():
    class Block(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.weight = linear.weight

        def forward(self, x):
            return x @ self.weight.T

    model = Model()
    for layer in model.layers:
        layer.gate = Block(layer.gate)
    expect_right(model, step_of(model, batches()))


def test_padding_by_position_and_inside():
    """The mask is the second argument of an inner model, and the trainer computes the loss."""

    class Inside(Model):
        def forward(self, ids, attention_mask=None):
            return self.through(self.layers, self.embed(ids).flatten(0, 1))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.aux_loss_coef = Inside(), 0.02
            self.layers = self.inside.layers

    model, ids, mask = Outer(), batches()[0], torch.ones(3, 8, dtype=torch.long)
    mask[0, 5:] = 0

    def loss(counts_all=False):
        x, logits = model.inside(ids, mask)
        kept = mask.flatten() > -1 if counts_all else mask.flatten() > 0
        return model.inside.main(x, ids) + model.aux_loss_coef * sum(switch(one[kept], K) for one in logits)

    expect_right(model, step_on(loss))
    expect_faults(model, step_on(lambda: loss(counts_all=True)), {"padding_counted"})


@pytest.mark.parametrize("sequences", (None, 3))
def test_tokens_of_no_known_sequence(sequences):
    """A model that is called with [T,d] has one sequence, unless `sequences` gives their number."""

    class OfSequences(Model):
        def forward(self, x):
            x, logits = self.through(self.layers, x)
            aux = sum(deepseek(z) for one in logits for z in one.chunk(sequences or 1)) / (sequences or 1)
            return self.head(x).square().mean() + self.aux_loss_coef * aux

    def deepseek(logits):
        s = logits.sigmoid()
        s = s / s.sum(-1, keepdim=True)
        return N * (F.one_hot(s.topk(K).indices, N).float().sum(1).mean(0) / K * s.mean(0)).sum()

    model, x = OfSequences(), torch.randn(24, D, generator=torch.Generator().manual_seed(1))
    expect_right(model, step_on(lambda: model(x)), "load-balancing-deepseek", sequences=sequences)
