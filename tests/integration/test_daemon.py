#!/usr/bin/env python3
"""adtopkd and adtopkctl as programs: how they start, fail, answer and stop.

usage: test_daemon.py BUILD [unittest's arguments]
"""
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from build import ADTOPKCTL, ADTOPKD, BUILD
from cluster import PATIENCE, Cluster, die_with_parent, free_ports
from ranks import Job
from scene import cpu_seconds
from service import WithDirectory, wait_for

NOBODY = 65534


def run(*command, prepare=die_with_parent, timeout=PATIENCE):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("ADTOPK_") and name != "NOTIFY_SOCKET"}
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=environment, preexec_fn=prepare, timeout=timeout, check=False)


def become_nobody():
    die_with_parent()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


class Command(WithDirectory):
    def sockets(self):
        return ["--socket", self.path("a.sock"), "--control-socket", self.path("a.control")]

    def assert_ends(self, done, code, *words):
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class CommandLine(Command):
    def test_help_lists_every_setting(self):
        done = run(ADTOPKD, "--help")
        self.assertEqual(done.returncode, 0)
        for flag in ("--config", "--node", "--listen", "--peers", "--policy", "--window"):
            self.assertIn(flag, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_versions(self):
        for program in (ADTOPKD, ADTOPKCTL):
            done = run(program, "--version")
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stdout, r"^adtopk(d|ctl) \d+\.\d+\.\d+\n$")

    def test_help_that_cannot_be_written_is_a_failure(self):
        for program in (ADTOPKD, ADTOPKCTL):
            for option in ("--help", "--version", *(["--print-config"] if program == ADTOPKD else [])):
                with open("/dev/full", "w", encoding="utf-8") as full:
                    done = subprocess.run([program, option], stdout=full, check=False,
                                          stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, (program, option))

    def test_usage_errors(self):
        self.assert_ends(run(ADTOPKD, "--wrokers", "2"), 2, "--wrokers")
        self.assert_ends(run(ADTOPKD, "--workers", "x"), 2, "--workers")
        self.assert_ends(run(ADTOPKD, "--config", self.write("bad.json", '{"nod": 2}')), 2, "nod")
        self.assert_ends(run(ADTOPKD, "--policy", '{"densty": 1}', *self.sockets()), 2, "densty")
        for arguments in ([], ["stutus"], ["status", "stats"], ["--timeout", "0", "status"],
                          ["--socket"], ["--json=1", "status"], ["--job", "x", "status"]):
            self.assert_ends(run(ADTOPKCTL, *arguments), 2, "adtopkctl: ")

    def test_control_help(self):
        done = run(ADTOPKCTL, "--help")
        self.assertEqual(done.returncode, 0)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
        for word in ("status", "stats", "policy set", "waits for a lost node", "--socket", "--json",
                     "--timeout", "Exit status"):
            self.assertIn(word, done.stdout)
        done = run(ADTOPKCTL, "stats", "--help")
        self.assertEqual(done.returncode, 0)
        for word in ("'': all jobs", "--job", "--interval"):
            self.assertIn(word, done.stdout)
        for command, words in (("keygen", "file to make for the key pair (adtopk.key)"),
                               ("trace", "file to write the trace events to, instead of standard output"),
                               ("plot", "file to write the picture to, instead of standard output")):
            said = " ".join(run(ADTOPKCTL, command, "--help").stdout.split())
            self.assertIn(f"--out FILE {words} --", said)

    def test_check_config(self):
        good = self.write("good.json", '{"node": 1, "policy": {"density": 0.02}}')
        done = run(ADTOPKD, "--check-config", "--config", good)
        self.assert_ends(done, 0)
        bad = self.write("bad.json", '{"node": 1,\n "nod": 2}')
        self.assert_ends(run(ADTOPKD, "--check-config", "--config", bad), 1, "bad.json:2", "nod")
        empty = self.write("empty.json", "")
        self.assert_ends(run(ADTOPKD, "--check-config", "--config", empty), 1, "file is empty")
        self.assert_ends(run(ADTOPKD, "--check-config", "--socket", "x.sock"), 1, "x.sock")

    def test_check_without_a_file(self):
        """What is correct is what there is, and that the file is missing is no secret."""
        if os.path.exists("/etc/adtopk/adtopkd.json"):
            self.skipTest("this machine has a configuration")
        done = run(ADTOPKD, "--check-config", *self.sockets())
        self.assertEqual((done.returncode, done.stdout),
                         (0, "the configuration is correct; there is no /etc/adtopk/adtopkd.json\n"))

    def test_check_leaves_nothing(self):
        """A folder of stores that a start would make, and one that a daemon uses."""
        folder = self.enterContext(tempfile.TemporaryDirectory(dir="/dev/shm"))
        store = os.path.join(folder, "stores")
        done = run(ADTOPKD, "--check-config", "--store-folder", store, *self.sockets())
        self.assert_ends(done, 0)
        self.assertEqual(os.listdir(folder), [])
        with Cluster(BUILD, nodes=1, settings={"store_folder": store}) as cluster:
            done = run(ADTOPKD, "--check-config", "--config", cluster.daemons[0].config)
            self.assert_ends(done, 0)
            cluster.stop()

    def test_check_policy(self):
        policy = self.write("policy.json", '{"node": 1,\n"policy": {"densty": 0.02}}')
        done = run(ADTOPKD, "--check-config", "--config", policy)
        self.assertEqual((done.returncode, done.stderr),
                         (1, f'adtopkd: {policy}:2:12: unknown key "densty"; did you mean '
                             '"density"?\n  "policy": {"densty": 0.02}}\n             ^\n'))
        done = run(ADTOPKD, "--check-config", "--policy", '{"densty": 1}')
        self.assertEqual((done.returncode, done.stderr),
                         (1, 'adtopkd: --policy:1:2: unknown key "densty"; did you mean '
                             '"density"?\n  {"densty": 1}\n   ^\n'))

    def test_check_lists_everything(self):
        """All faults in one go: of the file, of the machine and of the policy."""
        key = self.path("key")
        subprocess.run([ADTOPKCTL, "keygen", "--out", key], check=True, stdout=subprocess.PIPE)
        with open(key, encoding="utf-8") as file:
            secret = file.read().split('secret = "')[1][:40]
        config = self.write("all.json", '\n'.join([
            '{"nod": 1, "log_level": "inof",',
            ' "control_group": "no-such-group", "socket": "/no/such/a.sock",',
            f' "key_file": "{key}", "listen": "tcp://127.0.0.1:1",',
            f' "peers": [{{"node": 1, "endpoint": "tcp://127.0.0.1:1", "key": "{secret}"}}],',
            ' "policy": {"densty": 1, "scope": "nodes"}}']))
        done = run(ADTOPKD, "--check-config", "--config", config)
        self.assertEqual(done.returncode, 1)
        places = [line.split(":")[2:4] for line in done.stderr.splitlines()
                  if line.startswith("adtopkd: ")]
        self.assertEqual(places, [["1", "2"], ["1", "25"], ["4", "12"], ["5", "13"], ["5", "35"],
                                  ["2", "19"], ["2", "46"], ["4", "12"]])
        for words in ('did you mean "node"?', 'did you mean "info"?', 'did you mean "density"?',
                      "is where this node itself listens", "no group", "No such file",
                      "peer 1: this is the secret key of this node"):
            self.assertIn(words, done.stderr)
        self.assertNotIn(secret, done.stderr)

    def test_syntax(self):
        for text, words in (('{"node": 0,}', "1:11: a comma before"),
                            ('{"node": 0 // mine\n}', "1:12: JSON has no comments"),
                            ('{"node": 0', '1:1: this "{" is never closed'),
                            ("{'node': 0}", "1:2: texts stand in double quotes"),
                            ("node: 0", '1:1: not JSON: a "{" is missing')):
            config = self.write("syntax.json", text)
            done = run(ADTOPKD, "--config", config)
            self.assert_ends(done, 2, f"{config}:{words}", "\n  " + text.splitlines()[0], "^")


class StartFailures(Command):
    """Each is a sentence on standard error. Status 2: to start again would not help."""

    def test_missing_directory(self):
        done = run(ADTOPKD, "--socket", "/nonexistent/a", "--control-socket", self.path("c"))
        self.assert_ends(done, 1, "/nonexistent/a")
        done = run(ADTOPKD, "--socket", self.path("s"), "--control-socket", "/nonexistent/c")
        self.assert_ends(done, 1, "/nonexistent/c")
        self.assertEqual(os.listdir(self.directory), [])

    def test_no_permission(self):
        os.chmod(self.directory, 0o555)
        done = run(ADTOPKD, *self.sockets(), prepare=become_nobody)
        self.assert_ends(done, 1, "a.sock", "Permission denied")

    def test_path_is_a_file(self):
        file = self.write("a.sock", "")
        done = run(ADTOPKD, *self.sockets())
        self.assert_ends(done, 1, file, "socket")
        self.assertTrue(os.path.exists(file))

    def test_keys(self):
        """None where the configuration says, and one that others may read."""
        self.assert_ends(run(ADTOPKD, *self.sockets(), "--key-file", self.path("key")), 2, "No such file")
        subprocess.run([ADTOPKCTL, "keygen", "--out", self.path("key")], check=True, stdout=subprocess.PIPE)
        os.chmod(self.path("key"), 0o644)
        done = run(ADTOPKD, *self.sockets(), "--key-file", self.path("key"))
        self.assert_ends(done, 2, "cannot start: --key-file: key_file: ")
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_path_too_long(self):
        done = run(ADTOPKD, "--socket", "/tmp/" + "x" * 200)
        self.assert_ends(done, 2, "--socket")

    def test_no_descriptors(self):
        def prepare():
            die_with_parent()
            resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))
        done = run(ADTOPKD, *self.sockets(), prepare=prepare)
        self.assert_ends(done, 1, "oo many open files")

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            done = run(ADTOPKD, *self.sockets(), "--listen", endpoint)
        self.assert_ends(done, 1, endpoint, "Address already in use")
        self.assertEqual(os.listdir(self.directory), [])

    def test_beyond_loopback(self):
        done = run(ADTOPKD, *self.sockets(), "--listen", "tcp://0.0.0.0:7400")
        self.assert_ends(done, 2, "0.0.0.0", "--insecure")

    def test_what_this_machine_lacks(self):
        """--check-config finds it before, and the service manager does not start the daemon again."""
        disk = self.enterContext(tempfile.TemporaryDirectory(dir=BUILD))
        memory = self.enterContext(tempfile.TemporaryDirectory(dir="/dev/shm"))
        os.chmod(memory, 0o755)
        for words, flag, value in (("must be on a tmpfs", "--store-folder", disk),
                                   ("on a tmpfs", "--store-folder", f"{disk}/new"),
                                   ("closed to others", "--store-folder", memory),
                                   ("Name or service not known", "--listen", "tcp://no..such:7400"),
                                   ("Name or service not known", "--trainers-listen", "tcp://no..such:7400"),
                                   ('engine "cuda": this node has no NVIDIA driver', "--engine", "cuda")):
            with self.subTest(flag=flag, words=words):
                command = [ADTOPKD, *self.sockets(), flag, value, "--insecure"]
                command += ["--trainers-owner=0"] if flag == "--trainers-listen" else []
                no_driver = ["env", "ADTOPK_CUDA_LIBRARY=/nowhere.so"]
                self.assert_ends(run(*no_driver, *command, "--check-config"), 1, words)
                self.assert_ends(run(*no_driver, *command), 2, "cannot start: ", words)
                self.assertEqual(os.listdir(self.directory), [])

    def test_what_may_come_later(self):
        """An address that the machine does not have yet: a later start may find it."""
        command = [ADTOPKD, *self.sockets(), "--listen", "tcp://192.0.2.1:7400", "--insecure"]
        self.assert_ends(run(*command, "--check-config"), 1, "192.0.2.1", "this machine does not have")
        self.assert_ends(run(*command), 1, "Cannot assign requested address")
        alone = ["unshare", "--net"]  # no name server answers there
        command = [*alone, ADTOPKD, *self.sockets(), "--listen", "tcp://no.such.invalid:7400", "--insecure"]
        if run(*alone, "true").returncode == 0:
            self.assert_ends(run(*command, "--check-config"), 1, "Temporary failure in name resolution")
            self.assert_ends(run(*command), 1, "cannot listen on")

    def test_a_group_that_is_missing(self):
        """The daemon runs, for root and its user only; the check tells it as a fault."""
        with Cluster(BUILD, nodes=1, settings={"session_group": "no-such-group"}) as cluster:
            cluster.stop()
            self.assertIn('warning life: session_group: there is no group "no-such-group"', cluster.daemons[0].log())
        done = run(ADTOPKD, *self.sockets(), "--session-group", "no-such-group", "--check-config")
        self.assert_ends(done, 1, "session_group", 'no group "no-such-group"')

    def test_wrong_policy(self):
        done = run(ADTOPKD, *self.sockets(), "--policy", '{"density": 2}')
        self.assert_ends(done, 2, "density")

    def test_served_already(self):
        with Cluster(BUILD, nodes=1) as cluster:
            daemon = cluster.daemons[0]
            done = run(ADTOPKD, "--socket", daemon.socket, "--control-socket", self.path("c"))
            self.assert_ends(done, 1, daemon.socket, "serves it already")
            done = run(ADTOPKD, "--socket", self.path("s"), "--control-socket", daemon.control)
            self.assert_ends(done, 1, daemon.control, "serves it already")
            self.assertEqual(daemon.ask("status")[0], 0)
            cluster.stop()


class Service(Command):
    TENSORS = [("a", "f32", "both", (32, 64))]

    def test_why_a_job_failed(self):
        """The node whose rank died and the node that was told: both can say it afterwards."""
        with Cluster(BUILD, nodes=2) as cluster:
            job = Job(cluster, BUILD, "short", [0, 1], self.TENSORS)
            self.addCleanup(job.kill)
            job.join().steps(3)
            self.assertEqual([cluster.status(node)["jobs"][0]["reason"] for node in (0, 1)],
                             ["", ""])
            job.ranks[1].kill()
            for node in (0, 1):
                wait_for(lambda: cluster.status(node)["jobs"][0]["state"] == "failed")
                record = cluster.status(node)["jobs"][0]
                self.assertIn("rank 1", record["reason"])
                self.assertEqual((record["name"], record["steps_done"]), ("short", 3))
                self.assertEqual((record["local_ranks"], record["world_size"]), (0, 2))
                self.assertLess(record["ended_s"], 60)
                for command in ("status", "jobs"):
                    code, out, _ = cluster.daemons[node].ask(command)
                    self.assertEqual(code, 5, out)
                    self.assertIn("failed: ", out)
                self.assertEqual(cluster.stats(node)["jobs"][0]["steps"], 3)
            job.kill()
            with Job(cluster, BUILD, "short", [0, 1], self.TENSORS) as again:
                again.join().steps(2)
            wait_for(lambda: [one["state"] for one in cluster.status(0)["jobs"]] ==
                     ["failed", "done"])  # the run that failed is not forgotten
            self.assertEqual(cluster.status(0)["jobs"][1]["reason"], "")
            cluster.stop()

    def stranger(self, node, own, other, peer, **more):
        """A daemon with one peer; returns (process, control socket, log)."""
        name = f"{node}-{own}"
        control, log = self.path(f"{name}.control"), self.path(f"{name}.log")
        environment = {**os.environ, **more}
        with open(log, "w", encoding="utf-8") as out:
            process = subprocess.Popen(
                [ADTOPKD, "--node", str(node), "--socket", self.path(f"{name}.sock"),
                 "--control-socket", control, "--listen", f"tcp://127.0.0.1:{own}",
                 "--peers", f"{peer}=tcp://127.0.0.1:{other}"],
                stderr=out, env=environment, preexec_fn=die_with_parent)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process, control, log

    def check_strangers(self, first, second, sentence):
        """Two daemons, each (node, peer); the second one says the sentence, once."""
        ports = free_ports(2)
        self.stranger(first[0], ports[0], ports[1], first[1])
        _, control, path = self.stranger(second[0], ports[1], ports[0], second[1],
                                         ADTOPK_WROKERS="2")

        def log():
            with open(path, encoding="utf-8") as text:
                return text.read()

        def strangers():
            return json.loads(run(ADTOPKCTL, "--socket", control, "--json", "status").stdout)["strangers"]
        wait_for(lambda: sentence in log())
        wait_for(lambda: strangers()["packets"] > 1)
        self.assertEqual(log().count("a packet "), 1)
        self.assertIn("there is no setting for the variable ADTOPK_WROKERS; did you mean", log())
        told = strangers()
        self.assertEqual((told["source"], told["destination"]), (first[0], first[1]))
        done = run(ADTOPKCTL, "--socket", control, "status")
        self.assertIn("configured wrongly", done.stdout)

    def test_both_are_node_0(self):
        self.check_strangers((0, 1), (0, 1), "a packet for node 1 came to this node 0, from node 0: `node` or "
                                             "`peers` is wrong on one side")

    def test_a_node_that_is_no_peer(self):
        self.check_strangers((2, 0), (0, 1), "a packet from node 2, which is not among the peers")

    def test_stops_in_order(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with Cluster(BUILD, nodes=1) as cluster:
                daemon = cluster.daemons[0]
                daemon.signal(number)
                daemon.wait_told(b"STOPPING=1", PATIENCE)
                self.assertEqual(daemon.process.wait(PATIENCE), 0)
                self.assertFalse(os.path.exists(daemon.socket))
                self.assertFalse(os.path.exists(daemon.control))
                self.assertIn("stopped", daemon.log())

    def test_replaces_what_a_killed_one_left(self):
        with Cluster(BUILD, nodes=1) as cluster:
            cluster.daemons[0].kill()
            self.assertEqual(cluster.daemons[0].ask("status")[0], 3)
            cluster.restart(0)
            self.assertEqual(cluster.daemons[0].ask("status")[0], 0)
            cluster.stop()

    def test_degraded_while_a_peer_is_down(self):
        with Cluster(BUILD, nodes=2, settings={"peer_timeout_ms": 2000}) as cluster:
            before = cluster.status(0)
            self.assertEqual(cluster.daemons[0].ask("status")[0], 0)
            cluster.daemons[1].kill()
            wait_for(lambda: cluster.daemons[0].ask("status")[0] == 5)
            code, out, _ = cluster.daemons[0].ask("status")
            self.assertEqual(code, 5)
            self.assertIn("down", out)
            cluster.restart(1)
            wait_for(lambda: cluster.daemons[0].ask("status")[0] == 0)
            after = cluster.status(0)
            self.assertEqual(before["incarnation"], after["incarnation"])
            self.assertNotEqual(before["peers"][0]["incarnation"],
                                after["peers"][0]["incarnation"])
            cluster.stop()

    def test_documents(self):
        with Cluster(BUILD, nodes=1) as cluster:
            status = cluster.status(0)
            self.assertEqual((status["schema"], status["node"], status["pid"]),
                             (1, 0, cluster.daemons[0].process.pid))
            self.assertEqual((status["sessions"], status["peers"], status["jobs"]), (0, [], []))
            stats = cluster.stats(0)
            self.assertEqual((stats["schema"], stats["jobs"], stats["links"]), (1, [], []))
            self.assertEqual(cluster.daemons[0].ask("--job", "nobody", "stats")[0], 1)
            cluster.stop()

    def test_log_as_json(self):
        with Cluster(BUILD, nodes=1, settings={"log_format": "json"}) as cluster:
            cluster.stop()
            lines = [json.loads(line) for line in cluster.daemons[0].log().splitlines()]
        self.assertEqual(lines[-1]["message"], "stopped")
        self.assertEqual({line["level"] for line in lines}, {"info"})

    def test_idle_daemon_sleeps(self):
        with Cluster(BUILD, nodes=2) as cluster:
            pid = cluster.daemons[0].process.pid
            before = cpu_seconds(pid)
            time.sleep(1)
            self.assertLess(cpu_seconds(pid) - before, 0.1)
            cluster.stop()

    def test_closed_standard_streams(self):
        """The log must not go where a socket took its descriptor."""
        command = [ADTOPKD, *self.sockets()]
        process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command],
                                   preexec_fn=die_with_parent)
        try:
            wait_for(lambda: run(ADTOPKCTL, "--socket", self.path("a.control"),
                                      "status").returncode == 0)
        finally:
            process.terminate()
            self.assertEqual(process.wait(PATIENCE), 0)


class ControlTool(Command):
    """adtopkctl against what is no healthy daemon."""

    def listen(self):
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(server.close)
        server.bind(self.path("fake"))
        server.listen()
        return server

    def start(self, *arguments):
        return subprocess.Popen([ADTOPKCTL, "--socket", self.path("fake"), *arguments],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=die_with_parent)

    def answer(self, reply):
        """Serves one request with these bytes, then hangs up; returns (exit status, stderr)."""
        server = self.listen()
        process = self.start("status")
        connection, _ = server.accept()
        with connection:
            self.assertEqual(connection.recv(100), b"\x08\x01\x12\x00")
            if reply is not None:
                connection.send(reply)
        _, error = process.communicate(timeout=PATIENCE)
        server.close()
        os.unlink(self.path("fake"))
        return process.returncode, error

    def test_no_daemon(self):
        done = run(ADTOPKCTL, "--socket", self.path("none"), "status")
        self.assert_ends(done, 3, self.path("none"), "No such file")

    def test_daemon_that_says_nothing(self):
        server = self.listen()
        process = self.start("--timeout", "300", "status")
        connection, _ = server.accept()
        with connection:
            _, error = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 3, error)
        self.assertIn("in time", error)

    def test_daemon_that_hangs_up(self):
        code, error = self.answer(None)
        self.assertEqual(code, 3, error)

    def test_rubbish(self):
        code, error = self.answer(b"\xff\xff\xff")
        self.assertEqual(code, 1, error)
        self.assertIn("malformed", error)

    def test_no_document(self):
        for text in (b"{", b"[]", b'{"schema":2}'):
            with self.subTest(text=text):
                code, error = self.answer(b"\x12" + bytes([len(text)]) + text)
                self.assertEqual(code, 1, error)
                self.assertIn("schema 1", error)

    def test_the_socket_for_trainers(self):
        with Cluster(BUILD, nodes=1) as cluster:
            for command in ("status", "stats"):
                done = run(ADTOPKCTL, "--socket", cluster.daemons[0].socket, command)
                self.assert_ends(done, 1, cluster.daemons[0].socket, "socket for trainers")
                self.assertEqual(done.stderr.count("\n"), 2, done.stderr)  # nothing else of the reply
            cluster.stop()

    def test_error_from_the_daemon(self):
        code, error = self.answer(b"\x08\x06\x12\x04nono")
        self.assertEqual(code, 4, error)
        self.assertIn("nono", error)

    def show(self, **job):
        """Serves the status of a daemon with this job; returns (exit status, stdout)."""
        encoded = json.dumps({"schema": 1, "jobs": [job]}).encode()
        server = self.listen()
        process = self.start("status")
        connection, _ = server.accept()
        with connection:
            connection.recv(100)
            size = bytes([len(encoded) & 0x7F | 0x80, len(encoded) >> 7])
            connection.send(b"\x12" + size + encoded)
            out, _ = process.communicate(timeout=PATIENCE)
        server.close()
        os.unlink(self.path("fake"))
        return process.returncode, out

    def test_degraded_while_a_job_waits_for_a_node(self):
        job = {"name": "j", "run_id": "0", "state": "active", "reason": "", "padding": "p" * 64}
        late = "rank 3 on node 1 (pid 9) to push tensor \"node 1, which\""
        for sentence, waiting, code, shown in (
                ("", None, 0, "active"),
                (late, {"kind": "push", "seconds": 0.5}, 0, f"waits for {late}\n"),
                (late, {"kind": "push", "seconds": 59}, 0, f"waits for {late}, for 59 s already\n"),
                (late, {"kind": "push", "seconds": 61, "stuck": True}, 5, "already: it is stuck\n"),
                ("node 1, which does not answer", {"kind": "peer", "seconds": 0}, 5, "node 1, which"),
                ("node 12, which restarted", {"kind": "return", "seconds": 1}, 5, "node 12, which")):
            with self.subTest(waiting=waiting):
                got, out = self.show(**job, waiting_for=sentence, waiting=waiting)
                self.assertEqual(got, code)
                self.assertIn(" ".join(shown.split()), " ".join(out.split()))

    def test_degraded_for_a_while_after_a_job_failed(self):
        job = {"name": "j", "run_id": "0", "padding": "p" * 64}
        for state, ended, code in (("failed", 1, 5), ("failed", 899, 5), ("failed", 901, 0),
                                   ("done", 1, 0), ("forming", None, 5)):
            with self.subTest(state=state, ended=ended):
                got, out = self.show(**job, state=state, ended_s=ended,
                                     reason="rank 3 is gone" if state == "failed" else "")
                self.assertEqual(got, code, out)

    def test_names_do_not_command_the_terminal(self):
        code, out = self.show(name="\x1b[2J\u009b2J" + "n" * 60, state="active", run_id="\u00fc")
        self.assertEqual(code, 0)
        self.assertNotIn("\x1b", out)
        self.assertNotIn("\u009b", out)
        self.assertLessEqual(max(map(len, out.splitlines())), 80)

    def test_not_allowed(self):
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        self.listen()
        os.chmod(self.path("fake"), 0o600)
        os.chmod(BUILD, os.stat(BUILD).st_mode | 0o555)
        done = run(ADTOPKCTL, "--socket", self.path("fake"), "status", prepare=become_nobody)
        self.assert_ends(done, 4, "Permission denied")


class PortsAreFree(unittest.TestCase):
    def test_distinct(self):
        ports = free_ports(20)
        self.assertEqual(len(set(ports)), 20)


if __name__ == "__main__":
    unittest.main()
