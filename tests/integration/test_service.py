#!/usr/bin/env python3
"""adtopkd as a service: an end that lets steps finish, signs of life, logs that cannot be written,
and many that start at once.

usage: test_service.py BUILD [unittest's arguments]
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from build import ADTOPKCTL, ADTOPKD, BUILD
from cluster import Cluster, free_ports
from ranks import Job, Rank, RankError
from service import PATIENCE, TENSORS, WithDirectory, wait_for


PASS = """import os, sys
first, second, *command = sys.argv[1:]
for fd, source in ((3, first), (4, second)):
    if int(source) >= 0:
        os.dup2(int(source), fd)
os.environ.update(LISTEN_FDS="2" if int(second) >= 0 else "1",
                  LISTEN_PID=str(os.getpid() + (os.environ.pop("ELSE", "") != "")))
os.execv(command[0], command)
"""


class Passed(WithDirectory):
    """Sockets that a service manager opened: LISTEN_FDS and LISTEN_PID."""

    def setUp(self):
        super().setUp()
        self.paths = [os.path.join(self.directory, name) for name in ("trainers", "control")]
        self.config = os.path.join(self.directory, "passed.json")
        with open(self.config, "w", encoding="utf-8") as file:
            json.dump({"socket": self.paths[0], "control_socket": self.paths[1]}, file)

    def listening(self, path, kind=socket.SOCK_SEQPACKET):
        one = socket.socket(socket.AF_UNIX, kind)
        self.addCleanup(one.close)
        one.bind(path)
        one.listen(8)
        return one

    def start(self, *sockets, **variables):
        """Descriptors from 20 on, as those of this process may be 3 and 4."""
        numbers = []
        for at, one in enumerate(sockets):
            numbers.append(os.dup2(one.fileno(), 20 + at))
        process = subprocess.Popen(
            [sys.executable, "-c", PASS, *(str(number) for number in (*numbers, -1)[:2]), ADTOPKD,
             "--config", self.config], pass_fds=numbers, env={**os.environ, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in numbers:
            os.close(number)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def ask(self):
        return subprocess.run([ADTOPKCTL, "--socket", self.paths[1], "status"], capture_output=True,
                              text=True, timeout=PATIENCE, check=False)

    def test_both(self):
        """What came before the daemon waits in the socket, and the files outlive it."""
        sockets = [self.listening(path) for path in self.paths]
        with subprocess.Popen([ADTOPKCTL, "--socket", self.paths[1], "status"],
                              stdout=subprocess.PIPE) as early:
            for _ in range(2):
                process = self.start(*sockets)
                wait_for(lambda: self.ask().returncode == 0)
                rank = Rank(BUILD, "unix:" + self.paths[0], "passed", 0, 1)
                self.addCleanup(rank.kill)
                rank.do(rank.opening, "tensor a f32 both 8", "commit")
                rank.send("finish")
                process.terminate()
                self.assertEqual(process.wait(PATIENCE), 0)
                self.assertTrue(all(map(os.path.exists, self.paths)))
            self.assertEqual(early.wait(PATIENCE), 0)

    def test_one(self):
        """The daemon opens the other one itself, and removes only that."""
        process = self.start(self.listening(self.paths[0]))
        wait_for(lambda: self.ask().returncode == 0)
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertEqual(list(map(os.path.exists, self.paths)), [True, False])

    def test_for_another_process(self):
        process = self.start(self.listening(self.directory + "/other"), ELSE="1")
        wait_for(lambda: self.ask().returncode == 0)
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_wrong_ones(self):
        with tempfile.TemporaryFile() as file:
            for one, words in (
                    (self.listening(self.directory + "/other"), "other"),
                    (self.listening(self.paths[0], socket.SOCK_STREAM), "ListenSequentialPacket="),
                    (file, "something else")):
                process = self.start(one)
                out, _ = process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 2, out)  # systemd does not start it again
                self.assertIn("cannot start: the service manager passed", out)
                self.assertIn(words, out)


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
            self.assertEqual(cluster.daemons[1].stop(PATIENCE), 0)
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
            wait_for(lambda: "the steps of 1 job have 60000 ms to end" in cluster.daemons[1].log())
            late = Rank(BUILD, cluster.address(1), "late", 0, 1)
            self.addCleanup(late.kill)
            late.send(late.opening)
            self.assertIn(self.SENTENCE, late.error()[1])
            job.ranks[1].send("steps 1")
            self.assertEqual(job.ranks[0].answer().split()[:2], ["ok", "3"])
            self.assertEqual(job.ranks[1].answer().split()[:2], ["ok", "3"])
            for rank in job.ranks:
                rank.send("steps 1")
                self.assertIn(self.SENTENCE, rank.error()[1])
            self.assertEqual(cluster.daemons[1].process.wait(PATIENCE), 0)
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
            self.assertEqual(cluster.daemons[0].stop(PATIENCE), 0)
            self.assertIn("ended in mid-step: 1 job\n", cluster.daemons[0].log())
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
            self.assertEqual(daemon.process.wait(PATIENCE), -signal.SIGTERM)

    def test_a_dead_peer_delays_nothing(self):
        """Nobody acknowledges what it is told, and it counts as up for half a minute."""
        settings = {"stop_timeout_ms": 3600000, "peer_timeout_ms": 30000}
        with Cluster(BUILD, nodes=2, settings=settings) as cluster:
            with Job(cluster, BUILD, "ends", [0, 1], TENSORS) as job:
                job.join().steps(2)
                cluster.daemons[1].kill()
                began = time.monotonic()
                self.assertEqual(cluster.daemons[0].stop(PATIENCE), 0)
                self.assertLess(time.monotonic() - began, 10)
                self.assertRegex(cluster.daemons[0].log(), r"peers have not acknowledged \d+ bytes")
                job.kill()


class ServiceManager(WithDirectory):
    """What the daemon tells the manager that started it: the test, with a socket of its own."""

    def setUp(self):
        super().setUp()
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(self.path("notify"))
        self.manager.settimeout(PATIENCE)

    def run_daemon(self, *arguments, watchdog_us=0, watchdog_pid=None, stderr=subprocess.DEVNULL, **options):
        more = {"NOTIFY_SOCKET": self.path("notify")}
        if watchdog_us:
            more["WATCHDOG_USEC"] = str(watchdog_us)
        if watchdog_pid:
            more["WATCHDOG_PID"] = str(watchdog_pid)
        process = self.start(*arguments, more=more, stderr=stderr, **options)
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
        self.manager.settimeout(PATIENCE)

    def test_one_is_no_plural(self):
        port, other = free_ports(2)
        process = self.run_daemon("--listen", f"tcp://127.0.0.1:{port}", "--peers",
                                  f"1=tcp://127.0.0.1:{other}", stderr=subprocess.PIPE, text=True)
        self.await_state("STATUS=0 jobs, 0 sessions, 0 of 1 peer up")
        rank = Rank(BUILD, "unix:" + self.path("a.sock"), "one", 0, 1)
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor a f32 both 8", "commit")
        self.await_state("STATUS=1 job, 1 session, 0 of 1 peer up")
        process.terminate()
        self.assertIn(", 1 peer, listening on", process.communicate(timeout=PATIENCE)[1])

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
        self.assertEqual(process.wait(PATIENCE), 0)

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
        self.manager.settimeout(PATIENCE)
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
            deadline = time.monotonic() + PATIENCE
            sentence = "s: the watchdog gets no more signs of life"
            while sentence not in self.read("log"):
                self.assertLess(time.monotonic(), deadline)
                rank.do("steps 1")
            rank.end()
            self.drain()
            self.await_state("WATCHDOG=1")  # it was slow, not dead
            self.end(process)

    def test_a_manager_that_does_not_read(self):
        """The daemon works on and ends."""
        process = self.run_daemon(watchdog_us=20000)
        time.sleep(1)  # 50 signs of life, more than the socket holds
        code = subprocess.run([ADTOPKCTL, "--socket",
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
        while b"lines of the log are lost: no process read them\n" not in text:
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
                self.assertRegex(sentence, "serves it already")
            self.addCleanup(process.stderr.close)
        alive = [one for one in processes if one.poll() is None]
        self.assertEqual(len(alive), 1)
        return alive[0]

    def check(self, arguments):
        first = self.race(arguments)
        done = subprocess.run([ADTOPKCTL, "--json",
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


if __name__ == "__main__":
    unittest.main()
