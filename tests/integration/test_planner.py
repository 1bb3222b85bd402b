#!/usr/bin/env python3
"""Plans on real daemons: set by hand, chosen by the planner, replayed, and nodes that die meanwhile.

usage: test_planner.py BUILD [unittest's arguments]
"""
import json
import time
import unittest

from build import BUILD
from cluster import Cluster
from ranks import Job

AUTO = {"sparsifier": "auto", "sparse_collective": "auto", "dense_values": "auto",
        "bucket_bytes": "auto", "density": 0.02}
TENSORS = [("a.weight", "f32", "both", (96, 96)), ("a.bias", "f32", "dense", (96,)),
           ("b.weight", "f32", "both", (64, 48)), ("c.weight", "f32", "list", (8, 4, 3, 3))]


def policy(**more):
    return json.dumps({**AUTO, **more}, separators=(",", ":"))


class Planner(unittest.TestCase):
    def document(self, cluster, node, *command):
        code, out, err = cluster.daemons[node].ask("--json", *command, timeout=60)
        self.assertEqual(code, 0, f"{command}: {err}")
        return json.loads(out)

    def change(self, cluster, node, job, *pairs):
        return job.steps_while(
            lambda: self.document(cluster, node, "policy", "set", job.name, *pairs))

    def choices(self, cluster, node, job):
        return [one["choice"] for one in self.document(cluster, node, "plan", job)["tensors"]]

    def test_set_by_hand(self):
        """A plan that an operator sets holds on all nodes, and through changes of time limits."""
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "job", [0, 1], TENSORS, policy=policy(replan=False)) as job:
            job.join()
            self.assertEqual(job.steps(3)[0], "ok")
            for node in (0, 1):
                plan = self.document(cluster, node, "plan", "job")
                self.assertEqual((plan["plan"], plan["automatic"], plan["replan"]),
                                 ("", True, False))
                self.assertEqual(self.choices(cluster, node, "job"),
                                 ["allgather", "dense", "allgather", "allgather"])
            self.change(cluster, 1, job, "plan=5000:1b2h1o")
            for node in (0, 1):
                self.assertEqual(self.choices(cluster, node, "job"),
                                 ["balanced", "dense bf16", "dense bf16", "oktopk"])
                tensors = self.document(cluster, node, "tensors", "job")["tensors"]
                self.assertEqual([one["collective"] for one in tensors],
                                 ["balanced", "allreduce", "allreduce", "oktopk"])
                self.document(cluster, node, "verify", "job")
            self.change(cluster, 0, job, "wait_limit=50")
            self.assertEqual(self.document(cluster, 1, "plan", "job")["plan"], "5000:1b2h1o")
            code, text, _ = cluster.daemons[0].ask("plan", "job")
            self.assertEqual(code, 0)
            self.assertIn("job job, run 0: plan 5000:1b2h1o\n", text)
            cluster.stop()

    def test_refused(self):
        """A plan that does not fit is refused with the tensor's name, and nothing changes."""
        rules = [{"match": "b.*", "sparsifier": "topk"}]
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "job", [0, 1], TENSORS,
                    policy=policy(replan=False, rules=rules)) as job:
            job.join()
            self.assertEqual(job.steps(1)[0], "ok")
            for plan, words in (("4096:5d", ("'a.weight' to 'c.weight'", "for 5 tensors")),
                                ("4096:2a2d", ("'a.bias'", "allgather")),
                                ("4096:4d", ("'b.weight'", "dense")),
                                ("4096:04d", ("plan", "number of tensors"))):
                code, _, sentence = cluster.daemons[0].ask("policy", "set", "job", f"plan={plan}")
                self.assertEqual(code, 1)
                for word in words:
                    self.assertIn(word, sentence)
            self.assertEqual(cluster.daemons[0].ask("plan", "nobody")[0], 1)
            self.assertEqual(cluster.daemons[0].ask("plan")[0], 2)
            self.assertEqual(job.steps(2)[0], "ok")
            self.assertEqual(self.document(cluster, 0, "plan", "job")["plan"], "")
            cluster.stop()

    def test_replayed(self):
        """The same plan, the same bits, whoever chose it."""
        hashes = []
        with Cluster(BUILD, nodes=3) as cluster:
            for run in range(2):
                with Job(cluster, BUILD, "job", [0, 1, 2], TENSORS, run=str(run), policy=policy(
                        replan=False, plan="9000:1o1d1c1h")) as job:
                    job.join()
                    hashes.append(job.steps(8))
            cluster.stop()
        self.assertEqual(hashes[0], hashes[1])

    def test_chosen(self):
        """The planner measures, tries and settles; nothing is lost, and it says what it did."""
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "job", [0, 0, 1], TENSORS, policy=policy()) as job:
            job.join()
            for _ in range(8):
                self.assertEqual(job.steps(40)[0], "ok")
            plan = self.document(cluster, 0, "plan", "job")
            self.assertEqual((plan["schema"], plan["node"], plan["coordinator"]), (1, 0, 0))
            self.assertGreater(plan["decisions"], 20)
            self.assertGreater(plan["proposals"], 0)
            self.assertNotEqual(plan["plan"], "")
            self.assertRegex(plan["why"], "trying|keeping|back to")
            self.assertGreater(len(plan["candidates"]), 2)
            for one in plan["candidates"]:
                self.assertGreater(one["predicted_us"], 0)
            self.assertGreater(plan["measured"]["round_trip_us"], 0)
            self.assertTrue(all(one["arrival_us"] is not None for one in plan["tensors"]))
            other = self.document(cluster, 1, "plan", "job")
            self.assertEqual((other["plan"], other["decisions"]), (plan["plan"], 0))
            log = self.document(cluster, 1, "policy", "log", "job")["changes"]
            self.assertTrue(all(one["planner"] for one in log))
            # The last one may wait for the next step.
            self.assertIn(plan["proposals"] - log[0]["version"], (0, 1))
            self.assertIn("job job/0: plan (none) -> ", cluster.daemons[0].log())
            for node in (0, 1):
                self.document(cluster, node, "verify", "job")
            text = cluster.daemons[0].ask("plan", "job")[1]
            self.assertIn("* ", text)
            cluster.stop()

    def test_operator_meanwhile(self):
        """An operator who changes things while the planner is at work, and then ends its search."""
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "job", [0, 1], TENSORS, policy=policy()) as job:
            job.join()
            done = turn = 0
            while turn < 6 or done == 0:
                for rank in job.ranks:
                    rank.send("steps 200")
                time.sleep(0.03)
                code, _, sentence = cluster.daemons[turn % 2].ask(
                    "--timeout", "3000", "policy", "set", "job", f"density=0.0{turn % 6 + 3}")
                done += code == 0
                turn += 1
                if code != 0:  # the planner was first, or nobody trains any more
                    self.assertRegex(sentence, "under way|being put in force|by now|came first|agree|outcome|view")
                for rank in job.ranks:
                    self.assertEqual(rank.answer().split()[0], "ok")
            self.assertEqual(job.steps(60)[0], "ok")
            for node in (0, 1):
                self.document(cluster, node, "verify", "job")
            plans = set()
            for _ in range(20):
                code, _, _ = job.steps_while(lambda: cluster.daemons[1].ask(
                    "--timeout", "3000", "policy", "set", "job", "replan=false"))
                if code == 0:  # the planner was not first
                    break
            for _ in range(2):
                plans |= {self.document(cluster, node, "plan", "job")["plan"] for node in (0, 1)}
                self.assertEqual(job.steps(60)[0], "ok")
            self.assertEqual(len(plans), 1)
            cluster.stop()

    def test_a_node_dies(self):
        """Whoever dies while plans are tried, coordinator or not: nothing hangs."""
        for victim in (0, 1):
            with self.subTest(victim=victim), Cluster(BUILD, nodes=2) as cluster:
                with Job(cluster, BUILD, "job", [0, 1], TENSORS, policy=policy()) as job:
                    job.join()
                    for rank in job.ranks:
                        rank.send("steps 100000")
                    time.sleep(0.2)
                    cluster.daemons[victim].kill()
                    cluster.restart(victim)
                    for rank in job.ranks:
                        self.assertIn(rank.error()[0], ("peer", "lost", "unreachable"))
                with Job(cluster, BUILD, "next", [0, 1], TENSORS, policy=policy()) as job:
                    job.join()
                    self.assertEqual(job.steps(30)[0], "ok")
                cluster.stop()


if __name__ == "__main__":
    unittest.main()
