#!/usr/bin/env python3
"""Policies move residuals between GPUs and host memory while ranks train: bits stay, nothing is lost.

libcuda is the library that stands in for it; see test_gpu.py.

usage: test_engines.py BUILD [unittest's arguments]
"""
import contextlib
import os
import random
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import test_gpu
from build import BUILD
from cluster import PATIENCE, Cluster
from manager import KeptCluster
from ranks import Job, RankError
from service import wait_for
from stores import registrations
from test_arenas import FIRST, STANDIN, variables
from test_gpu import GPUS, HOMES, TENSORS, gpu_cluster, kill_worker, text, verify, workers

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
MOVES = 20                      # in a training
KILLS = 60 if LONG else 8       # of workers and daemons, while residuals move
STEPS = 4                       # in a row; a change takes some
TWO = {"ADTOPK_TEST_CUDA_DEVICES": str(min(GPUS, 2))}
ENGINES = ("host", "node")
POLICIES = [{}, {"scope": "rank", "momentum": 0.7, "sparsifier": "topk"},
            {"residual": "bf16", "values": "bf16"}, {"sparsifier": "dense", "momentum": 0.5}]
# All in one change: types, owners and velocities become others, and residuals move.
CHANGES = [{"scope": "rank", "engine": "host", "momentum": 0.7}, {"scope": "node", "engine": "node"},
           {"residual": "bf16", "momentum": 0, "values": "bf16", "engine": "host"},
           {"residual": "f32", "engine": "node"}, {"scope": "rank", "engine": "host"},
           {"scope": "node", "residual": "bf16", "engine": "node"},
           {"residual": "f32", "momentum": 0.5, "engine": "host"}, {"engine": "node", "scope": "rank"}]


def change(cluster, node, **values):
    """The job's policy, on all nodes; until they have agreed."""
    pairs = [f"{key}={value}" for key, value in values.items()]
    return cluster.daemons[node].ask("policy", "set", "job", *pairs, timeout=120)


def places(cluster):
    """Of each node: whether the job's residuals are in host memory, and whether GPUs have some."""
    found = []
    for node in (0, 1):
        status = cluster.status(node)
        job = status["jobs"][0]
        found.append((job.get("in_host_memory", False), "gpus" in job))
    return found


def reserved(cluster, node=0):
    return sum(device["reserved_bytes"] for device in cluster.status(node)["devices"])


class Moving(unittest.TestCase):
    """What ranks get while residuals move is what they get on the processor, where nothing moves."""

    def train(self, cluster, document, moves=(), count=3, later=(), ranks=None):
        """Trains while `moves`, functions, are called one after the other, then until there are `count`
        rows of steps. Returns the updates of each row."""
        found = []
        with Job(cluster, BUILD, "job", HOMES, TENSORS, text({"density": 0.05, **document}),
                 **(ranks or {})) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[1].do(f"poison 7 {len(TENSORS) - 1} nan")
            for tensors in later:
                job.each(*registrations(tensors), "commit")
                found.append(job.steps(STEPS))
            if moves:
                found += self.rows_while(job, moves)
            while len(found) < count:
                found.append(job.steps(STEPS))
            verify(self, cluster, job)
            losses = [cluster.status(node)["jobs"][0].get("losses", 0) for node in (0, 1)]
        self.assertEqual(losses, [0, 0])
        return found

    @staticmethod
    def rows_while(job, moves):
        """Daemons that a move starts die with the thread that does so, which thus is this one."""
        over = threading.Event()

        def rows():
            found = [job.steps(STEPS)]
            while not over.is_set():
                found.append(job.steps(STEPS))
            return found

        with ThreadPoolExecutor(max_workers=1) as pool:
            found = pool.submit(rows)
            try:
                for move in moves:
                    move()
            finally:
                over.set()
            return found.result()

    def compare(self, cluster, document, moves, later=(), ranks=None):
        found = self.train(cluster, document, moves, later=later, ranks=ranks)
        with Cluster(BUILD, nodes=2) as host:
            self.assertEqual(found, self.train(host, document, count=len(found), later=later))

    def move(self, cluster, number, node=0, there=(True, True)):
        """To host memory, or back. there: the nodes that have GPUs."""
        def turn():
            engine = ENGINES[number % 2]
            code, _, error = change(cluster, node, engine=engine)
            self.assertEqual(code, 0, error)
            wait_for(lambda: places(cluster) == [
                (engine == "host", engine == "node") if gpus else (False, False) for gpus in there])
        return turn


class BackAndForth(Moving):
    BATCHES = [[("down", "bf16", "list", (16, 40)), ("up", "f32", "both", (40, 16))]]

    def test_moves(self):
        with gpu_cluster(variables=TWO) as gpu:
            for document in POLICIES:
                with self.subTest(policy=document):
                    moves = MOVES if LONG or document == POLICIES[1] else 4
                    self.compare(gpu, document, [self.move(gpu, number, number % 2)
                                                 for number in range(moves)], self.BATCHES)
            wait_for(lambda: reserved(gpu) == 0)
            self.assertEqual({one["trouble"] for node in (0, 1) for one in workers(gpu, node)}, {""})
            gpu.stop()

    def test_with_one_node_without_gpus(self):
        with gpu_cluster(hosts=1) as gpu:
            self.compare(gpu, POLICIES[1], [self.move(gpu, number, there=(False, True))
                                            for number in range(4)])
            gpu.stop()

    def test_memory_is_free(self):
        """Of the other side there is none, and no worker lives. A job may begin in host memory."""
        with gpu_cluster() as gpu, Job(gpu, BUILD, "job", HOMES, TENSORS, text({"engine": "host"})) as job:
            self.assertEqual(job.join().steps(3)[0], "ok")
            self.assertEqual(places(gpu), [(True, False)] * 2)
            self.assertEqual(workers(gpu, 0), [])
            self.assertEqual(reserved(gpu), 0)
            self.assertIn("residuals are in host memory, as its policy says", gpu.daemons[0].ask("status")[1])
            job.steps_while(self.move(gpu, 1))
            there = reserved(gpu)
            memory = gpu.status(0)["jobs"][0]["memory_bytes"]
            self.assertGreater(there, 0)
            job.steps_while(self.move(gpu, 0))
            wait_for(lambda: reserved(gpu) == 0 and all(one["pid"] is None for one in workers(gpu, 0)))
            self.assertGreater(gpu.status(0)["jobs"][0]["memory_bytes"], memory)
            job.steps_while(self.move(gpu, 1))
            self.assertEqual(reserved(gpu), there)
            self.assertEqual(gpu.status(0)["jobs"][0]["memory_bytes"], memory)
            self.assertIn("its residuals are on GPUs again from step", gpu.daemons[1].log())
            self.assertIn("its residuals are in host memory, as its policy says, from step",
                          gpu.daemons[1].log())

    def test_with_other_changes(self):
        """One change has them all. Without GPUs ranks get the same updates, if it is from the same step."""
        with gpu_cluster(variables=TWO) as gpu, Job(gpu, BUILD, "job", HOMES, TENSORS) as job:
            job.join()
            job.each("gradients random 3")
            for number, values in enumerate(CHANGES * 2):
                code, _, error = job.steps_while(lambda: change(gpu, number % 2, **values))
                self.assertEqual(code, 0, error)
                self.assertEqual(job.steps(3)[0], "ok")
                verify(self, gpu, job, [number % 2])
                self.assertEqual({place for place, _ in places(gpu)}, {values["engine"] == "host"})
            gpu.stop()


class RealTraining(test_gpu.Digits):
    """Digits, whose residuals move all the time, end with the parameters that they have without GPUs."""

    def test_same_parameters(self):
        steps = 16 * MOVES
        with tempfile.TemporaryDirectory() as directory:
            with Cluster(BUILD, nodes=2) as cluster:
                expected = self.train(cluster, directory, steps=steps)
            with gpu_cluster(variables=TWO) as cluster:
                self.assertEqual(self.train(cluster, directory, lambda ranks: self.moves(cluster, ranks),
                                            steps=steps), expected)
                cluster.stop()

    def moves(self, cluster, ranks):
        moves = 0
        while all(rank.poll() is None for rank in ranks):
            code = cluster.daemons[moves % 2].ask("policy", "set", "digits",
                                                  f"engine={ENGINES[moves % 2]}", timeout=60)[0]
            moves += code == 0
        self.assertGreaterEqual(moves, MOVES)

    test_gradients_on_gpus = test_each_sparsifier = None


class Disturbed(Moving):
    """Workers and daemons are killed while residuals move."""

    @contextlib.contextmanager
    def stored(self):
        """Daemons with a store_folder."""
        cluster = gpu_cluster(variables=TWO)
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/dev/shm") as folder:
            for daemon in cluster.daemons:
                daemon.variables["ADTOPK_STORE_FOLDER"] = os.path.join(folder, f"node{daemon.node}")
            with cluster as gpu:
                yield gpu

    def change(self, cluster, engine):
        """Asks again while a daemon is away."""
        deadline = time.monotonic() + PATIENCE
        code, _, error = change(cluster, 0, engine=engine)
        while code != 0:
            self.assertLess(time.monotonic(), deadline, error)
            time.sleep(0.02)
            code, _, error = change(cluster, 0, engine=engine)

    def disturbed(self, cluster, disturb):
        """Moves, each with something that happens meanwhile. A daemon may end before it has answered: then
        the change is asked for again."""
        draw = random.Random(11)

        def turn(number):
            def ask():
                self.change(cluster, ENGINES[number % 2])

            def move():
                with ThreadPoolExecutor(max_workers=1) as pool:
                    asked = pool.submit(ask)
                    time.sleep(draw.uniform(0, 0.15))
                    disturb(number)
                    asked.result()
            return move
        return [turn(number) for number in range(KILLS)]

    def test_workers(self):
        killed = []

        def kill(number):
            for worker in workers(gpu, number % 2):
                if worker["pid"] and kill_worker(worker["pid"]):
                    killed.append(worker["pid"])

        with gpu_cluster(variables=TWO) as gpu:
            self.compare(gpu, POLICIES[1], self.disturbed(gpu, kill))
            gpu.stop()
        self.assertGreater(len(killed), KILLS // 4)

    def daemons(self, gpu, policies):
        def kill(number):
            gpu.daemons[1].kill()
            gpu.restart(1)

        for document in policies:
            with self.subTest(policy=document):
                self.compare(gpu, document, self.disturbed(gpu, kill))

    def test_daemons(self):
        """A service manager keeps the memory of GPUs: a daemon that is killed loses nothing."""
        with gpu_cluster(kind=KeptCluster, variables=TWO) as gpu:
            self.daemons(gpu, POLICIES[1:3])
            wait_for(lambda: all(list(daemon.manager.kept) == ["shared"] for daemon in gpu.daemons))

    def test_daemons_that_stop(self):
        """Without a manager, what is on GPUs is saved, and found again."""
        with self.stored() as gpu:
            def stop(number):
                gpu.daemons[1].stop()
                gpu.restart(1)

            self.compare(gpu, POLICIES[1], self.disturbed(gpu, stop))
            gpu.stop()

    def test_in_host_memory(self):
        """There a daemon that is killed loses nothing either, without a manager."""
        with self.stored() as gpu:
            def kill():
                gpu.daemons[1].kill()
                gpu.restart(1)

            def arrive():
                """What is still on a GPU goes with a daemon that is killed."""
                self.change(gpu, "host")
                wait_for(lambda: places(gpu) == [(True, False)] * 2)

            self.compare(gpu, {**POLICIES[1], "engine": "host"},
                         [kill, lambda: self.change(gpu, "node"), arrive, kill, kill])


class Refused(unittest.TestCase):
    def goes_on(self, cluster, job, sentence, **values):
        """The change is refused on all nodes, and residuals stay where they are."""
        before = places(cluster)
        code, _, error = job.steps_while(lambda: change(cluster, 0, **values))
        self.assertEqual(code, 1, error)
        self.assertRegex(" ".join(error.split()), sentence)
        self.assertEqual(job.steps(3)[0], "ok")
        verify(self, cluster, job)
        self.assertEqual(places(cluster), before)

    def test_no_memory_on_a_gpu(self):
        """Node 1 has none. Node 0 gives back what it had made."""
        cluster = gpu_cluster()
        cluster.daemons[1].variables["ADTOPK_GPU_MEMORY_LIMIT"] = "300000"
        with cluster as gpu, Job(gpu, BUILD, "job", HOMES, TENSORS, text({"engine": "host"})) as job:
            self.assertEqual(job.join().steps(3)[0], "ok")
            for _ in range(2):
                self.goes_on(gpu, job, "node 1: GPU-.* has no [0-9]+ bytes for residuals", engine="node")
                wait_for(lambda: reserved(gpu) == 0 and reserved(gpu, 1) == 0)
            self.assertEqual(job.steps_while(lambda: change(gpu, 0, density=0.1))[0], 0)

    @STANDIN
    def test_gradients_on_gpus(self):
        """The processor cannot read them."""
        sentence = 'engine "host" does not go with gradients on GPUs, where rank 2 has some'
        devices = [None, None, f"{FIRST} arena", None]
        with gpu_cluster() as gpu:
            with Job(gpu, BUILD, "job", HOMES, TENSORS, devices=devices, variables=variables()) as job:
                self.assertEqual(job.join().steps(3)[0], "ok")
                self.goes_on(gpu, job, f"node 1: {sentence}", engine="host")
            with Job(gpu, BUILD, "job", HOMES, TENSORS, text({"engine": "host"}), devices=devices,
                     variables=variables()) as job:
                with self.assertRaisesRegex(RankError, sentence):
                    job.join()
                job.kill()
            gpu.stop()


if __name__ == "__main__":
    unittest.main()
