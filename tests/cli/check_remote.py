"""check_remote.py COUPLET: couplet inspect of checkpoints on a server. The figures are those of the local
files, byte by byte; no more is asked for than routers, gates and headers; and what a server does wrong is
a sentence. Nothing outside this machine is asked."""
import json
import os
import pathlib
import shutil
import ssl
import struct
import subprocess
import sys

import range_server as rs
from gguf_file import Gguf
from inputs import GOLDEN
from program import COUPLET, check, finish, scratch_folder

FAMILIES = GOLDEN / "families"
PLAIN = {key: value for key, value in os.environ.items()
         if not key.startswith("HF_") and not key.lower().endswith("_proxy")} | {"HOME": "/nonexistent"}


def run(*words, **variables):
    return subprocess.run([COUPLET, "inspect", *map(str, words)], capture_output=True, text=True,
                          env=PLAIN | variables, timeout=300)


def figures(answer):
    """The report without what depends on the place."""
    report = json.loads(answer.stdout)
    for checkpoint in report if isinstance(report, list) else report.get("checkpoints", [report]):
        checkpoint.pop("checkpoint")
    return report


def site_of(folder, under):
    site = rs.Site()
    for path in folder.iterdir():
        site.files[f"{under}/{path.name}"] = path.read_bytes()
    return site


def fails(words, *parts, code=1, **variables):
    answer = run(*words, **variables)
    check(answer.returncode == code, f"{words}: exit code {answer.returncode}: {answer.stderr[-500:]}")
    for part in parts:
        check(part in answer.stderr, f"{words}: the sentence does not say {part!r}: {answer.stderr[-700:]}")
    check("Sanitizer" not in answer.stderr, f"{words}: {answer.stderr[-3000:]}")
    return answer


def same(local, remote, *flags, **variables):
    here = run(local, "--json", "-", *flags)
    there = run(remote, "--json", "-", *flags, **variables)
    check(here.returncode == 0, f"{local}: {here.stderr}")
    check(there.returncode == 0, f"{remote}: {there.stderr}")
    if here.returncode == 0 and there.returncode == 0:
        check(figures(here) == figures(there), f"{remote}: other figures than {local}")
    return there


def web():
    for folder in sorted(p for p in FAMILIES.iterdir() if p.is_dir()):
        site = site_of(folder, "some/models")
        answer = same(folder, f"{site.url}/some/models/")
        check(" to fetch in " in answer.stderr, answer.stderr)
        fused = folder.name in ("gpt_oss",)
        check(("come along" in answer.stderr) == fused, f"{folder.name}: {answer.stderr}")
        check(not any(authorization for _, _, authorization in site.log), "a web server got a token")
        site.close()
    site = site_of(FAMILIES / "qwen3_moe", "m")
    one = f"{site.url}/m/model.safetensors"
    same(FAMILIES / "qwen3_moe" / "model.safetensors", one, "--layers", "1")
    same(FAMILIES / "qwen3_moe", f"{site.url}/m", "--silhouette", "--threads", "3")
    for path in sorted((GOLDEN / "gguf" / "moe").glob("*.gguf")):
        site.files[f"g/{path.name}"] = path.read_bytes()
        same(path, f"{site.url}/g/{path.name}")
    site.close()


def vocabulary():
    """A GGUF file whose vocabulary lies before the tensors: it is read front to back in few requests."""
    source = GOLDEN / "gguf" / "moe" / "llama.gguf"
    raw, end = source.read_bytes(), Gguf(source).at
    words = [f"word {i}".encode() for i in range(200000)]
    key = b"tokenizer.ggml.tokens"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, len(words)) + \
        b"".join(struct.pack("<Q", len(word)) + word for word in words)
    head = raw[:16] + struct.pack("<Q", 1 + struct.unpack_from("<Q", raw, 16)[0]) + pair + raw[24:end]
    body = head + bytes(-len(head) % 32) + raw[(end + 31) // 32 * 32:]
    site = rs.Site()
    site.files["m/x.gguf"] = body
    with scratch_folder() as place:
        (place / "x.gguf").write_bytes(body)
        same(place / "x.gguf", f"{site.url}/m/x.gguf")
        site.forget()
        run(f"{site.url}/m/x.gguf", "--dry-run")
        check(len(pair) > 3e6 and len(site.log) <= 5, f"{len(pair)} bytes took the requests {site.log}")
    site.close()


def what_is_asked():
    site = site_of(FAMILIES / "sharded_olmoe", "m")
    answer = run(f"{site.url}/m", "--dry-run")
    check(answer.returncode == 0 and answer.stdout == "", f"--dry-run: {answer.stdout} {answer.stderr}")
    before = len(site.log)
    site.forget()
    answer = run(f"{site.url}/m")
    made = int(answer.stderr.split(" to fetch in ")[1].split()[0])
    opening = int(answer.stderr.split("(after ")[1].split()[0])
    check(len(site.log) == made + opening and before == opening,
          f"{len(site.log)} requests, {made} and {opening} announced, {before} with --dry-run")
    site.close()


def many_requests():
    """80 layers of 256 experts, each gate far from the next."""
    header, at = {}, 0
    for layer in range(80):
        names = [("gate", 256)] + [(f"experts.{e}.{part}_proj", rows) for e in range(256)
                                   for part, rows in (("gate", 2), ("up", 2048))]
        for name, rows in names:
            header[f"model.layers.{layer}.mlp.{name}.weight"] = {
                "dtype": "F32", "shape": [rows, 32], "data_offsets": [at, at + 128 * rows]}
            at += 128 * rows
    text = json.dumps(header).encode()
    site = rs.Site()
    file = rs.Sparse(struct.pack("<Q", len(text)) + text, 8 + len(text) + at)
    site.files["m/config.json"] = b'{"model_type": "olmoe", "num_experts_per_tok": 2}'
    site.faults["m/model.safetensors"] = lambda handler, *_: rs.send_range(handler, file, ETag='"one"')
    answer = fails([f"{site.url}/m"], "this takes 20480 requests", "--yes")
    check(" to fetch in 20480 requests" in answer.stderr, answer.stderr)
    asked = len(site.log)
    check(asked < 12, f"{asked} requests before the refusal")
    fails([f"{site.url}/m", "--dry-run"], " to fetch in 20480 requests", code=0)
    same_again = run(f"{site.url}/m", "--layers", "3")
    check(" to fetch in 256 requests" in same_again.stderr, same_again.stderr)
    site.faults["m/model.safetensors"] = lambda handler, body, number: \
        rs.send(handler, 404) if number > 99 else rs.send_range(handler, file, ETag='"one"')
    site.forget()
    fails([f"{site.url}/m", "--yes"], "no such file (404)")
    check(len(site.log) >= 99, f"--yes made {len(site.log)} requests")
    site.close()


def proxies():
    """What is for this machine does not leave it by a proxy."""
    site = site_of(FAMILIES / "olmoe", "m")
    same(FAMILIES / "olmoe", f"{site.url}/m", http_proxy="http://127.0.0.1:1", all_proxy="http://127.0.0.1:1")
    site.close()


def mixed():
    site = site_of(FAMILIES / "olmoe", "m")
    answer = run(FAMILIES / "mixtral", f"{site.url}/m", "--json", "-")
    both = run(FAMILIES / "mixtral", FAMILIES / "olmoe", "--json", "-")
    check(answer.returncode == 0 and figures(answer) == figures(both), f"mixed: {answer.stderr}")
    site.close()


def hub():
    folder = FAMILIES / "sharded_olmoe"
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"other/model.safetensors": b"x"}
    front, store = rs.hub("org/name", files, lambda name: name.endswith(".safetensors"))
    where = {"HF_ENDPOINT": front.url}
    same(folder, "hf://org/name", **where)
    check(not any(authorization for _, _, authorization in front.log), "a token was sent, and none is there")
    same(folder, "hf://org/name@main/", HF_TOKEN="hf_secret", **where)
    asked = [authorization for _, _, authorization in front.log if authorization]
    check(asked and set(asked) == {"Bearer hf_secret"}, f"the hub got the tokens {set(asked)}")
    check(not any(authorization for _, _, authorization in store.log), "the second host got the token")
    with scratch_folder() as place:
        (place / "token").write_text("hf_file\n")
        front.forget()
        run("hf://org/name", HF_TOKEN_PATH=str(place / "token"), **where)
        check(front.log[-1][2] == "Bearer hf_file", f"HF_TOKEN_PATH: {front.log[-1]}")
        front.forget()
        run("hf://org/name", HF_HOME=str(place), **where)
        check(front.log[-1][2] == "Bearer hf_file", f"HF_HOME: {front.log[-1]}")
    moved = f"org/name/resolve/{rs.COMMIT}/config.json"
    front.files["other/place"] = files["config.json"]
    front.faults[moved] = rs.redirect("/other/place")
    front.forget()
    same(folder, "hf://org/name", HF_TOKEN="hf_secret", **where)
    check(("other/place", None, "Bearer hf_secret") in front.log, f"a way on the hub itself: {front.log}")
    front.faults.pop(moved)
    front.forget()
    run("hf://org/name", **where)
    once = sum(1 for name, _, _ in front.log if name.endswith("model-00001-of-00005.safetensors"))
    check(once == 1, f"the way to a shard was asked for {once} times")
    files["model.safetensors.index.json"] = \
        files["model.safetensors.index.json"].replace(b"model-00002-of", b"model-00007-of")
    front.files[f"org/name/resolve/{rs.COMMIT}/model.safetensors.index.json"] = files["model.safetensors.index.json"]
    fails(["hf://org/name"], "model-00007-of-00005.safetensors: the repository has no such file",
          "the nearest name is model-0000", **where)
    front.close(), store.close()


def signatures():
    """Signed URLs expire while the file is read."""
    files = {p.name: p.read_bytes() for p in (FAMILIES / "olmoe").iterdir()}
    files["model.safetensors"] = big()
    front, store = rs.hub("org/name", files, lambda name: name.endswith(".safetensors"))
    where = {"HF_ENDPOINT": front.url}
    with scratch_folder() as place:
        for name, body in files.items():
            (place / name).write_bytes(body)

        def expire(handler, body, number):
            if number == 3:
                front.state["oldest"] = front.state["signature"]
            return plain(handler, body, number)

        plain = store.faults[""]
        store.faults[""] = expire
        same(place, "hf://org/name", **where)
        check(front.state["signature"] == 2, f"{front.state['signature']} signatures for two times")
        store.forget()
        store.faults[""] = lambda handler, body, number: number > 2 and rs.send(handler, 403)
        fails(["hf://org/name"], "to which the hub leads, refuses it (403), by a new way too", **where)
    front.close(), store.close()


def big(n=4, width=512, expert=700):
    """A layer of which the gates do not fit into one request."""
    import array
    import random
    import struct
    numbers = random.Random(3)
    shapes = {"model.layers.0.mlp.gate.weight": [n, width]}
    for e in range(n):
        shapes[f"model.layers.0.mlp.experts.{e}.gate_proj.weight"] = [expert, width]
        shapes[f"model.layers.0.mlp.experts.{e}.up_proj.weight"] = [expert, width]
    header, at, data = {}, 0, []
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [at, at + 4 * rows * columns]}
        at += 4 * rows * columns
        data.append(array.array("f", [numbers.gauss(0, 1) for _ in range(columns)] * rows).tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data)


def refusals():
    files = {p.name: p.read_bytes() for p in (FAMILIES / "olmoe").iterdir()}
    front, store = rs.hub("org/name", files, lambda name: name.endswith(".safetensors"))
    where = {"HF_ENDPOINT": front.url}
    listing = "api/models/org/name/revision/main"
    config = f"org/name/resolve/{rs.COMMIT}/config.json"
    fails(["hf://org/other"], "no such repository or revision (404)", **where)
    fails(["hf://org/name@nowhere"], "no such repository or revision (404)", **where)
    fails(["hf://org/name/model.safetensor.gguf"], "no such file at this revision (404)", **where)
    fails(["hf://org/name/mode.safetensors"], "the nearest name is model.safetensors", **where)
    fails(["hf://name"], "names no repository", **where)
    fails(["hf://datasets/org/name"], "only repositories of models", **where)
    fails(["hf://org/../name"], "no name of a repository", **where)
    fails(["hf://org/name"], "HF_ENDPOINT", "for this machine only", HF_ENDPOINT="http://example.org")
    front.faults[config] = rs.code(401, X_Error_Code="GatedRepo", X_Error_Message="Access is\x07 restricted")
    fails(["hf://org/name"], "(401)", "private or gated", f"{front.url}/org/name", "set HF_TOKEN",
          "Access is\\x07 restricted", **where)
    front.faults[config] = rs.code(403)
    fails(["hf://org/name"], "(403) with the token that was sent", "accept its terms", HF_TOKEN="hf_x", **where)
    front.faults[config] = rs.redirect(f"{front.url}/{config}")
    fails(["hf://org/name"], "a redirect loop", **where)
    front.faults[config] = rs.redirect("ftp://127.0.0.1/x")
    fails(["hf://org/name"], "redirects to a place that is not allowed", **where)
    front.faults[config] = rs.redirect("http://example.org/x")
    fails(["hf://org/name"], "redirects to a place that is not allowed", **where)
    front.faults[listing] = rs.code(200)
    fails(["hf://org/name"], "not valid JSON", **where)
    front.close(), store.close()
    fails(["http://example.org/model"], "for this machine only")
    fails(["https://user:secret@127.0.0.1/model"], "user name")
    fails(["https://127.0.0.1/model?x=1"], "query")
    fails(["https://127.0.0.1:1/model"], "no connection with 127.0.0.1:1")
    fails(["hf://org/name", "--text", "x.txt"], "--text reads the whole model")
    answer = subprocess.run([COUPLET, "generate", "hf://org/name", "--prompt", "x"], capture_output=True, text=True)
    check(answer.returncode == 1 and "local ones only" in answer.stderr, f"generate: {answer.stderr}")


def endless(handler, *_):
    handler.send_response(206)
    for _ in range(10000):
        handler.send_header("X-More", "x" * 100)
    handler.close_connection = True
    return handler.end_headers() is None


def lies():
    site = site_of(FAMILIES / "olmoe", "m")
    site.files["m/model.safetensors"] = big()
    weights, path = "m/model.safetensors", f"{site.url}/m"
    with scratch_folder() as place:
        for name in ("config.json", "model.safetensors"):
            (place / name).write_bytes(site.files[f"m/{name}"])

        def holds(fault, *flags):
            site.forget()
            site.faults[weights] = fault
            return same(place, path, *flags)

        def breaks(fault, *parts, name=weights, flags=()):
            site.forget()
            site.faults = {name: fault}
            return fails([path, *flags], *parts)

        holds(rs.at({1, 2, 3}, rs.cut(100000)))
        holds(rs.at({2, 4}, rs.cut(0)))
        holds(rs.at({2}, rs.code(503)))
        answer = holds(rs.at({2}, rs.code(429, Retry_After="3")))
        check("asks to wait 3 seconds (429)" in answer.stderr, answer.stderr)
        breaks(rs.code(429, Retry_After="10000"), "asks to wait 10000 seconds (429)")
        breaks(rs.cut(0), "or it was lost, 5 times in a row")
        breaks(rs.whole, "sends no ranges")
        breaks(rs.moved_range, "other bytes than those asked for")
        breaks(rs.headers(Content_Encoding="gzip"), "compressed")
        breaks(rs.at({3}, rs.headers(ETag='"other"')), "changed in between (its ETag")
        breaks(rs.at(set(range(2, 99)), rs.code(416)), "(416)")
        breaks(lambda handler, body, number: number > 1 and rs.send_range(handler, body[:-8], ETag=rs.tag_of(body)),
               "changed in between (its length")
        breaks(rs.code(500), "answered 500, 5 times in a row")
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
        breaks(lambda handler, *_: rs.send_range(handler, pointer), "is a Git LFS pointer")
        breaks(endless, "a header without an end")
        absurd = (1 << 40).to_bytes(8, "little")
        breaks(lambda handler, *_: rs.send_range(handler, absurd + bytes(100)), "header too large")
        index = json.dumps({"weight_map": {"a": "https://127.0.0.1/x.safetensors"}}).encode()
        site.files["m/model.safetensors.index.json"] = index
        site.faults = {}
        fails([path], "is not the name of a file in the folder of the index")
        site.files["m/model.safetensors.index.json"] = b'{"weight_map": {"a": "x\\u001b[2Jy.safetensors"}}'
        fails([path], "x\\x1b[2Jy.safetensors", "no such file (404)")
        asked = [name for name, _, _ in site.log if "2J" in name]
        check(asked and all(name == "m/x\x1b[2Jy.safetensors" for name in asked), f"asked for {asked}")
    site.close()


def cache():
    site = site_of(FAMILIES / "olmoe", "m")
    site.files["m/model.safetensors"] = big()
    path = f"{site.url}/m"
    with scratch_folder() as place:
        kept = place / "kept"
        before = run(path, "--json", "-", "--cache", kept)
        files = sorted(kept.iterdir())
        check(len(files) >= 2, f"{len(files)} ranges are kept")
        files[0].unlink()
        damaged = bytearray(files[1].read_bytes())
        damaged[-1] ^= 1
        files[1].write_bytes(damaged)
        site.forget()
        again = run(path, "--json", "-", "--cache", kept)
        ranges = [span for name, span, _ in site.log if name.endswith("model.safetensors")]
        check(figures(before) == figures(again), f"other figures from the cache: {again.stderr}")
        check(len(ranges) == 3, f"with one range lost and one damaged, {ranges} were asked for")
        check("more from the cache" in again.stderr, again.stderr)
        site.files["m/model.safetensors"] = big(n=24)
        site.faults["m/model.safetensors"] = lambda handler, _, number: number > 9 and rs.send(handler, 404)
        site.forget()
        fails([path, "--cache", kept, "--threads", "1"], "no such file (404)")
        site.faults = {}
        site.forget()
        goes_on = run(path, "--json", "-", "--cache", kept)
        ranges = [span for name, span, _ in site.log if name.endswith("model.safetensors")]
        check(goes_on.returncode == 0 and len(ranges) <= 24, f"goes on with {len(ranges)} requests")
        check(figures(goes_on) == figures(run(path, "--json", "-")), "other figures after an interruption")
        site.files["m/model.safetensors"] = big(expert=699)
        other = run(path, "--json", "-", "--cache", kept)
        check(figures(other) != figures(before), "a changed file was taken from the cache")
        answer = run(path, FAMILIES / "olmoe", "--cache", FAMILIES / "olmoe" / "x")
        check(answer.returncode == 1 and not (FAMILIES / "olmoe" / "x").exists(), f"--cache: {answer.stderr}")
        check(not (pathlib.Path("kept")).exists(), "a folder beside")
    site.close()


def tls():
    """A certificate of the test's own: refused, unless SSL_CERT_FILE names it; and for its own name only."""
    if not shutil.which("openssl"):
        return
    site = site_of(FAMILIES / "olmoe", "m")
    with scratch_folder() as place:
        key, certificate = place / "key.pem", place / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                        "/CN=a test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out",
                        certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        site.server.socket = context.wrap_socket(site.server.socket, server_side=True)
        url = site.url.replace("http:", "https:") + "/m"
        fails([url], "the certificate of 127.0.0.1", "is not valid")
        check(not site.log, f"requests to an unknown server: {site.log}")
        same(FAMILIES / "olmoe", url, SSL_CERT_FILE=str(certificate))
        fails([url.replace("127.0.0.1", "localhost")], "certificate", SSL_CERT_FILE=str(certificate))
        site.faults["m/config.json"] = rs.redirect("http://127.0.0.1:1/x")
        fails([url], "is not protected on its way", SSL_CERT_FILE=str(certificate))
    site.close()


def without_libcurl():
    with scratch_folder() as place:
        (place / "libcurl.so.4").write_bytes(b"")
        fails(["hf://a/b"], "couplet: hf://a/b: checkpoints on servers need libcurl", "libcurl4", LD_LIBRARY_PATH=str(place))
        answer = run(FAMILIES / "olmoe", LD_LIBRARY_PATH=str(place))
        check(answer.returncode == 0, f"a local folder needs libcurl: {answer.stderr}")


for part in (tls, without_libcurl, web, vocabulary, many_requests, proxies, what_is_asked, mixed, hub, signatures, refusals, lies, cache):
    if len(sys.argv) < 3 or part.__name__ in sys.argv[2:]:
        part()
sys.exit(finish())
