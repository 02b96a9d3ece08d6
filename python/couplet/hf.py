"""The coupling loss for Mixture-of-Experts models of Transformers.

erc = couplet.hf.attach(model, weight=1.0, alpha=1.0)
out.loss.backward(); erc.backward()           # your own loop
erc.join(trainer)                             # or Transformers' Trainer: all that is needed"""

from __future__ import annotations

import re
import warnings
from typing import Any, Dict, List, Optional, Sequence, TypeVar, Union

import torch
from torch import Tensor, nn

from . import _attach
from .figures._router_stats import NAMES, RouterStats
from .models._layers import Layer, unwrapped
from .models._moe_map import MoeLayer, moe_map
from .models._weights import follow, plain_name
from .ops._checks import NOT_QUANTISED
from .ops._functional import _level_of_caller

TYPE_NAMES = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float64": "F64"}
AnyErc = TypeVar("AnyErc", bound=_attach.Erc)


# ---- the layers, by the table of families ----


def config_of(model: nn.Module) -> Dict[str, Any]:
    """Returns the config without entries on quantised weights: parameters in memory show these themselves."""
    config: Any = getattr(model, "config", None)

    def without(level: Dict[str, Any]) -> Dict[str, Any]:
        return {
            key: without(value) if isinstance(value, dict) else value
            for key, value in level.items()
            if key not in ("quantization_config", "compression_config")
        }

    return without(dict(config.to_dict() if hasattr(config, "to_dict") else config or {}))


def _what_to_do(model: nn.Module, named: Dict[str, nn.Parameter]) -> str:
    """Returns the advice that ends an error, or an empty text."""
    stored = next((f"{name} is {p.dtype}" for name, p in named.items() if str(p.dtype) not in TYPE_NAMES), None)
    has_config = getattr(getattr(model, "config", None), "quantization_config", None) is not None
    if stored or has_config:
        return f". {stored or 'The config has a quantization_config'}. {NOT_QUANTISED}"
    return (
        ". Layers that are not found by themselves can be given: couplet.attach(model, layers=[(router, gates), ...])"
    )


def _name_of(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "name_or_path", None) or type(model).__name__


def _layer(found: MoeLayer, shapes: Dict[str, torch.Size]) -> Layer:
    names = [found.router, *found.matrices]
    more = [name for name in (found.projection, found.latent_norm) if name]
    return Layer(
        found.layer,
        found.prefix,
        found.n,
        found.n,
        found.d,
        found.D,
        found.K,
        names,
        [shapes[name] for name in names + more],
        found.router_transposed,
        found.columns,
        found.half,
        down=found.projection or None,
        norm=found.latent_norm or None,
        latent_eps=found.latent_eps,
        zero_centred=bool(found.latent_norm),
    )


def find(model: nn.Module) -> List[Layer]:
    """Returns the layers of a model that can be measured, by number. Raises ValueError with the program's sentence for
    a model without experts, or one whose layers the table and its rules leave ambiguous."""
    named = {plain_name(name): p for name, p in model.named_parameters() if ".original_module." not in name}
    shapes = {name: p.shape for name, p in named.items()}
    for name, _ in model.named_parameters():
        if ".parametrizations." in name:  # the originals of a parametrization may have other shapes
            weight = follow(model, plain_name(name))
            shapes[plain_name(name)] = named[plain_name(name)].shape if weight is None else weight.shape
    tensors = [(name, TYPE_NAMES.get(str(p.dtype), "OTHER"), list(shapes[name])) for name, p in named.items()]
    path = _name_of(model)
    try:
        found = moe_map(path, config_of(model), tensors)
    except ValueError as error:
        raise ValueError(f"{error}{_what_to_do(model, named)}") from None
    by_shape = [entry.projection for entry in found.layers if entry.projection_by_shape]
    guess = f"{by_shape[0]} is taken for a projection before the experts, by its shape" if by_shape else None
    for sentence in filter(None, (found.guess, guess)):
        warnings.warn(f"couplet: {path}: {sentence}", stacklevel=_level_of_caller())
    layers = []
    for entry in found.layers:
        reason = entry.skip
        if not entry.comparable:
            reason = "router and experts read differently normalised vectors: no M, no ERC"
        if reason:
            warnings.warn(f"couplet: {path}: {entry.prefix}: left out: {reason}", stacklevel=_level_of_caller())
        else:
            layers.append(_layer(entry, shapes))
    if not layers:
        raise ValueError(f"{path}: no layer can be measured: {reason}")
    return layers


# ---- Transformers' Trainer ----

# Figures in the Trainer's log by default: the name there -> the name in `erc.figures()`, `erc.metrics()` or
# `couplet.RouterStats`.
LOGGED = {
    "erc": "erc",
    "erc_centred": "erc_centred",
    "kappa_own": "kappa_diagonal",
    "kappa_other": "kappa_off_diagonal",
    "alpha_min": "alpha_min",
    "maxvio": "router_maxvio",
    "dead": "router_dead",
    "margin": "router_margin",
}


def callback(erc: _attach.Erc, per_layer: bool = False, figures: Optional[Sequence[str]] = None) -> Any:
    """Returns a TrainerCallback, which `join` adds. It calls `erc.next_step` with the number of each optimizer step. It
    adds figures to the Trainer's log with the loss, so that TensorBoard, W&B and MLflow have them too: `erc`, a mean
    over the optimizer steps since the last log as the Trainer's loss is; `erc_centred`, `kappa_own`, `kappa_other` and
    `alpha_min` of the weights; `maxvio`, `dead` and `margin` of the routers' outputs, summed over all processes.

    It adds no gradient: without `join` the Trainer's `compute_loss` has to add `erc.loss()`. The first log without an
    evaluated loss brings a warning.

    per_layer: adds `name/3` of layer 3 and so on, and percentiles over layers of the figures of routers' outputs.
    figures: names to log, as above or as in `erc.figures()`, `erc.metrics()` and `couplet.RouterStats`;
    None: the eight above, without figures that the model's routers do not support."""
    _need_transformers()
    from transformers import TrainerCallback

    if isinstance(figures, str):
        raise TypeError(f"couplet: figures is {figures!r}, must be a list of names")
    names = {name: LOGGED.get(name, name) for name in (LOGGED if figures is None else figures)}
    chosen = _attach.check_figures(list(names.values()))
    stats = _router_stats(erc, [name for name in NAMES if name in chosen], is_optional=figures is None)
    ending = r"(_p\d+|/\d+)?" if per_layer else ""

    class ErcCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        coupling_loss = erc

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            erc.next_step(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if not logs or "loss" not in logs:
                return
            if erc.value is None and erc.weight != 0:
                erc._warn_once(
                    "the Trainer logs, and the coupling loss was never evaluated: the callback adds no "
                    "gradient; erc.join(trainer) adds both"
                )
            found = _figures(erc, per_layer, chosen)
            if stats is not None:
                found.update(stats.figures(per_layer, _all_processes()))
            found = {
                their + name[len(own) :]: value
                for their, own in names.items()
                for name, value in found.items()
                if re.fullmatch(own + ending, name)
            }
            logs.update(found)
            if state.log_history:  # written before the callbacks are called
                state.log_history[-1].update(found)

    return ErcCallback()


def _router_stats(erc: _attach.Erc, names: Sequence[str], is_optional: bool) -> Optional[RouterStats]:
    """Returns the counters of the named figures, or None if no figure needs them. If is_optional, layers whose routers
    return nothing that can be counted are left out. Otherwise they raise ValueError."""
    if not names:
        return None
    try:
        stats = erc.router_stats(names=names)
    except ValueError:
        if not is_optional:
            raise
        return None
    for counter in stats.counters:
        counter.is_optional = is_optional
    return stats


def _figures(erc: _attach.Erc, per_layer: bool, chosen: Sequence[str]) -> Dict[str, float]:
    of_weights = [name for name in chosen if name not in _attach.ELSEWHERE and name != "erc"]
    return {**(erc.figures(per_layer, of_weights) if of_weights else {}), **erc.metrics(per_layer)}


def _all_processes() -> Any:
    dist = torch.distributed
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def join(erc: AnyErc, trainer: Any, per_layer: bool = False, figures: Optional[Sequence[str]] = None) -> AnyErc:
    """Adds the loss's gradients in each optimizer step of a Trainer, by `erc.backward` after the last backward pass of
    the step. Adds the callback (see `callback`) in front of callbacks that report. The Trainer's own `loss` remains the
    model's loss; `erc` is logged beside it.

    Under DeepSpeed and FSDP1, whose gradients are not in `.grad`, and with optimizers that make their steps inside the
    backward pass (`optim` "..._layerwise", "lomo", "adalomo"), the loss is added to the Trainer's instead.

    Raises ValueError for a Trainer that has a coupling loss."""
    if any(hasattr(one, "coupling_loss") for one in trainer.callback_handler.callbacks):
        raise ValueError(
            "couplet: the Trainer has a coupling loss from an earlier join, and a second one would count "
            "twice; make a new Trainer, or keep what was joined"
        )
    _check_model(erc, trainer)
    trainer.callback_handler.callbacks.insert(0, callback(erc, per_layer, figures))
    (_join_steps if _has_gradients_in_parameters(trainer) else _join_losses)(erc, trainer)
    return erc


def _check_model(erc: _attach.Erc, trainer: Any) -> None:
    if trainer.model_init is not None:
        raise ValueError(
            "couplet: the Trainer makes a new model by model_init in each training, and the coupling loss is of "
            "the one that it has now; give it model= in place of model_init="
        )
    theirs = {id(p) for p in trainer.model.parameters()}
    if not any(id(p) in theirs for p in erc.model.parameters()):
        raise ValueError(
            "couplet: the coupling loss is attached to another model than the Trainer's: "
            "couplet.hf.attach(trainer.model).join(trainer)"
        )


def _join_steps(erc: _attach.Erc, trainer: Any) -> None:
    """Adds gradients after the last micro-batch, when activations are freed and gradients are not yet clipped."""
    inner = trainer.training_step

    def training_step(*args: Any, **more: Any) -> Any:
        loss = inner(*args, **more)
        if trainer.accelerator.sync_gradients:
            erc.backward(_scale_of(trainer))
        return loss

    trainer.training_step = training_step


def _join_losses(erc: _attach.Erc, trainer: Any) -> None:
    inner = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        result = inner(model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        if not model.training:
            return result
        extra = erc.loss(_divisor(trainer, num_items_in_batch))
        if return_outputs:
            return result[0] + extra.to(result[0].device), result[1]
        return result + extra.to(result.device)

    trainer.compute_loss = compute_loss


def _has_gradients_in_parameters(trainer: Any) -> bool:
    """Returns whether a gradient that is added to `.grad` reaches the optimizer."""
    if getattr(trainer, "is_deepspeed_enabled", False) or re.search("layerwise$|lomo$", trainer.args.optim):
        return False
    if not getattr(trainer, "is_fsdp_enabled", False):
        return True
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    return int(getattr(plugin, "fsdp_version", 1)) == 2


def _scale_of(trainer: Any) -> Union[float, Tensor]:
    """Returns the factor by which the Trainer's gradient scaler (f16) multiplies losses."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    if scaler is None or not scaler.is_enabled():
        return 1.0
    scale: Tensor = scaler.scale(torch.ones((), device=trainer.args.device, dtype=torch.float32))
    return scale


def _need_transformers() -> None:
    """Refuses Transformers before 4.56, whose Trainers may not show the number of micro-batches by which they divide
    (_divisor)."""
    import transformers

    numbers = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    if numbers < (4, 56):
        raise ImportError(
            f"the Trainer of Transformers {transformers.__version__} is too old, couplet needs 4.56 or "
            "newer: pip install -U transformers"
        )


def _divisor(trainer: Any, num_items_in_batch: Any) -> int:
    """Returns the number by which Trainer.training_step divides the result of compute_loss."""
    scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
    if scaled is None:
        scaled = (
            trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
        ) or trainer.compute_loss_func is not None
    return 1 if scaled else int(trainer.current_gradient_accumulation_steps)


class Erc(_attach.Erc):
    """The coupling loss of a Transformers model; made by `attach`."""

    def callback(self, per_layer: bool = False, figures: Optional[Sequence[str]] = None) -> Any:
        """Returns the callback with which `join` logs `erc`, `alpha_min` and others; see `couplet.hf.callback`."""
        return callback(self, per_layer, figures)

    def join(self, trainer: Any, per_layer: bool = False, figures: Optional[Sequence[str]] = None) -> Erc:
        """Calls `couplet.hf.join`."""
        return join(self, trainer, per_layer, figures)


def attach(
    model: nn.Module,
    weight: float = 1.0,
    alpha: float = 1.0,
    reduction: Optional[str] = None,
    seed: int = 0,
    *,
    noise: str = "bounded",
    compute: Any = None,
    accumulation: int = 1,
    reduce: Optional[str] = None,
    proxy: str = "row",
) -> Erc:
    """Attaches the coupling loss to every Mixture-of-Experts layer of a Transformers model; returns its Erc.

    Routers and gates are found by the table of families that `couplet inspect` reads, and used in place:
    no tensor is copied, and the model is not changed. They are looked up by name at every evaluation, so
    that the model may be sharded, moved or loaded later.

    Args:
        model: any model whose parameters' names and config identify its family; compiled or in
            DistributedDataParallel, too.
        weight, alpha: coefficient of the loss, and its alpha (both 1 in the paper).
        reduction: "mean" (default) or "sum" over the layers. `reduce` is its old name.
        seed, noise, compute: as in `couplet.erc_loss`.
        accumulation: number of micro-batches by which your loop divides its loss; 1 if it does not divide.
            `join` detects it.
        proxy: "row" or "tokens", as in `couplet.attach`. Padding is left out by the model's attention_mask.

    Experts that are spread over processes are not found. For them use `couplet.attach`, with `group` or
    `tensor_group`, and `couplet.hf.join(erc, trainer)`.

    Raises:
        ValueError: with the sentence of `couplet inspect`, for a model without experts or of a family
            that is neither in the table nor plain from names and shapes.
    """
    _attach.check_model(model)
    which = _reduction(reduction, reduce)
    return Erc(unwrapped(model), find, weight, alpha, which, seed, noise, compute, accumulation, proxy=proxy)


def _reduction(reduction: Optional[str], reduce: Optional[str]) -> str:
    if reduce is not None:
        if reduction is not None:
            raise TypeError(f"couplet: reduction {reduction!r} and its old name reduce {reduce!r} are both given")
        warnings.warn(
            "couplet: reduce is now called reduction, as in torch", DeprecationWarning, stacklevel=_level_of_caller()
        )
        return reduce
    return "mean" if reduction is None else reduction
