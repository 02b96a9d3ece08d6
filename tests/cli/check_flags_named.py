#!/usr/bin/env python3
"""check_flags_named.py COUPLET: no message names a flag that its verb lacks.

Every function, object and macro of src/ at the left edge of a line is an item, and leads to the items that it names.
The calls of a function are part of these. Every string of the items to which a verb leads may be a message of this
verb: each --flag in it must be the verb's, and after `couplet VERB` one of that VERB's."""

import pathlib
import re
import sys

from program import check, finish, good, says

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src"
TOKEN = re.compile(
    r'(?:\.|->)\s*\w+|/\*.*?\*/|//[^\n]*|\'(?:\\.|[^\'\\])+\'|"((?:\\.|[^"\\])*)"|(\w+)(\s*##)?|(\s+)|.', re.S
)
OF_ALL = {"--help", "--version"}
OF_OTHERS = re.compile(r"(python -m|tensorboard) [^`]*")  # flags of other programs
OF_VERBS = "help", "completion", "manual"  # their messages are about all verbs
GUARDED = {
    "cli/arguments/output_paths.c": "cpl_flag_known",
    "eval/evaluation.c": "of_run",
    "eval/prompts/questions_rows.c": "of_run",
}  # the verb is asked there before a flag is named


def parts_of(path):
    """Returns the text of a file, cut where an item begins at the left edge. A .def file is a part of its includer."""
    text = re.sub(r"\\\n", " ", path.read_text())
    return [text] if path.suffix == ".def" else re.split(r"(?m)^(?=[A-Za-z_](?!\w*:)|# *define)", text)


def name_of(part):
    """Returns the name that a part defines."""
    head = re.split(r"[={;]", part, maxsplit=1)[0].strip()
    found = (
        re.match(r"#\s*define\s+(\w+)", part) or re.search(r"(\w+)\s*\(", head) or re.search(r"(\w+)\s*(\[.*)?$", head)
    )
    return found[1] if found else ""


def content_of(part):
    """Returns the names in a part, and its strings. Neighbouring literals are one string; "name##" is a pasted name."""
    names, strings, goes_on = set(), [], False
    for match in TOKEN.finditer(part):
        string, name, pasted, blank = match.groups()
        if string is not None:
            strings[len(strings) - goes_on :] = ["".join(strings[len(strings) - goes_on :]) + string]
        elif name:
            names.add(name + "##" * bool(pasted))
        goes_on = string is not None or (goes_on and blank is not None)
    return names, strings


class Source:
    def __init__(self):
        self.parts, self.known, self.own = [], {}, {}  # names of all files, and names of one file
        for path in sorted(f for f in SOURCE.rglob("*") if f.suffix in (".c", ".h", ".inc", ".def")):
            for part in parts_of(path):
                names, strings = content_of(part)
                names |= set(re.findall(r'#\s*include\s+"([\w/]+\.def)"', part))
                is_list = path.suffix == ".def"
                name = str(path.relative_to(SOURCE)) if is_list else name_of(part)
                is_own = path.suffix == ".c" and (part.startswith("static") or not name.startswith("cpl_"))
                place = self.own.setdefault(path, {}) if is_own else self.known
                place.setdefault(name, []).append(len(self.parts))
                self.parts.append((path, names, [] if is_list else strings))  # strings of lists are shown as help

    def led_to(self, path, name):
        own = self.own.get(path, {})
        if name.endswith("##"):  # cpl_verb_ leads to all verbs: it only lists them
            return [
                number
                for known in (own, self.known)
                for other, numbers in known.items()
                for number in numbers
                if other.startswith(name[:-2]) and len(name) > 6 and name != "cpl_verb_##"
            ]
        return own.get(name) or self.known.get(name, [])

    def strings_from(self, name):
        """Yields the strings of all parts that this name leads to, with the file of each."""
        waiting, seen = list(self.known[name]), set()
        while waiting:
            number = waiting.pop()
            if number not in seen:
                seen.add(number)
                path, names, strings = self.parts[number]
                yield from ((path, string) for string in strings)
                waiting += [next for other in names for next in self.led_to(path, other)]


source = Source()
verbs = {}  # words -> (name of its object, its flags)
for name in re.findall(r"^CPL_VERB\((\w+)\)", (SOURCE / "cli/arguments/verbs.def").read_text(), re.M):
    words = name.replace("_", " ")
    verbs[words] = f"cpl_verb_{name}", OF_ALL | set(re.findall(r"^ +(--[a-z-]+)", good(*words.split(), "--help"), re.M))
mention = re.compile(rf"couplet ({'|'.join(verbs)})\b[^`.,:;()]*$")
n_seen = 0
for path, asked in GUARDED.items():
    check(asked in (SOURCE / path).read_text(), f"{path} no longer asks {asked} before it names a flag")
for words, (object_, flags) in verbs.items():
    help_ = (SOURCE / "help", " ".join(good(*words.split(), "--help", *["all"] * ("--set" in flags)).split()))
    for path, string in [*sorted(set(source.strings_from(object_))), help_]:
        if words in OF_VERBS or str(path.relative_to(SOURCE)) in GUARDED:
            continue
        string = OF_OTHERS.sub("", string)
        for match in re.finditer(r"--[a-z][a-z-]+", string):
            if match[0] == string:  # a name in a list is no message
                continue
            n_seen += 1
            other = mention.search(string[: match.start()])
            says(
                verbs[other[1]][1] if other else flags,
                [match[0]],
                f"{path.relative_to(SOURCE)}: couplet {other[1] if other else words} has no {match[0]}: {string!r}",
            )
check(n_seen > 300, f"{n_seen} flags in messages are too few: are they found?")
print(f"{n_seen} flags in messages")
sys.exit(finish())
