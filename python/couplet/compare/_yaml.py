"""The configuration of a run as dotted names and texts.

It reads only the form of YAML that `couplet train` writes into RUN/config.yaml: sections, a setting a line, texts
plain or in quotes, lists and mappings on one line. The text of a list or mapping is kept as written."""

from __future__ import annotations

import re

from ..report._files import BadFile

MOST_BYTES = 16 << 20
_LINE = re.compile(r"( *)([A-Za-z_][\w.-]*):(?: +(.*))?$")
# A value, optionally followed by a comment.
_QUOTED = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)')(?: +#.*)?$""")
_FLOW = re.compile(r"""((?:\[|\{)(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'#]|(?<! )#)*(?:\]|\}))(?: +#.*)?$""")
_PLAIN = re.compile(r"""([^"'\[\]{}&*!|>%@`#].*?)?(?: +#.*)?$""")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}


def _character(match: "re.Match[str]") -> str:
    code = match[1] or match[2] or match[3]
    try:
        return chr(int(code, 16)) if code else _LETTERS.get(match[4], match[4])
    except (ValueError, OverflowError):
        return "\ufffd"


def _value(text: str) -> "str | None":
    """Returns the text of a value, or None if its form is not known."""
    if match := _QUOTED.match(text):
        return _ESCAPE.sub(_character, match[1]) if match[1] is not None else match[2].replace("''", "'")
    match = _FLOW.match(text) or _PLAIN.match(text)
    return (match[1] or "") if match else None


def read_settings(blob: bytes) -> "dict[str, str]":
    """Returns the settings of a configuration by dotted name: "train:" with "steps: 10" below it gives train.steps:
    "10". Raises BadFile if a line has another form; the sentence begins with its number."""
    settings: dict[str, str] = {}
    try:
        text = blob.decode("utf-8")
    except UnicodeDecodeError:
        raise BadFile("it is not UTF-8 text") from None
    section = inner = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip(" \r")
        if not line.lstrip(" ") or line.lstrip(" ").startswith("#") or line in ("---", "..."):
            continue
        match = _LINE.match(line)
        value = _value(match[3] or "") if match else None
        if not match or value is None or (match[1] and (not section or inner not in ("", match[1]))):
            raise BadFile(f"line {number} is not in the form that couplet writes: `name: value` below a section")
        if match[1]:
            inner = match[1]
            settings[f"{section}.{match[2]}"] = value
        else:
            section, inner = match[2], ""
            if value:
                settings[section], section = value, ""
    return settings
