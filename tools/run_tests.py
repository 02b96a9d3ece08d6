#!/usr/bin/env python3
"""run_tests.py BUILD [JOBS] [LABEL]: runs ctest in BUILD and counts single test cases: the cases that cmocka reports
within a program, and one for each program or script without such a report. A label of tests/CMakeLists.txt names the
tests: `further` on the larger reference data, `far` on memory that the host cannot reach, `RACES` with threads. Without
a label, all but `further` and `far` run. It prints the failures, the parts that were not checked and why, then
`N passed, N failed, N skipped` (without the last part if no test was skipped).

A test, or a part of one, that cannot run prints a line `not checked: REASON` (a package is missing) or `not checked
here: REASON` (no package would help). With COUPLET_TEST_ALL in the environment (.ci/run) the former is a failure, as is
a test that is skipped without a reason."""

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

SHOWN_BYTES = 20000  # bytes shown of a failed test's output
NOT_CHECKED = re.compile(r"^not checked( here)?: .*", re.M)
COUNT = re.compile(r"\[  (PASSED|FAILED|SKIPPED)\s*\] (\d+) test\(s\)")


def run_ctest(build, jobs, which):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = [
            "ctest",
            "--test-dir",
            build,
            "-j",
            jobs,
            *which,
            "--output-junit",
            report,
            "--test-output-size-passed",
            "1000000",
            "--test-output-size-failed",
            "1000000",
        ]
        code = subprocess.run(command, check=False).returncode
        return code, xml.parse(report).getroot().iter("testcase")


def count(case):
    """Returns the passed, failed and skipped test cases of one entry of ctest."""
    output = case.findtext("system-out") or ""
    status = case.get("status")
    found = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
    for word, number in COUNT.findall(output):
        found[word] += int(number)
    passed, failed, skipped = found.values()
    if status == "fail" and not failed:
        failed = 1  # a crash, a time-out, or a script
    if status in ("notrun", "disabled") and not skipped:
        skipped = 1
    if status == "run" and not passed + skipped:
        passed = 1
    return passed, failed, skipped


def reasons_of(case):
    """Returns the reasons why the test, or a part of it, was not run."""
    found = [match[0] for match in NOT_CHECKED.finditer(case.findtext("system-out") or "")]
    return found or ["skipped without a reason"] * (case.get("status") == "notrun")


def main():
    build, jobs = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else str(os.cpu_count())
    label = sys.argv[3] if len(sys.argv) > 3 else None
    code, cases = run_ctest(build, jobs, ["-L", f"^{label}$"] if label else ["-LE", "^(further|far)$"])
    totals, unchecked = [0, 0, 0], []
    for case in cases:
        counts, reasons = list(count(case)), reasons_of(case)
        unchecked += [f"{case.get('name')}: {reason}" for reason in reasons]
        if "COUPLET_TEST_ALL" in os.environ and any(not reason.startswith("not checked here") for reason in reasons):
            counts = [0, max(counts[1], 1), 0]
        totals = [a + b for a, b in zip(totals, counts)]
        if counts[1]:
            print(f"---- {case.get('name')} failed:")
            print((case.findtext("system-out") or "").strip()[-SHOWN_BYTES:])
    if code and not totals[1]:
        print(f"ctest ended with {code}")
        totals[1] = 1
    print("\n".join(unchecked))
    skipped = f", {totals[2]} skipped" if totals[2] else ""
    print(f"{totals[0]} passed, {totals[1]} failed{skipped}", flush=True)
    return totals[1] > 0


sys.exit(main())
