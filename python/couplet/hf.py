"""The coupling loss for Mixture-of-Experts models of Transformers.

    erc = couplet.hf.attach(model, weight=1.0, alpha=1.0)
    loss = out.loss + erc.loss()                  # your own loop
    erc.join(trainer)                             # or Transformers' Trainer: all that is needed"""
from __future__ import annotations

import math
import warnings
from typing import Any, Dict, List, Optional

import torch
from torch import Tensor, nn

from . import _figures, _layers
from ._door import (_level_of_caller, check_noise, compute_name, erc_loss, number, signed, warn_of_alpha,
                    whole_number)


class Erc:
    """The coupling loss of all Mixture-of-Experts layers of a model; made by `attach`."""

    def __init__(self, model: nn.Module, weight: float, alpha: float, reduce: str, seed: int,
                 noise: str, compute: Any, accumulation: int):
        if reduce not in ("mean", "sum"):
            raise ValueError(f"couplet: reduce is {reduce!r}, must be mean or sum")
        if not isinstance(model, nn.Module):
            raise TypeError(f"couplet: model is a {type(model).__name__}, must be a torch.nn.Module")
        if not math.isfinite(number(weight, "weight")):
            raise ValueError(f"couplet: weight is {weight}, must be a finite number")
        if not 0 <= number(alpha, "alpha") < math.inf:
            raise ValueError(f"couplet: alpha is {alpha}, must be a number >= 0")
        check_noise(noise)
        compute_name(compute)
        signed(whole_number(seed, "seed"))
        if whole_number(accumulation, "accumulation") < 1:
            raise ValueError(f"couplet: accumulation is {accumulation}, must be at least 1")
        self.model = _layers.unwrapped(model)
        self.layers = _layers.find(self.model)
        self.weight, self.alpha, self.reduce, self.seed = weight, alpha, reduce, seed
        self.noise, self.compute, self.accumulation = noise, compute, accumulation
        self.step = 0                            # of the noise: optimizer steps that had a loss
        self.value: Optional[float] = None       # the last one, reduced, before the weight
        self._evaluated: Optional[List[int]] = None  # the parameters' versions then
        self._bytes: Optional[Tensor] = None     # of `_watched` then
        self._has_warned = False
        self._counted_outside = False            # next_step says when a step begins

    # ---- the loss ----

    def loss(self, divided_by: Optional[int] = None) -> Tensor:
        """weight * (mean or sum over layers of L) [], once per optimizer step.

        The first call of a step has a graph; later calls of the same step (gradient accumulation) are
        a zero without one, as are all in `model.eval()` and with weight 0. A step is over when the
        version counter of a router or gate has moved, or when `next_step` is called. An optimizer
        that goes around the counters (`p.data.add_`) is found out by the numbers, with a warning.

        divided_by: by how many micro-batches the loss is divided before its backward pass; the one
        evaluation is multiplied by it, so that the step gets the whole coefficient. Default:
        `accumulation`, as told to `attach`.
        """
        versions = self._versions()
        device = self.layers[0].router_parameter.device
        if not self.model.training or self.weight == 0 or (
                versions == self._evaluated and not self._changed_unseen()):
            return torch.zeros((), device=device)
        if self._evaluated is not None and not self._counted_outside:
            self.step += 1
        # Under torch.no_grad() it is only looked at: the step's own evaluation is still to come.
        self._evaluated = versions if torch.is_grad_enabled() else None
        watched = None if self._counted_outside else self._watched()
        self._bytes = None if watched is None else _layers.some_bytes(watched)
        total = self._sum_over_layers(device)
        count = len(self.layers) if self.reduce == "mean" else 1
        self.value = total.detach() / count  # read when it is logged
        times = self.accumulation if divided_by is None else divided_by
        return total * (self.weight * times / count)

    def _sum_over_layers(self, device: torch.device) -> Tensor:
        total = torch.zeros((), device=device)
        for layer in self.layers:
            one = erc_loss(layer.router(), layer.gates(), alpha=self.alpha, noise=self.noise,
                           seed=self.seed, step=self.step, layer=layer.number,
                           gate_half=layer.gate_half, compute=self.compute)
            total = total + one.to(device)
        return total

    def _versions(self) -> List[int]:
        return [p._version for layer in self.layers for p in layer.parameters()]

    def _watched(self) -> Optional[Tensor]:
        """A parameter that every optimizer step changes: the first router, unless it is frozen."""
        trained = (p for layer in self.layers for p in layer.parameters() if p.requires_grad)
        return next(trained, None)

    def _changed_unseen(self) -> bool:
        """Whether numbers have changed and no version counter has moved: then a step was taken, and
        is to have its loss; but not where processes might see it differently."""
        watched = self._watched()
        if self._bytes is None or watched is None:
            return False
        now = _layers.some_bytes(watched)
        if (now.shape, now.device) != (self._bytes.shape, self._bytes.device) or torch.equal(now, self._bytes):
            return False
        if not self._has_warned:
            warnings.warn("couplet: a parameter has changed, but not its version counter, by which erc.loss() "
                          "sees that an optimizer step is over; call erc.next_step() whenever one begins",
                          stacklevel=_level_of_caller())
        self._has_warned = True
        return not _layers.is_sharded(watched)

    def next_step(self, step: Optional[int] = None) -> None:
        """An optimizer step begins: the next `loss` is evaluated. `step` is its number for the noise
        (default: one more); with it a resumed run draws what an uninterrupted one would have."""
        begun = self._evaluated is not None
        self.step = step if step is not None else self.step + (1 if begun else 0)
        self._evaluated, self._counted_outside = None, True

    # ---- what to log ----

    def figures(self, per_layer: bool = False) -> Dict[str, float]:
        """`erc`: the last evaluation, reduced, before the weight; the rest are means over layers, of
        the clean rows and the weights as they are now, under the names of `couplet train`'s metrics:
        erc_clean, active_rows, active_columns, alpha_min (the largest of all layers), eps_mean,
        eps_min, eps_max, kappa_diagonal and kappa_off_diagonal (own and others' response, free of the
        weights' scale), kappa_rows_own, kappa_columns_own, home_top1, home_topk (of proxies with the
        noise of this step), home_clean_top1, home_clean_topk. per_layer: `name/3` for layer 3 too."""
        each = {layer.number: _figures.of_layer(
            layer.router(), layer.gates(), layer.gate_half, self.alpha, layer.K, self.seed, self.step,
            layer.number) for layer in self.layers}
        over = {"eps_min": min, "eps_max": max, "alpha_min": max}
        mean = lambda values: sum(values) / len(values)
        names = next(iter(each.values())).keys()
        result = {name: over.get(name, mean)([f[name] for f in each.values()]) for name in names}
        if self.reduce == "sum":
            result["erc_clean"] *= len(each)
        if self.value is not None:
            result = {"erc": float(self.value), **result}
        if per_layer:
            result.update({f"{name}/{number}": value for number, f in each.items()
                           for name, value in f.items()})
        return result

    # ---- Transformers' Trainer ----

    def callback(self, per_layer: bool = False) -> Any:
        """A TrainerCallback: tells `loss` when an optimizer step begins and which, and puts the figures
        beside the loss wherever the Trainer logs it."""
        from transformers import TrainerCallback

        erc = self

        class ErcCallback(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                erc.next_step(state.global_step)

            def on_log(self, args, state, control, logs=None, **kwargs):
                if not logs or "loss" not in logs:
                    return
                figures = {name if name.startswith("erc") else f"erc_{name}": value
                           for name, value in erc.figures(per_layer).items()}
                logs.update(figures)
                if state.log_history:  # written before the callbacks are called
                    state.log_history[-1].update(figures)

        return ErcCallback()

    def join(self, trainer: Any, per_layer: bool = False) -> "Erc":
        """Adds the loss to a Trainer's own and the callback in front of those that report."""
        trainer.callback_handler.callbacks.insert(0, self.callback(per_layer))
        inner = trainer.compute_loss

        def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
            result = inner(model, inputs, return_outputs=return_outputs,
                           num_items_in_batch=num_items_in_batch)
            if not model.training:
                return result
            extra = self.loss(_divisor(trainer, num_items_in_batch))
            if return_outputs:
                return result[0] + extra.to(result[0].device), result[1]
            return result + extra.to(result.device)

        trainer.compute_loss = compute_loss
        return self


def _divisor(trainer: Any, num_items_in_batch: Any) -> int:
    """By how much Trainer.training_step divides what compute_loss gives."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        scaled = (trainer.model_accepts_loss_kwargs and num_items_in_batch is not None) or \
            trainer.compute_loss_func is not None
    return 1 if scaled else trainer.current_gradient_accumulation_steps


def attach(model: nn.Module, weight: float = 1.0, alpha: float = 1.0, reduce: str = "mean",
           seed: int = 0, *, noise: str = "bounded", compute: Any = None,
           accumulation: int = 1) -> Erc:
    """The coupling loss of every Mixture-of-Experts layer of a Transformers model.

    Routers and gates are found by the table of families that `couplet inspect` reads, and taken as
    they lie in the parameters: nothing is copied, nothing of the model is changed.

    Args:
        model: any model whose parameters' names and config tell its family; compiled or in
            DistributedDataParallel, too.
        weight, alpha: coefficient of the loss, and its alpha (both 1 in the paper).
        reduce: "mean" (default) or "sum" over the layers.
        seed, noise, compute: as in `couplet.erc_loss`.
        accumulation: by how many micro-batches your loop divides its loss; 1 where it does not.
            `join` finds it out itself.

    Raises:
        ValueError: with the sentence of `couplet inspect`, for a model without experts or of a family
            that is neither in the table nor plain from names and shapes.
    """
    erc = Erc(model, weight, alpha, reduce, seed, noise, compute, accumulation)
    warn_of_alpha(alpha)
    return erc
