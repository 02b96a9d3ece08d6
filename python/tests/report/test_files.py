"""Files that may come from anybody: files refused unread, escaped output, and damaged files."""

import copy
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import pytest
import torch
from couplet import plot
from couplet.certify import __main__ as certify
from couplet.compare import __main__ as compare
from couplet.report import _files
from invented import SIX
from readers import READERS
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).parents[2] / "conformance"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b]0;OWNED\x07\x1b[2J\x85\u202e\nx: right"
COPIES = int(os.environ.get("COUPLET_COPIES", 40))
of_every_reader = pytest.mark.parametrize("reader", READERS.values(), ids=READERS)


def said_of(capsys, program, run, words):
    """Returns exit code and messages. Checks that the output has no control sequences for a terminal."""
    code = run(words)
    out, err = capsys.readouterr()
    assert not STEERS.search(out + err), (words, out, err)
    assert code in (0, 1, 2)
    if err:
        assert err.startswith(f"{program}: ") and "Traceback" not in err, err
    return code, err


def test_what_steers_a_terminal_is_escaped():
    assert _files.shown("a\tb\n\x1b[2J\x7f\x9b\u202e\udc80é") == "a\tb\\x0a\\x1b[2J\\x7f\\u{9b}\\u{202e}\\x80é"


def test_what_an_encoding_lacks_is_escaped():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    _files.print_lines("naïve", file=file)
    assert file.buffer.getvalue() == b"na\\xefve\n"


@pytest.mark.parametrize(
    "groups, left",
    (
        ({}, 1000 << 10),
        ({"/memory.max": "max", "/memory.current": "7"}, 1000 << 10),
        (
            {
                "/a/b/memory.max": "max",
                "/a/memory.max": "9000",
                "/a/memory.current": "4000",
                "/a/memory.stat": "anon 1\ninactive_file 300\n",
            },
            5300,
        ),
        ({"/memory/job/memory.limit_in_bytes": "9000", "/memory/job/memory.usage_in_bytes": "9001"}, 0),
        (
            {
                "/memory/memory.limit_in_bytes": "9000",
                "/memory/memory.usage_in_bytes": "1000",
                "/memory/job/memory.limit_in_bytes": str(2**63 - 4096),
            },
            8000,
        ),
    ),
)
def test_memory_of_control_groups(groups, left, tmp_path):
    """The limit is that of version 2, for the group or a parent of it, or that of version 1."""
    files = {
        "/proc/meminfo": "MemTotal: 5000 kB\nMemAvailable:    1000 kB\n",
        "/proc/self/cgroup": "5:cpu,memory:/job\n1:name=systemd:/x\n0::/a/b\n",
        **{"/sys/fs/cgroup" + name: text for name, text in groups.items()},
    }
    for name, text in files.items():
        path = tmp_path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert _files.available_bytes(str(tmp_path)) == left
    assert _files.available_bytes(str(tmp_path / "none")) == 8 << 30


def test_json_that_memory_cannot_hold(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("[" + "{}," * 10 + "{}]")
    assert _files.read(path) == path.read_bytes()
    monkeypatch.setattr(_files, "available_bytes", lambda: 32 * 33)
    with pytest.raises(_files.BadFile, match="it has 34 bytes, at most 33 are read"):
        _files.read(path)

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(json, "loads", fail)
    with pytest.raises(_files.BadFile, match="not enough memory"):
        _files.parse(b"{}")


def test_a_message_about_a_long_value_is_short(tmp_path, capsys):
    if not plot.can_draw():
        pytest.skip("needs matplotlib")
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"layers": [{"erc": {"A" * 10**6: 1}}]}))
    code, err = said_of(capsys, "couplet.plot", plot.main, [str(path), "--out", str(tmp_path / "out")])
    assert code == 1 and len(err) < 500 + len(str(path))


def special(path, kind):
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    elif kind == "a folder":
        path.mkdir()
    elif kind == "too large":
        path.touch()
        os.truncate(path, 1 << 42)  # a sparse file
    elif kind == "not UTF-8":
        path.write_bytes(b"\xff\xfe{}")
    elif kind == "nested":
        path.write_bytes(b"[" * 200_000)
    elif kind == "hostile":
        path.write_text(HOSTILE)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize(
    "kind, sentence",
    (
        ("a pipe", "it is no regular file"),
        ("a device", "it is no regular file"),
        ("a folder", "it cannot be read: is a directory"),
        ("too large", "it has 4,398,046,511,104 bytes, at most"),
        ("absent", " no"),
        ("not UTF-8", ""),
        ("nested", ""),
        ("hostile", ""),
    ),
)
@of_every_reader
def test_files_that_are_refused(reader, kind, sentence, tmp_path, capsys):
    special(reader.path(tmp_path), kind)
    code = reader.main(reader.words_in(tmp_path))
    said = "".join(capsys.readouterr())
    assert not STEERS.search(said) and "Traceback" not in said
    if kind == "too large" and reader.file.endswith(".gz"):
        sentence = ""
    passes = reader.optional if kind == "absent" else not sentence
    assert code == reader.refused and sentence in said.lower() or code == 0 and passes, said


@pytest.mark.parametrize("reader", [one for one in READERS.values() if "/" not in one.file], ids=lambda one: one.name)
@pytest.mark.parametrize("name", ("x\nx: right", "absent\nx: right"))
def test_a_name_that_forges_a_line(reader, name, tmp_path, capsys):
    name += pathlib.Path(reader.file).suffix
    if not name.startswith("absent"):
        reader.path(tmp_path, name).write_bytes(reader.whole)
    code, said = reader.main(reader.words_in(tmp_path, name)), "".join(capsys.readouterr())
    assert code == (reader.refused if name.startswith("absent") else 0)
    assert "\nx: right" not in said
    assert "\\x0ax: right" in said or code == 0 and reader.program != "couplet.certify", said


def test_a_name_of_a_run_that_forges_a_line(tmp_path, capsys):
    folder = SIX[0]._replace(name="a\x1b[2J\tb\nx: right").write(tmp_path)
    assert compare.main([str(folder), str(folder), "--json", str(tmp_path / "j")]) == 0
    out, err = capsys.readouterr()
    assert not STEERS.search(out + err) and "\nx: right" not in out and "a\\x1b[2J\\x09b\\x0ax: right" in out


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no device that is full")
@pytest.mark.parametrize("where", ("full", "closed", "a pipe that nobody reads"))
@pytest.mark.parametrize("reader", {one.program: one for one in READERS.values()}.values(), ids=lambda one: one.program)
def test_standard_output_that_cannot_be_written(reader, where, tmp_path):
    reader.path(tmp_path).write_bytes(reader.whole)
    ends = os.pipe()
    os.close(ends[0])
    opened = open("/dev/full", "w") if where == "full" else os.fdopen(ends[1], "w")
    command = [sys.executable, "-m", reader.program, *reader.words_in(tmp_path)]
    with opened:
        run = subprocess.run(
            ["sh", "-c", '"$@" >&-' if where == "closed" else '"$@"', "sh", *command],
            stdout=opened,
            stderr=subprocess.PIPE,
            text=True,
        )
    why = {"full": "No space left on device", "closed": "", "a pipe that nobody reads": "Broken pipe"}[where]
    code = 0 if where == "closed" else 2 if reader.program == "couplet.certify" else 1
    assert run.returncode == code and "Traceback" not in run.stderr, run.stderr
    assert run.stderr.count("\n") == bool(why) and why in run.stderr and bool(why) == ("standard output" in run.stderr)


def run_compare(folder, *words, **more):
    words = [sys.executable, "-m", "couplet.compare", *map(str, words)]
    return subprocess.run(words, cwd=folder, stderr=subprocess.PIPE, text=True, **more)


def test_a_result_goes_behind_what_standard_output_has(tmp_path):
    SIX[0]._replace(name="-run").write(tmp_path)
    (tmp_path / "log").write_text("first\n")
    with open(tmp_path / "log", "a") as log:
        run = run_compare(tmp_path, "--json", "-", "--", "-run", stdout=log)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "log").read_text().startswith("first\n{")


def test_a_page_is_utf_8_without_control_characters(tmp_path):
    for one, name in ((SIX[0], b"a\xff"), (SIX[1], b"b\x1b")):
        one._replace(name=os.fsdecode(name)).write(tmp_path)
    run = run_compare(tmp_path, *sorted(os.listdir(tmp_path)), "--html", "page.html", stdout=subprocess.DEVNULL)
    assert run.returncode == 0, run.stderr
    assert "\x1b" not in (tmp_path / "page.html").read_text("utf-8")


@of_every_reader
def test_an_interrupt(reader, tmp_path, capsys, monkeypatch):
    """Ctrl-C is pressed while the file is read."""
    path, opening = reader.path(tmp_path), os.open
    path.write_bytes(reader.whole)

    def interrupted(name, *words, **more):
        if os.fspath(name) == str(path):
            raise KeyboardInterrupt
        return opening(name, *words, **more)

    monkeypatch.setattr(os, "open", interrupted)
    assert reader.main(reader.words_in(tmp_path)) == 130
    assert capsys.readouterr().err in ("", "couplet.certify: interrupted; there is no verdict\n")


def test_names_in_a_dump(tmp_path, capsys):
    """A name that would forge a line is refused, and printed with escapes. The name of a kind is treated alike."""
    blob = (FOLDER / "z-loss.layers.safetensors").read_bytes()
    length = int.from_bytes(blob[:8], "little")
    for old, new in (("logits", HOSTILE), ("z-loss", HOSTILE)):
        header = json.loads(blob[8 : 8 + length])
        header = {new if key == old else key: value for key, value in header.items()}
        header["__metadata__"] = {key: new if value == old else value for key, value in header["__metadata__"].items()}
        text = json.dumps(header).encode()
        path = tmp_path / "a.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + blob[8 + length :])
        code, err = said_of(capsys, "couplet.certify", certify.main, [str(path)])
        assert code == 2 and "a name with a control character: '\\x1b]0;OWNED\\x07" in err and err.count("\n") == 1


def test_memory_that_is_not_there(tmp_path, capsys, monkeypatch):
    """A dump of more than a quarter of the available memory is refused unread. Lack of memory later has a message."""
    path = tmp_path / "a.safetensors"
    save_file({"R": torch.ones(2, 4), "W_g": torch.ones(2, 3, 4), "loss": torch.ones(())}, path)
    assert certify.main([str(path)]) in (0, 1)
    capsys.readouterr()
    with monkeypatch.context() as less:
        less.setattr("couplet.certify._dump.available_bytes", lambda: 100)
        assert said_of(capsys, "couplet.certify", certify.main, [str(path)])[0] == 2
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")):

        def judge(*_, error=error):
            raise error

        monkeypatch.setattr("couplet.certify.__main__.judge", judge)
        assert said_of(capsys, "couplet.certify", certify.main, [str(path)]) == (
            2,
            f"couplet.certify: {path}: not enough memory\n",
        )


# ---- damage ----


def damaged(blob, draw):
    """Returns a copy with one to three damages: changed bits, control bytes, cuts, repeated pieces, long numbers."""
    copy = bytearray(blob)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(copy) + 1) if draw.random() < 0.3 else draw.randrange(min(len(copy), 1000) + 1)
        end = min(len(copy), at + draw.choice((1, 8, 64)))
        bits = bytes(b ^ 1 << draw.randrange(8) for b in copy[at:end])
        words = (HOSTILE.encode(), b"9" * 30, b"null", b"-1e999", b"[[{", b"1e-400", b": ")
        copy[at:end] = draw.choice((bits, b"", copy[at:end] * 2, draw.randbytes(end - at), *words))
    return bytes(copy[: draw.randrange(len(copy) + 1)] if draw.random() < 0.1 else copy)


def random_damage(reader):
    """Yields copies of a file, each damaged at random."""
    draw = random.Random(43)
    for _ in range(COPIES // min(reader.share, 10)):
        yield damaged(reader.whole, draw)


def at_every_byte(reader):
    """Yields copies that are cut at a byte, or have one bit changed there, at up to 8 COPIES bytes."""
    whole = reader.whole
    for at in range(0, len(whole), max(1, len(whole) * reader.share // (8 * COPIES))):
        yield whole[:at]
        yield whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]


VALUES = ["null", "true", "-1", "0.5", "1e308", "1e999", "NaN", "-Infinity", str(2**53 + 1), "9" * 400]
VALUES += ["[]", "{}", "[null]", '{"1": "x"}', json.dumps(HOSTILE), '"\\ud800"', "[" * 50_000 + "]" * 50_000]
# Two more cases: absent and doubled. The sum is a prime, so that regular steps reach all cases.
CASES = len(VALUES) + 2


def places(value):
    """Yields (container, key) of every member and element."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(one, (dict, list)):
            yield from places(one)


def wrong_values(reader):
    """Yields copies of a JSON text with one member changed, absent, or doubled. Only every `step`-th case is used."""
    if reader.write is bytes:
        return
    total = len(list(places(reader.value))) * CASES
    step = max(1, total * reader.share // (8 * COPIES))
    for case in range(0, total, step + (step % CASES == 0)):
        value = copy.deepcopy(reader.value)
        at, key = list(places(value))[case // CASES]
        which, mark, before = case % CASES, "@@", at[key]
        at[key] = mark
        text = VALUES[which] if which < len(VALUES) else json.dumps(before)
        if which == len(VALUES):
            del at[key]
        elif which > len(VALUES) and isinstance(at, dict):
            text = f"null, {json.dumps(key)}: {text}"
        yield reader._replace(value=value).with_text(text)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@of_every_reader
@pytest.mark.parametrize("damage", (random_damage, at_every_byte, wrong_values), ids=lambda damage: damage.__name__)
def test_damaged_files(reader, damage, tmp_path, capsys):
    """Each program ends with an exit code and a sentence. It raises no exception, and prints no control sequences."""
    path = reader.path(tmp_path)
    path.write_bytes(reader.whole)
    words = reader.words_in(tmp_path)
    assert said_of(capsys, reader.program, reader.main, words) == (0, "")
    for blob in damage(reader):
        path.write_bytes(blob)
        code, err = said_of(capsys, reader.program, reader.main, words)
        assert code in (0, reader.refused) or reader.program == "couplet.certify", (code, err)
        assert err.count("\n") == (code != 0) or reader.program == "couplet.certify", (code, err)
        assert "report this" not in err or reader.name in ("export lm-eval", "plot report", "plot page"), err


def test_a_file_that_cannot_be_written_whole(tmp_path):
    """A process with a limit on the size of files fails to write. The old file stays, and no other file is left."""
    (tmp_path / "r.json").write_text("before")
    code = (
        "import resource, sys; from couplet.report import _files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: _files.write(sys.argv[1], 'x' * 10000)\n"
        "except OSError as error: print(_files.reason(error))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.json")], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{tmp_path / 'r.json'}: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"] and (tmp_path / "r.json").read_text() == "before"
