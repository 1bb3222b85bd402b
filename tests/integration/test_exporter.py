#!/usr/bin/env python3
"""adtopk-exporter over a real daemon: its numbers are adtopkctl's, its text is what scrapers accept,
and nobody who speaks nonsense to it, or nothing at all, keeps it from others.

usage: test_exporter.py BUILD [unittest's arguments]
"""
import contextlib
import http.client
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from build import BUILD
from cluster import PATIENCE
from control import Daemons, Training
from fake_daemon import FakeDaemon
from scraping import EXPORTER, Scraping
from service import wait_for
import test_seed

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
README = os.path.join(ROOT, "client/exporter/README.md")
PAGE = os.path.join(ROOT, "client/exporter/page.html")
RULES = os.path.join(ROOT, "deploy/prometheus")
PROMTOOL = shutil.which("promtool", path=f"{os.environ['PATH']}:{ROOT}/.tools")

# Runs a command with descriptor 20 as the one that a service manager passes.
PASS = ("import os, sys; os.dup2(20, 3); "
        "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); os.execv(sys.argv[1], sys.argv[1:])")
HALF = b"GET /metrics HT"
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
OTHER = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n"
READING = 5  # seconds that a client has for reading an answer


class Flood(threading.Thread):
    """Many connections from 11 addresses, which all send this."""

    def __init__(self, port, count, request):
        super().__init__()
        self.port = port
        self.count = count
        self.request = request
        self.connections = []

    def run(self):
        for number in range(self.count):
            self.connections.append(socket.create_connection(
                ("127.0.0.1", self.port), source_address=(f"127.0.0.{2 + number % 11}", 0)))
            with contextlib.suppress(OSError):
                self.connections[-1].sendall(self.request)

    def unanswered(self):
        """How many have got nothing yet, and are open."""
        poll = select.poll()
        for one in self.connections:
            poll.register(one, select.POLLIN)
        return len(self.connections) - len(poll.poll(0))

    def end(self):
        for one in self.connections:
            one.close()


class Exporter(Daemons, Scraping):
    def setUp(self):
        super().setUp()
        self.exporter = self.start(self.cluster.daemons[0].control)

    def api(self, name):
        return json.loads(self.get(f"/api/{name}")[2])

    def assert_histogram(self, values, labels, told, phase):
        """Its buckets only grow, and hold what the daemon counted up to their ends."""
        name = "adtopk_job_phase_duration_seconds"
        counts = told["phase_counts"][phase]
        ends = {dict(found)["le"]: value for (given, found), value in values.items()
                if given == name + "_bucket" and labels <= found}
        self.assertEqual(ends.pop("+Inf"), sum(counts))
        self.assertEqual(values[name + "_count", frozenset(labels)], sum(counts))
        self.assertEqual(values[name + "_sum", frozenset(labels)], told["phase_seconds"][phase])
        self.assertEqual(len(ends), 8)
        for end, value in ends.items():
            below = [count for i, count in enumerate(counts) if 2 ** i / 1e6 <= float(end) * 1.001]
            self.assertEqual(value, sum(below), (end, counts))
        self.assertEqual(sum(counts), told["rounds"])

    def test_numbers(self):
        job = self.joined()
        job.steps(12)
        time.sleep(1.1)  # older snapshots are too old
        labels = {("owner", str(os.getuid())), ("job_name", self.name), ("run", "0")}
        values = self.metrics()
        told, = [one for one in self.document("stats")["jobs"] if one["name"] == self.name]
        for name, field in (("steps", "steps"), ("wire_sent_bytes", "wire_bytes_sent"),
                            ("dense_bytes", "dense_bytes"), ("sent_nonzeros", "nonzeros_sent")):
            self.assertEqual(values[f"adtopk_job_{name}_total", frozenset(labels)], told[field], name)
        self.assertEqual(values["adtopk_up", frozenset()], 1)
        status = self.document("status")
        job_told, = [one for one in status["jobs"] if one["name"] == self.name]
        memory = values["adtopk_job_memory_bytes", frozenset(labels)]
        self.assertEqual(memory, job_told["memory_bytes"])
        # A gradient and a residual per element, as this job has one rank here.
        self.assertGreaterEqual(memory, 2 * 4 * job_told["elements"])
        self.assertGreater(values["adtopk_loop_cpu_seconds_total", frozenset()], 0)
        self.assertEqual(values["adtopk_workers", frozenset()], status["workers"]["threads"])
        self.assertGreaterEqual(values["adtopk_workers_busy_seconds_total", frozenset()], 0)
        for reason in ("limit", "lost"):
            self.assertEqual(values["adtopk_log_missing_lines_total",
                                    frozenset({("reason", reason)})], 0)
        self.assertEqual(values["adtopk_peer_up", frozenset({("peer", "1")})], 1)
        self.assertEqual(values["adtopk_job_state", frozenset({*labels, ("state", "active")})], 1)
        self.assertEqual(values["adtopk_job_state", frozenset({*labels, ("state", "failed")})], 0)
        self.assertEqual(values["adtopk_rank_step", frozenset({*labels, ("rank", "0")})], 12)
        phase = values["adtopk_job_phase_seconds_total", frozenset({*labels, ("phase", "collect")})]
        self.assertEqual(phase, told["phase_seconds"]["collect"])
        self.assert_histogram(values, {*labels, ("phase", "select")}, told, "select")
        self.assertGreater(values["adtopk_job_residual_mean", frozenset(labels)], 0)
        self.assertNotIn(("adtopk_job_unbalanced_tensors", frozenset(labels)), values)
        self.document("verify", self.name)
        time.sleep(1.1)
        values = self.metrics()
        told, = [one for one in self.document("stats")["jobs"] if one["name"] == self.name]
        self.assertGreater(told["residual_mean"], 0)
        self.assertEqual(values["adtopk_job_residual_mean", frozenset(labels)], told["residual_mean"])
        self.assertEqual(values["adtopk_job_unbalanced_tensors", frozenset(labels)], 0)
        self.assertGreaterEqual(values["adtopk_network_cpu_seconds_total", frozenset()], 0)
        accepted = self.metrics(Accept="application/openmetrics-text; version=1.0.0")
        self.assertEqual(set(accepted), set(values))
        job.end()

    def test_tensors(self):
        """They are shown on request alone."""
        job = self.joined()
        job.steps(3)
        self.assertNotIn("adtopk_tensor_elements", {name for name, _ in self.metrics()})
        self.start(self.cluster.daemons[0].control, "--tensors")
        values = self.metrics()
        told, = [one for one in self.document("stats")["jobs"] if one["name"] == self.name]
        self.assertEqual(len(told["tensors_detail"]), 3)
        # Together the tensors have every byte of the job; the broadcast of a trainer is no step.
        for field in ("bytes_sent", "bytes_received"):
            self.assertTrue(all(tensor[field] > 0 for tensor in told["tensors_detail"]))
        self.assertEqual(sum(tensor["bytes_sent"] for tensor in told["tensors_detail"]),
                         told["wire_bytes_sent"])
        for tensor in told["tensors_detail"]:
            labels = frozenset({("owner", str(os.getuid())), ("job_name", self.name), ("run", "0"),
                                ("tensor", tensor["name"])})
            for name, field in (("elements", "elements"), ("density", "density"), ("turns_total", "turn"),
                                ("sent_bytes_total", "bytes_sent"),
                                ("received_bytes_total", "bytes_received")):
                self.assertEqual(values[f"adtopk_tensor_{name}", labels], tensor[field])
        job.end()

    def test_documents(self):
        with Training(self.joined()):
            for path in ("/api/status", "/api/stats", "/api/ranks", "/api/history"):
                status, headers, text = self.get(path)
                self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
                json.loads(text)
            wait_for(lambda: self.api("history")["samples"])
            wait_for(lambda: self.api("stats")["jobs"])
            self.assertNotIn("tensors_detail", self.api("stats")["jobs"][0])
        status, headers, text = self.get("/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertTrue(text.startswith("<!doctype html>") and text.endswith("</html>\n"))
        with open(PAGE, encoding="utf-8") as file:
            self.assertEqual(text, file.read(), "a new page makes a new program")
        self.assertNotIn("http", re.sub(r'"http://www.w3.org/2000/svg"', "", text))
        self.assertEqual(self.get("/healthz")[::2], (200, "ok\n"))

    def test_runs_of_one_name(self):
        """Users who set no run number start several runs under one. The run that lives stands for them, or
        else the last one."""
        def states():
            time.sleep(1.1)  # older snapshots are too old
            return {dict(labels)["state"] for (name, labels), value in self.metrics().items()
                    if name == "adtopk_job_state" and value == 1 and dict(labels)["job_name"] == self.name}

        self.joined().end()
        self.assertEqual(states(), {"done"})
        again = self.joined()
        again.steps(1)
        self.assertEqual(states(), {"active"})
        again.ranks[1].process.kill()
        again.ranks[0].send("steps 1")
        again.ranks[0].error()
        self.assertEqual(states(), {"failed"})
        self.joined().end()
        self.assertEqual(states(), {"done"})

    def test_names_are_quoted(self):
        self.name = 'a"b\\c'
        job = self.joined()
        wait_for(lambda: 'a\\"b\\\\c' in {dict(labels).get("job_name") for _, labels in self.metrics()})
        job.end()

    def test_a_daemon_that_is_gone_and_returns(self):
        exporter = self.start("/nonexistent/socket")
        self.assertIn("no control socket /nonexistent/socket", exporter.stderr.readline())
        status, _, text = self.get("/healthz")
        self.assertEqual(status, 503)
        self.assertIn("does adtopkd run", text)
        self.assertEqual(self.metrics(), {("adtopk_up", frozenset()): 0})
        self.assertIn("does adtopkd run", self.api("stats")["error"])
        self.assertIsNone(exporter.poll())

    def test_a_daemon_that_restarts(self):
        def counts():
            values = self.metrics()
            return values["adtopk_up", frozenset()], values.get(("adtopk_uptime_seconds", frozenset()))
        wait_for(lambda: counts()[0] == 1)
        self.cluster.daemons[0].stop()
        wait_for(lambda: counts() == (0, None))
        began = time.monotonic()
        self.cluster.restart(0)
        wait_for(lambda: counts()[0] == 1)
        self.assertLess(counts()[1], time.monotonic() - began)
        self.assertIsNone(self.exporter.poll())
        wait_for(lambda: all(daemon.ask("peers")[0] == 0 for daemon in self.cluster.daemons))

    def drip(self, dropped):
        """A client that is never idle: it sends a byte of its request four times a second."""
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port)) as slow, contextlib.suppress(OSError):
            slow.settimeout(0.25)
            for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 60:
                slow.sendall(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    self.assertEqual(slow.recv(1000), b"")
                    break
            else:
                return
        if time.monotonic() - began > 4:
            dropped.set()

    def holds(self, client):
        """Whether the exporter has the other end of this connection open."""
        ends = f":{self.port:04X} 0100007F:{client.getsockname()[1]:04X} 01 "
        with open("/proc/net/tcp", encoding="ascii") as connections:
            return ends in connections.read()

    @contextlib.contextmanager
    def reader(self):
        """A client that asks for much, and reads none of it. It is dropped 5 s after the exporter can write
        no more to it."""
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", self.port))
            with contextlib.suppress(OSError):
                client.sendall(500 * b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_for(lambda: self.holds(client))
            yield
            wait_for(lambda: not self.holds(client), "it is not dropped")

    def test_a_daemon_that_is_late(self):
        """Those who need it wait; the page does not. Meanwhile a client is slow, and is dropped."""
        dropped = threading.Event()
        with self.reader():
            threading.Thread(target=self.drip, args=(dropped,), daemon=True).start()
            self.watch_a_late_daemon()
            self.assertTrue(dropped.wait(PATIENCE))

    @contextlib.contextmanager
    def late_daemon(self):
        daemon = self.cluster.daemons[0].process
        daemon.send_signal(signal.SIGSTOP)
        time.sleep(1.1)  # what it said before is too old then
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGCONT)
        wait_for(lambda: self.get("/healthz")[0] == 200)

    def watch_a_late_daemon(self):
        with self.late_daemon():
            with socket.create_connection(("127.0.0.1", self.port)) as waiting:
                waiting.sendall(WHOLE)
                self.assertEqual(self.get("/")[0], 200)
                self.assertEqual(select.select([waiting], [], [], 0)[0], [])
                waiting.settimeout(PATIENCE)
                self.assertIn(b"adtopk_up 0", waiting.recv(100000))

    def test_a_daemon_that_is_late_with_each_answer(self):
        """It has 5 s for all three."""
        fake = FakeDaemon(self.cluster.directory, late_s=2.5)
        self.addCleanup(fake.close)
        self.start(fake.path)
        began = time.monotonic()
        status, _, text = self.get("/healthz")
        self.assertEqual(status, 503)
        self.assertIn("did not answer within 5 s", text)
        self.assertLess(time.monotonic() - began, 7)  # three answers take 7.5

    def test_a_flood_of_requests(self):
        """1,100 of them wait for a daemon that is late; who does not need it is answered."""
        self.many_descriptors()
        flood = Flood(self.port, 1100, WHOLE)
        with self.late_daemon():
            flood.start()
            flood.join()
            self.assertEqual(self.get("/", source=("127.0.0.99", 0))[0], 200)
            self.assertGreater(flood.unanswered(), 0)
            flood.end()

    def test_nonsense(self):
        self.assertEqual(self.get("/nothing")[0], 404)
        self.assertEqual(self.get("/../etc/passwd")[0], 404)
        self.assertEqual(self.get("/metrics", method="POST")[0], 405)
        self.assertEqual(self.get("/metrics", method="HEAD")[::2], (200, ""))
        self.assertIn(self.get("/metrics", X="x" * 100000)[0], (413, 431))
        for bytes_ in (b"\0" * 1000, b"GET\r\n\r\n", b"GET /metrics HTTP/9.9\r\n\r\n", b"\xff" * 50):
            with socket.create_connection(("127.0.0.1", self.port)) as one:
                one.sendall(bytes_)
        self.assertEqual(self.get("/healthz")[0], 200)

    def test_connections_that_never_ask(self):
        """More than one address may have: those of another address are answered all the same."""
        idle = []
        try:
            for _ in range(400):
                idle.append(socket.create_connection(("127.0.0.1", self.port)))
                with contextlib.suppress(OSError):
                    idle[-1].sendall(b"GET /metrics HT")
            self.assertEqual(self.get("/healthz", source=("127.0.0.2", 0))[0], 200)
            self.assertTrue(any(map(self.holds, idle)))  # it did not wait until they are dropped
        finally:
            for one in idle:
                one.close()

    def stall(self, count, request=WHOLE):
        """This many clients ask for the metrics, and read none of them once they come."""
        clients = []
        for _ in range(count):
            client = socket.socket()
            self.addCleanup(client.close)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", self.port))
            client.sendall(request)
            clients.append(client)
        for client in clients:
            self.assertEqual(select.select([client], [], [], PATIENCE)[0], [client])
        return clients

    def memory(self):
        with open(f"/proc/{self.exporter.pid}/status", encoding="ascii") as status:
            return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])

    def test_readers_that_stall_share_memory(self):
        """What they hold has a bound, and does not keep the exporter from others."""
        fake = FakeDaemon(self.cluster.directory, size=4 << 20)
        self.addCleanup(fake.close)
        self.exporter = self.start(fake.path)
        size = len(self.get("/metrics")[2])  # the name is in the series of each state
        self.assertGreater(2 * size, 32 << 20)
        for _ in range(5):
            began, before = time.monotonic(), self.memory()
            clients = self.stall(100)
            self.assertLess(self.memory() - before, 100 * size / 3)
            self.assertEqual(self.get("/healthz")[0], 200)
            clients += self.stall(1, OTHER)
            time.sleep(1.1)  # the metrics are made anew
            metrics, status = self.get("/metrics"), self.get("/api/status")
            late = time.monotonic() - began > READING  # a busy machine: they may have been dropped
            self.assertEqual(self.get("/healthz")[0], 200)
            for client in clients:
                client.close()
            wait_for(lambda: self.get("/metrics")[0] == 200)
            if not late:
                break
        said = "clients that read too slowly hold too much memory; ask again in 5 s"
        self.assertEqual(metrics[::2], (503, f"{said}\n"))
        self.assertEqual((status[0], json.loads(status[2])), (503, {"error": said}))

    def many_descriptors(self):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except ValueError:
            self.skipTest("too few descriptors")

    def test_a_flood(self):
        """2,000 connections of 11 addresses hold all places; others are answered meanwhile."""
        self.many_descriptors()
        flood = Flood(self.port, 2000, HALF)
        flood.start()
        while flood.is_alive():
            self.assertEqual(self.get("/healthz", source=("127.0.0.99", 0))[0], 200)
        self.assertEqual(self.get("/healthz", source=("127.0.0.99", 0))[0], 200)
        self.assertGreater(flood.unanswered(), 0)
        flood.end()
        self.assertEqual(len(flood.connections), 2000)

    def passed(self, socket_):
        """An exporter that gets this socket from its parent, as from systemd, and its first line."""
        os.dup2(socket_.fileno(), 20)
        try:
            return self.run_exporter(sys.executable, "-c", PASS, EXPORTER, "--socket",
                                     self.cluster.daemons[0].control, pass_fds=[20])
        finally:
            os.close(20)

    def test_a_socket_that_is_passed(self):
        for family, host, place in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"),
                                    (socket.AF_INET6, "::1", "[::1]")):
            with socket.socket(family) as one:
                one.bind((host, 0))
                one.listen(8)
                self.port = one.getsockname()[1]
                process, said = self.passed(one)
            self.assertTrue(said.endswith(
                f"the socket that was passed, {place}:{self.port}\n"), said)
            with contextlib.closing(http.client.HTTPConnection(host, self.port, timeout=PATIENCE)) as client:
                client.request("GET", "/healthz")
                self.assertEqual(client.getresponse().read(), b"ok\n")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_a_unix_socket_that_is_passed(self):
        path = os.path.join(self.cluster.directory, "exporter.sock")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path)
            one.listen(8)
            process, said = self.passed(one)
        self.assertIn(f"the socket that was passed, {path}\n", said)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            self.assertTrue(client.recv(4096).startswith(b"HTTP/1.1 200 "))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_a_socket_that_does_not_listen(self):
        with socket.socket() as one:
            process, said = self.passed(one)
        self.assertIn("ListenStream=", said)
        self.assertEqual(process.wait(timeout=PATIENCE), 2)

    def test_ends(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = self.start(self.cluster.daemons[0].control)
            self.get("/metrics")
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=PATIENCE), 0)

    def test_command_line(self):
        def run(*words):
            return subprocess.run([EXPORTER, *words], capture_output=True, text=True, check=False)
        self.assertIn("--listen ADDRESS:PORT", run("--help").stdout)
        self.assertIn('unknown option "--lsten"; did you mean "--listen"?', run("--lsten=1").stderr)
        for wrong in (["--listen", "nowhere"], ["--listen", "127.0.0.1:99999"], ["--listen", "[::1"],
                      ["--listen"], ["--what"], ["serve"], ["--listen", "127.0.0.1:1x"]):
            done = run(*wrong)
            self.assertEqual((done.returncode, done.stdout), (2, ""), wrong)
        taken = run("--listen", f"127.0.0.1:{self.port}")
        self.assertEqual(taken.returncode, 1)
        self.assertIn("cannot listen on", taken.stderr)

    def test_the_readme_lists_the_metrics(self):
        with open(README, encoding="utf-8") as text:
            self.assertIn(subprocess.run([EXPORTER, "--metrics"], stdout=subprocess.PIPE, text=True,
                                         check=True).stdout, text.read())

    @unittest.skipIf(PROMTOOL is None, "no promtool here (deploy/setup test)")
    def test_promtool(self):
        job = self.joined()
        job.steps(2)
        checked = subprocess.run([PROMTOOL, "check", "metrics"], input=self.get("/metrics")[2],
                                 capture_output=True, text=True, check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
        rules = subprocess.run([PROMTOOL, "test", "rules", "adtopk.rules.test.yml"], cwd=RULES,
                               capture_output=True, text=True, check=False)
        self.assertEqual(rules.returncode, 0, rules.stdout + rules.stderr)
        job.end()

    @unittest.skipIf(PROMTOOL is None, "no promtool here (deploy/setup test)")
    def test_promtool_reads_the_dashboard(self):
        with open(os.path.join(RULES, "adtopk.dashboard.json"), encoding="utf-8") as text:
            panels = json.load(text)["panels"]
        rules = [{"record": f"panel:{panel['id']}:{target['refId']}",
                  "expr": target["expr"].replace("$__rate_interval", "5m").replace("$node", ".*")}
                 for panel in panels for target in panel["targets"]]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file)
            file.flush()
            checked = subprocess.run([PROMTOOL, "check", "rules", file.name], capture_output=True, text=True,
                                     check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertIn(f"{len(rules)} rules found", checked.stdout)

    @staticmethod
    def listed():
        """{metric: its labels}"""
        table = subprocess.run([EXPORTER, "--metrics"], stdout=subprocess.PIPE, text=True, check=True).stdout
        return {name: set(labels.split(", ")) | {"instance"}
                for name, labels in re.findall(r"\| `(adtopk_\w+)` \| (.*?) ?\|", table)}

    def test_labels_are_not_those_of_a_scrape(self):
        """Prometheus has labels of its own, and gives ours other names."""
        labels = set().union(*self.listed().values())
        self.assertIn("job_name", labels)
        self.assertNotIn("job", labels)

    def test_alerts_name_metrics(self):
        with open(os.path.join(RULES, "adtopk.rules.yml"), encoding="utf-8") as text:
            named = set(re.findall(r"adtopk_\w+", text.read()))
        self.assertTrue(named)
        self.assertLessEqual(named, set(self.listed()))

    def test_the_dashboard_names_metrics_and_labels(self):
        listed = self.listed()
        with open(os.path.join(RULES, "adtopk.dashboard.json"), encoding="utf-8") as text:
            panels = json.load(text)["panels"]
        self.assertTrue(panels)
        for target in (target for panel in panels for target in panel["targets"]):
            named = re.findall(r"adtopk_\w+", target["expr"])
            self.assertTrue(named, target)
            for name in named:
                labels = listed[name.removesuffix("_bucket")]
                self.assertLessEqual(set(re.findall(r"{{(\w+)}}", target["legendFormat"])), labels, target)


class NotJoined(Scraping):
    def peers(self):
        return [value for (name, _), value in self.metrics().items() if name == "adtopk_peer_up"]

    def test_a_node_that_has_not_joined_is_not_down(self):
        cluster = test_seed.Grown(nodes=2, allowed=[1], keys=True)
        self.addCleanup(cluster.close)
        cluster.begin(0)
        self.start(cluster.daemons[0].control)
        self.assertEqual(self.peers(), [])
        self.assertNotIn("down", cluster.daemons[0].ask("top")[1].splitlines()[0])
        cluster.begin(1)
        cluster.wait_met(0, 1)
        time.sleep(1.1)  # older snapshots are too old
        self.assertEqual(self.peers(), [1])


if __name__ == "__main__":
    unittest.main()
