#!/usr/bin/env python3
"""The installed unit under a real systemd: two nodes with keys, jobs of two users, reload, watchdog, and
daemons that are killed and upgraded in mid-training.

usage: test_systemd.py BUILD [unittest's arguments]; skips (77) where no such machine can be made.
"""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import stores
import test_gigabyte as gigabyte
from build import BUILD
from machine import Impossible, Machine
from ranks import Job
from service import wait_for

ADDRESSES = ("10.77.0.1", "10.77.0.2")
USERS = (4001, 4002)
TENSORS = [("a", "f32", "both", (64, 128)), ("b", "f32", "dense", (64, 64))]
UNITS = ("adtopkd", "adtopkd1")  # of node 0 and 1; the second is the first with other folders
LONG = os.environ.get("ADTOPK_TEST_LONG") == "1"
KILLS = 100 if LONG else 5
UPGRADES = 20 if LONG else 4
GOES_ON = 3  # seconds from a daemon's end until ranks finish steps again
RESTART = 1  # of these, that systemd waits
MACHINE = None


def install():
    """What `ninja install` puts onto a machine, and the second node beside it."""
    subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], check=True,
                   env={**os.environ, "DESTDIR": MACHINE.root}, capture_output=True)
    return MACHINE.second_unit()


def install_build(program):
    """Puts another daemon in the place of the installed one, which runs on, as an upgrade does."""
    sbin = MACHINE.path(f"{MACHINE.prefix[1:]}/sbin")
    shutil.copy(program, f"{sbin}/adtopkd.new")
    os.replace(f"{sbin}/adtopkd.new", f"{sbin}/adtopkd")


class Training:
    """A job that takes one step after the other without a pause, and when each was finished."""

    AHEAD = 4  # commands that a rank has before it has answered

    def __init__(self, cluster, name):
        self.job = Job(cluster, BUILD, name, stores.HOMES, stores.TENSORS, stores.text(),
                       before=["gradients random 7"], through=MACHINE.enter(USERS[0]))
        self.over = threading.Event()
        self.finished = []
        self.outcome = None

    def take(self):
        answers = {rank.answer() for rank in self.job.ranks}
        self.finished.append(time.monotonic())
        if len(answers) != 1:
            raise AssertionError(f"the ranks differ: {answers}")
        return answers.pop()

    def run(self):
        """Trains until it is over. Returns the last answer."""
        for rank in self.job.ranks:
            rank.send(*["steps 1"] * self.AHEAD)
        while not self.over.is_set():
            for rank in self.job.ranks:
                rank.send("steps 1")
            self.take()
        return [self.take() for _ in range(self.AHEAD)][-1]

    def pause(self, began):
        """The longest time without a finished step since then, once ranks finish steps that they began after
        this call: at most AHEAD + 1 of them wait to be read, and the next one may be over, too."""
        goal = len(self.finished) + self.AHEAD + 3
        wait_for(lambda: self.outcome.done() or len(self.finished) >= goal, "the job stands still")
        times = [began, *(when for when in self.finished if when > began)]
        return max(after - before for before, after in zip(times, times[1:]))


class Unit(unittest.TestCase):
    """One machine for all: the tests run in the order of their names."""

    @staticmethod
    def configure(node, **more):
        """The configuration of a node, as the guide says it: address, key, peer."""
        other = 1 - node
        folder = "/run/adtopk" + ("1" if node else "")
        document = {"node": node, "listen": f"tcp://{ADDRESSES[node]}:7400",
                    "key_file": f"/etc/adtopk/node{node}.key",
                    "socket": f"{folder}/trainers/adtopkd.sock",
                    "control_socket": f"{folder}/control/adtopkd.sock",
                    "peers": [{"node": other, "endpoint": f"tcp://{ADDRESSES[other]}:7400",
                               "key": MACHINE.keys[other]}], **more}
        name = "adtopkd.json" if node == 0 else "node1.json"
        MACHINE.run("sh", "-c", f"cat >/etc/adtopk/{name} <<'END'\n{json.dumps(document)}\nEND\n")

    @staticmethod
    def address(node):
        """What a trainer on that node gives as $ADTOPK_ADDRESS."""
        return f"unix:/run/adtopk{'1' if node else ''}/trainers/adtopkd.sock"

    @staticmethod
    def ctl(node, *command, uid=0, check=True):
        socket = f"/run/adtopk{'1' if node else ''}/control/adtopkd.sock"
        return MACHINE.run(f"{MACHINE.prefix}/bin/adtopkctl", "--socket", socket, *command,
                           uid=uid, check=check)

    def status(self, node):
        return json.loads(self.ctl(node, "--json", "status", check=False).stdout)

    @staticmethod
    def show(unit, name):
        return MACHINE.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def wait_connected(self):
        wait_for(lambda: all(self.status(node)["peers"][0]["state"] == "up" for node in (0, 1)))

    def train(self, run):
        """Each user trains a job on both nodes, at the same time."""
        jobs = [Job(self, BUILD, "shared", [0, 1], TENSORS, run=run, through=MACHINE.enter(uid))
                for uid in USERS]
        for job in jobs:
            self.addCleanup(job.kill)
            job.join()
        for job in jobs:
            self.assertEqual(job.steps(20)[0], "ok")
        owners = {job["owner"] for job in self.status(0)["jobs"] if job["state"] == "active"}
        self.assertEqual(owners, set(USERS))
        for job in jobs:
            job.end()

    def test_1_starts_as_the_guide_says(self):
        MACHINE.run("systemd-sysusers")
        MACHINE.run("systemd-tmpfiles", "--create")
        MACHINE.keys = [MACHINE.run(f"{MACHINE.prefix}/bin/adtopkctl", "keygen", "--out",
                                    f"/etc/adtopk/node{node}.key").stdout.strip()
                        for node in (0, 1)]
        MACHINE.run("chown", "adtopk", "/etc/adtopk/node0.key", "/etc/adtopk/node1.key")
        for node, unit in enumerate(UNITS):
            self.configure(node)
            MACHINE.drop_in(unit, "network", "IPAddressAllow=10.77.0.0/24")
        checked = MACHINE.run("runuser", "-u", "adtopk", "--", f"{MACHINE.prefix}/sbin/adtopkd",
                              "--check-config")
        self.assertEqual(checked.stdout, "the configuration is correct\n")
        self.assert_root_checks_as_adtopk()
        MACHINE.run("systemctl", "daemon-reload")
        for unit in UNITS:
            MACHINE.run("systemctl", "enable", "--now", unit, check=False)
            self.assertEqual(self.show(unit, "ActiveState"), "active",
                             MACHINE.journal("--unit", unit))
        self.wait_connected()

    def assert_root_checks_as_adtopk(self):
        """What root may read does not help the service."""
        for path in ("/etc/adtopk/node0.key", "/etc/adtopk/adtopkd.json"):
            owner, mode = MACHINE.run("stat", "-c", "%U:%G %a", path).stdout.split()
            MACHINE.run("chown", "root:root", path)
            MACHINE.run("chmod", "0600", path)
            checked = MACHINE.run(f"{MACHINE.prefix}/sbin/adtopkd", "--check-config", check=False)
            self.assertEqual((checked.returncode, checked.stdout), (1, ""))
            self.assertIn("checking as user adtopk", checked.stderr)
            self.assertIn(path, checked.stderr)
            MACHINE.run("chown", owner, path)
            MACHINE.run("chmod", mode, path)

    def test_2_two_users_train(self):
        self.assertEqual(self.status(0)["network"]["protection"], "curve")
        self.train("first")
        denied = self.ctl(0, "drain", uid=USERS[0], check=False)
        self.assertEqual(denied.returncode, 4, denied.stderr)

    def test_3_has_no_privileges(self):
        pid = self.show("adtopkd", "MainPID")
        status = MACHINE.run("cat", f"/proc/{pid}/status").stdout
        for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
            self.assertIn(line, status)
        self.assertNotIn("Uid:\t0", status)

    def test_3_opens_only_the_devices_of_gpus(self):
        """Where the worker of GPUs is installed; elsewhere none."""
        folder = MACHINE.path(f"{MACHINE.prefix[1:]}/lib/systemd/system/adtopkd.service.d")
        gpus = os.path.exists(os.path.join(folder, "gpu.conf"))
        self.assertEqual("/gpu.conf" in self.show("adtopkd", "DropInPaths"), gpus)
        self.assertEqual(self.show("adtopkd", "PrivateDevices"), "no" if gpus else "yes")
        allowed = set(self.show("adtopkd", "DeviceAllow").splitlines())
        self.assertEqual(allowed - {"char-rtc r"}, {"char-nvidia* rw"} if gpus else set())

    def test_4_closed_beyond_what_is_allowed(self):
        """Without the drop-in the nodes do not reach each other."""
        if not MACHINE.filters_addresses():
            self.skipTest("this kernel does not filter a unit's addresses")
        for unit in UNITS:
            MACHINE.drop_in(unit, "network", "")
        MACHINE.run("systemctl", "daemon-reload")
        MACHINE.run("systemctl", "restart", *UNITS)
        self.assertRaises(AssertionError, wait_for, self.any_up, seconds=2)
        for unit in UNITS:
            MACHINE.drop_in(unit, "network", "IPAddressAllow=10.77.0.0/24")
        MACHINE.run("systemctl", "daemon-reload")
        MACHINE.run("systemctl", "restart", *UNITS)
        self.wait_connected()

    def any_up(self):
        return any(self.status(node)["peers"][0]["state"] == "up" for node in (0, 1))

    def test_5_reload(self):
        self.configure(0, log_level="debug")
        MACHINE.run("systemctl", "reload", "adtopkd")
        wait_for(lambda: "has been taken; changed: log_level" in
                 MACHINE.journal("--unit=adtopkd"))
        self.configure(0, log_level="shouting")
        refused = MACHINE.run("systemctl", "reload", "adtopkd", check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertEqual(self.show("adtopkd", "ActiveState"), "active")
        self.assertIn("shouting", MACHINE.journal("--unit=adtopkd"))
        self.configure(0)
        MACHINE.run("systemctl", "reload", "adtopkd")

    def test_6_watchdog(self):
        MACHINE.drop_in("adtopkd1", "watchdog", "WatchdogSec=2")
        MACHINE.run("systemctl", "daemon-reload")
        MACHINE.run("systemctl", "restart", "adtopkd1")
        first = self.show("adtopkd1", "MainPID")
        MACHINE.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "adtopkd1")
        wait_for(lambda: self.show("adtopkd1", "MainPID") not in ("0", first) and
                 self.show("adtopkd1", "ActiveState") == "active")
        self.assertIn("Watchdog timeout", MACHINE.journal("--unit=adtopkd1"))
        self.wait_connected()
        self.train("second")

    def test_7_the_exporter(self):
        if not os.path.exists(MACHINE.path(f"{MACHINE.prefix[1:]}/bin/adtopk-exporter")):
            self.skipTest("built without the exporter")
        MACHINE.run("systemctl", "start", "adtopk-exporter.socket")  # the first request starts it
        wait_for(lambda: MACHINE.answer("/healthz") == "ok\n")
        self.assertIn('adtopk_job_state{owner="4001",job_name="shared",run="second",state="done"} 1\n',
                      MACHINE.answer("/metrics"))
        self.assert_has_no_network()
        MACHINE.run("systemctl", "stop", "adtopk-exporter.socket", "adtopk-exporter")
        self.assertEqual(self.show("adtopk-exporter", "Result"), "success")

    def assert_has_no_network(self):
        """It has the socket, and nothing that could lead it elsewhere."""
        pid = self.show("adtopk-exporter", "MainPID")
        devices = MACHINE.run("cat", f"/proc/{pid}/net/dev").stdout.splitlines()[2:]
        self.assertEqual([line.split(":")[0].strip() for line in devices], ["lo"])
        self.assertNotEqual(*(MACHINE.run("readlink", f"/proc/{one}/ns/net").stdout for one in (1, pid)))

    def assert_fails_once(self):
        MACHINE.run("systemctl", "start", "adtopkd", check=False)
        self.assertEqual((self.show("adtopkd", "ActiveState"), self.show("adtopkd", "NRestarts")), ("failed", "0"))
        MACHINE.run("systemctl", "reset-failed", "adtopkd")

    def pass_a_foreign_socket(self):
        MACHINE.write("etc/systemd/system/adtopkd.socket", "[Socket]\nListenSequentialPacket=/run/elsewhere\n")
        MACHINE.run("systemctl", "daemon-reload")
        MACHINE.run("systemctl", "start", "adtopkd.socket")
        self.assert_fails_once()
        self.assertIn("which is no socket at /run/adtopk/trainers", MACHINE.journal("--unit=adtopkd"))
        MACHINE.run("systemctl", "stop", "adtopkd.socket")
        MACHINE.run("rm", "/etc/systemd/system/adtopkd.socket")
        MACHINE.run("systemctl", "daemon-reload")

    def test_8_what_a_restart_can_mend(self):
        """An address that is not there yet is waited for. A wrong configuration, key or socket is told of once."""
        MACHINE.run("systemctl", "stop", "adtopkd")
        self.configure(0, log_level="shouting")
        self.assert_fails_once()
        self.configure(0)
        MACHINE.run("chmod", "0644", "/etc/adtopk/node0.key")
        self.assert_fails_once()
        MACHINE.run("chmod", "0600", "/etc/adtopk/node0.key")
        self.pass_a_foreign_socket()
        self.configure(0, listen="tcp://10.88.0.1:7400")
        MACHINE.run("systemctl", "start", "--no-block", "adtopkd")
        wait_for(lambda: int(self.show("adtopkd", "NRestarts")) > 5)  # after five, systemd gives up by default
        self.assertIn("10.88.0.1", MACHINE.journal("--unit=adtopkd"))
        MACHINE.add_addresses("10.88.0.1")
        wait_for(lambda: self.show("adtopkd", "ActiveState") == "active")
        MACHINE.run("systemctl", "stop", "adtopkd")
        self.configure(0)
        MACHINE.run("systemctl", "start", "adtopkd")

    @staticmethod
    def folder():
        """Which folder that is: a container keeps the one that it has mounted."""
        return MACHINE.run("stat", "--format=%i", "/run/adtopk/trainers").stdout

    def kept(self):
        """How many files of stores systemd keeps."""
        return int(self.show("adtopkd", "NFileDescriptorStore"))

    def kill(self, node, draw):
        """SIGKILL at a random moment; returns when that was."""
        process = MACHINE.number_here(self.show(UNITS[node], "MainPID"))
        time.sleep(draw.uniform(0, 0.3))
        began = time.monotonic()
        os.kill(process, signal.SIGKILL)
        return began

    def assert_undisturbed(self, name, disturb):
        """disturb(training) runs while a job trains, which has then the bits of one that nobody disturbs."""
        training = Training(self, name)
        self.addCleanup(training.job.kill)
        training.job.join()
        with ThreadPoolExecutor(max_workers=1) as pool:
            training.outcome = pool.submit(training.run)
            try:
                disturb(training)
            finally:
                training.over.set()
                got = training.outcome.result()  # what the ranks say is the better reason
        self.assertIn(": conserved", self.ctl(0, "verify", f"{USERS[0]}:{name}").stdout)
        training.job.end()
        alone = Training(self, f"{name}-alone")
        self.addCleanup(alone.job.kill)
        steps = len(training.finished)
        self.assertEqual(alone.job.join().each(f"steps {steps}"), [got] * len(alone.job.ranks))
        alone.job.end()
        return steps

    def assert_in_time(self, took, what):
        """The worst one shows how busy the machine is: after 10 s ranks give up by themselves."""
        middle, worst = statistics.median(took), max(took)
        print(f"{what}: ranks went on after {middle:.2f} s, at most {worst:.2f} s", flush=True)
        self.assertLess(middle, GOES_ON)

    def test_9_daemons_are_killed(self):
        draw, took = random.Random(18), []

        def disturb(training):
            for _ in range(KILLS):
                took.append(training.pause(self.kill(draw.randrange(2), draw)))

        steps = self.assert_undisturbed("killed", disturb)
        self.assert_in_time(took, f"{KILLS} kills in {steps} steps")

    @unittest.skipUnless(LONG, "it takes a quarter of a minute, and 14 GB of memory")
    def test_9_daemons_with_a_gigabyte_are_killed(self):
        """Of residuals on each node, in mid-step: how long until that step is over."""
        if not gigabyte.has_room():
            self.skipTest("it needs 5 GB of /dev/shm, and 14 GB of memory in all")
        job = Job(self, BUILD, "gigabyte", [0, 1], gigabyte.TENSORS, stores.text(density=0.001),
                  before=["gradients random 7"], through=MACHINE.enter(USERS[0]))
        self.addCleanup(job.kill)
        job.join()
        gigabyte.step(job)  # it touches all memory first
        plain, draw, took, slow = gigabyte.step(job), random.Random(20), [], []
        while len(took) < gigabyte.KILLS:
            before = gigabyte.busy()
            unit = UNITS[len(took) % 2]
            wait_for(lambda name=unit: self.show(name, "ActiveState") == "active")
            process = MACHINE.number_here(self.show(unit, "MainPID"))
            gigabyte.push(job)
            time.sleep(draw.uniform(0, plain))
            began = time.monotonic()
            os.kill(process, signal.SIGKILL)
            gigabyte.await_step(job)
            if time.monotonic() - began > RESTART:  # else it was over before
                took.append(time.monotonic() - began)
                slow.append((before + gigabyte.busy()) / 2)
        self.assertIn(": conserved", self.ctl(0, "verify", f"{USERS[0]}:gigabyte").stdout)
        job.end()
        print(f"{gigabyte.KILLS} kills with 1 GB of residuals: the step was over after {min(took):.2f} to "
              f"{max(took):.2f} s; without a kill it takes {plain:.2f} s. Meanwhile everything took {min(slow):.1f} "
              f"to {max(slow):.1f} times as long as it needs", flush=True)
        for seconds, factor in zip(took, slow):
            self.assertLess(seconds / factor, GOES_ON, (took, slow))

    def test_9_daemons_are_upgraded(self):
        """And downgraded. Some are restarted for that, others are killed and started by systemd."""
        draw, took = random.Random(19), []
        own = MACHINE.path(f"{MACHINE.prefix[1:]}/sbin/adtopkd.own")
        shutil.copy(own.removesuffix(".own"), own)
        builds = (os.path.join(BUILD, "tests", "integration", "adtopkd-release"), own)
        versions = {}

        def disturb(training):
            for number in range(UPGRADES):
                node = number // 2 % 2  # each one forth and back
                install_build(builds[number % 2])
                began = time.monotonic()
                if draw.random() < 0.5:
                    began = self.kill(node, draw)
                else:
                    MACHINE.run("systemctl", "restart", UNITS[node])
                took.append(training.pause(began))
                status = self.ctl(node, "--json", "status")
                versions.setdefault(number % 2, set()).add(json.loads(status.stdout)["version"])

        steps = self.assert_undisturbed("upgraded", disturb)
        self.assert_in_time(took, f"{UPGRADES} upgrades in {steps} steps")
        self.assertEqual([len(versions[build]) for build in (0, 1)], [1, 1], versions)
        self.assertNotEqual(versions[0], versions[1])

    def test_9_killed_and_stopped(self):
        """Jobs go on, because systemd keeps their stores."""
        first = self.show("adtopkd", "MainPID")
        folder = self.folder()
        job = Job(self, BUILD, "goes-on", [0, 1], TENSORS, through=MACHINE.enter(USERS[0]))
        self.addCleanup(job.kill)
        job.join().steps(5)
        self.assertGreater(self.kept(), 3)
        MACHINE.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", "adtopkd")
        wait_for(lambda: self.show("adtopkd", "MainPID") not in ("0", first) and
                 self.show("adtopkd", "ActiveState") == "active")
        self.assertEqual(job.steps(5)[:2], ("ok", 10))
        MACHINE.run("systemctl", "restart", "adtopkd")
        self.assertEqual(job.steps(5)[:2], ("ok", 15))
        self.assertEqual(self.folder(), folder)
        job.end()
        wait_for(lambda: self.kept() == 0)
        MACHINE.run("systemctl", "stop", *UNITS)
        for unit in UNITS:
            self.assertEqual(self.show(unit, "Result"), "success")
            self.assertEqual(self.show(unit, "ActiveState"), "inactive")


if __name__ == "__main__":
    with Machine(BUILD) as MACHINE:
        try:
            MACHINE.prepare()
            MACHINE.prefix = install()
            MACHINE.boot()
            MACHINE.add_addresses(*ADDRESSES)
        except Impossible as reason:
            print(f"skipped: {reason}")
            sys.exit(77)
        unittest.main(failfast=True)
