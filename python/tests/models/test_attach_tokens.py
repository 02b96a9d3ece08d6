"""couplet.attach(proxy="tokens"): moving means of the tokens that the layers read."""

import copy

import couplet
import couplet.hf
import pytest
import torch
import torch.distributed as dist
from conftest import accelerator_paths, all_close, close, group_of_one, in_processes, model_of
from torch import nn
from torch.utils.checkpoint import checkpoint

n, d, l, D = 6, 10, 4, 5


class Moe(nn.Module):
    def __init__(self, router=None):
        super().__init__()
        self.router = nn.Linear(d, n, bias=False) if router is None else router
        self.w1 = nn.Parameter(torch.randn(n, D, d))

    def forward(self, x):
        return torch.tanh(x + self.router(x) @ self.w1.mean(1))


class Model(nn.Module):
    def __init__(self, again=None, shared=False):
        super().__init__()
        torch.manual_seed(4)
        router = nn.Linear(d, n, bias=False) if shared else None
        self.layers = nn.ModuleList([Moe(router), Moe(router)])
        self.again = again  # use_reentrant of activation checkpointing

    def forward(self, x, attention_mask=None):
        for layer in self.layers:
            x = layer(x) if self.again is None else checkpoint(layer, x, use_reentrant=self.again)
        return x


def made(model, **more):
    return couplet.attach(model, [(m.router.weight, m.w1) for m in model.layers], seed=2, proxy="tokens", **more)


def batches(steps=3, size=8):
    make = torch.Generator().manual_seed(7)
    return [1 + torch.randn(size, 3, d, generator=make) for _ in range(steps)]


def train(model, erc, given, micro=1, by_loss=False, compiled=None):
    """Returns the losses of the steps. The model's own loss is the mean over its tokens."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    run = model if compiled is None else compiled
    for batch in given:
        for part in batch.chunk(micro):
            loss = run(part.to(model.layers[0].w1.dtype).requires_grad_()).square().mean() / micro
            (loss + erc.loss(1) if by_loss else loss).backward()
        losses.append(erc.backward() if not by_loss else torch.zeros(()) if erc.value is None else erc.value)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def state(erc):
    found = erc.state_dict()["tokens"]
    return [*found["mean"], *found["square"]]


def by_hand(model, given):
    """Returns the losses of the same steps, means [d + 1] of each layer computed from the definition."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    means = [torch.zeros(d + 1, dtype=torch.float64) for _ in model.layers]
    for t, batch in enumerate(given):
        seen, x = [], batch
        for layer in model.layers:
            seen.append(x.detach().double().reshape(-1, d))
            x = layer(x)
        x.square().mean().backward()
        losses.append(torch.zeros(()))
        if t:
            each = []
            for i, (layer, both) in enumerate(zip(model.layers, means)):
                m, v = (both / (1 - 0.99**t)).split([d, 1])
                tokens = dict(proxy="tokens", mean=m, scale=(v - m.square().sum()).sqrt().item())
                each.append(couplet.erc_loss(layer.router.weight, layer.w1, seed=2, step=t - 1, layer=i, **tokens))
            loss = sum(each) / 2
            loss.backward()
            losses[-1] = loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        means = [
            0.99 * old + 0.01 * torch.cat((x.mean(0), x.square().sum(1).mean(0, keepdim=True)))
            for old, x in zip(means, seen)
        ]
    return losses, [mean / (1 - 0.99 ** len(given)) for mean in means]


@pytest.mark.parametrize("path", ("library", "accelerator"))
def test_means_and_losses_are_those_of_the_definition(path, monkeypatch):
    if path == "accelerator":
        accelerator_paths(monkeypatch)
    model, other = Model(), Model()
    erc = made(model)
    got = train(model, erc, batches(4))
    want, means = by_hand(other, batches(4))
    assert got[0] == 0 and got[1] > 0
    all_close(got, want, 1e-5)
    all_close(state(erc), [*(m[:-1] for m in means), *(m[-1] for m in means)], 1e-6)
    all_close(list(model.parameters()), [p.detach() for p in other.parameters()], 1e-6)


@pytest.mark.parametrize("more", (dict(again=True), dict(again=False), dict(micro=4), dict(by_loss=True)), ids=str)
def test_what_changes_no_mean(more):
    want_model, model = Model(), Model(more.pop("again", None))
    want_erc, erc = made(want_model), made(model)
    want, got = train(want_model, want_erc, batches()), train(model, erc, batches(), **more)
    all_close(state(erc), state(want_erc), 1e-6)
    all_close(got, want, 1e-6)
    all_close(list(model.parameters()), [p.detach() for p in want_model.parameters()], 1e-6)


def test_eval_and_padding_are_left_out():
    want_model, model = Model(), Model()
    want_erc, erc = made(want_model), made(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.0) for m in (want_model, model)]
    (x,) = batches(1)
    want_model(x[:5].reshape(1, -1, d))
    mask = torch.zeros(8, 3, dtype=torch.int64)
    mask[:5] = 1
    model.eval()(x)
    padded = torch.where(mask[..., None] > 0, x, float("nan"))
    model.train()(padded, attention_mask=mask)
    for optimizer in optimizers:
        optimizer.step()
    all_close(state(erc)[:1] + state(erc)[2:3], state(want_erc)[:1] + state(want_erc)[2:3], 1e-6)
    model(torch.full_like(x, float("inf")))  # numbers that are not finite change no mean
    before = state(erc)
    optimizers[1].step()
    assert all(torch.equal(a, b) for a, b in zip(before, state(erc))) and erc.tokens.steps == 2


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float64))
def test_dtypes(dtype):
    model, other = Model().to(dtype), Model()
    erc, want = made(model), made(other)
    got = train(model, erc, batches())
    train(other, want, batches())
    all_close(state(erc), state(want), 1e-5 if dtype == torch.float64 else 1e-2)
    assert got[-1] > 0 and all(one.dtype == torch.float64 for one in state(erc))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_of_transformers_with_padding_and_checkpointing():
    pytest.importorskip("transformers")
    sizes = dict(hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2, num_experts=4)
    model = model_of("OlmoeForCausalLM", "OlmoeConfig", dict(sizes, vocab_size=32, num_experts_per_tok=2))
    model.gradient_checkpointing_enable()
    erc = couplet.hf.attach(model, proxy="tokens")
    ids, mask = torch.randint(32, (4, 6)), torch.ones(4, 6, dtype=torch.int64)
    mask[:, 4:] = 0
    model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
    assert [reader.sums[-1].item() for reader in erc.tokens.readers] == [16, 16]


def test_compiled_model():
    model, other = Model(), Model()
    erc, want = made(model), made(other)
    got = train(model, erc, batches(), compiled=torch.compile(model, backend="aot_eager", fullgraph=True))
    all_close(got, train(other, want, batches()), 1e-5)
    all_close(state(erc), state(want), 1e-6)


def test_state_goes_to_another_run():
    model = Model()
    erc = made(model)
    train(model, erc, batches(2))
    other = copy.deepcopy(model)
    resumed = made(other)
    resumed.load_state_dict(copy.deepcopy(erc.state_dict()))
    assert resumed.state_dict()["tokens"]["steps"] == 2 and len(resumed.state_dict()["tokens"]["mean"]) == 2
    given = batches(4)[2:]
    for a, b in zip(train(model, erc, given), train(other, resumed, given)):
        assert a > 0 and torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(state(erc), state(resumed)))


def test_a_state_is_loaded_strictly():
    model, plain = Model(), Model()
    erc, row = made(model), couplet.attach(plain, [(m.router.weight, m.w1) for m in plain.layers])
    good = erc.state_dict()
    with pytest.raises(ValueError, match="no means of tokens"):
        erc.load_state_dict(row.state_dict())
    with pytest.raises(ValueError, match="attach with proxy"):
        row.load_state_dict(good)
    with pytest.raises(ValueError, match="one for each layer"):
        erc.load_state_dict({**good, "tokens": {**good["tokens"], "mean": good["tokens"]["mean"][:1]}})
    with pytest.raises(ValueError, match="no means of tokens"):
        erc.load_state_dict({**good, "tokens": {"steps": 1}})


def test_a_shared_router_has_means_for_each_layer():
    model = Model(shared=True)
    with pytest.raises(ValueError, match="several layers have one router"):
        made(model)
    erc = made(model, routers=list(model.layers))
    got = train(model, erc, batches())
    first, second = erc.state_dict()["tokens"]["mean"]
    close(first, torch.stack([x.reshape(-1, d).double().mean(0) for x in batches()]).mean(0), 0.02)
    assert got[-1] > 0 and (first - second).norm() > 0.1


def test_latent_experts():
    model = Model()
    for layer in model.layers:
        layer.down, layer.w2 = nn.Parameter(torch.randn(l, d)), nn.Parameter(torch.randn(n, D, l))
    erc = couplet.attach(model, [(m.router.weight, m.w2, m.down) for m in model.layers], seed=2, proxy="tokens")
    train(model, erc, batches(1))
    erc.backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    tokens = erc.state_dict()["tokens"]
    model.zero_grad()
    for i, (layer, m, v) in enumerate(zip(model.layers, tokens["mean"], tokens["square"])):
        more = dict(proxy="tokens", mean=m, scale=(v - m.square().sum()).sqrt(), down=layer.down, weight=0.5)
        couplet.erc_loss(layer.router.weight, layer.w2, seed=2, layer=i, **more).backward()
    want = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(want) == 6
    all_close(got, want, 1e-5)


@pytest.mark.parametrize("told", (False, True))
def test_an_optimizer_of_copies_needs_next_step(told):
    model = Model()
    erc = made(model)
    copies = torch.optim.SGD([p.detach().clone().requires_grad_() for p in model.parameters()], lr=0.1)
    for step in range(9):
        if told:
            erc.next_step(step)
        model(batches(1)[0])
        if step == 8 and not told:
            with pytest.warns(UserWarning, match="erc.next_step"):
                assert erc.backward() == 0
        else:
            assert (erc.backward() > 0) == (told and step > 0)
        copies.step()


def test_wrong_arguments():
    model = Model()
    pairs = [(m.router.weight, m.w1) for m in model.layers]
    for more, sentence in (
        (dict(proxy="centred"), "proxy is 'centred', must be row or tokens"),
        (dict(routers=list(model.layers)), "routers and tokens_group are for"),
        (dict(proxy="tokens", routers=[model]), "routers must be a list of 2 modules"),
    ):
        with pytest.raises(ValueError, match=sentence):
            couplet.attach(model, pairs, **more)


def _rank(rank, size, by_experts):
    model = Model()
    if by_experts:
        here = slice(rank * n // size, (rank + 1) * n // size)
        for layer in model.layers:
            layer.w1 = nn.Parameter(layer.w1.detach()[here].clone())
            layer.forward = lambda x, layer=layer: x + 0 * layer.router(x).sum() + 0 * layer.w1.sum()
    erc = made(model, **(dict(group=dist.group.WORLD) if by_experts else {}))
    run = model if by_experts else nn.parallel.DistributedDataParallel(model)
    losses = train(model, erc, [b.chunk(size)[rank] for b in batches()], compiled=run)
    return {"losses": torch.stack(losses), "state": torch.cat([one.reshape(-1) for one in state(erc)])}


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("by_experts", (False, True))
def test_two_processes_are_one(by_experts):
    found = in_processes(_rank, 2, 2, by_experts)
    assert torch.equal(found[0]["state"], found[1]["state"]) and torch.equal(found[0]["losses"], found[1]["losses"])
    with group_of_one():
        want = _rank(0, 1, by_experts)
    all_close(list(found[0].values()), list(want.values()), 1e-5)
