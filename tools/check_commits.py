#!/usr/bin/env python3
"""check_commits.py: checks the subjects of commits, from the first commit with this file on.

CONTRIBUTING.md limits a subject to 72 characters and one change. A semicolon in it joins two."""

import subprocess
import sys

MOST = 72


def git(*words):
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    if done.returncode:
        print("skipped: subjects of commits are known from git alone, and this is no clone")
        sys.exit(77)
    return done.stdout.splitlines()


def faults_of(subject):
    if len(subject) > MOST:
        yield f"has {len(subject)} characters, at most {MOST} fit into a line of git log"
    if ";" in subject:
        yield "joins two changes by a semicolon: make two commits"
    if subject.endswith("."):
        yield "ends with a full stop"


def main():
    added = git("log", "--diff-filter=A", "--format=%H", "--", "tools/check_commits.py")
    lines = git("log", "--no-merges", "--format=%h %s", f"{added[-1]}..HEAD") if added else []
    wrong = [f"{line}: {fault}" for line in lines for fault in faults_of(line.partition(" ")[2])]
    print("\n".join(wrong) or f"{len(lines)} subjects of commits are right")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
