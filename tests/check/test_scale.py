"""tests/sim/scale: its formulas, tables, plots, claims and errors, on results made up here."""
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom
from types import SimpleNamespace

SCALE = os.path.realpath(os.path.join(os.path.dirname(__file__), "../sim/scale"))
sys.dont_write_bytecode = True
sys.path.insert(0, SCALE)
import claims  # noqa: E402
import plots  # noqa: E402
import runs  # noqa: E402
import tables  # noqa: E402

NODES, ENTRIES = [2, 64, 1024], 102400
NAMES = ["allgather", "exclusive", "oktopk"]
SECONDS = {"allgather": 0.001, "exclusive": 0.02, "oktopk": 0.01}


def result(**changes):
    return {"nodes": 4, "entries": 1000, "numel": 100000, "seconds": 0.001, "bytes": 16000,
            "bytes_max": 16000, "headers": 1000, "update": 1000, "update_min": 1000,
            "update_max": 1000, "imbalance": 1.0, **changes}


def made(change=lambda run, result: result):
    """Every run that the command wants for these numbers of nodes."""
    options = SimpleNamespace(memory=0, limit=1, jobs=1)
    all_runs = runs.Runs("none", options)
    for name in [*NAMES, "balanced"]:
        for nodes in NODES:
            for kind in ({"raw": 1}, *runs.NETWORKS.values()):
                run = runs.arguments(name, nodes, ENTRIES, **kind)
                found = result(nodes=nodes, entries=ENTRIES,
                               update=1000 if name == "oktopk" else 5000)
                words = claims.formula(name, found) or 1e6
                all_runs.results[run] = found | dict(
                    bytes=4 * words, bytes_max=4 * words,
                    seconds=SECONDS.get(name, 1) * (nodes if name == "allgather" else 1))
    for run in claims.wanted(NODES, [*NAMES, "balanced"]):
        all_runs.results[run] = result()
    all_runs.results = {run: change(run, found) for run, found in all_runs.results.items()}
    return all_runs


class Formulas(unittest.TestCase):
    def test_words(self):
        self.assertEqual(claims.formula("allgather", result()), 2 * 1000 * 3)
        self.assertEqual(claims.formula("oktopk", result()), 6 * 1000 * 3 / 4)
        self.assertEqual(claims.formula("balanced", result(update=3000)), 2 * 4000 * 3 / 4)
        self.assertEqual(claims.dense_words(1000, 4), 2 * 100000 * 3 / 4)
        self.assertIsNone(claims.formula("exclusive", result()))
        # Lists of one, then of two: one in a hundred of the half that is not shared coincides.
        self.assertAlmostEqual(claims.formula("hierarchical", result()), 2 * (1000 + 1500 - 5))
        self.assertIsNone(claims.formula("hierarchical", result(nodes=5)))

    def test_dense_time(self):
        words, ring = claims.dense_words(1000, 64), 2 * 63 * 20e-6
        self.assertAlmostEqual(tables.dense_time(1000, 64, {"gbit": 1}), words * 16e-9 + 12 * 20e-6)
        self.assertAlmostEqual(tables.dense_time(1000, 64, {"gbit": 1, "rack": 32}),
                               words * 16e-9 + ring)

    def test_one_rack_is_a_full_network(self):
        self.assertEqual(runs.arguments("oktopk", 32, 100, **runs.NETWORKS["racks"]),
                         runs.arguments("oktopk", 32, 100, **runs.NETWORKS["10G"]))
        self.assertIn("--narrowing=4", runs.arguments("oktopk", 33, 100, **runs.NETWORKS["racks"]))


class Output(unittest.TestCase):
    def test_table(self):
        text = tables.size_text(made(), NAMES, ENTRIES, NODES)
        self.assertLessEqual(max(map(len, text.splitlines())), 100, text)
        self.assertIn("fastest, 10 Gbit/s: allgather at P = 2, oktopk at P = 64 to 1024; of the "
                      "whole sum: allgather at P = 2, exclusive at P = 64 to 1024",
                      " ".join(text.split()))

    def test_what_could_not_be_run_is_left_out(self):
        def refuse(run, found):
            return None if "--nodes=1024" in run and "--collective=exclusive" in run else found
        text = tables.size_text(made(refuse), NAMES, ENTRIES, NODES)
        self.assertEqual(len([line for line in text.splitlines() if "  exclusive" in line]), 2)

    def test_what_could_not_be_run_is_told(self):
        all_runs = runs.Runs("none", None)
        for nodes in (256, 512):
            for kind in ({"raw": 1}, {"gbit": 1}):
                run = runs.arguments("exclusive", nodes, ENTRIES, **kind)
                all_runs.refused[run] = "scale-run: step 0: no memory for a frame"
        self.assertEqual(tables.refused_text(all_runs), "not run: exclusive, k = 102,400, P = 256, "
                         "512: step 0: no memory for a frame")

    def test_plots(self):
        for svg in plots.draw(made(), NAMES, ENTRIES, NODES).values():
            xml.dom.minidom.parseString(svg)
            self.assertIn("oktopk", svg)
            self.assertNotIn("nan", svg)


class Claims(unittest.TestCase):
    def failing(self, **changes):
        wrong = set(claims.wanted(NODES, ["oktopk", "balanced"]))
        all_runs = made(lambda run, found: {**found, **changes} if run in wrong else found)
        checked = claims.check(all_runs, [ENTRIES], NODES, [*NAMES, "balanced"])
        return [what for what, *_, holds in checked if not holds]

    def test_they_can_fail(self):
        self.assertEqual(self.failing(bytes_max=17999, headers=1599), [])
        self.assertIn("words of a node", self.failing(bytes_max=18001)[0])
        self.assertIn("frame headers", self.failing(headers=1600)[0])
        self.assertEqual(len(self.failing(update_min=949)), 2)
        self.assertEqual(len(self.failing(update_max=1051)), 2)
        self.assertIn("imbalance", self.failing(imbalance=1.1)[0])

    def test_a_volume_off_its_formula(self):
        def more(run, found):
            return {**found, "bytes": found["bytes"] * 1.03} if "--raw=1" in run else found
        checked = claims.check(made(more), [ENTRIES], NODES, ["allgather"])
        self.assertEqual([holds for *_, holds in checked], [False])

    def test_a_claim_that_could_not_be_run(self):
        wrong = claims.skew_run()
        all_runs = made(lambda run, found: None if run == wrong else found)
        all_runs.refused[wrong] = "no memory for the lists"
        with self.assertRaisesRegex(runs.ScaleError, "no memory for the lists"):
            claims.check(all_runs, [ENTRIES], NODES, ["balanced"])


class Runs(unittest.TestCase):
    def test_more_nodes_than_could_be_run_are_not_tried(self):
        all_runs = runs.Runs("/nonexistent", SimpleNamespace(memory=0, limit=1, jobs=1))
        all_runs.refused[runs.arguments("oktopk", 64, 100, gbit=10)] = "no memory"
        more = runs.arguments("oktopk", 128, 100, gbit=1)
        all_runs.make_all([more])
        self.assertEqual(all_runs.refused[more], "as with P = 64")
        for other in (runs.arguments("oktopk", 32, 100, gbit=10),
                      runs.arguments("oktopk", 128, 100, raw=1)):
            all_runs.stopped = False
            with self.assertRaises(OSError):
                all_runs.make_all([other])


class Command(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-scale-test-")
        self.addCleanup(temporary.cleanup)
        self.build = temporary.name
        os.makedirs(os.path.join(self.build, "tests/sim"))

    def program(self, script):
        path = os.path.join(self.build, "tests/sim/scale-run")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n[ $1 = --list ] && echo allgather && exit\n" + script)
        os.chmod(path, 0o755)

    def fails(self, words, *arguments):
        done = subprocess.run([os.path.join(SCALE, "scale"), "--build", self.build, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        self.assertNotIn("Traceback", done.stdout)
        self.assertIn(words, done.stdout)
        self.assertNotEqual(done.returncode, 0)

    def test_arguments(self):
        self.fails("ninja -C")
        self.program("exit 1")
        self.fails('no sparse collective "none"; there are allgather', "--collectives", "none")
        self.fails('"2,x" is no list of numbers', "--nodes", "2,x")
        self.fails("not all are from 2 to 1,024", "--nodes", "2,1025")
        self.fails("not all are from 1 to", "--entries", "0")

    def test_runs_that_fail(self):
        self.program("echo step 0: two members have different sums >&2; exit 1")
        self.fails("two members have different sums", "--quick")
        self.program("kill -9 $$")
        self.fails("was killed", "--quick")

    def test_json_of_something_else(self):
        self.program("exit 1")
        for content in ("", "[]", "{}", '{"runs": [1]}'):
            path = os.path.join(self.build, "file.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
            self.fails("is not what --json writes", "--quick", "--json", path)


if __name__ == "__main__":
    unittest.main()
