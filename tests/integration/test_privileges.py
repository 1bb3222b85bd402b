#!/usr/bin/env python3
"""A daemon that root starts becomes the user it is told, and its keys are in no core dump.

usage: test_privileges.py BUILD [unittest's arguments]
"""
import glob
import os
import pwd
import resource
import signal
import subprocess
import unittest

from build import ADTOPKD, BUILD
from cluster import die_with_parent, free_ports, make_key
from ranks import Rank
from service import WithDirectory, wait_for

USER = pwd.getpwnam("nobody")
STRANGER = 4002
NOTHING = "0000000000000000"


def with_privileges():
    """A parent with supplementary groups, as root often has."""
    die_with_parent()
    os.setgroups([0, 4, USER.pw_gid])


def with_cores():
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@unittest.skipUnless(os.getuid() == 0, "only root can become another user")
class User(WithDirectory):
    def setUp(self):
        super().setUp()
        os.chown(self.directory, USER.pw_uid, -1)
        self.key, _ = make_key(BUILD, self.path("node.key"))
        os.chown(self.key, USER.pw_uid, -1)

    def run_as_user(self):
        config = self.write("adtopkd.json", '{"log_level": "info"}')
        with open(self.path("log"), "wb") as log:
            process = self.start(
                "--config", config, "--user=nobody", "--key-file", self.key,
                f"--listen=tcp://127.0.0.1:{free_ports(1)[0]}", stderr=log,
                prepare=with_privileges)
        wait_for(lambda: "serves node 0" in self.read("log"))
        return process

    def test_nothing_is_left(self):
        process = self.run_as_user()
        threads = glob.glob(f"/proc/{process.pid}/task/*/status")
        self.assertGreater(len(threads), 2)
        for path in threads:
            with open(path, encoding="ascii") as text:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in text if ":\t" in line)
            self.assertEqual(set(status["Uid"].split()), {str(USER.pw_uid)})
            self.assertEqual(set(status["Gid"].split()), {str(USER.pw_gid)})
            self.assertLessEqual(set(status["Groups"].split()), {str(USER.pw_gid)})
            for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                self.assertEqual(status[name], NOTHING, name)
            self.assertEqual(status["NoNewPrivs"], "1")
        self.end(process)

    def test_it_works(self):
        process = self.run_as_user()
        rank = Rank(BUILD, "unix:" + self.path("a.sock"), "job", 0, 1,
                    through=["setpriv", f"--reuid={STRANGER}", "--clear-groups"])
        self.addCleanup(rank.kill)
        rank.do(rank.opening, "tensor a f32 both 8", "commit", "steps 3")
        rank.end()
        self.write("adtopkd.json", '{"log_level": "debug"}')
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "has been taken; changed: log_level" in self.read("log"))
        self.end(process)
        self.assertFalse(os.path.exists(self.path("a.sock")))  # it could tidy up

    def check(self, *arguments, prepare=die_with_parent):
        done = subprocess.run([ADTOPKD, "--check-config", *arguments], capture_output=True,
                              text=True, preexec_fn=prepare, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_check(self):
        """What is checked is what that user may read."""
        self.assertEqual(self.check("--user=nobody", "--key-file", self.key)[0], 0)
        os.chown(self.key, STRANGER, -1)
        code, text = self.check("--user=nobody", "--key-file", self.key)
        self.assertEqual(code, 1)
        self.assertIn("node.key", text)

    def test_file_of_root(self):
        """Root reads it at the start, and the daemon's user cannot read it again."""
        config = self.path("config.json")
        with open(config, "w", encoding="utf-8") as out:
            out.write("{}")
        for mode, warned in ((0o600, True), (0o644, False)):
            os.chmod(config, mode)
            code, text = self.check("--user=nobody", "--key-file", self.key, "--config", config)
            self.assertEqual(code, 0, text)
            self.assertEqual(f"warning: {config}: Permission denied: user nobody cannot read it again after a SIGHUP"
                             in text, warned, text)

    def test_folder_of_sockets(self):
        """That user may make sockets there."""
        self.assertEqual(self.check("--user=nobody", "--socket", self.path("a.sock"))[0], 0)
        os.chown(self.directory, 0, -1)
        os.chmod(self.directory, 0o755)
        for option in ("--socket", "--control-socket"):
            code, text = self.check("--user=nobody", option, self.path("a.sock"))
            self.assertEqual((code, "may not write to the folder" in text), (1, True), text)

    @unittest.skipIf(os.path.exists("/etc/adtopk/adtopkd.json"), "this machine has a configuration")
    def test_alone(self):
        """A daemon that nobody has told which node it is says that it is node 0, alone."""
        for arguments, alone in (((), True), (("--node", "0"), False)):
            with open(self.path("log"), "wb") as log:
                process = self.start(*arguments, stderr=log)
            wait_for(lambda: "serves node 0" in self.read("log"))
            self.end(process)
            self.assertEqual("this is node 0, alone" in self.read("log"), alone)

    def test_impossible(self):
        code, text = self.check("--user=4000000000")
        self.assertEqual((code, "this system has no user 4000000000" in text), (1, True), text)

        def stranger():
            die_with_parent()
            os.setgroups([])
            os.setuid(STRANGER)
        code, text = self.check("--user=nobody", prepare=stranger)
        self.assertEqual((code, "only root can become user nobody" in text), (1, True), text)


class Cores(WithDirectory):
    def dumps_core(self, name, *arguments):
        process = self.start(*arguments, name=name, cwd=self.directory, prepare=with_cores)
        wait_for(lambda: os.path.exists(self.path(f"{name}.control")))
        process.send_signal(signal.SIGABRT)
        dumped = os.WCOREDUMP(os.waitpid(process.pid, 0)[1])
        process.returncode = -signal.SIGABRT
        return dumped

    def test_keys_are_in_none(self):
        key, _ = make_key(BUILD, self.path("node.key"))
        listen = f"--listen=tcp://127.0.0.1:{free_ports(1)[0]}"
        self.assertFalse(self.dumps_core("keyed", "--key-file", key, listen))
        if not self.dumps_core("plain", listen):
            self.skipTest("this machine writes no core dumps at all")


if __name__ == "__main__":
    unittest.main()
