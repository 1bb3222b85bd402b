#!/usr/bin/env python3
"""deploy/quickstart: the whole of it, its checks, its failures, and that nothing stays running.

usage: test_quickstart.py BUILD [unittest's arguments]

Short trainings use the programs of BUILD; made-up programs stand in where a run has to end in a
way that real ones do not.
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import uuid

from build import BUILD

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
QUICKSTART = os.path.join(ROOT, "deploy", "quickstart")
MARK = "QUICKSTART_TEST"  # a variable in the environment of whatever a test starts

FAKE_DAEMON = """#!/bin/sh
touch "${2%.json}.control"
exec sleep 60
"""
# As in a real cluster, no node sees its peer before both daemons run.
FAKE_CONTROL = """#!/bin/sh
[ -e "${2%/*}/node0.control" ] && [ -e "${2%/*}/node1.control" ] || exit 3
echo '{"schema": 1, "jobs": [{"name": "x", "steps": 2, "dense_bytes": 4000,
 "wire_bytes_sent": 100, "sparse_bytes_sent": 80, "nonzeros_sent": 20,
 "phase_seconds": {"select": 0, "exchange": 0, "reduce": 0, "settle": 0}}]}'
"""
# Trains nothing, but ends as the trainer does.
FAKE_TRAINER = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in --log) log=$2 ;; --rank) rank=$2 ;; esac
    shift
done
seconds='"seconds": {"compute": 0.1, "wait": 0.1, "apply": 0.1}'
[ "$rank" -ne 0 ] || echo '{"step": 0, "loss": 1, '"$seconds"'}
{"final": true, "world": 4, "test_accuracy": ACCURACY, "test_loss": 0, "training_seconds": 1}' >"$log"
echo "rank $rank: parameters PARAMETERS"
"""


def prepare():
    """In the child: Ctrl-C works even where the tests were started in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes(mark):
    """Returns the command lines of what runs with this mark, by process id."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = f"{MARK}={mark}".encode() in file.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended, or is somebody else's
        if marked and command:
            found[int(pid)] = command
    return found


class Quickstart(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk quick ", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        self.out = os.path.join(self.directory, "results of it")
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "ADTOPK_LOG_LEVEL": "nonsense"}
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for pid in processes(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, *arguments):
        return subprocess.Popen(
            [QUICKSTART, "--out", self.out, *arguments], cwd="/", env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=prepare)

    def finish(self, process, timeout=600):
        """Returns the exit status and what was printed."""
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill_all()
            output, _ = process.communicate()
            self.fail(f"did not end:\n{output}")
        return process.returncode, output

    def run_it(self, *arguments):
        return self.finish(self.start(*arguments))

    def assert_nothing_left(self, output):
        self.wait_until(lambda: not processes(self.mark), "everything to stop")
        for run in re.findall(r"/tmp/adtopk-quickstart\.\w+", output):
            self.assertFalse(os.path.exists(run), run)

    def wait_until(self, true, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not true():
            self.assertLess(time.monotonic(), deadline, f"waited for {what}")
            time.sleep(0.05)

    def start_long_training(self):
        """Starts a training that would take minutes; returns when it trains."""
        log = os.path.join(self.out, "dense.jsonl")
        if os.path.exists(log):
            os.unlink(log)
        process = self.start("--build", BUILD, "--steps", "100000")
        self.wait_until(lambda: process.poll() is not None or
                        os.path.exists(log) and os.path.getsize(log) > 0, "the training")
        self.assertIsNone(process.poll())
        return process

    def find(self, words):
        """Returns the process id of the only process whose command line has these words."""
        found = [pid for pid, command in processes(self.mark).items() if words in command]
        self.assertEqual(len(found), 1, processes(self.mark))
        return found[0]

    def make_fakes(self, daemon=FAKE_DAEMON, accuracy="0.98", parameters="0123456789abcdef"):
        """Returns a build folder of programs that are shell scripts."""
        trainer = FAKE_TRAINER.replace("ACCURACY", accuracy).replace("PARAMETERS", parameters)
        build = os.path.join(self.directory, "fakes")
        for path, text in [("daemon/adtopkd", daemon), ("client/adtopkctl/adtopkctl", FAKE_CONTROL),
                           ("client/adtopk-digits", trainer)]:
            path = os.path.join(build, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        return build

    # ------------------------------------------------------------------ real programs

    def test_all_of_it(self):
        """But for the build of its own, which test_guide.py has it make."""
        code, output = self.run_it("--keep", "--build", BUILD)
        self.assertEqual(code, 0, output)
        self.assertEqual(len(re.findall("^ok ", output, re.M)), 5, output)
        self.assertIn("test accuracy", output)
        for name in ("plot.svg", "table.txt"):
            self.assertGreater(os.path.getsize(os.path.join(self.out, name)), 500)
        # Somebody types what was printed.
        commands = "\n".join(re.findall(r"^  ((?:export|adtopkctl) .*)", output, re.M))
        tried = subprocess.run(["bash", "-euc", commands], capture_output=True, text=True,
                               timeout=60, check=False)
        self.assertEqual(tried.returncode, 0, tried.stderr)
        self.assertRegex(tried.stdout, r"kept +\S+ +\S+ +active")
        self.assertIn('"nonzeros_sent"', tried.stdout)
        stop = re.search(r"^  (.* --stop .*)", output, re.M).group(1)
        code, refused = self.run_it("--keep", "--build", BUILD)
        self.assertEqual(code, 1, refused)
        self.assertIn(f"what --keep has left still runs: {stop}", refused)
        self.assertEqual(refused.count("\n"), 1, refused)  # it has not begun
        ended = subprocess.run(["bash", "-euc", stop], capture_output=True, text=True, timeout=60,
                               check=True)
        self.assertIn("stopped: 6 processes have ended", ended.stdout)
        self.assert_nothing_left(output)
        again = subprocess.run(["bash", "-euc", stop], capture_output=True, text=True, timeout=60,
                               check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("nothing that --keep has left is noted", again.stderr)

    def test_too_few_steps(self):
        code, output = self.run_it("--build", BUILD, "--steps", "12", "--seed", "7",
                                   "--density", "0.5")
        self.assertEqual(code, 1, output)
        self.assertIn("the accuracy is not judged: 12 steps are too few, 440 are enough", output)
        self.assertEqual(output.count("FAILED"), 1, output)
        self.assertRegex(output, r"FAILED  adtopk 50%: \S+ \S+ sent, to be at most \S+ \S+, 1/40")
        self.assertEqual(len(re.findall("same parameters", output)), 2, output)
        self.assertIn(f"the logs are in {self.out}", output)
        self.assertTrue(os.path.exists(os.path.join(self.out, "plot.svg")))
        self.assertTrue(os.path.exists(os.path.join(self.out, "node1.log")))
        self.assert_nothing_left(output)

    def test_pytorch(self):
        """The same cluster, checks and report, with PyTorch's ranks."""
        code, output = self.run_it("--torch", "--build", BUILD, "--steps", "10")
        if "no Python here has PyTorch" in output:
            self.skipTest("no Python here has PyTorch")
        self.assertEqual(code, 0, output)
        self.assertRegex(output, r"training with PyTorch \d+\.\d+")
        self.assertIn("the accuracy is not judged: 10 steps are too few", output)
        self.assertEqual(len(re.findall("same parameters", output)), 2, output)
        self.assert_nothing_left(output)

    def test_interrupted(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            process = self.start_long_training()
            process.send_signal(number)
            status, output = self.finish(process)
            self.assertEqual(status, code, output)
            self.assertIn("interrupted; everything is stopped", output)
            self.assertIn(f"the logs are in {self.out}", output)
            self.assert_nothing_left(output)

    def test_daemon_dies(self):
        process = self.start_long_training()
        os.kill(self.find("node1.json"), signal.SIGKILL)
        code, output = self.finish(process)
        self.assertEqual(code, 1, output)
        self.assertIn("the daemon of node 1 ended while the dense run trained", output)
        self.assert_nothing_left(output)

    def test_trainer_dies(self):
        process = self.start_long_training()
        os.kill(self.find("--rank 2 "), signal.SIGKILL)
        code, output = self.finish(process)
        self.assertEqual(code, 1, output)
        self.assertIn("the dense run failed", output)
        self.assert_nothing_left(output)

    def test_two_at_once(self):
        process = self.start_long_training()
        code, output = self.run_it("--build", BUILD)
        self.assertEqual(code, 1, output)
        self.assertIn("another quickstart is writing to", output)
        process.terminate()
        self.assertEqual(self.finish(process)[0], 143)

    # ------------------------------------------------------------------ made-up programs

    def test_what_was_kept_has_ended(self):
        """Numbers of its processes may be those of others by now."""
        folder = tempfile.mkdtemp(prefix="adtopk-quickstart.", dir="/tmp")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        os.mkdir(self.out)
        note = os.path.join(self.out, "kept")
        with open(note, "w", encoding="utf-8") as file:
            file.write(f"{folder}\n{os.getpid()} {ended.pid}\n")
        code, output = self.run_it("--keep", "--build", "/nowhere")
        self.assertEqual(code, 1, output)
        self.assertIn("there is no folder /nowhere", output)
        self.assertFalse(os.path.exists(folder))
        self.assertFalse(os.path.exists(note))

    def test_checks(self):
        code, output = self.run_it("--build", self.make_fakes())
        self.assertEqual(code, 0, output)
        self.assertEqual(len(re.findall("^ok ", output, re.M)), 5, output)
        for change, words in [
                ({"accuracy": "0.9"}, "FAILED  adtopk: test accuracy 90.00%"),
                ({"parameters": "0123456789abcde$rank"},
                 "FAILED  dense: the ranks ended with the parameters 0123456789abcde0 "),
                ({"parameters": ""}, "FAILED  sparse: the ranks ended with the parameters")]:
            code, output = self.run_it("--build", self.make_fakes(**change))
            self.assertEqual(code, 1, output)
            self.assertIn(words, output)
            self.assertIn("a check failed", output)
            self.assert_nothing_left(output)

    def test_daemon_does_not_start(self):
        build = self.make_fakes(daemon="#!/bin/sh\necho no luck today >&2\nexit 1\n")
        code, output = self.run_it("--build", build)
        self.assertEqual(code, 1, output)
        self.assertIn("no luck today", output)
        self.assertIn("a daemon did not start", output)
        self.assert_nothing_left(output)

    def test_port_is_taken(self):
        """That of the second daemon, so the first one runs and sees no peer."""
        marker = os.path.join(self.directory, "tried")
        build = self.make_fakes(daemon=FAKE_DAEMON.replace("touch", f"""if [ "${{2%node1.json}}" != "$2" ] && mkdir '{marker}'; then
    echo Address already in use >&2
    exit 1
fi
touch"""))
        code, output = self.run_it("--build", build)
        self.assertEqual(code, 0, output)
        self.assert_nothing_left(output)

    def test_usage(self):
        for arguments in (["--steps", "0"], ["--steps", "many"], ["--density", "0"],
                          ["--density", "1.5"], ["--density", "1e-2"], ["--seed", "-1"],
                          ["--seed"], ["--out", ""], ["--faster"], ["again"]):
            with self.subTest(arguments):
                code, output = self.run_it(*arguments)
                self.assertEqual(code, 2, output)
                self.assertIn("--help lists the options", output)
        code, output = self.run_it("--help")
        self.assertEqual(code, 0)
        self.assertIn("--keep", output)

    def test_wrong_places(self):
        code, output = self.run_it("--build", os.path.join(self.directory, "nowhere"))
        self.assertEqual(code, 1, output)
        self.assertRegex(output, "there is no folder /.*/nowhere")
        code, output = self.run_it("--build", self.directory)
        self.assertEqual(code, 1, output)
        self.assertIn("has no adtopkd", output)
        code, output = self.run_it("--build", BUILD, "--out", "/proc/nothing")
        self.assertEqual(code, 1, output)
        self.assertIn("cannot write to /proc/nothing", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
