#!/usr/bin/env python3
"""Gradients in the memory of GPUs: the same updates as from host memory, and what goes wrong.

libcuda is the library of tests/cuda/driver, in the daemons, their workers and the trainers. With
ADTOPK_TEST_REAL_GPU it is the machine's (tests/gpu), and tests in which it has to fail are skipped.

usage: test_arenas.py BUILD [unittest's arguments]
"""
import json
import os
import random
import signal
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job, Rank
from service import wait_for
from test_gpu import (BRIEF, DRIVER, GPUS, LONG, MACHINE, POLICIES, REAL, SLOW, TENSORS, gpu_cluster,
                      job_name, on_machine, text, verify, workers)

STANDIN = unittest.skipIf(REAL, "the library that stands in decides what happens, and when")
GPU = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a00"  # and a digit
HOMES = [0, 0, 1, 1]
FIRST = "-" if REAL else f"{GPU}0"
MIXED = ["- arena+shown", None, f"{FIRST} arena", "- copies+shown"]
WAITING = ["- arena+streams", None, f"{FIRST} arena", "- copies+streams"]
ALL = [*TENSORS, ("half", "f16", "both16", (30, 20)), ("brain", "bf16", "dense16", (700,))]
KILLS = 4 if BRIEF else 12 if SLOW and not LONG else 20
ENDS = 200 if "ADTOPK_TEST_LONG" in os.environ else 2 if BRIEF else 8  # of daemons


def variables(streams="late", **more):
    """The environment of trainers."""
    if REAL:
        return MACHINE
    return {**DRIVER, "ADTOPK_TEST_CUDA_STREAMS": streams, **more}


def hashes(cluster, document, verified=None, steps=8, **ranks):
    """What all updates of some steps hash to, one of them withdrawn for the last element of the last
    tensor. verified: the test that has the job verified."""
    tensors = TENSORS if "residual" in document else ALL  # bf16 does not go with 16-bit updates
    ranks["devices"] = on_machine(cluster, ranks.get("devices"))
    with Job(cluster, BUILD, job_name(document), HOMES, tensors, text(document), **ranks) as job:
        job.join()
        job.each("gradients random 3")
        job.ranks[2].do(f"poison 3 {len(tensors) - 1} nan")
        found = [job.steps(1) for _ in range(steps)]
        if verified:
            verify(verified, cluster, job)
        return found


class LikeHostMemory(unittest.TestCase):
    """Every update has the bits that it has with gradients in host memory."""

    expected = {}  # updates from host memory, by policy

    def expect(self, documents):
        """The updates that each policy brings from host memory."""
        missing = [one for one in map(text, documents) if one not in LikeHostMemory.expected]
        if missing:
            with Cluster(BUILD, nodes=2) as host:
                for policy in missing:
                    LikeHostMemory.expected[policy] = hashes(host, json.loads(policy))
        return [LikeHostMemory.expected[text(one)] for one in documents]

    def compare(self, gpu, policies, **ranks):
        documents = [{"density": 0.05, **changes} for changes in policies]
        expected = LikeHostMemory.expect(self, documents)
        with gpu:
            for document, wanted in zip(documents, expected):
                with self.subTest(policy=document):
                    self.assertEqual(hashes(gpu, document, self, **ranks),
                                     wanted)
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

    @STANDIN
    def test_early_streams(self):
        self.compare(gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": "early"}), POLICIES[1:6:2],
                     variables=variables("early"), devices=MIXED)

    @STANDIN
    def test_streams_by_chance(self):
        self.compare(gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": "chance:7"}),
                     POLICIES[7::2], variables=variables("chance:3"), devices=MIXED)

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_two_devices(self):
        """A worker reads gradients on another device than its own."""
        two = {"ADTOPK_TEST_CUDA_DEVICES": "2"}
        self.compare(gpu_cluster(variables=two), [{}, {"scope": "rank"}],
                     variables=variables(**two),
                     devices=[f"{GPU}1 arena+shown", f"{GPU}0 arena+shown", f"{GPU}1 copies", None])

    @unittest.skipIf(GPUS < 2, "there is one GPU")
    def test_shards(self):
        """Tensors on 1, 2, 3 and 8 GPUs have the same updates."""
        counts = [count for count in (1, 2, 3, 8) if count <= GPUS]
        devices = {"ADTOPK_TEST_CUDA_DEVICES": str(counts[-1])}
        tensors = [(f"{'fc' if t % 2 else 'long'}{t}", "f16" if t % 3 else "f32", "both",
                    (40, 90 + t) if t % 2 else (3000 + t,)) for t in range(8)]
        policy = text({"density": 0.05, "rules": [{"match": "*1", "sparsifier": "topk"},
                                                  {"match": "*3", "momentum": 0.9}]})
        found = []
        with gpu_cluster(1, variables=devices) as cluster:
            for gpus in counts:
                with Job(cluster, BUILD, f"job{gpus}", [0] * 8, tensors, policy,
                         variables=variables(**devices),
                         devices=on_machine(cluster, [f"{GPU}{rank % gpus} arena"
                                                      for rank in range(8)])) as job:
                    job.join()
                    job.each("gradients random 3")
                    found.append([job.steps(1) for _ in range(5)])
                    self.assertEqual(len(cluster.status(0)["jobs"][0]["gpus"]), gpus)
            cluster.stop()
        self.assertEqual(found, found[:1] * len(counts))

    def test_killed_workers(self):
        self.kills(MIXED)

    def kills(self, devices):
        """Another worker finds the gradients where they were."""
        draw = random.Random(5)
        with Cluster(BUILD, nodes=2) as host, gpu_cluster() as gpu:
            found = []
            for cluster, ranks in (host, {}), (gpu, {"variables": variables(), "devices": devices}):
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


class Waits(unittest.TestCase):
    """Streams wait for updates, find the right ones, and are never blocked for ever."""

    def compare(self, policies, streams="late", **more):
        gpu = gpu_cluster(variables={"ADTOPK_TEST_CUDA_STREAMS": streams, **more})
        LikeHostMemory.compare(self, gpu, policies, variables=variables(streams, **more),
                               devices=WAITING)

    assert_clean = LikeHostMemory.assert_clean

    def test_late_streams(self):
        self.compare(POLICIES[::5])

    @STANDIN
    def test_early_streams(self):
        self.compare(POLICIES[2:9:6], "early")

    @STANDIN
    def test_streams_by_chance(self):
        self.compare(POLICIES[3:10:6], "chance:5")

    def test_updates_that_may_be_nan(self):
        """No step is withdrawn: what a stream finds may be applied at once."""
        self.compare([{"non_finite": "propagate"}])

    def test_killed_workers(self):
        LikeHostMemory.kills(self, WAITING)

    kill = staticmethod(LikeHostMemory.kill)

    def job(self, cluster, homes, policy="-", streams="late", **more):
        return Job(cluster, BUILD, "job", homes, TENSORS, policy, devices=["- arena+streams"] * len(homes),
                   variables=variables(streams), **more)

    def test_split(self):
        """A stream that waits for a part of a bucket gets it, before the rest is pushed."""
        with gpu_cluster(1) as cluster, self.job(cluster, [0, 0]) as job:
            job.join()
            for step in range(3):
                for rank in job.ranks:
                    rank.do("push 0", "push 2", "wait-stream 2", "wait-stream 0")
                self.assertEqual(job.each("streamed 50000"), ["2 of 2"] * 2)
                self.assertEqual(job.steps(1)[:2], ("ok", step + 1))

    def test_refused(self):
        with gpu_cluster(1) as cluster, self.job(cluster, [0]) as job:
            rank = job.join().ranks[0]
            for command, name, sentence in (
                    ("wait-stream 0", "state", 'for tensor "fc", which was not pushed in step 0'),
                    ("wait-stream 9", "argument", "of tensor 9, and 4 tensors are registered")):
                rank.send(command)
                self.assertEqual(rank.error()[0], name)
            self.assertEqual(job.steps(2)[0], "ok")
            rank.send("wait-stream 0")
            self.assertIn("which was not pushed in step 2", rank.error()[1])

    def test_updates_in_host_memory(self):
        for device in "- arena", None:
            with gpu_cluster(1) as cluster, \
                    Job(cluster, BUILD, "job", [0], TENSORS, devices=[device],
                        variables=variables()) as job:
                job.join()
                job.ranks[0].do("push 0")
                job.ranks[0].send("wait-stream 0" if device else "steps 1")
                if device:
                    self.assertIn('"fc" was registered without ADTOPK_FORM_DEVICE',
                                  job.ranks[0].error()[1])
                else:
                    job.ranks[0].answer()

    def blocked(self, cluster, job, waits=5):
        """Rank 0's stream waits for updates that do not come: rank 1 pushes nothing."""
        self.assertEqual(job.join().steps(3)[0], "ok")
        rank = job.ranks[0]
        rank.do(*(f"push {t}" for t in range(len(TENSORS))),
                *(f"wait-stream {t}" for t in range(len(TENSORS))), "wait-stream step")
        self.assertEqual(rank.do("streamed 300"), "pending")
        return rank

    def let_go(self, rank, status, sentence, call="push 0"):
        """The stream goes on and finds nothing right, and the next call says why."""
        self.assertEqual(rank.do("streamed 50000"), "0 of 5")
        rank.send(call)
        self.assertEqual(rank.error()[0], status)
        rank.send("wait-stream 0")
        self.assertRegex(rank.error()[1], sentence)
        rank.process.stdin.close()
        self.assertEqual(rank.process.wait(PATIENCE), 0)

    @STANDIN
    def test_call_fails(self):
        """A stream that cannot wait ends the run: the next kernel would read an old update."""
        fails = {"ADTOPK_TEST_CUDA_FAIL": "cuStreamWaitValue32_v2:3:719"}
        with gpu_cluster(1) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS, devices=["- arena+streams"],
                    variables=variables(**fails)) as job:
            rank = job.join().ranks[0]
            rank.send("steps 1")
            name, sentence = rank.error()
            self.assertEqual(name, "system")
            self.assertRegex(sentence, "a wait in a stream: cuStreamWaitValue32_v2 on GPU-.*: ")
            rank.send("push 0")
            self.assertEqual(rank.error(), (name, sentence))
            job.kill()

    @STANDIN
    def test_library_fails(self):
        """It lets go of the stream, whose next gradients come from an old update: they are refused, also
        while the rank closes."""
        fails = {"ADTOPK_TEST_CUDA_FAIL": "cuStreamWaitValue32_v2:2:1"}
        for closes in False, True:
            with self.subTest(closes=closes), gpu_cluster(1) as cluster, \
                    Job(cluster, BUILD, "job", [0, 0], TENSORS, variables=variables(**fails),
                        devices=["- arena+streams", "- arena"]) as job:
                rank = job.join().ranks[0]
                rank.do("push 0", "wait-stream 0", *(f"push {t}" for t in range(1, len(TENSORS))))
                self.assertEqual(rank.do("streamed 100"), "pending")
                rank.send("wait-stream step")
                self.assertEqual(rank.error()[0], "system")
                cluster.daemons[0].process.send_signal(signal.SIGSTOP)
                if closes:
                    rank.process.stdin.close()
                    self.assertEqual(rank.process.wait(PATIENCE), 0)
                else:
                    self.assertEqual(rank.do("streamed 50000"), "0 of 1")
                cluster.daemons[0].process.send_signal(signal.SIGCONT)
                job.ranks[1].send("steps 1")
                name, sentence = job.ranks[1].error()
                self.assertEqual(name, "peer")
                if not closes:
                    self.assertRegex(sentence, "rank 0 .*: its streams no longer wait for updates, so "
                                     "its gradient of tensor 1 in step 0 may be wrong")
                job.kill()

    def test_rank_dies(self):
        for streams in "late", "early":
            with gpu_cluster(1) as cluster, self.job(cluster, [0, 0], streams=streams) as job:
                rank = self.blocked(cluster, job)
                job.ranks[1].kill()
                self.let_go(rank, "peer", "rank 1 is gone")
                job.kill()

    def test_job_fails(self):
        policy = text({"push_timeout": 5})  # which other steps do not need
        with gpu_cluster(1) as cluster, self.job(cluster, [0, 0], policy) as job:
            rank = self.blocked(cluster, job)
            self.let_go(rank, "timeout", "rank 1")
            job.kill()

    def test_daemon_dies(self):
        for call in "push 0", "look 0", "look 1000", "finish", "wait 0", "update 0", "barrier":
            with self.subTest(call=call), gpu_cluster(1) as cluster, \
                    self.job(cluster, [0, 0]) as job:
                rank = self.blocked(cluster, job)
                cluster.daemons[0].kill()
                self.let_go(rank, "unreachable", "went away", call)
                job.kill()

    def test_daemon_stops(self):
        with gpu_cluster(1) as cluster, self.job(cluster, [0, 0]) as job:
            rank = self.blocked(cluster, job)
            cluster.daemons[0].process.terminate()
            self.let_go(rank, "unreachable", "the daemon stops")
            job.kill()

    def test_daemon_and_worker_die(self):
        with gpu_cluster(1) as cluster, self.job(cluster, [0, 0]) as job:
            rank = self.blocked(cluster, job)
            pid = workers(cluster, 0)[0]["pid"]
            cluster.daemons[0].process.send_signal(signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(rank.do("streamed 300"), "pending")
            cluster.daemons[0].kill()
            self.let_go(rank, "unreachable", "went away")
            job.kill()

    def test_killed_at_any_moment(self):
        """A daemon, or it and its worker, in the middle of training: the stream of each rank goes on,
        and the host has no step that the stream did not find right."""
        draw = random.Random(7)
        for number in range(ENDS):
            streams = draw.choice(["late", "early", f"chance:{number}"])
            with gpu_cluster(1) as cluster, self.job(cluster, [0, 0], streams=streams) as job:
                self.assertEqual(job.join().steps(2)[0], "ok")
                pid = workers(cluster, 0)[0]["pid"]
                for rank in job.ranks:
                    rank.send("steps 100000")
                time.sleep(draw.uniform(0, 0.1))
                if number % 2:
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(draw.uniform(0, 0.01))
                cluster.daemons[0].kill()
                for rank in job.ranks:
                    self.assertEqual(rank.error()[0], "unreachable")
                    rank.process.stdin.close()
                    self.assertEqual(rank.process.wait(PATIENCE), 0)
                job.kill()

    def test_closes_with_work_in_its_stream(self):
        """And with a daemon that answers, does not answer, or is gone."""
        for harm in None, signal.SIGSTOP, signal.SIGKILL:
            with gpu_cluster(1) as cluster, self.job(cluster, [0, 0]) as job:
                rank = self.blocked(cluster, job)
                if harm:
                    cluster.daemons[0].process.send_signal(harm)
                rank.process.stdin.close()
                self.assertEqual(rank.process.wait(PATIENCE), 0)
                cluster.daemons[0].process.send_signal(signal.SIGCONT)
                job.kill()

    @STANDIN
    def test_thread(self):
        """The library's thread takes no signals, and ends with the context. (The driver has threads of
        its own.)"""
        with gpu_cluster(1) as cluster, self.job(cluster, [0]) as job:
            rank = job.join().ranks[0]
            folder = f"/proc/{rank.process.pid}/task"
            own = [task for task in os.listdir(folder) if task != str(rank.process.pid)]
            masks = []
            for task in own:
                with open(f"{folder}/{task}/status", encoding="ascii") as status:
                    masks += [line.split()[1] for line in status if line.startswith("SigBlk")]
            # SIGKILL and SIGSTOP cannot be blocked, and glibc keeps two for itself.
            kept = sum(1 << number - 1 for number in (signal.SIGKILL, signal.SIGSTOP, 32, 33))
            self.assertEqual([int(mask, 16) | kept for mask in masks], [(1 << 64) - 1])
            rank.do("close")
            self.assertEqual(os.listdir(folder), [str(rank.process.pid)])


def limit_ends(test, limit, fits, does_not, forms="list"):
    """A tensor of 24 MiB has room under this limit of a GPU in one kind of arena, and not in another. forms:
    in that other one."""
    lines = {}
    with gpu_cluster(1, {"gpu_memory_limit": limit}) as cluster:
        for kind in (fits, does_not):
            big = [("big", "f32", forms if kind == does_not else "list", (6 << 20,))]
            with Job(cluster, BUILD, kind, [0], big, variables=variables()) as job:
                rank = job.ranks[0]
                rank.do(rank.opening, f"device - {kind}", *job.registrations())
                rank.send("commit")
                lines[kind] = rank.line()
                job.kill()
            wait_for(lambda: cluster.status(0)["devices"][0]["reserved_bytes"] == 0)
        test.assertNotIn("bytes for gradients:", lines[fits])
        test.assertRegex(lines[does_not], f"bytes for gradients: .* and gpu_memory_limit allows {limit}")
        cluster.stop()


@STANDIN
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
                     "node have 0 for residuals and 0 for gradients", daemon={"ADTOPK_TEST_CUDA_MEMORY": "0"})

    def test_memory_limit(self):
        self.refused("- arena", "bytes for gradients: .* and gpu_memory_limit allows 50000",
                     {"gpu_memory_limit": 50000})

    def test_memory_limit_of_updates(self):
        """Gradients alone would fit."""
        limit_ends(self, 40 << 20, "arena", "arena+shown")

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
                Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"push_timeout": 3}),
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
            self.assertEqual(job.ranks[0].process.wait(PATIENCE), 0)
            job.kill()

    def test_more_tensors(self):
        """A later batch without memory for its arena is refused, and can be committed again. (What
        batches bring: test_gpu_state.py.)"""
        def reserved():
            return cluster.status(0)["devices"][0]["reserved_bytes"]

        full = {"ADTOPK_TEST_CUDA_MEMORY": str(64 << 20)}
        with gpu_cluster(1, variables=full) as cluster, \
                Job(cluster, BUILD, "job", [0], TENSORS, variables=variables(**full),
                    devices=["- arena+streams"]) as job:
            rank = job.join().ranks[0]
            self.assertEqual(job.steps(2)[0], "ok")
            before = reserved()
            with Job(cluster, BUILD, "other", [0], [("fill", "f32", "list", (1 << 22,))],
                     text({"sparsifier": "dense"}), variables=variables(**full),
                     devices=["- arena"]) as other:
                other.join()
                rank.send("tensor more f32 list 4000000", "commit")
                rank.answer()
                self.assertRegex(rank.error()[1], "has no [0-9]+ bytes for gradients")
                self.assertEqual(other.steps(1)[0], "ok")
            wait_for(lambda: reserved() == before)
            rank.do("commit")
            self.assertEqual(job.steps(3)[0], "ok")
            verify(self, cluster, job, [0])


if __name__ == "__main__":
    unittest.main()
