#!/usr/bin/env python3
"""Daemons that are killed, and of whose memory on GPUs the next one has not all.

libcuda is the library that stands in for it; see test_gpu.py.

usage: test_gpu_kept.py BUILD [unittest's arguments]
"""
import os
import random
import tempfile
import threading
import time
import unittest

from build import BUILD
from manager import KeptCluster
from ranks import Job, RankError
from scraping import EXPORTER, Scraping
from service import wait_for
from stores import registrations
from test_arenas import STANDIN
from test_gpu import TENSORS, gpu_cluster, kill_worker, text, verify, workers

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
BATCHES = [[("down", "bf16", "list", (16, 40)), ("up", "f32", "both", (40, 16)),
            ("large", "f32", "dense", (120, 150))],
           [("head", "f32", "dense", (7, 33))]]


class NotAllKept(Scraping):
    """The next daemon has not all of the memory of GPUs, or has other GPUs. What is lost is declared,
    so that `verify` finds nothing out of balance."""

    LATER = [[("head", "f32", "both", (7, 33))]]

    def goes_on(self, between, tensors=None, later=(), ranks=2, gpus=1, variables=None):
        """A job whose daemon is killed, then between() is called, and the next daemon begins. Returns how
        many residuals were lost."""
        cluster = self.enterContext(gpu_cluster(
            nodes=1, kind=KeptCluster, variables={"ADTOPK_TEST_CUDA_DEVICES": str(gpus), **(variables or {})}))
        daemon = cluster.daemons[0]
        with Job(cluster, BUILD, "job", [0] * ranks, tensors or TENSORS,
                 text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            for more in later:
                job.each(*registrations(more), "commit")
                self.assertEqual(job.steps(3)[0], "ok")
            daemon.kill()
            between(daemon)
            cluster.restart(0)
            self.assertEqual(job.steps(3)[0], "ok")
            verify(self, cluster, job, nodes=[0])
            lost = cluster.status(0)["jobs"][0].get("losses", 0)
        wait_for(lambda: list(daemon.manager.kept) == ["shared"] and
                 not any(device["reserved_bytes"] for device in cluster.status(0)["devices"]))
        return lost

    @staticmethod
    def forget(daemon, name):
        os.close(daemon.manager.kept.pop(name))

    def lost_metric(self, cluster):
        self.start(cluster.daemons[0].control)
        return [value for (name, _), value in self.metrics().items() if name == "adtopk_job_lost_residuals"]

    @unittest.skipUnless(os.path.exists(EXPORTER), "built without the exporter")
    def test_the_exporter_says_so(self):
        cluster = self.enterContext(gpu_cluster(nodes=1, kind=KeptCluster))
        with Job(cluster, BUILD, "job", [0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            self.assertEqual(self.lost_metric(cluster), [])
            cluster.daemons[0].kill()
            self.forget(cluster.daemons[0], "shared")
            cluster.restart(0)
            self.assertEqual(job.steps(3)[0], "ok")
            lost, = self.lost_metric(cluster)
            self.assertGreater(lost, 0)
            self.assertEqual(lost, cluster.status(0)["jobs"][0]["losses"])

    def test_without_notes(self):
        """Notes that both daemons share are gone, or of a release that needs more room for them."""
        self.assertGreater(self.goes_on(lambda daemon: self.forget(daemon, "shared")), 0)
        self.assertGreater(self.goes_on(lambda daemon: os.truncate(
            daemon.manager.kept["shared"], 4096)), 0)

    def test_without_a_part(self):
        """Whichever part the manager has lost, its store's are of no use."""
        found = []
        self.goes_on(lambda daemon: found.extend(
            name.split("@")[0] for name in daemon.manager.kept if "@" in name), later=self.LATER)
        self.assertGreater(len(found), 3)
        for part in found:
            with self.subTest(part=part):
                self.assertGreater(self.goes_on(lambda daemon: self.forget(daemon, next(
                    name for name in daemon.manager.kept if name.startswith(f"{part}@"))),
                    later=self.LATER), 0)

    def test_a_new_part_is_not_kept(self):
        """The manager refuses the velocities of a new policy, and the daemon is killed before the manager
        has heard that the other memory is of no use without them."""
        cluster = self.enterContext(gpu_cluster(nodes=1, kind=KeptCluster))
        daemon = cluster.daemons[0]
        with Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            daemon.kill()
            daemon.manager.limit = len(daemon.manager.kept) + 1  # for the new policy's lists
            cluster.restart(0)
            self.assertEqual(job.steps(3)[0], "ok")
            hear = daemon.manager.take
            daemon.manager.take = lambda state, descriptors: \
                None if b"FDSTOREREMOVE" in state else hear(state, descriptors)
            code, _, error = job.steps_while(lambda: daemon.ask(
                "policy", "set", "job", "momentum=0.5", timeout=60))
            self.assertEqual(code, 0, error)
            self.assertEqual(job.steps(3)[0], "ok")
            daemon.kill()
            daemon.manager.take = hear
            self.assertEqual(sum("@" in name for name in daemon.manager.kept), 2)
            cluster.restart(0)
            self.assertEqual(job.steps(3)[0], "ok")
            verify(self, cluster, job, nodes=[0])
            self.assertGreater(cluster.status(0)["jobs"][0]["losses"], 0)

    def lose(self, cluster, gone):
        """A worker dies, and the GPU's memory goes with it."""
        with open(gone, "w", encoding="utf-8"):
            kill_worker(workers(cluster, 0)[0]["pid"])
            wait_for(lambda: "memory had lost its content" in cluster.daemons[0].log())
        os.remove(gone)

    def test_a_tensor_that_nobody_pushes(self):
        """It has nothing to lose, but the memory that it shares is vouched for only when it has said so."""
        gone = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "gone")
        cluster = self.enterContext(gpu_cluster(nodes=1, kind=KeptCluster,
                                                variables={"ADTOPK_TEST_CUDA_FORGETS": gone}))

        def steps(job, count):
            for _ in range(count):
                job.each(*[f"push {t}" for t in range(len(TENSORS) - 1)], "look 60000")

        with Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            steps(job, 2)
            self.lose(cluster, gone)
            steps(job, 4)
            self.assertGreater(cluster.status(0)["jobs"][0]["losses"], 0)
            cluster.daemons[0].kill()
            cluster.restart(0)
            steps(job, 2)
            self.assertEqual(cluster.status(0)["jobs"][0].get("losses", 0), 0)
            self.assertEqual(cluster.daemons[0].ask("verify", "job")[0], 0)

    def test_checkpoint_after_a_loss(self):
        """It is refused until a step has declared the loss, or its ledgers would not fit."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        gone, saved = os.path.join(folder, "gone"), os.path.join(folder, "saved")
        os.mkdir(saved)
        cluster = self.enterContext(gpu_cluster(nodes=1, variables={"ADTOPK_TEST_CUDA_FORGETS": gone}))
        with Job(cluster, BUILD, "job", [0, 0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each("gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            self.lose(cluster, gone)
            for rank in job.ranks:
                rank.send(f"save {saved}")
            for rank, reason in zip(job.ranks, ("save the checkpoint again after a step", "rank 0 refused")):
                with self.assertRaisesRegex(RankError, reason):
                    rank.answer()
            self.assertEqual(job.steps(1)[0], "ok")
            job.each(f"save {saved}")
        with Job(cluster, BUILD, "next", [0, 0], TENSORS, text({"density": 0.05})) as job:
            job.join()
            job.each(f"load {saved}", "gradients random 3")
            self.assertEqual(job.steps(3)[0], "ok")
            verify(self, cluster, job, nodes=[0])

    def test_driver_that_does_not_say(self):
        """An older driver does not tell whether there is MPS. If nothing answers to its name there is none,
        and no kernel of the daemon before still runs."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        with open(os.path.join(folder, "nvidia-cuda-mps-control"), "w", encoding="utf-8") as control:
            control.write("#!/bin/sh\necho Cannot find MPS control daemon process\nexit 1\n")
        os.chmod(control.name, 0o755)
        variables = {"PATH": f"{folder}:{os.environ['PATH']}", "ADTOPK_TEST_CUDA_VERSION": "12000"}
        self.assertEqual(self.goes_on(lambda daemon: None, variables=variables), 0)

    @STANDIN
    def test_no_room_for_more(self):
        """The next daemon has more GPUs, and the manager keeps no more."""
        def full(daemon):
            daemon.manager.limit = len(daemon.manager.kept)
            daemon.variables["ADTOPK_TEST_CUDA_DEVICES"] = "2"

        self.assertGreater(self.goes_on(full), 0)

    @STANDIN
    def test_more_gpus(self):
        """A GPU has the same tensors of the first batch as before, and more of the second."""
        rows = [640] * 4 + [384] * 2
        first = [(f"a{at}", "f32", "both", (rows[at], 64)) for at in range(6)]
        second = [(f"b{at}", "f32", "both", (128, 64)) for at in range(6)]

        def more(daemon):
            daemon.variables["ADTOPK_TEST_CUDA_DEVICES"] = "6"

        self.assertGreater(self.goes_on(more, first, [second], ranks=6, gpus=5), 0)

    @STANDIN
    def test_whatever_happens(self):
        """A daemon is killed again and again, also while a policy changes. Each time the manager or the
        machine is another one."""
        rng = random.Random(4711)
        cluster = self.enterContext(gpu_cluster(
            nodes=1, kind=KeptCluster, variables={"ADTOPK_TEST_CUDA_DEVICES": "2"}))
        daemon = cluster.daemons[0]
        changes = ["scope=rank", "scope=node", "momentum=0.5", "momentum=0", "residual=f32",
                   "residual=bf16"]
        with Job(cluster, BUILD, "job", [0] * 3, TENSORS,
                 text({"density": 0.05, "values": "bf16"})) as job:
            job.join()
            job.each("gradients random 3")
            for tensors in BATCHES:
                job.each(*registrations(tensors), "commit")
                job.steps(1)
            for _ in range(100 if LONG else 12):
                for rank in job.ranks:
                    rank.send("steps 8")
                change = threading.Thread(target=daemon.ask, kwargs={"timeout": 5}, args=(
                    "policy", "set", "job", rng.choice(changes)))
                change.start()
                time.sleep(rng.random() / 10)
                daemon.kill()
                change.join()
                self.change_something(rng, daemon)
                cluster.restart(0)
                for rank in job.ranks:  # one that had all its steps does not return before
                    rank.send("steps 2")
                for rank in job.ranks:
                    self.assertEqual([rank.answer().split()[0] for _ in range(2)], ["ok", "ok"])
                self.assertEqual(job.steps(2)[0], "ok")
                verify(self, cluster, job, nodes=[0])

    def change_something(self, rng, daemon):
        manager, kept = daemon.manager, daemon.manager.kept
        parts = [name for name in kept if "@" in name]
        manager.limit = 4096
        daemon.variables["ADTOPK_TEST_CUDA_DEVICES"] = rng.choice("1223")
        what = rng.choice(["nothing", "nothing", "part", "another", "shared", "full"])
        if what == "part" and parts:
            self.forget(daemon, rng.choice(parts))
        elif what == "another" and parts:
            name = rng.choice(parts)
            self.forget(daemon, name)
            kept[name] = os.open("/dev/null", os.O_RDWR)
        elif what == "shared":
            self.forget(daemon, "shared")
        elif what == "full":
            manager.limit = len(kept)


if __name__ == "__main__":
    unittest.main()
