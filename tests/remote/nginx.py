"""nginx.py: Debian's nginx (package nginx-light) as a process of the tests, with TLS, HTTP/2, ranges, for one
folder."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

# One process: a killed master would leave its workers.
CONFIG = """\
daemon off;
master_process off;
pid {work}/pid;
error_log {work}/error.log;
events {{ worker_connections 512; }}
http {{
    log_format seen '$server_protocol|$request_method|$uri|$http_range|$status|$body_bytes_sent|$connection|$http_authorization';
    access_log {work}/access.log seen;
    client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
    keepalive_requests {requests};
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port} ssl http2 reuseport;
        listen 127.0.0.2:{port} ssl http2 reuseport;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {folder};
    }}
}}
"""


def missing():
    """Returns the reason why there can be no nginx here, or ""."""
    return "" if program() else "nginx (package nginx-light) is not here"


def program():
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def die_with_parent():
    """Runs in the child: it gets SIGTERM when the test ends in any way (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclasses.dataclass
class Line:
    protocol: str
    method: str
    path: str
    range: str
    status: int
    sent: int
    connection: int
    authorization: str


class Nginx:
    """Serves `folder` at `url` as a context manager. `certificates`: of certificates.py. After `requests` requests a
    client must connect again. 1,000 is nginx's default."""

    def __init__(self, folder, work, certificates, requests=1000):
        self.folder, self.work, self.certificates = (
            pathlib.Path(folder).resolve(),
            pathlib.Path(work).resolve(),
            certificates,
        )
        self.requests = requests
        self.work.mkdir(parents=True, exist_ok=True)
        self.process, self.port = None, 0

    def __enter__(self):
        for _ in range(5):  # another process may take the port meanwhile
            self.port = free_port()
            if self.start():
                return self
        raise RuntimeError(f"nginx does not start: {(self.work / 'error.log').read_text()[-2000:]}")

    def start(self):
        certificate, key = self.certificates.good
        (self.work / "nginx.conf").write_text(
            CONFIG.format(
                work=self.work,
                port=self.port,
                folder=self.folder,
                certificate=certificate,
                key=key,
                requests=self.requests,
            )
        )
        words = ["-c", self.work / "nginx.conf", "-p", self.work, "-e", self.work / "error.log"]
        self.process = subprocess.Popen([program(), *words], stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)  # noqa: PLW1509
        for _ in range(200):
            if self.process.poll() is not None:
                return False
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return True
            time.sleep(0.02)
        self.stop()
        return False

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __exit__(self, *_):
        self.stop()

    @property
    def url(self):
        return f"https://127.0.0.2:{self.port}"

    def lines(self):
        """Returns the requests that have ended, in their order. nginx writes a line a little later."""
        time.sleep(0.2)
        rows = [text.split("|") for text in (self.work / "access.log").read_text().splitlines()]
        return [Line(*row[:4], *map(int, row[4:7]), row[7]) for row in rows]
