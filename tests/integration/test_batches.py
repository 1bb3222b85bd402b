#!/usr/bin/env python3
"""More tensors while training runs: registered on all ranks between two steps, in force on all nodes.

usage: test_batches.py BUILD [unittest's arguments]
"""
import os
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import share_cluster
from ranks import Job, RankError, turned
from scene import text
from training import read_floats

FIRST = [("w", "f32", "both", (16, 20)), ("bias", "f32", "dense", (16,))]
SECOND = [("adapter.down", "bf16", "list", (16, 40)), ("adapter.up", "f32", "both", (40, 16)),
          ("large", "f32", "dense", (120, 150))]
THIRD = [("head", "f32", "dense", (7, 33))]
HOMES = [0, 0, 1, 1]


def more(tensors):
    return [f"tensor {name} {dtype} {forms} {'x'.join(map(str, shape))}"
            for name, dtype, forms, shape in tensors]


class Batches(unittest.TestCase):
    serial = 0

    @classmethod
    def setUpClass(cls):
        share_cluster(cls, BUILD)

    def job(self, homes=None, **document):
        Batches.serial += 1
        policy = {"reduce": "sum", "density": 0.1, "values": "f32", **document}
        return Job(self.cluster, BUILD, f"batches{Batches.serial}", homes or HOMES,
                   turned(FIRST, Batches.serial), text(**policy), before=["totals"])

    def turns(self, job):
        """Per node the turns of each tensor."""
        return [{one["name"]: one["turn"] for one in
                 self.cluster.ask(node, "--job", job.name, "stats")["jobs"][0]["tensors_detail"]}
                for node in (0, 1)]

    def check_sums(self, job):
        """The sums of all gradients are those of the updates: the residuals are empty."""
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as directory:
            paths = [os.path.join(directory, f"totals{rank.rank}") for rank in job.ranks]
            for rank, path in zip(job.ranks, paths):
                rank.do(f"write-totals {path}")
            totals = [read_floats(path, "d") for path in paths]
        at = 0
        for name, _, _, shape in job.tensors:
            count = 1
            for size in shape:
                count *= size
            given = [sum(part) for part in zip(*(total[at:at + count] for total in totals))]
            got = totals[0][at + count:at + 2 * count]
            at += 2 * count
            self.assertGreater(max(map(abs, given)), 0, name)
            limit = 1e-5 * max(map(abs, given))
            self.assertLess(max(abs(a - b) for a, b in zip(given, got)), limit, name)

    def train(self, homes=None, drain=60, **document):
        with self.job(homes, **document) as job:
            job.join()
            job.each("gradients random 9")
            job.steps(10)
            job.each(*more(turned(SECOND, Batches.serial)), "commit")
            self.assertEqual(job.steps(10)[:3], ("ok", 20, 0))
            job.each(*more(THIRD), "commit")
            self.assertEqual(job.steps(10)[:3], ("ok", 30, 0))
            for turns in self.turns(job):
                self.assertEqual(turns, {"w": 30, "bias": 30, "adapter.down": 20,
                                         "adapter.up": 20, "large": 20, "head": 10})
            job.tensors = FIRST + SECOND + THIRD
            job.each("gradients zero 0")
            job.steps(drain)
            self.check_sums(job)
            for node in (0, 1):
                self.assertEqual(self.cluster.daemons[node].ask("verify", job.name)[0], 0)

    def test_trains_on(self):
        self.train()

    def test_policies(self):
        self.train(scope="rank")
        self.train(sparsifier="topk", sparse_collective="balanced", values="bf16", drain=200)
        self.train(sparsifier="dense", drain=1)

    def test_trainers_elsewhere(self):
        self.train(homes=[0, "r0", "r1", 1])

    def test_large(self):
        """Its arena is reserved beside the loop."""
        with self.job() as job:
            job.join()
            job.steps(2)
            job.each("tensor large f32 dense 1500x1500", "commit")
            self.assertEqual(job.steps(2)[:3], ("ok", 4, 0))

    def test_auto(self):
        with self.job(sparsifier="auto", dense_values="auto", sparse_collective="auto",
                      bucket_bytes="auto", values="bf16") as job:
            job.join()
            job.each("gradients random 3")
            job.steps(20)
            job.each(*more(SECOND), "commit")
            self.assertEqual(job.steps(30)[:3], ("ok", 50, 0))

    def test_policy_change_after(self):
        """Residuals of all batches are converted."""
        with self.job() as job:
            job.join()
            job.each("gradients random 3")
            job.steps(5)
            job.each(*more(SECOND), "commit")
            job.steps(1)
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(self.cluster.daemons[1].ask, "policy", "set", job.name,
                                    "residual=bf16", "sparsifier=topk")
                while not asked.done():
                    self.assertEqual(job.steps(1)[0], "ok")
                self.assertEqual(asked.result()[0], 0, asked.result())
            self.assertEqual(job.steps(5)[0], "ok")

    def expect(self, job, name, *words):
        for rank in job.ranks:
            got, sentence = rank.error()
            self.assertEqual(got, name, sentence)
            for word in words:
                self.assertIn(word, sentence)

    def test_differs_on_a_node(self):
        with self.job() as job:
            job.join()
            job.steps(2)
            for rank in job.ranks[:2]:
                rank.do("tensor more f32 dense 4x5")
            for rank in job.ranks[2:]:
                rank.do("tensor more f32 dense 4x6")
            for rank in job.ranks:
                rank.send("commit")
            self.expect(job, "mismatch", "'more'", "node 0", "node 1")
            job.kill()

    def test_differs_on_a_rank(self):
        with self.job() as job:
            job.join()
            for rank in job.ranks:
                rank.do(f"tensor more{int(rank.rank == 1)} f32 dense 4")
            for rank in job.ranks:
                rank.send("commit")
            self.expect(job, "mismatch", "rank", "tensor 'more")
            job.kill()

    def test_rank_that_does_not_commit(self):
        with self.job() as job:
            job.join()
            job.steps_while(lambda: self.cluster.ask(0, "policy", "set", job.name, "join_timeout=2"))
            for rank in job.ranks[:3]:
                rank.do("tensor more f32 dense 4")
                rank.send("commit")
            for rank in job.ranks[:3]:
                got, sentence = rank.error()
                self.assertEqual(got, "timeout", sentence)
                self.assertIn("rank 3 on node 1", sentence)
                self.assertIn("to commit more tensors", sentence)
            job.kill()

    def test_rank_that_dies_meanwhile(self):
        with self.job() as job:
            job.join()
            for rank in job.ranks[:3]:
                rank.do("tensor more f32 dense 4")
                rank.send("commit")
            job.ranks[3].kill()
            for rank in job.ranks[:3]:
                got, sentence = rank.error()
                self.assertEqual(got, "peer", sentence)
                self.assertIn("rank 3", sentence)
            job.kill()

    def test_rank_that_left_before(self):
        """The others do not wait for it."""
        for ranks in ([0], [0, 1]):
            with self.job() as job:
                job.join()
                job.steps(2)
                for rank in ranks:
                    job.ranks[rank].do("close")
                stay = [rank for rank in job.ranks if rank.rank not in ranks]
                for rank in stay:
                    rank.do("tensor more f32 dense 4")
                for rank in stay:
                    rank.send("commit")
                for rank in stay:
                    got, sentence = rank.error()
                    self.assertEqual(got, "peer", sentence)
                    self.assertIn("left the job", sentence)
                job.kill()

    def test_refused_alone(self):
        """Mistakes of one rank change nothing."""
        with self.job() as job:
            job.join()
            job.steps(2)
            rank = job.ranks[0]
            for commands, words in (
                    (["commit"], "no tensor was registered since"),
                    (["tensor w f32 dense 4"], "registered already")):
                with self.assertRaises(RankError) as caught:
                    rank.do(*commands)
                self.assertIn(words, str(caught.exception))
            self.assertEqual(job.steps(2)[:3], ("ok", 4, 0))
            rank.do("push 0", "tensor more f32 dense 4")
            with self.assertRaises(RankError) as caught:
                rank.do("commit")
            self.assertIn("in the middle of step 4", str(caught.exception))
            with self.assertRaises(RankError) as caught:
                rank.do("push 2")
            self.assertIn("not committed", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
