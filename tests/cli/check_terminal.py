#!/usr/bin/env python3
"""check_terminal.py COUPLET: no byte of a file steers a terminal. On a terminal (a pseudo-terminal) control characters
and characters that set the direction of text are shown as \\xNN and \\u{N}. In pipes results are unchanged bytes, and
sentences on standard error are safe too. Progress is one line, as wide as the terminal."""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios

from inputs import read_json, read_tensors, write_tensors
from program import COUPLET, check, finish, run_bytes, scratch_folder
from ranks_case import LIBRARIES, mpi
from train_case import train, write_corpus

ESCAPE = "\x1b]0;owned\x07"
EVIL = "a\x1b[31m\x7f\u009b1m\u202eb\u2066c\u061cd\x08e"
SHOWN = "a\\x1b[31m\\x7f\\u{9b}1m\\u{202e}b\\u{2066}c\\u{61c}d\\x08e"
ERASE = b"\r\x1b[K"


def set_columns(terminal, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def on_terminal(*words, cwd=None, given=subprocess.DEVNULL, columns=0, resize=0, command=(COUPLET,), **variables):
    """Returns the bytes that both streams sent to a terminal, without its own line ends, and the exit code. `variables`
    are added to the environment. 0 columns is a terminal of unknown size. `resize` is the number of columns after the
    third bar; with it the bytes before and after are returned in place of all."""
    terminal, inside = pty.openpty()
    set_columns(terminal, columns)
    with subprocess.Popen(
        [*command, *map(str, words)], stdin=given, stdout=inside, stderr=inside, cwd=cwd, env=os.environ | variables
    ) as process:
        os.close(inside)
        sent, before = b"", b""
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            sent += piece
            if resize and not before and sent.count(ERASE) > 3:
                set_columns(terminal, resize)
                before, sent = sent, b""
    os.close(terminal)
    sent = sent.replace(b"\r\n", b"\n")
    return ((before, sent) if resize else sent), process.returncode


def is_safe(sent, what):
    """Checks that the bytes are only text, line ends, tabs and the line that is drawn again."""
    rest = sent.replace(ERASE, b"")
    text = rest.decode("utf-8", "surrogateescape")
    bad = [
        c
        for c in text
        if (c < " " and c not in "\n\t")
        or "\x7f" <= c <= "\x9f"
        or c in "\u061c\u200e\u200f"
        or "\u202a" <= c <= "\u202e"
        or "\u2066" <= c <= "\u2069"
        or "\udc80" <= c <= "\udcff"
    ]
    check(not bad, f"{what}: a terminal gets {bad[:5]!r}: {sent[-600:]!r}")


def safe(parts, code, *words, cwd=None):
    """Checks that on a terminal all output is safe and the parts are shown. In a pipe standard error is safe."""
    sent, got = on_terminal(*words, cwd=cwd)
    is_safe(sent, words)
    check(got == code, f"{words}: exit {got}: {sent[-600:]!r}")
    flat = sent.replace(b"\n", b"")
    for part in parts:
        check(part.encode() in flat, f"{words}: {part!r} is not shown: {sent[-900:]!r}")
    out, err, got = run_bytes(*words, cwd=cwd)
    is_safe(err, f"{words}, standard error in a pipe")
    check(got == code, f"{words} in pipes: exit {got}")
    return out, err


# ---- checkpoints ----


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(read_json(path) | values))
    (folder / "checksums.json").unlink(missing_ok=True)


def rename_tensors(path, old, new):
    write_tensors(path, {name.replace(old, new): value for name, value in read_tensors(path).items()})


def check_checkpoints(work, last):
    named = work / "named"
    shutil.copytree(last, named)
    edit_config(named, model_type="mixtral" + ESCAPE)
    out, _ = safe(["\\x1b]0;owned\\x07"], 0, "inspect", named)
    check(ESCAPE.encode() in out, f"in a pipe the table is not as it was: {out[:300]!r}")
    tensors = work / "tensors"
    shutil.copytree(last, tensors)
    (tensors / "checksums.json").unlink()
    rename_tensors(tensors / "model.safetensors", "layers.1", "layers.7" + EVIL)
    for verb in (["inspect", tensors], ["generate", tensors, "--prompt", "a", "--tokens", 1]):
        sent, _ = on_terminal(*verb)
        is_safe(sent, verb)
        is_safe(run_bytes(*verb)[1], verb)
    folder = work / EVIL
    shutil.copytree(last, folder)
    out, _ = safe([SHOWN], 0, "inspect", folder)
    check(EVIL.encode() in out, f"in a pipe the folder's name is not as it was: {out[:300]!r}")
    broken = work / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes(b'{"model_type": \x1b[31m}')
    safe(["couplet: "], 1, "generate", broken, "--prompt", "a")
    (broken / "config.json").write_bytes(b'{"model_type": "mixtral\xff\xfe"}')
    safe(["couplet: "], 1, "generate", broken, "--prompt", "a")


def check_one_line(work, last):
    """A line end in a name does not begin a new sentence."""
    gone = f"{work}/no\ncouplet: all is well"
    out, err = safe([], 1, "inspect", gone)
    check(err.count(b"\n") == 1 and b"no\\x0acouplet: all is well" in err, f"two lines: {err!r}")


def check_forged(work, run):
    """A line end in a file does not begin a line of a table, on a terminal or in a pipe."""
    forged, shown = "x\nforged:  all\t1 2 3", b"x\\x0aforged:  all\\x091 2 3"
    named, text, folder = work / "forged", work / "forged.jsonl", work / forged
    shutil.copytree(run / "last", named)
    edit_config(named, model_type=forged)
    shutil.copytree(named, folder)
    write_text(text, forged)
    one = train(work, "one", f"data.validation={text}", "erc.weight=0")
    two = train(work, "two", f"data.validation={text}")
    for words in (
        ["inspect", named],
        ["inspect", folder],
        ["inspect", named, folder],
        ["inspect", run, "--text", text],
        ["eval", run, "--text", text],
        ["compare", one, two],
        ["train", "--resume", one, "--set", "train.steps=41"],
    ):
        for sent in (on_terminal(*words)[0], b"".join(run_bytes(*words)[:2])):
            check(
                b"forged" in sent
                and b"\nforged" not in sent
                and b"\t" not in sent
                and (shown in sent or words[0] in ("compare", "eval", "train")),
                f"{words}: a forged line: {sent[-1500:]!r}",
            )


# ---- text ----


def write_text(path, source):
    words = " ".join(json.loads((path.parent / "docs/one.jsonl").read_text().splitlines()[0])["text"].split() * 4)
    path.write_text(
        "".join(
            json.dumps({"id": str(i), "source": name, "text": words}) + "\n"
            for i, name in enumerate([source, "plain"] * 2)
        )
    )


def check_texts(work, run):
    text = work / "evil.jsonl"
    write_text(text, EVIL)
    out, _ = safe([SHOWN], 0, "inspect", run, "--text", text)
    check(EVIL.encode() in out, f"inspect --text in a pipe: {out[-400:]!r}")
    named = work / f"{EVIL}.jsonl"
    shutil.copy(text, named)
    safe([SHOWN], 0, "eval", run, "--text", named, text)
    other = train(work, "other", f"data.validation={text}", "erc.weight=0")
    again = train(work, "again", f"data.validation={text}")
    out, _ = safe([SHOWN], 0, "compare", again, other)  # Python escapes in a pipe too
    check(EVIL.encode() not in out and SHOWN.encode() in out, f"compare in a pipe: {out[-400:]!r}")


def check_generated(work, last):
    """Checks a model whose tokenizer has control bytes where the trained one has letters."""
    steering = work / "steering"
    shutil.copytree(last, steering)
    (steering / "checksums.json").unlink()
    path = steering / "tokenizer.json"
    tokenizer = read_json(path)
    ids = tokenizer["model"]["vocab"]
    controls = [chr(256 + byte) for byte in (0x1B, 7, 8, 0x0D)] + [chr(289)]  # the last is DEL
    for letter, control in zip("abcde", controls):
        ids[letter], ids[control] = ids[control], ids[letter]
    path.write_text(json.dumps(tokenizer))
    words = ["generate", steering, "--prompt", "zz", "--tokens", 60, "--temperature", 1]
    sent, code = on_terminal(*words)
    out, err, also = run_bytes(*words)
    check(code == also == 0, f"generate: {code} {sent!r} {also} {err!r}")
    is_safe(sent, "generate")
    controls = [byte for byte in b"\x1b\x07\x08\x0d\x7f" if byte in out]
    check(controls, f"generate in a pipe: {out!r}")
    check(all(f"\\x{byte:02x}".encode() in sent for byte in controls), f"generate: {sent!r}")


def check_decoded(work):
    """Checks text with all kinds of characters, and a character that is cut at the end."""
    text = b"a\tb\nc" + ESCAPE.encode() + EVIL.encode() + "ä€😀€".encode()
    words = ["tokenize", "decode", "--tokenizer", work / "T.json"]
    ids, err, code = run_bytes(*words[:1], "encode", *words[2:], "--ids", data=text)
    check(code == 0, f"encode: {err!r}")
    ids = b" ".join(ids.split()[:-1])  # the last id is the last byte
    (work / "ids").write_bytes(ids)
    with open(work / "ids", "rb") as given:
        sent, code = on_terminal(*words, given=given)
    check(code == 0, f"decode: {sent!r}")
    is_safe(sent, "decode")
    for part in ("a\tb\nc\\x1b]0;owned\\x07", SHOWN, "ä€😀\\xe2\\x82"):
        check(part.encode() in sent, f"decode: {part!r} is not shown: {sent!r}")
    out = run_bytes(*words, data=ids)[0]
    check(out == text[:-1], f"decode in a pipe: {out!r}")


# ---- bars and help ----


def bars(sent):
    """Returns the bars that were drawn and then drawn over."""
    return [bar.decode() for bar in sent.split(ERASE) if bar and b"\n" not in bar]


def has_bars(sent, columns, parts, what):
    found = bars(sent)
    check(found and max(map(len, found)) < columns, f"{what}, {columns} columns: {found[-3:]} of {sent[-300:]!r}")
    for part in parts:
        check(any(part in bar for bar in found), f"{what}, {columns} columns: no {part!r} in {found[-3:]}")


TRAIN = ["train", "c.yaml", "--set", "train.steps=60", "--set", "eval.every=0", "--out"]
LONG = [*TRAIN[:2], "--set", "train.steps=200", *TRAIN[4:]]  # longer than several bars
WIDTHS = (
    (40, ["/60  loss "]),
    (80, ["=> ", "/60  loss ", " tok/s  0:", " left"]),
    (200, ["=> ", " tok/s", " of peak"]),
)


def check_progress(work, run):
    """Progress is one line for every verb and every width of terminal, and is absent in a pipe."""
    files = [*(work / "docs").iterdir()]
    for columns, trained in WIDTHS:
        for parts, *words in (
            (trained, *TRAIN, work / f"train-{columns}"),
            (["questions"], "eval", run, "--tasks", "copa", "--limit", 60),
            (["layer "], "inspect", run),
            (["1 of "], "tokenize", "encode", "--tokenizer", "T.json", "--out", f"e-{columns}", *files),
            (["files"], "tokenize", "train", "--vocab-size", 300, "--out", f"t-{columns}", *files),
        ):
            sent, code = on_terminal(*words, cwd=work, columns=columns)
            check(code == 0, f"{words}: {code} {sent[-300:]!r}")
            has_bars(sent, columns, parts, words)
            check(b" 0 tokens" not in sent, f"{words}: tokens that are not counted yet: {bars(sent)[-3:]}")
            is_safe(sent, words)
    for variables, columns in (({"COLUMNS": "50"}, 50), ({"COLUMNS": "wide"}, 80)):
        has_bars(on_terminal(*TRAIN, work / f"unsized-{columns}", cwd=work, **variables)[0], columns, [], variables)
    (before, after), code = on_terminal(*LONG, work / "resized", cwd=work, columns=80, resize=40)
    has_bars(before, 80, [" tok/s"], "before a resize")
    has_bars(after.split(ERASE, 2)[2], 40, ["200/200  loss"], "after a resize")
    drawn = len([bar for bar in bars(before + after) if "/200 " in bar])
    check(drawn < 200, "a bar for every step")
    out, err, _ = run_bytes(*TRAIN, work / "piped", cwd=work)
    check(b"\x1b" not in out + err and b"step 60/60  loss " in out, f"a bar in a pipe: {out[-300:]!r}")
    sent, _ = on_terminal(*TRAIN, work / "dumb", cwd=work, TERM="dumb")
    check(b"\x1b" not in sent, f"a bar on a terminal that cannot erase: {sent[-300:]!r}")


def check_ranks(work):
    """Rank 0 draws the line if mpirun writes to a terminal, and not otherwise."""
    for library in LIBRARIES:
        words = [mpi.command(library, 2, COUPLET, *steps) for steps in (LONG, TRAIN)]
        (before, after), code = on_terminal(
            work / f"{library}-seen", cwd=work, command=words[0], columns=80, resize=40, **mpi.environment()
        )
        check(code == 0, f"{library}: {code} {after[-500:]!r}")
        has_bars(before, 80, ["/200  loss"], library)
        has_bars(after.split(ERASE, 2)[-1], 40, ["200/200  loss"], f"{library} after a resize")
        done = subprocess.run(
            [*words[1], work / f"{library}-piped"], cwd=work, env=mpi.environment(), check=False, capture_output=True
        )
        check(
            done.returncode == 0 and b"\x1b" not in done.stdout and b"step 60/60" in done.stdout,
            f"{library} in a pipe: {done.stdout[-300:]!r}",
        )


def check_bold():
    """Sections of the help are bold only on a terminal that can show bold."""
    for variables in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        sent, _ = on_terminal("train", "--help", **{"NO_COLOR": "", "TERM": "xterm"} | variables)
        check((b"\x1b[1merc\x1b[m" in sent) == (not variables), f"bold with {variables}")
        check(b"\x1b" not in sent or not variables, f"an escape with {variables}")
    check(b"\x1b" not in run_bytes("train", "--help")[0], "help is in bold in a pipe")


def main():
    try:
        for file in pty.openpty():
            os.close(file)
    except OSError as error:  # a root without devpts
        print(f"not checked here: no pseudo-terminal: {error}")
        return 77
    check_bold()
    with scratch_folder() as work:
        write_corpus(work)
        run = train(work, "run")
        check_checkpoints(work, run / "last")
        check_one_line(work, run / "last")
        check_forged(work, run)
        check_texts(work, run)
        check_generated(work, run / "last")
        check_decoded(work)
        check_progress(work, run)
        check_ranks(work)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
