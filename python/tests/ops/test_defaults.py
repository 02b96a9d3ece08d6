"""torch.set_default_dtype and `with torch.device(...)`, which loaders of models set, change nothing."""

import ast
import contextlib
import pathlib

import couplet
import pytest
import torch
from conftest import close, group_of_one
from couplet import certify
from couplet.certify._call import Callee
from couplet.ops import _native, _noise
from test_golden import CASES, GOLDEN, evaluate, load_file, name_of

pytestmark = pytest.mark.filterwarnings("ignore:couplet. alpha")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((6, 12), (6, 10, 12), (6, 10, 12), (6, 12, 10))


@contextlib.contextmanager
def defaults(dtype, device):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device) if device else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


both = lambda test: pytest.mark.parametrize("device", (None, "cpu", "meta"))(
    pytest.mark.parametrize("dtype", DTYPES, ids=str)(test)
)


@pytest.mark.parametrize("path", ("library", "plain", "f64"))
@both
def test_golden_cases(dtype, device, path, monkeypatch):
    if CASES == [None]:
        pytest.skip("no golden values here")
    if path == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)
    for case in CASES:
        tensors = load_file(GOLDEN / f"{case['name']}.safetensors")
        with defaults(dtype, device):
            loss, gradients = evaluate(case, tensors, torch.float64 if path == "f64" else torch.float32)
        close(loss, tensors["loss"], 1e-4, name_of(case))
        for name, gradient in gradients.items():
            if name in tensors:
                close(gradient, tensors[name], 1e-4, f"{name_of(case)} {name}")


def leaves(dtype=torch.float32):
    made = torch.Generator(device="cpu").manual_seed(3)
    numbers = [torch.randn(shape, generator=made, dtype=torch.float32, device="cpu") for shape in SHAPES]
    return [t.to(dtype).requires_grad_() for t in numbers]


def of_the_operator(dtype=torch.float32, loss=couplet.erc_loss, **names):
    router, gate, up, down = made = leaves(dtype)
    value = loss(
        router,
        gate,
        **{names.get("up", "w_up"): up, names.get("down", "w_down"): down},
        activation="output",
        seed=3,
        step=torch.tensor(4, dtype=torch.int64, device="cpu"),
        alpha=0.5,
    )
    (3 * value).backward()
    return [value.detach(), *(t.grad for t in made)]


def of_latent_experts():
    router, gate, up, _ = leaves()
    gate, down = (t.detach().requires_grad_() for t in (gate[..., :10], up[0]))
    value = couplet.erc_loss(router, gate, down=down, latent_norm=down[:, 0], latent_eps=0.1, seed=3)
    return [value.detach(), *torch.autograd.grad(value, [router, gate, down])]


def of_expert_parallelism():
    return of_the_operator(loss=couplet.erc_loss_ep, up="local_w_up", down="local_w_down")


def of_the_reference():
    router, gate, *_ = leaves(torch.float64)
    delta = torch.full_like(router, 1.25)
    couplet.reference.erc_loss(router, gate, alpha=0.5, delta=delta).backward()
    return [router.grad, gate.grad]


def of_a_dump():
    dumps = Callee(couplet.erc_loss_as_asked, certify.KINDS["erc"]).dumps(torch.float32, "cpu", 0)
    figures = certify.judge(certify.KINDS["erc"], dumps).figures.values()
    numbers = [[one.distance, one.bound] for each in figures for one in each]
    return [
        *(value for dump in dumps for value in dump.got.values()),
        torch.tensor(numbers, dtype=torch.float64, device="cpu"),
    ]


def of_tokens():
    router, gate, *_ = leaves(torch.float64)
    scores = (gate.detach() @ router.detach().T).flatten(0, 1)
    figures = couplet.token_figures(scores, scores.square(), ids=[t % 7 for t in range(len(scores))], K=2)
    return [torch.tensor([*figures.values()], dtype=torch.float64, device="cpu")]


EVALUATIONS = {
    "library": of_the_operator,
    "library bf16": lambda: of_the_operator(torch.bfloat16),
    "plain f64": lambda: of_the_operator(torch.float64),
    "plain f16": lambda: of_the_operator(torch.float16),
    "latent": of_latent_experts,
    "processes": of_expert_parallelism,
    "reference": of_the_reference,
    "noise": lambda: [_noise.bounded(leaves()[0].detach(), 1, 2, 3, 4)],
    "certify": of_a_dump,
    "token figures": of_tokens,
}


@pytest.fixture(autouse=True, scope="module")
def one_process():
    """Starts a group of this process alone, and adds a loss whose arguments certify can name."""

    def as_asked(router, w_gate, delta, alpha, weight):
        return couplet.erc_loss(router, w_gate, delta=delta, alpha=alpha, weight=weight)

    couplet.erc_loss_as_asked = as_asked
    with group_of_one():
        yield
    del couplet.erc_loss_as_asked


@pytest.mark.parametrize("name", EVALUATIONS)
@both
def test_nothing_depends_on_them(name, dtype, device):
    want = EVALUATIONS[name]()
    with defaults(dtype, device):
        got = EVALUATIONS[name]()
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.device.type == "cpu" and torch.equal(a, b)


@both
def test_attached(dtype, device):
    pytest.importorskip("transformers")
    from test_hf import names_of, tiny

    model, results = tiny(), []
    ids = torch.arange(20, dtype=torch.int64, device="cpu")[None] % 6
    for within in (contextlib.nullcontext, lambda: defaults(dtype, device)):
        model.zero_grad()
        with within():
            erc = couplet.hf.attach(model, seed=2)
            loss = erc.loss()
            (loss + erc.loss()).backward()
            figures = erc.figures(per_layer=True)
        with erc.record_tokens() as record, torch.no_grad():
            model(ids)
        with within():
            figures.update(record.figures(ids=ids))
        results.append((loss.detach(), figures, [p.grad for p in model.parameters() if p.grad is not None]))
    (want, figures, gradients), (got, others, theirs) = results
    assert torch.equal(got, want) and got.dtype == want.dtype and others == figures
    assert len(theirs) == sum(1 + len(gates) for _, gates in names_of(model))
    assert all(torch.equal(a, b) for a, b in zip(theirs, gradients))


MAKERS = {
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "randint",
    "randperm",
    "tensor",
    "zeros",
}


def test_every_tensor_that_is_made_says_what_and_where():
    folder = pathlib.Path(couplet.__file__).parent
    silent = []
    for path in folder.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            made = (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and getattr(call.func.value, "id", "") == "torch"
                and call.func.attr in MAKERS
            )
            if made and not {"dtype", "device"} <= {k.arg for k in call.keywords}:
                silent.append(f"{path.name}:{call.lineno}")
    assert silent == []
