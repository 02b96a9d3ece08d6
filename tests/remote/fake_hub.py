#!/usr/bin/env python3
"""fake_hub.py: two hosts that play a model hub, on this machine, with the tests' own TLS, and a host without TLS.

The hub (https://127.0.0.1:PORT) has the layout of the Hugging Face hub, as its client library reads it:

    /ORG/NAME/resolve/REVISION/FILE   large files: 302 to a signed address of the store, which expires; others: 307 to
                                      /api/resolve-cache/models/... of the hub, whose address is relative
    /api/models/ORG/NAME/revision/REVISION      the names of all files ("siblings")

with X-Repo-Commit, X-Linked-ETag, X-Linked-Size and Accept-Ranges of an answer that redirects; 401 and 403 with
X-Error-Code and X-Error-Message. The store (https://127.0.0.2:PORT, another name and port) gives ranges of files whose
signature fits and has not expired, otherwise 403. Its ETag is not the hub's X-Linked-ETag, as on the real hub. All
hosts have plain folders, /files/NAME/FILE. The host without TLS has only these (http://127.0.0.1:PORT).

Every request is kept (`FakeHub.seen`). `FakeHub.misbehave` makes answers wrong: faulty_server.py. No other machine is
contacted.

    python3 tests/remote/fake_hub.py FOLDER [--name ORG/NAME] [--delay 0.025 --rate 100e6]

serves the checkpoint of a folder until it is interrupted, and prints the environment for a client."""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import hmac
import json
import pathlib
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from certificates import Certificates  # noqa: E402
from exchange import Answer, Server, error, redirect  # noqa: E402

LARGEST = 1 << 26  # bytes of a file that is read for its digest
LARGE = (".safetensors", ".gguf", ".bin")  # kept in the store
ACCESS, OUTSIDER = "hf_tokenwithaccess", "hf_tokenwithoutaccess"
REFUSED = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>AccessDenied</Code><Message>{}</Message></Error>'


# ---- checkpoints ----


@functools.lru_cache(1 << 16)
def digest_of(path, kind, _changed, _size):
    return hashlib.new(kind, path.read_bytes()).hexdigest()


def digest(path, kind):
    """Returns the digest of the current content, or for a large file of its name and date."""
    now = path.stat()
    if now.st_size > LARGEST:
        return hashlib.new(kind, f"{path} {now.st_mtime_ns} {now.st_size}".encode()).hexdigest()
    return digest_of(path, kind, now.st_mtime_ns, now.st_size)


@dataclasses.dataclass
class Repository:
    name: str
    folder: pathlib.Path
    gated: bool = False
    revisions: dict = dataclasses.field(default_factory=dict)  # branch or tag -> folder, if it is a different one
    moved_to: str = ""  # its new name

    def folder_of(self, revision):
        if revision in ("main", self.commit("main")):
            return self.folder
        for name, folder in self.revisions.items():
            if revision in (name, self.commit(name)):
                return folder
        return None

    def commit(self, revision):
        if re.fullmatch("[0-9a-f]{40}", revision):
            return revision
        return hashlib.sha1(f"{self.name} {revision}".encode()).hexdigest()

    @staticmethod
    def files(folder):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---- the hosts ----


class FakeHub:
    """Runs all hosts, as a context manager. `work`: a folder for certificates."""

    def __init__(self, work):
        self.certificates = Certificates(pathlib.Path(work) / "certificates")
        self.repositories, self.folders, self.faults = {}, {}, []
        self.seen, self.broken, self.lock, self.stopping = [], [], threading.Lock(), threading.Event()
        self.lifetime, self.generation = 3600, 0  # seconds; addresses of older generations are refused
        self.at_once = self.most_at_once = 0  # number of bodies on their way
        self.store_url = None  # a server in place of the store for the folder of a repository, such as nginx
        self.hub = Server(self, "hub", "127.0.0.1", self.certificates.context())
        self.store = Server(self, "store", "127.0.0.2", self.certificates.context())
        self.plain = Server(self, "plain", "127.0.0.1", None)
        self.hosts = (self.hub, self.store, self.plain)

    def __enter__(self):
        for server in self.hosts:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for server in self.hosts:
            server.shutdown()
            server.server_close()

    def environment(self, **more):
        return self.certificates.environment() | {"HF_ENDPOINT": self.hub.url} | more

    def use_certificate(self, host, which):
        """Sets the certificate of later connections."""
        getattr(self, host).context = self.certificates.context(which)

    # repositories and folders

    def add(self, name, folder, **how):
        self.repositories[name] = Repository(name, pathlib.Path(folder), **how)
        return f"hf://{name}"

    def serve(self, name, folder, host="store"):
        """Gives all hosts a plain folder. Returns its address."""
        self.folders[name] = pathlib.Path(folder)
        return f"{getattr(self, host).url}/files/{name}"

    def expire(self):
        """Refuses all addresses that were signed before."""
        self.generation += 1

    # requests

    @contextlib.contextmanager
    def underway(self):
        with self.lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1

    def clear(self):
        with self.lock:
            self.seen.clear()
            self.most_at_once = self.at_once
        self.faults.clear()

    def bodies(self, pattern=""):
        """Returns the requests that were answered with bytes of a file."""
        with self.lock:
            return [
                one
                for one in self.seen
                if one.file and one.status in (200, 206) and one.method == "GET" and re.search(pattern, one.file)
            ]

    def asked_bytes(self, pattern=""):
        return sum(one.range[1] - one.range[0] + 1 for one in self.bodies(pattern) if one.range)

    def misbehave(self, fault, host=".*", path="", times=None, skip=0):
        """Lets `fault` answer requests of a host whose path or file matches: `times` of them after the first `skip`."""
        self.faults.append({"fault": fault, "host": host, "path": path, "left": times, "skip": skip})

    # answers

    def answer(self, seen):
        with self.lock:
            self.seen.append(seen)
        asked = seen.range

        def make(ranges=True):
            seen.range = asked if ranges else None
            parts = seen.path.split("/", 3)
            if len(parts) > 3 and parts[1] == "files":
                return self.of_folder(seen, self.folders.get(parts[2]), parts[3])
            if seen.host == "plain":
                return error(404, "", "Not Found")
            return self.of_hub(seen) if seen.host == "hub" else self.of_store(seen)

        right = make()  # sets the name of the file
        with self.lock:
            fault = self.fault_of(seen)
        answer = fault(seen, make) if fault else right
        seen.status = answer.status
        return answer

    def fault_of(self, seen):
        for one in self.faults:
            if not re.fullmatch(one["host"], seen.host) or not re.search(
                one["path"], f"{seen.path} {seen.file}".strip()
            ):
                continue
            if one["skip"]:
                one["skip"] -= 1
            elif one["left"] is None or one["left"] > 0:
                one["left"] = one["left"] and one["left"] - 1
                return one["fault"]
        return None

    def of_hub(self, seen):
        parts = [part for part in seen.path.split("/") if part]
        if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "revision":
            return self.of_list(seen, "/".join(parts[2:4]), parts[5])
        if parts[:3] == ["api", "resolve-cache", "models"] and len(parts) > 6:
            return self.of_repository(seen, "/".join(parts[3:5]), parts[5], "/".join(parts[6:]), True)
        if len(parts) > 4 and parts[2] == "resolve":
            return self.of_repository(seen, "/".join(parts[:2]), parts[3], "/".join(parts[4:]), False)
        return error(404, "", "Sorry, we can't find the page you are looking for.")

    def refusal(self, seen, name):
        """Refuses strangers without a hint whether the repository exists."""
        repository = self.repositories.get(name)
        if not repository and seen.token not in (ACCESS, OUTSIDER):
            return error(401, "RepoNotFound", "Invalid username or password.")
        if not repository:
            return error(404, "RepoNotFound", "Repository not found")
        if not repository.gated or seen.token == ACCESS:
            return None
        restricted = f"Access to model {name} is restricted"
        if seen.token != OUTSIDER:
            return error(
                401,
                "GatedRepo",
                restricted + ". You must have access to it and be authenticated to access it. Please log in.",
            )
        return error(
            403,
            "GatedRepo",
            f"{restricted} and you are not in the authorized list. Visit {self.hub.url}/{name} to ask for access.",
        )

    def of_repository(self, seen, name, revision, file, cached):
        refused = self.refusal(seen, name)
        if refused:
            return refused
        repository = self.repositories[name]
        if repository.moved_to:
            return redirect(307, f"/{repository.moved_to}/resolve/{revision}/{file}")
        folder, commit = repository.folder_of(revision), repository.commit(revision)
        if not folder:
            return error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        path = inside(folder, file)
        if not path:
            return error(404, "EntryNotFound", "Entry not found", **{"X-Repo-Commit": commit})
        if cached:
            return self.of_file(seen, path, file, digest(path, "sha1"), {"X-Repo-Commit": commit})
        linked = {"X_Repo_Commit": commit, "Accept_Ranges": "bytes", "X_Linked_Size": str(path.stat().st_size)}
        if path.suffix in LARGE:
            seen_hash = digest(path, "sha256")
            return redirect(
                302,
                self.sign(path, seen_hash, file),
                X_Linked_ETag=f'"{seen_hash}"',
                ETag=f'"{seen_hash[:40]}"',
                **linked,
            )
        place = f"/api/resolve-cache/models/{name}/{commit}/{urllib.parse.quote(file)}"
        return redirect(307, place, X_Linked_ETag=f'"{digest(path, "sha1")}"', **linked)

    def of_list(self, seen, name, revision):
        refused = self.refusal(seen, name)
        if refused:
            return refused
        repository = self.repositories[name]
        if repository.moved_to:
            return redirect(307, f"/api/models/{repository.moved_to}/revision/{revision}")
        folder = repository.folder_of(revision)
        if not folder:
            return error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = [{"rfilename": file} for file in repository.files(folder)]
        body = {"id": name, "sha": repository.commit(revision), "gated": repository.gated, "siblings": files}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def of_folder(self, seen, folder, file):
        path = inside(folder, file) if folder else None
        return self.of_file(seen, path, file, digest(path, "sha1")) if path else error(404, "", "Not Found")

    # the store

    def signature(self, path, expires):
        secret = f"secret {self.generation}".encode()
        return hmac.new(secret, f"{path} {expires}".encode(), "sha256").hexdigest()

    def sign(self, path, content, file):
        """Returns the address of a file in the store. The real address names the content, so this one has the path."""
        if self.store_url:
            return f"{self.store_url}/{urllib.parse.quote(file)}"
        place, expires = f"/repos/{content[:2]}/{content}", int(time.time() + self.lifetime)
        with self.lock:
            self.folders[place] = path
        disposition = urllib.parse.quote(f'inline; filename="{path.name}"')
        return (
            f"{self.store.url}{place}?response-content-disposition={disposition}&Expires={expires}"
            f"&Signature={self.signature(place, expires)}&Key-Pair-Id=K1"
        )

    def of_store(self, seen):
        with self.lock:
            path = self.folders.get(seen.path)
        if seen.headers.get("authorization"):
            return Answer(
                400, {"Content-Type": "application/xml"}, REFUSED.format("Only one auth mechanism allowed").encode()
            )
        expires = seen.query.get("Expires", "0")
        fits = path and seen.query.get("Signature") == self.signature(seen.path, expires)
        if not fits or int(expires) < time.time():
            return Answer(
                403,
                {"Content-Type": "application/xml"},
                REFUSED.format("Request has expired" if fits else "Access denied").encode(),
            )
        return self.of_file(seen, path, path.name, digest(path, "md5") + "-1")

    # files

    @staticmethod
    def of_file(seen, path, file, etag, headers=None):
        """Returns the file, or the requested range, with If-Match and If-Range by RFC 9110."""
        size, seen.file, quoted = path.stat().st_size, file, f'"{etag}"'
        headers = {"ETag": quoted, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"} | (
            headers or {}
        )
        if seen.headers.get("if-match", quoted) not in (quoted, "*"):
            return Answer(412, headers)
        whole = Answer(200, headers, path=path, range=(0, size - 1)) if size else Answer(200, headers)
        asked, seen.range = seen.range, whole.range
        if asked is None or seen.headers.get("if-range", quoted) != quoted:
            return whole
        first, last = asked
        first = max(size + first, 0) if first < 0 else first
        last = size - 1 if last is None else min(last, size - 1)
        if first > last:
            return Answer(416, headers | {"Content-Range": f"bytes */{size}"})
        seen.range = first, last
        return Answer(206, headers | {"Content-Range": f"bytes {first}-{last}/{size}"}, path=path, range=(first, last))


def inside(folder, file):
    if "\0" in file:
        return None
    path = (folder / file).resolve()
    return path if path.is_relative_to(folder.resolve()) and path.is_file() else None


def main():
    from slow_link import SlowLink  # noqa: PLC0415  (slow_link.py stands alone)

    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--name", default="org/model")
    parser.add_argument("--rate", type=float, default=0, help="bytes a second of the store; 0: as fast as it can")
    parser.add_argument("--delay", type=float, default=0, help="seconds each way")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, FakeHub(work) as servers, contextlib.ExitStack() as stack:
        print(f"# couplet inspect {servers.add(options.name, options.folder)}")
        if options.rate or options.delay:
            shaped = stack.enter_context(
                SlowLink(f"127.0.0.2:{servers.store.server_address[1]}", options.rate, options.delay)
            )
            servers.store.url = f"https://127.0.0.1:{shaped.port}"
        for name, value in servers.environment().items():
            print(f"export {name}={shlex.quote(value)}", flush=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
