"""What the tests of adtopk.torch share: two daemons, and the processes of a run of cases.

Import it after interpreter.use(). $ADTOPK_TEST_TORCH names another Python, with another version of torch.
"""
import contextlib
import json
import os
import runpy
import subprocess
import sys
import traceback
import unittest
import weakref

from cluster import Cluster, die_with_parent, free_ports
from interpreter import BUILD

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.environ.get("ADTOPK_TEST_TORCH") or sys.executable
SECONDS = 240

os.environ["OMP_NUM_THREADS"] = "1"  # of ranks, and no thread of this process is missing in them
if PYTHON == sys.executable:
    with contextlib.suppress(ImportError):  # the test that needs it says so
        import torch.distributed  # noqa: F401  # once for all ranks, each of which would take seconds for it


def run(script, cases, environment):
    """Runs a script as a Python of its own would, in a child of this process that has torch already."""
    die_with_parent()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # then subprocess takes the program for started
    for one in list(weakref.finalize._registry):  # those of this test are not the rank's
        one.detach()
    os.environ.update(environment)
    sys.argv[:] = [script, *cases]
    sys.path.insert(0, os.path.dirname(script))
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    weakref.finalize._exitfunc()  # those of the rank: it leaves its jobs
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Ranks:
    """The processes of a run of cases, one for each of `homes`: the numbers of their nodes."""

    def __init__(self, cluster, script, *cases, homes=(0, 1)):
        port = free_ports(1)[0]
        self.processes = [self.start(os.path.join(HERE, script), cases, {
            "RANK": str(rank), "WORLD_SIZE": str(len(homes)), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "ADTOPK_ADDRESS": cluster.address(homes[rank])})
            for rank in range(len(homes))]

    @staticmethod
    def start(script, cases, environment):
        forked = PYTHON == sys.executable
        sys.stdout.flush()
        return subprocess.Popen(
            [PYTHON, script, *cases], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **environment}, restore_signals=not forked,
            preexec_fn=(lambda: run(script, cases, environment)) if forked else die_with_parent)

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
