"""What the tests of adtopk.torch share: two daemons, and the processes of a run of cases.

Import it after interpreter.use(). $ADTOPK_TEST_TORCH names another Python, with another version of torch.
"""
import json
import os
import subprocess
import sys
import unittest

from cluster import Cluster, die_with_parent, free_ports
from interpreter import BUILD

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.environ.get("ADTOPK_TEST_TORCH") or sys.executable
SECONDS = 240


class Ranks:
    """The processes of a run of cases, one for each of `homes`: the numbers of their nodes."""

    def __init__(self, cluster, script, *cases, homes=(0, 1)):
        port = free_ports(1)[0]
        self.processes = [subprocess.Popen(
            [PYTHON, os.path.join(HERE, script), *cases], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(len(homes)), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "ADTOPK_ADDRESS": cluster.address(homes[rank]),
                 "OMP_NUM_THREADS": "1"})
            for rank in range(len(homes))]

    def __enter__(self):
        return self.processes

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.communicate()


class TorchScene(unittest.TestCase):
    """Two daemons. `script` has the cases."""

    script = ""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def ranks(self, *cases, **options):
        return Ranks(self.cluster, self.script, *cases, **options)

    def reports(self, *cases, **options):
        """What rank 0 says of each case, by its name."""
        with self.ranks(*cases, **options) as processes:
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertFalse(any(process.returncode for process in processes), outputs)
        lines = [line for line in outputs[0][0].splitlines() if line.startswith('{"case"')]  # others print, too
        return {one["case"]: one for one in map(json.loads, lines)}

    def compare(self, limits, **options):
        """Runs all cases; none may give more than its limit."""
        reports = self.reports(**options)
        self.assertEqual(set(reports), set(limits))
        for name, report in reports.items():
            with self.subTest(name):
                if "skipped" in report:
                    self.skipTest(report["skipped"])
                self.assertLessEqual(report["worst"], limits[name])
