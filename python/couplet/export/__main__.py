"""Hands a run over to TensorBoard, or an evaluation to the tools of lm-evaluation-harness.

    python -m couplet.export tensorboard RUN [--follow] [--out DIR]
    python -m couplet.export lm-eval RESULTS.json [--out DIR]

It needs neither PyTorch nor the C library, but `tensorboard` needs torch.utils.tensorboard or tensorboardX.

Exit code 0: all files are written; 1: an input cannot be used, or an output cannot be written; 2: wrong arguments, or a
package is missing; 130: interrupted."""

from __future__ import annotations

import argparse
import pathlib
import sys
from typing import List, Optional

from ..report import _files


class Missing(Exception):
    """A missing package, as a sentence that names it."""


def tensorboard(args: argparse.Namespace) -> List[str]:
    from . import _tensorboard

    writer = _tensorboard.find_writer()
    if writer is None:
        raise Missing("tensorboard needs PyTorch with tensorboard, or tensorboardX: pip install tensorboardX")
    return _tensorboard.export(args.run, args.out or args.run / "tensorboard", writer, args.follow)


def lm_eval(args: argparse.Namespace) -> List[str]:
    from . import _lm_eval

    try:
        return _lm_eval.export(args.results, args.out or args.results.parent / "lm-eval")
    except _files.BadFile as error:
        raise _files.BadFile(f"{args.results}: {error}") from None


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m couplet.export", description=str(__doc__).partition("\n")[0])
    forms = made.add_subparsers(dest="form", required=True)
    one = forms.add_parser("tensorboard", help="a run of couplet train as event files")
    one.add_argument("run", type=pathlib.Path, metavar="RUN", help="the folder of the run")
    one.add_argument("--follow", action="store_true", help="go on as the run trains, until its last step or Ctrl-C")
    one.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="the folder of the event files; default RUN/tensorboard"
    )
    one.set_defaults(main=tensorboard)
    one = forms.add_parser("lm-eval", help="results of couplet eval in the form of lm-evaluation-harness 0.4")
    one.add_argument("results", type=pathlib.Path, metavar="RESULTS.json", help="what couplet eval --json wrote")
    one.add_argument(
        "--out", type=pathlib.Path, metavar="DIR", help="the folder of the files; default lm-eval beside it"
    )
    one.set_defaults(main=lm_eval)
    return made


def main(words: Optional[List[str]] = None) -> int:
    args = parser().parse_args(words)
    try:
        _files.print_lines(*args.main(args))
    except KeyboardInterrupt:
        return 130
    except (_files.BadFile, Missing) as error:
        _files.complain(f"couplet.export: {error}")
        return 2 if isinstance(error, Missing) else 1
    except Exception as error:
        _files.complain(f"couplet.export: {_files.reason(error)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
