#!/usr/bin/env python3
"""Values between GPU nodes go by NCCL: the same updates as by ZeroMQ, and a sentence for each fault.

libcuda and libnccl are the libraries of tests/cuda; see test_gpu.py.

usage: test_nccl.py BUILD [unittest's arguments]
"""
import json
import os
import tempfile
import time
import unittest

import digits
from build import BUILD
from cluster import Cluster
from ranks import Job
from test_gpu import HOMES, TENSORS, gpu_cluster, text

LIBRARY = os.path.join(BUILD, "tests", "cuda", "nccl", "libstandin-nccl.so")
NCCL = {"sparse_collective": "nccl-allgather", "dense_collective": "nccl-allreduce",
        "dense_values": "f32"}
# Of two values, the sum does not depend on their order.
POLICIES = [{"sparsifier": "topk"}, {"sparsifier": "dense"}, {"values": "int8", "scope": "rank"},
            {"indices": "rice"}]
STEPS = 60
LONG = bool(os.environ.get("ADTOPK_TEST_LONG"))


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def nccl_cluster(self, nodes=2, **variables):
        """All daemons have NCCL; `variables` are those of the last."""
        cluster = gpu_cluster(nodes, variables={
            "ADTOPK_NCCL_LIBRARY": LIBRARY, "ADTOPK_TEST_NCCL_DIR": self.folder})
        cluster.daemons[-1].variables = {**cluster.daemons[-1].variables, **variables}
        return cluster

    def updates(self, cluster, document, name):
        """The updates of some steps, and how status says that they came."""
        with Job(cluster, BUILD, name, HOMES, TENSORS, text(document)) as job:
            job.join()
            job.each("gradients random 3")
            found = [job.steps(1) for _ in range(4)]
            jobs = cluster.status(0)["jobs"]
            return found, [one["carrier"] for one in jobs if one["name"] == name]


class LikeZeroMQ(Base):
    found = []

    def expected(self):
        """The updates by ZeroMQ, without GPUs."""
        if not self.found:
            with Cluster(BUILD, nodes=2) as cluster:
                self.found.extend(
                    self.updates(cluster, {"density": 0.05, "dense_values": "f32", **changes},
                                 f"job{number}")[0] for number, changes in enumerate(POLICIES))
        return self.found

    def test_same_updates(self):
        expected = self.expected()
        for streams, policies in ("late", POLICIES), ("chance:3", POLICIES[:2]):
            with self.nccl_cluster(ADTOPK_TEST_CUDA_STREAMS=streams) as cluster:
                for number, changes in enumerate(policies):
                    document = {"density": 0.05, **changes, **NCCL}
                    with self.subTest(policy=document, streams=streams):
                        self.assertEqual(self.updates(cluster, document, f"job{number}"),
                                         (expected[number], ["by NCCL 2.28.9"]))
                device = cluster.status(1)["devices"][0]
                self.assertEqual((device["nccl"], device["no_nccl"]), ("2.28.9", ""))
                self.assertGreater(device["workers"][0]["carried"], 4 * len(policies))
                self.assertEqual(device["workers"][0]["trouble"], "")
                self.assertIn("NCCL 2.28.9", cluster.daemons[0].ask("status")[1])
                cluster.stop()

    def test_without(self):
        """Where a node has no NCCL, or another one, values go by ZeroMQ, and status says why."""
        expected = self.expected()
        for variables, reason, there in (
                ({"ADTOPK_NCCL_LIBRARY": "/nowhere.so"}, "node 1 has no NCCL",
                 "this node has no NCCL: /nowhere.so"),
                ({"ADTOPK_TEST_NCCL_VERSION": "22703"},
                 "NCCL is 2.28.9 on node 0, and 2.27.3 on node 1", ""),
                ({"ADTOPK_TEST_NCCL_VERSION": "21605"}, "node 1 has no NCCL",
                 "is NCCL 2.16.5, and adtopk needs 2.18 or later"))[:None if LONG else 2]:
            with self.subTest(reason=reason), self.nccl_cluster(**variables) as cluster:
                for number, changes in enumerate(POLICIES[:2]):
                    self.assertEqual(
                        self.updates(cluster, {"density": 0.05, **changes, **NCCL}, f"job{number}"),
                        (expected[number], ["by ZeroMQ: " + reason]))
                self.assertIn(there, cluster.status(1)["devices"][0]["no_nccl"])
                cluster.stop()

    def test_two_jobs(self):
        """Jobs start their operations in one order on all nodes, whoever is ready first."""
        with self.nccl_cluster(3, ADTOPK_TEST_NCCL_FAULT="late") as cluster:
            document = text({"density": 0.05, **NCCL})
            with Job(cluster, BUILD, "one", [0, 1, 2], TENSORS, document) as one, \
                    Job(cluster, BUILD, "two", [1, 2], TENSORS, document) as two, \
                    Job(cluster, BUILD, "three", [0, 2], TENSORS, document) as three:
                jobs = (one, two, three)
                for job in jobs:
                    job.join()
                for job in jobs:
                    for rank in job.ranks:
                        rank.send("steps 12")
                for job in jobs:
                    self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
            cluster.stop()

    def test_digits(self):
        """Training ends with the parameters that it has by ZeroMQ."""
        with tempfile.TemporaryDirectory() as directory:
            found = []
            for cluster, changes in ((Cluster(BUILD, nodes=2), {"dense_values": "f32"}),
                                     (self.nccl_cluster(), NCCL)):
                policy = os.path.join(directory, "policy.json")
                with open(policy, "w", encoding="utf-8") as out:
                    json.dump({"lookahead": 0, **changes}, out)
                with cluster:
                    ranks = digits.start(self, cluster, HOMES, digits.unpack(directory), "--steps",
                                         str(STEPS), "--job", "digits", "--policy", policy)
                    found.append(digits.parameters(self, ranks))
            self.assertEqual(found[0], found[1])


class Trouble(Base):
    def fails(self, sentence, seconds=None, **variables):
        """The job ends on all nodes with this sentence; the daemons and the next job go on."""
        with self.nccl_cluster(**variables) as cluster:
            document = {"density": 0.05, "round_timeout": 2, **NCCL}
            with self.assertRaises(AssertionError), \
                    Job(cluster, BUILD, "job", HOMES, TENSORS, text(document)) as job:
                job.join()
                began = time.monotonic()
                for rank in job.ranks:
                    rank.send("steps 50")
                for rank in job.ranks:
                    self.assertRegex(rank.error()[1], sentence)
                self.assertLess(time.monotonic() - began, seconds or 10)
                raise AssertionError
            with Job(cluster, BUILD, "next", HOMES, TENSORS) as job:
                self.assertEqual(job.join().steps(3)[0], "ok")
            cluster.stop()

    def test_absent(self):
        self.fails("NCCL of node [01] has not carried bucket [0-9]+ of step 0 within round_timeout",
                   ADTOPK_TEST_NCCL_FAULT="absent")

    def test_never(self):
        self.fails("NCCL of node [01] has not carried bucket [0-9]+ of step [0-9]+ within "
                   "round_timeout, 2 s", ADTOPK_TEST_NCCL_FAULT="never:4")

    @unittest.skipUnless(LONG, "ADTOPK_TEST_LONG")
    def test_count(self):
        self.fails("has not carried bucket", ADTOPK_TEST_NCCL_FAULT="count:4")

    def test_asynchronous_error(self):
        self.fails("NCCL of node 1 did not carry bucket [0-9]+ of step [0-9]+: nccl[A-Za-z]+: "
                   "internal error|NCCL of node 0 did not carry .*: remote process exited",
                   ADTOPK_TEST_NCCL_FAULT="fail:4")

    def test_death(self):
        self.fails("NCCL of node 1 did not carry bucket [0-9]+ of step [0-9]+: it was killed by "
                   "signal 9|NCCL of node 0 did not carry .*: remote process exited",
                   ADTOPK_TEST_NCCL_FAULT="die:4")


if __name__ == "__main__":
    unittest.main()
