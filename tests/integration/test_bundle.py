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
esac""",
    # What it makes takes a second, and its floor a tenth of one.
    "nvcc": """
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh\necho '"'"'{"elements": 65536, "density": 0.01, "median_us": 1e6, "floor_us": 1e5}'"'" >"$2"
chmod +x "$2" """}
CONTEXT = 100 << 20  # bytes
ROWS = ["payload", "post", "restart", "context", "context-mps", "overlap", "overlap-mps", "cub"]
FIGURE = (r" +([0-9.]+) (us|ms|MiB)(?:, floor +([0-9.]+) \2, ratio ([0-9.]+))?"
          r"(?:, target +([0-9.]+) \2, ratio ([0-9.]+))?$")
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
            self.assertRegex(done.stdout, f"(?m)^whole +{result}\n(.*\n)*occupancy +{result}$")
        with open(os.path.join(self.root, self.id(), "kernels/whole.txt"), encoding="utf-8") as text:
            self.assertIn("(stand-in 0)", text.read())
        with open(os.path.join(self.root, self.id(), "kernels/occupancy.txt"), encoding="utf-8") as text:
            self.assertRegex(text.read(), r"(?m)^add_stream +3.0 blocks, floor +2.0 blocks, ratio 1.500\n"
                             r"  80 registers, 0 bytes of shared and 0 of local memory, occupancy 0.375$")

    def path_with(self, fakes):
        """The PATH with these programs in front."""
        folder = os.path.join(self.root, self.id(), "fakes")
        os.makedirs(folder, exist_ok=True)
        for name, text in fakes.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as program:
                program.write("#!/bin/sh" + text + "\n")
            os.chmod(path, 0o755)
        return f"{folder}:{os.environ['PATH']}"

    def run_gpu_part(self, part, fakes=None):
        """A part, in brief, as on a machine with four GPUs. Returns {row: what is said of it}."""
        done = self.run_part("--part", part, "--brief", PATH=self.path_with(fakes or FAKES),
                             ADTOPK_CUDA_LIBRARY=LIBRARY, ADTOPK_TEST_CUDA_DEVICES="4",
                             ADTOPK_TEST_CUDA_GRANULE=str(64 << 10),
                             ADTOPK_NCCL_LIBRARY=NCCL, ADTOPK_TEST_NCCL_DIR=self.root)
        rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
        self.assertEqual(done.returncode, any("FAILED" in said for said in rows.values()), done.stderr)
        return rows

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_daemon_and_nccl(self):
        """What integration tests do on a machine with GPUs."""
        daemon = ("same-bits", "workers-killed", "changes", "restarts", "kept", "returns", "moves", "streams",
                  "lists", "ahead", "several-gpus", *(["unit"] if shutil.which("systemd-analyze") else []), "mps")
        for part, rows in ("daemon", daemon), ("nccl", ("two-gpus", "four-gpus", "one-gpu")):
            found = self.run_gpu_part(part)
            self.assertEqual({row: found[row] for row in rows}, dict.fromkeys(rows, "passed"))

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
        done = self.run_part("--part", "bench", "--brief", ADTOPK_CUDA_LIBRARY=LIBRARY,
                             PATH=self.path_with(FAKES), ADTOPK_TEST_CUDA_CONTEXT=str(CONTEXT),
                             ADTOPK_TEST_CUDA_ACCOUNTS=os.path.join(self.root, "accounts"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_measurements(done.stdout)
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

    def figures(self, stdout, what):
        """Of a line: the figure; floor, ratio, target, ratio, or None."""
        found = re.search(rf"(?m)^  {what}{FIGURE}", stdout)
        self.assertIsNotNone(found, f"{what} is not in {stdout}")
        return [float(one) if one else None for one in found.group(1, 3, 4, 5, 6)]

    def check_measurements(self, stdout):
        """Each row has passed, and its figures stand beside a floor or a target, and their ratio."""
        for row in ROWS:
            self.assertRegex(stdout, f"(?m)^{row} +passed$")
        for what, target in (("payload of 2500 entries", 60),
                             ("post to the end of a first kernel, awake", 20),
                             ("post to the end of a first kernel, asleep", 20)):
            time, floor, ratio, wanted, far = self.figures(stdout, what)
            self.assertEqual(wanted, target)
            self.assertAlmostEqual(ratio, time / floor, delta=0.02 * ratio)
            self.assertAlmostEqual(far, time / target, delta=0.02 * far)
        took, _, _, wanted, _ = self.figures(stdout, "SIGKILL to the next worker, ready: longest")
        self.assertGreater(took, 1)  # a process was started
        self.assertEqual(wanted, 3000)
        self.assertEqual(self.figures(stdout, "context of a worker")[0], 100)
        self.assertEqual(stdout.count("  context of a worker"), 2)
        alone = [self.figures(stdout, f"{side}'s kernels alone")[0] for side in ("trainer", "worker")]
        both, floor = self.figures(stdout, "trainer's and worker's at once")[:2]
        self.assertEqual(floor, max(alone))
        self.assertGreater(both, 0)
        self.assertRegex(stdout, r"(?m)^  lost overlap .* % of the shorter$")
        took = re.search(r"cub_topk 65536 0.01: 1000000.0 us, floor 100000.0 us; pass ([0-9.]+) us, floor "
                         r"[0-9.]+ us; ratio ([0-9.]+), at least 1.3", stdout)
        self.assertAlmostEqual(float(took[2]), 1e6 / float(took[1]),
                               delta=0.001 + 0.01 * float(took[2]))  # it has three decimals

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_measurements_that_fail(self):
        """A GPU that is not there, or that fails, fails the rows. A compiler without CUB's top-k does not."""
        fakes = {**FAKES, "nvcc": "\necho 'cub/device/device_topk.cuh: No such file'; exit 1"}
        done = self.run_part("--part", "bench", "--brief", ADTOPK_CUDA_LIBRARY=LIBRARY,
                             PATH=self.path_with(fakes), ADTOPK_TEST_CUDA_FAIL="cuLaunchKernel:2:700")
        self.assertEqual(done.returncode, 1)
        for row, said in (("overlap", "FAILED"), ("overlap-mps", "FAILED"), ("brief", "FAILED"),
                          ("context", "passed"), ("cub", "skipped: the CUB of .*nvcc has no top-k")):
            self.assertRegex(done.stdout, f"(?m)^{row} +{said}")
        self.assertIn("  what a context takes is not known\n", done.stdout)
        with open(os.path.join(self.root, self.id(), "bench/overlap.txt"), encoding="utf-8") as text:
            self.assertIn("cuLaunchKernel on GPU-", text.read())

    @unittest.skipUnless(os.path.exists(LIBRARY), "the kernels do not run here")
    def test_torch_idiom(self):
        """Each of its figures has a floor of the same run, and their ratio. Sleeping stands in for
        kernels: one millisecond for the floor, four more for the rest."""
        folder = os.path.join(self.root, "torch")
        os.mkdir(folder)
        with open(os.path.join(folder, "torch.py"), "w", encoding="utf-8") as text:
            text.write(TORCH)
        done = self.run_part("--part", "torch", "--brief", PYTHONPATH=folder, ADTOPK_CUDA_LIBRARY=LIBRARY)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.root, self.id(), "torch/idiom.txt"), encoding="utf-8") as text:
            lines = text.read().splitlines()
        device, *rows = [json.loads(line) for line in lines[:3]]
        self.assertEqual(device["device"], "stand-in")
        self.assertEqual([row["density"] for row in rows], [0.001, 0.01])
        for row in rows:
            self.assertGreaterEqual(row["floor_us"], 1000)
            self.assertGreaterEqual(row["median_us"], 5000)
            self.assertAlmostEqual(row["ratio"], row["median_us"] / row["floor_us"], places=2)
        for line, row in zip(lines[3:], rows, strict=True):
            took = re.search(r"pass ([0-9.]+) us, floor [0-9.]+ us; ratio ([0-9.]+), at least 3.3$", line)
            self.assertAlmostEqual(float(took[2]), row["median_us"] / float(took[1]),
                                   delta=0.001 + 0.01 * float(took[2]))  # it has three decimals
            self.assertIn(f"\n  {line}\n", done.stdout)

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
