"""The coupling loss of all Mixture-of-Experts layers of a model, once per optimizer step.

erc = couplet.attach(model, layers=[(router, gates), ...])
model_loss.backward(); erc.backward()"""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
    cast,
)

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import TensorWeakRef

from . import _step
from ._token_means import TokenMeans
from .figures import _figures, _router_stats, _token_figures
from .models import _layers
from .models._layers import Entries, Layer
from .models._weights import Weight, follow, is_sharded, outside_graphs, some_bytes
from .ops._functional import (
    _level_of_caller,
    check_noise,
    compute_name,
    loss_and_matrix,
    number,
    refuse_mesh,
    signed,
    warn_of_alpha,
    whole_number,
)
from .ops._library import backend

Find = Callable[[nn.Module], List[Layer]]
MANY_STEPS = 8  # successive steps: more than a gradient scaler skips


def _zero(like: Optional[Tensor]) -> Tensor:
    """Returns the result [] of a call without an evaluation. A backward pass may begin at it."""
    return torch.zeros(
        (), dtype=torch.float32, device="cpu" if like is None else like.device, requires_grad=torch.is_grad_enabled()
    )


def _parts(found: List[List[Weight]]) -> List[Tensor]:
    """Returns all parameters from which the weights are computed."""
    return [part for many in found for weight in many for part in weight.parts]


def _that_learn(found: List[List[Weight]]) -> List[Any]:
    """Returns weak references to the parameters that need a gradient."""
    return [weakref.ref(p) for p in _parts(found) if p.requires_grad]


def _gradients(parts: Sequence[Any]) -> List[Tuple[Any, TensorWeakRef]]:
    """Returns each weakly referenced parameter with its `.grad`, if it has one. Nothing is kept alive."""
    there = [(part, part().grad) for part in parts if part() is not None]
    return [(part, TensorWeakRef(gradient)) for part, gradient in there if gradient is not None]


def _is_there(part: Any, gradient: TensorWeakRef) -> bool:
    """Returns whether the parameter still has this gradient, or has a gradient in a larger storage.
    DistributedDataParallel moves gradients into buckets, and FSDP1 into the storage of all parameters."""
    now = None if part() is None else part().grad
    return now is not None and (
        now is gradient() or not is_sharded(now) and now.untyped_storage().nbytes() > now.numel() * now.itemsize
    )


def _watched(found: List[List[Weight]]) -> Optional[Tensor]:
    """Returns a parameter that every optimizer step changes: the first router, unless it is frozen."""
    return next((p for p in _parts(found) if p.requires_grad), None)


class _Ready(torch.autograd.Function):
    """Autograd function that returns a loss [] whose gradients exist already."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: List[Optional[Tensor]], *leaves: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, by: Tensor) -> Any:
        wide = [None if g is None else torch.promote_types(g.dtype, by.dtype) for g in ctx.gradients]
        return (
            None,
            None,
            *(
                None if g is None else (g.to(dtype) * by.to(g.device)).to(g.dtype)
                for g, dtype in zip(ctx.gradients, wide)
            ),
        )


def _with_gradients(weights: List[Weight], loss: Callable[[], Tuple[Tensor, Tensor]]) -> Tuple[Tensor, Tensor]:
    """Returns the loss of one layer and M, which loss() computes. Where the layer's weights are gathered or computed,
    the gradients of their parameters are computed here, so that gathered weights are freed before the next layer."""
    parts = [p for weight in weights for p in weight.parts if p.requires_grad]
    if not torch.is_grad_enabled() or not parts or not any(w.is_computed or is_sharded(w.parameter) for w in weights):
        return loss()
    value, M = loss()
    gradients = torch.autograd.grad(value, parts, allow_unused=True)
    return cast(Tensor, _Ready.apply(value.detach(), list(gradients), *parts)), M


def _watch_optimizers(erc: Erc) -> None:
    """Calls erc._note_step after each step of an optimizer, as long as `erc` exists."""
    kept = weakref.ref(erc)

    @outside_graphs
    def after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        found = kept()
        if found is not None:
            found._note_step(optimizer)

    handle = register_optimizer_step_post_hook(after_step)
    weakref.finalize(erc, handle.remove)


_attached: "weakref.WeakKeyDictionary[nn.Module, weakref.WeakSet[Erc]]" = weakref.WeakKeyDictionary()  # routers


def _note_attached(erc: Erc) -> None:
    """Records erc for its routers' modules. A router has at most one Erc: two would both add the loss. Wrappers of a
    model have the modules of that model."""
    modules = {_router_stats.modules_of(erc.model, layer.names[0])[-1] for layer in erc.layers}
    each = [_attached.setdefault(module, weakref.WeakSet()) for module in modules]
    if any(each) and gc.collect() >= 0 and any(each):  # an Erc that belongs to a Trainer is in a cycle of references
        warnings.warn(
            "couplet: the model has a coupling loss from an earlier attach, and where both are used it counts "
            "twice: keep the earlier one, or delete it and the Trainer that has it (del erc, trainer) before "
            "attach is called again",
            stacklevel=_level_of_caller(),
        )
    for ercs in each:
        ercs.add(erc)


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"couplet: model is a {type(model).__name__}, must be a torch.nn.Module")


def _checked(name: str, value: Any) -> Any:
    """Returns the checked value of an attribute of an Erc. The settings are arguments of `attach`."""
    if name in ("weight", "alpha"):
        value = number(value, name)
        if not 0 <= value < math.inf:
            raise ValueError(f"couplet: {name} is {value}, must be a number >= 0")
    elif name in ("seed", "step", "accumulation"):
        value = whole_number(value, name)
        if name == "accumulation" and value < 1:
            raise ValueError(f"couplet: accumulation is {value}, must be at least 1")
        signed(value)
    elif name == "noise":
        check_noise(value)
    elif name == "compute":
        compute_name(value)
    elif name == "reduction" and value not in ("mean", "sum"):
        raise ValueError(f"couplet: reduction is {value!r}, must be mean or sum")
    return value


class Erc:
    """The coupling loss of all Mixture-of-Experts layers of a model; made by `attach`.

    weight, alpha, accumulation and reduction may be changed at any time, for example by a schedule. An
    evaluation uses their current values."""

    def __init__(
        self,
        model: nn.Module,
        find: Find,
        weight: float,
        alpha: float,
        reduction: str,
        seed: int,
        noise: str,
        compute: Any,
        accumulation: int,
        group: Any = None,
        tensor_group: Any = None,
        proxy: str = "row",
        routers: Optional[Sequence[nn.Module]] = None,
        tokens_group: Any = None,
    ):
        self.weight, self.alpha, self.reduction, self.seed = weight, alpha, reduction, seed
        self.noise, self.compute, self.accumulation = noise, compute, accumulation
        self.model, self.find = model, find
        self.layers = find(model)
        self.group, self.tensor_group = group, tensor_group
        self.step = 0  # number of the step for the noise: optimizer steps that had a loss
        self.value: Optional[Tensor] = None  # [], result of the last evaluation, reduced, before the weight
        self.values: List[Tensor] = []  # [] for each layer, before the weight
        self.matrices: List[Tensor] = []  # M [n, n] for each layer; with expert parallelism this process's columns
        self._sum: Optional[Tensor] = None  # [], sum of `value` since the last metrics(); _evaluations counts the terms
        self._evaluations = 0
        self._router: Optional[_router_stats.RouterStats] = None
        self._router_settings: Dict[str, Any] = {}  # arguments with which `router_stats` made _router
        self._has_loss = False  # the loss of this step has counted
        # State of the last loss that has counted:
        self._counted: List[Any] = []  # weak references to the parameters that had the loss
        self._counted_by: Optional[object] = None  # the result of `loss` whose backward pass counted
        self._written: List[Tuple[Any, TensorWeakRef]] = []  # the gradients to which the loss was added
        self._made_them = False  # `backward` made the gradients
        self._is_running = False  # the backward pass that counted has not ended
        self._bytes: Optional[Tensor] = None  # bytes of `_watched` when the loss counted
        self._stepped = False  # a torch optimizer with these parameters has made a step since
        self._hook_is_seen = False  # further steps of that optimizer are therefore seen, too
        self._other_steps = 0  # before _hook_is_seen: steps of optimizers without these parameters
        self._counts = 0  # times the loss has counted since such a step, or since next_step
        self._repeats = 0  # successive steps in which the loss counted several times
        self._counted_outside = False  # next_step marks the beginning of each step
        self._was_told = False  # next_step has begun the present step, which lasts until its next call
        self._warned_of: Set[str] = set()
        if proxy not in ("row", "tokens"):
            raise ValueError(f"couplet: proxy is {proxy!r}, must be row or tokens")
        if proxy == "row" and (routers is not None or tokens_group is not None):
            raise ValueError('couplet: routers and tokens_group are for proxy="tokens"; give it, or leave them out')
        # The moving means of the tokens. None: the proxies are made of the router's rows
        self.tokens = TokenMeans(self, routers, tokens_group) if proxy == "tokens" else None
        _watch_optimizers(self)
        _note_attached(self)

    def __repr__(self) -> str:
        experts = sorted({layer.n for layer in self.layers})
        return (
            f"{type(self).__name__}({len(self.layers)} layers of {', '.join(map(str, experts))} experts, "
            f"weight={self.weight:g}, alpha={self.alpha:g}, reduction={self.reduction!r}, noise={self.noise!r}, "
            f"step={self.step}, backend={backend().split(':')[0]})"
        )

    if not TYPE_CHECKING:  # a type checker that saw __getattr__ would accept a misspelt attribute

        def __setattr__(self, name: str, value: Any) -> None:
            value = _checked(name, value)
            if name == "alpha":
                warn_of_alpha(value, self.__dict__.get("alpha", 1.0))
            object.__setattr__(self, name, value)

    # ---- the loss ----

    @outside_graphs
    def loss(self, divided_by: Optional[int] = None) -> Tensor:
        """Returns weight * (mean or sum over layers of L) [], which counts once per optimizer step.

        The loss of a step counts when the backward pass of a result runs, or `backward` is called. A result without a
        backward pass does not count. After the loss has counted, calls in the same step (gradient accumulation) return
        a zero, and the backward pass of another result adds nothing. The result is also zero in `model.eval()`, so that
        evaluation losses do not contain the loss, and with weight 0.

        A step ends when a torch optimizer that has a router or gate has made its step, when `next_step` is called,
        or when the `.grad` to which the loss was added is gone (`zero_grad` after a skipped step). Before the
        first optimizer that is seen and the first `next_step`, changed weights end the step too, with a warning.

        divided_by: the number of micro-batches by which the loss is divided before its backward pass. The one
        evaluation is multiplied by this number, so that the step gets the whole coefficient. Default:
        `accumulation` of `attach`.
        """
        if not self.model.training and self.weight != 0 and torch.is_grad_enabled():
            self._warn_once("the model is in eval mode, in which erc.loss() is 0; erc.backward() counts there too")
        if not self.model.training or self.weight == 0 or self._has_no_means():
            return self._nothing()
        found = self._weights()
        if self._has_counted(found):
            return _zero(found[0][0].parameter)
        self._check_what_learns(found)
        both = [
            _with_gradients(many, partial(self._layer_loss, layer, many, delta))
            for layer, many, delta in zip(self.layers, found, self._deltas(found))
        ]
        values = [one[0] for one in both]
        value = self._note_results(values, [one[1] for one in both])
        return self._counting(self._reduced(values) * self._factor(divided_by), value, found)

    def _has_no_means(self) -> bool:
        """Returns whether the proxies need means of tokens that no step has made yet."""
        if self.tokens is None or self.tokens.steps:
            return False
        self._check_optimizers()
        return True

    def _nothing(self) -> Tensor:
        first = follow(self.model, self.layers[0].names[0])
        return _zero(None if first is None else first.parameter)

    def _counting(self, result: Tensor, value: Tensor, found: List[List[Weight]]) -> Tensor:
        """Returns `result` with a hook, so that only one such result counts in a step: the first whose backward pass
        runs."""
        if not result.requires_grad:
            return result
        here, of_result = weakref.ref(self), object()
        parts = _that_learn(found)

        def count(by: Tensor) -> Tensor:
            erc = here()
            if erc is None or erc._counted_by is of_result:
                return by
            if erc._has_counted(found):
                return torch.zeros_like(by)
            erc._count(found, value, of_result)
            erc._is_running = True

            def after() -> None:
                erc._written, erc._is_running = _gradients(parts), False

            engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined, unused-ignore]
            engine.queue_callback(after)
            return by

        result.register_hook(count)  # type: ignore[no-untyped-call, unused-ignore]
        return result

    def _reduced(self, values: List[Tensor]) -> Tensor:
        """Returns the mean or sum of the values, on the device of the first layer."""
        total = torch.stack([one.to(values[0].device) for one in values]).sum()
        return total / len(values) if self.reduction == "mean" else total

    def _note_results(self, values: List[Tensor], matrices: List[Tensor]) -> Tensor:
        """Saves the results of an evaluation for `metrics`. Nothing is read from the device."""
        self.values, self.matrices = [one.detach() for one in values], matrices
        self.value = self._reduced(self.values)
        return self.value

    @outside_graphs
    @torch.inference_mode(False)
    def backward(self, scale: Union[float, Tensor] = 1.0, *, attribute: str = "grad") -> Tensor:
        """Adds the gradients of `loss` to the gradients of routers and gates, layer by layer, once per optimizer step;
        returns weight * (mean or sum over layers of L) [], without a graph.

        Call it after the model's own backward pass, when the activations are freed, and before gradients are
        clipped: the loss depends on no activation. Nothing of a layer is kept. An existing gradient is added to in
        place. Micro-batches do not matter: `.grad` gets the whole coefficient. Later calls in the step have no effect
        and return zero, as do all calls with weight 0. A step ends as with `loss`. In `model.eval()` the loss counts as
        in training, with a warning.

        scale: factor of the gradients, a number or a tensor []: the factor of your loss before its backward pass,
            as with a gradient scaler.
        attribute: the attribute of a parameter to which gradients are added; "main_grad" in Megatron-Core.

        Gradients of replicas are averaged afterwards (DDP, FSDP): every replica adds equal gradients, so the mean is
        right.
        """
        if isinstance(scale, Tensor) and scale.numel() != 1:
            raise ValueError(f"couplet: scale is a tensor {list(scale.shape)}, must be a number or a tensor []")
        number_ = 1.0 if isinstance(scale, Tensor) else number(scale, "scale")
        tensor = scale.detach().reshape(()) if isinstance(scale, Tensor) else None
        if not math.isfinite(number_):
            raise ValueError(f"couplet: scale is {number_}, must be a finite number")
        if self.weight == 0 or self._has_no_means():
            return self._nothing().detach()
        if not self.model.training:
            self._warn_once(
                "the model is in eval mode, and erc.backward() adds the gradients of the coupling loss all the same"
            )
        with torch.enable_grad():
            found = self._weights()
            if self._has_counted(found):
                return _zero(found[0][0].parameter).detach()
            self._check_what_learns(found)
        parts = _that_learn(found) if attribute == "grad" else []
        made_them = all(part().grad is None for part in parts)
        with torch.no_grad():
            value = self._add_gradients(found, number_, tensor, attribute)
        self._count(found, value)
        self._written, self._made_them = _gradients(parts), made_them
        return value * self.weight

    def _add_gradients(
        self, found: List[List[Weight]], number_: float, tensor: Optional[Tensor], attribute: str
    ) -> Tensor:
        """Adds the gradients of all layers; returns the layers' mean or sum [], before the weight."""
        each = self.weight / (len(self.layers) if self.reduction == "mean" else 1)
        options = _step.Options(
            self.alpha,
            each * number_,
            tensor,
            self.noise,
            self.seed,
            self.step,
            self.compute,
            self._spread(),
            attribute,
            self.tokens,
        )
        results = _step.add_gradients(self.layers, found, options)
        device = results[0].total.device
        values = torch._foreach_div([r.total.to(device) for r in results], [float(layer.n**2) for layer in self.layers])
        return self._note_results(list(torch.stack(values).float().unbind()), [r.M for r in results])

    def _has_counted(self, found: List[List[Weight]]) -> bool:
        """Returns whether the loss of this step has counted. Where the step has ended, the next one begins."""
        if self._is_running and torch._C._current_graph_task_id() == -1:
            self._begin(self.step)  # an exception has ended the backward pass
        self._check_optimizers()
        if self._has_loss and (self._has_ended(found) or self._changed_unseen(found)):
            self._begin(self.step + 1)
        return self._has_loss

    def _check_optimizers(self) -> None:
        if self._other_steps >= MANY_STEPS and not self._hook_is_seen:
            self._warn_once(
                f"optimizers of PyTorch have made {MANY_STEPS} steps, none of them one that has a router or "
                "gate: make the optimizer of the parameters of the model that erc is attached to, or call "
                "erc.next_step() whenever a step begins if it holds copies of them"
            )

    def _count(self, found: List[List[Weight]], value: Tensor, of_result: Optional[object] = None) -> None:
        """Marks the loss of this step, `value` before the weight, as counted."""
        self._sum = value if self._sum is None else self._sum + value
        self._evaluations, self._counts = self._evaluations + 1, self._counts + 1
        self._has_loss, self._counted, self._counted_by = True, [weakref.ref(p) for p in _parts(found)], of_result
        self._written, self._made_them, self._stepped = [], False, False
        watched = None if self._counted_outside or self._hook_is_seen else _watched(found)
        self._bytes = None if watched is None else some_bytes(watched)

    def _begin(self, step: int) -> None:
        self.step, self._has_loss, self._counted_by, self._is_running = step, False, None, False
        self._was_told = False

    def _factor(self, divided_by: Optional[int]) -> float:
        return float(self.weight * (self.accumulation if divided_by is None else number(divided_by, "divided_by")))

    def _deltas(self, found: List[List[Weight]]) -> Iterator[Optional[Tensor]]:
        """Returns the noise [n, d] of each layer, or None where the layer's own evaluation draws noise or uses none."""
        if self._spread() is not None:
            return iter([None] * len(found))
        return _step.deltas(self.layers, found, self.noise, self.seed, self.step, self.tokens)

    def _layer_loss(self, layer: Layer, weights: List[Weight], delta: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
        """Returns L [] of one layer, before the weight, and M."""
        router, gates, latent = layer.router(weights), layer.gates(weights), layer.latent(weights)
        if self.tokens is not None:
            router = self.tokens.of(router, self.layers.index(layer))
        noise = self.noise if delta is None else "drawn"
        if self._spread() is None:
            return loss_and_matrix(
                router,
                gates,
                None,
                None,
                self.alpha,
                1.0,
                "gate",
                noise,
                delta,
                self.seed,
                self.step,
                layer.number,
                0,
                layer.gate_half,
                self.compute,
                latent,
            )
        from .parallel import loss_and_columns

        return loss_and_columns(
            router,
            gates,
            self.group,
            alpha=self.alpha,
            noise=noise,
            seed=self.seed,
            step=self.step,
            layer=layer.number,
            gate_half=layer.gate_half,
            compute=self.compute,
            tensor_group=self.tensor_group,
            latent=latent or (None, None, None),
        )

    def _spread(self) -> Any:
        """Returns the parallel.Processes, or None where every process has all experts."""
        if self.group is None and self.tensor_group is None:
            return None
        from .parallel import Processes

        return Processes(self.group, self.tensor_group)

    # ---- the weights ----

    def _weights(self) -> List[List[Weight]]:
        """Returns each layer's present router and gates. Layers whose names or shapes have changed are found again."""
        found = _layers.weights(self.model, self.layers)
        if found is None:
            self.layers = self.find(self.model)
            found = _layers.weights(self.model, self.layers)
        if found is None:
            raise RuntimeError(
                "couplet: the routers and gates that named_parameters() lists are not found under these names "
                "in the model's modules; attach to the model that has them, not to what wraps it"
            )
        return found

    def _has_ended(self, found: List[List[Weight]]) -> bool:
        """Returns whether the step whose loss has counted is over."""
        if self._stepped or not self._was_told and self._are_gone():
            return True
        now = _parts(found)
        return not self._counted_outside and (
            len(self._counted) != len(now) or any(then() is not p for then, p in zip(self._counted, now))
        )

    def _are_gone(self) -> bool:
        """Returns whether all the gradients that the loss was added to are gone."""
        return bool(self._written) and not any(_is_there(*one) for one in self._written)

    def _changed_unseen(self, found: List[List[Weight]]) -> bool:
        """Returns whether weights have changed although no optimizer was seen. Then a step was made, and the next one
        needs its loss. Returns False where processes might disagree about the change."""
        watched = _watched(found)
        if self._bytes is None or watched is None:
            return False
        now = some_bytes(watched)
        if (now.shape, now.device) != (self._bytes.shape, self._bytes.device) or torch.equal(now, self._bytes):
            return False
        self._warn_once(
            "a router or gate has changed, but no optimizer of PyTorch that has it has made a step, by which erc "
            "sees that a step is over; call erc.next_step() whenever one begins"
        )
        return not is_sharded(watched)

    def _check_what_learns(self, found: List[List[Weight]]) -> None:
        if not torch.is_grad_enabled():
            return
        if any(p.is_inference() for p in _parts(found)):
            raise ValueError(
                "couplet: a router or gate was made under torch.inference_mode() and can get no gradient; "
                "make or load the model outside of it"
            )
        if _watched(found) is None:
            self._warn_once(
                "nothing learns from the coupling loss: no router and no gate that it sees needs a gradient"
            )

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned_of:
            warnings.warn(f"couplet: {sentence}", stacklevel=_level_of_caller())
        self._warned_of.add(sentence)

    def __getstate__(self) -> Dict[str, Any]:
        """Returns the state of a copy. A copy has no counted parameters, so its next loss begins a new step."""
        return {
            **self.__dict__,
            "step": self.step + self._has_loss,
            "_has_loss": False,
            "_counted": [],
            "_counted_by": None,
            "_written": [],
            "_is_running": False,
        }

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        _watch_optimizers(self)
        _note_attached(self)

    def _note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Updates the state after a step of any torch optimizer."""
        known = [then() for then in self._counted]
        if self.tokens is not None:  # a step without a loss counts too
            known += _parts(self._weights())
        counted = {id(p) for p in known if p is not None}
        if not any(id(p) in counted for group in optimizer.param_groups for p in group["params"]):
            self._other_steps += bool(counted)
            return
        if self.tokens is not None:
            self.tokens.end_step()
        if not self._stepped:
            self._check_step()
            self._stepped = self._hook_is_seen = True

    def _check_step(self) -> None:
        """Checks once that an optimizer's step had the loss."""
        if self._made_them and self._are_gone():
            self._warn_once(
                "the gradients that erc.backward() made are gone at the optimizer's step: where zero_grad() has "
                "cleared them they train nothing; call erc.backward() between the two. Where an optimizer makes "
                "its steps inside the model's backward pass (by hooks), call it in front of that pass, or add "
                "erc.loss() to the model's loss"
            )
        self._counts, self._repeats = 0, self._repeats + 1 if self._counts > 1 else 0
        if self._repeats == MANY_STEPS:
            self._warn_once(
                f"the coupling loss has counted several times in each of {MANY_STEPS} steps, since gradients are "
                "cleared or replaced within a step: call erc.backward() once, behind the last micro-batch, or "
                "erc.next_step(step) in front of each evaluation of a step that has several (LBFGS, SAM)"
            )

    def next_step(self, step: Optional[int] = None) -> None:
        """Begins an optimizer step, whose loss has not counted. `step` is its number for the noise (default: the last
        number plus one). A resumed run that passes the number draws the noise of an uninterrupted run."""
        if self.tokens is not None:
            self.tokens.end_step()
        self._begin(step if step is not None else self.step + self._has_loss)
        self._counted_outside, self._other_steps, self._counts = True, 0, 0
        self._was_told = True

    def state_dict(self) -> Dict[str, Any]:
        """Returns the number of the step that begins next, for the noise, and with proxies of tokens their moving means
        (`tokens`). A resumed run needs no other state."""
        self._has_counted(self._weights())
        return {"step": self.step, **({} if self.tokens is None else {"tokens": self.tokens.state_dict()})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state` that `state_dict` returned: `step` is the number of the step for the noise."""
        if self.tokens is None and "tokens" in state:
            raise ValueError('couplet: the state has means of tokens; attach with proxy="tokens", which they are for')
        means = None if self.tokens is None else self.tokens.check_state(state.get("tokens"))
        self._begin(whole_number(state["step"], "step"))
        if self.tokens is not None and means is not None:
            self.tokens.load(*means)

    # ---- figures to log ----

    def metrics(self, per_layer: bool = False, reset: bool = True) -> Dict[str, float]:
        """Returns the figures of past evaluations, without new products. It is no collective. Before the weight:
        `erc`: the loss, a mean over the optimizer steps since the last call (reset=False leaves the interval
        open); `erc_last`: the loss of the last step; `proxy_active_rows`, `proxy_active_columns`, `proxy_alpha_min`: as
        in `figures`, for the last step's M, whose rows are the proxies with noise (not under expert parallelism,
        where a process has only some columns of M). per_layer: also `erc/3`, the last loss of layer 3, and so on. The
        result is empty before the first evaluation. The tensors are `erc.value`, `erc.values` and `erc.matrices`.
        Only this method reads them, in one read."""
        if self.value is None:
            return {}
        device, mean = self.value.device, self.value if self._sum is None else self._sum / self._evaluations
        found = {"erc": mean, "erc_last": self.value}
        if self.group is None:
            found.update(self._of_matrices(per_layer))
        if per_layer:
            found.update({f"erc/{layer.number}": value for layer, value in zip(self.layers, self.values)})
        values = torch.stack([value.to(device, torch.float32) for value in found.values()]).tolist()
        if reset:
            self._sum, self._evaluations = None, 0
        return dict(zip(found, values))

    @torch.no_grad()
    def _of_matrices(self, per_layer: bool) -> Dict[str, Tensor]:
        """Returns name -> figure [], computed from the last M of each layer."""
        each = [
            {
                f"proxy_{name}": value.to(self.matrices[0].device)
                for name, value in _figures.hinges(M.double(), self.alpha).items()
                if name != "erc_clean"
            }
            for M in self.matrices
        ]
        over = {name: torch.stack([one[name].double() for one in each]) for name in OF_MATRICES}
        found = {name: values.max() if name == "proxy_alpha_min" else values.mean() for name, values in over.items()}
        if per_layer:
            found.update(
                {f"{name}/{layer.number}": one[name] for layer, one in zip(self.layers, each) for name in OF_MATRICES}
            )
        return found

    def figures(self, per_layer: bool = False, figures: Optional[Sequence[str]] = None) -> Dict[str, float]:
        """Returns figures of the present weights. `erc` is the last evaluation, reduced, before the weight. The
        rest are means over layers, for the clean rows R [n, d], under the names of `couplet train`'s metrics
        (docs/formats.md). W_j: the gate [D, d] of expert j. M_ij = |R_i W_j|. For latent experts M_ij = |V_i W_j| and
        kappa has |V_i|, where V_i is what the experts read of R_i.

        erc_clean: the loss without noise. active_rows, active_columns: share of its active hinges.
        alpha_min: the smallest alpha without loss; with several layers, the largest of their values.
        m_diagonal, m_off_diagonal: means of M.
        kappa_diagonal, kappa_off_diagonal: means of M_ij / (|R_i| |W_j|_F), which does not depend on the weights'
            scale; kappa_row_top1, kappa_column_top1: share of rows and columns with the largest entry on the diagonal.
        eps_mean, eps_min, eps_max: of the bound of the noise; eps_above_1: number of bounds above 1;
            noise_bound_share: the bound over the largest right bound (docs/method.md 5.1).
        router_norm_mean, router_norm_std, gate_norm_mean, gate_norm_std: of |R_i| and |W_j|_F; zero_rows: number of
            rows that are 0. router_cos: mean |cos| of two rows. router_condition, router_effective_rank: of the
            singular values of R.
        proxy_route_top1, proxy_route_topk: share of the proxies with the noise of this step that the router sends to
            their own expert; row_route_top1, row_route_topk: share of the rows.
        erc_centred, centred_NAME: of the rows less their mean, without noise; no change of R that leaves softmax
            routing as it is changes them.
        Computed only if asked for by name, as they cost more than M: router_lambda, centred_router_lambda: mean of
            |R_i W_i| / (|R_i| |W_i|_2), 1 if each row is the direction that its gate answers most (Manifold Power
            Iteration, arXiv 2606.12397); router_lambda_random: mean of |W_i|_F / (sqrt(d) |W_i|_2), the root mean
            square of router_lambda for rows of random direction. Their relative error is at most 1e-4.

        per_layer: also `name/3` for layer 3. figures: the names to return; None: all but lambda. `..._topk` is left out
        where the model's config does not give K. Only the input of these figures is computed: gates are read (under
        FSDP2 gathered, with `group` the processes exchange) for erc_..., active_..., alpha_min, m_..., kappa_...,
        gate_norm_..., router_lambda..., and for these figures of centred rows."""
        chosen = None if figures is None else check_figures(figures, OF_FIGURES)
        names = ("erc", *_figures.NAMES) if chosen is None else chosen
        wanted = set(names) & set(_figures.ALL_NAMES)
        if self.tensor_group is not None and not wanted.isdisjoint(_figures.NEED_GATES):
            if chosen is not None:
                raise ValueError(
                    "couplet: with tensor_group no process has a whole gate; give figures= names of the router alone, "
                    "such as eps_mean, router_norm_mean, router_cos, router_condition, proxy_route_top1"
                )
            wanted -= set(_figures.NEED_GATES)
        each = self._figures_of_layers(wanted) if wanted else {}
        if chosen is not None:
            each = {number: {name: f[name] for name in chosen if name in f} for number, f in each.items()}
        mean = lambda values: sum(values) / len(values)
        over = {
            f"{begin}{name}": which
            for begin in ("", "centred_")
            for name, which in (("eps_min", min), ("eps_max", max), ("alpha_min", max))
        }
        known = next(iter(each.values()), {})
        result: Dict[str, float] = {name: over.get(name, mean)([f[name] for f in each.values()]) for name in known}
        for name in ("erc_clean", "erc_centred"):
            if self.reduction == "sum" and name in result:
                result[name] *= len(each)
        if self.value is not None and "erc" in names:
            result = {"erc": float(self.value), **result}
        if per_layer:
            result.update({f"{name}/{number}": value for number, f in each.items() for name, value in f.items()})
        return result

    def _figures_of_layers(self, wanted: Set[str]) -> Dict[int, Dict[str, float]]:
        """Returns layer's number -> name -> value, with one synchronisation a layer."""
        result = {}
        for layer, weights in zip(self.layers, self._weights()):
            f = _figures.of_layer(
                layer.router(weights),
                partial(layer.gates, weights),
                layer.gate_half,
                self.alpha,
                layer.K,
                dict(seed=self.seed, step=self.step, layer=layer.number),
                wanted,
                self._gather_experts,
                layer.latent(weights),
            )
            result[layer.number] = _figures.read(f, wanted)
        return result

    def _gather_experts(self, here: Tensor) -> Tensor:
        """Returns [n, ...], joined from the [n / p, ...] of each process of the group."""
        if self.group is None:
            return here
        parts = [torch.empty_like(here) for _ in range(torch.distributed.get_world_size(self.group))]
        torch.distributed.all_gather(parts, here.contiguous(), group=self.group)
        return torch.cat(parts)

    def router_stats(
        self,
        routers: Optional[Sequence[nn.Module]] = None,
        *,
        top_k: Optional[int] = None,
        scores: Optional[str] = None,
        names: Optional[Sequence[str]] = None,
    ) -> _router_stats.RouterStats:
        """Returns a `couplet.RouterStats` of the layers' routers, which counts from the first call on.
        Every call returns that object. Later calls must give equal arguments; `names` may be some of the first call's.

        routers: a module for each layer. Default: the modules that have the routers' weights.
        names: default: all names."""
        given: Dict[str, Any] = dict(routers=None if routers is None else list(routers), top_k=top_k, scores=scores)
        if self._router is None:
            modules = given["routers"] or [
                _router_stats.module_of_router(self.model, layer.names[0]) for layer in self.layers
            ]
            k = top_k if top_k is not None else max(layer.K for layer in self.layers) or None
            self._router = _router_stats.RouterStats(
                modules,
                [layer.n for layer in self.layers],
                top_k=k,
                scores=scores,
                numbers=[layer.number for layer in self.layers],
                names=_router_stats.NAMES if names is None else names,
            )
            self._router_settings = dict(routers=modules, top_k=k, scores=scores)
        others = [name for name, value in given.items() if value not in (None, self._router_settings[name])]
        if not set(names or ()) <= set(self._router.names):
            others.append("names")
        if others:
            raise ValueError(
                f"couplet: router_stats counts already with other {' and '.join(others)} than now; give "
                "them in its first call"
            )
        return self._router

    def record_tokens(
        self, limit: int = 2048, *, routers: Optional[Sequence[nn.Module]] = None, top_k: Optional[int] = None
    ) -> _token_figures.TokenRecord:
        """Records tokens that the layers' routers read in the forward passes within `with`, for figures of scores and
        responses (`couplet.token_figures`):

            with erc.record_tokens() as record:
                model(**batch)
            log(record.figures(ids=batch["input_ids"]))

        For each layer the router's input x is kept in its dtype, up to `limit` tokens, which are evenly spaced in each
        forward pass until the limit is reached. With a single pass they are evenly spaced in the whole pass. Padding
        counts. Scores and responses are computed from x and the weights by `record.figures()`, which costs a product of
        the tokens by all gates. It records in train() and eval(). No backward pass belongs inside, since activation
        checkpointing calls routers again.

        routers: a module for each layer that is called with x; default: the modules that have the routers' weights.
        top_k: K, where the model's config does not give it.

        Raises ValueError under expert parallelism (`group`, `tensor_group`), where no process has all gates, and where
        a router's weight is in a module that is no linear layer and no router."""
        if self.group is not None or self.tensor_group is not None:
            raise ValueError(
                "couplet: with group or tensor_group no process has the whole gates of all experts, which "
                "record_tokens() needs; load the model in one process and attach without them"
            )
        if whole_number(limit, "limit") < 1:
            raise ValueError(f"couplet: limit is {limit}, must be at least 1")
        if top_k is not None and whole_number(top_k, "top_k") < 1:
            raise ValueError(f"couplet: top_k is {top_k}, must be at least 1")
        modules = (
            [_token_figures.module_that_reads(self.model, layer.names[0]) for layer in self.layers]
            if routers is None
            else list(routers)
        )
        if len(modules) != len(self.layers) or not all(isinstance(module, nn.Module) for module in modules):
            raise ValueError(f"couplet: routers must be a list of {len(self.layers)} modules, one for each layer")
        return _token_figures.TokenRecord(self, modules, limit, top_k)


OF_MATRICES = ("proxy_active_rows", "proxy_active_columns", "proxy_alpha_min")
OF_LOSS = ("erc", "erc_last", *OF_MATRICES)
OF_FIGURES = ("erc", *_figures.ALL_NAMES)
KNOWN = (*OF_LOSS, *_figures.ALL_NAMES, *_router_stats.NAMES)
ELSEWHERE = {
    **dict.fromkeys(OF_LOSS, "erc.metrics()"),
    **dict.fromkeys(_router_stats.NAMES, "erc.router_stats().figures()"),
}


def check_figures(figures: Sequence[str], allowed: Sequence[str] = KNOWN) -> Tuple[str, ...]:
    if isinstance(figures, str) or not all(isinstance(name, str) for name in figures):
        raise TypeError(f"couplet: figures is {figures!r}, must be a list of names")
    for name in figures:
        if name not in allowed:
            where = f"; {ELSEWHERE[name]} has it" if name in ELSEWHERE else ""
            raise ValueError(f"couplet: figures has {name!r}, must be of {', '.join(allowed)}{where}")
    return tuple(figures)


def attach(
    model: nn.Module,
    layers: Entries,
    *,
    weight: float = 1.0,
    alpha: float = 1.0,
    reduction: str = "mean",
    seed: int = 0,
    noise: str = "bounded",
    compute: Any = None,
    accumulation: int = 1,
    gate_half: Optional[str] = None,
    transposed: bool = False,
    latent_eps: Optional[float] = None,
    group: Any = None,
    tensor_group: Any = None,
    proxy: str = "row",
    routers: Optional[Sequence[nn.Module]] = None,
    tokens_group: Any = None,
) -> Erc:
    """Attaches the coupling loss to the given Mixture-of-Experts layers of any model; returns its Erc.

    The model is not changed. Parameters are looked up by name at every evaluation, so that the
    model may be sharded, moved or loaded later.

    Args:
        model: the model; compiled or in DistributedDataParallel, too.
        layers: (router, gates) of each layer, or a callable that returns such a list of the model.
            router: an nn.Parameter [n, d] of the model, or its name in model.named_parameters(). Several layers may
                share a router.
            gates: a parameter [n, D, d] (or [n D, d]), or a list of n parameters [D, d], or their names.
            (router, gates, P) of latent experts: P [l, d] is their projection, the gates are [n, D, l].
            (router, gates, P, g): g [l] is the weight of a norm on P x, as `latent_norm` of `couplet.erc_loss`.
            A layer's place in the list is its number for the noise.
        weight, alpha: coefficient of the loss, and its alpha (both 1 in the paper).
        reduction: "mean" or "sum" over the layers.
        seed, noise, compute: as in `couplet.erc_loss`.
        accumulation: number of micro-batches by which your loop divides its loss; 1 if it does not divide.
        gate_half: "first", "second" or "interleaved" where gate and up projection share a parameter
            [n, 2D, d]: which rows are the gate. "none": the gates have a parameter of their own. Without gate_half a
            parameter is refused whose name says gate and up projection (gate_up_proj, w13, fc1) or whose rows are
            twice the expert's width in the model's config.
        latent_eps: the eps of the norms g.
        transposed: the gates lie as [n, d, D] (or [n, d, 2D]), y = x W. Where D = d the shape does not show this, and
            the loss is wrong without an error.
        group: the process group of expert parallelism; gates are then the n / p experts of this process.
        tensor_group: the process group that shares the width of each expert; gates have D / p rows here.
        proxy: "row", or "tokens" (docs/pytorch.md): proxies on the side of the tokens, from moving means of the tokens
            that each layer reads in training.
        routers: for "tokens", a module for each layer that is called with its tokens; default: the modules that have
            the routers' weights. Layers that share a router need it.
        tokens_group: for "tokens", the process group whose tokens count together; default: all processes. It is needed
            where processes have different layers (pipelines).

    Raises:
        ValueError, TypeError: `layers` has an entry that is no parameter of the model, a repeated
            one that is no router, or a parameter of another shape.
    """
    check_model(model)
    refuse_mesh(group, "group")
    refuse_mesh(tensor_group, "tensor_group")
    return Erc(
        _layers.unwrapped(model),
        _layers.Given(layers, gate_half, transposed, latent_eps, group, tensor_group),
        weight,
        alpha,
        reduction,
        seed,
        noise,
        compute,
        accumulation,
        group,
        tensor_group,
        proxy,
        routers,
        tokens_group,
    )
