"""The plain path draws the noise of the C library, and the kernels draw the noise of the plain path."""

import importlib.util
import math
import os
import subprocess
import sys

import couplet
import pytest
import torch
from couplet.ops import _library, _native, _noise
from couplet.ops._operator import make_job


def of_the_library(router, **key):
    """Returns delta [n, d]. With the identity for expert e's only row k, M[i, e] = |R_i[k] delta_i[k]|."""
    n, d = router.shape
    delta = torch.empty(n, d)
    for k in range(d):
        gates = torch.zeros(n, 1, d)
        gates[:, 0, k] = 1
        job = make_job(
            router,
            [gates],
            [],
            [],
            None,
            "",
            1.0,
            1.0,
            "gate",
            "bounded",
            key["seed"],
            key["step"],
            key["layer"],
            key["draw"],
            "f32",
        )
        kept, M = [], torch.empty(n, n)
        erc = _native._erc_of(job, kept)
        erc.M = M.data_ptr()
        _library.call("run", erc)
        delta[:, k] = M[:, 0] / router[:, k]
    return delta


@pytest.mark.skipif(_library.found() is None, reason="couplet_native is not used")
@pytest.mark.parametrize(
    "key",
    (
        dict(seed=0, step=0, layer=0, draw=0),
        dict(seed=2**64 - 1, step=2**40 - 1, layer=2**16 - 1, draw=2**16 - 1),
        dict(seed=77, step=12345, layer=3, draw=1),
    ),
    ids=str,
)
@pytest.mark.parametrize("n, d", ((1, 5), (7, 13), (40, 6)))
def test_same_numbers(key, n, d):
    router = torch.rand(n, d) + 0.5
    router[n // 2] = router[0]
    ours = _noise.bounded(router, **key)
    torch.testing.assert_close(ours, of_the_library(router, **key), rtol=3e-7, atol=0)


def test_philox_known_answers():
    """The values are from Random123's kat_vectors for philox4x32-10, with counter and key all zero."""
    got = _noise.philox(torch.zeros(1, dtype=torch.int64), 0, 0, 0, stream=0)
    assert got[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_bounds():
    router = torch.randn(8, 30)
    delta, eps = _noise.bounded(router, 1, 2, 3, 0), _noise.nearest(router)
    assert ((delta - 1).abs() <= eps[:, None] * (1 + 1e-6)).all()
    assert ((delta - 1).abs().max(1).values > 0.7 * eps).all()


def test_eps_of_special_rows():
    router = torch.randn(40, 5)
    router[3] = router[9]
    router[4] = 0
    eps = _noise.nearest(router)
    assert eps[3] == eps[9] == eps[4] == 0
    assert _noise.nearest(router[:1]).tolist() == [0]
    tiny = torch.zeros(2, 3)
    tiny[0] = 1e-38
    tiny[1] = 1e30
    assert all(math.isfinite(e) for e in _noise.nearest(tiny))


def test_every_part_of_the_key_matters():
    m = torch.randn(4, 6), torch.randn(4, 5, 6)
    base = dict(seed=1, step=1, layer=1, draw=1)
    losses = {couplet.erc_loss(*m, **{**base, name: 2}).item() for name in base}
    assert len(losses | {couplet.erc_loss(*m, **base).item()}) == 5


# ---- the kernels of Triton ----

INTERPRETED = """
import torch
from couplet.ops import _noise
torch.manual_seed(1)
for dtype, limit in ((torch.float32, 0), (torch.bfloat16, 0), (torch.float64, 1e-14)):
    for l, n, d in ((1, 1, 5), (3, 7, 13), (2, 40, 6), (2, 17, 300), (2, 2, 1)):
        routers = torch.randn(l, n, d).to(dtype)
        if n > 4:
            routers[:, n // 2], routers[0, 3] = routers[:, 0], 0
        for key in ((0, 0, 0, 0), (2**64 - 1, 7, 0, 0), (-1, 2**40 - 1, 2**16 - 4, 2**16 - 1), (77, 12345, 3, 1)):
            got = _noise._by_kernels(routers, *key)
            want = _noise._in_plain_torch(routers.to(got.dtype), *key)
            torch.testing.assert_close(got, want, rtol=limit, atol=0)
            each = _noise._in_plain_torch(routers[-1].to(got.dtype), *key[:2], key[2] + l - 1, key[3])
            assert torch.equal(each, want[-1])
nan = torch.ones(1, 3, 4)
nan[0, 1, 2] = float("nan")
assert _noise._by_kernels(nan, 0, 0, 0, 0).isnan().all()
print("compared")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_draw_the_numbers_of_plain_torch():
    """The kernels run in Triton's interpreter, on the CPU."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERPRETED],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "COUPLET_BACKEND": "torch"},
    )
    if "only 0-dimensional arrays can be converted" in run.stderr:
        pytest.skip("the interpreter of this Triton does not know this NumPy")
    assert run.stdout == "compared\n", run.stderr


def fake_gpu(monkeypatch, by_kernels):
    """Returns whether the kernels are used, on a device that is the CPU."""
    monkeypatch.setattr(_noise, "_works", {})
    monkeypatch.setattr(_noise, "_by_kernels", by_kernels)
    return _noise._kernels_work(torch.device("cpu"))


def test_kernels_are_used_where_they_are_right(monkeypatch, recwarn):
    assert fake_gpu(monkeypatch, _noise._in_plain_torch) and not recwarn.list


def refused(*_):
    raise RuntimeError("Failed to find C compiler.\nmore")


@pytest.mark.parametrize(
    "by_kernels, reason",
    (
        (refused, "Failed to find C compiler[.][.] The noise is drawn by plain"),
        (lambda r, *_: torch.ones_like(r), "its numbers are wrong"),
    ),
)
def test_kernels_that_do_not_work_are_not_used(monkeypatch, by_kernels, reason):
    with pytest.warns(UserWarning, match=f"Triton cannot be used on cpu: {reason}"):
        assert not fake_gpu(monkeypatch, by_kernels)
