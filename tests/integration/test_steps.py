#!/usr/bin/env python3
"""Steps that are not plain: tensors that nobody pushes, loss scales, NaN and infinity, and waits for
single tensors.

usage: test_steps.py BUILD [unittest's arguments]
"""
import math
import os
import threading
import unittest

import reference
from build import BUILD
from cluster import Cluster
from training import TENSORS, WithCluster, policy, read_floats


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


if __name__ == "__main__":
    unittest.main()
