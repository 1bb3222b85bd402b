#!/usr/bin/env python3
"""adtopkctl trace: what nodes have recorded of a job, with their clocks aligned; and the traces that
daemons write by themselves.

usage: test_trace.py BUILD [unittest's arguments]
"""
import collections
import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from build import BUILD
from cluster import ClusterError, die_with_parent
from control import Daemons, TENSORS
from ranks import Job
from service import wait_for

CLONE_NEWTIME = 0x80
AHEAD_S = 3


def in_other_time():
    """Runs in a daemon before it begins: its monotonic clock is ahead of the others'."""
    die_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    with open("/proc/self/timens_offsets", "w", encoding="ascii") as out:
        out.write(f"monotonic {AHEAD_S} 0\nboottime {AHEAD_S} 0\n")
    space = os.open("/proc/self/ns/time_for_children", os.O_RDONLY)
    if libc.setns(space, CLONE_NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(space)


class Traces(Daemons):
    settings = {"stuck_after_ms": 600}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="adtopk-traces-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.settings = {**cls.settings, "trace_folder": cls.folder}
        super().setUpClass()

    def assert_events(self, trace):
        """Every event is as the format wants it; slices of a thread nest; flows have two ends."""
        spans = collections.defaultdict(list)
        flows = collections.defaultdict(str)
        named = {}
        for event in trace["traceEvents"]:
            self.assertIn(event["ph"], "XMisf", event)
            self.assertIsInstance(event["pid"], int)
            self.assertIsInstance(event["tid"], int)
            self.assertTrue(0 <= event["tid"] < 2 ** 31 and 0 <= event["pid"] < 2 ** 31, event)
            self.assertIsInstance(event["name"], str)
            if event["ph"] == "M":
                self.assertIsInstance(event["args"], dict)
                if event["name"] == "thread_name":
                    name = named.setdefault((event["pid"], event["tid"]), event["args"]["name"])
                    self.assertEqual(name, event["args"]["name"], event)
                continue
            self.assertGreaterEqual(event["ts"], 0, event)
            self.assertIn((event["pid"], event["tid"]), named, event)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
                spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
            elif event["ph"] in "sf":
                flows[event["id"]] += event["ph"]
        for thread, slices in spans.items():
            for (begin, end), (later, _) in zip(sorted(slices), sorted(slices)[1:]):
                self.assertTrue(later >= end - 0.15 or begin == later, (thread, begin, end, later))
        self.assertEqual(set(flows.values()), {"sf"} if flows else set())
        return flows

    def names(self, trace, node):
        return {event["name"] for event in trace["traceEvents"]
                if event["ph"] in "Xi" and event["pid"] == node + 1}

    def traces(self, reason):
        """The files that both daemons write of this test's job for this reason."""
        def found():
            files = []
            for path in glob.glob(f"{self.folder}/trace-*.json"):
                try:
                    with open(path, encoding="utf-8") as file:
                        document = json.load(file)
                except FileNotFoundError:  # an old one, for which there was no room any more
                    continue
                if document["name"] == self.name and re.search(reason, document["reason"]):
                    files.append((document["node"], path))
            return [path for _, path in sorted(files)]
        wait_for(lambda: len(found()) == 2)
        return found()

    def test_a_job_that_trains(self):
        job = self.joined((0, 0, 1))
        job.steps(70)
        code, out, error = self.ask("trace", self.name)
        self.assertEqual(code, 0, error)
        trace = json.loads(out)
        flows = self.assert_events(trace)
        self.assertEqual(trace["otherData"]["job"], self.name)
        steps = {event["args"]["step"] for event in trace["traceEvents"]
                 if event["ph"] == "X" and event["name"].startswith("step ")
                 and event["cat"] == "step"}
        self.assertEqual(steps, set(range(6, 71)), "the last 64 steps, and the open one")
        self.assertGreater(len(flows), 2 * 60, "messages both ways")
        for node in (0, 1):
            self.assertLessEqual(
                {"collect", "select", "exchange", "reduce", "settle 69", "send", "receive",
                 "bucket 0 pushed"}, self.names(trace, node))
        first, second = trace["otherData"]["clocks"]
        self.assertEqual((first["ahead_us"], first["error_us"]), (0, 0))
        self.assertLess(abs(second["ahead_us"]), 1000 + second["error_us"])
        self.assertIn("its clock is", error)
        job.end()

    def test_documents(self):
        """The daemon's document, to a file, to a full disk, and rubbish."""
        job = self.joined()
        job.steps(3)
        document = self.document("trace", self.name)
        self.assertEqual([node["node"] for node in document["nodes"]], [0, 1])
        self.assertEqual(document["columns"][0], "us")
        path = os.path.join(self.folder, "out.json")
        self.assertEqual(self.ask("trace", self.name, "--out", path)[:2], (0, ""))
        with open(path, encoding="utf-8") as file:
            self.assert_events(json.load(file))
        self.fails(1, "trace", self.name, "--out", self.folder + "/missing/x", words=["missing"])
        self.fails(1, "trace", "nobody", words=["nobody"])
        self.fails(1, "trace", "--from", path, words=["no trace of adtopkd"])
        self.fails(2, "trace", self.name, "other", words=["one JOB"])
        self.fails(1, "trace", self.name, "--out", "/dev/full/x", words=["/dev/full"])
        job.end()

    def test_files_of_many_nodes(self):
        job = self.joined()
        job.steps(3)
        document = self.document("trace", self.name)
        files = []
        for number in range(1024):
            files.append(os.path.join(self.folder, f"{number}.part"))
            with open(files[-1], "w", encoding="utf-8") as out:
                json.dump({**document, "nodes": [{**document["nodes"][0], "node": number}]}, out)
        code, out, error = self.ask("trace", "--from", *files)
        self.assertEqual(code, 0, error)
        self.assertEqual({event["pid"] for event in json.loads(out)["traceEvents"]}, set(range(1, 1025)))
        job.end()

    def test_a_job_that_fails_or_is_stuck(self):
        job = self.joined()
        job.steps(5)
        job.ranks[0].send("steps 1")  # the other rank does not come along
        stuck = self.traces("it is stuck: it waits for rank 1 on node 1")
        job.ranks[1].process.kill()
        files = stuck + self.traces("rank 1 is gone")
        code, out, error = self.ask("trace", "--from", *files)
        self.assertEqual(code, 0, error)
        trace = json.loads(out)
        self.assert_events(trace)
        self.assertRegex(trace["otherData"]["reason"], "rank 1 is gone")
        self.assertEqual([clock["node"] for clock in trace["otherData"]["clocks"]], [0, 1])
        self.assertTrue(all(clock["error_us"] < 1e6 * AHEAD_S / 2 for clock in trace["otherData"]["clocks"]))
        unfinished = [event for event in trace["traceEvents"]
                      if event.get("args", {}).get("unfinished")]
        self.assertTrue(any(event["name"] == "step 5" for event in unfinished), unfinished)
        for daemon in self.cluster.daemons:
            wait_for(lambda: f"the trace of job {os.getuid()}:{self.name}/0 is" in daemon.log())


    def test_what_lies_in_the_way(self):
        """Of others who may write to the folder: a pipe that nobody reads, a link to a file."""
        precious = os.path.join(self.folder, "precious")
        with open(precious, "w", encoding="ascii") as file:
            file.write("keep")
        os.mkfifo(os.path.join(self.folder, ".trace-node0"))
        os.link(precious, os.path.join(self.folder, ".trace-node1"))
        job = self.joined()
        job.steps(1)
        job.ranks[1].process.kill()
        self.traces("rank 1 is gone")
        with open(precious, encoding="ascii") as file:
            self.assertEqual(file.read(), "keep")

    def test_jobs_that_fail_together(self):
        """Their traces wait for each other, and all are written."""
        names = [f"{self.name}.{i}" for i in range(3)]
        jobs = []
        for self.name in names:
            jobs.append(self.joined())
            jobs[-1].steps(1)
        for job in jobs:
            job.ranks[1].process.kill()
        for self.name in names:
            self.traces("rank 1 is gone")

    def test_a_job_that_never_trained(self):
        """It leaves no trace, and no complaint that there is none."""
        job = Job(self.cluster, BUILD, self.name, [0, 1], TENSORS)
        self.addCleanup(job.kill)
        for rank in job.ranks:
            rank.do(rank.opening, *job.registrations())
        job.ranks[0].send("commit")
        job.ranks[1].process.kill()
        for daemon in self.cluster.daemons:
            wait_for(lambda: f"job {os.getuid()}:{self.name}/0 has failed" in daemon.log())
        self.name += ".later"  # whose trace would be written after that one
        job = self.joined()
        job.steps(1)
        job.ranks[1].process.kill()
        self.traces("rank 1 is gone")
        for daemon in self.cluster.daemons:
            self.assertNotRegex(daemon.log(), f"trace of job [^ ]*{self.name[:-6]}[/:]")
        for path in glob.glob(f"{self.folder}/trace-*.json"):
            with open(path, encoding="utf-8") as file:
                self.assertNotEqual(json.load(file)["name"], self.name[:-6])

    def test_old_traces_go(self):
        """However many jobs of a user fail: 8 files stay."""
        folder = os.path.join(self.folder, "trace-*")
        name = self.name
        for i in range(6):
            self.name = f"{name}.{i}"
            job = self.joined()
            job.steps(1)
            job.ranks[1].process.kill()
            self.traces("rank 1 is gone")
        self.assertLessEqual(len(glob.glob(folder)), 9)  # two daemons may make room at once

    def test_clock_was_ahead(self):
        """Files from before a clock was put right have later times in their names. New traces are the
        newest none the less, so they stay."""
        for path in glob.glob(f"{self.folder}/trace-*"):
            os.unlink(path)
        for i in range(8):
            later_ms = int(1000 * (time.time() + 86400)) + i
            with open(f"{self.folder}/trace-{later_ms:013}-{os.getuid()}-node0-job9.json", "w",
                      encoding="ascii") as file:
                file.write('{"name": "old", "node": 0, "reason": ""}')
        name, files = self.name, []
        for i in range(3):
            self.name = f"{name}.{i}"
            job = self.joined()
            job.steps(1)
            job.ranks[1].process.kill()
            files += self.traces("rank 1 is gone")
        self.assertEqual([path for path in files if not os.path.exists(path)], [])


class FullDisk(Daemons):
    """A folder without room for a trace."""

    @classmethod
    def setUpClass(cls):
        if os.getuid() != 0:
            raise unittest.SkipTest("needs root to mount a small file system")
        cls.folder = tempfile.mkdtemp(prefix="adtopk-traces-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", cls.folder], check=True)
        cls.addClassCleanup(subprocess.run, ["umount", cls.folder], check=True)
        cls.settings = {"trace_folder": cls.folder}
        super().setUpClass()

    def test_a_disk_that_is_full(self):
        """The log says so, no part of a file stays, and adtopkctl does not leave one either."""
        job = self.joined()
        job.steps(9)
        self.fails(1, "trace", self.name, "--out", self.folder + "/out", words=["No space left"])
        job.ranks[1].process.kill()
        for daemon in self.cluster.daemons:
            wait_for(lambda: f"cannot write a trace of job {os.getuid()}:{self.name}/0 to the trace_folder "
                     f"{self.folder}: No space left on device" in daemon.log())
        wait_for(lambda: os.listdir(self.folder) == [])


class OtherTime(Traces):
    """The clock of node 1 is ahead by three seconds."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        daemon = cls.cluster.daemons[1]
        daemon.stop()
        daemon.prepare = in_other_time
        try:
            daemon.start()
        except (OSError, ClusterError, Exception) as problem:
            raise unittest.SkipTest(f"no time namespace here: {problem}")

    def setUp(self):
        super().setUp()
        wait_for(lambda: self.ask("peers")[0] == 0)

    def test_a_job_that_trains(self):
        job = self.joined()
        job.steps(20)
        self.clock = None

        def exact():
            code, out, error = self.ask("trace", self.name)
            self.assertEqual(code, 0, error)
            self.clock = json.loads(out)["otherData"]["clocks"][1]
            self.assertLess(abs(self.clock["ahead_us"] - 1e6 * AHEAD_S), 1000 + self.clock["error_us"])
            return self.clock["error_us"] < 1000  # on a busy machine messages take long at first

        wait_for(exact)
        self.assertLess(abs(self.clock["ahead_us"] - 1e6 * AHEAD_S), 1000, self.clock)
        job.end()

    test_documents = None  # of no clock
    test_jobs_that_fail_together = None
    test_a_job_that_never_trained = None
    test_old_traces_go = None
    test_clock_was_ahead = None
    test_what_lies_in_the_way = None


if __name__ == "__main__":
    unittest.main()
