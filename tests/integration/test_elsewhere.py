#!/usr/bin/env python3
"""Ranks that make no call while their daemon is killed and started again: they are back by themselves, so that
others need not wait for them.

usage: test_elsewhere.py BUILD [unittest's arguments]
"""
import signal
import time
import unittest

from build import BUILD
from cluster import Cluster
from points import PointsCase
from ranks import Job, RankError
from relay import Relay
from scene import cpu_seconds
from service import wait_for
from stores import TENSORS, StoreCluster, far_cluster, text

RETURN_MS = 1000


class Base(PointsCase):
    """Two ranks of a daemon that may be killed."""

    homes = [0, 0]

    def make_cluster(self):
        return StoreCluster(nodes=1)

    def setUp(self):
        super().setUp()
        self.cluster = self.make_cluster()
        self.addCleanup(self.cluster.close)
        self.daemon = self.cluster.daemons[0]
        self.page = self.point_daemon(self.daemon, self.cluster.stores)
        self.cluster.start()
        self.job = self.open_job()

    def open_job(self):
        job = Job(self.cluster, BUILD, "elsewhere", self.homes, TENSORS, text(), before=["gradients random 7"])
        self.addCleanup(job.kill)
        for rank in job.ranks:
            rank.do(f"returns {RETURN_MS}")
        return job.join()

    def check_bits(self):
        """Of one step more, beside a run that nothing disturbed."""
        got = self.job.steps(1)
        self.job.end()
        with Cluster(BUILD, 1) as self.cluster:
            self.homes = [0, 0]
            self.assertEqual(self.open_job().steps(got[1]), got)

    def check_rest(self):
        """Ranks that make no call need hardly any processor."""
        pids = [rank.process.pid for rank in self.job.ranks]
        before = [cpu_seconds(pid) for pid in pids]
        time.sleep(1)
        for pid, taken in zip(pids, before):
            self.assertLess(cpu_seconds(pid) - taken, 0.1)

    def ranks_here(self):
        return sum(job["local_ranks"] for job in self.cluster.ask(0, "status")["jobs"])


class Told(Base):
    def test_one_of_two(self):
        """The daemon is killed after one rank has got something, and before the other one has."""
        for count in range(1, 2 * len(TENSORS) + 3):
            with self.subTest(count=count):
                self.page.arm("reply_progress done", signal.SIGKILL, count)
                for rank in self.job.ranks:
                    rank.send("steps 1")
                self.daemon.process.wait()
                self.assertTrue(self.page.fired())
                self.cluster.restart(0)
                self.assertEqual(len({rank.answer() for rank in self.job.ranks}), 1)
        self.check_bits()


class Elsewhere(Base):
    def test_away_for_long(self):
        """A rank that waits for nothing has no need to give up."""
        self.job.steps(2)
        self.daemon.kill()
        time.sleep(0.5 * RETURN_MS / 1000)
        self.check_rest()
        self.cluster.restart(0)
        wait_for(lambda: self.ranks_here() == 2, "they do not come back")
        self.check_rest()
        self.check_bits()

    def test_away_for_ever(self):
        """Its next call does."""
        self.job.steps(2)
        self.daemon.kill()
        time.sleep(1.5 * RETURN_MS / 1000)
        self.job.ranks[0].send("steps 1")
        began = time.monotonic()
        name, sentence = self.job.ranks[0].error(timeout=3 * RETURN_MS / 1000)
        self.assertEqual(name, "unreachable", sentence)
        self.assertIn(f"within {RETURN_MS} ms", sentence)
        self.assertGreater(time.monotonic() - began, 0.9 * RETURN_MS / 1000)

    def test_looks(self):
        """A rank that looks now and then gives up, too."""
        self.job.ranks[0].do("push 0")
        self.daemon.kill()
        began = time.monotonic()
        with self.assertRaisesRegex(RankError, f"within {RETURN_MS} ms"):
            while time.monotonic() - began < 3 * RETURN_MS / 1000:
                self.assertEqual(self.job.ranks[0].do("look 0"), "pending")
                time.sleep(0.03)
        self.assertGreater(time.monotonic() - began, 0.9 * RETURN_MS / 1000)


class Far(Elsewhere):
    """Over tcp://. What the daemon tells the second rank goes through a relay."""

    homes = ["r0", "relay"]

    def make_cluster(self):
        cluster, self.relay = far_cluster(nodes=1), Relay()
        self.addCleanup(self.relay.close)
        direct = cluster.address
        cluster.address = lambda node: direct(node) if node != "relay" else f"tcp://127.0.0.1:{self.relay.port}"
        return cluster

    def open_job(self):
        self.relay.target = self.daemon.remote_port
        return super().open_job()

    def test_one_of_two_was_told(self):
        """The daemon is killed after one rank has got its updates, and before the other one has."""
        for _ in range(3):
            self.relay.deaden(back=True)
            for rank in self.job.ranks:
                rank.send("steps 1")
            told = self.job.ranks[0].answer()
            self.daemon.kill()
            self.cluster.restart(0)
            self.assertEqual(self.job.ranks[1].answer(), told)
        self.check_bits()


if __name__ == "__main__":
    unittest.main()
