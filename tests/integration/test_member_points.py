#!/usr/bin/env python3
"""A daemon that is killed or stopped at every fail point while a job loses a node (policy "shrink") and
takes it in again ("grow"): the other nodes go on, with equal updates, a job beside does not notice, and within
a second after its end the daemons have no more than before.

usage: test_member_points.py BUILD [unittest's arguments]

A run takes a sample of the points, with ADTOPK_TEST_LONG=1 all of them with five seeds.
ADTOPK_TEST_SEED names another sample, ADTOPK_TEST_POINT one point.
"""
import signal
import time
import unittest

from build import BUILD
from cluster import PATIENCE
from points import SEEDS, PointsCase, function_of, functions_of, is_stopped
from ranks import Job, Rank
from scene import Bystander, Watch
from service import wait_for
from stores import TENSORS, StoreCluster, text
from test_points import MEMBERS

HOMES = [0, 1, 2]
LOST = 2  # the node, and its rank
POLICY = text(on_peer_loss="shrink", grow=True, shrink_after=10, wait_limit=30)
VIEWS = {"view_prepare", "coordinate_state", "view_commit"}
FUNCTIONS = [name for name in functions_of("points_daemon.c") if name in MEMBERS | VIEWS]
SHRINKS = {"loss_for_ever", "shrink_take"}  # the loss of a node brings a daemon there
COORDINATES = {"coordinate_state", "grow_hear", "grow_decide"}  # node 0 alone comes there
SAMPLE = 2


class Pump:
    """Keeps ranks in training while something else goes on: each always has its next command."""

    CHUNK = 20

    def __init__(self, ranks, steps):
        self.ranks = ranks
        self.steps = steps  # that they will have taken
        self.waiting = 0    # answers that every rank owes

    def go_on(self):
        if self.waiting > 0 and not any(rank.pending() for rank in self.ranks):
            self.take()
        if self.waiting < 2:
            for rank in self.ranks:
                rank.send(f"steps {self.CHUNK}")
            self.steps += self.CHUNK
            self.waiting += 1

    def take(self):
        self.waiting -= 1
        return {rank.answer() for rank in self.ranks}

    def until(self, condition, what="it did not happen"):
        def look():
            self.go_on()
            return condition()
        wait_for(look, what)

    def finish(self):
        """What each rank says of all its steps."""
        answers = set()
        while self.waiting > 0:
            answers = self.take()
        return answers


class MemberPoints(PointsCase):
    """Of three nodes, 0 or 1 has fail points. Node 2 is lost and joins again; its daemon lives, and so does that
    of the third node. The job beside is on these two."""

    def open_cluster(self, seed):
        self.draw_by(seed)
        self.cluster = StoreCluster(3, peer_timeout_ms=1500, heartbeat_ms=200)
        self.addCleanup(self.cluster.close)
        self.daemon = self.cluster.daemons[self.node]
        self.page = self.point_daemon(self.daemon, self.cluster.stores)
        self.cluster.start()
        self.bystander = Bystander(self.cluster, [1 - self.node, LOST])
        self.addCleanup(self.bystander.stop)
        self.bystander.check()
        self.watch = Watch(self.cluster)

    def open_rank(self):
        """The rank that joins again; its answer to commit is to come."""
        rank = Rank(BUILD, self.cluster.address(LOST), self.job.name, LOST, len(HOMES), POLICY)
        self.addCleanup(rank.kill)
        said = [rank.opening, "gradients random 7", *self.job.registrations()]
        rank.send(*said, "commit")
        for _ in said:
            rank.answer()
        return rank

    def act(self, number, pump):
        """What happens at the point; the daemon has sent itself this signal."""
        pump.until(self.page.fired, "the daemon did not come there")
        if number == signal.SIGKILL:
            self.daemon.process.wait(PATIENCE)
            self.cluster.restart(self.node)
        else:
            wait_for(lambda: is_stopped(self.daemon.process))
            time.sleep(0.05)
            self.daemon.signal(signal.SIGCONT)

    def lose(self, point, number):
        """The rank of node 2 dies, and the others train on."""
        pump = Pump(self.job.ranks[:LOST], 3)
        pump.go_on()
        if point:
            self.page.arm(point, number, 1)
        self.job.ranks[LOST].process.kill()
        if point:
            self.act(number, pump)
        pump.until(lambda: self.ranks_left() == LOST)
        self.check_same(pump.finish(), pump.steps)
        return pump

    def ranks_left(self):
        return next((job["view_ranks"] for job in self.cluster.status(0)["jobs"]
                     if job["name"] == self.job.name), 0)

    def check_same(self, answers, steps):
        self.assertEqual(len(answers), 1, answers)
        self.assertRegex(answers.pop(), f"^ok {steps} 0 ")

    def join(self, point, number, pump):
        """It comes back while the others train."""
        if point:
            self.page.arm(point, number, 1)
        pump.go_on()
        again = self.open_rank()
        if point:
            self.act(number, pump)
        pump.until(lambda: not again.pending())
        again.answer()
        again.send(f"until {pump.steps}")
        self.check_same(pump.finish() | {again.answer()}, pump.steps)
        return again

    def check(self, point, number, name, shrinks):
        """The point is come to as the job shrinks, or as it grows."""
        self.job = Job(self.cluster, BUILD, name, HOMES, TENSORS, POLICY, before=["gradients random 7"])
        self.addCleanup(self.job.kill)
        self.assertEqual(self.job.join().steps(3)[0], "ok")
        pump = self.lose(point if shrinks else None, number)
        again = self.join(point if not shrinks else None, number, pump)
        for node in (0, 1, 2):
            code, out, _ = self.cluster.daemons[node].ask("verify", name)
            self.assertEqual(code, 0, out)
        for rank in self.job.ranks[:LOST]:
            rank.process.stdin.close()
        again.end()
        self.job.end()

    def check_all(self, seed):
        self.open_cluster(seed)
        known = [name for name in FUNCTIONS if self.node == 0 or name not in COORDINATES]
        for act in (signal.SIGKILL, signal.SIGSTOP):
            for point in self.choose(known, SAMPLE):
                function = function_of(point)
                both = (True, False) if function in VIEWS else (function in SHRINKS,)
                for shrinks in both:
                    with self.subTest(seed=seed, act=act, point=point, shrinks=shrinks):
                        try:
                            self.check(point, act, f"{point.replace(' ', '-')}-{act}-{shrinks}",
                                       shrinks)
                        finally:
                            self.daemon.signal(signal.SIGCONT)
                        self.settle(self.watch)
                        self.bystander.check()

    def test_daemon(self):
        for seed in SEEDS:
            self.check_all(seed)


if __name__ == "__main__":
    unittest.main()
