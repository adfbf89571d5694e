"""Tests of ./test --long: what is stored, and what a part leaves behind."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import long  # noqa: E402


def run(*commands, seconds=60):
    """Runs a part of these shell commands. Returns its status and what was stored of it."""
    part = long.Part("made-up", 1, "of a test", tuple(("sh", "-c", command) for command in commands))
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(long, "TIMEOUT_SECONDS", seconds), contextlib.redirect_stdout(io.StringIO()):
        status = long.run(part, Path(directory))
        return status, json.loads((Path(directory) / "made-up.json").read_text())


class Long(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        long.LIBC.prctl(long.PR_SET_CHILD_SUBREAPER, 1)

    def test_what_came_of_a_part_is_stored(self):
        status, stored = run("echo one", "echo two; exit 3", "echo never")
        self.assertEqual((status, stored["rc"], stored["last_lines"]), (3, 3, ["one", "two"]))
        self.assertLessEqual({"part", "rc", "seconds", "commit", "date", "machine", "commands", "last_lines"}, set(stored))
        self.assertEqual(run("true")[0], 0)

    def test_a_command_that_is_not_there_is_a_failure(self):
        part = long.Part("made-up", 1, "of a test", (("no-such-command",),))
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(long.run(part, Path(directory)), long.NOT_FOUND)

    def test_a_part_that_takes_too_long_is_ended_with_all_that_it_started(self):
        status, stored = run("setsid sleep 1000 & echo $!; sleep 1000", seconds=1)
        self.assertEqual((status, stored["rc"]), (long.TIMED_OUT, long.TIMED_OUT))
        self.assertFalse(os.path.exists(f"/proc/{stored['last_lines'][0]}"))

    def test_nothing_is_left_of_a_part(self):
        _, stored = run("mkdir /var/tmp/pagetide-left-$$; echo $$; setsid sleep 1000 >/dev/null 2>&1 & sleep 0.2")
        self.assertFalse(Path(f"/var/tmp/pagetide-left-{stored['last_lines'][0]}").exists())
        self.assertEqual(long.children(), set())

    def test_files_of_other_tests_that_go_on_stay(self):
        other = Path(f"/var/tmp/pagetide-other-{os.getpid()}")
        run(f"mkdir {other}")
        self.assertTrue(other.exists())
        other.rmdir()

    def test_the_first_number_of_a_name_is_the_pid_of_who_made_it(self):
        self.assertFalse(long.is_left("/var/tmp/pagetide-no-number"))
        self.assertFalse(long.is_left(f"/cgroup/pagetide-bench-{os.getpid()}-7"))
        # One that cannot be; the number behind it is that of a process.
        self.assertTrue(long.is_left(f"/cgroup/pagetide-bench-999999999-{os.getpid()}"))

    def test_every_part_has_a_name_of_its_own_and_fits_into_half_an_hour(self):
        names = [part.name for part in long.PARTS]
        self.assertEqual(len(set(names)), len(names))
        self.assertTrue(all(part.minutes < 30 and part.commands for part in long.PARTS))


if __name__ == "__main__":
    unittest.main()
