#!/usr/bin/env python3
"""check_size.py [--write]: compares the size of the project with the limits in CONTRIBUTING.md, "Sizes".

A row of that table is | `folder` | what | at most |. The second column names one of COUNTS below, which counts over the
files that git tracks or would track. Every room of src/ has a row. --write sets each limit to the present size."""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path("CONTRIBUTING.md")
ROW = re.compile(r"^\| `([\w./]+)` \| ([\w ]+) \| ([\d,]+) \|$", re.M)
MIB = 1 << 20


def lines_in(*endings):
    return lambda files: sum(f.read_bytes().count(b"\n") for f in files if f.suffix in endings and not f.is_symlink())


COUNTS = {
    "lines of C": lines_in(".c", ".h", ".def", ".inc", ".cu", ".cpp"),
    "lines of C and Python": lines_in(".c", ".h", ".cu", ".cpp", ".py"),
    "lines of Python": lines_in(".py"),
    "lines of text": lines_in(".md"),
    "files": len,
    "MiB": lambda files: -(-sum(f.lstat().st_size for f in files) // MIB),
}


def project_files():
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode:
        print("skipped: the files of the project are known from git alone, and this is no clone")
        sys.exit(77)
    return sorted(f for f in map(pathlib.Path, set(listed.stdout.split("\0")) - {""}) if f.is_symlink() or f.is_file())


def main():
    files, text, wrong = project_files(), PAGE.read_text(), []
    rows = {(folder, what): int(most.replace(",", "")) for folder, what, most in ROW.findall(text)}
    rooms = {f"src/{f.parts[1]}" for f in files if f.parts[0] == "src" and len(f.parts) > 2}
    wrong += [f'{PAGE}: {room} has no row in "Sizes"' for room in sorted(rooms - {folder for folder, _ in rows})]
    for (folder, what), most in rows.items():
        inside = [f for f in files if folder == "." or pathlib.Path(folder) in f.parents]
        if what not in COUNTS or not inside:
            wrong.append(
                f'{PAGE}: "{folder}, {what}": '
                + ("the folder has no files" if what in COUNTS else "what is counted is one of " + ", ".join(COUNTS))
            )
            continue
        size = COUNTS[what](inside)
        if size > most:
            wrong.append(
                f"{folder}: {size:,} {what}, the limit in {PAGE} is {most:,}: take something away, "
                "or raise the limit and give the reason in CHANGELOG.md"
            )
        text = text.replace(f"| `{folder}` | {what} | {most:,} |", f"| `{folder}` | {what} | {size:,} |")
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text)
        return 0
    print("\n".join(wrong) or f"{len(rows)} sizes are within their limits")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
