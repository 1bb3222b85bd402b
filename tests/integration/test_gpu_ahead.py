#!/usr/bin/env python3
"""Looking ahead on GPUs: where ranks see updates there, they find what these lack, bit by bit.

libcuda is the library of tests/cuda/driver; see test_gpu.py.

usage: test_gpu_ahead.py BUILD [unittest's arguments]
"""
import json
import random
import time
import unittest

import test_arenas
import test_gpu_state
from build import BUILD
from ranks import Job, Rank
from stores import registrations
from test_arenas import GPU, HOMES, STANDIN, variables
from test_gpu import DISTURBED, GPUS, gpu_cluster, job_name, on_machine, text, verify, workers

SHOWN = ["- arena+listed", None, "- arena+shown", "- copies+shown+streams"]
TENSORS = [("fc", "f32", "both+pending", (16, 320)), ("bias", "f32", "both", (16,)),
           ("conv", "f16", "list+pending", (8, 24, 3, 2)), ("long", "f32", "list+pending", (90, 100)),
           ("half", "f16", "both16+pending", (30, 20))]
LATER = [("down", "f32", "list+pending", (40, 30))]
ASKED = [number for number, (_, _, forms, _) in enumerate(TENSORS) if "pending" in forms]
SPARSE = ("fc", "long")  # the others are so small that they may be sent dense
SHARE = 0.25
POLICIES = [{}, {"sparsifier": "topk", "values": "two", "density": 0.0265}, {"reduce": "sum"},
            {"scope": "rank", "reduce": "sum", "density": 0.02},
            {"rules": [{"match": "[!h]*", "residual": "bf16", "values": "bf16"}]},
            {"scope": "rank", "momentum": 0.7}, {"sparse_collective": "oktopk", "sparsifier": "topk"},
            {"sparsifier": "dense"}, {"lookahead": 0}]


def scale(document, node, homes):
    """By which a node's residual becomes what an update lacks; 0: nothing is shown."""
    if document.get("sparsifier") == "dense" or document.get("lookahead") == 0:
        return 0
    summed = 1 if document.get("scope") == "rank" else homes.count(node)
    return (len(homes) if document.get("reduce") == "sum" else 1) / summed


def look(job, document, numbers=(), homes=HOMES):
    """What ranks on GPUs find of tensors, compared with their residuals by the ranks: (name, share,
    elements that are not 0) each."""
    found = []
    for rank, node, device in zip(job.ranks, homes, job.devices):
        for number in numbers or ASKED if device else ():
            share, count = rank.do(f"device-pending {number} {scale(document, node, homes)!r}").split()
            found.append(((TENSORS + LATER)[number][0], float(share), int(count)))
    return found


class Pending(unittest.TestCase):
    def train(self, cluster, document, devices=None, **more):
        devices = on_machine(cluster, devices or SHOWN)
        with Job(cluster, BUILD, job_name(document), HOMES, TENSORS, text(document), devices=devices,
                 variables=variables(**more)) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[2].do(f"poison 3 {len(TENSORS) - 1} nan")
            seen = []
            for _ in range(5):
                job.steps(1)
                seen.append(look(job, document))
            verify(self, cluster, job)
        return seen

    def check(self, seen, document):
        shows = scale(document, 0, HOMES) > 0
        for step in seen:
            for name, share, count in step:
                self.assertEqual(share > 0, count > 0, name)
                self.assertIn(share, (0, SHARE) if shows else (0,))
                self.assertTrue(share > 0 or not shows or name not in SPARSE, name)
        self.assertEqual(seen[3], seen[2])  # step 3 was withdrawn

    def compare(self, policies, devices=None, **more):
        with gpu_cluster(variables=more) as cluster:
            for changes in policies:
                document = {"density": 0.05, **changes}
                with self.subTest(policy=document):
                    self.check(self.train(cluster, document, devices, **more), document)
            cluster.stop()

    def test_policies(self):
        self.compare(POLICIES)

    @STANDIN
    def test_streams_by_chance(self):
        self.compare(POLICIES[:6:2], ADTOPK_TEST_CUDA_STREAMS="chance:5")

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_two_devices(self):
        """A worker writes to another device than its own."""
        self.compare(POLICIES[:4], [f"{GPU}1 arena+listed", None, f"{GPU}0 arena+shown",
                                    f"{GPU}1 copies+shown"], ADTOPK_TEST_CUDA_DEVICES="2")

    def test_policy_changes(self):
        """Tensors that are sent dense, or without looking ahead, show zeros, and later their residual."""
        with gpu_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.03, "sparsifier": "topk"}),
                    devices=on_machine(cluster, SHOWN), variables=variables()) as job:
            job.join()
            job.each("gradients random 3")
            document = {}
            for change in ({"lookahead": 0}, {"lookahead": 0.5}, {"sparsifier": "dense"},
                           {"sparsifier": "topk"}, {"reduce": "sum", "scope": "rank"}, {"scope": "node"}):
                document.update(change)
                words = [f"{key}={value}" for key, value in change.items()]
                outcome = job.steps_while(lambda words=words: cluster.daemons[0].ask(
                    "policy", "set", "job", *words, timeout=60))
                self.assertEqual(outcome[0], 0, outcome)
                job.steps(2)
                shares = {share for name, share, _ in look(job, document) if name in SPARSE}
                self.assertEqual(shares, {document["lookahead"] if scale(document, 0, HOMES) > 0 else 0})

    def test_many_ranks(self):
        """Each has a residual of its own, of which a withdrawn step is taken back."""
        document, homes = {"density": 0.05, "scope": "rank"}, [0] * 4
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "job", homes, TENSORS, text(document), variables=variables(),
                    devices=on_machine(cluster, ["- arena+shown"] * 4)) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[2].do(f"poison 1 {len(TENSORS) - 1} nan")
            for _ in range(3):
                job.steps(1)
                look(job, document, homes=homes)

    def test_killed_workers(self):
        """Another worker writes what the one before it did not."""
        draw = random.Random(7)
        with gpu_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.05}),
                    devices=on_machine(cluster, SHOWN), variables=variables()) as job:
            job.join()
            job.each("gradients random 3")
            for turn in range(8):
                for rank in job.ranks:
                    rank.send("steps 3")
                time.sleep(draw.uniform(0, 0.03))
                test_arenas.LikeHostMemory.kill(cluster, turn % 2)
                self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
                look(job, {})
            self.assertGreater(workers(cluster, 0)[0]["starts"], 1)

    def test_shares(self):
        """What pushes say is in the operator's table, and nonsense is refused."""
        with gpu_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.05}),
                    devices=on_machine(cluster, SHOWN), variables=variables()) as job:
            job.join()
            job.each("gradients random 3")
            job.steps(1)
            look(job, {})
            job.steps(2)
            # Of node 1, which has no rank in host memory: the last push counts.
            told = json.loads(cluster.daemons[1].ask("tensors", "job", "--json")[1])["tensors"]
            self.assertEqual([one["lookahead"] for one in told if one["name"] in SPARSE], [SHARE] * 2)


@STANDIN
class Refused(unittest.TestCase):
    def test_memory_limit(self):
        """Gradients and updates would fit, and what these lack takes as much as they do."""
        test_arenas.limit_ends(self, 52 << 20, "arena+shown", "copies+shown", "list+pending")


class ComesBack(unittest.TestCase):
    """A process takes the place of one that ended in a step: it finds zeros, and then its residual."""

    def test_another_process(self):
        policy = text({"density": 0.05, "sparsifier": "topk", "on_rank_loss": "wait"})
        victim = HOMES.index(1)
        with gpu_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS, policy, devices=on_machine(cluster, SHOWN),
                    variables=variables()) as job:
            job.join()
            job.steps(3)
            for rank in job.ranks[:victim] + job.ranks[victim + 1:]:
                rank.send("steps 2")
            job.ranks[victim].do("push 0")
            job.ranks[victim].kill()
            rank = Rank(BUILD, cluster.address(1), "job", victim, len(HOMES), policy, variables=variables())
            rank.do("back 3", rank.opening, f"device {on_machine(cluster, SHOWN)[victim]}",
                    *registrations(TENSORS), "commit")
            rank.send("steps 2")
            job.ranks[victim] = rank
            self.assertEqual({rank.answer().split()[0] for rank in job.ranks}, {"ok"})
            look(job, {})


class Returns(unittest.TestCase):
    """Daemons end and start again while ranks train: the addresses have what the next daemon writes."""

    cluster = test_gpu_state.Restarts.cluster

    def train(self, disturb):
        cluster = self.cluster(gpus=True)[0]
        devices = ["- arena+listed+returns", None, "- arena+shown", "- copies+shown+streams"]
        with Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.05, "sparsifier": "topk"}),
                 devices=on_machine(cluster, devices),
                 variables=variables(ADTOPK_TEST_CUDA_DEVICES="2")) as job:
            job.join()
            job.each("gradients random 3")
            for node in (1, 0):
                for rank in job.ranks:
                    rank.send(f"steps {DISTURBED}")
                disturb(cluster, node)
                self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
                look(job, {})
                disturb(cluster, node)  # between two steps
                job.steps(1)
                look(job, {})
                if node:
                    job.each(*registrations(LATER), "commit")
                    job.steps(1)
                    look(job, {}, [len(TENSORS)])

    def test_stopped(self):
        self.train(test_gpu_state.Disturbed.stop)

    def test_killed(self):
        self.train(test_gpu_state.Disturbed.kill)


if __name__ == "__main__":
    unittest.main()
