"""couplet.certify: kinds, their faults, and the verdicts on right and wrong implementations."""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import losses_of_coupling as coupling
import losses_of_routers as others
import pytest
import right_ways
import torch
from couplet import certify
from couplet.certify import __main__ as command
from couplet.certify._judge import Dump, Held, judge, outputs
from couplet.certify._kind import ABOUT, FAULTS, Case, generator, only
from couplet.certify.kinds import KINDS, balance
from styles import table

pytestmark = pytest.mark.usefixtures("one_thread")
PAGES = pathlib.Path(__file__).parents[3] / "docs"


# ---- dumps with a fault ----


def dump_of(kind, name, x, fault, dtype):
    """Returns the dump of an implementation with this fault. bf16 is computed in float32 and stored in bf16."""
    x = x.to(dtype)
    held = Held(kind, Dump(name, x, {}))
    held.x = x.to(torch.float32 if dtype is torch.bfloat16 else dtype)
    held.right = outputs(kind, held.x)
    value = 3.7 if fault and fault.key == "factor" else fault.values[-1] if fault else None
    out = held.outputs(held.x, fault, value)
    return Dump(name, x, {key: value.to(dtype) if key.startswith("d_") else value for key, value in out.items()})


def dumps_of(kind, fault, dtype, seed=1):
    return [dump_of(kind, name, x, fault, dtype) for name, x in kind.cases(seed, 0).items()]


def keys(verdict):
    return [fault.key for fault, _ in verdict.faults]


def expect_faults(function, kind, want, **settings):
    """Checks that the verdict has these faults, by key. An empty list means wrong in a way that is not listed."""
    verdict = certify.certify(function, kind, **settings)
    assert keys(verdict) == want and verdict.exit_code == 1, (want, certify.sentence(verdict))
    return verdict


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
@pytest.mark.parametrize("name", KINDS)
def test_the_reference_is_right(name, dtype):
    verdict = judge(KINDS[name], dumps_of(KINDS[name], None, dtype))
    assert (verdict.state, verdict.exit_code) == ("right", 0), certify.sentence(verdict)
    if dtype is not torch.bfloat16:  # without ranks, micro-batches or own noise some change nothing
        idle = ("steps", "ranks", "layers_sum", "layers_twice", "bound_of_latent")
        assert all(any(word in fault.key for word in idle) for fault in verdict.untold), verdict.untold


@pytest.mark.parametrize("name", KINDS)
def test_every_fault_is_named(name):
    kind = KINDS[name]
    right = judge(kind, dumps_of(kind, None, torch.float32))
    for fault in kind.faults:
        if fault not in right.untold:
            verdict = judge(kind, dumps_of(kind, fault, torch.float32))
            assert fault.key in keys(verdict) and verdict.exit_code == 1, (fault.key, certify.sentence(verdict))


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.is_coupling])
def test_right_ones_in_other_words(name):
    """Tests each way of right_ways.py, on random inputs too: ties, one expert, K = n, one token."""
    kind = KINDS[name]
    ways, random_case = right_ways.of(kind)
    cases = {**kind.cases(2, 0), **{f"seed {seed}": random_case(seed) for seed in range(6)}}
    dtypes = (torch.float32, torch.bfloat16) if kind.gradients else (torch.float32,)
    for (number, way), (case, x), dtype in itertools.product(enumerate(ways), cases.items(), dtypes):
        x = x.to(dtype)
        try:
            verdict = judge(kind, [Dump(case, x, right_ways.outputs_of(way, kind, x))])
        except certify.CannotJudge as error:
            assert dtype is torch.bfloat16 and "cannot be told" in str(error)
            continue
        assert verdict.state == "right", (number, case, dtype, certify.sentence(verdict))


SMALL = {"olmoe": "padding_in_f groups_joined f_straight_through", "deepseek": "f_straight_through sigmoid_twice"}


@pytest.mark.parametrize("name", SMALL)
def test_small_faults_in_bf16(name):
    """These faults change a gradient by less than rounding may."""
    kind, g = KINDS[f"load-balancing-{name}"], generator(0)
    x = Case(logits=torch.randn(2, 2048, 16, generator=g), top_k=4, mask=torch.rand(2048, generator=g) > 0.1)
    x = x.but(coefficient=0.01, micro_batches=4, sequences=4)
    for key in ("", *SMALL[name].split()):
        verdict = judge(kind, [dump_of(kind, "one", x, kind.fault(key) if key else None, torch.bfloat16)])
        assert keys(verdict) == [key] * bool(key) and verdict.exit_code == bool(key), certify.sentence(verdict)
    assert judge(kind, [Dump("one", x.to(torch.bfloat16), outputs(kind, x.to(torch.bfloat16)))]).state == "right"


# ---- functions ----


@pytest.mark.parametrize("function, kind", others.RIGHT)
@pytest.mark.parametrize("dtype", (None, torch.float32, torch.bfloat16))
def test_right(function, kind, dtype):
    certify.assert_right(function, kind, dtype=dtype, seed=3)


@pytest.mark.parametrize("function, kind, words", others.WRONG)
def test_wrong(function, kind, words):
    with pytest.raises(AssertionError, match=words):
        certify.assert_right(function, kind)


@pytest.mark.parametrize("function", coupling.RIGHT)
def test_right_coupling_losses(function):
    certify.assert_right(function, kind="erc")
    certify.assert_right(function, kind="erc", dtype=torch.float32, seed=1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_coupling_losses_with_each_fault(dtype):
    for key, function in coupling.FAULTS.items():
        if key != "factor" or dtype is torch.float32:  # in 16 bits a factor is known to a percent
            expect_faults(function, "erc", [key], dtype=dtype)


@pytest.mark.parametrize("function", coupling.LATENT_RIGHT)
@pytest.mark.parametrize("dtype", (None, torch.float32, torch.bfloat16))
def test_right_coupling_losses_of_latent_experts(function, dtype):
    for seed in (0, 3):
        certify.assert_right(function, kind="erc-latent", dtype=dtype, seed=seed)


@pytest.mark.parametrize("dtype", (None, torch.float32, torch.bfloat16))
def test_coupling_losses_of_latent_experts_with_each_fault(dtype):
    for key, function in coupling.LATENT_FAULTS.items():
        if key != "factor" or dtype is not torch.bfloat16:
            expect_faults(function, "erc-latent", [key], dtype=dtype)


@pytest.mark.parametrize("is_square", (True, False))
def test_a_projection_that_is_left_out(is_square):
    """Without W_l the shapes fit only if l = d."""
    kind = KINDS["erc-latent"]
    cases = {name: x for name, x in kind.cases(0, 0).items() if (x.down.shape[0] == x.down.shape[1]) == is_square}
    assert cases
    for x in cases.values():
        found = judge(kind, [Dump("one", x, outputs(kind, x, only("down_left_out")))])
        assert keys(found) == ["down_left_out"] * is_square and found.exit_code == is_square
    with pytest.raises(certify.CannotJudge, match="must match|mat1|size|subscript"):
        certify.certify(
            lambda router, w_gate, down, alpha: coupling.papers(router, w_gate, None, alpha, 1), "erc-latent"
        )


def test_noise_beyond_both_bounds_has_no_name():
    def far(router, w_gate, down, alpha, weight):
        delta = 1 + 3 * (coupling._noise_of(router.detach()) - 1)
        return {"loss": coupling.latent(router, w_gate, down, delta, alpha, weight), "delta": delta}

    assert certify.certify(far, "erc-latent").state == "unknown"


@pytest.mark.parametrize("rank", (0, 1))
def test_hinges_at_their_bound_are_a_convention(rank):
    """Experts are equal, as after upcycling. torch.clamp passes no gradient at a tie, and the reference passes it."""
    g = generator(rank)
    x = Case(router=torch.randn(4, 6, generator=g), w_gate=torch.randn(1, 5, 6, generator=g).expand(4, 5, 6), alpha=1.0)
    R, W = x.router.clone().requires_grad_(), x.w_gate.clone().requires_grad_()
    loss = coupling.mean_hinge(coupling.norms(R, W), 1.0, 1.0)
    loss.backward()
    got = {"loss": loss.detach(), "d_router": R.grad, "d_w_gate": W.grad}
    assert judge(KINDS["erc"], [Dump("equal", x, got)]).state == "right"


def test_the_coupling_loss_as_a_reference():
    x = KINDS["erc"].cases(0, 0)["some-active"]
    want = coupling.papers(x.router, x.w_gate, x.delta, x.alpha, x.times)
    assert float(certify.REFERENCES["erc"](x)) == pytest.approx(float(want), rel=1e-6)


# ---- polarity of masks, other names, refusals ----


def z_of_kept(logits, keep):
    return (logits.logsumexp(-1).square() * keep).sum() / keep.sum()


@pytest.mark.parametrize(
    "loss, found",
    (
        (lambda logits, padding_mask: z_of_kept(logits, ~padding_mask), "padding_mask is True at padding"),
        (lambda logits, key_padding_mask: z_of_kept(logits, ~key_padding_mask), "key_padding_mask is True at padding"),
        (lambda logits, padding_mask: z_of_kept(logits, padding_mask), "padding_mask is True at tokens that count"),
        (lambda logits, pad_mask: z_of_kept(logits, ~pad_mask), "pad_mask is True at padding"),
        (lambda logits, nonpad_mask: z_of_kept(logits, nonpad_mask), "nonpad_mask is True at tokens that count"),
        (lambda logits, mask: z_of_kept(logits, mask), "mask is True at tokens that count"),
        # The mask has numbers, because bools cannot be subtracted.
        (lambda logits, padding_mask: z_of_kept(logits, 1 - padding_mask), "padding_mask is True at padding"),
    ),
)
def test_a_mask_of_either_polarity(loss, found):
    """The verdict names the polarity of the mask."""
    verdict = certify.certify(loss, "z-loss")
    assert verdict.state == "right" and verdict.mask == found and found in certify.sentence(verdict)


def test_scores_and_counts_in_place_of_logits():
    def of_scores(probs, tokens_per_expert, total_num_tokens, topk, num_experts, moe_aux_loss_coeff):
        total = (probs.sum(0) * tokens_per_expert).sum()
        return total * (num_experts * moe_aux_loss_coeff / (topk * total_num_tokens**2))

    certify.assert_right(of_scores, "load-balancing-olmoe")
    certify.assert_right(of_scores, "load-balancing-deepseek")

    def of_probabilities(probs, tokens_per_expert, total_num_tokens, topk, num_experts, coef):
        return of_scores(probs.softmax(-1), tokens_per_expert, total_num_tokens, topk, num_experts, coef)

    expect_faults(of_probabilities, "load-balancing-olmoe", ["softmax_twice"])


def test_a_refusal_has_a_wrapper_that_can_be_judged():
    def my_loss(h, top_k, coefficient):
        return coefficient * others.one_layer(h, top_k)

    with pytest.raises(certify.CannotJudge) as error:
        certify.certify(my_loss, "load-balancing-olmoe")
    sentence, _, lines = str(error.value).partition("\n\n")
    assert "h is none of logits, top_k" in sentence and len(lines.splitlines()) == 2
    made = {"my_loss": my_loss}
    exec(lines, made)
    certify.assert_right(made["wrapped"], "load-balancing-olmoe")


# ---- wrong losses ----


def test_what_no_list_has():
    """The sentence names the inputs on which the loss is right, and the first number that differs on the others."""

    def loss(logits, mask=None):
        return others.z(logits) if mask is None else z_of_kept(logits, mask) + 0.5

    verdict = certify.certify(loss, "z-loss")
    said = certify.sentence(verdict)
    assert verdict.state == "unknown" and not verdict.faults and list(verdict.first) == ["padding"]
    assert said.startswith(
        "not right as z-loss, in a way that is not listed: right on layers, micro-batches, many-tokens"
    )
    assert "; on padding loss is " in said and ", must be " in said


def test_only_ties_are_wrong():
    """The loss counts all experts that tie with the K-th."""

    def loss(gate_logits, num_experts, top_k):
        p = torch.cat(list(gate_logits)).softmax(-1)
        chosen = (p >= p.topk(top_k).values[:, -1:]).to(p.dtype)
        return num_experts * (chosen.mean(0) * p.mean(0)).sum()

    verdict = certify.certify(loss, "load-balancing-mixtral")
    assert verdict.state == "unknown" and list(verdict.first) == ["ties"]
    assert "right on layers, micro-batches, padding, many-tokens, dropped; on ties loss is " in certify.sentence(
        verdict
    )


def test_names_of_balance_losses():
    def loss(router_scores, num_local_experts, moe_topk):
        chosen = torch.zeros_like(router_scores).scatter(1, router_scores.topk(moe_topk).indices, 1.0)
        return num_local_experts * (chosen.mean(0) / moe_topk * router_scores.mean(0)).sum()

    def other(routing_weights, num_local_experts, num_experts_per_token):
        return loss(routing_weights, num_local_experts, num_experts_per_token)

    for one in (loss, other):
        certify.assert_right(one, "load-balancing-olmoe")


@pytest.mark.parametrize("factor", (0.01, 1.015, 3.0))
def test_a_factor(factor):
    loss = lambda router_logits, top_k, coefficient: factor * others.olmoe(router_logits, top_k, coefficient)
    verdict = expect_faults(loss, "load-balancing-olmoe", ["factor"])
    assert verdict.faults[0][1] == pytest.approx(factor, rel=1e-5)


def of_kept(logits, top_k, coefficient, kept):
    """Returns a loss that counts the tokens that are kept. On inputs without dropped tokens it counts all."""
    return coefficient * logits.shape[1] * (kept.double().mean(0) / top_k * logits.softmax(-1).mean(0)).sum()


def of_floored_mean(counts, bias, rate):
    c = counts.sum(0)
    return bias + rate * torch.sign(c.sum() // len(c) - c)


def zero_but_for_rounding(logits, coefficient):
    return coefficient * (logits.log_softmax(-1).logsumexp(-1) ** 2).mean()


def two_faults(logits, top_k, coefficient):
    return others.one_layer(logits.softmax(-1), top_k) * coefficient**2


@pytest.mark.parametrize(
    "function, kind, want",
    (
        (lambda logits, padding_mask: others.z(logits), "z-loss", ["padding_counted"]),
        (lambda logits: others.z(logits.detach()), "z-loss", ["detached"]),
        (zero_but_for_rounding, "z-loss", ["zero", "after_log_softmax"]),
        (of_kept, "load-balancing-olmoe", ["dropped_left_out"]),
        (two_faults, "load-balancing-olmoe", []),
        (of_floored_mean, "bias-update-sign", ["mean_floored"]),
    ),
)
def test_faults_of_functions(function, kind, want):
    expect_faults(function, kind, want)


@pytest.mark.parametrize("kind", ("bias-update-sign", "bias-update-centred", "bias-update-proportional"))
@pytest.mark.parametrize("never", (lambda counts, bias, rate: bias.clone(), lambda counts, bias, rate: None))
def test_a_bias_that_is_never_updated(kind, never):
    assert keys(certify.certify(never, kind))[0] == "unchanged"


def of_scores(p, logits, top_k):
    f = torch.nn.functional.one_hot(logits.topk(top_k).indices, logits.shape[-1]).float().sum(1).mean(0) / top_k
    return logits.shape[-1] * (f * p.mean(0)).sum()


BF16 = {
    "cast before": lambda z: z.bfloat16().softmax(-1).float(),
    "by dtype": lambda z: z.softmax(-1, dtype=torch.bfloat16).float(),
    "rounded after": lambda z: z.float().softmax(-1).bfloat16().float(),
    "means in bf16": lambda z: z.bfloat16().softmax(-1),
}


@pytest.mark.parametrize("way", BF16)
@pytest.mark.parametrize("dtype", (None, torch.float32))
def test_a_softmax_in_bf16_has_a_name(way, dtype):
    loss = lambda logits, top_k, coefficient: coefficient * of_scores(BF16[way](logits), logits, top_k).float()
    expect_faults(loss, "load-balancing-olmoe", ["softmax_in_bf16"], dtype=dtype)
    assert certify.certify(loss, "load-balancing-olmoe", dtype=torch.bfloat16).state == "right"


def mixtral_in_bf16(router_logits, top_k, num_experts, router_aux_loss_coef):
    """The experts are chosen by scores in bf16, so that more of them tie."""
    p = torch.cat(list(router_logits)).softmax(-1, dtype=torch.bfloat16)
    f = torch.nn.functional.one_hot(p.topk(top_k).indices, num_experts).float().mean(0)
    return router_aux_loss_coef * num_experts * (f * p.float().mean(0)).sum()


@pytest.mark.parametrize("seed", range(8))
def test_a_softmax_in_bf16_has_a_name_on_any_inputs(seed):
    of_bf16 = table.function("megablocks.load_balancing_loss_of_bf16")
    expect_faults(of_bf16, "load-balancing-olmoe", ["softmax_in_bf16"], seed=seed)
    expect_faults(mixtral_in_bf16, "load-balancing-mixtral", ["softmax_in_bf16"], seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_loss_that_is_not_cast_back(seed):
    """Gradients arrive in the format of the inputs, and are compared in it whatever the loss is."""

    def mixtral(gate_logits, num_experts, top_k, like=torch.float64):
        p = torch.cat(gate_logits).softmax(-1, dtype=like)
        f = torch.nn.functional.one_hot(p.topk(top_k).indices, num_experts).sum(1).to(p.dtype).mean(0)
        return num_experts * (f * p.mean(0)).sum()

    kind, of_bf16 = "load-balancing-mixtral", functools.partial(mixtral, like=torch.bfloat16)
    for dtype in (None, torch.float32):
        expect_faults(of_bf16, kind, ["softmax_in_bf16"], seed=seed, dtype=dtype)
    expect_faults(
        lambda logits: (logits.bfloat16().logsumexp(-1) ** 2).mean(), "z-loss", ["softmax_in_bf16"], seed=seed
    )
    times = lambda gate_logits, num_experts, top_k: (1.003 * mixtral(gate_logits, num_experts, top_k)).bfloat16()
    expect_faults(times, kind, ["factor"], seed=seed)
    once = lambda gate_logits, num_experts, top_k: mixtral(gate_logits, num_experts, top_k).bfloat16()
    verdict = certify.certify(once, kind, seed=seed)
    assert certify.sentence(verdict) == f"right as {kind} within the rounding of loss to bfloat16"


@pytest.mark.parametrize("seed", range(4))
def test_no_other_fault_besides_bf16_has_that_name(seed):
    """The scores are in bf16. Besides, all tied experts are counted, P is over chosen experts, or K is a factor."""

    def all_tied(logits, top_k):
        chosen = logits >= logits.topk(top_k).values[:, -1:]
        return (
            logits.shape[-1] * (chosen.double().mean(0) / top_k * logits.bfloat16().softmax(-1).double().mean(0)).sum()
        )

    def chosen_alone(logits, top_k):
        p = logits.bfloat16().softmax(-1).double()
        chosen = torch.zeros_like(p).scatter(1, logits.topk(top_k).indices, 1.0)
        return logits.shape[-1] * (chosen.mean(0) / top_k * (p * chosen).mean(0)).sum()

    for loss in (
        all_tied,
        chosen_alone,
        lambda logits, top_k: top_k * of_scores(BF16["cast before"](logits), logits, top_k),
    ):
        assert "softmax_in_bf16" not in keys(certify.certify(loss, "load-balancing-olmoe", seed=seed))


def test_no_other_small_error_has_that_name():
    for loss in (
        lambda logits, top_k: 1.003 * others.one_layer(logits, top_k),
        lambda logits, top_k: of_scores(logits.softmax(-1) / (1 + 3e-3 * logits.sigmoid()), logits, top_k),
    ):
        assert keys(certify.certify(loss, "load-balancing-olmoe")) in ([], ["factor"])


def test_rounding_does_not_explain_everything():
    """A gradient that nearly cancels is changed by a share of its norm."""
    kind, g = KINDS["load-balancing-olmoe"], generator(0)
    x = Case(logits=balance.logits(g, 1, 512, 16), top_k=8, coefficient=0.01)
    for dtype, share, state in ((torch.float32, 0.003, "unknown"), (torch.bfloat16, 0.03, "right")):
        got = outputs(kind, x.to(dtype).to(torch.float32))
        noise = torch.randn(got["d_logits"].shape, generator=g)
        moved = got["d_logits"] + share * got["d_logits"].norm() * noise / noise.norm()
        verdict = judge(kind, [Dump("one", x.to(dtype), {**got, "d_logits": moved.to(dtype)})])
        assert verdict.state == state
    assert "right as load-balancing-olmoe in bfloat16, where d_logits lies off by" in certify.sentence(verdict)


def test_rounding_that_explains_too_much():
    """The gradient is of twelve tokens whose experts are nearly equal, in bf16."""
    kind, g = KINDS["z-loss"], generator(0)
    x = Case(logits=torch.randn(1, 12, 16, generator=g) * 1e-3 - torch.tensor(16.0).log(), coefficient=0.01)
    x = x.to(torch.bfloat16)
    got = {name: value.bfloat16() for name, value in outputs(kind, x.to(torch.float32)).items()}
    got["d_logits"] = got["d_logits"] * 1.3
    with pytest.raises(certify.CannotJudge, match="cannot be told: d_logits lies off by"):
        judge(kind, [Dump("one", x, got)])


def test_a_bias_moves_by_less_than_bf16_rounds():
    """An update has no products, so a change of a bias by a hundredth of its size is not rounding."""
    kind = KINDS["bias-update-sign"]
    for rate in (1e-3, 1e-5):
        x = Case(counts=torch.tensor([[3, 8, 1, 4]]), bias=torch.tensor([0.3, -0.2, 0.1, 0.4]), rate=rate)
        right = outputs(kind, x)["bias_after"]
        assert judge(kind, [Dump("one", x, {"bias_after": right.float()})]).state == "right"
        other = x.bias + rate * torch.tensor([1.0, 1.0, 1.0, -1.0])  # the bias of the busiest expert is not lowered
        assert judge(kind, [Dump("one", x, {"bias_after": other})]).exit_code, rate


def test_two_times_may_be_another_kind_or_plumbing():
    x = Case(logits=torch.randn(1, 64, 8, generator=generator(5)), top_k=2, coefficient=0.1)
    verdict = judge(KINDS["load-balancing-olmoe"], [Dump("one", x, outputs(KINDS["load-balancing-mixtral"], x))])
    assert verdict.exit_code == 1
    said = certify.sentence(verdict)
    assert said.startswith(
        "wrong as load-balancing-olmoe; these inputs do not tell apart: it is load-balancing-mixtral | "
    )
    assert "the loss is added twice" in said


def test_what_is_infinite_explains_nothing():
    """The mean of the chosen logits is infinite when the others are masked."""
    kind, x = KINDS["z-loss"], Case(logits=torch.randn(1, 64, 16, generator=generator(3)), top_k=2, coefficient=0.01)
    got = {name: 1.37 * value for name, value in outputs(kind, x).items()}
    assert keys(judge(kind, [Dump("one", x, got)])) == ["factor"]


def test_counts_shared_over_ranks_but_not_over_steps():
    """Tokens of rank 0 come first: f of step s is computed from micro-batches s and s + 3."""
    kind, g = KINDS["load-balancing-global"], generator(4)
    x = Case(logits=torch.randn(2, 60, 6, generator=g), top_k=2, coefficient=0.3, micro_batches=6, steps=3, ranks=2)
    leaf = x.logits.clone().requires_grad_()
    parts = leaf.unflatten(1, (2, 3, 10))
    of_step = lambda s: others.olmoe(tuple(torch.cat([layer[0, s], layer[1, s]]) for layer in parts), 2, 1.0)
    loss = 0.3 * sum(map(of_step, range(3))) / 3
    loss.backward()
    assert keys(judge(kind, [Dump("one", x, {"loss": loss.detach(), "d_logits": leaf.grad})])) == ["steps_apart"]


def test_ties_are_broken_in_any_usual_way():
    """The first, the last or torch.topk's of tied experts may be chosen. Other choices change much of the gradient."""
    kind, g = KINDS["load-balancing-olmoe"], generator(0)
    x = Case(logits=(torch.randn(2, 24, 6, generator=g) * 2).round(), top_k=2, coefficient=0.6)
    of = lambda scores: judge(kind, [Dump("ties", x, outputs(kind, x.but(indices=scores.topk(x.top_k).indices)))])
    for order in (torch.arange(6.0).flip(0), torch.arange(6.0), torch.zeros(6)):
        assert of(x.logits + order * 1e-3).state == "right"
    with pytest.raises(certify.CannotJudge, match="cannot be told: experts tie.* much of d_logits; give inputs whose"):
        of(x.logits + torch.rand(2, 24, 6, generator=g) * 1e-3)
    indices = x.logits.topk(x.top_k).indices
    indices[0] = x.logits[0].topk(x.top_k, largest=False).indices
    assert judge(kind, [Dump("ties", x, outputs(kind, x.but(indices=indices)))]).state == "unknown"


@pytest.mark.parametrize("seed", (503, 516, 0, 1))
def test_no_choice_among_tied_experts_is_wrong(seed):
    """Logits in bf16 are cast to float32. For some tokens the first of tied experts is chosen, for some the last: the
    switches cancel in the loss of all-last choices. Numbers that no choice gives are still wrong."""
    kind, g = KINDS["load-balancing-olmoe"], generator(seed)
    x = Case(logits=torch.randn(1, 128, 16, generator=g).bfloat16().float(), top_k=4)
    by_chance = x.logits + 1e-4 * torch.rand(x.logits.shape, generator=g)
    got, other = (outputs(kind, x.but(indices=one.topk(4).indices)) for one in (x.logits, by_chance))
    assert judge(kind, [Dump("topk", x, got)]).state == "right"
    with contextlib.suppress(certify.CannotJudge):  # where the choice changes much of the gradient
        assert judge(kind, [Dump("chance", x, other)]).state == "right"
    for factor in (1.02, 1.003):
        assert keys(judge(kind, [Dump("one", x, {name: factor * value for name, value in got.items()})])) == ["factor"]


def test_wrong_gradients_where_all_experts_tie():
    """Some are those of another choice among tied experts and are not judged. Of 3 d or -d there is no choice."""
    kind, x = KINDS["load-balancing-olmoe"], Case(logits=torch.zeros(1, 64, 8), top_k=2, coefficient=1.0)
    got = outputs(kind, x)
    d = got["d_logits"]
    assert judge(kind, [Dump("zero", x, got)]).state == "right"
    for other in (0 * d, d.roll(1, -1), torch.randn(1, 64, 8, generator=generator(0)) * 1e-3):
        with pytest.raises(certify.CannotJudge, match="cannot be told: experts tie"):
            judge(kind, [Dump("zero", x, {**got, "d_logits": other})])
    for other in (-d, 3 * d):
        assert judge(kind, [Dump("zero", x, {**got, "d_logits": other})]).exit_code == 1


def test_64_experts_and_8192_tokens_take_less_than_5_seconds():
    kind, x = KINDS["load-balancing-olmoe"], Case(logits=torch.randn(1, 8192, 64), top_k=8, coefficient=0.01)
    right = outputs(kind, x)
    for factor in (1.0, 1.37):
        begin = time.process_time()
        judge(kind, [Dump("many", x, {name: factor * value for name, value in right.items()})])
        assert time.process_time() - begin < 5


# ---- calls of a function ----


def test_why_no_form_of_the_logits_serves():
    """The reason is the error for all layers' logits, unless the error is that these are a tuple."""

    def stacked(router_logits, top_k, coefficient):
        raise ValueError(f"{len(torch.stack(tuple(router_logits)).shape)} axes")

    def one_layer(router_logits, top_k, coefficient):
        raise ValueError(f"{router_logits.dim()} axes")

    for loss, why in ((stacked, "3 axes"), (one_layer, "2 axes")):
        with pytest.raises(certify.CannotJudge, match=f"it raises ValueError: {why}"):
            certify.certify(loss, "load-balancing-olmoe")


def test_a_loss_that_takes_one_tensor_of_three_dimensions():
    """Switch's z-loss in Transformers takes [groups, tokens, experts]. The refusal names the setting that helps."""

    def z_loss(router_logits):
        groups, tokens, _ = router_logits.shape
        return router_logits.logsumexp(-1).square().sum() / (groups * tokens)

    with pytest.raises(certify.CannotJudge) as refusal:
        certify.certify(z_loss, "z-loss")
    first, *trace = str(refusal.value).splitlines()
    assert "3, got 2); it takes one tensor [L,T,n]: give --logits stack, in Python logits='stack'" in first and trace
    assert certify.certify(z_loss, "z-loss", logits="stack").state == "right"


def test_all_layers_in_a_dict():
    def loss(router_logits, top_k, coefficient):
        return {"loss": sum(others.one_layer(z, top_k) for z in router_logits) / len(router_logits) * coefficient}

    verdict = certify.certify(loss, "load-balancing-olmoe")
    assert verdict.state == "right" and not verdict.others


def test_eight_experts_inside():
    """The inputs have at most eight experts. They are made wider, because K = n would hide every fault."""

    def eight(logits, coefficient=1.0):
        return coefficient * others.one_layer(logits, 8)

    verdict = certify.certify(eight, "load-balancing-olmoe", fixed={"top_k": 8})
    assert verdict.state == "right" and {one.name for one in verdict.others} == {"load-balancing-switch"}
    assert certify.certify(eight, "load-balancing-olmoe", fixed={"top_k": 7}).state != "right"
    gate = lambda logits, bias: others.gate(logits, bias, 8, 1.0)
    assert certify.certify(gate, "gate-weights", fixed={"top_k": 8}).state == "right"


def of_two_positions(logits, top_k, /, coefficient):
    return coefficient * others.one_layer(logits, top_k)


def of_positions(logits, epsilon=1e-6, coefficient=1.0, rest=None, /):
    assert epsilon == 1e-6
    return coefficient * others.z(logits)


def of_float32(logits):
    assert logits.dtype is torch.float32
    return others.z(logits)


class Z(torch.nn.Module):
    def forward(self, coefficient, logits):
        return coefficient * others.z(logits)


def changed_and_returned(bias, counts, rate):
    others.update_bias(counts, bias, rate)
    return bias


@pytest.mark.parametrize(
    "function, kind",
    (
        (lambda logits, bias, top_k: others.gate(logits, bias, top_k, 1.0), "gate-weights"),
        (of_two_positions, "load-balancing-olmoe"),
        (of_positions, "z-loss"),
        (of_float32, "z-loss"),
        (torch.compile(Z(), backend="eager"), "z-loss"),
        (changed_and_returned, "bias-update-sign"),
    ),
)
def test_right_however_it_is_called(function, kind):
    certify.assert_right(function, kind)


def test_hidden_state_that_moves_little():
    calls = []

    def loss(router_logits, top_k, coefficient):
        calls.append(1)
        return (1 + 1e-4 * len(calls)) * others.olmoe(router_logits, top_k, coefficient)

    with pytest.raises(certify.CannotJudge, match="it depends on hidden state"):
        certify.certify(loss, "load-balancing-olmoe")


class Later:
    async def __call__(self, logits):
        return others.z(logits)


async def later(logits):
    return logits.sum()


class Unsaid(BaseException):
    def __str__(self):
        raise ValueError("no words")


def changes_logits(logits):
    with torch.no_grad():
        logits.mul_(2)
    return others.z(logits)


def changes_counts(bias, counts, rate):
    others.update_bias(counts, bias, rate)
    counts.zero_()


def changes_bias_otherwise(bias, counts, rate):
    new = bias.clone()
    others.update_bias(counts, new, rate)
    bias.zero_()
    return new


def any_arguments(*args, **kwargs):
    return others.z(*args, **kwargs)


def unsigned(logits):
    return others.z(logits)


unsigned.__signature__ = 3


def with_short_M(router, w_gate, delta, alpha, weight):
    return {"loss": coupling.papers(router, w_gate, delta, alpha, weight), "M": torch.ones(3)}


def indices_beyond(logits, bias, top_k):
    return torch.ones(len(logits), top_k), torch.full((len(logits), top_k), 99)


Z_LOSS, OLMOE, GATE = "z-loss", "load-balancing-olmoe", "gate-weights"


@pytest.mark.parametrize(
    "function, kind, words",
    (
        (later, Z_LOSS, "it is a coroutine (async def), must be a function"),
        (Later(), Z_LOSS, "it is a coroutine (async def), must be a function"),
        (unsigned, Z_LOSS, "its arguments cannot be read; wrap it in a function"),
        (others.raises, Z_LOSS, "it raises KeyError: 'boom'"),
        (others.raising(SystemExit(0)), Z_LOSS, "it raises SystemExit: 0"),
        (others.raising(Unsaid()), Z_LOSS, "it raises Unsaid: "),
        (others.backward_raises, Z_LOSS, "its backward pass raises KeyError: 'backward'"),
        (lambda logits: None, Z_LOSS, "it returns None, must return the loss"),
        (lambda logits: others.z(logits).item(), Z_LOSS, "it returns a float, must return the loss"),
        (lambda logits: (others.z(logits), 1), Z_LOSS, "it returns a tuple, must return the loss"),
        (lambda logits: logits.logsumexp(-1), Z_LOSS, "it returns a tensor [40] of torch.float"),
        (lambda logits: others.z(logits).long(), Z_LOSS, "it returns a tensor [] of torch.int64, must return the loss"),
        (lambda logits: others.z(logits).to("meta"), Z_LOSS, "it returns a tensor [] of torch.float32, meta, must"),
        (
            lambda logits: others.z(logits).reshape(1).to_sparse(),
            Z_LOSS,
            "it returns a tensor [1] of torch.float32, sp",
        ),
        (lambda logits: {"z_loss": others.z(logits)}, Z_LOSS, "it returns a dict with z_loss, must have loss"),
        (with_short_M, "erc", "it returns as M a tensor [3] of torch.float32, must be a tensor [5, 5]"),
        (
            lambda router, w_gate, down, alpha: {"loss": router.sum(), "delta": [1.0]},
            "erc-latent",
            "it returns as delta a list, must be a tensor [5, 24]",
        ),
        (lambda logits: others.z(logits) * float("nan"), Z_LOSS, "its loss has a NaN or an infinite number"),
        (lambda logits: others.z(logits) * torch.rand(()), Z_LOSS, "depends on hidden state or on random numbers"),
        (changes_logits, Z_LOSS, "it changes its input logits"),
        (changes_counts, "bias-update-sign", "it changes its input counts"),
        (changes_bias_otherwise, "bias-update-sign", "it changes its input bias"),
        (indices_beyond, GATE, "which are no indices and weights [T,K]: index 99 is out of bounds"),
        (
            lambda logits, bias, top_k: ("weights", 3),
            GATE,
            "returns a str and an int, which are no indices and weights",
        ),
        (lambda logits, temperature: others.z(logits), Z_LOSS, "temperature is none of"),
        (lambda a, b: a.sum(), "erc", "a is none of router, w_gate"),
        (lambda logits, router_logits: 0, Z_LOSS, "logits and router_logits are two names of one input; wrap it in a"),
        (any_arguments, Z_LOSS, "its arguments are (*args, **kwargs), which do not say what it takes; wrap it in a"),
        (any_arguments, Z_LOSS, "function of these names, as\n\ndef wrapped(logits):"),
        (
            lambda logits: others.one_layer(logits, 2),
            OLMOE,
            "it takes no top_k; say which it has inside, as --set top_k=",
        ),
        (
            lambda router, w_gate, down, latent_norm, alpha: 0,
            "erc-latent",
            "it takes no latent_eps; say which it has inside, as --set latent_eps=",
        ),
        (
            lambda router, w_gate, delta, alpha: 0,
            "erc-latent",
            "it takes no down; wrap it in a function of these names",
        ),
        (others.z, "no-such-loss", "there is no kind of loss no-such-loss"),
    ),
)
def test_what_cannot_be_judged(function, kind, words):
    with pytest.raises(certify.CannotJudge, match=re.escape(words)):
        certify.certify(function, kind)


# ---- settings ----


@pytest.mark.parametrize("kind", ("z-loss", None))
@pytest.mark.parametrize(
    "settings, words",
    (
        ({"dtype": torch.int32}, "dtype is torch.int32, must be one of None, torch.float32, "),
        ({"seed": 1.5}, "seed is 1.5, must be a whole"),
        ({"logits": "foo"}, "logits is 'foo', must be one of None, tuple, stack, one"),
        ({"seed": -1}, "seed is -1, must be"),
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
        (others.two_inside, "load-balancing-olmoe", {"top_k": "x"}, "top_k is 'x', must be a number"),
        (others.olmoe, "load-balancing-olmoe", {"top_k": 2}, "it takes top_k itself"),
        (coupling.without_both, "erc", {"alpha": [1.0, 2.0]}, "alpha is a tensor \\[2\\], must be one number"),
    ),
)
def test_inputs_inside_that_cannot_be(function, kind, fixed, words):
    with pytest.raises(certify.CannotJudge, match=words):
        certify.certify(function, kind, fixed=fixed)


def test_nothing_to_judge():
    with pytest.raises(certify.CannotJudge, match="there is no dump to judge"):
        judge(KINDS["z-loss"], [])


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
    with pytest.raises(ValueError, match="erc-latent needs down"):
        certify.REFERENCES["erc-latent"](certify.Case(router=torch.ones(2, 3), w_gate=torch.ones(2, 4, 3)))
    with pytest.raises(ValueError, match="erc needs w_gate"):
        certify.REFERENCES["erc"](certify.Case(router=torch.ones(2, 3)))


def test_the_kinds_that_fit():
    assert certify.fitting(others.mixtral) == ["load-balancing-mixtral"]
    assert certify.fitting(others.one_layer) == ["load-balancing-switch", "load-balancing-olmoe"]


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
    value = float(certify.REFERENCES["z-loss"](certify.Case(logits=torch.zeros(2, 5, 8))))
    assert value == pytest.approx(torch.tensor(8.0).log().item() ** 2)


def test_load_balancing_lies_between_0_and_n_over_K_and_below_balance_too():
    """60 of 100 tokens slightly prefer expert 1, and 40 strongly prefer expert 2. Expert 1 has the lower mean score."""
    reference = certify.REFERENCES["load-balancing-olmoe"]
    scores = torch.tensor([[0.51, 0.49]] * 60 + [[0.01, 0.99]] * 40)
    assert float(reference(certify.Case(logits=scores.log()[None], top_k=1))) == pytest.approx(0.924)
    for x in KINDS["load-balancing-olmoe"].cases(0, 0).values():
        assert 0 <= float(reference(x)) / x.times <= x.logits.shape[-1] / x.top_k


# ---- the command ----


@pytest.mark.parametrize(
    "function, sentence, traceback",
    (
        ("losses_of_routers:raises", "it raises KeyError: 'boom'\n\nTraceback", True),
        ("losses_of_routers:backward_raises", "its backward pass raises KeyError: 'backward'\n\nTraceback", True),
        ("losses_of_routers:absent", "losses_of_routers has no absent", False),
        ("losses_of_routers:number", "number is 3, which cannot be called", False),
        ("losses_of_coupling:Module", "Module is a class; name a function, or an instance", False),
    ),
)
def test_what_the_command_cannot_judge(function, sentence, traceback, capsys):
    assert command.main([function, "--loss", "z-loss"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"couplet.certify: {function}: {sentence}")
    assert ("Traceback" in said) == traceback and "couplet/" not in said  # a traceback shows the callable's part alone


@pytest.mark.parametrize(
    "words, sentence",
    (
        ("losses_of_routers:two_inside --set top_k=9999", "top_k is 9999, which is more than 1024"),
        ("losses_of_routers:two_inside --set top_k=0", "must be a whole number from 1"),
        ("losses_of_routers:two_inside --set mask=1", "mask is a tensor, which cannot be set"),
        ("losses_of_routers:two_inside --json no/folder/x.json", "there is no folder no/folder"),
        ("losses_of_routers:two_inside --set top_k=2 --json .", ".: Is a directory"),
        (f"losses_of_routers:z --seed {'9' * 20}", "must be a whole number from 0 to 2^63 - 1"),
        ("losses_of_coupling:ours --device meta", "device meta: "),
        ("losses_of_routers:z losses_of_routers:z", "of several all must be dumps"),
        ("a_dump.safetensors --set top_k=1", "--set is not for a dump"),
        ("losses_of_routers:raises", "it raises KeyError"),
        ("no_such_module:loss", "no_such_module cannot be imported: ModuleNotFoundError: No module named"),
        ("losses_of_coupling", "losses_of_coupling names no callable; write my_module:my_loss"),
        ("losses_of_coupling:ours --alpha 1", "it takes alpha itself; --set alpha is for one that does not"),
        ("losses_of_coupling:draws_and_keeps", "it gives other numbers when it is called with the same inputs again"),
    ),
)
def test_what_cannot_be_run(words, sentence, capsys):
    loss = ["--loss", "load-balancing-olmoe"] if "two_inside" in words else []
    assert command.main([*words.split(), *loss]) == 2
    assert sentence in capsys.readouterr().err


def test_an_interruption_is_no_verdict(capsys, monkeypatch):
    assert command.main(["losses_of_routers:interrupted"]) == 130
    assert "couplet.certify: interrupted; there is no verdict\n" in capsys.readouterr().err
    monkeypatch.setattr(certify, "judge", lambda *_: 1 / 0)
    assert command.main(["losses_of_coupling:ours"]) == 2
    assert "losses_of_coupling:ours: judging it raises ZeroDivisionError: division by zero\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ("without_weight", "without_both --alpha 0.6", "without_both --set alpha=0.6", "module")
)
def test_a_coupling_loss_without_alpha_or_weight(words, capsys):
    name, *settings = words.split()
    assert command.main([f"losses_of_coupling:{name}", *settings]) == 0, capsys.readouterr()


def test_a_function_in_a_file(capsys):
    assert command.main([f"{coupling.__file__}:merged"]) == 1
    assert "over gate and up together" in capsys.readouterr().out.splitlines()[0]


def test_the_command(tmp_path, capsys):
    to = tmp_path / "verdict.json"
    assert command.main(["losses_of_routers:softmax_twice", "--loss", "load-balancing-olmoe", "--json", str(to)]) == 1
    assert "softmax is taken twice" in capsys.readouterr().out.splitlines()[0]
    said = json.loads(to.read_text())
    assert said["verdict"] == "fault" and said["faults"][0]["key"] == "softmax_twice" and said["version"] == 2
    assert command.main(["losses_of_routers:mixtral"]) == 0
    assert "right as load-balancing-mixtral" in capsys.readouterr().out


def test_what_inputs_cannot_show_is_computed_on_demand(monkeypatch, capsys):
    def never(verdict):
        raise RuntimeError("it was computed")

    monkeypatch.setattr(certify.Verdict, "untold", property(never))
    words = ["losses_of_routers:z", "--loss", "z-loss"]
    assert (
        command.main(words) == 0 and command.main([*words, "--details"]) == command.main([*words, "--json", "-"]) == 2
    )


def test_without_a_kind_all_that_fit_are_written(capsys):
    assert command.main(["losses_of_routers:one_layer", "--details"]) == 0
    said = capsys.readouterr().out
    assert "right as load-balancing-olmoe; these inputs do not tell it from load-balancing-switch" in said
    assert "right as load-balancing-switch; these inputs do not tell it from load-balancing-olmoe" in said
    assert "d_logits" in said
    assert command.main(["losses_of_routers:one_layer", "--json", "-"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in both] == ["load-balancing-switch", "load-balancing-olmoe"]
    assert both[0]["right_as"] == ["load-balancing-olmoe"] and both[0]["faults"] == []


def test_json_alone_on_standard_output(capsys):
    assert command.main(["losses_of_routers:z_prints", "--loss", "z-loss", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["kind"] == "z-loss" and "a word of mine" in said.err


def test_the_command_in_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "couplet.certify", "losses_of_routers:z", "--loss", "z-loss", "--details"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0 and "right as z-loss" in done.stdout and "rounding" in done.stdout, done.stderr


# ---- tables ----


def test_tables_of_kinds_and_faults():
    assert list(ABOUT) == list(KINDS)
    for kind in KINDS.values():
        assert all(fault.sentence and fault.remedy for fault in kind.faults)
    used = {(fault.key, fault.sentence) for kind in KINDS.values() for fault in kind.faults}
    assert {(row["key"], row["fault"]) for row in FAULTS} <= used


def test_the_page_has_the_tables(capsys):
    assert command.main(["--list"]) == 0
    assert (PAGES / "losses.md").read_text().endswith(capsys.readouterr().out)


def test_the_names_of_arguments_on_the_page():
    text = (PAGES / "losses.md").read_text()
    for name in {name for kind in KINDS.values() for name in kind.inputs if not kind.is_coupling}:
        assert f"`{name}`" in text, name


def test_the_faults_of_the_coupling_loss_on_its_page():
    text = (PAGES / "certify.md").read_text()
    for fault in (*KINDS["erc"].faults, *KINDS["erc-latent"].faults):
        assert f"`{fault.key}`" in text, fault.key
