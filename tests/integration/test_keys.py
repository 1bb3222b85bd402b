#!/usr/bin/env python3
"""Nodes with keys: training under CURVE, strangers at the ports, keys that change.

usage: test_keys.py BUILD [unittest's arguments]
"""
import json
import os
import re
import signal
import subprocess
import unittest

from build import BUILD
from cluster import make_key
from scene import Scene
from service import wait_for

HAMMER_SECONDS = 2


def open_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Keyed(Scene):
    """All of it under CURVE."""

    keys = True
    protection = "curve"
    attacks = ("unknown-key", "plaintext", "rubbish", "flood")

    def document(self, node):
        with open(self.cluster.daemons[node].config, encoding="utf-8") as config:
            return json.load(config)

    def change(self, node, **changes):
        """Changes a node's configuration and makes it read that; key: of its only peer, None to
        take it away."""
        document = self.document(node)
        if "key" in changes:
            document["peers"][0]["key"] = changes.pop("key")
            if document["peers"][0]["key"] is None:
                del document["peers"][0]["key"]
        document.update(changes)
        with open(self.cluster.daemons[node].config, "w", encoding="utf-8") as config:
            json.dump(document, config)
        return self.reload(node)

    def reload(self, node):
        """Sends SIGHUP; returns the line of the log that tells how it went."""
        daemon = self.cluster.daemons[node]
        seen = len(daemon.log())
        daemon.signal(signal.SIGHUP)
        told = re.compile(r".*(?:has been taken|configuration stays).*\n")
        wait_for(lambda: told.search(daemon.log(), seen), daemon.log_tail())
        return told.search(daemon.log(), seen).group()

    def public(self, node):
        return self.cluster.keys[node][1]

    def stranger(self, kind):
        document = self.document(0)
        port = "bulk_listen" if kind == "token" else "listen"
        return subprocess.Popen(
            [os.path.join(BUILD, "tests", "integration", "test-stranger"), kind,
             document[port], self.public(0), str(HAMMER_SECONDS)],
            stdout=subprocess.PIPE, text=True)

    def test_protection(self):
        network = self.cluster.status(0)["network"]
        self.assertEqual(network["protection"], self.protection)
        job = self.joined([0, 1, 1])
        job.each("gradients random 1")
        self.assertEqual(job.steps(50)[0], "ok")
        job.end()

    def test_strangers(self):
        self.hammer()

    def hammer(self):
        """Strangers knock while jobs train; returns what was refused before."""
        job = self.joined([0, 1, 1])
        job.each("gradients random 1")
        before = self.cluster.status(0)["network"]["refused"]
        strangers = [self.stranger(kind) for kind in self.attacks]
        steps = 0
        while any(one.poll() is None for one in strangers):
            self.assertEqual(job.steps(5)[0], "ok")
            self.bystander.check()
            steps += 5
        for one in strangers:
            self.assertGreater(int(one.communicate()[0]), 0)
            self.assertEqual(one.returncode, 0)
        self.assertGreater(steps, 0)
        self.assertEqual(job.steps(5)[0], "ok")
        job.end()

        def after():
            return self.cluster.status(0)["network"]["refused"]
        for kind in ("keys", "handshakes"):
            wait_for(lambda: after()[kind] > before[kind], f"no refused {kind}")
        self.assertEqual(after()["packets"], 0)  # nothing of theirs came that far
        link, = self.cluster.stats(0)["links"]
        self.assertEqual(link["malformed"], 0)
        log = self.cluster.daemons[0].log()
        self.assertIn("is no peer's", log)
        self.assertIn("refused a connection to tcp://", log)
        return before

    def test_rotation(self):
        """Nobody restarts, the job beside trains on, and no step is withdrawn."""
        old_file, old = self.cluster.keys[1]
        new_file, new = make_key(BUILD, os.path.join(self.cluster.directory, "rotated.key"))
        for first, second, path in ((old, new, new_file), (new, old, old_file)):
            self.assertIn("taken; changed: peers", self.change(0, key=[first, second]))
            self.bystander.check()
            self.assertIn("taken; changed: key_file", self.change(1, key_file=path))
            self.bystander.check()
            self.assertIn("taken; changed: peers", self.change(0, key=second))
            self.bystander.check()
        os.unlink(new_file)

    def test_keys_that_are_refused(self):
        path = self.cluster.keys[0][0]
        other = self.public(1)
        os.chmod(path, 0o644)
        self.assertIn(f"{path}: mode 0644 lets others read it", self.reload(0))
        os.chmod(path, 0o600)
        os.rename(path, path + ".away")
        self.assertIn("No such file", self.reload(0))
        os.rename(path + ".away", path)
        self.assertIn("a key is 40 characters", self.change(0, key="short"))
        self.assertIn("this node's own key", self.change(0, key=self.public(0)))
        self.assertIn("has no \"key\"", self.change(0, key=None))
        self.assertIn("has been taken; changed: nothing", self.change(0, key=other))
        self.bystander.check()


class ControlOnly(Keyed):
    """Control under CURVE, bulk in the clear, and connections that several threads serve."""

    settings = {"data_protection": "none", "network_threads": 3}
    protection = "control only"
    attacks = ("unknown-key", "plaintext", "rubbish", "flood", "token")

    def test_strangers(self):
        before = self.hammer()["tokens"]
        wait_for(lambda: self.cluster.status(0)["network"]["refused"]["tokens"] > before)
        self.assertIn("no valid token", self.cluster.daemons[0].log())

    def test_threads(self):
        for daemon in self.cluster.daemons:
            tasks = f"/proc/{daemon.process.pid}/task"
            names = [open_text(f"{tasks}/{task}/comm") for task in os.listdir(tasks)]
            self.assertEqual(sum("/IO/" in name for name in names), 3, names)

    def test_warning(self):
        for daemon in self.cluster.daemons:
            self.assertIn("data_protection none: bulk between nodes is not encrypted", daemon.log())


if __name__ == "__main__":
    unittest.main()
