#!/usr/bin/env python3
"""The bundle for machines with GPUs: it trains digits in a root that holds nothing but glibc,
/proc and /dev/null, and its kernels run over the library that stands in for the driver.

usage: test_bundle.py BUILD [unittest's arguments]; skips (77) without root, which chroot() needs.
"""
import glob
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import digits
from build import BUILD
from cluster import PATIENCE, die_with_parent, free_ports

BUNDLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../gpu/bundle")
LIBRARY = os.path.join(BUILD, "tests", "cuda", "driver", "libstandin-kernels.so")
LIMIT = 40 << 20
NAME = "adtopk-gpu"
STEPS = 120
NCCL = os.path.join(BUILD, "tests", "cuda", "nccl", "libstandin-nccl.so")
# Programs of a machine with GPUs. compute-sanitizer runs one test, finds a fault in another one, and
# looks at how it is called for the rest.
FAKES = {
    "nvidia-smi": """
[ "$1" != --list-gpus ] || printf '%s\\n' 0 1 2 3""",
    "compute-sanitizer": """
[ "$1 $3 $4" = "--tool --error-exitcode 9" ] && [ -x "$5" ] && [ "$6 $7" = "2003 30000" ] || exit 2
case $2-${5##*/} in
    memcheck-gpu_bench) shift 4 && exec "$@" ;;
    racecheck-gpu_take) exit 9 ;;
esac""",
    "nvidia-cuda-mps-control": """
case ${1-$(cat)} in
    -d) touch "$CUDA_MPS_PIPE_DIRECTORY/control" ;;
    quit) rm "$CUDA_MPS_PIPE_DIRECTORY/control" ;;
    *) exit 2 ;;
esac"""}
TORCH = """import time

__version__ = "stand-in"


class Tensor:
    def add_(self, _):
        time.sleep(0.001)

    def abs(self):
        return self

    def gather(self, _, index):
        time.sleep(0.004)

    def scatter_(self, *_):
        pass


class cuda:
    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return (end.at - self.at) * 1e3

    def is_available():
        return True

    def get_device_name():
        return "stand-in"


def zeros(elements, device):
    return Tensor()


randn = zeros


def topk(tensor, k, sorted):
    return tensor, tensor
"""


def glibc():
    """Its loader and libraries."""
    libc = subprocess.run(["ldd", sys.executable], capture_output=True, text=True,
                          check=True).stdout
    folder = os.path.dirname(re.search(r"(/\S+/libc\.so\.6)", libc)[1])
    loader = re.search(r"(/lib\S+/ld-linux\S+)", libc)[1]
    names = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
             "libresolv.so.2"]
    return [loader] + [path for path in (os.path.join(folder, name) for name in names)
                       if os.path.exists(path)]


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.root = tempfile.mkdtemp(prefix="adtopk-bundle-", dir="/tmp")
        packed = os.path.join(cls.root, "bundle.tar.xz")
        subprocess.run([BUNDLE, "--build", BUILD, "--out", packed], check=True, capture_output=True)
        cls.size = os.path.getsize(packed)
        with tarfile.open(packed) as bundle:
            bundle.extractall(cls.root)
        os.remove(packed)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.root)

    def start(self, *command, **variables):
        """A program of the bundle, in the root. Its mount of /proc ends with it."""
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c",
             'mount --bind /proc "$1/proc" && shift && LD_LIBRARY_PATH=$LIBRARIES exec chroot "$@"',
             "sh", self.root, self.root, f"/{NAME}/build/{command[0]}", *command[1:]],
            preexec_fn=die_with_parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "LIBRARIES": f"/{NAME}/lib", **variables})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def start_daemons(self):
        """Two nodes; the second is the first one's peer."""
        ports = free_ports(2)
        daemons = [self.start("daemon/adtopkd", "--node", str(node), "--socket",
                              f"/node{node}.sock", "--control-socket", f"/node{node}.control",
                              "--listen", f"tcp://127.0.0.1:{ports[node]}", "--peers",
                              f"{1 - node}=tcp://127.0.0.1:{ports[1 - node]}")
                   for node in (0, 1)]
        deadline = time.monotonic() + PATIENCE
        while len(glob.glob(os.path.join(self.root, "node*.sock"))) < 2:
            if time.monotonic() > deadline:
                for daemon in daemons:
                    daemon.kill()
                self.fail([daemon.stdout.read() for daemon in daemons])
            time.sleep(0.05)
        return daemons

    def test_is_small(self):
        self.assertLess(self.size, LIMIT)

    @unittest.skipUnless(os.geteuid() == 0, "chroot() needs root")
    def test_trains_where_there_is_only_glibc(self):
        for path in glibc():
            os.makedirs(os.path.join(self.root, os.path.dirname(path)[1:]), exist_ok=True)
            shutil.copy(path, os.path.join(self.root, path[1:]))
        for folder in ("dev", "proc"):
            os.mkdir(os.path.join(self.root, folder))
        os.mknod(os.path.join(self.root, "dev/null"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        digits.unpack(self.root)
        daemons = self.start_daemons()
        ranks = [self.start("client/adtopk-digits", "--data", "/digits.csv", "--rank", str(rank),
                            "--world", "2", "--steps", str(STEPS), "--job", "digits",
                            ADTOPK_ADDRESS=f"unix:/node{rank}.sock") for rank in (0, 1)]
        digits.parameters(self, ranks)
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
            self.assertEqual(daemon.wait(timeout=PATIENCE), 0, daemon.stdout.read())

    def run_part(self, *options, **variables):
        return subprocess.run(
            [os.path.join(self.root, NAME, "tests/gpu/run"), "--out",
             os.path.join(self.root, self.id()), *options], env={**os.environ, **variables},
            capture_output=True, text=True, check=False)

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_parts_and_rows(self):
        """A part says what its rows did, and does them once."""
        for result in ("passed", "done before"):
            done = self.run_part("--part", "kernels", "--brief", ADTOPK_CUDA_LIBRARY=LIBRARY)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertRegex(done.stdout, f"(?m)^whole +{result}$")
        with open(os.path.join(self.root, self.id(), "kernels/whole.txt"), encoding="utf-8") as text:
            self.assertIn("(stand-in 0)", text.read())

    def run_gpu_part(self, part, fakes=None):
        """A part, in brief, as on a machine with four GPUs. Returns {row: what is said of it}."""
        folder = os.path.join(self.root, self.id(), "fakes")
        os.makedirs(folder, exist_ok=True)
        for name, text in (fakes or FAKES).items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as program:
                program.write("#!/bin/sh" + text + "\n")
            os.chmod(path, 0o755)
        done = self.run_part("--part", part, "--brief", PATH=f"{folder}:{os.environ['PATH']}",
                             ADTOPK_CUDA_LIBRARY=LIBRARY, ADTOPK_TEST_CUDA_DEVICES="4",
                             ADTOPK_TEST_CUDA_GRANULE=str(64 << 10),
                             ADTOPK_NCCL_LIBRARY=NCCL, ADTOPK_TEST_NCCL_DIR=self.root)
        rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        self.assertEqual(done.returncode, any("FAILED" in said for said in rows.values()), done.stderr)
        return rows

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_daemon_and_nccl(self):
        """What integration tests do on a machine with GPUs."""
        for part, rows in (("daemon", ("same-bits", "workers-killed", "changes", "restarts", "streams", "mps")),
                           ("nccl", ("two-gpus", "four-gpus", "one-gpu"))):
            self.assertEqual(self.run_gpu_part(part), dict.fromkeys(rows, "passed"))

    def test_two_ranks_on_one_gpu(self):
        """Where NCCL refuses them the row says so, and is no failure. Another fault is one."""
        for said, expected in (("Duplicate GPU detected", "^skipped: NCCL 2.28.3 refuses two ranks on one"),
                               ("invalid usage", "^FAILED with 1: ")):
            rows = self.run_gpu_part("nccl", {"nvidia-smi": FAKES["nvidia-smi"].replace("0 1 2 3", "0"),
                                              "python3": f"\necho 'NCCL 2.28.3'; echo '{said}'; exit 1"})
            self.assertRegex(rows["one-gpu"], expected)

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_sanitize(self):
        rows = self.run_gpu_part("sanitize")
        self.assertEqual(len(rows), 3 * 7)
        self.assertRegex(rows.pop("racecheck-take"), "^FAILED with 9: ")
        self.assertEqual(set(rows.values()), {"passed"})

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_figures(self):
        done = self.run_part("--part", "bench", "--brief", ADTOPK_CUDA_LIBRARY=LIBRARY)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        measured = []
        for row in "brief", "brief-handover":
            with open(os.path.join(self.root, self.id(), f"bench/{row}.txt"), encoding="utf-8") as text:
                document = json.load(text)
            self.assertIn("stand-in 0", document["device"])
            measured += document["rows"]
        printed = re.findall(r"(?m)^  \S+ .* ([0-9.]+) us, floor +([0-9.]+) us, ratio ([0-9.]+)$",
                             done.stdout)
        self.assertEqual(len(printed), len(measured))
        for row, figures in zip(measured, printed):
            self.assertEqual(figures[:2], (f'{row["time_us"]["median"]:.1f}',
                                           f'{row["floor_us"]["median"]:.1f}'))

    def test_torch_idiom(self):
        """Each of its figures has a floor of the same run, and their ratio. Sleeping stands in for
        kernels: one millisecond for the floor, four more for the rest."""
        folder = os.path.join(self.root, "torch")
        os.mkdir(folder)
        with open(os.path.join(folder, "torch.py"), "w", encoding="utf-8") as text:
            text.write(TORCH)
        done = self.run_part("--part", "torch", "--brief", PYTHONPATH=folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.root, self.id(), "torch/idiom.txt"), encoding="utf-8") as text:
            device, *rows = [json.loads(line) for line in text]
        self.assertEqual(device["device"], "stand-in")
        self.assertEqual([row["density"] for row in rows], [0.001, 0.01])
        for row in rows:
            self.assertGreaterEqual(row["floor_us"], 1000)
            self.assertGreaterEqual(row["median_us"], 5000)
            self.assertAlmostEqual(row["ratio"], row["median_us"] / row["floor_us"], places=2)

    def test_what_is_wrong(self):
        failed = self.run_part("--part", "kernels", "--brief", ADTOPK_CUDA_LIBRARY="/nowhere.so")
        self.assertEqual(failed.returncode, 1)
        self.assertRegex(failed.stdout, "(?m)^whole +FAILED with 1: ")
        skipped = self.run_part("--part", "nccl")
        self.assertEqual(skipped.returncode, 0, skipped.stdout)
        self.assertIn("skipped: there are 0 GPUs, and 2 are needed", skipped.stdout)
        wrong = self.run_part("--part", "all")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn('no part "all"', wrong.stderr)


if __name__ == "__main__":
    unittest.main()
