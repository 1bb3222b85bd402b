#!/usr/bin/env python3
"""Jobs that go on without nodes that are lost, and take them in again, with real daemons.

usage: test_shrink.py BUILD [unittest's arguments]
"""
import json
import math
import os
import shutil
import signal
import tempfile
import time
import unittest

import reference
from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job, Rank
from scene import SANITIZED
from test_member_points import Pump
from training import read_floats

TENSORS = [("weights", "f32", "both", (64, 256)), ("bias", "f32", "both", (64,)),
           ("last", "f32", "dense", (128, 128)), ("rows", "f32", "list", (40, 30))]
ROWS = {"sparsifier": "topk", "density": 0.1, "values": "f32", "scope": "node", "reduce": "mean"}
LIMIT = PATIENCE if SANITIZED else 10  # seconds until the others have gone on: the promise
CHUNK = 10  # steps


def text(**changes):
    rules = [{"match": "rows", **{key: ROWS[key] for key in ("sparsifier", "density", "values")}}]
    return json.dumps({"on_peer_loss": "shrink", "shrink_after": 1, "wait_limit": 30,
                       **changes, "rules": rules + changes.get("rules", [])}, separators=(",", ":"))


class Scene(unittest.TestCase):
    """A job that trains."""

    HOMES = [0, 1, 2, 3, 3]
    SETTINGS = {"peer_timeout_ms": 2000}
    PACE = 0  # ms: how long a rank computes in each step
    KIND = "random"  # of gradients

    def setUp(self):
        self.cluster = self.enterContext(self.make_cluster())
        self.job = self.open("job", self.HOMES)
        self.taken = 3  # steps
        self.assertEqual(self.job.steps(self.taken)[0], "ok")

    def make_cluster(self):
        return Cluster(BUILD, nodes=4, settings=self.SETTINGS)

    def make_cluster_with_stores(self):
        folder = tempfile.mkdtemp(prefix="adtopk-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, folder, True)
        cluster = Scene.make_cluster(self)
        for daemon in cluster.daemons:
            daemon.variables["ADTOPK_STORE_FOLDER"] = f"{folder}/{daemon.node}"
        return cluster

    def open(self, name, homes, **changes):
        job = Job(self.cluster, BUILD, name, homes, TENSORS, text(**changes),
                  before=[f"gradients {self.KIND} 7", f"pace {self.PACE}"])
        self.addCleanup(job.kill)
        return job.join()

    def rest(self, node):
        return [rank for rank in self.job.ranks if self.HOMES[rank.rank] != node]

    def train_without(self, node, lose, steps=120):
        """Loses the node while all train. The others take their steps, with equal updates. Returns the
        longest time in which none of them went on, and some steps."""
        for rank in self.job.ranks:
            rank.send(*[f"steps {CHUNK}"] * (steps // CHUNK))
        lose()
        longest, then = 0, time.monotonic()
        for _ in range(steps // CHUNK):
            answers = {rank.answer() for rank in self.rest(node)}
            self.assertEqual(len(answers), 1, answers)
            self.assertRegex(answers.pop(), "^ok [0-9]+ 0 ")
            longest, then = max(longest, time.monotonic() - then), time.monotonic()
        self.taken += steps
        return longest

    def check_rest(self, node):
        """Every node that is left tells who is left, and finds every gradient of its ranks."""
        left = len(self.rest(node))
        for daemon in self.cluster.daemons:
            if daemon.node == node:
                continue
            job = self.cluster.status(daemon.node)["jobs"][0]
            self.assertEqual((job["state"], job["nodes"], job["world_size"], job["view_ranks"]),
                             ("active", 3, 5, left))
            self.assertEqual(daemon.ask("verify")[0], 0, daemon.ask("verify"))
            self.assertRegex(daemon.log(), f"goes on without node {node} from step .*: {left} of "
                                           "its 5 ranks are left")

    def again(self, node, *before, tensors=None):
        """The ranks of the node once more, each with its answer to commit to come."""
        again = [Rank(BUILD, self.cluster.address(node), "job", rank.rank, len(self.HOMES),
                      text(grow=True)) for rank in self.job.ranks
                 if self.HOMES[rank.rank] == node]
        for rank in again:
            self.addCleanup(rank.kill)
            said = [rank.opening, f"gradients {self.KIND} 7", f"pace {self.PACE}", *before,
                    *(tensors or self.job.registrations())]
            rank.send(*said, "commit")
            for _ in said:
                rank.answer()
        return again

    def train_with(self, rest, again):
        """They train until the others have joined, and all on from there, with equal updates."""
        pump = Pump(rest, self.taken)
        pump.until(lambda: not any(rank.pending() for rank in again), "nobody joins")
        pump.go_on()
        for rank in again:
            rank.answer()
            rank.send(f"until {pump.steps}")
        answers = pump.finish() | {rank.answer() for rank in again}
        self.assertEqual(len(answers), 1, answers)
        self.assertRegex(answers.pop(), f"^ok {pump.steps} 0 ")

    def kill_node(self, node):
        self.cluster.daemons[node].kill()
        for rank in self.job.ranks:
            if self.HOMES[rank.rank] == node:
                rank.process.kill()


class Grow(Scene):
    """Nodes that were lost join again while the others train, where stores outlive the daemons."""

    PACE = 5
    KIND = "integer"

    def make_cluster(self):
        return self.make_cluster_with_stores()

    def open(self, name, homes, **changes):
        return super().open(name, homes, grow=True, **changes)

    def join(self, node, *before):
        """While the others train the node joins. All end with equal updates."""
        again = self.again(node, *before)
        self.train_with(self.rest(node), again)
        return again

    def check_all(self, node, again):
        """All ranks take part, and tell the same."""
        ranks = sorted(self.rest(node) + again, key=lambda rank: rank.rank)
        told = [rank.do("members").split() for rank in ranks]
        self.assertEqual([said[:3] for said in told], [["5", "0", str(r)] for r in range(5)])
        self.assertEqual(len({said[4] for said in told}), 1, told)
        self.assertGreater(int(told[0][4]), 3)
        for daemon in self.cluster.daemons:
            job = [job for job in self.cluster.status(daemon.node)["jobs"]
                   if job["state"] == "active"][0]
            self.assertEqual((job["nodes"], job["view_ranks"]), (4, 5))
            self.assertEqual(daemon.ask("verify")[0], 0, daemon.ask("verify"))
        others = [daemon for daemon in self.cluster.daemons if daemon.node != node]
        self.assertIn(f"node {node} joins", others[0].log())

    def lost_nodes(self, node):
        return self.cluster.status(node)["jobs"][0].get("lost_nodes")

    def test_killed_node(self):
        self.train_without(3, lambda: self.kill_node(3), 50)
        self.cluster.restart(3)
        again = self.join(3)
        self.check_all(3, again)
        self.assertIn("begins without the residuals that it had", self.cluster.daemons[3].log())
        self.assertEqual(self.lost_nodes(0)["nodes"], 1)

    def test_silent_node(self):
        """It is stopped between two steps, and comes back with its residuals."""
        daemon = self.cluster.daemons[3]
        daemon.signal(signal.SIGSTOP)
        for rank in self.rest(3):
            rank.send("steps 50")
        for rank in self.rest(3):
            rank.answer()
        self.taken += 50
        daemon.signal(signal.SIGCONT)
        for rank in self.job.ranks[3:]:
            rank.send("steps 1")
            self.assertIn("went on without it", rank.error()[1])
        self.check_all(3, self.join(3))
        self.assertIn("keeps the residuals that it had", daemon.log())
        self.assertIn("node 3 has come back with its residuals", self.cluster.daemons[0].log())
        self.assertIsNone(self.lost_nodes(0))

    def check_means(self, updates, lost, joined):
        """The lists of a tensor, step by step behind those of setUp(). Node 3 is lost in one step, and takes
        part again from another one on, without the residuals that it had."""
        rows = reference.Tensor(TENSORS[3][3], self.HOMES, ROWS, False)
        for step in range(3 + len(updates)):
            if step == lost:
                del rows.groups[3], rows.residuals[3]
                rows.world = 3
            if step == joined:
                rows.groups.append((3, [3, 4]))
                rows.residuals.append([0.0] * rows.count)
                rows.world = 5
            wanted = rows.step([reference.gradient(self.KIND, 7, rank, step, 3, rows.count)
                                for rank in range(5)])
            for found, value in zip(updates[step - 3] if step >= 3 else (), wanted):
                self.assertAlmostEqual(found, value, delta=1e-6 * max(1, abs(value)), msg=f"step {step}")

    def test_lists_are_means(self):
        """Over the ranks that take part: all, those that are left, and all again."""
        trace = self.enterContext(tempfile.NamedTemporaryFile()).name
        self.job.ranks[0].do(f"trace {trace}")
        self.job.steps(3)
        self.kill_node(3)
        for rank in self.rest(3):
            rank.send("steps 7")
        for rank in self.rest(3):
            rank.answer()
        self.taken += 10
        self.cluster.restart(3)
        self.check_all(3, self.join(3))
        values, count = read_floats(trace), math.prod(TENSORS[3][3])
        size = sum(math.prod(shape) for _, _, _, shape in TENSORS)
        self.check_means([values[end - count:end] for end in range(size, len(values) + 1, size)], 6,
                         int(self.job.ranks[0].do("members").split()[4]))

    def test_lowest_node(self):
        self.train_without(0, lambda: self.kill_node(0), 50)
        self.cluster.restart(0)
        self.check_all(0, self.join(0))

    def test_killed_rank(self):
        """The daemon lives on, and the others may not have noticed yet."""
        for rank in self.job.ranks:
            rank.send("steps 100")
        self.job.ranks[4].process.kill()
        self.job.ranks[3].error()
        for rank in self.rest(3):
            rank.answer()
        self.taken += 100
        self.check_all(3, self.join(3))

    def test_no_broadcast(self):
        """Whoever ignores that ranks joined gets an error, not other parameters."""
        self.train_without(3, lambda: self.kill_node(3), 50)
        self.cluster.restart(3)
        for rank in self.rest(3):
            rank.do("rude")
            rank.send("steps 1000000")
        self.again(3)
        errors = [rank.error() for rank in self.rest(3)]
        self.assertIn("state", [name for name, _ in errors])
        for _, sentence in errors:
            self.assertIn("broadcast the parameters first", sentence)

    def test_other_tensors(self):
        """A newcomer that does not fit is told why; the job goes on."""
        self.train_without(3, lambda: self.kill_node(3), 50)
        self.cluster.restart(3)
        first = self.again(3, tensors=["tensor other f32 both 8x8"])[0]
        pump = Pump(self.rest(3), self.taken)
        pump.until(lambda: not first.pending(), "nobody is refused")
        self.assertIn("other", first.error()[1])
        self.assertEqual(len(pump.finish()), 1)

    def test_not_allowed(self):
        """Without the policy a rank of a lost node is refused."""
        self.job.end()
        self.job = Scene.open(self, "shrinks", self.HOMES)
        self.train_without(3, lambda: self.kill_node(3), 50)
        self.cluster.restart(3)
        rank = Rank(BUILD, self.cluster.address(3), "shrinks", 3, 5, text())
        self.addCleanup(rank.kill)
        for said in (rank.opening, *self.job.registrations()):
            rank.do(said)
        rank.send("commit")
        self.assertIn("runs without ranks on node 3", rank.error()[1])


class Shrink(Scene):
    def open(self, name, homes, **changes):
        dense = {"match": "last", "sparsifier": "dense", "dense_values": "f32"}
        return super().open(name, homes, rules=[dense], **changes)

    def residual(self, node):
        """What all residuals of the node add up to, and their magnitudes: it has told the others."""
        time.sleep(1.1)
        self.assertEqual(self.job.steps(1)[:2], ("ok", 4))
        self.job.each("barrier")  # which comes after what nodes tell
        return [float(word) for word in self.job.ranks[node].do("mass").split()]

    def check_declared(self, node, residual):
        """All others declare that as lost."""
        for daemon in self.cluster.daemons:
            if daemon.node == node:
                continue
            lost = self.cluster.status(daemon.node)["jobs"][0]["lost_nodes"]
            self.assertEqual((lost["nodes"], lost["unknown"], lost["step"]), (1, 0, 4))
            self.assertAlmostEqual(lost["sum"], residual[0], delta=1e-4)  # residuals are in f32
            self.assertAlmostEqual(lost["magnitude"], residual[1], delta=1e-3)
            self.assertGreater(lost["magnitude"], 10 * abs(lost["sum"]))
            self.assertIn(f"node {node} had in its residuals is lost: they added up to "
                          f"{lost['sum']:.9g} after step 4, their magnitudes to "
                          f"{lost['magnitude']:.9g}", daemon.log())
            self.assertIn("lost: with 1 node, whose residuals added up to",
                          " ".join(daemon.ask("jobs")[1].split()))

    def check_mean(self, step, ranks):
        """The dense tensor's update is the mean over these ranks."""
        with tempfile.NamedTemporaryFile() as trace:
            self.job.ranks[ranks[0]].do(f"trace {trace.name}")
            for rank in ranks:
                self.job.ranks[rank].send("steps 1")
            for rank in ranks:
                self.job.ranks[rank].answer()
            update = read_floats(trace.name)
        first = sum(math.prod(shape) for _, _, _, shape in TENSORS[:2])
        count = math.prod(TENSORS[2][3])
        pushed = [reference.gradient("random", 7, rank, step, 2, count) for rank in ranks]
        for found, values in zip(update[first:first + count], zip(*pushed)):
            self.assertAlmostEqual(found, sum(values) / len(ranks), delta=1e-6)

    def test_killed_node(self):
        """The others declare what it had, and take the mean of three ranks."""
        residual = self.residual(3)
        self.kill_node(3)
        for rank in self.rest(3):
            rank.send(f"steps {CHUNK}")
        begun = time.monotonic()
        answers = {rank.answer() for rank in self.rest(3)}
        self.assertLess(time.monotonic() - begun, LIMIT)
        self.assertRegex(answers.pop(), f"^ok {4 + CHUNK} 0 ")
        self.assertFalse(answers)
        self.check_rest(3)
        self.check_declared(3, residual)
        self.check_mean(4 + CHUNK, [0, 1, 2])

    def test_killed_coordinator(self):
        self.assertLess(self.train_without(0, lambda: self.kill_node(0)), LIMIT)
        self.check_rest(0)

    def save_rest(self, node, folder):
        """The ranks that are left save. Returns what each node has not sent."""
        rest = self.rest(node)
        for rank in rest:
            rank.send("mass", f"save {folder}")
        masses = [float(rank.answer().split()[0]) for rank in rest]
        self.assertEqual({rank.answer() for rank in rest}, {""})
        return masses

    def check_loads(self, folder, homes, members, exact, masses):
        """A run of these ranks gets what was not sent, as it was."""
        code, out, error = self.cluster.daemons[homes[0]].ask("checkpoint", "check", folder)
        self.assertEqual(code, 0, out + error)
        self.assertIn(f" {members} ranks on {len(set(homes))} nodes\n", out)
        again = self.open("again", homes)
        self.assertEqual({answer.split(" ", 1)[1] for answer in again.each(f"load {folder}")},
                         {f"{members} {exact}"})
        for found, saved in zip(again.each("mass"), masses):
            self.assertAlmostEqual(float(found.split()[0]), saved, delta=1e-5)
        self.assertEqual(again.steps(1)[0], "ok")

    def test_saved_without_a_node(self):
        """Means were over the ranks that were left, so in as many ranks nothing is scaled."""
        self.train_without(3, lambda: self.kill_node(3), steps=CHUNK)
        folder = tempfile.mkdtemp(prefix="adtopk-")
        self.addCleanup(shutil.rmtree, folder)
        masses = self.save_rest(3, folder)
        self.check_loads(folder, [0, 1, 2], 3, 1, masses)

    def test_saved_without_rank_0(self):
        """The lowest rank that is left takes its part, also over files of an earlier checkpoint."""
        folder = tempfile.mkdtemp(prefix="adtopk-")
        self.addCleanup(shutil.rmtree, folder)
        self.job.each(f"save {folder}")
        self.train_without(0, lambda: self.kill_node(0), steps=CHUNK)
        masses = self.save_rest(0, folder)
        self.assertEqual(sorted(os.listdir(folder)), [f"rank-{r}.adtopk" for r in (1, 2, 3)])
        self.check_loads(folder, [1, 2, 3, 3], 4, 0, masses)

    def test_killed_while_the_others_save(self):
        """They wait for rank 0, and save without it."""
        folder = tempfile.mkdtemp(prefix="adtopk-")
        self.addCleanup(shutil.rmtree, folder)
        for rank in self.rest(0):
            rank.send(f"save {folder}")
        self.kill_node(0)
        self.assertEqual({rank.answer() for rank in self.rest(0)}, {""})
        self.assertEqual(self.cluster.daemons[1].ask("checkpoint", "check", folder)[0], 0)

    def test_lost_in_mid_save(self):
        """Its file is not whole, so no file gets its name. The others save again, without it."""
        folder = tempfile.mkdtemp(prefix="adtopk-")
        self.addCleanup(shutil.rmtree, folder)
        self.job.end()
        self.job = Job(self.cluster, BUILD, "large", self.HOMES,
                       [("large", "f32", "dense", (2800, 3000))], text())
        self.addCleanup(self.job.kill)
        for rank in self.job.join().ranks:
            rank.send(f"save {folder}")
        while len(os.listdir(folder)) < 4:
            time.sleep(0.001)
        self.kill_node(0)
        for rank in self.rest(0):
            status, sentence = rank.error()
            self.assertEqual(status, "state", sentence)
            self.assertIn("a node was lost meanwhile", sentence)
        self.assertFalse([name for name in os.listdir(folder) if name.endswith(".adtopk")])
        for rank in self.rest(0):
            rank.send(f"save {folder}")
        self.assertEqual({rank.answer() for rank in self.rest(0)}, {""})
        self.assertEqual(self.cluster.daemons[1].ask("checkpoint", "check", folder)[0], 0)

    def test_one_after_the_other(self):
        """Half of two nodes goes on if it has the lower one."""
        self.train_without(3, lambda: self.kill_node(3), 50)
        for lost, left in ((2, 2), (1, 1)):
            for rank in self.job.ranks[:left + 1]:
                rank.send("steps 50")
            self.kill_node(lost)
            answers = {rank.answer() for rank in self.job.ranks[:left]}
            self.assertEqual(len(answers), 1, answers)

    def test_the_higher_half_waits(self):
        self.train_without(3, lambda: self.kill_node(3), 50)
        self.train_two_of_three(2)
        self.kill_node(0)
        self.job.ranks[1].send("steps 2")
        name, sentence = self.job.ranks[1].error()
        self.assertEqual(name, "peer", sentence)
        self.assertRegex(sentence, "node 0 is gone")

    def test_the_tie_breaker_goes_on(self):
        """The policy says which of two nodes goes on, and may be changed while they train."""
        self.job.end()
        self.job = self.open("pair", [0, 1])
        self.assertEqual(self.job.steps_while(
            lambda: self.cluster.daemons[0].ask("policy", "set", "pair", "tie_breaker=1"))[0], 0)
        self.job.steps(3)
        self.kill_node(0)
        self.job.ranks[1].send("steps 50")
        self.assertRegex(self.job.ranks[1].answer(), "^ok [0-9]+ 0 ")

    def train_two_of_three(self, lost):
        for rank in self.job.ranks[:3]:
            rank.send("steps 50")
        self.kill_node(lost)
        for rank in self.job.ranks[:2]:
            rank.answer()

    def test_killed_rank(self):
        """The daemon lives; its part of the job ends, with its other rank."""
        self.assertLess(self.train_without(3, self.job.ranks[4].process.kill), LIMIT)
        self.assertIn("rank 4 is gone", self.job.ranks[3].error()[1])
        self.check_rest(3)
        self.assertEqual(self.cluster.status(3)["jobs"][0]["state"], "failed")

    def test_daemon_that_stops(self):
        self.train_without(1, self.cluster.daemons[1].stop)
        self.check_rest(1)

    def test_silent_node(self):
        """A node that does not answer for a while is told that the others went on."""
        self.train_without(2, lambda: self.cluster.daemons[2].signal(signal.SIGSTOP))
        self.cluster.daemons[2].signal(signal.SIGCONT)
        self.assertIn("lost node 2 and went on without it", self.job.ranks[2].error()[1])
        self.check_rest(2)

    def test_short_silence(self):
        for rank in self.job.ranks:
            rank.send("steps 120")
        self.cluster.daemons[2].signal(signal.SIGSTOP)
        time.sleep(1)
        self.cluster.daemons[2].signal(signal.SIGCONT)
        answers = {rank.answer() for rank in self.job.ranks}
        self.assertEqual(len(answers), 1, answers)
        self.assertEqual(self.cluster.status(0)["jobs"][0]["nodes"], 4)

    def test_policy_change(self):
        """A job that would wait is told to go on, and takes a change of the policy afterwards."""
        self.job.end()
        self.job = self.open("waits", self.HOMES, on_peer_loss="wait")
        self.assertEqual(self.job.steps_while(
            lambda: self.cluster.daemons[0].ask("policy", "set", "waits", "on_peer_loss=shrink"))[0],
                         0)
        self.train_without(3, lambda: self.kill_node(3))
        for rank in self.job.ranks[3:]:
            rank.kill()
        del self.job.ranks[3:]
        self.assertEqual(self.job.steps_while(
            lambda: self.cluster.daemons[1].ask("policy", "set", "waits", "density=0.05"))[0], 0)


class Cut(Scene):
    """The network is cut between the nodes up to 2 and the others."""

    HOMES = [0, 1, 2, 3, 4]
    SETTINGS = {"peer_timeout_ms": 2000, "heartbeat_ms": 200}
    PACE = 5

    def make_cluster(self):
        return Cluster(BUILD, nodes=5, settings=self.SETTINGS, relays=True)

    def open(self, name, homes, **changes):
        return super().open(name, homes, grow=True, **changes)

    def between(self):
        return [relay for (one, other), relay in self.cluster.relays.items()
                if (one < 3) != (other < 3)]

    def same(self, ranks):
        """The answer of all these ranks."""
        answers = {rank.answer() for rank in ranks}
        self.assertEqual(len(answers), 1, answers)
        return answers.pop()

    def test_three_of_five(self):
        """They go on. The others wait, are told when they meet again, and join with ranks that start
        anew."""
        more, fewer = self.job.ranks[:3], self.job.ranks[3:]
        for relay in self.between():
            relay.hold()
        for rank in self.job.ranks:
            rank.send("steps 50")
        self.assertRegex(self.same(more), "^ok 53 0 ")
        self.assertTrue(all(rank.pending() for rank in fewer))
        for relay in self.between():
            relay.release()
        for rank in fewer:
            self.assertRegex(rank.error()[1], "lost node [34] and went on without it")
        self.taken += 50
        self.train_with(more, self.again(3) + self.again(4))
        job = self.cluster.status(4)["jobs"][-1]
        self.assertEqual((job["nodes"], job["view_ranks"]), (5, 5))


class Stores(Scene):
    """Where stores outlive the daemons, a node has time to come back."""

    def open(self, name, homes, **changes):
        """On a busy machine it takes seconds until all daemons run again, and their ranks are back."""
        back = self.id().endswith(("test_comes_back", "test_comes_back_after_a_loss",
                                   "test_all_come_back_after_a_loss"))
        return super().open(name, homes, shrink_after=15 if back else 4, **changes)

    def make_cluster(self):
        return self.make_cluster_with_stores()

    def test_killed_coordinator(self):
        self.assertLess(self.train_without(0, lambda: self.kill_node(0)), LIMIT)
        self.check_rest(0)

    def test_comes_back(self):
        for rank in self.job.ranks:
            rank.send("steps 120")
        self.cluster.daemons[1].kill()
        self.cluster.restart(1)
        answers = {rank.answer() for rank in self.job.ranks}
        self.assertEqual(len(answers), 1, answers)
        self.assertEqual(self.cluster.status(0)["jobs"][0]["nodes"], 4)

    def test_comes_back_after_a_loss(self):
        """A daemon that restarts hears from the others for whom not to wait."""
        self.train_without(3, lambda: self.kill_node(3), 50)
        for rank in self.rest(3):
            rank.send("steps 120")
        self.cluster.daemons[0].kill()
        self.cluster.restart(0)
        answers = {rank.answer() for rank in self.rest(3)}
        self.assertEqual(len(answers), 1, answers)
        self.assertEqual(self.cluster.status(1)["jobs"][0]["nodes"], 3)

    def test_all_come_back_after_a_loss(self):
        """No daemon has the view in force: each learns from its store for whom not to wait."""
        self.train_without(3, lambda: self.kill_node(3), 50)
        for rank in self.rest(3):
            rank.send("steps 120")
        for daemon in self.cluster.daemons[:3]:
            daemon.kill()
        for daemon in self.cluster.daemons[:3]:
            self.cluster.restart(daemon.node)
        answers = {rank.answer() for rank in self.rest(3)}
        self.assertEqual(len(answers), 1, answers)
        self.assertRegex(answers.pop(), "^ok 173 0 ")
        self.check_rest(3)

    def test_comes_back_too_late(self):
        self.train_without(1, self.cluster.daemons[1].kill)
        self.cluster.restart(1)
        self.assertRegex(self.job.ranks[1].error()[1],
                         "went on without|runs without ranks on node 1")


if __name__ == "__main__":
    unittest.main()
