#!/usr/bin/env python3
"""remote.py COUPLET [--pairs N] [--rate BYTES/S] [--delay SECONDS] [--layers N] [--parallel N]: measures the speed of a
remote inspection, compared with `curl --parallel` over the ranges that it reads.

A checkpoint in the shape of OLMoE-1B-7B with some of its layers (64 experts, d 2048, D 1024, bf16; gates of random
numbers, the other matrices zero) lies on nginx, with TLS and HTTP/2, behind a proxy of a rate (100 MB/s for all
connections together) and a delay (25 ms each way: round trips of 50 ms; tests/remote/slow_link.py). `couplet inspect
https://...` and curl run in turn. curl asks for the ranges that nginx logged in the program's first run, all at once
up to --parallel, and discards them. The time is the whole process's time: the program also computes, and learns from
index and headers which ranges to request.

It prints medians, their rates over the bytes of the ranges, and the ratio: the median over the pairs of curl's time
over the program's. Exit code 1 if the ratio is below 0.8."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "remote"))

import nginx  # noqa: E402
from certificates import Certificates  # noqa: E402
from checkpoints import UPPER, Checkpoint, is_read, write_file  # noqa: E402
from slow_link import SlowLink  # noqa: E402

BAR = 0.8


def write_gates(out, shapes):
    """Writes random numbers into routers and gates. The bytes between them remain a hole."""
    for name, (rows, columns) in shapes.items():
        size = 2 * rows * columns
        if is_read(name):
            raw = bytearray(os.urandom(size))
            raw[1::2] = raw[1::2].translate(UPPER)
            out.write(raw)
        else:
            out.seek(size, os.SEEK_CUR)


def write_checkpoint(folder, layers):
    made = Checkpoint(folder, layers=layers, n=64, d=2048, D=1024)
    names = {}
    for l in range(layers):
        file, shapes = f"model-{l + 1:05d}-of-{layers:05d}.safetensors", dict(made.layer(l))
        write_file(made, file, shapes, lambda out, shapes=shapes: write_gates(out, shapes))
        names |= dict.fromkeys(shapes, file)
    (made.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (made.folder / "config.json").write_text(json.dumps(made.config()))
    return made


def seconds_of(command, environment):
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stderr[-2000:]}")
    return took


def write_curl(path, base, lines):
    """Writes a configuration of curl with all requests that returned bytes. Returns the number of requests and of
    bytes. Most options end at `next`. The authority comes from the environment."""
    requests = [line for line in lines if line.method == "GET" and line.status in (200, 206)]
    parts = [
        ["silent", "show-error", "fail", f'url = "{base}{line.path}"', 'output = "/dev/null"']
        + ([f'range = "{line.range.removeprefix("bytes=")}"'] if line.range != "-" else [])
        for line in requests
    ]
    path.write_text("\nnext\n".join("\n".join(part) for part in parts) + "\n")
    return len(requests), sum(line.sent for line in requests)


def measure(options, work):
    made, certificates = write_checkpoint(work / "model", options.layers), Certificates(work / "certificates")
    environment = os.environ | certificates.environment()
    with (
        nginx.Nginx(made.folder, work / "nginx", certificates) as server,
        SlowLink(server.port, options.rate, options.delay) as shaped,
    ):
        base = f"https://127.0.0.1:{shaped.port}"
        commands = {
            "couplet": [options.couplet, "inspect", base],
            "curl": ["curl", "--parallel", "--parallel-max", str(options.parallel), "-K", work / "curl"],
        }
        seconds_of(commands["couplet"], environment)  # warms up, and gives the ranges
        time.sleep(1)
        n_requests, n_bytes = write_curl(work / "curl", base, server.lines())
        seconds_of(commands["curl"], environment)
        times = {"couplet": [], "curl": []}
        for pair in range(options.pairs):
            for who in times if pair % 2 else reversed(times):
                times[who].append(seconds_of(commands[who], environment))
    return n_requests, n_bytes, times


def report(options, n_requests, n_bytes, times):
    """Prints the figures; returns the exit code."""
    ratios = sorted(b / a for a, b in zip(times["couplet"], times["curl"]))
    print(
        f"from afar, {options.rate / 1e6:.0f} MB/s, {2000 * options.delay:.0f} ms: {n_requests} requests, {n_bytes / 1e6:.0f} MB"
    )
    for who, took in times.items():
        middle = statistics.median(took)
        print(f"  {who:8s} {middle:7.2f} s  {n_bytes / middle / 1e6:6.1f} MB/s  ({min(took):.2f} to {max(took):.2f} s)")
    ratio = statistics.median(ratios)
    print(f"  ratio    {ratio:.3f}  ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs; bar {BAR})")
    return 0 if ratio >= BAR else 1


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("couplet")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=100e6, help="bytes a second")
    parser.add_argument("--delay", type=float, default=0.025, help="seconds each way")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=50, help="of curl; 50 is its own default")
    options = parser.parse_args()
    options.couplet = os.path.abspath(options.couplet)
    helped = subprocess.run([options.couplet, "help", "inspect"], capture_output=True, text=True, check=True).stdout
    why = nginx.missing() or ("" if "--dry-run" in helped else "this program reads no checkpoints from afar")
    if why:
        print(f"from afar: not measured: {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="couplet-bench-") as work:
        return report(options, *measure(options, pathlib.Path(work)))


sys.exit(main())
