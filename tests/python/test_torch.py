#!/usr/bin/env python3
"""adtopk.torch in DistributedDataParallel: two processes on two nodes, beside gloo's own exchange.

usage: test_torch.py BUILD [unittest's arguments]

The cases are in ddp_cases.py and bad_cases.py, whose numbers are compared here.
"""
import json
import os
import re
import signal
import subprocess
import time
import unittest

import interpreter

interpreter.use("numpy", "torch")

from adtopk.torch import _methods  # noqa: E402
from torchranks import TorchScene  # noqa: E402

SOON = 5  # seconds in which a signal ends any wait, on a busy machine: it looks ten times a second

# The largest number that a case may give. 0 where nothing is rounded twice: two ranks have one sum.
LIMITS = {
    "one_bucket": 1e-6, "buckets_are_rebuilt": 1e-6, "adamw": 1e-6, "accumulation": 1e-6,
    "bucket_view": 1e-6, "static_graph": 1e-6, "clipping": 1e-6, "join": 1e-6, "unused_nowhere": 1e-6,
    "unused_on_one_rank": 1e-6, "unused_on_all_ranks": 1e-6, "odd_parameters": 1e-6,
    "channels_last": 1e-6, "channels_last_fibres": 0, "two_models": 0, "ranks_are_equal": 0,
    "data_loader_workers": 0, "lines_of_the_readme": 0, "refusals": 0, "another_model": 0, "names": 0,
    "unused_keeps_its_mass": 1e-5, "loss_scale_is_halved": 1e-5, "overflow_in_the_last_bucket": 1e-6,
    "resumed_on_each_rank": 1e-5, "resumed_from_one_file": 1e-5, "resumed_in_16_bits": 1e-5,
    "resumed_from_a_folder": 0,
    "scaler_skips": 0, "scales_differ": 0, "process_groups": 1e-6,
    "bfloat16": 0.05, "float16": 0.01}


MODELS = {"names_of_wrappers": 1e-6, "ignored_parameters": 1e-6, "state_under_another_default": 0}


class Models(TorchScene):
    script = "model_cases.py"

    def test_cases(self):
        self.compare(MODELS)


class Joining(TorchScene):
    """Rank 1 ends or stays away before it says whether it has joined."""

    script = "join_cases.py"

    def fails(self, case, said, error):
        """Rank 0 says this, leaves no job open, and ends with this error."""
        with self.ranks(case) as processes:
            output, errors = processes[0].communicate(timeout=60)
        self.assertEqual(output, said + "0 left open\n", errors)
        # The newest torch puts the rank before each line, and may warn at the end.
        raised = re.findall(r"^(?:\[rank0\]: )?([\w.]+Error: .*)", errors, re.M)
        self.assertRegex(raised[-1], error)

    def test_own_failure(self):
        """What a rank itself has to tell comes before what torch says of the other one."""
        self.fails("no_daemon", "", "^adtopk.*UnreachableError: .*/nowhere/adtopkd.sock")

    def test_rank_that_ended(self):
        self.fails("rank_ends", "joined\n", "^RuntimeError: .*")

    def test_interrupt(self):
        with self.ranks("rank_stays_away") as processes:
            self.assertEqual(processes[0].stdout.readline(), "joined\n")
            time.sleep(0.3)
            began = time.monotonic()
            processes[0].send_signal(signal.SIGINT)
            self.assertEqual(processes[0].stdout.readline(), "0 left open\n")
            self.assertLess(time.monotonic() - began, SOON)
            processes[1].kill()  # operations of gloo outlive their callers
            self.assertIn("KeyboardInterrupt", processes[0].communicate(timeout=60)[1])


class Hook(TorchScene):
    script = "ddp_cases.py"

    def test_cases(self):
        self.compare(LIMITS)

    def test_real_gradients(self):
        """Every element, of an LSTM, a transformer and a convolutional network, is numpy's."""
        self.script = "exact_cases.py"
        self.compare(dict.fromkeys(("lstm", "transformer", "cnn"), 0))

    def test_bad_input(self):
        """Each is an exception on the ranks that it concerns, and what comes after it works."""
        self.script = "bad_cases.py"
        self.compare(dict.fromkeys((
            "no_daemon_on_one_node", "shapes_differ", "types_differ", "names_differ", "a_parameter_more",
            "equal_ids", "gradients_change", "odd_types", "fork_after_opening", "foreign_states",
            "torn_folders", "steps_differ", "refused_by_name", "unfrozen_later", "rules_that_match_nothing",
            "nan_on_one_rank", "full_disk", "saved_in_another_way", "wrong_arguments",
            "broadcasts_of_different_models", "extra_states", "states_are_no_data", "after_closing",
            "optimisers_differ"), 0))

    def test_keys_of_policies(self):
        """The package refuses keys that the daemon does not have, and no others."""
        run = subprocess.run([f"{interpreter.BUILD}/client/adtopkctl/adtopkctl", "policy", "keys", "--json"], check=True,
                             stdout=subprocess.PIPE)
        self.assertEqual({key["name"] for key in json.loads(run.stdout)["keys"]} | {"rules"}, _methods.KEYS)

    def test_ranks_of_one_node(self):
        """They have one residual, which is saved once."""
        cases = [name for name in LIMITS if name.startswith("resumed")] + ["join", "unused_on_one_rank"]
        for name, report in self.reports(*cases, homes=(1, 1)).items():
            self.assertLessEqual(report["worst"], LIMITS[name], report)

    def waiting(self, processes):
        for process in processes:
            self.assertEqual(process.stdout.readline(), "waits\n")
        time.sleep(0.3)

    def test_interrupt(self):
        """Ctrl-C ends whatever waits for another rank."""
        self.script = "waiting_cases.py"
        for case, number in (("backward", signal.SIGINT), ("backward", signal.SIGTERM),
                             *((one, signal.SIGINT) for one in ("first_backward", "constructor", "checkpoint"))):
            with self.subTest(case, number=number), self.ranks(case) as processes:
                self.waiting(processes)
                began = time.monotonic()
                processes[0].send_signal(number)
                if number == signal.SIGINT:
                    self.assertLess(float(processes[0].stdout.readline()) - began, SOON)
                    processes[1].kill()  # operations of gloo outlive their callers
                errors = processes[0].communicate(timeout=60)[1]
                self.assertNotEqual(processes[0].returncode, 0)
                if number == signal.SIGINT:
                    self.assertIn("KeyboardInterrupt", errors)

    def test_interrupt_beside_a_stopped_daemon(self):
        """The end of the program does not wait for the daemon either: that has 10 s to say goodbye."""
        self.script = "waiting_cases.py"
        daemon = self.cluster.daemons[0].process.pid
        for case in ("backward", "forward", "checkpoint"):
            with self.subTest(case), self.ranks(case) as processes:
                self.waiting(processes)
                os.kill(daemon, signal.SIGSTOP)
                try:
                    began = time.monotonic()
                    processes[0].send_signal(signal.SIGINT)
                    processes[0].stdout.readline()
                    processes[1].kill()
                    self.assertIn("KeyboardInterrupt", processes[0].communicate(timeout=60)[1])
                    self.assertLess(time.monotonic() - began, SOON)
                finally:
                    os.kill(daemon, signal.SIGCONT)

    def test_other_rank_dies(self):
        """The sentence of the daemon reaches the user of DDP."""
        self.script = "waiting_cases.py"
        with self.ranks("backward") as processes:
            self.waiting(processes)
            processes[1].kill()
            errors = processes[0].communicate(timeout=60)[1]
            self.assertNotEqual(processes[0].returncode, 0)
            self.assertRegex(errors, "rank 1|node 1")


if __name__ == "__main__":
    unittest.main()
