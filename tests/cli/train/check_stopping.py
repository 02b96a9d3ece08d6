#!/usr/bin/env python3
"""check_stopping.py COUPLET: SIGINT and SIGTERM end the program by the signal, so that shells notice it, in every phase
of its work. A run or an encoding that failed, or did not begin, leaves no files behind."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.append("tests/cli")
from program import COUPLET, bad, capture, check, finish, good, said, scratch_folder, sets, wait_until
from train_case import train, write_corpus

LONG = ("train.steps=100000", "checkpoint.every=1", "eval.every=0")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start(folder, *words):
    return start_command(folder, [COUPLET, *map(str, words)])


def start_command(folder, command):
    """Starts the command. Both outputs are one, and the process has its own session."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, start_new_session=True, **streams)


def stop(process, number, what):
    """Sends the signal, which ends the process soon."""
    process.send_signal(number)
    try:
        out = process.communicate(timeout=60)[0].decode()
    except subprocess.TimeoutExpired:
        process.kill()
        out = process.communicate()[0].decode()
    check(process.returncode == -number, f"{what}: exit {process.returncode}, wanted {-number}: {out[-500:]}")
    check(out.splitlines()[-1:] and "stopped" in out.splitlines()[-1], f"{what}: no sentence: {out[-500:]}")
    return out


def inside(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- a run ----


def check_shells(folder):
    """Checks that a loop of bash ends at Ctrl-C, and so does a list of commands."""
    script = 'for s in 1 2 3; do "$0" train c.yaml --out loop$s ' + " ".join(sets(*LONG)) + "; done; echo went on"
    shell = start_command(folder, ["bash", "-c", script, COUPLET])
    check(wait_until((folder / "loop1" / "last").exists, shell), "the loop's first run does not begin")
    os.killpg(shell.pid, signal.SIGINT)
    out = shell.communicate(timeout=120)[0].decode()
    check(shell.returncode in (-signal.SIGINT, 130), f"a loop: exit {shell.returncode}: {out[-500:]}")
    check("went on" not in out and not (folder / "loop2").exists(), f"a loop went on: {out[-500:]}")
    script = (
        '"$0" train c.yaml --out chain ' + " ".join(sets(*LONG)) + " & run=$!; "
        "until [ -e chain/last ]; do sleep 0.05; done; kill -TERM $run; wait $run; echo code $?"
    )
    done = capture(["bash", "-c", script, COUPLET], cwd=folder, timeout=120)
    check("code 143" in done.stdout, f"bash sees {done.stdout[-300:]!r}, wanted code 143")
    check("go on with: couplet train --resume chain" in done.stderr, f"after SIGTERM: {done.stderr!r}")


def check_lock_of_cache(folder):
    """Stops runs while another process encodes for their cache."""
    cache = folder / "cache"
    cache.mkdir()
    with open(cache / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in SIGNALS:
            process = start(folder, "train", "c.yaml", "--out", "new/run", *sets("data.cache=cache"))
            check(wait_until((folder / "new/run/lock").exists, process), "a run that waits has no lock")
            time.sleep(0.2)
            stop(process, number, "waiting for the cache's lock")
            check(not (folder / "new").exists(), f"waiting: left behind: {inside(folder / 'new')}")
            check(inside(cache) == [".lock"], f"waiting: the cache has {inside(cache)}")


def write_large(folder):
    """Writes so much text that a signal comes while it is encoded."""
    (folder / "large").mkdir()
    line = json.dumps({"id": "1", "text": " ".join(f"abc{i % 977} def{i % 991}" for i in range(3000))})
    for name in ("a", "b", "c"):
        (folder / "large" / f"{name}.jsonl").write_text((line + "\n") * 600)


def check_encoding(folder):
    for number in SIGNALS:
        process = start(folder, "train", "c.yaml", "--out", "runs/big", *sets(f"data.train={folder / 'large'}"))
        check(wait_until(lambda: list(folder.glob("runs/big/tokens/.tmp-*/*")), process), "no encoding to stop")
        stop(process, number, "encoding for a run")
        check(not (folder / "runs").exists(), f"encoding: left behind: {inside(folder / 'runs')}")
        for out in ("tokens", "deep/tokens"):
            process = start(folder, "tokenize", "encode", "--tokenizer", "T.json", "--out", out, "large")
            check(wait_until(lambda: list((folder / out).glob("part-*")), process), "no tokens to stop")
            stop(process, number, "tokenize encode")
            check(not (folder / out.split("/")[0]).exists(), f"encode: left behind: {inside(folder / out)}")


def check_second_signal(folder):
    """Checks that the second of two signals does not wait for the step."""
    process = start(folder, "train", "c.yaml", "--out", "two", *sets(*LONG, "data.batch_tokens=8192"))
    check(wait_until((folder / "two" / "start.json").exists, process), "a long step does not begin")
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    check(process.returncode in (-signal.SIGINT, -signal.SIGTERM), f"two signals: {process.returncode}")


# ---- starts and encodings that fail ----


def check_failed_starts(folder):
    """The folder is removed, with the parents that the start made. Older folders stay."""
    good("train", folder / "c.yaml", "--out", folder / "small", *sets("train.steps=3"))
    (folder / "bad.jsonl").write_text("not json\n")
    faults = [
        [f"data.train={folder / 'no-such'}"],
        ["data.tokenizer=unset"],
        [f"data.train={folder / 'bad.jsonl'}", "data.bad=stop"],
        ["data.weights={thre: 2}"],
        ["data.seq_len=64", "data.batch_tokens=64", f"data.validation={folder / 'bad.jsonl'}"],
        [
            "model.hidden_size=65536",
            "model.intermediate_size=65536",
            "model.num_experts=1024",
            "data.tokenizer=unset",
            f"data.train={folder / 'small/tokens'}",
        ],
    ]
    (folder / "empty").mkdir()
    for fault in faults:
        for out in ("made/above/run", "empty"):
            bad(1, "", "train", "c.yaml", "--out", out, *sets(*fault), cwd=folder)
            check(not (folder / "made").exists(), f"{fault}: left behind: {inside(folder / 'made')}")
            check(inside(folder / "empty") == [], f"{fault}: left in a folder: {inside(folder / 'empty')}")
        cached = sets(f"data.cache={folder / 'made/cache'}", *fault)
        bad(1, "", "train c.yaml --out made/run", *cached, cwd=folder)
        left = [name for name in inside(folder / "made") if "/" not in name and name != "cache"]
        check(
            not left and not list(folder.rglob(".tmp-*")) and not list(folder.rglob(".lock")),
            f"{fault}, a cache: left behind: {inside(folder / 'made')}",
        )
        shutil.rmtree(folder / "made", ignore_errors=True)
    train(folder, "empty", "train.steps=3")


def check_places(folder):
    """A folder with other files is refused for a run. The folder of a killed start is accepted."""
    full = folder / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    bad(1, ["full: is not a run and not empty", "--out"], "train", "c.yaml", "--out", "full", cwd=folder)
    check(inside(full) == ["notes.txt"], f"a folder of somebody else has {inside(full)}")
    (full / "config.yaml").write_text("mine")
    bad(1, ["holds a run already", "--resume full"], "train", "c.yaml", "--out", "full", cwd=folder)
    check(inside(full) == ["config.yaml", "notes.txt"], f"a run without lock has {inside(full)}")
    killed = folder / "killed"
    (killed / "tokens" / ".tmp-train-1").mkdir(parents=True)
    (killed / "lock").write_text("")
    train(folder, "killed", "train.steps=3")


def check_failed_encodings(folder):
    """Checks that a failed encode removes its files, and that the command works when the fault is repaired."""
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("abc def")
    (folder / "in" / "b.jsonl").write_text("not json\n")
    words = ["tokenize", "encode", "--tokenizer", folder / "T.json", "--bad", "stop", folder / "in"]
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    for more in ([], ["--by-source"]):
        bad(1, "b.jsonl", *words, "--out", folder / "x" / "y", *more)
        check(not (folder / "x").exists(), f"{said(words)}: left behind: {inside(folder / 'x')}")
        bad(1, "b.jsonl", *words, "--out", folder / "mine", *more)
        check(inside(folder / "mine") == ["notes.txt"], f"{said(words)}: {inside(folder / 'mine')}")
    (folder / "in" / "b.jsonl").unlink()
    good(*words, "--out", folder / "mine")
    (folder / "mine" / "part-0-00000.npy.tmp-1-1").write_text("")  # the state after kill -9
    bad(1, "--overwrite", *words, "--out", folder / "mine")
    good(*words, "--out", folder / "mine", "--overwrite")
    check(
        "part-0-00000.npy.tmp-1-1" not in inside(folder / "mine") and (folder / "mine" / "notes.txt").exists(),
        f"--overwrite: {inside(folder / 'mine')}",
    )


def main():
    with scratch_folder() as folder:
        write_corpus(folder)
        write_large(folder)
        check_failed_starts(folder)
        check_places(folder)
        check_failed_encodings(folder)
        check_lock_of_cache(folder)
        check_encoding(folder)
        check_second_signal(folder)
        check_shells(folder)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
