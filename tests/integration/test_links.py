"""Links between real nodes over a relay that damages, cuts, swallows and replays, and beside services
that are no adtopk: training goes on with the same parameters, at the latest 10 s afterwards.

Arguments: the build folder.
"""
import json
import signal
import socket
import subprocess
import time
import unittest

from build import BUILD
from cluster import PATIENCE, Cluster
from ranks import Job
from scene import Bystander
from service import wait_for

HEALED = 10.0  # seconds: the promise
SETTINGS = {"heartbeat_ms": 200, "peer_timeout_ms": 1000}


class Relayed(unittest.TestCase):
    """Two nodes that reach each other through relays, and a job over both."""

    keys = False

    def setUp(self):
        self.cluster = Cluster(BUILD, settings=SETTINGS, keys=self.keys, relays=True).start()
        self.addCleanup(self.cluster.close)
        self.relays = list(self.cluster.relays.values())
        self.job = Bystander(self.cluster, [0, 1])
        self.addCleanup(self.job.stop)

    def assert_healed(self, since):
        """Both nodes are up, and the job takes a step that began after now, in time."""
        self.cluster.timeout = HEALED
        self.cluster.wait_connected()
        for _ in range(2):  # the first one may have been under way
            self.job.check()
        taken = time.monotonic() - since
        self.assertLess(taken, HEALED)
        return taken

    def finish(self):
        """The ranks agree on all updates (Job.steps looks), and the daemons end well."""
        self.job.stop()
        self.cluster.stop()

    def test_flipped_bits(self):
        for _ in range(10):
            for relay in self.relays:
                relay.flip()
            time.sleep(0.2)
        wait_for(lambda: sum(relay.flipped for relay in self.relays) > 5)  # what flips has to come by
        for relay in self.relays:
            relay.flips = 0
        self.assert_healed(max(relay.flipped_at for relay in self.relays))
        self.finish()

    def test_cut_and_replayed(self):
        for _ in range(5):
            for relay in self.relays:
                relay.cut()
            time.sleep(0.1)
        cut_at = time.monotonic()
        self.assert_healed(cut_at)
        for relay in self.relays:
            self.assertGreater(relay.replay(), 0)
        self.job.check()
        self.finish()

    def test_swallowed(self):
        """Connections that take everything and deliver nothing, as after a partition."""
        for relay in self.relays:
            relay.deaden()
        self.assert_healed(time.monotonic())
        self.job.pause()
        for relay in self.relays:  # nothing is on its way but heartbeats
            relay.deaden()
        deadened_at = time.monotonic()
        time.sleep(0.5)
        self.job.go_on()
        self.assert_healed(deadened_at)
        self.finish()


class RelayedUnderKeys(Relayed):
    keys = True


class Squatted(unittest.TestCase):
    """Another service has a node's port while its daemon is away."""

    ANSWERS = (b"HTTP/1.1 400 Bad Request\r\n\r\n",
               b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32),
               b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
               + b"\x04\x20" + b"rubbish!" * 4)

    def squat(self, port):
        """Gives each connection another of the wrong answers, until all have been given."""
        given, deadline = 0, time.monotonic() + 60
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(0.1)
            while given < len(self.ANSWERS):
                self.assertLess(time.monotonic(), deadline, f"{given} connections came")
                try:
                    with listener.accept()[0] as connection:
                        connection.sendall(self.ANSWERS[given])
                        connection.settimeout(0.2)
                        given += 1
                        connection.recv(1000)
                except OSError:
                    pass  # nobody came, or it hung up

    def check(self, keys):
        with Cluster(BUILD, settings=SETTINGS, keys=keys) as cluster:
            here, there = cluster.daemons
            with open(there.config, encoding="utf-8") as config:
                port = int(json.load(config)["listen"].rsplit(":", 1)[1])
            there.stop()
            self.squat(port)
            there.start(10)
            began = time.monotonic()
            cluster.timeout = HEALED
            cluster.wait_connected()
            job = Bystander(cluster, [0, 1])  # the bulk lanes have not been used yet
            self.addCleanup(job.stop)
            job.check()
            self.assertLess(time.monotonic() - began, HEALED)
            self.assertIn(f"node 1 at tcp://127.0.0.1:{port}: the program there is not adtopkd", here.log())
            job.stop()
            cluster.stop()

    def test_killed_while_it_greets(self):
        """A daemon that ends during a handshake is no stranger, however often that happens."""
        with Cluster(BUILD, settings=SETTINGS) as cluster:
            here, there = cluster.daemons
            cluster.wait_connected()
            with open(there.config, encoding="utf-8") as config:
                port = int(json.load(config)["listen"].rsplit(":", 1)[1])
            for _ in range(4):
                there.stop()
                with socket.create_server(("127.0.0.1", port)) as listener:
                    listener.settimeout(30)
                    for _ in range(2):  # of both lanes
                        listener.accept()[0].close()
                there.start(10)
                cluster.wait_connected()
            self.assertNotIn("the program there", here.log())

    def test_without_keys(self):
        self.check(False)

    def test_under_keys(self):
        self.check(True)


class Stopped(unittest.TestCase):
    def test_stopped_daemon(self):
        """One that was stopped reads what its peer sent before it says that the peer is down."""
        with Cluster(BUILD, settings=SETTINGS) as cluster:
            job = Bystander(cluster, [0, 1])
            self.addCleanup(job.stop)
            cluster.daemons[0].signal(signal.SIGSTOP)
            time.sleep(3)
            wait_for(lambda: "node 0 is down" in cluster.daemons[1].log())
            cluster.daemons[0].signal(signal.SIGCONT)
            for _ in range(2):
                job.check()
            self.assertNotIn("node 1 is down", cluster.daemons[0].log())
            job.stop()
            cluster.stop()

    def ask_and_stop(self, cluster, version, after):
        """Asks node 1 for another policy. Node 0, the coordinator, stops for 2 s: before that if
        `after` is None, else so long after."""
        if after is None:
            cluster.daemons[0].signal(signal.SIGSTOP)
        asking = subprocess.Popen(
            [cluster.daemons[1].programs["adtopkctl"], "--socket", cluster.daemons[1].control,
             "policy", "set", "bystander", f"density={version / 10}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if after is not None:
            time.sleep(after)
            cluster.daemons[0].signal(signal.SIGSTOP)
        time.sleep(2)
        if after is None:
            self.assertIsNone(asking.poll())
            for node in (1, 2):
                self.assertEqual(cluster.stats(node)["jobs"][0]["policy_version"], version - 1)
        cluster.daemons[0].signal(signal.SIGCONT)
        said, _ = asking.communicate(timeout=PATIENCE)
        self.assertEqual(asking.returncode, 0, said)

    def test_coordinator_in_a_switch(self):
        """Nobody puts a policy in force without the coordinator. When it is back all nodes do, and
        the ranks agree on all updates (Job.steps looks)."""
        with Cluster(BUILD, nodes=3, settings=SETTINGS) as cluster:
            job = Bystander(cluster, [0, 1, 2])
            self.addCleanup(job.stop)
            job.check()
            for version, after in enumerate((None, 0.003, 0.006), 1):
                self.ask_and_stop(cluster, version, after)
                for _ in range(2):
                    job.check()
                for node in range(3):
                    self.assertEqual(
                        cluster.stats(node)["jobs"][0]["policy_version"], version)
            job.stop()
            cluster.stop()


class RoundTimeout(unittest.TestCase):
    """How long a live node may take for its part of a bucket."""

    TENSORS = [("a", "f32", "both", (32, 64))]

    def test_a_live_node_that_sends_nothing(self):
        """Control passes, bulk of node 1 does not: both nodes are up, and the job must not hang."""
        with Cluster(BUILD, relays=True) as cluster:
            job = Job(cluster, BUILD, "late", [0, 1], self.TENSORS, '{"round_timeout":2}')
            self.addCleanup(job.kill)
            job.join().steps(3)
            relay = cluster.relays[1, 0]
            relay.target = 1  # nobody listens there
            for connection in relay.connections[1:]:
                connection.cut()
            for rank in job.ranks:
                rank.send("steps 5")
            name, sentence = job.ranks[0].error()
            self.assertEqual(name, "timeout", sentence)
            self.assertRegex(sentence, r"node 1 is up, but its part of bucket \d+ of step \d+ did "
                             r"not come within round_timeout, 2 s")
            self.assertEqual(job.ranks[1].error()[1].split(" (said")[0], sentence)

    def test_a_node_that_waits_for_its_rank(self):
        """It says so, and that is no fault of the node: push_timeout limits it."""
        with Cluster(BUILD) as cluster:
            job = Job(cluster, BUILD, "late", [0, 1], self.TENSORS, '{"round_timeout":2}')
            self.addCleanup(job.kill)
            job.join().steps(3)
            job.ranks[0].send("steps 1")
            time.sleep(5)
            self.assertTrue(job.ranks[0].pending())
            job.ranks[1].do("steps 1")
            job.ranks[0].answer()
            job.end()
            cluster.stop()


if __name__ == "__main__":
    unittest.main()
