#!/usr/bin/env python3
"""check_front.py: the front, the proxy and nginx do what the tests of the program rely on. Asked with Python's own client
and with the program curl."""

import gzip
import hashlib
import http.client
import json
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse

import misbehaviour as wrongly
import nginx
from front import ACCESS, OUTSIDER, Front
from shaper import Shaper

wrong = []


def check(truth, what):
    if not truth:
        wrong.append(what)


class Client:
    def __init__(self, front):
        self.context = ssl.create_default_context(cafile=front.certificates.ca[0])

    def get(self, url, span=None, token=None, method="GET", most=1 << 20, **headers):
        """Status, headers and at most so many bytes; what Python raises is handed up."""
        parts = urllib.parse.urlsplit(url)
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, context=self.context, timeout=20)
        headers |= {"Range": f"bytes={span}"} if span else {}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(most)
        connection.close()
        return answer.status, answer.headers, body


def tries(action):
    try:
        return action()
    except (OSError, http.client.HTTPException) as what:
        return what


def check_layout(front, client, data):
    base = f"{front.hub.url}/org/model/resolve/main"
    status, headers, _ = client.get(f"{base}/w.safetensors", token=ACCESS)
    content = hashlib.sha256(data).hexdigest()
    check(
        status == 302
        and headers["X-Linked-ETag"] == f'"{content}"'
        and headers["X-Linked-Size"] == str(len(data))
        and len(headers["X-Repo-Commit"]) == 40
        and headers["Accept-Ranges"] == "bytes",
        f"redirect: {status} {headers}",
    )
    place = headers["Location"]
    check(urllib.parse.urlsplit(place).netloc == f"127.0.0.2:{front.store.server_address[1]}", f"another host: {place}")
    status, headers, body = client.get(place, "10-19")
    check(
        (status, body, headers["Content-Range"]) == (206, data[10:20], f"bytes 10-19/{len(data)}"),
        f"range: {status} {body}",
    )
    check(client.get(place, "-7")[2] == data[-7:] and client.get(place, "990-")[2] == data[990:], "open ranges")
    check(client.get(place, f"{len(data)}-")[0] == 416, "behind the end")
    check(client.get(place, token=ACCESS)[0] == 400, "the store takes a token")
    check(client.get(place.replace("Signature=", "Signature=0"))[0] == 403, "a wrong signature")
    front.expire()
    check(client.get(place)[0] == 403, "an expired address")
    front.lifetime = -1
    place = client.get(f"{base}/w.safetensors")[1]["Location"]
    check(b"expired" in client.get(place)[2], "an address that was old when it was signed")
    front.lifetime = 3600
    status, headers, _ = client.get(f"{base}/config.json")
    check(
        status == 307 and headers["Location"].startswith("/api/resolve-cache/models/org/model/"),
        f"small files: {status}",
    )
    check(client.get(front.hub.url + headers["Location"])[2] == b"{}", "a small file")
    check(client.get(base.replace("main", "v2") + "/config.json")[0] == 307, "a branch")
    for place, code in (
        (f"{base}/none", "EntryNotFound"),
        (base.replace("main", "no") + "/config.json", "RevisionNotFound"),
    ):
        status, headers, _ = client.get(place)
        check((status, headers["X-Error-Code"]) == (404, code), f"{place}: {status} {headers}")


def check_access(front, client):
    for name, token, want in (
        ("org/no", None, (401, "RepoNotFound")),
        ("org/no", ACCESS, (404, "RepoNotFound")),
        ("org/gated", None, (401, "GatedRepo")),
        ("org/gated", "x", (401, "GatedRepo")),
        ("org/gated", OUTSIDER, (403, "GatedRepo")),
        ("org/gated", ACCESS, (302, None)),
    ):
        status, headers, _ = client.get(f"{front.hub.url}/{name}/resolve/main/w.safetensors", token=token)
        check((status, headers["X-Error-Code"]) == want, f"{name} with {token}: {status} {headers['X-Error-Code']}")
    status, headers, _ = client.get(f"{front.hub.url}/org/old/resolve/main/w.safetensors")
    check((status, headers["Location"]) == (307, "/org/model/resolve/main/w.safetensors"), f"moved: {headers}")


def check_api(front, client):
    info = json.loads(client.get(f"{front.hub.url}/api/models/org/model/revision/main")[2])
    check(
        [one["rfilename"] for one in info["siblings"]] == ["config.json", "w.safetensors"] and len(info["sha"]) == 40,
        f"siblings: {info}",
    )
    moved = client.get(f"{front.hub.url}/api/models/org/old/tree/main")
    check((moved[0], moved[1]["Location"]) == (307, "/api/models/org/model/tree/main"), f"moved: {moved}")
    front.page = 1
    first = client.get(f"{front.hub.url}/api/models/org/model/tree/main?recursive=true")
    place = first[1]["Link"].split(">")[0].strip("<")
    second = client.get(place)
    rows = json.loads(first[2]) + json.loads(second[2])
    check(
        [row["path"] for row in rows] == ["config.json", "w.safetensors"]
        and rows[1]["lfs"]["size"] == 1000
        and second[1]["Link"] is None,
        f"tree: {rows}",
    )
    front.page = 1000


def check_record(front, client):
    front.clear()
    client.get(
        f"{front.serve('plain', front.repositories['org/model'].folder, 'hub')}/w.safetensors", "5-14", token="t"
    )
    (seen,) = front.seen
    check(
        (seen.host, seen.method, seen.file, seen.range, seen.status, seen.sent, seen.token)
        == ("hub", "GET", "w.safetensors", (5, 14), 206, 10, "t"),
        f"record: {seen}",
    )
    check(front.asked_bytes() == 10 and front.asked_bytes("json") == 0, "bytes asked for")


def check_faults(front, client, data):
    place = f"{front.hub.url}/files/plain/w.safetensors"

    def with_fault(fault, span="10-29", **how):
        front.clear()
        front.misbehave(fault, **how)
        return tries(lambda: client.get(place, span, most=how.pop("most", 1 << 20)))

    check(with_fault(wrongly.ignores_ranges)[::2] == (200, data), "ignores ranges")
    answer = with_fault(wrongly.ignores_ranges_endlessly)
    check(answer[0] == 200 and len(answer[2]) == 1 << 20 and int(answer[1]["Content-Length"]) > 1e11, "endless")
    check(len(with_fault(wrongly.never_ends)[2]) == 1 << 20, "never ends")
    check(with_fault(wrongly.not_satisfiable)[0] == 416, "416")
    answer = with_fault(wrongly.other_range)
    check(answer[2] == data[74:94] and answer[1]["Content-Range"] == "bytes 74-93/1000", "other range")
    check(with_fault(wrongly.other_size)[1]["Content-Range"] == "bytes 10-29/1001", "other size")
    check(with_fault(wrongly.unsaid_range)[1]["Content-Range"] is None, "no Content-Range")
    answer = with_fault(wrongly.shorter(5))
    check(answer[2] == data[10:25] and answer[1]["Content-Range"] == "bytes 10-24/1000", "shorter")
    answer = with_fault(wrongly.falls_short(5))
    check(answer[2] == data[10:25] and answer[1]["Content-Range"] == "bytes 10-29/1000", "falls short")
    check(len(with_fault(wrongly.goes_on)[2]) == 1 << 20, "goes on")
    answer = with_fault(wrongly.gzipped)
    check(gzip.decompress(answer[2]) == data[10:30] and answer[1]["Content-Encoding"] == "gzip", "gzip")
    for fault in (wrongly.cut(7), wrongly.hangs_up, wrongly.garbage, wrongly.endless_headers, wrongly.long_header()):
        answer = with_fault(fault)
        check(isinstance(answer, Exception) or len(answer[2]) < 20, f"a broken connection: {answer}")
    check(front.seen[-1].range == (10, 29), "the record of a broken one")
    check(with_fault(wrongly.trickle(5, 0.01))[2] == data[10:30], "a trickle")
    answer = with_fault(wrongly.retry_after(503, 2, as_date=True))
    check(answer[0] == 503 and answer[1]["Retry-After"].endswith(" GMT"), "Retry-After")
    answer = with_fault(wrongly.screams(404))
    check(answer[0] == 404 and b"\x1b[31m" in answer[2] and len(answer[2]) == 1 << 20, "a long error")
    check(with_fault(wrongly.redirects("http://127.0.0.2/"))[1]["Location"] == "http://127.0.0.2/", "redirect")
    check(with_fault(wrongly.loops)[1]["Location"] == "/files/plain/w.safetensors", "loop")
    check(with_fault(wrongly.other_tag)[1]["ETag"] == '"another"', "ETag")
    check(with_fault(wrongly.instead(wrongly.POINTER), "0-7")[2] == b"version ", "LFS pointer")
    check(with_fault(wrongly.without("ETag"))[1]["ETag"] is None, "without")
    front.clear()
    front.misbehave(wrongly.status(503), times=2, skip=1, path="safetensors")
    check([client.get(place)[0] for _ in range(4)] == [200, 503, 503, 200], "times and skip")


def curl(front, *words):
    done = subprocess.run(
        ["curl", "-sS", "--cacert", front.certificates.ca[0], *words], capture_output=True, check=False
    )
    return done.stdout, done.stderr.decode(), done.returncode


def check_certificates(front, client):
    place = f"{front.hub.url}/files/plain/w.safetensors"
    for which in ("wrong_name", "stranger"):
        front.use_certificate("hub", which)
        check(isinstance(tries(lambda: client.get(place)), ssl.SSLCertVerificationError), f"certificate {which}")
    front.use_certificate("hub", "good")
    check(client.get(place)[0] == 200, "the good certificate")


def check_shaper(front, folder):
    """8 MB at 20 MB/s and 50 ms both ways: not faster than that, whole, and not much slower on an idle machine."""
    data = bytes(range(256)) * 32768
    (folder / "big").write_bytes(data)
    with Shaper(front.hub.server_address[1], 20e6, 0.05) as shaped:
        began = time.monotonic()
        out, err, _ = curl(front, f"https://127.0.0.1:{shaped.port}/files/plain/big")
        took = time.monotonic() - began
        check(out == data, f"through the proxy: {len(out)} bytes, {err}")
        least = len(data) / 20e6 + 6 * 0.05  # handshakes of TCP and TLS, the request
        check(took >= least, f"the proxy is too fast: {took} s, at least {least} s")
        front.clear()
        front.misbehave(wrongly.cut(1000))
        check(curl(front, f"https://127.0.0.1:{shaped.port}/files/plain/big")[2] != 0, "a cut through the proxy")
        front.clear()
    check(shaped.process.returncode == 0, "the proxy has not ended")
    with Shaper(front.hub.server_address[1], cut=1 << 20, cuts=2) as shaped:
        place = f"https://127.0.0.1:{shaped.port}/files/plain/big"
        answers = [curl(front, place) for _ in range(3)]
    check([code != 0 for _, _, code in answers] == [True, True, False] and answers[2][0] == data, "the proxy's cuts")


def check_nginx(front, work, folder):
    if nginx.missing():
        print(f"not checked: {nginx.missing()}")
        return
    with nginx.Nginx(folder, work / "nginx", front.certificates) as server:
        out, err, _ = curl(front, "--http2", "-r", "10-19", f"{server.url}/w.safetensors")
        check(out == (folder / "w.safetensors").read_bytes()[10:20], f"nginx: {out} {err}")
        for _ in range(100):
            if server.lines():
                break
            time.sleep(0.02)
        (line,) = server.lines()
        check(
            (line.protocol, line.path, line.range, line.status, line.sent)
            == ("HTTP/2.0", "/w.safetensors", "bytes=10-19", 206, 10),
            f"nginx: {line}",
        )
    check(server.process.returncode == 0, "nginx has not ended")


def main():
    if not shutil.which("openssl") or not shutil.which("curl"):
        print("not checked: the programs openssl and curl are not here")
        return 77
    with tempfile.TemporaryDirectory(prefix="couplet-test-") as name:
        work = pathlib.Path(name)
        folder, data = work / "model", bytes(i * i % 251 for i in range(1000))
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "w.safetensors").write_bytes(data)
        with Front(work) as front:
            front.add("org/model", folder, revisions={"v2": folder})
            front.add("org/gated", folder, gated=True)
            front.add("org/old", folder, moved_to="org/model")
            client = Client(front)
            check_layout(front, client, data)
            check_access(front, client)
            check_api(front, client)
            check_record(front, client)
            check_faults(front, client, data)
            check_certificates(front, client)
            check_shaper(front, folder)
            check_nginx(front, work, folder)
    print("\n".join(wrong))
    return bool(wrong)


sys.exit(main())
