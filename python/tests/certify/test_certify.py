"""python -m couplet.certify of a coupling loss: inputs, dumps, and what is said of callables."""

import pathlib

import losses_in_eager
import losses_of_others
import pytest
import torch
from conftest import close
from couplet.certify import CannotJudge, erc
from couplet.certify.__main__ import main
from couplet.certify.erc import inputs as certify
from safetensors.torch import load_file

pytestmark = pytest.mark.usefixtures("one_thread")
RIGHT = ("ours", "papers", "fused", "draws_itself", "by_position")
WRONG = {
    "merged": "over gate and up together",
    "detached": "the router gets no gradient",
    "pairs_mean": "n (n - 1)",
    "through_eps": "through eps",
    "under_no_grad": "no gradient",
}


def hinges(name):
    x = certify.make_inputs(name)
    M = torch.einsum("jDd,id->ijD", x["W_g"].double(), (x["R"] * x["delta"]).double()).norm(dim=-1)
    off = ~torch.eye(len(M), dtype=torch.bool)
    both = torch.stack([M - x["alpha"] * M.diagonal()[:, None], M - x["alpha"] * M.diagonal()])[:, off]
    return (both >= 0).double().mean().item(), int((both == 0).sum()), both.abs().min().item()


def test_inputs_cover_the_hinges():
    assert 0.3 < hinges("some-active")[0] < 0.7
    assert hinges("all-active")[0] == 1
    assert 0 < hinges("few-active")[0] < 0.25
    assert hinges("ties")[1] >= 3
    for name in ("some-active", "all-active", "few-active"):
        assert hinges(name)[2] > 1e-4, name


def test_inputs_are_always_the_same():
    x = certify.make_inputs("some-active")
    assert x["R"].double().sum().item() == pytest.approx(-5.011981546878815, rel=1e-6)


@pytest.mark.parametrize("name", RIGHT)
def test_dump(name):
    x = certify.make_inputs("few-active")
    d = certify.dump(getattr(losses_of_others, name), x)
    assert d["loss"].shape == () and d["dR"].shape == x["R"].shape and "delta" in d
    assert d["alpha"].dtype == torch.float64 and float(d["alpha"]) == x["alpha"]
    want = certify.dump(losses_of_others.papers, {**x, "delta": d["delta"]})
    for key in ("loss", "dR", "dW_g"):
        close(d[key], want[key], 1e-5, key)
    assert ("W_p" in d) == (name == "fused")


def test_dump_without_gradient():
    d = certify.dump(losses_of_others.under_no_grad, certify.make_inputs("some-active"))
    assert "dR" not in d and "dW_g" not in d and "loss" in d


CANNOT = {
    "a_float": "it returns a float, must return the loss",
    "nothing": "it returns None, must return the loss",
    "a_tuple": "it returns a tuple, must return the loss",
    "a_vector": "it returns a tensor [8] of torch.float32, must return the loss",
    "an_integer": "it returns a tensor [] of torch.int64, must return the loss",
    "no_loss": "it returns a dict with Loss, must have loss",
    "short_M": "it returns as M a tensor [3] of torch.float32, must be a tensor [8, 8]",
    "raises": "it raises KeyError: 'boom'\n\nTraceback",
    "leaves": "it raises SystemExit: 0",
    "raises_its_own": "it raises Unsaid: \n\nTraceback",
    "backward_raises": "its backward pass raises RuntimeError: ",
    "other_arguments": "its arguments are (a, b), must be some of router, w_gate",
    "Module": "Module is a class; name a function, or an instance",
    "number": "number is 3, which cannot be called",
    "later": "it is a coroutine (async def), must be a function\n",
    "sparse": "it returns a tensor [1] of torch.float32, sparse_coo, must return the loss",
    "on_meta": "it returns a tensor [] of torch.float32, meta, must return the loss",
    "absent": "losses_of_others has no absent",
    "without_alpha": "it takes no alpha; say which one it has, as --alpha 1",
}


@pytest.mark.parametrize("name", CANNOT)
def test_callables_that_cannot_be_run(name, capsys):
    assert main([f"losses_of_others:{name}", "--loss", "erc"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"couplet.certify: losses_of_others:{name}: {CANNOT[name]}")
    assert "couplet/" not in said  # of a traceback, the callable's part


@pytest.mark.parametrize("loss", ([], ["--loss", "erc"]))
def test_where_there_is_no_verdict_nothing_is_wrong(loss, capsys, monkeypatch):
    assert loss or main(["losses_of_others:unsigned"]) == 2
    assert main(["losses_of_others:interrupted", *loss]) == 130
    assert "couplet.certify: interrupted; there is no verdict\n" in capsys.readouterr().err
    monkeypatch.setattr(erc, "judge", lambda *_: 1 / 0)
    assert main(["losses_of_others:ours", *loss]) == 2
    assert "losses_of_others:ours: judging it raises ZeroDivisionError: division by zero\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, sentence",
    (
        (["no_such_module:loss"], "no_such_module cannot be imported: ModuleNotFoundError: No module named"),
        (["losses_of_others"], "losses_of_others names no callable; write my_module:my_loss"),
        (["losses_of_others:ours", "--device", "nowhere"], "device nowhere: "),
        (["losses_of_others:ours", "--alpha", "1"], "it takes alpha itself; --alpha is for one that does not"),
        (["losses_of_others:ours", "--keep", "/dev/null/x"], "/dev/null"),
    ),
)
def test_what_cannot_be_run(words, sentence, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("couplet.certify: ") and sentence in said and "Traceback" not in said


def test_noise_that_is_not_returned(capsys):
    assert main(["losses_of_others:draws_and_keeps"]) == 2
    assert "it gives other numbers when it is called with the same inputs again" in capsys.readouterr().err


# ---- alpha and weight that a callable does not take ----


@pytest.mark.parametrize(
    "name, settings, numbers",
    (
        ("without_weight", {}, (0.8, 1.0)),
        ("without_weight", {"weight": 1.0}, (0.8, 1.0)),
        ("without_alpha", {"alpha": 1.0}, (1.0, 2.5)),
        ("without_both", {"alpha": 0.7}, (0.7, 1.0)),
        ("without_both", {"alpha": 0.7, "weight": 3.0}, (0.7, 3.0)),
        ("module", {}, (0.8, 2.5)),
    ),
)
def test_the_dump_claims_what_was_handed_over(name, settings, numbers):
    d = certify.dump(getattr(losses_of_others, name), certify.make_inputs("few-active"), fixed=settings)
    assert (float(d["alpha"]), float(d["weight"])) == numbers


@pytest.mark.parametrize(
    "words", (["without_weight"], ["without_both", "--alpha", "0.6"], ["without_both", "--set", "alpha=0.6"])
)
def test_right_without_alpha_or_weight(words, capfd):
    assert main([f"losses_of_others:{words[0]}", *words[1:]]) == 0, capfd.readouterr()


def test_inputs_that_are_changed():
    with pytest.raises(CannotJudge, match="it changes its input router"):
        certify.dump(losses_of_others.changes_its_inputs, certify.make_inputs("some-active"))


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_right(name, dtype, tmp_path, capfd):
    assert main([f"losses_of_others:{name}", "--loss", "erc", "--keep", str(tmp_path), "--dtype", dtype]) == 0, (
        capfd.readouterr()
    )
    assert {p.stem for p in tmp_path.iterdir()} == set(certify.INPUTS)
    assert load_file(tmp_path / "ties.safetensors")["R"].dtype == getattr(torch, dtype)


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name, capfd):
    path = pathlib.Path(losses_of_others.__file__)
    assert main([f"{path}:{name}"]) == 1
    assert WRONG[name] in capfd.readouterr().out


# ---- every fault of docs/certify.md in eager torch ----


@pytest.fixture(params=("f32", "bf16 with products in f32", "bf16"))
def eager_dtype(request, monkeypatch):
    monkeypatch.setattr(losses_in_eager, "products", torch.float32 if "products" in request.param else None)
    return torch.float32 if request.param == "f32" else torch.bfloat16


def verdicts(function, dtype):
    """The certificate of each input."""
    return erc.judge(erc.dumps(function, dtype)).found.items()


def test_right_in_eager(eager_dtype):
    for function in losses_in_eager.RIGHT:
        for name, said in verdicts(function, eager_dtype):
            assert said.verdict == "right", (function.__name__, name, said.faults)


def test_faults_in_eager(eager_dtype):
    """Each is named; where an input cannot show it, that is said, or it is among the alternatives."""
    for key, function in losses_in_eager.FAULTS.items():
        named = 0
        for name, said in verdicts(function, eager_dtype):
            named += said.faults == {key}
            assert (
                said.faults == {key}
                or {key} in said.alternatives
                or (not said.faults and key in said.untold)
                or (key, name) == ("factor", "all-active")
            ), (key, name, said.faults)  # 3 = 6 / 2: two other faults
        assert named >= 2, (key, named)


def test_experts_under_no_grad_in_eager(eager_dtype):
    for name, said in verdicts(losses_in_eager.experts_under_no_grad, eager_dtype):
        assert said.faults == {"router_detached", "experts_detached"}, name
