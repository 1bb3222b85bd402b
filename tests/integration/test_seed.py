#!/usr/bin/env python3
"""Nodes that know only a seed, and learn of the others from it.

usage: test_seed.py BUILD [unittest's arguments]
"""
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from build import ADTOPKD, BUILD
from cluster import PATIENCE, Cluster, Daemon, free_ports, make_key
from ranks import Job
from scene import TENSORS

SEED = 0


class Learner(Daemon):
    """Seeds are given the numbers and keys of nodes. The others name only seeds."""

    seeds = (SEED,)
    allowed = ()  # nodes that this seed is told of
    renewed = {}  # by node, the second key that the seed is told of

    def configure(self, ports, settings, keys=(), relays=None):
        def peer(node, **more):
            known = [keys[node][1], self.renewed[node]] if node in self.renewed else \
                keys and keys[node][1]
            return {"node": node, **({"key": known} if keys else {}), **more}

        listen = f"tcp://127.0.0.1:{ports[self.node]}"
        nodes = {"peers": [peer(node) for node in self.allowed],
                 "seeds": [peer(seed, endpoint=f"tcp://127.0.0.1:{ports[seed]}")
                           for seed in self.seeds if seed != self.node]}
        with open(self.config, "w", encoding="utf-8") as out:
            json.dump({"node": self.node, "socket": self.socket, "control_socket": self.control,
                       "listen": listen, "stop_timeout_ms": 2000, "heartbeat_ms": 200,
                       "peer_timeout_ms": 1000, **({"key_file": keys[self.node][0]} if keys else {}),
                       **nodes, **settings}, out)


class Grown(Cluster):
    """Daemons that are started one by one, in any order."""

    DAEMON = Learner

    def __init__(self, nodes, allowed, keys, seeds=(SEED,)):
        super().__init__(BUILD, nodes=nodes, keys=keys)
        self.ports = free_ports(nodes)
        for daemon in self.daemons:
            daemon.seeds = seeds
        for seed in seeds:
            self.daemons[seed].allowed = allowed

    def begin(self, *nodes):
        for node in nodes:
            self.daemons[node].configure(self.ports, self.settings, self.keys)
            self.daemons[node].start(self.timeout)

    def reload(self, node):
        """Writes the configuration of a running node anew, and lets it take that."""
        seen = len(self.daemons[node].log())
        self.daemons[node].configure(self.ports, self.settings, self.keys)
        self.daemons[node].signal(signal.SIGHUP)
        self.wait_log(node, "the configuration has been taken", seen)

    def begin_anew(self, node):
        self.daemons[node].stop()
        self.begin(node)

    def peers(self, node):
        return {peer["node"]: peer for peer in self.status(node)["peers"]}

    def wait(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(one.log_tail() for one in self.daemons))
            time.sleep(0.05)

    def wait_met(self, *nodes):
        """Each of these nodes sees the others."""
        for node in nodes:
            self.wait(lambda node=node: {other for other, peer in self.peers(node).items()
                                         if peer["state"] == "up"} >= set(nodes) - {node})

    def wait_log(self, node, words, seen=0):
        self.wait(lambda: words in self.daemons[node].log()[seen:])


    def train(self, name, homes):
        with Job(self, BUILD, name, homes, TENSORS) as job:
            job.join()
            job.each("gradients random 1")
            status = job.steps(5)[0]
        if status != "ok":
            raise AssertionError(f"job {name}: {status}")


class Keyed(unittest.TestCase):
    """With keys: the life of a cluster."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Grown(nodes=5, allowed=[1, 2], keys=True)
        cls.addClassCleanup(cls.cluster.close)

    def train(self, name, homes):
        self.cluster.train(name, homes)

    def test_life(self):
        for part in (self.waits_for_the_seed, self.grows, self.reloads, self.renews_a_key,
                     self.refuses_strangers,
                     self.keeps_numbers_apart, self.moves, self.outlives_the_seed):
            part()
        self.cluster.stop()

    def waits_for_the_seed(self):
        """Trainers open a job while nobody knows where its other nodes are."""
        cluster = self.cluster
        cluster.begin(1, 2)
        job = Job(cluster, BUILD, "early", [0, 1, 2], TENSORS)
        self.addCleanup(job.kill)
        for rank in job.ranks[1:]:
            rank.send(rank.opening, *job.registrations(), "commit")
        cluster.wait_log(1, "node 0, a seed at tcp://127.0.0.1:")
        self.assertIn("does not answer", cluster.daemons[1].log())
        code, out, _ = cluster.daemons[1].ask("status")
        self.assertEqual(code, 5)
        self.assertIn("node 0, a seed at tcp://127.0.0.1:", out)
        cluster.begin(SEED)
        job.ranks[0].send(job.ranks[0].opening, *job.registrations(), "commit")
        for rank in job.ranks:
            for _ in range(2 + len(TENSORS)):
                rank.answer()
        job.each("gradients random 1")
        self.assertEqual(job.steps(5)[0], "ok")
        cluster.wait_met(0, 1, 2)
        peers = cluster.peers(1)
        self.assertEqual([(peers[node]["origin"], peers[node]["seed"]) for node in (0, 2)],
                         [("seed", None), ("learned", 0)])
        self.assertEqual(cluster.peers(SEED)[1]["origin"], "joined")
        self.assertIn("was introduced by node 0, a seed", cluster.daemons[1].ask("peers")[1])
        job.end()

    def grows(self):
        """A machine is added: the seed gets its key, and nobody else is told."""
        cluster = self.cluster
        with Job(cluster, BUILD, "old", [0, 1, 2], TENSORS) as old:
            old.join()
            old.each("gradients random 1")
            cluster.daemons[SEED].allowed = [1, 2, 3]
            cluster.reload(SEED)
            cluster.begin(3)
            old.steps_while(lambda: cluster.wait_met(0, 1, 2, 3))
            self.train("new", [0, 1, 2, 3])
            self.assertEqual(old.steps(5)[0], "ok")

    def reloads(self):
        """A reload keeps the keys of nodes that were learned."""
        self.cluster.reload(1)
        self.train("reloaded", [0, 1, 2, 3])

    def renews_a_key(self):
        """The seed tells a node's second key, the node takes it, and the seed drops the first."""
        cluster = self.cluster
        new = make_key(BUILD, os.path.join(cluster.directory, "new2.key"))
        cluster.daemons[SEED].renewed = {2: new[1]}
        cluster.reload(SEED)
        cluster.keys[2] = new
        cluster.begin_anew(2)
        cluster.wait_met(0, 1, 2, 3)
        cluster.daemons[SEED].renewed = {}
        cluster.reload(SEED)
        self.train("renewed", [0, 1, 2, 3])

    def refuses_strangers(self):
        """A node whose key the seed was not given learns nothing."""
        seen = len(self.cluster.daemons[SEED].log())
        self.cluster.begin(4)
        self.cluster.wait_log(SEED, "is no peer's", seen)
        self.cluster.wait_log(4, "does not answer")
        self.assertEqual(list(self.cluster.peers(4)), [SEED])
        for node in range(4):
            self.assertNotIn(4, self.cluster.peers(node))

    def twin(self, node):
        """Another daemon with the number and the key of a node."""
        original = self.cluster.daemons[node]
        twin = Learner(original.programs, self.cluster.directory, node)
        for path in ("config", "socket", "control", "log_path", "ready_path"):
            setattr(twin, path, getattr(original, path) + ".twin")
        ports = list(self.cluster.ports)
        ports[node], = free_ports(1)
        twin.configure(ports, self.cluster.settings, self.cluster.keys)
        self.addCleanup(twin.close_ready)
        self.addCleanup(twin.kill)
        twin.start(self.cluster.timeout)
        return twin

    def keeps_numbers_apart(self):
        """A second node 2, with its key: the first one stays."""
        twin = self.twin(2)
        self.cluster.wait_log(SEED, "two daemons may have this number")
        self.train("apart", [0, 1, 2, 3])
        self.assertEqual(twin.stop(), 0)

    def moves(self):
        """A node comes back at another address: the seed tells the others."""
        cluster = self.cluster
        cluster.daemons[2].stop()
        cluster.ports[2], = free_ports(1)
        cluster.begin(2)
        cluster.wait_met(0, 1, 2, 3)
        self.assertEqual(cluster.peers(1)[2]["endpoint"], f"tcp://127.0.0.1:{cluster.ports[2]}")
        self.train("moved", [2, 1, 3])

    def outlives_the_seed(self):
        """What was learned stays; when the seed is back, it learns where all are."""
        cluster = self.cluster
        cluster.daemons[SEED].kill()
        cluster.wait(lambda: cluster.peers(1)[SEED]["state"] == "down")
        self.train("without", [1, 2, 3])
        cluster.restart(SEED)
        cluster.wait_met(0, 1, 2, 3)
        self.train("with", [0, 1, 2, 3])


class TwoSeeds(unittest.TestCase):
    """Seeds 0 and 1, of each other too: one is enough at any time."""

    def test_one_after_the_other(self):
        cluster = Grown(nodes=4, allowed=[2, 3], keys=True, seeds=(0, 1))
        self.addCleanup(cluster.close)
        cluster.begin(1, 2, 3)
        cluster.wait_met(1, 2, 3)
        self.assertEqual(cluster.peers(2)[3]["seed"], 1)
        cluster.wait_log(2, "node 0, a seed at tcp://127.0.0.1:")
        cluster.train("first", [1, 2, 3])
        cluster.begin(0)
        cluster.wait_met(0, 1, 2, 3)
        cluster.daemons[1].stop()
        cluster.begin_anew(3)
        cluster.wait_met(0, 2, 3)
        self.assertEqual(cluster.peers(3)[2]["seed"], 0)
        cluster.train("second", [0, 2, 3])
        cluster.begin(1)
        cluster.wait_met(0, 1, 2, 3)
        cluster.train("both", [3, 2, 1, 0])
        cluster.stop()


class Open(unittest.TestCase):
    """Without keys, on loopback."""

    def test_numbers_are_enough(self):
        cluster = Grown(nodes=3, allowed=[1, 2], keys=False)
        self.addCleanup(cluster.close)
        cluster.begin(0, 1, 2)
        cluster.wait_met(0, 1, 2)
        cluster.stop()


class Check(unittest.TestCase):
    """--check-config knows a seed that is this node itself."""

    def test_own_key(self):
        directory = self.enterContext(tempfile.TemporaryDirectory())
        path, key = make_key(BUILD, os.path.join(directory, "own.key"))
        done = subprocess.run(
            [ADTOPKD, "--check-config", "--node=1", "--listen=tcp://127.0.0.1:7401",
             f"--key-file={path}", f"--seeds=0=tcp://127.0.0.1:7400#{key}"],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("peer 0: it has this node's own key", done.stderr)


if __name__ == "__main__":
    unittest.main()
