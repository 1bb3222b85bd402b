#!/usr/bin/env python3
"""adtopk.torch in DistributedDataParallel: two processes on two nodes, beside gloo's own exchange.

usage: test_torch.py BUILD [unittest's arguments]

The cases are in ddp_cases.py, whose numbers are compared here. $ADTOPK_TEST_TORCH names another Python,
with another version of torch, that runs them.
"""
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import interpreter

interpreter.use("numpy", "torch")

from cluster import Cluster, die_with_parent, free_ports  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.environ.get("ADTOPK_TEST_TORCH") or sys.executable
SECONDS = 240
SOON = 0.5  # seconds in which a signal ends any wait

# The largest number that a case may give. 0 where nothing is rounded twice: two ranks have one sum.
LIMITS = {
    "one_bucket": 1e-6, "buckets_are_rebuilt": 1e-6, "adamw": 1e-6, "accumulation": 1e-6,
    "bucket_view": 1e-6, "static_graph": 1e-6, "clipping": 1e-6, "join": 1e-6, "unused_nowhere": 1e-6,
    "unused_on_one_rank": 1e-6, "unused_on_all_ranks": 1e-6, "odd_parameters": 1e-6,
    "channels_last": 1e-6, "channels_last_fibres": 0, "two_models": 0, "ranks_are_equal": 0,
    "data_loader_workers": 0, "lines_of_the_readme": 0, "refusals": 0, "another_model": 0, "names": 0,
    "unused_keeps_its_mass": 1e-5, "loss_scale_is_halved": 1e-5, "overflow_in_the_last_bucket": 1e-6,
    "resumed_on_each_rank": 1e-5, "resumed_from_one_file": 1e-5, "resumed_in_16_bits": 1e-5,
    "scaler_skips": 0, "scales_differ": 0, "process_groups": 1e-6,
    "bfloat16": 0.05, "float16": 0.01}


class Ranks:
    """The two processes of a run of cases."""

    def __init__(self, cluster, *cases, homes=(0, 1)):
        port = free_ports(1)[0]
        self.processes = [subprocess.Popen(
            [PYTHON, os.path.join(HERE, "ddp_cases.py"), *cases], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port), "ADTOPK_ADDRESS": cluster.address(homes[rank]),
                 "OMP_NUM_THREADS": "1"})
            for rank in (0, 1)]

    def __enter__(self):
        return self.processes

    def __exit__(self, *unused):
        for process in self.processes:
            process.kill()
            process.communicate()


class Hook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(interpreter.BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def test_cases(self):
        with Ranks(self.cluster) as processes:
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        reports = {one["case"]: one for one in map(json.loads, outputs[0][0].splitlines())}
        self.assertEqual(set(reports), set(LIMITS))
        for name, report in reports.items():
            with self.subTest(name):
                if "skipped" in report:
                    self.skipTest(report["skipped"])
                self.assertLessEqual(report["worst"], LIMITS[name])

    def test_ranks_of_one_node(self):
        """They have one residual, which is saved once."""
        cases = [name for name in LIMITS if name.startswith("resumed")] + ["join", "unused_on_one_rank"]
        with Ranks(self.cluster, *cases, homes=(1, 1)) as processes:
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        for report in map(json.loads, outputs[0][0].splitlines()):
            self.assertLessEqual(report["worst"], LIMITS[report["case"]], report)

    def waiting(self, processes):
        for process in processes:
            self.assertEqual(process.stdout.readline(), "waits\n")
        time.sleep(0.3)

    def test_interrupt(self):
        """Ctrl-C ends a backward pass that waits for another rank."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), Ranks(self.cluster, "wait_for_ever") as processes:
                self.waiting(processes)
                began = time.monotonic()
                processes[0].send_signal(number)
                output, errors = processes[0].communicate(timeout=60)
                self.assertNotEqual(processes[0].returncode, 0)
                if number == signal.SIGINT:
                    self.assertLess(float(output) - began, SOON)
                    self.assertIn("KeyboardInterrupt", errors)

    def test_other_rank_dies(self):
        """The sentence of the daemon reaches the user of DDP."""
        with Ranks(self.cluster, "wait_for_ever") as processes:
            self.waiting(processes)
            processes[1].kill()
            errors = processes[0].communicate(timeout=60)[1]
            self.assertNotEqual(processes[0].returncode, 0)
            self.assertRegex(errors, "rank 1|node 1")


if __name__ == "__main__":
    unittest.main()
