"""Fail points (points.h): what arms them, and what their tests share."""
import mmap
import os
import random
import re
import struct
import sys
import time
import unittest

from build import BUILD
from scene import SANITIZED
from stores import text

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1" and not SANITIZED
SEED = int(os.environ.get("ADTOPK_TEST_SEED", "1"))
ONE = os.environ.get("ADTOPK_TEST_POINT")
SEEDS = range(SEED, SEED + 5) if LONG else [SEED]
POLICIES = [text(), text(momentum=0.9, values="f32"), text(residual="bf16", dense_values="bf16"),
            text(scope="rank", sparse_collective="balanced"),
            text(sparsifier="topk", sparse_collective="hierarchical", values="int8")]


def functions_of(name):
    """The functions of a table, such as points_daemon.c, in its order."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(path, encoding="utf-8") as source:
        return re.findall(r"^POINT(?:_OF)?\((?:\w+, )?(\w+),", source.read(), re.MULTILINE)


def function_of(point):
    return point.removesuffix(" done")


def is_stopped(process):
    with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


class Page:
    """What points.c reads: the armed point."""

    def __init__(self, path):
        self.path = path
        with open(path, "w+b") as file:
            file.truncate(4096)
            self.page = mmap.mmap(file.fileno(), 4096)

    def arm(self, point, number, count):
        """The count-th time that the program comes to the point, it sends itself the signal."""
        self.page[:64] = struct.pack("60si", point.encode(), number)
        self.page[64:68] = struct.pack("i", count)

    def fired(self):
        return struct.unpack("i", self.page[64:68])[0] == 0


class PointsCase(unittest.TestCase):
    """A job whose programs have fail points."""

    def setUp(self):
        self.freed = []

    def settle(self, watch):
        self.freed.append(watch.settle())

    def tearDown(self):
        if self.freed:
            print(f"\n{self.id()}: all was free after at most {max(self.freed) * 1000:.0f} ms "
                  f"({len(self.freed)} looks)", file=sys.stderr)

    def draw_by(self, seed):
        self.draw = random.Random(seed)
        self.node = (seed + 1) % 2
        self.policy = POLICIES[seed % len(POLICIES)]

    def choose(self, functions, count):
        """A sample of the points before and after these functions; in a long run all."""
        points = [name for function in functions for name in (function, function + " done")]
        if ONE:
            return [point for point in points if point == ONE]
        return points if LONG else self.draw.sample(points, count)

    def point_daemon(self, daemon, folder):
        """This daemon gets fail points; returns its page."""
        page = Page(os.path.join(folder, "points"))
        daemon.variables["ADTOPK_TEST_POINTS"] = page.path
        daemon.programs = {**daemon.programs, "adtopkd": os.path.join(
            BUILD, "tests", "integration", "adtopkd-points")}
        return page


class Training:
    """A job that trains in steps of two until it is told that it is over."""

    def __init__(self, job):
        self.job = job
        self.over = False
        self.more = []  # commands that are due once
        self.steps = 0  # that are over

    def run(self):
        """Returns the number of steps."""
        while not self.over:
            more, self.more = self.more, []
            self.job.each("steps 2", "allreduce 100", *more)
            self.steps += 2
            time.sleep(0.002)
        return self.steps
