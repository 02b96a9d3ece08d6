#!/usr/bin/env python3
"""check_remote_families.py COUPLET: the small checkpoints of tests/golden from a web server, with the figures of the
local files: every family, GGUF, silhouettes, beside a local one; words that need no server, and data that must not
leave this machine."""

import struct
import sys

import remote_case
from faulty_server import redirects
from gguf_file import Gguf
from inputs import GOLDEN
from program import bad, check, good, in_json, scratch_folder

FAMILIES = GOLDEN / "families"
LONGEST_LIST = 3e6  # bytes of the vocabulary, at least


def same(one, local, remote, *flags, **how):
    check(one.json(remote, *flags, **how) == one.json(local, *flags), f"{remote} {flags}: other figures than {local}")


def check_families(one):
    """A gate that shares its tensor with the up half is reported."""
    folders = sorted(path for path in FAMILIES.iterdir() if path.is_dir())
    check(len(folders) >= 7, f"{len(folders)} families")
    for folder in folders:
        place = one.servers.serve(folder.name, folder)
        same(one, folder, place)
        _, err, _ = one.run(place, "--dry-run")
        check(" to fetch in " in err and ("come along" in err) == (folder.name == "gpt_oss"), f"{folder.name}: {err!r}")
    check(not any("authorization" in seen.headers for seen in one.servers.seen), "a web server got a token")


def check_files(one):
    folder = FAMILIES / "qwen3_moe"
    place = one.servers.serve("qwen3_moe", folder)
    same(one, folder / "model.safetensors", f"{place}/model.safetensors", "--layers", 1)
    moe = GOLDEN / "gguf" / "moe"
    for path in sorted(moe.glob("*.gguf")):
        same(one, path, f"{one.servers.serve('gguf', moe)}/{path.name}")


def check_silhouettes(one):
    """The gates are read twice."""
    folder = FAMILIES / "qwen3_moe"
    same(one, folder, one.servers.serve("qwen3_moe", folder), "--silhouette", "--threads", 3)


def check_mixed(one):
    """Inspects a local checkpoint and a server's in one call, of different families."""
    place = one.servers.serve("olmoe", FAMILIES / "olmoe")
    check(
        one.json(FAMILIES / "mixtral", place) == one.json(FAMILIES / "mixtral", FAMILIES / "olmoe"),
        "mixed: other figures",
    )


def check_vocabulary(one):
    """A GGUF file may have its vocabulary before the tensors: it is read front to back in few requests."""
    source = GOLDEN / "gguf" / "moe" / "llama.gguf"
    raw, end = source.read_bytes(), Gguf(source).at
    words = [f"word {i}".encode() for i in range(200000)]
    key = b"tokenizer.ggml.tokens"
    pair = (
        struct.pack("<Q", len(key))
        + key
        + struct.pack("<IIQ", 9, 8, len(words))
        + b"".join(struct.pack("<Q", len(word)) + word for word in words)
    )
    head = raw[:16] + struct.pack("<Q", 1 + struct.unpack_from("<Q", raw, 16)[0]) + pair + raw[24:end]
    folder = one.work / "vocabulary"
    folder.mkdir()
    (folder / "x.gguf").write_bytes(head + bytes(-len(head) % 32) + raw[(end + 31) // 32 * 32 :])
    place = one.servers.serve("vocabulary", folder)
    same(one, folder / "x.gguf", f"{place}/x.gguf")
    one.servers.clear()
    one.run(f"{place}/x.gguf", "--dry-run")
    spans = one.spans()["x.gguf"]
    check(len(pair) > LONGEST_LIST and len(spans) <= 5, f"{len(pair)} bytes took the requests {spans}")


def check_proxies(one):
    """An unprotected request does not leave this machine by a proxy. A protected one to which it is redirected goes by
    the proxy."""
    nowhere, far = "http://127.0.0.1:1", "store.example.invalid"
    place = one.servers.serve("olmoe", FAMILIES / "olmoe", "plain")
    one.servers.clear()
    same(one, FAMILIES / "olmoe", place, env={"http_proxy": nowhere, "all_proxy": nowhere})
    check({seen.host for seen in one.servers.seen} == {"plain"}, "without TLS: another host")
    one.servers.clear()
    one.servers.misbehave(redirects(f"https://{far}/x"), "plain", r"\.safetensors$")
    env = {"http_proxy": nowhere, "https_proxy": one.servers.plain.url}
    one.fails(r"cannot reach .*CONNECT.* [(]5 tries[)]", place, env=env, what="a redirect that needs the proxy")
    asked = {seen.target for seen in one.servers.seen if seen.method == "CONNECT"}
    check(asked == {f"{far}:443"}, f"the proxy was asked for {asked}")
    one.servers.clear()


def check_without_libcurl(one):
    """If libcurl cannot be loaded, the package to install is named, and a local path is still read."""
    with scratch_folder() as place:
        (place / "libcurl.so.4").write_bytes(b"")
        environment = one.environment(LD_LIBRARY_PATH=str(place), HF_ENDPOINT="")
        bad(1, ["hf://a/b: checkpoints on servers need libcurl", "libcurl4"], "inspect", "hf://a/b", env=environment)
        check(
            in_json("inspect", FAMILIES / "olmoe", env=environment) == in_json("inspect", FAMILIES / "olmoe"),
            "without libcurl: other figures of a local folder",
        )
        good("version", env=environment)


def body(one):
    remote_case.groups(
        {
            "families": lambda: check_families(one),
            "files": lambda: check_files(one),
            "silhouettes": lambda: check_silhouettes(one),
            "mixed": lambda: check_mixed(one),
            "vocabulary": lambda: check_vocabulary(one),
            "proxies": lambda: check_proxies(one),
            "without_libcurl": lambda: check_without_libcurl(one),
        }
    )


if __name__ == "__main__":
    sys.exit(remote_case.main(body))
