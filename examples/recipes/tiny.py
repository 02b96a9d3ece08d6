"""Code that the recipes share: a tiny model and rows of ids in place of yours, and Check, which compares the
gradients that a trainer hands to its optimizer with gradients computed by hand."""

import copy

import couplet
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

WEIGHT, SEED = 2.0, 0


def model(seed=0):
    """Returns a random OLMoE of Transformers: 2 layers of 8 experts, with routers of norms on which ERC can act."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    torch.manual_seed(seed)
    made = OlmoeForCausalLM(
        OlmoeConfig(
            vocab_size=4096,
            hidden_size=32,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_experts=8,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            eos_token_id=1,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    )
    return grown(made.train())


def grown(made):
    """Sets norms near 1 in place of the norms of a fresh initialisation, so that ERC is not near 0."""
    with torch.no_grad():
        for name, p in made.named_parameters():
            if "experts" in name or ".gate." in name or "router" in name:
                p.mul_(8)
    return made


def rows(count, length=16):
    numbers = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, 4096, (length,), generator=numbers) for _ in range(count)]
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def whole(tensor):
    """Returns the whole of a tensor that may be a shard (DTensor)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def olmoe_layers(made):
    """Returns [(router, gates)] of Transformers' OLMoE. Gates and up projections share a parameter, gates first."""
    return [(layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj) for layer in made.model.layers]


class Check:
    """Checks a training loop: `with Check(model): train`. At every step of an optimizer, the gradients of routers and
    gates must be the gradients of mean(LM loss over the step's micro-batches) + WEIGHT * mean(ERC over layers), within
    1e-6 of their norm. At the end ERC must have fallen.

    twin: another model of the same shapes, whole on this process; layers(twin): its [(router, gates)];
    lm(twin, batch): its LM loss; gate_half: as in couplet.erc_loss; grad(p): the gradient of a parameter of
    the model; max_grad_norm: limit of the clipping before the step; hooked: False if the recipe itself calls
    step() before the optimizer's step."""

    def __init__(
        self,
        trained,
        twin=None,
        layers=olmoe_layers,
        lm=lambda twin, batch: twin(**batch).loss,
        gate_half="first",
        grad=lambda p: p.grad,
        max_grad_norm=None,
        micro_batches=2,
        hooked=True,
    ):
        self.model, self.twin = trained, model() if twin is None else twin
        self.layers, self.lm, self.gate_half, self.grad = layers, lm, gate_half, grad
        self.max_grad_norm, self.micro_batches = max_grad_norm, micro_batches
        self.hooked, self.batches, self.values, self.worst = hooked, [], [], 0.0

    def __enter__(self):
        def keep_batch(module, args, kwargs):
            if module.training:
                self.batches.append(copy.deepcopy({name: kwargs[name] for name in ("input_ids", "labels")}))

        self.hooks = [self.model.register_forward_pre_hook(keep_batch, with_kwargs=True)]
        if self.hooked:
            self.hooks.append(register_optimizer_step_pre_hook(lambda *_: self.step()))
        return self

    def step(self):
        """Checks the gradients before an optimizer's step."""
        ours = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, p in self.twin.named_parameters():
                p.copy_(whole(ours[name]))
        assert len(self.batches) == self.micro_batches, self.batches
        self.twin.zero_grad()
        for batch in self.batches:
            (self.lm(self.twin, batch) / len(self.batches)).backward()
        if dist.is_initialized():
            for p in self.twin.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        layers = self.layers(self.twin)
        step = len(self.values)
        each = [
            couplet.erc_loss(router, gates, gate_half=self.gate_half, seed=SEED, step=step, layer=l)
            for l, (router, gates) in enumerate(layers)
        ]
        erc = sum(each) / len(each)
        (WEIGHT * erc).backward()
        if self.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.twin.parameters(), self.max_grad_norm)
        learned = {id(p) for pair in layers for p in pair}
        for name, p in self.twin.named_parameters():
            if id(p) in learned:
                error = torch.dist(whole(self.grad(ours[name])), p.grad) / p.grad.norm()
                assert error < 1e-6, f"step {step}: {name}: {error:.1e} from the gradient by hand"
                self.worst = max(self.worst, error.item())
        self.values.append(erc.item())
        self.batches.clear()

    def __exit__(self, kind, error, trace):
        for hook in self.hooks:
            hook.remove()
        if error is None:
            assert len(self.values) > 2 and self.values[-1] < 0.9 * self.values[0], self.values
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(
                    f"{len(self.values)} steps of {self.micro_batches} micro-batches: gradients within "
                    f"{self.worst:.0e} of those by hand, ERC {self.values[0]:.3g} -> {self.values[-1]:.3g}"
                )


class CheckAdded:
    """Checks a function `add` of trainers whose LM gradients cannot be computed again on one process. The first of
    `calls` calls in an optimizer step must add the gradients of WEIGHT * mean(ERC over layers), computed by hand, to
    the gradients of routers and gates, within 1e-6 of their norm. The others must add nothing. At the end ERC must have
    fallen.

    layers(): [(router, gates)] of this process; whole(router or gates): the whole tensor, on every process;
    grad(p): the gradient of a parameter; gate_half: as in couplet.attach; loss: loss of one layer, with the rounding of
    the checked code, since a hinge near 0 depends on the last bit."""

    def __init__(
        self,
        layers,
        calls=2,
        micro_batches=2,
        whole=whole,
        grad=lambda p: p.grad,
        gate_half=None,
        loss=couplet.erc_loss,
    ):
        self.loss, self.layers, self.calls, self.micro_batches = loss, layers, calls, micro_batches
        self.whole, self.grad, self.gate_half = whole, grad, gate_half
        self.called, self.values, self.worst = 0, [], 0.0

    def around(self, add):
        """Returns `add` with the check around it."""

        def checked(*args, **kwargs):
            before = self._all(self.grad)
            result = add(*args, **kwargs)
            after = self._all(self.grad)
            first = self.called % self.calls == 0
            wanted = self._by_hand() if first else [torch.zeros_like(t) for t in after]
            for old, new, want in zip(before, after, wanted):
                assert not first or want.norm() > 1e-3 * new.norm(), "next to nothing is tested here"
                error = torch.dist(new - old, want) / new.norm()
                assert error < 1e-6, f"call {self.called}: {error:.1e} from the gradient by hand"
                self.worst = max(self.worst, error.item())
            self.called += 1
            return result

        return checked

    def _all(self, of):
        """Returns of(p) of all layers' routers and gates, whole."""
        zero = lambda p: torch.zeros_like(p) if of(p) is None else of(p).detach()
        of_many = lambda p: zero(p) if torch.is_tensor(p) else [zero(one) for one in p]
        return [self.whole(of_many(many)).float().clone() for pair in self.layers() for many in pair]

    def _by_hand(self):
        tensors = [t.requires_grad_() for t in self._all(lambda p: p)]
        step = len(self.values)
        each = [
            self.loss(router, gates, gate_half=self.gate_half, seed=SEED, step=step, layer=l)
            for l, (router, gates) in enumerate(zip(tensors[::2], tensors[1::2]))
        ]
        self.values.append((sum(each) / len(each)).item())
        return torch.autograd.grad(WEIGHT * sum(each) / len(each), tensors)

    def report(self, note=""):
        assert len(self.values) > 2 and self.values[-1] < 0.9 * self.values[0], self.values
        assert self.called == self.calls * len(self.values)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(
                f"{len(self.values)} steps of {self.micro_batches} micro-batches: gradients within "
                f"{self.worst:.0e} of those by hand, ERC {self.values[0]:.3g} -> {self.values[-1]:.3g}{note}"
            )
