"""The version of the project: the file VERSION at its root, of which the package holds a copy."""
import pathlib

__version__ = (pathlib.Path(__file__).parent / "VERSION").read_text(encoding="utf-8").strip()
