#!/usr/bin/env python3
"""Policies that change while real training runs, and nodes that die in the middle of a change.

usage: test_policy.py BUILD [unittest's arguments]
"""
import json
import tempfile
import threading
import unittest

import digits
from build import BUILD
from cluster import Cluster
from ranks import Job
from service import wait_for

HOMES = [0, 0, 1, 1]  # node of each rank
# What is changed in turn: density, sparsifier, values, scope, and rules for some tensors.
TURNS = [
    {"density": 0.05}, {"sparsifier": "topk"}, {"values": "f32"}, {"scope": "rank"},
    {"density": 0.002}, {"sparsifier": "dense", "scope": "node"}, {"dense_values": "bf16"},
    {"sparsifier": "adtopk", "density": 0.02, "interleave": False}, {"residual": "bf16"},
    {"values": "bf16", "interleave": True}, {"residual": "f32", "interleave": False, "scope": "rank"},
    {"values": "bf16", "rules": [{"match": "*1*", "scope": "node", "density": 0.3}]},
    {"rules": [], "bucket_bytes": 1, "indices": "delta"}, {"scope": "node", "bucket_bytes": 1 << 20},
    {"sparsifier": "dgc", "momentum": 0.5, "indices": "auto"}, {"sparsifier": "randomk"},
    {"sparsifier": "sidco", "values": "int8", "momentum": 0, "clip": 1},
    {"sparsifier": "gaussiank", "scope": "rank", "values": "f16"},
    {"sparsifier": "redsync", "clip": 0, "indices": "rice"},
    {"sparsifier": "redsync-trim", "scope": "node"},
    {"sparsifier": "threshold", "threshold": 0.001, "density": 0.2},
    {"sparsifier": "adtopk", "interleave": True, "adaptive": True, "estimate": True},
    {"sparse_collective": "balanced", "density": 0.02}, {"sparse_collective": "oktopk"},
    {"sparsifier": "topk", "scope": "rank"}, {"sparse_collective": "exclusive", "scope": "node"},
    {"scope": "rank", "sparse_collective": "balanced", "values": "f32"},
    {"sparse_collective": "hierarchical", "density": 0.02}, {"values": "bf16", "scope": "rank"},
    {"dense_values": "f32", "dense_collective": "ring"}, {"dense_collective": "halving-doubling"},
    {"sparsifier": "randomk", "values": "f32"},
    {"dense_collective": "pairwise", "sparse_collective": "allgather"},
]
CHANGES = len(TURNS)


class Policy(unittest.TestCase):
    def document(self, cluster, node, *command):
        code, out, err = cluster.daemons[node].ask("--json", *command, timeout=60)
        self.assertEqual(code, 0, f"{command}: {err}{out}")
        return json.loads(out)

    def digits(self, cluster, directory, steps):
        return digits.start(self, cluster, HOMES, digits.unpack(directory), "--steps", str(steps),
                            "--job", "digits")

    def test_while_the_digits_train(self):
        """Changes of everything in mid-training: nothing is lost, and all ranks end with equal bits."""
        with tempfile.TemporaryDirectory() as directory, Cluster(BUILD, nodes=2) as cluster:
            steps = 4000
            ranks = self.digits(cluster, directory, steps)
            wait_for(lambda: any(job["steps"] > 3 for job in cluster.stats(1)["jobs"]))
            agreed = []
            for turn in range(CHANGES):
                pairs = [f"{key}={json.dumps(value)}"
                         for key, value in TURNS[turn % len(TURNS)].items()]
                outcome = self.document(cluster, turn % 2, "policy", "set", "digits", *pairs)
                agreed.append((outcome["version"], outcome["step"]))
                self.document(cluster, 1 - turn % 2, "verify", "digits")
            self.assertEqual([version for version, _ in agreed], list(range(1, CHANGES + 1)))
            self.assertEqual(agreed, sorted(agreed, key=lambda one: one[1]))
            for node in (0, 1):  # the last 16 changes are remembered
                log = self.document(cluster, node, "policy", "log", "digits")["changes"]
                self.assertEqual([(one["version"], one["step"]) for one in log], agreed[:-17:-1])
                self.document(cluster, node, "verify", "digits")
                stats = cluster.stats(node)["jobs"][0]
                self.assertEqual(stats["steps_withdrawn"], 0)
                self.assertEqual((stats["policy_version"], stats["policy_step"]), agreed[-1])
                self.assertLess(stats["steps"], steps, "the training was over too soon")
            for rank in ranks:
                rank.terminate()
            for rank in ranks:
                rank.communicate(timeout=60)
            cluster.stop()

    def test_digits_end_equal(self):
        """A short training with changes from a thread beside it, to its end."""
        with tempfile.TemporaryDirectory() as directory, Cluster(BUILD, nodes=2) as cluster:
            ranks = self.digits(cluster, directory, 150)
            stopping, versions = threading.Event(), []

            def change():
                turn = 0
                while not stopping.is_set():
                    pairs = [f"{key}={json.dumps(value)}"
                             for key, value in TURNS[turn % len(TURNS)].items()]
                    code, out, _ = cluster.daemons[turn % 2].ask(
                        "--json", "policy", "set", "digits", *pairs, timeout=60)
                    if code == 0:  # refused before it has begun, and when it has ended
                        versions.append(json.loads(out)["version"])
                    turn += 1

            thread = threading.Thread(target=change)
            thread.start()
            try:
                digits.parameters(self, ranks)
            finally:
                stopping.set()
                thread.join()
            self.assertGreater(len(versions), 2)
            cluster.stop()

    def test_collectives_of_three_nodes(self):
        """Every collective, where the number of nodes is no power of two."""
        policies = [{"sparse_collective": name, "density": 0.05, "rules": [
            {"match": "d*", "sparsifier": "dense", "dense_collective": dense}]}
            for name, dense in (("balanced", "pairwise"), ("hierarchical", "ring"),
                                ("allgather", "halving-doubling"))]
        tensors = [("w", "f32", "both", (64, 64)), ("d", "f32", "both", (64, 64))]
        with Cluster(BUILD, nodes=3) as cluster:
            for turn, policy in enumerate(policies):
                with self.subTest(policy=policy), Job(
                        cluster, BUILD, f"job{turn}", [0, 1, 2, 2], tensors,
                        policy=json.dumps(policy, separators=(",", ":"))) as job:
                    job.join()
                    self.assertEqual(job.steps(5)[:2], ("ok", 5))
                    for node in range(3):
                        self.document(cluster, node, "verify", f"job{turn}")
            cluster.stop()

    def test_a_node_dies_in_the_middle(self):
        """Whoever dies, coordinator or not: the change ends with a sentence, and nothing hangs."""
        for victim in (0, 1):
            with self.subTest(victim=victim), Cluster(BUILD, nodes=2) as cluster, \
                    Job(cluster, BUILD, "job", [0, 1], [("w", "f32", "both", (64, 64))]) as job:
                job.join()
                self.assertEqual(job.steps(2)[0], "ok")
                outcome = {}
                asker = 1 - victim

                def change():
                    # No step is under way: the change waits for one that never comes.
                    outcome["answer"] = cluster.daemons[asker].ask(
                        "--timeout", "50000", "policy", "set", "job", "density=0.5", timeout=60)

                thread = threading.Thread(target=change)
                thread.start()
                wait_for(lambda: cluster.status(asker)["jobs"][0].get("policy_next_version"))
                cluster.daemons[victim].kill()
                cluster.restart(victim)
                for rank in job.ranks:
                    rank.send("steps 1")
                    self.assertIn(rank.error()[0], ("peer", "lost", "unreachable"))
                thread.join()
                code, _, sentence = outcome["answer"]
                self.assertEqual(code, 1)
                self.assertRegex(sentence, r"node|job|changed|ended")
                cluster.stop()


if __name__ == "__main__":
    unittest.main()
