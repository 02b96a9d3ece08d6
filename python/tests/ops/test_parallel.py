"""Experts spread over two processes of three give the results of one process."""

import warnings

import couplet
import pytest
import test_golden
import torch
import torch.distributed as dist
from conftest import accelerator_paths, close, in_processes
from couplet.ops._job import USES_UP

try:
    from torch.distributed.tensor import distribute_tensor
except ImportError:  # PyTorch 2.4
    from torch.distributed._tensor import distribute_tensor

n, d, D = 6, 10, 8
SETTINGS = dict(alpha=0.8, weight=2.0, seed=5, step=9, layer=2)
CASES = [
    ("gate", None, torch.float32),
    ("output", None, torch.float32),
    ("gate", "second", torch.float32),
    ("swiglu", "first", torch.float64),
    ("gate", None, torch.float64),
    ("gate", None, torch.bfloat16),
]


def tensors(dtype):
    made = torch.Generator().manual_seed(3)
    shapes = ((n, d), (n, D, d), (n, D, d), (n, d, D))
    return [torch.randn(shape, generator=made).to(dtype) for shape in shapes]


def arguments(case, part):
    """Returns router, gate, up and down of the experts of `part` (leaves with gradients), and the settings."""
    activation, half, dtype = case
    router, gate, up, down = tensors(dtype)
    if half:
        gate, up = torch.cat((gate, up) if half == "first" else (up, gate), 1), None
    up, down = up if activation in USES_UP else None, down if activation == "output" else None
    leaves = [
        t if t is None else t.contiguous().requires_grad_()
        for t in (router, *(t if t is None else t[part] for t in (gate, up, down)))
    ]
    return leaves, dict(activation=activation, gate_half=half, **SETTINGS)


def whole_loss(leaves, **settings):
    router, gate, up, down = leaves
    return couplet.erc_loss(router, gate, w_up=up, w_down=down, **settings)


def of_three(rank):
    """Runs the cases in three processes. The first process belongs only to the group of all processes."""
    group = dist.new_group([1, 2])
    return [of_all(rank, 3)] + (of_two(rank - 1, group) if rank else [])


def of_all(rank, size):
    (router, gate, *_), settings = arguments(CASES[0], slice(rank * n // size, (rank + 1) * n // size))
    return couplet.erc_loss_ep(router, gate, **settings).detach()


def of_two(rank, group):
    results = []
    for case in CASES:
        (router, gate, up, down), settings = arguments(case, slice(rank * n // 2, (rank + 1) * n // 2))
        loss = couplet.erc_loss_ep(router, gate, group=group, local_w_up=up, local_w_down=down, **settings)
        (3 * loss).backward()
        results.append([loss.detach()] + [None if t is None else t.grad for t in (router, gate, up, down)])
    results.append(as_on_an_accelerator(rank, group))
    results.append({path: golden(rank, group, path) for path in PATHS})
    try:
        couplet.erc_loss_ep(router[:5], gate, group=group)
    except ValueError as error:
        results.append(str(error))
    with warnings.catch_warnings(record=True) as warned:
        couplet.erc_loss_ep(router, gate, group=group, alpha=1.5)
    results.append([(str(w.message), w.filename) for w in warned])
    return results


def as_on_an_accelerator(rank, group):
    """Returns loss and gradients of the first case, and the numbers of exchanges of forward and backward call."""
    (router, gate, *_), settings = arguments(CASES[0], slice(rank * n // 2, (rank + 1) * n // 2))
    exchanges = []
    with pytest.MonkeyPatch.context() as patch:
        accelerator_paths(patch)
        for name in ("all_reduce", "all_gather_into_tensor"):
            call = getattr(dist, name)
            patch.setattr(dist, name, lambda *a, call=call, **k: exchanges.append(None) or call(*a, **k))
        loss = couplet.erc_loss_ep(router, gate, group=group, **settings)
        forward = len(exchanges)
        (3 * loss).backward()
    return [loss.detach(), router.grad, gate.grad, forward, len(exchanges) - forward]


PATHS = test_golden.PATHS + ("accelerator",)


def golden(rank, group, path):
    """Returns the golden cases that fail where each process has half of the experts."""
    wrong = []
    function = lambda *leaves, w_up, w_down, **settings: couplet.erc_loss_ep(
        *leaves, group=group, local_w_up=w_up, local_w_down=w_down, **settings
    )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A warning is given for alpha outside of 0.1 to 1.
        test_golden.take(path, patch)
        for case in (case for case in test_golden.CASES if case["n"] % 2 == 0):
            here = slice(rank * case["n"] // 2, (rank + 1) * case["n"] // 2)
            tensors = test_golden.load_file(test_golden.GOLDEN / f"{case['name']}.safetensors")
            part = {name: t[here] if name[-2:] in ("Wg", "Wp", "Wo") else t for name, t in tensors.items()}
            for dtype, limit in test_golden.LIMITS.items():
                try:
                    test_golden.compare(case, dtype, limit, tensors=part, function=function)
                except AssertionError as error:
                    wrong.append(f"{case['name']} {dtype}: {error}")
    return wrong


# The sentence of both processes -> the arguments in which the second process differs.
DISAGREEMENTS = {
    "alpha is 0.8 in process 0 of the group and 0.9 in process 1": dict(alpha=0.9),
    "weight is 2.0": dict(weight=1.0),
    "seed is 5": dict(seed=6),
    "step is 9": dict(step=8),
    "layer is 2": dict(layer=3),
    "noise is bounded": dict(noise="none"),
    "compute is None": dict(compute="bf16"),
    "activation is gate": dict(activation="silu"),
    "whether delta is given is False": dict(delta=torch.ones(n, d)),
    "whether the router needs a gradient is True": dict(router=torch.ones(n, d)),
    "router is [[6, 10], 'torch.float32', 'cpu']": dict(router=torch.ones(n, d).double().requires_grad_()),
    "the matrices' dtype is torch.float32": dict(local_w_gate=torch.ones(n // 2, D, d).bfloat16()),
    "local_w_gate is [3, 8, 10]": dict(local_w_gate=torch.ones(n // 2, D + 1, d)),
    "must have the same number of experts": dict(local_w_gate=torch.ones(n // 2 - 1, D, d)),
    "must be finite": dict(delta=torch.full((n, d), float("nan"))),
    "step is 1.5, must be a whole number": dict(step=1.5),
    "router is a DTensor": dict(router="sharded"),
    "w_gate is a DTensor": dict(local_w_gate="sharded"),
}


def disagreeing(rank):
    (router, gate, *_), settings = arguments(CASES[0], slice(rank * n // 2, (rank + 1) * n // 2))
    said = []
    for other in DISAGREEMENTS.values():
        asked = {"router": router, "local_w_gate": gate, **settings, **(other if rank else {})}
        if "sharded" in other.values():
            name = next(iter(other))
            mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
            own = {"router": router, "local_w_gate": gate}[name]
            sharded = distribute_tensor(own.detach(), mesh)
            asked[name] = sharded if rank else own
        try:
            said.append(f"nothing: {couplet.erc_loss_ep(**asked)}")
        except (ValueError, TypeError) as error:
            said.append(str(error))
    losses = [couplet.erc_loss_ep(router, gate, **{**settings, "step": step}) for step in (torch.tensor(9), 9)]
    return [*said, (losses[0] - losses[1]).item()]


def test_processes_that_disagree_all_say_so():
    said = in_processes(disagreeing, 2)
    for number, sentence in enumerate(DISAGREEMENTS):
        for rank in range(2):
            assert sentence in said[rank][number], (rank, said[rank][number])
            assert said[rank][number].startswith("couplet: ")
    assert [s[-1] for s in said] == [0, 0]  # Equal steps give equal losses, so no message was left over.


@pytest.fixture(scope="module")
def three():
    return in_processes(of_three, 3)


@pytest.fixture(scope="module")
def two(three):
    return [results[1:] for results in three[1:]]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda k: "-".join(map(str, CASES[k])))
def test_two_processes_are_one(two, number):
    case = CASES[number]
    limit = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}[case[2]]
    leaves, settings = arguments(case, slice(0, n))
    whole = whole_loss(leaves, **settings)
    (3 * whole).backward()
    for rank in range(2):
        loss, d_router, *others = two[rank][number]
        close(loss, whole, limit, "loss")
        close(d_router, leaves[0].grad, limit, "router")
        for got, leaf in zip(others, leaves[1:]):
            if leaf is not None and leaf.grad is not None:
                close(got, leaf.grad[rank * n // 2 : (rank + 1) * n // 2], limit)


def test_all_exchanges_of_an_accelerator_are_in_the_forward_call(two):
    """A backward pass exchanges nothing, so processes may compute the layers' gradients in different orders."""
    leaves, settings = arguments(CASES[0], slice(0, n))
    whole = whole_loss(leaves, **settings)
    (3 * whole).backward()
    for rank in range(2):
        loss, d_router, d_gate, forward, backward = two[rank][len(CASES)]
        close(loss, whole, 1e-5)
        close(d_router, leaves[0].grad, 1e-5)
        close(d_gate, leaves[1].grad[rank * n // 2 : (rank + 1) * n // 2], 1e-5)
        assert forward == 4 and backward == 0  # The four are arguments, diagonal, sums and the router's gradient.


@pytest.mark.parametrize("path", PATHS)
def test_golden_values(two, path):
    assert [two[rank][len(CASES) + 1][path] for rank in range(2)] == [[], []]


def test_uneven_experts_are_refused(two):
    assert "couplet: 3 experts here and 2 processes, but the router has 5 rows" in two[0][-2]


def test_alpha_above_one_is_warned_of(two):
    ((sentence, where),) = two[0][-1]
    assert "alpha 1.5 is above 1" in sentence and where == __file__


def test_without_a_group_all_take_part(three):
    leaves, settings = arguments(CASES[0], slice(0, n))
    for results in three:
        close(results[0], whole_loss(leaves, **settings), 1e-5)
