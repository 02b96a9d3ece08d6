#!/usr/bin/env python3
"""src/README.md names every file under src/ exactly once, and none that is not there; a path of this
project that another page names is there too.

A heading `## folder/` says where the files of the lines below it lie; a line of the map is
- `name.{h,c}` `other.c`: what it is."""
import collections
import pathlib
import re
import sys

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

there = {str(file.relative_to("src")) for file in pathlib.Path("src").rglob("*")
         if file.is_file() and not file.name.startswith(".")} - {"README.md"}
wrong = [f"src/{name} is not in src/README.md" for name in sorted(there - set(named))]
wrong += [f"src/README.md names {name}, which is not there" for name in sorted(set(named) - there)]
wrong += [f"src/README.md names {name} {times} times" for name, times in named.items() if times > 1]

tops = "bench|cmake|configs|data|docs|examples|include|python|src|tests|tools"
for page in [*pathlib.Path().glob("*.md"), *pathlib.Path("docs").rglob("*.md"),
             *pathlib.Path("bench").rglob("*.md"), pathlib.Path("python/README.md")]:
    text = page.read_text()
    paths = re.findall(rf"`((?:{tops})/[\w./-]*)`", text)
    links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]*)?\)", text)
    wrong += [f"{page} names {path}, which is not there" for path in sorted(set(paths))
              if "NAME" not in path and not pathlib.Path(path).exists()]
    wrong += [f"{page} leads to {link}, which is not there" for link in sorted(set(links))
              if not (page.parent / link).exists()]
print("\n".join(wrong))
sys.exit(bool(wrong))
