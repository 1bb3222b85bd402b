#!/usr/bin/env python3
"""tests/bench/cluster: tiny runs of its commands on a network in a box, with the peers that are here;
their documents are complete, and nothing is left behind however they end. No time decides anything.

usage: test_cluster.py BUILD [unittest's arguments]
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from build import BUILD
from cluster import PATIENCE, die_with_parent

COMMANDS = os.path.realpath(os.path.join(os.path.dirname(__file__), "../bench/cluster"))
ROUNDS = os.path.join(COMMANDS, "rounds")
TINY = ["--nodes", "2", "--size", "1M", "--rate", "10gbit", "--turns", "2", "--warmup", "1"]
IMPOSSIBLE = 77
POLICIES = ("dense", "dense-bf16", "topk", "rows", "topk+curve")
ROW_KEYS = {"contender", "step_ms", "cpu_ms", "sent_bytes", "received_bytes", "adtopk", "wire_ms",
            "loops_ms", "ratio", "gain"}

# Node 1 connects to node 0, and each prints its connection's congestion control.
CONNECTED = '''
import socket, subprocess, sys, box
SHOW = "print(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(bytes(1))[0].decode())"
ACCEPT = "import socket; ear = socket.create_server(('', 5000)); print(flush=True); link = ear.accept()[0]; "
BEGIN = "import socket; link = socket.create_connection(('10.0.0.1', 5000)); "

def start(node, program):
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                            preexec_fn=node.enter)

def main(_):
    with box.Box(2, 0, 0) as made:
        accepts = start(made.nodes[0], ACCEPT + SHOW)
        accepts.stdout.readline()
        begins = start(made.nodes[1], BEGIN + SHOW)
        print(begins.communicate()[0].strip(), accepts.communicate()[0].strip())
'''
NO_CONTROL = '''
import box
def main(_):
    box.CONGESTION_CONTROL = "none"
    try:
        box.Box(2, 0, 0)
    except box.Impossible as error:
        print(error)
'''


def command(*arguments):
    return [ROUNDS, "--build", BUILD, *arguments]


def run(*arguments, program="rounds", environment=None):
    return subprocess.run([os.path.join(COMMANDS, program), "--build", BUILD, *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, env=environment, preexec_fn=die_with_parent, timeout=250,
                          check=False)


def folders():
    return set(glob.glob("/tmp/adtopk-box-*"))


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


class InBox(unittest.TestCase):
    """Where namespaces can be made."""
    program, always = "rounds", TINY

    def setUp(self):
        self.before = folders()

    def run_or_skip(self, *arguments):
        done = run(*self.always, *arguments, program=self.program)
        if done.returncode == IMPOSSIBLE:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(folders() - self.before, set())
        return done


class Rounds(InBox):
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
        """Beside the same policy with the programs of another build, which is this one too."""
        document = json.loads(self.run_or_skip(
            "--json", "--policy", 'mine={"sparsifier": "randomk", "density": 0.5}',
            "--beside", BUILD).stdout)
        row, other = document["rows"]
        self.assertEqual((row["contender"], other["contender"]), ("mine", "mine+beside"))
        self.assertGreater(row["adtopk"]["wire_bytes"], 0.2 * document["gradient"]["bytes"])
        self.assertEqual(row["adtopk"]["wire_bytes"], other["adtopk"]["wire_bytes"])

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
        deadline = time.monotonic() + PATIENCE
        while any(began(pid) == start for pid, start in started.items() if start is not None):
            self.assertLess(time.monotonic(), deadline, "processes were left behind")
            time.sleep(0.05)

    def test_interrupted(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                process, started = self.start_long_one()
                process.send_signal(number)
                output, errors = process.communicate(timeout=PATIENCE)
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


class Training(InBox):
    program = "training"
    always = ["--nodes", "2", "--hidden", "8", "--context", "4", "--embedding", "4", "--batch", "64"]

    def test_at_a_rate_that_is_found(self):
        document = json.loads(self.run_or_skip("--json", "--turns", "2", "--steps", "3", "--contenders",
                                               "compute", "gloo-f32", "adtopk").stdout)
        rows = {row["contender"]: row for row in document["rows"]}
        missing = {one["contender"] for one in document["missing"]}
        self.assertEqual(set(rows) | missing, {"compute", "gloo-f32", "adtopk"})
        self.assertLessEqual(missing, {"gloo-f32"})
        self.assertEqual(bool(document["rates"]), not missing)
        self.assertGreaterEqual(document["box"]["rate_bit_s"], 10**6)
        self.assertEqual(document["model"]["tensors"], 7)
        for name, row in rows.items():
            with self.subTest(name):
                steps = row["step_ms"]["samples"]
                self.assertIn(len(steps), range(2, 7))
                self.assertGreater(min(steps), 0)
                self.assertAlmostEqual(row["share"] * row["step_ms"]["median"],
                                       rows["compute"]["step_ms"]["median"])
        self.assertEqual(len(rows["compute"]["step_ms"]["samples"]), 6)
        self.assertGreater(rows["adtopk"]["sent_bytes"], 0)

    def test_text(self):
        done = self.run_or_skip("--rate", "0", "--turns", "1", "--warmup", "0", "--contenders", "compute",
                                "--policy", 'mine={"sparsifier": "topk", "density": 0.5}')
        self.assertIn("links: not limited", done.stdout)
        self.assertRegex(done.stdout, r"compute .* 100\.0% ")
        self.assertRegex(done.stdout, r"\nmine ")


class Torch(InBox):
    program = "torch"
    always = ["--nodes", "2", "--width", "32", "--layers", "2", "--turns", "2", "--warmup", "1", "--steps", "2"]

    def test_all_contenders(self):
        """The command itself checks that ranks end with equal parameters."""
        document = json.loads(self.run_or_skip("--json", "--policy", 'mine={"density": 0.5}').stdout)
        rows = {row["contender"]: row for row in document["rows"]}
        self.assertEqual(list(rows), ["compute", "ddp", "exchange", "gloo-f32", "fp16", "powersgd", "dense",
                                      "adtopk", "optimiser", "forward", "mine"])
        self.assertEqual(document["model"], {"tensors": 4, "parameters": 2112, "batch": 8, "view": False})
        for name, row in rows.items():
            with self.subTest(name):
                self.assertGreater(row["step_ms"]["min"], 0)
                self.assertAlmostEqual(row["share"] * row["step_ms"]["median"],
                                       rows["compute"]["step_ms"]["median"])
                if name in ("compute", "ddp"):  # acknowledgements of the contender before it may be late
                    self.assertLess(row["sent_bytes"], 4 * 2112)
                else:
                    self.assertGreater(row["sent_bytes"], 2112 * 4 / 100)
        self.assertGreater(rows["mine"]["sent_bytes"], rows["adtopk"]["sent_bytes"])
        self.assertGreater(rows["gloo-f32"]["sent_bytes"], 4 * 2112)

    def test_text(self):
        done = self.run_or_skip("--rate", "0", "--turns", "1", "--view", "--contenders", "compute", "powersgd",
                                "adtopk")
        self.assertIn("links: not limited", done.stdout)
        self.assertIn("gradients are views of buckets", done.stdout)
        self.assertRegex(done.stdout, r"compute .* 100\.0% ")
        self.assertRegex(done.stdout, r"\nadtopk ")


class Regret(InBox):
    program = "regret"
    always = ["--nodes", "2", "--size", "1M", "--turns", "2", "--warmup", "0", "--pass-ms", "5"]

    def test_fixed_policies(self):
        document = json.loads(self.run_or_skip(
            "--json", "--rates", "1gbit", "--contenders", "dense-4m", "oktopk-1m").stdout)
        cells = [(cell["model"], cell["rate_bit_s"], cell["tensors"]) for cell in document["cells"]]
        self.assertEqual(cells, [("vgg16", 10**9, 32), ("bert-base", 10**9, 199), ("lstm", 10**9, 11)])
        for cell in document["cells"]:
            times = {row["contender"]: row["step_ms"]["median"] for row in cell["rows"]}
            self.assertEqual(set(times), {"dense-4m", "oktopk-1m"})
            self.assertEqual(times[cell["best"]], min(times.values()))
            self.assertGreaterEqual(min(times.values()), 4.9)  # the last gradient comes at 5 ms
            self.assertEqual((cell["regret"], cell["settled"]), (None, None))

    def test_auto(self):
        """Once there is a planner, its steps are counted; before, it is named as missing."""
        document = json.loads(self.run_or_skip(
            "--json", "--models", "lstm", "--rates", "0", "--settle", "5", "--still", "3",
            "--contenders", "dense-4m", "auto").stdout)
        cell, = document["cells"]
        if document["missing"]:
            self.assertEqual(document["missing"][0]["contender"], "auto")
            self.skipTest(document["missing"][0]["reason"])
        times = {row["contender"]: row["step_ms"]["median"] for row in cell["rows"]}
        self.assertEqual(cell["best"], "dense-4m")
        self.assertAlmostEqual(cell["regret"], times["auto"] / times["dense-4m"] - 1)
        self.assertIn(cell["settled"]["steps"], range(3, 6))

    def test_text(self):
        done = self.run_or_skip("--models", "lstm", "--rates", "1gbit", "0", "--contenders", "dense-4m",
                                "--policy", 'mine={"sparsifier": "topk"}')
        self.assertRegex(done.stdout, r"\nstep \(ms\) +1 Gbit/s +no limit\n")
        self.assertRegex(done.stdout, r"\nmine +[0-9.]+ +[0-9.]+\n")
        self.assertRegex(done.stdout, r"\nbest fixed +(mine|dense-4m) +")


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

    def test_options_of_the_others(self):
        for program, arguments, words in (
                ("training", ["--share", "0"], "'0' is not above 0"),
                ("training", ["--lr", "x"], "'x' is not above 0"),
                ("training", ["--steps", "1001"], "'1001' is not a whole number from 1 to 1000"),
                ("training", ["--contenders", "gloo-f16"], "no contender 'gloo-f16'"),
                ("training", ["--contenders", "adtopk"], "--rate: is found only beside compute"),
                ("torch", ["--contenders", "nothing"], "no contender 'nothing'"),
                ("torch", ["--policy", "forward={}"], "'forward' is a contender already"),
                ("torch", ["--rate", "5"], "--rate: at least 1mbit"),
                ("regret", ["--contenders", "dense"], "no contender 'dense'"),
                ("regret", ["--models", "gpt2"], "invalid choice"),
                ("regret", ["--rates", "1gbit", "5"], "--rate: at least 1mbit"),
                ("regret", ["--pass-ms", "nan"], "--pass-ms: 0 to 60000")):
            with self.subTest(arguments):
                done = run(*arguments, program=program)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(words, done.stderr)

    def test_no_torch(self):
        done = run("--torch", "/nothing/python", program="torch")
        self.assertEqual((done.returncode, done.stdout), (IMPOSSIBLE, ""))
        self.assertIn("no PyTorch: /nothing/python: No such file", done.stderr)

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

    def in_a_box(self, program):
        """What the main() of a program prints that has a box, as the commands have."""
        done = subprocess.run([sys.executable, "-B", "-c", program + "\nbox.enclose(main)"], cwd=COMMANDS,
                              capture_output=True, text=True, check=False)
        if "cannot make" in done.stderr:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        return done.stdout.strip() or done.stderr

    def test_congestion_control(self):
        """All connections have the same one, whatever the machine has: those that a node begins, and those
        that it accepts. Where the kernel lacks it the sentence names it."""
        self.assertEqual(self.in_a_box(CONNECTED), "cubic cubic")
        self.assertIn("congctl none: Error: Unknown tcp congestion algorithm", self.in_a_box(NO_CONTROL))


if __name__ == "__main__":
    unittest.main(verbosity=2)
