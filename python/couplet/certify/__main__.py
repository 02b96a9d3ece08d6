"""Is a loss of MoE training right, and if not, which fault does it have?

    python -m couplet.certify my_module:my_loss --loss load-balancing-mixtral
    python -m couplet.certify FILE.safetensors...               # dumps: docs/losses.md, docs/certify.md

Without --loss: the kinds as which it is right; of a callable that takes router rows and gates, the coupling loss, `erc`.

Exit code 0: right; 1: wrong; 2: not judged, with the reason; 130: interrupted. Of several dumps 1 if one is
wrong, else 2 if one is not judged."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from ..report._files import complain, reason, say
from . import KINDS, CannotJudge, Verdict, as_json, details, erc, fitting, judge, kind_of, rounding_on, sentence
from ._call import MANY, check_settings, dumps
from ._dump import of_kind, read, save, tensors_in, write
from ._import import load, raised, signature_of
from ._pages import page
from .erc.call import Loss

ANY = Union[Verdict, erc.Certificates]
NOT_JUDGED = "not judged"
NONE_FITS = "it is right as none of " + ", ".join(KINDS) + "; name the one it should be with --loss"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m couplet.certify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("callable", nargs="*", help="my_module:my_loss, file.py:my_loss, or dumps: FILE.safetensors...")
    parser.add_argument("--list", action="store_true", help="the kinds and their faults, as docs/losses.md has them")
    parser.add_argument("--loss", metavar="KIND", help="erc, " + ", ".join(KINDS))
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", help="an input that it has inside and does not take, as top_k=2"
    )
    parser.add_argument("--alpha", help="as --set alpha=VALUE: that of a coupling loss that takes none")
    parser.add_argument("--weight", help="as --set weight=VALUE; 1 by default")
    parser.add_argument("--logits", choices=MANY, help="how it takes the logits of several layers; default: tried")
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16", "float16"), help="default: float32")
    parser.add_argument(
        "--rounding",
        choices=("f32", "bf16"),
        help="what is let pass; default: bf16 where a number has 16 bits. f32: TF32 too, but for erc",
    )
    parser.add_argument("--device", help="default: cpu")
    parser.add_argument("--seed", type=int, help="of the inputs; default: 0")
    parser.add_argument("--details", action="store_true", help="also the numbers, and what the inputs cannot show")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="the verdict for programs, of several dumps a list; - writes it "
        "alone to standard output, and what the callable prints to standard error",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="the inputs and what came out are kept here, as dumps")
    return parser


def _fixed(args: argparse.Namespace) -> Dict[str, Any]:
    found = {}
    given = [f"{name}={getattr(args, name)}" for name in ("alpha", "weight") if getattr(args, name) is not None]
    for word in (*(args.set or ()), *given):
        name, _, value = word.partition("=")
        try:
            found[name] = int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise CannotJudge(f"--set {word}: must be NAME=NUMBER") from None
    return found


def _is_coupling(function: Any) -> bool:
    """Whether its arguments are those of the coupling loss."""
    try:
        keywords, taken = Loss(function).keywords, set(signature_of(function).parameters)
    except (CannotJudge, TypeError, ValueError):
        return False
    if keywords is not None:
        return "router" in keywords and bool({"w_gate", "w_up", "w_gate_up"} & set(keywords))
    names = {theirs for kind in KINDS.values() for ours in kind.needs for theirs in kind.inputs[ours]}
    return not names & taken


def _dtype(args: argparse.Namespace) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, args.dtype or "float32")
    return dtype


def _rounded(args: argparse.Namespace) -> Optional[bool]:
    return None if args.rounding is None else args.rounding == "bf16"


def _of_dump(args: argparse.Namespace, path: str) -> List[ANY]:
    """The verdict on a dump as the kind that is named, here or in the file; without one, of all as which it is right."""
    _refuse(args, "a dump", "logits", "seed", "keep", "alpha", "weight", "set", "dtype", "device")
    tensors, metadata = tensors_in(pathlib.Path(path))
    name = args.loss or metadata.get("kind") or ("erc" if {"R", "W_g"} & set(tensors) else None)
    if name == "erc":
        return [erc.judge({path: tensors}, _rounded(args))]
    dump = read(path)[0]
    if name:
        kind = kind_of(name)
        return [judge(kind, [of_kind(dump, kind)], args.rounding)]
    verdicts: List[ANY] = []
    reasons: List[str] = []
    for kind in KINDS.values():
        try:
            verdicts.append(judge(kind, [of_kind(dump, kind)], args.rounding))
        except CannotJudge as error:
            reasons.append(str(error))
    if not verdicts:
        raise CannotJudge("it can be judged as no kind; of most: " + max(reasons, key=reasons.count))
    return [one for one in verdicts if one.exit_code == 0]


def _members(verdict: ANY, name: str) -> Dict[str, Any]:
    """Of a dump file with its name; of the coupling loss, its certificate alone."""
    members = as_json(verdict)
    if isinstance(verdict, erc.Certificates) and list(verdict.found) == [name]:
        return dict(members["dumps"][name])
    return {**members, "dump": name} if _is_dump(name) else members


def _print(verdict: ANY, name: str, args: argparse.Namespace) -> None:
    if isinstance(verdict, erc.Certificates) and len(verdict.found) > 1:
        for key, one in verdict.found.items():
            say(f"  {key}: {erc.report.sentence(one)}")
    say(f"{name}: {sentence(verdict)}")
    lines = details(verdict)
    for line in lines if args.details else lines[: _remedies(verdict)] if len(args.callable) == 1 else ():
        say(f"  {line}")


def _said(name: str, args: argparse.Namespace) -> List[Tuple[int, Dict[str, Any]]]:
    """The verdicts on a dump or a callable, printed: exit code and JSON of each."""
    try:
        with contextlib.redirect_stdout(sys.stderr if args.json == "-" else sys.stdout):
            verdicts = _of_dump(args, name) if _is_dump(name) else _of_callable(args, name)
        if not verdicts:
            raise CannotJudge(NONE_FITS)
    except Exception as error:
        why = _refused(name, error)
        return [(2, {"dump": name, "verdict": NOT_JUDGED, "sentence": why})]
    for verdict in verdicts if args.json != "-" else ():
        _print(verdict, name, args)
    return [(verdict.exit_code, _members(verdict, name)) for verdict in verdicts]


def _refused(name: str, error: BaseException) -> str:
    """Prints why there is no verdict; its first line."""
    if not isinstance(error, CannotJudge):
        expected = _is_dump(name) or isinstance(error, (OSError, MemoryError))
        error = CannotJudge(reason(error)) if expected else raised("judging it raises", error)
    first, *trace = [str(error)] if _is_dump(name) else str(error).split("\n")
    complain(f"couplet.certify: {name}: {first}", *trace)
    return first


def _remedies(verdict: ANY) -> int:
    """How many of its details say how it is mended."""
    if isinstance(verdict, erc.Certificates):
        return len({key for one in verdict.found.values() if one.verdict == "fault" for key in one.faults})
    return len({fault.key for one in verdict.sets for fault in one.faults})


def _kept(args: argparse.Namespace, name: str, kind: str) -> pathlib.Path:
    """Where a dump goes; with its kind where that is found out."""
    pathlib.Path(args.keep).mkdir(parents=True, exist_ok=True)
    return pathlib.Path(args.keep) / f"{name if args.loss else f'{kind}.{name}'}.safetensors"


def _of_coupling(args: argparse.Namespace, function: Any) -> ANY:
    _refuse(args, "the coupling loss", "logits", "seed")
    made = erc.dumps(function, _dtype(args), args.device or "cpu", _fixed(args))
    for name, tensors in made.items() if args.keep else ():
        save(_kept(args, name, "erc"), tensors, "erc")
    return erc.judge(made, _rounded(args))


def _of_callable(args: argparse.Namespace, name: str) -> List[ANY]:
    """As the kind that is named; without one, as all as which it is right."""
    check_settings(_dtype(args), args.device or "cpu", args.seed or 0)
    function = load(name)
    if args.loss == "erc" or args.loss is None and _is_coupling(function):
        return [_of_coupling(args, function)]
    settings = {
        "dtype": _dtype(args),
        "device": args.device or "cpu",
        "seed": args.seed or 0,
        "fixed": _fixed(args),
        "logits": args.logits,
    }
    names = [args.loss] if args.loss else fitting(function, args.rounding, **settings)
    return [
        _of_coupling(args, function) if kind == "erc" else _of_router(args, function, kind, settings) for kind in names
    ]


def _of_router(args: argparse.Namespace, function: Any, name: str, settings: Dict[str, Any]) -> Verdict:
    made = dumps(function, kind_of(name), **settings)
    for dump in made if args.keep else ():
        write(_kept(args, dump.name, name), dump, name)
    return judge(kind_of(name), made, args.rounding or rounding_on(settings["device"], settings["dtype"]))


def _refuse(args: argparse.Namespace, what: str, *names: str) -> None:
    """Options that would change nothing."""
    for name in names:
        if getattr(args, name) is not None:
            raise CannotJudge(f"--{name} is not for {what}")


def _is_dump(name: str) -> bool:
    return name.endswith(".safetensors")


def _run(args: argparse.Namespace) -> int:
    """The exit code. JSON of several verdicts, or of several files, is a list; of one that is not judged there is none."""
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
