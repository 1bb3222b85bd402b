#!/usr/bin/env python3
"""adtopkd as a service: a configuration that changes while it runs, signs of life, logs that
cannot be written, many that start at once, and an end that lets steps finish.

usage: test_service.py BUILD [unittest's arguments]
"""
import contextlib
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
                    selected = {job["name"]: job["sparse_nonzeros"]
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
