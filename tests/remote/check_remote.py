#!/usr/bin/env python3
"""check_remote.py COUPLET: inspections of remote checkpoints: the figures are those of the local file, from the bytes
of headers, routers and gates alone; tokens, caches, the limit of requests. check_remote_faults.py has the faults of
servers."""

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import faulty_server as wrongly
import nginx
import remote_case
from checkpoints import gguf, length, many_gates, sharded
from exchange import redirect
from fake_hub import ACCESS, OUTSIDER, digest
from program import COUPLET, check
from slow_link import SlowLink

SECOND = "model-00002-of-00003.safetensors"


# ---- equal figures ----


def check_equal(one, folder):
    """Inspects from the hub by branch, tag, commit, old name and page, from a plain folder, and one file."""
    servers, local = one.servers, one.json(folder)
    commit = servers.repositories["org/model"].commit("main")
    plain = servers.serve("plain", folder)
    for path in (
        "hf://org/model",
        "hf://org/model@main",
        f"hf://org/model@{commit}",
        "hf://org/old",
        plain,
        plain + "/",
        "https://huggingface.co/org/model",
        f"https://hf.co/org/model/tree/{commit}?x=y",
    ):
        check(one.json(path) == local, f"{path}: other figures than {folder}")
    check(
        one.json("hf://org/model", "--layers", 1, "--alpha", 2) == one.json(folder, "--layers", 1, "--alpha", 2),
        "--layers",
    )
    check(one.json("hf://org/model@v2") == one.json(one.work / "second") != local, "@v2: not that revision's figures")
    file = f"{plain}/{SECOND}"
    check(one.json(file) == one.json(folder / SECOND), "one file of a plain folder")
    servers.add("org/deep", one.work / "deep")
    (one.work / "deep").mkdir()
    shutil.copytree(folder, one.work / "deep" / "sub")
    check(one.json("hf://org/deep/sub") == one.json("hf://org/deep@main/sub") == local, "a folder of a repository")
    file = f"https://huggingface.co/org/model/blob/main/{SECOND}"
    check(one.json(file) == one.json(folder / SECOND), "one file of a repository")
    check(one.json("hf://org/model", folder) == one.json(folder, folder), "one from afar and one from here")


def check_gguf(one, made):
    servers, local = one.servers, one.json(made.folder)
    servers.add("org/gguf", made.folder)
    servers.clear()
    check(one.json("hf://org/gguf") == local, "hf:// of a GGUF file: other figures")
    one.check_asked(made, "GGUF")
    check(one.json("hf://org/gguf/model.gguf") == local, "hf:// of the file itself: other figures")
    capital = one.work / "capital"
    capital.mkdir()
    shutil.copy(made.folder / "model.gguf", capital / "MODEL.GGUF")
    servers.add("org/capital", capital)
    check(one.json(capital) == local, "a folder with an ending in capitals: other figures")
    for path in ("hf://org/capital", "hf://org/capital/MODEL.GGUF"):
        check(one.json(path) == local, f"{path}: other figures")
    one.fails("hf://org/capital/sub: the repository has no such folder at this revision", "hf://org/capital/sub")
    plain = servers.serve("gguf", made.folder)
    check(one.json(f"{plain}/model.gguf") == local, "https:// of a GGUF file: other figures")


def check_bytes(one, made):
    """Checks the requested bytes, and that the line before states them. --dry-run stops there."""
    servers = one.servers
    servers.clear()
    out, err, code = one.run("hf://org/model", "--dry-run")
    check(code == 0, f"--dry-run: exit {code}: {err}")
    one.check_asked(made, "--dry-run", headers_only=True)
    before = len(servers.bodies(r"\.safetensors$"))
    check(
        re.search(r"\d[\d.,]* ?[KMG]?i?B.* of .*\d", out + err) and re.search(r"\d+ requests?", out + err),
        f"--dry-run says {out + err!r}",
    )
    servers.clear()
    one.json("hf://org/model")
    one.check_asked(made, "the whole inspection")
    asked = servers.bodies(r"\.safetensors$")
    said = int(re.search(r"([\d,]+) requests?", out + err)[1].replace(",", ""))
    check(
        said == len(asked) - before,
        f"{said} requests are said, {len(asked) - before} of {len(asked)} were made: {err!r}",
    )
    servers.clear()
    one.json("hf://org/model", "--layers", 1)
    one.check_asked(made_of_layer(made, 1), "--layers 1")


def check_at_once(one, made):
    """Several requests are on their way at once, over kept connections. A bar has the rate and the time left."""
    servers = one.servers
    servers.clear()
    servers.misbehave(wrongly.trickle(1 << 15, 0.02), "store", r"\.safetensors$")
    try:
        master, slave = pty.openpty()
    except OSError as error:  # a root without devpts
        print(f"not checked here: no pseudo-terminal: {error}")
        return
    with subprocess.Popen(
        [COUPLET, "inspect", "hf://org/model"],
        env=one.environment(TERM="xterm"),
        stdout=subprocess.DEVNULL,
        stderr=slave,
    ) as process:
        os.close(slave)
        text = b""
        with contextlib.suppress(OSError):  # the end of a terminal whose program has ended
            while part := os.read(master, 4096):
                text += part
    os.close(master)
    check(process.returncode == 0 and re.search(rb"[KMG]i?B/s", text) and b"left" in text, f"the bar: {text[-500:]!r}")
    check(servers.most_at_once >= 4, f"{servers.most_at_once} requests at once")
    connections = {seen.connection for seen in servers.seen}
    check(
        len(connections) <= 24 and len(connections) < len(servers.seen),
        f"{len(connections)} connections for {len(servers.seen)} requests",
    )
    servers.clear()


def made_of_layer(made, layer):
    """Returns the checkpoint with one needed layer, and the headers of all files."""

    class Part:
        needed = {
            file: spans if f"{layer + 2:05d}-of" in file else [(0, min(spans[0][1], 200))]
            for file, spans in made.needed.items()
        }

    return Part


def check_unread(one):
    """Without --cache no file is written below HOME or the working folder."""
    cwd = one.work / "empty"
    cwd.mkdir()
    one.json("hf://org/model", cwd=cwd)
    left = [path for place in (cwd, one.home) for path in place.rglob("*")]
    check(not left, f"left behind: {left}")


def check_http2(one, made):
    """Inspects through a redirect to nginx, and from nginx directly."""
    if nginx.missing():
        print(f"not checked: {nginx.missing()}")
        return
    servers, local = one.servers, one.json(made.folder)
    with nginx.Nginx(made.folder, one.work / "nginx", servers.certificates) as server:
        servers.store_url = server.url
        check(
            one.json("hf://org/model", env={"HF_TOKEN": ACCESS}) == local, "through the hub from nginx: other figures"
        )
        servers.store_url = None
        n = len(server.lines())
        check(one.json(server.url) == local, "from nginx: other figures")
        lines = server.lines()
    with nginx.Nginx(made.folder, one.work / "nginx-5", servers.certificates, requests=5) as server:
        check(one.json(server.url) == local, "from a server that takes 5 requests of a connection: other figures")
        with SlowLink(server.port, cut=1500000, cuts=2) as shaped:
            check(one.json(f"https://127.0.0.1:{shaped.port}") == local, "two cuts of HTTP/2: other figures")
    weights = [line for line in lines if "safetensors" in line.path and line.method == "GET" and line.status < 400]
    answers = {(line.protocol, line.status) for line in weights if "index" not in line.path}
    check(answers == {("HTTP/2.0", 206)}, f"nginx: {[(line.protocol, line.path, line.status) for line in lines]}")
    check(all(line.authorization == "-" for line in lines), "the token went to another host")
    most = max(len({line.connection for line in run}) for run in (lines[:n], lines[n:]))
    check(most <= 16, f"a run has {most} connections, more than 16")


# ---- no other connection is opened ----


def check_local(one, made):
    """A local path opens no socket of the network, whatever the environment is."""
    if not shutil.which("strace"):
        print("not checked: the program strace is not here")
        return
    trace = one.work / "trace"
    environment = one.environment(HF_TOKEN=ACCESS, https_proxy="http://127.0.0.1:9", ASAN_OPTIONS="detect_leaks=0")
    done = subprocess.run(
        ["strace", "-f", "-e", "trace=socket,connect", "-o", trace, COUPLET, "inspect", made.folder],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if "PTRACE" in done.stderr:
        print("not checked here: strace may not trace")
        return
    check(done.returncode == 0 and "exited with 0" in trace.read_text(), f"strace: {done.stderr[-500:]}")
    check("AF_INET" not in trace.read_text(), f"a local path opens a socket: {trace.read_text()[:1000]}")


# ---- tokens ----


def tokens(servers, host):
    return {seen.headers.get("authorization") for seen in servers.seen if seen.host == host}


def check_tokens(one, made):
    """Checks the places of the token, their order, and that the token goes to the endpoint alone."""
    servers, local = one.servers, one.json(made.folder)
    file, hf_home = one.work / "token", one.work / "hf"
    hf_home.mkdir()
    places = [{"HF_TOKEN": ACCESS}, {"HF_TOKEN_PATH": str(file)}, {"HF_HOME": str(hf_home)}, {}]
    usual = one.home / ".cache" / "huggingface" / "token"
    usual.parent.mkdir(parents=True)
    for place in (file, hf_home / "token", usual):
        place.write_text(ACCESS + "\n")
    for place in places:
        servers.clear()
        check(one.json("hf://org/gated", env=place) == local, f"gated, with the token of {place}")
        check(f"Bearer {ACCESS}" in tokens(servers, "hub"), f"{place}: no token came")
        check(tokens(servers, "store") == {None}, f"{place}: the token went to the store")
    for place in (file, usual):
        place.write_text(OUTSIDER)
    check(
        one.json("hf://org/gated", env={"HF_TOKEN": ACCESS, "HF_TOKEN_PATH": str(file)}) == local,
        "HF_TOKEN comes first",
    )
    (hf_home / "token").write_text(OUTSIDER)
    file.write_text(ACCESS)
    check(
        one.json("hf://org/gated", env={"HF_TOKEN_PATH": str(file), "HF_HOME": str(hf_home)}) == local,
        "then HF_TOKEN_PATH",
    )
    usual.unlink()
    servers.clear()
    for host in ("hub", "store"):
        one.json(servers.serve("plain", made.folder, host), env={"HF_TOKEN": ACCESS})
    check(tokens(servers, "store") == {None}, "the token went to a host of https://")
    servers.clear()
    servers.misbehave(
        wrongly.redirects(lambda seen: f"{servers.store.url}/files/plain/{seen.path.split('/')[-1]}"), "hub", "resolve/"
    )
    check(
        one.json("hf://org/model", env={"HF_TOKEN": ACCESS}) == local and tokens(servers, "store") == {None},
        "the token went where a redirect led",
    )
    servers.clear()
    with SlowLink(f"127.0.0.2:{servers.store.server_address[1]}") as same_host:
        other_port = f"https://127.0.0.1:{same_host.port}/files/plain"
        servers.misbehave(wrongly.redirects(lambda seen: f"{other_port}/{seen.path.split('/')[-1]}"), "hub", "resolve/")
        check(
            one.json("hf://org/model", env={"HF_TOKEN": ACCESS}) == local and tokens(servers, "store") == {None},
            "the token went to another port of the endpoint's host",
        )
    servers.clear()
    for bad in ("two words", "t\u00f6ken", "a\x7f"):
        one.fails("HF_TOKEN: holds a character that no token has", "hf://org/model", "--dry-run", env={"HF_TOKEN": bad})
    check(not servers.seen, "something was asked with a token that is none")
    one.run("hf://org/model", "--dry-run", env={"HF_TOKEN": " first\nsecond: line\n"})
    check(
        tokens(servers, "hub") == {"Bearer first"} and all("second" not in seen.headers for seen in servers.seen),
        f"of two lines, tokens {tokens(servers, 'hub')}",
    )


# ---- expiry, patience ----


def check_patience(one, made):
    """Checks failures that pass: an address that expires once, a server that asks to wait, cuts."""
    servers, local = one.servers, one.json(made.folder)

    def tried(what, fault=None, least=0, **how):
        servers.clear()
        if fault:
            servers.misbehave(fault, **({"path": r"\.safetensors$"} | how))
        began = time.monotonic()
        check(one.json("hf://org/model", seconds=120) == local, f"{what}: other figures")
        check(time.monotonic() - began >= least, f"{what}: did not wait for {least} s")

    def expire(seen, make):
        servers.expire()
        return make()

    tried("expired", expire, host="store", path=SECOND, times=1, skip=1)
    tried("403 once", wrongly.status(403, b"<Error/>"), host="store", times=1, skip=8)
    tried("403 once, of an address just signed", wrongly.status(403, b"<Error/>"), host="store", path=SECOND, times=1)
    tried("429", wrongly.retry_after(429, 1), least=1, host="store", times=1, skip=1)
    tried("429 of the hub", wrongly.retry_after(429, 1), least=1, host="hub", times=1)
    tried("503 until a date", wrongly.retry_after(503, 2, as_date=True), least=0.9, host="store", times=1)
    tried("503", wrongly.status(503), host="store", times=1)
    tried("cut", wrongly.cut(1000), host="store", times=1, skip=2)
    tried("cut in a header", wrongly.cut(5), host="store", times=1)
    tried("two cuts", wrongly.cut(100000), host="store", times=2, skip=4)
    tried("hung up", wrongly.hangs_up, host="store", times=1, skip=1)
    tried("short", wrongly.falls_short(7), host="store", times=1, skip=3)
    tried("small pieces", wrongly.trickle(20000, 0.001), host="store")


def check_latest_wait(one, made):
    """Two ranges are on their way: the first is asked to wait for 2 s, then the second for 4 s. The first is not sent
    again before both times have passed."""
    servers, arrived, both, until = one.servers, [], threading.Event(), []

    def fault(seen, make):
        with servers.lock:
            order = len(arrived)
            refused = order < 2 and not seen.headers["range"].startswith("bytes=0-")
            if refused:
                arrived.append(seen)
        if not refused:
            return make()
        if order == 0:
            check(both.wait(60), "two ranges are not asked for at once")
            return wrongly.retry_after(429, 2)(seen, make)
        both.set()
        time.sleep(0.5)  # the first is scheduled again by then
        until.append(time.monotonic() + 4)
        return wrongly.retry_after(429, 4)(seen, make)

    servers.clear()
    servers.misbehave(fault, "store", r"\.safetensors$")
    _, err, code = one.run("hf://org/model", seconds=120)
    check(code == 0 and "asks to wait 4 seconds (429)" in err, f"asked to wait twice: exit {code}: {err[-500:]!r}")
    for refused in arrived:
        again = [
            seen.at
            for seen in servers.seen
            if seen is not refused
            and (seen.file, seen.headers.get("range")) == (refused.file, refused.headers["range"])
        ]
        check(
            len(again) == 1 and again[0] >= until[0] - 0.01,
            f"asked again {[at - until[0] for at in again]} s after the latest wait",
        )
    servers.clear()


def check_renewed(one, made):
    """A renewed address leads to another host, whose ETags have another form: the hub's X-Linked-ETag shows whether the
    file is unchanged. Answers of the old host, which are on their way, are compared with its own ETag."""
    servers, local = one.servers, one.json(made.folder)
    content = digest(made.folder / SECOND, "sha256")
    plain = servers.serve("plain", made.folder, "hub") + f"/{SECOND}"

    def renewed(fault):
        servers.clear()
        servers.misbehave(wrongly.status(403, b"<Error/>"), "store", SECOND, times=1, skip=2)
        servers.misbehave(wrongly.trickle(1 << 15, 0.05), "store", SECOND)  # answered after the renewal
        servers.misbehave(fault, "hub", f"resolve/.*{SECOND}$", skip=1)

    def itself(tag):
        return lambda seen, make: servers.of_file(seen, made.folder / SECOND, SECOND, tag)

    def elsewhere(tag):
        return lambda seen, make: redirect(302, plain, X_Linked_ETag=f'"{tag}"')

    for what, fault in (("the hub itself", itself(content)), ("another host", elsewhere(content))):
        renewed(fault)
        check(one.json("hf://org/model") == local, f"a renewed way to {what}: other figures")
        hosts = {seen.host for seen in servers.bodies(SECOND)}
        check(hosts == {"hub", "store"}, f"a renewed way to {what}: bytes of {hosts}")
    servers.clear()
    lifetime, servers.lifetime = (
        servers.lifetime,
        2,
    )  # less than a range takes: waiting requests start once the new address answers
    servers.misbehave(wrongly.trickle(1 << 14, 0.2), "store", r"\.safetensors$")
    check(one.json("hf://org/model") == local, "a way that lasts less long than a range takes: other figures")
    check(any(seen.status == 403 for seen in servers.seen), "no way expired")
    servers.lifetime = lifetime
    servers.clear()
    for what, fault in (("ETag", itself("0" * 64)), ("X-Linked-ETag", elsewhere("0" * 64))):
        renewed(fault)
        one.fails(
            f"{SECOND}: the file changed in between [(]its {what} is not",
            "hf://org/model",
            what=f"another {what} of the hub",
        )
    servers.clear()


# ---- the cache ----


def weights(spans):
    """Returns the spans without the beginnings of files, which show whether a file is unchanged."""
    return [span for span in spans if span[0] > 0]


def kept_in(cache):
    return len(list(cache.rglob("*.range")))


def n_asked(one):
    """Returns the number of requested ranges of weights."""
    return sum(len(weights(spans)) for spans in one.spans().values())


def interrupt(one, made, cache):
    """Interrupts the program once a range of weights is kept, while others do not end. Returns how many are kept."""
    servers = one.servers
    servers.misbehave(wrongly.trickle(1000, 0.05), "store", r"\.safetensors$", skip=len(made.needed) + 2)
    with subprocess.Popen(
        [COUPLET, "inspect", "hf://org/model", "--cache", cache],
        env=one.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        for _ in range(6000):
            if kept_in(cache) or process.poll() is not None:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    check(
        process.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT),
        f"Ctrl-C: exit {process.returncode}: {err[-500:]}",
    )
    return kept_in(cache)


def check_cache(one, made):
    """A cut inspection is resumed, and reads no byte twice."""
    servers, local, cache = one.servers, one.json(made.folder), one.work / "cache"
    _, err, code = one.run(made.folder, "--cache", cache)
    check(code == 2 and "--cache keeps what is fetched" in err, f"--cache of a local folder: {code} {err}")

    servers.clear()
    one.json("hf://org/model")
    whole = n_asked(one)

    def goes_on(what, kept):
        check(0 < kept < whole, f"{what}: {kept} of {whole} ranges are kept")
        servers.clear()
        check(one.json("hf://org/model", "--cache", cache) == local, f"with a cache, after {what}: other figures")
        check(
            n_asked(one) == whole - kept,
            f"after {what}: {n_asked(one)} of {whole} ranges were asked for, {kept} were kept",
        )

    servers.clear()
    servers.misbehave(wrongly.hangs_up, "store", r"\.safetensors$", skip=6)
    one.fails("connection|cut|closed|reset|answer|reach", "hf://org/model", "--cache", cache, seconds=200)
    goes_on("a cut", kept_in(cache))
    shutil.rmtree(cache)
    servers.clear()
    goes_on("Ctrl-C", interrupt(one, made, cache))
    servers.clear()
    check(one.json("hf://org/model", "--cache", cache) == local, "from the cache: other figures")
    _, err, _ = one.run("hf://org/model", "--cache", cache)
    check(" more from the cache" in err, f"from the cache: {err!r}")
    check(not any(map(weights, one.spans().values())), f"asked for again: {one.spans()}")
    check(
        one.json("hf://org/model", "--cache", cache, "--layers", 0)["layers"] == local["layers"][:1],
        "one layer of the cache",
    )
    check_changed_cache(one, made, cache)


def check_changed_cache(one, made, cache):
    """Another file of equal name is not mixed with the kept bytes, and damaged bytes are not used."""
    servers, file = one.servers, made.folder / SECOND
    before = file.read_bytes()
    file.write_bytes((one.work / "second" / SECOND).read_bytes())
    out, err, code = one.run("hf://org/model", "--cache", cache, "--json", "-")
    if code == 0:
        check(json.loads(out)["layers"] == one.json(made.folder)["layers"], "figures of bytes of two versions")
    else:
        check("changed" in err, f"a changed file: {err!r}")
    file.write_bytes(before)
    local = one.json(made.folder)
    for path in [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000][:4]:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 0x55
        path.write_bytes(raw)
    out, err, code = one.run("hf://org/model", "--cache", cache, "--json", "-")
    check(code == 1 or json.loads(out)["layers"] == local["layers"], f"a damaged cache: {code} {err[-500:]!r}")
    plain = one.work / "note"
    plain.write_text("mine")
    one.fails("note", "hf://org/model", "--cache", plain)
    check(plain.read_text() == "mine", "--cache has overwritten a file")
    within = made.folder / "kept"
    one.fails("kept", "hf://org/model", made.folder, "--cache", within)
    check(not within.exists(), "--cache is written into a checkpoint")
    servers.clear()


# ---- 20,000 requests ----


def check_limit(one):
    """Inspects 80 layers of a router and 256 gates, each far from the next."""
    made = many_gates(one.work / "many", layers=80, n=256)
    one.servers.add("org/many", made.folder)
    one.servers.clear()
    refused = (
        "couplet: this takes 20560 requests, and more than 20000 are made with --yes only; --layers reads fewer layers$"
    )
    text = one.fails(refused, "hf://org/many")
    check(" to fetch in 20560 requests" in text, f"more requests than allowed: {text[-500:]!r}")
    asked = sum(length(spans) for spans in one.spans().values())
    check(asked < 80 * (1 << 20), f"{asked} bytes were asked for before the limit was told")
    out, err, code = one.run("hf://org/many", "--layers", "0-1", "--dry-run")
    check(code == 0 and " to fetch in 514 requests" in err, f"two layers of it: {err[-500:]!r}")
    one.servers.clear()
    one.servers.misbehave(wrongly.status(404), "store", r"\.safetensors$", skip=99)
    one.fails(r"127.0.0.2:\d+ has no such file [(]404[)]", "hf://org/many", "--yes")
    check(len(one.servers.seen) > 99, f"--yes made {len(one.servers.seen)} requests")
    one.servers.clear()
    shutil.rmtree(made.folder)


def body(one):
    made = sharded(one.work / "model")
    sharded(one.work / "second", seed=2)
    servers = one.servers
    servers.add("org/model", made.folder, revisions={"v2": one.work / "second"})
    servers.add("org/gated", made.folder, gated=True)
    servers.add("org/old", made.folder, moved_to="org/model")
    remote_case.groups(
        {
            "equal": lambda: check_equal(one, made.folder),
            "gguf": lambda: check_gguf(one, gguf(one.work / "gguf")),
            "bytes": lambda: check_bytes(one, made),
            "at_once": lambda: check_at_once(one, made),
            "unread": lambda: check_unread(one),
            "http2": lambda: check_http2(one, made),
            "local": lambda: check_local(one, made),
            "tokens": lambda: check_tokens(one, made),
            "patience": lambda: check_patience(one, made),
            "latest_wait": lambda: check_latest_wait(one, made),
            "renewed": lambda: check_renewed(one, made),
            "cache": lambda: check_cache(one, made),
            "limit": lambda: check_limit(one),
        }
    )


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
