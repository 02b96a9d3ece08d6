#!/usr/bin/env python3
"""decide.py RESULTS.json [--final] | --simulate N [--seed S]: the decisions of experiments/gpu/README.md.

RESULTS.json is what pairs.py wrote. Seeds count whose four arms are all there with a finite loss. While runs of the
seeds are missing, no figure is printed: pairs.py --from makes them. --final decides without them, and ends the series.

--simulate N: reads no results. It makes N series of results with known effects and the registered deviation of pairs,
decides each, and prints how often a family claims what is false, and how often it finds what is true. It exits with 1 if
a family's share of false claims is above 5 % by more than two standard errors."""

import argparse
import json
import math
import pathlib
import random
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
from hypothesis_tests import one_sample  # noqa: E402

PAIRS = {"without z-loss": ("E0", "V0"), "with z-loss": ("E1", "V1")}  # the registered tests
BESIDE = {"T1 - V1": ("T1", "V1"), "T1 - E1": ("T1", "E1")}  # reported, not tested
LEVEL, BOUND, LEAST = 0.05, 0.01, 32  # of each family; nats; seeds
MOST_SKIPPED = 5  # steps; couplet train gives up after as many in a row (train.max_skipped)
DEVIATION, LEVEL_OF_SEED, SEEDS = 0.030, 0.035, 96  # of pairs, of the seeds of an arm (nats); for --simulate


# ---- decisions ----


def differences(runs, arm, other, figure):
    """Returns {seed: figure of arm less that of other} of the seeds that have both."""
    value = {(run["arm"], run["seed"]): figure(run) for run in runs}
    seeds = sorted({seed for _, seed in value})
    both = [seed for seed in seeds if value.get((arm, seed)) is not None and value.get((other, seed)) is not None]
    return {seed: value[arm, seed] - value[other, seed] for seed in both}


def nats(run):
    """Returns the loss of a run, or None if it does not count: it is not finite, or MOST_SKIPPED steps were skipped."""
    fits = run["nats"] is not None and math.isfinite(run["nats"]) and run["skipped"] < MOST_SKIPPED
    return run["nats"] if fits else None


def dz(run):
    found = [value for value in run["dz"] if value is not None]
    return statistics.fmean(found) if found else None


def complete(runs):
    """Returns the runs of the seeds whose registered arms are all there, and the seeds that are left out."""
    seeds = sorted({run["seed"] for run in runs})
    there = {(run["arm"], run["seed"]) for run in runs if nats(run) is not None}
    whole = [seed for seed in seeds if all((arm, seed) in there for pair in PAIRS.values() for arm in pair)]
    return [run for run in runs if run["seed"] in whole], [seed for seed in seeds if seed not in whole]


def significant(p):
    """Returns the tests that are significant by Holm (1979)."""
    found = []
    for place, name in enumerate(sorted(p, key=p.get)):
        if p[name] > LEVEL / (len(p) - place):
            break
        found.append(name)
    return found


def decide(runs):
    """Returns {test: (words, mean, half of the 95 % interval, p, pairs)} of complete seeds. The words are better, worse
    and equivalent, where each holds, else undecided."""
    each = {name: list(differences(runs, *pair, nats).values()) for name, pair in PAIRS.items()}
    if any(len(values) < LEAST for values in each.values()):
        return {name: ("undecided: too few pairs", math.nan, math.nan, 1.0, len(one)) for name, one in each.items()}
    found = {name: one_sample(values) for name, values in each.items()}
    sure = significant({name: p for name, (_, _, p) in found.items()})
    decided = {}
    for name, (mean, half, p) in found.items():
        words = ["worse" if mean > 0 else "better"] if name in sure else []
        if max(abs(mean - half), abs(mean + half)) <= BOUND:
            words.append("equivalent")
        decided[name] = " and ".join(words) or "undecided", mean, half, p, len(each[name])
    return decided


def made(results):
    """Returns the number of seeds whose four arms have been run, with finite losses or not, and the number to be run."""
    there = {(run["arm"], run["seed"]) for run in results["runs"]}
    arms = [arm for pair in PAIRS.values() for arm in pair]
    done = sum(all((arm, seed) in there for arm in arms) for seed in {seed for _, seed in there})
    return done, results.get("seeds", SEEDS)


def show(results, final):
    done, seeds = made(results)
    if done < seeds and not final:
        print(
            f"{done} of {seeds} seeds were run, and nothing is decided yet: pairs.py --from runs the others. --final "
            "decides without them; then no run may be added."
        )
        return
    runs, left_out = complete(results["runs"])
    if results["rehearsal"]:
        print("This is a rehearsal. Its sizes or settings are not the registered ones, and it decides nothing.")
    print(
        f"{results['machine']['device']}, {results['dtype']}, PyTorch {results['machine']['torch']}: {results['end']}"
    )
    if left_out:
        print(f"seeds without all four arms and finite losses, left out: {', '.join(map(str, left_out))}")
    for name, (words, mean, half, p, n) in decide(runs).items():
        print(
            f"ERC {name}, nats: {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}), {n} pairs, p {p:.2g}: {words}"
        )
    print("Reported, not tested:")
    for figure in (nats, dz):
        for name, pair in {**{f"{a} - {b}": (a, b) for a, b in PAIRS.values()}, **BESIDE}.items():
            values = list(differences(runs, *pair, figure).values())
            if len(values) > 1 and (figure is dz or name in BESIDE):
                mean, half, _ = one_sample(values)
                where = f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}), {len(values)} pairs"
                print(f"    {figure.__name__}, {name}: {where}")
    skipped = sum(run["skipped"] > 0 for run in runs)
    print(f"    runs with skipped steps: {skipped} of {len(runs)}")


# ---- simulated series ----


def series(effects, heavy):
    """Returns simulated runs: a level of the seed, and numbers of each run whose differences in pairs have DEVIATION.
    heavy: they have Student's t of 4 degrees of freedom, scaled, in place of the normal."""

    def own():
        if not heavy:
            return random.gauss(0, DEVIATION / math.sqrt(2))
        chi = sum(random.gauss(0, 1) ** 2 for _ in range(4)) / 4
        return random.gauss(0, DEVIATION / 2) / math.sqrt(chi)

    runs = []
    for seed in range(SEEDS):
        level = random.gauss(0, LEVEL_OF_SEED)
        for name, (erc, vanilla) in PAIRS.items():
            for arm, effect in ((erc, effects[name]), (vanilla, 0.0)):
                runs.append(
                    {"arm": arm, "seed": seed, "nats": 4.4 + level + effect + own(), "dz": [None], "skipped": 0}
                )
    return runs


def claims(decided, effects):
    """Returns (a false claim of a difference, a false claim of equivalence)."""
    false = [False, False]
    for name, (words, *_) in decided.items():
        effect = effects[name]
        false[0] |= "worse" in words and effect <= 0 or "better" in words and effect >= 0
        false[1] |= "equivalent" in words and abs(effect) >= BOUND
    return false


def simulate(count):
    """Prints shares of claims over `count` series for each case. Returns whether a family errs too often."""
    bad = False
    for effects in ((0.0, 0.0), (BOUND, -BOUND), (0.0, BOUND), (0.009, 0.0), (0.029, 0.0)):
        for heavy in (False, True):
            known, wrong, hits = dict(zip(PAIRS, effects)), [0, 0], {name: [] for name in PAIRS}
            for _ in range(count):
                decided = decide(series(known, heavy))
                wrong = [a + b for a, b in zip(wrong, claims(decided, known))]
                for name, (words, *_) in decided.items():
                    hits[name].append(words)
            shares = [one / count for one in wrong]
            bad |= any(one - 2 * math.sqrt(one * (1 - one) / count) > LEVEL for one in shares)
            print(
                f"effects {effects[0]:+.3f}, {effects[1]:+.3f}{', heavy tails' * heavy}: false differences "
                f"{shares[0]:.2%}, false equivalences {shares[1]:.2%}; "
                + "; ".join(
                    f"{name}: "
                    + ", ".join(
                        f"{word} {sum(word in words for words in one) / count:.2f}"
                        for word in ("better", "worse", "equivalent", "undecided")
                    )
                    for name, one in hits.items()
                )
            )
    return bad


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("results", nargs="?", type=pathlib.Path)
    words.add_argument("--final", action="store_true", help="decides a series that was cut, and ends it")
    words.add_argument("--simulate", type=int, metavar="N")
    words.add_argument("--seed", type=int, default=1)
    words = words.parse_args()
    if words.simulate:
        random.seed(words.seed)
        return int(simulate(words.simulate))
    if not words.results:
        sys.exit("decide: name a results.json, or --simulate N")
    show(json.loads(words.results.read_text()), words.final)
    return 0


if __name__ == "__main__":
    sys.exit(main())
