#!/usr/bin/env python3
"""The packages of deploy/package on two machines, each a bare Debian 12 with systemd, joined by a cable: installed
and configured as deploy/operators.md says. Two users train digits through the sockets of their nodes while a
policy, a key and the release change, and a daemon hangs. Then the nodes are drained, and purged. lintian has
nothing to say of the packages.

usage: test_packages.py BUILD [unittest's arguments]; with ADTOPK_TEST_LONG=1 only, because it builds
everything anew. Skips (77) without that, and where no such machines can be made.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

from build import BUILD
from cluster import die_with_parent
from document import blocks
from machine import Impossible, join, youngest_child
from packages import FOLDER, LATER, ROOT, Debian, build_releases
from service import wait_for

NAMES = ("adtopkd", "adtopk-tools", "adtopk-exporter", "libadtopk-client1", "adtopk-doc")
ADDRESSES = ("10.0.0.1", "10.0.0.2")  # as in operators.md
USERS = (4001, 4002)
DATA = f"/{FOLDER}/digits.csv"
REPLACED_S = 12  # seconds until a daemon that hangs is replaced
MACHINES = []


def written(first_line):
    """The block of operators.md that begins with this line."""
    with open(os.path.join(ROOT, "deploy/operators.md"), encoding="utf-8") as text:
        return next(block.text for block in blocks(text.read()) if block.lines[0] == first_line)


def status(machine):
    """What the daemon says; nothing while there is none."""
    return json.loads(machine.run("adtopkctl", "--json", "status", check=False).stdout or '{"jobs": [], "peers": []}')


def steps():
    """{(node, user): steps of the user's job, as the node says it}"""
    return {(node, job["owner"]): job["steps_done"] for node, machine in enumerate(MACHINES)
            for job in status(machine)["jobs"] if job["state"] == "active"}


def pid(machine):
    return machine.run("systemctl", "show", "--value", "--property=MainPID", "adtopkd").stdout.strip()


class Training:
    """A job of a user: the example trainer, with a rank on each machine, as the packages have it."""

    def __init__(self, user, count, **options):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ADTOPK_")}
        self.ranks = [subprocess.Popen(
            [*machine.enter(user), "adtopk-digits", "--data", DATA, "--job", "digits", "--rank", str(rank),
             "--world", str(len(MACHINES)), "--steps", str(count)], stdin=subprocess.DEVNULL, env=environment,
            text=True, preexec_fn=die_with_parent, **options) for rank, machine in enumerate(MACHINES)]

    def results(self):
        """The hash of the parameters with which each rank ends."""
        said = [rank.communicate(timeout=300)[0] for rank in self.ranks]
        assert all(rank.returncode == 0 for rank in self.ranks), said
        return [re.search(r"parameters ([0-9a-f]{16})", text)[1] for text in said]

    def kill(self):
        for rank in self.ranks:
            with contextlib.suppress(OSError, IndexError):
                os.kill(youngest_child(rank.pid), 9)
            rank.wait()


class Packages(unittest.TestCase):
    """Two machines for all: the tests run in the order of their names. From test_05 on both users train."""
    trainings = ()
    configurations = ()

    def configure(self, node, **changes):
        """Changes the configuration of a node; the daemon takes it."""
        document = self.configurations[node]
        document.update(changes)
        MACHINES[node].write("etc/adtopk/adtopkd.json", json.dumps(document))
        MACHINES[node].run("systemctl", "reload", "adtopkd")

    def assert_goes_on(self):
        """Both jobs take steps on both nodes, and none is withdrawn."""
        wait_for(lambda: len(steps()) == 4)
        before = steps()
        wait_for(lambda: all(steps().get(job, 0) > done + 3 for job, done in before.items()), seconds=60)
        self.assertEqual({job["steps_withdrawn"] for machine in MACHINES for job in status(machine)["jobs"]}, {0})

    def test_01_install(self):
        for machine in MACHINES:
            said = machine.install(*machine.ours(FOLDER, NAMES))
            self.assertIn("configure this node in /etc/adtopk/adtopkd.json", said)
            self.assertEqual(machine.run("stat", "-c", "%U %G %a", "/etc/adtopk").stdout, "root adtopk 750\n")
            state = machine.run("systemctl", "is-active", "adtopkd", check=False).stdout.strip()
            self.assertEqual(state, "inactive")
            machine.run("systemctl", "preset", "adtopkd")
            self.assertEqual(machine.run("systemctl", "is-enabled", "adtopkd", check=False).stdout.strip(), "disabled")
            for page in ("man1/adtopkctl.1", "man1/adtopk-perf.1", "man1/adtopk-digits.1", "man1/adtopk-transformer.1", "man5/adtopkd.json.5",
                         "man8/adtopkd.8"):
                self.assertTrue(os.path.exists(machine.path(f"usr/share/man/{page}.gz")), page)

    def test_02_starts_as_operators_md_says(self):
        first = json.loads(written("{"))
        peer = first["peers"][0]
        second = {**first, "node": 1, "listen": peer["endpoint"], "key_file": "/etc/adtopk/node1.key",
                  "peers": [{"node": 0, "endpoint": first["listen"]}]}
        Packages.configurations = (first, second)
        keys = []
        for node, machine in enumerate(MACHINES):
            path = self.configurations[node]["key_file"]
            keys.append(machine.run("adtopkctl", "keygen", "--out", path).stdout.strip())
            machine.run("chown", "adtopk", path)
        for node, machine in enumerate(MACHINES):
            document = self.configurations[node]
            document["peers"][0]["key"] = keys[1 - node]
            machine.write("etc/adtopk/adtopkd.json", json.dumps(document))
            checked = machine.run("runuser", "-u", "adtopk", "--", "adtopkd", "--check-config").stdout
            self.assertEqual(checked, "the configuration is correct\n")
            machine.run("systemctl", "enable", "--now", "adtopkd")
            machine.write("root/edited", written("[Service]"))
            machine.run("env", "EDITOR=cp /root/edited", "script", "-qec", "systemctl edit adtopkd", "/dev/null")
        wait_for(lambda: all([peer["state"] for peer in status(machine)["peers"]] == ["up"] for machine in MACHINES))
        self.assertEqual(status(MACHINES[0])["network"]["protection"], "curve")

    def test_03_a_program_is_built_and_trains(self):
        machine = MACHINES[0]
        machine.install("gcc", "libc6-dev", "pkg-config", *machine.ours(FOLDER, ["libadtopk-client-dev"]))
        self.assertTrue(os.path.exists(machine.path("usr/share/man/man3/libadtopk.3.gz")))
        shutil.copy(os.path.join(ROOT, "client/examples/minimal.c"), machine.path(f"{FOLDER}/minimal.c"))
        machine.run("sh", "-c", f"cd /{FOLDER} && cc minimal.c $(pkg-config --cflags --libs adtopk-client)")
        needed = machine.run("sh", "-c", "ldd /usr/lib/*/libadtopk-client.so.1 | grep '=>'").stdout
        self.assertEqual([line.split()[0] for line in needed.splitlines()], ["libc.so.6"])
        machine.run("env", "RANK=0", "WORLD_SIZE=1", f"/{FOLDER}/a.out")

    def test_04_two_users_train(self):
        for machine in MACHINES:
            machine.run("sh", "-c", f"gunzip -c /usr/share/adtopk/digits.csv.gz >{DATA}")
        trainings = [Training(user, 100, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for user in USERS]
        results = [training.results() for training in trainings]
        self.assertEqual([len(set(ranks)) for ranks in results], [1, 1], results)
        owners = {job["owner"] for job in status(MACHINES[0])["jobs"] if job["state"] == "done"}
        self.assertLessEqual(set(USERS), owners)

    def test_05_a_user_changes_a_policy(self):
        """That of the user's own job, while both train."""
        Packages.trainings = [Training(user, 1000000000, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                              for user in USERS]
        self.assert_goes_on()
        own, other = (f"{user}:digits" for user in USERS)
        refused = MACHINES[1].run("adtopkctl", "policy", "set", other, "density=0.02", uid=USERS[0], check=False)
        self.assertEqual(refused.returncode, 4, refused.stderr)
        MACHINES[1].run("adtopkctl", "policy", "set", own, "density=0.02", uid=USERS[0])
        self.assert_goes_on()
        for machine in MACHINES:
            versions = [json.loads(machine.run("adtopkctl", "--json", "policy", "get", job).stdout)["version"]
                        for job in (own, other)]
            self.assertEqual(versions, [1, 0])

    def test_06_a_new_key(self):
        old = self.configurations[0]["peers"][0]["key"]
        path = "/etc/adtopk/new.key"
        new = MACHINES[1].run("adtopkctl", "keygen", "--out", path).stdout.strip()
        MACHINES[1].run("chown", "adtopk", path)
        peer = self.configurations[0]["peers"][0]
        self.configure(0, peers=[{**peer, "key": [old, new]}])
        self.configure(1, key_file=path)
        self.configure(0, peers=[{**peer, "key": new}])
        self.assert_goes_on()
        MACHINES[1].run("systemctl", "restart", "adtopkd")  # which opens all connections again
        self.assert_goes_on()

    def test_07_a_daemon_that_hangs_is_replaced(self):
        machine = MACHINES[1]
        before = pid(machine)
        began = time.monotonic()
        machine.run("systemctl", "kill", "--kill-whom=main", "--signal=STOP", "adtopkd")
        wait_for(lambda: pid(machine) not in ("0", before) and status(machine)["jobs"], seconds=2 * REPLACED_S)
        took = time.monotonic() - began
        print(f"the daemon was replaced after {took:.1f} s", flush=True)
        self.assertLess(took, REPLACED_S)
        self.assertIn("Watchdog timeout", machine.journal("--unit=adtopkd"))
        self.assert_goes_on()

    def test_08_upgrade_leaves_jobs_alone(self):
        """The daemon before goes on until it is restarted; the next one goes on with its jobs."""
        machine = MACHINES[0]
        before = pid(machine), status(machine)["version"]
        said = machine.install(*machine.ours(f"{FOLDER}/later", [*NAMES, "libadtopk-client-dev"]))
        self.assertIn("jobs wait while it restarts, else they end: systemctl restart adtopkd", said)
        self.assertEqual((pid(machine), status(machine)["version"]), before)
        self.assert_goes_on()
        machine.run("systemctl", "restart", "adtopkd")
        self.assertEqual(status(machine)["version"], LATER)
        self.assert_goes_on()
        for one in MACHINES:
            verified = one.run("adtopkctl", "verify").stdout
            self.assertEqual(verified.count(": conserved"), len(USERS), verified)

    def test_09_drain_and_stop(self):
        machine = MACHINES[0]
        self.assertIn("2 are connected", machine.run("adtopkctl", "drain").stdout)
        late = machine.run("env", "ADTOPK_RUN_ID=late", "adtopk-digits", "--data", DATA, "--rank", "0", "--world", "1",
                           uid=USERS[0], check=False)
        self.assertNotEqual(late.returncode, 0)
        self.assertIn("node 0 is draining", late.stdout + late.stderr)
        self.assert_goes_on()
        for training in self.trainings:
            training.kill()
        wait_for(lambda: status(machine)["sessions"] == 0)
        machine.run("systemctl", "stop", "adtopkd")
        shown = machine.run("systemctl", "show", "--value", "--property=ActiveState,Result", "adtopkd").stdout.split()
        self.assertEqual(sorted(shown), ["inactive", "success"])
        machine.run("systemctl", "start", "adtopkd")

    def test_10_the_exporter_is_scraped(self):
        machine = MACHINES[0]
        machine.run("systemctl", "enable", "--now", "adtopk-exporter")
        wait_for(lambda: machine.answer("/healthz") == "ok\n")
        self.assertIn("adtopk_up 1\n", machine.answer("/metrics"))

    def test_11_prometheus_takes_its_metrics_and_alerts(self):
        machine = MACHINES[0]
        machine.install("prometheus")
        machine.write(f"{FOLDER}/metrics", machine.answer("/metrics"))
        machine.run("sh", "-c", f"promtool check metrics </{FOLDER}/metrics")
        shutil.copytree(os.path.join(ROOT, "deploy/prometheus"), machine.path(f"{FOLDER}/rules"))
        machine.run("cp", "/usr/share/adtopk/adtopk.rules.yml", f"/{FOLDER}/rules/")
        machine.run("promtool", "test", "rules", f"/{FOLDER}/rules/adtopk.rules.test.yml")

    def test_12_lintian(self):
        MACHINES[0].install("lintian")
        MACHINES[0].run("sh", "-c", f"cd /{FOLDER} && lintian --allow-root --fail-on error,warning *.changes *.deb",
                        timeout=300)

    def test_13_purge_leaves_nothing(self):
        for machine in MACHINES:
            machine.run("systemctl", "revert", "adtopkd")  # the drop-in is the operator's
            machine.online("apt-get", "purge", "--yes", "~i~nadtopk")  # those that are installed, by their names
            self.assertEqual(machine.leftovers(), "")


def prepare(machines):
    """Mounts before processes: a process sees only what was mounted before it."""
    packages = os.path.join(BUILD, "packages")
    MACHINES.extend(machines.enter_context(Debian(f"node{node}")) for node in (0, 1))
    for machine in MACHINES:
        machine.prepare()
    build_releases(packages)
    for machine in MACHINES:
        machine.receive(packages)
    for machine in MACHINES:
        machine.boot()
    join([machine.leader for machine in MACHINES], ADDRESSES)


if __name__ == "__main__":
    if "ADTOPK_TEST_LONG" not in os.environ:
        print("skipped: tests/run --long runs this")
        sys.exit(77)
    try:
        with contextlib.ExitStack() as stack:
            prepare(stack)
            unittest.main(failfast=True)
    except Impossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
