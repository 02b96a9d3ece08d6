#!/usr/bin/env python3
"""texts.py [--check]: writes the numbers of our runs into the pages of experiments/ and docs/ that end with a list of
names and phrases. Every README.md under experiments/ has such a list.

    <!-- =EXPRESSION; FORM -->VALUE<!-- / -->

A value is written between the two comments, which a browser does not show. The expression is a Python expression over
experiments/runs.csv (experiments/tools/runs_table.py) with the functions of names_of. It is printed by a form of
experiments/tools/table_figures.py: digits after the point, before them + for a sign, after them % or e-5 for the scale.
Without a form it is a whole number or words.

    <!-- claim EXPRESSION -->

The words before the claim must be true. A comment that begins a line would end the paragraph, so the claim stands at
the end of the line before. A claim in a row of a table has no bar, which would end the cell.

The list is a comment at the end of the page, with `numbers` after its opening. Its lines are

    let NAME = EXPRESSION     a name for expressions of this page
    literal PHRASE            a phrase whose numbers come from the paper or the design, not from our runs
    unlisted                  most numbers of the page are the paper's: numbers outside expressions are unchecked
    # REMARK

--check writes no file. It exits with 1 if a value differs from its expression; if a claim is not true; if a page has a
number outside of expressions, literals and code, or lacks one of its literals; if a line of prose, read without the
comments, has more than LONGEST characters, or a cell of a table more than WORDS words; or if a figure of a results.json
differs from the table."""

import argparse
import itertools
import json
import math
import pathlib
import re
import statistics
import sys

import records
import runs_table
from answers import Answers
from table_figures import FORM, Table, interval, printed, span

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "experiments"
LONGEST, WORDS = 125, 25
CODE = r"^    [^\n]*|"  # a line of code is copied
EXPRESSION = re.compile(CODE + r"<!-- =([^\n]*?) -->(\s*)(.*?)<!-- / -->", re.S | re.M)
CLAIM = re.compile(CODE + r"<!-- claim ([^\n]*?) -->", re.M)
LIST = re.compile(r"\n<!-- numbers\n(.*?)-->\n\Z", re.S)


# ---- names for expressions ----


def result(folder, path):
    """Returns a figure of results.json that the table cannot have (a measured cost, a bootstrap over documents, a
    search for a power): members by name, entries of a list by their "group" or number."""
    value = json.loads((HOME / folder / "results.json").read_text())
    for key in path.split("/"):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() else next(one for one in value if one["group"] == key)
        else:
            value = value[key]
    return value


def up(value, step):
    """Returns a bound, rounded up to a multiple of step."""
    return math.ceil(value / step) * step


def names_of(table):
    """Returns the names for expressions. FIRST are the arms of the first series: arms of the second begin with the
    letter of their block."""
    answers = Answers(table)

    def blocks(figure, groups, arms, bases):
        """Returns, for each block, which is a seed of a group of arms, the mean of its runs that are among arms less
        the mean of its runs that are among bases."""
        return [
            statistics.fmean(table.value(figure, arm, seed) for arm in group if arm in arms)
            - statistics.fmean(table.value(figure, arm, seed) for arm in group if arm in bases)
            for group in groups
            for seed in sorted(set.intersection(*(set(table.seeds(arm)) for arm in group)))
        ]

    def cells(figure, arms, forms, kind=table.spread):
        """Returns cells of a row of a table, one for each arm. The last form is used for all further arms."""
        forms = forms.split()
        forms += forms[-1:] * (len(arms) - len(forms))
        return " | ".join(printed(kind(figure, arm), form) for arm, form in zip(arms, forms, strict=True))

    def equal_time(arm, base="vanilla"):
        """Returns (tokens, difference of validation loss in each pair) for the arm stopped when base is done, by the
        measured cost."""
        end = table.listed("val_loss_by_time", base, table.paired(arm, base)[0])[-2]
        tokens = end / max(1, result("overhead", f"arms/{arm}/time_over_vanilla"))
        return tokens, [
            table.loss_at(tokens, arm, seed) - table.loss_at(end, base, seed) for seed in table.paired(arm, base)
        ]

    def at_step(figure, arm, step):
        """Returns a figure of every layer in start.json (step 0) or in a recorded line of metrics.jsonl, as the mean
        over layers and seeds."""
        runs = [f"{arm}-s{seed}" for seed in table.seeds(arm)]
        lines = [one for run in runs for one in [records.document(run, "start.json"), *records.lines_of(run)]]
        return statistics.fmean(number for one in lines if one["step"] == step for number in one[figure])

    known = (
        table.value,
        table.values,
        table.listed,
        table.mean,
        table.spread,
        table.layers,
        table.seeds,
        table.paired,
        table.differences,
        table.difference,
        table.changes,
        answers.test,
        answers.significant,
        answers.rows,
        answers.verdict,
        answers.effect,
        answers.explained,
        answers.explained_among,
        answers.chosen,
        answers.vanilla_cells,
        cells,
        blocks,
        equal_time,
        at_step,
        result,
        up,
        interval,
        span,
        printed,
        statistics.fmean,
        statistics.stdev,
        itertools.chain,
        min,
        max,
        abs,
        round,
        len,
        sum,
        all,
        any,
        zip,
        sorted,
        range,
        set,
    )
    first = sorted({arm for arm, _ in table.rows if not re.match("[a-z]-", arm)})
    return {one.__name__: one for one in known} | {"FIRST": first, "ARMS": sorted({arm for arm, _ in table.rows})}


# ---- pages ----


class Page:
    def __init__(self, path, names):
        self.path, self.text = path, path.read_text()
        self.body = LIST.sub("\n", self.text)
        self.literals, self.names, self.unlisted = [], {"__builtins__": {}, **names}, False
        for line in LIST.search(self.text)[1].splitlines():
            kind, _, rest = line.strip().partition(" ")
            if kind == "let":
                name, _, expression = rest.partition("=")
                self.names[name.strip()] = eval(expression.strip(), self.names)
            elif kind == "literal":
                self.literals.append(rest.strip())
            elif kind == "unlisted":
                self.unlisted = True
            elif kind and kind != "#":
                raise ValueError(f"{path}: neither let nor literal: {line}")

    def value_of(self, expression):
        try:
            return eval(expression, self.names)
        except (
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            NameError,
            AttributeError,
            SyntaxError,
            StopIteration,
            ZeroDivisionError,
        ) as error:
            raise ValueError(f"{self.path}: {expression}: {error!r}") from None

    def value(self, words):
        expression, _, form = (part.strip() for part in words.rpartition(";"))
        if FORM.fullmatch(form):
            return printed(self.value_of(expression), form)
        value = self.value_of(words)
        if not isinstance(value, (str, int)):
            raise ValueError(f"{self.path}: {words}: a number without a form")
        return str(value)

    def filled(self):
        """Returns the page with the values of its expressions."""
        return EXPRESSION.sub(
            lambda found: (
                found[0] if found[1] is None else f"<!-- ={found[1]} -->{found[2]}{self.value(found[1])}<!-- / -->"
            ),
            self.text,
        )

    def read(self, value=r"\2\3"):
        """Returns the body as a reader sees it."""
        plain = CLAIM.sub(lambda found: found[0] if found[1] is None else "", self.body)
        return EXPRESSION.sub(lambda found: found[0] if found[1] is None else found.expand(value), plain)

    def claims(self):
        """Yields the claims that are not true."""
        for found in CLAIM.finditer(self.body):
            if found[1] is not None and not self.value_of(found[1]):
                yield f"{self.path}: not true: {found[1]}"

    def misplaced(self):
        """Yields comments that do not work at their place."""
        for line in self.body.splitlines():
            if re.match(r"[ >*-]{,3}<!--", line):
                yield f"{self.path}: a line begins with a comment: {line[:60]}"
            if line.startswith("|") and any("|" in comment for comment in re.findall(r"<!--.*?-->", line)):
                yield f"{self.path}: a bar in a comment of a table: {line[:60]}"
        for line in self.read().splitlines():
            if not line.startswith("    ") and re.search(r"<!--|-->", line):
                yield f"{self.path}: a comment that is neither a claim nor of a value: {line[:60]}"

    def numbers(self):
        """Yields the faults of the page: numbers that are in no expression, code, address or literal, and literals that
        the page does not have."""
        text = re.sub(r"^    .*", "", self.read(r"\2{}"), flags=re.M)
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
        for literal in sorted(self.literals, key=len, reverse=True):  # a short literal may be part of a longer one
            phrase = r"\s+".join(re.escape(word) for word in literal.split())
            text, count = re.subn(rf"(?<![\w.]){phrase}(?!\w|\.\d)", "", text)
            if not count:
                yield f'{self.path}: the literal "{literal}" is not in it'
        for line in [] if self.unlisted else text.splitlines():
            for found in re.finditer(r"(?<![\w.])[+−-]?\d[\d,.]*", line):
                yield (
                    f"{self.path}: {found[0].rstrip('.,')} is neither an expression nor a literal: "
                    f"{line[max(0, found.start() - 30) : found.end() + 20].strip()}"
                )

    def long_lines(self):
        for line in self.read().splitlines():
            if len(line) > LONGEST and not line.startswith(("|", "    ")):
                yield f"{self.path}: a line has {len(line)} characters: {line[:60]}"
            for cell in re.split(r"(?<!\\)\|", line) if line.startswith("|") else ():
                if len(cell.split()) > WORDS:
                    yield f"{self.path}: a cell has {len(cell.split())} words: {cell.strip()[:60]}"


# ---- results.json ----

METRICS = {
    "val_loss": "val_loss",
    "balance": "trained_balance",
    "load_max": "trained_load_max",
    "dead_experts": "trained_dead",
    "routing_entropy": "routing_entropy",
    "kappa_rows_own": "trained_rows_own",
}


def near(one, other, size):
    """Returns whether two figures, made of numbers of that size that were rounded to six digits, can be equal."""
    return abs(one - other) <= 1e-5 * size + 1e-9


def both(table, experiment, results):
    """Yields (name, figure of results.json, the table's figure, the size of a run's figure) for all figures that both
    have."""
    columns = {path: name for name, path in runs_table.FIGURES.items()}
    for arm, label in itertools.product(experiment["arms"], experiment.get("report", {})):
        found, name = results["checkpoints"][arm][label], columns[experiment["report"][label]]
        if not found:
            continue
        own = table.spread(name, arm)
        size = max(map(abs, table.values(name, arm)))
        yield f"{arm}, {label}", found["mean"], own.mean, size
        yield f"{arm}, {label}, deviation", found["sd"], own.sd, size
        if name in runs_table.BY_LAYER:
            yield from (
                (f"{arm}, {label}, layer {at}", *pair, max(map(abs, pair)))
                for at, pair in enumerate(zip(found["layers"], table.layers(name, arm), strict=True))
            )
    for group in results.get("groups", []):
        arm = group["members"][0].rsplit("-s", 1)[0]
        for figure in METRICS.keys() & group["figures"].keys():
            found, own = group["figures"][figure], table.spread(METRICS[figure], arm)
            yield f"{arm}, {figure}", found["mean"], own.mean, abs(own.mean)
            yield f"{arm}, {figure}, deviation", found["sd"], own.sd, abs(own.mean)
    for group in results.get("comparisons", []):
        arm, base = (group["pairs"][0][key].rsplit("-s", 1)[0] for key in ("other", "base"))
        own, size = table.difference("val_loss", arm, base), table.mean("val_loss", arm)
        yield from (
            (f"{arm} less {base}, {key}", group[key], getattr(own, key), size) for key in ("mean", "low", "high")
        )
    base = experiment["arms"][0]
    for arm, found in results.get("bits_per_byte_pairs", {}).items():
        own, size = table.difference("bpb", arm, base), table.mean("bpb", arm)
        yield from (
            (f"{arm} less {base}, bits per byte, {key}", found[key], getattr(own, key), size)
            for key in ("mean", "low", "high")
        )


def disagreements(table):
    """Yields figures of a results.json (experiments/tools/make.py) that differ from the table."""
    for experiment in json.loads((HOME / "list.json").read_text())["experiments"]:
        here = HOME / experiment["folder"] / "results.json"
        if experiment.get("cost") or not here.exists():
            continue
        for what, found, own, size in both(table, experiment, json.loads(here.read_text())):
            if not near(found, own, size):
                yield f"{here}: {what}: {found}, in the table {own:.6g}"


# ---- the command ----


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    table = Table()
    names, wrong = names_of(table), []
    pages = sorted([*HOME.rglob("*.md"), *(ROOT / "docs").glob("*.md")])
    listed = [path for path in pages if LIST.search(path.read_text())]
    wrong += [f"{path} has no list of numbers" for path in HOME.rglob("README.md") if path not in listed]
    for path in listed:
        try:
            page = Page(path, names)
            text = page.filled()
            wrong += [*page.claims(), *page.misplaced(), *page.numbers(), *page.long_lines()]
        except ValueError as error:
            wrong.append(str(error))
            continue
        if not words.check:
            path.write_text(text)
        elif page.text != text:
            wrong.append(f"{path} has other values than its expressions give; experiments/tools/texts.py writes them")
    wrong += disagreements(table)
    print("\n".join(wrong) if wrong else f"{len(listed)} texts")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
