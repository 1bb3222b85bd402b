#!/usr/bin/env python3
"""A network that is cut again and again, and one that loses a third of all packets: jobs end with the
updates of an undisturbed run, in a time that has a bound.

usage: test_flaps.py BUILD [unittest's arguments]

A run takes 10 cuts and 4 steps, with ADTOPK_TEST_LONG=1 1,000 cuts and 200 steps. The second test needs
root and iptables with its match `statistic`.
"""
import ctypes
import os
import random
import shutil
import subprocess
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import BUILD
from cluster import Cluster, die_with_parent
from points import LONG, SEED, Training
from ranks import Job
from stores import HOMES, TENSORS, text

CUTS = 1000 if LONG else 10
CUT_SECONDS = 10.0  # after which at the latest the job has gone on: the promise
STEPS = 200 if LONG else 4
STEP_SECONDS = 10.0  # that a step may take at 33% loss, on average: the promise
LOSS = "0.33"
CLONE_NEWNET = 0x40000000


def open_job(case, cluster, name):
    job = Job(cluster, BUILD, name, HOMES, TENSORS, text(), before=["gradients random 7"])
    case.addCleanup(job.kill)
    return job.join()


class Flaps(unittest.TestCase):
    """Both directions of the only link."""

    def test_cuts(self):
        draw = random.Random(SEED)
        with Cluster(BUILD, relays=True) as cluster, ThreadPoolExecutor(max_workers=1) as pool:
            training = Training(open_job(self, cluster, "flaps"))
            steps = pool.submit(training.run)
            try:
                took = [self.cut(cluster, training, draw) for _ in range(CUTS)]
            finally:
                training.over = True
            steps.result()
            got = training.job.steps(1)
        self.assertEqual(got[:3], ("ok", training.steps + 1, 0))
        print(f"\n{CUTS} cuts in {training.steps} steps: median {sorted(took)[CUTS // 2]:.2f} s, "
              f"worst {max(took):.2f} s until the job had gone on")
        with Cluster(BUILD) as cluster:
            self.assertEqual(open_job(self, cluster, "flaps").steps(training.steps + 1), got)

    def cut(self, cluster, training, draw):
        """Returns the seconds until steps that began after it are over."""
        time.sleep(draw.uniform(0, 0.01))
        steps, began = training.steps, time.monotonic()
        for relay in cluster.relays.values():
            relay.forget()
        while training.steps < steps + 6:
            self.assertLess(time.monotonic() - began, CUT_SECONDS)
            time.sleep(0.002)
        return time.monotonic() - began


class Network:
    """A network of its own, with nothing but loopback: `with Network() as network`."""

    def __enter__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"],
                                       preexec_fn=die_with_parent)
        while os.path.exists(f"/proc/{self.holder.pid}") and self.identity() == os.readlink(
                "/proc/self/ns/net"):
            time.sleep(0.01)  # until unshare has made it
        self.file = os.open(f"/proc/{self.holder.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self.run("ip", "link", "set", "lo", "up")
        return self

    def identity(self):
        return os.readlink(f"/proc/{self.holder.pid}/ns/net")

    def run(self, *command):
        return subprocess.run(["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command],
                              capture_output=True, text=True, check=False)

    def enter(self):
        """For a process that has just begun."""
        die_with_parent()
        if ctypes.CDLL(None).setns(self.file, CLONE_NEWNET) != 0:
            raise OSError("setns() failed")

    def __exit__(self, *_):
        os.close(self.file)
        self.holder.kill()
        self.holder.wait()


class Loss(unittest.TestCase):
    @unittest.skipUnless(os.getuid() == 0 and shutil.which("iptables"), "needs root and iptables")
    def test_a_third_is_lost(self):
        network = self.enterContext(Network())
        with Cluster(BUILD) as cluster:
            wanted = open_job(self, cluster, "loses").steps(STEPS)
        cluster = Cluster(BUILD)
        for daemon in cluster.daemons:
            daemon.prepare = network.enter
        with cluster:
            job = open_job(self, cluster, "loses")
            done = network.run("iptables", "-A", "INPUT", "-p", "tcp", "-m", "statistic", "--mode",
                               "random", "--probability", LOSS, "-j", "DROP")
            if done.returncode != 0:
                self.skipTest(f"iptables: {done.stderr.strip()}")
            began = time.monotonic()
            for rank in job.ranks:
                rank.send(f"steps {STEPS}")
            answers = {rank.answer(STEPS * STEP_SECONDS) for rank in job.ranks}
            took = time.monotonic() - began
            network.run("iptables", "-F")
        self.assertEqual(answers, {" ".join(map(str, wanted))})
        print(f"\n{STEPS} steps with 33% loss: {took / STEPS:.2f} s each")


if __name__ == "__main__":
    unittest.main()
