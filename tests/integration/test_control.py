#!/usr/bin/env python3
"""The control socket: who may ask what, and clients that misbehave.

usage: test_control.py BUILD [unittest's arguments]
"""
import grp
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from build import BUILD
from cluster import PATIENCE
from control import DENIED, NOBODY, REFUSED, UNKNOWN, Daemons, Training, user
from ranks import Job, Rank
from rawclient import varint
from service import TENSORS, wait_for
from stores import StoreCluster


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
        wait_for(lambda: self.document("policy", "get", self.name)["next_version"] == 1)
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
                process.wait(PATIENCE)


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

    def connect(self, timeout=PATIENCE):
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
        left = flood
        deadline = time.monotonic() + PATIENCE
        while len(left) > limit and time.monotonic() < deadline:
            left = [client for client in left if not self.is_dropped(client)]
        for client in flood:
            client.close()
        self.assertLessEqual(len(left), limit)
        self.text("status")

    @staticmethod
    def is_dropped(client):
        client.settimeout(0.05)
        try:
            while client.recv(65536):
                pass
            return True
        except socket.timeout:
            return False
        except ConnectionError:
            return True

    def test_floods_of_refusals_do_not_fill_the_log(self):
        before = len(self.cluster.daemons[0].log())
        for _ in range(300):
            client = self.connect()
            client.send(b"\xff")
            client.recv(1000)
            client.close()
        self.assertLess(len(self.cluster.daemons[0].log()) - before, 100000)

    def test_one_that_stalls(self):
        began = time.monotonic()
        client = self.connect()
        self.assertEqual(client.recv(100), b"")
        self.assertGreater(time.monotonic() - began, 9)
        self.text("status")


class Waiting(unittest.TestCase):
    """Stores whose ranks have not returned yet."""

    def setUp(self):
        self.cluster = self.enterContext(StoreCluster())

    def joined(self):
        job = Job(self.cluster, BUILD, "waiting", [0, 1], TENSORS, "-")
        self.addCleanup(job.kill)
        return job.join()

    def test_begun_anew(self):
        """Fresh ranks of the same run do without the store, and the log says so."""
        job = self.joined()
        for daemon in self.cluster.daemons:
            daemon.kill()
        job.kill()
        for node in (0, 1):
            self.cluster.restart(node)
        self.joined().steps(1)
        for daemon in self.cluster.daemons:
            self.assertRegex(daemon.log(), r"warning life: store of job \S*waiting/0, \d+ bytes, last used "
                             r"at most \d+ s ago: removed \(ranks begin this run anew\)")

    def test_lost(self):
        """Ranks of a node that trains alone hear that their daemon has lost the job, not only where it is."""
        for variables in ({}, {"ADTOPK_WORKERS": "5"}):
            job = Job(self.cluster, BUILD, f"alone{len(variables)}", [0, 0], TENSORS, "-")
            self.addCleanup(job.kill)
            job.join()
            job.steps(2)
            daemon = self.cluster.daemons[0]
            daemon.stop()
            if not variables:  # one bit, while no daemon uses the file
                with open(os.path.join(self.cluster.folder(0), "00000000.0"), "r+b") as file:
                    file.seek(3000)
                    byte = file.read(1)[0]
                    file.seek(3000)
                    file.write(bytes([byte ^ 1]))
            daemon.variables.update(variables)
            self.cluster.restart(0)
            for rank in job.ranks:
                rank.send("steps 1")
            for rank in job.ranks:
                status, words = rank.error()
                self.assertEqual(status, "lost")
                self.assertRegex(words, r"the daemon at .* has lost what it had of this job \(its log says why\)")
            self.assertIn("not used: ", daemon.log())

    def test_drained_before_ranks_are_back(self):
        """An operator who sees no session sees that there are stores to wait for."""
        cluster = self.cluster
        daemon = cluster.daemons[0]
        job = self.joined()
        self.assertEqual(cluster.status(0)["stores_waiting"], 0)
        job.ranks[0].process.send_signal(signal.SIGSTOP)
        daemon.kill()
        cluster.restart(0)
        self.assertEqual(cluster.status(0)["stores_waiting"], 1)
        waiting = "1 store waits for ranks that can return"
        self.assertIn(f"0 are connected\n{waiting}", daemon.ask("drain")[1])
        self.assertIn(waiting, daemon.ask("status")[1])
        job.ranks[0].process.send_signal(signal.SIGCONT)
        job.each("steps 1")
        self.assertEqual(cluster.status(0)["stores_waiting"], 0)
        self.assertNotIn("wait", daemon.ask("drain")[1])


if __name__ == "__main__":
    unittest.main()
