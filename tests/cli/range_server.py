"""range_server.py: an HTTP server of files in memory, for one test: ranges, ETags, redirects to a
second host, a hub's list of files, and lies on request."""
import email.utils
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse


class Server(http.server.ThreadingHTTPServer):
    """A client that goes away is no news."""
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_):
        pass


class Site:
    """The files of a server: name -> bytes. `faults`: name -> a function of (handler, bytes, number of the
    request for this file) that answers itself and returns True, or returns False."""

    def __init__(self):
        self.files, self.faults, self.counts, self.log = {}, {}, {}, []
        self.lock = threading.Lock()
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                site.answer(self)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def forget(self):
        self.counts, self.log = {}, []

    def answer(self, handler):
        path = urllib.parse.unquote(handler.path.split("?")[0]).lstrip("/")
        with self.lock:
            number = self.counts[path] = self.counts.get(path, 0) + 1
            self.log.append((path, handler.headers.get("Range"), handler.headers.get("Authorization")))
        body = self.files.get(path)
        fault = self.faults.get(path) or self.faults.get("")
        try:
            if fault and fault(handler, body, number):
                return
            if body is None:
                send(handler, 404)
            else:
                send_range(handler, body)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True


def send(handler, code, body=b"", **headers):
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
    return True


def tag_of(body):
    return '"' + hashlib.sha256(body).hexdigest()[:32] + '"'


def asked(handler, body):
    """The range asked for as (begin, end), or None."""
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    return match and (int(match[1]), min(int(match[2]) + 1, len(body)))


def send_range(handler, body, **headers):
    if "ETag" not in headers:
        headers["ETag"] = tag_of(body)
    span = asked(handler, body)
    if not span:
        return send(handler, 200, body, **headers)
    begin, end = span
    if begin >= len(body):
        return send(handler, 416, Content_Range=f"bytes */{len(body)}")
    return send(handler, 206, body[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(body)}", **headers)


class Sparse:
    """A file of which only the beginning is there; the rest is zeros."""

    def __init__(self, begin, length):
        self.begin, self.length = begin, length

    def __len__(self):
        return self.length

    def __getitem__(self, span):
        start, stop, _ = span.indices(self.length)
        known = self.begin[start:stop]
        return known + bytes(stop - start - len(known))


# ---- lies ----

def at(numbers, fault):
    """The fault at these requests for a file, counted from 1."""
    return lambda handler, body, number: number in numbers and fault(handler, body, number)


def cut(after):
    """Announces all of the range and closes the connection after so many bytes of it."""
    def fault(handler, body, _):
        begin, end = asked(handler, body) or (0, len(body))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(body)}")
        handler.send_header("Content-Length", str(end - begin))
        handler.send_header("ETag", tag_of(body))
        handler.end_headers()
        handler.wfile.write(body[begin:min(end, begin + after)])
        handler.close_connection = True
        return True
    return fault


def code(number, **headers):
    return lambda handler, *_: send(handler, number, b"an error page", **headers)


def whole(handler, body, _):
    """No ranges: the whole file, and more than anybody wants."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 40))
    handler.end_headers()
    for _ in range(1 << 10):
        handler.wfile.write(bytes(1 << 16))
    handler.close_connection = True
    return True


def headers(**others):
    return lambda handler, body, _: send_range(handler, body, **others)


def moved_range(handler, body, _):
    """Other bytes than those asked for."""
    begin, end = asked(handler, body)
    return send(handler, 206, body[begin:end], Content_Range=f"bytes {begin + 1}-{end}/{len(body)}",
                ETag=tag_of(body))


def redirect(url, **others):
    return lambda handler, *_: send(handler, 302, Location=url, **others)


# ---- a hub ----

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def hub(repository, files, weights):
    """A hub, and the second host that its large files are on: those whose name `weights` accepts. Each way
    there is signed, and `expire` ends the signatures given so far."""
    front, store = Site(), Site()
    state = {"signature": 0, "oldest": 0, "refuse": False}

    def list_files(handler, *_):
        text = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        return send(handler, 200, text.encode())

    def sign(name):
        def fault(handler, *_):
            state["signature"] += 1
            body = files[name]
            return send(handler, 302, Location=f"{store.url}/{name}?signature={state['signature']}",
                        X_Linked_Size=str(len(body)), X_Linked_ETag=f'"linked-{tag_of(body)[1:]}')
        return fault

    def check(handler, *_):
        signature = int(re.search(r"signature=(\d+)", handler.path)[1])
        return (state["refuse"] or signature <= state["oldest"]) and send(handler, 403)

    for revision in ("main", COMMIT):
        front.faults[f"api/models/{repository}/revision/{revision}"] = list_files
        for name, body in files.items():
            front.files[f"{repository}/resolve/{revision}/{name}"] = body
            if weights(name):
                front.faults[f"{repository}/resolve/{revision}/{name}"] = sign(name)
    store.files.update(files)
    store.faults[""] = check
    front.state = state
    return front, store
