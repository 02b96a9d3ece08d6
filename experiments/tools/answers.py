#!/usr/bin/env python3
"""answers.py: prints the answers of the recorded runs to the questions 1 to 5 of experiments/questions.md: every test
whose runs are all in experiments/runs.csv, with its 95 % interval, its p-value, whether it is significant among all 27
tests, and the decision by the rules of that page.

A test whose runs are missing counts as unknown. A test that is significant, or not, for all values of the unknown
p-values is reported so. The others are open (hypothesis_tests.standing)."""

import statistics
import sys

import hypothesis_tests as tests
from table_figures import Interval, Range, Table, number, printed

WORDS = {
    "1a": "agreement among scores > 0, ERC",
    "1b": "agreement among scores < 0, ERC",
    "1c": "within tokens of one id, scores > 0, ERC",
    "1d": "within tokens of one id, scores < 0, ERC",
    "1e": "agreement among scores > 0, ERC - vanilla",
    "1f": "agreement among scores < 0, ERC - vanilla",
    "1g": "agreement with |s|, ERC - vanilla",
    "2a": "router_cos, z.weight 0.001 - 0",
    "2b": "router_cos, balance.weight 0.01 - 0.001",
    "2c": "vocabulary, z.weight 0.001 - 0",
    "2d": "vocabulary, balance.weight 0.01 - 0.001",
    "2e": "agreement, z.weight 0.001 - 0",
    "2f": "agreement, balance.weight 0.01 - 0.001",
    "3a": "alpha 0.5 - alpha 1",
    "3b": "alpha 0.5 - vanilla",
    "3c": "alpha 1 - vanilla",
    "4a": "ERC - vanilla",
    "4b": "AoE - vanilla",
    **{
        f"5{letter}": f"{figure}, {arm} - ERC"
        for figure, letters in (("agreement", "abc"), ("centred rows own", "def"), ("MaxVio", "ghi"))
        for letter, arm in zip(letters, ("centred", "router only", "experts only"))
    },
}
SIGNS = {"1a": 1, "1b": -1, "1c": 1, "1d": -1, "1e": 1, "1f": -1, "1g": 1}  # signs by the hypothesis of question 1
EQUAL = 0.01  # nats a token, question 4
REACHED = 0.20  # router_cos, question 2
PLACES = {"bpb": 4, "nats": 3, "": 3}
CELLS = [(z, b) for z in ("z", "noz") for b in ("balance", "little")]


def unit_of(name):
    return {"3": "bpb", "4": "nats"}.get(name[0], "")


def ranks(values):
    """Returns the ranks of the values. Equal values have the mean of their ranks."""
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def rank_correlation(x, y):
    return statistics.correlation(ranks(x), ranks(y))


def p_value(p):
    return "< 1e-10" if p < 1e-10 else f"{p:.1e}".replace("e-0", "e-") if p < 1e-3 else f"{p:.2g}"


class Answers:
    def __init__(self, table=None):
        self.table = table or Table()
        self.figure_of = lambda arm, seed, figure: self.table.value(figure, arm, seed)
        self.found = {
            name: Interval(mean, mean - half, mean + half, p, None)
            for name, (mean, half, p) in tests.tests(self.figure_of, partly=True).items()
        }
        self.standing = tests.standing({name: one.p for name, one in self.found.items()})

    def test(self, name):
        """Returns the interval of a test."""
        if name not in self.found:
            raise KeyError(f"test {name}: runs or figures are missing in experiments/runs.csv; record them first")
        return self.found[name]

    def significant(self, name):
        """Returns the standing of a test in words."""
        self.test(name)
        return {True: "significant", False: "not significant", None: "open"}[self.standing[name]]

    def rows(self, question):
        """Returns the tests of a question as rows of a table in Markdown, without the outer bars: test, figure, mean
        with its interval, p, standing."""
        return " |\n| ".join(
            f"{name} | {words.replace('|', chr(92) + '|')} | {printed(self.found[name], f'+{PLACES[unit_of(name)]}')} | "
            f"{p_value(self.found[name].p)} | {self.significant(name)}"
            for name, words in WORDS.items()
            if name[0] == str(question)
        )

    def verdict(self, question):
        """Returns the decision by the rules of a question, 1 to 5, or of one of the tests 4a and 4b."""
        return {
            1: self.sign,
            2: self.causes,
            3: self.strict_alpha,
            4: self.quality,
            5: self.parts,
            "4a": lambda: self.arm("4a"),
            "4b": lambda: self.arm("4b"),
        }[question]()

    def standings(self, names):
        return ", ".join(f"{name} {self.significant(name)}" for name in names)

    def sign(self):
        along = {name: self.test(name).mean * sign > 0 for name, sign in SIGNS.items()}
        against = [name for name in ("1a", "1b", "1c", "1d") if not along[name]]
        other = [name for name in against if self.standing[name]]
        if other:
            return f"refuted: {', '.join(other)} significant with the other sign"
        failed = [name for name in SIGNS if not (along[name] and self.standing[name])]
        if not failed:
            return "supported"
        which = ", ".join(
            f"{name} {self.significant(name)}" + ("" if along[name] else ", with the other sign") for name in failed
        )
        surely = any(self.standing[name] is False or not along[name] for name in failed)
        final = surely and not any(self.standing[name] is None for name in against)
        return f"{'undecided' if final else 'open'}: {which}"

    def explained(self):
        """Returns the rank correlation of agreement with the share of negative scores, over layers and runs with ERC of
        blocks A and B; None if a run is missing."""
        return self.explained_among(["a-erc-1", *("-".join(["b", *cell, "erc"]) for cell in CELLS)])

    def explained_among(self, arms, of_runs=False):
        """Returns the rank correlation of agreement with the share of negative scores over the layers of the runs in
        `arms`; None if a run is missing. If of_runs is true, each run counts once, by its means."""
        rows = [(arm, seed) for arm in arms for seed in (tests.A if arm.startswith("a-") else tests.B)]
        if any(run not in self.table.rows for run in rows):
            return None
        pairs = [
            pair
            for arm, seed in rows
            for pair in zip(
                self.table.listed("negative_by_layer", arm, seed), self.table.listed("agreement_by_layer", arm, seed)
            )
        ]
        if of_runs:
            pairs = [
                [self.table.value(figure, arm, seed) for figure in ("negative", "agreement")] for arm, seed in rows
            ]
        return rank_correlation(*map(list, zip(*pairs)))

    def effect(self, figure, name):
        """Returns an effect of block B (hypothesis_tests.factorial): "z", "balance", or an interaction as "z x arm".
        Only the effects of question 2 are tests."""
        mean, half, p = tests.factorial(self.figure_of, figure, interactions=True)[name]
        return Interval(mean, mean - half, mean + half, p, None)

    def vanilla_cells(self, figure="router_cos"):
        """Returns {(z, balance): mean of the vanilla runs}."""
        return {cell: self.table.mean(figure, "b-" + "-".join([*cell, "vanilla"])) for cell in CELLS}

    def causes(self):
        """Returns the sentence of question 2: the significant tests, and the cells that reach the paper's
        router_cos."""
        means = self.vanilla_cells()
        where = [f"{'-'.join(cell)} ({number(mean, '2')})" for cell, mean in means.items() if mean <= REACHED]
        return f"{self.standings(['2a', '2b', '2c', '2d', '2e', '2f'])}; router_cos is at most {REACHED:.2f} in " + (
            ", ".join(where) or f"no cell (least {number(min(means.values()), '2')})"
        )

    def strict_alpha(self):
        mean, standing = self.test("3a").mean, self.standing["3a"]
        if mean > 0 and standing is None:
            return "open"
        return "confirmed" if mean > 0 and standing else "dropped"

    def arm(self, name):
        """Returns the sentence of test 4a or 4b."""
        one, words = self.test(name), []
        if self.standing[name]:
            words.append("worse" if one.mean > 0 else "better")
        if -EQUAL <= one.low and one.high <= EQUAL:
            words.append("equivalent")
        if self.standing[name] is None:
            return " and ".join([*words, "open"])
        return " and ".join(words) or "undecided"

    def quality(self):
        return "; ".join(
            f"{arm}: {self.arm(name)}" for arm, name in (("ERC", "4a"), ("AoE", "4b")) if name in self.found
        )

    def chosen(self):
        """Returns {arm: (its run of block C with the least mean validation loss, that loss)}; empty if a run is
        missing."""
        arms = {arm for arm, _ in self.table.rows if arm.startswith("c-")}
        means = {
            arm: self.table.mean("val_loss", arm) for arm in sorted(arms) if len(self.table.seeds(arm)) == len(tests.C)
        }
        kinds = {kind: [arm for arm in means if f"-{kind}" in arm] for kind in ("vanilla", "erc", "aoe")}
        if [len(found) for found in kinds.values()] != [3, 3, 6]:
            return {}
        return {kind: min((means[arm], arm) for arm in found)[::-1] for kind, found in kinds.items()}

    def parts(self):
        return self.standings([f"5{letter}" for letter in "abcdefghi"])

    def several_processors(self):
        """Returns seeds of the second series whose arms were not all run on one kind of processor."""
        kinds = {}
        for (arm, seed), row in self.table.rows.items():
            if row["processor"]:
                kinds.setdefault((arm.split("-")[0], seed), set()).add(row["processor"])
        return {block: sorted(names) for block, names in sorted(kinds.items()) if len(names) > 1}


def lines_of(answers, question):
    """Yields the lines of one question."""
    names = [name for name in tests.WEIGHT if name[0] == str(question)]
    for name in names:
        if name in answers.found:
            one, unit = answers.found[name], unit_of(name)
            yield (
                f"  {name} {WORDS[name]:43} {printed(one, f'+{PLACES[unit]}'):27} {unit:5}"
                f"p {one.p:.2g}, {answers.significant(name)}"
            )
    missing = [name for name in names if name not in answers.found]
    if missing:
        yield f"  not known yet: {', '.join(missing)}"
    if len(missing) < len(names) and (not missing or question == 4):
        yield f"  {answers.verdict(question)}"
    if question == 1 and not missing and answers.explained() is not None:
        known = answers.verdict(1) == "supported" and answers.explained() < 0
        yield (
            f"  agreement with the share of negative scores, over layers and runs: rank correlation "
            f"{number(answers.explained(), '+2')}; the sign explains the negative agreement: {'yes' if known else 'no'}"
        )
    if question == 2 and not missing:
        for figure in ("router_cos", "vocabulary", "agreement", "centred_router_cos"):
            effects = tests.factorial(answers.figure_of, figure, interactions=True)
            yield f"  not tested, {figure}: " + "; ".join(
                f"{name} {number(mean, '+3')} ({printed(Range(mean - half, mean + half), '+3')})"
                for name, (mean, half, _) in effects.items()
                if figure.startswith("centred") or " x " in name
            )
    for kind, (arm, loss) in answers.chosen().items() if question == 4 else ():
        yield f"  block C chose {arm} for {kind}: validation loss {number(loss, '3')}"
    if question == 5 and not missing:
        for arm in [
            arm
            for arm in ("e-vanilla", "e-centred", "e-router", "e-experts")
            if any(name == arm for name, _ in answers.table.rows)
        ]:
            yield f"  not tested, validation loss, {arm} - e-erc: " + printed(
                answers.table.difference("val_loss", arm, "e-erc"), "+3"
            )


def main():
    answers = Answers()
    for question in range(1, 6):
        print(f"Question {question}")
        for line in lines_of(answers, question):
            print(line)
    for (block, seed), kinds in answers.several_processors().items():
        print(f"block {block.upper()}, seed {seed}: its arms were run on {' and '.join(kinds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
