"""Tests of the simulation of a remote tier: python3 -m unittest discover -s bench."""

import unittest

import sizing


def options(*words):
    return sizing.parse(["--hosts", "40", "--seconds", "2", "--failover", "0.5", "--shards", "12", *words])


class Simulation(unittest.TestCase):
    def test_the_same_seed_gives_the_same_figures(self):
        one, other = (sizing.simulate(12, "all is well", options()) for _ in range(2))
        self.assertEqual((one.waits, one.busiest), (other.waits, other.busiest))
        self.assertNotEqual(one.waits, sizing.simulate(12, "all is well", options("--seed", "2")).waits)

    def test_a_fault_waits_for_the_round_trip_and_the_server_at_least(self):
        found = sizing.simulate(12, "all is well", options())
        self.assertGreaterEqual(found.waits[0], (150 + 15) * 1e-6 * (1 - 1e-9))
        self.assertEqual(found.lost, 0)

    def test_a_failover_is_waited_for_and_nothing_is_lost(self):
        well, shard, zone = (sizing.simulate(12, scenario, options()) for scenario in sizing.SCENARIOS)
        self.assertEqual(len(well.waits), len(shard.waits))
        self.assertTrue(0.4 < shard.quantile(1) < 0.6)
        self.assertEqual(shard.lost, 0)
        late = lambda found: sum(wait > 0.1 for wait in found.waits)  # noqa: E731
        self.assertLess(late(well), late(shard))
        self.assertLess(late(shard), late(zone))

    def test_without_replicas_a_lost_shard_takes_its_pages_with_it(self):
        alone = options("--replicas", "0")
        self.assertAlmostEqual(sizing.simulate(12, "a shard is lost", alone).lost, 1 / 12)
        self.assertAlmostEqual(sizing.simulate(12, "a zone is lost", alone).lost, 1 / 3)

    def test_memory_is_shared_by_all_shards(self):
        gib, renewals = sizing.needs(12, options())
        self.assertAlmostEqual(gib, 40 * 64 / 12, delta=0.2)
        self.assertAlmostEqual(renewals, 40 * 64 * 8192 / 12 / (8 * 3600), delta=0.01)

    def test_the_document_is_what_the_simulation_gives(self):
        self.assertTrue(sizing.DOCUMENT.exists())
        first = sizing.DOCUMENT.read_text().splitlines()
        rows = list(sizing.table(sizing.parse(["--shards", "64"])))
        for row in rows:
            self.assertIn(row, first)


if __name__ == "__main__":
    unittest.main()
