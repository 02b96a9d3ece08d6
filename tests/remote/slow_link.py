#!/usr/bin/env python3
"""slow_link.py [HOST:]PORT [--rate BYTES/S] [--delay SECONDS] [--cut BYTES --cuts N]: a TCP proxy that imitates a slow,
long line to a server of this machine. It changes no byte, so TLS and HTTP/2 pass through it.

Both directions have a line of `rate` each, which all connections share: a piece waits for the pieces before it, for its
own bytes, and then for `delay`. A connection begins with one round trip (2 delays) in which no byte passes, as TCP's
handshake. The first `cuts` connections are reset once `cut` bytes have come from the server. At most WINDOW bytes of a
connection and direction are on their way. More bytes wait in the server. It prints its port, and ends with its standard
input. `SlowLink` runs it as a separate process."""

import argparse
import collections
import contextlib
import pathlib
import select
import socket
import struct
import subprocess
import sys
import time

PIECE = 1 << 17
WINDOW = 8 << 20  # bytes
AHEAD = 0.01  # seconds by which the line may be reserved before it is free


class Line:
    def __init__(self, rate):
        self.rate, self.free = rate, 0.0

    def send(self, now, size):
        """Returns the time when the last byte has left."""
        self.free = max(self.free, now) + (size / self.rate if self.rate else 0)
        return self.free


class Pipe:
    """One direction of a connection."""

    def __init__(self, source, sink, line, delay, opened):
        self.source, self.sink, self.line, self.delay, self.opened = source, sink, line, delay, opened
        self.queue, self.held, self.ended, self.blocked = collections.deque(), 0, False, False
        self.passed = 0

    def reads(self, now):
        return not self.ended and self.held < WINDOW and self.line.free - now < AHEAD

    def read(self, now):
        try:
            part = self.source.recv(PIECE)
        except BlockingIOError:
            return
        self.ended = not part
        due = max(self.line.send(now, len(part)) + self.delay, self.opened)
        self.queue.append((due, memoryview(part)))
        self.held += len(part)
        self.passed += len(part)

    def due(self):
        return self.queue[0][0] if self.queue and not self.blocked else None

    def write(self, now):
        """Sends the bytes that are due. Returns True at the end of the direction."""
        self.blocked = False
        while self.queue and self.queue[0][0] <= now:
            due, part = self.queue.popleft()
            if not part:
                self.sink.shutdown(socket.SHUT_WR)
                return True
            try:
                sent = self.sink.send(part)
            except BlockingIOError:
                sent = 0
            self.held -= sent
            if sent < len(part):
                self.queue.appendleft((due, part[sent:]))
                self.blocked = True
                break
        return False


class Proxy:
    def __init__(self, target, rate, delay, cut=0, cuts=0):
        self.target, self.delay, self.cut, self.cuts = target, delay, cut, cuts
        self.up, self.down = Line(rate), Line(rate)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.pairs = []  # pairs of pipes: to the server, and from the server
        self.port = self.listener.getsockname()[1]

    def accept(self, now):
        client, _ = self.listener.accept()
        try:
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened = now + 3 * self.delay  # a handshake, and the delay of the first byte
        self.pairs.append(
            (Pipe(client, server, self.up, self.delay, opened), Pipe(server, client, self.down, self.delay, opened))
        )

    def run(self):
        while self.turn():
            pass

    def turn(self):
        now = time.monotonic()
        poll, pipes = select.poll(), [pipe for pair in self.pairs for pipe in pair]
        interest = collections.defaultdict(int)
        readers = {pipe.source.fileno(): pipe for pipe in pipes if pipe.reads(now)}
        for number in readers:
            interest[number] |= select.POLLIN
        for pipe in pipes:
            if pipe.blocked:
                interest[pipe.sink.fileno()] |= select.POLLOUT
        interest[self.listener.fileno()] = interest[sys.stdin.fileno()] = select.POLLIN
        for number, events in interest.items():
            poll.register(number, events)
        ready = dict(poll.poll(self.wait(pipes, now)))
        now = time.monotonic()
        if sys.stdin.fileno() in ready:
            return False
        if self.listener.fileno() in ready:
            self.accept(now)
        for pair in list(self.pairs):
            self.move(pair, readers, ready, now)
        return True

    def wait(self, pipes, now):
        """Returns milliseconds until bytes are due or a line is free."""
        times = [pipe.due() for pipe in pipes if pipe.due() is not None]
        times += [
            pipe.line.free - AHEAD for pipe in pipes if not pipe.ended and pipe.held < WINDOW and not pipe.reads(now)
        ]
        return max(0, min(times) - now) * 1000 if times else None

    def move(self, pair, readers, ready, now):
        try:
            for pipe in pair:
                number = pipe.source.fileno()
                if ready.get(number, 0) and number in readers and pipe.reads(now):
                    pipe.read(now)
            ends = [pipe.write(now) if not pipe.blocked or pipe.sink.fileno() in ready else False for pipe in pair]
        except OSError:  # one side has reset the connection
            return self.close(pair)
        if self.cuts and pair[1].passed >= self.cut:
            self.cuts -= 1
            for pipe in pair:
                pipe.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self.close(pair)
        if all(ends) or (any(ends) and all(pipe.ended and not pipe.queue for pipe in pair)):
            self.close(pair)
        return None

    def close(self, pair):
        self.pairs.remove(pair)
        for pipe in pair:
            with contextlib.suppress(OSError):
                pipe.source.close()


class SlowLink:
    """Runs a proxy before `port` as a context manager. `port` is its own."""

    def __init__(self, port, rate=0, delay=0, cut=0, cuts=0):
        words = [
            word
            for name, value in (("rate", rate), ("delay", delay), ("cut", cut), ("cuts", cuts))
            for word in (f"--{name}", str(value))
        ]
        self.process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__), str(port), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.port = int(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("target")
    parser.add_argument("--rate", type=float, default=0, help="bytes a second; 0: no limit")
    parser.add_argument("--delay", type=float, default=0, help="seconds each way")
    parser.add_argument("--cut", type=int, default=0, help="bytes from the server, after which a connection is reset")
    parser.add_argument("--cuts", type=int, default=0, help="how many connections; 0: none")
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    proxy = Proxy((host or "127.0.0.1", int(port)), options.rate, options.delay, options.cut, options.cuts)
    print(proxy.port, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        proxy.run()


if __name__ == "__main__":
    main()
