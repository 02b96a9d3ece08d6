"""slow_link.py: two hosts on one machine: network namespaces with their own names, joined by a link of a rate and a
delay, which can be cut. Needs root, `ip` and /dev/net/tun.

Each host has one Ethernet device (a tap). A process carries the frames between them. A frame waits for the frames
before it and for its own bytes at `rate`, then for `delay`. tc's netem would have an equal effect, but many kernels
lack it. The devices accept segments of 64 KiB, so the process carries about 2,000 frames of a second at 1 Gbit/s."""

import collections
import fcntl
import multiprocessing
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import time

from ranks_case import mpi

DEVICE = "couplet0"
HOSTS = ("couplet-net-1", "couplet-net-2")
ADDRESSES = {4: ("10.77.0.1", "10.77.0.2"), 6: ("fd77::1", "fd77::2")}
ENVIRONMENT = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": DEVICE}  # environment of MPICH's ranks
HELD = 128  # frames on their way; more frames wait in the sender's device

# linux/if_tun.h
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 1, 2, 4
VNET_HEADER = 12
FRAME = VNET_HEADER + 14 + 65536 + 1024

# The command that a launcher calls in place of ssh: HOST COMMAND...
AGENT = """\
#!/bin/sh
[ "$1" != -x ] || shift
host=$1
shift
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' - "$host" "$@"
"""


def missing():
    """Returns the reason why no link can be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "the programs ip (package iproute2) and unshare (util-linux) are not here"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "there is no device /dev/net/tun"
    done = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no namespace can be made: {done.stderr.strip()}"


def ip(*words, host=None):
    subprocess.run(["ip", *(["-n", host] if host else []), *map(str, words)], check=True)


def open_tap(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(fd, TUNSETVNETHDRSZ, struct.pack("i", VNET_HEADER))
    fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    return fd


class Way:
    """One direction of the link: frames with the time at which they arrive."""

    def __init__(self, source, sink, rate, delay):
        self.source, self.sink, self.rate, self.delay = source, sink, rate, delay
        self.frames, self.free_at = collections.deque(), 0.0
        self.buffers = [bytearray(FRAME) for _ in range(HELD)]

    def take(self, is_cut):
        """Takes the sender's next frame."""
        try:
            count = os.readv(self.source, [self.buffers[-1]])
        except OSError:  # the device is down
            return
        if is_cut:
            return
        self.free_at = max(self.free_at, time.monotonic()) + (count - VNET_HEADER) / self.rate
        self.frames.append((self.free_at + self.delay, count, self.buffers.pop()))

    def give(self, is_cut):
        while self.frames and self.frames[0][0] <= time.monotonic():
            _, count, buffer = self.frames.popleft()
            self.buffers.append(buffer)
            try:
                if not is_cut:
                    os.write(self.sink, memoryview(buffer)[:count])
            except OSError:  # the device is down
                pass


def carry(taps, rate, delay, cut):
    """Carries frames until the calling process ends."""
    caller = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(-20)  # a link is no slower when the processors are busy
    ways = [Way(taps[0], taps[1], rate, delay), Way(taps[1], taps[0], rate, delay)]
    while os.getppid() == caller:
        due = min((way.frames[0][0] for way in ways if way.frames), default=None)
        readable, _, _ = select.select(
            [way.source for way in ways if way.buffers], [], [], 1 if due is None else max(0, due - time.monotonic())
        )
        for way in ways:
            way.give(cut.value)
            if way.source in readable:
                way.take(cut.value)


class Link:
    """Both hosts, until `close`. `rate`: bytes a second; `delay`: seconds, each way; `family`: 4 or 6."""

    def __init__(self, folder, rate=125e6, delay=1e-3, family=4):
        self.addresses = ADDRESSES[family]
        self.family = family
        self.agent = pathlib.Path(folder, "agent.sh")
        self.agent.write_text(AGENT)
        self.agent.chmod(0o755)
        clear()
        taps = []
        for i, host in enumerate(HOSTS):
            names = pathlib.Path("/etc/netns", host)
            names.mkdir(parents=True)
            own = "127.0.0.1 localhost" if family == 4 else "::1 localhost"
            (names / "hosts").write_text("\n".join([own, *map(" ".join, zip(self.addresses, HOSTS))]) + "\n")
            ip("netns", "add", host)
            taps.append(open_tap(f"couplet{i}"))
            ip("link", "set", f"couplet{i}", "netns", host, "name", DEVICE)
            ip("link", "set", "lo", "up", host=host)
            ip(
                "address",
                "add",
                f"{self.addresses[i]}/{24 if family == 4 else 64}",
                "dev",
                DEVICE,
                *(["nodad"] if family == 6 else []),
                host=host,
            )
            ip("link", "set", DEVICE, "up", host=host)
        fork = multiprocessing.get_context("fork")
        self.is_cut = fork.Value("b", 0, lock=False)
        self.carrier = fork.Process(target=carry, args=(taps, rate, delay, self.is_cut), daemon=True)
        self.carrier.start()
        for tap in taps:
            os.close(tap)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.carrier.kill()
        self.carrier.join()
        clear()

    def lose(self, is_cut):
        """Loses every frame from now on, with the frames on their way, or carries frames again."""
        self.is_cut.value = is_cut

    def set_down(self, is_cut):
        """Sets the device of host 1 down, or up again."""
        ip("link", "set", DEVICE, "down" if is_cut else "up", host=HOSTS[1])

    @staticmethod
    def inside(host, *words):
        """Returns the command that runs these words on host 0 or 1."""
        return [
            "ip",
            "netns",
            "exec",
            HOSTS[host],
            *"unshare --uts sh -c".split(),
            'hostname "$0"; exec "$@"',
            HOSTS[host],
            *map(str, words),
        ]

    def options(self, library):
        """Returns the options for TCP on the link alone, between ranks and between the launcher and its helpers."""
        if library == "mpich":
            return ["-launcher", "ssh", "-launcher-exec", str(self.agent), "-iface", DEVICE, "-hosts", ",".join(HOSTS)]
        settings = {
            "plm_rsh_agent": self.agent,
            "btl": "tcp,self",
            "pml": "ob1",
            "btl_tcp_if_include": DEVICE,
            "oob_tcp_if_include": DEVICE,
        }
        if self.family == 6:
            settings["oob_tcp_disable_ipv4_family"] = settings["btl_tcp_disable_family"] = 4
        return [
            "-H",
            ",".join(HOSTS),
            "--map-by",
            "node",
            *(word for name, value in settings.items() for word in ("--mca", name, str(value))),
        ]

    def command_of(self, library, parts):
        """Returns a command as mpi.command_of does, with one rank on each host. mpirun is on host 0."""
        words = mpi.command_of(library, parts)
        return self.inside(0, words[0], *self.options(library), *words[1:])


CUTS = {"lost": Link.lose, "down": Link.set_down}


def clear():
    """Removes the remains of an earlier program."""
    for host in HOSTS:
        if pathlib.Path("/run/netns", host).exists():
            ip("netns", "delete", host)
        shutil.rmtree(pathlib.Path("/etc/netns", host), ignore_errors=True)
