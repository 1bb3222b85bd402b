#!/usr/bin/env python3
"""The comparison of learning, cut short: it finds a rate, goes on where it stopped, prints its table.

usage: test_learning.py BUILD [unittest's arguments]
"""
import os
import signal
import subprocess
import tempfile
import unittest

from build import BUILD

COMPARE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/learning/compare"))


class Compare(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-learning-test-")
        self.addCleanup(temporary.cleanup)
        self.runs = os.path.join(temporary.name, "runs.csv")

    def command(self, *arguments):
        return [COMPARE, "--build", BUILD, "--runs", self.runs, *arguments]

    def run_it(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=280, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def test_interrupted_and_ended(self):
        """Ctrl-C loses nothing: the second call makes only the runs that are missing."""
        what = ("--settings", "digits", "--rows", "dense", "--seeds", "1")
        process = subprocess.Popen(self.command(*what), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertIn("rate 0.1, seed 101", process.stderr.readline())
        self.assertIn("digits: dense, rate", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("interrupted", errors)
        table, errors = self.run_it(*what)
        self.assertNotIn("rate 0.1, seed 101", errors)
        self.assertIn("**digits**: adtopk-digits, sgd, nodes 4", table)
        self.assertRegex(table, r"\| dense \| 32(\.\d)? \| 0\.\d+ \| 1 \| 9\d\.\d+ \|")
        self.assertEqual(self.run_it(*what), (table, ""))

    def test_usage(self):
        for arguments in (["--settings", "none"], ["--rows", "none"], ["--seeds", "0"]):
            self.assertIn("usage: compare", self.run_it(*arguments, code=2)[1])


if __name__ == "__main__":
    unittest.main()
