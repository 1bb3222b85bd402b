#!/usr/bin/env python3
"""Trainers without a daemon on their machine: the same results, the same errors, over tcp://.

usage: test_remote.py BUILD [unittest's arguments]
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import digits
from build import BUILD
from cluster import Cluster, free_ports
from ranks import Job, Rank
from relay import Relay
from scene import SOON, Scene, text
from service import wait_for
from stores import far_cluster
from test_loop import Hog, memory

OWNER = os.getuid()
OTHER = 4242
# Small timeouts, so that tests of silence are short.
SETTINGS = {"trainers_owner": OWNER, "peer_timeout_ms": 2000, "heartbeat_ms": 200}
SILENCE = 2.0 + SOON
# More than one piece of 256 KiB, and every form and type.
TENSORS = [("w", "f32", "both", (300, 700)), ("list", "bf16", "list", (64, 128)),
           ("bias", "f32", "dense", (1000,)), ("half", "f16", "dense", (500, 400)),
           ("one", "f32", "list", (1,)), ("short", "bf16", "dense16", (500, 400)),
           ("listed", "f16", "both16", (70, 80)), ("short_bias", "f16", "both16", (300,))]


class Same(Scene):
    """A job's updates do not depend on how its ranks reach the daemons."""

    settings = SETTINGS

    def train(self, homes, policy):
        with Job(self.cluster, BUILD, self.name, homes, TENSORS, policy) as job:
            Scene.serial += 1
            self.name = f"job{Scene.serial}"
            job.join()
            job.each("gradients random 7")
            results = [job.steps(3)]
            job.each("scale 1024")
            results.append(job.steps(1))
            job.each("poison 5 1 nan")
            results.append(job.steps(3))
            job.each("barrier", "broadcast 2500000 0", "allreduce 300000", "broadcast 7 0")
            for rank in job.ranks:
                rank.send("push 4", "push 0", "wait 0", "wait 4", "push 1", "finish")
            finished = {[rank.answer() for _ in range(6)][-1] for rank in job.ranks}
            self.assertEqual(len(finished), 1, finished)
            results.append(finished.pop())
            return results

    def check(self, policy, here, *elsewhere):
        expected = self.train(here, policy)
        self.assertEqual(expected[2][:3], ("ok", 6, 1))
        for homes in elsewhere:
            with self.subTest(homes=homes):
                self.assertEqual(self.train(homes, policy), expected)

    def test_the_log_tells_where(self):
        for daemon in self.cluster.daemons:
            self.assertIn("info life: trainers on other machines connect to "
                          f"tcp://127.0.0.1:{daemon.remote_port}\n", daemon.log())

    def test_one_daemon(self):
        self.check(text(density=0.02), [0, 0], [0, "r0"], ["r0", 0], ["r0", "r0"])

    def test_two_daemons(self):
        self.check(text(density=0.02), [0, 1], ["r0", "r1"], [0, "r1"])

    def test_dense(self):
        self.check(text(sparsifier="dense"), [0, 0, 1], ["r0", 0, "r1"])

    def test_each_rank_selects(self):
        self.check(text(scope="rank", interleave=False), [0, 0, 1], [0, "r0", "r1"])

    def test_residual(self):
        """Read between steps it is what was given and did not come back; in mid-step it is refused."""
        for home in 0, "r0":
            for policy in {"sparsifier": "topk", "density": 0.02}, {"scope": "rank"}, \
                    {"sparsifier": "dense"}:
                with Job(self.cluster, BUILD, f"{self.name}.{home}", [home],
                         [("w", "f32", "dense", (300, 90)), ("b", "f32", "dense", (40,))],
                         text(**policy), before=["totals"]) as job:
                    job.join()
                    rank = job.ranks[0]
                    self.assertEqual(rank.do("residual 0"), "0")
                    rank.do("gradients integer 3")
                    for _ in range(3):
                        job.steps(4)
                        kept = int(rank.do("residual 0"))
                        self.assertEqual(kept > 20000, policy.get("sparsifier") != "dense", kept)
                        self.assertEqual(rank.do("residual 1"), "0")
                    rank.do("push 1")
                    rank.send("residual 0")
                    self.assert_error(rank, "state", "adtopk_residual() in step 12", "wait for its end")
                    rank.do("finish")
                    rank.send("residual 2")
                    self.assert_error(rank, "argument", "tensor 2")

    def test_looks(self):
        """A wait may end before the step does, and there is no descriptor to wait for."""
        job = self.joined([0, "r0"], tensors=TENSORS)
        local, remote = job.ranks
        for rank in job.ranks:
            rank.do("gradients random 1", "push 0")
        self.assertEqual(remote.do("look 0"), "pending")
        self.assertEqual(remote.do("look 50"), "pending")
        self.assertEqual(remote.do("look-beside 400"), "pending pending")
        for command in "descriptor", "arm":
            remote.send(command)
            self.assert_error(remote, "argument", f"adtopk_{command}()", "tcp://")
        self.assertEqual(remote.do("barrier-look 0"), "pending")
        self.assertEqual(remote.do("barrier-look 20"), "pending")
        remote.send("allreduce 3")
        self.assert_error(remote, "state", "another collective operation is under way")
        self.assertEqual(local.do("barrier-look 50000"), "")
        self.assertEqual(remote.do("barrier-look 50000"), "")
        local.do("finish")
        self.assertEqual(remote.do("look 50000"), "")
        job.end()

    def test_a_step_ends_during_a_push(self):
        """Another thread ends it: the end goes after all pieces of the gradient."""
        tensors = [("large", "f32", "dense", (4096, 2048))]
        for home in 0, "r0":
            with self.subTest(home=home):
                job = self.joined([home], tensors=tensors)
                job.each("gradients random 1", "race 0", "finish")
                job.end()

    def test_alone(self):
        self.check(text(density=0.5), [0], ["r0"])

    def test_empty_lists(self):
        """No entry reaches the threshold, and an update without entries is a list nevertheless."""
        self.check(text(sparsifier="threshold", threshold=1e6), [0], ["r0"])

    def test_many_tensors(self):
        tensors = [(f"layer{i}.weight", "f32", "both", (4, 3 + i % 5)) for i in range(1500)]
        results = []
        for homes in [0, 0], [0, "r0"]:
            job = self.joined(homes, tensors=tensors)
            job.each("gradients random 1")
            results.append(job.steps(3))
            job.end()
        self.assertEqual(*results)


class WithoutLibzmq(Scene):
    """The client library opens libzmq for a tcp:// address, and needs none for a daemon here."""

    settings = SETTINGS

    def train(self, address):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        with open(os.path.join(folder, "libzmq.so.5"), "w", encoding="utf-8") as broken:
            broken.write("not a library")
        environment = dict(os.environ, LD_LIBRARY_PATH=folder, ADTOPK_ADDRESS=address,
                           ADTOPK_JOB=self.name)
        return subprocess.run([os.path.join(BUILD, "client", "adtopk-minimal")], env=environment,
                              capture_output=True, text=True, timeout=60)

    def test_here(self):
        self.assertEqual(self.train(self.cluster.address(0)).returncode, 0)

    def test_elsewhere(self):
        result = self.train(self.cluster.address("r0"))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^a tcp:// address needs libzmq\.so\.5 \(Debian: libzmq5\), "
                         r"which cannot be opened: .*file too short\n$")


class Deaths(Scene):
    """Whoever depends on a rank or a daemon that dies hears of it within seconds."""

    settings = SETTINGS

    def started(self, homes):
        job = self.joined(homes, tensors=TENSORS)
        job.each("gradients random 1")
        job.steps(2)
        return job

    def check_kill(self, homes, victim, number, *before):
        job = self.started(homes)
        others = [rank for rank in job.ranks if rank.rank != victim]
        for rank in others:
            rank.send("steps 1")
        if before:
            job.ranks[victim].do(*before)
        died = time.monotonic()
        if number == signal.SIGKILL:
            job.ranks[victim].kill()
        else:
            job.ranks[victim].process.send_signal(number)
        for rank in others:
            self.assert_error(rank, "peer", f"rank {victim}", "127.0.0.1", timeout=SILENCE)
        self.assertLess(time.monotonic() - died, SOON if number == signal.SIGKILL else SILENCE)
        job.kill()

    def test_killed_between_steps(self):
        self.check_kill([0, "r0", 1], 1, signal.SIGKILL)

    def test_killed_in_a_step(self):
        self.check_kill(["r0", "r1"], 0, signal.SIGKILL, "push 0")

    def test_killed_while_others_commit(self):
        ranks = self.ranks(["r0", 0, "r1"])
        for rank in ranks:
            rank.do(rank.opening, "tensor a f32 both 32x64")
        for rank in ranks[1:]:
            rank.send("commit")
        time.sleep(0.1)
        ranks[0].kill()
        for rank in ranks[1:]:
            self.assert_error(rank, "peer", "rank 0", timeout=SOON)

    def test_silent(self):
        """A machine that hangs sends neither heartbeats nor the end of its connection."""
        self.check_kill([0, "r0"], 1, signal.SIGSTOP)

    def test_busy(self):
        """A trainer that computes for longer than the timeout is alive."""
        job = self.started([0, "r0"])
        job.ranks[0].send("steps 1")
        time.sleep(SETTINGS["peer_timeout_ms"] / 1000 + 1)
        job.ranks[1].send("steps 1")
        self.assertEqual(job.ranks[0].answer(), job.ranks[1].answer())
        job.end()

    def test_left_in_a_step(self):
        job = self.started([0, "r0"])
        job.ranks[1].do("push 0", "close")
        job.ranks[0].send("steps 1")
        self.assert_error(job.ranks[0], "peer", "rank 1 left")

    def test_left_between_steps(self):
        job = self.started([0, "r0"])
        job.ranks[1].do("close")
        job.ranks[0].do("close")


class Daemons(unittest.TestCase):
    """A daemon that goes, and one that is not there."""

    def setUp(self):
        self.cluster = Cluster(BUILD, nodes=1, settings=SETTINGS).start()
        self.addCleanup(self.cluster.close)
        self.job = Job(self.cluster, BUILD, "job", [0, "r0"], TENSORS)
        self.addCleanup(self.job.kill)
        self.job.join()
        self.job.each("gradients random 1")
        self.job.steps(2)

    def expect(self, name, *words, timeout):
        found, sentence = self.job.ranks[1].error(timeout)
        self.assertEqual(found, name, sentence)
        for word in words:
            self.assertIn(word, sentence)

    def test_killed(self):
        self.job.ranks[1].send("steps 1")
        self.cluster.daemons[0].kill()
        self.expect("unreachable", "tcp://127.0.0.1", "went away", timeout=SOON)
        self.job.ranks[1].send("steps 1")  # again, without waiting
        self.expect("unreachable", "went away", timeout=SOON)

    def test_killed_and_restarted(self):
        self.cluster.daemons[0].kill()
        self.cluster.restart(0)
        self.job.ranks[1].send("steps 1")
        self.expect("unreachable", "went away", timeout=SOON)

    def test_silent(self):
        self.job.ranks[1].send("steps 1")
        self.cluster.daemons[0].signal(signal.SIGSTOP)
        self.addCleanup(self.cluster.daemons[0].signal, signal.SIGCONT)
        self.expect("unreachable", "went away", timeout=5 + SOON)

    def test_stopped(self):
        self.job.ranks[1].send("steps 1")
        self.cluster.daemons[0].stop()
        name, sentence = self.job.ranks[1].error(2 + SOON)  # stop_timeout_ms, and a little
        self.assertIn(name, ("peer", "unreachable"), sentence)
        self.assertIn("stop", sentence)

    def test_nobody_there(self):
        address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        rank = Rank(BUILD, address, "job", 0, 1)
        self.addCleanup(rank.kill)
        rank.send(rank.opening)
        name, sentence = rank.error()
        self.assertEqual(name, "unreachable", sentence)
        self.assertIn(address, sentence)

    def test_somebody_else_there(self):
        other = socket.create_server(("127.0.0.1", 0))
        other.settimeout(0.1)
        self.addCleanup(other.close)
        rank = Rank(BUILD, f"tcp://127.0.0.1:{other.getsockname()[1]}", "job", 0, 1)
        self.addCleanup(rank.kill)
        rank.send(rank.opening)
        while rank.pending():
            with contextlib.suppress(OSError):  # nobody came, or it has gone
                with other.accept()[0] as connection:
                    connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" * 4)
        name, sentence = rank.error()
        self.assertEqual(name, "denied", sentence)
        self.assertIn("is it adtopkd", sentence)

    def test_port_for_nodes(self):
        with Cluster(BUILD, nodes=2, settings=SETTINGS) as cluster:
            with open(cluster.daemons[0].config, encoding="utf-8") as file:
                rank = Rank(BUILD, json.load(file)["listen"], "job", 0, 1)
            self.addCleanup(rank.kill)
            rank.send(rank.opening)
            name, sentence = rank.error()
        self.assertEqual(name, "denied", sentence)
        self.assertIn("is the port its trainers_listen, not its listen?", sentence)


class Forwarded(unittest.TestCase):
    """A trainer's connection leads through a forwarder, which accepts others while the daemon is away, and
    hangs up on them."""

    def test_comes_back(self):
        with far_cluster() as cluster, Relay(cluster.daemons[0].remote_port) as relay:
            cluster.address = lambda node: f"tcp://127.0.0.1:{relay.port}"
            with Job(cluster, BUILD, "forwarded", ["r0"], TENSORS,
                     before=["gradients random 7"]) as job:
                job.join()
                job.steps(2)
                job.ranks[0].send("steps 2")
                cluster.daemons[0].kill()
                time.sleep(1)  # it is hung up on again and again
                cluster.restart(0)
                self.assertEqual(job.ranks[0].answer().split()[:2], ["ok", "4"])
                job.steps(1)


class Errors(Scene):
    """The same refusals as on the same node."""

    settings = SETTINGS

    def test_taken(self):
        first, second = self.rank("r0", 1), self.rank("r0", 1)
        first.do(first.opening)
        second.send(second.opening)
        self.assert_error(second, "mismatch", "rank 1")

    def test_policy(self):
        rank = self.rank("r0", 0, policy=text(sparsifier="wrong"))
        rank.send(rank.opening)
        self.assert_error(rank, "policy", "sparsifier")

    def test_mismatch(self):
        here, there = self.ranks([0, "r0"])
        here.send(here.opening, "tensor a f32 both 8x8", "commit")
        there.send(there.opening, "tensor a f32 both 8x9", "commit")
        for rank in here, there:
            rank.answer()
            rank.answer()
        for rank in here, there:
            self.assert_error(rank, "mismatch", "ranks", "tensor 'a'")

    def test_no_memory(self):
        rank = self.rank("r0", 0, world=1)
        rank.do(rank.opening, "tensor huge f32 both 60000x60000")
        for i in range(30):
            rank.do(f"tensor huge{i} f32 both 60000x60000")
        rank.send("commit")
        self.assert_error(rank, "memory", "bytes")

    def test_operations_differ(self):
        job = self.joined([0, "r0"], tensors=TENSORS)
        job.ranks[0].send("barrier")
        job.ranks[1].send("allreduce 10")
        for rank in job.ranks:
            self.assert_error(rank, "mismatch", "different operations")


class WithKeys(unittest.TestCase):
    """A daemon that knows trainers by their keys."""

    more = {}  # settings

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="adtopk-", dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        maker = Rank(BUILD, "-", "-", 0, 1)
        self.addCleanup(maker.kill)
        self.key = {name: maker.do(f"keygen {self.path(name)}")
                    for name in ("node", "one", "two", "stranger")}
        self.settings = {
            "key_file": self.path("node"), "heartbeat_ms": 200, "peer_timeout_ms": 2000,
            "trainers": [{"key": self.key["one"], "owner": OWNER},
                         {"key": self.key["two"], "owner": OTHER}], **self.more}
        self.cluster = Cluster(BUILD, nodes=1, settings=self.settings).start()
        self.addCleanup(self.cluster.close)

    def path(self, name):
        return os.path.join(self.folder, name)

    def rank(self, name, number, world, server=None, job="job", address=None):
        one = Rank(BUILD, address or self.cluster.address("r0"), job, number, world)
        self.addCleanup(one.kill)
        one.do(f"keys {self.path(name) if name else '-'} "
               f"{(server or self.key['node']) if name else '-'}")
        return one

    def refused(self, rank, *words):
        rank.send(rank.opening)
        name, sentence = rank.error()
        self.assertEqual(name, "denied", sentence)
        for word in words:
            self.assertIn(word, sentence)


class Keys(WithKeys):
    """With keys, a trainer is who its key says; nobody else gets in, and each hears why."""

    def test_trains(self):
        local = Rank(BUILD, self.cluster.address(0), "job", 0, 2)
        self.addCleanup(local.kill)
        ranks = [local, self.rank("one", 1, 2)]
        for rank in ranks:
            rank.send(rank.opening, "tensor a f32 both 64x64", "commit", "gradients random 1",
                      "steps 5")
        answers = {[rank.answer() for _ in range(5)][-1] for rank in ranks}
        self.assertEqual(len(answers), 1, answers)

    def test_owners_have_jobs_of_their_own(self):
        one, two = self.rank("one", 0, 1), self.rank("two", 0, 1)
        for rank in one, two:
            rank.do(rank.opening)  # the same name, run and rank, and not in each other's way

    def test_unknown_key(self):
        self.refused(self.rank("stranger", 0, 1), "does not know this trainer's key")
        self.assertIn(self.key["stranger"], self.cluster.daemons[0].log())

    def test_wrong_server_key(self):
        self.refused(self.rank("one", 0, 1, server=self.key["two"]), "server_key")

    def test_no_key(self):
        self.refused(self.rank(None, 0, 1), "key")

    def test_key_where_none_is_wanted(self):
        with Cluster(BUILD, nodes=1, settings=SETTINGS) as plain:
            rank = Rank(BUILD, plain.address("r0"), "job", 0, 1)
            self.addCleanup(rank.kill)
            rank.do(f"keys {self.path('one')} {self.key['node']}")
            self.refused(rank, "key")

    def test_a_flipped_bit(self):
        """It ends the connection at once, and not after a silence."""
        with Relay(int(self.cluster.address("r0").rsplit(":", 1)[1])) as relay:
            rank = self.rank("one", 0, 1, address=f"tcp://127.0.0.1:{relay.port}")
            rank.do(rank.opening, "tensor a f32 both 64x64", "commit", "steps 3")
            relay.flip(back=True)
            rank.send("steps 3")
            name, sentence = rank.error(SOON)
            self.assertEqual(name, "unreachable", sentence)
            self.assertEqual(relay.flipped, 1)

    def test_bad_key_files(self):
        rank = self.rank("one", 0, 1)
        os.chmod(self.path("one"), 0o644)
        rank.send(rank.opening)
        self.assertEqual(rank.error()[0], "denied")
        other = self.rank("missing", 0, 1)
        other.send(other.opening)
        self.assertEqual(other.error()[0], "system")


class Limits(WithKeys):
    """A user's sessions and bytes count together, through whichever door they come."""

    more = {"user_sessions": 6, "user_memory": 3}

    def setUp(self):
        if OWNER != 0:
            self.skipTest("becomes another user, for which it has to be root")
        super().setUp()
        os.chmod(self.cluster.directory, 0o755)

    def hog(self, *arguments):
        hog = Hog(self.cluster.daemons[0], *arguments, uid=OTHER)
        self.addCleanup(hog.kill)
        return hog

    def test_sessions(self):
        self.hog("sessions", 4).wait()
        for number in range(2):
            one = self.rank("two", 0, 1, job=f"remote{number}")
            one.do(one.opening)
        said = f"user {OTHER} has 6 sessions on this daemon already, and one user may have 6"
        self.refused(self.rank("two", 0, 1), said)
        self.assertEqual(self.hog("greedy", 1).outcome(), f"0 {said} (user_sessions)")
        self.assertRegex(self.cluster.daemons[0].log(),
                         rf"warning refused: refused a trainer of uid {OTHER}, "
                         rf"a process at 127.0.0.1: {said}")
        one = self.rank("one", 0, 1)  # another user's
        one.do(one.opening)

    def test_bytes(self):
        part = memory("MemTotal") * 58 // 10000  # the hog takes five of them
        self.hog("list", part // 2).wait()
        one = self.rank("two", 0, 1)
        one.send(one.opening, f"tensor a f16 list {part // 2}", "commit")
        self.assertEqual([one.answer() for _ in range(2)], ["", ""])
        self.assertRegex(": ".join(one.error()),
                         rf"^memory: user {OTHER} has [1-9]\d+ bytes .* asks for \d+ more, "
                         r"but one user may have \d+ \(user_memory: 3 %\)")


class Uncommitted(WithKeys):
    more = {"commit_timeout_ms": 1000}

    def test_never_committed(self):
        one = self.rank("two", 0, 1)
        one.do(one.opening)
        wait_for(lambda: self.cluster.status(0)["sessions"] == 0)
        self.assertIn("nothing was committed within 1000 ms (commit_timeout_ms)",
                      self.cluster.status(0)["jobs"][0]["reason"])


class Digits(unittest.TestCase):
    """The example trains with one rank here and one elsewhere, and ends with equal parameters."""

    def train(self, cluster, homes):
        data, name = digits.unpack(cluster.directory), "digits" + "".join(map(str, homes))
        policy = os.path.join(cluster.directory, "behind.json")
        with open(policy, "w", encoding="utf-8") as file:
            file.write('{"lookahead":0}')  # ranks elsewhere cannot look ahead
        ranks = digits.start(self, cluster, homes, data, "--steps", "20", "--job", name,
                             "--policy", policy)
        return digits.parameters(self, ranks)

    def test_same_parameters(self):
        with Cluster(BUILD, nodes=2, settings={"trainers_owner": OWNER}) as cluster:
            here = self.train(cluster, [0, 0])
            self.assertEqual(self.train(cluster, [0, "r0"]), here)
            self.assertEqual(self.train(cluster, ["r0", "r1"]), self.train(cluster, [0, 1]))


if __name__ == "__main__":
    unittest.main()
