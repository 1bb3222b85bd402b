#!/usr/bin/env python3
"""The systemd units: systemd accepts them, they close what it can, and the daemon can work under it.

usage: test_unit_file.py BUILD [unittest's arguments]; skips (77) without systemd-analyze.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import cluster
import seccomp
from build import ADTOPKD, BUILD
from cluster import Cluster
from ranks import Job

EXPOSURE = {"adtopkd": 12, "adtopk-exporter": 2}  # in tenths, of systemd-analyze security
GPU_EXPOSURE = 14
GPU = os.path.join(os.path.dirname(__file__), "../../deploy/systemd/adtopkd-gpu.conf")
GPU_LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
GPU_PROGRAM = os.path.join(BUILD, "daemon", "device", "adtopk-device")
REAL = "ADTOPK_TEST_REAL_GPU" in os.environ
TENSORS = [("a", "f32", "both", (64, 128)), ("b", "f32", "dense", (64, 64))]


def unit(name="adtopkd"):
    with open(os.path.join(BUILD, "deploy", f"{name}.service"), encoding="utf-8") as text:
        return text.read()


def units():
    """{name: text} of those that were built."""
    return {name: unit(name) for name in EXPOSURE
            if os.path.exists(os.path.join(BUILD, "deploy", f"{name}.service"))}


class UnitFile(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.path = os.path.join(temporary.name, "adtopkd.service")

    def analyze(self, text, *command):
        """The unit with a program that has been built, because verify looks for it, and without the
        manual page, for which it looks as well."""
        text = re.sub(r"(?m)^(Exec\w+)=\S+/adtopk(d|-exporter)\b", rf"\1={ADTOPKD}", text)
        with open(self.path, "w", encoding="utf-8") as out:
            out.write(re.sub(r"(?m)^Documentation=.*\n", "", text))
        return subprocess.run(["systemd-analyze", *command, self.path], capture_output=True,
                              text=True, check=False)

    def test_is_accepted(self):
        for text in units().values():
            done = self.analyze(re.sub(r"(?m)^(After|Requires)=adtopk.*\n", "", text), "verify")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        bad = self.analyze(unit().replace("PrivateTmp=yes", "PrivateTmp=perhaps"), "verify")
        self.assertIn("perhaps", bad.stderr)  # or the check above would say nothing

    def test_exposure(self):
        for name, text in units().items():
            command = ["security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE[name]}"]
            done = self.analyze(text, *command)
            self.assertEqual(done.returncode, 0, done.stdout)
            worse = self.analyze(text.replace("PrivateTmp=yes", "").replace("ProtectHome=yes", ""),
                                 *command)
            self.assertNotEqual(worse.returncode, 0)

    def with_gpu(self):
        """The unit of a GPU node: systemd reads a drop-in as if it stood behind the unit."""
        with open(GPU, encoding="utf-8") as text:
            return unit() + text.read()

    def test_gpu_nodes(self):
        """NVIDIA's devices are open there, and nothing else is."""
        done = self.analyze(self.with_gpu(), "verify")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        done = self.analyze(self.with_gpu(), "security", "--offline=yes", "--no-pager",
                            f"--threshold={GPU_EXPOSURE}")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("device ACL with some special devices: char-rtc:r char-nvidia*:rw",
                      done.stdout)

    def test_watchdog_and_reload(self):
        for line in ("Type=notify", "WatchdogSec=10", "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'"):
            self.assertIn(f"\n{line}\n", unit())

    @unittest.skipUnless(seccomp.possible(), "knows the numbers of x86-64 only, from a header of the kernel")
    def test_works_under_the_system_call_filter(self):
        """libzmq, for one, aborts where it may not do what it wants."""
        self.train(unit(), {})

    @unittest.skipUnless(seccomp.possible() and (REAL or os.path.exists(GPU_LIBRARY)), "needs the stand-in")
    def test_workers_of_gpus_under_the_filter(self):
        """With ADTOPK_TEST_REAL_GPU also the machine's driver (tests/gpu)."""
        self.train(self.with_gpu(), {"ADTOPK_ENGINE": "cuda", "ADTOPK_DEVICE_PROGRAM": GPU_PROGRAM,
                                     **({} if REAL else {"ADTOPK_CUDA_LIBRARY": GPU_LIBRARY})})

    def train(self, text, variables):
        limit = seccomp.limit_to(seccomp.allowed(text), "\nMemoryDenyWriteExecute=yes\n" not in text)
        plain = cluster.die_with_parent

        def prepare():
            plain()
            limit()
        # LeakSanitizer would want ptrace() at the end.
        with mock.patch.object(cluster, "die_with_parent", prepare), \
                mock.patch.dict(os.environ, ASAN_OPTIONS="detect_leaks=0", **variables), \
                Cluster(BUILD, nodes=2) as two:
            with Job(two, BUILD, "filtered", [0, 1], TENSORS) as job:
                self.assertEqual(job.join().steps(10)[0], "ok")
            two.stop()


if __name__ == "__main__":
    if shutil.which("systemd-analyze") is None:
        sys.exit(77)
    unittest.main()
