#!/usr/bin/env python3
"""Training through real daemons: equal bits everywhere, nothing lost, nothing invented.

usage: test_training.py BUILD [unittest's arguments]
"""
import array
import json
import math
import os
import subprocess
import tempfile
import threading
import unittest

import digits
import reference
from build import BUILD
from cluster import Cluster
from ranks import Job, Rank

HOMES = [0, 0, 1, 1]
TENSORS = [
    ("fc", "f32", "both", (16, 32)),
    ("bias", "f32", "both", (16,)),
    ("conv", "f32", "dense", (8, 24, 3, 2)),
    ("tall", "f32", "list", (40, 12, 2)),
]
POLICY = {"sparsifier": "adtopk", "density": 0.1, "fibres": "axis1", "interleave": True,
          "scope": "node", "reduce": "mean", "values": "f32"}


def policy(**changes):
    return {**POLICY, **changes}


def text(document):
    return json.dumps(document, separators=(",", ":"))


def read_floats(path, kind="f"):
    values = array.array(kind)
    with open(path, "rb") as source:
        values.frombytes(source.read())
    return values.tolist()


class WithCluster(unittest.TestCase):
    """Two daemons that all tests of a class share; every job has a name of its own."""

    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()  # with exit status 0: sanitizers have found nothing

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name

    def job(self, document=None, tensors=None, homes=None, before=()):
        WithCluster.serial += 1
        return Job(self.cluster, BUILD, f"job{WithCluster.serial}", homes or HOMES,
                   tensors or TENSORS, text(document) if document else "-", before=before)

    def detail(self, job, node=0):
        """What the daemon says about the job's tensors, by name."""
        jobs = self.cluster.ask(node, "--job", job.name, "stats")["jobs"]
        return {tensor["name"]: tensor for tensor in jobs[0]["tensors_detail"]}

    def totals(self, job):
        """Per tensor the sums of all ranks' gradients and of rank 0's updates."""
        paths = [os.path.join(self.directory, f"totals{rank.rank}") for rank in job.ranks]
        for rank, path in zip(job.ranks, paths):
            rank.do(f"write-totals {path}")
        files = [read_floats(path, "d") for path in paths]
        out, at = [], 0
        for _, _, _, shape in job.tensors:
            count = math.prod(shape)
            given = [sum(part) for part in zip(*(file[at:at + count] for file in files))]
            out.append((given, files[0][at + count:at + 2 * count]))
            at += 2 * count
        return out

    def hashes(self, document, steps=6, commands=("gradients random 1",), **options):
        """The hash of the updates after each step of a new job."""
        with self.job(document, **options) as job:
            job.join()
            job.each(*commands)
            return [job.steps(1) for _ in range(steps)]


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
                        {"bucket_bytes": 1}):
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
            self.assertEqual(job.steps(1000)[:3], ("ok", 1000, 0))
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


class Unpushed(WithCluster):
    """A tensor that is not used in some steps: what frameworks drop then is empty."""

    TENSORS = [("used", "f32", "both", (16, 20)), ("rare", "f32", "both", (16, 20)),
               ("half", "f32", "list", (16, 20)), ("bias", "bf16", "dense", (20,))]

    def step(self, job, number):
        """All push "used"; 40 of 60 steps go without "rare"; only node 1 pushes "half", and only
        rank 2 every fifth time "bias"."""
        for rank, process in enumerate(job.ranks):
            pushed = [0] + [1] * (number % 3 == 1) + [2] * (rank >= 2) + \
                [3] * (rank == 2 and number % 5 == 0)
            process.send(*(f"push {tensor}" for tensor in pushed), "finish")
            answers = len(pushed)
            for _ in range(answers):
                process.answer()
        return [process.answer() for process in job.ranks]

    def check(self, document, drain, homes=None):
        with self.job(document, tensors=self.TENSORS, homes=homes, before=["totals"]) as job:
            job.join()
            job.each("gradients random 9")
            for number in range(60):
                answers = self.step(job, number)
                self.assertEqual(len(set(answers)), 1, answers)
            trained = self.totals(job)
            for node in (0, 1):
                turns = {name: one["turn"] for name, one in self.detail(job, node).items()}
                self.assertEqual(turns, {"used": 60, "rare": 20, "half": 60, "bias": 12})
            job.each("gradients zero 0")
            job.steps(drain)
            drained = self.totals(job)
        for t, (given, out) in enumerate(drained):
            size = max(map(abs, given))
            for i, value in enumerate(given):
                self.assertLess(abs(value - out[i]), 1e-5 * size, f"{t}[{i}]")
        return trained, drained

    def test_trainers_elsewhere(self):
        settings = {"trainers_owner": os.geteuid()}
        with Cluster(BUILD, nodes=2, settings=settings) as self.cluster:
            self.check(policy(reduce="sum"), drain=60, homes=[0, "r0", "r1", 1])
            self.cluster.stop()

    def test_sparse(self):
        trained, drained = self.check(policy(reduce="sum"), drain=60)
        self.assertNotEqual(trained[1][1], drained[1][1])
        self.check(policy(reduce="sum", scope="rank", values="bf16"), drain=200)
        self.check(policy(reduce="sum", sparsifier="topk", sparse_collective="oktopk",
                          values="bf16"), drain=200)
        self.check(policy(reduce="sum", sparsifier="topk", sparse_collective="exclusive",
                          values="bf16"), drain=200)

    def test_dense(self):
        """Node 0 sends no "half", but rounds sums of it and keeps the rests."""
        for collective in ("one-shot", "pairwise", "ring"):
            self.check(policy(reduce="sum", sparsifier="dense", dense_values="bf16",
                              dense_collective=collective), drain=10)
        self.check(policy(reduce="sum", sparsifier="dense"), drain=1)


class LossScale(WithCluster):
    """Updates come in the units of what was pushed, residuals do not change with the scale."""

    TENSORS = TENSORS + [("half", "f16", "both", (20, 30)), ("bf", "bf16", "list", (12, 30))]
    SCALES = 1024, 2048, 1, 0.25, 512, 64, 1024

    def run_steps(self, document, scales, homes=None, poisoned=3):
        """What each step answers; a NaN comes in one of them."""
        with self.job(document, self.TENSORS, homes) as job:
            job.join()
            job.each("gradients random 1")
            job.ranks[0].do(f"poison {poisoned} 1 nan")
            answers = []
            for scale in scales:
                job.each(f"scale {scale}")
                answers.append(job.steps(1))
            if homes is None:
                self.assertEqual(self.cluster.daemons[0].ask("verify", job.name)[0], 0)
            return answers

    def test_powers_of_two_change_no_bit(self):
        none = [0] * len(self.SCALES)
        for document in (policy(), policy(values="bf16", scope="rank"),
                         policy(values="f16", sparse_collective="balanced"),
                         policy(sparsifier="topk", sparse_collective="oktopk", values="bf16"),
                         policy(momentum=0.5, clip=3.0),
                         policy(sparsifier="dense"), policy(sparsifier="dense", dense_values="bf16",
                                                            dense_collective="pairwise"),
                         policy(sparsifier="dense", dense_values="f16", dense_collective="ring")):
            for homes in (None, [0, 0], [0, 1]):
                with self.subTest(policy=document, homes=homes):
                    expected = self.run_steps(document, none, homes)
                    self.assertEqual([one[0] for one in expected].count("nonfinite"), 1)
                    self.assertEqual(self.run_steps(document, self.SCALES, homes), expected)

    def test_any_scale_loses_nothing(self):
        with self.job(policy(sparsifier="topk", reduce="sum", density=0.4), homes=[0],
                      before=["totals"]) as job:
            job.join()
            for step, scale in enumerate((1000, 0.3, 7, 1e-3, 12345, 3, 1000, 0.7)):
                job.each(f"gradients {'integer' if step < 4 else 'zero'} 3", f"scale {scale}")
                job.steps(1)
            path = os.path.join(self.directory, "totals")
            job.ranks[0].do(f"write-totals {path}")
            totals, at = read_floats(path, "d"), 0
            for _, _, _, shape in TENSORS:
                numel = math.prod(shape)
                given, got = totals[at:at + numel], totals[at + numel:at + 2 * numel]
                at += 2 * numel
                self.assertLess(max(abs(a - b) for a, b in zip(given, got)), 1e-4)
                self.assertGreater(max(map(abs, given)), 10)

    def differ(self, homes):
        with self.job(policy(), homes=homes) as job:
            job.join()
            job.each("scale 1024")
            job.steps(2)
            job.ranks[1].do("scale 2048")
            for rank in job.ranks:
                rank.send("steps 1")
            for rank in job.ranks:
                name, sentence = rank.error()
                self.assertEqual(name, "mismatch", sentence)
                for word in "step 2", "rank 0", "rank 1", "1024", "2048":
                    self.assertIn(word, sentence)

    def test_ranks_of_a_node_differ(self):
        self.differ([0, 0])

    def test_ranks_of_two_nodes_differ(self):
        self.differ([0, 1])

    def test_no_scale(self):
        with self.job(policy(), homes=[0]) as job:
            job.join()
            for bad in ("nan", "inf", "-1", "1e-39", "2e38"):
                job.ranks[0].do(f"scale {bad}")
                job.ranks[0].send("push 0")
                name, sentence = job.ranks[0].error()
                self.assertEqual(name, "argument")
                self.assertIn("loss scale", sentence)
            job.ranks[0].do("scale 2", "push 0")
            self.assertEqual(job.steps(1)[0], "ok")


class NonFinite(WithCluster):
    """One bad element on one rank withdraws the step everywhere, and leaves no trace."""

    def check(self, document, poison, tensors=None):
        with self.job(document, tensors=tensors) as job:
            job.join()
            job.each("gradients integer 3")
            job.ranks[3].do(f"poison 5 {len(job.tensors) - 1} {poison}")
            before = [job.steps(1) for _ in range(5)]
            self.assertEqual(job.steps(1), ("nonfinite", 5, 1, before[-1][3]))
            after = [job.steps(1) for _ in range(5)]
        with self.job(document, tensors=tensors) as job:  # one that never had that step
            job.join()
            job.each("gradients integer 3")
            self.assertEqual([job.steps(1) for _ in range(5)], before)
            job.each("skip 1")
            never = [job.steps(1) for _ in range(5)]
        self.assertEqual([one[3] for one in after], [one[3] for one in never])

    def test_nan_and_infinity(self):
        for document in (policy(), policy(scope="rank", values="bf16"),
                         policy(sparsifier="dense")):
            for poison in ("nan", "inf"):
                with self.subTest(policy=document, poison=poison):
                    self.check(document, poison)

    def test_half_precision(self):
        for dtype in ("f16", "bf16"):
            for poison in ("nan", "inf"):
                with self.subTest(dtype=dtype, poison=poison):
                    self.check(policy(), poison, [("a", "f32", "both", (8, 32)),
                                                  ("b", dtype, "both", (8, 32))])

    def test_in_every_step(self):
        with self.job(policy()) as job:
            job.join()
            job.each("gradients integer 3")
            for step in range(4):
                job.ranks[step].do(f"poison {step} 0 nan")
                self.assertEqual(job.steps(1)[:3], ("nonfinite", 0, step + 1))
            self.assertEqual(job.steps(3)[:3], ("ok", 3, 4))


class NonFinitePolicies(WithCluster):
    """What becomes of a NaN under the policies that do not take the step back."""

    def test_rejected(self):
        for homes in ([0, 0], [0, 1]):
            with self.job(policy(non_finite="reject"), homes=homes) as job:
                job.join()
                job.each("gradients integer 3")
                job.steps(2)
                job.ranks[1].do("poison 2 0 nan")
                for rank in job.ranks:
                    rank.send("steps 1")
                for rank in job.ranks:
                    name, sentence = rank.error()
                    self.assertEqual(name, "argument", sentence)
                    for word in "rank 1 pushed ", "nan at element 511", "'fc'", "step 2", "reject":
                        self.assertIn(word, sentence)

    def test_updates_stay_until_the_next_push(self):
        """Under propagate alone, a trainer may apply an update late in the next forward pass."""
        for non_finite, stays in (("propagate", True), ("revoke", False)):
            with self.job(policy(non_finite=non_finite), homes=[0, 1]) as job:
                job.join()
                job.steps(2)
                for rank in job.ranks:
                    self.assertEqual(rank.do("update 1", "push 0", "update 1") if stays
                                     else rank.do("update 1"), "1")
                    rank.send(*([] if stays else ["push 0"]), "update 0" if stays else "update 1")
                    if not stays:
                        rank.answer()
                    self.assertEqual(rank.error()[0], "state")
                    rank.do("push 1")
                    rank.send("update 1")
                    self.assertEqual(rank.error()[0], "state")
                job.each("wait 1")
                self.assertEqual(set(job.each("update 1")), {"2"})
                self.assertEqual(job.steps(2)[0], "ok")

    def propagated(self, document):
        path = os.path.join(self.directory, "trace")
        numel = [math.prod(shape) for _, _, _, shape in TENSORS]
        with self.job(policy(non_finite="propagate", **document)) as job:
            job.join()
            job.each("gradients integer 3")
            job.steps(2)
            job.ranks[2].do("poison 2 0 nan", f"trace {path}")
            self.assertEqual(job.steps(3)[:3], ("ok", 5, 0))
            verified = [self.cluster.daemons[node].ask("verify", job.name)[0] for node in (0, 1)]
            self.assertEqual(verified, [0, 0])
        values, at = read_floats(path), 0
        for step in range(3):
            for t, count in enumerate(numel):
                update = values[at:at + count]
                at += count
                nan = sum(map(math.isnan, update))
                others = sum(1 for value in update if value != 0 and not math.isnan(value))
                if (step, t) == (0, 0):
                    self.assertTrue(nan > 0 and others == 0, (nan, others))
                else:
                    self.assertTrue(nan == 0 and others > 0, (step, t, nan, others))

    def test_propagated(self):
        for document in ({}, {"scope": "rank", "values": "bf16"}, {"sparsifier": "dense"},
                         {"sparsifier": "dense", "dense_values": "bf16",
                          "dense_collective": "pairwise"},
                         {"sparsifier": "topk", "sparse_collective": "oktopk", "values": "bf16"}):
            with self.subTest(document):
                self.propagated(document)

    def test_changes_while_it_trains(self):
        with self.job(policy()) as job:
            job.join()
            job.each("gradients integer 3")
            job.ranks[0].do("poison 1 0 inf")
            self.assertEqual(job.steps(2)[:3], ("nonfinite", 1, 1))
            answer = []
            change = threading.Thread(target=lambda: answer.append(self.cluster.daemons[0].ask(
                "policy", "set", job.name, "non_finite=propagate")))
            change.start()
            while change.is_alive():
                job.steps(1)
            self.assertEqual(answer[0][0], 0)
            accepted = job.steps(2)[1]  # it holds from the second step after the request on
            job.ranks[0].do(f"poison {accepted + 1} 0 inf")
            self.assertEqual(job.steps(1)[:3], ("ok", accepted + 1, 1))


class Waiting(WithCluster):
    """A wait for one tensor before the rest is pushed splits its bucket instead of hanging."""

    def check(self, document, waiters):
        plain = self.hashes(document, steps=4)
        with self.job(document) as job:
            job.join()
            job.each("gradients random 1")
            split = []
            for _ in range(4):
                for tensor in (2, 0):
                    for rank in job.ranks:
                        rank.send(f"push {tensor}")
                        if rank.rank in waiters:
                            rank.send(f"wait {tensor}")
                    for rank in job.ranks:
                        for _ in range(2 if rank.rank in waiters else 1):
                            rank.answer()
                split.append(job.steps(1))
        self.assertEqual(split, plain)

    def test_some_and_all(self):
        for document in (policy(), policy(scope="rank"), policy(sparsifier="dense")):
            for waiters in ({0}, {3}, {1, 2}, {0, 1, 2, 3}):
                with self.subTest(policy=document, waiters=waiters):
                    self.check(document, waiters)

    def test_each_for_another(self):
        with self.job(policy()) as job:
            job.join()
            job.each("gradients random 1")
            for rank in job.ranks:
                rank.send(*(f"push {t}" for t in range(4)), f"wait {rank.rank}")
            for rank in job.ranks:
                for _ in range(5):
                    rank.answer()
            self.assertEqual(job.steps(1), self.hashes(policy(), steps=1)[0])

    def test_bad_element_in_a_round_that_is_waited_for(self):
        with self.job(policy()) as job:
            job.join()
            job.ranks[1].do("poison 0 0 nan")
            for rank in job.ranks:
                rank.send("push 0", "wait 0")
            for rank in job.ranks:
                rank.answer()
                self.assertEqual(rank.error()[0], "nonfinite")
            self.assertEqual(job.steps(1)[:3], ("nonfinite", 0, 1))
            self.assertEqual(job.steps(1)[:3], ("ok", 1, 1))

    def test_wait_for_what_was_not_pushed(self):
        with self.job(policy()) as job:
            job.join()
            job.each("push 0")
            for rank in job.ranks:
                rank.send("wait 1", "wait 99", "push 99", "push 0")
                self.assertEqual([rank.error()[0] for _ in range(4)],
                                 ["state", "argument", "argument", "state"])
            self.assertEqual(job.steps(1)[0], "ok")

    def test_what_is_not_pushed_counts_as_zero(self):
        with self.job(policy(sparsifier="dense", reduce="sum")) as job:
            job.join()
            path = os.path.join(self.directory, "trace")
            job.ranks[3].do(f"trace {path}", "gradients integer 1")
            job.ranks[0].do("gradients integer 1", "push 1")
            answers = set(job.each("finish"))
            self.assertEqual(len(answers), 1)
        values = read_floats(path)
        at = math.prod(TENSORS[0][3])
        self.assertEqual(values[at:at + 16], reference.gradient("integer", 1, 0, 0, 1, 16))
        self.assertEqual(set(values[:at]) | set(values[at + 16:]), {0.0})


class PlainOperations(WithCluster):
    def test_sizes(self):
        with self.job(policy()) as job:
            job.join()
            for size in (0, 1, 4096, 3 << 20):
                for root in range(4):
                    job.each(f"broadcast {size} {root}")
                job.each(f"allreduce {size // 4}", "barrier")
            job.steps(1)

    def test_inside_a_step(self):
        with self.job(policy()) as job:
            job.join()
            for _ in range(3):
                job.each("push 0", "allreduce 10", "broadcast 100 2", "push 1", "barrier")
                self.assertEqual(job.steps(1)[0], "ok")

    def test_barrier_waits_for_the_last(self):
        with self.job(policy()) as job:
            job.join()
            for late in job.ranks:
                for rank in job.ranks:
                    if rank is not late:
                        rank.send("barrier")
                late.do("allreduce 0")  # answers, so the daemon had the time to do wrong
                self.assertTrue(all(rank.pending() for rank in job.ranks if rank is not late))
                late.send("barrier")
                for rank in job.ranks:
                    rank.answer()

    def test_different_operations(self):
        with self.job(policy()) as job:
            job.join()
            job.ranks[0].send("barrier")
            job.ranks[1].send("allreduce 5")
            job.ranks[2].send("broadcast 8 0")
            job.ranks[3].send("broadcast 8 1")
            self.assertEqual({rank.error()[0] for rank in job.ranks}, {"mismatch"})


class Sizes(WithCluster):
    def test_one_element(self):
        tensors = [("one", "f32", "both", (1,)), ("two", "bf16", "both", (1, 1, 1)),
                   ("big", "f32", "both", (64, 64))]
        with self.job(policy(), tensors=tensors) as job:
            job.join()
            self.assertEqual(job.steps(5)[0], "ok")

    def test_two_thousand_tensors(self):
        tensors = [(f"layer{i}.weight", "f32", "dense", (4, 16 + i % 5)) for i in range(2000)]
        with self.job(policy(), tensors=tensors, homes=[0, 1]) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")

    def test_hundred_megabytes(self):
        tensors = [("huge", "f32", "list", (1000, 25000))]
        with self.job(policy(density=0.01), tensors=tensors, homes=[0, 1]) as job:
            job.join()
            self.assertEqual(job.steps(2)[0], "ok")
            self.assertEqual(self.detail(job)["huge"]["count"], 250 * 1000)
        with self.job(policy(sparsifier="dense"), tensors=tensors, homes=[0, 1]) as job:
            job.join()
            self.assertEqual(job.steps(1)[0], "ok")

    def test_sixteen_ranks(self):
        homes = [rank % 2 for rank in range(16)]
        for scope in ("node", "rank"):
            with self.job(policy(scope=scope), homes=homes) as job:
                job.join()
                job.each("gradients random 1")
                self.assertEqual(job.steps(5)[0], "ok")

    def test_three_nodes(self):
        with Cluster(BUILD, nodes=3) as cluster:
            hashes = []
            for _ in range(2):
                with Job(cluster, BUILD, f"three{len(hashes)}", [0, 1, 1, 2], TENSORS,
                         text(policy())) as job:
                    job.join()
                    hashes.append([job.steps(1) for _ in range(3)])
            self.assertEqual(hashes[0], hashes[1])
            cluster.stop()


class Jobs(WithCluster):
    def test_side_by_side(self):
        """Four jobs at once get what each gets alone."""
        documents = [policy(), policy(scope="rank"), policy(sparsifier="dense"), policy(fibres="row")]
        alone = [self.hashes(document, steps=1) for document in documents]
        jobs = [self.job(document) for document in documents]
        try:
            for job in jobs:
                job.join()
                job.each("gradients random 1")
            for job in jobs:
                for rank in job.ranks:
                    rank.send("steps 1", "steps 40")
            for job, (expected, *_) in zip(jobs, alone):
                first = {rank.answer() for rank in job.ranks}
                self.assertEqual(first, {" ".join(map(str, expected))})
                self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
        finally:
            for job in jobs:
                job.end()

    def test_names_and_runs(self):
        """The same name and another run id is another job; an ended job's name is free again."""
        address = self.cluster.address(0)
        for _ in range(2):
            ranks = [Rank(BUILD, address, "same", 0, 1, run=run) for run in ("a", "b")]
            for rank in ranks:
                rank.do(rank.opening, "tensor w f32 both 4x4", "commit")
            for rank in ranks:
                self.assertEqual(rank.do("steps 1").split()[:2], ["ok", "1"])
                rank.end()


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
