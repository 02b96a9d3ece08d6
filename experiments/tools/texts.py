#!/usr/bin/env python3
"""texts.py [--check]: writes every page of experiments/ and docs/ that has a template beside it, whose name
has .in before .md; every README.md under experiments/ has one.

{{ expression | form }} in a template is a number of our runs: a Python expression over experiments/runs.csv
(experiments/tools/runs_table.py) with the functions of names_of, printed by a form of experiments/tools/table_figures.py: digits after the
point, before them + for a sign, behind them % or e-5 for the scale. {{ expression }} without a form is a whole number
or words.

A template begins with a comment, which is not copied. Its lines are

    let NAME = EXPRESSION     a name for expressions of this template
    literal PHRASE            a phrase with numbers that are not results of our runs: of the paper or the design
    unlisted                  most numbers of the page are of the paper: those outside of {{ }} are not checked
    # REMARK

--check writes nothing. It exits with 1 if a page is not what its template gives; if a template has a number
outside of {{ }}, of literals and of code, or a literal that is not in it; if a line of prose has more than LONGEST
characters; or if a figure of a results.json differs from the table."""

import argparse
import itertools
import json
import math
import pathlib
import re
import statistics
import sys

import runs_table
from answers import Answers
from table_figures import FORM, Table, interval, printed, span

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOME = ROOT / "experiments"
LONGEST = 125
FIRST_LINE = "<!-- Made by experiments/tools/texts.py from {}: change that file. -->\n"
EXPRESSION = re.compile(r"^    [^\n]*|\{\{(.*?)\}\}", re.S | re.M)  # or a line of code, which is copied


# ---- what expressions can use ----


def result(folder, path):
    """A figure of results.json that the table cannot have (a measured cost, a bootstrap over documents, a search for a
    power): members by name, entries of a list by their "group" or number."""
    value = json.loads((HOME / folder / "results.json").read_text())
    for key in path.split("/"):
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() else next(one for one in value if one["group"] == key)
        else:
            value = value[key]
    return value


def claim(truth):
    """Nothing is printed. A sentence that says so in words stands behind it, and is wrong if this is not true."""
    if not truth:
        raise ValueError("the claim is not true")
    return ""


def up(value, step):
    """A bound is rounded up, to a multiple of step."""
    return math.ceil(value / step) * step


def names_of(table):
    """FIRST are the arms of the first series: those of the second begin with the letter of their block."""
    answers = Answers(table)

    def blocks(figure, groups, arms, bases):
        """In each block, which is a seed of a group of arms, the mean of those that are among arms less the mean of
        those among bases."""
        return [
            statistics.fmean(table.value(figure, arm, seed) for arm in group if arm in arms)
            - statistics.fmean(table.value(figure, arm, seed) for arm in group if arm in bases)
            for group in groups
            for seed in sorted(set.intersection(*(set(table.seeds(arm)) for arm in group)))
        ]

    def cells(figure, arms, forms, kind=table.spread):
        """Cells of a row of a table, one an arm; the last form is for the rest of them."""
        forms = forms.split()
        forms += forms[-1:] * (len(arms) - len(forms))
        return " | ".join(printed(kind(figure, arm), form) for arm, form in zip(arms, forms, strict=True))

    def equal_time(arm, base="vanilla"):
        """(tokens, difference of validation loss in each pair): the arm stopped when base is done, by the cost that
        was measured."""
        end = table.listed("val_loss_by_time", base, table.paired(arm, base)[0])[-2]
        tokens = end / max(1, result("overhead", f"arms/{arm}/time_over_vanilla"))
        return tokens, [
            table.loss_at(tokens, arm, seed) - table.loss_at(end, base, seed) for seed in table.paired(arm, base)
        ]

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
        result,
        claim,
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


# ---- templates ----


class Template:
    def __init__(self, path, names):
        self.path = path
        text = path.read_text()
        head = re.match(r"<!--(.*?)-->\n", text, re.S)
        if not head:
            raise ValueError(f"{path} does not begin with its comment")
        self.body, self.literals, self.names = text[head.end() :], [], {"__builtins__": {}, **names}
        self.unlisted = False
        for line in head[1].splitlines():
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

    def filled(self):
        def value(found):
            if found[1] is None:
                return found[0]
            expression, _, form = (part.strip() for part in found[1].rpartition("|"))
            if not FORM.fullmatch(form):
                expression, form = found[1].strip(), None
            try:
                got = eval(" ".join(expression.split()), self.names)
                if form is None and not isinstance(got, (str, int)):
                    raise ValueError("a number without a form")
                return str(got) if form is None else printed(got, form)
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
                raise ValueError(f"{self.path}: {{{{ {found[1].strip()} }}}}: {error!r}") from None

        return FIRST_LINE.format(self.path.name) + EXPRESSION.sub(value, self.body)

    def in_code(self):
        """Expressions in lines of code, which are copied as they are; experiments/README.in.md shows some."""
        if self.path != HOME / "README.in.md":
            yield from (
                f"{self.path}: an expression in a line of code: {line.strip()}"
                for line in re.findall(r"^    .*{{.*", self.body, re.M)
            )

    def numbers(self):
        """What is wrong: numbers that are in no expression, no code, no address and no literal; literals that are not
        there."""
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", EXPRESSION.sub("{}", self.body))
        for literal in sorted(self.literals, key=len, reverse=True):  # a short one may be part of a long one
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


def long_lines(path, text):
    return [
        f"{path}:{at} has {len(line)} characters"
        for at, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST and not line.startswith(("|", "    ", "<!--"))
    ]


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
    """Whether two figures, made of numbers of that size that were rounded to six digits, can be the same."""
    return abs(one - other) <= 1e-5 * size + 1e-9


def both(table, experiment, results):
    """(what, figure of results.json, the table's, the size of a run's) of all figures that both have."""
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
    """What is wrong: figures of a results.json (experiments/tools/make.py) that are not those of the table."""
    for experiment in json.loads((HOME / "list.json").read_text())["experiments"]:
        here = HOME / experiment["folder"] / "results.json"
        if experiment.get("cost") or not here.exists():
            continue
        for what, found, own, size in both(table, experiment, json.loads(here.read_text())):
            if not near(found, own, size):
                yield f"{here}: {what}: {found}, in the table {own:.6g}"


# ---- the whole ----


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    words.add_argument("--check", action="store_true")
    words = words.parse_args()
    table = Table()
    names, wrong = names_of(table), []
    templates = sorted([*HOME.rglob("*.in.md"), *(ROOT / "docs").glob("*.in.md")])
    wrong += [
        f"{page} has no template"
        for page in sorted(HOME.rglob("README.md"))
        if not page.with_name("README.in.md").exists()
    ]
    for path in templates:
        try:
            template = Template(path, names)
            text = template.filled()
        except ValueError as error:
            wrong.append(str(error))
            continue
        page = path.with_name(path.name.replace(".in.md", ".md"))
        wrong += [*template.in_code(), *template.numbers(), *long_lines(page, text)]
        if not words.check:
            page.write_text(text)
        elif not page.exists() or page.read_text() != text:
            wrong.append(f"{page} is not what its template gives; experiments/tools/texts.py writes it")
    wrong += disagreements(table)
    print("\n".join(wrong) if wrong else f"{len(templates)} texts")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
