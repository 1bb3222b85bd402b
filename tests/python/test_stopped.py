#!/usr/bin/env python3
"""Ctrl-C beside a daemon that is stopped: whatever a rank does, its program ends at once.

usage: test_stopped.py BUILD [unittest's arguments]
"""
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import interpreter

interpreter.use("numpy")

import numpy  # noqa: E402

import adtopk  # noqa: E402
from cluster import share_cluster  # noqa: E402
from interpreter import BUILD  # noqa: E402

CALLS = ("open", "commit", "push", "wait", "step_wait", "barrier", "allreduce", "broadcast", "residual",
         "checkpoint_save", "checkpoint_saved", "checkpoint_load", "close", "sleep")
SOON = 8  # seconds for all ranks of a test, on a busy machine; a daemon has 10 s for its goodbye

RANK = """
import contextlib, sys, time
import numpy
import adtopk
address, job, world, what, ending, folder = sys.argv[1:]
array = numpy.ones((1000, 1000), numpy.float32)
endings = {"with": lambda context: context, "close": contextlib.closing, "program": contextlib.nullcontext}

def opened():
    return adtopk.open(address=address, job=job, rank=0, world_size=int(world), connect_timeout=60)

def waits(call):
    print("ready", flush=True)
    sys.stdin.readline()
    call()
    print("over", flush=True)

def pushes(w, many):
    w.push(array)
    for one in many:  # more than a queue takes
        one.push(numpy.ones(3, numpy.float32))

if what == "open":
    waits(opened)
context = opened()
with endings[ending](context):
    w, *many = [context.register("w", array.shape)] + [context.register(f"w{i}", 3) for i in range(1030)]
    if what == "commit":
        waits(context.commit)
    context.commit()
    waits({"push": lambda: (pushes(w, many), context.step_wait()), "wait": lambda: (w.push(array), w.wait()),
           "step_wait": context.step_wait, "barrier": context.barrier, "close": context.close,
           "allreduce": lambda: context.allreduce(array), "broadcast": lambda: context.broadcast(array),
           "residual": w.residual, "checkpoint_save": lambda: context.checkpoint_save(folder),
           "checkpoint_saved": context.checkpoint_saved,
           "checkpoint_load": lambda: context.checkpoint_load(folder),
           "sleep": lambda: time.sleep(3600)}[what])
"""


class Stopped(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        share_cluster(cls, BUILD)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, trainer, what, ending, world=1):
        """A rank of the first node that is about to make a call, in a job of this name."""
        rank = subprocess.Popen(
            [sys.executable, "-c", RANK, self.cluster.address(trainer), f"{self.id()[-20:]}-{what}-{ending}",
             str(world), what, ending, self.folder],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(rank.communicate)
        self.addCleanup(rank.kill)
        return rank

    @contextlib.contextmanager
    def stopped(self):
        """The first node's daemon is stopped meanwhile."""
        daemon = self.cluster.daemons[0].process.pid
        os.kill(daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(daemon, signal.SIGCONT)

    def interrupt(self, ranks):
        """Ends the calls of ranks, by their names, beside the stopped daemon."""
        for name, rank in ranks.items():
            self.assertEqual(rank.stdout.readline(), "ready\n", name)
        with self.stopped():
            for rank in ranks.values():
                rank.stdin.write("\n")
                rank.stdin.flush()
            time.sleep(0.5)
            began = time.monotonic()
            for rank in ranks.values():
                rank.send_signal(signal.SIGINT)
            for name, rank in ranks.items():
                with self.subTest(name):
                    output, errors = rank.communicate(timeout=60)
                    self.assertLess(time.monotonic() - began, SOON)
                    self.assertEqual((output, rank.returncode), ("", -signal.SIGINT), errors)
                    self.assertIn("KeyboardInterrupt", errors)

    def test_calls(self):
        self.interrupt({what: self.start(0, what, "with") for what in CALLS})

    def test_calls_elsewhere(self):
        """The rank is on another machine."""
        self.interrupt({what: self.start("r0", what, "with") for what in CALLS[:5]})

    def test_endings(self):
        """The job is closed by name, or by the end of the program."""
        self.interrupt({(what, ending): self.start(0, what, ending)
                        for what in ("step_wait", "sleep") for ending in ("close", "program")})

    def test_prompt(self):
        """A prompt keeps the exception of Ctrl-C. A job that is opened there later waits for its goodbye."""
        lines = ["raise KeyboardInterrupt", "import sys, adtopk",
                 f"context = adtopk.open('{self.cluster.address(0)}', job='prompt', rank=0, world_size=1)",
                 "print(sys.last_type, context.interrupted)", "context.close()", ""]
        done = subprocess.run([sys.executable, "-i"], text=True, check=True, capture_output=True,
                              input="\n".join(lines))
        self.assertEqual(done.stdout, "<class 'KeyboardInterrupt'> False\n", done.stderr)

    def test_the_daemon_learns_of_it(self):
        """The rank did not wait for the goodbye, and the other one hears that it has left."""
        rank = self.start(0, "step_wait", "with", world=2)
        with adtopk.open(address=self.cluster.address(1), job=f"{self.id()[-20:]}-step_wait-with", rank=1,
                         world_size=2) as other:
            for name, shape in [("w", (1000, 1000)), *((f"w{i}", 3) for i in range(1030))]:
                other.register(name, shape)
            other.commit()
            self.interrupt({"step_wait": rank})
            with self.assertRaisesRegex(adtopk.PeerError, "rank 0.* left the job"):
                other.tensors[0].push(numpy.ones((1000, 1000), numpy.float32))
                other.step_wait(30)


if __name__ == "__main__":
    unittest.main()
