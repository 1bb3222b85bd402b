#!/usr/bin/env python3
"""The same key again and again over a slow link, keys that collide in a hash, ranks that leave late,
and a node without a part in a run.

usage: test_runs.py BUILD [unittest's arguments]

ADTOPK_TEST_LONG=1 opens one key a hundred times instead of five.
"""
import collections
import ctypes
import os
import random
import signal
import subprocess
import time
import unittest

from build import BUILD
from cluster import Cluster
from ranks import Job, RankError
from scene import TENSORS, text
from stores import StoreCluster

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
CLONE_NEWNET = 0x40000000
LARGE = [("large", "f32", "dense", (1000, 1000))]
SPARSE = text(sparsifier="topk", density=0.3, values="f32")


def slow_loopback(rate):
    """Gives this process and its children a loopback of their own that sends at this rate."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise unittest.SkipTest(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    for command in (["ip", "link", "set", "lo", "up", "mtu", "1500"],
                    ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst",
                     "32kb", "latency", "200ms"]):
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as problem:
            raise unittest.SkipTest(f"{command[0]}: {problem}")


def late_leaver(nodes, seconds):
    """Packets that each node sends to all others in a second while one rank has not left."""
    with Cluster(BUILD, nodes=nodes) as cluster, \
            Job(cluster, BUILD, "late", list(range(nodes)), TENSORS) as job:
        job.join()
        job.steps(3)
        for rank in job.ranks[:-1]:
            rank.send("close")
        time.sleep(0.5)
        began, before = time.monotonic(), [sent(cluster, node) for node in range(nodes)]
        time.sleep(seconds)
        after = [sent(cluster, node) for node in range(nodes)]
        seconds = time.monotonic() - began
        job.ranks[-1].do("close")
        return [(now - then) / seconds for then, now in zip(before, after)]


def sent(cluster, node):
    return sum(peer["packets_sent"] for peer in cluster.ask(node, "peers")["peers"])


class Runs(unittest.TestCase):
    def test_late_leaver(self):
        """A node says once that its ranks have left: what goes on are heartbeats."""
        for rate in late_leaver(4, 1.0):
            self.assertLess(rate, 100)

    def test_colliding_keys(self):
        """Both keys gave one number in the 64-bit hash that named jobs once. Each is its own job."""
        keys = [("victim", "0"), ("mAd99[VdCND0", "87?O;A2kn5]")]
        if os.geteuid() != 0:
            self.skipTest("only root can be two users")
        with Cluster(BUILD, nodes=1) as cluster:
            os.chmod(os.path.dirname(cluster.daemons[0].socket), 0o755)
            jobs = []
            for (name, run), uid in zip(keys, (4001, 4002)):
                job = Job(cluster, BUILD, name, [0], TENSORS, run=run, prepare=as_user(uid))
                self.addCleanup(job.kill)
                jobs.append(job.join())
            self.assertEqual({job["owner"] for job in cluster.status(0)["jobs"]}, {4001, 4002})
            for job in jobs:
                self.assertEqual(job.steps(2)[0], "ok")


def as_user(uid):
    def become():
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    return become


class SameKey(unittest.TestCase):
    """A run that dies in its first step, and at once another one with its key and other gradients:
    bits of the first must not get into the second."""

    TIMES = 100 if LONG else 5
    # What a run may end with instead: its ranks met what was left of the run before.
    DOCUMENTED = ("peer", "state", "mismatch")

    @classmethod
    def setUpClass(cls):
        slow_loopback("20mbit")

    def die(self, cluster):
        """A run whose first rank is killed while its gradients are on their way."""
        with Job(cluster, BUILD, "again", [0, 1], LARGE, SPARSE) as job:
            job.join()
            for rank in job.ranks:
                rank.send("steps 1")
            time.sleep(random.uniform(0.1, 0.5))
            job.ranks[0].kill()
            try:
                job.ranks[1].answer()
            except RankError as error:
                self.assertEqual(error.name, "peer", error)
            job.kill()

    def run_once(self, cluster, serial):
        """Returns "ok", or the name of the error of the first rank that got one."""
        with Job(cluster, BUILD, "again", [0, 1], LARGE, SPARSE,
                 before=[f"skip {1 + serial % 7}"]) as job:
            try:
                job.join()
                status, _, _, _ = job.steps(1)  # fails the test if the ranks' bits differ
            except RankError as error:
                self.assertIn(error.name, self.DOCUMENTED, error)
                job.kill()
                return error.name
            return status

    def test_again_and_again(self):
        outcomes = collections.Counter()
        random.seed(7)
        with Cluster(BUILD, nodes=2, settings={"peer_timeout_ms": 3000}) as cluster:
            for serial in range(self.TIMES):
                self.die(cluster)
                time.sleep(random.choice((0, 0, 0.05, 0.2, 1.0)))
                outcomes[self.run_once(cluster, serial)] += 1
        print(f"\n# {dict(outcomes)}", flush=True)
        self.assertGreaterEqual(outcomes["ok"], 0.95 * self.TIMES)


class PartOfTheNodes(unittest.TestCase):
    """A job has ranks on two of three nodes. The third has no part in it, and never had."""

    def test_returns_one_by_one(self):
        """A daemon is killed, and one of its ranks returns later than the other. What the third node says of the run
        meanwhile is no reason to end it."""
        cluster = self.enterContext(StoreCluster(3))
        job = self.enterContext(Job(cluster, BUILD, "part", [0, 2, 2], TENSORS).join())
        job.steps(3)
        late = job.ranks[2].process
        late.send_signal(signal.SIGSTOP)
        for rank in job.ranks:
            rank.send("steps 5")
        cluster.daemons[2].kill()
        cluster.restart(2)
        cluster.wait_connected()
        time.sleep(0.5)
        late.send_signal(signal.SIGCONT)
        self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)


if __name__ == "__main__":
    unittest.main()
