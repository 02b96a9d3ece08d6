#!/usr/bin/env python3
"""The walls of src/: a file includes files of its own room and of rooms before it in ORDER, and the
public headers. The rooms of two different wings do not see each other, except as SEES says. No two
files of src/ call each other in a circle, no public type is defined twice, every external function
begins with cpl_, no room holds more than 30 files."""
import collections
import pathlib
import re
import sys

ORDER = """base base/stats io settings tensor tensor/cpu tensor/cpu/erc tokenizer checkpoint
    data data/loader model model/erc store report train/config train infer
    inspect/families inspect inspect/routing plan eval/grade eval/tasks eval/prompts eval/run eval
    compare certify app cli/terminal cli""".split()
WINGS = "train infer inspect plan eval compare certify".split()
SEES = {("inspect/routing", "infer"), ("eval/run", "infer"), ("eval", "infer"), ("compare", "eval")}
MOST = collections.defaultdict(lambda: 30, cli=45)

files = sorted(f for f in pathlib.Path("src").rglob("*") if f.suffix in (".c", ".h", ".def", ".inc"))
text = {f: f.read_text() for f in files}
bad = []


def room(path):
    return "/".join(path.split("/")[:-1])


def may_include(a, b):
    if a not in ORDER or b not in ORDER or ORDER.index(b) > ORDER.index(a):
        return a == b
    wings = a.split("/")[0], b.split("/")[0]
    return wings[0] == wings[1] or not set(wings) <= set(WINGS) or (a, b) in SEES


for f in files:
    here = room(str(f.relative_to("src")))
    for number, line in enumerate(text[f].splitlines(), 1):
        hit = re.match(r'\s*#\s*include\s+"([\w/.-]+)"', line)
        if hit and "/" in hit[1] and not hit[1].startswith("couplet/"):
            if not may_include(here, room(hit[1])):
                bad.append(f"{f}:{number}: {here}/ may not include {room(hit[1])}/")

for name, count in collections.Counter(room(str(f.relative_to("src"))) for f in files).items():
    if name not in ORDER:
        bad.append(f"src/{name} is no room of tools/check_layers.py")
    if count > MOST[name]:
        bad.append(f"src/{name} holds {count} files, at most {MOST[name]}")

# ---- names ----
types = collections.defaultdict(list)
defined = {}  # function -> the file without its ending
for f in files:
    for kind in re.findall(r"^(?:typedef )?(?:struct|union|enum) (cpl_\w+) \{", text[f], re.M):
        types[kind].append(str(f))
    if f.suffix != ".c":
        continue
    for line, name in re.findall(r"^((?!.*\bstatic\b|typedef|#)[A-Za-z][\w *]*?\b(\w+)\((?:[^;{}()]|\([^()]*\))*\))\n\{",
                                 text[f], re.M):
        if not name.startswith("cpl_") and name not in ("main",):
            bad.append(f"{f}: {name} is external and does not begin with cpl_")
        defined[name] = str(f.with_suffix(""))
bad += [f"{name} is defined twice: {', '.join(where)}" for name, where in types.items() if len(where) > 1]

# ---- circles: a file calls what another defines ----
calls = collections.defaultdict(set)
for f in files:
    me = str(f.with_suffix(""))
    if f.suffix == ".c" or f.suffix == ".inc":
        code = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", "", text[f], flags=re.S)
        calls[me] |= {defined[n] for n in set(re.findall(r"\bcpl_\w+", code)) if defined.get(n, me) != me}


def circles():
    """Tarjan's strongly connected components of more than one file."""
    index, low, stack, found = {}, {}, [], []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(calls[v]):
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
    for v in sorted(calls):
        if v not in index:
            visit(v)
    return found


bad += ["these call each other in a circle: " + ", ".join(c) for c in circles()]
print("\n".join(bad))
sys.exit(bool(bad))
