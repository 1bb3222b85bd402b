"""What the study of tests/bench/convergence makes of runs: means, tables, the claim, plots."""
import math
import os
import sys
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "bench", "convergence"))
import cases  # pylint: disable=wrong-import-position
import curves  # pylint: disable=wrong-import-position
import results  # pylint: disable=wrong-import-position

DIGITS, TEXT, *_ = cases.TASKS


def tensor(**change):
    """One tensor's line of the probe; squares of norms."""
    return {"name": "w", "elements": 100, "mean": 4.0, "total": 9.0, "left": 16.0, "deviation": 1.0,
            "missed_total": 3.0, "nonzeros": 10, "live": 8, "missed": 2, "never": 1, "longest": 5,
            **change}


def make_run(case="topk", density=0.01, seed=1, result=90.0, curve=None, lines=None, sent=1e6):
    curve = curve or ((10, result - 20), (20, result - 10), (30, result))
    lines = lines or ({"step": 0, "tensors": [tensor()]},)
    return results.Run(case, density, seed, 30, result, sent, curve, lines)


def dense(seed=1, result=98.0):
    lines = ({"step": 0, "tensors": [tensor(deviation=0, left=0, missed=0, never=0,
                                            missed_total=0, nonzeros=100)]},)
    return make_run("dense", None, seed, result, lines=lines, sent=1e8)


class Selection(unittest.TestCase):
    def test_norms_are_of_all_tensors_together(self):
        two = {"step": 0, "tensors": [tensor(), tensor(mean=12.0, deviation=3.0, left=0.0,
                                                       missed=6, live=8, missed_total=6.0)]}
        found = results.selection(make_run(lines=(two,)))
        self.assertAlmostEqual(found["xi"], math.sqrt(4.0 / 16.0))
        self.assertAlmostEqual(found["residual"], math.sqrt(16.0 / 16.0))
        self.assertAlmostEqual(found["missed"], 8 / 16)
        self.assertAlmostEqual(found["missed_norm"], 9 / 18)
        self.assertAlmostEqual(found["sent"], 20 / 200)

    def test_over_the_steps(self):
        lines = tuple({"step": 7 * i, "tensors": [tensor(deviation=4.0 * i * i, never=4 - i,
                                                         longest=10 * i)]} for i in range(4))
        found = results.selection(make_run(lines=lines))
        self.assertEqual(found["xi_first"], 0)
        self.assertAlmostEqual(found["xi"], 1.5)
        self.assertAlmostEqual(found["never"], 1 / 8)
        self.assertEqual(found["longest"], 30)

    def test_zeros(self):
        self.assertEqual(results.ratio(0, 0), 0)
        self.assertEqual(results.ratio(1, 0), math.inf)
        dead = {"step": 0, "tensors": [tensor(mean=0, total=0, deviation=0, left=0, live=0,
                                              missed=0, never=0, missed_total=0)]}
        found = results.selection(make_run(lines=(dead,)))
        self.assertEqual((found["xi"], found["missed"], found["never"]), (0, 0, 0))


class Rows(unittest.TestCase):
    def test_goal_is_half_way_of_dense(self):
        self.assertEqual(results.goal_of([dense(result=98.0), dense(2, 96.0), make_run()]), 77.0)
        self.assertIsNone(results.goal_of([make_run()]))

    def test_means_over_seeds(self):
        runs = [dense(), dense(2), make_run(result=90.0), make_run(seed=2, result=94.0)]
        goal, rows = results.summarise_task(DIGITS, runs)
        self.assertEqual(goal, 78.0)
        self.assertEqual([row["case"] for row in rows], ["dense", "topk"])
        row = rows[1]
        self.assertEqual((row["result"], row["seeds"], row["diverged"]), (92.0, 2, 0))
        self.assertAlmostEqual(row["deviation"], math.sqrt(8))
        self.assertEqual(row["steps_to_goal"], 20)
        self.assertAlmostEqual(row["bytes_to_goal"], 1e6 * 20 / 30)

    def test_fewer_bits_are_better(self):
        run = make_run(curve=((10, 4.0), (20, 3.0), (30, 2.5)))
        self.assertEqual(results.reached(run, 3.0, more_is_better=False), 20)
        self.assertEqual(results.reached(run, 3.5, more_is_better=True), 10)
        self.assertIsNone(results.reached(run, 2.0, more_is_better=False))

    def test_diverged_runs_are_counted_not_averaged(self):
        gone = results.Run("topk", 0.01, 2, diverged=True)
        _, rows = results.summarise_task(DIGITS, [dense(), make_run(), gone])
        self.assertEqual((rows[1]["result"], rows[1]["diverged"]), (90.0, 1))
        self.assertIn("(1 diverged)", results.learning_table(None, rows, "accuracy"))
        _, rows = results.summarise_task(DIGITS, [dense(), gone])
        for table in (results.learning_table(None, rows, "accuracy"),
                      results.selection_table(rows)):
            self.assertIn("diverged", table.splitlines()[-1])


class Tables(unittest.TestCase):
    def test_they_fit(self):
        names = ["dense"] + [f"a-long-name-{i}" for i in range(3)]
        runs = [make_run(name, None if name == "dense" else 0.001, seed, 88.88 + seed,
                         sent=123456789.0) for name in names for seed in (1, 2)]
        for task in cases.TASKS:
            goal, rows = results.summarise_task(task, runs)
            for table in (results.learning_table(goal, rows, task.measure),
                          results.selection_table(rows)):
                self.assertLessEqual(max(map(len, table.splitlines())), 100, table)
                self.assertEqual(len(table.splitlines()), 2 + len(names))

    def test_shares(self):
        self.assertEqual([results.format_share(value) for value in (0, 1e-9, 0.0123, 0.5, 1)],
                         ["0", "1e-07", "1.2", "50", "100"])


class Claim(unittest.TestCase):
    def runs(self, topk, alldim):
        return [make_run("topk", 0.01, seed, value) for seed, value in enumerate(topk)] + \
            [make_run("adtopk-alldim", 0.01, seed, value) for seed, value in enumerate(alldim)]

    def said(self, task, topk, alldim):
        return results.claim(task, results.summarise_task(task, self.runs(topk, alldim))[1])

    def test_verdicts(self):
        self.assertIn("one seed says nothing", self.said(DIGITS, [90.0], [95.0]))
        self.assertIn("within two standard errors", self.said(DIGITS, [90.0, 96.0], [92.0, 97.0]))
        better = self.said(DIGITS, [90.0, 91.0], [95.0, 96.0])
        self.assertIn("beyond two", better)
        self.assertIn("5.00 ±0.71 better", better)
        self.assertIn("0.500 ±0.071 better", self.said(TEXT, [2.6, 2.7], [2.1, 2.2]))
        self.assertIn("0.500 ±0.071 worse", self.said(TEXT, [2.1, 2.2], [2.6, 2.7]))

    def test_nothing_to_compare(self):
        self.assertEqual(results.claim(DIGITS, results.summarise_task(DIGITS, [dense()])[1]), "")


class Cases(unittest.TestCase):
    def test_all_of_them(self):
        made = cases.make_cases(DIGITS, ["dense", "topk", "adtopk", "new"], (0.1, 0.001))
        self.assertEqual([(case.name, case.density) for case in made],
                         [("dense", None)] + [(name, density) for density in (0.1, 0.001)
                                              for name in ("topk", "adtopk", "adtopk-alldim",
                                                           "new")])
        self.assertEqual(made[3].policy,
                         {"sparsifier": "adtopk", "density": 0.1, "lookahead": 0, "interleave": False})

    def test_threshold_has_a_value_for_each_default_density(self):
        for task in cases.TASKS:
            for case in cases.make_cases(task, ["threshold"], cases.DENSITIES):
                self.assertGreater(case.policy["threshold"], 0)


class Curves(unittest.TestCase):
    def test_well_formed(self):
        runs = [dense()] + [make_run(f"s{i}") for i in range(20)]
        for task in cases.TASKS:
            picture = curves.draw(task, runs, 0.01)
            root = xml.fromstring(picture)
            self.assertTrue(root.tag.endswith("svg"))
            self.assertEqual(picture.count('class="line'), 3 * len(runs))  # two panels, legend

    def test_nothing_sent_has_no_panel_of_bytes(self):
        runs = [make_run(sent=0), dense()]
        self.assertNotIn("Against bytes", curves.draw(DIGITS, runs, 0.01))

    def test_nothing_measured(self):
        self.assertIsNone(curves.draw(DIGITS, [dense()], 0.01))
        self.assertIsNone(curves.draw(DIGITS, [], 0.01))

    def test_mean_of_common_steps(self):
        runs = [make_run(curve=((10, 1.0), (20, 2.0))), make_run(curve=((10, 3.0),))]
        self.assertEqual(curves.mean_curve(runs), ([10], [2.0]))


if __name__ == "__main__":
    unittest.main()
