#!/usr/bin/env python3
"""Jobs with residuals on GPUs save, load, take more tensors and outlive their daemon.

libcuda is the library that stands in for it; see test_gpu.py.

usage: test_gpu_state.py BUILD [unittest's arguments]
"""
import os
import shutil
import signal
import tempfile
import time
import unittest

import test_deaths
from build import BUILD
from cluster import PATIENCE, Cluster
from manager import KeptCluster
from ranks import Job, Rank
from rawclient import COMMIT, RawClient, field, register_request, tensor
from scene import Bystander
from service import wait_for
from stores import registrations
from test_arenas import GPU, STANDIN, variables
from test_gpu import DISTURBED, GPUS, HOMES, TENSORS, gpu_cluster, on_machine, text, verify, workers

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"

# More elements than a daemon reads from a GPU at a time (KEEPING_FLOATS).
LARGE = [("long", "f32", "list", ((1 << 18) + 5000,))]


class Checkpoints(unittest.TestCase):
    """A checkpoint of a job with residuals on GPUs loads into one without, and the other way round:
    either goes on with the updates of the first job, and ranks read the same residuals."""

    POLICIES = [({}, TENSORS), ({"scope": "rank", "momentum": 0.7}, TENSORS),
                ({"residual": "bf16", "values": "bf16", "sparsifier": "topk"}, TENSORS),
                ({"residual": "bf16", "values": "bf16"}, LARGE)]
    SAVED, MORE = 3, 3  # steps

    @classmethod
    def setUpClass(cls):
        cls.host = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.host.close)
        cls.gpu = gpu_cluster(variables={"ADTOPK_TEST_CUDA_DEVICES": "2"}).start()
        cls.addClassCleanup(cls.gpu.close)

    @classmethod
    def tearDownClass(cls):
        cls.host.stop()
        cls.gpu.stop()

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)

    def train(self, job, name):
        """All updates of more steps, and the sums of the residuals that each rank reads then."""
        path = os.path.join(self.folder, name)
        job.ranks[0].do(f"trace {path}")
        self.assertEqual(job.steps(self.MORE)[0], "ok")
        with open(path, "rb") as traced:
            return traced.read(), job.each("mass")

    def test_moves(self):
        for document, tensors in self.POLICIES:
            for one, other in ((self.host, self.gpu), (self.gpu, self.host)):
                with self.subTest(policy=document, to=other is self.gpu):
                    self.go_on(one, other, text({"density": 0.05, **document}), tensors)
        self.assertEqual({one["trouble"] for node in (0, 1) for one in workers(self.gpu, node)},
                         {""})

    def go_on(self, one, other, policy, tensors):
        saved = tempfile.mkdtemp(dir=self.folder)
        with Job(one, BUILD, "job", HOMES, tensors, policy) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(self.SAVED)[0], "ok")
            job.each(f"save {saved}")
            undisturbed = self.train(job, "undisturbed")
        with Job(other, BUILD, "job", HOMES, tensors, policy) as job:
            job.join()
            self.assertEqual(set(job.each("gradients random 3", f"load {saved}")),
                             {f"{self.SAVED} {len(HOMES)} 1"})
            job.each(f"skip {self.SAVED}")
            resumed = self.train(job, "resumed")
            verify(self, other, job)
        self.assertGreater(len(undisturbed[0]), 0)
        self.assertEqual(resumed[1], undisturbed[1])
        self.assertTrue(resumed[0] == undisturbed[0], "the updates differ")


class Batches(unittest.TestCase):
    """Ranks commit more tensors while they train: updates have the bits that they have without GPUs."""

    BATCHES = [[("down", "bf16", "list", (16, 40)), ("up", "f32", "both", (40, 16)),
                ("large", "f32", "dense", (120, 150))],
               [("head", "f32", "dense", (7, 33))]]
    POLICIES = [{"sparsifier": "topk"}, {"scope": "rank", "momentum": 0.7},
                {"residual": "bf16", "values": "bf16"}]

    def hashes(self, cluster, document, **ranks):
        found = []
        with Job(cluster, BUILD, "job", HOMES, TENSORS, text(document), **ranks) as job:
            job.join()
            job.each("gradients random 3")
            found.append(job.steps(3))
            for tensors in self.BATCHES:
                job.each(*registrations(tensors), "commit")
                found.append(job.steps(3))
            code, _, error = job.steps_while(lambda: cluster.daemons[0].ask(
                "policy", "set", "job", "scope=node", "residual=f32", timeout=60))
            self.assertEqual(code, 0, error)
            verify(self, cluster, job)
            gpus = cluster.status(0)["jobs"][0].get("gpus", [])
        return found, [(one["first_tensor"], one["tensors"]) for one in gpus]

    def test_batches(self):
        with Cluster(BUILD, nodes=2) as host, \
                gpu_cluster(variables={"ADTOPK_TEST_CUDA_DEVICES": "2"}) as gpu:
            for changes in self.POLICIES:
                with self.subTest(policy=changes):
                    document = {"density": 0.05, **changes}
                    expected, nowhere = self.hashes(host, document)
                    found, places = self.hashes(gpu, document)
                    self.assertEqual(found, expected)
                    self.assertEqual(nowhere, [])
                    # Each batch is spread over both GPUs, and a single tensor is on the first one.
                    self.assertEqual(places, [(0, 2), (2, 2), (4, 2), (6, 1), (7, 1)] if GPUS > 1
                                     else [(0, 4), (4, 3), (7, 1)])
            gpu.stop()

    @STANDIN
    def test_gradients_on_gpus(self):
        """So do updates of gradients there, of which each batch has an arena of its own."""
        two = {"ADTOPK_TEST_CUDA_DEVICES": "2"}
        devices = [f"{GPU}1 arena+streams", None, f"{GPU}0 arena", f"{GPU}1 copies+shown"]
        with Cluster(BUILD, nodes=2) as host, gpu_cluster(variables=two) as gpu:
            for document in {"density": 0.05}, {"density": 0.05, "sparsifier": "dense"}:
                with self.subTest(policy=document):
                    expected, _ = self.hashes(host, document)
                    found, _ = self.hashes(gpu, document, variables=variables(**two),
                                           devices=devices)
                    self.assertEqual(found, expected)
            wait_for(lambda: not any(device["reserved_bytes"]
                                     for device in gpu.status(0)["devices"]))
            self.assertEqual({worker["trouble"] for worker in workers(gpu, 0)}, {""})
            gpu.stop()


class Disturbed(unittest.TestCase):
    """Daemons end and start again while ranks train."""

    POLICIES = [{}, {"scope": "rank", "momentum": 0.7, "sparsifier": "topk"},
                {"residual": "bf16", "values": "bf16", "sparsifier": "topk"}]

    def train(self, cluster, document, disturb, later=(), **ranks):
        """The updates of steps before, during and after what disturbs the job."""
        policy = text({"density": 0.05, "sparse_collective": "allgather", **document})
        ranks["devices"] = on_machine(cluster, ranks.get("devices"))
        with Job(cluster, BUILD, "job", HOMES, TENSORS, policy, **ranks) as job:
            job.join()
            job.each("gradients random 3")
            for tensors in later:
                job.steps(2)
                job.each(*registrations(tensors), "commit")
            found = []
            for node in (1, 0):
                for rank in job.ranks:
                    rank.send(f"steps {DISTURBED}")
                disturb(cluster, node)
                found.append({rank.answer() for rank in job.ranks})
            verify(self, cluster, job)
            lost = [cluster.status(node)["jobs"][0].get("losses", 0) for node in (0, 1)]
        return found, lost

    @staticmethod
    def stop(cluster, node):
        cluster.daemons[node].stop()
        cluster.restart(node)

    @staticmethod
    def kill(cluster, node):
        cluster.daemons[node].kill()
        cluster.restart(node)

    @staticmethod
    def selections(cluster):
        return sum(cluster.stats(1)["jobs"][0]["phase_counts"]["select"])

    def mid_step(self, cluster, document, disturb):
        """The updates of a step in which all tensors of node 1 are pushed and none of node 0, when that
        disturbs it, and of steps behind it."""
        policy = text({"density": 0.05, "sparse_collective": "allgather", **document})
        with Job(cluster, BUILD, "job", HOMES, TENSORS, policy) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            before = self.selections(cluster)
            for rank in job.ranks[2:]:
                rank.do(*[f"push {number}" for number in range(len(TENSORS))])
            wait_for(lambda: self.selections(cluster) > before)
            disturb()
            found = job.each("finish"), job.steps(3)
            verify(self, cluster, job)
            return found, cluster.status(1)["jobs"][0].get("losses", 0)

    TWO = {"ADTOPK_TEST_CUDA_DEVICES": "2"}
    # Ranks that wait themselves, and ranks whose streams wait, beside one with host memory.
    DEVICES = [[f"{GPU}1 arena+shown", None, f"{GPU}0 arena", f"{GPU}1 copies+shown"],
               [f"{GPU}0 arena+streams", f"{GPU}1 copies+streams", None, f"{GPU}1 arena+streams"]]


class Restarts(Disturbed):
    """Daemons have a store_folder."""

    def cluster(self, gpus, **settings):
        cluster = gpu_cluster(hosts=0 if gpus else 2, settings=settings,
                              variables={"ADTOPK_TEST_CUDA_DEVICES": "2"})
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="adtopk-", dir="/dev/shm"))
        for daemon in cluster.daemons:
            daemon.variables["ADTOPK_STORE_FOLDER"] = os.path.join(folder, f"node{daemon.node}")
        return self.enterContext(cluster), folder

    def test_stopped(self):
        """Daemons that are stopped in order: nothing is lost, and updates are as if nothing were."""
        host, _ = self.cluster(gpus=False)
        gpu, folder = self.cluster(gpus=True)
        for document in self.POLICIES:
            with self.subTest(policy=document):
                expected, _ = self.train(host, document, lambda cluster, node: None,
                                         Batches.BATCHES)
                found, lost = self.train(gpu, document, self.stop, Batches.BATCHES)
                self.assertEqual(found, expected)
                self.assertEqual(lost, [0, 0])
        wait_for(lambda: all(os.listdir(os.path.join(folder, f"node{node}")) == ["lock"]
                             for node in (0, 1)))

    def test_killed(self):
        """Daemons that are killed: the memory of GPUs goes with them, and jobs go on."""
        gpu, _ = self.cluster(gpus=True)
        for document in self.POLICIES[1:]:
            with self.subTest(policy=document):
                found, lost = self.train(gpu, document, self.kill, Batches.BATCHES)
                for answers in found:
                    self.assertEqual(len(answers), 1)
                    self.assertEqual(answers.pop().split()[0], "ok")
                self.assertGreater(lost[0], 0)

    def test_gradients_on_gpus_stopped(self):
        """So do ranks whose gradients are on GPUs: pointers stay, streams find what they wait for."""
        host, _ = self.cluster(gpus=False)
        gpu, _ = self.cluster(gpus=True)
        for document, devices in zip(self.POLICIES, self.DEVICES):
            with self.subTest(policy=document):
                expected, _ = self.train(host, document, lambda cluster, node: None,
                                         Batches.BATCHES)
                found, lost = self.train(gpu, document, self.stop, Batches.BATCHES,
                                         variables=variables(**self.TWO), devices=devices)
                self.assertEqual(found, expected)
                self.assertEqual(lost, [0, 0])
        wait_for(lambda: not any(device["reserved_bytes"] for device in gpu.status(0)["devices"]))

    def test_gradients_on_gpus_killed(self):
        gpu, _ = self.cluster(gpus=True)
        for document, devices in zip(self.POLICIES[1:], self.DEVICES[1:]):
            with self.subTest(policy=document):
                found, lost = self.train(gpu, document, self.kill, Batches.BATCHES,
                                         variables=variables(**self.TWO), devices=devices)
                for answers in found:
                    self.assertEqual(len(answers), 1)
                    self.assertEqual(answers.pop().split()[0], "ok")
                self.assertGreater(lost[0], 0)

    def test_streams_wait(self):
        """A daemon is killed while streams wait, and programs make no call of the library. Streams find
        the updates all the same. So they do if that daemon is killed, too."""
        gpu, _ = self.cluster(gpus=True)
        pushes = [f"push {t}" for t in range(len(TENSORS))]
        with Job(gpu, BUILD, "job", HOMES, TENSORS, variables=variables(),
                 devices=["- arena+streams", "- copies+streams"] * 2) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(2)[0], "ok")
            for rank in job.ranks[:3]:
                rank.do(*pushes, *(f"wait-stream {t}" for t in range(len(TENSORS))),
                        "wait-stream step")
                self.assertEqual(rank.do("streamed 50"), "pending")
            for node in (0, 0, 1):
                self.kill(gpu, node)
                wait_for(lambda: len(gpu.status(node)["jobs"]) == 1)
                for rank in job.ranks[:3]:
                    self.assertEqual(rank.do("streamed 50"), "pending")
            job.ranks[3].send(*pushes, "finish")
            for rank in job.ranks[:3]:
                self.assertEqual(rank.do("streamed 50000"), "5 of 5")
            for rank in job.ranks[:3]:
                rank.do("finish")
            for _ in (*pushes, "finish"):
                job.ranks[3].answer()
            self.assertEqual(job.steps(3)[0], "ok")
            verify(self, gpu, job)

    def test_stopped_while_it_returns(self):
        """A rank whose stream waits returns, although its process is stopped for long meanwhile."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", HOMES, TENSORS, variables=variables(),
                 devices=["- arena+streams", None, None, None]) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(2)[0], "ok")
            pushes = [f"push {t}" for t in range(len(TENSORS))]
            job.ranks[0].do(*pushes, *(f"wait-stream {t}" for t in range(len(TENSORS))), "wait-stream step")
            gpu.daemons[0].kill()
            time.sleep(0.2)
            job.ranks[0].process.send_signal(signal.SIGSTOP)
            gpu.restart(0)
            time.sleep(11)
            job.ranks[0].process.send_signal(signal.SIGCONT)
            for rank in job.ranks[1:]:
                rank.send(*pushes, "finish")
            self.assertEqual(job.ranks[0].do("streamed 50000"), "5 of 5")
            job.ranks[0].do("finish")
            for rank in job.ranks[1:]:
                for _ in (*pushes, "finish"):
                    rank.answer()
            self.assertEqual(job.steps(2)[0], "ok")

    @STANDIN
    def test_another_process(self):
        """A process takes the place of one that ended after a round was delivered, and its daemon is killed
        in the same step. Its stream does not find that the step is right: it has not that update."""
        gpu, _ = self.cluster(gpus=True)
        plan = text({"density": 0.05, "on_rank_loss": "wait", "on_peer_loss": "wait"})
        device = "- arena+streams"

        def waits():
            return (gpu.status(1)["jobs"][0]["waiting"] or {}).get("kind")

        with Job(gpu, BUILD, "job", HOMES, TENSORS, plan, devices=[None] * 3 + [device],
                 variables=variables("early")) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            job.each("push 0", "wait 0")
            for rank in job.ranks[:3]:
                rank.send("steps 1")
            job.ranks[3].kill()
            wait_for(lambda: waits() == "vacant")
            job.ranks[3] = Rank(BUILD, gpu.address(1), "job", 3, 4, plan,
                                variables=variables("early"))
            job.ranks[3].do("back 3", job.ranks[3].opening, f"device {device}",
                            *registrations(TENSORS), "commit", "gradients random 3", "skip 3")
            self.kill(gpu, 1)
            wait_for(lambda: gpu.status(1)["jobs"] and waits() == "push")
            job.ranks[3].send("steps 1")
            self.assertEqual({rank.answer().split()[0] for rank in job.ranks}, {"ok"})
            self.assertEqual({answer.split()[0] for answer in job.each("steps 2")}, {"ok"})
            self.assertEqual([daemon.ask("verify", "job")[0] for daemon in gpu.daemons], [0, 0])

    def test_closes_while_away(self):
        """The context is closed while its thread waits for another daemon, or brings the rank back."""
        gpu, _ = self.cluster(gpus=True)
        for back in False, True:
            with Job(gpu, BUILD, "job", [0, 0], TENSORS, devices=["- arena+streams"] * 2,
                     variables=variables()) as job:
                job.join()
                self.assertEqual(job.steps(2)[0], "ok")
                job.ranks[0].do("push 0", "wait-stream 0")
                gpu.daemons[0].kill()
                if back:
                    gpu.restart(0)
                self.assertEqual(job.ranks[0].do("streamed 100"), "pending")
                job.each("close")
            if not back:
                gpu.restart(0)

    def test_job_fails(self):
        """After a daemon was killed, and before the step is over: streams are let go."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0, 1], TENSORS, devices=["- arena+streams"] * 2,
                 variables=variables()) as job:
            self.assertEqual(job.join().steps(2)[0], "ok")
            job.ranks[0].do("push 0", "wait-stream 0")
            self.kill(gpu, 0)
            self.assertEqual(job.ranks[0].do("streamed 1000"), "pending")
            job.ranks[1].kill()
            self.assertEqual(job.ranks[0].do("streamed 50000"), "0 of 1")
            job.ranks[0].send("push 1")
            # On a busy machine rank 0 may not have been back.
            self.assertIn(job.ranks[0].error()[0], ("peer", "lost"))
            job.kill()

    @STANDIN
    def test_armed(self):
        """A program that is about to sleep on the descriptor brings its rank back itself: it finds there
        that the daemon is gone."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0, 1], TENSORS, devices=["- arena+streams"] * 2,
                 variables=variables()) as job:
            self.assertEqual(job.join().steps(2)[0], "ok")
            rank = job.ranks[0]
            rank.do(*(f"push {t}" for t in range(len(TENSORS))), "wait-stream 0", "wait-stream step")
            rank.send("look 0", "arm")
            self.assertEqual(rank.answer(), "pending")
            self.assertEqual(rank.error()[0], "pending")
            self.kill(gpu, 0)
            self.assertEqual(rank.do("streamed 500"), "pending")
            self.assertEqual(rank.do("doze 0"), "")
            rank.send("finish")
            job.ranks[1].do("steps 1")
            self.assertEqual(rank.answer().split()[0], "ok")
            self.assertEqual(job.steps(2)[0], "ok")

    @STANDIN
    def test_withdrawn(self):
        """A daemon is killed when a step was withdrawn, and the next one begins behind that step: its
        words go on to say that nothing is right."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0], TENSORS, devices=["- arena+streams"],
                 variables=variables()) as job:
            rank = job.join().ranks[0]
            rank.do("gradients random 3", "poison 2 0 nan", "steps 2",
                    *(f"push {t}" for t in range(len(TENSORS))), "wait-stream step")
            self.assertEqual(rank.do("streamed 50000"), "0 of 1")
            self.kill(gpu, 0)
            self.assertEqual(rank.do("finish").split()[0], "nonfinite")
            self.assertEqual(job.steps(2)[0], "ok")

    @STANDIN
    def test_call_fails(self):
        """A call of the driver that fails on the way back ends the run, and no stream is blocked. Calls
        that follow return the same error."""
        for call, number in (("cuMemMap", 2), ("cuMemMap", 3), ("cuMemUnmap", 1),
                             ("cuMemSetAccess", 3), ("cuCtxSynchronize", 1)):
            with self.subTest(call=call, number=number):
                fails = variables(ADTOPK_TEST_CUDA_FAIL=f"{call}:{number}:1")
                gpu, _ = self.cluster(gpus=True)
                with Job(gpu, BUILD, "job", [0], TENSORS, devices=["- arena+streams"],
                         variables=fails) as job:
                    rank = job.join().ranks[0]
                    rank.do("gradients random 3", "steps 2", *(f"push {t}" for t in range(3)),
                            "wait-stream 0")
                    self.kill(gpu, 0)
                    rank.send("push 3", "finish", "look 0", "barrier")
                    errors = [rank.line() for _ in range(4)]
                    self.assertRegex(errors[-1], f"^error [a-z]+ .*{call} on GPU-")
                    self.assertEqual(errors[-2], errors[-1])
                    if (call, number) in (("cuMemMap", 3), ("cuMemSetAccess", 3)):
                        rank.send("push 0")  # writes to the gradient first
                        self.assertEqual(rank.line(), errors[-1])
                        self.assertIn(" of ", rank.do("streamed 50000"))
                    rank.process.stdin.close()
                    self.assertEqual(rank.process.wait(PATIENCE), 0)
                    job.kill()

    @STANDIN
    def test_copies_behind_a_stream(self):
        """The driver puts the library's copies behind a stream that waits for them. Then it is let go, and
        the host does not say that its update was right."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0, 1], TENSORS, devices=["- arena+streams", None],
                 variables=variables(ADTOPK_TEST_CUDA_CONNECTIONS="1")) as job:
            rank = job.join().ranks[0]
            self.assertEqual(job.each("gradients random 3", "steps 2")[0].split()[0], "ok")
            rank.do(*(f"push {t}" for t in range(len(TENSORS))))
            rank.do("streamed 2000")
            self.kill(gpu, 0)
            wait_for(lambda: any(worker["batches"] for worker in workers(gpu, 0)))
            rank.send("finish", "push 0")
            job.ranks[1].send("steps 1")
            self.assertEqual([rank.error()[0] for _ in range(2)], ["unreachable"] * 2)
            job.kill()

    @STANDIN
    def test_captures(self):
        """The library's thread brings the rank back while the program captures a graph."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0, 1], TENSORS, devices=["- arena+streams", None],
                 variables=variables()) as job:
            rank = job.join().ranks[0]
            self.assertEqual(job.steps(2)[0], "ok")
            rank.do(*(f"push {t}" for t in range(len(TENSORS))), "wait-stream 0")
            self.assertEqual(rank.do("streamed 50"), "pending")
            rank.send("capture 4000")
            self.kill(gpu, 0)
            wait_for(lambda: any(worker["batches"] for worker in workers(gpu, 0)))
            self.assertEqual(rank.answer(), "")
            job.ranks[1].send("steps 1")
            self.assertEqual(rank.do("streamed 50000"), "1 of 1")
            self.assertEqual(rank.do("finish").split()[0], "ok")
            self.assertEqual(job.ranks[1].answer().split()[0], "ok")
            self.assertEqual(job.steps(2)[0], "ok")

    @STANDIN
    def test_call_fails_beside_a_wait(self):
        """A call of the driver fails in the library's thread: another thread that sleeps in a call hears
        of it."""
        gpu, _ = self.cluster(gpus=True)
        with Job(gpu, BUILD, "job", [0], TENSORS, devices=["- arena+streams"],
                 variables=variables(ADTOPK_TEST_CUDA_FAIL="cuStreamQuery:1500:1")) as job:
            rank = job.join().ranks[0]
            rank.do("steps 2", *(f"push {t}" for t in range(len(TENSORS))))
            rank.send("look -1")
            self.kill(gpu, 0)
            status, sentence = rank.error()
            self.assertEqual(status, "system")
            self.assertIn("cuStreamQuery on GPU-", sentence)
            job.kill()

    def test_mid_step(self):
        """Both daemons are stopped in a step that neither can end any more: nothing is lost, and nothing
        counts twice."""
        def restart():
            for node in (1, 0):
                gpu.daemons[node].stop()
            for node in (1, 0):
                gpu.restart(node)

        host, _ = self.cluster(gpus=False)
        gpu, _ = self.cluster(gpus=True)
        for document in self.POLICIES:
            with self.subTest(policy=document):
                expected = self.mid_step(host, document, lambda: None)
                self.assertEqual(self.mid_step(gpu, document, restart), expected)


class Kept(Disturbed):
    """A service manager keeps the memory of GPUs: daemons that are killed lose nothing."""

    def cluster(self, gpus, **settings):
        return self.enterContext(
            gpu_cluster(hosts=0 if gpus else 2, settings=settings, kind=KeptCluster,
                        variables={"ADTOPK_TEST_CUDA_DEVICES": "2"})), None

    def wait_empty(self, cluster):
        """What is left are the processes of workers, which the next daemon would look for."""
        wait_for(lambda: all(list(daemon.manager.kept) == ["shared"] for daemon in cluster.daemons),
                 f"{cluster.daemons[0].manager.kept}")

    def same(self, disturb, policies, devices=None, repeats=1, **more):
        host, _ = self.cluster(gpus=False)
        gpu, _ = self.cluster(gpus=True)
        for at, document in enumerate(policies):
            ranks = {**more, "devices": devices[at]} if devices else more
            expected, _ = self.train(host, document, lambda cluster, node: None, Batches.BATCHES)
            for _ in range(repeats):
                with self.subTest(policy=document):
                    found, lost = self.train(gpu, document, disturb, Batches.BATCHES, **ranks)
                    self.assertEqual(found, expected)
                    self.assertEqual(lost, [0, 0])
        self.wait_empty(gpu)

    def test_stopped(self):
        self.same(self.stop, self.POLICIES)

    def test_killed(self):
        """Also before workers have cleared the memory of tensors that were just committed."""
        self.same(self.kill, self.POLICIES, repeats=20 if LONG else 1)

    def test_gradients_on_gpus_stopped(self):
        self.same(self.stop, self.POLICIES[1:2], self.DEVICES[1:], variables=variables(**self.TWO))

    def test_gradients_on_gpus_killed(self):
        self.same(self.kill, self.POLICIES[:2], self.DEVICES, variables=variables(**self.TWO))

    def test_mid_step(self):
        """Both daemons are killed in a step that neither can end any more."""
        def restart():
            for node in (1, 0):
                gpu.daemons[node].kill()
            for node in (1, 0):
                gpu.restart(node)

        host, _ = self.cluster(gpus=False)
        gpu, _ = self.cluster(gpus=True)
        for document in self.POLICIES:
            with self.subTest(policy=document):
                expected = self.mid_step(host, document, lambda: None)
                self.assertEqual(self.mid_step(gpu, document, restart), expected)


@STANDIN
class ComesBack(test_deaths.ComesBack):
    """A process takes the place of one whose gradients and updates were on a GPU."""

    DEVICES = ["- arena+streams", None, "- copies", "- arena+shown"]
    TWO = {"ADTOPK_TEST_CUDA_DEVICES": "2"}
    VARIABLES = variables("early", **TWO)  # a process that ends has pushed

    @classmethod
    def setUpClass(cls):
        cls.cluster = gpu_cluster(variables=cls.TWO).start()
        cls.addClassCleanup(cls.cluster.close)
        cls.bystander = Bystander(cls.cluster, [0, 1])
        cls.addClassCleanup(cls.bystander.stop)
        cls.bystander.check()

    def reserved(self):
        return [device["reserved_bytes"] for device in self.cluster.status(1)["devices"]]

    def setUp(self):
        super().setUp()
        self.beside = self.reserved()

    def tearDown(self):
        """All arenas are given back."""
        self.doCleanups()
        wait_for(lambda: self.reserved() == self.beside)

    def test_other_memory(self):
        job = self.begin("push 0")
        self.wait_for(1)
        rank = self.rank(1, self.VICTIM, 4, text(self.PLAN))
        rank.do("back 3", rank.opening, *job.registrations())
        rank.send("commit")
        self.assert_error(rank, "argument", "in other memory")
        rank.kill()
        self.finish(job, self.come_back(job, 3), self.undisturbed(), 3)

    def test_another_gpu(self):
        job = self.begin("push 0", "wait 0")
        rank = self.come_back(job, 3, device=self.DEVICES[self.VICTIM].replace("-", f"{GPU}1", 1))
        self.finish(job, rank, self.undisturbed(), 3)

    def test_old_client(self):
        """A library of an earlier release would take what is on the GPU for the update."""
        job = self.begin("push 0")
        self.wait_for(1)
        with RawClient(self.cluster.address(1).removeprefix("unix:")) as old:
            old.open(self.name, rank=self.VICTIM, world=4, policy=text(self.PLAN), back=3, abilities=3)
            old.send(register_request(tensor(more=field(8, 2) + field(9, f"{GPU}0"))), COMMIT)
            self.assertIn("earlier release no process comes back", old.refusal()[1])
        self.finish(job, self.come_back(job, 3), self.undisturbed(), 3)


class ComesBackStreams(ComesBack):
    DEVICES = [None, "- copies", None, "- copies+streams"]

    def test_behind_a_wait_that_was_let_go(self):
        """The library of a rank fails, so its stream goes on with an old update. What that pushes then
        does not count, though the rank has ended the step."""
        waits = 3 * (len(test_deaths.TENSORS) + 1) + 2
        self.VARIABLES = {**self.VARIABLES,
                          "ADTOPK_TEST_CUDA_FAIL": f"cuStreamWaitValue32_v2:{waits}:1"}
        wanted, job = self.undisturbed(), self.trained()
        victim = job.ranks[self.VICTIM]
        victim.do("push 0", "wait-stream 0", "gradients random 9",
                  *(f"push {t}" for t in range(1, len(job.tensors))))
        self.assertEqual(victim.do("streamed 100"), "pending")
        victim.send("wait-stream step")
        self.assertIn("a wait in a stream: cuStreamWaitValue32_v2", victim.error()[1])
        self.assertEqual(victim.do("streamed 50000"), "0 of 1")
        for rank in self.others(job):
            rank.send("steps 3")
        self.assertIn("rank 3 on node 1", self.wait_for(1))
        self.assertIn("its streams no longer wait for updates, so its gradient of tensor 1 in step 3 "
                      "may be wrong", self.cluster.daemons[1].log())
        self.finish(job, self.come_back(job, 3), wanted, 3)


if __name__ == "__main__":
    unittest.main()
