"""Latent experts, which read W_l x: couplet.erc_loss(down=, latent_norm=, latent_eps=), and the activation gate_up."""

import couplet
import pytest
import torch
import torch._dynamo.testing
import torch.distributed as dist
import torch.utils.checkpoint
from conftest import GOLDEN, accelerator_paths, all_close, close, in_chunks, in_processes
from couplet.ops import _latent, _native, _operator
from couplet.ops._job import ACTIVATIONS, USES_UP
from safetensors.torch import load_file
from test_compile import BACKENDS

GIVEN = load_file(GOLDEN.parent / "latent" / "reference.safetensors")
CASES = sorted({key.rpartition(".")[0] for key in GIVEN})
LEAVES = ("R", "latent", "latent_norm", "Wg", "Wp", "Wo")
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
n, d, l, D = 6, 12, 5, 4
SETTINGS = dict(alpha=0.8, weight=2.0, seed=5, step=9, layer=2)


@pytest.fixture(params=("library", "plain", "an expert at a time", "accelerator"))
def path(request, monkeypatch):
    """Selects the code that computes the loss of the rows."""
    if request.param == "accelerator":
        accelerator_paths(monkeypatch, 2)
    elif request.param != "library":
        monkeypatch.setattr(_native, "fits", lambda job: False)
        if request.param != "plain":
            in_chunks(monkeypatch)
    return request.param


def of_case(case, dtype, device="cpu"):
    """Returns loss and gradients of a golden case, and the right ones."""
    x = {key.rpartition(".")[2]: t for key, t in GIVEN.items() if key.startswith(f"{case}.")}
    leaves = {name: x[name].to(device, dtype, copy=True).requires_grad_() for name in LEAVES if name in x}
    loss = couplet.erc_loss(
        leaves["R"] - leaves["R"].mean(0) if "centred" in case else leaves["R"],
        leaves.get("Wg"),
        w_up=leaves.get("Wp"),
        w_down=leaves.get("Wo"),
        down=leaves["latent"],
        latent_norm=leaves.get("latent_norm"),
        latent_eps=x["latent_eps"].item() if "norm" in case else None,
        alpha=x["alpha"].item(),
        activation=case.split("-")[0],
        delta=x["delta"].to(device),
    )
    loss.backward()
    got = [loss.detach(), *(t.grad for t in leaves.values())]
    return got, [x["loss"][0], *(x[f"d{name}"] for name in leaves)]


@pytest.mark.parametrize("case", CASES)
def test_golden_values(case, path):
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 5e-6)):
        all_close(*of_case(case, dtype), limit)


def test_the_list_of_cases():
    assert len(CASES) == 24 and {case.split("-")[0] for case in CASES} == set(ACTIVATIONS)


def leaf(*shape, dtype=torch.float64, scale=1.0):
    return (scale * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_()


def model(dtype=torch.float64, norm=True, activation="gate", n=n, d=d, l=l, D=D):
    """Returns the tensors of a layer with latent experts, as arguments of erc_loss."""
    m = dict(router=leaf(n, d, dtype=dtype), w_gate=leaf(n, D, l, dtype=dtype), down=leaf(l, d, dtype=dtype))
    if norm:
        m["latent_norm"] = leaf(l, dtype=dtype)
    if activation in USES_UP:
        m["w_up"] = leaf(n, D, l, dtype=dtype)
    if activation == "output":
        m["w_down"] = leaf(n, l, D, dtype=dtype)
    return m if activation != "up" else {**m, "w_gate": None}


def with_eps(m, **more):
    return {**m, **({"latent_eps": 0.1} if "latent_norm" in m else {}), **more}


def gradients(loss, m, scale=1.0, **more):
    (scale * loss).backward(**more)
    found = [t.grad for t in m.values() if t is not None]
    for t in m.values():
        if t is not None:
            t.grad = None
    return found


def evaluated(m, **more):
    loss = couplet.erc_loss(**with_eps(m, **more))
    return [loss.detach(), *gradients(loss, m)]


# ---- values ----


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_identity_changes_nothing(activation, path):
    m = model(torch.float32, False, activation, l=d)
    with torch.no_grad():
        m["down"].copy_(torch.eye(d))
    more = dict(activation=activation, **SETTINGS)
    got, projection = evaluated(m, **more), list(m).index("down") + 1 - (m["w_gate"] is None)
    del m["down"], got[projection]
    all_close(got, evaluated(m, **more), 1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", (False, True))
def test_gradcheck(activation, norm):
    m = model(norm=norm, activation=activation, n=4, d=5, l=3, D=3)
    names, delta = [name for name, t in m.items() if t is not None], couplet.noise(m["router"].detach())

    def loss(*tensors):
        given = {**m, **dict(zip(names, tensors))}
        return couplet.erc_loss(**with_eps(given, activation=activation, alpha=0.6, delta=delta))

    assert torch.autograd.gradcheck(loss, [m[name] for name in names])


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_noise_and_its_bound_are_of_the_router(dtype, path):
    m, numbers = model(dtype), dict(seed=2**63 + 5, step=2**33 + 1, layer=7, draw=2)
    drawn = evaluated(m, **numbers)
    all_close(drawn, evaluated(m, delta=couplet.noise(m["router"], **numbers)), 0)
    assert not torch.equal(drawn[0], evaluated(m, noise="none")[0])
    R, delta = m["router"].detach(), couplet.noise(m["router"], **numbers)
    moved = torch.linalg.vector_norm(R * delta - R, dim=1)
    assert (moved <= couplet.reference.eps_of(R) * torch.linalg.vector_norm(R, dim=1)).all() and moved.all()


def test_the_reference_is_the_same_function():
    m = model()
    delta = couplet.noise(m["router"])
    R, W, *more = m.values()
    want = couplet.reference.erc_loss(R, W, down=more[0], latent_norm=more[1], latent_eps=0.1, delta=delta)
    all_close(evaluated(m, delta=delta), [want, *gradients(want, m)], 1e-12)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("compute", (None, "bf16"))
def test_rows_are_not_rounded(dtype, compute, path):
    """With operands of products in 16 bits the result is that of rows in f32 in place of the router."""
    m = model(dtype, n=4)
    with torch.no_grad():
        R = m["router"].float()
        V = R * couplet.noise(R) @ m["down"].float().mT
        g = m["latent_norm"].float()
        V = g * V / (V.square().mean(1, keepdim=True) + 0.1).sqrt()
    loss = couplet.erc_loss(**with_eps(m, compute=compute))
    assert loss.dtype == torch.float32
    close(loss, couplet.erc_loss(V, m["w_gate"], noise="none", compute=compute), 1e-6)
    wide = {name: t.detach().double().requires_grad_() for name, t in m.items()}
    found = evaluated(m, compute=compute)
    assert [t.dtype for t in found[1:]] == [dtype] * 4
    limit = 1e-1 if compute or path == "accelerator" else 2e-2
    all_close(found, evaluated(wide), limit)


@pytest.mark.parametrize("dtypes", ((torch.float32, torch.float64), (torch.float64, torch.float32)), ids=str)
def test_one_tensor_in_f64_makes_all_f64(dtypes):
    m = {name: t.detach().to(dtypes[name == "down"]).requires_grad_() for name, t in model().items()}
    found, wide = evaluated(m), {name: t.detach().double().requires_grad_() for name, t in m.items()}
    assert found[0].dtype == torch.float64 and [t.dtype for t in found[1:]] == [t.dtype for t in m.values()]
    all_close(found, evaluated(wide), 1e-6)
    close(found[0], evaluated(wide)[0], 1e-14)


@pytest.mark.parametrize("activation", ("gate", "swiglu", "gate_up"))
@pytest.mark.parametrize("half", ("first", "second", "interleaved"))
def test_fused_gates(activation, half, path):
    m = model(torch.float32, True, "swiglu")
    gate, up = m["w_gate"], m["w_up"]
    want = couplet.erc_loss(**with_eps({**m, "w_up": up if activation in USES_UP else None}, activation=activation))
    wanted = gradients(want, m)
    both = {"first": (gate, up), "second": (up, gate)}.get(half)
    fused = torch.cat(both, 1) if both else torch.stack((gate, up), 2).flatten(1, 2)
    fused = fused.detach().requires_grad_()
    got = couplet.erc_loss(**with_eps({**m, "w_gate": fused, "w_up": None}, activation=activation, gate_half=half))
    found = gradients(got, {**m, "w_gate": fused, "w_up": None})
    close(got, want, 1e-6)
    all_close([found[0], *found[2:]], [wanted[0], *wanted[2:4]], 1e-5)
    part = {"first": slice(0, D), "second": slice(D, None), "interleaved": slice(0, None, 2)}[half]
    close(found[1][:, part], wanted[1], 1e-5)


def test_gate_up_of_a_fused_tensor_is_no_copy(monkeypatch):
    """The library computes it, as the gate of twice as many rows."""
    m, calls = model(torch.float32), []
    run = _operator.run
    monkeypatch.setattr(_operator, "run", lambda job: calls.append((job.activation, job.D)) or run(job))
    monkeypatch.setattr(_operator.evaluate, "__defaults__", (_operator.run,))
    got = evaluated(m, activation="gate_up", gate_half="second")
    assert calls == [("gate", D)]
    all_close(got, evaluated(m), 0)


def test_one_expert():
    for activation in ("gate", "gate_up"):
        m = model(activation=activation, n=1)
        loss, *found = evaluated(m, activation=activation)
        assert loss == 0 and not any(t.any() for t in found)


# ---- gradients ----


def test_no_active_hinge_costs_no_gradient(path):
    """Each expert answers its own row by far the most, and no other gradient than zeros is added."""
    m = model(torch.float32, False, d=200, l=100)
    with torch.no_grad():
        rows = torch.nn.functional.normalize(m["router"] @ m["down"].mT, dim=1)
        m["w_gate"] += 1000 * rows[:, None]
    loss, *found = evaluated(m, alpha=0.5, noise="none")
    assert loss == 0 and len(found) == 3 and not any(t.any() for t in found)


@pytest.mark.parametrize("frozen", ("router", "down", "latent_norm", "w_gate"))
def test_only_what_is_wanted(frozen, path):
    m = model(torch.float32)
    want = dict(zip(m, evaluated(m)[1:]))
    m[frozen].requires_grad_(False)
    loss = couplet.erc_loss(**with_eps(m))
    for name, gradient in zip(m, gradients(loss, m)):
        assert (gradient is None) == (name == frozen)
        if gradient is not None:
            close(gradient, want[name], 1e-6, name)
    with torch.no_grad():
        assert not couplet.erc_loss(**with_eps(m)).requires_grad


def test_backward_passes_again(path):
    m = model(torch.float32)
    want = evaluated(m)[1:]
    loss = couplet.erc_loss(**with_eps(m))
    three = gradients(loss, m, 3.0, retain_graph=True)
    all_close(three, [3 * t for t in want], 1e-6)
    all_close(gradients(loss, m), want, 1e-6)
    for reentrant in (False, True):
        run = lambda *t: couplet.erc_loss(**with_eps(dict(zip(m, t))))
        loss = torch.utils.checkpoint.checkpoint(run, *m.values(), use_reentrant=reentrant)
        all_close(gradients(loss, m), want, 0)


def test_create_graph_and_no_second_derivative(path):
    m = model(torch.float32)
    found = torch.autograd.grad(couplet.erc_loss(**with_eps(m)), list(m.values()), create_graph=True)
    all_close(found, evaluated(m)[1:], 1e-6)
    for t in found:
        with pytest.raises(RuntimeError, match="couplet: the coupling loss has no second derivative"):
            torch.autograd.grad(t.square().sum(), list(m.values()), retain_graph=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_autocast_changes_nothing(dtype, path):
    m, found = model(dtype), []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            found.append(evaluated(m, **SETTINGS))
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_as_a_module():
    m = model(torch.float32)
    module = couplet.ErcLoss(alpha=0.8, layer=2, latent_eps=0.1)
    assert torch.equal(module(**m, step=9), couplet.erc_loss(**with_eps(m, alpha=0.8, layer=2, step=9)))


# ---- torch.compile ----


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("tensors", (False, True))
def test_one_graph_for_all_steps(dtype, tensors):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def step(router, w_gate, down, latent_norm, alpha, number):
        m = dict(router=router, w_gate=w_gate, down=down, latent_norm=latent_norm)
        return 2 * couplet.erc_loss(**with_eps(m, alpha=alpha, step=number, layer=3))

    m, counts = model(dtype), []
    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for number in range(5):
        alpha = 1 - 0.1 * number
        numbers = (torch.tensor(alpha, dtype=torch.float64), torch.tensor(number)) if tensors else (alpha, number)
        want, got = step(*m.values(), alpha, number), compiled(*m.values(), *numbers)
        close(got, want, 1e-6)
        all_close(gradients(got, m), gradients(want, m), 1e-6)
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1 if tensors else counts[-1] <= (3 if RELEASE >= (2, 6) else 6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_with_given_noise_and_autocast(backend):
    torch._dynamo.reset()
    m = model(torch.float32)
    delta = couplet.noise(m["router"])
    run = lambda *t: couplet.erc_loss(**with_eps(dict(zip(m, t)), delta=delta))
    compiled, want = torch.compile(run, fullgraph=True, backend=backend), evaluated(m, delta=delta)
    with torch.autocast("cpu", torch.bfloat16):
        loss = compiled(*m.values())
    all_close([loss, *gradients(loss, m)], want, 1e-6)


@pytest.mark.parametrize("given", (False, True))
def test_opcheck(given):
    delta = torch.ones(n, d) if given else None
    for step in (None, torch.tensor(4)):
        torch.library.opcheck(_latent._delta_in_a_graph, (torch.randn(n, d), delta, step, 1, 2, 3, 0))


# ---- several processes ----

TYPES = {"gate": torch.float64, "gate_up": torch.float32, "swiglu": torch.float32, "output": torch.float64}


def of_seed(activation):
    torch.manual_seed(3)
    return model(TYPES[activation], True, activation)


def part_of(m, rank, of=slice(None), width=slice(None)):
    """Returns the arguments of erc_loss_ep of one of two processes."""
    names = {"w_gate": "local_w_gate", "w_up": "local_w_up", "w_down": "local_w_down"}
    made = {names.get(name, name): t.detach()[of, width] if name in names else t.detach() for name, t in m.items()}
    return {name: t.clone().requires_grad_() for name, t in made.items()}


def in_two(rank):
    here = slice(rank * n // 2, (rank + 1) * n // 2)
    found = {}
    for activation in TYPES:
        m = part_of(of_seed(activation), rank, here)
        loss = couplet.erc_loss_ep(**with_eps(m, activation=activation, **SETTINGS))
        found[activation] = [loss.detach(), *gradients(loss, m, 3.0)]
    m = part_of(of_seed("gate_up"), rank, width=slice(rank * D // 2, (rank + 1) * D // 2))
    loss = couplet.erc_loss_ep(**with_eps(m, activation="gate_up", tensor_group=dist.group.WORLD, **SETTINGS))
    found["width"] = [loss.detach(), *gradients(loss, m, 3.0)]
    found["said"] = []
    m = part_of(of_seed("gate"), rank, here)
    for other in DISAGREEMENTS.values():
        with pytest.raises((ValueError, TypeError)) as error:
            couplet.erc_loss_ep(**with_eps(m, **(other if rank else {})))
        found["said"].append(str(error.value))
    return found


DISAGREEMENTS = {
    "down is [[[5, 12], 'torch.float64'], [[5], 'torch.float64'], 0.1] in process 0": dict(latent_eps=0.2),
    "down is [[[5, 12], 'torch.float64'],": dict(down=torch.ones(l, d)),
    "down is [5, 11], must be [l, 12]": dict(down=torch.ones(l, d - 1)),
    "latent_norm is given without latent_eps": dict(latent_eps=None),
    "step is 0 in process 0 of the group and 8": dict(step=8),
    "noise is bounded": dict(noise="none"),
}


@pytest.fixture(scope="module")
def two():
    return in_processes(in_two, 2)


@pytest.mark.parametrize("activation", TYPES)
def test_two_processes_are_one(two, activation):
    """Gradients of router, down and norm are whole in both processes, and counted once."""
    m, limit = of_seed(activation), 1e-12 if TYPES[activation] == torch.float64 else 1e-5
    loss = couplet.erc_loss(**with_eps(m, activation=activation, **SETTINGS))
    want = dict(zip(m, gradients(loss, m, 3.0)))
    for rank in range(2):
        value, *found = two[rank][activation]
        close(value, loss, limit)
        for name, gradient in zip(m, found, strict=True):
            here = slice(rank * n // 2, (rank + 1) * n // 2) if name.startswith("w_") else slice(None)
            close(gradient, want[name][here], limit, name)


def test_experts_that_share_their_width(two):
    m = of_seed("gate_up")
    loss = couplet.erc_loss(**with_eps(m, activation="gate_up", **SETTINGS))
    want = dict(zip(m, gradients(loss, m, 3.0)))
    for rank in range(2):
        value, *found = two[rank]["width"]
        close(value, loss, 1e-5)
        for name, gradient in zip(m, found, strict=True):
            whole = want[name]
            close(gradient, whole[:, rank * 2 : rank * 2 + 2] if name.startswith("w_") else whole, 1e-5, name)


def test_processes_that_disagree_all_say_so(two):
    for number, sentence in enumerate(DISAGREEMENTS):
        for rank in range(2):
            assert sentence in two[rank]["said"][number], two[rank]["said"][number]


# ---- bad input ----

ones = torch.ones
WRONG = {
    "w_gate is [6, 4, 12], must be [6, 4, 5] beside down [5, 12], whose output the experts read": dict(
        w_gate=ones(n, D, d)
    ),
    "w_gate is [6, 4, 5], must be [6, 4, 12] beside a router [6, 12]; latent experts read a projection of x, which they "
    "need as down [5, 12]": dict(down=None, latent_norm=None, latent_eps=None),
    "down is [5, 11], must be [l, 12] beside a router [6, 12]": dict(down=ones(l, d - 1)),
    "down is [12, 5], must be [l, 12] beside a router [6, 12]; if it is transposed, pass down.mT": dict(
        down=ones(d, l)
    ),
    "down is [5], must be [l, 12]": dict(down=ones(l)),
    "down is a Linear, must be a tensor": dict(down=torch.nn.Linear(d, l)),
    "down is torch.int8, must be float32": dict(down=ones(l, d, dtype=torch.int8)),
    "down is torch.strided on meta, must be dense on the router's cpu": dict(down=ones(l, d, device="meta")),
    "down is torch.sparse_coo on cpu, must be dense": dict(down=ones(l, d).to_sparse()),
    "latent_norm is given without latent_eps, the number that": dict(latent_eps=None),
    "latent_eps is given without latent_norm; give the norm's weight [l], ones": dict(latent_norm=None),
    "latent_norm and latent_eps are of a norm on the output of down, which is None": dict(down=None),
    "latent_norm is [4], must be [5] beside down [5, 12]": dict(latent_norm=ones(l - 1)),
    "latent_norm is [1, 5], must be [5]": dict(latent_norm=ones(1, l)),
    "latent_eps is -1e-06, must be a number >= 0": dict(latent_eps=-1e-6),
    "latent_eps is nan, must be a number >= 0": dict(latent_eps=float("nan")),
    "latent_eps is '1', must be a number >= 0": dict(latent_eps="1"),
    "delta is [6, 5] on cpu, must be [6, 12]": dict(delta=ones(n, l)),
    "delta[0,0] is nan, must be finite": dict(delta=torch.full((n, d), float("nan"))),
    "step is -1, layer 0 and draw 0; must be whole numbers from 0": dict(step=-1),
    "w_up is None, which the activation 'gate_up' needs; give it, or gate_half": dict(activation="gate_up"),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_wrong(sentence):
    m = {name: t.detach() for name, t in model(torch.float32).items()}
    with pytest.raises((ValueError, TypeError)) as error:
        couplet.erc_loss(**with_eps(m, **WRONG[sentence]))
    assert sentence in str(error.value) and str(error.value).startswith("couplet: ")


def test_transforms_are_refused():
    m = {name: t.detach() for name, t in model(torch.float32).items()}
    with pytest.raises(NotImplementedError, match="couplet: the coupling loss"):
        torch.func.grad(lambda down: couplet.erc_loss(**with_eps({**m, "down": down})))(m["down"])
