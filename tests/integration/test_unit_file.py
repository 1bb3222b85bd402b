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

EXPOSURE = {"adtopkd": 12, "adtopk-exporter": 9}  # in tenths, of systemd-analyze security
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
            done = self.analyze(text.replace("After=adtopkd.service\n", ""), "verify")
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

    def test_watchdog_and_reload(self):
        for line in ("Type=notify", "WatchdogSec=10", "ExecReload=/bin/sh -c 'kill -HUP $MAINPID'"):
            self.assertIn(f"\n{line}\n", unit())

    @unittest.skipUnless(seccomp.possible(), "knows the numbers of x86-64 only")
    def test_works_under_the_system_call_filter(self):
        """libzmq, for one, aborts where it may not do what it wants."""
        limit = seccomp.limit_to(seccomp.allowed(unit()))
        plain = cluster.die_with_parent

        def prepare():
            plain()
            limit()
        # LeakSanitizer would want ptrace() at the end.
        with mock.patch.object(cluster, "die_with_parent", prepare), \
                mock.patch.dict(os.environ, ASAN_OPTIONS="detect_leaks=0"), \
                Cluster(BUILD, nodes=2) as two:
            with Job(two, BUILD, "filtered", [0, 1], TENSORS) as job:
                self.assertEqual(job.join().steps(10)[0], "ok")
            two.stop()


if __name__ == "__main__":
    if shutil.which("systemd-analyze") is None:
        sys.exit(77)
    unittest.main()
