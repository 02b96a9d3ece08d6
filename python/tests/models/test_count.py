"""The loss counts once a step in every training loop (docs/pytorch.md, The rule)."""

import copy

import couplet
import pytest
import torch
from conftest import close
from couplet import _step
from test_attach import Model, by_hand, d, n, pairs_of
from torch import nn

pytestmark = pytest.mark.filterwarnings("error:couplet")

OPTIMIZERS = {
    "SGD": lambda model: [torch.optim.SGD(model.parameters(), lr=0.1)],
    "AdamW": lambda model: [torch.optim.AdamW(model.parameters(), lr=0.1)],
    "two": lambda model: [
        torch.optim.SGD([p for name, p in model.named_parameters() if is_router == ("router" in name)], lr=0.1)
        for is_router in (True, False)
    ],
}


class Loop:
    """A training loop. `counted` has for each step how often the whole gradient of the loss was added."""

    def __init__(self, optimizer="SGD", **more):
        self.model, self.counted = Model(), []
        self.erc = couplet.attach(self.model, pairs_of(self.model), seed=2, **more)
        self.optimizers = OPTIMIZERS[optimizer](self.model)

    def record_factor(self):
        """Appends the factor of the step to `counted`, found by comparing gradients with those of the reference."""
        got = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        reference = copy.deepcopy(self.model)
        reference.zero_grad(set_to_none=True)
        with torch.enable_grad():
            by_hand(reference, step=len(self.counted)).backward()
        want = dict(reference.named_parameters())["layers.0.router.weight"].grad
        factor = 0.0 if not got else float((got["layers.0.router.weight"] * want).sum() / want.square().sum())
        for name, p in reference.named_parameters():
            if p.grad is not None and factor and name in got:
                close(got[name], factor * p.grad, 1e-4, name)
        self.counted.append(round(factor, 4))

    def step(self, is_skipped=False):
        self.record_factor()
        for optimizer in self.optimizers:
            if not is_skipped:
                optimizer.step()
            optimizer.zero_grad()


def add_loss(loop, how):
    loop.erc.backward() if how == "backward" else loop.erc.loss().backward()


def zero_loss(loop):
    return 0 * sum(p.sum() for p in loop.model.parameters())


@pytest.mark.parametrize("how", ("backward", "loss"))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_loss_that_was_looked_at_is_not_used_up(optimizer, how):
    loop = Loop(optimizer)
    for _ in range(4):
        seen = loop.erc.loss()
        assert float(seen.detach()) > 0
        add_loss(loop, how)
        loop.step()
    assert loop.counted == [1, 1, 1, 1]


def test_of_several_results_one_counts():
    """The forward passes of all micro-batches come before the first backward pass."""
    loop = Loop()
    for _ in range(3):
        several = [loop.erc.loss() for _ in range(3)]
        assert all(float(one.detach()) == float(several[0].detach()) > 0 for one in several)
        several[1].backward()
        sum(several[::2]).backward()
        assert loop.erc.loss().item() == 0
        loop.step()
    assert loop.counted == [1, 1, 1] and loop.erc.metrics()["erc"] > 0 and loop.erc.step == 2


def test_a_recomputed_forward_pass_has_the_loss():
    loop = Loop()
    value = torch.utils.checkpoint.checkpoint(
        lambda x: x * loop.erc.loss(), torch.ones((), requires_grad=True), use_reentrant=False
    )
    value.backward()
    loop.step()
    assert loop.counted == [1]


@pytest.mark.parametrize("is_resumed", (False, True))
@pytest.mark.parametrize("how", ("backward", "loss"))
def test_a_skipped_step_does_not_lose_the_next_one(how, is_resumed):
    loop = Loop()
    if is_resumed:
        loop.erc.next_step(0)
    for is_skipped in (False, True, True, False, False):
        for _ in range(3):  # micro-batches
            add_loss(loop, how)
        loop.step(is_skipped)
    assert loop.counted == [1] * 5


def test_gradients_that_are_taken_away_in_each_micro_batch():
    """ZeRO 2 takes gradients away. next_step() starts each step, and only next_step() ends it."""
    loop, values = Loop(), []
    for step in range(3):
        loop.erc.next_step(step)
        for _ in range(3):
            value = loop.erc.loss()
            value.backward()
            values.append(value.item() > 0)
            loop.model.zero_grad()
    assert values == 3 * [True, False, False] and loop.erc.step == 2


@pytest.mark.parametrize("how", ("backward", "loss"))
@pytest.mark.parametrize("is_told", (False, True))
def test_gradients_that_are_cleared_in_place(is_told, how):
    """The loss still counts once a step. After a skipped step that next_step() did not report, a step has no loss."""
    loop = Loop()
    for step, is_skipped in enumerate((False, True, False, False)):
        if is_told:
            loop.erc.next_step(step)
        for _ in range(3):
            zero_loss(loop).backward()
            add_loss(loop, how)
        if is_told or step < 2:
            loop.record_factor()
        else:  # erc.step was not advanced for the skipped step, so only the presence of a gradient is checked
            loop.counted.append(int(loop.model.layers[0].router.weight.grad.any()))
        if not is_skipped:
            loop.optimizers[0].step()
        loop.optimizers[0].zero_grad(set_to_none=False)
    assert loop.counted == [1, 1, int(is_told), 1]


@pytest.mark.parametrize("how", ("backward", "loss"))
def test_a_gradient_scaler_that_skips(how):
    """The first scale is too large, so the first step is skipped and the scale is lowered."""
    loop, values = Loop(), []
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=100)
    before = {name: p.clone() for name, p in loop.model.named_parameters()}
    for skips in (True, False, False):
        huge = sum(p.sum() for p in loop.model.parameters()) * (2.0**100 if skips else 0.0)
        scaler.scale(huge).backward()
        if how == "backward":
            values.append(float(loop.erc.backward(scaler.scale(torch.ones(())))))
        else:
            loss = loop.erc.loss()
            values.append(float(loss.detach()))
            scaler.scale(loss).backward()
        scaler.step(loop.optimizers[0])
        scaler.update(2.0**10 if skips else None)
        loop.optimizers[0].zero_grad()
        moved = any(not torch.equal(before[name], p) for name, p in loop.model.named_parameters())
        assert moved == (not skips)
        before = {name: p.clone() for name, p in loop.model.named_parameters()}
    assert all(value > 0 for value in values), values


class InPlace(nn.Module):
    """A cosine router, which writes its weight in its forward pass."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        with torch.no_grad():
            self.weight.copy_(nn.functional.normalize(self.weight, dim=1))
        return x @ self.weight.T


@pytest.mark.parametrize("by_hook", (False, True))
def test_a_router_that_is_written_in_its_forward_pass(by_hook):
    """After the first next_step(), or the first step of an optimizer, a write to a router does not end a step."""
    loop = Loop()
    router = InPlace(loop.model.layers[0].router.weight)
    if by_hook:
        add_loss(loop, "backward")
        loop.optimizers[0].step()
        loop.optimizers[0].zero_grad()
    values = []
    for step in range(1, 3):
        if not by_hook:
            loop.erc.next_step(step)
        for _ in range(4):
            router(torch.ones(2, d)).sum().backward()
            values.append(float(loop.erc.backward()))
        loop.optimizers[0].step()
        loop.optimizers[0].zero_grad()
    assert [value > 0 for value in values] == 2 * [True, False, False, False]


class Fails(torch.autograd.Function):
    """The identity, whose backward pass fails. In a model the engine runs it after the backward pass of the loss."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, by):
        raise MemoryError("as on a GPU")


def test_a_failed_backward_pass_is_not_counted():
    loop = Loop()
    for fails in (False, True, False, True, False):
        if fails:
            lm = Fails.apply(sum(p.sum() for p in loop.model.parameters()))  # the last backward pass
            with pytest.raises(MemoryError):
                (0 * lm + loop.erc.loss()).backward()
            loop.model.zero_grad()
        else:
            add_loss(loop, "loss")
            loop.step()
    assert loop.counted == [1, 1, 1]


def test_a_copy_begins_a_step():
    loop = Loop()
    loop.erc.next_step(5)
    loop.erc.backward()
    copied = copy.deepcopy(loop.erc)
    optimizer = torch.optim.SGD(copied.model.parameters(), lr=0.1)
    for step in (6, 7):
        optimizer.zero_grad()
        assert copied.backward() > 0 and copied.step == step
        optimizer.step()
    assert loop.erc.backward() == 0


def test_in_eval_mode():
    loop = Loop()
    loop.model.eval()
    with pytest.warns(UserWarning, match="erc.backward.. adds the gradients of the coupling loss all the same"):
        assert loop.erc.backward() > 0
    loop.step()
    loop.erc.backward()
    loop.step()
    with torch.no_grad():
        assert loop.erc.loss() == 0
    with pytest.warns(UserWarning, match="in which erc.loss.. is 0; erc.backward.. counts there too"):
        assert loop.erc.loss() == 0
    assert loop.counted == [1, 1]


EARLIER = "the model has a coupling loss from an earlier attach, and where both are used it counts twice"


def test_a_second_attach_is_warned_of():
    """The second attach is to the model, a wrapper or a part of it. An earlier loss in a garbage cycle is ignored."""
    model = Model()
    erc = couplet.attach(model, pairs_of(model))
    wrapper = nn.Sequential(nn.Identity(), model)
    for other, layers in (
        (torch.nn.DataParallel(model), pairs_of(model)),
        (wrapper, pairs_of(model)),
        (model.layers, pairs_of(model)[1:]),
    ):
        with pytest.warns(UserWarning, match=EARLIER):
            couplet.attach(other, layers)
    erc.own = erc
    del erc
    again = couplet.attach(model, pairs_of(model)[:1])
    others = couplet.attach(model, pairs_of(model)[1:])  # another layer, with its own weight
    copied = copy.deepcopy(again)  # the copy has its own model
    assert copied.model is not model and len(others.layers) == 1


def add_optimizer_hooks(loop):
    """Makes optimizers that step while gradients are accumulated. Returns {parameter: gradient at its last step}."""
    own, had = {p: type(loop.optimizers[0])([p], lr=0.1) for p in loop.model.parameters()}, {}

    def step(p):
        had[p] = p.grad.clone()
        own[p].step()
        own[p].zero_grad()

    for p in own:
        p.register_post_accumulate_grad_hook(step)
    return had


@pytest.mark.parametrize("optimizer", ("SGD", "AdamW"))
@pytest.mark.parametrize("how", ("in front", "loss", "loss made first"))
def test_an_optimizer_inside_the_backward_pass(how, optimizer):
    loop = Loop(optimizer)
    had = add_optimizer_hooks(loop)
    for step in range(3):
        before = copy.deepcopy(loop.model)
        by_hand(before, step=step).backward()
        if how == "in front":
            loop.erc.backward()
            zero_loss(loop).backward()
        else:
            loss = loop.erc.loss() + zero_loss(loop) if how == "loss made first" else zero_loss(loop) + loop.erc.loss()
            loss.backward()
        for p, want in zip(loop.model.parameters(), before.parameters()):
            close(had[p], want.grad, 1e-4)


CLEARED = "the gradients that erc.backward.. made are gone at the optimizer's step: where zero_grad"


@pytest.mark.parametrize("is_told", (False, True))
def test_gradients_that_are_cleared_behind_such_an_optimizer(is_told):
    loop = Loop()
    had = add_optimizer_hooks(loop)

    def step():
        if is_told:
            loop.erc.next_step()
        zero_loss(loop).backward()
        loop.erc.backward()
        loop.model.zero_grad()

    step()
    with pytest.warns(UserWarning, match=CLEARED):
        step()
    assert not any(gradient.any() for gradient in had.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_that_are_cleared_before_the_step(optimizer):
    loop = Loop(optimizer)

    def step():
        loop.erc.backward()
        loop.model.zero_grad()
        zero_loss(loop).backward()
        for one in loop.optimizers:
            one.step()

    with pytest.warns(UserWarning, match=CLEARED) as warned:
        for _ in range(3):
            step()
    assert len(warned) == 1


@pytest.mark.parametrize("clears", (False, True))
def test_an_optimizer_of_another_copy(clears):
    """The optimizer belongs to the model, and erc is attached to a copy of the model."""
    loop = Loop("AdamW")
    erc = couplet.attach(copy.deepcopy(loop.model), pairs_of)

    def steps(count):
        for _ in range(count):
            zero_loss(loop).backward()
            erc.backward()
            loop.step()
            if clears:
                erc.model.zero_grad()

    steps(8)
    with pytest.warns(
        UserWarning, match="have made 8 steps, none of them one that has a router or gate: make the optimizer"
    ):
        steps(1)


def test_steps_of_other_optimizers_are_ignored():
    """One optimizer has a second network, and one has copies of the parameters (DeepSpeed, Megatron-Core)."""
    other, loop = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), Loop()
    told = couplet.attach(copy.deepcopy(loop.model), pairs_of)
    for step in range(6):
        told.next_step(step)
        for erc in (loop.erc, told):
            erc.backward()
        for _ in range(5):
            other.step()
        loop.step()
    assert loop.counted == [1] * 6 and told.step == 5


def test_a_router_that_is_written_before_a_step_was_seen():
    """A write in a forward pass cannot be distinguished from a step, so the loss counts again, with a warning."""
    loop = Loop()
    router = InPlace(loop.model.layers[0].router.weight)
    with pytest.warns(UserWarning, match="call erc.next_step"):
        for _ in range(2):
            loop.erc.backward()
            router(torch.ones(2, d))


def test_an_undetected_step_warns():
    """The step is made by hand and clears gradients in place."""
    loop = Loop()
    with pytest.warns(
        UserWarning, match="a router or gate has changed, but no optimizer of PyTorch .* call erc.next_step"
    ):
        for _ in range(3):
            loop.erc.backward()
            loop.record_factor()
            with torch.no_grad():
                for p in loop.model.parameters():
                    p -= 0.1 * p.grad
                    p.grad.zero_()
    assert loop.counted == [1] * 3


@pytest.mark.parametrize("how", ("LBFGS", "SAM"))
def test_several_evaluations_a_step(how):
    """next_step() is called with one number before each evaluation. Each evaluation has the loss, with equal noise."""
    loop = Loop()
    params = list(loop.model.parameters())
    optimizer = torch.optim.LBFGS(params, lr=0.01, max_iter=3) if how == "LBFGS" else loop.optimizers[0]
    for step in range(2):

        def closure():
            optimizer.zero_grad()
            loop.erc.next_step(step)
            value = loop.erc.backward()
            loop.counted = [0] * step
            loop.record_factor()
            assert value > 0 and loop.counted[step] == 1 and loop.erc.step == step
            return value

        if how == "SAM":
            closure()
            with torch.no_grad():
                for p in params:
                    p += 0.01 * p.grad
        optimizer.step(closure)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("how", ("create_graph", "new tensors", "buffers"))
def test_gradients_that_are_replaced_within_a_step(how):
    """After the last micro-batch the loss counts once. In each micro-batch it counts again, with a warning."""
    loop = Loop("AdamW")

    def step(is_once):
        sums = {}
        for k in range(2):
            zero_loss(loop).backward(create_graph=how == "create_graph")
            if k == 1 or not is_once:
                loop.erc.backward()
            for p in loop.model.parameters():
                if how == "new tensors":
                    p.grad = p.grad.clone()
                if how == "buffers":
                    sums[p], p.grad = sums.get(p, 0) + p.grad, None
        for p, total in sums.items():
            p.grad = total
        if is_once:
            loop.record_factor()
        for optimizer in loop.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    step(True)
    step(True)
    for _ in range(7):
        step(False)
    with pytest.warns(UserWarning, match="counted several times in each of 8 steps.* call erc.backward.. once"):
        step(False)
    assert loop.counted[:2] == [1, 1]


def test_main_grad_is_no_grad():
    """Megatron-Core's optimizer in f32 uses main_grad and sets `.grad` for the step."""
    loop = Loop()
    for _ in range(2):
        for p in loop.model.parameters():
            p.main_grad = torch.zeros_like(p)
        loop.erc.backward(attribute="main_grad")
        for p in loop.model.parameters():
            p.grad = p.main_grad
        loop.step()
    assert loop.counted == [1, 1]


def test_a_result_adds_as_often_as_its_backward_pass_runs():
    loop = Loop()
    loss = loop.erc.loss()
    for _ in range(3):
        loss.backward(retain_graph=True)
    loop.step()
    add_loss(loop, "loss")
    loop.step()
    assert loop.counted == [3, 1]


def test_an_interrupt_uses_nothing_up(monkeypatch):
    """An interrupt leaves some gradients, which are to be cleared, as in a model's backward pass."""
    loop, finish = Loop(), _step.Evaluation.finish
    for interrupts in (False, True, False):
        calls = []

        def stopped(self, result):
            finish(self, result)
            calls.append(self)
            if interrupts:
                raise KeyboardInterrupt

        monkeypatch.setattr(_step.Evaluation, "finish", stopped)
        if interrupts:
            with pytest.raises(KeyboardInterrupt):
                loop.erc.backward()
            assert len(calls) == 1 and loop.model.layers[0].w1.grad.any()
            loop.model.zero_grad()
        else:
            loop.erc.backward()
            loop.step()
    assert loop.counted == [1, 1]


def test_state_dict_holds_the_step():
    """The state is saved after an optimizer step and loaded into a new loop. The noise continues."""
    loop = Loop("AdamW")
    assert loop.erc.state_dict() == {"step": 0}
    for _ in range(3):
        loop.erc.backward()
        loop.step()
    state = loop.erc.state_dict()
    assert state == {"step": 3}
    other = couplet.attach(copy.deepcopy(loop.model), pairs_of, seed=2)
    other.load_state_dict(state)
    assert other.backward() == loop.erc.backward() and other.step == loop.erc.step == 3


def test_accelerate_saves_the_step(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    loop, accelerator = Loop(), accelerate.Accelerator(cpu=True)
    accelerator.register_for_checkpointing(loop.erc)
    loop.erc.backward()
    loop.step()
    accelerator.save_state(str(tmp_path))
    loop.erc.next_step(7)
    accelerator.load_state(str(tmp_path))
    assert loop.erc.step == 1


# ---- gates that share their parameter ----


class Config:
    moe_intermediate_size = 2


@pytest.mark.parametrize("name", ("gate_up_proj", "w13", "linear_fc1", "gate_and_up", "w3w1", "GateUp", "w1"))
def test_a_parameter_of_gate_and_up_is_refused(name):
    """Most parameters are refused by their names, and w1 by the width in the config, which is half of its rows."""
    model = nn.Module()
    model.router, model.config = nn.Parameter(torch.randn(n, d)), Config()
    setattr(model, name, nn.Parameter(torch.randn(n, 4, d)))
    with pytest.raises(ValueError, match=rf"layers\[0\]: the gates are {name}, .*gate_half=\"none\" if it is the gate"):
        couplet.attach(model, [("router", name)])
    for half, D in (("first", 2), ("none", 4)):
        assert couplet.attach(model, [("router", name)], gate_half=half).layers[0].D == D
    assert couplet.erc_loss(model.router, getattr(model, name), gate_half="none") == couplet.erc_loss(
        model.router, getattr(model, name)
    )


# ---- a module ----


def test_the_module_is_the_function():
    router, gates = torch.randn(n, d), torch.randn(n, 4, d)
    module = couplet.ErcLoss(alpha=0.5, weight=2.0, seed=3, layer=1)
    assert module(router, gates, step=5) == couplet.erc_loss(
        router, gates, alpha=0.5, weight=2.0, seed=3, layer=1, step=5
    )
    assert not list(module.parameters()) and not module.state_dict() and "alpha=0.5" in repr(module)
    with pytest.raises(TypeError, match="step"):
        module(router, gates)
