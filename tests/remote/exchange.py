"""exchange.py: a host of tests, with TLS if it has a certificate: the record of a request, the form of an answer, and a
server that sends it, with the faults that the answer names. fake_hub.py chooses the answers."""

import contextlib
import dataclasses
import http.server
import json
import pathlib
import re
import socket
import struct
import sys
import time
import urllib.parse

CHUNK = 1 << 18


# ---- the record of a request, and the answer ----


@dataclasses.dataclass
class Request:
    host: str  # "hub", "store" or "plain"
    method: str
    target: str  # path and query as they came
    headers: dict  # names in lower case
    connection: int  # the client's port
    file: str = ""  # the name of the file in its folder
    range: tuple | None = None  # as `parse_range`; once a file is answered, its first and last byte
    status: int = 0
    sent: int = 0  # bytes of the body
    at: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def path(self):
        return urllib.parse.unquote(urllib.parse.urlsplit(self.target).path)

    @property
    def query(self):
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.target).query))

    @property
    def token(self):
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclasses.dataclass
class Answer:
    status: int = 200
    headers: dict = dataclasses.field(default_factory=dict)  # a list of values: one header for each
    body: object = b""  # bytes, or an iterable of them
    length: int | None = None  # the Content-Length; None: that of the bytes, or no Content-Length for an iterable
    path: pathlib.Path | None = None  # the file of the body
    range: tuple | None = None  # first and last byte of the file
    cut: int | None = None  # bytes of the body, after which the connection is reset
    pause: float = 0  # seconds after each piece of the body
    piece: int = CHUNK
    raw: object = None  # an iterable of bytes that is sent in place of status, headers and body

    def pieces(self):
        if self.path and self.range:
            return read_pieces(self.path, *self.range, self.piece)
        body = [self.body] if isinstance(self.body, bytes) else self.body
        return (part[at : at + self.piece] for part in body for at in range(0, len(part) or 1, self.piece))

    def promised(self):
        if self.length is not None or not isinstance(self.body, bytes):
            return self.length
        return self.range[1] - self.range[0] + 1 if self.path and self.range else len(self.body)


def read_pieces(path, first, last, size):
    with open(path, "rb") as file:
        file.seek(first)
        left = last - first + 1
        while left > 0 and (part := file.read(min(size, left))):
            left -= len(part)
            yield part


def error(status, code, message, **headers):
    """Returns an error of the hub."""
    known = {"X-Error-Code": code, "X-Error-Message": message, "Content-Type": "application/json"} if code else {}
    return Answer(status, known | headers, json.dumps({"error": message}).encode())


def redirect(status, location, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status, {"Location": location, "Content-Type": "text/plain"} | named, f"Redirecting to {location}".encode()
    )


def parse_range(text):
    """Returns (first, last), (first, None), or (-n, None) for the last n bytes, or None if it is no single range."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if not found or not (found[1] or found[2]):
        return None
    if not found[1]:
        return -int(found[2]), None
    return int(found[1]), int(found[2]) if found[2] else None


# ---- a host ----


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, server_version, sys_version = "HTTP/1.1", "servers", ""
    timeout = 60

    def setup(self):
        self.request.settimeout(self.timeout)
        if self.server.context:
            self.request.do_handshake()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        host = self.server.host
        seen = Request(
            host,
            self.command,
            self.path,
            {name.lower(): value for name, value in self.headers.items()},
            self.client_address[1],
            range=parse_range(self.headers.get("Range")),
        )
        try:
            self.deliver(self.server.servers.answer(seen), seen)
        except OSError:  # the client has gone
            self.close_connection = True

    do_HEAD = do_POST = do_CONNECT = do_GET

    def deliver(self, answer, seen):
        if answer.raw is not None:
            self.close_connection = True
            for part in answer.raw:
                seen.sent += len(part)
                self.wfile.write(part)
            return
        length = answer.promised()
        self.send_response(answer.status)
        for name, values in answer.headers.items():
            for value in values if isinstance(values, list) else [values]:
                self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            with self.server.servers.underway():
                self.deliver_body(answer, seen)

    def deliver_body(self, answer, seen):
        for part in answer.pieces():
            if answer.cut is not None:
                part = part[: answer.cut - seen.sent]
            seen.sent += len(part)  # first, so that the bytes are counted before a client has all of them
            self.wfile.write(part)
            if answer.cut is not None and seen.sent >= answer.cut:
                return self.reset()
            if answer.pause and self.server.servers.stopping.wait(answer.pause):
                return self.reset()
        if answer.length is not None and seen.sent < answer.length:
            self.reset()

    def reset(self):
        """Closes without TLS's goodbye and with RST."""
        self.close_connection = True
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        socket.socket(fileno=self.request.detach()).close()
        self.rfile, self.wfile = open("/dev/null", "rb"), open("/dev/null", "wb")


class Server(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close, request_queue_size = True, False, 256

    def __init__(self, servers, host, name, context):
        super().__init__((name, 0), Handler)
        self.servers, self.host, self.context = servers, host, context
        self.url = f"{'https' if context else 'http'}://{name}:{self.server_address[1]}"

    def get_request(self):
        connection, address = super().get_request()
        if not self.context:
            return connection, address
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request, client_address):
        """Ignores clients that have gone, or that do not trust the certificate: they are part of the tests."""
        self.servers.broken.append(repr(sys.exc_info()[1]))

    def shutdown_request(self, request):
        with contextlib.suppress(OSError):
            super().shutdown_request(request)
