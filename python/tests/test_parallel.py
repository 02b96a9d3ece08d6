"""Experts spread over two processes of three: the same numbers as in one."""
import datetime
import os
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import couplet
from conftest import close

n, d, D = 6, 10, 8
SETTINGS = dict(alpha=0.8, weight=2.0, seed=5, step=9, layer=2)
CASES = [("gate", None, torch.float32), ("output", None, torch.float32), ("gate", "second", torch.float32),
         ("swiglu", "first", torch.float64), ("gate", None, torch.float64),
         ("gate", None, torch.bfloat16)]


def tensors(dtype):
    made = torch.Generator().manual_seed(3)
    shapes = ((n, d), (n, D, d), (n, D, d), (n, d, D))
    return [torch.randn(shape, generator=made).to(dtype) for shape in shapes]


def arguments(case, part):
    """Router, gate, up, down of the experts of `part`; the leaves that have gradients."""
    activation, half, dtype = case
    router, gate, up, down = tensors(dtype)
    if half:
        gate, up = torch.cat((gate, up) if half == "first" else (up, gate), 1), None
    leaves = [t if t is None else t.contiguous().requires_grad_()
              for t in (router, *(t if t is None else t[part] for t in (gate, up, down)))]
    return leaves, dict(activation=activation, gate_half=half, **SETTINGS)


def process(rank, size, folder):
    """The first process is of no group but the one of all."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=60))
    group = dist.new_group([1, 2])
    torch.save([of_all(rank, size)] + (of_two(rank - 1, group) if rank else []), os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def of_all(rank, size):
    (router, gate, *_), settings = arguments(CASES[0], slice(rank * n // size, (rank + 1) * n // size))
    return couplet.erc_loss_ep(router, gate, **settings).detach()


def of_two(rank, group):
    results = []
    for case in CASES:
        (router, gate, up, down), settings = arguments(case, slice(rank * n // 2, (rank + 1) * n // 2))
        loss = couplet.erc_loss_ep(router, gate, group, up, down, **settings)
        (3 * loss).backward()
        results.append([loss.detach()] + [None if t is None else t.grad
                                          for t in (router, gate, up, down)])
    try:
        couplet.erc_loss_ep(router[:5], gate, group)
    except ValueError as error:
        results.append(str(error))
    with warnings.catch_warnings(record=True) as warned:
        couplet.erc_loss_ep(router, gate, group, alpha=1.5)
    results.append([(str(w.message), w.filename) for w in warned])
    return results


@pytest.fixture(scope="module")
def three():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(3, folder), nprocs=3)
        yield [torch.load(os.path.join(folder, f"{rank}.pt")) for rank in range(3)]


@pytest.fixture(scope="module")
def two(three):
    return [results[1:] for results in three[1:]]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda k: "-".join(map(str, CASES[k])))
def test_two_processes_are_one(two, number):
    case = CASES[number]
    limit = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}[case[2]]
    leaves, settings = arguments(case, slice(0, n))
    whole = couplet.erc_loss(*leaves, **settings)
    (3 * whole).backward()
    for rank in range(2):
        loss, d_router, *others = two[rank][number]
        close(loss, whole, limit, "loss")
        close(d_router, leaves[0].grad, limit, "router")
        for got, leaf in zip(others, leaves[1:]):
            if leaf is not None and leaf.grad is not None:
                close(got, leaf.grad[rank * n // 2:(rank + 1) * n // 2], limit)


def test_uneven_experts_are_refused(two):
    assert "cpl_erc: 3 experts here and 2 processes, but the router has 5 rows" in two[0][-2]


def test_alpha_above_one_is_warned_of(two):
    (sentence, where), = two[0][-1]
    assert "alpha 1.5 is above 1" in sentence and where == __file__


def test_without_a_group_all_take_part(three):
    leaves, settings = arguments(CASES[0], slice(0, n))
    for results in three:
        close(results[0], couplet.erc_loss(*leaves, **settings), 1e-5)
