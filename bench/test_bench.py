"""Tests of what the benchmarks share: python3 -m unittest discover -s bench."""

import argparse
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cap
from pagetide_bench import arms, figures, options, sizes, store
from pagetide_bench.paths import REPO, RUNS
from pagetide_bench.runs import Run
from pagetide_bench.script import BenchError

# `measured.py` and `picture.py` have no options of a benchmark.
SCRIPTS = (
    "build", "cap", "codecs", "fault", "fits", "overhead", "programs", "readahead", "shared", "shrinkers", "speed", "start", "versions", "versus",
)
SHAPE = {"machine", "date", "commit", "command", "rows"}


class Store(unittest.TestCase):
    def test_all_that_is_stored_can_be_read_in_one_shape(self):
        stored = [*RUNS.glob("*/*.json"), *(path.parent for path in RUNS.glob("*/*/machine.json"))]
        self.assertTrue(stored)
        for path in stored:
            found = store.load(path)
            self.assertLessEqual(SHAPE, set(found), path)
            self.assertIn("kernel", found["machine"], path)
            self.assertTrue(found["rows"], path)
            self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\d$", path)

    def test_what_is_written_is_read_again(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "runs" / "one.json"
            chosen = argparse.Namespace(json=path, store=False)
            store.save(chosen, {"kernel": "K"}, [{"case": 1}], skipped=["x"])
            found = store.load(path)
            self.assertEqual((found["rows"], found["skipped"], found["machine"]), ([{"case": 1}], ["x"], {"kernel": "K"}))
            self.assertLessEqual(SHAPE, set(found))
            self.assertEqual([file.name for file in path.parent.iterdir()], ["one.json"])

    def test_the_newest_results_are_found_in_either_form(self):
        path = store.newest("programs")
        self.assertIsNotNone(path)
        self.assertTrue(all("program" in row for row in store.load(path)["rows"]))
        self.assertIsNone(store.newest("no-such-benchmark"))

    def test_stored_files_are_json_that_any_tool_reads(self):
        for path in RUNS.glob("**/*.json"):
            json.loads(path.read_text())


class Figures(unittest.TestCase):
    def test_quartiles_of_few_values(self):
        self.assertEqual(figures.quartiles([3]), (3, 3, 3))
        self.assertEqual(figures.quartiles([1, 2, 3, 4, 5]), (2, 3, 4))

    def test_sizes(self):
        self.assertEqual([sizes.parse_bytes(text) for text in ("7", "4K", "1.5m", "2G")], [7, 4096, 3 << 19, 2 << 30])
        for wrong in ("", "G", "four", "1T"):
            self.assertRaises(argparse.ArgumentTypeError, sizes.parse_bytes, wrong)
        self.assertEqual(sizes.whole_mib((3 << 20) - 1), 2)


class Failures(unittest.TestCase):
    def test_a_run_of_which_a_process_was_killed_has_failed_whatever_its_status(self):
        Run(["true"]).require_success()
        for failed in (Run(["true"], status=1), Run(["true"], timed_out="too long"), Run(["xz | sha256sum"], oom_kills=1)):
            self.assertRaises(BenchError, failed.require_success)

    def test_other_output_is_a_failure_where_it_should_be_the_same(self):
        native, other = Run(["true"], stdout=b"1"), Run(["true"], stdout=b"2")
        case = argparse.Namespace(same_output=True)
        self.assertIs(arms.require_output(case, native, native), native)
        self.assertRaises(BenchError, arms.require_output, case, other, native)
        self.assertIs(arms.require_output(argparse.Namespace(same_output=False), other, native), other)

    def test_a_pipe_fails_where_a_part_of_it_does(self):
        self.assertNotEqual(subprocess.run(cap.shell("false | cat")).returncode, 0)


class Scripts(unittest.TestCase):
    def test_each_shows_its_help_and_can_store_what_it_finds(self):
        for name in SCRIPTS:
            shown = subprocess.run([sys.executable, "-B", REPO / "bench" / f"{name}.py", "--help"], capture_output=True, text=True)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("--store", shown.stdout, name)

    def test_options_of_results(self):
        parser = argparse.ArgumentParser()
        options.add_result_options(parser)
        self.assertEqual(vars(parser.parse_args(["--store"])), {"json": None, "store": True})


if __name__ == "__main__":
    unittest.main()
