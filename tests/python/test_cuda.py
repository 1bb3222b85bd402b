#!/usr/bin/env python3
"""adtopk.torch with parameters on a GPU: beside residuals there, and with copies through host memory.

usage: test_cuda.py BUILD [unittest's arguments]

The cases are in cuda_cases.py. The GPU is the library of tests/cuda/driver, in the daemons, their workers
and the ranks (standin_cuda.py). With ADTOPK_TEST_REAL_GPU it is the machine's (tests/gpu), and cases in
which the library decides what happens are left out.
"""
import os
import subprocess
import sys
import unittest
from unittest import mock

import interpreter

interpreter.use("numpy", "torch")

from cluster import Cluster  # noqa: E402
from interpreter import BUILD  # noqa: E402
from torchranks import PYTHON, Ranks, TorchScene  # noqa: E402

LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
PROGRAM = os.path.join(BUILD, "daemon", "device", "adtopk-device")
REAL = "ADTOPK_TEST_REAL_GPU" in os.environ
LIMITS = {"overflow": 0, "refusals": 0, "resumed_on_each_rank": 1e-5, "resumed_from_one_file": 1e-5,
          "resumed_in_16_bits": 1e-5, "loss_scale_is_halved": 1e-5}  # others: 1e-6
SAME = ["same_bits", "same_bits_of_branches", "same_bits_of_optimisers"]  # as in host memory
# The cases of parameters in host memory: with copies also those that read residuals.
AHEAD = ["looks_ahead", "shift_is_limited"]
DDP = ["accumulation", "join", "odd_parameters", "channels_last", "two_models"]
RESIDUALS = ["loss_scale_is_halved", "overflow_in_the_last_bucket", "resumed_on_each_rank",
             "resumed_from_one_file", "resumed_in_16_bits"]


def variables(placement, streams="late", library=LIBRARY, **more):
    """The environment of ranks."""
    if REAL:
        return {"ADTOPK_TEST_PLACEMENT": placement, **more}
    return {"ADTOPK_TEST_PLACEMENT": placement, "ADTOPK_TEST_STANDIN": LIBRARY,
            "ADTOPK_TEST_CUDA_STREAMS": streams, "ADTOPK_CUDA_LIBRARY": library, **more}


def gpu_cluster():
    """Daemons that keep residuals on GPUs."""
    cluster = Cluster(BUILD, nodes=2, settings={"engine": "cuda"})
    for daemon in cluster.daemons:
        daemon.variables = {"ADTOPK_DEVICE_PROGRAM": PROGRAM}
        if not REAL:
            daemon.variables["ADTOPK_CUDA_LIBRARY"] = LIBRARY
    return cluster


class Cuda(TorchScene):
    """`cluster` is in host memory, `gpus` on GPUs."""

    script = "cuda_cases.py"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gpus = gpu_cluster().start()
        cls.addClassCleanup(cls.gpus.close)
        scene = cls()
        cls.expected = scene.found(*SAME, **variables("CopyPlacement")) if REAL else scene.found(*SAME)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.gpus.stop()

    def found(self, *cases, gpus=False, **environment):
        """What rank 0 says of each case: its number, or why it was skipped."""
        cluster = self.gpus if gpus else self.cluster
        with mock.patch.dict(os.environ, environment), mock.patch.object(self, "cluster", cluster, create=True):
            reports = self.reports(*cases)
        self.assertEqual(set(reports), set(cases))
        return {name: report.get("worst", report.get("skipped")) for name, report in reports.items()}

    def check(self, found):
        """No number is larger than the limit of its case."""
        for name, worst in found.items():
            with self.subTest(name):
                if name in SAME:
                    self.assertEqual(worst, self.expected[name])
                elif isinstance(worst, float):
                    self.assertLessEqual(worst, LIMITS.get(name, 1e-6))

    def test_beside_residuals(self):
        """The stream runs when somebody waits for it."""
        self.check(self.found("same_bits", "like_gloo", "like_nccl", "overflow", "host_does_not_wait",
                              *([] if REAL else ["lists"]), gpus=True, **variables("ArenaPlacement")))

    def test_copies(self):
        self.check(self.found("same_bits", "like_gloo", "like_nccl", "overflow",
                              *([] if REAL else ["backward_goes_on"]), **variables("CopyPlacement")))

    def test_modes_beside_residuals(self):
        self.check(self.found(*SAME[1:], *AHEAD, *([] if REAL else [*DDP, "refusals"]), gpus=True,
                              **variables("ArenaPlacement", "chance:3", ADTOPK_TEST_BEHIND="1")))

    def test_modes_of_copies(self):
        """The C library finds no driver: it needs none for copies."""
        self.check(self.found(*SAME[1:], *AHEAD, *([] if REAL else DDP + RESIDUALS), **variables(
            "CopyPlacement", "early", library="/nowhere", ADTOPK_TEST_BEHIND="1")))

    def test_daemon_is_gone(self):
        with gpu_cluster() as cluster, mock.patch.dict(os.environ, variables("ArenaPlacement")), \
                Ranks(cluster, self.script, "daemon_is_gone") as processes:
            for process in processes:
                self.assertEqual(process.stdout.readline(), "waits\n", process.poll())
            cluster.daemons[0].kill()
            output, errors = processes[0].communicate(timeout=60)
            self.assertEqual(output, "told 0.0\n", errors)


class Addresses(unittest.TestCase):
    def test_copy(self):
        """A tensor over an address is no copy of what is there."""
        import torch  # pylint: disable=import-outside-toplevel
        import adtopk.torch  # pylint: disable=import-outside-toplevel
        with mock.patch.object(torch, "as_tensor", lambda memory, device: torch.zeros(4)):
            with self.assertRaisesRegex(adtopk.SystemCallError, "takes memory of cpu at 0x1000 for another"):
                adtopk.torch._cuda.Gpu(torch.device("cpu")).at(0x1000, 4, torch.float32)


def why_not():
    """Why the tests cannot run here; None: they can."""
    if REAL:
        done = subprocess.run([PYTHON, "-c", "import torch.distributed; print(torch.cuda.is_available())"],
                              capture_output=True, text=True, check=False)
        return None if done.stdout == "True\n" else "PyTorch finds no GPU"
    return None if os.path.exists(LIBRARY) and os.path.exists(PROGRAM) else f"there is no {LIBRARY}"


if __name__ == "__main__":
    if why_not() is not None:
        print(f"SKIP: {why_not()}")
        sys.exit(interpreter.SKIPPED)
    unittest.main()
