"""deploy/report.py: its numbers, its errors and its plot, on small runs made up here."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy")
sys.dont_write_bytecode = True  # deploy/ may belong to somebody else
sys.path.insert(0, DEPLOY)
import plot  # noqa: E402
import report  # noqa: E402

SECONDS = {"compute": 0.004, "wait": 0.002, "apply": 0.001}
FINAL = {"final": True, "steps": 10, "withdrawn": 0, "world": 4, "test_accuracy": 0.98,
         "test_loss": 0.5, "parameter_hash": "a1", "training_seconds": 2.0, "seconds": SECONDS}


def steps(loss=lambda step: 2.0 / step, count=10):
    return [{"step": step, "loss": loss(step + 1), "lr": 0.1, "withdrawn": False,
             "seconds": SECONDS} for step in range(count)]


def stats(sent=1000, sparse=0, nonzeros=0, **changes):
    job = {"name": "digits", "steps": 10, "tensors": 2, "wire_bytes_sent": sent,
           "dense_bytes": 4000, "sparse_bytes_sent": sparse, "nonzeros_sent": nonzeros,
           "phase_seconds": {"select": 0.1, "exchange": 0.2, "reduce": 0.3, "settle": 0.4}}
    return {"schema": 1, "jobs": [{**job, **changes}]}


def good_run():
    """Files of a good pair of runs: name to list of lines, or to one document."""
    return {"dense.log": steps() + [FINAL],
            "sparse.log": steps() + [{**FINAL, "test_accuracy": 0.97}],
            "dense.json": stats(sent=80000), "sparse.json": stats(1000, 800, 200)}


def without(record, name):
    return {key: value for key, value in record.items() if key != name}


class Report(unittest.TestCase):
    def run_report(self, files, *extra):
        """Runs the report on files; returns (status, stdout, stderr, the SVG or None)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(content if isinstance(content, str) else
                               "".join(json.dumps(line) + "\n" for line in content)
                               if isinstance(content, list) else json.dumps(content))
            run = subprocess.run(
                [sys.executable, "-B", os.path.join(DEPLOY, "report.py"), "--svg", "out.svg",
                 "--dense-log", "dense.log", "--dense-stats", "dense.json",
                 "--sparse-log", "sparse.log", "--sparse-stats", "sparse.json",
                 *extra], cwd=folder, capture_output=True, text=True)
            self.assertNotIn("Traceback", run.stderr)
            svg = None
            if os.path.exists(os.path.join(folder, "out.svg")):
                with open(os.path.join(folder, "out.svg"), encoding="utf-8") as file:
                    svg = file.read()
            return run.returncode, run.stdout, run.stderr, svg

    def assert_error(self, changes, words):
        status, _, error, svg = self.run_report({**good_run(), **changes})
        self.assertEqual(status, 1, words)
        self.assertIn(words, error)
        self.assertIsNone(svg)

    def assert_row(self, table, *cells):
        rows = [line.split() for line in table.splitlines()]
        self.assertIn(" ".join(cells).split(), rows, table)

    def test_table(self):
        status, table, error, _ = self.run_report(good_run())
        self.assertEqual((status, error), (0, ""))
        self.assert_row(table, "test accuracy", "98.00%", "97.00%", "-1.00 points")
        self.assert_row(table, "test loss", "0.5000", "0.5000", "as much")
        self.assert_row(table, "bytes a node sent", "80 kB", "1 kB", "80 times less")
        self.assert_row(table, "bits per non-zero", "-", "32.0", "-")
        self.assert_row(table, "step time, median", "7.000 ms", "7.000 ms", "as much")
        self.assert_row(table, "trainer: wait", "2.000 ms", "2.000 ms", "as much")
        self.assert_row(table, "daemon: settle", "40.000 ms", "40.000 ms", "as much")
        self.assertTrue(table.startswith("a model: 10 steps, 4 ranks, 1 nodes\n"), table)
        self.assertIn("a rounded value", table)

    def test_means_over_nodes(self):
        files = {**good_run(), "second.json": stats(3000, 2400, 300)}
        _, table, _, _ = self.run_report(files, "--sparse-stats", "sparse.json", "second.json")
        self.assert_row(table, "bytes a node sent", "80 kB", "2 kB", "40 times less")
        self.assert_row(table, "bits per non-zero", "-", "51.2", "-")

    def test_plot(self):
        _, _, _, svg = self.run_report(good_run(), "--sparse-name", "1% <of> it", "--trained", "a & b",
                                         "--mbits", "8")
        picture = xml.dom.minidom.parseString(svg)
        self.assertEqual(len(picture.getElementsByTagName("path")), 2 + 4)  # legend and curves
        self.assertEqual(len(picture.getElementsByTagName("circle")), 2 + 4 + 4 * 10)
        self.assertIn("1% &lt;of&gt; it: each node sent 1 kB", svg)
        self.assertIn(">a &amp; b</text>", svg)
        self.assertIn("on a link of 8 Mbit/s", svg)
        for outside in ("<script", "href", "url(", "@import", "@font-face"):
            self.assertNotIn(outside, svg)

    def test_more(self):
        _, table, _, _ = self.run_report({**good_run(), "sparse.json": stats(120000)})
        self.assert_row(table, "bytes a node sent", "80 kB", "120 kB", "1.5 times more")

    def test_rounding_to_a_thousand(self):
        for sparse, words in (("998", "998 times less"), ("999.6", "1,000 times less"), ("1234.5", "1,234 times less")):
            self.assertEqual(report.format_ratio(float(sparse), 1), words)

    def test_nothing_sent(self):
        status, _, _, svg = self.run_report({**good_run(), "sparse.json": stats(0)})
        self.assertEqual(status, 0)
        self.assertIn("each node sent 0 B", svg)

    def test_checks(self):
        limits = {"--least-accuracy": (97, 97.1), "--most-points-lost": (1, 0.9),
                  "--least-ratio": (4, 5)}  # one that holds, one that does not
        for failing in [None, *limits]:
            options = [str(word) for option, (good, bad) in limits.items()
                       for word in (option, bad if option == failing else good)]
            files = {**good_run(), "sparse.log": steps() + [{**FINAL, "test_accuracy": 0.9701}],
                     "dense.json": stats(80000, dense_bytes=4000)}
            status, table, error, svg = self.run_report(files, *options)
            verdicts = [line.split()[0] for line in table.splitlines()[-3:]]
            self.assertEqual(verdicts, ["FAILED" if option == failing else "ok"
                                        for option in limits], table)
            self.assertEqual((status, error), (0 if failing is None else 1, ""))
            self.assertIsNotNone(svg)

    def test_bad_logs(self):
        first = steps()[0]
        for lines, words in [
                ([without(first, "loss"), FINAL], 'dense.log:1: field "loss" is missing'),
                ([{**first, "seconds": 1}, FINAL], 'field "seconds" is not an object'),
                ([{**first, "seconds": {}}, FINAL], 'seconds: field "compute" is missing'),
                ([{**first, "loss": float("nan")}, FINAL], 'field "loss" is not a finite number'),
                ([{**first, "loss": 10 ** 400}, FINAL], 'field "loss" is not a finite number'),
                ([{**first, "loss": "2"}, FINAL], 'field "loss" is not a finite number'),
                ([{**first, "loss": None}, FINAL], 'field "loss" is not a finite number'),
                ([{**first, "seconds": {**SECONDS, "wait": -1}}, FINAL],
                 'field "wait" is -1, less than 0'),
                ([first, first, FINAL], "dense.log:2: step 0 does not follow step 0"),
                ([first], "no final record: the training did not end"),
                ([FINAL], "no steps"),
                ([first, FINAL, first], "dense.log:3: a record after the final one"),
                ([first, without(FINAL, "test_accuracy")], 'field "test_accuracy" is missing'),
                ([first, {**FINAL, "test_accuracy": 98}], "not between 0 and 1"),
                ('{"step": 1, "step": 2}', 'field "step" comes twice'),
                ('{"step": 1', "dense.log:1: not JSON"),
                ("[" * 100000, "dense.log:1: not JSON"),
                ("[1]", "not a JSON object")]:
            with self.subTest(words):
                self.assert_error({"dense.log": lines}, words)

    def test_bad_stats(self):
        for document, words in [
                ({**stats(), "schema": 2}, "schema 2, this program reads schema 1"),
                (without(stats(), "jobs"), 'dense.json: field "jobs" is missing'),
                ({**stats(), "jobs": []}, "has 0 jobs"),
                ({**stats(), "jobs": stats()["jobs"] * 2}, "has 2 jobs, name one"),
                ({**stats(), "jobs": 5}, '"jobs" is not a list of objects'),
                (stats(steps=0), 'field "steps" is 0, less than 1'),
                (stats(phase_seconds={"select": 1}), 'phase_seconds: field "exchange" is missing'),
                (stats(wire_bytes_sent=None), 'field "wire_bytes_sent" is not a finite number')]:
            with self.subTest(words):
                self.assert_error({"dense.json": document}, words)

    def test_named_job(self):
        two = {"schema": 1, "jobs": stats()["jobs"] + stats(name="other", sent=5000)["jobs"]}
        files = {**good_run(), "dense.json": two}
        _, table, _, _ = self.run_report(files, "--dense-job", "other")
        self.assert_row(table, "bytes a node sent", "5 kB", "1 kB", "5 times less")
        status, _, error, _ = self.run_report(files, "--dense-job", "none")
        self.assertEqual(status, 1)
        self.assertIn('job "none" is not among', error)

    def test_missing_file(self):
        status, _, error, _ = self.run_report(good_run(), "--dense-log", "nowhere.log")
        self.assertEqual(status, 1)
        self.assertIn("nowhere.log", error)


class Plot(unittest.TestCase):
    def test_time(self):
        """80 kB of 10 steps at 8 Mbit/s take 8 ms per step, beside the 7 ms that were measured."""
        run = report.Run("a", 1, 1, [1.0] * 10, 1, 1, 1, 0.007, {}, {}, 1, 80000, None)
        curve, = report.curves([run], 8)
        self.assertAlmostEqual(curve.times()[0], 0.015)
        self.assertAlmostEqual(curve.times()[-1], 0.15)

    def test_bytes(self):
        for count, words in [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1520000, "1.52 MB"),
                             (999999, "1 MB"), (5e15, "5e+03 TB")]:
            self.assertEqual(plot.format_bytes(count), words)

    def test_ticks(self):
        self.assertEqual(plot.linear_ticks(0, 440), [0, 100, 200, 300, 400])
        self.assertEqual(plot.log_ticks(800, 2e6), [1000, 1e4, 1e5, 1e6])
        self.assertEqual(plot.log_ticks(8, 200), [10, 20, 50, 100, 200])

    def test_smooth_keeps_lines(self):
        line = [3.0 - 0.01 * index for index in range(120)]
        for got, want in zip(plot.smooth(line)[:118], line):
            self.assertAlmostEqual(got, want, places=9)
        self.assertEqual(plot.smooth([2.0] * 200), [2.0] * 200)

    def test_odd_curves(self):
        for losses in ([0.7], [0.7] * 100, [0.0] * 5, [1.0, 0.0, 3.0], [1e-300, 1e300]):
            svg = plot.draw([plot.Curve("a", losses, 10, 1), plot.Curve("b", losses, 2e12, 1e6)], "c", "1 Mbit/s")
            xml.dom.minidom.parseString(svg)
            for word in ("nan", "inf"):
                self.assertNotIn(word, svg.lower().replace("training", ""))


if __name__ == "__main__":
    unittest.main()
