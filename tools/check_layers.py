#!/usr/bin/env python3
"""Each floor may include its own files, those of the floors it names, and the public headers."""
import pathlib
import re
import sys

MAY = {"base": "", "tensor": "base", "io": "base tensor", "model": "base tensor",
       "store": "base tensor io model", "train": "base tensor io model store",
       "study": "base tensor io model store", "cli": "base tensor io model store train study"}
bad = 0
for file in sorted(pathlib.Path("src").rglob("*.[chd]*")):
    floor = file.parts[1]
    for number, line in enumerate(file.read_text().splitlines(), 1):
        hit = re.match(r'\s*#\s*include\s+"(\w+)/', line)
        if hit and hit[1] not in (floor, "couplet") and hit[1] not in MAY[floor].split():
            print(f"{file}:{number}: {floor}/ may not include {hit[1]}/")
            bad += 1
sys.exit(bad > 0)
