#!/usr/bin/env python3
"""Checks the layers of src/. A file includes, calls and reads only its own room, rooms above it in the table of
src/README.md, and the public headers. The rooms of two different wings do not use each other, except as SEES permits.
The rooms of PURE open and read no file: they call functions of base alone. No two files call each other in a circle.
No type is defined twice. An external name is cpl_<thing>_<verb>: <thing> is a type, or a file or room of the map. A
room has at most 30 files, as has a folder of tests, Python, pages or tools, where cases and golden data do not count.
Only its own room includes an internal.h. Numbers of a backend and arrays of the host are kept apart (host_memory.py).
No file reads a report or draws (report_readers.py).

usage: check_layers.py [BUILD]    BUILD: a folder with a build of the whole project, whose object files' symbols
                                  are checked. Default: the newest of build/*."""

import collections
import pathlib
import re
import subprocess
import sys

import host_memory
import report_readers

ORDER = re.findall(r"^\| `([\w/]+)` \|", pathlib.Path("src/README.md").read_text(), re.M)
WINGS = "train infer inspect plan eval".split()
SEES = {("inspect/routing", "infer"), ("eval/run", "infer"), ("eval", "infer")}
PURE = {"inspect/families"}
MOST = 30
WRITTEN = {".c", ".h", ".cu", ".cpp", ".py", ".md", ".sh"}

files = sorted(f for f in pathlib.Path("src").rglob("*") if f.suffix in (".c", ".h", ".def", ".inc"))
public = sorted(pathlib.Path("include").rglob("*.h"))
text = {f: f.read_text() for f in files + public}
bad = []


def room(path):
    """Returns the room of a path: "io" for "src/io/file"."""
    return "/".join(str(path).split("/")[1:-1])


def may_use(a, b):
    if a not in ORDER or b not in ORDER or ORDER.index(b) > ORDER.index(a):
        return a == b
    wings = a.split("/")[0], b.split("/")[0]
    return wings[0] == wings[1] or not set(wings) <= set(WINGS) or (a, b) in SEES


# ---- included files ----
for f in files:
    for number, line in enumerate(text[f].splitlines(), 1):
        hit = re.match(r"\s*#\s*include\s*(.)([\w/.+-]*)", line)
        if not hit:
            continue
        where, path = f"{f}:{number}", hit[2]
        if hit[1] not in '"<':
            bad.append(f"{where}: includes a macro; name the file")
        elif hit[1] == "<" and pathlib.Path("src", path).exists():
            bad.append(f'{where}: <{path}> is a file of src/; write "{path}"')
        elif hit[1] == '"' and "/" in path and not path.startswith("couplet/"):
            if not may_use(room(f), room("src/" + path)):
                bad.append(f"{where}: {room(f)}/ may not include {room('src/' + path)}/")
            if path.endswith("internal.h") and room(f) != room("src/" + path):
                bad.append(f"{where}: {path} is for the files of its own room")

bad += [f"src/{name} is no room of src/README.md" for name in sorted({room(f) for f in files} - set(ORDER))]
others = (
    f for top in ("tests", "python", "docs", "tools") for f in pathlib.Path(top).rglob("*") if f.suffix in WRITTEN
)
for folder, count in collections.Counter(str(f.parent) for f in [*files, *others]).items():
    if count > MOST:
        bad.append(f"{folder} holds {count} files, at most {MOST}")

for rule in (host_memory, report_readers):
    bad += rule.check({str(f): text[f] for f in files})

# ---- types ----
types = collections.defaultdict(set)
for f in files + public:
    code = re.sub(r"/\*.*?\*/", "", text[f], flags=re.S)
    code = re.sub(r"^typedef (?:struct|union|enum) (\w+) \1;", "", code, flags=re.M)
    for pattern in (
        r"\b(?:struct|union|enum)\s+(cpl_\w+)\s*\{",
        r"\}\s*(cpl_\w+)\s*;",
        r"^typedef\s+[\w\s*]*?\b(cpl_\w+)\s*;",
        r"^typedef\b[^;{]*\(\*(cpl_\w+)\)\(",
    ):
        for name in re.findall(pattern, code, re.M):
            types[name].add(str(f))
bad += [f"{name} is defined in {', '.join(sorted(where))}" for name, where in types.items() if len(where) > 1]


# ---- symbols of the object files ----
def objects():
    """Yields (source without its ending, object file) for the newest build."""
    builds = [pathlib.Path(sys.argv[1])] if len(sys.argv) > 1 else pathlib.Path("build").glob("*")
    found = [sorted(b.glob("CMakeFiles/*.dir/src/**/*.o")) for b in builds]
    newest = max(found, default=[], key=lambda f: max((o.stat().st_mtime for o in f), default=0))
    for path in newest:
        source = re.search(r"\.dir/(src/.*)\.o$", str(path))[1]
        if pathlib.Path(source).exists():
            yield str(pathlib.Path(source).with_suffix("")), path


def lines_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


defined = {}  # external symbol -> source
uses = collections.defaultdict(set)  # source -> symbols to which its code or data refers
calls = collections.defaultdict(set)  # source -> symbols to which its code refers
for source, path in objects():
    for line in lines_of("nm", "-g", path):
        kind, name = line.split()[-2:]
        if kind in "TDBRC" and not name.startswith("__") and "." not in name:
            defined[name] = source
    section = ""
    for line in lines_of("readelf", "-rW", path):
        if line.startswith("Relocation section"):
            section = line.split("'")[1]
        elif len(line.split()) > 4 and "debug" not in section:
            uses[source].add(line.split()[4])
            if section.startswith(".rela.text"):
                calls[source].add(line.split()[4])
if not defined:
    sys.exit("build first: cmake --preset dev && cmake --build build/dev")

for source in uses:
    for name in sorted(uses[source] & defined.keys()):
        if not may_use(room(source), room(defined[name])):
            bad.append(f"{source}.c: {room(source)}/ may not use {name} of {defined[name]}.c")
        if room(source) in PURE and room(defined[name]) not in (room(source), "base"):
            bad.append(f"{source}.c: {room(source)}/ uses base/ alone, and not {name} of {defined[name]}.c")


# ---- names ----
def singulars(word):
    return {word, word.removeprefix("cmd_"), re.sub("ies$", "y", word), re.sub("s$", "", word)}


def things(source):
    """Returns the allowed beginnings of a function's name in this file: types, files, rooms, and the first words of the
    file's name."""
    own = source.split("/")[-1].split("_")
    return everywhere | {"_".join(own[:n]) for n in range(1, len(own) + 1)}


everywhere = {kind[4:] for kind in types}
for f in files:
    for word in f.with_suffix("").parts[1:]:
        everywhere |= singulars(word)

public_names = set(re.findall(r"\bcpl_\w+", "".join(text[f] for f in public)))
for name, source in defined.items():
    stem = re.sub(r"_(v[234]|any)$", "", name).removeprefix("cpl_").removeprefix("n_")
    if name == "main" or name in public_names or room(source).startswith("base"):
        good = name == "main" or name.startswith("cpl_")
    else:
        words = stem.split("_")
        starts = {"_".join(words[:n]) for n in range(1, len(words) + 1)}
        good = name.startswith("cpl_") and any(singulars(start) & things(source) for start in starts)
    if not good:
        bad.append(f"{source}.c: {name} is external and not cpl_<thing>_<verb>, with a type, file or room as its thing")


# ---- circles ----
def circles():
    """Returns Tarjan's strongly connected components of more than one file. References of data do not count, since a
    table of functions calls none of them."""
    graph = {source: {defined[n] for n in calls[source] & defined.keys()} - {source} for source in uses}
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(graph.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in stack:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for v in sorted(graph):
        if v not in index:
            visit(v)
    return found


bad += ["these call each other in a circle: " + ", ".join(c) for c in circles()]
print("\n".join(bad) if bad else f"{len(files)} files, {len(defined)} external names")
sys.exit(bool(bad))
