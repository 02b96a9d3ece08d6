"""faulty_server.py: faults of servers, for `FakeHub.misbehave`. A fault is a function of the request and of `make`,
which gives the right answer (`make(ranges=False)`: that of a server without ranges). Functions here return a fault, or
are one."""

import email.utils
import gzip
import itertools
import time

from exchange import Answer

HUGE = 690 << 30
ESCAPES = b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x00\r\n\x9b31m\xe2\x80\xae"


def endless(piece=b"\0" * (1 << 16)):
    return itertools.repeat(piece)


# ---- ranges ----


def ignores_ranges(seen, make):
    """Sends the whole file, as servers without ranges do."""
    answer = make(ranges=False)
    answer.headers.pop("Accept-Ranges", None)
    return answer


def ignores_ranges_endlessly(seen, make):
    """Sends a whole file of 690 GB, of zeros."""
    answer = make()
    kept = {name: value for name, value in answer.headers.items() if name == "ETag"}
    return Answer(200, kept, endless(), HUGE)


def never_ends(seen, make):
    """Sends a whole file of unknown length."""
    return Answer(200, {"ETag": make().headers.get("ETag", '"x"')}, endless())


def not_satisfiable(seen, make):
    answer = make()
    return Answer(416, {"ETag": answer.headers.get("ETag", '"x"'), "Content-Range": "bytes */12"})


def other_range(seen, make):
    """Sends the right number of bytes, from 64 bytes later or earlier on, with a true Content-Range."""
    answer = make()
    if answer.status == 206:
        size = answer.path.stat().st_size
        shift = 64 if answer.range[1] + 64 < size else -min(64, answer.range[0])
        first, last = (at + shift for at in answer.range)
        answer.range, answer.headers["Content-Range"] = (first, last), f"bytes {first}-{last}/{size}"
    return answer


def other_size(seen, make):
    """Sends a Content-Range in which the file is longer by one byte than before."""
    answer = make()
    if answer.status == 206:
        first, last = answer.range
        answer.headers["Content-Range"] = f"bytes {first}-{last}/{answer.path.stat().st_size + 1}"
    return answer


def unsaid_range(seen, make):
    """Sends 206 without Content-Range."""
    answer = make()
    answer.headers.pop("Content-Range", None)
    return answer


def senseless_range(text):
    def fault(seen, make):
        answer = make()
        answer.headers["Content-Range"] = text
        return answer

    return fault


def shorter(by=1):
    """Sends a part of the range, with true Content-Range and Content-Length."""

    def fault(seen, make):
        answer = make()
        if answer.status == 206:
            first, last = answer.range
            last = max(first, last - by)
            answer.range, answer.headers["Content-Range"] = (
                (first, last),
                f"bytes {first}-{last}/{answer.path.stat().st_size}",
            )
        return answer

    return fault


def falls_short(by=1):
    """Sends the Content-Range of the request, with fewer bytes in Content-Length and body."""

    def fault(seen, make):
        answer = make()
        if answer.status == 206:
            answer.range = answer.range[0], max(answer.range[0], answer.range[1] - by)
        return answer

    return fault


def goes_on(seen, make):
    """Sends more bytes than the requested range, without end."""
    answer = make()
    if answer.status == 206:
        return Answer(206, answer.headers, itertools.chain(answer.pieces(), endless()))
    return answer


def gzipped(seen, make):
    """Sends the right range, with a Content-Encoding that was not requested."""
    answer = make()
    if not answer.path:
        return answer
    body = gzip.compress(b"".join(answer.pieces()))
    return Answer(answer.status, answer.headers | {"Content-Encoding": "gzip"}, body)


# ---- connections ----


def cut(after=100):
    """Resets the connection after `after` bytes of the body."""

    def fault(seen, make):
        answer = make()
        answer.cut, answer.length = after, answer.promised()
        return answer

    return fault


def hangs_up(seen, make):
    """Closes the connection without an answer."""
    return Answer(0, raw=[])


def garbage(seen, make):
    return Answer(0, raw=[b"SSH-2.0-OpenSSH_9.2p1\r\n" + bytes(range(256)) * 16])


def endless_headers(seen, make):
    lines = (b"X-More-%d: %s\r\n" % (i, b"x" * 1000) for i in itertools.count())
    return Answer(0, raw=itertools.chain([b"HTTP/1.1 200 OK\r\n"], lines))


def long_header(length=8 << 20):
    """Sends one header of `length` bytes."""

    def fault(seen, make):
        return Answer(
            0, raw=[b'HTTP/1.1 200 OK\r\nETag: "', *itertools.repeat(b"x" * (1 << 16), length >> 16), b'"\r\n\r\n']
        )

    return fault


def trickle(piece=512, pause=0.02):
    """Sends the right answer, in small pieces."""

    def fault(seen, make):
        answer = make()
        answer.piece, answer.pause = piece, pause
        return answer

    return fault


# ---- statuses ----


def status(code, body=b"", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda seen, make: Answer(code, named, body)


def hides_absence(code=403):
    """Answers that a missing file is forbidden, as a bucket does whose names may not be listed."""

    def fault(seen, make):
        answer = make()
        return Answer(code, {"Content-Type": "application/xml"}, b"<Error/>") if answer.status == 404 else answer

    return fault


def retry_after(code=429, seconds=1, as_date=False):
    def fault(seen, make):
        later = email.utils.formatdate(time.time() + seconds, usegmt=True) if as_date else str(seconds)
        return Answer(code, {"Retry-After": later}, b"Too many requests")

    return fault


def screams(code=404, megabytes=100):
    """Sends an error with a long text that has characters that move a terminal."""

    def fault(seen, make):
        text = ESCAPES + b"A line of an error.\n" * 51
        return Answer(
            code,
            {"X-Error-Message": "an error \x1b[31min red\x1b]0;title\x07"},
            itertools.repeat(text, megabytes * (1 << 20) // len(text)),
        )

    return fault


# ---- redirects ----


def redirects(location, code=302):
    """Redirects to an address, to each of a list of addresses, or to the result of a function of the request."""

    def fault(seen, make):
        return Answer(code, {"Location": location(seen) if callable(location) else location})

    return fault


def loops(seen, make):
    """Redirects to the request's own address."""
    return Answer(302, {"Location": seen.target})


def wanders(seen, make):
    """Redirects every time to another address of the host."""
    base, _, number = seen.target.partition("?hop=")
    return Answer(302, {"Location": f"{base}?hop={int(number or 0) + 1}"})


# ---- files ----


def changes(path, content):
    """Replaces the whole file at once before this answer."""

    def fault(seen, make):
        new = path.parent.parent / f"{path.name}.new"
        new.write_bytes(content)
        new.replace(path)
        return make()

    return fault


def other_tag(seen, make):
    answer = make()
    for name in ("ETag", "X-Linked-ETag"):
        if name in answer.headers:
            answer.headers[name] = '"another"'
    return answer


def without(*names):
    """Sends the right answer without these headers."""

    def fault(seen, make):
        answer = make()
        for name in names:
            answer.headers.pop(name, None)
        return answer

    return fault


def dated(seen, make):
    """Sends the right answer with Last-Modified in place of an ETag."""
    return says(Last_Modified="Sat, 01 Nov 2025 00:00:00 GMT")(seen, lambda **how: without("ETag")(seen, make))


def says(**headers):
    """Sends the right answer with these headers."""

    def fault(seen, make):
        answer = make()
        answer.headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        return answer

    return fault


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4997744872\n"
