"""The comparison of runs: settings, groups, warnings, the point of comparison, figures at this point, and pairs.
Expected values are computed in this file."""

import json
import math
import random

import numpy as np
import pytest
from couplet.compare import _documents, _json, _tables
from couplet.compare._comparison import Comparison
from couplet.compare._groups import NoSetting
from couplet.compare._runs import read_runs
from couplet.compare._statistics import quantile, spread
from couplet.report import _resolve
from invented import SIX, Invented, compared, figure

VANILLA, ERC = SIX[0], SIX[4]  # a pair


def members(comparison):
    return [group.members for group in comparison.groups]


def told(comparison, part):
    return any(part in sentence for sentence in comparison.warnings)


# ---- settings and groups ----


def test_runs_of_other_seeds_are_a_group(tmp_path):
    c = compared(tmp_path, *SIX)
    assert [(group.name, group.members) for group in c.groups] == [("vanilla", [0, 1, 2]), ("erc", [3, 4, 5])]
    assert c.baseline == 0 and c.grouped and not c.warnings
    assert figure(c, "val_loss").spreads[1] == pytest.approx(spread([one.val(20) for one in SIX[3:]]), 1e-12)


@pytest.mark.parametrize(
    "one, other, groups",
    [
        ("log:\n    every: 10\ncompute:\n    threads: 1\n", "log:\n    every: 20\ncompute:\n    threads: 2\n", 1),
        ("", "eval:\n    tasks: [boolq]\n    tasks_every: 10\n", 1),
        ("", "    noise: bounded\n", 1),  # the default
        ("", "    noise: none\n", 2),
        ("z:\n    weight: 1e-3\north:\n    words: []\n", "z:\n    weight: 0.001\north:\n    words:\n", 1),
        ("balance:\n    scope: auto\n", "balance:\n    scope: micro\n", 1),  # settings of older versions
        ("compute:\n    dtype: f32\n", "compute:\n    dtype: bf16\n", 2),
    ],
)
def test_what_splits_a_group(one, other, groups, tmp_path):
    c = compared(tmp_path, SIX[0]._replace(more=one), SIX[1]._replace(more=other))
    assert len(c.groups) == groups
    roles = [setting.role for setting in c.settings.all.values()]
    assert roles == sorted(roles, key=["matters", "seed", "bookkeeping"].index)


def test_groups_by_a_setting_are_in_its_order(tmp_path):
    runs = [Invented("x", 0, 1, 10), Invented("y", 0, 1, 2), Invented("z", 1, 0.5, 2)]
    c = compared(tmp_path, *runs, by="erc.alpha")
    assert [(g.place, g.name) for g in c.groups] == [(2, "erc.alpha 2"), (10, "erc.alpha 10")] and c.baseline == 1
    assert told(c, "erc.alpha 2 differ in more than their seeds: erc.weight")
    with pytest.raises(NoSetting, match="did you mean erc.alpha?"):
        Comparison(c.runs, "erc.alpa")


def test_groups_of_one_stem_have_other_names(tmp_path):
    names = ("erc-s0", "erc-s1", "erc-s2", "erc-s3", "erc")
    c = compared(tmp_path, *(ERC._replace(name=name, alpha=i // 2, seed=i) for i, name in enumerate(names)))
    assert [group.name for group in c.groups] == ["erc", "erc [2]", "erc [3]"]
    text = "\n".join(_tables.text(c))
    assert "erc [2] (2 runs)" in text and "erc [3] (1 run)" in text


@pytest.mark.parametrize(
    "by, more, groups",
    [
        ("erc.alpha", "", [("off", [0, 1], None), ("erc.alpha 0.5", [3], 0.5), ("erc.alpha 1", [2], 1)]),
        ("erc.weight", "", [("erc.weight 0", [0, 1], 0), ("erc.weight 1", [2, 3], 1)]),
        ("model.vocab_size", "", [("model.vocab_size 300", [0, 1, 2, 3], 300)]),
    ],
)
def test_a_loss_that_is_off_is_a_group(by, more, groups, tmp_path):
    """Runs without the loss are one group, whatever their alphas are. Different alphas give no warning."""
    runs = [VANILLA, SIX[1]._replace(alpha=0.7), ERC, ERC._replace(name="half", seed=1, alpha=0.5)]
    c = compared(tmp_path, *runs, by=by)
    found = [(g.name, g.members, None if math.isnan(g.place) else g.place) for g in c.groups]
    assert found == groups
    if by == "erc.alpha":
        assert not c.warnings
        at_end = [chart for chart in _resolve.charts_of(_json.as_json(c)) if chart["section"] == "end"]
        rules = [[s["name"] for s in chart["series"] if s.get("style") == "rule"] for chart in at_end]
        assert rules and rules[0] == ["off"] and at_end[0]["series"][0]["x"] == [0.5, 1]


def test_a_run_without_a_router_has_no_coupling_loss(tmp_path):
    aoe = VANILLA._replace(name="aoe", weight="unset", more="model:\n    router: aoe\n")
    c = compared(tmp_path, aoe, ERC._replace(weight="unset"), by="erc.alpha")
    assert [group.name for group in c.groups] == ["off", "erc.alpha 1"]


def test_groups_are_of_the_precision_that_runs_had(tmp_path):
    """Recorded settings may be auto or the requested precision. Lines have the actual precision."""
    folders = [one.write(tmp_path) for one in SIX[:3]]
    for folder, dtype in zip(folders, ("f32", "bf16", None)):
        config = (folder / "config.yaml").read_text()
        (folder / "config.yaml").write_text(config + "compute:\n    dtype: auto\n")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line | ({"made_with": {"dtype": dtype}} if dtype else {}) for line in lines]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    c = Comparison(read_runs([str(folder) for folder in folders]))
    assert members(c) == [[0], [1], [2]] and c.settings.all["compute.dtype"].texts == ["f32", "bf16", "auto"]
    c = Comparison(read_runs([str(folder) for folder in folders]), "erc.alpha")
    assert [group.name for group in c.groups][:2] == ["off", "off, bf16"]


@pytest.mark.parametrize(
    "change, n", [({}, 1), ({"last": 12}, 1), ({"shift": 0.001}, 2), ({"seed": 9}, 2), ({"alpha": 2}, 2)]
)
def test_a_copy_of_a_run_counts_once(change, n, tmp_path):
    """A copy counts once, also with fewer steps. Runs with other losses, seeds or settings are other runs."""
    c = compared(tmp_path, VANILLA._replace(name="copy", **change), VANILLA, SIX[1])
    assert len(c.runs) == 1 + n and figure(c, "val_loss").spreads[c.group_of[n]].n in (1, 2, 3)
    sentence = f"{tmp_path / 'copy'} are the same run, with equal settings, seed and losses: it counts once"
    other = f"{tmp_path / 'vanilla-s0'} are the same run, with equal settings, seed and losses: it counts once"
    assert (told(c, sentence) or told(c, other)) == (n == 1)
    assert c.point == 2000  # the longer run stays


# ---- content ----


@pytest.mark.parametrize(
    "train, starts, groups, pairs, warning",
    [
        (("[/a/corpus/docs]", "[/b/corpus/docs/]"), (None, None), 1, 1, ""),
        (
            ("[/a/corpus/docs]", "[/a/other/docs]"),
            (None, None),
            2,
            0,
            "differ in their training data (data.train: [corpus/",
        ),
        (("[/a/x/y]", "[/b/z/w]"), ({"data": "d"}, {"data": "d"}), 1, 1, ""),
        (("[/a/x]", "[/a/x]"), ({"data": "d"}, {"data": "e"}), 2, 0, "([a/x] (d) and [a/x] (e))"),
        (("[/a/x]", "[/a/x]"), ({"held_out": "d"}, {"held_out": "e"}), 2, 0, "differ in their validation data"),
        (("[/a/x]", "[/a/x]"), ({"held_out": "d"}, None), 1, 1, ""),
    ],
)
def test_content_counts_before_paths(train, starts, groups, pairs, warning, tmp_path):
    runs = [one._replace(train=t, start=s) for one, t, s in zip((VANILLA, ERC._replace(weight=0)), train, starts)]
    c = compared(tmp_path, *runs)
    assert len(c.groups) == groups
    assert not c.warnings if not warning else warning.split("(data.train: ")[-1].strip("()") in c.warnings[0]
    if groups == 2:
        assert len(c.pairings[0].pairs) == pairs


def test_content_counts_between_those_that_know_it(tmp_path):
    """One of three runs has no start.json. The contents of the others are still compared."""
    starts = (None, {"held_out": "x"}, {"held_out": "y"})
    c = compared(tmp_path, *(one._replace(start=start) for one, start in zip(SIX, starts)))
    assert members(c) == [[0, 1], [2]]  # run 1 equals run 0 by the path
    assert c.warnings[0].startswith("vanilla-s1 and vanilla-s2 differ in their validation")


# ---- the point, and figures there ----


def test_the_point_is_the_last_that_all_evaluated(tmp_path):
    a, b = VANILLA, SIX[3]._replace(last=13)
    c = compared(tmp_path, a, b)
    assert (c.point_kind, c.point) == ("evaluated", 1200)
    for name, run, want in (
        ("val_loss", 0, a.val(12)),
        ("val_loss", 1, b.val(12)),
        ("eps_mean", 1, (b.eps(12, 0) + b.eps(12, 1)) / 2),
        ("loss", 0, (a.loss(11) + a.loss(12)) / 2),  # the mean over the last tenth: 1080 < tokens <= 1200
        ("memory_bytes", 0, 6 << 20),  # over the whole run
        ("tokens_per_s", 1, 1210),
        ("tokens", 1, 1300),
    ):
        assert figure(c, name).values[run] == pytest.approx(want, 1e-12), name
    assert figure(c, "val_loss", "b").values[1] == pytest.approx(b.val(12) + 0.5, 1e-12)
    assert math.isnan(figure(c, "grad_norm").values[0])


def test_without_evaluations_the_last_that_all_logged(tmp_path):
    c = compared(tmp_path, VANILLA, SIX[3]._replace(last=13, no_eval=True))
    assert (c.point_kind, c.point) == ("logged", 1300) and told(c, "at which every run was evaluated")
    a, b = VANILLA.val(12), VANILLA.val(14)
    assert figure(c, "val_loss").values[0] == pytest.approx((a + b) / 2, 1e-12)
    assert figure(c, "val_loss", "b").values[0] == pytest.approx((a + b) / 2 + 0.5, 1e-12)
    assert math.isnan(figure(c, "val_loss").values[1])


def test_without_a_common_line_each_ones_last(tmp_path):
    one, other = VANILLA.write(tmp_path), SIX[3].write(tmp_path)
    (other / "config.yaml").write_text("data:\n    batch_tokens: 130\ntrain:\n    seed: 0\n")
    (other / "metrics.jsonl").write_text(
        '{"step":1,"tokens":130,"loss":3}\n{"step":2,"tokens":260,"loss":2,"val_loss":2.5}\n'
    )
    c = Comparison(read_runs([str(one), str(other)]))
    assert (c.point_kind, c.point) == ("last", 260) and told(c, "at which every run has a line")
    assert c.line(0).step == c.line(1).step == 2
    assert figure(c, "loss").values == pytest.approx([VANILLA.loss(2), 2], 1e-12)  # from each run's last line
    a, b = VANILLA.val(2), VANILLA.val(4)  # 260 lies between the evaluations at 200 and 400
    assert figure(c, "val_loss").values == pytest.approx([a + (b - a) * 60 / 200, 2.5], 1e-12)
    assert "validation loss linear between two evaluations" in c.point_words()


def test_a_run_that_has_just_begun_is_listed(tmp_path):
    """The run is the first of its group and of all runs, and does not change the comparison of the others."""
    c = compared(tmp_path, SIX[0]._replace(last=0), SIX[1], SIX[3], SIX[4]._replace(last=0))
    assert (c.point_kind, c.point, len(c.groups)) == ("evaluated", 2000, 2)
    assert math.isnan(figure(c, "val_loss").values[0]) and math.isnan(c.speeds[0])
    assert figure(c, "val_loss").spreads[0].mean == pytest.approx(SIX[1].val(20), 1e-12)
    assert c.pairings[0].pairs == []  # erc-s0 would be the partner of vanilla-s0
    text = "\n".join(_tables.text(c))
    for part in ("no step logged yet", "(n = 1)", "n: so many runs of the group have the figure."):
        assert part in text
    found = _json.as_json(c)["runs"][0]
    assert found["step"] is None and found["in_progress"]
    alone = Comparison(c.runs[:1])
    assert alone.point_kind == "none" and "no step logged yet" in "\n".join(_tables.text(alone))


def test_equal_time_is_between_evaluations(tmp_path):
    """Medians are 1010 and 1110 tokens/s. The faster run reaches 2000 tokens first."""
    c = compared(tmp_path, VANILLA, SIX[5])
    assert c.seconds == pytest.approx(2000 / 1110, 1e-12)
    step = 2000 / 1110 * 1010 / 100
    low = int(step / 2) * 2
    a, b = VANILLA.val(low), VANILLA.val(low + 2)
    assert figure(c, "val_loss_equal_time").values == pytest.approx([a + (b - a) * (step - low) / 2, SIX[5].val(20)])


def test_damage_is_told(tmp_path):
    folder = VANILLA.write(tmp_path)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step":\n{"step":20,"tokens":2000,"loss":2,"val_loss":1}\n{')
    c = Comparison(read_runs([str(folder), str(folder) + "/"]))
    assert told(c, "2 damaged lines of its metrics were passed over") and told(c, "1 step has several lines")
    assert told(c, "are the same folder: it counts once") and figure(c, "val_loss").values == [1]


# ---- pairs ----


def test_pairs_share_their_seed(tmp_path):
    """vanilla-s0 is paired with erc-s0, and so on. The losses of a pair differ by their shifts."""
    c = compared(tmp_path, *SIX)
    (pairing,) = c.pairings
    assert [(pair.base, pair.other) for pair in pairing.pairs] == [(0, 4), (1, 5), (2, 3)]
    want = [-0.04, 0.01, -0.03]
    assert [pair.difference for pair in pairing.pairs] == pytest.approx(want, 1e-9)
    sd = spread(want).sd
    assert pairing.spread == pytest.approx(spread(want), 1e-9)
    assert pairing.half == pytest.approx(4.30265272974946 * sd / math.sqrt(3), 1e-9)
    assert pairing.detectable == pytest.approx(3.2640435496995703 * sd, 1e-6)
    assert c.conclusion == [
        "erc against vanilla, 3 pairs: validation loss -0.0200 nats [-0.0857, +0.0457]: no difference is shown; the smallest "
        "that could be seen: 0.0864."
    ]
    text = _tables.text(c)
    assert text[0] == c.conclusion[0] and text[2].startswith("Validation loss, difference to vanilla")
    points = c.over_tokens(pairing)
    assert [point[0] for point in points] == [200.0 * i for i in range(1, 11)]
    assert points[3] == pytest.approx((800, -0.02, -0.02 - pairing.half, -0.02 + pairing.half), 1e-9)
    chart = _resolve.charts_of(_json.as_json(c))[0]
    assert chart["id"] == "validation-loss-difference" and chart["series"][1]["name"] == "vanilla"
    assert (
        chart["series"][0]["low"] == pytest.approx([-0.02 - pairing.half] * 10, 1e-9)
        and chart["series"][0]["group"] == 1
    )


@pytest.mark.parametrize(
    "runs, sentence",
    [
        ((VANILLA, ERC), "erc-s0 against vanilla-s0, 1 pair: validation loss -0.0400 nats: no interval of one pair"),
        ((VANILLA, SIX[5]), "erc-s1 against vanilla-s0, 0 pairs of the same seed and data: no difference can be told."),
        (
            (*SIX[:2], ERC, SIX[5]._replace(shift=-0.0305)),
            "2 pairs: validation loss -0.0403 nats [-0.0434, -0.0371]: better.",
        ),
        (
            (ERC, SIX[5]._replace(shift=-0.0305), *SIX[:2]),
            "2 pairs: validation loss +0.0403 nats [+0.0371, +0.0434]: worse.",
        ),
    ],
)
def test_the_conclusion(runs, sentence, tmp_path):
    c = compared(tmp_path, *runs)
    assert len(c.conclusion) == 1 and sentence in c.conclusion[0], c.conclusion


@pytest.mark.parametrize(
    "more, pairs", [("data2:\n    x: 1\n", 1), ("data:\n    seed: 5\n", 0), ("data:\n    eos: 5\n", 0)]
)
def test_the_order_must_agree(more, pairs, tmp_path):
    c = compared(tmp_path, VANILLA._replace(more=more), ERC)
    assert len(c.pairings[0].pairs) == pairs


# ---- documents and questions ----


def documents(n, nll, first=0, size=lambda i: 100 + i):
    return [
        {"source": "ab"[i % 2], "id": f"d{i}" if i % 3 else i, "bytes": size(i), "tokens": 30, "nll": nll(i)}
        for i in range(first, first + n)
    ]


def put(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))


def with_files(tmp_path, runs, name, values):
    folders = [one.write(tmp_path) for one in runs]
    for folder, value in zip(folders, values):
        if value is not None:
            put(folder, name, value)
    return Comparison(read_runs([str(folder) for folder in folders]))


def test_bits_per_byte_are_of_the_same_documents(tmp_path):
    files = [
        {"step": 20, "window": 8, "documents": documents(*of)}
        for of in ((20, lambda i: 50 + i), (20, lambda i: 40 + 2 * i), (20, lambda i: 60, 3), (20, lambda i: 55))
    ]
    c = with_files(tmp_path, [SIX[0], SIX[1], SIX[4], SIX[5]], "documents.json", files)
    found = c.pairings[0].documents
    assert (found.n_pairs, found.step, found.only_base, found.only_other) == (2, 20, 3, 3)
    for s, source in zip(found.sets, (None, "a", "b")):
        chosen = [i for i in range(3, 20) if source is None or "ab"[i % 2] == source]
        size = sum(100 + i for i in chosen)
        base, other = sum(90 + 3 * i for i in chosen) / 2, sum(115 for _ in chosen) / 2
        assert (s.source, s.n, s.bytes) == (source, len(chosen), size)
        assert (s.base, s.other) == pytest.approx((base / math.log(2) / size, other / math.log(2) / size), 1e-12)
        assert s.low < s.difference < s.high


def test_the_bootstrap_is_near_the_analytic_interval():
    draw = random.Random(1)
    size = np.full(400, 100.0)
    delta = np.array([draw.gauss(1, 5) for _ in size])
    low, high = _documents.interval(delta, size, 0)
    sd = delta.std(ddof=1) / 100 / math.sqrt(400)
    assert high - low == pytest.approx(2 * 1.96 * sd, 0.1) and low < delta.mean() / 100 < high
    assert (low, high) == _documents.interval(delta, size, 0) != _documents.interval(delta, size, 1)


def philox(counter):
    """Returns Philox4x32-10 of the key 0, computed one number at a time."""
    c, k0, k1, mask = list(counter), 0, 0, 0xFFFFFFFF
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k0, q & mask, p >> 32 ^ c[3] ^ k1, p & mask]
        k0, k1 = k0 + 0x9E3779B9 & mask, k1 + 0xBB67AE85 & mask
    return c


def test_the_draws_are_those_of_the_library():
    """The values are Salmon et al.'s known answer for counter and key 0, and draws computed one by one."""
    assert philox((0, 0, 0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    n, layer = 6, 3
    delta, size, drawn = np.arange(n) ** 2.0, np.arange(n) + 1.0, []
    for step in range(_documents.RESAMPLES):
        four = [x for block in range(2) for x in philox((block, 0, step, 8 | layer << 8))]
        at = [x * n >> 32 for x in four[:n]]
        drawn.append(delta[at].sum() / size[at].sum())
    want = quantile(drawn, 0.025), quantile(drawn, 0.975)
    assert _documents.interval(delta, size, layer) == pytest.approx(want, 1e-12)


@pytest.mark.parametrize(
    "other, reason",
    [
        (None, ""),
        ({"step": 19, "window": 8, "documents": documents(3, float)}, "different steps or windows"),
        ({"step": 20, "window": 9, "documents": documents(3, float)}, "different steps or windows"),
        ({"step": 20, "window": 8, "documents": documents(3, float, 50)}, "no document in common"),
        ({"step": 20, "window": 8, "documents": [{"id": "d1"}, 3, {"id": 1, "bytes": 0, "nll": 1}]}, "no document"),
        ('{"step":', "documents.json: it is not JSON"),
        ("\0" * 9, "documents.json: it is not"),
    ],
)
def test_documents_that_cannot_be_compared(other, reason, tmp_path):
    base = {"step": 20, "window": 8, "documents": documents(5, float)}
    c = with_files(tmp_path, [VANILLA, ERC], "documents.json", (base, other))
    assert c.pairings[0].documents.n_pairs == 0
    assert told(c, reason) if reason else not c.warnings


def questions(right, metric="acc", metrics=("acc",)):
    samples = [{"id": name, "correct": {metric: is_right}} for name, is_right in right]
    return {"results": {"quiz": {"metrics": dict.fromkeys(metrics, 0), "samples": samples}}}


def test_questions_are_counted_both_ways(tmp_path):
    base, other = "11100000000", "10011111000"
    files = [questions([(i, int(x)) for i, x in enumerate(of)], "b", ("exact_match,b", "a")) for of in (base, other)]
    files[0]["results"]["alone"] = files[0]["results"]["quiz"]
    files[1]["results"]["quiz"]["samples"].append({"id": "more", "correct": {"b": 1}})
    c = with_files(tmp_path, [VANILLA, ERC], "questions.json", files)
    (table,) = c.pairings[0].pairs[0].tasks
    assert table[:7] == ("quiz", "b", 1, 2, 5, 3, 1) and table.p == pytest.approx(0.453125, 1e-12)  # binomtest(2, 7)


def test_askings_of_a_question_count_once(tmp_path):
    names = [f"a/q#{shots}" for shots in range(5)] + ["a#1/r"]
    files = [questions([(name, x) for name, x in zip(names, of)]) for of in ([1] * 5 + [0], [0] * 5 + [1])]
    c = with_files(tmp_path, [VANILLA, ERC], "questions.json", files)
    (table,) = c.pairings[0].pairs[0].tasks
    assert (table.only_base, table.only_other, table.p) == (5, 1, 1)  # five askings count as one question


@pytest.mark.parametrize(
    "file, reason",
    [
        ("[]", "questions.json: it is no object"),
        ({"results": []}, "its member results is no object of tasks"),
        ({"results": {"quiz": {"samples": {}}}}, "its task quiz has no array samples"),
        (
            {"results": {"quiz": {"samples": [{"id": 1}, {"correct": 1}]}}},
            "2 of the samples of its task quiz have no id",
        ),
        ('{"results"', "questions.json: it is not JSON"),
    ],
)
def test_questions_of_another_shape_are_told(file, reason, tmp_path):
    c = with_files(tmp_path, [VANILLA, ERC], "questions.json", (questions([(1, 1)]), file))
    assert told(c, reason) and c.pairings[0].pairs[0].tasks == []
