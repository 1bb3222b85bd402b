"""What tests of failures share: two daemons, a job that nothing may disturb, and a look at what
each test leaves behind.
"""
import contextlib
import json
import os
import threading
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job, Rank

SANITIZED = bool(os.environ.get("ADTOPK_TEST_SANITIZED"))  # such daemons promise neither times nor sizes
# After a death others hear of it: the promise, a second, and one more for a machine that has other things
# to do.
SOON = PATIENCE if SANITIZED else 2.0
BASELINE_KB = 32 << 10  # by which a daemon's private memory may grow, whatever happens
# What it cost is free then. A look that begins later and still finds it fails.
FREE_SECONDS = PATIENCE if SANITIZED else 1.0
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


def status_kb(daemon, *names):
    """What the kernel tells of a daemon's memory."""
    with open(f"/proc/{daemon.process.pid}/status", encoding="utf-8") as status:
        told = dict(line.split(":", 1) for line in status)
    return [int(told[name].split()[0]) for name in names]


def heap_kb(daemon):
    """Private memory of a daemon: what it shares with ranks goes with their jobs."""
    return status_kb(daemon, "RssAnon")[0]


def descriptors_of(daemon):
    """Without /dev/null, which libuv opens once more when the daemon first looks for a peer that is down."""
    folder, count = f"/proc/{daemon.process.pid}/fd", 0
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # the daemon has closed it meanwhile
            count += os.readlink(f"{folder}/{name}") != "/dev/null"
    return count


def sessions_of(daemon):
    return json.loads(daemon.ask("--json", "status")[1])["sessions"]


def usage(daemon):
    """Descriptors, KiB of shared memory, sessions."""
    descriptors = descriptors_of(daemon)  # before the question, which is one for a while
    return descriptors, status_kb(daemon, "RssShmem")[0], sessions_of(daemon)


class Watch:
    """What the daemons of a cluster have at rest, and whether they have no more than that soon after
    something has happened. stores: also no store of a job whose name begins so."""

    STABLE_SECONDS = 0.5  # for which nothing changes at rest

    def __init__(self, cluster, shared_kb=256, stores=None):
        self.cluster, self.shared_kb, self.stores = cluster, shared_kb, stores
        cluster.wait_connected()
        deadline, self.before = time.monotonic() + PATIENCE, self.all()
        while True:
            time.sleep(self.STABLE_SECONDS)
            now = self.all()
            if [one[0] for one in now] == [one[0] for one in self.before]:
                break
            if time.monotonic() > deadline:
                raise AssertionError(f"the daemons do not come to rest: {self.before} became {now}")
            self.before = now
        self.heaps = [heap_kb(daemon) for daemon in cluster.daemons]

    def all(self):
        return [usage(daemon) for daemon in self.cluster.daemons]

    def left(self):
        """What is there beside; empty: nothing. A look opens no session before all else is as it was."""
        told = []
        for daemon, (descriptors, shared, _) in zip(self.cluster.daemons, self.before):
            now = descriptors_of(daemon), status_kb(daemon, "RssShmem")[0]
            stores = [name for name in self.cluster.files(daemon.node) if self.stores in name] if self.stores else []
            if now[0] > descriptors or now[1] > shared + self.shared_kb or stores:
                told.append(f"node {daemon.node}: {descriptors, shared} became {now}, stores {stores}")
        if not told:
            told = [f"node {daemon.node}: {before} sessions became {now}"
                    for daemon, (*_, before) in zip(self.cluster.daemons, self.before)
                    if (now := sessions_of(daemon)) > before]
        return told

    def settle(self):
        """Waits until nothing is left, at most FREE_SECONDS. Returns how long that took."""
        since = time.monotonic()
        while True:
            looked = time.monotonic() - since
            left = self.left()
            if not left:
                break
            if looked > FREE_SECONDS:
                raise AssertionError(f"after {looked:.2f} s there are left: {left}")
            time.sleep(0.02)
        for daemon, before in zip(self.cluster.daemons, self.heaps):
            if heap_kb(daemon) > before + BASELINE_KB and not SANITIZED:
                raise AssertionError(
                    f"node {daemon.node} has {heap_kb(daemon)} kB of private memory, and had {before}")
        return looked


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
