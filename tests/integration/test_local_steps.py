#!/usr/bin/env python3
"""Local steps: with one between exchanges and plain averaging, training is what it is with gradients;
with several it learns through the same daemons, dense and sparse.

usage: test_local_steps.py BUILD [unittest's arguments]
"""
import gzip
import json
import os
import subprocess
import tempfile
import unittest

from build import BUILD
from cluster import Cluster

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = os.path.join(HERE, "../data/kjv-pentateuch.txt.gz")
PROGRAM = os.path.join(BUILD, "client", "adtopk-text")
SIZES = ["--hidden", "48", "--embedding", "8", "--context", "6", "--batch", "64"]
SPARSE_LOCO = {"sparsifier": "adtopk", "fibres": "chunk", "interleave": False, "density": 0.03,
               "values": "two", "beta": 0.95, "lookahead": 0}


class LocalSteps(unittest.TestCase):
    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-local-steps-", dir="/tmp")
        cls.addClassCleanup(temporary.cleanup)
        cls.directory = temporary.name
        with gzip.open(TEXT) as packed, open(os.path.join(cls.directory, "text"), "wb") as out:
            out.write(packed.read(300_000))

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def path(self, name):
        return os.path.join(self.directory, name)

    def start(self, policy, *options):
        """A job of two ranks with these options each, and its name."""
        LocalSteps.serial += 1
        job = f"job{self.serial}"
        with open(self.path("policy.json"), "w", encoding="utf-8") as out:
            json.dump(policy, out)
        return job, [subprocess.Popen(
            [PROGRAM, "--data", self.path("text"), "--address", self.cluster.address(rank), "--job",
             job, "--rank", str(rank), "--world", "2", "--policy", self.path("policy.json"),
             "--log", self.path("log.jsonl"), *SIZES, *own],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank, own in enumerate(options)]

    def train(self, policy, *options):
        """The log's lines of the steps, the final line, and the job's statistics."""
        job, ranks = self.start(policy, options, options)
        for rank in ranks:
            _, errors = rank.communicate(timeout=100)
            self.assertEqual(rank.returncode, 0, errors)
        with open(self.path("log.jsonl"), encoding="utf-8") as log:
            lines = [json.loads(line) for line in log]
        stats = next(one for one in self.cluster.stats(0)["jobs"] if one["name"] == job)
        return [line for line in lines if "loss" in line], lines[-1], stats

    def test_one_step_is_averaging(self):
        """The mean of the ranks' parameters after a step of momentum SGD is what the mean gradient
        gives, so the losses are the same to rounding."""
        options = ("--steps", "30", "--warmup", "5", "--lr", "0.2")
        dense = {"sparsifier": "dense"}
        want, want_end, _ = self.train(dense, *options)
        have, have_end, stats = self.train(dense, *options, "--local-steps", "1")
        self.assertEqual(stats["steps"], 30)
        for a, b in zip(want, have, strict=True):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=2e-4)
        self.assertAlmostEqual(want_end["test_loss"], have_end["test_loss"], delta=2e-4)

    def test_several_steps(self):
        """DiLoCo and SparseLoCo learn, and exchange once in eight steps, and after the last one."""
        options = ("--steps", "84", "--warmup", "10", "--local-steps", "8", "--optimiser", "adamw",
                   "--evaluate-every", "40")
        for policy, outer in (({"sparsifier": "dense"},
                               ("--outer-lr", "0.7", "--outer-momentum", "0.9")),
                              (SPARSE_LOCO, ()), ({}, ())):
            steps, end, stats = self.train(policy, *options, *outer)
            self.assertEqual(stats["steps"], 11)
            self.assertLess(end["test_loss"], 0.85 * steps[0]["loss"], policy)

    def test_ranks_that_differ(self):
        """They would train apart, or wait for each other in vain: the option is named at once."""
        for here, there, words in (
                (("--lr", "0.5"), ("--lr", "0.25"), "--lr 0.25, but rank 0 with --lr 0.5"),
                (("--local-steps", "4"), ("--local-steps", "2"),
                 "--local-steps 2, but rank 0 with --local-steps 4"),
                (("--optimiser", "adamw"), (), "--optimiser sgd, but rank 0 with --optimiser adamw"),
                ((), ("--weight-decay", "0"), "--weight-decay 0, but rank 0")):
            _, ranks = self.start({}, here, there)
            errors = [rank.communicate(timeout=60)[1] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [1, 1], errors)
            self.assertIn("1 of 2 ranks train with other options than rank 0", errors[0])
            self.assertIn(words, errors[1])

    def test_refused(self):
        for options, words in (
                (("--outer-lr", "0.5"), "need --local-steps"),
                (("--local-steps", "0"), "expected a whole number"),
                (("--local-steps", "2", "--outer-momentum", "1"), "below 1"),
                (("--local-steps", "2", "--corrected"), "--corrected"),
                (("--local-steps", "2", "--evaluate-every", "3"), "multiple")):
            done = subprocess.run([PROGRAM, "--data", self.path("text"), *options], check=False,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
