"""What tests of failures share: two daemons, a job that nothing may disturb, and a look at what
each test leaves behind.
"""
import json
import os
import threading
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job, Rank

# After a death others hear of it, and what it cost is free: the promise, a second, and one more for a
# machine that has other things to do. Sanitized daemons promise no time.
SOON = PATIENCE if os.environ.get("ADTOPK_TEST_SANITIZED") else 2.0
TENSORS = [("first", "f32", "both", (16, 32)), ("bias", "f32", "both", (16,)),
           ("last", "f32", "dense", (64, 64))]
STATUS = ("ok nonfinite argument state memory unreachable denied mismatch timeout peer protocol "
          "lost system policy").split()


def text(**document):
    return json.dumps(document, separators=(",", ":"))


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def usage(daemon):
    """Descriptors, KiB of shared memory, sessions."""
    pid = daemon.process.pid
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # before the question, which is one for a while
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        shared = next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))
    sessions = json.loads(daemon.ask("--json", "status")[1])["sessions"]
    return descriptors, shared, sessions


class Bystander:
    """A job that trains on in the background; whatever else happens must not disturb it. Between two
    looks it takes some steps, and leaves most of the processor to the test."""

    def __init__(self, cluster, homes):
        self.job = Job(cluster, BUILD, "bystander", homes, TENSORS, text(on_peer_loss="wait"))
        self.stopping = threading.Event()
        self.thread = None
        self.done = 0
        self.problem = None
        try:
            self.job.join()
        except BaseException:
            self.job.kill()
            raise
        self.go_on()

    def go_on(self):
        self.stopping.clear()
        self.thread = threading.Thread(target=self.train)
        self.thread.start()

    def pause(self):
        self.stopping.set()
        self.thread.join()

    def train(self):
        try:
            while not self.stopping.is_set():
                status, self.done, withdrawn, _ = self.job.steps(5)
                if status != "ok" or withdrawn:
                    raise AssertionError(f"{status}, {withdrawn} steps withdrawn")
                time.sleep(0.04)
        except Exception as problem:  # told by check() in the test's thread
            self.problem = problem

    def check(self):
        """It has gone on since the last look."""
        before, deadline = self.done, time.monotonic() + PATIENCE
        while self.done == before and self.problem is None:
            if time.monotonic() > deadline:
                raise AssertionError("the job beside stands still")
            time.sleep(0.01)
        if self.problem is not None:
            raise self.problem

    def stop(self):
        self.pause()
        self.job.kill() if self.problem else self.job.end()


class Scene(unittest.TestCase):
    """Two daemons, a job beside, and a look at what is left behind after each test."""

    serial = 0
    settings = {}
    keys = False

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2, settings=cls.settings, keys=cls.keys).start()
        cls.addClassCleanup(cls.cluster.close)
        cls.bystander = Bystander(cls.cluster, [0, 1])
        cls.addClassCleanup(cls.bystander.stop)
        cls.bystander.check()  # from its first steps on it has what it will have

    @classmethod
    def tearDownClass(cls):
        cls.bystander.check()
        cls.bystander.stop()
        cls.cluster.stop()  # with exit status 0: sanitizers have found nothing

    def setUp(self):
        Scene.serial += 1
        self.name = f"job{Scene.serial}"
        self.before = [usage(daemon) for daemon in self.cluster.daemons]

    def tearDown(self):
        self.assert_clean()
        self.bystander.check()

    def socket_path(self, node=0):
        return self.cluster.daemons[node].socket

    def rank(self, node, rank, world=2, policy="-", **options):
        one = Rank(BUILD, self.cluster.address(node), self.name, rank, world, policy, **options)
        self.addCleanup(one.kill)
        return one

    def ranks(self, homes, policy="-"):
        return [self.rank(node, rank, len(homes), policy) for rank, node in enumerate(homes)]

    def joined(self, homes, policy="-", tensors=None):
        job = Job(self.cluster, BUILD, self.name, homes, tensors or TENSORS, policy)
        self.addCleanup(job.kill)
        return job.join()

    def assert_clean(self, within=PATIENCE):
        """Descriptors, shared memory and sessions become what they were before the test."""
        deadline = time.monotonic() + within
        self.doCleanups()
        while True:
            after = [usage(daemon) for daemon in self.cluster.daemons]
            if all(now <= then + (256 if what == 1 else 0)
                   for old, new in zip(self.before, after)
                   for what, (then, now) in enumerate(zip(old, new))):
                return
            self.assertLess(time.monotonic(), deadline, f"{self.before} became {after}")
            time.sleep(0.02)

    def assert_error(self, rank, name, *words, timeout=None):
        got, sentence = rank.error(*([] if timeout is None else [timeout]))
        self.assertEqual(got, name, sentence)
        for word in words:
            self.assertIn(word, sentence)
