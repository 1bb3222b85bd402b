#!/usr/bin/env python3
"""A rank that is killed or stopped at every fail point of the client library (points_client.c): one
that was stopped trains on with the bits of an undisturbed run. The others hear of one that was killed.
A job beside, on the same daemons, does not notice, and within a second they have no more than before.

usage: test_rank_points.py BUILD [unittest's arguments]

A run takes a sample of the points, with ADTOPK_TEST_LONG=1 all of them with five seeds.
ADTOPK_TEST_SEED names another sample, ADTOPK_TEST_POINT one point.
"""
import os
import signal
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import Cluster
from points import SEEDS, Page, PointsCase, Training, function_of, functions_of, is_stopped
from ranks import Job
from scene import SOON, Bystander, Watch
from service import wait_for
from stores import HOMES, TENSORS, StoreCluster, far_cluster, text

FUNCTIONS = functions_of("points_client.c")
# A rank comes there when its daemon was started again.
RETURNS = {"client_go_away", "client_connect", "client_say_hello", "client_map", "client_copy_entry"}
SAMPLE = {"stop": 6, "kill": 6}
WAIT_LIMIT = 3  # seconds that a job waits for a rank that died on its way back


class RankPoints(PointsCase):
    def open_cluster(self, seed):
        self.draw_by(seed)
        self.cluster = StoreCluster(peer_timeout_ms=1500, heartbeat_ms=200)
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.bystander = Bystander(self.cluster, [0, 1])
        self.addCleanup(self.bystander.stop)
        self.bystander.check()
        self.watch = Watch(self.cluster)
        self.page = Page(os.path.join(self.cluster.stores, "points"))

    def open_job(self, name, homes, policy, pointed=None):
        job = Job(self.cluster, BUILD, name, homes, TENSORS, policy, before=["gradients random 7"],
                  pointed={pointed: self.page} if pointed is not None else None)
        self.addCleanup(job.kill)
        return job.join()

    def reach(self, point, number):
        """The rank comes to the point, and sends itself the signal."""
        returns = function_of(point) in RETURNS
        self.page.arm(point, number, 1 if returns else self.draw.randint(1, 30))
        if returns:
            self.cluster.daemons[self.node].kill()
            self.cluster.restart(self.node)
        wait_for(self.page.fired, f"the rank did not come to {point}")

    def stop(self, point, process):
        self.reach(point, signal.SIGSTOP)
        wait_for(lambda: is_stopped(process))
        time.sleep(0.05)
        process.send_signal(signal.SIGCONT)

    def check_stops(self, seed):
        self.open_cluster(seed)
        rank = HOMES.index(self.node)
        job = self.open_job("job", HOMES, self.policy, rank)
        training = Training(job)
        with ThreadPoolExecutor(max_workers=1) as pool:
            steps = pool.submit(training.run)
            try:
                for point in self.choose(FUNCTIONS, SAMPLE["stop"]):
                    with self.subTest(seed=seed, point=point):
                        self.stop(point, job.ranks[rank].process)
                        self.bystander.check()
            finally:
                training.over = True
            steps = steps.result()
        got = job.steps(1)
        self.assertEqual(got[:3], ("ok", steps + 1, 0))
        job.end()
        self.settle(self.watch)
        with Cluster(BUILD, 2) as self.cluster:
            self.assertEqual(self.open_job("job", HOMES, self.policy).steps(steps + 1), got)

    def test_stopped(self):
        for seed in SEEDS:
            self.check_stops(seed)

    def kill(self, point, name):
        job = self.open_job(name, [0, 1], text(wait_limit=WAIT_LIMIT), self.node)
        for rank in job.ranks:
            rank.send("steps 1000000")
        self.reach(point, signal.SIGKILL)
        returns = function_of(point) in RETURNS
        status, sentence = job.ranks[1 - self.node].error(SOON + (WAIT_LIMIT if returns else 0))
        if not returns:
            self.assertEqual(status, "peer", sentence)
            self.assertIn(f"rank {self.node}", sentence)
        job.kill()
        self.settle(self.watch)

    def test_killed(self):
        for seed in SEEDS:
            self.open_cluster(seed)
            for number, point in enumerate(self.choose(FUNCTIONS, SAMPLE["kill"])):
                with self.subTest(seed=seed, point=point):
                    self.kill(point, f"killed{number}")
                    self.bystander.check()


class Copied(unittest.TestCase):
    """The daemon of node 0 is killed when only node 1 has the result of an operation."""

    def sent(self):
        """Bytes that node 0 has sent to node 1."""
        return self.cluster.stats(0)["links"][0]["bytes_sent"]

    def finish_on_node_1(self, job):
        before = self.sent()
        for rank in job.ranks[:2]:
            rank.send("allreduce 50000")
        wait_for(lambda: self.sent() > before + 200000)
        self.cluster.daemons[0].signal(signal.SIGSTOP)
        job.ranks[2].do("allreduce 50000")

    def test_result_before_call(self):
        """A rank on another machine is back, and the result is there before it calls again."""
        self.cluster = self.enterContext(far_cluster(residual_ttl_s=60))
        page = Page(os.path.join(self.cluster.stores, "points"))
        job = Job(self.cluster, BUILD, "copied", [0, "r0", 1], TENSORS, text(),
                  before=["gradients random 7"], pointed={1: page})
        self.addCleanup(job.kill)
        job.join()
        self.finish_on_node_1(job)
        page.arm("client_copy_entry", signal.SIGSTOP, 1)
        self.cluster.daemons[0].kill()
        self.cluster.restart(0)
        wait_for(page.fired)
        wait_for(lambda: is_stopped(job.ranks[1].process))
        job.ranks[0].answer()
        job.ranks[1].process.send_signal(signal.SIGCONT)
        job.ranks[1].answer()
        self.assertEqual(job.steps(2)[:3], ("ok", 2, 0))
        job.end()


if __name__ == "__main__":
    unittest.main()
