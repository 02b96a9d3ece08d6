"""Helpers for several tests: golden values, comparisons, processes, small models."""

import contextlib
import datetime
import os
import pathlib
import tempfile

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

try:
    import torch.distributed.fsdp as fsdp
except ImportError:  # this torch is built without torch.distributed
    fsdp = None

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(2)

# PyTorch 2.4 has no fully_shard here. In 2.6 fully_shard records events of streams, which CPU streams lack.
HAS_FULLY_SHARD = hasattr(fsdp, "fully_shard") and hasattr(torch.cpu.Stream, "record_event")
needs_fully_shard = pytest.mark.skipif(
    not HAS_FULLY_SHARD,
    reason="this torch has no fully_shard for the CPU: no "
    "torch.distributed.fsdp.fully_shard or no torch.cpu.Stream.record_event",
)

IS_211 = torch.__version__.startswith("2.11.")
COUNTS = hasattr(torch.ops.aten.mm, "dtype") and (not IS_211 or torch.cuda.is_available())
needs_counts = pytest.mark.skipif(
    not COUNTS,
    reason="counts are of a torch whose mm has out_dtype; for fake tensors, PyTorch 2.11 asks the driver of a GPU",
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "erc"


def close(got, want, limit, name=""):
    """Checks norm(got - want) / norm(want) <= limit. If `want` is nearly zero, the absolute error is checked."""
    got, want = got.detach().double(), want.double()
    error, size = torch.linalg.vector_norm(got - want), torch.linalg.vector_norm(want)
    if size < 1e-10:
        assert error < 1e-6, (name, error)
    else:
        assert error <= limit * size, (name, float(error / size))


def all_close(got, want, limit):
    """Checks that both have equally many tensors, and that each is close to its counterpart."""
    for a, b in zip(got, want, strict=True):
        close(a, b, limit)


def same_gradients(model, got, limit):
    """Checks that the gradients of `got`, by name, are those of the model's parameters. None means no gradient."""
    for name, p in model.named_parameters():
        assert (p.grad is None) == (got[name] is None), name
        if p.grad is not None:
            close(got[name], p.grad, limit, name)


@pytest.fixture
def one_thread():
    """Sets one thread. With small inputs a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _run_process(rank, run, size, backend, folder, arguments):
    torch.set_num_threads(1)
    with _group(folder, rank, size, backend):
        torch.save(run(rank, *arguments), os.path.join(folder, f"{rank}.pt"))
        dist.barrier()


@contextlib.contextmanager
def _group(folder, rank, size, backend="gloo"):
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()


def in_processes(run, size, *arguments, backend="gloo"):
    """Runs `run(rank, *arguments)` in each process of a group, and returns the results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_run_process, args=(run, size, backend, folder, arguments), nprocs=size)
        return [torch.load(os.path.join(folder, f"{rank}.pt")) for rank in range(size)]


@contextlib.contextmanager
def group_of_one():
    """Makes a process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder, _group(folder, 0, 1):
        yield


class InMemory(torch.nn.Module):
    """A model with random parameters of these names and shapes."""

    def __init__(self, model_type, shapes, **config):
        super().__init__()
        self.config = {"model_type": model_type, "num_hidden_layers": 1, **config}
        for name, shape in shapes.items():
            *path, last = name.split(".")
            module = self
            for part in path:
                if part not in module._modules:
                    module.add_module(part, torch.nn.Module())
                module = module._modules[part]
            module.register_parameter(last, torch.nn.Parameter(torch.randn(shape)))


def in_chunks(monkeypatch, numbers=1):
    """Sets plain torch to chunks of so many numbers (1: one expert at a time). No responses are kept, and no row
    without an active hinge is multiplied."""
    from couplet.ops import _plain

    for name, value in dict(ROOM=numbers, FEW=0, CALLS=1).items():
        monkeypatch.setattr(_plain, name, value)


def accelerator_paths(monkeypatch, experts_at_once=None):
    """Runs the code for accelerators on the CPU, with all experts or so many at once. One expert computes z twice."""
    from couplet.ops import _accelerator, _native, _plain

    monkeypatch.setattr(_native, "fits", lambda job: False)
    monkeypatch.setattr(_plain, "is_for", lambda device: False)
    monkeypatch.setattr(_accelerator, "LEAST_BYTES", 1 if experts_at_once else 1 << 30)
    if experts_at_once == 1:
        monkeypatch.setattr(_accelerator, "MOST_Z", 0)

    def chunks(self, experts, bytes_each):
        size = experts_at_once or experts
        return (slice(a, min(a + size, experts)) for a in range(0, experts, size))

    monkeypatch.setattr(_accelerator.Work, "chunks", chunks)


@pytest.fixture(params=(None, 3, 1), ids=("at once", "three experts", "one expert"))
def accelerator(request, monkeypatch):
    accelerator_paths(monkeypatch, request.param)


def model_of(model, config, settings):
    """Returns a model of Transformers by its classes' names. The test is skipped if this release lacks the model."""
    import transformers

    if not hasattr(transformers, model):
        pytest.skip(f"Transformers {transformers.__version__} has no {model}")
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**settings)).train()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)
