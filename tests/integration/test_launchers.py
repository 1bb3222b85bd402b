#!/usr/bin/env python3
"""The launch lines of our documents, as they are written: torchrun, mpirun and srun start ranks on two
machines, which are namespaces of this one.

usage: test_launchers.py BUILD [unittest's arguments]; skips (77) where no such machines can be made.

A test whose launcher is not here is skipped by name. All runs measure less and train shorter than the lines
say. A usual run takes one line of torchrun, which loads PyTorch for seconds; with ADTOPK_TEST_LONG=1 all
lines run, and the trainers of PyTorch.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

from build import BUILD
from launchers import ROOT, SLURM, Machines
from machine import Impossible

LONG = "ADTOPK_TEST_LONG" in os.environ
SECONDS = 300
BRIEF = {"adtopk-perf": "--max 16K --iterations 2", "adtopk-digits": "--steps 20",
         "digits.py": "--steps 20", "gpt.py": "--steps 20", "cifar.py": "--steps 4"}
LAUNCH = re.compile(r'(?:^ {4}|^usage: |^ {7}|\(f?")((?:torchrun|mpirun|srun) [^"\n#]*)', re.MULTILINE)
PER_NODE = re.compile(r"(?:per.node[ =]|node0:|-n )(\d)\b")
TORCHRUN = shutil.which("torchrun")
MACHINES = None


def launch_lines():
    """The commands of all documents."""
    lines = []
    for pattern in ("README.md", "deploy/*.md", "deploy/man.py", "client/**/*.md", "client/examples/torch/*.py",
                    "tests/bench/**/*.md"):
        for name in glob.glob(os.path.join(ROOT, pattern), recursive=True):
            with open(name, encoding="utf-8") as file:
                text = re.sub(r"\s*\\\n\s*", " ", file.read())
            for line in LAUNCH.findall(text):
                line = line.replace("{trainer}", "adtopk-digits").replace("{data}", "digits.csv")
                lines.append(re.sub(r" (\[OPTION\].*|  .*)", "", line).strip())  # what follows a usage
    return lines


def program(line):
    return next(name for name in BRIEF if name in line)


def small_images(folder):
    """CIFAR-100 of 40 black images, in its binary format."""
    os.mkdir(folder)
    for name in ("train.bin", "test.bin"):
        with open(os.path.join(folder, name), "wb") as out:
            out.write(bytes(40 * 3074))


class Launch(unittest.TestCase):
    def launch(self, launcher, *names, most=None):
        """Runs each line of this launcher that starts one of these programs."""
        lines = [line for line in launch_lines() if line.split()[0] == launcher and program(line) in names]
        self.assertTrue(lines)
        for line in lines[:most]:
            with self.subTest(line):
                self.run_line(line)

    def run_line(self, line):
        for left in glob.glob(os.path.join(MACHINES.folder, "gpt*")):
            os.unlink(left)  # a training that goes on has a world of its own
        command = f"{line} {BRIEF[program(line)]}".replace("/tmp/", f"{MACHINES.folder}/")
        if "scontrol" in line:
            command = f"salloc --nodes=2 sh -c '{command}'"
        # torchrun is run on each machine, another launcher on one of them.
        nodes = (0, 1) if line.startswith("torchrun --nnodes 2") else (0,)
        before = self.sessions()
        processes = [MACHINES.start(node, command) for node in nodes]
        printed = [process.communicate(timeout=SECONDS)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0] * len(nodes), printed)
        begun = [new - old for new, old in zip(self.sessions(), before)]
        ranks = int(PER_NODE.search(line + " -n 1")[1])
        both = re.search("nodes|node1", line) is not None
        self.assertGreaterEqual(begun[0], ranks, printed)
        self.assertGreaterEqual(begun[1], ranks * both, printed)
        print(f"{line}: {ranks} ranks per node", flush=True)

    @staticmethod
    def sessions():
        """How many ranks have joined a job on each machine until now. A rank may join several."""
        return [len(re.findall("session .* is ready", daemon.log())) for daemon in MACHINES.cluster.daemons]

    def need(self, found, what):
        if not found:
            self.skipTest(what)

    def test_torchrun(self):
        self.need(TORCHRUN, "no torchrun here (package python3-torch)")
        self.launch("torchrun", "adtopk-digits", "adtopk-perf", most=None if LONG else 1)

    def test_mpirun(self):
        self.need(shutil.which("mpirun"), "no mpirun here (package openmpi-bin)")
        self.launch("mpirun", "adtopk-perf", "adtopk-digits")

    def test_srun(self):
        self.need(os.path.isdir(SLURM), "no Slurm here (deploy/setup test fetches it)")
        MACHINES.start_slurm()
        self.launch("srun", "adtopk-perf", "adtopk-digits")
        if LONG and TORCHRUN:
            self.launch("srun", "gpt.py")

    @unittest.skipUnless(LONG, "a long one")
    def test_torchrun_of_pytorch(self):
        self.need(TORCHRUN, "no torchrun here (package python3-torch)")
        self.launch("torchrun", "digits.py", "gpt.py", "cifar.py")


if __name__ == "__main__":
    try:
        with Machines() as MACHINES:
            os.symlink(os.path.join(ROOT, "client"), os.path.join(MACHINES.folder, "client"))
            with open(os.path.join(MACHINES.folder, "digits.csv"), "wb") as out:
                subprocess.run(["gunzip", "-c", f"{ROOT}/tests/data/digits.csv.gz"], stdout=out, check=True)
            if LONG:
                small_images(os.path.join(MACHINES.folder, "cifar-100-binary"))
            unittest.main()
    except Impossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
