#!/usr/bin/env python3
"""Checks the rule of tools/report_readers.py: src/ keeps it, and planted lines break it."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import report_readers

FILES = {str(f.relative_to(ROOT)): f.read_text() for f in (ROOT / "src").rglob("*") if f.suffix in (".c", ".h", ".def")}
PLANTED = [
    ("src/cli/verbs/cmd_compare.c", "CPL_TRY(cpl_json_load(&report, path));", "reads JSON"),
    ("src/app/train_eval.c", "json_t *line = json_loadb(bytes, length, 0, NULL);", "reads JSON"),
    ("src/report/view.c", "cpl_rows_open(&rows, path, &kind);", "reads JSON"),
    ("src/train/loop.c", "cpl_json_pull c = cpl_json_pull_start(text, length);", "reads JSON"),
    ("src/cli/verbs/cmd_compare.c", 'path = cpl_path_join(run, "metrics.jsonl");', "names a report"),
    ("src/eval/totals.c", 'snprintf(path, n, "%s/documents.json", run);', "names a report"),
    ("src/inspect/show/json.c", 'cpl_text_printf(out, "<svg width=\\"%d\\">", w);', "draws"),
    ("src/eval/totals.c", 'json_object_set_new(row, "acc,none", x);', "speaks another program's format"),
]
FINE = [
    "/* cpl_json_load( is not here */",
    'puts("a line of metrics.jsonl a step");',
    "cpl_json_put(&failed, j, k, v);",
]

wrong = report_readers.check(FILES)
for path, line, what in PLANTED:
    found = report_readers.check({**FILES, path: FILES[path] + line + "\n"})
    if found != [f"{path}: {what}, which Python does"]:
        wrong.append(f"{path}: {line}: found {found}")
if found := report_readers.check({**FILES, "src/app/new.c": "\n".join(FINE)}):
    wrong.append(f"found {found} in lines that keep the rule")
if len(report_readers.check({**FILES, "src/cli/verbs/cmd_grad.c": ""})) != 1:
    wrong.append("a file that is permitted and reads no more is not found")
print("\n".join(wrong) or f"{len(FILES)} files, {len(PLANTED)} planted lines")
sys.exit(bool(wrong))
