"""The loss inside a Trainer's steps: every step's gradient has the whole coefficient, however the Trainer divides."""

import warnings

import couplet
import pytest
import torch
from conftest import close

transformers = pytest.importorskip("transformers")
from test_hf import by_hand, rows, settings_of, tiny  # noqa: E402

WEIGHT = 7.0


class Nothing(transformers.Trainer):
    """A Trainer whose own loss is 0, so that all gradients come from the coupling loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        loss = 0 * outputs.logits.sum()
        return (loss, outputs) if return_outputs else loss


class Check(transformers.TrainerCallback):
    """Checks before an optimizer's step that the gradients are those of the whole loss computed by hand."""

    def __init__(self, model):
        self.model, self.steps = model, 0

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        got = {name: p.grad for name, p in self.model.named_parameters()}
        self.model.zero_grad(set_to_none=True)
        by_hand(self.model, weight=WEIGHT, seed=3, step=state.global_step).backward()
        for name, p in self.model.named_parameters():
            if p.grad is not None and p.grad.any():
                close(got[name], p.grad, 1e-4, name)
            p.grad = got[name]
        self.steps += 1


def trainer_of(kind, model, folder, check, accumulation=3):
    settings = settings_of(folder, accumulation, num_train_epochs=2, learning_rate=0.01)
    more = dict(model=model, args=settings, train_dataset=rows(10), callbacks=[check])
    if kind == "function":
        return transformers.Trainer(
            compute_loss_func=lambda outputs, labels, num_items_in_batch=None: 0 * outputs.logits.sum(), **more
        )
    trainer = Nothing(**more)
    trainer.model_accepts_loss_kwargs = kind == "divides by all tokens"
    return trainer


@pytest.mark.parametrize("in_parameters", (True, False))
@pytest.mark.parametrize("kind", ("function", "divides by all tokens", "divides by micro-batches"))
def test_every_step_has_the_whole_coefficient(kind, in_parameters, tmp_path, monkeypatch):
    """An epoch has five micro-batches and a step three, so the second step of each epoch has two."""
    model = tiny()
    check = Check(model)
    monkeypatch.setattr(couplet.hf, "_has_gradients_in_parameters", lambda trainer: in_parameters)
    trainer = trainer_of(kind, model, tmp_path, check)
    if kind == "function":
        trainer.model_accepts_loss_kwargs = False  # only the function shows that it divides
    couplet.hf.attach(model, weight=WEIGHT, seed=3).join(trainer)
    trainer.train()
    assert check.steps == 4


@pytest.mark.parametrize("accumulation", (1, 3))
def test_no_gradient_waits_while_activations_are_there(accumulation, tmp_path):
    """Gradients of routers and gates are made after a step's last backward pass."""
    model, seen = tiny(), []
    check = Check(model)
    trainer = trainer_of("function", model, tmp_path, check, accumulation)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: 1 * torch.zeros((), requires_grad=True)
    couplet.hf.attach(model, weight=WEIGHT, seed=3).join(trainer)
    model.register_forward_pre_hook(lambda *_: seen.append(any(p.grad is not None for p in model.parameters())))
    trainer.train()
    assert check.steps == (10 if accumulation == 1 else 4) and len(seen) == 10 and not any(seen)


@pytest.mark.parametrize("is_named", (True, False))
def test_an_optimizer_inside_the_backward_pass(is_named, tmp_path):
    """The Trainer makes such an optimizer for optim="galore_adamw_layerwise". One made by hand gives a warning."""
    from transformers.trainer_pt_utils import LayerWiseDummyOptimizer

    model, had = tiny(), []
    own = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def step(p):
        had.append(p.grad.any().item())
        own[p].step()
        own[p].zero_grad()

    for p in own:
        p.register_post_accumulate_grad_hook(step)
    trainer = trainer_of("divides by all tokens", model, tmp_path, transformers.TrainerCallback(), 1)
    trainer.args.max_steps = 2
    trainer.args.optim = transformers.training_args.OptimizerNames("galore_adamw_layerwise" if is_named else "sgd")
    trainer.optimizer = LayerWiseDummyOptimizer(optimizer_dict=own)
    couplet.hf.attach(model, weight=WEIGHT, seed=3).join(trainer)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        trainer.train()
    assert any(had) == is_named
    assert any("made are gone at the optimizer's step" in str(one.message) for one in warned) == (not is_named)


def test_the_callback_alone_is_warned_of(tmp_path):
    model = tiny()
    trainer = trainer_of("function", model, tmp_path, transformers.TrainerCallback(), 1)
    trainer.args.max_steps = 1
    trainer.add_callback(couplet.hf.attach(model).callback())
    with pytest.warns(UserWarning, match="was never evaluated: the callback adds no gradient; erc.join"):
        trainer.train()


def test_a_second_join_is_refused(tmp_path):
    model = tiny()
    trainer = trainer_of("function", model, tmp_path, Check(model))
    erc = couplet.hf.attach(model)
    erc.join(trainer)
    with pytest.warns(UserWarning, match="has a coupling loss from an earlier attach"):
        again = couplet.hf.attach(model)
    for one in (erc, again):
        with pytest.raises(ValueError, match="the Trainer has a coupling loss from an earlier join"):
            one.join(trainer)


def test_a_trainer_of_another_model_is_refused(tmp_path):
    model = tiny()
    trainer = trainer_of("function", model, tmp_path, Check(model))
    with pytest.raises(ValueError, match="attached to another model than the Trainer's"):
        couplet.hf.attach(tiny()).join(trainer)
    trainer.model_init = tiny
    with pytest.raises(ValueError, match="makes a new model by model_init"):
        couplet.hf.attach(model).join(trainer)


def test_where_gradients_are_not_in_parameters(tmp_path):
    """With DeepSpeed and FSDP1 the loss is added to the Trainer's."""
    model = tiny()
    trainer = trainer_of("divides by all tokens", model, tmp_path, Check(model), 1)
    trainer.is_deepspeed_enabled = True
    couplet.hf.attach(model, weight=WEIGHT, seed=3).join(trainer)
    batch = {name: t[None] for name, t in rows(1)[0].items()}
    trainer.current_gradient_accumulation_steps = 1
    loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
    close(loss, by_hand(model, weight=WEIGHT, seed=3), 1e-5)
    assert outputs.logits.shape == (1, 12, 96)
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    assert trainer.compute_loss(model, batch, return_outputs=True)[0].item() == 0
