"""Tables of stored runs: rows as each script has them become what docs/measured.md shows, and what documents quote."""

import unittest

import measured
import measured_tables

MIB = 1 << 20


def made(name, rows, **more):
    """The tables of one stored run, by variant."""
    return {one.get("variant", ""): one for one in measured_tables.TABLES[name]({"rows": rows, **more})}


def cells(table, row):
    return [measured.show(table["rows"][row].get(column["name"]), column) for column in table["columns"]]


class Tables(unittest.TestCase):
    def test_speed(self):
        def arm(*values):
            return {"values": list(values), "cpu_seconds": [5.5], "fill_ns_per_page": [], "runs": []}

        pages = {"case": "seq-heap", "unit": "ns/page", "goal": 2.5, "native": arm(30), "kernel": arm(18_000, 19_000, 20_000)}
        pages |= {"ours": arm(3_700, 3_800, 3_900), "ratios": [4.9, 5.0, 5.1], "ratio_median": 5.0}
        alone = {**pages, "case": "dict", "unit": "s", "goal": 1.0, "ours": arm(), "ratios": [], "ratio_median": None}
        table = made("speed", [pages, alone])[""]
        expected = ["heap pages in order", "0.03", "19.00 (18.50–19.50)", "3.80 (3.75–3.85)", "5.00 (4.95–5.05)", "5.5 / 5.5", "2.5: holds"]
        self.assertEqual(cells(table, 0), expected)
        self.assertEqual(cells(table, 1)[3:5], ["", ""])
        missed = made("speed", [{**pages, "ratio_median": 2.4}])[""]
        self.assertEqual(cells(missed, 0)[-1], "2.5: missed")

    def test_remote(self):
        row = {"what": "out", "unit": "MiB/s", "goal": 0.8, "library": [100.0, 110.0, 120.0], "ours": [88.0, 88.0, 88.0]}
        row |= {"ratios": [0.7, 0.8, 0.9], "ratio_median": 0.8}
        table = made("remote", [row, {**row, "unit": "µs", "goal": None}])[""]
        self.assertEqual(cells(table, 0), ["out, MiB/s", "110 (105–115)", "88 (88–88)", "0.80 (0.75–0.85)", "0.8: holds"])
        self.assertEqual(cells(table, 1)[-1], "")

    def test_fault(self):
        means = dict.fromkeys(("trap", "wake-up", "work", "map", "return"), 2000)
        table = made("fault", [{"fill": "zero", "means": means}, {"fill": "heap", "means": {**means, "work": 12_000}}])[""]
        self.assertEqual(cells(table, 2), ["work: look up the word, read, decompress, check", "2.0", "12.0", "60 %"])
        work = {"work": {"processor_ns_per_fault": 13_400.0, "faults": 9}}
        table = made("fault", [{"fill": fill, "means": means, **work} for fill in ("heap", "zero")])[""]
        self.assertEqual(cells(table, 5), ["processor time of a fault, all threads of the run", "13.4", "13.4", "12 µs: missed"])

    def test_fits(self):
        seconds = {"native": [1.23, 1.23], "allocator": [1.38, 1.38], "ours": [1.37, 1.37]}
        ratios = {"native": [0.90, 0.90], "allocator": [1.007, 1.007]}
        starts = {"a process (ms)": {"native": [1.0], "ours": [1.3]}, "the launcher (ms)": {"native": [1.0], "ours": [3.9]}}
        tables = made("fits", [{"program": "sqlite", "seconds": seconds, "ratios": ratios}], starts=starts)
        self.assertEqual(cells(tables[""], 0), ["sqlite3", "1.23", "1.38", "1.37", "0.900 (0.900–0.900)", "1.007 (1.007–1.007)", "missed"])
        self.assertEqual(cells(tables["launcher"], 1), ["the launcher, once", "2.9"])

    def test_start(self):
        blocks = {"native": [[500, 400, 50], [520, 420, 50]], "run": [[800, 700, 97], [800, 700, 97]]}
        table = made("start", [{"kind": "true", "arm": arm, "blocks": found} for arm, found in blocks.items()])[""]
        self.assertEqual(cells(table, 1), ["true, run", "800", "290", "700", "290", "97", "47"])

    def test_cap(self):
        run = {"wall_seconds": 16.0, "swap_used_peak_bytes": 141 * MIB, "counted_peak_bytes": 381 * MIB}
        row = {"program": "analytics", "need_bytes": 634 * MIB, "cap_bytes": 380 * MIB, "native": run, "kernel": run, "ours": run}
        row |= {"kernel_failed": False, "same_total": None, "failures": []}
        tables = made("cap", [{**row, "factor": 0.6}, {**row, "factor": 0.25, "kernel": None, "failures": ["time-out"]}])
        self.assertEqual(list(tables), ["0.6", "quarter"])
        self.assertEqual(cells(tables["0.6"], 0), ["the example", "634", "380", "16.0", "16.0 (141)", "16.0", "", "1.003", "passes"])
        self.assertEqual(cells(tables["quarter"], 0)[4::4], ["", "time-out"])

    def test_build(self):
        one = {"seconds": 20.0, "cpu": 40.0, "reads": 256, "writes": 512, "hits": 25_600}
        load = {"jobs": 4, "memory": 140 * MIB, "native": 10.0}
        tables = made("build", [{**load, "arms": {"pool": [one, one]}}, {**load, "arms": {"decay": [one, one]}}])
        self.assertEqual(cells(tables[""], 0), ["`-j4`, 140 MiB: with the pool", "20.0 (20.0–20.0)", "2.0", "40", "3", "100"])
        self.assertEqual(cells(tables["shrinkers"], 0), ["decay", "20.0 (20.0–20.0)", "40", "1", "2"])

    def test_shrinkers(self):
        def outcome(pages, stalled):
            return {"counters": {"pswpin": pages, "zswpwb": 2 * pages}, "stalled_s": stalled}

        schemes = {"second-chance": outcome(30_000, 1), "decay": outcome(40_000, 1), "none": outcome(20_000, 1)}
        shares = {"balance": outcome(0, 2.7), "20 %": outcome(0, 4.7), "35 %": outcome(0, 3.6)}
        tables = made("shrinkers", [{"trace": "build", "schemes": schemes}, {"trace": "build", "schemes": shares}])
        self.assertEqual(cells(tables[""], 0), ["build", "30, 60", "40, 80", "20, 40", "-25 %, -25 %"])
        self.assertEqual(cells(tables["shares"], 0), ["build", "2.7 s", "4.7, 3.6 s", "-25 %", "holds"])

    def test_overhead(self):
        one = {"allocator": "zsmalloc", "overhead_percent": [5.7, 5.9, 6.1], "pool_total_size": 136 * MIB}
        one |= {"stored_bytes": 128 * MIB, "loose_bytes": 1.28 * MIB, "stored_pages": 68 * 1024 // 4 * 4}
        self.assertEqual(cells(made("overhead", [one])[""], 0), ["zsmalloc", "5.9 (5.8–6.0)", "1.0", "136", "2.00", "≤ 8, holds"])

    def test_readahead(self):
        row = ["windows", "µs/page", "8 pages 18 (18–19)", "–", "≥ 3", "MISSED"]
        self.assertEqual(cells(made("readahead", [{"row": row}])[""], 0), ["windows", "8 pages 18 (18–19) µs/page", "–", "≥ 3: missed"])

    def test_codecs(self):
        codec = {"codec": "lz4", "ratio": 3.333, "ns_in": 3460, "ns_out": 900}
        table = made("codecs", [{"kind": "text", "ours": {"codecs": [codec]}, "libraries": {"codecs": [codec]}}])[""]
        self.assertEqual([column["name"] for column in table["columns"]], ["pages", "lz4", "C lz4"])
        self.assertEqual(cells(table, 0)[1], "3.33, 3.5, 0.9")

    def test_programs(self):
        def one(name, seconds, **more):
            run = {"native": {"wall_seconds": 1.0}, "ours": {"wall_seconds": seconds}, "same_output": True, "managed_share": 0.9}
            return {"program": name, "factor": 0.6, **run, **more}

        table = made("programs", [one("a", 2.0), one("b", 85.0, same_output=False), {"program": "c", "missing": "gcc"}])[""]
        values = {row["figure"]: row["value"] for row in table["rows"]}
        self.assertEqual(values["programs that ran"], 2)
        self.assertEqual(values["of them with the same output"], 1)
        self.assertEqual(values["largest slow-down"], 85.0)

    def test_versions(self):
        both = {"values": {"old": [2000, 2100], "new": [2000, 2000]}, "cpu_seconds": {"old": [2.6], "new": [2.5]}, "ratios": [1.0, 1.05]}
        rows = [{"name": "speed seq-heap", "unit": "ns", **both}, {"name": "start", "unit": "s", **both, "ratios": [0.97]}]
        table = made("versions", rows)[""]
        expected = ["speed seq-heap, µs", "2.05 (2.02–2.08)", "2.00 (2.00–2.00)", "1.025 (1.012–1.038)", "2.60 / 2.50", "0.98: holds"]
        self.assertEqual(cells(table, 0), expected)
        self.assertEqual(cells(table, 1)[-1], "0.98: missed")

    def test_a_benchmark_that_is_not_known(self):
        (table,) = measured_tables.plain({"rows": [{"name": "a", "seconds": 1.5, "runs": [1]}, {"name": "b", "more": 2}]})
        self.assertEqual(cells(table, 1), ["b", "", "2"])


class Runs(unittest.TestCase):
    def test_a_row_that_was_not_measured_again_stays(self):
        def run(*rows):
            return {"benchmark": "versus", "columns": [{"name": "row"}], "rows": [{"row": name, "ratio": ratio} for name, ratio in rows]}

        found = measured.with_rows_of(run(("a", 1), ("b", 2)), run(("b", 3), ("c", 4)))["rows"]
        self.assertEqual([(row["row"], row["ratio"]) for row in found], [("b", 3), ("c", 4), ("a", 1)])
        # Whatever the order in which their folders are read.
        later = measured.newest([run(("a", 1)), run(("a", 2)), run(("b", 3))])["rows"]
        self.assertEqual([(row["row"], row["ratio"]) for row in later], [("b", 3), ("a", 2)])

    def test_of_two_runs_of_a_day_the_later_is_the_newer(self):
        early, late = {"date": "2026-11-28", "time": "04:00"}, {"date": "2026-11-28", "time": "07:01"}
        untimed, before = {"date": "2026-11-28"}, {"date": "2026-11-27", "time": "23:00"}
        self.assertEqual(sorted([late, untimed, early, before], key=measured.when), [before, untimed, early, late])


class Quotes(unittest.TestCase):
    RUN = {"columns": [{"name": "case"}, {"name": "x"}], "rows": [{"case": "a", "x": [4.9, 5.04, 5.1]}, {"case": "b", "x": "12 (3)"}]}

    def quoted(self, text):
        (found,) = measured.MARKER.finditer(text)
        return found[1], measured.stored({"speed": self.RUN}, *found.groups()[2:])

    def test_a_number_is_found_before_its_comment(self):
        self.assertEqual(self.quoted("is 5.0<!-- figure: speed; a; x --> times"), ("5.0", 5.04))
        self.assertEqual(self.quoted("in 12 s<!-- figure: speed; b; x -->."), ("12", 12.0))

    def test_what_is_not_stored_is_told(self):
        self.assertIn("no row", self.quoted("5<!-- figure: speed; c; x -->")[1])
        self.assertIn("no column", self.quoted("5<!-- figure: speed; a; y -->")[1])
        self.assertIn("no run", self.quoted("5<!-- figure: fast; a; x -->")[1])


if __name__ == "__main__":
    unittest.main()
