"""What a training step makes of an auxiliary loss: the model's routers, the trainer's sums and divisions, and what lies
between, as gradient checkpointing and data parallelism.

    with couplet.certify.record(model, coefficient="router_aux_loss_coef") as recorded:
        recorded.run(step)                      # forward and backward passes of all micro-batches, no optimizer step
    print(couplet.certify.sentence(recorded.verdict("load-balancing-mixtral")))

The same step is run with the coefficient at 0, c, 2c, and at 0 again. Loss and gradient are affine in it: their
differences are those of the auxiliary loss, and a coefficient that is unused or applied twice shows. Each router gets its
tokens detached, so that the difference reaches its weight W by its own logits alone: d_W = d_logits^T x. Logits are
computed again from the tokens x and W; what the model says they are is not used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import hf
from ..figures._router_stats import BIAS
from ..models._families import Config
from ..models._layers import unwrapped
from ..models._weights import Weight, follow, is_sharded, shards_of, whole
from ._evaluate import SPARE, TF32, UNIT, outputs
from ._fits import Dump, Supposed
from ._import import CannotJudge, raised
from ._judge import Verdict, is_right, judge
from ._kind import Case, Kind
from ._model_parts import Coefficient, Named, Setting, State, no_optimizer, routers_of
from ._passes import Passes
from ._scale import ANY
from .kinds import KINDS

# Of the expected gradient: what rounding of the whole step may be of it, at least, and in rounding errors.
NOT_LINEAR = (
    "; a router whose logits are more than W x, as scaled, normalised or noisy ones, cannot be judged by a step: "
    "give its loss to certify()"
)
LOSS_ALONE = (
    "; the gradients are right, but they are not those of the loss that the step returns: let it return the loss of "
    "all micro-batches, as it is minimised, or nothing"
)
UNWRAPPED = "; several processes are at work: give record() the model as it is wrapped"
SMALL, ROUNDED = 0.02, 32.0
CLIPPED = 1e-5  # of a norm
SHARP = 0.25  # of the expected gradient: a larger bound says nothing
Step = Callable[[], Any]


# ---- a step ----


@dataclass
class _Run:
    """One step. `loss`: what the step returned, if a number. `gradients`: [n, d] of each router, of all processes."""

    loss: Optional[float]
    gradients: List[Tensor]
    all_gradients: float = 0.0  # the norm of those of all parameters

    def less(self, other: "_Run") -> "_Run":
        loss = None if self.loss is None or other.loss is None else self.loss - other.loss
        return _Run(loss, [a - b for a, b in zip(self.gradients, other.gradients)])

    def times(self, factor: float) -> "_Run":
        return _Run(None if self.loss is None else factor * self.loss, [factor * one for one in self.gradients])

    def size(self) -> float:
        return math.sqrt(sum(float(one.square().sum()) for one in self.gradients))


def _number(value: Any) -> Optional[float]:
    value = value.get("loss") if isinstance(value, dict) else getattr(value, "loss", value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class Recorded:
    """Made by `record`. `coefficient`: c."""

    def __init__(
        self,
        model: nn.Module,
        coefficient: Coefficient,
        value: Optional[float],
        routers: Optional[Named],
        top_k: Optional[int],
        sequences: Optional[int],
    ):
        if not isinstance(model, nn.Module):
            raise CannotJudge(f"the model is of type {type(model).__name__}, must be a torch.nn.Module")
        for name, number in (("top_k", top_k), ("sequences", sequences)):
            if number is not None and (type(number) is not int or number < 1):
                raise CannotJudge(f"{name} is {number!r:.40}, must be a whole number from 1")
        self.wrapped, self.model = model, unwrapped(model)
        self.setting = Setting(self.model, coefficient, value)
        self.routers = routers_of(self.model, routers)
        self.passes = Passes(self.model, self.routers)
        self.top_k = top_k or Config.read(hf.config_of(self.model)).number("K") or None
        self.given_sequences = sequences
        self.hooks: List[Any] = []
        self.runs: List[_Run] = []
        self.x = Case()

    @property
    def coefficient(self) -> float:
        return self.setting.value

    def __enter__(self) -> "Recorded":
        if self.hooks:
            raise CannotJudge("it is recorded already: leave the first `with` before the second")
        self.hooks = self.passes.hooks()
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []

    # ---- the step ----

    def run(self, step: Step) -> None:
        """Runs the step four times, and leaves random state, buffers, gradients and coefficient as they were. `step`
        makes forward and backward passes and may return the loss that it minimises; without it gradients alone are
        judged. Where the model is spread over processes, all of them call this."""
        state, guard = State(self.model), register_optimizer_step_pre_hook(no_optimizer)
        self.runs = []
        try:
            for times in (0.0, 1.0, 2.0, 0.0):
                state.begin()
                self.setting.set(times * self.setting.value)
                try:
                    self.runs.append(self._once(step, state))
                finally:
                    state.end()
        finally:
            guard.remove()
            state.restore()
            self.setting.restore()
        self.x = self._case()

    def _once(self, step: Step, state: State) -> _Run:
        self.passes.clear()
        try:
            loss = _number(step())
        except CannotJudge:
            raise
        except Exception as error:
            raise raised("the step raises", error) from error
        weights = self._weights()
        if not any(weight.parameter.requires_grad for weight in weights):
            raise CannotJudge("the routers are frozen: their weights have requires_grad False")
        if all(weight.parameter.grad is None for weight in weights):
            raise CannotJudge("no router has a gradient after the step: it must call backward()")
        gradients = [
            torch.zeros_like(whole(weight.parameter)) if weight.parameter.grad is None else whole(weight.parameter.grad)
            for weight in weights
        ]
        known = [one for one in self._of_processes(loss) if one is not None]
        for name, value in [
            ("the step's loss", torch.tensor(known)),
            *((f"{router.name}: its gradient", one) for router, one in zip(self.routers, gradients)),
        ]:
            if not bool(torch.isfinite(value).all()):
                raise CannotJudge(f"{name} has a NaN or an infinite number")
        return _Run(
            sum(known) / len(known) if known else None,
            [one.detach().double().cpu() for one in gradients],
            state.gradient_size(),
        )

    def _weights(self) -> List[Weight]:
        shards = shards_of(self.model)
        found = [follow(self.model, router.name, shards) for router in self.routers]
        return [one for one in found if one is not None]

    # ---- processes ----

    def is_spread(self) -> bool:
        """Whether each process has tokens of its own, and gradients are those of all."""
        return isinstance(self.wrapped, nn.parallel.DistributedDataParallel) or any(
            map(is_sharded, self.model.parameters())
        )

    def _of_processes(self, value: Any) -> List[Any]:
        if not self.is_spread():
            return [value]
        found: List[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, value)
        return found

    # ---- what the loss is computed from ----

    def _case(self) -> Case:
        """tokens, logits and W of all layers; micro-batches of all processes, one after the other."""
        silent = next((router for router in self.routers if not router.calls), None)
        if silent:
            raise CannotJudge(
                f"{silent.name}: its module was called under torch.no_grad() alone; run() needs a forward pass "
                "with gradients"
                if self.passes.has_skipped
                else f"{silent.name}: its module was not called; run the model itself, not a compiled one, or give "
                "routers= the modules that are called"
            )
        each = [router.layers(self.passes.batches) for router in self.routers]
        router_of = [k for k, layers in enumerate(each) for _ in layers]
        used = self.passes.used()
        sequences = self.given_sequences or sum(batch.sequences for batch in used)
        mine = [layer for layers in each for layer in layers], [batch.mask for batch in used], sequences
        tokens: List[List[Tensor]] = [[] for _ in router_of]
        masks: List[Optional[Tensor]] = []
        sequences = 0
        all_processes = self._of_processes(mine)
        for theirs, their_masks, their_sequences in all_processes:
            for all_, some in zip(tokens, theirs):
                all_ += some
            masks, sequences = masks + their_masks, sequences + their_sequences
        if len({len(one) for batches in tokens for one in batches} | {0}) > 2 or len({len(one) for one in tokens}) > 1:
            raise CannotJudge(
                "the micro-batches have different numbers of tokens, or the layers were called differently "
                "often; give batches of one shape"
            )
        with torch.no_grad():
            return self._joined(tokens, torch.tensor(router_of), masks, sequences, len(all_processes))

    def _joined(
        self, tokens: List[List[Tensor]], router_of: Tensor, masks: List[Optional[Tensor]], sequences: int, ranks: int
    ) -> Case:
        x = torch.stack([torch.cat(batches) for batches in tokens])
        weights = self._weights()
        W = torch.stack([whole(weight.parameter).detach().cpu() for weight in weights])
        if self.top_k and self.top_k > W.shape[1]:
            raise CannotJudge(f"top_k is {self.top_k}, but {self.routers[0].name} has {W.shape[1]} experts")
        logits = torch.einsum("ltd,lnd->ltn", x.double(), W.double()[router_of])
        biases = [getattr(router.module, "bias", None) for router in self.routers]
        if all(isinstance(bias, nn.Parameter) for bias in biases):
            logits = logits + torch.stack([whole(bias).detach().cpu().double() for bias in biases])[router_of][:, None]
        t, A = len(tokens[0][0]), len(tokens[0])
        mask = None
        if any(one is not None for one in masks):
            mask = torch.cat([torch.ones(t, dtype=torch.bool) if one is None else one for one in masks])
        if mask is not None and len(mask) != x.shape[1] or sequences and x.shape[1] % sequences:
            raise CannotJudge(
                f"routers have seen {x.shape[1]} tokens, the model {sequences} sequences"
                f"{'' if mask is None else f' of {len(mask)} tokens'}"
            )
        trained = torch.tensor([weight.parameter.requires_grad for weight in weights])
        values = {
            "logits": logits,
            "router": W,
            "router_input": x,
            "router_of": router_of,
            "top_k": self.top_k,
            "mask": mask,
            "sequences": sequences or None,
            "micro_batches": A if A > 1 else None,
            "steps": A // ranks,
            "ranks": ranks if ranks > 1 else None,
            "trained": None if bool(trained.all()) else trained,
        }
        return Case(**{name: value for name, value in values.items() if value is not None})

    # ---- the verdict ----

    def _differences(self) -> List[_Run]:
        """At c and 2c less at 0, and an estimate of their rounding. CannotJudge: hidden state."""
        if not self.runs:
            raise CannotJudge("nothing was recorded: call run(step)")
        zero, one, two, again = self.runs
        if not any(run.size() for run in self.runs):
            raise CannotJudge(
                "the routers' gradients are all zero, whatever the coefficient: leave zero_grad() out of the step's end"
            )
        if self._is_clipped():
            raise CannotJudge(
                "the gradients are clipped, to one norm whatever the coefficient: leave that out of the step"
            )
        floor = self._floor()
        if again.less(zero).size() > floor:
            raise CannotJudge(
                "the step gives other gradients when it is run again: it depends on hidden state or on random "
                "numbers of its own"
            )
        return [one.less(zero), two.less(zero)]

    def _is_clipped(self) -> bool:
        """Whether all gradients together have one norm at 0, c and 2c, though those of the routers differ."""
        zero, *others = [run.all_gradients for run in self.runs[:3]]
        differ = (
            self.runs[1].less(self.runs[0]).size() > CLIPPED**0.5 * zero
        )  # so that a right angle between them shows
        return differ and all(abs(one - zero) <= CLIPPED / 10 * zero for one in others)

    def _floor(self) -> float:
        """Rounding errors of the gradients that are subtracted."""
        return SPARE * self._unit() * max(run.size() for run in self.runs) * max(1, self.x.micro_batches or 1) ** 0.5

    def _unit(self) -> float:
        """Of the gradients' format."""
        return max(UNIT[weight.parameter.dtype] for weight in self._weights())

    def _units(self) -> Tuple[float, float]:
        """Those that a router in its format may have been computed with: under autocast and in float16 as bf16, on a GPU as
        TF32."""
        unit = max(self._unit(), *(router.unit for router in self.routers))
        if unit > TF32:
            return UNIT[torch.bfloat16], UNIT[torch.bfloat16]
        return unit, max(unit, UNIT[torch.float32], TF32 if any(w.parameter.is_cuda for w in self._weights()) else 0.0)

    def _noise(self, c: _Run, twice: _Run) -> float:
        """What is left of the gradients if they are affine in the coefficient, or in its square."""
        left = min(twice.less(c.times(factor)).size() for factor in (2.0, 4.0))
        noise = max(self._floor(), SPARE * left)
        if left > self._floor() and left > SMALL * twice.size():
            raise CannotJudge(
                "the gradients are neither affine in the coefficient nor in its square: they are clipped, or "
                f"rounding hides a small coefficient; give value= a larger one, as {self._larger()}"
            )
        return noise

    def _larger(self) -> float:
        return max(1.0, 10 * self.setting.value)

    def dumps(self, kind: Kind) -> List[Dump]:
        """At c and 2c, as the judge reads them. CannotJudge: rounding hides the auxiliary loss."""
        c, twice = self._differences()
        noise, found = self._noise(c, twice), []
        if "top_k" in kind.needs and any(bool(bias.detach().any()) for bias in self._choosing()):
            raise CannotJudge(
                f"{self.routers[0].name}: a bias chooses the experts ({BIAS}), which the logits do not show; give "
                "its loss to certify()"
            )
        for name, run, factor in (("c", c, 1.0), ("2c", twice, 2.0)):
            x = self.x.but(coefficient=factor * self.setting.value)
            missing = [need for need in sorted(kind.needs) if getattr(x, need) is None]
            if missing or kind.outputs != ("loss",) or not set(kind.gradients) <= {"logits", "router"}:
                raise CannotJudge(
                    f"a step does not show what {kind.name} needs" + (f": {missing[0]}" if missing else "")
                )
            right = outputs(kind, x, {})
            got = {"d_router": torch.stack(run.gradients)}
            size = max(float(right["d_router"].norm()), float(got["d_router"].norm()))
            if noise > max(SMALL, ROUNDED * self._units()[1]) * size:
                raise CannotJudge(
                    f"cannot be told: the gradient of {kind.name} at the coefficient {float(x.coefficient):g} "
                    "is within the rounding of the whole step; give value= a larger one, as "
                    f"{self._larger()}"
                )
            rounding = {"d_router": noise}
            if run.loss is not None and self._has_loss(run, right):
                got["loss"] = torch.tensor(run.loss, dtype=torch.float64)
                rounding["loss"] = self._loss_floor()
            found.append(Dump(name, x, got, rounding, self._units()))
        return found

    def _choosing(self) -> List[Tensor]:
        found = [getattr(router.module, BIAS, None) for router in self.routers]
        return [one for one in found if isinstance(one, Tensor)]

    def _loss_floor(self) -> float:
        return SPARE * UNIT[torch.float32] * max(abs(run.loss or 0.0) for run in self.runs)

    def _has_loss(self, run: _Run, right: Dict[str, Tensor]) -> bool:
        """Not if rounding hides it, or if it is in the gradients alone: a function of autograd may add it there."""
        hidden = self._loss_floor() > SMALL * abs(float(right["loss"]))
        return not hidden and not (run.loss == 0 and run.size() > self._floor())

    def verdict(self, kind: str) -> Verdict:
        if kind == "erc":
            raise CannotJudge(
                "the coupling loss depends on weights alone and needs no step: give its function to certify(), "
                'kind "erc"'
            )
        if kind not in KINDS:
            raise CannotJudge(f"there is no kind of loss {kind}: {', '.join(KINDS)}")
        dumps = self.dumps(KINDS[kind])
        if all(
            float(dump.got["d_router"].norm()) <= dump.noise["d_router"]
            and abs(float(dump.got.get("loss", 0.0))) <= dump.noise.get("loss", 0.0)
            for dump in dumps
        ):
            return Verdict(
                KINDS[kind],
                "fault",
                [Supposed((), (fault,)) for fault in ANY if fault.key in ("coefficient_unused", "zero")],
            )
        verdict = judge(KINDS[kind], dumps)
        if verdict.state == "unknown":
            verdict.note = self._note(KINDS[kind], dumps)
        if verdict.state == "right" and not any(
            one.name != "loss" and one.bound <= SHARP * one.expected
            for figures in verdict.figures.values()
            for one in figures
        ):
            raise CannotJudge(
                f"cannot be told: rounding in {verdict.grade} may be as large as the gradient; give a step with "
                "more tokens, or a model in float32"
            )
        return verdict

    def _note(self, kind: Kind, dumps: List[Dump]) -> str:
        """What may be the matter with a step that nothing explains."""
        alone = [replace(dump, got={"d_router": dump.got["d_router"]}) for dump in dumps]
        if any("loss" in dump.got for dump in dumps) and is_right(kind, alone):
            return LOSS_ALONE
        if torch.distributed.is_available() and torch.distributed.is_initialized() and not self.is_spread():
            return UNWRAPPED
        return _scaled_gradients(kind, dumps) or NOT_LINEAR

    def fitting(self) -> List[str]:
        """The kinds as which the step is right."""
        found = []
        for name, kind in KINDS.items():
            try:
                found += [name] if is_right(kind, self.dumps(kind)) and self.verdict(name).state == "right" else []
            except CannotJudge:
                continue
        return found


def _scaled_gradients(kind: Kind, dumps: List[Dump]) -> str:
    """A note, if the loss is right and the gradients are but for one factor."""
    factors = []
    for dump in dumps:
        right = outputs(kind, dump.x, {})
        got, wanted, loss = dump.got["d_router"].double(), right["d_router"], right["loss"]
        c = float((got * wanted).sum() / wanted.square().sum())
        is_multiple = abs(c - 1) > SMALL and float((got - c * wanted).norm()) <= SMALL * float(got.norm())
        if not is_multiple or "loss" not in dump.got or abs(float(dump.got["loss"] - loss)) > SMALL * abs(float(loss)):
            return ""
        factors.append(c)
    return (
        f"; the gradients are {factors[0]:.6g} times the right ones, and the loss is not: leave a GradScaler out of the "
        "step, and look for a hook or a function of autograd that scales them"
    )


def record(
    model: nn.Module,
    coefficient: Coefficient = None,
    value: Optional[float] = None,
    routers: Optional[Named] = None,
    top_k: Optional[int] = None,
    sequences: Optional[int] = None,
) -> Recorded:
    """For `with`; see the head of this file.

    coefficient: the name of the attribute of model, its modules or their config that has it ("router_aux_loss_coef"), a
        path ("config.moe.alpha"), or a function that sets it; None: the usual names are tried. value: c; None: as it is.
    routers: modules with a `weight` [n, d] that are called with the tokens, or names of such weights; None: those of the
        families that couplet knows. top_k: K; None: from the model's config.
    sequences: how many the step has in one process; None: counted by the batches."""
    return Recorded(model, coefficient, value, routers, top_k, sequences)
