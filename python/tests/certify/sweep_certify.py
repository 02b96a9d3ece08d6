"""How well couplet.certify judges losses of routers, on many random inputs:

    python tests/certify/sweep_certify.py [--dumps 1000] [--cases 20] [--pairs 5] [--most 60] [--kind WORD] [--seed 0] [--page FILE]

--dumps: right dumps of each kind and format, in turn from all ways of tests/certify/right_ways.py: how many are judged wrong.
--cases: random inputs for each fault, in float32 and bf16: the share on which it is named, of those on which it moves
         loss or gradient by more than three times the bound; and of the others the share that is named or judged right.
--pairs: random inputs for each pair of faults inside a kind, of --most pairs a kind, drawn at random.
--page:  the shares as tables in Markdown.

The coupling loss, --kind erc, has its own random cases and rules (test_certify_erc.py): --pairs times ten pairs in all, each
named but for one in fifty.

Named: by one of the explanations that the judge gives, or its exact equivalent on these inputs (as twice and times K where
K is 2).

Exit code 1: a false alarm, or a fault or pair that was not named. `make certify-sweep`; a sample is in test_certify_sweep.py."""

import argparse
import itertools
import math
import pathlib
import random
import sys

import right_ways
import test_certify_erc
import torch
from couplet.certify._evaluate import UNIT, bounds, distance, outputs, scaled
from couplet.certify._fits import Dump
from couplet.certify._judge import is_right, judge
from couplet.certify._scale import scale_faults
from couplet.certify.kinds import KINDS

FORMATS = (torch.float64, torch.float32, torch.bfloat16)
TOLD = 3.0  # times the bound
EQUAL, ZERO = 1e-5, 1e-12


# ---- one dump ----


def of_fault(kind, x, faults, dtype, chance):
    """What an implementation with these faults gives: {key: value of its parameter}, and those that scale."""
    inside = {fault.key: chance.choice(fault.values) if fault.values else None for fault in faults if not fault.scale}
    loss = gradient = 1.0
    for fault in faults:
        if fault.scale:
            a, b = fault.scale(x)
            loss, gradient = loss * a, gradient * b
    x = x.to(dtype)
    out = scaled(outputs(kind, x, inside, as_=right_ways.computed_in(dtype)), loss, gradient)
    return Dump("random", x, right_ways.stored(out, dtype)), inside


def is_named(verdict, kind, x, faults, inside):
    """Whether one of the explanations has no faults but these, or is their exact equivalent on these inputs."""
    if verdict.state == "other" and not verdict.sets:
        return True  # it is exactly another kind's
    if verdict.state not in ("fault", "other"):
        return False
    same = {fault.key for fault in faults}
    if any(one.faults and {fault.key for fault in one.faults} <= same for one in verdict.sets):
        return True
    x = x.to(torch.float64)
    planted, right = exact(kind, x, inside, [fault for fault in faults if fault.scale], 1.0), outputs(kind, x, {})
    return any(
        is_equal(planted, exact(kind, x, one.given(), one.outside, verdict.factor or 1.0), right)
        for one in verdict.sets
    )


def exact(kind, x, inside, scales, times):
    """Without rounding; experts that tie share their places."""
    pairs = [fault.scale(x) for fault in scales if not fault.is_idle(x)]
    return scaled(outputs(kind, x, inside), *(times * math.prod(one[k] for one in pairs) for k in (0, 1)))


def is_equal(a, b, right):
    """To what a factor is known that was measured in float32; a gradient of zero has rounding errors."""
    return all(
        distance(a[name], b[name]) <= EQUAL * float(a[name].norm()) + ZERO * float(right[name].norm()) for name in a
    )


def moves(kind, dump):
    """How far it lies from the right outputs, in bounds."""
    right = outputs(kind, dump.x, {})
    limit = bounds(kind, dump.x, {}, right, UNIT[torch.float32], {key: value.dtype for key, value in dump.got.items()})
    return max(distance(dump.got[key], right[key]) / max(limit[key], 1e-300) for key in right)


# ---- sweeps ----


def false_alarms(kind, count, seed):
    """Format, way and case of right dumps that are judged wrong, and of those that cannot be told."""
    wrong, untold = [], []
    ways = right_ways.of(kind)
    for dtype in FORMATS:
        for k in range(count):
            way = ways[k % len(ways)]
            x = right_ways.random_case(kind, seed * 1000003 + k).to(dtype)
            dumps = [Dump("random", x, right_ways.outputs_of(way, kind, x))]
            if not is_right(kind, dumps):
                kept = wrong if judge(kind, dumps).exit_code == 1 else untold
                kept.append(f"{str(dtype)[6:]}, {way.__name__}, case {seed * 1000003 + k}")
    return wrong, untold


def named(kind, faults, dtype, count, seed):
    """(named, of, judged right or named of the rest, of the rest)"""
    hits = told = right = rest = 0
    chance = random.Random(seed)
    for k in range(count):
        x = right_ways.random_case(kind, seed * 7919 + k, plain=True)
        if any(fault.is_idle(x) for fault in faults):
            continue
        dump, inside = of_fault(kind, x, faults, dtype, chance)
        verdict = judge(kind, [dump])
        hit = is_named(verdict, kind, dump.x, faults, inside)
        if moves(kind, dump) > TOLD:
            told += 1
            hits += hit
        else:
            rest += 1
            right += hit or verdict.state == "right"
    return hits, told, right, rest


def of_coupling(dumps, cases, pairs):
    """False alarms and faults that are not named: 0, or the first stops it."""
    for kinds in (("f32",), ("autocast", "bf16")):
        try:
            test_certify_erc.right_ones(kinds, dumps, kinds != ("f32",))
            for key, share in test_certify_erc.faults_in(kinds, cases).items() if cases else ():
                print(
                    f"  {key} {' or '.join(kinds)}: named in {share} of {cases}, else listed as what the dump cannot show"
                )
        except AssertionError as error:
            print(f"erc, {' or '.join(kinds)}: {error}")
            return 1
        print(f"erc: 0 false alarms in {dumps} right dumps, {' or '.join(kinds)}", flush=True)
    try:
        test_certify_erc.pairs_of_faults(10 * pairs)
    except AssertionError as error:
        print(f"erc, pairs: {error}")
        return 1
    return 0


def shares(kind, size, count, most, seed):
    """{keys: [(named, of, named or called right of the rest, of the rest) in float32, in bf16]} of sets of so many faults."""
    sets = list(itertools.combinations([*kind.faults, *scale_faults(kind)], size)) if count else []
    if size > 1 and len(sets) > most:
        sets = random.Random(seed).sample(sets, most)
    found = {}
    for faults in sets:
        keys = " + ".join(one.key for one in faults)
        found[keys] = [named(kind, faults, dtype, count, seed) for dtype in FORMATS[1:]]
        if size == 1 or any(hits < told for hits, told, _, _ in found[keys]):
            print(f"  {keys}: {text(found[keys])}", flush=True)
    return found


def text(two):
    words = [
        f"{name} {hits} of {told}"
        + (f" (of those too small to see {right} of {rest} are named or called right)" if rest else "")
        for name, (hits, told, right, rest) in zip(("float32", "bf16"), two)
    ]
    return "named " + ", ".join(words)


def cell(two, k):
    hits, told, right, rest = (sum(column) for column in zip(*(one[k] for one in two)))
    return f"{hits} of {told}" + (f"; {right} of {rest}" if rest else "")


def table(kind, wrong, untold, dumps, singles, pairs):
    """Markdown; faults with the same numbers share a row."""
    lines = [
        f"### {kind.name}",
        "",
        f"False alarms: {wrong} in {dumps} right dumps of {len(right_ways.of(kind))} implementations; {untold} cannot be told.",
        "",
        "| fault | float32 | bf16 |",
        "|---|---|---|",
    ]
    cells = {keys: f"{cell([two], 0)} | {cell([two], 1)}" for keys, two in singles.items()}
    lines += [
        f"| {', '.join(f'`{keys}`' for keys in cells if cells[keys] == row)} | {row} |"
        for row in dict.fromkeys(cells.values())
    ]
    lines += [f"| {len(pairs)} pairs | {cell(pairs.values(), 0)} | {cell(pairs.values(), 1)} |"] if pairs else []
    return "\n".join(lines) + "\n"


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("dumps", 1000), ("cases", 20), ("pairs", 5), ("most", 60), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", default="")
    parser.add_argument("--page", type=pathlib.Path)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    bad = of_coupling(args.dumps, args.cases, args.pairs) if args.kind in "erc" else 0
    tables = []
    for kind in KINDS.values():
        if args.kind not in kind.name:
            continue
        wrong, untold = false_alarms(kind, args.dumps, args.seed)
        print(
            f"{kind.name}: {len(wrong)} false alarms in {args.dumps * len(FORMATS)} right dumps, {len(untold)} cannot be told, "
            f"{len(right_ways.of(kind))} ways",
            *wrong[:5],
            *untold[:5],
            sep="\n  ",
            flush=True,
        )
        singles, pairs = (
            shares(kind, 1, args.cases, args.most, args.seed),
            shares(kind, 2, args.pairs, args.most, args.seed),
        )
        for name, found in (("faults", singles), ("pairs", pairs)):
            if found:
                print(
                    f"  {len(found)} {name}: float32 {cell(found.values(), 0)}, bf16 {cell(found.values(), 1)}",
                    flush=True,
                )
        bad += len(wrong) + sum(told - hits for two in (*singles.values(), *pairs.values()) for hits, told, _, _ in two)
        tables.append(table(kind, len(wrong), len(untold), args.dumps * len(FORMATS), singles, pairs))
    if args.page:
        args.page.write_text("\n".join(tables))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
