#!/usr/bin/env python3
"""How much memory daemons take for a job: never more than they promise.

A daemon's peak is at most its ranks' gradients, the job's residuals and the updates that were asked
for, and 3 % and 64 MiB more; and what README.md grants the entries of dense selections. Every case
has daemons of its own, so that the peak is one job's.

usage: test_memory_use.py BUILD [unittest's arguments]
"""
import math
import os
import re
import sys
import unittest

# Meson has malloc() write to all that it gives, which would count memory that is never used.
os.environ.pop("MALLOC_PERTURB_", None)

from build import BUILD  # pylint: disable=wrong-import-position
from cluster import Cluster
from ranks import Job
from scene import text

MIB = 1 << 20
STEPS = 3
HUNDRED_MB = (1000, 25000)
SPARSE = {"scope": "node"}  # everything else as by default
DENSE = {"sparsifier": "dense", "scope": "node"}


def process_file(daemon, name):
    with open(f"/proc/{daemon.process.pid}/{name}", encoding="utf-8") as lines:
        return lines.read()


def kib(text_of_file, name):
    return int(re.search(rf"^{name}:\s*(\d+) kB$", text_of_file, re.MULTILINE).group(1))


def sanitized(daemon):
    """True if there is a sanitizer's shadow memory, which would be measured with the daemon's.

    Not by its library's name: clang links it statically. The shadow has terabytes of addresses.
    """
    return kib(process_file(daemon, "status"), "VmSize") * 1024 >= 1 << 40


def reserved_results(daemon):
    """Bytes of the result arenas that are taken from the system: they have room for any policy, but
    only what the one in force needs is reserved."""
    folder, blocks = f"/proc/{daemon.process.pid}/fd", 0
    for name in os.listdir(folder):
        try:
            if "/memfd:result arena" in os.readlink(f"{folder}/{name}"):
                blocks += os.stat(f"{folder}/{name}").st_blocks
        except FileNotFoundError:
            pass  # the daemon has closed it meanwhile
    return blocks * 512


def untouched_shared(daemon):
    """Bytes of shared memory that are the daemon's but that it has not touched yet."""
    missing, name = reserved_results(daemon), ""
    for line in process_file(daemon, "smaps").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = line.partition("/memfd:")[2]
        elif name and re.match(r"(Size|Rss):", line):
            amount = int(line.split()[1]) * 1024
            if not line.startswith("Size"):
                missing -= amount
            elif not name.startswith("result arena"):
                missing += amount
    return missing


def peak(daemon):
    """The most bytes the daemon ever had: anonymous and shared ones, each mapped page once.

    The high-water mark has the pages of the program and its libraries too; those are files'.
    """
    status = process_file(daemon, "status")
    return (kib(status, "VmHWM") - kib(status, "RssFile")) * 1024 + untouched_shared(daemon)


class MemoryUse(unittest.TestCase):
    table = []

    @classmethod
    def tearDownClass(cls):
        if cls.table:
            print(f"\n{'case':32} node  gradients  residuals  updates  allowed  measured  (MiB)",
                  file=sys.stderr)
        for case, node, parts, allowed, measured in cls.table:
            gradients, residuals, updates = (part / MIB for part in parts)
            print(f"{case:32} {node:4} {gradients:10.1f} {residuals:10.1f} {updates:8.1f} "
                  f"{allowed / MIB:8.1f} {measured / MIB:9.1f}", file=sys.stderr)

    def parts(self, job, detail, policy, homes, node):
        """Bytes of the node's gradients, of its residuals, of the updates asked for.

        detail: what the daemon says about the first tensor; the others are like it.
        """
        _, _, forms, shape = job.tensors[0]
        numel, dense = math.prod(shape), detail["sparsifier"] == "dense"
        elements, updates = len(job.tensors) * numel, 0
        if dense or forms != "list":
            updates += elements * 4
        if not dense and forms != "dense":
            capacity = min(numel, len(set(homes)) * detail["count"])
            updates += len(job.tensors) * capacity * 8
        element = 2 + 1 / 32 if policy.get("residual") == "bf16" else 4
        return homes.count(node) * elements * 4, elements * element, updates

    def check(self, case, homes, policy, tensors, entry_bytes=0):
        """entry_bytes: of each entry that a turn may select, beyond 3 % and 64 MiB."""
        with Cluster(BUILD, nodes=len(set(homes))) as cluster:
            if sanitized(cluster.daemons[0]):
                self.skipTest("the daemons are sanitized")
            with Job(cluster, BUILD, "memory", homes, tensors, text(**policy)) as job:
                job.join()
                job.each("gradients integer 1")
                self.assertEqual(job.steps(STEPS)[:3], ("ok", STEPS, 0))
                found = []
                for daemon in cluster.daemons:
                    stats = cluster.ask(daemon.node, "--job", "memory", "stats")["jobs"][0]
                    parts = self.parts(
                        job, stats["tensors_detail"][0], policy, homes, daemon.node)
                    entries = stats["tensors_detail"][0]["count"]
                    allowed = sum(parts) * 1.03 + 64 * MIB + entries * entry_bytes
                    found.append((case, daemon.node, parts, allowed, peak(daemon)))
            cluster.stop()
        self.table.extend(found)
        for _, node, parts, allowed, measured in found:
            self.assertGreaterEqual(measured, sum(parts[:2]), "that cannot be")
            self.assertLessEqual(measured, allowed, f"{case}, node {node}")

    def test_dense(self):
        self.check("dense, one node, two ranks", [0, 0], DENSE,
                   [("huge", "f32", "dense", HUNDRED_MB)])

    def test_sparse_list(self):
        self.check("sparse, list, one node", [0, 0], SPARSE, [("huge", "f32", "list", HUNDRED_MB)])

    def test_residual_in_bf16(self):
        for residual in ("f32", "bf16"):
            self.check(f"residual {residual}, one node", [0, 0], {**SPARSE, "residual": residual},
                       [("huge", "f32", "list", HUNDRED_MB)])
        if self.table:
            (*_, f32), (*_, bf16) = self.table[-2:]
            self.assertLess(bf16, f32 - 0.45 * 4 * math.prod(HUNDRED_MB), "not half as much")

    def test_sparse_dense_form(self):
        self.check("sparse, dense form, one node", [0, 0], SPARSE,
                   [("huge", "f32", "dense", HUNDRED_MB)])

    def test_rule(self):
        """The densest selection that a rule has candidates for: 20 bytes each, 8 in its list."""
        self.check("gaussiank, list, one node", [0],
                   {**SPARSE, "sparsifier": "gaussiank", "density": 0.18},
                   [("huge", "f32", "list", HUNDRED_MB)], entry_bytes=28)

    def test_dense_two_nodes(self):
        self.check("dense, two nodes", [0, 1], DENSE, [("huge", "f32", "dense", HUNDRED_MB)])

    def test_rounded_sums(self):
        """What owners keep of the sums that they round counts, too."""
        self.check("dense in bf16, three nodes", [0, 1, 2], {**DENSE, "dense_values": "bf16"},
                   [("huge", "f32", "dense", HUNDRED_MB)])

    def test_ring_of_rounded_sums(self):
        """... of all elements in a ring, as many as have room for it."""
        self.check("dense in bf16, a ring", [0, 1, 2],
                   {**DENSE, "dense_values": "bf16", "dense_collective": "ring"},
                   [("huge", "f32", "dense", (800, 25000))])

    def test_sparse_two_nodes(self):
        self.check("sparse, list, two nodes", [0, 1], SPARSE,
                   [("huge", "f32", "list", HUNDRED_MB)])

    def test_many_tensors(self):
        """As many as test-trainer takes."""
        tensors = [(f"t{t}", "f32", "both", (4, 5)) for t in range(4096)]
        self.check("tensors of 80 bytes", [0, 1], SPARSE, tensors)


if __name__ == "__main__":
    unittest.main()
