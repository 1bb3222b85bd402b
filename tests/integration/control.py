"""What tests of adtopkctl share: two daemons, a job that trains meanwhile, and what adtopkctl
answers.
"""
import json
import os
import subprocess
import threading
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent
from ranks import Job

NOBODY = 65534
TENSORS = [("embed.weight", "f32", "both", (64, 64)), ("layer.weight", "f32", "both", (32, 64)),
           ("layer.bias", "f32", "dense", (64,))]
REFUSED = 1
DENIED = 4
UNKNOWN = 6


def user(uid, groups=()):
    """What a child runs to become this user, and no more than a member of these groups."""
    def become():
        die_with_parent()
        os.setgroups(list(groups))
        os.setgid(uid)
        os.setuid(uid)
    return become


class Training(threading.Thread):
    """Trains a job in the background, so that changes find steps in flight. Its ranks pause in each step,
    as if they computed: the processor is for the test."""

    def __init__(self, job):
        super().__init__()
        self.job = job
        self.stopping = threading.Event()
        self.problem = None

    def run(self):
        try:
            self.job.each("pace 2")
            while not self.stopping.is_set():
                status, _, withdrawn, _ = self.job.steps(3)
                if status != "ok" or withdrawn:
                    raise AssertionError(f"{status}, {withdrawn} steps withdrawn")
            self.job.each("pace 0")
        except Exception as problem:  # told by __exit__() in the test's thread
            self.problem = problem

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stopping.set()
        self.join()
        if kind is None and self.problem is not None:
            raise self.problem


class Daemons(unittest.TestCase):
    """Two daemons for all tests of a class, and a name for the job of each."""

    settings = {}
    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2, settings=cls.settings)
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        os.chmod(cls.cluster.directory, 0o755)

    def setUp(self):
        Daemons.serial += 1
        self.name = f"job{Daemons.serial}"

    def tearDown(self):
        for daemon in self.cluster.daemons:
            self.assertIsNone(daemon.process.poll(), daemon.log_tail())
            self.assertEqual(daemon.ask("peers")[0], 0)

    def joined(self, homes=(0, 1), run="0", policy="-"):
        job = Job(self.cluster, BUILD, self.name, list(homes), TENSORS, policy, run)
        self.addCleanup(job.kill)
        return job.join()

    def ask(self, *command, node=0, become=None, stdin=None, timeout=60):
        """Runs adtopkctl, as another user if `become`; returns (exit status, stdout, stderr)."""
        daemon = self.cluster.daemons[node]
        done = subprocess.run(
            [daemon.programs["adtopkctl"], "--socket", daemon.control, *command], input=stdin or "",
            capture_output=True, text=True, timeout=timeout, check=False,
            preexec_fn=become or die_with_parent)
        return done.returncode, done.stdout, done.stderr

    def text(self, *command, expected=0, **more):
        """Its text, which fits 80 columns. Jobs of earlier tests may have failed meanwhile."""
        code, out, error = self.ask(*command, **more)
        degraded = {5} if command[0] in ("status", "jobs") else set()
        self.assertIn(code, {expected} | degraded, out + error)
        self.assertLessEqual(max(map(len, out.splitlines()), default=0), 80, out)
        return out

    def document(self, *command, **more):
        code, out, error = self.ask("--json", *command, **more)
        self.assertIn(code, (0, 5), error)
        document = json.loads(out)
        self.assertEqual(document["schema"], 1)
        return document

    def fails(self, expected, *command, words=(), **more):
        code, out, error = self.ask(*command, **more)
        self.assertEqual((code, out), (expected, ""), error)
        self.assertTrue(error.startswith("adtopkctl: "), error)
        for word in words:
            self.assertIn(word, error)

    def need_other_users(self):
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        os.chmod(BUILD, os.stat(BUILD).st_mode | 0o555)
        if self.ask("--version", become=user(NOBODY))[0] != 0:
            self.skipTest("other users cannot run the programs of this build")
