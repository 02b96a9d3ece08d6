#!/usr/bin/env python3
"""check_remote_faults.py COUPLET: faults of remote servers, hubs and checkpoints: one sentence and exit code 1, at
once, and no text of a server that moves a terminal. Failures that must pass are in check_remote.py."""

import json
import re
import shutil
import struct
import sys
import time

import faulty_server as wrongly
import remote_case
from checkpoints import gguf, length, sharded
from fake_hub import OUTSIDER, digest
from inputs import GOLDEN
from program import bad, check

FIRST, SECOND, INDEX = (
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model.safetensors.index.json",
)
MOST_SENT = 32 << 20  # bytes that a server may have sent (most lie in the buffers of sockets) before it is stopped
MOST_JSON, MOST_LIST = (
    32 << 20,
    8 << 20,
)  # most bytes of a JSON file and of a list of files that are read (docs/security.md)
MOST_SECONDS = 100


def faulty(one, what, pattern, fault, place="hf://org/model", most=MOST_SENT, **how):
    """Checks a fault of a server, and its sentence."""
    servers = one.servers
    servers.clear()
    servers.misbehave(fault, **({"host": "store", "path": r"\.safetensors$"} | how))
    began = time.monotonic()
    text = one.fails(pattern, place, what=what, seconds=2 * MOST_SECONDS)
    sent, took = max((seen.sent for seen in servers.seen), default=0), time.monotonic() - began
    check(sent <= most, f"{what}: {sent} bytes were sent before it was stopped")
    check(took < MOST_SECONDS, f"{what}: told after {took:.0f} s")
    check(len(servers.seen) < 200, f"{what}: {len(servers.seen)} requests")
    servers.clear()
    return text


# ---- faults of servers ----

CHANGED = "the file changed in between [(]its {} is not what it was[)]: begin again once it stays as it is"
STORE, HUB, RANGE = r"127.0.0.2:\d+ ", r"127.0.0.1:\d+ ", r"bytes \d+-\d+/\d+"
WHOLE = STORE + "sends no ranges: it answered with the whole file, and was stopped at once"
OTHER = STORE + r'answered with other bytes than those asked for: "{}" for bytes \d+ to \d+'
ENDLESS = STORE + 'does not say how long it is: "'
LOST = f"the connection with {STORE}was lost 5 times in a row: "
FAILED = r"the request to {}:\d+ failed: "
HEADERS = FAILED + "its answer is a header without an end"
DAYS = STORE + "asks to wait for more than a day [(]429[)]: try again later"
REFUSED = STORE[:-1] + ", to which the hub leads, refuses it [(]{}[)], by a new way too"
STRANGER, ABSENT = "refuses it [(]{}[)]: there is no such repository", "has no such file [(]{}[)]"
ESCAPED = r".*; it says \"an error \\x1b\[31min red\\x1b\]0;title\\x07\""
LOOP = r"a redirect loop: after 10 redirects {}gives another one"
ASTRAY = HUB + "redirects to a place that is not allowed: "
SEVERAL = HUB + "redirects to several places: its answer has 2 Location headers, and one is allowed"
OPEN, SCHEME, UNCLEAR = '"http://127.0.0.1:9/x" is not encrypted', ": is neither https:// nor http://", '"{}" is no URL'
TENSORS = {"host": "hub", "path": r"resolve/.*\.safetensors$"}
CONFIG, ANY = {"host": "hub", "path": "config.json"}, {"path": "resolve|repos"}

# Faults by group: the fault, the sentence about it, the server's function, and the requests that meet it. If libcurl
# gives the reason, its words differ between its versions.
FAULTS = {
    "beginnings": [
        ("the whole file", WHOLE, wrongly.ignores_ranges, {}),
        ("the whole file, endless", WHOLE, wrongly.ignores_ranges_endlessly, {}),
        ("a file without end", WHOLE, wrongly.never_ends, {}),
        ("416", STORE + "has no bytes 0 to 262143 of it [(]416[)](?: [(]nor can|$)", wrongly.not_satisfiable, {}),
    ],
    "ranges": [
        ("another range", OTHER.format(RANGE), wrongly.other_range, {"skip": 3}),
        ("another size", CHANGED.format("length"), wrongly.other_size, {"skip": 3}),
        ("no Content-Range", OTHER.format(""), wrongly.unsaid_range, {"skip": 3}),
        ("a shorter range", OTHER.format(RANGE), wrongly.shorter(9), {"skip": 3}),
        ("more", STORE + r"sends more than the \d+ bytes that were asked for, and", wrongly.goes_on, {"skip": 3}),
        *(
            (f"Content-Range {text!r}", OTHER.format(re.escape(text)), wrongly.senseless_range(text), {"skip": 3})
            for text in ("bytes 0-99999999999999999999/12", "lines 1-2/3", "bytes -5--1/9", "")
        ),
        ("bytes 0-9/*", ENDLESS + r"bytes 0-9/\*", wrongly.senseless_range("bytes 0-9/*"), {"skip": 3}),
        ("bytes */*", ENDLESS + r"bytes \*/\*", wrongly.senseless_range("bytes */*"), {"skip": 3}),
        ("always short", LOST + "it sends fewer bytes than it says", wrongly.falls_short(9), {"skip": 3}),
        ("a size of the hub's", r"hub and store disagree on its length [(]X", wrongly.says(X_Linked_Size="5"), TENSORS),
        ("gzip", STORE + "sends it compressed, so that ranges of it mean nothing", wrongly.gzipped, {"skip": 1}),
    ],
    "connections": [
        ("always cut", LOST, wrongly.cut(1000), {"skip": 2}),
        ("always hung up", f"cannot reach {STORE[:-1]}: .* [(]5 tries[)]", wrongly.hangs_up, {"skip": 2}),
        ("no HTTP", FAILED.format("127.0.0.2") + "Received HTTP/0.9", wrongly.garbage, {"skip": 2}),
        ("headers without end", HEADERS.format("127.0.0.2"), wrongly.endless_headers, {"skip": 1}),
        ("a header of 8 MB", FAILED.format("127.0.0.2"), wrongly.long_header(), {"skip": 1}),
        ("the hub's headers without end", HEADERS.format("127.0.0.1"), wrongly.endless_headers, CONFIG),
    ],
    "statuses": [
        (
            "429 always",
            STORE + "answered 429, 8 times in a row: too many requests; try",
            wrongly.retry_after(429, 1),
            {},
        ),
        ("429 for days", DAYS, wrongly.retry_after(429, 500000), {}),
        ("429 for ever", DAYS, wrongly.retry_after(429, 10**30), {}),
        ("500 always", STORE + "answered 500, 5 times in a row", wrongly.retry_after(500, 0), {}),
        ("418", STORE + "answered 418 ", wrongly.status(418), {}),
        ("204", STORE + "answered 204 ", wrongly.status(204), {}),
        ("302 to nowhere", STORE + "answered 302 without a place to go to ", wrongly.status(302), {}),
        ("401 of the store", REFUSED.format(401), wrongly.screams(401), ANY | {"host": "store"}),
        ("403 of the store", REFUSED.format(403), wrongly.screams(403), ANY | {"host": "store"}),
        ("404 of the store", STORE + ABSENT.format(404) + ESCAPED, wrongly.screams(404), ANY | {"host": "store"}),
        ("401 of the hub", HUB + STRANGER.format(401) + ESCAPED, wrongly.screams(401), ANY | {"host": "hub"}),
        ("403 of the hub", HUB + STRANGER.format(403) + ESCAPED, wrongly.screams(403), ANY | {"host": "hub"}),
        ("404 of the hub", HUB + ABSENT.format(404) + ESCAPED, wrongly.screams(404), ANY | {"host": "hub"}),
    ],
    "redirects": [
        *(
            (f"a {what} of {how}", LOOP.format(name), fault, how)
            for what, fault in (("loop", wrongly.loops), ("long way", wrongly.wanders))
            for name, how in (
                (HUB, {"host": "hub", "path": "resolve/"}),
                (HUB, {"host": "hub", "path": "resolve-cache"}),
                (STORE, {}),
            )
        ),
        *(
            (place, ASTRAY + why, wrongly.redirects(place), TENSORS)
            for place, why in (
                ("http://127.0.0.1:9/x", OPEN),
                ("http://127.0.0.1:9/x?Signature=secret", OPEN),
                ("file:///etc/passwd", "file:///etc/passwd" + SCHEME),
                ("gopher://127.0.0.1:9/", "gopher://127.0.0.1:9/" + SCHEME),
                ("ftp://127.0.0.1/x", "ftp://127.0.0.1/x" + SCHEME),
                ("//", UNCLEAR.format("//")),
                ("https://", UNCLEAR.format("https://")),
                ("javascript:alert(1)", UNCLEAR.format(r"javascript:alert\(1\)")),
                ("https://user:word@127.0.0.1:9/x", UNCLEAR.format("https://127.0.0.1:9/x")),
            )
        ),
        *(
            (f"places {places}", SEVERAL, wrongly.redirects(places), TENSORS)
            for bad_place in ("http://127.0.0.1:9/x", "https://user:word@127.0.0.1:9/x")
            for places in (["", bad_place], ["https://127.0.0.1:9/x", bad_place])
        ),
        ("an empty place", HUB + "answered 302 without a place to go to ", wrongly.redirects(""), TENSORS),
    ],
}


def check_faults(one, group, place="hf://org/model"):
    """Neither the contents of a local file nor a password are printed."""
    for what, pattern, fault, how in FAULTS[group]:
        text = faulty(one, f"{place}: {what}", pattern, fault, place=place, **how)
        check("root:" not in text and "word@" not in text, f"{what}: {text}")


def check_unreachable(one):
    one.fails(
        "cannot reach 127.0.0.1:9: Failed to connect to 127.0.0.1 port 9.* [(]5 tries[)]",
        "hf://org/model",
        env={"HF_ENDPOINT": "https://127.0.0.1:9"},
        what="nobody listens",
    )


def check_certificates(one):
    refused = r"the certificate of {}:\d+ is not valid, and nothing was sent: "
    for host, name in (("hub", "127.0.0.1"), ("store", "127.0.0.2")):
        for which, why in (
            ("wrong_name", "no alternative certificate subject name matches"),
            ("stranger", "SSL certificate problem"),
        ):
            one.servers.use_certificate(host, which)
            one.fails(refused.format(name) + f".*{why}", "hf://org/model", what=f"{host}: certificate {which}")
        one.servers.use_certificate(host, "good")
    one.fails(
        refused.format("127.0.0.1"),
        "hf://org/model",
        env={
            "SSL_CERT_FILE": str(one.servers.certificates.pair("other")[0]),
            "CURL_CA_BUNDLE": str(one.servers.certificates.pair("other")[0]),
        },
        what="an authority that nobody trusts",
    )


# ---- statuses ----


def check_gated(one):
    """The remedy is named: for a user without a token, and for a token without the right."""
    hub = re.escape(one.servers.hub.url)
    stranger = (
        rf"127.0.0.1:\d+ refuses it [(]401[)]: there is no such repository, or it is private or gated: accept its terms on "
        rf"{hub}/org/{{}}, then set HF_TOKEN to a token that may read it; it says \"{{}}"
    )
    one.fails(
        "hf://org/gated: " + stranger.format("gated", "Access to model org/gated is restricted"), "hf://org/gated"
    )
    one.fails("hf://org/none: " + stranger.format("none", "Invalid username or password."), "hf://org/none")
    one.fails(
        rf"hf://org/gated: 127.0.0.1:\d+ refuses it [(]403[)] with the token that was sent: if the model is gated, accept its terms on "
        rf"{hub}/org/gated with the account of that token; HF_TOKEN is another one; it says \"Access to model",
        "hf://org/gated",
        env={"HF_TOKEN": OUTSIDER},
        what="gated, a token without access",
    )
    for word, env in (("hf://org/none", {"HF_TOKEN": OUTSIDER}), ("hf://org/model@v3", {})):
        one.fails(rf"{word}: 127.0.0.1:\d+ has no such repository or revision [(]404[)]", word, env=env)


def check_nearest(one, made):
    """A 404 names the nearest existing name."""
    other = one.work / "renamed"
    shutil.copytree(made.folder, other)
    (other / SECOND).rename(other / SECOND.replace("model-", "model"))
    (other / FIRST).unlink()
    (other / FIRST.replace("00001-", "00003-")).unlink()
    one.servers.add("org/renamed", other)
    one.fails(
        f"{FIRST}: the repository has no such file at this revision [(]404[)]; the nearest name is {SECOND.replace('model-', 'model')} ",
        "hf://org/renamed",
        what="the nearest name",
    )
    empty = one.work / "bare"
    empty.mkdir()
    (empty / "pytorch_model.bin").write_bytes(b"x" * 100)
    one.servers.add("org/bare", empty)
    one.fails(
        "hf://org/bare: has weights only in PyTorch's own form [(]pytorch_model.bin[)]",
        "hf://org/bare",
        what="weights in PyTorch's form",
    )
    one.fails(
        "/files/bare: no weights found: expected .*such a folder cannot be listed",
        one.servers.serve("bare", empty),
        what="a plain folder without weights",
    )


def check_buckets(one, made):
    """A bucket answers 403 for missing files: optional files count as absent if another file can be read."""
    servers, folder = one.servers, GOLDEN / "families" / "olmoe"
    plain, local = servers.serve("bucket", folder), one.json(folder)
    absent = (
        "model.safetensors.index.json: 127.0.0.2:[0-9]+ refuses it [(]403[)]; it counts as absent, since other files"
    )

    def hide(*refused, code=403):
        servers.clear()
        for path in refused:
            servers.misbehave(wrongly.status(403), "store", path)
        servers.misbehave(wrongly.hides_absence(code), "store")

    hide()
    check(one.json(plain) == local, "a bucket that hides what is absent: other figures")
    _, err, code = one.run(plain)
    check(code == 0 and re.search(absent, err), f"a bucket that hides what is absent: exit {code}: {err!r}")
    bare = one.work / "unconfigured"
    bare.mkdir()
    shutil.copy(folder / "model.safetensors", bare)
    out, err, code = one.run(servers.serve("unconfigured", bare), "--layers", 0)
    check(
        re.search(absent, err)
        and re.search("config.json: 127.0.0.2:[0-9]+ refuses it [(]403[)]; it counts as absent", err),
        f"weights alone in such a bucket: exit {code}: {err!r}",
    )
    servers.clear()
    check(
        one.run(bare, "--layers", 0)[::2] == (out.replace(servers.serve("unconfigured", bare), str(bare)), code),
        "weights alone in such a bucket: another answer than that of the folder",
    )
    hide("config", "model")
    one.fails("model.safetensors: 127.0.0.2:[0-9]+ refuses it [(]403[)]$", plain, what="a bucket that refuses all")
    hide("model")
    one.fails("no weights found: expected", plain, what="a bucket that refuses all weights")
    hide(code=401)
    check(
        one.json(plain) == local, "a bucket that asks for a login for an index beside model.safetensors: other figures"
    )
    one.fails(
        "model.safetensors: 127.0.0.2:[0-9]+ refuses it [(]401[)]: it asks for a login",
        servers.serve("plain", made.folder),
        what="a bucket that asks for a login",
    )
    hide(SECOND)
    one.fails(
        f"{SECOND}: 127.0.0.2:[0-9]+ refuses it [(]403[)] ",
        servers.serve("plain", made.folder),
        what="a required file, refused",
    )
    servers.clear()


# ---- files ----


def check_changes(one, made):
    """A file changes while it is read."""
    servers, file = one.servers, made.folder / SECOND
    before, shorter = (
        file.read_bytes(),
        r"{}: 127.0.0.2:\d+ has no bytes \d+ to \d+ of it [(]416[)]: the file became shorter",
    )
    for what, content, pattern in (
        ("of the same length", (one.work / "second" / SECOND).read_bytes(), "{}: " + CHANGED.format("ETag")),
        ("shorter", before[:-2], "{}: " + CHANGED.format("length")),
        ("longer", before + b"\0\0", "{}: " + CHANGED.format("length")),
        ("gone to nothing", b"", shorter),
    ):
        faulty(
            one,
            f"a file that becomes another, {what}",
            pattern.format(SECOND),
            wrongly.changes(file, content),
            times=1,
            skip=4,
        )
        file.write_bytes(before)
    faulty(one, "another ETag each time", CHANGED.format("ETag"), wrongly.other_tag, skip=4)
    plain = servers.serve("plain", made.folder)
    faulty(one, "another ETag of a plain folder", CHANGED.format("ETag"), wrongly.other_tag, place=plain, skip=4)
    check(one.json("hf://org/model") == one.json(made.folder), "the file is as it was")


def check_tags(one, made):
    """A long ETag is compared whole. A server without strong ETags is named, with the changes that these would show."""
    servers, plain, file = one.servers, one.servers.serve("tags", made.folder), made.folder / SECOND
    numbers = iter(range(99))
    by_turns = lambda seen, make: wrongly.says(ETag=f'"{"x" * 300}{next(numbers) > 5}"')(seen, make)  # noqa: E731
    faulty(one, "long ETags whose ends differ", CHANGED.format("ETag"), by_turns, place=plain)
    before, cache = file.read_bytes(), one.work / "tags"

    def of_content(seen, make):
        return wrongly.says(ETag=f'"{"x" * 300}{digest(made.folder / (seen.file or INDEX), "sha1")}"')(seen, make)

    servers.misbehave(of_content, "store")
    for content in (before, (one.work / "second" / SECOND).read_bytes()):
        file.write_bytes(content)
        check(one.json(plain, "--cache", cache) == one.json(made.folder), "long ETags: figures of another version")
    file.write_bytes(before)
    for what, fault, said in (
        ("no ETag", wrongly.without("ETag"), "no ETag: a file that changes while it is read would not be noticed"),
        ("a weak ETag", wrongly.says(ETag='W/"1"'), r"only a weak ETag [(]W/...[)], which counts as none: a file that"),
        ("a date", wrongly.dated, "no ETag: a file that changes twice within a second of its Last-Modified would not"),
    ):
        servers.clear()
        servers.misbehave(fault, "store")
        _, err, code = one.run(plain)
        check(code == 0 and len(re.findall(r"127.0.0.2:\d+ gives " + said, err)) == 1, f"{what}: exit {code}: {err!r}")
    servers.clear()


def variant(one, made, name, file, change):
    """Makes a copy of the checkpoint with one file changed, as hf:// and as https://."""
    folder = one.work / name
    shutil.copytree(made.folder, folder)
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    one.servers.add(f"org/{name}", folder)
    return f"hf://org/{name}", one.servers.serve(name, folder)


def check_indexes(one, made):
    """Names that lead out of the folder are never requested."""
    servers = one.servers
    outside = '{}: tensor model.layers.0.mlp.gate.weight: "{}" is not the name of a file in the folder of the index$'
    absent, reasons = (
        "/{1}: {2} [(]404[)]",
        (r"127.0.0.2:\d+ has no such file", "the repository has no such file at this revision"),
    )
    names = {
        name: outside
        for name in (
            "../x.safetensors",
            "../../org/gated/resolve/main/" + SECOND,
            f"{servers.store.url}/other.safetensors",
            *"https://other/x /etc/passwd file:///etc/passwd a/../../b.safetensors".split(),
            "",
            ".",
            "..",
            "C:\\x",
        )
    }
    names |= {
        name: absent
        for name in ("x\x1b[31my.safetensors", "a\nHost: b.safetensors", "%2e%2e%2fx", "x?y=z#w", "\u202ex.safetensors")
    }
    names |= {"a\0b.safetensors": "{}: line 1, column \\d+: not valid JSON: ", "x" * 70000: "/x{{100}}"}
    for i, (name, pattern) in enumerate(names.items()):

        def change(raw, name=name):
            index = json.loads(raw)
            index["weight_map"] = {
                tensor: name if file == SECOND else file for tensor, file in index["weight_map"].items()
            }
            return json.dumps(index).encode()

        for path in variant(one, made, f"index-{i}", INDEX, change):
            servers.clear()
            shown = name.replace("\x1b", "\\x1b").replace("\n", "\\x0a").replace("\u202e", "\\u{202e}")
            sentence = pattern.format(re.escape(INDEX), re.escape(shown), reasons[path.startswith("hf:")])
            text = one.fails(sentence, path, what=f"{path}: an index that names {name[:60]!r}")
            out = [seen.target for seen in servers.seen if re.search(r"other|passwd|/gated/|\.\.", seen.target)]
            check(not out, f"an index that names {name[:60]!r}: asked for {out}")
            check(len(text) < 8000, f"an index that names {name[:60]!r}: {len(text)} characters")


def check_headers(one, made):
    """Checks impossible sizes of headers, and other contents in a file's place."""

    def header(size, text=b"{"):
        return lambda raw: struct.pack("<Q", size) + text + raw[8 + len(text) :]

    long = b'{"' + b"a" * 200 + b'":'
    large = "is neither a safetensors nor a GGUF file: its first 8 bytes stand for a header of {} bytes, and a safetensors file has at most 100000000"
    small = "header too small: the file has {} bytes, a safetensors file at least 8"
    for name, change, pattern in (
        ("length-0", header(0), "invalid JSON in the header, byte 0: an object is expected here"),
        ("length-all", header((1 << 64) - 1), large.format((1 << 64) - 1)),
        ("length-tb", header(1 << 40), large.format(1 << 40)),
        ("length-100mb", header(100000001), large.format(100000001)),
        (
            "beyond",
            header(99999999),
            "invalid header length: 99999999 bytes are announced, [0-9]+ follow; it was cut short",
        ),
        (
            "no-json",
            header(1000, long),
            "invalid JSON in the header, byte 205, tensor a{200}: an object is expected here",
        ),
        ("lfs", lambda raw: wrongly.POINTER, "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
        (
            "page",
            lambda raw: b"<!DOCTYPE html><html>\x1b[31m</html>" * 100,
            large.format("[0-9]+") + "; it looks like a web page",
        ),
        ("tiny", lambda raw: b"1234", small.format(4)),
        ("empty", lambda raw: b"", small.format(0)),
    ):
        for path in variant(one, made, name, SECOND, change):
            one.servers.clear()
            one.fails(f"/{SECOND}: {pattern}", path, what=f"{path}: header {name}")
            asked = max(
                (length([seen.range]) for seen in one.servers.bodies(r"\.safetensors$") if seen.range), default=0
            )
            check(asked < 110e6, f"{path}: a range of {asked} bytes")


def check_json(one, made):
    pointer = "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    broken = "line 1, column [0-9]+: not valid JSON: "
    for file, change, pattern in (
        ("config.json", lambda raw: wrongly.POINTER, pointer),
        ("config.json", lambda raw: b"[" * 100000, broken + "maximum parsing depth reached"),
        (
            "config.json",
            lambda raw: b"[" + b"[]," * (1 << 20) + b"0]",
            "has 2097153 commas and brackets, more than 2097152; it is not parsed",
        ),
        (INDEX, lambda raw: wrongly.POINTER, pointer),
        (INDEX, lambda raw: b" \n<!DOCTYPE html>", "looks like a web page, not JSON"),
        (INDEX, lambda raw: raw[:-20], broken + "premature end of input"),
    ):
        path = variant(one, made, f"file-{len(one.servers.repositories)}", file, change)[0]
        one.fails(f"/{file}: {pattern}", path, what=f"{file} that is none")
    for what, path, most in (
        ("config.json", "resolve-cache.*config.json", MOST_JSON),
        ("the index", f"resolve-cache.*{INDEX}", MOST_JSON),
        ("the list of files", "^/api/models/", MOST_LIST),
    ):
        faulty(
            one,
            f"{what} without end",
            rf"127.0.0.1:\d+ sends more than the {most} bytes that such a file may have, and was stopped",
            wrongly.never_ends,
            most=most + MOST_SENT,
            host="hub",
            path=path,
        )


def check_gguf(one):
    made = gguf(one.work / "gguf", layers=1, D=64)
    raw = (made.folder / "model.gguf").read_bytes()
    most = struct.pack("<Q", 1 << 60)
    count = "invalid count: at byte [0-9]+ the {} announces? {} entries of at least [0-9]+ bytes, the file continues for [0-9]+"
    for name, content, pattern in (
        ("tensors", raw[:8] + most + raw[16:], count.format("table of tensors", 1 << 60)),
        ("pairs", raw[:16] + most + raw[24:], count.format("metadata", 1 << 60)),
        (
            "string",
            raw[:24] + most + raw[32:],
            f"invalid length: at byte 32 the metadata continues for {1 << 60} bytes, the file for [0-9]+",
        ),
        ("version", raw[:4] + b"\xff\0\0\0" + raw[8:], "is a GGUF file of version 255; 2 and 3 are read"),
        ("short", raw[:300], count.format("table of tensors", "[0-9]")),
        ("pointer", wrongly.POINTER, "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"),
    ):
        folder = one.work / f"gguf-{name}"
        folder.mkdir()
        (folder / "model.gguf").write_bytes(content)
        for path in (
            one.servers.add(f"org/gguf-{name}", folder),
            one.servers.serve(f"gguf-{name}", folder) + "/model.gguf",
        ):
            one.servers.clear()
            one.fails(f"/model.gguf: {pattern}", path, what=f"{path}: GGUF")
            check(sum(seen.sent for seen in one.servers.seen) < MOST_SENT, f"{path}: read on")


def check_listings(one, made):
    """Checks lists of files that are no lists, or name forbidden files."""
    bare = one.work / "listed"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    one.servers.add("org/listed", bare)
    names = ["\x1b[31mred.gguf", "../x.gguf", "a\nb.gguf", "/etc/x.gguf"]
    body = {"siblings": [{"rfilename": name} for name in names], "sha": "0" * 40}
    nothing, place = "hf://org/listed: no weights found: expected", "/api/models/org/listed/revision/main: "
    broken = place + "line 1, column [0-9]+: not valid JSON: "
    for what, content, pattern in (
        ("names", json.dumps(body).encode(), nothing),
        ("no JSON", b"<html>", "looks like a web page, not JSON"),
        ("another kind", b'{"siblings": 5}', place + "`siblings` is a whole number, it must be an array"),
        ("null", b"null", broken),
        ("deep", b"[" * 100000, broken + "maximum parsing depth"),
        ("sha", b'{"sha": "../../x", "siblings": []}', nothing),
    ):
        one.servers.misbehave(
            wrongly.status(200, content, Content_Type="application/json"), host="hub", path="^/api/models/"
        )
        one.fails(pattern, "hf://org/listed", what=f"a list without weights: {what}")
        out = [seen.target for seen in one.servers.seen if ".." in seen.target or "etc" in seen.target]
        check(not out, f"a list: {what}: asked for {out}")
        one.servers.clear()
    complete = json.dumps({"siblings": [{"rfilename": path.name} for path in made.folder.iterdir()]}).encode()
    one.servers.misbehave(wrongly.status(200, complete), host="hub", path="^/api/models/")
    _, err, code = one.run("hf://org/model")
    said = (
        "hf://org/model: the hub names no commit of the revision main: files that are pushed meanwhile would be mixed"
    )
    check(code == 0 and said in err, f"a list without a commit: exit {code}: {err!r}")
    one.servers.clear()


def check_words(one):
    """An invalid address is reported before any request."""
    one.servers.clear()
    for why, words in {
        "names of places elsewhere begin with hf:// or https://": (
            "s3://bucket/model",
            "HTTPS://host/model",
            "Hf://org/model",
        ),
        "no file or folder has this name; a model of the hub is hf://org/Model-1.5/?$": (
            *("org/Model-1.5 org/Model-1.5/ huggingface.co/org/Model-1.5 hf.co/org/Model-1.5").split(),
        ),
        "cannot be opened: No such file or directory": ("model", "./org/model", "org/model/x", "/org/model", "org/"),
        "names no repository; write hf://OWNER/NAME": ("hf://", "hf://a", "hf://a/"),
        "only repositories of models are read": ("hf://datasets/org/name",),
        "this is no name of a repository": (
            "hf:///b",
            "hf://../b",
            "hf://a/..",
            "hf://a b/c",
            "hf://a/b\x1b[31m",
            "hf://a/b?x=y",
            "hf://" + "a" * 5000 + "/b",
        ),
        "no revision": ("hf://a/b@", "hf://a/b@../x"),
        "no folder of a repository": ("hf://a/b/../c",),
        "is no URL that can be read": ("https://", "https://user:word@127.0.0.1/x"),
        "names no host": ("https:///x",),
        "a URL with a query [(][?]...[)] or a fragment [(]#...[)] names no folder or file here": (
            "https://127.0.0.1:9/x?y=z",
        ),
        "http:// is not encrypted and is accepted for this machine only: use https://": ("http://example.org/model",),
        "cannot reach 127.0.0.1:9: .* [(]5 tries[)]": ("http://127.0.0.1:9/x",),
    }.items():
        for word in words:
            text = one.fails(f": {why}" if len(word) < 1000 else "hf://a{100}", word, what=repr(word[:60]))
            check("user:" not in text and "y=z" not in text.replace("hf://a/b?x=y", ""), f"{word!r}: {text!r}")
    one.fails(
        "HF_ENDPOINT: http://example.org: .*for this machine only",
        "hf://org/model",
        env={"HF_ENDPOINT": "http://example.org"},
    )
    check(not one.servers.seen, f"asked for: {[seen.target[:200] for seen in one.servers.seen]}")
    for words in (("train", "hf://a/b"), ("generate", "hf://a/b", "--prompt", "x")):
        bad(
            1,
            f"hf://a/b: couplet {words[0]} reads whole files, and local ones only: fetch it first",
            *words,
            env=one.environment(),
        )
    one.fails(
        "hf://org/model: --text reads the whole model, and a local one only: fetch it first",
        "hf://org/model",
        "--text",
        "x",
    )


def check_proxies(one):
    """An unusable proxy is reported without its password, at once. A proxy that does not answer is reported after all
    tries."""
    unusable = "the request to [^ ]+ failed: the address of the proxy cannot be used "
    for proxy, pattern in (
        ("http://bob:hu/hush@127.0.0.1:1", unusable),
        ("bob:hu/hush@127.0.0.1:1", unusable),
        ("ftp://bob:hush@127.0.0.1:1", unusable),
        ("http://bob:" + "hush" * 200 + "/@127.0.0.1:1", unusable),
        ("http://bob:hush@127.0.0.1:9", "cannot reach .*127.0.0.1 port 9.* [(]5 tries[)]"),
    ):
        text = one.fails(pattern, "hf://org/model", env={"https_proxy": proxy}, what=proxy[:40])
        check("bob" not in text and "hush" not in text, f"{proxy[:40]}: its password in {text!r}")


def body(one):
    made = sharded(one.work / "model")
    sharded(one.work / "second", seed=2)
    one.servers.add("org/model", made.folder)
    one.servers.add("org/gated", made.folder, gated=True)
    plain = one.servers.serve("plain", made.folder)
    remote_case.groups(
        {
            "beginnings": lambda: check_faults(one, "beginnings"),
            "folders": lambda: check_faults(one, "beginnings", plain),
            "ranges": lambda: check_faults(one, "ranges"),
            "connections": lambda: check_faults(one, "connections"),
            "unreachable": lambda: check_unreachable(one),
            "certificates": lambda: check_certificates(one),
            "gated": lambda: check_gated(one),
            "statuses": lambda: check_faults(one, "statuses"),
            "nearest": lambda: check_nearest(one, made),
            "buckets": lambda: check_buckets(one, made),
            "redirects": lambda: check_faults(one, "redirects"),
            "changes": lambda: check_changes(one, made),
            "tags": lambda: check_tags(one, made),
            "indexes": lambda: check_indexes(one, made),
            "headers": lambda: check_headers(one, made),
            "json": lambda: check_json(one, made),
            "gguf": lambda: check_gguf(one),
            "listings": lambda: check_listings(one, made),
            "proxies": lambda: check_proxies(one),
            "words": lambda: check_words(one),
        }
    )


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
