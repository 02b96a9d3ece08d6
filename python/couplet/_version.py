"""The version of the project, read from the package's copy of the file VERSION at its root. It warns if a distribution
of another project has the name of this package's folder."""

import importlib.metadata
import pathlib
import warnings

__version__ = (pathlib.Path(__file__).parent / "VERSION").read_text(encoding="utf-8").strip()


def _warn_of_another() -> None:
    for other in importlib.metadata.distributions(name="couplet"):  # this package is distributed under another name
        warnings.warn(
            f"couplet: the distribution couplet {other.version} in {other.locate_file('')} is not this package, "
            "and pip writes its files over this package's. Remedy: pip uninstall couplet, then pip install "
            "--force-reinstall --no-deps ./python in a checkout",
            stacklevel=2,
        )
        break


_warn_of_another()
