#!/usr/bin/env python3
"""The comparison of learning: the search for a rate, the table of runs, paired differences."""
import importlib.util
import math
import os
import sys
import tempfile
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "learning")


def load(name):
    """A module of the bench by another name: other benches have modules of these names."""
    spec = importlib.util.spec_from_file_location("learning_" + name,
                                                  os.path.join(BENCH, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ledger = load("ledger")
rows = load("rows")


def search(loss, also=()):
    """The rates that are tried from 1 on, where loss is that of the rate's place in the grid."""
    tried = {}
    while (rate := ledger.next_rate(1.0, -1, tried, also)) is not None:
        place = round(math.log(rate) / math.log(ledger.FACTOR))
        assert place not in tried
        tried[place] = loss(place)
    return tried


class Rates(unittest.TestCase):
    def test_the_best_lies_inside(self):
        for best in (-5, -1, 0, 1, 4):
            tried = search(lambda place, best=best: (place - best) ** 2)
            self.assertEqual(ledger.best_place(-1, tried), best)
            self.assertIn(best - 1, tried)
            self.assertIn(best + 1, tried)

    def test_a_dip_beside_the_best(self):
        def loss(place):
            return 0.3 if place == 1 else abs(place - 6) / 10
        self.assertEqual(ledger.best_place(-1, search(loss)), 1)
        tried = search(loss, [5])
        self.assertEqual(ledger.best_place(-1, tried), 6)
        self.assertIn(7, tried)

    def test_a_row_may_begin_elsewhere(self):
        setting = rows.find(rows.SETTINGS, "adamw")
        for row in rows.ROWS:
            start = ledger.start_rate(setting, row)
            self.assertEqual(ledger.place(setting.rate, start), row.start)
            self.assertEqual(ledger.next_rate(start, -1, {}), start)

    def test_what_diverges_is_worse_than_all(self):
        tried = search(lambda place: math.nan if place > 2 else -place)
        self.assertEqual(ledger.best_place(-1, tried), 2)

    def test_more_may_be_better(self):
        self.assertTrue(ledger.better(1, 2.0, 1.0))
        self.assertFalse(ledger.better(-1, 2.0, 1.0))
        self.assertFalse(ledger.better(1, math.nan, 1.0))


class Table(unittest.TestCase):
    def test_goes_on_where_it_stopped(self):
        with tempfile.TemporaryDirectory() as place:
            path = os.path.join(place, "runs.csv")
            run = ledger.Run("sgd", "topk", 0.282843, 3, 1.5, 0.24, "abc")
            lost = ledger.Run("sgd", "topk", 0.4, 3, math.nan, math.nan, "abc")
            ledger.Ledger(path).add(run)
            ledger.Ledger(path).add(lost)
            table = ledger.Ledger(path)
            self.assertEqual(table.find("sgd", "topk", 0.4 / math.sqrt(2), 3), run)
            self.assertTrue(math.isnan(table.find("sgd", "topk", 0.4, 3).result))
            self.assertIsNone(table.find("sgd", "topk", 0.4, 4))

    def test_the_committed_table_is_readable(self):
        table = ledger.Ledger(os.path.join(BENCH, "runs.csv"))
        self.assertTrue(table.runs)
        for run in table.runs.values():
            self.assertIsNotNone(rows.find(rows.SETTINGS, run.setting), run)
            self.assertIsNotNone(rows.find(rows.ROWS, run.row), run)


class Differences(unittest.TestCase):
    def test_are_paired_by_seed(self):
        mean, error, pairs = ledger.differences({1: 3.0, 2: 5.0, 4: 9.0}, {1: 2.0, 2: 3.0, 3: 0.0})
        self.assertEqual((mean, pairs), (1.5, 2))
        self.assertAlmostEqual(error, 0.5)

    def test_need_two_for_an_error(self):
        self.assertTrue(math.isnan(ledger.differences({1: 3.0}, {1: 2.0})[1]))
        self.assertTrue(math.isnan(ledger.differences({}, {1: 2.0})[0]))


if __name__ == "__main__":
    unittest.main()
