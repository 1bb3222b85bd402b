#!/usr/bin/env python3
"""Looking ahead: what the daemon shows is the residual, whatever its type and scope, over changes of
the policy; the shift is what the header says; and the guard keeps it short.

usage: test_lookahead.py BUILD [unittest's arguments]
"""
import array
import fcntl
import json
import os
import socket
import struct
import termios
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job

HOMES = [0, 0, 1, 1]
TENSORS = [("wide", "f32", "dense+pending", (64, 96)), ("odd", "f16", "list+pending", (5, 7, 3)),
           ("bias", "f32", "dense+pending", (64,))]
DENSE, PENDING, PARTS = 2, 8, 34  # proto/local.h
POLICY = {"sparsifier": "topk", "density": 0.05, "lookahead": 0.25}


def field(number, value):
    """A field of a message as protobuf writes it, of numbers below 128 and texts."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


class Stranger:
    """A rank alone with one tensor, 64 x 64, that asks what it likes and reads when it likes."""

    def __init__(self, path, job, policy, forms=DENSE | PENDING):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(path)
        self.ask(1, field(1, 2) + field(2, job) + field(3, b"0") + field(5, 1) + field(6, policy))
        self.read()
        self.ask(2, field(1, field(1, b"w") + field(3, bytes([64, 64])) + field(4, forms)))
        self.ask(3)
        self.read()
        self.ask(4)
        self.read()

    def ask(self, kind, message=b""):
        self.socket.send(field(kind, message))

    def asks(self):
        """Whether the daemon has something to read."""
        return struct.unpack("i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))[0] > 0

    def read(self):
        """The next message that is no wake-up: its descriptors, closed."""
        message, control = b"W", []
        while len(message) == 1:
            message, control, _, _ = self.socket.recvmsg(65536, 64)
        got = [one for _, _, data in control for one in array.array("i", data)]
        for descriptor in got:
            os.close(descriptor)
        return len(got)


def text(document):
    return json.dumps(document, separators=(",", ":"))


class Lookahead(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(BUILD, nodes=2).start()
        cls.addClassCleanup(cls.cluster.close)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()  # with exit status 0: sanitizers have found nothing

    def job(self, policy, homes=None):
        name = self.id().split(".")[-1] + policy.get("scope", "")
        job = Job(self.cluster, BUILD, name, homes or HOMES, TENSORS, text(policy))
        return job.join()

    def change(self, job, **keys):
        pairs = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        code, _, err = job.steps_while(lambda: self.cluster.daemons[0].ask(
            "policy", "set", job.name, *pairs, timeout=60))
        self.assertEqual(code, 0, err)

    def ahead(self, job, tensor=0, rate=1e-4, kind="sgd"):
        """What all ranks say of a tensor, which is (type, share) or None."""
        answers = [answer.split() for answer in job.each(f"ahead {tensor} {rate} {kind}")]
        kinds = {tuple(answer[:2]) for answer in answers}
        self.assertEqual(len(kinds), 1, answers)
        kind = kinds.pop()
        return None if kind == ("none",) else (kind[0], float(kind[1]))

    def test_what_is_shown_is_the_residual(self):
        """Over changes of the residual's type and scope, of the share, and to dense and back."""
        with self.job(POLICY) as job:
            for keys, shown in (({}, ("f32", 0.25)), ({"residual": "bf16"}, ("bf16", 0.25)),
                                ({"lookahead": 0.5}, ("bf16", 0.5)),
                                ({"residual": "f32", "scope": "rank"}, ("f32", 0.5)),
                                ({"sparsifier": "adtopk"}, ("f32", 0.5)),
                                ({"sparsifier": "dense", "scope": "node"}, None),
                                ({"sparsifier": "dgc", "clip": 50}, ("f32", 0.5)),
                                ({"lookahead": 0}, None), ({"lookahead": 1}, ("f32", 1.0))):
                if keys:
                    self.change(job, **keys)
                job.steps(3)
                for kind in ("sgd", "adam"):
                    self.assertEqual(self.ahead(job, 0, kind=kind), shown, keys)
                    self.assertEqual(self.ahead(job, 1, kind=kind), shown, keys)
                    self.assertIsNone(self.ahead(job, 2, kind=kind))  # one dimension: dense
                job.steps(3)

    def test_rounding_errors(self):
        """A residual in bf16 is shown without those that its chunks carry."""
        job = Job(self.cluster, BUILD, "rounding", HOMES, TENSORS,
                  text({**POLICY, "residual": "bf16"}), before=["gradients random 7"])
        with job.join():
            job.steps(5)
            for tensor in (0, 1):
                self.assertEqual(self.ahead(job, tensor), ("bf16", 0.25))

    def test_tensors_that_come_later(self):
        """Their residuals lie in parts of their own, whatever the scope."""
        for scope in ("node", "rank"):
            with self.subTest(scope), self.job({**POLICY, "scope": scope}) as job:
                job.steps(3)
                self.assertEqual(self.ahead(job, 1), ("f32", 0.25))
                for name in ("later", "last"):
                    job.each(f"tensor {name} f32 dense+pending 31x40", "commit")
                    job.steps(4)
                for tensor in (0, 1, 3, 4):
                    self.assertEqual(self.ahead(job, tensor), ("f32", 0.25), tensor)
                self.change(job, scope="node", residual="bf16")
                job.steps(2)
                for tensor in (0, 1, 3, 4):
                    self.assertEqual(self.ahead(job, tensor), ("bf16", 0.25), tensor)

    def test_the_guard(self):
        """A shift that is too long is shortened from the next one on, and grows again."""
        with self.job(POLICY, [0]) as job:
            job.steps(20)
            ratios = []
            for rate in (1000, 1000, 1e-6, 1e-6):
                ratios.append(float(job.each(f"ahead 0 {rate} sgd")[0].split()[2]))
            self.assertGreater(ratios[0], 0.2)
            self.assertAlmostEqual(ratios[1], 0.1, delta=1e-4)
            self.assertLess(ratios[2], ratios[3])  # the guard of the call before, then none
            self.assertEqual(self.ahead(job, 0, 1e-6), ("f32", 0.25))
            job.each("ahead 0 1000 sgd", "ahead 0 1000 sgd", "steps 1")
            _, shown, _ = self.cluster.daemons[0].ask("tensors", job.name)
            self.assertIn("wide: ranks look ahead by", shown)
            self.assertNotIn("odd: ranks look ahead", shown)

    def test_the_guard_recovers(self):
        """A shift beyond all measure turns looking ahead off, until the next one is short enough."""
        with self.job(POLICY, [0]) as job:
            job.steps(5)
            shares = [self.ahead(job, 0, rate) for rate in ("1e30", "1e-6", "1e-6")]
            self.assertEqual(shares, [("f32", 0.25), ("f32", 0), ("f32", 0.25)])

    def test_what_was_shown_stays(self):
        """To the next step's first push, although more tensors came in between."""
        with self.job(POLICY, [0]) as job:
            job.steps(1)
            job.each("hold 0")
            job.each("tensor more f32 dense+pending 40x50", "commit")
            self.assertIsNone(self.ahead(job, 0))
            job.each("held 1")
            job.steps(1)
            for tensor in (0, 3):
                self.assertEqual(self.ahead(job, tensor), ("f32", 0.25))

    def test_residuals_are_let_go(self):
        """A policy that shows none leaves no mapping of those before it."""
        with self.job(POLICY, [0]) as job:
            job.steps(1)
            self.assertEqual(self.ahead(job), ("f32", 0.25))
            self.change(job, lookahead=0)
            job.steps(2)
            self.assertIsNone(self.ahead(job))
            self.assertEqual(self.shown(job.ranks[0]), [])

    def test_momentum_and_adam(self):
        """Momentum in the policy and a second moment in the trainer: refused, and the tensor named."""
        with self.job({**POLICY, "momentum": 0.5}, [0]) as job:
            job.steps(1)
            self.assertEqual(self.ahead(job), ("f32", 0.25))
            why = self.refusal(job.ranks[0], 0, "adam")
            self.assertIn('tensor "wide" has "momentum" in its policy', why)
            self.change(job, momentum=0)
            job.steps(2)
            self.assertEqual(self.ahead(job, kind="adam"), ("f32", 0.25))

    def mapped(self, cluster):
        """Parts of residuals that the daemon has in memory that ranks can map."""
        folder = f"/proc/{cluster.daemons[0].process.pid}/fd"
        return sum("residual" in os.readlink(os.path.join(folder, one))
                   for one in os.listdir(folder))

    def refusal(self, rank, tensor, kind="sgd"):
        rank.send(f"ahead {tensor} 1e-4 {kind}")
        return rank.error()[1]

    def test_nobody_asked(self):
        """Without the form all residuals are private, and looking ahead is refused by name."""
        tensors = [(name, kind, forms.removesuffix("+pending"), shape)
                   for name, kind, forms, shape in TENSORS]
        for scope in ("node", "rank"):
            with self.subTest(scope), Cluster(BUILD, nodes=1) as cluster:
                policy = text({**POLICY, "scope": scope})
                with Job(cluster, BUILD, "private", [0, 0], tensors, policy) as job:
                    job.join().steps(2)
                    for tensor, name in enumerate(("wide", "odd", "bias")):
                        sentence = self.refusal(job.ranks[0], tensor)
                        self.assertIn(f'"{name}"', sentence)
                        self.assertIn("without ADTOPK_FORM_PENDING", sentence)
                    self.assertEqual(self.mapped(cluster), 0)
                    self.assertEqual(self.shown(job.ranks[0]), [])
                    job.each("tensor more f32 dense+pending 40x50", "commit")
                    job.steps(2)
                    self.assertEqual(self.ahead(job, 3), ("f32", 0.25))
                    self.assertIn("PENDING", self.refusal(job.ranks[0], 0))
                    self.assertEqual(self.mapped(cluster), 2 if scope == "rank" else 1)
                    job.steps(2)

    def test_private_residuals_are_not_shown(self):
        """Whatever part a rank asks for."""
        path = self.cluster.address(0).removeprefix("unix:")
        for forms, most in ((DENSE, 0), (DENSE | PENDING, 1), (PENDING, 1)):
            name = f"forms{forms}".encode()
            rank = Stranger(path, name, text(POLICY).encode(), forms)
            with rank.socket:
                got = 0
                for part in range(PARTS):
                    rank.ask(7, field(1, part))
                    got += rank.read()
                self.assertEqual(got, most)

    def test_elsewhere(self):
        """A rank on another machine has no residual: its shifted parameters are the parameters. It
        too is refused without the form."""
        owner = {"trainers_owner": os.getuid()}
        tensors = [("asked", "f32", "dense+pending", (8, 8)), ("not", "f32", "dense", (8, 8))]
        with Cluster(BUILD, nodes=1, settings=owner) as cluster:
            with Job(cluster, BUILD, "elsewhere", ["r0"], tensors, text(POLICY)) as job:
                job.join().steps(2)
                self.assertIsNone(self.ahead(job, 0))
                self.assertIn("PENDING", self.refusal(job.ranks[0], 1))

    def test_ranks_that_ask_for_different_forms(self):
        """They end the job, as with any other form."""
        with Cluster(BUILD, nodes=1) as cluster:
            job = Job(cluster, BUILD, "unlike", [0, 0], [], text(POLICY))
            self.addCleanup(job.kill)
            for rank, forms in zip(job.ranks, ("dense", "dense+pending")):
                rank.send(rank.opening, f"tensor w f32 {forms} 8x8", "commit")
                rank.answer()
                rank.answer()
            for rank in job.ranks:
                status, sentence = rank.error()
                self.assertEqual(status, "mismatch")
                self.assertIn("form", sentence)

    def test_rank_that_does_not_read(self):
        """Descriptors that wait for it could keep others from getting theirs."""
        path = self.cluster.address(0).removeprefix("unix:")
        rank = Stranger(path, b"greedy", text(POLICY).encode())
        with rank.socket:
            for _ in range(100):
                rank.ask(7, field(1, 4))
            while rank.asks():
                time.sleep(0.01)
            got = [rank.read() for _ in range(100)]
            self.assertEqual(got[0], 1)
            self.assertLess(sum(got), 30)
            rank.ask(7, field(1, 4))
            self.assertEqual(rank.read(), 1)

    def test_daemon_that_is_gone(self):
        """What was waited for can still be read: the update, without what was never mapped."""
        with Cluster(BUILD, nodes=1) as cluster:
            with Job(cluster, BUILD, "gone", [0], TENSORS, text(POLICY)) as job:
                job.join()
                job.each("push 0", "look 50000")
                cluster.daemons[0].kill()
                self.assertEqual(job.each("hold 0"), ["none"])
                job.ranks[0].send("push 0")
                self.assertEqual(job.ranks[0].error()[0], "unreachable")

    def test_before_the_first_step(self):
        """Nothing was accepted yet, so there is no update; the shift itself is refused by name too."""
        with self.job(POLICY, [0]) as job:
            job.ranks[0].send("ahead 0 1 sgd")
            self.assertEqual(job.ranks[0].error()[0], "ahead")
            job.steps(1)
            job.ranks[0].send("push 0", "ahead 0 1 sgd")
            job.ranks[0].answer()
            _, sentence = job.ranks[0].error()
            self.assertIn("wait for its end", sentence)

    def test_impossible_rates(self):
        with self.job(POLICY, [0]) as job:
            job.steps(1)
            for rate in ("-1", "nan", "inf"):
                job.ranks[0].send(f"ahead 0 {rate} sgd")
                _, sentence = job.ranks[0].error()
                self.assertIn("rate", sentence)
            self.assertEqual(self.ahead(job, 0, 0), ("f32", 0.25))

    def test_rates_that_change(self):
        """The shift has the rate of its own call, and 0 shifts nothing."""
        with self.job(POLICY, [0]) as job:
            for rate in (1e-4, 0, 3e-4, 1e-6, 0):
                job.steps(1)
                for tensor in (0, 1):
                    self.assertEqual(self.ahead(job, tensor, rate), ("f32", 0.25))

    def test_second_moment_that_overflows(self):
        """Infinite, NaN or negative: such an element is not shifted, the others are."""
        with self.job(POLICY, [0]) as job:
            job.steps(3)
            self.assertEqual(self.ahead(job, kind="overflow"), ("f32", 0.25))
            self.assertEqual(self.ahead(job, kind="adam"), ("f32", 0.25))

    def shown(self, rank):
        with open(f"/proc/{rank.process.pid}/maps", encoding="utf-8") as maps:
            return [line for line in maps if "residual" in line]

    def test_nobody_else_may_write(self):
        """A rank maps residuals for reading alone."""
        with self.job(POLICY, [0]) as job:
            job.steps(1)
            self.ahead(job)
            shown = self.shown(job.ranks[0])
            self.assertTrue(shown)
            for line in shown:
                self.assertEqual(line.split()[1], "r--s")


if __name__ == "__main__":
    unittest.main()
