"""couplet.certify: kinds, their faults, and the verdict on right and wrong implementations of them."""

import json
import os
import pathlib
import re
import subprocess
import sys

import losses_of_others
import losses_of_routers as others
import pytest
import torch
from couplet import certify
from couplet.certify import __main__ as command
from couplet.certify import _fits, _judge
from couplet.certify._evaluate import outputs, scaled
from couplet.certify._fits import Dump
from couplet.certify._judge import judge
from couplet.certify._kind import Case, generator
from couplet.certify._scale import scale_faults
from couplet.certify.kinds import KINDS

pytestmark = pytest.mark.usefixtures("one_thread")


# ---- a dump with a fault ----


def dump_of(kind, name, x, fault, dtype):
    """What an implementation with this fault gives in this format: bf16 is computed in float32 and stored in bf16."""
    x, given, factors = x.to(dtype), {}, (1.0, 1.0)
    if fault and not fault.is_idle(x):
        if fault.scale:
            factors = fault.scale(x)
        else:
            given = {fault.key: fault.values[-1] if fault.values else None}
    out = scaled(outputs(kind, x, given, as_=torch.float32 if dtype is torch.bfloat16 else dtype), *factors)
    return Dump(name, x, {key: value.to(dtype) if key.startswith("d_") else value for key, value in out.items()})


def dumps_of(kind, fault, dtype, seed=1):
    return [
        dump_of(kind, name, x, fault, dtype)
        for name, x in kind.cases(seed).items()
        if all(getattr(x, need) is not None for need in kind.needs)
    ]


def all_faults(kind):
    cases = kind.cases(0).values()
    return [one for one in (*kind.faults, *scale_faults(kind)) if not all(one.is_idle(x) for x in cases)]


ALIKE = ("load-balancing-switch", "load-balancing-mixtral", "load-balancing-global")  # share most faults with OLMoE's
FAULTS = [
    (name, fault.key)
    for name, kind in KINDS.items()
    for k, fault in enumerate(all_faults(kind))
    if name not in ALIKE or k % 4 == ALIKE.index(name)
]


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", KINDS)
def test_the_reference_is_right(name, dtype):
    verdict = judge(KINDS[name], dumps_of(KINDS[name], None, dtype))
    assert (verdict.state, verdict.exit_code) == ("right", 0)


@pytest.mark.parametrize("name, key", FAULTS)
def test_every_fault_is_named(name, key):
    """In float32 in one kind, in bf16 in another."""
    kind = KINDS[name]
    fault = next(one for one in all_faults(kind) if one.key == key)
    dtype = torch.bfloat16 if FAULTS.index((name, key)) % 3 == 2 else torch.float32
    verdict = judge(kind, dumps_of(kind, fault, dtype))
    assert (key,) in [tuple(one.key for one in found.faults) for found in verdict.sets], verdict
    assert verdict.exit_code == 1


def test_scores_that_are_normalised_over_the_chosen_in_other_words():
    """Its rounding is not that of the reference, which masks logits before the sigmoid."""

    def loss(logits, top_k, coefficient):
        chosen = torch.zeros_like(logits).scatter(-1, logits.topk(top_k).indices, 1.0)
        s = logits.sigmoid() * chosen
        s = s / s.sum(-1, keepdim=True)
        return coefficient * logits.shape[1] * (chosen.mean(0) / top_k * s.mean(0)).sum()

    verdict = certify.certify(loss, "load-balancing-deepseek")
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [["normalised_over_chosen"]]


def test_counts_shared_over_ranks_but_not_over_steps():
    """Tokens of rank 0 come first: f of step s is that of micro-batches s and s + 3."""
    kind, g = KINDS["load-balancing-global"], generator(4)
    x = Case(logits=torch.randn(2, 60, 6, generator=g), top_k=2, coefficient=0.3, micro_batches=6, steps=3, ranks=2)
    leaf = x.logits.clone().requires_grad_()
    parts = leaf.unflatten(1, (2, 3, 10))
    loss = (
        0.3
        * sum(others.olmoe(tuple(torch.cat([layer[0, s], layer[1, s]]) for layer in parts), 2, 1.0) for s in range(3))
        / 3
    )
    loss.backward()
    verdict = judge(kind, [Dump("one", x, {"loss": loss.detach(), "d_logits": leaf.grad})])
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [["steps_apart"]], certify.sentence(verdict)


def test_two_faults_at_once():
    kind = KINDS["load-balancing-olmoe"]
    for pair in (("softmax_twice", "padding_counted"), ("P_over_chosen", "layers_summed")):
        cases = {name: x.to(torch.float32) for name, x in kind.cases(2).items()}
        dumps = [Dump(name, x, outputs(kind, x, dict.fromkeys(pair), as_=torch.float32)) for name, x in cases.items()]
        assert set(pair) in [{fault.key for fault in one.faults} for one in judge(kind, dumps).sets], pair


def test_what_no_list_has():
    kind = KINDS["z-loss"]
    dumps = [
        Dump(name, x, {key: value + 0.01 for key, value in outputs(kind, x, {}).items()})
        for name, x in kind.cases(0).items()
    ]
    verdict = judge(kind, dumps)
    assert verdict.state == "unknown" and not verdict.sets and "must be" in certify.sentence(verdict)


def test_what_is_infinite_explains_nothing():
    """The mean of the chosen logits, after the others are masked, is infinite."""
    kind, x = KINDS["z-loss"], Case(logits=torch.randn(1, 64, 16, generator=generator(3)), top_k=2, coefficient=0.01)
    verdict = judge(kind, [Dump("one", x, scaled(outputs(kind, x, {}, as_=torch.float32), 1.37, 1.37))])
    assert verdict.factor == pytest.approx(1.37) and not verdict.sets[0].faults


@pytest.mark.parametrize("name", ("load-balancing-olmoe", "load-balancing-deepseek"))
def test_rounding_does_not_explain_everything(name):
    """A gradient that nearly cancels, as rounding in bf16 moves it as far."""
    kind, x = (
        KINDS[name],
        Case(logits=torch.randn(1, 512, 16, generator=generator(0)), top_k=8, coefficient=0.01, sequences=1),
    )
    got = outputs(kind, x, {}, as_=torch.float32)
    noise = torch.randn(got["d_logits"].shape, generator=generator(1))
    got["d_logits"] += 0.3 * got["d_logits"].norm() * noise / noise.norm()
    verdict = judge(kind, [Dump("one", x, got)])
    assert verdict.state == "unclear" and verdict.exit_code == 2
    assert certify.sentence(verdict).startswith("cannot be told: d_logits lies off by 30 % of its size")


def moved(share, dtype=torch.float32):
    """A gradient of many logits that nearly cancels, moved by a share of its norm."""
    kind, x = (
        KINDS["load-balancing-olmoe"],
        Case(logits=torch.randn(1, 512, 16, generator=generator(0)), top_k=8, coefficient=0.01),
    )
    x = x.to(dtype)
    got = outputs(kind, x, {}, as_=torch.float32)
    noise = torch.randn(got["d_logits"].shape, generator=generator(1))
    return kind, Dump(
        "one",
        x,
        {**got, "d_logits": (got["d_logits"] + share * got["d_logits"].norm() * noise / noise.norm()).to(dtype)},
    )


def test_rounding_to_bf16_of_float32_is_let_pass_on_request():
    kind, dump = moved(0.03)
    verdict = judge(kind, [dump])
    assert (verdict.state, verdict.exit_code) == ("unclear", 2)
    assert "d_logits lies off by 3 % of its size; rounding in TF32 may do that" in certify.sentence(verdict)
    assert certify.sentence(verdict).endswith("give --rounding bf16 if it is computed so")
    assert "within the rounding of bf16 (d_logits lies off by 3 % of its size)" in certify.sentence(
        judge(kind, [dump], "bf16")
    )
    kind, dump = moved(0.003)
    assert certify.sentence(judge(kind, [dump], "exact")).endswith("give --rounding f32 if it is computed so")
    assert judge(kind, [dump], "f32").state == "right"
    kind, dump = moved(0.03, torch.bfloat16)
    assert judge(kind, [dump]).state == "right" and judge(kind, [dump], "f32").state == "unclear"


def test_a_bias_moves_by_less_than_bf16_rounds():
    """An update has no products: what moves a bias by a hundredth of its size is no rounding."""
    for rate in (1e-3, 1e-5):
        kind = KINDS["bias-update-sign"]
        x = Case(counts=torch.tensor([[3, 8, 1, 4]]), bias=torch.tensor([0.3, -0.2, 0.1, 0.4]), rate=rate)
        right = outputs(kind, x, {})["bias_after"]
        assert judge(kind, [Dump("one", x, {"bias_after": right.float()})]).state == "right"
        other = x.bias + rate * torch.tensor([1.0, 1.0, 1.0, -1.0])  # the busiest is not lowered
        assert judge(kind, [Dump("one", x, {"bias_after": other})]).exit_code, rate


def test_a_mean_of_counts_that_is_a_whole_number():
    def floored(counts, bias, rate):
        c = counts.sum(0)
        return bias + rate * torch.sign(c.sum() // len(c) - c)

    verdict = certify.certify(floored, "bias-update-sign")
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [["mean_floored"]]


def test_two_times_may_be_another_kind_or_plumbing():
    x = Case(logits=torch.randn(1, 64, 8, generator=generator(5)), top_k=2, coefficient=0.1)
    verdict = judge(
        KINDS["load-balancing-olmoe"],
        [Dump("one", x, outputs(KINDS["load-balancing-mixtral"], x, {}, as_=torch.float32))],
    )
    assert verdict.exit_code == 1
    assert certify.sentence(verdict).startswith(
        "wrong as load-balancing-olmoe; these inputs do not tell apart: it is load-balancing-mixtral | "
    )
    assert "the loss is added twice" in certify.sentence(verdict)


def test_what_all_explanations_have_in_common_comes_first():
    kind = KINDS["load-balancing-mixtral"]
    sets = [
        _fits.Supposed(((kind.fault("broadcast"), None), (kind.fault(key), None))) for key in ("first_choice", "k_is_n")
    ]
    said = certify.sentence(_judge.Verdict(kind, "fault", sets))
    assert said == (
        f"wrong as load-balancing-mixtral: {kind.fault('broadcast').sentence}; one of: "
        f"{kind.fault('first_choice').sentence} | {kind.fault('k_is_n').sentence}"
    )


def test_a_loss_that_is_zero_but_for_rounding():
    """The z-loss of log-probabilities, whose log-sum-exp is 0."""
    verdict = certify.certify(
        lambda logits, coefficient: coefficient * (logits.log_softmax(-1).logsumexp(-1) ** 2).mean(), "z-loss"
    )
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [["zero"], ["after_log_softmax"]]


def test_what_is_not_among_some_inputs_has_a_value():
    """A loss that counts what is kept, on inputs where nothing is dropped."""

    def loss(logits, top_k, coefficient, kept):
        return coefficient * logits.shape[1] * (kept.double().mean(0) / top_k * logits.softmax(-1).mean(0)).sum()

    verdict = certify.certify(loss, "load-balancing-olmoe")
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [["dropped_left_out"]]


def test_why_no_form_of_the_logits_serves():
    """The reason is that of all layers' logits, unless it is that these are a tuple."""

    def stacked(router_logits, top_k, coefficient):
        raise ValueError(f"{len(torch.stack(tuple(router_logits)).shape)} axes")

    def one_layer(router_logits, top_k, coefficient):
        raise ValueError(f"{router_logits.dim()} axes")

    for loss, why in ((stacked, "3 axes"), (one_layer, "2 axes")):
        with pytest.raises(certify.CannotJudge, match=f"it raises ValueError: {why}"):
            certify.certify(loss, "load-balancing-olmoe")


def test_all_layers_in_a_dict():
    def loss(router_logits, top_k, coefficient):
        return {"loss": sum(others.one_layer(z, top_k) for z in router_logits) / len(router_logits) * coefficient}

    verdict = certify.certify(loss, "load-balancing-olmoe")
    assert verdict.state == "right" and len(verdict.others) == 0


def over_chosen(x, indices):
    """OLMoE's loss with a softmax over the chosen experts, each token's that `indices` name."""
    p = torch.full_like(x.logits, -torch.inf).scatter(-1, indices, x.logits.gather(-1, indices)).softmax(-1)
    f = torch.zeros_like(p).scatter(-1, indices, 1.0).mean(1) / x.top_k
    return x.coefficient * (p.shape[-1] * (f * p.mean(1)).sum(-1)).mean()


def first_choice(x, indices):
    p = x.logits.softmax(-1)
    f = torch.zeros_like(p).scatter(-1, indices[..., :1], 1.0).mean(1)
    return x.coefficient * (p.shape[-1] * (f * p.mean(1)).sum(-1)).mean()


@pytest.mark.parametrize("loss, key", ((over_chosen, "softmax_over_chosen"), (first_choice, "first_choice")))
def test_a_fault_that_depends_on_the_choice_where_some_tie(loss, key):
    """In bf16 some experts tie; an implementation takes any of them."""
    kind = KINDS["load-balancing-olmoe"]
    logits = (4 * torch.randn(2, 60, 9, generator=generator(7))).round() / 2
    ties = logits.sort(-1, descending=True).values.diff(dim=-1) == 0
    assert all(5 < int(ties[..., k].sum()) < 60 for k in (0, 2))  # for the first place and for the last of three
    x = Case(logits=logits.requires_grad_(), top_k=3, coefficient=0.4)
    value = loss(x, logits.topk(3).indices)
    value.backward()
    x = Case(logits=logits.detach().bfloat16(), top_k=3, coefficient=0.4)
    verdict = judge(kind, [Dump("ties", x, {"loss": value.detach(), "d_logits": logits.grad.bfloat16()})])
    assert [[fault.key for fault in one.faults] for one in verdict.sets] == [[key]], certify.sentence(verdict)


def test_two_exact_scales_come_before_one_fault_in_bf16():
    """8 is near 1 / 0.1266, so that in bf16 the coefficient might be unused."""
    kind, g = KINDS["load-balancing-olmoe"], generator(3)
    x = Case(logits=torch.randn(2, 56, 7, generator=g).bfloat16(), top_k=4, coefficient=0.1266)
    right = outputs(kind, x, {}, as_=torch.float32)
    dump = Dump("one", x, {"loss": 8 * right["loss"], "d_logits": (8 * right["d_logits"]).bfloat16()})
    named = [{fault.key for fault in one.faults} for one in judge(kind, [dump]).sets]
    assert {"added_twice", "times_k"} in named and {"coefficient_unused"} not in named


def test_a_factor_is_measured():
    kind = KINDS["z-loss"]
    dumps = [Dump(name, x, scaled(outputs(kind, x, {}), 3.7, 3.7)) for name, x in kind.cases(0).items()]
    verdict = judge(kind, dumps)
    assert verdict.factor == pytest.approx(3.7) and "multiplied by 3.7" in certify.sentence(verdict)


# ---- right ones, written in other ways ----


@pytest.mark.parametrize("function, kind", others.RIGHT)
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_right_in_other_words(function, kind, dtype):
    certify.assert_right(function, kind, dtype=dtype, seed=3)


@pytest.mark.parametrize("function, kind, words", others.WRONG)
def test_wrong_in_other_words(function, kind, words):
    with pytest.raises(AssertionError, match=words):
        certify.assert_right(function, kind)


def test_a_gate_without_a_scale():
    certify.assert_right(lambda logits, bias, top_k: others.gate(logits, bias, top_k, 1.0), "gate-weights")


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("tied", (False, True))
def test_a_factor_of_many_tokens(dtype, tied):
    """Rounding in bf16 takes nearly all experts for ties; the factor comes from loss and gradients together."""
    kind, g = KINDS["load-balancing-olmoe"], generator(0)
    logits = torch.randn(1, 1000, 16, generator=g) * 1.5 + torch.randn(16, generator=g)
    x = Case(logits=(2 * logits).round().to(dtype) if tied else logits.to(dtype), top_k=2, coefficient=1.0)
    for factor in (0.3, 1.1, 1.37):
        leaf = x.logits.float().clone().requires_grad_()
        loss = factor * others.olmoe([leaf[0]], 2, 1.0)
        loss.backward()
        verdict = judge(kind, [Dump("one", x, {"loss": loss.detach(), "d_logits": leaf.grad.to(dtype)})])
        assert verdict.factor == pytest.approx(factor, rel=1e-3) and not verdict.sets[0].faults, certify.sentence(
            verdict
        )


def in_bf16(logits, top_k, coefficient):
    """A right loss of one layer, whose softmax is in bf16."""
    p = logits.bfloat16().softmax(-1).float()
    f = torch.nn.functional.one_hot(logits.topk(top_k).indices, logits.shape[-1]).float().sum(1).mean(0) / top_k
    return coefficient * logits.shape[-1] * (f * p.mean(0)).sum()


def rounded_to_bf16(logits, top_k, coefficient):
    """The same, its softmax rounded once in every release of PyTorch: that of 2.6 rounds between its operations."""
    p = logits.bfloat16().float().softmax(-1).bfloat16().float()
    f = torch.nn.functional.one_hot(logits.topk(top_k).indices, logits.shape[-1]).float().sum(1).mean(0) / top_k
    return coefficient * logits.shape[-1] * (f * p.mean(0)).sum()


def test_one_loss_of_two_kinds_is_right_as_both():
    named = set()
    for seed, loss in ((0, rounded_to_bf16), *((seed, in_bf16) for seed in range(4))):
        for kind in ("load-balancing-olmoe", "load-balancing-switch"):
            assert certify.certify(loss, kind, seed=seed, rounding="bf16").state == "right"
            verdict = certify.certify(loss, kind, seed=seed)  # a CPU has no TF32
            assert verdict.state == "unclear"
            remedy = re.search("give --rounding (f32|bf16) if it is computed so", certify.sentence(verdict))[1]
            assert certify.certify(loss, kind, seed=seed, rounding=remedy).state == "right"
            named.add(remedy)
    assert named == {"f32", "bf16"}


@pytest.mark.parametrize("factor", (0.01, 0.5, 1.015, 3.0))
def test_a_factor_where_experts_tie(factor):
    verdict = certify.certify(
        lambda router_logits, top_k, coefficient: factor * others.olmoe(router_logits, top_k, coefficient),
        "load-balancing-olmoe",
    )
    assert verdict.factor == pytest.approx(factor, rel=1e-4) and not verdict.sets[0].faults


def test_a_cpu_with_a_number_has_no_tf32():
    for device in ("cpu", "cpu:0"):
        assert certify.rounding_on(device, torch.float32) == "exact"
        assert certify.certify(in_bf16, "load-balancing-olmoe", device=device).state == "unclear"


@pytest.mark.parametrize("kind", ("z-loss", "erc", None))
@pytest.mark.parametrize(
    "settings, words",
    (
        ({"dtype": torch.int32}, "dtype is torch.int32, must be one of torch.float32, "),
        ({"seed": 1.5}, "seed is 1.5, must be a whole"),
        ({"logits": "foo"}, "logits is 'foo', must be one of None, tuple, stack, one"),
        ({"seed": -1}, "seed is -1, must be"),
        ({"rounding": "tf32"}, "rounding is 'tf32', must be one of None, f32, bf16"),
        ({"device": "meta"}, "device meta: "),
        ({"device": "nowhere"}, "device nowhere: "),
    ),
)
def test_settings_that_cannot_be_in_python(kind, settings, words):
    with pytest.raises(certify.CannotJudge, match=words):
        certify.certify(others.z, kind, **settings) if kind else certify.fitting(others.z, **settings)


@pytest.mark.parametrize(
    "function, kind, fixed, words",
    (
        (others.without_top_k, "load-balancing-olmoe", {"top_k": "x"}, "top_k is 'x', must be a number"),
        (losses_of_others.without_both, "erc", {"alpha": "x"}, "alpha is 'x', must be a number"),
        (losses_of_others.without_both, "erc", {"alpha": [1.0, 2.0]}, "alpha is a tensor \\[2\\], must be one number"),
    ),
)
def test_inputs_inside_that_are_no_numbers(function, kind, fixed, words):
    with pytest.raises(certify.CannotJudge, match=words):
        certify.certify(function, kind, fixed=fixed)


def test_nothing_to_judge():
    for judged in (lambda: judge(KINDS["z-loss"], []), lambda: certify.erc.judge({})):
        with pytest.raises(certify.CannotJudge, match="there is no dump to judge"):
            judged()
    kind, dump = moved(0.0)
    with pytest.raises(certify.CannotJudge, match="rounding is 'tf32'"):
        judge(kind, [dump], "tf32")


@pytest.mark.parametrize(
    "words, sentence",
    (
        (["--set", "top_k=9999"], "top_k is 9999, which is more than 1024"),
        (["--set", "top_k=0"], "must be a whole number from 1"),
        (["--set", "mask=1"], "mask is a tensor, which cannot be set"),
        (["--json", "no/folder/x.json"], "there is no folder no/folder"),
        (["--set", "top_k=2", "--json", "."], ".: Is a directory"),
        (["--set", "top_k=2", "--keep", __file__], f"{__file__}: File exists"),
    ),
)
def test_settings_that_cannot_be(words, sentence, capsys):
    assert command.main(["losses_of_routers:two_inside", "--loss", "load-balancing-olmoe", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_without_a_kind_all_that_fit_are_written(tmp_path, capsys):
    def run(*words):
        return command.main([*words, "--json", "-", "--keep", str(tmp_path)]), json.loads(capsys.readouterr().out)

    assert command.main(["losses_of_routers:one_layer", "--details"]) == 0
    said = capsys.readouterr().out
    assert "right as load-balancing-olmoe; these inputs do not tell it from load-balancing-switch" in said
    assert (
        "right as load-balancing-switch; these inputs do not tell it from load-balancing-olmoe" in said
        and "d_logits" in said
    )
    code, both = run("losses_of_routers:one_layer")
    assert (code, [one["kind"] for one in both]) == (0, ["load-balancing-switch", "load-balancing-olmoe"])
    assert both[0]["right_as"] == ["load-balancing-olmoe"] and both[0]["faults"] == []
    assert {"load-balancing-switch.layers.safetensors", "load-balancing-olmoe.ties.safetensors"} <= {
        path.name for path in tmp_path.iterdir()
    }
    code, one = run("losses_of_routers:mixtral")
    assert (code, one["kind"]) == (0, "load-balancing-mixtral")


@pytest.mark.parametrize(
    "words, sentence",
    (
        (("losses_of_routers:z", "--seed", "9" * 20), "must be a whole number from 0 to 2^63 - 1"),
        (("losses_of_routers:z", "--loss", "z-loss", "--device", "meta"), "device meta: "),
        (("losses_of_others:ours", "--device", "meta"), "device meta: "),
        (("losses_of_routers:z", "losses_of_routers:z"), "of several all must be dumps"),
        (("losses_of_others:papers", "--seed", "1"), "--seed is not for the coupling loss"),
        (("losses_of_others:papers", "--logits", "one"), "--logits is not for the coupling loss"),
        (("a_dump.safetensors", "--keep", "folder"), "--keep is not for a dump"),
        (("a_dump.safetensors", "--set", "top_k=1"), "--set is not for a dump"),
    ),
)
def test_options_that_would_change_nothing_are_refused(words, sentence, capsys):
    assert command.main(list(words)) == 2
    assert sentence in capsys.readouterr().err


def test_eight_experts_inside():
    """The inputs have at most eight; they are made wider, or K = n would hide all."""

    def eight(logits, coefficient=1.0):
        return coefficient * others.one_layer(logits, 8)

    verdict = certify.certify(eight, "load-balancing-olmoe", fixed={"top_k": 8})
    assert verdict.state == "right" and {one.name for one in verdict.others} == {"load-balancing-switch"}
    assert certify.certify(eight, "load-balancing-olmoe", fixed={"top_k": 7}).state != "right"
    gate = lambda logits, bias: others.gate(logits, bias, 8, 1.0)
    assert certify.certify(gate, "gate-weights", fixed={"top_k": 8}).state == "right"


def test_arguments_by_position_alone():
    def loss(logits, top_k, /, coefficient):
        return coefficient * others.one_layer(logits, top_k)

    certify.assert_right(loss, "load-balancing-olmoe")

    def with_more(logits, epsilon=1e-6, coefficient=1.0, rest=None, /):
        assert epsilon == 1e-6
        return coefficient * others.z(logits)

    certify.assert_right(with_more, "z-loss")


def test_a_compiled_module():
    class Loss(torch.nn.Module):
        def forward(self, coefficient, logits):
            return coefficient * others.z(logits)

    certify.assert_right(torch.compile(Loss(), backend="eager"), "z-loss")


@pytest.mark.parametrize("returns", (True, False))
def test_a_bias_that_is_changed_in_place(returns):
    def update(bias, counts, rate):
        others.update_bias(counts, bias, rate)
        return bias if returns else None

    certify.assert_right(update, "bias-update-sign")


def test_hidden_state_that_moves_little():
    calls = []

    def loss(router_logits, top_k, coefficient):
        calls.append(1)
        return (1 + 1e-4 * len(calls)) * others.olmoe(router_logits, top_k, coefficient)

    with pytest.raises(certify.CannotJudge, match="it depends on hidden state"):
        certify.certify(loss, "load-balancing-olmoe")


def test_a_bias_that_is_never_updated():
    for kind in ("bias-update-sign", "bias-update-centred", "bias-update-proportional"):
        for never in (lambda counts, bias, rate: bias.clone(), lambda counts, bias, rate: None):
            verdict = certify.certify(never, kind)
            assert [fault.key for fault in verdict.sets[0].faults] == ["unchanged"], kind


def test_a_coefficient_of_its_own():
    """The one that is given is not used; another one is written in the code."""
    verdict = certify.certify(
        lambda router_logits, top_k, coefficient: others.olmoe(router_logits, top_k, 0.01), "load-balancing-olmoe"
    )
    assert [fault.key for fault in verdict.sets[0].faults] == ["coefficient_unused"]
    assert verdict.factor == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize(
    "given, sentence",
    (
        ({"logits": torch.zeros(5, 8), "top_k": 2}, r"logits are \[5, 8\], must be \[L,T,n\]"),
        ({"logits": torch.zeros(1, 5, 8)}, "load-balancing-olmoe needs top_k"),
    ),
)
def test_what_a_reference_cannot_take(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        certify.REFERENCES["load-balancing-olmoe"](certify.Case(**given))
    with pytest.raises(ValueError, match="erc needs w_gate"):
        certify.REFERENCES["erc"](certify.Case(router=torch.ones(2, 3)))


def test_why_none_fits(capsys):
    assert command.main(["losses_of_routers:raises_at_once"]) == 2
    assert "it raises ZeroDivisionError" in capsys.readouterr().err


def test_the_kinds_that_fit():
    assert certify.fitting(others.mixtral) == ["load-balancing-mixtral"]
    assert certify.fitting(others.one_layer) == ["load-balancing-switch", "load-balancing-olmoe"]


def test_ties_are_broken_in_any_way():
    """Of experts that tie the first, the last, and a random one."""
    kind = KINDS["load-balancing-olmoe"]
    for way in ("first", "last", "random"):
        x = kind.cases(0)["ties"].to(torch.float32)
        order = {"first": torch.arange(6.0).flip(0), "last": torch.arange(6.0), "random": torch.rand(2, 24, 6)}[way]
        indices = (x.logits + order * 1e-3).topk(x.top_k).indices
        got = outputs(kind, x.but(indices=indices), {}, as_=torch.float32)
        assert judge(kind, [Dump("ties", x, got)]).state == "right", way


def test_counts_that_no_tie_allows_are_wrong():
    kind = KINDS["load-balancing-olmoe"]
    x = kind.cases(0)["ties"].to(torch.float32)
    indices = x.logits.topk(x.top_k).indices.clone()
    indices[0] = x.logits[0].topk(x.top_k, largest=False).indices
    assert (
        judge(kind, [Dump("ties", x, outputs(kind, x.but(indices=indices), {}, as_=torch.float32))]).state == "unknown"
    )


# ---- values that the literature states ----


@pytest.mark.parametrize(
    "name, balanced, collapsed",
    (("load-balancing-olmoe", 1.0, 4.0), ("load-balancing-mixtral", 2.0, 8.0), ("load-balancing-switch", 3.0, 12.0)),
)
def test_value_at_balance_and_collapse(name, balanced, collapsed):
    n, K, L = 8, 2, 3
    even = 40.0 * torch.eye(4).repeat_interleave(K, 1).expand(L, 4, n)  # token t goes to experts 2t and 2t + 1
    reference = certify.REFERENCES[name]
    assert float(reference(certify.Case(logits=even, top_k=K))) == pytest.approx(balanced)
    assert float(reference(certify.Case(logits=even[:, :1].expand(L, 4, n), top_k=K))) == pytest.approx(collapsed)


def test_z_loss_of_zero_logits():
    assert float(certify.REFERENCES["z-loss"](certify.Case(logits=torch.zeros(2, 5, 8)))) == pytest.approx(
        torch.tensor(8.0).log().item() ** 2
    )


# ---- what cannot be judged ----


@pytest.mark.parametrize("name", others.CANNOT)
def test_what_cannot_be_judged(name, capsys):
    words, sentence = others.CANNOT[name]
    assert command.main([f"losses_of_routers:{name}", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.startswith(f"couplet.certify: losses_of_routers:{name}: ")
    assert ("Traceback" in said) == (name in ("raises", "backward_raises"))


# ---- the command ----


def test_the_command(tmp_path, capsys):
    to = tmp_path / "verdict.json"
    assert command.main(["losses_of_routers:softmax_twice", "--loss", "load-balancing-olmoe", "--json", str(to)]) == 1
    assert "softmax is taken twice" in capsys.readouterr().out
    said = json.loads(to.read_text())
    assert said["verdict"] == "fault" and said["faults"][0][0]["key"] == "softmax_twice" and said["version"] == 1
    assert command.main(["losses_of_routers:mixtral", "--loss", "load-balancing-olmoe"]) == 1
    assert "right as load-balancing-mixtral, not load-balancing-olmoe" in capsys.readouterr().out
    assert command.main(["losses_of_routers:mixtral"]) == 0
    assert "right as load-balancing-mixtral" in capsys.readouterr().out


@pytest.mark.parametrize(
    "function, kind", (("losses_of_routers:z_prints", "z-loss"), ("losses_of_others:prints", "erc"))
)
def test_json_alone_on_standard_output(function, kind, capsys):
    assert command.main([function, "--loss", kind, "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kind"] == kind and "a word of mine" in said.err


def test_the_command_in_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "couplet.certify", "losses_of_routers:z", "--loss", "z-loss", "--details"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent)},
    )
    assert done.returncode == 0 and "right as z-loss" in done.stdout and "rounding" in done.stdout, done.stderr


def test_no_two_kinds_and_no_two_faults_have_one_name():
    for kind in KINDS.values():
        keys = [fault.key for fault in (*kind.faults, *scale_faults(kind))]
        assert len(keys) == len(set(keys)), kind.name
        assert kind.source and kind.formula and all(fault.sentence and fault.remedy for fault in kind.faults)


def test_the_page_has_the_tables(capsys):
    assert command.main(["--list"]) == 0
    text = (pathlib.Path(__file__).parents[3] / "docs" / "losses.md").read_text()
    assert text.endswith(capsys.readouterr().out)


def test_the_names_of_arguments_on_the_page():
    text = (pathlib.Path(__file__).parents[3] / "docs" / "losses.md").read_text()
    for name in KINDS["load-balancing-olmoe"].inputs:
        assert f"`{name}`" in text, name


def test_every_kind_has_its_range_in_words():
    assert all(kind.range for kind in KINDS.values())


def test_load_balancing_lies_between_0_and_n_over_K_and_below_balance_too():
    """60 of 100 tokens prefer expert 1 a little, 40 expert 2 by far: the busy expert has the lower mean score."""
    reference = certify.REFERENCES["load-balancing-olmoe"]
    scores = torch.tensor([[0.51, 0.49]] * 60 + [[0.01, 0.99]] * 40)
    assert float(reference(certify.Case(logits=scores.log()[None], top_k=1))) == pytest.approx(0.924)
    for x in KINDS["load-balancing-olmoe"].cases(0).values():
        assert 0 <= float(reference(x)) / x.times <= x.logits.shape[-1] / x.top_k
