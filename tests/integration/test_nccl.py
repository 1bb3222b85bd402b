#!/usr/bin/env python3
"""Values between GPU nodes go by NCCL: the same updates as by ZeroMQ, and a sentence for each fault.

libcuda and libnccl are the libraries of tests/cuda; see test_gpu.py.

usage: test_nccl.py BUILD [unittest's arguments]
"""
import json
import os
import signal
import tempfile
import time
import unittest

import digits
from build import BUILD
from cluster import Cluster
from ranks import Job
from service import wait_for
from test_gpu import (BRIEF, DRIVER, GPUS, HOMES, MACHINE, REAL, TENSORS, gpu_cluster, text,
                      verify, visible, workers)

LIBRARY = os.path.join(BUILD, "tests", "cuda", "nccl", "libstandin-nccl.so")
NCCL = {"sparse_collective": "nccl-allgather", "dense_collective": "nccl-allreduce",
        "dense_values": "f32"}
# Of two values, the sum does not depend on their order. Each goes by NCCL's brother of its
# collective, too.
POLICIES = [{"sparsifier": "topk"}, {"sparsifier": "dense"}, {"values": "int8", "scope": "rank"},
            {"indices": "rice"}, {"sparse_collective": "balanced", "values": "bf16"},
            {"sparse_collective": "balanced", "scope": "rank"},
            {"sparse_collective": "exclusive", "sparsifier": "topk", "values": "bf16"}]
if BRIEF:
    del POLICIES[2:]
SHOWN = [None] * 4 if REAL else [
    f"GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a00{gpu} arena+shown" for gpu in (1, 0, 1, 0)]
SOON = {"peer_timeout_ms": 1500, "heartbeat_ms": 200}
STEPS = 20 if BRIEF else 40
LONG = bool(os.environ.get("ADTOPK_TEST_LONG"))


def by_nccl(changes):
    """The same policy with values carried by NCCL."""
    return {"density": 0.05, **changes, **NCCL, "sparse_collective":
            "nccl-" + changes.get("sparse_collective", "allgather")}


class Base(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def nccl_cluster(self, nodes=2, gpus=1, settings=None, **variables):
        """All daemons have NCCL; `variables` are those of the last."""
        if REAL and gpus > 1 and GPUS < nodes * gpus:
            self.skipTest(f"{GPUS} GPUs, where {nodes} nodes want {gpus} each")
        cluster = gpu_cluster(nodes, settings, {} if REAL else {
            "ADTOPK_NCCL_LIBRARY": LIBRARY, "ADTOPK_TEST_NCCL_DIR": self.folder,
            "ADTOPK_TEST_CUDA_DEVICES": str(gpus)})
        for node, daemon in enumerate(cluster.daemons if REAL else []):
            daemon.variables["CUDA_VISIBLE_DEVICES"] = visible(
                (node * gpus + gpu) % GPUS for gpu in range(gpus))
        cluster.daemons[-1].variables = {**cluster.daemons[-1].variables, **variables}
        return cluster

    def kill_worker(self, cluster):
        def pid():
            return cluster.status(1)["devices"][0]["workers"][0]["pid"]
        there = pid()
        os.kill(there, signal.SIGKILL)
        wait_for(lambda: pid() not in (None, there))

    def updates(self, cluster, document, name, **ranks):
        """The updates of some steps, and how status says that they came."""
        with Job(cluster, BUILD, name, HOMES, TENSORS, text(document), **ranks) as job:
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

    def same_updates(self, streams, gpus=1, how="", **ranks):
        expected = self.expected()
        with self.nccl_cluster(gpus=gpus, ADTOPK_TEST_CUDA_STREAMS=streams) as cluster:
            for number, changes in enumerate(POLICIES):
                document = by_nccl(changes)
                with self.subTest(policy=document):
                    version = cluster.status(1)["devices"][0]["nccl"]
                    self.assertEqual(self.updates(cluster, document, f"job{number}", **ranks),
                                     (expected[number], [f"by NCCL {version}{how}"]))
            devices = cluster.status(1)["devices"]
            self.assertEqual(len(devices), gpus)
            for device in devices:
                self.assertEqual(device["no_nccl"], "")
                if not REAL:
                    self.assertEqual(device["nccl"], "2.28.9")
                self.assertGreater(device["workers"][0]["carried"], 4 * len(POLICIES))
                self.assertEqual(device["workers"][0]["trouble"], "")
                self.assertIn(f"NCCL {device['nccl']}", cluster.daemons[0].ask("status")[1])
            cluster.stop()

    def test_same_updates(self):
        self.same_updates("late")

    def test_two_gpus(self):
        """Some ranks have their gradients, and see their updates, on a GPU."""
        variables = MACHINE if REAL else {**DRIVER, "ADTOPK_TEST_CUDA_DEVICES": "2"}
        self.same_updates("chance:3", 2, ", between 2 GPUs of each node", variables=variables,
                          devices=SHOWN)

    @unittest.skipIf(REAL, "names the GPU of the library that stands in")
    def test_lists(self):
        """A dense sum takes the place of a list on the GPU: each rank compares, as in test_gpu_lists.py."""
        gpu = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a000 arena+listed"
        tensors = [(name, dtype, "both", shape) for name, dtype, _, shape in TENSORS]
        with self.nccl_cluster() as cluster, \
                Job(cluster, BUILD, "job", HOMES, tensors, text(by_nccl({"sparsifier": "topk"})),
                    variables=DRIVER, devices=[gpu, None, gpu, gpu]) as job:
            job.join()
            seen = [0]
            for sparsifier in "dense", "topk":
                self.assertEqual(job.steps(3)[0], "ok")
                seen.append(int(job.ranks[0].do("lists")))
                code, _, error = job.steps_while(lambda: cluster.daemons[0].ask(
                    "policy", "set", "job", f"sparsifier={sparsifier}", timeout=60))
                self.assertEqual(code, 0, error)
                seen.append(int(job.ranks[0].do("lists")))
            self.assertEqual(job.steps(3)[0], "ok")
            self.assertGreater(seen[1], 0)
            self.assertEqual(seen[2], seen[3])
            self.assertGreater(int(job.ranks[0].do("lists")), seen[4])

    def test_without(self):
        """Where a node has no NCCL, or another one, or another number of GPUs, values go by ZeroMQ,
        and status says why."""
        expected = self.expected()
        for variables, reason, there in (
                ({"ADTOPK_NCCL_LIBRARY": "/nowhere.so"}, "node 1 has no NCCL",
                 "this node has no NCCL: /nowhere.so"),
                ({"ADTOPK_TEST_NCCL_VERSION": "22703"},
                 "NCCL is 2.28.9 on node 0, and 2.27.3 on node 1", ""),
                ({"ADTOPK_TEST_CUDA_DEVICES": "2"},
                 "the job has 1 GPUs on node 0, and 2 on node 1", ""),
                ({"ADTOPK_TEST_NCCL_VERSION": "21605"}, "node 1 has no NCCL",
                 "is NCCL 2.16.5, and adtopk needs 2.18 or later"))[:None if LONG else 3]:
            with self.subTest(reason=reason), self.nccl_cluster(**variables) as cluster:
                for number, changes in enumerate(POLICIES):
                    if not LONG and number in (2, 3, 4, 5):
                        continue
                    self.assertEqual(
                        self.updates(cluster, by_nccl(changes), f"job{number}"),
                        (expected[number], ["by ZeroMQ: " + reason]))
                self.assertIn(there, cluster.status(1)["devices"][0]["no_nccl"])
                cluster.stop()

    @unittest.skipIf(REAL, "the driver and its GPUs are the stand-in's")
    def test_ranks_on_one_gpu(self):
        """A node whose ranks all have their gradients on one of its GPUs uses that one only."""
        expected = self.expected()
        two = {**DRIVER, "ADTOPK_TEST_CUDA_DEVICES": "2"}
        gpus = [f"GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a00{gpu} arena" for gpu in (0, 1, 0, 0)]
        with self.nccl_cluster(gpus=2) as cluster:
            self.assertEqual(
                self.updates(cluster, by_nccl(POLICIES[0]), "job0", variables=two, devices=gpus),
                (expected[0], ["by ZeroMQ: the job has 2 GPUs on node 0, and 1 on node 1"]))
            cluster.stop()

    def test_two_jobs(self):
        """Jobs start their operations in one order on all nodes, whoever is ready first."""
        with self.nccl_cluster(3, ADTOPK_TEST_NCCL_FAULT="late") as cluster:
            document = text({"density": 0.05, **NCCL})
            balanced = text(by_nccl({"sparse_collective": "balanced"}))
            with Job(cluster, BUILD, "one", [0, 1, 2], TENSORS, document) as one, \
                    Job(cluster, BUILD, "two", [1, 2], TENSORS, balanced) as two, \
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

    def test_split(self):
        """A rank waits for one tensor before it has pushed the others of the bucket: tensors then go
        alone, each by operations of its own."""
        found = []
        for splits in (False, True):
            with self.nccl_cluster() as cluster, Job(
                    cluster, BUILD, "job", HOMES, TENSORS,
                    text(by_nccl({"sparse_collective": "balanced"}))) as job:
                job.join()
                job.each("gradients random 3")
                for rank in job.ranks[1:]:
                    rank.send("steps 1")
                if splits:
                    job.ranks[0].do("push 0", "wait 0")
                job.ranks[0].send("steps 1")
                found.append([{rank.answer() for rank in job.ranks}, job.steps(3)])
                self.assertEqual(len(found[-1][0]), 1)
                carried = cluster.status(0)["devices"][0]["workers"][0]["carried"]
                (self.assertGreater if splits else self.assertLess)(carried, 4 * len(TENSORS))
        self.assertEqual(found[0], found[1])

    def test_digits(self):
        """Training on two GPUs of each node ends with the parameters that it has by ZeroMQ, without
        any."""
        with tempfile.TemporaryDirectory() as directory:
            found = []
            for cluster, changes in ((Cluster(BUILD, nodes=2), {"dense_values": "f32"}),
                                     (self.nccl_cluster(gpus=1 if REAL and GPUS < 4 else 2), NCCL)):
                policy = os.path.join(directory, "policy.json")
                with open(policy, "w", encoding="utf-8") as out:
                    json.dump({"lookahead": 0, **changes}, out)
                with cluster:
                    ranks = digits.start(self, cluster, HOMES, digits.unpack(directory), "--steps",
                                         str(STEPS), "--job", "digits", "--policy", policy)
                    found.append(digits.parameters(self, ranks))
            self.assertEqual(found[0], found[1])


class Another(Base):
    """A job makes another communicator when it has lost its worker between two steps, and goes on.
    (The simulator has what happens when views change.)"""

    def boards(self):
        """The communicators that were ever made: each is a file with 16 digits."""
        return len([name for name in os.listdir(self.folder) if len(name) == 16])

    def test_same_updates(self):
        found = []
        for happens in (False, True):
            before = self.boards()
            with self.nccl_cluster() as cluster:
                with Job(cluster, BUILD, "job", HOMES, TENSORS,
                         text({"density": 0.05, **NCCL})) as job:
                    job.join()
                    job.each("gradients random 3")
                    found.append([job.steps(2), None])
                    self.assertEqual(self.boards() - before, 1)
                    if happens:
                        self.kill_worker(cluster)
                    found[-1][1] = job.steps(4)
                    self.assertEqual(self.boards() - before, 2 if happens else 1)
                cluster.stop()
        self.assertEqual(found[0], found[1])


@unittest.skipIf(REAL, "the driver says what other processes have, too")
class Memory(Base):
    """Status shows what contexts of workers and communicators have of a GPU: each of these has memory
    for itself, and for each kind of operation."""
    CONTEXT, NCCL = 3 << 20, 1 << 20

    def memory(self, cluster):
        device = cluster.status(1)["devices"][0]
        self.assertEqual(device["worker_context_bytes"], self.CONTEXT)
        return device["context_bytes"], device["nccl_bytes"]

    def job(self, cluster, name, sparsifier):
        document = {"density": 0.05, "sparsifier": sparsifier, **NCCL}
        return Job(cluster, BUILD, name, [0, 1], TENSORS, text(document))

    def test_memory(self):
        accounts = os.path.join(self.folder, "accounts")
        with self.nccl_cluster(
                ADTOPK_TEST_CUDA_ACCOUNTS=accounts, ADTOPK_TEST_CUDA_CONTEXT=str(self.CONTEXT),
                ADTOPK_TEST_NCCL_MEMORY=str(self.NCCL)) as cluster:
            self.assertEqual(self.memory(cluster), (0, 0))
            with self.job(cluster, "both", "topk") as both:
                self.assertEqual(both.join().steps(3)[0], "ok")
                self.assertEqual(self.memory(cluster), (self.CONTEXT, 3 * self.NCCL))
                with self.job(cluster, "sums", "dense") as sums:
                    self.assertEqual(sums.join().steps(3)[0], "ok")
                    self.assertEqual(self.memory(cluster), (self.CONTEXT, 5 * self.NCCL))
                    self.assertIn("contexts about 3.15 MB (3.15 MB for each worker), NCCL about 5.24 MB",
                                  cluster.daemons[1].ask("status")[1])
                wait_for(lambda: self.memory(cluster) == (self.CONTEXT, 3 * self.NCCL))
                self.kill_worker(cluster)
                self.assertEqual(self.memory(cluster), (self.CONTEXT, 0))
                self.assertEqual(both.steps(3)[0], "ok")
                self.assertEqual(self.memory(cluster), (self.CONTEXT, 3 * self.NCCL))
            wait_for(lambda: self.memory(cluster) == (0, 0))
            cluster.stop()


@unittest.skipIf(REAL, "one node's GPUs are all there is")
class Shrinks(Base):
    def test_goes_on(self):
        """A node dies while NCCL sums what is on the GPUs: the operation is given up, and the job goes
        on without the node."""
        document = {"sparsifier": "dense", "on_peer_loss": "shrink", "shrink_after": 1, **NCCL}
        cluster = self.nccl_cluster(3, settings=SOON)
        for daemon in cluster.daemons:
            daemon.variables["ADTOPK_TEST_NCCL_FAULT"] = "late"
        with cluster, Job(cluster, BUILD, "job", [0, 1, 2], TENSORS, text(document)) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(2)[0], "ok")
            for rank in job.ranks:
                rank.send("steps 15")
            time.sleep(0.15)
            cluster.daemons[2].kill()
            job.ranks[2].kill()
            del job.ranks[2]
            answers = {rank.answer() for rank in job.ranks}
            self.assertEqual(len(answers), 1, answers)
            self.assertRegex(answers.pop(), "^ok [0-9]+ 0 ")
            for node in (0, 1):
                self.assertEqual(cluster.status(node)["jobs"][0]["view_ranks"], 2)
            verify(self, cluster, job)


class Trouble(Base):
    def fails(self, sentence, fault, gpus=1, survives=True, **changes):
        """The job ends on all nodes with this sentence. The daemons, a job that goes by ZeroMQ and
        the next one go on, though each waits less for a node's part. survives: all workers give the
        operation up; none has to be killed."""
        with self.nccl_cluster(gpus=gpus, settings=SOON, ADTOPK_TEST_NCCL_FAULT=fault) as cluster:
            document = {"density": 0.05, "round_timeout": 4, **changes, **NCCL}
            with Job(cluster, BUILD, "other", [0, 1], TENSORS, text({"round_timeout": 3})) as other:
                other.join()
                with Job(cluster, BUILD, "job", HOMES, TENSORS, text(document)) as job:
                    job.join()
                    for rank in job.ranks:
                        rank.send("steps 50")
                    for rank in other.ranks:
                        rank.send("steps 100")
                    for rank in job.ranks:
                        self.assertRegex(rank.error()[1], sentence)
                    job.kill()
                for rank in other.ranks:
                    self.assertEqual(rank.answer().split()[0], "ok")
                starts = {one["starts"] for node in (0, 1)
                          for device in cluster.status(node)["devices"] for one in device["workers"]}
                self.assertEqual(starts == {1}, survives, starts)
            with Job(cluster, BUILD, "next", HOMES, TENSORS) as job:
                self.assertEqual(job.join().steps(3)[0], "ok")
            cluster.stop()

    def test_absent(self):
        self.fails("NCCL of node [01] did not carry bucket [0-9]+ of step 0 within round_timeout",
                   "absent")

    def test_never(self):
        self.fails("NCCL of node [01] did not carry bucket [0-9]+ of step [0-9]+ within "
                   "round_timeout, 4 s", "never:4", sparsifier="dense")

    def test_count(self):
        self.fails("NCCL of node [01] did not carry bucket [0-9]+ of step [0-9]+ within "
                   "round_timeout, 4 s", "count:4")

    def test_asynchronous_error(self):
        self.fails("NCCL of node 1 did not carry bucket [0-9]+ of step [0-9]+: nccl[A-Za-z]+: "
                   "internal error|NCCL of node 0 did not carry .*: remote process exited",
                   "fail:4", gpus=2, sparsifier="dense")

    @unittest.skipIf(REAL, "NCCL fails where a test wants it")
    def test_runs_after_a_failure(self):
        """It is no lack of memory: tensors of another job go together, as before."""
        tensors = [(f"layer{number}", "f32", "list", (16, 32)) for number in range(50)]
        policy = text({"sparsifier": "adtopk", "interleave": False})
        with self.nccl_cluster(settings=SOON, ADTOPK_TEST_NCCL_FAULT="fail:4") as cluster, \
                Job(cluster, BUILD, "next", [1, 1], tensors, policy) as following:
            following.join()
            following.each("gradients random 3")
            with Job(cluster, BUILD, "job", HOMES, [("bias", "f32", "dense", (16,))],
                     text({"sparsifier": "dense", **NCCL})) as job:
                job.join()
                for rank in job.ranks:
                    rank.send("steps 50")
                for rank in job.ranks:
                    self.assertIn("did not carry", rank.error()[1])
                job.kill()
            following.steps(3)
            before = workers(cluster, 1)[0]["launches"]
            following.steps(5)
            # ADD, LEAVE, and once per second a step that reads residuals.
            self.assertLess(workers(cluster, 1)[0]["launches"] - before, 5 * (5 + 2 + 3) + 1)

    def test_death(self):
        self.fails("NCCL of node 1 did not carry bucket [0-9]+ of step [0-9]+: it was killed by "
                   "signal 9|NCCL of node 0 did not carry .*: remote process exited", "die:4", gpus=2,
                   survives=False)


if __name__ == "__main__":
    unittest.main()
