#!/usr/bin/env python3
"""The configuration of adtopkd: how it is shown, and how it changes while the daemon runs.

usage: test_reload.py BUILD [unittest's arguments]
"""
import contextlib
import json
import os
import re
import signal
import subprocess
import unittest

import digits
from build import ADTOPKD, BUILD
from cluster import Cluster, die_with_parent, free_ports
from ranks import Job
from service import PATIENCE, TENSORS, WithDirectory, wait_for

NOBODY = 65534


class Show(WithDirectory):
    """--check-config and --print-config."""

    def ask(self, *arguments, **more):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("ADTOPK_")}
        return subprocess.run([ADTOPKD, *arguments], env={**environment, **more}, text=True,
                              capture_output=True, check=False, timeout=PATIENCE)

    def test_check_warns(self):
        done = self.ask("--check-config", ADTOPK_WROKERS="2", ADTOPK_WORKERS="2")
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "the configuration is correct; there is no /etc/adtopk/adtopkd.json\n",
                          "adtopkd: warning: there is no setting for the variable "
                          "ADTOPK_WROKERS; did you mean \"ADTOPK_WORKERS\"?\n"))

    def test_lines(self):
        config = self.write("c.json", '{"node": 1,\n"policy": {\n"density": 0.1,\n"rules": ['
                            '{"match": "a", "scope": "node"},\n{"match": "b",\n"density": 2}]}}')
        done = self.ask("--check-config", "--config", config)
        self.assertEqual(done.returncode, 1)
        self.assertIn("c.json:6:12: rules[1]: ", done.stderr)
        config = self.write("c.json", '{"window": 70000,\n\n"part_size": 1000000}')
        done = self.ask("--print-config", "--config", config)
        self.assertIn("c.json:3:14: part_size", done.stderr)
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_print(self):
        config = self.write("c.json", '{"node": 1,\n"window": 70000, "part_size": 5000,\n'
                            '"peers": []}')
        done = self.ask("--print-config", "--config", config, "--log-level=debug",
                        ADTOPK_PART_SIZE="6000")
        document = json.loads(done.stdout)
        self.assertEqual((done.returncode, document["schema"], document["file"]), (0, 1, config))
        settings = document["settings"]
        self.assertEqual(settings["window"],
                         {"value": 70000, "source": f"{config}:2", "live": False,
                          "minimum": 65536, "maximum": 4294967296})
        self.assertEqual(settings["part_size"]["source"], "ADTOPK_PART_SIZE")
        self.assertEqual(settings["log_level"],
                         {"value": "debug", "source": "--log-level", "live": True,
                          "choices": ["error", "warning", "info", "debug"]})
        self.assertEqual(settings["socket"]["source"], "default")
        # What is printed can be a configuration again, where the group is there.
        again = self.write("again.json", json.dumps(
            {key: setting["value"] for key, setting in settings.items()
             if setting["value"] and key != "control_group"}))
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

    @staticmethod
    def place(daemon, key):
        """Where a key stands in the file: the log names line and column, but shows no line."""
        with open(daemon.config, encoding="utf-8") as file:
            before = file.read().split(key)[0]
        return f".json:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "

    def hang_up(self, daemon, *expected):
        """Sends SIGHUP; the next answer in the log has all of these words."""
        answer = re.compile(r"(?:the configuration has been taken|the old configuration stays"
                            r"|taken only in part).*\n")
        start = os.path.getsize(daemon.log_path)

        def found():
            with open(daemon.log_path, "rb") as log:
                log.seek(start)
                return answer.search(log.read().decode(errors="replace"))
        daemon.signal(signal.SIGHUP)
        wait_for(found, daemon.log_tail())
        for words in expected:
            self.assertIn(words, found().group())

    def test_taken_or_kept_while_training(self):
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "train", [0, 1], TENSORS) as job:
            daemon = cluster.daemons[0]
            job.join()
            for rank in job.ranks:
                rank.send("steps 500")
            self.hang_up(daemon, "taken", "changed: nothing")
            self.change(daemon, log_level="debug", stop_timeout_ms=3000)
            self.hang_up(daemon, "taken", "changed: log_level, stop_timeout_ms")
            for rank in job.ranks:  # the first steps may be over
                rank.send("steps 50")
            wait_for(lambda: "debug trace" in daemon.log())
            self.change(daemon, log_level="info", log_format="json")
            self.hang_up(daemon, "taken", "log_level, log_format")
            self.change(daemon, log_format=None, workers=3)
            self.hang_up(daemon, "stays", "needs a restart", 'workers')
            self.change(daemon, workers=None, nod=1)
            self.hang_up(daemon, "stays", "unknown key", "nod", self.place(daemon, '"nod"'))
            self.change(daemon, nod=None, log_format="text", policy={"densty": 1})
            self.hang_up(daemon, "stays", "densty", self.place(daemon, '"densty"'))
            self.replace(daemon, '{"node": 0,\n')
            self.hang_up(daemon, "stays", "is never closed")
            self.assertTrue(daemon.log().splitlines()[-1].startswith("{"))  # still as JSON lines
            for _ in range(2):
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

    def digits(self, cluster, job):
        """The example trainer, one rank a node."""
        # Its own policy, so that it does not matter when a rank opens.
        policy = self.write("policy.json", '{"density": 0.01}')
        return digits.start(self, cluster, [0, 1], digits.unpack(self.directory), "--steps", "20",
                            "--job", job, "--policy", policy)

    def test_while_the_digits_train(self):
        """Good and bad configurations in turn: the same parameters as without any."""
        with Cluster(BUILD, nodes=2) as cluster:
            undisturbed = digits.parameters(self, self.digits(cluster, "undisturbed"))
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
            self.assertEqual(digits.parameters(self, processes), undisturbed)
            cluster.stop()

    def test_flood(self):
        with Cluster(BUILD, nodes=2) as cluster, \
                Job(cluster, BUILD, "train", [0, 1], TENSORS) as job:
            daemon = cluster.daemons[0]
            job.join()
            for rank in job.ranks:
                rank.send("steps 500")
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
            self.assertEqual(process.wait(PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()
