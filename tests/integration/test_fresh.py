#!/usr/bin/env python3
"""deploy/quickstart in a fresh copy of the sources, where all packages are installed: within two minutes on
two cores it has built adtopk and trained a model. test_guide.py runs it with the packages' installation.

usage: test_fresh.py BUILD [unittest's arguments]; in a long run only.

What other programs take of the processors is told. Where it is more than a twentieth, the time is only
printed.
"""
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from build import BUILD

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
SECONDS, CORES = 120, 2
OTHERS = 0.05  # the share of the processors that other programs may take
MADE = (".git", ".cuda", ".torch", ".tools", "build", "quickstart-out", "study-out", "__pycache__")


def no_sources(folder, names):
    """What a clone of the sources does not have."""
    return [name for name in names if name in MADE or os.path.join(folder, name) == BUILD]


def busy_seconds():
    """Of all processors together, since the machine began."""
    with open("/proc/stat", encoding="ascii") as text:
        user, nice, system, _, _, interrupts, softirqs, stolen = map(int, text.readline().split()[1:9])
    return (user + nice + system + interrupts + softirqs + stolen) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Fresh(unittest.TestCase):
    def test_two_minutes(self):
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as folder:
            sources = os.path.join(folder, "adtopk")
            shutil.copytree(ROOT, sources, symlinks=True, ignore=no_sources)
            subprocess.run([os.path.join(sources, "deploy/setup"), "build"], check=True)
            busy, own, began = busy_seconds(), own_seconds(), time.monotonic()
            cores = sorted(os.sched_getaffinity(0))[:CORES]
            done = subprocess.run(["taskset", "--cpu-list", ",".join(map(str, cores)), "deploy/quickstart"],
                                  cwd=sources, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False,
                                  env={**os.environ, "CCACHE_DISABLE": "1"})
            took, own = time.monotonic() - began, own_seconds() - own
            others = (busy_seconds() - busy - own) / took / len(os.sched_getaffinity(0))
        self.assertEqual(done.returncode, 0, done.stdout)
        print(f"built and trained in {took:.0f} s, {own:.0f} s of processor; "
              f"others took {100 * others:.0f}% of the processors", flush=True)
        if others <= OTHERS:
            self.assertLessEqual(took, SECONDS)


if __name__ == "__main__":
    if "ADTOPK_TEST_LONG" not in os.environ:
        print("skipped: in a long run only")
        sys.exit(77)
    unittest.main()
