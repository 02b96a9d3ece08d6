"""The C library behind couplet's PyTorch operator, and the program `couplet`."""

import os
import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent


def _inside(*names: str) -> pathlib.Path:
    """Returns the path of a file of the package, which an editable installation has in another folder than this
    file."""
    import couplet_native

    folders = [_HERE, *(pathlib.Path(path) for path in couplet_native.__path__)]
    return next(
        (folder.joinpath(*names) for folder in folders if folder.joinpath(*names).exists()), _HERE.joinpath(*names)
    )


def library() -> pathlib.Path:
    """Returns the shared library with the functions of couplet.h."""
    return _inside("libcouplet_python.so")


def program() -> pathlib.Path:
    """Returns the program `couplet`."""
    return _inside("bin", "couplet")


def main() -> None:
    """Runs the program with the words of the command line; the script `couplet` of the wheel."""
    path = str(program())
    os.execv(path, [path, *sys.argv[1:]])
