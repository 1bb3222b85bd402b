#!/usr/bin/env python3
"""Jobs of many sizes, side by side, and their plain operations.

usage: test_jobs.py BUILD [unittest's arguments]
"""
import unittest

from build import BUILD
from cluster import Cluster
from ranks import Job, Rank
from training import TENSORS, WithCluster, policy, text


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


if __name__ == "__main__":
    unittest.main()
