"""The gradients of one optimizer step, added layer by layer to `.grad`. Nothing of a layer is kept.

Where router and gates are parameters as they lie, gradients are added to `.grad` in place. For sharded or adapted
parameters, and for bf16 with the C library, which adds in f32, a layer's gradient exists once more, and autograd takes
it from there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, cast

import torch
from torch import Tensor

from .models._layers import Layer
from .models._weights import Weight, as_weight, is_sharded
from .ops import _checks, _latent, _native, _noise, _operator, _plain
from .ops._functional import arrange, compute_name, signed
from .ops._job import Result
from .ops._latent import Latent
from .ops._response import without_autocast

if TYPE_CHECKING:
    from ._token_means import TokenMeans
    from .parallel import Processes


@dataclass
class Options:
    """Options that all layers of a step share."""

    alpha: float
    weight: float  # factor of each layer's loss
    scale: Optional[Tensor]  # [], a further factor of the gradients
    noise: str
    seed: int
    step: int
    compute: Any
    spread: Optional[Processes]  # the processes over which experts are spread; None: each process has all experts
    attribute: str  # the attribute of a parameter that has its gradient, for example "grad"
    tokens: Optional[TokenMeans] = None  # None: the router's rows are the proxies


class Evaluation:
    """State of one layer: its tensors, its job, and the place of its gradients."""

    def __init__(self, layer: Layer, weights: List[Weight], options: Options, delta: Optional[Tensor], at: int):
        self.layer, self.weights, self.attribute = layer, weights, options.attribute
        self.parameters = [weight.parameter for weight in weights]
        self.made: List[Tensor] = []  # tensors to which the job adds the gates' gradients
        with torch.enable_grad():  # a router or gates may be computed from parameters
            router, gates, latent = layer.router(weights), layer.gates(weights), layer.latent(weights)
            arranged = arrange(router, gates, None, None, "gate", delta, layer.gate_half, layer.here, latent)
        _, self.gate, _, _, _, self.want, self.half = arranged
        self.of_rows = [router, *([] if latent is None else latent.tensors)]  # tensors that make the rows
        group = None if options.spread is None else options.spread.expert
        first = 0 if group is None else torch.distributed.get_rank(group) * layer.here
        noise = options.noise if delta is None else "drawn"
        self.rows = router.detach().contiguous()
        if latent is not None or options.tokens is not None:
            self.rows = self._made_rows(latent, noise, delta, options, at)
        if latent is not None:
            noise, delta = "none", None
        self.job = _operator.make_job(
            self.rows.detach(),
            [g.detach() for g in self.gate],
            [],
            [],
            delta,
            self.half,
            options.alpha,
            options.weight,
            "gate",
            noise,
            signed(options.seed),
            options.step,
            layer.number,
            0,
            compute_name(options.compute),
            first,
        )
        self.job.scale = None if options.scale is None else options.scale.to(router.device)
        self.job.split = options.spread is not None and options.spread.tensor is not None

        absent = [
            name
            for name, p in zip(layer.all_names, self.parameters)
            if p.requires_grad and not hasattr(p, self.attribute)
        ]
        if absent:
            raise ValueError(
                f"couplet: {absent[0]} has no attribute {self.attribute}, to which its gradient is to be added"
            )
        self.is_in_place = self._is_plain()
        if not self.is_in_place and self.attribute != "grad":
            raise ValueError(
                f"couplet: {layer.names[0]}: gradients of sharded or adapted parameters, of a list that is "
                f"trained in part, and by the C library of others than f32 go to .grad alone, not to "
                f".{self.attribute}"
            )

    def _made_rows(
        self, latent: Optional[Latent], noise: str, delta: Optional[Tensor], options: Options, at: int
    ) -> Tensor:
        """Returns the rows of tokens or latent experts, with a graph to self.leaves: copies, f32 or wider, of the
        tensors in `of_rows`."""
        numbers = (signed(options.seed), options.step, self.layer.number, 0)
        with torch.enable_grad():
            self.leaves = [
                t.detach().to(torch.promote_types(t.dtype, torch.float32)).requires_grad_(t.requires_grad)
                for t in self.of_rows
            ]
            router = self.leaves[0] if options.tokens is None else options.tokens.of(self.leaves[0], at)
            if latent is None:
                return router
            _, down, *norm = self.leaves
            wide = Latent(down, norm[0] if norm else None, latent.eps)
            return _latent.rows(router, wide, self.gate[0].dtype, noise, delta, *numbers)

    def _is_plain(self) -> bool:
        """Returns whether router and gates are views of parameters whose gradients can be added to."""
        if any(weight.is_computed or is_sharded(weight.parameter) for weight in self.weights):
            return False
        tensors = (self.of_rows[0], *self.gate, *self.of_rows[1:])
        memory = [t.untyped_storage()._cdata for t in tensors]
        if memory != [p.untyped_storage()._cdata for p in self.parameters]:
            return False
        if self.want[1] and not all(p.requires_grad for p in self._gates):
            return False
        adds_in_f32 = _native.fits(self.job)
        return not adds_in_f32 or all(self._dtype(p) == torch.float32 for p in self._gates)

    @property
    def _gates(self) -> List[Tensor]:
        return self.parameters[1 : len(self.layer.names)]

    def _dtype(self, p: Tensor) -> torch.dtype:
        """Returns the dtype of p's gradient: the dtype of an existing gradient, else p.grad_dtype of PyTorch 2.10 and
        newer."""
        gradient = getattr(p, self.attribute, None)
        if gradient is not None:
            return cast(torch.dtype, gradient.dtype)
        told = getattr(p, "grad_dtype", None) if self.attribute == "grad" else None
        return told or p.dtype

    def _gradient_of(self, p: Tensor, is_covered: bool) -> Tensor:
        """Returns p's gradient, made if it is missing. A new one has undefined contents if all of it will be
        written."""
        gradient = getattr(p, self.attribute, None)
        if gradient is None:
            dtype, strides = self._dtype(p), torch.empty_like(p, device="meta").stride()
            if _plain.is_for(p.device):
                gradient = _plain.zeros(p.shape, dtype).as_strided(p.shape, strides)
            else:
                gradient = (torch.empty_like if is_covered else torch.zeros_like)(p, dtype=dtype)
            setattr(p, self.attribute, gradient)
        found: Tensor = gradient
        return found

    def prepare(self) -> None:
        """Gives the job the gradients to add to."""
        _checks.check(self.job)
        if not self.is_in_place:
            self.made = _operator.prepare(self.job, self.gate, [], [], self.half, self.want)
            return
        gates = self._gates
        self.job.wants_router = self.want[0]
        if not self.want[1]:
            return
        is_covered = sum(g.numel() for g in self.gate) == sum(p.numel() for p in gates)
        self.job.fresh = is_covered and all(getattr(p, self.attribute, None) is None for p in gates)
        target = self.layer.gates([self.weights[0], *(as_weight(self._gradient_of(p, self.job.fresh)) for p in gates)])
        self.made = [target] if isinstance(target, Tensor) else target
        _operator.into(self.job, self.made, [], [], self.half)

    def finish(self, result: Result) -> None:
        """Completes the gradients: writes the gradients that the job has not written itself."""
        if self.job.fresh:
            for gradient in self.made[:1] if not self.is_in_place else self.made:
                _operator.zero_what_stays(self.job, gradient, self.half)
        gradients = self._gradients_of_rows(result)
        if not self.is_in_place:
            self._hand_to_autograd(gradients)
            return
        places = [self.parameters[0], *self.parameters[len(self.layer.names) :]]
        for p, found in zip(places, gradients):
            if found is not None:
                gradient = self._gradient_of(p, False)
                (self.layer.router([as_weight(gradient)]) if p is places[0] else gradient).add_(found)

    def _gradients_of_rows(self, result: Result) -> List[Optional[Tensor]]:
        """Returns the gradients of the tensors in `of_rows`; None where one needs none."""
        if result.d_router is None:
            return [None]
        if self.rows.grad_fn is None:
            return [result.d_router]
        wanted = [t for t in self.leaves if t.requires_grad]
        found = iter(torch.autograd.grad(self.rows, wanted, result.d_router.to(self.rows.dtype)))
        return [next(found) if t.requires_grad else None for t in self.leaves]

    def _hand_to_autograd(self, of_rows: List[Optional[Tensor]]) -> None:
        """Passes gradients by autograd to the parameters from which the tensors in `of_rows` and gates are computed.
        The backward pass is not used: it would call hooks, and DistributedDataParallel counts the calls of its
        hooks."""
        pairs = [(t, g.to(t.dtype)) for t, g in zip(self.of_rows, of_rows) if g is not None]
        if self.want[1]:
            d_gate = self.made[0].to(self.gate[0].dtype)
            many = _operator.as_list(d_gate, len(self.gate), self.gate[0].dim() == 3, True)
            pairs += [(t, g) for t, g in zip(self.gate, many) if t.requires_grad]
        parts = {id(p): p for weight in self.weights for p in weight.parts if p.requires_grad}
        if not pairs:
            return
        found = torch.autograd.grad(
            [t for t, _ in pairs], list(parts.values()), [g for _, g in pairs], allow_unused=True
        )
        for p, gradient in zip(parts.values(), found):
            if gradient is not None and p.grad is None:
                p.grad = gradient
            elif gradient is not None:
                p.grad += gradient


def deltas(
    layers: Sequence[Layer],
    found: Sequence[List[Weight]],
    noise: str,
    seed: int,
    step: int,
    tokens: Optional[TokenMeans] = None,
) -> Iterator[Optional[Tensor]]:
    """Yields the noise [n, d] of each layer, or None where the layer's own evaluation draws it."""
    if noise == "none" or _plain.is_for(found[0][0].parameter.device):
        yield from (None for _ in layers)
        return
    routers = [layer.router(many).detach() for layer, many in zip(layers, found)]
    if tokens is not None:
        routers = [tokens.of(router, at) for at, router in enumerate(routers)]
    yield from _noise.of_layers(routers, [layer.number for layer in layers], seed, step)


def add_gradients(layers: Sequence[Layer], found: Sequence[List[Weight]], options: Options) -> List[Result]:
    """Adds the gradients of all layers to the gradients of their parameters. Under expert parallelism the exchanges of
    layers whose parameters are whole share collectives."""
    results: Dict[int, Result] = {}
    waiting: List[Tuple[int, Evaluation]] = []
    noises = deltas(layers, found, options.noise, options.seed, options.step, options.tokens)
    for k, (layer, many, delta) in enumerate(zip(layers, found, noises)):
        with _refused_in_all(options.spread, many):
            evaluation = Evaluation(layer, many, options, delta, k)
        if options.spread is not None and evaluation.is_in_place:
            waiting.append((k, evaluation))
        else:
            results[k] = _run([evaluation], options.spread)[0]
    for (k, _), result in zip(waiting, _run([e for _, e in waiting], options.spread)):
        results[k] = result
    return [results[k] for k in range(len(layers))]


@contextlib.contextmanager
def _refused_in_all(spread: Optional[Processes], weights: List[Weight]) -> Iterator[None]:
    """Passes an error of this process to the processes that share the experts: they would otherwise wait for this
    process."""
    try:
        yield
    except Exception as error:
        if spread is not None:
            from .parallel import refuse_in_all

            refuse_in_all(error, spread, weights[0].parameter)
        raise


def _run(evaluations: List[Evaluation], spread: Optional[Processes]) -> List[Result]:
    if not evaluations:
        return []
    for evaluation in evaluations:
        with _refused_in_all(spread, evaluation.weights):
            evaluation.prepare()
    jobs = [evaluation.job for evaluation in evaluations]
    with without_autocast(jobs[0].router.device):
        if spread is None:
            results = [_operator.run(job) for job in jobs]
        else:
            from .parallel import run_agreed

            results = run_agreed(jobs, spread)
        for evaluation, result in zip(evaluations, results):
            evaluation.finish(result)
    return results
