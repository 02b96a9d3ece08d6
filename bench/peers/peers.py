"""Functions that the programs of this folder share: the machine in one line, medians of runs taken in turn,
resident memory of this process. A bare speed of a shared machine says little: compare the ratio to a plain
product that ran in the same minutes."""

import math
import os
import platform
import statistics
import time


def processor():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} processors"


def seconds(run, clock=time.perf_counter):
    begin = clock()
    run()
    return clock() - begin


def in_turn(rounds, *subjects, clock=time.perf_counter):
    """Runs each subject once to warm up, then all of them `rounds` times in turn. Returns a list of times for each."""
    for subject in subjects:
        subject()
    times = [[] for _ in subjects]
    for _ in range(rounds):
        for subject, mine in zip(subjects, times):
            mine.append(seconds(subject, clock))
    return times


def median(times):
    return statistics.median(times)


def spread(times):
    """Returns half the distance between the quartiles, as a share of the median."""
    ordered = sorted(times)
    last = len(ordered) - 1
    quarters = ordered[round(0.75 * last)] - ordered[round(0.25 * last)]
    return quarters / 2 / median(times)


def interval(values):
    """Returns two of the values that enclose the median in 95 of 100 cases, by the binomial distribution."""
    ordered, n = sorted(values), len(values)
    k = max(k for k in range(n // 2 + 1) if 2 * sum(math.comb(n, i) for i in range(k)) <= 0.05 * 2**n)
    return ordered[max(k, 1) - 1], ordered[n - max(k, 1)]


def _status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def resident():
    return _status("VmRSS:")


def peak_resident():
    return _status("VmHWM:")


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def extra_bytes(run):
    """Returns the peak bytes that `run` held beyond the resident bytes before it."""
    forget_peak()
    before = resident()
    run()
    return peak_resident() - before
