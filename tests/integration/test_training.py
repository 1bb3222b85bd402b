#!/usr/bin/env python3
"""Training through real daemons: equal bits everywhere, nothing lost, nothing invented.

usage: test_training.py BUILD [unittest's arguments]
"""
import json
import math
import os
import subprocess
import unittest

import digits
import reference
from build import BUILD
from cluster import Cluster
from ranks import Job
from training import HOMES, TENSORS, WithCluster, policy, read_floats, text

# The values are the same with and without sanitizers, which look at the way through the code.
SANITIZED = "ADTOPK_TEST_SANITIZED" in os.environ
CONSERVED = 100 if SANITIZED else 1000  # steps
COMPARED = 3 if SANITIZED else 40       # steps, at most


class CommandLine(unittest.TestCase):
    """The example trainers speak like the other programs."""

    def test_help(self):
        for name in ("digits", "text", "transformer"):
            program = os.path.join(BUILD, "client", f"adtopk-{name}")
            done = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
            self.assertTrue(done.stdout.startswith(f"usage: adtopk-{name} --data FILE [OPTION]...\n"), done.stdout)
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80, done.stdout)

    def test_wrong_use(self):
        program = os.path.join(BUILD, "client", "adtopk-digits")
        for words, said in ((["--bogus"], 'unknown option "--bogus"'), (["--bogus=1"], 'unknown option "--bogus=1"'),
                            (["-x"], 'unknown option "-x"'), (["--steps"], "--steps needs a value"),
                            (["--local=1"], "--local takes no value"), (["more"], 'unexpected argument "more"'),
                            ([], "--data FILE is needed")):
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (2, "", f"adtopk-digits: {said}\nadtopk-digits --help lists the options\n"))


class EqualBits(WithCluster):
    """Every rank gets the same bits, and so does every run."""

    def check(self, document, **options):
        first = self.hashes(document, **options)
        self.assertEqual(len(set(first)), len(first))
        self.assertEqual(first, self.hashes(document, **options))

    def test_dense(self):
        for values in ("f32", "bf16", "f16"):
            self.check(policy(sparsifier="dense", dense_values=values))

    def test_default_policy(self):
        self.check(None)

    def test_sparse(self):
        for scope in ("node", "rank"):
            for values in ("f32", "bf16"):
                with self.subTest(scope=scope, values=values):
                    self.check(policy(scope=scope, values=values))

    def test_more_policies(self):
        for changes in ({"sparsifier": "topk"}, {"fibres": "row", "interleave": False},
                        {"fibres": "longest", "reduce": "sum"}, {"indices": "raw"},
                        {"indices": "hashmap"}, {"indices": "rice", "values": "f16"},
                        {"bucket_bytes": 1}, {"sparsifier": "topk", "density": 0.3}):
            with self.subTest(changes):
                self.check(policy(**changes))

    def test_node_order_and_split(self):
        """Ranks spread otherwise, three on one node, and all on one."""
        for homes in ([1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0]):
            with self.subTest(homes=homes):
                self.check(policy(), homes=homes)

    def test_types(self):
        tensors = [(dtype, dtype, "both", (24, 48)) for dtype in ("f32", "f16", "bf16")]
        for scope in ("node", "rank"):
            self.check(policy(scope=scope), tensors=tensors)


class Reference(WithCluster):
    """Every single value of every update against reference.py."""

    def trained(self, document, kind, steps, tensors, homes=None):
        """Trains with a trace; returns the updates, [step][tensor], and which tensors are dense."""
        path = os.path.join(self.directory, "trace")
        with self.job(document, tensors=tensors, homes=homes) as job:
            job.join()
            job.each(f"gradients {kind} 5")
            job.ranks[-1].do(f"trace {path}")
            job.steps(steps)
            detail = self.detail(job)
        values = iter(read_floats(path))
        updates = [[[next(values) for _ in range(math.prod(shape))]
                    for _, _, _, shape in tensors] for _ in range(steps)]
        return updates, [detail[name]["sparsifier"] == "dense" for name, _, _, _ in tensors]

    def check(self, document, kind="integer", steps=7, tensors=None, homes=None, tolerance=0.0):
        tensors = tensors or TENSORS
        steps = min(steps, COMPARED)
        updates, dense = self.trained(document, kind, steps, tensors, homes)
        places = homes or HOMES
        self.assertIn(False, dense)
        for t, (name, dtype, _, shape) in enumerate(tensors):
            expected = reference.Tensor(shape, places, document, dense[t])
            for step in range(steps):
                gradients = [reference.gradient(kind, 5, rank, step, t, expected.count, dtype)
                             for rank in range(len(places))]
                want = expected.step(gradients)
                got = updates[step][t]
                wrong = [i for i in range(expected.count)
                         if not abs(want[i] - got[i]) <= tolerance * max(1.0, abs(want[i]))]
                self.assertEqual(wrong, [], f"tensor {name}, step {step}: " + ", ".join(
                    f"[{i}] is {got[i]}, not {want[i]}" for i in wrong[:4]))

    def test_exact(self):
        """Integers: every sum is exact, so every bit of the update is known, ties included."""
        for scope in ("node", "rank"):
            for fibres in ("axis1", "row", "longest"):
                for changes in ({}, {"interleave": False, "reduce": "sum"}, {"values": "bf16"}):
                    with self.subTest(scope=scope, fibres=fibres, **changes):
                        self.check(policy(scope=scope, fibres=fibres, **changes))

    def test_topk(self):
        for scope in ("node", "rank"):
            self.check(policy(sparsifier="topk", scope=scope))

    def test_random(self):
        self.check(policy(), kind="random", steps=30, tolerance=1e-5)
        self.check(policy(scope="rank"), kind="random", steps=10, tolerance=1e-5)

    def test_half_precision(self):
        tensors = [(dtype, dtype, "both", (24, 48)) for dtype in ("f16", "bf16")]
        self.check(policy(), tensors=tensors)
        self.check(policy(scope="rank"), kind="random", steps=4, tensors=tensors, tolerance=1e-5)

    def test_rounded_values(self):
        """Small fractions: sums are exact in f32, but after some steps what is sent is rounded."""
        tensors = [(dtype, dtype, "both", (12, 40)) for dtype in ("f16", "bf16")]
        for scope in ("node", "rank"):
            for sparsifier in ("adtopk", "topk"):
                self.check(policy(scope=scope, values="bf16", sparsifier=sparsifier, density=0.03),
                           kind="random", steps=40, tensors=tensors)

    def test_other_worlds(self):
        self.check(policy(scope="rank"), homes=[1, 0, 1], tolerance=1e-6)  # thirds
        self.check(policy(), homes=[0])


class Conservation(WithCluster):
    """What went in is what was applied and what is left, element by element and in the ledger."""

    TENSORS = [("w", "f32", "dense", (8, 20)), ("conv", "f32", "both", (6, 20, 3)),
               ("bias", "f32", "both", (20,))]

    def ledger(self, job, which):
        """A ledger's plain sum over both nodes, a tensor each."""
        details = [self.detail(job, node) for node in (0, 1)]
        return [sum(detail[name][which][0] for detail in details) for name, _, _, _ in job.tensors]

    def check(self, document, drain, least=0.01, **job_options):
        """least: what the residual of the first tensor reaches somewhere, or nothing is tested."""
        job_options.setdefault("tensors", self.TENSORS)
        with self.job(document, before=["totals"], **job_options) as job:
            job.join()
            job.each("gradients random 9")
            self.assertEqual(job.steps(CONSERVED)[:3], ("ok", CONSERVED, 0))
            trained = self.totals(job)
            inputs, applied = self.ledger(job, "input"), self.ledger(job, "applied")
            # Zero gradients until the residuals have come out: they are what was left.
            job.each("gradients zero 0")
            job.steps(drain)
            drained = self.totals(job)
        factor = len(job_options.get("homes", HOMES)) if document["reduce"] == "mean" else 1
        for t, (given, late) in enumerate(drained):
            early = trained[t][1]
            size = max(map(abs, given))
            for i, value in enumerate(given):
                self.assertLess(abs(value - factor * late[i]), 1e-5 * size, f"{t}[{i}]")
            size = sum(map(abs, given))
            residual = factor * (sum(late) - sum(early))
            self.assertLess(abs(inputs[t] - sum(given)), 1e-5 * size)
            self.assertLess(abs(applied[t] - factor * sum(early)), 1e-5 * size)
            self.assertLess(abs(inputs[t] - applied[t] - residual), 1e-5 * size)
        self.assertGreater(max(abs(a - b) for a, b in zip(drained[0][1], trained[0][1])), least)

    def test_by_node(self):
        self.check(policy(), drain=60)

    def test_by_rank(self):
        self.check(policy(scope="rank", reduce="sum"), drain=60)

    def test_rounded_values(self):
        self.check(policy(values="bf16"), drain=200)
        self.check(policy(values="bf16", scope="rank"), drain=200)
        self.check(policy(values="f16"), drain=200)
        self.check(policy(values="int8"), drain=200)
        self.check(policy(values="int8", scope="rank"), drain=200)
        for values in ("two", "sign", "int4", "int3"):
            self.check(policy(values=values), drain=400)
        self.check(policy(values="two", scope="rank"), drain=400)

    def test_rounded_dense(self):
        self.check(policy(sparsifier="dense", dense_values="bf16"), drain=10, least=1e-6)

    def test_updates_in_16_bits(self):
        """What 16 bits cut off the updates comes out later. Sums of eight gradients need rounding."""
        tensors = [("w", "bf16", "dense16", (8, 20)), ("conv", "f16", "both16", (6, 20, 3)),
                   ("bias", "bf16", "dense16", (20,))]
        for document in (policy(), policy(scope="rank", values="bf16", reduce="sum"),
                         policy(sparsifier="topk", sparse_collective="balanced", values="bf16"),
                         policy(sparsifier="dense", dense_values="bf16"),
                         policy(sparsifier="dense", reduce="sum")):
            with self.subTest(policy=document):
                self.check(document, 200, least=1e-6, tensors=tensors, homes=[0, 1] * 4)

    def test_rounded_sums(self):
        """Owners round sums: all of it comes out in the end."""
        for nodes in (2, 3, 4):
            homes = [rank % nodes for rank in range(nodes + 1)]
            with Cluster(BUILD, nodes=nodes) as cluster:
                for turn, (collective, reduce) in enumerate((
                        ("allreduce", "sum"), ("one-shot", "sum"), ("pairwise", "sum"),
                        ("ring", "sum"), ("ring", "mean"))):
                    ranks = nodes + 1 if reduce == "mean" else 1
                    document = policy(sparsifier="dense", dense_values="bf16", reduce=reduce,
                                      dense_collective=collective)
                    with self.subTest(nodes=nodes, collective=collective, reduce=reduce), \
                            Job(cluster, BUILD, f"rounded{turn}", homes,
                                [("w", "f32", "dense", (300, 300)), ("b", "f32", "both", (7,))],
                                text(document), before=["totals"]) as job:
                        job.join()
                        job.each("gradients random 5")
                        self.assertEqual(job.steps(20)[:3], ("ok", 20, 0))
                        trained = self.totals(job)
                        job.each("gradients zero 0")
                        job.steps(10)
                        drained = self.totals(job)
                        for given, out in drained:
                            apart = max(abs(a - b * ranks) for a, b in zip(given, out))
                            self.assertLess(apart, 1e-5 * max(map(abs, given)))
                        self.assertTrue(trained[0][1] != drained[0][1], "nothing was rounded")
                cluster.stop()


class Digits(WithCluster):
    """The example trainer ends with the same parameters on every rank."""

    def setUp(self):
        super().setUp()
        self.data = digits.unpack(self.directory)

    def train(self, job, document):
        log = os.path.join(self.directory, job + ".log")
        rules = os.path.join(self.directory, job + ".json")
        with open(rules, "w", encoding="utf-8") as out:
            json.dump(document, out)
        ranks = digits.start(self, self.cluster, HOMES, self.data, "--steps", "30", "--job", job,
                             "--policy", rules, "--log", log)
        parameters = digits.parameters(self, ranks)
        with open(log, encoding="utf-8") as lines:
            self.assertEqual(json.loads(lines.readlines()[-1])["parameter_hash"], parameters)
        return parameters

    def test_full_device(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [digits.TRAINER, "--data", self.data, "--local", "--steps", "1"],
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)

    def test_same_parameters(self):
        dense = self.train("dense", {"sparsifier": "dense"})
        sparse = self.train("sparse", {})
        self.assertNotEqual(dense, sparse)
        self.assertEqual(self.train("again", {}), sparse)


if __name__ == "__main__":
    unittest.main()
