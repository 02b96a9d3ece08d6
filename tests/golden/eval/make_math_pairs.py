"""Writes math_pairs.json.gz: answers of MATH with other spellings, made by rule, and with texts that are nearly
answers, and whether lm-evaluation-harness 0.4.13 finds each pair equal (`is_equiv` of its minerva_math, by SymPy).

    python make_math_pairs.py TEST.jsonl       TEST.jsonl: rows of MATH (https://github.com/hendrycks/math)

Needs lm-eval[math]: sympy, math_verify, antlr4-python3-runtime 4.11. Takes minutes. Pairs that are equal texts after
lm-eval's normalisation are left out.
"""

import gzip
import json
import multiprocessing
import pathlib
import random
import re
import sys

from lm_eval.tasks.minerva_math.utils import is_equiv, normalize_final_answer

ATOM = r"(?:\\[a-zA-Z]+|[a-zA-Z]|\d+)"
FRACTION = r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}"


def bracketed(text):
    return text if re.fullmatch(ATOM, text) else f"({text})"


def terms(text):
    """Returns the terms of a sum, with their signs, outside of brackets, or [] if it has a comma or an equals sign."""
    depth, parts, start = 0, [], 0
    for at, c in enumerate(text):
        depth += (c in "({[") - (c in ")}]")
        if depth == 0 and c in ",=<>":
            return []
        if depth == 0 and c in "+-" and text[start:at].strip():
            parts.append(text[start:at].strip())
            start = at
    parts.append(text[start:].strip())
    return [p if p[:1] in "+-" else "+" + p for p in parts]


def other_order(text, random_):
    parts = terms(text)
    if len(parts) < 2:
        return text
    random_.shuffle(parts)
    return "".join(parts).removeprefix("+")


def every(pattern, to):
    return lambda text, random_: re.sub(pattern, to, text)


def once(pattern, to):
    """Returns a rule that replaces one of the matches."""

    def apply(text, random_):
        found = list(re.finditer(pattern, text))
        if not found:
            return text
        m = random_.choice(found)
        return text[: m.start()] + (to(m) if callable(to) else m.expand(to)) + text[m.end() :]

    return apply


def around(before, after=""):
    return lambda text, random_: before + text + after


def whole(pattern, to):
    """Returns a rule that replaces the whole text if it matches the pattern."""

    def apply(text, random_):
        m = re.fullmatch(pattern, text)
        return text if not m else to(m) if callable(to) else m.expand(to)

    return apply


def decimal(m):
    a, b = int(m[1]), int(m[2])
    value = a / b if b else 0
    return f"{value:.6f}".rstrip("0").rstrip(".") if b and abs(value * 10**6 - round(value * 10**6)) < 1e-9 else m[0]


def square_out(m):
    return rf"\sqrt{{{int(m[1]) ** 2 * int(m[2])}}}"


SPELLINGS = [
    every(r"([\^_])([a-zA-Z0-9])(?![0-9])", r"\1{\2}"),
    every(r"([\^_])\{([a-zA-Z0-9])\}", r"\1\2"),
    every(r"\\frac", r"\\dfrac"),
    every(r"\\[dt]?frac", r"\\tfrac"),
    every(r"\\dfrac", r"\\frac"),
    every(FRACTION, lambda m: f"{bracketed(m[1])}/{bracketed(m[2])}"),
    every(FRACTION, r"{\1}/{\2}"),
    every(FRACTION, lambda m: f"{bracketed(m[1])}\\div {bracketed(m[2])}"),
    every(FRACTION, lambda m: rf"{bracketed(m[1])}\cdot\frac{{1}}{{{m[2]}}}"),
    every(FRACTION, lambda m: rf"\frac{{1}}{{{m[2]}}}\cdot {bracketed(m[1])}"),
    every(FRACTION, lambda m: f"{bracketed(m[1])}*{bracketed(m[2])}^{{-1}}"),
    every(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"),
    every(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}"),
    every(r"(\d+)/(\d+)", r"\\frac{\1}{\2}"),
    every(r"-\\frac\{(\w+)\}", r"\\frac{-\1}"),
    every(r"-\\frac\{(\w+)\}\{(\w+)\}", r"\\frac{\1}{-\2}"),
    every(r"\\frac\{(\d+)\}\{(\d+)\}", lambda m: rf"\frac{{{2 * int(m[1])}}}{{{2 * int(m[2])}}}"),
    every(r"\\frac\{(\d+)\}\{(\d+)\}", decimal),
    every(r"\\frac\{(\\sqrt\{\d+\})\}\{(\d+)\}", r"\\frac{1}{\2}\1"),
    every(r"\\frac\{(\\sqrt\{\d+\})\}\{(\d+)\}", r"\1/\2"),
    every(r"\\frac\{\\sqrt\{(\d+)\}\}\{(\d+)\}", r"\\sqrt{\\frac{\1}{\2^2}}"),
    every(r"\s*([+=,-])\s*", r"\1"),
    every(r"\s*([+=,-])\s*", r" \1 "),
    every(r"(?<=[\d}])(?=[a-zA-Z(])", " "),
    every(r"(\d)([a-zA-Z])", r"\1*\2"),
    every(r"(\d)(\\[a-z])", r"\1*\2"),
    every(r"(\d)(\\[a-z])", r"\1\\cdot\2"),
    every(r"(\d)([a-zA-Z])", r"\1\\cdot{\2}"),
    every(r"(\d)\s*(\\sqrt\{\d+\})", r"\2\\cdot\1"),
    every(r"(\d)\s*(\\sqrt\{\d+\})", r"\2*\1"),
    every(r"(\d+)\s*(\\sqrt\{\d+\})", r"(\1)(\2)"),
    every(r"(\d+)\s*(\\pi)(?![a-zA-Z])", r"\2\\times\1"),
    every(r"(\d+)\s*(\\pi)(?![a-zA-Z])", r"\1(\2)"),
    every(r"(\d+)([a-zA-Z](?:\^\d+)?)", r"\2\\cdot\1"),
    every(r"(?<![\d.])(\d+)\s*\\sqrt\{(\d+)\}", square_out),
    every(r"\\sqrt\{(\d+)\}", r"\1^{1/2}"),
    every(r"\\sqrt\{(\d+)\}", r"\1^{\\frac{1}{2}}"),
    every(r"\\sqrt\{(\d)\}", r"\\sqrt\1"),
    every(r"\\sqrt\{(\d+)\}", r"\\sqrt[2]{\1}"),
    other_order,
    other_order,
    every(r"(?<!\\left)\(", r"\\left("),
    every(r"(?<!\\right)\)", r"\\right)"),
    lambda text, random_: re.sub(r"\)", r"\\right)", re.sub(r"\(", r"\\left(", text)) if "\\left" not in text else text,
    every(r"\\(left|right)", ""),
    whole(r"[^-+,=]+", r"+\g<0>"),
    whole(r"[^,=]+", r"(\g<0>)"),
    whole(r"[^,=]+", r"{\g<0>}"),
    whole(r"\\text\{\(?(\w)\)?\}", r"\1"),
    whole(r"\\text\{\(?(\w)\)?\}", r"(\1)"),
    whole(r"\\text\{(.*)\}", r"\1"),
    whole(r"\\text\{(.*)\}", r"\\textbf{\1}"),
    whole(r"\\text\{(.*)\}", r"\\mbox{\1}"),
    whole(r"\w", r"\\text{(\g<0>)}"),
    whole(r"-?\d+", r"\g<0>.0"),
    whole(r"-?\d+\.\d+", r"\g<0>0"),
    whole(r"-?\d+", r"\g<0>.00"),
    whole(r"-?\d{4,}", lambda m: f"{int(m[0]):,}"),
    whole(r"-?\d{4,}", lambda m: f"{int(m[0]):,}".replace(",", "{,}")),
    whole(r"-?\d{4,}", lambda m: f"{int(m[0]):,}".replace(",", r",\!")),
    every(r",\\!", ","),
    every(r",\\!", ""),
    whole(r"\d+(?:\.\d+)?", r"\\$\g<0>"),
    every(r"\\\$", ""),
    whole(r"\d+(?:\.\d+)?", r"\g<0>\\text{ cm}"),
    whole(r"\d+(?:\.\d+)?", r"\g<0>\\text{ square units}"),
    whole(r"\d+(?:\.\d+)?", r"\g<0>^\\circ"),
    whole(r"\d+(?:\.\d+)?", r"\g<0>^{\\circ}"),
    every(r"\^\\circ", ""),
    every(r"\s*\\text\{.*?\}", ""),
    every(r"\\%", ""),
    whole(r"[^=]+", r"x = \g<0>"),
    whole(r"[^=]+", r"x=\g<0>"),
    every(r".*=\s*", ""),
    around("$", "$"),
    around("\\boxed{", "}"),
    whole(r"\d{2,}", lambda m: f"{m[0][:-1]}\\cdot10+{m[0][-1]}"),
    whole(r"\d+", lambda m: f"{int(m[0]) - 1}+1"),
    whole(r"\d+", lambda m: rf"\frac{{{3 * int(m[0])}}}{{3}}"),
    whole(r"-(\d+)", r"-(\1)"),
    whole(r"-(\d+)", r"(-1)\\cdot\1"),
    whole(r"(\d+)", r"\\sqrt{\1^2}"),
    whole(r"(-?\d+)_\{?(\d+)\}?", r"\1_{\2}"),
    whole(r"(-?\d+)_\{?(\d+)\}?", r"\1"),
    whole(r"\.(\d+)", r"0.\g<1>"),
    whole(r"0?\.(\d+)", r".\1"),
    once(r"\+", r"\\,+\\,"),
]
NEAR = [
    once(r"\+", "-"),
    once(r"-", "+"),
    once(r"\d", lambda m: str((int(m[0]) + 1) % 10)),
    once(r"[xyzabn]", "t"),
    once(r"\^", ""),
    once(r"[{}]", ""),
    once(r"[()]", ""),
    once(r"\\frac", ""),
    once(r"\d", lambda m: m[0] + "0"),
    once(r"/", "*"),
    once(r"\*", ""),
    once(r"\\cdot", "+"),
    once(r"(\d)(?=[a-zA-Z\\(])", r"\1/"),
    once(r"\\sqrt", ""),
    once(r"\.", ""),
    once(r"\d", lambda m: "." + m[0]),
    around("-"),
    around("", "."),
    around("0"),
    around("", "x"),
    once(r"(\w)\^", r"\1x^"),
    once(r"(\w)", r"\1!"),
    once(r"(\w)", r"x\1"),
    once(r"(\d)", r"\1_2"),
    once(r"\^\{?(\w+)\}?", r"^\1^2"),
    around("", ",1"),
    once(r"\^\{?(\w+)\}?", r"^{-\1}"),
    once(r"(\w)", r"d\1"),
    around("", "\\%"),
    around("", "^2"),
    around("2"),
    around("1/"),
]


def boxed(solution):
    begin = solution.rindex("\\boxed") + len("\\boxed{")
    depth = 1
    for at in range(begin, len(solution)):
        depth += (solution[at] == "{") - (solution[at] == "}")
        if not depth:
            return solution[begin:at]


def spellings_of(answer, random_):
    """Yields spellings by each rule, and by two or three rules."""
    for rule in SPELLINGS:
        yield rule(answer, random_)
    for _ in range(40):
        text = answer
        for rule in random_.choices(SPELLINGS, k=random_.choice((2, 3))):
            text = rule(text, random_)
        yield text


def near_misses_of(answer, random_):
    for _ in range(30):
        text = random_.choice(SPELLINGS)(answer, random_)
        for rule in random_.choices(NEAR, k=random_.choice((1, 1, 2))):
            text = rule(text, random_)
        yield text


def judged(pair):
    return [*pair, int(bool(is_equiv(*map(normalize_final_answer, pair))))]


def main(rows):
    random_, lists = random.Random(0), {"spellings": spellings_of, "near": near_misses_of}
    answers = sorted({boxed(json.loads(row)["solution"]) for row in pathlib.Path(rows).open()})
    for name, make in lists.items():
        pairs = {}
        for answer in answers:
            for text in make(answer, random_):
                key = normalize_final_answer(answer), normalize_final_answer(text)
                if key[0] != key[1]:
                    pairs.setdefault(key, (answer, text))
        with multiprocessing.Pool() as pool:
            lists[name] = pool.map(judged, sorted(pairs.values()), chunksize=20)
        print(name, len(pairs), "of which are equal for lm-eval:", sum(pair[2] for pair in lists[name]))
    out = pathlib.Path(__file__).with_name("math_pairs.json.gz")
    out.write_bytes(gzip.compress(json.dumps(lists, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
