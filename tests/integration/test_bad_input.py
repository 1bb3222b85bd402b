#!/usr/bin/env python3
"""What nobody should say to a daemon: it must answer, name what is wrong, and serve the others.

usage: test_bad_input.py BUILD [unittest's arguments]
"""
import array
import os
import random
import socket
import unittest

import rawclient
from cluster import die_with_parent
from ranks import RankError
from rawclient import RawClient
from scene import STATUS, Scene, text, usage
from service import wait_for

NOBODY = 65534


class Disagreement(Scene):
    """Ranks that do not fit together are told why."""

    def assert_disagree(self, ranks, *words):
        for rank in ranks:
            rank.do(rank.opening, "tensor w f32 both 4x4")
            rank.send("commit")
        for rank in ranks:
            self.assert_error(rank, "mismatch", *words)

    def test_world_size_on_one_node(self):
        first, second = self.rank(0, 0, 2), self.rank(0, 1, 3)
        first.do(first.opening)
        second.send(second.opening)
        self.assert_error(second, "mismatch", "rank 1", "3 ranks", "with 2")

    def test_world_size_on_two_nodes(self):
        ranks = [self.rank(0, 0, 2), self.rank(1, 1, 3)]
        self.assert_disagree(ranks, "was started with world size", "3", "2")

    def test_duplicate_rank_on_one_node(self):
        first, second = self.rank(0, 1), self.rank(0, 1)
        first.do(first.opening)
        second.send(second.opening)
        self.assert_error(second, "mismatch", "rank 1", "taken",
                          f"run \"0\" of job \"{self.name}\" ($ADTOPK_RUN_ID and $ADTOPK_JOB")

    def test_duplicate_rank_on_two_nodes(self):
        ranks = [self.rank(node, 1, policy=text()) for node in (0, 1)]
        self.assert_disagree(ranks, "rank 1", "twice")

    def test_policy(self):
        ranks = [self.rank(0, 0, policy=text(density=0.1)), self.rank(0, 1, policy=text())]
        ranks[0].do(ranks[0].opening)
        ranks[1].send(ranks[1].opening)
        self.assert_error(ranks[1], "mismatch", "rank 1", "policy")

    def test_policy_on_two_nodes(self):
        ranks = [self.rank(0, 0, policy=text(density=0.1)), self.rank(1, 1, policy=text())]
        self.assert_disagree(ranks, "policy", "node 0", "node 1")

    def test_wrong_policy(self):
        for policy, word in ((text(densty=1), "densty"), (text(density=2), "density"),
                             ("{", "is never closed"),
                             (text(sparsifier="best"), "sparsifier"), ("[]", "object")):
            rank = self.rank(0, 0, 1, policy)
            rank.send(rank.opening)
            self.assert_error(rank, "policy", word)

    def test_wrong_policy_is_shown(self):
        """A trainer hears the whole fault: a sentence, the line, and a mark under the column."""
        rank = self.rank(0, 0, 1, '{"sparsifier":"' + "grün" * 15 + '","density":0.1}')
        rank.send(rank.opening)
        self.assert_error(rank, "policy", 'policy:1:15: "sparsifier" is "grün')
        shown, mark = rank.line(), rank.line()
        self.assertEqual(mark.index("^"), shown.index('"grün'))

    def test_same_policy_in_other_words(self):
        policies = ('{"density":0.1,"reduce":"sum"}', '{"reduce":"sum","density":1e-1}')
        ranks = [self.rank(0, number, policy=policy) for number, policy in enumerate(policies)]
        for rank in ranks:
            rank.do(rank.opening, "tensor w f32 both 4x4")
            rank.send("commit", "steps 2")
        for rank in ranks:
            rank.answer()
            rank.answer()

    def check_tensors(self, homes):
        good = ["tensor a f32 both 4x4", "tensor b f32 both 5"]
        for wrong in (["tensor a f32 both 4x4", "tensor c f32 both 5"],
                      ["tensor a f32 both 4x4", "tensor b f16 both 5"],
                      ["tensor a f32 both 4x4", "tensor b f32 both 6"],
                      ["tensor a f32 both 4x4", "tensor b f32 both 5x1"],
                      ["tensor a f32 both 4x4", "tensor b f32 list 5"],
                      ["tensor a f32 both 4x4"], good + ["tensor b2 f32 both 5"]):
            with self.subTest(wrong=wrong):
                Scene.serial += 1
                self.name = f"job{Scene.serial}"
                ranks = self.ranks(homes)
                for rank in ranks:
                    rank.do(rank.opening)
                ranks[0].do(*good)
                ranks[0].send("commit")
                ranks[1].do(*wrong)
                ranks[1].send("commit")
                for rank in ranks:
                    self.assert_error(rank, "mismatch", "tensor")

    def test_tensors_on_one_node(self):
        self.check_tensors([0, 0])

    def test_tensors_on_two_nodes(self):
        self.check_tensors([0, 1])

    def test_missing_rank(self):
        for homes in ([0, 0], [0, 1]):
            with self.subTest(homes=homes):
                Scene.serial += 1
                self.name = f"job{Scene.serial}"
                # Both have to be there by then.
                ranks = [self.rank(node, rank, 3, text(join_timeout=2))
                         for rank, node in enumerate(homes)]
                for rank in ranks:
                    rank.do(rank.opening, "tensor w f32 both 4x4")
                    rank.send("commit")
                for rank in ranks:
                    self.assert_error(rank, "timeout", "rank 2")

    def test_missing_push(self):
        job = self.joined([0, 1], text(push_timeout=2))
        job.ranks[0].send("steps 1")
        job.ranks[1].do("push 0")
        self.assert_error(job.ranks[0], "timeout")
        wait_for(lambda: any(one["name"] == self.name and one["state"] == "failed"
                             for one in self.cluster.status(1)["jobs"]))
        job.ranks[1].send("push 1")
        self.assert_error(job.ranks[1], "timeout", "rank 1", "bias")

    def test_too_late(self):
        job = self.joined([0, 0])
        late = self.rank(0, 1)
        late.send(late.opening)
        self.assert_error(late, "mismatch", "rank 1", "taken")
        self.assertEqual(job.steps(1)[0], "ok")

    def test_another_user(self):
        """Another user's rank is never part of this user's job, whatever it calls itself."""
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")

        def become_nobody():
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            die_with_parent()

        os.chmod(self.cluster.directory, 0o755)
        first = self.rank(0, 0, policy=text(join_timeout=2))
        first.do(first.opening, "tensor w f32 both 4x4")
        first.send("commit")
        other = self.rank(0, 1, policy=text(join_timeout=0.5), prepare=become_nobody)
        other.send(other.opening)
        try:
            other.answer()
        except RankError as error:
            self.assertEqual(error.name, "denied", str(error))
        else:
            other.do("tensor w f32 both 4x4")
            other.send("commit")
            self.assert_error(other, "timeout", "rank 0")
        self.assert_error(first, "timeout", "rank 1")


class Memory(Scene):
    def test_more_than_there_is(self):
        """Refused with the numbers, and the daemon is none the worse; smaller ones still fit."""
        rank = self.rank(0, 0, 1)
        rank.do(rank.opening, *(f"tensor w{i} f32 dense 65535x65537" for i in range(64)))
        rank.send("commit")
        name, sentence = rank.error()
        self.assertEqual(name, "memory", sentence)
        self.assertRegex(sentence, r"\d{4,}|\d+ [KMGT]i?B")
        rank.end()
        self.assertEqual(self.joined([0, 1]).steps(2)[0], "ok")


class Raw(Scene):
    """Below the library: what the daemon reads is checked, whoever wrote it."""

    def client(self, node=0):
        client = RawClient(self.socket_path(node))
        self.addCleanup(client.close)
        return client

    def assert_refused(self, client, name, *words, final=None):
        status, sentence, was_final = client.refusal()
        self.assertEqual(STATUS[status], name, sentence)
        for word in words:
            self.assertIn(word, sentence)
        if final is not None:
            self.assertEqual(was_final, final)

    def test_good_client(self):
        """The raw client itself is right: it trains a step, and leaves."""
        client = self.client()
        client.join(self.name)
        client.submit((rawclient.PUSH, 0, 0), (rawclient.STEP_END, 0, 0))
        client.send(rawclient.LEAVE)
        client.expect(rawclient.BYE)

    def test_bad_tensors(self):
        good = rawclient.tensor
        cases = [(good(dtype=3), "dtype"), (good(dtype=2 ** 32 - 1), "dtype"),
                 (good(shape=(0,)), "zero"), (good(shape=(3, 0, 2)), "zero"), (good(shape=()), ""),
                 (good(shape=(1,) * 9), "9 dim"), (good(forms=0), "forms"),
                 (good(forms=4), "16-bit"), (good(forms=12), "16-bit"), (good(forms=16), "forms"),
                 (good(name=""), "name"), (good(name="n" * 128), "name"),
                 (good(shape=(2 ** 32,)), "elements"), (good(shape=(2 ** 63, 2)), "elements"),
                 (good(shape=(2 ** 64 - 1,) * 8), "elements"),
                 (good(more=rawclient.field(8, 1)), "host"),
                 (good(more=rawclient.field(5, "tp")), "group"), (good() + good(), "twice")]
        for number, (tensor, word) in enumerate(cases):
            with self.subTest(case=number), RawClient(self.socket_path()) as client:
                client.open(f"{self.name}.{number}")
                client.send(rawclient.register_request(tensor), rawclient.COMMIT)
                self.assert_refused(client, "argument", word)

    def test_bad_opens(self):
        request = rawclient.open_request
        cases = [(request(self.name, version=1), "protocol", "needs version 1.0"),
                 (request(self.name, version=3), "protocol", "needs version 1.0"),
                 (request(""), "argument", "name"), (request("n" * 64), "argument", "name"),
                 (request("a\nb"), "argument", "control"),
                 (request(self.name, run=""), "argument", "run"),
                 (request(self.name, rank=1), "argument", "rank 1"),
                 (request(self.name, world=0), "argument", ""),
                 (request(self.name, world=65537), "argument", "65536"),
                 (request(self.name, rank=2 ** 32 - 1, world=2 ** 32 - 1), "argument", ""),
                 (request(self.name, policy="{" * 5000), "policy", ""),
                 (request(self.name, policy='{"a":' * 9000), "policy", "")]
        for number, (message, name, word) in enumerate(cases):
            with self.subTest(case=number), RawClient(self.socket_path()) as client:
                client.send(message)
                self.assert_refused(client, name, word, final=True)

    def test_out_of_order(self):
        opened, commit, mapped = rawclient.open_request, rawclient.COMMIT, rawclient.MAPPED
        register = rawclient.register_request(rawclient.tensor())
        for number, messages in enumerate(
                ([commit], [mapped], [rawclient.LEAVE], [register], [opened("J"), opened("J")],
                 [opened("J"), mapped], [opened("J"), commit],
                 [opened("J"), register, commit, commit],
                 [opened("J"), register, commit, register],
                 [opened("J"), register, commit, mapped, mapped],
                 [opened("J"), register, commit, mapped, opened("J")])):
            with self.subTest(case=number), RawClient(self.socket_path()) as client:
                client.send(*(one.replace(b"J", b"%d" % (number % 10)) for one in messages))
                while True:
                    kind, fields, descriptors = client.receive()
                    for descriptor in descriptors:
                        os.close(descriptor)
                    if kind == rawclient.ERROR:
                        self.assertIn(STATUS[fields[1]], ("protocol", "state"))
                        break

    def test_rubbish(self):
        generator = random.Random(1)
        good = rawclient.open_request(self.name)
        cases = [b"", b"\x00", b"\x57\x57", b"\xff" * 100, good[:-1], good + b"\x0a",
                 b"\x0a\xff\xff\xff\xff\x7f",
                 b"\x0a\x05" + good, bytes(60000), good + bytes(70000)]
        cases += [generator.randbytes(generator.randrange(2, 300)) for _ in range(100)]
        for number, message in enumerate(cases):
            with self.subTest(case=number), RawClient(self.socket_path()) as client:
                client.send(message)
                self.assert_refused(client, "protocol")

    def test_descriptors_in_a_message(self):
        """They are dropped by the kernel, and the client is refused."""
        client = self.client()
        with open("/dev/null", "rb") as file:
            rights = array.array("i", [file.fileno()] * 3)
            client.socket.sendmsg([rawclient.open_request(self.name)],
                                  [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        self.assert_refused(client, "protocol", "descriptors")

    def test_bad_entries(self):
        cases = [((9, 0, 0),), ((0, 0, 0),), ((rawclient.PUSH, 1, 0),),
                 ((rawclient.PUSH, 2 ** 32 - 1, 0),),
                 ((rawclient.PUSH, 0, 1),), ((rawclient.PUSH, 0, 2 ** 64 - 1),),
                 ((rawclient.PUSH, 0, 0), (rawclient.PUSH, 0, 0)), ((rawclient.STEP_END, 0, 7),),
                 ((rawclient.WAIT, 5, 0),), ((rawclient.OPERATION, 3, 0),),
                 ((rawclient.OPERATION, 1, 0, 0, (1 << 20) + 1),),
                 ((rawclient.OPERATION, 1, 0, 9, 8),),
                 ((rawclient.OPERATION, 2, 0, 0, 7),), ((rawclient.OPERATION, 0, 3, 0, 0),)]
        for number, entries in enumerate(cases):
            with self.subTest(entries=entries), RawClient(self.socket_path()) as client:
                client.join(f"{self.name}.{number}")
                client.submit(*entries)
                status, _, final = client.refusal()
                self.assertIn(STATUS[status], ("protocol", "state", "argument", "mismatch"))
                self.assertTrue(final)

    def test_bad_tail(self):
        for number, tail in enumerate((1025, 2 ** 40, 2 ** 64 - 1, 2 ** 63)):
            with self.subTest(tail=tail), RawClient(self.socket_path()) as client:
                client.join(f"{self.name}.{number}")
                client.set_tail(tail)
                client.wake()
                self.assert_refused(client, "protocol", final=True)

    def test_tail_goes_back(self):
        client = self.client()
        client.join(self.name)
        client.submit((rawclient.PUSH, 0, 0), (rawclient.STEP_END, 0, 0))
        wait_for(lambda: client.taken() == 2)
        client.set_tail(1)
        client.wake()
        self.assert_refused(client, "protocol", final=True)

    def test_other_ranks_hear_of_it(self):
        """A rank that pushes twice ends its job, and the others are told which rank it was."""
        rank = self.rank(1, 0)
        rank.do(rank.opening, "tensor t f32 dense 4x4")
        rank.send("commit", "steps 1000000")
        client = self.client()
        client.join(self.name, rank=1, world=2)
        client.submit((rawclient.PUSH, 0, 0), (rawclient.PUSH, 0, 0))
        self.assertTrue(client.refusal()[2])
        try:
            rank.answer()  # the commit's, unless that fails already
        except RankError as error:
            self.assertEqual(error.name, "peer", str(error))
        self.assert_error(rank, "peer", "rank 1")

    def test_flood_of_wake_ups(self):
        client = self.client()
        client.join(self.name)
        for _ in range(50000):
            client.wake()
        self.bystander.check()
        client.submit((rawclient.PUSH, 0, 0), (rawclient.STEP_END, 0, 0))
        client.send(rawclient.LEAVE)
        client.expect(rawclient.BYE)

    def test_never_reading(self):
        """What a client does not read does not pile up in the daemon: it is cut off."""
        client = self.client()
        client.open(self.name)
        bad = rawclient.register_request(rawclient.tensor(dtype=9))
        client.send(bad)
        try:
            for _ in range(20000):
                client.send(rawclient.COMMIT)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
        wait_for(lambda: usage(self.cluster.daemons[0])[2] <= self.before[0][2], "the session is still there")

    def test_many_silent_connections(self):
        clients = [self.client(node) for node in (0, 1) for _ in range(100)]
        self.bystander.check()
        self.assertEqual(self.joined([0, 1]).steps(2)[0], "ok")
        self.assertEqual(len(clients), 200)


if __name__ == "__main__":
    unittest.main()
