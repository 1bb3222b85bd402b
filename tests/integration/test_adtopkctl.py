#!/usr/bin/env python3
"""adtopkctl against real daemons: what it shows and what it changes.

usage: test_adtopkctl.py BUILD [unittest's arguments]
"""
import json
import os
import pwd
import re
import signal
import subprocess
import tempfile
import unittest

from build import ADTOPKCTL, BUILD
from cluster import PATIENCE, die_with_parent
from control import DENIED, REFUSED, UNKNOWN, Daemons, Training
from ranks import Rank
from service import wait_for


class Looking(Daemons):
    def test_every_command(self):
        job = self.joined()
        job.steps(12)
        for words, holds in (("status", self.name), ("jobs", "1 of 2 ranks here"),
                             ("peers", "up"), ("stats", "non-zeros"),
                             (f"stats {self.name}", self.name),
                             (f"ranks {self.name}", "2 of 2 ranks, of user"),
                             (f"tensors {self.name}", "embed.weight"),
                             ("policy get", "topk"), (f"policy get {self.name}", "sparsifier"),
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
        document = self.document("ranks", self.name)
        paces = [rank["pace_us"] for rank in document["ranks"]]
        self.assertEqual([(rank["rank"], rank["node"], rank["pid"], rank["state"], rank["step"],
                           rank["pace_steps"], round(rank["late_us"], 6)) for rank in document["ranks"]],
                         [(number, number, job.ranks[number].process.pid, "ready", 12, 11,
                           round(paces[number] - min(paces), 6)) for number in range(2)])
        self.assertEqual(document["others"], [{"node": 1, "answered": True}])
        listed = self.text("ranks", self.name, node=1)  # in the same order, whoever is asked
        self.assertEqual([line.split()[:2] for line in listed.splitlines()[2:]], [["0", "0"], ["1", "1"]])
        tensors = self.document("tensors", self.name, "--first", "1")
        self.assertEqual([one["name"] for one in tensors["tensors"]],
                         ["layer.weight", "layer.bias"])
        for command in ("tensors", "plan"):
            said = self.text(command, self.name, "--first", "99")
            self.assertIn("there is no tensor 99: the job has 3 tensors, numbered from 0\n", said)
            self.assertNotIn("none", said)
        self.assertEqual([one["sparsifier"] for one in tensors["tensors"]], ["topk", "dense"])
        self.assertEqual(self.document("policy", "get", self.name)["policy"]["density"], "auto")
        self.assertEqual(self.document("policy", "get")["policy"]["density"], "auto")
        self.assertEqual(self.document("policy", "log", self.name)["changes"], [])
        verified = self.document("verify", self.name)
        self.assertEqual((verified["conserved"], verified["checked"], verified["unbalanced"]),
                         (True, 3, 0))
        tensors = self.document("tensors", self.name)["tensors"]
        self.assertEqual({one["residual_step"] for one in tensors}, {verified["step"]})
        self.assertEqual([one["residual_magnitude"] > 0 for one in tensors], [True, True, False])
        stats, = self.document("stats", self.name)["jobs"]
        sparse = tensors[:2]
        self.assertAlmostEqual(stats["residual_mean"], sum(one["residual_magnitude"] for one in sparse)
                               / sum(one["elements"] for one in sparse))
        self.assertEqual(stats["residual_step"], verified["step"])
        self.assertIn("residual", self.ask("tensors", self.name, "--wide")[1])
        job.end()

    def test_late_rank(self):
        """It is alone on its node, and late there and for others."""
        job = self.joined()
        job.ranks[1].send("pace 40")
        job.ranks[1].answer()
        job.steps(6)
        for node in range(2):
            late = {rank["rank"]: rank["late_us"]
                    for rank in self.document("ranks", self.name, node=node)["ranks"]}
            self.assertEqual(late[0], 0)
            self.assertGreater(late[1], 20000)
        job.ranks[1].send("pace 0")
        job.ranks[1].answer()
        job.end()

    def test_two_runs_that_ended(self):
        """Both are shown where they are named, and counted elsewhere."""
        for _ in range(2):
            self.joined().end()
        wait_for(lambda: self.text("stats", self.name).count(f"job {self.name}, run 0, done") == 2)
        self.assertRegex(self.text("stats"), r"\d+ jobs ended: adtopkctl stats NAME shows them")
        self.assertNotIn(f"job {self.name},", self.text("stats"))
        self.assertRegex(self.text("jobs"), r"ended \d+ s ago")

    def test_ranks_of_a_node_that_is_silent(self):
        """Its ranks are missing, and it is named; the others are told of at once when it is known."""
        job = self.joined()
        job.steps(2)
        other = self.cluster.daemons[1].process
        other.send_signal(signal.SIGSTOP)
        try:
            document = self.document("ranks", self.name)
            self.assertEqual([rank["node"] for rank in document["ranks"]], [0])
            self.assertEqual(document["others"], [{"node": 1, "answered": False}])
        finally:
            other.send_signal(signal.SIGCONT)
        wait_for(lambda: len(self.document("ranks", self.name)["ranks"]) == 2)
        job.end()

    def test_changed_keys(self):
        """Those that differ from the built-in default are marked, whoever set them."""
        job = self.joined(policy='{"density":0.1,"rules":[{"match":"*.bias","density":0.5}]}')
        document = self.document("policy", "get", self.name)
        self.assertEqual(sorted(document["changed_keys"]), ["budget", "density", "rules"])
        text = self.text("policy", "get", self.name)
        self.assertRegex(text, r"\n\* density +0.1\n")
        self.assertRegex(text, r"\n  sparsifier +topk\n")
        self.assertTrue(text.endswith("* not the built-in default\n"), text)
        entry, = [one for one in self.document("jobs")["jobs"] if one["name"] == self.name]
        self.assertEqual({key: entry["policy_changes"][key] for key in ("density", "rules")},
                         {key: document["policy"][key] for key in ("density", "rules")})
        self.assertEqual(list(entry["policy_changes"]), document["changed_keys"])
        self.assertRegex(self.text("jobs"), r"policy set: .*density=0\.1\b")
        self.assertEqual(self.document("policy", "get")["changed_keys"], [])
        self.assertNotIn("*", self.text("policy", "get"))
        job.end()

    def test_many_changed_keys(self):
        """However many there are, all of them are shown."""
        changes = {"density": 0.1, "warmup_epochs": 3, "epoch_turns": 2000, "fibre_turns": 2, "global_turns": 3,
                   "total_turns": 5000, "estimate_period": 7, "sample": 0.02, "beta": 0.5, "gamma": 2, "clip": 5,
                   "lookahead": 0.5, "values": "f32", "dense_values": "bf16", "indices": "raw", "priority": 4,
                   "weight": 2, "bucket_bytes": 262144, "replan": False, "on_peer_loss": "fail", "tie_breaker": 1,
                   "join_timeout": 301.5, "push_timeout": 1801.5, "round_timeout": 302.5, "wait_limit": 602.5,
                   "shrink_after": 4.5, "scope": "rank", "fibres": "chunk", "fit": "gamma", "threshold": 0.5,
                   "reduce": "sum", "non_finite": "propagate", "dense_collective": "one-shot",
                   "on_rank_loss": "wait", "sparse_collective": "hierarchical", "momentum_masking": False}
        job = self.joined(policy=json.dumps(changes, separators=(",", ":")))
        said = " ".join(self.text("jobs").split())
        for key, value in changes.items():
            self.assertIn(f" {key}={json.dumps(value)}", said)
        job.end()

    def test_rates(self):
        job = self.joined()
        tensors = self.document("tensors", self.name)["tensors"]  # nobody has verified the job
        self.assertEqual([one["residual_magnitude"] for one in tensors], [None] * 3)
        self.assertIsNone(self.document("stats", self.name)["jobs"][0]["residual_mean"])
        with Training(job):
            wait_for(lambda: min(self.rates()) > 0)  # a job that trains need not get far in 0.3 s
            code, out, _ = self.ask("--json", "stats", "--interval", "0.1", "--count", "2")
            self.assertEqual(code, 0)
            clocks = [json.loads(line)["clock_s"] for line in out.splitlines()]
            self.assertEqual(len(clocks), 3)
            self.assertEqual(clocks, sorted(clocks))
        job.end()

    def rates(self):
        """Steps per second, twice."""
        header, titles, *lines = self.text(
            "stats", "--interval", "0.3", "--count", "2", self.name).splitlines()
        self.assertIn("ms per step", header)
        self.assertIn("steps/s", titles)
        self.assertEqual([line.split()[0] for line in lines], [self.name] * 2)
        return [float(line.split()[1]) for line in lines]

    def test_a_daemon_that_does_not_answer(self):
        """A change that it has got is carried out when it goes on; a question is not worth a word."""
        process = self.cluster.daemons[0].process
        later = "in time; the request may still be carried out"
        process.send_signal(signal.SIGSTOP)
        try:
            self.fails(3, "drain", "--timeout", "300", words=(later,))
            self.assertNotIn(later, self.ask("status", "--timeout", "300")[2])
        finally:
            process.send_signal(signal.SIGCONT)
        wait_for(lambda: self.document("status")["draining"])
        self.text("drain", "--undo")

    def test_which_job(self):
        jobs = [self.joined(run=run) for run in ("r1", "r2")]
        uid = os.getuid()
        self.fails(REFUSED, "tensors", self.name,
                   words=(f"fits 2 jobs: {uid}:{self.name}/r1, {uid}:{self.name}/r2; name one of them",))
        self.fails(REFUSED, "tensors", f"{self.name}/..", words=("fits 2 jobs",))
        for name in (f"{self.name}/r2", f"{uid}:{self.name}/r2", f"{self.name}..2", f"{uid}:..{self.name[1:]}/..2"):
            self.assertEqual(self.document("tensors", name)["run_id"], "r2")
        owner = f"{pwd.getpwuid(uid).pw_name}:{self.name}"
        self.assertEqual(self.document("tensors", f"{owner}/r2")["run_id"], "r2")
        self.assertEqual(len(self.document("stats", "--job", owner)["jobs"]), 2)
        self.fails(REFUSED, "ranks", f"no-such-user:{self.name}", words=("no job",))
        for command in ("stats", "jobs"):
            self.assertEqual(len(self.document(command, self.name)["jobs"]), 2)
            shown, = self.document(command, f"{owner}/r2")["jobs"]
            self.assertEqual(shown["run_id"], "r2")
            self.fails(REFUSED, command, "nobody's", words=('no job "nobody\'s" has or had ranks',))
        for job in jobs:
            job.end()
        wait_for(lambda: self.ask("policy", "get", f"{self.name}/r1")[0] != 0)
        self.fails(REFUSED, "policy", "get", f"{self.name}/r1", words=("has ended",))
        self.fails(REFUSED, "tensors", "nobody's", words=('no job "nobody\'s"',))

    def test_without_a_daemon(self):
        with tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp") as directory:
            nowhere = ("--socket", os.path.join(directory, "none"))
            self.fails(3, "jobs", *nowhere, words=("none", "does adtopkd run"))
            self.assertNotIn("--socket", self.ask("jobs", *nowhere)[2])
            bare = subprocess.run([ADTOPKCTL, "jobs"], capture_output=True, text=True, check=False, env={})
            if bare.returncode == 3:  # no daemon has the default socket
                self.assertIn("--socket names another one\n", bare.stderr)
            out = self.text("policy", "check", "density=0.5", *nowhere)
            self.assertRegex(out, r"density +0\.5\n")
            self.assertNotIn("this budget", out)
            self.assertIn("\nthis budget sends 1% of the entries, where no rule says otherwise\n", self.text(
                "policy", "check", "budget=as 1% bf16", "values=bf16", *nowhere))
            policy = os.path.join(directory, "policy.json")
            with open(policy, "w", encoding="utf-8") as file:
                file.write('{"rules": [{"match": "a*", "density": 0.5}]}')
            self.assertIn("does nothing without", self.text("policy", "check", '{"grow": true}', *nowhere))
            self.assertIn("ends after", self.text("policy", "check", "on_peer_loss=shrink", "wait_limit=1",
                                                  *nowhere))
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
            self.assertEqual(self.text("key", "show", key).strip(), public)
            os.chmod(key, 0o644)
            self.fails(DENIED, "key", "show", key, words=(key, "mode 0644"))
            os.chmod(policy, 0o644)
            self.fails(REFUSED, "key", "show", policy, words=(policy, "this is no key pair"))
            os.chmod(key, 0o600)
            self.fails(REFUSED, "key", "show", key + ".none", words=(key,))
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
            self.fails(REFUSED, "policy", "set", self.name, "density=.5x", words=('"density" is ".5x"',))
            self.fails(REFUSED, "policy", "set", self.name, "density=+5.", words=("from 1e-06 to 1",))
            self.fails(REFUSED, "policy", "set", "--if-version", "1", self.name, "density=0.5",
                       words=("version",))
            self.assertIn(f"{self.name}, run 0: policy version 4 holds from step ",
                          self.text("policy", "set", "--if-version", "3", "--replace", self.name,
                                    "sparsifier=topk"))
        for node in (0, 1):
            got = self.document("policy", "get", self.name, node=node)
            self.assertEqual((got["version"], got["policy"]["sparsifier"], got["policy"]["values"],
                              got["policy"]["density"]), (4, "topk", "auto", "auto"))
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
        # Until the other node says that its ranks have left, too.
        wait_for(lambda: self.document("policy", "log", self.name)["state"] != "active")
        log = self.document("policy", "log", self.name)
        for change in changes + log["changes"]:
            self.assertGreater(change.pop("since_s"), 0)
        self.assertEqual((log["state"], log["changes"]), ("done", changes))
        self.assertEqual(changes[0]["what"], "no rules")
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
        # All nodes have to know of it by then.
        self.fails(UNKNOWN, "policy", "set", "--timeout", "2000", self.name, "density=0.5",
                   words=("no outcome within 2000 ms", "waits for ranks to begin step 2; version 1 "
                          "of the policy holds from step 4"))
        self.assertIn("waits for ranks to begin step 2", self.text("status"))
        self.fails(REFUSED, "policy", "set", self.name, "density=0.6")
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
            out, error = client.communicate(timeout=PATIENCE)
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
        self.fails(REFUSED, "policy", "set", self.name, "density=0.3",
                   words=(f"under way, for which uid {os.getuid()}, pid {client.pid} on node 0 asked",))
        job.steps(8)
        self.assertEqual(self.document("policy", "get", self.name)["version"], 1)
        wait_for(lambda: re.search(rf"change: policy version 1 of job {os.getuid()}:{self.name}/0 holds from step "
                                   rf"\d+, set by uid {os.getuid()}, whose client has gone", daemon.log()))
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
        _, error = client.communicate(timeout=PATIENCE)
        self.assertEqual(client.returncode, REFUSED, error)
        self.assertIn("adtopkctl: ", error)

    def test_verify_cannot_tell(self):
        """What is not known is no lost gradient: a job that forms, or that ended."""
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
        self.fails(REFUSED, "verify", "nobody's", words=("no job",))
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
        again.do(again.opening, "tensor fc f32 both 30x20", "commit", "close")
        log = self.cluster.daemons[0].log()
        self.assertIn("job 'late' trains on this node alone: its world size is 1, and all of its ranks are here", log)
        self.assertNotIn(f"job '{self.name}' trains", log)
        job.end()

    def test_a_job_that_forms(self):
        """It has tensors, and no plan yet."""
        rank = Rank(BUILD, self.cluster.address(0), "forming", 0, 2)
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor fc f32 both 30x20")
        rank.send("commit")

        def told(command):
            return [one for one in self.document(command)["jobs"] if one["name"] == "forming"]

        wait_for(lambda: told("status")[0]["tensors"] == 1)
        self.assertIsNone(told("stats")[0]["residual_mean"])
        self.cluster.daemons[1].kill()
        wait_for(lambda: told("status")[0]["waiting_for"] == "rank 1 (node 1 is down)")
        self.cluster.restart(1)
        wait_for(lambda: told("status")[0]["waiting_for"] == "rank 1")

    def test_drain_beside_a_job_that_forms(self):
        """The rank for which a job waits is not new."""
        ranks = [Rank(BUILD, self.cluster.address(0), "forming", rank, 2) for rank in (0, 1)]
        for rank in ranks:
            self.addCleanup(rank.kill)
        ranks[0].do(ranks[0].opening)
        self.text("drain")
        self.addCleanup(self.text, "drain", "--undo")
        ranks[1].do(ranks[1].opening)


if __name__ == "__main__":
    unittest.main()
