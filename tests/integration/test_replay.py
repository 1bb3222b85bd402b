#!/usr/bin/env python3
"""Real gradients through real daemons: every element of every update of 200 steps is what a reference
of the test's own says, and all ranks have the same bits.

Three small models are trained on real data (replay/models.c); their gradients are pushed by two ranks
on each of two nodes, as tensors of the model's shapes, of odd shapes, or as a thousand tiny tensors.
The test relies on policies with a density, and otherwise on defaults: the mean over the ranks, values in bf16, one
residual per node.

usage: test_replay.py BUILD [unittest's arguments]
"""
import gzip
import json
import os
import subprocess
import tempfile
import unittest

from build import BUILD
from cluster import Cluster, die_with_parent

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data")
HOMES = (0, 0, 1, 1)
CAPTURED = 50  # steps in a file; then they come again with the ranks exchanged
STEPS = 200
DENSITY = 0.01
FIBRES = {"sparsifier": "adtopk", "density": DENSITY}
RULES = {"topk": {"sparsifier": "topk", "density": DENSITY}, "fibre": FIBRES,
         "row": {**FIBRES, "fibres": "row"}, "longest": {**FIBRES, "fibres": "longest"},
         "chunk": {**FIBRES, "fibres": "chunk"}}


def program(name, *arguments, **options):
    return subprocess.Popen([os.path.join(BUILD, "tests/integration", name), *map(str, arguments)],
                            stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
                            **options)


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="replay-")
        cls.addClassCleanup(cls.place.cleanup)
        for name in ("kjv-pentateuch.txt", "digits.csv"):
            with gzip.open(os.path.join(DATA, name + ".gz")) as packed, \
                    open(os.path.join(cls.place.name, name), "wb") as out:
                out.write(packed.read())
        cls.cluster = Cluster(BUILD)
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.start()

    def capture(self, kind):
        """The file with a model's gradients, which are right, and whose training gets better."""
        path = os.path.join(self.place.name, kind)
        data = os.path.join(self.place.name,
                            "digits.csv" if kind == "cnn" else "kjv-pentateuch.txt")
        if not os.path.exists(path):
            with program("test-gradients", kind, data, path, CAPTURED, len(HOMES)) as made:
                out = made.stdout.read()
            self.assertEqual(made.returncode, 0)
            words = out.replace(",", "").split()
            self.assertLess(float(words[7]), 0.98 * float(words[5]), out)
            print(f"# {kind}: {out.strip()}", flush=True)
        return path

    def replay(self, kind, layout, rule):
        job = f"{kind}-{layout}-{rule}"
        policy = json.dumps(RULES[rule])
        ranks = [program("test-replay", self.capture(kind), layout, self.cluster.address(home), job,
                         rank, STEPS, rule, DENSITY, policy, stdin=subprocess.PIPE)
                 for rank, home in enumerate(HOMES)]
        try:
            for rank in ranks:
                self.assertEqual(rank.stdout.readline(), "committed\n")
            tensors = self.cluster.ask(0, "tensors", job)["tensors"]
            dense = [tensor["sparsifier"] == "dense" for tensor in tensors]
            flags = "".join("1" if one else "0" for one in dense)
            for number, rank in enumerate(ranks):
                rank.stdin.write(flags + "\n" if number == 0 else "-\n")
                rank.stdin.flush()
            outs = [rank.communicate(timeout=300)[0].split() for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0] * len(HOMES))
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
                rank.stdin.close()
                rank.stdout.close()
        elements, entries, sets, values = map(int, outs[0][:4])
        print(f"# {job}: {len(dense)} tensors ({dense.count(False)} sparse), {elements} elements, "
              f"{entries} entries compared, loss of the reference {outs[0][5]}", flush=True)
        self.assertEqual((sets, values), (0, 0))
        self.assertEqual(len({out[4] for out in outs}), 1)
        self.assertEqual(elements, STEPS * sum(tensor["elements"] for tensor in tensors))
        self.assertGreater(entries, 0)
        self.assertIn(False, dense)
        self.assertLess(float(outs[0][5]), 1e-5)

    def all_rules(self, kind, layout):
        for rule in RULES:
            with self.subTest(kind=kind, layout=layout, rule=rule):
                self.replay(kind, layout, rule)

    def test_lstm(self):
        self.all_rules("lstm", "own")

    def test_transformer(self):
        self.all_rules("transformer", "own")

    def test_cnn(self):
        self.all_rules("cnn", "own")

    def test_odd_shapes(self):
        self.all_rules("lstm", "odd")

    def test_a_thousand_tensors(self):
        self.all_rules("transformer", "tiny")


if __name__ == "__main__":
    unittest.main()
