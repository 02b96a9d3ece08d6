"""Proxies on the side of the tokens: couplet.erc_loss(proxy="tokens", mean=, scale=)."""

import couplet
import pytest
import torch
import torch.distributed as dist
from conftest import GOLDEN, accelerator_paths, all_close, close, in_processes
from couplet.ops import _native, _proxy
from safetensors.torch import load_file

GIVEN = load_file(GOLDEN.parent / "tokens" / "reference.safetensors")
CASES = sorted({key.rpartition(".")[0] for key in GIVEN})
LEAVES = ("R", "latent", "Wg", "Wp", "Wo")
n, d, l, D = 6, 12, 5, 4
SETTINGS = dict(alpha=0.8, weight=2.0, seed=5, step=9, layer=2)


@pytest.fixture(params=("library", "plain", "accelerator"))
def path(request, monkeypatch):
    """Selects the code that computes the loss of the rows."""
    if request.param == "accelerator":
        accelerator_paths(monkeypatch, 2)
    elif request.param == "plain":
        monkeypatch.setattr(_native, "fits", lambda job: False)


@pytest.mark.parametrize("case", CASES)
def test_golden_values(case, path):
    x = {key.rpartition(".")[2]: t for key, t in GIVEN.items() if key.startswith(f"{case}.")}
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 5e-6)):
        leaves = {name: x[name].to(dtype, copy=True).requires_grad_() for name in LEAVES if name in x}
        loss = couplet.erc_loss(
            leaves["R"],
            leaves.get("Wg"),
            w_up=leaves.get("Wp"),
            w_down=leaves.get("Wo"),
            down=leaves.get("latent"),
            proxy="tokens",
            mean=x["mean"],
            scale=x["scale"].item(),
            alpha=x["alpha"].item(),
            activation=case.split("-")[0],
            delta=x.get("delta"),
            noise="bounded" if "delta" in x else "none",
        )
        loss.backward()
        got = [loss.detach(), *(t.grad for t in leaves.values())]
        all_close(got, [x["loss"][0], *(x[f"d{name}"] for name in leaves)], limit)
        assert (_proxy.rows(x["R"].to(dtype), x["mean"], x["scale"]) - x["P"]).abs().max() < limit


def given(dtype=torch.float64, experts=n, width=d):
    leaves = [torch.randn(experts, d), torch.randn(experts, D, width), torch.randn(width, d)]
    return [t.to(dtype).requires_grad_() for t in leaves], torch.randn(d, dtype=dtype), 1.7


def gradients(loss, leaves):
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("width", (d, l))
def test_it_is_the_reference_with_drawn_noise(width, path):
    leaves, mean, scale = given(width=width)
    R, W, down = leaves
    more = dict(down=down) if width == l else {}
    used = leaves if more else leaves[:2]
    tokens = dict(proxy="tokens", mean=mean, scale=scale)
    delta = couplet.noise(_proxy.rows(R, mean, scale).detach(), seed=5, step=9, layer=2)
    want = couplet.reference.erc_loss(R, W, delta=delta, alpha=0.8, weight=2.0, **tokens, **more)
    got = couplet.erc_loss(R, W, **SETTINGS, **tokens, **more)
    all_close(gradients(got, used), gradients(want, used), 1e-12)


def test_the_gradient_is_that_of_the_method():
    (R, _, _), mean, scale = given()
    dP = torch.randn(n, d, dtype=R.dtype)
    (got,) = torch.autograd.grad(_proxy.rows(R, mean, scale), R, dP)
    Q = (R - R.mean(0)).detach()
    length = Q.norm(dim=1, keepdim=True)
    q = Q / length
    dQ = scale / length * (dP - q * (q * dP).sum(1, keepdim=True))
    close(got, dQ - dQ.mean(0), 1e-12)


@pytest.mark.parametrize("experts", (1, 3))
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_rows_without_a_direction(experts, dtype, path):
    leaves, mean, scale = given(dtype, experts)
    R = leaves[0].detach()[:1].repeat(experts, 1).requires_grad_()  # a third of the sum of 3 is exact in f64 alone
    if dtype == torch.float64:
        R = R.detach().round().requires_grad_()
    loss = couplet.erc_loss(R, leaves[1], proxy="tokens", mean=mean, scale=scale, **SETTINGS)
    loss.backward()
    assert R.grad.isfinite().all() and not R.grad.any() and loss.isfinite()
    assert torch.equal(_proxy.rows(R, mean, scale), mean.expand(experts, d).to(R.grad if dtype.itemsize > 2 else loss))


def test_without_a_mean_only_lengths_differ_from_centred_rows():
    leaves, mean, _ = given()
    R, W = leaves[:2]
    Q = R - R.mean(0)
    got = couplet.erc_loss(R, W, proxy="tokens", mean=torch.zeros_like(mean), scale=1.0, **SETTINGS)
    want = couplet.erc_loss(Q / Q.norm(dim=1, keepdim=True), W, **SETTINGS)
    all_close(gradients(got, leaves[:2]), gradients(want, leaves[:2]), 1e-12)
    assert (Q.norm(dim=1) - 1).abs().max() > 0.1


def test_compiled():
    leaves, mean, scale = given(torch.float32)
    tokens = dict(proxy="tokens", mean=mean)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(R, W, scale):
        return couplet.erc_loss(R, W, scale=scale, **tokens, **SETTINGS)

    for value in (scale, 2 * scale):
        got = compiled(*leaves[:2], torch.tensor(value))
        want = couplet.erc_loss(*leaves[:2], scale=value, **tokens, **SETTINGS)
        all_close(gradients(got, leaves[:2]), gradients(want, leaves[:2]), 2e-6)


WRONG = (
    (dict(proxy="token"), "proxy is 'token', must be row or tokens"),
    (dict(proxy="tokens", scale=1.0), "mean is None"),
    (dict(proxy="tokens", mean=torch.zeros(d)), "scale is None"),
    (dict(mean=torch.zeros(d)), "mean is given"),
    (dict(scale=1.0), "scale is given"),
    (dict(proxy="tokens", mean=torch.zeros(d + 1), scale=1.0), r"mean is \[13\] on cpu, must be \[12\]"),
    (dict(proxy="tokens", mean=[0.0] * d, scale=1.0), "mean is a list"),
    (dict(proxy="tokens", mean=torch.zeros(d, dtype=torch.int64), scale=1.0), "mean is torch.int64"),
    (dict(proxy="tokens", mean=torch.zeros(d, requires_grad=True), scale=1.0), "mean needs a gradient"),
    (dict(proxy="tokens", mean=torch.zeros(d), scale=-1.0), "scale is -1.0, must be"),
    (dict(proxy="tokens", mean=torch.zeros(d), scale=float("nan")), "scale is nan, must be"),
    (dict(proxy="tokens", mean=torch.zeros(d), scale=torch.ones(2)), "scale is a Tensor, must be"),
    (dict(proxy="tokens", mean=torch.zeros(d), scale="one"), "scale is 'one', must be"),
)


@pytest.mark.parametrize("more, sentence", WRONG)
def test_wrong_arguments(more, sentence):
    with pytest.raises((ValueError, TypeError), match=f"^couplet: {sentence}") as error:
        couplet.erc_loss(torch.randn(n, d), torch.randn(n, D, d), **more)
    assert "\n" not in str(error.value)


def _spread(rank):
    torch.manual_seed(3)
    leaves, mean, scale = given(width=l)
    R, W, down = leaves
    more = dict(proxy="tokens", mean=mean, scale=scale, **SETTINGS)
    want = gradients(couplet.erc_loss(R, W, down=down, **more), leaves)
    here = slice(rank * n // 2, (rank + 1) * n // 2)
    part = W.detach()[here].requires_grad_()
    got = gradients(couplet.erc_loss_ep(R, part, down=down, **more), [R, part, down])
    all_close(got, [*want[:2], want[2][here], want[3]], 1e-12)
    with pytest.raises(ValueError, match="scale is"):
        couplet.erc_loss_ep(R, part, down=down, **{**more, "scale": 1.0 + rank})
    with pytest.raises(ValueError, match="refused its arguments" if rank else "mean is None"):
        couplet.erc_loss_ep(R, part, down=down, **{**more, "mean": mean if rank else None})


@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
def test_experts_in_two_processes():
    in_processes(_spread, 2)
