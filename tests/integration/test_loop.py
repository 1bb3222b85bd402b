#!/usr/bin/env python3
"""The daemon's loop serves everybody: what one user does must not keep the others waiting.

Each act has a daemon of its own, whose `status` then says how much CPU time the longest turn of its
loop took. The promise is 20 ms, and that the sessions of a process that dies are free within 1 s.

usage: test_loop.py BUILD [unittest's arguments]
"""
import os
import resource
import subprocess
import sys
import time
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent

HOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hog.py")
LONGEST_MS = 20
LARGE = 1 << 29  # elements of a tensor
SESSIONS = 1024 if os.geteuid() == 0 else 768  # the daemon's limit, and that of one user
DESCRIPTORS = 8192  # of the daemon, which serves fewer sessions if it has fewer
SANITIZED = "ADTOPK_TEST_SANITIZED" in os.environ  # no promise of time then


class Hog:
    """A process that asks a daemon for much (hog.py), as another user or as this one."""

    def __init__(self, daemon, act, number, uid=-1):
        self.process = subprocess.Popen(
            [sys.executable, HOG, daemon.socket, str(uid), act, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent)

    def wait(self):
        line = self.process.stdout.readline()
        if line != "done\n":
            raise AssertionError(f"the hog says {line!r}")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class LoopTest(unittest.TestCase):
    def setUp(self):
        self.hogs = []
        self.cluster = Cluster(BUILD, nodes=1).start()
        self.daemon = self.cluster.daemons[0]

    def tearDown(self):
        for hog in self.hogs:
            hog.kill()
        self.cluster.close()

    def hog(self, *arguments, **options):
        self.hogs.append(Hog(self.daemon, *arguments, **options))
        return self.hogs[-1]

    def kill(self, hog):
        self.hogs.remove(hog)
        hog.kill()

    def freed(self, before):
        """Waits until no session is left; seconds since `before`."""
        while self.cluster.status(0)["sessions"] > 0:
            if time.monotonic() - before > 10:
                self.fail("sessions of a dead process stay")
        return time.monotonic() - before

    def check_turns(self):
        longest_ms = self.cluster.status(0)["loop"]["longest_turn_us"] / 1000
        print(f"# {self.id().split('.')[-1]}: longest turn {longest_ms:.1f} ms", file=sys.stderr)
        if not SANITIZED:
            self.assertLessEqual(longest_ms, LONGEST_MS)

    def test_idle_sessions_die(self):
        hog = self.hog("sessions", SESSIONS)
        hog.wait()
        self.assertEqual(self.cluster.status(0)["sessions"], SESSIONS)
        before = time.monotonic()
        self.kill(hog)
        if SANITIZED:
            self.freed(before)
        else:
            time.sleep(1 - (time.monotonic() - before))
            self.assertEqual(self.cluster.status(0)["sessions"], 0)
        self.check_turns()


    def test_large_results(self):
        if available() < 3 * LARGE * 4:
            self.skipTest("needs 6 GiB of memory")
        for act in ("dense", "list"):  # 1 GiB of gradients; 2 GiB of updates, or room for them
            hog = self.hog(act, LARGE)
            hog.wait()
            self.kill(hog)
            self.freed(time.monotonic())
        self.check_turns()


def available():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line[:12] == "MemAvailable")


def raise_limit():
    """Daemons inherit it. Without the right to raise it there are fewer sessions."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted >= DESCRIPTORS


if __name__ == "__main__":
    if not raise_limit():
        SESSIONS = 128
    unittest.main(verbosity=2)
