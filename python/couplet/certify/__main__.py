"""Is a loss of MoE training right, and if not, which fault does it have?

    python -m couplet.certify my_module:my_loss --loss load-balancing-mixtral

Without --loss: the kinds as which it is right. --loss erc, or a callable that takes router rows and gates: the
coupling loss, with the options of `--loss erc --help`.

Exit code 0: right; 1: wrong; 2: not judged, with the reason."""
from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import pathlib
import sys
from typing import Any, Dict, List, Optional

import torch

from .. import _erc_dumps
from .._erc_callable import Loss
from . import CannotJudge, KINDS, Verdict, as_json, details, fitting, judge, kind_of, sentence
from ._call import MANY, dumps
from ._dump import of_kind, read, write
from .._import import load
from ._pages import page


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m couplet.certify", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("callable", nargs="?", help="my_module:my_loss, file.py:my_loss, or a dump: FILE.safetensors")
    parser.add_argument("--list", action="store_true", help="the kinds and their faults, as docs/losses.md has them")
    parser.add_argument("--loss", metavar="KIND", help="erc, " + ", ".join(KINDS))
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[],
                        help="an input that it has inside and does not take, as top_k=2")
    parser.add_argument("--logits", choices=MANY, help="how it takes the logits of several layers; default: tried")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--details", action="store_true", help="also the numbers, and what the inputs cannot show")
    parser.add_argument("--json", metavar="FILE", help="the verdict for programs")
    parser.add_argument("--keep", metavar="FOLDER", help="the inputs and what came out are kept here, as dumps")
    return parser


def _fixed(words: List[str]) -> Dict[str, Any]:
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = int(value) if value.isdigit() else float(value)
        except ValueError:
            raise CannotJudge(f"--set {word}: must be NAME=NUMBER") from None
    return found


def _is_coupling(function: Any) -> bool:
    """Whether its arguments are those of the coupling loss."""
    try:
        keywords = Loss(function).keywords
    except CannotJudge:
        return False
    if keywords is not None:
        return {"router", "w_gate"} <= set(keywords)
    names = {theirs for kind in KINDS.values() for ours in kind.needs for theirs in kind.inputs[ours]}
    return not names & set(inspect.signature(function).parameters)


def _kinds_of(path: str, loss: Optional[str]) -> List[Verdict]:
    """The verdict on a dump as the kind that is named, here or in the file; without one, of all as which it is right."""
    dump, named = read(path)
    if loss or named:
        kind = kind_of(loss or named or "")
        return [judge(kind, [of_kind(dump, kind)])]
    verdicts = []
    for kind in KINDS.values():
        with contextlib.suppress(CannotJudge):
            verdicts.append(judge(kind, [of_kind(dump, kind)]))
    return [one for one in verdicts if one.state == "right"]


def _said(verdict: Verdict, args: argparse.Namespace) -> int:
    print(f"{args.callable}: {sentence(verdict)}")
    for line in details(verdict) if args.details else details(verdict)[:len(verdict.sets)] if verdict.exit_code else ():
        print(f"  {line}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(as_json(verdict), indent=1) + "\n")
    return verdict.exit_code


def _run(args: argparse.Namespace) -> int:
    if args.callable.endswith(".safetensors"):
        verdicts = _kinds_of(args.callable, args.loss)
        if not verdicts:
            raise CannotJudge("it is right as none of " + ", ".join(KINDS) + "; name the one it should be with --loss")
        return max(_said(verdict, args) for verdict in verdicts)
    function = load(args.callable)
    settings = {"dtype": getattr(torch, args.dtype), "device": args.device, "seed": args.seed,
                "fixed": _fixed(args.set), "logits": args.logits}
    if args.loss is None:
        found = fitting(function, **settings)
        if not found:
            raise CannotJudge("it is right as none of " + ", ".join(KINDS) + "; name the one it should be with --loss")
        print(f"{args.callable}: right as {', '.join(found)}")
        return 0
    made = dumps(function, kind_of(args.loss), **settings)
    if args.keep:
        pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
        for dump in made:
            write(pathlib.Path(args.keep) / f"{dump.name}.safetensors", dump, args.loss)
    return _said(judge(kind_of(args.loss), made), args)


def main(words: Optional[List[str]] = None) -> int:
    words = sys.argv[1:] if words is None else words
    if "--loss" in words and words[words.index("--loss") + 1:][:1] == ["erc"]:
        at = words.index("--loss")
        return _erc_dumps.main(words[:at] + words[at + 2:])
    args, _ = _parser().parse_known_args(words)
    if args.list:
        print(page(), end="")
        return 0
    if not args.callable:
        _parser().error("name a callable: my_module:my_loss")
    try:
        if args.loss is None and not args.callable.endswith(".safetensors") and _is_coupling(load(args.callable)):
            return _erc_dumps.main(words)
        return _run(_parser().parse_args(words))
    except CannotJudge as error:
        print(f"couplet.certify: {args.callable}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
