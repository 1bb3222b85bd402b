#!/usr/bin/env python3
"""Residuals on GPUs: the same bits as on the processor, whatever becomes of the device workers.

libcuda is the library of tests/cuda/driver. So adtopkd, its workers and their memory are real, and
the kernels are those of kernels/cuda, which this processor runs. With ADTOPK_TEST_REAL_GPU driver and
kernels are those of the machine (tests/gpu), and tests in which they have to fail are skipped.
ADTOPK_TEST_BRIEF takes the first few cases of each test.

usage: test_gpu.py BUILD [unittest's arguments]
"""
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import tempfile
import time
import unittest
import zlib
from concurrent.futures import ThreadPoolExecutor

import digits
from build import ADTOPKD, BUILD
from cluster import Cluster, ClusterError, die_with_parent
from ranks import Job, RankError
from service import wait_for

LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
PROGRAM = os.path.join(BUILD, "daemon", "device", "adtopk-device")
# Small granules make the library fast.
DRIVER = {"ADTOPK_CUDA_LIBRARY": LIBRARY, "ADTOPK_TEST_CUDA_GRANULE": str(64 << 10)}
REAL = "ADTOPK_TEST_REAL_GPU" in os.environ
GPUS = max(int(os.environ.get("ADTOPK_TEST_GPUS", "1")), 1) if REAL else 8
LONG = "ADTOPK_TEST_LONG" in os.environ
BRIEF = "ADTOPK_TEST_BRIEF" in os.environ
# On a machine with GPUs: libraries that are not where the loader looks, and GPUs that are ours.
MACHINE = {name: value for name, value in os.environ.items() if REAL and name.startswith(
    ("ADTOPK_CUDA_", "ADTOPK_NCCL_", "ADTOPK_TEST_CUDA_", "ADTOPK_TEST_NCCL_"))}
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")
MPS = int("CUDA_MPS_PIPE_DIRECTORY" in os.environ)
HOMES = [0, 0, 1, 1]
THREE = [0, 0, 0, 1, 1, 1]  # ranks: of each node two have gradients on its GPUs, and one has not
MIXED = [0, 1, None, 1, None, 0]
LIMIT = 60  # descriptors of a daemon that runs out of them
# Kernels of this processor take long: in the bundle's own test, too, which is as on a GPU.
SLOW = not REAL or "standin" in os.environ.get("ADTOPK_CUDA_LIBRARY", "")
STEPS = 1200 if LONG else 40 if BRIEF else 130
STEPS *= 1 if SLOW else 8  # a GPU's are short
MIXED_STEPS = 100 if LONG else 20  # of training with gradients on GPUs
KILLS = 200 if LONG else 8 if BRIEF else 20  # of workers, at random moments
LOST = 50 if LONG else 5  # kills with which memory goes, with each of four policies
CONSERVED = 100 if BRIEF else 1000  # steps
DISTURBED = 20 if LONG else 8  # steps, in one of which a daemon ends; each takes a tenth of a second
EACH = 15 if LONG or not SLOW else 9  # steps for each sparsifier: more than two rounds of estimates
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
    {"sparsifier": "dgc", "momentum": 0.9, "clip": 2},
    {"sparsifier": "gaussiank", "scope": "rank"},
    {"sparsifier": "redsync", "values": "int8"},
    {"sparsifier": "redsync-trim"},
    {"sparsifier": "sidco", "scope": "rank"},
    {"sparsifier": "sidco", "fit": "gamma", "beta": 0.9},
    {"sparsifier": "threshold", "threshold": 1.5},
    {"estimate": True, "fibre_turns": 1, "global_turns": 2},
    {"residual": "bf16", "values": "bf16"},
    {"residual": "bf16", "sparsifier": "topk", "gamma": 0.8, "rules": [
        {"match": "fc", "residual": "f32", "sparsifier": "sidco"}]},
]
# Some tensors have velocities.
DIGITS = {"lookahead": 0, "rules": [{"match": "*1*", "momentum": 0.5}]}
SPARSIFIERS = [
    {"sparsifier": "topk"}, {"sparsifier": "dgc"}, {"sparsifier": "gaussiank"},
    {"sparsifier": "redsync"}, {"sparsifier": "redsync-trim"}, {"sparsifier": "sidco"},
    {"sparsifier": "threshold", "threshold": 0.01}, {"sparsifier": "randomk"},
    {"sparsifier": "dense"}, {"estimate": True, "fibre_turns": 1, "global_turns": 3},
]
if BRIEF:
    del POLICIES[3:], SPARSIFIERS[2:]


def text(document):
    return json.dumps(document, separators=(",", ":"))


def job_name(document):
    """A name of the policy's own: with the name changes what is drawn at random."""
    return f"job{zlib.crc32(text(document).encode()):08x}"


def visible(numbers):
    """CUDA_VISIBLE_DEVICES for a daemon with these of the machine's GPUs."""
    return ",".join(VISIBLE[number] for number in numbers)


def gpu_cluster(nodes=2, settings=None, variables=None, hosts=0, kind=Cluster):
    """Daemons whose residuals lie on GPUs, but those of the first `hosts`; not started yet."""
    cluster = kind(BUILD, nodes=nodes, settings={"engine": "cuda", **(settings or {})})
    for daemon in cluster.daemons[:hosts]:
        daemon.variables = {"ADTOPK_ENGINE": "host"}
    for daemon in cluster.daemons[hosts:]:
        daemon.variables = {**({} if REAL else DRIVER), "ADTOPK_DEVICE_PROGRAM": PROGRAM,
                            **(variables or {})}
        if REAL:
            count = int(daemon.variables.get("ADTOPK_TEST_CUDA_DEVICES", "1"))
            daemon.variables.update(MACHINE, CUDA_VISIBLE_DEVICES=visible(range(count)))
    return cluster


def on_machine(cluster, devices):
    """Devices of ranks, with names of the machine's GPUs in place of those of the library that stands in.
    Where there are fewer GPUs ranks share them."""
    if not REAL or devices is None:
        return devices
    names = [device["uuid"] for device in cluster.status(0)["devices"]]
    return [one and re.sub("GPU-[a0-]+([0-9])", lambda name: names[int(name[1]) % len(names)], one)
            for one in devices]


def workers(cluster, node):
    """What status says of the workers on a node's GPUs."""
    return [one for device in cluster.status(node)["devices"] for one in device["workers"]]


def verify(test, cluster, job, nodes=(0, 1)):
    """Has nodes verify the job, which takes place between two steps."""
    def ask(node):
        return cluster.daemons[node].ask("verify", job.name, timeout=60)

    def ask_all():
        with ThreadPoolExecutor() as pool:
            return list(pool.map(ask, nodes))

    for code, found, error in job.steps_while(ask_all):
        test.assertEqual(code, 0, found + error)


class LikeTheProcessor(unittest.TestCase):
    """Every update has the bits that it has without a GPU."""

    expected = {}  # updates without GPUs, by policy

    def hashes(self, cluster, document, verified=False, steps=8):
        """One step is withdrawn for the last element of the last tensor."""
        with Job(cluster, BUILD, job_name(document), HOMES, TENSORS, text(document)) as job:
            job.join()
            job.each("gradients random 3")
            job.ranks[1].do(f"poison 3 {len(TENSORS) - 1} nan")
            found = [job.steps(1) for _ in range(steps)]
            if verified:
                verify(self, cluster, job)
            return found

    def expect(self, policies):
        """The updates that each policy brings without GPUs."""
        missing = [one for one in map(text, policies) if one not in self.expected]
        if missing:
            with Cluster(BUILD, nodes=2) as host:
                for policy in missing:
                    self.expected[policy] = self.hashes(host, json.loads(policy))
        return [self.expected[text(one)] for one in policies]

    def compare(self, variables, policies, gpus=1):
        variables = {**variables, "ADTOPK_TEST_CUDA_DEVICES": str(gpus)}
        documents = [{"density": 0.05, **changes} for changes in policies]
        expected = self.expect(documents)
        with gpu_cluster(variables=variables) as gpu:
            for document, wanted in zip(documents, expected):
                with self.subTest(policy=document):
                    self.assertEqual(self.hashes(gpu, document, verified=True),
                                     wanted)
            for node in (0, 1):
                self.assertEqual({device["mps"] for device in gpu.status(node)["devices"]}, {MPS})
                self.assertEqual(len(workers(gpu, node)), gpus)
                for worker in workers(gpu, node):
                    self.assertGreater(worker["batches"], 8 * len(policies))
                    self.assertEqual(worker["trouble"], "")
            wait_for(lambda: all(worker["pid"] is None for worker in workers(gpu, 0)))
            for device in gpu.status(0)["devices"]:
                self.assertEqual(device["reserved_bytes"], 0)
            gpu.stop()

    def test_late_streams(self):
        """test_arenas.py has the other policies on one GPU."""
        self.compare({}, POLICIES[::3])

    @unittest.skipIf(REAL, "the driver decides when streams run")
    def test_streams_by_chance(self):
        self.compare({"ADTOPK_TEST_CUDA_STREAMS": "chance:7"}, POLICIES[1:4])

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_two_gpus(self):
        """Two ranks of a node have their job's tensors on two GPUs."""
        self.compare({}, POLICIES, gpus=2)


class Digits(unittest.TestCase):
    """Real training ends with the parameters that it has without a GPU, or with two on each node,
    where no rank looks ahead: a rank cannot read residuals that are on one."""

    def train(self, cluster, directory, beside=None, steps=STEPS, homes=None, ranks=None, **changes):
        """homes: of more ranks than HOMES has. ranks: what else they need."""
        policy = os.path.join(directory, "policy.json")
        with open(policy, "w", encoding="utf-8") as out:
            json.dump({**DIGITS, **changes}, out)
        ranks = digits.start(self, cluster, homes or HOMES, digits.unpack(directory), "--steps", str(steps),
                             "--job", "digits", "--policy", policy, **(ranks or {}))
        if beside:
            beside(ranks)
        return digits.parameters(self, ranks)

    def test_same_parameters(self):
        with tempfile.TemporaryDirectory() as directory:
            with Cluster(BUILD, nodes=2) as cluster:
                expected = self.train(cluster, directory)
            gpus = min(GPUS, 2)
            with gpu_cluster(variables={"ADTOPK_TEST_CUDA_DEVICES": str(gpus)}) as cluster:
                self.assertEqual(
                    self.train(cluster, directory, lambda ranks: self.kill(cluster, ranks, gpus)),
                    expected)
                for node in (0, 1):
                    self.assertEqual(len(workers(cluster, node)), gpus)
                    for worker in workers(cluster, node):
                        self.assertGreater(worker["starts"], 2)
                        self.assertIn("it was killed by signal 9", worker["trouble"])
                cluster.stop()

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_gradients_on_gpus(self):
        """Nodes have two GPUs each, on which are gradients of two ranks, and a rank in host memory."""
        with tempfile.TemporaryDirectory() as directory:
            with Cluster(BUILD, nodes=2) as cluster:
                expected = self.train(cluster, directory, homes=THREE, steps=MIXED_STEPS)
            for streams in ("late",) if REAL else ("late", "early", "chance:11"):
                found = {"ADTOPK_TEST_CUDA_DEVICES": "2", "ADTOPK_TEST_CUDA_STREAMS": streams}
                with self.subTest(streams=streams), gpu_cluster(variables=found) as cluster:
                    uuids = [device["uuid"] for device in cluster.status(0)["devices"]]
                    ranks = {"devices": [None if one is None else uuids[one] for one in MIXED],
                             "variables": {**(MACHINE if REAL else DRIVER), **found}}
                    self.assertEqual(
                        self.train(cluster, directory, lambda _: self.wait_for_arenas(cluster),
                                   homes=THREE, ranks=ranks, steps=MIXED_STEPS), expected)
                    for node in (0, 1):
                        self.assertEqual([one["trouble"] for one in workers(cluster, node)], ["", ""])
                        for worker in workers(cluster, node):
                            self.assertGreater(worker["batches"], MIXED_STEPS)
                    cluster.stop()

    @staticmethod
    def wait_for_arenas(cluster):
        """Until all GPUs have gradients."""
        wait_for(lambda: all(device["arena_bytes"] for node in (0, 1)
                             for device in cluster.status(node)["devices"]))

    def test_each_sparsifier(self):
        """With a GPU on one of two nodes."""
        with tempfile.TemporaryDirectory() as directory, \
                Cluster(BUILD, nodes=2) as host, gpu_cluster(hosts=1) as gpu:
            for changes in SPARSIFIERS:
                with self.subTest(policy=changes):
                    expected, found = (self.train(cluster, directory, steps=EACH, **changes)
                                       for cluster in (host, gpu))
                    self.assertEqual(found, expected)
            self.assertNotIn("devices", gpu.status(0))
            self.assertGreater(workers(gpu, 1)[0]["batches"], EACH * len(SPARSIFIERS))
            self.assertGreater(workers(gpu, 1)[0]["questions"], 0)
            self.assertEqual(workers(gpu, 1)[0]["trouble"], "")
            gpu.stop()

    def kill(self, cluster, ranks, gpus):
        """Kills workers at random moments until the training is over. Two steps lie between two
        kills: the daemon gives a worker up that fails three times before it has done anything. A rank
        sleeps while daemons are asked, so that the training does not end meanwhile."""
        draw = random.Random(5)
        killed = due = 0
        while all(rank.poll() is None for rank in ranks) and killed < 2 * KILLS:
            ranks[0].send_signal(signal.SIGSTOP)
            done = max((job["steps_done"] for job in cluster.status(0)["jobs"]), default=0)
            pids = [one["pid"] for one in workers(cluster, killed % 2)]
            ranks[0].send_signal(signal.SIGCONT)
            due = done + 2 if due is None else due
            if done < due or len(pids) != gpus or not pids[killed // 2 % gpus]:
                time.sleep(0.01)
                continue
            time.sleep(draw.uniform(0, 0.1))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[killed // 2 % gpus], signal.SIGKILL)
                killed, due = killed + 1, None
        self.assertGreaterEqual(killed, KILLS)


class Changes(unittest.TestCase):
    """Policies that change while ranks train: residuals are joined, and all accounted for."""

    CHANGES = [{"scope": "rank"}, {"sparsifier": "topk", "scope": "node"}, {"sparsifier": "dense"},
               {"sparsifier": "adtopk", "values": "f32", "momentum": 0.7}, {"scope": "rank"},
               {"sparsifier": "sidco"}, {"sparsifier": "adtopk", "momentum": 0},
               {"residual": "bf16", "scope": "node"}, {"values": "bf16"},
               {"residual": "f32", "momentum": 0.7},
               {"scope": "node", "interleave": False}, {"momentum": 0}]

    def test_changes(self):
        gpus = str(min(GPUS, 2))
        with gpu_cluster(variables={"ADTOPK_TEST_CUDA_DEVICES": gpus}) as cluster, \
                Job(cluster, BUILD, "job", HOMES, TENSORS) as job:
            job.join()
            job.each("gradients random 3")
            for number, change in enumerate(self.CHANGES * (1 if BRIEF else 2)):
                pairs = [f"{key}={json.dumps(value)}" for key, value in change.items()]
                code, _, error = job.steps_while(lambda: cluster.daemons[number % 2].ask(
                    "policy", "set", "job", *pairs, timeout=60))
                self.assertEqual(code, 0, error)
                self.assertEqual(job.steps(3)[0], "ok")
                verify(self, cluster, job, [number % 2])

    def test_conserves(self):
        """After many steps every gradient is in the updates or in a residual."""
        with gpu_cluster(hosts=1) as cluster, Job(cluster, BUILD, "job", HOMES, TENSORS,
                                                  text({"density": 0.02, "gamma": 0.9})) as job:
            job.join()
            job.each("gradients random 3")
            for _ in range(10):
                self.assertEqual(job.steps(CONSERVED // 10)[0], "ok")
                verify(self, cluster, job)


def kill_worker(pid):
    """False: the process had ended by itself, and the daemon did not know that yet."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@unittest.skipIf(REAL, "the library that stands in loses memory where a test wants it")
class Lost(unittest.TestCase):
    """Workers die, and the content of a GPU's memory goes with some of them. Jobs go on, all ranks
    with the same updates, and ledgers declare what is lost."""

    POLICIES = [{"gamma": 0.9}, {"sparsifier": "dense", "dense_values": "bf16"},
                {"scope": "rank", "momentum": 0.7}, {"residual": "bf16", "values": "bf16"}]

    def lose(self, cluster, gone, draw):
        """Kills the worker of node 1; the next one finds nothing."""
        time.sleep(draw.uniform(0, 0.05))
        worker = workers(cluster, 1)[0]
        with open(gone, "w", encoding="utf-8"):
            if worker["pid"] and kill_worker(worker["pid"]):
                wait_for(lambda: workers(cluster, 1)[0]["starts"] > worker["starts"] and
                         workers(cluster, 1)[0]["pid"])
                time.sleep(0.01)  # it may have mapped nothing yet: then nothing is lost
        os.remove(gone)

    def test_killed(self):
        draw = random.Random(7)
        with tempfile.TemporaryDirectory() as folder:
            gone = os.path.join(folder, "gone")
            with gpu_cluster(variables={"ADTOPK_TEST_CUDA_FORGETS": gone}) as cluster:
                for number, changes in enumerate(self.POLICIES):
                    with self.subTest(policy=changes), \
                            Job(cluster, BUILD, f"job{number}", HOMES, TENSORS,
                                text({"density": 0.05, **changes})) as job:
                        self.go_on(cluster, job, lambda: self.lose(cluster, gone, draw))
                cluster.stop()

    def found(self, cluster, job, node):
        """What a node tells of the job."""
        return [one for one in cluster.status(node)["jobs"] if one["name"] == job.name][0]

    def go_on(self, cluster, job, lose):
        """A worker that was killed before it had mapped anything lost nothing: then one more is."""
        job.join()
        job.each("gradients random 3")
        job.ranks[2].do("poison 6 0 nan")
        for kills in range(LOST + 20):
            if kills >= LOST and "losses" in self.found(cluster, job, 1):
                break
            for rank in job.ranks:
                rank.send("steps 12")
            lose()
            self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
            verify(self, cluster, job)
        found = [self.found(cluster, job, node) for node in (0, 1)]
        self.assertNotIn("losses", found[0])
        self.assertGreater(found[1]["losses"], 0)
        self.assertEqual(len(found[1]["lost"]), 2)
        self.assertRegex(cluster.daemons[1].ask("status")[1],
                         r"lost: residuals went with a GPU's memory [0-9]+ times; their\s+sum was")


@unittest.skipIf(REAL, "the library that stands in makes kernels slow")
class Planner(unittest.TestCase):
    """The planner measures how long the device has a pass, not the processor's part alone."""

    def select_us(self, cluster):
        """How long the plan in force selects, as the coordinator has measured it."""
        auto = text({"sparsifier": "adtopk", "density": 0.02, "sparse_collective": "auto",
                     "bucket_bytes": "auto"})
        with Job(cluster, BUILD, "job", HOMES, TENSORS, auto) as job:
            job.join()
            job.each("gradients random 3")
            for _ in range(4):
                self.assertEqual(job.steps(20)[0], "ok")
            plan = json.loads(cluster.daemons[0].ask("--json", "plan", "job", timeout=60)[1])
            return [one["select_us"] for one in plan["candidates"] if one["in_force"]][0]

    def test_cost(self):
        """The processor needs a tenth of a millisecond for its part."""
        with gpu_cluster(variables={"ADTOPK_TEST_CUDA_KERNEL_US": "3000"}) as cluster:
            self.assertGreater(self.select_us(cluster), 3000)


class Launches(unittest.TestCase):
    """All tensors of a bucket are copied together, and kernels are launched for all of them."""

    def test_many_tensors(self):
        tensors = [(f"layer{number}", "f32", "list", (16, 32)) for number in range(200)]
        policy = text({"sparsifier": "adtopk", "interleave": False})
        with gpu_cluster(hosts=1) as cluster, Job(cluster, BUILD, "job", HOMES, tensors, policy) as job:
            job.join()
            job.each("gradients random 3")
            job.steps(3)
            before = workers(cluster, 1)[0]
            job.steps(5)
            after = workers(cluster, 1)[0]
            # ADD is 5 and LEAVE is 2; once per second a step reads residuals: SUMS is 3.
            launches = after["launches"] - before["launches"] - 5 * (5 + 2)
            self.assertEqual(launches % 3, 0)
            self.assertLess(launches, 5 * 3)
            # ADD's gradients and ledgers in, its lists out, and LEAVE's lists in.
            self.assertEqual(after["copies"] - before["copies"], 5 * (1 + 1 + 1))
            # Nobody knows how many steps there are meanwhile, nor which of them read.
            before = workers(cluster, 1)[0]["launches"]
            verify(self, cluster, job, [1])
            self.assertIn((workers(cluster, 1)[0]["launches"] - before) % 7, (3, 6, 2))


@unittest.skipIf(REAL, "names the devices of the library that stands in")
class TwoDevices(unittest.TestCase):
    """Jobs share the GPUs of a node out among them, and a worker's death concerns its GPU only."""

    def test_where(self):
        """A job with two ranks has two GPUs, and status says which tensors are on which."""
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_DEVICES": "3"}) as cluster, \
                Job(cluster, BUILD, "job", [0, 0], TENSORS) as job:
            self.assertEqual(job.join().steps(3)[0], "ok")
            status = cluster.status(0)
            devices = [one["uuid"] for one in status["devices"] if one["jobs"] == 1]
            self.assertEqual(len(devices), 2)
            gpus = status["jobs"][0]["gpus"]
            self.assertEqual([one["uuid"] for one in gpus], devices)
            # Residuals have whole slots of 4,096 elements: 2, 1, 1 and 3.
            self.assertEqual([(one["first_tensor"], one["tensors"]) for one in gpus],
                             [(0, 2), (2, 2)])
            self.assertRegex(cluster.daemons[0].ask("status")[1],
                             f"tensors 0 to 1 are on {devices[0]}\n *tensors 2 to 3 are on ")

    def test_scratch_counts(self):
        """Of two GPUs with equal residuals a job gets the one whose worker has less to work."""
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_DEVICES": "2"}) as cluster, \
                Job(cluster, BUILD, "busy", [0], TENSORS) as busy, \
                Job(cluster, BUILD, "idle", [0], TENSORS) as idle, \
                Job(cluster, BUILD, "next", [0], TENSORS) as following:
            self.assertEqual(busy.join().steps(3)[0], "ok")
            idle.join()
            following.join()
            devices = cluster.status(0)["devices"]
            self.assertEqual([device["jobs"] for device in devices], [1, 2])

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
            self.assertRegex(shown, r"GPU-[0-9a-f-]*01 \(stand-in 1\)\n  1 job with [0-9.]+ kB of")
            self.assertRegex(shown, "worker of .*: runs, started 2 times")
            self.assertIn("compute capability 9.0, driver for CUDA 12.4, without MPS", shown)
            found = {key: devices[0][key] for key in ("compute_capability", "driver", "mps")}
            self.assertEqual(found, {"compute_capability": "9.0", "driver": "12.4", "mps": 0})


@unittest.skipIf(REAL, "the library that stands in fails where a test wants it")
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
                                 capture_output=True, text=True, check=False)
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

    def test_program_that_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program")
            with open(program, "w", encoding="utf-8") as out:
                out.write("#!/bin/sh\nkill -KILL $$\n")
            os.chmod(program, 0o755)
            self.assert_refused("GPU-[0-9a-f-]*00 .stand-in 0.: the program that tries it was killed "
                                "by signal 9", ADTOPK_DEVICE_PROGRAM=program)

    def test_no_kernel_for_this_gpu(self):
        self.assert_refused("this build has no kernels that run on stand-in 0, compute capability "
                            "9.0", ADTOPK_TEST_CUDA_FAIL="cuModuleLoadData:1:209")

    def test_gpu_of_another_process(self):
        self.assert_refused("the GPU to itself, or its compute mode is prohibited .nvidia-smi -q -d "
                            "COMPUTE.", ADTOPK_TEST_CUDA_FAIL="cuDevicePrimaryCtxRetain:1:46")

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
                        "node have [0-9]+ for residuals and 0 for gradients and updates, and their "
                        "workers 0 to work and exchange, an unknown number for contexts and 0 for NCCL, "
                        "and gpu_memory_limit allows 300000 beside contexts and NCCL",
                        {"gpu_memory_limit": 300000})

    def test_memory_of_workers(self):
        """What a worker has to work counts, and status shows it."""
        with gpu_cluster(1, {"gpu_memory_limit": 3 << 20}) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS) as job, \
                Job(cluster, BUILD, "next", [0], [("large", "f32", "list", (700000,))]) as following:
            self.assertEqual(job.join().steps(3)[0], "ok")
            device = cluster.status(0)["devices"][0]
            self.assertEqual(device["residual_bytes"] + device["arena_bytes"],
                             device["reserved_bytes"])
            self.assertGreater(device["scratch_bytes"], 0)
            rank = following.ranks[0]
            rank.do(rank.opening, *following.registrations())
            rank.send("commit")
            self.assertRegex(rank.error()[1], f"workers {device['scratch_bytes']} to work and exchange")
            self.assertRegex(cluster.daemons[0].ask("status")[1],
                             "  residuals .*, gradients and updates 0 B, work and exchange [1-9]")
            following.kill()

    def test_memory_of_others(self):
        self.join_fails("contexts and 0 for NCCL, and other processes have the rest",
                        ADTOPK_TEST_CUDA_MEMORY=str(256 << 10))

    def test_worker_that_always_fails(self):
        with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_FAIL": "cuLaunchKernel:1:700"}) as cluster:
            with Job(cluster, BUILD, "job", [0], TENSORS) as job:
                job.join()
                job.ranks[0].send("steps 50")
                self.assertRegex(job.ranks[0].error()[1], "the engine 'cuda' has lost the residuals")
                self.assertRegex(cluster.daemons[0].log(), "failed 3 times in a row, the last time: "
                                 "cuLaunchKernel on GPU-.*: an illegal memory access")
            cluster.stop()

    def test_lost_gpu(self):
        """A GPU falls off the bus: its jobs end with the driver's words, others go on, and when it is
        back new jobs have it."""
        with tempfile.TemporaryDirectory() as folder:
            gone = os.path.join(folder, "gone")
            with gpu_cluster(1, variables={"ADTOPK_TEST_CUDA_GONE": f"0:{gone}",
                                           "ADTOPK_TEST_CUDA_DEVICES": "2"}) as cluster, \
                    Job(cluster, BUILD, "one", [0], TENSORS) as one, \
                    Job(cluster, BUILD, "two", [0], TENSORS) as two:
                for job in (one, two):
                    self.assertEqual(job.join().steps(3)[0], "ok")
                with open(gone, "w", encoding="utf-8"):
                    pass
                one.ranks[0].send("steps 50")
                self.assertRegex(one.ranks[0].error()[1], "the engine 'cuda' has lost the residuals "
                                 "of job 'one', whose sum was [-0-9.e]+ when step [0-9]+ began")
                self.assertRegex(cluster.daemons[0].log(), "failed 3 times in a row, the last time: "
                                 "cu[A-Za-z0-9_]+.*unknown")
                self.assertEqual(two.steps(3)[0], "ok")
                os.remove(gone)
                with Job(cluster, BUILD, "three", [0], TENSORS) as three:
                    self.assertEqual(three.join().steps(3)[0], "ok")
                cluster.stop()

    def test_descriptor_limit(self):
        """A job for which the daemon has no descriptors left is refused, and the daemon goes on."""
        def limit():
            die_with_parent()
            resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

        cluster = gpu_cluster(1)
        cluster.daemons[0].prepare = limit
        with cluster:
            jobs = [Job(cluster, BUILD, f"job{number}", [0], TENSORS) for number in range(LIMIT // 4)]
            refused = []
            for job in jobs:
                self.addCleanup(job.kill)
                rank = job.ranks[0]
                rank.send(rank.opening, *job.registrations(), "commit")
                try:
                    for _ in range(2 + len(TENSORS)):
                        rank.answer()
                except RankError as error:
                    refused.append(str(error))
                    break
            self.assertRegex(" ".join(refused), "[Tt]oo many open files|descriptors")
            self.assertEqual(jobs[0].steps(3)[0], "ok")
            for job in jobs:
                job.kill()
            wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == 0)
            with Job(cluster, BUILD, "next", [0], TENSORS) as job:
                self.assertEqual(job.join().steps(3)[0], "ok")
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
            cluster.restart(0)
            with Job(cluster, BUILD, "job", [0], TENSORS, run="1") as again:
                self.assertEqual(again.join().steps(3)[0], "ok")
            cluster.stop()


if __name__ == "__main__":
    unittest.main()
