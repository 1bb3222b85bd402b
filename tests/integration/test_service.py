#!/usr/bin/env python3
"""adtopkd as a service: a configuration that changes while it runs, signs of life, logs that
cannot be written, many that start at once, and an end that lets steps finish.

usage: test_service.py BUILD [unittest's arguments]
"""
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from cluster import Cluster, die_with_parent, free_ports, take_build
from ranks import Job, Rank, RankError

BUILD = None  # set by main()
NOBODY = 65534
TENSORS = [("first", "f32", "both", (16, 32)), ("last", "f32", "dense", (64, 64))]
LONG = 30  # seconds after which something does not happen any more


def adtopkd():
    return os.path.join(BUILD, "daemon", "adtopkd")


def wait_for(condition, what="it did not happen"):
    deadline = time.monotonic() + LONG
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.02)


class WithDirectory(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="adtopk-", dir="/tmp")
        self.addCleanup(temporary.cleanup)
        self.directory = temporary.name
        os.chmod(self.directory, 0o755)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as out:
            out.write(text)
        return self.path(name)

    def start(self, *arguments, name="a", prepare=die_with_parent, more=None, **options):
        """One daemon, without waiting for anything."""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("ADTOPK_", "WATCHDOG_", "NOTIFY_", "JOURNAL_"))}
        environment.update(more or {})
        process = subprocess.Popen(
            [adtopkd(), "--socket", self.path(f"{name}.sock"), "--control-socket",
             self.path(f"{name}.control"), *arguments], stdin=subprocess.DEVNULL, env=environment,
            preexec_fn=prepare, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        process.terminate()
        self.assertEqual(process.wait(LONG), 0)


class Show(WithDirectory):
    """--check-config and --print-config."""

    def ask(self, *arguments, **more):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("ADTOPK_")}
        return subprocess.run([adtopkd(), *arguments], env={**environment, **more}, text=True,
                              capture_output=True, check=False, timeout=LONG)

    def test_check_warns(self):
        done = self.ask("--check-config", ADTOPK_WROKERS="2", ADTOPK_WORKERS="2")
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "the configuration is correct\n",
                          "adtopkd: warning: there is no setting for the variable "
                          "ADTOPK_WROKERS\n"))

    def test_lines(self):
        config = self.write("c.json", '{"node": 1,\n"policy": {\n"density": 0.1,\n"rules": ['
                            '{"match": "a", "scope": "node"},\n{"match": "b",\n"density": 2}]}}')
        done = self.ask("--check-config", "--config", config)
        self.assertEqual(done.returncode, 1)
        self.assertIn("c.json:6: policy", done.stderr)
        config = self.write("c.json", '{"window": 70000,\n\n"chunk_size": 1000000}')
        done = self.ask("--print-config", "--config", config)
        self.assertIn("c.json:3: chunk_size", done.stderr)
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_print(self):
        config = self.write("c.json", '{"node": 1,\n"window": 70000, "chunk_size": 5000,\n'
                            '"peers": []}')
        done = self.ask("--print-config", "--config", config, "--log-level=debug",
                        ADTOPK_CHUNK_SIZE="6000")
        document = json.loads(done.stdout)
        self.assertEqual((done.returncode, document["schema"], document["file"]), (0, 1, config))
        settings = document["settings"]
        self.assertEqual(settings["window"],
                         {"value": 70000, "source": f"{config}:2", "live": False})
        self.assertEqual(settings["chunk_size"]["source"], "ADTOPK_CHUNK_SIZE")
        self.assertEqual(settings["log_level"],
                         {"value": "debug", "source": "--log-level", "live": True})
        self.assertEqual(settings["socket"]["source"], "default")
        # What is printed can be a configuration again.
        again = self.write("again.json", json.dumps(
            {key: setting["value"] for key, setting in settings.items() if setting["value"]}))
        self.assertEqual(self.ask("--check-config", "--config", again).returncode, 0)


class Reload(WithDirectory):
    """SIGHUP takes a new configuration as a whole, or keeps the old one and says why."""

    def change(self, daemon, **settings):
        """Changes the file: a key is set, or removed with None."""
        with open(daemon.config, encoding="utf-8") as text:
            document = json.load(text)
        document.update(settings)
        document = {key: value for key, value in document.items() if value is not None}
        self.replace(daemon, json.dumps(document, indent=1))

    @staticmethod
    def replace(daemon, text):
        with open(daemon.config + ".new", "w", encoding="utf-8") as out:
            out.write(text)
        os.rename(daemon.config + ".new", daemon.config)

    def hang_up(self, daemon, *expected):
        """Sends SIGHUP; the next answer in the log has all of these words."""
        answer = r"(?:the configuration has been taken|the old configuration stays)[^\n]*\n"
        before = len(re.findall(answer, daemon.log()))
        daemon.signal(signal.SIGHUP)
        wait_for(lambda: len(re.findall(answer, daemon.log())) > before, daemon.log_tail())
        line = re.findall(answer, daemon.log())[before]
        for words in expected:
            self.assertIn(words, line)

    def test_taken_or_kept_while_training(self):
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "train", [0, 1], TENSORS) as job:
            daemon = cluster.daemons[0]
            job.join()
            for rank in job.ranks:
                rank.send("steps 2000")
            self.hang_up(daemon, "taken", "changed: nothing")
            self.change(daemon, log_level="debug", stop_timeout_ms=3000)
            self.hang_up(daemon, "taken", "changed: log_level, stop_timeout_ms")
            wait_for(lambda: "debug trace" in daemon.log())
            self.change(daemon, log_level="info", log_format="json")
            self.hang_up(daemon, "taken", "log_level, log_format")
            self.change(daemon, log_format=None, workers=3)
            self.hang_up(daemon, "stays", "needs a restart", 'workers')
            self.change(daemon, workers=None, nod=1)
            self.hang_up(daemon, "stays", "unknown key", "nod", ".json:")
            self.change(daemon, nod=None, log_format="text", policy={"densty": 1})
            self.hang_up(daemon, "stays", "densty", ".json:")
            self.replace(daemon, '{"node": 0,\n')
            self.hang_up(daemon, "stays", "not JSON")
            self.assertTrue(daemon.log().splitlines()[-1].startswith("{"))  # still as JSON lines
            self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
            self.assertEqual(job.steps(5)[0], "ok")

    def test_default_policy_of_new_jobs(self):
        with Cluster(BUILD, nodes=1) as cluster:
            daemon = cluster.daemons[0]
            with Job(cluster, BUILD, "old", [0], TENSORS) as old:
                old.join().steps(2)
                self.change(daemon, policy={"density": 0.5})
                self.hang_up(daemon, "taken", "changed: policy")
                with Job(cluster, BUILD, "new", [0], TENSORS) as new:
                    new.join().steps(2)
                    selected = {job["name"]: job["nonzeros_sent"]
                                for job in cluster.stats(0)["jobs"]}
                    self.assertGreater(selected["new"], 10 * selected["old"])
                self.assertEqual(old.steps(2)[0], "ok")
            cluster.stop()

    def test_a_peer_is_added(self):
        ports = free_ports(2)
        with Cluster(BUILD, nodes=1,
                     settings={"listen": f"tcp://127.0.0.1:{ports[0]}"}) as cluster:
            daemon = cluster.daemons[0]
            self.start("--node", "1", "--listen", f"tcp://127.0.0.1:{ports[1]}", "--peers",
                       f"0=tcp://127.0.0.1:{ports[0]}", stderr=subprocess.DEVNULL)
            peer = {"node": 1, "endpoint": f"tcp://127.0.0.1:{ports[1]}"}
            self.change(daemon, peers=[peer])
            self.hang_up(daemon, "taken", "changed: peers")
            wait_for(lambda: [(one["node"], one["state"]) for one in cluster.status(0)["peers"]]
                     == [(1, "up")])
            self.hang_up(daemon, "taken", "nothing")
            self.assertEqual(len(cluster.status(0)["peers"]), 1)
            wait_for(lambda: "node 1 is up" in daemon.log())
            self.change(daemon, peers=[])
            self.hang_up(daemon, "stays", "to remove node 1 needs a restart")
            self.change(daemon, peers=[{**peer, "endpoint": "tcp://127.0.0.1:1"}])
            self.hang_up(daemon, "stays", "to move node 1 needs a restart")
            self.assertEqual(len(cluster.status(0)["peers"]), 1)
            cluster.stop()

    def test_a_file_that_cannot_be_read(self):
        with Cluster(BUILD, nodes=1) as cluster:
            daemon = cluster.daemons[0]
            os.rename(daemon.config, daemon.config + ".away")
            self.hang_up(daemon, "stays", "No such file")
            os.mkfifo(daemon.config)  # opening it would wait for a writer
            self.hang_up(daemon, "stays", "not a regular file")
            os.unlink(daemon.config)
            os.mkdir(daemon.config)
            self.hang_up(daemon, "stays", "not a regular file")
            os.rmdir(daemon.config)
            os.symlink(daemon.config, daemon.config)
            self.hang_up(daemon, "stays", "symbolic links")
            os.unlink(daemon.config)
            os.rename(daemon.config + ".away", daemon.config)
            self.hang_up(daemon, "taken")
            cluster.stop()

    @unittest.skipUnless(os.getuid() == 0, "needs another user")
    def test_a_file_that_may_not_be_read(self):
        def become_nobody():
            die_with_parent()
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        os.chmod(self.directory, 0o777)
        config = self.write("c.json", "{}")
        os.chmod(config, 0o644)
        with open(self.path("log"), "w+", encoding="utf-8") as log:
            process = self.start("--config", config, stderr=log, prepare=become_nobody)
            wait_for(lambda: "serves" in self.read("log"))
            os.chmod(config, 0o600)
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "the old configuration stays: cannot open" in self.read("log"))
            self.assertIn("Permission denied", self.read("log"))
            self.end(process)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as text:
            return text.read()

    def digits(self, cluster, job):
        """The example trainer, one rank a node."""
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data",
                              "digits.csv.gz")
        with gzip.open(source, "rb") as packed, open(self.path("digits.csv"), "wb") as out:
            shutil.copyfileobj(packed, out)
        # Its own policy, so that it does not matter when a rank opens.
        policy = self.write("policy.json", '{"density": 0.01}')
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("ADTOPK_")}
        processes = []
        for rank in (0, 1):
            processes.append(subprocess.Popen(
                [os.path.join(BUILD, "client", "adtopk-digits"), "--data",
                 self.path("digits.csv"), "--steps", "60", "--address", cluster.address(rank),
                 "--job", job, "--policy", policy, "--rank", str(rank), "--world", "2"], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent))
            self.addCleanup(processes[-1].wait)
            self.addCleanup(processes[-1].kill)
            self.addCleanup(processes[-1].stdout.close)
        return processes

    def parameters(self, processes):
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], outputs)
        hashes = {re.search(r"parameters ([0-9a-f]{16})", output).group(1) for output in outputs}
        self.assertEqual(len(hashes), 1, outputs)
        return hashes.pop()

    def test_while_the_digits_train(self):
        """Good and bad configurations in turn: the same parameters as without any."""
        with Cluster(BUILD, nodes=2) as cluster:
            undisturbed = self.parameters(self.digits(cluster, "undisturbed"))
            processes = self.digits(cluster, "disturbed")
            turns = 0
            while any(process.poll() is None for process in processes) or turns < 4:
                for daemon in cluster.daemons:
                    if turns % 2:
                        self.change(daemon, policy={"density": 0.5}, stop_timeout_ms=turns)
                        self.hang_up(daemon, "taken", "changed: ", "stop_timeout_ms")
                    else:
                        self.change(daemon, policy={"density": 50})
                        self.hang_up(daemon, "stays", "density")
                turns += 1
            self.assertEqual(self.parameters(processes), undisturbed)
            cluster.stop()

    def test_flood(self):
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "train", [0, 1], TENSORS) as job:
            daemon = cluster.daemons[0]
            job.join()
            for rank in job.ranks:
                rank.send("steps 2000")
            for turn in range(2000):
                if turn == 1000:
                    self.replace(daemon, "{")
                daemon.signal(signal.SIGHUP)
            self.assertEqual(len({rank.answer() for rank in job.ranks}), 1)
            wait_for(lambda: "stays" in daemon.log())
            self.assertLess(daemon.log().count("SIGHUP"), 1000)  # not each was worth a turn

    def test_before_and_after_it_serves(self):
        """A SIGHUP that nobody waits for kills nothing."""
        for _ in range(10):
            process = self.start(stderr=subprocess.DEVNULL)
            wait_for(lambda: os.path.exists(self.path("a.sock")))
            for _ in range(50):
                process.send_signal(signal.SIGHUP)
            process.terminate()
            with contextlib.suppress(ProcessLookupError):
                while process.poll() is None:
                    process.send_signal(signal.SIGHUP)
            self.assertEqual(process.wait(LONG), 0)


class Stop(WithDirectory):
    """SIGTERM lets steps end; everybody hears why, and the other nodes go on."""

    SENTENCE = "node 1: its daemon is stopping"

    def test_in_mid_training(self):
        with Cluster(BUILD, nodes=2, settings={"stop_timeout_ms": 60000}) as cluster, \
                Job(cluster, BUILD, "ends", [0, 1, 1], TENSORS) as job:
            job.join()
            for rank in job.ranks:
                rank.send("steps 1000000")
            wait_for(lambda: cluster.stats(0)["jobs"][0]["steps"] > 10)
            self.assertEqual(cluster.daemons[1].stop(LONG), 0)
            for rank in job.ranks:
                name, sentence = rank.error()
                self.assertEqual(name, "peer")
                self.assertIn(self.SENTENCE, sentence)
            self.assertNotIn("mid-step", cluster.daemons[1].log())
            with Job(cluster, BUILD, "next", [0], TENSORS) as following:
                self.assertEqual(following.join().steps(5)[0], "ok")
            cluster.restart(1)
            cluster.wait_connected()
            with Job(cluster, BUILD, "again", [0, 1], TENSORS) as again:
                self.assertEqual(again.join().steps(5)[0], "ok")
            cluster.stop()

    def test_a_step_under_way_ends_first(self):
        """Rank 1 has not pushed yet when the daemon of rank 0 is told to stop."""
        with Cluster(BUILD, nodes=2, settings={"stop_timeout_ms": 60000}) as cluster, \
                Job(cluster, BUILD, "ends", [1, 0], TENSORS) as job:
            job.join().steps(2)
            job.ranks[0].do("push 0", "push 1")
            job.ranks[0].send("steps 1")
            self.settle(cluster.daemons[1])
            cluster.daemons[1].signal(signal.SIGTERM)
            wait_for(lambda: "have 60000 ms to end" in cluster.daemons[1].log())
            late = Rank(BUILD, cluster.address(1), "late", 0, 1)
            self.addCleanup(late.kill)
            late.send(late.opening)
            self.assertIn(self.SENTENCE, late.error()[1])
            job.ranks[1].send("steps 1")
            self.assertEqual(job.ranks[0].answer().split()[:2], ["ok", "3"])
            try:  # the news may come to node 0 while it still works on the step
                self.assertEqual(job.ranks[1].answer().split()[:2], ["ok", "3"])
            except RankError as error:
                self.assertIn(self.SENTENCE, str(error))
            for rank in job.ranks:
                rank.send("steps 1")
                self.assertIn(self.SENTENCE, rank.error()[1])
            self.assertEqual(cluster.daemons[1].process.wait(LONG), 0)
            self.assertNotIn("mid-step", cluster.daemons[1].log())

    @staticmethod
    def settle(daemon):
        """The daemon has taken what ranks submitted before: a turn lies between two answers."""
        for _ in range(2):
            daemon.ask("status")

    def silent(self, cluster):
        """A rank that has pushed half a step and goes quiet."""
        rank = Rank(BUILD, cluster.address(0), "silent", 0, 1)
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor a f32 both 8", "tensor b f32 both 8", "commit", "push 0")
        self.settle(cluster.daemons[0])
        return rank

    def test_the_time_is_over(self):
        with Cluster(BUILD, nodes=1, settings={"stop_timeout_ms": 300}) as cluster:
            rank = self.silent(cluster)
            self.assertEqual(cluster.daemons[0].stop(LONG), 0)
            self.assertIn("1 jobs are ended in mid-step", cluster.daemons[0].log())
            rank.send("push 1", "finish")
            with self.assertRaises(RankError):
                for _ in range(2):
                    rank.answer()

    def test_twice(self):
        with Cluster(BUILD, nodes=1, settings={"stop_timeout_ms": 3600000}) as cluster:
            self.silent(cluster)
            daemon = cluster.daemons[0]
            daemon.signal(signal.SIGTERM)
            wait_for(lambda: "have 3600000 ms" in daemon.log())
            self.assertEqual(daemon.ask("status")[0], 0)
            daemon.signal(signal.SIGTERM)
            self.assertEqual(daemon.process.wait(LONG), -signal.SIGTERM)

    def test_a_dead_peer_delays_nothing(self):
        settings = {"stop_timeout_ms": 3600000, "peer_timeout_ms": 400, "heartbeat_ms": 100}
        with Cluster(BUILD, nodes=2, settings=settings) as cluster:
            with Job(cluster, BUILD, "ends", [0, 1], TENSORS) as job:
                job.join().steps(2)
                cluster.daemons[1].kill()
                self.assertEqual(cluster.daemons[0].stop(LONG), 0)
                job.kill()


class ServiceManager(WithDirectory):
    """What the daemon tells the manager that started it: the test, with a socket of its own."""

    def setUp(self):
        super().setUp()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(self.path("notify"))
        self.manager.settimeout(LONG)

    def run_daemon(self, watchdog_us=0, watchdog_pid=None, **options):
        more = {"NOTIFY_SOCKET": self.path("notify")}
        if watchdog_us:
            more["WATCHDOG_USEC"] = str(watchdog_us)
        if watchdog_pid:
            more["WATCHDOG_PID"] = str(watchdog_pid)
        process = self.start(more=more, stderr=subprocess.DEVNULL, **options)
        self.await_state("READY=1")
        return process

    def await_state(self, *states):
        """The next messages among these, which must come in this order."""
        for state in states:
            while True:
                message = self.manager.recv(4096).decode()
                if message.startswith(state):
                    break
                self.assertFalse(message.startswith(states), f"{message} before {state}")

    def drain(self):
        self.manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.manager.recv(4096)
        self.manager.settimeout(LONG)

    def test_reload_status_and_stop(self):
        process = self.run_daemon()
        self.await_state("STATUS=0 jobs, 0 sessions, 0 of 0 peers up")
        process.send_signal(signal.SIGHUP)
        message = self.manager.recv(4096).decode()
        self.assertRegex(message, r"\ARELOADING=1\nMONOTONIC_USEC=\d+\Z")
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self.assertLessEqual(int(message.split("=")[-1]), now)
        self.await_state("READY=1")
        process.terminate()
        self.await_state("STOPPING=1", "EXTEND_TIMEOUT_USEC=15000000")
        self.assertEqual(process.wait(LONG), 0)

    def test_watchdog(self):
        process = self.run_daemon(watchdog_us=200000)
        for _ in range(5):
            self.await_state("WATCHDOG=1")
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: self.state_of(process) == "T")
        self.drain()
        self.manager.settimeout(1)
        with self.assertRaises(socket.timeout):
            self.await_state("WATCHDOG=1")
        self.manager.settimeout(LONG)
        process.send_signal(signal.SIGCONT)
        self.await_state("WATCHDOG=1")
        self.end(process)

    @staticmethod
    def state_of(process):
        with open(f"/proc/{process.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def test_watchdog_of_another_process(self):
        process = self.run_daemon(watchdog_us=20000, watchdog_pid=1)
        self.await_state("STATUS=")  # at the first tick, which would feed
        self.manager.settimeout(0.5)
        with self.assertRaises(socket.timeout):
            self.await_state("WATCHDOG=1")
        self.end(process)

    def test_stuck_compute(self):
        """A compute that takes too long stops the signs of life. Too long is 1 ms here."""
        with open(self.path("log"), "w+", encoding="utf-8") as log:
            process = self.start("--workers=1", stderr=log, more={
                "NOTIFY_SOCKET": self.path("notify"), "WATCHDOG_USEC": "100"})
            self.await_state("READY=1")
            rank = Rank(BUILD, "unix:" + self.path("a.sock"), "large", 0, 1)
            self.addCleanup(rank.kill)
            rank.do(rank.opening, "tensor large f32 dense 2048x4096", "gradients integer 1",
                    "commit")
            deadline = time.monotonic() + LONG
            sentence = "s: the watchdog gets no more signs of life"
            while sentence not in self.read("log"):
                self.assertLess(time.monotonic(), deadline)
                rank.do("steps 1")
            rank.end()
            self.drain()
            self.await_state("WATCHDOG=1")  # it was slow, not dead
            self.end(process)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as text:
            return text.read()

    def test_a_manager_that_does_not_read(self):
        """The daemon works on and ends."""
        process = self.run_daemon(watchdog_us=20000)
        time.sleep(1)  # 50 signs of life, more than the socket holds
        code = subprocess.run([os.path.join(BUILD, "client", "adtopkctl", "adtopkctl"), "--socket",
                               self.path("a.control"), "status"], capture_output=True,
                              check=False).returncode
        self.assertEqual(code, 0)
        self.end(process)


class Logs(WithDirectory):
    """A log that cannot be written stops nothing."""

    def works(self, process):
        wait_for(lambda: os.path.exists(self.path("a.control")))
        address = "unix:" + self.path("a.sock")
        for run in range(60):
            rank = Rank(BUILD, address, "job", 0, 1, run=str(run))
            try:
                rank.do(rank.opening, "tensor a f32 both 8", "commit", "steps 3")
            finally:
                rank.end()
        self.end(process)

    def test_full_device(self):
        with open("/dev/full", "wb") as full:
            self.works(self.start("--log-level=debug", stderr=full))

    def test_pipe_that_nobody_reads(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        process = self.start("--log-level=debug", stderr=writing)
        os.close(writing)
        self.works(process)

    def test_pipe_that_is_closed(self):
        reading, writing = os.pipe()
        process = self.start("--log-level=debug", stderr=writing)
        os.close(writing)
        os.close(reading)
        self.works(process)

    def test_slow_reader_hears_what_is_lost(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        process = self.start("--log-level=debug", stderr=writing)
        os.close(writing)
        wait_for(lambda: os.path.exists(self.path("a.control")))
        rank = Rank(BUILD, "unix:" + self.path("a.sock"), "job", 0, 1)
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor a f32 both 8", "commit", "steps 2000")
        text = b""
        while b"lines of the log are lost: nobody read them\n" not in text:
            text += os.read(reading, 65536)
        rank.end()
        self.end(process)

    @unittest.skipUnless(os.getuid() == 0, "only root can mount a small disk")
    def test_full_disk(self):
        disk = self.path("disk")
        os.mkdir(disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", disk],
                          capture_output=True, check=False).returncode != 0:
            self.skipTest("no mounts here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=False)
        with open(os.path.join(disk, "log"), "ab") as log:
            process = self.start("--log-level=debug", stderr=log)
        wait_for(lambda: os.path.exists(self.path("a.control")))
        rank = Rank(BUILD, "unix:" + self.path("a.sock"), "job", 0, 1)
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor a f32 both 8", "commit", "steps 200")
        os.truncate(os.path.join(disk, "log"), 0)
        rank.do("steps 1")
        rank.end()
        with open(os.path.join(disk, "log"), encoding="utf-8") as text:
            self.assertRegex(text.read(), r"\d+ lines of the log are lost: No space left")
        self.end(process)

    def test_journal(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(ours.close)
        status = os.fstat(theirs.fileno())
        process = self.start(stderr=theirs,
                             more={"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        theirs.close()
        self.assertTrue(ours.recv(4096).startswith(b"<6>life: adtopkd "))
        self.end(process)

    def test_a_name_cannot_forge_a_line(self):
        with Cluster(BUILD, nodes=1, settings={"log_level": "debug"}) as cluster:
            rank = Rank(BUILD, cluster.address(0), "job\x1b[31m\x9b", 0, 2)
            self.addCleanup(rank.kill)
            rank.send(rank.opening)
            with contextlib.suppress(RankError):
                rank.answer()
            rank.kill()
            cluster.stop()
            with open(cluster.daemons[0].log_path, "rb") as log:
                self.assertNotRegex(log.read(), rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


class Starts(WithDirectory):
    """One daemon a socket, however many start."""

    COUNT = 20

    def race(self, arguments):
        """Starts many at once; returns those that live on once the others have ended."""
        processes = [self.start(*arguments(number), name=str(number), stderr=subprocess.PIPE,
                                text=True) for number in range(self.COUNT)]
        wait_for(lambda: sum(one.poll() is None for one in processes) <= 1)
        time.sleep(0.2)
        for process in processes:
            if process.poll() is not None:
                sentence = process.stderr.read()
                self.assertEqual(process.returncode, 1)
                self.assertRegex(sentence, "serves it already|in use by another process")
            self.addCleanup(process.stderr.close)
        alive = [one for one in processes if one.poll() is None]
        self.assertEqual(len(alive), 1)
        return alive[0]

    def check(self, arguments):
        first = self.race(arguments)
        done = subprocess.run([os.path.join(BUILD, "client", "adtopkctl", "adtopkctl"), "--json",
                               "--socket", self.path("control"), "status"], capture_output=True,
                              check=True)
        self.assertEqual(json.loads(done.stdout)["pid"], first.pid)
        first.kill()  # leaves its sockets behind, which the next one replaces
        first.wait()
        self.end(self.race(arguments))

    def test_same_sockets(self):
        self.check(lambda number: ("--socket", self.path("sock"), "--control-socket",
                                   self.path("control")))

    def test_same_control_socket(self):
        self.check(lambda number: ("--control-socket", self.path("control")))


def main():
    global BUILD
    BUILD = take_build(__doc__)
    unittest.main()


if __name__ == "__main__":
    main()
