#!/usr/bin/env python3
"""Residuals on GPUs: the same bits as on the processor, whatever becomes of the device workers.

libcuda is the library of tests/cuda/driver. So adtopkd, its workers and their memory are real, and
the kernels are those of kernels/cuda, which this processor runs.

usage: test_gpu.py BUILD [unittest's arguments]
"""
import json
import os
import random
import signal
import subprocess
import tempfile
import time
import unittest

import digits
from build import ADTOPKD, BUILD
from cluster import Cluster, ClusterError
from ranks import Job
from service import wait_for

LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
PROGRAM = os.path.join(BUILD, "daemon", "device", "adtopk-device")
HOMES = [0, 0, 1, 1]
STEPS = 120
KILLS = 20
TENSORS = [("fc", "f32", "both", (16, 320)), ("bias", "f32", "both", (16,)),
           ("conv", "f16", "dense", (8, 24, 3, 2)), ("long", "f32", "list", (9000,))]
POLICIES = [
    {},
    {"sparsifier": "topk", "values": "f32", "gamma": 0.7},
    {"scope": "rank", "reduce": "sum"},
    {"values": "int8"},
    {"sparsifier": "dense", "dense_values": "bf16"},
    {"sparse_collective": "oktopk", "sparsifier": "topk"},
    {"dense_values": "bf16", "values": "bf16", "density": 0.3},
    {"clip": 1.5, "gamma": 1.3, "scope": "rank"},
    {"sparsifier": "randomk", "values": "f16"},
    {"sparsifier": "topk", "momentum": 0.9, "clip": 2},
    {"scope": "rank", "momentum": 0.8, "nesterov": True, "values": "bf16"},
    {"sparsifier": "dense", "momentum": 0.5},
    {"beta": 0.9, "gamma": 0.5, "sparsifier": "topk"},
]
# Some tensors have velocities.
DIGITS = {"lookahead": 0, "rules": [{"match": "*1*", "momentum": 0.5}]}
REFUSED = [
    ({"residual": "bf16", "values": "bf16"}, 'residual "bf16"'),
    ({"sparsifier": "sidco", "scope": "rank"}, "a sparsifier with a rule"),
]


def text(document):
    return json.dumps(document, separators=(",", ":"))


def gpu_cluster(nodes=2, settings=None, variables=None, hosts=0):
    """Daemons whose residuals lie on GPUs, but those of the first `hosts`; not started yet."""
    cluster = Cluster(BUILD, nodes=nodes, settings={"engine": "cuda", **(settings or {})})
    for daemon in cluster.daemons[:hosts]:
        daemon.variables = {"ADTOPK_ENGINE": "host"}
    for daemon in cluster.daemons[hosts:]:
        daemon.variables = {"ADTOPK_CUDA_LIBRARY": LIBRARY, "ADTOPK_DEVICE_PROGRAM": PROGRAM,
                            **(variables or {})}
    return cluster


def workers(cluster, node):
    """What status says of the workers on a node's only GPU."""
    return cluster.status(node)["devices"][0]["workers"]


def job_verify(cluster, node, job):
    """Asks for a verification, which takes place between two steps."""
    return job.steps_while(lambda: cluster.daemons[node].ask("verify", job.name, timeout=60))


class LikeTheProcessor(unittest.TestCase):
    """Every update has the bits that it has without a GPU."""

    def hashes(self, cluster, document, name, steps=8):
        with Job(cluster, BUILD, name, HOMES, TENSORS, text(document)) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[1].do("poison 3 0 nan")
            found = [job.steps(1) for _ in range(steps)]
            for node in (0, 1):
                code, _, error = job_verify(cluster, node, job)
                self.assertEqual(code, 0, error)
            return found

    def compare(self, variables, policies):
        with Cluster(BUILD, nodes=2) as host, gpu_cluster(variables=variables) as gpu:
            for number, changes in enumerate(policies):
                document = {"density": 0.05, **changes}
                with self.subTest(policy=document):
                    self.assertEqual(self.hashes(gpu, document, f"job{number}"),
                                     self.hashes(host, document, f"job{number}"))
            for node in (0, 1):
                self.assertGreater(workers(gpu, node)[0]["batches"], 8 * len(policies))
                self.assertEqual(workers(gpu, node)[0]["trouble"], "")
            wait_for(lambda: workers(gpu, 0)[0]["pid"] is None)
            self.assertEqual(gpu.status(0)["devices"][0]["reserved_bytes"], 0)
            gpu.stop()

    def test_late_streams(self):
        self.compare({}, POLICIES)

    def test_streams_by_chance(self):
        self.compare({"ADTOPK_TEST_CUDA_STREAMS": "chance:7"}, POLICIES[:4])


class Digits(unittest.TestCase):
    """Real training ends with the parameters that it has without a GPU, where no rank looks ahead:
    a rank cannot read residuals that are on one."""

    def train(self, cluster, directory, beside=None):
        policy = os.path.join(directory, "policy.json")
        with open(policy, "w", encoding="utf-8") as out:
            json.dump(DIGITS, out)
        ranks = digits.start(self, cluster, HOMES, digits.unpack(directory), "--steps", str(STEPS),
                             "--job", "digits", "--policy", policy)
        if beside:
            beside(ranks)
        return digits.parameters(self, ranks)

    def test_same_parameters(self):
        with tempfile.TemporaryDirectory() as directory:
            with Cluster(BUILD, nodes=2) as cluster:
                expected = self.train(cluster, directory)
            with gpu_cluster(hosts=1) as cluster:
                self.assertEqual(self.train(cluster, directory), expected)
                self.assertNotIn("devices", cluster.status(0))
                self.assertGreater(workers(cluster, 1)[0]["batches"], STEPS)
                cluster.stop()
            with gpu_cluster() as cluster:
                self.assertEqual(
                    self.train(cluster, directory, lambda ranks: self.kill(cluster, ranks)),
                    expected)
                for node in (0, 1):
                    self.assertGreater(workers(cluster, node)[0]["starts"], 2)
                    self.assertIn("it was killed by signal 9", workers(cluster, node)[0]["trouble"])
                cluster.stop()

    def kill(self, cluster, ranks):
        """Kills workers at random moments until the training is over. Two steps lie between two
        kills: the daemon gives a worker up that fails three times before it has done anything."""
        def steps():
            return max((job["steps_done"] for job in cluster.status(0)["jobs"]), default=0)

        draw = random.Random(5)
        killed = due = 0
        while all(rank.poll() is None for rank in ranks) and killed < 2 * KILLS:
            if steps() < due:
                continue
            time.sleep(draw.uniform(0, 0.1))
            pid = workers(cluster, killed % 2)
            if pid and pid[0]["pid"]:
                try:
                    os.kill(pid[0]["pid"], signal.SIGKILL)
                    killed += 1
                    due = steps() + 2
                except ProcessLookupError:
                    pass
        self.assertGreaterEqual(killed, KILLS)


class Changes(unittest.TestCase):
    """Policies that change while ranks train: residuals are joined, and all accounted for."""

    CHANGES = [{"scope": "rank"}, {"sparsifier": "topk", "scope": "node"}, {"sparsifier": "dense"},
               {"sparsifier": "adtopk", "values": "f32", "momentum": 0.7}, {"scope": "rank"},
               {"scope": "node", "interleave": False}, {"momentum": 0}]

    def test_changes(self):
        with gpu_cluster() as cluster, Job(cluster, BUILD, "job", HOMES, TENSORS) as job:
            job.join()
            job.each("gradients random 3")
            for number, change in enumerate(self.CHANGES * 4):
                pairs = [f"{key}={json.dumps(value)}" for key, value in change.items()]
                code, _, error = job.steps_while(lambda: cluster.daemons[number % 2].ask(
                    "policy", "set", "job", *pairs, timeout=60))
                self.assertEqual(code, 0, error)
                self.assertEqual(job.steps(3)[0], "ok")
                code, found, error = job_verify(cluster, number % 2, job)
                self.assertEqual(code, 0, found + error)


    def test_refused(self):
        """What the kernels cannot do is refused by name, at the start and later."""
        with gpu_cluster(hosts=1) as cluster:
            for number, (change, name) in enumerate(REFUSED):
                sentence = f'the engine "cuda" of node 1 has no kernels for {name}, which tensor'
                with Job(cluster, BUILD, f"new{number}", HOMES, TENSORS, text(change)) as job:
                    rank = job.ranks[3]
                    for each in job.ranks:
                        each.send(each.opening, *job.registrations(), "commit")
                    for _ in range(1 + len(TENSORS)):
                        rank.answer()
                    self.assertIn(sentence, rank.error()[1])
            with Job(cluster, BUILD, "old", HOMES, TENSORS) as job:
                job.join()
                for change, name in REFUSED:
                    pairs = [f"{key}={json.dumps(value)}" for key, value in change.items()]
                    code, _, error = job.steps_while(lambda: cluster.daemons[0].ask(
                        "policy", "set", "old", *pairs, timeout=60))
                    self.assertNotEqual(code, 0)
                    self.assertIn(f"has no kernels for {name}", error)
                self.assertEqual(job.steps(3)[0], "ok")


class TwoDevices(unittest.TestCase):
    """Jobs share the GPUs of a node out among them, and a worker's death concerns its GPU only."""

    def test_two_jobs(self):
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_DEVICES": "2"}) as cluster, \
                Job(cluster, BUILD, "one", [0], TENSORS) as one, \
                Job(cluster, BUILD, "two", [0], TENSORS) as two:
            for job in (one, two):
                job.join()
                self.assertEqual(job.steps(3)[0], "ok")
            devices = cluster.status(0)["devices"]
            self.assertEqual([device["jobs"] for device in devices], [1, 1])
            self.assertEqual([len(device["workers"]) for device in devices], [1, 1])
            os.kill(devices[1]["workers"][0]["pid"], signal.SIGKILL)
            for job in (one, two):
                self.assertEqual(job.steps(3)[0], "ok")
            starts = [device["workers"][0]["starts"] for device in cluster.status(0)["devices"]]
            self.assertEqual(starts, [1, 2])
            shown = cluster.daemons[0].ask("status")[1]
            self.assertRegex(shown, r"GPU-[0-9a-f-]*01 \(stand-in 1\): 1 jobs have [0-9.]+ MB of")
            self.assertRegex(shown, "worker of .*: runs, started 2 times")


class Trouble(unittest.TestCase):
    """What goes wrong is told in a sentence, and concerns whom it concerns."""

    def assert_refused(self, sentence, settings=None, **variables):
        """The daemon does not start, and says why."""
        cluster = gpu_cluster(1, settings, variables)
        self.addCleanup(cluster.close)
        with self.assertRaises(ClusterError) as caught:
            cluster.start()
        self.assertIn("cannot start: engine \"cuda\": ", str(caught.exception))
        self.assertRegex(str(caught.exception), sentence)
        checked = subprocess.run([ADTOPKD, "--engine", "cuda", "--check-config"],
                                 env={**os.environ, **cluster.daemons[0].variables},
                                 capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual(checked.returncode, 1)
        self.assertRegex(checked.stderr, "adtopkd: engine \"cuda\": .*" + sentence)

    def test_no_driver(self):
        self.assert_refused("this node has no NVIDIA driver: /nowhere.so",
                            ADTOPK_CUDA_LIBRARY="/nowhere.so")

    def test_old_driver(self):
        self.assert_refused("is for CUDA 11.4, and adtopk needs one for CUDA 12.0 or later",
                            ADTOPK_TEST_CUDA_VERSION="11040")

    def test_no_program(self):
        self.assert_refused("cannot start /nowhere: No such file", ADTOPK_DEVICE_PROGRAM="/nowhere")

    def test_no_kernel_for_this_gpu(self):
        self.assert_refused("this build has no kernels that run on stand-in 0, compute capability "
                            "9.0", ADTOPK_TEST_CUDA_FAIL="cuModuleLoadData:1:209")

    def test_memory_that_cannot_be_shared(self):
        self.assert_refused("MIG-.* cannot be shared by descriptor: it is a MIG instance",
                            ADTOPK_TEST_CUDA_PRIVATE="1", ADTOPK_TEST_CUDA_MIG="1")

    def join_fails(self, sentence, settings=None, **variables):
        """The daemon starts; a job is refused, and no worker and no memory is left of it."""
        with gpu_cluster(1, settings, variables) as cluster:
            with Job(cluster, BUILD, "job", [0], TENSORS) as job:
                rank = job.ranks[0]
                rank.send(rank.opening, *job.registrations(), "commit")
                for _ in range(1 + len(TENSORS)):
                    rank.answer()
                self.assertRegex(rank.error()[1], sentence)
            wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == 0)
            cluster.stop()

    def test_missing_kernel(self):
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_WITHOUT": "entries_leave"}) as cluster:
            self.assertEqual(cluster.status(0)["devices"][0]["missing_kernels"], "entries_leave")
            self.assertIn("jobs are refused: the build lacks kernels: entries_leave",
                          cluster.daemons[0].ask("status")[1])
        self.join_fails("this build lacks these device kernels, or some of them: entries_leave",
                        ADTOPK_TEST_CUDA_WITHOUT="entries_leave")

    def test_memory_limit(self):
        self.join_fails("has no [0-9]+ bytes for residuals: of its 1073741824 bytes jobs of this "
                        "node have [0-9]+ in [0-9]+ parts of stores, and gpu_memory_limit allows "
                        "3000000", {"gpu_memory_limit": 3000000})

    def test_memory_of_others(self):
        self.join_fails("in [0-9]+ parts of stores, and the rest is in use by other processes",
                        ADTOPK_TEST_CUDA_MEMORY=str(2 << 20))

    def test_worker_that_always_fails(self):
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_FAIL": "cuLaunchKernel:1:700"}) as cluster:
            with Job(cluster, BUILD, "job", [0], TENSORS) as job:
                job.join()
                job.ranks[0].send("steps 50")
                self.assertRegex(job.ranks[0].error()[1], "the engine 'cuda' has lost the residuals")
                self.assertRegex(cluster.daemons[0].log(), "failed 3 times in a row, the last time: "
                                 "cuLaunchKernel on GPU-.*: an illegal memory access")
            cluster.stop()

    def test_workers_end_with_the_daemon(self):
        with gpu_cluster(1) as cluster, Job(cluster, BUILD, "job", [0], TENSORS) as job:
            job.join()
            wait_for(lambda: workers(cluster, 0)[0]["pid"])
            pid = workers(cluster, 0)[0]["pid"]
            links = [os.readlink(f"/proc/{pid}/fd/{number}")
                     for number in os.listdir(f"/proc/{pid}/fd")]
            self.assertEqual(len([one for one in links if one.startswith("socket:")]), 1, links)
            cluster.daemons[0].kill()
            wait_for(lambda: not os.path.exists(f"/proc/{pid}"))
            job.kill()


if __name__ == "__main__":
    unittest.main()
