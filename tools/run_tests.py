#!/usr/bin/env python3
"""run_tests.py BUILD [JOBS] [further]: runs ctest in BUILD and counts single test cases: those that
cmocka reports within a program, and one for each program or script that reports none. With `further` it
runs the tests on the larger reference data, and otherwise all others. Prints what failed,
then `N passed, N failed, N skipped` (without the last part if nothing was skipped)."""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

SHOWN_BYTES = 20000  # of what a failed test printed
COUNT = re.compile(r"\[  (PASSED|FAILED|SKIPPED)\s*\] (\d+) test\(s\)")


def run_ctest(build, jobs, which):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.xml")
        command = ["ctest", "--test-dir", build, "-j", jobs, *which, "--output-junit", report,
                   "--test-output-size-passed", "1000000", "--test-output-size-failed", "1000000"]
        code = subprocess.run(command, check=False).returncode
        return code, xml.parse(report).getroot().iter("testcase")


def count(case):
    """Passed, failed and skipped test cases of one entry of ctest."""
    output = case.findtext("system-out") or ""
    status = case.get("status")
    found = {"PASSED": 0, "FAILED": 0, "SKIPPED": 0}
    for word, number in COUNT.findall(output):
        found[word] += int(number)
    passed, failed, skipped = found.values()
    if status == "fail" and not failed:
        failed = 1  # crashed, timed out, or a script
    if status in ("notrun", "disabled") and not skipped:
        skipped = 1
    if status == "run" and not passed + skipped:
        passed = 1
    return passed, failed, skipped


def main():
    build, jobs = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else str(os.cpu_count())
    which = "-L" if "further" in sys.argv[3:] else "-LE"
    code, cases = run_ctest(build, jobs, [which, "^further$"])
    totals = [0, 0, 0]
    for case in cases:
        counts = count(case)
        totals = [a + b for a, b in zip(totals, counts)]
        if counts[1]:
            print(f"---- {case.get('name')} failed:")
            print((case.findtext("system-out") or "").strip()[-SHOWN_BYTES:])
    if code and not totals[1]:
        print(f"ctest ended with {code}")
        totals[1] = 1
    skipped = f", {totals[2]} skipped" if totals[2] else ""
    print(f"{totals[0]} passed, {totals[1]} failed{skipped}", flush=True)
    return totals[1] > 0


sys.exit(main())
