"""The plain path: sizes of its tensors and numbers of its multiplications, counted in the operations of torch."""

import couplet
import pytest
import torch
import torch.utils._python_dispatch
from conftest import accelerator_paths, all_close, in_chunks
from couplet.ops import _operator, _plain


@pytest.fixture(autouse=True)
def an_expert_at_a_time(monkeypatch):
    in_chunks(monkeypatch)


PRODUCTS = ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_")


class Count(torch.utils._python_dispatch.TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation makes, and counts the multiplications of all products."""

    def __init__(self):
        super().__init__()
        self.largest = self.multiplied = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0]
        if isinstance(result, torch.Tensor) and name not in ("view", "expand", "transpose"):
            self.largest = max(self.largest, result.numel())
        if name in PRODUCTS:
            a, b = args[-2:]
            self.multiplied += a.numel() * b.shape[-1]
        return result


def counted(router, gate, alpha=1.0):
    """Returns counts, loss and gradients. It calls the parts of erc.backward: an operator hides its operations."""
    router, gate = router.detach().double(), gate.detach().double()
    job = _operator.make_job(router, [gate], [], [], None, "", alpha, 1.0, "gate", "none", 0, 0, 0, 0, "f32")
    job.wants_router, d_gate = True, torch.zeros_like(gate)
    _operator.into(job, [d_gate], [], [], "")
    with Count() as count:
        result = _operator.run(job)
    return count, result.total / len(router) ** 2, result.d_router, d_gate


def coupled(n, D, d, own):
    """Returns experts that answer their own row by `own` more than chance."""
    router, gate = torch.nn.functional.normalize(torch.randn(n, d), dim=1), torch.randn(n, D, d)
    gate += own * router[:, None, :]
    return router, gate


@pytest.mark.parametrize("chunk", (None, 3))  # None: as on the CPU; 3: as on other devices, three experts at once.
def test_never_n_n_D(chunk, monkeypatch):
    n, D, d = 24, 16, 8
    if chunk:
        accelerator_paths(monkeypatch, chunk)
    router, gate = coupled(n, D, d, 0.0)
    count, loss, d_router, d_gate = counted(router, gate)
    assert loss > 0 and count.largest <= max(gate.numel(), (chunk or 1) * n * D) < n * n * D
    leaves = [router.double().requires_grad_(), gate.double().requires_grad_()]
    want = couplet.reference.erc_loss(*leaves, delta=torch.ones(n, d))
    want.backward()
    all_close((loss, d_router, d_gate), (want, leaves[0].grad, leaves[1].grad), 1e-10)


def test_what_does_not_pull_is_not_multiplied():
    """Multiplications are counted in products [n,d] by [n D,d]. The forward pass takes 1 + 1/n, and the backward pass 2
    less the pairs without an active hinge, where leaving them out saves time."""
    n, D, d = 24, 16, 8
    work = lambda own, alpha: counted(*coupled(n, D, d, own), alpha)[0].multiplied / (n * n * D * d)
    all_active, some, none = work(0.0, 0.0), work(1.5, 1.0), work(1000.0, 1.0)
    assert all_active == pytest.approx(3 + 1 / n)  # alpha 0: all pairs but own rows have active hinges
    assert none == pytest.approx(1 + 1 / n)
    assert none * 1.05 < some < all_active * 0.6


def test_few_responses_are_kept(monkeypatch):
    """Responses of all experts are kept at once. Their norms give the diagonal. Rows without hinges are skipped."""
    monkeypatch.setattr(_plain, "FEW", 1 << 20)
    n, D, d = 24, 16, 8
    work = lambda own, alpha: counted(*coupled(n, D, d, own), alpha)[0].multiplied / (n * n * D * d)
    assert work(0.0, 0.0) == pytest.approx(3) and work(1000.0, 1.0) == pytest.approx(1)
    assert 1.05 < work(1.5, 1.0) < 1.8
