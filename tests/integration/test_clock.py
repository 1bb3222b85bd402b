#!/usr/bin/env python3
"""Clocks of the day that jump, forth and back, by hours and days: daemons and trainers do not notice.

Each process has a clock of its own (clock.c), which jumps at random moments.

usage: test_clock.py BUILD [unittest's arguments]
"""
import functools
import glob
import json
import mmap
import os
import random
import re
import signal
import struct
import threading
import unittest

from build import BUILD
from ranks import Job
from service import wait_for
from stores import HOMES, TENSORS, StoreCluster, text

CLOCK = os.path.join(BUILD, "tests", "integration", "libtest-clock.so")
HOUR, DAY = 3600, 86400
JUMPS = (-40 * DAY, -DAY, -HOUR, -1, 0, 1, HOUR, DAY, 400 * DAY)
PAUSE_S = 0.01  # between two jumps


class Clock:
    """The clock of the processes that have these variables: `ahead` seconds ahead."""

    def __init__(self, path):
        with open(path, "wb") as file:
            file.write(bytes(8))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 8)
        self.variables = {"LD_PRELOAD": CLOCK, "ADTOPK_TEST_CLOCK": path}

    def jump(self, ahead):
        self.map[:] = struct.pack("=q", int(ahead))


class Clocks(unittest.TestCase):
    def setUp(self):
        self.cluster = StoreCluster(residual_ttl_s=60)
        self.addCleanup(self.cluster.close)
        self.traces = os.path.join(self.cluster.directory, "traces")
        os.mkdir(self.traces)
        self.cluster.settings["trace_folder"] = self.traces
        self.clocks = [Clock(os.path.join(self.cluster.directory, f"clock{number}")) for number in range(3)]
        for daemon, clock in zip(self.cluster.daemons, self.clocks):
            daemon.variables.update(clock.variables)
        self.cluster.start()

    def open(self, name, policy=None):
        """Its trainers share the third clock."""
        job = Job(self.cluster, BUILD, name, HOMES, TENSORS, policy or text(),
                  before=["gradients random 7"], variables=self.clocks[2].variables)
        self.addCleanup(job.kill)
        return job.join()

    def jumping(self):
        """Clocks jump until the test ends, or the event is set."""
        stop, draw = threading.Event(), random.Random(11)

        def jump():
            while not stop.wait(PAUSE_S):
                draw.choice(self.clocks).jump(draw.choice(JUMPS))

        thread = threading.Thread(target=jump)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)
        return stop

    def dates(self, daemon):
        return {line[:10] for line in daemon.log().splitlines()}

    def test_everything_goes_on(self):
        """While a job trains, its policy changes, an operator asks for much, a daemon takes its
        configuration anew, and daemons are killed and stopped."""
        ends = ((0, "kill"), (1, "stop"), (0, "stop"), (1, "kill"))
        wanted = self.train("steady", [lambda: None for _ in ends])
        began = [len(daemon.log()) for daemon in self.cluster.daemons]
        self.jumping()

        def disturb(node, end):
            daemon = self.cluster.daemons[node]
            taken = daemon.log().count("the configuration has been taken")
            daemon.signal(signal.SIGHUP)
            wait_for(lambda: daemon.log().count("the configuration has been taken") > taken)
            self.cluster.ask(node, "trace", "jumps")
            self.cluster.ask(node, "verify", "jumps")
            getattr(daemon, end)()
            self.cluster.restart(node)
            self.cluster.wait_connected()

        self.assertEqual(self.train("jumps", [functools.partial(disturb, *end) for end in ends]),
                         wanted)
        for daemon, before in zip(self.cluster.daemons, began):
            self.assertGreater(len(self.dates(daemon)), 1)  # the clocks did jump
            self.assertNotRegex(daemon.log()[before:], "is stuck")
        self.cluster.wait_empty()

    def train(self, name, disturbances):
        """Some steps beside each of them: a rank that had all of its steps would not return."""
        job = self.open(name)
        for disturb in disturbances:
            for rank in job.ranks:
                rank.send("steps 40")
            disturb()
            self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
        answer = job.steps(150)
        job.end()
        return answer

    def test_stores(self):
        """A store is kept for residual_ttl by a clock that nobody sets: neither a jump of days forward
        makes it too old, nor one back keeps it for ever."""
        job = self.open("left")
        job.steps(2)
        daemon = self.cluster.daemons[0]
        for ahead in (3 * DAY, -3 * DAY):
            daemon.kill()
            self.clocks[0].jump(ahead)
            self.cluster.restart(0)
            self.assertEqual(job.steps(2)[0], "ok")
        daemon.kill()
        job.kill()
        daemon.variables["ADTOPK_RESIDUAL_TTL_S"] = "1"
        self.clocks[0].jump(-300 * DAY)
        self.cluster.restart(0)
        wait_for(lambda: not self.cluster.files(0))
        self.assertRegex(daemon.log(), "left/0, .*removed")

    def test_traces(self):
        """Of jobs that fail while clocks jump: the newest are kept."""
        self.jumping()
        for number in range(10):
            job = self.open(f"fails{number}")
            job.steps(2)
            job.ranks[0].kill()
            job.kill()
            for daemon in self.cluster.daemons:
                wait_for(lambda d=daemon, n=number: re.search(rf"trace of job [^ ]*fails{n}/0 is", d.log()))
        left = set()
        for path in glob.glob(f"{self.traces}/trace-*.json"):
            with open(path, encoding="utf-8") as file:
                left.add(json.load(file)["name"])
        self.assertLessEqual({"fails7", "fails8", "fails9"}, left)


if __name__ == "__main__":
    unittest.main()
