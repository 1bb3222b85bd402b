#!/usr/bin/env python3
"""tests/bench/cluster: a tiny round on a network in a box, with the peers that are here; its document
is complete, and nothing is left behind however it ends. No time decides anything.

usage: test_cluster.py BUILD [unittest's arguments]
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from cluster import die_with_parent, take_build

BUILD = None  # set by main()
ROUNDS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/cluster/rounds"))
TINY = ["--nodes", "2", "--size", "1M", "--rate", "10gbit", "--turns", "2", "--warmup", "1"]
IMPOSSIBLE = 77
POLICIES = ("dense", "dense-bf16", "topk", "rows", "topk+curve")
ROW_KEYS = {"contender", "step_ms", "cpu_ms", "sent_bytes", "received_bytes", "adtopk", "wire_ms",
            "loops_ms", "ratio", "gain"}


def command(*arguments):
    return [ROUNDS, "--build", BUILD, *arguments]


def run(*arguments, environment=None):
    return subprocess.run(command(*arguments), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, env=environment, preexec_fn=die_with_parent, timeout=250,
                          check=False)


def folders():
    return set(glob.glob("/tmp/adtopk-*"))


def offspring(pid):
    """All processes that descend from this one, with when they began."""
    found, todo = {}, [pid]
    while todo:
        try:
            parent = todo.pop()
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    children = list(map(int, file.read().split()))
                found.update((child, began(child)) for child in children)
                todo += children
        except FileNotFoundError:
            pass
    return found


def began(pid):
    """The process's start time, or None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


class Rounds(unittest.TestCase):
    """Where namespaces can be made."""

    def setUp(self):
        self.before = folders()

    def run_or_skip(self, *arguments):
        done = run(*TINY, *arguments)
        if done.returncode == IMPOSSIBLE:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(folders() - self.before, set())
        return done

    def check_row(self, row, document):
        self.assertEqual(set(row), ROW_KEYS)
        self.assertEqual(len(row["step_ms"]["samples"]), 2)
        self.assertGreater(row["step_ms"]["min"], 0)
        counted = row["adtopk"]
        self.assertEqual(counted is not None, row["contender"] in POLICIES)
        payload = counted["wire_bytes"] if counted else row["sent_bytes"]
        self.assertAlmostEqual(row["wire_ms"], 8e3 * payload / document["box"]["rate_bit_s"])
        self.assertEqual(row["loops_ms"] is not None, counted is not None)
        self.assertAlmostEqual(row["ratio"] * (row["wire_ms"] + (row["loops_ms"] or 0)),
                               row["step_ms"]["median"])

    def test_all_contenders(self):
        document = json.loads(self.run_or_skip("--json").stdout)
        self.assertEqual((document["schema"], document["turns"], document["interrupted"]),
                         (1, 2, False))
        rows = {row["contender"]: row for row in document["rows"]}
        missing = {one["contender"] for one in document["missing"]}
        self.assertEqual(set(rows) | missing, set(POLICIES) | {
            "mpi-f32", "mpi-gather", "gloo-f32", "gloo-f16", "gloo-gather"})
        self.assertEqual(set(rows) & missing, set())
        self.assertLessEqual(set(POLICIES), set(rows))
        for row in rows.values():
            with self.subTest(row["contender"]):
                self.check_row(row, document)
        gradient = document["gradient"]["bytes"]
        for name in {"dense", "mpi-f32", "gloo-f32"} & set(rows):  # 2n(P-1)/P, and headers
            self.assertTrue(gradient <= rows[name]["sent_bytes"] <= 1.2 * gradient, rows[name])
        self.assertLess(rows["topk"]["sent_bytes"], 0.02 * gradient)
        self.assertLessEqual(rows["topk"]["adtopk"]["wire_bytes"], rows["topk"]["sent_bytes"])

    def test_one_node(self):
        done = self.run_or_skip("--nodes", "1", "--ranks", "2", "--contenders", "dense", "mpi-f32")
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, done.stdout)
        self.assertIn("nodes: 1; ranks of each: 2", done.stdout)

    def test_policy_of_ones_own(self):
        document = json.loads(self.run_or_skip(
            "--json", "--policy", 'mine={"sparsifier": "randomk", "density": 0.5}').stdout)
        row, = document["rows"]
        self.assertEqual(row["contender"], "mine")
        self.assertGreater(row["adtopk"]["wire_bytes"], 0.2 * document["gradient"]["bytes"])

    def test_a_failure_is_told(self):
        done = run(*TINY, "--policy", 'mine={"sparsifier": "nothing"}')
        if done.returncode == IMPOSSIBLE:
            self.skipTest(done.stderr)
        self.assertEqual(done.returncode, 1)
        self.assertIn("sparsifier", done.stderr)
        self.assertEqual(folders() - self.before, set())

    def start_long_one(self):
        """A run that is in the middle of its turns, and what it has started."""
        process = subprocess.Popen(
            command(*TINY, "--turns", "10000", "--contenders", "dense", "--json"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        said = []
        while not (said and said[-1].startswith("turn 3/")):
            said.append(process.stderr.readline())
            if not said[-1]:
                self.assertEqual(process.wait(), IMPOSSIBLE, "".join(said))
                self.skipTest(said[-2].strip())
        started = offspring(process.pid)
        self.assertGreaterEqual(len(started), 9, started)  # 2 nodes, floors, daemons, ranks; 1
        return process, started

    def check_gone(self, started):
        deadline = time.monotonic() + 20
        while any(began(pid) == start for pid, start in started.items() if start is not None):
            self.assertLess(time.monotonic(), deadline, "processes were left behind")
            time.sleep(0.05)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process, started = self.start_long_one()
                process.send_signal(number)
                output, errors = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 1, errors)
                document = json.loads(output)
                self.assertTrue(document["interrupted"])
                self.assertGreaterEqual(len(document["rows"][0]["step_ms"]["samples"]), 2)
                self.check_gone(started)
                self.assertEqual(folders() - self.before, set())

    def test_killed(self):
        """Not even then is anything left but an empty folder."""
        process, started = self.start_long_one()
        process.kill()
        self.check_gone(started)
        for folder in folders() - self.before:
            os.rmdir(folder)


class Usage(unittest.TestCase):
    def test_options(self):
        for arguments, words in (
                (["--nodes", "0"], "'0' is not a whole number from 1 to 64"),
                (["--nodes", "x"], "'x' is not a whole number"),
                (["--ranks", "17"], "from 1 to 16"), (["--turns", "0"], "from 1 to 10000"),
                (["--size", "100"], "--size: at least 4096"), (["--size", "1X"], "'1X' is not a number"),
                (["--rate", "5"], "--rate: at least 1mbit"), (["--rate", "fast"], "'fast' is not"),
                (["--burst", "10"], "--burst: at least"), (["--density", "2"], "at most 1"),
                (["--model", "alexnet"], "invalid choice"),
                (["--contenders", "nccl"], "no contender 'nccl'"),
                (["--contenders", "gloo-f32+curve"], "no contender"),
                (["--policy", "x"], "is not NAME=JSON"), (["--policy", "x=[1]"], "is no JSON object"),
                (["--policy", "gloo-f32={}"], "is not NAME=JSON"), (["--faster"], "unrecognized")):
            with self.subTest(arguments):
                done = run(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(words, done.stderr)

    def test_no_programs(self):
        done = subprocess.run([ROUNDS, "--build", "/nowhere"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nowhere", done.stderr)

    def test_impossible(self):
        """A machine without ip, and one that lets nobody make network namespaces."""
        before = folders()
        with tempfile.TemporaryDirectory() as folder:
            for name in ("env", "python3"):
                os.symlink(shutil.which(name), os.path.join(folder, name))
            done = run(*TINY, environment={"PATH": folder})
        self.assertEqual(done.returncode, IMPOSSIBLE, done.stderr)
        self.assertIn("there is no program ip", done.stderr)
        none = ["unshare", "-Ur", "sh", "-c",
                'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"', "sh"]
        if subprocess.run([*none, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("a user namespace with limits cannot be made here")
        done = subprocess.run([*none, *command(*TINY)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, IMPOSSIBLE, done.stderr)
        self.assertIn("cannot make network namespaces here", done.stderr)
        self.assertEqual(folders() - before, set())


def main():
    global BUILD
    BUILD = take_build(__doc__)
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
