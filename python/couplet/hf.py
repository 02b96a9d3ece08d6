"""The coupling loss for Mixture-of-Experts models of Transformers.

    erc = couplet.hf.attach(model, weight=1.0, alpha=1.0)
    loss = out.loss + erc.loss()                  # your own loop
    erc.join(trainer)                             # or Transformers' Trainer: all that is needed"""
from __future__ import annotations

import math
import warnings
import weakref
from typing import Any, Dict, List, Optional, Set

import torch
from torch import Tensor, nn

from . import _figures, _layers
from ._door import (_level_of_caller, check_noise, compute_name, erc_loss, number, signed, warn_of_alpha,
                    whole_number)


def _zero(like: Optional[Tensor]) -> Tensor:
    """Of a call that evaluates nothing; a backward pass may begin at it all the same."""
    return torch.zeros((), dtype=torch.float32, device="cpu" if like is None else like.device,
                       requires_grad=torch.is_grad_enabled())


@torch.compiler.disable
def _versions(found: List[List[Tensor]]) -> list:
    """Each parameter, not kept alive, and its version counter, which moves when it is written to."""
    return [(weakref.ref(p), p._version) for many in found for p in many]


@torch.compiler.disable
def _watched(found: List[List[Tensor]]) -> Optional[Tensor]:
    """A parameter that every optimizer step changes: the first router, unless it is frozen."""
    return next((p for many in found for p in many if p.requires_grad), None)


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
        self._evaluated: Optional[list] = None   # the parameters then, and their versions
        self._bytes: Optional[Tensor] = None     # of `_watched` then
        self._warned_of: Set[str] = set()
        self._counted_outside = False            # next_step says when a step begins

    # ---- the loss ----

    def loss(self, divided_by: Optional[int] = None) -> Tensor:
        """weight * (mean or sum over layers of L) [], once per optimizer step.

        The first call of a step evaluates it; later calls of the same step (gradient accumulation) are
        a zero whose backward pass does nothing, as are all in `model.eval()` and with weight 0. A step
        is over when the version counter of a router or gate has moved or another parameter has its name,
        or when `next_step` is called. An optimizer that goes around the counters (`p.data.add_`) is
        found out by the numbers, with a warning.

        divided_by: by how many micro-batches the loss is divided before its backward pass; the one
        evaluation is multiplied by it, so that the step gets the whole coefficient. Default:
        `accumulation`, as told to `attach`.
        """
        if not self.model.training or self.weight == 0:
            return _zero(_layers.follow(self.model, self.layers[0].names[0]))
        found = self._parameters()
        if self._is_evaluated(found) and not self._changed_unseen(found):
            return _zero(found[0][0])
        self._warn_where_nothing_learns(found)
        if self._evaluated is not None and not self._counted_outside:
            self.step += 1
        # Under torch.no_grad() it is only looked at: the step's own evaluation is still to come.
        self._evaluated = _versions(found) if torch.is_grad_enabled() else None
        watched = None if self._counted_outside else _watched(found)
        self._bytes = None if watched is None else _layers.some_bytes(watched)
        total = self._sum_over_layers(found)
        count = len(self.layers) if self.reduce == "mean" else 1
        self.value = total.detach() / count  # read when it is logged
        times = self.accumulation if divided_by is None else divided_by
        return total * (self.weight * times / count)

    def _sum_over_layers(self, found: List[List[Tensor]]) -> Tensor:
        device = found[0][0].device
        total = torch.zeros((), dtype=torch.float32, device=device)
        for layer, parameters in zip(self.layers, found):
            one = erc_loss(layer.router(parameters), layer.gates(parameters), alpha=self.alpha,
                           noise=self.noise, seed=self.seed, step=self.step, layer=layer.number,
                           gate_half=layer.gate_half, compute=self.compute)
            total = total + one.to(device)
        return total

    # ---- the parameters ----

    def _parameters(self) -> List[List[Tensor]]:
        """Of each layer router and gates as the model has them now; where other code has changed their
        names or shapes the layers are found anew."""
        found = _layers.parameters(self.model, self.layers)
        if found is None:
            self.layers = _layers.find(self.model)
            found = _layers.parameters(self.model, self.layers)
        if found is None:
            raise RuntimeError("couplet: the model's parameters have other names than its modules")
        return found

    @torch.compiler.disable
    def _is_evaluated(self, found: List[List[Tensor]]) -> bool:
        """Whether this step has had its loss: all parameters are the same ones, none has been written to."""
        now = [p for many in found for p in many]
        seen = self._evaluated
        return seen is not None and len(seen) == len(now) and all(
            then() is p and version == p._version for (then, version), p in zip(seen, now))

    def _changed_unseen(self, found: List[List[Tensor]]) -> bool:
        """Whether numbers have changed and no version counter has moved: then a step was taken, and
        is to have its loss; but not where processes might see it differently."""
        watched = _watched(found)
        if self._bytes is None or watched is None:
            return False
        now = _layers.some_bytes(watched)
        if (now.shape, now.device) != (self._bytes.shape, self._bytes.device) or torch.equal(now, self._bytes):
            return False
        self._warn_once("a parameter has changed, but not its version counter, by which erc.loss() sees that "
                        "an optimizer step is over; call erc.next_step() whenever one begins")
        return not _layers.is_sharded(watched)

    def _warn_where_nothing_learns(self, found: List[List[Tensor]]) -> None:
        if torch.is_grad_enabled() and _watched(found) is None:
            self._warn_once("nothing learns from the coupling loss: no router and no gate that it sees needs a "
                            "gradient")

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned_of:
            warnings.warn(f"couplet: {sentence}", stacklevel=_level_of_caller())
        self._warned_of.add(sentence)

    def __getstate__(self) -> Dict[str, Any]:
        """Of a copy: the evaluated parameters are not its own, so that its next loss is of a new step."""
        return {**self.__dict__, "_evaluated": None if self._evaluated is None else []}

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
        weights' scale), kappa_row_top1, kappa_column_top1, proxy_route_top1, proxy_route_topk (of proxies with the
        noise of this step), row_route_top1, row_route_topk. per_layer: `name/3` for layer 3 too."""
        found = self._parameters()
        each = {layer.number: _figures.of_layer(
            layer.router(parameters), layer.gates(parameters), layer.gate_half, self.alpha, layer.K,
            self.seed, self.step, layer.number) for layer, parameters in zip(self.layers, found)}
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
        _need_transformers()
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


def _need_transformers() -> None:
    """Older Trainers do not say by how many micro-batches they divide (_divisor): that came with 4.55."""
    import transformers

    numbers = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    if numbers < (4, 56):
        raise ImportError(f"the Trainer of Transformers {transformers.__version__} is too old, couplet needs 4.56 or "
                          "newer: pip install -U transformers")


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
    they lie in the parameters: nothing is copied, nothing of the model is changed. They are looked up
    by name at every evaluation, so that the model may be sharded, moved or loaded later.

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
