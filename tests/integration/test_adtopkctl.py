#!/usr/bin/env python3
"""adtopkctl and the control socket against real daemons: looking, changing, who may, and clients
that misbehave.

usage: test_adtopkctl.py BUILD [unittest's arguments]
"""
import grp
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent
from ranks import Job, Rank
from service import wait_for

NOBODY = 65534
TENSORS = [("embed.weight", "f32", "both", (64, 64)), ("layer.weight", "f32", "both", (32, 64)),
           ("layer.bias", "f32", "dense", (64,))]
REFUSED = 1
DENIED = 4
UNKNOWN = 6


def user(uid, groups=()):
    """What a child runs to become this user, and no more than a member of these groups."""
    def become():
        die_with_parent()
        os.setgroups(list(groups))
        os.setgid(uid)
        os.setuid(uid)
    return become


class Training(threading.Thread):
    """Trains a job in the background, so that changes find steps in flight."""

    def __init__(self, job):
        super().__init__()
        self.job = job
        self.stopping = threading.Event()
        self.problem = None

    def run(self):
        try:
            while not self.stopping.is_set():
                status, _, withdrawn, _ = self.job.steps(3)
                if status != "ok" or withdrawn:
                    raise AssertionError(f"{status}, {withdrawn} steps withdrawn")
        except Exception as problem:  # told by __exit__() in the test's thread
            self.problem = problem

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        self.stopping.set()
        self.join()
        if kind is None and self.problem is not None:
            raise self.problem


class Daemons(unittest.TestCase):
    """Two daemons for all tests of a class, and a name for the job of each."""

    settings = {}
    serial = 0

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2, settings=cls.settings)
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()
        os.chmod(cls.cluster.directory, 0o755)

    def setUp(self):
        Daemons.serial += 1
        self.name = f"job{Daemons.serial}"

    def tearDown(self):
        for daemon in self.cluster.daemons:
            self.assertIsNone(daemon.process.poll(), daemon.log_tail())
            self.assertEqual(daemon.ask("peers")[0], 0)

    def joined(self, homes=(0, 1), run="0", policy="-"):
        job = Job(self.cluster, BUILD, self.name, list(homes), TENSORS, policy, run)
        self.addCleanup(job.kill)
        return job.join()

    def ask(self, *command, node=0, become=None, stdin=None, timeout=60):
        """Runs adtopkctl, as another user if `become`; returns (exit status, stdout, stderr)."""
        daemon = self.cluster.daemons[node]
        done = subprocess.run(
            [daemon.programs["adtopkctl"], "--socket", daemon.control, *command], input=stdin or "",
            capture_output=True, text=True, timeout=timeout, check=False,
            preexec_fn=become or die_with_parent)
        return done.returncode, done.stdout, done.stderr

    def text(self, *command, expected=0, **more):
        """Its text, which fits 80 columns."""
        code, out, error = self.ask(*command, **more)
        self.assertEqual(code, expected, out + error)
        self.assertLessEqual(max(map(len, out.splitlines()), default=0), 80, out)
        return out

    def document(self, *command, **more):
        code, out, error = self.ask("--json", *command, **more)
        self.assertEqual(code, 0, error)
        document = json.loads(out)
        self.assertEqual(document["schema"], 1)
        return document

    def fails(self, expected, *command, words=(), **more):
        code, out, error = self.ask(*command, **more)
        self.assertEqual((code, out), (expected, ""), error)
        self.assertTrue(error.startswith("adtopkctl: "), error)
        for word in words:
            self.assertIn(word, error)

    def need_other_users(self):
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        os.chmod(BUILD, os.stat(BUILD).st_mode | 0o555)
        if self.ask("--version", become=user(NOBODY))[0] != 0:
            self.skipTest("other users cannot run the programs of this build")


class Looking(Daemons):
    def test_every_command(self):
        job = self.joined()
        job.steps(12)
        for words, holds in (("status", self.name), ("jobs", "1 of 2 ranks here"),
                             ("peers", "up"), ("stats", "non-zeros"),
                             (f"stats {self.name}", self.name),
                             (f"tensors {self.name}", "embed.weight"),
                             ("policy get", "adtopk"), (f"policy get {self.name}", "sparsifier"),
                             (f"policy log {self.name}", "no changes"),
                             ("verify", "conserved"), (f"verify {self.name}/0", "conserved"),
                             ("policy keys", "density"), ("sparsifiers", "redsync-trim")):
            with self.subTest(words):
                self.assertIn(holds, self.text(*words.split()))
        self.assertEqual(self.document("status")["draining"], False)
        entry, = [one for one in self.document("jobs")["jobs"] if one["name"] == self.name]
        self.assertEqual((entry["owner"], entry["steps_done"], entry["tensors"],
                          entry["policy_version"]), (os.getuid(), 12, 3, 0))
        peer, = self.document("peers")["peers"]
        self.assertEqual((peer["node"], peer["state"]), (1, "up"))
        self.assertGreater(peer["bytes_sent"], 0)
        tensors = self.document("tensors", self.name, "--first", "1")
        self.assertEqual([one["name"] for one in tensors["tensors"]],
                         ["layer.weight", "layer.bias"])
        self.assertIn("none from number 99 on", self.text("tensors", self.name, "--first", "99"))
        self.assertEqual([one["sparsifier"] for one in tensors["tensors"]], ["adtopk", "dense"])
        self.assertEqual(self.document("policy", "get", self.name)["policy"]["density"], 0.01)
        self.assertEqual(self.document("policy", "get")["policy"]["density"], 0.01)
        self.assertEqual(self.document("policy", "log", self.name)["changes"], [])
        verified = self.document("verify", self.name)
        self.assertEqual((verified["conserved"], verified["checked"], verified["unbalanced"]),
                         (True, 3, 0))
        job.end()

    def test_rates(self):
        job = self.joined()
        with Training(job):
            header, titles, *lines = self.text(
                "stats", "--interval", "0.3", "--count", "2", self.name).splitlines()
            self.assertIn("ms per step", header)
            self.assertIn("steps/s", titles)
            self.assertEqual(len(lines), 2)
            for line in lines:
                name, steps = line.split()[:2]
                self.assertEqual(name, self.name)
                self.assertGreater(float(steps), 0)
            code, out, _ = self.ask("--json", "stats", "--interval", "0.1", "--count", "2")
            self.assertEqual(code, 0)
            clocks = [json.loads(line)["clock_s"] for line in out.splitlines()]
            self.assertEqual(len(clocks), 3)
            self.assertEqual(clocks, sorted(clocks))
        job.end()

    def test_which_job(self):
        jobs = [self.joined(run=run) for run in ("r1", "r2")]
        uid = os.getuid()
        self.fails(REFUSED, "tensors", self.name,
                   words=(f"fits 2 jobs: {uid}:{self.name}/r1, {uid}:{self.name}/r2",))
        for name in (f"{self.name}/r2", f"{uid}:{self.name}/r2"):
            self.assertEqual(self.document("tensors", name)["run_id"], "r2")
        self.assertEqual(len(self.document("stats", self.name)["jobs"]), 2)
        for job in jobs:
            job.end()
        self.fails(REFUSED, "policy", "get", f"{self.name}/r1", words=("has ended",))
        self.fails(REFUSED, "tensors", "nobody's", words=('no job "nobody\'s"',))

    def test_without_a_daemon(self):
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as directory:
            nowhere = ("--socket", os.path.join(directory, "none"))
            self.fails(3, "jobs", *nowhere, words=("none", "does adtopkd run"))
            out = self.text("policy", "check", "density=0.5", *nowhere)
            self.assertRegex(out, r"density +0\.5\n")
            policy = os.path.join(directory, "policy.json")
            with open(policy, "w", encoding="utf-8") as file:
                file.write('{"rules": [{"match": "a*", "density": 0.5}]}')
            code, out, _ = self.ask("policy", "check", policy, "--json", *nowhere)
            self.assertEqual((code, json.loads(out)["policy"]["rules"][0]["density"]), (0, 0.5))
            self.fails(REFUSED, "policy", "check", "-", stdin='{"densty": 1}', words=("densty",))
            self.fails(REFUSED, "policy", "check", "-", stdin="{",
                       words=("standard input:1:1: this \"{\" is never closed",))
            with open(policy, "w", encoding="utf-8") as file:
                file.write('{"density": 0.5,\n "values": bf16}\n')
            self.fails(REFUSED, "policy", "check", policy, *nowhere,
                       words=(policy + ":2:12: a text stands in double quotes: write \"bf16\"",
                              '\n   "values": bf16}\n             ^'))
            self.fails(REFUSED, "policy", "check", "-", "--socket", "none",
                       stdin='{"densty": 1,\n"scope": "nodes"}',
                       words=("standard input:1:2: unknown key", 'did you mean "density"?',
                              "standard input:2:10: ", 'did you mean "node"?'))
            self.fails(REFUSED, "policy", "check", "", words=('cannot open ""',))
            key = os.path.join(directory, "key")
            public = self.text("keygen", "--out", key).strip()
            self.assertEqual(len(public), 40)
            self.assertEqual(os.stat(key).st_mode & 0o777, 0o600)
            with open(key, encoding="utf-8") as file:
                self.assertIn(public, file.read())
            self.fails(REFUSED, "keygen", "--out", key, words=(key, "exists"))


class Changing(Daemons):
    def set(self, *policy, **more):
        return self.document("policy", "set", self.name, *policy, **more)

    def test_policy(self):
        """Pairs and documents, merged and replaced, from both nodes, while steps are in flight."""
        job = self.joined(policy='{"density":0.25}')
        with Training(job):
            self.assertEqual(self.set("values=f32")["version"], 1)
            self.assertEqual(self.set("-", node=1, stdin='{"scope": "rank"}')["version"], 2)
            last = self.set('rules=[{"match":"embed*","density":0.5}]', "scope=node")
            self.assertEqual(last["version"], 3)
            self.fails(REFUSED, "policy", "set", self.name, "density=2", words=("density",))
            self.fails(REFUSED, "policy", "set", self.name, "densty=1", words=("densty",))
            self.fails(REFUSED, "policy", "set", self.name, "-", stdin='{"densty":\n1,}',
                       words=("standard input:2:2: a comma before \"}\"", "\n  1,}\n   ^"))
            self.fails(REFUSED, "policy", "set", self.name, "-", stdin='{\n"densty": 1}',
                       words=('policy:2:1: unknown key "densty"; did you mean "density"?',
                              '\n  "densty": 1}\n  ^'))
            self.fails(REFUSED, "policy", "set", self.name, "a=1", "a=2", words=("\"a\"",))
            self.fails(REFUSED, "policy", "set", "--if-version", "1", self.name, "density=0.5",
                       words=("version",))
            self.assertIn(f"{self.name}, run 0: policy version 4 holds from step ",
                          self.text("policy", "set", "--if-version", "3", "--replace", self.name,
                                    "sparsifier=topk"))
        for node in (0, 1):
            got = self.document("policy", "get", self.name, node=node)
            self.assertEqual((got["version"], got["policy"]["sparsifier"], got["policy"]["values"],
                              got["policy"]["density"]), (4, "topk", "bf16", 0.01))
            changes = self.document("policy", "log", self.name, node=node)["changes"]
            self.assertEqual([one["version"] for one in changes], [4, 3, 2, 1])
            self.assertEqual([one["node"] for one in changes], [0, 0, 1, 0])
            self.assertEqual({one["uid"] for one in changes}, {os.getuid()})
            self.assertEqual(len({one["pid"] for one in changes}), 4)
            self.assertEqual(changes[1]["step"], last["step"])
            self.assertEqual([one["sparsifier"] for one in self.document(
                "tensors", self.name, node=node)["tensors"]], ["topk", "topk", "dense"])
            self.text("verify", self.name, node=node)
        self.assertRegex(self.cluster.daemons[0].log(), rf"info change: uid {os.getuid()}, "
                         rf"pid \d+ amends the policy of job {os.getuid()}:{self.name}/0: ")
        job.end()
        log = self.document("policy", "log", self.name)
        self.assertEqual((log["state"], log["changes"]), ("done", changes))
        self.assertIn("policy version 4 when it ended", self.text("policy", "log", self.name))

    def test_rules_that_match_no_tensor(self):
        job = self.joined(policy='{"rules":[{"match":"Embed*","density":0.5}]}')
        self.assertIn('warning: no tensor\'s name matches the rule "Embed*"', self.text("jobs"))
        with Training(job):
            self.assertEqual(self.set('rules=[{"match":"embed*","density":0.5},'
                                      '{"match":"bias","density":0.5}]')["unmatched_rules"], ["bias"])
            self.assertEqual(self.document("policy", "get", self.name, node=1)["unmatched_rules"],
                             ["bias"])
            out = self.text("policy", "set", self.name, 'rules=[{"match":"x","density":0.5}]')
            self.assertIn('warning: no tensor\'s name matches the rule "x"', out)
        job.end()

    def test_nothing_is_lost(self):
        """Gradients that round, through every kind of change, and back."""
        job = self.joined((0, 1, 1))
        job.each("gradients random 1")
        with Training(job):
            for policy in ("density=0.001", "scope=rank", "values=f32", "sparsifier=topk",
                           "scope=node", "density=1", "sparsifier=dense", "dense_values=bf16",
                           "sparsifier=adtopk"):
                self.set(policy)
                for node in (0, 1):
                    self.text("verify", self.name, node=node)
        job.end()

    def test_nobody_trains(self):
        """The step from which it is to hold does not come: a time limit, and another client."""
        job = self.joined()
        job.steps(2)
        self.fails(UNKNOWN, "policy", "set", "--timeout", "300", self.name, "density=0.5",
                   words=("no outcome within 300 ms", "waits for ranks to begin step 2; version 1 "
                          "of the policy holds from step 4"))
        self.assertIn("waits for ranks to begin step 2", self.text("status"))
        self.fails(REFUSED, "policy", "set", "--timeout", "300", self.name, "density=0.6")
        job.steps(8)
        self.assertEqual(self.document("policy", "get", self.name)["policy"]["density"], 0.5)
        job.end()

    def test_it_says_what_it_waits_for(self):
        job = self.joined()
        job.steps(2)
        daemon = self.cluster.daemons[0]
        with subprocess.Popen(
                [daemon.programs["adtopkctl"], "--socket", daemon.control, "policy", "set",
                 self.name, "density=0.5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, preexec_fn=die_with_parent) as client:
            self.assertEqual(client.stderr.readline(),
                             "adtopkctl: the job waits for ranks to begin step 2; version 1 of the "
                             "policy holds from step 4\n")
            job.steps(8)
            out, error = client.communicate(timeout=20)
        self.assertEqual((client.returncode, error), (0, ""))
        self.assertIn("policy version 1 holds from step 4", out)
        job.end()

    def test_a_client_that_is_killed_while_it_waits(self):
        job = self.joined()
        job.steps(2)
        daemon = self.cluster.daemons[0]
        client = subprocess.Popen(
            [daemon.programs["adtopkctl"], "--socket", daemon.control, "policy", "set", self.name,
             "density=0.5"], preexec_fn=die_with_parent)
        wait_for(lambda: self.document("policy", "get", self.name)["next_version"] == 1)
        client.kill()
        client.wait()
        job.steps(8)
        self.assertEqual(self.document("policy", "get", self.name)["version"], 1)
        wait_for(lambda: "whose client has gone" in daemon.log())
        job.end()

    def test_a_job_that_ends_meanwhile(self):
        job = self.joined()
        job.steps(2)
        daemon = self.cluster.daemons[0]
        client = subprocess.Popen(
            [daemon.programs["adtopkctl"], "--socket", daemon.control, "policy", "set", self.name,
             "density=0.5"], stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent)
        wait_for(lambda: self.document("policy", "get", self.name)["next_version"] == 1)
        job.kill()
        _, error = client.communicate(timeout=20)
        self.assertEqual(client.returncode, REFUSED, error)
        self.assertIn("adtopkctl: ", error)

    def test_verify_cannot_tell(self):
        """What is not known is no lost gradient: a job that forms, that ended, that never was."""
        half = Rank(BUILD, self.cluster.address(0), "half", 0, 2)
        self.addCleanup(half.kill)
        half.do(half.opening)
        self.fails(UNKNOWN, "verify", "half", words=("not running",))
        job = self.joined()
        job.steps(2)
        self.assertEqual(self.ask("verify")[0], UNKNOWN)  # one is well, of one nobody knows
        job.kill()
        wait_for(lambda: self.ask("verify", self.name)[0] == UNKNOWN)
        self.fails(UNKNOWN, "verify", self.name, words=("has ended",))
        self.fails(UNKNOWN, "verify", "nobody's", words=("no job",))
        self.assertRegex(self.text("jobs", expected=5), rf"{self.name} .* failed .*\n.*\n.*\n"
                         r"  failed: rank [01] is gone")

    def test_drain(self):
        job = self.joined()
        self.assertIn("takes no new ranks", self.text("drain"))
        self.assertIn("draining", self.text("status"))
        self.assertTrue(self.document("status")["draining"])
        late = Rank(BUILD, self.cluster.address(0), "late", 0, 1)
        self.addCleanup(late.kill)
        late.send(late.opening)
        name, sentence = late.error()
        self.assertEqual(name, "state", sentence)
        self.assertIn("node 0 is draining", sentence)
        self.assertEqual(job.steps(5)[0], "ok")
        self.assertIn("takes new ranks", self.text("drain", "--undo"))
        self.assertFalse(self.document("status")["draining"])
        again = Rank(BUILD, self.cluster.address(0), "late", 0, 1)
        self.addCleanup(again.kill)
        again.do(again.opening)
        job.end()


class Stuck(Daemons):
    """A job that does not go on: every node names the culprit, for how long, and exits with 5."""

    settings = {"stuck_after_ms": 1000}

    def setUp(self):
        super().setUp()
        self.since = [len(daemon.log()) for daemon in self.cluster.daemons]

    def waiting(self, node):
        """What the job waits for as a node says it, without the time."""
        code, out, _ = self.ask("--json", "status", node=node)
        entry, = [one for one in json.loads(out)["jobs"] if one["name"] == self.name]
        if entry["waiting"] is None:
            return None
        return {**entry["waiting"], "seconds": None, "code": code,
                "sentence": entry["waiting_for"]}

    def assert_waiting(self, sentence, **expected):
        """Soon all nodes say the same, and that the job is stuck."""
        expected = {"seconds": None, "stuck": True, "code": 5, "step": None, "operation": None,
                    "tensor": None, "rank": None, "node": None, "pid": None,
                    "sentence": sentence, **expected}
        deadline = time.monotonic() + 10
        while any(self.waiting(node) != expected for node in (0, 1)):
            if time.monotonic() > deadline:
                self.assertEqual([self.waiting(0), self.waiting(1)], [expected] * 2)
            time.sleep(0.05)
        for node in (0, 1):  # the log follows at the node's next look, up to a quarter second later
            wait_for(lambda: " is stuck: " in self.log(node))

    def log(self, node):
        return self.cluster.daemons[node].log()[self.since[node]:]

    def assert_logged(self, sentence):
        """One warning on each node, and one more when it is over."""
        name = f"warning session: job {os.getuid()}:{self.name}/0"
        for node in (0, 1):
            wait_for(lambda: "goes on after" in self.log(node))
            self.assertEqual(self.log(node).count(f"{name} is stuck: "), 1, self.log(node))
            self.assertEqual(self.log(node).count(f"{name} goes on after "), 1, self.log(node))
            self.assertRegex(self.log(node), rf"is stuck: for [12] s it has waited for .*"
                             rf"{re.escape(sentence)}")

    def test_a_rank_that_is_stopped(self):
        job = self.joined((0, 0, 1, 1))
        job.steps(3)
        late = job.ranks[3]
        late.do("push 0")
        for rank in job.ranks[:3]:
            rank.send("steps 1")
        late.process.send_signal(signal.SIGSTOP)
        sentence = (f"rank 3 on node 1 (pid {late.process.pid}) to push tensor 'layer.weight' of "
                    "step 3")
        self.assert_waiting(sentence, kind="push", step=3, tensor="layer.weight", rank=3, node=1,
                            pid=late.process.pid)
        for node in (0, 1):
            for command in ("status", "jobs"):
                text = " ".join(self.text(command, expected=5, node=node).split())
                self.assertRegex(text, re.escape(f"waits for {sentence}, for") +
                                 r" \d+ s already: it is stuck")
        late.process.send_signal(signal.SIGCONT)
        late.do("steps 1")
        for rank in job.ranks[:3]:
            rank.answer()
        self.assert_logged("rank 3 on node 1")
        for node in (0, 1):
            self.assertEqual(self.ask("status", node=node)[0], 0)
        job.end()

    def test_a_node_whose_ranks_have_not_begun(self):
        """Its daemon has nothing under way, and only hears that the other one waits."""
        job = self.joined()
        job.steps(2)
        job.ranks[0].send("steps 1")
        self.assert_waiting(f"rank 1 on node 1 (pid {job.ranks[1].process.pid}) to push tensor "
                            "'embed.weight' of step 2", kind="push", step=2, rank=1, node=1,
                            tensor="embed.weight", pid=job.ranks[1].process.pid)
        job.ranks[1].do("steps 1")
        job.ranks[0].answer()
        self.assert_logged("rank 1 on node 1")
        job.end()

    def test_an_operation(self):
        job = self.joined()
        job.ranks[1].send("barrier")
        self.assert_waiting(f"rank 0 on node 0 (pid {job.ranks[0].process.pid}) to call operation 0",
                            kind="operation", operation=0, rank=0, node=0,
                            pid=job.ranks[0].process.pid)
        job.ranks[0].do("barrier")
        job.ranks[1].answer()
        job.end()

    def test_a_rank_that_does_not_leave(self):
        job = self.joined()
        job.steps(1)
        job.ranks[0].end()
        self.assert_waiting(f"rank 1 on node 1 (pid {job.ranks[1].process.pid}) to leave",
                            kind="leave", rank=1, node=1, pid=job.ranks[1].process.pid)
        job.end()

    def test_another_limit_while_it_runs(self):
        job = self.joined()
        job.steps(2)
        job.ranks[0].send("steps 1")
        wait_for(lambda: self.waiting(0) is not None and self.waiting(0)["stuck"])
        daemon = self.cluster.daemons[0]
        with open(daemon.config, encoding="utf-8") as text:
            document = json.load(text)
        for limit, stuck in ((60000, False), (1000, True)):
            with open(daemon.config, "w", encoding="utf-8") as out:
                json.dump({**document, "stuck_after_ms": limit}, out)
            daemon.signal(signal.SIGHUP)
            wait_for(lambda: self.waiting(0)["stuck"] == stuck)
            self.assertEqual(self.ask("status")[0], 5 if stuck else 0)
        job.ranks[1].do("steps 1")
        job.ranks[0].answer()
        job.end()


class Rights(Daemons):
    settings = {"control_group": grp.getgrgid(1).gr_name}

    def setUp(self):
        super().setUp()
        self.need_other_users()

    def test_a_stranger(self):
        job = self.joined()
        job.steps(2)
        stranger = {"become": user(NOBODY)}
        for words in ("status", "jobs", "peers", "stats", f"tensors {self.name}", "policy get",
                      f"policy get {self.name}", f"policy log {self.name}"):
            self.text(*words.split(), **stranger)
        for words in (f"policy set {self.name} density=0.5", f"verify {self.name}", "verify",
                      "drain", "drain --undo"):
            with self.subTest(words):
                self.fails(DENIED, *words.split(), words=(f"uid {NOBODY} may not",), **stranger)
        self.assertFalse(self.document("status")["draining"])
        self.assertEqual(self.document("policy", "get", self.name)["version"], 0)
        self.assertRegex(self.cluster.daemons[0].log(),
                         rf"warning refused: refused a request of uid {NOBODY}, pid \d+: .*drain")
        job.end()

    def test_the_owner(self):
        """... of a job may change it, and nothing else."""
        mine = [Rank(BUILD, self.cluster.address(node), self.name, rank, 2, prepare=user(NOBODY))
                for rank, node in enumerate((0, 1))]
        for rank in mine:
            self.addCleanup(rank.kill)
            rank.send(rank.opening, "tensor a f32 both 32x32", "commit")
        for rank in mine:
            for _ in range(3):
                rank.answer()
            rank.send("steps 3")
        for rank in mine:
            rank.answer()
        owner = {"become": user(NOBODY)}
        self.text("verify", f"{NOBODY}:{self.name}", **owner)
        self.fails(UNKNOWN, "policy", "set", "--timeout", "200", self.name, "density=0.5",
                   words=("no outcome",), **owner)
        for rank in mine:
            rank.send("steps 8")
        for rank in mine:
            rank.answer()
        change, = self.document("policy", "log", self.name)["changes"]
        self.assertEqual(change["uid"], NOBODY)
        self.fails(DENIED, "drain", **owner)
        for rank in mine:
            rank.end()

    def test_the_group(self):
        self.fails(DENIED, "drain", become=user(NOBODY, groups=(2, 3)))
        self.text("drain", become=user(NOBODY, groups=(2, 1, 3)))
        self.text("drain", "--undo", become=user(NOBODY, groups=(1,)))

    def test_a_daemon_of_another_user(self):
        """Its own user may do everything, and it has no more rights than that user."""
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as directory:
            os.chown(directory, NOBODY, NOBODY)
            os.chmod(directory, 0o755)
            control = os.path.join(directory, "c")
            daemon = self.cluster.daemons[0]
            process = subprocess.Popen(
                [daemon.programs["adtopkd"], "--socket", os.path.join(directory, "s"),
                 "--control-socket", control, "--control-group", "no-such-group-here"],
                stderr=subprocess.DEVNULL, preexec_fn=user(NOBODY))
            try:
                wait_for(lambda: self.ask("status", "--socket", control)[0] == 0)
                self.text("drain", "--socket", control, become=user(NOBODY))
                self.text("drain", "--socket", control)  # root
                self.fails(DENIED, "drain", "--socket", control, become=user(54321, groups=(1,)))
            finally:
                process.terminate()
                process.wait(10)


class Hidden(Daemons):
    """Settings for who sees whose jobs, and who may open sessions."""
    settings = {"control_group": grp.getgrgid(1).gr_name, "session_group": grp.getgrgid(3).gr_name,
                "jobs_visible": "own"}

    def setUp(self):
        super().setUp()
        self.need_other_users()

    def mine(self, uid):
        """A job of this user, member of the group, on both nodes, which has done some steps."""
        ranks = [Rank(BUILD, self.cluster.address(node), self.name, rank, 2, prepare=user(uid, (3,)))
                 for rank, node in enumerate((0, 1))]
        for rank in ranks:
            self.addCleanup(rank.kill)
            rank.send(rank.opening, "tensor a f32 both 32x32", "commit", "steps 3")
        for rank in ranks:
            for _ in range(4):
                rank.answer()
        return ranks

    def test_jobs_of_others(self):
        """Every answer that names jobs, live and ended."""
        ranks = {uid: self.mine(uid) for uid in (NOBODY, 54321)}
        self.name = f"{self.name}-ended"
        for rank in self.mine(54321):
            rank.end()
        self.name = self.name.removesuffix("-ended")
        looks = ("status", "jobs", "stats")
        asks = ("tensors", "stats", "plan", "policy get", "policy log", "verify",
                "policy set --timeout 100")
        hidden = (f"54321:{self.name}", f"54321:{self.name}/0", f"{self.name}-ended")
        stranger = {"become": user(NOBODY)}
        for words in looks:
            with self.subTest(words):
                jobs = self.document(words, **stranger)["jobs"]
                self.assertEqual({one["owner"] for one in jobs}, {NOBODY})
                self.assertNotIn("54321", self.text(words, **stranger))
        for words in asks:
            for name in hidden:
                with self.subTest(f"{words} {name}"):
                    change = ["density=0.5"] if "set" in words else []
                    absent = self.ask(*words.split(), "no-such", *change, **stranger)
                    self.assertIn(absent[0], (REFUSED, UNKNOWN))
                    self.assertEqual(self.ask(*words.split(), name, *change, **stranger),
                                     (absent[0], "", absent[2].replace("no-such", name)))
        self.assertEqual(self.document("tensors", self.name, **stranger)["owner"], NOBODY)
        self.text("verify", **stranger)
        for seer in ({}, {"become": user(55, groups=(1,))}):  # root, and the control group
            jobs = self.document("status", **seer)["jobs"]
            self.assertEqual({one["owner"] for one in jobs}, {NOBODY, 54321})
            self.assertIn(f"{self.name}-ended", {one["name"] for one in jobs})
            self.fails(REFUSED, "tensors", self.name, words=("fits 2 jobs",), **seer)
        for rank in sum(ranks.values(), []):
            rank.end()

    def test_seen_again(self):
        """The setting is live."""
        ranks = self.mine(54321)
        daemon = self.cluster.daemons[0]
        with open(daemon.config, encoding="utf-8") as text:
            document = json.load(text)
        for visible in ("all", "own"):
            with open(daemon.config, "w", encoding="utf-8") as out:
                json.dump({**document, "jobs_visible": visible}, out)
            daemon.signal(signal.SIGHUP)
            wait_for(lambda: (self.name in self.text("jobs", become=user(NOBODY))) ==
                     (visible == "all"))
        for rank in ranks:
            rank.end()

    def test_sessions(self):
        """Members, root and nobody else; who is refused leaves a line in the log."""
        group = grp.getgrgid(3).gr_name
        for become in (user(NOBODY, groups=(1, 4)), user(54321)):
            rank = Rank(BUILD, self.cluster.address(0), self.name, 0, 1, prepare=become)
            self.addCleanup(rank.kill)
            rank.send(rank.opening)
            status, sentence = rank.error()
            self.assertEqual(status, "denied")
            self.assertRegex(sentence, rf"user \d+ may not open sessions .* group {group} may")
        self.assertRegex(self.cluster.daemons[0].log(), rf"warning refused: refused a trainer of "
                         rf"uid {NOBODY}, process \d+: user {NOBODY} may not open sessions")
        self.joined().end()  # root
        for rank in self.mine(NOBODY):
            rank.end()


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def request(kind, body=b"", version=1):
    return b"\x08" + varint(version) + varint(kind << 3 | 2) + varint(len(body)) + body


class Hostile(Daemons):
    """Clients that misbehave, while a job trains."""

    def setUp(self):
        super().setUp()
        self.job = self.joined()
        self.training = Training(self.job)
        self.training.__enter__()

    def tearDown(self):
        self.training.__exit__(None, None, None)
        self.job.end()
        super().tearDown()

    def connect(self, timeout=20):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(client.close)
        client.settimeout(timeout)
        client.connect(self.cluster.daemons[0].control)
        return client

    def refused(self, packet, status, words):
        """The daemon answers the packet with this error, then hangs up."""
        client = self.connect()
        client.send(packet)
        reply = client.recv(65536)
        self.assertEqual(reply[:2], b"\x08" + bytes([status]))
        self.assertIn(words, reply)
        self.assertEqual(client.recv(65536), b"")

    def test_rubbish(self):
        self.refused(b"\xff" * 100, 10, b"malformed")
        self.refused(request(2)[:-1], 10, b"malformed")  # half a message
        self.refused(request(7, b"\x0a\x7fabc"), 10, b"malformed")
        self.refused(b"\x08\x01", 10, b"no kind")
        self.refused(request(99), 10, b"kind 99")
        self.refused(request(2, version=2), 10, b"version 1")
        self.refused(bytes(60001), 10, b"more than 60000")
        self.refused(request(6, b"\x0a\x01x\x10" + varint(2**40)), 2, b'no job "x"')

    def test_bad_fields(self):
        name = self.name.encode()
        job = b"\x0a" + bytes([len(name)]) + name
        policy = b"\x12\x02{}"
        self.refused(request(8, job + policy), 2, b"a time limit of 0 ms")
        self.refused(request(8, job + policy + b"\x30" + varint(600001)), 2, b"600001")
        self.refused(request(8, job + b"\x30\x01"), 13, b"policy")  # no document
        self.refused(request(8, policy + b"\x30\x01"), 2, b'no job ""')
        self.refused(request(10, job), 2, b"a time limit of 0 ms")
        self.refused(request(7, b"\x0a\xc8\x01" + b"n" * 200), 2, b"no job")
        self.refused(request(8, job + b"\x12\x94\x23" + b"[" * 4500 + b"\x30\x01"), 13, b"policy")

    def test_a_flood(self):
        """Many who say nothing, and many who ask and do not read: others are served."""
        limit = 32 if os.getuid() == 0 else 8
        flood = []
        try:
            while True:
                flood.append(self.connect())
                if len(flood) % 2 == 0:
                    flood[-1].send(request(3))
                if len(flood) > 3 * limit:
                    break
        except (BlockingIOError, BrokenPipeError, ConnectionError):
            pass
        dropped = 0
        for client in flood:
            client.settimeout(0.05)
            try:
                while client.recv(65536):
                    pass
                dropped += 1
            except socket.timeout:
                pass
            except ConnectionError:
                dropped += 1
            client.close()
        self.assertGreaterEqual(dropped, len(flood) - limit)
        self.text("status")

    def test_floods_of_refusals_do_not_fill_the_log(self):
        before = len(self.cluster.daemons[0].log())
        for _ in range(300):
            client = self.connect()
            client.send(b"\xff")
            client.recv(1000)
            client.close()
        self.assertLess(len(self.cluster.daemons[0].log()) - before, 100000)

    def test_one_that_stalls(self):
        client = self.connect(timeout=30)
        began = time.monotonic()
        self.assertEqual(client.recv(100), b"")
        self.assertGreater(time.monotonic() - began, 9)
        self.text("status")


if __name__ == "__main__":
    unittest.main()
