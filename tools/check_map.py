#!/usr/bin/env python3
"""Checks that src/README.md names every file under src/ exactly once, and no missing file. A path of this project on
another page must exist. A page that a comment of the source cites must exist, with the cited section.

A heading `## folder/` gives the folder of the files in the lines below it. A line of the map is
- `name.{h,c}` `other.c`: what it is.

A comment cites a page by its path from the root, or by its bare name if it is in docs/. After the page it may give
numbers of sections (docs/method.md 3.1, 3.2) or beginnings of headings in quotes (docs/tasks.md, "Fields")."""

import ast
import collections
import io
import pathlib
import re
import subprocess
import sys
import tokenize

named, folder = collections.Counter(), None
for line in pathlib.Path("src/README.md").read_text().splitlines():
    heading = re.match(r"#+ `?([\w/]+)/`?", line)
    if heading:
        folder = heading[1]
    entry = re.match(r"- ((?:`[^`]+`,? ?)+):", line)
    if not entry or folder is None:
        continue
    for name in re.findall(r"`([^`]+)`", entry[1]):
        ends = re.fullmatch(r"(.*)\{(.*)\}(.*)", name)
        for end in ends[2].split(",") if ends else [""]:
            named[f"{folder}/{ends[1]}{end}{ends[3]}" if ends else f"{folder}/{name}"] += 1

there = {
    str(file.relative_to("src"))
    for file in pathlib.Path("src").rglob("*")
    if file.is_file() and not file.name.startswith(".")
} - {"README.md"}
wrong = [f"src/{name} is not in src/README.md" for name in sorted(there - set(named))]
wrong += [f"src/README.md names {name}, which is not there" for name in sorted(set(named) - there)]
wrong += [f"src/README.md names {name} {times} times" for name, times in named.items() if times > 1]

tops = "assets|bench|cmake|configs|data|docs|examples|experiments|include|python|src|tests|tools"
for page in [
    *pathlib.Path().glob("*.md"),
    *pathlib.Path("docs").rglob("*.md"),
    *pathlib.Path("bench").rglob("*.md"),
    pathlib.Path("python/README.md"),
]:
    text = page.read_text()
    paths = re.findall(rf"`((?:{tops})/[\w./-]*)`", text)
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", text)
    wrong += [
        f"{page} names {path}, which is not there"
        for path in sorted(set(paths))
        if "NAME" not in path and not pathlib.Path(path).exists()
    ]
    wrong += [
        f"{page} leads to {link}, which is not there"
        for link in sorted(set(links))
        if not (page.parent / link).exists()
    ]


def c_comments(text):
    parts = re.finditer(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*(.*?)\*/|//([^\n]*)', text, re.S)
    return [re.sub(r"\n\s*\*? ?", " ", part[1] or part[2]) for part in parts if part[1] or part[2]]


def python_comments(text):
    hashes = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT]
    lines = {token.start[0]: token.string.lstrip("# ") for token in hashes}
    runs = ["".join(" " + lines[n] if n in lines else "\n" for n in range(1, max(lines, default=0) + 1))]
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return runs + [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, nodes)]


def hash_comments(text):
    return [" ".join(re.findall(r"(?:^|\s)#(.*)", text))]


COMMENTS = {
    ".c": c_comments,
    ".h": c_comments,
    ".def": c_comments,
    ".inc": c_comments,
    ".in": c_comments,
    ".js": c_comments,
    ".css": c_comments,
    ".py": python_comments,
    ".txt": hash_comments,
    ".cmake": hash_comments,
    ".sh": hash_comments,
    ".toml": hash_comments,
    ".yaml": hash_comments,
}


def cited(comments):
    """Yields (page, section) of every citation; section None: the page as a whole."""
    for comment in comments:
        text = re.sub(r"https?://\S+", "", re.sub(r"\s+", " ", comment))
        for found in re.finditer(r"([\w./-]*\w\.md)\b((?:,? (?:and )?(?:\"[^\"]+\"|\d+(?:\.\d+)*\b))*)", text):
            yield found[1], None
            for section in re.findall(r'"([^"]+)"|(\d+(?:\.\d+)*)', found[2]):
                yield found[1], section[0] or section[1] + " "


FOLDERS = ["src", "include", "tests", "tools", "python", "bench", "examples", "experiments"]
sources = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS], capture_output=True, text=True
).stdout.split()
sources = sources or [str(file) for top in FOLDERS for file in pathlib.Path(top).rglob("*") if file.is_file()]
for source in sources:
    comments_of = COMMENTS.get(pathlib.Path(source).suffix)
    if not comments_of or source.startswith("tests/golden/") or not pathlib.Path(source).exists():
        continue
    for name, section in cited(comments_of(pathlib.Path(source).read_text())):
        page = next((page for page in (pathlib.Path(name), pathlib.Path("docs") / name) if page.is_file()), None)
        if not page:
            wrong.append(f"{source} cites {name}, which is not there")
        elif section and not re.search(rf"^#+ {re.escape(section)}", page.read_text(), re.M):
            wrong.append(f'{source} cites {name}, whose heading "{section.strip()}" is not there')
print("\n".join(wrong))
sys.exit(bool(wrong))
