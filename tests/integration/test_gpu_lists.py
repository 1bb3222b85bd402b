#!/usr/bin/env python3
"""Lists of updates in the memory of GPUs: ranks find the entries there that host memory has, or the
word that there is no list. Each rank compares both in each step (trainer_device.c).

libcuda is the library of tests/cuda/driver; see test_gpu.py.

usage: test_gpu_lists.py BUILD [unittest's arguments]
"""
import unittest

import test_arenas
import test_gpu_state
from build import BUILD
from cluster import Cluster
from ranks import Job, Rank
from service import wait_for
from test_arenas import GPU, HOMES, STANDIN, variables
from test_gpu import DISTURBED, GPUS, gpu_cluster, job_name, on_machine, text, verify

LISTED = ["- arena+listed", None, "- arena", "- copies+listed+streams"]
TENSORS = [("fc", "f32", "both", (16, 320)), ("bias", "f32", "both", (16,)),
           ("conv", "f16", "both", (8, 24, 3, 2)), ("long", "f32", "list", (9000,)),
           ("half", "f16", "both16", (30, 20)), ("brain", "bf16", "both16", (70, 10))]
# Each with whether lists fit: two nodes send at most twice the density, and an eighth has room.
POLICIES = [({}, True), ({"sparsifier": "topk", "values": "f32"}, True),
            ({"scope": "rank", "reduce": "sum", "density": 0.02}, True),
            ({"sparsifier": "randomk", "values": "f16"}, True),
            ({"sparse_collective": "oktopk", "sparsifier": "topk"}, True),
            ({"sparsifier": "dense"}, False), ({"sparsifier": "topk", "density": 0.4}, False)]


def lists(job):
    """How many lists each rank on a GPU that sees lists has found there."""
    return [int(rank.do("lists")) for rank, device in zip(job.ranks, LISTED) if device and "listed" in device]


class Lists(unittest.TestCase):
    def train(self, cluster, document, **ranks):
        """What all updates hash to, of some steps of which one is withdrawn, and the lists on GPUs."""
        devices = on_machine(cluster, ranks.pop("devices", None))
        with Job(cluster, BUILD, job_name(document), HOMES, TENSORS, text(document), devices=devices,
                 **ranks) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[2].do(f"poison 3 {len(TENSORS) - 1} nan")
            found = [job.steps(1) for _ in range(6)]
            seen = lists(job) if ranks else []
            verify(self, cluster, job)  # may train more
            return found, seen

    def compare(self, policies, streams="late", devices=None, **more):
        gpu = gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": streams, **more})
        with Cluster(BUILD, nodes=2) as host, gpu:
            for changes, fits in policies:
                document = {"density": 0.05, **changes}
                with self.subTest(policy=document):
                    expected, _ = self.train(host, document)
                    found, seen = self.train(gpu, document, devices=devices or LISTED,
                                             variables=variables(streams, **more))
                    self.assertEqual(found, expected)
                    # Five steps of four or five sparse tensors, and nothing of those that are dense.
                    self.assertTrue(all(20 <= count <= 30 if fits else count == 0 for count in seen), seen)
            wait_for(lambda: not any(device["reserved_bytes"] for device in gpu.status(0)["devices"]))
            gpu.stop()

    def test_late_streams(self):
        self.compare(POLICIES)

    @STANDIN
    def test_streams_by_chance(self):
        self.compare(POLICIES[:6:2], "chance:5")

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_two_devices(self):
        """A worker writes lists on another device than its own."""
        self.compare(POLICIES[:1], devices=[f"{GPU}1 arena+listed", None, f"{GPU}0 arena",
                                            f"{GPU}1 copies+listed"], ADTOPK_TEST_CUDA_DEVICES="2")

    def test_killed_workers(self):
        tensors, test_arenas.ALL = test_arenas.ALL, TENSORS
        try:
            test_arenas.LikeHostMemory.kills(self, LISTED)
        finally:
            test_arenas.ALL = tensors

    kill = staticmethod(test_arenas.LikeHostMemory.kill)

    def test_policy_changes(self):
        """Lists that no longer have room are not there, and come back."""
        with gpu_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.03, "sparsifier": "topk"}),
                    devices=LISTED, variables=variables()) as job:
            job.join()
            for change, fits in (("density=0.3", False), ("density=0.02", True), ("sparsifier=dense", False),
                                 ("sparsifier=topk", True)):
                outcome = job.steps_while(lambda change=change: cluster.daemons[0].ask(
                    "policy", "set", "job", change, timeout=60))
                self.assertEqual(outcome[0], 0, outcome)
                before = lists(job)
                self.assertEqual(job.steps(3)[0], "ok")
                self.assertEqual([after > one for one, after in zip(before, lists(job))], [fits] * 2)
            verify(self, cluster, job)


class Returns(unittest.TestCase):
    """Daemons end and start again while ranks train: lists go on at the same addresses."""

    DEVICES = ["- arena+listed+returns", None, "- copies+listed+returns", "- arena+listed+streams+returns"]
    cluster = test_gpu_state.Restarts.cluster

    def train(self, cluster, disturb, **ranks):
        with Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.05, "sparsifier": "topk"}),
                 **ranks) as job:
            job.join()
            job.each("gradients random 3")
            found, seen = [], []
            for node in (1, 0):
                for rank in job.ranks:
                    rank.send(f"steps {DISTURBED}")
                disturb(cluster, node)
                found.append({rank.answer() for rank in job.ranks})
                seen.append(sum(int(rank.do("lists")) for rank in job.ranks) if ranks else 0)
            return found, seen

    def test_stopped(self):
        expected, _ = self.train(self.cluster(gpus=False)[0], lambda cluster, node: None)
        found, seen = self.train(self.cluster(gpus=True)[0], test_gpu_state.Disturbed.stop,
                                 devices=self.DEVICES, variables=variables(ADTOPK_TEST_CUDA_DEVICES="2"))
        self.assertEqual(found, expected)
        # But for a step or two of each return.
        most = 3 * len(TENSORS) * DISTURBED
        self.assertGreater(seen[0], most / 2)
        self.assertGreater(seen[1] - seen[0], most / 2)


@STANDIN
class Refused(unittest.TestCase):
    def test_lists_of_some_tensors(self):
        with gpu_cluster(1) as cluster:
            rank = Rank(BUILD, cluster.address(0), "job", 0, 1, variables=variables())
            rank.do(rank.opening, "device - arena+listed", "tensor a f32 list 8", "device - arena+shown")
            rank.send("tensor b f32 list 8")
            self.assertIn('tensor "a" asks for ADTOPK_FORM_DEVICE_LIST and tensor "b" does not',
                          rank.error()[1])
            rank.do("device - arena+listed")
            rank.send("tensor b f32 dense 8")
            self.assertIn("without ADTOPK_FORM_DEVICE and ADTOPK_FORM_LIST", rank.error()[1])
            rank.kill()

    def test_memory_limit(self):
        """All elements would fit, and lists take a quarter of their memory more."""
        test_arenas.limit_ends(self, 52 << 20, "arena+shown", "arena+listed")


if __name__ == "__main__":
    unittest.main()
