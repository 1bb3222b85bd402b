#!/usr/bin/env python3
"""adtopk-perf cluster: ranks of several daemons, as launchers start them. No time decides anything
but one: a link that is delayed on purpose is named.

usage: test_perf_cluster.py BUILD [unittest's arguments]
"""
import json
import os
import subprocess
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent

PERF = os.path.join(BUILD, "tests", "bench", "adtopk-perf")
TINY = ["--max", "64K", "--iterations", "3"]
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
}


def start(cluster, ranks, arguments, launcher="torchrun", controls=True):
    """Rank r of node r * nodes // ranks, with the launcher's variables and those of its daemon."""
    number, world = LAUNCHERS[launcher]
    processes = []
    for rank in range(ranks):
        node = rank * len(cluster.daemons) // ranks
        control = cluster.daemons[node].control if controls else "/nowhere.control"
        environment = {**os.environ, "ADTOPK_ADDRESS": cluster.address(node), number: str(rank),
                       world: str(ranks), "ADTOPK_CONTROL_SOCKET": control}
        processes.append(subprocess.Popen([PERF, "cluster", *arguments], env=environment, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          preexec_fn=die_with_parent))
    return processes


class Runs(unittest.TestCase):
    def run_ranks(self, cluster, ranks, *arguments, **how):
        """The output of rank 0; the others print nothing."""
        processes = start(cluster, ranks, arguments, **how)
        outputs = [process.communicate(timeout=120) for process in processes]
        for process, (out, err) in zip(processes, outputs):
            self.assertEqual((process.returncode, err), (0, ""), out)
        self.assertEqual([out for out, _ in outputs[1:]], [""] * (ranks - 1))
        return outputs[0][0]

    def test_document(self):
        with Cluster(BUILD, nodes=2) as cluster:
            document = json.loads(self.run_ranks(cluster, 4, "--json", *TINY))
            self.check(document)
            again = json.loads(self.run_ranks(cluster, 4, "--json", *TINY, launcher="mpirun"))
            self.assertEqual(len(again["rows"]), len(document["rows"]))  # the job may be opened again

    def check(self, document):
        rows = document["rows"]
        self.assertEqual([(row["density"], row["size_bytes"]) for row in rows],
                         [(density, size) for density in (1, 0.01) for size in (4096, 65536)])
        for row in rows:
            self.assertEqual(len(row["time_us"]["samples"]), 3)
            self.assertEqual((row["benchmark"], row["ranks"]), ("cluster", 4))
            self.assertGreater(row["ratio"], 0)
            floor = row["floor_us"]["median"]
            slowest = min(document["links"][0][way] for way in ("there_mb_s", "back_mb_s"))
            self.assertAlmostEqual(floor, row["wire_bytes"] / slowest, delta=0.001 * floor)
        # Two nodes send each other what is dense once, in both steps of the ring, and headers.
        dense, sparse = rows[1]["wire_bytes"], rows[3]["wire_bytes"]
        self.assertTrue(65536 < dense < 66000, dense)
        self.assertTrue(100 < sparse < 1000, sparse)
        self.assertEqual([rank["node"] for rank in document["ranks"]], [0, 0, 1, 1])
        self.assertTrue(all(rank["alone_us"] > 0 for rank in document["ranks"]))
        self.assertEqual([link["nodes"] for link in document["links"]], ["0-1"])
        self.assertEqual([(node["daemon"], node["ranks"], node["traffic"])
                          for node in document["nodes"]], [(0, 2, "clear"), (1, 2, "clear")])
        self.assertTrue(all(node[phase + "_us"] >= 0 for node in document["nodes"]
                            for phase in ("select", "exchange", "reduce", "settle")))
        self.assertRegex(document["remarks"][0], r"^The slowest link, 0-1, carried .* bound it|bounds it")

    def test_text_and_keys(self):
        with Cluster(BUILD, nodes=3, keys=True) as cluster:
            out = self.run_ranks(cluster, 3, "--size", "64K", "--iterations", "3", "--density", "0.01",
                                 launcher="srun")
        lines = out.splitlines()
        self.assertRegex(out, r"\n# what +size +count +type +dens\. +time +algbw +busbw +wire ")
        self.assertEqual(sum(line.endswith("curve") for line in lines), 3)
        for link in ("0-1", "0-2", "1-2"):
            self.assertRegex(out, rf"\n +{link} +[0-9]")
        self.assertLess(max(len(line) for line in lines if not line.startswith("# The")), 101)

    def test_slow_link(self):
        """Of four nodes' six links one is delayed by 100 ms in both directions."""
        with Cluster(BUILD, nodes=4, relays=True) as cluster:
            for way in ((1, 2), (2, 1)):
                cluster.relays[way].delay = 0.1
            out = self.run_ranks(cluster, 4, "--json", "--size", "4K", "--iterations", "2")
        links = {link["nodes"]: link for link in json.loads(out)["links"]}
        self.assertEqual(len(links), 6)
        self.assertEqual(links["1-2"]["slow"], "yes")
        self.assertGreater(links["1-2"]["4k_step_us"], 100000)

    def test_without_control_sockets(self):
        with Cluster(BUILD, nodes=2) as cluster:
            document = json.loads(self.run_ranks(cluster, 2, "--json", *TINY, controls=False))
        self.assertTrue(all(row["wire_bytes"] is None and row["time_us"]["median"] > 0
                            for row in document["rows"]))
        self.assertRegex(document["remarks"][0], "^2 of 2 nodes tell nothing .*/nowhere.control")
        self.assertIn("What bounds it is not known", document["remarks"][1])

    def test_one_node(self):
        with Cluster(BUILD, nodes=1) as cluster:
            document = json.loads(self.run_ranks(cluster, 2, "--json", *TINY))
        self.assertNotIn("links", document)
        self.assertNotIn("remarks", document)

    def test_a_rank_that_dies(self):
        with Cluster(BUILD, nodes=2) as cluster:
            processes = start(cluster, 2, ["--size", "16M", "--iterations", "1000"])
            processes[0].stdout.readline()  # all ranks are there
            processes[1].kill()
            _, err = processes[0].communicate(timeout=60)
            processes[1].communicate()
        self.assertEqual(processes[0].returncode, 1)
        self.assertRegex(err, "^adtopk-perf: rank 0: .*rank 1 is gone")

    def test_errors(self):
        for arguments, code, sentence in (
                (["cluster", "link"], 2, "cluster runs alone, without other benchmarks"),
                (["cluster", "--threads", "2"], 2, "--threads is no option of the requested benchmark"),
                (["cluster"], 1, "no daemon at unix:/nowhere.sock")):
            done = subprocess.run([PERF, *arguments], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "ADTOPK_ADDRESS": "unix:/nowhere.sock"})
            self.assertEqual(done.returncode, code, arguments)
            self.assertIn(sentence, done.stderr)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
