#!/usr/bin/env python3
"""Programs that were built with earlier headers, run with this library and this daemon.

usage: test_old_client.py BUILD [unittest's arguments]; skips (77) where the kept programs cannot run:
on other processors, and with a sanitized library.
"""
import os
import platform
import subprocess
import sys
import unittest

from build import BUILD
from cluster import Cluster

DATA = os.path.join(os.path.dirname(__file__), "..", "data")
PROGRAMS = [os.path.join(DATA, f"client-1.0.{platform.machine()}")]


class Old(unittest.TestCase):
    def test_trains(self):
        environment = {**os.environ, "LD_LIBRARY_PATH": os.path.join(BUILD, "client")}
        with Cluster(BUILD) as cluster:
            for program in PROGRAMS:
                done = subprocess.run([program, cluster.address(0)], env=environment, timeout=60,
                                      capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, r"^trained with version 1\.\d+\.\d+\n$")
            cluster.stop()


if __name__ == "__main__":
    if not os.path.exists(PROGRAMS[0]):
        sys.exit(77)
    unittest.main()
