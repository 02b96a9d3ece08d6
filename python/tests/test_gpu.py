"""Tests on an accelerator itself. They check what other tests check on the CPU or count in fake tensors. Without an
accelerator they are skipped. With COUPLET_TEST_DEVICE=cpu those that can run on the CPU are run there."""

import copy
import os

import couplet
import pytest
import test_compile
import test_golden
import test_hf
import test_latent
import test_parallel
import torch
from conftest import all_close, close, in_processes, needs_fully_shard, same_gradients
from couplet import bench, certify
from couplet.figures import _figures
from couplet.ops import _noise

DEVICE = os.environ.get("COUPLET_TEST_DEVICE") or bench.default_device()
IS_CUDA = DEVICE.startswith("cuda")
pytestmark = [
    pytest.mark.skipif(DEVICE == "cpu" and "COUPLET_TEST_DEVICE" not in os.environ, reason="no accelerator"),
    pytest.mark.filterwarnings("ignore:couplet. alpha"),
]
needs_cuda = pytest.mark.skipif(not IS_CUDA, reason="CUDA and ROCm alone")
n, D, d = 16, 24, 40


def leaves(dtype=torch.float32, shape=(n, D, d)):
    n, D, d = shape
    return [torch.randn(size, dtype=dtype).to(DEVICE).requires_grad_() for size in ((n, d), (n, D, d))]


# ---- right results ----


@pytest.mark.parametrize("case", test_golden.CASES, ids=test_golden.name_of)
@pytest.mark.parametrize("dtype, limit", ((torch.float64, 1e-6), (torch.float32, 1e-4)), ids=str)
def test_golden_values(case, dtype, limit):
    test_golden.compare(case, dtype, limit, device=DEVICE)


@pytest.mark.parametrize("case", test_latent.CASES)
@pytest.mark.parametrize("dtype, limit", ((torch.float64, 1e-12), (torch.float32, 1e-4)), ids=str)
def test_latent_experts(case, dtype, limit):
    got, want = test_latent.of_case(case, dtype, DEVICE)
    all_close([t.cpu() for t in got], want, limit)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
@pytest.mark.parametrize("shape", ((1, 5), (2, 3), (3, 1), (64, 2048), (129, 77)))
def test_noise_is_that_of_the_cpu(dtype, shape):
    """The drawn numbers are equal. The sum of distances in the bound has another order, in f64."""
    router = torch.randn(shape).to(dtype)
    if len(router) > 3:
        router[2] = router[0]
        router[3] = 0
    for key in (dict(), dict(step=1), dict(step=16), dict(seed=2**64 - 1, step=2**40 - 1, layer=2**16 - 1, draw=3)):
        got, want = couplet.noise(router.to(DEVICE), **key).cpu(), couplet.noise(router, **key)
        torch.testing.assert_close(got, want, rtol=1e-13 if dtype == torch.float64 else 1.2e-7, atol=0)
        if len(router) > 3:
            assert (got[[0, 2, 3]] == 1).all()


@needs_cuda
def test_noise_is_drawn_by_kernels():
    routers = [torch.randn(12, 70, dtype=torch.bfloat16, device=DEVICE) for _ in range(4)]
    assert _noise._has_kernels(routers[0])
    each = _noise.of_layers(routers, (2, 3, 7, 8), 5, 6)
    for router, layer, got in zip(routers, (2, 3, 7, 8), each):
        want = _noise._in_plain_torch(router.float(), 5, 6, layer, 0)
        torch.testing.assert_close(got, want, rtol=1.2e-7, atol=0)
    nan = torch.full_like(routers[0], float("nan"))
    assert couplet.noise(nan).isnan().all()


@pytest.mark.parametrize("kind", test_hf.MODELS)
@pytest.mark.parametrize(
    "call", (lambda erc: erc.backward(), lambda erc: erc.loss().backward()), ids=("backward", "loss")
)
def test_models(kind, call):
    model = test_hf.tiny(kind)
    there = copy.deepcopy(model).to(DEVICE)
    for one in (model, there):
        erc = couplet.hf.attach(one, weight=0.5, alpha=0.8, seed=4)
        erc.next_step(7)
        call(erc)
    same_gradients(
        model, {name: None if p.grad is None else p.grad.cpu() for name, p in there.named_parameters()}, 1e-5
    )


def test_large_seeds():
    layer = torch.nn.ParameterList(leaves())
    there, here = layer, copy.deepcopy(layer).cpu()
    for seed in (2**63, 2**64 - 1):
        values = [couplet.attach(one, [(one[0], one[1])], seed=seed).loss() for one in (there, here)]
        close(values[0].cpu(), values[1], 1e-5)


def test_training_ends_the_loss():
    model = test_hf.tiny().to(DEVICE)
    ids = torch.randint(96, (4, 32), device=DEVICE)
    erc = couplet.hf.attach(model)
    stats = erc.router_stats()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    values = []
    for _ in range(20):
        with torch.autocast(DEVICE.split(":")[0], torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        erc.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(erc.value)
    first, *_, last = torch.stack(values).tolist()
    assert last < 0.3 * first and 0 <= stats.figures()["router_load_entropy"] <= 1


@pytest.mark.parametrize("is_tensor", (False, True))
def test_scaled_gradients_of_f16(is_tensor):
    scaler = torch.amp.GradScaler(DEVICE.split(":")[0], init_scale=1024.0)
    scaler.scale(torch.ones(1, device=DEVICE))
    gradients = []
    for dtype in (torch.float16, torch.float32):
        torch.manual_seed(3)
        layer = torch.nn.ParameterList(leaves(torch.float16)).to(dtype)
        scale = torch.tensor(scaler.get_scale(), device=DEVICE) if is_tensor else scaler.get_scale()
        couplet.attach(layer, [(layer[0], layer[1])], weight=1e-2).backward(scale)
        gradients.append([p.grad for p in layer])
    for got, want in zip(*gradients):
        assert got.dtype == torch.float16
        close(got, want, 2e-3)


def test_figures():
    layer = torch.nn.ParameterList(leaves())
    there = couplet.attach(layer, [(layer[0], layer[1])])
    here = copy.deepcopy(layer).cpu()
    want = couplet.attach(here, [(here[0], here[1])]).figures(figures=_figures.ALL_NAMES)
    assert there.figures(figures=_figures.ALL_NAMES) == pytest.approx(want, rel=1e-4, abs=1e-6, nan_ok=True)


def test_figures_of_tokens():
    scores, responses = torch.randn(200, n), torch.rand(200, n)
    ids = torch.arange(200) % 7
    got = couplet.token_figures(scores.to(DEVICE), responses.to(DEVICE), ids.to(DEVICE), K=2)
    assert got == pytest.approx(couplet.token_figures(scores, responses, ids, K=2), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("fault, state", (("", "right"), ("softmax_twice", "wrong"), ("added_twice", "wrong")))
def test_verdict_on_a_training_step(fault, state):
    import test_certify_record as steps

    model = steps.Model(fault).to(DEVICE)
    many = [ids.to(DEVICE) for ids in steps.batches(2)]
    verdict = steps.recorded(model, steps.step_of(model, many))
    assert (verdict.state == "right") == (state == "right"), certify.sentence(verdict)


# ---- compiled and captured ----


@pytest.mark.parametrize("dtype, limit", ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)), ids=str)
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_compiled(dtype, limit, mode):
    """Each step has its own noise, also where PyTorch makes graphs of the other operations."""
    torch._dynamo.reset()

    def step(router, fused, number):
        return 2 * couplet.erc_loss(router, fused, gate_half="first", step=number) + router.float().square().sum()

    compiled = torch.compile(step, fullgraph=True, mode=mode)
    pair = leaves(dtype, (n, 2 * D, d))
    seen = set()
    for number in range(5):
        test_compile.same(step, pair, number, compiled=compiled, limit=limit)
        seen.add(couplet.erc_loss(*pair, gate_half="first", step=number).item())
    assert len(seen) == 5


@needs_cuda
def test_captured_with_noise_of_ones_own():
    """Forward and backward pass are one graph. The noise is copied in before each replay (docs/pytorch/gpu.md)."""
    router, gates = leaves()
    delta = couplet.noise(router, seed=1, step=0)

    def run():
        router.grad = gates.grad = None
        loss = couplet.erc_loss(router.float() * delta, gates, noise="none")
        loss.backward()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    router.grad = gates.grad = None
    with torch.cuda.graph(graph):
        loss = run()
    captured = router.grad, gates.grad
    for step in range(3):
        delta.copy_(couplet.noise(router, seed=1, step=step))
        graph.replay()
        got = [t.clone() for t in (loss, *captured)]
        pair = [t.detach().clone().requires_grad_() for t in (router, gates)]
        want = couplet.erc_loss(*pair, seed=1, step=step)
        want.backward()
        all_close(got, (want, *(t.grad for t in pair)), 1e-6)


@needs_cuda
@pytest.mark.parametrize(
    "call",
    (
        lambda erc: erc.backward(),
        lambda erc: erc.loss().backward(),
        lambda erc: erc.backward(torch.ones((), device=DEVICE)),
    ),
    ids=("backward", "loss", "scaled by a tensor"),
)
def test_nothing_waits(call):
    layer = torch.nn.ParameterList(leaves(torch.bfloat16))
    erc = couplet.attach(layer, [(layer[0], layer[1])])
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for step in range(3):
        erc.next_step()
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            call(erc)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.step()
        optimizer.zero_grad()


# ---- processes ----


def experts_spread(rank, count):
    (router, gate, *_), settings = test_parallel.arguments(
        test_parallel.CASES[0], slice(rank * test_parallel.n // count, (rank + 1) * test_parallel.n // count)
    )
    pair = [t.detach().to(DEVICE).requires_grad_() for t in (router, gate)]
    loss = couplet.erc_loss_ep(*pair, **settings)
    (3 * loss).backward()
    return [t.cpu() for t in (loss.detach(), *(t.grad for t in pair))]


@pytest.mark.parametrize("backend, count", (pytest.param("nccl", 1, marks=needs_cuda), ("gloo", 2)))
def test_experts_spread_over_processes(backend, count):
    """Two processes of gloo share one device. With NCCL each process has its own device."""
    whole, settings = test_parallel.arguments(test_parallel.CASES[0], slice(0, test_parallel.n))
    loss = test_parallel.whole_loss(whole, **settings)
    (3 * loss).backward()
    here = test_parallel.n // count
    for rank, (got, d_router, d_gate) in enumerate(in_processes(experts_spread, count, count, backend=backend)):
        close(got, loss, 1e-5)
        close(d_router, whole[0].grad, 1e-5)
        close(d_gate, whole[1].grad[rank * here : (rank + 1) * here], 1e-5)


def sharded(rank):
    from torch.distributed.fsdp import fully_shard

    model = test_hf.tiny().to(DEVICE)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    couplet.hf.attach(model, weight=3.0).backward()
    return [p.grad.full_tensor().cpu() for p in model.parameters() if p.grad is not None]


@needs_cuda
@needs_fully_shard
def test_fully_shard_with_nccl():
    model = test_hf.tiny()
    couplet.hf.attach(model, weight=3.0).backward()
    want = [p.grad for p in model.parameters() if p.grad is not None]
    (got,) = in_processes(sharded, 1, backend="nccl")
    assert len(got) == len(want)
    all_close(got, want, 1e-5)
