#!/usr/bin/env python3
"""Two builds in one cluster. Where their formats differ by one version each is refused as deploy/wire.md
says, and a job of nodes of one build beside them does not notice. Where only the release differs they
train together.

usage: test_versions.py BUILD [unittest's arguments]
"""
import os
import re
import unittest

from build import BUILD
from cluster import Cluster
from control import TENSORS
from ranks import Job, RankError
from scene import text
from service import wait_for

OLD, NEW = 0, 1
PINNED = text(sparsifier="adtopk", density=0.05, sparse_collective="allgather", values="bf16")


class Versions(unittest.TestCase):
    def start(self, other, **more):
        """Node 1 is of another release, if one is named: tests/integration/adtopkd-OTHER."""
        cluster = Cluster(BUILD, nodes=3, **more)
        self.addCleanup(cluster.close)
        daemon = cluster.daemons[NEW]
        if other is not None:
            daemon.programs = {**daemon.programs,
                               "adtopkd": os.path.join(BUILD, "tests", "integration", f"adtopkd-{other}")}
        return cluster

    def job(self, cluster, name, homes, policy="-"):
        job = Job(cluster, BUILD, name, homes, TENSORS, policy)
        self.addCleanup(job.kill)
        return job

    def assert_trains(self, cluster):
        """Nodes of one release, also while they have to do with another one."""
        job = self.job(cluster, "beside", [0, 2])
        self.assertEqual(job.join().steps(5)[0], "ok")
        job.end()

    def test_exchange(self):
        cluster = self.start("exchange")
        cluster.start()
        with self.assertRaises(RankError) as refused:
            self.job(cluster, "mixed", [0, 1]).join()
        said = re.search(r"the daemons of nodes [01] and [01] exchange in other ways "
                         r"\(versions ([0-9]+) and ([0-9]+)\): run the same release on both", str(refused.exception))
        self.assertIsNotNone(said, refused.exception)
        self.assertEqual(abs(int(said[1]) - int(said[2])), 1)
        self.assert_trains(cluster)

    def test_packets(self):
        """Without keys nobody knows whose packets they are."""
        for keys in (True, False):
            cluster = self.start("packet", keys=keys)
            cluster.start(connected=False)
            for pair in ((OLD, NEW), (NEW, OLD)):
                wait_for(lambda: self.unreadable(cluster, *pair, keys=keys) > 0)
                self.assertEqual(self.peer(cluster, *pair)["state"], "down")
            if not keys:
                self.assertIn("are all nodes of the same release?", cluster.daemons[OLD].ask("peers")[1])
            wait_for(lambda: self.peer(cluster, 0, 2)["state"] == "up")
            self.assert_trains(cluster)
            cluster.close()

    def test_release(self):
        """One job of two releases whose formats are the same: the bits are those of one release."""
        answers = []
        for other in ("release", None):
            cluster = self.start(other)
            cluster.start()
            versions = [cluster.status(node)["version"] for node in (OLD, NEW)]
            self.assertEqual(versions[OLD] == versions[NEW], other is None, versions)
            job = self.job(cluster, "mixed", [0, 0, 1, 2], PINNED)
            job.join()
            answers.append(job.steps(40))
            self.assertEqual(answers[-1][0], "ok")
            self.assertIn("conserved", cluster.daemons[NEW].ask("verify", "mixed")[1])
            job.end()
            cluster.stop()
        self.assertEqual(answers[0], answers[1])

    def unreadable(self, cluster, node, other, keys):
        return self.peer(cluster, node, other)["malformed"] if keys else \
            cluster.ask(node, "peers")["strangers"]["unreadable"]

    @staticmethod
    def peer(cluster, node, other):
        return [peer for peer in cluster.ask(node, "peers")["peers"] if peer["node"] == other][0]


if __name__ == "__main__":
    unittest.main()
