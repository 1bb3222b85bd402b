#!/usr/bin/env python3
"""The packages of deploy/package on a bare Debian 12: installed, configured, upgraded while a job
trains, and purged; lintian has nothing to say of them.

usage: test_packages.py BUILD [unittest's arguments]; with ADTOPK_TEST_LONG=1 only, because it builds
everything anew. Skips (77) without that, and where no such machine can be made.
"""
import glob
import json
import os
import shutil
import subprocess
import sys
import unittest

from build import BUILD
from machine import Impossible, Machine, bare_debian
from ranks import Job
from service import wait_for

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
PACKAGES = "var/packages"  # in the machine
TENSORS = [("a", "f32", "both", (64, 128)), ("b", "f32", "dense", (64, 64))]
BUILT = os.path.join(BUILD, "packages")
MACHINE = None


def online(*command, timeout=300):
    """Runs a command in the machine, on the network of the machine below; returns what it printed."""
    done = subprocess.run([*MACHINE.enter(online=True), "env", "DEBIAN_FRONTEND=noninteractive", *command],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def install(*names):
    """Returns what apt-get printed."""
    files = [glob.glob(f"{MACHINE.path(PACKAGES)}/{name}_*.deb")[0] for name in names]
    return online("apt-get", "install", "--yes", "--no-install-recommends",
                  *(f"/{PACKAGES}/{os.path.basename(file)}" for file in files))


def named_after_us():
    """Files and folders of the machine that have adtopk in their name, but for our own."""
    pruned = " -o ".join(f"-path {folder}" for folder in ("/proc", "/sys", f"/{PACKAGES}", BUILD))
    return MACHINE.run("sh", "-c", f"find / \\( {pruned} \\) -prune -o -name '*adtopk*' -print").stdout


class Packages(unittest.TestCase):
    """One machine for all: the tests run in the order of their names."""

    @staticmethod
    def address(_):
        return "unix:/run/adtopk/trainers/adtopkd.sock"

    @staticmethod
    def pid():
        return MACHINE.run("systemctl", "show", "--value", "--property=MainPID", "adtopkd").stdout.strip()

    def test_1_install(self):
        said = install("adtopkd", "adtopk-tools", "libadtopk-client1", "libadtopk-client-dev",
                       "adtopk-exporter", "adtopk-doc")
        self.assertIn("configure this node in /etc/adtopk/adtopkd.json", said)
        self.assertEqual(MACHINE.run("stat", "-c", "%U %G %a", "/etc/adtopk").stdout, "root adtopk 750\n")
        state = MACHINE.run("systemctl", "is-active", "adtopkd", check=False).stdout.strip()
        self.assertEqual(state, "inactive")
        for page in ("man1/adtopkctl.1", "man1/adtopk-perf.1", "man1/adtopk-digits.1", "man3/libadtopk.3",
                     "man5/adtopkd.json.5", "man8/adtopkd.8"):
            self.assertTrue(os.path.exists(MACHINE.path(f"usr/share/man/{page}.gz")), page)

    def test_2_starts(self):
        MACHINE.write("etc/adtopk/adtopkd.json", json.dumps({"node": 0}))
        MACHINE.run("systemctl", "enable", "--now", "adtopkd")
        status = json.loads(MACHINE.run("adtopkctl", "--json", "status").stdout)
        self.assertEqual(status["node"], 0)

    def test_3_a_program_is_built_and_trains(self):
        online("apt-get", "install", "--yes", "--no-install-recommends", "gcc", "libc6-dev", "pkg-config")
        shutil.copy(os.path.join(ROOT, "client/examples/minimal.c"), MACHINE.path(f"{PACKAGES}/minimal.c"))
        MACHINE.run("sh", "-c", f"cd /{PACKAGES} && cc minimal.c $(pkg-config --cflags --libs adtopk-client)")
        needed = MACHINE.run("sh", "-c", "ldd /usr/lib/*/libadtopk-client.so.1 | grep '=>'").stdout
        self.assertEqual([line.split()[0] for line in needed.splitlines()], ["libc.so.6"])
        MACHINE.run("env", "RANK=0", "WORLD_SIZE=1", f"/{PACKAGES}/a.out")
        data = f"/{PACKAGES}/digits.csv"
        MACHINE.run("sh", "-c", f"gunzip -c /usr/share/adtopk/digits.csv.gz >{data}")
        MACHINE.run("adtopk-digits", "--data", data, "--rank", "0", "--world", "1", "--steps", "5")

    def test_4_upgrade_leaves_jobs_alone(self):
        """The same packages under a later version: the daemon before goes on, with its job."""
        later = MACHINE.path(f"{PACKAGES}/later")
        os.mkdir(later)
        for name in ("adtopkd", "adtopk-tools"):
            old = glob.glob(f"{MACHINE.path(PACKAGES)}/{name}_*.deb")[0]
            subprocess.run(["dpkg-deb", "--raw-extract", old, f"{later}/{name}"], check=True)
            control = f"{later}/{name}/DEBIAN/control"
            with open(control, encoding="utf-8") as text:
                changed = text.read().replace("Version: 0.", "Version: 9.").replace("(= 0.", "(= 9.")
            with open(control, "w", encoding="utf-8") as text:
                text.write(changed)
            subprocess.run(["dpkg-deb", "--root-owner-group", "--build", f"{later}/{name}",
                            f"{later}/{name}.deb"], check=True, stdout=subprocess.DEVNULL)
        job = Job(self, BUILD, "upgraded", [0, 0], TENSORS, run="one", through=MACHINE.enter(4001))
        self.addCleanup(job.kill)
        job.join()
        self.assertEqual(job.steps(5)[0], "ok")
        before = self.pid()
        said = online("apt-get", "install", "--yes", "--no-install-recommends",
                      *(f"/{PACKAGES}/later/{name}.deb" for name in ("adtopkd", "adtopk-tools")))
        self.assertIn("when no job trains: systemctl restart adtopkd", said)
        self.assertEqual(self.pid(), before)
        self.assertEqual(job.steps(5)[0], "ok")
        job.end()
        MACHINE.run("systemctl", "restart", "adtopkd")
        wait_for(lambda: MACHINE.run("adtopkctl", "status", check=False).returncode == 0)

    def test_5_the_exporter_is_scraped(self):
        MACHINE.run("systemctl", "enable", "--now", "adtopk-exporter")
        wait_for(lambda: MACHINE.answer("/healthz") == "ok\n")
        self.assertIn("adtopk_up 1\n", MACHINE.answer("/metrics"))

    def test_6_prometheus_takes_its_metrics_and_alerts(self):
        online("apt-get", "install", "--yes", "--no-install-recommends", "prometheus")
        MACHINE.write(f"{PACKAGES}/metrics", MACHINE.answer("/metrics"))
        MACHINE.run("sh", "-c", f"promtool check metrics </{PACKAGES}/metrics")
        shutil.copytree(os.path.join(ROOT, "deploy/prometheus"), MACHINE.path(f"{PACKAGES}/rules"))
        MACHINE.run("cp", "/usr/share/adtopk/adtopk.rules.yml", f"/{PACKAGES}/rules/")
        MACHINE.run("promtool", "test", "rules", f"/{PACKAGES}/rules/adtopk.rules.test.yml")

    def test_7_purge_leaves_nothing(self):
        MACHINE.run("adtopkctl", "keygen", "--out", "/etc/adtopk/node0.key")
        online("apt-get", "purge", "--yes", "adtopkd", "adtopk-tools", "libadtopk-client1", "libadtopk-client-dev",
               "adtopk-exporter", "adtopk-doc")
        self.assertEqual(named_after_us(), "")
        self.assertNotEqual(MACHINE.run("getent", "passwd", "adtopk", check=False).returncode, 0)
        self.assertEqual(MACHINE.run("pgrep", "adtopkd", check=False).stdout, "")

    def test_8_lintian(self):
        online("apt-get", "install", "--yes", "--no-install-recommends", "lintian")
        MACHINE.run("sh", "-c", f"cd /{PACKAGES} && lintian --allow-root --fail-on error,warning *.changes *.deb",
                    timeout=300)


def prepare():
    made = subprocess.run([os.path.join(ROOT, "deploy/package"), "--source", "--out", BUILT],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if made.returncode != 0:
        sys.exit(made.stdout)
    MACHINE.prepare()
    shutil.copytree(BUILT, MACHINE.path(PACKAGES))
    shutil.copy("/etc/resolv.conf", MACHINE.path("etc/resolv.conf"))
    MACHINE.boot()
    try:
        online("apt-get", "update", "--error-on=any")
    except AssertionError as error:
        raise Impossible("no mirror of Debian can be reached") from error


if __name__ == "__main__":
    if "ADTOPK_TEST_LONG" not in os.environ:
        print("skipped: tests/run --long runs this")
        sys.exit(77)
    try:
        with Machine(BUILD, bare_debian(os.path.join(BUILD, "bare"))) as MACHINE:
            prepare()
            unittest.main(failfast=True)
    except Impossible as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
