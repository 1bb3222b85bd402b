#!/usr/bin/env python3
"""Trainings with PyTorch whose ranks or daemons are killed.

usage: test_restarts.py BUILD [unittest's arguments]

The cases are in restart_cases.py.
"""
import json
import os
import re
import tempfile
import time
import unittest

import interpreter

interpreter.use("numpy", "torch")

from cluster import Cluster  # noqa: E402
from interpreter import BUILD  # noqa: E402
from torchranks import SECONDS, Ranks  # noqa: E402

SCRIPT = "restart_cases.py"
TOLD = 60  # seconds in which each rank has an exception, also on a busy machine; the limits are 10


class Restarts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.environ["ADTOPK_TEST_FOLDER"] = self.folder

    def cluster(self, keeps=False):
        """Two daemons. keeps: their stores outlive them."""
        cluster = Cluster(BUILD, nodes=2)
        self.addCleanup(cluster.close)
        for daemon in cluster.daemons if keeps else ():
            daemon.variables["ADTOPK_STORE_FOLDER"] = os.path.join(self.folder, f"node{daemon.node}")
        return cluster.start()

    def waiting(self, processes):
        for process in processes:
            self.assertEqual(process.stdout.readline(), "waits\n")
        time.sleep(0.3)

    def ended(self, processes):
        """What rank 0 says, after rank 1 was told to go on."""
        processes[1].stdin.write("go on\n")
        processes[1].stdin.flush()
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
        self.assertFalse(any(process.returncode for process in processes), outputs)
        return json.loads(outputs[0][0])["worst"]

    def test_ranks_are_killed(self):
        """All ranks die in mid-step. The next run has the bits of one that nothing disturbed."""
        cluster = self.cluster()
        with Ranks(cluster, SCRIPT, "until_killed") as processes:
            self.waiting(processes)
        with Ranks(cluster, SCRIPT, "resumed") as processes:
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertFalse(any(process.returncode for process in processes), outputs)
        self.assertEqual(json.loads(outputs[0][0])["worst"], 0)

    def test_other_world_sizes(self):
        """Residuals go into a run of more ranks, and of fewer."""
        cluster = self.cluster()
        later = ("goes_on_from_a_dictionary", "goes_on_from_a_folder", "sums_are_not_scaled")
        for before, after in (((0, 1), (0, 1, 1)), ((0, 1, 1), (1,))):
            for homes, cases in ((before, ("saves",)), (after, later)):
                with self.subTest(homes=homes, cases=cases), \
                        Ranks(cluster, SCRIPT, *cases, homes=homes) as processes:
                    outputs = [process.communicate(timeout=SECONDS) for process in processes]
                    self.assertFalse(any(process.returncode for process in processes), outputs)
                    found = [json.loads(line) for line in outputs[0][0].splitlines()]
                    self.assertEqual([one["case"] for one in found], list(cases))
                    self.assertLess(max(one["worst"] for one in found), 1e-5, found)

    def test_daemon_comes_back(self):
        """A training goes on with another daemon, and its bits are those of an undisturbed one."""
        cluster = self.cluster(keeps=True)
        with Ranks(cluster, SCRIPT, "daemon_comes_back") as processes:
            self.waiting(processes)
            cluster.daemons[0].kill()
            time.sleep(1)  # a rank looks for the next daemon for longer than a slice of its waits
            cluster.restart(0)
            self.assertEqual(self.ended(processes), 0)
        deadline = time.monotonic() + TOLD
        while not re.search("node 0(: its daemon was started again| is down)\n", cluster.daemons[1].log()):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)

    def test_daemon_stays_away(self):
        """The rank of the daemon is told its address, the other one which node is gone."""
        cluster = self.cluster()
        with Ranks(cluster, SCRIPT, "daemon_stays_away") as processes:
            self.waiting(processes)
            cluster.daemons[0].kill()
            began = time.monotonic()
            processes[1].stdin.write("go on\n")
            processes[1].stdin.flush()
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertLess(time.monotonic() - began, TOLD)
        self.assertEqual([process.returncode for process in processes], [3, 3], outputs)
        sentences = [output for output, _ in outputs]
        self.assertIn(cluster.daemons[0].socket, sentences[0])
        self.assertIn("node 0", sentences[1])


if __name__ == "__main__":
    unittest.main()
