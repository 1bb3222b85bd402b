#!/usr/bin/env python3
"""adtopk-perf as a program: every benchmark runs with tiny sizes, its document is complete, its
figures follow from its samples, and nothing is left behind. No time decides anything.

usage: test_perf.py BUILD [unittest's arguments]
"""
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
import unittest
from unittest import mock

from build import BUILD
from cluster import die_with_parent

TINY = {
    "select": ["--min", "4K", "--max", "64K", "--iterations", "3", "--distribution", "all",
               "--dtype", "all", "--columns", "256,4096", "--threads", "1,2", "--ranks", "1,3"],
    "encode": ["--min", "4K", "--max", "64K", "--iterations", "3", "--density", "0.01,1"],
    "decode": ["--min", "4K", "--max", "64K", "--iterations", "3", "--density", "0.01,1"],
    "sum": ["--min", "4K", "--max", "64K", "--iterations", "3", "--threads", "1,2"],
    "handover": ["--iterations", "40", "--warmup", "4"],
    "round": ["--min", "4K", "--max", "64K", "--iterations", "3", "--tensors", "1,7"],
    "sparsify": ["--min", "4K", "--max", "64K", "--iterations", "3", "--distribution", "all"],
    "overtake": ["--size", "4M", "--iterations", "3"],
    "link": ["--min", "4K", "--max", "64K", "--iterations", "3"],
}
ROW_KEYS = {"benchmark", "variant", "input", "layer", "size_bytes", "count", "type", "density",
            "threads", "ranks", "time_us", "algbw_gb_s", "busbw_gb_s", "wire_bytes", "nonzeros",
            "target_count", "bits_per_nonzero", "target_us", "floor", "floor_us", "ratio", "ratio_of",
            "settle_us", "peers", "residual", "tensors", "cpu_us"}
SERIES_KEYS = {"median", "p90", "p99", "min", "max", "spread", "samples"}


def program():
    return os.path.join(BUILD, "tests", "bench", "adtopk-perf")


def run(*arguments, timeout=300):
    """As subprocess.run(), and `pid`."""
    with subprocess.Popen([program(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, preexec_fn=die_with_parent) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    done.pid = process.pid
    return done


def percentile(values, p):
    ascending = sorted(values)
    at = p * (len(ascending) - 1)
    below = int(at)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (at - below) * (ascending[above] - ascending[below])


def folders(pid):
    """Those of a process of adtopk-perf."""
    return glob.glob(f"/tmp/adtopk-perf-{pid}-*")


LONG = "ADTOPK_TEST_LONG" in os.environ
GPU_LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
GPU_PROGRAM = os.path.join(BUILD, "daemon", "device", "adtopk-device")


class Documents(unittest.TestCase):
    def document(self, benchmark, *options):
        options = options or TINY[benchmark]
        done = run(benchmark, "--json", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(folders(done.pid), [])
        document = json.loads(done.stdout)
        self.assertEqual(document["schema"], 1)
        self.assertEqual(document["command"], [benchmark, "--json", *options])
        self.assertFalse(document["interrupted"])
        self.assertGreaterEqual(document["machine"]["cores"], 1)
        for key in ("cpu", "kernel", "vectors"):
            self.assertTrue(document["machine"][key])
        self.assertTrue(document["rows"])
        for row in document["rows"]:
            with self.subTest(row={key: row[key] for key in ("variant", "input", "size_bytes")}):
                self.assertEqual(row["benchmark"], benchmark)
                self.check_row(row)
        return document["rows"]

    def check_row(self, row):
        self.assertEqual(set(row), ROW_KEYS)
        self.check_series(row["time_us"])
        self.check_series(row["floor_us"])
        samples, floors = row["time_us"]["samples"], row["floor_us"]["samples"]
        if row["ratio_of"] == "pairs":
            self.assertEqual(len(samples), len(floors))
            ratios = [sample / floor for sample, floor in zip(samples, floors) if floor > 0]
            expected = statistics.median(ratios) if ratios else None
        else:
            self.assertEqual(row["ratio_of"], "medians")
            expected = statistics.median(samples) / statistics.median(floors)
        if expected is None:
            self.assertIsNone(row["ratio"])
        else:
            self.assertAlmostEqual(row["ratio"], expected, delta=1e-9 * expected)
        if row["bits_per_nonzero"] is not None:
            self.assertAlmostEqual(row["bits_per_nonzero"],
                                   8 * row["wire_bytes"] / row["nonzeros"], places=6)

        if row["settle_us"] is not None:
            self.check_series(row["settle_us"])
        for peer in row["peers"]:
            self.check_series(peer["time_us"])
            ours = statistics.median(samples) + statistics.median(row["settle_us"]["samples"])
            self.assertAlmostEqual(peer["ratio"], peer["time_us"]["median"] / ours,
                                   delta=1e-9 * peer["ratio"])

    def check_series(self, series):
        self.assertEqual(set(series), SERIES_KEYS)
        samples = series["samples"]
        self.assertTrue(samples)
        self.assertTrue(all(sample >= 0 for sample in samples))
        median = percentile(samples, 0.5)
        for key, expected in (("median", median), ("p90", percentile(samples, 0.9)),
                              ("p99", percentile(samples, 0.99)), ("min", min(samples)),
                              ("max", max(samples))):
            self.assertAlmostEqual(series[key], expected, places=6, msg=key)
        spread = percentile(samples, 0.75) - percentile(samples, 0.25)
        self.assertAlmostEqual(series["spread"], spread / median if median > 0 else 0, places=6)

    def test_select(self):
        rows = self.document("select")
        self.assertEqual({row["type"] for row in rows}, {"f32", "f16", "bf16"})
        self.assertEqual(len({row["input"] for row in rows}), 8)
        self.assertEqual({row["variant"] for row in rows},
                         {"global", "rows256", "rows4096", "conv"})
        self.assertEqual({(row["threads"], row["ranks"]) for row in rows},
                         {(1, 1), (1, 3), (2, 1), (2, 3)})
        self.assertTrue(all(row["floor"].startswith("r+=g ") for row in rows))
        self.assertTrue(all(len(row["time_us"]["samples"]) == 3 for row in rows))
        self.assertTrue(all(len(row["settle_us"]["samples"]) == 3 for row in rows))

    def test_residual(self):
        rows = self.document("select", "--residual", "all", "--size", "256K", "--iterations", "3",
                             "--dtype", "f32,bf16", "--ranks", "1,2", "--density", "0.01,1",
                             "--peers", "nth")
        self.assertEqual({row["residual"] for row in rows}, {"f32", "bf16"})
        size = {"f32": 4, "bf16": 2}
        for row in rows:
            moved = row["count"] * (row["ranks"] * size[row["type"]] + 2 * size[row["residual"]])
            self.assertAlmostEqual(row["busbw_gb_s"] * row["time_us"]["median"] * 1e3, moved, 0)
            if row["residual"] == "bf16":  # peers have none of those
                self.assertEqual(row["peers"], [])
        table = run("select", "--residual", "bf16", "--size", "64K", "--view", "global",
                    "--iterations", "2", "--ranks", "1,2")
        self.assertRegex(table.stdout, r" f32 +bf16 ")
        self.assertRegex(table.stdout, r" f32x2 +bf16 ")

    @unittest.skipUnless(os.path.exists(GPU_LIBRARY), "the kernels do not run here")
    def test_gpu(self):
        """Over the library that stands in for the driver: the document says so."""
        with mock.patch.dict(os.environ, ADTOPK_CUDA_LIBRARY=GPU_LIBRARY):
            rows = self.document("select", "--device", "0", "--size", "64K", "--iterations", "2",
                                 "--warmup", "1", "--dtype", "f32,bf16", "--columns", "256",
                                 "--density", "0.01", "--distribution", "normal,zeros")
            self.assertEqual({row["variant"] for row in rows},
                             {"copy", "r+=g", "global", "rows256", "conv"})
            for row in rows:
                passes = row["settle_us"] is not None
                self.assertEqual(row["floor"],
                                 "r+=g on the device" if passes else "copy on the device")
                self.assertEqual(passes, row["variant"] not in ("copy", "r+=g"))
                if row["variant"] == "global" and row["input"] == "normal":
                    self.assertEqual(row["nonzeros"], row["count"] // 100)
            uuid = "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a000"
            what = ["--model", "resnet50"] if LONG else ["--size", "4K"]  # a model takes minutes
            table = run("select", "--device", uuid, *what, "--iterations", "1", "--warmup", "0",
                        "--density", "0.01", timeout=600)
            self.assertEqual(table.returncode, 0, table.stderr)
            self.assertIn(f"# on {uuid} (stand-in 0)\n", table.stdout)
            for options, sentence in (
                    (("--device", "7"), 'there is no GPU "7"; this node has 1'),
                    (("--device", "0", "--ranks", "2"), "--ranks, --threads and --residual bf16")):
                wrong = run("select", *options)
                self.assertEqual(wrong.returncode, 1)
                self.assertIn(sentence, wrong.stderr)
        with mock.patch.dict(os.environ, ADTOPK_CUDA_LIBRARY="/nowhere.so"):
            for benchmark in "select", "handover":
                self.assertIn("this node has no NVIDIA driver", run(benchmark, "--device", "0").stderr)

    @unittest.skipUnless(os.path.exists(GPU_LIBRARY), "the kernels do not run here")
    def test_daemons_on_gpu(self):
        """Daemons get the GPU that is named, and hold their residuals there."""
        with mock.patch.dict(os.environ, ADTOPK_CUDA_LIBRARY=GPU_LIBRARY, ADTOPK_DEVICE_PROGRAM=GPU_PROGRAM):
            for benchmark, options in (("handover", ("--mode", "awake", "--ranks", "1")),
                                       ("round", ("--tensors", "2"))):
                table = run(benchmark, "--device", "0", "--size", "4K", "--iterations", "2", "--warmup", "1",
                            "--density", "0.01", *options)
                self.assertEqual(table.returncode, 0, table.stderr)
                self.assertRegex(table.stdout, r"# on GPU-[0-9a-f-]+ \(stand-in 0\)\n")

    def test_model(self):
        rows = self.document("select", "--model", "resnet50", "--layers", "--iterations", "2",
                             "--warmup", "0", "--density", "0.01")
        layers = {row["layer"]: row for row in rows}
        whole = layers.pop(None)
        self.assertEqual(len(layers), 161)
        self.assertEqual(whole["count"], 25557032)
        self.assertEqual(whole["count"], sum(row["count"] for row in layers.values()))
        self.assertEqual({row["variant"] for row in rows}, {"resnet50"})
        self.assertEqual(layers["bn1.weight"]["density"], 1)
        self.assertEqual(layers["fc.weight"]["density"], 20 / 2048)
        for at in range(2):
            self.assertAlmostEqual(whole["time_us"]["samples"][at], places=3, second=sum(
                row["time_us"]["samples"][at] for row in layers.values()))

    def test_peers(self):
        rows = self.document("select", "--size", "64K", "--columns", "128", "--iterations", "2",
                             "--peers", "all", "--dtype", "all", "--density", "0.01")
        self.assertEqual(len(rows), 9)
        for row in rows:
            self.assertLessEqual({peer["name"] for peer in row["peers"]}, {"nth", "torch"})
            self.assertTrue(all(len(peer["time_us"]["samples"]) == 7 for peer in row["peers"]))
        if os.path.exists(os.path.join(BUILD, "tests", "bench", "adtopk-perf-nth")):
            self.assertTrue(all(row["peers"][0]["name"] == "nth" for row in rows))

    def test_sparsify(self):
        rows = self.document("sparsify")
        self.assertLessEqual({"dense", "topk", "adtopk"}, {row["variant"] for row in rows})
        for row in rows:
            exact = max(row["count"] * row["density"] // 1, 1)
            self.assertEqual(row["target_count"], exact)
            if row["variant"] == "topk":
                self.assertEqual(row["nonzeros"], exact)

    def check_payload(self, rows):
        self.assertLessEqual({"auto", "dense", "raw", "rows", "delta", "bitmap", "rice", "hashmap"},
                             {row["variant"].split()[0] for row in rows})
        values = {"f32": 32, "bf16": 16, "f16": 16, "int8": 8.125, "two": 2.25, "sign": 1.125,
                  "int4": 4.125, "int3": 3.125}
        self.assertEqual({row["variant"].split()[1] for row in rows}, set(values))
        self.assertEqual({row["input"] for row in rows}, {"", "list", "fibres", "part"})
        for row in rows:
            value = values[row["variant"].split()[1]]
            self.assertGreaterEqual(row["bits_per_nonzero"], value)
            if row["variant"].startswith("raw") and row["size_bytes"] == 65536:
                raw = 8 * (row["wire_bytes"] - 64) / row["nonzeros"]
                self.assertAlmostEqual(raw, 32 + value, delta=1)

    def test_encode_and_decode(self):
        encoded = self.document("encode")
        decoded = self.document("decode")
        self.check_payload(encoded)
        self.assertEqual([(row["variant"], row["wire_bytes"]) for row in encoded],
                         [(row["variant"], row["wire_bytes"]) for row in decoded])

    def test_sum(self):
        rows = self.document("sum")
        self.assertLessEqual({"merge", "dense", "dense-add"}, {row["variant"] for row in rows})

    def test_handover(self):
        rows = self.document("handover")
        seen = {(row["variant"], row["input"], row["density"]) for row in rows}
        self.assertEqual(seen, {(mode, ranks, density) for mode in ("awake", "asleep", "busy")
                                for ranks in ("1 rank", "2 ranks") for density in (1, 0.01)})
        targets = {row["variant"]: row["target_us"] for row in rows}
        self.assertEqual(targets, {"awake": 10, "asleep": 100, "busy": 50})
        for row in rows:
            steps = {"awake": 40, "asleep": 2, "busy": 4}[row["variant"]]
            ranks = int(row["input"].split()[0])
            self.assertEqual(len(row["time_us"]["samples"]), steps * ranks)

    def test_round(self):
        rows = self.document("round")
        self.assertEqual({row["variant"] for row in rows}, {"dense", "adtopk"})
        for row in rows:
            self.assertEqual(len(row["time_us"]["samples"]), 3)
            self.assertGreater(row["wire_bytes"], 0)
            self.assertGreater(row["cpu_us"], 0)
        self.assertEqual({row["tensors"] for row in rows}, {1, 7})
        dense = [row["wire_bytes"] for row in rows if row["density"] == 1]
        sparse = [row["wire_bytes"] for row in rows if row["density"] == 0.01]
        self.assertTrue(all(few < many for few, many in zip(sparse, dense)))

    def test_link(self):
        rows = self.document("link")
        self.assertEqual({row["variant"] for row in rows}, {"plain", "curve", "curve-control"})

    def test_overtake(self):
        rows = self.document("overtake")
        self.assertEqual([row["variant"] for row in rows], ["in order", "priority", "other job"])


class Program(unittest.TestCase):
    def test_text(self):
        done = run("sum", "encode", "--size", "64K", "--iterations", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        lines = done.stdout.splitlines()
        self.assertLess(max(map(len, lines)), 101)
        headings = [line for line in lines if re.match(r"# what +size +count +type", line)]
        self.assertEqual(len(headings), 2)
        self.assertTrue(any(re.match(r"dense-add +65536 +16384 +f32 +1 ", line) for line in lines))

    def test_help(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for word in [*TINY, "--density", "--json", "hot-block", "asleep", "bitmap"]:
            self.assertIn(word, done.stdout)
        self.assertLess(max(map(len, done.stdout.splitlines())), 101)
        self.assertIn("adtopk-perf ", run("--version").stdout)

    def test_usage(self):
        for arguments in ([], ["nonsense"], ["select", "--iterations", "0"],
                          ["select", "--lists", "2"], ["select", "--distribution", "flat"]):
            done = run(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertTrue(done.stderr.startswith("adtopk-perf: "), done.stderr)
            self.assertEqual(done.stdout, "")

    def test_no_daemon(self):
        done = run("handover", "--daemon", "/nonexistent/adtopkd")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/nonexistent/adtopkd", done.stderr)
        self.assertEqual(folders(done.pid), [])
        done = run("handover", "--daemon", "/bin/false")
        self.assertEqual(done.returncode, 1)
        self.assertIn("adtopkd does not start", done.stderr)
        self.assertEqual(folders(done.pid), [])

    def test_full_device(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([program(), "sum", "--size", "4K", "--iterations", "1"],
                                  stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                                  check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot write", done.stderr)

    def start(self, *arguments):
        """Starts a long run; returns it with its folder once its daemons are there."""
        process = subprocess.Popen([program(), *arguments], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True,
                                   preexec_fn=die_with_parent)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        folder = None
        while folder is None or not os.path.exists(os.path.join(folder, "0.sock")):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
            folder = next(iter(folders(process.pid)), None)
        time.sleep(0.3)
        return process, folder

    def processes(self, folder):
        """The ids of the processes that have the folder on their command line."""
        listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True,
                                check=True).stdout.splitlines()
        return [int(line.split()[0]) for line in listed if folder in line]

    def check_gone(self, folder):
        deadline = time.monotonic() + 60
        while self.processes(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(self.processes(folder), [])

    def interrupt(self, number, *arguments):
        process, folder = self.start(*arguments)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, error)
        self.assertEqual(error, "")
        self.assertFalse(os.path.exists(folder))
        self.check_gone(folder)
        return out

    def test_interrupt(self):
        out = self.interrupt(signal.SIGINT, "round", "--json", "--iterations", "100000")
        self.assertTrue(json.loads(out)["interrupted"])
        out = self.interrupt(signal.SIGTERM, "handover", "--iterations", "1000000")
        self.assertTrue(out.endswith("# interrupted\n"))

    def test_death(self):
        process, folder = self.start("handover", "--iterations", "1000000")
        process.kill()
        process.communicate()
        self.check_gone(folder)  # even so no daemon stays
        shutil.rmtree(folder)
        process, folder = self.start("round", "--iterations", "100000")
        os.kill(self.processes(folder)[0], signal.SIGKILL)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(error, r"^adtopk-perf: rank [01]: .*\w")
        self.assertFalse(os.path.exists(folder))
        self.check_gone(folder)


if __name__ == "__main__":
    unittest.main()
