#!/usr/bin/env python3
"""A job that waits: what the daemons say it waits for.

usage: test_stuck.py BUILD [unittest's arguments]
"""
import json
import os
import re
import signal
import time
import unittest

from cluster import PATIENCE
from control import Daemons
from scene import SOON
from service import wait_for


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
        deadline = time.monotonic() + PATIENCE
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
            self.assertRegex(self.log(node), rf"is stuck: for \d+ s it has waited for .*"
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

    def test_a_rank_that_does_not_commit(self):
        job = self.joined((0, 0, 1, 1))
        job.steps(1)
        for rank in job.ranks[:3]:
            rank.send("tensor more f32 dense 10", "commit")
        self.assert_waiting(f"rank 3 on node 1 (pid {job.ranks[3].process.pid}) to commit more tensors",
                            kind="commit", step=1, rank=3, node=1, pid=job.ranks[3].process.pid)
        job.ranks[3].send("tensor more f32 dense 10", "commit")
        for rank in job.ranks:
            rank.answer()
            rank.answer()
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


class Soon(Daemons):
    """With the default settings, long before the job counts as stuck."""

    def test_a_rank_that_is_stopped(self):
        """Within 2 s, the promise, each node names rank, node, process and time."""
        job = self.joined((0, 0, 1, 1))
        job.steps(3)
        late = job.ranks[3]
        late.process.send_signal(signal.SIGSTOP)
        for rank in job.ranks[:3]:
            rank.send("steps 1")
        names = re.compile(rf"waits for rank 3 on node 1 \(pid {late.process.pid}\) to push tensor "
                           r"'\S+' of step 3, for \d+ s")
        wait_for(lambda: all(names.search(" ".join(self.text("status", node=node).split()))
                             for node in (0, 1)), seconds=SOON)
        late.process.send_signal(signal.SIGCONT)
        late.do("steps 1")
        for rank in job.ranks[:3]:
            rank.answer()
        job.end()

    def test_a_step_and_an_operation(self):
        """A rank waits in a step, the other one in an operation: the first has not called that, and is told
        so when push_timeout is over."""
        job = self.joined(policy=json.dumps({"round_timeout": 1, "push_timeout": 4}, separators=(",", ":")))
        job.steps(2)
        job.ranks[0].send("steps 1")
        job.ranks[1].send("barrier")
        for rank in job.ranks:
            name, sentence = rank.error()
            self.assertEqual(name, "timeout")
            self.assertIn("rank 0 on node 0", sentence)
            self.assertIn("to call operation 0", sentence)


if __name__ == "__main__":
    unittest.main()
