#!/usr/bin/env python3
"""Gradients in the memory of GPUs: the same updates as from host memory, and what goes wrong.

libcuda is the library of tests/cuda/driver, in the daemons, their workers and the trainers.

usage: test_arenas.py BUILD [unittest's arguments]
"""
import mmap
import os
import random
import signal
import struct
import time
import unittest

from build import BUILD
from cluster import Cluster
from ranks import Job, Rank
from rawclient import (ARENA, COMMIT, MAPPED, PUSH, READY, STEP_END, RawClient, field,
                       register_request, tensor)
from service import wait_for
from test_gpu import LIBRARY, POLICIES, TENSORS, gpu_cluster, job_verify, text, workers

GPU = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a00"  # and a digit
HOMES = [0, 0, 1, 1]
MIXED = ["- arena+shown", None, f"{GPU}0 arena", "- copies+shown"]
ALL = [*TENSORS, ("half", "f16", "both16", (30, 20)), ("brain", "bf16", "dense16", (700,))]
KILLS = 20


def variables(streams="late", **more):
    """The environment of trainers."""
    return {"ADTOPK_TEST_CUDA_STREAMS": streams, "ADTOPK_CUDA_LIBRARY": LIBRARY, **more}


def hashes(cluster, document, name, steps=8, **ranks):
    """What all updates of some steps hash to, one of them withdrawn."""
    tensors = TENSORS if "residual" in document else ALL  # bf16 does not go with 16-bit updates
    with Job(cluster, BUILD, name, HOMES, tensors, text(document), **ranks) as job:
        job.join()
        job.each("gradients random 3")
        job.ranks[2].do("poison 3 0 nan")
        found = [job.steps(1) for _ in range(steps)]
        for node in (0, 1):
            code, _, error = job_verify(cluster, node, job)
            if code != 0:
                raise AssertionError(error)
        return found


class LikeHostMemory(unittest.TestCase):
    """Every update has the bits that it has with gradients in host memory."""

    def compare(self, gpu, policies, **ranks):
        with Cluster(BUILD, nodes=2) as host, gpu:
            for number, changes in enumerate(policies):
                document = {"density": 0.05, **changes}
                with self.subTest(policy=document):
                    self.assertEqual(hashes(gpu, document, f"job{number}", **ranks),
                                     hashes(host, document, f"job{number}"))
            for node in (0, 1):
                self.assert_clean(gpu, node)
            gpu.stop()

    def assert_clean(self, gpu, node):
        """All memory was given back, and no worker had trouble."""
        def devices():
            return gpu.status(node)["devices"]

        wait_for(lambda: not any(device["reserved_bytes"] for device in devices()))
        found = [worker["trouble"] for device in devices() for worker in device["workers"]]
        self.assertEqual(set(found), {""})

    def test_late_streams(self):
        self.compare(gpu_cluster(), POLICIES[::2], variables=variables(), devices=MIXED)

    def test_early_streams(self):
        self.compare(gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": "early"}), POLICIES[1:6:2],
                     variables=variables("early"), devices=MIXED)

    def test_streams_by_chance(self):
        self.compare(gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": "chance:7"}),
                     POLICIES[7::2], variables=variables("chance:3"), devices=MIXED)

    def test_two_devices(self):
        """A worker reads gradients on another device than its own."""
        two = {"ADTOPK_TEST_CUDA_DEVICES": "2"}
        self.compare(gpu_cluster(variables=two), [{}, {"scope": "rank"}],
                     variables=variables(**two),
                     devices=[f"{GPU}1 arena+shown", f"{GPU}0 arena+shown", f"{GPU}1 copies", None])

    def test_killed_workers(self):
        """Another worker finds the gradients where they were."""
        draw = random.Random(5)
        with Cluster(BUILD, nodes=2) as host, gpu_cluster() as gpu:
            found = []
            for cluster, ranks in (host, {}), (gpu, {"variables": variables(), "devices": MIXED}):
                with Job(cluster, BUILD, "job", HOMES, ALL, **ranks) as job:
                    job.join()
                    job.each("gradients random 3")
                    for step in range(KILLS):
                        for rank in job.ranks:
                            rank.send("steps 3")
                        if ranks:
                            time.sleep(draw.uniform(0, 0.03))
                            self.kill(gpu, step % 2)
                        answers = {rank.answer() for rank in job.ranks}
                        self.assertEqual(len(answers), 1, answers)
                    found.append(answers)
            self.assertEqual(*found)
            self.assertGreater(workers(gpu, 0)[0]["starts"], KILLS / 4)

    @staticmethod
    def kill(cluster, node):
        pid = workers(cluster, node)[0]["pid"]
        if pid:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Refused(unittest.TestCase):
    """Devices that cannot be used are named, and nothing is left of the attempt."""

    def refused(self, device, sentence, settings=None, trainer=None, daemon=None, hosts=0):
        with gpu_cluster(1, settings, daemon, hosts) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS, variables=trainer or variables()) as job:
            rank = job.ranks[0]
            rank.send(rank.opening, f"device {device}", *job.registrations(), "commit")
            answers = [rank.line() for _ in range(3 + len(TENSORS))]
            self.assertRegex("\n".join(answers), "(?m)" + sentence)
            job.kill()
            if not hosts:
                wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == 0)
            cluster.stop()

    def test_no_driver(self):
        self.refused("absent arena", 'tensor "fc": this node has no NVIDIA driver: /nowhere',
                     trainer={"ADTOPK_CUDA_LIBRARY": "/nowhere"})

    def test_hidden_device(self):
        self.refused(f"{GPU}1 arena",
                     f'tensor "fc": this process sees no {GPU}1 .CUDA_VISIBLE_DEVICES may hide '
                     f"it.: it sees {GPU}0$", daemon={"ADTOPK_TEST_CUDA_DEVICES": "2"})

    def test_device_of_the_trainer_only(self):
        self.refused(f"{GPU}1 arena", f'tensor "fc": adtopkd does not see {GPU}1: it has {GPU}0$',
                     trainer=variables(ADTOPK_TEST_CUDA_DEVICES="2"))

    def test_engine_in_host_memory(self):
        self.refused("- arena", 'tensor "fc" is in a GPU\'s memory, and this daemon works in host '
                     'memory .its setting "engine" is not "cuda"', hosts=1)

    def test_full_device(self):
        self.refused("- arena", r"has no [0-9]+ bytes for gradients: of its 0 bytes jobs of this "
                     "node have 0 in 0 parts", daemon={"ADTOPK_TEST_CUDA_MEMORY": "0"})

    def test_memory_limit(self):
        self.refused("- arena", "bytes for gradients: .* and gpu_memory_limit allows 1000000",
                     {"gpu_memory_limit": 1000000})

    def test_memory_limit_of_updates(self):
        """Gradients alone would fit."""
        limit = 40 << 20
        big = [("big", "f32", "list", (6 << 20,))]
        with gpu_cluster(1, {"gpu_memory_limit": limit}) as cluster:
            sizes = {}
            for kind in ("arena", "arena+shown"):
                with Job(cluster, BUILD, kind, [0], big, variables=variables()) as job:
                    rank = job.ranks[0]
                    rank.do(rank.opening, f"device - {kind}", *job.registrations())
                    rank.send("commit")
                    sizes[kind] = rank.line()
                    job.kill()
                wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == 0)
            self.assertRegex(sizes["arena+shown"], "bytes for gradients: .* and gpu_memory_limit "
                             f"allows {limit}")
            self.assertNotIn("for gradients", sizes["arena"])
            cluster.stop()

    def test_updates_of_some_tensors(self):
        with gpu_cluster(1) as cluster:
            rank = Rank(BUILD, cluster.address(0), "job", 0, 1, variables=variables())
            rank.do(rank.opening, "device - arena+shown", "tensor a f32 list 8", "device - arena")
            rank.send("tensor b f32 list 8")
            self.assertIn('tensor "a" asks for ADTOPK_FORM_DEVICE and tensor "b" does not',
                          rank.error()[1])
            rank.kill()

    def test_call_fails(self):
        for call in ("cuMemImportFromShareableHandle", "cuMemMap", "cuMemHostRegister_v2"):
            self.refused("- arena", f"the gradient arena: {call} on {GPU}0 .stand-in 0.: invalid",
                         trainer=variables(ADTOPK_TEST_CUDA_FAIL=f"{call}:1:1"))

    def test_two_kinds_of_memory(self):
        with gpu_cluster(1) as cluster:
            rank = Rank(BUILD, cluster.address(0), "job", 0, 1, variables=variables())
            rank.do(rank.opening, "tensor a f32 list 8", "device - arena")
            rank.send("tensor b f32 list 8")
            self.assertIn('tensor "b" is in CUDA memory and tensor "a" in host memory',
                          rank.error()[1])
            rank.kill()

    def test_devices_apart(self):
        both = {"ADTOPK_TEST_CUDA_DEVICES": "2", "ADTOPK_TEST_CUDA_APART": "1"}
        with gpu_cluster(1, variables=both) as cluster, \
                Job(cluster, BUILD, "job", [0, 0], TENSORS, variables=variables(**both)) as job:
            for number, rank in enumerate(job.ranks):
                rank.send(rank.opening, f"device {GPU}{number} arena", *job.registrations())
                for _ in range(2 + len(TENSORS)):
                    rank.answer()
            for rank in job.ranks:
                rank.send("commit")
            for rank in job.ranks:
                self.assertRegex(rank.error()[1], f"job are on {GPU}[01] .*, which cannot access "
                                 f"the memory of {GPU}[01] .stand-in [01]., where gradients")
            job.kill()


    def test_devices_of_nobody(self):
        """Residuals are on devices of the job's ranks, and on no other one."""
        both = {"ADTOPK_TEST_CUDA_DEVICES": "2", "ADTOPK_TEST_CUDA_APART": "1"}
        with gpu_cluster(1, variables=both) as cluster, \
                Job(cluster, BUILD, "job", [0, 0], TENSORS, variables=variables(**both),
                    devices=[f"{GPU}1 arena", f"{GPU}1 copies"]) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")
            self.assertEqual([device["reserved_bytes"] > 0
                              for device in cluster.status(0)["devices"]], [False, True])


class Streams(unittest.TestCase):
    """A push counts when the rank's stream has written the gradient, and not before."""

    def test_silent(self):
        """A rank that never writes is named. Another job on the same device goes on."""
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "other", [0], TENSORS, variables=variables(),
                    devices=["- arena"]) as other, \
                Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"push_timeout": 1}),
                    variables=variables(), devices=["- arena", "- arena"]) as job:
            other.join()
            job.join()
            job.ranks[1].do("silent")
            for rank in job.ranks:
                rank.send("steps 1")
            self.assertEqual(other.steps(20)[0], "ok")
            for rank in job.ranks:
                name, sentence = rank.error()
                self.assertEqual(name, "timeout")
                self.assertRegex(sentence, "rank 1")
            self.assertEqual(other.steps(3)[0], "ok")

    def test_dies_with_work_in_its_stream(self):
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "other", [0], TENSORS, variables=variables(),
                    devices=["- arena"]) as other:
            other.join()
            before = cluster.status(0)["devices"][0]["reserved_bytes"]
            with Job(cluster, BUILD, "job", [0, 0], TENSORS, variables=variables(),
                     devices=["- arena", "- copies"]) as job:
                job.join()
                self.assertEqual(job.steps(3)[0], "ok")
                job.ranks[1].do("silent", "push 0")
                job.ranks[0].send("steps 1")
                job.ranks[1].kill()
                self.assertEqual(job.ranks[0].error()[0], "peer")
                job.kill()
            wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == before)
            self.assertEqual(other.steps(3)[0], "ok")


    def test_daemon_dies(self):
        """The rank is told, its stream is not blocked, and closing needs no daemon."""
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS, variables=variables(),
                    devices=["- arena"]) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")
            job.ranks[0].do("push 0")
            cluster.daemons[0].kill()
            job.ranks[0].send("finish")
            self.assertEqual(job.ranks[0].error()[0], "unreachable")
            job.ranks[0].process.stdin.close()
            self.assertEqual(job.ranks[0].process.wait(20), 0)
            job.kill()

    def test_more_tensors(self):
        """A job on GPUs takes no more tensors while it trains, and goes on without them."""
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS, variables=variables(),
                    devices=["- arena"]) as job:
            job.join()
            self.assertEqual(job.steps(2)[0], "ok")
            job.ranks[0].send("tensor more f32 list 8", "commit")
            job.ranks[0].answer()
            self.assertIn("cannot commit more tensors while it trains", job.ranks[0].error()[1])


class Hostile(unittest.TestCase):
    """A client below the library, which has no driver and says what it likes."""

    ON_GPU = field(8, 1) + field(9, f"{GPU}0")

    def test_forged(self):
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "other", [0], TENSORS, variables=variables(),
                    devices=["- arena"]) as other:
            other.join()
            path = cluster.address(0).removeprefix("unix:")
            self.refuses(path, field(8, 3), "a kind of memory that this daemon does not serve")
            self.refuses(path, field(8, 1), "its device is no UUID")
            self.refuses(path, field(8, 1) + field(9, "GPU-\x1b[2J"), "its device is no UUID")
            self.refuses(path, field(8, 1) + field(9, "G" * 4000), "its device is no UUID")
            self.pushes(path)
            self.assertEqual(other.steps(3)[0], "ok")
            cluster.stop()

    def test_updates_of_some_tensors(self):
        with gpu_cluster(1) as cluster, RawClient(cluster.address(0).removeprefix("unix:")) as raw:
            there = field(8, 2) + field(9, f"{GPU}0")
            raw.open("raw")
            raw.send(register_request(tensor("a", more=there), tensor("b", more=self.ON_GPU)),
                     COMMIT)
            self.assertIn("updates of tensor 'b' not on its GPU", raw.refusal()[1])

    def refuses(self, path, more, sentence):
        with RawClient(path) as client:
            client.open("raw")
            client.send(register_request(tensor(more=more)), COMMIT)
            self.assertIn(sentence, client.refusal()[1])

    def pushes(self, path):
        """Pushes what no stream has written, then writes any number into the flag."""
        with RawClient(path) as client:
            client.open("raw", policy=text({"lookahead": 0}))
            client.send(register_request(tensor(more=self.ON_GPU)), COMMIT)
            kind, fields, descriptors = client.receive()
            self.assertEqual((kind, len(descriptors)), (ARENA, 2))
            self.assertEqual(fields[2] % (2 << 20), 0)
            with mmap.mmap(descriptors[0], fields[1]) as arena:
                client.send(MAPPED)
                client.expect(READY)
                client.submit((PUSH, 0, 0), (STEP_END, 0, 0))
                time.sleep(0.1)
                self.assertEqual(client.taken(), 0)
                arena[fields[4]:fields[4] + 4] = struct.pack("<I", 1 << 30)
                wait_for(lambda: client.taken() == 2)

    def test_tensors_without_flags(self):
        """Tensors that are registered later have no flags, and there is no memory where they would
        be."""
        with gpu_cluster(1) as cluster:
            with RawClient(cluster.address(0).removeprefix("unix:")) as client:
                client.open("raw", policy=text({"lookahead": 0}))
                client.send(register_request(tensor(more=self.ON_GPU)), COMMIT)
                client.expect(ARENA)
                client.send(MAPPED)
                client.expect(READY)
                client.send(*(register_request(*(tensor(f"{batch}.{i}", more=self.ON_GPU)
                                                 for i in range(500))) for batch in range(3)))
                client.send(COMMIT)
                self.assertIn("more tensors while it trains", client.refusal()[1])
                client.submit((PUSH, 1400, 0))
                self.assertIn("tensor", client.refusal()[1])
            cluster.stop()


if __name__ == "__main__":
    unittest.main()
