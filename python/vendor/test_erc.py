# SPDX-License-Identifier: Apache-2.0
# Copyright The Couplet contributors
"""erc.py against the paper's pseudo-code in float64. To copy beside it; needs torch and pytest alone."""
import pytest
import torch
import torch.distributed as dist

from erc import add_gradients, bound_of_noise, erc_loss, noise

LIMITS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def by_pseudo_code(router, w_gate, delta, alpha):
    """The loss in float64, with the gradient at a tie."""
    over = lambda x: torch.where(x >= 0, x, torch.zeros_like(x))
    M = torch.norm(torch.einsum("jDd,id->ijD", w_gate, router * delta), dim=-1)
    own, others = M.diag(), 1 - torch.eye(len(M), dtype=M.dtype)
    return ((over(M - alpha * own[:, None]) + over(M - alpha * own[None])) * others).mean()


def right(router, w_gate, delta, alpha=1.0):
    R, W = (t.detach().double().requires_grad_() for t in (router, w_gate))
    loss = by_pseudo_code(R, W, delta.double(), alpha)
    return [loss.detach(), *torch.autograd.grad(loss, (R, W))]


def close(made, wanted, limit):
    for a, b in zip(made, wanted):
        assert torch.dist(a.double(), b) <= limit * b.norm(), (a, b)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("n, D, d, alpha", ((5, 3, 7, 1.0), (16, 24, 32, 0.7), (33, 9, 20, 0.0), (1, 4, 4, 1.0)))
def test_loss_and_gradients(n, D, d, alpha, dtype):
    R, W = (numbers(*shape).to(dtype).requires_grad_() for shape in ((n, d), (n, D, d)))
    loss = erc_loss(R, W, step=3, layer=1, alpha=alpha)
    assert loss.dtype == (dtype if dtype == torch.float64 else torch.float32)
    gradients = torch.autograd.grad(loss, (R, W))
    assert [g.dtype for g in gradients] == [dtype] * 2
    wide = torch.promote_types(dtype, torch.float32)
    close([loss, *gradients], right(R, W, noise(R.detach().to(wide), step=3, layer=1), alpha), LIMITS[dtype])


@pytest.mark.parametrize("half", ("first", "second", "interleaved", "list"))
def test_layouts(half, monkeypatch):
    monkeypatch.setattr("erc.NUMBERS_AT_ONCE", 2 * 5 * 8)  # two experts at once
    R, W = numbers(7, 8), numbers(7, 5, 8)
    both, at = torch.zeros(7, 10, 8, dtype=W.dtype), {"second": slice(5, None), "interleaved": slice(0, None, 2)}
    where = at.get(half, slice(0, 5))
    both[:, where] = W
    leaf = W if half == "list" else both
    leaf = leaf.clone().requires_grad_()
    if half == "list":
        loss = erc_loss(R, list(leaf), step=0, layer=0)
    else:
        loss = erc_loss(R, leaf, step=0, layer=0, gate_half=half)
    loss.backward()
    wanted = right(R, W, noise(R, step=0, layer=0))
    gate = leaf.grad if half == "list" else leaf.grad[:, where]
    close([loss, gate], [wanted[0], wanted[2]], 1e-12)
    assert leaf.grad.count_nonzero() == gate.count_nonzero()


@pytest.mark.parametrize("n", (8, 13, 16, 64))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_ties(n, dtype):
    """Equal gates, as after upcycling, and equal router rows: M has exact ties, at which the gradient passes."""
    R, W = numbers(n, 24).to(dtype), numbers(n, 18, 24).to(dtype)
    for equal in ("gates", "rows"):
        r, w = (R, W[:1].repeat(n, 1, 1)) if equal == "gates" else (torch.cat((R[:1], R[:-1])), W)
        r, w = r.clone().requires_grad_(), w.clone().requires_grad_()
        none = torch.ones(n, 24)
        delta = none if equal == "rows" else noise(r.detach().float(), step=0, layer=0)
        close(torch.autograd.grad(erc_loss(r, w, step=0, layer=0, delta=delta), (r, w)), right(r, w, delta)[1:],
              LIMITS[dtype])


def test_the_noise():
    R = numbers(6, 400).float()
    eps, delta = bound_of_noise(R)[:, None], noise(R, step=5, layer=2)
    apart = torch.cdist(R.double(), R.double()) + torch.diag(torch.full((6,), float("inf")))
    assert torch.allclose(eps[:, 0], apart.min(1).values / 2 / R.double().norm(dim=1))
    assert ((delta - 1).abs() <= eps * (1 + 1e-6)).all() and ((delta - 1).abs() > 0.9 * eps).any(1).all()
    assert (delta.mean(1) - 1).abs().max() < 0.1 * eps.max()
    assert torch.equal(delta, noise(R, step=torch.tensor(5), layer=2))
    for other in (dict(step=6, layer=2), dict(step=5, layer=3), dict(step=5, layer=2, seed=1), dict(step=5 + 2**32, layer=2)):
        assert not torch.equal(delta, noise(R, **other))
    assert torch.equal(noise(torch.zeros(3, 4), step=0, layer=0), torch.ones(3, 4))


def test_numbers_that_are_not():
    R, W = numbers(4, 6), numbers(4, 5, 6)
    R[1, 2] = float("nan")
    W.requires_grad_()
    loss = erc_loss(R, W, step=0, layer=0, delta=torch.ones(4, 6))
    loss.backward()
    assert loss.isnan() and W.grad.isnan().flatten(1).any(1).all()


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_latent_experts(dtype):
    """The gates are of width 4. Noise is drawn in width 9, and the gradient reaches the projection."""
    leaves = R, W, P = [numbers(*shape).to(dtype).requires_grad_() for shape in ((6, 9), (6, 5, 4), (4, 9))]
    for p in leaves:
        p.main_grad = torch.zeros(p.shape, dtype=torch.float64)
    loss = add_gradients([(R, W, P)], step=2, attribute="main_grad", alpha=0.8)
    delta = noise(R.detach().to(torch.promote_types(dtype, torch.float32)), step=2, layer=0)
    r, w, p = wide = [t.detach().double().requires_grad_() for t in leaves]
    wanted = by_pseudo_code((r * delta) @ p.mT, w, 1, 0.8)
    close([loss, *(t.main_grad for t in leaves)], [wanted.detach(), *torch.autograd.grad(wanted, wide)], LIMITS[dtype])


def test_gradients_are_added():
    layers = [(numbers(4, 6, seed=i).requires_grad_(), list(numbers(4, 5, 6, seed=i + 9))) for i in range(2)]
    for _, gates in layers:
        for w in gates:
            w.requires_grad_()
    layers[0][0].main_grad = torch.ones(4, 6, dtype=torch.float64)
    for p in (layers[1][0], *layers[0][1], *layers[1][1]):
        p.main_grad = None
    loss = add_gradients(layers, step=7, weight=3.0, scale=torch.tensor(2.0), attribute="main_grad", alpha=0.5)
    each = [right(R, torch.stack(gates), noise(R.detach(), step=7, layer=l), 0.5) for l, (R, gates) in enumerate(layers)]
    close([loss], [1.5 * (each[0][0] + each[1][0])], 1e-12)
    for l, (R, gates) in enumerate(layers):
        close([R.main_grad - float(l == 0), torch.stack([w.main_grad for w in gates])], [3 * g for g in each[l][1:]], 1e-12)
        assert R.grad is None


def test_autocast_has_no_effect():
    R, W = numbers(5, 6).float().requires_grad_(), numbers(5, 4, 6).float()
    loss = erc_loss(R, W, step=0, layer=0)
    with torch.autocast("cpu"):
        again = erc_loss(R, W, step=0, layer=0)
        assert torch.equal(torch.autograd.grad(again, R)[0], torch.autograd.grad(loss, R)[0]) and torch.equal(again, loss)


def test_compiled():
    """Whole, and compiled at most twice while the step changes."""
    R, W = numbers(6, 8).float().requires_grad_(), numbers(6, 5, 8).float().requires_grad_()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    made = torch.compile(lambda r, w, step: erc_loss(r, w, step=step, layer=1), backend=count, fullgraph=True)
    for step in range(4):
        loss = made(R, W, step)
        close([loss, *torch.autograd.grad(loss, (R, W))], right(R, W, noise(R.detach(), step=step, layer=1)), 1e-5)
    assert len(graphs) <= 2


def of_one_process(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    R, W = numbers(6, 8).requires_grad_(), numbers(6, 5, 8)
    here = W[3 * rank:3 * rank + 3].clone().requires_grad_()
    loss = erc_loss(R, here, step=2, layer=0, group=dist.group.WORLD)
    wanted = right(R, W, noise(R.detach(), step=2, layer=0))
    wanted[2] = wanted[2][3 * rank:3 * rank + 3]
    close([loss, *torch.autograd.grad(loss, (R, here))], wanted, 1e-12)
    R, P = numbers(6, 9).requires_grad_(), numbers(8, 9, seed=1).requires_grad_()  # the gradient of P is whole too
    loss = erc_loss(R, here, step=2, layer=0, down=P, group=dist.group.WORLD)
    whole = by_pseudo_code((R * noise(R.detach(), step=2, layer=0)) @ P.mT, W, 1, 1.0)
    close([loss, *torch.autograd.grad(loss, (R, P))], [whole, *torch.autograd.grad(whole, (R, P))], 1e-12)
    dist.destroy_process_group()


def test_two_processes(tmp_path):
    torch.multiprocessing.spawn(of_one_process, (str(tmp_path / "meet"),), nprocs=2)


@pytest.mark.parametrize("shapes, options, sentence", (
    (((4, 6), (4, 6, 5)), {}, "rows as nn.Linear stores them"),
    (((4, 6), (3, 5, 6)), {}, "the router has 4 rows, and there are gates of 3 experts in each of 1 processes"),
    (((4, 6), (4, 5, 6)), {"down": numbers(3, 5)}, "down is .3, 5., it must be .l, d. beside a router .4, 6."),
    (((4, 6), (4, 5, 6)), {"down": numbers(3, 6)}, "rows as nn.Linear stores them"),
    (((4, 6), (4, 5, 6)), {"gate_half": "upper"}, "gate_half is 'upper', it must be None, 'first'")))
def test_refused(shapes, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        erc_loss(*(numbers(*shape) for shape in shapes), step=0, layer=0, **options)
