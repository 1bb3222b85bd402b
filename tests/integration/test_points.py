#!/usr/bin/env python3
"""A daemon that is killed or stopped at every fail point (points.c), and ranks that are while it stands
there: the job goes on with the bits of an undisturbed run, the ranks of a job that cannot are told, and
a job beside does not notice.

usage: test_points.py BUILD [unittest's arguments]

A run takes a sample of the points, with ADTOPK_TEST_LONG=1 all of them with five seeds.
ADTOPK_TEST_SEED names another sample, ADTOPK_TEST_POINT one point.
"""
import mmap
import os
import random
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import Cluster, ClusterError
from ranks import Job
from scene import SOON, Bystander, usage
from service import wait_for
from test_restart import HOMES, TENSORS, StoreCluster, text
from test_soak import BASELINE_KB, heap_kb

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
SEED = int(os.environ.get("ADTOPK_TEST_SEED", "1"))
ONE = os.environ.get("ADTOPK_TEST_POINT")
SEEDS = range(SEED, SEED + 5) if LONG else [SEED]
SAMPLE = {"kill": 12, "stop": 6, "stop_rank": 6, "kill_rank": 8}

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "points.c"),
          encoding="utf-8") as source:
    FUNCTIONS = re.findall(r"^POINT(?:_OF)?\((?:\w+, )?(\w+),", source.read(), re.MULTILINE)
# What brings a daemon there; training brings it to all others.
RETURNS = {"folder_begin", "folder_part", "layout_recover"}  # ranks that return to their store
ENDS = {"peer_send_leave", "folder_end"}  # the end of a job
SAVES = {"keeping_take"}
OPERATIONS = {"store_count_op"}  # a plain operation
COORDINATES = {"coordinate_state", "switch_answer"}  # node 0 alone comes there
SWITCHES = {"switch_propose", "layout_kept", "residual_open", "switch_answer", "switch_commit",
            "view_prepare", "coordinate_state", "view_commit"}
POLICIES = [text(), text(momentum=0.9, values="f32"), text(residual="bf16", dense_values="bf16"),
            text(scope="rank", sparse_collective="balanced"),
            text(sparsifier="topk", sparse_collective="hierarchical", values="int8")]


def function_of(point):
    return point.removesuffix(" done")


class Page:
    """What points.c reads: the armed point."""

    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(4096)
            self.page = mmap.mmap(file.fileno(), 4096)

    def arm(self, point, number, count):
        self.page[:64] = struct.pack("60si", point.encode(), number)
        self.page[64:68] = struct.pack("i", count)

    def fired(self):
        return struct.unpack("i", self.page[64:68])[0] == 0


class Points(unittest.TestCase):
    """One daemon has fail points; the job beside is on the other node."""

    def setUp(self):
        self.serial = 0
        self.asking = []

    def open_cluster(self, seed):
        self.draw = random.Random(seed)
        self.node = (seed + 1) % 2
        self.policy = POLICIES[seed % len(POLICIES)]
        self.cluster = StoreCluster(peer_timeout_ms=1500, heartbeat_ms=200)
        self.addCleanup(self.cluster.close)
        self.daemon = self.cluster.daemons[self.node]
        path = os.path.join(self.cluster.stores, "points")
        self.page = Page(path)
        self.daemon.variables["ADTOPK_TEST_POINTS"] = path
        self.daemon.programs = {**self.daemon.programs, "adtopkd": os.path.join(
            BUILD, "tests", "integration", "adtopkd-points")}
        self.cluster.start()
        self.bystander = Bystander(self.cluster, [1 - self.node] * 2)
        self.addCleanup(self.bystander.stop)

    def open_job(self, name, homes=HOMES):
        job = Job(self.cluster, BUILD, name, homes, TENSORS, self.policy,
                  before=["gradients random 7"])
        self.addCleanup(job.kill)
        return job.join()

    def sample(self, act, without=()):
        """Points for what happens there."""
        others = COORDINATES if self.node > 0 else set()
        points = [name for function in FUNCTIONS if function not in others.union(without)
                  for name in (function, function + " done")]
        if ONE:
            return [point for point in points if point == ONE]
        return points if LONG else self.draw.sample(points, SAMPLE[act])

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
        wait_for(lambda: self.has_come(point, job), f"the daemon did not come to {point}", seconds=10)

    def has_come(self, point, job):
        """A change is refused while a daemon has just come back: then it is asked for again."""
        come = self.page.fired()
        if not come and function_of(point) in SWITCHES and self.asking[-1].poll() is not None:
            self.ask_policy(job)
        return come

    def reach_stopped(self, point, job="job"):
        self.reach(point, signal.SIGSTOP, job)
        wait_for(lambda: self.state(self.daemon.process) == "T")

    @staticmethod
    def state(process):
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

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
        self.daemon.process.wait(10)
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
        self.saving = True

    def train(self, job):
        """Until it is over; returns the number of steps. Ranks have their next commands early, as
        training has: one that is idle does not notice that its daemon is gone, and others wait for it.
        """
        steps, answers, over = 0, 0, False
        while not over:
            over = self.over
            commands = ["steps 2", "allreduce 100"]
            if self.saving:
                self.saving = False
                commands.append(f"save {self.folder}/{steps}")
                os.mkdir(f"{self.folder}/{steps}")
            for rank in job.ranks:
                rank.send(*commands)
            self.take(job, answers)
            steps, answers = steps + 2, len(commands)
            time.sleep(0.002)
        self.take(job, answers)
        return steps

    @staticmethod
    def take(job, answers):
        for rank in job.ranks:
            for _ in range(answers):
                rank.answer()

    def disturb(self, seed):
        plan = [(act, point) for act, without in ((self.kill, ()), (self.stop, RETURNS),
                                                  (self.stop_rank, RETURNS))
                for point in self.sample(act.__name__, without)]
        self.draw.shuffle(plan)
        for act, point in plan:
            with self.subTest(seed=seed, act=act.__name__, point=point):
                try:
                    act(point)
                finally:
                    self.daemon.signal(signal.SIGCONT)
                self.bystander.check()

    def check(self, seed):
        self.open_cluster(seed)
        before = [usage(daemon) for daemon in self.cluster.daemons]
        heap = heap_kb(self.cluster.daemons[1 - self.node])
        self.job = self.open_job("job")
        self.over = self.saving = False
        self.save = self.save_soon
        with tempfile.TemporaryDirectory(dir="/tmp") as self.folder, \
             ThreadPoolExecutor(max_workers=1) as pool:
            training = pool.submit(self.train, self.job)
            try:
                self.disturb(seed)
            finally:
                self.over = True
            steps = training.result()
            got = self.job.steps(1)
        self.assertEqual(got[:3], ("ok", steps + 1, 0))
        self.assertEqual(self.daemon.ask("verify", "job")[0], 0, self.daemon.ask("verify", "job"))
        self.job.end()
        self.settle(before)
        self.assertLess(heap_kb(self.cluster.daemons[1 - self.node]), heap + BASELINE_KB)
        with Cluster(BUILD, 2) as self.cluster:
            self.assertEqual(self.open_job("job").steps(steps + 1), got)

    def settle(self, before):
        """Descriptors and sessions are soon what they were."""
        deadline = time.monotonic() + SOON
        for daemon, old in zip(self.cluster.daemons, before):
            # One more may be that of the question itself.
            while not (usage(daemon)[0] <= old[0] + 1 and usage(daemon)[2] <= old[2]):
                self.assertLess(time.monotonic(), deadline, f"{old} became {usage(daemon)}")
                time.sleep(0.01)

    def test_daemon(self):
        for seed in SEEDS:
            self.check(seed)

    def kill_rank(self, point, before):
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
        self.settle(before)

    def test_rank_killed(self):
        for seed in SEEDS:
            self.open_cluster(seed)
            before = [usage(daemon) for daemon in self.cluster.daemons]
            for point in self.sample("kill_rank", RETURNS | ENDS | OPERATIONS):
                with self.subTest(seed=seed, point=point):
                    self.kill_rank(point, before)
                    self.bystander.check()


if __name__ == "__main__":
    unittest.main()
