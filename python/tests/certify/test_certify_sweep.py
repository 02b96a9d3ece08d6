"""A sample of tests/certify/sweep_certify.py."""

import random

import pytest
import right_ways
import sweep_certify
import torch
from couplet.certify import _fits, _judge
from couplet.certify._fits import Dump
from couplet.certify._judge import is_right, judge
from couplet.certify._report import sentence
from couplet.certify.kinds import KINDS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", KINDS)
def test_no_false_alarm(name):
    assert sweep_certify.false_alarms(KINDS[name], 10, seed=1) == ([], [])
    assert len(sweep_certify.right_ways.of(KINDS[name])) >= 5


@pytest.mark.parametrize(
    "name, key",
    (
        ("load-balancing-olmoe", "softmax_twice"),
        ("load-balancing-olmoe", "softmax_over_chosen"),
        ("load-balancing-deepseek", "epsilon"),
        ("z-loss", "of_logits"),
        ("simbal", "squared"),
        ("gate-weights", "bias_in_weight"),
    ),
)
def test_faults_are_named(name, key):
    kind = KINDS[name]
    hits, told, right, rest = sweep_certify.named(kind, [kind.fault(key)], torch.float32, 3, seed=2)
    assert hits == told and right == rest and told + rest == 3


@pytest.mark.parametrize("state", ("right", "unknown", "unclear", "fault"))
def test_a_judge_that_names_nothing_has_no_hits(state, monkeypatch):
    kind = KINDS["load-balancing-olmoe"]
    monkeypatch.setattr(sweep_certify, "judge", lambda *_: _judge.Verdict(kind, state, [_fits.Supposed()]))
    assert sweep_certify.named(kind, [kind.fault("softmax_twice")], torch.float32, 3, seed=2)[:2] == (0, 3)


@pytest.mark.parametrize("number", (824, 971))
def test_ties_in_several_layers(number):
    """What fits the sums over layers best is outside of what a layer's ties allow: fit and bounds take turns."""
    kind = KINDS["load-balancing-mixtral"]
    x = right_ways.random_case(kind, number)
    for way in right_ways.of(kind):
        assert is_right(kind, [Dump("tied", x, right_ways.outputs_of(way, kind, x))])


@pytest.mark.parametrize("name", [name for name in KINDS if "balancing" in name or name == "z-loss"])
def test_looks_at_some_tokens_change_no_verdict(name, monkeypatch):
    kind, chance = KINDS[name], random.Random(3)
    dumps = []
    for k, fault in enumerate(kind.faults[:8]):
        x = right_ways.random_case(kind, 50 + k, plain=True)
        x = x.but(logits=(x.logits * 2).round()) if k % 2 else x
        if not fault.is_idle(x):
            dumps.append(sweep_certify.of_fault(kind, x, [fault], torch.float32, chance)[0])
    whole = [sentence(judge(kind, [dump])) for dump in dumps]
    monkeypatch.setattr(_fits, "MANY", 1)
    monkeypatch.setattr(_fits, "EVERY", 3)
    assert [sentence(judge(kind, [dump])) for dump in dumps] == whole
