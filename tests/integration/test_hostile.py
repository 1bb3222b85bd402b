#!/usr/bin/env python3
"""Strangers at the port for peers, and a daemon without file descriptors.

usage: test_hostile.py BUILD [unittest's arguments]
"""
import json
import os
import random
import resource
import socket
import time
import unittest

import rawclient
from rawclient import RawClient
from scene import STATUS, Scene, cpu_seconds
from service import wait_for


class PeerPort(Scene):
    """The port for other daemons gets what no daemon sends, while two jobs train."""

    def port(self, node=0):
        with open(self.cluster.daemons[node].config, encoding="utf-8") as config:
            return int(json.load(config)["listen"].rsplit(":", 1)[1])

    def setUp(self):
        super().setUp()
        self.job = self.joined([0, 1, 1])
        self.job.each("gradients random 1")

    def tearDown(self):
        self.assertEqual(self.job.steps(20)[0], "ok")
        self.job.end()
        for daemon in self.cluster.daemons:
            self.assertIsNone(daemon.process.poll())
            self.assertEqual(daemon.ask("status")[0], 0)
        super().tearDown()

    def refused(self):
        """Packets in the name of node 1 that node 0 did not take."""
        link, = self.cluster.stats(0)["links"]
        return link["stale"] + link["malformed"]

    def pour(self, connect, data):
        """Sends, and does not mind if the daemon hangs up."""
        try:
            with connect() as connection:
                connection.sendall(data)
                self.assertEqual(self.job.steps(2)[0], "ok")
        except ConnectionError:
            pass

    def test_rubbish(self):
        generator = random.Random(2)
        for size in (0, 1, 9, 10, 64, 1000, 100000):
            for begin in (b"", b"\xff" + bytes(8) + b"\x7f", b"GET / HTTP/1.0\r\n\r\n"):
                self.pour(lambda: socket.create_connection(("127.0.0.1", self.port()), timeout=10),
                          begin + generator.randbytes(size))

    def test_truncated(self):
        for cut in (rawclient.frame(bytes(1000))[:100], b"\x02" + b"\xff" * 8, b"\x02", b"\x04\xff",
                    b"\x02" + (1 << 40).to_bytes(8, "big") + bytes(100), b"\xf8\x01a"):
            self.pour(lambda: rawclient.zmtp(self.port()), cut)

    def test_other_socket_types(self):
        for kind in (b"REQ", b"PUB", b"NONE", b"", b"P" * 200):
            try:
                with rawclient.zmtp(self.port(), kind) as connection:
                    connection.sendall(rawclient.frame(b"hello"))
            except OSError:
                pass  # hung up on, or left without an answer
            self.assertEqual(self.job.steps(2)[0], "ok")

    def test_rubbish_packets(self):
        generator = random.Random(3)
        frames = [rawclient.frame(generator.randbytes(generator.randrange(200)))
                  for _ in range(500)]
        frames += [rawclient.frame(b"ADPK" + generator.randbytes(80)) for _ in range(500)]
        frames += [rawclient.frame(b"more", more=True), rawclient.frame(b"")]
        self.pour(lambda: rawclient.zmtp(self.port()), b"".join(frames))

    def test_wrong_packets(self):
        """With a right checksum, but from nobody, of another life, or with senseless numbers."""
        generator = random.Random(4)
        incarnation = int(self.cluster.status(0)["incarnation"], 16)
        packets = []
        for kind in range(6):
            for source in (0, 1, 7, 65535):
                for destination in (0, 1):
                    for lane in (0, 1, 2, 255):
                        packets.append(rawclient.packet(
                            kind, lane, source, destination,
                            (generator.getrandbits(64), incarnation),
                            *(generator.getrandbits(64) for _ in range(4)), offset=5,
                            body=generator.randbytes(generator.randrange(40))))
        packets += [rawclient.packet(3, 0, 1, 0, (1, incarnation), 0, size=10, body=b"\x12" * 10,
                                     version=version) for version in (0, 1, 2, 3)]
        packets += [one[:-1] for one in packets[::7]]
        before = self.refused()
        self.pour(lambda: rawclient.zmtp(self.port()), b"".join(map(rawclient.frame, packets)))
        wait_for(lambda: self.refused() > before)
        self.assertEqual(self.cluster.status(0)["peers"][0]["state"], "up")

    def test_huge_packet(self):
        self.pour(lambda: rawclient.zmtp(self.port()), rawclient.frame(bytes(8 << 20)))

    def test_many_connections(self):
        connections = [socket.create_connection(("127.0.0.1", self.port()), timeout=10)
                       for _ in range(100)]
        try:
            self.assertEqual(self.job.steps(5)[0], "ok")
        finally:
            for connection in connections:
                connection.close()


class Endless(Scene):
    """Messages of part after part, at both ports: the daemon does not keep them all."""

    settings = {"trainers_owner": str(os.getuid())}
    MOST = 1500 << 20  # bytes sent, unless the daemon hangs up
    KEPT = 160 << 10  # KiB that its memory may grow by meanwhile; a third of it without sanitizers

    def pour(self, port, kind, parts, refused):
        """Sends these parts again and again; returns how many bytes. What the kernel took half of goes on
        where it stopped: another beginning would end the message."""
        sent = 0
        parts = memoryview(parts)
        with rawclient.zmtp(port, kind) as connection:
            connection.settimeout(1)
            while sent < self.MOST and not refused():
                try:
                    sent += connection.send(parts[sent % len(parts):])
                except TimeoutError:
                    pass  # the daemon is busy, or it has cut this off, which may hear of it late
                except OSError:
                    break  # hung up on
        return sent

    def memory(self, name):
        with open(f"/proc/{self.cluster.daemons[0].process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(name))

    def check(self, port, kind):
        daemon = self.cluster.daemons[0]
        for size in (65536, 0):
            parts = (rawclient.frame(bytes(size), more=True) if size else b"\1\0") * 16
            parts *= max(1, (1 << 20) // len(parts))
            with open(f"/proc/{daemon.process.pid}/clear_refs", "w", encoding="utf-8") as file:
                file.write("5")  # VmHWM begins anew
            before, lines = self.memory("VmRSS"), daemon.log().count("does not end")
            with self.subTest(port=port, size=size):
                self.assertLess(self.pour(port, kind, parts, lambda: (
                    daemon.log().count("does not end") > lines)), self.MOST)
                self.assertLess(self.memory("VmHWM") - before, self.KEPT)
                wait_for(lambda: daemon.log().count("does not end") > lines)
                self.assertEqual(daemon.log().count("does not end"), lines + 1)

    def test_peers(self):
        with open(self.cluster.daemons[0].config, encoding="utf-8") as config:
            self.check(int(json.load(config)["listen"].rsplit(":", 1)[1]), b"PUSH")

    def test_trainers(self):
        self.check(self.cluster.daemons[0].remote_port, b"DEALER")


class Descriptors(Scene):
    """No file descriptors left: clear refusals, no spinning, and recovery."""

    def setUp(self):
        super().setUp()
        self.daemon = self.cluster.daemons[0]
        self.limit = resource.prlimit(self.daemon.process.pid, resource.RLIMIT_NOFILE)
        self.addCleanup(self.limit_descriptors, self.limit[0])

    def limit_descriptors(self, count):
        resource.prlimit(self.daemon.process.pid, resource.RLIMIT_NOFILE, (count, self.limit[1]))

    def fill(self):
        """Opens sessions until the daemon has no room for more; returns how many it refused."""
        self.limit_descriptors(self.before[0][0] + 7)
        refused = 0
        for number in range(12):
            client = RawClient(self.daemon.socket)
            self.addCleanup(client.close)
            try:
                client.send(rawclient.open_request(f"{self.name}.{number}"))
            except BrokenPipeError:
                pass  # it was refused before it could speak
            kind, fields, descriptors = client.receive()
            for descriptor in descriptors:
                os.close(descriptor)
            if kind == rawclient.ERROR:
                refused += 1
                self.assertIn(STATUS[fields[1]], ("system", "memory"))
                self.assertRegex(fields[2].decode(), "descriptor|open files")
        return refused

    def assert_idle(self):
        """The daemon's own doing only: the job beside pauses meanwhile."""
        self.bystander.pause()
        try:
            before = cpu_seconds(self.daemon.process.pid)
            time.sleep(1)
            self.assertLess(cpu_seconds(self.daemon.process.pid) - before, 0.2)
        finally:
            self.bystander.go_on()

    def test_exhausted(self):
        self.assertGreater(self.fill(), 4)
        rank = self.rank(0, 0, 1)
        rank.send(rank.opening)
        name, sentence = rank.error()
        self.assertEqual(name, "system", sentence)
        self.assertRegex(sentence, "descriptor|open files")
        self.limit_descriptors(5)  # not one more, for anybody
        self.assertEqual(self.daemon.ask("--timeout", "300", "status")[0], 3)
        self.assert_idle()
        self.doCleanups()
        self.assertEqual(self.joined([0, 1]).steps(2)[0], "ok")

    def test_exhausted_at_the_port_for_peers(self):
        """Connections that nobody can accept any more: libzmq tries again and again, which costs
        its thread's core, but jobs go on, and all is well when there is room again."""
        self.fill()
        with open(self.daemon.config, encoding="utf-8") as config:
            port = int(json.load(config)["listen"].rsplit(":", 1)[1])
        for _ in range(5):
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            self.addCleanup(connection.close)
        self.bystander.check()
        self.doCleanups()
        self.assert_idle()
        self.assertEqual(self.joined([0, 1]).steps(2)[0], "ok")

    def test_in_commit(self):
        """The descriptors run out between open and commit."""
        rank = self.rank(0, 0, 1)
        rank.do(rank.opening, "tensor a f32 both 32x32")
        self.limit_descriptors(5)
        rank.send("commit")
        name, sentence = rank.error()
        self.assertIn(name, ("memory", "system"), sentence)
        self.assertRegex(sentence, "descriptor|open files")
        self.limit_descriptors(self.limit[0])
        rank.do("commit", "steps 2")


if __name__ == "__main__":
    unittest.main()
