#!/usr/bin/env python3
"""Ranks and daemons that die at any stage: those who depend on them hear of it, the others do not.

usage: test_deaths.py BUILD [unittest's arguments]
"""
import datetime
import os
import re
import shutil
import signal
import statistics
import tempfile
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job, turned
from scene import SOON, TENSORS, Scene, text
from service import wait_for as until
from stores import StoreCluster


NOTICED = PATIENCE if os.environ.get("ADTOPK_TEST_SANITIZED") else 0.1


class Noticed(Scene):
    """With daemons of its own, because a daemon's log leaves lines out where a user has many."""

    def test_noticed(self):
        """Its daemon hears at once. The promise is 100 ms, which a machine that is busy with other things
        may miss: the median of several kills counts."""
        taken = []
        for number in range(9):
            Scene.serial += 1
            self.name = f"job{Scene.serial}"
            job = self.joined([0, 0, 1, 1])
            for rank in job.ranks:
                rank.send("steps 1000000")
            time.sleep(0.02 * number)
            died = time.time()
            job.ranks[0].kill()
            self.assert_error(job.ranks[1], "peer", "rank 0", timeout=SOON)
            lost = re.search(rf"(\S+)Z warning session: session \d+ of job \d+:{self.name}/\S+ is lost",
                             self.cluster.daemons[0].log())
            when = datetime.datetime.fromisoformat(lost[1] + "+00:00").timestamp()
            taken.append(when - died)
            job.kill()
        print(f"a daemon noticed that a rank was killed: median {1000 * statistics.median(taken):.1f} ms, "
              f"worst {1000 * max(taken):.1f} ms")
        self.assertLess(statistics.median(taken), NOTICED)


class Deaths(Scene):
    """A rank is killed at any stage: the others hear soon which one."""

    HOMES = [0, 0, 1, 1]

    def check(self, prepare, victim):
        """prepare(ranks, victim) brings the ranks to their stage; the others then wait."""
        ranks = self.ranks(self.HOMES)
        others = [rank for rank in ranks if rank.rank != victim]
        prepare(ranks, ranks[victim])
        died = time.monotonic()
        ranks[victim].kill()
        for rank in others:
            self.assert_error(rank, "peer", f"rank {victim}", timeout=SOON)
        self.assertLess(time.monotonic() - died, SOON)
        for rank in others:
            rank.kill()
        self.assert_clean(SOON)
        self.check_log(victim)

    def check_log(self, victim):
        """The log names the job of the rank that was lost, and the process that it was; and the job of
        each other rank, whose session has failed."""
        session = rf"session \d+ of job \d+:{self.name}/\S+"
        self.assertRegex(self.cluster.daemons[self.HOMES[victim]].log(),
                         rf"{session} is lost: process \d+ ")
        failed = re.compile(rf"{session} has failed: .*rank {victim}")
        until(lambda: sum(len(failed.findall(daemon.log())) for daemon in self.cluster.daemons)
              == len(self.HOMES) - 1)

    def each(self, prepare):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                Scene.serial += 1
                self.name = f"job{Scene.serial}"
                self.check(prepare, victim)

    @staticmethod
    def register(ranks):
        for rank in ranks:
            rank.do(rank.opening, "tensor a f32 both 32x64", "tensor b f32 both 8")

    @staticmethod
    def commit(ranks):
        for rank in ranks:
            rank.send("commit")
        for rank in ranks:
            rank.answer()

    def test_after_open(self):
        def prepare(ranks, victim):
            victim.do(victim.opening)
            others = [rank for rank in ranks if rank is not victim]
            self.register(others)
            for rank in others:
                rank.send("commit")
            self.wait_committed(others)
        self.each(prepare)

    def test_in_commit(self):
        """The victim waits in commit for a rank that never comes; so do the others."""
        for victim in (0, 2):
            with self.subTest(victim=victim):
                Scene.serial += 1
                self.name = f"job{Scene.serial}"
                ranks = [self.rank(node, rank, 4) for rank, node in enumerate([0, 0, 1])]
                self.register(ranks)
                for rank in ranks:
                    rank.send("commit")
                self.wait_committed(ranks)
                ranks[victim].kill()
                for rank in ranks:
                    if rank.rank != victim:
                        self.assert_error(rank, "peer", f"rank {victim}", timeout=SOON)

    def wait_committed(self, ranks):
        """Until their commits have reached the daemons, as far as can be seen from outside."""
        nodes = {self.HOMES[rank.rank] for rank in ranks}
        until(lambda: all(any(job["name"] == self.name for job in self.cluster.status(node)["jobs"])
                          for node in nodes))
        time.sleep(0.1)

    def test_between_steps(self):
        def prepare(ranks, victim):
            self.register(ranks)
            self.commit(ranks)
            for rank in ranks:
                rank.send("steps 3")
            for rank in ranks:
                rank.answer()
            for rank in ranks:
                if rank is not victim:
                    rank.send("steps 1")
        self.each(prepare)

    def test_in_mid_push(self):
        def prepare(ranks, victim):
            self.register(ranks)
            self.commit(ranks)
            victim.do("push 0")
            for rank in ranks:
                if rank is not victim:
                    rank.send("steps 1")
        self.each(prepare)

    def test_while_waiting(self):
        """The victim waits for the step, and another rank has not pushed yet."""
        def prepare(ranks, victim):
            self.register(ranks)
            self.commit(ranks)
            late = ranks[1]
            for rank in ranks:
                if rank is not late:
                    rank.send("steps 1")
            late.do("push 0")
            late.send("barrier")
        self.each(prepare)

    def test_in_a_barrier(self):
        def prepare(ranks, victim):
            self.register(ranks)
            self.commit(ranks)
            for rank in ranks:
                if rank is not ranks[1]:
                    rank.send("barrier")
            ranks[1].send("steps 1")
        self.each(prepare)

    def test_while_training(self):
        def prepare(ranks, victim):
            self.register(ranks)
            self.commit(ranks)
            for rank in ranks:
                rank.send("steps 1000000")
            time.sleep(0.2)
        self.each(prepare)

    def test_stopped_process(self):
        """One that is only stopped is waited for, and all goes on when it continues."""
        job = self.joined(self.HOMES)
        job.ranks[2].process.send_signal(signal.SIGSTOP)
        for rank in job.ranks:
            rank.send("steps 2")
        time.sleep(0.5)
        self.assertTrue(all(rank.pending() for rank in job.ranks))
        job.ranks[2].process.send_signal(signal.SIGCONT)
        self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)

    def test_leaving_in_mid_step(self):
        job = self.joined(self.HOMES)
        for rank in job.ranks[:3]:
            rank.send("steps 1")
        job.ranks[3].do("push 0", "close")
        for rank in job.ranks[:3]:
            self.assert_error(rank, "peer", "rank 3")

    def test_leaving_early(self):
        """A rank that leaves between steps ends nothing until the others begin one."""
        job = self.joined(self.HOMES)
        self.assertEqual(job.steps(2)[0], "ok")
        job.ranks[3].do("close")
        for rank in job.ranks[:3]:
            rank.send("steps 1")
        for rank in job.ranks[:3]:
            self.assert_error(rank, "peer")

    def test_again_and_again(self):
        """Nothing is left behind little by little."""
        for _ in range(20):
            Scene.serial += 1
            self.name = f"job{Scene.serial}"
            job = self.joined([0, 1])
            job.ranks[0].send("steps 100000")
            job.ranks[1].send("steps 100000")
            job.ranks[1].kill()
            self.assert_error(job.ranks[0], "peer", "rank 1", timeout=SOON)
            job.kill()


    def test_same_name_again(self):
        """A job whose rank died can be started anew at once, under its old name."""
        for _ in range(5):
            job = self.joined(self.HOMES)
            for rank in job.ranks:
                rank.send("steps 1000000")
            job.ranks[2].kill()
            for rank in job.ranks:
                if rank.rank != 2:
                    self.assert_error(rank, "peer", "rank 2", timeout=SOON)
            job.kill()
        job = self.joined(self.HOMES)
        self.assertEqual(job.steps(3)[:3], ("ok", 3, 0))


class ComesBack(Scene):
    """Under on_rank_loss "wait" the others wait, and another process takes the place of the rank. Updates
    have the bits of a run that nothing disturbed, in which ranks see them in other forms."""

    HOMES = [0, 0, 1, 1]
    VICTIM = 3
    PLAN = {"sparsifier": "adtopk", "density": 0.05, "values": "bf16", "on_rank_loss": "wait"}
    DEVICES = [None] * 4  # test_gpu_state.py has others
    VARIABLES = None

    def undisturbed(self):
        with Job(self.cluster, BUILD, "undisturbed", self.HOMES, TENSORS, text(**self.PLAN)) as job:
            return job.join().steps(6)

    def joined(self, homes, policy="-", tensors=None):
        job = Job(self.cluster, BUILD, self.name, homes, turned(tensors or TENSORS, 1), policy,
                  devices=self.DEVICES, variables=self.VARIABLES)
        self.addCleanup(job.kill)
        return job.join()

    def trained(self, **changes):
        """A job after three steps."""
        Scene.serial += 1
        self.name = f"job{Scene.serial}"
        job = self.joined(self.HOMES, text(**{**self.PLAN, **changes}))
        job.steps(3)
        return job

    def begin(self, *last, **changes):
        """A job after three steps whose victim dies after these commands. The others go on."""
        job = self.trained(**changes)
        for rank in self.others(job):
            rank.send("steps 3")
        if last:
            job.ranks[self.VICTIM].do(*last)
            while not self.victim()["pushed"]:  # what a daemon has not read yet ends with its process
                time.sleep(0.01)
        job.ranks[self.VICTIM].kill()
        return job

    def victim(self):
        """What the victim's daemon says of it."""
        return next(rank for rank in self.cluster.ask(1, "ranks", self.name)["ranks"]
                    if rank["rank"] == self.VICTIM)

    def others(self, job):
        return [rank for rank in job.ranks if rank.rank != self.VICTIM]

    def come_back(self, job, step, *before, device=None, **changes):
        """Another process, up to the commit."""
        rank = self.rank(1, self.VICTIM, 4, text(**{**self.PLAN, **changes}), variables=self.VARIABLES)
        device = device or self.DEVICES[self.VICTIM]
        rank.do(f"back {step}", *before, rank.opening, *([f"device {device}"] if device else []),
                *job.registrations(), "commit")
        return rank

    def told(self, node):
        return next(one for one in self.cluster.status(node)["jobs"] if one["name"] == self.name)

    def wait_for(self, node, field="kind", value="vacant"):
        until(lambda: (self.told(node)["waiting"] or {}).get(field) == value)
        return self.told(node)["waiting_for"]

    def finish(self, job, rank, wanted, steps):
        """The rank takes so many steps; the others have the updates of a run that nothing disturbed."""
        self.assertEqual(rank.do(f"steps {steps}").split()[0], "ok")
        self.assertEqual({one.answer() for one in self.others(job)}, {" ".join(map(str, wanted))})
        for node in (0, 1):
            self.assertEqual(self.cluster.daemons[node].ask("verify", self.name)[0], 0)
        rank.end()
        job.end()

    def test_drained(self):
        """A node that takes no new ranks takes the one that goes on in a job."""
        wanted = self.undisturbed()
        job = self.begin()
        self.assertEqual(self.cluster.daemons[1].ask("drain")[0], 0)
        self.addCleanup(self.cluster.daemons[1].ask, "drain", "--undo")
        self.finish(job, self.come_back(job, 3), wanted, 3)

    def test_in_mid_step(self):
        """Tensor 0 of the open step is pushed by both, and counts once."""
        wanted = self.undisturbed()
        job = self.begin("push 0")
        pid = job.ranks[self.VICTIM].process.pid
        for node in (0, 1):
            self.assertEqual(self.wait_for(node),
                             f"rank 3 on node 1 (pid {pid}), which ended")
        self.assertEqual(self.victim()["state"], "vacant")
        self.assertTrue(all(rank.pending() for rank in self.others(job)))
        self.finish(job, self.come_back(job, 3), wanted, 3)

    def test_behind_an_update(self):
        """The update of tensor 0 in the open step was there before the process ended."""
        job = self.begin("push 0", "wait 0")
        self.finish(job, self.come_back(job, 3), self.undisturbed(), 3)

    def test_between_steps(self):
        job = self.begin()
        self.finish(job, self.come_back(job, 3), self.undisturbed(), 3)

    def test_repeats_the_step_before(self):
        """It died before it could save what the last update gave: it repeats that step."""
        job = self.begin()
        self.finish(job, self.come_back(job, 2), self.undisturbed(), 4)

    def test_same_updates(self):
        """The process reads the updates that the others read, also of the step that it repeats."""
        job = self.begin()
        path = os.path.join(tempfile.mkdtemp(), "updates")
        self.addCleanup(shutil.rmtree, os.path.dirname(path))
        rank = self.come_back(job, 2, f"trace {path}")
        self.finish(job, rank, self.undisturbed(), 4)
        job = self.joined(self.HOMES, text(**self.PLAN))
        job.steps(2)
        job.ranks[0].do(f"trace {path}-wanted")
        job.steps(4)
        with open(path, "rb") as got, open(f"{path}-wanted", "rb") as wanted:
            self.assertEqual(got.read(), wanted.read())

    def test_refused(self):
        job = self.begin("push 0")
        self.wait_for(1)
        for said, name, *words in [
                ((), "state", "must say with which step it comes back"),
                (("back 2",), "lost", "with step 2", "in step 3", "only that step"),
                (("back 4",), "lost", "with step 4")]:
            rank = self.rank(1, self.VICTIM, 4, text(**self.PLAN))
            rank.send(*said, rank.opening)
            for _ in said:
                rank.answer()
            self.assert_error(rank, name, *words)
        rank = self.rank(1, self.VICTIM, 4, text(**self.PLAN))
        rank.do("back 3", rank.opening, "tensor first f32 both 8x8")
        rank.send("commit")
        self.assert_error(rank, "mismatch", "with other tensors: 'first' is f32 [8, 8] and not f32 [16, 32]")
        second = self.rank(1, self.VICTIM, 4, text(**self.PLAN))
        second.do("back 3")
        second.send(second.opening)
        self.assert_error(second, "mismatch", "another process")
        rank.kill()
        self.finish(job, self.come_back(job, 3), self.undisturbed(), 3)

    def called(self, callers, **changes):
        """A job after three steps whose victim dies while these ranks wait for it in a barrier."""
        job = self.trained(**changes)
        for rank in callers:
            job.ranks[rank].send("barrier")
        for node in (0, 1):
            self.wait_for(node, "operation", 0)
        job.ranks[self.VICTIM].kill()
        self.wait_for(0)
        return job

    def test_goes_on_without_a_call(self):
        """The process that comes back pushes, although others wait in an operation. It is told so, and
        they wait for one that calls it."""
        for callers in ([0, 1, 2], [0, 1]):
            with self.subTest(callers=callers):
                job = self.called(callers)
                rank = self.come_back(job, 3)
                rank.send("steps 3")
                self.assert_error(rank, "state", "may not push in step 3", "operation 0")
                rank.kill()
                self.wait_for(0)
                rank = self.come_back(job, 3)
                for one in {0, 1, 2} - set(callers):
                    job.ranks[one].send("barrier")
                rank.do("barrier")
                for one in self.others(job):
                    one.answer()
                    one.send("steps 3")
                self.finish(job, rank, self.undisturbed(), 3)

    def test_calls_within_a_step(self):
        """The others push a tensor and then call an operation. The process that comes back does the same."""
        job = self.trained()
        for rank in job.ranks[:2]:
            rank.do("push 0")
            rank.send("barrier")
        for node in (0, 1):
            self.wait_for(node, "operation", 0)
        job.ranks[self.VICTIM].kill()
        self.wait_for(0)
        rank = self.come_back(job, 3)
        rank.do("push 0")
        until(lambda: self.victim()["pushed"])
        rank.send("barrier")
        job.ranks[2].send("push 0", "barrier")
        for one in (rank, *job.ranks[:2]):
            one.answer()
        for _ in range(2):
            job.ranks[2].answer()
        for one in self.others(job):
            one.send("steps 3")
        self.finish(job, rank, self.undisturbed(), 3)

    def test_others_call_later(self):
        """Then all are told that it has not called the operation."""
        job = self.trained(push_timeout=2)
        job.ranks[self.VICTIM].kill()
        self.wait_for(0)
        rank = self.come_back(job, 3, push_timeout=2)
        rank.send("steps 1")
        until(lambda: self.victim()["pushed"])
        for one in self.others(job):
            one.send("barrier")
        for one in (rank, *self.others(job)):
            self.assert_error(one, "timeout", "rank 3 on node 1", "to call operation 0")

    def test_nobody_comes(self):
        job = self.begin(wait_limit=1)
        for rank in self.others(job):
            self.assert_error(rank, "timeout", "rank 3 on node 1", "which ended")

    def test_all_end(self):
        """Nobody waits any more: the job ends, and its run can be started anew."""
        job = self.joined(self.HOMES, text(**self.PLAN))
        job.steps(1)
        job.kill()
        until(lambda: all(one["state"] == "failed" for node in (0, 1)
                          for one in self.cluster.status(node)["jobs"] if one["name"] == self.name))
        self.assert_clean()
        self.joined(self.HOMES, text(**self.PLAN)).end()

    def test_again_and_again(self):
        """Nothing is left behind little by little."""
        job = self.joined(self.HOMES, text(**self.PLAN))
        for step in range(8):
            for rank in self.others(job):
                rank.send("steps 1")
            job.ranks[self.VICTIM].do("push 1")
            job.ranks[self.VICTIM].kill()
            self.wait_for(1)
            job.ranks[self.VICTIM] = self.come_back(job, step)
            job.ranks[self.VICTIM].do("steps 1")
            self.assertEqual(len({rank.answer() for rank in self.others(job)}), 1)
        job.end()


class DaemonDies(unittest.TestCase):
    """A daemon is killed in mid-training: every rank gets an error that names the node."""

    SETTINGS = {"peer_timeout_ms": 1500, "heartbeat_ms": 200}
    # peer_timeout_ms, and a second: the promise of deploy/limits.md
    SOON = PATIENCE if os.environ.get("ADTOPK_TEST_SANITIZED") else 1.5 + 1

    def check(self, victim, policy, name, word, how=signal.SIGKILL):
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "doomed", [0, 0, 1, 1], TENSORS, policy) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")
            for rank in job.ranks:
                rank.send("steps 1000000")
            time.sleep(0.2)
            cluster.daemons[victim].signal(how)
            died = time.monotonic()
            for rank in job.ranks:
                if rank.rank // 2 != victim:
                    got, sentence = rank.error()
                    self.assertEqual(got, name, sentence)
                    self.assertIn(word, sentence)
            took = time.monotonic() - died
            cluster.daemons[victim].kill()
            for rank in job.ranks:
                if rank.rank // 2 == victim:
                    got, sentence = rank.error()
                    self.assertEqual(got, "unreachable", sentence)
            return took

    def test_fail(self):
        for victim in (0, 1):
            took = self.check(victim, text(on_peer_loss="fail"), "peer", f"node {victim}")
            self.assertLess(took, self.SOON)

    def silent(self, node, silence):
        """silence(cluster, node) makes the node silent for the others, whose ranks hear of it in time."""
        with Cluster(BUILD, nodes=3, settings=self.SETTINGS, relays=True) as cluster, \
                Job(cluster, BUILD, "doomed", [0, 0, 1, 2], TENSORS,
                    text(on_peer_loss="fail")) as job:
            job.join()
            for rank in job.ranks:
                rank.send("steps 1000000")
            time.sleep(0.2)
            silence(cluster, node)
            began = time.monotonic()
            for rank in job.ranks[:3]:
                self.assertIn(f"node {node}", rank.error()[1])
            took = time.monotonic() - began
            print(f"ranks of other nodes heard of a silent one after {took:.2f} s")
            self.assertLess(took, self.SOON)
            cluster.daemons[node].kill()

    def test_silent(self):
        def stop(cluster, node):
            cluster.daemons[node].signal(signal.SIGSTOP)

        def cut(cluster, node):
            for ends, relay in cluster.relays.items():
                if node in ends:
                    relay.hold()

        for silence in (stop, cut):
            with self.subTest(silence.__name__):
                self.silent(2, silence)

    def test_wait(self):
        for victim in (0, 1):
            self.check(victim, text(on_peer_loss="wait", wait_limit=0.5), "timeout",
                       f"node {victim}", signal.SIGSTOP)

    def test_gone(self):
        """Nobody waits for a daemon whose port refuses, whatever the policy says of silence."""
        for victim in (0, 1):
            took = self.check(victim, text(on_peer_loss="wait"), "peer", f"node {victim} is gone")
            self.assertLess(took, self.SOON)

    def test_job_on_the_other_node(self):
        """A job that has no ranks on the lost node does not notice."""
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "here", [0, 0], TENSORS,
                    text(on_peer_loss="fail")) as job:
            job.join()
            cluster.daemons[1].kill()
            while cluster.status(0)["peers"][0]["state"] == "up":
                self.assertEqual(job.steps(5)[0], "ok")
            self.assertEqual(job.steps(5)[0], "ok")

    def test_while_joining(self):
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "doomed", [0, 1, 1], TENSORS,
                    text(join_timeout=3)) as job:
            for rank in job.ranks[:2]:
                rank.send(rank.opening, *job.registrations(), "commit")
                for _ in range(1 + len(TENSORS)):
                    rank.answer()
            cluster.daemons[1].kill()
            self.assertEqual(job.ranks[1].error()[0], "unreachable")
            self.assertEqual(job.ranks[0].error()[0], "timeout")

    def test_questions_while_it_is_away(self):
        """An operator who asks for something meanwhile is told once for which node the job waits."""
        with StoreCluster(**self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "asked", [0, 1], TENSORS, text(wait_limit=30)) as job:
            job.join().steps(3)
            cluster.daemons[1].kill()
            job.ranks[0].send("steps 1")
            away = "waits for node 1, which does not answer"
            until(lambda: away in cluster.daemons[0].ask("status")[1])
            for question in (("checkpoint", "ask", "asked"), ("policy", "set", "asked", "density=0.04")):
                error = cluster.daemons[0].ask(*question, "--timeout", "1500")[2]
                self.assertEqual(error.count(away), 1, error)
            cluster.restart(1)
            job.ranks[1].send("steps 1")
            self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)

    def test_with_a_vacant_place(self):
        """Nobody can take the place after that: the job ends, whether another rank of the node is back or
        not. Node 0 hears only seconds later that a rank has ended, and the limit is longer than that."""
        for returns in (True, False):
            with self.subTest(returns=returns), StoreCluster(**self.SETTINGS) as cluster, \
                    Job(cluster, BUILD, "doomed", [0, 1, 1], TENSORS,
                        text(on_rank_loss="wait", join_timeout=1,
                             wait_limit=6 if returns else 15)) as job:
                job.join()
                for rank in job.ranks[:2]:
                    rank.send("steps 1")
                job.ranks[2].kill()
                until(lambda c=cluster: "(pid" in c.daemons[0].ask("status")[1])
                if not returns:
                    job.ranks[1].kill()
                cluster.daemons[1].kill()
                cluster.restart(1)
                for rank in job.ranks[:1 + returns]:
                    self.assertIn("rank 2" if returns else "node 1, which restarted", rank.error()[1])

    def test_stopped_daemon(self):
        """In order: the ranks on the other node hear it too."""
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "doomed", [0, 1], TENSORS,
                    text(on_peer_loss="fail")) as job:
            job.join()
            for rank in job.ranks:
                rank.send("steps 1000000")
            self.assertEqual(cluster.daemons[1].stop(), 0)
            self.assertIn(job.ranks[1].error()[0], ("unreachable", "peer"))
            name, sentence = job.ranks[0].error()
            self.assertEqual(name, "peer", sentence)
            self.assertIn("node 1", sentence)

    def test_paused_daemon(self):
        """One that is stopped for a while delays the job and changes nothing, whether the others
        noticed or not."""
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster:
            hashes = []
            for pause in (0, 0.7, 2.5):
                with Job(cluster, BUILD, "paused", [0, 1], TENSORS,
                         run=str(pause)) as job:
                    job.join()
                    for rank in job.ranks:
                        rank.send("steps 400")
                    if pause:
                        cluster.daemons[1].signal(signal.SIGSTOP)
                        time.sleep(pause)
                        cluster.daemons[1].signal(signal.SIGCONT)
                    answers = {rank.answer() for rank in job.ranks}
                    self.assertEqual(len(answers), 1)
                    hashes.append(answers.pop())
            self.assertEqual(len(set(hashes)), 1, hashes)
            cluster.stop()

    def test_comes_back_without_residuals(self):
        """The job cannot go on: what the daemon had kept is lost. It can be started anew."""
        with Cluster(BUILD, nodes=2, settings=self.SETTINGS) as cluster, \
                Job(cluster, BUILD, "doomed", [0, 1], TENSORS, text(wait_limit=20)) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")
            for rank in job.ranks:
                rank.send("steps 1000000")
            cluster.daemons[1].kill()
            self.assertEqual(job.ranks[1].error()[0], "unreachable")
            cluster.restart(1)
            name, sentence = job.ranks[0].error()
            self.assertEqual(name, "peer", sentence)
            self.assertIn("node 1", sentence)
            job.kill()
            with Job(cluster, BUILD, "doomed", [0, 1], TENSORS) as again:
                self.assertEqual(again.join().steps(3)[0], "ok")


if __name__ == "__main__":
    unittest.main()
