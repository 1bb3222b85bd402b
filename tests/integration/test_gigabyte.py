#!/usr/bin/env python3
"""A daemon with 1 GB of residuals is killed in mid-step and started again: how long until its rank is back.

usage: test_gigabyte.py BUILD [unittest's arguments]

Skips (77) without ADTOPK_TEST_LONG=1. The stores of two nodes take 4.4 GB of /dev/shm, and all memory
together 12 GB.
"""
import datetime
import os
import random
import shutil
import sys
import time
import unittest

from build import BUILD
from ranks import Job
from stores import StoreCluster, text

TENSORS = [(f"t{i}", "f32", "list", (8192, 4096)) for i in range(8)]
KILLS = 6
PROMISE = 3  # seconds from the next daemon's start until the ranks of the killed one go on
LOOKS = 0.3  # by which a call may take longer than it is to wait
PUSHES = [f"push {tensor}" for tensor in range(len(TENSORS))]
UNTIL_DONE = "look 60000"  # waits for the step, and does not read its updates


def busy(seconds=0.3):
    """How many times longer than its processor time a loop takes, because of what others do here."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < seconds:
        pass
    return (time.monotonic() - began) / seconds


def log_time(line):
    """When the daemon wrote a line of its log, as time.time() counts."""
    return datetime.datetime.fromisoformat(line.split()[0].replace("Z", "+00:00")).timestamp()


def has_room():
    """For two nodes with their ranks: 5 GB of /dev/shm, and 14 GB of memory in all."""
    with open("/proc/meminfo", encoding="utf-8") as lines:
        available = next(int(line.split()[1]) for line in lines if "MemAvailable" in line) * 1024
    return shutil.disk_usage("/dev/shm").free >= 5e9 and available >= 14e9


def push(job):
    """Pushes all tensors, and lets the ranks wait for the step."""
    for rank in job.ranks:
        rank.send(*PUSHES)
    for rank in job.ranks:
        for _ in PUSHES:
            rank.answer()
    for rank in job.ranks:
        rank.send(UNTIL_DONE)


def step(job):
    """Seconds from the last push to the end of a step."""
    push(job)
    began = time.time()
    await_step(job)
    return time.time() - began


def await_step(job):
    for rank in job.ranks:
        answer = rank.answer()
        if answer != "":
            raise AssertionError(answer)


class Gigabyte(unittest.TestCase):
    """What counts is the worst kill, on a processor of one's own: on a busy one it may take as much longer as
    a loop does. What the step itself takes, which the kill interrupts, does not count."""

    def setUp(self):
        if not has_room():
            self.skipTest("it needs 5 GB of /dev/shm, and 14 GB of memory in all")
        self.cluster = self.enterContext(StoreCluster(log_level="debug"))
        self.job = self.enterContext(Job(self.cluster, BUILD, "gigabyte", [0, 1], TENSORS,
                                         text(density=0.001), before=["gradients random 7"])).join()

    def pushed_again(self, node, began):
        """When the killed node's rank had pushed everything again, by the log of the next daemon."""
        lines = [line for line in self.cluster.daemons[node].log().splitlines()
                 if f"rank {node}: ready -step_end-> ready" in line]
        return next((when for when in map(log_time, lines) if when > began), None)

    def kill(self, node, after):
        """Kills a daemon so long after the last push. Returns how long after the next one's start the rank
        had pushed again, and the step was over; None if it was over before the kill."""
        push(self.job)
        time.sleep(after)
        self.cluster.daemons[node].kill()
        began = time.time()
        self.cluster.restart(node)
        await_step(self.job)
        over, again = time.time(), self.pushed_again(node, began)
        return (again - began, over - began) if again is not None else None

    def test_killed(self):
        draw, plain, times, slow = random.Random(3), [], [], []
        step(self.job)  # it touches all memory first
        while len(times) < KILLS:
            plain.append(step(self.job))
            before = busy()
            took = self.kill(draw.randrange(2), draw.uniform(0, min(plain)))
            if took is not None:
                times.append(took)
                slow.append((before + busy()) / 2)
        self.assertEqual(self.cluster.daemons[0].ask("verify")[0], 0)
        back, over = zip(*times)
        print(f"{KILLS} kills in mid-step with 1 GB of residuals: ranks had pushed again {min(back):.2f} to "
              f"{max(back):.2f} s after the next daemon's start, and the step was over after {min(over):.2f} "
              f"to {max(over):.2f} s; without a kill it takes {min(plain):.2f} to {max(plain):.2f} s. "
              f"Meanwhile everything took {min(slow):.1f} to {max(slow):.1f} times as long as it needs")
        for after, done, factor in zip(back, over, slow):
            self.assertLess(after / factor, PROMISE, (times, slow))
            self.assertLess((done - max(plain)) / factor, PROMISE, (times, slow))

    def test_looks(self):
        """A call looks in time although 1 GB has to be mapped and copied. The last one takes the new memory over."""
        looks, waits = self.job.ranks
        step(self.job)
        for rank in self.job.ranks:
            rank.do(*PUSHES)
        waits.send(UNTIL_DONE)
        self.cluster.daemons[0].kill()
        self.cluster.restart(0)
        slow, took, answer = busy(0.05), [], "pending"
        while answer == "pending":
            began = time.monotonic()
            answer = looks.do("look 5")
            took.append(time.monotonic() - began)
        self.assertEqual(waits.answer(), "")
        self.assertLess(max(took[:-1]) / max(slow, busy()), LOOKS, took)


if __name__ == "__main__":
    if os.environ.get("ADTOPK_TEST_LONG") != "1":
        print("skipped: tests/run --long runs this")
        sys.exit(77)
    unittest.main()
