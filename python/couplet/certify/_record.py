"""Judges an auxiliary loss in a whole training step: the model's routers, the trainer's sums and divisions, and steps
between them such as gradient checkpointing and data parallelism.

    with couplet.certify.record(model, coefficient="router_aux_loss_coef") as recorded:
        recorded.run(step)                      # forward and backward passes of all micro-batches, no optimizer step
    print(couplet.certify.sentence(recorded.verdict("load-balancing-mixtral")))

The step is run with the coefficient at 0, c, 2c, and at 0 again. Loss and gradient are affine in the coefficient: the
differences between runs are those of the auxiliary loss, and a coefficient that is unused or applied twice shows. Each
router gets its tokens detached, so that the difference reaches its weight W by its own logits alone:
d_W = d_logits^T x. Logits are computed again from the tokens x and W. Logits that the model returns are not used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import hf
from ..figures._router_stats import BIAS
from ..models._families import Config
from ..models._layers import unwrapped
from ..models._weights import Weight, follow, is_sharded, shards_of, whole
from ._import import CannotJudge, raised
from ._judge import TOLERANCE, UNIT, Dump, Held, Verdict, is_right, judge, outputs, right_kinds, single_faults
from ._kind import FAULTS, Case, Fault, Kind, Outputs
from ._model_parts import Coefficient, Named, Passes, Setting, State, no_optimizer, routers_of
from ._report import fault_sentences
from .kinds import kind_of

NOT_LINEAR = (
    "a router whose logits are more than W x, as scaled, normalised or noisy ones, cannot be judged by a step: "
    "give its loss to certify()"
)
LOSS_ALONE = (
    "the gradients are right, but they are not those of the loss that the step returns: let it return the loss of "
    "all micro-batches, as it is minimised, or nothing"
)
SCALED = (
    "the gradients are {:.6g} times the right ones, and the loss is not: leave a GradScaler out of the step, and look for a "
    "hook or a function of autograd that scales them"
)
# Faults that a single router cannot have: those of layers, of steps, and of the value of the loss.
OF_ALL_ROUTERS = {"zero", *(row["key"] for row in FAULTS if row["group"] in ("layers", "steps"))}
UNWRAPPED = "several processes are at work: give record() the model as it is wrapped"
# The rounding of the whole step may be this share of the expected gradient, or this number of rounding errors.
SMALL, ROUNDED = 0.02, 32.0
SPARE = 4.0
CLIPPED = 1e-5  # share of a norm


# ---- a step ----


@dataclass
class Run:
    """One step. `loss` is the number that it returned, if any. `gradients` are [n, d] of each router, of all ranks."""

    loss: Optional[float]
    gradients: List[Tensor]
    all_gradients: float = 0.0  # the norm of the gradients of all parameters

    def minus(self, other: "Run", times: float = 1.0) -> "Run":
        loss = None if self.loss is None or other.loss is None else self.loss - times * other.loss
        return Run(loss, [a - times * b for a, b in zip(self.gradients, other.gradients)])

    def size(self) -> float:
        return math.sqrt(sum(float(one.square().sum()) for one in self.gradients))


def number_in(value: Any) -> Optional[float]:
    value = value.get("loss") if isinstance(value, dict) else getattr(value, "loss", value)
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value.detach())
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class Recorded:
    """Records a step, in a `with`. The head of this file has an example.

    coefficient: the name of the attribute of model, its modules or their config that has it ("router_aux_loss_coef"), a
        path ("config.moe.alpha"), or a function that sets it. None: usual names are tried.
    value: c, or None for the model's coefficient. top_k: K, or None for the number in the model's config.
    routers: modules with a `weight` [n, d] that take the tokens, or names of weights. None: routers of known families.
    sequences: number of sequences of the step in one process. With None they are counted by the batches."""

    def __init__(
        self,
        model: nn.Module,
        coefficient: Coefficient = None,
        value: Optional[float] = None,
        routers: Optional[Named] = None,
        top_k: Optional[int] = None,
        sequences: Optional[int] = None,
    ):
        if not isinstance(model, nn.Module):
            raise CannotJudge(f"the model is of type {type(model).__name__}, must be a torch.nn.Module")
        for name, number in (("top_k", top_k), ("sequences", sequences)):
            if number is not None and (type(number) is not int or number < 1):
                raise CannotJudge(f"{name} is {number!r:.40}, must be a whole number from 1")
        self.wrapped, self.model = model, unwrapped(model)
        self.setting = Setting(self.model, coefficient, value)
        self.larger = max(1.0, 10 * self.setting.value)  # larger, so that rounding cannot hide it
        self.routers = routers_of(self.model, routers)
        self.passes = Passes(self.model, self.routers)
        self.top_k = top_k or Config.read(hf.config_of(self.model)).number("K") or None
        self.given_sequences = sequences
        self.hooks: List[Any] = []
        self.runs: List[Run] = []
        self.x = Case()

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

    def run(self, step: Callable[[], Any]) -> None:
        """Runs the step four times, and restores random state, buffers, gradients and coefficient. `step` makes forward
        and backward passes and may return the loss that it minimises. Without a loss the gradients alone are judged.
        Where the model is spread over processes, all of them call this function."""
        state, guard = State(self.model), register_optimizer_step_pre_hook(no_optimizer)
        self.runs = []
        try:
            for times in (0.0, 1.0, 2.0, 0.0):
                self.setting.set(times * self.setting.value)
                with state.restored():
                    self.runs.append(self.once(step, state))
        finally:
            guard.remove()
            self.setting.set()
        self.x = self.case()

    def once(self, step: Callable[[], Any], state: State) -> Run:
        self.passes.clear()
        try:
            loss = number_in(step())
        except CannotJudge:
            raise
        except Exception as error:
            raise raised("the step raises", error) from error
        parameters = [weight.parameter for weight in self.weights()]
        if not any(p.requires_grad for p in parameters):
            raise CannotJudge("the routers are frozen: their weights have requires_grad False")
        if all(p.grad is None for p in parameters):
            raise CannotJudge("no router has a gradient after the step: it must call backward()")
        gradients = [torch.zeros_like(whole(p)) if p.grad is None else whole(p.grad) for p in parameters]
        known = [one for one in self.of_processes(loss) if one is not None]
        named = [(f"{router.name}: its gradient", one) for router, one in zip(self.routers, gradients)]
        for name, value in [("the step's loss", torch.tensor(known)), *named]:
            if not bool(torch.isfinite(value).all()):
                raise CannotJudge(f"{name} has a NaN or an infinite number")
        mean = sum(known) / len(known) if known else None
        return Run(mean, [one.detach().double().cpu() for one in gradients], state.gradient_size())

    def weights(self) -> List[Weight]:
        shards = shards_of(self.model)
        found = [follow(self.model, router.name, shards) for router in self.routers]
        return [one for one in found if one is not None]

    def is_spread(self) -> bool:
        """Returns whether each process has its own tokens, and gradients are of the tokens of all processes."""
        is_ddp = isinstance(self.wrapped, nn.parallel.DistributedDataParallel)
        return is_ddp or any(map(is_sharded, self.model.parameters()))

    def of_processes(self, value: Any) -> List[Any]:
        if not self.is_spread():
            return [value]
        found: List[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, value)
        return found

    # ---- inputs of the loss ----

    def case(self) -> Case:
        """Returns tokens, logits and W of all layers, with the micro-batches of all processes one after the other."""
        silent = next((router for router in self.routers if not router.calls), None)
        if silent:
            skipped = "called under torch.no_grad() alone; run() needs a forward pass with gradients"
            how = "run the model itself, not a compiled one, or give routers= the modules that are called"
            absent = f"not called; {how}"
            raise CannotJudge(f"{silent.name}: its module was {skipped if self.passes.has_skipped else absent}")
        each = [router.layers(self.passes.batches) for router in self.routers]
        router_of = [k for k, layers in enumerate(each) for _ in layers]
        used = self.passes.used()
        mine = [layer for layers in each for layer in layers], [batch.mask for batch in used]
        all_ = self.of_processes((*mine, self.given_sequences or sum(batch.sequences for batch in used)))
        tokens = [[batch for theirs, _, _ in all_ for batch in theirs[k]] for k in range(len(router_of))]
        masks = [mask for _, theirs, _ in all_ for mask in theirs]
        if len({len(one) for batches in tokens for one in batches}) > 1 or len({len(one) for one in tokens}) > 1:
            raise CannotJudge(
                "the micro-batches have different numbers of tokens, or the layers were called differently "
                "often; give batches of one shape"
            )
        with torch.no_grad():
            return self.joined(tokens, torch.tensor(router_of), masks, sum(one for _, _, one in all_), len(all_))

    def joined(
        self, tokens: List[List[Tensor]], router_of: Tensor, masks: List[Optional[Tensor]], sequences: int, ranks: int
    ) -> Case:
        x = torch.stack([torch.cat(batches) for batches in tokens])
        weights = self.weights()
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
            of = "" if mask is None else f" of {len(mask)} tokens"
            raise CannotJudge(f"routers have seen {x.shape[1]} tokens, the model {sequences} sequences{of}")
        parts = {"sequences": sequences or None, "micro_batches": A if A > 1 else None, "steps": A // ranks}
        return Case(
            **{"logits": logits, "router": W, "mask": mask, "top_k": self.top_k, **parts},
            **{"tokens_of_layers": x, "router_of": router_of, "ranks": ranks if ranks > 1 else None},
            trained=torch.tensor([weight.parameter.requires_grad for weight in weights]),
            routers=tuple(router.name for router in self.routers),
        ).to(torch.float64)

    # ---- measurements ----

    def differences(self) -> Tuple[Run, Run]:
        """Returns the steps at c and 2c less step 0. Raises CannotJudge for clipped gradients and for hidden state."""
        if not self.runs:
            raise CannotJudge("nothing was recorded: call run(step)")
        zero, one, two, again = self.runs
        if not any(run.size() for run in self.runs):
            raise CannotJudge(
                "the routers' gradients are all zero, whatever the coefficient: leave zero_grad() out of the step's end"
            )
        # All gradients together have one norm at 0, c and 2c, although the gradients of the routers differ.
        differ = one.minus(zero).size() > CLIPPED**0.5 * zero.all_gradients
        if differ and all(abs(run.all_gradients / zero.all_gradients - 1) <= CLIPPED / 10 for run in (one, two)):
            raise CannotJudge(
                "the gradients are clipped, to one norm whatever the coefficient: leave that out of the step"
            )
        if again.minus(zero).size() > self.floor():
            raise CannotJudge(
                "the step gives other gradients when it is run again: it depends on hidden state or on random "
                "numbers of its own"
            )
        return one.minus(zero), two.minus(zero)

    def floor(self) -> float:
        """Returns the rounding errors of the gradients that are subtracted."""
        unit = max(UNIT[weight.parameter.dtype] for weight in self.weights())
        return SPARE * unit * max(run.size() for run in self.runs) * max(1, self.x.micro_batches or 1) ** 0.5

    def dtype(self) -> torch.dtype:
        """Returns the coarsest format in which a router was computed. TF32 is as coarse as float16."""
        kinds = [router.dtype for router in self.routers]
        if torch.backends.cuda.matmul.allow_tf32 and any(weight.parameter.is_cuda for weight in self.weights()):
            kinds.append(torch.float16)
        return max(kinds, key=lambda one: UNIT[one])

    def noise(self, c: Run, twice: Run) -> float:
        """Returns the part of the gradients that remains if they are affine in the coefficient, or in its square."""
        left = min(twice.minus(c, factor).size() for factor in (2.0, 4.0))
        if left > self.floor() and left > SMALL * twice.size():
            raise CannotJudge(
                "the gradients are neither affine in the coefficient nor in its square: they are clipped, or "
                f"rounding hides a small coefficient; give value= a larger one, as {self.larger}"
            )
        return max(self.floor(), SPARE * left)

    def dumps(self, kind: Kind) -> List[Dump]:
        """Returns the dumps at c and 2c. Raises CannotJudge if rounding hides the auxiliary loss."""
        c, twice = self.differences()
        noise, found = self.noise(c, twice), []
        biases = [getattr(router.module, BIAS, None) for router in self.routers]
        if "top_k" in kind.needs and any(isinstance(bias, Tensor) and bool(bias.detach().any()) for bias in biases):
            raise CannotJudge(
                f"{self.routers[0].name}: a bias chooses the experts ({BIAS}), which the logits do not show; give "
                "its loss to certify()"
            )
        for name, run, factor in (("c", c, 1.0), ("2c", twice, 2.0)):
            x = self.x.but(coefficient=factor * self.setting.value)
            missing = [need for need in sorted(kind.needs) if getattr(x, need) is None]
            if missing or not kind.is_layered or not set(kind.gradients) <= {"logits", "router"}:
                need = f": {missing[0]}" if missing else ""
                raise CannotJudge(f"a step does not show what {kind.name} needs{need}")
            right = outputs(kind, x)
            got: Outputs = {f"d_{router.name}": one for router, one in zip(self.routers, run.gradients)}
            size = max(math.hypot(*(float(of[name].norm()) for name in got)) for of in (right, got))
            if noise > max(SMALL, ROUNDED * UNIT[self.dtype()]) * size:
                raise CannotJudge(
                    f"cannot be told: the gradient of {kind.name} at the coefficient {float(x.coefficient):g} "
                    f"is within the rounding of the whole step; give value= a larger one, as {self.larger}"
                )
            rounding = dict.fromkeys(got, noise)
            if self.has_loss(run, right):
                got["loss"] = torch.tensor(run.loss, dtype=torch.float64)
                rounding["loss"] = self.loss_floor()
            found.append(Dump(name, x, got, rounding, self.dtype()))
        return found

    def loss_floor(self) -> float:
        """Returns the rounding errors of the losses that are subtracted."""
        return SPARE * UNIT[torch.float32] * max(abs(run.loss or 0.0) for run in self.runs)

    def has_loss(self, run: Run, right: Outputs) -> bool:
        """Returns False if rounding hides the loss, or if autograd's functions add it to the gradients alone."""
        is_hidden = run.loss is None or self.loss_floor() > SMALL * abs(float(right["loss"]))
        return not is_hidden and not (run.loss == 0 and run.size() > self.floor())

    # ---- the verdict ----

    def verdict(self, kind: str) -> Verdict:
        if kind_of(kind).is_coupling:
            raise CannotJudge(
                "the coupling loss depends on weights alone and needs no step: give its function to certify(), "
                f'kind "{kind}"'
            )
        one = kind_of(kind)
        dumps = self.dumps(one)
        if all(float(value.norm()) <= dump.noise[name] for dump in dumps for name, value in dump.got.items()):
            verdict = Verdict(one, "fault", [(one.fault(key), None) for key in ("coefficient_unused", "zero")])
        else:
            verdict = judge(one, dumps)
        if verdict.state in ("fault", "unknown"):
            lines, is_open = self.by_router(one, dumps, fault_sentences(verdict))
            causes = self.notes_on(one, dumps, is_open) if verdict.state == "unknown" else []
            verdict.notes = [*lines, *causes]
        return verdict

    def by_router(self, kind: Kind, dumps: List[Dump], known: List[str]) -> Tuple[List[str], bool]:
        """Returns a sentence for each of several routers alone: right, its fault, or the first number that differs. A
        router that is not right has the `known` faults of the whole step, if there are any. Returns too whether a
        router, or the only one, is wrong without a known fault."""
        found, is_open = [], False
        for name in self.x.routers:
            held = [Held(kind, replace(dump, got={f"d_{name}": dump.got[f"d_{name}"]})) for dump in dumps]
            wrong = [one for one in held if not one.fits()]
            right = next(filter(None, (one.by_ties() for one in held)), "right")
            faults = known or [fault.sentence for fault in faults_of_one(kind, held)] if wrong else [right]
            found.append(f"{name}: {' | '.join(faults) or wrong[0].first_number()}")
            is_open = is_open or not faults
        return found if len(found) > 1 else [], is_open

    def notes_on(self, kind: Kind, dumps: List[Dump], is_open: bool) -> List[str]:
        """Returns a likely cause of a step that no fault explains, if one is known."""
        has_loss = any("loss" in dump.got for dump in dumps)
        if has_loss and is_right(kind, [with_gradients(dump, 1.0, False) for dump in dumps]):
            return [LOSS_ALONE]
        if torch.distributed.is_available() and torch.distributed.is_initialized() and not self.is_spread():
            return [UNWRAPPED]
        times = times_right(kind, dumps[0])
        if has_loss and times and is_right(kind, [with_gradients(dump, 1 / times, True) for dump in dumps]):
            return [SCALED.format(times)]
        return [NOT_LINEAR] if is_open else []

    def fitting(self) -> List[str]:
        """Returns the kinds as which the step is right. Raises CannotJudge if no kind can be judged."""
        return [verdict.kind.name for verdict in right_kinds(self.verdict)]


def faults_of_one(kind: Kind, held: Sequence[Held]) -> List[Fault]:
    """Returns the faults that explain the gradient of a single router. Of faults with equal gradients only the first is
    returned."""
    found: List[Fault] = []
    made: List[Tensor] = []
    name = next(iter(held[0].dump.got))
    near = TOLERANCE[held[0].format] * held[0].sizes[name]
    for fault, value in single_faults(kind, held):
        d_router = held[0].outputs(held[0].x, fault, value)[name]
        if fault.key not in OF_ALL_ROUTERS and not any(float((d_router - one).norm()) <= near for one in made):
            found.append(fault)
            made.append(d_router)
    return found


def with_gradients(dump: Dump, times: float, has_loss: bool) -> Dump:
    """Returns the dump with its gradients multiplied by a number, with or without its loss."""
    got = {name: value if name == "loss" else value * times for name, value in dump.got.items()}
    noise = {name: value if name == "loss" else value * abs(times) for name, value in dump.noise.items()}
    return replace(dump, got=got if has_loss else {k: v for k, v in got.items() if k != "loss"}, noise=noise)


def times_right(kind: Kind, dump: Dump) -> float:
    """Returns the factor that brings the right gradients nearest to those of the dump."""
    right = outputs(kind, dump.x)
    names = [name for name in dump.got if name != "loss"]
    got, want = (torch.cat([of[name].double().flatten() for name in names]) for of in (dump.got, right))
    return float((got * want).sum() / want.square().sum())


record = Recorded  # certify.record(model) is named like certify.certify(function)
