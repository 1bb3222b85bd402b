#!/usr/bin/env python3
"""Daemons that are killed or stopped in mid-training and started again: trainers go on by themselves,
and the updates are those of a run that nothing disturbed.

usage: test_restart.py BUILD [unittest's arguments]
"""
import itertools
import os
import random
import re
import shutil
import socket
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from build import ADTOPKD, BUILD
from cluster import Cluster
from manager import KeptCluster
from ranks import Job, RankError, turned
from service import wait_for
from stores import HOMES, TENSORS, StoreCluster, far_cluster, registrations, text

LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
ROUNDS = 25 if LONG else 1  # 100 kills of each policy
ELSEWHERE = [0, "r0", "r1", 1]  # the same, with trainers on other machines
# Committed one after the other while training runs.
LATER = [[("down", "bf16", "list", (16, 40)), ("large", "f32", "dense", (120, 150))],
         [("up", "f32", "both", (40, 16))], [("head", "f32", "dense", (7, 33))]]


class ManagedCluster(KeptCluster):
    """The same without a folder: a service manager keeps the stores."""

    def __init__(self):
        super().__init__(BUILD, 2)

    def wait_empty(self):
        wait_for(lambda: not any(daemon.manager.kept for daemon in self.daemons),
                 "stores are left")


class Restarts(unittest.TestCase):
    """Kills at random moments."""

    STEPS = 150

    def steps(self, job, later):
        """Trains, and commits the batches of `later` after equal numbers of steps."""
        count = self.STEPS // (len(later) + 1)
        commands = [f"steps {count}"]
        for batch in later:
            commands += [*registrations(batch), "commit", f"steps {count}"]
        # All at once: a rank that did nothing meanwhile would not return to its run.
        answers = set(job.each(*commands))
        self.assertEqual(len(answers), 1)
        return answers.pop()

    def train(self, cluster, policy, disturb=None, later=(), homes=HOMES, turn=0):
        """Trains and returns the hash of all updates. disturb(cluster) runs meanwhile. turn: the forms in
        which ranks see updates."""
        later = [turned(batch, turn) for batch in later]
        with Job(cluster, BUILD, "restarted", homes, turned(TENSORS, turn), policy,
                 before=["gradients random 7"]) as job:
            job.join()
            with ThreadPoolExecutor(max_workers=1) as pool:
                outcome = pool.submit(self.steps, job, later)
                if disturb:  # in this thread: a daemon ends with the thread that started it
                    disturb(cluster)
                answer = outcome.result().split()
            steps = self.STEPS // (len(later) + 1) * (len(later) + 1)
            self.assertEqual(answer[:3], ["ok", str(steps), "0"])
            job.steps(1)
            verified = cluster.ask(0, "verify")
            self.assertEqual(cluster.daemons[0].ask("verify")[0], 0, verified)
        return answer[3]

    def kills(self, count, seed, seconds):
        """Kills or stops a random node and starts it again, `count` times."""
        draw = random.Random(seed)

        def disturb(cluster):
            for _ in range(count):
                time.sleep(draw.uniform(0, seconds))
                node = draw.randrange(len(cluster.daemons))
                draw.choice((cluster.daemons[node].kill, cluster.daemons[node].stop))()
                time.sleep(draw.choice((0, 0.05, 0.3)))
                self.replace(cluster.daemons[node])
                cluster.restart(node)

        return disturb

    def replace(self, daemon):
        """What happens to the program before it starts again."""

    def check(self, policy, rounds, kills, kinds=(StoreCluster,), later=(), homes=HOMES):
        with Cluster(BUILD, 2) as cluster:
            wanted = self.train(cluster, policy, later=later)
        for seed, kind in itertools.product(range(rounds), kinds):
            with self.subTest(policy=policy, seed=seed, kind=kind), kind() as cluster:
                got = self.train(cluster, policy, self.kills(kills, seed, 0.1), later, homes, 1 + seed)
                self.assertEqual(got, wanted)
                cluster.wait_empty()

    def test_same_bits(self):
        self.check(text(), ROUNDS, 4, kinds=(StoreCluster, ManagedCluster))

    def test_trainers_elsewhere(self):
        self.check(text(), ROUNDS, 4, kinds=(far_cluster,), later=LATER, homes=ELSEWHERE)

    def test_velocities(self):
        """And tensors that are committed later. Some updates may have more entries than their lists."""
        crowded = [{"match": name, "density": 0.3} for name in ("weights", "rows", "down")]
        self.check(text(momentum=0.9, values="f32", rules=crowded), ROUNDS, 4, later=LATER)

    @unittest.skipUnless(LONG, "a long run")
    def test_residual_of_each_rank(self):
        self.check(text(scope="rank", sparse_collective="balanced"), ROUNDS, 4, later=LATER)

    @unittest.skipUnless(LONG, "a long run")
    def test_bf16(self):
        self.check(text(residual="bf16", dense_values="bf16"), ROUNDS, 4, later=LATER)


class Upgrades(Restarts):
    """The same, and each daemon that is started again is of the other one of two builds. ADTOPK_TEST_OTHER
    names a daemon of another build than the usual one."""

    OTHER = os.environ.get("ADTOPK_TEST_OTHER")
    STEPS = 300
    test_trainers_elsewhere = test_residual_of_each_rank = test_bf16 = None

    def replace(self, daemon):
        other = self.OTHER or os.path.join(BUILD, "tests", "integration", "adtopkd-release")
        was = daemon.programs["adtopkd"]
        daemon.programs = {**daemon.programs, "adtopkd": other if was == ADTOPKD else ADTOPKD}

    def kills(self, count, seed, seconds):
        """Twice as many, so that most nodes go forth and back."""
        disturb = super().kills(2 * count, seed, seconds)

        def disturb_and_look(cluster):
            disturb(cluster)
            served = [re.findall(r"adtopkd (\S+) serves node", daemon.log()) for daemon in cluster.daemons]
            for versions in served if self.OTHER is None else ():
                self.assertTrue(all(one != other for one, other in zip(versions, versions[1:])), served)
            self.assertGreater(max(map(len, served)), 2, served)

        return disturb_and_look


class Breaker:
    """Listens at a daemon's socket, and closes every connection at once."""

    def __init__(self, path):
        os.unlink(path)
        self.path = path
        self.connections = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(path)
        self.socket.listen()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()
        os.unlink(self.path)


class Moments(unittest.TestCase):
    """Kills at chosen moments of a step, and what is refused."""

    homes = HOMES

    def setUp(self):
        # On a busy machine ranks may take a second to return: only one test wants that to be too long.
        ttl = 1 if self.id().endswith("test_expired") else 60
        self.cluster = self.enterContext(far_cluster(residual_ttl_s=ttl))
        self.job = self.open("job")

    def open(self, name, **policy):
        job = Job(self.cluster, BUILD, name, self.homes, TENSORS, text(**policy),
                  before=["gradients random 7"])
        self.addCleanup(job.kill)
        return job.join()

    def kill(self, node):
        self.cluster.daemons[node].kill()

    def again(self, node):
        self.cluster.restart(node)

    def finish(self, job, steps=5):
        """The job's hash after so many steps more."""
        answer = job.steps(steps)
        job.end()
        return answer

    def wanted(self, steps):
        return self.finish(self.open("undisturbed"), steps)

    def test_between_push_and_wait(self):
        """Every rank has pushed one tensor, the last one after the kill: else its round might be over, and
        a local rank that has its update would not miss the daemon."""
        for rank in self.job.ranks[:3]:
            rank.do("push 0")
        self.kill(0)
        self.job.ranks[3].do("push 0")
        self.job.ranks[0].do("push 1")
        for rank in self.job.ranks[:3]:
            rank.send("wait 0", "update 0")
        self.again(0)
        for rank in self.job.ranks[:3]:
            rank.answer()
            self.assertEqual(rank.answer(), "0")
        self.kill(1)
        self.again(1)
        self.assertEqual(self.finish(self.job), self.wanted(5))

    def test_what_was_written_stays(self):
        """Gradients that a rank pushed, and some that it wrote and did not push, also when the daemon to which
        it has returned is killed, too."""
        self.job.steps(1)
        here = self.job.ranks[:2]
        here[0].do("write 0", "push 1", "push 3")
        here[1].do("push 2")
        written = [rank.do(f"written {tensor}") for rank in here for tensor in range(len(TENSORS))]
        for _ in range(2):
            self.kill(0)
            before = self.cluster.daemons[0].log().count("is ready, next step 1")
            self.again(0)
            while self.cluster.daemons[0].log().count("is ready, next step 1") < before + len(here):
                self.assertEqual([rank.do("look 20") for rank in here], ["pending"] * 2)
            self.assertEqual([rank.do("look 20") for rank in here], ["pending"] * 2)
        for rank in self.job.ranks[2:]:
            rank.send("steps 1")
        self.assertEqual([rank.do("look 60000") for rank in here], ["", ""])
        for rank in self.job.ranks[2:]:
            rank.answer()
        self.assertEqual([rank.do(f"written {tensor}") for rank in here for tensor in range(len(TENSORS))],
                         written)

    def test_looks(self):
        """Calls that do not wait say so until the daemon is back, and after that it is over. The
        descriptor wakes the rank for each of them."""
        for rank in self.job.ranks[1:]:
            rank.send("steps 1")
        first = self.job.ranks[0]
        first.do("push 0", "push 1", "push 2", "push 3", "descriptor")
        self.kill(0)
        self.assertEqual(first.do("look 0"), "pending")
        first.send("arm")
        self.assertEqual(first.error()[0], "pending")
        self.again(0)
        looks = 0
        while first.do("look 0") == "pending":
            first.send("arm")
            if first.line() != "ok":
                self.assertEqual(first.do("doze 50000"), "")
            looks += 1
        self.assertLess(looks, 1000)
        for rank in self.job.ranks[1:]:
            rank.answer()

    def test_breaks_at_once(self):
        """Something accepts connections and closes them: ranks pause longer and longer."""
        self.job.steps(2)
        self.kill(0)
        breaker = Breaker(self.cluster.daemons[0].socket)
        for rank in self.job.ranks:
            rank.send("steps 3")
        time.sleep(4)
        connections = breaker.connections
        wait_for(lambda: breaker.connections > 4)
        breaker.close()
        self.assertLess(connections, 25)
        self.again(0)
        for rank in self.job.ranks:
            rank.answer()
        self.assertEqual(self.finish(self.job, 1), self.wanted(6))

    def test_operations(self):
        """The last rank calls the last operation after the kill. Otherwise a rank could have all its results, and
        would not notice that the daemon is gone."""
        for node in (0, 1):
            for rank in self.job.ranks[:3]:
                rank.send("broadcast 3000000 0", "barrier", "allreduce 500000")
            self.job.ranks[3].send("broadcast 3000000 0", "barrier")
            time.sleep(0.005)
            self.kill(node)
            self.job.ranks[3].send("allreduce 500000")
            self.again(node)
            for rank in self.job.ranks:
                for _ in range(3):
                    rank.answer()
        self.assertEqual(self.finish(self.job), self.wanted(5))

    def test_after_an_operation(self):
        """Ranks that have its result do not ask for it again."""
        self.job.each("broadcast 1000 0")
        self.job.steps(2)
        for node in (0, 1):
            self.kill(node)
            self.again(node)
        self.assertEqual(self.finish(self.job, 3), self.wanted(5))

    def test_idle(self):
        """Between two steps: the next call returns to the run, whichever it is."""
        self.job.steps(2)
        self.kill(0)
        self.again(0)
        self.kill(0)
        self.again(0)
        for rank in self.job.ranks[:2]:
            rank.send("residual 0")
        for rank in self.job.ranks[:2]:  # the answer comes, but is of two ranks
            self.assertIn("not what is missing", rank.error()[1])
        self.assertEqual(self.finish(self.job, 3), self.wanted(5))

    def test_closing(self):
        """Ranks that close tell the next daemon, and so the others hear at once that they left."""
        self.job.steps(2)
        self.kill(0)
        for rank in self.job.ranks[:2]:
            rank.send("close")
        self.again(0)
        for rank in self.job.ranks[:2]:
            rank.answer()
        self.job.ranks[2].send("steps 1")
        name, sentence = self.job.ranks[2].error()
        self.assertEqual(name, "peer", sentence)
        self.assertIn("left the job before step 2", sentence)

    def test_closing_in_vain(self):
        """No other daemon is started: the goodbye ends all the same."""
        self.job.steps(2)
        self.kill(0)
        self.job.ranks[0].send("close")
        self.job.ranks[0].answer(15)
        self.again(0)

    def test_nonfinite(self):
        self.job.ranks[3].do("poison 0 0 nan")
        self.job.each("push 0")
        self.kill(1)
        self.again(1)
        self.assertEqual(self.job.steps(1)[0], "nonfinite")
        self.assertEqual(self.job.steps(3)[1:3], (3, 1))

    def test_stopped(self):
        """An orderly end is no other to its jobs than a kill: an operator restarts or upgrades."""
        self.job.each("push 0")
        self.assertEqual(self.cluster.daemons[0].stop(), 0)
        self.assertRegex(self.cluster.daemons[0].log(), "the ranks of 1 job wait for the next daemon")
        self.again(0)
        self.assertEqual(self.finish(self.job), self.wanted(5))

    def test_evaluating(self):
        """A rank that does something else for longer than `join_timeout` returns in time."""
        job = self.open("evaluating", join_timeout=2)
        job.steps(2)
        for rank in job.ranks[1:]:
            rank.send("steps 3")
        self.assertEqual(self.cluster.daemons[0].stop(), 0)
        self.again(0)
        time.sleep(4)
        job.ranks[0].send("steps 3")
        hashes = {rank.answer().split()[-1] for rank in job.ranks}
        job.end()
        self.assertEqual(hashes, {self.wanted(5)[-1]})

    def test_drained(self):
        """A node that takes no new ranks is handed over to the next daemon without a failed step."""
        self.assertEqual(self.cluster.daemons[0].ask("drain")[0], 0)
        self.job.each("push 0")
        self.assertEqual(self.cluster.daemons[0].stop(), 0)
        self.again(0)
        self.assertEqual(self.finish(self.job), self.wanted(5))

    def test_stopped_beside_a_job_that_stays(self):
        """The other node is told about the job that ends, although the daemon need not stay for it."""
        ends = self.open("ends")  # not all of its ranks are there to return
        ends.steps(1)
        ends.ranks[1].do("close")
        self.job.steps(1)
        self.assertEqual(self.cluster.daemons[0].stop(), 0)
        ends.ranks[3].send("steps 1")
        self.assertIn("its daemon is stopping", ends.ranks[3].error()[1])
        ends.ranks[0].send("steps 1")
        self.assertIn("its daemon is stopping", ends.ranks[0].error()[1])
        self.again(0)
        self.assertEqual(self.job.steps(1)[0], "ok")

    def test_stopped_when_ranks_have_left(self):
        """Nobody returns to the store, so it goes."""
        self.job.steps(1)
        for rank in self.job.ranks[:2]:
            rank.end()
        self.assertEqual(self.cluster.daemons[0].stop(), 0)
        self.assertEqual(self.cluster.files(0), [])

    def commits(self, job, disturb):
        """The job's hash after it has committed several batches. disturb() runs meanwhile."""
        commands = []
        for number, batch in enumerate(LATER * 2):
            commands += [line.replace("tensor ", f"tensor {number}.")
                         for line in registrations(batch)]
            commands += ["commit", "steps 2"]
        # All at once, and more steps than kills: a rank that does nothing does not return to its run.
        commands.append("steps 150")
        for rank in job.ranks:
            rank.send(*commands)
        disturb()
        return [[rank.answer() for _ in commands][-1] for rank in job.ranks]

    def test_mid_commit(self):
        """Kills while ranks commit more tensors: before the batch is in force, while it is put in
        force, or after that."""
        draw = random.Random(5)

        def disturb():
            for number in range(6):
                time.sleep(draw.uniform(0, 0.02))
                self.kill(number % 2)
                self.again(number % 2)

        found = self.commits(self.job, disturb)
        self.assertEqual(found, self.commits(self.open("undisturbed"), lambda: None))

    def test_some_have_committed(self):
        """Kills while one rank has not committed yet."""
        def commit():
            for rank in self.job.ranks:
                rank.do(*registrations(LATER[0]))
            for rank in self.job.ranks[:3]:
                rank.send("commit")

        self.job.steps(2)
        commit()
        for node in (0, 1):
            self.kill(node)
            self.again(node)
        self.job.ranks[3].do("commit")
        for rank in self.job.ranks[:3]:
            rank.answer()
        first = self.finish(self.job)
        self.job = self.open("undisturbed")
        self.job.steps(2)
        commit()
        self.job.ranks[3].do("commit")
        for rank in self.job.ranks[:3]:
            rank.answer()
        self.assertEqual(self.finish(self.job), first)

    def lost(self, prepare, words, variables=None, stop=False):
        """Node 0 is killed or stopped, and started again with another store: its ranks are told why it
        is not used."""
        self.job.steps(2)
        if stop:
            self.cluster.daemons[0].stop()
        else:
            self.kill(0)
        prepare(self.cluster.folder(0))
        self.cluster.daemons[0].variables.update(variables or {})
        self.again(0)
        for rank in self.job.ranks:
            rank.send("steps 1")
        self.assertRegex(self.job.ranks[0].error()[1], words)
        self.assertEqual(self.job.ranks[3].error()[0], "lost")

    def test_cut_short(self):
        def cut(folder):
            os.truncate(os.path.join(folder, self.cluster.files(0)[0]), 8192)

        self.lost(cut, "came back without its residuals|has lost the residuals")
        self.assertRegex(self.cluster.daemons[0].log(), "not used: its file .* is cut short")

    def test_changed(self):
        """One bit of a residual, while no daemon uses the store."""
        def flip(folder):
            with open(os.path.join(folder, "00000000.4"), "r+b") as file:
                file.seek(40000)
                byte = file.read(1)[0]
                file.seek(40000)
                file.write(bytes([byte ^ 1]))

        self.lost(flip, "came back without its residuals|has lost the residuals", stop=True)
        self.assertRegex(self.cluster.daemons[0].log(),
                         "not used: its file 00000000.4 was changed while no daemon used it")

    def test_other_workers(self):
        daemon, found = self.cluster.daemons[0], []
        self.lost(lambda folder: found.extend(self.cluster.files(0)),
                  "came back without its residuals|has lost the residuals",
                  variables={"ADTOPK_WORKERS": "5"})
        fault = "was made with [0-9]+ workers?, and this daemon has 5"
        self.assertRegex(daemon.log(), "store of job .*: not used: it " + fault)
        self.assertLessEqual(set(found), set(self.cluster.files(0)))  # as the cure needs them
        self.kill(0)
        del daemon.variables["ADTOPK_WORKERS"]
        self.again(0)
        self.assertRegex(daemon.log(), "store of job .*: its ranks can return")

    def test_no_store(self):
        self.lost(shutil.rmtree, "came back without its residuals|has lost the residuals")

    def test_setting_gone(self):
        del self.cluster.daemons[0].variables["ADTOPK_STORE_FOLDER"]
        self.lost(lambda folder: None, "can only begin runs|has lost the residuals")

    def test_locked(self):
        with self.assertRaisesRegex(Exception, "another daemon uses store_folder"):
            self.cluster.daemons[1].kill()
            self.cluster.daemons[1].variables["ADTOPK_STORE_FOLDER"] = self.cluster.folder(0)
            self.again(1)

    def test_expired(self):
        """A store whose ranks do not return is shown, and removed."""
        self.job.steps(1)
        self.job.kill()
        self.cluster.wait_empty()
        self.job = self.open("forgotten")
        self.kill(0)
        self.job.kill()
        self.again(0)
        stores = self.cluster.ask(0, "stores")["stores"]
        self.assertEqual([(store["name"], store["used"]) for store in stores],
                         [("forgotten", False)])
        self.cluster.wait_empty()
        wait_for(lambda: re.search("forgotten/0, .*removed", self.cluster.daemons[0].log()))


class Ahead(unittest.TestCase):
    """Ranks look ahead with the same bits as without the restarts."""

    # Of the second one the shift divides by a second moment.
    SHOWN = [("wide", "f32", "dense+pending", (64, 96)), ("odd", "f16", "list+pending", (5, 7, 3))]

    def train(self, policy, restart):
        """What the ranks saw, and the updates. restart(cluster, node) runs between steps."""
        seen = []
        with StoreCluster() as cluster, \
             Job(cluster, BUILD, "ahead", HOMES, self.SHOWN, policy,
                 before=["gradients random 7"]) as job:
            job.join()
            for node in (0, 1):
                job.steps(3)
                restart(cluster, node)
                # Before the next step: the residuals are those that the daemon found again.
                seen += [job.each("ahead 0 1e-4 sgd"), job.each("ahead 1 1e-4 adam")]
            return seen, job.steps(3)

    def again(self, cluster, node):
        (cluster.daemons[node].kill, cluster.daemons[node].stop)[node]()
        cluster.restart(node)

    def test_same_bits(self):
        for keys, shown in (({}, "f32"), ({"scope": "rank"}, "f32"), ({"residual": "bf16"}, "bf16")):
            with self.subTest(keys):
                policy = text(lookahead=0.25, sparsifier="topk", **keys)
                wanted = self.train(policy, lambda cluster, node: None)
                self.assertTrue(all(answer.startswith(f"{shown} 0.25 ")
                                    for answers in wanted[0] for answer in answers), wanted)
                self.assertEqual(self.train(policy, self.again), wanted)


class Room(unittest.TestCase):
    """A program that polls returns with more entries than the ring takes."""

    TENSORS = [(f"t{i}", "f32", "dense", (4,)) for i in range(1300)]

    def test_more_entries(self):
        cluster = self.enterContext(far_cluster(residual_ttl_s=60))
        job = Job(cluster, BUILD, "room", [0, 1], self.TENSORS,
                  text(bucket_bytes=10000000, sparsifier="dense"))
        self.addCleanup(job.kill)
        job.join()
        job.ranks[0].do(*[f"push {i}" for i in range(len(self.TENSORS))], "descriptor")
        job.ranks[1].send("steps 1")
        cluster.daemons[0].kill()
        self.assertEqual(job.ranks[0].do("look 0"), "pending")
        cluster.restart(0)
        while job.ranks[0].do("look 0") == "pending":
            time.sleep(0.05)  # the daemon reads the ring before the program arms
            job.ranks[0].send("arm")
            if job.ranks[0].line() != "ok":
                self.assertEqual(job.ranks[0].do("doze 50000"), "")
        self.assertEqual(job.ranks[1].answer().split()[0], "ok")


class MomentsElsewhere(Moments):
    """The same with trainers on other machines. What happens to files is tested above."""

    homes = ELSEWHERE
    test_cut_short = test_changed = test_other_workers = test_setting_gone = test_locked = None
    test_expired = test_stopped_beside_a_job_that_stays = test_stopped_when_ranks_have_left = None
    test_idle = test_some_have_committed = test_no_store = None


class Managed(unittest.TestCase):
    """Stores that a service manager keeps."""

    def setUp(self):
        self.cluster = ManagedCluster()
        self.addCleanup(self.cluster.close)
        self.cluster.start()
        self.daemon = self.cluster.daemons[0]

    def open(self):
        job = Job(self.cluster, BUILD, "managed", HOMES, TENSORS, text())
        self.addCleanup(job.kill)
        return job.join()

    def test_stopped(self):
        """An orderly end, after which the next daemon shows the store like one in a folder."""
        job = self.open()
        job.steps(2)
        self.assertEqual(self.daemon.stop(), 0)
        self.assertIn("the ranks of 1 job wait", self.daemon.log())
        self.assertGreater(len(self.daemon.manager.kept), 3)
        self.cluster.restart(0)
        self.assertEqual(job.steps(2)[:2], ("ok", 4))
        self.assertTrue(self.cluster.ask(0, "stores")["stores"][0]["used"])
        job.end()
        self.cluster.wait_empty()

    def test_too_few(self):
        """A job that the manager could keep in part only is refused."""
        self.daemon.stop()
        self.daemon.manager.limit = 2
        self.cluster.restart(0)
        job = Job(self.cluster, BUILD, "many", [0], TENSORS, text())
        self.addCleanup(job.kill)
        with self.assertRaisesRegex(RankError, "keeps at most 2 files of stores"):
            job.join()
        self.cluster.wait_empty()

    def assert_gone(self, job):
        """The manager need not keep what the daemon does not use."""
        self.cluster.restart(0)
        wait_for(lambda: not self.daemon.manager.kept)
        for rank in job.ranks:
            rank.send("steps 1")
        self.assertEqual(job.ranks[3].error()[0], "lost")

    def test_a_folder_instead(self):
        job = self.open()
        job.steps(1)
        self.daemon.kill()
        self.assertGreater(len(self.daemon.manager.kept), 3)
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="adtopk-", dir="/dev/shm"))
        self.daemon.variables["ADTOPK_STORE_FOLDER"] = folder
        self.assert_gone(job)

    def test_turned_off(self):
        """FDSTORE=0, while systemd has room as before."""
        job = self.open()
        job.steps(1)
        self.daemon.stop()
        self.assertGreater(len(self.daemon.manager.kept), 3)
        self.daemon.manager.limit = 0
        self.assert_gone(job)


class Half(unittest.TestCase):
    """Only node 0 keeps its stores."""

    def test_only_one_keeps(self):
        with StoreCluster(keeps=[0]) as cluster, \
             Job(cluster, BUILD, "half", HOMES, TENSORS, text()) as job:
            job.join()
            job.steps(2)
            cluster.daemons[0].kill()
            cluster.restart(0)
            job.steps(2)
            cluster.daemons[1].kill()
            for rank in job.ranks:
                rank.send("steps 1")
            self.assertEqual(job.ranks[0].error()[0], "peer")
            self.assertEqual(job.ranks[2].error()[0], "unreachable")


if __name__ == "__main__":
    unittest.main()
