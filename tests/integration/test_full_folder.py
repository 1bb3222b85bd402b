#!/usr/bin/env python3
"""A store_folder on a tmpfs that is too small, or fills up while jobs train.

usage: test_full_folder.py BUILD [unittest's arguments]
"""
import os
import re
import subprocess
import unittest
from contextlib import suppress

from build import BUILD
from machine import Impossible, own_mounts, quietly
from ranks import Job, RankError
from scene import Bystander, text
from service import wait_for
from stores import StoreCluster

KIB, MIB = 1 << 10, 1 << 20
ROOM = 16 * MIB
TENSORS = {"small": (16, 40), "middle": (16, 24 * KIB),
           "inline": (16, 60 * KIB),  # 3.75 MiB: the loop itself reserves so much
           "large": (64, 128 * KIB)}  # 32 MiB, which another thread reserves
# No plan of a planner asks for other memory.
PINNED = {"sparsifier": "topk", "density": 0.01, "bucket_bytes": 20000, "scope": "node",
          "sparse_collective": "allgather", "values": "f32"}
REFUSED = r"the (residual store|store|result arena) needs (\d+) bytes, and store_folder has room for (\d+)"


class FullFolder(unittest.TestCase):
    """Two nodes. Node 0's folder has ROOM bytes, which a test takes away. A job beside trains on."""

    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = StoreCluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.folder = cls.cluster.folder(0)
        os.mkdir(cls.folder, mode=0o700)
        try:
            own_mounts()
            quietly("mount", "-t", "tmpfs", "-o", f"size={ROOM},mode=0700", "tmpfs", cls.folder)
        except Impossible as why:
            raise unittest.SkipTest(f"no tmpfs of its own: {why}") from why
        cls.addClassCleanup(subprocess.run, ["umount", "--lazy", cls.folder], check=False)
        cls.cluster.start()
        cls.bystander = Bystander(cls.cluster, [0, 1])
        cls.addClassCleanup(cls.bystander.stop)
        cls.bystander.check()

    @classmethod
    def tearDownClass(cls):
        cls.bystander.check()
        cls.bystander.stop()
        cls.cluster.wait_empty()  # nothing but `lock` is left
        cls.cluster.stop()

    def setUp(self):
        FullFolder.serial += 1
        self.files, self.room = self.cluster.files(0), self.free()

    def tearDown(self):
        """What the test had in the folder is gone, and the other job has gone on."""
        self.doCleanups()
        wait_for(lambda: self.cluster.files(0) == self.files and self.free() == self.room,
                 "files of stores are left")
        self.bystander.check()

    def free(self):
        there = os.statvfs(self.folder)
        return there.f_bavail * there.f_frsize

    def leave(self, room):
        """Somebody else takes all but so many bytes."""
        path = os.path.join(self.folder, "filler")
        with open(path, "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, self.free() - room)
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        self.assertEqual(self.free(), room)
        return path

    def job(self, tensor):
        job = Job(self.cluster, BUILD, f"job{FullFolder.serial}", [0, 1],
                  [(tensor, "f32", "both", TENSORS[tensor])], text(**PINNED))
        self.addCleanup(job.kill)
        return job

    def check_sentence(self, sentence, what, least, room):
        """It says what is needed and what is there, and that does not suffice."""
        found = re.search(REFUSED, sentence)
        self.assertIsNotNone(found, sentence)
        self.assertEqual(found[1], what, sentence)
        needed, there = int(found[2]), int(found[3])
        self.assertGreaterEqual(needed, least, sentence)
        self.assertLess(there, needed, sentence)
        self.assertLessEqual(there, room, sentence)

    def expect_refused(self, ranks, what, least, room):
        for rank in ranks:
            status, sentence = rank.error()
            self.assertEqual(status, "memory", sentence)
            self.check_sentence(sentence, what, least, room)

    def refused_at_commit(self, tensor, room, what, least):
        self.leave(room)
        job = self.job(tensor)
        for rank in job.ranks:
            rank.do(rank.opening, *job.registrations())
        for rank in job.ranks:
            rank.send("commit")
        self.expect_refused(job.ranks, what, least, room)
        job.kill()

    def test_no_room_at_all(self):
        self.refused_at_commit("small", 0, "store", 200 * KIB)

    def test_a_job_that_does_not_fit(self):
        self.refused_at_commit("inline", MIB, "store", 15 * MIB // 4)

    def test_a_large_job_that_does_not_fit(self):
        self.refused_at_commit("large", MIB, "residual store", 32 * MIB)

    def test_results_that_do_not_fit(self):
        self.refused_at_commit("middle", 3 * MIB, "result arena", 3 * MIB)

    def test_more_tensors_that_do_not_fit(self):
        """All ranks have committed, so this ends the job. Others go on."""
        job = self.job("small").join()
        job.steps(2)
        self.leave(MIB)
        job.each("tensor more f32 both 16x61440")
        for rank in job.ranks:
            rank.send("commit")
        self.expect_refused(job.ranks[:1], "store", 15 * MIB // 4, MIB)
        with suppress(RankError):  # this node may hear of it when its own part is complete
            job.ranks[1].answer()
        for rank in job.ranks:
            rank.send("steps 1")
        self.expect_refused(job.ranks, "store", 15 * MIB // 4, MIB)  # that is what ended the job
        job.kill()

    def test_a_policy_that_does_not_fit(self):
        """It needs velocities. The job goes on as before, and has them once there is room."""
        job = self.job("middle").join()
        job.steps(2)
        path, files = self.leave(MIB), self.cluster.files(0)
        change = ["policy", "set", job.name, "momentum=0.9"]
        code, _, said = job.steps_while(lambda: self.cluster.daemons[1].ask(*change))
        self.assertEqual(code, 1, said)
        self.check_sentence(said, "store", 3 * MIB // 2, MIB)
        self.assertEqual(job.steps(2)[0], "ok")
        wait_for(lambda: self.cluster.files(0) == files and self.free() == MIB,
                 "files of the change are left")
        os.unlink(path)
        code, _, said = job.steps_while(lambda: self.cluster.daemons[1].ask(*change))
        self.assertEqual(code, 0, said)
        self.assertEqual(job.steps(2)[0], "ok")
        job.kill()

    def test_a_daemon_that_starts_again(self):
        """It needs no more room for what it finds, after an orderly end and a kill."""
        path = self.leave(0)
        daemon = self.cluster.daemons[0]
        for end in (daemon.stop, daemon.kill):
            end()
            self.cluster.restart(0)
            self.bystander.check()
        os.unlink(path)


if __name__ == "__main__":
    unittest.main()
