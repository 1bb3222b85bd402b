#!/usr/bin/env python3
"""The trail of changes: nobody can drown it, and whoever is turned away leaves a line.

usage: test_audit.py BUILD [unittest's arguments]
"""
import contextlib
import os
import re
import socket
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent
from rawclient import field
from ranks import Job
from service import wait_for

REFUSALS = 40000 if "ADTOPK_TEST_LONG" in os.environ else 10000
CHANGES = 10
STRANGER = 4002
RUBBISH = 1000
TENSORS = [("a", "f32", "both", (16, 32))]
DRAIN = field(1, 1) + field(11, b"")  # of a ControlRequest


def as_stranger(work):
    """Runs work() in a process of another user; returns its id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            die_with_parent()
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def ask_often(path, count):
    """Asks for what is refused, again and again: the daemon hangs up after each."""
    for _ in range(count):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.connect(path)
            with contextlib.suppress(ConnectionError):
                one.send(DRAIN)
                one.recv(4096)


def counted(log, culprit):
    """Refusals of the culprit in the log: lines, and what they say of lines that were left out."""
    left_out = re.findall(r"refused: and (\d+) more lines of this kind", log)
    return len(re.findall(rf"refused: refused .*{culprit}", log)) + sum(map(int, left_out))


class Audit(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(BUILD, nodes=1)
        os.chmod(self.cluster.directory, 0o755)
        self.cluster.start()
        self.addCleanup(self.cluster.close)
        self.daemon = self.cluster.daemons[0]

    @unittest.skipUnless(os.getuid() == 0, "only root can be two users")
    def test_changes_under_a_flood_of_refusals(self):
        with Job(self.cluster, BUILD, "trained", [0], TENSORS) as job:
            job.join().steps(2)
            flood = as_stranger(lambda: ask_often(self.daemon.control, REFUSALS))
            wait_for(lambda: self.daemon.log().count("may not drain") >= 100)  # its budget is spent
            for change in range(CHANGES):
                job.steps_while(lambda number=change: self.cluster.ask(
                    0, "policy", "set", "trained", f"density=0.{number + 1:02}"))
                self.assertEqual(self.daemon.ask("drain", *(["--undo"] if change % 2 else []))[0],
                                 0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(flood, 0)[1]), 0)
        wait_for(lambda: counted(self.daemon.log(), "uid 4002, pid") == REFUSALS)
        log = self.daemon.log()
        self.assertEqual(len(re.findall(r"change: uid 0, pid \d+ amends the policy", log)), CHANGES)
        self.assertEqual(len(re.findall(r"change: policy version \d+ of job \S+ holds from step", log)),
                         CHANGES)
        self.assertEqual(len(re.findall(r"change: (?:draining|new ranks are taken)", log)), CHANGES)

    def test_rubbish_leaves_lines(self):
        for _ in range(RUBBISH):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
                one.connect(self.daemon.socket)
                one.send(b"\xff" * 100)
                with contextlib.suppress(ConnectionError):
                    one.recv(4096)
        culprit = f"uid {os.getuid()}, process {os.getpid()}: a malformed"
        wait_for(lambda: counted(self.daemon.log(), culprit) == RUBBISH)
        self.assertGreaterEqual(self.daemon.log().count(culprit), 100)

    def test_a_failed_job(self):
        job = Job(self.cluster, BUILD, "fails", [0, 0], TENSORS)
        self.addCleanup(job.kill)
        job.join().steps(2)
        job.ranks[1].kill()
        wait_for(lambda: re.search(r"change: job \d+:fails/0 has failed: rank 1 is gone",
                                   self.daemon.log()))


if __name__ == "__main__":
    unittest.main()
