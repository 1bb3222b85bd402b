#!/usr/bin/env python3
"""A node with a known key that lies about a job in which it has no ranks.

usage: test_liar.py BUILD [unittest's arguments]
"""
import json
import os
import subprocess
import unicodedata
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster, die_with_parent
from ranks import Job, RankError
from scene import TENSORS, text
from service import wait_for

LIAR = 2
SPARSE = text(sparsifier="topk", density=0.3, values="f32")
MEMBERS = text(sparsifier="topk", density=0.3, values="f32", on_peer_loss="shrink", shrink_after=1,
               grow=True)
# Who has not joined may say one thing while ranks are missing, and who joins is compared.
MAY_FAIL = ("fail", "fail-long", "fail-other", "fail-nobody", "join-policy", "join-rank")
HARMLESS = ("prepare", "state", "commit", "fetch", "split", "leave", "policy", "estimates",
            "waiting", "residual", "unreadable", "frame")
TRAINING_LIES = 300  # of each kind to each node
FORMING_LIES = 40
FAILING_LIES = 250  # one in nine names what makes a node heed it: that none does is 1 in 10^12
STUCK_MS = 1000


class Liar:
    """test-liar in the place of the cluster's last node."""

    def __init__(self, cluster):
        daemon = cluster.daemons[LIAR]
        daemon.stop()
        with open(daemon.config, encoding="utf-8") as config:
            document = json.load(config)
        peers = [word for peer in document["peers"] for word in (peer["endpoint"], peer["key"])]
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tests", "integration", "test-liar"), str(LIAR),
             document["key_file"], document["listen"], *peers],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent)

    def tell(self, kind, job, count):
        """Returns when both nodes have got all of them."""
        self.process.stdin.write(f"{kind} {os.geteuid()} {job.name} 0 {count}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer != "ok\n":
            raise AssertionError(f"the liar answered '{answer}' to {kind}")

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code


class Lies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=3, keys=True,
                              settings={"stuck_after_ms": STUCK_MS}).start()
        cls.addClassCleanup(cls.cluster.close)
        cls.liar = Liar(cls.cluster)
        cls.addClassCleanup(cls.liar.process.kill)

    @classmethod
    def tearDownClass(cls):
        assert cls.liar.end() == 0
        cls.cluster.stop()  # with exit status 0: sanitizers have found nothing

    def tearDown(self):
        for node in (0, 1):
            self.assert_printable(self.cluster.daemons[node].log())

    def job(self, name, policy=SPARSE):
        job = Job(self.cluster, BUILD, name, [0, 1], TENSORS, policy)
        self.addCleanup(job.kill)
        return job

    def undisturbed(self, steps):
        """The hash of so many steps' updates."""
        job = self.job("undisturbed").join()
        job.each("gradients random 1")
        status, accepted, withdrawn, updates = job.steps(steps)
        self.assertEqual((status, accepted, withdrawn), ("ok", steps, 0))
        job.end()
        return updates

    def states(self, job):
        return [one["state"] for node in (0, 1) for one in self.cluster.status(node)["jobs"]
                if one["name"] == job.name]

    def assert_printable(self, sentence):
        bad = [one for one in sentence if one != "\n" and unicodedata.category(one) in
               ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")]
        self.assertEqual(bad, [], sentence)

    def test_while_it_trains(self):
        self.train_on("trains", SPARSE, TRAINING_LIES)

    def test_while_it_may_lose_nodes(self):
        """No lie makes a node go on without another, or take the liar in."""
        self.train_on("shrinks", MEMBERS, FORMING_LIES)

    def train_on(self, name, policy, lies):
        job = self.job(name, policy).join()
        job.each("gradients random 1")
        for kind in HARMLESS + MAY_FAIL:
            with self.subTest(kind):
                job.steps(1)
                job.steps_while(lambda: self.liar.tell(kind, job, lies))
        self.assertEqual(self.states(job), ["active", "active"])
        self.assertEqual([one["nodes"] for node in (0, 1) for one in self.cluster.status(node)["jobs"]
                          if one["name"] == name], [2, 2])
        status, accepted, withdrawn, updates = job.steps(1)
        job.end()
        self.assertEqual((status, withdrawn), ("ok", 0))
        self.assertGreater(accepted, 3 * len(HARMLESS + MAY_FAIL))  # it trained meanwhile
        self.assertEqual(updates, self.undisturbed(accepted))

    def stuck(self, job):
        waiting = [one["waiting"] for node in (0, 1) for one in self.cluster.status(node)["jobs"]
                   if one["name"] == job.name]
        return all(one is not None and one["stuck"] for one in waiting)

    def test_frames_that_hide_a_stuck_job(self):
        job = self.job("stuck").join()
        job.steps(2)
        job.ranks[0].send("steps 1")

        def stuck():
            self.liar.tell("frame", job, FORMING_LIES)
            return self.stuck(job)
        wait_for(stuck, "no node says that the job is stuck")
        job.ranks[1].do("steps 1")
        job.ranks[0].answer()
        job.end()

    def forming(self, kind, lies):
        """Lies told when only rank 0 has committed; returns what each rank gets after that."""
        job = self.job(kind)
        for rank in job.ranks:
            rank.do(rank.opening, *job.registrations())
        job.ranks[0].send("commit")
        wait_for(lambda: self.cluster.ask(0, "ranks", job.name)["ranks"][0]["state"] != "open")
        self.liar.tell(kind, job, lies)
        job.ranks[1].send("commit")
        answers = []
        for rank in job.ranks:
            try:
                answers.append(rank.answer())
            except RankError as error:
                answers.append(error)
        return job, answers

    def test_while_it_forms(self):
        expected = self.undisturbed(5)
        for kind in HARMLESS:
            with self.subTest(kind):
                job, answers = self.forming(kind, FORMING_LIES)
                self.assertEqual([one for one in answers if isinstance(one, RankError)], [])
                job.each("gradients random 1")
                self.assertEqual(job.steps(5), ("ok", 5, 0, expected))
                self.assertEqual(self.states(job), ["active", "active"])
                job.end()

    def test_may_fail_what_forms(self):
        for kind in MAY_FAIL:
            with self.subTest(kind):
                job, answers = self.forming(kind, FAILING_LIES)
                for error in answers:
                    self.assertIsInstance(error, RankError)
                    self.assertIn(f"node {LIAR}", str(error))
                    self.assert_printable(str(error))
                job.kill()


if __name__ == "__main__":
    unittest.main()
