"""Runs one of CPython's own tests by regrtest and prints the result of each of its cases, sorted.

What takes its own time or prints what differs from run to run is left out: two runs print the same if the same cases
passed, failed and were skipped. Needs an interpreter with its tests (Debian: libpython3.11-testsuite).

    python3 cpython_test.py test_mmap
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path


# A hundred processes at once that sleep for 100 s, each with 1 to 2 MiB that no swap can take: where those fill the cap, the
# first are awake before the last is there, and the case fails for that.
LEFT_OUT = "test_many_processes"


def outcome(case):
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "ok"


def main(name):
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "test", "--junit-xml", str(report), "--tempdir", directory, "--ignore", LEFT_OUT, name]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        sys.stderr.buffer.write(run.stdout)
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else ()
        lines = sorted(f"{case.get('name')}: {outcome(case)}" for case in cases)
    print("\n".join(lines))
    print(f"{name}: {len(lines)} cases, status {run.returncode}")
    return 0 if lines else 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
