#!/usr/bin/env python3
"""The examples for PyTorch: two processes on two nodes.

usage: test_examples.py BUILD [unittest's arguments]
"""
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import interpreter

interpreter.use("numpy", "torch")

from torchranks import PYTHON, SECONDS, TorchScene  # noqa: E402

EXAMPLES = os.path.join(interpreter.ROOT, "client/examples/torch")
DENSE = '{"sparsifier": "dense", "dense_values": "f32"}'
LONG = bool(os.environ.get("ADTOPK_TEST_LONG"))


class Examples(TorchScene):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="adtopk-examples-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, name, *arguments):
        self.script = os.path.join(EXAMPLES, name)
        return self.ranks(*arguments)

    def train(self, name, *arguments):
        """What rank 0 prints at the end."""
        with self.start(name, *arguments) as processes:
            outputs = [process.communicate(timeout=SECONDS) for process in processes]
            self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        return json.loads(outputs[0][0])

    def refused(self, name, words, *arguments):
        with self.start(name, *arguments) as processes:
            errors = processes[0].communicate(timeout=SECONDS)[1]
            self.assertNotEqual(processes[0].returncode, 0)
            self.assertIn(words, errors)
            self.assertNotIn("Traceback", errors)

    def until(self, condition):
        deadline = time.monotonic() + SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    @staticmethod
    def stopped_when_saved(processes, path):
        """Stops both ranks. False, and they go on, if not both have saved, or one is about to."""
        if not (os.path.exists(path + ".0") and os.path.exists(path + ".1")):
            return False
        for process in processes:
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
        if not (os.path.exists(path + ".0.new") or os.path.exists(path + ".1.new")):
            return True
        for process in processes:
            process.send_signal(signal.SIGCONT)
        return False

    def images(self, count, extra=b""):
        """A folder of files in CIFAR-100's binary format."""
        draw = random.Random(1)
        for name in ("train.bin", "test.bin"):
            with open(os.path.join(self.folder, name), "wb") as file:
                for _ in range(count):
                    file.write(bytes([draw.randrange(20), draw.randrange(100)]) + draw.randbytes(3072))
                file.write(extra)
        return self.folder

    def lines(self, count, fields):
        """A CSV file."""
        path = os.path.join(self.folder, "lines")
        with open(path, "w", encoding="ascii") as file:
            file.write((",".join("1" * fields) + "\n") * count)
        return path

    def test_help_names_sizes(self):
        for name, words in (("gpt.py", "--layers 12"), ("cifar.py", "--width 64")):
            done = subprocess.run([PYTHON, os.path.join(EXAMPLES, name), "--help"], stdout=subprocess.PIPE,
                                  text=True, check=True)
            self.assertIn(words, " ".join(done.stdout.split()))

    def test_killed_and_resumed(self):
        """It ends with the same numbers as a training that nobody has killed."""
        arguments = ["--steps", "16", "--save-every", "4", "--policy", DENSE, "--accumulate", "2",
                     "--layers", "1", "--width", "32", "--clip", "1"]
        whole = self.train("gpt.py", *arguments)
        path = os.path.join(self.folder, "saved")
        arguments += ["--checkpoint", path, "--log", os.path.join(self.folder, "log")]
        with self.start("gpt.py", *arguments) as processes:
            self.until(lambda: self.stopped_when_saved(processes, path))
            for process in processes:
                process.send_signal(signal.SIGKILL)
        shutil.copy(path + ".0", path + ".old")
        resumed = self.train("gpt.py", *arguments)
        self.assertEqual(resumed["bits_per_byte"], whole["bits_per_byte"])
        self.assertLess(resumed["bits_per_byte"], 8)
        self.assertLessEqual(resumed["steps"], 12)
        with open(os.path.join(self.folder, "log"), encoding="utf-8") as file:
            self.assertEqual(json.loads(file.readlines()[-2])["step"], 16)
        os.replace(path + ".old", path + ".0")
        self.refused("gpt.py", "and those of ranks 0, 1, ... are of [", *arguments)

    def test_asked_for_a_checkpoint(self):
        """It saves with state_dict(), and says so when all ranks have their files."""
        path = os.path.join(self.folder, "asked")
        with self.start("gpt.py", "--steps", "1000000", "--save-every", "1000000", "--layers", "1",
                        "--width", "32", "--checkpoint", path) as processes:
            self.until(lambda: any(job["steps_done"] for job in self.cluster.status(0)["jobs"]))
            job = self.cluster.status(0)["jobs"][0]["name"]
            code, _, error = self.cluster.daemons[0].ask("checkpoint", "ask", job, timeout=SECONDS)
            saved = [os.path.exists(f"{path}.{rank}") for rank in range(2)]
            for process in processes:
                process.kill()
        self.assertEqual((code, saved), (0, [True, True]), error)

    def test_local_steps_with_checkpoints(self):
        """Each checkpoint exchanges first: here after steps 3 and 6, beside those after 2, 5 and 8."""
        path = os.path.join(self.folder, "saved")
        final = self.train("gpt.py", "--exchange", "local", "--every", "2", "--steps", "8", "--save-every", "3",
                           "--layers", "1", "--width", "32", "--checkpoint", path)
        self.assertEqual(final["steps"], 5)
        self.assertTrue(os.path.exists(path + ".1"))

    def test_images(self):
        final = self.train("cifar.py", "--data", self.images(40), "--steps", "6", "--exchange", "hook",
                           "--batch", "4", "--amp")
        self.assertEqual((final["steps"], final["world"]), (6, 2))
        self.assertTrue(0 <= final["test_accuracy"] <= 1)

    def test_refusals(self):
        self.refused("cifar.py", "not CIFAR-100's binary format", "--data", self.images(3, b"x"))
        self.refused("gpt.py", "No such file", "--text", "/nowhere")
        self.refused("gpt.py", "this is no JSON", "--policy", "{density: 1}")
        for exchange in ("optimizer", "hook"):
            self.refused("gpt.py", "densty", "--policy", '{"densty": 1}', "--exchange", exchange)
        self.refused("cifar.py", "must be above 0", "--synthetic", "--lr", "nan")
        self.refused("digits.py", "No such file", "--data", "/nowhere")
        self.refused("digits.py", "has not 64 pixels", "--data", self.lines(6, 3))
        self.refused("digits.py", "--batch 1 is less", "--data", self.lines(6, 65), "--batch", "1")
        self.refused("cifar.py", "either --data or --synthetic")
        with open(os.path.join(self.folder, "short"), "wb") as file:
            file.write(b"too short")
        self.refused("gpt.py", "too few for --context", "--text", os.path.join(self.folder, "short"))

    def test_without_a_launcher(self):
        for status, words, name, *arguments in (
                (1, r"^gpt.py: .* RANK expected.*; .* torchrun --nproc_per_node=2 \S+\n$", "gpt.py"),
                (2, r"digits.py: error: .* RANK: torchrun --nproc_per_node=2", "digits.py", "--data", "/nowhere")):
            done = subprocess.run([PYTHON, os.path.join(EXAMPLES, name), *arguments], stderr=subprocess.PIPE,
                                  text=True, timeout=SECONDS, check=False)
            self.assertEqual(done.returncode, status)
            self.assertRegex(done.stderr, words)
            self.assertNotIn("Traceback", done.stderr)

    @unittest.skipUnless(LONG, "a long one")
    def test_benchmark(self):
        """It measures both models, and the hook's own cost is not nothing."""
        done = subprocess.run([os.path.join(interpreter.ROOT, "tests/bench/torch/hook"), "--build",
                               interpreter.BUILD, "--steps", "3", "--torch", PYTHON],
                              capture_output=True, text=True, timeout=SECONDS, check=True)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        self.assertEqual([row[:2] for row in rows], [["encoder", "288"], ["tiny", "1000"]])
        self.assertTrue(all(float(row[4]) > 0 for row in rows), rows)

    @unittest.skipUnless(LONG, "a long one")
    def test_learning(self):
        """In few steps each way to exchange learns nearly as well as gloo."""
        for name, measure, worse, arguments in (
                ("gpt.py", "bits_per_byte", 1.2, ["--lr", "6e-3"]),
                ("gpt.py", "bits_per_byte", 1.1, ["--exchange", "local", "--every", "5"]),
                ("cifar.py", "test_accuracy", 0.7,
                 ["--synthetic", "--exchange", "hook", "--policy", '{"density": 0.1}'])):
            with self.subTest(name=name, arguments=arguments):
                data = [one for one in arguments if one == "--synthetic"]
                dense = self.train(name, *data, "--exchange", "gloo")[measure]
                found = self.train(name, *arguments)[measure]
                print(name, *arguments, found, "gloo", dense)
                (self.assertLess if worse > 1 else self.assertGreater)(found, worse * dense)


if __name__ == "__main__":
    unittest.main()
