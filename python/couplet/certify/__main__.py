"""Judges whether a loss of MoE training is right, and if not, which fault it has.

    python -m couplet.certify my_module:my_loss --loss load-balancing-mixtral
    python -m couplet.certify FILE.safetensors...               # dumps: docs/losses.md, docs/certify.md

Without --loss the kinds as which the loss is right are listed. A callable that takes router rows and gates is judged
as `erc`, the coupling loss.

Exit code 0: right; 1: wrong; 2: not judged, with the reason; 130: interrupted. With several dumps the code is 1 if one
is wrong, and otherwise 2 if one is not judged."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ..report._files import complain, reason, say
from . import KINDS, CannotJudge, Verdict, _names, as_json, certify, details, judge, sentence
from ._call import FORMS
from ._dump import of_kind, read
from ._import import load, named, raised, signature_of
from ._judge import right_kinds
from ._report import page, remedies
from .kinds import kind_of

NOT_JUDGED = "not judged"
OF_CALLABLES = ("set", "dtype", "device", "seed", "logits")  # options that are not for dumps
NONE_FITS = "it is right as none of " + ", ".join(KINDS) + "; name the one it should be with --loss"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m couplet.certify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("callable", nargs="*", help="my_module:my_loss, file.py:my_loss, or dumps: FILE.safetensors...")
    add("--list", action="store_true", help="the kinds and their faults, as docs/losses.md has them")
    add("--loss", metavar="KIND", help=", ".join(KINDS))
    add(
        "--set", metavar="NAME=VALUE", action="append", help="an input that it has inside and does not take, as top_k=2"
    )
    add("--alpha", dest="set", action="append", type="alpha={}".format, help="as --set alpha=VALUE")
    add("--weight", dest="set", action="append", type="coefficient={}".format, help="as --set coefficient=VALUE")
    add("--logits", choices=FORMS, help="how it takes the logits of several layers; default: tried")
    add("--dtype", choices=("float32", "float64", "bfloat16", "float16"), help="default: float64, or else float32")
    add("--device", help="default: cpu")
    add("--seed", type=int, help="of the inputs; default: 0")
    add("--details", action="store_true", help="also the numbers, and what the inputs cannot show")
    help_ = "the verdict for programs, of several dumps a list; - writes it alone to standard output, and what the "
    add("--json", metavar="FILE", help=help_ + "callable prints to standard error")
    return parser


def _settings(args: argparse.Namespace) -> Dict[str, Any]:
    """Returns the settings of certify that were given."""
    given = {name: value for name in OF_CALLABLES if (value := getattr(args, name)) is not None}
    fixed = {}
    for word in given.pop("set", ()):
        name, _, value = word.partition("=")
        try:
            fixed[name] = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise CannotJudge(f"--set {word}: must be NAME=NUMBER") from None
    return {**given, "fixed": fixed, "dtype": getattr(torch, args.dtype) if args.dtype else None}


def _coupling(function: Callable[..., Any]) -> Optional[str]:
    """Returns the kind of coupling loss that has the names of the callable's arguments, or None."""
    try:
        names = set(_names.read(named(signature_of(function)), KINDS["erc-latent"].inputs))
    except (TypeError, ValueError):
        return None
    is_coupling = "router" in names and {"w_gate", "w_up", "w_gate_up"} & names
    return ("erc-latent" if "down" in names else "erc") if is_coupling else None


def _verdicts_on(name: str, args: argparse.Namespace) -> List[Verdict]:
    """Judges a dump or a callable as the named kind, or, without a name, as all kinds as which it is right."""
    kind: Optional[str] = None
    judge_as: Callable[[str], Verdict]
    if _is_dump(name):
        for option in OF_CALLABLES:
            if getattr(args, option) is not None:
                raise CannotJudge(f"--{option} is not for a dump")
        dump, kind = read(name)
        judge_as = lambda one: judge(kind_of(one), [of_kind(dump, kind_of(one))])
    else:
        settings, function = _settings(args), load(name)
        kind = _coupling(function)
        judge_as = lambda one: certify(function, one, **settings)
    kind = args.loss or kind
    verdicts = [judge_as(kind)] if kind else right_kinds(judge_as)
    if not verdicts:
        raise CannotJudge(NONE_FITS)
    return verdicts


def _said(name: str, args: argparse.Namespace) -> List[Tuple[int, Dict[str, Any]]]:
    """Prints the verdicts on a dump or a callable, and returns the exit code of each, and its JSON if it is asked for."""
    try:
        with contextlib.redirect_stdout(sys.stderr if args.json == "-" else sys.stdout):
            verdicts = _verdicts_on(name, args)
    except Exception as error:
        why = _refused(name, error)
        return [(2, {"dump": name, "verdict": NOT_JUDGED, "sentence": why})]
    for verdict in verdicts if args.json != "-" else ():
        lines = details(verdict) if args.details else remedies(verdict) if len(args.callable) == 1 else []
        say(f"{name}: {sentence(verdict)}", *(f"  {line}" for line in lines))
    of_file = {"dump": name} if _is_dump(name) else {}
    # The JSON has what the inputs cannot show, which takes most of the time. It is made only if it is written.
    return [(verdict.exit_code, {**as_json(verdict), **of_file} if args.json else {}) for verdict in verdicts]


def _refused(name: str, error: BaseException) -> str:
    """Prints why there is no verdict, and returns the first line of the reason."""
    if not isinstance(error, CannotJudge):
        expected = _is_dump(name) or isinstance(error, (OSError, MemoryError))
        error = CannotJudge(reason(error)) if expected else raised("judging it raises", error)
    first, *trace = [str(error)] if _is_dump(name) else str(error).split("\n")
    complain(f"couplet.certify: {name}: {first}", *trace)
    return first


def _is_dump(name: str) -> bool:
    return name.endswith(".safetensors")


def _run(args: argparse.Namespace) -> int:
    """Judges all names, writes the JSON, and returns the exit code. The JSON of several verdicts, or of several files,
    is a list. Files that are not judged have no JSON."""
    names = args.callable
    if len(names) > 1 and not all(map(_is_dump, names)):
        raise CannotJudge("of several all must be dumps, FILE.safetensors; a callable is judged by itself")
    if args.json and not pathlib.Path(args.json).parent.is_dir():
        raise CannotJudge(f"there is no folder {pathlib.Path(args.json).parent}")
    said = [one for name in names for one in _said(name, args)]
    members = [one for _, one in said]
    if args.json and (len(names) > 1 or members[0]["verdict"] != NOT_JUDGED):
        text = json.dumps(members if len(members) > 1 else members[0], indent=1) + "\n"
        say(*text.splitlines()) if args.json == "-" else pathlib.Path(args.json).write_text(text)
    codes = {code for code, _ in said}
    return 1 if 1 in codes else max(codes)


def main(words: Optional[List[str]] = None) -> int:
    args = _parser().parse_args(words)
    if not args.callable and not args.list:
        _parser().error("name a callable: my_module:my_loss")
    try:
        if args.list:
            say(*page().splitlines())
        return 0 if args.list else _run(args)
    except KeyboardInterrupt:
        complain("couplet.certify: interrupted; there is no verdict")
        return 130
    except BaseException as error:
        _refused(" ".join(args.callable), error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
