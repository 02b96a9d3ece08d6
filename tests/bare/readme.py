#!/usr/bin/env python3
"""readme.py FOLDER: types every indented line of README.md, as printed, in a bare Debian 12 on a terminal of 80
columns: as root, then as a user without sudo. Prints each line with its seconds and its result.

The root is FOLDER/root (debootstrap, from MIRROR), with git and make and no other package that README does not name.
PLACEHOLDERS has replacements of the words in capitals. BEFORE and ADDED have text that is typed before and after a
line. SKIPPED has the reasons why lines are not typed. A line without a rule, a line that fails, and a bar wider than
the terminal are faults. Needs root and a network for apt."""

import collections
import fcntl
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "tools"))
from check_bare_packages import APT, MIRROR, QUIET, here  # noqa: E402
from check_bare_wheels import INSIDE, show  # noqa: E402

COLUMNS, ERASE, MARK = 80, "\r\x1b[K", "@line@"
PATH = "/opt/env/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
RUN, OTHER = "runs/demo/coupled", "runs/demo/vanilla"
FEW = "--set train.steps=20 --set train.warmup_steps=2 --set checkpoint.every=20"

# A line with such a beginning is a command. Other lines quote output, or are Python.
COMMAND = re.compile(
    r"(\w+=\S* )*(git|make|couplet|mpirun|cc|pip|python3?|tar|ln|podman|sudo|apt(-get)?|export|cp|cd|\./\S+) "
)
SKIPPED = (
    (r"hf://|https?://", "needs a hub"),
    (r"^(pip|python3? -m (pip|couplet\.certify))", "needs PyTorch: make python"),
    (r"^(podman|sudo|apt)", "changes the machine"),
)
QUOTED = (
    (r"couplet\.|backward\(\)|^import |^from |^(erc|loss|model) ", "Python: python/tests/test_docs.py"),
    (r"^\.\.\.|  |^page: |^Side by side|\(\d\)", "output: tests/cli/check_demo.py"),
)
# Replacements within a line, in this order. Each N becomes a different number. Verbs read a run of the demonstration.
PLACEHOLDERS = (
    (r"\[(\w+)? ?\.\.\.\]|(?<= \w\w\w) \.\.\.|(?<=FILE)\.\.\.", ""),
    (r"[][]", ""),
    (r"CONFIG\.yaml", "configs/N.yaml"),
    (r"compare RUN RUN", f"compare {OTHER} {RUN}"),
    (r"(?<!--out )(?<!--resume )\b(CHECKPOINT|MODEL_DIR|RUN)\b", RUN),
    (r"--data DIR", "--data data/eval"),
    (r"\bDIR\b", "DIR-N"),
    (r"\bFILE\b", "data/validation/qa-0000.jsonl.zst"),
    (r"--(json|html) F\b", r"--\1 F-N.\1"),
    (r"PAGE\.html", "PAGE-N.html"),
)
ADDED = (
    (r"^make demo", " SETTINGS='train.steps=20 train.warmup_steps=2 checkpoint.every=20'"),
    (r"couplet train .*--resume", ""),
    (r"couplet train ", f" {FEW}"),
    (r"couplet eval .*--tasks", " --limit 3"),
    (r"^cc ", " && ./a.out"),
)
BEFORE = (
    (r"CONFIG\.yaml", "cp configs/tiny.yaml configs/N.yaml"),
    (r"mine\.c", "cp examples/erc_in_your_trainer.c mine.c"),
)


# ---- the lines ----


def first(rules, line, default=None):
    return next((value for pattern, value in rules if re.search(pattern, line)), default)


def typed(line, number):
    """Returns (typed text, reason why no text is typed), or "" and None without a rule."""
    line = re.sub(r"\s+# .*", "", line)
    if not COMMAND.match(line + " "):
        return None, first(QUOTED, line, "")
    if first(SKIPPED, line):
        return None, first(SKIPPED, line)
    before, added = first(BEFORE, line), first(ADDED, line, "")
    for pattern, value in PLACEHOLDERS:
        line = re.sub(pattern, value, line)
    whole = (f"{before} && " if before else "") + line + added
    return re.sub(r"\bN\b", str(number), whole), None


def script(lines, end):
    """Types each line in one shell, in a clone. Marks where it ends, with exit code and seconds."""
    return "cd && git clone -q /srv/couplet.git couplet && cd couplet\n" + "".join(
        f"began=$(date +%s)\neval {quoted(line)} < /dev/null\n"
        f"printf '\\n{MARK} {number} %d %d\\n' $? $(($(date +%s) - began))\n{end if 'make demo' in line else ''}"
        for number, line in lines
    )


def quoted(line):
    return "'" + line.replace("'", "'\\''") + "'"


# ---- the machine ----


def make_root(root):
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    here("debootstrap", "debootstrap", "--variant=minbase", "bookworm", root, MIRROR)
    here("a bare clone", "git", "clone", "-q", "--bare", PROJECT, root / "srv/couplet.git")
    here("owned by root", "chown", "-R", "0:0", root / "srv")
    (root / "etc/gitconfig").write_text("[safe]\n\tdirectory = *\n")
    show(root, "apt-get update", *APT, "update", network=True, **QUIET)
    show(root, "apt-get install git make", *APT, "install", "git", "make", "ca-certificates", network=True, **QUIET)
    (root / "etc/apt/apt.conf.d/99sandbox").write_text('APT::Sandbox::User "root";\n')
    show(root, "useradd user", "useradd", "-m", "-s", "/bin/bash", "user")


def on_terminal(root, text, user):
    """Returns the output that a shell of this user sends to a terminal when it runs the text."""
    file = root / "tmp" / f"{user}.sh"
    file.write_text(text)
    terminal, inside = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    home = "/root" if user == "root" else f"/home/{user}"
    words = [
        *"unshare --mount --pid --fork sh -c".split(),
        INSIDE,
        str(root),
        *f"setpriv --reuid {user} --regid {user} --init-groups bash /tmp/{user}.sh".split(),
    ]
    environment = {
        "PATH": PATH,
        "HOME": home,
        "TERM": "xterm",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    environment |= {"JOBS": os.environ["JOBS"]} if "JOBS" in os.environ else {}
    sent = b""
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=inside, stderr=inside, env=environment):
        os.close(inside)
        try:
            while piece := os.read(terminal, 65536):
                sent += piece
        except OSError:  # the other end is closed
            pass
    os.close(terminal)
    (root.parent / f"{user}.log").write_bytes(sent)
    return sent.decode(errors="replace").replace("\r\n", "\n")


# Lines that only root can run. README gives them after the demonstration. Debian's own matplotlib is too old.
AS_ROOT = (
    "apt-get -q -y --no-install-recommends install openmpi-bin libopenmpi-dev python3-venv > /tmp/apt.log 2>&1\n"
    "python3 -m venv /opt/env && /opt/env/bin/pip install -q matplotlib > /tmp/pip.log 2>&1\n"
    "make install > /tmp/install.log 2>&1 || tail /tmp/install.log\n"
)


def judge(sent, lines, user):
    faults = []
    parts = re.split(rf"\n{MARK} (\d+) (\d+) (\d+)\n", sent)
    done = {
        int(number): (int(code), seconds, said)
        for said, number, code, seconds in zip(parts[0::4], parts[1::4], parts[2::4], parts[3::4])
    }
    for number, line in lines:
        code, seconds, said = done.get(number, (-1, "?", sent[-2000:]))
        print(f"{seconds:>6} s  {user}: {line}{'' if code == 0 else f'   EXIT CODE {code}'}", flush=True)
        if code:
            faults.append(f"{user}: {line}: exit code {code}: {said[-1500:]}")
    for bar in sent.split(ERASE)[1:]:
        bar = bar.split("\n")[0] if "\n" in bar else bar
        if len(bar) >= COLUMNS and (bar.startswith("[") or "  loss " in bar):
            faults.append(f"{user}: a bar of {len(bar)} columns: {bar}")
    return faults


def main():
    root, lines, faults, left = pathlib.Path(sys.argv[1]).resolve() / "root", [], [], collections.defaultdict(list)
    for number, line in enumerate((PROJECT / "README.md").read_text().splitlines(), 1):
        if not line.startswith("    "):
            continue
        command, why = typed(line[4:], number)
        if command:
            lines.append((number, command))
        elif why:
            left[why].append(str(number))
        else:
            faults.append(f"README.md, line {number}: there is no rule for {line[4:]!r}")
    for why, numbers in left.items():
        print(f"not typed: lines {', '.join(numbers)}: {why}", flush=True)
    if len(sys.argv) > 2:  # --lines prints the lines to type
        print("\n".join(f"{number}: {line}" for number, line in lines))
    elif os.geteuid():
        print("debootstrap needs root: nothing is typed")
    else:
        make_root(root)
        for user in ("root", "user"):
            start = time.monotonic()
            faults += judge(on_terminal(root, script(lines, AS_ROOT if user == "root" else ""), user), lines, user)
            print(f"{time.monotonic() - start:6.0f} s  {user}: all lines", flush=True)
        shutil.rmtree(root)
    print("\n".join(faults))
    print(f"{len(lines)} lines are typed, {len(faults)} faults")
    return bool(faults)


sys.exit(main())
