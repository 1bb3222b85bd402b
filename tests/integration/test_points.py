#!/usr/bin/env python3
"""A daemon that is killed or stopped at every fail point (points_daemon.c), and ranks that are while it stands
there: the job goes on with the bits of an undisturbed run, the ranks of a job that cannot are told,
a job beside does not notice, and within a second the daemons have no more than before.

usage: test_points.py BUILD [unittest's arguments]

A run takes a sample of the points, with ADTOPK_TEST_LONG=1 all of them with five seeds.
ADTOPK_TEST_SEED names another sample, ADTOPK_TEST_POINT one point.
"""
import os
import signal
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import PATIENCE, Cluster, ClusterError
from points import SEEDS, PointsCase, Training, function_of, functions_of, is_stopped
from ranks import Job
from scene import BASELINE_KB, SOON, Bystander, Watch
from service import wait_for
from stores import HOMES, TENSORS, StoreCluster, text

SAMPLE = {"kill": 12, "stop": 6, "stop_rank": 6, "kill_rank": 8}
# test_member_points.py comes to these.
MEMBERS = {"loss_for_ever", "shrink_take", "newcomers_note", "grow_tell", "grow_hear", "grow_decide",
           "grow_take"}
FUNCTIONS = [name for name in functions_of("points_daemon.c") if name not in MEMBERS]
# What brings a daemon there; training brings it to all others.
RETURNS = {"folder_begin", "folder_part", "layout_recover"}  # ranks that return to their store
ENDS = {"peer_send_leave", "folder_end"}  # the end of a job
SAVES = {"keeping_take"}
OPERATIONS = {"store_count_op"}  # a plain operation
COORDINATES = {"coordinate_state", "switch_answer"}  # node 0 alone comes there
SWITCHES = {"switch_propose", "layout_kept", "residual_open", "switch_answer", "switch_commit",
            "view_prepare", "coordinate_state", "view_commit"}


class Points(PointsCase):
    """One daemon has fail points. The job beside is on the other node, or on both where only ranks die."""

    def setUp(self):
        super().setUp()
        self.serial = 0
        self.asking = []

    def open_cluster(self, seed, beside):
        """beside: whether the job beside is on the daemon with fail points, too."""
        self.draw_by(seed)
        self.cluster = StoreCluster(peer_timeout_ms=1500, heartbeat_ms=200)
        self.addCleanup(self.cluster.close)
        self.daemon = self.cluster.daemons[self.node]
        self.page = self.point_daemon(self.daemon, self.cluster.stores)
        self.cluster.start()
        self.bystander = Bystander(self.cluster, [0, 1] if beside else [1 - self.node] * 2)
        self.addCleanup(self.bystander.stop)
        self.bystander.check()
        self.watch = Watch(self.cluster)

    def open_job(self, name, homes=HOMES):
        job = Job(self.cluster, BUILD, name, homes, TENSORS, self.policy,
                  before=["gradients random 7"])
        self.addCleanup(job.kill)
        return job.join()

    def sample(self, act, without=()):
        """Points for what happens there."""
        others = COORDINATES if self.node > 0 else set()
        return self.choose([name for name in FUNCTIONS if name not in others.union(without)],
                           SAMPLE[act])

    # ------------------------------------------------------------ reaching a point

    def ask_policy(self, job):
        """A change that changes no bit. The other node asks, because this one may not be there."""
        self.serial += 1
        self.asking.append(subprocess.Popen(
            [self.daemon.programs["adtopkctl"], "--socket",
             self.cluster.daemons[1 - self.node].control,
             "policy", "set", job, f"weight={1 + self.serial % 100}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self.addCleanup(self.asking[-1].wait)
        self.addCleanup(self.asking[-1].kill)

    def provoke(self, point, job):
        function = function_of(point)
        if function in SWITCHES:
            self.ask_policy(job)
        elif function in SAVES:
            self.save()
        elif function in ENDS:
            self.serial += 1
            short = Job(self.cluster, BUILD, f"short{self.serial}", [self.node], TENSORS,
                        text())
            self.addCleanup(short.kill)
            short.join()
            short.ranks[0].process.stdin.close()

    def reach(self, point, number, job="job"):
        """The daemon comes to the point, and sends itself the signal."""
        provoked = function_of(point) in RETURNS | ENDS | SAVES | SWITCHES
        self.page.arm(point, number, 1 if provoked else self.draw.randint(1, 30))
        self.provoke(point, job)
        wait_for(lambda: self.has_come(point, job), f"the daemon did not come to {point}")

    def has_come(self, point, job):
        """A change is refused while a daemon has just come back: then it is asked for again."""
        come = self.page.fired()
        if not come and function_of(point) in SWITCHES and self.asking[-1].poll() is not None:
            self.ask_policy(job)
        return come

    def reach_stopped(self, point, job="job"):
        self.reach(point, signal.SIGSTOP, job)
        wait_for(lambda: is_stopped(self.daemon.process))

    # ------------------------------------------------------------ what happens there

    def kill(self, point):
        if function_of(point) in RETURNS:
            self.daemon.kill()
            self.page.arm(point, signal.SIGKILL, 1)
            try:
                self.cluster.restart(self.node)
            except ClusterError:  # ranks may return before it says that it is ready
                self.assertTrue(self.page.fired())
            wait_for(self.page.fired, f"the daemon did not come to {point}")
        else:
            self.reach(point, signal.SIGKILL)
        self.daemon.process.wait()
        self.cluster.restart(self.node)

    def stop(self, point):
        self.reach_stopped(point)
        time.sleep(0.05)
        self.daemon.signal(signal.SIGCONT)

    def stop_rank(self, point):
        rank = self.job.ranks[HOMES.index(self.node)].process
        self.reach_stopped(point)
        rank.send_signal(signal.SIGSTOP)
        self.daemon.signal(signal.SIGCONT)
        time.sleep(0.05)
        rank.send_signal(signal.SIGCONT)

    # ------------------------------------------------------------ tests

    def save_soon(self):
        self.serial += 1
        folder = os.path.join(self.folder, str(self.serial))
        os.mkdir(folder)
        self.training.more = [f"save {folder}"]

    def disturb(self, seed):
        plan = [(act, point) for act, without in ((self.kill, ()), (self.stop, RETURNS),
                                                  (self.stop_rank, RETURNS))
                for point in self.sample(act.__name__, without)]
        self.draw.shuffle(plan)
        at_work = Watch(self.cluster, BASELINE_KB)  # what the daemons have while the job trains
        for act, point in plan:
            with self.subTest(seed=seed, act=act.__name__, point=point):
                try:
                    act(point)
                finally:
                    self.daemon.signal(signal.SIGCONT)
                self.bystander.check()
                for asking in self.asking:  # each has a descriptor
                    asking.wait(PATIENCE)
                self.settle(at_work)

    def check(self, seed):
        self.open_cluster(seed, False)
        self.job = self.open_job("job")
        self.training = Training(self.job)
        self.save = self.save_soon
        with tempfile.TemporaryDirectory(dir="/tmp") as self.folder, \
             ThreadPoolExecutor(max_workers=1) as pool:
            steps = pool.submit(self.training.run)
            try:
                self.disturb(seed)
            finally:
                self.training.over = True
            steps = steps.result()
            got = self.job.steps(1)
        self.assertEqual(got[:3], ("ok", steps + 1, 0))
        self.assertEqual(self.daemon.ask("verify", "job")[0], 0, self.daemon.ask("verify", "job"))
        self.job.end()
        self.settle(self.watch)
        with Cluster(BUILD, 2) as self.cluster:
            self.assertEqual(self.open_job("job").steps(steps + 1), got)

    def test_daemon(self):
        for seed in SEEDS:
            self.check(seed)

    def kill_rank(self, point):
        self.serial += 1
        name = f"killed{self.serial}"
        folder = self.enterContext(tempfile.TemporaryDirectory(dir="/tmp"))
        job = self.open_job(name, [0, 1])

        def save():
            for rank in job.ranks:
                rank.send(f"save {folder}")

        self.save = save
        for rank in job.ranks:
            if function_of(point) not in SAVES:
                rank.send("steps 1000000")
        try:
            self.reach_stopped(point, name)
            job.ranks[self.node].process.kill()
        finally:
            self.daemon.signal(signal.SIGCONT)
        status, sentence = job.ranks[1 - self.node].error(timeout=SOON)
        self.assertEqual(status, "peer", sentence)
        self.assertIn(f"rank {self.node}", sentence)
        job.kill()
        self.settle(self.watch)

    def test_rank_killed(self):
        for seed in SEEDS:
            self.open_cluster(seed, True)
            for point in self.sample("kill_rank", RETURNS | ENDS | OPERATIONS):
                with self.subTest(seed=seed, point=point):
                    self.kill_rank(point)
                    self.bystander.check()


if __name__ == "__main__":
    unittest.main()
