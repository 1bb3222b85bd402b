#!/usr/bin/env python3
"""The comparison of learning, cut short: it finds a rate, goes on where it stopped, prints its table.

usage: test_learning.py BUILD [unittest's arguments]
"""
import argparse
import dataclasses
import math
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader

from build import BUILD

COMPARE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/learning/compare"))

PEERS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "learning_peers.py")
sys.path.insert(0, os.path.dirname(COMPARE))


class Compare(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-learning-test-")
        self.addCleanup(temporary.cleanup)
        self.runs = os.path.join(temporary.name, "runs.csv")

    def begin_with(self, chosen):
        """Of the recorded runs of dense training on the digits, those that are chosen."""
        with open(os.path.join(os.path.dirname(COMPARE), "runs.csv"), encoding="utf-8") as recorded:
            head, *lines = recorded.readlines()
        with open(self.runs, "w", encoding="utf-8") as runs:
            runs.writelines([head, *(line for line in lines if line.startswith("digits,dense,") and
                                     chosen(line.split(",")))])

    def command(self, *arguments):
        return [COMPARE, "--build", BUILD, "--runs", self.runs, *arguments]

    def run_it(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=280, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout, done.stderr

    def test_interrupted_and_ended(self):
        """Ctrl-C loses nothing: the second call makes only the runs that are missing. So does the first: all
        but two are in its table."""
        self.begin_with(lambda run: run[3] != "1" and run[2:4] != ["0.1", "101"])
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

    def test_trainers_of_torch(self):
        """Each model and each kind of row, in a few steps: numbers and bytes are possible ones."""
        compare = SourceFileLoader("compare", COMPARE).load_module()
        rows = compare.rows
        options = argparse.Namespace(build=BUILD, torch="/usr/bin/python3")
        if subprocess.run([options.torch, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("Debian's Python has no torch")
        with tempfile.TemporaryDirectory(prefix="adtopk-learning-test-") as folder, \
                compare.Cluster(BUILD, 2) as cluster:
            trainers = compare.Trainers(cluster, options, folder)
            compare.unpack(rows.SETTINGS, folder)
            for setting, row, most in (("torch-cnn-sgd", "dense", 33), ("torch-cnn-adamw", "powersgd", 2),
                                       ("torch-lstm-adamw", "default-step", 2),
                                       ("torch-transformer-sgd", "fp16", 16),
                                       ("torch-lstm-adamw", "onebit", 9), ("torch-cnn-adamw", "demo", 2),
                                       ("torch-lstm-adamw", "signum", 33)):
                with self.subTest(setting=setting, row=row):
                    short = dataclasses.replace(rows.find(rows.SETTINGS, setting), steps=4, nodes=2)
                    result, bits = trainers.run(short, rows.find(rows.ROWS, row), short.rate / 10, 1)
                    self.assertTrue(0 < result < 100, result)
                    self.assertTrue(most / 8 < bits <= most, bits)
            short = dataclasses.replace(rows.find(rows.SETTINGS, "torch-cnn-sgd"), steps=4, nodes=2)
            diverged, _ = trainers.run(short, rows.find(rows.ROWS, "dense"), 1e12, 1)
            self.assertTrue(math.isnan(diverged))

    def test_peers(self):
        """The optimisers of others are those of their papers."""
        done = subprocess.run(["/usr/bin/python3", "-B", PEERS], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False)
        if "No module named 'torch'" in done.stderr:
            self.skipTest("Debian's Python has no torch")
        self.assertEqual((done.returncode, done.stdout), (0, "done\n"), done.stderr)

    def test_usage(self):
        self.assertIn("none of the chosen settings", self.run_it("--rows", "fp16", code=2)[1])
        for arguments in (["--settings", "none"], ["--rows", "none"], ["--seeds", "0"]):
            self.assertIn("usage: compare", self.run_it(*arguments, code=2)[1])


if __name__ == "__main__":
    unittest.main()
