#!/usr/bin/env python3
"""check_remote_faults.py COUPLET: what servers, hubs and checkpoints do wrong, from afar: one sentence and exit code 1, at
once, with nothing of a server's text that moves a terminal. What must pass all the same is in check_remote.py."""
import json
import re
import shutil
import struct
import sys
import time

import misbehaviour as wrongly
import remote_case
from checkpoints import gguf, length, sharded
from front import OUTSIDER
from inputs import GOLDEN
from program import check, run

FIRST, SECOND, INDEX = "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model.safetensors.index.json"
MOST_SENT = 32 << 20  # bytes that a server may have sent (most lie in the buffers of sockets) before it is stopped
MOST_JSON, MOST_LIST = 32 << 20, 8 << 20  # bytes of a JSON file and of a list of files that are taken (docs/security.md)
MOST_SECONDS = 100


def faulty(one, what, pattern, fault, place="hf://org/model", most=MOST_SENT, **how):
    """A fault of a server, and its sentence."""
    front = one.front
    front.clear()
    front.misbehave(fault, **({"host": "store", "path": r"\.safetensors$"} | how))
    began = time.monotonic()
    text = one.fails(pattern, place, what=what, seconds=2 * MOST_SECONDS)
    sent, took = max((seen.sent for seen in front.seen), default=0), time.monotonic() - began
    check(sent <= most, f"{what}: {sent} bytes were sent before it was stopped")
    check(took < MOST_SECONDS, f"{what}: told after {took:.0f} s")
    check(len(front.seen) < 200, f"{what}: {len(front.seen)} requests")
    front.clear()
    return text


# ---- ranges ----

def check_ranges(one, plain):
    for place, name in (("hf://org/model", "hub"), (plain, "folder")):
        for what, pattern, fault in (
                ("the whole file", "range", wrongly.ignores_ranges),
                ("the whole file, endless", "range", wrongly.ignores_ranges_endlessly),
                ("a file without end", "range", wrongly.never_ends),
                ("416", "416|range", wrongly.not_satisfiable)):
            faulty(one, f"{name}: {what}", pattern, fault, place=place)
    for what, fault in (("another range", wrongly.other_range), ("another size", wrongly.other_size),
                        ("no Content-Range", wrongly.unsaid_range), ("a shorter range", wrongly.shorter(9)),
                        ("more than the range", wrongly.goes_on),
                        *((f"Content-Range {text!r}", wrongly.senseless_range(text))
                          for text in ("bytes 0-99999999999999999999/12", "bytes */*", "lines 1-2/3", "bytes -5--1/9", ""))):
        faulty(one, what, "range|changed|bytes|length|size", fault, skip=3)
    faulty(one, "always short", "connection|lost|cut|short", wrongly.falls_short(9), skip=3)
    faulty(one, "gzip", "encod|gzip|compress", wrongly.gzipped, skip=1)


# ---- connections ----

def check_connections(one):
    broken = "connection|cut|closed|reset|answer|HTTP|transfer|hung|received|bytes"
    for what, fault in (("always cut", wrongly.cut(1000)), ("always hung up", wrongly.hangs_up), ("no HTTP", wrongly.garbage)):
        faulty(one, what, broken, fault, skip=2)
    faulty(one, "headers without end", "header", wrongly.endless_headers, skip=1)
    faulty(one, "a header of 8 MB", "header|failed", wrongly.long_header(), skip=1)
    faulty(one, "headers of the hub without end", "header", wrongly.endless_headers, host="hub", path="config.json")
    one.fails("127.0.0.1|connect", "hf://org/model", env={"HF_ENDPOINT": "https://127.0.0.1:9"}, what="nobody listens")


def check_certificates(one):
    for host in ("hub", "store"):
        for which in ("wrong_name", "stranger"):
            one.front.use_certificate(host, which)
            one.fails("certificate", "hf://org/model", what=f"{host}: certificate {which}")
        one.front.use_certificate(host, "good")
    one.fails("certificate", "hf://org/model", env={"SSL_CERT_FILE": str(one.front.certificates.pair("other")[0]),
                                                    "CURL_CA_BUNDLE": str(one.front.certificates.pair("other")[0])},
              what="an authority that nobody trusts")


# ---- statuses ----

def check_statuses(one):
    front = one.front
    one.fails("gated|restricted", "hf://org/gated", what="gated, no token")
    text = one.fails("HF_TOKEN", "hf://org/gated", what="gated: what to do")
    check("org/gated" in text, f"gated: {text}")
    one.fails("access", "hf://org/gated", env={"HF_TOKEN": OUTSIDER}, what="gated, a token without access")
    one.fails("org/none", "hf://org/none", what="no such repository")
    one.fails("org/none", "hf://org/none", env={"HF_TOKEN": OUTSIDER}, what="no such repository, with a token")
    one.fails("revision.*v3|v3.*revision", "hf://org/model@v3", what="no such revision")
    faulty(one, "429 always", "429|too many|Retry-After", wrongly.retry_after(429, 1))
    faulty(one, "429 for days", "429|too many|Retry-After|wait", wrongly.retry_after(429, 500000))
    faulty(one, "500 always", "500", wrongly.retry_after(500, 0))
    faulty(one, "403 of the store", "403", wrongly.status(403, b"<Error/>"))
    check(len(front.seen) == 0, "the record was not cleared")
    faulty(one, "418", "418", wrongly.status(418))
    faulty(one, "204", "answered 204", wrongly.status(204))
    for code in (401, 403, 404):
        for host in ("hub", "store"):
            text = faulty(one, f"{code} of the {host} with a long text", str(code), wrongly.screams(code), host=host,
                          path="resolve|repos")
            check("\x1b" not in text, f"{code}: {text[-300:]!r}")


def check_nearest(one, made):
    """404: the nearest name that there is."""
    other = one.work / "renamed"
    shutil.copytree(made.folder, other)
    (other / SECOND).rename(other / SECOND.replace("model-", "model"))
    (other / FIRST).unlink()
    (other / FIRST.replace("00001-", "00003-")).unlink()
    one.front.add("org/renamed", other)
    one.fails(f"model-0000.*{SECOND.replace('model-', 'model')}", "hf://org/renamed", what="the nearest name")
    empty = one.work / "bare"
    empty.mkdir()
    (empty / "pytorch_model.bin").write_bytes(b"x" * 100)
    one.front.add("org/bare", empty)
    one.fails("pytorch_model.bin|safetensors", "hf://org/bare", what="weights in PyTorch's form")
    one.fails("safetensors", one.front.serve("bare", empty), what="a plain folder without weights")


def check_buckets(one, made):
    """A bucket that answers 403 for what it does not have: optional files count as absent if another one can be read."""
    front, folder = one.front, GOLDEN / "families" / "olmoe"
    plain, local = front.serve("bucket", folder), one.json(folder)
    absent = "model.safetensors.index.json: localhost:[0-9]+ refuses it [(]403[)]; it counts as absent, since other files"

    def hide(*refused, code=403):
        front.clear()
        for path in refused:
            front.misbehave(wrongly.status(403), "store", path)
        front.misbehave(wrongly.hides_absence(code), "store")

    hide()
    check(one.json(plain) == local, "a bucket that hides what is absent: other figures")
    _, err, code = one.run(plain)
    check(code == 0 and re.search(absent, err), f"a bucket that hides what is absent: exit {code}: {err!r}")
    bare = one.work / "unconfigured"
    bare.mkdir()
    shutil.copy(folder / "model.safetensors", bare)
    out, err, code = one.run(front.serve("unconfigured", bare), "--layers", 0)
    check(re.search(absent, err) and re.search("config.json: localhost:[0-9]+ refuses it [(]403[)]; it counts as absent", err),
          f"weights alone in such a bucket: exit {code}: {err!r}")
    front.clear()
    check(one.run(bare, "--layers", 0)[::2] == (out.replace(front.serve("unconfigured", bare), str(bare)), code),
          "weights alone in such a bucket: another answer than that of the folder")
    hide("config", "model")
    one.fails("model.safetensors.index.json: localhost:[0-9]+ refuses it [(]403[)]$", plain, what="a bucket that refuses all")
    hide("model")
    one.fails("has no weights [(]looked for", plain, what="a bucket that refuses all weights")
    hide(code=401)
    one.fails("model.safetensors.index.json: localhost:[0-9]+ refuses it [(]401[)]: it asks for a login", plain,
              what="a bucket that asks for a login")
    hide(SECOND)
    one.fails(f"{SECOND}: localhost:[0-9]+ refuses it [(]403[)] ", front.serve("plain", made.folder), what="a required file, refused")
    front.clear()


# ---- redirects ----

def check_redirects(one):
    loop = "redirect"
    for host, path in (("hub", "resolve/"), ("hub", "resolve-cache"), ("store", "safetensors")):
        faulty(one, f"a loop of the {host}", loop, wrongly.loops, host=host, path=path)
        faulty(one, f"a long way through the {host}", loop, wrongly.wanders, host=host, path=path)
    for place in ("http://127.0.0.1:9/x", "file:///etc/passwd", "gopher://127.0.0.1:9/", "ftp://127.0.0.1/x", "//", "https://",
                  "javascript:alert(1)", "https://user:word@127.0.0.1:9/x", "http://127.0.0.1:9/x?Signature=secret"):
        text = faulty(one, f"a redirect to {place}", "redirect|https|address|connect|127.0.0.1|URL", wrongly.redirects(place),
                      host="hub", path=r"resolve/.*\.safetensors$")
        check("root:" not in text, f"a redirect to {place}: {text}")


# ---- files ----

def check_changes(one, made):
    """A file that becomes another while it is read."""
    front, file = one.front, made.folder / SECOND
    before = file.read_bytes()
    for what, content in (("of the same length", (one.work / "second" / SECOND).read_bytes()), ("shorter", before[:-2]),
                          ("longer", before + b"\0\0"), ("gone to nothing", b"")):
        faulty(one, f"a file that becomes another, {what}", "changed|short|length|bytes", wrongly.changes(file, content),
               times=1, skip=4)
        file.write_bytes(before)
    faulty(one, "another ETag each time", "changed", wrongly.other_tag, skip=4)
    plain = front.serve("plain", made.folder)
    faulty(one, "another ETag of a plain folder", "changed", wrongly.other_tag, place=plain, skip=4)
    check(one.json("hf://org/model") == one.json(made.folder), "the file is as it was")


def variant(one, made, name, file, change):
    """A copy of the checkpoint with one file changed, as hf:// and as https://."""
    folder = one.work / name
    shutil.copytree(made.folder, folder)
    (folder / file).write_bytes(change((folder / file).read_bytes()))
    one.front.add(f"org/{name}", folder)
    return f"hf://org/{name}", one.front.serve(name, folder)


def check_indexes(one, made):
    """Names that lead out of the folder are never asked for."""
    front = one.front
    names = ("../x.safetensors", "../../org/gated/resolve/main/" + SECOND, f"{front.store.url}/other.safetensors",
             "https://other/x", "/etc/passwd", "file:///etc/passwd", "a/../../b.safetensors", "", ".", "..",
             "x\x1b[31my.safetensors", "a\nHost: b.safetensors", "a\0b.safetensors", "%2e%2e%2fx", "x?y=z#w",
             "\u202ex.safetensors", "C:\\x", "x" * 70000)
    for i, name in enumerate(names):
        def change(raw, name=name):
            index = json.loads(raw)
            index["weight_map"] = {tensor: name if file == SECOND else file for tensor, file in index["weight_map"].items()}
            return json.dumps(index).encode()
        for path in variant(one, made, f"index-{i}", INDEX, change):
            front.clear()
            text = one.fails(r"index|\.safetensors|name|404", path, what=f"{path}: an index that names {name[:60]!r}")
            out = [seen.target for seen in front.seen if re.search(r"other|passwd|/gated/|\.\.", seen.target)]
            check(not out, f"an index that names {name[:60]!r}: asked for {out}")
            check(len(text) < 8000, f"an index that names {name[:60]!r}: {len(text)} characters")


def check_headers(one, made):
    """Sizes of headers that nobody has, and what stands in a file's place."""
    def header(size, text=b"{"):
        return lambda raw: struct.pack("<Q", size) + text + raw[8 + len(text):]
    long = b'{"' + b"a" * 200 + b'":'
    for name, change, pattern in (
            ("length-0", header(0), "header"), ("length-all", header((1 << 64) - 1), "header"),
            ("length-tb", header(1 << 40), "header"), ("length-100mb", header(100000001), "header"),
            ("beyond", header(99999999), "header|short|bytes"),
            ("no-json", header(1000, long), "JSON|header"), ("lfs", lambda raw: wrongly.POINTER, "LFS"),
            ("page", lambda raw: b"<!DOCTYPE html><html>\x1b[31m</html>" * 100, "page|HTML|header|safetensors"),
            ("tiny", lambda raw: b"1234", "short|bytes|header"), ("empty", lambda raw: b"", "empty|short|bytes|header")):
        for path in variant(one, made, name, SECOND, change):
            one.front.clear()
            one.fails(pattern, path, what=f"{path}: header {name}")
            asked = max((length([seen.range]) for seen in one.front.bodies(r"\.safetensors$") if seen.range), default=0)
            check(asked < 110e6, f"{path}: a range of {asked} bytes")
    for file, change, pattern in (("config.json", lambda raw: wrongly.POINTER, "config.json"),
                                  ("config.json", lambda raw: b"[" * 100000, "config.json"),
                                  (INDEX, lambda raw: wrongly.POINTER, "index|JSON"), (INDEX, lambda raw: raw[:-20], "index|JSON")):
        path = variant(one, made, f"file-{len(one.front.repositories)}", file, change)[0]
        one.fails(pattern, path, what=f"{file} that is none")
    for what, path, most in (("config.json", "resolve-cache.*config.json", MOST_JSON), ("the index", f"resolve-cache.*{INDEX}", MOST_JSON),
                             ("the list of files", "^/api/models/", MOST_LIST)):
        faulty(one, f"{what} without end", f"127.0.0.1:[0-9]+ sends more than the {most} bytes that such a file may have, and was stopped",
               wrongly.never_ends, most=most + MOST_SENT, host="hub", path=path)


def check_gguf(one):
    made = gguf(one.work / "gguf", layers=1, D=64)
    raw = (made.folder / "model.gguf").read_bytes()
    most = struct.pack("<Q", 1 << 60)
    for name, content in (("tensors", raw[:8] + most + raw[16:]), ("pairs", raw[:16] + most + raw[24:]),
                          ("string", raw[:24] + most + raw[32:]), ("version", raw[:4] + b"\xff\0\0\0" + raw[8:]),
                          ("short", raw[:300]), ("pointer", wrongly.POINTER)):
        folder = one.work / f"gguf-{name}"
        folder.mkdir()
        (folder / "model.gguf").write_bytes(content)
        for path in (one.front.add(f"org/gguf-{name}", folder), one.front.serve(f"gguf-{name}", folder) + "/model.gguf"):
            one.front.clear()
            one.fails("gguf|LFS", path, what=f"{path}: GGUF")
            check(sum(seen.sent for seen in one.front.seen) < MOST_SENT, f"{path}: read on")


def check_listings(one, made):
    """Lists of files that are no lists, or name what nobody may ask for."""
    bare = one.work / "listed"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    one.front.add("org/listed", bare)
    names = ["\x1b[31mred.gguf", "../x.gguf", "a\nb.gguf", "/etc/x.gguf"]
    rows = [{"type": "file", "path": name, "size": 10, "oid": "0"} for name in names]
    body = {"siblings": [{"rfilename": name} for name in names], "sha": "0" * 40}
    for what, content in (("names", None), ("no JSON", b"<html>"), ("another kind", b'{"siblings": 5}'), ("null", b"null"),
                          ("deep", b"[" * 100000), ("sha", b'{"sha": "../../x", "siblings": []}')):
        def fault(seen, make, content=content):
            text = content or json.dumps(rows if "/tree/" in seen.path else body).encode()
            return wrongly.status(200, text, Content_Type="application/json")(seen, make)
        one.front.misbehave(fault, host="hub", path="^/api/models/")
        one.fails(".", "hf://org/listed", what=f"a list without weights: {what}")
        out = [seen.target for seen in one.front.seen if ".." in seen.target or "etc" in seen.target]
        check(not out, f"a list: {what}: asked for {out}")
        one.front.clear()


def check_words(one):
    """What is no address is told as such, before anything is asked."""
    one.front.clear()
    for word in ("hf://", "hf://a", "hf://a/", "hf:///b", "hf://a/b@", "hf://../b", "hf://a/..", "hf://a b/c",
                 "hf://a/b@../x", "https://", "https:///x", "http://127.0.0.1:9/x", "https://user:word@127.0.0.1/x",
                 "hf://a/b\x1b[31m", "hf://a/b?x=y", "hf://" + "a" * 5000 + "/b"):
        out, err, code = one.run(word)
        last = err.strip().splitlines()[-1] if err.strip() else ""
        check(code in (1, 2) and last.startswith("couplet: "),
              f"{word[:60]!r}: exit {code}: {err[-500:]!r}")
    check(not one.front.seen, f"asked for: {[seen.target[:200] for seen in one.front.seen]}")
    for words in (("train", "hf://a/b"), ("generate", "hf://a/b", "--prompt", "x"), ("inspect", "hf://org/model", "--text", "x")):
        out, err, code = run(*words, env=one.environment())
        check(code in (1, 2), f"{words}: exit {code}: {err[-500:]!r}")


def body(one):
    made = sharded(one.work / "model")
    sharded(one.work / "second", seed=2)
    one.front.add("org/model", made.folder)
    one.front.add("org/gated", made.folder, gated=True)
    plain = one.front.serve("plain", made.folder)
    remote_case.groups({
        "ranges": lambda: check_ranges(one, plain), "connections": lambda: check_connections(one),
        "certificates": lambda: check_certificates(one), "statuses": lambda: check_statuses(one),
        "nearest": lambda: check_nearest(one, made), "buckets": lambda: check_buckets(one, made), "redirects": lambda: check_redirects(one),
        "changes": lambda: check_changes(one, made), "indexes": lambda: check_indexes(one, made),
        "headers": lambda: check_headers(one, made), "gguf": lambda: check_gguf(one),
        "listings": lambda: check_listings(one, made), "words": lambda: check_words(one)})


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
