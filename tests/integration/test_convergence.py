#!/usr/bin/env python3
"""The study of what sparsification does to learning, cut short: real daemons, trainers and probes.

usage: test_convergence.py BUILD [unittest's arguments]
"""
import json
import os
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

from build import ADTOPKCTL, BUILD

STUDY = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/convergence/study"))
STEPS = 15  # measured at 0, 7 and 14


class Study(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-study-test-")
        self.addCleanup(temporary.cleanup)
        self.out = temporary.name

    def run_it(self, *arguments, code=0):
        done = subprocess.run([STUDY, "--build", BUILD, "--out", self.out, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=280, check=False)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def results(self):
        with open(os.path.join(self.out, "results.json"), encoding="utf-8") as file:
            return json.load(file)

    def sparsifiers(self):
        done = subprocess.run([ADTOPKCTL, "--json", "policy", "keys"], stdout=subprocess.PIPE,
                              check=True, text=True)
        key = next(key for key in json.loads(done.stdout)["keys"] if key["name"] == "sparsifier")
        return {word for word in key["values"].split('"')[1::2]}

    def check_dense(self, row):
        self.assertEqual(row["missed"], 0)
        self.assertLess(max(row["xi_first"], row["xi"], row["residual"]), 1e-4)

    def check_sparse(self, row):
        self.assertGreater(row["result"], 0)
        self.assertGreater(row["bytes"], 0)
        self.assertGreater(row["residual"], 0.1)
        self.assertLess(row["sent"], 0.1)

    def test_every_sparsifier(self):
        output = self.run_it("--quick", "--tasks", "digits", "--steps", str(STEPS))
        self.assertLessEqual(max(map(len, output.splitlines())), 100, output)
        task, = self.results()["tasks"]
        rows = {row["case"]: row for row in task["rows"]}
        self.assertEqual(set(rows), self.sparsifiers() | {"adtopk-alldim"})
        self.check_dense(rows["dense"])
        for name in set(rows) - {"dense"}:
            with self.subTest(name):
                self.check_sparse(rows[name])
        self.assertLess(rows["adtopk-alldim"]["missed"], 0.001)
        self.assertGreater(rows["topk"]["missed"], 0.1)
        # The nodes' lists of 1% overlap or not; conv1.weight, which has 288 elements, adds to them.
        self.assertTrue(0.01 <= rows["topk"]["sent"] <= 0.02, rows["topk"]["sent"])
        xml.parse(os.path.join(self.out, "digits-1%.svg"))
        with open(os.path.join(self.out, "table.txt"), encoding="utf-8") as file:
            self.assertIn(file.read(), output)

    def check_task(self, name):
        self.run_it("--quick", "--tasks", name, "--steps", str(STEPS), "--sparsifiers", "dense",
                    "topk")
        task, = self.results()["tasks"]
        self.assertEqual([row["case"] for row in task["rows"]], ["dense", "topk"])
        self.check_dense(task["rows"][0])
        self.check_sparse(task["rows"][1])
        for run in task["runs"]:
            self.assertEqual([line["step"] for line in run["measures"]], [0, 7, 14])

    def test_text(self):
        self.check_task("text")

    def test_batch_norm(self):
        self.check_task("batch-norm")

    def test_transformer(self):
        self.check_task("transformer")

    def test_a_single_worker_has_no_xi(self):
        """C(mean a) and mean C(a) are the same thing; only if the probe's C is the daemon's, of the
        same turn, does it find that."""
        self.run_it("--quick", "--tasks", "digits", "--steps", str(STEPS), "--nodes", "1",
                    "--ranks", "2", "--sparsifiers", "topk", "adtopk", "--seeds", "2")
        task, = self.results()["tasks"]
        self.assertEqual(len(task["rows"]), 3)
        for row in task["rows"]:
            self.assertEqual(row["seeds"], 2)
            self.assertLess(max(row["xi_first"], row["xi"]), 0.01)
            self.assertGreater(row["residual"], 0.1)

    def test_usage(self):
        for arguments in (["--densities", "0"], ["--densities", "2"], ["--seeds", "0"],
                          ["--ranks", "3"], ["--tasks", "nothing"], ["--faster"]):
            with self.subTest(arguments):
                self.assertIn("usage: study", self.run_it(*arguments, code=2))
        self.assertIn('no sparsifier nothing; there are dense',
                      self.run_it("--sparsifiers", "nothing", code=1))

    def test_a_failure_is_told(self):
        self.assertIn('"density" must be a number from',
                      self.run_it("--quick", "--densities", "1e-9", "--sparsifiers", "topk", code=1))

    def test_interrupted(self):
        """Ctrl-C keeps what was measured and leaves nothing running."""
        process = subprocess.Popen(
            [STUDY, "--build", BUILD, "--out", self.out, "--tasks", "digits", "--steps", "20"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not process.stderr.readline().startswith("run 3/"):
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("interrupted", errors)
        self.assertIn("dense", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
