#!/usr/bin/env python3
"""Ranks that make no call while their daemon is killed and started again: they are back by themselves, so that
others need not wait for them.

usage: test_elsewhere.py BUILD [unittest's arguments]
"""
import shutil
import signal
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

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


class Here(Base):
    """On the daemon's node."""

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

    @staticmethod
    def arm(rank):
        rank.send("arm")
        return rank.line().split()[1]

    def test_armed(self):
        """A program that armed the descriptor, and does not poll it."""
        armed, other = self.job.ranks
        self.job.steps(1)
        armed.do("descriptor", *(f"push {t}" for t in range(len(TENSORS))), "look 0")
        self.assertEqual(self.arm(armed), "pending")
        self.daemon.kill()
        time.sleep(1.5 * RETURN_MS / 1000)
        self.cluster.restart(0)
        wait_for(lambda: self.ranks_here() == 2, "they do not come back")
        self.check_rest()
        self.assertEqual(armed.do("doze 10000"), "")
        self.assertEqual(armed.do("look 0"), "pending")
        self.assertEqual(self.arm(armed), "pending")
        self.assertEqual(armed.do("doze 0"), "pending")
        other.do("steps 1")
        self.assertEqual(armed.do("doze 10000"), "")
        self.assertEqual(armed.do("look 0"), "")

    def test_not_seen(self):
        """What the next daemon has done is something new, although its page has counted as far."""
        looks, other = self.job.ranks
        self.job.steps(1)
        looks.do("descriptor")
        self.assertEqual(looks.do(*(f"push {t}" for t in range(len(TENSORS))), "look 0"), "pending")
        self.daemon.kill()
        self.cluster.restart(0)
        wait_for(lambda: self.ranks_here() == 2, "they do not come back")
        other.do("steps 1")
        looks.do("arm")  # it need not sleep
        self.assertEqual(looks.do("look 0"), "")

    def test_done_before(self):
        """What was done before a daemon came that knows nothing of it."""
        late, other = self.job.ranks
        self.job.steps(1)
        late.do(*(f"push {t}" for t in range(len(TENSORS))), "look 0")
        other.do("steps 1")
        time.sleep(0.1)  # the other rank is told, too
        self.daemon.kill()
        shutil.rmtree(self.cluster.folder(0))
        self.cluster.restart(0)
        wait_for(lambda: "has lost what it had" in self.error(other), "it does not come back")
        self.assertEqual(late.do("look 0"), "")
        self.assertEqual(late.do("update 0"), "1")
        self.assertIn("has lost what it had", self.error(late))

    @staticmethod
    def error(rank):
        try:
            return rank.do("due")
        except RankError as error:
            return str(error)


class Full(unittest.TestCase):
    """A rank pushes more entries than the ring takes."""

    TENSORS = [(f"t{i}", "f32", "dense", (4,)) for i in range(1300)]

    def test_push_goes_on(self):
        """One that waits for its daemon to read the ring waits for no other daemon."""
        cluster = self.enterContext(StoreCluster(nodes=2))
        job = Job(cluster, BUILD, "full", [0, 1], self.TENSORS, text(bucket_bytes=10000000, sparsifier="dense"))
        self.addCleanup(job.kill)
        pushes, stays = job.join().ranks
        cluster.daemons[0].signal(signal.SIGSTOP)
        pushes.send(*[f"push {i}" for i in range(len(self.TENSORS))])
        for _ in range(1024):
            pushes.answer()
        time.sleep(0.2)
        self.assertTrue(pushes.pending())
        cluster.daemons[0].kill()
        for _ in range(1024, len(self.TENSORS)):
            pushes.answer(timeout=5)
        cluster.restart(0)
        stays.send("steps 1")
        self.assertEqual(pushes.do("steps 1"), stays.answer())


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


class Meanwhile(unittest.TestCase):
    """What a rank is told between two steps holds while it returns."""

    def setUp(self):
        self.cluster = self.enterContext(StoreCluster(nodes=2))
        self.job = Job(self.cluster, BUILD, "meanwhile", [0, 0, 1], TENSORS,
                       text(on_peer_loss="shrink", shrink_after=1))
        self.addCleanup(self.job.kill)
        self.job.join()

    def ask(self):
        """For a checkpoint."""
        pool = self.enterContext(ThreadPoolExecutor(max_workers=1))
        pool.submit(self.cluster.daemons[0].ask, "checkpoint", "ask", self.job.name)
        wait_for(lambda: self.job.steps(1) and "1" in self.job.each("due"), "they are not asked")

    def told(self, rank):
        return [rank.do(question) for question in ("due", "members")]

    def test_told(self):
        self.job.ranks.pop().kill()
        self.job.steps(1)
        self.ask()
        returns, stands = self.job.ranks
        before = [self.told(rank) for rank in self.job.ranks]
        self.assertEqual(before, [["1", "2 1 0 0 0"], ["1", "2 1 1 0 0"]])
        stands.process.send_signal(signal.SIGSTOP)
        for _ in range(2):
            self.cluster.daemons[0].kill()
            self.assertEqual(self.told(returns), before[0])
            self.cluster.restart(0)
            wait_for(lambda: self.cluster.ask(0, "status")["jobs"], "it does not come back")
            time.sleep(0.1)
            self.assertEqual(self.told(returns), before[0])
        stands.process.send_signal(signal.SIGCONT)
        wait_for(lambda: sum(job["local_ranks"] for job in self.cluster.ask(0, "status")["jobs"]) == 2,
                 "they do not come back")
        self.assertEqual([self.told(rank) for rank in self.job.ranks], before)
        self.assertEqual(self.job.steps(1)[0], "ok")


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

    def test_connection_cut(self):
        """The daemon lives, and has ended the job: a rank that returns is told why, and waits for nobody."""
        self.job.steps(2)
        self.relay.cut()
        for rank in reversed(self.job.ranks):
            rank.send("steps 1")
            self.assertIn("rank 1 is gone", rank.error(timeout=5)[1])


if __name__ == "__main__":
    unittest.main()
